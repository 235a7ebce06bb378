/* weights.h - where each weight of a model lies in its span, in the form the back ends want.
 *
 * In:   a folder's config and model.safetensors.   Out: a span filled, and a table of pointers.
 * Form: matrices are [out][in], row by row, in the back end's element (float32 on the CPU, half on
 *       CUDA); biases of matrices in the same element; vectors marked float are float32 everywhere.
 *       Where config.narrow is set the layers' matrices that read a normalised or activated vector
 *       are e4m3, each row (an output's) divided by its largest magnitude over 448, the scale.
 *       Everything starts at a multiple of 256 bytes. Two things are folded while loading: the
 *       convolution module's batch norm into its depthwise weights, the LSTM's two biases into one;
 *       and depthwise weights are turned to [tap][channel], the subsampling's last matrix to take
 *       its input as [frequency][channel].
 * A missing, unknown or misshapen tensor, a value that is no number, and one past what the element
 * holds (half: 65504) is refused by its name.
 */
#ifndef BERTH_WEIGHTS_H
#define BERTH_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/parakeet/parakeet_config.h"

enum berth_parakeet_element { BERTH_PARAKEET_F32, BERTH_PARAKEET_F16 };

struct berth_parakeet_linear {
    const void *weight; /* elements [out][in]; e4m3 if there is a scale */
    const void *bias;   /* elements [out]; NULL: none */
    uint32_t in;
    uint32_t out;
    const float *scale; /* [out]: a row's e4m3 times it are its weights; NULL: they are elements */
};

struct berth_parakeet_norm {
    const float *gamma; /* [hidden] */
    const float *beta;
};

struct berth_parakeet_depthwise {
    const float *weight; /* [taps][channels] */
    const float *bias;   /* [channels] */
};

struct berth_parakeet_layer {
    struct berth_parakeet_norm norm_ff1, norm_attention, norm_conv, norm_ff2, norm_out;
    struct berth_parakeet_linear ff1_up, ff1_down, ff2_up, ff2_down;
    struct berth_parakeet_linear qkv;      /* out: q, k, v, each hidden */
    struct berth_parakeet_linear position; /* relative_k_proj */
    struct berth_parakeet_linear attention_out;
    const float *bias_u, *bias_v;         /* [heads][head_dim] */
    struct berth_parakeet_linear conv_in; /* out: 2 x hidden, first half gated by the second */
    struct berth_parakeet_depthwise conv; /* batch norm folded in */
    struct berth_parakeet_linear conv_out;
};

struct berth_parakeet_lstm {
    struct berth_parakeet_linear input, state; /* out: 4 x prediction, gates i f g o; no bias */
    const float *bias;                         /* [4 x prediction], both of PyTorch's summed */
};

struct berth_parakeet_weights {
    struct berth_parakeet_depthwise first;         /* 3 x 3, stride 2, one channel in */
    struct berth_parakeet_depthwise second, third; /* 3 x 3, stride 2, depthwise */
    struct berth_parakeet_linear second_point, third_point;
    struct berth_parakeet_linear subsample_out; /* in: [frequency][channel] */
    struct berth_parakeet_layer layers[BERTH_PARAKEET_LAYERS_MAX];
    struct berth_parakeet_linear projector; /* encoder_projector; CTC: none (weight NULL) */
    const void *embedding;                  /* elements [vocabulary][prediction]; CTC: NULL */
    struct berth_parakeet_lstm lstm[BERTH_PARAKEET_PREDICTION_LAYERS_MAX];
    struct berth_parakeet_linear prediction_out; /* decoder_projector */
    struct berth_parakeet_linear head;           /* out: vocabulary + durations; CTC: ctc_head */
};

/* Bytes of the span. */
uint64_t berth_parakeet_weights_bytes(const struct berth_parakeet_config *config,
                                      enum berth_parakeet_element element);
/* Pointers into a span at `base` (a device address on CUDA). No byte is read. */
void berth_parakeet_weights_place(const struct berth_parakeet_config *config,
                                  enum berth_parakeet_element element, void *base,
                                  struct berth_parakeet_weights *out);
/* Compares the file's tensors with the config: names, shapes, types. Reads the header only. */
enum berth_code berth_parakeet_weights_check(const struct berth_parakeet_config *config,
                                             const char *folder,
                                             struct berth_err *err) BERTH_MUST_USE;

/* Takes finished bytes to their place; may be called by several readers at once. `source` belongs
 * to the reader again when it returns. */
struct berth_parakeet_sink {
    enum berth_code (*write)(void *state, uint64_t offset, const void *source, size_t bytes,
                             struct berth_err *err);
    /* Optional: a buffer of `bytes` to read into (pinned), for reader `index`, whose last write is
     * over; NULL: the loader uses its own. */
    void *(*buffer)(void *state, uint32_t reader, size_t bytes);
    void *state;
    uint32_t readers; /* threads that read, 1 to 16; 0: one */
};

/* Reads all weights with the sink's readers through pread in pieces of at most 8 MiB. */
enum berth_code berth_parakeet_weights_read(const struct berth_parakeet_config *config,
                                            enum berth_parakeet_element element, const char *folder,
                                            const struct berth_parakeet_sink *sink,
                                            struct berth_err *err) BERTH_MUST_USE;

#endif
