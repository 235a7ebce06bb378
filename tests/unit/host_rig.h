/* host_rig.h - the main thread of a worker process without the process: a worker that gives every
 * message back at once, or when it is told to, and a server's end of the socket that is only
 * emptied. For the unit test and the fuzz target of host_take.c.
 */
#ifndef BERTH_HOST_RIG_H
#define BERTH_HOST_RIG_H

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "worker/host.h"

#define HOST_ANSWER_BYTES 20000 /* goes by descriptor, so that a RELEASE is due */
#define HOST_RUNS 7             /* load id of a model that takes runs; all others take steps */
#define HOST_INSTANCES 2
#define HOST_SLOTS 7
#define HOST_KEPT_MAX 8

static const char host_rig_config[] =
    "{\"backend\": \"null\", \"input\": [{\"name\": \"IN\", \"data_type\": \"TYPE_FP32\","
    " \"dims\": [4]}], \"output\": [{\"name\": \"OUT\", \"data_type\": \"TYPE_UINT8\","
    " \"dims\": [-1]}]}";

struct host_rig {
    struct berth_host host;
    struct berth_worker worker;
    int server_fd;
    size_t runs; /* rows that ran, were admitted or dropped */
    bool keeps;  /* nothing is given back */
    struct berth_worker_msg *kept[HOST_KEPT_MAX];
    size_t kept_count;
    struct berth_held *held; /* of the last LOAD */
    uint64_t load_bytes;     /* what loads measure */
    size_t helds;            /* HELD messages that came, */
    uint64_t held_bytes;     /* what the last one said, */
    uint64_t done_bytes;     /* and the last DONE */
    struct berth_wire_message said;
};

static inline void host_rig_end(struct host_rig *rig, struct berth_worker_msg *msg)
{
    bool steps = msg->kind == BERTH_WORKER_STEP;
    rig->runs += steps ? msg->drop_count : 0;
    if (msg->kind == BERTH_WORKER_DESCRIBE) {
        msg->spec->run_mode = msg->load_id == HOST_RUNS ? BERTH_RUN_EXECUTE : BERTH_RUN_STEPS;
        msg->spec->completed = true;
    } else if (msg->kind == BERTH_WORKER_LOAD) {
        rig->held = msg->held;
        msg->instance_count = HOST_INSTANCES;
        msg->slots = HOST_SLOTS;
        msg->bytes_used = rig->load_bytes;
    }
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        struct berth_row *row = &msg->batch.rows[i];
        const struct berth_tensor like = {.name = "OUT", .dtype = BERTH_DTYPE_UINT8, .rank = 1,
                                          .dims = {HOST_ANSWER_BYTES}};
        void *to = NULL;
        rig->runs++;
        row->slot = (uint32_t)i;
        row->part = steps ? NULL : berth_part_create(row->request);
        if (row->part != NULL) {
            row->err.code = berth_part_add(row->part, &like, HOST_ANSWER_BYTES, &to, &row->err);
        }
    }
    berth_queue_post(rig->worker.replies, &msg->post.link);
}

static inline void host_rig_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    struct host_rig *rig = worker->state;
    if (rig->keeps) {
        BERTH_ASSERT(rig->kept_count < HOST_KEPT_MAX);
        rig->kept[rig->kept_count++] = msg;
    } else {
        host_rig_end(rig, msg);
    }
}

static inline void host_rig_init(struct host_rig *rig, struct berth_slabs *slabs)
{
    static const struct berth_worker_ops ops = {.name = "rig", .send = host_rig_send};
    int ends[2] = {-1, -1};
    memset(rig, 0, sizeof(*rig));
    BERTH_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    (void)setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &(int){1 << 20}, sizeof(int));
    BERTH_ASSERT(berth_queue_init(&rig->host.replies, 0, NULL) == BERTH_OK);
    rig->worker = (struct berth_worker){
        .ops = &ops, .replies = &rig->host.replies, .device = "rig:0", .state = rig};
    rig->host.fd = ends[0];
    rig->server_fd = ends[1];
    rig->host.epoll_fd = -1;
    rig->host.slabs = slabs;
    rig->host.worker = &rig->worker;
    berth_list_init(&rig->host.loads);
    berth_list_init(&rig->host.jobs);
    berth_list_init(&rig->host.rows);
}

/* All of a LOAD but the descriptor of its config, which the caller puts. */
static inline void host_rig_put_load(struct berth_wire_writer *writer, uint64_t id,
                                     uint64_t token, uint64_t load_id)
{
    berth_wire_begin(writer, BERTH_WIRE_LOAD, id);
    berth_wire_put_u64(writer, load_id);
    berth_wire_put_u64(writer, token);
    berth_wire_put_text(writer, "model");
    berth_wire_put_u64(writer, 1);
    berth_wire_put_text(writer, "/folder");
    berth_wire_put_text(writer, "/folder/1");
    berth_wire_put_text(writer, "null");
    berth_wire_put_u64(writer, 0);
    berth_wire_put_u32(writer, load_id == HOST_RUNS ? BERTH_RUN_EXECUTE : BERTH_RUN_STEPS);
    berth_wire_put_u32(writer, 1);
    berth_wire_put_u32(writer, 1);
    berth_wire_put_u64(writer, sizeof(host_rig_config) - 1);
}

static inline void host_rig_note(struct host_rig *rig)
{
    struct berth_err err;
    if (rig->said.kind == BERTH_WIRE_HELD) {
        rig->helds++;
        rig->held_bytes = berth_wire_get_u64(&rig->said);
        BERTH_ASSERT(berth_wire_whole(&rig->said));
    } else if (rig->said.kind == BERTH_WIRE_DONE) {
        berth_wire_get_err(&rig->said, &err);
        (void)berth_wire_get_u64(&rig->said);
        (void)berth_wire_get_u64(&rig->said);
        rig->done_bytes = berth_wire_get_u64(&rig->said);
    }
}

/* What came back is told, and what was told is thrown away, until nothing is left to do. */
static inline void host_rig_settle(struct host_rig *rig)
{
    struct berth_link posts;
    struct berth_link *link;
    berth_list_init(&posts);
    while (berth_queue_take(&rig->host.replies, &posts)) {
        while ((link = berth_list_pop(&posts)) != NULL) {
            struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
            post->deliver(post);
        }
    }
    while (berth_wire_receive(rig->server_fd, &rig->said, false) == BERTH_WIRE_OK) {
        host_rig_note(rig);
        berth_wire_close(&rig->said);
    }
}

/* What was kept comes back, and what follows from it. */
static inline void host_rig_let_go(struct host_rig *rig)
{
    rig->keeps = false;
    for (size_t i = 0; i < rig->kept_count; i++) {
        host_rig_end(rig, rig->kept[i]);
    }
    rig->kept_count = 0;
    host_rig_settle(rig);
}

/* `length` bytes as one message; its descriptors stay the caller's. false: it ends the host. */
static inline bool host_rig_take(struct host_rig *rig, const unsigned char *bytes, size_t length,
                                 int fd)
{
    struct berth_wire_message *message = &rig->host.message;
    memcpy(message->bytes, bytes, length);
    message->fds[0] = fd;
    message->fd_count = fd < 0 ? 0 : 1;
    bool opened = berth_wire_open(message, length);
    if (opened) {
        berth_host_take(&rig->host);
    }
    message->fd_count = 0;
    host_rig_settle(rig);
    return opened && rig->host.fault.code == BERTH_OK;
}

static inline void host_rig_finish(struct host_rig *rig)
{
    host_rig_let_go(rig);
    while (!berth_list_empty(&rig->host.jobs)) {
        berth_host_job_destroy(
            BERTH_CONTAINER_OF(rig->host.jobs.next, struct berth_host_job, link));
    }
    while (!berth_list_empty(&rig->host.rows)) {
        berth_host_row_destroy(
            BERTH_CONTAINER_OF(rig->host.rows.next, struct berth_host_row, link));
    }
    while (!berth_list_empty(&rig->host.loads)) {
        berth_host_load_destroy(
            BERTH_CONTAINER_OF(rig->host.loads.next, struct berth_host_load, link));
    }
    berth_queue_finish(&rig->host.replies);
    close(rig->host.fd);
    close(rig->server_fd);
}

#endif
