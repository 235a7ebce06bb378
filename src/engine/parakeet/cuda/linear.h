/* linear.h - what linear.c and activate.cu have in common; linear itself is in cuda_device.h.
 *
 * Threads: as the device's; berth_parakeet_cuda_noise on the stream it is given.
 */
#ifndef BERTH_LINEAR_H
#define BERTH_LINEAR_H

#include "engine/parakeet/cuda/cuda_device.h"

#define BERTH_PARAKEET_CUDA_NARROW_MAX 16384 /* a vector that silu_narrow keeps in a block */

#ifdef __cplusplus
extern "C" {
#endif

/* In place, on elements. */
void berth_parakeet_cuda_silu(struct berth_parakeet_device *device, void *values, uint64_t count);
/* The call's output is sums over `factor` without scales and bias; SiLU of what they stand for goes
 * to narrow and narrow_scale. linear->out is a multiple of 16, up to NARROW_MAX. */
void berth_parakeet_cuda_silu_narrow(struct berth_parakeet_device *device,
                                     const struct berth_parakeet_linear_call *call, float factor);
/* Likewise for the stream, of sums in scratch: out = residual (NULL: none) + scale x what they and
 * the bias come to. linear->out is a multiple of 4. */
void berth_parakeet_cuda_add_bare(struct berth_parakeet_device *device,
                                  const struct berth_parakeet_linear_call *call, float factor);
/* Adds scale x bias to the call's output, of either type. */
void berth_parakeet_cuda_bias(struct berth_parakeet_device *device,
                              const struct berth_parakeet_linear_call *call);
/* Fills memory with halves between -1 and 1, or e4m3 of any size. */
cudaError_t berth_parakeet_cuda_noise(void *to, size_t bytes, bool narrow, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
