/* call.c - what all routes share: answers and errors with the headers common to all, requests to
 * the controller, deadlines, specs. */
#include "api/call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/error_body.h"
#include "base/clock.h"
#include "base/log.h"

#define REQUEST_ARENA_MAX (64u << 20)
#define TIMEOUT_MS_MAX INT64_C(86400000)
#define LOG_METHOD_MAX 16
#define LOG_PATH_MAX 200
#define LOG_ID_MAX 128
#define TIMING_BYTES_MAX 40 /* "receive;dur=" and a 64-bit number of nanoseconds as ms, ", " */

static char *put_duration(char *at, const char *name, uint64_t ns);
static const char *server_timing(struct berth_call *call, bool settled);
static int cut(const char *text, size_t bytes_max);
static const char *model_unnamed(const struct berth_call *call, const char *text);
static const char *residency_of(const struct berth_call *call);
static void drop_request(struct berth_call *call);
static void release_model(void *model);

void berth_call_pin(struct berth_call *call)
{
    call->pins++;
}

void berth_call_unpin(struct berth_call *call)
{
    if (--call->pins > 0) {
        return;
    }
    drop_request(call);
    berth_model_release(call->model);
    berth_arena_finish(&call->arena);
    berth_free(call);
}

void berth_call_answer(struct berth_call *call, const struct berth_http_answer *answer)
{
    struct berth_http_header headers[BERTH_CALL_HEADERS_MAX + 8];
    size_t count = answer->header_count < 8 ? answer->header_count : 8;
    if (call->exchange == NULL) {
        if (answer->text != NULL) {
            berth_buf_finish(answer->text);
        }
        if (answer->release != NULL) {
            answer->release(answer->subject);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        headers[i] = answer->headers[i];
    }
    berth_call_headers(call, headers, &count);
    struct berth_http_answer whole = *answer;
    whole.headers = headers;
    whole.header_count = count;
    berth_http_answer(call->exchange, &whole);
}

void berth_call_answer_json(struct berth_call *call, struct berth_buf *text)
{
    if (!berth_buf_ok(text)) {
        struct berth_err err;
        berth_fail(&err, BERTH_UNAVAILABLE, "no memory for the answer");
        berth_buf_finish(text);
        berth_call_fail(call, &err);
        return;
    }
    berth_call_answer(call, &(struct berth_http_answer){
                                .status = 200, .content_type = "application/json", .text = text});
}

void berth_call_fail(struct berth_call *call, const struct berth_err *err)
{
    uint64_t id = call->request == NULL ? 0 : call->request->id;
    if (call->exchange == NULL) {
        return;
    }
    if (err->code != BERTH_CANCELLED) {
        berth_log_err_model(err->code == BERTH_INTERNAL ? BERTH_LOG_ERROR : BERTH_LOG_INFO, "api",
                            id, err, model_unnamed(call, err->msg));
    }
    struct berth_buf text = {0};
    struct berth_http_header headers[4];
    size_t count = 0;
    char seconds[24];
    char millis[24];
    bool again = err->retry_after_ms > 0;
    if (again) {
        snprintf(seconds, sizeof(seconds), "%u", (err->retry_after_ms + 999) / 1000);
        snprintf(millis, sizeof(millis), "%u", err->retry_after_ms);
        headers[count++] = (struct berth_http_header){"Retry-After", seconds};
        headers[count++] = (struct berth_http_header){"retry-after-ms", millis};
    }
    headers[count++] = (struct berth_http_header){"x-should-retry", again ? "true" : "false"};
    bool openai = call->route != NULL && call->route->style == BERTH_STYLE_OPENAI;
    /* OpenAI's clients take 5xx for the server's fault; a field this model cannot do is theirs. */
    int status = err->code == BERTH_UNSUPPORTED && err->field != NULL ? 400
                                                                      : berth_code_http(err->code);
    if (!openai) {
        status = berth_kserve_status(call->api->options.typed_errors, err);
    }
    const char *type = berth_error_body(berth_http_path(call->exchange), err, &text);
    berth_call_answer(call, &(struct berth_http_answer){
                                .status = status,
                                .content_type = type,
                                .headers = headers,
                                .header_count = count,
                                .text = &text});
}

void berth_call_log(struct berth_call *call, bool answered)
{
    struct berth_exchange *exchange = call->exchange;
    const char *method = berth_http_method(exchange);
    const char *path = berth_http_path(exchange);
    const char *id = berth_http_header(exchange, "X-Request-Id");
    id = id == NULL || id[0] == '\0' ? "-" : id;
    berth_log_debug("api", call->request == NULL ? 0 : call->request->id,
                    "%s method=%.*s path=%.*s model=%s status=%d bytes=%" PRIu64
                    " timing=%s x_request_id=%.*s",
                    answered ? "answered" : "not answered", cut(method, LOG_METHOD_MAX), method,
                    cut(path, LOG_PATH_MAX), path, call->model == NULL ? "-" : call->model->name,
                    berth_http_status(exchange), berth_http_written(exchange),
                    server_timing(call, call->finished || !call->submitted),
                    cut(id, LOG_ID_MAX), id);
}

void berth_call_headers(struct berth_call *call, struct berth_http_header *headers, size_t *count)
{
    headers[(*count)++] = (struct berth_http_header){"Server-Timing",
                                                    server_timing(call, true)};
    if (call->request != NULL && call->submitted) {
        headers[(*count)++] = (struct berth_http_header){"Berth-Residency", residency_of(call)};
    }
    const char *trace = berth_http_header(call->exchange, "traceparent");
    if (trace != NULL && strlen(trace) <= 128) {
        headers[(*count)++] = (struct berth_http_header){"traceparent", trace};
    }
    const char *id = berth_http_header(call->exchange, "X-Request-Id");
    if (id != NULL && strlen(id) <= 128) {
        headers[(*count)++] = (struct berth_http_header){"X-Request-Id", id};
    }
}

enum berth_code berth_call_open_request(struct berth_call *call,
                                        void (*on_part)(struct berth_post *post),
                                        struct berth_err *err)
{
    struct berth_request *request =
        berth_request_create(call->api->options.slabs, REQUEST_ARENA_MAX);
    if (request == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    call->request = request;
    request->id_client = "";
    request->model = call->model;
    request->batch_rows = 1;
    request->t_deadline_ns = call->t_deadline_ns;
    request->timeout_named = call->t_deadline_ns != 0;
    request->stamps.t_head_ns = berth_http_head_ns(call->exchange);
    request->reply = berth_http_queue(call->exchange);
    request->on_part = on_part;
    request->owner = call;
    /* The request may outlive the call, so it holds the model itself. */
    if (berth_arena_at_finish(&request->arena, release_model, call->model) != BERTH_OK) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    berth_model_retain(call->model);
    return BERTH_OK;
}

enum berth_code berth_call_submit(struct berth_call *call, struct berth_err *err)
{
    BERTH_TRY(berth_sched_submit(call->api->options.sched, call->request, err));
    call->submitted = true;
    return BERTH_OK;
}

enum berth_code berth_call_read_deadline(struct berth_call *call, struct berth_err *err)
{
    static const char *const names[] = {"Berth-Timeout-Ms", "X-Request-Timeout-Ms"};
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        const char *text = berth_http_header(call->exchange, names[i]);
        if (text == NULL) {
            continue;
        }
        char *end = NULL;
        long long value = strtoll(text, &end, 10);
        if (end == text || *end != '\0' || value <= 0 || value > TIMEOUT_MS_MAX) {
            return berth_fail_field(
                err, BERTH_INVALID, i == 0 ? "Berth-Timeout-Ms" : "X-Request-Timeout-Ms",
                "%s must be milliseconds from 1 to %lld", names[i], (long long)TIMEOUT_MS_MAX);
        }
        call->t_deadline_ns =
            berth_http_head_ns(call->exchange) + (uint64_t)value * BERTH_NS_PER_MS;
        return BERTH_OK;
    }
    return BERTH_OK;
}

enum berth_code berth_call_spec(struct berth_call *call, struct berth_model_spec **out,
                                struct berth_err *err)
{
    char reason[sizeof(err->msg)];
    struct berth_model_spec *spec = berth_model_spec(call->model);
    if (spec == NULL || !spec->completed) { /* its files could not be read */
        berth_spec_release(spec);
        berth_model_reason(call->model, reason, sizeof(reason));
        (void)berth_fail_field(err, BERTH_UNAVAILABLE, "model", "%s",
                               reason[0] == '\0' ? "its files cannot be read" : reason);
        berth_sched_name_failure(err, call->model->name);
        return BERTH_UNAVAILABLE;
    }
    *out = spec;
    return BERTH_OK;
}

void berth_call_admin(struct berth_call *call, void (*on_done)(struct berth_post *post))
{
    call->admin.on_done = on_done;
    call->admin.reply = berth_http_queue(call->exchange);
    call->admin.state = call;
    berth_call_pin(call);
    berth_sched_admin(call->api->options.sched, &call->admin);
}

/* As thousandths: printf of a double is a tenth of a small request. Returns the new end. */
static char *put_duration(char *at, const char *name, uint64_t ns)
{
    char digits[24];
    size_t first = sizeof(digits);
    uint64_t us = (ns + 500) / 1000;
    for (size_t i = 0; i < 4 || us != 0; i++) {
        if (i == 3) {
            digits[--first] = '.';
        }
        digits[--first] = (char)('0' + us % 10);
        us /= 10;
    }
    at = mempcpy(at, name, strlen(name));
    at = mempcpy(at, ";dur=", 5);
    return mempcpy(at, digits + first, sizeof(digits) - first);
}

/* The call's model, where text does not name it as 'NAME'; else, or without one, NULL. */
static const char *model_unnamed(const struct berth_call *call, const char *text)
{
    if (call->model == NULL) {
        return NULL;
    }
    size_t length = strlen(call->model->name);
    for (const char *at = strchr(text, '\''); at != NULL; at = strchr(at + 1, '\'')) {
        if (strncmp(at + 1, call->model->name, length) == 0 && at[1 + length] == '\'') {
            return NULL;
        }
    }
    return call->model->name;
}

/* As many bytes of it as are whole characters. */
static int cut(const char *text, size_t bytes_max)
{
    return (int)berth_utf8_valid_length(text, strnlen(text, bytes_max));
}

/* Milliseconds in each stage that was reached (L10). settled: the controller writes no stamps now;
 * else only the front's own stages are told. */
static const char *server_timing(struct berth_call *call, bool settled)
{
    static const char *const names[] = {"receive", "decode", "queue", "load", "run"};
    char *text = berth_arena_alloc(&call->arena, (BERTH_COUNT_OF(names) + 1) * TIMING_BYTES_MAX);
    if (text == NULL) {
        return "";
    }
    char *at = text;
    uint64_t now = berth_clock_now_ns();
    uint64_t head = berth_http_head_ns(call->exchange);
    if (call->request != NULL) {
        const struct berth_stamps *stamps = &call->request->stamps;
        uint64_t stages[6] = {stamps->t_received_ns, stamps->t_decoded_ns};
        if (settled) {
            stages[2] = stamps->t_queued_ns;
            stages[3] = stamps->t_loaded_ns;
            stages[4] = stamps->t_started_ns;
            stages[5] = call->finished ? stamps->t_done_ns : 0;
        }
        uint64_t from[] = {head, stages[0], stages[3], stages[2], stages[4]};
        uint64_t to[] = {stages[0], stages[1], stages[4], stages[3], stages[5]};
        for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
            if (from[i] != 0 && to[i] >= from[i]) {
                at = mempcpy(put_duration(at, names[i], to[i] - from[i]), ", ", 2);
            }
        }
    }
    *put_duration(at, "total", now - head) = '\0';
    return text;
}

static const char *residency_of(const struct berth_call *call)
{
    return call->request->cold ? "disk" : "warm";
}

static void drop_request(struct berth_call *call)
{
    if (call->request != NULL) {
        call->request->owner = NULL;
        berth_request_release(call->request);
        call->request = NULL;
    }
}

static void release_model(void *model)
{
    berth_model_release(model);
}
