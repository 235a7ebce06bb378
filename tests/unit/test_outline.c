/* Containers that say their size: whole, open-ended, cut at every byte, and hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "media/outline.h"

#define B(text) (const uint8_t *)(text), sizeof(text) - 1
#define EBML "\x1A\x45\xDF\xA3\x84" "abcd"
#define SEGMENT "\x18\x53\x80\x67"
#define PAGE "OggS\0\2" "granule_" "serisequcrc_"
#define ASF "\x30\x26\xB2\x75\x8E\x66\xCF\x11" "guid-end"
#define OTHER "\x36\x26\xB2\x75\x8E\x66\xCF\x11" "guid-end"
#define PROPERTIES "\xA1\xDC\xAB\x8C\x47\xA9\xCF\x11\x8E\xE4\x00\xC0\x0C\x20\x53\x65" \
    "sizesize" "0123456789abcdef" "0123456789abcdef" "0123456789abcdef" "0123456789abcdef"
#define BOX(type) "\0\0\0\x0C" type "body"

static const struct {
    const char *name;
    const uint8_t *bytes;
    size_t length;
    const char *what; /* NULL: not cut, or not known */
    uint64_t promised, came;
} rows[] = {
    {"nothing", B(""), NULL, 0, 0},
    {"text", B("hello, this is a text of no container"), NULL, 0, 0},
    {"wave", B("RIFF\xFF\xFF\xFF\0WAVEfmt "), NULL, 0, 0},
    /* MP4 */
    {"boxes", B(BOX("ftyp") BOX("moov") BOX("mdat")), NULL, 0, 0},
    {"mdat cut", B(BOX("ftyp") "\0\0\1\0mdat12345"), "mdat box", 256, 13},
    {"moov cut by a byte", B(BOX("ftyp") "\0\0\0\x0Dmoovbody"), "moov box", 13, 12},
    {"large", B(BOX("ftyp") "\0\0\0\1mdat\0\0\0\0\0\0\0\x12zz"), NULL, 0, 0},
    {"large cut", B(BOX("ftyp") "\0\0\0\1mdat\0\0\0\1\0\0\0\x12zz"), "mdat box",
     (UINT64_C(1) << 32) + 18, 18},
    {"largest", B(BOX("ftyp") "\0\0\0\1mdat\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), "mdat box",
     UINT64_MAX, 16},
    {"large without its size", B(BOX("ftyp") "\0\0\0\1mdat\0\0"), NULL, 0, 0},
    {"open", B(BOX("ftyp") "\0\0\0\0mdat"), NULL, 0, 0},
    {"too small", B(BOX("ftyp") "\0\0\0\7mdat"), NULL, 0, 0},
    {"something behind", B(BOX("ftyp") BOX("mdat") "\0\1\0\0junk"), NULL, 0, 0},
    /* Matroska */
    {"segment", B(EBML SEGMENT "\x83" "abc"), NULL, 0, 0},
    {"segment cut", B(EBML SEGMENT "\x84" "abc"), "segment", 4, 3},
    {"two bytes of size", B(EBML SEGMENT "\x40\x05" "abc"), "segment", 5, 3},
    {"eight bytes of size", B(EBML SEGMENT "\x01\0\0\0\0\0\1\0abc"), "segment", 256, 3},
    {"open segment", B(EBML SEGMENT "\xFF" "abc"), NULL, 0, 0},
    {"open segment of eight", B(EBML SEGMENT "\x01\xFF\xFF\xFF\xFF\xFF\xFF\xFF" "abc"), NULL, 0,
     0},
    {"size of nine", B(EBML SEGMENT "\0\1\1\1\1\1\1\1\1\1"), NULL, 0, 0},
    {"size not there", B(EBML SEGMENT "\x01\0\0"), NULL, 0, 0},
    {"head too long", B("\x1A\x45\xDF\xA3\xA4" "abcd" SEGMENT "\x84"), NULL, 0, 0},
    {"head's size unknown", B("\x1A\x45\xDF\xA3\xFF" "abcd" SEGMENT "\x84"), NULL, 0, 0},
    {"no segment", B(EBML "\x18\x53\x80\x66\x84" "abc"), NULL, 0, 0},
    /* Ogg */
    {"pages", B(PAGE "\2\1\2" "abc" PAGE "\0"), NULL, 0, 0},
    {"body cut", B(PAGE "\2\1\2" "abc" PAGE "\1\4" "abc"), "last page", 32, 31},
    {"table cut", B(PAGE "\2\1\2" "abc" PAGE "\3\1\1"), "last page", 30, 29},
    {"head cut", B(PAGE "\2\1\2" "abc" "OggS\0"), "last page", 27, 5},
    {"mark cut", B(PAGE "\2\1\2" "abc" "Og"), "last page", 27, 2},
    {"something between", B(PAGE "\2\1\2" "abc" "junk" PAGE "\1\4"), NULL, 0, 0},
    /* CAF */
    {"chunks", B("caff\0\1\0\0" "desc\0\0\0\0\0\0\0\2ab" "data\0\0\0\0\0\0\0\1a"), NULL, 0, 0},
    {"data cut", B("caff\0\1\0\0" "desc\0\0\0\0\0\0\0\2ab" "data\0\0\0\0\0\0\0\2a"), "data chunk",
     2, 1},
    {"desc cut", B("caff\0\1\0\0" "desc\0\0\0\0\0\0\0\3ab"), "last chunk", 3, 2},
    {"open data", B("caff\0\1\0\0" "data\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF" "abc"), NULL, 0, 0},
    {"largest data", B("caff\0\1\0\0" "data\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF" "abc"), "data chunk",
     INT64_MAX, 3},
    /* ASF */
    {"objects", B(ASF "\x19\0\0\0\0\0\0\0h" OTHER "\x1A\0\0\0\0\0\0\0dd"), NULL, 0, 0},
    {"header cut", B(ASF "\x1B\0\0\0\0\0\0\0hh"), "header", 27, 26},
    {"objects cut", B(ASF "\x19\0\0\0\0\0\0\0h" OTHER "\x1B\0\0\0\0\0\0\0dd"), "data", 27,
     26},
    {"objects of a stream", B(ASF "\x19\0\0\0\0\0\0\0h" OTHER "\0\0\0\0\0\0\0\0dd"), NULL, 0,
     0},
    {"broadcast", B(ASF "\x71\0\0\0\0\0\0\0" PROPERTIES "\3" OTHER "\x1B\0\0\0\0\0\0\0dd"),
     NULL, 0, 0},
    {"no broadcast", B(ASF "\x71\0\0\0\0\0\0\0" PROPERTIES "\2" OTHER "\x1B\0\0\0\0\0\0\0dd"),
     "data", 27, 26},
    {"objects past all", B(ASF "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFh"), NULL, 0, 0},
};

/* From memory that ends where the bytes end. */
static bool is_cut(const uint8_t *bytes, size_t length, struct berth_outline *out)
{
    uint8_t *copy = malloc(length + 1);
    memcpy(copy + 1, bytes, length); /* at its end: a read past it is seen by the sanitizer */
    struct berth_media_input input = {.bytes = copy + 1, .length = length};
    *out = (struct berth_outline){0};
    bool cut = berth_outline_is_cut(&input, out);
    free(copy);
    return cut;
}

static void test_rows(void **state)
{
    struct berth_outline outline;
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        bool cut = is_cut(rows[i].bytes, rows[i].length, &outline);
        if (cut != (rows[i].what != NULL) ||
            (cut && (strcmp(outline.what, rows[i].what) != 0 ||
                     outline.promised != rows[i].promised || outline.came != rows[i].came))) {
            fail_msg("%s: %s, %llu of %llu bytes", rows[i].name, cut ? outline.what : "not cut",
                     (unsigned long long)outline.came, (unsigned long long)outline.promised);
        }
    }
}

/* Shorter, or with one byte changed: what came is in the file, and less than what was promised. */
static void test_any_bytes(void **state)
{
    struct berth_outline outline;
    uint8_t bytes[256];
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        for (size_t length = 0; length <= rows[i].length; length++) {
            if (is_cut(rows[i].bytes, length, &outline)) {
                assert_true(outline.came < outline.promised && outline.came <= length);
            }
        }
        for (size_t k = 0; k < rows[i].length * 256; k++) {
            memcpy(bytes, rows[i].bytes, rows[i].length);
            bytes[k / 256] = (uint8_t)k;
            if (is_cut(bytes, rows[i].length, &outline)) {
                assert_true(outline.came < outline.promised && outline.came <= rows[i].length);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests_name("outline", tests, NULL, NULL);
}
