/* json_file.c - a size limit before the parser, and errors that name file and line. */
#include "engine/json_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

static enum berth_code read_text(const char *path, int fd, size_t length, char **out,
                                 struct berth_err *err);

enum berth_code berth_json_file_read(const char *path, size_t bytes_max, json_t **out,
                                     struct berth_err *err)
{
    int fd = -1;
    uint64_t bytes = 0;
    char *text = NULL;
    json_error_t error;
    BERTH_TRY(berth_file_open(path, &fd, &bytes, err));
    enum berth_code code = BERTH_OK;
    if (bytes > bytes_max) {
        code = berth_fail(err, BERTH_TOO_LARGE, "%s is larger than %zu bytes", path, bytes_max);
    } else {
        code = read_text(path, fd, (size_t)bytes, &text, err);
    }
    close(fd);
    BERTH_TRY(code);
    code = berth_json_read(text, (size_t)bytes, JSON_REJECT_DUPLICATES, out, &error);
    if (code != BERTH_OK) {
        (void)berth_fail(err, code, "%s: line %d: %s", path, error.line, error.text);
    }
    berth_free(text);
    return code;
}

static enum berth_code read_text(const char *path, int fd, size_t length, char **out,
                                 struct berth_err *err)
{
    char *text = berth_alloc(length + 1);
    if (text == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to read %s", path);
    }
    ptrdiff_t got = berth_file_read(fd, text, length);
    if (got < 0 || (size_t)got < length) {
        berth_free(text);
        return got < 0 ? berth_fail(err, BERTH_UNAVAILABLE, "cannot read %s: %s", path,
                                    strerror(errno))
                       : berth_fail(err, BERTH_INVALID, "%s ended early", path);
    }
    *out = text;
    return BERTH_OK;
}
