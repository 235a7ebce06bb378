/* e4m3.h - eight-bit floats: a sign, four bits of exponent (bias 7), three of mantissa; 448 is the
 * largest, there is no infinity, 0x7F and 0xFF are no number (OCP 8-bit Floating Point
 * Specification, 2023).
 *
 * Inline, because a model's half a billion weights go through it; the loop around it vectorises.
 */
#ifndef BERTH_E4M3_H
#define BERTH_E4M3_H

#include <stdint.h>
#include <string.h>

#define BERTH_E4M3_MAX 448.0F

/* To the nearest, to the even one of two as near; past 448 it is 448. value is finite. */
static inline uint8_t berth_e4m3_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    /* From 2^-6 on: the exponent's bias is 120 less, and 20 bits of mantissa go. */
    const uint32_t normal = ((magnitude + 0x7FFFFU + (magnitude >> 20 & 1U)) >> 20) - (120U << 3);
    /* Below, steps are 2^-9, which is the last bit of 2^14. */
    float shifted;
    memcpy(&shifted, &magnitude, sizeof(shifted));
    shifted += 0x1p14F;
    uint32_t small;
    memcpy(&small, &shifted, sizeof(small));
    small -= 0x46800000U;
    uint32_t code = magnitude < 0x3C800000U ? small : normal;
    code = magnitude > 0x43E00000U ? 0x7EU : code;
    return (uint8_t)(code | (bits >> 24 & 0x80U));
}

/* The number of a code that is one. */
static inline float berth_e4m3_value(uint8_t code)
{
    const uint32_t exponent = code >> 3 & 15U;
    const uint32_t mantissa = code & 7U;
    const uint32_t bits = (exponent + 120U) << 23 | mantissa << 20;
    float value;
    memcpy(&value, &bits, sizeof(value));
    value = exponent == 0 ? (float)mantissa * 0x1p-9F : value;
    return (code & 0x80U) != 0 ? -value : value;
}

#endif
