/* Numbers of a file's types as halves and floats: every bfloat and every half there is, by the
 * processor's instructions and without them. */
#include "engine/parakeet/weights_values.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/err.h"

#define ALL 65536U
#define SOME 53 /* three times what is done at once, and a rest */

#define GOOD BERTH_PARAKEET_VALUES_GOOD
#define NO_NUMBER BERTH_PARAKEET_VALUES_NO_NUMBER
#define LARGE BERTH_PARAKEET_VALUES_LARGE

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float bfloat(uint32_t word)
{
    return float_of(word << 16);
}

static float half(uint32_t word)
{
    const int exponent = (int)(word >> 10 & 31);
    const float fraction = (float)(word & 0x3FF) * 0x1p-10F;
    const float magnitude = exponent == 31  ? (fraction > 0 ? NAN : INFINITY)
                            : exponent == 0 ? ldexpf(fraction, -14)
                                            : ldexpf(1 + fraction, exponent - 15);
    return (word & 0x8000) != 0 ? -magnitude : magnitude;
}

static enum berth_parakeet_values kind_of(float value)
{
    return !isfinite(value) ? NO_NUMBER : fabsf(value) >= 65520.0F ? LARGE : GOOD;
}

/* Of a bfloat: a half has more bits from its least normal number on, and steps of 2^-24 below. */
static void test_every_bfloat(void **state)
{
    static uint16_t from[ALL], to[ALL], plain[ALL];
    size_t count = 0;
    for (uint32_t word = 0; word < ALL; word++) {
        if (kind_of(bfloat(word)) == GOOD) {
            from[count++] = (uint16_t)word;
        }
    }
    assert_int_equal(count, 2 * (143U << 7)); /* up to 2^16 */
    assert_int_equal(
        berth_parakeet_values_take(from, BERTH_DTYPE_BF16, to, BERTH_DTYPE_FP16, count), GOOD);
    assert_int_equal(
        berth_parakeet_values_take_plain(from, BERTH_DTYPE_BF16, plain, BERTH_DTYPE_FP16, count),
        GOOD);
    assert_memory_equal(to, plain, count * sizeof(*to));
    for (size_t i = 0; i < count; i++) {
        const double value = (double)bfloat(from[i]);
        const double want = fabs(value) >= 0x1p-14 ? value : nearbyint(value * 0x1p24) * 0x1p-24;
        assert_true((double)half(to[i]) == want);
        assert_int_equal(to[i] >> 15, from[i] >> 15);
    }
}

/* Each in each place: one that is no number is found, and one that is too large, and what the
 * others become does not depend on it. */
static void test_every_place(void **state)
{
    for (uint32_t word = 0; word < ALL; word++) {
        const enum berth_parakeet_values want = kind_of(bfloat(word));
        /* What can be refused in all places, the others in some. */
        for (size_t place = want == GOOD ? word % SOME : 0; place < SOME;
             place += want == GOOD ? SOME : 1) {
            uint16_t from[SOME], to[SOME], plain[SOME];
            float floats[SOME];
            for (size_t i = 0; i < SOME; i++) {
                from[i] = (uint16_t)(0x3F00 + i);
            }
            from[place] = (uint16_t)word;
            const enum berth_parakeet_values end =
                berth_parakeet_values_take(from, BERTH_DTYPE_BF16, to, BERTH_DTYPE_FP16, SOME);
            assert_int_equal(end, want);
            assert_int_equal(berth_parakeet_values_take_plain(from, BERTH_DTYPE_BF16, plain,
                                                              BERTH_DTYPE_FP16, SOME),
                             want);
            assert_true(want != GOOD || memcmp(to, plain, sizeof(to)) == 0);
            assert_int_equal(berth_parakeet_values_finite(from, BERTH_DTYPE_BF16, SOME),
                             want != NO_NUMBER);
            assert_int_equal(berth_parakeet_values_take(from, BERTH_DTYPE_BF16, floats,
                                                        BERTH_DTYPE_FP32, SOME),
                             want == NO_NUMBER ? NO_NUMBER : GOOD);
        }
    }
}

/* What is no number is told before what is large, wherever they are; nothing is past the end. */
static void test_both_and_lengths(void **state)
{
    uint16_t from[SOME], to[SOME + 1];
    for (size_t count = 0; count <= SOME; count++) {
        for (size_t i = 0; i < SOME; i++) {
            from[i] = i < count ? 0xBF80 : 0x7FC0; /* behind it is no number */
        }
        to[count] = 0x1234;
        assert_int_equal(
            berth_parakeet_values_take(from, BERTH_DTYPE_BF16, to, BERTH_DTYPE_FP16, count), GOOD);
        assert_int_equal(to[count], 0x1234);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(to[i], 0xBC00);
        }
        if (count >= 2) {
            from[0] = 0x4780; /* 65536 */
            from[count - 1] = 0xFF80;
            assert_int_equal(berth_parakeet_values_take(from, BERTH_DTYPE_BF16, to,
                                                        BERTH_DTYPE_FP16, count),
                             NO_NUMBER);
            from[0] = 0x7F80;
            from[count - 1] = 0xC780;
            assert_int_equal(berth_parakeet_values_take(from, BERTH_DTYPE_BF16, to,
                                                        BERTH_DTYPE_FP16, count),
                             NO_NUMBER);
        }
    }
}

/* Every half as a float, and as itself, in place and not. */
static void test_every_half(void **state)
{
    for (uint32_t word = 0; word < ALL; word++) {
        const uint16_t from = (uint16_t)word;
        uint16_t same = from, copy = 0;
        float value = 0;
        const enum berth_parakeet_values want = isfinite(half(word)) ? GOOD : NO_NUMBER;
        assert_int_equal(
            berth_parakeet_values_take(&from, BERTH_DTYPE_FP16, &value, BERTH_DTYPE_FP32, 1), want);
        assert_int_equal(
            berth_parakeet_values_take(&from, BERTH_DTYPE_FP16, &copy, BERTH_DTYPE_FP16, 1), want);
        assert_int_equal(
            berth_parakeet_values_take(&same, BERTH_DTYPE_FP16, &same, BERTH_DTYPE_FP16, 1), want);
        assert_int_equal(same, from);
        if (want == GOOD) {
            assert_true(value == half(word) && signbit(value) == (int)signbit(half(word)));
            assert_int_equal(copy, from);
        }
    }
}

/* Floats around every half and every tie: the instruction says what the reference does. */
static void test_floats(void **state)
{
    static const int32_t off[] = {-4097, -4096, -4095, -1, 0, 1, 4095, 4096, 4097, 77777};
    for (uint32_t top = 0; top < ALL; top++) {
        uint32_t from[SOME];
        uint16_t to[SOME], plain[SOME];
        enum berth_parakeet_values want = GOOD;
        for (size_t i = 0; i < SOME; i++) {
            const uint32_t step = (uint32_t)(i / BERTH_COUNT_OF(off)) << 13;
            from[i] = (top << 16) + step + (uint32_t)off[i % BERTH_COUNT_OF(off)];
            const enum berth_parakeet_values one = kind_of(float_of(from[i]));
            want = want == NO_NUMBER || one == NO_NUMBER ? NO_NUMBER : one == LARGE ? LARGE : want;
        }
        const enum berth_parakeet_values end =
            berth_parakeet_values_take(from, BERTH_DTYPE_FP32, to, BERTH_DTYPE_FP16, SOME);
        assert_int_equal(end, want);
        assert_int_equal(berth_parakeet_values_take_plain(from, BERTH_DTYPE_FP32, plain,
                                                          BERTH_DTYPE_FP16, SOME),
                         want);
        assert_true(want == NO_NUMBER || memcmp(to, plain, sizeof(to)) == 0);
        assert_int_equal(
            berth_parakeet_values_take(from, BERTH_DTYPE_FP32, from, BERTH_DTYPE_FP32, SOME),
            want == NO_NUMBER ? NO_NUMBER : GOOD);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bfloat), cmocka_unit_test(test_every_place),
        cmocka_unit_test(test_both_and_lengths), cmocka_unit_test(test_every_half),
        cmocka_unit_test(test_floats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
