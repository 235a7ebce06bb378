/* kserve_parse.c - the body of a KServe inference request, made into tensors.
 *
 * A body is JSON, or JSON followed by the raw bytes of its inputs (Inference-Header-Content-Length
 * says where they begin), or raw bytes only. Raw bytes are never copied: an input is a slice of the
 * body's range. JSON data becomes a range of its own. Texts are Triton's; what its front end cannot
 * parse it answers with 500, which field == berth_kserve_unparsed marks.
 */
#include "api/kserve_parse.h"

#include <stdlib.h>
#include <string.h>

#include "api/kserve_json.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "model/check.h"

#define TIMEOUT_US_MAX INT64_C(86400000000) /* a day */

static enum berth_code header_length(struct berth_kserve_form *form, size_t body_bytes,
                                     size_t *json_bytes, bool *raw, struct berth_err *err);
static enum berth_code parse_raw(struct berth_kserve_form *form, struct berth_err *err);
static enum berth_code parse_json(struct berth_kserve_form *form,
                                  const struct berth_json_value *root, size_t json_bytes,
                                  struct berth_err *err);
static enum berth_code parse_parameters(struct berth_kserve_form *form,
                                        const struct berth_json_value *parameters,
                                        struct berth_err *err);
static enum berth_code parse_parameter(struct berth_kserve_form *form, const char *key,
                                       const struct berth_json_value *value, struct berth_err *err);
static enum berth_code parse_inputs(struct berth_kserve_form *form,
                                    const struct berth_json_value *inputs, size_t json_bytes,
                                    struct berth_err *err);
static enum berth_code parse_input(struct berth_kserve_form *form,
                                   const struct berth_json_value *item, struct berth_tensor *tensor,
                                   size_t *at, struct berth_err *err);
/* A string into the request's arena. Only elements of BYTES tensors may hold NULs: what is a C
 * string here would be cut. */
static enum berth_code take_text(struct berth_kserve_form *form,
                                 const struct berth_json_value *value, const char *key,
                                 const char **out, struct berth_err *err);
static enum berth_code parse_shape(const struct berth_json_value *shape,
                                   struct berth_tensor *tensor, struct berth_err *err);
static enum berth_code input_binary(struct berth_kserve_form *form,
                                    const struct berth_json_value *size,
                                    struct berth_tensor *tensor, size_t *at, struct berth_err *err);
static enum berth_code input_data(struct berth_kserve_form *form,
                                  const struct berth_json_value *items, struct berth_tensor *tensor,
                                  struct berth_err *err);
static enum berth_code parse_outputs(struct berth_kserve_form *form,
                                     const struct berth_json_value *outputs, struct berth_err *err);

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
    struct berth_json_value root;
    const char *what = NULL;
    size_t position = 0;
    const char *text = berth_slabs_pointer(request->slabs, &request->body);
    if (berth_json_check(text, json_bytes, &root, &what, &position) != BERTH_OK) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "failed to parse the request JSON buffer: %s. at %zu", what,
                                position);
    }
    BERTH_TRY(parse_json(form, &root, json_bytes, err));
    return berth_model_check(form->spec, request, err);
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

static enum berth_code parse_json(struct berth_kserve_form *form,
                                  const struct berth_json_value *root, size_t json_bytes,
                                  struct berth_err *err)
{
    enum { ID, PARAMETERS, INPUTS, OUTPUTS, COUNT };
    static const char *const names[COUNT] = {"id", "parameters", "inputs", "outputs"};
    struct berth_json_value members[COUNT];
    if (root->kind != BERTH_JSON_OBJECT) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "failed to parse the request JSON buffer: not an object. at 0");
    }
    berth_json_members(root, names, COUNT, members);
    if (members[ID].kind != BERTH_JSON_NONE) {
        BERTH_TRY(take_text(form, &members[ID], "id", &form->request->id_client, err));
    }
    BERTH_TRY(parse_parameters(form, &members[PARAMETERS], err));
    if (members[INPUTS].kind == BERTH_JSON_NONE) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'");
    }
    if (members[INPUTS].kind != BERTH_JSON_ARRAY) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'inputs': attempt to access JSON non-array as array");
    }
    BERTH_TRY(parse_inputs(form, &members[INPUTS], json_bytes, err));
    return parse_outputs(form, &members[OUTPUTS], err);
}

static enum berth_code parse_parameters(struct berth_kserve_form *form,
                                        const struct berth_json_value *parameters,
                                        struct berth_err *err)
{
    struct berth_request *request = form->request;
    struct berth_json_value key, value;
    if (parameters->kind == BERTH_JSON_NONE) {
        return BERTH_OK;
    }
    if (parameters->kind != BERTH_JSON_OBJECT) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'parameters': attempt to access JSON non-object as object");
    }
    size_t count = berth_json_count(parameters);
    if (count > BERTH_KSERVE_PARAMETERS_MAX) { /* each is looked for among those before it */
        return berth_fail_field(err, BERTH_INVALID, "parameters", "more than %d parameters",
                                BERTH_KSERVE_PARAMETERS_MAX);
    }
    request->params.items = berth_arena_alloc(&request->arena,
                                              (count + 1) * sizeof(struct berth_param));
    if (request->params.items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    struct berth_json_walk walk = berth_json_walk(parameters);
    while (berth_json_next(&walk, &key, &value)) {
        const char *name;
        BERTH_TRY(take_text(form, &key, "parameters", &name, err));
        BERTH_TRY(parse_parameter(form, name, &value, err));
    }
    return BERTH_OK;
}

/* A parameter named twice: the last one counts, as everywhere. */
static struct berth_param *param_named(struct berth_request *request, const char *name)
{
    for (size_t i = 0; i < request->params.count; i++) {
        if (strcmp(request->params.items[i].name, name) == 0) {
            return &request->params.items[i];
        }
    }
    return &request->params.items[request->params.count++];
}

static enum berth_code parse_parameter(struct berth_kserve_form *form, const char *key,
                                       const struct berth_json_value *value, struct berth_err *err)
{
    struct berth_request *request = form->request;
    int64_t integer = 0;
    bool is_integer = berth_json_int64(value, &integer);
    if (strncmp(key, "triton_", 7) == 0) {
        return berth_fail_field(err, BERTH_INVALID, "parameters",
                                "parameter keys starting with 'triton_' are reserved for Triton "
                                "usage and should not be specified.");
    }
    if (strcmp(key, "binary_data_output") == 0) {
        form->binary_all = value->kind == BERTH_JSON_TRUE;
        return BERTH_OK;
    }
    if (strcmp(key, "priority") == 0 && is_integer && integer >= 0) {
        request->priority = (uint64_t)integer;
        return BERTH_OK;
    }
    if (strcmp(key, "timeout") == 0 && is_integer) {
        if (integer > 0) { /* 0: none, as in Triton */
            int64_t us = integer < TIMEOUT_US_MAX ? integer : TIMEOUT_US_MAX;
            request->t_deadline_ns = request->stamps.t_head_ns + (uint64_t)us * BERTH_NS_PER_US;
            request->timeout_named = true;
        }
        return BERTH_OK;
    }
    struct berth_param param = {.name = key};
    if (value->kind == BERTH_JSON_TRUE || value->kind == BERTH_JSON_FALSE) {
        param.kind = BERTH_PARAM_BOOL;
        param.value.boolean = value->kind == BERTH_JSON_TRUE;
    } else if (is_integer) {
        param.kind = BERTH_PARAM_INT;
        param.value.integer = integer;
    } else if (berth_json_double(value, &param.value.real)) {
        param.kind = BERTH_PARAM_REAL;
    } else if (value->kind == BERTH_JSON_STRING) {
        param.kind = BERTH_PARAM_STRING;
        BERTH_TRY(take_text(form, value, "parameters", &param.value.string, err));
    } else {
        return berth_fail_field(err, BERTH_INVALID, "parameters",
                                "parameter '%s' must be a string, a number or a boolean", key);
    }
    *param_named(request, key) = param;
    return BERTH_OK;
}

static enum berth_code parse_inputs(struct berth_kserve_form *form,
                                    const struct berth_json_value *inputs, size_t json_bytes,
                                    struct berth_err *err)
{
    struct berth_request *request = form->request;
    struct berth_json_value item;
    size_t count = berth_json_count(inputs);
    if (count > BERTH_KSERVE_IO_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "inputs", "more than %d inputs",
                                BERTH_KSERVE_IO_MAX);
    }
    request->inputs = berth_arena_alloc(&request->arena, (count + 1) * sizeof(*request->inputs));
    if (request->inputs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    size_t at = json_bytes;
    struct berth_json_walk walk = berth_json_walk(inputs);
    while (berth_json_next(&walk, NULL, &item)) {
        BERTH_TRY(parse_input(form, &item, &request->inputs[request->input_count], &at, err));
        request->input_count++;
    }
    if (at != request->body.length) {
        return berth_fail_field(err, BERTH_INVALID, "inputs",
                                "unexpected additional input data for model '%s'",
                                form->spec->name);
    }
    return BERTH_OK;
}

static enum berth_code take_text(struct berth_kserve_form *form,
                                 const struct berth_json_value *value, const char *key,
                                 const char **out, struct berth_err *err)
{
    if (value->kind == BERTH_JSON_NONE) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse '%s': attempt to access non-existing object member '%s'", key, key);
    }
    if (value->kind != BERTH_JSON_STRING) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "Unable to parse '%s': attempt to access JSON non-string as string",
                                key);
    }
    if (berth_json_has_nul(value)) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "Unable to parse '%s': a NUL in the text", key);
    }
    const char *text = berth_json_string_dup(value, &form->request->arena);
    if (text == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    *out = text;
    return BERTH_OK;
}

static enum berth_code parse_input(struct berth_kserve_form *form,
                                   const struct berth_json_value *item, struct berth_tensor *tensor,
                                   size_t *at, struct berth_err *err)
{
    enum { NAME, SHAPE, DATATYPE, PARAMETERS, DATA, COUNT };
    static const char *const names[COUNT] = {"name", "shape", "datatype", "parameters", "data"};
    enum { SIZE, REGION, PARAMETER_COUNT };
    static const char *const parameter_names[] = {"binary_data_size", "shared_memory_region"};
    struct berth_json_value members[COUNT], parameters[PARAMETER_COUNT];
    const char *dtype = NULL;
    berth_json_members(item, names, COUNT, members);
    berth_json_members(&members[PARAMETERS], parameter_names, PARAMETER_COUNT, parameters);
    BERTH_TRY(take_text(form, &members[NAME], "name", &tensor->name, err));
    BERTH_TRY(parse_shape(&members[SHAPE], tensor, err));
    BERTH_TRY(take_text(form, &members[DATATYPE], "datatype", &dtype, err));
    tensor->dtype = berth_dtype_parse(dtype, strlen(dtype));
    if (tensor->dtype == BERTH_DTYPE_NONE) {
        return berth_fail_field(err, BERTH_INVALID, "datatype", "invalid datatype for input %s",
                                tensor->name);
    }
    const struct berth_json_value *region = &parameters[REGION];
    int given = (parameters[SIZE].kind != BERTH_JSON_NONE) + (region->kind != BERTH_JSON_NONE) +
                (members[DATA].kind != BERTH_JSON_NONE);
    if (given != 1) {
        return berth_fail_field(
            err, BERTH_INVALID, "inputs",
            "Input must set only one of the following fields: 'data', 'binary_data_size' in "
            "'parameters', 'shared_memory_region' in 'parameters'. But %s",
            given == 0 ? "no field is set" : "more than one is set");
    }
    if (region->kind != BERTH_JSON_NONE) {
        const char *name = "";
        if (region->kind == BERTH_JSON_STRING) {
            BERTH_TRY(take_text(form, region, "shared_memory_region", &name, err));
        }
        return berth_fail_field(err, BERTH_NOT_FOUND, "shared_memory_region",
                                "Unable to find shared memory region: '%s'", name);
    }
    return parameters[SIZE].kind != BERTH_JSON_NONE
               ? input_binary(form, &parameters[SIZE], tensor, at, err)
               : input_data(form, &members[DATA], tensor, err);
}

static enum berth_code parse_shape(const struct berth_json_value *shape,
                                   struct berth_tensor *tensor, struct berth_err *err)
{
    struct berth_json_value dim;
    if (shape->kind == BERTH_JSON_NONE) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'shape': attempt to access non-existing object member 'shape'");
    }
    if (shape->kind != BERTH_JSON_ARRAY) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'shape': attempt to access JSON non-array as array");
    }
    struct berth_json_walk walk = berth_json_walk(shape);
    while (berth_json_next(&walk, NULL, &dim)) {
        int64_t size;
        if (tensor->rank == BERTH_RANK_MAX) {
            return berth_fail_field(err, BERTH_INVALID, "shape", "more than %d dimensions",
                                    BERTH_RANK_MAX);
        }
        if (!berth_json_int64(&dim, &size) || size < 0) {
            return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                    "Unable to parse 'shape': attempt to access JSON "
                                    "non-unsigned-integer as unsigned-integer");
        }
        tensor->dims[tensor->rank++] = size;
    }
    return BERTH_OK;
}

/* The next binary_data_size bytes after the JSON: a slice of the body, nothing copied. */
static enum berth_code input_binary(struct berth_kserve_form *form,
                                    const struct berth_json_value *size,
                                    struct berth_tensor *tensor, size_t *at, struct berth_err *err)
{
    const struct berth_range *body = &form->request->body;
    int64_t wanted;
    if (!berth_json_int64(size, &wanted) || wanted < 0) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "Unable to parse 'binary_data_size': attempt to access JSON "
                                "non-unsigned-integer as unsigned-integer");
    }
    uint64_t bytes = (uint64_t)wanted;
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

static enum berth_code input_data(struct berth_kserve_form *form,
                                  const struct berth_json_value *items, struct berth_tensor *tensor,
                                  struct berth_err *err)
{
    struct berth_request *request = form->request;
    if (tensor->dtype == BERTH_DTYPE_FP16 || tensor->dtype == BERTH_DTYPE_BF16) {
        return berth_fail_field(
            err, BERTH_INVALID, "data",
            "receiving %s data via JSON is not supported. Please use the binary "
            "data format for input %s",
            berth_dtype_name(tensor->dtype), tensor->name);
    }
    if (items->kind != BERTH_JSON_ARRAY) {
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

static enum berth_code parse_outputs(struct berth_kserve_form *form,
                                     const struct berth_json_value *outputs, struct berth_err *err)
{
    enum { NAME, PARAMETERS, COUNT };
    static const char *const names[COUNT] = {"name", "parameters"};
    enum { BINARY, CLASSES, PARAMETER_COUNT };
    static const char *const parameter_names[] = {"binary_data", "classification"};
    struct berth_json_value item, members[COUNT], parameters[PARAMETER_COUNT];
    struct berth_request *request = form->request;
    size_t count = berth_json_count(outputs);
    if (outputs->kind != BERTH_JSON_ARRAY || count == 0) {
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
    struct berth_json_walk walk = berth_json_walk(outputs);
    for (size_t i = 0; berth_json_next(&walk, NULL, &item); i++) {
        berth_json_members(&item, names, COUNT, members);
        berth_json_members(&members[PARAMETERS], parameter_names, PARAMETER_COUNT, parameters);
        BERTH_TRY(take_text(form, &members[NAME], "name", &request->outputs_wanted[i], err));
        if (parameters[CLASSES].kind != BERTH_JSON_NONE) {
            return berth_fail_field(err, BERTH_UNSUPPORTED, "classification",
                                    "the classification extension is not supported yet");
        }
        form->binary[i] = parameters[BINARY].kind == BERTH_JSON_NONE
                              ? form->binary_all
                              : parameters[BINARY].kind == BERTH_JSON_TRUE;
    }
    request->output_wanted_count = count;
    return BERTH_OK;
}
