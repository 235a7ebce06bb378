/* process_worker.c - the worker whose work is done by a process of its own (host.c).
 *
 * The controller's messages go to one I/O thread over a queue; it owns the socket and all that is
 * known of the child. It sends as far as the socket takes it (process_send.c), judges what comes
 * back (process_answers.c), looks for hangs (process_watch.c), and never waits for the child.
 * DESCRIBE is done in this process, by a thread of its own (process_describe.c).
 *
 * A child that ends, misbehaves or hangs is killed and reaped; then all it had comes home as
 * UNAVAILABLE, the controller is told that what was loaded is gone (P4), and another one is
 * started, after a pause that grows while they end early (P5). Rejected: sending again what the
 * child had (a request that kills its worker would kill the next one too); what it had not, the
 * controller sends to the next copy.
 */
#include "worker/process_worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define EVENTS_MAX 2
#define MESSAGES_AT_ONCE 256
#define START_NS_DEFAULT (60 * BERTH_NS_PER_S)
#define CALM_NS (10 * BERTH_NS_PER_S) /* up for so long: its end begins no row of failures */
#define SOCKET_BYTES (512 * 1024)     /* a few whole messages, whatever the machine's default */
#define REAP_NS (10 * BERTH_NS_PER_MS)    /* how often a child that ends is looked at */
#define REAP_NS_MAX (2 * BERTH_NS_PER_S)  /* then its messages go home all the same */
#define HANG_LOOK_NS BERTH_NS_PER_S
#define SIGNS_OF_LIFE 10 /* so many are due in the time that a load may show none */

static void send(struct berth_worker *base, struct berth_worker_msg *msg);
static void cancel(struct berth_worker *base);
static void destroy(struct berth_worker *base);
static void *io_main(void *argument);
static void take_messages(struct berth_process_worker *worker);
static void take_message(struct berth_process_worker *worker, struct berth_worker_msg *msg);
static void drop_unwanted(struct berth_process_worker *worker);
static void fail_unwanted(struct berth_process_worker *worker, struct berth_worker_msg *msg);
static void tick(struct berth_process_worker *worker, uint64_t now_ns);
static void start_child(struct berth_process_worker *worker, uint64_t now_ns);
static void put_hello(struct berth_process_worker *worker);
static void fail_under_way(struct berth_process_worker *worker, const char *ending, bool all);
static void read_child(struct berth_process_worker *worker);
static bool take_ready(struct berth_process_worker *worker, uint64_t now_ns);
static void wait_for_work(struct berth_process_worker *worker, uint64_t now_ns);
static int wait_ms(const struct berth_process_worker *worker, uint64_t now_ns);
static bool is_empty(const struct berth_process_worker *worker);

static const struct berth_worker_ops process_ops = {
    .name = "process",
    .send = send,
    .cancel = cancel,
    .destroy = destroy,
};

enum berth_code berth_worker_process_create(const struct berth_worker_options *options,
                                            struct berth_worker **out, struct berth_err *err)
{
    struct berth_process_worker *worker = berth_alloc(sizeof(*worker));
    if (worker == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    worker->options = *options;
    worker->base.ops = &process_ops;
    worker->base.device = options->device;
    worker->base.parallel_max = options->run_threads == 0 ? 1 : options->run_threads;
    worker->base.bytes_max = options->bytes_max;
    worker->base.engines = options->engines;
    atomic_store(&worker->base.condition, BERTH_WORKER_STARTING);
    if (worker->options.engine_find == NULL) {
        worker->options.engine_find = berth_engine_find;
    }
    berth_child_init(&worker->child, CALM_NS);
    worker->epoll_fd = -1;
    berth_list_init(&worker->outbox);
    berth_list_init(&worker->sent);
    berth_list_init(&worker->releases);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    enum berth_code code = berth_queue_init(&worker->queue, 0, err);
    if (code == BERTH_OK) {
        code = berth_queue_init(&worker->describes, 0, err);
    }
    if (code == BERTH_OK &&
        ((worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
         epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, worker->queue.fd, &event) != 0)) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot watch a worker process: %s",
                          strerror(errno));
    }
    if (code == BERTH_OK && pthread_create(&worker->thread, NULL, io_main, worker) != 0) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot start a worker's thread");
    }
    if (code != BERTH_OK) {
        if (worker->epoll_fd >= 0) {
            close(worker->epoll_fd);
        }
        berth_queue_finish(&worker->queue);
        berth_queue_finish(&worker->describes);
        berth_free(worker);
        return code;
    }
    pthread_setname_np(worker->thread, "worker-io");
    *out = &worker->base;
    return BERTH_OK;
}

static void send(struct berth_worker *base, struct berth_worker_msg *msg)
{
    struct berth_process_worker *worker =
        BERTH_CONTAINER_OF(base, struct berth_process_worker, base);
    berth_queue_post(&worker->queue, &msg->post.link);
}

static void cancel(struct berth_worker *base)
{
    struct berth_process_worker *worker =
        BERTH_CONTAINER_OF(base, struct berth_process_worker, base);
    if (!atomic_exchange(&worker->cancels, true)) {
        berth_queue_nudge(&worker->queue);
    }
}

/* What was sent is done first, so that nothing is lost; then the child is let go. */
static void destroy(struct berth_worker *base)
{
    struct berth_process_worker *worker =
        BERTH_CONTAINER_OF(base, struct berth_process_worker, base);
    atomic_store(&worker->stop, true);
    berth_queue_nudge(&worker->queue);
    pthread_join(worker->thread, NULL);
    if (worker->has_describer) {
        berth_process_describe_stop(worker);
        take_messages(worker); /* a LOAD it may have described last: fails, there is no child */
        struct berth_err err = {0};
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "the server is stopping");
        berth_flights_fail(worker, &worker->outbox, &err);
    }
    close(worker->epoll_fd);
    berth_queue_finish(&worker->queue);
    berth_queue_finish(&worker->describes);
    berth_free(worker);
}

static void *io_main(void *argument)
{
    struct berth_process_worker *worker = argument;
    for (;;) {
        bool stops = atomic_load(&worker->stop); /* before: then no message comes after these */
        take_messages(worker);
        uint64_t now_ns = berth_clock_now_ns(); /* not before what the child's state was set at */
        tick(worker, now_ns);
        if (atomic_load(&worker->cancels)) {
            drop_unwanted(worker);
        }
        berth_process_pump(worker, now_ns);
        if (stops && is_empty(worker)) {
            if (worker->child.state == BERTH_CHILD_DOWN) {
                return NULL;
            }
            berth_child_leave(&worker->child, now_ns);
        }
        wait_for_work(worker, now_ns);
    }
}

static void take_messages(struct berth_process_worker *worker)
{
    struct berth_link posts;
    struct berth_link *link;
    berth_list_init(&posts);
    (void)berth_queue_take(&worker->queue, &posts);
    while ((link = berth_list_pop(&posts)) != NULL) {
        take_message(worker, BERTH_CONTAINER_OF(link, struct berth_worker_msg, post.link));
    }
}

static void take_message(struct berth_process_worker *worker, struct berth_worker_msg *msg)
{
    struct berth_err err = {0};
    if (msg->kind == BERTH_WORKER_DESCRIBE ||
        (msg->kind == BERTH_WORKER_LOAD && !msg->spec->completed)) {
        berth_process_describe(worker, msg);
        return;
    }
    if (msg->kind == BERTH_WORKER_LOAD && atomic_load(&msg->unwanted)) {
        fail_unwanted(worker, msg); /* the word that it is may be over */
        return;
    }
    struct berth_flight *flight = berth_flight_create(worker, msg);
    if (flight == NULL) {
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
        if (msg->kind == BERTH_WORKER_UNLOAD ||
            (msg->kind == BERTH_WORKER_STEP && msg->drop_count > 0)) {
            berth_process_lose(worker, "cannot be told what to free"); /* so it all goes */
        }
    } else if (flight->remote == NULL) { /* lost with its child; P4 */
        msg->not_begun = true;
        (void)berth_fail(&err, BERTH_UNAVAILABLE,
                         "the worker process that had the model has ended");
    } else if (flight->pieces > BERTH_WIRE_ROWS_MAX + 1U) {
        (void)berth_fail(&err, BERTH_INTERNAL, "a batch of %zu requests", flight->pieces - 1);
    } else {
        berth_list_append(&worker->outbox, &flight->link);
        return;
    }
    berth_flight_destroy(flight);
    berth_message_fail(worker, msg, &err);
}

/* Loads that the child has not been sent. */
static void drop_unwanted(struct berth_process_worker *worker)
{
    BERTH_LIST_EACH_SAFE(link, &worker->outbox) {
        struct berth_flight *flight = BERTH_CONTAINER_OF(link, struct berth_flight, link);
        struct berth_worker_msg *msg = flight->msg;
        if (flight->kind == BERTH_WORKER_LOAD && atomic_load(&msg->unwanted)) {
            flight->msg = NULL;
            berth_flight_destroy(flight);
            fail_unwanted(worker, msg);
        }
    }
}

static void fail_unwanted(struct berth_process_worker *worker, struct berth_worker_msg *msg)
{
    struct berth_err err = {0};
    (void)berth_fail(&err, BERTH_CANCELLED, "nobody waits for it any more");
    berth_message_fail(worker, msg, &err);
}

static void tick(struct berth_process_worker *worker, uint64_t now_ns)
{
    struct berth_child *child = &worker->child;
    char text[sizeof(child->ending) + sizeof(worker->why) + 40];
    const char *why = NULL;
    switch (child->state) {
    case BERTH_CHILD_DOWN:
        if (!atomic_load(&worker->stop) && now_ns >= child->t_start_ns) {
            start_child(worker, now_ns);
        } else if (atomic_load(&worker->stop)) {
            fail_under_way(worker, "the server is stopping", true);
        }
        break;
    case BERTH_CHILD_STARTING: {
        uint64_t start_ns_max = worker->options.start_ns_max;
        start_ns_max = start_ns_max == 0 ? START_NS_DEFAULT : start_ns_max;
        if (now_ns - child->t_state_ns > start_ns_max) {
            berth_process_lose(worker, "does not become ready");
        }
        break;
    }
    case BERTH_CHILD_UP:
        why = berth_process_hang(worker, now_ns);
        if (why != NULL) {
            berth_process_lose(worker, why);
        }
        break;
    case BERTH_CHILD_LEAVING:
    case BERTH_CHILD_DYING:
        if (berth_child_reap(child, now_ns)) {
            snprintf(text, sizeof(text), "worker process %s: %s",
                     worker->why[0] == '\0' ? "ended" : worker->why, child->ending);
            if (!atomic_load(&worker->stop)) {
                berth_log_warn("worker", 0, "%s device=%s", text, worker->base.device);
            }
            atomic_store(&worker->base.condition,
                         child->was_ready ? BERTH_WORKER_STARTING : BERTH_WORKER_FAILING);
            fail_under_way(worker, text, !child->was_ready || atomic_load(&worker->base.closing));
        } else if (child->state == BERTH_CHILD_DYING &&
                   now_ns - child->t_state_ns > REAP_NS_MAX) {
            snprintf(text, sizeof(text), "worker process %s: killed, and does not end",
                     worker->why[0] == '\0' ? "ended" : worker->why);
            if (!worker->end_told) {
                berth_log_error("worker", 0, "%s device=%s pid=%d", text, worker->base.device,
                                (int)child->pid);
                atomic_store(&worker->base.condition, BERTH_WORKER_FAILING);
            }
            fail_under_way(worker, text, true);
        }
        break;
    }
}

static void start_child(struct berth_process_worker *worker, uint64_t now_ns)
{
    struct berth_err err = {0};
    char name[] = "berth", verb[] = "worker", flag[] = "--fd", number[12];
    char *argv[] = {name, verb, flag, number, NULL};
    struct berth_child_options options = {.what = "a worker process",
                                          .program = worker->options.program,
                                          .argv = argv,
                                          .buffer_bytes = SOCKET_BYTES};
    snprintf(number, sizeof(number), "%d", BERTH_CHILD_SOCKET);
    worker->why[0] = '\0';
    worker->end_told = false;
    worker->t_send_ns = 0;
    if (berth_child_start(&worker->child, &options, now_ns, &err) != BERTH_OK) {
        berth_log_err(BERTH_LOG_WARN, "worker", 0, &err);
        atomic_store(&worker->base.condition, BERTH_WORKER_FAILING);
        fail_under_way(worker, err.msg, true);
        return;
    }
    berth_process_watch(worker, EPOLL_CTL_ADD, false);
    put_hello(worker);
    if (berth_wire_send(worker->child.fd, &worker->writer, false) != BERTH_WIRE_OK) {
        berth_process_lose(worker, "takes no message");
    }
}

static void put_hello(struct berth_process_worker *worker)
{
    const struct berth_worker_options *options = &worker->options;
    struct berth_wire_writer *writer = &worker->writer;
    berth_wire_begin(writer, BERTH_WIRE_HELLO, 0);
    berth_wire_put_text(writer, BERTH_VERSION);
    berth_wire_put_text(writer, options->device);
    berth_wire_put_u32(writer, worker->base.parallel_max);
    berth_wire_put_u32(writer, options->load_threads);
    berth_wire_put_u32(writer, options->engine_threads);
    berth_wire_put_u64(writer, options->bytes_budget);
    berth_wire_put_u64(writer, berth_process_load_ns_max(worker) / SIGNS_OF_LIFE);
    uint32_t level = BERTH_LOG_ERROR;
    while (level < BERTH_LOG_DEBUG && berth_log_enabled((enum berth_log_level)(level + 1))) {
        level++;
    }
    berth_wire_put_u32(writer, level);
}

void berth_process_lose(struct berth_process_worker *worker, const char *why)
{
    if (worker->child.state == BERTH_CHILD_DYING) {
        return;
    }
    const char *by_itself =
        worker->child.state == BERTH_CHILD_STARTING ? "does not start" : "has ended";
    snprintf(worker->why, sizeof(worker->why), "%.79s", why == NULL ? "" : why);
    berth_log_warn("worker", 0, "a worker process %s device=%s pid=%d",
                   why == NULL ? by_itself : why, worker->base.device, (int)worker->child.pid);
    berth_child_kill(&worker->child, berth_clock_now_ns());
}

/* P4, in this order: the controller hears of the loss before it sees the messages that failed, and
 * once of each child's, however long that takes to end.
 * Loads that were not sent wait for the next child, unless this one did not even start (`all`). */
static void fail_under_way(struct berth_process_worker *worker, const char *ending, bool all)
{
    struct berth_err err = {0};
    struct berth_link loads;
    bool had_models = false;
    berth_list_init(&loads);
    BERTH_LIST_EACH_SAFE(link, &worker->outbox) {
        struct berth_flight *flight = BERTH_CONTAINER_OF(link, struct berth_flight, link);
        if (flight->kind == BERTH_WORKER_LOAD && !all) {
            flight->t_held_ns = flight->t_unwanted_ns = 0;
            berth_list_remove(link);
            berth_list_append(&loads, link);
        }
    }
    for (size_t i = 0; i < BERTH_REMOTES_BUCKETS; i++) {
        had_models = had_models || worker->remotes[i] != NULL;
    }
    if (!worker->end_told) {
        worker->end_told = true;
        atomic_fetch_add(&worker->base.epoch, 1);
        if (had_models) {
            berth_worker_fault_post(&worker->base);
        }
    }
    (void)berth_fail(&err, BERTH_UNAVAILABLE, "%s", ending);
    berth_flights_fail(worker, &worker->sent, &err);
    berth_flights_fail(worker, &worker->outbox, &err);
    berth_flights_fail(worker, &worker->releases, &err);
    berth_list_splice(&worker->outbox, &loads);
    for (size_t i = 0; i < BERTH_REMOTES_BUCKETS; i++) {
        while (worker->remotes[i] != NULL) {
            berth_remote_remove(worker, worker->remotes[i]);
        }
    }
}

static void read_child(struct berth_process_worker *worker)
{
    struct berth_err err = {0};
    for (int i = 0; i < MESSAGES_AT_ONCE && worker->child.fd >= 0; i++) {
        uint64_t now_ns = berth_clock_now_ns();
        enum berth_wire_result got =
            berth_wire_receive(worker->child.fd, &worker->message, false);
        if (got == BERTH_WIRE_AGAIN) {
            return;
        }
        if (got == BERTH_WIRE_ENDED) {
            berth_process_lose(worker, NULL);
            return;
        }
        bool good = got == BERTH_WIRE_OK;
        if (good && worker->child.state == BERTH_CHILD_STARTING) {
            good = take_ready(worker, now_ns);
        } else if (good) {
            good = berth_process_answer(worker, now_ns, &err) == BERTH_OK;
        }
        berth_wire_close(&worker->message);
        if (!good) {
            berth_process_lose(worker, err.code == BERTH_OK ? "sent no message of this protocol"
                                                            : err.msg);
        }
    }
}

static bool take_ready(struct berth_process_worker *worker, uint64_t now_ns)
{
    struct berth_wire_message *message = &worker->message;
    const char *version = berth_wire_get_text(message);
    if (message->kind != BERTH_WIRE_READY || version == NULL || !berth_wire_whole(message) ||
        strcmp(version, BERTH_VERSION) != 0) {
        berth_log_warn("worker", 0, "a worker process of another version device=%s version=%s",
                       worker->base.device, version == NULL ? "" : version);
        return false;
    }
    uint64_t start_ns = now_ns - worker->child.t_state_ns;
    berth_child_ready(&worker->child, now_ns);
    atomic_store(&worker->base.condition, BERTH_WORKER_READY);
    berth_log_info("worker", 0, "worker process is ready device=%s pid=%d ms=%" PRIu64,
                   worker->base.device, (int)worker->child.pid, start_ns / BERTH_NS_PER_MS);
    return true;
}

static void wait_for_work(struct berth_process_worker *worker, uint64_t now_ns)
{
    struct epoll_event events[EVENTS_MAX];
    if (!berth_queue_sleep(&worker->queue)) {
        return;
    }
    int count = epoll_wait(worker->epoll_fd, events, EVENTS_MAX, wait_ms(worker, now_ns));
    berth_queue_wake(&worker->queue);
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == NULL || worker->child.fd < 0) {
            continue;
        }
        if ((events[i].events & EPOLLOUT) != 0) {
            berth_process_watch(worker, EPOLL_CTL_MOD, false);
        }
        if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0) {
            read_child(worker);
        }
    }
}

static int wait_ms(const struct berth_process_worker *worker, uint64_t now_ns)
{
    const struct berth_child *child = &worker->child;
    uint64_t wait_ns = UINT64_MAX;
    switch (child->state) {
    case BERTH_CHILD_DOWN:
        wait_ns = child->t_start_ns > now_ns ? child->t_start_ns - now_ns : 0;
        break;
    case BERTH_CHILD_STARTING:
        wait_ns = HANG_LOOK_NS;
        break;
    case BERTH_CHILD_UP:
        if (!berth_list_empty(&worker->sent) || !berth_list_empty(&worker->outbox)) {
            wait_ns = HANG_LOOK_NS;
        }
        if (worker->t_send_ns != 0) {
            wait_ns = worker->t_send_ns > now_ns ? worker->t_send_ns - now_ns : 0;
        }
        break;
    case BERTH_CHILD_LEAVING:
    case BERTH_CHILD_DYING:
        wait_ns = REAP_NS;
        break;
    }
    return wait_ns == UINT64_MAX ? -1 : (int)(wait_ns / BERTH_NS_PER_MS + 1);
}

void berth_process_watch(struct berth_process_worker *worker, int operation, bool out)
{
    struct epoll_event event = {.events = EPOLLIN | (out ? (uint32_t)EPOLLOUT : 0),
                                .data.ptr = worker};
    worker->wants_out = out;
    worker->child.epoll_fd = worker->epoll_fd;
    if (epoll_ctl(worker->epoll_fd, operation, worker->child.fd, &event) != 0) {
        berth_process_lose(worker, "cannot be watched");
    }
}

static bool is_empty(const struct berth_process_worker *worker)
{
    return berth_list_empty(&worker->outbox) && berth_list_empty(&worker->sent) &&
           berth_list_empty(&worker->releases);
}
