/* parakeet_config.h - shape and rules of a FastConformer model, from the JSON files of its folder.
 *
 * In: config.json, preprocessor_config.json, generation_config.json (optional) of a Hugging Face
 * folder for ParakeetForTDT, ParakeetForRNNT or ParakeetForCTC. All are hostile: whatever stands in
 * the struct is within the limits below, and what the engine cannot do is refused by name.
 */
#ifndef BERTH_PARAKEET_CONFIG_H
#define BERTH_PARAKEET_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define BERTH_PARAKEET_LAYERS_MAX 64
#define BERTH_PARAKEET_DURATIONS_MAX 16
#define BERTH_PARAKEET_SYMBOLS_MAX 100 /* a row has room for so many at each of its frames */
#define BERTH_PARAKEET_PREDICTION_LAYERS_MAX 4
#define BERTH_PARAKEET_SAMPLE_RATE 16000
#define BERTH_PARAKEET_HOP 160       /* samples a feature frame */
#define BERTH_PARAKEET_SUBSAMPLING 8 /* feature frames an encoder frame */

enum berth_parakeet_head { BERTH_PARAKEET_TDT, BERTH_PARAKEET_RNNT, BERTH_PARAKEET_CTC };

struct berth_parakeet_config {
    enum berth_parakeet_head head;
    /* Encoder. */
    uint32_t mels;   /* 80 or 128 */
    uint32_t hidden; /* divisible by heads; head_dim = hidden / heads */
    uint32_t heads;
    uint32_t head_dim;
    uint32_t layers;
    uint32_t inner;      /* of the feed-forwards */
    uint32_t kernel;     /* of the depthwise convolution; odd */
    uint32_t channels;   /* of the subsampling */
    bool attention_bias; /* q, k, v, o and the feed-forwards have biases */
    bool convolution_bias;
    bool scale_input; /* subsampled frames are multiplied by sqrt(hidden) */
    /* Head. */
    uint32_t vocabulary; /* tokens with the blank */
    uint32_t blank;      /* CTC: the pad token */
    uint32_t prediction; /* hidden size of prediction net and joint; CTC: 0 */
    uint32_t prediction_layers;
    uint32_t durations[BERTH_PARAKEET_DURATIONS_MAX]; /* TDT only */
    uint32_t duration_count;                          /* TDT only, else 0 */
    uint32_t symbols_max;                             /* non-blank tokens at one frame */
    /* Frontend. The hop is 160, the rate 16 kHz. */
    uint32_t fft;      /* 512 */
    uint32_t window;   /* 400 */
    float preemphasis; /* 0.97 */
    /* Not of the files, and false after reading: whether the layers' matrices are to be e4m3
     * (weights.h). */
    bool narrow;
};

/* INVALID for broken files, UNSUPPORTED for what the engine does not run, NOT_FOUND where one is
 * missing: with file and field in err's text. */
enum berth_code berth_parakeet_config_read(const char *folder, struct berth_parakeet_config *out,
                                           struct berth_err *err) BERTH_MUST_USE;

/* Lengths after each stage of a recording or window of `samples`. */
struct berth_parakeet_lengths {
    uint32_t samples;
    uint32_t features; /* samples / 160 */
    uint32_t half;     /* after the first stride: (n - 1) / 2 + 1, 0 of 0 */
    uint32_t quarter;
    uint32_t frames; /* encoder frames of 80 ms */
};

struct berth_parakeet_lengths berth_parakeet_lengths_of(uint32_t samples);

#endif
