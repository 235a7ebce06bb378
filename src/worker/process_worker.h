/* process_worker.h - the records that the files of the process worker share; nobody else includes
 * it.
 *
 *     berth_process_worker ─┬─ child: the process and its socket (base/child.h)
 *                           ├─ flights: messages under way, queued or sent (flight.c)
 *                           └─ remotes: what the child has loaded, and the rows in its slots
 *
 * process_worker.c has the thread and the process' life, process_send.c sends, process_answers.c
 * judges what comes back, process_watch.c sees when nothing does, process_describe.c reads models.
 * Threads: all of it is the worker's I/O thread's, but the queues and the atomics.
 */
#ifndef BERTH_PROCESS_WORKER_H
#define BERTH_PROCESS_WORKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/child.h"
#include "base/queue.h"
#include "worker/worker.h"
#include "worker/worker_protocol.h"

#define BERTH_REMOTES_BUCKETS 256 /* a power of two */
#define BERTH_PROCESS_LATER_NS UINT64_C(5000000) /* until a send that nothing announces is tried */

/* A row of a step model that lives in the child between messages. */
struct berth_remote_slot {
    struct berth_request *request; /* borrowed while the slot is taken; NULL: free */
    uint64_t token;
    bool told; /* the child knows that it is cancelled */
};

struct berth_remote { /* a model the child has loaded */
    struct berth_remote *next;
    uint64_t load_id;
    struct berth_model_spec *spec; /* retained */
    struct berth_held *held;       /* the controller's (P14); NULL: nobody asks */
    uint32_t instance_count;
    uint32_t slot_count;             /* of an instance; 0: no step model */
    struct berth_remote_slot *slots; /* owned; slot_count for each instance */
};

#define BERTH_ROW_ANSWERED 1
#define BERTH_ROW_TOLD 2

struct berth_flight {
    struct berth_link link;       /* outbox, sent or releases */
    uint64_t id;
    enum berth_worker_kind kind;
    struct berth_worker_msg *msg; /* NULL: it has gone home, or nobody sent it */
    struct berth_remote *remote;  /* LOAD: owned until DONE; else the table's */
    size_t pieces_sent;           /* the head, then each row */
    size_t pieces;
    uint64_t token_first;         /* of its rows; a LOAD has one of its own */
    bool told;                    /* LOAD: the child knows that it is unwanted */
    bool lends;                   /* its answers named memory of the child: RELEASE it */
    uint64_t t_unwanted_ns;       /* since when nobody waits for it; 0: somebody does */
    uint64_t t_held_ns;           /* LOAD, UNLOAD: since when it is this child's; 0: not yet */
    uint64_t t_alive_ns;          /* LOAD, UNLOAD: last sign of life */
    unsigned char marks[];        /* by row */
};

struct berth_process_worker {
    struct berth_worker base;
    struct berth_worker_options options;
    struct berth_queue queue;     /* messages from the controller */
    struct berth_queue describes; /* to the describer */
    pthread_t thread, describer;
    bool has_describer;           /* I/O thread */
    atomic_bool stop, stop_describer;
    atomic_bool cancels;          /* look for cancelled rows */
    int epoll_fd;
    bool wants_out;               /* the socket is watched for room */
    uint64_t t_send_ns;           /* nothing is sent before; 0: it may be */
    struct berth_child child;
    char why[80];                 /* the child was given up; "": it ended by itself */
    bool end_told;                /* this child's end has counted, and its messages are home */
    struct berth_link outbox, sent, releases;
    struct berth_remote *remotes[BERTH_REMOTES_BUCKETS];
    uint64_t id_last, token_last;
    struct berth_wire_writer writer;
    struct berth_wire_message message;
};

/* flight.c */
/* NULL: no memory. Finds the model a RUN, STEP or UNLOAD is for. */
struct berth_flight *berth_flight_create(struct berth_process_worker *worker,
                                         struct berth_worker_msg *msg);
void berth_flight_destroy(struct berth_flight *flight); /* its message must have gone home */
/* Sends its message home. The flight is no longer in a list, and gone unless a RELEASE is due. */
void berth_flight_end(struct berth_process_worker *worker, struct berth_flight *flight);
/* Makes the whole message fail and sends it home; an UNLOAD is done. */
void berth_message_fail(struct berth_process_worker *worker, struct berth_worker_msg *msg,
                        const struct berth_err *err);
/* The child is gone: all of `list` fails, and what it had loaded is forgotten. */
void berth_flights_fail(struct berth_process_worker *worker, struct berth_link *list,
                        const struct berth_err *err);
struct berth_remote *berth_remote_find(struct berth_process_worker *worker, uint64_t load_id);
void berth_remote_add(struct berth_process_worker *worker, struct berth_remote *remote);
void berth_remote_remove(struct berth_process_worker *worker, struct berth_remote *remote);
void berth_remote_destroy(struct berth_remote *remote); /* NULL is fine */
/* The slots of one instance; NULL where there are none. */
struct berth_remote_slot *berth_remote_slots(const struct berth_remote *remote, uint32_t instance);

/* process_worker.c */
/* The child is given up; what it had goes home when it is known how it ended. why NULL: it ended by
 * itself. */
void berth_process_lose(struct berth_process_worker *worker, const char *why);
/* Its socket, by epoll: EPOLL_CTL_ADD or _MOD; `out`: for room too, and nothing is sent before. */
void berth_process_watch(struct berth_process_worker *worker, int operation, bool out);

/* process_describe.c. A DESCRIBE, or a LOAD that is to be described first and then comes back on
 * worker->queue. */
void berth_process_describe(struct berth_process_worker *worker, struct berth_worker_msg *msg);
void berth_process_describe_stop(struct berth_process_worker *worker); /* once there is a thread */

/* process_send.c. Sends what can be sent now. */
void berth_process_pump(struct berth_process_worker *worker, uint64_t now_ns);

/* process_watch.c. Why the child, which is up, has to be given up; NULL: it has not. */
const char *berth_process_hang(struct berth_process_worker *worker, uint64_t now_ns);
/* A RUN or STEP: every row of it, and in its instance's slots, has been cancelled. */
bool berth_process_unwanted(const struct berth_flight *flight);
uint64_t berth_process_load_ns_max(const struct berth_process_worker *worker);

/* process_answers.c. Takes worker->message, an ANSWER, EVENT, DONE, ALIVE or HELD. An error is the
 * child's fault, and it must not be believed any further. */
enum berth_code berth_process_answer(struct berth_process_worker *worker, uint64_t now_ns,
                                     struct berth_err *err) BERTH_MUST_USE;

#endif
