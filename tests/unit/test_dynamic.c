/* test_dynamic.c - each knob of the dynamic batcher, in virtual time. */
#include "sched_rig.h"

#define MANY 16

static struct berth_model_spec *dynamic_spec(const char *name)
{
    struct berth_model_spec *spec = rig_spec(name);
    spec->batching = BERTH_BATCHING_DYNAMIC;
    return spec;
}

static void ask_rows(struct rig *rig, struct rig_client *client, struct berth_model *model,
                     uint64_t rows)
{
    assert_true(rig_request(rig, client, model, rows, 4));
    assert_int_equal(rig_submit(rig, client), BERTH_OK);
}

static void submit_many(struct rig *rig, struct rig_client *clients, size_t count,
                        struct berth_model *model)
{
    for (size_t i = 0; i < count; i++) {
        ask_rows(rig, &clients[i], model, 1);
    }
    rig_turn(rig);
}

static void leave_many(struct rig_client *clients, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rig_leave(&clients[i]);
    }
}

static size_t batch_size(struct rig *rig)
{
    struct berth_worker_msg *msg = rig_sent(rig, BERTH_WORKER_RUN);
    return msg == NULL ? 0 : (size_t)msg->batch.batch_rows;
}

static void finish_all(struct rig *rig)
{
    for (size_t i = 0; i < 1000; i++) {
        if (rig_sent(rig, BERTH_WORKER_RUN) != NULL) {
            rig_finish(rig, BERTH_WORKER_RUN, RIG_MS);
        } else if (rig->t_next_ns != UINT64_MAX && rig->t_next_ns < rig->now_ns + RIG_MS * 1000) {
            rig->now_ns = rig->t_next_ns;
            rig_turn(rig);
        } else {
            return;
        }
    }
    fail_msg("it does not end");
}

/* No delay: what waits when an instance is idle goes together, up to the model's batch size. */
static void no_delay_takes_what_waits(void **state)
{
    struct rig rig;
    struct rig_client first, clients[MANY];
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, dynamic_spec("a"));
    rig_ask(&rig, &first, model);
    assert_int_equal(batch_size(&rig), 1);
    submit_many(&rig, clients, 10, model);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(batch_size(&rig), 8);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(batch_size(&rig), 2);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    const struct berth_model_detail *detail = berth_model_detail(model);
    assert_int_equal(atomic_load(&detail->batches[1].count), 2);
    assert_int_equal(atomic_load(&detail->batches[8].count), 1);
    assert_int_equal(atomic_load(&detail->batches[2].count), 1);
    assert_int_equal(atomic_load(&model->stats.inference_count), 12);
    assert_int_equal(atomic_load(&model->stats.execution_count), 4);
    rig_leave(&first);
    leave_many(clients, 10);
    rig_drop(model);
    rig_close(&rig);
}

/* A delay: the batch waits for company, exactly so long. */
static void delay_waits_for_company(void **state)
{
    struct rig rig;
    struct rig_client clients[MANY];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->dynamic.delay_us_max = 5000;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    submit_many(&rig, clients, 2, model);
    uint64_t t_start_ns = rig.now_ns;
    assert_int_equal(batch_size(&rig), 0);
    assert_int_equal(rig.t_next_ns, t_start_ns + 5 * RIG_MS);
    rig_advance(&rig, 5 * RIG_MS - 1);
    assert_int_equal(batch_size(&rig), 0);
    submit_many(&rig, clients + 2, 1, model);
    rig_advance(&rig, 1);
    assert_int_equal(batch_size(&rig), 3);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    submit_many(&rig, clients + 3, 8, model); /* full: no reason to wait */
    assert_int_equal(batch_size(&rig), 8);
    finish_all(&rig);
    leave_many(clients, 11);
    rig_drop(model);
    rig_close(&rig);
}

static void preferred_sizes_go_at_once(void **state)
{
    struct rig rig;
    struct rig_client first, clients[MANY];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->dynamic.preferred[0] = 2;
    spec->dynamic.preferred[1] = 4;
    spec->dynamic.preferred_count = 2;
    spec->dynamic.delay_us_max = 5000;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    submit_many(&rig, &first, 1, model);
    assert_int_equal(batch_size(&rig), 0);
    submit_many(&rig, clients, 1, model);
    assert_int_equal(batch_size(&rig), 2); /* the smaller one is hit */
    submit_many(&rig, clients + 1, 7, model);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(batch_size(&rig), 4); /* the largest, never more */
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(batch_size(&rig), 2); /* of three that are left */
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(batch_size(&rig), 0); /* one: waits its delay */
    rig_advance(&rig, 5 * RIG_MS);
    assert_int_equal(batch_size(&rig), 1);
    finish_all(&rig);
    rig_leave(&first);
    leave_many(clients, 8);
    rig_drop(model);
    rig_close(&rig);
}

static void deadline_closes_a_batch_early(void **state)
{
    struct rig rig;
    struct rig_client client;
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->dynamic.delay_us_max = 100000;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec); /* a run takes 1 ms */
    assert_true(rig_request(&rig, &client, model, 1, 4));
    client.request->t_deadline_ns = rig.now_ns + 20 * RIG_MS;
    assert_int_equal(rig_submit(&rig, &client), BERTH_OK);
    rig_turn(&rig);
    assert_int_equal(batch_size(&rig), 0);
    assert_true(rig.t_next_ns < rig.now_ns + 19 * RIG_MS);
    rig.now_ns = rig.t_next_ns;
    rig_turn(&rig);
    assert_int_equal(batch_size(&rig), 1);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void rows_are_counted_not_requests(void **state)
{
    struct rig rig;
    struct rig_client first, clients[3];
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, dynamic_spec("a"));
    rig_ask(&rig, &first, model);
    for (size_t i = 0; i < 3; i++) {
        ask_rows(&rig, &clients[i], model, 3);
    }
    rig_turn(&rig);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(batch_size(&rig), 6); /* three do not fit into eight */
    assert_int_equal(rig_sent(&rig, BERTH_WORKER_RUN)->batch.row_count, 2);
    finish_all(&rig);
    rig_leave(&first);
    leave_many(clients, 3);
    rig_drop(model);
    rig_close(&rig);
}

static void only_the_same_shape_batches(void **state)
{
    struct rig rig;
    struct rig_client first, clients[MANY];
    static const char *one_output[] = {"OUTPUT0"};
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, dynamic_spec("a"));
    rig_ask(&rig, &first, model);
    for (size_t i = 0; i < 6; i++) { /* widths 4 and 5 in turn, one with outputs named */
        assert_true(rig_request(&rig, &clients[i], model, 1, i % 2 == 0 ? 4 : 5));
        if (i == 4) {
            clients[i].request->outputs_wanted = one_output;
            clients[i].request->output_wanted_count = 1;
        }
        assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
    }
    rig_turn(&rig);
    const size_t expected[] = {2, 3, 1}; /* widths 4; widths 5; the one with outputs named */
    for (size_t i = 0; i < 3; i++) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
        struct berth_worker_msg *msg = rig_sent(&rig, BERTH_WORKER_RUN);
        assert_int_equal(msg->batch.row_count, expected[i]);
        for (size_t r = 1; r < msg->batch.row_count; r++) {
            assert_int_equal(msg->batch.rows[r].request->inputs[0].dims[1],
                             msg->batch.rows[0].request->inputs[0].dims[1]);
        }
    }
    finish_all(&rig);
    rig_leave(&first);
    leave_many(clients, 6);
    rig_drop(model);
    rig_close(&rig);
}

static void ragged_inputs_may_differ(void **state)
{
    struct rig rig;
    struct rig_client first, clients[2];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->inputs = berth_arena_alloc(&spec->arena, sizeof(*spec->inputs));
    spec->inputs[0] = (struct berth_io){.name = "INPUT0", .dtype = BERTH_DTYPE_FP32, .rank = 1,
                                        .dims = {-1}, .allow_ragged_batch = true};
    spec->input_count = 1;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    rig_ask(&rig, &first, model);
    for (size_t i = 0; i < 2; i++) {
        assert_true(rig_request(&rig, &clients[i], model, 1, (int64_t)i + 4));
        assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
    }
    rig_turn(&rig);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(batch_size(&rig), 2);
    finish_all(&rig);
    rig_leave(&first);
    leave_many(clients, 2);
    rig_drop(model);
    rig_close(&rig);
}

static void priorities_go_first(void **state)
{
    struct rig rig;
    struct rig_client first, clients[4];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.priority_levels = 3;
    spec->dynamic.priority_level_default = 2;
    const uint64_t priority[] = {3, 0, 1, 9}; /* 0 and 9: the default */
    const size_t order[] = {4, 2, 1, 3};
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    rig_ask(&rig, &first, model);
    for (size_t i = 0; i < 4; i++) {
        assert_true(rig_request(&rig, &clients[i], model, 1, 4));
        clients[i].request->priority = priority[i];
        assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
    }
    rig_turn(&rig);
    finish_all(&rig);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(clients[i].order, first.order + order[i]);
    }
    rig_leave(&first);
    leave_many(clients, 4);
    rig_drop(model);
    rig_close(&rig);
}

/* Triton's max_queue_size: exact, also in a burst that idle instances could take in part. */
static void max_queue_size_is_exact(void **state)
{
    struct rig rig;
    struct rig_client clients[MANY];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.policy_default.count_max = 3;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    submit_many(&rig, clients, 6, model); /* one runs, three wait, two are refused */
    size_t refused = 0;
    for (size_t i = 0; i < 6; i++) {
        if (clients[i].finals > 0) {
            refused++;
            assert_int_equal(clients[i].code, BERTH_UNAVAILABLE);
            assert_string_equal(clients[i].msg, "Exceeds maximum queue size");
            assert_true(i >= 4);
        }
    }
    assert_int_equal(refused, 2);
    assert_int_equal(atomic_load(&model->stats.rejected), 2);
    assert_int_equal(atomic_load(&model->stats.fail.count), 0); /* refused before queueing */
    finish_all(&rig);
    leave_many(clients, 6);
    rig_drop(model);
    rig_close(&rig);
}

/* A full queue refuses on the head what it would refuse with its body: the same error, counted the
 * same; never because of what idle instances are about to take. */
static void max_queue_size_is_judged_on_the_head(void **state)
{
    struct rig rig;
    struct rig_client clients[MANY];
    struct berth_err err;
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.policy_default.count_max = 1;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    assert_true(rig_request(&rig, &clients[0], model, 1, 4));
    assert_int_equal(rig_submit(&rig, &clients[0]), BERTH_OK);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK); /* not taken yet */
    rig_turn(&rig);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK); /* it runs */
    rig_ask(&rig, &clients[1], model);
    for (uint64_t i = 1; i < 3; i++) {
        assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_UNAVAILABLE);
        assert_string_equal(err.msg, "Exceeds maximum queue size");
        assert_true(err.retry_after_ms > 0);
        assert_int_equal(atomic_load(&model->stats.rejected), i);
    }
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS); /* the second runs now */
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK);
    rig_ask(&rig, &clients[2], model);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_UNAVAILABLE);
    berth_sched_cancel(rig.sched, clients[2].request);
    rig_turn(&rig);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK);
    finish_all(&rig);
    leave_many(clients, 3);
    rig_drop(model);
    rig_close(&rig);
}

/* With priority levels the body says whose queue it is: nobody is refused before it. */
static void levels_are_not_judged_on_the_head(void **state)
{
    struct rig rig;
    struct rig_client clients[MANY];
    struct berth_err err;
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.priority_levels = 2;
    spec->dynamic.priority_level_default = 2;
    spec->dynamic.policies[0].count_max = 1;
    spec->dynamic.policies[1].count_max = 1;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    submit_many(&rig, clients, 3, model);
    assert_int_equal(clients[2].code, BERTH_UNAVAILABLE);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK);
    finish_all(&rig);
    leave_many(clients, 3);
    rig_drop(model);
    rig_close(&rig);
}

/* What waits in a queue that is left behind does not fill the next one. */
static void a_full_queue_of_an_unloaded_model_refuses_nobody(void **state)
{
    struct rig rig;
    struct rig_client clients[MANY];
    struct berth_err err;
    struct berth_admin admin = {.on_done = rig_admin_done, .reply = &rig.replies,
                                .kind = BERTH_ADMIN_UNLOAD, .name = "a", .state = &rig};
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.policy_default.count_max = 1;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    submit_many(&rig, clients, 2, model);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_UNAVAILABLE);
    berth_sched_admin(rig.sched, &admin);
    rig_turn(&rig);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK);
    finish_all(&rig);
    leave_many(clients, 2);
    rig_drop(model);
    rig_close(&rig);
}

static void queue_timeout_rejects(void **state)
{
    struct rig rig;
    struct rig_client running, queued;
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->dynamic.policy_default.timeout_us_default = 10000;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    rig_ask(&rig, &running, model);
    rig_ask(&rig, &queued, model);
    rig_advance(&rig, 10 * RIG_MS - 1);
    assert_int_equal(queued.finals, 0);
    rig_advance(&rig, 1);
    assert_int_equal(queued.code, BERTH_UNAVAILABLE);
    assert_string_equal(queued.msg, "Request timeout expired");
    assert_int_equal(running.finals, 0); /* it left the queue in time */
    rig_finish(&rig, BERTH_WORKER_RUN, 50 * RIG_MS);
    assert_int_equal(running.code, BERTH_OK);
    rig_leave(&running);
    rig_leave(&queued);
    rig_drop(model);
    rig_close(&rig);
}

static void queue_timeout_delays(void **state)
{
    struct rig rig;
    struct rig_client running, late, fresh;
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.policy_default.timeout_us_default = 10000;
    spec->dynamic.policy_default.timeout_action = BERTH_TIMEOUT_DELAY;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    rig_ask(&rig, &running, model);
    rig_ask(&rig, &late, model);
    rig_advance(&rig, 15 * RIG_MS);
    assert_int_equal(late.finals, 0);
    rig_ask(&rig, &fresh, model); /* passes the one that is late */
    finish_all(&rig);
    assert_int_equal(late.code + fresh.code, BERTH_OK);
    assert_true(fresh.order < late.order);
    rig_leave(&running);
    rig_leave(&late);
    rig_leave(&fresh);
    rig_drop(model);
    rig_close(&rig);
}

/* One that is moved back leaves the head to another, whose batch may be complete (S10). */
static void moved_back_wakes_the_next(void **state)
{
    struct rig rig;
    struct rig_client late, full;
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->dynamic.delay_us_max = 50000;
    spec->dynamic.policy_default.timeout_us_default = 10000;
    spec->dynamic.policy_default.timeout_action = BERTH_TIMEOUT_DELAY;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    rig_ask(&rig, &late, model);
    rig_advance(&rig, 5 * RIG_MS);
    assert_true(rig_request(&rig, &full, model, 8, 5)); /* another shape, a whole batch */
    assert_int_equal(rig_submit(&rig, &full), BERTH_OK);
    rig_turn(&rig);
    assert_int_equal(rig.sent_count, 0); /* the head waits for company */
    rig_advance(&rig, 5 * RIG_MS);
    assert_int_equal(rig.sent_count, 1);
    assert_ptr_equal(rig.sent[0]->batch.rows[0].request, full.request);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    rig_advance(&rig, 100 * RIG_MS);
    finish_all(&rig);
    assert_int_equal(late.finals + full.finals, 2);
    rig_leave(&late);
    rig_leave(&full);
    rig_drop(model);
    rig_close(&rig);
}

/* A request's own timeout counts where the policy allows it, and only to shorten. */
static void timeout_override(void **state)
{
    for (int allowed = 0; allowed < 2; allowed++) {
        struct rig rig;
        struct rig_client running, queued;
        struct berth_model_spec *spec = dynamic_spec("a");
        spec->dynamic.policy_default.timeout_us_default = 50000;
        spec->dynamic.policy_default.timeout_override = allowed == 1;
        rig_open(&rig);
        rig_begin(&rig);
        struct berth_model *model = rig_warm(&rig, spec);
        rig_ask(&rig, &running, model);
        assert_true(rig_request(&rig, &queued, model, 1, 4));
        queued.request->t_deadline_ns = rig.now_ns + 10 * RIG_MS;
        queued.request->timeout_named = true;
        assert_int_equal(rig_submit(&rig, &queued), BERTH_OK);
        rig_turn(&rig);
        rig_advance(&rig, 10 * RIG_MS);
        assert_int_equal(queued.code, allowed == 1 ? BERTH_UNAVAILABLE : BERTH_DEADLINE);
        finish_all(&rig);
        rig_leave(&running);
        rig_leave(&queued);
        rig_drop(model);
        rig_close(&rig);
    }
}

static void preserve_ordering_holds_answers(void **state)
{
    struct rig rig;
    struct rig_client clients[3];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.preserve_ordering = true;
    rig_open(&rig);
    rig.worker.parallel_max = 3;
    rig.instances = 3;
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    submit_many(&rig, clients, 3, model);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_RUN), 3);
    struct berth_worker_msg *msgs[3];
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 3; j++) {
            if (rig.sent[j]->batch.rows[0].request == clients[i].request) {
                msgs[i] = rig.sent[j];
            }
        }
    }
    rig_end(&rig, msgs[2], 0);
    rig_end(&rig, msgs[1], 0);
    rig_turn(&rig);
    assert_int_equal(clients[1].finals + clients[2].finals, 0);
    rig_end(&rig, msgs[0], 0);
    rig_turn(&rig);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(clients[i].finals, 1);
        assert_int_equal(clients[i].code, BERTH_OK);
        assert_int_equal(clients[i].order, clients[0].order + i);
    }
    leave_many(clients, 3);
    rig_drop(model);
    rig_close(&rig);
}

/* S12, S13: an answer that is held and then cancelled is a failure and wasted work, no success. */
static void held_and_cancelled_is_no_success(void **state)
{
    struct rig rig;
    struct rig_client first, second;
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->dynamic.preserve_ordering = true;
    rig_open(&rig);
    rig.instances = 2;
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    uint64_t successes = atomic_load(&model->stats.success.count);
    rig_ask(&rig, &first, model);
    rig_ask(&rig, &second, model);
    assert_int_equal(rig.sent_count, 2);
    bool in_order = rig.sent[0]->batch.rows[0].request == first.request;
    rig.now_ns += 3 * RIG_MS;
    rig_end(&rig, rig.sent[in_order ? 1 : 0], 3 * RIG_MS);
    rig_turn(&rig);
    assert_int_equal(second.finals, 0);
    assert_int_equal(atomic_load(&model->stats.success.count), successes);
    berth_sched_cancel(rig.sched, second.request);
    rig_turn(&rig);
    assert_int_equal(second.code, BERTH_CANCELLED);
    assert_int_equal(atomic_load(&model->stats.success.count), successes);
    assert_int_equal(atomic_load(&model->stats.fail.count), 1);
    assert_int_equal(atomic_load(&model->stats.wasted_ns), 3 * RIG_MS);
    finish_all(&rig);
    assert_int_equal(first.code, BERTH_OK);
    assert_int_equal(atomic_load(&model->stats.success.count), successes + 1);
    rig_leave(&first);
    rig_leave(&second);
    rig_drop(model);
    rig_close(&rig);
}

/* An answer that is held goes out when the one before it is cancelled, or at its own deadline. */
static void held_answers_are_not_lost(void **state)
{
    struct rig rig;
    struct rig_client clients[3];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 1;
    spec->dynamic.preserve_ordering = true;
    rig_open(&rig);
    rig.worker.parallel_max = 3;
    rig.instances = 3;
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    for (size_t i = 0; i < 3; i++) {
        assert_true(rig_request(&rig, &clients[i], model, 1, 4));
        if (i == 1) {
            clients[i].request->t_deadline_ns = rig.now_ns + 10 * RIG_MS;
        }
        assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
        rig_turn(&rig);
    }
    struct berth_worker_msg *first = rig.sent[0];
    rig_end(&rig, rig.sent[1], 0);
    rig_end(&rig, rig.sent[1], 0);
    rig_turn(&rig);
    rig_advance(&rig, 10 * RIG_MS);
    assert_int_equal(clients[1].code, BERTH_DEADLINE);
    assert_int_equal(clients[2].finals, 0);
    berth_sched_cancel(rig.sched, clients[0].request);
    rig_turn(&rig);
    assert_int_equal(clients[0].code, BERTH_CANCELLED);
    assert_int_equal(clients[2].finals, 1);
    assert_int_equal(clients[2].code, BERTH_OK);
    rig_end(&rig, first, 0);
    rig_turn(&rig);
    leave_many(clients, 3);
    rig_drop(model);
    rig_close(&rig);
}

static void no_batch_dimension_means_one(void **state)
{
    struct rig rig;
    struct rig_client first, clients[3];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->batch_size_max = 0;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    rig_ask(&rig, &first, model);
    submit_many(&rig, clients, 3, model);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(rig_sent(&rig, BERTH_WORKER_RUN)->batch.row_count, 1);
    finish_all(&rig);
    rig_leave(&first);
    leave_many(clients, 3);
    rig_drop(model);
    rig_close(&rig);
}

static void cancelled_rows_leave_the_batch(void **state)
{
    struct rig rig;
    struct rig_client clients[3];
    struct berth_model_spec *spec = dynamic_spec("a");
    spec->dynamic.delay_us_max = 5000;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, spec);
    submit_many(&rig, clients, 3, model);
    berth_sched_cancel(rig.sched, clients[0].request);
    rig_turn(&rig);
    rig_advance(&rig, 5 * RIG_MS);
    assert_int_equal(batch_size(&rig), 2);
    finish_all(&rig);
    leave_many(clients, 3);
    rig_drop(model);
    rig_close(&rig);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_delay_takes_what_waits),
        cmocka_unit_test(delay_waits_for_company),
        cmocka_unit_test(preferred_sizes_go_at_once),
        cmocka_unit_test(deadline_closes_a_batch_early),
        cmocka_unit_test(rows_are_counted_not_requests),
        cmocka_unit_test(only_the_same_shape_batches),
        cmocka_unit_test(ragged_inputs_may_differ),
        cmocka_unit_test(priorities_go_first),
        cmocka_unit_test(max_queue_size_is_exact),
        cmocka_unit_test(max_queue_size_is_judged_on_the_head),
        cmocka_unit_test(levels_are_not_judged_on_the_head),
        cmocka_unit_test(a_full_queue_of_an_unloaded_model_refuses_nobody),
        cmocka_unit_test(queue_timeout_rejects),
        cmocka_unit_test(queue_timeout_delays),
        cmocka_unit_test(moved_back_wakes_the_next),
        cmocka_unit_test(timeout_override),
        cmocka_unit_test(preserve_ordering_holds_answers),
        cmocka_unit_test(held_answers_are_not_lost),
        cmocka_unit_test(held_and_cancelled_is_no_success),
        cmocka_unit_test(no_batch_dimension_means_one),
        cmocka_unit_test(cancelled_rows_leave_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
