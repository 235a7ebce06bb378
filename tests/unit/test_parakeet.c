/* The Parakeet engine as a whole, on nano (tests/models/parakeet-nano-en): what the reference hears
 * in twelve recordings, alone and together; what is refused; silence and noise; leaving early; and
 * memory that runs out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "parakeet_golden.h"
#include "sanitizer.h"
#include "speech_rig.h"

#define RATE 16000
#define TORTURE_SAMPLES (2 * RATE) /* of a recording that is heard again and again */
/* Under ThreadSanitizer the first recordings, and one failing allocation of seven. */
#define CLIPS (TEST_TSAN ? 3 : GOLDEN_COUNT)
#define FAILING_STEP (TEST_TSAN ? 7U : 1U)

static const struct berth_engine_ops *const ops = &berth_engine_parakeet;
static const struct berth_param with_words = {"word_timestamps", BERTH_PARAM_BOOL,
                                              {.boolean = true}};

static void rig_must(struct rig *rig, const char *key, const char *value)
{
    struct berth_key_value parameter = {.key = key, .value = value};
    struct berth_err err = {.code = BERTH_OK};
    if (rig_open(rig, ops, golden_model(), key == NULL ? NULL : &parameter, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
}

static void golden_jobs(struct job *jobs)
{
    memset(jobs, 0, CLIPS * sizeof(*jobs));
    for (int i = 0; i < CLIPS; i++) {
        jobs[i].samples = golden_pcm(i, &jobs[i].count);
        job_add(&jobs[i], with_words);
    }
}

/* --- what the reference hears --- */

/* Words wrong (edit distance), as spaces separate them. */
static size_t word_errors(const char *said, const char *heard, size_t *words)
{
    static size_t row[512];
    size_t heard_count = 0;
    const char *starts[512];
    size_t lengths[512];
    for (const char *at = heard + strspn(heard, " "); *at != '\0'; at += strspn(at, " ")) {
        starts[heard_count] = at;
        lengths[heard_count] = strcspn(at, " ");
        at += lengths[heard_count++];
    }
    for (size_t j = 0; j <= heard_count; j++) {
        row[j] = j;
    }
    for (const char *at = said + strspn(said, " "); *at != '\0'; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        size_t diagonal = row[0];
        row[0]++;
        (*words)++;
        for (size_t j = 1; j <= heard_count; j++) {
            bool same = lengths[j - 1] == length && memcmp(starts[j - 1], at, length) == 0;
            size_t cost = diagonal + (same ? 0 : 1);
            cost = row[j] + 1 < cost ? row[j] + 1 : cost;
            cost = row[j - 1] + 1 < cost ? row[j - 1] + 1 : cost;
            diagonal = row[j];
            row[j] = cost;
        }
        at += length;
    }
    return row[heard_count];
}

static void check_words(const struct answer *answer, const struct golden *golden)
{
    struct berth_buf joined = {0};
    for (const char *at = berth_buf_text(&answer->words); *at != '\0'; at++) {
        berth_buf_append(&joined, *at == '|' ? "" : at, *at == '|' ? 0 : 1);
    }
    assert_string_equal(berth_buf_text(&joined) + 1, golden->text); /* behind its first space */
    berth_buf_finish(&joined);
    double before = 0;
    for (size_t i = 0; i < answer->word_count; i++) {
        const double *times = answer->word_times[i];
        assert_true(times[0] >= before && times[1] >= times[0]);
        assert_true(times[1] <= answer->seconds);
        assert_true(times[2] > 0 && times[2] <= 1);
        before = times[1];
    }
}

static void check_golden(const struct job *job, const struct golden *golden)
{
    const struct answer *answer = &job->answer;
    assert_int_equal(answer->code, BERTH_OK);
    assert_string_equal(berth_buf_text(&answer->text), golden->text);
    assert_string_equal(berth_buf_text(&answer->deltas), golden->text);
    assert_string_equal(answer->language, "en");
    assert_int_equal(answer->token_count, golden->token_count);
    assert_memory_equal(answer->tokens, golden->tokens, golden->token_count * sizeof(int32_t));
    assert_true(fabs(answer->seconds - (double)job->count / RATE) < 1e-9);
    assert_true(answer->segment_count > 0);
    for (size_t i = 0; i < answer->segment_count; i++) {
        assert_true(answer->times[i][1] > answer->times[i][0]);
        assert_true(answer->stats[i][0] < 0 && answer->stats[i][0] > -2);
        assert_true(answer->stats[i][1] > 0.3 && answer->stats[i][1] < 2.4);
        assert_true(answer->stats[i][2] == 0 && answer->stats[i][3] == 0);
    }
    check_words(answer, golden);
}

static void test_golden(void **state)
{
    static struct job alone[GOLDEN_COUNT];
    static struct job together[GOLDEN_COUNT];
    static struct golden golden;
    static const struct {
        const char *slots;
        size_t at_once;
    } rounds[] = {{"12", CLIPS}, {"3", 3}};
    struct rig rig;
    size_t words = 0, words_again = 0, wrong = 0, wrong_reference = 0;
    rig_must(&rig, NULL, NULL);
    assert_int_equal(rig.spec->run_mode, BERTH_RUN_STEPS);
    assert_string_equal(rig.spec->task, "automatic-speech-recognition");
    assert_int_equal(ops->slots(rig.model), 8);
    golden_jobs(alone);
    for (int i = 0; i < CLIPS; i++) {
        golden_read(i, &golden);
        jobs_run(&rig, &alone[i], 1);
        check_golden(&alone[i], &golden);
        wrong += word_errors(golden.reference, berth_buf_text(&alone[i].answer.text), &words);
        wrong_reference += word_errors(golden.reference, golden.text, &words_again);
    }
    print_message("word error rate on %d recordings: %.2f %%; of the reference: %.2f %%\n", CLIPS,
                  100.0 * (double)wrong / (double)words,
                  100.0 * (double)wrong_reference / (double)words);
    assert_int_equal(wrong, wrong_reference);
    assert_true(ops->model_bytes(rig.model) > 0);
    rig_close(&rig);
    for (size_t s = 0; s < BERTH_COUNT_OF(rounds); s++) { /* together, to the bit */
        size_t at_once = rounds[s].at_once;
        rig_must(&rig, "slots", rounds[s].slots);
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
    jobs_drop(alone, CLIPS);
}

/* All slots in use: with speech, and with silence, where all end at once, one more than a step
 * tells. */
static void test_full(void **state)
{
    static struct job jobs[BERTH_STEP_EVENTS_MAX];
    struct rig rig;
    size_t count = 0;
    float *samples = golden_pcm(3, &count);
    rig_must(&rig, "slots", "64");
    memset(jobs, 0, sizeof(jobs));
    assert_true(count > RATE);
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        jobs[i].samples = samples;
        jobs[i].count = RATE;
    }
    jobs_run(&rig, jobs, BERTH_COUNT_OF(jobs));
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        assert_int_equal(jobs[i].answer.code, BERTH_OK);
        assert_true(jobs[i].answer.token_count > 0);
        assert_string_equal(berth_buf_text(&jobs[i].answer.text),
                            berth_buf_text(&jobs[0].answer.text));
        assert_string_equal(berth_buf_text(&jobs[i].answer.deltas),
                            berth_buf_text(&jobs[0].answer.text));
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        answer_drop(&jobs[i].answer);
    }
    memset(samples, 0, RATE * sizeof(*samples));
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        jobs[i].count = 100;
    }
    jobs_run(&rig, jobs, BERTH_COUNT_OF(jobs));
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        assert_int_equal(jobs[i].answer.code, BERTH_OK);
        assert_string_equal(berth_buf_text(&jobs[i].answer.text), "");
        answer_drop(&jobs[i].answer);
    }
    berth_free(samples);
    rig_close(&rig);
}

/* --- what no speech is --- */

static float noise_at(uint64_t *random)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(int32_t)(*random >> 32) / 2147483648.0F;
}

/* Every one is answered, and what is silent has no words. */
static void test_sounds(void **state)
{
    enum sound { SILENCE, NOISE, CLIPPED, NOT_NUMBERS, HUGE_VALUES, SOUND_COUNT };
    static const size_t lengths[] = {0, 1, 159, 160, 319, 320, 1279, 1280, 3 * RATE, 40 * RATE};
    struct rig rig;
    rig_must(&rig, NULL, NULL);
    for (size_t l = 0; l < BERTH_COUNT_OF(lengths); l++) {
        static struct job jobs[SOUND_COUNT];
        memset(jobs, 0, sizeof(jobs));
        for (int s = 0; s < SOUND_COUNT; s++) {
            uint64_t random = 1;
            float *samples = berth_alloc((lengths[l] + 1) * sizeof(*samples));
            assert_non_null(samples);
            for (size_t i = 0; i < lengths[l]; i++) {
                float value = noise_at(&random);
                samples[i] = s == SILENCE       ? 0
                             : s == NOISE       ? value / 10
                             : s == CLIPPED     ? (value > 0 ? 1.0F : -1.0F)
                             : s == NOT_NUMBERS ? (i % 3 == 0 ? INFINITY : NAN)
                                                : value * 3e38F;
            }
            jobs[s].samples = samples;
            jobs[s].count = lengths[l];
        }
        jobs_run(&rig, jobs, SOUND_COUNT);
        for (int s = 0; s < SOUND_COUNT; s++) {
            if (lengths[l] == 0) { /* not silence: nothing */
                assert_int_equal(jobs[s].answer.code, BERTH_INVALID);
                continue;
            }
            assert_int_equal(jobs[s].answer.code, BERTH_OK);
            if (s == SILENCE || s == NOT_NUMBERS || lengths[l] < 320) {
                assert_string_equal(berth_buf_text(&jobs[s].answer.text), "");
            }
        }
        jobs_drop(jobs, SOUND_COUNT);
    }
    rig_close(&rig);
}

/* --- what is refused --- */

static const struct {
    struct berth_param param;
    enum berth_code code;
    const char *field;
} refusals[] = {
    {{"language", BERTH_PARAM_STRING, {.string = "elvish"}}, BERTH_INVALID, "language"},
    {{"language", BERTH_PARAM_STRING, {.string = "de"}}, BERTH_UNSUPPORTED, "language"},
    {{"language", BERTH_PARAM_STRING, {.string = "English"}}, BERTH_OK, NULL},
    {{"language", BERTH_PARAM_STRING, {.string = "auto"}}, BERTH_OK, NULL},
    {{"task", BERTH_PARAM_STRING, {.string = "sing"}}, BERTH_INVALID, "task"},
    {{"task", BERTH_PARAM_STRING, {.string = "translate"}}, BERTH_UNSUPPORTED, "task"},
    {{"task", BERTH_PARAM_STRING, {.string = "transcribe"}}, BERTH_OK, NULL},
    {{"prompt", BERTH_PARAM_STRING, {.string = "Names: Zaphod"}}, BERTH_UNSUPPORTED, "prompt"},
    {{"prompt", BERTH_PARAM_STRING, {.string = " \n"}}, BERTH_OK, NULL},
    {{"temperature", BERTH_PARAM_REAL, {.real = -0.1}}, BERTH_INVALID, "temperature"},
    {{"temperature", BERTH_PARAM_REAL, {.real = NAN}}, BERTH_INVALID, "temperature"},
    {{"temperature", BERTH_PARAM_REAL, {.real = 1}}, BERTH_OK, NULL},
    {{"beam_size", BERTH_PARAM_INT, {.integer = 5}}, BERTH_UNSUPPORTED, "beam_size"},
};

static void test_refusals(void **state)
{
    struct rig rig;
    float samples[800] = {0};
    rig_must(&rig, NULL, NULL);
    for (size_t i = 0; i < BERTH_COUNT_OF(refusals); i++) {
        static struct job job;
        memset(&job, 0, sizeof(job));
        job.samples = samples;
        job.count = BERTH_COUNT_OF(samples);
        job_add(&job, refusals[i].param);
        jobs_run(&rig, &job, 1);
        if (job.answer.code != refusals[i].code) {
            fail_msg("case %zu: %s", i, berth_code_name(job.answer.code));
        }
        if (refusals[i].field != NULL) {
            assert_string_equal(job.answer.field, refusals[i].field);
        }
        answer_drop(&job.answer);
    }
    rig_close(&rig);
}

static void test_parameters(void **state)
{
    static const struct {
        const char *key, *value;
        enum berth_code code;
    } cases_of[] = {
        {"slots", "0", BERTH_INVALID},           {"slots", "64", BERTH_OK},
        {"slots", "65", BERTH_INVALID},          {"window_seconds", "3", BERTH_INVALID},
        {"window_seconds", "4", BERTH_OK},       {"window_seconds", "120", BERTH_OK},
        {"window_seconds", "121", BERTH_INVALID}, {"window_seconds", "long", BERTH_INVALID},
        {"precision", "fp8", BERTH_OK},          {"precision", "int8", BERTH_INVALID},
        {"languages", "", BERTH_INVALID},        {"languages", "en,xx", BERTH_INVALID},
        {"languages", "en,", BERTH_INVALID},     {"languages", "en,de", BERTH_OK},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases_of); i++) {
        struct berth_key_value parameter = {.key = cases_of[i].key, .value = cases_of[i].value};
        struct berth_err err = {.code = BERTH_OK};
        struct rig rig;
        enum berth_code code = rig_open(&rig, ops, golden_model(), &parameter, &err);
        if (code != cases_of[i].code) {
            fail_msg("%s %s: %s", parameter.key, parameter.value, err.msg);
        }
        if (code != BERTH_OK && strcmp(parameter.key, "window_seconds") == 0) {
            assert_non_null(strstr(err.msg, "it takes 4 to 120"));
        }
        rig_close(&rig);
    }
}

/* A model of several languages takes one that it knows, and says it again. */
static void test_languages(void **state)
{
    static const struct {
        const char *value, *heard;
        enum berth_code code;
    } cases_of[] = {{"", "", BERTH_OK},
                    {"de", "de", BERTH_OK},
                    {"German", "de", BERTH_OK},
                    {"fr", "", BERTH_UNSUPPORTED}};
    struct rig rig;
    float samples[3200] = {0};
    rig_must(&rig, "languages", "en,de");
    for (size_t i = 0; i < BERTH_COUNT_OF(cases_of); i++) {
        static struct job job;
        memset(&job, 0, sizeof(job));
        job.samples = samples;
        job.count = BERTH_COUNT_OF(samples);
        job_add(&job, (struct berth_param){
                          "language", BERTH_PARAM_STRING, {.string = cases_of[i].value}});
        jobs_run(&rig, &job, 1);
        assert_int_equal(job.answer.code, cases_of[i].code);
        assert_string_equal(job.answer.language, cases_of[i].heard);
        answer_drop(&job.answer);
    }
    rig_close(&rig);
}

/* --- leaving early, and running out of memory --- */

static void test_cancel(void **state)
{
    static struct job jobs[3];
    static struct berth_step_result result;
    struct rig rig;
    struct berth_err err = {.code = BERTH_OK};
    size_t count = 0;
    float *samples = golden_pcm(0, &count);
    rig_must(&rig, "slots", "3");
    for (size_t round = 0; round < 14; round++) { /* after every stage of a run */
        memset(jobs, 0, sizeof(jobs));
        for (size_t i = 0; i < 3; i++) {
            jobs[i].samples = samples;
            jobs[i].count = i == 2 ? count : count / 2;
            assert_true(job_start(&rig, &jobs[i]));
        }
        bool ended = false;
        for (size_t k = 0; k < round && !ended; k++) {
            assert_int_equal(ops->step(rig.instance, 0, &result, &err), BERTH_OK);
            for (size_t e = 0; e < result.event_count; e++) {
                ended = ended || result.events[e].final;
                berth_part_destroy(result.events[e].part);
            }
        }
        if (!ended) {
            atomic_store(&jobs[0].request->cancelled, true);
            ops->drop(rig.instance, jobs[1].slot);
            assert_int_equal(ops->step(rig.instance, 0, &result, &err), BERTH_OK);
            assert_int_equal(result.event_count, 1);
            assert_true(result.events[0].final);
            assert_int_equal(result.events[0].slot, jobs[0].slot);
            assert_int_equal(result.events[0].err.code, BERTH_CANCELLED);
            assert_int_equal(result.live, 1);
        }
        for (uint32_t slot = 0; slot < 3; slot++) {
            ops->drop(rig.instance, slot);
            berth_request_release(jobs[slot].request);
        }
        assert_int_equal(ops->step(rig.instance, 0, &result, &err), BERTH_OK);
        assert_int_equal(result.live, 0);
    }
    static struct golden golden; /* and those who come after are heard as ever */
    memset(jobs, 0, sizeof(jobs));
    jobs[0].samples = samples;
    jobs[0].count = count;
    golden_read(0, &golden);
    jobs_run(&rig, jobs, 1);
    assert_string_equal(berth_buf_text(&jobs[0].answer.text), golden.text);
    answer_drop(&jobs[0].answer);
    berth_free(samples);
    rig_close(&rig);
}

static bool load_short_of(uint64_t nth)
{
    struct rig rig;
    struct berth_err err = {.code = BERTH_OK};
    berth_mem_fail_at(nth, false);
    enum berth_code code = rig_open(&rig, ops, golden_model(), NULL, &err);
    berth_mem_fail_at(0, false);
    rig_close(&rig);
    return code == BERTH_OK;
}

static void test_no_memory_to_load(void **state)
{
    uint64_t calls = berth_mem_call_count();
    assert_true(load_short_of(0));
    calls = berth_mem_call_count() - calls;
    uint64_t live = berth_mem_bytes_live();
    /* A tokenizer's many small pieces behave alike: beyond the first ones, every 37th. */
    for (uint64_t nth = 1; nth <= calls;
         nth += FAILING_STEP * (nth < 200 || nth + 100 > calls ? 1U : 37U)) {
        (void)load_short_of(nth);
        assert_int_equal(berth_mem_bytes_live(), live);
    }
    assert_true(load_short_of(0));
}

/* One final event, whatever fails, and everything is given back. */
static bool run_short_of(struct rig *rig, uint64_t nth, const float *samples)
{
    static struct berth_step_result result;
    static struct job job;
    struct berth_err err = {.code = BERTH_OK};
    bool good = false;
    memset(&job, 0, sizeof(job));
    job.samples = samples;
    job.count = TORTURE_SAMPLES;
    job_add(&job, with_words);
    berth_mem_fail_at(nth, false);
    if (job_start(rig, &job)) {
        size_t finals = 0;
        do {
            assert_int_equal(ops->step(rig->instance, RIG_BUDGET_NS, &result, &err), BERTH_OK);
            for (size_t e = 0; e < result.event_count; e++) {
                finals += result.events[e].final ? 1 : 0;
                good = result.events[e].final && result.events[e].err.code == BERTH_OK;
                berth_part_destroy(result.events[e].part);
            }
        } while (result.live > 0);
        assert_int_equal(finals, 1);
    }
    berth_mem_fail_at(0, false);
    berth_request_release(job.request);
    return good;
}

static void test_no_memory_to_run(void **state)
{
    struct rig rig;
    size_t count = 0;
    float *samples = golden_pcm(0, &count);
    rig_must(&rig, "slots", "2");
    assert_true(count >= TORTURE_SAMPLES);
    uint64_t calls = berth_mem_call_count(); /* the first of all: it makes the bucket's memory */
    assert_true(run_short_of(&rig, 0, samples));
    calls = berth_mem_call_count() - calls;
    for (uint64_t nth = 1; nth <= calls + 5; nth += FAILING_STEP) {
        rig_close(&rig);
        rig_must(&rig, "slots", "2");
        (void)run_short_of(&rig, nth, samples);
        assert_true(run_short_of(&rig, 0, samples));
    }
    berth_free(samples);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_full),
        cmocka_unit_test(test_sounds),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_languages),   cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_no_memory_to_load),
        cmocka_unit_test(test_no_memory_to_run)};
    struct berth_err err = {.code = BERTH_OK};
    struct berth_slabs_options options = {.bytes_budget = 256U << 20};
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
