/* cpu_loops.h - the inner loops of the CPU back end, once for each vector width.
 *
 * The build is for any x86-64 (or other machine); where the processor has AVX2, the same loops
 * compiled for it are taken. Both give the same bits: no multiplication is fused with an addition.
 * Every loop works on one row's own data only.
 */
#ifndef BERTH_CPU_LOOPS_H
#define BERTH_CPU_LOOPS_H

#include <stdint.h>

#include "engine/parakeet/backend.h"

#define BERTH_PARAKEET_LANES 8 /* channels of a group */
#define BERTH_PARAKEET_FFT 512

struct berth_parakeet_tile {
    float *out;        /* [n][columns], a vector every `stride` */
    const float *bias; /* [columns]; NULL: none */
    uint64_t stride;
    uint32_t n, columns;
    float scale; /* of the bias */
    enum berth_parakeet_activation activation;
};

/* One group of LANES channels, weights and bias filled up with zeros. */
struct berth_parakeet_group {
    float weight[9][BERTH_PARAKEET_LANES];
    float bias[BERTH_PARAKEET_LANES];
};

struct berth_parakeet_line {
    uint32_t count;  /* channels, or outputs of gather_line */
    uint32_t stride; /* between weights of two taps, or outputs of gather_line */
    uint32_t taps;   /* of convolve */
    uint32_t used;   /* lanes that gather_line stores */
};

struct berth_parakeet_loops {
    /* out = activation(out + scale * bias) */
    void (*finish_tile)(const struct berth_parakeet_tile *tile);
    void (*norm)(const struct berth_parakeet_norm *norm, const float *in, float *out,
                 uint32_t hidden);
    /* score = exp(scale * (score + shifted) - m), m the larger of *peak and the highest of them;
     * *peak becomes m. Returns the sum. */
    float (*soften)(float *score, const float *shifted, float scale, uint32_t count, float *peak);
    void (*multiply)(float *values, float factor, uint32_t count);
    void (*add)(const float *a, const float *b, float *out, uint32_t count);
    /* out = a * sigmoid(gate) */
    void (*glue)(const float *a, const float *gate, float *out, uint32_t count);
    /* out[c] = SiLU(bias[c] + sum over taps of weight[tap * stride + c] * in[tap * count + c]) */
    void (*convolve)(const struct berth_parakeet_depthwise *conv,
                     const struct berth_parakeet_line *line, const float *in, float *out);
    /* 3 x 3, stride 2, over three lines of 1 + 2 * count values, and ReLU: out [count][LANES]. */
    void (*spread_line)(const struct berth_parakeet_group *group, const float *const in[3],
                        float *out, uint32_t count);
    /* 3 x 3, stride 2, over three lines [1 + 2 * count][LANES]. */
    void (*gather_line)(const struct berth_parakeet_group *group, const float *const in[3],
                        float *out, const struct berth_parakeet_line *line);
    /* out[c] = bias[c] + sum over nine taps of weight[tap * count + c] * in[tap][c] */
    void (*gather_nine)(const struct berth_parakeet_depthwise *conv, const float *const in[9],
                        float *out, uint32_t count);
    float (*dot)(const float *a, const float *b, uint32_t count);
    /* LANES transforms at once (Stockham, radix 2): values [2][FFT][2: real, imaginary][LANES], the
     * second half filled from the first, which is used up. turns [FFT / 2][2]: cosine and sine of
     * -2 pi p / FFT. */
    void (*fourier)(float *values, const float *turns);
    /* Powers of 2 LANES real signals of which LANES were the real and LANES the imaginary parts:
     * out [FFT / 2 + 1][2][LANES]. */
    void (*power)(const float *spectrum, float *out);
    /* out[2 LANES] = sum over k < count of weight[k] * power[k] */
    void (*band)(const float *power, const float *weight, uint32_t count, float *out);
};

/* For the processor at hand. */
const struct berth_parakeet_loops *berth_parakeet_loops_choose(void);
/* For any processor: for tests. */
const struct berth_parakeet_loops *berth_parakeet_loops_plain(void);

#endif
