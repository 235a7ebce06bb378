/* json.h - reading JSON where memory may run out.
 *
 * Jansson does not survive that: it drops the bytes of a token for which it cannot grow its buffer,
 * and then reads another text, or past the buffer's end. So it never sees an allocation fail: its
 * memory is counted with ours (tests can fail it), and the first failure ends the reading.
 * Threads: any.
 */
#ifndef BERTH_JSON_H
#define BERTH_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"

/* INVALID: *where says what and where; UNAVAILABLE: no memory, and *where says that. On OK the
 * caller owns *out. flags are jansson's, but no string holds a NUL: such a text is INVALID. */
enum berth_code berth_json_read(const char *text, size_t length, size_t flags, json_t **out,
                                json_error_t *where) BERTH_MUST_USE;

#endif
