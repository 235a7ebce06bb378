/* ticket.c - the way of one accepted request through the controller, and its one final answer (S3).
 *
 *     POSTED -> [WAITING ->] QUEUED -> RUNNING -> [HELD ->] answered
 *
 * An answer can come at any point (deadline, cancel, drain): it goes out at once. If a worker still
 * holds the request, the ticket stays, answered, until the worker gives it back; the controller's
 * reference keeps the memory alive that long. Nothing here allocates.
 */
#include "sched/controller.h"

static void go_elsewhere(struct berth_ticket *ticket);
static void fire(struct berth_timer *timer);
static void leave_lists(struct berth_ticket *ticket);
static void uncount(struct berth_ticket *ticket);
static void forget(struct berth_ticket *ticket);
static bool must_hold(const struct berth_ticket *ticket);
static void release_held(struct berth_copy *copy);
static void refuse(struct berth_ticket *ticket, enum berth_code code, const char *text);
static void refuse_stopping(struct berth_ticket *ticket);
static const char *place_of(const struct berth_ticket *ticket);

void berth_ticket_take(struct berth_ticket *ticket)
{
    struct berth_sched *sched = ticket->sched;
    struct berth_request *request = ticket->request;
    berth_list_append(&sched->tickets, &ticket->all_link);
    sched->unanswered++;
    request->stamps.t_queued_ns = sched->now_ns;
    if (request->t_deadline_ns == 0) {
        request->t_deadline_ns = sched->now_ns + sched->options.request_timeout_ns;
    }
    ticket->timer.fire = fire;
    atomic_store_explicit(&request->model->t_used_ns, sched->now_ns, memory_order_relaxed);
    if (atomic_load(&request->cancelled)) {
        refuse(ticket, BERTH_CANCELLED, "cancelled by client");
        return;
    }
    if (sched->draining || sched->closing) {
        refuse_stopping(ticket);
        return;
    }
    if (request->t_deadline_ns <= sched->now_ns) {
        refuse(ticket, BERTH_DEADLINE, "the deadline had passed when the request arrived");
        return;
    }
    ticket->runtime = berth_runtime_of(sched, request->model);
    if (ticket->runtime == NULL) {
        refuse(ticket, BERTH_UNAVAILABLE, "out of memory");
    } else if (ticket->runtime->current != NULL) {
        berth_ticket_enqueue(ticket, ticket->runtime->current);
    } else {
        berth_runtime_want(ticket);
    }
}

/* A full queue may be full only because this turn has not dispatched yet: a burst is not refused
 * while seats are idle. */
void berth_ticket_enqueue(struct berth_ticket *ticket, struct berth_copy *copy)
{
    struct berth_sched *sched = ticket->sched;
    struct berth_err err = {0};
    ticket->t_queued_ns = sched->now_ns;
    enum berth_code code = berth_batcher_put(copy->batcher, ticket, &err);
    if (code != BERTH_OK) {
        berth_dispatch(sched);
        code = berth_batcher_put(copy->batcher, ticket, &err);
    }
    if (code != BERTH_OK) {
        ticket->state = BERTH_TICKET_POSTED;
        ticket->t_queued_ns = 0; /* it never was in the queue: counts as no failure */
        atomic_fetch_add(&sched->refused, 1);
        atomic_fetch_add(&ticket->request->model->stats.rejected, 1);
        berth_ticket_answer(ticket, NULL, &err);
        return;
    }
    ticket->state = BERTH_TICKET_QUEUED;
    ticket->copy = copy;
    copy->ticket_count++;
    if (berth_batcher_is_full(copy->batcher)) { /* S5: told when this turn has dispatched */
        copy->batcher->model = ticket->request->model;
        berth_list_remove(&copy->batcher->brim_link);
        berth_list_append(&sched->brims, &copy->batcher->brim_link);
    }
    berth_residency_pin(&copy->lease, sched->now_ns);
    ticket->request->stamps.t_loaded_ns = sched->now_ns;
    berth_list_append(&sched->queued_by_age, &ticket->age_link);
    berth_ticket_arm(ticket);
    berth_dispatch_mark(copy);
}

void berth_ticket_requeue(struct berth_ticket *ticket)
{
    BERTH_ASSERT(ticket->state == BERTH_TICKET_QUEUED);
    berth_batcher_remove(ticket->copy->batcher, ticket);
    berth_list_remove(&ticket->age_link);
    go_elsewhere(ticket);
}

bool berth_ticket_retry(struct berth_ticket *ticket)
{
    struct berth_sched *sched = ticket->sched;
    struct berth_copy *copy = ticket->copy;
    BERTH_ASSERT(ticket->state == BERTH_TICKET_RUNNING);
    if (ticket->answered || ticket->retried || sched->closing ||
        ticket->runtime->current == copy) {
        return false;
    }
    ticket->retried = true;
    ticket->counted = true;
    atomic_fetch_add(&sched->queued, 1);
    atomic_fetch_add(&ticket->request->model->stats.queue_depth, 1);
    atomic_fetch_sub(&sched->running, 1);
    if (ticket->ordered) {
        berth_list_remove(&ticket->order_link);
        ticket->ordered = false;
    }
    go_elsewhere(ticket);
    release_held(copy);
    return true;
}

/* To the copy that serves now, or to wait for the next one. */
static void go_elsewhere(struct berth_ticket *ticket)
{
    struct berth_copy *copy = ticket->copy;
    ticket->state = BERTH_TICKET_POSTED;
    ticket->copy = NULL;
    ticket->delayed = false;
    ticket->t_timeout_ns = 0;
    copy->ticket_count--;
    berth_residency_unpin(&copy->lease, ticket->sched->now_ns);
    if (ticket->runtime->current != NULL) {
        berth_ticket_enqueue(ticket, ticket->runtime->current);
    } else {
        berth_runtime_want(ticket);
    }
}

void berth_ticket_start(struct berth_ticket *ticket)
{
    struct berth_copy *copy = ticket->copy;
    BERTH_ASSERT(ticket->state == BERTH_TICKET_QUEUED);
    berth_batcher_remove(copy->batcher, ticket);
    berth_list_remove(&ticket->age_link);
    uncount(ticket);
    ticket->state = BERTH_TICKET_RUNNING;
    ticket->request->stamps.t_started_ns = ticket->sched->now_ns;
    atomic_fetch_add(&ticket->sched->running, 1);
    if (copy->spec->dynamic.preserve_ordering &&
        copy->spec->batching == BERTH_BATCHING_DYNAMIC) {
        berth_list_append(&copy->ordered, &ticket->order_link);
        ticket->ordered = true;
    }
    berth_ticket_arm(ticket);
}

void berth_ticket_return(struct berth_ticket *ticket, struct berth_part *part,
                         const struct berth_err *err)
{
    BERTH_ASSERT(ticket->state == BERTH_TICKET_RUNNING);
    atomic_fetch_sub(&ticket->sched->running, 1);
    ticket->state = BERTH_TICKET_HELD;
    if (ticket->answered) {
        berth_part_destroy(part);
        forget(ticket);
    } else if (must_hold(ticket)) {
        ticket->held_part = part;
        ticket->held_err.code = BERTH_OK;
        if (err != NULL) {
            ticket->held_err = *err;
        }
    } else {
        berth_ticket_answer(ticket, part, err);
    }
}

void berth_ticket_answer(struct berth_ticket *ticket, struct berth_part *part,
                         const struct berth_err *err)
{
    struct berth_sched *sched = ticket->sched;
    struct berth_copy *copy = ticket->ordered ? ticket->copy : NULL;
    BERTH_ASSERT(!ticket->answered);
    ticket->answered = true;
    leave_lists(ticket);
    berth_timers_disarm(&sched->timers, &ticket->timer);
    uncount(ticket);
    sched->unanswered--;
    berth_count_end(ticket, err == NULL ? BERTH_OK : err->code);
    if (ticket->state == BERTH_TICKET_RUNNING) {
        atomic_store(&ticket->request->cancelled, true); /* S11: the worker need not go on */
        berth_worker_cancel(ticket->copy->device->worker);
    }
    bool first = berth_request_complete(ticket->request, part, err);
    BERTH_ASSERT(first); /* S3: nobody else completes it */
    if (ticket->state != BERTH_TICKET_RUNNING) {
        forget(ticket);
    }
    if (copy != NULL) {
        release_held(copy);
    }
    if (sched->unanswered == 0) {
        berth_ops_drained(sched);
    }
}

void berth_ticket_cancel(struct berth_ticket *ticket)
{
    struct berth_err err = {0};
    if (!ticket->answered) {
        (void)berth_fail(&err, BERTH_CANCELLED, "cancelled by client while %s", place_of(ticket));
        berth_ticket_answer(ticket, NULL, &err);
    }
}

/* An answer may take others along, so each round looks from the start; what stays there is what
 * workers hold, which is little. */
void berth_tickets_refuse(struct berth_sched *sched)
{
    struct berth_link *link = sched->tickets.next;
    while (link != &sched->tickets) {
        struct berth_ticket *ticket = BERTH_CONTAINER_OF(link, struct berth_ticket, all_link);
        if (ticket->answered) {
            link = link->next;
            continue;
        }
        refuse_stopping(ticket);
        link = sched->tickets.next;
    }
}

void berth_ticket_arm(struct berth_ticket *ticket)
{
    uint64_t t_due_ns = ticket->request->t_deadline_ns;
    if (ticket->state == BERTH_TICKET_WAITING && ticket->t_cold_ns < t_due_ns) {
        t_due_ns = ticket->t_cold_ns;
    }
    if (ticket->state == BERTH_TICKET_QUEUED && ticket->t_timeout_ns != 0 &&
        ticket->t_timeout_ns < t_due_ns) {
        t_due_ns = ticket->t_timeout_ns;
    }
    berth_timers_arm(&ticket->sched->timers, &ticket->timer, t_due_ns);
}

/* S4. Triton's queue timeout comes first: a client that asked for it knows its answer. */
static void fire(struct berth_timer *timer)
{
    struct berth_ticket *ticket = BERTH_CONTAINER_OF(timer, struct berth_ticket, timer);
    uint64_t now_ns = ticket->sched->now_ns;
    struct berth_err err = {0};
    if (ticket->state == BERTH_TICKET_QUEUED && ticket->t_timeout_ns != 0 &&
        ticket->t_timeout_ns <= now_ns &&
        berth_batcher_timeout(ticket->copy->batcher, ticket)) {
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "Request timeout expired");
        atomic_fetch_add(&ticket->request->model->stats.rejected, 1);
        berth_ticket_answer(ticket, NULL, &err);
    } else if (ticket->request->t_deadline_ns <= now_ns) {
        (void)berth_fail(&err, BERTH_DEADLINE, "deadline exceeded while %s", place_of(ticket));
        berth_ticket_answer(ticket, NULL, &err);
    } else if (ticket->state == BERTH_TICKET_WAITING && ticket->t_cold_ns <= now_ns) {
        berth_list_remove(&ticket->link); /* the load goes on: the client will be back */
        ticket->runtime->promised = true;
        ticket->state = BERTH_TICKET_POSTED;
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "model '%s' is still loading",
                         ticket->request->model->name);
        err.retry_after_ms = berth_runtime_predict_ms(ticket->runtime);
        berth_ticket_answer(ticket, NULL, &err);
    } else {
        if (ticket->state == BERTH_TICKET_QUEUED) {
            berth_dispatch_mark(ticket->copy); /* DELAY: another one is at the head (S10) */
        }
        berth_ticket_arm(ticket);
    }
}

static void leave_lists(struct berth_ticket *ticket)
{
    if (ticket->state == BERTH_TICKET_WAITING) {
        berth_list_remove(&ticket->link);
        ticket->state = BERTH_TICKET_POSTED;
        berth_runtime_left(ticket->runtime);
    } else if (ticket->state == BERTH_TICKET_QUEUED) {
        berth_batcher_remove(ticket->copy->batcher, ticket);
        berth_list_remove(&ticket->age_link);
        berth_dispatch_mark(ticket->copy); /* what is left may batch otherwise */
        ticket->state = BERTH_TICKET_POSTED;
    }
    if (ticket->ordered) {
        berth_list_remove(&ticket->order_link);
        ticket->ordered = false;
    }
    berth_part_destroy(ticket->held_part);
    ticket->held_part = NULL;
}

/* Out of the queue counts, once (S2). */
static void uncount(struct berth_ticket *ticket)
{
    if (ticket->counted) {
        ticket->counted = false;
        atomic_fetch_sub(&ticket->sched->queued, 1);
        atomic_fetch_sub(&ticket->request->model->stats.queue_depth, 1);
    }
}

/* The ticket's memory is the request's: nothing may touch it after this. */
static void forget(struct berth_ticket *ticket)
{
    struct berth_copy *copy = ticket->copy;
    berth_list_remove(&ticket->all_link);
    if (copy != NULL) {
        copy->ticket_count--;
        berth_residency_unpin(&copy->lease, ticket->sched->now_ns);
        ticket->copy = NULL;
        berth_copy_settle(copy);
    }
    berth_request_release(ticket->request);
}

/* Its answer waits while an earlier ticket of the copy has none (preserve_ordering). */
static bool must_hold(const struct berth_ticket *ticket)
{
    return ticket->ordered && ticket->copy->ordered.next != &ticket->order_link;
}

static void release_held(struct berth_copy *copy)
{
    if (copy->releasing) {
        return;
    }
    copy->releasing = true;
    while (!berth_list_empty(&copy->ordered)) {
        struct berth_ticket *ticket =
            BERTH_CONTAINER_OF(copy->ordered.next, struct berth_ticket, order_link);
        if (ticket->state != BERTH_TICKET_HELD) {
            break;
        }
        struct berth_part *part = ticket->held_part;
        struct berth_err err = ticket->held_err;
        ticket->held_part = NULL;
        berth_ticket_answer(ticket, part, err.code == BERTH_OK ? NULL : &err);
    }
    copy->releasing = false;
}

static void refuse(struct berth_ticket *ticket, enum berth_code code, const char *text)
{
    struct berth_err err = {0};
    (void)berth_fail(&err, code, "%s", text);
    berth_ticket_answer(ticket, NULL, &err);
}

static void refuse_stopping(struct berth_ticket *ticket)
{
    struct berth_err err = {0};
    (void)berth_sched_stopping(&err);
    berth_ticket_answer(ticket, NULL, &err);
}

static const char *place_of(const struct berth_ticket *ticket)
{
    switch (ticket->state) {
    case BERTH_TICKET_WAITING:
        return "its model was loading";
    case BERTH_TICKET_POSTED:
    case BERTH_TICKET_QUEUED:
        return "it was queued";
    case BERTH_TICKET_RUNNING:
    case BERTH_TICKET_HELD:
        return "it ran";
    }
    return "it was queued";
}
