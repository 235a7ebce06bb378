/* process_watch.c - when a worker process that is up has to be given up. */
#include "worker/process_worker.h"

#include "base/clock.h"

#define HANG_NS_DEFAULT (30 * BERTH_NS_PER_S)
#define HANG_NS_CLOSING (5 * BERTH_NS_PER_S) /* once the server ends */

static bool hangs(const struct berth_process_worker *worker, struct berth_flight *flight,
                  uint64_t now_ns);
static bool is_unwanted(const struct berth_flight *flight);

/* A run ends soon after its last row is cancelled (E4); one that does not never will. Nor will one
 * that the child does not take from its socket. */
const char *berth_process_hang(struct berth_process_worker *worker, uint64_t now_ns)
{
    bool any = false;
    BERTH_LIST_EACH(link, &worker->sent) {
        any = hangs(worker, BERTH_CONTAINER_OF(link, struct berth_flight, link), now_ns) || any;
    }
    BERTH_LIST_EACH(link, &worker->outbox) {
        any = hangs(worker, BERTH_CONTAINER_OF(link, struct berth_flight, link), now_ns) || any;
    }
    return any ? "hangs" : NULL;
}

static bool hangs(const struct berth_process_worker *worker, struct berth_flight *flight,
                  uint64_t now_ns)
{
    uint64_t hang_ns_max = worker->options.hang_ns_max;
    hang_ns_max = hang_ns_max == 0 ? HANG_NS_DEFAULT : hang_ns_max;
    bool closing = atomic_load(&worker->base.closing);
    if (closing && hang_ns_max > HANG_NS_CLOSING) {
        hang_ns_max = HANG_NS_CLOSING;
    }
    if (flight->t_unwanted_ns == 0 && (closing || is_unwanted(flight))) {
        flight->t_unwanted_ns = now_ns;
    }
    return flight->t_unwanted_ns != 0 && now_ns - flight->t_unwanted_ns > hang_ns_max;
}

static bool is_unwanted(const struct berth_flight *flight)
{
    bool any = false;
    if (flight->kind != BERTH_WORKER_RUN && flight->kind != BERTH_WORKER_STEP) {
        return false;
    }
    for (size_t i = 0; i < flight->msg->batch.row_count; i++) {
        const struct berth_request *request = flight->msg->batch.rows[i].request;
        any = true;
        if (!atomic_load_explicit(&request->cancelled, memory_order_relaxed)) {
            return false;
        }
    }
    const struct berth_remote_slot *slots =
        berth_remote_slots(flight->remote, flight->msg->instance);
    for (uint32_t i = 0; slots != NULL && i < flight->remote->slot_count; i++) {
        any = any || slots[i].request != NULL;
        if (slots[i].request != NULL &&
            !atomic_load_explicit(&slots[i].request->cancelled, memory_order_relaxed)) {
            return false;
        }
    }
    return any;
}
