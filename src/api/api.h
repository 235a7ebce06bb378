/* api.h - routes: how an HTTP request becomes a request of ours, and an answer a body.
 *
 * In:      exchanges from net/.     Out: requests to sched/, media jobs to media/, answers to net/.
 * Owns:    one call for each exchange. Borrows: everything in berth_api_options, for its life.
 * Threads: a call lives on its exchange's thread; berth_api itself is read-only after create.
 * Rules:   README.md here (A1 to A8).
 */
#ifndef BERTH_API_H
#define BERTH_API_H

#include "api/api_options.h"
#include "base/err.h"
#include "net/http.h"

struct berth_api;

/* Reads the keys file. INVALID names its line. */
enum berth_code berth_api_create(const struct berth_api_options *options, struct berth_api **out,
                                 struct berth_err *err) BERTH_MUST_USE;
void berth_api_destroy(struct berth_api *api); /* after the HTTP server; NULL is fine */
/* What to give to berth_http_start. */
struct berth_http_handler berth_api_handler(struct berth_api *api);
/* Whose statistics /metrics shows; set once the server runs, before that none. */
void berth_api_set_http(struct berth_api *api, struct berth_http *http);

#endif
