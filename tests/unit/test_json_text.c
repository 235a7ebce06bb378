/* JSON read in place: what the grammar lets through, what a walk finds, and the same verdicts and
 * values as Jansson on texts that were broken at random. BERTH_SEED=N starts elsewhere. */
#include "base/json_text.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static enum berth_code check(const char *text, size_t length, struct berth_json_value *root)
{
    const char *what = NULL;
    size_t position = 0;
    enum berth_code code = berth_json_check(text, length, root, &what, &position);
    if (code != BERTH_OK) {
        assert_non_null(what);
        assert_true(position <= length);
    }
    return code;
}

static void texts_are_judged(void **state)
{
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"{}", true},
        {" [ ] ", true},
        {"[1,2.5e-3,-0,\"a\\u00e9\\ud83d\\ude00\",true,null]", true},
        {"{\"a\":{\"b\":[{}]}}", true},
        {"\"\"", true},
        {"0", true},
        {"-1.5E+2", true},
        {"", false},
        {" ", false},
        {"{", false},
        {"[1,]", false},
        {"[,1]", false},
        {"{\"a\"}", false},
        {"{\"a\":}", false},
        {"{\"a\":1,}", false},
        {"{a:1}", false},
        {"[1 2]", false},
        {"01", false},
        {"1.", false},
        {".5", false},
        {"-", false},
        {"1e", false},
        {"+1", false},
        {"nul", false},
        {"truex", false},
        {"\"", false},
        {"\"\\x\"", false},
        {"\"\\u12g4\"", false},
        {"\"\\ud800\"", false},
        {"\"\\ud800\\u0041\"", false},
        {"\"\\udc00\"", false},
        {"\"\x01\"", false},
        {"\"\xff\"", false},
        {"\"\xc3\xa9\"", true},
        {"\"\xed\xa0\x80\"", false},
        {"[] []", false},
        {"NaN", false},
        {"[Infinity]", false},
        {"\"\\u0000\"", true},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_json_value root;
        enum berth_code code = check(cases[i].text, strlen(cases[i].text), &root);
        if ((code == BERTH_OK) != cases[i].good) {
            fail_msg("%s: %d", cases[i].text, (int)code);
        }
    }
}

static void depth_and_length_have_limits(void **state)
{
    char text[2 * BERTH_JSON_NUMBER_MAX + 8];
    struct berth_json_value root;
    (void)state;
    for (size_t depth = BERTH_JSON_DEPTH_MAX - 1; depth < BERTH_JSON_DEPTH_MAX + 2; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(check(text, 2 * depth, &root),
                         depth <= BERTH_JSON_DEPTH_MAX ? BERTH_OK : BERTH_INVALID);
    }
    for (size_t digits = BERTH_JSON_NUMBER_MAX; digits < BERTH_JSON_NUMBER_MAX + 2; digits++) {
        memset(text, '1', digits);
        double value;
        enum berth_code code = check(text, digits, &root);
        assert_int_equal(code, digits == BERTH_JSON_NUMBER_MAX ? BERTH_OK : BERTH_INVALID);
        if (code == BERTH_OK) {
            assert_false(berth_json_double(&root, &value));
        }
    }
}

static void a_nul_is_found(void **state)
{
    static const struct {
        const char *text;
        const char *path; /* NULL: there is none */
        size_t bytes;     /* of room for it */
    } cases[] = {
        {"{\"a\":\"b\",\"c\":[\"\\u0001\",{\"d\\n\":\"\\ud83d\\ude00\"}]}", NULL, 20},
        {"\"\\\\u0000\"", NULL, 20},
        {"\"\\u00000\"", "", 20},
        {"\"a\\n\\u0000\"", "", 1},
        {"{\"a\":{\"x\":[]},\"c\":[[1,{\"d\":\"\\u0000\"}]]}", "c[0][1].d", 20},
        {"{\"a\":{\"x\":[]},\"c\":[[1,{\"d\":\"\\u0000\"}]]}", "c[0][1].", 9},
        {"{\"a\":{\"x\":[]},\"c\":[[1,{\"d\":\"\\u0000\"}]]}", "c[0]", 5},
        {"{\"a\":{\"x\":[]},\"c\":[[1,{\"d\":\"\\u0000\"}]]}", "", 1},
        {"[{},{\"\\u0000\":1}]", "[1].\\u0000", 20},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_json_value root;
        char path[20];
        assert_int_equal(check(cases[i].text, strlen(cases[i].text), &root), BERTH_OK);
        assert_int_equal(berth_json_find_nul(&root, path, cases[i].bytes), cases[i].path != NULL);
        if (cases[i].path != NULL) {
            assert_string_equal(path, cases[i].path);
        }
        if (root.kind == BERTH_JSON_STRING) {
            assert_int_equal(berth_json_has_nul(&root), cases[i].path != NULL);
        }
    }
    char deep[2 * BERTH_JSON_DEPTH_MAX + 10];
    struct berth_json_value root;
    char path[10];
    memset(deep, '[', BERTH_JSON_DEPTH_MAX);
    memcpy(deep + BERTH_JSON_DEPTH_MAX, "\"\\u0000\"", 8);
    memset(deep + BERTH_JSON_DEPTH_MAX + 8, ']', BERTH_JSON_DEPTH_MAX);
    assert_int_equal(check(deep, 2 * BERTH_JSON_DEPTH_MAX + 8, &root), BERTH_OK);
    assert_true(berth_json_find_nul(&root, path, sizeof(path)));
    assert_string_equal(path, "[0][0][0]");
}

static void members_are_found(void **state)
{
    static const char text[] =
        " { \"a\" : 1 , \"\\u0062\":[ \"x\\\"]\" , {} ],\"a\":-2, \"c\":\"\\u00e9\\n\" }";
    static const char *const names[] = {"a", "b", "c", "d"};
    struct berth_json_value root, found[4], item;
    struct berth_arena arena;
    int64_t number = 0;
    uint64_t natural;
    (void)state;
    assert_int_equal(check(text, strlen(text), &root), BERTH_OK);
    assert_int_equal(berth_json_count(&root), 4);
    berth_json_members(&root, names, 4, found);
    assert_true(berth_json_int64(&found[0], &number));
    assert_int_equal(number, -2); /* the last one named so */
    assert_false(berth_json_uint64(&found[0], &natural));
    assert_int_equal(found[1].kind, BERTH_JSON_ARRAY);
    assert_int_equal(berth_json_count(&found[1]), 2);
    struct berth_json_walk walk = berth_json_walk(&found[1]);
    assert_true(berth_json_next(&walk, NULL, &item));
    assert_true(berth_json_equals(&item, "x\"]"));
    assert_true(berth_json_next(&walk, NULL, &item));
    assert_int_equal(item.kind, BERTH_JSON_OBJECT);
    assert_int_equal(berth_json_count(&item), 0);
    assert_false(berth_json_next(&walk, NULL, &item));
    berth_arena_init(&arena, 4096);
    assert_string_equal(berth_json_string_dup(&found[2], &arena), "\xc3\xa9\n");
    berth_arena_finish(&arena);
    assert_int_equal(found[3].kind, BERTH_JSON_NONE);
    assert_int_equal(berth_json_count(&found[3]), 0);
    berth_json_members(&found[3], names, 4, found);
    assert_int_equal(found[0].kind, BERTH_JSON_NONE);
}

/* Everything a walk finds is what Jansson found. */
static void compare(const struct berth_json_value *value, const json_t *expected)
{
    struct berth_json_value key, item;
    struct berth_json_walk walk = berth_json_walk(value);
    int64_t integer;
    double real;
    switch (json_typeof(expected)) {
    case JSON_NULL:
        assert_int_equal(value->kind, BERTH_JSON_NULL);
        break;
    case JSON_TRUE:
        assert_int_equal(value->kind, BERTH_JSON_TRUE);
        break;
    case JSON_FALSE:
        assert_int_equal(value->kind, BERTH_JSON_FALSE);
        break;
    case JSON_INTEGER:
        assert_true(berth_json_int64(value, &integer));
        assert_int_equal(integer, json_integer_value(expected));
        break;
    case JSON_REAL:
        assert_int_equal(value->kind, BERTH_JSON_REAL);
        assert_true(berth_json_double(value, &real));
        assert_true(real == json_real_value(expected));
        break;
    case JSON_STRING: {
        char *copy = malloc(json_string_length(expected) + 1);
        assert_int_equal(value->kind, BERTH_JSON_STRING);
        assert_int_equal(berth_json_string_length(value), json_string_length(expected));
        berth_json_string_copy(value, copy);
        assert_memory_equal(copy, json_string_value(expected), json_string_length(expected));
        free(copy);
        break;
    }
    case JSON_ARRAY:
        assert_int_equal(berth_json_count(value), json_array_size(expected));
        for (size_t i = 0; berth_json_next(&walk, NULL, &item); i++) {
            compare(&item, json_array_get(expected, i));
        }
        break;
    case JSON_OBJECT:
        while (berth_json_next(&walk, &key, &item)) {
            char name[256] = "";
            assert_true(berth_json_string_length(&key) < sizeof(name));
            berth_json_string_copy(&key, name);
            const char *names[] = {name};
            struct berth_json_value last;
            berth_json_members(value, names, 1, &last);
            if (strlen(name) == berth_json_string_length(&key)) {
                compare(&last, json_object_get(expected, name));
            }
        }
        break;
    default:
        fail();
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Ours lets integers and reals of any size stand until somebody wants their value. */
static bool too_big(const json_error_t *error)
{
    return strstr(error->text, "too big") != NULL || strstr(error->text, "overflow") != NULL;
}

static void jansson_agrees_on_broken_texts(void **state)
{
    static const char *const seeds[] = {
        ("{\"id\":\"3\",\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1,16],\"datatype\":\"FP32\","
         "\"data\":[1,-2.5,3e2,0.1]}],\"parameters\":{\"binary_data_output\":true,\"x\":null}}"),
        "[\"\\u00e9\\ud83d\\ude00\\\\\\n\",{\"a\":{\"a\":[]},\"b\":false},[[[]]],-0,1e-7]",
        " { \"k\" : \"caf\xc3\xa9 \xf0\x9f\x98\x80\" } ",
    };
    static const char alphabet[] = "{}[]\",:\\u0dD8eE+-.19 tfn\xc3\xa9\xff\n";
    const char *start = getenv("BERTH_SEED");
    uint64_t random = start == NULL ? 1 : strtoull(start, NULL, 10);
    size_t agreed[2] = {0};
    (void)state;
    for (size_t round = 0; round < 200000; round++) {
        char text[256];
        const char *seed = seeds[next_random(&random) % BERTH_COUNT_OF(seeds)];
        size_t length = strlen(seed);
        memcpy(text, seed, length);
        for (size_t i = next_random(&random) % 4; i > 0; i--) {
            size_t at = next_random(&random) % length;
            if (next_random(&random) % 3 == 0) {
                memmove(text + at, text + at + 1, --length - at);
            } else {
                text[at] = alphabet[next_random(&random) % (sizeof(alphabet) - 1)];
            }
        }
        struct berth_json_value root;
        json_error_t error;
        json_t *expected = json_loadb(text, length, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
        char *exact = malloc(length); /* so that a sanitizer sees a read past its end */
        memcpy(exact, text, length);
        enum berth_code code = check(exact, length, &root);
        if ((code == BERTH_OK) != (expected != NULL) && !too_big(&error)) {
            fail_msg("%.*s: %d, Jansson: %s", (int)length, text, (int)code, error.text);
        }
        if (expected != NULL) {
            compare(&root, expected);
        }
        agreed[expected != NULL]++;
        json_decref(expected);
        free(exact);
    }
    assert_true(agreed[0] > 1000 && agreed[1] > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_judged),
        cmocka_unit_test(depth_and_length_have_limits),
        cmocka_unit_test(a_nul_is_found),
        cmocka_unit_test(members_are_found),
        cmocka_unit_test(jansson_agrees_on_broken_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
