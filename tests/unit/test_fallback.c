/* test_fallback.c - a GPU that cannot take a model: the CPU does, unless the config demands the GPU
 * (S15). Virtual time; both workers are fakes, and the GPU says what the case wants. */
#include "gpu_rig.h"

static void a_load_goes_on_where_it_can(void **state)
{
    static const struct {
        enum berth_code code;
        bool of_device;
    } cases[] = {
        {BERTH_OK, false},          {BERTH_UNAVAILABLE, true}, {BERTH_UNSUPPORTED, true},
        {BERTH_TOO_LARGE, true},    {BERTH_INTERNAL, true},    {BERTH_INVALID, false},
        {BERTH_NOT_FOUND, false},   {BERTH_MEDIA, false},      {BERTH_CANCELLED, false},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct desk desk;
        struct rig_client client;
        desk_open(&desk);
        struct berth_model *model = rig_put(&desk.rig, desk_spec("m"));
        desk.gpu.refuses = cases[i].code;
        desk_ask(&desk, model, &client);
        bool well = cases[i].code == BERTH_OK || cases[i].of_device;
        assert_int_equal(client.code, well ? BERTH_OK : BERTH_UNAVAILABLE);
        assert_int_equal(berth_model_state(model), well ? BERTH_STATE_WARM : BERTH_STATE_FAILED);
        assert_int_equal(desk.rig.loads, cases[i].of_device ? 1 : 0);
        assert_int_equal(desk.gpu.loads, 1);
        assert_int_equal(desk_fallbacks(&desk), cases[i].of_device ? 1 : 0);
        assert_int_equal(atomic_load(&model->stats.loads_failed), well ? 0 : 1);
        desk_assert_place(model, !well ? NULL : cases[i].of_device ? "fake:0" : "cuda:0",
                     cases[i].of_device ? berth_code_name(cases[i].code) : "");
        rig_drop(model);
        desk_close(&desk);
    }
}

/* KIND_GPU alone is a demand; beside another kind it is a wish. */
static void a_demand_for_the_gpu_is_kept(void **state)
{
    static const enum berth_code codes[] = {BERTH_UNAVAILABLE, BERTH_UNSUPPORTED, BERTH_TOO_LARGE,
                                            BERTH_INTERNAL};
    struct berth_instance_group groups[2] = {{.kind = BERTH_KIND_GPU, .count = 1},
                                             {.kind = BERTH_KIND_CPU, .count = 1}};
    for (size_t i = 0; i < 2 * BERTH_COUNT_OF(codes); i++) {
        struct desk desk;
        struct rig_client client;
        desk_open(&desk);
        bool demands = i < BERTH_COUNT_OF(codes);
        struct berth_model_spec *spec = desk_spec("m");
        spec->groups = groups;
        spec->group_count = demands ? 1 : 2;
        struct berth_model *model = rig_put(&desk.rig, spec);
        desk.gpu.refuses = codes[i % BERTH_COUNT_OF(codes)];
        desk_ask(&desk, model, &client);
        assert_int_equal(desk.rig.loads, demands ? 0 : 1);
        assert_int_equal(client.code, !demands                          ? BERTH_OK
                                      : desk.gpu.refuses == BERTH_TOO_LARGE ? BERTH_TOO_LARGE
                                                                            : BERTH_UNAVAILABLE);
        assert_true(!demands || strstr(client.msg, "no: ") != NULL);
        rig_drop(model);
        desk_close(&desk);
    }
}

/* Nor does a GPU without room, or one that does not start, move what demands it. */
static void a_demand_waits_for_its_gpu(void **state)
{
    struct berth_instance_group group = {.kind = BERTH_KIND_GPU, .count = 1};
    struct desk desk;
    struct rig_client client;
    desk_open(&desk);
    struct berth_model_spec *spec = desk_spec("m");
    spec->groups = &group;
    spec->group_count = 1;
    spec->bytes_estimate = 251;
    struct berth_model *large = rig_put(&desk.rig, spec);
    desk_ask(&desk, large, &client);
    assert_int_equal(client.code, BERTH_TOO_LARGE);
    spec = desk_spec("n");
    spec->groups = &group;
    spec->group_count = 1;
    struct berth_model *model = rig_put(&desk.rig, spec);
    atomic_store(&desk.gpu.base.condition, BERTH_WORKER_FAILING);
    desk.gpu.holds = true;
    rig_ask(&desk.rig, &client, model);
    rig_advance(&desk.rig, 11 * BERTH_NS_PER_S);
    assert_int_equal(desk.gpu.held_count, 1);
    assert_int_equal(desk.rig.loads, 0);
    rig_leave(&client);
    rig_drop(large);
    rig_drop(model);
    desk_close(&desk);
}

static void a_gpu_that_does_not_start_is_passed_over(void **state)
{
    struct desk desk;
    struct rig_client client;
    struct berth_device_stats stats;
    desk_open(&desk);
    struct berth_model *model = rig_put(&desk.rig, desk_spec("m"));
    atomic_store(&desk.gpu.base.condition, BERTH_WORKER_FAILING);
    desk_ask(&desk, model, &client);
    assert_int_equal(client.code, BERTH_OK);
    assert_int_equal(desk.gpu.loads, 0);
    desk_assert_place(model, "fake:0", "does not start");
    assert_true(berth_sched_device_stats(desk.rig.sched, 1, &stats));
    assert_false(stats.well);
    atomic_store(&desk.gpu.base.condition, BERTH_WORKER_READY);
    desk_ask(&desk, model, &client); /* what serves stays */
    desk_assert_place(model, "fake:0", "does not start");
    desk_unload(&desk, "m");
    desk_assert_place(model, NULL, "");
    desk_ask(&desk, model, &client); /* the next load goes back */
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(model, "cuda:0", "");
    assert_int_equal(desk.gpu.runs, 1);
    assert_true(berth_sched_device_stats(desk.rig.sched, 1, &stats));
    assert_true(stats.well);
    assert_int_equal(stats.bytes_models, 100);
    rig_drop(model);
    desk_close(&desk);
}

/* On its way up it is waited for, ten seconds at most. */
static void a_gpu_that_starts_is_waited_for(void **state)
{
    for (int in_time = 0; in_time < 2; in_time++) {
        struct desk desk;
        struct rig_client client;
        desk_open(&desk);
        struct berth_model *model = rig_put(&desk.rig, desk_spec("m"));
        atomic_store(&desk.gpu.base.condition, BERTH_WORKER_STARTING);
        desk.gpu.holds = true;
        rig_ask(&desk.rig, &client, model);
        rig_advance(&desk.rig, 9 * BERTH_NS_PER_S);
        assert_int_equal(desk.gpu.held_count, 1);
        assert_int_equal(desk.rig.sent_count, 0);
        if (in_time == 1) {
            atomic_store(&desk.gpu.base.condition, BERTH_WORKER_READY);
            rig_advance(&desk.rig, 2 * BERTH_NS_PER_S); /* it is loading: no limit */
            assert_int_equal(desk.gpu.held_count, 1);
            gpu_let_go(&desk.gpu);
            rig_turn(&desk.rig);
            rig_turn(&desk.rig);
        } else {
            rig_advance(&desk.rig, BERTH_NS_PER_S);
            rig_turn(&desk.rig);
            rig_finish(&desk.rig, BERTH_WORKER_LOAD, RIG_MS);
            rig_finish(&desk.rig, BERTH_WORKER_RUN, RIG_MS);
        }
        assert_int_equal(client.code, BERTH_OK);
        assert_int_equal(client.finals, 1);
        desk_assert_place(model, in_time == 1 ? "cuda:0" : "fake:0",
                     in_time == 1 ? "" : "does not start");
        rig_leave(&client);
        rig_drop(model);
        desk_close(&desk);
    }
}

/* A process that has been starting for so long is waited for once, not by each load anew; and a
 * load that was on its way when the one before ended is not held up by the next one's start. */
static void a_slow_start_is_waited_for_once(void **state)
{
    struct desk desk;
    struct rig_client client;
    struct berth_device_stats stats;
    desk_open(&desk);
    struct berth_model *first = rig_put(&desk.rig, desk_spec("first"));
    struct berth_model *second = rig_put(&desk.rig, desk_spec("second"));
    desk.gpu.holds = true;
    rig_ask(&desk.rig, &client, first);
    assert_int_equal(desk.gpu.held_count, 1);
    atomic_fetch_add(&desk.gpu.base.epoch, 1); /* ended, and the load waits for the next */
    atomic_store(&desk.gpu.base.condition, BERTH_WORKER_STARTING);
    rig_advance(&desk.rig, 10 * BERTH_NS_PER_S);
    rig_turn(&desk.rig);
    rig_finish(&desk.rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&desk.rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(first, "fake:0", "does not start");
    rig_leave(&client);
    size_t loads = desk.gpu.loads;
    desk_ask(&desk, second, &client); /* at once: the time stands still */
    desk_assert_place(second, "fake:0", "does not start");
    assert_int_equal(desk.gpu.loads, loads);
    assert_true(berth_sched_device_stats(desk.rig.sched, 1, &stats));
    assert_false(stats.well);
    desk_unload(&desk, "second");
    atomic_fetch_add(&desk.gpu.base.epoch, 1); /* another one is another matter */
    desk.gpu.holds = true;
    rig_ask(&desk.rig, &client, second);
    assert_int_equal(desk.gpu.held_count, 1);
    atomic_store(&desk.gpu.base.condition, BERTH_WORKER_READY);
    gpu_let_go(&desk.gpu);
    rig_turn(&desk.rig);
    rig_turn(&desk.rig);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(second, "cuda:0", "");
    rig_leave(&client);
    rig_drop(first);
    rig_drop(second);
    desk_close(&desk);
}

/* What is idle makes room on the GPU; what is in use sends the next one to the CPU. */
static void a_full_gpu_evicts_or_lets_the_cpu(void **state)
{
    struct desk desk;
    struct rig_client client;
    desk_open(&desk);
    struct berth_model *a = rig_put(&desk.rig, desk_spec("a"));
    struct berth_model *b = rig_put(&desk.rig, desk_spec("b"));
    struct berth_model *c = rig_put(&desk.rig, desk_spec("c"));
    desk_ask(&desk, a, &client);
    desk_ask(&desk, b, &client);
    desk_ask(&desk, c, &client); /* 250 bytes, three times 100: a leaves */
    desk_assert_place(a, NULL, "");
    desk_assert_place(c, "cuda:0", "");
    assert_int_equal(desk_fallbacks(&desk), 0);
    struct berth_runtime *busy[2] = {b->sched_state, c->sched_state};
    for (size_t i = 0; i < 2; i++) {
        berth_residency_pin(&busy[i]->current->lease, desk.rig.now_ns);
    }
    desk_ask(&desk, a, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(a, "fake:0", ": what is loaded is in use");
    for (size_t i = 0; i < 2; i++) {
        berth_residency_unpin(&busy[i]->current->lease, desk.rig.now_ns);
    }
    desk_unload(&desk, "a");
    desk_ask(&desk, a, &client);
    desk_assert_place(a, "cuda:0", "");
    struct berth_model_spec *spec = desk_spec("d");
    spec->bytes_estimate = 251; /* never */
    struct berth_model *d = rig_put(&desk.rig, spec);
    desk_ask(&desk, d, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(d, "fake:0",
                      "it needs 251 bytes, and models on cuda:0 may hold 250 bytes together");
    rig_drop(a);
    rig_drop(b);
    rig_drop(c);
    rig_drop(d);
    desk_close(&desk);
}

/* Measured, it takes more than there is: it leaves the GPU again and is loaded on the CPU. */
static void what_takes_more_than_it_said_moves(void **state)
{
    struct desk desk;
    struct rig_client client;
    desk_open(&desk);
    struct berth_model *model = rig_put(&desk.rig, desk_spec("m"));
    desk.gpu.load_bytes = 251;
    desk_ask(&desk, model, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(model, "fake:0", "it took 251 bytes");
    assert_int_equal(desk.gpu.unloads, 1);
    assert_int_equal(desk.rig.loads, 1);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    rig_drop(model);
    desk_close(&desk);
}

static void die_of(struct desk *desk, struct berth_model *model)
{
    struct rig_client client;
    desk->gpu.dies_at_run = true;
    desk_ask(desk, model, &client);
    assert_int_equal(client.code, BERTH_UNAVAILABLE); /* what ran when it died */
    desk->gpu.dies_at_run = false;
}

static void assert_left_alone(struct desk *desk, struct berth_model *model)
{
    struct rig_client client;
    desk_ask(desk, model, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(model, "fake:0", "keeps ending");
    desk_unload(desk, model->name);
}

/* One crash is forgiven; the second in a row, with another model, is an illness, until a pause is
 * over, and longer each time. A run that ends well ends the row. */
static void a_gpu_that_keeps_crashing_is_left_alone(void **state)
{
    static const char *const names[4] = {"a", "b", "c", "d"};
    struct desk desk;
    struct rig_client client;
    struct berth_model *models[4];
    desk_open(&desk);
    for (size_t i = 0; i < 4; i++) {
        models[i] = rig_put(&desk.rig, desk_spec(names[i]));
    }
    desk_ask(&desk, models[0], &client);
    die_of(&desk, models[0]);
    die_of(&desk, models[1]);
    assert_int_equal(desk.gpu.loads, 2);
    assert_left_alone(&desk, models[2]);
    rig_advance(&desk.rig, 29 * BERTH_NS_PER_S);
    assert_left_alone(&desk, models[2]);
    rig_advance(&desk.rig, 2 * BERTH_NS_PER_S);
    die_of(&desk, models[2]); /* tried again: a third one */
    assert_int_equal(desk.gpu.loads, 3);
    rig_advance(&desk.rig, 59 * BERTH_NS_PER_S);
    assert_left_alone(&desk, models[3]);
    rig_advance(&desk.rig, 2 * BERTH_NS_PER_S);
    desk_ask(&desk, models[3], &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(models[3], "cuda:0", "");
    die_of(&desk, models[3]); /* the first of a new row */
    desk_ask(&desk, models[3], &client);
    desk_assert_place(models[3], "cuda:0", "");
    struct berth_device_stats stats;
    assert_true(berth_sched_device_stats(desk.rig.sched, 1, &stats));
    assert_int_equal(stats.faults, 4);
    for (size_t i = 0; i < 4; i++) {
        rig_drop(models[i]);
    }
    desk_close(&desk);
}

/* The load goes to the CPU at once, though one crash is no illness; and this model asks the GPU
 * again after its own pause only. */
static void a_load_that_kills_its_process_moves(void **state)
{
    struct desk desk;
    struct rig_client client;
    desk_open(&desk);
    struct berth_model *bad = rig_put(&desk.rig, desk_spec("bad"));
    struct berth_model *good = rig_put(&desk.rig, desk_spec("good"));
    desk.gpu.dies_at_load = true;
    desk_ask(&desk, bad, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(bad, "fake:0", "signal 9");
    desk.gpu.dies_at_load = false;
    desk_ask(&desk, good, &client);
    desk_assert_place(good, "cuda:0", "");
    struct berth_runtime *runtime = bad->sched_state;
    for (uint64_t pause_s = 30, i = 0; i < 7; i++, pause_s = pause_s < 480 ? 2 * pause_s : 480) {
        assert_int_equal(runtime->t_gpu_ns, desk.rig.now_ns + pause_s * BERTH_NS_PER_S);
        desk.rig.now_ns = runtime->t_gpu_ns;
        berth_copy_retire(runtime->current); /* as an eviction: the pause stands */
        while (desk.rig.sent_count > 0) {
            rig_end(&desk.rig, desk.rig.sent[0], 0);
        }
        rig_turn(&desk.rig);
        size_t loads = desk.gpu.loads;
        desk.gpu.refuses = BERTH_UNAVAILABLE;
        desk_ask(&desk, bad, &client);
        assert_int_equal(client.code, BERTH_OK);
        assert_int_equal(desk.gpu.loads, loads + 1);
    }
    rig_drop(bad);
    rig_drop(good);
    desk_close(&desk);
}

/* What a GPU cannot do it is not asked for again, but with other files. */
static void unsupported_is_asked_once(void **state)
{
    struct desk desk;
    struct rig_client client;
    desk_open(&desk);
    struct berth_model *model = rig_put(&desk.rig, desk_spec("m"));
    desk.gpu.refuses = BERTH_UNSUPPORTED;
    desk_ask(&desk, model, &client);
    desk.gpu.refuses = BERTH_OK;
    for (size_t i = 0; i < 3; i++) {
        desk_unload(&desk, "m");
        rig_advance(&desk.rig, 1000 * BERTH_NS_PER_S);
        desk_ask(&desk, model, &client);
        assert_int_equal(client.code, BERTH_OK);
        assert_int_equal(desk.gpu.loads, 1);
        desk_assert_place(model, "fake:0", "UNSUPPORTED");
    }
    desk_unload(&desk, "m");
    struct berth_model_spec *changed = desk_spec("m");
    changed->files_stamp = 8;
    berth_model_set_spec(model, changed);
    desk_ask(&desk, model, &client);
    assert_int_equal(desk.gpu.loads, 2);
    desk_assert_place(model, "cuda:0", "");
    rig_drop(model);
    desk_close(&desk);
}

/* If the CPU cannot either, its reason is the answer. */
static void the_last_reason_is_told(void **state)
{
    struct desk desk;
    struct rig_client client;
    desk_open(&desk);
    struct berth_model *model = rig_put(&desk.rig, desk_spec("m"));
    desk.gpu.refuses = BERTH_UNSUPPORTED;
    rig_ask(&desk.rig, &client, model);
    rig_turn(&desk.rig);
    struct berth_worker_msg *load = rig_sent(&desk.rig, BERTH_WORKER_LOAD);
    assert_non_null(load);
    (void)berth_fail(&load->err, BERTH_INVALID, "the weights are no weights");
    rig_finish(&desk.rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(client.code, BERTH_UNAVAILABLE);
    assert_non_null(strstr(client.msg, "the weights are no weights"));
    assert_int_equal(berth_model_state(model), BERTH_STATE_FAILED);
    rig_leave(&client);
    rig_drop(model);
    desk_close(&desk);
}

/* By decision: what is lost with the GPU's process is loaded again at once, where it can be. */
static void what_is_kept_comes_back_on_the_cpu(void **state)
{
    struct desk desk;
    desk_open(&desk);
    struct berth_admin admin;
    struct berth_model *model = rig_put(&desk.rig, desk_spec("m"));
    rig_admin(&desk.rig, &admin, BERTH_ADMIN_LOAD, "m");
    struct berth_runtime *runtime = model->sched_state;
    runtime->keep = true;
    rig_turn(&desk.rig);
    desk_assert_place(model, "cuda:0", "");
    gpu_die(&desk.gpu);
    atomic_store(&desk.gpu.base.condition, BERTH_WORKER_FAILING);
    rig_turn(&desk.rig);
    rig_turn(&desk.rig);
    rig_finish(&desk.rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    desk_assert_place(model, "fake:0", "does not start");
    rig_drop(model);
    desk_close(&desk);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_goes_on_where_it_can),
        cmocka_unit_test(a_demand_for_the_gpu_is_kept),
        cmocka_unit_test(a_demand_waits_for_its_gpu),
        cmocka_unit_test(a_gpu_that_does_not_start_is_passed_over),
        cmocka_unit_test(a_gpu_that_starts_is_waited_for),
        cmocka_unit_test(a_slow_start_is_waited_for_once),
        cmocka_unit_test(a_full_gpu_evicts_or_lets_the_cpu),
        cmocka_unit_test(what_takes_more_than_it_said_moves),
        cmocka_unit_test(a_gpu_that_keeps_crashing_is_left_alone),
        cmocka_unit_test(a_load_that_kills_its_process_moves),
        cmocka_unit_test(unsupported_is_asked_once),
        cmocka_unit_test(the_last_reason_is_told),
        cmocka_unit_test(what_is_kept_comes_back_on_the_cpu),
    };
    return cmocka_run_group_tests_name("fallback", tests, NULL, NULL);
}
