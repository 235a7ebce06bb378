/* Quantiles against the exact ones of sorted values. */
#include "base/hist.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/mem.h"

#define VALUES 20000

static struct berth_hist hist, other;
static uint64_t values[VALUES];

static uint64_t random_next(void)
{
    static uint64_t seed = 88172645463325252u;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void quantiles_are_within_a_64th(void **state)
{
    static const double shares[] = {0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1};
    (void)state;
    for (unsigned bits = 2; bits <= 40; bits++) {
        berth_hist_init(&hist);
        for (size_t i = 0; i < VALUES; i++) {
            values[i] = random_next() >> (64 - bits) >> (random_next() % bits); /* long-tailed */
            berth_hist_record(&hist, values[i]);
        }
        qsort(values, VALUES, sizeof(values[0]), compare);
        for (size_t i = 0; i < BERTH_COUNT_OF(shares); i++) {
            size_t rank = (size_t)ceil(shares[i] * VALUES);
            uint64_t exact = values[rank == 0 ? 0 : rank - 1];
            uint64_t told = berth_hist_quantile(&hist, shares[i]);
            assert_true(told >= exact);
            assert_true(told - exact <= exact / 64);
        }
        assert_int_equal(berth_hist_quantile(&hist, 1), values[VALUES - 1]);
        assert_int_equal(berth_hist_count_upto(&hist, UINT64_MAX), VALUES);
    }
}

static void small_values_are_exact(void **state)
{
    (void)state;
    berth_hist_init(&hist);
    assert_int_equal(berth_hist_quantile(&hist, 0.5), 0);
    for (uint64_t value = 0; value < 128; value++) {
        berth_hist_record(&hist, value);
    }
    for (uint64_t value = 0; value < 128; value++) {
        assert_int_equal(berth_hist_count_upto(&hist, value), value + 1);
    }
    assert_int_equal(berth_hist_quantile(&hist, 0.5), 63);
    assert_int_equal(hist.sum, 127 * 128 / 2);
}

static void edges_of_steps(void **state)
{
    (void)state;
    for (unsigned bit = 6; bit < 40; bit++) {
        uint64_t edge = UINT64_C(1) << bit;
        berth_hist_init(&hist);
        berth_hist_record(&hist, edge - 1);
        berth_hist_record(&hist, edge);
        assert_int_equal(berth_hist_count_upto(&hist, edge - 1), 1);
        assert_int_equal(berth_hist_count_upto(&hist, edge), 2);
    }
}

static void huge_values_are_clamped(void **state)
{
    (void)state;
    berth_hist_init(&hist);
    berth_hist_record(&hist, UINT64_MAX);
    assert_int_equal(hist.counts[BERTH_HIST_COUNT - 1], 1);
    assert_int_equal(hist.max, UINT64_MAX);
    assert_int_equal(berth_hist_quantile(&hist, 0.5), (UINT64_C(1) << BERTH_HIST_VALUE_BITS) - 1);
    assert_int_equal(berth_hist_quantile(&hist, -3), berth_hist_quantile(&hist, 0));
    assert_int_equal(berth_hist_quantile(&hist, 7), berth_hist_quantile(&hist, 1));
}

static void add_is_recording_both(void **state)
{
    (void)state;
    berth_hist_init(&hist);
    berth_hist_init(&other);
    for (uint64_t i = 1; i <= 100; i++) {
        berth_hist_record(i % 2 == 0 ? &hist : &other, i);
    }
    berth_hist_add(&hist, &other);
    assert_int_equal(hist.count, 100);
    assert_int_equal(hist.sum, 5050);
    assert_int_equal(hist.max, 100);
    assert_int_equal(berth_hist_quantile(&hist, 0.25), 25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_within_a_64th), cmocka_unit_test(small_values_are_exact),
        cmocka_unit_test(edges_of_steps),              cmocka_unit_test(huge_values_are_clamped),
        cmocka_unit_test(add_is_recording_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
