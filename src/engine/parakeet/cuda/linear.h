/* linear.h - what linear.c and activate.cu have in common; linear itself is in cuda_device.h.
 *
 * Threads: as the device's; berth_parakeet_cuda_noise on the stream it is given.
 */
#ifndef BERTH_LINEAR_H
#define BERTH_LINEAR_H

#include "engine/parakeet/cuda/cuda_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In place, on elements. */
void berth_parakeet_cuda_silu(struct berth_parakeet_device *device, void *values, uint64_t count);
/* Adds scale x bias to the call's output, of either type. */
void berth_parakeet_cuda_bias(struct berth_parakeet_device *device,
                              const struct berth_parakeet_linear_call *call);
/* Fills memory with halves between -1 and 1. */
cudaError_t berth_parakeet_cuda_noise(void *to, size_t bytes, uint32_t seed, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
