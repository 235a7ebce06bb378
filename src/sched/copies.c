/* copies.c - loading, unloading, and making room: the way of one copy of a model on a device.
 *
 *     PENDING -> LOADING -> WARM -> RETIRING -> UNLOADING -> gone
 *
 * Rules R1 to R10 in residency/README.md. A copy that is unloaded while it loads is abandoned: its
 * worker is told (S16), and if it loads all the same, that is followed by the unload. A load that
 * one device does not take goes back to the head of the line, for another (S15).
 */
#include <inttypes.h>

#include "base/log.h"
#include "sched/controller.h"

#define START_NS_MAX (10 * BERTH_NS_PER_S) /* for a GPU's process to be ready, if the CPU could */

static enum berth_code make_room(struct berth_copy *copy, struct berth_err *err);
static enum berth_code reserve(struct berth_copy *copy, struct berth_err *err);
static void evict(struct berth_residency *ledger, uint64_t more);
static void lose(struct berth_copy *copy);
static void lose_slots(struct berth_copy *copy, const struct berth_err *err);
static void send_load(struct berth_copy *copy);
static void starts_too_long(struct berth_timer *timer);
static void stop_load(struct berth_copy *copy);
static void deliver_loaded(struct berth_post *post);
static void deliver_held(struct berth_post *post);
static void look_at_held(struct berth_timer *timer);
static void note_held(struct berth_copy *copy, uint64_t bytes);
static void end_badly(struct berth_copy *copy, const struct berth_err *err);
static void load_again(struct berth_copy *copy);
static void load_elsewhere(struct berth_copy *copy, struct berth_err *err);
static enum berth_code settle_in(struct berth_copy *copy, struct berth_err *err);
static void note_load(struct berth_copy *copy);
static void send_unload(struct berth_copy *copy);
static void deliver_unloaded(struct berth_post *post);
static bool is_busy(const struct berth_copy *copy);

enum berth_code berth_copy_create(struct berth_runtime *runtime, struct berth_model_spec *spec,
                                  struct berth_copy **out, struct berth_err *err)
{
    struct berth_copy *copy = berth_alloc(sizeof(*copy));
    if (copy == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    struct berth_sched *sched = runtime->sched;
    copy->sched = sched;
    copy->runtime = runtime;
    copy->spec = berth_spec_retain(spec);
    copy->load_id = ++sched->load_id_last;
    copy->state = BERTH_COPY_PENDING;
    copy->lease.owner = copy;
    copy->lease.keep = runtime->keep;
    berth_list_init(&copy->ordered);
    berth_list_append(&runtime->copies, &copy->link);
    berth_list_append(&sched->load_queue, &copy->load_link);
    sched->copy_count++;
    *out = copy;
    return BERTH_OK;
}

void berth_copy_destroy(struct berth_copy *copy)
{
    if (copy == NULL) {
        return;
    }
    BERTH_ASSERT(copy->ticket_count == 0);
    berth_dispatch_forget(copy);
    berth_timers_disarm(&copy->sched->timers, &copy->start_timer);
    berth_timers_disarm(&copy->sched->timers, &copy->held_timer);
    berth_list_remove(&copy->load_link);
    berth_list_remove(&copy->link);
    if (copy->device != NULL) {
        berth_residency_release(&copy->device->ledger, &copy->lease);
    }
    berth_seats_destroy(copy);
    berth_batcher_destroy(copy->batcher);
    berth_spec_release(copy->spec);
    copy->sched->copy_count--;
    berth_free(copy);
}

void berth_copy_retire(struct berth_copy *copy)
{
    struct berth_runtime *runtime = copy->runtime;
    if (runtime->current == copy) {
        runtime->current = NULL;
    }
    if (runtime->next == copy) {
        runtime->next = NULL;
    }
    if (copy->state == BERTH_COPY_PENDING) {
        berth_copy_destroy(copy);
        berth_runtime_emptied(runtime, false);
    } else if (copy->state == BERTH_COPY_LOADING) {
        copy->abandoned = true;
        stop_load(copy);
    } else if (copy->state == BERTH_COPY_WARM) {
        copy->state = BERTH_COPY_RETIRING;
        berth_residency_leave(&copy->device->ledger, &copy->lease);
        berth_copy_settle(copy);
    }
}

void berth_copy_settle(struct berth_copy *copy)
{
    if (copy->state == BERTH_COPY_RETIRING && copy->ticket_count == 0 && !is_busy(copy)) {
        send_unload(copy);
    }
}

/* R10. Those under way (LOADING, UNLOADING, a run) come back by themselves. */
void berth_device_lost(struct berth_sched *sched, struct berth_device *device)
{
    berth_worker_fault_seen(device->worker);
    berth_device_fault(sched, device);
    uint64_t epoch = atomic_load(&device->worker->epoch);
    BERTH_LIST_EACH(link, &sched->runtimes) {
        struct berth_runtime *runtime = BERTH_CONTAINER_OF(link, struct berth_runtime, link);
        BERTH_LIST_EACH_SAFE(at, &runtime->copies) {
            struct berth_copy *copy = BERTH_CONTAINER_OF(at, struct berth_copy, link);
            bool loaded = copy->state == BERTH_COPY_WARM || copy->state == BERTH_COPY_RETIRING;
            if (loaded && copy->device == device && copy->epoch != epoch) {
                lose(copy);
            }
        }
    }
}

/* Arenas grow with the inputs they see: what counts is the most it ever held (R2). Idle models make
 * room for it; where there are none, only new loads are refused. */
void berth_copy_measure(struct berth_copy *copy, uint64_t bytes)
{
    if (bytes <= copy->lease.bytes) {
        return;
    }
    berth_residency_correct(&copy->device->ledger, &copy->lease, bytes);
    const struct berth_runtime *runtime = copy->runtime;
    /* Of files that are being replaced it is no figure for the next load. */
    if (copy == runtime->current &&
        (runtime->next == NULL || runtime->next->spec->files_stamp == copy->spec->files_stamp)) {
        copy->runtime->bytes_measured = bytes;
        copy->runtime->measured_on = copy->device;
        atomic_store(&copy->runtime->model->bytes_used, bytes);
    }
    evict(&copy->device->ledger, 0);
}

/* What it took there last time, else what the engine says, else the size of its files: the measured
 * figure replaces it (R2). */
uint64_t berth_copy_bytes(const struct berth_copy *copy, const struct berth_device *device)
{
    if (copy->runtime->bytes_measured > 0 && copy->runtime->measured_on == device) {
        return copy->runtime->bytes_measured;
    }
    return copy->spec->bytes_estimate > 0 ? copy->spec->bytes_estimate : copy->spec->files_bytes;
}

void berth_copy_want(struct berth_copy *copy, bool wanted)
{
    if (copy->state != BERTH_COPY_LOADING || copy->abandoned || copy->unwanted != wanted) {
        return;
    }
    copy->unwanted = !wanted;
    if (wanted) {
        berth_worker_want(copy->device->worker, &copy->msg, true);
    } else {
        stop_load(copy);
    }
}

/* In order of demand; the head waits for room, and nobody passes it (R7). */
void berth_copies_pump(struct berth_sched *sched)
{
    while (!sched->closing && sched->loads_under_way < sched->options.loads_max &&
           !berth_list_empty(&sched->load_queue)) {
        struct berth_copy *copy =
            BERTH_CONTAINER_OF(sched->load_queue.next, struct berth_copy, load_link);
        struct berth_runtime *runtime = copy->runtime;
        struct berth_err err = {0};
        enum berth_code code = make_room(copy, &err);
        if (code == BERTH_BUSY) {
            return;
        }
        berth_list_remove(&copy->load_link);
        if (code == BERTH_OK && berth_device_stays(copy)) {
            berth_runtime_stays(runtime, copy);
            continue;
        }
        if (code == BERTH_OK) {
            send_load(copy);
            continue;
        }
        runtime->next = NULL;
        berth_copy_destroy(copy);
        berth_runtime_failed(runtime, &err, true);
    }
}

/* What had not begun waits for a new copy; what lived in the old one is answered. The unload that
 * follows only gives its bytes back. */
static void lose(struct berth_copy *copy)
{
    struct berth_runtime *runtime = copy->runtime;
    struct berth_err err = {0};
    bool was_current = runtime->current == copy;
    (void)berth_fail(&err, BERTH_UNAVAILABLE, "its worker process has ended");
    berth_log_warn("sched", 0, "lost with its worker model=%s version=%" PRIu64,
                   runtime->model->name, runtime->model->version);
    copy->ticket_count++; /* so that it does not go half-way */
    berth_copy_retire(copy);
    lose_slots(copy, &err);
    if (was_current && runtime->next == NULL) {
        berth_model_set_state(runtime->model, BERTH_STATE_EVICTING, err.msg);
        if (runtime->keep && !copy->sched->closing &&
            berth_runtime_load(runtime, berth_spec_retain(copy->spec), &err) != BERTH_OK) {
            berth_sched_name_failure(&err, runtime->model->name);
            berth_log_err(BERTH_LOG_ERROR, "sched", 0, &err);
        }
    }
    struct berth_ticket *ticket;
    while ((ticket = berth_batcher_next(copy->batcher, NULL)) != NULL) {
        berth_ticket_requeue(ticket);
    }
    copy->ticket_count--;
    berth_dispatch_mark(copy);
    berth_copy_settle(copy);
}

/* Their slots are free when the drops have come back. */
static void lose_slots(struct berth_copy *copy, const struct berth_err *err)
{
    for (size_t i = 0; i < copy->seat_count; i++) {
        struct berth_seat *seat = &copy->seats[i];
        for (uint32_t slot = 0; slot < seat->slot_count; slot++) {
            if (seat->slots[slot] != NULL && !seat->slots[slot]->answered) {
                berth_ticket_answer(seat->slots[slot], NULL, err);
            }
        }
    }
}

/* On the first of its devices that has room. */
static enum berth_code make_room(struct berth_copy *copy, struct berth_err *err)
{
    if (berth_suspects_wait(copy->sched)) {
        return BERTH_BUSY;
    }
    for (;;) {
        copy->device = berth_device_choose(copy);
        if (berth_device_stays(copy)) {
            return BERTH_OK;
        }
        BERTH_TRY(berth_suspect_admit(copy, err));
        enum berth_code code = reserve(copy, err);
        if (code == BERTH_OK || code == BERTH_BUSY ||
            !berth_device_pass(copy, BERTH_FALLBACK_NO_ROOM, err->msg)) {
            return code;
        }
    }
}

/* OK: its bytes are reserved. BUSY: they will be when what leaves is gone. */
static enum berth_code reserve(struct berth_copy *copy, struct berth_err *err)
{
    struct berth_residency *ledger = &copy->device->ledger;
    uint64_t bytes = berth_copy_bytes(copy, copy->device);
    enum berth_code code = berth_residency_reserve(ledger, &copy->lease, bytes, err);
    if (code != BERTH_BUSY) {
        return code;
    }
    uint64_t missing = berth_residency_missing(ledger, bytes);
    if (missing > berth_residency_evictable(ledger)) { /* R6 */
        code = berth_residency_refuse(ledger, "needs", bytes, err);
        err->retry_after_ms =
            berth_retry_ms(1, copy->sched->load_ns == 0 ? BERTH_NS_PER_S : copy->sched->load_ns);
        return code;
    }
    evict(ledger, bytes);
    return BERTH_BUSY;
}

static void evict(struct berth_residency *ledger, uint64_t more)
{
    while (berth_residency_missing(ledger, more) > 0) {
        struct berth_lease *lease = berth_residency_victim(ledger);
        if (lease == NULL) {
            return;
        }
        struct berth_copy *victim = lease->owner;
        struct berth_model *model = victim->runtime->model;
        berth_log_info("residency", 0, "evict model=%s version=%" PRIu64 " bytes=%" PRIu64,
                       model->name, model->version, lease->bytes);
        victim->evicted = true;
        berth_copy_retire(victim);
        berth_model_set_state(model, BERTH_STATE_EVICTING, "evicted");
    }
}

static void send_load(struct berth_copy *copy)
{
    copy->state = BERTH_COPY_LOADING;
    copy->t_load_sent_ns = copy->sched->now_ns;
    copy->sched->loads_under_way++;
    berth_held_init(&copy->held, deliver_held);
    copy->msg = (struct berth_worker_msg){
        .post.deliver = deliver_loaded,
        .kind = BERTH_WORKER_LOAD,
        .model = copy->runtime->model,
        .spec = copy->spec,
        .load_id = copy->load_id,
        .held = &copy->held,
        .state = copy,
    };
    if (copy->device->gpu) { /* ready or not: one that ends now has another start before it */
        copy->start_timer.fire = starts_too_long;
        berth_timers_arm(&copy->sched->timers, &copy->start_timer,
                         copy->sched->now_ns + START_NS_MAX);
    }
    berth_worker_send(copy->device->worker, &copy->msg);
}

/* Its device's process has not become ready: another one takes the load, if one may. */
static void starts_too_long(struct berth_timer *timer)
{
    struct berth_copy *copy = BERTH_CONTAINER_OF(timer, struct berth_copy, start_timer);
    if (berth_device_starts(copy->device) && !copy->abandoned &&
        berth_device_pass(copy, BERTH_FALLBACK_UNWELL, "its worker process does not start")) {
        stop_load(copy);
    }
}

static void stop_load(struct berth_copy *copy)
{
    copy->told_to_stop = true;
    berth_worker_want(copy->device->worker, &copy->msg, false);
}

static void deliver_loaded(struct berth_post *post)
{
    struct berth_worker_msg *msg = BERTH_CONTAINER_OF(post, struct berth_worker_msg, post);
    struct berth_copy *copy = msg->state;
    struct berth_runtime *runtime = copy->runtime;
    struct berth_err err = msg->err;
    copy->sched->loads_under_way--;
    berth_timers_disarm(&copy->sched->timers, &copy->start_timer);
    if (msg->lost) {
        berth_suspect_mark(copy);
    }
    if (err.code == BERTH_OK && msg->epoch != atomic_load(&copy->device->worker->epoch)) {
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "its worker process has ended"); /* R10 */
    }
    if (err.code != BERTH_OK) {
        end_badly(copy, &err);
        return;
    }
    note_load(copy);
    copy->epoch = msg->epoch;
    copy->state = BERTH_COPY_WARM;
    enum berth_code code = copy->abandoned ? BERTH_OK : settle_in(copy, &err);
    berth_residency_unpin(&copy->lease, copy->sched->now_ns);
    if (copy->abandoned) {
        berth_copy_retire(copy);
    } else if (code != BERTH_OK && berth_device_refused(copy, &err)) {
        load_elsewhere(copy, &err);
    } else if (code != BERTH_OK) {
        runtime->stamp_failed = copy->spec->files_stamp;
        berth_copy_retire(copy);
        berth_runtime_failed(runtime, &err, false);
    } else {
        berth_device_took(copy);
        berth_runtime_loaded(runtime, copy);
    }
}

/* What it holds has grown while nothing of it ran (P14). */
static void deliver_held(struct berth_post *post)
{
    struct berth_copy *copy = BERTH_CONTAINER_OF(
        BERTH_CONTAINER_OF(post, struct berth_held, post), struct berth_copy, held);
    note_held(copy, berth_held_take(&copy->held, copy->sched->now_ns));
}

static void look_at_held(struct berth_timer *timer)
{
    struct berth_copy *copy = BERTH_CONTAINER_OF(timer, struct berth_copy, held_timer);
    note_held(copy, berth_held_look(&copy->held, copy->sched->now_ns));
}

static void note_held(struct berth_copy *copy, uint64_t bytes)
{
    copy->held_timer.fire = look_at_held;
    berth_timers_arm(&copy->sched->timers, &copy->held_timer, copy->held.t_look_ns);
    berth_copy_measure(copy, bytes);
}

/* It is tried again, given up for want of anybody who waits, or has failed. One that was stopped
 * and is wanted again begins anew, as often as its clients change their minds. */
static void end_badly(struct berth_copy *copy, const struct berth_err *err)
{
    struct berth_runtime *runtime = copy->runtime;
    bool abandoned = copy->abandoned;
    bool stopped = copy->told_to_stop && err->code == BERTH_CANCELLED;
    bool behind = copy->device->gpu && copy->msg.err.code == BERTH_OK; /* loaded, and lost since */
    bool goes_on = !abandoned && (stopped || behind || berth_device_refused(copy, err));
    if (goes_on && !copy->unwanted) {
        load_again(copy);
        return;
    }
    if (!abandoned && !goes_on) {
        runtime->stamp_failed = copy->spec->files_stamp;
    }
    if (runtime->next == copy) {
        runtime->next = NULL;
    }
    berth_copy_destroy(copy);
    if (goes_on) {
        berth_runtime_stopped(runtime);
    } else if (!abandoned) {
        berth_runtime_failed(runtime, err, false);
    }
    berth_runtime_emptied(runtime, false);
}

/* At the head of the line: it has waited its turn. */
static void load_again(struct berth_copy *copy)
{
    struct berth_sched *sched = copy->sched;
    berth_residency_release(&copy->device->ledger, &copy->lease);
    copy->state = BERTH_COPY_PENDING;
    copy->told_to_stop = false;
    berth_list_insert_before(sched->load_queue.next, &copy->load_link);
}

/* It is loaded, but cannot stay where it is. */
static void load_elsewhere(struct berth_copy *copy, struct berth_err *err)
{
    struct berth_runtime *runtime = copy->runtime;
    struct berth_model_spec *spec = berth_spec_retain(copy->spec);
    uint64_t passed = copy->passed;
    bool moves = copy->moves;
    berth_copy_retire(copy);
    if (berth_runtime_load(runtime, spec, err) == BERTH_OK) {
        runtime->next->passed = passed;
        runtime->next->moves = moves;
    } else {
        berth_runtime_failed(runtime, err, false);
    }
}

/* Its queue and seats; and others make room if it took more than was reserved. */
static enum berth_code settle_in(struct berth_copy *copy, struct berth_err *err)
{
    struct berth_residency *ledger = &copy->device->ledger;
    BERTH_TRY(berth_batcher_create(copy->spec, &copy->batcher, err));
    BERTH_TRY(berth_seats_create(copy, copy->msg.instance_count, copy->msg.slots, err));
    uint64_t missing = berth_residency_missing(ledger, 0);
    if (missing > berth_residency_evictable(ledger)) { /* R6: then nobody leaves for it */
        enum berth_code code = berth_residency_refuse(ledger, "took", copy->lease.bytes, err);
        err->retry_after_ms =
            code == BERTH_TOO_LARGE ? 0 : berth_retry_ms(1, copy->sched->load_ns);
        return code;
    }
    evict(ledger, 0);
    return BERTH_OK;
}

static void note_load(struct berth_copy *copy)
{
    struct berth_runtime *runtime = copy->runtime;
    struct berth_model *model = runtime->model;
    uint64_t load_ns = copy->sched->now_ns - copy->t_load_sent_ns;
    uint64_t bytes = berth_held_begin(&copy->held, copy->msg.bytes_used);
    berth_residency_correct(&copy->device->ledger, &copy->lease, bytes); /* R2 */
    runtime->bytes_measured = bytes;
    runtime->measured_on = copy->device;
    runtime->load_ns = berth_average(runtime->load_ns, load_ns);
    copy->sched->load_ns = berth_average(copy->sched->load_ns, load_ns);
    atomic_fetch_add(&model->stats.loads, 1);
    atomic_fetch_add(&model->stats.load_ns, load_ns);
    atomic_store(&model->bytes_used, bytes);
}

static void send_unload(struct berth_copy *copy)
{
    berth_dispatch_forget(copy);
    copy->state = BERTH_COPY_UNLOADING;
    copy->msg = (struct berth_worker_msg){
        .post.deliver = deliver_unloaded,
        .kind = BERTH_WORKER_UNLOAD,
        .model = copy->runtime->model,
        .spec = copy->spec,
        .load_id = copy->load_id,
        .state = copy,
    };
    berth_worker_send(copy->device->worker, &copy->msg);
}

static void deliver_unloaded(struct berth_post *post)
{
    struct berth_worker_msg *msg = BERTH_CONTAINER_OF(post, struct berth_worker_msg, post);
    struct berth_copy *copy = msg->state;
    struct berth_runtime *runtime = copy->runtime;
    bool evicted = copy->evicted;
    atomic_fetch_add(&runtime->model->stats.unloads, 1);
    berth_copy_destroy(copy); /* R4: its bytes are free now, not before */
    berth_runtime_emptied(runtime, evicted);
}

static bool is_busy(const struct berth_copy *copy)
{
    for (size_t i = 0; i < copy->seat_count; i++) {
        if (copy->seats[i].busy || copy->seats[i].live > 0) {
            return true;
        }
    }
    return false;
}
