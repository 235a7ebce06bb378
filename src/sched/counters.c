/* counters.c - what the statistics say, counted as Triton counts it (S13).
 *
 * Written by the controller only, read by any thread, so every field is an atomic. A request
 * refused before it was queued counts nowhere; its times count only when it succeeded.
 */
#include "sched/controller.h"

#define RETRY_MS_MIN 50
#define RETRY_MS_MAX 60000
#define RETRY_MS_UNKNOWN 1000

static void tally(struct berth_tally *into, uint64_t ns);
static void count_success(const struct berth_ticket *ticket);
static void record(struct berth_ticket *ticket);
static uint64_t since(uint64_t from_ns, uint64_t to_ns);

/* The times of a ticket whose answer is ready: it may be held before it goes out. */
void berth_count_ran(struct berth_ticket *ticket, const struct berth_seat *seat, uint64_t spent_ns)
{
    const struct berth_request *request = ticket->request;
    const struct berth_worker_msg *msg = &seat->msg;
    uint64_t t_started_ns = request->stamps.t_started_ns;
    ticket->t_run_ns = msg->kind == BERTH_WORKER_RUN ? msg->t_started_ns : t_started_ns;
    ticket->t_ended_ns = msg->t_ended_ns;
    ticket->spent_ns = spent_ns;
    if (msg->kind == BERTH_WORKER_STEP && seat->copy->seat_count > 0) {
        /* Rows overlap in time: what one costs is its life over those that live beside it. */
        uint64_t rows = (seat->live + 1) * (uint64_t)seat->copy->seat_count;
        struct berth_model *model = request->model;
        uint64_t sample = since(t_started_ns, ticket->sched->now_ns) / rows;
        atomic_store(&model->service_ns, berth_average(atomic_load(&model->service_ns), sample));
    }
}

void berth_count_end(struct berth_ticket *ticket, enum berth_code code)
{
    struct berth_sched *sched = ticket->sched;
    struct berth_model_stats *stats = &ticket->request->model->stats;
    atomic_fetch_add(&sched->completed, 1);
    if (code == BERTH_OK) {
        count_success(ticket);
        record(ticket);
        return;
    }
    if (ticket->t_ended_ns != 0) { /* it was ready, and held */
        berth_count_waste(ticket, ticket->spent_ns);
    }
    if (code == BERTH_CANCELLED) {
        atomic_fetch_add(&sched->cancelled, 1);
        atomic_fetch_add(&stats->cancelled, 1);
    } else if (code == BERTH_DEADLINE) {
        atomic_fetch_add(&sched->expired, 1);
        atomic_fetch_add(&stats->expired, 1);
    }
    if (ticket->t_queued_ns != 0) {
        tally(&stats->fail, since(ticket->request->stamps.t_queued_ns, sched->now_ns));
    }
}

/* batch_rows: rows of a RUN, live rows of a STEP. */
void berth_count_message(struct berth_seat *seat, uint64_t batch_rows)
{
    struct berth_copy *copy = seat->copy;
    struct berth_model *model = copy->runtime->model;
    uint64_t run_ns = since(seat->msg.t_started_ns, seat->msg.t_ended_ns);
    size_t size = batch_rows > BERTH_BATCH_SIZES_MAX ? BERTH_BATCH_SIZES_MAX : (size_t)batch_rows;
    if (seat->msg.err.code != BERTH_OK) {
        return; /* its time says nothing about the next */
    }
    copy->run_ns = berth_average(copy->run_ns, run_ns);
    atomic_fetch_add(&model->stats.execution_count, 1);
    struct berth_model_detail *detail = berth_model_detail_make(model);
    if (detail != NULL) {
        tally(&detail->batches[size], run_ns);
        berth_hist_record(&detail->run_us, run_ns / BERTH_NS_PER_US);
    }
    if (seat->msg.kind == BERTH_WORKER_RUN && seat->msg.batch.row_count > 0) {
        uint64_t beside = copy->seat_count;
        if (beside > copy->device->worker->parallel_max) {
            beside = copy->device->worker->parallel_max;
        }
        uint64_t sample = run_ns / (seat->msg.batch.row_count * (beside == 0 ? 1 : beside));
        atomic_store(&model->service_ns, berth_average(atomic_load(&model->service_ns), sample));
    }
}

void berth_count_waste(struct berth_ticket *ticket, uint64_t ns)
{
    struct berth_model_stats *stats = &ticket->request->model->stats;
    atomic_fetch_add(&stats->wasted_ns, ns);
    atomic_fetch_add(&stats->wasted_count, 1);
    atomic_fetch_add(&ticket->sched->wasted_ns, ns);
    atomic_fetch_add(&ticket->sched->wasted_count, 1);
}

uint64_t berth_average(uint64_t old, uint64_t sample)
{
    return old == 0 ? sample : old - old / 8 + sample / 8;
}

uint32_t berth_retry_ms(uint64_t waiting, uint64_t service_ns)
{
    if (service_ns == 0) {
        return RETRY_MS_UNKNOWN;
    }
    uint64_t service_us = service_ns / BERTH_NS_PER_US + 1;
    uint64_t ms = waiting > UINT64_MAX / service_us ? RETRY_MS_MAX : waiting * service_us / 1000;
    return ms < RETRY_MS_MIN ? RETRY_MS_MIN : ms > RETRY_MS_MAX ? RETRY_MS_MAX : (uint32_t)ms;
}

static void tally(struct berth_tally *into, uint64_t ns)
{
    atomic_fetch_add_explicit(&into->count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&into->ns, ns, memory_order_relaxed);
}

static void count_success(const struct berth_ticket *ticket)
{
    const struct berth_request *request = ticket->request;
    struct berth_model_stats *stats = &request->model->stats;
    uint64_t now_ns = ticket->sched->now_ns;
    uint64_t t_started_ns = request->stamps.t_started_ns;
    tally(&stats->success, since(request->stamps.t_queued_ns, now_ns));
    tally(&stats->queue, since(request->stamps.t_queued_ns, t_started_ns));
    tally(&stats->compute_input, since(t_started_ns, ticket->t_run_ns));
    tally(&stats->compute_infer, since(ticket->t_run_ns, ticket->t_ended_ns));
    tally(&stats->compute_output, since(ticket->t_ended_ns, now_ns));
    atomic_fetch_add(&stats->inference_count, request->batch_rows);
    atomic_store(&stats->last_inference_ms,
                 (now_ns + ticket->sched->wall_offset_ns) / BERTH_NS_PER_MS);
}

static void record(struct berth_ticket *ticket)
{
    const struct berth_stamps *stamps = &ticket->request->stamps;
    struct berth_model_detail *detail = berth_model_detail_make(ticket->request->model);
    if (detail == NULL) {
        return;
    }
    uint64_t us = since(stamps->t_queued_ns, ticket->sched->now_ns) / BERTH_NS_PER_US;
    berth_hist_record(ticket->request->cold ? &detail->latency_cold_us : &detail->latency_warm_us,
                      us);
    berth_hist_record(&detail->queue_us,
                      since(stamps->t_queued_ns, stamps->t_started_ns) / BERTH_NS_PER_US);
}

static uint64_t since(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? to_ns - from_ns : 0;
}
