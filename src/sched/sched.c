/* sched.c - the controller's outside: what any thread may call, the queue, and its thread.
 *
 * Everything that happens is a post on one queue or a timer; a turn handles what is there, then
 * starts the loads and messages that can start. Time is handed in (S1): the thread below reads the
 * clock, tests and the simulator make their own. What other threads read are atomics of their own,
 * never the records behind them.
 */
#include "sched/sched.h"

#include <stdio.h>

#include "base/log.h"
#include "sched/controller.h"

#define STOPPING_RETRY_MS 1000
#define TURN_ROUNDS_MAX 16 /* of the queue, before timers and dispatch get their turn */

static enum berth_code setup_devices(struct berth_sched *sched, struct berth_err *err);
static void deliver_fault(struct berth_post *post);
static void stop_faults(struct berth_sched *sched);
static void deliver_submit(struct berth_post *post);
static void deliver_cancel(struct berth_post *post);
static void deliver_admin(struct berth_post *post);
static enum berth_code reserve_place(struct berth_sched *sched, struct berth_request *request,
                                     struct berth_err *err);
static bool model_is_full(struct berth_sched *sched, struct berth_model *model, uint64_t depth);
static enum berth_code judge_wait(struct berth_model *model, uint64_t depth, uint64_t left_ns,
                                  struct berth_err *err);
static enum berth_code busy(struct berth_sched *sched, struct berth_model *model, uint64_t waiting,
                            struct berth_err *err);
static enum berth_code turn_away(struct berth_sched *sched, struct berth_model *model,
                                 enum berth_code code);
static uint64_t outside_now_ns(struct berth_sched *sched);
static void handle_posts(struct berth_sched *sched);
static void publish(struct berth_sched *sched);
static void *thread_main(void *argument);
static void close_all(struct berth_sched *sched);

enum berth_code berth_sched_create(const struct berth_sched_options *options,
                                   struct berth_sched **out, struct berth_err *err)
{
    struct berth_sched *sched = berth_alloc(sizeof(*sched));
    if (sched == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    sched->options = *options;
    if (sched->options.loads_max == 0) {
        sched->options.loads_max = 1;
    }
    berth_list_init(&sched->tickets);
    berth_list_init(&sched->queued_by_age);
    berth_list_init(&sched->runtimes);
    berth_list_init(&sched->load_queue);
    berth_list_init(&sched->ops);
    berth_list_init(&sched->brims);
    atomic_store(&sched->ready, true);
    enum berth_code code = berth_queue_init(&sched->queue, 0, err);
    if (code == BERTH_OK) {
        code = setup_devices(sched, err);
    }
    if (code != BERTH_OK) {
        berth_queue_finish(&sched->queue);
        berth_free(sched);
        return code;
    }
    *out = sched;
    return BERTH_OK;
}

enum berth_code berth_sched_start(struct berth_sched *sched, struct berth_err *err)
{
    if (pthread_create(&sched->thread, NULL, thread_main, sched) != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot start the controller thread");
    }
    pthread_setname_np(sched->thread, "controller");
    sched->started = true;
    return BERTH_OK;
}

void berth_sched_destroy(struct berth_sched *sched)
{
    if (sched == NULL) {
        return;
    }
    atomic_store(&sched->refusing, true);
    if (sched->started) {
        atomic_store(&sched->stop, true);
        berth_queue_nudge(&sched->queue);
        pthread_join(sched->thread, NULL);
    }
    close_all(sched);
    while (!berth_list_empty(&sched->runtimes)) {
        berth_runtime_destroy(
            BERTH_CONTAINER_OF(sched->runtimes.next, struct berth_runtime, link));
    }
    berth_queue_finish(&sched->queue);
    berth_free(sched->devices);
    berth_free(sched);
}

enum berth_code berth_sched_submit(struct berth_sched *sched, struct berth_request *request,
                                   struct berth_err *err)
{
    struct berth_ticket *ticket = berth_arena_alloc(&request->arena, sizeof(*ticket));
    if (ticket == NULL) {
        atomic_fetch_add(&sched->refused, 1);
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    BERTH_TRY(reserve_place(sched, request, err));
    ticket->sched = sched;
    ticket->request = berth_request_retain(request);
    ticket->counted = true;
    request->sched_state = ticket;
    request->submit_post.deliver = deliver_submit;
    atomic_fetch_add(&sched->accepted, 1);
    berth_queue_post(&sched->queue, &request->submit_post.link);
    return BERTH_OK;
}

void berth_sched_cancel(struct berth_sched *sched, struct berth_request *request)
{
    atomic_store(&request->cancelled, true);
    if (request->sched_state == NULL || atomic_exchange(&request->cancel_sent, true)) {
        return;
    }
    berth_request_retain(request);
    request->cancel_post.deliver = deliver_cancel;
    berth_queue_post(&sched->queue, &request->cancel_post.link);
}

enum berth_code berth_sched_judge(struct berth_sched *sched, struct berth_model *model,
                                  uint64_t t_deadline_ns, struct berth_err *err)
{
    uint64_t queued = atomic_load(&sched->queued);
    if (atomic_load(&sched->refusing)) {
        return berth_sched_stopping(err);
    }
    if (queued >= sched->options.queue_max) {
        return turn_away(sched, model, busy(sched, model, queued, err));
    }
    if (model == NULL) {
        return BERTH_OK;
    }
    uint64_t depth = atomic_load(&model->stats.queue_depth);
    if (depth >= sched->options.model_queue_max && model_is_full(sched, model, depth)) {
        return turn_away(sched, model, busy(sched, model, depth, err));
    }
    if (atomic_load_explicit(&model->queue_full, memory_order_relaxed)) {
        return turn_away(sched, model, berth_batcher_refuse(model, depth, err));
    }
    uint64_t now_ns = outside_now_ns(sched);
    BERTH_TRY(judge_wait(model, depth, t_deadline_ns > now_ns ? t_deadline_ns - now_ns : 0, err));
    return berth_runtime_judge(model, now_ns, err);
}

void berth_sched_admin(struct berth_sched *sched, struct berth_admin *admin)
{
    admin->sched = sched;
    admin->err.code = BERTH_OK;
    admin->post.deliver = deliver_admin;
    berth_queue_post(&sched->queue, &admin->post.link);
}

/* "Retry" is true in a rolling update: the next try finds another server, or this one anew. */
enum berth_code berth_sched_stopping(struct berth_err *err)
{
    (void)berth_fail(err, BERTH_UNAVAILABLE, "the server is stopping");
    if (err != NULL) {
        err->retry_after_ms = STOPPING_RETRY_MS;
    }
    return BERTH_UNAVAILABLE;
}

void berth_sched_set_ready(struct berth_sched *sched, bool ready)
{
    atomic_store(&sched->ready, ready);
}

void berth_sched_stats(struct berth_sched *sched, struct berth_sched_stats *out)
{
    uint64_t t_head_ns = atomic_load(&sched->t_head_ns);
    uint64_t now_ns = outside_now_ns(sched);
    *out = (struct berth_sched_stats){
        .queued = atomic_load(&sched->queued),
        .running = atomic_load(&sched->running),
        .head_age_ns = t_head_ns == 0 || now_ns < t_head_ns ? 0 : now_ns - t_head_ns,
        .accepted = atomic_load(&sched->accepted),
        .completed = atomic_load(&sched->completed),
        .refused = atomic_load(&sched->refused),
        .expired = atomic_load(&sched->expired),
        .cancelled = atomic_load(&sched->cancelled),
        .wasted_ns = atomic_load(&sched->wasted_ns),
        .wasted_count = atomic_load(&sched->wasted_count),
        .scans = atomic_load(&sched->scans),
        .ready = atomic_load(&sched->ready) && !atomic_load(&sched->refusing),
    };
    for (size_t i = 0; i < sched->device_count; i++) {
        out->bytes_models += atomic_load(&sched->devices[i].bytes_models);
        out->bytes_models_max += sched->devices[i].worker->bytes_max;
    }
}

bool berth_sched_device_stats(struct berth_sched *sched, size_t index,
                              struct berth_device_stats *out)
{
    if (index >= sched->device_count) {
        return false;
    }
    struct berth_device *device = &sched->devices[index];
    *out = (struct berth_device_stats){
        .device = device->worker->device,
        .bytes_models = atomic_load(&device->bytes_models),
        .bytes_models_max = device->worker->bytes_max,
        .faults = atomic_load(&device->faults_total),
        .fallbacks = atomic_load(&device->fallbacks_total),
        .well = atomic_load(&device->well),
    };
    return true;
}

uint64_t berth_sched_turn(struct berth_sched *sched, uint64_t now_ns)
{
    if (now_ns > sched->now_ns) {
        sched->now_ns = now_ns;
    }
    atomic_store_explicit(&sched->t_turn_ns, sched->now_ns, memory_order_relaxed);
    if (!sched->begun && !sched->closing) {
        berth_ops_begin(sched);
    }
    berth_queue_hold();
    handle_posts(sched);
    berth_timers_fire(&sched->timers, sched->now_ns);
    berth_copies_pump(sched);
    berth_dispatch(sched);
    publish(sched);
    berth_queue_release();
    return berth_timers_next(&sched->timers);
}

struct berth_queue *berth_sched_queue(struct berth_sched *sched)
{
    return &sched->queue;
}

static enum berth_code setup_devices(struct berth_sched *sched, struct berth_err *err)
{
    const struct berth_sched_options *options = &sched->options;
    if (options->worker_count == 0) {
        return berth_fail(err, BERTH_INVALID, "a controller needs a worker");
    }
    if (options->worker_count > BERTH_DEVICES_MAX) {
        return berth_fail(err, BERTH_INVALID, "more than %d workers", BERTH_DEVICES_MAX);
    }
    sched->devices = berth_alloc(options->worker_count * sizeof(*sched->devices));
    if (sched->devices == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    sched->device_count = options->worker_count;
    for (size_t i = 0; i < options->worker_count; i++) {
        struct berth_device *device = &sched->devices[i];
        device->worker = options->workers[i];
        device->worker->replies = &sched->queue;
        device->worker->fault.deliver = deliver_fault;
        device->worker->state = sched;
        berth_residency_init(&device->ledger, device->worker->bytes_max, device->worker->device);
        berth_list_init(&device->ready);
        device->gpu = berth_worker_is_gpu(device->worker);
        device->epoch_seen = atomic_load(&device->worker->epoch);
        device->epoch_slow = UINT64_MAX;
    }
    return BERTH_OK;
}

static void deliver_fault(struct berth_post *post)
{
    struct berth_worker *worker = BERTH_CONTAINER_OF(post, struct berth_worker, fault);
    struct berth_sched *sched = worker->state;
    for (size_t i = 0; i < sched->device_count; i++) {
        if (sched->devices[i].worker == worker) {
            berth_device_lost(sched, &sched->devices[i]);
        }
    }
}

/* The queue ends: what a worker has posted to it must be out of it, and nothing more may come. */
static void stop_faults(struct berth_sched *sched)
{
    for (size_t i = 0; i < sched->device_count; i++) {
        while (!berth_worker_fault_stop(sched->devices[i].worker)) {
            handle_posts(sched);
        }
    }
}

static void deliver_submit(struct berth_post *post)
{
    struct berth_request *request = BERTH_CONTAINER_OF(post, struct berth_request, submit_post);
    berth_ticket_take(request->sched_state);
}

static void deliver_cancel(struct berth_post *post)
{
    struct berth_request *request = BERTH_CONTAINER_OF(post, struct berth_request, cancel_post);
    berth_ticket_cancel(request->sched_state);
    berth_request_release(request);
}

static void deliver_admin(struct berth_post *post)
{
    berth_ops_take(BERTH_CONTAINER_OF(post, struct berth_admin, post));
}

/* S2. Both counts are raised first and lowered again on refusal, so that the bounds are hard
 * whatever comes at once. */
static enum berth_code reserve_place(struct berth_sched *sched, struct berth_request *request,
                                     struct berth_err *err)
{
    struct berth_model *model = request->model;
    uint64_t queued = atomic_fetch_add(&sched->queued, 1);
    uint64_t depth = atomic_fetch_add(&model->stats.queue_depth, 1);
    enum berth_code code = BERTH_OK;
    if (atomic_load(&sched->refusing)) {
        code = berth_sched_stopping(err);
    } else if (queued >= sched->options.queue_max) {
        code = busy(sched, model, queued, err);
    } else if (depth >= sched->options.model_queue_max && model_is_full(sched, model, depth)) {
        code = busy(sched, model, depth, err);
    }
    if (code != BERTH_OK) {
        atomic_fetch_sub(&sched->queued, 1);
        atomic_fetch_sub(&model->stats.queue_depth, 1);
        atomic_fetch_add(&sched->refused, 1);
        if (code == BERTH_BUSY) {
            atomic_fetch_add(&model->stats.rejected, 1);
        }
    }
    return code;
}

/* Where the config sets max_queue_size, that is the limit, and the batcher keeps it (S5). */
static bool model_is_full(struct berth_sched *sched, struct berth_model *model, uint64_t depth)
{
    struct berth_model_spec *spec = berth_model_spec(model);
    bool own_limit = spec != NULL && spec->batching == BERTH_BATCHING_DYNAMIC &&
                     spec->dynamic.policy_default.count_max > 0;
    for (size_t i = 0; spec != NULL && i < spec->dynamic.priority_levels &&
                       i < BERTH_PRIORITY_MAX && spec->batching == BERTH_BATCHING_DYNAMIC; i++) {
        own_limit = own_limit || spec->dynamic.policies[i].count_max > 0;
    }
    berth_spec_release(spec);
    return !own_limit && depth >= sched->options.model_queue_max;
}

/* Would a request with left_ns to its deadline (0: it has none, or a timer sees to it) still have
 * its turn? Not asked where it may pass others by its priority. */
static enum berth_code judge_wait(struct berth_model *model, uint64_t depth, uint64_t left_ns,
                                  struct berth_err *err)
{
    uint64_t wait_ns;
    if (left_ns == 0 || depth == 0 ||
        __builtin_mul_overflow(depth, atomic_load(&model->service_ns), &wait_ns) ||
        wait_ns <= left_ns) {
        return BERTH_OK;
    }
    struct berth_model_spec *spec = berth_model_spec(model);
    bool has_levels = spec != NULL && spec->dynamic.priority_levels > 1;
    berth_spec_release(spec);
    if (has_levels) {
        return BERTH_OK;
    }
    (void)berth_fail(err, BERTH_BUSY, "%llu %s, about %llu ms: past the deadline",
                     (unsigned long long)depth, depth == 1 ? "request waits" : "requests wait",
                     (unsigned long long)(wait_ns / BERTH_NS_PER_MS));
    if (err != NULL) {
        err->retry_after_ms = (uint32_t)((wait_ns - left_ns) / BERTH_NS_PER_MS % UINT32_MAX) + 1;
    }
    return BERTH_BUSY;
}

/* Counts who is refused for load on his head as who is refused with his body (S13). */
static enum berth_code turn_away(struct berth_sched *sched, struct berth_model *model,
                                 enum berth_code code)
{
    atomic_fetch_add(&sched->refused, 1);
    if (model != NULL) {
        atomic_fetch_add(&model->stats.rejected, 1);
    }
    return code;
}

static enum berth_code busy(struct berth_sched *sched, struct berth_model *model, uint64_t waiting,
                            struct berth_err *err)
{
    uint64_t service_ns = model == NULL ? 0 : atomic_load(&model->service_ns);
    (void)berth_fail(err, BERTH_BUSY, "the queue is full: %llu %s", (unsigned long long)waiting,
                     waiting == 1 ? "request waits" : "requests wait");
    if (err != NULL) {
        err->retry_after_ms = berth_retry_ms(waiting, service_ns);
    }
    return BERTH_BUSY;
}

/* For callers on other threads: virtual time has only what the last turn was told. */
static uint64_t outside_now_ns(struct berth_sched *sched)
{
    return sched->started ? berth_clock_now_ns()
                          : atomic_load_explicit(&sched->t_turn_ns, memory_order_relaxed);
}

static void handle_posts(struct berth_sched *sched)
{
    struct berth_link posts;
    berth_list_init(&posts);
    for (size_t round = 0; round < TURN_ROUNDS_MAX; round++) {
        if (!berth_queue_take(&sched->queue, &posts)) {
            return;
        }
        struct berth_link *link;
        while ((link = berth_list_pop(&posts)) != NULL) {
            struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
            post->deliver(post);
        }
    }
}

static void publish(struct berth_sched *sched)
{
    uint64_t t_head_ns = 0;
    struct berth_link *link;
    while ((link = berth_list_pop(&sched->brims)) != NULL) {
        struct berth_batcher *batcher = BERTH_CONTAINER_OF(link, struct berth_batcher, brim_link);
        atomic_store_explicit(&batcher->model->queue_full, berth_batcher_is_full(batcher),
                              memory_order_relaxed);
    }
    for (size_t i = 0; i < sched->device_count; i++) {
        struct berth_device *device = &sched->devices[i];
        atomic_store_explicit(&device->bytes_models, device->ledger.bytes_used,
                              memory_order_relaxed);
        atomic_store_explicit(&device->well, berth_device_is_well(device, sched->now_ns),
                              memory_order_relaxed);
    }
    if (!berth_list_empty(&sched->queued_by_age)) {
        t_head_ns = BERTH_CONTAINER_OF(sched->queued_by_age.next, struct berth_ticket, age_link)
                        ->t_queued_ns;
    }
    atomic_store_explicit(&sched->t_head_ns, t_head_ns, memory_order_relaxed);
}

static void *thread_main(void *argument)
{
    struct berth_sched *sched = argument;
    while (!atomic_load(&sched->stop)) {
        uint64_t now_ns = berth_clock_now_ns();
        sched->wall_offset_ns = berth_clock_wall_ns() - now_ns;
        uint64_t t_next_ns = berth_sched_turn(sched, now_ns);
        berth_queue_wait(&sched->queue, t_next_ns == UINT64_MAX ? 0 : t_next_ns);
    }
    return NULL;
}

/* On the caller's thread: answers everything, then waits until workers and the repository have
 * given back what they hold. */
static void close_all(struct berth_sched *sched)
{
    handle_posts(sched);
    sched->closing = true;
    for (size_t i = 0; i < sched->device_count; i++) {
        atomic_store(&sched->devices[i].worker->closing, true); /* so that none hangs on for ever */
    }
    berth_ops_close(sched);
    berth_tickets_refuse(sched);
    BERTH_LIST_EACH(link, &sched->runtimes) {
        berth_runtime_unload(BERTH_CONTAINER_OF(link, struct berth_runtime, link));
    }
    for (;;) {
        (void)berth_sched_turn(sched, berth_clock_now_ns());
        if (sched->copy_count == 0 && berth_list_empty(&sched->ops) &&
            berth_list_empty(&sched->tickets)) {
            break;
        }
        berth_queue_wait(&sched->queue, 0);
    }
    stop_faults(sched);
    handle_posts(sched); /* cancels of what has been answered */
}
