/* Log-mel features against the Python reference (tests/data/whisper/make_goldens.py). */
#include "engine/whisper/mel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"

#define TOLERANCE 1e-4F /* of a scale on which speech spans about 2 */

static void chirp(float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double t = (double)i / BERTH_MEL_RATE;
        double value =
            0.3 * sin(2 * M_PI * (200 * t + 900 * t * t)) + 0.05 * sin(2 * M_PI * 3000 * t);
        out[i] = i >= count / 2 && i < count / 2 + 1600 ? 0.0F : (float)value;
    }
}

static float *read_golden(uint32_t bins, size_t frames)
{
    char path[1024];
    const char *source = getenv("BERTH_SOURCE");
    (void)snprintf(path, sizeof(path), "%s/tests/data/whisper/mel_chirp_%u.f32",
                   source == NULL ? "." : source, bins);
    FILE *file = fopen(path, "rb");
    float *values = berth_alloc(frames * bins * sizeof(float));
    assert_non_null(file);
    assert_non_null(values);
    assert_int_equal(fread(values, sizeof(float), frames * bins, file), frames * bins);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    return values;
}

/* The whole file's features, in slices for the peak and then as one window. */
static void compare(uint32_t bins, size_t count)
{
    struct berth_mel *mel = NULL;
    struct berth_err err = {0};
    float *samples = berth_alloc(count * sizeof(float));
    float *window = berth_alloc((size_t)bins * BERTH_MEL_WINDOW * sizeof(float));
    struct berth_speech_audio audio = {.samples = samples, .count = count};
    size_t frames = berth_mel_content(count) + 1;
    float *golden = read_golden(bins, frames);
    float peak = BERTH_MEL_SILENCE;
    float worst = 0;
    assert_int_equal(berth_mel_create(bins, &mel, &err), BERTH_OK);
    chirp(samples, count);
    for (size_t first = 0; first < frames; first += 7) {
        size_t slice = frames - first < 7 ? frames - first : 7;
        float loudest = berth_mel_log(mel, &audio, first, slice, NULL);
        peak = loudest > peak ? loudest : peak;
    }
    assert_true(berth_mel_log(mel, &audio, 0, frames, window) == peak);
    unsigned char *moved = berth_alloc(count * sizeof(float) + 1); /* at an odd address */
    assert_non_null(moved);
    memcpy(moved + 1, samples, count * sizeof(float));
    audio.samples = moved + 1;
    assert_true(berth_mel_log(mel, &audio, 0, frames, window) == peak);
    berth_free(moved);
    berth_mel_scale(mel, window, frames, peak);
    for (size_t f = 0; f < frames; f++) {
        for (size_t b = 0; b < bins; b++) {
            float difference = fabsf(window[b * BERTH_MEL_WINDOW + f] - golden[f * bins + b]);
            worst = difference > worst ? difference : worst;
        }
    }
    print_message("%u bins, %zu frames: largest difference %.2g\n", bins, frames, (double)worst);
    assert_true(worst <= TOLERANCE);
    for (size_t b = 0; b < bins; b++) { /* behind the audio: 0 */
        assert_true(window[b * BERTH_MEL_WINDOW + frames] == 0);
        assert_true(window[b * BERTH_MEL_WINDOW + BERTH_MEL_WINDOW - 1] == 0);
    }
    berth_free(golden);
    berth_free(window);
    berth_free(samples);
    berth_mel_destroy(mel);
}

static void test_golden_80(void **state)
{
    compare(80, 16123);
}

static void test_golden_128(void **state)
{
    compare(128, 8000);
}

/* A window in the middle is the same as that part of all. */
static void test_windows(void **state)
{
    struct berth_mel *mel = NULL;
    struct berth_err err = {0};
    size_t count = 16000;
    float *samples = berth_alloc(count * sizeof(float));
    float *all = berth_alloc(80 * BERTH_MEL_WINDOW * sizeof(float));
    float *part = berth_alloc(80 * BERTH_MEL_WINDOW * sizeof(float));
    struct berth_speech_audio audio = {.samples = samples, .count = count};
    chirp(samples, count);
    assert_int_equal(berth_mel_create(80, &mel, &err), BERTH_OK);
    (void)berth_mel_log(mel, &audio, 0, 100, all);
    (void)berth_mel_log(mel, &audio, 37, 40, part);
    for (size_t b = 0; b < 80; b++) {
        assert_memory_equal(all + b * BERTH_MEL_WINDOW + 37, part + b * BERTH_MEL_WINDOW,
                            40 * sizeof(float));
    }
    berth_free(part);
    berth_free(all);
    berth_free(samples);
    berth_mel_destroy(mel);
}

/* What is no number, or no sound, counts as silence. */
static void test_rubbish(void **state)
{
    struct berth_mel *mel = NULL;
    struct berth_err err = {0};
    float samples[800] = {0};
    struct berth_speech_audio audio = {.samples = samples, .count = 800};
    samples[3] = NAN;
    samples[200] = INFINITY;
    samples[400] = -INFINITY;
    samples[500] = 1e30F;
    assert_int_equal(berth_mel_create(80, &mel, &err), BERTH_OK);
    assert_true(berth_mel_log(mel, &audio, 0, 6, NULL) == BERTH_MEL_SILENCE);
    samples[500] = 0.5F;
    float peak = berth_mel_log(mel, &audio, 0, 6, NULL);
    assert_true(peak > BERTH_MEL_SILENCE && peak < 10);
    berth_mel_destroy(mel);
}

static void test_sizes(void **state)
{
    static const struct {
        size_t samples, content;
    } cases[] = {{0, 0}, {1, 0}, {159, 0}, {160, 1}, {319, 1}, {320, 2}, {800, 5}, {480000, 3000}};
    struct berth_mel *mel = NULL;
    struct berth_err err = {0};
    static float samples[1600];
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        assert_int_equal(berth_mel_content(cases[i].samples), cases[i].content);
    }
    assert_int_equal(berth_mel_create(0, &mel, &err), BERTH_UNSUPPORTED);
    assert_int_equal(berth_mel_create(BERTH_MEL_BINS_MAX + 1, &mel, &err), BERTH_UNSUPPORTED);
    assert_int_equal(berth_mel_create(BERTH_MEL_BINS_MAX, &mel, &err), BERTH_OK);
    berth_mel_destroy(mel);
    assert_int_equal(berth_mel_create(1, &mel, &err), BERTH_OK);
    for (size_t count = 0; count < 500; count++) { /* all the ways to mirror a short file */
        struct berth_speech_audio audio = {.samples = samples, .count = count};
        (void)berth_mel_log(mel, &audio, 0, berth_mel_content(count) + 1, NULL);
    }
    berth_mel_destroy(mel);
    berth_mel_destroy(NULL);
}

static void test_no_memory(void **state)
{
    uint64_t before = berth_mem_bytes_live();
    for (uint64_t nth = 1; nth < 20; nth++) {
        struct berth_mel *mel = NULL;
        struct berth_err err = {0};
        berth_mem_fail_at(nth, false);
        enum berth_code code = berth_mel_create(80, &mel, &err);
        berth_mem_fail_at(0, false);
        assert_true(code == BERTH_OK || code == BERTH_UNAVAILABLE);
        berth_mel_destroy(mel);
        assert_int_equal(berth_mem_bytes_live(), before);
        if (code == BERTH_OK) {
            return;
        }
    }
    fail_msg("it never had enough memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_80), cmocka_unit_test(test_golden_128),
        cmocka_unit_test(test_windows),   cmocka_unit_test(test_rubbish),
        cmocka_unit_test(test_sizes),     cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
