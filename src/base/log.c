/* log.c - what a line looks like; log_out.c writes it.
 *
 * Where the message ends and its keys begin is read from the format, which is ours, never from the
 * text, which may hold a client's words: the space before each " key=" of the format becomes a
 * mark. Should the text hold other marks than those, it is all taken as one message.
 *
 * Clients cause lines, and a line costs a write and a piece of disk, so a second has room for
 * LINES_MAX of them. What is left out is counted, and told with the first line of a later second.
 * Errors are always told, and so is everything to who asks for DEBUG. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log_out.h"

#define MARK '\x1f'
#define LINES_MAX 1000
#define TEXT_BYTES 960 /* a quarter of a line and less: room for every byte escaped */

struct line {
    size_t length;
    char bytes[BERTH_LOG_LINE_MAX];
};

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG"};
static _Atomic int level_max = BERTH_LOG_INFO;
static _Atomic uint64_t second_now;
static _Atomic uint64_t lines_now; /* wanted in that second, left out or not */

static bool may_log(enum berth_log_level level);
static void put_line(enum berth_log_level level, const char *module, uint64_t request_id,
                     const char *text, size_t marks);
static bool has_room(enum berth_log_level level, uint64_t second, uint64_t *left_out);
static size_t mark_keys(const char *format, char *out);
static size_t count_marks(const char *text);
static void put_head(struct line *line, enum berth_log_level level, const char *module);
static void put_printf(struct line *line, const char *format, ...) BERTH_PRINTF(2, 3);
static void put_char(struct line *line, char byte);
static void put_quoted(struct line *line, const char *text, size_t length);
static void put_pair(struct line *line, const char *pair, size_t length);

void berth_log_set_level(enum berth_log_level level)
{
    atomic_store_explicit(&level_max, (int)level, memory_order_relaxed);
}

enum berth_code berth_log_parse_level(const char *name, struct berth_err *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            berth_log_set_level((enum berth_log_level)i);
            return BERTH_OK;
        }
    }
    return berth_fail(err, BERTH_INVALID, "--log-level '%.40s' is not error, warn, info or debug",
                      name);
}

bool berth_log_enabled(enum berth_log_level level)
{
    return (int)level <= atomic_load_explicit(&level_max, memory_order_relaxed);
}

void berth_log(enum berth_log_level level, const char *module, uint64_t request_id,
               const char *format, ...)
{
    char marked[TEXT_BYTES];
    char text[TEXT_BYTES];
    if (!may_log(level)) {
        return;
    }
    size_t marks = mark_keys(format, marked);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof(text), marks > 0 ? marked : format, args);
    va_end(args);
    put_line(level, module, request_id, text, length < TEXT_BYTES ? marks : SIZE_MAX);
}

void berth_log_err(enum berth_log_level level, const char *module, uint64_t request_id,
                   const struct berth_err *err)
{
    berth_log_err_model(level, module, request_id, err, NULL);
}

void berth_log_err_model(enum berth_log_level level, const char *module, uint64_t request_id,
                         const struct berth_err *err, const char *model)
{
    char text[TEXT_BYTES];
    char place[80] = ""; /* none: it is from another process */
    if (!may_log(level)) {
        return;
    }
    if (err->file != NULL) {
        const char *slash = strrchr(err->file, '/');
        snprintf(place, sizeof(place), "%s:%d", slash == NULL ? err->file : slash + 1, err->line);
    }
    const char *pairs[][2] = {{"code", berth_code_name(err->code)},
                              {"field", err->field},
                              {"model", model},
                              {"at", place[0] == '\0' ? NULL : place}};
    size_t marks = 0;
    size_t length = (size_t)snprintf(text, sizeof(text), "%s", err->msg);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        if (pairs[i][1] != NULL && length < sizeof(text)) {
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%c%s=%s", MARK,
                                       pairs[i][0], pairs[i][1]);
            marks++;
        }
    }
    put_line(level, module, request_id, text, marks);
}

void berth_log_flush(void)
{
    (void)berth_log_out_flush();
}

/* At this level, and in this second? Tells how many lines had no room in the one before. */
static bool may_log(enum berth_log_level level)
{
    uint64_t left_out = 0;
    if (!berth_log_enabled(level)) {
        return false;
    }
    bool room = has_room(level, berth_clock_now_ns() / BERTH_NS_PER_S, &left_out);
    if (left_out > 0) {
        berth_log(BERTH_LOG_ERROR, "log", 0, "more lines than a second has room for left_out=%llu",
                  (unsigned long long)left_out);
    }
    return room;
}

/* text: the message and its pairs, each behind a mark. Of other marks than these it is one
 * message. */
static void put_line(enum berth_log_level level, const char *module, uint64_t request_id,
                     const char *text, size_t marks)
{
    struct line line = {.length = 0};
    put_head(&line, level, module);
    if (request_id != 0) {
        put_printf(&line, " req=%llu", (unsigned long long)request_id);
    }
    put_printf(&line, " msg=");
    size_t piece = count_marks(text) == marks ? strcspn(text, "\x1f") : strlen(text);
    put_quoted(&line, text, piece);
    for (const char *at = text + piece; *at != '\0'; at += piece) {
        at++; /* over the mark */
        piece = strcspn(at, "\x1f");
        put_pair(&line, at, piece);
    }
    line.bytes[line.length] = '\n'; /* put_char left room */
    berth_log_out_put(line.bytes, line.length + 1);
}

/* *left_out: how many lines of the second before had none; told to one caller only. */
static bool has_room(enum berth_log_level level, uint64_t second, uint64_t *left_out)
{
    if (level == BERTH_LOG_ERROR || berth_log_enabled(BERTH_LOG_DEBUG)) {
        return true;
    }
    uint64_t before = atomic_load(&second_now);
    if (before != second && atomic_compare_exchange_strong(&second_now, &before, second)) {
        uint64_t lines = atomic_exchange(&lines_now, 0);
        *left_out = lines > LINES_MAX ? lines - LINES_MAX : 0;
    }
    return atomic_fetch_add(&lines_now, 1) < LINES_MAX;
}

/* Copies format with a mark for the space before each key; 0: there are none, or it is too long. */
static size_t mark_keys(const char *format, char *out)
{
    size_t marks = 0;
    size_t length = strlen(format);
    if (length >= TEXT_BYTES) {
        return 0;
    }
    memcpy(out, format, length + 1);
    for (char *at = out; *at != '\0'; at++) {
        size_t key = *at == ' ' ? strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_") : 0;
        if (key > 0 && at[1 + key] == '=') {
            *at = MARK;
            marks++;
        }
    }
    return marks;
}

static size_t count_marks(const char *text)
{
    size_t marks = 0;
    for (; *text != '\0'; text++) {
        marks += *text == MARK;
    }
    return marks;
}

static void put_head(struct line *line, enum berth_log_level level, const char *module)
{
    struct tm utc;
    uint64_t now_ns = berth_clock_wall_ns();
    time_t now_s = (time_t)(now_ns / BERTH_NS_PER_S);
    unsigned us = (unsigned)(now_ns % BERTH_NS_PER_S / BERTH_NS_PER_US);
    gmtime_r(&now_s, &utc);
    put_printf(line, "%04d-%02d-%02dT%02d:%02d:%02d.%06uZ %s %s", utc.tm_year + 1900,
               utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, us,
               level_names[level], module);
}

static void put_printf(struct line *line, const char *format, ...)
{
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    for (const char *at = text; *at != '\0'; at++) {
        put_char(line, *at);
    }
}

static void put_char(struct line *line, char byte)
{
    if (line->length < BERTH_LOG_LINE_MAX - 1) {
        line->bytes[line->length++] = byte;
    }
}

static void put_quoted(struct line *line, const char *text, size_t length)
{
    put_char(line, '"');
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == 0x7F) {
            put_printf(line, "\\x%02x", byte);
        } else {
            if (byte == '"' || byte == '\\') {
                put_char(line, '\\');
            }
            put_char(line, text[i]);
        }
    }
    put_char(line, '"');
}

/* " key=value"; the value is quoted unless it is one plain word. */
static void put_pair(struct line *line, const char *pair, size_t length)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "._:/@+-,%";
    size_t key = strcspn(pair, "=") + 1;
    put_char(line, ' ');
    for (size_t i = 0; i < key; i++) {
        put_char(line, pair[i]);
    }
    bool bare = key < length && strspn(pair + key, plain) >= length - key;
    if (!bare) {
        put_quoted(line, pair + key, length - key);
        return;
    }
    for (size_t i = key; i < length; i++) {
        put_char(line, pair[i]);
    }
}
