/* kserve_infer.c - KServe v2 inference over HTTP, with the binary tensor extension.
 *
 * A body is JSON, or JSON followed by the raw bytes of its inputs (Inference-Header-Content-Length
 * says where they begin), or raw bytes only. Raw bytes are never copied: an input is a slice of the
 * body's range. JSON data becomes a range of its own. Codes and texts are Triton's; what its front
 * end cannot parse it answers with 500, which field == berth_kserve_unparsed marks.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/call.h"
#include "api/kserve_json.h"
#include "base/clock.h"
#include "base/log.h"
#include "model/check.h"

#define IO_MAX 256

const char berth_kserve_unparsed[] = "request";

/* What the answer must look like. */
struct infer {
    bool binary_all;                /* binary_data_output */
    bool binary[IO_MAX];            /* of each wanted output */
    size_t wanted_count;
};

static enum berth_code parse_and_submit(struct berth_call *call, struct berth_err *err);
static enum berth_code parse_body(struct berth_call *call, struct berth_err *err);
static enum berth_code header_length(struct berth_call *call, size_t body_bytes, size_t *json_bytes,
                                     bool *raw, struct berth_err *err);
static enum berth_code parse_raw(struct berth_call *call, const struct berth_model_spec *spec,
                                 struct berth_err *err);
static enum berth_code parse_json(struct berth_call *call, json_t *root, size_t json_bytes,
                                  struct berth_err *err);
static enum berth_code parse_parameters(struct berth_call *call, json_t *root,
                                        struct berth_err *err);
static enum berth_code parse_parameter(struct berth_call *call, const char *key, json_t *value,
                                       struct berth_err *err);
static enum berth_code parse_inputs(struct berth_call *call, json_t *inputs, size_t json_bytes,
                                    struct berth_err *err);
static enum berth_code parse_input(struct berth_call *call, json_t *item,
                                   struct berth_tensor *tensor, size_t *at, struct berth_err *err);
static enum berth_code parse_shape(json_t *shape, struct berth_tensor *tensor,
                                   struct berth_err *err);
static enum berth_code input_binary(struct berth_call *call, json_t *size,
                                    struct berth_tensor *tensor, size_t *at, struct berth_err *err);
static enum berth_code input_data(struct berth_call *call, json_t *items,
                                  struct berth_tensor *tensor, struct berth_err *err);
static enum berth_code parse_outputs(struct berth_call *call, json_t *outputs,
                                     struct berth_err *err);
static void on_part(struct berth_post *post);
static void answer_part(struct berth_call *call, struct berth_part *part);

enum berth_code berth_kserve_infer_head(struct berth_call *call, struct berth_err *err)
{
    BERTH_TRY(berth_kserve_find_model(call, call->segments[1], err));
    return berth_sched_judge(call->api->options.sched, call->model, err);
}

enum berth_code berth_kserve_infer_end(struct berth_call *call, struct berth_err *err)
{
    BERTH_TRY(berth_call_open_request(call, on_part, err));
    call->request->body = berth_http_take_body(call->exchange);
    call->request->stamps.t_received_ns = berth_clock_now_ns();
    call->state = berth_arena_alloc(&call->arena, sizeof(struct infer));
    if (call->state == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    return berth_call_with_signature(call, parse_and_submit, err);
}

static enum berth_code parse_and_submit(struct berth_call *call, struct berth_err *err)
{
    BERTH_TRY(parse_body(call, err));
    call->request->stamps.t_decoded_ns = call->request->stamps.t_received_ns;
    return berth_call_submit(call, err);
}

static enum berth_code parse_body(struct berth_call *call, struct berth_err *err)
{
    struct berth_request *request = call->request;
    size_t body_bytes = (size_t)request->body.length;
    size_t json_bytes = 0;
    bool raw = false;
    BERTH_TRY(header_length(call, body_bytes, &json_bytes, &raw, err));
    struct berth_model_spec *spec = berth_model_spec(call->model);
    if (spec == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "model '%s' is not loaded", call->model->name);
    }
    enum berth_code code = BERTH_OK;
    if (raw || body_bytes == 0) {
        code = parse_raw(call, spec, err);
    } else if (json_bytes > call->api->options.json_bytes_max) {
        code = berth_fail_field(err, BERTH_TOO_LARGE, "inputs",
                                "JSON of %zu bytes; send large tensors by the binary extension",
                                json_bytes);
    } else {
        json_error_t json_err;
        const char *text = berth_slabs_pointer(request->slabs, &request->body);
        json_t *root = json_loadb(text, json_bytes, JSON_ALLOW_NUL, &json_err);
        if (root == NULL) {
            code = berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                    "failed to parse the request JSON buffer: %s. at %d",
                                    json_err.text, json_err.position);
        } else {
            code = parse_json(call, root, json_bytes, err);
        }
        json_decref(root);
    }
    if (code == BERTH_OK) {
        code = berth_model_check(spec, request, err);
    }
    berth_spec_release(spec);
    return code;
}

/* Where the JSON ends. A value that is no number reads as 0, as in Triton: raw bytes only. */
static enum berth_code header_length(struct berth_call *call, size_t body_bytes, size_t *json_bytes,
                                     bool *raw, struct berth_err *err)
{
    const char *text = berth_http_header(call->exchange, "Inference-Header-Content-Length");
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
static enum berth_code parse_raw(struct berth_call *call, const struct berth_model_spec *spec,
                                 struct berth_err *err)
{
    struct berth_request *request = call->request;
    struct infer *infer = call->state;
    infer->binary_all = true;
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

static enum berth_code parse_json(struct berth_call *call, json_t *root, size_t json_bytes,
                                  struct berth_err *err)
{
    struct berth_request *request = call->request;
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
        request->id_client = berth_arena_strdup(&request->arena, json_string_value(id));
        if (request->id_client == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
        }
    }
    BERTH_TRY(parse_parameters(call, json_object_get(root, "parameters"), err));
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
    BERTH_TRY(parse_inputs(call, inputs, json_bytes, err));
    return parse_outputs(call, json_object_get(root, "outputs"), err);
}

static enum berth_code parse_parameters(struct berth_call *call, json_t *parameters,
                                        struct berth_err *err)
{
    struct berth_request *request = call->request;
    if (parameters == NULL) {
        return BERTH_OK;
    }
    if (!json_is_object(parameters)) {
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse 'parameters': attempt to access JSON non-object as object");
    }
    size_t count = json_object_size(parameters);
    request->params.items =
        berth_arena_alloc(&request->arena, (count + 1) * sizeof(struct berth_param));
    if (request->params.items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    const char *key;
    json_t *value;
    json_object_foreach(parameters, key, value)
    {
        BERTH_TRY(parse_parameter(call, key, value, err));
    }
    return BERTH_OK;
}

static enum berth_code parse_parameter(struct berth_call *call, const char *key, json_t *value,
                                       struct berth_err *err)
{
    struct berth_request *request = call->request;
    struct infer *infer = call->state;
    if (strncmp(key, "triton_", 7) == 0) {
        return berth_fail_field(err, BERTH_INVALID, "parameters",
                                "parameter keys starting with 'triton_' are reserved for Triton "
                                "usage and should not be specified.");
    }
    if (strcmp(key, "binary_data_output") == 0) {
        infer->binary_all = json_is_true(value);
        return BERTH_OK;
    }
    if (strcmp(key, "priority") == 0 && json_is_integer(value) && json_integer_value(value) >= 0) {
        request->priority = (uint64_t)json_integer_value(value);
        return BERTH_OK;
    }
    if (strcmp(key, "timeout") == 0 && json_is_integer(value)) {
        int64_t us = json_integer_value(value);
        if (us > 0 && us <= INT64_C(86400000000)) {
            request->t_deadline_ns =
                berth_http_head_ns(call->exchange) + (uint64_t)us * BERTH_NS_PER_US;
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
        param->kind = BERTH_PARAM_STRING;
        param->value.string = berth_arena_strdup(&request->arena, json_string_value(value));
    } else {
        return berth_fail_field(err, BERTH_INVALID, "parameters",
                                "parameter '%s' must be a string, a number or a boolean", key);
    }
    if (param->name == NULL ||
        (param->kind == BERTH_PARAM_STRING && param->value.string == NULL)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    request->params.count++;
    return BERTH_OK;
}

static enum berth_code parse_inputs(struct berth_call *call, json_t *inputs, size_t json_bytes,
                                    struct berth_err *err)
{
    struct berth_request *request = call->request;
    size_t count = json_array_size(inputs);
    if (count > IO_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "inputs", "more than %d inputs", IO_MAX);
    }
    request->inputs =
        berth_arena_alloc(&request->arena, (count + 1) * sizeof(*request->inputs));
    if (request->inputs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    size_t at = json_bytes;
    for (size_t i = 0; i < count; i++) {
        BERTH_TRY(parse_input(call, json_array_get(inputs, i), &request->inputs[i], &at, err));
        request->input_count++;
    }
    if (at != request->body.length) {
        return berth_fail_field(err, BERTH_INVALID, "inputs",
                                "unexpected additional input data for model '%s'",
                                call->model->name);
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
        return berth_fail_field(
            err, BERTH_INVALID, berth_kserve_unparsed,
            "Unable to parse '%s': attempt to access JSON non-string as string", key);
    }
    *out = json_string_value(value);
    return BERTH_OK;
}

static enum berth_code parse_input(struct berth_call *call, json_t *item,
                                   struct berth_tensor *tensor, size_t *at, struct berth_err *err)
{
    const char *name = NULL;
    const char *dtype = NULL;
    BERTH_TRY(member_string(item, "name", &name, err));
    BERTH_TRY(parse_shape(json_object_get(item, "shape"), tensor, err));
    BERTH_TRY(member_string(item, "datatype", &dtype, err));
    tensor->name = berth_arena_strdup(&call->request->arena, name);
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
    return size != NULL ? input_binary(call, size, tensor, at, err)
                        : input_data(call, items, tensor, err);
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
static enum berth_code input_binary(struct berth_call *call, json_t *size,
                                    struct berth_tensor *tensor, size_t *at, struct berth_err *err)
{
    const struct berth_range *body = &call->request->body;
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
            tensor->name, (unsigned long long)(bytes - left), call->model->name);
    }
    if (!berth_range_slice(body, *at, bytes, &tensor->range)) {
        return berth_fail(err, BERTH_INTERNAL, "a slice outside of the body");
    }
    *at += (size_t)bytes;
    return BERTH_OK;
}

static enum berth_code input_data(struct berth_call *call, json_t *items,
                                  struct berth_tensor *tensor, struct berth_err *err)
{
    struct berth_request *request = call->request;
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

static enum berth_code parse_outputs(struct berth_call *call, json_t *outputs,
                                     struct berth_err *err)
{
    struct berth_request *request = call->request;
    struct infer *infer = call->state;
    size_t count = json_array_size(outputs);
    if (outputs == NULL || count == 0) {
        return BERTH_OK;
    }
    if (count > IO_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "outputs", "more than %d outputs", IO_MAX);
    }
    request->outputs_wanted =
        berth_arena_alloc(&request->arena, count * sizeof(*request->outputs_wanted));
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
        infer->binary[i] = binary == NULL ? infer->binary_all : json_is_true(binary);
        request->outputs_wanted[i] = berth_arena_strdup(&request->arena, name);
        if (request->outputs_wanted[i] == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
        }
    }
    request->output_wanted_count = count;
    return BERTH_OK;
}

static void on_part(struct berth_post *post)
{
    struct berth_part *part = BERTH_CONTAINER_OF(post, struct berth_part, post);
    struct berth_call *call = part->request->owner;
    /* Only final answers have a place in this protocol; streams come with gRPC. */
    if (call == NULL || !part->final || call->exchange == NULL) {
        berth_part_destroy(part);
        return;
    }
    if (part->err.code != BERTH_OK) {
        berth_call_fail(call, &part->err);
        berth_part_destroy(part);
        return;
    }
    answer_part(call, part);
}

static void release_part(void *part)
{
    berth_part_destroy(part);
}

/* Is this output wanted, and in which form? The order is the request's, else the model's. */
static bool output_binary(const struct berth_call *call, const char *name, bool *binary)
{
    const struct infer *infer = call->state;
    const struct berth_request *request = call->request;
    *binary = infer->binary_all;
    if (request->outputs_wanted == NULL) {
        return true;
    }
    for (size_t i = 0; i < request->output_wanted_count; i++) {
        if (strcmp(request->outputs_wanted[i], name) == 0) {
            *binary = infer->binary[i];
            return true;
        }
    }
    return false;
}

static void answer_part(struct berth_call *call, struct berth_part *part)
{
    struct berth_request *request = call->request;
    struct berth_buf text = {0};
    struct berth_range ranges[IO_MAX];
    size_t range_count = 0;
    size_t written = 0;
    bool any_binary = false;
    berth_buf_puts(&text, "{");
    if (request->id_client[0] != '\0') {
        berth_buf_puts(&text, "\"id\":");
        berth_buf_json_string(&text, request->id_client, strlen(request->id_client));
        berth_buf_puts(&text, ",");
    }
    berth_buf_puts(&text, "\"model_name\":");
    berth_buf_json_string(&text, call->model->name, strlen(call->model->name));
    berth_buf_printf(&text, ",\"model_version\":\"%llu\",\"outputs\":[",
                     (unsigned long long)call->model->version);
    for (size_t i = 0; i < part->tensor_count && i < IO_MAX; i++) {
        const struct berth_tensor *tensor = &part->tensors[i];
        bool binary = false;
        if (!output_binary(call, tensor->name, &binary)) {
            continue;
        }
        berth_buf_puts(&text, written++ == 0 ? "" : ",");
        berth_kserve_put_tensor(&text, tensor, request->slabs, binary);
        any_binary = any_binary || binary;
        if (binary && tensor->range.length > 0) {
            ranges[range_count++] = tensor->range;
        }
    }
    berth_buf_puts(&text, "]}");
    if (!berth_buf_ok(&text)) {
        struct berth_err err = {0};
        berth_fail(&err, BERTH_UNAVAILABLE, "no memory for the answer");
        berth_buf_finish(&text);
        berth_call_fail(call, &err);
        berth_part_destroy(part);
        return;
    }
    char length[24];
    snprintf(length, sizeof(length), "%zu", text.length);
    struct berth_http_header header = {"Inference-Header-Content-Length", length};
    berth_call_answer(call, &(struct berth_http_answer){
                                .status = 200,
                                .content_type = any_binary ? "application/octet-stream"
                                                           : "application/json",
                                .headers = &header,
                                .header_count = any_binary ? 1 : 0,
                                .text = &text,
                                .ranges = ranges,
                                .range_count = range_count,
                                .release = release_part,
                                .subject = part});
}
