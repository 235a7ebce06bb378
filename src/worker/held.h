/* held.h - what a loaded model holds, told as it grows, also while nothing of it runs (P14).
 *
 * In:      bytes, from whatever makes the model grow, on any thread.
 * Out:     a post to who keeps the figure, now and then.
 * Owns:    nothing. It lies with who keeps the figure, who lends it with LOAD until the model is
 *          gone (worker.h).
 * Threads: tell from any; everything else is the keeper's, whose time is an argument.
 * Rules:   README.md here, P14.
 */
#ifndef BERTH_HELD_H
#define BERTH_HELD_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/queue.h"

#define BERTH_HELD_NEWS_BYTES (UINT64_C(1) << 20) /* so much more is news at any time */

struct berth_held {
    struct berth_post post;
    _Atomic uint64_t bytes; /* the most that was told */
    _Atomic uint64_t quiet; /* what is not more than that is not posted now */
    atomic_bool out;        /* the post is on its way */
    /* The keeper's. */
    uint64_t known;
    uint64_t t_look_ns;     /* when it is to look, whatever comes; UINT64_MAX: never */
};

/* Nothing is posted before berth_held_begin. */
void berth_held_init(struct berth_held *held, void (*deliver)(struct berth_post *post));
/* The model is loaded, and held so much then. Returns what is known of it: perhaps more was told
 * meanwhile. */
uint64_t berth_held_begin(struct berth_held *held, uint64_t bytes);
/* Any thread, never waits. The most counts; less is no news. */
void berth_held_tell(struct berth_held *held, struct berth_queue *keeper, uint64_t bytes);
/* The post has come. Returns what the model holds; 0: what is known. */
uint64_t berth_held_take(struct berth_held *held, uint64_t now_ns);
/* The same at t_look_ns, and 0 before it. */
uint64_t berth_held_look(struct berth_held *held, uint64_t now_ns);

#endif
