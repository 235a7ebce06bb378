/* queue.c - lists, and the queue between threads.
 *
 * No wake-up is lost: the reader says how it sleeps, then looks at count under the mutex; a writer
 * adds under the mutex, then looks whether the reader sleeps. Whoever takes the mutex second sees
 * what the other did. The first writer to find the reader asleep declares it awake, so a burst
 * costs one wake-up. It comes after the mutex is free (else the reader would wake only to wait for
 * it), and later still for a thread that holds its wake-ups. So a message may be taken before its
 * writer has woken anybody: `wakers` counts who still will, and a queue ends only when there are
 * none.
 *
 * A reader that only waits for this queue sleeps on a futex: one system call to sleep and one to
 * wake, where an eventfd takes three. */
#include "base/queue.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define OWED_MAX 16 /* one more is woken at once */

enum reader { READER_AWAKE, READER_WAITS, READER_POLLS };

static _Thread_local struct {
    bool holding;
    size_t count;
    struct owed {
        struct berth_queue *queue; /* has this thread among its wakers */
        enum reader reader;        /* as it slept */
    } items[OWED_MAX];
} owed;

static enum reader add(struct berth_queue *queue, struct berth_link *link);
static void wake(struct berth_queue *queue, enum reader reader);
static void wake_now(struct berth_queue *queue, enum reader reader);
static bool sleep_as(struct berth_queue *queue, enum reader reader);

void berth_list_init(struct berth_link *head)
{
    head->prev = head;
    head->next = head;
}

bool berth_list_empty(const struct berth_link *head)
{
    return head->next == head;
}

void berth_list_append(struct berth_link *head, struct berth_link *link)
{
    berth_list_insert_before(head, link);
}

void berth_list_insert_before(struct berth_link *at, struct berth_link *link)
{
    link->prev = at->prev;
    link->next = at;
    at->prev->next = link;
    at->prev = link;
}

void berth_list_remove(struct berth_link *link)
{
    if (!berth_list_contains(link)) {
        return;
    }
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->prev = NULL;
    link->next = NULL;
}

bool berth_list_contains(const struct berth_link *link)
{
    return link->next != NULL && link->next != link;
}

struct berth_link *berth_list_pop(struct berth_link *head)
{
    struct berth_link *link = head->next;
    if (link == head) {
        return NULL;
    }
    berth_list_remove(link);
    return link;
}

void berth_list_splice(struct berth_link *head, struct berth_link *from)
{
    if (berth_list_empty(from)) {
        return;
    }
    from->next->prev = head->prev;
    from->prev->next = head;
    head->prev->next = from->next;
    head->prev = from->prev;
    berth_list_init(from);
}

enum berth_code berth_queue_init(struct berth_queue *queue, size_t count_max,
                                 struct berth_err *err)
{
    *queue = (struct berth_queue){.count_max = count_max};
    queue->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (queue->fd < 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot make an eventfd: %m");
    }
    pthread_mutex_init(&queue->mu, NULL);
    berth_list_init(&queue->items);
    return BERTH_OK;
}

void berth_queue_finish(struct berth_queue *queue)
{
    if (queue->items.next == NULL) { /* never made, or finished before */
        return;
    }
    BERTH_ASSERT(berth_list_empty(&queue->items));
    while (atomic_load(&queue->wakers) > 0) {
        sched_yield();
    }
    close(queue->fd);
    pthread_mutex_destroy(&queue->mu);
    *queue = (struct berth_queue){.fd = -1};
}

bool berth_queue_push(struct berth_queue *queue, struct berth_link *link)
{
    pthread_mutex_lock(&queue->mu);
    bool room = queue->count_max == 0 || queue->count < queue->count_max;
    enum reader reader = room ? add(queue, link) : READER_AWAKE;
    pthread_mutex_unlock(&queue->mu);
    wake(queue, reader);
    return room;
}

void berth_queue_post(struct berth_queue *queue, struct berth_link *link)
{
    pthread_mutex_lock(&queue->mu);
    enum reader reader = add(queue, link);
    pthread_mutex_unlock(&queue->mu);
    wake(queue, reader);
}

bool berth_queue_take(struct berth_queue *queue, struct berth_link *out)
{
    pthread_mutex_lock(&queue->mu);
    bool any = queue->count > 0;
    berth_list_splice(out, &queue->items);
    queue->count = 0;
    pthread_mutex_unlock(&queue->mu);
    return any;
}

bool berth_queue_sleep(struct berth_queue *queue)
{
    return sleep_as(queue, READER_POLLS);
}

void berth_queue_wake(struct berth_queue *queue)
{
    atomic_store(&queue->reader, READER_AWAKE);
    atomic_store(&queue->nudged, false);
}

void berth_queue_wait(struct berth_queue *queue, uint64_t t_until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(t_until_ns / BERTH_NS_PER_S),
                             .tv_nsec = (long)(t_until_ns % BERTH_NS_PER_S)};
    if (sleep_as(queue, READER_WAITS)) {
        long slept = 0;
        while (atomic_load(&queue->reader) == READER_WAITS && (slept == 0 || errno == EINTR)) {
            slept = syscall(SYS_futex, &queue->reader, FUTEX_WAIT_BITSET_PRIVATE, READER_WAITS,
                            t_until_ns == 0 ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
        }
    }
    berth_queue_wake(queue);
}

void berth_queue_nudge(struct berth_queue *queue)
{
    atomic_store(&queue->nudged, true);
    enum reader reader = (enum reader)atomic_exchange(&queue->reader, READER_AWAKE);
    wake_now(queue, reader == READER_WAITS ? READER_WAITS : READER_POLLS);
}

void berth_queue_hold(void)
{
    owed.holding = true;
}

void berth_queue_release(void)
{
    owed.holding = false;
    while (owed.count > 0) {
        struct owed *item = &owed.items[--owed.count];
        wake(item->queue, item->reader);
    }
}

/* mu is held. How the reader slept, whom the caller must wake then. */
static enum reader add(struct berth_queue *queue, struct berth_link *link)
{
    berth_list_append(&queue->items, link);
    queue->count++;
    if (atomic_load(&queue->reader) == READER_AWAKE) {
        return READER_AWAKE;
    }
    enum reader reader = (enum reader)atomic_exchange(&queue->reader, READER_AWAKE);
    if (reader != READER_AWAKE) {
        atomic_fetch_add(&queue->wakers, 1);
    }
    return reader;
}

static void wake(struct berth_queue *queue, enum reader reader)
{
    if (reader == READER_AWAKE) {
        return;
    }
    if (owed.holding && owed.count < OWED_MAX) {
        owed.items[owed.count++] = (struct owed){.queue = queue, .reader = reader};
        return;
    }
    wake_now(queue, reader);
    atomic_fetch_sub(&queue->wakers, 1);
}

static void wake_now(struct berth_queue *queue, enum reader reader)
{
    uint64_t one = 1;
    if (reader == READER_WAITS) {
        syscall(SYS_futex, &queue->reader, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        return;
    }
    ssize_t put = write(queue->fd, &one, sizeof(one)); /* EAGAIN: 2^64 wakes are pending already */
    (void)put;
}

/* false: there is something to do, or a nudge to see; the reader is awake. */
static bool sleep_as(struct berth_queue *queue, enum reader reader)
{
    atomic_store(&queue->reader, reader);
    pthread_mutex_lock(&queue->mu);
    bool idle = !atomic_exchange(&queue->nudged, false) && queue->count == 0;
    pthread_mutex_unlock(&queue->mu);
    if (!idle) {
        atomic_store(&queue->reader, READER_AWAKE);
    }
    return idle;
}
