/* resample.h - changes the rate of mono sound by a windowed sinc, block by block.
 *
 * Zero delay: frame k of the output lies at k * from / to of the input. The output of n frames has
 * exactly round(n * to / from). Used for WAV; FFmpeg's own resampler does the rest.
 */
#ifndef BERTH_RESAMPLE_H
#define BERTH_RESAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define BERTH_RESAMPLE_RATE_MIN 100
#define BERTH_RESAMPLE_RATE_MAX 768000

struct berth_resampler;

/* INVALID for rates outside the limits, UNAVAILABLE when there is no memory. */
enum berth_code berth_resampler_create(uint32_t from, uint32_t to, struct berth_resampler **out,
                                       struct berth_err *err) BERTH_MUST_USE;
void berth_resampler_destroy(struct berth_resampler *resampler); /* NULL is fine */
/* The most frames that a push of in_count gives. */
size_t berth_resampler_room(const struct berth_resampler *resampler, size_t in_count);
/* Takes in_count frames, writes what is ready, returns how many. At most
 * BERTH_RESAMPLE_PUSH_MAX at a time. */
#define BERTH_RESAMPLE_PUSH_MAX 16384
size_t berth_resampler_push(struct berth_resampler *resampler, const float *in, size_t in_count,
                            float *out);
/* The input is over: writes at most room frames of the rest, returns how many; call until 0. */
size_t berth_resampler_flush(struct berth_resampler *resampler, float *out, size_t room);

#endif
