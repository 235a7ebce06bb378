/* check.c - see check.h. Each message starts with the client's id, as Triton's core does. */
#include "model/check.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

#define BATCH_NOTE                                                                                 \
    ". NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to " \
    "be prepended to each input shape."

static const char *id_of(const struct berth_request *request);
static enum berth_code check_counts(const struct berth_model_spec *spec,
                                    const struct berth_request *request, struct berth_err *err);
static enum berth_code check_input(const struct berth_model_spec *spec,
                                   const struct berth_request *request,
                                   const struct berth_tensor *tensor, struct berth_err *err);
static bool shape_fits(const struct berth_model_spec *spec, const struct berth_io *io,
                       const struct berth_tensor *tensor);
static enum berth_code check_bytes(const struct berth_model_spec *spec,
                                   const struct berth_request *request,
                                   const struct berth_tensor *tensor, struct berth_err *err);
static enum berth_code check_strings(const struct berth_request *request,
                                     const struct berth_tensor *tensor, size_t elements,
                                     struct berth_err *err);
static void put_dims(struct berth_buf *out, bool batch, const int64_t *dims, size_t rank);

enum berth_code berth_model_check(const struct berth_model_spec *spec,
                                  struct berth_request *request, struct berth_err *err)
{
    request->batch_rows = 1;
    for (size_t i = 0; i < request->input_count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(request->inputs[i].name, request->inputs[j].name) == 0) {
                return berth_fail_field(err, BERTH_INVALID, "inputs",
                                        "[request id: %s] input '%s' already exists in request",
                                        id_of(request), request->inputs[i].name);
            }
        }
    }
    BERTH_TRY(check_counts(spec, request, err));
    for (size_t i = 0; i < request->input_count; i++) {
        BERTH_TRY(check_input(spec, request, &request->inputs[i], err));
    }
    if (spec->batch_size_max > 0 && request->input_count > 0) {
        request->batch_rows = (uint64_t)request->inputs[0].dims[0];
        for (size_t i = 1; i < request->input_count; i++) {
            if ((uint64_t)request->inputs[i].dims[0] != request->batch_rows) {
                return berth_fail_field(
                    err, BERTH_INVALID, "inputs",
                    "[request id: %s] input '%s' batch size does not match other inputs for '%s'",
                    id_of(request), request->inputs[i].name, spec->name);
            }
        }
        if (request->batch_rows == 0 || request->batch_rows > spec->batch_size_max) {
            return berth_fail_field(
                err, BERTH_INVALID, "inputs",
                "[request id: %s] inference request batch-size must be <= %llu for '%s'",
                id_of(request), (unsigned long long)spec->batch_size_max, spec->name);
        }
    }
    for (size_t i = 0; i < request->output_wanted_count; i++) {
        if (berth_spec_output(spec, request->outputs_wanted[i]) == NULL) {
            return berth_fail_field(err, BERTH_INVALID, "outputs",
                                    "unexpected inference output '%s' for model '%s'",
                                    request->outputs_wanted[i], spec->name);
        }
    }
    return BERTH_OK;
}

static const char *id_of(const struct berth_request *request)
{
    return request->id_client == NULL || request->id_client[0] == '\0' ? "<id_unknown>"
                                                                       : request->id_client;
}

static enum berth_code check_counts(const struct berth_model_spec *spec,
                                    const struct berth_request *request, struct berth_err *err)
{
    size_t required = 0;
    bool missing = false;
    for (size_t i = 0; i < spec->input_count; i++) {
        bool given = false;
        for (size_t j = 0; j < request->input_count; j++) {
            given = given || strcmp(spec->inputs[i].name, request->inputs[j].name) == 0;
        }
        required += spec->inputs[i].optional ? 0 : 1;
        missing = missing || (!given && !spec->inputs[i].optional);
    }
    for (size_t j = 0; j < request->input_count; j++) {
        if (berth_spec_input(spec, request->inputs[j].name) == NULL) {
            return berth_fail_field(err, BERTH_INVALID, "inputs",
                                    "unexpected inference input '%s' for model '%s'",
                                    request->inputs[j].name, spec->name);
        }
    }
    if (!missing) {
        return BERTH_OK;
    }
    struct berth_buf got = {0};
    struct berth_buf need = {0};
    for (size_t j = 0; j < request->input_count; j++) {
        berth_buf_printf(&got, "%s'%s'", j == 0 ? "" : ",", request->inputs[j].name);
    }
    for (size_t i = 0; i < spec->input_count; i++) {
        bool given = false;
        for (size_t j = 0; j < request->input_count; j++) {
            given = given || strcmp(spec->inputs[i].name, request->inputs[j].name) == 0;
        }
        if (!given && !spec->inputs[i].optional) {
            berth_buf_printf(&need, "%s'%s'", need.length == 0 ? "" : ",", spec->inputs[i].name);
        }
    }
    enum berth_code code = berth_fail_field(
        err, BERTH_INVALID, "inputs",
        "[request id: %s] expected %zu inputs but got %zu inputs for model '%s'. Got input(s) "
        "[%s], "
        "but missing required input(s) [%s]. Please provide all required input(s).",
        id_of(request), required, request->input_count, spec->name, berth_buf_text(&got),
        berth_buf_text(&need));
    berth_buf_finish(&got);
    berth_buf_finish(&need);
    return code;
}

static enum berth_code check_input(const struct berth_model_spec *spec,
                                   const struct berth_request *request,
                                   const struct berth_tensor *tensor, struct berth_err *err)
{
    const struct berth_io *io = berth_spec_input(spec, tensor->name);
    if (tensor->dtype != io->dtype) {
        return berth_fail_field(
            err, BERTH_INVALID, "datatype",
            "[request id: %s] inference input '%s' data-type is '%s', but model '%s' expects '%s'",
            id_of(request), tensor->name, berth_dtype_name(tensor->dtype), spec->name,
            berth_dtype_name(io->dtype));
    }
    if (!shape_fits(spec, io, tensor)) {
        struct berth_buf text = {0};
        berth_buf_puts(&text, "Expected ");
        put_dims(&text, spec->batch_size_max > 0, io->dims, io->rank);
        berth_buf_puts(&text, ", got ");
        put_dims(&text, false, tensor->dims, tensor->rank);
        enum berth_code code = berth_fail_field(
            err, BERTH_INVALID, "shape",
            "[request id: %s] unexpected shape for input '%s' for model '%s'. %s%s", id_of(request),
            tensor->name, spec->name, berth_buf_text(&text),
            spec->batch_size_max > 0 ? BATCH_NOTE : "");
        berth_buf_finish(&text);
        return code;
    }
    return check_bytes(spec, request, tensor, err);
}

static bool shape_fits(const struct berth_model_spec *spec, const struct berth_io *io,
                       const struct berth_tensor *tensor)
{
    size_t batch = spec->batch_size_max > 0 ? 1 : 0;
    if (tensor->rank != io->rank + batch) {
        return false;
    }
    for (size_t i = 0; i < io->rank; i++) {
        if (io->dims[i] >= 0 && io->dims[i] != tensor->dims[i + batch]) {
            return false;
        }
    }
    return true;
}

static enum berth_code check_bytes(const struct berth_model_spec *spec,
                                   const struct berth_request *request,
                                   const struct berth_tensor *tensor, struct berth_err *err)
{
    size_t elements = 0;
    size_t bytes = 0;
    bool sized = berth_tensor_elements(tensor, &elements);
    if (sized && tensor->dtype == BERTH_DTYPE_BYTES) {
        return check_strings(request, tensor, elements, err);
    }
    sized = sized && berth_mul_size(elements, berth_dtype_bytes(tensor->dtype), &bytes);
    if (!sized || bytes != tensor->range.length) {
        return berth_fail_field(
            err, BERTH_INVALID, "inputs",
            "[request id: %s] input byte size mismatch for input '%s' for model "
            "'%s'. Expected %zu, got %llu",
            id_of(request), tensor->name, spec->name, bytes,
            (unsigned long long)tensor->range.length);
    }
    return BERTH_OK;
}

static enum berth_code check_strings(const struct berth_request *request,
                                     const struct berth_tensor *tensor, size_t elements,
                                     struct berth_err *err)
{
    const unsigned char *at = berth_slabs_pointer(request->slabs, &tensor->range);
    const unsigned char *end = at == NULL ? NULL : at + tensor->range.length;
    const char *bytes;
    uint32_t length;
    size_t found = 0;
    while (found < elements && berth_bytes_next(&at, end, &bytes, &length)) {
        found++;
    }
    if (found != elements || at != end) {
        return berth_fail_field(err, BERTH_INVALID, "inputs",
                                "[request id: %s] expected %zu string elements for inference input "
                                "'%s', got %zu and %zu bytes left over",
                                id_of(request), elements, tensor->name, found,
                                at == NULL ? (size_t)0 : (size_t)(end - at));
    }
    return BERTH_OK;
}

static void put_dims(struct berth_buf *out, bool batch, const int64_t *dims, size_t rank)
{
    berth_buf_puts(out, "[");
    if (batch) {
        berth_buf_puts(out, rank > 0 ? "-1," : "-1");
    }
    for (size_t i = 0; i < rank; i++) {
        berth_buf_printf(out, "%s%lld", i == 0 ? "" : ",", (long long)dims[i]);
    }
    berth_buf_puts(out, "]");
}
