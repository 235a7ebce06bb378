/* http_body.c - how a request's body gets into its slab range.
 *
 * A body of known length and no coding is the case that counts: its range is taken at once, whole,
 * and the socket is read straight into it. Everything else (chunked, gzip, deflate) passes through
 * the connection's small input block, and its range grows by doubling; even there the inside of a
 * large chunk is read in place. Where the budget has no room the connection is simply not read on:
 * TCP slows the client down, and the loop asks again for it (N6).
 */
#include "net/conn.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"

#define FIRST_BYTES 65536 /* capacity of a body of unknown length */
#define OVERTAKING_BYTES_MAX 65536
#define RUN_BYTES (2 * UINT64_C(1048576)) /* read in one run; then the others have a turn */
#define IN_PLACE_BYTES 4096               /* that much left of a chunk is read in place */
#define RATE_GRACE_NS (30 * BERTH_NS_PER_S)

static enum berth_step want_room(struct berth_conn *conn, uint64_t bytes);
static enum berth_code take_room(struct berth_exchange *exchange, struct berth_err *err);
static bool admitted(struct berth_slabs *slabs, const struct berth_exchange *exchange);
static void send_continue(struct berth_conn *conn);
static enum berth_step read_known(struct berth_conn *conn, uint64_t *budget);
static enum berth_step read_framed(struct berth_conn *conn, uint64_t *budget);
static enum berth_step refill(struct berth_conn *conn);
static enum berth_step next_data(struct berth_conn *conn, uint64_t *length);
static enum berth_step store(struct berth_conn *conn, uint64_t length);
static enum berth_step store_inflated(struct berth_conn *conn, uint64_t length, bool last);
static enum berth_step grow(struct berth_conn *conn);
static void consume(struct berth_conn *conn, uint64_t bytes);
static void progressed(struct berth_conn *conn, uint64_t bytes);
static enum berth_step report(struct berth_conn *conn, uint64_t before, enum berth_step next);
static enum berth_step finish(struct berth_conn *conn);
static enum berth_step refuse(struct berth_conn *conn, int status, const struct berth_err *err);
static enum berth_step refuse_large(struct berth_conn *conn);
static char *room_at(struct berth_exchange *exchange);

enum berth_step berth_body_begin(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    const struct berth_http1_head *head = &exchange->head;
    const struct berth_http_options *options = &conn->loop->http->options;
    struct berth_err err;
    if (exchange->bytes_max > options->body_bytes_max) {
        exchange->bytes_max = options->body_bytes_max;
    }
    exchange->t_body_ns = conn->loop->now_ns;
    conn->t_mark_ns = conn->loop->now_ns;
    if (!exchange->has_body) {
        return finish(conn);
    }
    if (head->coding == BERTH_HTTP1_CODING_UNKNOWN) {
        berth_fail_field(&err, BERTH_MEDIA, "Content-Encoding",
                         "the body's Content-Encoding is neither gzip nor deflate");
        return refuse(conn, 415, &err);
    }
    if (head->coding != BERTH_HTTP1_IDENTITY) {
        exchange->inflate = berth_inflate_create(head->coding == BERTH_HTTP1_GZIP);
        if (exchange->inflate == NULL) {
            berth_fail(&err, BERTH_UNAVAILABLE, "no memory to inflate the body");
            return refuse(conn, 503, &err);
        }
    } else if (head->content_length > exchange->bytes_max) {
        return refuse_large(conn);
    }
    conn->state = BERTH_CONN_BODY;
    if (head->coding == BERTH_HTTP1_IDENTITY && !head->chunked) {
        return want_room(conn, head->content_length);
    }
    if (exchange->bytes_max == 0) {
        return refuse_large(conn);
    }
    return want_room(conn, exchange->bytes_max < FIRST_BYTES ? exchange->bytes_max : FIRST_BYTES);
}

enum berth_step berth_body_step(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    uint64_t before = exchange->body.length;
    uint64_t budget = RUN_BYTES;
    enum berth_step next = BERTH_STEP_AGAIN;
    if (conn->interim > 0 && berth_answer_write(conn) == BERTH_STEP_END) {
        return BERTH_STEP_END;
    }
    bool known = exchange->inflate == NULL && !exchange->head.chunked;
    while (next == BERTH_STEP_AGAIN && conn->state == BERTH_CONN_BODY && !exchange->complete &&
           !exchange->answered && !conn->broken) {
        next = known ? read_known(conn, &budget) : read_framed(conn, &budget);
    }
    next = report(conn, before, next);
    if (next != BERTH_STEP_WAIT || conn->state != BERTH_CONN_BODY) {
        return next;
    }
    const struct berth_http_options *options = &conn->loop->http->options;
    uint64_t elapsed_ns = conn->loop->now_ns - exchange->t_body_ns;
    if (elapsed_ns > RATE_GRACE_NS &&
        exchange->wire_read / (elapsed_ns / BERTH_NS_PER_S) < options->body_rate_min) {
        struct berth_err err;
        berth_stat_add(&conn->loop->stats.timeouts, 1);
        berth_fail(&err, BERTH_TOO_SLOW, "the body came more slowly than %llu bytes a second",
                   (unsigned long long)options->body_rate_min);
        return refuse(conn, 408, &err);
    }
    berth_timer_set(conn->loop, &conn->timer, conn->t_mark_ns + options->body_timeout_ns);
    return BERTH_STEP_WAIT;
}

bool berth_body_retry(struct berth_conn *conn)
{
    struct berth_err err;
    enum berth_code code = take_room(conn->exchange, &err);
    if (code == BERTH_BUSY) {
        return false;
    }
    if (code == BERTH_OK) {
        send_continue(conn);
    } else {
        berth_conn_fail(conn, code == BERTH_TOO_LARGE ? 413 : 503, &err);
    }
    return true;
}

void berth_body_finish(struct berth_exchange *exchange)
{
    if (!exchange->taken) {
        berth_slabs_give(exchange->conn->loop->http->options.slabs, &exchange->range);
    }
    berth_inflate_destroy(exchange->inflate);
    exchange->inflate = NULL;
}

/* Makes the range's capacity `bytes`, at once or by waiting for it. */
static enum berth_step want_room(struct berth_conn *conn, uint64_t bytes)
{
    struct berth_exchange *exchange = conn->exchange;
    struct berth_loop *loop = conn->loop;
    uint64_t allowed_ns = loop->http->options.admit_timeout_ns;
    struct berth_err err;
    exchange->wanted = bytes;
    /* Who comes later does not overtake, but for bodies so small that they hold up nobody, and
     * those who hold a part already: it comes back only when they are done. */
    bool holds = exchange->range.slab != 0;
    bool may = holds || bytes <= OVERTAKING_BYTES_MAX || berth_list_empty(&loop->paused);
    enum berth_code code = may ? take_room(exchange, &err) : BERTH_BUSY;
    if (code == BERTH_OK) {
        send_continue(conn);
        return BERTH_STEP_AGAIN;
    }
    if (code != BERTH_BUSY) {
        return refuse(conn, code == BERTH_TOO_LARGE ? 413 : 503, &err);
    }
    if (berth_list_empty(&loop->paused)) {
        loop->t_retry_ns = loop->now_ns;
    }
    berth_list_insert_before(holds ? loop->paused.next : &loop->paused, &conn->waiting);
    berth_stat_add(&loop->stats.paused, 1);
    conn->state = BERTH_CONN_PAUSED;
    exchange->t_paused_ns = loop->now_ns;
    uint64_t left_ns = allowed_ns > exchange->paused_ns ? allowed_ns - exchange->paused_ns : 0;
    berth_timer_set(loop, &conn->timer, loop->now_ns + left_ns);
    return BERTH_STEP_WAIT;
}

static enum berth_code take_room(struct berth_exchange *exchange, struct berth_err *err)
{
    struct berth_slabs *slabs = exchange->conn->loop->http->options.slabs;
    enum berth_code code;
    if (!admitted(slabs, exchange)) {
        code = berth_fail(err, BERTH_BUSY, "no room for the body now");
    } else if (exchange->range.slab != 0) {
        code = berth_slabs_resize(slabs, &exchange->range, exchange->wanted, err);
    } else if (exchange->private_slab) {
        code = berth_slabs_take_private(slabs, exchange->wanted, &exchange->range, err);
    } else {
        code = berth_slabs_take(slabs, exchange->wanted, &exchange->range, err);
    }
    if (code == BERTH_OK) { /* it may have moved */
        uint64_t length = exchange->body.length;
        exchange->body = exchange->range;
        exchange->body.length = length;
    }
    return code;
}

/* As berth_slabs_admits, which does not know that what is out may be this body's own. */
static bool admitted(struct berth_slabs *slabs, const struct berth_exchange *exchange)
{
    struct berth_slabs_stats stats;
    if (berth_slabs_admits(slabs, exchange->wanted - exchange->range.length)) {
        return true;
    }
    berth_slabs_stats(slabs, &stats);
    return stats.bytes_out <= exchange->range.length;
}

/* Only once there is room, and not to a client that did not wait for it. */
static void send_continue(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    if (exchange->continued) {
        return;
    }
    exchange->continued = true;
    if (exchange->head.expect_continue && conn->in->at == conn->in->end) {
        conn->interim = BERTH_CONTINUE_LENGTH;
        berth_stat_add(&conn->loop->stats.continues, 1);
    }
}

static enum berth_step read_known(struct berth_conn *conn, uint64_t *budget)
{
    struct berth_exchange *exchange = conn->exchange;
    struct berth_block *block = conn->in;
    uint64_t buffered = block->end - block->at;
    if (buffered > 0) {
        uint64_t length = buffered < exchange->wire_left ? buffered : exchange->wire_left;
        memcpy(room_at(exchange), block->bytes + block->at, length);
        block->at += (uint32_t)length;
        exchange->wire_left -= length;
        exchange->body.length += length;
        progressed(conn, length);
    } else if (!conn->readable) {
        return BERTH_STEP_WAIT;
    } else {
        uint64_t length = exchange->wire_left < *budget ? exchange->wire_left : *budget;
        ssize_t got = berth_conn_read(conn, room_at(exchange), length);
        if (got <= 0) {
            return got == -EAGAIN ? BERTH_STEP_WAIT : BERTH_STEP_END;
        }
        exchange->wire_left -= (uint64_t)got;
        exchange->body.length += (uint64_t)got;
        progressed(conn, (uint64_t)got);
        *budget -= (uint64_t)got;
    }
    exchange->complete = exchange->wire_left == 0;
    return *budget == 0 && !exchange->complete ? BERTH_STEP_LATER : BERTH_STEP_AGAIN;
}

/* Chunked or compressed. */
static enum berth_step read_framed(struct berth_conn *conn, uint64_t *budget)
{
    struct berth_exchange *exchange = conn->exchange;
    uint64_t length = 0;
    uint64_t before = exchange->body.length;
    enum berth_step next = next_data(conn, &length);
    if (next != BERTH_STEP_AGAIN || exchange->answered || conn->broken) {
        return next;
    }
    bool last = length == 0; /* the wire has ended */
    if (exchange->inflate != NULL) {
        next = store_inflated(conn, length, last);
    } else if (last) {
        exchange->complete = true;
    } else {
        next = store(conn, length);
    }
    uint64_t made = exchange->body.length - before;
    *budget -= made < *budget ? made : *budget;
    if (next == BERTH_STEP_AGAIN && *budget == 0 && !exchange->complete) {
        return BERTH_STEP_LATER;
    }
    return next;
}

/* Finds the next bytes of the body: *length of them, in conn->in unless that is empty and a chunk
 * is to be read in place. 0: there are no more. */
static enum berth_step next_data(struct berth_conn *conn, uint64_t *length)
{
    struct berth_exchange *exchange = conn->exchange;
    struct berth_err err;
    for (;;) {
        const struct berth_block *block = conn->in;
        uint64_t buffered = block->end - block->at;
        if (!exchange->head.chunked) {
            *length = buffered < exchange->wire_left ? buffered : exchange->wire_left;
            if (*length > 0 || exchange->wire_left == 0) {
                return BERTH_STEP_AGAIN;
            }
        } else {
            size_t used = 0;
            enum berth_http1_result result = berth_http1_chunk(
                &exchange->chunks, block->bytes + block->at, buffered, &used, &err);
            conn->in->at += (uint32_t)used;
            buffered -= used;
            if (result == BERTH_HTTP1_WRONG) {
                berth_stat_add(&conn->loop->stats.parse_errors, 1);
                return refuse(conn, 400, &err);
            }
            if (result == BERTH_HTTP1_DONE) {
                *length = 0;
                return BERTH_STEP_AGAIN;
            }
            if (result == BERTH_HTTP1_DATA) {
                uint64_t left = exchange->chunks.left;
                *length = buffered < left ? buffered : left;
                if (*length > 0) {
                    return BERTH_STEP_AGAIN;
                }
                if (left >= IN_PLACE_BYTES && exchange->inflate == NULL && conn->readable) {
                    *length = left;
                    return BERTH_STEP_AGAIN;
                }
            }
        }
        enum berth_step next = refill(conn);
        if (next != BERTH_STEP_AGAIN) {
            return next;
        }
    }
}

/* Reads into an empty conn->in, which must not be the block that holds the head. */
static enum berth_step refill(struct berth_conn *conn)
{
    if (!conn->readable) {
        return BERTH_STEP_WAIT;
    }
    if (conn->in == conn->exchange->block) {
        struct berth_block *block = berth_block_take(conn->loop, 1);
        if (block == NULL) {
            return BERTH_STEP_END;
        }
        conn->in = block;
    }
    conn->in->at = 0;
    conn->in->end = 0;
    ssize_t got = berth_conn_fill(conn, conn->in);
    if (got <= 0) {
        return got == -EAGAIN ? BERTH_STEP_WAIT : BERTH_STEP_END;
    }
    return BERTH_STEP_AGAIN;
}

/* Body bytes as they are, from conn->in or from the socket. */
static enum berth_step store(struct berth_conn *conn, uint64_t length)
{
    struct berth_exchange *exchange = conn->exchange;
    struct berth_block *block = conn->in;
    uint64_t room = exchange->range.length - exchange->body.length;
    if (room == 0) {
        return grow(conn);
    }
    length = length < room ? length : room;
    if (block->at < block->end) {
        memcpy(room_at(exchange), block->bytes + block->at, length);
    } else {
        ssize_t got = berth_conn_read(conn, room_at(exchange), length);
        if (got <= 0) {
            return got == -EAGAIN ? BERTH_STEP_WAIT : BERTH_STEP_END;
        }
        length = (uint64_t)got;
        exchange->body.length += length;
        berth_http1_chunk_skip(&exchange->chunks, length);
        progressed(conn, length);
        return BERTH_STEP_AGAIN;
    }
    exchange->body.length += length;
    consume(conn, length);
    return BERTH_STEP_AGAIN;
}

static enum berth_step store_inflated(struct berth_conn *conn, uint64_t length, bool last)
{
    struct berth_exchange *exchange = conn->exchange;
    struct berth_err err;
    char beyond;
    uint64_t room = exchange->range.length - exchange->body.length;
    bool full = room == 0 && exchange->range.length == exchange->bytes_max;
    if (room == 0 && !full) {
        return grow(conn);
    }
    struct berth_inflate_io io = {
        .in = conn->in->bytes + conn->in->at,
        .in_length = length,
        .out = full ? &beyond : room_at(exchange), /* full: is there one byte too many? */
        .out_length = full ? 1 : room,
    };
    enum berth_code code = berth_inflate_run(exchange->inflate, &io, &err);
    if (code != BERTH_OK) {
        return refuse(conn, berth_code_http(code), &err);
    }
    if (full && io.out_made > 0) {
        return refuse_large(conn);
    }
    exchange->body.length += io.out_made;
    consume(conn, io.in_used);
    if (!last || (io.out_made == io.out_length && !berth_inflate_done(exchange->inflate))) {
        return BERTH_STEP_AGAIN; /* there may be output that found no room */
    }
    if (!berth_inflate_done(exchange->inflate)) {
        berth_fail_field(&err, BERTH_INVALID, "Content-Encoding", "the compressed body is cut off");
        return refuse(conn, 400, &err);
    }
    exchange->complete = true;
    return BERTH_STEP_AGAIN;
}

static enum berth_step grow(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    uint64_t capacity = exchange->range.length;
    if (capacity >= exchange->bytes_max) {
        return refuse_large(conn);
    }
    return want_room(conn, capacity > exchange->bytes_max / 2 ? exchange->bytes_max : capacity * 2);
}

/* Bytes of the body are used up from conn->in. */
static void consume(struct berth_conn *conn, uint64_t bytes)
{
    struct berth_exchange *exchange = conn->exchange;
    if (bytes == 0) {
        return;
    }
    conn->in->at += (uint32_t)bytes;
    if (exchange->head.chunked) {
        berth_http1_chunk_skip(&exchange->chunks, bytes);
    } else {
        exchange->wire_left -= bytes;
    }
    progressed(conn, bytes);
}

static void progressed(struct berth_conn *conn, uint64_t bytes)
{
    conn->exchange->wire_read += bytes;
    conn->t_mark_ns = conn->loop->now_ns;
}

/* Tells the handler what came in this run, and that it was all. */
static enum berth_step report(struct berth_conn *conn, uint64_t before, enum berth_step next)
{
    struct berth_exchange *exchange = conn->exchange;
    const struct berth_http_handler *handler = &conn->loop->http->options.handler;
    if (next == BERTH_STEP_END || conn->broken) {
        return BERTH_STEP_END;
    }
    if (exchange->answered) {
        return BERTH_STEP_AGAIN;
    }
    if (exchange->complete) {
        return finish(conn);
    }
    if (exchange->body.length > before && handler->on_body != NULL) {
        handler->on_body(handler->subject, exchange, exchange->body.length);
        if (exchange->answered) {
            return BERTH_STEP_AGAIN;
        }
    }
    return next;
}

/* All of it is there: the range becomes as long as the body. */
static enum berth_step finish(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    const struct berth_http_handler *handler = &conn->loop->http->options.handler;
    struct berth_slabs *slabs = conn->loop->http->options.slabs;
    uint64_t length = exchange->body.length;
    struct berth_err err;
    if (length == 0) {
        berth_slabs_give(slabs, &exchange->range);
    } else if (length < exchange->range.length) {
        enum berth_code code = berth_slabs_resize(slabs, &exchange->range, length, &err);
        if (code != BERTH_OK) {
            return refuse(conn, 503, &err);
        }
    }
    exchange->body = exchange->range;
    exchange->complete = true;
    berth_inflate_destroy(exchange->inflate);
    exchange->inflate = NULL;
    berth_timer_clear(&conn->timer);
    conn->state = BERTH_CONN_HANDLING;
    if (length > 0 && handler->on_body != NULL) {
        handler->on_body(handler->subject, exchange, length);
    }
    if (!exchange->answered && handler->on_end != NULL) {
        handler->on_end(handler->subject, exchange);
    }
    return BERTH_STEP_AGAIN;
}

static enum berth_step refuse(struct berth_conn *conn, int status, const struct berth_err *err)
{
    berth_conn_fail(conn, status, err);
    return BERTH_STEP_AGAIN;
}

static enum berth_step refuse_large(struct berth_conn *conn)
{
    struct berth_err err;
    berth_fail(&err, BERTH_TOO_LARGE, "the body is longer than %llu bytes",
               (unsigned long long)conn->exchange->bytes_max);
    return refuse(conn, 413, &err);
}

/* Where the next byte goes. */
static char *room_at(struct berth_exchange *exchange)
{
    char *start = berth_slabs_pointer(exchange->conn->loop->http->options.slabs, &exchange->range);
    return start + exchange->body.length;
}
