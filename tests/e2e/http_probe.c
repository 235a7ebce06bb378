/* http_probe.c - what net/ makes of bytes, for comparison with another parser.
 *
 * Reads records from standard input: four bytes of length (little-endian), one byte that seeds how
 * the bytes are cut, the bytes. For each, one line of JSON: the requests that were taken (method,
 * path, query, version, fields, body in hex), the status with which the rest was refused, or 0, and
 * the reason. */
#include "../unit/net_memory.h"

#include "base/log.h"

static struct berth_http http;
static struct berth_loop loop;
static struct berth_buf line;
static int refused;
static char reason[240];

static void put_text(const char *text)
{
    /* Bytes as Latin-1, so that nothing is lost. */
    berth_buf_puts(&line, "\"");
    for (const char *at = text; *at != '\0'; at++) {
        berth_buf_printf(&line, "\\u%04x", (unsigned char)*at);
    }
    berth_buf_puts(&line, "\"");
}

static void put_request(struct berth_exchange *exchange)
{
    const struct berth_range *body = berth_http_body(exchange);
    const unsigned char *bytes = berth_slabs_pointer(http.options.slabs, body);
    berth_buf_puts(&line, line.length > 14 ? ",{\"method\":" : "{\"method\":");
    put_text(berth_http_method(exchange));
    berth_buf_puts(&line, ",\"path\":");
    put_text(berth_http_path(exchange));
    berth_buf_puts(&line, ",\"query\":");
    put_text(berth_http_query(exchange));
    berth_buf_printf(&line, ",\"version\":\"1.%d\",\"fields\":[", exchange->head.version_minor);
    for (size_t i = 0; i < exchange->head.field_count; i++) {
        berth_buf_puts(&line, i == 0 ? "[" : ",[");
        put_text(exchange->head.fields[i].name);
        berth_buf_puts(&line, ",");
        put_text(exchange->head.fields[i].value);
        berth_buf_puts(&line, "]");
    }
    berth_buf_puts(&line, "],\"body\":\"");
    for (size_t i = 0; i < body->length; i++) {
        berth_buf_printf(&line, "%02x", bytes[i]);
    }
    berth_buf_puts(&line, "\"}");
}

static void answer(struct berth_exchange *exchange)
{
    put_request(exchange);
    berth_http_answer(exchange, &(struct berth_http_answer){.status = 200});
}

static void on_head(void *subject, struct berth_exchange *exchange)
{
    (void)subject;
    if (berth_http_content_length(exchange) == 0) {
        answer(exchange);
    } else {
        berth_http_accept_body(exchange, 1 << 20, false);
    }
}

static void on_end(void *subject, struct berth_exchange *exchange)
{
    (void)subject;
    answer(exchange);
}

static const char *error_body(void *subject, struct berth_exchange *exchange,
                              const struct berth_err *err, struct berth_buf *out)
{
    (void)subject;
    (void)exchange;
    (void)out;
    snprintf(reason, sizeof(reason), "%s", err->msg);
    refused = 1;
    return "text/plain";
}

static void start(void)
{
    struct berth_slabs_options slabs = {.bytes_budget = 64 << 20, .bytes_pool_max = 1 << 20};
    struct berth_err err;
    berth_log_set_level(BERTH_LOG_ERROR);
    http.options = (struct berth_http_options){
        .connections_max = 10,
        .body_bytes_max = 1 << 20,
        .head_bytes_max = 32768,
        .head_timeout_ns = 1000000000,
        .body_timeout_ns = 1000000000,
        .write_timeout_ns = 1000000000,
        .idle_timeout_ns = 1000000000,
        .admit_timeout_ns = 1000000000,
        .handler = {.on_head = on_head, .on_end = on_end, .error_body = error_body},
    };
    check(berth_slabs_create(&slabs, &http.options.slabs, &err) == BERTH_OK, "slabs");
    http.loops = &loop;
    http.loop_count = 1;
    check(berth_loop_init(&loop, &http, &err) == BERTH_OK, "a loop");
}

/* Of the last answer: the refusal is the last thing said. */
static int last_status(void)
{
    int status = 0;
    memory.out[memory.out_length] = '\0';
    for (const char *at = memory.out; (at = strstr(at, "HTTP/1.1 ")) != NULL; at += 9) {
        status = (int)strtol(at + 9, NULL, 10);
    }
    return status;
}

int main(void)
{
    static uint8_t bytes[1 << 16];
    uint8_t head[5];
    start();
    while (fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
        size_t length = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
        check(length <= sizeof(bytes) && head[3] == 0, "records are short");
        check(fread(bytes, 1, length, stdin) == length, "records are whole");
        refused = 0;
        reason[0] = '\0';
        berth_buf_clear(&line);
        berth_buf_puts(&line, "{\"requests\":[");
        memory_run(&loop, bytes, length, head[4]);
        berth_buf_printf(&line, "],\"status\":%d,\"reason\":", refused ? last_status() : 0);
        put_text(reason);
        printf("%s}\n", berth_buf_text(&line));
        fflush(stdout);
    }
    berth_loop_finish(&loop);
    berth_slabs_destroy(http.options.slabs);
    berth_buf_finish(&line);
    return 0;
}
