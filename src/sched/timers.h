/* timers.h - what is due when: a pairing heap of timers that live inside their owners.
 *
 * Arming takes no memory and O(1), ending one O(log n) amortised; the next due time is exact, not
 * rounded to a wheel's tick. Threads: the controller's only.
 */
#ifndef BERTH_TIMERS_H
#define BERTH_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct berth_timer {
    struct berth_timer *child; /* first of those that are due no earlier */
    struct berth_timer *next;  /* sibling */
    struct berth_timer *prev;  /* sibling before, or parent for the first */
    uint64_t t_due_ns;
    bool armed;
    void (*fire)(struct berth_timer *timer); /* it is not armed any more then */
};

struct berth_timers {
    struct berth_timer *root;
};

/* Arms, or moves one that is armed. UINT64_MAX disarms. */
void berth_timers_arm(struct berth_timers *timers, struct berth_timer *timer, uint64_t t_due_ns);
void berth_timers_disarm(struct berth_timers *timers, struct berth_timer *timer);
/* UINT64_MAX: none is armed. */
uint64_t berth_timers_next(const struct berth_timers *timers);
/* Fires all that are due, earliest first; what they arm for now or before fires too. */
void berth_timers_fire(struct berth_timers *timers, uint64_t now_ns);

#endif
