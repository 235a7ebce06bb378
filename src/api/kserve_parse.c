/* kserve_parse.c - the body of a KServe inference request, made into tensors.
 *
 * A body is JSON, or JSON followed by the raw bytes of its inputs (Inference-Header-Content-Length
 * says where they begin), or raw bytes only. Raw bytes are never copied: an input is a slice of the
 * body's range. JSON data becomes a range of its own. Texts are Triton's; what its front end cannot
 * parse it answers with 500, which field == berth_kserve_unparsed marks.
 */
#include "api/kserve_parse.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "api/kserve_json.h"
#include "base/clock.h"
#include "base/json.h"
#include "model/check.h"

#define TIMEOUT_US_MAX INT64_C(86400000000) /* a day */

static enum berth_code header_length(struct berth_kserve_form *form, size_t body_bytes,
                                     size_t *json_bytes, bool *raw, struct berth_err *err);
static enum berth_code parse_raw(struct berth_kserve_form *form, struct berth_err *err);
static enum berth_code parse_json(struct berth_kserve_form *form, json_t *root, size_t json_bytes,
                                  struct berth_err *err);
static enum berth_code parse_parameters(struct berth_kserve_form *form, json_t *parameters,
                                        struct berth_err *err);
static enum berth_code parse_parameter(struct berth_kserve_form *form, const char *key,
                                       json_t *value, struct berth_err *err);
static enum berth_code parse_inputs(struct berth_kserve_form *form, json_t *inputs,
                                    size_t json_bytes, struct berth_err *err);
static enum berth_code parse_input(struct berth_kserve_form *form, json_t *item,
                                   struct berth_tensor *tensor, size_t *at, struct berth_err *err);
static enum berth_code parse_shape(json_t *shape, struct berth_tensor *tensor,
                                   struct berth_err *err);
static enum berth_code input_binary(struct berth_kserve_form *form, json_t *size,
                                    struct berth_tensor *tensor, size_t *at, struct berth_err *err);
static enum berth_code input_data(struct berth_kserve_form *form, json_t *items,
                                  struct berth_tensor *tensor, struct berth_err *err);
static enum berth_code parse_outputs(struct berth_kserve_form *form, json_t *outputs,
                                     struct berth_err *err);
static enum berth_code check_text(json_t *string, const char *key, struct berth_err *err);

enum berth_code berth_kserve_parse(struct berth_kserve_form *form, struct berth_err *err)
{
    struct berth_request *request = form->request;
    size_t body_bytes = (size_t)request->body.length;
    size_t json_bytes = 0;
    bool raw = false;
    BERTH_TRY(header_length(form, body_bytes, &json_bytes, &raw, err));
    if (raw || body_bytes == 0) {
        BERTH_TRY(parse_raw(form, err));
        return berth_model_check(form->spec, request, err);
    }
    if (json_bytes > form->json_bytes_max) {
        return berth_fail_field(err, BERTH_TOO_LARGE, "inputs",
                                "JSON of %zu bytes; send large tensors by the binary extension",
                                json_bytes);
    }
    json_error_t json_err;
    const char *text = berth_slabs_pointer(request->slabs, &request->body);
    json_t *root = NULL;
    enum berth_code code = berth_json_read(text, json_bytes, JSON_ALLOW_NUL, &root, &json_err);
    if (code == BERTH_UNAVAILABLE) {
        return berth_fail(err, code, "no memory for the request");
    }
    if (code != BERTH_OK) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "failed to parse the request JSON buffer: %s. at %d", json_err.text,
                                json_err.position);
    }
    code = parse_json(form, root, json_bytes, err);
    json_decref(root);
    return code == BERTH_OK ? berth_model_check(form->spec, request, err) : code;
}

/* Where the JSON ends. A value that is no number reads as 0, as in Triton: raw bytes only. */
static enum berth_code header_length(struct berth_kserve_form *form, size_t body_bytes,
                                     size_t *json_bytes, bool *raw, struct berth_err *err)
{
    const char *text = form->header_length;
    if (text == NULL) {
        *json_bytes = body_bytes;
        return BERTH_OK;
    }
    long long value = strtoll(text, NULL, 10);
    if (value < 0 || (unsigned long long)value > body_bytes) {
        return berth_fail(err, BERTH_INVALID,
                          "inference header size should be in range (0, %zu), got: %lld",
                          body_bytes, value);
    }
    *json_bytes = (size_t)value;
    *raw = value == 0;
    return BERTH_OK;
}

/* The body is the one input's bytes; its one variable dimension follows from their number. */
static enum berth_code parse_raw(struct berth_kserve_form *form, struct berth_err *err)
{
    const struct berth_model_spec *spec = form->spec;
    struct berth_request *request = form->request;
    form->binary_all = true;
    if (spec->input_count != 1) {
        return berth_fail(
            err, BERTH_INVALID,
            "Raw request must only have 1 input (found %zu) to be deduced but got %zu "
            "inputs in '%s' model configuration",
            spec->input_count, spec->input_count, spec->name);
    }
    struct berth_tensor *tensor = berth_arena_alloc(&request->arena, sizeof(*tensor));
    if (tensor == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    const struct berth_io *io = &spec->inputs[0];
    tensor->name = berth_arena_strdup(&request->arena, io->name);
    tensor->dtype = io->dtype;
    tensor->range = request->body;
    if (spec->batch_size_max > 0) {
        tensor->dims[tensor->rank++] = 1;
    }
    size_t known = berth_dtype_bytes(io->dtype);
    int variable = -1;
    bool deduced = tensor->name != NULL && known > 0;
    for (size_t i = 0; i < io->rank && deduced; i++) {
        if (io->dims[i] < 0) {
            deduced = variable < 0;
            variable = tensor->rank;
        } else {
            deduced = berth_mul_size(known, (size_t)io->dims[i], &known);
        }
        tensor->dims[tensor->rank++] = io->dims[i];
    }
    if (!deduced || (variable >= 0 && known == 0)) {
        return berth_fail(err, BERTH_INVALID,
                          "the shape of input '%s' cannot be deduced from a raw request's bytes",
                          io->name);
    }
    if (variable >= 0) {
        tensor->dims[variable] = (int64_t)(request->body.length / known);
    }
    request->inputs = tensor;
    request->input_count = 1;
    return BERTH_OK;
}

static enum berth_code parse_json(struct berth_kserve_form *form, json_t *root, size_t json_bytes,
                                  struct berth_err *err)
{
    struct berth_request *request = form->request;
    if (!json_is_object(root)) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "failed to parse the request JSON buffer: not an object. at 0");
    }
    json_t *id = json_object_get(root, "id");
    if (id != NULL) {
        if (!json_is_string(id)) {
            return berth_fail_field(
                err, BERTH_INVALID, berth_kserve_unparsed,
                "Unable to parse 'id': attempt to access JSON non-string as string");
        }
        BERTH_TRY(check_text(id, "id", err));
        request->id_client = berth_arena_strdup(&request->arena, json_string_value(id));
        if (request->id_client == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
        }
    }
    BERTH_TRY(parse_parameters(form, json_object_get(root, "parameters"), err));
    json_t *inputs = json_object_get(root, "inputs");
    if (inputs == NULL) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'");
    }
    if (!json_is_array(inputs)) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'inputs': attempt to access JSON non-array as array");
    }
    BERTH_TRY(parse_inputs(form, inputs, json_bytes, err));
    return parse_outputs(form, json_object_get(root, "outputs"), err);
}

static enum berth_code parse_parameters(struct berth_kserve_form *form, json_t *parameters,
                                        struct berth_err *err)
{
    struct berth_request *request = form->request;
    if (parameters == NULL) {
        return BERTH_OK;
    }
    if (!json_is_object(parameters)) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'parameters': attempt to access JSON non-object as object");
    }
    size_t count = json_object_size(parameters);
    request->params.items = berth_arena_alloc(&request->arena,
                                              (count + 1) * sizeof(struct berth_param));
    if (request->params.items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    const char *key;
    json_t *value;
    json_object_foreach(parameters, key, value)
    {
        BERTH_TRY(parse_parameter(form, key, value, err));
    }
    return BERTH_OK;
}

static enum berth_code parse_parameter(struct berth_kserve_form *form, const char *key,
                                       json_t *value, struct berth_err *err)
{
    struct berth_request *request = form->request;
    if (strncmp(key, "triton_", 7) == 0) {
        return berth_fail_field(err, BERTH_INVALID, "parameters",
                                "parameter keys starting with 'triton_' are reserved for Triton "
                                "usage and should not be specified.");
    }
    if (strcmp(key, "binary_data_output") == 0) {
        form->binary_all = json_is_true(value);
        return BERTH_OK;
    }
    if (strcmp(key, "priority") == 0 && json_is_integer(value) && json_integer_value(value) >= 0) {
        request->priority = (uint64_t)json_integer_value(value);
        return BERTH_OK;
    }
    if (strcmp(key, "timeout") == 0 && json_is_integer(value)) {
        int64_t us = json_integer_value(value);
        if (us > 0) { /* 0: none, as in Triton */
            us = us < TIMEOUT_US_MAX ? us : TIMEOUT_US_MAX;
            request->t_deadline_ns = request->stamps.t_head_ns + (uint64_t)us * BERTH_NS_PER_US;
            request->timeout_named = true;
        }
        return BERTH_OK;
    }
    struct berth_param *param = &request->params.items[request->params.count];
    param->name = berth_arena_strdup(&request->arena, key);
    if (json_is_boolean(value)) {
        param->kind = BERTH_PARAM_BOOL;
        param->value.boolean = json_is_true(value);
    } else if (json_is_integer(value)) {
        param->kind = BERTH_PARAM_INT;
        param->value.integer = json_integer_value(value);
    } else if (json_is_real(value)) {
        param->kind = BERTH_PARAM_REAL;
        param->value.real = json_real_value(value);
    } else if (json_is_string(value)) {
        BERTH_TRY(check_text(value, "parameters", err));
        param->kind = BERTH_PARAM_STRING;
        param->value.string = berth_arena_strdup(&request->arena, json_string_value(value));
    } else {
        return berth_fail_field(err, BERTH_INVALID, "parameters",
                                "parameter '%s' must be a string, a number or a boolean", key);
    }
    if (param->name == NULL || (param->kind == BERTH_PARAM_STRING && param->value.string == NULL)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    request->params.count++;
    return BERTH_OK;
}

static enum berth_code parse_inputs(struct berth_kserve_form *form, json_t *inputs,
                                    size_t json_bytes, struct berth_err *err)
{
    struct berth_request *request = form->request;
    size_t count = json_array_size(inputs);
    if (count > BERTH_KSERVE_IO_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "inputs", "more than %d inputs",
                                BERTH_KSERVE_IO_MAX);
    }
    request->inputs = berth_arena_alloc(&request->arena, (count + 1) * sizeof(*request->inputs));
    if (request->inputs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    size_t at = json_bytes;
    for (size_t i = 0; i < count; i++) {
        BERTH_TRY(parse_input(form, json_array_get(inputs, i), &request->inputs[i], &at, err));
        request->input_count++;
    }
    if (at != request->body.length) {
        return berth_fail_field(err, BERTH_INVALID, "inputs",
                                "unexpected additional input data for model '%s'",
                                form->spec->name);
    }
    return BERTH_OK;
}

static enum berth_code member_string(json_t *item, const char *key, const char **out,
                                     struct berth_err *err)
{
    json_t *value = json_object_get(item, key);
    if (value == NULL) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse '%s': attempt to access non-existing object member '%s'", key, key);
    }
    if (!json_is_string(value)) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "Unable to parse '%s': attempt to access JSON non-string as string",
                                key);
    }
    BERTH_TRY(check_text(value, key, err));
    *out = json_string_value(value);
    return BERTH_OK;
}

/* Only elements of BYTES tensors may hold NULs: what is a C string here would be cut. */
static enum berth_code check_text(json_t *string, const char *key, struct berth_err *err)
{
    if (strlen(json_string_value(string)) == json_string_length(string)) {
        return BERTH_OK;
    }
    return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                            "Unable to parse '%s': a NUL in the text", key);
}

static enum berth_code parse_input(struct berth_kserve_form *form, json_t *item,
                                   struct berth_tensor *tensor, size_t *at, struct berth_err *err)
{
    const char *name = NULL;
    const char *dtype = NULL;
    BERTH_TRY(member_string(item, "name", &name, err));
    BERTH_TRY(parse_shape(json_object_get(item, "shape"), tensor, err));
    BERTH_TRY(member_string(item, "datatype", &dtype, err));
    tensor->name = berth_arena_strdup(&form->request->arena, name);
    if (tensor->name == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    tensor->dtype = berth_dtype_parse(dtype, strlen(dtype));
    if (tensor->dtype == BERTH_DTYPE_NONE) {
        return berth_fail_field(err, BERTH_INVALID, "datatype", "invalid datatype for input %s",
                                name);
    }
    json_t *parameters = json_object_get(item, "parameters");
    json_t *size = json_object_get(parameters, "binary_data_size");
    json_t *region = json_object_get(parameters, "shared_memory_region");
    json_t *items = json_object_get(item, "data");
    int given = (size != NULL) + (region != NULL) + (items != NULL);
    if (given != 1) {
        return berth_fail_field(
            err, BERTH_INVALID, "inputs",
            "Input must set only one of the following fields: 'data', 'binary_data_size' in "
            "'parameters', 'shared_memory_region' in 'parameters'. But %s",
            given == 0 ? "no field is set" : "more than one is set");
    }
    if (region != NULL) {
        return berth_fail_field(err, BERTH_NOT_FOUND, "shared_memory_region",
                                "Unable to find shared memory region: '%s'",
                                json_is_string(region) ? json_string_value(region) : "");
    }
    return size != NULL ? input_binary(form, size, tensor, at, err)
                        : input_data(form, items, tensor, err);
}

static enum berth_code parse_shape(json_t *shape, struct berth_tensor *tensor,
                                   struct berth_err *err)
{
    if (shape == NULL) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'shape': attempt to access non-existing object member 'shape'");
    }
    if (!json_is_array(shape)) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'shape': attempt to access JSON non-array as array");
    }
    if (json_array_size(shape) > BERTH_RANK_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "shape", "more than %d dimensions",
                                BERTH_RANK_MAX);
    }
    for (size_t i = 0; i < json_array_size(shape); i++) {
        json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                    "Unable to parse 'shape': attempt to access JSON "
                                    "non-unsigned-integer as unsigned-integer");
        }
        tensor->dims[tensor->rank++] = json_integer_value(dim);
    }
    return BERTH_OK;
}

/* The next binary_data_size bytes after the JSON: a slice of the body, nothing copied. */
static enum berth_code input_binary(struct berth_kserve_form *form, json_t *size,
                                    struct berth_tensor *tensor, size_t *at, struct berth_err *err)
{
    const struct berth_range *body = &form->request->body;
    if (!json_is_integer(size) || json_integer_value(size) < 0) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "Unable to parse 'binary_data_size': attempt to access JSON "
                                "non-unsigned-integer as unsigned-integer");
    }
    uint64_t bytes = (uint64_t)json_integer_value(size);
    uint64_t left = body->length - *at;
    if (bytes > left) {
        return berth_fail_field(
            err, BERTH_INVALID, "binary_data_size",
            "unexpected size for input '%s', expecting %llu additional bytes for model '%s'",
            tensor->name, (unsigned long long)(bytes - left), form->spec->name);
    }
    if (!berth_range_slice(body, *at, bytes, &tensor->range)) {
        return berth_fail(err, BERTH_INTERNAL, "a slice outside of the body");
    }
    *at += (size_t)bytes;
    return BERTH_OK;
}

static enum berth_code input_data(struct berth_kserve_form *form, json_t *items,
                                  struct berth_tensor *tensor, struct berth_err *err)
{
    struct berth_request *request = form->request;
    if (tensor->dtype == BERTH_DTYPE_FP16 || tensor->dtype == BERTH_DTYPE_BF16) {
        return berth_fail_field(
            err, BERTH_INVALID, "data",
            "receiving %s data via JSON is not supported. Please use the binary "
            "data format for input %s",
            berth_dtype_name(tensor->dtype), tensor->name);
    }
    if (!json_is_array(items)) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'data': attempt to access JSON non-array as array");
    }
    struct berth_buf bytes = {0};
    size_t count = 0;
    size_t elements = 0;
    enum berth_code code = berth_kserve_read_data(items, tensor->dtype, &bytes, &count, err);
    if (code == BERTH_OK && (!berth_tensor_elements(tensor, &elements) || elements != count)) {
        code = berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'data': Shape does not match true shape of 'data' field");
    }
    if (code == BERTH_OK && !berth_buf_ok(&bytes)) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    if (code == BERTH_OK && bytes.length > 0) {
        code = berth_request_take(request, bytes.length, &tensor->range, err);
    }
    if (code == BERTH_OK && bytes.length > 0) {
        memcpy(berth_slabs_pointer(request->slabs, &tensor->range), bytes.bytes, bytes.length);
    }
    berth_buf_finish(&bytes);
    return code;
}

static enum berth_code parse_outputs(struct berth_kserve_form *form, json_t *outputs,
                                     struct berth_err *err)
{
    struct berth_request *request = form->request;
    size_t count = json_array_size(outputs);
    if (outputs == NULL || count == 0) {
        return BERTH_OK;
    }
    if (count > BERTH_KSERVE_IO_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "outputs", "more than %d outputs",
                                BERTH_KSERVE_IO_MAX);
    }
    request->outputs_wanted = berth_arena_alloc(&request->arena,
                                                count * sizeof(*request->outputs_wanted));
    if (request->outputs_wanted == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    for (size_t i = 0; i < count; i++) {
        json_t *item = json_array_get(outputs, i);
        const char *name = NULL;
        BERTH_TRY(member_string(item, "name", &name, err));
        json_t *parameters = json_object_get(item, "parameters");
        json_t *binary = json_object_get(parameters, "binary_data");
        json_t *classes = json_object_get(parameters, "classification");
        if (classes != NULL) {
            return berth_fail_field(err, BERTH_UNSUPPORTED, "classification",
                                    "the classification extension is not supported yet");
        }
        form->binary[i] = binary == NULL ? form->binary_all : json_is_true(binary);
        request->outputs_wanted[i] = berth_arena_strdup(&request->arena, name);
        if (request->outputs_wanted[i] == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
        }
    }
    request->output_wanted_count = count;
    return BERTH_OK;
}
