/* load.h - an HTTP load generator: prebuilt requests over many connections, on one thread.
 *
 * Open loop: arrivals are Poisson and do not wait for answers; a latency counts from the moment the
 * request was due, so that a server that stalls is charged for all who would have come meanwhile.
 * Closed loop (rate 0): each connection sends its next request when it has its answer.
 */
#ifndef BERTH_LOAD_H
#define BERTH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/hist.h"

#define BERTH_LOAD_STATUS_MAX 600
#define BERTH_LOAD_REFUSAL_MAX 8192
#define BERTH_LOAD_REFUSED_MAX 100 /* refusals before the first 200 that end a run */

struct berth_load_options {
    const char *host; /* numeric address */
    const char *port;
    const struct berth_buf *requests; /* whole HTTP requests, sent in turn */
    size_t request_count;
    double rate; /* a second; 0: closed loop */
    uint64_t connections;
    uint64_t duration_ns;
    uint64_t warmup_ns; /* answers to requests due before it are not counted */
    uint64_t seed;
};

struct berth_load_result {
    struct berth_hist latency_us; /* of answers with status 200 */
    /* The first answer that was no 200, in the warm-up too, and the beginning of its body. */
    int refusal_status; /* 0: there was none */
    char refusal[BERTH_LOAD_REFUSAL_MAX];
    size_t refusal_length;
    /* Ended early: BERTH_LOAD_REFUSED_MAX answers were refusals that time does not mend (others
     * than 429 and 503), and none was a 200. All answers count then, those of the warm-up too. */
    bool stopped;
    uint64_t statuses[BERTH_LOAD_STATUS_MAX];
    uint64_t answered;      /* counted answers, whatever their status */
    uint64_t broken;        /* connections that ended in the middle of an answer */
    uint64_t unsent;        /* open loop: due, but never sent */
    uint64_t bytes_in;
    uint64_t measured_ns;
    /* 200 answers by request index, the first 64: each counts by the share of its time, from due to
     * answered, that lies within the measured span. Few long requests that begin and end together
     * would make a whole count jump. */
    double request_shares[64];
};

enum berth_code berth_load_run(const struct berth_load_options *options,
                               struct berth_load_result *out, struct berth_err *err) BERTH_MUST_USE;

#endif
