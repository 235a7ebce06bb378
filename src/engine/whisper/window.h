/* window.h - what one 30 s window of tokens means: segments, where to go on, whether to try again.
 *
 * Thresholds and order of the tests are faster-whisper's.
 */
#ifndef BERTH_WINDOW_H
#define BERTH_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/whisper/whisper_config.h"

#define BERTH_WINDOW_SEGMENTS_MAX 128
#define BERTH_WINDOW_TIME_S 0.02  /* one timestamp token */
#define BERTH_WINDOW_FRAME_S 0.01 /* one mel frame */

/* Temperatures tried one after the other where temperature is 0. */
#define BERTH_WINDOW_TRIES 6
double berth_window_temperature(uint32_t attempt); /* 0, 0.2 ... 1 */

struct berth_window_segment {
    double start_s;
    double end_s;
    size_t first; /* tokens */
    size_t count;
};

struct berth_window {
    size_t seek; /* its first frame */
    size_t size; /* frames that hold audio, up to 3000 */
    const int32_t *tokens;
    size_t token_count;
};

struct berth_window_cut {
    struct berth_window_segment segments[BERTH_WINDOW_SEGMENTS_MAX];
    size_t segment_count;
    size_t seek_next;   /* always past window.seek */
    bool ends_single;   /* the last token is a lone timestamp: silence to the end */
};

void berth_window_split(const struct berth_whisper_config *config,
                        const struct berth_window *window, struct berth_window_cut *out);

struct berth_window_score {
    double avg_logprob;
    double compression_ratio;
    double no_speech_prob;
};

bool berth_window_is_silent(const struct berth_window_score *score);
bool berth_window_needs_retry(const struct berth_window_score *score);
/* Too repetitive to be chosen when every temperature failed. */
bool berth_window_is_repetitive(const struct berth_window_score *score);

#endif
