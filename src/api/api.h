/* api.h - routes: how an HTTP request becomes a request of ours, and an answer a body.
 *
 * In:      exchanges from net/.     Out: requests to sched/, media jobs to media/, answers to net/.
 * Owns:    one call for each exchange. Borrows: everything in berth_api_options, for its life.
 * Threads: a call lives on its exchange's thread; berth_api itself is read-only after create.
 * Rules:   README.md here (A1 to A8).
 */
#ifndef BERTH_API_H
#define BERTH_API_H

#include "base/err.h"
#include "base/slab.h"
#include "media/media.h"
#include "model/model.h"
#include "net/http.h"
#include "sched/sched.h"

struct berth_api;

struct berth_api_options {
    struct berth_catalog *catalog;
    struct berth_sched *sched;
    struct berth_media *media;
    struct berth_slabs *slabs;
    const char *keys_file;      /* NULL or "": no keys are asked for */
    bool typed_errors;          /* KServe: the honest status codes instead of Triton's */
    bool demand;                /* models load on their first request */
    uint64_t body_bytes_max;
    uint64_t json_bytes_max;    /* of a KServe body's JSON */
    double audio_seconds_max;
};

/* Reads the keys file. INVALID names its line. */
enum berth_code berth_api_create(const struct berth_api_options *options, struct berth_api **out,
                                 struct berth_err *err) BERTH_MUST_USE;
void berth_api_destroy(struct berth_api *api); /* after the HTTP server; NULL is fine */
/* What to give to berth_http_start. */
struct berth_http_handler berth_api_handler(struct berth_api *api);
/* Whose statistics /metrics shows; set once the server runs, before that none. */
void berth_api_set_http(struct berth_api *api, struct berth_http *http);

#endif
