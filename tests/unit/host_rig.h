/* host_rig.h - the main thread of a worker process without the process: a worker that gives every
 * message back at once, and a server's end of the socket that is only emptied. For the unit test
 * and the fuzz target of host_take.c.
 */
#ifndef BERTH_HOST_RIG_H
#define BERTH_HOST_RIG_H

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "worker/host.h"

#define HOST_ANSWER_BYTES 20000 /* goes by descriptor, so that a RELEASE is due */

struct host_rig {
    struct berth_host host;
    struct berth_worker worker;
    int server_fd;
    size_t runs; /* rows that ran, were admitted or dropped */
    struct berth_wire_message said;
};

static inline void host_rig_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    struct host_rig *rig = worker->state;
    bool steps = msg->kind == BERTH_WORKER_STEP;
    rig->runs += steps ? msg->drop_count : 0;
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
    berth_queue_post(worker->replies, &msg->post.link);
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
    berth_list_init(&rig->host.jobs);
    berth_list_init(&rig->host.rows);
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
        berth_wire_close(&rig->said);
    }
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
    return opened && !rig->host.wrong;
}

static inline void host_rig_finish(struct host_rig *rig)
{
    host_rig_settle(rig);
    while (!berth_list_empty(&rig->host.jobs)) {
        berth_host_job_destroy(
            BERTH_CONTAINER_OF(rig->host.jobs.next, struct berth_host_job, link));
    }
    while (!berth_list_empty(&rig->host.rows)) {
        berth_host_row_destroy(
            BERTH_CONTAINER_OF(rig->host.rows.next, struct berth_host_row, link));
    }
    berth_queue_finish(&rig->host.replies);
    close(rig->host.fd);
    close(rig->server_fd);
}

#endif
