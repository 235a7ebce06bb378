/* process_send.c - what goes to a worker process, in pieces as far as its socket takes them.
 *
 * A message is a head, then each of its rows. What the process no longer needs and what was
 * cancelled goes first: a word is quick, and frees something there.
 */
#include "worker/process_worker.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "model/config_tree.h"

static bool send_now(struct berth_process_worker *worker);
static bool send_release(struct berth_process_worker *worker);
static bool send_piece(struct berth_process_worker *worker);
static bool send_head(struct berth_process_worker *worker, struct berth_flight *flight);
static bool send_load(struct berth_process_worker *worker, struct berth_flight *flight);
static void drop_slots(struct berth_flight *flight);
static bool send_row(struct berth_process_worker *worker, struct berth_flight *flight);
static bool send_cancels(struct berth_process_worker *worker);
static bool send_cancels_of(struct berth_process_worker *worker, struct berth_flight *flight);
static bool send_slot_cancels(struct berth_process_worker *worker, struct berth_remote *remote);
static bool send_cancel(struct berth_process_worker *worker, uint64_t token);

/* Each sender returns whether it sent something. */
void berth_process_pump(struct berth_process_worker *worker, uint64_t now_ns)
{
    if (worker->child.state != BERTH_CHILD_UP || worker->wants_out ||
        now_ns < worker->t_send_ns) {
        return;
    }
    worker->t_send_ns = 0;
    while (send_cancels(worker) || send_release(worker) || send_piece(worker)) {
    }
}

static bool send_now(struct berth_process_worker *worker)
{
    if (worker->child.fd < 0 || worker->wants_out || worker->t_send_ns != 0) {
        return false;
    }
    enum berth_wire_result result =
        berth_wire_send(worker->child.fd, &worker->writer, false);
    if (result == BERTH_WIRE_AGAIN) {
        berth_process_watch(worker, EPOLL_CTL_MOD, true);
    } else if (result == BERTH_WIRE_LATER) {
        worker->t_send_ns = berth_clock_now_ns() + BERTH_PROCESS_LATER_NS;
    } else if (result != BERTH_WIRE_OK) {
        berth_process_lose(worker, NULL);
    }
    return result == BERTH_WIRE_OK;
}

static bool send_release(struct berth_process_worker *worker)
{
    if (berth_list_empty(&worker->releases)) {
        return false;
    }
    struct berth_flight *flight =
        BERTH_CONTAINER_OF(worker->releases.next, struct berth_flight, link);
    berth_wire_begin(&worker->writer, BERTH_WIRE_RELEASE, flight->id);
    if (!send_now(worker)) {
        return false;
    }
    berth_flight_destroy(flight);
    return true;
}

static bool send_piece(struct berth_process_worker *worker)
{
    if (berth_list_empty(&worker->outbox)) {
        return false;
    }
    struct berth_flight *flight =
        BERTH_CONTAINER_OF(worker->outbox.next, struct berth_flight, link);
    bool sent = flight->pieces_sent == 0 ? send_head(worker, flight) : send_row(worker, flight);
    if (!sent) {
        return false;
    }
    flight->pieces_sent++;
    if (flight->pieces_sent == flight->pieces) {
        berth_list_remove(&flight->link);
        berth_list_append(&worker->sent, &flight->link);
    }
    return true;
}

static bool send_head(struct berth_process_worker *worker, struct berth_flight *flight)
{
    struct berth_wire_writer *writer = &worker->writer;
    struct berth_worker_msg *msg = flight->msg;
    bool steps = flight->kind == BERTH_WORKER_STEP;
    if (flight->kind == BERTH_WORKER_LOAD) {
        return send_load(worker, flight);
    }
    berth_wire_begin(writer, flight->kind == BERTH_WORKER_UNLOAD ? BERTH_WIRE_UNLOAD
                             : steps                             ? BERTH_WIRE_STEP
                                                                 : BERTH_WIRE_RUN, flight->id);
    berth_wire_put_u64(writer, flight->remote->load_id);
    if (flight->kind != BERTH_WORKER_UNLOAD) {
        berth_wire_put_u32(writer, msg->instance);
        berth_wire_put_u32(writer, (uint32_t)msg->batch.row_count);
    }
    if (steps) {
        msg->step->event_count = 0;
        berth_wire_put_u64(writer, msg->budget_ns);
        berth_wire_put_u32(writer, (uint32_t)msg->drop_count);
        for (size_t i = 0; i < msg->drop_count; i++) {
            berth_wire_put_u32(writer, msg->drops[i]);
        }
    }
    if (!send_now(worker)) {
        return false;
    }
    if (steps) {
        drop_slots(flight);
    }
    return true;
}

/* The config goes as JSON in shared memory of its own, so that the process reads the model as the
 * server did, also where the load API has given another one than the folder's. */
static bool send_load(struct berth_process_worker *worker, struct berth_flight *flight)
{
    const struct berth_model_spec *spec = flight->msg->spec;
    struct berth_wire_writer *writer = &worker->writer;
    char *config = berth_spec_config_given(spec);
    size_t length = config == NULL ? 0 : strlen(config);
    int fd = memfd_create("berth-config", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool written = config != NULL && fd >= 0 && write(fd, config, length) == (ssize_t)length;
    berth_free(config);
    berth_wire_begin(writer, BERTH_WIRE_LOAD, flight->id);
    berth_wire_put_u64(writer, flight->msg->load_id);
    berth_wire_put_u64(writer, flight->token_first);
    berth_wire_put_text(writer, spec->name);
    berth_wire_put_u64(writer, spec->version);
    berth_wire_put_text(writer, spec->folder);
    berth_wire_put_text(writer, spec->folder_version);
    berth_wire_put_text(writer, spec->engine);
    berth_wire_put_u64(writer, spec->batch_size_max);
    berth_wire_put_u32(writer, (uint32_t)spec->run_mode);
    berth_wire_put_u32(writer, (uint32_t)spec->input_count);
    berth_wire_put_u32(writer, (uint32_t)spec->output_count);
    berth_wire_put_u64(writer, length);
    if (written) {
        berth_wire_put_fd(writer, fd);
    }
    bool sent = written && !writer->full && send_now(worker);
    if (fd >= 0) {
        close(fd);
    }
    if (!written || writer->full) {
        struct berth_err err = {0};
        struct berth_worker_msg *msg = flight->msg;
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "the config of '%s' cannot be handed over",
                         spec->name);
        flight->msg = NULL;
        berth_flight_destroy(flight);
        berth_message_fail(worker, msg, &err);
    }
    return sent;
}

static void drop_slots(struct berth_flight *flight)
{
    struct berth_remote_slot *slots = berth_remote_slots(flight->remote, flight->msg->instance);
    for (size_t i = 0; i < flight->msg->drop_count && slots != NULL; i++) {
        if (flight->msg->drops[i] < flight->remote->slot_count) {
            slots[flight->msg->drops[i]] = (struct berth_remote_slot){0};
        }
    }
}

/* A request too large for a message is answered here; the process is told that it does not come. */
static bool send_row(struct berth_process_worker *worker, struct berth_flight *flight)
{
    struct berth_wire_writer *writer = &worker->writer;
    size_t index = flight->pieces_sent - 1;
    struct berth_row *row = &flight->msg->batch.rows[index];
    uint64_t token = flight->token_first + index;
    bool is_cancelled = atomic_load_explicit(&row->request->cancelled, memory_order_relaxed);
    for (uint32_t comes = 1;; comes--) {
        berth_wire_begin(writer, BERTH_WIRE_ROW, flight->id);
        berth_wire_put_u64(writer, token);
        berth_wire_put_u32(writer, (uint32_t)index);
        berth_wire_put_u32(writer, is_cancelled);
        berth_wire_put_u32(writer, comes);
        if (comes == 0) {
            break;
        }
        berth_wire_put_request(writer, row->request);
        if (!writer->full) {
            break;
        }
        (void)berth_fail(&row->err, BERTH_TOO_LARGE, "the request has more inputs, or more text "
                         "in its parameters, than a worker process takes");
    }
    if (!send_now(worker)) {
        return false;
    }
    flight->marks[index] |= is_cancelled ? BERTH_ROW_TOLD : 0;
    flight->marks[index] |= row->err.code != BERTH_OK ? BERTH_ROW_ANSWERED : 0;
    return true;
}

/* Goes through all rows whenever any was cancelled: they are few. False also when all are told. */
static bool send_cancels(struct berth_process_worker *worker)
{
    if (!atomic_exchange(&worker->cancels, false)) {
        return false;
    }
    bool done = true;
    BERTH_LIST_EACH(link, &worker->sent) {
        done = done && send_cancels_of(worker, BERTH_CONTAINER_OF(link, struct berth_flight, link));
    }
    if (!berth_list_empty(&worker->outbox)) { /* its first may be half sent */
        done = done && send_cancels_of(worker, BERTH_CONTAINER_OF(worker->outbox.next,
                                                                  struct berth_flight, link));
    }
    for (size_t i = 0; i < BERTH_REMOTES_BUCKETS; i++) {
        for (struct berth_remote *at = worker->remotes[i]; at != NULL && done; at = at->next) {
            done = send_slot_cancels(worker, at);
        }
    }
    if (!done) {
        atomic_store(&worker->cancels, true); /* when there is room again */
    }
    return false;
}

static bool send_cancels_of(struct berth_process_worker *worker, struct berth_flight *flight)
{
    if (flight->kind == BERTH_WORKER_LOAD) {
        bool unwanted = flight->pieces_sent > 0 && atomic_load(&flight->msg->unwanted);
        if (unwanted && !flight->told) {
            flight->told = send_cancel(worker, flight->token_first);
        }
        return !unwanted || flight->told;
    }
    if (flight->kind != BERTH_WORKER_RUN && flight->kind != BERTH_WORKER_STEP) {
        return true;
    }
    for (size_t i = 0; i + 1 < flight->pieces_sent; i++) {
        if (flight->marks[i] == 0 &&
            atomic_load(&flight->msg->batch.rows[i].request->cancelled)) {
            if (!send_cancel(worker, flight->token_first + i)) {
                return false;
            }
            flight->marks[i] |= BERTH_ROW_TOLD;
        }
    }
    return true;
}

static bool send_slot_cancels(struct berth_process_worker *worker, struct berth_remote *remote)
{
    for (size_t i = 0; i < (size_t)remote->instance_count * remote->slot_count; i++) {
        struct berth_remote_slot *slot = &remote->slots[i];
        if (slot->request != NULL && !slot->told && atomic_load(&slot->request->cancelled)) {
            if (!send_cancel(worker, slot->token)) {
                return false;
            }
            slot->told = true;
        }
    }
    return true;
}

static bool send_cancel(struct berth_process_worker *worker, uint64_t token)
{
    berth_wire_begin(&worker->writer, BERTH_WIRE_CANCEL, token);
    return send_now(worker);
}
