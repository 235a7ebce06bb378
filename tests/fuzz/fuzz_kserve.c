/* fuzz_kserve.c - KServe bodies, JSON and binary: whatever comes, an error or tensors that lie
 * inside of the body (or a range of their own) and fit the model.
 *
 * Input: one byte that says whether and how the header length is given, one for the model, two for
 * the header length, then the body. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/kserve_parse.h"
#include "base/slab.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static struct berth_slabs *slabs;

static const struct berth_io inputs[] = {
    {.name = "INPUT0", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {-1}},
    {.name = "S", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {-1}, .optional = true},
};
static const struct berth_io outputs[] = {
    {.name = "OUTPUT0", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {-1}},
};

static void check_inputs(const struct berth_request *request);
static void choose_model(struct berth_model_spec *spec, int model);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct berth_err err = {0};
    struct berth_model_spec spec = {.name = "identity", .completed = true};
    char number[24];
    if (slabs == NULL) {
        struct berth_slabs_options options = {.bytes_budget = 64 << 20, .bytes_pool_max = 8 << 20};
        if (berth_slabs_create(&options, &slabs, &err) != BERTH_OK) {
            abort();
        }
    }
    if (size < 4) {
        return 0;
    }
    struct berth_request *request = berth_request_create(slabs, 1 << 20);
    if (request == NULL) {
        return 0;
    }
    choose_model(&spec, data[1]);
    struct berth_kserve_form form = {.request = request, .spec = &spec, .json_bytes_max = 1 << 16};
    if (data[0] % 3 != 0) {
        snprintf(number, sizeof(number), data[0] % 3 == 1 ? "%d" : "%dx",
                 (int)(short)(data[2] | data[3] << 8));
        form.header_length = number;
    }
    if (size > 4 && berth_slabs_take(slabs, size - 4, &request->body, &err) == BERTH_OK) {
        memcpy(berth_slabs_pointer(slabs, &request->body), data + 4, size - 4);
    }
    if (berth_kserve_parse(&form, &err) == BERTH_OK) {
        check_inputs(request);
    } else if (err.code == BERTH_OK || err.msg[0] == '\0' || err.code == BERTH_INTERNAL) {
        abort();
    }
    berth_request_release(request);
    struct berth_slabs_stats stats;
    berth_slabs_stats(slabs, &stats);
    if (stats.bytes_out != 0) {
        abort();
    }
    return 0;
}

/* With and without a batch dimension, one input or two. */
static void choose_model(struct berth_model_spec *spec, int model)
{
    spec->inputs = (struct berth_io *)(void *)inputs;
    spec->input_count = model % 2 == 0 ? 1 : 2;
    spec->outputs = (struct berth_io *)(void *)outputs;
    spec->output_count = 1;
    spec->batch_size_max = model / 2 % 2 == 0 ? 8 : 0;
}

static void check_inputs(const struct berth_request *request)
{
    for (size_t i = 0; i < request->input_count; i++) {
        const struct berth_tensor *tensor = &request->inputs[i];
        size_t elements = 0;
        if (tensor->name == NULL || !berth_tensor_elements(tensor, &elements)) {
            abort();
        }
        if (tensor->dtype != BERTH_DTYPE_BYTES &&
            elements * berth_dtype_bytes(tensor->dtype) != tensor->range.length) {
            abort();
        }
        if (tensor->range.length > 0) { /* every byte is there: the sanitizer would tell */
            const unsigned char *bytes = berth_slabs_pointer(slabs, &tensor->range);
            volatile unsigned char sum = 0;
            for (uint64_t b = 0; b < tensor->range.length; b++) {
                sum = (unsigned char)(sum + bytes[b]);
            }
        }
    }
}
