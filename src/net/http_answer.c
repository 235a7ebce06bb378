/* http_answer.c - exchanges, and the bytes of their answers.
 *
 * An answer is head, text and ranges, written by one writev where the socket takes it; nothing is
 * copied but the head. A stream's head, chunks and end are gathered in one buffer, so that what a
 * turn of the loop brings goes out in one call. Exchanges are pooled with their head's buffer: a
 * request costs no allocation here.
 */
#include "net/conn.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/log.h"

#define EXCHANGES_KEPT 256
#define OUT_KEPT_BYTES 16384
#define ARENA_BYTES_MAX (256 * (size_t)1048576)
#define STREAM_BYTES_MAX (8 * (size_t)1048576) /* written by nobody yet */
#define PIECES 32
#define RATE_GRACE_NS (30 * BERTH_NS_PER_S)

static const char continue_line[] = "HTTP/1.1 100 Continue\r\n\r\n";
_Static_assert(sizeof(continue_line) - 1 == BERTH_CONTINUE_LENGTH, "as in conn.h");

static void compose_head(struct berth_exchange *exchange, const struct berth_http_answer *answer,
                         bool sized, uint64_t length);
static void put_header(struct berth_buf *out, const char *name, const char *value);
static void put_hex(struct berth_buf *out, uint64_t number);
static bool header_ok(const struct berth_http_header *header);
static bool bodyless(int status);
static bool take_pieces(struct berth_exchange *exchange, const struct berth_http_answer *answer);
static void drop_answer(const struct berth_http_answer *answer);
static void use_up_body(struct berth_exchange *exchange);
static void put_chunk(struct berth_exchange *exchange, const char *bytes, size_t length);
static void pushed(struct berth_exchange *exchange);
static int gather(struct berth_conn *conn, struct iovec *pieces);
static void advance(struct berth_conn *conn, size_t bytes);
static bool too_slow(struct berth_conn *conn);
static const void *piece_at(struct berth_exchange *exchange, size_t piece, size_t *length);
static const char *reason_of(int status);

struct berth_exchange *berth_exchange_create(struct berth_conn *conn)
{
    struct berth_loop *loop = conn->loop;
    struct berth_exchange *exchange = loop->exchanges_free;
    if (exchange != NULL) {
        struct berth_buf out = exchange->out;
        loop->exchanges_free = exchange->next;
        loop->exchange_count--;
        memset(exchange, 0, offsetof(struct berth_exchange, head));
        exchange->out = out;
    } else {
        exchange = berth_alloc(sizeof(*exchange));
        if (exchange == NULL) {
            return NULL;
        }
    }
    exchange->conn = conn;
    exchange->head.method = exchange->head.path = exchange->head.query = "";
    exchange->head.field_count = 0;
    exchange->head.version_minor = 1;
    berth_arena_init(&exchange->arena, ARENA_BYTES_MAX);
    return exchange;
}

void berth_exchange_release(struct berth_exchange *exchange)
{
    void (*release)(void *subject) = exchange->release;
    exchange->release = NULL;
    if (release != NULL) {
        release(exchange->release_subject);
    }
}

void berth_exchange_destroy(struct berth_exchange *exchange, bool answered)
{
    struct berth_conn *conn = exchange->conn;
    struct berth_loop *loop = conn->loop;
    const struct berth_http_handler *handler = &loop->http->options.handler;
    exchange->answered = true; /* too late for one now */
    berth_exchange_release(exchange);
    if (exchange->seen) {
        berth_stat_sub(&loop->stats.exchanges_open, 1);
        if (handler->on_close != NULL) {
            handler->on_close(handler->subject, exchange, answered);
        }
    }
    berth_body_finish(exchange);
    berth_buf_finish(&exchange->text);
    berth_arena_finish(&exchange->arena);
    if (exchange->block != conn->in) {
        berth_block_give(loop, exchange->block);
    }
    berth_buf_clear(&exchange->out);
    if (loop->exchange_count >= EXCHANGES_KEPT) {
        berth_buf_finish(&exchange->out);
        berth_free(exchange);
        return;
    }
    if (exchange->out.capacity > OUT_KEPT_BYTES || exchange->out.failed) {
        berth_buf_finish(&exchange->out);
    }
    exchange->next = loop->exchanges_free;
    loop->exchanges_free = exchange;
    loop->exchange_count++;
}

void berth_http_answer(struct berth_exchange *exchange, const struct berth_http_answer *answer)
{
    if (exchange->answered) {
        drop_answer(answer);
        return;
    }
    if (answer->text != NULL && !berth_buf_ok(answer->text)) {
        struct berth_err err;
        berth_fail(&err, BERTH_UNAVAILABLE, "no memory for the answer");
        drop_answer(answer);
        berth_answer_error(exchange, 503, &err);
        return;
    }
    uint64_t length = answer->text == NULL ? 0 : answer->text->length;
    for (size_t i = 0; i < answer->range_count; i++) {
        length += answer->ranges[i].length;
    }
    exchange->answered = true;
    exchange->status = answer->status;
    use_up_body(exchange);
    compose_head(exchange, answer, !bodyless(answer->status), length);
    exchange->failed = !take_pieces(exchange, answer) || !berth_buf_ok(&exchange->out);
    if (exchange->head_only || bodyless(answer->status)) {
        berth_buf_finish(&exchange->text);
        exchange->range_count = 0;
        berth_exchange_release(exchange);
    }
    berth_conn_wake(exchange->conn);
}

void berth_http_stream_begin(struct berth_exchange *exchange, const struct berth_http_answer *head)
{
    if (exchange->answered) {
        drop_answer(head);
        return;
    }
    exchange->answered = true;
    exchange->streaming = true;
    exchange->is_stream = true;
    exchange->status = head->status;
    exchange->stream_chunked = exchange->head.version_minor == 1;
    exchange->keep_alive = exchange->keep_alive && exchange->stream_chunked;
    use_up_body(exchange);
    compose_head(exchange, head, false, 0);
    if (head->text != NULL) {
        put_chunk(exchange, berth_buf_text(head->text), head->text->length);
    }
    drop_answer(head);
    pushed(exchange);
}

void berth_http_stream_chunk(struct berth_exchange *exchange, struct berth_buf *chunk)
{
    if (exchange->streaming) {
        exchange->failed = exchange->failed || !berth_buf_ok(chunk);
        put_chunk(exchange, berth_buf_text(chunk), chunk->length);
        pushed(exchange);
    }
    berth_buf_finish(chunk);
}

void berth_http_stream_end(struct berth_exchange *exchange)
{
    if (!exchange->streaming) {
        return;
    }
    exchange->streaming = false;
    if (exchange->stream_chunked && !exchange->head_only && !bodyless(exchange->status)) {
        berth_buf_puts(&exchange->out, "0\r\n\r\n");
    }
    pushed(exchange);
}

bool berth_http_answered(const struct berth_exchange *exchange)
{
    return exchange->answered;
}

int berth_http_status(const struct berth_exchange *exchange)
{
    return exchange->status;
}

uint64_t berth_http_written(const struct berth_exchange *exchange)
{
    return exchange->written;
}

void berth_answer_error(struct berth_exchange *exchange, int status, const struct berth_err *err)
{
    const struct berth_http_handler *handler = &exchange->conn->loop->http->options.handler;
    struct berth_buf text = {0};
    char seconds[16];
    struct berth_http_header headers[] = {
        {"x-should-retry", err->retry_after_ms != 0 ? "true" : "false"},
        {"Retry-After", seconds},
    };
    struct berth_http_answer answer = {
        .status = status, .headers = headers, .header_count = 1, .text = &text, .close = true};
    if (handler->error_body != NULL) {
        answer.content_type = handler->error_body(handler->subject, exchange, err, &text);
    } else {
        answer.content_type = "text/plain; charset=utf-8";
        berth_buf_puts(&text, err->msg);
        berth_buf_puts(&text, "\n");
    }
    if (!berth_buf_ok(&text)) { /* the status alone, then */
        berth_buf_finish(&text);
        answer.content_type = NULL;
    }
    if (err->retry_after_ms != 0) {
        snprintf(seconds, sizeof(seconds), "%u", (err->retry_after_ms + 999) / 1000);
        answer.header_count = 2;
    }
    berth_http_answer(exchange, &answer);
    berth_buf_finish(&text);
}

enum berth_step berth_answer_write(struct berth_conn *conn)
{
    struct berth_exchange *exchange = conn->exchange;
    struct iovec pieces[PIECES];
    if (exchange->failed) {
        return BERTH_STEP_END;
    }
    for (;;) {
        int count = gather(conn, pieces);
        if (count == 0) {
            berth_exchange_release(exchange);
            return BERTH_STEP_AGAIN;
        }
        if (!conn->writable) {
            return too_slow(conn) ? BERTH_STEP_END : BERTH_STEP_WAIT;
        }
        ssize_t put = conn->ops->write(conn, pieces, count);
        if (put == -EAGAIN) {
            conn->writable = false;
            continue;
        }
        if (put <= 0) {
            conn->gone = true;
            conn->broken = true;
            return BERTH_STEP_END;
        }
        berth_stat_add(&conn->loop->stats.bytes_out, (uint64_t)put);
        exchange->written += (uint64_t)put;
        conn->t_mark_ns = conn->loop->now_ns;
        advance(conn, (size_t)put);
    }
}

/* Does the client take a whole answer more slowly than it may? Streams come as they are made. */
static bool too_slow(struct berth_conn *conn)
{
    const struct berth_exchange *exchange = conn->exchange;
    uint64_t elapsed_ns = conn->loop->now_ns - exchange->t_write_ns;
    if (!exchange->answered || exchange->is_stream || elapsed_ns <= RATE_GRACE_NS ||
        exchange->written / (elapsed_ns / BERTH_NS_PER_S) >=
            conn->loop->http->options.body_rate_min) {
        return false;
    }
    berth_stat_add(&conn->loop->stats.timeouts, 1);
    return true;
}

/* sized: with Content-Length; else chunked where there is a body at all. */
static void compose_head(struct berth_exchange *exchange, const struct berth_http_answer *answer,
                         bool sized, uint64_t length)
{
    struct berth_buf *out = &exchange->out;
    struct berth_loop *loop = exchange->conn->loop;
    if (answer->close || !exchange->complete ||
        atomic_load_explicit(&loop->http->closing, memory_order_relaxed)) {
        exchange->keep_alive = false;
    }
    berth_buf_clear(out);
    berth_buf_puts(out, "HTTP/1.1 ");
    berth_buf_put_u64(out, (uint64_t)answer->status);
    berth_buf_puts(out, " ");
    bool own = answer->reason != NULL && answer->reason[strcspn(answer->reason, "\r\n")] == '\0';
    berth_buf_puts(out, own ? answer->reason : reason_of(answer->status));
    berth_buf_puts(out, "\r\n");
    put_header(out, "Date", berth_loop_date(loop));
    if (answer->content_type != NULL) {
        struct berth_http_header type = {"Content-Type", answer->content_type};
        if (header_ok(&type)) {
            put_header(out, type.name, type.value);
        }
    }
    for (size_t i = 0; i < answer->header_count; i++) {
        if (header_ok(&answer->headers[i])) {
            put_header(out, answer->headers[i].name, answer->headers[i].value);
        }
    }
    if (sized) {
        berth_buf_puts(out, "Content-Length: ");
        berth_buf_put_u64(out, length);
        berth_buf_puts(out, "\r\n");
    } else if (exchange->streaming && exchange->stream_chunked && !bodyless(answer->status)) {
        put_header(out, "Transfer-Encoding", "chunked");
    }
    if (!exchange->keep_alive) {
        put_header(out, "Connection", "close");
    } else if (exchange->head.version_minor == 0) {
        put_header(out, "Connection", "keep-alive");
    }
    berth_buf_puts(out, "\r\n");
}

static void put_header(struct berth_buf *out, const char *name, const char *value)
{
    berth_buf_puts(out, name);
    berth_buf_append(out, ": ", 2);
    berth_buf_puts(out, value);
    berth_buf_append(out, "\r\n", 2);
}

static void put_hex(struct berth_buf *out, uint64_t number)
{
    char digits[16];
    size_t at = sizeof(digits);
    do {
        digits[--at] = "0123456789abcdef"[number % 16];
        number /= 16;
    } while (number != 0);
    berth_buf_append(out, digits + at, sizeof(digits) - at);
}

/* What a handler hands on from a client's request or a model must not end the line, and how the
 * answer ends is said here alone. */
static bool header_ok(const struct berth_http_header *header)
{
    static const char *const ours[] = {"Content-Length", "Transfer-Encoding", "Connection", "Date"};
    bool ok = header->name != NULL && header->value != NULL && berth_http1_is_token(header->name);
    for (size_t i = 0; ok && i < BERTH_COUNT_OF(ours); i++) {
        ok = strcasecmp(header->name, ours[i]) != 0;
    }
    for (const char *at = ok ? header->value : ""; *at != '\0'; at++) {
        unsigned char byte = (unsigned char)*at;
        ok = ok && (byte >= 0x20 || byte == '\t') && byte != 0x7F;
    }
    if (!ok) {
        berth_log_warn("net", 0, "answer header left out: name=%s",
                       header->name == NULL ? "" : header->name);
    }
    return ok;
}

static bool bodyless(int status)
{
    return status < 200 || status == 204 || status == 304;
}

/* Takes text and ranges over. false: no memory; they are dropped. */
static bool take_pieces(struct berth_exchange *exchange, const struct berth_http_answer *answer)
{
    exchange->release = answer->release;
    exchange->release_subject = answer->subject;
    if (answer->text != NULL) {
        exchange->text = *answer->text;
        *answer->text = (struct berth_buf){0};
    }
    exchange->ranges = exchange->ranges_inline;
    if (answer->range_count > BERTH_ANSWER_RANGES_INLINE) {
        size_t bytes;
        exchange->ranges = berth_mul_size(answer->range_count, sizeof(*exchange->ranges), &bytes)
                               ? berth_arena_alloc(&exchange->arena, bytes)
                               : NULL;
        if (exchange->ranges == NULL) {
            return false;
        }
    }
    if (answer->range_count > 0) {
        memcpy(exchange->ranges, answer->ranges, answer->range_count * sizeof(*exchange->ranges));
    }
    exchange->range_count = answer->range_count;
    return true;
}

static void drop_answer(const struct berth_http_answer *answer)
{
    if (answer->text != NULL) {
        berth_buf_finish(answer->text);
    }
    if (answer->release != NULL) {
        answer->release(answer->subject);
    }
}

/* A refused body that is here already is used up, so that the connection can live on. */
static void use_up_body(struct berth_exchange *exchange)
{
    struct berth_block *block = exchange->conn->in;
    if (exchange->complete || exchange->body_begun || exchange->head.chunked || block == NULL ||
        block->end - block->at < exchange->wire_left) {
        return;
    }
    block->at += (uint32_t)exchange->wire_left;
    exchange->wire_left = 0;
    exchange->complete = true;
}

static void put_chunk(struct berth_exchange *exchange, const char *bytes, size_t length)
{
    struct berth_buf *out = &exchange->out;
    if (length == 0 || exchange->head_only || bodyless(exchange->status)) {
        return;
    }
    if (exchange->piece_done > out->length / 2) { /* what is written makes room, now and then */
        memmove(out->bytes, out->bytes + exchange->piece_done, out->length - exchange->piece_done);
        out->length -= exchange->piece_done;
        exchange->piece_done = 0;
    }
    if (out->length - exchange->piece_done + length > STREAM_BYTES_MAX) {
        exchange->failed = true;
        return;
    }
    if (exchange->stream_chunked) {
        put_hex(out, length);
        berth_buf_append(out, "\r\n", 2);
    }
    berth_buf_append(out, bytes, length);
    if (exchange->stream_chunked) {
        berth_buf_append(out, "\r\n", 2);
    }
}

static void pushed(struct berth_exchange *exchange)
{
    exchange->failed = exchange->failed || !berth_buf_ok(&exchange->out);
    berth_conn_wake(exchange->conn);
}

/* What is to be written next. */
static int gather(struct berth_conn *conn, struct iovec *pieces)
{
    struct berth_exchange *exchange = conn->exchange;
    int count = 0;
    if (conn->interim > 0) {
        pieces[count++] = (struct iovec){.iov_base = (char *)continue_line + BERTH_CONTINUE_LENGTH -
                                                     conn->interim,
                                         .iov_len = conn->interim};
    }
    size_t done = exchange->piece_done;
    for (size_t i = exchange->piece; exchange->answered && i < exchange->range_count + 2; i++) {
        size_t length = 0;
        const char *bytes = piece_at(exchange, i, &length);
        if (length > done) {
            if (count == PIECES) {
                break;
            }
            pieces[count++] = (struct iovec){.iov_base = (char *)bytes + done,
                                             .iov_len = length - done};
        }
        done = 0;
    }
    return count;
}

static void advance(struct berth_conn *conn, size_t bytes)
{
    struct berth_exchange *exchange = conn->exchange;
    size_t interim = bytes < conn->interim ? bytes : conn->interim;
    conn->interim = (uint8_t)(conn->interim - interim);
    bytes -= interim;
    while (bytes > 0) {
        size_t length = 0;
        (void)piece_at(exchange, exchange->piece, &length);
        size_t left = length - exchange->piece_done;
        if (bytes < left) {
            exchange->piece_done += bytes;
            return;
        }
        bytes -= left;
        if (exchange->is_stream) {
            exchange->piece_done = length; /* its one piece may still grow */
            return;
        }
        exchange->piece++;
        exchange->piece_done = 0;
    }
}

static const void *piece_at(struct berth_exchange *exchange, size_t piece, size_t *length)
{
    if (piece == 0) {
        *length = exchange->out.length;
        return exchange->out.bytes;
    }
    if (piece == 1) {
        *length = exchange->text.length;
        return exchange->text.bytes;
    }
    const struct berth_range *range = &exchange->ranges[piece - 2];
    *length = range->length;
    return berth_slabs_pointer(exchange->conn->loop->http->options.slabs, range);
}

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {411, "Length Required"},
        {413, "Payload Too Large"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(reasons); i++) {
        if (reasons[i].status == status) {
            return reasons[i].reason;
        }
    }
    return status < 400 ? "OK" : "Error";
}
