/* thread_lane.c - decoding on a thread of the server: PCM WAV always, everything on request.
 *
 * Also what both kinds of lane do with a job's output range and its limits.
 */
#include "media/lane.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define COMMON_BYTES_MAX (4 << 20) /* smaller outputs come from common, warm memory */

struct thread_pcm {
    struct berth_pcm pcm;
    struct berth_thread_lane *lane;
    uint64_t t_end_ns;
};

static void *run(void *argument);
static void work(struct berth_thread_lane *lane, struct berth_media_job *job);
static enum berth_code take_room(struct berth_pcm *pcm, uint64_t capacity, struct berth_err *err);
static enum berth_code poll_limits(struct berth_pcm *pcm, struct berth_err *err);

static const struct berth_pcm_ops thread_ops = {.room = take_room, .poll = poll_limits};

enum berth_code berth_thread_lane_init(struct berth_thread_lane *lane, struct berth_lane_env *env,
                                       struct berth_err *err)
{
    lane->env = env;
    BERTH_TRY(berth_queue_init(&lane->inbox, 0, err));
    if (pthread_create(&lane->thread, NULL, run, lane) != 0) {
        berth_queue_finish(&lane->inbox);
        lane->env = NULL;
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot start a decode thread");
    }
    lane->has_thread = true;
    return BERTH_OK;
}

void berth_thread_lane_finish(struct berth_thread_lane *lane)
{
    if (!lane->has_thread) {
        return;
    }
    berth_thread_lane_stop(lane);
    pthread_join(lane->thread, NULL);
    berth_queue_finish(&lane->inbox);
    lane->has_thread = false;
}

void berth_thread_lane_begin(struct berth_thread_lane *lane, struct berth_media_job *job)
{
    BERTH_ASSERT(lane->job == NULL);
    lane->job = job;
    atomic_store(&lane->is_done, false);
    berth_queue_post(&lane->inbox, &job->post.link);
}

void berth_thread_lane_stop(struct berth_thread_lane *lane)
{
    atomic_store(&lane->stops, true);
    berth_queue_nudge(&lane->inbox);
}

struct berth_media_job *berth_thread_lane_take(struct berth_thread_lane *lane)
{
    struct berth_media_job *job = lane->job;
    if (job == NULL || !atomic_load(&lane->is_done)) {
        return NULL;
    }
    lane->job = NULL;
    return job;
}

enum berth_code berth_media_job_judge(const struct berth_media_job *job, uint64_t now_ns,
                                      struct berth_err *err)
{
    if (job->cancelled != NULL && atomic_load_explicit(job->cancelled, memory_order_relaxed)) {
        return berth_fail(err, BERTH_CANCELLED, "cancelled while decoding");
    }
    if (job->t_deadline_ns != 0 && now_ns >= job->t_deadline_ns) {
        return berth_fail(err, BERTH_DEADLINE, "the deadline passed while decoding");
    }
    return BERTH_OK;
}

enum berth_code berth_media_job_room(struct berth_slabs *slabs, struct berth_media_job *job,
                                     uint64_t frames, struct berth_err *err)
{
    size_t bytes = 0;
    if (!berth_mul_size((size_t)frames, sizeof(float), &bytes)) {
        return berth_fail(err, BERTH_TOO_LARGE, "more audio than memory can hold");
    }
    if (job->out.slab != 0) {
        return berth_slabs_resize(slabs, &job->out, bytes, err);
    }
    return berth_slabs_take_private(slabs, bytes, &job->out, err);
}

void berth_media_job_end(struct berth_slabs *slabs, struct berth_media_job *job, uint64_t frames)
{
    struct berth_err err = {0};
    if (job->err.code == BERTH_OK && frames == 0) { /* M9, whatever a decode process says */
        berth_fail_field(&job->err, BERTH_INVALID, "file",
                         "no audio: there is not one sample in the recording");
    }
    if (job->err.code != BERTH_OK) {
        berth_slabs_give(slabs, &job->out);
        frames = 0;
    } else if (frames * sizeof(float) < job->out.length &&
               berth_slabs_resize(slabs, &job->out, (size_t)frames * sizeof(float), &err) !=
                   BERTH_OK) {
        job->err = err;
        berth_slabs_give(slabs, &job->out);
        frames = 0;
    }
    job->frame_count = frames;
    job->seconds = (double)frames / job->rate;
}

static void *run(void *argument)
{
    struct berth_thread_lane *lane = argument;
    struct berth_link taken;
    berth_list_init(&taken);
    for (;;) {
        if (!berth_queue_take(&lane->inbox, &taken)) {
            if (atomic_load(&lane->stops)) {
                return NULL;
            }
            berth_queue_wait(&lane->inbox, 0);
            continue;
        }
        struct berth_link *link = berth_list_pop(&taken);
        work(lane, BERTH_CONTAINER_OF(link, struct berth_media_job, post.link));
        atomic_store(&lane->is_done, true);
        berth_queue_nudge(lane->env->queue);
    }
}

static void work(struct berth_thread_lane *lane, struct berth_media_job *job)
{
    struct thread_pcm made = {
        .lane = lane,
        .t_end_ns = berth_clock_now_ns() + lane->env->timeout_ns,
    };
    struct berth_media_input input = {
        .bytes = berth_slabs_pointer(lane->env->slabs, &job->in),
        .length = job->in.length,
    };
    if (input.bytes == NULL) {
        input.length = 0;
    }
    berth_pcm_init(&made.pcm, &thread_ops, job->rate, job->seconds_max);
    if (berth_decoder_run(lane->env->decoders, &input, &made.pcm, &job->err) == BERTH_OK) {
        job->err.code = BERTH_OK;
    }
    berth_media_job_end(lane->env->slabs, job, made.pcm.count);
}

/* A small output is taken at once and whole; a larger one must be able to grow in place. */
static enum berth_code take_room(struct berth_pcm *pcm, uint64_t capacity, struct berth_err *err)
{
    struct thread_pcm *made = BERTH_CONTAINER_OF(pcm, struct thread_pcm, pcm);
    struct berth_slabs *slabs = made->lane->env->slabs;
    struct berth_media_job *job = made->lane->job;
    if (job->out.slab == 0 && capacity * sizeof(float) <= COMMON_BYTES_MAX) {
        BERTH_TRY(berth_slabs_take(slabs, (size_t)capacity * sizeof(float), &job->out, err));
    } else {
        BERTH_TRY(berth_media_job_room(slabs, job, capacity, err));
    }
    pcm->frames = berth_slabs_pointer(slabs, &job->out);
    pcm->capacity = capacity;
    return BERTH_OK;
}

static enum berth_code poll_limits(struct berth_pcm *pcm, struct berth_err *err)
{
    struct thread_pcm *made = BERTH_CONTAINER_OF(pcm, struct thread_pcm, pcm);
    struct berth_thread_lane *lane = made->lane;
    uint64_t now_ns = berth_clock_now_ns();
    if (atomic_load_explicit(&lane->stops, memory_order_relaxed)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "the server is stopping");
    }
    BERTH_TRY(berth_media_job_judge(lane->job, now_ns, err));
    if (now_ns >= made->t_end_ns) {
        atomic_fetch_add(&lane->env->counters.killed_timeout, 1);
        return berth_fail_field(err, BERTH_MEDIA, "file", "took longer than %.1f s to decode",
                                (double)lane->env->timeout_ns / 1e9);
    }
    return BERTH_OK;
}
