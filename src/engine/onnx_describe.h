/* onnx_describe.h - what a model's ONNX file says, into its spec; and where that file is. */
#ifndef BERTH_ONNX_DESCRIBE_H
#define BERTH_ONNX_DESCRIBE_H

#include <stddef.h>

#include "base/err.h"
#include "model/model.h"

#define BERTH_ONNX_PATH_BYTES 4096

/* The engine's describe. */
enum berth_code berth_onnx_describe(struct berth_model_spec *spec,
                                    struct berth_err *err) BERTH_MUST_USE;
/* The file of the spec's version: default_model_filename, else model.onnx; of a folder of that
 * name the model.onnx inside. */
enum berth_code berth_onnx_path(const struct berth_model_spec *spec, char *out, size_t bytes,
                                struct berth_err *err) BERTH_MUST_USE;

#endif
