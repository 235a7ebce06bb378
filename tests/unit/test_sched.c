/* test_sched.c - the controller in virtual time: admission, states, deadlines, cancels, operations,
 * fairness. */
#include "sched_rig.h"

#include "sched/controller.h"

static void one_request_passes(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_ask(&rig, &client, model);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
    assert_int_equal(berth_model_state(model), BERTH_STATE_LOADING);
    rig_finish(&rig, BERTH_WORKER_LOAD, 10 * RIG_MS);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    rig_finish(&rig, BERTH_WORKER_RUN, 3 * RIG_MS);
    assert_int_equal(client.finals, 1);
    assert_int_equal(client.code, BERTH_OK);
    assert_true(client.request->cold);
    assert_int_equal(atomic_load(&model->stats.success.count), 1);
    assert_int_equal(atomic_load(&model->stats.queue.ns), 10 * RIG_MS);
    assert_int_equal(atomic_load(&model->stats.compute_infer.ns), 3 * RIG_MS);
    assert_int_equal(atomic_load(&model->stats.success.ns), 13 * RIG_MS);
    assert_int_equal(atomic_load(&model->stats.queue_depth), 0);
    assert_int_equal(atomic_load(&model->stats.inference_count), 1);
    assert_int_equal(atomic_load(&model->stats.execution_count), 1);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void load_is_single_flight(void **state)
{
    struct rig rig;
    struct rig_client clients[5];
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    for (size_t i = 0; i < 5; i++) {
        rig_ask(&rig, &clients[i], model);
    }
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(rig_count(&rig, BERTH_WORKER_RUN), 1); /* one instance */
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
        assert_int_equal(clients[i].finals, 1);
    }
    assert_int_equal(rig.loads, 1);
    for (size_t i = 0; i < 5; i++) {
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

static void cold_wait_ends_in_retry_after(void **state)
{
    struct rig rig;
    struct rig_client first, second;
    rig_open(&rig);
    rig.options.cold_wait_ns = 100 * RIG_MS;
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_ask(&rig, &first, model);
    assert_int_equal(rig.t_next_ns, rig.now_ns + 100 * RIG_MS);
    rig_advance(&rig, 100 * RIG_MS - 1);
    assert_int_equal(first.finals, 0);
    rig_advance(&rig, 1);
    assert_int_equal(first.code, BERTH_UNAVAILABLE);
    assert_true(first.retry_after_ms > 0);
    rig_finish(&rig, BERTH_WORKER_LOAD, 200 * RIG_MS); /* goes on for those who come back */
    rig_ask(&rig, &second, model);
    assert_false(second.request->cold);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(second.code, BERTH_OK);
    rig_leave(&first);
    rig_leave(&second);
    rig_drop(model);
    rig_close(&rig);
}

static void no_cold_wait_refuses_and_loads(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig.options.cold_wait_ns = 0;
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_ask(&rig, &client, model);
    assert_int_equal(client.code, BERTH_UNAVAILABLE);
    assert_true(client.retry_after_ms > 0);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void fail_load(struct rig *rig, const char *why)
{
    struct berth_worker_msg *msg = rig_sent(rig, BERTH_WORKER_LOAD);
    assert_non_null(msg);
    (void)berth_fail(&msg->err, BERTH_INVALID, "%s", why);
    rig_finish(rig, BERTH_WORKER_LOAD, RIG_MS);
}

static void failed_load_names_its_model_once(void **state)
{
    static const char told[] = "model 'a' could not be loaded: bad file";
    struct rig rig;
    struct rig_client client;
    struct berth_err err = {0};
    char reason[sizeof(err.msg)];
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_ask(&rig, &client, model);
    fail_load(&rig, "bad file");
    assert_string_equal(client.msg, told);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_UNAVAILABLE);
    assert_string_equal(err.msg, told);
    berth_model_reason(model, reason, sizeof(reason)); /* is shown beside the name */
    assert_string_equal(reason, "bad file");
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void failed_load_backs_off(void **state)
{
    struct rig rig;
    struct rig_client clients[3], next;
    struct berth_err err = {0};
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    for (size_t i = 0; i < 3; i++) {
        rig_ask(&rig, &clients[i], model);
    }
    fail_load(&rig, "bad file");
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(clients[i].code, BERTH_UNAVAILABLE);
        assert_non_null(strstr(clients[i].msg, "bad file"));
        assert_int_equal(clients[i].retry_after_ms, 1000);
        rig_leave(&clients[i]);
    }
    assert_int_equal(berth_model_state(model), BERTH_STATE_FAILED);
    rig_ask(&rig, &next, model); /* refused without a try */
    assert_int_equal(next.code, BERTH_UNAVAILABLE);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 0);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_UNAVAILABLE);
    assert_true(err.retry_after_ms > 0);
    rig_leave(&next);
    rig_advance(&rig, BERTH_NS_PER_S);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK);
    rig_ask(&rig, &next, model);
    fail_load(&rig, "still bad");
    assert_int_equal(next.retry_after_ms, 2000); /* doubled */
    rig_leave(&next);
    rig_advance(&rig, 2 * BERTH_NS_PER_S);
    rig_ask(&rig, &next, model);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(next.code, BERTH_OK);
    assert_int_equal(atomic_load(&model->stats.loads_failed), 2);
    rig_leave(&next);
    rig_drop(model);
    rig_close(&rig);
}

static void deadlines_are_exact(void **state)
{
    struct rig rig;
    struct rig_client running, queued, loading;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    struct berth_model *cold = rig_put(&rig, rig_spec("cold"));
    assert_true(rig_request(&rig, &running, model, 1, 4));
    running.request->t_deadline_ns = rig.now_ns + 20 * RIG_MS;
    assert_true(rig_request(&rig, &queued, model, 1, 4));
    queued.request->t_deadline_ns = rig.now_ns + 10 * RIG_MS + 7;
    assert_true(rig_request(&rig, &loading, cold, 1, 4));
    loading.request->t_deadline_ns = rig.now_ns + 5 * RIG_MS;
    assert_int_equal(rig_submit(&rig, &running), BERTH_OK);
    assert_int_equal(rig_submit(&rig, &queued), BERTH_OK);
    assert_int_equal(rig_submit(&rig, &loading), BERTH_OK);
    uint64_t t_start_ns = rig.now_ns;
    rig_turn(&rig);
    while (rig.now_ns < t_start_ns + 20 * RIG_MS) {
        rig.now_ns = rig.t_next_ns;
        rig_turn(&rig);
    }
    assert_int_equal(loading.code, BERTH_DEADLINE);
    assert_int_equal(loading.t_answered_ns, t_start_ns + 5 * RIG_MS);
    assert_int_equal(queued.code, BERTH_DEADLINE);
    assert_int_equal(queued.t_answered_ns, t_start_ns + 10 * RIG_MS + 7);
    assert_int_equal(running.code, BERTH_DEADLINE);
    assert_int_equal(running.t_answered_ns, t_start_ns + 20 * RIG_MS);
    assert_true(atomic_load(&running.request->cancelled)); /* the worker is told */
    assert_int_equal(atomic_load(&running.request->references), 2); /* and still holds it */
    rig_finish(&rig, BERTH_WORKER_RUN, 30 * RIG_MS);
    assert_int_equal(atomic_load(&running.request->references), 1);
    assert_int_equal(atomic_load(&model->stats.wasted_count), 1);
    assert_int_equal(atomic_load(&model->stats.wasted_ns), 30 * RIG_MS);
    assert_int_equal(atomic_load(&model->stats.expired), 2);
    rig_leave(&running);
    rig_leave(&queued);
    rig_leave(&loading);
    rig_drop(model);
    rig_drop(cold);
    rig_close(&rig);
}

static void cancel_at_every_stage(void **state)
{
    struct rig rig;
    struct rig_client posted, running, queued, waiting;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    struct berth_model *cold = rig_put(&rig, rig_spec("cold"));
    rig_ask(&rig, &running, model);
    rig_ask(&rig, &queued, model);
    rig_ask(&rig, &waiting, cold);
    assert_true(rig_request(&rig, &posted, model, 1, 4));
    assert_int_equal(rig_submit(&rig, &posted), BERTH_OK);
    struct rig_client *all[] = {&posted, &running, &queued, &waiting};
    for (size_t i = 0; i < 4; i++) {
        berth_sched_cancel(rig.sched, all[i]->request);
        berth_sched_cancel(rig.sched, all[i]->request); /* idempotent */
    }
    rig_turn(&rig);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(all[i]->finals, 1);
        assert_int_equal(all[i]->code, BERTH_CANCELLED);
    }
    struct berth_sched_stats stats;
    berth_sched_stats(rig.sched, &stats);
    assert_int_equal(stats.cancelled, 4);
    assert_int_equal(stats.queued, 0);
    assert_int_equal(stats.running, 1);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    berth_sched_cancel(rig.sched, running.request); /* long answered */
    rig_turn(&rig);
    berth_sched_stats(rig.sched, &stats);
    assert_int_equal(stats.running, 0);
    assert_int_equal(stats.wasted_count, 1);
    for (size_t i = 0; i < 4; i++) {
        rig_leave(all[i]);
    }
    rig_drop(model);
    rig_drop(cold);
    rig_close(&rig);
}

static void load_nobody_wants_is_not_begun(void **state)
{
    struct rig rig;
    struct rig_client first, second;
    rig_open(&rig);
    rig.options.loads_max = 1;
    rig_begin(&rig);
    struct berth_model *a = rig_put(&rig, rig_spec("a"));
    struct berth_model *b = rig_put(&rig, rig_spec("b"));
    rig_ask(&rig, &first, a);
    rig_ask(&rig, &second, b);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1); /* loads_max */
    berth_sched_cancel(rig.sched, second.request);
    rig_turn(&rig);
    assert_int_equal(berth_model_state(b), BERTH_STATE_COLD);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 0);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    rig_leave(&first);
    rig_leave(&second);
    rig_drop(a);
    rig_drop(b);
    rig_close(&rig);
}

static void queue_bounds_are_hard(void **state)
{
    struct rig rig;
    struct rig_client clients[12];
    struct berth_err err = {0};
    rig_open(&rig);
    rig.options.queue_max = 10;
    rig.options.model_queue_max = 6;
    rig_begin(&rig);
    struct berth_model *a = rig_warm(&rig, rig_spec("a"));
    struct berth_model *b = rig_warm(&rig, rig_spec("b"));
    for (size_t i = 0; i < 12; i++) { /* a burst, before the controller takes any */
        assert_true(rig_request(&rig, &clients[i], i < 8 ? a : b, 1, 4));
        enum berth_code code = rig_submit(&rig, &clients[i]);
        bool fits = i < 6 || (i >= 8 && i < 12);
        assert_int_equal(code, fits ? BERTH_OK : BERTH_BUSY);
        assert_true(fits || clients[i].retry_after_ms > 0);
    }
    assert_int_equal(berth_sched_judge(rig.sched, NULL, 0, &err), BERTH_BUSY);
    assert_int_equal(atomic_load(&a->stats.rejected), 2);
    rig_turn(&rig);
    assert_int_equal(berth_sched_judge(rig.sched, b, 0, &err), BERTH_OK); /* two run now */
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    for (size_t i = 0; i < 12; i++) {
        assert_int_equal(clients[i].finals, clients[i].code == BERTH_BUSY ? 0 : 1);
        rig_leave(&clients[i]);
    }
    rig_drop(a);
    rig_drop(b);
    rig_close(&rig);
}

static void a_full_queue_says_how_many_wait(void **state)
{
    static const char *const texts[] = {"the queue is full: 1 request waits",
                                        "the queue is full: 2 requests wait"};
    for (size_t most = 1; most <= 2; most++) {
        struct rig rig;
        struct rig_client clients[3];
        rig_open(&rig);
        rig.options.model_queue_max = most;
        rig_begin(&rig);
        struct berth_model *model = rig_warm(&rig, rig_spec("a"));
        for (size_t i = 0; i <= most; i++) {
            assert_true(rig_request(&rig, &clients[i], model, 1, 4));
            assert_int_equal(rig_submit(&rig, &clients[i]), i < most ? BERTH_OK : BERTH_BUSY);
        }
        assert_string_equal(clients[most].msg, texts[most - 1]);
        rig_turn(&rig);
        while (rig.sent_count > 0) {
            rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
        }
        for (size_t i = 0; i <= most; i++) {
            rig_leave(&clients[i]);
        }
        rig_drop(model);
        rig_close(&rig);
    }
}

/* Three wait, 100 ms each by what was measured: who has less time than that need not come. */
static void deadlines_are_judged_by_the_queue(void **state)
{
    struct rig rig;
    struct rig_client clients[5];
    struct berth_err err = {0};
    (void)state;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    for (size_t i = 0; i < 2; i++) { /* measured while busy */
        rig_ask(&rig, &clients[i], model);
    }
    rig_finish(&rig, BERTH_WORKER_RUN, 100 * RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, 100 * RIG_MS);
    uint64_t service_ns = atomic_load(&model->service_ns);
    assert_true(service_ns > 0);
    for (size_t i = 2; i < 5; i++) {
        rig_ask(&rig, &clients[i], model);
    }
    uint64_t depth = atomic_load(&model->stats.queue_depth);
    assert_true(depth > 0);
    uint64_t t_turn_ns = rig.now_ns + depth * service_ns;
    assert_int_equal(berth_sched_judge(rig.sched, model, t_turn_ns, &err), BERTH_OK);
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_OK);
    assert_int_equal(berth_sched_judge(rig.sched, model, t_turn_ns - RIG_MS, &err), BERTH_BUSY);
    assert_int_equal(err.retry_after_ms, 2);
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    assert_int_equal(berth_sched_judge(rig.sched, model, rig.now_ns + 1, &err), BERTH_OK);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(clients[i].finals, 1);
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

static void errors_reach_their_rows(void **state)
{
    struct rig rig;
    struct rig_client one, whole;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    rig_ask(&rig, &one, model);
    (void)berth_fail(&rig_sent(&rig, BERTH_WORKER_RUN)->batch.rows[0].err, BERTH_INTERNAL, "row");
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(one.code, BERTH_INTERNAL);
    rig_ask(&rig, &whole, model);
    (void)berth_fail(&rig_sent(&rig, BERTH_WORKER_RUN)->err, BERTH_UNAVAILABLE, "all");
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(whole.code, BERTH_UNAVAILABLE);
    assert_string_equal(whole.msg, "all");
    assert_int_equal(atomic_load(&model->stats.fail.count), 2);
    assert_int_equal(atomic_load(&model->stats.success.count), 1);
    rig_leave(&one);
    rig_leave(&whole);
    rig_drop(model);
    rig_close(&rig);
}

static void drain_waits_then_answers(void **state)
{
    struct rig rig;
    struct rig_client running, queued, late;
    struct berth_admin admin;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    rig_ask(&rig, &running, model);
    rig_ask(&rig, &queued, model);
    admin = (struct berth_admin){.on_done = rig_admin_done, .reply = &rig.replies,
                                 .kind = BERTH_ADMIN_DRAIN, .state = &rig,
                                 .t_deadline_ns = rig.now_ns + 50 * RIG_MS};
    berth_sched_admin(rig.sched, &admin);
    rig_turn(&rig);
    assert_true(rig_request(&rig, &late, model, 1, 4));
    assert_int_equal(rig_submit(&rig, &late), BERTH_UNAVAILABLE);
    assert_int_equal(late.retry_after_ms, 1000); /* another server takes it */
    struct berth_err err;
    assert_int_equal(berth_sched_judge(rig.sched, model, 0, &err), BERTH_UNAVAILABLE);
    assert_int_equal(err.retry_after_ms, 1000);
    rig_finish(&rig, BERTH_WORKER_RUN, 10 * RIG_MS);
    assert_int_equal(running.code, BERTH_OK);
    assert_null(rig.admin_back);
    rig_advance(&rig, 40 * RIG_MS);
    assert_int_equal(queued.code, BERTH_UNAVAILABLE);
    assert_int_equal(queued.retry_after_ms, 1000);
    assert_ptr_equal(rig.admin_back, &admin);
    assert_int_equal(admin.err.code, BERTH_OK);
    struct berth_sched_stats stats;
    berth_sched_stats(rig.sched, &stats);
    assert_false(stats.ready);
    rig_leave(&running);
    rig_leave(&queued);
    rig_leave(&late);
    rig_drop(model);
    rig_close(&rig);
}

static void destroy_answers_everything(void **state)
{
    struct rig rig;
    struct rig_client running, queued, waiting, posted;
    struct berth_admin admin = {0};
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    struct berth_model *cold = rig_put(&rig, rig_spec("cold"));
    rig_ask(&rig, &running, model);
    rig_ask(&rig, &queued, model);
    rig_ask(&rig, &waiting, cold);
    rig_admin(&rig, &admin, BERTH_ADMIN_ENSURE, "cold");
    assert_true(rig_request(&rig, &posted, model, 1, 4));
    assert_int_equal(rig_submit(&rig, &posted), BERTH_OK);
    struct rig_client *all[] = {&running, &queued, &waiting, &posted};
    rig.auto_all = true;
    struct berth_worker_msg *load = rig_sent(&rig, BERTH_WORKER_LOAD);
    struct berth_worker_msg *run = rig_sent(&rig, BERTH_WORKER_RUN);
    rig_end(&rig, load, 0);
    rig_end(&rig, run, 0);
    berth_sched_destroy(rig.sched);
    rig.sched = NULL;
    rig_replies(&rig);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(all[i]->finals, 1);
        rig_leave(all[i]);
    }
    assert_ptr_equal(rig.admin_back, &admin);
    rig_drop(model);
    rig_drop(cold);
    rig_close(&rig);
}

static void reload_serves_all_the_while(void **state)
{
    struct rig rig;
    struct rig_client before, during, after;
    struct berth_admin admin;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    uint64_t old_id = rig.loaded[0].load_id;
    rig_ask(&rig, &before, model);
    rig_admin(&rig, &admin, BERTH_ADMIN_LOAD, "a");
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    rig_ask(&rig, &during, model);
    rig_finish(&rig, BERTH_WORKER_LOAD, 5 * RIG_MS);
    assert_ptr_equal(rig.admin_back, &admin);
    assert_int_equal(admin.err.code, BERTH_OK);
    rig_ask(&rig, &after, model);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_UNLOAD), 0); /* the old one has work */
    assert_int_equal(rig_count(&rig, BERTH_WORKER_RUN), 2);
    for (size_t i = 0; i < rig.sent_count; i++) {
        bool old = rig.sent[i]->load_id == old_id;
        assert_ptr_equal(rig.sent[i]->batch.rows[0].request,
                         old ? before.request : after.request);
    }
    while (rig_sent(&rig, BERTH_WORKER_RUN) != NULL) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    assert_int_equal(rig_count(&rig, BERTH_WORKER_UNLOAD), 1);
    assert_int_equal(rig_sent(&rig, BERTH_WORKER_UNLOAD)->load_id, old_id);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    assert_int_equal(before.code + during.code + after.code, BERTH_OK);
    assert_int_equal(before.finals + during.finals + after.finals, 3);
    rig_leave(&before);
    rig_leave(&during);
    rig_leave(&after);
    rig_drop(model);
    rig_close(&rig);
}

static void failed_reload_leaves_the_old_one(void **state)
{
    struct rig rig;
    struct rig_client client;
    struct berth_admin admin;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    rig_admin(&rig, &admin, BERTH_ADMIN_LOAD, "a");
    fail_load(&rig, "bad");
    assert_ptr_equal(rig.admin_back, &admin);
    assert_int_equal(admin.err.code, BERTH_INVALID);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    rig_ask(&rig, &client, model);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void unload_lets_work_end(void **state)
{
    struct rig rig;
    struct rig_client running, queued, next;
    struct berth_admin admin;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    rig_ask(&rig, &running, model);
    rig_ask(&rig, &queued, model);
    rig_admin(&rig, &admin, BERTH_ADMIN_UNLOAD, "a");
    assert_null(rig.admin_back);
    assert_int_equal(berth_model_state(model), BERTH_STATE_EVICTING);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(running.code + queued.code, BERTH_OK);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    assert_ptr_equal(rig.admin_back, &admin);
    assert_int_equal(berth_model_state(model), BERTH_STATE_COLD);
    rig_ask(&rig, &next, model); /* on demand it comes back */
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(next.code, BERTH_OK);
    rig_leave(&running);
    rig_leave(&queued);
    rig_leave(&next);
    rig_drop(model);
    rig_close(&rig);
}

static void unload_while_loading(void **state)
{
    struct rig rig;
    struct rig_client waiting, next;
    struct berth_admin load, unload;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_admin(&rig, &load, BERTH_ADMIN_ENSURE, "a");
    rig_ask(&rig, &waiting, model);
    rig_admin(&rig, &unload, BERTH_ADMIN_UNLOAD, "a");
    assert_int_equal(waiting.code, BERTH_UNAVAILABLE);
    assert_ptr_equal(rig.admin_back, &load);
    assert_int_equal(load.err.code, BERTH_UNAVAILABLE);
    rig_ask(&rig, &next, model); /* a new load begins beside the abandoned one */
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 2);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    assert_ptr_equal(rig.admin_back, &unload);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(next.code, BERTH_OK);
    rig_leave(&waiting);
    rig_leave(&next);
    rig_drop(model);
    rig_close(&rig);
}

static void explicit_mode_loads_by_operation_only(void **state)
{
    struct rig rig;
    struct rig_client client;
    struct berth_admin admin;
    rig_open(&rig);
    rig.options.mode = BERTH_CONTROL_EXPLICIT;
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_ask(&rig, &client, model);
    assert_int_equal(client.code, BERTH_NOT_FOUND);
    assert_string_equal(client.msg, "Request for unknown model: 'a' has no available versions");
    rig_leave(&client);
    rig_admin(&rig, &admin, BERTH_ADMIN_LOAD, "nope");
    assert_int_equal(admin.err.code, BERTH_NOT_FOUND);
    rig_admin(&rig, &admin, BERTH_ADMIN_UNLOAD, "nope");
    assert_int_equal(admin.err.code, BERTH_OK);
    rig_admin(&rig, &admin, BERTH_ADMIN_LOAD, "a");
    rig_ask(&rig, &client, model); /* it is on its way */
    assert_int_equal(client.finals, 0);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void mode_none_loads_all_at_start(void **state)
{
    struct rig rig;
    struct berth_admin admin;
    rig_open(&rig);
    rig.options.mode = BERTH_CONTROL_NONE;
    rig_begin(&rig);
    struct berth_model *a = rig_put(&rig, rig_spec("a"));
    struct berth_model *b = rig_put(&rig, rig_spec("b"));
    rig_turn(&rig);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 2);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(berth_model_state(a), BERTH_STATE_WARM);
    assert_int_equal(berth_model_state(b), BERTH_STATE_WARM);
    rig_admin(&rig, &admin, BERTH_ADMIN_LOAD, "a");
    assert_int_equal(admin.err.code, BERTH_UNAVAILABLE);
    rig_admin(&rig, &admin, BERTH_ADMIN_UNLOAD, "a");
    assert_int_equal(admin.err.code, BERTH_UNAVAILABLE);
    rig_drop(a);
    rig_drop(b);
    rig_close(&rig);
}

static void ensure_joins(void **state)
{
    struct rig rig;
    struct rig_client client;
    struct berth_admin first, second;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_ask(&rig, &client, model);
    rig_admin(&rig, &first, BERTH_ADMIN_ENSURE, "a");
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_ptr_equal(rig.admin_back, &first);
    assert_int_equal(first.err.code, BERTH_OK);
    rig_admin(&rig, &second, BERTH_ADMIN_ENSURE, "a"); /* warm: at once, no load */
    assert_ptr_equal(rig.admin_back, &second);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 0);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

static void head_age_is_seen(void **state)
{
    struct rig rig;
    struct rig_client running, queued;
    struct berth_sched_stats stats;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    rig_ask(&rig, &running, model);
    rig_advance(&rig, 5 * RIG_MS);
    rig_ask(&rig, &queued, model);
    rig_advance(&rig, 7 * RIG_MS);
    berth_sched_stats(rig.sched, &stats);
    assert_int_equal(stats.head_age_ns, 7 * RIG_MS);
    assert_int_equal(stats.queued, 1);
    assert_int_equal(stats.running, 1);
    assert_int_equal(stats.bytes_models, 100);
    assert_int_equal(stats.bytes_models_max, 1000);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    berth_sched_stats(rig.sched, &stats);
    assert_int_equal(stats.head_age_ns, 0);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    rig_leave(&running);
    rig_leave(&queued);
    rig_drop(model);
    rig_close(&rig);
}

/* A slow and a fast model, both with work all the time, on one worker: equal device time. */
static void device_time_is_shared(void **state)
{
    struct rig rig;
    static struct rig_client clients[2][600];
    size_t asked[2] = {0, 0};
    uint64_t spent_ns[2] = {0, 0};
    const uint64_t run_ns[2] = {50 * RIG_MS, RIG_MS};
    rig_open(&rig);
    rig.worker.parallel_max = 1;
    rig_begin(&rig);
    struct berth_model *models[2] = {rig_warm(&rig, rig_spec("slow")),
                                     rig_warm(&rig, rig_spec("fast"))};
    while (asked[1] < 595) {
        for (size_t m = 0; m < 2; m++) {
            while (atomic_load(&models[m]->stats.queue_depth) < 2) {
                rig_ask(&rig, &clients[m][asked[m]++], models[m]);
            }
        }
        struct berth_worker_msg *msg = rig_sent(&rig, BERTH_WORKER_RUN);
        size_t which = msg->model == models[1];
        spent_ns[which] += run_ns[which];
        rig_finish(&rig, BERTH_WORKER_RUN, run_ns[which]);
    }
    assert_true(spent_ns[0] <= spent_ns[1] + 60 * RIG_MS);
    assert_true(spent_ns[1] <= spent_ns[0] + 60 * RIG_MS);
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    for (size_t m = 0; m < 2; m++) {
        for (size_t i = 0; i < asked[m]; i++) {
            assert_int_equal(clients[m][i].finals, 1);
            rig_leave(&clients[m][i]);
        }
        rig_drop(models[m]);
    }
    rig_close(&rig);
}

/* A model that slept has saved nothing up: the other one is not locked out when it wakes. */
static void idling_saves_nothing_up(void **state)
{
    struct rig rig;
    static struct rig_client clients[200];
    size_t asked = 0;
    rig_open(&rig);
    rig.worker.parallel_max = 1;
    rig_begin(&rig);
    struct berth_model *sleeper = rig_warm(&rig, rig_spec("sleeper"));
    struct berth_model *worker = rig_warm(&rig, rig_spec("worker"));
    for (size_t i = 0; i < 50; i++) {
        rig_ask(&rig, &clients[asked++], worker);
        rig_finish(&rig, BERTH_WORKER_RUN, 100 * RIG_MS);
    }
    for (size_t i = 0; i < 20; i++) {
        rig_ask(&rig, &clients[asked++], sleeper);
        rig_ask(&rig, &clients[asked++], worker);
    }
    size_t turns = 0;
    for (size_t i = 0; i < 10; i++) {
        turns += rig_sent(&rig, BERTH_WORKER_RUN)->model == worker;
        rig_finish(&rig, BERTH_WORKER_RUN, 100 * RIG_MS);
    }
    assert_in_range(turns, 4, 6);
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    for (size_t i = 0; i < asked; i++) {
        assert_int_equal(clients[i].code, BERTH_OK);
        rig_leave(&clients[i]);
    }
    rig_drop(sleeper);
    rig_drop(worker);
    rig_close(&rig);
}

static void instances_run_side_by_side(void **state)
{
    struct rig rig;
    struct rig_client clients[3];
    rig_open(&rig);
    rig.instances = 2;
    rig_begin(&rig);
    struct berth_model *model = rig_warm(&rig, rig_spec("a"));
    for (size_t i = 0; i < 3; i++) {
        rig_ask(&rig, &clients[i], model);
    }
    assert_int_equal(rig_count(&rig, BERTH_WORKER_RUN), 2);
    while (rig.sent_count > 0) {
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(clients[i].code, BERTH_OK);
        rig_leave(&clients[i]);
    }
    rig_drop(model);
    rig_close(&rig);
}

static int due_order[200];
static size_t due_count;

static void note_due(struct berth_timer *timer)
{
    due_order[due_count++] = (int)timer->t_due_ns;
}

static void timers_fire_in_order(void **state)
{
    struct berth_timers timers = {0};
    struct berth_timer items[200] = {0};
    unsigned seed = 7;
    due_count = 0;
    for (size_t i = 0; i < 200; i++) {
        items[i].fire = note_due;
        berth_timers_arm(&timers, &items[i], (uint64_t)(rand_r(&seed) % 1000));
    }
    for (size_t i = 0; i < 200; i += 3) {
        berth_timers_disarm(&timers, &items[i]);
        berth_timers_disarm(&timers, &items[i]);
    }
    for (size_t i = 1; i < 200; i += 3) {
        berth_timers_arm(&timers, &items[i], (uint64_t)(rand_r(&seed) % 1000));
    }
    while (berth_timers_next(&timers) != UINT64_MAX) {
        berth_timers_fire(&timers, berth_timers_next(&timers));
    }
    assert_int_equal(due_count, 133);
    for (size_t i = 1; i < due_count; i++) {
        assert_true(due_order[i - 1] <= due_order[i]);
    }
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_passes),
        cmocka_unit_test(load_is_single_flight),
        cmocka_unit_test(cold_wait_ends_in_retry_after),
        cmocka_unit_test(no_cold_wait_refuses_and_loads),
        cmocka_unit_test(failed_load_names_its_model_once),
        cmocka_unit_test(failed_load_backs_off),
        cmocka_unit_test(deadlines_are_exact),
        cmocka_unit_test(cancel_at_every_stage),
        cmocka_unit_test(load_nobody_wants_is_not_begun),
        cmocka_unit_test(queue_bounds_are_hard),
        cmocka_unit_test(a_full_queue_says_how_many_wait),
        cmocka_unit_test(deadlines_are_judged_by_the_queue),
        cmocka_unit_test(errors_reach_their_rows),
        cmocka_unit_test(drain_waits_then_answers),
        cmocka_unit_test(destroy_answers_everything),
        cmocka_unit_test(reload_serves_all_the_while),
        cmocka_unit_test(failed_reload_leaves_the_old_one),
        cmocka_unit_test(unload_lets_work_end),
        cmocka_unit_test(unload_while_loading),
        cmocka_unit_test(explicit_mode_loads_by_operation_only),
        cmocka_unit_test(mode_none_loads_all_at_start),
        cmocka_unit_test(ensure_joins),
        cmocka_unit_test(head_age_is_seen),
        cmocka_unit_test(device_time_is_shared),
        cmocka_unit_test(idling_saves_nothing_up),
        cmocka_unit_test(instances_run_side_by_side),
        cmocka_unit_test(timers_fire_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
