/* onnx_file.h - what an ONNX file says of itself, read without loading it: inputs, outputs, bytes.
 *
 * In:      a path; the file is hostile.    Out: names, types, shapes, and what its weights weigh.
 * Owns:    its arena.                      Threads: any.
 * Not here: shapes that the file leaves out and only a session can infer (onnx_describe.c).
 */
#ifndef BERTH_ONNX_FILE_H
#define BERTH_ONNX_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "request/request.h"

struct berth_onnx_io {
    const char *name;
    enum berth_dtype dtype; /* NONE: no tensor, or of a type that berth does not serve */
    bool shaped;            /* rank and dims are known */
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX]; /* -1: variable */
};

struct berth_onnx_file {
    struct berth_arena arena;
    struct berth_onnx_io *inputs; /* those without an initialiser */
    size_t input_count;
    struct berth_onnx_io *outputs;
    size_t output_count;
    uint64_t bytes;          /* of the file */
    uint64_t bytes_external; /* of tensors kept in files beside it */
};

/* INVALID, with the file's name and the byte, where it is not an ONNX model; NOT_FOUND; UNAVAILABLE
 * where memory or descriptors have run out, which says nothing about the file. */
enum berth_code berth_onnx_file_read(const char *path, struct berth_onnx_file *out,
                                     struct berth_err *err) BERTH_MUST_USE;
void berth_onnx_file_finish(struct berth_onnx_file *file); /* zeroed memory is fine */

#endif
