/* Long recordings: the twelve golden ones, again and again. With silence between them every one is
 * heard to the word as alone, whatever the length; and memory does not grow. Closer together nano
 * hears otherwise (so does the reference: it was trained on single sentences), so there only the
 * number of words and the times are held to. Minutes always (fewer under ThreadSanitizer);
 * an hour with BERTH_SOAK=1. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "parakeet_golden.h"
#include "sanitizer.h"
#include "speech_rig.h"

#define TAIL_SAMPLES 3840
#define RATE 16000
#define WORDS_MAX 16384

static const struct berth_engine_ops *const ops = &berth_engine_parakeet;

struct recording {
    float *samples;
    size_t count;
    struct berth_buf want; /* the words of its clips, heard alone */
    size_t clips;
};

static struct answer alone[GOLDEN_COUNT];
static float *clips[GOLDEN_COUNT];
static size_t clip_samples[GOLDEN_COUNT];

static bool soak(void)
{
    const char *text = getenv("BERTH_SOAK");
    return text != NULL && text[0] != '\0' && strcmp(text, "0") != 0;
}

/* Clips in turn, each with what is left of `period` seconds behind it, or a fifth of a second where
 * period is 0; all with noise of that level. */
static struct recording make_recording(double seconds, double period, double noise)
{
    struct recording made = {.clips = 0};
    size_t capacity = (size_t)(seconds * RATE);
    uint32_t random = 1;
    made.samples = berth_alloc(capacity * sizeof(float));
    assert_non_null(made.samples);
    for (;;) {
        size_t clip = made.clips % GOLDEN_COUNT;
        size_t length = period > 0 ? (size_t)(period * RATE) : clip_samples[clip] + RATE / 5;
        assert_true(length > clip_samples[clip]);
        if (made.count + length > capacity) {
            break;
        }
        memcpy(made.samples + made.count, clips[clip], clip_samples[clip] * sizeof(float));
        made.count += length;
        berth_buf_printf(&made.want, " %s", berth_buf_text(&alone[clip].text));
        made.clips++;
    }
    for (size_t i = 0; i < made.count && noise > 0; i++) {
        random = random * 1664525U + 1013904223U;
        made.samples[i] += (float)(noise * ((double)(random >> 8) / 8388608 - 1));
    }
    return made;
}

static size_t split(const char *text, const char **starts, size_t *lengths)
{
    size_t count = 0;
    for (const char *at = text + strspn(text, " "); *at != '\0'; at += strspn(at, " ")) {
        assert_true(count < WORDS_MAX);
        starts[count] = at;
        lengths[count] = strcspn(at, " ");
        at += lengths[count++];
    }
    return count;
}

/* How many words have to be left out, put in or changed; rows of an edit distance. */
static size_t errors(const char *want, const char *heard, size_t *wanted, size_t *heard_count)
{
    static size_t row[WORDS_MAX + 1];
    static const char *starts[2][WORDS_MAX];
    static size_t lengths[2][WORDS_MAX];
    *wanted = split(want, starts[0], lengths[0]);
    *heard_count = split(heard, starts[1], lengths[1]);
    for (size_t j = 0; j <= *heard_count; j++) {
        row[j] = j;
    }
    for (size_t i = 0; i < *wanted; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 1; j <= *heard_count; j++) {
            bool same = lengths[1][j - 1] == lengths[0][i] &&
                        memcmp(starts[1][j - 1], starts[0][i], lengths[0][i]) == 0;
            size_t cost = diagonal + (same ? 0 : 1);
            cost = row[j] + 1 < cost ? row[j] + 1 : cost;
            cost = row[j - 1] + 1 < cost ? row[j - 1] + 1 : cost;
            diagonal = row[j];
            row[j] = cost;
        }
    }
    return row[*heard_count];
}

static void check_times(const struct answer *answer)
{
    double before = 0;
    for (size_t i = 0; i < answer->segment_count; i++) {
        assert_true(answer->times[i][0] >= before - 1e-9);
        assert_true(answer->times[i][1] - answer->times[i][0] <= 30.0 + 1e-9);
        before = answer->times[i][1];
    }
    before = 0;
    for (size_t i = 0; i < answer->word_count; i++) {
        assert_true(answer->word_times[i][0] >= before - 1e-9);
        before = answer->word_times[i][1];
    }
    assert_true(before <= answer->seconds);
}

/* Hears it with windows of that length. Returns the share of words that differ. */
static double hear(const char *what, const struct recording *recording, const char *window_seconds)
{
    static struct job job;
    struct rig rig;
    struct berth_key_value parameter = {.key = "window_seconds", .value = window_seconds};
    struct berth_err err = {.code = BERTH_OK};
    size_t wanted = 0;
    size_t heard = 0;
    if (rig_open(&rig, ops, golden_model(), &parameter, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    memset(&job, 0, sizeof(job));
    job.samples = recording->samples;
    job.count = recording->count;
    job_add(&job, (struct berth_param){"word_timestamps", BERTH_PARAM_BOOL, {.boolean = true}});
    jobs_run(&rig, &job, 1);
    assert_int_equal(job.answer.code, BERTH_OK);
    assert_string_equal(berth_buf_text(&job.answer.deltas), berth_buf_text(&job.answer.text));
    check_times(&job.answer);
    size_t wrong = errors(berth_buf_text(&recording->want), berth_buf_text(&job.answer.text),
                          &wanted, &heard);
    print_message("%s, %.0f s in windows of %s s: %zu words of %zu clips, %zu heard, %zu differ; "
                  "%.1f MB held\n",
                  what, (double)recording->count / RATE, window_seconds, wanted, recording->clips,
                  heard, wrong, (double)ops->model_bytes(rig.model) / 1e6);
    if (soak()) {
        printf("figure: parakeet, %.0f s of speech, %s, windows of %s s; words that differ, "
               "of %zu: %zu\n",
               (double)recording->count / RATE, what, window_seconds, wanted, wrong);
    }
    assert_true(heard + wanted / 20 >= wanted && heard <= wanted + wanted / 20);
    assert_true(ops->model_bytes(rig.model) < 200U << 20);
    answer_drop(&job.answer);
    rig_close(&rig);
    return (double)wrong / (double)wanted;
}

static void drop_recording(struct recording *recording)
{
    berth_free(recording->samples);
    berth_buf_finish(&recording->want);
}

/* A window each: not a word is lost, doubled or changed. */
static void test_silences(void **state)
{
    struct recording recording = make_recording(soak() ? 3600 : (TEST_TSAN ? 60 : 240), 10, 0);
    assert_true(hear("silence between", &recording, "12") == 0);
    drop_recording(&recording);
}

/* Windows hold several, or parts; cut at short pauses, and where noise leaves none, overlapping. */
static void test_close(void **state)
{
    struct recording recording = make_recording(soak() ? 3600 : 120, 0, 0);
    assert_true(hear("close together", &recording, "8") < 0.4);
    assert_true(hear("cut in the middle of sentences", &recording, "4") < 0.5);
    drop_recording(&recording);
    recording = make_recording(soak() ? 3600 : 120, 0, 0.03);
    assert_true(hear("noise", &recording, "8") < 0.7);
    drop_recording(&recording);
}

/* What a window has of a clip with silence around it: at the start it goes in whole frames, of what
 * is behind it 240 ms stay. Takes samples. */
static float *as_a_window(float *samples, size_t *count)
{
    size_t first = 0;
    while (*count > 0 && fabsf(samples[*count - 1]) < 1e-4F) {
        (*count)--;
    }
    while (first < *count && fabsf(samples[first]) < 1e-4F) {
        first++;
    }
    first -= first % 1280;
    *count -= first;
    float *padded = berth_alloc((*count + TAIL_SAMPLES) * sizeof(*padded)); /* zeroed */
    assert_non_null(padded);
    memcpy(padded, samples + first, *count * sizeof(*padded));
    *count += TAIL_SAMPLES;
    berth_free(samples);
    return padded;
}

static int set_up(void **state)
{
    struct rig rig;
    struct berth_err err = {.code = BERTH_OK};
    if (rig_open(&rig, ops, golden_model(), NULL, &err) != BERTH_OK) {
        return -1;
    }
    for (int i = 0; i < GOLDEN_COUNT; i++) {
        static struct job job;
        clips[i] = golden_pcm(i, &clip_samples[i]);
        clips[i] = as_a_window(clips[i], &clip_samples[i]);
        memset(&job, 0, sizeof(job));
        job.samples = clips[i];
        job.count = clip_samples[i];
        jobs_run(&rig, &job, 1);
        alone[i] = job.answer;
    }
    rig_close(&rig);
    return 0;
}

static int tear_down(void **state)
{
    for (int i = 0; i < GOLDEN_COUNT; i++) {
        answer_drop(&alone[i]);
        berth_free(clips[i]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_silences),
                                       cmocka_unit_test(test_close)};
    struct berth_err err = {.code = BERTH_OK};
    struct berth_slabs_options options = {.bytes_budget = 1U << 30};
    if (berth_slabs_create(&options, &rig_slabs, &err) != BERTH_OK) {
        return 1;
    }
    struct berth_engine_env env = {.slabs = rig_slabs, .threads = 2, .device = "cpu:0"};
    if (ops->start(&env, &err) != BERTH_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    ops->finish();
    berth_slabs_destroy(rig_slabs);
    return failed;
}
