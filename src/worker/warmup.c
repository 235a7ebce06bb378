/* warmup.c - see warmup.h. Sizes and file names come from a config file, so they are checked. */
#include "worker/warmup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define WARMUP_ARENA_BYTES (64 * 1024)
#define WARMUP_STEPS_MAX 100000
#define WARMUP_BUDGET_NS UINT64_C(20000000)

static enum berth_code make_input(const struct berth_model_spec *spec,
                                  const struct berth_warmup *sample, size_t index,
                                  struct berth_request *request, struct berth_err *err);
static enum berth_code input_bytes(const struct berth_warmup_input *from,
                                   const struct berth_tensor *tensor, size_t *out,
                                   struct berth_err *err);
static enum berth_code fill(const struct berth_model_spec *spec,
                            const struct berth_warmup_input *from, unsigned char *to, size_t bytes,
                            struct berth_err *err);
static void fill_random(const struct berth_warmup_input *from, unsigned char *to, size_t bytes);
static enum berth_code fill_from_file(const struct berth_model_spec *spec,
                                      const struct berth_warmup_input *from, unsigned char *to,
                                      size_t bytes, struct berth_err *err);
static enum berth_code run_execute(const struct berth_engine_ops *engine,
                                   struct berth_instance *instance, struct berth_row *row,
                                   struct berth_err *err);
static enum berth_code run_steps(const struct berth_engine_ops *engine,
                                 struct berth_instance *instance, struct berth_row *row,
                                 struct berth_err *err);
static bool take_events(struct berth_step_result *step, struct berth_err *err);

/* All inputs lie in one range, the request's body. */
enum berth_code berth_warmup_make(const struct berth_model_spec *spec,
                                  const struct berth_warmup *sample, struct berth_slabs *slabs,
                                  struct berth_request **out, struct berth_err *err)
{
    struct berth_request *request = berth_request_create(slabs, WARMUP_ARENA_BYTES);
    if (request == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    enum berth_code code = BERTH_OK;
    if (spec->batch_size_max > 0 && sample->batch_size > 0) {
        request->batch_rows = sample->batch_size;
    }
    if (sample->input_count > 0) {
        request->inputs =
            berth_arena_alloc(&request->arena, sample->input_count * sizeof(*request->inputs));
        if (request->inputs == NULL) {
            code = berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
            goto out;
        }
    }
    size_t whole = 0;
    for (size_t i = 0; i < sample->input_count; i++) {
        code = make_input(spec, sample, i, request, err);
        if (code != BERTH_OK) {
            goto out;
        }
        uint64_t padded = (request->inputs[i].range.length + BERTH_SLAB_ALIGN - 1) /
                          BERTH_SLAB_ALIGN * BERTH_SLAB_ALIGN;
        request->inputs[i].range.offset = whole;
        if (!berth_add_size(whole, padded, &whole)) {
            code = berth_fail(err, BERTH_TOO_LARGE, "warm-up '%s' is too large", sample->name);
            goto out;
        }
    }
    if (whole > 0) {
        code = berth_slabs_take(slabs, whole, &request->body, err);
    }
    for (size_t i = 0; i < sample->input_count && code == BERTH_OK; i++) {
        struct berth_range part = {0};
        uint64_t length = request->inputs[i].range.length;
        if (length > 0 && !berth_range_slice(&request->body, request->inputs[i].range.offset,
                                             length, &part)) {
            code = berth_fail(err, BERTH_INTERNAL, "warm-up '%s' overlaps", sample->name);
            break;
        }
        request->inputs[i].range = part;
        code = fill(spec, &sample->inputs[i], berth_slabs_pointer(slabs, &part), length, err);
    }
out:
    if (code != BERTH_OK) {
        berth_request_release(request);
        return code;
    }
    request->input_count = sample->input_count;
    *out = request;
    return BERTH_OK;
}

enum berth_code berth_warmup_run(const struct berth_engine_ops *engine,
                                 const struct berth_model_spec *spec,
                                 struct berth_instance *instance, struct berth_request *request,
                                 struct berth_err *err)
{
    struct berth_row row = {.request = request};
    return spec->run_mode == BERTH_RUN_STEPS ? run_steps(engine, instance, &row, err)
                                             : run_execute(engine, instance, &row, err);
}

static enum berth_code make_input(const struct berth_model_spec *spec,
                                  const struct berth_warmup *sample, size_t index,
                                  struct berth_request *request, struct berth_err *err)
{
    const struct berth_warmup_input *from = &sample->inputs[index];
    struct berth_tensor *tensor = &request->inputs[index];
    uint8_t batch = spec->batch_size_max > 0 ? 1 : 0;
    if (from->rank + batch > BERTH_RANK_MAX) {
        return berth_fail(err, BERTH_INVALID, "warm-up '%s': input '%s' has too many dims",
                          sample->name, from->name);
    }
    tensor->name = from->name;
    tensor->dtype = from->dtype;
    tensor->rank = (uint8_t)(from->rank + batch);
    if (batch > 0) {
        tensor->dims[0] = (int64_t)request->batch_rows;
    }
    memcpy(&tensor->dims[batch], from->dims, from->rank * sizeof(from->dims[0]));
    size_t bytes = 0;
    BERTH_TRY(input_bytes(from, tensor, &bytes, err));
    tensor->range.length = bytes;
    return BERTH_OK;
}

/* Strings are empty unless they come from a file. */
static enum berth_code input_bytes(const struct berth_warmup_input *from,
                                   const struct berth_tensor *tensor, size_t *out,
                                   struct berth_err *err)
{
    size_t elements = 0;
    size_t element = berth_dtype_bytes(tensor->dtype);
    if (!berth_tensor_elements(tensor, &elements) ||
        !berth_mul_size(elements, element == 0 ? 4 : element, out)) {
        return berth_fail(err, BERTH_INVALID, "warm-up input '%s' has no usable shape",
                          from->name);
    }
    return BERTH_OK;
}

static enum berth_code fill(const struct berth_model_spec *spec,
                            const struct berth_warmup_input *from, unsigned char *to, size_t bytes,
                            struct berth_err *err)
{
    if (bytes == 0) {
        return BERTH_OK;
    }
    memset(to, 0, bytes);
    if (from->source == BERTH_WARMUP_FILE) {
        return fill_from_file(spec, from, to, bytes, err);
    }
    if (from->source == BERTH_WARMUP_RANDOM && berth_dtype_bytes(from->dtype) > 0) {
        fill_random(from, to, bytes);
    }
    return BERTH_OK;
}

/* Floats in [0, 1), small integers: a fixed sequence, so that every load does the same. */
static void fill_random(const struct berth_warmup_input *from, unsigned char *to, size_t bytes)
{
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15);
    size_t element = berth_dtype_bytes(from->dtype);
    for (size_t at = 0; at + element <= bytes; at += element) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t bits = state >> 40;
        if (from->dtype == BERTH_DTYPE_FP32) {
            float value = (float)bits / 16777216.0F;
            memcpy(to + at, &value, sizeof(value));
        } else if (from->dtype == BERTH_DTYPE_FP64) {
            double value = (double)bits / 16777216.0;
            memcpy(to + at, &value, sizeof(value));
        } else if (from->dtype == BERTH_DTYPE_BOOL) {
            to[at] = (unsigned char)(bits & 1);
        } else if (from->dtype != BERTH_DTYPE_FP16 && from->dtype != BERTH_DTYPE_BF16) {
            to[at] = (unsigned char)(bits & 0x3F); /* little-endian: 0 to 63 */
        }
    }
}

static enum berth_code fill_from_file(const struct berth_model_spec *spec,
                                      const struct berth_warmup_input *from, unsigned char *to,
                                      size_t bytes, struct berth_err *err)
{
    char path[PATH_MAX];
    if (from->file == NULL || from->file[0] == '\0' || from->file[0] == '.' ||
        strchr(from->file, '/') != NULL) {
        return berth_fail(err, BERTH_INVALID, "warm-up input '%s' names no file of its folder",
                          from->name);
    }
    int length = snprintf(path, sizeof(path), "%s/warmup/%s", spec->folder, from->file);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return berth_fail(err, BERTH_INVALID, "warm-up file '%s' has too long a path", from->file);
    }
    int fd = -1;
    uint64_t file_bytes = 0;
    struct berth_err inner = {0};
    if (berth_file_open(path, &fd, &file_bytes, &inner) != BERTH_OK) {
        return berth_fail(err, BERTH_INVALID, "warm-up file '%s': %s", from->file, inner.msg);
    }
    ptrdiff_t done = berth_file_read(fd, to, bytes);
    close(fd);
    if (done < 0 || (size_t)done < bytes) {
        return berth_fail(err, BERTH_INVALID, "warm-up file '%s' has %td bytes, its shape %zu",
                          from->file, done < 0 ? 0 : done, bytes);
    }
    return BERTH_OK;
}

static enum berth_code run_execute(const struct berth_engine_ops *engine,
                                   struct berth_instance *instance, struct berth_row *row,
                                   struct berth_err *err)
{
    struct berth_batch batch = {.rows = row, .row_count = 1,
                                .batch_rows = row->request->batch_rows};
    row->part = berth_part_create(row->request);
    if (row->part == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    enum berth_code code = engine->execute(instance, &batch, err);
    if (code == BERTH_OK && row->err.code != BERTH_OK) {
        code = row->err.code;
        if (err != NULL) {
            *err = row->err;
        }
    }
    berth_part_destroy(row->part);
    return code;
}

static enum berth_code run_steps(const struct berth_engine_ops *engine,
                                 struct berth_instance *instance, struct berth_row *row,
                                 struct berth_err *err)
{
    struct berth_err fault = {0};
    struct berth_step_result *step = berth_alloc(sizeof(*step));
    if (step == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    enum berth_code code = engine->admit(instance, row, 1, &fault);
    if (code == BERTH_OK && row->err.code != BERTH_OK) {
        fault = row->err;
        code = fault.code;
    }
    bool live = code == BERTH_OK;
    for (size_t n = 0; live && n < WARMUP_STEPS_MAX; n++) {
        step->event_count = 0;
        code = engine->step(instance, WARMUP_BUDGET_NS, step, &fault);
        if (code != BERTH_OK) {
            break;
        }
        live = !take_events(step, &fault);
        code = fault.code;
    }
    if (live) {
        engine->drop(instance, row->slot);
    }
    if (live && code == BERTH_OK) {
        code = berth_fail(&fault, BERTH_INTERNAL, "warm-up does not end");
    }
    if (code != BERTH_OK && err != NULL) {
        *err = fault;
    }
    berth_free(step);
    return code;
}

/* true when the row has ended; its error goes to *err. */
static bool take_events(struct berth_step_result *step, struct berth_err *err)
{
    bool ended = false;
    for (size_t i = 0; i < step->event_count; i++) {
        berth_part_destroy(step->events[i].part);
        if (step->events[i].final) {
            ended = true;
            *err = step->events[i].err;
        }
    }
    return ended;
}
