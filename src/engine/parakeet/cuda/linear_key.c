/* linear_key.c - see linear_key.h. */
#include "engine/parakeet/cuda/linear_key.h"

#include "engine/parakeet/e4m3.h"

#define BARE_MAX 1024 /* vectors; one product of 4096 takes 14 us for 126 as for 2016 (H200) */
#define HALF_MAX 65504.0F

bool berth_parakeet_cuda_keys_equal(const struct berth_parakeet_cuda_key *a,
                                    const struct berth_parakeet_cuda_key *b)
{
    return a->n == b->n && a->in == b->in && a->out == b->out && a->ordinal == b->ordinal &&
           a->operands == b->operands && a->activation == b->activation && a->bias == b->bias &&
           a->residual == b->residual && a->stream == b->stream && a->own == b->own;
}

enum berth_parakeet_cuda_operands berth_parakeet_cuda_operands_of(
    const struct berth_parakeet_linear_call *call)
{
    const bool few = call->stream && call->scratch != NULL && call->n <= BARE_MAX;
    if (call->linear->scale == NULL) {
        return BERTH_PARAKEET_CUDA_HALVES;
    }
    return call->activation == BERTH_PARAKEET_SILU || few ? BERTH_PARAKEET_CUDA_BARE
                                                          : BERTH_PARAKEET_CUDA_SCALED;
}

bool berth_parakeet_cuda_well_formed(const struct berth_parakeet_linear_call *call)
{
    const bool halves = berth_parakeet_cuda_operands_of(call) == BERTH_PARAKEET_CUDA_HALVES;
    return call->linear->in % (halves ? 8 : 16) == 0;
}

struct berth_parakeet_cuda_key berth_parakeet_cuda_key_own(
    int ordinal, const struct berth_parakeet_linear_call *call)
{
    return (struct berth_parakeet_cuda_key){
        .n = call->n,
        .in = call->linear->in,
        .out = call->linear->out,
        .ordinal = ordinal,
        .operands = berth_parakeet_cuda_operands_of(call),
        .activation = call->activation,
        .bias = call->linear->bias != NULL,
        .residual = call->residual != NULL,
        .stream = call->stream,
        .own = true,
    };
}

/* A bias is the epilogue's unless that scales before it, or takes one of another type than there
 * is; of bare sums all else comes after; SiLU always. */
struct berth_parakeet_cuda_key berth_parakeet_cuda_key_lt(
    int ordinal, const struct berth_parakeet_linear_call *call)
{
    struct berth_parakeet_cuda_key key = berth_parakeet_cuda_key_own(ordinal, call);
    const bool bare = key.operands == BERTH_PARAKEET_CUDA_BARE;
    key.own = false;
    key.bias = key.bias && !bare && !call->stream && call->scale == 1.0F;
    key.residual = key.residual && !bare;
    key.stream = key.stream && !bare;
    if (key.activation == BERTH_PARAKEET_SILU) {
        key.activation = BERTH_PARAKEET_NONE;
    }
    return key;
}

float berth_parakeet_cuda_sum_factor(uint32_t in)
{
    float factor = 1.0F;
    while (BERTH_E4M3_MAX * BERTH_E4M3_MAX * (float)in > HALF_MAX * factor) {
        factor *= 2.0F;
    }
    return factor;
}
