/* worker.h - the seam between the controller and whatever runs models.
 *
 * A worker is one partition of one device. The controller sends it messages and gets each message
 * back, on the controller's queue, with its results filled in: nothing is allocated on the way
 * home. Implementations: thread (thread.c: run threads and loader threads of this process) and
 * process (process_worker.c: the same in a process of its own, host.c). A simulator comes beside
 * them. Tensors in messages are slab ranges, never pointers.
 *
 * Threads: send from the controller only. A message belongs to the worker until it comes back.
 * Rules:   README.md here, P1 to P14.
 */
#ifndef BERTH_WORKER_H
#define BERTH_WORKER_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "base/queue.h"
#include "engine/engine.h"
#include "model/model.h"
#include "worker/held.h"

enum berth_worker_kind {
    BERTH_WORKER_DESCRIBE, /* completes spec; loads nothing              -> err, spec */
    BERTH_WORKER_LOAD,     /* describe if need be, attach, instances, warm up -> err, bytes_used */
    BERTH_WORKER_UNLOAD,   /* destroy them; no RUN or STEP is under way */
    BERTH_WORKER_RUN,      /* execute batch on an instance              -> rows' parts and errors */
    BERTH_WORKER_STEP      /* drop slots, admit batch's rows, then step  -> step.events */
};

/* Rows of an answer: on the way back a row has a part, or an error. When err says that the whole
 * message failed, no row has a part and step has no event. */
struct berth_worker_msg {
    struct berth_post post;   /* comes back on the controller's queue; it sets deliver */
    enum berth_worker_kind kind;
    struct berth_worker *worker;
    struct berth_model *model;       /* retained by the controller */
    struct berth_model_spec *spec;   /* retained by the controller; DESCRIBE and LOAD may complete
                                        one that is not completed, and is nobody else's then */
    uint64_t load_id;                /* names one loaded copy; the controller's choice, unique */
    struct berth_held *held;         /* LOAD: the controller's, where growth is told without a RUN
                                        (P14); the worker borrows it until the UNLOAD, or a LOAD
                                        that failed, is home. NULL: nobody asks */
    uint32_t instance;
    struct berth_batch batch;        /* RUN: rows; STEP: rows to admit; the controller's memory */
    const uint32_t *drops;           /* STEP: slots to drop first */
    size_t drop_count;
    uint64_t budget_ns;              /* STEP; 0: drop and admit only */
    struct berth_step_result *step;  /* STEP: where results go */
    /* Results. */
    struct berth_err err;            /* of the whole message */
    bool not_begun;                  /* RUN, STEP: lost with the worker's process before that had
                                        any of it: its rows may go to another copy of the model */
    bool lost;                       /* RUN, STEP, LOAD: lost with the process, which had it */
    uint64_t t_started_ns;
    uint64_t t_ended_ns;
    uint64_t bytes_used;             /* LOAD, RUN, STEP: what the model holds then; 0: unknown */
    uint32_t instance_count;         /* LOAD: instances made */
    uint32_t slots;                  /* LOAD: per instance, for step models */
    uint64_t epoch;                  /* LOAD: the worker's epoch in which it was loaded */
    void *state;                     /* the controller's own */
    _Atomic int clock;               /* of the CPU time of the thread that has it; 0: none yet */
    /* LOAD, by berth_worker_want, any time: nobody waits for it any more, and it may end CANCELLED
     * wherever it can stop. */
    atomic_bool unwanted;
};

struct berth_worker;

struct berth_worker_ops {
    const char *name;
    /* Takes the message until it is posted on `replies`. Never blocks, never fails. */
    void (*send)(struct berth_worker *worker, struct berth_worker_msg *msg);
    /* Optional. A request of a row it has was cancelled, or a load is unwanted; NULL: its engines
     * and loader threads see that by themselves. */
    void (*cancel)(struct berth_worker *worker);
    /* Ends all threads; every message sent has been posted back when it returns. */
    void (*destroy)(struct berth_worker *worker);
};

/* Would a load that is sent now begin soon? */
enum berth_worker_condition {
    BERTH_WORKER_READY,
    BERTH_WORKER_STARTING, /* yes: its process is on its way up */
    BERTH_WORKER_FAILING   /* perhaps never: the last process ended before it was ready */
};

struct berth_worker {
    const struct berth_worker_ops *ops;
    struct berth_queue *replies; /* the controller's queue; set before the first send */
    const char *device;          /* "cpu:0" */
    uint32_t parallel_max;       /* RUN and STEP messages it works on at a time */
    uint64_t bytes_max;          /* memory its models may hold together */
    const char *const *engines;  /* models of these engines only, ended by NULL; NULL: of all */
    /* A worker may lose all it has loaded (its process ended): it counts `epoch` on, and posts
     * `fault`. What was loaded in an earlier epoch is gone then, and its memory free. */
    _Atomic uint64_t epoch;
    _Atomic int condition;       /* enum berth_worker_condition; the worker's to set */
    struct berth_post fault;     /* the controller sets deliver, before the first send */
    atomic_bool fault_out;       /* posted and not seen yet */
    atomic_bool closing;         /* the server ends: nobody waits for anything any more */
    void *state;                 /* the controller's own */
};

struct berth_worker_options {
    const char *device;
    uint32_t run_threads;
    uint32_t load_threads; /* at SCHED_IDLE, so that a load never takes a warm model's turn */
    uint64_t bytes_max;
    struct berth_slabs *slabs;
    /* NULL: berth_engine_find; tests put their own engines here. */
    const struct berth_engine_ops *(*engine_find)(const char *name);
    const char *const *engines; /* see berth_worker; lives as long as the worker */
    /* Of a process only. */
    const char *program;     /* that has the command `worker`; NULL: this executable */
    uint32_t engine_threads; /* of its operator pool */
    uint64_t bytes_budget;   /* of its own slabs: inputs and outputs of what runs */
    uint64_t start_ns_max;   /* until it says it is ready; 0: 60 s */
    uint64_t hang_ns_max;    /* of a message that nobody waits for any more; 0: 30 s */
    uint64_t load_ns_max;    /* of a load without a sign of life; 0: 5 min (P12) */
};

enum berth_code berth_worker_thread_create(const struct berth_worker_options *options,
                                           struct berth_worker **out,
                                           struct berth_err *err) BERTH_MUST_USE;
/* Starts the process and does not wait for it; one that does not start fails what is sent. */
enum berth_code berth_worker_process_create(const struct berth_worker_options *options,
                                            struct berth_worker **out,
                                            struct berth_err *err) BERTH_MUST_USE;
void berth_worker_send(struct berth_worker *worker, struct berth_worker_msg *msg);
void berth_worker_cancel(struct berth_worker *worker);
/* Does anybody wait for a LOAD that is out? The last word counts, where it comes in time: one that
 * was unwanted may come back CANCELLED. */
void berth_worker_want(struct berth_worker *worker, struct berth_worker_msg *load, bool wanted);
void berth_worker_destroy(struct berth_worker *worker); /* NULL is fine */

/* Can models of this spec run there? By their engine and by the kinds their config names. */
bool berth_worker_suits(const struct berth_worker *worker, const struct berth_model_spec *spec);
bool berth_worker_is_gpu(const struct berth_worker *worker);

/* The worker posts its fault, unless one is out that has not been seen. */
void berth_worker_fault_post(struct berth_worker *worker);
/* The controller has it, and reads the epoch after this. */
void berth_worker_fault_seen(struct berth_worker *worker);
/* No more of them: true when none is out and none will be. Else wait for the one that is out. */
bool berth_worker_fault_stop(struct berth_worker *worker) BERTH_MUST_USE;

/* `berth worker --fd N`: what such a process does, until its server is gone. Exit status. */
int berth_worker_host_main(int argc, char **argv);

#define BERTH_WORKER_STEP_INSTANCES_MAX 4
/* How many instances a described model gets on a worker: what its config says (at most 64), else
 * one; for step models, whose rows share an instance, one for each thread, at most four. */
uint32_t berth_worker_instances(const struct berth_worker *worker,
                                const struct berth_model_spec *spec);

/* One message's work over one loaded model, shared by the implementations (loaded.c). Any thread;
 * calls on one loaded model are ordered by the caller. */
struct berth_loaded;

/* Describes a spec that is not completed. */
enum berth_code berth_loaded_describe(const struct berth_engine_ops *engine,
                                      struct berth_model_spec *spec,
                                      struct berth_err *err) BERTH_MUST_USE;
/* LOAD: makes *out from msg->spec; fills msg's results. */
enum berth_code berth_loaded_create(const struct berth_engine_ops *engine,
                                    struct berth_slabs *slabs, struct berth_worker_msg *msg,
                                    struct berth_loaded **out,
                                    struct berth_err *err) BERTH_MUST_USE;
void berth_loaded_destroy(struct berth_loaded *loaded); /* NULL is fine */
/* RUN or STEP; fills rows, events and msg->err. Two instances may run at once. */
void berth_loaded_run(struct berth_loaded *loaded, struct berth_worker_msg *msg);

#endif
