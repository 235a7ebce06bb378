/* steps.c - step batching: rows join free slots of an instance between steps, and leave when they
 * end (S8).
 *
 * A seat between steps has something to do when rows are live in it, when slots are to be dropped,
 * or when rows wait and it has room for them. Rows are spread: a seat admits up to the even share
 * of live and waiting rows over all seats, so no row waits for a seat that runs while another
 * idles, and there is always a seat under its share. A ticket whose answer is out (cancelled,
 * deadline) keeps its slot until the drop, sent with the next step, is confirmed or the engine
 * reports the slot final.
 */
#include "sched/batcher.h"

#include "sched/controller.h"

#define STEP_BUDGET_NS (20 * BERTH_NS_PER_MS)

static struct berth_seat *pick(struct berth_copy *copy, uint64_t now_ns, uint64_t *t_due_ns);
static bool has_work(const struct berth_seat *seat);
static size_t rows_of(const struct berth_seat *seat);
static size_t room_of(const struct berth_copy *copy, const struct berth_seat *seat);
static void start(struct berth_seat *seat);
static void collect_drops(struct berth_seat *seat);
static void finish(struct berth_seat *seat);
static void confirm_drops(struct berth_seat *seat);
static void seat_admitted(struct berth_seat *seat, struct berth_ticket *ticket,
                          const struct berth_row *row);
static void take_event(struct berth_seat *seat, struct berth_step_event *event);
static struct berth_ticket *leave_slot(struct berth_seat *seat, uint32_t slot);
static void fail_all(struct berth_seat *seat);

/* The least loaded idle seat that can take a row, else the one that has rows to go on with. */
static struct berth_seat *pick(struct berth_copy *copy, uint64_t now_ns, uint64_t *t_due_ns)
{
    struct berth_seat *best = NULL;
    size_t best_room = 0;
    *t_due_ns = UINT64_MAX;
    for (size_t i = 0; i < copy->seat_count; i++) {
        struct berth_seat *seat = &copy->seats[i];
        if (seat->busy) {
            continue;
        }
        size_t room = room_of(copy, seat);
        if (room == 0 && !has_work(seat)) {
            continue;
        }
        if (best == NULL || (room > 0) > (best_room > 0) ||
            ((room > 0) == (best_room > 0) && seat->live < best->live)) {
            best = seat;
            best_room = room;
        }
    }
    if (best == NULL) {
        return NULL;
    }
    best->ticket_count = 0;
    struct berth_ticket *ticket = NULL;
    while (best->ticket_count < best_room) {
        ticket = berth_batcher_next(copy->batcher, ticket);
        best->tickets[best->ticket_count++] = ticket;
    }
    return best;
}

static bool has_work(const struct berth_seat *seat)
{
    return seat->live > 0; /* a slot to be dropped counts as live */
}

/* Live rows, those on their way in included. */
static size_t rows_of(const struct berth_seat *seat)
{
    return seat->live + (seat->busy ? seat->msg.batch.row_count : 0);
}

/* How many waiting rows it takes now. */
static size_t room_of(const struct berth_copy *copy, const struct berth_seat *seat)
{
    size_t waiting = copy->batcher->queued;
    size_t rows = waiting;
    for (size_t i = 0; i < copy->seat_count; i++) {
        rows += rows_of(&copy->seats[i]);
    }
    size_t share = (rows + copy->seat_count - 1) / copy->seat_count;
    size_t limit = share < seat->slot_count ? share : seat->slot_count;
    size_t room = limit > seat->live ? limit - seat->live : 0;
    return room < waiting ? room : waiting;
}

static void start(struct berth_seat *seat)
{
    collect_drops(seat);
    for (size_t i = 0; i < seat->ticket_count; i++) {
        struct berth_ticket *ticket = seat->tickets[i];
        berth_ticket_start(ticket);
        seat->rows[i] = (struct berth_row){.request = ticket->request};
    }
    seat->msg.kind = BERTH_WORKER_STEP;
    seat->msg.batch = (struct berth_batch){
        .rows = seat->rows, .row_count = seat->ticket_count, .batch_rows = seat->ticket_count};
    seat->msg.drops = seat->drops;
    seat->msg.drop_count = seat->drop_count;
    seat->msg.step = seat->step;
    seat->msg.budget_ns =
        seat->live + seat->ticket_count > seat->drop_count ? STEP_BUDGET_NS : 0;
    seat->step->event_count = 0;
}

static void collect_drops(struct berth_seat *seat)
{
    seat->drop_count = 0;
    for (uint32_t i = 0; i < seat->slot_count; i++) {
        if (seat->slots[i] != NULL && seat->slots[i]->answered) {
            seat->drops[seat->drop_count++] = i;
        }
    }
}

static void finish(struct berth_seat *seat)
{
    struct berth_worker_msg *msg = &seat->msg;
    confirm_drops(seat);
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        seat_admitted(seat, seat->tickets[i], &seat->rows[i]);
    }
    seat->ticket_count = 0;
    msg->batch.row_count = 0;
    if (msg->budget_ns > 0) {
        berth_count_message(seat, seat->live);
    }
    if (msg->err.code != BERTH_OK) {
        fail_all(seat);
        return;
    }
    for (size_t i = 0; i < seat->step->event_count; i++) {
        take_event(seat, &seat->step->events[i]);
    }
    seat->step->event_count = 0;
}

static void confirm_drops(struct berth_seat *seat)
{
    for (size_t i = 0; i < seat->drop_count; i++) {
        struct berth_ticket *ticket = leave_slot(seat, seat->drops[i]);
        berth_count_waste(ticket, seat->copy->sched->now_ns -
                                      ticket->request->stamps.t_started_ns); /* S12 */
        berth_ticket_return(ticket, NULL, NULL);
    }
    seat->drop_count = 0;
}

static void seat_admitted(struct berth_seat *seat, struct berth_ticket *ticket,
                          const struct berth_row *row)
{
    struct berth_err err;
    if (seat->msg.not_begun && berth_ticket_retry(ticket)) {
        return;
    }
    if (row->err.code != BERTH_OK) {
        berth_ticket_return(ticket, NULL, &row->err);
    } else if (row->slot >= seat->slot_count || seat->slots[row->slot] != NULL) {
        (void)berth_fail(&err, BERTH_INTERNAL, "the engine gave slot %u twice", row->slot);
        berth_ticket_return(ticket, NULL, &err);
    } else {
        seat->slots[row->slot] = ticket;
        seat->live++;
    }
}

static void take_event(struct berth_seat *seat, struct berth_step_event *event)
{
    struct berth_part *part = event->part;
    event->part = NULL;
    if (event->slot >= seat->slot_count || seat->slots[event->slot] == NULL) {
        berth_part_destroy(part); /* of a row that was dropped */
        return;
    }
    if (!event->final) {
        if (part != NULL) {
            berth_request_send(seat->slots[event->slot]->request, part);
        }
        return;
    }
    struct berth_ticket *ticket = leave_slot(seat, event->slot);
    bool failed = event->err.code != BERTH_OK;
    uint64_t life_ns = seat->copy->sched->now_ns - ticket->request->stamps.t_started_ns;
    if (ticket->answered) {
        berth_count_waste(ticket, life_ns);
    } else if (!failed) {
        berth_count_ran(ticket, seat, life_ns);
    }
    if (failed) {
        berth_part_destroy(part);
        part = NULL;
    }
    berth_ticket_return(ticket, part, failed ? &event->err : NULL);
}

static struct berth_ticket *leave_slot(struct berth_seat *seat, uint32_t slot)
{
    struct berth_ticket *ticket = seat->slots[slot];
    seat->slots[slot] = NULL;
    seat->live--;
    return ticket;
}

/* The whole step failed: no row goes on. Their slots are dropped with the next message. */
static void fail_all(struct berth_seat *seat)
{
    for (uint32_t i = 0; i < seat->slot_count; i++) {
        if (seat->slots[i] != NULL && !seat->slots[i]->answered) {
            berth_ticket_answer(seat->slots[i], NULL, &seat->msg.err);
        }
    }
}

const struct berth_batcher_ops berth_batcher_steps = {
    .name = "steps",
    .pick = pick,
    .start = start,
    .finish = finish,
};
