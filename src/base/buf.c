/* buf.c - a byte buffer that doubles, JSON strings, and what valid UTF-8 is. */
#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define BYTES_FIRST 256

static bool is_space(char character);
static size_t plain_length(const unsigned char *at, size_t left);
static void put_escaped(struct berth_buf *buf, unsigned char byte);

void berth_buf_finish(struct berth_buf *buf)
{
    berth_free(buf->bytes);
    *buf = (struct berth_buf){0};
}

void berth_buf_clear(struct berth_buf *buf)
{
    buf->length = 0;
    buf->failed = false;
    if (buf->bytes != NULL) {
        buf->bytes[0] = '\0';
    }
}

bool berth_buf_ok(const struct berth_buf *buf)
{
    return !buf->failed;
}

const char *berth_buf_text(const struct berth_buf *buf)
{
    return buf->bytes != NULL ? buf->bytes : "";
}

void berth_buf_reserve(struct berth_buf *buf, size_t more_bytes)
{
    size_t want, doubled;
    if (buf->failed) {
        return;
    }
    if (!berth_add_size(buf->length, more_bytes, &want) || !berth_add_size(want, 1, &want)) {
        buf->failed = true;
        return;
    }
    if (want <= buf->capacity) {
        return;
    }
    if (berth_mul_size(buf->capacity, 2, &doubled) && doubled > want) {
        want = doubled;
    }
    if (want < BYTES_FIRST) {
        want = BYTES_FIRST;
    }
    char *grown = berth_resize(buf->bytes, buf->capacity, want);
    if (grown == NULL) {
        buf->failed = true;
        return;
    }
    buf->bytes = grown;
    buf->capacity = want;
}

void berth_buf_append(struct berth_buf *buf, const void *bytes, size_t length)
{
    berth_buf_reserve(buf, length);
    if (buf->failed || length == 0) {
        return;
    }
    memcpy(buf->bytes + buf->length, bytes, length);
    buf->length += length;
    buf->bytes[buf->length] = '\0';
}

void berth_buf_puts(struct berth_buf *buf, const char *text)
{
    berth_buf_append(buf, text, strlen(text));
}

void berth_buf_put_u64(struct berth_buf *buf, uint64_t number)
{
    char digits[20];
    size_t at = sizeof(digits);
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    berth_buf_append(buf, digits + at, sizeof(digits) - at);
}

void berth_buf_put_i64(struct berth_buf *buf, int64_t number)
{
    if (number < 0) {
        berth_buf_append(buf, "-", 1);
    }
    berth_buf_put_u64(buf, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

void berth_buf_printf(struct berth_buf *buf, const char *format, ...)
{
    va_list args, again;
    berth_buf_reserve(buf, BYTES_FIRST / 2);
    if (buf->failed) {
        return;
    }
    va_start(args, format);
    va_copy(again, args);
    size_t room = buf->capacity - buf->length;
    int length = vsnprintf(buf->bytes + buf->length, room, format, args);
    if (length >= 0 && (size_t)length >= room) {
        buf->bytes[buf->length] = '\0';
        berth_buf_reserve(buf, (size_t)length);
        if (!buf->failed) {
            length = vsnprintf(buf->bytes + buf->length, (size_t)length + 1, format, again);
        }
    }
    va_end(again);
    va_end(args);
    if (length < 0) {
        buf->failed = true;
    }
    if (!buf->failed) {
        buf->length += (size_t)length;
    }
}

void berth_buf_json_string(struct berth_buf *buf, const char *text, size_t length)
{
    const unsigned char *at = (const unsigned char *)text;
    const unsigned char *end = at + length;
    berth_buf_append(buf, "\"", 1);
    while (at < end) {
        size_t plain = plain_length(at, (size_t)(end - at));
        berth_buf_append(buf, at, plain);
        at += plain;
        if (at < end) {
            put_escaped(buf, *at);
            at++;
        }
    }
    berth_buf_append(buf, "\"", 1);
}

char *berth_buf_release(struct berth_buf *buf, size_t *length_out)
{
    berth_buf_reserve(buf, 0); /* so that an empty one is a string too */
    if (buf->failed) {
        berth_buf_finish(buf);
        return NULL;
    }
    char *bytes = buf->bytes;
    if (length_out != NULL) {
        *length_out = buf->length;
    }
    *buf = (struct berth_buf){0};
    return bytes;
}

size_t berth_utf8_put(char *out, uint32_t point)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xC0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xE0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (point & 0x3F));
    return 4;
}

void berth_buf_utf8(struct berth_buf *buf, const char *bytes, size_t length)
{
    while (length > 0) {
        uint32_t point = 0;
        size_t taken = berth_utf8_next(bytes, length, &point);
        if (point == BERTH_UTF8_INVALID) {
            berth_buf_puts(buf, "\xEF\xBF\xBD");
        } else {
            berth_buf_append(buf, bytes, taken);
        }
        bytes += taken;
        length -= taken;
    }
}

size_t berth_utf8_next(const char *bytes, size_t length, uint32_t *point)
{
    const unsigned char *s = (const unsigned char *)bytes;
    *point = s[0];
    if (s[0] < 0x80) {
        return 1;
    }
    size_t count = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    /* The second byte's bounds rule out overlong forms, surrogates and what lies past U+10FFFF. */
    unsigned low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[0] < 0xC2 || s[0] > 0xF4) {
        *point = BERTH_UTF8_INVALID;
        return 1;
    }
    uint32_t value = s[0] & (0xFFU >> (count + 1));
    for (size_t i = 1; i < count; i++) {
        if (i >= length || s[i] < low || s[i] > high) {
            *point = BERTH_UTF8_INVALID;
            return i;
        }
        value = value << 6 | (s[i] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *point = value;
    return count;
}

size_t berth_utf8_valid_length(const char *text, size_t length)
{
    size_t at = 0;
    uint32_t point;
    while (at < length) {
        size_t step = berth_utf8_next(text + at, length - at, &point);
        if (point == BERTH_UTF8_INVALID) {
            break;
        }
        at += step;
    }
    return at;
}

const char *berth_text_trim(const char *text, size_t *length)
{
    while (*length > 0 && is_space(text[0])) {
        text++;
        (*length)--;
    }
    while (*length > 0 && is_space(text[*length - 1])) {
        (*length)--;
    }
    return text;
}

static bool is_space(char character)
{
    return character == ' ' || (character >= '\t' && character <= '\r');
}

/* How many bytes from `at` go into a JSON string as they are. */
static size_t plain_length(const unsigned char *at, size_t left)
{
    size_t length = 0;
    uint32_t point;
    while (length < left && at[length] >= 0x20 && at[length] != '"' && at[length] != '\\') {
        size_t step = berth_utf8_next((const char *)at + length, left - length, &point);
        if (point == BERTH_UTF8_INVALID) {
            break;
        }
        length += step;
    }
    return length;
}

static void put_escaped(struct berth_buf *buf, unsigned char byte)
{
    static const char short_from[] = "\"\\\b\f\n\r\t";
    static const char short_to[] = "\"\\bfnrt";
    const char *found = byte == 0 ? NULL : strchr(short_from, byte);
    if (byte >= 0x80) {
        berth_buf_puts(buf, "\xEF\xBF\xBD");
    } else if (found != NULL) {
        char pair[2] = {'\\', short_to[found - short_from]};
        berth_buf_append(buf, pair, 2);
    } else {
        berth_buf_printf(buf, "\\u%04x", byte);
    }
}
