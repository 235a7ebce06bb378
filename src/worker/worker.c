/* worker.c - what all kinds of worker share. */
#include "worker/worker.h"

#include <stddef.h>

#define INSTANCES_MAX 64
#define STEP_INSTANCES_MAX 4

void berth_worker_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    msg->worker = worker;
    msg->err.code = BERTH_OK;
    worker->ops->send(worker, msg);
}

void berth_worker_destroy(struct berth_worker *worker)
{
    if (worker != NULL) {
        worker->ops->destroy(worker);
    }
}

/* Why not one instance for step models: a long encoder call of one row would hold up the short
 * decoder calls of all others, and on a CPU the parts of a step outside the operator pool leave
 * cores idle. Why at most four: each instance has its own state for all its slots. */
uint32_t berth_worker_instances(const struct berth_worker *worker,
                                const struct berth_model_spec *spec)
{
    uint32_t fallback = 1;
    if (spec->run_mode == BERTH_RUN_STEPS) {
        fallback = worker->parallel_max;
        if (fallback > STEP_INSTANCES_MAX) {
            fallback = STEP_INSTANCES_MAX;
        }
    }
    uint32_t count = berth_spec_instances(spec, fallback == 0 ? 1 : fallback);
    return count == 0 ? 1 : count > INSTANCES_MAX ? INSTANCES_MAX : count;
}
