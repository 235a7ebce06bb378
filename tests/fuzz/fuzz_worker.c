/* fuzz_worker.c - both directions of a worker's socket: whatever a child says of a run, a step and
 * a load, the server's records stay whole and each message goes home at most once, with a part or
 * an error for each row; whatever a server sends as a request is read or refused; and whatever it
 * sends as messages, the process keeps track of its jobs and rows, or ends.
 *
 * Each message takes a byte for its kind, one for what it is about, one for its length, and that
 * many bytes of fields.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../unit/host_rig.h"

#include "base/log.h"
#include "base/mem.h"
#include "worker/process_worker.h"

#define ROWS 2
#define SLOTS 4

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static struct berth_slabs *slabs;
static struct berth_queue replies;
static struct berth_process_worker *worker;
static struct berth_io output = {
    .name = "OUT", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {-1}};
static int memory_fd;
static struct berth_held held;

static void deliver_held(struct berth_post *post)
{
    BERTH_ASSERT(post == &held.post);
}

static void setup(void)
{
    struct berth_slabs_options options = {.bytes_budget = 1 << 22};
    berth_log_set_level(BERTH_LOG_ERROR);
    BERTH_ASSERT(berth_slabs_create(&options, &slabs, NULL) == BERTH_OK);
    BERTH_ASSERT(berth_queue_init(&replies, 0, NULL) == BERTH_OK);
    worker = berth_alloc(sizeof(*worker));
    memory_fd = memfd_create("fuzz", MFD_CLOEXEC);
    BERTH_ASSERT(worker != NULL && memory_fd >= 0 && ftruncate(memory_fd, 70000) == 0);
    BERTH_ASSERT(write(memory_fd, host_rig_config, sizeof(host_rig_config) - 1) ==
                 (ssize_t)sizeof(host_rig_config) - 1);
    berth_held_init(&held, deliver_held);
    worker->base.replies = &replies;
    worker->base.bytes_max = 1 << 20;
    berth_list_init(&worker->outbox);
    berth_list_init(&worker->sent);
    berth_list_init(&worker->releases);
}

static struct berth_model_spec *make_spec(bool steps)
{
    struct berth_model_spec *spec = berth_spec_create();
    BERTH_ASSERT(spec != NULL);
    spec->name = "m";
    spec->outputs = &output;
    spec->output_count = 1;
    spec->run_mode = steps ? BERTH_RUN_STEPS : BERTH_RUN_EXECUTE;
    return spec;
}

static void add_remote(uint64_t load_id, bool steps)
{
    struct berth_remote *remote = berth_alloc(sizeof(*remote));
    BERTH_ASSERT(remote != NULL);
    remote->load_id = load_id;
    remote->spec = make_spec(steps);
    remote->instance_count = 1;
    remote->slot_count = steps ? SLOTS : 0;
    remote->held = &held; /* nothing is posted, for it has not begun */
    remote->slots = steps ? berth_alloc(SLOTS * sizeof(*remote->slots)) : NULL;
    berth_remote_add(worker, remote);
}

static void fly(struct berth_worker_msg *msg, bool whole)
{
    struct berth_flight *flight = berth_flight_create(worker, msg);
    BERTH_ASSERT(flight != NULL);
    flight->pieces_sent = whole ? flight->pieces : 2;
    berth_list_append(whole ? &worker->sent : &worker->outbox, &flight->link);
}

/* Whole, or not there at all. */
static void judge_part(const struct berth_part *part)
{
    if (part != NULL) {
        const struct berth_tensor *tensor = berth_part_find(part, output.name);
        BERTH_ASSERT(part->tensor_count == 1 && tensor != NULL);
        BERTH_ASSERT(tensor->dtype == output.dtype && tensor->rank == output.rank);
    }
}

static void judge_home(struct berth_worker_msg *msgs)
{
    struct berth_link posts;
    struct berth_link *link;
    berth_list_init(&posts);
    (void)berth_queue_take(&replies, &posts);
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_worker_msg *msg = BERTH_CONTAINER_OF(link, struct berth_worker_msg, post.link);
        BERTH_ASSERT(msg->state == msgs); /* not home before */
        msg->state = NULL;
        for (size_t i = 0; i < msg->batch.row_count; i++) {
            struct berth_row *row = &msg->batch.rows[i];
            BERTH_ASSERT(msg->err.code == BERTH_OK || row->part == NULL);
            BERTH_ASSERT(msg->kind != BERTH_WORKER_RUN || msg->err.code != BERTH_OK ||
                         (row->part != NULL) == (row->err.code == BERTH_OK));
            judge_part(row->part);
            berth_part_destroy(row->part);
            row->part = NULL;
        }
        for (size_t i = 0; msg->step != NULL && i < msg->step->event_count; i++) {
            BERTH_ASSERT(msg->step->events[i].slot < SLOTS);
            judge_part(msg->step->events[i].part);
            berth_part_destroy(msg->step->events[i].part);
        }
        BERTH_ASSERT(msg->bytes_used <= worker->base.bytes_max);
    }
}

static void child_speaks(const uint8_t *bytes, size_t length)
{
    static struct berth_step_result step;
    struct berth_worker_msg msgs[4] = {{.kind = BERTH_WORKER_RUN, .load_id = 1},
                                       {.kind = BERTH_WORKER_STEP, .load_id = 2, .step = &step},
                                       {.kind = BERTH_WORKER_LOAD, .load_id = 3},
                                       {.kind = BERTH_WORKER_RUN, .load_id = 1}};
    struct berth_row rows[4][ROWS] = {0};
    struct berth_err err = {0};
    step.event_count = 0;
    worker->id_last = 0;
    add_remote(1, false);
    add_remote(2, true);
    struct berth_model_spec *spec = make_spec(bytes[0] % 2 == 1);
    for (size_t i = 0; i < 4; i++) {
        bool loads = msgs[i].kind == BERTH_WORKER_LOAD;
        msgs[i].state = msgs;
        msgs[i].spec = spec;
        msgs[i].batch.row_count = loads ? 0 : ROWS;
        msgs[i].batch.rows = rows[i];
        for (size_t at = 0; at < ROWS && !loads; at++) {
            rows[i][at].request = berth_request_create(slabs, 0);
        }
        fly(&msgs[i], i < 3);
    }
    while (length >= 3) {
        size_t fields = bytes[2] < length - 3 ? bytes[2] : length - 3;
        struct berth_wire_message *message = &worker->message;
        static struct berth_wire_writer head;
        berth_wire_begin(&head, (enum berth_wire_kind)(BERTH_WIRE_ANSWER + bytes[0] % 5),
                         1 + bytes[1] % 5);
        memcpy(message->bytes, head.bytes, head.length);
        memcpy(message->bytes + head.length, bytes + 3, fields);
        message->fds[0] = memory_fd;
        message->fd_count = 1;
        BERTH_ASSERT(berth_wire_open(message, head.length + fields));
        if (berth_process_answer(worker, 1000, &err) != BERTH_OK) {
            break; /* the server gives the child up here */
        }
        judge_home(msgs);
        bytes += 3 + fields;
        length -= 3 + fields;
    }
    (void)berth_fail(&err, BERTH_UNAVAILABLE, "worker process ended");
    berth_flights_fail(worker, &worker->sent, &err);
    berth_flights_fail(worker, &worker->outbox, &err);
    berth_flights_fail(worker, &worker->releases, &err);
    judge_home(msgs);
    for (size_t i = 0; i < BERTH_REMOTES_BUCKETS; i++) {
        while (worker->remotes[i] != NULL) {
            berth_remote_remove(worker, worker->remotes[i]);
        }
    }
    for (size_t i = 0; i < 4; i++) {
        BERTH_ASSERT(msgs[i].state == NULL);
        for (size_t at = 0; at < ROWS; at++) {
            berth_request_release(rows[i][at].request);
        }
    }
    berth_spec_release(spec);
}

static void server_speaks(const uint8_t *bytes, size_t length)
{
    static struct berth_wire_message message;
    struct berth_request *request = NULL;
    length = length < BERTH_WIRE_BYTES_MAX ? length : BERTH_WIRE_BYTES_MAX;
    memcpy(message.bytes, bytes, length);
    message.at = message.bytes;
    message.end = message.bytes + length;
    message.bad = false;
    message.fds[0] = memory_fd;
    message.fd_count = 1;
    if (berth_wire_get_request(&message, slabs, &request, NULL) == BERTH_OK) {
        for (size_t i = 0; i < request->input_count; i++) {
            size_t elements = 0;
            BERTH_ASSERT(berth_tensor_elements(&request->inputs[i], &elements));
            BERTH_ASSERT(request->inputs[i].name != NULL);
        }
        berth_request_release(request);
    }
}

static bool is_under_way(const struct berth_host_job *job)
{
    bool runs = job->msg.kind == BERTH_WORKER_RUN || job->msg.kind == BERTH_WORKER_STEP;
    return runs && job->state != BERTH_HOST_LENT;
}

/* Rows are counted, and no instance works twice, nor one whose model goes. */
static void judge_host(const struct berth_host *host)
{
    BERTH_LIST_EACH(link, &host->jobs) {
        struct berth_host_job *job = BERTH_CONTAINER_OF(link, struct berth_host_job, link);
        BERTH_ASSERT(job->msg.batch.row_count <= job->rows_seen);
        BERTH_ASSERT(job->rows_seen <= job->row_count || job->row_count == 0);
        if (!is_under_way(job)) {
            continue;
        }
        BERTH_ASSERT(job->load->state == BERTH_HOST_IDLE);
        BERTH_ASSERT((job->load->busy & UINT64_C(1) << job->msg.instance) != 0);
        for (struct berth_link *at = link->next; at != &host->jobs; at = at->next) {
            struct berth_host_job *other = BERTH_CONTAINER_OF(at, struct berth_host_job, link);
            BERTH_ASSERT(!is_under_way(other) || other->load != job->load ||
                         other->msg.instance != job->msg.instance);
        }
    }
}

/* A process under a server that says anything. */
static void server_speaks_to_host(const uint8_t *bytes, size_t length)
{
    static struct host_rig rig;
    static struct berth_wire_writer head;
    static unsigned char whole[512];
    host_rig_init(&rig, slabs);
    for (uint64_t i = 0; i < 2; i++) { /* a model for runs, and one for steps */
        host_rig_put_load(&head, 1 + i, 1 + i, HOST_RUNS + i);
        berth_wire_put_fd(&head, memory_fd);
        BERTH_ASSERT(host_rig_take(&rig, head.bytes, head.length, memory_fd));
    }
    for (bool good = true; good && length >= 3;) {
        size_t fields = bytes[2] < length - 3 ? bytes[2] : length - 3;
        enum berth_wire_kind kind = (enum berth_wire_kind)(BERTH_WIRE_LOAD + bytes[0] % 7);
        bool begins = kind <= BERTH_WIRE_STEP;
        rig.keeps = bytes[0] >= 128; /* until a message that is not kept */
        berth_wire_begin(&head, kind, begins ? rig.host.id_last + (bytes[1] % 8 != 0)
                                             : (uint64_t)bytes[1] % 8);
        memcpy(whole, head.bytes, head.length);
        memcpy(whole + head.length, bytes + 3, fields);
        good = rig.kept_count < HOST_KEPT_MAX &&
               host_rig_take(&rig, whole, head.length + fields, memory_fd);
        if (!rig.keeps) {
            host_rig_let_go(&rig);
        }
        judge_host(&rig.host);
        bytes += 3 + fields;
        length -= 3 + fields;
    }
    host_rig_finish(&rig);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct berth_slabs_stats stats;
    if (worker == NULL) {
        setup();
    }
    if (length < 2) {
        return 0;
    }
    if (bytes[0] % 4 == 0) {
        server_speaks(bytes + 1, length - 1);
    } else if (bytes[0] % 4 == 1) {
        server_speaks_to_host(bytes + 1, length - 1);
    } else {
        child_speaks(bytes + 1, length - 1);
    }
    berth_slabs_stats(slabs, &stats);
    BERTH_ASSERT(stats.bytes_out == 0);
    return 0;
}
