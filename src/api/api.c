/* api.c - from an exchange to its route.
 *
 * A path is matched against the tables in order; a path that is known under another method is 405.
 * Whether a key is needed, whether the server takes work and whether the head is acceptable are all
 * judged before a byte of the body is read (L6).
 */
#include "api/api.h"

#include <string.h>

#include "api/call.h"
#include "api/error_body.h"
#include "base/clock.h"
#include "base/log.h"

#define CALL_ARENA_MAX (64u << 20)

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
    if (call == NULL) {
        return;
    }
    if (berth_log_enabled(BERTH_LOG_DEBUG)) {
        berth_call_log(call, answered);
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
    return berth_error_body(exchange == NULL ? NULL : berth_http_path(exchange), err, out);
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
