/* decode.h - the loop of a decode process, over any table of decoders.
 *
 * berth_media_decode_main (media.h) runs it with the product's table; tests put decoders beside it
 * that crash, hang and try to break out.
 */
#ifndef BERTH_DECODE_H
#define BERTH_DECODE_H

#include "media/decoder.h"

/* argv: berth decode MEMORY_MAX CPU_S_MAX. Returns the exit status. */
int berth_decode_main(int argc, char **argv, const struct berth_decoder_ops *const *decoders);

#endif
