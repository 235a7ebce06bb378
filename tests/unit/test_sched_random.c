/* test_sched_random.c - the controller under random interleavings of all that can happen, and
 * with each allocation failing in turn. Checked after every turn: no seat idles beside work it
 * could do (no lost wake-up), the memory limit; at the end: one final answer each, nothing left
 * over.
 *
 * BERTH_SEED=N starts elsewhere, BERTH_SOAK=1 runs fifty times as long. */
#include "sched_rig.h"

#include "sched/controller.h"

#define MODELS 6
#define CLIENTS 48
#define ADMINS 6
#define ROUNDS_A_RIG 40
#define SETTLE_MAX 100000

struct world {
    struct rig rig;
    struct berth_model *models[MODELS];
    struct rig_client clients[CLIENTS];
    bool accepted[CLIENTS];
    struct berth_admin admins[ADMINS];
    bool admin_out[ADMINS];
    unsigned seed;
    bool new_specs;  /* loads bring another spec of the model now and then */
    size_t failures; /* messages that were made to fail */
};

static unsigned long long round_seed;
static size_t seen[BERTH_CODE_COUNT]; /* final answers by code, so that a test of nothing shows */
static size_t seen_loads, seen_runs, seen_steps, seen_unloads;

static unsigned pick_of(struct world *world, unsigned count)
{
    return (unsigned)rand_r(&world->seed) % count;
}

static struct berth_model_spec *spec_of(size_t which)
{
    static const char *const names[MODELS] = {"direct", "levels", "steps", "ordered", "delayed",
                                              "large"};
    struct berth_model_spec *spec = rig_spec(names[which]);
    spec->bytes_estimate = which == 5 ? 900 : 300;
    spec->batching = which == 0 ? BERTH_BATCHING_NONE : BERTH_BATCHING_DYNAMIC;
    struct berth_dynamic_batching *dynamic = &spec->dynamic;
    if (which == 1) {
        dynamic->delay_us_max = 3000;
        dynamic->priority_levels = 3;
        dynamic->priority_level_default = 2;
        dynamic->policies[0].count_max = 4;
        dynamic->policies[1].timeout_us_default = 4000;
        dynamic->policies[2].timeout_us_default = 4000;
        dynamic->policies[2].timeout_override = true;
        dynamic->policies[2].timeout_action = BERTH_TIMEOUT_DELAY;
    } else if (which == 2) {
        spec->run_mode = BERTH_RUN_STEPS;
    } else if (which == 3) {
        dynamic->preserve_ordering = true;
        spec->batch_size_max = 2;
    } else if (which == 4) {
        dynamic->preferred[0] = 3;
        dynamic->preferred[1] = 5;
        dynamic->preferred_count = 2;
        dynamic->delay_us_max = 2000;
        dynamic->policy_default.timeout_us_default = 6000;
        dynamic->policy_default.timeout_action = BERTH_TIMEOUT_DELAY;
    }
    return spec;
}

static void world_open(struct world *world)
{
    memset(world, 0, sizeof(*world));
    rig_open(&world->rig);
    world->rig.instances = 2;
    world->rig.options.queue_max = 24;
    world->rig.options.model_queue_max = 12;
    world->rig.options.cold_wait_ns = 30 * RIG_MS;
    world->rig.options.load_backoff_ns = 5 * RIG_MS;
    rig_begin(&world->rig);
    for (size_t i = 0; i < MODELS; i++) {
        world->models[i] = rig_put(&world->rig, spec_of(i));
    }
}

/* What must hold whenever the controller has had its turn. */
static void check_now(struct world *world)
{
    struct berth_sched *sched = world->rig.sched;
    struct berth_device *device = &sched->devices[0];
    assert_true(device->ledger.bytes_used <= 1000);
    assert_int_equal(device->under_way, world->rig.runs_under_way);
    BERTH_LIST_EACH(link, &sched->runtimes) {
        struct berth_runtime *runtime = BERTH_CONTAINER_OF(link, struct berth_runtime, link);
        BERTH_LIST_EACH(at, &runtime->copies) {
            struct berth_copy *copy = BERTH_CONTAINER_OF(at, struct berth_copy, link);
            uint64_t t_due_ns = UINT64_MAX;
            if (copy->batcher == NULL || device->under_way >= world->rig.worker.parallel_max ||
                copy->state == BERTH_COPY_UNLOADING) {
                continue;
            }
            assert_null(copy->batcher->ops->pick(copy, sched->now_ns, &t_due_ns));
            assert_true(t_due_ns >= world->rig.t_next_ns);
        }
    }
}

static void turn(struct world *world)
{
    rig_turn(&world->rig);
    check_now(world);
}

static void do_submit(struct world *world)
{
    for (size_t i = 0; i < CLIENTS; i++) {
        struct rig_client *client = &world->clients[i];
        if (client->request != NULL) {
            continue;
        }
        unsigned which = pick_of(world, MODELS);
        uint64_t rows = which == 0 ? 1 : 1 + pick_of(world, 3);
        if (which == 3 && rows > 2) {
            rows = 2;
        }
        if (!rig_request(&world->rig, client, world->models[which], rows,
                         (int64_t)(4 + pick_of(world, 2)))) {
            return;
        }
        client->request->priority = pick_of(world, 5);
        if (pick_of(world, 3) == 0) {
            client->request->t_deadline_ns = world->rig.now_ns + pick_of(world, 40) * RIG_MS / 2;
            client->request->timeout_named = true;
        }
        world->accepted[i] = rig_submit(&world->rig, client) == BERTH_OK;
        if (!world->accepted[i]) {
            rig_leave(client);
        } else if (pick_of(world, 8) == 0) { /* before the controller has seen it */
            berth_sched_cancel(world->rig.sched, client->request);
        }
        return;
    }
}

static void do_cancel(struct world *world)
{
    struct rig_client *client = &world->clients[pick_of(world, CLIENTS)];
    if (client->request != NULL) {
        berth_sched_cancel(world->rig.sched, client->request);
    }
}

/* The client hangs up: its reference goes, whatever the controller still does. */
static void do_hang_up(struct world *world)
{
    size_t i = pick_of(world, CLIENTS);
    if (world->clients[i].request != NULL && pick_of(world, 4) == 0) {
        berth_sched_cancel(world->rig.sched, world->clients[i].request);
        rig_leave(&world->clients[i]);
    }
}

static void do_end(struct world *world)
{
    struct rig *rig = &world->rig;
    if (rig->sent_count == 0) {
        return;
    }
    struct berth_worker_msg *msg = rig->sent[pick_of(world, (unsigned)rig->sent_count)];
    if (pick_of(world, 10) == 0 && msg->kind != BERTH_WORKER_UNLOAD) {
        (void)berth_fail(&msg->err, BERTH_UNAVAILABLE, "random");
        world->failures++;
    } else if (msg->kind == BERTH_WORKER_RUN && pick_of(world, 6) == 0) {
        (void)berth_fail(&msg->batch.rows[pick_of(world, (unsigned)msg->batch.row_count)].err,
                         BERTH_INVALID, "random row");
        world->failures++;
    }
    rig_end(rig, msg, pick_of(world, 3) * RIG_MS);
}

/* The worker's process ends: what it has loaded is gone; what it was sent may end either way. No
 * unload follows for a load whose answer the controller sees only after that. */
static void do_lose(struct world *world)
{
    struct rig *rig = &world->rig;
    atomic_fetch_add(&rig->worker.epoch, 1);
    berth_worker_fault_post(&rig->worker);
    BERTH_LIST_EACH(link, &rig->sched->runtimes) {
        struct berth_runtime *runtime = BERTH_CONTAINER_OF(link, struct berth_runtime, link);
        BERTH_LIST_EACH(at, &runtime->copies) {
            struct berth_copy *copy = BERTH_CONTAINER_OF(at, struct berth_copy, link);
            if (copy->state == BERTH_COPY_LOADING && rig_loaded_find(rig, copy->load_id) != NULL) {
                rig_forget_loaded(rig, copy->load_id);
            }
        }
    }
}

static void on_admin(struct berth_post *post)
{
    struct berth_admin *admin = BERTH_CONTAINER_OF(post, struct berth_admin, post);
    bool *out = admin->state;
    assert_true(*out); /* comes back once */
    *out = false;
}

static void do_admin(struct world *world)
{
    static const enum berth_admin_kind kinds[] = {BERTH_ADMIN_LOAD, BERTH_ADMIN_UNLOAD,
                                                  BERTH_ADMIN_ENSURE, BERTH_ADMIN_SCAN};
    for (size_t i = 0; i < ADMINS; i++) {
        if (!world->admin_out[i]) {
            unsigned which = pick_of(world, MODELS);
            if (world->new_specs && pick_of(world, 3) == 0) {
                rig_drop(rig_put(&world->rig, spec_of(which)));
            }
            world->admin_out[i] = true;
            world->admins[i] = (struct berth_admin){
                .on_done = on_admin, .reply = &world->rig.replies, .kind = kinds[pick_of(world, 4)],
                .name = world->models[which]->name, .state = &world->admin_out[i]};
            berth_sched_admin(world->rig.sched, &world->admins[i]);
            return;
        }
    }
}

static void act(struct world *world)
{
    unsigned what = pick_of(world, 100);
    if (what < 40) {
        do_submit(world);
    } else if (what < 48) {
        do_cancel(world);
    } else if (what < 52) {
        do_hang_up(world);
    } else if (what < 80) {
        do_end(world);
    } else if (what < 84) {
        do_admin(world);
    } else if (what < 85) {
        do_lose(world);
    } else {
        world->rig.now_ns += pick_of(world, 3000) * BERTH_NS_PER_US;
    }
    if (pick_of(world, 3) != 0) { /* sometimes several things come at once */
        turn(world);
    }
}

static bool anything_open(const struct world *world)
{
    for (size_t i = 0; i < CLIENTS; i++) {
        if (world->clients[i].request != NULL && world->clients[i].finals == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < ADMINS; i++) {
        if (world->admin_out[i]) {
            return true;
        }
    }
    return world->rig.sent_count > 0;
}

/* Time and messages go on until everything has ended; deadlines apart, nothing may need them to. */
static void settle(struct world *world)
{
    size_t left = SETTLE_MAX;
    turn(world);
    while (anything_open(world)) {
        assert_true(left-- > 0);
        if (world->rig.sent_count > 0) {
            rig_end(&world->rig, world->rig.sent[pick_of(world, (unsigned)world->rig.sent_count)],
                    RIG_MS);
        } else {
            assert_true(world->rig.t_next_ns != UINT64_MAX);
            assert_true(world->rig.t_next_ns < world->rig.now_ns + 2 * BERTH_NS_PER_S);
            world->rig.now_ns = world->rig.t_next_ns;
        }
        turn(world);
    }
    turn(world);
    struct berth_sched_stats stats;
    berth_sched_stats(world->rig.sched, &stats);
    assert_int_equal(stats.queued, 0);
    assert_int_equal(stats.running, 0);
    assert_int_equal(stats.accepted, stats.completed);
    for (size_t i = 0; i < MODELS; i++) {
        assert_int_equal(atomic_load(&world->models[i]->stats.queue_depth), 0);
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        if (world->clients[i].request != NULL) {
            assert_int_equal(world->clients[i].finals, 1);
            seen[world->clients[i].code]++;
            assert_int_equal(atomic_load(&world->clients[i].request->references), 1);
            rig_leave(&world->clients[i]);
        }
    }
}

static void world_close(struct world *world)
{
    struct rig *rig = &world->rig;
    rig->auto_all = true;
    while (rig->sent_count > 0) {
        rig_end(rig, rig->sent[0], 0);
    }
    berth_sched_destroy(rig->sched);
    rig->sched = NULL;
    rig_replies(rig);
    for (size_t i = 0; i < CLIENTS; i++) {
        if (world->clients[i].request != NULL) {
            assert_int_equal(world->clients[i].finals, 1);
            rig_leave(&world->clients[i]);
        }
    }
    for (size_t i = 0; i < ADMINS; i++) {
        assert_false(world->admin_out[i]);
    }
    seen_loads += rig->loads;
    seen_unloads += rig->unloads;
    seen_runs += rig->runs;
    seen_steps += rig->steps;
    for (size_t i = 0; i < MODELS; i++) {
        rig_drop(world->models[i]);
    }
    rig_close(rig);
}

static void random_interleavings(void **state)
{
    static struct world world;
    const char *soak = getenv("BERTH_SOAK");
    const char *seed = getenv("BERTH_SEED");
    size_t rounds = soak != NULL && soak[0] != '\0' && soak[0] != '0' ? 1000000 : 20000;
    round_seed = seed == NULL ? 1 : strtoull(seed, NULL, 10);
    for (size_t round = 0; round < rounds; round += ROUNDS_A_RIG) {
        world_open(&world);
        world.new_specs = true;
        for (size_t i = 0; i < ROUNDS_A_RIG; i++, round_seed++) {
            world.seed = (unsigned)round_seed;
            size_t actions = 10 + pick_of(&world, 50);
            for (size_t n = 0; n < actions; n++) {
                act(&world);
            }
            if (i + 1 < ROUNDS_A_RIG || pick_of(&world, 3) != 0) {
                settle(&world); /* the last one is sometimes cut off in the middle */
            }
        }
        world_close(&world);
    }
    printf("figure: random interleavings of the controller: %zu\n", rounds);
}

/* One of everything, with the n-th allocation failing; true if it did fail. */
static bool torture_once(struct world *world, uint64_t n)
{
    world_open(world);
    world->seed = 5;
    rig_turn(&world->rig);
    uint64_t calls = berth_mem_call_count();
    berth_mem_fail_at(n, false);
    for (size_t i = 0; i < 30; i++) {
        do_submit(world);
        if (i % 5 == 0) {
            do_admin(world);
        }
        rig_turn(&world->rig);
        if (world->rig.sent_count > 0 && i % 2 == 0) {
            rig_end(&world->rig, world->rig.sent[0], RIG_MS);
        }
        world->rig.now_ns += RIG_MS;
    }
    settle(world);
    bool failed = berth_mem_call_count() - calls >= n;
    berth_mem_fail_at(0, false);
    world_close(world);
    return failed;
}

static void allocations_fail_one_by_one(void **state)
{
    static struct world world;
    uint64_t n = 1;
    while (torture_once(&world, n)) {
        n++;
    }
    assert_true(n > 100);
}

static int say_seed(void **state)
{
    print_message("ended at BERTH_SEED=%llu: loads %zu, unloads %zu, runs %zu, steps %zu;",
                  round_seed, seen_loads, seen_unloads, seen_runs, seen_steps);
    for (size_t i = 0; i < BERTH_CODE_COUNT; i++) {
        if (seen[i] > 0) {
            print_message(" %s %zu", berth_code_name((enum berth_code)i), seen[i]);
        }
    }
    print_message("\n");
    return 0;
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_interleavings),
        cmocka_unit_test(allocations_fail_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, say_seed);
}
