/* pcm.h - where a decoder writes its sound: mono float32 frames at the rate that was asked for.
 *
 * The room for the frames belongs to somebody else (a shared range, sent to the decode process, or
 * a slab range of the server); `ops` asks for more of it. It grows in steps as decoding goes, so
 * that a header which promises hours costs nothing until they are there.
 *
 * Owns:    nothing.                     Borrows: the room, until the next room() or the end.
 * Threads: one.
 * Rules:   README.md here, M3 to M5.
 */
#ifndef BERTH_PCM_H
#define BERTH_PCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define BERTH_PCM_BLOCK 65536        /* frames; the most that is written between two reserves */
#define BERTH_PCM_STEP_S 60          /* seconds; the first room taken, doubled after that */
#define BERTH_PCM_LEVEL_MAX 65536.0f /* louder samples are cut to it; NaN becomes 0 */
#define BERTH_PCM_RATE_MIN 1000      /* of what can be asked for */
#define BERTH_PCM_RATE_MAX 192000

/* What the file's header says. */
struct berth_pcm_source {
    double seconds; /* below 0: unknown */
    uint32_t rate;
    uint32_t channel_count;
    char format[64]; /* "wav s16", "mp3 mp3float"; ASCII */
};

struct berth_pcm;

struct berth_pcm_ops {
    /* Optional. Told once, after the length was judged and before the first frame. */
    enum berth_code (*found)(struct berth_pcm *pcm, const struct berth_pcm_source *source,
                             struct berth_err *err);
    /* Required. Makes room for `capacity` frames in all, keeping what is there; sets frames and
     * capacity. */
    enum berth_code (*room)(struct berth_pcm *pcm, uint64_t capacity, struct berth_err *err);
    /* Optional. Asked after every block and on every read; an error ends the decoding. */
    enum berth_code (*poll)(struct berth_pcm *pcm, struct berth_err *err);
};

struct berth_pcm {
    const struct berth_pcm_ops *ops;
    float *frames;            /* lent by room() */
    uint64_t count;           /* frames written */
    uint64_t capacity;        /* frames there is room for */
    uint64_t frames_expected; /* by the header; UINT64_MAX: unknown */
    uint64_t frames_max;
    double seconds_max;
    uint32_t rate;
};

void berth_pcm_init(struct berth_pcm *pcm, const struct berth_pcm_ops *ops, uint32_t rate,
                    double seconds_max);
/* Frames that fit into seconds_max, and the most that a room may ever hold. */
uint64_t berth_pcm_frames_max(uint32_t rate, double seconds_max);
/* Judges the length before anything is decoded: TOO_LARGE. */
enum berth_code berth_pcm_expect(struct berth_pcm *pcm, const struct berth_pcm_source *source,
                                 struct berth_err *err) BERTH_MUST_USE;
/* Room for `more` frames (at most BERTH_PCM_BLOCK) at frames + count. */
enum berth_code berth_pcm_reserve(struct berth_pcm *pcm, size_t more,
                                  struct berth_err *err) BERTH_MUST_USE;
/* `more` frames were written there. TOO_LARGE past seconds_max; or what poll says. */
enum berth_code berth_pcm_commit(struct berth_pcm *pcm, size_t more,
                                 struct berth_err *err) BERTH_MUST_USE;
enum berth_code berth_pcm_poll(struct berth_pcm *pcm, struct berth_err *err) BERTH_MUST_USE;
/* NaN to 0, the rest cut to +-BERTH_PCM_LEVEL_MAX. */
void berth_pcm_clean(float *frames, size_t count);

#endif
