/* random_clip.h - sound that is a little like speech, for measurements where no recording is.
 *
 * The same seed gives the same samples on every machine with IEEE floats and one libm.
 */
#ifndef BERTH_RANDOM_CLIP_H
#define BERTH_RANDOM_CLIP_H

#include <stdint.h>

/* `samples` at 16 kHz into out: voiced syllables, noise between them, pauses; within +-1. */
void berth_random_clip(uint64_t seed, float *out, uint32_t samples);

#endif
