/* process_answers.c - what a worker process says of the messages it has: judged, and put into them.
 *
 * Nothing is believed (P6): the message it belongs to is under way, the row is one of it and has no
 * answer yet, the slot is the engine's and free or taken as it must be, and counts are within what
 * was agreed on at the load: else the child is not to be understood, and ends. Tensors are those
 * outputs of the model that the request wants, in their type and shape: else the one request has an
 * error instead of an answer with something missing. Bytes are copied out of the child's memory
 * before anybody looks at them.
 */
#include <string.h>

#include "base/mem.h"
#include "worker/process_worker.h"
#include "worker/promise.h"

static struct berth_flight *flight_of(struct berth_process_worker *worker, uint64_t id);
static enum berth_code take_answer(struct berth_process_worker *worker,
                                   struct berth_flight *flight, struct berth_err *err);
static enum berth_code seat_row(struct berth_flight *flight, uint32_t index, struct berth_err *err);
static enum berth_code take_event(struct berth_process_worker *worker,
                                  struct berth_flight *flight, struct berth_err *err);
static enum berth_code take_part(struct berth_process_worker *worker, struct berth_flight *flight,
                                 struct berth_request *request, struct berth_part **out,
                                 struct berth_err *fault);
static enum berth_code take_tensor(const struct berth_model_spec *spec, struct berth_part *part,
                                   const struct berth_wire_tensor *tensor,
                                   struct berth_err *fault);
static enum berth_code take_held(struct berth_process_worker *worker, struct berth_err *err);
static uint64_t believable(const struct berth_process_worker *worker, uint64_t bytes);
static enum berth_code take_alive(struct berth_process_worker *worker, struct berth_flight *flight,
                                  uint64_t now_ns, struct berth_err *err);
static enum berth_code take_done(struct berth_process_worker *worker, struct berth_flight *flight,
                                 uint64_t now_ns, struct berth_err *err);
static enum berth_code end_load(struct berth_process_worker *worker, struct berth_flight *flight,
                                const uint32_t counts[2], struct berth_err *err);
static bool has_all_rows(const struct berth_flight *flight);
static void judge_cancelled(bool is_cancelled, struct berth_err *of);
static enum berth_code wrong(struct berth_err *err, const char *text);

enum berth_code berth_process_answer(struct berth_process_worker *worker, uint64_t now_ns,
                                     struct berth_err *err)
{
    struct berth_wire_message *message = &worker->message;
    if (message->kind == BERTH_WIRE_HELD) {
        return take_held(worker, err);
    }
    struct berth_flight *flight = flight_of(worker, message->id);
    if (flight == NULL) {
        return wrong(err, "an answer to no message under way");
    }
    switch (message->kind) {
    case BERTH_WIRE_ANSWER:
        return take_answer(worker, flight, err);
    case BERTH_WIRE_EVENT:
        return take_event(worker, flight, err);
    case BERTH_WIRE_ALIVE:
        return take_alive(worker, flight, now_ns, err);
    case BERTH_WIRE_DONE:
        return take_done(worker, flight, now_ns, err);
    default:
        return wrong(err, "a message out of turn");
    }
}

/* Rows may be answered while later ones are still being sent. */
static struct berth_flight *flight_of(struct berth_process_worker *worker, uint64_t id)
{
    BERTH_LIST_EACH(link, &worker->sent) {
        struct berth_flight *flight = BERTH_CONTAINER_OF(link, struct berth_flight, link);
        if (flight->id == id) {
            return flight;
        }
    }
    if (!berth_list_empty(&worker->outbox)) {
        struct berth_flight *first =
            BERTH_CONTAINER_OF(worker->outbox.next, struct berth_flight, link);
        if (first->id == id && first->pieces_sent > 0) {
            return first;
        }
    }
    return NULL;
}

/* index, slot, error, and without one the tensors of a RUN's row. */
static enum berth_code take_answer(struct berth_process_worker *worker,
                                   struct berth_flight *flight, struct berth_err *err)
{
    struct berth_wire_message *message = &worker->message;
    uint32_t index = berth_wire_get_u32(message, BERTH_WIRE_ROWS_MAX);
    uint32_t slot = berth_wire_get_u32(message, UINT32_MAX);
    struct berth_err row_err;
    berth_wire_get_err(message, &row_err);
    if (message->bad || flight->msg == NULL || (size_t)index + 1 >= flight->pieces_sent ||
        (flight->marks[index] & BERTH_ROW_ANSWERED) != 0) {
        return wrong(err, "an answer to a row that waits for none");
    }
    struct berth_row *row = &flight->msg->batch.rows[index];
    flight->marks[index] |= BERTH_ROW_ANSWERED;
    judge_cancelled(atomic_load(&row->request->cancelled), &row_err);
    row->part = NULL;
    row->err = row_err;
    row->slot = slot;
    if (row_err.code == BERTH_OK && flight->kind == BERTH_WORKER_STEP) {
        BERTH_TRY(seat_row(flight, index, err));
    } else if (row_err.code == BERTH_OK) {
        row->err.code = take_part(worker, flight, row->request, &row->part, &row->err);
    }
    return berth_wire_whole(message) ? BERTH_OK : wrong(err, "an answer that cannot be read");
}

static enum berth_code seat_row(struct berth_flight *flight, uint32_t index, struct berth_err *err)
{
    struct berth_row *row = &flight->msg->batch.rows[index];
    struct berth_remote_slot *slots = berth_remote_slots(flight->remote, flight->msg->instance);
    if (slots == NULL || row->slot >= flight->remote->slot_count ||
        slots[row->slot].request != NULL) {
        return wrong(err, "a row in a slot that is none, or taken");
    }
    slots[row->slot] = (struct berth_remote_slot){
        .request = row->request,
        .token = flight->token_first + index,
        .told = (flight->marks[index] & BERTH_ROW_TOLD) != 0,
    };
    return BERTH_OK;
}

/* slot, final, has a part, error, tensors. A last part that cannot be taken ends its row with an
 * error; another one fails the whole step, since its row lives on in the child, and an answer with
 * a piece missing would be a wrong one. */
static enum berth_code take_event(struct berth_process_worker *worker,
                                  struct berth_flight *flight, struct berth_err *err)
{
    struct berth_wire_message *message = &worker->message;
    uint32_t slot = berth_wire_get_u32(message, BERTH_WIRE_ROWS_MAX);
    uint32_t final = berth_wire_get_u32(message, 1);
    uint32_t has_part = berth_wire_get_u32(message, 1);
    struct berth_err slot_err;
    berth_wire_get_err(message, &slot_err);
    if (message->bad || flight->msg == NULL || flight->kind != BERTH_WORKER_STEP ||
        (slot_err.code != BERTH_OK && final == 0)) {
        return wrong(err, "an event that cannot be read");
    }
    struct berth_step_result *step = flight->msg->step;
    struct berth_remote_slot *slots = berth_remote_slots(flight->remote, flight->msg->instance);
    if (slots == NULL || slot >= flight->remote->slot_count || slots[slot].request == NULL ||
        step->event_count == BERTH_STEP_EVENTS_MAX) {
        return wrong(err, "an event of a slot that is none, or free");
    }
    judge_cancelled(atomic_load(&slots[slot].request->cancelled), &slot_err);
    struct berth_step_event *event = &step->events[step->event_count++];
    *event = (struct berth_step_event){.slot = slot, .final = final == 1, .err = slot_err};
    struct berth_err fault = {0};
    struct berth_err *of = final == 1 ? &event->err : &flight->msg->err;
    if (has_part == 1) {
        fault.code = take_part(worker, flight, slots[slot].request, &event->part, &fault);
    } else if (final == 1 && slot_err.code == BERTH_OK) {
        (void)berth_fail(&fault, BERTH_INTERNAL,
                         "the worker process ended a row without an answer");
    }
    if (of->code == BERTH_OK) {
        *of = fault;
    }
    if (final == 1) {
        slots[slot] = (struct berth_remote_slot){0};
    }
    return berth_wire_whole(message) ? BERTH_OK : wrong(err, "an event that cannot be read");
}

/* A fault is this part's alone; message->bad is the child's. */
static enum berth_code take_part(struct berth_process_worker *worker, struct berth_flight *flight,
                                 struct berth_request *request, struct berth_part **out,
                                 struct berth_err *fault)
{
    struct berth_wire_message *message = &worker->message;
    const struct berth_model_spec *spec = flight->remote->spec;
    struct berth_part *part = berth_part_create(request);
    enum berth_code code = BERTH_OK;
    if (part == NULL) {
        code = berth_fail(fault, BERTH_UNAVAILABLE, "out of memory");
    }
    size_t count = berth_wire_get_tensor_count(message);
    for (size_t i = 0; i < count && !message->bad; i++) { /* all are read, whatever is wrong */
        struct berth_wire_tensor tensor;
        berth_wire_get_tensor(message, &tensor);
        flight->lends = flight->lends || tensor.fd >= 0;
        if (code == BERTH_OK && !message->bad) {
            code = take_tensor(spec, part, &tensor, fault);
        }
    }
    if (message->bad && code == BERTH_OK) {
        code = berth_fail(fault, BERTH_UNAVAILABLE, "the worker process gave no answer");
    }
    if (code == BERTH_OK) {
        code = berth_promise_whole(spec, part, fault);
    }
    if (code != BERTH_OK) {
        berth_part_destroy(part);
        return code;
    }
    *out = part;
    return BERTH_OK;
}

static enum berth_code take_tensor(const struct berth_model_spec *spec, struct berth_part *part,
                                   const struct berth_wire_tensor *tensor,
                                   struct berth_err *fault)
{
    void *to = NULL;
    const struct berth_tensor *like = &tensor->like;
    BERTH_TRY(berth_promise_output(spec, part, like, fault));
    BERTH_TRY(berth_part_add(part, like, tensor->bytes, &to, fault));
    return berth_wire_read_tensor(tensor, to, fault);
}

/* Of a model that is loaded, also while its UNLOAD is on the way (P14). */
static enum berth_code take_held(struct berth_process_worker *worker, struct berth_err *err)
{
    struct berth_wire_message *message = &worker->message;
    struct berth_remote *remote = berth_remote_find(worker, message->id);
    uint64_t bytes = berth_wire_get_u64(message);
    if (!berth_wire_whole(message) || remote == NULL) {
        return wrong(err, "what a model holds that is none, or cannot be read");
    }
    if (remote->held != NULL) {
        berth_held_tell(remote->held, worker->base.replies, believable(worker, bytes));
    }
    return BERTH_OK;
}

static uint64_t believable(const struct berth_process_worker *worker, uint64_t bytes)
{
    uint64_t bytes_max = worker->base.bytes_max;
    return bytes_max != 0 && bytes > bytes_max ? bytes_max : bytes;
}

/* A load, or an unload, that goes on (P12). */
static enum berth_code take_alive(struct berth_process_worker *worker, struct berth_flight *flight,
                                  uint64_t now_ns, struct berth_err *err)
{
    if (!berth_wire_whole(&worker->message) || flight->kind == BERTH_WORKER_RUN ||
        flight->kind == BERTH_WORKER_STEP) {
        return wrong(err, "a sign of life that cannot be read, or of no load");
    }
    flight->t_alive_ns = now_ns;
    return BERTH_OK;
}

/* error, started, ended, bytes, instances, slots, live rows, steps */
static enum berth_code take_done(struct berth_process_worker *worker, struct berth_flight *flight,
                                 uint64_t now_ns, struct berth_err *err)
{
    struct berth_wire_message *message = &worker->message;
    struct berth_worker_msg *msg = flight->msg;
    struct berth_err whole;
    berth_wire_get_err(message, &whole);
    uint64_t t_started_ns = berth_wire_get_u64(message);
    uint64_t t_ended_ns = berth_wire_get_u64(message);
    uint64_t bytes_used = berth_wire_get_u64(message);
    uint32_t counts[2];
    counts[0] = berth_wire_get_u32(message, UINT32_MAX);
    counts[1] = berth_wire_get_u32(message, UINT32_MAX);
    uint32_t live = berth_wire_get_u32(message, BERTH_WIRE_ROWS_MAX);
    uint32_t steps = berth_wire_get_u32(message, UINT32_MAX);
    if (!berth_wire_whole(message) || flight->pieces_sent < flight->pieces) {
        return wrong(err, "an end that cannot be read, or comes too early");
    }
    if ((flight->kind == BERTH_WORKER_STEP || whole.code == BERTH_OK) && !has_all_rows(flight)) {
        return wrong(err, "an end without all answers");
    }
    judge_cancelled(flight->told || msg == NULL || berth_process_unwanted(flight), &whole);
    if (msg != NULL) {
        msg->t_ended_ns = t_ended_ns < now_ns ? t_ended_ns : now_ns;
        msg->t_started_ns = t_started_ns < msg->t_ended_ns ? t_started_ns : msg->t_ended_ns;
        msg->bytes_used = believable(worker, bytes_used);
        if (msg->err.code == BERTH_OK) {
            msg->err = whole;
        }
    }
    if (flight->kind == BERTH_WORKER_LOAD) {
        if (whole.code == BERTH_OK) {
            return end_load(worker, flight, counts, err);
        }
    } else if (flight->kind == BERTH_WORKER_UNLOAD) {
        if (flight->remote != NULL) {
            berth_remote_remove(worker, flight->remote);
        }
    } else if (msg->err.code != BERTH_OK) {
        for (size_t i = 0; i < msg->batch.row_count; i++) {
            berth_part_destroy(msg->batch.rows[i].part);
            msg->batch.rows[i].part = NULL;
        }
        for (size_t i = 0; flight->kind == BERTH_WORKER_STEP && i < msg->step->event_count; i++) {
            berth_part_destroy(msg->step->events[i].part);
            msg->step->events[i].part = NULL;
        }
    }
    if (flight->kind == BERTH_WORKER_STEP) {
        msg->step->live = live;
        msg->step->steps = steps;
        msg->step->event_count = msg->err.code == BERTH_OK ? msg->step->event_count : 0;
    }
    berth_flight_end(worker, flight);
    return BERTH_OK;
}

/* Without memory for its slots the model cannot be used: it is unloaded again. */
static enum berth_code end_load(struct berth_process_worker *worker, struct berth_flight *flight,
                                const uint32_t counts[2], struct berth_err *err)
{
    struct berth_remote *remote = flight->remote;
    struct berth_worker_msg *msg = flight->msg;
    bool steps = remote->spec->run_mode == BERTH_RUN_STEPS;
    if (counts[0] == 0 || counts[0] > BERTH_WIRE_INSTANCES_MAX || counts[1] == 0 ||
        (steps && counts[1] > BERTH_WIRE_ROWS_MAX)) {
        return wrong(err, "a model of impossible size");
    }
    remote->instance_count = counts[0];
    remote->slot_count = steps ? counts[1] : 0;
    if (steps) {
        remote->slots = berth_alloc((size_t)counts[0] * counts[1] * sizeof(*remote->slots));
    }
    msg->instance_count = counts[0];
    msg->slots = counts[1];
    msg->epoch = atomic_load(&worker->base.epoch);
    flight->kind = BERTH_WORKER_UNLOAD; /* the remote is no longer the flight's own */
    berth_remote_add(worker, remote);
    if (!steps || remote->slots != NULL) {
        berth_flight_end(worker, flight);
        return BERTH_OK;
    }
    remote->held = NULL; /* the message has it, and goes home */
    flight->msg = NULL;
    flight->pieces_sent = 0;
    flight->id = ++worker->id_last;
    berth_list_remove(&flight->link);
    berth_list_append(&worker->outbox, &flight->link);
    (void)berth_fail(&msg->err, BERTH_UNAVAILABLE, "out of memory");
    berth_queue_post(worker->base.replies, &msg->post.link);
    return BERTH_OK;
}

static bool has_all_rows(const struct berth_flight *flight)
{
    for (size_t i = 0; i + 1 < flight->pieces; i++) {
        if ((flight->marks[i] & BERTH_ROW_ANSWERED) == 0) {
            return false;
        }
    }
    return true;
}

/* CANCELLED is no failure, and is not even logged: only what nobody waits for may end so. A child
 * cannot know that before we do. */
static void judge_cancelled(bool is_cancelled, struct berth_err *of)
{
    if (of->code == BERTH_CANCELLED && !is_cancelled) {
        (void)berth_fail(of, BERTH_INTERNAL,
                         "the worker process cancelled what somebody waits for");
    }
}

static enum berth_code wrong(struct berth_err *err, const char *text)
{
    return berth_fail(err, BERTH_INTERNAL, "sent %s", text);
}
