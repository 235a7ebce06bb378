/* direct.c - no batching: one request a call, in order of arrival. */
#include "sched/batcher.h"

#include "sched/controller.h"

static struct berth_seat *pick(struct berth_copy *copy, uint64_t now_ns, uint64_t *t_due_ns)
{
    struct berth_ticket *first = berth_batcher_next(copy->batcher, NULL);
    struct berth_seat *seat = first == NULL ? NULL : berth_runs_idle_seat(copy);
    *t_due_ns = UINT64_MAX;
    if (seat != NULL) {
        seat->tickets[0] = first;
        seat->ticket_count = 1;
    }
    return seat;
}

const struct berth_batcher_ops berth_batcher_direct = {
    .name = "direct",
    .pick = pick,
    .start = berth_runs_start,
    .finish = berth_runs_finish,
};
