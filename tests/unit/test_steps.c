/* test_steps.c - step batching in virtual time: rows join and leave between steps. */
#include "sched_rig.h"

static struct berth_model_spec *steps_spec(const char *name)
{
    struct berth_model_spec *spec = rig_spec(name);
    spec->run_mode = BERTH_RUN_STEPS;
    return spec;
}

/* A row that lives for `steps` steps (the fake engine counts batch_rows down). */
static void ask_steps(struct rig *rig, struct rig_client *client, struct berth_model *model,
                      uint64_t steps)
{
    assert_true(rig_request(rig, client, model, steps, 4));
    assert_int_equal(rig_submit(rig, client), BERTH_OK);
    rig_turn(rig);
}

static void rows_join_and_leave(void **state)
{
    struct rig rig;
    struct rig_client longest, shorter, late;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, steps_spec("s"));
    assert_int_equal(rig.sent_count, 0); /* nobody is live: no message */
    ask_steps(&rig, &longest, model, 4);
    struct berth_worker_msg *msg = rig_sent(&rig, BERTH_WORKER_STEP);
    assert_int_equal(msg->batch.row_count, 1);
    ask_steps(&rig, &shorter, model, 1);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_STEP), 1); /* between steps only */
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    assert_int_equal(longest.parts, 1);
    msg = rig_sent(&rig, BERTH_WORKER_STEP);
    assert_int_equal(msg->batch.row_count, 1);
    assert_ptr_equal(msg->batch.rows[0].request, shorter.request);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    assert_int_equal(shorter.finals, 1);
    assert_int_equal(shorter.code, BERTH_OK);
    ask_steps(&rig, &late, model, 1);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    assert_int_equal(longest.parts, 4);
    assert_int_equal(longest.code + late.code, BERTH_OK);
    assert_int_equal(longest.finals + late.finals, 2);
    assert_int_equal(rig.sent_count, 0);
    assert_int_equal(atomic_load(&berth_model_detail(model)->batches[2].count), 2);
    rig_leave(&longest);
    rig_leave(&shorter);
    rig_leave(&late);
    rig_drop(model);
    rig_close(&rig);
}

static void slots_are_the_limit(void **state)
{
    struct rig rig;
    struct rig_client clients[6]; /* the rig says 4 slots */
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, steps_spec("s"));
    for (size_t i = 0; i < 6; i++) {
        assert_true(rig_request(&rig, &clients[i], model, 2, 4));
        assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
    }
    rig_turn(&rig);
    assert_int_equal(rig_sent(&rig, BERTH_WORKER_STEP)->batch.row_count, 4);
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    }
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(clients[i].finals, 1);
        assert_int_equal(clients[i].parts, 2);
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

static void rows_spread_over_instances(void **state)
{
    struct rig rig;
    struct rig_client clients[6];
    rig_open(&rig);
    rig.instances = 2;
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, steps_spec("s"));
    for (size_t i = 0; i < 6; i++) {
        assert_true(rig_request(&rig, &clients[i], model, 3, 4));
        assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
    }
    rig_turn(&rig);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_STEP), 2);
    assert_int_equal(rig.sent[0]->batch.row_count, 3);
    assert_int_equal(rig.sent[1]->batch.row_count, 3);
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    }
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(clients[i].code, BERTH_OK);
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

/* Of dynamic_batching: a delay and preferred sizes hold nobody up, levels and policies count. */
static void queue_policies_count_and_delays_do_not(void **state)
{
    struct rig rig;
    struct rig_client first, low[3], high;
    struct berth_model_spec *spec = steps_spec("s");
    spec->batching = BERTH_BATCHING_DYNAMIC;
    spec->dynamic = (struct berth_dynamic_batching){.preferred = {4},
                                                    .preferred_count = 1,
                                                    .delay_us_max = 3000000,
                                                    .priority_levels = 2,
                                                    .priority_level_default = 2};
    spec->dynamic.policies[1] =
        (struct berth_queue_policy){.count_max = 2, .timeout_us_default = 50000};
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    ask_steps(&rig, &first, model, 4);
    assert_int_equal(rig_sent(&rig, BERTH_WORKER_STEP)->batch.row_count, 1); /* at once */
    for (size_t i = 0; i < 3; i++) {
        ask_steps(&rig, &low[i], model, 1);
    }
    assert_int_equal(low[2].code, BERTH_UNAVAILABLE);
    assert_string_equal(low[2].msg, "Exceeds maximum queue size");
    assert_true(rig_request(&rig, &high, model, 1, 4));
    high.request->priority = 1;
    assert_int_equal(rig_submit(&rig, &high), BERTH_OK);
    rig_turn(&rig);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    struct berth_worker_msg *msg = rig_sent(&rig, BERTH_WORKER_STEP);
    assert_int_equal(msg->batch.row_count, 3);
    assert_ptr_equal(msg->batch.rows[0].request, high.request);
    rig_leave(&low[2]);
    ask_steps(&rig, &low[2], model, 1);
    rig_advance(&rig, 50 * RIG_MS); /* the step takes longer */
    assert_int_equal(low[2].code, BERTH_UNAVAILABLE);
    assert_string_equal(low[2].msg, "Request timeout expired");
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    }
    assert_int_equal(first.code + high.code + low[0].code + low[1].code, BERTH_OK);
    rig_leave(&first);
    rig_leave(&high);
    for (size_t i = 0; i < 3; i++) {
        rig_leave(&low[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

/* An expired row is answered at once; its slot is dropped with the next message, and free then. */
static void dropped_rows_free_their_slots(void **state)
{
    struct rig rig;
    struct rig_client expired, cancelled, stays;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, steps_spec("s"));
    assert_true(rig_request(&rig, &expired, model, 100, 4));
    expired.request->t_deadline_ns = rig.now_ns + 5 * RIG_MS;
    assert_int_equal(rig_submit(&rig, &expired), BERTH_OK);
    ask_steps(&rig, &cancelled, model, 100);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    ask_steps(&rig, &stays, model, 2);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    rig_advance(&rig, 3 * RIG_MS); /* a step is under way */
    assert_int_equal(expired.code, BERTH_DEADLINE);
    berth_sched_cancel(rig.sched, cancelled.request);
    rig_turn(&rig);
    assert_int_equal(cancelled.code, BERTH_CANCELLED);
    struct berth_worker_msg *msg = rig_sent(&rig, BERTH_WORKER_STEP);
    atomic_store(&expired.request->cancelled, false); /* an engine that has not looked yet */
    atomic_store(&cancelled.request->cancelled, false);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    msg = rig_sent(&rig, BERTH_WORKER_STEP);
    assert_int_equal(msg->drop_count, 2);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    assert_int_equal(stays.code, BERTH_OK);
    assert_int_equal(atomic_load(&expired.request->references), 1);
    assert_int_equal(atomic_load(&cancelled.request->references), 1);
    assert_int_equal(rig.sent_count, 0);
    assert_int_equal(atomic_load(&model->stats.wasted_count), 2);
    rig_leave(&expired);
    rig_leave(&cancelled);
    rig_leave(&stays);
    rig_drop(model);
    rig_close(&rig);
}

/* The last live row is cancelled between steps: one message drops it, with no step. */
static void a_lone_drop_is_sent_without_a_step(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, steps_spec("s"));
    ask_steps(&rig, &client, model, 100);
    berth_sched_cancel(rig.sched, client.request);
    rig_turn(&rig);
    atomic_store(&client.request->cancelled, false);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    struct berth_worker_msg *msg = rig_sent(&rig, BERTH_WORKER_STEP);
    assert_non_null(msg);
    assert_int_equal(msg->budget_ns, 0);
    assert_int_equal(msg->drop_count, 1);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    assert_int_equal(rig.sent_count, 0);
    assert_int_equal(atomic_load(&client.request->references), 1);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void a_failed_step_ends_its_rows(void **state)
{
    struct rig rig;
    struct rig_client clients[2], next;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, steps_spec("s"));
    ask_steps(&rig, &clients[0], model, 10);
    ask_steps(&rig, &clients[1], model, 10);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    (void)berth_fail(&rig_sent(&rig, BERTH_WORKER_STEP)->err, BERTH_UNAVAILABLE, "device");
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(clients[i].code, BERTH_UNAVAILABLE);
        rig_leave(&clients[i]);
    }
    assert_int_equal(rig_sent(&rig, BERTH_WORKER_STEP)->drop_count, 2);
    ask_steps(&rig, &next, model, 1);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    assert_int_equal(next.code, BERTH_OK);
    rig_leave(&next);
    rig_drop(model);
    rig_close(&rig);
}

static void a_row_refused_by_the_engine(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, steps_spec("s"));
    ask_steps(&rig, &client, model, 1);
    struct berth_worker_msg *msg = rig_sent(&rig, BERTH_WORKER_STEP);
    rig_take_off(&rig, msg); /* by hand: admit refuses the row, the step has nobody */
    rig.runs_under_way--;
    (void)berth_fail(&msg->batch.rows[0].err, BERTH_INVALID, "token out of range");
    msg->step->event_count = 0;
    berth_queue_post(rig.worker.replies, &msg->post.link);
    rig_turn(&rig);
    assert_int_equal(client.code, BERTH_INVALID);
    assert_int_equal(rig.sent_count, 0);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void steps_share_the_worker(void **state)
{
    struct rig rig;
    struct rig_client row, call;
    rig_open(&rig);
    rig.worker.parallel_max = 1;
    rig_begin(&rig);
    struct berth_model *steps = rig_warm(&rig, steps_spec("s"));
    struct berth_model *calls = rig_warm(&rig, rig_spec("a"));
    ask_steps(&rig, &row, steps, 50);
    rig_ask(&rig, &call, calls); /* between two steps it gets its turn */
    size_t steps_before = 0;
    while (call.finals == 0) {
        bool step = rig_sent(&rig, BERTH_WORKER_STEP) != NULL;
        steps_before += step;
        rig_finish(&rig, step ? BERTH_WORKER_STEP : BERTH_WORKER_RUN, RIG_MS);
    }
    assert_in_range(steps_before, 1, 3);
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    }
    assert_int_equal(row.code, BERTH_OK);
    rig_leave(&row);
    rig_leave(&call);
    rig_drop(steps);
    rig_drop(calls);
    rig_close(&rig);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_join_and_leave),
        cmocka_unit_test(slots_are_the_limit),
        cmocka_unit_test(rows_spread_over_instances),
        cmocka_unit_test(queue_policies_count_and_delays_do_not),
        cmocka_unit_test(dropped_rows_free_their_slots),
        cmocka_unit_test(a_lone_drop_is_sent_without_a_step),
        cmocka_unit_test(a_failed_step_ends_its_rows),
        cmocka_unit_test(a_row_refused_by_the_engine),
        cmocka_unit_test(steps_share_the_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
