/* api.c - from an exchange to its route, and what all routes share.
 *
 * A path is matched against the tables in order; a path that is known under another method is 405.
 * Whether a key is needed, whether the server takes work and whether the head is acceptable are all
 * judged before a byte of the body is read (L6).
 */
#include "api/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/call.h"
#include "base/clock.h"
#include "base/log.h"

#define CALL_ARENA_MAX (64u << 20)
#define REQUEST_ARENA_MAX (64u << 20)
#define TIMEOUT_MS_MAX INT64_C(86400000)
#define TIMING_BYTES_MAX 40 /* "receive;dur=" and a 64-bit number of nanoseconds as ms, ", " */

static const struct berth_route *const route_tables[] = {
    berth_kserve_routes,
    berth_openai_routes,
    berth_admin_routes,
};

static void on_head(void *subject, struct berth_exchange *exchange);
static void on_body(void *subject, struct berth_exchange *exchange, uint64_t length);
static void on_end(void *subject, struct berth_exchange *exchange);
static void on_close(void *subject, struct berth_exchange *exchange, bool answered);
static const char *error_body(void *subject, struct berth_exchange *exchange,
                              const struct berth_err *err, struct berth_buf *out);
static enum berth_code find_route(struct berth_call *call, struct berth_err *err);
static bool match(struct berth_call *call, const char *pattern, const char *path, bool *lost);
static enum berth_code judge_head(struct berth_call *call, struct berth_err *err);
static uint64_t body_bytes_max(const struct berth_call *call);
static char *put_duration(char *at, const char *name, uint64_t ns);
static const char *server_timing(struct berth_call *call);
static const char *residency_of(const struct berth_call *call);
static void drop_request(struct berth_call *call);
static void release_model(void *model);

enum berth_code berth_api_create(const struct berth_api_options *options, struct berth_api **out,
                                 struct berth_err *err)
{
    struct berth_api *api = berth_alloc(sizeof(*api));
    if (api == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory");
    }
    api->options = *options;
    api->t_started_ns = berth_clock_now_ns();
    if (options->keys_file != NULL && options->keys_file[0] != '\0') {
        enum berth_code code = berth_keys_read(options->keys_file, &api->keys, err);
        if (code != BERTH_OK) {
            berth_free(api);
            return code;
        }
    }
    *out = api;
    return BERTH_OK;
}

void berth_api_destroy(struct berth_api *api)
{
    if (api != NULL) {
        berth_keys_destroy(api->keys);
        berth_free(api);
    }
}

struct berth_http_handler berth_api_handler(struct berth_api *api)
{
    return (struct berth_http_handler){
        .subject = api,
        .on_head = on_head,
        .on_body = on_body,
        .on_end = on_end,
        .on_close = on_close,
        .error_body = error_body,
    };
}

void berth_api_set_http(struct berth_api *api, struct berth_http *http)
{
    atomic_store(&api->http, http);
}

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
        berth_log_err(err->code == BERTH_INTERNAL ? BERTH_LOG_ERROR : BERTH_LOG_INFO, "api", id,
                      err);
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
    const char *type = error_body(call->api, call->exchange, err, &text);
    berth_call_answer(call, &(struct berth_http_answer){
                                .status = openai ? status : berth_kserve_status(call->api, err),
                                .content_type = type,
                                .headers = headers,
                                .header_count = count,
                                .text = &text});
}

void berth_call_headers(struct berth_call *call, struct berth_http_header *headers, size_t *count)
{
    headers[(*count)++] = (struct berth_http_header){"Server-Timing", server_timing(call)};
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
        return berth_fail_field(err, BERTH_UNAVAILABLE, "model", "%s",
                                reason[0] == '\0' ? "the model cannot be read" : reason);
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

static void on_head(void *subject, struct berth_exchange *exchange)
{
    struct berth_api *api = subject;
    struct berth_err err = {0};
    struct berth_call *call = berth_alloc(sizeof(*call));
    if (call == NULL) {
        struct berth_buf text = {0};
        berth_fail(&err, BERTH_UNAVAILABLE, "no memory");
        const char *type = error_body(subject, exchange, &err, &text);
        berth_http_answer(exchange, &(struct berth_http_answer){
                                        .status = 503, .content_type = type, .text = &text});
        return;
    }
    call->api = api;
    call->exchange = exchange;
    berth_arena_init(&call->arena, CALL_ARENA_MAX);
    berth_call_pin(call);
    berth_http_set_user(exchange, call);
    enum berth_code code = find_route(call, &err);
    if (code == BERTH_OK && call->route != NULL) {
        code = judge_head(call, &err);
    }
    if (code != BERTH_OK) {
        berth_call_fail(call, &err);
        return;
    }
    if (call->route == NULL) {
        return; /* 405, answered */
    }
    if (call->route->body && berth_http_content_length(exchange) != 0) {
        berth_http_accept_body(exchange, body_bytes_max(call), call->route->media);
        return;
    }
    on_end(subject, exchange);
}

static void on_body(void *subject, struct berth_exchange *exchange, uint64_t length)
{
    struct berth_call *call = berth_http_user(exchange);
    struct berth_err err = {0};
    (void)subject;
    if (call == NULL || call->route == NULL || call->route->more == NULL ||
        berth_http_answered(exchange)) {
        return;
    }
    if (call->route->more(call, length, &err) != BERTH_OK) {
        berth_call_fail(call, &err);
    }
}

static void on_end(void *subject, struct berth_exchange *exchange)
{
    struct berth_call *call = berth_http_user(exchange);
    struct berth_err err = {0};
    (void)subject;
    if (call == NULL || call->route == NULL || berth_http_answered(exchange)) {
        return;
    }
    if (call->route->end(call, &err) != BERTH_OK) {
        berth_call_fail(call, &err);
    }
}

static void on_close(void *subject, struct berth_exchange *exchange, bool answered)
{
    struct berth_call *call = berth_http_user(exchange);
    (void)subject;
    (void)answered;
    if (call == NULL) {
        return;
    }
    berth_http_set_user(exchange, NULL);
    call->exchange = NULL;
    /* Answered or not: an error of the front's own ends what the controller still works at. */
    if (call->request != NULL && !atomic_load(&call->request->answered)) {
        atomic_store(&call->request->cancelled, true);
        if (call->submitted) {
            berth_sched_cancel(call->api->options.sched, call->request);
        }
    }
    berth_call_unpin(call);
}

static const char *error_body(void *subject, struct berth_exchange *exchange,
                              const struct berth_err *err, struct berth_buf *out)
{
    (void)subject;
    const char *path = exchange == NULL ? "" : berth_http_path(exchange);
    if (path != NULL && strncmp(path, "/v1/", 4) == 0) {
        berth_openai_error_body(err, out);
    } else {
        berth_kserve_error_body(err, out);
    }
    return "application/json";
}

/* A path known under another method is answered here with Triton's 405, and route stays NULL. */
static enum berth_code find_route(struct berth_call *call, struct berth_err *err)
{
    const char *path = berth_http_path(call->exchange);
    const char *method = berth_http_method(call->exchange);
    const char *allowed = NULL; /* the one method each path has */
    bool lost = false;
    for (size_t t = 0; t < BERTH_COUNT_OF(route_tables); t++) {
        for (const struct berth_route *route = route_tables[t]; route->method != NULL; route++) {
            if (!match(call, route->pattern, path, &lost)) {
                continue;
            }
            if (strcmp(route->method, method) == 0) {
                call->route = route;
                return BERTH_OK;
            }
            allowed = route->method;
        }
    }
    if (lost) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    if (allowed == NULL) {
        return berth_fail(err, BERTH_NOT_FOUND, "Not Found");
    }
    struct berth_buf text = {0};
    struct berth_err wrong = {0};
    struct berth_http_header allow = {"Allow", allowed};
    berth_fail(&wrong, BERTH_INVALID, "Method Not Allowed");
    const char *type = error_body(call->api, call->exchange, &wrong, &text);
    berth_call_answer(call, &(struct berth_http_answer){.status = 405,
                                                        .reason = "Not Allowed",
                                                        .content_type = type,
                                                        .headers = &allow,
                                                        .header_count = 1,
                                                        .text = &text});
    return BERTH_OK;
}

/* *lost is set where there was no memory to tell. */
static bool match(struct berth_call *call, const char *pattern, const char *path, bool *lost)
{
    size_t segment = 0;
    memset(call->segments, 0, sizeof(call->segments));
    while (*pattern != '\0') {
        if (pattern[0] == '{' && pattern[1] == '}') {
            size_t length = strcspn(path, "/");
            if (length == 0 || segment == BERTH_SEGMENTS_MAX) {
                return false;
            }
            call->segments[segment] = berth_arena_strndup(&call->arena, path, length);
            if (call->segments[segment++] == NULL) {
                *lost = true;
                return false;
            }
            path += length;
            pattern += 2;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

static enum berth_code judge_head(struct berth_call *call, struct berth_err *err)
{
    struct berth_api *api = call->api;
    if (api->keys != NULL && !call->route->open) {
        BERTH_TRY(berth_keys_check(api->keys, berth_http_header(call->exchange, "Authorization"),
                                   err));
    }
    BERTH_TRY(berth_call_read_deadline(call, err));
    int64_t length = berth_http_content_length(call->exchange);
    if (call->route->body && length > 0 && (uint64_t)length > body_bytes_max(call)) {
        return berth_fail(err, BERTH_TOO_LARGE,
                          "the body has %lld bytes, and this server takes at most %llu",
                          (long long)length, (unsigned long long)body_bytes_max(call));
    }
    return call->route->head == NULL ? BERTH_OK : call->route->head(call, err);
}

static uint64_t body_bytes_max(const struct berth_call *call)
{
    const struct berth_api_options *options = &call->api->options;
    bool less = call->route->json && options->json_bytes_max < options->body_bytes_max;
    return less ? options->json_bytes_max : options->body_bytes_max;
}

/* Milliseconds in each stage that was reached (L10). */
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

static const char *server_timing(struct berth_call *call)
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
        uint64_t stages[] = {stamps->t_received_ns, stamps->t_decoded_ns,
                             stamps->t_queued_ns,   stamps->t_loaded_ns,
                             stamps->t_started_ns,  call->finished ? stamps->t_done_ns : 0};
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
