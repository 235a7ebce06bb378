/* json_file.c - a size limit before the parser, and errors that name file and line. */
#include "engine/whisper/json_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

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
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return berth_fail(err, BERTH_INVALID, "%s: line %d: %s", path, error.line, error.text);
    }
    *out = root;
    return BERTH_OK;
}
