/* json_text.h - JSON read in place: values are pieces of the text, nothing is built.
 *
 * For what comes with every request, and for long lists of numbers: a tree of them costs thirty
 * times the time and many times the memory of the text. First berth_json_check looks at the whole
 * text once (RFC 8259, valid UTF-8, a depth limit); what it returned, and everything that a walk
 * over it returns, may then be read without further checks. The text must stay as it is.
 * Threads: any; nothing is allocated but decoded strings.
 */
#ifndef BERTH_JSON_TEXT_H
#define BERTH_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#define BERTH_JSON_DEPTH_MAX 64
#define BERTH_JSON_NUMBER_MAX 512 /* characters */

enum berth_json_kind {
    BERTH_JSON_NONE, /* a member that is not there */
    BERTH_JSON_NULL,
    BERTH_JSON_TRUE,
    BERTH_JSON_FALSE,
    BERTH_JSON_INTEGER, /* no fraction, no exponent */
    BERTH_JSON_REAL,
    BERTH_JSON_STRING,
    BERTH_JSON_ARRAY,
    BERTH_JSON_OBJECT
};

/* Lends from the text; strings with their quotes. */
struct berth_json_value {
    enum berth_json_kind kind;
    const char *at;
    size_t length;
};

/* INVALID: *what says what is wrong and *position, in bytes, where. */
enum berth_code berth_json_check(const char *text, size_t length, struct berth_json_value *root,
                                 const char **what, size_t *position) BERTH_MUST_USE;

/* The members of an array or object, in turn. A value of another kind has none. */
struct berth_json_walk {
    const char *at;
    bool object;
};
struct berth_json_walk berth_json_walk(const struct berth_json_value *value);
/* false: no more. key is set for objects only and may be NULL. */
bool berth_json_next(struct berth_json_walk *walk, struct berth_json_value *key,
                     struct berth_json_value *value);
size_t berth_json_count(const struct berth_json_value *value);
/* Members by name, in one walk: out[i] is the last one named names[i], as most readers take it, or
 * of kind NONE. What is no object has none. */
void berth_json_members(const struct berth_json_value *object, const char *const *names,
                        size_t count, struct berth_json_value *out);

bool berth_json_equals(const struct berth_json_value *string, const char *text);
/* Bytes of a string once decoded; NULs count. */
size_t berth_json_string_length(const struct berth_json_value *string);
/* Decodes into `out`, which has room for berth_json_string_length; no NUL is added. */
void berth_json_string_copy(const struct berth_json_value *string, char *out);
/* Decoded and NUL-terminated, of the arena; NULL: no memory. */
const char *berth_json_string_dup(const struct berth_json_value *string, struct berth_arena *arena);
/* Whether a string holds a NUL, which would end a C string early. */
bool berth_json_has_nul(const struct berth_json_value *string);
/* Finds such a string, or the name of such a member: writes where it is ("a.b[2]", cut if need be)
 * to `path`, of at least one byte. */
bool berth_json_find_nul(const struct berth_json_value *root, char *path, size_t bytes);
/* Of an INTEGER; false: it does not fit. */
bool berth_json_int64(const struct berth_json_value *value, int64_t *out);
bool berth_json_uint64(const struct berth_json_value *value, uint64_t *out);
/* Of an INTEGER or REAL, rounded as strtod does; false: past the range of a double. */
bool berth_json_double(const struct berth_json_value *value, double *out);

#endif
