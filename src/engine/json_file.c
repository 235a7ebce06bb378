/* json_file.c - a size limit before the parser, and errors that name file and line. */
#include "engine/json_file.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

enum berth_code berth_json_file_read(const char *path, size_t bytes_max, json_t **out,
                                     struct berth_err *err)
{
    char *text = NULL;
    size_t length = 0;
    json_error_t error;
    BERTH_TRY(berth_file_load(path, bytes_max, &text, &length, err));
    enum berth_code code = berth_json_read(text, length, JSON_REJECT_DUPLICATES, out, &error);
    if (code != BERTH_OK) {
        (void)berth_fail(err, code, "%s: line %d: %s", path, error.line, error.text);
    }
    berth_free(text);
    return code;
}
