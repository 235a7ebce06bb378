/* Growing, sticky failure, JSON strings, UTF-8. */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"

static void appends_grow_it(void **state)
{
    struct berth_buf buf = {0};
    (void)state;
    assert_string_equal(berth_buf_text(&buf), "");
    for (int i = 0; i < 1000; i++) {
        berth_buf_printf(&buf, "%03d,", i);
    }
    assert_true(berth_buf_ok(&buf));
    assert_int_equal(buf.length, 4000);
    assert_int_equal(strlen(berth_buf_text(&buf)), 4000);
    assert_memory_equal(buf.bytes + 3996, "999,", 5);
    berth_buf_clear(&buf);
    assert_string_equal(berth_buf_text(&buf), "");
    berth_buf_append(&buf, "a\0b", 3);
    berth_buf_append(&buf, NULL, 0);
    assert_int_equal(buf.length, 3);
    assert_memory_equal(buf.bytes, "a\0b", 4);
    berth_buf_clear(&buf);
    berth_buf_printf(&buf, "%0500d", 7); /* longer than the room first tried */
    assert_int_equal(strlen(berth_buf_text(&buf)), 500);
    berth_buf_finish(&buf);
    berth_buf_finish(&buf);
}

static void release_hands_the_bytes_over(void **state)
{
    struct berth_buf buf = {0};
    size_t length = 9;
    (void)state;
    char *empty = berth_buf_release(&buf, &length);
    assert_string_equal(empty, "");
    assert_int_equal(length, 0);
    berth_free(empty);
    berth_buf_puts(&buf, "text");
    char *text = berth_buf_release(&buf, NULL);
    assert_string_equal(text, "text");
    assert_null(buf.bytes);
    berth_free(text);
}

static void failure_sticks(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    (void)state;
    for (uint64_t fail_at = 1; fail_at <= 3; fail_at++) {
        struct berth_buf buf = {0};
        berth_mem_fail_at(fail_at, false);
        for (int i = 0; i < 100; i++) {
            berth_buf_puts(&buf, "some words ");
        }
        berth_buf_printf(&buf, "%d", 1);
        berth_buf_json_string(&buf, "x", 1);
        berth_mem_fail_at(0, false);
        assert_false(berth_buf_ok(&buf));
        assert_null(berth_buf_release(&buf, NULL));
        assert_int_equal(berth_mem_bytes_live(), live);
    }
    struct berth_buf buf = {0};
    berth_buf_puts(&buf, "x");
    berth_buf_reserve(&buf, SIZE_MAX);
    assert_false(berth_buf_ok(&buf));
    berth_buf_finish(&buf);
}

static void json_strings(void **state)
{
    static const struct {
        const char *from;
        size_t length;
        const char *to;
    } cases[] = {
        {"", 0, "\"\""},
        {"plain", 5, "\"plain\""},
        {"say \"hi\" \\ /", 12, "\"say \\\"hi\\\" \\\\ /\""},
        {"\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 9, "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""},
        {"a\xFF\x62", 3, "\"a\xEF\xBF\xBD\x62\""},
        {"\xE2\x82", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"\xC3\"", 2, "\"\xEF\xBF\xBD\\\"\""},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_buf buf = {0};
        berth_buf_json_string(&buf, cases[i].from, cases[i].length);
        assert_string_equal(berth_buf_text(&buf), cases[i].to);
        berth_buf_finish(&buf);
    }
}

static void utf8(void **state)
{
    static const struct {
        const char *text;
        size_t valid;
    } cases[] = {
        {"ascii", 5},          {"", 0},
        {"\xC2\x80", 2},       {"\xDF\xBF", 2},
        {"\xE0\xA0\x80", 3},   {"\xEF\xBF\xBF", 3},
        {"\xED\x9F\xBF", 3},   {"\xEE\x80\x80", 3},
        {"\xF0\x90\x80\x80", 4}, {"\xF4\x8F\xBF\xBF", 4},
        {"x\x80", 1},          {"x\xC1\xBF", 1},
        {"x\xC2", 1},          {"x\xC2\x41", 1},
        {"x\xE0\x9F\xBF", 1},  {"x\xED\xA0\x80", 1},
        {"x\xE2\x82", 1},      {"x\xE2\x82\x41", 1},
        {"x\xF0\x8F\xBF\xBF", 1}, {"x\xF4\x90\x80\x80", 1},
        {"x\xF5\x80\x80\x80", 1}, {"x\xF0\x9F\x98", 1},
        {"x\xFE", 1},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        assert_int_equal(berth_utf8_valid_length(cases[i].text, strlen(cases[i].text)),
                         cases[i].valid);
    }
}

static void trims_white_space(void **state)
{
    static const struct {
        const char *text;
        const char *want;
    } cases[] = {{"", ""},
                 {" \t\r\n\v\f", ""},
                 {"a", "a"},
                 {"  a b\n", "a b"},
                 {"\xC2\xA0x ", "\xC2\xA0x"}};
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        size_t length = strlen(cases[i].text);
        const char *text = berth_text_trim(cases[i].text, &length);
        assert_int_equal(length, strlen(cases[i].want));
        assert_memory_equal(text, cases[i].want, length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_grow_it),
        cmocka_unit_test(release_hands_the_bytes_over),
        cmocka_unit_test(failure_sticks),
        cmocka_unit_test(json_strings),
        cmocka_unit_test(utf8),
        cmocka_unit_test(trims_white_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
