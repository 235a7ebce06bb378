/* A speech part's tensors to segments, and segments to OpenAI's forms, to the byte. */
#include "task/transcript.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>

static struct berth_slabs *slabs;

static int set_up(void **state)
{
    struct berth_slabs_options options = {.bytes_budget = 1 << 20};
    return berth_slabs_create(&options, &slabs, NULL) != BERTH_OK;
}

static int tear_down(void **state)
{
    struct berth_slabs_stats stats;
    berth_slabs_stats(slabs, &stats);
    berth_slabs_destroy(slabs);
    return stats.bytes_out != 0;
}

/* --- writing --- */

static const int32_t ids[] = {50363, 632, 50413, 50413, 11};
static const struct berth_word words[] = {{0.0, 0.52, 0.9, " It"}, {0.52, 1, 0.75, " \"was\"."}};
static const struct berth_segment segments[] = {
    {.start_s = 0, .end_s = 1, .text = " It \"was\".", .avg_logprob = -0.14463, .seek = 0,
     .compression_ratio = 1.25, .no_speech_prob = 0.3342912, .tokens = ids, .token_count = 3,
     .words = words, .word_count = 2},
    {.start_s = 3661.5, .end_s = 3662.0449, .text = " a <b> & --> \n c", .avg_logprob = -1,
     .seek = 2916, .temperature = 0.2, .tokens = ids + 3, .token_count = 2},
};
static const struct berth_transcript two = {.text = "It \"was\". a <b> & --> \n c",
                                            .language = "en", .seconds = 44.374125,
                                            .segments = segments, .segment_count = 2};
static const struct berth_segment arrows[] = {{.end_s = 1, .text = "---> a --> b -> c --"}};
static const struct berth_transcript arrowed = {.text = "", .language = "en", .segments = arrows,
                                                .segment_count = 1};
static const struct berth_transcript silence = {.text = "", .language = "", .seconds = 0.05};

struct write_case {
    const struct berth_transcript *transcript;
    struct berth_transcript_style style;
    const char *want;
};

static const struct write_case write_cases[] = {
    {&two, {.format = BERTH_TRANSCRIPT_TEXT}, "It \"was\". a <b> & --> \n c\n"},
    {&two, {.format = BERTH_TRANSCRIPT_JSON}, "{\"text\":\"It \\\"was\\\". a <b> & --> \\n c\"}"},
    {&two, {.format = BERTH_TRANSCRIPT_SRT},
     "1\n00:00:00,000 --> 00:00:01,000\nIt \"was\".\n\n"
     "2\n01:01:01,500 --> 01:01:02,045\na <b> & ->   c\n\n"},
    {&two, {.format = BERTH_TRANSCRIPT_VTT},
     "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nIt \"was\".\n\n"
     "01:01:01.500 --> 01:01:02.045\na &lt;b> &amp; -&gt;   c\n\n"},
    {&two, {.format = BERTH_TRANSCRIPT_VERBOSE_JSON, .segments = true, .words = true,
            .task = "transcribe"},
     "{\"task\":\"transcribe\",\"language\":\"english\",\"duration\":44.374,"
     "\"text\":\"It \\\"was\\\". a <b> & --> \\n c\",\"segments\":["
     "{\"id\":0,\"seek\":0,\"start\":0.0,\"end\":1.0,\"text\":\" It \\\"was\\\".\","
     "\"tokens\":[50363,632,50413],\"temperature\":0.0,\"avg_logprob\":-0.14463,"
     "\"compression_ratio\":1.25,\"no_speech_prob\":0.334291},"
     "{\"id\":1,\"seek\":2916,\"start\":3661.5,\"end\":3662.045,"
     "\"text\":\" a <b> & --> \\n c\",\"tokens\":[50413,11],\"temperature\":0.2,"
     "\"avg_logprob\":-1.0,\"compression_ratio\":0.0,\"no_speech_prob\":0.0}],"
     "\"words\":[{\"word\":\"It\",\"start\":0.0,\"end\":0.52},"
     "{\"word\":\"\\\"was\\\".\",\"start\":0.52,\"end\":1.0}]}"},
    {&two, {.format = BERTH_TRANSCRIPT_VERBOSE_JSON, .words = true, .task = "translate"},
     "{\"task\":\"translate\",\"language\":\"english\",\"duration\":44.374,"
     "\"text\":\"It \\\"was\\\". a <b> & --> \\n c\","
     "\"words\":[{\"word\":\"It\",\"start\":0.0,\"end\":0.52},"
     "{\"word\":\"\\\"was\\\".\",\"start\":0.52,\"end\":1.0}]}"},
    {&arrowed, {.format = BERTH_TRANSCRIPT_SRT},
     "1\n00:00:00,000 --> 00:00:01,000\n-> a -> b -> c --\n\n"},
    {&arrowed, {.format = BERTH_TRANSCRIPT_VTT},
     "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n-&gt; a -&gt; b -> c --\n\n"},
    {&silence, {.format = BERTH_TRANSCRIPT_TEXT}, "\n"},
    {&silence, {.format = BERTH_TRANSCRIPT_JSON}, "{\"text\":\"\"}"},
    {&silence, {.format = BERTH_TRANSCRIPT_SRT}, ""},
    {&silence, {.format = BERTH_TRANSCRIPT_VTT}, "WEBVTT\n\n"},
    {&silence, {.format = BERTH_TRANSCRIPT_VERBOSE_JSON, .segments = true, .words = true,
                .task = "transcribe"},
     "{\"task\":\"transcribe\",\"language\":\"\",\"duration\":0.05,\"text\":\"\",\"segments\":[],"
     "\"words\":[]}"},
};

static void test_write(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(write_cases); i++) {
        struct berth_buf out = {0};
        berth_transcript_write(write_cases[i].transcript, &write_cases[i].style, &out);
        assert_true(berth_buf_ok(&out));
        assert_string_equal(berth_buf_text(&out), write_cases[i].want);
        berth_buf_finish(&out);
    }
}

/* Whatever numbers and bytes come, JSON stays JSON. */
static void test_hostile(void **state)
{
    struct berth_segment segment = {.start_s = NAN, .end_s = INFINITY, .avg_logprob = -INFINITY,
                                    .text = "\x01\x7F\xFF</script>\\\"\xE2\x80\xA8",
                                    .compression_ratio = 1e300, .no_speech_prob = -NAN};
    struct berth_transcript transcript = {.text = segment.text, .language = "\"", .seconds = NAN,
                                          .segments = &segment, .segment_count = 1};
    struct berth_transcript_style style = {.segments = true, .words = true, .task = "transcribe"};
    static const enum berth_transcript_format json[] = {BERTH_TRANSCRIPT_JSON,
                                                        BERTH_TRANSCRIPT_VERBOSE_JSON};
    for (size_t i = 0; i < BERTH_COUNT_OF(json); i++) {
        struct berth_buf out = {0};
        json_error_t error;
        style.format = json[i];
        berth_transcript_write(&transcript, &style, &out);
        json_t *root = json_loadb(out.bytes, out.length, 0, &error);
        assert_non_null(root);
        json_decref(root);
        berth_buf_finish(&out);
    }
    struct berth_buf out = {0};
    style.format = BERTH_TRANSCRIPT_SRT;
    berth_transcript_write(&transcript, &style, &out);
    assert_memory_equal(out.bytes, "1\n00:00:00,000 --> 00:00:00,000\n", 32);
    berth_buf_finish(&out);
}

static void test_formats(void **state)
{
    static const char *const names[] = {"text", "json", "verbose_json", "srt", "vtt"};
    enum berth_transcript_format format = BERTH_TRANSCRIPT_TEXT;
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        assert_true(berth_transcript_format_parse(names[i], &format));
        assert_int_equal(format, i);
        assert_non_null(berth_transcript_content_type(format));
    }
    assert_false(berth_transcript_format_parse("SRT", &format));
    assert_false(berth_transcript_format_parse("", &format));
    assert_false(berth_transcript_format_parse("json ", &format));
}

/* --- reading --- */

static void add_bytes(struct berth_part *part, const char *name, const char *const *texts,
                      size_t count)
{
    unsigned char *at = NULL;
    void *out = NULL;
    size_t bytes = 0;
    struct berth_tensor like = {
        .name = name, .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {(int64_t)count}};
    struct berth_err err = {0};
    for (size_t i = 0; i < count; i++) {
        bytes += 4 + strlen(texts[i]);
    }
    assert_int_equal(berth_part_add(part, &like, bytes, &out, &err), BERTH_OK);
    at = out;
    for (size_t i = 0; i < count; i++) {
        at = berth_bytes_put(at, texts[i], (uint32_t)strlen(texts[i]));
    }
}

struct numbers {
    const char *name;
    enum berth_dtype dtype;
    size_t count;
    size_t width; /* 0: of rank 1 */
    const void *values;
};

static void add_numbers(struct berth_part *part, const struct numbers *numbers)
{
    void *out = NULL;
    struct berth_err err = {0};
    struct berth_tensor like = {.name = numbers->name, .dtype = numbers->dtype,
                                .rank = numbers->width == 0 ? 1 : 2,
                                .dims = {(int64_t)numbers->count, (int64_t)numbers->width}};
    size_t bytes = numbers->count * (numbers->width == 0 ? 1 : numbers->width) *
                   berth_dtype_bytes(numbers->dtype);
    assert_int_equal(berth_part_add(part, &like, bytes, &out, &err), BERTH_OK);
    if (bytes > 0) {
        memcpy(out, numbers->values, bytes);
    }
}

#define LIST_MAX 12

/* A part of two segments and three words; `without` is left out, `other` put in its place. */
static struct berth_part *make_part(struct berth_request *request, const char *without,
                                    const struct numbers *other)
{
    static const char *const text[] = {"one two three"};
    static const char *const language[] = {"en"};
    static const char *const texts[] = {" one\xFF", " two three"};
    static const char *const word_texts[] = {" one", " two", " three"};
    static const double duration[] = {4.5};
    static const double times[] = {0, 1, 1, 4};
    static const double stats[] = {-0.1, 1.1, 0.2, 0, -0.3, 1.3, 0.4, 0.6};
    static const int32_t counts[] = {2, 3};
    static const int32_t seeks[] = {0, 100};
    static const int32_t tokens[] = {1, 2, 3, 4, 5};
    static const double word_times[] = {0, 1, 0.5, 1, 2, 0.6, 2, 4, 0.7};
    static const int32_t owners[] = {0, 1, 1};
    const struct numbers all[] = {
        {"duration", BERTH_DTYPE_FP64, 1, 0, duration},
        {"segment_times", BERTH_DTYPE_FP64, 2, 2, times},
        {"segment_stats", BERTH_DTYPE_FP64, 2, 4, stats},
        {"segment_seek", BERTH_DTYPE_INT32, 2, 0, seeks},
        {"segment_token_count", BERTH_DTYPE_INT32, 2, 0, counts},
        {"segment_tokens", BERTH_DTYPE_INT32, 5, 0, tokens},
        {"word_times", BERTH_DTYPE_FP64, 3, 3, word_times},
        {"word_segment", BERTH_DTYPE_INT32, 3, 0, owners}};
    struct berth_part *part = berth_part_create(request);
    assert_non_null(part);
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        if (without == NULL || strcmp(all[i].name, without) != 0) {
            add_numbers(part, &all[i]);
        }
    }
    if (other != NULL) {
        add_numbers(part, other);
    }
    const struct {
        const char *name;
        const char *const *texts;
        size_t count;
    } strings[] = {{"text", text, 1}, {"language", language, 1}, {"segment_text", texts, 2},
                   {"word_text", word_texts, 3}};
    for (size_t i = 0; i < BERTH_COUNT_OF(strings); i++) {
        if (without == NULL || strcmp(strings[i].name, without) != 0) {
            add_bytes(part, strings[i].name, strings[i].texts, strings[i].count);
        }
    }
    return part;
}

static void test_read(void **state)
{
    struct berth_request *request = berth_request_create(slabs, 1 << 16);
    struct berth_part *part = make_part(request, NULL, NULL);
    struct berth_arena arena;
    struct berth_transcript got = {0};
    struct berth_err err = {0};
    berth_arena_init(&arena, 0);
    assert_int_equal(berth_transcript_read(part, slabs, &arena, &got, &err), BERTH_OK);
    assert_string_equal(got.text, "one two three");
    assert_string_equal(got.language, "en");
    assert_true(got.seconds == 4.5);
    assert_int_equal(got.segment_count, 2);
    assert_string_equal(got.segments[0].text, " one\xEF\xBF\xBD");
    assert_int_equal(got.segments[1].seek, 100);
    assert_int_equal(got.segments[1].token_count, 3);
    assert_int_equal(got.segments[1].tokens[0], 3);
    assert_true(got.segments[1].temperature == 0.6);
    assert_int_equal(got.segments[0].word_count, 1);
    assert_int_equal(got.segments[1].word_count, 2);
    assert_string_equal(got.segments[1].words[1].text, " three");
    assert_true(got.segments[1].words[1].probability == 0.7);
    berth_part_destroy(part);
    berth_arena_finish(&arena);
    berth_request_release(request);
}

/* A tensor that is missing, or does not fit the others: an error, not a crash. */
static void test_read_bad(void **state)
{
    static const double one[] = {1};
    static const int32_t negative[] = {-1, 6};
    static const int32_t many[] = {2, 4};
    static const int32_t order[] = {1, 0, 1};
    static const int32_t outside[] = {0, 1, 2};
    static const struct {
        const char *without;
        struct numbers other;
    } cases[LIST_MAX + 6] = {
        {"text", {0}}, {"language", {0}}, {"duration", {0}}, {"segment_text", {0}},
        {"segment_times", {0}}, {"segment_stats", {0}}, {"segment_token_count", {0}},
        {"segment_tokens", {0}}, {"word_text", {0}}, {"word_times", {0}}, {"word_segment", {0}},
        {"text", {"text", BERTH_DTYPE_FP64, 1, 0, one}},
        {"duration", {"duration", BERTH_DTYPE_INT32, 2, 0, many}},
        {"segment_token_count", {"segment_token_count", BERTH_DTYPE_INT32, 2, 0, negative}},
        {"segment_token_count", {"segment_token_count", BERTH_DTYPE_INT32, 2, 0, many}},
        {"word_segment", {"word_segment", BERTH_DTYPE_INT32, 3, 0, order}},
        {"word_segment", {"word_segment", BERTH_DTYPE_INT32, 3, 0, outside}},
        {"word_times", {"word_times", BERTH_DTYPE_FP64, 1, 0, one}},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_request *request = berth_request_create(slabs, 1 << 16);
        struct berth_part *part = make_part(
            request, cases[i].without, cases[i].other.name == NULL ? NULL : &cases[i].other);
        struct berth_arena arena;
        struct berth_transcript got = {0};
        struct berth_err err = {0};
        berth_arena_init(&arena, 0);
        assert_int_equal(berth_transcript_read(part, slabs, &arena, &got, &err), BERTH_INTERNAL);
        assert_null(got.segments);
        berth_part_destroy(part);
        berth_arena_finish(&arena);
        berth_request_release(request);
    }
}

static void test_read_no_memory(void **state)
{
    struct berth_request *request = berth_request_create(slabs, 1 << 16);
    struct berth_part *part = make_part(request, NULL, NULL);
    struct berth_arena arena;
    struct berth_transcript got = {0};
    struct berth_err err = {0};
    berth_arena_init(&arena, 64);
    assert_int_equal(berth_transcript_read(part, slabs, &arena, &got, &err), BERTH_UNAVAILABLE);
    berth_arena_finish(&arena);
    berth_part_destroy(part);
    berth_request_release(request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write),   cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_formats), cmocka_unit_test(test_read),
        cmocka_unit_test(test_read_bad), cmocka_unit_test(test_read_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
