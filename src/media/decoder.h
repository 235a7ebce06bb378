/* decoder.h - the seam of the decoders: a file's bytes in, frames into a berth_pcm.
 *
 * A decoder knows no process, socket or slab; the same code runs in the decode process, on a
 * thread of the server, and in the tests. The table's order is the order in which they are asked.
 */
#ifndef BERTH_DECODER_H
#define BERTH_DECODER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/pcm.h"

struct berth_media_input {
    const uint8_t *bytes; /* borrowed; read only */
    uint64_t length;
};

struct berth_decoder_ops {
    const char *name;
    /* Small and fuzzed: it may run in the server itself, on a thread. */
    bool direct;
    /* Optional. Once in a decode process, before the sandbox closes: opens what it needs later. */
    void (*prepare)(uint64_t memory_max);
    /* Required. Whether these bytes are for this decoder. Cheap: looks at headers only. */
    bool (*matches)(const struct berth_media_input *input);
    /* Required. MEDIA, INVALID (cut short), TOO_LARGE (all with field "file"), or what pcm's room
     * and poll said. OK with no frames only for a file that is whole and holds none. */
    enum berth_code (*decode)(const struct berth_media_input *input, struct berth_pcm *pcm,
                              struct berth_err *err);
};

/* Ends with NULL. */
extern const struct berth_decoder_ops *const berth_decoders[];

/* The first decoder for these bytes, or NULL. */
const struct berth_decoder_ops *berth_decoder_find(const struct berth_decoder_ops *const *decoders,
                                                   const struct berth_media_input *input);
/* Finds a decoder and runs it; no decoder is MEDIA, an empty file INVALID. */
enum berth_code berth_decoder_run(const struct berth_decoder_ops *const *decoders,
                                  const struct berth_media_input *input, struct berth_pcm *pcm,
                                  struct berth_err *err) BERTH_MUST_USE;

extern const struct berth_decoder_ops berth_decoder_wav;
extern const struct berth_decoder_ops berth_decoder_audio; /* FFmpeg; not in every build */

#endif
