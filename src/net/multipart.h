/* multipart.h - multipart/form-data, parsed as it arrives, in place.
 *
 * The whole body lies in one slab range that grows; the parser keeps offsets into it, copies
 * nothing, and looks at each byte about once. A part is reported when its head is complete
 * (so that a field before the file is judged at once) and again when its body is.
 */
#ifndef BERTH_MULTIPART_H
#define BERTH_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define BERTH_MULTIPART_PARTS_MAX 64
#define BERTH_MULTIPART_NAME_MAX 128
#define BERTH_MULTIPART_HEAD_MAX 4096
#define BERTH_MULTIPART_BOUNDARY_MAX 70

struct berth_multipart_part {
    char name[BERTH_MULTIPART_NAME_MAX + 1];
    char filename[BERTH_MULTIPART_NAME_MAX + 1]; /* cut if longer; "" if none */
    bool has_filename;
    char content_type[BERTH_MULTIPART_NAME_MAX + 1];
    uint64_t offset; /* of its bytes in the body */
    uint64_t length; /* set when complete */
    bool complete;
};

struct berth_multipart {
    char delimiter[BERTH_MULTIPART_BOUNDARY_MAX + 5]; /* CRLF -- boundary */
    size_t delimiter_length;
    int state;
    uint64_t at;   /* first byte not yet looked at */
    uint64_t mark; /* start of the present head or body */
    struct berth_multipart_part parts[BERTH_MULTIPART_PARTS_MAX];
    size_t part_count;
};

/* From the Content-Type header's value. INVALID: not multipart/form-data, or a bad boundary. */
enum berth_code berth_multipart_init(struct berth_multipart *parser, const char *content_type,
                                     struct berth_err *err) BERTH_MUST_USE;
/* Looks at bytes up to length (it only grows; bytes keep their offsets, the address may change).
 * New and completed parts are in parser->parts. INVALID: malformed. */
enum berth_code berth_multipart_feed(struct berth_multipart *parser, const char *bytes,
                                     uint64_t length, struct berth_err *err) BERTH_MUST_USE;
/* After the last feed: INVALID if the closing delimiter is missing. */
enum berth_code berth_multipart_end(const struct berth_multipart *parser,
                                    struct berth_err *err) BERTH_MUST_USE;

#endif
