/* test_unwanted.c - loads that nobody waits for any more (S16, P10): what the controller says, and
 * where a worker stops. */
#include "sched_rig.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "engine/engine.h"
#include "model/config_tree.h"
#include "repo/model_config.h"
#include "sched/controller.h"

/* The LOAD under way comes back, as one that saw in time that it is unwanted. */
static void come_back_stopped(struct rig *rig)
{
    struct berth_worker_msg *load = rig_sent(rig, BERTH_WORKER_LOAD);
    assert_non_null(load);
    (void)berth_fail(&load->err, BERTH_CANCELLED, "nobody waits for it any more");
    rig_finish(rig, BERTH_WORKER_LOAD, RIG_MS);
}

static bool unwanted(struct rig *rig)
{
    struct berth_worker_msg *load = rig_sent(rig, BERTH_WORKER_LOAD);
    assert_non_null(load);
    return atomic_load(&load->unwanted);
}

/* The last one who waits leaves, or has no time any more: the load stops, and has not failed. */
static void the_last_to_leave_stops_it(void **state)
{
    for (int by_deadline = 0; by_deadline < 2; by_deadline++) {
        struct rig rig;
        struct rig_client clients[3];
        rig_open(&rig);
        rig_begin(&rig);
        struct berth_model *model = rig_put(&rig, rig_spec("m"));
        for (size_t i = 0; i < 2; i++) {
            assert_true(rig_request(&rig, &clients[i], model, 1, 4));
            clients[i].request->t_deadline_ns = rig.now_ns + (i + 1) * BERTH_NS_PER_S;
            assert_int_equal(rig_submit(&rig, &clients[i]), BERTH_OK);
        }
        rig_turn(&rig);
        for (size_t i = 0; i < 2; i++) {
            assert_false(unwanted(&rig));
            if (by_deadline == 1) {
                rig_advance(&rig, BERTH_NS_PER_S);
            } else {
                berth_sched_cancel(rig.sched, clients[i].request);
                rig_turn(&rig);
            }
            assert_int_equal(clients[i].code, by_deadline == 1 ? BERTH_DEADLINE : BERTH_CANCELLED);
        }
        assert_true(unwanted(&rig));
        come_back_stopped(&rig);
        assert_int_equal(berth_model_state(model), BERTH_STATE_COLD);
        assert_int_equal(atomic_load(&model->stats.loads_failed), 0);
        struct berth_sched_stats stats;
        berth_sched_stats(rig.sched, &stats);
        assert_int_equal(stats.bytes_models, 0);
        rig_ask(&rig, &clients[2], model); /* no back-off */
        rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
        assert_int_equal(clients[2].code, BERTH_OK);
        for (size_t i = 0; i < 3; i++) {
            rig_leave(&clients[i]);
        }
        rig_drop(model);
        rig_close(&rig);
    }
}

/* It comes too late to be stopped: the model is there, idle as any other. */
static void one_that_cannot_stop_is_kept(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("m"));
    rig_ask(&rig, &client, model);
    berth_sched_cancel(rig.sched, client.request);
    rig_turn(&rig);
    assert_true(unwanted(&rig));
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    rig_leave(&client);
    rig_ask(&rig, &client, model);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    assert_int_equal(rig.loads, 1);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

/* Somebody comes before it is back: in time, it goes on; too late, it is loaded anew. Never twice
 * at once, and one answer in any case. */
static void one_who_comes_in_between_is_served(void **state)
{
    for (int late = 0; late < 2; late++) {
        struct rig rig;
        struct rig_client first, next;
        rig_open(&rig);
        rig_begin(&rig);
        struct berth_model *model = rig_put(&rig, rig_spec("m"));
        rig_ask(&rig, &first, model);
        berth_sched_cancel(rig.sched, first.request);
        rig_turn(&rig);
        assert_true(unwanted(&rig));
        rig_ask(&rig, &next, model);
        assert_false(unwanted(&rig));
        assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
        if (late == 1) {
            come_back_stopped(&rig);
            assert_int_equal(berth_model_state(model), BERTH_STATE_LOADING);
            assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
            assert_false(unwanted(&rig));
        }
        rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
        rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
        assert_int_equal(next.code, BERTH_OK);
        rig_leave(&first);
        rig_leave(&next);
        rig_drop(model);
        rig_close(&rig);
    }
}

/* An operation waits for it, a client was told to come again, or it is loaded by decision. */
static void what_is_still_wanted_goes_on(void **state)
{
    enum { OPERATION, PROMISE, PROMISE_AT_ONCE, DECISION, CASES };
    for (int i = 0; i < CASES; i++) {
        struct rig rig;
        struct rig_client first, second;
        struct berth_admin admin;
        rig_open(&rig);
        rig.options.cold_wait_ns = i == PROMISE           ? RIG_MS
                                   : i == PROMISE_AT_ONCE ? 0
                                                          : BERTH_NS_PER_S;
        rig_begin(&rig);
        struct berth_model *model = rig_put(&rig, rig_spec("m"));
        rig_ask(&rig, &first, model);
        if (i == OPERATION) {
            rig_admin(&rig, &admin, BERTH_ADMIN_ENSURE, "m");
        } else if (i == DECISION) {
            ((struct berth_runtime *)model->sched_state)->keep = true;
        } else {
            rig_advance(&rig, 2 * RIG_MS);
            assert_int_equal(first.code, BERTH_UNAVAILABLE);
            assert_true(first.retry_after_ms > 0);
        }
        rig_ask(&rig, &second, model);
        berth_sched_cancel(rig.sched, first.request);
        berth_sched_cancel(rig.sched, second.request);
        rig_turn(&rig);
        assert_false(unwanted(&rig));
        rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
        assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
        assert_false(((struct berth_runtime *)model->sched_state)->promised);
        rig_leave(&first);
        rig_leave(&second);
        rig_drop(model);
        rig_close(&rig);
    }
}

/* An operation that comes to an unwanted load wants it. */
static void an_operation_wants_it_again(void **state)
{
    struct rig rig;
    struct rig_client client;
    struct berth_admin admin;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("m"));
    rig_ask(&rig, &client, model);
    berth_sched_cancel(rig.sched, client.request);
    rig_turn(&rig);
    assert_true(unwanted(&rig));
    rig_admin(&rig, &admin, BERTH_ADMIN_ENSURE, "m");
    assert_false(unwanted(&rig));
    come_back_stopped(&rig);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_ptr_equal(rig.admin_back, &admin);
    assert_int_equal(admin.err.code, BERTH_OK);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

/* A promise is one of the load that was under way then, not of all that come after an unload. */
static void an_unload_ends_a_promise(void **state)
{
    struct rig rig;
    struct rig_client first, second;
    struct berth_admin unload;
    rig_open(&rig);
    rig.options.cold_wait_ns = RIG_MS;
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("m"));
    rig_ask(&rig, &first, model);
    rig_advance(&rig, 2 * RIG_MS);
    assert_int_equal(first.code, BERTH_UNAVAILABLE);
    rig_admin(&rig, &unload, BERTH_ADMIN_UNLOAD, "m");
    come_back_stopped(&rig);
    rig_ask(&rig, &second, model);
    assert_false(unwanted(&rig));
    berth_sched_cancel(rig.sched, second.request);
    rig_turn(&rig);
    assert_true(unwanted(&rig));
    come_back_stopped(&rig);
    rig_leave(&first);
    rig_leave(&second);
    rig_drop(model);
    rig_close(&rig);
}

static void an_unload_stops_a_load(void **state)
{
    struct rig rig;
    struct berth_admin load, unload;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("m"));
    rig_admin(&rig, &load, BERTH_ADMIN_ENSURE, "m");
    rig_admin(&rig, &unload, BERTH_ADMIN_UNLOAD, "m");
    assert_true(unwanted(&rig));
    come_back_stopped(&rig);
    assert_ptr_equal(rig.admin_back, &unload);
    assert_int_equal(berth_model_state(model), BERTH_STATE_COLD);
    rig_drop(model);
    rig_close(&rig);
}

/* CANCELLED from a load that nobody asked to stop is a failure, not a reason to try for ever. */
static void a_stop_nobody_asked_for_is_a_failure(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("m"));
    rig_ask(&rig, &client, model);
    come_back_stopped(&rig);
    assert_int_equal(client.code, BERTH_UNAVAILABLE);
    assert_int_equal(berth_model_state(model), BERTH_STATE_FAILED);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

/* --- workers --- */

struct stand {
    struct berth_slabs *slabs;
    struct berth_worker *worker;
    struct berth_queue replies;
    struct berth_model *model;
    struct berth_worker_msg msg;
    bool back;
};

static struct stand *stand_now; /* whose load the engine below ends */
static int stage_at;            /* the stage in which it becomes unwanted */
static int made, ended;

static void be_unwanted(int stage)
{
    if (stage == stage_at) {
        berth_worker_want(stand_now->worker, &stand_now->msg, false);
    }
}

static enum berth_code describe(struct berth_model_spec *spec, struct berth_err *err)
{
    be_unwanted(0);
    spec->completed = true;
    return BERTH_OK;
}

static enum berth_code attach(const struct berth_model_spec *spec, struct berth_span weights,
                              struct berth_engine_model **out, struct berth_err *err)
{
    be_unwanted(1);
    made++;
    *out = berth_alloc(8);
    return *out == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "out of memory") : BERTH_OK;
}

static void detach(struct berth_engine_model *model)
{
    ended += model != NULL;
    berth_free(model);
}

static uint64_t bytes(const struct berth_engine_model *model)
{
    return 8;
}

static enum berth_code create(struct berth_engine_model *model, uint32_t index,
                              struct berth_instance **out, struct berth_err *err)
{
    be_unwanted(2 + (int)index);
    made++;
    *out = berth_alloc(8);
    return *out == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "out of memory") : BERTH_OK;
}

static void destroy(struct berth_instance *instance)
{
    ended += instance != NULL;
    berth_free(instance);
}

static const struct berth_engine_ops stages = {
    .name = "stages",
    .describe = describe,
    .model_attach = attach,
    .model_detach = detach,
    .model_bytes = bytes,
    .instance_create = create,
    .instance_destroy = destroy,
};

static const struct berth_engine_ops *find_stages(const char *name)
{
    return &stages;
}

static void on_back(struct berth_post *post)
{
    BERTH_CONTAINER_OF(BERTH_CONTAINER_OF(post, struct berth_worker_msg, post), struct stand, msg)
        ->back = true;
}

static void wait_back(struct stand *stand)
{
    struct berth_link posts, *link;
    berth_list_init(&posts);
    while (!stand->back) {
        berth_queue_wait(&stand->replies, 0);
        (void)berth_queue_take(&stand->replies, &posts);
        while ((link = berth_list_pop(&posts)) != NULL) {
            struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
            post->deliver(post);
        }
    }
}

static void stand_open(struct stand *stand, bool process, const struct berth_engine_ops *engine)
{
    struct berth_err err = {0};
    struct berth_slabs_options slabs = {.bytes_budget = 1 << 24, .bytes_pool_max = 1 << 20};
    *stand = (struct stand){0};
    assert_int_equal(berth_slabs_create(&slabs, &stand->slabs, &err), BERTH_OK);
    assert_int_equal(berth_queue_init(&stand->replies, 0, &err), BERTH_OK);
    struct berth_worker_options options = {
        .device = "cpu:0", .run_threads = 1, .load_threads = 1, .slabs = stand->slabs,
        .engine_find = engine == NULL ? NULL : find_stages, .engine_threads = 1,
        .bytes_budget = 1 << 24};
    assert_int_equal(process ? berth_worker_process_create(&options, &stand->worker, &err)
                             : berth_worker_thread_create(&options, &stand->worker, &err),
                     BERTH_OK);
    stand->worker->replies = &stand->replies;
    stand->worker->fault.deliver = on_back; /* not posted here: nothing is lost */
}

static void load(struct stand *stand, struct berth_model_spec *spec)
{
    stand->msg = (struct berth_worker_msg){.post.deliver = on_back, .kind = BERTH_WORKER_LOAD,
                                           .spec = spec, .load_id = 1};
    stand->model = berth_model_create("m", 1);
    assert_non_null(stand->model);
    stand->msg.model = stand->model;
    berth_worker_send(stand->worker, &stand->msg);
}

static void stand_close(struct stand *stand)
{
    berth_worker_destroy(stand->worker);
    berth_spec_release(stand->msg.spec);
    berth_model_release(stand->model);
    berth_queue_finish(&stand->replies);
    berth_slabs_destroy(stand->slabs);
    assert_int_equal(berth_mem_bytes_live(), 0);
}

/* Wherever it becomes unwanted, what was made is ended again; past the last stage it is loaded. */
static void a_thread_stops_between_stages(void **state)
{
    struct berth_instance_group group = {.kind = BERTH_KIND_CPU, .count = 3};
    for (stage_at = 0; stage_at <= 5; stage_at++) {
        struct stand stand;
        made = ended = 0;
        stand_open(&stand, false, &stages);
        stand_now = &stand;
        struct berth_model_spec *spec = rig_spec("m");
        spec->completed = false;
        spec->groups = &group;
        spec->group_count = 1;
        spec->backend = spec->platform = spec->default_model_filename = "";
        load(&stand, spec);
        wait_back(&stand);
        bool stopped = stage_at < 4; /* 4: in the making of the last instance */
        assert_int_equal(stand.msg.err.code, stopped ? BERTH_CANCELLED : BERTH_OK);
        assert_int_equal(made, stopped ? stage_at : 4);
        assert_int_equal(ended, stopped ? stage_at : 0);
        stand_close(&stand);
        assert_int_equal(ended, made);
    }
}

static struct berth_model_spec *null_spec(const char *config)
{
    struct berth_err err = {0};
    struct berth_version_policy policy;
    struct berth_model_spec *spec = berth_spec_create();
    struct berth_model_config text = {.text = config, .length = strlen(config), .label = "m",
                                      .json = true};
    assert_non_null(spec);
    spec->name = berth_arena_strdup(&spec->arena, "m");
    spec->folder = spec->folder_version = spec->task = "";
    spec->version = 1;
    if (berth_model_config_read(&text, spec, &policy, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    return spec;
}

/* Half an hour of warm-up: only a stop ends it in time. */
static const char *const endless_config =
    "{\"backend\": \"null\", \"parameters\": {\"sleep_ms\": {\"string_value\": \"200\"}}, "
    "\"model_warmup\": [{\"name\": \"w\", \"count\": 10000, \"inputs\": "
    "{\"INPUT0\": {\"data_type\": \"TYPE_FP32\", \"dims\": [4], \"zero_data\": true}}}]}";

static void warm_up_stops(void **state)
{
    for (int process = 0; process < 2; process++) {
        struct stand stand;
        stand_open(&stand, process == 1, NULL);
        load(&stand, null_spec(endless_config));
        while (atomic_load(&stand.worker->condition) != BERTH_WORKER_READY) {
            usleep(1000);
        }
        usleep(50000); /* so that it is most likely under way; right in any case */
        berth_worker_want(stand.worker, &stand.msg, false);
        wait_back(&stand);
        assert_int_equal(stand.msg.err.code, BERTH_CANCELLED);
        assert_int_equal(atomic_load(&stand.worker->epoch), 0); /* the process lives */
        stand_close(&stand);
    }
}

/* Unwanted before the worker has taken it from its queue: the word may be over by then. */
static void one_unwanted_on_its_way_is_not_begun(void **state)
{
    for (int described = 0; described < 2; described++) {
        struct stand stand;
        stand_open(&stand, true, NULL);
        while (atomic_load(&stand.worker->condition) != BERTH_WORKER_READY) {
            usleep(1000);
        }
        load(&stand, null_spec("{\"backend\": \"null\"}"));
        wait_back(&stand);
        assert_int_equal(stand.msg.err.code, BERTH_OK);
        assert_true(stand.msg.spec->completed);
        stand.msg.spec->completed = described == 1;
        stand.msg.load_id = 2;
        stand.back = false;
        atomic_store(&stand.msg.unwanted, true);
        berth_worker_send(stand.worker, &stand.msg);
        wait_back(&stand);
        assert_int_equal(stand.msg.err.code, BERTH_CANCELLED);
        assert_true(berth_worker_fault_stop(stand.worker)); /* the first one is lost at the end */
        stand_close(&stand);
    }
}

/* A process that never says that it is ready: what was not sent need not wait for it. */
static void what_was_not_sent_comes_back_at_once(void **state)
{
    struct stand stand;
    setenv("BERTH_TEST_SILENT", "1", 1);
    stand_open(&stand, true, NULL);
    assert_int_equal(atomic_load(&stand.worker->condition), BERTH_WORKER_STARTING);
    load(&stand, null_spec("{\"backend\": \"null\"}"));
    berth_worker_want(stand.worker, &stand.msg, false);
    wait_back(&stand);
    assert_int_equal(stand.msg.err.code, BERTH_CANCELLED);
    stand.back = false;
    atomic_store(&stand.msg.unwanted, true); /* before it is sent */
    berth_worker_send(stand.worker, &stand.msg);
    berth_worker_cancel(stand.worker);
    wait_back(&stand);
    assert_int_equal(stand.msg.err.code, BERTH_CANCELLED);
    unsetenv("BERTH_TEST_SILENT");
    stand_close(&stand);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0) {
        if (getenv("BERTH_TEST_SILENT") == NULL) {
            return berth_worker_host_main(argc, argv);
        }
        char byte;
        while (read(3, &byte, 1) > 0) { /* until its server closes it */
        }
        return 0;
    }
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_to_leave_stops_it),
        cmocka_unit_test(one_that_cannot_stop_is_kept),
        cmocka_unit_test(one_who_comes_in_between_is_served),
        cmocka_unit_test(what_is_still_wanted_goes_on),
        cmocka_unit_test(an_operation_wants_it_again),
        cmocka_unit_test(an_unload_stops_a_load),
        cmocka_unit_test(an_unload_ends_a_promise),
        cmocka_unit_test(a_stop_nobody_asked_for_is_a_failure),
        cmocka_unit_test(a_thread_stops_between_stages),
        cmocka_unit_test(warm_up_stops),
        cmocka_unit_test(one_unwanted_on_its_way_is_not_begun),
        cmocka_unit_test(what_was_not_sent_comes_back_at_once),
    };
    return cmocka_run_group_tests_name("unwanted", tests, NULL, NULL);
}
