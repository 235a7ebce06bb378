/* host_answer.c - what became of the server's messages, told to it in messages. */
#include "base/clock.h"
#include "base/mem.h"
#include "worker/host.h"

static bool deliver_load(struct berth_host_job *job);
static void end_load(struct berth_host_job *job);
static void end_unload(struct berth_host_job *job);
static bool as_expected(const struct berth_host_job *job);
static void deliver_run(struct berth_host_job *job);
static void deliver_step(struct berth_host_job *job);
static void end_dropped(struct berth_host_job *job);
static void send_event(struct berth_host_job *job, const struct berth_step_event *event);
static void put_part(struct berth_host_job *job, const struct berth_part *part);
static struct berth_host_row *row_in_slot(const struct berth_host_job *job, uint32_t slot);
static void send_held(struct berth_host_load *load, uint64_t bytes);

void berth_host_deliver(struct berth_post *post)
{
    struct berth_host_job *job = BERTH_CONTAINER_OF(
        BERTH_CONTAINER_OF(post, struct berth_worker_msg, post), struct berth_host_job, msg);
    struct berth_host *host = job->host;
    switch (job->msg.kind) {
    case BERTH_WORKER_DESCRIBE:
        if (deliver_load(job)) {
            return;
        }
        end_load(job);
        break;
    case BERTH_WORKER_LOAD:
        end_load(job);
        break;
    case BERTH_WORKER_RUN:
        deliver_run(job);
        break;
    case BERTH_WORKER_STEP:
        deliver_step(job);
        break;
    case BERTH_WORKER_UNLOAD:
        end_unload(job);
        break;
    }
    if (job->msg.kind == BERTH_WORKER_RUN || job->msg.kind == BERTH_WORKER_STEP) {
        job->load->busy &= ~(UINT64_C(1) << job->msg.instance);
    }
    job->load = NULL;
    berth_host_send_done(job);
    job->state = BERTH_HOST_LENT;
    if (!job->lends || host->ended) {
        berth_host_job_destroy(job);
    }
}

/* It has been described. True: and goes on. */
static bool deliver_load(struct berth_host_job *job)
{
    job->msg.kind = BERTH_WORKER_LOAD;
    if (job->msg.err.code == BERTH_OK && !as_expected(job)) {
        (void)berth_fail(&job->msg.err, BERTH_UNAVAILABLE,
                         "its files have changed since they were described");
    }
    bool goes_on = job->msg.err.code == BERTH_OK && !job->host->ended;
    if (goes_on) {
        berth_host_dispatch(job);
    }
    return goes_on;
}

/* Loaded, or there no more. */
static void end_load(struct berth_host_job *job)
{
    struct berth_host_load *load = job->load;
    if (job->msg.err.code != BERTH_OK) {
        berth_host_load_destroy(load);
        return;
    }
    bool steps = load->spec->run_mode == BERTH_RUN_STEPS;
    load->state = BERTH_HOST_IDLE;
    _Static_assert(BERTH_INSTANCES_MAX <= BERTH_WIRE_INSTANCES_MAX, "a count that can be sent");
    load->instance_count = job->msg.instance_count;
    load->slot_count = steps ? job->msg.slots : 0;
    job->msg.bytes_used = berth_held_begin(&load->held, job->msg.bytes_used);
}

/* And with it what lived in its slots. */
static void end_unload(struct berth_host_job *job)
{
    BERTH_LIST_EACH_SAFE(link, &job->host->rows) {
        struct berth_host_row *row = BERTH_CONTAINER_OF(link, struct berth_host_row, link);
        if (row->load_id == job->msg.load_id) {
            berth_host_row_destroy(row);
        }
    }
    berth_host_load_destroy(job->load);
}

static bool as_expected(const struct berth_host_job *job)
{
    const struct berth_model_spec *spec = job->msg.spec;
    return job->expected[0] == spec->batch_size_max &&
           job->expected[1] == (uint64_t)spec->run_mode &&
           job->expected[2] == spec->input_count && job->expected[3] == spec->output_count;
}

static void deliver_run(struct berth_host_job *job)
{
    for (size_t i = 0; i < job->msg.batch.row_count; i++) {
        if (job->msg.err.code == BERTH_OK) {
            berth_host_send_answer(job, job->index[i], &job->rows[i]);
        }
        berth_host_row_destroy(job->hosted[i]);
    }
}

/* Each row has an answer, also when the step failed. Slots are freed before they are given anew. */
static void deliver_step(struct berth_host_job *job)
{
    end_dropped(job);
    for (size_t i = 0; i < job->msg.batch.row_count; i++) {
        struct berth_row *row = &job->rows[i];
        if (row->err.code == BERTH_OK && row->slot == UINT32_MAX) {
            row->err = job->msg.err;
            if (row->err.code == BERTH_OK) {
                (void)berth_fail(&row->err, BERTH_INTERNAL, "the engine gave a row no slot");
            }
        }
        berth_host_send_answer(job, job->index[i], row);
        job->hosted[i]->slot = row->slot;
        if (row->err.code != BERTH_OK) {
            berth_host_row_destroy(job->hosted[i]);
        }
    }
    for (size_t i = 0; i < job->step->event_count; i++) {
        struct berth_step_event *event = &job->step->events[i];
        struct berth_host_row *row = row_in_slot(job, event->slot);
        send_event(job, event);
        if (event->final && row != NULL) {
            berth_host_row_destroy(row);
        }
    }
}

static void end_dropped(struct berth_host_job *job)
{
    for (size_t i = 0; i < job->msg.drop_count; i++) {
        struct berth_host_row *row = row_in_slot(job, job->drops[i]);
        if (row != NULL) {
            berth_host_row_destroy(row);
        }
    }
}

void berth_host_send_answer(struct berth_host_job *job, uint32_t index,
                            const struct berth_row *row)
{
    struct berth_wire_writer *writer = &job->host->writer;
    struct berth_err err = row->err;
    for (int tries = 0; tries < 2; tries++) {
        berth_wire_begin(writer, BERTH_WIRE_ANSWER, job->id);
        berth_wire_put_u32(writer, index);
        berth_wire_put_u32(writer, row->slot);
        berth_wire_put_err(writer, &err);
        if (err.code == BERTH_OK && job->msg.kind == BERTH_WORKER_RUN) {
            put_part(job, row->part);
        }
        if (!writer->full) {
            break;
        }
        (void)berth_fail(&err, BERTH_UNSUPPORTED, "the answer has more tensors than a worker "
                         "process can hand over");
    }
    job->lends = job->lends || writer->fd_count > 0;
    berth_host_send(job->host);
}

static void send_event(struct berth_host_job *job, const struct berth_step_event *event)
{
    struct berth_wire_writer *writer = &job->host->writer;
    struct berth_err err = event->err;
    bool has_part = event->part != NULL;
    for (int tries = 0; tries < 2; tries++) {
        berth_wire_begin(writer, BERTH_WIRE_EVENT, job->id);
        berth_wire_put_u32(writer, event->slot);
        berth_wire_put_u32(writer, event->final);
        berth_wire_put_u32(writer, has_part);
        berth_wire_put_err(writer, &err);
        if (has_part) {
            put_part(job, event->part);
        }
        if (!writer->full) {
            break;
        }
        has_part = false; /* then the whole step fails: a piece of an answer is missing */
        (void)berth_fail(&job->msg.err, BERTH_UNSUPPORTED, "the answer has more tensors than a "
                         "worker process can hand over");
    }
    job->lends = job->lends || writer->fd_count > 0;
    berth_host_send(job->host);
}

static void put_part(struct berth_host_job *job, const struct berth_part *part)
{
    berth_wire_put_tensors(&job->host->writer, job->host->slabs, part->tensors, part->tensor_count);
}

void berth_host_send_done(struct berth_host_job *job)
{
    struct berth_wire_writer *writer = &job->host->writer;
    const struct berth_worker_msg *msg = &job->msg;
    berth_wire_begin(writer, BERTH_WIRE_DONE, job->id);
    berth_wire_put_err(writer, &msg->err);
    berth_wire_put_u64(writer, msg->t_started_ns);
    berth_wire_put_u64(writer, msg->t_ended_ns);
    berth_wire_put_u64(writer, msg->bytes_used);
    berth_wire_put_u32(writer, msg->instance_count);
    berth_wire_put_u32(writer, msg->slots);
    berth_wire_put_u32(writer, job->step == NULL ? 0 : job->step->live);
    berth_wire_put_u32(writer, job->step == NULL ? 0 : job->step->steps);
    berth_host_send(job->host);
}

static struct berth_host_row *row_in_slot(const struct berth_host_job *job, uint32_t slot)
{
    BERTH_LIST_EACH(link, &job->host->rows) {
        struct berth_host_row *row = BERTH_CONTAINER_OF(link, struct berth_host_row, link);
        if (row->slot == slot && row->load_id == job->msg.load_id &&
            row->instance == job->msg.instance) {
            return row;
        }
    }
    return NULL;
}

/* P14: a model has grown while nothing of it ran. */
void berth_host_deliver_held(struct berth_post *post)
{
    struct berth_host_load *load = BERTH_CONTAINER_OF(
        BERTH_CONTAINER_OF(post, struct berth_held, post), struct berth_host_load, held);
    send_held(load, berth_held_take(&load->held, berth_clock_now_ns()));
}

uint64_t berth_host_look_at_held(struct berth_host *host, uint64_t now_ns)
{
    uint64_t t_next_ns = UINT64_MAX;
    BERTH_LIST_EACH(link, &host->loads) {
        struct berth_host_load *load = BERTH_CONTAINER_OF(link, struct berth_host_load, link);
        send_held(load, berth_held_look(&load->held, now_ns));
        t_next_ns = load->held.t_look_ns < t_next_ns ? load->held.t_look_ns : t_next_ns;
    }
    return t_next_ns;
}

static void send_held(struct berth_host_load *load, uint64_t bytes)
{
    struct berth_wire_writer *writer = &load->host->writer;
    if (bytes > 0) {
        berth_wire_begin(writer, BERTH_WIRE_HELD, load->load_id);
        berth_wire_put_u64(writer, bytes);
        berth_host_send(load->host);
    }
}
