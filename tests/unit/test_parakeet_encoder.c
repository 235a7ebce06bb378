/* The encoder on the CPU: the reference's figures on four recordings, its tokens on twelve, a row
 * alone and among others bit for bit the same, and every length, sound and stop there is. */
#include "engine/parakeet/encoder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>

#include "parakeet_golden.h"

#define ROWS_MAX 8
#define SECONDS_MAX 20
#define TOLERANCE 2e-3

static const struct berth_parakeet_ops *const ops = &berth_parakeet_cpu;
static struct berth_parakeet_config config;
static struct berth_parakeet_weights weights;
static struct berth_parakeet_device *device;
static struct berth_parakeet_net *net;
static void *span;
static uint64_t span_bytes;

/* A row's sound, and what came of it. */
struct row {
    const float *pcm;
    uint32_t samples;
    float *features; /* of its own frames alone */
    float *encoded;
    float *projected;
    int32_t count;
    int32_t token[512], frame[512], duration[512];
    float probability[512];
};

static int open_model(void **state)
{
    struct berth_err err = {0};
    uint32_t frames = berth_parakeet_lengths_of(SECONDS_MAX * 16000).frames;
    assert_int_equal(berth_parakeet_config_read(golden_model(), &config, &err), BERTH_OK);
    assert_int_equal(ops->open("cpu:0", 2, &device, &err), BERTH_OK);
    span_bytes = berth_parakeet_weights_bytes(&config, ops->element);
    span = ops->alloc(device, span_bytes);
    assert_non_null(span);
    assert_int_equal(ops->weights_load("cpu:0", &config, golden_model(), span, &err), BERTH_OK);
    berth_parakeet_weights_place(&config, ops->element, span, &weights);
    assert_int_equal(berth_parakeet_net_create(ops, device, &config, &weights, frames, &net, &err),
                     BERTH_OK);
    return 0;
}

static int close_model(void **state)
{
    berth_parakeet_net_destroy(net);
    ops->free(device, span, span_bytes);
    ops->close(device);
    return 0;
}

static void drop_rows(struct row *rows, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        berth_free(rows[r].features);
        berth_free(rows[r].encoded);
        berth_free(rows[r].projected);
    }
}

static struct berth_parakeet_run *make_run(uint32_t rows, uint32_t samples_max)
{
    struct berth_err err = {0};
    struct berth_parakeet_run *run = NULL;
    const struct berth_parakeet_shape shape = {rows, berth_parakeet_lengths_of(samples_max)};
    assert_int_equal(berth_parakeet_run_create(net, &shape, &run, &err), BERTH_OK);
    return run;
}

static void begin(struct berth_parakeet_run *run, const struct row *rows, uint32_t count)
{
    uint32_t samples[ROWS_MAX];
    for (uint32_t r = 0; r < count; r++) {
        samples[r] = rows[r].samples;
        if (rows[r].samples > 0) {
            memcpy(berth_parakeet_run_pcm(run, r), rows[r].pcm, rows[r].samples * sizeof(float));
        }
    }
    berth_parakeet_run_begin(run, samples);
}

static float *keep_probe(struct berth_parakeet_run *run, enum berth_parakeet_probe what,
                         size_t values)
{
    struct berth_err err = {0};
    float *out = berth_alloc(values * sizeof(float) + 1);
    assert_non_null(out);
    assert_int_equal(berth_parakeet_run_probe(run, what, out, &err), BERTH_OK);
    return out;
}

static float *own_part(const float *all, uint32_t row, size_t padded, size_t own)
{
    float *out = berth_alloc(own * sizeof(float) + 1);
    assert_non_null(out);
    memcpy(out, all + row * padded, own * sizeof(float));
    return out;
}

static void keep_rows(struct berth_parakeet_run *run, struct row *rows, uint32_t count,
                      uint32_t samples_max)
{
    struct berth_err err = {0};
    struct berth_parakeet_tokens tokens;
    const struct berth_parakeet_lengths padded = berth_parakeet_lengths_of(samples_max);
    assert_int_equal(berth_parakeet_run_finish(run, &tokens, &err), BERTH_OK);
    size_t sizes[3] = {(size_t)padded.features * config.mels, (size_t)padded.frames * config.hidden,
                       (size_t)padded.frames * config.prediction};
    float *all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = keep_probe(run, (enum berth_parakeet_probe)i, count * sizes[i]);
    }
    for (uint32_t r = 0; r < count; r++) {
        struct row *row = &rows[r];
        const struct berth_parakeet_lengths own = berth_parakeet_lengths_of(row->samples);
        row->features = own_part(all[0], r, sizes[0], (size_t)own.features * config.mels);
        row->encoded = own_part(all[1], r, sizes[1], (size_t)own.frames * config.hidden);
        row->projected = own_part(all[2], r, sizes[2], (size_t)own.frames * config.prediction);
        row->count = tokens.count[r];
        assert_in_range(row->count, 0, 512);
        size_t at = (size_t)r * tokens.capacity;
        size_t bytes = (size_t)row->count * sizeof(int32_t);
        memcpy(row->token, tokens.token + at, bytes);
        memcpy(row->frame, tokens.frame + at, bytes);
        memcpy(row->duration, tokens.duration + at, bytes);
        memcpy(row->probability, tokens.probability + at, bytes);
    }
    for (int i = 0; i < 3; i++) {
        berth_free(all[i]);
    }
}

/* One bucket from PCM to tokens; drop_rows afterwards. */
static void run_rows(struct row *rows, uint32_t count, uint32_t samples_max)
{
    struct berth_parakeet_run *run = make_run(count, samples_max);
    begin(run, rows, count);
    while (berth_parakeet_run_advance(run)) {
    }
    keep_rows(run, rows, count, samples_max);
    berth_parakeet_run_destroy(run);
}

static double difference(const float *ours, const char *what, int index, size_t expected)
{
    size_t count = 0;
    float *golden = golden_floats(what, index, &count);
    assert_true(count >= expected); /* the reference has one more, empty line of features */
    double largest = 0;
    for (size_t i = 0; i < expected; i++) {
        double off = fabs((double)ours[i] - golden[i]);
        largest = off > largest || isnan(off) ? off : largest;
    }
    berth_free(golden);
    return largest;
}

static void figures_are_the_references(void **state)
{
    for (int i = 0; i < GOLDEN_ARRAYS_COUNT; i++) {
        size_t samples = 0;
        float *pcm = golden_pcm(i, &samples);
        struct row row = {.pcm = pcm, .samples = (uint32_t)samples};
        const struct berth_parakeet_lengths own = berth_parakeet_lengths_of(row.samples);
        run_rows(&row, 1, row.samples);
        double features = difference(row.features, "features", i,
                                     (size_t)own.features * config.mels);
        double encoded = difference(row.encoded, "encoder", i, (size_t)own.frames * config.hidden);
        double projected = difference(row.projected, "projected", i,
                                      (size_t)own.frames * config.prediction);
        print_message("recording %d: off by up to %.1e in features, %.1e encoded, %.1e projected\n",
                      i, features, encoded, projected);
        assert_true(features < TOLERANCE);
        assert_true(encoded < TOLERANCE);
        assert_true(projected < TOLERANCE);
        drop_rows(&row, 1);
        berth_free(pcm);
    }
}

static void tokens_are_the_references(void **state)
{
    static struct golden golden;
    for (int i = 0; i < GOLDEN_COUNT; i++) {
        size_t samples = 0;
        float *pcm = golden_pcm(i, &samples);
        static struct row row;
        row = (struct row){.pcm = pcm, .samples = (uint32_t)samples};
        run_rows(&row, 1, row.samples);
        golden_read(i, &golden);
        assert_int_equal(row.count, golden.token_count);
        for (size_t k = 0; k < golden.token_count; k++) {
            assert_int_equal(row.token[k], golden.tokens[k]);
            assert_int_equal(row.frame[k], golden.frames[k]);
            assert_int_equal(row.duration[k], golden.durations[k]);
        }
        drop_rows(&row, 1);
        berth_free(pcm);
    }
}

static void assert_same(const struct row *a, const struct row *b)
{
    const struct berth_parakeet_lengths own = berth_parakeet_lengths_of(a->samples);
    size_t frames = own.frames * sizeof(float);
    assert_memory_equal(a->features, b->features,
                        (size_t)own.features * config.mels * sizeof(float));
    assert_memory_equal(a->encoded, b->encoded, frames * config.hidden);
    assert_memory_equal(a->projected, b->projected, frames * config.prediction);
    assert_int_equal(a->count, b->count);
    size_t tokens = (size_t)a->count * sizeof(int32_t);
    assert_memory_equal(a->token, b->token, tokens);
    assert_memory_equal(a->frame, b->frame, tokens);
    assert_memory_equal(a->duration, b->duration, tokens);
    assert_memory_equal(a->probability, b->probability, tokens);
}

static float *make_noise(uint32_t samples, float loudness)
{
    float *pcm = berth_alloc(samples * sizeof(float) + 1);
    assert_non_null(pcm);
    uint32_t seed = 1;
    for (uint32_t i = 0; i < samples; i++) {
        seed = seed * 1664525U + 1013904223U;
        pcm[i] = ((float)(seed >> 8) / 8388608.0F - 1.0F) * loudness;
    }
    return pcm;
}

/* Law 7: neighbours that are loud, silent, longer, empty or hardly there change no bit, nor does a
 * wider bucket. */
static void batched_equals_solo(void **state)
{
    size_t lengths[3];
    float *speech[3];
    for (int i = 0; i < 3; i++) {
        speech[i] = golden_pcm(i, &lengths[i]);
    }
    const uint32_t longest = 12 * 16000 + 77;
    float *loud = make_noise(longest, 1e5F);
    float *silent = make_noise(longest, 0);
    static struct row rows[ROWS_MAX];
    static struct row alone;
    const struct row wanted[ROWS_MAX] = {
        {.pcm = speech[0], .samples = (uint32_t)lengths[0]},
        {.pcm = loud, .samples = longest},
        {.pcm = silent, .samples = 30011},
        {.pcm = NULL, .samples = 0},
        {.pcm = speech[1], .samples = (uint32_t)lengths[1]},
        {.pcm = speech[2], .samples = 20000},
        {.pcm = loud, .samples = 161},
        {.pcm = speech[2], .samples = 100},
    };
    memcpy(rows, wanted, sizeof(rows));
    run_rows(rows, ROWS_MAX, longest + 5000);
    for (uint32_t r = 0; r < ROWS_MAX; r++) {
        alone = wanted[r];
        run_rows(&alone, 1, alone.samples);
        assert_same(&rows[r], &alone);
        drop_rows(&alone, 1);
    }
    drop_rows(rows, ROWS_MAX);
    for (int i = 0; i < 3; i++) {
        berth_free(speech[i]);
    }
    berth_free(loud);
    berth_free(silent);
}

static void every_length_works(void **state)
{
    static const struct {
        uint32_t samples, frames;
    } cases[] = {{0, 0},    {1, 0},    {159, 0},  {160, 1},  {161, 1},  {319, 1}, {320, 1},
                 {1279, 1}, {1280, 1}, {1439, 1}, {1440, 2}, {2560, 2}, {2720, 3}};
    float *pcm = make_noise(4000, 0.1F);
    static struct row row;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        row = (struct row){.pcm = pcm, .samples = cases[i].samples};
        assert_int_equal(berth_parakeet_lengths_of(row.samples).frames, cases[i].frames);
        run_rows(&row, 1, 4000);
        for (size_t k = 0; k < (size_t)cases[i].frames * config.hidden; k++) {
            assert_true(isfinite(row.encoded[k]));
        }
        assert_true(cases[i].frames > 0 || row.count == 0);
        drop_rows(&row, 1);
    }
    berth_free(pcm);
}

static void silence_is_no_error(void **state)
{
    float *pcm = make_noise(32000, 0);
    struct row row = {.pcm = pcm, .samples = 32000};
    run_rows(&row, 1, row.samples);
    for (size_t i = 0; i < (size_t)200 * config.mels; i++) {
        assert_true(row.features[i] == 0.0F);
    }
    for (size_t i = 0; i < (size_t)25 * config.hidden; i++) {
        assert_true(isfinite(row.encoded[i]));
    }
    drop_rows(&row, 1);
    berth_free(pcm);
}

static void rubbish_counts_as_zero(void **state)
{
    static const float rubbish[] = {NAN, INFINITY, -INFINITY, 1.0001e6F, -3e38F};
    const uint32_t samples = 24000;
    float *with = make_noise(samples, 0.3F);
    float *without = make_noise(samples, 0.3F);
    for (uint32_t i = 0; i < samples; i += 371) {
        with[i] = rubbish[i % BERTH_COUNT_OF(rubbish)];
        without[i] = 0;
    }
    static struct row a, b;
    a = (struct row){.pcm = with, .samples = samples};
    b = (struct row){.pcm = without, .samples = samples};
    run_rows(&a, 1, samples);
    run_rows(&b, 1, samples);
    assert_same(&a, &b);
    drop_rows(&a, 1);
    drop_rows(&b, 1);
    berth_free(with);
    berth_free(without);
}

/* Stopped before a stage: the rest is left out. One of two: the other never knows. */
static void stopped_rows_end(void **state)
{
    size_t samples = 0;
    float *pcm = golden_pcm(0, &samples);
    static struct row rows[2], alone, stopped[2];
    rows[0] = (struct row){.pcm = pcm, .samples = (uint32_t)samples};
    rows[1] = rows[0];
    alone = rows[0];
    run_rows(&alone, 1, alone.samples);
    for (uint32_t stage = 0; stage < config.layers + 4; stage++) {
        struct berth_parakeet_run *run = make_run(2, alone.samples);
        memcpy(stopped, rows, sizeof(stopped));
        begin(run, stopped, 2);
        uint32_t calls = 0;
        do {
            if (calls == stage) {
                berth_parakeet_run_stop(run, 1);
            }
            calls++;
        } while (berth_parakeet_run_advance(run));
        keep_rows(run, stopped, 2, alone.samples);
        assert_same(&stopped[0], &alone);
        drop_rows(stopped, 2);
        begin(run, rows, 2);
        calls = 0;
        do {
            if (calls == stage) {
                berth_parakeet_run_stop(run, 0);
                berth_parakeet_run_stop(run, 1);
            }
            calls++;
        } while (berth_parakeet_run_advance(run));
        assert_true(calls <= stage + 2);
        berth_parakeet_run_destroy(run);
    }
    drop_rows(&alone, 1);
    berth_free(pcm);
}

/* A bucket is used again and again. */
static void a_run_forgets(void **state)
{
    size_t lengths[2];
    float *pcm[2];
    static struct row rows[2], again;
    struct berth_parakeet_run *run = make_run(1, 16000 * 10);
    for (int i = 0; i < 2; i++) {
        pcm[i] = golden_pcm(i, &lengths[i]);
        rows[i] = (struct row){.pcm = pcm[i], .samples = (uint32_t)lengths[i]};
        run_rows(&rows[i], 1, rows[i].samples);
    }
    for (int i = 0; i < 4; i++) {
        again = (struct row){.pcm = pcm[i % 2], .samples = (uint32_t)lengths[i % 2]};
        begin(run, &again, 1);
        while (berth_parakeet_run_advance(run)) {
        }
        keep_rows(run, &again, 1, 16000 * 10);
        assert_same(&again, &rows[i % 2]);
        drop_rows(&again, 1);
    }
    berth_parakeet_run_destroy(run);
    drop_rows(rows, 2);
    berth_free(pcm[0]);
    berth_free(pcm[1]);
}

static void extents_share_their_figures(void **state)
{
    struct berth_err err = {0};
    size_t samples = 0;
    float *pcm = golden_pcm(3, &samples);
    static struct row row;
    struct berth_parakeet_tokens tokens;
    row = (struct row){.pcm = pcm, .samples = (uint32_t)samples};
    run_rows(&row, 1, row.samples);
    struct berth_parakeet_run *run = make_run(1, row.samples);
    size_t values = (size_t)berth_parakeet_lengths_of(row.samples).frames * config.prediction;
    static const enum berth_parakeet_extent extents[] = {BERTH_PARAKEET_TO_ENCODED,
                                                         BERTH_PARAKEET_ENCODER_ALONE};
    for (int i = 0; i < 2; i++) {
        berth_parakeet_run_set_extent(run, extents[i]);
        begin(run, &row, 1);
        if (i == 1) {
            memset(berth_parakeet_run_pcm(run, 0), 0, samples * sizeof(float));
        }
        while (berth_parakeet_run_advance(run)) {
        }
        assert_int_equal(berth_parakeet_run_finish(run, &tokens, &err), BERTH_OK);
        assert_null(tokens.count);
        float *projected = keep_probe(run, BERTH_PARAKEET_PROBE_PROJECTED, values);
        assert_memory_equal(projected, row.projected, values * sizeof(float));
        berth_free(projected);
    }
    berth_parakeet_run_destroy(run);
    drop_rows(&row, 1);
    berth_free(pcm);
}

/* Every allocation fails once: an error, and nothing is lost. */
static void memory_runs_out(void **state)
{
    struct berth_err err = {0};
    const struct berth_parakeet_shape shape = {2, berth_parakeet_lengths_of(16000)};
    uint64_t before = berth_mem_bytes_live();
    for (uint64_t at = 1;; at++) {
        struct berth_parakeet_device *own = NULL;
        struct berth_parakeet_net *own_net = NULL;
        struct berth_parakeet_run *run = NULL;
        berth_mem_fail_at(at, false);
        enum berth_code code = ops->open("cpu:0", 3, &own, &err);
        if (code == BERTH_OK) {
            code = berth_parakeet_net_create(ops, own, &config, &weights, 13, &own_net, &err);
        }
        if (code == BERTH_OK) {
            code = berth_parakeet_run_create(own_net, &shape, &run, &err);
        }
        berth_mem_fail_at(0, false);
        bool whole = code == BERTH_OK;
        assert_true(whole || code == BERTH_UNAVAILABLE);
        berth_parakeet_run_destroy(run);
        berth_parakeet_net_destroy(own_net);
        if (own != NULL) {
            ops->close(own);
        }
        assert_int_equal(berth_mem_bytes_live(), before);
        if (whole) {
            assert_true(at > 8);
            return;
        }
    }
}

static void too_long_a_bucket_is_refused(void **state)
{
    struct berth_err err = {0};
    struct berth_parakeet_run *run = NULL;
    struct berth_parakeet_shape shape = {1, berth_parakeet_lengths_of((SECONDS_MAX + 1) * 16000)};
    assert_int_equal(berth_parakeet_run_create(net, &shape, &run, &err), BERTH_INVALID);
    shape = (struct berth_parakeet_shape){0, berth_parakeet_lengths_of(16000)};
    assert_int_equal(berth_parakeet_run_create(net, &shape, &run, &err), BERTH_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_the_references),
        cmocka_unit_test(tokens_are_the_references),
        cmocka_unit_test(batched_equals_solo),
        cmocka_unit_test(every_length_works),
        cmocka_unit_test(silence_is_no_error),
        cmocka_unit_test(rubbish_counts_as_zero),
        cmocka_unit_test(stopped_rows_end),
        cmocka_unit_test(a_run_forgets),
        cmocka_unit_test(extents_share_their_figures),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(too_long_a_bucket_is_refused),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
