/* test_process_watch.c - when a worker process that is up hangs, in virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "worker/process_worker.h"

#define S BERTH_NS_PER_S

struct bench { /* one flight of a worker */
    struct berth_process_worker *worker;
    struct berth_worker_msg msg;
    struct berth_request request;
    struct berth_row row;
    struct berth_flight *flight;
};

static void bench_open(struct bench *bench, enum berth_worker_kind kind, bool is_sent)
{
    *bench = (struct bench){.worker = berth_alloc(sizeof(*bench->worker))};
    assert_non_null(bench->worker);
    berth_list_init(&bench->worker->outbox);
    berth_list_init(&bench->worker->sent);
    berth_list_init(&bench->worker->releases);
    struct berth_remote *remote = berth_alloc(sizeof(*remote));
    assert_non_null(remote);
    remote->load_id = 5;
    berth_remote_add(bench->worker, remote);
    bench->row.request = &bench->request;
    bench->msg = (struct berth_worker_msg){.kind = kind, .load_id = 5};
    bench->msg.spec = kind == BERTH_WORKER_LOAD ? berth_spec_create() : NULL;
    if (kind == BERTH_WORKER_RUN) {
        bench->msg.batch = (struct berth_batch){.rows = &bench->row, .row_count = 1};
    }
    bench->flight = berth_flight_create(bench->worker, &bench->msg);
    assert_non_null(bench->flight);
    berth_list_append(is_sent ? &bench->worker->sent : &bench->worker->outbox,
                      &bench->flight->link);
}

static void bench_close(struct bench *bench)
{
    berth_flight_destroy(bench->flight);
    berth_spec_release(bench->msg.spec);
    berth_remote_remove(bench->worker, berth_remote_find(bench->worker, 5));
    berth_free(bench->worker);
}

static bool hangs_at(struct bench *bench, uint64_t now_ns)
{
    return berth_process_hang(bench->worker, now_ns) != NULL;
}

static const enum berth_worker_kind loads[] = {BERTH_WORKER_LOAD, BERTH_WORKER_UNLOAD};

/* Silent from the start, also one that the child does not take from its socket. */
static void silence_has_an_end(void **state)
{
    for (size_t i = 0; i < 2 * BERTH_COUNT_OF(loads); i++) {
        for (uint64_t option_s = 0; option_s <= 7; option_s += 7) {
            struct bench bench;
            uint64_t max_ns = (option_s == 0 ? 300 : option_s) * S;
            bench_open(&bench, loads[i % 2], i < 2);
            bench.worker->options.load_ns_max = option_s * S;
            assert_false(hangs_at(&bench, 1000 * S));
            assert_false(hangs_at(&bench, 1000 * S + max_ns));
            assert_true(hangs_at(&bench, 1000 * S + max_ns + 1));
            assert_string_equal(berth_process_hang(bench.worker, 1000 * S + max_ns + 1),
                                "hangs in a load");
            bench_close(&bench);
        }
    }
}

/* Signs of life keep it, but not for ever. */
static void signs_of_life_count(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(loads); i++) {
        struct bench bench;
        bench_open(&bench, loads[i], true);
        uint64_t now_ns = 1000 * S;
        assert_false(hangs_at(&bench, now_ns));
        for (; now_ns < 4600 * S; now_ns += 300 * S) {
            assert_false(hangs_at(&bench, now_ns));
            bench.flight->t_alive_ns = now_ns;
        }
        assert_false(hangs_at(&bench, 4600 * S));
        bench.flight->t_alive_ns = 4600 * S;
        assert_true(hangs_at(&bench, 4600 * S + 12));
        bench_close(&bench);
    }
}

/* A run may take as long as it is waited for, and 30 s after that; 5 s once the server ends. */
static void runs_hang_when_nobody_waits(void **state)
{
    for (int closing = 0; closing < 2; closing++) {
        struct bench bench;
        uint64_t max_ns = closing == 1 ? 5 * S : 30 * S;
        bench_open(&bench, BERTH_WORKER_RUN, closing == 0);
        assert_false(hangs_at(&bench, 1 * S));
        assert_false(hangs_at(&bench, 100000 * S));
        atomic_store(closing == 1 ? &bench.worker->base.closing : &bench.request.cancelled, true);
        assert_false(hangs_at(&bench, 100001 * S));
        assert_false(hangs_at(&bench, 100001 * S + max_ns));
        assert_string_equal(berth_process_hang(bench.worker, 100001 * S + max_ns + 1), "hangs");
        bench_close(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_has_an_end),
        cmocka_unit_test(signs_of_life_count),
        cmocka_unit_test(runs_hang_when_nobody_waits),
    };
    return cmocka_run_group_tests_name("process_watch", tests, NULL, NULL);
}
