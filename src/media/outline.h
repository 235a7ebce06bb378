/* outline.h - whether a file ends inside the frame that its container draws around the audio.
 *
 * Containers that say their sizes in bytes: boxes of MP4 and QuickTime, Matroska's segment, pages
 * of Ogg, chunks of CAF, objects of ASF. Hostile bytes in; nothing else of the container is
 * understood. FFmpeg reads such a file as far as it goes and says nothing.
 */
#ifndef BERTH_OUTLINE_H
#define BERTH_OUTLINE_H

#include <stdbool.h>
#include <stdint.h>

#include "media/decoder.h"

struct berth_outline {
    const char *what;  /* "mdat box"; static */
    uint64_t promised; /* bytes, of it */
    uint64_t came;     /* fewer */
};

/* false: it is whole, or does not say (a size left open by a writer that streams), or is another
 * container. */
bool berth_outline_is_cut(const struct berth_media_input *input, struct berth_outline *out);

#endif
