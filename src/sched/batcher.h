/* batcher.h - how tickets of one loaded model become messages to its instances.
 *
 * Three kinds: direct.c (one request a call), dynamic.c (Triton's dynamic batcher), steps.c (rows
 * join and leave between steps). A sequence batcher takes its place beside them. The dispatcher
 * asks pick whether there is something to do, chooses among copies, and then calls start. Threads:
 * the controller's only. Batchers never read the clock (S1).
 */
#ifndef BERTH_BATCHER_H
#define BERTH_BATCHER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/queue.h"
#include "model/model.h"

struct berth_copy;
struct berth_seat;
struct berth_ticket;

struct berth_batcher_ops {
    const char *name;
    /* Required. An idle seat and what it would do now, or NULL; then *t_due_ns is when time alone
     * may change that (UINT64_MAX: never). Changes nothing but the seat's picked tickets. */
    struct berth_seat *(*pick)(struct berth_copy *copy, uint64_t now_ns, uint64_t *t_due_ns);
    /* Required. Fills seat->msg with what pick found and takes those tickets off the queue. */
    void (*start)(struct berth_seat *seat);
    /* Required. The message is back: answers its tickets. */
    void (*finish)(struct berth_seat *seat);
};

/* One priority level: those in order of arrival, then those whose queue timeout delayed them. */
struct berth_batcher_level {
    struct berth_link active;
    struct berth_link delayed;
    size_t count;
};

struct berth_batcher {
    const struct berth_batcher_ops *ops;
    const struct berth_model_spec *spec; /* borrows: the copy's */
    size_t queued;
    size_t level_count;
    struct berth_link brim_link; /* sched->brims, once it has been filled in a turn */
    struct berth_model *model;   /* borrows, with brim_link: whose queue_full it is */
    struct berth_batcher_level levels[];
};

extern const struct berth_batcher_ops berth_batcher_direct;
extern const struct berth_batcher_ops berth_batcher_dynamic;
extern const struct berth_batcher_ops berth_batcher_steps;

/* levels.c - the queue that all kinds share: priority levels and Triton's queue policy. */
enum berth_code berth_batcher_create(const struct berth_model_spec *spec,
                                     struct berth_batcher **out,
                                     struct berth_err *err) BERTH_MUST_USE;
void berth_batcher_destroy(struct berth_batcher *batcher); /* NULL is fine */
/* Queues by priority; sets the ticket's level and queue timeout. UNAVAILABLE, as Triton, when the
 * level's max_queue_size are waiting. */
enum berth_code berth_batcher_put(struct berth_batcher *batcher, struct berth_ticket *ticket,
                                  struct berth_err *err) BERTH_MUST_USE;
/* UNAVAILABLE, in Triton's words, for one more behind depth that wait; with a Retry-After. */
enum berth_code berth_batcher_refuse(const struct berth_model *model, uint64_t depth,
                                     struct berth_err *err);
void berth_batcher_remove(struct berth_batcher *batcher, struct berth_ticket *ticket);
/* Every request would be refused: it has one level, and that is at its max_queue_size. */
bool berth_batcher_is_full(const struct berth_batcher *batcher);
/* Its queue timeout is over: true if it is to be refused, false if it goes to the end (DELAY). */
bool berth_batcher_timeout(struct berth_batcher *batcher, struct berth_ticket *ticket);
/* In the order they are served; NULL after the last. `after` NULL: the first. */
struct berth_ticket *berth_batcher_next(const struct berth_batcher *batcher,
                                        const struct berth_ticket *after);

/* runs.c - RUN messages, shared by direct and dynamic. */
void berth_runs_start(struct berth_seat *seat);
void berth_runs_finish(struct berth_seat *seat);
struct berth_seat *berth_runs_idle_seat(const struct berth_copy *copy); /* NULL: all busy */

#endif
