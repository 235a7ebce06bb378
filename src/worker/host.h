/* host.h - the records that the files of a worker process' main thread share; nobody else includes
 * it.
 *
 *     berth_host ─┬─ jobs: messages of the server, from their first piece to their last answer
 *                 └─ rows: requests of this process, under way in a job or living in a slot
 *
 * host.c has the process and its loop, host_take.c makes jobs of what the server says,
 * host_answer.c says what came of them.
 * Threads: all of it is the main thread's.
 */
#ifndef BERTH_HOST_H
#define BERTH_HOST_H

#include "base/queue.h"
#include "worker/worker.h"
#include "worker/worker_protocol.h"

/* A request of this process: in a message, or in a slot of a step model. */
struct berth_host_row {
    struct berth_link link;
    uint64_t token;
    struct berth_request *request; /* owned */
    uint64_t load_id;
    uint32_t instance;
    uint32_t slot;                 /* where it lives; UINT32_MAX: in no slot */
};

struct berth_host_job { /* one message of the server */
    struct berth_link link;
    struct berth_host *host;
    uint64_t id;
    struct berth_worker_msg msg;
    struct berth_model *model;     /* LOAD: owned */
    uint64_t token;                /* LOAD: what CANCEL names it by */
    uint64_t expected[4];          /* LOAD: batch size, run mode, inputs, outputs of the spec */
    uint32_t row_count;            /* that the server has */
    uint32_t rows_seen;
    bool lends;                    /* its parts are kept until RELEASE */
    bool is_out;                   /* the thread worker has it */
    uint64_t cpu_ns;               /* LOAD, UNLOAD: CPU time of its thread at the last look */
    struct berth_step_result *step; /* owned */
    uint32_t *drops;               /* owned */
    struct berth_row *rows;        /* owned; msg.batch.row_count of them are good */
    struct berth_host_row **hosted; /* owned array; as rows */
    uint32_t *index;               /* owned; as rows: which row of the server's it is */
};

struct berth_host {
    int fd;
    int epoll_fd;
    bool ended; /* the server is gone, or not to be understood */
    bool wrong; /* the latter */
    struct berth_slabs *slabs;
    struct berth_worker *worker;
    struct berth_queue replies;
    struct berth_link jobs;
    struct berth_link rows;
    char device[BERTH_WIRE_DEVICE_MAX];
    uint64_t alive_ns; /* how often a load has to show that it goes on (P12) */
    uint64_t t_alive_ns; /* when they are looked at next */
    struct berth_wire_writer writer;
    struct berth_wire_message message;
};

/* host.c */
void berth_host_send(struct berth_host *host); /* host->writer; waits for room */
void berth_host_job_destroy(struct berth_host_job *job);
void berth_host_row_destroy(struct berth_host_row *row);

/* host_take.c. Takes host->message; what it cannot be turns the host wrong. */
void berth_host_take(struct berth_host *host);
/* To the thread worker; comes back to berth_host_deliver. */
void berth_host_dispatch(struct berth_host_job *job);

/* host_answer.c */
void berth_host_deliver(struct berth_post *post);
void berth_host_send_answer(struct berth_host_job *job, uint32_t index,
                            const struct berth_row *row);
void berth_host_send_done(struct berth_host_job *job);

#endif
