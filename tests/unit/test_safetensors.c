/* Headers of .safetensors files, good and bad: each refusal says which tensor and what. */
#include "engine/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define F32(shape, from, to) \
    "{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"

static void test_good(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":" F32("2,3", 8, 32) ",\"empty\":" F32(
            "0,7", 8,
            8) ","
               "\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
               "\"c\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[32,34]}}  ";
    struct berth_safetensors *file = NULL;
    struct berth_err err = {0};
    if (berth_safetensors_parse(header, strlen(header), 34, &file, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    static const char *const order[] = {"a", "empty", "b", "c"};
    assert_int_equal(berth_safetensors_count(file), 4);
    for (size_t i = 0; i < 4; i++) {
        const struct berth_safetensor *tensor = berth_safetensors_at(file, i);
        assert_string_equal(tensor->name, order[i]);
        assert_ptr_equal(berth_safetensors_find(file, order[i]), tensor);
    }
    assert_null(berth_safetensors_at(file, 4));
    assert_null(berth_safetensors_find(file, "__metadata__"));
    const struct berth_safetensor *b = berth_safetensors_find(file, "b");
    assert_int_equal(b->dtype, BERTH_DTYPE_FP32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->dims[1], 3);
    assert_int_equal(b->bytes, 24);
    assert_int_equal(b->offset, 8 + strlen(header) + 8);
    assert_int_equal(berth_safetensors_fd(file), -1);
    berth_safetensors_close(file);
    berth_safetensors_close(NULL);
}

static const struct {
    const char *header;
    uint64_t data_bytes;
    const char *text; /* in the error's; NULL: it is good */
} cases[] = {
    {"{\"a\":" F32("1", 0, 4) "}", 4, NULL},
    {"", 0, "not JSON"},
    {"[]", 0, "no JSON object"},
    {"{}", 0, "no tensor in it"},
    {"{\"__metadata__\":{}}", 0, "no tensor in it"},
    {"{\"a\":" F32("1", 0, 4) "}x", 4, "not JSON"},
    {"{\"a\":" F32("1", 0, 4) ",\"a\":" F32("1", 4, 8) "}", 8, "not JSON"},
    {"{\"a\\u0000b\":" F32("1", 0, 4) "}", 4, "not JSON"},
    {"{\"a\":7}", 0, "'a' is no JSON object"},
    {"{\"a\":" F32("1", 0, 4) "}", 3, "truncated or overlong: the tensors have 4 bytes"},
    {"{\"a\":" F32("1", 0, 4) "}", 5, "truncated or overlong"},
    {"{\"a\":" F32("1", 4, 8) "}", 8, "'a' does not begin where the header ends"},
    {"{\"a\":" F32("1", 0, 4) ",\"b\":" F32("1", 0, 4) "}", 4,
     "'b' does not begin where 'a' before it ends"},
    {"{\"a\":" F32("2", 0, 8) ",\"b\":" F32("1", 4, 8) "}", 8, "'b' does not begin"},
    {"{\"a\":" F32("1", 0, 4) ",\"b\":" F32("1", 8, 12) "}", 12, "'b' does not begin"},
    {"{\"a\":" F32("2", 0, 4) "}", 4, "its shape has 8 bytes, its data_offsets 4"},
    {"{\"a\":" F32("1", 4, 0) "}", 4, "data_offsets are not [begin, end]"},
    {"{\"a\":" F32("1", -4, 0) "}", 4, "data_offsets are not [begin, end]"},
    {"{\"a\":" F32("1", 0, 4.0) "}", 4, "data_offsets are not [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8, "data_offsets are"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets are not"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'a': shape is no list"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a' has the unknown type ''"},
    {"{\"a\":{\"dtype\":\"Q4\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown type 'Q4'"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "'F8_E4M3'"},
    {"{\"a\":" F32("-1", 0, 4) "}", 4, "dimension 0 of its shape is no size"},
    {"{\"a\":" F32("1,\"1\"", 0, 4) "}", 4, "dimension 1 of its shape is no size"},
    {"{\"a\":" F32("4294967296,4294967296", 0, 4) "}", 4, "dimension 1 of its shape"},
    {"{\"a\":" F32("9223372036854775807,9223372036854775807,0", 0, 0) "}", 0, "dimension 0 of"},
    {"{\"a\":" F32("1", 0, 9223372036854775807) "}", 4, "its data_offsets 9223372036854775807"},
    {"{\"a\":" F32("1", 0, 9223372036854775808) "}", 4, "not JSON"},
    {"{\"a\":" F32("1,1,1,1,1,1,1,1", 0, 4) "}", 4, NULL},
    {"{\"a\":" F32("1,1,1,1,1,1,1,1,1", 0, 4) "}", 4, "at most 8 numbers"},
};

static void test_headers(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_safetensors *file = NULL;
        struct berth_err err = {0};
        size_t length = strlen(cases[i].header);
        enum berth_code code = berth_safetensors_parse(cases[i].header, length, cases[i].data_bytes,
                                                       &file, &err);
        berth_safetensors_close(file);
        if ((code == BERTH_OK) != (cases[i].text == NULL) ||
            (cases[i].text != NULL && strstr(err.msg, cases[i].text) == NULL)) {
            fail_msg("%s: %s", cases[i].header, err.msg);
        }
    }
}

static void test_files(void **state)
{
    static const struct {
        uint64_t length; /* as the file says */
        const char *rest;
        enum berth_code code;
        const char *text;
    } files[] = {
        {54, "{\"a\":" F32("1", 0, 4) "}1234", BERTH_OK, NULL},
        {54, "{\"a\":" F32("1", 0, 4) "}123", BERTH_INVALID, "truncated or overlong"},
        {54, "{\"a\":" F32("1", 0, 4) "}12345", BERTH_INVALID, "truncated or overlong"},
        {54, "{\"a\":", BERTH_INVALID, "truncated: a header of 54 bytes in a file of 13"},
        {UINT64_MAX, "{", BERTH_TOO_LARGE, "is longer than the 16777216 that are read"},
        {BERTH_SAFETENSORS_HEADER_MAX + 1, "{", BERTH_TOO_LARGE, "is longer than"},
        {BERTH_SAFETENSORS_HEADER_MAX, "{", BERTH_INVALID, "truncated"},
        {0, "", BERTH_INVALID, "not JSON"},
    };
    assert_int_equal(strlen("{\"a\":" F32("1", 0, 4) "}"), 54);
    char path[] = "/tmp/berth-safetensors-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (size_t i = 0; i < BERTH_COUNT_OF(files); i++) {
        struct berth_safetensors *file = NULL;
        struct berth_err err = {0};
        size_t rest = strlen(files[i].rest);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, &files[i].length, 8, 0), 8);
        assert_int_equal(pwrite(fd, files[i].rest, rest, 8), rest);
        enum berth_code code = berth_safetensors_open(path, &file, &err);
        if (code != files[i].code || (code != BERTH_OK && (strstr(err.msg, files[i].text) == NULL ||
                                                           strstr(err.msg, path) == NULL))) {
            fail_msg("%zu: %s", i, err.msg);
        }
        assert_int_equal(code == BERTH_OK && berth_safetensors_fd(file) < 0, 0);
        berth_safetensors_close(file);
    }
    struct berth_safetensors *file = NULL;
    struct berth_err err = {0};
    assert_int_equal(ftruncate(fd, 7), 0);
    assert_int_equal(berth_safetensors_open(path, &file, &err), BERTH_INVALID);
    assert_non_null(strstr(err.msg, "7 bytes are too few"));
    close(fd);
    unlink(path);
    assert_int_equal(berth_safetensors_open(path, &file, &err), BERTH_NOT_FOUND);
    assert_int_equal(berth_safetensors_open("/tmp", &file, &err), BERTH_INVALID);
}

static void test_memory(void **state)
{
    static const char header[] = "{\"a\":" F32("1", 0, 4) ",\"b\":" F32("1", 4, 8) "}";
    for (uint64_t at = 1;; at++) {
        struct berth_safetensors *file = NULL;
        struct berth_err err = {0};
        uint64_t live = berth_mem_bytes_live();
        berth_mem_fail_at(at, true);
        enum berth_code code = berth_safetensors_parse(header, strlen(header), 8, &file, &err);
        berth_mem_fail_at(0, false);
        berth_safetensors_close(file);
        assert_int_equal(berth_mem_bytes_live(), live);
        if (code == BERTH_OK) {
            break;
        }
        assert_int_equal(code, BERTH_UNAVAILABLE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
