/* stack.h - everything below the front, built bottom-up and torn down in reverse: slabs, engines,
 * catalogue, repository, workers, controller, decoders. `serve` and an embedded `transcribe` share
 * it.
 */
#ifndef BERTH_STACK_H
#define BERTH_STACK_H

#include "base/config.h"
#include "base/err.h"
#include "base/slab.h"
#include "cli/gpu_probe.h"
#include "media/media.h"
#include "model/model.h"
#include "repo/repo.h"
#include "sched/sched.h"
#include "worker/worker.h"

struct berth_stack {
    struct berth_slabs *slabs;
    struct berth_catalog *catalog;
    struct berth_repo *repo;
    struct berth_worker *workers[2]; /* the CPU's; then the GPU's, if there is one */
    size_t worker_count;
    struct berth_gpu_found gpu;      /* lent to its worker */
    struct berth_sched *sched;
    struct berth_media *media;
    bool engines_started;
};

/* Starts all of it and fills the catalogue. On error nothing is left. */
enum berth_code berth_stack_start(const struct berth_config *config, struct berth_stack *stack,
                                  struct berth_err *err) BERTH_MUST_USE;
/* Ends what runs: decoders, controller, workers. All that was asked of them has been answered when
 * it returns. Zeroed memory is fine. */
void berth_stack_stop(struct berth_stack *stack);
/* Stops it if that was not done; frees what answers refer to (slabs, catalogue). */
void berth_stack_finish(struct berth_stack *stack); /* zeroed memory is fine */
/* Does what admin says and waits for it, on the caller's thread. */
enum berth_code berth_stack_admin(struct berth_stack *stack, struct berth_admin *admin,
                                  struct berth_err *err) BERTH_MUST_USE;
/* Waits for the next post on queue and delivers all that are there. */
void berth_stack_deliver(struct berth_queue *queue, uint64_t t_until_ns);

#endif
