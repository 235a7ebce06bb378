/* loop.c - see loop.h.
 *
 * Connections are armed once, edge-triggered, for everything; what an edge said is remembered in
 * the connection, so that no epoll_ctl is made per request and pipelined bytes that nobody reads
 * wake nobody twice. The acceptor is the first loop; it hands each connection to the loop that has
 * the fewest (SO_REUSEPORT would spread them by hash). Without descriptors or memory for accept it
 * looks away for a while: the backlog holds who comes.
 */
#include "net/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/conn.h"

#define EVENTS_MAX 128
#define ACCEPTS_MAX 64 /* in one turn */
#define ACCEPT_PAUSE_NS (100 * BERTH_NS_PER_MS)
#define RETRY_NS (2 * BERTH_NS_PER_MS)

static void *thread_main(void *subject);
static void turn(struct berth_loop *loop);
static int wait_ms(const struct berth_loop *loop);
static void deliver_events(struct berth_loop *loop, struct epoll_event *events, int count);
static bool deliver_posts(struct berth_loop *loop); /* were there any? */
static void run_timers(struct berth_loop *loop);
static void run_slot(struct berth_loop *loop, size_t slot);
static uint64_t next_tick(const struct berth_loop *loop);
static void retry_paused(struct berth_loop *loop);
static void run_ready(struct berth_loop *loop);
static void accept_some(struct berth_loop *loop, const struct berth_listener *listener);
static void hand_out(struct berth_loop *loop, int fd, const struct sockaddr_in6 *peer);
static enum berth_code listen_on(struct berth_loop *loop, struct berth_err *err);
static void listen_off(struct berth_loop *loop);
static void end_accepting(struct berth_loop *loop);
static void close_all(struct berth_loop *loop);

enum berth_code berth_loop_init(struct berth_loop *loop, struct berth_http *http,
                                struct berth_err *err)
{
    enum berth_code code;
    *loop = (struct berth_loop){.http = http, .epoll_fd = -1};
    berth_list_init(&loop->conns);
    berth_list_init(&loop->ready);
    berth_list_init(&loop->paused);
    for (size_t i = 0; i < BERTH_LOOP_SLOTS; i++) {
        berth_list_init(&loop->slots[i]);
    }
    loop->now_ns = berth_clock_now_ns();
    loop->tick = loop->now_ns / BERTH_LOOP_TICK_NS;
    code = berth_queue_init(&loop->posts, 0, err);
    if (code != BERTH_OK) {
        return code;
    }
    loop->scratch = berth_alloc(BERTH_LOOP_SCRATCH_BYTES);
    if (loop->scratch == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for an HTTP thread");
        goto out;
    }
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = &loop->posts};
    if (loop->epoll_fd < 0 ||
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->posts.fd, &event) != 0) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot make an epoll set: %m");
    }
out:
    if (code != BERTH_OK) {
        berth_loop_finish(loop);
    }
    return code;
}

void berth_loop_finish(struct berth_loop *loop)
{
    if (loop->http == NULL) {
        return;
    }
    close_all(loop);
    while (loop->blocks_free != NULL) {
        struct berth_block *next = loop->blocks_free->next;
        berth_free(loop->blocks_free);
        loop->blocks_free = next;
    }
    while (loop->exchanges_free != NULL) {
        struct berth_exchange *next = loop->exchanges_free->next;
        berth_buf_finish(&loop->exchanges_free->out);
        berth_free(loop->exchanges_free);
        loop->exchanges_free = next;
    }
    if (loop->epoll_fd >= 0) {
        close(loop->epoll_fd);
    }
    berth_free(loop->scratch);
    berth_queue_finish(&loop->posts);
    loop->http = NULL;
}

enum berth_code berth_loop_start(struct berth_loop *loop, struct berth_err *err)
{
    sigset_t all, before;
    if (loop == &loop->http->loops[0]) {
        BERTH_TRY(listen_on(loop, err));
        loop->accepting = true;
    }
    /* Signals are the main thread's, but for those about a thread's own faults; a write to a closed
     * socket must not raise one either. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigfillset(&all);
    for (size_t i = 0; i < BERTH_COUNT_OF(faults); i++) {
        sigdelset(&all, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&loop->thread, NULL, thread_main, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot start an HTTP thread: %s",
                          strerror(failed));
    }
    loop->started = true;
    return BERTH_OK;
}

void berth_loop_join(struct berth_loop *loop)
{
    if (loop->started) {
        berth_queue_nudge(&loop->posts);
        pthread_join(loop->thread, NULL);
        loop->started = false;
    }
}

void berth_loop_settle(struct berth_loop *loop)
{
    deliver_posts(loop);
    run_timers(loop);
    retry_paused(loop);
    if (!atomic_load_explicit(&loop->swept, memory_order_relaxed) &&
        atomic_load_explicit(&loop->http->closing, memory_order_relaxed)) {
        end_accepting(loop);
        atomic_store(&loop->swept, true); /* what is open now is counted */
    }
    run_ready(loop);
}

bool berth_loop_busy(const struct berth_loop *loop)
{
    return !berth_list_empty(&loop->ready);
}

static void *thread_main(void *subject)
{
    struct berth_loop *loop = subject;
    while (!atomic_load(&loop->http->stopping)) {
        turn(loop);
    }
    end_accepting(loop);
    close_all(loop);
    return NULL;
}

static void turn(struct berth_loop *loop)
{
    struct epoll_event events[EVENTS_MAX];
    int wait = wait_ms(loop);
    if (wait != 0 && !berth_queue_sleep(&loop->posts)) {
        wait = 0;
    }
    int count = epoll_wait(loop->epoll_fd, events, EVENTS_MAX, wait); /* EINTR: as none */
    berth_queue_wake(&loop->posts);
    loop->now_ns = berth_clock_now_ns();
    berth_queue_hold();
    deliver_events(loop, events, count);
    berth_loop_settle(loop);
    berth_queue_release();
}

/* How long there is nothing to do. */
static int wait_ms(const struct berth_loop *loop)
{
    uint64_t until_ns = UINT64_MAX;
    uint64_t tick = next_tick(loop);
    if (berth_loop_busy(loop)) {
        return 0;
    }
    if (tick != UINT64_MAX) {
        until_ns = tick * BERTH_LOOP_TICK_NS;
    }
    if (!berth_list_empty(&loop->paused) && loop->t_retry_ns < until_ns) {
        until_ns = loop->t_retry_ns;
    }
    if (loop->t_accept_ns != 0 && loop->t_accept_ns < until_ns) {
        until_ns = loop->t_accept_ns;
    }
    if (until_ns == UINT64_MAX) {
        return -1;
    }
    uint64_t now_ns = berth_clock_now_ns();
    if (until_ns <= now_ns) {
        return 0;
    }
    uint64_t wait = (until_ns - now_ns + BERTH_NS_PER_MS - 1) / BERTH_NS_PER_MS;
    return wait > 60000 ? 60000 : (int)wait;
}

static void deliver_events(struct berth_loop *loop, struct epoll_event *events, int count)
{
    const struct berth_http *http = loop->http;
    for (int i = 0; i < count; i++) {
        void *subject = events[i].data.ptr;
        if (subject == &loop->posts) {
            continue; /* what is posted is delivered by berth_loop_settle */
        }
        bool listener = false;
        for (size_t j = 0; loop->accepting && j < http->listener_count; j++) {
            if (subject == &http->listeners[j]) {
                listener = true;
                accept_some(loop, &http->listeners[j]);
            }
        }
        if (!listener) {
            berth_conn_event(subject, events[i].events);
        }
    }
}

static bool deliver_posts(struct berth_loop *loop)
{
    struct berth_link posts;
    struct berth_link *link;
    berth_list_init(&posts);
    if (!berth_queue_take(&loop->posts, &posts)) {
        return false;
    }
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
    return true;
}

static void run_timers(struct berth_loop *loop)
{
    uint64_t now_tick = loop->now_ns / BERTH_LOOP_TICK_NS;
    if (now_tick >= loop->tick + BERTH_LOOP_SLOTS) {
        loop->tick = now_tick - BERTH_LOOP_SLOTS + 1; /* a long sleep: each slot once */
    }
    while (loop->tick <= now_tick) {
        size_t slot = loop->tick % BERTH_LOOP_SLOTS;
        loop->tick++; /* what is queued anew goes to a later slot */
        if ((loop->slots_used[slot / 64] & UINT64_C(1) << (slot % 64)) != 0) {
            run_slot(loop, slot);
        }
    }
}

static void run_slot(struct berth_loop *loop, size_t slot)
{
    struct berth_link due;
    struct berth_link *link;
    berth_list_init(&due);
    berth_list_splice(&due, &loop->slots[slot]);
    loop->slots_used[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    while ((link = berth_list_pop(&due)) != NULL) {
        struct berth_timer *timer = BERTH_CONTAINER_OF(link, struct berth_timer, link);
        if (timer->t_due_ns == 0) {
            continue;
        }
        if (timer->t_due_ns > loop->now_ns) {
            berth_timer_set(loop, timer, timer->t_due_ns);
            continue;
        }
        timer->t_due_ns = 0;
        berth_conn_timeout(timer);
    }
}

/* UINT64_MAX: no timer is queued. */
static uint64_t next_tick(const struct berth_loop *loop)
{
    for (uint64_t tick = loop->tick; tick < loop->tick + BERTH_LOOP_SLOTS;) {
        size_t slot = tick % BERTH_LOOP_SLOTS;
        uint64_t bits = loop->slots_used[slot / 64] >> (slot % 64);
        if (bits != 0) {
            return tick + (uint64_t)__builtin_ctzll(bits);
        }
        tick += 64 - slot % 64;
    }
    size_t first = loop->tick % BERTH_LOOP_SLOTS; /* the part of its word before where we began */
    uint64_t bits = loop->slots_used[first / 64];
    return bits == 0 ? UINT64_MAX
                     : loop->tick - first % 64 + BERTH_LOOP_SLOTS + (uint64_t)__builtin_ctzll(bits);
}

/* In the order in which they came; who stands first and finds no room keeps the others waiting, so
 * that a large body is not overtaken for ever. */
static void retry_paused(struct berth_loop *loop)
{
    if (berth_list_empty(&loop->paused) || loop->now_ns < loop->t_retry_ns) {
        return;
    }
    while (!berth_list_empty(&loop->paused)) {
        struct berth_conn *conn = BERTH_CONTAINER_OF(loop->paused.next, struct berth_conn, waiting);
        if (!berth_body_retry(conn)) {
            break;
        }
        berth_list_remove(&conn->waiting);
        berth_conn_wake(conn);
    }
    loop->t_retry_ns = loop->now_ns + RETRY_NS;
}

static void run_ready(struct berth_loop *loop)
{
    struct berth_link now;
    struct berth_link *link;
    berth_list_init(&now);
    berth_list_splice(&now, &loop->ready); /* who becomes ready meanwhile: next turn */
    while ((link = berth_list_pop(&now)) != NULL) {
        berth_conn_run(BERTH_CONTAINER_OF(link, struct berth_conn, ready));
    }
    if (loop->t_accept_ns != 0 && loop->now_ns >= loop->t_accept_ns && loop->accepting) {
        struct berth_err err;
        loop->t_accept_ns = listen_on(loop, &err) == BERTH_OK ? 0 : loop->now_ns + ACCEPT_PAUSE_NS;
    }
}

static void accept_some(struct berth_loop *loop, const struct berth_listener *listener)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct sockaddr_in6 peer = {0};
        socklen_t length = sizeof(peer);
        int fd = accept4(listener->fd, (struct sockaddr *)&peer, &length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            hand_out(loop, fd, &peer);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (loop->now_ns >= loop->t_accept_log_ns) {
                berth_log_warn("net", 0, "cannot accept connections, waiting: %s", strerror(errno));
                loop->t_accept_log_ns = loop->now_ns + 10 * BERTH_NS_PER_S;
            }
            listen_off(loop);
            loop->t_accept_ns = loop->now_ns + ACCEPT_PAUSE_NS;
            return;
        }
        if (errno == EAGAIN) {
            return;
        }
        /* The others are about one client that is gone already. */
    }
}

static void hand_out(struct berth_loop *loop, int fd, const struct sockaddr_in6 *peer)
{
    struct berth_http *http = loop->http;
    struct berth_loop *to = loop;
    uint64_t open = 0, fewest = UINT64_MAX;
    for (size_t i = 0; i < http->loop_count; i++) {
        uint64_t here = atomic_load_explicit(&http->loops[i].stats.connections_open,
                                             memory_order_relaxed);
        open += here;
        if (here < fewest) {
            fewest = here;
            to = &http->loops[i];
        }
    }
    struct berth_conn *conn = open >= http->options.connections_max ? NULL
                                                                    : berth_conn_prepare(to, fd);
    if (conn == NULL) {
        berth_stat_add(&loop->stats.connections_refused, 1);
        close(fd);
        return;
    }
    conn->peer = *peer;
    if (to == loop) {
        conn->post.deliver(&conn->post);
    } else {
        berth_queue_post(&to->posts, &conn->post.link);
    }
}

static enum berth_code listen_on(struct berth_loop *loop, struct berth_err *err)
{
    for (size_t i = 0; i < loop->http->listener_count; i++) {
        struct berth_listener *listener = &loop->http->listeners[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = listener};
        if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, listener->fd, &event) != 0 &&
            errno != EEXIST) {
            return berth_fail(err, BERTH_UNAVAILABLE, "cannot watch a listening socket: %m");
        }
    }
    return BERTH_OK;
}

static void listen_off(struct berth_loop *loop)
{
    for (size_t i = 0; i < loop->http->listener_count; i++) {
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, loop->http->listeners[i].fd, NULL);
    }
}

/* Closes the listening sockets (their loop alone) and whoever is between requests. */
static void end_accepting(struct berth_loop *loop)
{
    loop->t_accept_ns = 0;
    if (loop->accepting) {
        loop->accepting = false;
        listen_off(loop);
        for (size_t i = 0; i < loop->http->listener_count; i++) {
            close(loop->http->listeners[i].fd);
            loop->http->listeners[i].fd = -1;
        }
    }
    BERTH_LIST_EACH_SAFE(link, &loop->conns)
    {
        struct berth_conn *conn = BERTH_CONTAINER_OF(link, struct berth_conn, link);
        if (berth_conn_idle(conn)) {
            berth_conn_abort(conn);
        }
    }
}

static void close_all(struct berth_loop *loop)
{
    do {
        while (!berth_list_empty(&loop->conns)) {
            berth_conn_abort(BERTH_CONTAINER_OF(loop->conns.next, struct berth_conn, link));
        }
    } while (deliver_posts(loop)); /* may bring connections that were handed over */
}
