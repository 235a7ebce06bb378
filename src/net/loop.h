/* loop.h - one thread of the front: epoll, its timers, its posts, and what its connections share.
 *
 * In:      connections from the acceptor, posts from other threads.   Out: events to conn.c.
 * Owns:    its connections, a pool of buffers and exchanges, a timer wheel.
 * Threads: everything here belongs to the loop's thread; the atomics in struct berth_loop and
 *          struct berth_http may be read by any.
 * Rules:   README.md, N6 to N8.
 *
 * A turn of the loop: wait, deliver events, posts, timers, retry those who wait for bytes of the
 * budget, then run every connection that is ready. Handlers only mark connections ready, so no
 * callback runs inside another and a connection is closed in its own run alone. A test or a fuzzer
 * can turn a loop by hand, without a thread, under a clock of its own.
 */
#ifndef BERTH_LOOP_H
#define BERTH_LOOP_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/http.h"

struct berth_conn;
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
    bool swept; /* idle connections were closed after stop_accepting */
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

/* Without a thread. On error nothing is left. */
enum berth_code berth_loop_init(struct berth_loop *loop, struct berth_http *http,
                                struct berth_err *err) BERTH_MUST_USE;
/* Closes all connections and delivers what was posted. Zeroed memory is fine. */
void berth_loop_finish(struct berth_loop *loop);
enum berth_code berth_loop_start(struct berth_loop *loop, struct berth_err *err) BERTH_MUST_USE;
/* Waits for the thread; berth_http.stopping is set. */
void berth_loop_join(struct berth_loop *loop);
/* Everything of a turn but waiting and events, at loop->now_ns. */
void berth_loop_settle(struct berth_loop *loop);
/* True if a turn is to follow at once. */
bool berth_loop_busy(const struct berth_loop *loop);

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

/* tls.c */
enum berth_code berth_tls_create(const char *cert_path, const char *key_path,
                                 struct berth_tls **out, struct berth_err *err) BERTH_MUST_USE;
void berth_tls_destroy(struct berth_tls *tls); /* NULL is fine */
/* Puts TLS between the connection and its socket. */
enum berth_code berth_tls_attach(struct berth_tls *tls, struct berth_conn *conn) BERTH_MUST_USE;

#endif
