/* test_multipart.c - forms: what is taken, what is refused, and that no cut makes a difference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/multipart.h"

#define TYPE "multipart/form-data; boundary=B"
#define PART(name) "Content-Disposition: form-data; name=\"" name "\"\r\n\r\n"

static void test_content_types(void **state)
{
    static const struct {
        const char *type;
        const char *delimiter; /* NULL: refused */
    } cases[] = {
        {"multipart/form-data; boundary=abc", "\r\n--abc"},
        {"Multipart/Form-Data;boundary=abc", "\r\n--abc"},
        {"multipart/form-data ; charset=utf-8 ; Boundary=\"a b\"", "\r\n--a b"},
        {"multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxk",
         "\r\n------WebKitFormBoundary7MA4YWxk"},
        {"multipart/form-data; boundary=a; other=\"x;boundary=y\"", "\r\n--a"},
        {"multipart/form-data; boundary='()+_,-./:=?", "\r\n--'()+_,-./:=?"},
        {NULL, NULL},
        {"", NULL},
        {"multipart/form-data", NULL},
        {"multipart/form-data; boundary=", NULL},
        {"multipart/form-data; boundary=\"\"", NULL},
        {"multipart/form-data; boundary=\"a", NULL},
        {"multipart/form-data; boundary=a; boundary=b", NULL},
        {"multipart/form-data; boundary=\"a \"", NULL},
        {"multipart/form-data; boundary=a\xc3\xa9", NULL},
        {"multipart/form-data; boundary=a*b", NULL},
        {"multipart/form-data boundary=a", NULL},
        {"multipart/form-data; boundary", NULL},
        {"multipart/form-datax; boundary=a", NULL},
        {"multipart/mixed; boundary=a", NULL},
        {"application/json", NULL},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_multipart parser;
        struct berth_err err;
        enum berth_code code = berth_multipart_init(&parser, cases[i].type, &err);
        if ((code == BERTH_OK) != (cases[i].delimiter != NULL)) {
            fail_msg("%s", cases[i].type);
        }
        if (code == BERTH_OK) {
            assert_int_equal(parser.delimiter_length, strlen(cases[i].delimiter));
            assert_memory_equal(parser.delimiter, cases[i].delimiter, parser.delimiter_length);
        } else {
            assert_string_equal(err.field, "Content-Type");
        }
    }
    for (size_t length = 70; length <= 71; length++) { /* at the limit, one past it */
        struct berth_multipart parser;
        char type[128];
        memset(type, 'b', sizeof(type));
        memcpy(type, "multipart/form-data; boundary=", 30);
        type[30 + length] = '\0';
        assert_int_equal(berth_multipart_init(&parser, type, NULL),
                         length == 70 ? BERTH_OK : BERTH_INVALID);
        memcpy(type + 30 + length, "; x=y", 6); /* what is wrong stays wrong */
        assert_int_equal(berth_multipart_init(&parser, type, NULL),
                         length == 70 ? BERTH_OK : BERTH_INVALID);
    }
}

/* Feeds in pieces of at most `step` bytes, the first one `first`. */
static enum berth_code parse(struct berth_multipart *parser, const char *bytes, size_t length,
                             size_t first, size_t step)
{
    struct berth_err err;
    assert_int_equal(berth_multipart_init(parser, TYPE, &err), BERTH_OK);
    for (size_t there = first;; there += step) {
        there = there < length ? there : length;
        char *copy = malloc(there + 1); /* so that a look past the end is seen */
        memcpy(copy, bytes, there);
        enum berth_code code = berth_multipart_feed(parser, copy, there, &err);
        free(copy);
        if (code != BERTH_OK) {
            return code;
        }
        if (there == length) {
            return berth_multipart_end(parser, &err);
        }
    }
}

struct want {
    const char *name;
    const char *filename;
    const char *content_type;
    const char *body;
};

struct form_case {
    const char *bytes;
    size_t length; /* 0: strlen */
    struct want parts[4];
};

static const struct form_case good[] = {
    {"--B--\r\n", 0, {{0}}},
    {"--B--", 0, {{0}}},
    {"--B\r\n" PART("a") "\r\n--B--", 0, {{"a", NULL, "", ""}}},
    {"--B\r\n" PART("a") "1\r\n--B\r\n" PART("b") "22\r\n--B--\r\nepilogue\r\n--B\r\n",
     0,
     {{"a", NULL, "", "1"}, {"b", NULL, "", "22"}}},
    {"preamble\r\n--B\r\n" PART("a") "x\r\n--B--", 0, {{"a", NULL, "", "x"}}},
    {"\r\n--B\r\n" PART("a") "x\r\n--B--", 0, {{"a", NULL, "", "x"}}},
    {"--B \t\r\n" PART("a") "x\r\n--B  \r\n" PART("b") "y\r\n--B--",
     0,
     {{"a", NULL, "", "x"}, {"b", NULL, "", "y"}}},
    {"--B\r\n" PART("a") "\r\n--\r\n--A\r\n-B--B\r\r\n\r\n--B--",
     0,
     {{"a", NULL, "", "\r\n--\r\n--A\r\n-B--B\r\r\n"}}},
    {"--B\r\n" PART("a") "\r\n\r\n\r\n--B--", 0, {{"a", NULL, "", "\r\n\r\n"}}},
    {"--B\r\ncontent-disposition:form-data;name=a;filename=\"x.wav\"\r\nCONTENT-TYPE: audio/wav\r\n"
     "X-Other: 1\r\nContent-Transfer-Encoding: binary\r\n\r\nRIFF\r\n--B--",
     0,
     {{"a", "x.wav", "audio/wav", "RIFF"}}},
    {"--B\r\nContent-Disposition: form-data; filename=\"a\\\"b\\\\c\\d.wav\"; name=\"n\"\r\n\r\n"
     "\r\n--B--",
     0,
     {{"n", "a\"b\\c\\d.wav", "", ""}}},
    {"--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"\"\r\n\r\n\r\n--B--",
     0,
     {{"f", "", "", ""}}},
    {"--B\r\nContent-Disposition: form-data; name=\"f\"; filename*=UTF-8''x.wav\r\n\r\n\r\n--B--",
     0,
     {{"f", "", "", ""}}},
    {"--B\r\nContent-Disposition: form-data; name=\"\xc3\xa9\"; filename=\"\xe9x\"\r\n\r\n"
     "\r\n--B--",
     0,
     {{"\xc3\xa9", "_x", "", ""}}},
    {"--B\r\n" PART("") "x\r\n--B--", 0, {{"", NULL, "", "x"}}},
};

static const char *const bad[] = {
    "",
    "x",
    "--B",
    "--B\r\n",
    "--B-",
    "--Bx\r\n" PART("a") "x\r\n--B--",
    "--B\n" PART("a") "x\r\n--B--",
    "--B\r\n" PART("a") "x",
    "--B\r\n" PART("a") "x\r\n--B",
    "--B\r\n" PART("a") "x\r\n--B-\r\n",
    "--B\r\n" PART("a") "x\r\n--B --\r\n",
    "--B\r\n" PART("a") "x\n--B--",
    "--B\r\n\r\nx\r\n--B--",
    "--B\r\nA: b\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; filename=\"x\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"a\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"a\"; name=\"b\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"a\"x\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; =\"a\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"\xe9\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"a\"; filename=\"x\"; filename=\"y\"\r\n\r\n"
    "x\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; "
    "name=\"b\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data;\r\n name=\"a\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition : form-data; name=\"a\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition form-data; name=\"a\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"a\"\nX: y\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Disposition: form-data; name=\"a\x01\"\r\n\r\nx\r\n--B--",
    "--B\r\n: form-data; name=\"a\"\r\n\r\nx\r\n--B--",
    "--B\r\nContent-Transfer-Encoding: base64\r\n" PART("a") "x\r\n--B--",
};

static void check(const struct form_case *one, const struct berth_multipart *parser)
{
    size_t count = 0;
    while (count < 4 && one->parts[count].name != NULL) {
        count++;
    }
    assert_int_equal(parser->part_count, count);
    for (size_t i = 0; i < count; i++) {
        const struct want *want = &one->parts[i];
        const struct berth_multipart_part *part = &parser->parts[i];
        assert_true(part->complete);
        assert_string_equal(part->name, want->name);
        assert_int_equal(part->has_filename, want->filename != NULL);
        assert_string_equal(part->filename, want->filename == NULL ? "" : want->filename);
        assert_string_equal(part->content_type, want->content_type);
        assert_int_equal(part->length, strlen(want->body));
        assert_memory_equal(one->bytes + part->offset, want->body, part->length);
    }
}

/* Every place to cut in two, and every size of pieces. */
static void test_good(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(good); i++) {
        struct berth_multipart parser;
        size_t length = strlen(good[i].bytes);
        for (size_t cut = 0; cut <= length; cut++) {
            if (parse(&parser, good[i].bytes, length, cut, length + 1) != BERTH_OK) {
                fail_msg("form %zu, cut at %zu", i, cut);
            }
            check(&good[i], &parser);
        }
        for (size_t step = 1; step < 9; step++) {
            assert_int_equal(parse(&parser, good[i].bytes, length, step, step), BERTH_OK);
            check(&good[i], &parser);
        }
    }
}

static void test_bad(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(bad); i++) {
        struct berth_multipart parser;
        size_t length = strlen(bad[i]);
        for (size_t cut = 0; cut <= length; cut++) {
            if (parse(&parser, bad[i], length, cut, length + 1) != BERTH_INVALID) {
                fail_msg("bad form %zu, cut at %zu: %s", i, cut, bad[i]);
            }
        }
        assert_int_equal(parse(&parser, bad[i], length, 1, 1), BERTH_INVALID);
    }
}

/* A part is known when its head is, before its body. */
static void test_early(void **state)
{
    struct berth_multipart parser;
    const char *bytes = "--B\r\n" PART("model") "w\r\n--B\r\n" PART("file") "0123456789\r\n--B--";
    size_t second = (size_t)(strstr(bytes, "0123") - bytes);
    assert_int_equal(berth_multipart_init(&parser, TYPE, NULL), BERTH_OK);
    assert_int_equal(berth_multipart_feed(&parser, bytes, second, NULL), BERTH_OK);
    assert_int_equal(parser.part_count, 2);
    assert_true(parser.parts[0].complete);
    assert_int_equal(parser.parts[0].length, 1);
    assert_string_equal(parser.parts[1].name, "file");
    assert_false(parser.parts[1].complete);
    assert_int_equal(parser.parts[1].offset, second);
}

static void test_limits(void **state)
{
    static char bytes[65536];
    struct berth_multipart parser;
    for (size_t over = 0; over <= 1; over++) { /* a head of 4096 bytes with its end */
        size_t length = (size_t)snprintf(bytes, sizeof(bytes), "--B\r\nX: ");
        size_t head = BERTH_MULTIPART_HEAD_MAX + over - strlen(PART("a")) - 5;
        memset(bytes + length, 'x', head);
        length += head;
        length += (size_t)snprintf(bytes + length, sizeof(bytes) - length,
                                   "\r\n" PART("a") "v\r\n--B--");
        assert_int_equal(parse(&parser, bytes, length, length, 1), over ? BERTH_INVALID : BERTH_OK);
        assert_int_equal(parse(&parser, bytes, length, 1, 50), over ? BERTH_INVALID : BERTH_OK);
    }
    for (int count = BERTH_MULTIPART_PARTS_MAX; count <= BERTH_MULTIPART_PARTS_MAX + 1; count++) {
        size_t length = 0;
        for (int i = 0; i < count; i++) {
            length += (size_t)snprintf(bytes + length, sizeof(bytes) - length,
                                       "--B\r\n" PART("a") "v\r\n");
        }
        length += (size_t)snprintf(bytes + length, sizeof(bytes) - length, "--B--");
        assert_int_equal(parse(&parser, bytes, length, length, 1),
                         count > BERTH_MULTIPART_PARTS_MAX ? BERTH_INVALID : BERTH_OK);
    }
    for (int name = 128; name <= 129; name++) { /* names are refused, filenames cut */
        char long_name[200];
        memset(long_name, 'n', sizeof(long_name));
        long_name[name] = '\0';
        size_t length = (size_t)snprintf(
            bytes, sizeof(bytes),
            "--B\r\nContent-Disposition: form-data; name=\"%s\"; filename=\"%s%s\"\r\n\r\n"
            "\r\n--B--",
            name == 128 ? long_name : "a", long_name, long_name);
        assert_int_equal(parse(&parser, bytes, length, length, 1), BERTH_OK);
        assert_int_equal(strlen(parser.parts[0].filename), BERTH_MULTIPART_NAME_MAX);
        length = (size_t)snprintf(
            bytes, sizeof(bytes),
            "--B\r\nContent-Disposition: form-data; name=\"%s\"; x=y\r\n\r\n\r\n--B--", long_name);
        assert_int_equal(parse(&parser, bytes, length, length, 1),
                         name == 128 ? BERTH_OK : BERTH_INVALID);
    }
    /* A filename is cut between characters. */
    size_t length = (size_t)snprintf(
        bytes, sizeof(bytes), "--B\r\nContent-Disposition: form-data; name=\"a\"; filename=\"x");
    for (int i = 0; i < 80; i++) {
        length += (size_t)snprintf(bytes + length, sizeof(bytes) - length, "\xc3\xa9");
    }
    length += (size_t)snprintf(bytes + length, sizeof(bytes) - length, "\"\r\n\r\n\r\n--B--");
    assert_int_equal(parse(&parser, bytes, length, length, 1), BERTH_OK);
    assert_int_equal(strlen(parser.parts[0].filename), 127);
}

/* Random bodies, random cuts: always what the whole gives. */
static void test_random(void **state)
{
    static const char *const words[] = {"--B", "\r\n",    "\r",      "\n",          "--",
                                        "B",   PART("a"), "\r\n--B", "\r\n--B\r\n", "x",
                                        ": ",  "\"",      ";",       "name=",       "\r\n--B--"};
    srand(4711);
    for (int round = 0; round < 20000; round++) {
        static struct berth_multipart whole, cut;
        char bytes[1024] = "--B\r\n";
        size_t length = round % 2 == 0 ? 5 : 0;
        for (int i = rand() % 12; i >= 0; i--) {
            const char *word = words[(size_t)rand() % BERTH_COUNT_OF(words)];
            memcpy(bytes + length, word, strlen(word));
            length += strlen(word);
        }
        enum berth_code code = parse(&whole, bytes, length, length, 1);
        enum berth_code other = parse(&cut, bytes, length, (size_t)rand() % (length + 1),
                                      1 + (size_t)rand() % 9);
        assert_int_equal(code, other);
        if (code == BERTH_OK) {
            assert_int_equal(whole.part_count, cut.part_count);
            assert_memory_equal(whole.parts, cut.parts, sizeof(whole.parts[0]) * whole.part_count);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content_types), cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),           cmocka_unit_test(test_early),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
