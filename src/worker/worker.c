/* worker.c - what all kinds of worker share. */
#include "worker/worker.h"

#include <stddef.h>
#include <string.h>

void berth_worker_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    msg->worker = worker;
    msg->err.code = BERTH_OK;
    msg->not_begun = msg->lost = false;
    atomic_store_explicit(&msg->clock, 0, memory_order_relaxed);
    worker->ops->send(worker, msg);
}

void berth_worker_cancel(struct berth_worker *worker)
{
    if (worker->ops->cancel != NULL) {
        worker->ops->cancel(worker);
    }
}

void berth_worker_want(struct berth_worker *worker, struct berth_worker_msg *load, bool wanted)
{
    bool before = !atomic_exchange(&load->unwanted, !wanted);
    if (before && !wanted) {
        berth_worker_cancel(worker);
    }
}

void berth_worker_destroy(struct berth_worker *worker)
{
    if (worker != NULL) {
        worker->ops->destroy(worker);
    }
}

bool berth_worker_is_gpu(const struct berth_worker *worker)
{
    return berth_device_is_gpu(worker->device);
}

/* A GPU that is asked for and not there, or whose engine is not, is no error: the CPU serves. */
bool berth_worker_suits(const struct berth_worker *worker, const struct berth_model_spec *spec)
{
    bool kind_fits = !berth_worker_is_gpu(worker) || berth_spec_suits_gpu(spec);
    bool engine_fits = worker->engines == NULL;
    for (size_t i = 0; worker->engines != NULL && worker->engines[i] != NULL; i++) {
        engine_fits = engine_fits ||
                      (spec->engine != NULL && strcmp(worker->engines[i], spec->engine) == 0);
    }
    return kind_fits && engine_fits;
}

void berth_worker_fault_post(struct berth_worker *worker)
{
    if (!atomic_exchange(&worker->fault_out, true)) {
        berth_queue_post(worker->replies, &worker->fault.link);
    }
}

void berth_worker_fault_seen(struct berth_worker *worker)
{
    atomic_store(&worker->fault_out, false);
}

bool berth_worker_fault_stop(struct berth_worker *worker)
{
    return !atomic_exchange(&worker->fault_out, true);
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
        if (fallback > BERTH_WORKER_STEP_INSTANCES_MAX) {
            fallback = BERTH_WORKER_STEP_INSTANCES_MAX;
        }
    }
    fallback = fallback == 0 ? 1 : fallback;
    uint32_t count = berth_spec_instances(spec, berth_worker_is_gpu(worker), fallback);
    return count == 0 ? 1 : count;
}
