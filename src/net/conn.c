/* conn.c - see conn.h.
 *
 * berth_conn_run is the only place where a connection moves: it calls the present state's step
 * until one says that there is nothing to do but wait. Handlers, timers and posts only change what
 * the steps look at. So an answer given inside a callback is written when the callback has
 * returned, and there is one way out (conn_destroy), reached from the run alone or from a loop that
 * ends. */
#include "net/conn.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define STEPS_MAX 64 /* in one run; then the others have a turn */
#define DRAIN_BYTES_MAX (64 * UINT64_C(1048576))
#define DRAIN_RUN_BYTES (4 * UINT64_C(1048576))
#define DRAIN_NS (2 * BERTH_NS_PER_S)
#define SKIP_PIECES 64

static void adopt(struct berth_post *post);
static bool join(struct berth_conn *conn);
static enum berth_step step(struct berth_conn *conn);
static enum berth_step step_handshake(struct berth_conn *conn);
static enum berth_step step_head(struct berth_conn *conn);
static enum berth_step read_head(struct berth_conn *conn);
static struct berth_block *room_for_head(struct berth_conn *conn);
static enum berth_step begin(struct berth_conn *conn);
static enum berth_step step_paused(struct berth_conn *conn);
static enum berth_step step_handling(struct berth_conn *conn);
static enum berth_step step_writing(struct berth_conn *conn);
static enum berth_step end_exchange(struct berth_conn *conn);
static enum berth_step step_draining(struct berth_conn *conn);
static bool skip_input(struct berth_conn *conn, uint64_t bytes_max);
static void refuse(struct berth_conn *conn, int status, enum berth_code code, const char *message);
static void conn_destroy(struct berth_conn *conn);
static ssize_t plain_read(struct berth_conn *conn, void *bytes, size_t length);
static ssize_t plain_write(struct berth_conn *conn, const struct iovec *pieces, int count);
static ssize_t plain_skip(struct berth_conn *conn, size_t length);
static void plain_shut(struct berth_conn *conn);
static void plain_close(struct berth_conn *conn);

struct berth_conn *berth_conn_prepare(struct berth_loop *loop, int fd)
{
    struct berth_conn *conn = berth_alloc(sizeof(*conn));
    if (conn == NULL) {
        return NULL;
    }
    conn->loop = loop;
    conn->fd = fd;
    conn->ops = &berth_transport_plain;
    conn->post.deliver = adopt;
    berth_stat_add(&loop->stats.connections_open, 1);
    return conn;
}

struct berth_conn *berth_conn_create(struct berth_loop *loop, int fd,
                                     const struct berth_transport_ops *ops)
{
    struct berth_conn *conn = berth_conn_prepare(loop, fd);
    if (conn == NULL) {
        return NULL;
    }
    conn->ops = ops;
    if (!join(conn)) {
        berth_conn_discard(conn);
        return NULL;
    }
    return conn;
}

void berth_conn_discard(struct berth_conn *conn)
{
    conn->ops->close(conn);
    berth_stat_sub(&conn->loop->stats.connections_open, 1);
    berth_free(conn);
}

void berth_conn_event(struct berth_conn *conn, uint32_t events)
{
    if ((events & EPOLLIN) != 0) {
        conn->readable = true;
    }
    if ((events & EPOLLOUT) != 0) {
        conn->writable = true;
    }
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        conn->gone = true;
        conn->readable = true; /* its end can be read */
        conn->broken = conn->broken || (events & EPOLLERR) != 0;
    }
    berth_conn_run(conn);
}

void berth_conn_run(struct berth_conn *conn)
{
    enum berth_step next = BERTH_STEP_AGAIN;
    BERTH_ASSERT(!conn->running);
    conn->running = true;
    berth_list_remove(&conn->ready);
    for (int i = 0; next == BERTH_STEP_AGAIN; i++) {
        next = i < STEPS_MAX ? step(conn) : BERTH_STEP_LATER;
    }
    conn->running = false;
    if (next == BERTH_STEP_END) {
        conn_destroy(conn);
    } else if (next == BERTH_STEP_LATER) {
        berth_conn_wake(conn);
    }
}

void berth_conn_timeout(struct berth_timer *timer)
{
    struct berth_conn *conn = BERTH_CONTAINER_OF(timer, struct berth_conn, timer);
    struct berth_loop_stats *stats = &conn->loop->stats;
    switch (conn->state) {
    case BERTH_CONN_HEAD:
        if (berth_conn_idle(conn)) {
            conn->broken = true;
            break;
        }
        berth_stat_add(&stats->timeouts, 1);
        refuse(conn, 408, BERTH_TOO_SLOW, "the request's head took too long");
        break;
    case BERTH_CONN_BODY:
        berth_stat_add(&stats->timeouts, 1);
        refuse(conn, 408, BERTH_TOO_SLOW, "the body came too slowly");
        break;
    case BERTH_CONN_PAUSED:
        refuse(conn, 503, BERTH_UNAVAILABLE, "no room for the body within the time allowed");
        break;
    case BERTH_CONN_HANDSHAKE:
    case BERTH_CONN_WRITING:
        berth_stat_add(&stats->timeouts, 1);
        conn->broken = true;
        break;
    case BERTH_CONN_HANDLING:
    case BERTH_CONN_DRAINING:
    case BERTH_CONN_CLOSED:
        conn->broken = true;
        break;
    }
    berth_conn_run(conn);
}

void berth_conn_abort(struct berth_conn *conn)
{
    BERTH_ASSERT(!conn->running);
    conn_destroy(conn);
}

void berth_conn_wake(struct berth_conn *conn)
{
    if (!conn->running && !berth_list_contains(&conn->ready)) {
        berth_list_append(&conn->loop->ready, &conn->ready);
    }
}

bool berth_conn_idle(const struct berth_conn *conn)
{
    return conn->state == BERTH_CONN_HEAD && (conn->in == NULL || conn->in->at == conn->in->end);
}

void berth_conn_fail(struct berth_conn *conn, int status, const struct berth_err *err)
{
    if (conn->exchange == NULL) {
        conn->exchange = berth_exchange_create(conn);
    }
    berth_list_remove(&conn->waiting);
    if (conn->exchange == NULL || conn->exchange->answered) {
        conn->broken = true;
        return;
    }
    conn->linger = true;
    berth_answer_error(conn->exchange, status, err);
    berth_timer_clear(&conn->timer);
}

ssize_t berth_conn_read(struct berth_conn *conn, void *bytes, size_t length)
{
    ssize_t got = conn->ops->read(conn, bytes, length);
    if (got > 0) {
        berth_stat_add(&conn->loop->stats.bytes_in, (uint64_t)got);
        if ((size_t)got < length && conn->ops->short_read_drains) {
            conn->readable = conn->gone; /* an end is still to be read */
        }
    } else if (got == -EAGAIN) {
        conn->readable = false;
    } else {
        conn->gone = true;
        conn->broken = conn->broken || got < 0;
    }
    return got;
}

ssize_t berth_conn_fill(struct berth_conn *conn, struct berth_block *block)
{
    ssize_t got = berth_conn_read(conn, block->bytes + block->end, block->capacity - block->end);
    if (got > 0) {
        block->end += (uint32_t)got;
    }
    return got;
}

/* On the connection's own thread. */
static void adopt(struct berth_post *post)
{
    struct berth_conn *conn = BERTH_CONTAINER_OF(post, struct berth_conn, post);
    struct berth_http *http = conn->loop->http;
    if (atomic_load(&http->closing) || !join(conn)) { /* handed over behind the sweep */
        berth_stat_add(&conn->loop->stats.connections_refused, 1);
        berth_conn_discard(conn);
    }
}

static bool join(struct berth_conn *conn)
{
    struct berth_loop *loop = conn->loop;
    const struct berth_http *http = loop->http;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = conn};
    if (http->tls != NULL && berth_tls_attach(http->tls, conn) != BERTH_OK) {
        return false;
    }
    /* What is ready already is reported by the first wait. */
    if (conn->fd >= 0 && epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event) != 0) {
        return false;
    }
    berth_list_append(&loop->conns, &conn->link);
    berth_stat_add(&loop->stats.connections_total, 1);
    bool shakes = conn->ops->handshake != NULL;
    conn->state = shakes ? BERTH_CONN_HANDSHAKE : BERTH_CONN_HEAD;
    conn->writable = true;
    conn->t_mark_ns = loop->now_ns;
    berth_timer_set(loop, &conn->timer,
                    loop->now_ns +
                        (shakes ? http->options.head_timeout_ns : http->options.idle_timeout_ns));
    return true;
}

static enum berth_step step(struct berth_conn *conn)
{
    /* An answer was begun: whatever we waited for, it is written now. */
    if (conn->exchange != NULL && conn->exchange->answered && conn->state < BERTH_CONN_WRITING) {
        conn->linger = conn->linger || !conn->exchange->complete;
        if (conn->state == BERTH_CONN_PAUSED) {
            berth_list_remove(&conn->waiting);
            berth_stat_sub(&conn->loop->stats.paused, 1);
        }
        conn->state = BERTH_CONN_WRITING;
        conn->t_mark_ns = conn->loop->now_ns;
        conn->exchange->t_write_ns = conn->loop->now_ns;
        conn->exchange->written = 0; /* not counting 100-continue */
        berth_timer_clear(&conn->timer);
    }
    if (conn->broken) {
        return BERTH_STEP_END;
    }
    /* N5: who shuts its side no longer wants an answer, unless all of it is on its way. */
    if (conn->gone && (conn->state < BERTH_CONN_WRITING ||
                       (conn->state == BERTH_CONN_WRITING && conn->exchange->streaming))) {
        return BERTH_STEP_END;
    }
    switch (conn->state) {
    case BERTH_CONN_HANDSHAKE:
        return step_handshake(conn);
    case BERTH_CONN_HEAD:
        return step_head(conn);
    case BERTH_CONN_BODY:
        return berth_body_step(conn);
    case BERTH_CONN_PAUSED:
        return step_paused(conn);
    case BERTH_CONN_HANDLING:
        return step_handling(conn);
    case BERTH_CONN_WRITING:
        return step_writing(conn);
    case BERTH_CONN_DRAINING:
        return step_draining(conn);
    case BERTH_CONN_CLOSED:
        break;
    }
    return BERTH_STEP_END;
}

static enum berth_step step_handshake(struct berth_conn *conn)
{
    int result = conn->ops->handshake(conn);
    if (result == -EAGAIN) {
        return BERTH_STEP_WAIT;
    }
    if (result != 0) {
        return BERTH_STEP_END;
    }
    conn->state = BERTH_CONN_HEAD;
    conn->t_mark_ns = conn->loop->now_ns;
    return BERTH_STEP_AGAIN;
}

/* Looks at what is there, reads on if that is no whole head. */
static enum berth_step step_head(struct berth_conn *conn)
{
    struct berth_block *block = conn->in;
    const struct berth_http_options *options = &conn->loop->http->options;
    if (block != NULL && block->at < block->end) {
        struct berth_err err;
        int status = 400;
        enum berth_http1_result result = berth_http1_scan(&conn->scan, block->bytes + block->at,
                                                          block->end - block->at, &status, &err);
        if (conn->scan.at > options->head_bytes_max) {
            result = BERTH_HTTP1_WRONG;
            status = 431;
            berth_fail(&err, BERTH_INVALID, "the request's head is longer than %llu bytes",
                       (unsigned long long)options->head_bytes_max);
        }
        if (result == BERTH_HTTP1_DONE) {
            return begin(conn);
        }
        if (result == BERTH_HTTP1_WRONG) {
            berth_stat_add(&conn->loop->stats.parse_errors, 1);
            berth_conn_fail(conn, status, &err);
            return BERTH_STEP_AGAIN;
        }
    }
    if (conn->readable) {
        return read_head(conn);
    }
    bool idle = berth_conn_idle(conn);
    if (idle) {
        berth_block_give(conn->loop, conn->in);
        conn->in = NULL;
    }
    berth_timer_set(conn->loop, &conn->timer,
                    conn->t_mark_ns + (idle ? options->idle_timeout_ns : options->head_timeout_ns));
    return BERTH_STEP_WAIT;
}

static enum berth_step read_head(struct berth_conn *conn)
{
    bool idle = berth_conn_idle(conn);
    struct berth_block *block = room_for_head(conn);
    if (block == NULL) {
        return BERTH_STEP_END;
    }
    if (berth_conn_fill(conn, block) > 0 && idle) {
        conn->t_mark_ns = conn->loop->now_ns; /* the head's time begins */
    }
    return BERTH_STEP_AGAIN;
}

/* conn->in with room at its end: moved to the front, or a larger one. NULL: no memory. */
static struct berth_block *room_for_head(struct berth_conn *conn)
{
    struct berth_block *block = conn->in;
    if (block != NULL && block->end < block->capacity) {
        return block;
    }
    uint32_t length = block == NULL ? 0 : block->end - block->at;
    if (block != NULL && block->at > 0) {
        memmove(block->bytes, block->bytes + block->at, length);
        block->at = 0;
        block->end = length;
        return block;
    }
    /* A head that is longer than allowed is refused before more room is asked for. */
    struct berth_block *larger = berth_block_take(conn->loop, (size_t)length * 4);
    if (larger == NULL) {
        return NULL;
    }
    if (block != NULL) {
        memcpy(larger->bytes, block->bytes, length);
        larger->end = length;
        berth_block_give(conn->loop, block);
    }
    conn->in = larger;
    return larger;
}

/* A whole head is there. */
static enum berth_step begin(struct berth_conn *conn)
{
    struct berth_loop *loop = conn->loop;
    struct berth_block *block = conn->in;
    struct berth_exchange *exchange = berth_exchange_create(conn);
    struct berth_err err;
    int status = 400;
    if (exchange == NULL) {
        return BERTH_STEP_END;
    }
    char *head = block->bytes + block->at + conn->scan.start;
    size_t length = conn->scan.at - conn->scan.start;
    exchange->block = block;
    exchange->head_only = strncmp(head, "HEAD ", 5) == 0; /* of a refusal too */
    block->at += (uint32_t)conn->scan.at;
    conn->scan = (struct berth_http1_scan){0};
    conn->exchange = exchange;
    conn->linger = false;
    berth_timer_clear(&conn->timer);
    if (berth_http1_parse(head, length, &exchange->head, &status, &err) != BERTH_HTTP1_DONE) {
        exchange->head.field_count = 0;
        berth_stat_add(&loop->stats.parse_errors, 1);
        berth_conn_fail(conn, status, &err);
        return BERTH_STEP_AGAIN;
    }
    exchange->t_head_ns = loop->now_ns;
    exchange->has_body = exchange->head.chunked || exchange->head.content_length > 0;
    exchange->complete = !exchange->has_body;
    exchange->wire_left = exchange->head.content_length;
    exchange->keep_alive = exchange->head.keep_alive;
    exchange->seen = true;
    berth_stat_add(&loop->stats.requests, 1);
    berth_stat_add(&loop->stats.exchanges_open, 1);
    conn->state = BERTH_CONN_HANDLING;
    loop->http->options.handler.on_head(loop->http->options.handler.subject, exchange);
    return BERTH_STEP_AGAIN;
}

/* The loop retries; when it got room it makes the connection ready. */
static enum berth_step step_paused(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    if (berth_list_contains(&conn->waiting)) {
        return BERTH_STEP_WAIT;
    }
    uint64_t paused_ns = conn->loop->now_ns - exchange->t_paused_ns;
    exchange->paused_ns += paused_ns;
    exchange->t_body_ns += paused_ns;
    berth_stat_sub(&conn->loop->stats.paused, 1);
    conn->state = BERTH_CONN_BODY;
    conn->t_mark_ns = conn->loop->now_ns;
    return BERTH_STEP_AGAIN;
}

static enum berth_step step_handling(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    if (exchange->accepted && !exchange->body_begun) {
        exchange->body_begun = true;
        return berth_body_begin(conn);
    }
    return BERTH_STEP_WAIT;
}

static enum berth_step step_writing(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    if (conn->linger && conn->readable && !skip_input(conn, DRAIN_RUN_BYTES)) {
        conn->linger = false; /* its end, or more than we care to drop */
        conn->drained = DRAIN_BYTES_MAX;
    }
    /* Who sends all before it reads is waiting for us to go on: no new edge would come. */
    enum berth_step more = conn->linger && conn->readable ? BERTH_STEP_LATER : BERTH_STEP_WAIT;
    switch (berth_answer_write(conn)) {
    case BERTH_STEP_WAIT:
        berth_timer_set(conn->loop, &conn->timer,
                        conn->t_mark_ns + conn->loop->http->options.write_timeout_ns);
        return more;
    case BERTH_STEP_LATER:
        return BERTH_STEP_LATER;
    case BERTH_STEP_END:
        return BERTH_STEP_END;
    case BERTH_STEP_AGAIN:
        break;
    }
    if (exchange->streaming) {
        berth_timer_clear(&conn->timer);
        conn->t_mark_ns = conn->loop->now_ns;
        return more;
    }
    return end_exchange(conn);
}

/* The whole answer is with the kernel. */
static enum berth_step end_exchange(struct berth_conn *conn)
{
    struct berth_loop *loop = conn->loop;
    struct berth_exchange *exchange = conn->exchange;
    bool keep = exchange->keep_alive && exchange->complete && !conn->gone &&
                !atomic_load_explicit(&loop->http->closing, memory_order_relaxed);
    conn->exchange = NULL;
    berth_exchange_destroy(exchange, true);
    berth_timer_clear(&conn->timer);
    conn->t_mark_ns = loop->now_ns;
    if (keep) {
        conn->state = BERTH_CONN_HEAD;
        conn->linger = false;
        return BERTH_STEP_AGAIN;
    }
    bool unread = conn->in != NULL && conn->in->at < conn->in->end;
    berth_block_give(loop, conn->in);
    conn->in = NULL;
    if (conn->drained >= DRAIN_BYTES_MAX || !(conn->linger || unread || conn->readable)) {
        return BERTH_STEP_END;
    }
    conn->ops->shut(conn);
    conn->state = BERTH_CONN_DRAINING;
    berth_timer_set(loop, &conn->timer, loop->now_ns + DRAIN_NS);
    return BERTH_STEP_AGAIN;
}

/* Closing with bytes unread would reset the connection, and the client might lose the answer. */
static enum berth_step step_draining(struct berth_conn *conn)
{
    if (conn->readable && !skip_input(conn, DRAIN_RUN_BYTES)) {
        return BERTH_STEP_END;
    }
    return conn->readable ? BERTH_STEP_LATER : BERTH_STEP_WAIT;
}

/* false: nothing will come any more, or enough was dropped. */
static bool skip_input(struct berth_conn *conn, uint64_t bytes_max)
{
    uint64_t skipped = 0;
    while (conn->readable && skipped < bytes_max) {
        ssize_t got = conn->ops->skip(conn, (size_t)(bytes_max - skipped));
        if (got == -EAGAIN) {
            conn->readable = false;
            break;
        }
        if (got <= 0) {
            conn->gone = true;
            conn->broken = conn->broken || got < 0;
            return false;
        }
        skipped += (uint64_t)got;
    }
    conn->drained += skipped;
    berth_stat_add(&conn->loop->stats.bytes_in, skipped);
    return conn->drained < DRAIN_BYTES_MAX;
}

static void refuse(struct berth_conn *conn, int status, enum berth_code code, const char *message)
{
    struct berth_err err;
    berth_fail(&err, code, "%s", message);
    if (status == 503) {
        err.retry_after_ms = 1000;
    }
    berth_conn_fail(conn, status, &err);
}

static void conn_destroy(struct berth_conn *conn)
{
    struct berth_loop *loop = conn->loop;
    struct berth_exchange *exchange = conn->exchange;
    if (conn->state == BERTH_CONN_PAUSED) {
        berth_stat_sub(&loop->stats.paused, 1);
    }
    conn->state = BERTH_CONN_CLOSED;
    conn->running = true; /* what the handler does in on_close wakes nobody */
    conn->exchange = NULL;
    if (exchange != NULL) {
        if (exchange->seen && conn->gone) {
            berth_stat_add(&loop->stats.hangups, 1);
        }
        berth_exchange_destroy(exchange, false);
    }
    berth_list_remove(&conn->waiting);
    berth_list_remove(&conn->ready);
    berth_list_remove(&conn->link);
    berth_timer_remove(loop, &conn->timer);
    berth_block_give(loop, conn->in);
    /* Closing alone would not do: a process being started may hold a copy of the descriptor until
     * it executes its program, and so long the epoll set would tell of what is gone. */
    if (conn->fd >= 0) {
        (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    }
    conn->ops->close(conn);
    berth_stat_sub(&loop->stats.connections_open, 1);
    berth_free(conn);
}

static ssize_t plain_read(struct berth_conn *conn, void *bytes, size_t length)
{
    ssize_t got;
    do {
        got = recv(conn->fd, bytes, length, 0);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

static ssize_t plain_write(struct berth_conn *conn, const struct iovec *pieces, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = (size_t)count};
    ssize_t put;
    do {
        put = sendmsg(conn->fd, &message, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    return put < 0 ? -errno : put;
}

/* MSG_TRUNC on TCP drops without copying; the pieces all name the same memory. */
static ssize_t plain_skip(struct berth_conn *conn, size_t length)
{
    struct iovec pieces[SKIP_PIECES];
    struct msghdr message = {.msg_iov = pieces};
    ssize_t got;
    while (length > 0 && message.msg_iovlen < SKIP_PIECES) {
        size_t piece = length < BERTH_LOOP_SCRATCH_BYTES ? length : BERTH_LOOP_SCRATCH_BYTES;
        pieces[message.msg_iovlen++] = (struct iovec){.iov_base = conn->loop->scratch,
                                                      .iov_len = piece};
        length -= piece;
    }
    do {
        got = recvmsg(conn->fd, &message, MSG_TRUNC);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

static void plain_shut(struct berth_conn *conn)
{
    shutdown(conn->fd, SHUT_WR);
}

static void plain_close(struct berth_conn *conn)
{
    close(conn->fd);
}

const struct berth_transport_ops berth_transport_plain = {
    .read = plain_read,
    .write = plain_write,
    .skip = plain_skip,
    .shut = plain_shut,
    .close = plain_close,
    .short_read_drains = true,
};
