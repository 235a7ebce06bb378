/* json_file.h - reads a model folder's JSON file, whatever it holds. */
#ifndef BERTH_JSON_FILE_H
#define BERTH_JSON_FILE_H

#include <stddef.h>

#include <jansson.h>

#include "base/err.h"

/* The caller owns *out (json_decref). NOT_FOUND when there is no such file, TOO_LARGE past
 * bytes_max, INVALID with the line when it is not JSON. */
enum berth_code berth_json_file_read(const char *path, size_t bytes_max, json_t **out,
                                     struct berth_err *err) BERTH_MUST_USE;

#endif
