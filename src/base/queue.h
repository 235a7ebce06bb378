/* queue.h - intrusive lists, and the queue by which threads speak to each other.
 *
 * A message embeds a link, so sending one allocates nothing and cannot fail for want of memory.
 * A bounded push can be refused (a client's request: answered BUSY); an unbounded one cannot (an
 * answer: each accepted request owns the link its answer travels on, so their number is bounded).
 * The reader sleeps on a futex, or, where it polls other things too, on an eventfd; a writer wakes
 * it only when it sleeps.
 */
#ifndef BERTH_QUEUE_H
#define BERTH_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A circular doubly linked list; a head is a link of its own. */
struct berth_link {
    struct berth_link *prev;
    struct berth_link *next;
};

void berth_list_init(struct berth_link *head);
bool berth_list_empty(const struct berth_link *head);
void berth_list_append(struct berth_link *head, struct berth_link *link);
void berth_list_insert_before(struct berth_link *at, struct berth_link *link);
void berth_list_remove(struct berth_link *link);          /* fine for a link that is in no list */
bool berth_list_contains(const struct berth_link *link);  /* is this link in any list? */
struct berth_link *berth_list_pop(struct berth_link *head); /* first, removed; NULL when empty */
void berth_list_splice(struct berth_link *head, struct berth_link *from); /* appends all of from */

#define BERTH_LIST_EACH(link, head)                                                                \
    for (struct berth_link *link = (head)->next; link != (head); link = link->next)
/* The body may remove `link`. */
#define BERTH_LIST_EACH_SAFE(link, head)                                                           \
    for (struct berth_link *link = (head)->next, *link##_next = link->next; link != (head);        \
         link = link##_next, link##_next = link->next)

/* Many writers, one reader. */
struct berth_queue {
    pthread_mutex_t mu;
    struct berth_link items;   /* guarded by mu */
    size_t count;              /* guarded by mu */
    size_t count_max;          /* for berth_queue_push; 0: no bound */
    _Atomic uint32_t reader;   /* how the reader sleeps, if it does; a futex */
    atomic_bool nudged;        /* a nudge the reader has not seen */
    atomic_uint wakers;        /* writers that owe the reader its wake-up; counted under mu */
    int fd;                    /* eventfd, non-blocking, for readers that poll */
};

enum berth_code berth_queue_init(struct berth_queue *queue, size_t count_max,
                                 struct berth_err *err) BERTH_MUST_USE;
void berth_queue_finish(struct berth_queue *queue); /* zeroed memory is fine; must be empty */
/* false when count_max are waiting; the link is untouched then. Any thread. */
bool berth_queue_push(struct berth_queue *queue, struct berth_link *link) BERTH_MUST_USE;
/* Never refused. Any thread. */
void berth_queue_post(struct berth_queue *queue, struct berth_link *link);
/* Reader only. Moves everything to the end of `out` (an initialised head); false when empty. */
bool berth_queue_take(struct berth_queue *queue, struct berth_link *out);
/* Reader only. For a loop that polls fd itself, edge-triggered (it is never read): call sleep
 * before epoll_wait (false: there are items, do not block), wake after. */
bool berth_queue_sleep(struct berth_queue *queue);
void berth_queue_wake(struct berth_queue *queue);
/* Reader only. Blocks until there are items or t_until_ns on the monotonic clock (0: no limit). */
void berth_queue_wait(struct berth_queue *queue, uint64_t t_until_ns);
/* Any thread: the reader returns from wait or epoll although nothing was sent. */
void berth_queue_nudge(struct berth_queue *queue);

/* Between hold and release this thread wakes no sleeping reader; release then wakes each that it
 * owes a wake-up, once. For loops that send much in a turn: fewer wake-ups, larger batches. Not
 * nested; the thread must not block in between, nor end. */
void berth_queue_hold(void);
void berth_queue_release(void);

/* A message that knows how to be delivered: the reading thread calls deliver(post). Queues of the
 * front's threads hold these and nothing else. */
struct berth_post {
    struct berth_link link;
    void (*deliver)(struct berth_post *post);
};

#endif
