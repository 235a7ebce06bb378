/* The tokenizer: against Hugging Face's tokenizers on tiny.en's vocabulary
 * (tests/data/whisper/make_goldens.py), and on small files, good and bad. */
#include "engine/whisper/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <jansson.h>

#include "base/mem.h"

#define IDS_MAX 1024

static const char *source_path(const char *name, char *path, size_t bytes)
{
    const char *source = getenv("BERTH_SOURCE");
    (void)snprintf(path, bytes, "%s/%s", source == NULL ? "." : source, name);
    return path;
}

static struct berth_tokens *load(const char *name)
{
    char path[1024];
    struct berth_tokens *tokens = NULL;
    struct berth_err err = {0};
    if (berth_tokens_load(source_path(name, path, sizeof(path)), &tokens, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    return tokens;
}

static void check_case(const struct berth_tokens *tokens, const json_t *item)
{
    int32_t ids[IDS_MAX];
    struct berth_buf back = {0};
    const json_t *text = json_object_get(item, "text");
    const json_t *want = json_object_get(item, "ids");
    size_t length = json_string_length(text);
    assert_true(length <= IDS_MAX);
    size_t count = berth_tokens_encode(tokens, json_string_value(text), length, ids);
    for (size_t i = 0; i < count; i++) {
        if (i >= json_array_size(want) ||
            json_integer_value(json_array_get(want, i)) != ids[i]) {
            fail_msg("'%s': token %zu is %d", json_string_value(text), i, ids[i]);
        }
    }
    assert_int_equal(count, json_array_size(want));
    berth_tokens_decode(tokens, ids, count, INT32_MAX, &back);
    assert_true(berth_buf_ok(&back));
    assert_int_equal(back.length, length);
    assert_memory_equal(berth_buf_text(&back), json_string_value(text), length);
    berth_buf_finish(&back);
}

static void test_tiny_en(void **state)
{
    char path[1024];
    static const char file[] = "models/whisper-tiny.en/1/tokenizer.json";
    if (access(source_path(file, path, sizeof(path)), R_OK) != 0) {
        print_message("skipped: no %s (make models)\n", file);
        skip();
    }
    struct berth_tokens *tokens = load(file);
    json_error_t error;
    json_t *cases = json_load_file(
        source_path("tests/data/whisper/tokens_en.json", path, sizeof(path)), JSON_ALLOW_NUL,
        &error);
    assert_non_null(cases);
    assert_true(json_array_size(cases) > 40);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        check_case(tokens, json_array_get(cases, i));
    }
    assert_int_equal(berth_tokens_special(tokens, "<|startoftranscript|>"), 50257);
    assert_int_equal(berth_tokens_special(tokens, "<|nosuch|>"), -1);
    json_decref(cases);
    berth_tokens_destroy(tokens);
}

/* Any bytes go through encode and decode unchanged, and a huge word does not take for ever. */
static void test_bytes(void **state)
{
    struct berth_tokens *tokens = load("tests/models/whisper_scripted/tokenizer.json");
    static char text[8192];
    static int32_t ids[8192];
    struct berth_buf back = {0};
    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = (char)(unsigned char)(i * 37 + i / 256);
    }
    size_t count = berth_tokens_encode(tokens, text, sizeof(text), ids);
    berth_tokens_decode(tokens, ids, count, INT32_MAX, &back);
    assert_int_equal(back.length, sizeof(text));
    assert_memory_equal(berth_buf_text(&back), text, sizeof(text));
    memset(text, 'n', sizeof(text));
    assert_int_equal(berth_tokens_encode(tokens, text, sizeof(text), ids), sizeof(text));
    assert_int_equal(berth_tokens_encode(tokens, text, 0, ids), 0);
    berth_buf_clear(&back);
    int32_t one = ids[0];
    berth_tokens_decode(tokens, &one, 1, one, &back); /* `end` leaves it out */
    assert_int_equal(back.length, 0);
    const char *bytes = NULL;
    assert_int_equal(berth_tokens_piece(tokens, -1, &bytes), 0);
    assert_int_equal(berth_tokens_piece(tokens, INT32_MAX, &bytes), 0);
    berth_buf_finish(&back);
    berth_tokens_destroy(tokens);
}

static void test_utf8(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"plain", "plain"},
        {"\xC3\xA9", "\xC3\xA9"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
        {"\xF0\x9F\x98", "\xEF\xBF\xBD"},                       /* cut: one for the whole start */
        {"a\xF0\x9F\x98z", "a\xEF\xBF\xBDz"},
        {"\x80", "\xEF\xBF\xBD"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},               /* overlong */
        {"\xE0\x80\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* a surrogate */
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xFF", "\xEF\xBF\xBD"},
        {"", ""},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_buf out = {0};
        berth_buf_utf8(&out, cases[i].bytes, strlen(cases[i].bytes));
        assert_string_equal(berth_buf_text(&out), cases[i].text);
        berth_buf_finish(&out);
    }
}

static enum berth_code load_text(const char *text, struct berth_err *err)
{
    char path[] = "/tmp/berth_tokens_XXXXXX";
    struct berth_tokens *tokens = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    enum berth_code code = berth_tokens_load(path, &tokens, err);
    unlink(path);
    if (code == BERTH_OK) {
        berth_tokens_destroy(tokens);
    } else {
        assert_null(tokens);
        assert_true(strlen(err->msg) > 0);
    }
    return code;
}

static void test_bad_files(void **state)
{
    static const struct {
        const char *text;
        enum berth_code code;
    } cases[] = {
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}", BERTH_OK},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}", BERTH_OK},
        {"{\"model\":{\"vocab\":{\"a\":1048575},\"merges\":[]}}", BERTH_OK},
        {"{\"model\":{\"vocab\":{\"a\":1048576},\"merges\":[]}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":-1}}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":\"1\"}}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{}}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":[1,2]}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[3]}}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", BERTH_INVALID},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", BERTH_UNSUPPORTED},
        {"{\"model\":{\"vocab\":{\"a\":0}},\"added_tokens\":[{\"id\":1}]}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0}},\"added_tokens\":[7]}", BERTH_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0}},\"added_tokens\":[{\"id\":1,\"content\":\"<x>\"}]}",
         BERTH_OK},
        {"[]", BERTH_INVALID},
        {"{\"model\":", BERTH_INVALID},
        {"", BERTH_INVALID},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_err err = {0};
        enum berth_code code = load_text(cases[i].text, &err);
        if (code != cases[i].code) {
            fail_msg("%s: %s", cases[i].text, berth_code_name(code));
        }
    }
    struct berth_tokens *tokens = NULL;
    struct berth_err err = {0};
    assert_int_equal(berth_tokens_load("/nonexistent/tokenizer.json", &tokens, &err),
                     BERTH_NOT_FOUND);
}

static void test_no_memory(void **state)
{
    char path[1024];
    uint64_t before = berth_mem_bytes_live();
    source_path("tests/models/whisper_scripted/tokenizer.json", path, sizeof(path));
    for (uint64_t nth = 1; nth < 1000000; nth += 1 + nth / 16) {
        struct berth_tokens *tokens = NULL;
        struct berth_err err = {0};
        berth_mem_fail_at(nth, false);
        enum berth_code code = berth_tokens_load(path, &tokens, &err);
        berth_mem_fail_at(0, false);
        assert_true(code == BERTH_OK || code == BERTH_UNAVAILABLE || code == BERTH_INVALID);
        berth_tokens_destroy(tokens);
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
        cmocka_unit_test(test_tiny_en),   cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_utf8),      cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
