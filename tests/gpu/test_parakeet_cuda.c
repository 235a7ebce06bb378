/* test_parakeet_cuda.c - every kernel of the CUDA back end against its CPU twin, and its time.
 *
 * usage: test_parakeet_cuda [check|time|both] [plain|small]      (default: both; plain: no kernel
 *        starts before the one it follows has ended; small: that, and all else that is decided by
 *        the device as on a small one, such as an L4, so that its ways are walked on any)
 * Prints PASS or FAIL with the relative error ||out - twin|| / ||twin|| of each case, then medians
 * per kernel at the shape of Parakeet 0.6B; exit status 0 when nothing failed. Inputs are random
 * and rounded to halves first (the stream: float32); outputs are poisoned before, and zeros are
 * compared bit by bit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "cli/random_parakeet.h"
#include "engine/parakeet/backend.h"
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/linear.h"
#include "engine/parakeet/cuda/product_sm90.h"
#include "engine/parakeet/e4m3.h"
#include "engine/parakeet/encoder.h"

#define ROWS_MAX 64
#define THREADS 8
#define LIMIT 1e-3        /* of the relative error: halves out, float32 sums */
#define LIMIT_STREAM 1e-4 /* float32 out */
#define LIMIT_NARROW 1e-2 /* e4m3 out, beside the twin's e4m3 */
#define SMALL_CAPABILITY 89
#define SMALL_SHARED (99 << 10) /* bytes a block may have */
#define SMALL_COUNT 58          /* multiprocessors */
#define REPEATS 20
#define ROUNDS 9

/* What a vector of an output has to be. */
enum kind { TWIN, ZERO, ANYTHING };

struct bench {
    const struct berth_parakeet_ops *cpu, *gpu;
    struct berth_parakeet_device *on_cpu, *on_gpu;
    uint64_t random;
    uint64_t key;
    int failures;
    cudaEvent_t begin, end;
};

/* The same numbers on both devices. */
struct pair {
    void *cpu, *gpu;
    uint64_t count;
    size_t size; /* of an element on the GPU: 2 (half) or 4 */
};

struct counts_pair {
    struct pair pairs[6];
    struct berth_parakeet_counts cpu, gpu;
    struct berth_parakeet_shape shape;
    struct berth_parakeet_lengths own[ROWS_MAX];
};

static void compare_within(struct bench *b, const char *name, const struct pair *out,
                           uint64_t vectors, const uint8_t *kinds, double limit);

static void need(bool good, const char *what)
{
    if (!good) {
        printf("FAIL  %s\n", what);
        exit(1);
    }
}

static uint32_t draw(struct bench *b)
{
    b->random = b->random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(b->random >> 33);
}

/* About normal, deviation 1. */
static float draw_normal(struct bench *b)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(draw(b) & 0xffff) / 65536.0F - 0.5F;
    }
    return sum * 1.7320508F;
}

/* To the nearest, to the even one of two as near. */
static uint16_t to_half(float value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double magnitude = fabs((double)value);
    int exponent = 0;
    if (!(magnitude < 65520)) {
        return (uint16_t)(sign | (isnan(value) ? 0x7e00 : 0x7c00));
    }
    if (magnitude == 0) {
        return sign;
    }
    (void)frexp(magnitude, &exponent); /* magnitude < 2^exponent */
    const int last = exponent < -13 ? -24 : exponent - 11; /* the last bit's exponent */
    const unsigned steps = (unsigned)nearbyint(ldexp(magnitude, -last));
    /* The one before the fraction, or a carry out of it, counts the exponent up. */
    return (uint16_t)(sign | (((unsigned)(last + 24) << 10) + steps));
}

static float from_half(uint16_t half)
{
    const int exponent = half >> 10 & 31;
    const float fraction = (float)(half & 0x3ff) / 1024.0F;
    const float magnitude = exponent == 31  ? (fraction > 0 ? NAN : INFINITY)
                            : exponent == 0 ? ldexpf(fraction, -14)
                                            : ldexpf(1 + fraction, exponent - 15);
    return half >> 15 != 0 ? -magnitude : magnitude;
}

/* values: float32 of the host, rounded to halves here when size is 2; NULL: poison. */
static struct pair pair_make(struct bench *b, uint64_t count, size_t size, float *values)
{
    struct pair pair = {.count = count, .size = size};
    float *poison = NULL;
    pair.cpu = b->cpu->alloc(b->on_cpu, count * 4);
    pair.gpu = b->gpu->alloc(b->on_gpu, count * size);
    need(pair.cpu != NULL && pair.gpu != NULL, "memory");
    if (values == NULL) {
        poison = berth_alloc(count * 4);
        need(poison != NULL, "memory");
        memset(poison, 0xff, count * 4);
        values = poison;
    }
    uint16_t *halves = berth_alloc(count * 2);
    need(halves != NULL, "memory");
    for (uint64_t i = 0; i < count && size == 2; i++) {
        halves[i] = poison != NULL ? 0xffff : to_half(values[i]);
        values[i] = poison != NULL ? values[i] : from_half(halves[i]);
    }
    b->cpu->upload(b->on_cpu, pair.cpu, values, count * 4);
    b->gpu->upload(b->on_gpu, pair.gpu, size == 2 ? (void *)halves : (void *)values, count * size);
    need(b->gpu->finish(b->on_gpu, NULL) == BERTH_OK, "upload");
    berth_free(halves);
    berth_free(poison);
    return pair;
}

static struct pair pair_random(struct bench *b, uint64_t count, size_t size, float scale, float add)
{
    float *values = berth_alloc(count * 4);
    need(values != NULL, "memory");
    for (uint64_t i = 0; i < count; i++) {
        values[i] = draw_normal(b) * scale + add;
    }
    struct pair pair = pair_make(b, count, size, values);
    berth_free(values);
    return pair;
}

static struct pair pair_ints(struct bench *b, const int32_t *values, uint32_t count)
{
    float bits[ROWS_MAX];
    memcpy(bits, values, count * sizeof(*values));
    return pair_make(b, count, 4, bits);
}

static void pair_free(struct bench *b, struct pair *pair)
{
    b->cpu->free(b->on_cpu, pair->cpu, pair->count * 4);
    b->gpu->free(b->on_gpu, pair->gpu, pair->count * pair->size);
}

static struct counts_pair counts_make(struct bench *b, uint32_t rows, const uint32_t *samples,
                                      uint32_t padded)
{
    struct counts_pair out = {.shape = {rows, berth_parakeet_lengths_of(padded)}};
    int32_t values[6][ROWS_MAX] = {{0}};
    for (uint32_t r = 0; r < rows; r++) {
        out.own[r] = berth_parakeet_lengths_of(samples[r]);
        values[0][r] = (int32_t)out.own[r].samples;
        values[1][r] = (int32_t)out.own[r].features;
        values[2][r] = (int32_t)out.own[r].half;
        values[3][r] = (int32_t)out.own[r].quarter;
        values[4][r] = (int32_t)out.own[r].frames;
    }
    for (int i = 0; i < 6; i++) {
        out.pairs[i] = pair_ints(b, values[i], rows);
    }
    out.cpu = (struct berth_parakeet_counts){out.pairs[0].cpu, out.pairs[1].cpu, out.pairs[2].cpu,
                                             out.pairs[3].cpu, out.pairs[4].cpu, out.pairs[5].cpu};
    out.gpu = (struct berth_parakeet_counts){out.pairs[0].gpu, out.pairs[1].gpu, out.pairs[2].gpu,
                                             out.pairs[3].gpu, out.pairs[4].gpu, out.pairs[5].gpu};
    return out;
}

static void counts_free(struct bench *b, struct counts_pair *counts)
{
    for (int i = 0; i < 6; i++) {
        pair_free(b, &counts->pairs[i]);
    }
}

/* Samples that make so many encoder frames. */
static uint32_t samples_of(uint32_t frames)
{
    return frames == 0 ? 0 : ((frames - 1) * 8 + 1) * BERTH_PARAKEET_HOP;
}

static void say(struct bench *b, bool good, const char *name, double error)
{
    printf("%s  %-44s %.2e\n", good ? "PASS" : "FAIL", name, error);
    b->failures += good ? 0 : 1;
}

/* A vector as e4m3 and its scale. */
static void narrow(const float *values, uint32_t width, uint8_t *codes, float *scale)
{
    float largest = 0;
    for (uint32_t i = 0; i < width; i++) {
        largest = fmaxf(largest, fabsf(values[i]));
    }
    *scale = largest > 0 ? largest / BERTH_E4M3_MAX : 1;
    for (uint32_t i = 0; i < width; i++) {
        codes[i] = berth_e4m3_of(values[i] / *scale);
    }
}

/* Compares codes and scales of the GPU with those of the twin's numbers; a few fall to the other
 * side of a rounding. */
static void compare_narrow(struct bench *b, const char *name, const float *twin,
                           const struct pair *codes, const struct pair *scales)
{
    const uint64_t vectors = scales->count;
    const uint32_t width = (uint32_t)(codes->count / vectors);
    uint8_t *got = berth_alloc(codes->count);
    uint8_t *want = berth_alloc(width);
    float *got_scales = berth_alloc(vectors * 4);
    double difference = 0, norm = 0;
    bool close = true;
    need(got != NULL && want != NULL && got_scales != NULL, "memory");
    b->gpu->download(b->on_gpu, got, codes->gpu, codes->count);
    b->gpu->download(b->on_gpu, got_scales, scales->gpu, vectors * 4);
    need(b->gpu->finish(b->on_gpu, NULL) == BERTH_OK, name);
    for (uint64_t v = 0; v < vectors; v++) {
        float scale = 0;
        narrow(twin + v * width, width, want, &scale);
        close = close && fabsf(got_scales[v] - scale) <= 2e-3F * scale;
        for (uint32_t i = 0; i < width; i++) {
            const uint8_t code = got[v * width + i];
            const double value = (double)berth_e4m3_value(code) * (double)got_scales[v];
            const double expected = (double)berth_e4m3_value(want[i]) * (double)scale;
            close = close && (code & 0x7F) != 0x7F;
            difference += (value - expected) * (value - expected);
            norm += expected * expected;
        }
    }
    const double error = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    say(b, close && error <= LIMIT_NARROW, name, error);
    berth_free(got);
    berth_free(want);
    berth_free(got_scales);
}

/* Compares an output of `vectors` vectors; kinds NULL: all as the twin's. */
static void compare(struct bench *b, const char *name, const struct pair *out, uint64_t vectors,
                    const uint8_t *kinds)
{
    compare_within(b, name, out, vectors, kinds, out->size == 4 ? LIMIT_STREAM : LIMIT);
}

/* lib-shaped */
static void compare_within(struct bench *b, const char *name, const struct pair *out,
                           uint64_t vectors, const uint8_t *kinds, double limit)
{
    const uint64_t width = out->count / vectors;
    float *want = berth_alloc(out->count * 4);
    uint16_t *got = berth_alloc(out->count * out->size);
    const float *got_floats = (const float *)(const void *)got;
    double difference = 0, norm = 0, worst = 0;
    bool zeros = true;
    struct berth_err err = {0};
    need(want != NULL && got != NULL, "memory");
    b->cpu->download(b->on_cpu, want, out->cpu, out->count * 4);
    b->gpu->download(b->on_gpu, got, out->gpu, out->count * out->size);
    if (b->gpu->finish(b->on_gpu, &err) != BERTH_OK) {
        printf("      %s\n", err.msg);
        difference = NAN;
    }
    for (uint64_t i = 0; i < out->count; i++) {
        const enum kind kind = kinds == NULL ? TWIN : (enum kind)kinds[i / width];
        const double value = (double)(out->size == 4 ? got_floats[i] : from_half(got[i]));
        const double d = value - (double)want[i];
        if (kind == TWIN) {
            difference += d * d;
            norm += (double)want[i] * (double)want[i];
            worst = fabs(d) > worst ? fabs(d) : worst;
        } else if (kind == ZERO && (out->size == 4 ? value != 0 : got[i] != 0)) {
            zeros = false;
        }
    }
    const double error = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    say(b, error <= limit && zeros, name, error);
    if (!(error <= limit && zeros)) {
        printf("      worst difference %.3e, %s\n", worst,
               zeros ? "zeros are zero" : "not zero past a row's end");
    }
    berth_free(want);
    berth_free(got);
}

/* What each vector of [rows][padded][each] has to be: as the twin's up to the row's own. */
static uint8_t *kinds_make(const struct counts_pair *counts, uint32_t padded, uint32_t each,
                           const uint32_t *own, enum kind past)
{
    const uint64_t row = (uint64_t)padded * each;
    uint8_t *kinds = berth_alloc(row * counts->shape.rows + 1);
    need(kinds != NULL, "memory");
    for (uint32_t r = 0; r < counts->shape.rows; r++) {
        memset(kinds + r * row, (int)past, row);
        memset(kinds + r * row, TWIN, (uint64_t)own[r] * each);
    }
    return kinds;
}

struct linear_case {
    uint64_t n;
    uint32_t in, out;
    bool bias, residual, stream;
    float scale;
    enum berth_parakeet_activation activation;
};

static void check_linear(struct bench *b, const struct linear_case *c)
{
    char name[96];
    struct pair in = pair_random(b, c->n * c->in, 2, 1, 0);
    struct pair weight = pair_random(b, (uint64_t)c->in * c->out, 2, 1.0F / sqrtf((float)c->in), 0);
    struct pair bias = pair_random(b, c->out, 2, 1, 0);
    const size_t size = c->stream ? 4 : 2;
    struct pair out = c->residual ? pair_random(b, c->n * c->out, size, 1, 0)
                                  : pair_make(b, c->n * c->out, size, NULL);
    struct berth_parakeet_linear cpu = {.weight = weight.cpu,
                                        .bias = c->bias ? bias.cpu : NULL,
                                        .in = c->in,
                                        .out = c->out};
    struct berth_parakeet_linear gpu = cpu;
    gpu.weight = weight.gpu;
    gpu.bias = c->bias ? bias.gpu : NULL;
    struct berth_parakeet_linear_call call = {.linear = &cpu,
                                              .in = in.cpu,
                                              .out = out.cpu,
                                              .residual = c->residual ? out.cpu : NULL,
                                              .stream = c->stream,
                                              .scale = c->scale,
                                              .activation = c->activation,
                                              .n = c->n,
                                              .rows = 1,
                                              .each = 1};
    b->cpu->linear(b->on_cpu, &call);
    call.linear = &gpu;
    call.in = in.gpu;
    call.out = out.gpu;
    call.residual = c->residual ? out.gpu : NULL;
    b->gpu->linear(b->on_gpu, &call);
    static const char *const activations[] = {"", " relu", " silu"};
    (void)snprintf(name, sizeof(name), "linear %llu x %u -> %u%s%s%s%s", (unsigned long long)c->n,
                   c->in, c->out, c->bias ? " bias" : "", activations[c->activation],
                   c->residual ? " residual" : "", c->stream ? " stream" : "");
    compare(b, name, &out, c->n, NULL);
    pair_free(b, &in);
    pair_free(b, &weight);
    pair_free(b, &bias);
    pair_free(b, &out);
}

/* Numbers as e4m3, a vector of `width` divided by its scale, on the GPU; the CPU's twin has what
 * stands behind them. */
static struct pair pair_narrow(struct bench *b, uint64_t vectors, uint32_t width, float size,
                               struct pair *scales)
{
    const uint64_t count = vectors * width;
    struct pair pair = {.count = count, .size = 1};
    uint8_t *codes = berth_alloc(count);
    float *values = berth_alloc(count * 4);
    float *factors = berth_alloc(vectors * 4);
    need(codes != NULL && values != NULL && factors != NULL, "memory");
    for (uint64_t i = 0; i < count; i++) {
        values[i] = draw_normal(b) * size;
    }
    for (uint64_t v = 0; v < vectors; v++) {
        narrow(values + v * width, width, codes + v * width, &factors[v]);
        for (uint32_t i = 0; i < width; i++) {
            values[v * width + i] = berth_e4m3_value(codes[v * width + i]) * factors[v];
        }
    }
    *scales = pair_make(b, vectors, 4, factors);
    pair.cpu = b->cpu->alloc(b->on_cpu, count * 4);
    pair.gpu = b->gpu->alloc(b->on_gpu, count);
    need(pair.cpu != NULL && pair.gpu != NULL, "memory");
    b->cpu->upload(b->on_cpu, pair.cpu, values, count * 4);
    b->gpu->upload(b->on_gpu, pair.gpu, codes, count);
    need(b->gpu->finish(b->on_gpu, NULL) == BERTH_OK, "upload");
    berth_free(codes);
    berth_free(values);
    berth_free(factors);
    return pair;
}

/* e4m3 operands: with SiLU also the output. Sums of e4m3 have fewer bits than float32. */
static void check_linear_narrow(struct bench *b, const struct linear_case *c)
{
    char name[96];
    const size_t size = c->stream ? 4 : 2;
    struct pair in_scale, weight_scale;
    struct pair in = pair_narrow(b, c->n, c->in, 1, &in_scale);
    struct pair weight =
        pair_narrow(b, c->out, c->in, 1.0F / sqrtf((float)c->in), &weight_scale);
    struct pair bias = pair_random(b, c->out, 2, 1, 0);
    struct pair out = c->residual ? pair_random(b, c->n * c->out, size, 1, 0)
                                  : pair_make(b, c->n * c->out, size, NULL);
    struct pair codes = pair_make(b, c->n * c->out, 2, NULL); /* half of it is used */
    struct pair scales = pair_make(b, c->n, 4, NULL);
    struct berth_parakeet_linear linear = {.weight = weight.cpu,
                                           .bias = c->bias ? bias.cpu : NULL,
                                           .in = c->in,
                                           .out = c->out};
    struct berth_parakeet_linear_call call = {.linear = &linear,
                                              .in = in.cpu,
                                              .out = out.cpu,
                                              .residual = c->residual ? out.cpu : NULL,
                                              .stream = c->stream,
                                              .scale = c->scale,
                                              .activation = c->activation,
                                              .n = c->n,
                                              .rows = 1,
                                              .each = 1};
    b->cpu->linear(b->on_cpu, &call);
    linear.weight = weight.gpu;
    linear.bias = c->bias ? bias.gpu : NULL;
    linear.scale = weight_scale.gpu;
    call.in = in.gpu;
    call.in_scale = in_scale.gpu;
    call.out = out.gpu;
    call.narrow = codes.gpu;
    call.narrow_scale = scales.gpu;
    call.scratch = codes.gpu;
    call.residual = c->residual ? out.gpu : NULL;
    b->gpu->linear(b->on_gpu, &call);
    const bool silu = c->activation == BERTH_PARAKEET_SILU;
    (void)snprintf(name, sizeof(name), "e4m3 %llu x %u -> %u%s%s%s%s", (unsigned long long)c->n,
                   c->in, c->out, c->bias ? " bias" : "", silu ? " silu" : "",
                   c->residual ? " residual" : "", c->stream ? " stream" : "");
    if (silu) {
        compare_narrow(b, name, out.cpu, &codes, &scales);
    } else {
        compare_within(b, name, &out, c->n, NULL, LIMIT);
    }
    struct pair *all[] = {&in, &in_scale, &weight, &weight_scale, &bias, &out, &codes, &scales};
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        pair_free(b, all[i]);
    }
}

static void check_linears_narrow(struct bench *b)
{
    static const struct linear_case cases[] = {
        {1, 64, 64, false, false, false, 1, BERTH_PARAKEET_NONE},
        {1, 64, 64, true, false, false, 1, BERTH_PARAKEET_SILU},
        {125, 1024, 4096, false, false, false, 1, BERTH_PARAKEET_SILU},
        {126, 1024, 3072, false, false, false, 1, BERTH_PARAKEET_NONE},
        {126, 4096, 1024, false, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {33, 4096, 1024, true, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {5, 256, 528, true, false, true, 2, BERTH_PARAKEET_NONE},
        {1024, 1024, 256, false, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {1025, 1024, 256, true, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {1000, 256, 528, true, false, false, 1, BERTH_PARAKEET_SILU},
        {40, 2560, 16384, true, false, false, 1, BERTH_PARAKEET_SILU},
        {2000, 4096, 1024, false, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {7, 256, 512, true, false, false, 1, BERTH_PARAKEET_NONE},
        {8000, 256, 512, true, false, false, 1, BERTH_PARAKEET_NONE},
    };
    if (b->on_gpu->capability != 90) {
        printf("SKIP  e4m3: for compute capability 9.0\n");
        return;
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        check_linear_narrow(b, &cases[i]);
    }
}

static void check_linears(struct bench *b)
{
    static const struct linear_case cases[] = {
        {1, 64, 64, false, false, false, 1, BERTH_PARAKEET_NONE},
        {1, 64, 64, false, false, true, 1, BERTH_PARAKEET_NONE},
        {125, 1024, 4096, false, false, false, 1, BERTH_PARAKEET_SILU},
        {600, 64, 4104, false, false, false, 1, BERTH_PARAKEET_SILU},
        {126, 1024, 1024, false, true, false, 0.5F, BERTH_PARAKEET_NONE},
        {126, 1024, 1024, false, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {7, 256, 256, true, false, false, 1, BERTH_PARAKEET_RELU},
        {7, 256, 256, false, false, false, 1, BERTH_PARAKEET_RELU},
        {1000, 256, 520, true, false, false, 1, BERTH_PARAKEET_SILU},
        {33, 4096, 1024, true, true, false, 1, BERTH_PARAKEET_NONE},
        {33, 4096, 1024, true, true, true, 1, BERTH_PARAKEET_NONE},
        {33, 4096, 1024, true, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {2000, 4096, 1024, false, true, true, 0.5F, BERTH_PARAKEET_NONE},
        {33, 256, 1030, true, false, false, 1, BERTH_PARAKEET_NONE},
        {9, 640, 517, true, false, false, 1, BERTH_PARAKEET_NONE},
        {3, 32, 3, true, false, false, 1, BERTH_PARAKEET_SILU},
        {40, 2560, 256, true, false, true, 16, BERTH_PARAKEET_NONE},
        {40, 4096, 1024, true, false, true, 1, BERTH_PARAKEET_NONE},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        check_linear(b, &cases[i]);
    }
}

static void check_norm(struct bench *b, uint64_t n, uint32_t hidden)
{
    char name[96];
    struct pair in = pair_random(b, n * hidden, 4, 3, 1);
    struct pair once = pair_make(b, n * hidden, 2, NULL);
    struct pair out = pair_make(b, n * hidden, 2, NULL);
    struct pair gamma = pair_random(b, hidden, 4, 0.3F, 1),
                beta = pair_random(b, hidden, 4, 0.3F, 0);
    struct pair gamma2 = pair_random(b, hidden, 4, 0.3F, 1);
    struct pair beta2 = pair_random(b, hidden, 4, 0.3F, 0);
    const struct berth_parakeet_norm cpu = {gamma.cpu, beta.cpu}, cpu2 = {gamma2.cpu, beta2.cpu};
    const struct berth_parakeet_norm gpu = {gamma.gpu, beta.gpu}, gpu2 = {gamma2.gpu, beta2.gpu};
    struct berth_parakeet_norm_call on_cpu = {
        .norm = &cpu, .in = in.cpu, .out = once.cpu, .n = n, .hidden = hidden};
    struct berth_parakeet_norm_call on_gpu = {
        .norm = &gpu, .in = in.gpu, .out = once.gpu, .n = n, .hidden = hidden};
    b->cpu->norm(b->on_cpu, &on_cpu);
    b->gpu->norm(b->on_gpu, &on_gpu);
    (void)snprintf(name, sizeof(name), "norm %llu x %u", (unsigned long long)n, hidden);
    compare(b, name, &once, n, NULL);
    struct pair scales = pair_make(b, n, 4, NULL);
    on_gpu.out = out.gpu;
    on_gpu.out_scale = scales.gpu;
    b->gpu->norm(b->on_gpu, &on_gpu);
    (void)snprintf(name, sizeof(name), "norm %llu x %u, e4m3", (unsigned long long)n, hidden);
    compare_narrow(b, name, once.cpu, &out, &scales);
    pair_free(b, &scales);
    pair_free(b, &out);
    out = pair_make(b, n * hidden, 2, NULL);
    on_cpu.second = &cpu2;
    on_cpu.through = in.cpu;
    on_cpu.out = out.cpu;
    on_gpu.second = &gpu2;
    on_gpu.through = in.gpu;
    on_gpu.out = out.gpu;
    on_gpu.out_scale = NULL;
    b->cpu->norm(b->on_cpu, &on_cpu);
    b->gpu->norm(b->on_gpu, &on_gpu);
    (void)snprintf(name, sizeof(name), "norm twice %llu x %u, first", (unsigned long long)n,
                   hidden);
    compare(b, name, &in, n, NULL);
    (void)snprintf(name, sizeof(name), "norm twice %llu x %u, second", (unsigned long long)n,
                   hidden);
    compare(b, name, &out, n, NULL);
    struct pair *all[] = {&in, &once, &out, &gamma, &beta, &gamma2, &beta2};
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        pair_free(b, all[i]);
    }
}

struct attention_case {
    uint32_t heads, dim, padded, position_max, rows;
    uint32_t frames[4]; /* of the rows, in turn */
};

static void check_attention(struct bench *b, const struct attention_case *c)
{
    char name[96];
    uint32_t samples[ROWS_MAX], own[ROWS_MAX];
    const uint64_t hidden = (uint64_t)c->heads * c->dim;
    for (uint32_t r = 0; r < c->rows; r++) {
        own[r] = c->frames[r % 4];
        samples[r] = samples_of(own[r]);
    }
    struct counts_pair counts = counts_make(b, c->rows, samples, samples_of(c->padded));
    const uint64_t vectors = (uint64_t)c->rows * c->padded;
    struct pair qkv = pair_random(b, vectors * 3 * hidden, 2, 1.5F, 0);
    struct pair position = pair_random(b, (2 * (uint64_t)c->position_max - 1) * hidden, 2, 1, 0);
    struct pair u = pair_random(b, hidden, 4, 0.5F, 0), v = pair_random(b, hidden, 4, 0.5F, 0);
    struct pair out = pair_make(b, vectors * hidden, 2, NULL);
    struct berth_parakeet_attention_call call = {.qkv = qkv.cpu,
                                                 .position = position.cpu,
                                                 .position_max = c->position_max,
                                                 .bias_u = u.cpu,
                                                 .bias_v = v.cpu,
                                                 .out = out.cpu,
                                                 .heads = c->heads,
                                                 .head_dim = c->dim};
    b->cpu->attention(b->on_cpu, &counts.shape, &counts.cpu, &call);
    call.qkv = qkv.gpu;
    call.position = position.gpu;
    call.bias_u = u.gpu;
    call.bias_v = v.gpu;
    call.out = out.gpu;
    b->gpu->attention(b->on_gpu, &counts.shape, &counts.gpu, &call);
    uint8_t *kinds = kinds_make(&counts, c->padded, 1, own, ZERO);
    (void)snprintf(name, sizeof(name), "attention %u x %u, %u rows of %u, table %u", c->heads,
                   c->dim, c->rows, c->padded, c->position_max);
    compare(b, name, &out, vectors, kinds);
    berth_free(kinds);
    struct pair *all[] = {&qkv, &position, &u, &v, &out};
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        pair_free(b, all[i]);
    }
    counts_free(b, &counts);
}

static void check_attentions(struct bench *b)
{
    static const struct attention_case cases[] = {
        {8, 128, 1, 1, 1, {1}},
        {8, 128, 7, 20, 2, {7, 3}},
        {8, 128, 125, 125, 1, {125}},
        {8, 128, 126, 400, 3, {126, 0, 65}},
        {8, 128, 125, 400, 20, {125, 1, 64, 101}}, /* enough blocks for the large tiles */
        {8, 128, 400, 400, 6, {400, 399, 129, 17}},
        {4, 64, 7, 7, 1, {5}},
        {4, 64, 126, 400, 3, {126, 64, 0}},
        {4, 64, 400, 500, 2, {400, 257}},
        {8, 64, 257, 257, 12, {257, 128, 200, 2}},
        {1, 128, 1500, 2000, 1, {1500}},
        {2, 64, 2000, 2000, 4, {2000, 1999, 0, 1}},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        check_attention(b, &cases[i]);
    }
}

static void check_convolve(struct bench *b, uint32_t hidden, uint32_t kernel, uint32_t padded,
                           uint32_t rows)
{
    char name[96];
    uint32_t samples[ROWS_MAX], own[ROWS_MAX];
    const struct berth_parakeet_config config = {.hidden = hidden, .kernel = kernel};
    for (uint32_t r = 0; r < rows; r++) {
        own[r] = r == 0 ? padded : draw(b) % (padded + 1);
        samples[r] = samples_of(own[r]);
    }
    struct counts_pair counts = counts_make(b, rows, samples, samples_of(padded));
    const uint64_t vectors = (uint64_t)rows * padded;
    struct pair in = pair_random(b, vectors * 2 * hidden, 2, 2, 0);
    struct pair weight = pair_random(b, (uint64_t)kernel * hidden, 4, 0.5F, 0);
    struct pair bias = pair_random(b, hidden, 4, 0.5F, 0);
    struct pair out = pair_make(b, vectors * hidden, 2, NULL);
    const struct berth_parakeet_depthwise cpu = {weight.cpu, bias.cpu},
                                          gpu = {weight.gpu, bias.gpu};
    b->cpu->convolve(b->on_cpu, &config, &counts.shape, &counts.cpu, &cpu, in.cpu, out.cpu);
    b->gpu->convolve(b->on_gpu, &config, &counts.shape, &counts.gpu, &gpu, in.gpu, out.gpu);
    uint8_t *kinds = kinds_make(&counts, padded, 1, own, ZERO);
    (void)snprintf(name, sizeof(name), "convolve %u, taps %u, %u rows of %u", hidden, kernel, rows,
                   padded);
    compare(b, name, &out, vectors, kinds);
    berth_free(kinds);
    struct pair *all[] = {&in, &weight, &bias, &out};
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        pair_free(b, all[i]);
    }
    counts_free(b, &counts);
}

/* Both kernels of the subsampling, each on input of its own. */
static void check_subsample(struct bench *b, uint32_t mels, uint32_t channels, uint32_t padded,
                            uint32_t rows)
{
    char name[96];
    uint32_t samples[ROWS_MAX], quarter[ROWS_MAX], frames[ROWS_MAX];
    const struct berth_parakeet_config config = {.mels = mels, .channels = channels};
    for (uint32_t r = 0; r < rows; r++) {
        samples[r] = r == 0 ? padded : draw(b) % (padded + 1);
    }
    struct counts_pair counts = counts_make(b, rows, samples, padded);
    const struct berth_parakeet_lengths *most = &counts.shape.padded;
    for (uint32_t r = 0; r < rows; r++) {
        quarter[r] = counts.own[r].quarter;
        frames[r] = counts.own[r].frames;
    }
    const uint64_t middle_count = (uint64_t)rows * most->quarter * (mels / 4) * channels;
    const uint64_t out_count = (uint64_t)rows * most->frames * (mels / 8) * channels;
    struct pair in = pair_random(b, (uint64_t)rows * most->features * mels, 2, 1, 0);
    struct pair weights[3], biases[3];
    struct berth_parakeet_depthwise cpu[3], gpu[3];
    for (int i = 0; i < 3; i++) {
        weights[i] = pair_random(b, 9 * (uint64_t)channels, 4, 0.4F, 0);
        biases[i] = pair_random(b, channels, 4, 0.4F, 0);
        cpu[i] = (struct berth_parakeet_depthwise){weights[i].cpu, biases[i].cpu};
        gpu[i] = (struct berth_parakeet_depthwise){weights[i].gpu, biases[i].gpu};
    }
    struct pair middle = pair_make(b, middle_count, 2, NULL);
    struct pair out = pair_make(b, out_count, 2, NULL);
    b->cpu->subsample_first(b->on_cpu, &config, &counts.shape, &counts.cpu, &cpu[0], &cpu[1],
                            in.cpu, middle.cpu);
    b->gpu->subsample_first(b->on_gpu, &config, &counts.shape, &counts.gpu, &gpu[0], &gpu[1],
                            in.gpu, middle.gpu);
    uint8_t *kinds = kinds_make(&counts, most->quarter, mels / 4, quarter, ZERO);
    (void)snprintf(name, sizeof(name), "subsample_first %u x %u, %u rows of %u", mels, channels,
                   rows, most->features);
    compare(b, name, &middle, (uint64_t)rows * most->quarter * (mels / 4), kinds);
    berth_free(kinds);
    pair_free(b, &middle);
    middle = pair_random(b, middle_count, 2, 1, 0);
    b->cpu->subsample_third(b->on_cpu, &config, &counts.shape, &counts.cpu, &cpu[2], middle.cpu,
                            out.cpu);
    b->gpu->subsample_third(b->on_gpu, &config, &counts.shape, &counts.gpu, &gpu[2], middle.gpu,
                            out.gpu);
    kinds = kinds_make(&counts, most->frames, mels / 8, frames, ZERO);
    (void)snprintf(name, sizeof(name), "subsample_third %u x %u, %u rows of %u", mels, channels,
                   rows, most->quarter);
    compare(b, name, &out, (uint64_t)rows * most->frames * (mels / 8), kinds);
    berth_free(kinds);
    pair_free(b, &in);
    pair_free(b, &middle);
    pair_free(b, &out);
    for (int i = 0; i < 3; i++) {
        pair_free(b, &weights[i]);
        pair_free(b, &biases[i]);
    }
    counts_free(b, &counts);
}

static void check_positions(struct bench *b, uint32_t position_max, uint32_t hidden)
{
    char name[96];
    const uint64_t vectors = 2 * (uint64_t)position_max - 1;
    struct pair out = pair_make(b, vectors * hidden, 2, NULL);
    b->cpu->positions(b->on_cpu, position_max, hidden, out.cpu);
    b->gpu->positions(b->on_gpu, position_max, hidden, out.gpu);
    (void)snprintf(name, sizeof(name), "positions %u x %u", position_max, hidden);
    compare(b, name, &out, vectors, NULL);
    pair_free(b, &out);
}

/* A graph answers as the operations did, again and again, also after 100 others were recorded. */
static void check_graphs(struct bench *b)
{
    const uint64_t n = 125, hidden = 1024;
    struct pair in = pair_random(b, n * hidden, 2, 1, 0), out = pair_make(b, n * hidden, 2, NULL);
    struct pair inner = pair_make(b, n * hidden, 2, NULL);
    struct pair stream = pair_make(b, n * hidden, 4, NULL);
    struct pair weight = pair_random(b, hidden * hidden, 2, 0.03F, 0);
    struct pair gamma = pair_random(b, hidden, 4, 0.3F, 1), beta = pair_random(b, hidden, 4, 1, 0);
    const struct berth_parakeet_norm norm = {gamma.gpu, beta.gpu};
    const struct berth_parakeet_linear linear = {.weight = weight.gpu, .in = 1024, .out = 1024};
    const struct berth_parakeet_norm_call call = {
        .norm = &norm, .in = stream.gpu, .out = out.gpu, .n = n, .hidden = 1024};
    const struct berth_parakeet_linear_call up = {.linear = &linear,
                                                  .in = in.gpu,
                                                  .out = inner.gpu,
                                                  .scale = 1,
                                                  .activation = BERTH_PARAKEET_SILU,
                                                  .n = n};
    const struct berth_parakeet_linear_call down = {.linear = &linear,
                                                    .in = inner.gpu,
                                                    .out = stream.gpu,
                                                    .stream = true,
                                                    .scale = 1,
                                                    .n = n};
    uint16_t *first = berth_alloc(n * hidden * 2), *then = berth_alloc(n * hidden * 2);
    bool same = true, recorded = true;
    need(first != NULL && then != NULL, "memory");
    for (int i = 0; i < 103; i++) {
        const uint64_t key = 1000 + (uint64_t)(i >= 100 ? i - 100 : i);
        if (i != 0) {
            bool fresh = b->gpu->record(b->on_gpu, key);
            recorded = recorded && fresh; /* 0, 1 and 2 were dropped meanwhile */
        }
        b->gpu->linear(b->on_gpu, &up);
        b->gpu->linear(b->on_gpu, &down);
        b->gpu->norm(b->on_gpu, &call);
        if (i != 0) {
            b->gpu->play(b->on_gpu, key);
            recorded = recorded && !b->gpu->record(b->on_gpu, key);
            b->gpu->play(b->on_gpu, key);
        }
        b->gpu->download(b->on_gpu, i == 0 ? first : then, out.gpu, n * hidden * 2);
        same = same && b->gpu->finish(b->on_gpu, NULL) == BERTH_OK;
        same = same && (i == 0 || memcmp(first, then, n * hidden * 2) == 0);
    }
    say(b, same, "graphs: the same bits as without", 0);
    say(b, recorded, "graphs: kept, and the least used dropped", 0);
    b->gpu->drop(b->on_gpu);
    struct pair *all[] = {&in, &inner, &stream, &out, &weight, &gamma, &beta};
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        pair_free(b, all[i]);
    }
    berth_free(first);
    berth_free(then);
}

/* What no kernel takes is said at finish, and the next run is not troubled. */
static void check_refusals(struct bench *b)
{
    struct berth_err err = {0};
    struct pair in = pair_random(b, 4096, 4, 1, 0);
    const struct berth_parakeet_norm norm = {in.gpu, in.gpu};
    const struct berth_parakeet_norm_call call = {
        .norm = &norm, .in = in.gpu, .out = in.gpu, .n = 1, .hidden = 100};
    b->gpu->norm(b->on_gpu, &call);
    bool refused = b->gpu->finish(b->on_gpu, &err) != BERTH_OK;
    bool over = b->gpu->finish(b->on_gpu, NULL) == BERTH_OK;
    say(b, refused && over && strstr(err.msg, "100") != NULL, "a width no kernel takes is refused",
        0);
    pair_free(b, &in);
}

/* A value of a row's own that is no number, or past what a half holds, is said to spoil that row;
 * one past the row's end is not looked at. */
static void check_overflow(struct bench *b, const char *name, float value, uint32_t row,
                           uint32_t frame, bool spoils)
{
    const uint32_t channels = 64, mels = 16, samples[] = {8000, 4000, 8000};
    const struct berth_parakeet_config config = {.mels = mels, .channels = channels};
    struct counts_pair counts = counts_make(b, 3, samples, 8000);
    const struct berth_parakeet_lengths *most = &counts.shape.padded;
    const uint64_t line = mels / 4 * channels, count = 3 * (uint64_t)most->quarter * line;
    struct pair weight = pair_random(b, 9 * channels, 4, 0.1F, 4);
    struct pair bias = pair_random(b, channels, 4, 0.1F, 0);
    const struct berth_parakeet_depthwise third = {weight.gpu, bias.gpu};
    float *values = berth_alloc(count * sizeof(*values));
    int32_t spoiled[3] = {-1, -1, -1};
    need(values != NULL, "memory");
    for (uint64_t i = 0; i < count; i++) {
        values[i] = draw_normal(b);
    }
    values[((uint64_t)row * most->quarter + frame) * line + 5] = value;
    struct pair in = pair_make(b, count, 2, values);
    struct pair out = pair_make(b, 3 * (uint64_t)most->frames * (mels / 8) * channels, 2, NULL);
    b->gpu->subsample_third(b->on_gpu, &config, &counts.shape, &counts.gpu, &third, in.gpu,
                            out.gpu);
    b->gpu->download(b->on_gpu, spoiled, counts.gpu.spoiled, sizeof(spoiled));
    bool good = b->gpu->finish(b->on_gpu, NULL) == BERTH_OK;
    for (uint32_t r = 0; r < 3; r++) {
        good = good && (spoiled[r] != 0) == (spoils && r == row);
    }
    say(b, good, name, 0);
    berth_free(values);
    struct pair *all[] = {&in, &out, &weight, &bias};
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        pair_free(b, all[i]);
    }
    counts_free(b, &counts);
}

static void check_overflows(struct bench *b)
{
    check_overflow(b, "overflow: none", 1, 1, 5, false);
    check_overflow(b, "overflow: infinite in", INFINITY, 1, 5, true);
    check_overflow(b, "overflow: no number in", NAN, 0, 0, true);
    check_overflow(b, "overflow: a large sum", 30000, 1, 5, true);
    check_overflow(b, "overflow: a negative one", -30000, 2, 7, true);
    check_overflow(b, "overflow: past the row's end", INFINITY, 1, 9, false);
}

/* The same weights on both devices. */
static struct pair *fill(struct bench *b, const void **cpu, const void **gpu, uint64_t count,
                         size_t size, float scale, float add)
{
    struct pair *pair = berth_alloc(sizeof(*pair)); /* kept until the end */
    need(pair != NULL, "memory");
    *pair = pair_random(b, count, size, scale, add);
    *cpu = pair->cpu;
    *gpu = pair->gpu;
    return pair;
}

static void fill_linear(struct bench *b, struct berth_parakeet_linear *cpu,
                        struct berth_parakeet_linear *gpu, uint32_t in, uint32_t out, bool bias)
{
    memset(cpu, 0, sizeof(*cpu));
    cpu->in = in;
    cpu->out = out;
    *gpu = *cpu;
    fill(b, &cpu->weight, &gpu->weight, (uint64_t)in * out, 2, 1 / sqrtf((float)in), 0);
    if (bias) {
        fill(b, &cpu->bias, &gpu->bias, out, 2, 0.2F, 0);
    }
}

static void fill_floats(struct bench *b, const float **cpu, const float **gpu, uint64_t count,
                        float scale, float add)
{
    const void *on_cpu = NULL, *on_gpu = NULL;
    fill(b, &on_cpu, &on_gpu, count, 4, scale, add);
    *cpu = on_cpu;
    *gpu = on_gpu;
}

static void fill_norm(struct bench *b, struct berth_parakeet_norm *cpu,
                      struct berth_parakeet_norm *gpu, uint32_t hidden)
{
    fill_floats(b, &cpu->gamma, &gpu->gamma, hidden, 0.2F, 1);
    fill_floats(b, &cpu->beta, &gpu->beta, hidden, 0.2F, 0);
}

static void fill_depthwise(struct bench *b, struct berth_parakeet_depthwise *cpu,
                           struct berth_parakeet_depthwise *gpu, uint32_t taps, uint32_t channels)
{
    fill_floats(b, &cpu->weight, &gpu->weight, (uint64_t)taps * channels, 0.4F, 0);
    fill_floats(b, &cpu->bias, &gpu->bias, channels, 0.2F, 0);
}

static void fill_layer(struct bench *b, const struct berth_parakeet_config *c,
                       struct berth_parakeet_layer *cpu, struct berth_parakeet_layer *gpu)
{
    const uint32_t h = c->hidden;
    fill_norm(b, &cpu->norm_ff1, &gpu->norm_ff1, h);
    fill_norm(b, &cpu->norm_attention, &gpu->norm_attention, h);
    fill_norm(b, &cpu->norm_conv, &gpu->norm_conv, h);
    fill_norm(b, &cpu->norm_ff2, &gpu->norm_ff2, h);
    fill_norm(b, &cpu->norm_out, &gpu->norm_out, h);
    fill_linear(b, &cpu->ff1_up, &gpu->ff1_up, h, c->inner, c->attention_bias);
    fill_linear(b, &cpu->ff1_down, &gpu->ff1_down, c->inner, h, c->attention_bias);
    fill_linear(b, &cpu->ff2_up, &gpu->ff2_up, h, c->inner, c->attention_bias);
    fill_linear(b, &cpu->ff2_down, &gpu->ff2_down, c->inner, h, c->attention_bias);
    fill_linear(b, &cpu->qkv, &gpu->qkv, h, 3 * h, c->attention_bias);
    fill_linear(b, &cpu->position, &gpu->position, h, h, false);
    fill_linear(b, &cpu->attention_out, &gpu->attention_out, h, h, c->attention_bias);
    fill_floats(b, &cpu->bias_u, &gpu->bias_u, h, 0.2F, 0);
    fill_floats(b, &cpu->bias_v, &gpu->bias_v, h, 0.2F, 0);
    fill_linear(b, &cpu->conv_in, &gpu->conv_in, h, 2 * h, c->convolution_bias);
    fill_linear(b, &cpu->conv_out, &gpu->conv_out, h, h, c->convolution_bias);
    fill_depthwise(b, &cpu->conv, &gpu->conv, c->kernel, h);
}

static void fill_weights(struct bench *b, const struct berth_parakeet_config *c,
                         struct berth_parakeet_weights *cpu, struct berth_parakeet_weights *gpu)
{
    fill_depthwise(b, &cpu->first, &gpu->first, 9, c->channels);
    fill_depthwise(b, &cpu->second, &gpu->second, 9, c->channels);
    fill_depthwise(b, &cpu->third, &gpu->third, 9, c->channels);
    fill_linear(b, &cpu->second_point, &gpu->second_point, c->channels, c->channels, true);
    fill_linear(b, &cpu->third_point, &gpu->third_point, c->channels, c->channels, true);
    fill_linear(b, &cpu->subsample_out, &gpu->subsample_out, c->mels / 8 * c->channels, c->hidden,
                true);
    for (uint32_t i = 0; i < c->layers; i++) {
        fill_layer(b, c, &cpu->layers[i], &gpu->layers[i]);
    }
    fill_linear(b, &cpu->projector, &gpu->projector, c->hidden, c->prediction, true);
}

/* Runs a bucket up to the projector and takes `what` out. */
static float *encode(const struct berth_parakeet_ops *ops, struct berth_parakeet_device *device,
                     const struct berth_parakeet_config *config,
                     const struct berth_parakeet_weights *weights,
                     const struct berth_parakeet_shape *shape, const uint32_t *samples,
                     uint64_t count)
{
    struct berth_parakeet_net *net = NULL;
    struct berth_parakeet_run *run = NULL;
    struct berth_parakeet_tokens tokens;
    struct berth_err err = {0};
    float *out = berth_alloc(count * sizeof(*out));
    uint64_t random = 7;
    need(out != NULL, "memory");
    if (berth_parakeet_net_create(ops, device, config, weights, shape->padded.frames + 3, &net,
                                  &err) != BERTH_OK ||
        berth_parakeet_run_create(net, shape, &run, &err) != BERTH_OK) {
        need(false, err.msg);
    }
    berth_parakeet_run_set_extent(run, BERTH_PARAKEET_TO_ENCODED);
    for (uint32_t r = 0; r < shape->rows; r++) {
        float *pcm = berth_parakeet_run_pcm(run, r), level = 0;
        for (uint32_t i = 0; i < samples[r]; i++) {
            random = random * 6364136223846793005ULL + 1442695040888963407ULL;
            level = 0.9F * level + ((float)(random >> 40) / 16777216.0F - 0.5F) * 0.1F;
            pcm[i] = level * (0.2F + (float)(i / 3200 % 3));
        }
    }
    for (int again = 0; again < 2; again++) { /* the second time from the graph */
        berth_parakeet_run_begin(run, samples);
        while (berth_parakeet_run_advance(run)) {
        }
        if (berth_parakeet_run_finish(run, &tokens, &err) != BERTH_OK) {
            need(false, err.msg);
        }
    }
    if (berth_parakeet_run_probe(run, BERTH_PARAKEET_PROBE_ENCODED, out, &err) != BERTH_OK) {
        need(false, err.msg);
    }
    if (ops->drop != NULL) {
        ops->drop(device);
    }
    berth_parakeet_run_destroy(run);
    berth_parakeet_net_destroy(net);
    return out;
}

/* The whole encoder, ragged, a row without frames among them. The limit is wider: halves in each of
 * the layers, where the twin has float32. */
static void check_encoder(struct bench *b, const struct berth_parakeet_config *config,
                          const char *name)
{
    const uint32_t samples[] = {80000, 0, 31234, 160, 79999};
    const struct berth_parakeet_shape shape = {BERTH_COUNT_OF(samples),
                                               berth_parakeet_lengths_of(80000)};
    struct berth_parakeet_weights *cpu = berth_alloc(sizeof(*cpu)),
                                  *gpu = berth_alloc(sizeof(*gpu));
    const uint64_t count = (uint64_t)shape.rows * shape.padded.frames * config->hidden;
    double difference = 0, norm = 0, cosine_min = 1;
    need(cpu != NULL && gpu != NULL, "memory");
    fill_weights(b, config, cpu, gpu);
    float *want = encode(b->cpu, b->on_cpu, config, cpu, &shape, samples, count);
    float *got = encode(b->gpu, b->on_gpu, config, gpu, &shape, samples, count);
    for (uint32_t r = 0; r < shape.rows; r++) {
        const uint32_t frames = berth_parakeet_lengths_of(samples[r]).frames;
        for (uint32_t t = 0; t < frames; t++) {
            const uint64_t at = ((uint64_t)r * shape.padded.frames + t) * config->hidden;
            double product = 0, a = 0, c = 0;
            for (uint32_t i = 0; i < config->hidden; i++) {
                const double x = (double)want[at + i], y = (double)got[at + i];
                product += x * y;
                a += x * x;
                c += y * y;
                difference += (x - y) * (x - y);
                norm += x * x;
            }
            const double cosine = product / sqrt(a * c);
            cosine_min = cosine < cosine_min || isnan(cosine) ? cosine : cosine_min;
        }
    }
    const double error = sqrt(difference / norm);
    say(b, error <= 2e-3 && cosine_min >= 0.99999, name, error);
    printf("      lowest cosine of a frame %.8f\n", cosine_min);
    /* The first row alone: with products of our own to the bit, for those do not know how many
     * there are; with cublasLt's it need not be. */
    const struct berth_parakeet_shape single = {1, shape.padded};
    const uint64_t row = (uint64_t)shape.padded.frames * config->hidden;
    float *alone = encode(b->gpu, b->on_gpu, config, gpu, &single, samples, row);
    const bool same = memcmp(alone, got, row * sizeof(*got)) == 0;
    if (berth_parakeet_cuda_product90_here(b->on_gpu)) {
        say(b, same, "its first row has the same bits alone", 0);
    } else {
        printf("SKIP  its first row has %s bits alone: products are cublasLt's here\n",
               same ? "the same" : "other");
    }
    berth_free(alone);
    berth_free(want);
    berth_free(got);
    berth_free(cpu);
    berth_free(gpu);
}

static void check_all(struct bench *b)
{
    check_linears(b);
    check_linears_narrow(b);
    check_norm(b, 1, 8);
    check_norm(b, 3, 256);
    check_norm(b, 125, 1024);
    check_norm(b, 5001, 1024);
    check_norm(b, 5000, 320);
    check_norm(b, 900, 320);
    check_norm(b, 7, 1032);
    check_norm(b, 5, 4096);
    check_attentions(b);
    check_convolve(b, 1024, 9, 125, 1);
    check_convolve(b, 1024, 9, 126, 40);
    check_convolve(b, 256, 9, 400, 3);
    check_convolve(b, 40, 9, 7, 5);
    check_convolve(b, 256, 31, 125, 3);
    check_convolve(b, 256, 5, 1, 2);
    check_subsample(b, 128, 256, 160000, 1);
    check_subsample(b, 128, 256, 160000, 6);
    check_subsample(b, 80, 128, 48000, 3);
    check_subsample(b, 128, 128, 161, 2);
    check_subsample(b, 80, 24, 3333, 5);
    check_positions(b, 1, 256);
    check_positions(b, 400, 1024);
    check_positions(b, 5000, 512);
    check_graphs(b);
    check_refusals(b);
    check_overflows(b);
    struct berth_parakeet_config config = *berth_random_parakeet_config("nano");
    config.layers = 3;
    config.attention_bias = config.convolution_bias = config.scale_input = true;
    check_encoder(b, &config, "encoder of 3 layers, 256 wide, all biases");
    config = *berth_random_parakeet_config("0.6b");
    config.layers = 2;
    check_encoder(b, &config, "encoder of 2 layers, 1024 wide, no biases");
}

/* Parakeet 0.6B with random weights, one bucket of 10 s clips: what an operation is timed on. */
struct timing {
    struct bench *bench;
    const struct berth_parakeet_config *config;
    struct berth_parakeet_weights *weights;
    struct counts_pair counts;
    uint64_t frames; /* of all rows */
    void *positions; /* one layer's */
    char *a, *b, *c; /* wide buffers: a is read as halves, b written, c is the stream */
    uint64_t wide_bytes;
};

/* One operation of layer `layer`, as in encoder.c. */
typedef void timed(struct timing *t, uint32_t layer);

static void multiply(struct timing *t, const struct berth_parakeet_linear *linear, void *residual,
                     enum berth_parakeet_activation activation, uint64_t n)
{
    const struct berth_parakeet_linear *last = &t->weights->subsample_out; /* begins the stream */
    const struct berth_parakeet_linear_call call = {.linear = linear,
                                                    .in = t->a,
                                                    .out = residual != NULL ? residual : t->b,
                                                    .residual = residual,
                                                    .stream = residual != NULL || linear == last,
                                                    .scale = residual != NULL ? 0.5F : 1,
                                                    .activation = activation,
                                                    .n = n};
    t->bench->gpu->linear(t->bench->on_gpu, &call);
}

static void time_up(struct timing *t, uint32_t layer)
{
    multiply(t, &t->weights->layers[layer].ff1_up, NULL, BERTH_PARAKEET_SILU, t->frames);
}

static void time_up_plain(struct timing *t, uint32_t layer)
{
    multiply(t, &t->weights->layers[layer].ff1_up, NULL, BERTH_PARAKEET_NONE, t->frames);
}

static void time_down(struct timing *t, uint32_t layer)
{
    multiply(t, &t->weights->layers[layer].ff1_down, t->c, BERTH_PARAKEET_NONE, t->frames);
}

static void time_qkv(struct timing *t, uint32_t layer)
{
    multiply(t, &t->weights->layers[layer].qkv, NULL, BERTH_PARAKEET_NONE, t->frames);
}

static void time_conv_in(struct timing *t, uint32_t layer)
{
    multiply(t, &t->weights->layers[layer].conv_in, NULL, BERTH_PARAKEET_NONE, t->frames);
}

static void time_square(struct timing *t, uint32_t layer)
{
    multiply(t, &t->weights->layers[layer].conv_out, t->c, BERTH_PARAKEET_NONE, t->frames);
}

static void time_norm(struct timing *t, uint32_t layer)
{
    const struct berth_parakeet_norm_call call = {.norm = &t->weights->layers[layer].norm_conv,
                                                  .in = t->c,
                                                  .out = t->b,
                                                  .n = t->frames,
                                                  .hidden = t->config->hidden};
    t->bench->gpu->norm(t->bench->on_gpu, &call);
}

static void time_norm_twice(struct timing *t, uint32_t layer)
{
    const struct berth_parakeet_layer *l = &t->weights->layers[layer];
    const struct berth_parakeet_norm_call call = {.norm = &l->norm_out,
                                                  .second = &l->norm_ff1,
                                                  .in = t->c,
                                                  .through = t->c,
                                                  .out = t->b,
                                                  .n = t->frames,
                                                  .hidden = t->config->hidden};
    t->bench->gpu->norm(t->bench->on_gpu, &call);
}

static void time_attention(struct timing *t, uint32_t layer)
{
    const struct berth_parakeet_layer *l = &t->weights->layers[layer];
    const struct berth_parakeet_attention_call call = {.qkv = t->a,
                                                       .position = t->positions,
                                                       .position_max = 400,
                                                       .bias_u = l->bias_u,
                                                       .bias_v = l->bias_v,
                                                       .out = t->b,
                                                       .heads = t->config->heads,
                                                       .head_dim = t->config->head_dim};
    t->bench->gpu->attention(t->bench->on_gpu, &t->counts.shape, &t->counts.gpu, &call);
}

static void time_convolve(struct timing *t, uint32_t layer)
{
    t->bench->gpu->convolve(t->bench->on_gpu, t->config, &t->counts.shape, &t->counts.gpu,
                            &t->weights->layers[layer].conv, t->a, t->b);
}

static void time_first(struct timing *t, uint32_t layer)
{
    (void)layer;
    t->bench->gpu->subsample_first(t->bench->on_gpu, t->config, &t->counts.shape, &t->counts.gpu,
                                   &t->weights->first, &t->weights->second, t->a, t->b);
}

static void time_second_point(struct timing *t, uint32_t layer)
{
    (void)layer;
    multiply(t, &t->weights->second_point, NULL, BERTH_PARAKEET_RELU,
             (uint64_t)t->counts.shape.rows * t->counts.shape.padded.quarter * 32);
}

static void time_third(struct timing *t, uint32_t layer)
{
    (void)layer;
    t->bench->gpu->subsample_third(t->bench->on_gpu, t->config, &t->counts.shape, &t->counts.gpu,
                                   &t->weights->third, t->a, t->b);
}

static void time_third_point(struct timing *t, uint32_t layer)
{
    (void)layer;
    multiply(t, &t->weights->third_point, NULL, BERTH_PARAKEET_RELU, t->frames * 16);
}

static void time_subsample_out(struct timing *t, uint32_t layer)
{
    (void)layer;
    multiply(t, &t->weights->subsample_out, NULL, BERTH_PARAKEET_NONE, t->frames);
}

static void time_projector(struct timing *t, uint32_t layer)
{
    (void)layer;
    multiply(t, &t->weights->projector, NULL, BERTH_PARAKEET_NONE, t->frames);
}

/* The larger forms, whatever the device has to do. */
static void time_attention_large(struct timing *t, uint32_t layer)
{
    const int sm_count = t->bench->on_gpu->sm_count;
    t->bench->on_gpu->sm_count = 0;
    time_attention(t, layer);
    t->bench->on_gpu->sm_count = sm_count;
}

static void time_convolve_large(struct timing *t, uint32_t layer)
{
    const int sm_count = t->bench->on_gpu->sm_count;
    t->bench->on_gpu->sm_count = 0;
    time_convolve(t, layer);
    t->bench->on_gpu->sm_count = sm_count;
}

/* And the smaller ones. */
static void time_attention_small(struct timing *t, uint32_t layer)
{
    const int sm_count = t->bench->on_gpu->sm_count;
    t->bench->on_gpu->sm_count = 1 << 20;
    time_attention(t, layer);
    t->bench->on_gpu->sm_count = sm_count;
}

static void time_convolve_small(struct timing *t, uint32_t layer)
{
    const int sm_count = t->bench->on_gpu->sm_count;
    t->bench->on_gpu->sm_count = 1 << 20;
    time_convolve(t, layer);
    t->bench->on_gpu->sm_count = sm_count;
}

/* One by one, without a kernel's start under the end of the one before. */
static void time_norm_alone(struct timing *t, uint32_t layer)
{
    const bool overlap = t->bench->on_gpu->overlap;
    t->bench->on_gpu->overlap = false;
    time_norm(t, layer);
    t->bench->on_gpu->overlap = overlap;
}

/* Up and SiLU for one half of the vectors, then the other: SiLU finds its half in the cache. */
static void time_up_halves(struct timing *t, uint32_t layer)
{
    const struct berth_parakeet_linear *up = &t->weights->layers[layer].ff1_up;
    const uint64_t half = (t->frames / 2 + 127) / 128 * 128;
    char *in = t->a, *out = t->b;
    multiply(t, up, NULL, BERTH_PARAKEET_SILU, half < t->frames ? half : t->frames);
    if (half < t->frames) {
        t->a += half * up->in * 2;
        t->b += half * up->out * 2;
        multiply(t, up, NULL, BERTH_PARAKEET_SILU, t->frames - half);
        t->a = in;
        t->b = out;
    }
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median milliseconds of playing graph `key`. */
static float play_time(struct bench *b, uint64_t key, int rounds)
{
    float ms[64];
    for (int i = -2; i < rounds; i++) {
        need(cudaEventRecord(b->begin, b->on_gpu->stream) == cudaSuccess, "event");
        b->gpu->play(b->on_gpu, key);
        need(cudaEventRecord(b->end, b->on_gpu->stream) == cudaSuccess, "event");
        struct berth_err err = {0};
        need(b->gpu->finish(b->on_gpu, &err) == BERTH_OK, err.msg);
        need(cudaEventElapsedTime(&ms[i < 0 ? 0 : i], b->begin, b->end) == cudaSuccess, "event");
    }
    qsort(ms, (size_t)rounds, sizeof(ms[0]), by_value);
    return ms[rounds / 2];
}

/* Microseconds of one operation among REPEATS of them in a graph, each with its layer's weights. */
static float op_time(struct timing *t, timed *op)
{
    struct bench *b = t->bench;
    const uint64_t key = ++b->key;
    if (b->gpu->record(b->on_gpu, key)) {
        for (uint32_t i = 0; i < REPEATS; i++) {
            op(t, i % t->config->layers);
        }
    }
    b->gpu->play(b->on_gpu, key);
    const float ms = play_time(b, key, ROUNDS);
    b->gpu->drop(b->on_gpu);
    return ms * 1e3F / REPEATS;
}

static void timing_make(struct bench *b, struct timing *t,
                        const struct berth_parakeet_config *config,
                        struct berth_parakeet_weights *weights, uint32_t rows)
{
    uint32_t samples[ROWS_MAX];
    for (uint32_t r = 0; r < rows; r++) {
        samples[r] = 160000;
    }
    *t = (struct timing){.bench = b, .config = config, .weights = weights};
    t->counts = counts_make(b, rows, samples, 160000);
    t->frames = (uint64_t)rows * t->counts.shape.padded.frames;
    t->wide_bytes = (uint64_t)rows * t->counts.shape.padded.quarter * 32 * config->channels * 2;
    t->positions = b->gpu->alloc(b->on_gpu, 799 * (size_t)config->hidden * 2);
    char **buffers[] = {&t->a, &t->b, &t->c};
    for (size_t i = 0; i < 3; i++) {
        *buffers[i] = b->gpu->alloc(b->on_gpu, t->wide_bytes);
        need(*buffers[i] != NULL &&
                 berth_parakeet_cuda_noise(*buffers[i], t->wide_bytes, false,
                                           b->on_gpu->stream) == cudaSuccess,
             "memory");
    }
    b->gpu->positions(b->on_gpu, 400, config->hidden, t->positions);
}

static void timing_finish(struct timing *t)
{
    struct bench *b = t->bench;
    char *buffers[] = {t->a, t->b, t->c};
    for (size_t i = 0; i < 3; i++) {
        b->gpu->free(b->on_gpu, buffers[i], t->wide_bytes);
    }
    b->gpu->free(b->on_gpu, t->positions, 799 * (size_t)t->config->hidden * 2);
    counts_free(b, &t->counts);
}

/* The encoder by encoder.c, features to projected output; milliseconds, median of 50. */
static float encoder_time(struct bench *b, const struct berth_parakeet_config *config,
                          const struct berth_parakeet_weights *weights, uint32_t rows,
                          enum berth_parakeet_extent extent)
{
    const struct berth_parakeet_shape shape = {rows, berth_parakeet_lengths_of(160000)};
    struct berth_parakeet_net *net = NULL;
    struct berth_parakeet_run *run = NULL;
    struct berth_parakeet_tokens tokens;
    struct berth_err err = {0};
    uint32_t samples[ROWS_MAX];
    float ms[50];
    if (berth_parakeet_net_create(b->gpu, b->on_gpu, config, weights, 400, &net, &err) !=
            BERTH_OK ||
        berth_parakeet_run_create(net, &shape, &run, &err) != BERTH_OK) {
        need(false, err.msg);
    }
    for (uint32_t r = 0; r < rows; r++) {
        samples[r] = 160000;
        for (uint32_t i = 0; i < samples[r]; i++) {
            berth_parakeet_run_pcm(run, r)[i] = draw_normal(b) * 0.1F;
        }
    }
    for (int i = -5; i < 50; i++) {
        berth_parakeet_run_set_extent(run, i == -5 ? BERTH_PARAKEET_TO_ENCODED : extent);
        berth_parakeet_run_begin(run, samples);
        need(cudaEventRecord(b->begin, b->on_gpu->stream) == cudaSuccess, "event");
        while (berth_parakeet_run_advance(run)) {
        }
        need(cudaEventRecord(b->end, b->on_gpu->stream) == cudaSuccess, "event");
        need(berth_parakeet_run_finish(run, &tokens, &err) == BERTH_OK, err.msg);
        need(cudaEventElapsedTime(&ms[i < 0 ? 0 : i], b->begin, b->end) == cudaSuccess, "event");
    }
    qsort(ms, 50, sizeof(ms[0]), by_value);
    berth_parakeet_run_destroy(run);
    berth_parakeet_net_destroy(net);
    b->gpu->drop(b->on_gpu);
    return ms[25];
}

struct timed_op {
    const char *name;
    timed *op;
    int times; /* in a pass of 24 layers; 0: for comparison alone */
    bool ours; /* not a product */
};

static void time_all(struct bench *b)
{
    static const struct timed_op ops[] = {
        {"norm", time_norm, 24 * 3 + 2, true},
        {"norm_twice", time_norm_twice, 23, true},
        {"attention", time_attention, 24, true},
        {"convolve", time_convolve, 24, true},
        {"subsample_first", time_first, 1, true},
        {"subsample_third", time_third, 1, true},
        {"ff up, silu", time_up, 48, false},
        {"ff up alone", time_up_plain, 0, false},
        {"ff down, residual", time_down, 48, false},
        {"qkv", time_qkv, 24, false},
        {"conv in", time_conv_in, 24, false},
        {"1024 x 1024, residual", time_square, 48, false},
        {"second 1 x 1, relu", time_second_point, 1, false},
        {"third 1 x 1, relu", time_third_point, 1, false},
        {"subsample out", time_subsample_out, 1, false},
        {"projector", time_projector, 1, false},
        {"attention, large tiles", time_attention_large, 0, true},
        {"attention, small tiles", time_attention_small, 0, true},
        {"norm, no overlap", time_norm_alone, 0, true},
        {"convolve, long spans", time_convolve_large, 0, true},
        {"convolve, short spans", time_convolve_small, 0, true},
        {"ff up, silu, in halves", time_up_halves, 0, false},
    };
    static const uint32_t rows[] = {1, 16, 64};
    const struct berth_parakeet_config config = *berth_random_parakeet_config("0.6b");
    const uint64_t bytes = berth_parakeet_weights_bytes(&config, BERTH_PARAKEET_F16);
    struct berth_parakeet_weights *weights = berth_alloc(sizeof(*weights));
    void *span = b->gpu->alloc(b->on_gpu, bytes);
    float us[BERTH_COUNT_OF(ops)][3], sums[3] = {0}, ours[3] = {0}, silu[3];
    need(weights != NULL && span != NULL, "memory for weights");
    need(berth_parakeet_cuda_noise(span, bytes, false, b->on_gpu->stream) == cudaSuccess, "noise");
    berth_parakeet_weights_place(&config, BERTH_PARAKEET_F16, span, weights);
    for (size_t i = 0; i < 3; i++) {
        struct timing t;
        timing_make(b, &t, &config, weights, rows[i]);
        for (size_t o = 0; o < BERTH_COUNT_OF(ops); o++) {
            us[o][i] = op_time(&t, ops[o].op);
            sums[i] += us[o][i] * (float)ops[o].times;
            ours[i] += ops[o].ours ? us[o][i] * (float)ops[o].times : 0;
        }
        silu[i] = 48 * (us[6][i] - us[7][i]);
        timing_finish(&t);
    }
    printf("\n%-26s %6s %10s %10s %10s   us each, in a graph, 10 s clips\n", "0.6B shape", "times",
           "B=1", "B=16", "B=64");
    for (size_t o = 0; o < BERTH_COUNT_OF(ops); o++) {
        printf("%-26s %6d %10.2f %10.2f %10.2f\n", ops[o].name, ops[o].times, (double)us[o][0],
               (double)us[o][1], (double)us[o][2]);
    }
    printf("%-26s %6s %10.3f %10.3f %10.3f   ms\n", "sum of a pass", "", (double)sums[0] * 1e-3,
           (double)sums[1] * 1e-3, (double)sums[2] * 1e-3);
    printf("%-26s %6s %10.3f %10.3f %10.3f   ms\n", "of it not products", "",
           (double)ours[0] * 1e-3, (double)ours[1] * 1e-3, (double)ours[2] * 1e-3);
    printf("%-26s %6s %10.3f %10.3f %10.3f   ms\n", "of it silu", "", (double)silu[0] * 1e-3,
           (double)silu[1] * 1e-3, (double)silu[2] * 1e-3);
    static const char *const names[] = {"encoder, one graph", "with features and upload",
                                        "encoder, no overlap"};
    const bool overlap = b->on_gpu->overlap;
    for (int extent = 0; extent < 3; extent++) {
        float ms[3];
        b->on_gpu->overlap = overlap && extent != 2;
        for (size_t i = 0; i < 3; i++) {
            ms[i] = encoder_time(b, &config, weights, rows[i],
                                 extent == 1 ? BERTH_PARAKEET_TO_ENCODED
                                             : BERTH_PARAKEET_ENCODER_ALONE);
        }
        printf("%-26s %6s %10.3f %10.3f %10.3f   ms\n", names[extent], "", (double)ms[0],
               (double)ms[1], (double)ms[2]);
    }
    b->on_gpu->overlap = overlap;
    b->gpu->free(b->on_gpu, span, bytes);
    berth_free(weights);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "both";
    struct bench b = {.cpu = berth_parakeet_backend("cpu:0"),
                      .gpu = berth_parakeet_backend("cuda:0"),
                      .random = 12345,
                      .key = 1ULL << 32}; /* past those of runs */
    struct berth_err err = {0};
    need(b.cpu != NULL && b.gpu != NULL, "a build without CUDA");
    need(b.cpu->open("cpu:0", THREADS, &b.on_cpu, &err) == BERTH_OK, err.msg);
    need(b.gpu->open("cuda:0", 1, &b.on_gpu, &err) == BERTH_OK, err.msg);
    need(cudaEventCreate(&b.begin) == cudaSuccess && cudaEventCreate(&b.end) == cudaSuccess,
         "events");
    b.on_gpu->overlap = b.on_gpu->overlap && argc <= 2;
    if (argc > 2 && strcmp(argv[2], "small") == 0) {
        b.on_gpu->capability = SMALL_CAPABILITY;
        b.on_gpu->shared_bytes_max = SMALL_SHARED;
        b.on_gpu->sm_count = SMALL_COUNT;
    }
    if (strcmp(what, "time") != 0) {
        check_all(&b);
        printf("%d failed\n", b.failures);
    }
    if (strcmp(what, "check") != 0) {
        time_all(&b);
    }
    printf("%u algorithms chosen\n", berth_parakeet_cuda_algorithm_count());
    b.gpu->close(b.on_gpu);
    b.cpu->close(b.on_cpu);
    return b.failures == 0 ? 0 : 1;
}
