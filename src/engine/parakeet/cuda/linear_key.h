/* linear_key.h - what a linear call asks of a product, and what a choice among ways to do that
 * product is kept for.
 *
 * Plain C without CUDA, so that it is tested where there is no GPU.   Threads: any.
 */
#ifndef BERTH_LINEAR_KEY_H
#define BERTH_LINEAR_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/parakeet/backend.h"

enum berth_parakeet_cuda_operands {
    BERTH_PARAKEET_CUDA_HALVES,
    BERTH_PARAKEET_CUDA_SCALED, /* e4m3, with both scales in the product */
    BERTH_PARAKEET_CUDA_BARE    /* e4m3, their sums alone */
};

/* What a way is chosen for. */
struct berth_parakeet_cuda_key {
    uint64_t n;
    uint32_t in, out;
    int ordinal;
    enum berth_parakeet_cuda_operands operands;
    enum berth_parakeet_activation activation; /* of those that the product itself does */
    bool bias, residual, stream;
    bool own; /* by product_sm90.h; else by cublasLt */
};

#ifdef __cplusplus
extern "C" {
#endif

bool berth_parakeet_cuda_keys_equal(const struct berth_parakeet_cuda_key *a,
                                    const struct berth_parakeet_cuda_key *b);
/* What the call's product reads. */
enum berth_parakeet_cuda_operands berth_parakeet_cuda_operands_of(
    const struct berth_parakeet_linear_call *call);
/* Whether vectors and the matrix' rows are whole pieces of 16 bytes. */
bool berth_parakeet_cuda_well_formed(const struct berth_parakeet_linear_call *call);
/* Of all that the call asks for, on that GPU: of a product of our own. */
struct berth_parakeet_cuda_key berth_parakeet_cuda_key_own(
    int ordinal, const struct berth_parakeet_linear_call *call);
/* Of what cublasLt does of it; the rest is for kernels after it. */
struct berth_parakeet_cuda_key berth_parakeet_cuda_key_lt(
    int ordinal, const struct berth_parakeet_linear_call *call);
/* A power of two by which sums of so many products of e4m3 fit a half, whatever they are. */
float berth_parakeet_cuda_sum_factor(uint32_t in);

#ifdef __cplusplus
}
#endif

#endif
