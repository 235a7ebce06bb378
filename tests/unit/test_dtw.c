/* Word times: the path through the attention, words from tokens, and the corrections. */
#include "engine/whisper/align.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"

#define TOKENS_MAX 64

static struct berth_tokens *tokens; /* every byte is a token, and a few words are */
static struct berth_align *align;

static int set_up(void **state)
{
    char path[1024];
    struct berth_err err = {0};
    const char *source = getenv("BERTH_SOURCE");
    (void)snprintf(path, sizeof(path), "%s/tests/models/whisper_scripted/tokenizer.json",
                   source == NULL ? "." : source);
    return berth_tokens_load(path, &tokens, &err) != BERTH_OK ||
           berth_align_create(&align, &err) != BERTH_OK;
}

static int tear_down(void **state)
{
    berth_tokens_destroy(tokens);
    berth_align_destroy(align);
    return 0;
}

/* Scores (heads, tokens, 100): token t attends to frame peaks[t], one head a little off. */
static float *make_scores(const uint32_t *peaks, size_t token_count, size_t heads)
{
    float *scores = berth_alloc(heads * token_count * 100 * sizeof(float));
    assert_non_null(scores);
    for (size_t h = 0; h < heads; h++) {
        for (size_t t = 0; t < token_count; t++) {
            for (size_t f = 0; f < 100; f++) {
                float distance = (float)f - (float)peaks[t] - (float)(h % 2);
                scores[(h * token_count + t) * 100 + f] = -distance * distance / 20;
            }
        }
    }
    return scores;
}

/* start, no timestamps, 5 of text, end; whole and in chunks of 3. */
static void test_path(void **state)
{
    static const uint32_t peaks[] = {0, 5, 20, 35, 50, 65, 80, 95};
    uint32_t whole[7] = {0};
    uint32_t cut[7] = {0};
    float *scores = make_scores(peaks, 8, 3);
    float *chunks[3];
    for (size_t c = 0; c < 3; c++) {
        size_t rows = c == 2 ? 2 : 3;
        chunks[c] = berth_alloc(3 * rows * 100 * sizeof(float));
        for (size_t h = 0; h < 3; h++) {
            memcpy(chunks[c] + h * rows * 100, scores + (h * 8 + c * 3) * 100,
                   rows * 100 * sizeof(float));
        }
    }
    const float *const one[] = {scores};
    const float *const three[] = {chunks[0], chunks[1], chunks[2]};
    struct berth_align_scores in = {.chunks = one, .chunk_tokens = 64, .heads = 3, .tokens = 8,
                                    .frames = 90, .frames_stride = 100, .first = 1};
    berth_align_path(align, &in, whole);
    in.chunks = three;
    in.chunk_tokens = 3;
    berth_align_path(align, &in, cut);
    assert_memory_equal(whole, cut, 6 * sizeof(*cut));
    assert_int_equal(whole[0], 0);
    for (size_t i = 1; i < 6; i++) { /* each begins about midway between its peak and the last */
        assert_true(whole[i] > whole[i - 1]);
        assert_in_range(whole[i], peaks[i], peaks[i + 1]);
    }
    for (size_t c = 0; c < 3; c++) {
        berth_free(chunks[c]);
    }
    berth_free(scores);
}

/* Few frames, equal scores, more tokens than frames: times stay in order and inside. */
static void test_degenerate(void **state)
{
    static float flat[4 * 40 * 100];
    static const size_t frames[] = {1, 2, 3, 4, 7, 100};
    const float *const chunks[] = {flat};
    for (size_t i = 0; i < BERTH_COUNT_OF(frames); i++) {
        uint32_t starts[40] = {0};
        struct berth_align_scores in = {.chunks = chunks, .chunk_tokens = 64, .heads = 4,
                                        .tokens = 40, .frames = frames[i], .frames_stride = 100,
                                        .first = 3};
        berth_align_path(align, &in, starts);
        for (size_t t = 0; t < 36; t++) {
            assert_true(starts[t] < frames[i]);
            assert_true(t == 0 || starts[t] >= starts[t - 1]);
        }
    }
}

struct word_case {
    const char *language;
    const char *text;
    const char *words; /* in order, ended by | each */
};

static const struct word_case word_cases[] = {
    {"en", " Guten Tag", " Guten| Tag|"},
    {"en", " well, \"you\" said.", " well,| \"you\"| said.|"},
    {"en", "a (b) -c", "a| (b)| -c|"},
    {"en", " caf\xC3\xA9 x", " caf\xC3\xA9| x|"},
    {"en", " \xE4\xBD\xA0\xE5\xA5\xBD", " \xE4\xBD\xA0\xE5\xA5\xBD|"},
    {"zh", "\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82", "\xE4\xBD\xA0|\xE5\xA5\xBD\xE3\x80\x82|"},
    {"en", "x\xFF y", "x\xFF| y|"}, /* what can never be a character does not hold words up */
    {"en", "?", "?|"},
};

static size_t words_of(const char *language, const char *text, struct berth_align_word *words,
                       int32_t *ids)
{
    static double probabilities[TOKENS_MAX];
    static uint32_t starts[TOKENS_MAX + 1];
    double median_s = 0;
    size_t count = berth_tokens_encode(tokens, text, strlen(text), ids);
    for (size_t i = 0; i <= TOKENS_MAX; i++) {
        starts[i] = (uint32_t)i * 2;
        probabilities[i == TOKENS_MAX ? 0 : i] = 0.5;
    }
    struct berth_align_text in = {.tokens = tokens, .language = language, .ids = ids,
                                  .count = count, .probabilities = probabilities,
                                  .starts = starts};
    return berth_align_words(&in, words, &median_s);
}

static void test_words(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(word_cases); i++) {
        struct berth_align_word words[TOKENS_MAX];
        int32_t ids[TOKENS_MAX];
        struct berth_buf got = {0};
        size_t count = words_of(word_cases[i].language, word_cases[i].text, words, ids);
        for (size_t w = 0; w < count; w++) {
            if (words[w].count > 0) {
                berth_tokens_decode(tokens, ids + words[w].first, words[w].count, INT32_MAX, &got);
                berth_buf_puts(&got, "|");
                assert_true(fabs(words[w].probability - 0.5) < 1e-9);
                assert_true(words[w].end_s >= words[w].start_s);
            }
        }
        assert_string_equal(berth_buf_text(&got), word_cases[i].words);
        berth_buf_finish(&got);
    }
}

/* A mark at a sentence's end, or the word behind it, that would last longer than two words. */
static void test_sentences(void **state)
{
    struct berth_align_word words[TOKENS_MAX];
    int32_t ids[TOKENS_MAX];
    double probabilities[TOKENS_MAX] = {0};
    uint32_t starts[TOKENS_MAX] = {0, 10, 20, 30, 130, 150}; /* " a" "b" "." takes 2 s */
    double median_s = 0;
    size_t count = berth_tokens_encode(tokens, " a. b", 5, ids);
    assert_int_equal(count, 5); /* ' ' 'a' '.' ' ' 'b' */
    struct berth_align_text in = {.tokens = tokens, .language = "en", .ids = ids, .count = 5,
                                  .probabilities = probabilities, .starts = starts};
    starts[3] = 130;
    starts[4] = 140;
    (void)berth_align_words(&in, words, &median_s);
    assert_true(fabs(median_s - 0.4) < 1e-9); /* of 0.4 (" a"), 2.2 (".") and 0.4 (" b") */
    assert_int_equal(words[0].count, 3);      /* the mark has joined its word */
    assert_true(fabs(words[0].end_s - 0.4) < 1e-9);
}

static void test_fit(void **state)
{
    struct berth_align_word words[] = {
        {.first = 0, .count = 1, .start_s = 0.1, .end_s = 3.0},
        {.first = 1, .count = 1, .start_s = 3.0, .end_s = 3.4},
        {.first = 2, .count = 0},
        {.first = 2, .count = 2, .start_s = 3.4, .end_s = 3.9},
        {.first = 4, .count = 1, .start_s = 4.0, .end_s = 5.2},
    };
    struct berth_align_span spans[] = {{.start_s = 10.0, .end_s = 13.8, .text_count = 4},
                                       {.start_s = 14.1, .end_s = 14.6, .text_count = 1},
                                       {.start_s = 15, .end_s = 16, .text_count = 0}};
    struct berth_align_context context = {.offset_s = 10, .median_s = 0.4, .speech_end_s = 9};
    berth_align_fit(&context, words, 5, spans, 3);
    assert_int_equal(spans[0].word_count, 3);
    assert_int_equal(spans[1].word_count, 1);
    assert_int_equal(spans[2].word_count, 0);
    assert_true(fabs(words[0].start_s - 12.2) < 1e-9); /* after a pause: twice the median */
    assert_true(fabs(spans[0].start_s - 12.2) < 1e-9);
    assert_true(fabs(spans[0].end_s - 13.9) < 1e-9);
    const struct berth_align_word *last = &words[spans[1].word_first];
    assert_true(fabs(last->end_s - 14.6) < 1e-9); /* the segment's own end is nearer */
    assert_true(fabs(spans[1].start_s - last->start_s) < 1e-9);
    assert_true(fabs(context.speech_end_s - spans[1].end_s) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path),      cmocka_unit_test(test_degenerate),
        cmocka_unit_test(test_words),     cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_fit),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
