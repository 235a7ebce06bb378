/* loop_state.h - what the connections of one thread share: a pool of buffers and exchanges, a timer
 * wheel, the date. They are turned by loop.c, which they do not know.
 *
 * Threads: everything here belongs to the loop's thread; the atomics in struct berth_loop and
 *          struct berth_http may be read by any.
 */
#ifndef BERTH_LOOP_STATE_H
#define BERTH_LOOP_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/http.h"

struct berth_tls;

#define BERTH_LOOP_TICK_NS (8 * UINT64_C(1000000))
#define BERTH_LOOP_SLOTS 1024 /* 8 s a round; later deadlines go round again */
#define BERTH_LOOP_SCRATCH_BYTES 16384

/* A deadline. Set and cleared in O(1): it stays in the slot it was put in and is looked at then. */
struct berth_timer {
    struct berth_link link;
    uint64_t t_due_ns; /* 0: none */
    uint64_t tick;     /* it is queued for; meaningless when not queued */
};

/* Pooled buffers for heads and what follows them. */
struct berth_block {
    struct berth_block *next;
    uint32_t capacity;
    uint32_t at;  /* first byte not consumed */
    uint32_t end; /* first byte not filled */
    char bytes[];
};

struct berth_loop_stats {
    atomic_uint_fast64_t connections_open, connections_total, connections_refused, exchanges_open;
    atomic_uint_fast64_t requests, bytes_in, bytes_out, hangups, timeouts, paused, continues;
    atomic_uint_fast64_t parse_errors;
};

struct berth_loop {
    struct berth_http *http;
    struct berth_queue posts;
    struct berth_link conns;
    struct berth_link ready;  /* conn->ready: to be run in this turn */
    struct berth_link paused; /* conn->waiting: want bytes of the budget, first come first served */
    uint64_t now_ns;
    uint64_t t_retry_ns;      /* next look at paused */
    uint64_t t_accept_ns;     /* acceptor only: accept again then; 0: accepting */
    uint64_t t_accept_log_ns; /* say that again then */
    uint64_t tick;            /* wheel: everything before it has been looked at */
    struct berth_link slots[BERTH_LOOP_SLOTS];
    uint64_t slots_used[BERTH_LOOP_SLOTS / 64];
    struct berth_block *blocks_free;
    struct berth_exchange *exchanges_free;
    size_t block_count, exchange_count; /* in the free lists */
    uint64_t t_date_ns;
    char date[40]; /* of the Date header, good for the present second */
    unsigned char *scratch;
    int epoll_fd;
    pthread_t thread;
    bool started;
    bool accepting;
    atomic_bool swept; /* idle connections were closed after stop_accepting */
    struct berth_loop_stats stats;
};

struct berth_listener {
    int fd;
    uint16_t port;
};

struct berth_http {
    struct berth_http_options options;
    struct berth_tls *tls; /* NULL: plain */
    struct berth_listener *listeners;
    size_t listener_count;
    struct berth_loop *loops;
    size_t loop_count;
    atomic_bool closing;  /* no new connections, no next requests */
    atomic_bool stopping; /* end the threads */
};

void berth_timer_set(struct berth_loop *loop, struct berth_timer *timer, uint64_t t_due_ns);
void berth_timer_clear(struct berth_timer *timer);
void berth_timer_remove(struct berth_loop *loop, struct berth_timer *timer);

/* A block with at least `bytes` room, or NULL. */
struct berth_block *berth_block_take(struct berth_loop *loop, size_t bytes) BERTH_MUST_USE;
void berth_block_give(struct berth_loop *loop, struct berth_block *block); /* NULL is fine */
const char *berth_loop_date(struct berth_loop *loop);

static inline void berth_stat_add(atomic_uint_fast64_t *stat, uint64_t more)
{
    atomic_fetch_add_explicit(stat, more, memory_order_relaxed);
}
static inline void berth_stat_sub(atomic_uint_fast64_t *stat, uint64_t less)
{
    atomic_fetch_sub_explicit(stat, less, memory_order_relaxed);
}

#endif
