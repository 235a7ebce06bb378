/* host.h - the records that the files of a worker process' main thread share; nobody else includes
 * it.
 *
 *     berth_host ─┬─ loads: models of the server's, from LOAD to the end of their UNLOAD
 *                 ├─ jobs: messages of the server, from their first piece to their last answer
 *                 └─ rows: requests of this process, under way in a job or living in a slot
 *
 * host.c has the process and its loop, host_state.c which message may come when, host_take.c makes
 * jobs of what the server says, host_answer.c says what came of them.
 * Threads: all of it is the main thread's.
 */
#ifndef BERTH_HOST_H
#define BERTH_HOST_H

#include "base/queue.h"
#include "worker/worker.h"
#include "worker/worker_protocol.h"

/* What a message of the server is about is in one of these (P13). */
enum berth_host_state {
    BERTH_HOST_NONE,      /* a load, an instance, a message, a token: not there */
    BERTH_HOST_GREETING,  /* the process: waits for HELLO */
    BERTH_HOST_SERVING,
    BERTH_HOST_LOADING,   /* a load */
    BERTH_HOST_IDLE,      /* it is there, and nothing of it (of that instance) is under way */
    BERTH_HOST_BUSY,      /* a RUN or STEP is, from its head to its DONE */
    BERTH_HOST_UNLOADING,
    BERTH_HOST_GATHERING, /* a message: rows of it are still to come */
    BERTH_HOST_OUT,       /* it is complete, and has no DONE yet */
    BERTH_HOST_LENT,      /* it has; tensors of its answers are still to be read */
    BERTH_HOST_GIVEN,     /* a token: it names a row or load that is or was there */
    BERTH_HOST_STATES
};

/* A model of the server's. */
struct berth_host_load {
    struct berth_link link;
    struct berth_host *host;
    uint64_t load_id;
    enum berth_host_state state;   /* LOADING, IDLE (also while some of it is busy), UNLOADING */
    struct berth_model_spec *spec; /* retained; completed once it is IDLE */
    uint32_t instance_count;       /* at most BERTH_WIRE_INSTANCES_MAX */
    uint32_t slot_count;           /* of an instance; 0: no step model */
    uint64_t busy;                 /* instances, a bit for each */
    struct berth_held held;        /* growth that no DONE tells (P14) */
};

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
    enum berth_host_state state;   /* GATHERING, OUT: the thread worker has it, LENT */
    struct berth_host_load *load;  /* NULL: a LOAD that cannot be tried */
    struct berth_worker_msg msg;
    struct berth_model *model;     /* LOAD: owned */
    uint64_t token;                /* LOAD: what CANCEL names it by */
    uint64_t expected[4];          /* LOAD: batch size, run mode, inputs, outputs of the spec */
    uint32_t row_count;            /* that the server has */
    uint32_t rows_seen;
    bool lends;                    /* its parts are kept until RELEASE */
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
    bool ended;             /* the server is gone, or not to be understood */
    struct berth_err fault; /* the latter: why. INVALID: it cannot be read; CONFLICT: out of turn */
    struct berth_slabs *slabs;
    struct berth_worker *worker;
    struct berth_queue replies;
    struct berth_link loads;
    struct berth_link jobs;
    struct berth_link rows;
    uint64_t id_last, token_last; /* of the server's; both count on */
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

/* host_state.c. What comes when it may not is the host's fault, which ends it. */
/* May host->message come while what it is about is in that state? false: it is a fault. */
bool berth_host_legal(struct berth_host *host, enum berth_host_state state);
/* Not to be understood, or not to be done; the first fault stays. */
void berth_host_fail(struct berth_host *host, enum berth_code code, const char *why);
/* Its names count on: an id that a message begins with, a token of a row or load. */
bool berth_host_is_next(struct berth_host *host, uint64_t *last, uint64_t name) BERTH_MUST_USE;
enum berth_host_state berth_host_load_state(const struct berth_host_load *load); /* of all of it */
/* Of an instance that is to do a RUN or a STEP. */
enum berth_host_state berth_host_seat_state(const struct berth_host_load *load, uint32_t instance,
                                            enum berth_run_mode mode);
enum berth_host_state berth_host_job_state(const struct berth_host_job *job);
enum berth_host_state berth_host_token_state(const struct berth_host *host, uint64_t token);
struct berth_host_load *berth_host_load_find(struct berth_host *host, uint64_t load_id);
struct berth_host_job *berth_host_job_find(struct berth_host *host, uint64_t id);
/* NULL: no memory. LOADING, for a job that is a LOAD. */
struct berth_host_load *berth_host_load_create(struct berth_host_job *job);
void berth_host_load_destroy(struct berth_host_load *load); /* NULL is fine */

/* host_take.c. Takes host->message; what it cannot be is the host's fault. */
void berth_host_take(struct berth_host *host);
/* To the thread worker; comes back to berth_host_deliver. */
void berth_host_dispatch(struct berth_host_job *job);

/* host_answer.c */
void berth_host_deliver(struct berth_post *post);
void berth_host_send_answer(struct berth_host_job *job, uint32_t index,
                            const struct berth_row *row);
void berth_host_send_done(struct berth_host_job *job);
void berth_host_deliver_held(struct berth_post *post);
/* What loads hold, where it is time to look (P14). Returns when the next look is due. */
uint64_t berth_host_look_at_held(struct berth_host *host, uint64_t now_ns);

#endif
