/* lane.h - where a job is decoded: on a thread of the server, or in a decode process.
 *
 * A lane holds one job at a time. The media thread hands it over (begin), lets time pass (tick,
 * readable) and gets it back with its results filled in (take).
 *
 * Owns:    a thread, or a process; the job's output range until it is taken.
 * Threads: all calls on the media thread.
 */
#ifndef BERTH_LANE_H
#define BERTH_LANE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/queue.h"
#include "base/slab.h"
#include "media/decoder.h"
#include "media/media.h"
#include "media/process.h"

struct berth_media_counters {
    _Atomic uint64_t jobs, failed, killed_timeout, killed_memory, crashed, direct;
};

/* What all lanes of one media share; outlives them. */
struct berth_lane_env {
    struct berth_slabs *slabs;
    struct berth_queue *queue; /* nudged when a thread is done */
    int epoll_fd;              /* process lanes put their sockets here, data.ptr the lane */
    uint64_t timeout_ns;
    const struct berth_decoder_ops *const *decoders;
    struct berth_process_options process;
    struct berth_media_counters counters;
};

struct berth_thread_lane {
    struct berth_lane_env *env;
    struct berth_queue inbox; /* at most one job */
    pthread_t thread;
    bool has_thread;
    struct berth_media_job *job; /* NULL: free; the thread's own from begin until is_done */
    atomic_bool is_done;
    atomic_bool stops;
};

struct berth_process_lane {
    struct berth_lane_env *env;
    struct berth_process process;
    struct berth_media_job *job; /* NULL: free */
    bool is_done;                /* job has its results and waits to be taken */
    uint64_t job_number;
    uint64_t t_begin_ns;
    double seconds_expected;  /* by the header; below 0: unknown */
    struct berth_range copy;  /* of an input that shared a slab with others */
    struct berth_err verdict; /* decided while the process still holds the job; OK: none */
};

enum berth_code berth_thread_lane_init(struct berth_thread_lane *lane, struct berth_lane_env *env,
                                       struct berth_err *err) BERTH_MUST_USE;
void berth_thread_lane_finish(struct berth_thread_lane *lane); /* zeroed memory is fine; no job */
void berth_thread_lane_begin(struct berth_thread_lane *lane, struct berth_media_job *job);
/* Ends its job soon, with UNAVAILABLE. */
void berth_thread_lane_stop(struct berth_thread_lane *lane);
struct berth_media_job *berth_thread_lane_take(struct berth_thread_lane *lane); /* NULL: none yet */

void berth_process_lane_init(struct berth_process_lane *lane, struct berth_lane_env *env);
void berth_process_lane_finish(struct berth_process_lane *lane); /* waits for its process' end */
bool berth_process_lane_is_free(const struct berth_process_lane *lane);
/* false: the process was gone; the job is still the caller's. */
bool berth_process_lane_begin(struct berth_process_lane *lane, struct berth_media_job *job,
                              uint64_t now_ns);
/* Starts, watches, reaps. */
void berth_process_lane_tick(struct berth_process_lane *lane, uint64_t now_ns);
/* Its socket has something to read, or has closed. */
void berth_process_lane_readable(struct berth_process_lane *lane);
/* Ends its job with UNAVAILABLE, and the process. */
void berth_process_lane_stop(struct berth_process_lane *lane);
struct berth_media_job *berth_process_lane_take(struct berth_process_lane *lane);

/* Whether a job is not wanted any more or has no time left: fills err. */
enum berth_code berth_media_job_judge(const struct berth_media_job *job, uint64_t now_ns,
                                      struct berth_err *err);
/* The room for the output, in job->out. */
enum berth_code berth_media_job_room(struct berth_slabs *slabs, struct berth_media_job *job,
                                     uint64_t frames, struct berth_err *err) BERTH_MUST_USE;
/* Trims the output to what was written; or, with an error in job->err (no frame is one), gives it
 * back. */
void berth_media_job_end(struct berth_slabs *slabs, struct berth_media_job *job, uint64_t frames);

#endif
