/* wav.h - reads the header of a RIFF/WAVE file. Hostile bytes in, checked numbers out.
 *
 * RIFF, RF64 and BW64; PCM of 8 to 32 bits, float of 32 and 64, A-law and mu-law, plain or in
 * WAVE_FORMAT_EXTENSIBLE; up to BERTH_WAV_CHANNELS_MAX channels. The rest is FFmpeg's.
 */
#ifndef BERTH_WAV_H
#define BERTH_WAV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/decoder.h"

#define BERTH_WAV_CHANNELS_MAX 1024
#define BERTH_WAV_CHUNKS_MAX 4096

enum berth_wav_kind {
    BERTH_WAV_U8,
    BERTH_WAV_S16,
    BERTH_WAV_S24,
    BERTH_WAV_S32,
    BERTH_WAV_F32,
    BERTH_WAV_F64,
    BERTH_WAV_ALAW,
    BERTH_WAV_MULAW,
    BERTH_WAV_KIND_COUNT
};

struct berth_wav {
    enum berth_wav_kind kind;
    uint32_t rate;
    uint32_t channel_count;
    uint32_t speakers;       /* mask of WAVE_FORMAT_EXTENSIBLE; 0: not told */
    const uint8_t *samples;  /* interleaved, little-endian; lends from the input */
    uint64_t frame_count;    /* whole frames that are there */
    uint64_t bytes;          /* of them, and of a frame that is not whole */
    uint64_t bytes_promised; /* by the header; more than bytes when the file is cut short */
};

/* MEDIA with a reason; UNSUPPORTED when it is a WAVE file of a codec that is not read here. */
enum berth_code berth_wav_open(const struct berth_media_input *input, struct berth_wav *out,
                               struct berth_err *err) BERTH_MUST_USE;

#endif
