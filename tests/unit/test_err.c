/* Error table, messages: cut, cleaned, and made from their own error. */
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"

static void table_tells_every_code(void **state)
{
    (void)state;
    assert_string_equal(berth_code_name(BERTH_OK), "OK");
    assert_string_equal(berth_code_name(BERTH_DEADLINE), "DEADLINE");
    assert_int_equal(berth_code_http(BERTH_BUSY), 429);
    assert_int_equal(berth_code_grpc(BERTH_UNAVAILABLE), 14);
    for (int i = 1; i < BERTH_CODE_COUNT; i++) {
        enum berth_code code = (enum berth_code)i;
        assert_true(berth_code_http(code) >= 400 && berth_code_http(code) < 600);
        assert_true(berth_code_grpc(code) > 0 && berth_code_grpc(code) <= 16);
        assert_true(strlen(berth_code_text(code)) > 0);
    }
}

static void fail_fills_everything_in(void **state)
{
    struct berth_err err = {.retry_after_ms = 7};
    (void)state;
    assert_int_equal(berth_fail_field(&err, BERTH_MEDIA, "file", "%d things", 3), BERTH_MEDIA);
    assert_int_equal(err.code, BERTH_MEDIA);
    assert_string_equal(err.msg, "3 things");
    assert_string_equal(err.field, "file");
    assert_int_equal(err.retry_after_ms, 0);
    assert_true(err.line > 0 && err.file != NULL);
    assert_int_equal(berth_fail(NULL, BERTH_BUSY, "nobody listens"), BERTH_BUSY);
    berth_fail(&err, BERTH_INVALID, "model: %s", err.msg);
    assert_string_equal(err.msg, "model: 3 things");
    assert_null(err.field);
}

static void messages_are_valid_utf8(void **state)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"plain", "plain"},
        {"\xC3\xA9t\xC3\xA9", "\xC3\xA9t\xC3\xA9"},
        {"a\xFFz", "a?z"},
        {"a\xC3", "a?"},
        {"\xED\xA0\x80", "???"},
    };
    struct berth_err err;
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        berth_fail(&err, BERTH_INVALID, "%s", cases[i].from);
        assert_string_equal(err.msg, cases[i].to);
    }
}

static void long_messages_are_cut_between_characters(void **state)
{
    static const char *const characters[] = {"x", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(characters); i++) {
        for (size_t pad = 0; pad < 4; pad++) {
            struct berth_err err;
            struct berth_buf text = {0};
            for (size_t n = 0; n < 300; n++) {
                berth_buf_puts(&text, n < pad ? "." : characters[i]);
            }
            berth_fail(&err, BERTH_INVALID, "%s", berth_buf_text(&text));
            size_t length = strlen(err.msg);
            assert_int_equal(berth_utf8_valid_length(err.msg, length), length);
            assert_true(length > sizeof(err.msg) - 5);
            assert_null(strchr(err.msg, '?'));
            berth_buf_finish(&text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_tells_every_code),
        cmocka_unit_test(fail_fills_everything_in),
        cmocka_unit_test(messages_are_valid_utf8),
        cmocka_unit_test(long_messages_are_cut_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
