/* flight.c - messages under way with a worker process, and what it has loaded. */
#include "base/clock.h"
#include "base/mem.h"
#include "worker/process_worker.h"

#define RETRY_MS 1000

static bool runs(enum berth_worker_kind kind);
static void clear_results(struct berth_worker_msg *msg);

struct berth_flight *berth_flight_create(struct berth_process_worker *worker,
                                         struct berth_worker_msg *msg)
{
    size_t rows = runs(msg->kind) ? msg->batch.row_count : 0;
    struct berth_flight *flight = berth_alloc(sizeof(*flight) + rows);
    if (flight == NULL) {
        return NULL;
    }
    if (msg->kind == BERTH_WORKER_LOAD) {
        flight->remote = berth_alloc(sizeof(*flight->remote));
        if (flight->remote == NULL) {
            berth_free(flight);
            return NULL;
        }
        flight->remote->load_id = msg->load_id;
        flight->remote->held = msg->held;
        flight->remote->spec = berth_spec_retain(msg->spec);
    } else {
        flight->remote = berth_remote_find(worker, msg->load_id);
    }
    flight->id = ++worker->id_last;
    flight->kind = msg->kind;
    flight->msg = msg;
    flight->pieces = 1 + rows;
    flight->token_first = worker->token_last + 1;
    worker->token_last += msg->kind == BERTH_WORKER_LOAD ? 1 : rows;
    return flight;
}

void berth_flight_destroy(struct berth_flight *flight)
{
    if (flight == NULL) {
        return;
    }
    if (flight->kind == BERTH_WORKER_LOAD) {
        berth_remote_destroy(flight->remote);
    }
    berth_list_remove(&flight->link);
    berth_free(flight);
}

void berth_flight_end(struct berth_process_worker *worker, struct berth_flight *flight)
{
    struct berth_worker_msg *msg = flight->msg;
    flight->msg = NULL;
    berth_list_remove(&flight->link);
    if (msg != NULL) {
        berth_queue_post(worker->base.replies, &msg->post.link);
    }
    if (flight->lends) {
        berth_list_append(&worker->releases, &flight->link);
    } else {
        berth_flight_destroy(flight);
    }
}

/* Rows of a failed STEP have an error of their own too: none of them is in a slot. */
void berth_message_fail(struct berth_process_worker *worker, struct berth_worker_msg *msg,
                        const struct berth_err *err)
{
    struct berth_err own = *err;
    if (msg->not_begun) { /* it did no harm: worth another try */
        own.retry_after_ms = RETRY_MS;
    }
    msg->t_started_ns = msg->t_ended_ns = berth_clock_now_ns();
    msg->bytes_used = 0;
    if (runs(msg->kind)) {
        clear_results(msg);
        for (size_t i = 0; i < msg->batch.row_count; i++) {
            msg->batch.rows[i].err = own;
        }
    }
    if (msg->kind != BERTH_WORKER_UNLOAD) {
        msg->err = own;
    }
    berth_queue_post(worker->base.replies, &msg->post.link);
}

void berth_flights_fail(struct berth_process_worker *worker, struct berth_link *list,
                        const struct berth_err *err)
{
    struct berth_link *link;
    while ((link = berth_list_pop(list)) != NULL) {
        struct berth_flight *flight = BERTH_CONTAINER_OF(link, struct berth_flight, link);
        struct berth_worker_msg *msg = flight->msg;
        flight->msg = NULL;
        if (msg != NULL) {
            msg->not_begun = flight->pieces_sent == 0;
            msg->lost = flight->pieces_sent > 0;
            berth_message_fail(worker, msg, err);
        }
        berth_flight_destroy(flight);
    }
}

struct berth_remote *berth_remote_find(struct berth_process_worker *worker, uint64_t load_id)
{
    struct berth_remote *remote = worker->remotes[load_id % BERTH_REMOTES_BUCKETS];
    while (remote != NULL && remote->load_id != load_id) {
        remote = remote->next;
    }
    return remote;
}

void berth_remote_add(struct berth_process_worker *worker, struct berth_remote *remote)
{
    struct berth_remote **bucket = &worker->remotes[remote->load_id % BERTH_REMOTES_BUCKETS];
    remote->next = *bucket;
    *bucket = remote;
}

void berth_remote_remove(struct berth_process_worker *worker, struct berth_remote *remote)
{
    struct berth_remote **at = &worker->remotes[remote->load_id % BERTH_REMOTES_BUCKETS];
    while (*at != remote) {
        at = &(*at)->next;
    }
    *at = remote->next;
    berth_remote_destroy(remote);
}

void berth_remote_destroy(struct berth_remote *remote)
{
    if (remote == NULL) {
        return;
    }
    berth_spec_release(remote->spec);
    berth_free(remote->slots);
    berth_free(remote);
}

struct berth_remote_slot *berth_remote_slots(const struct berth_remote *remote, uint32_t instance)
{
    if (remote->slots == NULL || instance >= remote->instance_count) {
        return NULL;
    }
    return &remote->slots[(size_t)instance * remote->slot_count];
}

static bool runs(enum berth_worker_kind kind)
{
    return kind == BERTH_WORKER_RUN || kind == BERTH_WORKER_STEP;
}

static void clear_results(struct berth_worker_msg *msg)
{
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        berth_part_destroy(msg->batch.rows[i].part);
        msg->batch.rows[i].part = NULL;
    }
    for (size_t i = 0; msg->kind == BERTH_WORKER_STEP && i < msg->step->event_count; i++) {
        berth_part_destroy(msg->step->events[i].part);
        msg->step->events[i].part = NULL;
    }
    if (msg->kind == BERTH_WORKER_STEP) {
        msg->step->event_count = 0;
        msg->step->live = 0;
        msg->step->steps = 0;
    }
}
