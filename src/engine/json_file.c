/* json_file.c - a size limit before the parser, and errors that name file and line. */
#include "engine/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/mem.h"

static enum berth_code read_text(const char *path, size_t length, char **out,
                                 struct berth_err *err);

enum berth_code berth_json_file_read(const char *path, size_t bytes_max, json_t **out,
                                     struct berth_err *err)
{
    struct stat info;
    json_error_t error;
    if (stat(path, &info) != 0) {
        return berth_fail(err, errno == ENOENT ? BERTH_NOT_FOUND : BERTH_INVALID,
                          "cannot read %s: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode) || info.st_size < 0 || (size_t)info.st_size > bytes_max) {
        return berth_fail(err, BERTH_TOO_LARGE, "%s is no file of at most %zu bytes", path,
                          bytes_max);
    }
    char *text = NULL;
    BERTH_TRY(read_text(path, (size_t)info.st_size, &text, err));
    enum berth_code code =
        berth_json_read(text, (size_t)info.st_size, JSON_REJECT_DUPLICATES, out, &error);
    if (code != BERTH_OK) {
        (void)berth_fail(err, code, "%s: line %d: %s", path, error.line, error.text);
    }
    berth_free(text);
    return code;
}

static enum berth_code read_text(const char *path, size_t length, char **out, struct berth_err *err)
{
    FILE *file = fopen(path, "rb");
    char *text = berth_alloc(length + 1);
    enum berth_code code = BERTH_OK;
    if (file == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot read %s: %s", path, strerror(errno));
    } else if (text == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory to read %s", path);
    } else if (fread(text, 1, length, file) != length) {
        code = berth_fail(err, BERTH_INVALID, "%s ended early", path);
    } else {
        *out = text;
        text = NULL;
    }
    berth_free(text);
    if (file != NULL) {
        fclose(file);
    }
    return code;
}
