/* dispatch.c - whose turn it is when workers are fewer than work (S9).
 *
 * Deficit round robin in its virtual-time form: each copy carries the device time it has had; the
 * runnable copy with the least is next. A message is charged its expected time when it is sent and
 * corrected to the measured time when it is back. A copy that comes back after a pause starts at
 * the device's present virtual time, so idling saves nothing up, and a slow model that just had its
 * turn waits until the others have had as much. Rejected: rounds of quanta (with run times from 50
 * us to 500 ms no quantum is right).
 *
 * A copy is in device->ready while it may have work for a seat. Whatever may change that marks it:
 * a ticket queued or gone, a message back, its batcher's timer. That is all it takes to lose no
 * wake-up (S10).
 */
#include "sched/controller.h"

#define CHARGE_UNKNOWN_NS BERTH_NS_PER_MS

static bool give_turn(struct berth_device *device);
static void send(struct berth_device *device, struct berth_seat *seat);
static void deliver(struct berth_post *post);
static void fire(struct berth_timer *timer);

void berth_dispatch(struct berth_sched *sched)
{
    for (size_t i = 0; i < sched->device_count; i++) {
        while (give_turn(&sched->devices[i])) {
        }
    }
}

void berth_dispatch_mark(struct berth_copy *copy)
{
    if ((copy->state != BERTH_COPY_WARM && copy->state != BERTH_COPY_RETIRING) ||
        berth_list_contains(&copy->ready_link)) {
        return;
    }
    if (copy->virtual_ns < copy->device->virtual_ns) {
        copy->virtual_ns = copy->device->virtual_ns;
    }
    copy->timer.fire = fire;
    berth_list_append(&copy->device->ready, &copy->ready_link);
}

void berth_dispatch_forget(struct berth_copy *copy)
{
    berth_list_remove(&copy->ready_link);
    berth_timers_disarm(&copy->sched->timers, &copy->timer);
}

/* One message to one seat; false when there is no free worker or no work. */
static bool give_turn(struct berth_device *device)
{
    struct berth_seat *best = NULL;
    if (device->under_way >= device->worker->parallel_max) {
        return false;
    }
    BERTH_LIST_EACH_SAFE(link, &device->ready) {
        struct berth_copy *copy = BERTH_CONTAINER_OF(link, struct berth_copy, ready_link);
        if (best != NULL && copy->virtual_ns >= best->copy->virtual_ns) {
            continue;
        }
        uint64_t t_due_ns = UINT64_MAX;
        struct berth_seat *seat =
            copy->batcher->ops->pick(copy, copy->sched->now_ns, &t_due_ns);
        berth_timers_arm(&copy->sched->timers, &copy->timer, t_due_ns);
        if (seat == NULL) {
            berth_list_remove(&copy->ready_link);
        } else {
            best = seat;
        }
    }
    if (best == NULL || !berth_suspect_may_run(best->copy)) { /* nobody passes it */
        return false;
    }
    send(device, best);
    return true;
}

static void send(struct berth_device *device, struct berth_seat *seat)
{
    struct berth_copy *copy = seat->copy;
    copy->batcher->ops->start(seat);
    seat->busy = true;
    seat->apart = berth_suspect_is_apart(copy);
    device->apart += seat->apart;
    seat->charged_ns = copy->run_ns == 0 ? CHARGE_UNKNOWN_NS : copy->run_ns;
    if (copy->virtual_ns > device->virtual_ns) {
        device->virtual_ns = copy->virtual_ns;
    }
    copy->virtual_ns += seat->charged_ns;
    device->under_way++;
    seat->msg.post.deliver = deliver;
    seat->msg.state = seat;
    seat->msg.model = copy->runtime->model;
    seat->msg.spec = copy->spec;
    seat->msg.load_id = copy->load_id;
    seat->msg.instance = seat->index;
    berth_worker_send(device->worker, &seat->msg);
}

static void deliver(struct berth_post *post)
{
    struct berth_worker_msg *msg = BERTH_CONTAINER_OF(post, struct berth_worker_msg, post);
    struct berth_seat *seat = msg->state;
    struct berth_copy *copy = seat->copy;
    uint64_t run_ns = msg->t_ended_ns > msg->t_started_ns ? msg->t_ended_ns - msg->t_started_ns : 0;
    copy->device->under_way--;
    copy->device->apart -= seat->apart;
    copy->virtual_ns = copy->virtual_ns - seat->charged_ns + run_ns;
    berth_copy_measure(copy, msg->bytes_used);
    berth_suspects_note(copy, msg);
    copy->batcher->ops->finish(seat); /* may dispatch: rows that go to another copy */
    seat->busy = false;
    berth_dispatch_mark(copy);
    berth_copy_settle(copy);
}

static void fire(struct berth_timer *timer)
{
    berth_dispatch_mark(BERTH_CONTAINER_OF(timer, struct berth_copy, timer));
}
