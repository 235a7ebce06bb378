/* product_sm90.h - matrix products of our own for compute capability 9.0, with what cublasLt has no
 * epilogue for: SiLU of halves, a bias under the float32 stream.
 *
 * In:      a linear call (backend.h) of halves, depth and outputs multiples of 64 or of 128 and 32;
 *          which of the variants is to do it (product_tiles.h); all of them give the same bits.
 * Errors:  none; a call that a variant does not take it declines, and nothing is launched.
 * Threads: any, as the stream.
 */
#ifndef BERTH_PRODUCT_SM90_H
#define BERTH_PRODUCT_SM90_H

#include "engine/parakeet/cuda/cuda_device.h"

#define BERTH_PARAKEET_CUDA_PRODUCT90_MAX 8

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the device is of compute capability 9.0 and this build has code for it (gpu_targets:
 * 90a). Then products of halves are done here if any tile takes them (product_tiles.h), and a
 * vector's bits do not depend on how many there are. */
bool berth_parakeet_cuda_product90_here(const struct berth_parakeet_device *device);
/* Variants are 0 to count - 1: of tiles, not of results. */
uint32_t berth_parakeet_cuda_product90_count(void);
/* For people: rows x outputs of a tile, and how it is made. */
const char *berth_parakeet_cuda_product90_name(uint32_t variant);
/* Those that take the call and are worth timing; one at least if any takes it. Into variants
 * [PRODUCT90_MAX]; how many. */
uint32_t berth_parakeet_cuda_product90_list(const struct berth_parakeet_device *device,
                                            const struct berth_parakeet_linear_call *call,
                                            uint32_t *variants);
/* The whole call, bias and activation too, on that stream; it may be captured.
 * cudaErrorNotSupported: the device, the shape or the variant is not one that can. Another error:
 * it was not launched. */
cudaError_t berth_parakeet_cuda_product90_launch(const struct berth_parakeet_device *device,
                                                 const struct berth_parakeet_linear_call *call,
                                                 uint32_t variant, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
