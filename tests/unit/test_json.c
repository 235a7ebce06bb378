/* Reading JSON with each allocation failing: the text as it is, or UNAVAILABLE. */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"

/* Longer than jansson's buffers at first, with more nodes than our lists have at first. */
static const char text[] =
    "{\"a key that is longer than jansson's first buffer\": 12345678901234567890.5, "
    "\"short\": [true, null, \"a string, as long as the key that was before it\"], "
    "\"list\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,"
    "29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56]}";

static void test_codes(void **state)
{
    json_t *root = NULL;
    json_error_t where;
    (void)state;
    assert_int_equal(berth_json_read("{\"a\": 1", 7, 0, &root, &where), BERTH_INVALID);
    assert_null(root);
    assert_string_not_equal(where.text, "");
    assert_int_equal(berth_json_read("{\"a\": 1}", 8, 0, &root, &where), BERTH_OK);
    assert_int_equal(json_integer_value(json_object_get(root, "a")), 1);
    json_decref(root);
}

/* A NUL would cut what is a C string here: it is refused, and where it is, is said. */
static void test_nul(void **state)
{
    static const struct {
        const char *text;
        const char *what;
    } cases[] = {
        {"{\"a\":\"b\\u0000c\"}", "a NUL in the text of 'a'"},
        {"{\"a\":{\"b\":[1,[\"x\",\"\\u0000\"]]}}", "a NUL in the text of 'a.b[1][1]'"},
        {"{\"a\":1,\"b\\u0000\":2}", "a NUL in the text of 'b\\u0000'"},
        {"{\"a\":[{\"\\u0000\":{}}]}", "a NUL in the text of 'a[0].\\u0000'"},
        {"[\"\\u0000\"]", "a NUL in the text of '[0]'"},
    };
    json_t *root = NULL;
    json_error_t where;
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        for (size_t flags = 0; flags < 2; flags++) {
            assert_int_equal(berth_json_read(cases[i].text, strlen(cases[i].text),
                                             flags == 0 ? 0 : JSON_ALLOW_NUL, &root, &where),
                             BERTH_INVALID);
            assert_null(root);
            assert_string_equal(where.text, cases[i].what);
        }
    }
    assert_int_equal(berth_json_read("{\"a\":\"\0\"}", 9, 0, &root, &where), BERTH_INVALID);
    assert_int_equal(berth_json_read("[\"\\\\u0000\"]", 11, 0, &root, &where), BERTH_OK);
    json_decref(root); /* that is a backslash, and no escape */
}

static void test_freed_by_others(void **state)
{
    json_t *root = NULL;
    json_error_t where;
    (void)state;
    json_t *before = json_pack("{s:[i,s]}", "a", 1, "b");
    assert_int_equal(berth_json_read(text, strlen(text), 0, &root, &where), BERTH_OK);
    json_t *after = json_object();
    assert_int_equal(json_object_set_new(after, "x", root), 0);
    assert_int_equal(json_object_set_new(after, "y", before), 0);
    char *printed = json_dumps(after, 0);
    assert_non_null(printed);
    free(printed); /* lib-owned */
    json_decref(after);
}

static void test_each_allocation_failing(void **state)
{
    json_t *whole = NULL;
    json_error_t where;
    (void)state;
    assert_int_equal(berth_json_read(text, strlen(text), 0, &whole, &where), BERTH_OK);
    for (int sticky = 0; sticky < 2; sticky++) {
        enum berth_code code = BERTH_UNAVAILABLE;
        for (uint64_t n = 1; code == BERTH_UNAVAILABLE; n++) {
            json_t *root = NULL;
            berth_mem_fail_at(n, sticky != 0);
            code = berth_json_read(text, strlen(text), 0, &root, &where);
            berth_mem_fail_at(0, false);
            assert_true((code == BERTH_OK) == (root != NULL));
            assert_true(code == BERTH_UNAVAILABLE || json_equal(root, whole));
            json_decref(root);
        }
        assert_int_equal(code, BERTH_OK);
    }
    json_decref(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_freed_by_others),
        cmocka_unit_test(test_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
