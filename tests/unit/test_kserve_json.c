/* KServe's JSON form of tensors: numbers within their types, doubles as Triton prints them, and
 * what JSON cannot tell. */
#include "api/kserve_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"

static void data_is_read_into_its_type(void **state)
{
    static const struct {
        enum berth_dtype dtype;
        const char *json;
        enum berth_code code;
        size_t count;
    } cases[] = {
        {BERTH_DTYPE_INT8, "[-128, 127]", BERTH_OK, 2},
        {BERTH_DTYPE_INT8, "[128]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT8, "[-129]", BERTH_INVALID, 0},
        {BERTH_DTYPE_UINT8, "[[0], [255]]", BERTH_OK, 2},
        {BERTH_DTYPE_UINT8, "[256]", BERTH_INVALID, 0},
        {BERTH_DTYPE_UINT8, "[-1]", BERTH_INVALID, 0},
        {BERTH_DTYPE_UINT32, "[4294967295]", BERTH_OK, 1},
        {BERTH_DTYPE_UINT32, "[4294967296]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT32, "[1.0]", BERTH_INVALID, 0},
        {BERTH_DTYPE_FP32, "[1, -2.5, 1e3]", BERTH_OK, 3},
        {BERTH_DTYPE_FP64, "[\"1\"]", BERTH_INVALID, 0},
        {BERTH_DTYPE_FP32, "[1e39]", BERTH_INVALID, 0},
        {BERTH_DTYPE_FP64, "[1e39, 1e308]", BERTH_OK, 2},
        {BERTH_DTYPE_FP64, "[1e309]", BERTH_INVALID, 0},
        {BERTH_DTYPE_UINT64, "[18446744073709551615]", BERTH_OK, 1},
        {BERTH_DTYPE_UINT64, "[18446744073709551616]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT64, "[-9223372036854775808, 9223372036854775807]", BERTH_OK, 2},
        {BERTH_DTYPE_INT64, "[9223372036854775808]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT64, "[-9223372036854775809]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT8, "[-0]", BERTH_OK, 1},
        {BERTH_DTYPE_BOOL, "[true, 0]", BERTH_OK, 2},
        {BERTH_DTYPE_BOOL, "[\"true\"]", BERTH_INVALID, 0},
        {BERTH_DTYPE_BYTES, "[\"ab\", \"\"]", BERTH_OK, 2},
        {BERTH_DTYPE_BYTES, "[1]", BERTH_INVALID, 0},
        {BERTH_DTYPE_FP16, "[1]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT64, "[{}]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT64, "[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]", BERTH_INVALID, 0},
        {BERTH_DTYPE_INT64, "[]", BERTH_OK, 0},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_buf bytes = {0};
        struct berth_err err = {0};
        size_t count = 0;
        struct berth_json_value items;
        const char *what;
        size_t position;
        assert_int_equal(berth_json_check(cases[i].json, strlen(cases[i].json), &items, &what,
                                          &position),
                         BERTH_OK);
        enum berth_code code =
            berth_kserve_read_data(&items, cases[i].dtype, &bytes, &count, &err);
        assert_int_equal(code, cases[i].code);
        if (code == BERTH_OK) {
            assert_int_equal(count, cases[i].count);
        }
        berth_buf_finish(&bytes);
    }
}

static void doubles_read_back(void **state)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-2.5, "-2.5"},
        {0.1, "0.1"},
        {0.1f, "0.10000000149011612"},
        {1e20, "100000000000000000000.0"},
        {1e21, "1e21"},
        {1.5e-7, "1.5e-7"},
        {0.0000015, "0.0000015"},
        {1.7976931348623157e308, "1.7976931348623157e308"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_buf text = {0};
        berth_kserve_put_double(&text, cases[i].value);
        assert_string_equal(berth_buf_text(&text), cases[i].text);
        berth_buf_finish(&text);
    }
}

static void what_json_cannot_tell_is_refused(void **state)
{
#define STRINGS(text) (text), sizeof(text) - 1
    static const struct {
        enum berth_dtype dtype;
        int64_t count;
        const char *bytes; /* of a BYTES tensor */
        size_t length;
        enum berth_code code;
    } cases[] = {
        {BERTH_DTYPE_FP32, 0, STRINGS(""), BERTH_OK},
        {BERTH_DTYPE_FP16, 0, STRINGS(""), BERTH_INVALID},
        {BERTH_DTYPE_BF16, 0, STRINGS(""), BERTH_INVALID},
        {BERTH_DTYPE_BYTES, 0, STRINGS(""), BERTH_OK},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\0\0\0\0"), BERTH_OK},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\3\0\0\0h\xC3\xA9"), BERTH_OK},
        {BERTH_DTYPE_BYTES, 2, STRINGS("\1\0\0\0a\0\0\0\0"), BERTH_OK},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\1\0\0\0\xFF"), BERTH_INVALID},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\2\0\0\0a\xC3"), BERTH_INVALID},
        /* Not the strings that its shape says: a model's fault. */
        {BERTH_DTYPE_BYTES, 1, STRINGS(""), BERTH_INTERNAL},
        {BERTH_DTYPE_BYTES, 0, STRINGS("\0\0\0\0"), BERTH_INTERNAL},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\0\0\0\0\0\0\0\0"), BERTH_INTERNAL},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\2\0\0\0a"), BERTH_INTERNAL},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\xFF\xFF\xFF\xFF" "a"), BERTH_INTERNAL},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\1\0\0\0ab"), BERTH_INTERNAL},
        {BERTH_DTYPE_BYTES, 1, STRINGS("\1\0\0"), BERTH_INTERNAL},
    };
    struct berth_slabs *slabs = NULL;
    struct berth_slabs_options options = {.bytes_budget = 1 << 20};
    struct berth_err err = {0};
    (void)state;
    assert_int_equal(berth_slabs_create(&options, &slabs, &err), BERTH_OK);
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_tensor tensor = {
            .name = "OUT", .dtype = cases[i].dtype, .rank = 1, .dims = {cases[i].count}};
        if (cases[i].length > 0) {
            assert_int_equal(berth_slabs_take(slabs, cases[i].length, &tensor.range, &err),
                             BERTH_OK);
            memcpy(berth_slabs_pointer(slabs, &tensor.range), cases[i].bytes, cases[i].length);
        }
        assert_int_equal(berth_kserve_check_json(&tensor, slabs, &err), cases[i].code);
        if (cases[i].code != BERTH_OK) {
            assert_non_null(strstr(err.msg, "OUT"));
        }
        berth_slabs_give(slabs, &tensor.range);
    }
    berth_slabs_destroy(slabs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_read_into_its_type),
        cmocka_unit_test(doubles_read_back),
        cmocka_unit_test(what_json_cannot_tell_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
