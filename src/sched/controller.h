/* controller.h - the records that the files of sched/ share; nobody outside includes it.
 *
 *     berth_sched ─┬─ runtimes: one for each model that was ever wanted (runtime.c)
 *                  │     └─ copies: a spec loaded on a device, or on its way there (copies.c)
 *                  │           ├─ batcher: tickets that wait for a seat (batcher.h)
 *                  │           └─ seats: an instance and the one message that works on it
 *                  ├─ devices: a worker, its ledger, its health (devices.c), whose turn it is
 *                  │           (dispatch.c)
 *                  ├─ tickets: accepted requests (ticket.c)
 *                  └─ ops: admin operations under way (ops.c)
 *
 * Threads: all of it is the controller thread's, but the atomics in berth_sched.
 */
#ifndef BERTH_CONTROLLER_H
#define BERTH_CONTROLLER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"
#include "residency/residency.h"
#include "sched/batcher.h"
#include "sched/sched.h"
#include "sched/timers.h"

#define BERTH_BATCH_REQUESTS_MAX 1024 /* requests in one message, whatever a config says */
#define BERTH_DEVICES_MAX 64

struct berth_runtime;
struct berth_copy;
struct berth_op;

enum berth_ticket_state {
    BERTH_TICKET_POSTED,  /* on its way to the controller */
    BERTH_TICKET_WAITING, /* for its model to load */
    BERTH_TICKET_QUEUED,  /* in a copy's batcher */
    BERTH_TICKET_RUNNING, /* a worker holds it, or it sits in a step model's slot */
    BERTH_TICKET_HELD     /* done, but an earlier one is not (preserve_ordering) */
};

/* An accepted request in the controller. Lives in the request's arena. */
struct berth_ticket {
    struct berth_sched *sched;
    struct berth_request *request; /* the controller's reference */
    struct berth_runtime *runtime;
    struct berth_copy *copy;       /* QUEUED, RUNNING, HELD: pinned by it */
    enum berth_ticket_state state;
    bool answered;                 /* its final part is out; only a worker still holds it */
    bool counted;                  /* in the queue counts (S2) */
    bool retried;                  /* it came back from a lost worker that had not begun it (R10) */
    bool delayed;                  /* its queue timeout passed with action DELAY */
    bool ordered;                  /* in copy->ordered */
    uint32_t level;                /* of priority, from 0 */
    struct berth_timer timer;      /* the next of the times below */
    uint64_t t_cold_ns;            /* WAITING: no longer than this */
    uint64_t t_timeout_ns;         /* QUEUED: Triton's queue timeout; 0: none */
    uint64_t t_queued_ns;          /* entered the batcher */
    uint64_t t_run_ns;             /* its run began and ended; 0: no answer is ready */
    uint64_t t_ended_ns;
    uint64_t spent_ns;             /* its share of the worker's time */
    struct berth_link all_link;    /* sched->tickets */
    struct berth_link link;        /* runtime->waiting, or a level of a batcher */
    struct berth_link age_link;    /* sched->queued_by_age while QUEUED */
    struct berth_link order_link;
    struct berth_part *held_part;  /* HELD */
    struct berth_err held_err;
};

/* One instance of a copy, and the message that works on it. Never two at once (E2). */
struct berth_seat {
    struct berth_copy *copy;
    uint32_t index;
    bool busy;
    bool apart;                    /* its message is one of a model that runs alone (S15) */
    struct berth_worker_msg msg;
    uint64_t charged_ns;           /* device time booked in advance (S9) */
    struct berth_row *rows;        /* row_max of them, as tickets */
    struct berth_ticket **tickets; /* picked, then those of msg.batch.rows */
    size_t ticket_count;
    size_t row_max;
    /* Step models only. */
    struct berth_ticket **slots;   /* by slot; slot_count of them */
    uint32_t slot_count;
    uint32_t live;                 /* slots in use, answered ones included */
    uint32_t *drops;               /* sent with the message under way */
    size_t drop_count;
    struct berth_step_result *step;
};

enum berth_copy_state {
    BERTH_COPY_PENDING,   /* in sched->load_queue */
    BERTH_COPY_LOADING,   /* LOAD is under way */
    BERTH_COPY_WARM,
    BERTH_COPY_RETIRING,  /* serves what it has, takes nothing new */
    BERTH_COPY_UNLOADING  /* UNLOAD is under way */
};

/* Why a model is not on the GPU that it suits (S15). */
enum berth_fallback {
    BERTH_FALLBACK_NONE,
    BERTH_FALLBACK_UNWELL,  /* the GPU takes nothing now */
    BERTH_FALLBACK_REFUSED, /* it did not take this model */
    BERTH_FALLBACK_KEPT_OFF, /* its process keeps ending with this model (suspects.c) */
    BERTH_FALLBACK_NO_ROOM
};

/* One spec loaded on one device. */
struct berth_copy {
    struct berth_sched *sched;
    struct berth_runtime *runtime;
    struct berth_device *device;
    struct berth_model_spec *spec; /* retained */
    uint64_t load_id;
    uint64_t epoch;                /* the worker's, in which it was loaded (R10) */
    enum berth_copy_state state;
    bool abandoned;                /* LOADING, but unloaded before it is there */
    bool unwanted;                 /* LOADING, and nobody waits for it (S16) */
    bool told_to_stop;             /* its LOAD may come back CANCELLED */
    uint64_t passed;               /* devices that did not take this load, a bit for each (S15) */
    bool moves;                    /* the current copy is the same elsewhere: only to a GPU */
    struct berth_timer start_timer; /* LOADING: has its device been starting for too long? */
    bool evicted;                  /* RETIRING to make room */
    struct berth_lease lease;
    struct berth_held held;        /* growth that no message tells (P14) */
    struct berth_timer held_timer; /* when that is looked at */
    struct berth_worker_msg msg;   /* LOAD, then UNLOAD */
    uint64_t t_load_sent_ns;
    struct berth_batcher *batcher;
    struct berth_seat *seats;
    size_t seat_count;
    uint64_t ticket_count;         /* queued, running or held here */
    uint64_t run_ns;               /* moving average of a message's device time; 0: unknown */
    uint64_t virtual_ns;           /* device time had, for fairness (S9) */
    struct berth_timer timer;      /* when its batcher wants to be asked again */
    struct berth_link link;        /* runtime->copies */
    struct berth_link load_link;   /* sched->load_queue */
    struct berth_link ready_link;  /* device->ready */
    struct berth_link ordered;     /* tickets in order of dispatch (preserve_ordering) */
    bool releasing;                /* held answers are being sent: no second round inside */
};

/* What the controller knows of one catalogue model. */
struct berth_runtime {
    struct berth_sched *sched;
    struct berth_model *model;     /* retained */
    struct berth_link link;        /* sched->runtimes */
    struct berth_copy *current;    /* WARM: new requests go here */
    struct berth_copy *next;       /* PENDING or LOADING, wanted */
    struct berth_model_spec *after; /* retained; asked for while next loads */
    struct berth_link copies;      /* all, the above included */
    struct berth_link waiting;     /* tickets */
    struct berth_link waits;       /* ops that wait for it (ops.h) */
    bool keep;                     /* its copies are never evicted */
    bool promised;                 /* a client was told to come again: its load is wanted (S16) */
    uint32_t failures;             /* in a row */
    uint64_t stamp_failed;         /* files_stamp of the last load that failed; 0: none */
    uint64_t load_ns;              /* moving average; 0: unknown */
    uint64_t bytes_measured;       /* at the last load */
    const struct berth_device *measured_on;
    /* S15: what GPUs said to it. */
    bool gpu_never;                /* none takes files of this stamp */
    uint64_t stamp_gpu;
    uint64_t t_gpu_ns;             /* none is asked before that */
    uint32_t gpu_refusals;         /* in a row */
    char refusal[240];             /* the last one's words */
    enum berth_fallback fallback;  /* the last one told */
    char fallback_why[240];
    /* S15: ends of a GPU's process with what it ran or loaded (suspects.c). */
    const struct berth_device *suspect_on; /* the last one it was in: where, */
    uint64_t suspect_epoch;        /* and which; */
    bool suspect_apart;            /* it ran alone in it, by order */
    uint64_t stamp_suspect;        /* of the files that all of this is about */
    uint32_t deaths_alone;
    uint32_t deaths_company;       /* since its last run that ended well */
    uint32_t deaths_beside;        /* the same, whatever ended well between them */
    uint32_t kept_off;             /* times */
    uint64_t t_forgiven_ns;
    uint64_t t_kept_off_ns;        /* no GPU gets it before that */
    struct berth_timer kept_timer; /* then it is loaded again, where nobody would ask */
    char suspicion[240];
};

/* A worker, and who may use it. */
struct berth_device {
    struct berth_worker *worker;
    struct berth_residency ledger;
    bool gpu;
    uint64_t epoch_seen;           /* of the worker's, at the last fault */
    uint32_t lost_out;             /* messages that it had then, and that are not back yet */
    const struct berth_runtime *culprit; /* alone with it at the last one */
    uint32_t faults;               /* in a row: without a run that ended well between them */
    uint64_t t_well_ns;            /* after several of them: not asked before that */
    uint64_t epoch_slow;           /* whose process was too long in starting; UINT64_MAX: none */
    uint32_t under_way;            /* RUN and STEP messages */
    uint32_t apart;                /* of these, of a model that runs alone (S15) */
    uint64_t virtual_ns;           /* of the copy that had the last turn */
    struct berth_link ready;       /* copies that may have work for a seat */
    _Atomic uint64_t bytes_models, faults_total, fallbacks_total; /* any thread reads these */
    atomic_bool well;
};

struct berth_sched {
    struct berth_sched_options options;
    struct berth_queue queue;
    struct berth_timers timers;
    uint64_t now_ns;               /* of this turn */
    uint64_t wall_offset_ns;       /* from there to the time of day; 0 in virtual time */
    uint64_t load_id_last;
    bool begun;
    bool draining;
    bool closing;                  /* destroy: nothing new starts */
    struct berth_device *devices;
    size_t device_count;
    struct berth_link tickets;
    struct berth_link queued_by_age;
    struct berth_link runtimes;
    struct berth_link load_queue;
    struct berth_link ops;
    struct berth_timer poll_timer;
    struct berth_link brims;       /* batchers filled to their limit in this turn */
    char scan_told[240];           /* why the repository could not be read, as the log has it */
    uint64_t loads_under_way;
    uint64_t load_ns;              /* moving average over all models; 0: unknown */
    uint64_t unanswered;           /* tickets without their final part */
    uint64_t copy_count;
    pthread_t thread;
    bool started;
    /* Any thread from here on. */
    atomic_bool stop;
    atomic_bool refusing;          /* draining or closing */
    atomic_bool ready;
    _Atomic uint64_t t_turn_ns;    /* now_ns of the last turn */
    _Atomic uint64_t t_head_ns;    /* when the oldest queued ticket was queued; 0: none */
    _Atomic uint64_t queued, running, accepted, completed, refused, expired, cancelled;
    _Atomic uint64_t wasted_ns, wasted_count;
    _Atomic uint64_t scans;
};

/* ticket.c - the way of one request through the controller. */
void berth_ticket_take(struct berth_ticket *ticket);    /* it arrived */
void berth_ticket_enqueue(struct berth_ticket *ticket, struct berth_copy *copy);
void berth_ticket_requeue(struct berth_ticket *ticket); /* QUEUED in a copy that is lost (R10) */
void berth_ticket_start(struct berth_ticket *ticket);   /* a worker gets it; off its list */
/* RUNNING, and its worker was lost before it began (R10): queued anew, or false, and it is to be
 * returned. Once only. */
bool berth_ticket_retry(struct berth_ticket *ticket) BERTH_MUST_USE;
/* A worker gave it back with its answer, of which the ticket takes part. */
void berth_ticket_return(struct berth_ticket *ticket, struct berth_part *part,
                         const struct berth_err *err);
/* Sends the final answer now, wherever the ticket is. part (may be NULL) is taken. */
void berth_ticket_answer(struct berth_ticket *ticket, struct berth_part *part,
                         const struct berth_err *err);
void berth_ticket_cancel(struct berth_ticket *ticket);
void berth_tickets_refuse(struct berth_sched *sched);   /* all unanswered ones: it stops */
/* Fills err with why a server that stops takes nothing; another one will. Any thread. */
enum berth_code berth_sched_stopping(struct berth_err *err);
void berth_ticket_arm(struct berth_ticket *ticket);     /* its timer, for what is due first */

/* runtime.c - states of a model. */
struct berth_runtime *berth_runtime_of(struct berth_sched *sched, struct berth_model *model);
/* UNAVAILABLE with the reason while a failed load's back-off lasts (R9). Any thread. */
enum berth_code berth_runtime_judge(struct berth_model *model, uint64_t now_ns,
                                    struct berth_err *err) BERTH_MUST_USE;
/* Single flight: joins a load under way. Takes spec, whatever happens. */
enum berth_code berth_runtime_load(struct berth_runtime *runtime, struct berth_model_spec *spec,
                                   struct berth_err *err) BERTH_MUST_USE;
void berth_runtime_want(struct berth_ticket *ticket);   /* its model is not warm */
void berth_runtime_left(struct berth_runtime *runtime); /* a waiting ticket is gone (S16) */
void berth_runtime_rejoin(struct berth_runtime *runtime); /* somebody waits for its load again */
void berth_runtime_unload(struct berth_runtime *runtime);
void berth_runtime_loaded(struct berth_runtime *runtime, struct berth_copy *copy);
/* The load failed (backoff) or was refused for want of room; the copy is gone. */
void berth_runtime_failed(struct berth_runtime *runtime, const struct berth_err *err,
                          bool refused);
void berth_runtime_stopped(struct berth_runtime *runtime); /* its load, which nobody wanted */
/* A newer version could not be loaded, so what serves goes on, and its reason says so. false: it
 * did already. */
bool berth_runtime_goes_on(struct berth_runtime *runtime, const struct berth_err *err);
/* Its files are again what serves. */
void berth_runtime_is_fresh(struct berth_runtime *runtime);
/* Its load would make what serves already (berth_device_stays); the copy, PENDING, is gone then. */
void berth_runtime_stays(struct berth_runtime *runtime, struct berth_copy *copy);
void berth_runtime_emptied(struct berth_runtime *runtime, bool evicted); /* a copy is gone */
void berth_runtime_destroy(struct berth_runtime *runtime);
uint32_t berth_runtime_predict_ms(const struct berth_runtime *runtime); /* until it is warm */

/* copies.c - loading and unloading. */
enum berth_code berth_copy_create(struct berth_runtime *runtime, struct berth_model_spec *spec,
                                  struct berth_copy **out, struct berth_err *err) BERTH_MUST_USE;
void berth_copy_destroy(struct berth_copy *copy);       /* NULL is fine; PENDING or gone only */
void berth_copy_retire(struct berth_copy *copy);        /* no new work; unloads when it is idle */
void berth_copy_settle(struct berth_copy *copy);        /* a ticket has left it */
void berth_copy_want(struct berth_copy *copy, bool wanted); /* does anybody wait for it? (S16) */
uint64_t berth_copy_bytes(const struct berth_copy *copy,
                          const struct berth_device *device); /* to reserve for it there (R1) */
void berth_copy_measure(struct berth_copy *copy, uint64_t bytes); /* held after a run; 0: unknown */
void berth_device_lost(struct berth_sched *sched, struct berth_device *device); /* R10 */
void berth_copies_pump(struct berth_sched *sched);      /* starts the loads that may start */

/* devices.c - which device a load goes to (S15). */
struct berth_device *berth_device_choose(struct berth_copy *copy); /* never NULL */
/* The copy's device does not take it, for a reason that is not the model's: true where another may,
 * and then berth_device_choose gives that one. */
bool berth_device_pass(struct berth_copy *copy, enum berth_fallback kind, const char *why);
/* The same for a load that came back with an error, which may be the model's. */
bool berth_device_refused(struct berth_copy *copy, const struct berth_err *err);
void berth_device_took(struct berth_copy *copy); /* its load went well */
/* It serves on another device than the one that would be asked now. */
bool berth_device_calls(const struct berth_copy *copy);
/* It would be what is there already: nothing has changed, and no GPU takes it. */
bool berth_device_stays(const struct berth_copy *copy);
/* Its process has ended, and that cost something. Once for each, however often it is said. */
void berth_device_fault(struct berth_sched *sched, struct berth_device *device);
void berth_device_ail(struct berth_device *device, uint64_t now_ns); /* it is the device's fault */
void berth_device_worked(struct berth_device *device); /* a run ended well */
uint64_t berth_device_pause_ns(uint32_t in_row);       /* until it is asked again, from 0 */
/* A load has waited so long for its process to be ready: whether that still is not. */
bool berth_device_starts(struct berth_device *device);
bool berth_device_is_well(const struct berth_device *device, uint64_t now_ns);

/* suspects.c - which model ends a GPU's process (S15). */
void berth_suspect_mark(struct berth_copy *copy); /* a message came back lost with the process */
/* The same for a load, marked already: true where it was not alone, and may begin anew. */
bool berth_suspect_load(struct berth_copy *copy);
/* It runs with no run of another model beside its own, so that the next end tells whose it is. */
bool berth_suspect_is_apart(const struct berth_copy *copy);
/* May it be sent a message now, beside those that are under way? */
bool berth_suspect_may_run(const struct berth_copy *copy);
/* A RUN or STEP is back. */
void berth_suspects_note(struct berth_copy *copy, const struct berth_worker_msg *msg);
void berth_suspects_judge(struct berth_sched *sched, struct berth_device *device); /* all are */
bool berth_suspects_wait(const struct berth_sched *sched); /* some are not: no load begins */
bool berth_suspect_kept_off(const struct berth_runtime *runtime,
                            const struct berth_model_spec *spec);
/* UNAVAILABLE where the copy's device is the GPU that it is kept off: no other may have it. */
enum berth_code berth_suspect_admit(struct berth_copy *copy, struct berth_err *err) BERTH_MUST_USE;

/* seats.c */
enum berth_code berth_seats_create(struct berth_copy *copy, uint32_t instances, uint32_t slots,
                                   struct berth_err *err) BERTH_MUST_USE;
void berth_seats_destroy(struct berth_copy *copy);

/* dispatch.c - whose turn it is. */
void berth_dispatch(struct berth_sched *sched);
void berth_dispatch_mark(struct berth_copy *copy);      /* it may have work now */
void berth_dispatch_forget(struct berth_copy *copy);

/* ops.c - admin operations. */
void berth_ops_begin(struct berth_sched *sched);        /* what the control mode does at start */
void berth_ops_take(struct berth_admin *admin);
void berth_ops_settle(struct berth_runtime *runtime, const struct berth_err *err); /* load ended */
void berth_ops_emptied(struct berth_runtime *runtime);  /* no copy of it is left */
void berth_ops_drained(struct berth_sched *sched);      /* nothing is unanswered */
void berth_ops_close(struct berth_sched *sched);        /* answers all that still wait */

/* counters.c */
void berth_count_ran(struct berth_ticket *ticket, const struct berth_seat *seat, uint64_t spent_ns);
void berth_count_end(struct berth_ticket *ticket, enum berth_code code);
void berth_count_message(struct berth_seat *seat, uint64_t batch_rows);
void berth_count_waste(struct berth_ticket *ticket, uint64_t ns);
uint64_t berth_average(uint64_t old, uint64_t sample);  /* moving, by an eighth */
/* How long until there is room again for one more request of a model, for Retry-After. */
uint32_t berth_retry_ms(uint64_t waiting, uint64_t service_ns);

#endif
