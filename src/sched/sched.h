/* sched.h - the controller: which request runs when, and which models are loaded.
 *
 * In:      requests, cancels, admin operations, workers' replies: all as posts on one queue.
 * Out:     messages to workers; parts and final answers to the requests' reply queues.
 * Owns:    all batchers, deadlines, model states, the ledger.
 * Threads: everything on the controller thread, except the calls marked "any thread". Time is an
 *          argument: berth_sched_turn is driven by a thread in production, by hand in tests.
 * Rules:   README.md here (S1 to S19), and residency/README.md.
 */
#ifndef BERTH_SCHED_H
#define BERTH_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/queue.h"
#include "model/model.h"
#include "repo/repo.h"
#include "request/request.h"
#include "worker/worker.h"

enum berth_control_mode {
    BERTH_CONTROL_NONE,
    BERTH_CONTROL_POLL,
    BERTH_CONTROL_EXPLICIT,
    BERTH_CONTROL_DEMAND
};

struct berth_sched_options {
    struct berth_catalog *catalog;
    struct berth_repo *repo; /* NULL in tests that fill the catalogue by hand */
    struct berth_worker **workers;
    size_t worker_count;
    enum berth_control_mode mode;
    const char *const *load_models; /* at start, with explicit or demand */
    size_t load_model_count;
    uint64_t poll_ns;
    uint64_t queue_max;       /* all models together */
    uint64_t model_queue_max; /* where the config sets none */
    uint64_t request_timeout_ns;
    uint64_t cold_wait_ns;
    uint64_t load_backoff_ns;
    uint64_t loads_max;       /* at a time */
};

enum berth_admin_kind {
    BERTH_ADMIN_LOAD,   /* load, or reload from the repository, all versions its policy serves */
    BERTH_ADMIN_UNLOAD, /* all versions; unknown names are fine */
    BERTH_ADMIN_ENSURE, /* as LOAD, but joins a load under way and leaves a loaded model alone */
    BERTH_ADMIN_SCAN,   /* look at the repository again */
    BERTH_ADMIN_BEGUN,  /* waits until what the control mode does at start is done */
    BERTH_ADMIN_DRAIN
};

struct berth_sched;

/* An operation somebody waits for. Comes back once, on `reply`. */
struct berth_admin {
    struct berth_post post;  /* sent with it, and back */
    void (*on_done)(struct berth_post *post); /* deliver of the way back */
    struct berth_queue *reply;
    enum berth_admin_kind kind;
    const char *name;        /* LOAD, UNLOAD: borrows until it is back */
    const char *config_json; /* LOAD: override, or NULL */
    uint64_t t_deadline_ns;  /* DRAIN: running requests get UNAVAILABLE then */
    struct berth_err err;
    void *state;             /* the sender's own */
    struct berth_sched *sched; /* the controller's; set by berth_sched_admin */
};

struct berth_sched_stats {
    uint64_t queued;        /* waiting, all models */
    uint64_t running;       /* requests handed to workers */
    uint64_t head_age_ns;   /* how long the oldest runnable request has waited */
    uint64_t accepted, completed, refused, expired, cancelled;
    uint64_t wasted_ns, wasted_count;
    uint64_t bytes_models, bytes_models_max; /* all devices together */
    uint64_t scans;         /* of the repository */
    bool ready;             /* accepts requests; off while draining, never for a load */
};

struct berth_device_stats {
    const char *device;     /* "cpu:0"; lends for the worker's life */
    uint64_t bytes_models, bytes_models_max;
    uint64_t faults;        /* ends of its process that cost something */
    uint64_t fallbacks;     /* loads that another device had to take (S15) */
    bool well;              /* its process is; a GPU that is not gets no loads */
};

enum berth_code berth_sched_create(const struct berth_sched_options *options,
                                   struct berth_sched **out, struct berth_err *err) BERTH_MUST_USE;
/* Starts the controller thread (production). In virtual time call berth_sched_turn instead. */
enum berth_code berth_sched_start(struct berth_sched *sched, struct berth_err *err) BERTH_MUST_USE;
/* Ends the thread; answers requests still there UNAVAILABLE; unloads models. NULL is fine. */
void berth_sched_destroy(struct berth_sched *sched);

/* Any thread. On OK the controller has its own reference and will complete the request; on error
 * (BUSY with retry_after_ms, UNAVAILABLE while draining) nothing was taken. A t_deadline_ns of 0
 * the controller sets to request_timeout from when it takes the request. */
enum berth_code berth_sched_submit(struct berth_sched *sched, struct berth_request *request,
                                   struct berth_err *err) BERTH_MUST_USE;
/* Any thread; idempotent. Nobody waits for it any more: queued it is dropped at once, running it
 * ends at its next step. The final part still comes (CANCELLED). */
void berth_sched_cancel(struct berth_sched *sched, struct berth_request *request);
/* Any thread. Judges early, on a request's head: draining, queue full, model failed or its queue
 * full, or so long that the deadline (0: none named) would pass before the request's turn. OK is no
 * promise. model may be NULL (not known yet). */
enum berth_code berth_sched_judge(struct berth_sched *sched, struct berth_model *model,
                                  uint64_t t_deadline_ns, struct berth_err *err) BERTH_MUST_USE;
void berth_sched_admin(struct berth_sched *sched, struct berth_admin *admin); /* any thread */
/* Puts "model 'NAME' could not be loaded: " before err's text, for whoever asked (S18). NULL is
 * fine. Any thread. */
void berth_sched_name_failure(struct berth_err *err, const char *model);
/* Any thread: readiness off; requests are still served. */
void berth_sched_set_ready(struct berth_sched *sched, bool ready);
void berth_sched_stats(struct berth_sched *sched, struct berth_sched_stats *out); /* any thread */
/* Of the device with that index; false past the last. Any thread. */
bool berth_sched_device_stats(struct berth_sched *sched, size_t index,
                              struct berth_device_stats *out);

/* Handles all that is in the queue and due at now_ns; returns when it wants to be called next at
 * the latest (UINT64_MAX: only when something arrives). */
uint64_t berth_sched_turn(struct berth_sched *sched, uint64_t now_ns);
struct berth_queue *berth_sched_queue(struct berth_sched *sched); /* what wakes it */

#endif
