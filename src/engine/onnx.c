/* onnx.c - any ONNX file as a model of tensors, over ONNX Runtime on the CPU.
 *
 * onnx_describe.c says what is in a file; model_attach makes the one session that all instances
 * run.
 *
 * A batch is run as few calls: requests whose inputs have the same names and shapes past the batch
 * dimension go together, anything else by itself. One request's inputs are used where they lie in
 * the slab and fixed-shape outputs are written where the answer will be read; several requests are
 * gathered into one buffer and their outputs cut apart. Nothing is padded here, so a row's answer
 * depends on its neighbours only as far as the model itself mixes rows.
 *
 * Cancelled rows are left out before a run; a run is ended when all of its rows are cancelled.
 */
#include <string.h>

#include "base/mem.h"
#include "engine/engines.h"
#include "engine/onnx_describe.h"
#include "engine/ort.h"
#include "engine/ort_memory.h"

struct berth_engine_model {
    const struct berth_model_spec *spec; /* borrows for its life */
    struct berth_ort_session *session;
    struct berth_ort_meter meter;
    bool outputs_fixed; /* every output's size follows from the batch alone */
};

/* Scratch of one execution. Arrays by input, by output, and by row of the largest batch so far. */
struct berth_instance {
    struct berth_engine_model *model;
    struct berth_ort_value *inputs;
    void **gathered; /* by input: a block of ours behind inputs[i].bytes, or NULL */
    struct berth_ort_value *outputs;
    const struct berth_io **output_ios; /* what outputs[i] is in the spec */
    struct berth_row **group;           /* the rows of the run being made */
    const atomic_bool **flags;
    bool *done;
    size_t row_capacity;
    uint64_t group_rows_total; /* batch rows of the group */
    size_t group_count;
    size_t input_count;        /* of the run; optional ones may be missing */
    size_t output_count;
};

static enum berth_code start(const struct berth_engine_env *env, struct berth_err *err);
static enum berth_code model_attach(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err);
static void model_detach(struct berth_engine_model *model);
static uint64_t model_bytes(const struct berth_engine_model *model);
static enum berth_code instance_create(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err);
static void instance_destroy(struct berth_instance *instance);
static enum berth_code execute(struct berth_instance *instance, struct berth_batch *batch,
                               struct berth_err *err);

static enum berth_code check_session(struct berth_engine_model *model, struct berth_err *err);

static enum berth_code instance_reserve(struct berth_instance *instance, size_t row_count,
                                        struct berth_err *err);
static enum berth_code row_check(const struct berth_model_spec *spec, const struct berth_row *row,
                                 struct berth_err *err);
static void group_gather(struct berth_instance *instance, struct berth_batch *batch, size_t first);
static bool rows_alike(const struct berth_model_spec *spec, const struct berth_request *a,
                       const struct berth_request *b);
static void group_run(struct berth_instance *instance);
static enum berth_code bind_inputs(struct berth_instance *instance, struct berth_err *err);
static enum berth_code bind_input(struct berth_instance *instance, const struct berth_io *io,
                                  struct berth_err *err);
static void bind_outputs(struct berth_instance *instance);
static enum berth_code place_outputs(struct berth_instance *instance, struct berth_err *err);
static enum berth_code check_outputs(struct berth_instance *instance, struct berth_err *err);
static enum berth_code scatter(struct berth_instance *instance, size_t index,
                               const unsigned char **cursors, uint64_t row_at,
                               struct berth_err *err);
static void part_clear(struct berth_row *row);

static enum berth_code start(const struct berth_engine_env *env, struct berth_err *err)
{
    return berth_ort_start(env->threads, err);
}

static enum berth_code model_attach(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err)
{
    (void)weights;
    char path[BERTH_ONNX_PATH_BYTES];
    BERTH_TRY(berth_onnx_path(spec, path, sizeof(path), err));
    struct berth_engine_model *model = berth_alloc(sizeof(*model));
    if (model == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to load the model");
    }
    model->spec = spec;
    enum berth_code code = berth_ort_session_open(path, &model->meter, &model->session, err);
    if (code == BERTH_OK) {
        code = check_session(model, err);
    }
    if (code != BERTH_OK) {
        model_detach(model);
        return code;
    }
    *out = model;
    return BERTH_OK;
}

static void model_detach(struct berth_engine_model *model)
{
    if (model == NULL) {
        return;
    }
    berth_ort_session_close(model->session);
    berth_free(model);
}

static uint64_t model_bytes(const struct berth_engine_model *model)
{
    return atomic_load(&model->meter.bytes_used);
}

static enum berth_code instance_create(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err)
{
    (void)index;
    const struct berth_model_spec *spec = model->spec;
    struct berth_instance *instance = berth_alloc(sizeof(*instance));
    if (instance == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for an instance");
    }
    instance->model = model;
    instance->inputs = berth_alloc((spec->input_count + 1) * sizeof(*instance->inputs));
    instance->gathered = berth_alloc((spec->input_count + 1) * sizeof(*instance->gathered));
    instance->outputs = berth_alloc((spec->output_count + 1) * sizeof(*instance->outputs));
    instance->output_ios = berth_alloc((spec->output_count + 1) * sizeof(*instance->output_ios));
    enum berth_code code = BERTH_OK;
    if (instance->inputs == NULL || instance->gathered == NULL || instance->outputs == NULL ||
        instance->output_ios == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for an instance");
    } else {
        code = instance_reserve(instance, spec->batch_size_max < 64 ? spec->batch_size_max + 1 : 64,
                                err);
    }
    if (code != BERTH_OK) {
        instance_destroy(instance);
        return code;
    }
    *out = instance;
    return BERTH_OK;
}

static void instance_destroy(struct berth_instance *instance)
{
    if (instance == NULL) {
        return;
    }
    berth_free(instance->inputs);
    berth_free(instance->gathered);
    berth_free(instance->outputs);
    berth_free(instance->output_ios);
    berth_free(instance->group);
    berth_free(instance->flags);
    berth_free(instance->done);
    berth_free(instance);
}

static enum berth_code execute(struct berth_instance *instance, struct berth_batch *batch,
                               struct berth_err *err)
{
    BERTH_TRY(instance_reserve(instance, batch->row_count, err));
    memset(instance->done, 0, batch->row_count * sizeof(*instance->done));
    for (size_t i = 0; i < batch->row_count; i++) {
        struct berth_row *row = &batch->rows[i];
        instance->done[i] = row_check(instance->model->spec, row, &row->err) != BERTH_OK;
    }
    struct berth_ort_meter *before = berth_ort_memory_enter(&instance->model->meter);
    for (size_t i = 0; i < batch->row_count; i++) {
        if (!instance->done[i]) {
            group_gather(instance, batch, i);
            group_run(instance);
        }
    }
    berth_ort_memory_enter(before);
    return BERTH_OK;
}

/* What was loaded is what was described; the file may have changed in between. */
static enum berth_code check_session(struct berth_engine_model *model, struct berth_err *err)
{
    const struct berth_model_spec *spec = model->spec;
    size_t input_count;
    size_t output_count;
    const struct berth_ort_io *inputs = berth_ort_session_inputs(model->session, &input_count);
    const struct berth_ort_io *outputs = berth_ort_session_outputs(model->session, &output_count);
    size_t batch = spec->batch_size_max > 0 ? 1 : 0;
    bool same = input_count <= spec->input_count;
    for (size_t i = 0; i < spec->input_count && same; i++) {
        int at = berth_ort_session_find_input(model->session, spec->inputs[i].name);
        same = at >= 0 && inputs[at].dtype == spec->inputs[i].dtype;
    }
    model->outputs_fixed = true;
    for (size_t i = 0; i < spec->output_count && same; i++) {
        int at = berth_ort_session_find_output(model->session, spec->outputs[i].name);
        same = at >= 0 && outputs[at].dtype == spec->outputs[i].dtype;
        if (!same || outputs[at].rank == 0 || outputs[at].dtype == BERTH_DTYPE_BYTES) {
            model->outputs_fixed = false;
        } else {
            for (size_t d = batch; d < outputs[at].rank; d++) {
                model->outputs_fixed = model->outputs_fixed && outputs[at].dims[d] > 0;
            }
        }
    }
    if (!same) {
        return berth_fail(err, BERTH_INVALID,
                          "it has other inputs or outputs than when it was described");
    }
    return BERTH_OK;
}

/* --- execute --- */

static enum berth_code instance_reserve(struct berth_instance *instance, size_t row_count,
                                        struct berth_err *err)
{
    if (row_count <= instance->row_capacity) {
        return BERTH_OK;
    }
    size_t before = instance->row_capacity;
    struct berth_row **group = berth_resize(instance->group, before * sizeof(*group),
                                            row_count * sizeof(*group));
    instance->group = group == NULL ? instance->group : group;
    const atomic_bool **flags = berth_resize(instance->flags, before * sizeof(*flags),
                                             row_count * sizeof(*flags));
    instance->flags = flags == NULL ? instance->flags : flags;
    bool *done = berth_resize(instance->done, before * sizeof(*done), row_count * sizeof(*done));
    instance->done = done == NULL ? instance->done : done;
    if (group == NULL || flags == NULL || done == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a batch of %zu requests",
                          row_count);
    }
    instance->row_capacity = row_count;
    return BERTH_OK;
}

static void *tensor_bytes(const struct berth_request *request, const struct berth_tensor *tensor)
{
    return tensor->range.length == 0 ? NULL
                                     : berth_slabs_pointer(request->slabs, &tensor->range);
}

/* Names and shapes were checked before (E7); kernels also rely on a BOOL being 0 or 1. */
static enum berth_code row_check(const struct berth_model_spec *spec, const struct berth_row *row,
                                 struct berth_err *err)
{
    const struct berth_request *request = row->request;
    if (atomic_load_explicit(&request->cancelled, memory_order_relaxed)) {
        return berth_fail(err, BERTH_CANCELLED, "cancelled before the run began");
    }
    for (size_t i = 0; i < spec->input_count; i++) {
        const struct berth_io *io = &spec->inputs[i];
        const struct berth_tensor *tensor = berth_request_input(request, io->name);
        if (tensor == NULL) {
            if (io->optional) {
                continue;
            }
            return berth_fail(err, BERTH_INVALID, "input '%s' is missing", io->name);
        }
        size_t elements;
        size_t bytes;
        if (tensor->dtype != io->dtype || !berth_tensor_elements(tensor, &elements) ||
            !berth_mul_size(elements, berth_dtype_bytes(io->dtype), &bytes) ||
            (io->dtype != BERTH_DTYPE_BYTES && bytes != tensor->range.length)) {
            return berth_fail(err, BERTH_INVALID, "input '%s' is not what the model takes",
                              io->name);
        }
        if (io->dtype == BERTH_DTYPE_BOOL) {
            const unsigned char *values = tensor_bytes(request, tensor);
            unsigned char all = 0;
            for (size_t at = 0; at < bytes; at++) {
                all |= values[at];
            }
            if (all > 1) {
                return berth_fail(err, BERTH_INVALID, "input '%s': a BOOL is 0 or 1", io->name);
            }
        }
    }
    return BERTH_OK;
}

/* The rows from `first` on that can share a run with it; marks them done. */
static void group_gather(struct berth_instance *instance, struct berth_batch *batch, size_t first)
{
    const struct berth_model_spec *spec = instance->model->spec;
    instance->group_count = 0;
    instance->group_rows_total = 0;
    for (size_t i = first; i < batch->row_count; i++) {
        struct berth_row *row = &batch->rows[i];
        if (instance->done[i]) {
            continue;
        }
        if (i != first && (spec->batch_size_max == 0 ||
                           !rows_alike(spec, batch->rows[first].request, row->request))) {
            continue;
        }
        instance->done[i] = true;
        instance->group[instance->group_count] = row;
        instance->flags[instance->group_count] = &row->request->cancelled;
        instance->group_count++;
        instance->group_rows_total += spec->batch_size_max == 0 ? 1 : row->request->batch_rows;
    }
}

static bool rows_alike(const struct berth_model_spec *spec, const struct berth_request *a,
                       const struct berth_request *b)
{
    for (size_t i = 0; i < spec->input_count; i++) {
        const struct berth_tensor *left = berth_request_input(a, spec->inputs[i].name);
        const struct berth_tensor *right = berth_request_input(b, spec->inputs[i].name);
        if (left == NULL || right == NULL) {
            if (left != right) {
                return false;
            }
            continue;
        }
        if (left->rank != right->rank || left->rank == 0 ||
            memcmp(left->dims + 1, right->dims + 1, (left->rank - 1u) * sizeof(left->dims[0])) !=
                0) {
            return false;
        }
    }
    return true;
}

/* One run; every row of the group has its outputs or its error afterwards. */
static void group_run(struct berth_instance *instance)
{
    struct berth_err err = {.code = BERTH_OK};
    const unsigned char *cursors[BERTH_ORT_VALUES_MAX] = {NULL};
    instance->input_count = 0;
    instance->output_count = 0;
    memset(instance->gathered, 0, instance->model->spec->input_count * sizeof(void *));
    enum berth_code code = bind_inputs(instance, &err);
    if (code == BERTH_OK) {
        bind_outputs(instance);
        code = place_outputs(instance, &err);
    }
    bool placed = instance->output_count > 0 && instance->outputs[0].bytes != NULL;
    if (code == BERTH_OK) {
        struct berth_ort_run run = {.inputs = instance->inputs,
                                    .input_count = instance->input_count,
                                    .outputs = instance->outputs,
                                    .output_count = instance->output_count,
                                    .stop = {instance->flags, instance->group_count}};
        code = berth_ort_session_run(instance->model->session, &run, &err);
    }
    if (code == BERTH_OK) {
        code = check_outputs(instance, &err);
    }
    uint64_t row_at = 0;
    for (size_t i = 0; i < instance->group_count; i++) {
        struct berth_row *row = instance->group[i];
        if (code != BERTH_OK) {
            row->err = err;
        } else if (!placed) {
            row->err.code = scatter(instance, i, cursors, row_at, &row->err);
        }
        if (row->err.code != BERTH_OK) {
            part_clear(row);
        }
        row_at += row->request->batch_rows;
    }
    for (size_t i = 0; i < instance->output_count; i++) {
        berth_ort_value_clear(&instance->outputs[i]);
    }
    for (size_t i = 0; i < instance->model->spec->input_count; i++) {
        berth_ort_memory_give(instance->gathered[i]);
    }
}

static enum berth_code bind_inputs(struct berth_instance *instance, struct berth_err *err)
{
    const struct berth_model_spec *spec = instance->model->spec;
    for (size_t i = 0; i < spec->input_count; i++) {
        if (berth_request_input(instance->group[0]->request, spec->inputs[i].name) != NULL) {
            BERTH_TRY(bind_input(instance, &spec->inputs[i], err));
        }
    }
    return BERTH_OK;
}

/* Dims of one side of a reshape from those of the other; the batch is not among them. */
static void dims_map(const int64_t *actual, const int64_t *from, uint8_t from_rank,
                     const int64_t *to, int64_t *out)
{
    size_t at = 0;
    for (size_t i = 0; i < from_rank; i++) {
        if (from[i] < 0) {
            while (to[at] >= 0) {
                out[at] = to[at];
                at++;
            }
            out[at++] = actual[i];
        }
    }
}

/* The model's dims of an input whose config has a reshape; check_reshape held. */
static void dims_to_model(const struct berth_io *io, size_t batch, struct berth_ort_value *value)
{
    int64_t client[BERTH_RANK_MAX];
    memcpy(client, value->dims + batch, io->rank * sizeof(client[0]));
    memcpy(value->dims + batch, io->reshape_dims, io->reshape_rank * sizeof(client[0]));
    dims_map(client, io->dims, io->rank, io->reshape_dims, value->dims + batch);
    value->rank = (uint8_t)(io->reshape_rank + batch);
}

static enum berth_code bind_input(struct berth_instance *instance, const struct berth_io *io,
                                  struct berth_err *err)
{
    size_t batch = instance->model->spec->batch_size_max > 0 ? 1 : 0;
    const struct berth_request *first = instance->group[0]->request;
    const struct berth_tensor *tensor = berth_request_input(first, io->name);
    struct berth_ort_value *value = &instance->inputs[instance->input_count];
    *value = (struct berth_ort_value){.name = io->name, .dtype = io->dtype, .rank = tensor->rank};
    memcpy(value->dims, tensor->dims, sizeof(value->dims));
    if (batch > 0 && value->rank > 0) {
        value->dims[0] = (int64_t)instance->group_rows_total;
    }
    if (io->has_reshape) {
        dims_to_model(io, batch, value);
    }
    for (size_t i = 0; i < instance->group_count; i++) {
        const struct berth_tensor *one = berth_request_input(instance->group[i]->request, io->name);
        if (!berth_add_size(value->length, one->range.length, &value->length)) {
            return berth_fail(err, BERTH_TOO_LARGE, "input '%s' is too large", io->name);
        }
    }
    void *there = tensor_bytes(first, tensor);
    size_t element = berth_dtype_bytes(io->dtype);
    bool aligned = element == 0 || (uintptr_t)there % element == 0;
    if (instance->group_count == 1 && aligned) {
        value->bytes = there;
    } else if (value->length > 0) {
        unsigned char *at = berth_ort_memory_take(value->length);
        if (at == NULL) {
            return berth_fail(err, BERTH_TOO_LARGE, "no memory to gather input '%s'", io->name);
        }
        instance->gathered[instance->input_count] = at;
        value->bytes = at;
        for (size_t i = 0; i < instance->group_count; i++) {
            const struct berth_request *request = instance->group[i]->request;
            const struct berth_tensor *one = berth_request_input(request, io->name);
            if (one->range.length > 0) {
                memcpy(at, tensor_bytes(request, one), one->range.length);
                at += one->range.length;
            }
        }
    }
    instance->input_count++;
    return BERTH_OK;
}

/* The outputs that any row of the group wants, in the spec's order. */
static void bind_outputs(struct berth_instance *instance)
{
    const struct berth_model_spec *spec = instance->model->spec;
    for (size_t i = 0; i < spec->output_count; i++) {
        bool wanted = false;
        for (size_t row = 0; row < instance->group_count && !wanted; row++) {
            wanted = berth_request_wants(instance->group[row]->request, spec->outputs[i].name);
        }
        if (wanted) {
            instance->output_ios[instance->output_count] = &spec->outputs[i];
            instance->outputs[instance->output_count++] =
                (struct berth_ort_value){.name = spec->outputs[i].name};
        }
    }
}

/* One request, outputs of known size: they are written straight into the answer. */
static enum berth_code place_outputs(struct berth_instance *instance, struct berth_err *err)
{
    struct berth_engine_model *model = instance->model;
    size_t batch = model->spec->batch_size_max > 0 ? 1 : 0;
    size_t count;
    if (instance->group_count != 1 || !model->outputs_fixed || instance->group_rows_total == 0) {
        return BERTH_OK;
    }
    const struct berth_ort_io *ios = berth_ort_session_outputs(model->session, &count);
    for (size_t i = 0; i < instance->output_count; i++) {
        const struct berth_io *io = instance->output_ios[i];
        struct berth_ort_value *value = &instance->outputs[i];
        struct berth_tensor answer = {
            .name = io->name, .dtype = io->dtype, .rank = (uint8_t)(io->rank + batch)};
        int at = berth_ort_session_find_output(model->session, io->name);
        size_t elements;
        size_t bytes;
        value->dtype = io->dtype;
        value->rank = ios[at].rank;
        memcpy(value->dims, ios[at].dims, sizeof(value->dims));
        memcpy(answer.dims + batch, io->dims, io->rank * sizeof(io->dims[0]));
        if (batch > 0) {
            value->dims[0] = answer.dims[0] = (int64_t)instance->group_rows_total;
        }
        if (io->has_reshape) {
            dims_map(value->dims + batch, io->reshape_dims, io->reshape_rank, io->dims,
                     answer.dims + batch);
        } else {
            memcpy(answer.dims, value->dims, sizeof(answer.dims));
        }
        if (!berth_tensor_elements(&answer, &elements) ||
            !berth_mul_size(elements, berth_dtype_bytes(io->dtype), &bytes)) {
            return berth_fail(err, BERTH_TOO_LARGE, "output '%s' is too large", io->name);
        }
        BERTH_TRY(
            berth_part_add(instance->group[0]->part, &answer, bytes, &value->bytes, err));
        value->length = bytes;
    }
    return BERTH_OK;
}

/* What came out against what was described (E8). */
static enum berth_code check_outputs(struct berth_instance *instance, struct berth_err *err)
{
    size_t batch = instance->model->spec->batch_size_max > 0 ? 1 : 0;
    for (size_t i = 0; i < instance->output_count; i++) {
        const struct berth_ort_value *value = &instance->outputs[i];
        const struct berth_io *io = instance->output_ios[i];
        uint8_t rank = io->has_reshape ? io->reshape_rank : io->rank;
        const int64_t *dims = io->has_reshape ? io->reshape_dims : io->dims;
        if (value->dtype != io->dtype || value->rank != rank + batch) {
            return berth_fail(err, BERTH_INTERNAL,
                              "output '%s' came as %s of %u dimensions, described as %s of %zu",
                              io->name, berth_dtype_name(value->dtype), (unsigned)value->rank,
                              berth_dtype_name(io->dtype), rank + batch);
        }
        if (batch > 0 && (uint64_t)value->dims[0] != instance->group_rows_total) {
            return berth_fail(err, BERTH_INTERNAL,
                              "output '%s' came with %lld rows for a batch of %llu: the model does "
                              "not batch",
                              io->name, (long long)value->dims[0],
                              (unsigned long long)instance->group_rows_total);
        }
        for (size_t d = 0; d < rank; d++) {
            if (dims[d] >= 0 && value->dims[batch + d] != dims[d]) {
                return berth_fail(err, BERTH_INTERNAL,
                                  "output '%s' came with %lld in dimension %zu, described as %lld",
                                  io->name, (long long)value->dims[batch + d], d,
                                  (long long)dims[d]);
            }
        }
    }
    return BERTH_OK;
}

/* Bytes of one row's strings, which stand one after the other; false when they are malformed. */
static bool strings_length(const struct berth_ort_value *value, const unsigned char *from,
                           size_t count, size_t *out)
{
    const unsigned char *end = (const unsigned char *)value->bytes + value->length;
    const unsigned char *at = from;
    const char *bytes;
    uint32_t length;
    for (size_t i = 0; i < count; i++) {
        if (!berth_bytes_next(&at, end, &bytes, &length)) {
            return false;
        }
    }
    *out = (size_t)(at - from);
    return true;
}

/* One row's share of every output it wants. cursors: by output, where the next row's strings begin
 * (NULL at first). */
static enum berth_code scatter(struct berth_instance *instance, size_t index,
                               const unsigned char **cursors, uint64_t row_at,
                               struct berth_err *err)
{
    struct berth_row *row = instance->group[index];
    size_t batch = instance->model->spec->batch_size_max > 0 ? 1 : 0;
    enum berth_code code = BERTH_OK;
    for (size_t i = 0; i < instance->output_count; i++) {
        const struct berth_ort_value *value = &instance->outputs[i];
        const struct berth_io *io = instance->output_ios[i];
        struct berth_tensor one = {
            .name = io->name, .dtype = io->dtype, .rank = (uint8_t)(io->rank + batch)};
        size_t elements;
        size_t bytes;
        memcpy(one.dims, value->dims, sizeof(one.dims));
        if (io->has_reshape) {
            memcpy(one.dims + batch, io->dims, io->rank * sizeof(io->dims[0]));
            dims_map(value->dims + batch, io->reshape_dims, io->reshape_rank, io->dims,
                     one.dims + batch);
        }
        if (batch > 0) {
            one.dims[0] = (int64_t)row->request->batch_rows;
        }
        const unsigned char *from = value->bytes;
        bool fits = berth_tensor_elements(&one, &elements) &&
                    berth_mul_size(elements, berth_dtype_bytes(io->dtype), &bytes);
        if (fits && io->dtype == BERTH_DTYPE_BYTES) {
            from = cursors[i] == NULL ? from : cursors[i];
            fits = strings_length(value, from, elements, &bytes);
            cursors[i] = fits ? from + bytes : from;
        } else if (fits && batch > 0 && row->request->batch_rows > 0) {
            from += bytes / row->request->batch_rows * row_at;
        }
        if (!fits) {
            return berth_fail(err, BERTH_INTERNAL, "output '%s' cannot be cut apart", io->name);
        }
        if (code == BERTH_OK && berth_request_wants(row->request, io->name)) {
            void *to = NULL;
            code = berth_part_add(row->part, &one, bytes, &to, err);
            if (code == BERTH_OK && bytes > 0) {
                memcpy(to, from, bytes);
            }
        }
    }
    return code;
}

/* Gives back what a row's answer holds; it gets an error instead. */
static void part_clear(struct berth_row *row)
{
    if (row->part == NULL) {
        return;
    }
    for (size_t i = 0; i < row->part->tensor_count; i++) {
        berth_slabs_give(row->request->slabs, &row->part->tensors[i].range);
    }
    row->part->tensor_count = 0;
}

const struct berth_engine_ops berth_engine_onnx = {
    .name = "onnx",
    .parameters = (const char *const[]){NULL},
    .start = start,
    .finish = berth_ort_finish,
    .describe = berth_onnx_describe,
    .model_attach = model_attach,
    .model_detach = model_detach,
    .model_bytes = model_bytes,
    .instance_create = instance_create,
    .instance_destroy = instance_destroy,
    .execute = execute,
};
