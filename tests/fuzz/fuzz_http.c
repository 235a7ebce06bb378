/* fuzz_http.c - the state machine of a connection over a transport in memory, without threads.
 *
 * The first byte chooses how the rest is cut; the input runs whole and cut, and what the server
 * says must be the same (but for 100-continue, which depends on what has arrived). In both runs
 * each exchange is closed once and every byte of the budget comes back. */
#include "../unit/net_memory.h"

#include "base/log.h"

static struct berth_http http;
static struct berth_loop loop;
static int heads, closes;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

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

/* Everything the server says to these bytes; the caller frees it. */
static char *run(const uint8_t *bytes, size_t length, uint8_t cut, size_t *made)
{
    struct berth_slabs_stats stats;
    heads = closes = 0;
    memory_run(&loop, bytes, length, cut);
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
