/* test_resample.c - lengths, delay and purity of the resampler. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "media/resample.h"

/* Resamples in blocks of `block`; the caller frees. */
static float *resample(uint32_t from, uint32_t to, const float *in, size_t count, size_t block,
                       size_t *out_count)
{
    struct berth_resampler *resampler = NULL;
    struct berth_err err = {0};
    assert_int_equal(berth_resampler_create(from, to, &resampler, &err), BERTH_OK);
    float *out = calloc(berth_resampler_room(resampler, count) + 64, sizeof(*out));
    size_t made = 0;
    for (size_t at = 0; at < count; at += block) {
        size_t part = count - at < block ? count - at : block;
        size_t got = berth_resampler_push(resampler, in + at, part, out + made);
        assert_true(got <= berth_resampler_room(resampler, part));
        made += got;
    }
    for (size_t got = 1; got > 0; made += got) {
        got = berth_resampler_flush(resampler, out + made, 7);
    }
    berth_resampler_destroy(resampler);
    *out_count = made;
    return out;
}

static float *sine(uint32_t rate, double frequency, size_t count)
{
    float *frames = calloc(count + 1, sizeof(*frames));
    for (size_t i = 0; i < count; i++) {
        frames[i] = (float)sin(2 * M_PI * frequency * (double)i / rate);
    }
    return frames;
}

/* dB of the sine at its exact place in time against everything else, away from the ends. */
static double purity(uint32_t from, uint32_t to, double frequency)
{
    size_t count = from, out_count = 0;
    float *in = sine(from, frequency, count);
    float *out = resample(from, to, in, count, 1000, &out_count);
    double noise = 0, signal = 0;
    for (size_t i = out_count / 8; i < out_count - out_count / 8; i++) {
        double want = sin(2 * M_PI * frequency * (double)i / to);
        signal += want * want;
        noise += (out[i] - want) * (out[i] - want);
    }
    free(in);
    free(out);
    return 10 * log10(signal / (noise + 1e-30));
}

static void test_purity(void **state)
{
    static const struct {
        uint32_t from, to;
        double frequency;
        double snr_min;
    } rows[] = {
        {48000, 16000, 100, 85},   {48000, 16000, 1000, 85},  {48000, 16000, 3000, 85},
        {48000, 16000, 6400, 85},  {44100, 16000, 1000, 85},  {44100, 16000, 6400, 85},
        {8000, 16000, 300, 85},    {8000, 16000, 3000, 85},   {8000, 16000, 3200, 85},
        {22050, 16000, 5000, 85},  {11025, 16000, 4000, 85},  {96000, 16000, 6000, 85},
        {44101, 16000, 1000, 80},  {44101, 16000, 6000, 80},  {15999, 16000, 6000, 80},
        {16000, 44100, 5000, 85},  {192000, 8000, 3000, 85},  {768000, 16000, 5000, 85},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        double snr = purity(rows[i].from, rows[i].to, rows[i].frequency);
        print_message("%6u to %5u, %4.0f Hz: %5.1f dB\n", rows[i].from, rows[i].to,
                      rows[i].frequency, snr);
        assert_true(snr >= rows[i].snr_min);
    }
}

/* What lies above the new Nyquist frequency is gone. */
static void test_aliases(void **state)
{
    static const double frequencies[] = {9000, 10000, 12000, 15000, 20000};
    for (size_t i = 0; i < BERTH_COUNT_OF(frequencies); i++) {
        size_t out_count = 0;
        float *in = sine(48000, frequencies[i], 48000);
        float *out = resample(48000, 16000, in, 48000, 4096, &out_count);
        double power = 0;
        for (size_t k = 1000; k < 15000; k++) {
            power += (double)out[k] * out[k];
        }
        double level = 10 * log10(power / 14000 * 2 + 1e-30);
        print_message("%5.0f Hz: %6.1f dB\n", frequencies[i], level);
        assert_true(level < -80);
        free(in);
        free(out);
    }
}

static void test_constant(void **state)
{
    static const uint32_t rates[] = {8000, 11025, 44100, 44101, 48000, 767999};
    for (size_t i = 0; i < BERTH_COUNT_OF(rates); i++) {
        size_t out_count = 0;
        float *in = calloc(rates[i], sizeof(*in));
        for (size_t k = 0; k < rates[i]; k++) {
            in[k] = 0.5f;
        }
        float *out = resample(rates[i], 16000, in, rates[i], 16384, &out_count);
        assert_int_equal(out_count, 16000);
        for (size_t k = 100; k < out_count - 100; k++) {
            assert_true(fabsf(out[k] - 0.5f) < 2e-6f);
        }
        free(in);
        free(out);
    }
}

/* round(n * to / from) frames, whatever the blocks, and the same ones. */
static void test_lengths(void **state)
{
    static const uint32_t rates[] = {100, 8000, 11025, 16000, 22050, 44100, 44101, 48000, 768000};
    static const size_t counts[] = {0, 1, 2, 3, 10, 159, 160, 161, 1000, 4411, 16383};
    for (size_t i = 0; i < BERTH_COUNT_OF(rates); i++) {
        for (size_t k = 0; k < BERTH_COUNT_OF(counts); k++) {
            size_t whole = 0, parts = 0, count = counts[k];
            float *in = sine(rates[i], 50, count);
            float *one = resample(rates[i], 16000, in, count, 16384, &whole);
            float *two = resample(rates[i], 16000, in, count, 37, &parts);
            assert_int_equal(whole, (size_t)floor((double)count * 16000 / rates[i] + 0.5));
            assert_int_equal(parts, whole);
            assert_memory_equal(one, two, whole * sizeof(*one));
            free(in);
            free(one);
            free(two);
        }
    }
}

/* An impulse comes out where it went in. */
static void test_delay(void **state)
{
    size_t out_count = 0;
    float *in = calloc(48000, sizeof(*in));
    in[24000] = 1;
    float *out = resample(48000, 16000, in, 48000, 999, &out_count);
    for (size_t i = 0; i < out_count; i++) {
        assert_true(fabsf(out[i]) <= fabsf(out[8000]));
    }
    for (size_t i = 1; i < 100; i++) {
        assert_true(fabsf(out[8000 - i] - out[8000 + i]) < 1e-6f);
    }
    free(in);
    free(out);
}

static void test_bad(void **state)
{
    static const struct {
        uint32_t from, to;
    } rows[] = {{0, 16000}, {99, 16000}, {768001, 16000}, {UINT32_MAX, 16000}, {16000, 0}};
    struct berth_resampler *resampler = NULL;
    struct berth_err err = {0};
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        assert_int_equal(berth_resampler_create(rows[i].from, rows[i].to, &resampler, &err),
                         BERTH_INVALID);
    }
    for (uint64_t at = 1; at <= 4; at++) {
        berth_mem_fail_at(at, false);
        assert_int_equal(berth_resampler_create(48000, 16000, &resampler, &err),
                         BERTH_UNAVAILABLE);
        berth_mem_fail_at(0, false);
    }
    assert_int_equal(berth_mem_bytes_live(), 0);
    berth_resampler_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_purity),  cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_constant), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_delay),   cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests_name("resample", tests, NULL, NULL);
}
