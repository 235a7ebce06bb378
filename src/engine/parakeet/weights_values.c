/* weights_values.c - see weights_values.h.
 *
 * Most models are BF16, and a GPU's are halves: that pair has a loop of its own, which looks and
 * converts in one walk over memory (1.5 times as fast as three; x86 with F16C). The other loops are
 * written for the compiler to vectorise.
 */
#include "engine/parakeet/weights_values.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* All bits of the exponent are infinity and NaN, which an add of the lowest carries out of. */
#define EXPONENT_BF16 0x7F80U
#define EXPONENT_HALF 0x7C00U
#define LOWEST_BF16 0x0080U
#define LOWEST_HALF 0x0400U

static bool convert(const void *from, enum berth_dtype from_dtype, void *to,
                    enum berth_dtype to_dtype, size_t count);
static void halves_of(const void *from, bool bfloats, uint16_t *to, size_t count);
static void halves_of_floats(const uint32_t *from, uint16_t *to, size_t count);
static enum berth_parakeet_values take_bfloats(const uint16_t *from, uint16_t *to, size_t count);

bool berth_parakeet_values_finite(const void *values, enum berth_dtype dtype, size_t count)
{
    if (dtype == BERTH_DTYPE_FP32) {
        const uint32_t *words = values;
        uint32_t seen = 0;
        for (size_t i = 0; i < count; i++) {
            seen |= (words[i] & 0x7F800000U) + 0x00800000U;
        }
        return (seen & 0x80000000U) == 0;
    }
    const uint16_t *words = values;
    uint16_t exponent = dtype == BERTH_DTYPE_BF16 ? EXPONENT_BF16 : EXPONENT_HALF;
    uint16_t one = dtype == BERTH_DTYPE_BF16 ? LOWEST_BF16 : LOWEST_HALF;
    uint16_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        seen |= (uint16_t)((uint16_t)(words[i] & exponent) + one);
    }
    return (seen & 0x8000U) == 0;
}

enum berth_parakeet_values berth_parakeet_values_take(const void *from, enum berth_dtype from_dtype,
                                                      void *to, enum berth_dtype to_dtype,
                                                      size_t count)
{
    if (to_dtype != BERTH_DTYPE_FP16 || from_dtype == BERTH_DTYPE_FP16) {
        return berth_parakeet_values_take_plain(from, from_dtype, to, to_dtype, count);
    }
    if (from_dtype == BERTH_DTYPE_BF16) {
        return take_bfloats(from, to, count);
    }
    if (!berth_parakeet_values_finite(from, from_dtype, count)) {
        return BERTH_PARAKEET_VALUES_NO_NUMBER;
    }
    halves_of_floats(from, to, count);
    return berth_parakeet_values_finite(to, to_dtype, count) ? BERTH_PARAKEET_VALUES_GOOD
                                                             : BERTH_PARAKEET_VALUES_LARGE;
}

enum berth_parakeet_values berth_parakeet_values_take_plain(const void *from,
                                                            enum berth_dtype from_dtype, void *to,
                                                            enum berth_dtype to_dtype,
                                                            size_t count)
{
    if (!berth_parakeet_values_finite(from, from_dtype, count)) {
        return BERTH_PARAKEET_VALUES_NO_NUMBER;
    }
    return convert(from, from_dtype, to, to_dtype, count) ? BERTH_PARAKEET_VALUES_GOOD
                                                          : BERTH_PARAKEET_VALUES_LARGE;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* A finite one: its exponent moved by a multiplication, which also normalises what is small. */
static inline uint32_t bits_of_half(uint16_t half)
{
    uint32_t magnitude = bits_of(float_of((uint32_t)(half & 0x7FFFU) << 13) * 0x1p112F);
    return magnitude | (uint32_t)(half & 0x8000U) << 16;
}

/* Of a finite float: to the nearest, to the even one of two as near; infinite from 65520 on. What
 * is below the least normal half is rounded by an addition: 0.5's last bit is a half's. */
static inline uint16_t half_of(uint32_t bits)
{
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    const uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13 & 1U)) >> 13;
    const uint32_t small = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
    uint32_t half = magnitude < 0x38800000U ? small : normal;
    half = magnitude >= 0x47800000U ? 0x7C00U : half;
    return (uint16_t)(half | (bits >> 16 & 0x8000U));
}

static void halves_of(const void *from, bool bfloats, uint16_t *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = half_of(bfloats ? (uint32_t)((const uint16_t *)from)[i] << 16
                                : ((const uint32_t *)from)[i]);
    }
}

/* Finite numbers. false: one became infinite. */
static bool convert(const void *from, enum berth_dtype from_dtype, void *to,
                    enum berth_dtype to_dtype, size_t count)
{
    const uint16_t *halves = from;
    uint32_t *floats = to;
    if (from_dtype == to_dtype) {
        if (from != to) {
            memcpy(to, from, count * berth_dtype_bytes(to_dtype));
        }
    } else if (from_dtype == BERTH_DTYPE_FP16) {
        for (size_t i = 0; i < count; i++) {
            floats[i] = bits_of_half(halves[i]);
        }
    } else if (from_dtype == BERTH_DTYPE_BF16 && to_dtype == BERTH_DTYPE_FP32) {
        for (size_t i = 0; i < count; i++) {
            floats[i] = (uint32_t)halves[i] << 16;
        }
    } else {
        halves_of(from, from_dtype == BERTH_DTYPE_BF16, to, count);
    }
    return from_dtype == to_dtype || to_dtype != BERTH_DTYPE_FP16 ||
           berth_parakeet_values_finite(to, to_dtype, count);
}

/* --- with the processor's instruction for halves --- */

#if defined(__x86_64__)

static bool is_wide(void)
{
    return __builtin_cpu_supports("avx2") != 0; /* what has that has F16C */
}

/* The first so many, eight at a time. */
__attribute__((target("avx2,f16c"))) static size_t floats_wide(const uint32_t *from, uint16_t *to,
                                                               size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        const __m128i halves =
            _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(to + i), halves);
    }
    return i;
}

/* The first so many, sixteen at a time; *end: what they were. */
__attribute__((target("avx2,f16c"))) static size_t bfloats_wide(const uint16_t *from, uint16_t *to,
                                                                size_t count,
                                                                enum berth_parakeet_values *end)
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i exponent = _mm256_set1_epi16((short)EXPONENT_BF16);
    const __m256i lowest = _mm256_set1_epi16((short)LOWEST_BF16);
    const __m256i half_exponent = _mm256_set1_epi16((short)EXPONENT_HALF);
    const __m256i half_lowest = _mm256_set1_epi16((short)LOWEST_HALF);
    __m256i seen = zero, seen_halves = zero;
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        /* Floats of the words 0 to 3 and 8 to 11, and of the others; they go back by fours. */
        const __m256i low = _mm256_unpacklo_epi16(zero, words);
        const __m256i high = _mm256_unpackhi_epi16(zero, words);
        const __m128i a = _mm256_cvtps_ph(_mm256_castsi256_ps(low), _MM_FROUND_TO_NEAREST_INT);
        const __m128i b = _mm256_cvtps_ph(_mm256_castsi256_ps(high), _MM_FROUND_TO_NEAREST_INT);
        const __m256i halves =
            _mm256_set_m128i(_mm_unpackhi_epi64(a, b), _mm_unpacklo_epi64(a, b));
        seen = _mm256_or_si256(seen,
                               _mm256_add_epi16(_mm256_and_si256(words, exponent), lowest));
        seen_halves = _mm256_or_si256(
            seen_halves, _mm256_add_epi16(_mm256_and_si256(halves, half_exponent), half_lowest));
        _mm256_storeu_si256((__m256i *)(void *)(to + i), halves);
    }
    const __m256i carries = _mm256_set1_epi16((short)0x8000U);
    *end = _mm256_testz_si256(seen, carries) == 0          ? BERTH_PARAKEET_VALUES_NO_NUMBER
           : _mm256_testz_si256(seen_halves, carries) == 0 ? BERTH_PARAKEET_VALUES_LARGE
                                                           : BERTH_PARAKEET_VALUES_GOOD;
    return i;
}

static void halves_of_floats(const uint32_t *from, uint16_t *to, size_t count)
{
    const size_t done = is_wide() ? floats_wide(from, to, count) : 0;
    halves_of(from + done, false, to + done, count - done);
}

static enum berth_parakeet_values take_bfloats(const uint16_t *from, uint16_t *to, size_t count)
{
    enum berth_parakeet_values end = BERTH_PARAKEET_VALUES_GOOD;
    const size_t done = is_wide() ? bfloats_wide(from, to, count, &end) : 0;
    const enum berth_parakeet_values rest = berth_parakeet_values_take_plain(
        from + done, BERTH_DTYPE_BF16, to + done, BERTH_DTYPE_FP16, count - done);
    return end == BERTH_PARAKEET_VALUES_NO_NUMBER || rest == BERTH_PARAKEET_VALUES_GOOD ? end
                                                                                        : rest;
}

#else

static void halves_of_floats(const uint32_t *from, uint16_t *to, size_t count)
{
    halves_of(from, false, to, count);
}

static enum berth_parakeet_values take_bfloats(const uint16_t *from, uint16_t *to, size_t count)
{
    return berth_parakeet_values_take_plain(from, BERTH_DTYPE_BF16, to, BERTH_DTYPE_FP16, count);
}

#endif
