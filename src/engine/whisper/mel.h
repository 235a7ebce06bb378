/* mel.h - log-mel features as Whisper was trained on them, computed piece by piece.
 *
 * Frame f is centred on sample 160*f of the audio with 160 zeros behind it, mirrored at both ends.
 * The dynamic range is 8 decades below the loudest value of the whole recording, so a caller makes
 * one pass over all frames for the peak (in slices, so that no call is long) and then asks for
 * windows. What is not a finite number in the audio counts as 0.
 *
 * Threads: a berth_mel has scratch of its own: one thread at a time.
 */
#ifndef BERTH_MEL_H
#define BERTH_MEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/speech.h"

#define BERTH_MEL_RATE BERTH_SPEECH_RATE
#define BERTH_MEL_HOP 160
#define BERTH_MEL_FFT 400
#define BERTH_MEL_BINS_MAX 256
#define BERTH_MEL_WINDOW 3000 /* frames of one 30 s window */
#define BERTH_MEL_SILENCE (-10.0F) /* log10 of the smallest energy: where a peak starts */

struct berth_mel;

/* bins: 80 or 128 in released models; 1 to BERTH_MEL_BINS_MAX. */
enum berth_code berth_mel_create(uint32_t bins, struct berth_mel **out, struct berth_err *err)
    BERTH_MUST_USE;
void berth_mel_destroy(struct berth_mel *mel); /* NULL is fine */
uint64_t berth_mel_bytes(const struct berth_mel *mel);

/* Frames that hold audio. One more frame, number `content` itself, counts for the peak. */
size_t berth_mel_content(size_t sample_count);

/* log10 energies of `count` frames from `first` on (first + count <= content + 1) into the first
 * `count` columns of window (bins, BERTH_MEL_WINDOW), or nowhere when window is NULL (then any
 * count will do). Returns the largest of them. */
float berth_mel_log(struct berth_mel *mel, const struct berth_speech_audio *audio, size_t first,
                    size_t count, float *window);
/* Clamps to the range below peak and scales the first `count` frames of (bins, BERTH_MEL_WINDOW)
 * in place; the frames behind them become 0. */
void berth_mel_scale(const struct berth_mel *mel, float *window, size_t count, float peak);

#endif
