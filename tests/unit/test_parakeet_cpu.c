/* Each operation of the CPU's table against a plain loop in double: shapes that end at no round
 * place, rows of different lengths, garbage past each row's own. */
#include "engine/parakeet/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/parakeet/cpu_loops.h"
#include "engine/parakeet/cpu_product.h"

#define ROWS 4
#define GARBAGE 1e30F /* what lies past a row's own; one that is read shows */

static const struct berth_parakeet_ops *const ops = &berth_parakeet_cpu;
static struct berth_parakeet_device *device;
static uint32_t seed = 7;

static const struct berth_parakeet_config config = {.mels = 80,
                                                    .hidden = 136,
                                                    .heads = 17,
                                                    .head_dim = 8,
                                                    .kernel = 5,
                                                    .channels = 24,
                                                    .fft = 512,
                                                    .window = 400,
                                                    .preemphasis = 0.97F};

/* A bucket of four rows: long, empty, short, with one frame. */
struct rig {
    struct berth_parakeet_shape shape;
    struct berth_parakeet_lengths own[ROWS];
    int32_t lengths[5][ROWS];
    struct berth_parakeet_counts counts;
};

static void rig_init(struct rig *rig, uint32_t samples)
{
    const uint32_t row_samples[ROWS] = {samples - 333, 0, samples / 3, 170};
    rig->shape = (struct berth_parakeet_shape){ROWS, berth_parakeet_lengths_of(samples)};
    for (uint32_t r = 0; r < ROWS; r++) {
        rig->own[r] = berth_parakeet_lengths_of(row_samples[r]);
        const uint32_t own[5] = {rig->own[r].samples, rig->own[r].features, rig->own[r].half,
                                 rig->own[r].quarter, rig->own[r].frames};
        for (int i = 0; i < 5; i++) {
            rig->lengths[i][r] = (int32_t)own[i];
        }
    }
    rig->counts = (struct berth_parakeet_counts){rig->lengths[0], rig->lengths[1], rig->lengths[2],
                                                 rig->lengths[3], rig->lengths[4], NULL};
}

static float next_random(void)
{
    seed = seed * 1664525U + 1013904223U;
    return (float)(seed >> 8) / 8388608.0F - 1.0F;
}

static float *make(size_t count)
{
    float *values = berth_alloc(count * sizeof(float) + 1);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = next_random();
    }
    return values;
}

/* Garbage from a row's own vectors on. */
static void spoil(float *values, const struct rig *rig, const int32_t *own, const size_t sizes[2])
{
    for (uint32_t r = 0; r < rig->shape.rows; r++) {
        float *row = values + r * sizes[0] * sizes[1];
        for (size_t i = (size_t)own[r] * sizes[1]; i < sizes[0] * sizes[1]; i++) {
            row[i] = GARBAGE;
        }
    }
}

static void assert_close(double value, double wanted, double tolerance)
{
    if (!(fabs(value - wanted) <= tolerance * (1 + fabs(wanted)))) {
        fail_msg("%.9g is not %.9g", value, wanted);
    }
}

static int open_device(void **state)
{
    struct berth_err err = {0};
    return ops->open("cpu:0", 3, &device, &err) == BERTH_OK ? 0 : -1;
}

static int close_device(void **state)
{
    ops->close(device);
    return 0;
}

static void products_are_sums(void **state)
{
    static const uint32_t sizes[][3] = {/* vectors, outputs, inputs */
                                        {1, 1, 1},     {7, 15, 3},   {13, 17, 300},
                                        {25, 48, 257}, {6, 16, 256}, {40, 33, 513}};
    float scratch[BERTH_PARAKEET_PRODUCT_SCRATCH];
    for (uint32_t level = 0; level < BERTH_PARAKEET_KERNELS; level++) {
        const struct berth_parakeet_kernels *kernels = berth_parakeet_kernels_at(level);
        for (size_t i = 0; kernels != NULL && i < 2 * BERTH_COUNT_OF(sizes); i++) {
            const uint32_t *size = sizes[i / 2];
            const bool across = i % 2 == 1;
            const uint64_t stride = (across ? size[1] : size[2]) + 3;
            float *a = make((size_t)size[0] * size[2]);
            float *b = make((across ? size[2] : size[1]) * stride);
            float *c = make((size_t)size[0] * size[1]);
            float *before = make((size_t)size[0] * size[1]);
            memcpy(before, c, (size_t)size[0] * size[1] * sizeof(float));
            const struct berth_parakeet_product product = {.a = a,
                                                           .b = b,
                                                           .c = c,
                                                           .a_stride = size[2],
                                                           .b_stride = stride,
                                                           .c_stride = size[1],
                                                           .n = size[0],
                                                           .columns = size[1],
                                                           .depth = size[2],
                                                           .scale = 0.5F,
                                                           .across = across,
                                                           .add = i % 4 < 2};
            berth_parakeet_multiply(kernels, &product, scratch);
            for (uint32_t n = 0; n < size[0]; n++) {
                for (uint32_t o = 0; o < size[1]; o++) {
                    double sum = 0;
                    for (uint32_t k = 0; k < size[2]; k++) {
                        sum += (double)a[n * size[2] + k] *
                               b[across ? k * stride + o : o * stride + k];
                    }
                    sum = 0.5 * sum + (product.add ? before[n * size[1] + o] : 0);
                    assert_close(c[n * size[1] + o], sum, 1e-5);
                }
            }
            berth_free(a);
            berth_free(b);
            berth_free(c);
            berth_free(before);
        }
    }
}

static double activate(double x, enum berth_parakeet_activation activation)
{
    return activation == BERTH_PARAKEET_NONE   ? x
           : activation == BERTH_PARAKEET_RELU ? fmax(x, 0)
                                               : x / (1 + exp(-x));
}

static void check_linear(const struct rig *rig, const struct berth_parakeet_linear_call *call,
                         const float *before)
{
    const struct berth_parakeet_linear *linear = call->linear;
    for (uint64_t v = 0; v < call->n; v++) {
        uint64_t row = v / (call->n / call->rows);
        if (v % (call->n / call->rows) >= (uint64_t)call->used[row] * call->each) {
            continue;
        }
        for (uint32_t o = 0; o < linear->out; o++) {
            double sum = linear->bias == NULL ? 0 : ((const float *)linear->bias)[o];
            for (uint32_t k = 0; k < linear->in; k++) {
                sum += (double)((const float *)call->in)[v * linear->in + k] *
                       ((const float *)linear->weight)[o * linear->in + k];
            }
            sum = call->scale * activate(sum, call->activation);
            sum += call->residual == NULL ? 0 : before[v * linear->out + o];
            assert_close(((float *)call->out)[v * linear->out + o], sum, 2e-5);
        }
    }
}

/* All activations, with bias and residual and without, in place and not. */
static void linear_is_one(void **state)
{
    struct rig rig;
    rig_init(&rig, 16000);
    const uint32_t in = 300;
    const uint32_t out = 70;
    const uint64_t each = 3;
    const uint64_t n = ROWS * rig.shape.padded.frames * each;
    float *x = make(n * in);
    float *weight = make((size_t)in * out);
    float *bias = make(out);
    float *residual = make(n * out);
    float *y = make(n * out);
    float *before = make(n * out);
    const size_t sizes[2] = {rig.shape.padded.frames, each * in};
    spoil(x, &rig, rig.counts.frames, sizes);
    for (int i = 0; i < 12; i++) {
        const struct berth_parakeet_linear linear = {
            .weight = weight, .bias = i % 2 == 0 ? bias : NULL, .in = in, .out = out};
        struct berth_parakeet_linear_call call = {.linear = &linear,
                                                  .in = x,
                                                  .out = y,
                                                  .scale = i < 6 ? 1.0F : 0.5F,
                                                  .n = n,
                                                  .used = rig.counts.frames,
                                                  .rows = ROWS,
                                                  .each = (uint32_t)each};
        if (i < 6) {
            call.activation = (enum berth_parakeet_activation)(i / 2);
        } else if (i < 10) {
            call.residual = i < 8 ? y : residual;
        }
        memcpy(before, call.residual == NULL ? y : call.residual, n * out * sizeof(float));
        ops->linear(device, &call);
        check_linear(&rig, &call, before);
    }
    berth_free(x);
    berth_free(weight);
    berth_free(bias);
    berth_free(residual);
    berth_free(y);
    berth_free(before);
}

static void norm_is_one(void **state)
{
    const uint32_t hidden = 133;
    const uint32_t n = 70;
    float *x = make((size_t)n * hidden);
    float *once = make((size_t)n * hidden);
    float *twice = make((size_t)n * hidden);
    float *factors = make((size_t)4 * hidden);
    const struct berth_parakeet_norm first = {factors, factors + hidden};
    const struct berth_parakeet_norm second = {factors + 2 * hidden, factors + 3 * hidden};
    memset(x, 0, hidden * sizeof(float)); /* no deviation */
    struct berth_parakeet_norm_call call = {
        .norm = &first, .in = x, .through = x, .out = once, .n = n, .hidden = hidden};
    ops->norm(device, &call);
    for (uint32_t v = 0; v < n; v++) {
        double mean = 0;
        double square = 0;
        for (uint32_t c = 0; c < hidden; c++) {
            mean += x[v * hidden + c] / (double)hidden;
        }
        for (uint32_t c = 0; c < hidden; c++) {
            square += pow(x[v * hidden + c] - mean, 2) / hidden;
        }
        for (uint32_t c = 0; c < hidden; c++) {
            double wanted = (x[v * hidden + c] - mean) / sqrt(square + 1e-5);
            assert_close(once[v * hidden + c], wanted * first.gamma[c] + first.beta[c], 1e-5);
        }
    }
    float *expected = make((size_t)n * hidden);
    call = (struct berth_parakeet_norm_call){
        .norm = &second, .in = once, .out = expected, .n = n, .hidden = hidden};
    ops->norm(device, &call);
    call = (struct berth_parakeet_norm_call){.norm = &first,
                                             .second = &second,
                                             .in = x,
                                             .through = x,
                                             .out = twice,
                                             .n = n,
                                             .hidden = hidden};
    ops->norm(device, &call);
    assert_memory_equal(x, once, (size_t)n * hidden * sizeof(float));
    assert_memory_equal(twice, expected, (size_t)n * hidden * sizeof(float));
    berth_free(x);
    berth_free(once);
    berth_free(twice);
    berth_free(factors);
    berth_free(expected);
}

static double weight_of(const struct berth_parakeet_attention_call *call, const float *row,
                        const uint32_t at[3])
{
    const uint32_t dim = call->head_dim;
    const size_t hidden = (size_t)call->heads * dim;
    const float *q = row + (size_t)at[1] * 3 * hidden + (size_t)at[0] * dim;
    const float *k = row + ((size_t)at[2] * 3 + 1) * hidden + (size_t)at[0] * dim;
    const float *p = (const float *)call->position +
                     (size_t)(call->position_max - 1 - at[1] + at[2]) * hidden +
                     (size_t)at[0] * dim;
    double sum = 0;
    for (uint32_t c = 0; c < dim; c++) {
        sum += (q[c] + call->bias_u[at[0] * dim + c]) * (double)k[c] +
               (q[c] + call->bias_v[at[0] * dim + c]) * (double)p[c];
    }
    return exp(sum / sqrt(dim));
}

/* Two heads; the long row has more keys than a block. */
static void attention_is_relative(void **state)
{
    struct rig rig;
    const uint32_t dim = 8;
    const uint32_t hidden = 2 * dim;
    rig_init(&rig, 270 * 1280);
    const size_t frames = rig.shape.padded.frames;
    const uint32_t position_max = (uint32_t)frames + 9;
    float *qkv = make(ROWS * frames * 3 * hidden);
    float *position = make((size_t)(2 * position_max - 1) * hidden);
    float *biases = make((size_t)2 * hidden);
    float *out = make(ROWS * frames * hidden);
    const size_t sizes[2] = {frames, (size_t)3 * hidden};
    spoil(qkv, &rig, rig.counts.frames, sizes);
    const struct berth_parakeet_attention_call call = {
        qkv, position, position_max, biases, biases + hidden, out, 2, dim};
    ops->attention(device, &rig.shape, &rig.counts, &call);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < frames; i++) {
            for (uint32_t h = 0; h < 2; h++) {
                double sum[8] = {0};
                double all = 0;
                const float *row = qkv + r * frames * 3 * hidden;
                for (uint32_t j = 0; i < rig.own[r].frames && j < rig.own[r].frames; j++) {
                    const uint32_t at[3] = {h, i, j};
                    double weight = weight_of(&call, row, at);
                    all += weight;
                    for (uint32_t c = 0; c < dim; c++) {
                        sum[c] += weight * row[(j * 3 + 2) * hidden + h * dim + c];
                    }
                }
                for (uint32_t c = 0; c < dim; c++) {
                    assert_close(out[(r * frames + i) * hidden + h * dim + c],
                                 all > 0 ? sum[c] / all : 0, 1e-5);
                }
            }
        }
    }
    berth_free(qkv);
    berth_free(position);
    berth_free(biases);
    berth_free(out);
}

static void convolution_is_masked(void **state)
{
    struct rig rig;
    rig_init(&rig, 100 * 1280);
    const uint32_t hidden = config.hidden;
    const size_t frames = rig.shape.padded.frames;
    float *in = make(ROWS * frames * 2 * hidden);
    float *out = make(ROWS * frames * hidden);
    float *weight = make((size_t)config.kernel * hidden);
    float *bias = make(hidden);
    const struct berth_parakeet_depthwise conv = {weight, bias};
    const size_t sizes[2] = {frames, (size_t)2 * hidden};
    spoil(in, &rig, rig.counts.frames, sizes);
    ops->convolve(device, &config, &rig.shape, &rig.counts, &conv, in, out);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (int64_t t = 0; t < rig.own[r].frames; t++) {
            for (uint32_t c = 0; c < hidden; c++) {
                double sum = bias[c];
                for (int64_t k = 0; k < config.kernel; k++) {
                    int64_t at = t + k - config.kernel / 2;
                    if (at >= 0 && at < rig.own[r].frames) {
                        const float *x = in + (r * frames + (size_t)at) * 2 * hidden + c;
                        sum += weight[(size_t)k * hidden + c] * (x[0] / (1 + exp(-x[hidden])));
                    }
                }
                assert_close(out[(r * frames + (size_t)t) * hidden + c],
                             activate(sum, BERTH_PARAKEET_SILU), 1e-5);
            }
        }
    }
    berth_free(in);
    berth_free(out);
    berth_free(weight);
    berth_free(bias);
}

/* 3 x 3, stride 2, one channel of what lies in a row: lines, places, step between places. */
struct plane {
    const double *values;
    int64_t lines, places, step;
};

static double convolve_plane(const struct plane *plane, const float *weight, uint32_t channels,
                             const int64_t at[2])
{
    double sum = 0;
    for (int64_t tap = 0; tap < 9; tap++) {
        int64_t line = 2 * at[0] - 1 + tap / 3;
        int64_t place = 2 * at[1] - 1 + tap % 3;
        if (line >= 0 && line < plane->lines && place >= 0 && place < plane->places) {
            sum += plane->values[(line * plane->places + place) * plane->step] *
                   weight[(size_t)tap * channels];
        }
    }
    return sum;
}

static void check_first(const struct rig *rig, const struct berth_parakeet_depthwise convs[2],
                        const float *in, const float *out)
{
    const uint32_t channels = config.channels;
    const int64_t mels = config.mels;
    double *features = berth_alloc(rig->shape.padded.features * (size_t)mels * sizeof(double));
    double *half = berth_alloc(rig->shape.padded.half * (size_t)mels / 2 * sizeof(double));
    assert_non_null(features);
    assert_non_null(half);
    for (uint32_t r = 0; r < ROWS; r++) {
        const struct berth_parakeet_lengths *own = &rig->own[r];
        for (size_t i = 0; i < own->features * (size_t)mels; i++) {
            features[i] = in[r * rig->shape.padded.features * (size_t)mels + i];
        }
        const struct plane whole = {features, own->features, mels, 1};
        const struct plane halved = {half, own->half, mels / 2, 1};
        for (uint32_t c = 0; c < channels; c++) {
            for (int64_t i = 0; i < own->half * mels / 2; i++) {
                const int64_t at[2] = {i / (mels / 2), i % (mels / 2)};
                half[i] = fmax(0, convs[0].bias[c] +
                                      convolve_plane(&whole, convs[0].weight + c, channels, at));
            }
            for (int64_t i = 0; i < own->quarter * mels / 4; i++) {
                const int64_t at[2] = {i / (mels / 4), i % (mels / 4)};
                size_t place = r * rig->shape.padded.quarter * (size_t)mels / 4 + (size_t)i;
                assert_close(out[place * channels + c],
                             convs[1].bias[c] +
                                 convolve_plane(&halved, convs[1].weight + c, channels, at),
                             1e-5);
            }
        }
    }
    berth_free(features);
    berth_free(half);
}

static void subsampling_is_two_convolutions(void **state)
{
    struct rig rig;
    rig_init(&rig, 48000);
    float *in = make((size_t)ROWS * rig.shape.padded.features * config.mels);
    float *out = make((size_t)ROWS * rig.shape.padded.quarter * config.mels / 4 * config.channels);
    float *values = make((size_t)20 * config.channels);
    const struct berth_parakeet_depthwise convs[2] = {
        {values, values + 9 * config.channels},
        {values + 10 * config.channels, values + 19 * config.channels}};
    const size_t sizes[2] = {rig.shape.padded.features, config.mels};
    spoil(in, &rig, rig.counts.features, sizes);
    ops->subsample_first(device, &config, &rig.shape, &rig.counts, &convs[0], &convs[1], in, out);
    check_first(&rig, convs, in, out);
    berth_free(in);
    berth_free(out);
    berth_free(values);
}

static void third_convolution_is_masked(void **state)
{
    struct rig rig;
    rig_init(&rig, 48000);
    const uint32_t channels = config.channels;
    const size_t wide = config.mels / 4;
    const size_t line = wide * channels;
    float *in = make(ROWS * rig.shape.padded.quarter * line);
    float *out = make(ROWS * rig.shape.padded.frames * line / 2);
    float *values = make((size_t)10 * channels);
    double *row = berth_alloc(rig.shape.padded.quarter * line * sizeof(double));
    assert_non_null(row);
    const struct berth_parakeet_depthwise conv = {values, values + 9 * channels};
    const size_t sizes[2] = {rig.shape.padded.quarter, line};
    spoil(in, &rig, rig.counts.quarter, sizes);
    ops->subsample_third(device, &config, &rig.shape, &rig.counts, &conv, in, out);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < rig.own[r].quarter * line; i++) {
            row[i] = in[r * rig.shape.padded.quarter * line + i];
        }
        for (size_t i = 0; i < rig.own[r].frames * line / 2; i++) {
            const size_t c = i % channels;
            const int64_t at[2] = {(int64_t)(i / (line / 2)), (int64_t)(i / channels % (wide / 2))};
            const struct plane plane = {row + c, rig.own[r].quarter, (int64_t)wide, channels};
            assert_close(out[r * rig.shape.padded.frames * line / 2 + i],
                         conv.bias[c] + convolve_plane(&plane, conv.weight + c, channels, at),
                         1e-5);
        }
    }
    berth_free(in);
    berth_free(out);
    berth_free(values);
    berth_free(row);
}

static double mel_weight(double hz, uint32_t mel)
{
    double points[3];
    for (int i = 0; i < 3; i++) {
        double at = (15 + 27 * log(8) / log(6.4)) / (config.mels + 1) * (mel + (uint32_t)i);
        points[i] = at < 15 ? at * 200 / 3 : 1000 * pow(6.4, (at - 15) / 27);
    }
    double weight = fmin((hz - points[0]) / (points[1] - points[0]),
                         (points[2] - hz) / (points[2] - points[1]));
    return weight > 0 ? weight * 2 / (points[2] - points[0]) : 0;
}

/* Logarithms of one frame, by the definition of a Fourier transform. */
static void naive_frame(const float *pcm, int64_t samples, int64_t frame, double *out)
{
    double energy[128] = {0};
    for (int k = 0; k <= 256; k++) {
        double real = 0;
        double imaginary = 0;
        for (int64_t i = 56; i < 456; i++) {
            int64_t at = frame * 160 - 256 + i;
            if (at >= 0 && at < samples) {
                double x = pcm[at] - (at > 0 ? (double)0.97F * pcm[at - 1] : 0);
                x *= 0.5 - 0.5 * cos(2 * M_PI * (double)(i - 56) / 399);
                real += x * cos(2 * M_PI * (double)(i * k % 512) / 512);
                imaginary -= x * sin(2 * M_PI * (double)(i * k % 512) / 512);
            }
        }
        for (uint32_t m = 0; m < config.mels; m++) {
            energy[m] += mel_weight(k * 31.25, m) * (real * real + imaginary * imaginary);
        }
    }
    for (uint32_t m = 0; m < config.mels; m++) {
        out[m] = log(energy[m] + 0x1p-24);
    }
}

static void check_features(const struct rig *rig, const float *pcm, const float *out, uint32_t row)
{
    const uint32_t own = rig->own[row].features;
    const uint32_t mels = config.mels;
    double *wanted = berth_alloc((own + 1) * mels * sizeof(double));
    assert_non_null(wanted);
    for (uint32_t t = 0; t < own; t++) {
        naive_frame(pcm, rig->own[row].samples, t, wanted + (size_t)t * mels);
    }
    for (uint32_t m = 0; m < mels; m++) {
        double mean = 0;
        double square = 0;
        for (uint32_t t = 0; t < own; t++) {
            mean += wanted[t * mels + m] / own;
        }
        for (uint32_t t = 0; t < own; t++) {
            square += pow(wanted[t * mels + m] - mean, 2);
        }
        double deviation = own > 1 ? sqrt(square / (own - 1)) : 0;
        for (uint32_t t = 0; t < rig->shape.padded.features; t++) {
            double value = t < own ? (wanted[t * mels + m] - mean) / (deviation + 1e-5) : 0;
            /* A mean of one frame is that frame but for rounding, over 1e-5. */
            assert_close(out[t * mels + m], value, 1e-4);
        }
    }
    berth_free(wanted);
}

static void features_are_log_mels(void **state)
{
    struct rig rig;
    rig_init(&rig, 8000);
    const size_t samples = rig.shape.padded.samples;
    const size_t values = (size_t)rig.shape.padded.features * config.mels;
    float *pcm = make(ROWS * samples);
    float *out = make(ROWS * values);
    const size_t sizes[2] = {samples, 1};
    spoil(pcm, &rig, rig.counts.samples, sizes);
    ops->features(device, &config, &rig.shape, &rig.counts, pcm, out);
    for (uint32_t r = 0; r < ROWS; r++) {
        check_features(&rig, pcm + r * samples, out + r * values, r);
    }
    berth_free(pcm);
    berth_free(out);
}

static void positions_are_sinusoids(void **state)
{
    const uint32_t position_max = 450;
    const uint32_t hidden = 64;
    float *out = make((size_t)(2 * position_max - 1) * hidden);
    ops->positions(device, position_max, hidden, out);
    for (uint32_t p = 0; p < 2 * position_max - 1; p++) {
        double distance = (double)position_max - 1 - p;
        for (uint32_t c = 0; c < hidden; c++) {
            double angle = distance / pow(10000, (double)(c / 2 * 2) / hidden);
            assert_close(out[p * hidden + c], c % 2 == 0 ? sin(angle) : cos(angle), 5e-5);
        }
    }
    berth_free(out);
}

/* The loops for any processor and those for this one agree to the bit. */
static void widths_agree(void **state)
{
    const struct berth_parakeet_loops *plain = berth_parakeet_loops_plain();
    const struct berth_parakeet_loops *wide = berth_parakeet_loops_choose();
    float *a = make(400);
    float *b = make(400);
    float out[2][400];
    float peaks[2] = {-INFINITY, -INFINITY};
    for (uint32_t count = 1; count < 100; count++) {
        plain->glue(a, b, out[0], count);
        wide->glue(a, b, out[1], count);
        assert_memory_equal(out[0], out[1], count * sizeof(float));
        float sums[2] = {plain->dot(a, b, count), wide->dot(a, b, count)};
        assert_memory_equal(&sums[0], &sums[1], sizeof(float));
        memcpy(out[0], a, count * sizeof(float));
        memcpy(out[1], a, count * sizeof(float));
        sums[0] = plain->soften(out[0], b, 3.0F, count, &peaks[0]);
        sums[1] = wide->soften(out[1], b, 3.0F, count, &peaks[1]);
        assert_memory_equal(&sums[0], &sums[1], sizeof(float));
        assert_memory_equal(out[0], out[1], count * sizeof(float));
    }
    const float far[] = {-1e30F, -200, -80, -79.9F, -1e-20F, 0, 1e-20F, 79, 200, 1e30F};
    wide->glue(far, far, out[0], BERTH_COUNT_OF(far));
    for (size_t i = 0; i < BERTH_COUNT_OF(far); i++) {
        double x = far[i];
        assert_close(out[0][i], x < -87 ? 0 : x / (1 + exp(-x)), 1e-6);
    }
    berth_free(a);
    berth_free(b);
}

struct tally {
    atomic_uint *calls;
    uint32_t count;
};

static void count_call(const void *context, uint64_t index, float *scratch)
{
    const struct tally *tally = context;
    assert_true(index < tally->count);
    assert_int_equal((uintptr_t)scratch % 64, 0);
    scratch[0] = 1;
    scratch[BERTH_PARAKEET_SCRATCH - 1] = 1;
    atomic_fetch_add(&tally->calls[index], 1);
}

static void every_task_runs_once(void **state)
{
    static atomic_uint calls[500];
    for (uint32_t count = 0; count < 500; count += 7) {
        const struct tally tally = {calls, count};
        memset(calls, 0, sizeof(calls));
        for (int i = 0; i < 20; i++) {
            berth_parakeet_spread(device, count, count_call, &tally);
        }
        for (uint32_t i = 0; i < 500; i++) {
            assert_int_equal(atomic_load(&calls[i]), i < count ? 20 : 0);
        }
    }
}

static void thread_counts_are_checked(void **state)
{
    struct berth_err err = {0};
    struct berth_parakeet_device *opened = NULL;
    assert_int_equal(ops->open("cpu:0", 0, &opened, &err), BERTH_INVALID);
    assert_null(opened);
    assert_int_equal(ops->open("cpu:0", 257, &opened, &err), BERTH_OK); /* as many as it can use */
    ops->close(opened);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_sums),
        cmocka_unit_test(linear_is_one),
        cmocka_unit_test(norm_is_one),
        cmocka_unit_test(attention_is_relative),
        cmocka_unit_test(convolution_is_masked),
        cmocka_unit_test(subsampling_is_two_convolutions),
        cmocka_unit_test(third_convolution_is_masked),
        cmocka_unit_test(features_are_log_mels),
        cmocka_unit_test(positions_are_sinusoids),
        cmocka_unit_test(widths_agree),
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(thread_counts_are_checked),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
