/* test_residency.c - the ledger by itself, and what the controller evicts for whom. */
#include "sched_rig.h"

#include "residency/residency.h"

/* What is refused says the limit, and where it comes from. */
static void refusals_name_the_limit(void **state)
{
    static const struct {
        const char *device;
        uint64_t limit, bytes;
        const char *text;
    } cases[] = {
        {"cpu:0", 31457280, 183907840,
         "it needs 183.9 MB, and models on cpu:0 may hold 31.5 MB together (--device-bytes-max)"},
        {"cuda:0", 900, 1000, "it needs 1.0 kB, and models on cuda:0 may hold 900 bytes together"},
        {"cpu:0", 999, 999,
         "it needs 999 bytes, and models on cpu:0 may hold 999 bytes together "
         "(--device-bytes-max): what is loaded is in use"},
        {"cpu:0", 999999, 1000000,
         "it needs 1.0 MB, and models on cpu:0 may hold 1000.0 kB together (--device-bytes-max)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_residency ledger;
        struct berth_lease lease = {0};
        struct berth_err err = {0}, again = {0};
        bool never = cases[i].bytes > cases[i].limit;
        berth_residency_init(&ledger, cases[i].limit, cases[i].device);
        assert_int_equal(berth_residency_refuse(&ledger, "needs", cases[i].bytes, &err),
                         never ? BERTH_TOO_LARGE : BERTH_UNAVAILABLE);
        assert_string_equal(err.msg, cases[i].text);
        if (never) {
            assert_int_equal(berth_residency_reserve(&ledger, &lease, cases[i].bytes, &again),
                             BERTH_TOO_LARGE);
            assert_string_equal(again.msg, err.msg);
        }
    }
}

static void ledger_adds_up(void **state)
{
    struct berth_residency ledger;
    struct berth_lease a = {0}, b = {0}, c = {0};
    struct berth_err err = {0};
    berth_residency_init(&ledger, 100, "cpu:0");
    assert_int_equal(berth_residency_reserve(&ledger, &a, 101, &err), BERTH_TOO_LARGE);
    assert_int_equal(berth_residency_reserve(&ledger, &a, 60, &err), BERTH_OK);
    assert_int_equal(berth_residency_reserve(&ledger, &b, 41, &err), BERTH_BUSY);
    assert_int_equal(berth_residency_reserve(&ledger, &b, 40, &err), BERTH_OK);
    assert_int_equal(ledger.bytes_used, 100);
    assert_int_equal(berth_residency_missing(&ledger, 10), 10);
    assert_int_equal(berth_residency_evictable(&ledger), 0); /* both pinned by their load */
    berth_residency_unpin(&a, 5);
    berth_residency_unpin(&b, 4);
    assert_int_equal(berth_residency_evictable(&ledger), 100);
    assert_ptr_equal(berth_residency_victim(&ledger), &b); /* least recently used */
    berth_residency_pin(&b, 6);
    assert_ptr_equal(berth_residency_victim(&ledger), &a);
    a.keep = true;
    assert_null(berth_residency_victim(&ledger));
    a.keep = false;
    berth_residency_correct(&ledger, &a, 80); /* more than was reserved */
    assert_int_equal(ledger.bytes_used, 120);
    assert_int_equal(berth_residency_missing(&ledger, 0), 20);
    berth_residency_leave(&ledger, &a);
    berth_residency_leave(&ledger, &a);
    assert_int_equal(berth_residency_missing(&ledger, 0), 0);
    assert_int_equal(ledger.bytes_used, 120); /* not free before it is confirmed */
    assert_int_equal(berth_residency_reserve(&ledger, &c, 10, &err), BERTH_BUSY);
    berth_residency_correct(&ledger, &a, 70);
    berth_residency_release(&ledger, &a);
    berth_residency_release(&ledger, &a);
    assert_int_equal(ledger.bytes_used, 40);
    assert_int_equal(ledger.bytes_leaving, 0);
    assert_int_equal(berth_residency_reserve(&ledger, &c, 10, &err), BERTH_OK);
    berth_residency_release(&ledger, &b);
    berth_residency_release(&ledger, &c);
    assert_int_equal(ledger.bytes_used, 0);
    berth_residency_init(&ledger, 0, "cpu:0"); /* no limit */
    assert_int_equal(berth_residency_reserve(&ledger, &a, UINT64_MAX / 2, &err), BERTH_OK);
    assert_int_equal(berth_residency_missing(&ledger, UINT64_MAX / 2), 0);
}

static struct berth_model_spec *sized(const char *name, uint64_t bytes)
{
    struct berth_model_spec *spec = rig_spec(name);
    spec->bytes_estimate = bytes;
    return spec;
}

static uint64_t bytes_of(struct rig *rig)
{
    struct berth_sched_stats stats;
    berth_sched_stats(rig->sched, &stats);
    return stats.bytes_models;
}

static void least_recently_used_goes(void **state)
{
    struct rig rig;
    struct rig_client client, used;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *a = rig_warm(&rig, sized("a", 400));
    struct berth_model *b = rig_warm(&rig, sized("b", 400));
    rig_advance(&rig, RIG_MS);
    rig_ask(&rig, &used, a); /* b is older now */
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    struct berth_model *c = rig_put(&rig, sized("c", 300));
    rig_ask(&rig, &client, c);
    assert_int_equal(berth_model_state(b), BERTH_STATE_EVICTING);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 0); /* not before it is gone */
    assert_int_equal(bytes_of(&rig), 800);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    assert_int_equal(berth_model_state(b), BERTH_STATE_COLD);
    assert_int_equal(bytes_of(&rig), 700);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    assert_int_equal(berth_model_state(a), BERTH_STATE_WARM);
    rig_leave(&client);
    rig_leave(&used);
    rig_drop(a);
    rig_drop(b);
    rig_drop(c);
    rig_close(&rig);
}

static void busy_models_stay(void **state)
{
    struct rig rig;
    struct rig_client running, client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *a = rig_warm(&rig, sized("a", 900));
    struct berth_model *b = rig_put(&rig, sized("b", 300));
    rig_ask(&rig, &running, a);
    rig_ask(&rig, &client, b);
    assert_int_equal(client.code, BERTH_UNAVAILABLE);
    assert_true(client.retry_after_ms > 0);
    assert_int_equal(berth_model_state(b), BERTH_STATE_COLD); /* not failed: no back-off */
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(running.code, BERTH_OK);
    rig_leave(&client);
    rig_ask(&rig, &client, b); /* idle now: it goes */
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    rig_leave(&running);
    rig_leave(&client);
    rig_drop(a);
    rig_drop(b);
    rig_close(&rig);
}

static void what_never_fits_evicts_nothing(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *a = rig_warm(&rig, sized("a", 500));
    struct berth_model *huge = rig_put(&rig, sized("huge", 1001));
    rig_ask(&rig, &client, huge);
    assert_int_equal(client.code, BERTH_TOO_LARGE);
    assert_int_equal(client.retry_after_ms, 0);
    assert_int_equal(berth_model_state(a), BERTH_STATE_WARM);
    assert_int_equal(rig.sent_count, 0);
    rig_leave(&client);
    rig_drop(a);
    rig_drop(huge);
    rig_close(&rig);
}

/* A load that takes more than was reserved makes others leave, or is taken back. */
static void measured_bytes_count(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *a = rig_warm(&rig, sized("a", 500));
    struct berth_model *b = rig_put(&rig, sized("b", 100));
    rig_ask(&rig, &client, b);
    rig.load_bytes = 700;
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(atomic_load(&b->bytes_used), 700);
    assert_int_equal(berth_model_state(a), BERTH_STATE_EVICTING);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    assert_int_equal(bytes_of(&rig), 700);
    rig_leave(&client);
    struct berth_model *c = rig_put(&rig, sized("c", 100));
    rig_ask(&rig, &client, c);
    rig.load_bytes = 2000;
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(client.code, BERTH_TOO_LARGE);
    assert_int_equal(berth_model_state(c), BERTH_STATE_FAILED);
    assert_int_equal(berth_model_state(b), BERTH_STATE_WARM); /* R6: nobody left for it */
    while (rig_sent(&rig, BERTH_WORKER_UNLOAD) != NULL) {
        rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    }
    assert_true(bytes_of(&rig) <= 1000);
    rig_leave(&client);
    rig_drop(a);
    rig_drop(b);
    rig_drop(c);
    rig_close(&rig);
}

/* A run that leaves more behind counts, and idle models make room for it. */
static void growth_is_counted(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *idle = rig_warm(&rig, sized("idle", 500));
    struct berth_model *grows = rig_warm(&rig, sized("grows", 100));
    rig_ask(&rig, &client, grows);
    rig_sent(&rig, BERTH_WORKER_RUN)->bytes_used = 400;
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(bytes_of(&rig), 900);
    rig_leave(&client);
    rig_ask(&rig, &client, grows);
    rig_sent(&rig, BERTH_WORKER_RUN)->bytes_used = 600;
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(berth_model_state(idle), BERTH_STATE_EVICTING);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    assert_int_equal(bytes_of(&rig), 600);
    rig_leave(&client);
    rig_ask(&rig, &client, grows);
    rig_sent(&rig, BERTH_WORKER_RUN)->bytes_used = 200; /* the most it ever held counts */
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(bytes_of(&rig), 600);
    rig_leave(&client);
    rig_drop(idle);
    rig_drop(grows);
    rig_close(&rig);
}

/* What it takes while nothing of it runs counts too: at once, or when the second after the last
 * news is over; and idle models make room for it, or it leaves itself. */
static void growth_between_runs_is_counted(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig.worker.bytes_max = 4 * BERTH_HELD_NEWS_BYTES;
    rig_begin(&rig);
    struct berth_model *idle = rig_warm(&rig, sized("idle", 500));
    struct berth_model *grows = rig_put(&rig, sized("grows", 100));
    rig_ask(&rig, &client, grows);
    struct berth_held *held = rig_sent(&rig, BERTH_WORKER_LOAD)->held;
    assert_non_null(held);
    berth_held_tell(held, rig.worker.replies, 200); /* it is still loading */
    rig_turn(&rig);
    assert_int_equal(bytes_of(&rig), 600);
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(bytes_of(&rig), 700);
    rig_finish(&rig, BERTH_WORKER_RUN, RIG_MS);
    rig_leave(&client);
    for (uint64_t bytes = 150; bytes <= 900; bytes++) {
        berth_held_tell(held, rig.worker.replies, bytes);
        rig_turn(&rig);
    }
    assert_int_equal(bytes_of(&rig), 500 + 201);
    assert_int_equal(rig.t_next_ns, rig.now_ns + BERTH_NS_PER_S);
    rig_advance(&rig, BERTH_NS_PER_S - 1);
    assert_int_equal(bytes_of(&rig), 500 + 201);
    rig_advance(&rig, 1);
    assert_int_equal(bytes_of(&rig), 500 + 900);
    assert_int_equal(atomic_load(&grows->bytes_used), 900);
    rig_advance(&rig, BERTH_NS_PER_S);
    assert_int_equal(rig.t_next_ns, UINT64_MAX); /* nobody wakes up for it any more */
    berth_held_tell(held, rig.worker.replies, 2 * BERTH_HELD_NEWS_BYTES);
    rig_turn(&rig);
    assert_int_equal(bytes_of(&rig), 500 + 2 * BERTH_HELD_NEWS_BYTES);
    berth_held_tell(held, rig.worker.replies, 4 * BERTH_HELD_NEWS_BYTES);
    rig_turn(&rig);
    assert_int_equal(berth_model_state(idle), BERTH_STATE_EVICTING);
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    assert_int_equal(bytes_of(&rig), 4 * BERTH_HELD_NEWS_BYTES);
    assert_int_equal(berth_model_state(grows), BERTH_STATE_WARM);
    berth_held_tell(held, rig.worker.replies, 6 * BERTH_HELD_NEWS_BYTES);
    rig_turn(&rig);
    assert_int_equal(berth_model_state(grows), BERTH_STATE_EVICTING);
    berth_held_tell(held, rig.worker.replies, 8 * BERTH_HELD_NEWS_BYTES); /* as it goes */
    rig_finish(&rig, BERTH_WORKER_UNLOAD, RIG_MS);
    assert_int_equal(bytes_of(&rig), 0);
    rig_drop(idle);
    rig_drop(grows);
    rig_close(&rig);
}

/* What was loaded by decision, not by demand, is not evicted for a request. */
static void kept_models_stay(void **state)
{
    struct rig rig;
    struct berth_admin admin;
    rig_open(&rig);
    rig.options.mode = BERTH_CONTROL_EXPLICIT;
    rig_begin(&rig);
    struct berth_model *a = rig_put(&rig, sized("a", 800));
    struct berth_model *b = rig_put(&rig, sized("b", 800));
    rig_admin(&rig, &admin, BERTH_ADMIN_LOAD, "a");
    rig_finish(&rig, BERTH_WORKER_LOAD, RIG_MS);
    assert_int_equal(admin.err.code, BERTH_OK);
    rig_admin(&rig, &admin, BERTH_ADMIN_LOAD, "b");
    assert_int_equal(admin.err.code, BERTH_UNAVAILABLE);
    assert_int_equal(berth_model_state(a), BERTH_STATE_WARM);
    rig_drop(a);
    rig_drop(b);
    rig_close(&rig);
}

/* Two models that do not fit together, wanted in turn: never over the limit, all answered. */
static void alternating_models_stay_within(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *models[2] = {rig_put(&rig, sized("a", 600)),
                                     rig_put(&rig, sized("b", 600))};
    for (size_t i = 0; i < 20; i++) {
        rig_ask(&rig, &client, models[i % 2]);
        while (client.finals == 0) {
            assert_true(rig.sent_count > 0);
            rig_finish(&rig, rig.sent[0]->kind, RIG_MS);
            assert_true(bytes_of(&rig) <= 1000);
        }
        assert_int_equal(client.code, BERTH_OK);
        rig_leave(&client);
    }
    assert_int_equal(rig.loads, 20);
    assert_int_equal(rig.unloads, 19);
    rig_drop(models[0]);
    rig_drop(models[1]);
    rig_close(&rig);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_name_the_limit),
        cmocka_unit_test(ledger_adds_up),
        cmocka_unit_test(least_recently_used_goes),
        cmocka_unit_test(busy_models_stay),
        cmocka_unit_test(what_never_fits_evicts_nothing),
        cmocka_unit_test(measured_bytes_count),
        cmocka_unit_test(growth_is_counted),
        cmocka_unit_test(growth_between_runs_is_counted),
        cmocka_unit_test(kept_models_stay),
        cmocka_unit_test(alternating_models_stay_within),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
