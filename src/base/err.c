/* err.c - the error table and how a message is filled in. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct code_row {
    const char *name;
    int http;
    int grpc;
    const char *text;
};

static const struct code_row codes[] = {
#define BERTH_ERR_ROW(name, http, grpc, text) {#name, http, grpc, text},
    BERTH_ERRORS(BERTH_ERR_ROW)
#undef BERTH_ERR_ROW
};

static const struct code_row *code_row(enum berth_code code);
static void cut_at_character(char *text, size_t length);

enum berth_code berth_err_set(struct berth_err *err, enum berth_code code, const char *file,
                              int line, const char *field, const char *format, ...)
{
    if (err == NULL) {
        return code;
    }
    err->code = code;
    err->file = file;
    err->line = line;
    err->field = field;
    err->retry_after_ms = 0;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(err->msg, sizeof(err->msg), format, args);
    va_end(args);
    if (length >= (int)sizeof(err->msg)) {
        cut_at_character(err->msg, sizeof(err->msg) - 1);
    }
    return code;
}

const char *berth_code_name(enum berth_code code)
{
    return code_row(code)->name;
}

const char *berth_code_text(enum berth_code code)
{
    return code_row(code)->text;
}

int berth_code_http(enum berth_code code)
{
    return code_row(code)->http;
}

int berth_code_grpc(enum berth_code code)
{
    return code_row(code)->grpc;
}

_Noreturn void berth_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "berth: internal fault: %s at %s:%d\n", condition, file, line);
    abort();
}

static const struct code_row *code_row(enum berth_code code)
{
    BERTH_ASSERT((unsigned)code < BERTH_CODE_COUNT);
    return &codes[code];
}

/* vsnprintf may have cut inside a UTF-8 character: drop its first bytes. */
static void cut_at_character(char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && length - start < 3 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) {
        start--;
    }
    if (start == 0) {
        return;
    }
    unsigned char lead = (unsigned char)text[start - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (want > 1 && length - (start - 1) < want) {
        text[start - 1] = '\0';
    }
}
