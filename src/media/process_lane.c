/* process_lane.c - one job at a time in a decode process, which is never trusted.
 *
 * The process gets two descriptors: the input, reopened read-only, and the output, which grows as
 * it asks for room and the budget has it. While a killed process is not yet reaped, the job's
 * ranges are still its own: the job ends only then.
 */
#include "media/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define START_NS_MAX (10 * BERTH_NS_PER_S)
#define JOBS_PER_PROCESS 256 /* then a fresh one: what leaks, leaks no further */
#define MESSAGES_AT_ONCE 8

static void start(struct berth_process_lane *lane, uint64_t now_ns);
static bool send_job(struct berth_process_lane *lane, int in_fd, uint64_t offset);
static enum berth_code open_input(struct berth_process_lane *lane, int *fd_out,
                                  uint64_t *offset_out, struct berth_err *err);
static void watch(struct berth_process_lane *lane, uint64_t now_ns);
static void reaped(struct berth_process_lane *lane);
static void read_message(struct berth_process_lane *lane, const struct berth_say_message *message);
static void give_room(struct berth_process_lane *lane, uint64_t frames);
static void finish_job(struct berth_process_lane *lane, const struct berth_say_message *done);
static void end_job(struct berth_process_lane *lane, uint64_t frames);

void berth_process_lane_init(struct berth_process_lane *lane, struct berth_lane_env *env)
{
    *lane = (struct berth_process_lane){.env = env};
    berth_process_init(&lane->process);
}

void berth_process_lane_finish(struct berth_process_lane *lane)
{
    if (lane->env == NULL) {
        return;
    }
    berth_child_finish(&lane->process.child);
    if (lane->job != NULL && !lane->is_done) {
        lane->job->err = lane->verdict;
        end_job(lane, 0);
    }
}

bool berth_process_lane_is_free(const struct berth_process_lane *lane)
{
    return lane->job == NULL && lane->process.child.state == BERTH_CHILD_UP;
}

bool berth_process_lane_begin(struct berth_process_lane *lane, struct berth_media_job *job,
                              uint64_t now_ns)
{
    int in_fd = -1;
    uint64_t offset = 0;
    lane->job = job;
    lane->is_done = false;
    lane->verdict = (struct berth_err){0};
    lane->seconds_expected = -1;
    lane->t_begin_ns = now_ns;
    if (open_input(lane, &in_fd, &offset, &job->err) != BERTH_OK) {
        end_job(lane, 0);
        return true;
    }
    bool is_sent = send_job(lane, in_fd, offset);
    close(in_fd);
    if (!is_sent) {
        berth_slabs_give(lane->env->slabs, &lane->copy);
        lane->job = NULL;
        berth_process_kill(&lane->process);
    }
    return is_sent;
}

void berth_process_lane_tick(struct berth_process_lane *lane, uint64_t now_ns)
{
    switch (lane->process.child.state) {
    case BERTH_CHILD_DOWN:
        if (now_ns >= lane->process.child.t_start_ns) {
            start(lane, now_ns);
        }
        break;
    case BERTH_CHILD_STARTING:
        if (now_ns - lane->process.child.t_state_ns > START_NS_MAX) {
            berth_process_kill(&lane->process);
        }
        break;
    case BERTH_CHILD_UP:
        watch(lane, now_ns);
        break;
    case BERTH_CHILD_LEAVING:
    case BERTH_CHILD_DYING:
        if (berth_child_reap(&lane->process.child, now_ns)) {
            reaped(lane);
        }
        break;
    }
}

void berth_process_lane_readable(struct berth_process_lane *lane)
{
    struct berth_say_message raw, message;
    struct berth_err err = {0};
    for (int i = 0; i < MESSAGES_AT_ONCE && lane->process.child.fd >= 0; i++) {
        /* Without room for control data: descriptors it may send are closed by the kernel. */
        ssize_t got = recv(lane->process.child.fd, &raw, sizeof(raw), MSG_DONTWAIT | MSG_TRUNC);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (got <= 0) {
            berth_process_kill(&lane->process); /* it has ended; reaped() sees how */
            return;
        }
        if (berth_talk_accept(&lane->process.talk, &raw, (size_t)got, &message, &err) !=
            BERTH_OK) {
            berth_log_warn("media", 0, "a decode process misbehaves: %s", err.msg);
            berth_process_kill(&lane->process);
            return;
        }
        read_message(lane, &message);
    }
}

void berth_process_lane_stop(struct berth_process_lane *lane)
{
    if (lane->job != NULL && lane->verdict.code == BERTH_OK) {
        berth_fail(&lane->verdict, BERTH_UNAVAILABLE, "the server is stopping");
    }
    berth_process_kill(&lane->process);
}

struct berth_media_job *berth_process_lane_take(struct berth_process_lane *lane)
{
    struct berth_media_job *job = lane->is_done ? lane->job : NULL;
    if (job != NULL) {
        lane->job = NULL;
        lane->is_done = false;
    }
    return job;
}

static void start(struct berth_process_lane *lane, uint64_t now_ns)
{
    struct berth_process *process = &lane->process;
    struct berth_err err = {0};
    if (berth_process_start(process, &lane->env->process, now_ns, &err) != BERTH_OK) {
        snprintf(process->start_message, sizeof(process->start_message), "%.191s", err.msg);
        berth_log_err(BERTH_LOG_WARN, "media", 0, &err);
        return;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = lane};
    process->child.epoll_fd = lane->env->epoll_fd;
    if (epoll_ctl(lane->env->epoll_fd, EPOLL_CTL_ADD, process->child.fd, &event) != 0) {
        berth_process_kill(&lane->process);
    }
}

static bool send_job(struct berth_process_lane *lane, int in_fd, uint64_t offset)
{
    const struct berth_media_job *job = lane->job;
    lane->job_number++;
    struct berth_say_message message = {
        .magic = BERTH_PROTOCOL_MAGIC,
        .say = BERTH_SAY_JOB,
        .job = lane->job_number,
        .offset = offset,
        .length = job->in.length,
        .seconds_max = job->seconds_max,
        .rate = job->rate,
    };
    uint64_t frames_max = berth_pcm_frames_max(job->rate, job->seconds_max) + BERTH_PCM_BLOCK;
    berth_talk_begin(&lane->process.talk, lane->job_number, frames_max);
    return berth_say_send(lane->process.child.fd, &message, in_fd, false);
}

/* A descriptor that shows this request's bytes and no others, and cannot change them. */
static enum berth_code open_input(struct berth_process_lane *lane, int *fd_out,
                                  uint64_t *offset_out, struct berth_err *err)
{
    struct berth_slabs *slabs = lane->env->slabs;
    struct berth_range range = lane->job->in;
    char path[40];
    if (!berth_range_private(&range)) {
        BERTH_TRY(berth_slabs_take_private(slabs, (size_t)range.length, &lane->copy, err));
        memcpy(berth_slabs_pointer(slabs, &lane->copy), berth_slabs_pointer(slabs, &range),
               range.length);
        range = lane->copy;
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", berth_slabs_fd(slabs, &range));
    *fd_out = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd_out < 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot open the input for a decode process: %s",
                          strerror(errno));
    }
    *offset_out = range.offset;
    return BERTH_OK;
}

/* A process that is up: ends it when its job is not wanted any more or takes too long. */
static void watch(struct berth_process_lane *lane, uint64_t now_ns)
{
    if (lane->job == NULL || lane->is_done) {
        return;
    }
    if (berth_media_job_judge(lane->job, now_ns, &lane->verdict) != BERTH_OK) {
        berth_process_kill(&lane->process);
    } else if (now_ns - lane->t_begin_ns >= lane->env->timeout_ns) {
        berth_fail_field(&lane->verdict, BERTH_MEDIA, "file", "took longer than %.1f s to decode",
                         (double)lane->env->timeout_ns / 1e9);
        atomic_fetch_add(&lane->env->counters.killed_timeout, 1);
        berth_process_kill(&lane->process);
    }
}

/* The process is gone for good. */
static void reaped(struct berth_process_lane *lane)
{
    const char *ending = lane->process.child.ending;
    if (!lane->process.child.was_ready) {
        if (lane->process.start_message[0] == '\0') {
            snprintf(lane->process.start_message, sizeof(lane->process.start_message),
                     "ended before it was ready: %s", ending);
        }
        berth_log_warn("media", 0, "a decode process does not start: %s",
                       lane->process.start_message);
    }
    if (lane->job == NULL || lane->is_done) {
        return;
    }
    if (lane->verdict.code == BERTH_OK) {
        atomic_fetch_add(&lane->env->counters.crashed, 1);
        berth_fail_field(&lane->verdict, BERTH_MEDIA, "file",
                         "the decoder failed on this file: %s", ending);
    }
    lane->job->err = lane->verdict;
    end_job(lane, 0);
}

static void read_message(struct berth_process_lane *lane, const struct berth_say_message *message)
{
    struct berth_process *process = &lane->process;
    switch ((enum berth_say)message->say) {
    case BERTH_SAY_READY:
        berth_process_ready(process);
        break;
    case BERTH_SAY_FOUND:
        if (message->frames != UINT64_MAX) {
            lane->seconds_expected = (double)message->frames / lane->job->rate;
        }
        berth_log_debug("media", 0, "found format=\"%s\" rate=%u channels=%u seconds=%.1f",
                        message->text, message->rate, message->channel_count,
                        lane->seconds_expected);
        break;
    case BERTH_SAY_ROOM:
        give_room(lane, message->frames);
        break;
    case BERTH_SAY_DONE:
        if (process->child.state == BERTH_CHILD_STARTING) {
            memcpy(process->start_message, message->text, sizeof(process->start_message));
            berth_process_kill(&lane->process);
        } else {
            finish_job(lane, message);
        }
        break;
    default: /* berth_talk_accept lets no other through */
        break;
    }
}

/* Room in steps as it is asked for; without it the process is told to stop. */
static void give_room(struct berth_process_lane *lane, uint64_t frames)
{
    struct berth_slabs *slabs = lane->env->slabs;
    struct berth_say_message message = {
        .magic = BERTH_PROTOCOL_MAGIC,
        .say = BERTH_SAY_STOP,
        .job = lane->job_number,
    };
    int fd = -1;
    if (berth_media_job_room(slabs, lane->job, frames, &lane->verdict) == BERTH_OK) {
        message.say = BERTH_SAY_OUT;
        message.frames = frames;
        lane->process.talk.capacity = frames;
        fd = berth_slabs_fd(slabs, &lane->job->out);
    }
    if (!berth_say_send(lane->process.child.fd, &message, fd, false)) {
        berth_process_kill(&lane->process);
    }
}

static void finish_job(struct berth_process_lane *lane, const struct berth_say_message *done)
{
    struct berth_media_job *job = lane->job;
    enum berth_code code = berth_say_code(done->code);
    bool is_worn = ++lane->process.job_count >= JOBS_PER_PROCESS;
    if (lane->verdict.code != BERTH_OK) {
        job->err = lane->verdict;
    } else if (code == BERTH_UNAVAILABLE) {
        atomic_fetch_add(&lane->env->counters.killed_memory, 1);
        berth_fail_field(&job->err, BERTH_MEDIA, "file",
                         "needs more than the limit of %llu MiB to decode",
                         (unsigned long long)(lane->env->process.memory_max >> 20));
        is_worn = true;
    } else if (code != BERTH_OK) {
        berth_fail_field(&job->err, code, "file", "%s", done->text);
    }
    end_job(lane, done->frames);
    if (is_worn) {
        berth_process_kill(&lane->process);
    }
}

static void end_job(struct berth_process_lane *lane, uint64_t frames)
{
    berth_slabs_give(lane->env->slabs, &lane->copy);
    berth_media_job_end(lane->env->slabs, lane->job, frames);
    lane->is_done = true;
}
