/* err.c - the error table and how a message is filled in.
 *
 * Messages quote what clients and files sent, so they are made valid UTF-8 here, once. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log_out.h"

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
static void make_valid(char *text, bool cut);

enum berth_code berth_err_set(struct berth_err *err, enum berth_code code, const char *file,
                              int line, const char *field, const char *format, ...)
{
    if (err == NULL) {
        return code;
    }
    char msg[sizeof(err->msg)]; /* the arguments may point into *err */
    va_list args;
    va_start(args, format);
    int length = vsnprintf(msg, sizeof(msg), format, args);
    va_end(args);
    make_valid(msg, length >= (int)sizeof(msg));
    *err = (struct berth_err){.code = code, .file = file, .line = line, .field = field};
    memcpy(err->msg, msg, sizeof(msg));
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

void berth_assert_failed(const char *condition, const char *file, int line)
{
    char text[512];
    int length = snprintf(text, sizeof(text), "berth: internal fault: %.300s at %.100s:%d\n",
                          condition, file, line);
    berth_log_out_last(text, (size_t)length);
    abort();
}

static const struct code_row *code_row(enum berth_code code)
{
    BERTH_ASSERT((unsigned)code < BERTH_CODE_COUNT);
    return &codes[code];
}

/* A '?' for each byte that is not UTF-8; a character that vsnprintf cut in two is dropped. */
static void make_valid(char *text, bool cut)
{
    size_t length = strlen(text);
    size_t valid = 0;
    while ((valid += berth_utf8_valid_length(text + valid, length - valid)) < length) {
        if (cut && length - valid < 4 && (unsigned char)text[valid] >= 0xC2) {
            text[valid] = '\0';
            return;
        }
        text[valid] = '?';
    }
}
