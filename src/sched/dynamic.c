/* dynamic.c - Triton's dynamic batcher (S7).
 *
 * When a seat is idle, the queue's head and those behind it that fit beside it are gathered, in the
 * order they are served and up to the largest preferred size (or the model's batch size). Then:
 *
 *     no delay configured     the largest preferred size that the gathered reach, else all of them
 *     a preferred size is hit that many of them
 *     nothing can join any more, the oldest has waited its delay, or a deadline needs it: all
 *     else                    wait until the oldest's delay is over, or a deadline comes near
 *
 * Beside the head fits what has the same inputs, types, shapes (past the batch) and wanted outputs.
 * Unlike Triton the search goes on past a request that does not fit, so that mixed shapes still
 * batch; it never passes the head, so nothing starves. With preserve_ordering it stops there.
 */
#include "sched/batcher.h"

#include <string.h>

#include "sched/controller.h"

#define SEARCH_MAX 512 /* tickets looked at for one batch */
#define DEADLINE_MARGIN_NS BERTH_NS_PER_MS

struct gather {
    uint64_t rows;
    bool closed;             /* nothing more can join */
    size_t preferred_tickets; /* how many make up the best preferred size; 0: none is hit */
    uint64_t t_oldest_ns;
    uint64_t t_deadline_ns;
};

static struct berth_seat *pick(struct berth_copy *copy, uint64_t now_ns, uint64_t *t_due_ns);
static void gather(const struct berth_copy *copy, struct berth_seat *seat, struct gather *out);
static uint64_t rows_max(const struct berth_model_spec *spec);
static bool is_preferred(const struct berth_model_spec *spec, uint64_t rows);
static bool fits_beside(const struct berth_model_spec *spec, const struct berth_request *a,
                        const struct berth_request *b);
static bool same_shape(const struct berth_model_spec *spec, const struct berth_tensor *a,
                       const struct berth_tensor *b);

static struct berth_seat *pick(struct berth_copy *copy, uint64_t now_ns, uint64_t *t_due_ns)
{
    *t_due_ns = UINT64_MAX;
    struct berth_seat *seat = copy->batcher->queued == 0 ? NULL : berth_runs_idle_seat(copy);
    if (seat == NULL) {
        return NULL;
    }
    struct gather found = {0};
    gather(copy, seat, &found);
    uint64_t delay_ns = copy->spec->dynamic.delay_us_max * BERTH_NS_PER_US;
    uint64_t t_full_ns = found.t_oldest_ns + delay_ns;
    uint64_t margin_ns = copy->run_ns + copy->run_ns / 4 + DEADLINE_MARGIN_NS;
    uint64_t t_need_ns = found.t_deadline_ns > margin_ns ? found.t_deadline_ns - margin_ns : 0;
    bool delay_over = delay_ns > 0 && now_ns >= t_full_ns;
    if (found.preferred_tickets > 0 && !delay_over) {
        seat->ticket_count = found.preferred_tickets;
        return seat;
    }
    if (delay_ns == 0 || delay_over || found.closed || now_ns >= t_need_ns) {
        return seat;
    }
    *t_due_ns = t_full_ns < t_need_ns ? t_full_ns : t_need_ns;
    seat->ticket_count = 0;
    return NULL;
}

static void gather(const struct berth_copy *copy, struct berth_seat *seat, struct gather *out)
{
    const struct berth_model_spec *spec = copy->spec;
    struct berth_ticket *head = berth_batcher_next(copy->batcher, NULL);
    uint64_t limit = rows_max(spec);
    size_t looked_at = 0;
    seat->ticket_count = 0;
    out->t_oldest_ns = UINT64_MAX;
    out->t_deadline_ns = UINT64_MAX;
    for (struct berth_ticket *ticket = head; ticket != NULL;
         ticket = berth_batcher_next(copy->batcher, ticket)) {
        uint64_t rows = ticket->request->batch_rows;
        if (++looked_at > SEARCH_MAX || seat->ticket_count == seat->row_max) {
            out->closed = true;
            break;
        }
        if (ticket != head && !fits_beside(spec, head->request, ticket->request)) {
            if (spec->dynamic.preserve_ordering) {
                out->closed = true;
                break;
            }
            continue;
        }
        if (ticket != head && out->rows + rows > limit) {
            out->closed = true;
            break;
        }
        seat->tickets[seat->ticket_count++] = ticket;
        out->rows += rows;
        if (ticket->t_queued_ns < out->t_oldest_ns) {
            out->t_oldest_ns = ticket->t_queued_ns;
        }
        if (ticket->request->t_deadline_ns < out->t_deadline_ns) {
            out->t_deadline_ns = ticket->request->t_deadline_ns;
        }
        if (is_preferred(spec, out->rows)) {
            out->preferred_tickets = seat->ticket_count;
        }
    }
    if (out->rows >= limit) {
        out->closed = true;
    }
}

/* Triton's: the largest preferred size ends a batch; without one the model's batch size. */
static uint64_t rows_max(const struct berth_model_spec *spec)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < spec->dynamic.preferred_count; i++) {
        if (spec->dynamic.preferred[i] > largest) {
            largest = spec->dynamic.preferred[i];
        }
    }
    if (spec->batch_size_max == 0) {
        return 1;
    }
    return largest > 0 && largest < spec->batch_size_max ? largest : spec->batch_size_max;
}

static bool is_preferred(const struct berth_model_spec *spec, uint64_t rows)
{
    for (size_t i = 0; i < spec->dynamic.preferred_count; i++) {
        if (spec->dynamic.preferred[i] == rows) {
            return true;
        }
    }
    return false;
}

static bool fits_beside(const struct berth_model_spec *spec, const struct berth_request *a,
                        const struct berth_request *b)
{
    if (a->input_count != b->input_count || a->output_wanted_count != b->output_wanted_count ||
        (a->outputs_wanted == NULL) != (b->outputs_wanted == NULL)) {
        return false;
    }
    for (size_t i = 0; a->outputs_wanted != NULL && i < a->output_wanted_count; i++) {
        if (strcmp(a->outputs_wanted[i], b->outputs_wanted[i]) != 0) {
            return false;
        }
    }
    for (size_t i = 0; i < a->input_count; i++) {
        if (!same_shape(spec, &a->inputs[i], &b->inputs[i])) {
            return false;
        }
    }
    return true;
}

static bool same_shape(const struct berth_model_spec *spec, const struct berth_tensor *a,
                       const struct berth_tensor *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank || strcmp(a->name, b->name) != 0) {
        return false;
    }
    for (uint8_t i = 1; i < a->rank; i++) { /* dims[0] is the batch */
        if (a->dims[i] != b->dims[i]) {
            const struct berth_io *input = berth_spec_input(spec, a->name);
            return input != NULL && input->allow_ragged_batch;
        }
    }
    return true;
}

const struct berth_batcher_ops berth_batcher_dynamic = {
    .name = "dynamic",
    .pick = pick,
    .start = berth_runs_start,
    .finish = berth_runs_finish,
};
