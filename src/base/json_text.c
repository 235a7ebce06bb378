/* json_text.c - see json_text.h. The grammar is RFC 8259's, one function for each of its rules. */
#include "base/json_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

/* Of a check under way. */
struct checker {
    const char *start;
    const char *at;
    const char *end;
    const char *what; /* the first mistake; NULL: none */
};

/* Where a search is: the text up to `length`. */
struct path {
    char *text;
    size_t bytes;
    size_t length;
};

static bool find_nul(const struct berth_json_value *value, struct path *path);
static bool check_value(struct checker *checker, unsigned depth, enum berth_json_kind *kind);
static bool check_members(struct checker *checker, unsigned depth, bool object);
static bool check_string(struct checker *checker);
static bool check_escape(struct checker *checker);
static bool check_number(struct checker *checker, enum berth_json_kind *kind);
static bool check_digits(struct checker *checker);
static bool check_word(struct checker *checker, const char *word);
static bool wrong(struct checker *checker, const char *what);
static const char *skip_space(const char *at, const char *end);
static const char *skip_value(const char *at, enum berth_json_kind *kind);
static const char *skip_nested(const char *at);
static const char *skip_string(const char *at);
static const char *skip_number(const char *at, enum berth_json_kind *kind);
static struct berth_json_value take(const char **at);
static const char *decode_escape(const char *at, char *out, size_t *length);
static bool is_hex(const char *at); /* four of them */
static uint32_t read_hex(const char *at);

enum berth_code berth_json_check(const char *text, size_t length, struct berth_json_value *root,
                                 const char **what, size_t *position)
{
    struct checker checker = {.start = text, .at = text, .end = text + length};
    *root = (struct berth_json_value){0};
    checker.at = skip_space(checker.at, checker.end);
    const char *from = checker.at;
    enum berth_json_kind kind = BERTH_JSON_NONE;
    if (check_value(&checker, 0, &kind)) {
        *root = (struct berth_json_value){kind, from, (size_t)(checker.at - from)};
        checker.at = skip_space(checker.at, checker.end);
        if (checker.at != checker.end) {
            wrong(&checker, "the document has more after its end");
        }
    }
    if (checker.what != NULL) {
        *what = checker.what;
        *position = (size_t)(checker.at - text);
        return BERTH_INVALID;
    }
    return BERTH_OK;
}

struct berth_json_walk berth_json_walk(const struct berth_json_value *value)
{
    if (value->kind != BERTH_JSON_ARRAY && value->kind != BERTH_JSON_OBJECT) {
        return (struct berth_json_walk){0};
    }
    return (struct berth_json_walk){value->at + 1, value->kind == BERTH_JSON_OBJECT};
}

bool berth_json_next(struct berth_json_walk *walk, struct berth_json_value *key,
                     struct berth_json_value *value)
{
    if (walk->at == NULL) {
        return false;
    }
    const char *at = skip_space(walk->at, NULL);
    if (*at == ',') {
        at = skip_space(at + 1, NULL);
    }
    if (*at == ']' || *at == '}') {
        walk->at = NULL;
        return false;
    }
    if (walk->object) {
        struct berth_json_value name = take(&at);
        if (key != NULL) {
            *key = name;
        }
        at = skip_space(skip_space(at, NULL) + 1, NULL); /* past the colon */
    }
    *value = take(&at);
    walk->at = at;
    return true;
}

size_t berth_json_count(const struct berth_json_value *value)
{
    struct berth_json_walk walk = berth_json_walk(value);
    struct berth_json_value item;
    size_t count = 0;
    while (berth_json_next(&walk, NULL, &item)) {
        count++;
    }
    return count;
}

void berth_json_members(const struct berth_json_value *object, const char *const *names,
                        size_t count, struct berth_json_value *out)
{
    struct berth_json_value key, value;
    memset(out, 0, count * sizeof(*out));
    if (object->kind != BERTH_JSON_OBJECT) {
        return;
    }
    struct berth_json_walk walk = berth_json_walk(object);
    while (berth_json_next(&walk, &key, &value)) {
        for (size_t i = 0; i < count; i++) {
            if (berth_json_equals(&key, names[i])) {
                out[i] = value;
            }
        }
    }
}

bool berth_json_equals(const struct berth_json_value *string, const char *text)
{
    size_t length = strlen(text);
    if (string->kind != BERTH_JSON_STRING) {
        return false;
    }
    if (memchr(string->at, '\\', string->length) == NULL) {
        return string->length == length + 2 && memcmp(string->at + 1, text, length) == 0;
    }
    const char *at = string->at + 1;
    const char *end = string->at + string->length - 1;
    size_t matched = 0;
    while (at < end) {
        char bytes[4] = {*at};
        size_t count = 1;
        at = *at == '\\' ? decode_escape(at, bytes, &count) : at + 1;
        if (count > length - matched || memcmp(text + matched, bytes, count) != 0) {
            return false;
        }
        matched += count;
    }
    return matched == length;
}

size_t berth_json_string_length(const struct berth_json_value *string)
{
    const char *at = string->at + 1;
    const char *end = string->at + string->length - 1;
    size_t length = 0;
    while (at < end) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        if (escape == NULL) {
            return length + (size_t)(end - at);
        }
        char bytes[4];
        size_t count;
        length += (size_t)(escape - at);
        at = decode_escape(escape, bytes, &count);
        length += count;
    }
    return length;
}

void berth_json_string_copy(const struct berth_json_value *string, char *out)
{
    const char *at = string->at + 1;
    const char *end = string->at + string->length - 1;
    while (at < end) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((escape == NULL ? end : escape) - at);
        memcpy(out, at, plain);
        out += plain;
        at += plain;
        if (escape != NULL) {
            char bytes[4];
            size_t count;
            at = decode_escape(escape, bytes, &count);
            memcpy(out, bytes, count);
            out += count;
        }
    }
}

const char *berth_json_string_dup(const struct berth_json_value *string, struct berth_arena *arena)
{
    size_t length = berth_json_string_length(string);
    char *copy = berth_arena_alloc(arena, length + 1);
    if (copy != NULL) {
        berth_json_string_copy(string, copy);
        copy[length] = '\0';
    }
    return copy;
}

bool berth_json_has_nul(const struct berth_json_value *string)
{
    const char *at = string->at + 1;
    const char *end = string->at + string->length - 1;
    while (at < end && (at = memchr(at, '\\', (size_t)(end - at))) != NULL) {
        char bytes[4];
        size_t count;
        at = decode_escape(at, bytes, &count);
        if (bytes[0] == '\0') {
            return true;
        }
    }
    return false; /* one that is not escaped is no JSON */
}

bool berth_json_find_nul(const struct berth_json_value *root, char *path, size_t bytes)
{
    struct path here = {.text = path, .bytes = bytes};
    path[0] = '\0';
    return find_nul(root, &here);
}

bool berth_json_uint64(const struct berth_json_value *value, uint64_t *out)
{
    const char *at = value->at;
    const char *end = value->at + value->length;
    uint64_t sum = 0;
    if (value->kind != BERTH_JSON_INTEGER || (*at == '-' && at[1] != '0')) {
        return false;
    }
    for (at += *at == '-'; at < end; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (sum > (UINT64_MAX - digit) / 10) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    *out = sum;
    return true;
}

bool berth_json_int64(const struct berth_json_value *value, int64_t *out)
{
    struct berth_json_value size = *value;
    uint64_t magnitude;
    bool negative = value->kind == BERTH_JSON_INTEGER && value->at[0] == '-';
    size.at += negative;
    size.length -= negative;
    if (!berth_json_uint64(&size, &magnitude) ||
        magnitude > (uint64_t)INT64_MAX + (negative ? 1 : 0)) {
        return false;
    }
    *out = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

bool berth_json_double(const struct berth_json_value *value, double *out)
{
    char text[BERTH_JSON_NUMBER_MAX + 1];
    if (value->kind != BERTH_JSON_INTEGER && value->kind != BERTH_JSON_REAL) {
        return false;
    }
    memcpy(text, value->at, value->length); /* berth_json_check lets no longer number through */
    text[value->length] = '\0';
    *out = strtod(text, NULL);
    return isfinite(*out);
}

/* Values are nested BERTH_JSON_DEPTH_MAX deep at most, and so are these calls. */
static bool find_nul(const struct berth_json_value *value, struct path *path)
{
    struct berth_json_value key, item;
    struct berth_json_walk walk = berth_json_walk(value);
    size_t length = path->length;
    if (value->kind == BERTH_JSON_STRING) {
        return berth_json_has_nul(value);
    }
    for (size_t i = 0; berth_json_next(&walk, &key, &item); i++) {
        size_t room = path->bytes - length;
        bool object = value->kind == BERTH_JSON_OBJECT;
        int more = object ? snprintf(path->text + length, room, "%s%.*s", length == 0 ? "" : ".",
                                     (int)key.length - 2, key.at + 1)
                          : snprintf(path->text + length, room, "[%zu]", i);
        path->length = length + (more < 0                ? 0
                                 : (size_t)more < room ? (size_t)more
                                                       : room - 1);
        if ((object && berth_json_has_nul(&key)) || find_nul(&item, path)) {
            return true;
        }
    }
    path->length = length;
    path->text[length] = '\0';
    return false;
}

/* --- the check --- */

static bool check_value(struct checker *checker, unsigned depth, enum berth_json_kind *kind)
{
    if (checker->at == checker->end) {
        return wrong(checker, "the document is empty or cut off");
    }
    switch (*checker->at) {
    case '{': *kind = BERTH_JSON_OBJECT; return check_members(checker, depth, true);
    case '[': *kind = BERTH_JSON_ARRAY; return check_members(checker, depth, false);
    case '"': *kind = BERTH_JSON_STRING; return check_string(checker);
    case 't': *kind = BERTH_JSON_TRUE; return check_word(checker, "true");
    case 'f': *kind = BERTH_JSON_FALSE; return check_word(checker, "false");
    case 'n': *kind = BERTH_JSON_NULL; return check_word(checker, "null");
    default: return check_number(checker, kind);
    }
}

static bool check_members(struct checker *checker, unsigned depth, bool object)
{
    const char close = object ? '}' : ']';
    enum berth_json_kind kind;
    if (depth == BERTH_JSON_DEPTH_MAX) {
        return wrong(checker, "nested too deep");
    }
    checker->at = skip_space(checker->at + 1, checker->end);
    if (checker->at < checker->end && *checker->at == close) {
        checker->at++;
        return true;
    }
    while (true) {
        if (object) {
            if (checker->at == checker->end || *checker->at != '"') {
                return wrong(checker, "missing a name for object member");
            }
            if (!check_string(checker)) {
                return false;
            }
            checker->at = skip_space(checker->at, checker->end);
            if (checker->at == checker->end || *checker->at != ':') {
                return wrong(checker, "missing a colon after a name of object member");
            }
            checker->at = skip_space(checker->at + 1, checker->end);
        }
        if (!check_value(checker, depth + 1, &kind)) {
            return false;
        }
        checker->at = skip_space(checker->at, checker->end);
        if (checker->at < checker->end && *checker->at == close) {
            checker->at++;
            return true;
        }
        if (checker->at == checker->end || *checker->at != ',') {
            return wrong(checker, object ? "missing a comma or } after an object member"
                                         : "missing a comma or ] after an array element");
        }
        checker->at = skip_space(checker->at + 1, checker->end);
    }
}

static bool check_string(struct checker *checker)
{
    const char *from = ++checker->at;
    unsigned char seen = 0; /* all bytes or'ed: has it any past ASCII? */
    while (checker->at < checker->end && *checker->at != '"') {
        unsigned char c = (unsigned char)*checker->at;
        if (c < 0x20) {
            return wrong(checker, "a control character in a string");
        }
        if (c == '\\') {
            if (!check_escape(checker)) {
                return false;
            }
            continue;
        }
        seen |= c;
        checker->at++;
    }
    if (checker->at == checker->end) {
        return wrong(checker, "missing a closing quotation mark in string");
    }
    if (seen >= 0x80) {
        size_t length = (size_t)(checker->at - from);
        size_t valid = berth_utf8_valid_length(from, length);
        if (valid != length) {
            checker->at = from + valid;
            return wrong(checker, "invalid UTF-8 in a string");
        }
    }
    checker->at++;
    return true;
}

static bool check_escape(struct checker *checker)
{
    const char *at = checker->at;
    size_t left = (size_t)(checker->end - at);
    if (left >= 2 && at[1] != '\0' && strchr("\"\\/bfnrt", at[1]) != NULL) {
        checker->at += 2;
        return true;
    }
    bool pair = false;
    for (size_t i = 0; i < 2; i++) { /* a surrogate needs its second half */
        size_t begin = i * 6;
        if (left < begin + 6 || at[begin] != '\\' || at[begin + 1] != 'u' ||
            !is_hex(at + begin + 2)) {
            return wrong(checker, "invalid escape character in string");
        }
        uint32_t code = read_hex(at + begin + 2);
        bool first = code >= 0xd800 && code < 0xdc00;
        bool second = code >= 0xdc00 && code < 0xe000;
        if (pair ? !second : second) {
            return wrong(checker, "the surrogate pair in string is invalid");
        }
        if (!first || pair) {
            checker->at += begin + 6;
            return true;
        }
        pair = true;
    }
    return wrong(checker, "the surrogate pair in string is invalid");
}

static bool check_number(struct checker *checker, enum berth_json_kind *kind)
{
    const char *from = checker->at;
    *kind = BERTH_JSON_INTEGER;
    checker->at += *checker->at == '-';
    if (checker->at < checker->end && *checker->at == '0') {
        checker->at++;
    } else if (!check_digits(checker)) {
        return false;
    }
    if (checker->at < checker->end && *checker->at == '.') {
        *kind = BERTH_JSON_REAL;
        checker->at++;
        if (!check_digits(checker)) {
            return false;
        }
    }
    if (checker->at < checker->end && (*checker->at | 0x20) == 'e') {
        *kind = BERTH_JSON_REAL;
        checker->at++;
        if (checker->at < checker->end && (*checker->at == '+' || *checker->at == '-')) {
            checker->at++;
        }
        if (!check_digits(checker)) {
            return false;
        }
    }
    if (checker->at - from > BERTH_JSON_NUMBER_MAX) {
        return wrong(checker, "number too long");
    }
    return true;
}

static bool check_digits(struct checker *checker)
{
    const char *from = checker->at;
    while (checker->at < checker->end && *checker->at >= '0' && *checker->at <= '9') {
        checker->at++;
    }
    return checker->at > from || wrong(checker, "invalid value");
}

static bool check_word(struct checker *checker, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(checker->end - checker->at) < length || memcmp(checker->at, word, length) != 0) {
        return wrong(checker, "invalid value");
    }
    checker->at += length;
    return true;
}

static bool wrong(struct checker *checker, const char *what)
{
    if (checker->what == NULL) {
        checker->what = what;
    }
    return false;
}

/* --- walking over what was checked --- */

/* end NULL: something that is no space is sure to come. */
static const char *skip_space(const char *at, const char *end)
{
    while (at != end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
    }
    return at;
}

static struct berth_json_value take(const char **at)
{
    struct berth_json_value value = {.at = *at};
    *at = skip_value(*at, &value.kind);
    value.length = (size_t)(*at - value.at);
    return value;
}

static const char *skip_value(const char *at, enum berth_json_kind *kind)
{
    switch (*at) {
    case '{': *kind = BERTH_JSON_OBJECT; return skip_nested(at);
    case '[': *kind = BERTH_JSON_ARRAY; return skip_nested(at);
    case '"': *kind = BERTH_JSON_STRING; return skip_string(at);
    case 't': *kind = BERTH_JSON_TRUE; return at + 4;
    case 'f': *kind = BERTH_JSON_FALSE; return at + 5;
    case 'n': *kind = BERTH_JSON_NULL; return at + 4;
    default: return skip_number(at, kind);
    }
}

static const char *skip_nested(const char *at)
{
    unsigned depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += *at == '[' || *at == '{';
        depth -= *at == ']' || *at == '}';
        at++;
    } while (depth > 0);
    return at;
}

static const char *skip_string(const char *at)
{
    for (at++; *at != '"'; at++) {
        at += *at == '\\';
    }
    return at + 1;
}

/* A number may be the last thing of the text, but then nobody walks over it: walks are inside of
 * arrays and objects. */
static const char *skip_number(const char *at, enum berth_json_kind *kind)
{
    *kind = BERTH_JSON_INTEGER;
    while ((*at >= '0' && *at <= '9') || *at == '-' || *at == '+' || *at == '.' ||
           (*at | 0x20) == 'e') {
        if (*at == '.' || (*at | 0x20) == 'e') {
            *kind = BERTH_JSON_REAL;
        }
        at++;
    }
    return at;
}

/* --- escapes --- */

/* One escape, a surrogate pair being one, into 1 to 4 bytes; returns what is behind it. */
static const char *decode_escape(const char *at, char *out, size_t *length)
{
    static const char letters[] = "bfnrt";
    static const char meanings[] = "\b\f\n\r\t";
    *length = 1;
    if (at[1] != 'u') {
        const char *letter = strchr(letters, at[1]);
        out[0] = letter == NULL ? at[1] : meanings[letter - letters];
        return at + 2;
    }
    uint32_t code = read_hex(at + 2);
    at += 6;
    if (code >= 0xd800 && code < 0xdc00) {
        code = 0x10000 + ((code - 0xd800) << 10) + (read_hex(at + 2) - 0xdc00);
        at += 6;
    }
    *length = berth_utf8_put(out, code);
    return at;
}

static bool is_hex(const char *at)
{
    for (size_t i = 0; i < 4; i++) {
        char low = (char)(at[i] | 0x20);
        if (!(at[i] >= '0' && at[i] <= '9') && !(low >= 'a' && low <= 'f')) {
            return false;
        }
    }
    return true;
}

static uint32_t read_hex(const char *at)
{
    uint32_t code = 0;
    for (size_t i = 0; i < 4; i++) {
        char c = at[i];
        uint32_t digit = (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        code = code << 4 | digit;
    }
    return code;
}
