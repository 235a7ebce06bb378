/* buf.h - a growing byte buffer for texts and answers.
 *
 * Failure is sticky: appends after a failed one do nothing, and the writer checks once at the end
 * with berth_buf_ok. The bytes are always followed by a NUL that is not counted.
 */
#ifndef BERTH_BUF_H
#define BERTH_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct berth_buf {
    char *bytes; /* owned; NULL while empty */
    size_t length;
    size_t capacity;
    bool failed;
};

void berth_buf_finish(struct berth_buf *buf); /* zeroed memory is fine, and is a valid empty buf */
void berth_buf_clear(struct berth_buf *buf);  /* keeps its memory */
bool berth_buf_ok(const struct berth_buf *buf);
const char *berth_buf_text(const struct berth_buf *buf); /* "" while empty; lends */
void berth_buf_reserve(struct berth_buf *buf, size_t more_bytes);
void berth_buf_append(struct berth_buf *buf, const void *bytes, size_t length);
void berth_buf_puts(struct berth_buf *buf, const char *text);
void berth_buf_put_u64(struct berth_buf *buf, uint64_t number); /* decimal */
void berth_buf_put_i64(struct berth_buf *buf, int64_t number);
void berth_buf_printf(struct berth_buf *buf, const char *format, ...) BERTH_PRINTF(2, 3);
/* A JSON string with its quotes; what is not valid UTF-8 becomes U+FFFD. */
void berth_buf_json_string(struct berth_buf *buf, const char *text, size_t length);
/* Hands the bytes over (NUL-terminated, berth_free), leaving buf empty; NULL if it failed. */
char *berth_buf_release(struct berth_buf *buf, size_t *length_out);

/* Bytes as valid UTF-8; what is not becomes U+FFFD. */
void berth_buf_utf8(struct berth_buf *buf, const char *bytes, size_t length);

#define BERTH_UTF8_INVALID UINT32_MAX
/* The character at the start of `length` (1 or more) bytes: returns how many bytes it takes; for
 * what is no UTF-8, sets BERTH_UTF8_INVALID and returns the bytes one U+FFFD stands for. */
size_t berth_utf8_next(const char *bytes, size_t length, uint32_t *point);
/* Writes a character (no surrogate, at most 0x10FFFF) as 1 to 4 bytes; returns how many. */
size_t berth_utf8_put(char *out, uint32_t point);
/* How many bytes of text are valid UTF-8, from the start (no surrogates, no overlong forms). */
size_t berth_utf8_valid_length(const char *text, size_t length);
/* The part without ASCII white space at its ends; *length becomes its length. */
const char *berth_text_trim(const char *text, size_t *length);

#endif
