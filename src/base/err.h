/* err.h - error codes, and what an error carries home to whoever caused it.
 *
 * One table: the enum, the text, the HTTP and the gRPC status all come from it. An error is filled
 * in once, where it is detected, and logged once, where it is answered.
 */
#ifndef BERTH_ERR_H
#define BERTH_ERR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*    name             HTTP gRPC text */
#define BERTH_ERRORS(X)                                                                            \
    X(OK, 200, 0, "ok")                                                                            \
    X(INVALID, 400, 3, "invalid argument")                                                         \
    X(UNAUTHENTICATED, 401, 16, "no or unknown key")                                               \
    X(FORBIDDEN, 403, 7, "not allowed for this key")                                               \
    X(NOT_FOUND, 404, 5, "not found")                                                              \
    X(TOO_SLOW, 408, 4, "body came too slowly")                                                    \
    X(CONFLICT, 409, 10, "in conflict with the present state")                                     \
    X(TOO_LARGE, 413, 8, "too large for the limits or device")                                     \
    X(MEDIA, 415, 3, "cannot be decoded")                                                          \
    X(BUSY, 429, 8, "queue or memory full; retry")                                                 \
    X(CANCELLED, 499, 1, "cancelled by client")                                                    \
    X(INTERNAL, 500, 13, "internal error")                                                         \
    X(UNSUPPORTED, 501, 12, "not supported by this build or model")                                \
    X(UNAVAILABLE, 503, 14, "device or model unavailable")                                         \
    X(DEADLINE, 504, 4, "deadline exceeded")

enum berth_code {
#define BERTH_ERR_ENUM(name, http, grpc, text) BERTH_##name,
    BERTH_ERRORS(BERTH_ERR_ENUM)
#undef BERTH_ERR_ENUM
        BERTH_CODE_COUNT
};

/* Lives on the caller's stack or inside a longer-lived struct; there is nothing to free. */
struct berth_err {
    enum berth_code code;
    int line;
    const char *file;
    const char *field;       /* the request's field at fault, or NULL; a string literal */
    uint32_t retry_after_ms; /* 0: do not retry */
    char msg[240];           /* always valid UTF-8 and terminated */
};

#define BERTH_MUST_USE __attribute__((warn_unused_result))
#define BERTH_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))

/* Fills err (which may be NULL) and returns code. The message is cut at a character boundary. */
#define berth_fail(err, code, ...)                                                                 \
    berth_err_set((err), (code), __FILE__, __LINE__, NULL, __VA_ARGS__)
/* As berth_fail, and names the request's field at fault (a string literal). */
#define berth_fail_field(err, code, field, ...)                                                    \
    berth_err_set((err), (code), __FILE__, __LINE__, (field), __VA_ARGS__)

enum berth_code berth_err_set(struct berth_err *err, enum berth_code code, const char *file,
                              int line, const char *field, const char *format, ...)
    BERTH_PRINTF(6, 7);

/* The only macro that hides control flow: passes an error on. */
#define BERTH_TRY(expr)                                                                            \
    do {                                                                                           \
        enum berth_code berth_try_code_ = (expr);                                                  \
        if (berth_try_code_ != BERTH_OK) {                                                         \
            return berth_try_code_;                                                                \
        }                                                                                          \
    } while (0)

const char *berth_code_name(enum berth_code code);  /* "INVALID"; static storage */
const char *berth_code_text(enum berth_code code);  /* "invalid argument"; static storage */
int berth_code_http(enum berth_code code);
int berth_code_grpc(enum berth_code code);

/* For our own bugs only, one condition each; on in release builds too. Ends the process. */
#define BERTH_ASSERT(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            berth_assert_failed(#condition, __FILE__, __LINE__);                                   \
        }                                                                                          \
    } while (0)

void berth_assert_failed(const char *condition, const char *file, int line)
    __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
