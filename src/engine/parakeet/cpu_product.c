/* cpu_product.c - products of matrices: a panel of 16 columns against strips of a few vectors.
 *
 * A strip's sums stay in registers along a block of the depth; the panel (16 KB, packed so that a
 * step reads one line of it) stays in the first cache, and is packed once for all vectors of a
 * call. Vectors are read where they lie. OpenBLAS was here first: built for one thread it is not
 * safe to call from several, built for more it starts them before main, and the sandbox wants a
 * process with one; and for vectors as few as a recording's it is slower by a tenth.
 *
 * Source: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).
 */
#include "engine/parakeet/cpu_product.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PANEL BERTH_PARAKEET_PANEL
#define DEPTH BERTH_PARAKEET_DEPTH
#define STRIP_MAX 12

/* Sums are arrays; only when their loops are unrolled are they registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

struct strip {
    const float *a;
    const float *b;
    float *c; /* [rows][PANEL] */
    uint64_t a_stride, b_stride, c_stride;
    uint32_t depth;
    float scale;
    bool add;
};

struct berth_parakeet_kernels {
    uint32_t rows; /* of a strip at most */
    void (*multiply)(const struct strip *strip, uint32_t rows);
    /* [PANEL lines of depth] turned to [depth][PANEL] */
    void (*turn)(const float *from, uint64_t stride, uint32_t depth, float *to);
};

void berth_parakeet_multiply(const struct berth_parakeet_kernels *kernels,
                             const struct berth_parakeet_product *product, float *scratch)
{
    for (uint32_t depth = 0; depth < product->depth; depth += DEPTH) {
        for (uint32_t column = 0; column < product->columns; column += PANEL) {
            const uint32_t at[2] = {column, depth};
            struct berth_parakeet_panel panel;
            struct berth_parakeet_product run = *product;
            berth_parakeet_panel_fill(kernels, product, at, &panel, scratch);
            run.a += depth;
            run.c += column;
            run.add = product->add || depth > 0;
            berth_parakeet_panel_multiply(kernels, &panel, &run);
        }
    }
}

void berth_parakeet_panel_fill(const struct berth_parakeet_kernels *kernels,
                               const struct berth_parakeet_product *product, const uint32_t at[2],
                               struct berth_parakeet_panel *panel, float *scratch)
{
    uint32_t columns = product->columns - at[0];
    uint32_t depth = product->depth - at[1];
    panel->columns = columns < PANEL ? columns : PANEL;
    panel->depth = depth < DEPTH ? depth : DEPTH;
    panel->b = scratch;
    panel->b_stride = PANEL;
    if (product->across) {
        const float *from = product->b + at[1] * product->b_stride + at[0];
        if (panel->columns == PANEL) { /* lies as it should */
            panel->b = from;
            panel->b_stride = product->b_stride;
            return;
        }
        memset(scratch, 0, (size_t)PANEL * panel->depth * sizeof(float));
        for (uint32_t k = 0; k < panel->depth; k++) {
            memcpy(scratch + (size_t)k * PANEL, from + k * product->b_stride,
                   panel->columns * sizeof(float));
        }
        return;
    }
    const float *from = product->b + at[0] * product->b_stride + at[1];
    if (panel->columns == PANEL) {
        kernels->turn(from, product->b_stride, panel->depth, scratch);
        return;
    }
    memset(scratch, 0, (size_t)PANEL * panel->depth * sizeof(float));
    for (uint32_t c = 0; c < panel->columns; c++) {
        for (uint32_t k = 0; k < panel->depth; k++) {
            scratch[(size_t)k * PANEL + c] = from[c * product->b_stride + k];
        }
    }
}

void berth_parakeet_panel_multiply(const struct berth_parakeet_kernels *kernels,
                                   const struct berth_parakeet_panel *panel,
                                   const struct berth_parakeet_product *run)
{
    float narrow[STRIP_MAX * PANEL]; /* of a panel that is not full */
    struct strip strip = {.b = panel->b,
                          .b_stride = panel->b_stride,
                          .a_stride = run->a_stride,
                          .depth = panel->depth,
                          .scale = run->scale};
    for (uint32_t i = 0; i < run->n; i += kernels->rows) {
        uint32_t rows = run->n - i < kernels->rows ? run->n - i : kernels->rows;
        float *c = run->c + i * run->c_stride;
        strip.a = run->a + i * run->a_stride;
        if (panel->columns == PANEL) {
            strip.c = c;
            strip.c_stride = run->c_stride;
            strip.add = run->add;
            kernels->multiply(&strip, rows);
            continue;
        }
        strip.c = narrow;
        strip.c_stride = PANEL;
        kernels->multiply(&strip, rows);
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t k = 0; k < panel->columns; k++) {
                float *to = c + r * run->c_stride + k;
                *to = run->add ? *to + narrow[r * PANEL + k] : narrow[r * PANEL + k];
            }
        }
    }
}

/* Any processor. */

#define PLAIN_LANES 4
#define PLAIN_PARTS (PANEL / PLAIN_LANES)
#define PLAIN_ROWS 2

typedef float lanes __attribute__((vector_size(4 * PLAIN_LANES), aligned(4), may_alias));

INLINE void plain_strip(const struct strip *strip, const uint32_t rows)
{
    lanes sum[PLAIN_ROWS][PLAIN_PARTS] = {{{0}}};
    const float *b = strip->b;
    for (uint32_t k = 0; k < strip->depth; k++, b += strip->b_stride) {
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            float a = strip->a[r * strip->a_stride + k];
            UNROLL
            for (uint32_t p = 0; p < PLAIN_PARTS; p++) {
                sum[r][p] += a * *(const lanes *)(b + p * PLAIN_LANES);
            }
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL
        for (uint32_t p = 0; p < PLAIN_PARTS; p++) {
            lanes *c = (lanes *)(strip->c + r * strip->c_stride + p * PLAIN_LANES);
            lanes value = sum[r][p] * strip->scale;
            if (strip->add) {
                value += *c;
            }
            *c = value;
        }
    }
}

static void plain_multiply(const struct strip *strip, uint32_t rows)
{
    if (rows == PLAIN_ROWS) {
        plain_strip(strip, PLAIN_ROWS);
    } else {
        plain_strip(strip, 1);
    }
}

static void plain_turn(const float *from, uint64_t stride, uint32_t depth, float *to)
{
    for (uint32_t k = 0; k < depth; k++) {
        for (uint32_t c = 0; c < PANEL; c++) {
            to[(size_t)k * PANEL + c] = from[c * stride + k];
        }
    }
}

static const struct berth_parakeet_kernels plain = {PLAIN_ROWS, plain_multiply, plain_turn};

#if defined(__x86_64__)

/* AVX2 and FMA: six vectors, twelve registers of sums. */

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX2_ROWS 6

AVX2 INLINE void avx2_strip(const struct strip *strip, const uint32_t rows)
{
    __m256 low[AVX2_ROWS];
    __m256 high[AVX2_ROWS];
    const float *b = strip->b;
    const float *a = strip->a;
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        low[r] = _mm256_setzero_ps();
        high[r] = _mm256_setzero_ps();
    }
    for (uint32_t k = 0; k < strip->depth; k++, b += strip->b_stride, a++) {
        __m256 b_low = _mm256_loadu_ps(b);
        __m256 b_high = _mm256_loadu_ps(b + 8);
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m256 each = _mm256_broadcast_ss(a + r * strip->a_stride);
            low[r] = _mm256_fmadd_ps(each, b_low, low[r]);
            high[r] = _mm256_fmadd_ps(each, b_high, high[r]);
        }
    }
    __m256 scale = _mm256_set1_ps(strip->scale);
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        float *c = strip->c + r * strip->c_stride;
        __m256 v_low = _mm256_mul_ps(low[r], scale);
        __m256 v_high = _mm256_mul_ps(high[r], scale);
        if (strip->add) {
            v_low = _mm256_add_ps(_mm256_loadu_ps(c), v_low);
            v_high = _mm256_add_ps(_mm256_loadu_ps(c + 8), v_high);
        }
        _mm256_storeu_ps(c, v_low);
        _mm256_storeu_ps(c + 8, v_high);
    }
}

AVX2 static void avx2_multiply(const struct strip *strip, uint32_t rows)
{
    switch (rows) {
    case 1:
        avx2_strip(strip, 1);
        break;
    case 2:
        avx2_strip(strip, 2);
        break;
    case 3:
        avx2_strip(strip, 3);
        break;
    case 4:
        avx2_strip(strip, 4);
        break;
    case 5:
        avx2_strip(strip, 5);
        break;
    default:
        avx2_strip(strip, AVX2_ROWS);
        break;
    }
}

/* Eight lines of eight: pairs, then fours, then halves change places. */
AVX2 INLINE void avx2_turn_square(const float *from, uint64_t stride, float *to)
{
    __m256 line[8];
    __m256 pair[8];
    for (uint32_t i = 0; i < 8; i++) {
        line[i] = _mm256_loadu_ps(from + i * stride);
    }
    for (uint32_t i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(line[i], line[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(line[i], line[i + 1]);
    }
    for (uint32_t i = 0; i < 8; i += 4) {
        line[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        line[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE);
        line[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        line[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xEE);
    }
    for (uint32_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + (size_t)i * PANEL,
                         _mm256_permute2f128_ps(line[i], line[i + 4], 0x20));
        _mm256_storeu_ps(to + (size_t)(i + 4) * PANEL,
                         _mm256_permute2f128_ps(line[i], line[i + 4], 0x31));
    }
}

AVX2 static void avx2_turn(const float *from, uint64_t stride, uint32_t depth, float *to)
{
    uint32_t whole = depth / 8 * 8;
    for (uint32_t k = 0; k < whole; k += 8) {
        avx2_turn_square(from + k, stride, to + (size_t)k * PANEL);
        avx2_turn_square(from + 8 * stride + k, stride, to + (size_t)k * PANEL + 8);
    }
    plain_turn(from + whole, stride, depth - whole, to + (size_t)whole * PANEL);
}

static const struct berth_parakeet_kernels avx2 = {AVX2_ROWS, avx2_multiply, avx2_turn};

/* AVX-512: twelve vectors, a register of sums each. */

#define AVX512 __attribute__((target("avx512f,avx2,fma")))
#define AVX512_ROWS 12

AVX512 INLINE void avx512_strip(const struct strip *strip, const uint32_t rows)
{
    __m512 sum[AVX512_ROWS];
    const float *b = strip->b;
    const float *a = strip->a;
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        sum[r] = _mm512_setzero_ps();
    }
    for (uint32_t k = 0; k < strip->depth; k++, b += strip->b_stride, a++) {
        __m512 line = _mm512_loadu_ps(b);
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            sum[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * strip->a_stride]), line, sum[r]);
        }
    }
    __m512 scale = _mm512_set1_ps(strip->scale);
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        float *c = strip->c + r * strip->c_stride;
        __m512 value = _mm512_mul_ps(sum[r], scale);
        if (strip->add) {
            value = _mm512_add_ps(_mm512_loadu_ps(c), value);
        }
        _mm512_storeu_ps(c, value);
    }
}

AVX512 static void avx512_multiply(const struct strip *strip, uint32_t rows)
{
    struct strip part = *strip;
    for (; rows >= AVX512_ROWS; rows -= AVX512_ROWS) {
        avx512_strip(&part, AVX512_ROWS);
        part.a += AVX512_ROWS * part.a_stride;
        part.c += AVX512_ROWS * part.c_stride;
    }
    for (; rows >= 4; rows -= 4) {
        avx512_strip(&part, 4);
        part.a += 4 * part.a_stride;
        part.c += 4 * part.c_stride;
    }
    for (; rows > 0; rows--) {
        avx512_strip(&part, 1);
        part.a += part.a_stride;
        part.c += part.c_stride;
    }
}

static const struct berth_parakeet_kernels avx512 = {AVX512_ROWS, avx512_multiply, avx2_turn};

const struct berth_parakeet_kernels *berth_parakeet_kernels_at(uint32_t level)
{
    if (level == 0) {
        return &plain;
    }
    if (level == 1) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2 : NULL;
    }
    return __builtin_cpu_supports("avx512f") ? &avx512 : NULL;
}

#else

const struct berth_parakeet_kernels *berth_parakeet_kernels_at(uint32_t level)
{
    return level == 0 ? &plain : NULL;
}

#endif

const struct berth_parakeet_kernels *berth_parakeet_kernels_choose(void)
{
    const struct berth_parakeet_kernels *best = NULL;
    for (uint32_t level = 0; level < BERTH_PARAKEET_KERNELS; level++) {
        const struct berth_parakeet_kernels *kernels = berth_parakeet_kernels_at(level);
        best = kernels != NULL ? kernels : best;
    }
    return best;
}
