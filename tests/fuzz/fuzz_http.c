/* fuzz_http.c - the state machine of a connection over a transport in memory, without threads.
 *
 * The first byte chooses how the rest is cut; the input runs whole and cut, and what the server
 * says must be the same (but for 100-continue, which depends on what has arrived). In both runs each
 * exchange is closed once and every byte of the budget comes back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "net/conn.h"

#define OUT_MAX (1 << 20)

/* The other end. */
struct memory {
    const uint8_t *in;
    size_t in_length; /* what has arrived */
    size_t in_at;
    bool ended;
    bool open;
    size_t write_step; /* bytes taken at a time; 0: all */
    char out[OUT_MAX];
    size_t out_length;
};

static struct memory memory;
static struct berth_http http;
static struct berth_loop loop;
static int heads, closes;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static ssize_t memory_take(size_t length, void *bytes)
{
    size_t left = memory.in_length - memory.in_at;
    size_t got = left < length ? left : length;
    if (got == 0) {
        return memory.ended ? 0 : -EAGAIN;
    }
    if (bytes != NULL) {
        memcpy(bytes, memory.in + memory.in_at, got);
    }
    memory.in_at += got;
    return (ssize_t)got;
}

static ssize_t memory_read(struct berth_conn *conn, void *bytes, size_t length)
{
    (void)conn;
    check(length > 0, "no read into nothing");
    return memory_take(length, bytes);
}

static ssize_t memory_skip(struct berth_conn *conn, size_t length)
{
    (void)conn;
    return memory_take(length, NULL);
}

static ssize_t memory_write(struct berth_conn *conn, const struct iovec *pieces, int count)
{
    size_t put = 0;
    (void)conn;
    for (int i = 0; i < count; i++) {
        size_t piece = pieces[i].iov_len;
        if (memory.write_step != 0 && put + piece > memory.write_step) {
            piece = memory.write_step - put;
        }
        check(memory.out_length + piece <= OUT_MAX, "answers are of bounded length");
        memcpy(memory.out + memory.out_length, pieces[i].iov_base, piece);
        memory.out_length += piece;
        put += piece;
    }
    return (ssize_t)put;
}

static void memory_shut(struct berth_conn *conn)
{
    (void)conn;
}

static void memory_close(struct berth_conn *conn)
{
    (void)conn;
    memory.open = false;
}

static const struct berth_transport_ops memory_ops = {
    .read = memory_read,
    .write = memory_write,
    .skip = memory_skip,
    .shut = memory_shut,
    .close = memory_close,
    .short_read_drains = true,
};

static void answer(struct berth_exchange *exchange, const char *text, size_t length)
{
    struct berth_buf buf = {0};
    struct berth_http_answer it = {.status = 200, .content_type = "text/plain", .text = &buf};
    berth_buf_append(&buf, text, length);
    berth_http_answer(exchange, &it);
}

static void on_head(void *subject, struct berth_exchange *exchange)
{
    const char *path = berth_http_path(exchange);
    (void)subject;
    heads++;
    check(path[0] == '/', "paths begin with a slash");
    check(berth_utf8_valid_length(path, strlen(path)) == strlen(path), "paths are UTF-8");
    if (berth_http_content_length(exchange) != 0) {
        berth_http_accept_body(exchange, 300000, path[1] == 'p');
    } else if (path[1] == 's') {
        struct berth_http_answer head = {.status = 200};
        struct berth_buf chunk = {0};
        berth_http_stream_begin(exchange, &head);
        berth_buf_puts(&chunk, "chunk");
        berth_http_stream_chunk(exchange, &chunk);
        berth_http_stream_end(exchange);
    } else {
        answer(exchange, path, strlen(path));
    }
}

static void on_body(void *subject, struct berth_exchange *exchange, uint64_t length)
{
    (void)subject;
    check(berth_http_body(exchange)->length == length, "the body is as long as reported");
}

static void on_end(void *subject, struct berth_exchange *exchange)
{
    struct berth_range body = *berth_http_body(exchange);
    const char *bytes = berth_slabs_pointer(subject, &body);
    int64_t told = berth_http_content_length(exchange);
    check(told < 0 || berth_http_header(exchange, "content-encoding") != NULL ||
              (uint64_t)told == body.length,
          "the body is as long as its Content-Length");
    check(body.length <= 300000, "bodies keep to the limit");
    answer(exchange, body.length == 0 ? "" : bytes, body.length < 2000 ? body.length : 2000);
}

static void on_close(void *subject, struct berth_exchange *exchange, bool answered)
{
    (void)subject;
    (void)exchange;
    (void)answered;
    closes++;
}

static void start(void)
{
    struct berth_slabs_options slabs = {.bytes_budget = 64 << 20, .bytes_pool_max = 1 << 20};
    struct berth_err err;
    berth_log_set_level(BERTH_LOG_ERROR);
    http.options = (struct berth_http_options){
        .connections_max = 10,
        .body_bytes_max = 1 << 20,
        .head_bytes_max = 9000,
        .head_timeout_ns = 1000000000,
        .body_timeout_ns = 1000000000,
        .write_timeout_ns = 1000000000,
        .idle_timeout_ns = 1000000000,
        .admit_timeout_ns = 1000000000,
        .handler = {.on_head = on_head, .on_body = on_body, .on_end = on_end, .on_close = on_close},
    };
    check(berth_slabs_create(&slabs, &http.options.slabs, &err) == BERTH_OK, "slabs");
    http.options.handler.subject = http.options.slabs;
    http.loops = &loop;
    http.loop_count = 1;
    check(berth_loop_init(&loop, &http, &err) == BERTH_OK, "a loop");
}

static void deliver(struct berth_conn *conn, uint32_t events)
{
    if (memory.open) {
        berth_conn_event(conn, events);
    }
    while (berth_loop_busy(&loop)) {
        berth_loop_settle(&loop);
    }
}

/* Everything the server says to these bytes; the caller frees it. */
static char *run(const uint8_t *bytes, size_t length, uint8_t cut, size_t *made)
{
    struct berth_slabs_stats stats;
    uint32_t random = cut;
    memset(&memory, 0, offsetof(struct memory, out));
    memory.out_length = 0;
    memory.in = bytes;
    memory.open = true;
    memory.write_step = cut % 3 == 1 ? 1 + cut / 3u : 0;
    heads = closes = 0;
    struct berth_conn *conn = berth_conn_create(&loop, -1, &memory_ops);
    check(conn != NULL, "a connection");
    while (memory.in_length < length) {
        random = random * 1664525 + 1013904223;
        size_t step = cut == 0 ? length : 1 + (random >> 24) % (cut < 128 ? 8 : 300);
        memory.in_length = length - memory.in_length < step ? length : memory.in_length + step;
        deliver(conn, EPOLLIN | EPOLLOUT);
    }
    memory.ended = true;
    deliver(conn, EPOLLIN | EPOLLRDHUP);
    check(!memory.open, "a connection ends when its client has gone");
    check(heads == closes, "each exchange is closed once");
    berth_slabs_stats(http.options.slabs, &stats);
    check(stats.bytes_out == 0, "every byte comes back");
    check(berth_list_empty(&loop.conns), "the connection is gone");
    *made = 0;
    char *said = malloc(memory.out_length + 1);
    for (size_t at = 0; at < memory.out_length;) {
        static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
        size_t skip = sizeof(interim) - 1;
        if (memory.out_length - at >= skip && memcmp(memory.out + at, interim, skip) == 0) {
            at += skip;
            continue;
        }
        said[(*made)++] = memory.out[at++];
    }
    return said;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    size_t whole_length, cut_length;
    if (length == 0 || length > 20000) {
        return 0;
    }
    if (http.loops == NULL) {
        start();
    }
    char *whole = run(bytes + 1, length - 1, 0, &whole_length);
    char *cut = run(bytes + 1, length - 1, bytes[0] == 0 ? 1 : bytes[0], &cut_length);
    check(whole_length == cut_length && memcmp(whole, cut, cut_length) == 0,
          "the answers do not depend on how the bytes were cut");
    free(whole);
    free(cut);
    return 0;
}
