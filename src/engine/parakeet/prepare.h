/* prepare.h - what a device chooses once for each bucket, chosen before the bucket is asked for;
 * and then the instances' own preparations.
 *
 * In:      the buckets of a model, and when steps are under way.
 * Owns:    a thread with a device of its own, from the first start until stop. What it chooses is
 *          the process' (backend.h, prepare); it keeps nothing else.
 * Errors:  none: what cannot be prepared is left to the run that needs it.
 * Threads: start from any, stop from one after all steps; step_begin and step_end from any. No step
 *          waits for the thread. It works when no step was under way in the process for 20 ms, one
 *          product at a time, one thread at a time.
 */
#ifndef BERTH_PREPARE_H
#define BERTH_PREPARE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/parakeet/backend.h"

#define BERTH_PARAKEET_SHAPES_MAX 96

/* What became of a shape in the instances. */
enum berth_parakeet_ahead {
    BERTH_PARAKEET_AHEAD_ON,   /* made, or there was no room for this one */
    BERTH_PARAKEET_AHEAD_BUSY, /* an instance has work; again in the next pause */
    BERTH_PARAKEET_AHEAD_FULL  /* no more */
};

/* Zeroed memory is one that prepares nothing. */
struct berth_parakeet_preparer {
    /* Borrowed until stop; set before start and not changed after it. */
    const struct berth_parakeet_ops *ops;
    const char *device_name, *model_name;
    const struct berth_parakeet_config *config;
    const struct berth_parakeet_weights *weights;
    struct berth_parakeet_shape shapes[BERTH_PARAKEET_SHAPES_MAX]; /* in the order of preparing */
    uint32_t shape_count;
    /* Optional. When all is chosen, for each shape whose choices were all made, in a pause. */
    enum berth_parakeet_ahead (*ahead)(void *context, const struct berth_parakeet_shape *shape);
    void *context;
    struct berth_engine_watch *watch; /* told of each piece that took memory; NULL: nobody is */

    pthread_t thread;
    bool running; /* thread is there to be joined */
    _Atomic bool started, stopping;
    _Atomic uint32_t prepared; /* shapes, so far */
    bool whole[BERTH_PARAKEET_SHAPES_MAX]; /* the thread's */
    _Atomic uint64_t bytes;    /* of its device, while there is one */
};

/* The first call starts the thread; where ops have no prepare, none does. */
void berth_parakeet_preparer_start(struct berth_parakeet_preparer *preparer);
/* Waits for the product that is being prepared, if any; then the thread is gone. */
void berth_parakeet_preparer_stop(struct berth_parakeet_preparer *preparer);

/* Around a step of any instance on the device. */
void berth_parakeet_step_begin(void);
void berth_parakeet_step_end(void);

#endif
