/* host.c - `berth worker`: the other end of process_worker.c, in a process of its own.
 *
 * A thread worker does the work, with run threads, loader threads and a table of models as in the
 * server; this file stands between it and the socket. The main thread alone reads messages, makes
 * requests of them (host_take.c), and writes what comes back (host_answer.c); it waits for nothing
 * else, so a CANCEL is seen at once. Inputs are copied into slabs of this process, answers stay in
 * its slabs until the server has read them (RELEASE).
 *
 * It ends with its server: when the socket is closed, and by the kernel when the thread that
 * started it is gone.
 */
#include "worker/host.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define EVENTS_MAX 2
#define LATER_US 1000
#define THREADS_MAX 1024
#define ALIVE_NS_MIN BERTH_NS_PER_MS
#define ALIVE_NS_MAX (3600 * BERTH_NS_PER_S)

static int parse_fd(int argc, char **argv);
static enum berth_code host_start(struct berth_host *host, struct berth_err *err);
static enum berth_code take_hello(struct berth_host *host, struct berth_engine_env *env,
                                  struct berth_worker_options *options, struct berth_err *err);
static void host_run(struct berth_host *host);
static int look_around(struct berth_host *host, uint64_t now_ns);
static uint64_t say_alive(struct berth_host *host, uint64_t now_ns);
static bool goes_on(struct berth_host_job *job);
static void host_finish(struct berth_host *host);
static void read_server(struct berth_host *host);

int berth_worker_host_main(int argc, char **argv)
{
    struct berth_err err = {0};
    int fd = parse_fd(argc, argv);
    if (fd < 0) {
        fputs("berth worker is started by berth serve: --fd N names its socket\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct berth_host *host = berth_alloc(sizeof(*host));
    if (host == NULL) {
        return 1;
    }
    host->fd = fd;
    host->epoll_fd = -1;
    berth_list_init(&host->loads);
    berth_list_init(&host->jobs);
    berth_list_init(&host->rows);
    bool good = host_start(host, &err) == BERTH_OK;
    if (good) {
        host_run(host);
    } else if (!host->ended) {
        berth_log_err(BERTH_LOG_ERROR, "worker", 0, &err);
    }
    good = (good || host->ended) && host->fault.code == BERTH_OK && !berth_engines_lost();
    host_finish(host);
    return good ? 0 : 1;
}

static int parse_fd(int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--fd") == 0) {
            long fd = strtol(argv[i + 1], &end, 10);
            return end == argv[i + 1] || *end != '\0' || fd < 0 || fd > 1 << 20 ? -1 : (int)fd;
        }
    }
    return -1;
}

static enum berth_code host_start(struct berth_host *host, struct berth_err *err)
{
    struct berth_engine_env env = {0};
    struct berth_worker_options options = {0};
    BERTH_TRY(take_hello(host, &env, &options, err));
    BERTH_TRY(berth_queue_init(&host->replies, 0, err));
    BERTH_TRY(berth_slabs_create(
        &(struct berth_slabs_options){.bytes_budget = options.bytes_budget,
                                      .bytes_pool_max = options.bytes_budget / 8},
        &host->slabs, err));
    env.slabs = options.slabs = host->slabs;
    BERTH_TRY(berth_engines_start(&env, err));
    BERTH_TRY(berth_worker_thread_create(&options, &host->worker, err));
    host->worker->replies = &host->replies;
    host->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event from_queue = {.events = EPOLLIN | EPOLLET};
    struct epoll_event from_server = {.events = EPOLLIN, .data.ptr = host};
    if (host->epoll_fd < 0 ||
        epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, host->replies.fd, &from_queue) != 0 ||
        epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, host->fd, &from_server) != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot watch the server: %s", strerror(errno));
    }
    berth_wire_begin(&host->writer, BERTH_WIRE_READY, 0);
    berth_wire_put_text(&host->writer, BERTH_VERSION);
    berth_host_send(host);
    return BERTH_OK;
}

static enum berth_code take_hello(struct berth_host *host, struct berth_engine_env *env,
                                  struct berth_worker_options *options, struct berth_err *err)
{
    struct berth_wire_message *message = &host->message;
    enum berth_wire_result got = berth_wire_receive(host->fd, message, true);
    if (got != BERTH_WIRE_OK) {
        host->ended = got == BERTH_WIRE_ENDED;
        return berth_fail(err, BERTH_INTERNAL, "the server sent no greeting");
    }
    if (!berth_host_legal(host, BERTH_HOST_GREETING)) {
        berth_wire_close(message);
        *err = host->fault;
        return err->code;
    }
    const char *version = berth_wire_get_text(message);
    const char *device = berth_wire_get_text(message);
    options->run_threads = berth_wire_get_u32(message, THREADS_MAX);
    options->load_threads = berth_wire_get_u32(message, THREADS_MAX);
    env->threads = berth_wire_get_u32(message, THREADS_MAX);
    options->bytes_budget = berth_wire_get_u64(message);
    host->alive_ns = berth_wire_get_u64(message);
    uint32_t level = berth_wire_get_u32(message, BERTH_LOG_DEBUG);
    bool whole = berth_wire_whole(message);
    berth_wire_close(message);
    host->alive_ns = host->alive_ns < ALIVE_NS_MIN   ? ALIVE_NS_MIN
                     : host->alive_ns > ALIVE_NS_MAX ? ALIVE_NS_MAX
                                                     : host->alive_ns;
    if (!whole || version == NULL || device == NULL || strlen(device) >= sizeof(host->device)) {
        return berth_fail(err, BERTH_INTERNAL, "the server's greeting cannot be read");
    }
    if (strcmp(version, BERTH_VERSION) != 0) {
        return berth_fail(err, BERTH_INTERNAL, "the server is of version %.40s, this is "
                          BERTH_VERSION, version);
    }
    snprintf(host->device, sizeof(host->device), "%s", device);
    options->device = env->device = host->device;
    env->threads = env->threads == 0 ? 1 : env->threads;
    berth_log_set_level((enum berth_log_level)level);
    return BERTH_OK;
}

static void host_run(struct berth_host *host)
{
    struct berth_link posts;
    berth_list_init(&posts);
    while (!host->ended) {
        struct epoll_event events[EVENTS_MAX];
        struct berth_link *link;
        int count = 0;
        int wait_ms = look_around(host, berth_clock_now_ns());
        if (berth_queue_sleep(&host->replies)) {
            count = epoll_wait(host->epoll_fd, events, EVENTS_MAX, wait_ms);
            berth_queue_wake(&host->replies);
        }
        (void)berth_queue_take(&host->replies, &posts);
        while ((link = berth_list_pop(&posts)) != NULL) {
            struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
            post->deliver(post);
        }
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr != NULL) {
                read_server(host);
            }
        }
        if (berth_engines_lost() && !host->ended) { /* what is done has been sent */
            berth_log_error("worker", 0, "the device is lost to this process, which ends device=%s",
                            host->device);
            (void)shutdown(host->fd, SHUT_RDWR); /* to end what runs may take long */
            host->ended = true;
        }
    }
}

/* Returns how long until that is due again; -1: nothing will be. */
static int look_around(struct berth_host *host, uint64_t now_ns)
{
    uint64_t t_alive_ns = say_alive(host, now_ns);
    uint64_t t_held_ns = berth_host_look_at_held(host, now_ns);
    uint64_t t_next_ns = t_alive_ns < t_held_ns ? t_alive_ns : t_held_ns;
    if (t_next_ns == UINT64_MAX) {
        return -1;
    }
    uint64_t wait_ms = t_next_ns > now_ns ? (t_next_ns - now_ns) / BERTH_NS_PER_MS + 1 : 0;
    return wait_ms < INT_MAX ? (int)wait_ms : INT_MAX;
}

/* P12: for each load and unload whose thread has had CPU time since, or that no thread has begun.
 * Returns when to look next; UINT64_MAX: there is none to look at. */
static uint64_t say_alive(struct berth_host *host, uint64_t now_ns)
{
    bool any = false;
    bool due = now_ns >= host->t_alive_ns;
    BERTH_LIST_EACH(link, &host->jobs) {
        struct berth_host_job *job = BERTH_CONTAINER_OF(link, struct berth_host_job, link);
        if (job->state != BERTH_HOST_OUT || job->msg.kind == BERTH_WORKER_RUN ||
            job->msg.kind == BERTH_WORKER_STEP) {
            continue;
        }
        any = true;
        if (due && goes_on(job)) {
            berth_wire_begin(&host->writer, BERTH_WIRE_ALIVE, job->id);
            berth_host_send(host);
        }
    }
    if (due && any) {
        host->t_alive_ns = now_ns + host->alive_ns;
    }
    return any ? host->t_alive_ns : UINT64_MAX;
}

/* A thread that reads a slow disk has some CPU time with each piece of it; one that waits for what
 * never comes has none. */
static bool goes_on(struct berth_host_job *job)
{
    clockid_t clock = atomic_load_explicit(&job->msg.clock, memory_order_relaxed);
    struct timespec time = {0};
    if (clock == 0 || clock_gettime(clock, &time) != 0) {
        return true;
    }
    uint64_t cpu_ns = (uint64_t)time.tv_sec * BERTH_NS_PER_S + (uint64_t)time.tv_nsec;
    bool goes_on = cpu_ns != job->cpu_ns;
    job->cpu_ns = cpu_ns;
    return goes_on;
}

/* What runs is cancelled and comes back; nobody is told. */
static void host_finish(struct berth_host *host)
{
    struct berth_link posts;
    struct berth_link *link;
    host->ended = true;
    BERTH_LIST_EACH(at, &host->rows) {
        struct berth_host_row *row = BERTH_CONTAINER_OF(at, struct berth_host_row, link);
        atomic_store(&row->request->cancelled, true);
    }
    BERTH_LIST_EACH(at, &host->jobs) {
        atomic_store(&BERTH_CONTAINER_OF(at, struct berth_host_job, link)->msg.unwanted, true);
    }
    berth_worker_destroy(host->worker);
    host->worker = NULL;
    berth_list_init(&posts);
    if (host->replies.fd > 0) {
        (void)berth_queue_take(&host->replies, &posts);
    }
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
    while (!berth_list_empty(&host->jobs)) {
        berth_host_job_destroy(BERTH_CONTAINER_OF(host->jobs.next, struct berth_host_job, link));
    }
    while (!berth_list_empty(&host->rows)) {
        berth_host_row_destroy(BERTH_CONTAINER_OF(host->rows.next, struct berth_host_row, link));
    }
    while (!berth_list_empty(&host->loads)) {
        berth_host_load_destroy(
            BERTH_CONTAINER_OF(host->loads.next, struct berth_host_load, link));
    }
    berth_engines_finish();
    berth_slabs_destroy(host->slabs);
    berth_queue_finish(&host->replies);
    if (host->epoll_fd >= 0) {
        close(host->epoll_fd);
    }
    close(host->fd);
    berth_free(host);
}

static void read_server(struct berth_host *host)
{
    while (!host->ended) {
        enum berth_wire_result got = berth_wire_receive(host->fd, &host->message, false);
        if (got == BERTH_WIRE_AGAIN) {
            return;
        }
        host->ended = got != BERTH_WIRE_OK;
        if (got == BERTH_WIRE_BAD) {
            (void)berth_fail(&host->fault, BERTH_INVALID,
                             "the server sent what is no message of this protocol");
        }
        if (!host->ended) {
            berth_host_take(host);
            berth_wire_close(&host->message);
        }
        if (host->fault.code != BERTH_OK) {
            berth_log_err(BERTH_LOG_ERROR, "worker", 0, &host->fault);
            host->ended = true;
        }
    }
}

/* Waits for room: the server always reads. What is told LATER is tried again in a moment. */
void berth_host_send(struct berth_host *host)
{
    enum berth_wire_result result = BERTH_WIRE_LATER;
    while (!host->ended && result == BERTH_WIRE_LATER) {
        result = berth_wire_send(host->fd, &host->writer, true);
        if (result == BERTH_WIRE_LATER) {
            usleep(LATER_US);
        } else if (result != BERTH_WIRE_OK) {
            host->ended = true;
        }
    }
}

void berth_host_job_destroy(struct berth_host_job *job)
{
    for (size_t i = 0; i < job->msg.batch.row_count; i++) {
        berth_part_destroy(job->rows[i].part);
    }
    for (size_t i = 0; job->step != NULL && i < job->step->event_count; i++) {
        berth_part_destroy(job->step->events[i].part);
    }
    berth_list_remove(&job->link);
    berth_spec_release(job->msg.spec);
    berth_model_release(job->model);
    berth_free(job->step);
    berth_free(job->drops);
    berth_free(job->rows);
    berth_free(job->hosted);
    berth_free(job->index);
    berth_free(job);
}

void berth_host_row_destroy(struct berth_host_row *row)
{
    berth_list_remove(&row->link);
    berth_request_release(row->request);
    berth_free(row);
}
