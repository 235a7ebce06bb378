/* Which token may come, which one does, and what a window of tokens means. */
#include "engine/speech.h"
#include "engine/whisper/rules.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/whisper/window.h"
#include "model/languages.h"

/* 10 tokens of text, then the control tokens, then 101 times: 16 is <|0.00|>, 116 <|2.00|>. */
enum { EOT = 10, SOT = 11, NOTS = 15, T0 = 16, VOCAB = T0 + 101 };

static const int32_t suppressed[] = {3, SOT};
static const int32_t suppressed_first[] = {4, EOT};
static const struct berth_whisper_config config = {
    .vocab = VOCAB, .eot = EOT, .sot = SOT, .no_speech = 14, .no_timestamps = NOTS,
    .first_time = T0, .first_time_limit = 50, .suppressed = suppressed, .suppressed_count = 2,
    .suppressed_first = suppressed_first, .suppressed_first_count = 2, .multilingual = true,
    .languages = {{"en", 12}, {"de", 13}}, .language_count = 2};

/* What the rules let through, as "text end times": first and last allowed time, -1 for none. */
struct allowed {
    bool text;
    bool end;
    int first;
    int last;
};

struct rule_case {
    const char *name;
    bool timestamps;
    int32_t tokens[6];
    size_t count;
    struct allowed want;
};

static const struct rule_case rule_cases[] = {
    {"without times", false, {0}, 0, {true, false, 0, 100}},
    {"without times, later", false, {5}, 1, {true, true, 0, 100}},
    {"first: a time up to the limit", true, {0}, 0, {false, false, 0, 50}},
    {"after the first time: text", true, {T0 + 5}, 1, {true, true, -1, -1}},
    {"in text", true, {T0 + 5, 7}, 2, {true, true, 5, 100}},
    {"a closing time: its pair or the end", true, {T0 + 5, 7, T0 + 30}, 3, {false, true, 30, 100}},
    {"after a pair: text", true, {T0, 7, T0 + 30, T0 + 30}, 4, {true, true, -1, -1}},
    {"never back", true, {T0, 7, T0 + 30, T0 + 40, 8}, 5, {true, true, 40, 100}},
};

static void test_masks(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(rule_cases); i++) {
        const struct rule_case *c = &rule_cases[i];
        float logits[VOCAB];
        struct berth_rules rules = {.config = &config, .tokens = c->tokens,
                                    .token_count = c->count, .timestamps = c->timestamps};
        struct allowed got = {.first = -1, .last = -1};
        for (size_t k = 0; k < VOCAB; k++) {
            logits[k] = k < T0 ? 20.0F : 0.0F; /* text so likely that no time is forced */
        }
        berth_rules_mask(&rules, logits);
        got.text = isfinite(logits[5]);
        got.end = isfinite(logits[EOT]);
        for (int k = 0; k <= 100; k++) {
            if (isfinite(logits[T0 + k])) {
                got.first = got.first < 0 ? k : got.first;
                got.last = k;
            }
        }
        if (got.text != c->want.text || got.end != c->want.end || got.first != c->want.first ||
            got.last != c->want.last) {
            fail_msg("%s: text %d end %d times %d..%d", c->name, got.text, got.end, got.first,
                     got.last);
        }
        assert_true(logits[3] == -INFINITY);
        assert_true(logits[SOT] == -INFINITY);
        assert_int_equal(isfinite(logits[4]) != 0, got.text && c->count > 0);
        assert_int_equal(isfinite(logits[NOTS]) != 0, !c->timestamps);
    }
}

/* Times together likelier than the likeliest text, though none alone is: then one is forced. */
static void test_forced_time(void **state)
{
    static const int32_t tokens[] = {T0, 5};
    struct berth_rules rules = {.config = &config, .tokens = tokens, .token_count = 2,
                                .timestamps = true};
    float logits[VOCAB];
    for (int forced = 0; forced < 2; forced++) {
        for (size_t k = 0; k < VOCAB; k++) {
            logits[k] = -20;
        }
        logits[6] = 2;
        logits[T0 + 10] =
            forced ? 1.5F : 1.2F; /* log(e^1.5 + e^1.2) = 2.05; of 1.2 and 1.2: 1.89 */
        logits[T0 + 11] = 1.2F;
        berth_rules_mask(&rules, logits);
        uint64_t random = 1;
        struct berth_pick pick = berth_rules_pick(logits, VOCAB, 0, &random);
        assert_int_equal(pick.token, forced ? T0 + 10 : 6);
    }
}

static void test_pick(void **state)
{
    static float logits[51864];
    double sum = 0;
    uint64_t random = 7;
    for (size_t i = 0; i < BERTH_COUNT_OF(logits); i++) {
        logits[i] = (float)((double)((i * 7919) % 1000) / 50 - 15);
        sum += exp((double)logits[i]);
    }
    logits[40000] = 9.5F;
    sum += exp(9.5) - exp((double)(float)((double)((40000U * 7919U) % 1000) / 50 - 15));
    struct berth_pick pick = berth_rules_pick(logits, BERTH_COUNT_OF(logits), 0, &random);
    assert_int_equal(pick.token, 40000);
    assert_true(fabs(pick.logprob - (9.5 - log(sum))) < 1e-5);
    assert_true(fabs(berth_rules_probability(logits, BERTH_COUNT_OF(logits), 40000) -
                     exp(9.5) / sum) < 1e-6);
    for (size_t i = 0; i < BERTH_COUNT_OF(logits); i++) {
        logits[i] = -INFINITY;
    }
    assert_int_equal(berth_rules_pick(logits, BERTH_COUNT_OF(logits), 0, &random).token, -1);
    logits[5] = NAN;
    assert_int_equal(berth_rules_pick(logits, BERTH_COUNT_OF(logits), 0.5, &random).token, -1);
    assert_true(berth_rules_probability(logits, BERTH_COUNT_OF(logits), 5) == 0);
}

static void test_sampling(void **state)
{
    float logits[VOCAB];
    size_t counts[3] = {0};
    uint64_t random = 42;
    uint64_t again = 42;
    for (size_t i = 0; i < VOCAB; i++) {
        logits[i] = -INFINITY;
    }
    logits[20] = 1;
    logits[21] = 2;
    logits[99] = 0;
    for (size_t i = 0; i < 20000; i++) {
        struct berth_pick pick = berth_rules_pick(logits, VOCAB, 0.5, &random);
        struct berth_pick same = berth_rules_pick(logits, VOCAB, 0.5, &again);
        assert_int_equal(pick.token, same.token);
        assert_true(pick.token == 20 || pick.token == 21 || pick.token == 99);
        counts[pick.token == 20 ? 0 : pick.token == 21 ? 1 : 2]++;
    }
    double sum = exp(2) + exp(4) + 1; /* at half the temperature */
    assert_true(fabs((double)counts[0] / 20000 - exp(2) / sum) < 0.01);
    assert_true(fabs((double)counts[1] / 20000 - exp(4) / sum) < 0.01);
    assert_true(fabs((double)counts[2] / 20000 - 1 / sum) < 0.01);
}

static void test_language(void **state)
{
    float logits[VOCAB] = {0};
    logits[12] = 1;
    logits[13] = 2;
    logits[5] = 9;
    assert_int_equal(berth_rules_language(&config, logits), 13);
    assert_string_equal(berth_whisper_language_code(&config, 13), "de");
    assert_null(berth_whisper_language_code(&config, 14));
    assert_int_equal(berth_whisper_language_id(&config, "en"), 12);
    assert_int_equal(berth_whisper_language_id(&config, "fr"), -1);
    assert_string_equal(berth_language_code("English"), "en");
    assert_string_equal(berth_language_code("DE"), "de");
    assert_string_equal(berth_language_code("en-US"), "en");
    assert_string_equal(berth_language_code("haitian creole"), "ht");
    assert_null(berth_language_code(""));
    assert_null(berth_language_code("e"));
    assert_null(berth_language_code("elvish"));
    assert_string_equal(berth_language_name("yue"), "cantonese");
    assert_null(berth_language_name("english"));
}

struct split_case {
    const char *name;
    int32_t tokens[10];
    size_t count;
    size_t seek, size;      /* of the window */
    size_t segments;
    double times[4];        /* of the first and the last segment */
    size_t seek_next;
};

static const struct split_case split_cases[] = {
    {"a pair at the end", {T0, 1, T0 + 50, T0 + 50, 2, T0 + 90, T0 + 90}, 7, 1000, 3000, 2,
     {10, 11, 11, 11.8}, 1180},
    {"a lone time at the end: silence after it", {T0, 1, T0 + 50, T0 + 50, 2, T0 + 90}, 6, 0, 3000,
     2, {0, 1, 1, 1.8}, 3000},
    {"text cut by the window's end", {T0, 1, T0 + 50, T0 + 60, 2, 3}, 6, 100, 3000, 1,
     {1, 2, 1, 2}, 200},
    {"one segment, closed", {T0, 1, 2, T0 + 80}, 4, 0, 500, 1, {0, 1.6, 0, 1.6}, 500},
    {"one segment, open", {T0, 1, 2}, 3, 0, 500, 1, {0, 5, 0, 5}, 500},
    {"no times", {1, 2}, 2, 200, 500, 1, {2, 7, 2, 7}, 700},
    {"nothing", {0}, 0, 200, 500, 1, {2, 7, 2, 7}, 700},
    {"a pair at zero moves on all the same", {T0, T0, 1}, 3, 300, 500, 1, {3, 3, 3, 3}, 800},
};

static void test_split(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(split_cases); i++) {
        const struct split_case *c = &split_cases[i];
        struct berth_window window = {.seek = c->seek, .size = c->size, .tokens = c->tokens,
                                      .token_count = c->count};
        struct berth_window_cut cut;
        berth_window_split(&config, &window, &cut);
        if (cut.segment_count != c->segments || cut.seek_next != c->seek_next) {
            fail_msg("%s: %zu segments, next %zu", c->name, cut.segment_count, cut.seek_next);
        }
        const struct berth_window_segment *last = &cut.segments[cut.segment_count - 1];
        if (fabs(cut.segments[0].start_s - c->times[0]) > 1e-9 ||
            fabs(cut.segments[0].end_s - c->times[1]) > 1e-9 ||
            fabs(last->start_s - c->times[2]) > 1e-9 || fabs(last->end_s - c->times[3]) > 1e-9) {
            fail_msg("%s: %f %f .. %f %f", c->name, cut.segments[0].start_s,
                     cut.segments[0].end_s, last->start_s, last->end_s);
        }
    }
}

static void test_scores(void **state)
{
    static const struct {
        struct berth_window_score score;
        bool silent, retry;
    } cases[] = {
        {{.avg_logprob = -0.2, .compression_ratio = 1.5, .no_speech_prob = 0.1}, false, false},
        {{.avg_logprob = -1.1, .compression_ratio = 1.5, .no_speech_prob = 0.1}, false, true},
        {{.avg_logprob = -0.2, .compression_ratio = 2.5, .no_speech_prob = 0.1}, false, true},
        {{.avg_logprob = -0.2, .compression_ratio = 2.4, .no_speech_prob = 0.1}, false, false},
        {{.avg_logprob = -1.1, .compression_ratio = 2.5, .no_speech_prob = 0.7}, true, false},
        {{.avg_logprob = -1.0, .compression_ratio = 1.0, .no_speech_prob = 0.7}, true, false},
        {{.avg_logprob = -0.9, .compression_ratio = 1.0, .no_speech_prob = 0.7}, false, false},
        {{.avg_logprob = -1.1, .compression_ratio = 1.0, .no_speech_prob = 0.6}, false, true},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        assert_int_equal(berth_window_is_silent(&cases[i].score), cases[i].silent);
        assert_int_equal(berth_window_needs_retry(&cases[i].score), cases[i].retry);
    }
    char text[2000];
    memset(text, 'a', sizeof(text));
    assert_true(berth_speech_compression(text, sizeof(text)) > 50);
    assert_true(berth_speech_compression("It was the best", 15) < 1);
    assert_true(berth_speech_compression("", 0) == 0);
    assert_true(berth_window_temperature(0) == 0);
    assert_true(fabs(berth_window_temperature(BERTH_WINDOW_TRIES - 1) - 1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),    cmocka_unit_test(test_forced_time),
        cmocka_unit_test(test_pick),     cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_language), cmocka_unit_test(test_split),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
