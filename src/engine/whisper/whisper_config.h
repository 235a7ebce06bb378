/* whisper_config.h - what a Whisper folder's JSON files say: sizes, token ids, token sets.
 *
 * config.json and generation_config.json in Hugging Face's forms; ids that an older export leaves
 * out come from tokenizer.json's added tokens. Everything is checked: an id outside the vocabulary
 * is an error of the file.
 */
#ifndef BERTH_WHISPER_CONFIG_H
#define BERTH_WHISPER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/whisper/tokens.h"

#define BERTH_WHISPER_LANGUAGES_MAX 128

struct berth_whisper_language {
    const char *code; /* static */
    int32_t id;
};

struct berth_whisper_config {
    struct berth_arena arena; /* the lists */
    uint32_t vocab;
    uint32_t mel_bins;
    uint32_t width; /* d_model */
    uint32_t encoder_layers;
    uint32_t decoder_layers;
    uint32_t heads;
    uint32_t frames;    /* of the encoder's output, 1500 */
    uint32_t positions; /* longest token sequence, 448 */
    int32_t eot;
    int32_t sot;
    int32_t previous;      /* <|startofprev|> */
    int32_t no_speech;
    int32_t no_timestamps;
    int32_t first_time;    /* <|0.00|>; each next one is 0.02 s later */
    int32_t transcribe;    /* multilingual only, else -1 */
    int32_t translate;
    int32_t first_time_limit; /* largest index of the first timestamp: 50, which is 1.0 s */
    bool multilingual;
    bool aligned;             /* alignment heads are named: word times are possible */
    const int32_t *suppressed; /* at every step */
    size_t suppressed_count;
    const int32_t *suppressed_first; /* at the first step too */
    size_t suppressed_first_count;
    struct berth_whisper_language languages[BERTH_WHISPER_LANGUAGES_MAX];
    size_t language_count;
};

/* Reads the folder's files; tokens is borrowed for the call. */
enum berth_code berth_whisper_config_read(const char *folder, const struct berth_tokens *tokens,
                                          struct berth_whisper_config *out,
                                          struct berth_err *err) BERTH_MUST_USE;
void berth_whisper_config_finish(struct berth_whisper_config *config); /* zeroed is fine */

/* The token of a language code, or -1. */
int32_t berth_whisper_language_id(const struct berth_whisper_config *config, const char *code);
/* The code of a language token, or NULL. */
const char *berth_whisper_language_code(const struct berth_whisper_config *config, int32_t id);

#endif
