/* process_watch.c - when a worker process that is up has to be given up. */
#include "worker/process_worker.h"

#include "base/clock.h"
#include "base/mem.h"

#define HANG_NS_DEFAULT (30 * BERTH_NS_PER_S)
#define HANG_NS_CLOSING (5 * BERTH_NS_PER_S) /* once the server ends */
#define LOAD_NS_DEFAULT (300 * BERTH_NS_PER_S)
#define LOADS_MAX 12 /* so many times as long as it may be silent a load may take */

static bool hangs(const struct berth_process_worker *worker, struct berth_flight *flight,
                  uint64_t now_ns);
static bool is_silent(const struct berth_process_worker *worker, struct berth_flight *flight,
                      uint64_t now_ns);

const char *berth_process_hang(struct berth_process_worker *worker, uint64_t now_ns)
{
    const char *why = NULL;
    struct berth_link *lists[2] = {&worker->sent, &worker->outbox};
    for (size_t i = 0; i < BERTH_COUNT_OF(lists); i++) {
        BERTH_LIST_EACH(link, lists[i]) {
            struct berth_flight *flight = BERTH_CONTAINER_OF(link, struct berth_flight, link);
            if (hangs(worker, flight, now_ns)) {
                why = "hangs";
            } else if (is_silent(worker, flight, now_ns)) {
                why = "hangs in a load";
            }
        }
    }
    return why;
}

bool berth_process_unwanted(const struct berth_flight *flight)
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

/* A run ends soon after its last row is cancelled (E4); one that does not never will. Nor will one
 * that the child does not take from its socket. */
static bool hangs(const struct berth_process_worker *worker, struct berth_flight *flight,
                  uint64_t now_ns)
{
    uint64_t hang_ns_max = worker->options.hang_ns_max;
    hang_ns_max = hang_ns_max == 0 ? HANG_NS_DEFAULT : hang_ns_max;
    bool closing = atomic_load(&worker->base.closing);
    if (closing && hang_ns_max > HANG_NS_CLOSING) {
        hang_ns_max = HANG_NS_CLOSING;
    }
    if (flight->t_unwanted_ns == 0 && (closing || berth_process_unwanted(flight))) {
        flight->t_unwanted_ns = now_ns;
    }
    return flight->t_unwanted_ns != 0 && now_ns - flight->t_unwanted_ns > hang_ns_max;
}

/* P12. A load may take long; what it may not is stand still, or go on for ever. */
static bool is_silent(const struct berth_process_worker *worker, struct berth_flight *flight,
                      uint64_t now_ns)
{
    uint64_t load_ns_max = berth_process_load_ns_max(worker);
    if (flight->kind != BERTH_WORKER_LOAD && flight->kind != BERTH_WORKER_UNLOAD) {
        return false;
    }
    if (flight->t_held_ns == 0) {
        flight->t_held_ns = flight->t_alive_ns = now_ns;
    }
    uint64_t held_ns = now_ns - flight->t_held_ns;
    return now_ns - flight->t_alive_ns > load_ns_max || held_ns / LOADS_MAX > load_ns_max;
}

uint64_t berth_process_load_ns_max(const struct berth_process_worker *worker)
{
    return worker->options.load_ns_max == 0 ? LOAD_NS_DEFAULT : worker->options.load_ns_max;
}
