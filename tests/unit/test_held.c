/* test_held.c - growth that no message tells: few words, none of it lost, from any number of
 * threads, and what a server makes of a process' words. Time is an argument. Run under TSan in the
 * checks. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "worker/process_worker.h"

#define S BERTH_NS_PER_S
#define NEWS BERTH_HELD_NEWS_BYTES
#define TELLERS 4
#define PIECES 20000

static struct berth_queue queue;
static struct berth_held held;
static uint64_t t_now_ns, seen;
static size_t posts;

static void deliver(struct berth_post *post)
{
    assert_ptr_equal(post, &held.post);
    uint64_t bytes = berth_held_take(&held, t_now_ns);
    seen = bytes > 0 ? bytes : seen;
    posts++;
}

static void open_held(void)
{
    assert_int_equal(berth_queue_init(&queue, 0, NULL), BERTH_OK);
    berth_held_init(&held, deliver);
    t_now_ns = 100 * S;
    seen = posts = 0;
}

static void take(void)
{
    struct berth_link links;
    struct berth_link *link;
    berth_list_init(&links);
    while (berth_queue_take(&queue, &links)) {
        while ((link = berth_list_pop(&links)) != NULL) {
            struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
            post->deliver(post);
        }
    }
}

static void what_is_told_when(void **state)
{
    static const struct {
        uint64_t after_ns, tell, sees; /* tell 0: nobody tells, and the keeper looks */
        size_t posts;
    } cases[] = {
        {0, 50, 0, 0},               /* less than is known, */
        {0, 100, 0, 0},              /* and the same */
        {0, 101, 101, 1},            /* more, after long: at once */
        {0, 102, 0, 0},              /* soon after it: not */
        {0, 100 + NEWS, 0, 0},
        {0, 101 + NEWS, 101 + NEWS, 1}, /* unless it is much */
        {0, 102 + NEWS, 0, 0},
        {S - 1, 0, 0, 0},
        {1, 0, 102 + NEWS, 0},       /* after a second the keeper looks */
        {0, 103 + NEWS, 0, 0},       /* and that counts as news */
        {S, 0, 103 + NEWS, 0},
        {S, 0, 0, 0},                /* nothing has come */
        {0, 104 + NEWS, 104 + NEWS, 1},
        {0, UINT64_MAX, UINT64_MAX, 1},
        {S, 0, 0, 0},
    };
    open_held();
    berth_held_tell(&held, &queue, 70);
    take();
    assert_int_equal(posts, 0); /* nothing is told before it is loaded */
    assert_int_equal(berth_held_begin(&held, 100), 100);
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        t_now_ns += cases[i].after_ns;
        seen = posts = 0;
        if (cases[i].tell > 0) {
            berth_held_tell(&held, &queue, cases[i].tell);
            take();
        } else {
            seen = berth_held_look(&held, t_now_ns);
        }
        if (seen != cases[i].sees || posts != cases[i].posts) {
            fail_msg("case %zu: %llu seen, %zu posts", i, (unsigned long long)seen, posts);
        }
    }
    assert_int_equal(held.t_look_ns, UINT64_MAX);
    berth_held_init(&held, deliver); /* and what came in the load counts with its end */
    berth_held_tell(&held, &queue, 500);
    assert_int_equal(berth_held_begin(&held, 100), 500);
    berth_queue_finish(&queue);
}

static _Atomic uint64_t total;

static void *tell_all(void *argument)
{
    uint64_t piece = *(const uint64_t *)argument;
    for (size_t i = 0; i < PIECES; i++) {
        berth_held_tell(&held, &queue, atomic_fetch_add(&total, piece) + piece);
    }
    return NULL;
}

/* Small pieces, then some of which each is much; the keeper's time stands while they come. */
static void nothing_is_lost_between_threads(void **state)
{
    for (uint64_t piece = 1; piece <= NEWS; piece *= NEWS) {
        pthread_t threads[TELLERS];
        open_held();
        atomic_store(&total, 0);
        (void)berth_held_begin(&held, 0);
        for (size_t i = 0; i < TELLERS; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, tell_all, &piece), 0);
        }
        while (atomic_load(&total) < TELLERS * PIECES * piece) {
            take();
            assert_true(seen <= TELLERS * PIECES * piece);
        }
        for (size_t i = 0; i < TELLERS; i++) {
            pthread_join(threads[i], NULL);
        }
        take();
        if (piece == 1) { /* less than a MiB, and no second has passed */
            assert_true(posts >= 1 && posts <= TELLERS + 1);
        }
        uint64_t later = berth_held_look(&held, held.t_look_ns);
        seen = later > 0 ? later : seen;
        assert_int_equal(seen, TELLERS * PIECES * piece);
        berth_queue_finish(&queue);
    }
}

/* Opening the gate races with who tells: what was told is seen by the post or by the look. */
static void nothing_is_lost_when_the_gate_opens(void **state)
{
    const uint64_t piece = 1;
    pthread_t thread;
    open_held();
    atomic_store(&total, 0);
    (void)berth_held_begin(&held, 0);
    assert_int_equal(pthread_create(&thread, NULL, tell_all, (void *)(uintptr_t)&piece), 0);
    for (bool ends = false; !ends;) {
        ends = atomic_load(&total) == PIECES;
        take();
        t_now_ns = held.t_look_ns == UINT64_MAX ? t_now_ns : held.t_look_ns;
        uint64_t bytes = berth_held_look(&held, t_now_ns);
        seen = bytes > 0 ? bytes : seen;
    }
    pthread_join(thread, NULL);
    take();
    for (int i = 0; i < 2 && held.t_look_ns != UINT64_MAX; i++) {
        uint64_t bytes = berth_held_look(&held, held.t_look_ns);
        seen = bytes > 0 ? bytes : seen;
    }
    assert_int_equal(held.t_look_ns, UINT64_MAX);
    assert_int_equal(seen, PIECES);
    berth_queue_finish(&queue);
}

/* --- what a process says --- */

static enum berth_code say(struct berth_process_worker *worker, uint64_t load_id, uint64_t bytes,
                           size_t length)
{
    struct berth_err err = {0};
    berth_wire_begin(&worker->writer, BERTH_WIRE_HELD, load_id);
    berth_wire_put_u64(&worker->writer, bytes);
    berth_wire_put_u64(&worker->writer, 0); /* too much */
    memcpy(worker->message.bytes, worker->writer.bytes, length);
    worker->message.fd_count = 0;
    assert_true(berth_wire_open(&worker->message, length));
    return berth_process_answer(worker, 0, &err);
}

static void a_process_is_believed_within_bounds(void **state)
{
    struct berth_process_worker *worker = berth_alloc(sizeof(*worker));
    struct berth_remote *remote = berth_alloc(sizeof(*remote));
    assert_non_null(worker);
    assert_non_null(remote);
    open_held();
    worker->base.replies = &queue;
    worker->base.bytes_max = 5000;
    berth_list_init(&worker->outbox);
    berth_list_init(&worker->sent);
    berth_list_init(&worker->releases);
    remote->load_id = 5;
    remote->held = &held;
    berth_remote_add(worker, remote);
    (void)berth_held_begin(&held, 100);
    assert_int_equal(say(worker, 5, 2000, 24), BERTH_OK);
    take();
    assert_int_equal(seen, 2000);
    assert_int_equal(say(worker, 5, 2 * NEWS, 24), BERTH_OK); /* it cannot have more than all */
    t_now_ns += S;
    assert_int_equal(berth_held_look(&held, t_now_ns), 5000);
    for (size_t length = 16; length <= 32; length++) {
        assert_int_equal(say(worker, 5, 1, length) == BERTH_OK, length == 24);
    }
    assert_int_not_equal(say(worker, 6, 1, 24), BERTH_OK); /* of no model */
    remote->held = NULL;
    assert_int_equal(say(worker, 5, 3000, 24), BERTH_OK);
    take();
    assert_int_equal(posts, 1);
    berth_remote_remove(worker, remote);
    berth_free(worker);
    berth_queue_finish(&queue);
    assert_int_equal(berth_mem_bytes_live(), 0);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_told_when),
        cmocka_unit_test(nothing_is_lost_between_threads),
        cmocka_unit_test(nothing_is_lost_when_the_gate_opens),
        cmocka_unit_test(a_process_is_believed_within_bounds),
    };
    return cmocka_run_group_tests_name("held", tests, NULL, NULL);
}
