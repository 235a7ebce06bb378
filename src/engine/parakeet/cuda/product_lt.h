/* product_lt.h - matrix products by cublasLt, with the epilogues and scales that it has.
 *
 * In:      a product's key (linear_choice.h); of its activation ReLU alone is done here.
 * Owns:    the description, until finish; finish of a zeroed one is fine.
 * Errors:  cublasLt's status; the caller tells it.      Threads: one at a time.
 */
#ifndef BERTH_PRODUCT_LT_H
#define BERTH_PRODUCT_LT_H

#include "engine/parakeet/cuda/linear_choice.h"

#define BERTH_PARAKEET_CUDA_LT_WAYS_MAX 12

struct berth_parakeet_cuda_lt {
    struct berth_parakeet_cuda_key key;
    float alpha, beta;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t weight, in, out;
};

/* What one product reads and writes; of the vectors only those that its key has. */
struct berth_parakeet_cuda_lt_memory {
    const void *weight, *in, *residual;
    void *out;
    const void *bias;                    /* elements */
    const void *weight_scale, *in_scale; /* float32 */
    void *workspace;
};

/* alpha: what the sums are multiplied by. */
cublasStatus_t berth_parakeet_cuda_lt_make(const struct berth_parakeet_cuda_key *key, float alpha,
                                           struct berth_parakeet_cuda_lt *out);
void berth_parakeet_cuda_lt_finish(struct berth_parakeet_cuda_lt *product);
/* The heuristic's algorithms whose sums have one order, the likeliest first, into ways
 * [LT_WAYS_MAX]. */
cublasStatus_t berth_parakeet_cuda_lt_ways(const struct berth_parakeet_device *device,
                                           const struct berth_parakeet_cuda_lt *product,
                                           struct berth_parakeet_cuda_way *ways, int *count);
cublasStatus_t berth_parakeet_cuda_lt_run(const struct berth_parakeet_device *device,
                                          const struct berth_parakeet_cuda_lt *product,
                                          const struct berth_parakeet_cuda_way *way,
                                          const struct berth_parakeet_cuda_lt_memory *memory,
                                          cudaStream_t stream);

#endif
