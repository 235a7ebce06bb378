/* test_process_send.c - sending to a worker process when the kernel has no room: virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <cmocka.h>

#define berth_wire_send fake_send
#include "worker/process_send.c"
#undef berth_wire_send

#include "base/mem.h"

static enum berth_wire_result answer; /* to what is sent now */
static size_t calls;

enum berth_wire_result fake_send(int fd, const struct berth_wire_writer *writer, bool waits)
{
    assert_false(waits);
    calls++;
    return answer;
}

/* An unload that is queued, and the RELEASE of another message. */
static void open_worker(struct berth_process_worker *worker, struct berth_worker_msg *msgs)
{
    berth_child_init(&worker->child, 0);
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    worker->child.state = BERTH_CHILD_UP;
    worker->child.fd = dup(STDERR_FILENO);
    berth_list_init(&worker->outbox);
    berth_list_init(&worker->sent);
    berth_list_init(&worker->releases);
    struct berth_remote *remote = berth_alloc(sizeof(*remote));
    assert_non_null(remote);
    remote->load_id = 5;
    berth_remote_add(worker, remote);
    for (size_t i = 0; i < 2; i++) {
        msgs[i] = (struct berth_worker_msg){.kind = BERTH_WORKER_UNLOAD, .load_id = 5};
        struct berth_flight *flight = berth_flight_create(worker, &msgs[i]);
        assert_non_null(flight);
        berth_list_append(i == 0 ? &worker->outbox : &worker->releases, &flight->link);
    }
}

static void close_worker(struct berth_process_worker *worker)
{
    struct berth_link *lists[] = {&worker->outbox, &worker->sent, &worker->releases};
    for (size_t i = 0; i < BERTH_COUNT_OF(lists); i++) {
        while (!berth_list_empty(lists[i])) {
            berth_flight_destroy(BERTH_CONTAINER_OF(lists[i]->next, struct berth_flight, link));
        }
    }
    berth_remote_remove(worker, berth_remote_find(worker, 5));
    close(worker->child.fd);
    close(worker->epoll_fd);
    berth_free(worker);
}

/* Too many descriptors on their way: the socket is writable all the while, so it is not watched;
 * the next try comes with time, one at a time, and nothing goes out in between. */
static void no_room_in_the_kernel_is_waited_out(void **state)
{
    struct berth_worker_msg msgs[2];
    struct berth_process_worker *worker = berth_alloc(sizeof(*worker));
    assert_non_null(worker);
    open_worker(worker, msgs);
    uint64_t now_ns = 1;
    calls = 0;
    answer = BERTH_WIRE_LATER;
    for (size_t i = 1; i <= 5; i++) {
        berth_process_pump(worker, now_ns);
        assert_int_equal(calls, i);
        assert_true(worker->t_send_ns > now_ns);
        assert_false(worker->wants_out);
        berth_process_pump(worker, worker->t_send_ns - 1);
        assert_int_equal(calls, i);
        now_ns = worker->t_send_ns;
    }
    answer = BERTH_WIRE_OK;
    berth_process_pump(worker, now_ns);
    assert_int_equal(calls, 7);
    assert_int_equal(worker->t_send_ns, 0);
    assert_true(berth_list_empty(&worker->outbox));
    assert_true(berth_list_empty(&worker->releases));
    assert_false(berth_list_empty(&worker->sent));
    close_worker(worker);
}

/* A child that is not up is sent nothing. */
static void nothing_is_sent_before_it_is_up(void **state)
{
    struct berth_worker_msg msgs[2];
    struct berth_process_worker *worker = berth_alloc(sizeof(*worker));
    assert_non_null(worker);
    open_worker(worker, msgs);
    calls = 0;
    answer = BERTH_WIRE_OK;
    worker->child.state = BERTH_CHILD_STARTING;
    berth_process_pump(worker, 1);
    worker->child.state = BERTH_CHILD_DYING;
    berth_process_pump(worker, 1);
    assert_int_equal(calls, 0);
    close_worker(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_room_in_the_kernel_is_waited_out),
        cmocka_unit_test(nothing_is_sent_before_it_is_up),
    };
    return cmocka_run_group_tests_name("process_send", tests, NULL, NULL);
}
