/* test_worker_loss.c - a worker whose process ended: what the controller does with what was loaded
 * there (R10), in virtual time; and which worker a model goes to. */
#include "sched_rig.h"

#include "sched/controller.h"

static void lose_all(struct rig *rig)
{
    atomic_fetch_add(&rig->worker.epoch, 1);
    berth_worker_fault_post(&rig->worker);
    berth_worker_fault_post(&rig->worker); /* it is out already */
    rig_turn(rig);
}

static void fail_first(struct rig *rig, enum berth_worker_kind kind)
{
    struct berth_worker_msg *msg = rig_sent(rig, kind);
    assert_non_null(msg);
    (void)berth_fail(&msg->err, BERTH_UNAVAILABLE, "worker process ended: signal 9");
    rig_finish(rig, kind, 0);
}

static void what_ran_is_answered_what_waited_runs(void **state)
{
    struct rig rig;
    struct rig_client clients[6];
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model_spec *spec = rig_spec("m");
    spec->batch_size_max = 0; /* one at a time */
    struct berth_model *model = rig_warm(&rig, spec);
    for (size_t i = 0; i < 6; i++) {
        rig_ask(&rig, &clients[i], model);
    }
    assert_int_equal(rig_count(&rig, BERTH_WORKER_RUN), 1);
    lose_all(&rig);
    assert_int_equal(berth_model_state(model), BERTH_STATE_LOADING);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
    assert_int_equal(clients[0].finals, 0); /* its message has not come back */
    fail_first(&rig, BERTH_WORKER_RUN);
    assert_int_equal(clients[0].code, BERTH_UNAVAILABLE);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, 0);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    for (size_t i = 1; i < 6; i++) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(clients[i].finals, 1);
        assert_int_equal(clients[i].code, i == 0 ? BERTH_UNAVAILABLE : BERTH_OK);
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

static void rows_in_slots_are_answered(void **state)
{
    struct rig rig;
    struct rig_client clients[6];
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model_spec *spec = rig_spec("m");
    spec->run_mode = BERTH_RUN_STEPS;
    struct berth_model *model = rig_warm(&rig, spec);
    for (size_t i = 0; i < 6; i++) { /* two more than there are slots */
        assert_true(rig_request(&rig, &clients[i], model, 5, 4));
        assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
    }
    rig_turn(&rig);
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS); /* four live, and the next step is sent */
    lose_all(&rig);
    fail_first(&rig, BERTH_WORKER_STEP);
    while (rig_sent(&rig, BERTH_WORKER_STEP) != NULL) { /* the drops */
        assert_int_equal(rig_sent(&rig, BERTH_WORKER_STEP)->budget_ns, 0);
        fail_first(&rig, BERTH_WORKER_STEP);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(clients[i].finals, 1);
        assert_int_equal(clients[i].code, BERTH_UNAVAILABLE);
    }
    rig_finish(&rig, BERTH_WORKER_UNLOAD, 0);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    while (rig_sent(&rig, BERTH_WORKER_STEP) != NULL) {
        rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    }
    for (size_t i = 4; i < 6; i++) {
        assert_int_equal(clients[i].finals, 1);
        assert_int_equal(clients[i].code, BERTH_OK);
    }
    for (size_t i = 0; i < 6; i++) {
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

/* Nothing was under way: on demand it comes back when it is asked for, by decision at once. */
static void idle_models_are_cold_or_load_again(void **state)
{
    for (int keep = 0; keep < 2; keep++) {
        struct rig rig;
        struct rig_client client;
        struct berth_sched_stats stats;
        rig_open(&rig);
        rig.options.mode = keep == 1 ? BERTH_CONTROL_NONE : BERTH_CONTROL_DEMAND;
        struct berth_model_spec *spec = rig_spec("m");
        struct berth_model *model = NULL;
        if (keep == 1) {
            model = rig_put(&rig, spec);
            rig_begin(&rig);
            rig_turn(&rig);
            rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
        } else {
            rig_begin(&rig);
            model = rig_warm(&rig, spec);
        }
        assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
        lose_all(&rig);
        rig_finish(&rig, BERTH_WORKER_UNLOAD, 0);
        assert_int_equal(berth_model_state(model),
                         keep == 1 ? BERTH_STATE_LOADING : BERTH_STATE_COLD);
        if (keep == 0) {
            berth_sched_stats(rig.sched, &stats);
            assert_int_equal(stats.bytes_models, 0);
            rig_ask(&rig, &client, model);
        }
        rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
        assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
        if (keep == 0) {
            rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
            assert_int_equal(client.code, BERTH_OK);
            rig_leave(&client);
        }
        rig_drop(model);
        rig_close(&rig);
    }
}

/* Loaded by a process that has ended since: failed, as if it had never come. */
static void a_load_that_comes_late_is_lost(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("m"));
    rig_ask(&rig, &client, model);
    lose_all(&rig);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS); /* epoch 0 */
    assert_int_equal(client.finals, 1);
    assert_int_equal(client.code, BERTH_UNAVAILABLE);
    assert_int_equal(berth_model_state(model), BERTH_STATE_FAILED);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void give_back_unbegun(struct rig *rig, enum berth_worker_kind kind)
{
    struct berth_worker_msg *msg = rig_sent(rig, kind);
    assert_non_null(msg);
    (void)berth_fail(&msg->err, BERTH_UNAVAILABLE, "worker process ended: signal 9");
    msg->err.retry_after_ms = 7;
    msg->not_begun = true;
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        msg->batch.rows[i].err = msg->err;
    }
    rig_finish(rig, kind, 0);
}

static void reload(struct rig *rig)
{
    rig_finish(rig, BERTH_WORKER_UNLOAD, 0);
    rig_finish(rig, BERTH_WORKER_LOAD, RIG_MS);
}

/* Runs and rows that the process never had go to the next copy; a second loss is answered, with a
 * time to come back at. Their deadlines and cancels hold all the way. */
static void what_never_began_begins_again(void **state)
{
    for (int steps = 0; steps < 2; steps++) {
        struct rig rig;
        struct rig_client clients[4];
        struct berth_sched_stats stats;
        enum berth_worker_kind kind = steps == 1 ? BERTH_WORKER_STEP : BERTH_WORKER_RUN;
        rig_open(&rig);
        rig_begin(&rig);
        struct berth_model_spec *spec = rig_spec("m");
        spec->batching = BERTH_BATCHING_DYNAMIC;
        spec->run_mode = steps == 1 ? BERTH_RUN_STEPS : BERTH_RUN_EXECUTE;
        struct berth_model *model = rig_warm(&rig, spec);
        for (size_t i = 0; i < 4; i++) {
            assert_true(rig_request(&rig, &clients[i], model, steps == 1 ? 5 : 1, 4));
            clients[i].request->t_deadline_ns = rig.now_ns + (i == 3 ? 5 : 50) * BERTH_NS_PER_S;
            assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
        }
        rig_turn(&rig);
        assert_int_equal(rig_sent(&rig, kind)->batch.row_count, 4);
        lose_all(&rig);
        give_back_unbegun(&rig, kind);
        berth_sched_stats(rig.sched, &stats);
        assert_int_equal(stats.running, 0);
        assert_int_equal(stats.queued, 4);
        assert_int_equal(berth_model_state(model), BERTH_STATE_LOADING);
        berth_sched_cancel(rig.sched, clients[2].request);
        rig_advance(&rig, 6 * BERTH_NS_PER_S);
        assert_int_equal(clients[2].code, BERTH_CANCELLED);
        assert_int_equal(clients[3].code, BERTH_DEADLINE);
        reload(&rig);
        assert_int_equal(rig_sent(&rig, kind)->batch.row_count, 2);
        assert_int_equal(clients[0].finals + clients[1].finals, 0);
        if (steps == 0) { /* lost once more: enough */
            lose_all(&rig);
            give_back_unbegun(&rig, kind);
            for (size_t i = 0; i < 2; i++) {
                assert_int_equal(clients[i].code, BERTH_UNAVAILABLE);
                assert_int_equal(clients[i].retry_after_ms, 7);
            }
            rig_finish(&rig, BERTH_WORKER_UNLOAD, 0);
        }
        while (rig_sent(&rig, kind) != NULL) {
            rig_finish(&rig, kind, RIG_MS);
        }
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(clients[i].finals, 1);
            assert_true(steps == 0 || i > 1 || clients[i].code == BERTH_OK);
            rig_leave(&clients[i]);
        }
        berth_sched_stats(rig.sched, &stats);
        assert_int_equal(stats.queued + stats.running, 0);
        assert_int_equal(atomic_load(&model->stats.queue_depth), 0);
        rig_drop(model);
        rig_close(&rig);
    }
}

/* One that never began does not hold back, and is not held back by, what was answered in order. */
static void order_is_kept_among_what_ran(void **state)
{
    struct rig rig;
    struct rig_client clients[3];
    rig_open(&rig);
    rig.instances = 2;
    rig_begin(&rig);
    struct berth_model_spec *spec = rig_spec("m");
    spec->batching = BERTH_BATCHING_DYNAMIC;
    spec->dynamic.preserve_ordering = true;
    spec->batch_size_max = 1;
    struct berth_model *model = rig_warm(&rig, spec);
    for (size_t i = 0; i < 3; i++) {
        rig_ask(&rig, &clients[i], model);
    }
    assert_int_equal(rig_count(&rig, BERTH_WORKER_RUN), 2);
    struct berth_worker_msg *first = rig_sent(&rig, BERTH_WORKER_RUN);
    bool is_first = first->batch.rows[0].request == clients[0].request;
    lose_all(&rig);
    give_back_unbegun(&rig, BERTH_WORKER_RUN);
    fail_first(&rig, BERTH_WORKER_RUN);
    assert_int_equal(clients[is_first ? 1 : 0].code, BERTH_UNAVAILABLE);
    reload(&rig);
    while (rig_sent(&rig, BERTH_WORKER_RUN) != NULL) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(clients[i].finals, 1);
        assert_int_equal(clients[i].code,
                         i == (is_first ? 1 : 0) ? BERTH_UNAVAILABLE : BERTH_OK);
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

static void ask_steps(struct rig *rig, struct rig_client *client, struct berth_model *model)
{
    assert_true(rig_request(rig, client, model, 50, 4));
    assert_int_equal(rig_submit(rig, client), BERTH_OK);
    rig_turn(rig);
}

/* An old copy is lost, the new one is elsewhere and full: the rows that go there make the
 * controller send what it can, but nothing to the seat whose message it is just taking apart. */
static void a_seat_is_free_when_its_message_is_done(void **state)
{
    struct rig rig;
    struct rig_client clients[9];
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model_spec *specs[2];
    for (size_t i = 0; i < 2; i++) {
        specs[i] = rig_spec("m");
        specs[i]->run_mode = BERTH_RUN_STEPS;
        specs[i]->batching = BERTH_BATCHING_DYNAMIC;
        specs[i]->dynamic.policy_default.count_max = i;
    }
    struct berth_model *model = rig_warm(&rig, specs[0]);
    for (size_t i = 0; i < 4; i++) { /* two live, two are sent to join them */
        ask_steps(&rig, &clients[i], model);
        if (i == 1) {
            rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
        }
    }
    rig_finish(&rig, BERTH_WORKER_STEP, RIG_MS);
    struct berth_worker_msg *lost = rig_sent(&rig, BERTH_WORKER_STEP);
    assert_int_equal(lost->batch.row_count, 2);
    struct berth_runtime *runtime = model->sched_state;
    struct berth_err err = {0};
    assert_int_equal(berth_runtime_load(runtime, specs[1], &err), BERTH_OK);
    rig_turn(&rig);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    for (size_t i = 4; i < 9; i++) {
        ask_steps(&rig, &clients[i], model);
    }
    runtime->current->epoch = atomic_fetch_add(&rig.worker.epoch, 1) + 1; /* it is not lost */
    berth_worker_fault_post(&rig.worker);
    (void)berth_fail(&lost->err, BERTH_UNAVAILABLE, "worker process ended: signal 9");
    lost->not_begun = true;
    lost->batch.rows[0].err = lost->batch.rows[1].err = lost->err;
    rig_end(&rig, lost, 0);
    rig_turn(&rig);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(clients[i].finals, 1);
        assert_int_equal(clients[i].code, BERTH_UNAVAILABLE);
    }
    rig.auto_all = true;
    while (rig.sent_count > 0) {
        rig_end(&rig, rig.sent[0], RIG_MS);
    }
    for (size_t i = 0; i < 100; i++) {
        rig_turn(&rig);
    }
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(clients[i].finals, 1);
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

static void workers_suit_models(void **state)
{
    static const char *const gpu_engines[] = {"parakeet", NULL};
    struct berth_worker cpu = {.device = "cpu:0"};
    struct berth_worker gpu = {.device = "cuda:0", .engines = gpu_engines, .parallel_max = 2};
    struct berth_instance_group groups[2] = {{.kind = BERTH_KIND_CPU, .count = 3},
                                             {.kind = BERTH_KIND_GPU, .count = 5}};
    struct berth_model_spec spec = {.engine = "parakeet"};
    assert_true(berth_worker_suits(&cpu, &spec));
    assert_true(berth_worker_suits(&gpu, &spec));
    spec.engine = "onnx";
    assert_true(berth_worker_suits(&cpu, &spec));
    assert_false(berth_worker_suits(&gpu, &spec));
    spec.engine = "parakeet";
    spec.groups = groups;
    spec.group_count = 1;
    assert_false(berth_worker_suits(&gpu, &spec));
    spec.group_count = 2;
    assert_true(berth_worker_suits(&gpu, &spec));
    assert_int_equal(berth_worker_instances(&gpu, &spec), 5);
    assert_int_equal(berth_worker_instances(&cpu, &spec), 3);
    groups[0].kind = BERTH_KIND_AUTO;
    spec.group_count = 1;
    assert_true(berth_worker_suits(&gpu, &spec));
    assert_int_equal(berth_worker_instances(&gpu, &spec), 3);
}

static const char *const other_engines[] = {"other", NULL};
static size_t gpu_loads;

static void gpu_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    gpu_loads += msg->kind == BERTH_WORKER_LOAD;
    msg->instance_count = 1;
    msg->slots = 1;
    berth_queue_post(worker->replies, &msg->post.link);
}

static void models_go_where_they_suit(void **state)
{
    static const struct berth_worker_ops gpu_ops = {
        .name = "gpu", .send = gpu_send, .destroy = rig_no_destroy};
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    struct berth_worker gpu = {.ops = &gpu_ops, .device = "cuda:0", .parallel_max = 1,
                               .bytes_max = 200, .engines = other_engines};
    struct berth_worker *workers[2] = {&rig.worker, &gpu};
    rig.options.workers = workers;
    rig.options.worker_count = 2;
    rig_begin(&rig);
    gpu_loads = 0;
    struct berth_model *on_cpu = rig_warm(&rig, rig_spec("a"));
    assert_int_equal(gpu_loads, 0);
    struct berth_model_spec *spec = rig_spec("b");
    spec->engine = "other";
    struct berth_model *on_gpu = rig_put(&rig, spec);
    rig_ask(&rig, &client, on_gpu);
    rig_turn(&rig);
    assert_int_equal(gpu_loads, 1);
    assert_int_equal(berth_model_state(on_gpu), BERTH_STATE_WARM);
    rig_turn(&rig);
    assert_int_equal(client.finals, 1);
    rig_leave(&client);
    rig_drop(on_cpu);
    rig_drop(on_gpu);
    rig_close(&rig);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_ran_is_answered_what_waited_runs),
        cmocka_unit_test(rows_in_slots_are_answered),
        cmocka_unit_test(idle_models_are_cold_or_load_again),
        cmocka_unit_test(a_load_that_comes_late_is_lost),
        cmocka_unit_test(what_never_began_begins_again),
        cmocka_unit_test(order_is_kept_among_what_ran),
        cmocka_unit_test(a_seat_is_free_when_its_message_is_done),
        cmocka_unit_test(workers_suit_models),
        cmocka_unit_test(models_go_where_they_suit),
    };
    return cmocka_run_group_tests_name("worker_loss", tests, NULL, NULL);
}
