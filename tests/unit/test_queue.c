/* Lists, bounds, and wake-ups with real threads (run this one under TSan too). */
#include "base/queue.h"

#include <poll.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"

#define WRITERS 4
#define MESSAGES 20000

struct message {
    struct berth_link link;
    uint32_t writer;
    uint32_t number;
};

struct writer {
    struct berth_queue *queue;
    struct message *messages;
    size_t refused;
    bool bounded;
};

static void lists_keep_order(void **state)
{
    struct berth_link head, other, links[5] = {{0}};
    size_t count = 0;
    (void)state;
    berth_list_init(&head);
    berth_list_init(&other);
    assert_null(berth_list_pop(&head));
    berth_list_remove(&links[0]); /* in no list */
    berth_list_append(&head, &links[0]);
    berth_list_append(&head, &links[2]);
    berth_list_insert_before(&links[2], &links[1]);
    berth_list_append(&other, &links[3]);
    berth_list_append(&other, &links[4]);
    berth_list_splice(&head, &other);
    assert_true(berth_list_empty(&other));
    berth_list_splice(&head, &other);
    BERTH_LIST_EACH(link, &head) {
        assert_ptr_equal(link, &links[count++]);
    }
    assert_int_equal(count, 5);
    assert_true(berth_list_contains(&links[3]));
    BERTH_LIST_EACH_SAFE(link, &head) {
        if (link == &links[1] || link == &links[4]) {
            berth_list_remove(link);
        }
    }
    assert_false(berth_list_contains(&links[1]));
    assert_ptr_equal(berth_list_pop(&head), &links[0]);
    assert_ptr_equal(berth_list_pop(&head), &links[2]);
    assert_ptr_equal(berth_list_pop(&head), &links[3]);
    assert_true(berth_list_empty(&head));
}

static void push_is_bounded_and_post_is_not(void **state)
{
    struct berth_queue queue = {0};
    struct berth_link out, links[4] = {{0}};
    (void)state;
    berth_queue_finish(&queue); /* zeroed memory */
    assert_int_equal(berth_queue_init(&queue, 2, NULL), BERTH_OK);
    assert_true(berth_queue_push(&queue, &links[0]));
    assert_true(berth_queue_push(&queue, &links[1]));
    assert_false(berth_queue_push(&queue, &links[2]));
    assert_false(berth_list_contains(&links[2]));
    berth_queue_post(&queue, &links[3]);
    berth_list_init(&out);
    assert_true(berth_queue_take(&queue, &out));
    assert_false(berth_queue_take(&queue, &out));
    assert_ptr_equal(berth_list_pop(&out), &links[0]);
    assert_ptr_equal(berth_list_pop(&out), &links[1]);
    assert_ptr_equal(berth_list_pop(&out), &links[3]);
    assert_true(berth_queue_push(&queue, &links[2]));
    berth_queue_take(&queue, &out);
    berth_queue_finish(&queue);
    berth_queue_finish(&queue);
}

static bool readable(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 1;
}

static void writers_wake_only_a_sleeping_reader(void **state)
{
    struct berth_queue queue;
    struct berth_link out, links[3] = {{0}};
    uint64_t count;
    (void)state;
    berth_list_init(&out);
    assert_int_equal(berth_queue_init(&queue, 0, NULL), BERTH_OK);
    berth_queue_post(&queue, &links[0]);
    assert_false(readable(queue.fd));
    assert_false(berth_queue_sleep(&queue)); /* there is one */
    berth_queue_take(&queue, &out);
    assert_true(berth_queue_sleep(&queue));
    berth_queue_post(&queue, &links[1]);
    assert_true(readable(queue.fd));
    berth_queue_wake(&queue);
    assert_int_equal(read(queue.fd, &count, sizeof(count)), sizeof(count));
    berth_queue_post(&queue, &links[2]);
    assert_false(readable(queue.fd)); /* it is awake */
    berth_queue_take(&queue, &out);
    berth_queue_nudge(&queue);
    assert_true(readable(queue.fd));
    assert_false(berth_queue_sleep(&queue)); /* the nudge is seen, once */
    assert_true(berth_queue_sleep(&queue));
    berth_queue_wake(&queue);
    berth_queue_nudge(&queue);
    berth_queue_wait(&queue, 0); /* returns at once */
    assert_true(berth_queue_sleep(&queue));
    berth_queue_wake(&queue);
    berth_queue_wait(&queue, berth_clock_now_ns() + BERTH_NS_PER_MS); /* returns in the end */
    berth_queue_wait(&queue, 1);                                      /* long ago */
    berth_queue_finish(&queue);
}

static void *write_all(void *context)
{
    struct writer *writer = context;
    for (size_t i = 0; i < MESSAGES; i++) {
        struct message *message = &writer->messages[i];
        if (!writer->bounded) {
            berth_queue_post(writer->queue, &message->link);
            continue;
        }
        while (!berth_queue_push(writer->queue, &message->link)) {
            writer->refused++;
            sched_yield();
        }
    }
    return NULL;
}

/* Every message arrives once and each writer's in order; a lost wake-up would hang the test. */
static void run_threads(bool bounded)
{
    struct berth_queue queue;
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    uint32_t next[WRITERS] = {0};
    struct berth_link out;
    berth_list_init(&out);
    assert_int_equal(berth_queue_init(&queue, bounded ? 16 : 0, NULL), BERTH_OK);
    for (uint32_t w = 0; w < WRITERS; w++) {
        writers[w] = (struct writer){.queue = &queue, .bounded = bounded};
        writers[w].messages = berth_alloc(MESSAGES * sizeof(struct message));
        assert_non_null(writers[w].messages);
        for (uint32_t i = 0; i < MESSAGES; i++) {
            writers[w].messages[i].writer = w;
            writers[w].messages[i].number = i;
        }
        assert_int_equal(pthread_create(&threads[w], NULL, write_all, &writers[w]), 0);
    }
    for (size_t got = 0; got < WRITERS * MESSAGES;) {
        struct berth_link *link;
        berth_queue_wait(&queue, 0);
        berth_queue_take(&queue, &out);
        while ((link = berth_list_pop(&out)) != NULL) {
            struct message *message = BERTH_CONTAINER_OF(link, struct message, link);
            assert_int_equal(message->number, next[message->writer]++);
            got++;
        }
    }
    for (size_t w = 0; w < WRITERS; w++) {
        pthread_join(threads[w], NULL);
        berth_free(writers[w].messages);
    }
    berth_queue_finish(&queue);
}

static void threads_post(void **state)
{
    (void)state;
    run_threads(false);
}

static void threads_push(void **state)
{
    (void)state;
    run_threads(true);
}

/* Held wake-ups come at release, to each sleeper once. */
static void wake_ups_can_be_held(void **state)
{
    struct berth_queue queues[20];
    struct berth_link out, links[40] = {{0}};
    (void)state;
    for (size_t i = 0; i < 20; i++) {
        assert_int_equal(berth_queue_init(&queues[i], 0, NULL), BERTH_OK);
        assert_true(berth_queue_sleep(&queues[i]));
    }
    berth_queue_hold();
    for (size_t i = 0; i < 40; i++) {
        berth_queue_post(&queues[i % 20], &links[i]);
    }
    assert_false(readable(queues[0].fd));
    assert_true(readable(queues[19].fd)); /* more than a thread holds */
    berth_queue_release();
    for (size_t i = 0; i < 20; i++) {
        uint64_t count = 0;
        assert_int_equal(read(queues[i].fd, &count, sizeof(count)), sizeof(count));
        assert_int_equal(count, 1);
        berth_list_init(&out);
        assert_true(berth_queue_take(&queues[i], &out));
        berth_queue_finish(&queues[i]);
    }
}

static void *answer_once(void *context)
{
    struct writer *writer = context;
    berth_queue_post(writer->queue, &writer->messages->link);
    return NULL;
}

/* The reader may end the queue as soon as it has the message it waited for. */
static void queue_may_end_after_its_last_message(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct message message = {.number = 0};
        struct berth_queue *queue = berth_alloc(sizeof(*queue));
        struct writer writer = {.queue = queue, .messages = &message};
        struct berth_link out;
        pthread_t thread;
        berth_list_init(&out);
        assert_int_equal(berth_queue_init(queue, 0, NULL), BERTH_OK);
        assert_int_equal(pthread_create(&thread, NULL, answer_once, &writer), 0);
        while (!berth_queue_take(queue, &out)) {
            berth_queue_wait(queue, 0);
        }
        berth_queue_finish(queue);
        berth_free(queue);
        pthread_join(thread, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_keep_order),
        cmocka_unit_test(push_is_bounded_and_post_is_not),
        cmocka_unit_test(writers_wake_only_a_sleeping_reader),
        cmocka_unit_test(wake_ups_can_be_held),
        cmocka_unit_test(threads_post),
        cmocka_unit_test(threads_push),
        cmocka_unit_test(queue_may_end_after_its_last_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
