/* http1.h - HTTP/1.1 heads and chunk framing, on bytes alone.
 *
 * The seam behind which the parser can be exchanged: scan, parse, and the two chunk functions.
 * scan finds the end of a head as its bytes come and refuses at once what no head may contain;
 * parse takes a whole head apart in place. Packaged http-parser libraries are built in their lax
 * mode (blanks in names, any byte after a chunk size's CR), so what smuggling lives from is checked
 * here, and http-parser stands as the second opinion that must agree.
 *
 * Threads: none of its own. Allocates nothing. Rules: README.md, N1 to N4.
 */
#ifndef BERTH_HTTP1_H
#define BERTH_HTTP1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define BERTH_HTTP1_FIELDS_MAX 100
#define BERTH_HTTP1_CHUNK_LINE_MAX 256 /* a chunk's size and extensions */
#define BERTH_HTTP1_TRAILER_BYTES_MAX 8192

enum berth_http1_result {
    BERTH_HTTP1_MORE,  /* needs more bytes */
    BERTH_HTTP1_DONE,  /* head: complete; chunks: the body is */
    BERTH_HTTP1_DATA,  /* chunks only: bytes of the body follow */
    BERTH_HTTP1_WRONG, /* err and *status say why */
};

/* Where scan stands; zeroed memory is the start of a request. */
struct berth_http1_scan {
    size_t at;       /* bytes looked at */
    size_t start;    /* of the request line, after a blank line that is skipped */
    uint32_t fields; /* header lines so far */
    uint8_t state;
};

struct berth_http1_field {
    const char *name;
    const char *value;
};

enum berth_http1_coding {
    BERTH_HTTP1_IDENTITY,
    BERTH_HTTP1_GZIP,
    BERTH_HTTP1_DEFLATE,
    BERTH_HTTP1_CODING_UNKNOWN
};

/* All strings lie in the head's own bytes. */
struct berth_http1_head {
    const char *method;
    const char *path;  /* decoded once, starts with '/' */
    const char *query; /* "" if none */
    size_t field_count;
    int version_minor;
    bool keep_alive;
    bool chunked;
    bool expect_continue;
    bool has_length;
    enum berth_http1_coding coding;
    uint64_t content_length; /* 0 without one */
    struct berth_http1_field fields[BERTH_HTTP1_FIELDS_MAX];
};

/* Looks at bytes[scan->at .. length); the bytes before stay where they were. DONE: the head is
 * bytes[scan->start .. scan->at). *status is the HTTP status of a refusal. */
enum berth_http1_result berth_http1_scan(struct berth_http1_scan *scan, const char *bytes,
                                         size_t length, int *status, struct berth_err *err);
/* A whole scanned head. Writes into bytes (ends strings, decodes the path), also on failure. DONE
 * or WRONG. */
enum berth_http1_result berth_http1_parse(char *bytes, size_t length, struct berth_http1_head *head,
                                          int *status, struct berth_err *err);

/* Chunk framing; zeroed memory is the start of a body. */
struct berth_http1_chunks {
    uint64_t left; /* bytes of the present chunk that are still to come */
    uint32_t line; /* bytes of the present line */
    uint32_t trailer_bytes;
    uint8_t state;
    uint8_t digits;
};

/* Reads framing up to the next byte of the body; *used bytes of it are done with. DATA: the next
 * chunks->left bytes are the body's; tell chunk_skip how many were used. */
enum berth_http1_result berth_http1_chunk(struct berth_http1_chunks *chunks, const char *bytes,
                                          size_t length, size_t *used, struct berth_err *err);
void berth_http1_chunk_skip(struct berth_http1_chunks *chunks, uint64_t bytes);

/* Is text (not empty) a token, as header names must be? */
bool berth_http1_is_token(const char *text);

#endif
