/* media.c - the thread that hands jobs to lanes and brings them back.
 *
 * One thread owns the waiting jobs, the lanes and the decode processes. It sleeps in epoll on its
 * queue and on the processes' sockets, and looks at cancellations and time limits every TICK_MS
 * while there are jobs. What a direct decoder takes (PCM WAV) goes to a thread lane, so that a
 * long decode never holds it up; everything else goes to a process, in the order of arrival.
 *
 * A job is refused at submit when too many wait: nothing is queued without a bound.
 */
#include "media/media.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "media/lane.h"

#define TICK_MS 20
#define TICK_MS_REAP 2     /* while a killed process is not yet gone */
#define TICK_MS_START 100  /* while one is down or starting */
#define DIRECT_THREADS 2
#define EVENTS_MAX 32
#define STARTS_MAX 3       /* failed in a row by every process: waiting jobs are told */
#define RETRY_MS_MIN 100
#define RETRY_MS_MAX 60000
#define JOBS_PER_CPU_LIMIT 256 /* as many jobs as one process serves */

struct berth_media {
    struct berth_media_options options;
    struct berth_lane_env env;
    struct berth_queue queue;    /* submitted jobs */
    pthread_t thread;
    bool has_thread;
    atomic_bool stops;
    _Atomic uint64_t outstanding; /* submitted and not yet back */
    _Atomic uint64_t decode_ns;   /* of recent jobs, smoothed */
    /* The media thread's own. */
    struct berth_link waiting_direct;
    struct berth_link waiting;
    struct berth_thread_lane *thread_lanes;
    size_t thread_lane_count;
    struct berth_process_lane *process_lanes;
    size_t process_lane_count;
};

static bool needs_processes(const struct berth_media *media);
static enum berth_code init_lanes(struct berth_media *media, struct berth_err *err);
static void *run(void *argument);
static void sort_in(struct berth_media *media);
static void pass_time(struct berth_media *media, uint64_t now_ns);
static void drop_unwanted(struct berth_media *media, struct berth_link *waiting, uint64_t now_ns);
static void hand_out(struct berth_media *media, uint64_t now_ns);
static void give_up_starting(struct berth_media *media);
static bool bring_back(struct berth_media *media);
static void complete(struct berth_media *media, struct berth_media_job *job);
static int wait_ms(const struct berth_media *media);
static void wait_for_work(struct berth_media *media);
static void stop_all(struct berth_media *media);
static void fail_all(struct berth_media *media, struct berth_link *waiting,
                     const struct berth_err *err);
static struct berth_media_job *job_of(struct berth_link *link);
static uint32_t retry_ms(struct berth_media *media, uint64_t outstanding);

enum berth_code berth_media_create(const struct berth_media_options *options,
                                   struct berth_media **out, struct berth_err *err)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    struct berth_media *media = berth_alloc(sizeof(*media));
    if (media == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the decoders");
    }
    media->options = *options;
    media->env.epoll_fd = -1;
    berth_list_init(&media->waiting);
    berth_list_init(&media->waiting_direct);
    enum berth_code code = berth_queue_init(&media->queue, 0, err);
    if (code != BERTH_OK) {
        berth_free(media);
        return code;
    }
    media->env.slabs = options->slabs;
    media->env.queue = &media->queue;
    media->env.timeout_ns = options->timeout_ns;
    media->env.decoders = berth_decoders;
    media->env.process.program = options->program;
    media->env.process.memory_max = options->memory_max;
    media->env.process.cpu_s_max =
        (options->timeout_ns / BERTH_NS_PER_S + 1) * JOBS_PER_CPU_LIMIT + 60;
    media->env.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (media->env.epoll_fd < 0 ||
        epoll_ctl(media->env.epoll_fd, EPOLL_CTL_ADD, media->queue.fd, &event) != 0) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot watch the decoders: %s",
                          strerror(errno));
        goto out;
    }
    code = init_lanes(media, err);
    if (code == BERTH_OK && pthread_create(&media->thread, NULL, run, media) != 0) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot start the media thread");
    }
    if (code == BERTH_OK) {
        media->has_thread = true;
        *out = media;
        media = NULL;
    }
out:
    berth_media_destroy(media);
    return code;
}

void berth_media_destroy(struct berth_media *media)
{
    if (media == NULL) {
        return;
    }
    if (media->has_thread) {
        atomic_store(&media->stops, true);
        berth_queue_nudge(&media->queue);
        pthread_join(media->thread, NULL);
    }
    for (size_t i = 0; i < media->thread_lane_count; i++) {
        berth_thread_lane_finish(&media->thread_lanes[i]);
    }
    berth_free(media->thread_lanes);
    berth_free(media->process_lanes);
    if (media->env.epoll_fd >= 0) {
        close(media->env.epoll_fd);
    }
    berth_queue_finish(&media->queue);
    berth_free(media);
}

enum berth_code berth_media_submit(struct berth_media *media, struct berth_media_job *job,
                                   struct berth_err *err)
{
    if (job->rate < BERTH_PCM_RATE_MIN || job->rate > BERTH_PCM_RATE_MAX ||
        !(job->seconds_max > 0)) {
        return berth_fail(err, BERTH_INVALID, "a rate of %u Hz, at most %g s of audio", job->rate,
                          job->seconds_max);
    }
    uint64_t most = media->options.queue_max + media->options.processes;
    uint64_t outstanding = atomic_fetch_add(&media->outstanding, 1);
    if (outstanding >= most) {
        atomic_fetch_sub(&media->outstanding, 1);
        enum berth_code code =
            berth_fail(err, BERTH_BUSY, "%llu files are being decoded or wait for it",
                       (unsigned long long)outstanding);
        if (err != NULL) {
            err->retry_after_ms = retry_ms(media, outstanding);
        }
        return code;
    }
    job->err = (struct berth_err){0};
    job->out = (struct berth_range){0};
    job->frame_count = 0;
    job->seconds = 0;
    job->decode_ns = 0; /* the start of its decoding, until the job is back */
    berth_queue_post(&media->queue, &job->post.link);
    return BERTH_OK;
}

void berth_media_stats(struct berth_media *media, struct berth_media_stats *out)
{
    const struct berth_media_counters *counters = &media->env.counters;
    *out = (struct berth_media_stats){
        .jobs = atomic_load(&counters->jobs),
        .failed = atomic_load(&counters->failed),
        .killed_timeout = atomic_load(&counters->killed_timeout),
        .killed_memory = atomic_load(&counters->killed_memory),
        .crashed = atomic_load(&counters->crashed),
        .direct = atomic_load(&counters->direct),
    };
}

/* A build whose decoders are all direct starts no process. */
static bool needs_processes(const struct berth_media *media)
{
    const struct berth_decoder_ops *const *decoders = media->env.decoders;
    for (size_t i = 0; decoders[i] != NULL; i++) {
        if (!decoders[i]->direct) {
            return !media->options.in_process;
        }
    }
    return false;
}

static enum berth_code init_lanes(struct berth_media *media, struct berth_err *err)
{
    size_t process_count = needs_processes(media) ? media->options.processes : 0;
    size_t thread_count = media->options.in_process ? media->options.processes : DIRECT_THREADS;
    const struct berth_decoder_ops *const *decoders = media->env.decoders;
    media->process_lanes = berth_alloc((process_count + 1) * sizeof(*media->process_lanes));
    media->thread_lanes = berth_alloc((thread_count + 1) * sizeof(*media->thread_lanes));
    if (media->process_lanes == NULL || media->thread_lanes == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the decoders");
    }
    for (size_t i = 0; media->options.in_process && decoders[i] != NULL; i++) {
        if (decoders[i]->prepare != NULL) {
            decoders[i]->prepare(0);
        }
    }
    for (size_t i = 0; i < process_count; i++) {
        berth_process_lane_init(&media->process_lanes[i], &media->env);
    }
    media->process_lane_count = process_count;
    for (size_t i = 0; i < thread_count; i++) {
        BERTH_TRY(berth_thread_lane_init(&media->thread_lanes[i], &media->env, err));
        media->thread_lane_count = i + 1;
    }
    return BERTH_OK;
}

static void *run(void *argument)
{
    struct berth_media *media = argument;
    while (!atomic_load(&media->stops)) {
        uint64_t now_ns = berth_clock_now_ns();
        sort_in(media);
        pass_time(media, now_ns);
        bool is_back = bring_back(media);
        hand_out(media, now_ns);
        if (!is_back && !bring_back(media)) {
            wait_for_work(media);
        }
    }
    stop_all(media);
    return NULL;
}

/* New jobs go to the list of the lane that fits. */
static void sort_in(struct berth_media *media)
{
    struct berth_link taken;
    berth_list_init(&taken);
    berth_queue_take(&media->queue, &taken);
    for (struct berth_link *link = berth_list_pop(&taken); link != NULL;
         link = berth_list_pop(&taken)) {
        struct berth_media_job *job = job_of(link);
        struct berth_media_input input = {
            .bytes = berth_slabs_pointer(media->env.slabs, &job->in),
            .length = job->in.length,
        };
        if (input.bytes == NULL) {
            input.length = 0;
        }
        const struct berth_decoder_ops *decoder =
            berth_decoder_find(media->env.decoders, &input);
        bool is_direct = media->process_lane_count == 0 || decoder == NULL || decoder->direct;
        if (is_direct && !media->options.in_process) {
            atomic_fetch_add(&media->env.counters.direct, 1);
        }
        berth_list_append(is_direct ? &media->waiting_direct : &media->waiting, link);
    }
}

static void pass_time(struct berth_media *media, uint64_t now_ns)
{
    for (size_t i = 0; i < media->process_lane_count; i++) {
        berth_process_lane_tick(&media->process_lanes[i], now_ns);
    }
    drop_unwanted(media, &media->waiting_direct, now_ns);
    drop_unwanted(media, &media->waiting, now_ns);
}

static void drop_unwanted(struct berth_media *media, struct berth_link *waiting, uint64_t now_ns)
{
    BERTH_LIST_EACH_SAFE(link, waiting) {
        struct berth_media_job *job = job_of(link);
        if (berth_media_job_judge(job, now_ns, &job->err) != BERTH_OK) {
            berth_list_remove(link);
            complete(media, job);
        }
    }
}

static void hand_out(struct berth_media *media, uint64_t now_ns)
{
    for (size_t i = 0; i < media->thread_lane_count; i++) {
        struct berth_thread_lane *lane = &media->thread_lanes[i];
        if (lane->job == NULL && !berth_list_empty(&media->waiting_direct)) {
            struct berth_media_job *job = job_of(berth_list_pop(&media->waiting_direct));
            job->decode_ns = now_ns;
            berth_thread_lane_begin(lane, job);
        }
    }
    for (size_t i = 0; i < media->process_lane_count; i++) {
        struct berth_process_lane *lane = &media->process_lanes[i];
        if (!berth_process_lane_is_free(lane) || berth_list_empty(&media->waiting)) {
            continue;
        }
        struct berth_link *first = media->waiting.next;
        berth_list_remove(first);
        job_of(first)->decode_ns = now_ns;
        if (!berth_process_lane_begin(lane, job_of(first), now_ns)) {
            berth_list_insert_before(media->waiting.next, first); /* stays the first */
        }
    }
    give_up_starting(media);
}

/* Nobody waits for processes that do not start. */
static void give_up_starting(struct berth_media *media)
{
    if (berth_list_empty(&media->waiting)) {
        return;
    }
    for (size_t i = 0; i < media->process_lane_count; i++) {
        if (media->process_lanes[i].process.child.failed_in_row < STARTS_MAX) {
            return;
        }
    }
    struct berth_err err = {0};
    berth_fail(&err, BERTH_UNAVAILABLE, "decode processes do not start: %s",
               media->process_lanes[0].process.start_message);
    err.retry_after_ms = RETRY_MS_MAX / 2;
    fail_all(media, &media->waiting, &err);
}

/* Whether any lane had a job to bring. */
static bool bring_back(struct berth_media *media)
{
    bool is_any = false;
    for (size_t i = 0; i < media->thread_lane_count; i++) {
        struct berth_media_job *job = berth_thread_lane_take(&media->thread_lanes[i]);
        if (job != NULL) {
            complete(media, job);
            is_any = true;
        }
    }
    for (size_t i = 0; i < media->process_lane_count; i++) {
        struct berth_media_job *job = berth_process_lane_take(&media->process_lanes[i]);
        if (job != NULL) {
            complete(media, job);
            is_any = true;
        }
    }
    return is_any;
}

/* The job is the receiver's from here on. */
static void complete(struct berth_media *media, struct berth_media_job *job)
{
    if (job->decode_ns != 0) {
        uint64_t smoothed = atomic_load_explicit(&media->decode_ns, memory_order_relaxed);
        job->decode_ns = berth_clock_now_ns() - job->decode_ns;
        atomic_store_explicit(&media->decode_ns, smoothed - smoothed / 8 + job->decode_ns / 8,
                              memory_order_relaxed);
    }
    atomic_fetch_add(&media->env.counters.jobs, 1);
    if (job->err.code != BERTH_OK) {
        atomic_fetch_add(&media->env.counters.failed, 1);
    }
    atomic_fetch_sub(&media->outstanding, 1);
    berth_queue_post(job->reply, &job->post.link);
}

static int wait_ms(const struct berth_media *media)
{
    int most = atomic_load(&media->outstanding) > 0 ? TICK_MS : -1;
    for (size_t i = 0; i < media->process_lane_count; i++) {
        enum berth_child_state state = media->process_lanes[i].process.child.state;
        if (state == BERTH_CHILD_DYING) {
            return TICK_MS_REAP;
        }
        if (state != BERTH_CHILD_UP && most < 0) {
            most = TICK_MS_START;
        }
    }
    return most;
}

static void wait_for_work(struct berth_media *media)
{
    struct epoll_event events[EVENTS_MAX];
    if (!berth_queue_sleep(&media->queue)) {
        return;
    }
    int count = atomic_load(&media->stops)
                    ? 0
                    : epoll_wait(media->env.epoll_fd, events, EVENTS_MAX, wait_ms(media));
    berth_queue_wake(&media->queue);
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr != NULL) {
            berth_process_lane_readable(events[i].data.ptr);
        }
    }
}

/* Every job comes back, then every process is gone. */
static void stop_all(struct berth_media *media)
{
    struct berth_err err = {0};
    berth_fail(&err, BERTH_UNAVAILABLE, "the server is stopping");
    sort_in(media);
    fail_all(media, &media->waiting_direct, &err);
    fail_all(media, &media->waiting, &err);
    for (size_t i = 0; i < media->thread_lane_count; i++) {
        berth_thread_lane_stop(&media->thread_lanes[i]);
    }
    for (size_t i = 0; i < media->process_lane_count; i++) {
        berth_process_lane_stop(&media->process_lanes[i]);
    }
    for (size_t i = 0; i < media->process_lane_count; i++) {
        berth_process_lane_finish(&media->process_lanes[i]);
    }
    while (atomic_load(&media->outstanding) > 0) {
        if (!bring_back(media)) {
            berth_queue_wait(&media->queue, berth_clock_now_ns() + TICK_MS * BERTH_NS_PER_MS);
        }
    }
}

static void fail_all(struct berth_media *media, struct berth_link *waiting,
                     const struct berth_err *err)
{
    for (struct berth_link *link = berth_list_pop(waiting); link != NULL;
         link = berth_list_pop(waiting)) {
        struct berth_media_job *job = job_of(link);
        job->err = *err;
        complete(media, job);
    }
}

static struct berth_media_job *job_of(struct berth_link *link)
{
    return BERTH_CONTAINER_OF(link, struct berth_media_job, post.link);
}

/* When the jobs before this one will be done. */
static uint32_t retry_ms(struct berth_media *media, uint64_t outstanding)
{
    uint64_t each_ns = atomic_load_explicit(&media->decode_ns, memory_order_relaxed);
    uint64_t all_ms = each_ns * outstanding / (media->options.processes + 1) / BERTH_NS_PER_MS;
    all_ms = all_ms < RETRY_MS_MIN ? RETRY_MS_MIN : all_ms;
    return (uint32_t)(all_ms < RETRY_MS_MAX ? all_ms : RETRY_MS_MAX);
}
