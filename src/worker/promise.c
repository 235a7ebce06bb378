/* promise.c - see promise.h. */
#include "worker/promise.h"

#include <string.h>

static enum berth_code check(const struct berth_model_spec *spec, const struct berth_part *part,
                             size_t before, const struct berth_tensor *like,
                             struct berth_err *err);
static bool is_of_shape(const struct berth_model_spec *spec, const struct berth_io *io,
                        const struct berth_tensor *tensor, uint64_t batch_rows);

enum berth_code berth_promise_output(const struct berth_model_spec *spec,
                                     const struct berth_part *part,
                                     const struct berth_tensor *like, struct berth_err *err)
{
    return check(spec, part, part->tensor_count, like, err);
}

enum berth_code berth_promise_whole(const struct berth_model_spec *spec,
                                    const struct berth_part *part, struct berth_err *err)
{
    for (size_t i = 0; i < spec->output_count; i++) {
        const char *name = spec->outputs[i].name;
        if (berth_request_wants(part->request, name) && berth_part_find(part, name) == NULL) {
            return berth_fail(err, BERTH_INTERNAL, "the engine answered without output '%.64s'",
                              name);
        }
    }
    return BERTH_OK;
}

enum berth_code berth_promise_part(const struct berth_model_spec *spec,
                                   const struct berth_part *part, struct berth_err *err)
{
    for (size_t i = 0; i < part->tensor_count; i++) {
        BERTH_TRY(check(spec, part, i, &part->tensors[i], err));
    }
    return berth_promise_whole(spec, part, err);
}

/* Beside the `before` first ones of part. */
static enum berth_code check(const struct berth_model_spec *spec, const struct berth_part *part,
                             size_t before, const struct berth_tensor *like, struct berth_err *err)
{
    const struct berth_io *io = berth_spec_output(spec, like->name);
    if (io == NULL) {
        return berth_fail(err, BERTH_INTERNAL,
                          "the engine answered with an output that is none of the model's");
    }
    if (like->dtype != io->dtype) {
        return berth_fail(err, BERTH_INTERNAL,
                          "the engine answered with output '%.64s' in %s instead of %s", io->name,
                          berth_dtype_name(like->dtype), berth_dtype_name(io->dtype));
    }
    if (!is_of_shape(spec, io, like, part->request->batch_rows)) {
        return berth_fail(err, BERTH_INTERNAL,
                          "the engine answered with output '%.64s' in another shape than the "
                          "model's", io->name);
    }
    for (size_t i = 0; i < before; i++) {
        if (strcmp(part->tensors[i].name, io->name) == 0) {
            return berth_fail(err, BERTH_INTERNAL, "the engine answered with output '%.64s' twice",
                              io->name);
        }
    }
    return BERTH_OK;
}

/* Behind the batch where there is one. Rows of step models stand alone: with it or without. */
static bool is_of_shape(const struct berth_model_spec *spec, const struct berth_io *io,
                        const struct berth_tensor *tensor, uint64_t batch_rows)
{
    bool has_batch = spec->batch_size_max > 0 && tensor->rank == io->rank + 1;
    uint8_t first = has_batch ? 1 : 0;
    if (!has_batch && spec->batch_size_max > 0 && spec->run_mode != BERTH_RUN_STEPS) {
        return false;
    }
    if (tensor->rank != io->rank + first ||
        (has_batch && (uint64_t)tensor->dims[0] != batch_rows)) {
        return false;
    }
    for (uint8_t i = 0; i < io->rank; i++) {
        if (io->dims[i] >= 0 && tensor->dims[first + i] != io->dims[i]) {
            return false;
        }
    }
    return true;
}
