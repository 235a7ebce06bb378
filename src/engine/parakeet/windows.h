/* windows.h - where a recording is cut, and how what its windows say is put together.
 *
 * A window ends at a pause in its second half. Where there is none, the next one begins a few
 * seconds before its end, and the tokens of both are joined where they agree.
 * Windows begin at a multiple of an encoder frame, so that frames of all windows lie on one grid.
 */
#ifndef BERTH_WINDOWS_H
#define BERTH_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/parakeet/text.h"
#include "engine/speech.h"

#define BERTH_PARAKEET_FRAME_SAMPLES 1280 /* of an encoder frame */
#define BERTH_PARAKEET_OVERLAP_S 4        /* where there is no pause; a quarter of short windows */

struct berth_parakeet_window {
    size_t start; /* samples, a multiple of a frame */
    size_t count;
    size_t next; /* where to look for the next one; the recording's end: there is none */
    bool silent; /* nothing in it is as loud as -80 dB of full scale */
};

/* The window of at most samples_max (a multiple of a frame, 4 s or more) that starts there, or
 * where silence ends; a silent one is to be passed over. Looks at each of its samples a few times;
 * what is no number counts as 0. */
void berth_parakeet_window_find(const struct berth_speech_audio *audio, size_t start,
                                size_t samples_max, struct berth_parakeet_window *out);

/* Two windows that overlap: their tokens, frames counted from the recording's start. */
struct berth_parakeet_seam {
    const struct berth_parakeet_token *left, *right;
    size_t left_count, right_count;
    int64_t begin, end; /* the overlap's frames */
};

/* How many of left's tokens stay, and from which of right's on they are followed: in the middle of
 * the longest run of tokens both have at the same times, else between two words. Left's tokens
 * before the overlap always stay. */
void berth_parakeet_seam_join(const struct berth_parakeet_pieces *pieces,
                              const struct berth_parakeet_seam *seam, size_t *left_keep,
                              size_t *right_skip);

#endif
