/* call.h - one exchange on its way through a route; private to api/.
 *
 * A call outlives its exchange while something it started (a media job, an admin operation) is
 * still on its way back: `pins` counts those and the exchange itself. A request's parts need no
 * call: its `owner` is NULL once the call is gone. All of it happens on one thread, so the count is
 * a plain one.
 */
#ifndef BERTH_CALL_H
#define BERTH_CALL_H

#include <stdatomic.h>

#include "api/api_options.h"
#include "base/buf.h"
#include "net/http.h"
#include "net/multipart.h"
#include "request/request.h"
#include "task/transcript.h"

enum berth_error_style { BERTH_STYLE_KSERVE, BERTH_STYLE_OPENAI };

struct berth_call;

/* A path segment "{}" takes one segment, decoded; call->segments[] has them in order. */
struct berth_route {
    const char *method;
    const char *pattern;
    enum berth_error_style style;
    bool open;  /* no key needed */
    bool body;  /* has a body; head may refuse it, end comes when all of it is there */
    bool media; /* the body goes to a decoder: a slab of its own */
    bool json;  /* the body is JSON alone: --json-bytes-max bounds it */
    /* Judges the head (L6); NULL: nothing to judge. An error refuses the request, body unread. */
    enum berth_code (*head)(struct berth_call *call, struct berth_err *err);
    /* More of the body; NULL: wait for all. An error refuses the rest. */
    enum berth_code (*more)(struct berth_call *call, uint64_t length, struct berth_err *err);
    /* The request is complete. Answers, now or later, or fails. */
    enum berth_code (*end)(struct berth_call *call, struct berth_err *err);
};

#define BERTH_SEGMENTS_MAX 3

struct berth_call {
    struct berth_api *api;
    struct berth_exchange *exchange; /* NULL once it is closed */
    const struct berth_route *route; /* NULL: no such path or method */
    const char *segments[BERTH_SEGMENTS_MAX];
    uint32_t pins;
    bool submitted;                  /* the controller has the request */
    bool finished;                   /* its final part is here: its last stamp is written */
    struct berth_request *request;   /* the front's reference, or NULL */
    struct berth_model *model;       /* retained, where the path or form named one */
    struct berth_media_job media;
    struct berth_admin admin;
    struct berth_arena arena;        /* what must live as long as the call */
    uint64_t t_deadline_ns;          /* as the client named it; 0: it did not */
    void *state;                     /* the route's own, in arena */
};

struct berth_api {
    struct berth_api_options options;
    struct berth_key_set *keys;
    struct berth_http *_Atomic http;
    uint64_t t_started_ns;
};

void berth_call_pin(struct berth_call *call);
void berth_call_unpin(struct berth_call *call);

/* An answer with everything that all answers carry: Server-Timing, Berth-Residency, X-Request-Id,
 * traceparent. Takes text's bytes. Nothing happens when the client is gone. */
void berth_call_answer(struct berth_call *call, const struct berth_http_answer *answer);
/* 200 with a JSON body. */
void berth_call_answer_json(struct berth_call *call, struct berth_buf *text);
/* The error in the route's own form; logs it. */
void berth_call_fail(struct berth_call *call, const struct berth_err *err);
/* The exchange ends: one line at DEBUG with what, how much and where the time went. */
void berth_call_log(struct berth_call *call, bool answered);
/* Headers common to all answers, appended to headers[*count..]; values live in the call's arena. */
void berth_call_headers(struct berth_call *call, struct berth_http_header *headers, size_t *count);
#define BERTH_CALL_HEADERS_MAX 6

/* Makes call->request for call->model: id, deadline from headers, reply queue, on_part. */
enum berth_code berth_call_open_request(struct berth_call *call,
                                        void (*on_part)(struct berth_post *post),
                                        struct berth_err *err) BERTH_MUST_USE;
enum berth_code berth_call_submit(struct berth_call *call, struct berth_err *err) BERTH_MUST_USE;
/* A deadline from Berth-Timeout-Ms or X-Request-Timeout-Ms into call->t_deadline_ns. */
enum berth_code berth_call_read_deadline(struct berth_call *call,
                                         struct berth_err *err) BERTH_MUST_USE;

/* The model's spec with its inputs and outputs, retained. A scan describes every model whose files
 * can be read, cold or warm; UNAVAILABLE says why it could not. */
enum berth_code berth_call_spec(struct berth_call *call, struct berth_model_spec **out,
                                struct berth_err *err) BERTH_MUST_USE;
/* Sends call->admin (kind, name, config_json set); on_done as berth_admin says. */
void berth_call_admin(struct berth_call *call, void (*on_done)(struct berth_post *post));

/* Route tables, each ended by a NULL method. */
extern const struct berth_route berth_openai_routes[];
extern const struct berth_route berth_kserve_routes[];
extern const struct berth_route berth_admin_routes[];

/* KServe infer (kserve_infer.c). */
enum berth_code berth_kserve_infer_head(struct berth_call *call, struct berth_err *err);
enum berth_code berth_kserve_infer_end(struct berth_call *call, struct berth_err *err);
/* Segments name and version ("" for none) to call->model, with Triton's texts. */
enum berth_code berth_kserve_find_model(struct berth_call *call, const char *version,
                                        struct berth_err *err) BERTH_MUST_USE;

/* API keys (keys.c): a set of SHA-256 sums. */
struct berth_key_set;
enum berth_code berth_keys_read(const char *path, struct berth_key_set **out,
                                struct berth_err *err) BERTH_MUST_USE;
void berth_keys_destroy(struct berth_key_set *keys);
/* authorization: the header's value, or NULL. */
enum berth_code berth_keys_check(const struct berth_key_set *keys, const char *authorization,
                                 struct berth_err *err) BERTH_MUST_USE;

#endif
