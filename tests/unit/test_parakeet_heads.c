/* The engine as a whole with the heads that nano has not: CTC and RNN-T, on the two models that
 * tests/models/parakeet-nano-heads puts together (BERTH_HEADS names their folder). Tokens, frames
 * and durations are transformers'; alone, together and in any order it is the same to the bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/parakeet/parakeet_config.h"
#include "engine/parakeet/text.h"
#include "parakeet_golden.h"
#include "sanitizer.h"
#include "speech_rig.h"

#define RATE 16000
#define CLIPS (TEST_TSAN ? 3 : GOLDEN_COUNT) /* the first recordings, where each is heard alone */

static const struct berth_engine_ops *const ops = &berth_engine_parakeet;
static const struct berth_param with_words = {"word_timestamps", BERTH_PARAM_BOOL,
                                              {.boolean = true}};

static const struct head {
    const char *folder;
    enum berth_parakeet_head kind;
} heads[] = {{"parakeet-nano-ctc", BERTH_PARAKEET_CTC},
             {"parakeet-nano-rnnt", BERTH_PARAKEET_RNNT}};

static const char *folder_of(const struct head *head)
{
    static char path[4096];
    const char *folder = getenv("BERTH_HEADS");
    if (folder == NULL) {
        fail_msg("BERTH_HEADS names no folder: run this by meson test, or make the folders by "
                 "tests/models/parakeet-nano-heads/make_folders.py");
        return NULL;
    }
    snprintf(path, sizeof(path), "%s/%s", folder, head->folder);
    return path;
}

static void open_with(struct rig *rig, const struct head *head,
                      struct berth_key_value parameter)
{
    struct berth_err err = {.code = BERTH_OK};
    if (rig_open(rig, ops, folder_of(head), &parameter, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
}

static void open_head(struct rig *rig, const struct head *head, const char *slots)
{
    open_with(rig, head, (struct berth_key_value){.key = "slots", .value = slots});
}

static void golden_jobs(struct job *jobs)
{
    memset(jobs, 0, CLIPS * sizeof(*jobs));
    for (int i = 0; i < CLIPS; i++) {
        jobs[i].samples = golden_pcm(i, &jobs[i].count);
        job_add(&jobs[i], with_words);
    }
}

/* What text.c makes of the reference's tokens, frames and durations. */
static struct berth_parakeet_transcript transcript_of(const struct head *head,
                                                      const struct golden *golden)
{
    static struct berth_parakeet_token tokens[GOLDEN_TOKENS_MAX];
    struct berth_parakeet_config config;
    struct berth_parakeet_pieces *pieces = NULL;
    struct berth_parakeet_transcript transcript;
    struct berth_err err = {.code = BERTH_OK};
    const char *folder = folder_of(head);
    assert_int_equal(berth_parakeet_config_read(folder, &config, &err), BERTH_OK);
    assert_int_equal(config.head, head->kind);
    assert_int_equal(
        berth_parakeet_pieces_read(folder, config.vocabulary, config.blank, &pieces, &err),
        BERTH_OK);
    for (size_t i = 0; i < golden->token_count; i++) {
        tokens[i] = (struct berth_parakeet_token){.id = golden->tokens[i],
                                                  .frame = golden->frames[i],
                                                  .duration = golden->durations[i],
                                                  .probability = 1};
    }
    struct berth_parakeet_heard heard = {.tokens = tokens,
                                         .count = golden->token_count,
                                         .seconds = (double)golden->samples / RATE};
    assert_int_equal(berth_parakeet_transcribe(pieces, &heard, &transcript, &err), BERTH_OK);
    berth_parakeet_pieces_destroy(pieces);
    return transcript;
}

/* Each word where the reference's frames and durations put it; in order, none in the next one. */
static void check_words(const struct answer *answer, const struct head *head,
                        const struct golden *golden)
{
    struct berth_parakeet_transcript want = transcript_of(head, golden);
    assert_int_equal(answer->word_count, want.word_count);
    assert_true(want.word_count > 3);
    for (size_t i = 0; i < want.word_count; i++) {
        const double *times = answer->word_times[i];
        assert_true(fabs(times[0] - want.words[i].start) < 1e-9);
        assert_true(fabs(times[1] - want.words[i].end) < 1e-9);
        assert_true(times[0] <= times[1] && times[1] <= answer->seconds);
        assert_true(i == 0 || answer->word_times[i - 1][1] <= times[0]);
        assert_true(times[2] > 0 && times[2] <= 1);
    }
    berth_parakeet_transcript_drop(&want);
}

static void check_golden(const struct job *job, const struct head *head,
                         const struct golden *golden)
{
    const struct answer *answer = &job->answer;
    assert_int_equal(answer->code, BERTH_OK);
    assert_string_equal(berth_buf_text(&answer->text), golden->text);
    assert_string_equal(berth_buf_text(&answer->deltas), golden->text);
    assert_int_equal(answer->token_count, golden->token_count);
    assert_memory_equal(answer->tokens, golden->tokens, golden->token_count * sizeof(int32_t));
    assert_true(answer->segment_count > 0);
    check_words(answer, head, golden);
}

static void test_golden(void **state)
{
    static struct job alone[GOLDEN_COUNT];
    static struct golden golden;
    for (size_t h = 0; h < BERTH_COUNT_OF(heads); h++) {
        struct rig rig;
        size_t tokens = 0;
        open_head(&rig, &heads[h], "8");
        golden_jobs(alone);
        for (int i = 0; i < CLIPS; i++) {
            golden_read_of(folder_of(&heads[h]), i, &golden);
            jobs_run(&rig, &alone[i], 1);
            check_golden(&alone[i], &heads[h], &golden);
            tokens += golden.token_count;
        }
        print_message("%s: %zu tokens of %d recordings are the reference's\n", heads[h].folder,
                      tokens, CLIPS);
        jobs_drop(alone, CLIPS);
        rig_close(&rig);
    }
}

static void check_together(const struct head *head, const struct job *alone, const char *slots,
                           size_t at_once)
{
    static struct job together[GOLDEN_COUNT];
    struct rig rig;
    open_head(&rig, head, slots);
    golden_jobs(together);
    for (size_t first = 0; first < CLIPS; first += at_once) {
        jobs_run(&rig, together + first, at_once);
    }
    for (size_t i = 0; i < CLIPS; i++) {
        assert_int_equal(together[i].answer.raw.length, alone[i].answer.raw.length);
        assert_memory_equal(together[i].answer.raw.bytes, alone[i].answer.raw.bytes,
                            alone[i].answer.raw.length);
    }
    jobs_drop(together, CLIPS);
    rig_close(&rig);
}

static void test_together(void **state)
{
    static struct job alone[GOLDEN_COUNT];
    for (size_t h = 0; h < BERTH_COUNT_OF(heads); h++) {
        struct rig rig;
        open_head(&rig, &heads[h], "1");
        golden_jobs(alone);
        for (int i = 0; i < CLIPS; i++) {
            jobs_run(&rig, &alone[i], 1);
        }
        rig_close(&rig);
        check_together(&heads[h], alone, "12", CLIPS);
        check_together(&heads[h], alone, "3", 3);
        jobs_drop(alone, CLIPS);
    }
}

static size_t words_in(const char *text)
{
    size_t count = 0;
    for (const char *at = text + strspn(text, " "); *at != '\0'; at += strspn(at, " ")) {
        at += strcspn(at, " ");
        count++;
    }
    return count;
}

/* All recordings, 0.4 s apart, as one; *words: of them alone, as the reference hears them. */
static struct job joined_job(const char *folder, size_t *words)
{
    static struct golden golden;
    struct job job = {.count = 0};
    struct berth_buf sound = {0};
    *words = 0;
    for (int i = 0; i < GOLDEN_COUNT; i++) {
        static const float pause[2 * RATE / 5];
        size_t count = 0;
        float *pcm = golden_pcm(i, &count);
        berth_buf_append(&sound, (const char *)pcm, count * sizeof(*pcm));
        berth_buf_append(&sound, (const char *)pause, sizeof(pause));
        berth_free(pcm);
        golden_read_of(folder, i, &golden);
        *words += words_in(golden.text);
    }
    assert_true(berth_buf_ok(&sound));
    float *samples = berth_alloc(sound.length);
    assert_non_null(samples);
    memcpy(samples, berth_buf_text(&sound), sound.length);
    job.samples = samples;
    job.count = sound.length / sizeof(*samples);
    job_add(&job, with_words);
    berth_buf_finish(&sound);
    return job;
}

/* A longer recording in windows: cut at pauses (8 s), or overlapping and joined (4 s). Sentences in
 * two parts are heard otherwise, and the RNN-T head repeats words then, so it is the times that are
 * held to, and the number of words to a third. */
static void test_windows(void **state)
{
    static const char *const lengths[] = {"8", "4"};
    for (size_t i = 0; i < BERTH_COUNT_OF(heads) * BERTH_COUNT_OF(lengths); i++) {
        const struct head *head = &heads[i / BERTH_COUNT_OF(lengths)];
        const char *length = lengths[i % BERTH_COUNT_OF(lengths)];
        static struct job job;
        struct rig rig;
        size_t words = 0;
        double before = 0;
        open_with(&rig, head, (struct berth_key_value){.key = "window_seconds", .value = length});
        job = joined_job(folder_of(head), &words);
        jobs_run(&rig, &job, 1);
        const struct answer *answer = &job.answer;
        assert_int_equal(answer->code, BERTH_OK);
        print_message("%s, %.0f s in windows of %s s: %zu words, %zu heard\n", head->folder,
                      answer->seconds, length, words, answer->word_count);
        assert_true(answer->parts > 2 && answer->word_count > words - words / 3);
        assert_true(answer->word_count < words + words / 3);
        assert_string_equal(berth_buf_text(&answer->deltas), berth_buf_text(&answer->text));
        for (size_t w = 0; w < answer->word_count; w++) {
            assert_true(answer->word_times[w][0] >= before - 1e-9);
            before = answer->word_times[w][1];
        }
        assert_true(before <= answer->seconds);
        jobs_drop(&job, 1);
        rig_close(&rig);
    }
}

/* Silence, noise and sounds of a few samples are answered; long silences say nothing, and nothing
 * at all is refused. */
static void test_no_speech(void **state)
{
    static const size_t lengths[] = {0, 1, 320, 1280, 3 * RATE, 40 * RATE};
    for (size_t h = 0; h < BERTH_COUNT_OF(heads); h++) {
        static struct job jobs[2 * BERTH_COUNT_OF(lengths)];
        struct rig rig;
        uint32_t random = 1;
        open_head(&rig, &heads[h], "12");
        memset(jobs, 0, sizeof(jobs));
        for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
            jobs[i].count = lengths[i / 2];
            float *samples = berth_alloc((jobs[i].count + 1) * sizeof(*samples));
            assert_non_null(samples);
            for (size_t k = 0; k < jobs[i].count && i % 2 == 1; k++) {
                random = random * 1664525U + 1013904223U;
                samples[k] = (float)((int32_t)random / 2147483648.0);
            }
            jobs[i].samples = samples;
        }
        jobs_run(&rig, jobs, BERTH_COUNT_OF(jobs));
        for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
            bool nothing = jobs[i].count == 0; /* that is no silence */
            assert_int_equal(jobs[i].answer.code, nothing ? BERTH_INVALID : BERTH_OK);
            if (i % 2 == 0 && !nothing) {
                assert_string_equal(berth_buf_text(&jobs[i].answer.text), "");
            }
        }
        jobs_drop(jobs, BERTH_COUNT_OF(jobs));
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_together),
                                       cmocka_unit_test(test_windows),
                                       cmocka_unit_test(test_no_speech)};
    struct berth_err err = {.code = BERTH_OK};
    struct berth_slabs_options options = {.bytes_budget = 1U << 28};
    if (berth_slabs_create(&options, &rig_slabs, &err) != BERTH_OK) {
        return 1;
    }
    struct berth_engine_env env = {.slabs = rig_slabs, .threads = 2, .device = "cpu:0"};
    if (ops->start(&env, &err) != BERTH_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ops->finish();
    berth_slabs_destroy(rig_slabs);
    return failed;
}
