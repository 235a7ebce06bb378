/* timers.c - see timers.h. Most deadlines are never reached: requests end first. So arming and
 * disarming must be cheap, and order is only made as far as the earliest needs it. Rejected: a
 * timer wheel (exact only to its tick) and an array heap (it would need memory on the way in). */
#include "sched/timers.h"

#include <stddef.h>

static struct berth_timer *meld(struct berth_timer *a, struct berth_timer *b);
static struct berth_timer *meld_children(struct berth_timer *first);

void berth_timers_arm(struct berth_timers *timers, struct berth_timer *timer, uint64_t t_due_ns)
{
    if (timer->armed && timer->t_due_ns == t_due_ns) {
        return;
    }
    berth_timers_disarm(timers, timer);
    if (t_due_ns == UINT64_MAX) {
        return;
    }
    timer->t_due_ns = t_due_ns;
    timer->armed = true;
    timers->root = meld(timers->root, timer);
}

void berth_timers_disarm(struct berth_timers *timers, struct berth_timer *timer)
{
    if (!timer->armed) {
        return;
    }
    struct berth_timer *rest = meld_children(timer->child);
    if (timers->root == timer) {
        timers->root = rest;
    } else {
        if (timer->prev->child == timer) {
            timer->prev->child = timer->next;
        } else {
            timer->prev->next = timer->next;
        }
        if (timer->next != NULL) {
            timer->next->prev = timer->prev;
        }
        timers->root = meld(timers->root, rest);
    }
    timer->child = NULL;
    timer->next = NULL;
    timer->prev = NULL;
    timer->armed = false;
}

uint64_t berth_timers_next(const struct berth_timers *timers)
{
    return timers->root == NULL ? UINT64_MAX : timers->root->t_due_ns;
}

void berth_timers_fire(struct berth_timers *timers, uint64_t now_ns)
{
    while (timers->root != NULL && timers->root->t_due_ns <= now_ns) {
        struct berth_timer *timer = timers->root;
        berth_timers_disarm(timers, timer);
        timer->fire(timer);
    }
}

/* Both are roots, without siblings. */
static struct berth_timer *meld(struct berth_timer *a, struct berth_timer *b)
{
    if (a == NULL || b == NULL) {
        return a == NULL ? b : a;
    }
    if (b->t_due_ns < a->t_due_ns) {
        struct berth_timer *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->child;
    b->prev = a;
    if (a->child != NULL) {
        a->child->prev = b;
    }
    a->child = b;
    return a;
}

/* Pairs from left to right, then melds the pairs from right to left. */
static struct berth_timer *meld_children(struct berth_timer *first)
{
    struct berth_timer *pairs = NULL; /* chained by next, last pair first */
    while (first != NULL) {
        struct berth_timer *a = first;
        struct berth_timer *b = a->next;
        first = b == NULL ? NULL : b->next;
        a->next = NULL;
        a->prev = NULL;
        if (b != NULL) {
            b->next = NULL;
            b->prev = NULL;
        }
        struct berth_timer *pair = meld(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    struct berth_timer *root = NULL;
    while (pairs != NULL) {
        struct berth_timer *next = pairs->next;
        pairs->next = NULL;
        root = meld(root, pairs);
        pairs = next;
    }
    return root;
}
