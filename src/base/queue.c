/* queue.c - lists, and the queue between threads.
 *
 * No wake-up is lost: the reader sets reader_sleeps, then looks at count under the mutex; a writer
 * adds under the mutex, then looks at reader_sleeps. Whoever takes the mutex second sees what the
 * other did. The first writer to find the reader asleep clears the flag, so a burst costs one
 * write(2). That write happens under the mutex: once the reader has taken a message, no writer
 * touches the queue for its sake any more, and the queue may end. */
#include "base/queue.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static void add_and_wake(struct berth_queue *queue, struct berth_link *link);

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
    close(queue->fd);
    pthread_mutex_destroy(&queue->mu);
    *queue = (struct berth_queue){.fd = -1};
}

bool berth_queue_push(struct berth_queue *queue, struct berth_link *link)
{
    pthread_mutex_lock(&queue->mu);
    bool room = queue->count_max == 0 || queue->count < queue->count_max;
    if (room) {
        add_and_wake(queue, link);
    }
    pthread_mutex_unlock(&queue->mu);
    return room;
}

void berth_queue_post(struct berth_queue *queue, struct berth_link *link)
{
    pthread_mutex_lock(&queue->mu);
    add_and_wake(queue, link);
    pthread_mutex_unlock(&queue->mu);
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
    atomic_store(&queue->reader_sleeps, true);
    pthread_mutex_lock(&queue->mu);
    bool empty = queue->count == 0;
    pthread_mutex_unlock(&queue->mu);
    if (!empty) {
        atomic_store(&queue->reader_sleeps, false);
    }
    return empty;
}

void berth_queue_wake(struct berth_queue *queue)
{
    uint64_t wakes;
    atomic_store(&queue->reader_sleeps, false);
    ssize_t got = read(queue->fd, &wakes, sizeof(wakes)); /* EAGAIN: woken by something else */
    (void)got;
}

void berth_queue_wait(struct berth_queue *queue, uint64_t t_until_ns)
{
    struct pollfd poll_fd = {.fd = queue->fd, .events = POLLIN};
    int ready;
    if (!berth_queue_sleep(queue)) {
        return;
    }
    do {
        uint64_t now_ns = berth_clock_now_ns();
        uint64_t left_ns = t_until_ns > now_ns ? t_until_ns - now_ns : 0;
        struct timespec left = {.tv_sec = (time_t)(left_ns / BERTH_NS_PER_S),
                                .tv_nsec = (long)(left_ns % BERTH_NS_PER_S)};
        ready = ppoll(&poll_fd, 1, t_until_ns == 0 ? NULL : &left, NULL);
    } while (ready < 0 && errno == EINTR);
    berth_queue_wake(queue);
}

void berth_queue_nudge(struct berth_queue *queue)
{
    uint64_t one = 1;
    ssize_t put = write(queue->fd, &one, sizeof(one)); /* EAGAIN: 2^64 wakes are pending already */
    (void)put;
}

/* mu is held. */
static void add_and_wake(struct berth_queue *queue, struct berth_link *link)
{
    berth_list_append(&queue->items, link);
    queue->count++;
    if (atomic_load(&queue->reader_sleeps) && atomic_exchange(&queue->reader_sleeps, false)) {
        berth_queue_nudge(queue);
    }
}
