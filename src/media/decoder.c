/* decoder.c - the table of decoders, the only place that knows the list. */
#include "media/decoder.h"

#include <stddef.h>

#include "media/media.h"

#if WITH_FFMPEG
#define MEDIA_TEXT "WAV; everything else by FFmpeg, in sandboxed processes"
#else
#define MEDIA_TEXT "WAV (this build has no FFmpeg)"
#endif

const struct berth_decoder_ops *const berth_decoders[] = {
    &berth_decoder_wav,
#if WITH_FFMPEG
    &berth_decoder_audio, /* takes whatever is left */
#endif
    NULL,
};

const char *berth_media_describe(void)
{
    return MEDIA_TEXT;
}

const struct berth_decoder_ops *berth_decoder_find(const struct berth_decoder_ops *const *decoders,
                                                   const struct berth_media_input *input)
{
    for (size_t i = 0; decoders[i] != NULL; i++) {
        if (decoders[i]->matches(input)) {
            return decoders[i];
        }
    }
    return NULL;
}

enum berth_code berth_decoder_run(const struct berth_decoder_ops *const *decoders,
                                  const struct berth_media_input *input, struct berth_pcm *pcm,
                                  struct berth_err *err)
{
    if (input->length == 0) {
        return berth_fail_field(err, BERTH_INVALID, "file", "no audio: the file is empty");
    }
    const struct berth_decoder_ops *decoder = berth_decoder_find(decoders, input);
    if (decoder == NULL) {
        return berth_fail_field(err, BERTH_MEDIA, "file",
                                "not audio that this build reads: %s", berth_media_describe());
    }
    return decoder->decode(input, pcm, err);
}
