/* linear.c - matrix products of halves or e4m3 into halves or the float32 stream.
 *
 * On Hopper halves go to a product of our own (product_sm90.h), which does bias, SiLU, ReLU and the
 * residual itself, and whose sums have one order whatever the tile: a vector's bits are the same in
 * any company. What it declines, and everything elsewhere, is cublasLt's (product_lt.h), where SiLU
 * and the bias of the stream are kernels after it (activate.cu).
 * With e4m3 a vector and an output have a scale each. Hopper's cublasLt multiplies by both, with
 * one algorithm, which does not split sums. Before SiLU, and into the stream of few vectors, a
 * kernel of ours does it, and the product is faster: it leaves halves of the bare sums, divided by
 * what keeps the largest that there can be within a half.
 *
 * Which tile or algorithm it is, is chosen once in a process (linear_choice.h).
 * Rejected: the heuristic's first, up to 1.5 times slower for few rows; e4m3 summed faster but with
 * 14 bits (FAST_ACCUM), an eighth of such products' time; cublasLt where it is faster than ours (a
 * tenth, of 500 to 1000 vectors), for other bits there.
 */
#include "engine/parakeet/cuda/linear.h"

#include "engine/parakeet/cuda/product_lt.h"
#include "engine/parakeet/cuda/product_sm90.h"

#define ALIGNMENT 16u

/* A call, and how it is done: what run gets while ways are timed. */
struct asked {
    struct berth_parakeet_device *device;
    const struct berth_parakeet_linear_call *call;
    struct berth_parakeet_cuda_lt *lt; /* NULL: a product of our own */
};

static bool is_bare(const struct berth_parakeet_linear_call *call);
static bool own(struct berth_parakeet_device *device, const struct berth_parakeet_linear_call *call,
                bool *prepared);
static bool own_run(void *subject, const struct berth_parakeet_cuda_way *way,
                    const struct berth_parakeet_cuda_room *room, cudaStream_t stream);
static cublasStatus_t lt_choose(struct asked *asked, bool behind,
                                struct berth_parakeet_cuda_way *way, bool *chosen);
static bool lt_run(void *subject, const struct berth_parakeet_cuda_way *way,
                   const struct berth_parakeet_cuda_room *room, cudaStream_t stream);
static void lt_ask(struct berth_parakeet_device *device,
                   const struct berth_parakeet_linear_call *call);
static void lt_after(struct berth_parakeet_device *device,
                     const struct berth_parakeet_linear_call *call);

void berth_parakeet_cuda_linear(struct berth_parakeet_device *device,
                                const struct berth_parakeet_linear_call *call)
{
    const uintptr_t pointers = (uintptr_t)call->in | (uintptr_t)call->linear->weight |
                               (uintptr_t)call->out | (uintptr_t)call->residual;
    if (call->n == 0) {
        return;
    }
    if (!berth_parakeet_cuda_well_formed(call) || pointers % ALIGNMENT != 0) {
        berth_parakeet_cuda_refuse(device, "linear: 16-byte rows are needed, not of",
                                   (long)call->linear->in);
        return;
    }
    if (!own(device, call, NULL)) {
        lt_ask(device, call);
        lt_after(device, call);
    }
}

bool berth_parakeet_cuda_prepare(struct berth_parakeet_device *device,
                                 const struct berth_parakeet_linear_call *call)
{
    struct berth_parakeet_cuda_lt lt = {.desc = NULL};
    struct berth_parakeet_cuda_way way;
    struct berth_parakeet_linear_call like = *call;
    struct asked asked = {device, &like, &lt};
    bool chosen = false;
    if (call->n == 0 || !berth_parakeet_cuda_well_formed(call)) {
        return false;
    }
    /* Where it lies in a run is aligned; what says here that there is one need not be. */
    like.residual = call->residual == NULL ? NULL : call->linear->weight;
    (void)cudaSetDevice(device->ordinal);
    if (own(device, &like, &chosen)) {
        return chosen; /* if not, the run that needs it chooses, and not for cublasLt */
    }
    (void)lt_choose(&asked, true, &way, &chosen);
    berth_parakeet_cuda_lt_finish(&lt);
    return chosen;
}

static bool is_bare(const struct berth_parakeet_linear_call *call)
{
    return berth_parakeet_cuda_operands_of(call) == BERTH_PARAKEET_CUDA_BARE;
}

/* --- products of our own --- */

/* Whether one takes the call. Then it is asked for; or, where `prepared` is no NULL, its tile is
 * chosen behind, if that can be done now. */
static bool own(struct berth_parakeet_device *device, const struct berth_parakeet_linear_call *call,
                bool *prepared)
{
    struct berth_parakeet_cuda_way ways[BERTH_PARAKEET_CUDA_PRODUCT90_MAX];
    struct berth_parakeet_cuda_way way;
    uint32_t variants[BERTH_PARAKEET_CUDA_PRODUCT90_MAX];
    struct asked asked = {device, call, NULL};
    const struct berth_parakeet_cuda_race race = {
        .key = berth_parakeet_cuda_key_own(device->ordinal, call),
        .ways = ways,
        .count = (int)berth_parakeet_cuda_product90_list(device, call, variants),
        .behind = prepared != NULL,
        .run = own_run,
        .subject = &asked,
    };
    for (int i = 0; i < race.count; i++) {
        ways[i] = (struct berth_parakeet_cuda_way){.variant = variants[i]};
    }
    if (race.count == 0) {
        return false;
    }
    const bool chosen = berth_parakeet_cuda_choose(device, &race, &way);
    if (prepared != NULL) {
        *prepared = chosen;
        return true;
    }
    berth_parakeet_cuda_fail(
        device, "product",
        berth_parakeet_cuda_product90_launch(device, call, way.variant, device->stream));
    return true;
}

static bool own_run(void *subject, const struct berth_parakeet_cuda_way *way,
                    const struct berth_parakeet_cuda_room *room, cudaStream_t stream)
{
    const struct asked *asked = subject;
    struct berth_parakeet_linear linear = *asked->call->linear;
    struct berth_parakeet_linear_call call = *asked->call;
    linear.weight = room->weight;
    linear.bias = linear.bias == NULL ? NULL : room->vectors;
    call.linear = &linear;
    call.in = room->in;
    call.out = room->out;
    call.residual = call.residual == NULL ? NULL : room->out;
    return berth_parakeet_cuda_product90_launch(asked->device, &call, way->variant, stream) ==
           cudaSuccess;
}

/* --- products by cublasLt --- */

/* Describes the call and finds the algorithm for it; lt is the caller's to finish. */
static cublasStatus_t lt_choose(struct asked *asked, bool behind,
                                struct berth_parakeet_cuda_way *way, bool *chosen)
{
    const struct berth_parakeet_linear_call *call = asked->call;
    const uint32_t in = call->linear->in;
    struct berth_parakeet_cuda_way ways[BERTH_PARAKEET_CUDA_LT_WAYS_MAX];
    struct berth_parakeet_cuda_race race = {
        .key = berth_parakeet_cuda_key_lt(asked->device->ordinal, call),
        .ways = ways,
        .behind = behind,
        .run = lt_run,
        .subject = asked,
    };
    const float alpha = is_bare(call) ? 1.0f / berth_parakeet_cuda_sum_factor(in) : call->scale;
    cublasStatus_t status = berth_parakeet_cuda_lt_make(&race.key, alpha, asked->lt);
    *chosen = status == CUBLAS_STATUS_SUCCESS && berth_parakeet_cuda_choice_find(&race.key, way);
    if (status == CUBLAS_STATUS_SUCCESS && !*chosen) {
        status = berth_parakeet_cuda_lt_ways(asked->device, asked->lt, ways, &race.count);
        *chosen = status == CUBLAS_STATUS_SUCCESS &&
                  berth_parakeet_cuda_choose(asked->device, &race, way);
    }
    return status;
}

static bool lt_run(void *subject, const struct berth_parakeet_cuda_way *way,
                   const struct berth_parakeet_cuda_room *room, cudaStream_t stream)
{
    const struct asked *asked = subject;
    const struct berth_parakeet_cuda_lt_memory memory = {
        .weight = room->weight,
        .in = room->in,
        .residual = room->out,
        .out = room->out,
        .bias = room->vectors,
        .weight_scale = room->vectors,
        .in_scale = room->vectors,
        .workspace = room->workspace,
    };
    return berth_parakeet_cuda_lt_run(asked->device, asked->lt, way, &memory, stream) ==
           CUBLAS_STATUS_SUCCESS;
}

static void lt_ask(struct berth_parakeet_device *device,
                   const struct berth_parakeet_linear_call *call)
{
    struct berth_parakeet_cuda_lt lt = {.desc = NULL};
    struct berth_parakeet_cuda_way way;
    struct asked asked = {device, call, &lt};
    const struct berth_parakeet_cuda_lt_memory memory = {
        .weight = call->linear->weight,
        .in = call->in,
        .residual = call->residual,
        .out = is_bare(call) && call->stream ? call->scratch : call->out,
        .bias = call->linear->bias,
        .weight_scale = call->linear->scale,
        .in_scale = call->in_scale,
        .workspace = device->workspace,
    };
    bool chosen = false;
    cublasStatus_t status = lt_choose(&asked, false, &way, &chosen);
    if (chosen) {
        status = berth_parakeet_cuda_lt_run(device, &lt, &way, &memory, device->stream);
    }
    berth_parakeet_cuda_lt_finish(&lt);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) {
        berth_parakeet_cuda_fail(device, "linear", cudaErrorMemoryAllocation);
    } else if (status != CUBLAS_STATUS_SUCCESS) {
        berth_parakeet_cuda_refuse(device, "linear: cublasLt status", (long)status);
    }
}

/* What the product left to do. */
static void lt_after(struct berth_parakeet_device *device,
                     const struct berth_parakeet_linear_call *call)
{
    const struct berth_parakeet_linear *linear = call->linear;
    const float factor = berth_parakeet_cuda_sum_factor(linear->in);
    if (is_bare(call) && call->stream) {
        berth_parakeet_cuda_add_bare(device, call, factor);
        return;
    }
    if (is_bare(call)) {
        berth_parakeet_cuda_silu_narrow(device, call, factor);
        return;
    }
    if (linear->bias != NULL && !berth_parakeet_cuda_key_lt(device->ordinal, call).bias) {
        berth_parakeet_cuda_bias(device, call);
    }
    if (call->activation == BERTH_PARAKEET_SILU) {
        berth_parakeet_cuda_silu(device, call->out, call->n * linear->out);
    }
}
