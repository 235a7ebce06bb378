/* media.h - bytes in, mono float PCM out, decoded in a sandboxed process.
 *
 * In:      a job with the file in a slab range.  Out: the same job, with PCM in a range of its own.
 * Owns:    the decode processes and a thread that feeds and watches them.
 * Threads: submit from any; the job comes back as a post on the queue it names.
 * Rules:   README.md here (M1 to M8). Limits on seconds and bytes are judged before decoding.
 *          A decoder that crashes, hangs or grows is ended and replaced; its job gets MEDIA.
 * Not here: what is said in it (engine/), where the bytes came from (api/).
 */
#ifndef BERTH_MEDIA_H
#define BERTH_MEDIA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/queue.h"
#include "base/slab.h"

struct berth_media_options {
    uint32_t processes;
    bool in_process;     /* decode on threads of this process; debugging only */
    uint64_t timeout_ns; /* of one job's decoding */
    uint64_t memory_max; /* of one decode process */
    const char *program; /* path of the berth binary, run as `berth decode`; NULL: /proc/self/exe */
    uint64_t queue_max;  /* jobs waiting; more are BUSY */
    struct berth_slabs *slabs;
};

struct berth_media_job {
    struct berth_post post;       /* comes back on `reply`; the sender sets deliver */
    struct berth_queue *reply;
    struct berth_range in;        /* the file, or a part of a range; borrows until it is back */
    uint32_t rate;                /* samples a second wanted: 16000 */
    double seconds_max;           /* longer audio is TOO_LARGE, field "file" */
    const atomic_bool *cancelled; /* may be NULL; polled */
    uint64_t t_deadline_ns;       /* 0: none */
    /* Results. */
    struct berth_err err;         /* MEDIA, INVALID (cut short, or no sound in it: M9), TOO_LARGE,
                                   * BUSY, CANCELLED, DEADLINE, UNAVAILABLE */
    struct berth_range out;       /* float32 mono at `rate`; the receiver owns it; none on error */
    uint64_t frame_count;         /* never 0, but on error */
    double seconds;
    uint64_t decode_ns;
    void *state;                  /* the sender's own */
};

struct berth_media_stats {
    uint64_t jobs, failed, killed_timeout, killed_memory, crashed, direct;
};

struct berth_media;

enum berth_code berth_media_create(const struct berth_media_options *options,
                                   struct berth_media **out, struct berth_err *err) BERTH_MUST_USE;
void berth_media_destroy(struct berth_media *media); /* NULL is fine; jobs come back UNAVAILABLE */
/* BUSY: the job was not taken. On OK it comes back exactly once. */
enum berth_code berth_media_submit(struct berth_media *media, struct berth_media_job *job,
                                   struct berth_err *err) BERTH_MUST_USE;
void berth_media_stats(struct berth_media *media, struct berth_media_stats *out);
/* The decode process' main loop, `berth decode`: never returns to the command line's caller with
 * privileges; returns the exit status. */
int berth_media_decode_main(int argc, char **argv);
/* One line about what this build can decode, for `berth doctor`. Static. */
const char *berth_media_describe(void);

#endif
