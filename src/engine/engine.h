/* engine.h - contract between a worker and a model runtime.
 *
 * In:      batches of requests' rows.        Out: parts with tensors, or an error for each row.
 * Owns:    loaded weights, sessions, caches. Borrows: spec and slabs for the model's life.
 * Threads: describe on any; a model is shared by its instances; an instance is used by one thread
 *          at a time, and never by two at once.
 * Laws:    README.md here (E1 to E11). What else is in a batch never changes an answer (E1).
 * Not here: what is batched with what (sched/), where a worker runs (worker/).
 */
#ifndef BERTH_ENGINE_H
#define BERTH_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/slab.h"
#include "model/model.h"
#include "request/request.h"

/* Bytes of weights the keeper or loader owns and lends, read-only after weights_load. */
struct berth_span {
    void *address;
    size_t bytes;
    int fd;        /* -1: not shareable */
    bool unmapped; /* addresses without memory, not to be read (span.h) */
};

/* What a worker process lends its engines, for the process' life. */
struct berth_engine_env {
    struct berth_slabs *slabs;
    uint32_t threads; /* of the one operator pool of the process */
    const char
        *device; /* "cpu:0", "cuda:0": where this process' native engines run; NULL: the CPU */
    bool gpu;                /* a GPU is served, perhaps by another process than this */
    uint32_t step_instances; /* a CPU's of a STEPS model whose config does not say; 0: one */
};

/* One request's share of a batch. part is made by the worker before execute, and by the engine for
 * steps; err starts as OK. */
struct berth_row {
    struct berth_request *request; /* borrows until the call's batch is returned; inputs, params,
                                      cancelled are what an engine may look at */
    struct berth_part *part;       /* execute: the answer's tensors go here */
    struct berth_err err;          /* this row alone failed */
    uint32_t slot;                 /* admit sets it */
};

struct berth_batch {
    struct berth_row *rows;
    size_t row_count;    /* requests */
    uint64_t batch_rows; /* sum of the requests' batch_rows */
};

#define BERTH_STEP_EVENTS_MAX 64

/* Something a step brought forth for one slot. */
struct berth_step_event {
    uint32_t slot;
    bool final;              /* the slot is free again */
    struct berth_part *part; /* may be NULL when final with an error */
    struct berth_err err;    /* final only */
};

struct berth_step_result {
    struct berth_step_event events[BERTH_STEP_EVENTS_MAX];
    size_t event_count;
    uint32_t live;  /* slots still in use */
    uint32_t steps; /* model calls made */
};

/* One more event for a slot; the caller has seen to it that there is room. */
struct berth_step_event *berth_step_event_add(struct berth_step_result *out, uint32_t slot);

struct berth_engine_model;
struct berth_instance;

/* Who is told that a model's bytes have grown, where no call that is under way will tell (E11). */
struct berth_engine_watch {
    /* From any thread; may call model_bytes, and never waits. */
    void (*grown)(struct berth_engine_watch *watch);
};

struct berth_engine_ops {
    const char *name; /* value of the spec's engine */
    /* Optional. Parameters of the config that the engine reads, ended by NULL; others are warned
     * of and ignored. Without the list none is warned of. */
    const char *const *parameters;
    /* Optional. Once a process, before any other call; finish at its end. */
    enum berth_code (*start)(const struct berth_engine_env *env, struct berth_err *err);
    void (*finish)(void);
    /* Required. Completes the spec: inputs, outputs, batch size, run mode, task, estimate; checks
     * what the config says against the files. Reads only headers where it can. */
    enum berth_code (*describe)(struct berth_model_spec *spec, struct berth_err *err);
    /* Optional, with weights_load. Bytes of the span that weights_load fills. */
    enum berth_code (*weights_bytes)(const struct berth_model_spec *spec, uint64_t *out,
                                     struct berth_err *err);
    /* Optional (native engines). Reads weights into a span. */
    enum berth_code (*weights_load)(const struct berth_model_spec *spec, struct berth_span span,
                                    struct berth_err *err);
    /* Required. Makes the model usable in this process over loaded weights, or, where weights_load
     * is NULL (span empty), loads it. */
    enum berth_code (*model_attach)(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err);
    void (*model_detach)(struct berth_engine_model *model); /* Required. NULL is fine. */
    /* Required. Bytes held now by the model and its instances, as allocators counted them. Any
     * thread, also while instances run. */
    uint64_t (*model_bytes)(const struct berth_engine_model *model);
    /* Optional, right after model_attach. The engine borrows the watch until model_detach returns.
     * NULL: its models grow in calls only. */
    void (*model_watch)(struct berth_engine_model *model, struct berth_engine_watch *watch);
    /* Required. Scratch and state of one execution at a time. `index` counts from 0. */
    enum berth_code (*instance_create)(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err);
    void (*instance_destroy)(struct berth_instance *instance); /* Required. NULL is fine. */
    /* Required for BERTH_RUN_EXECUTE. On OK each row has its outputs in row->part or its own error;
     * on error none has either, and the caller answers them all. */
    enum berth_code (*execute)(struct berth_instance *instance, struct berth_batch *batch,
                               struct berth_err *err);
    /* Required for BERTH_RUN_STEPS. admit takes rows into free slots (row->slot; a row's own error
     * in row->err); it must be quick. A row's request stays borrowed until its final event or drop.
     */
    enum berth_code (*admit)(struct berth_instance *instance, struct berth_row *rows,
                             size_t row_count, struct berth_err *err);
    /* One or more model calls for all live rows, for about budget_ns; returns early when a row
     * ended or was cancelled. A row whose request is cancelled ends with a CANCELLED final event.
     */
    enum berth_code (*step)(struct berth_instance *instance, uint64_t budget_ns,
                            struct berth_step_result *out, struct berth_err *err);
    /* Frees a slot; nothing is reported for it any more. */
    void (*drop)(struct berth_instance *instance, uint32_t slot);
    /* Slots an instance has; NULL: spec->batch_size_max (at least 1). */
    uint32_t (*slots)(const struct berth_engine_model *model);
};

/* NULL: no such engine in this build. */
const struct berth_engine_ops *berth_engine_find(const char *name);
/* Starts all engines of the build; at the end berth_engines_finish. */
enum berth_code berth_engines_start(const struct berth_engine_env *env,
                                    struct berth_err *err) BERTH_MUST_USE;
void berth_engines_finish(void);
/* An engine says that this process can compute no more: its device had a fault that the process
 * does not get over (law 8). A worker process that is lost ends, and is replaced. Any thread; for
 * good. */
void berth_engines_lose(void);
bool berth_engines_lost(void);
/* Of the load that this thread works on: true once nobody waits for it any more. An engine may look
 * at it between pieces of its work, also from threads of its own, and end CANCELLED (E10). NULL:
 * nobody says. Lends until the load is over; the worker sets it around each. */
const atomic_bool *berth_engine_load_unwanted(void);
void berth_engine_load_set(const atomic_bool *unwanted);
/* Names of the engines of this build; NULL past the last. */
const char *berth_engine_name(size_t index);

#endif
