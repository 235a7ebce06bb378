/* cpu_loops.c - inner loops, written once and compiled for two vector widths.
 *
 * Sums that a compiler may not reorder are written with LANES partial sums; the rest are plain
 * loops that it turns into vector code. Each body is inlined into two functions, one of them for
 * AVX2. AVX2 without FMA: fused sums would round otherwise than the plain build's, for 1 % here,
 * where the products of matrices (cpu_product.c) take most of the time.
 */
#include "engine/parakeet/cpu_loops.h"

#include <math.h>
#include <string.h>

#define LANES BERTH_PARAKEET_LANES
#define EPSILON 1e-5F
#define EXP_MIN (-80.0F)
#define SIGN INT32_MIN

#define INLINE static inline __attribute__((always_inline))

/* Loads and stores of any alignment; values of these types are never passed or returned. */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* x = exp(x) for x <= 0: 2^n * exp(r), r within half of ln 2; relative error 2e-7. Below -80, and
 * for what is no number, 0. */
INLINE void exp_lanes(lanes *x)
{
    const float magic = 12582912.0F; /* 1.5 * 2^23: adding it rounds to an integer */
    words kept = *x > EXP_MIN;
    lanes v = (lanes)((words)*x & kept);
    lanes n = v * 1.44269504F + magic - magic;
    lanes r = (v - n * 0.693359375F) + n * 2.12194440e-4F;
    lanes p = r * 1.9875691500e-4F + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * r * r + r + 1.0F;
    words power = (__builtin_convertvector(n, words) + 127) << 23;
    *x = (lanes)((words)(p * (lanes)power) & kept);
}

/* x = 1 / (1 + exp(-x)) */
INLINE void sigmoid_lanes(lanes *x)
{
    words negative = *x < 0.0F;
    lanes e = (lanes)((words)*x | SIGN); /* -|x| */
    exp_lanes(&e);
    lanes large = 1.0F / (1.0F + e);
    *x = (lanes)(((words)large & ~negative) | ((words)(e * large) & negative));
}

/* out = a * sigmoid(gate); any of them may be the same. */
INLINE void gate_line(const float *a, const float *gate, float *out, uint32_t count)
{
    uint32_t whole = count / LANES * LANES;
    for (uint32_t c = 0; c < whole; c += LANES) {
        lanes g = *(const lanes *)(gate + c);
        sigmoid_lanes(&g);
        *(lanes *)(out + c) = *(const lanes *)(a + c) * g;
    }
    if (whole < count) {
        size_t bytes = (count - whole) * sizeof(float);
        lanes g = {0};
        memcpy(&g, gate + whole, bytes);
        sigmoid_lanes(&g);
        for (uint32_t c = whole; c < count; c++) {
            out[c] = a[c] * g[c - whole];
        }
    }
}

INLINE float sum_lanes(const lanes *sum)
{
    float s[LANES];
    memcpy(s, sum, sizeof(s));
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

INLINE void finish_tile_body(const struct berth_parakeet_tile *tile)
{
    for (uint32_t i = 0; i < tile->n; i++) {
        float *out = tile->out + i * tile->stride;
        const float *bias = tile->bias;
        uint32_t columns = tile->columns;
        if (bias != NULL) {
            for (uint32_t c = 0; c < columns; c++) {
                out[c] += bias[c] * tile->scale;
            }
        }
        if (tile->activation == BERTH_PARAKEET_SILU) {
            gate_line(out, out, out, columns);
        } else if (tile->activation == BERTH_PARAKEET_RELU) {
            for (uint32_t c = 0; c < columns; c++) {
                out[c] = out[c] > 0.0F ? out[c] : 0.0F;
            }
        }
    }
}

INLINE void norm_body(const struct berth_parakeet_norm *norm, const float *in, float *out,
                      uint32_t hidden)
{
    lanes sum = {0};
    uint32_t whole = hidden / LANES * LANES;
    for (uint32_t c = 0; c < whole; c += LANES) {
        sum += *(const lanes *)(in + c);
    }
    float mean = sum_lanes(&sum);
    for (uint32_t c = whole; c < hidden; c++) {
        mean += in[c];
    }
    mean /= (float)hidden;
    lanes square = {0};
    for (uint32_t c = 0; c < whole; c += LANES) {
        lanes off = *(const lanes *)(in + c) - mean;
        square += off * off;
    }
    float variance = sum_lanes(&square);
    for (uint32_t c = whole; c < hidden; c++) {
        variance += (in[c] - mean) * (in[c] - mean);
    }
    float factor = 1.0F / sqrtf(variance / (float)hidden + EPSILON);
    const float *gamma = norm->gamma;
    const float *beta = norm->beta;
    for (uint32_t c = 0; c < whole; c += LANES) {
        *(lanes *)(out + c) = (*(const lanes *)(in + c) - mean) * factor *
                                  *(const lanes *)(gamma + c) +
                              *(const lanes *)(beta + c);
    }
    for (uint32_t c = whole; c < hidden; c++) {
        out[c] = (in[c] - mean) * factor * gamma[c] + beta[c];
    }
}

INLINE float soften_body(float *restrict score, const float *restrict shifted, float scale,
                         uint32_t count, float *peak)
{
    float high[LANES];
    for (uint32_t l = 0; l < LANES; l++) {
        high[l] = *peak;
    }
    uint32_t whole = count / LANES * LANES;
    for (uint32_t j = 0; j < count; j++) {
        score[j] = (score[j] + shifted[j]) * scale;
    }
    for (uint32_t j = 0; j < whole; j += LANES) {
        for (uint32_t l = 0; l < LANES; l++) {
            high[l] = score[j + l] > high[l] ? score[j + l] : high[l];
        }
    }
    float top = *peak;
    for (uint32_t l = 0; l < LANES; l++) {
        top = high[l] > top ? high[l] : top;
    }
    for (uint32_t j = whole; j < count; j++) {
        top = score[j] > top ? score[j] : top;
    }
    lanes sum = {0};
    for (uint32_t j = 0; j < whole; j += LANES) {
        lanes e = *(const lanes *)(score + j) - top;
        exp_lanes(&e);
        *(lanes *)(score + j) = e;
        sum += e;
    }
    float total = sum_lanes(&sum);
    lanes e = {0};
    for (uint32_t j = whole; j < count; j++) {
        e[j - whole] = score[j] - top;
    }
    exp_lanes(&e);
    for (uint32_t j = whole; j < count; j++) {
        score[j] = e[j - whole];
        total += score[j];
    }
    *peak = top;
    return total;
}

INLINE void multiply_body(float *values, float factor, uint32_t count)
{
    for (uint32_t c = 0; c < count; c++) {
        values[c] *= factor;
    }
}

INLINE void add_body(const float *restrict a, const float *restrict b, float *restrict out,
                     uint32_t count)
{
    for (uint32_t c = 0; c < count; c++) {
        out[c] = a[c] + b[c];
    }
}

INLINE void convolve_body(const struct berth_parakeet_depthwise *conv,
                          const struct berth_parakeet_line *line, const float *restrict in,
                          float *restrict out)
{
    uint32_t count = line->count;
    uint32_t whole = count / LANES * LANES;
    for (uint32_t c = 0; c < whole; c += LANES) {
        lanes sum = *(const lanes *)(conv->bias + c);
        for (uint32_t tap = 0; tap < line->taps; tap++) {
            sum += *(const lanes *)(conv->weight + tap * line->stride + c) *
                   *(const lanes *)(in + tap * count + c);
        }
        *(lanes *)(out + c) = sum;
    }
    for (uint32_t c = whole; c < count; c++) {
        float sum = conv->bias[c];
        for (uint32_t tap = 0; tap < line->taps; tap++) {
            sum += conv->weight[tap * line->stride + c] * in[tap * count + c];
        }
        out[c] = sum;
    }
    gate_line(out, out, out, count);
}

INLINE void spread_line_body(const struct berth_parakeet_group *group, const float *const in[3],
                             float *restrict out, uint32_t count)
{
    lanes weight[9];
    memcpy(weight, group->weight, sizeof(weight));
    const lanes bias = *(const lanes *)group->bias;
    for (uint32_t i = 0; i < count; i++) {
        lanes sum = bias;
        for (uint32_t tap = 0; tap < 9; tap++) {
            sum += in[tap / 3][2 * i + tap % 3] * weight[tap];
        }
        for (uint32_t l = 0; l < LANES; l++) {
            out[i * LANES + l] = sum[l] > 0.0F ? sum[l] : 0.0F;
        }
    }
}

INLINE void gather_line_body(const struct berth_parakeet_group *group, const float *const in[3],
                             float *restrict out, const struct berth_parakeet_line *line)
{
    lanes weight[9];
    memcpy(weight, group->weight, sizeof(weight));
    const lanes bias = *(const lanes *)group->bias;
    for (uint32_t i = 0; i < line->count; i++) {
        lanes sum = bias;
        for (uint32_t tap = 0; tap < 9; tap++) {
            sum += *(const lanes *)(in[tap / 3] + (2 * i + tap % 3) * LANES) * weight[tap];
        }
        float *to = out + (size_t)i * line->stride;
        if (line->used == LANES) {
            *(lanes *)to = sum;
        } else {
            for (uint32_t l = 0; l < line->used; l++) {
                to[l] = sum[l];
            }
        }
    }
}

INLINE void gather_nine_body(const struct berth_parakeet_depthwise *conv, const float *const in[9],
                             float *restrict out, uint32_t count)
{
    const float *weight = conv->weight;
    uint32_t whole = count / LANES * LANES;
    for (uint32_t c = 0; c < whole; c += LANES) {
        lanes sum = *(const lanes *)(conv->bias + c);
        for (uint32_t tap = 0; tap < 9; tap++) {
            sum += *(const lanes *)(weight + tap * count + c) * *(const lanes *)(in[tap] + c);
        }
        *(lanes *)(out + c) = sum;
    }
    for (uint32_t c = whole; c < count; c++) {
        float sum = conv->bias[c];
        for (uint32_t tap = 0; tap < 9; tap++) {
            sum += weight[tap * count + c] * in[tap][c];
        }
        out[c] = sum;
    }
}

INLINE float dot_body(const float *restrict a, const float *restrict b, uint32_t count)
{
    lanes sum[4] = {{0}};
    uint32_t at = 0;
    for (; at + 4 * LANES <= count; at += 4 * LANES) {
        sum[0] += *(const lanes *)(a + at) * *(const lanes *)(b + at);
        sum[1] += *(const lanes *)(a + at + LANES) * *(const lanes *)(b + at + LANES);
        sum[2] += *(const lanes *)(a + at + 2 * LANES) * *(const lanes *)(b + at + 2 * LANES);
        sum[3] += *(const lanes *)(a + at + 3 * LANES) * *(const lanes *)(b + at + 3 * LANES);
    }
    for (; at + LANES <= count; at += LANES) {
        sum[0] += *(const lanes *)(a + at) * *(const lanes *)(b + at);
    }
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float total = sum_lanes(&sum[0]);
    for (; at < count; at++) {
        total += a[at] * b[at];
    }
    return total;
}

INLINE void fourier_body(float *values, const float *turns)
{
    float *from = values;
    float *to = values + 2 * BERTH_PARAKEET_FFT * LANES;
    for (uint32_t half = BERTH_PARAKEET_FFT / 2, step = 1; half >= 1; half /= 2, step *= 2) {
        for (uint32_t p = 0; p < half; p++) {
            float c = turns[2 * p * step];
            float s = turns[2 * p * step + 1];
            for (uint32_t q = 0; q < step; q++) {
                const float *a = from + (q + step * p) * 2 * LANES;
                const float *b = from + (q + step * (p + half)) * 2 * LANES;
                float *sum = to + (q + step * 2 * p) * 2 * LANES;
                float *turned = sum + (size_t)step * 2 * LANES;
                lanes real = *(const lanes *)a - *(const lanes *)b;
                lanes imaginary = *(const lanes *)(a + LANES) - *(const lanes *)(b + LANES);
                *(lanes *)sum = *(const lanes *)a + *(const lanes *)b;
                *(lanes *)(sum + LANES) = *(const lanes *)(a + LANES) + *(const lanes *)(b + LANES);
                *(lanes *)turned = real * c - imaginary * s;
                *(lanes *)(turned + LANES) = real * s + imaginary * c;
            }
        }
        float *swap = from;
        from = to;
        to = swap;
    }
}

INLINE void power_body(const float *spectrum, float *restrict out)
{
    for (uint32_t k = 0; k <= BERTH_PARAKEET_FFT / 2; k++) {
        const float *z = spectrum + (size_t)k * 2 * LANES;
        const float *mirror = spectrum +
                              (size_t)((BERTH_PARAKEET_FFT - k) % BERTH_PARAKEET_FFT) * 2 * LANES;
        lanes a = *(const lanes *)z + *(const lanes *)mirror;
        lanes b = *(const lanes *)(z + LANES) - *(const lanes *)(mirror + LANES);
        lanes c = *(const lanes *)(z + LANES) + *(const lanes *)(mirror + LANES);
        lanes d = *(const lanes *)mirror - *(const lanes *)z;
        *(lanes *)(out + (size_t)k * 2 * LANES) = (a * a + b * b) * 0.25F;
        *(lanes *)(out + (size_t)k * 2 * LANES + LANES) = (c * c + d * d) * 0.25F;
    }
}

INLINE void band_body(const float *restrict power, const float *restrict weight, uint32_t count,
                      float *restrict out)
{
    lanes even = {0};
    lanes odd = {0};
    for (uint32_t k = 0; k < count; k++) {
        even += *(const lanes *)(power + (size_t)k * 2 * LANES) * weight[k];
        odd += *(const lanes *)(power + (size_t)k * 2 * LANES + LANES) * weight[k];
    }
    *(lanes *)out = even;
    *(lanes *)(out + LANES) = odd;
}

/* The functions of one table: NAME_finish_tile and so on, each with one body inlined. */
#define LOOPS(name, attribute)                                                                     \
    attribute static void name##_finish_tile(const struct berth_parakeet_tile *tile)               \
    {                                                                                              \
        finish_tile_body(tile);                                                                    \
    }                                                                                              \
    attribute static void name##_norm(const struct berth_parakeet_norm *norm, const float *in,     \
                                      float *out, uint32_t hidden)                                 \
    {                                                                                              \
        norm_body(norm, in, out, hidden);                                                          \
    }                                                                                              \
    attribute static float name##_soften(float *score, const float *shifted, float scale,          \
                                         uint32_t count, float *peak)                              \
    {                                                                                              \
        return soften_body(score, shifted, scale, count, peak);                                    \
    }                                                                                              \
    attribute static void name##_multiply(float *values, float factor, uint32_t count)             \
    {                                                                                              \
        multiply_body(values, factor, count);                                                      \
    }                                                                                              \
    attribute static void name##_add(const float *a, const float *b, float *out, uint32_t count)   \
    {                                                                                              \
        add_body(a, b, out, count);                                                                \
    }                                                                                              \
    attribute static void name##_glue(const float *a, const float *gate, float *out,               \
                                      uint32_t count)                                              \
    {                                                                                              \
        gate_line(a, gate, out, count);                                                            \
    }                                                                                              \
    attribute static void name##_convolve(const struct berth_parakeet_depthwise *conv,             \
                                          const struct berth_parakeet_line *line, const float *in, \
                                          float *out)                                              \
    {                                                                                              \
        convolve_body(conv, line, in, out);                                                        \
    }                                                                                              \
    attribute static void name##_spread_line(const struct berth_parakeet_group *group,             \
                                             const float *const in[3], float *out, uint32_t count) \
    {                                                                                              \
        spread_line_body(group, in, out, count);                                                   \
    }                                                                                              \
    attribute static void name##_gather_line(const struct berth_parakeet_group *group,             \
                                             const float *const in[3], float *out,                 \
                                             const struct berth_parakeet_line *line)               \
    {                                                                                              \
        gather_line_body(group, in, out, line);                                                    \
    }                                                                                              \
    attribute static void name##_gather_nine(const struct berth_parakeet_depthwise *conv,          \
                                             const float *const in[9], float *out, uint32_t count) \
    {                                                                                              \
        gather_nine_body(conv, in, out, count);                                                    \
    }                                                                                              \
    attribute static float name##_dot(const float *a, const float *b, uint32_t count)              \
    {                                                                                              \
        return dot_body(a, b, count);                                                              \
    }                                                                                              \
    attribute static void name##_fourier(float *values, const float *turns)                        \
    {                                                                                              \
        fourier_body(values, turns);                                                               \
    }                                                                                              \
    attribute static void name##_power(const float *spectrum, float *out)                          \
    {                                                                                              \
        power_body(spectrum, out);                                                                 \
    }                                                                                              \
    attribute static void name##_band(const float *power, const float *weight, uint32_t count,     \
                                      float *out)                                                  \
    {                                                                                              \
        band_body(power, weight, count, out);                                                      \
    }                                                                                              \
    static const struct berth_parakeet_loops name = {                                              \
        .finish_tile = name##_finish_tile,                                                         \
        .norm = name##_norm,                                                                       \
        .soften = name##_soften,                                                                   \
        .multiply = name##_multiply,                                                               \
        .add = name##_add,                                                                         \
        .glue = name##_glue,                                                                       \
        .convolve = name##_convolve,                                                               \
        .spread_line = name##_spread_line,                                                         \
        .gather_line = name##_gather_line,                                                         \
        .gather_nine = name##_gather_nine,                                                         \
        .dot = name##_dot,                                                                         \
        .fourier = name##_fourier,                                                                 \
        .power = name##_power,                                                                     \
        .band = name##_band,                                                                       \
    };

#define EVERYWHERE
LOOPS(plain, EVERYWHERE)

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2")))
LOOPS(wide, WIDE)

const struct berth_parakeet_loops *berth_parakeet_loops_choose(void)
{
    return __builtin_cpu_supports("avx2") ? &wide : &plain;
}
#else
const struct berth_parakeet_loops *berth_parakeet_loops_choose(void)
{
    return &plain;
}
#endif

const struct berth_parakeet_loops *berth_parakeet_loops_plain(void)
{
    return &plain;
}
