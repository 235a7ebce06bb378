/* fuzz_multipart.c - forms fed whole and in pieces: the outcome and the parts must be the same, and
 * every part must lie inside the body and hold no delimiter. The first byte seeds the cuts. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/multipart.h"

static struct berth_multipart whole, cut;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static enum berth_code parse(struct berth_multipart *parser, const char *bytes, size_t length,
                             uint32_t seed)
{
    size_t there = 0;
    do {
        seed = seed * 1664525 + 1013904223;
        size_t step = seed >> 8 == 0 ? length : (seed >> 24) % 60;
        there = length - there < step ? length : there + step;
        char *copy = malloc(there + 1); /* its own address each time, as long as is said */
        memcpy(copy, bytes, there);
        enum berth_code code = berth_multipart_feed(parser, copy, there, NULL);
        free(copy);
        if (code != BERTH_OK) {
            return code;
        }
    } while (there < length);
    return berth_multipart_end(parser, NULL);
}

/* The Content-Type's value is the first line, the body what follows it. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    const char *text = (const char *)bytes;
    char type[512];
    if (length < 2 || length > 20000) {
        return 0;
    }
    const char *end = memchr(text + 1, '\n', length - 1);
    size_t type_length = end == NULL ? 0 : (size_t)(end - text) - 1;
    if (end == NULL || type_length >= sizeof(type)) {
        return 0;
    }
    memcpy(type, text + 1, type_length);
    type[type_length] = '\0';
    const char *body = end + 1;
    size_t body_length = length - type_length - 2;
    if (berth_multipart_init(&whole, type, NULL) != BERTH_OK) {
        return 0;
    }
    cut = whole;
    enum berth_code code = berth_multipart_feed(&whole, body, body_length, NULL);
    if (code == BERTH_OK) {
        code = berth_multipart_end(&whole, NULL);
    }
    check(parse(&cut, body, body_length, bytes[0]) == code, "outcome does not depend on cuts");
    if (code != BERTH_OK) {
        return 0;
    }
    check(whole.part_count == cut.part_count, "number of parts does not depend on cuts");
    for (size_t i = 0; i < whole.part_count; i++) {
        const struct berth_multipart_part *part = &whole.parts[i];
        check(memcmp(part, &cut.parts[i], sizeof(*part)) == 0, "parts do not depend on cuts");
        check(part->complete, "all parts are complete");
        check(part->offset + part->length <= body_length, "parts lie in the body");
        check(memmem(body + part->offset, part->length, whole.delimiter, whole.delimiter_length) ==
                  NULL,
              "no part holds the delimiter");
    }
    return 0;
}
