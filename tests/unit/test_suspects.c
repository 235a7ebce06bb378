/* test_suspects.c - a model that ends the GPU's worker process again and again is kept off it, and
 * those beside it are not (S15). Virtual time; both workers are fakes. */
#include "gpu_rig.h"

struct pair { /* what kills, and what runs well beside it */
    struct desk desk;
    struct berth_model *bad, *good;
};

static void pair_open(struct pair *pair)
{
    desk_open(&pair->desk);
    pair->bad = rig_put(&pair->desk.rig, desk_spec("bad"));
    pair->good = rig_put(&pair->desk.rig, desk_spec("good"));
}

static void pair_close(struct pair *pair)
{
    rig_drop(pair->bad);
    rig_drop(pair->good);
    desk_close(&pair->desk);
}

/* The good one runs on the GPU, whatever was before. */
static void run_well(struct pair *pair)
{
    struct rig_client client;
    desk_ask(&pair->desk, pair->good, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(pair->good, "cuda:0", "");
}

static void die_of(struct pair *pair, struct berth_model *model)
{
    struct rig_client client;
    pair->desk.gpu.dies_at_run = true;
    desk_ask(&pair->desk, model, &client);
    assert_int_equal(client.code, BERTH_UNAVAILABLE);
    pair->desk.gpu.dies_at_run = false;
}

/* Loaded where it is now asked for; it runs well there. */
static void assert_goes_to(struct pair *pair, struct berth_model *model, const char *device,
                           const char *why)
{
    struct rig_client client;
    desk_unload(&pair->desk, model->name);
    desk_ask(&pair->desk, model, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(model, device, why);
}

static uint64_t faults(struct pair *pair)
{
    struct berth_device_stats stats;
    assert_true(berth_sched_device_stats(pair->desk.rig.sched, 1, &stats));
    return stats.faults;
}

static void what_kills_alone_is_kept_off(void **state)
{
    struct pair pair;
    pair_open(&pair);
    run_well(&pair);
    die_of(&pair, pair.bad);
    run_well(&pair);
    assert_goes_to(&pair, pair.bad, "cuda:0", ""); /* its other runs end well: no excuse */
    die_of(&pair, pair.bad);
    run_well(&pair);
    assert_goes_to(&pair, pair.bad, "fake:0", "ended 2 times");
    struct berth_device_stats stats;
    assert_true(berth_sched_device_stats(pair.desk.rig.sched, 1, &stats));
    assert_true(stats.well);
    assert_int_equal(stats.faults, 2);
    assert_int_equal(stats.fallbacks, 1);
    for (uint64_t pause_s = 30, i = 0; i < 6; i++, pause_s = pause_s < 480 ? 2 * pause_s : 480) {
        rig_advance(&pair.desk.rig, (pause_s - 1) * BERTH_NS_PER_S);
        assert_goes_to(&pair, pair.bad, "fake:0", "times");
        rig_advance(&pair.desk.rig, 2 * BERTH_NS_PER_S);
        assert_goes_to(&pair, pair.bad, "cuda:0", "");
        die_of(&pair, pair.bad);
        run_well(&pair);
    }
    pair_close(&pair);
}

/* Without anything beside it that runs well, too, it is the model and not the device. */
static void what_kills_first_is_kept_off(void **state)
{
    struct pair pair;
    pair_open(&pair);
    die_of(&pair, pair.bad);
    die_of(&pair, pair.bad);
    assert_goes_to(&pair, pair.bad, "fake:0", "ended 2 times");
    run_well(&pair);
    pair_close(&pair);
}

/* Two models in a row: there the device is at fault. */
static void two_models_are_an_illness(void **state)
{
    struct pair pair;
    struct rig_client client;
    pair_open(&pair);
    die_of(&pair, pair.bad);
    die_of(&pair, pair.good);
    desk_ask(&pair.desk, pair.good, &client);
    assert_int_equal(client.code, BERTH_OK);
    desk_assert_place(pair.good, "fake:0", "keeps ending");
    rig_advance(&pair.desk.rig, 31 * BERTH_NS_PER_S);
    desk_unload(&pair.desk, "good");
    run_well(&pair);
    pair_close(&pair);
}

static void is_forgiven_in_time_or_with_its_files(void **state)
{
    for (int files = 0; files < 2; files++) {
        struct pair pair;
        pair_open(&pair);
        die_of(&pair, pair.bad);
        run_well(&pair);
        if (files == 1) {
            struct berth_model_spec *changed = desk_spec("bad");
            changed->files_stamp = 8;
            berth_model_set_spec(pair.bad, changed);
        } else {
            rig_advance(&pair.desk.rig, 601 * BERTH_NS_PER_S);
        }
        die_of(&pair, pair.bad);
        run_well(&pair);
        assert_goes_to(&pair, pair.bad, "cuda:0", "");
        die_of(&pair, pair.bad); /* the second of the new row */
        run_well(&pair);
        assert_goes_to(&pair, pair.bad, "fake:0", "times");
        if (files == 1) { /* and other files are asked for at once */
            struct berth_model_spec *changed = desk_spec("bad");
            changed->files_stamp = 9;
            berth_model_set_spec(pair.bad, changed);
            assert_goes_to(&pair, pair.bad, "cuda:0", "");
        }
        pair_close(&pair);
    }
}

/* Both run when the process ends. */
static void die_of_both(struct pair *pair, bool begun)
{
    struct rig_client clients[2];
    struct gpu *gpu = &pair->desk.gpu;
    gpu->holds_runs = true;
    rig_ask(&pair->desk.rig, &clients[0], pair->bad);
    rig_ask(&pair->desk.rig, &clients[1], pair->good);
    for (int i = 0; i < 4; i++) { /* their loads, then their runs */
        rig_turn(&pair->desk.rig);
    }
    assert_int_equal(gpu->running_count, 2);
    struct berth_worker_msg *last = gpu->running[1];
    gpu_die_with_all(gpu);
    gpu->holds_runs = false;
    last->lost = begun;
    last->not_begun = !begun;
    for (int i = 0; i < 8; i++) {
        rig_turn(&pair->desk.rig);
    }
    assert_int_equal(clients[0].code, BERTH_UNAVAILABLE);
    assert_int_equal(clients[1].finals, 1);
    assert_int_equal(clients[1].code, begun ? BERTH_UNAVAILABLE : BERTH_OK);
    rig_leave(&clients[0]);
    rig_leave(&clients[1]);
}

/* Both are asked for and loaded; only one of them is running: `model`, which dies. The other one
 * runs after it, and well. */
static void die_apart(struct pair *pair, struct berth_model *model)
{
    struct berth_model *other = model == pair->bad ? pair->good : pair->bad;
    struct rig_client clients[2];
    struct gpu *gpu = &pair->desk.gpu;
    assert_goes_to(pair, pair->good, "cuda:0", "");
    assert_goes_to(pair, pair->bad, "cuda:0", "");
    gpu->holds_runs = true;
    rig_ask(&pair->desk.rig, &clients[0], model);
    assert_int_equal(gpu->running_count, 1);
    rig_ask(&pair->desk.rig, &clients[1], other);
    rig_turn(&pair->desk.rig);
    assert_int_equal(gpu->running_count, 1);
    assert_ptr_equal(gpu->running[0]->model, model);
    gpu_die_with_all(gpu);
    gpu->holds_runs = false;
    for (int i = 0; i < 8; i++) {
        rig_turn(&pair->desk.rig);
    }
    assert_int_equal(clients[0].code, BERTH_UNAVAILABLE);
    assert_int_equal(clients[1].finals, 1);
    assert_int_equal(clients[1].code, BERTH_OK);
    rig_leave(&clients[0]);
    rig_leave(&clients[1]);
}

/* Always beside the other one, and both run well between: after two ends they run apart, and then
 * it shows whose the ends are. */
static void what_kills_in_company_is_found(void **state)
{
    struct pair pair;
    pair_open(&pair);
    for (int i = 0; i < 2; i++) {
        assert_goes_to(&pair, pair.good, "cuda:0", "");
        assert_goes_to(&pair, pair.bad, "cuda:0", "");
        die_of_both(&pair, true);
    }
    die_apart(&pair, pair.bad);
    die_apart(&pair, pair.bad);
    assert_goes_to(&pair, pair.good, "cuda:0", "");
    assert_goes_to(&pair, pair.bad, "fake:0", "ended 4 times");
    pair_close(&pair);
}

/* A run that ends well takes nothing off that; ten minutes without an end do, and other files. */
static void being_apart_has_an_end(void **state)
{
    for (int files = 0; files < 2; files++) {
        struct pair pair;
        pair_open(&pair);
        for (int i = 0; i < 4; i++) {
            assert_goes_to(&pair, pair.good, "cuda:0", "");
            assert_goes_to(&pair, pair.bad, "cuda:0", "");
            die_of_both(&pair, true);
            if (i % 2 == 1 && files == 0) {
                rig_advance(&pair.desk.rig, 601 * BERTH_NS_PER_S);
            } else if (i % 2 == 1) {
                for (int of = 0; of < 2; of++) {
                    struct berth_model_spec *changed = desk_spec(of == 0 ? "bad" : "good");
                    changed->files_stamp = 8 + (uint64_t)i;
                    berth_model_set_spec(of == 0 ? pair.bad : pair.good, changed);
                }
            }
        }
        pair_close(&pair);
    }
}

/* What runs apart waits for its turn, and the others for its end: nobody is passed over, and two
 * runs of the same model may be under way. */
static void apart_is_fair(void **state)
{
    struct pair pair;
    struct rig_client clients[6];
    struct gpu *gpu = &pair.desk.gpu;
    pair_open(&pair);
    gpu->instances = 2;
    for (int i = 0; i < 2; i++) {
        assert_goes_to(&pair, pair.good, "cuda:0", "");
        assert_goes_to(&pair, pair.bad, "cuda:0", "");
        die_of_both(&pair, true);
    }
    assert_goes_to(&pair, pair.good, "cuda:0", "");
    assert_goes_to(&pair, pair.bad, "cuda:0", "");
    gpu->holds_runs = true;
    for (size_t i = 0; i < BERTH_COUNT_OF(clients); i++) {
        rig_ask(&pair.desk.rig, &clients[i], i % 3 == 2 ? pair.bad : pair.good);
    }
    size_t ran[2] = {0, 0};
    bool twice = false;
    while (gpu->running_count > 0) {
        for (size_t i = 0; i < gpu->running_count; i++) {
            assert_ptr_equal(gpu->running[i]->model, gpu->running[0]->model);
        }
        twice = twice || gpu->running_count == 2;
        ran[gpu->running[0]->model == pair.bad]++;
        pair.desk.rig.now_ns += RIG_MS;
        gpu_end_run(gpu);
        rig_turn(&pair.desk.rig);
    }
    assert_true(twice);
    assert_true(ran[0] > 0 && ran[1] > 0);
    for (size_t i = 0; i < BERTH_COUNT_OF(clients); i++) {
        assert_int_equal(clients[i].code, BERTH_OK);
        rig_leave(&clients[i]);
    }
    pair_close(&pair);
}

/* A load beside what runs apart is no company to it, and begins anew. */
static void a_load_is_no_company_to_what_runs_apart(void **state)
{
    struct pair pair;
    struct rig_client loads, runs;
    struct gpu *gpu = &pair.desk.gpu;
    pair_open(&pair);
    for (int i = 0; i < 2; i++) {
        assert_goes_to(&pair, pair.good, "cuda:0", "");
        assert_goes_to(&pair, pair.bad, "cuda:0", "");
        die_of_both(&pair, true);
    }
    gpu->load_bytes = 20;
    struct berth_model *third = rig_put(&pair.desk.rig, desk_spec("third"));
    assert_goes_to(&pair, pair.bad, "cuda:0", "");
    for (int i = 0; i < 2; i++) {
        gpu->holds = gpu->holds_runs = false;
        rig_ask(&pair.desk.rig, &runs, pair.bad); /* loaded, and runs well */
        rig_turn(&pair.desk.rig);
        rig_turn(&pair.desk.rig);
        assert_int_equal(runs.code, BERTH_OK);
        rig_leave(&runs);
        gpu->holds = gpu->holds_runs = true;
        rig_ask(&pair.desk.rig, &loads, third);
        assert_int_equal(gpu->held_count, 1);
        rig_ask(&pair.desk.rig, &runs, pair.bad);
        assert_int_equal(gpu->running_count, 1); /* warm does not wait for cold */
        gpu_die_with_all(gpu);
        rig_turn(&pair.desk.rig);
        gpu_let_go(gpu);
        gpu->holds_runs = false;
        for (int turn = 0; turn < 8; turn++) {
            rig_turn(&pair.desk.rig);
        }
        assert_int_equal(runs.code, BERTH_UNAVAILABLE);
        assert_int_equal(loads.code, BERTH_OK);
        rig_leave(&runs);
        rig_leave(&loads);
        desk_unload(&pair.desk, "third");
    }
    assert_goes_to(&pair, pair.bad, "fake:0", "ended 4 times");
    assert_goes_to(&pair, third, "cuda:0", "");
    assert_int_equal(faults(&pair), 4);
    rig_drop(third);
    pair_close(&pair);
}

/* Unless it is the load that kills, each time it is tried: what runs beside it is not kept off. */
static void a_load_that_kills_costs_nobody_else(void **state)
{
    struct pair pair;
    struct rig_client loads, runs;
    struct gpu *gpu = &pair.desk.gpu;
    pair_open(&pair);
    gpu->load_bytes = 20;
    for (int end = 0; end < 6; end++) {
        assert_goes_to(&pair, pair.good, "cuda:0", "");
        gpu->holds = gpu->holds_runs = true;
        rig_ask(&pair.desk.rig, &loads, pair.bad);
        assert_int_equal(gpu->held_count, 1);
        rig_ask(&pair.desk.rig, &runs, pair.good);
        assert_int_equal(gpu->running_count, 1);
        gpu_die_with_all(gpu);
        rig_turn(&pair.desk.rig);
        rig_turn(&pair.desk.rig);
        berth_sched_cancel(pair.desk.rig.sched, loads.request); /* no run of it may excuse it */
        rig_turn(&pair.desk.rig);
        gpu->holds = gpu->holds_runs = false;
        for (int turn = 0; turn < 8; turn++) {
            rig_turn(&pair.desk.rig);
        }
        assert_int_equal(runs.code, BERTH_UNAVAILABLE);
        rig_leave(&runs);
        assert_int_equal(gpu->held_count, 0);
        rig_leave(&loads);
        if (end >= 2) { /* until it is tried there again */
            desk_ask(&pair.desk, pair.bad, &loads);
            desk_assert_place(pair.bad, "fake:0", "ended");
            desk_unload(&pair.desk, "bad");
            rig_advance(&pair.desk.rig, (31ULL << (end - 2)) * BERTH_NS_PER_S);
        }
    }
    assert_goes_to(&pair, pair.good, "cuda:0", "");
    pair_close(&pair);
}

/* What the process had not begun kept nobody company. */
static void what_had_not_begun_is_not_suspected(void **state)
{
    struct pair pair;
    pair_open(&pair);
    run_well(&pair);
    die_of_both(&pair, false);
    run_well(&pair);
    die_of_both(&pair, false);
    run_well(&pair);
    assert_goes_to(&pair, pair.bad, "fake:0", "ended 2 times");
    assert_goes_to(&pair, pair.good, "cuda:0", "");
    pair_close(&pair);
}

/* A load that was under way when somebody's run ended the process begins anew there; in the end it
 * is suspected, too. A third model runs well in between. */
static void a_load_in_company_begins_anew(void **state)
{
    struct pair pair;
    struct rig_client loads, runs;
    struct gpu *gpu = &pair.desk.gpu;
    pair_open(&pair);
    struct berth_model *third = rig_put(&pair.desk.rig, desk_spec("third"));
    gpu->load_bytes = 20;
    gpu->holds = true;
    rig_ask(&pair.desk.rig, &loads, pair.good);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gpu->held_count, 1);
        struct berth_worker_msg *load = gpu->held[0];
        gpu->held_count = 0;
        gpu->holds = false;
        desk_ask(&pair.desk, third, &runs);
        gpu->holds_runs = true;
        rig_ask(&pair.desk.rig, &runs, pair.bad);
        rig_turn(&pair.desk.rig);
        rig_turn(&pair.desk.rig);
        assert_int_equal(gpu->running_count, 1);
        gpu->held[gpu->held_count++] = load;
        gpu->holds = true;
        gpu_die_with_all(gpu);
        gpu->holds_runs = false;
        rig_turn(&pair.desk.rig);
        rig_turn(&pair.desk.rig);
        assert_int_equal(runs.code, BERTH_UNAVAILABLE);
        rig_leave(&runs);
        assert_int_equal(desk_fallbacks(&pair.desk), i < 2 ? 0 : 1);
    }
    assert_int_equal(gpu->held_count, 0); /* the third time was one too many */
    rig_finish(&pair.desk.rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&pair.desk.rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(loads.code, BERTH_OK);
    desk_assert_place(pair.good, "fake:0", "ended 3 times");
    rig_leave(&loads);
    gpu->holds = false;
    rig_drop(third);
    pair_close(&pair);
}

/* Two loads: neither is surely the one, and both begin anew. */
static void two_loads_are_company(void **state)
{
    struct pair pair;
    struct rig_client clients[2];
    struct gpu *gpu = &pair.desk.gpu;
    pair_open(&pair);
    gpu->holds = true;
    rig_ask(&pair.desk.rig, &clients[0], pair.bad);
    rig_ask(&pair.desk.rig, &clients[1], pair.good);
    assert_int_equal(gpu->held_count, 2);
    gpu_die_with_all(gpu);
    rig_turn(&pair.desk.rig);
    assert_int_equal(gpu->held_count, 2);
    assert_int_equal(faults(&pair), 1);
    gpu_let_go(gpu);
    for (int i = 0; i < 4; i++) {
        rig_turn(&pair.desk.rig);
    }
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(clients[i].code, BERTH_OK);
        rig_leave(&clients[i]);
    }
    desk_assert_place(pair.bad, "cuda:0", "");
    desk_assert_place(pair.good, "cuda:0", "");
    pair_close(&pair);
}

/* Loaded, and lost before the controller knew: it loads again, and had no part in it. */
static void a_load_that_comes_late_begins_anew(void **state)
{
    struct pair pair;
    struct rig_client client;
    pair_open(&pair);
    pair.desk.gpu.holds = true;
    rig_ask(&pair.desk.rig, &client, pair.good);
    gpu_let_go(&pair.desk.gpu);
    gpu_die(&pair.desk.gpu);
    for (int i = 0; i < 4; i++) {
        rig_turn(&pair.desk.rig);
    }
    assert_int_equal(client.code, BERTH_OK);
    assert_int_equal(pair.desk.gpu.loads, 2);
    desk_assert_place(pair.good, "cuda:0", "");
    rig_leave(&client);
    pair_close(&pair);
}

/* Where the GPU is demanded, its load fails with the reason while that lasts; what is loaded by
 * decision is loaded again then, by nobody's request. */
static void a_demand_fails_while_it_is_kept_off(void **state)
{
    for (int keep = 0; keep < 2; keep++) {
        struct berth_instance_group group = {.kind = BERTH_KIND_GPU, .count = 1};
        struct pair pair;
        struct rig_client client;
        pair_open(&pair);
        struct berth_model_spec *spec = desk_spec("demands");
        spec->groups = &group;
        spec->group_count = 1;
        struct berth_model *model = rig_put(&pair.desk.rig, spec);
        die_of(&pair, model);
        struct berth_runtime *runtime = model->sched_state;
        runtime->keep = keep == 1;
        run_well(&pair);
        die_of(&pair, model);
        rig_turn(&pair.desk.rig);
        desk_ask(&pair.desk, model, &client);
        assert_int_equal(client.code, BERTH_UNAVAILABLE);
        assert_non_null(strstr(client.msg, "ended 2 times"));
        assert_true(client.retry_after_ms > 29000 && client.retry_after_ms <= 31000);
        assert_int_equal(pair.desk.rig.loads, 0);
        run_well(&pair);
        rig_advance(&pair.desk.rig, 31 * BERTH_NS_PER_S);
        rig_turn(&pair.desk.rig);
        assert_int_equal(berth_model_state(model) == BERTH_STATE_WARM, keep == 1);
        desk_ask(&pair.desk, model, &client);
        assert_int_equal(client.code, BERTH_OK);
        desk_assert_place(model, "cuda:0", "");
        rig_drop(model);
        pair_close(&pair);
    }
}

/* Ends that cost nothing are no faults: nothing was loaded, and nothing under way there. */
static void ends_that_cost_nothing_do_not_count(void **state)
{
    struct pair pair;
    struct rig_client client;
    struct gpu *gpu = &pair.desk.gpu;
    pair_open(&pair);
    atomic_fetch_add(&gpu->base.epoch, 3);
    gpu->refuses = BERTH_INVALID;
    desk_ask(&pair.desk, pair.bad, &client); /* comes back from the fourth process */
    assert_int_equal(faults(&pair), 0);
    gpu->refuses = BERTH_OK;
    run_well(&pair);
    assert_int_equal(faults(&pair), 0);
    gpu_die(gpu); /* idle, but loaded */
    rig_turn(&pair.desk.rig);
    rig_turn(&pair.desk.rig);
    assert_int_equal(faults(&pair), 1);
    run_well(&pair);
    pair_close(&pair);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_kills_alone_is_kept_off),
        cmocka_unit_test(what_kills_first_is_kept_off),
        cmocka_unit_test(two_models_are_an_illness),
        cmocka_unit_test(is_forgiven_in_time_or_with_its_files),
        cmocka_unit_test(what_kills_in_company_is_found),
        cmocka_unit_test(being_apart_has_an_end),
        cmocka_unit_test(apart_is_fair),
        cmocka_unit_test(a_load_is_no_company_to_what_runs_apart),
        cmocka_unit_test(a_load_that_kills_costs_nobody_else),
        cmocka_unit_test(what_had_not_begun_is_not_suspected),
        cmocka_unit_test(a_load_in_company_begins_anew),
        cmocka_unit_test(two_loads_are_company),
        cmocka_unit_test(a_load_that_comes_late_begins_anew),
        cmocka_unit_test(a_demand_fails_while_it_is_kept_off),
        cmocka_unit_test(ends_that_cost_nothing_do_not_count),
    };
    return cmocka_run_group_tests_name("suspects", tests, NULL, NULL);
}
