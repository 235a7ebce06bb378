/* gpu.h - which GPU a thread works on, and CUDA's errors as ours.
 *
 * Threads: any; what is current on a thread is that thread's own.
 * Rules:   README.md here, C1 to C8.
 * Not here: memory (vmm.h, span.h), kernels (parakeet/cuda/).
 */
#ifndef BERTH_GPU_H
#define BERTH_GPU_H

#include <cuda_runtime_api.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "cuda:N" as N; INVALID for anything else. Asks no driver. */
enum berth_code berth_gpu_parse(const char *device, int *out, struct berth_err *err) BERTH_MUST_USE;
/* Makes the GPU this thread's; the first call in a process makes its context (about 0.3 s).
 * UNAVAILABLE, in a sentence for people, where there is no driver or no such GPU; UNSUPPORTED for
 * one that this build has no code for (gpu_targets.h). */
enum berth_code berth_gpu_use(int device, struct berth_err *err) BERTH_MUST_USE;
/* Its compute capability: 90 for 9.0. Makes no context. */
enum berth_code berth_gpu_capability(int device, int *out, struct berth_err *err) BERTH_MUST_USE;
struct berth_gpu_facts {
    char name[64];
    uint64_t bytes;
    uint64_t bytes_free;
    int driver; /* the CUDA version it is for, as 13000 */
};

/* Makes the GPU this thread's, and tells of it. */
enum berth_code berth_gpu_describe(int device, struct berth_gpu_facts *out,
                                   struct berth_err *err) BERTH_MUST_USE;
/* Every error of CUDA's, or its driver's, which has the same numbers, comes by here: after one that
 * poisons the context this process is lost (C2). */
void berth_gpu_note(cudaError_t status);
/* Notes it, and fills err with what was being done and CUDA's own name and text; UNAVAILABLE. */
enum berth_code berth_gpu_fail(struct berth_err *err, cudaError_t status, const char *doing);

#ifdef __cplusplus
}
#endif

#endif
