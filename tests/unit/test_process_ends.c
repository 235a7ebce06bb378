/* test_process_ends.c - the end of a worker process, seen from its I/O thread without the thread:
 * one that is killed and does not end, and a socket that somebody else has open too. Time is an
 * argument. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define berth_child_reap fake_reap
#include "worker/process_worker.c"
#undef berth_child_reap

#include "media/lane.h"

static bool ends;

bool fake_reap(struct berth_child *child, uint64_t now_ns)
{
    if (ends) {
        child->state = BERTH_CHILD_DOWN;
        child->t_start_ns = UINT64_MAX;
    }
    return ends;
}

/* A child that is up, with one model; a pipe does for its socket, and the child's end is *far. */
static struct berth_process_worker *open_worker(struct berth_queue *replies, int *far)
{
    int ends_of[2];
    struct berth_process_worker *worker = berth_alloc(sizeof(*worker));
    struct berth_remote *remote = berth_alloc(sizeof(*remote));
    assert_non_null(worker);
    assert_non_null(remote);
    assert_int_equal(berth_queue_init(replies, 0, NULL), BERTH_OK);
    assert_int_equal(pipe2(ends_of, O_CLOEXEC), 0);
    worker->base.device = "test:0";
    worker->base.replies = replies;
    berth_child_init(&worker->child, 0);
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    worker->child.state = BERTH_CHILD_UP;
    worker->child.was_ready = true;
    worker->child.fd = ends_of[0];
    *far = ends_of[1];
    berth_process_watch(worker, EPOLL_CTL_ADD, false);
    berth_list_init(&worker->outbox);
    berth_list_init(&worker->sent);
    berth_list_init(&worker->releases);
    berth_remote_add(worker, remote);
    return worker;
}

static void close_worker(struct berth_process_worker *worker, int far)
{
    if (far >= 0) {
        close(far);
    }
    if (worker->child.fd >= 0) {
        close(worker->child.fd);
    }
    close(worker->epoll_fd);
    berth_queue_finish(worker->base.replies);
    berth_free(worker);
    assert_int_equal(berth_mem_bytes_live(), 0);
}

static size_t faults(struct berth_process_worker *worker)
{
    struct berth_link posts;
    size_t count = 0;
    berth_list_init(&posts);
    (void)berth_queue_take(worker->base.replies, &posts);
    while (berth_list_pop(&posts) != NULL) {
        count++;
        berth_worker_fault_seen(&worker->base);
    }
    return count;
}

/* What it had goes home when two seconds are over; its end counts once, whenever it comes. */
static void a_child_that_does_not_end_counts_once(void **state)
{
    struct berth_queue replies;
    int far = -1;
    struct berth_process_worker *worker = open_worker(&replies, &far);
    worker->child.state = BERTH_CHILD_DYING;
    ends = false;
    uint64_t now_ns = BERTH_NS_PER_S;
    tick(worker, now_ns);
    assert_int_equal(atomic_load(&worker->base.epoch), 0);
    for (size_t i = 0; i < 100; i++) {
        now_ns = 3 * BERTH_NS_PER_S + i * REAP_NS;
        tick(worker, now_ns);
    }
    assert_int_equal(atomic_load(&worker->base.epoch), 1);
    assert_int_equal(faults(worker), 1);
    assert_int_equal(atomic_load(&worker->base.condition), BERTH_WORKER_FAILING);
    ends = true;
    tick(worker, now_ns);
    assert_int_equal(worker->child.state, BERTH_CHILD_DOWN);
    assert_int_equal(atomic_load(&worker->base.epoch), 1);
    assert_int_equal(faults(worker), 0);
    assert_int_equal(atomic_load(&worker->base.condition), BERTH_WORKER_STARTING);
    close_worker(worker, far);
}

/* A process that waits to be killed. */
static pid_t start_sleeper(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        for (;;) {
            pause();
        }
    }
    assert_true(pid > 0);
    return pid;
}

/* As in a process that is being started: the socket is closed here, and open there. */
static void assert_silent(int epoll_fd, int copy, int far, pid_t pid)
{
    struct epoll_event event;
    close(far);
    assert_int_equal(waitpid(pid, NULL, 0), pid); /* which had it open, too */
    assert_int_equal(epoll_wait(epoll_fd, &event, 1, 0), 0);
    close(copy);
}

static void a_closed_socket_is_not_heard_of(void **state)
{
    struct berth_queue replies;
    int far = -1;
    struct berth_process_worker *worker = open_worker(&replies, &far);
    worker->child.pid = start_sleeper();
    int copy = fcntl(worker->child.fd, F_DUPFD_CLOEXEC, 0);
    pid_t pid = worker->child.pid;
    berth_process_lose(worker, "is a test");
    assert_silent(worker->epoll_fd, copy, far, pid);
    berth_remote_remove(worker, berth_remote_find(worker, 0));
    close_worker(worker, -1);
}

static void nor_of_a_decoder(void **state)
{
    struct berth_lane_env env = {.epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    struct berth_process_lane lane;
    int ends_of[2];
    assert_int_equal(pipe2(ends_of, O_CLOEXEC), 0);
    berth_process_lane_init(&lane, &env);
    lane.process.child.state = BERTH_CHILD_UP;
    lane.process.child.fd = ends_of[0];
    lane.process.child.epoll_fd = env.epoll_fd;
    lane.process.child.pid = start_sleeper();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &lane};
    assert_int_equal(epoll_ctl(env.epoll_fd, EPOLL_CTL_ADD, ends_of[0], &event), 0);
    int copy = fcntl(ends_of[0], F_DUPFD_CLOEXEC, 0);
    pid_t pid = lane.process.child.pid;
    berth_process_lane_stop(&lane);
    assert_silent(env.epoll_fd, copy, ends_of[1], pid);
    close(env.epoll_fd);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_that_does_not_end_counts_once),
        cmocka_unit_test(a_closed_socket_is_not_heard_of),
        cmocka_unit_test(nor_of_a_decoder),
    };
    return cmocka_run_group_tests_name("process_ends", tests, NULL, NULL);
}
