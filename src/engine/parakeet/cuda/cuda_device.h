/* cuda_device.h - what the operations of the CUDA back end share: one stream, cublasLt, graphs.
 *
 * In:      the table's calls (backend.h), on the one thread that has the device.
 * Owns:    the stream, the cublasLt handle and its workspace, the recorded graphs.
 * Errors:  an operation that fails says so with berth_parakeet_cuda_fail, and finish tells the
 *          first one. What comes after a failure is asked for all the same and does nothing useful.
 * Threads: a device belongs to one instance.
 * Shape:   every kernel starts with berth_parakeet_cuda_wait (kernels.cuh), in all its threads,
 *          because it may be launched before the one it follows has ended.
 * C and C++ clean.
 */
#ifndef BERTH_CUDA_DEVICE_H
#define BERTH_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cublasLt.h>
#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/err.h"
#include "engine/parakeet/backend.h"

#define BERTH_PARAKEET_CUDA_GRAPHS_MAX 64

struct berth_parakeet_cuda_graph {
    uint64_t key;
    uint64_t used_at; /* the device's play_count then; 0: the place is free */
    cudaGraphExec_t exec;
};

struct berth_parakeet_device {
    int ordinal;
    int sm_count;
    int capability;          /* 90 for 9.0 */
    bool overlap;            /* a kernel may start before the one it follows has ended (9.0 on) */
    int shared_bytes_max;    /* shared memory a block may ask for */
    int64_t l2_bytes;
    cudaStream_t stream;     /* all work, in order; of the highest priority */
    cublasLtHandle_t blas;
    void *workspace;         /* BERTH_PARAKEET_CUDA_WORKSPACE_BYTES, of the stream's products */
    char error_text[160];    /* the first failure since finish, and how; "": none */
    bool no_memory;          /* one of the failures since finish was of memory */
    bool starved;            /* and of those before it */
    bool recording;          /* the stream is being captured, mode relaxed */
    uint64_t recording_key;
    uint64_t play_count;
    uint64_t kept_bytes;     /* the workspace, and what features.cu keeps */
    struct berth_parakeet_cuda_graph graphs[BERTH_PARAKEET_CUDA_GRAPHS_MAX];
    /* What features.cu keeps on the device from call to call, and how it is ended; NULL: nothing
     * yet. */
    void *features_kept;
    void (*features_close)(struct berth_parakeet_device *device);
};

/* Remembers the first failure; cudaSuccess is fine and remembers nothing. */
void berth_parakeet_cuda_fail(struct berth_parakeet_device *device, const char *what,
                              cudaError_t error);
/* The same for a failure that is not the runtime's: a shape no kernel takes, a cublasLt status. */
void berth_parakeet_cuda_refuse(struct berth_parakeet_device *device, const char *what, long value);

struct berth_parakeet_cuda_launch {
    const char *name;    /* for errors */
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes; /* dynamic; the kernel's limit is raised as needed */
};

/* Launches on the device's stream. args: addresses of the kernel's arguments, in order and of
 * exactly their types. An empty grid is fine: nothing is launched. */
void berth_parakeet_cuda_run(struct berth_parakeet_device *device,
                             const struct berth_parakeet_cuda_launch *launch, void **args);

/* The table's operations by file. linear.c: */
void berth_parakeet_cuda_linear(struct berth_parakeet_device *device,
                                const struct berth_parakeet_linear_call *call);
bool berth_parakeet_cuda_prepare(struct berth_parakeet_device *device,
                                 const struct berth_parakeet_linear_call *call);
/* linear_choice.c. Of the process: choices made so far (tests). */
uint32_t berth_parakeet_cuda_algorithm_count(void);

/* norm.cu */
void berth_parakeet_cuda_norm(struct berth_parakeet_device *device,
                              const struct berth_parakeet_norm_call *call);

/* attention.cu */
void berth_parakeet_cuda_attention(struct berth_parakeet_device *device,
                                   const struct berth_parakeet_shape *shape,
                                   const struct berth_parakeet_counts *counts,
                                   const struct berth_parakeet_attention_call *call);

/* convolve.cu */
void berth_parakeet_cuda_convolve(struct berth_parakeet_device *device,
                                  const struct berth_parakeet_config *config,
                                  const struct berth_parakeet_shape *shape,
                                  const struct berth_parakeet_counts *counts,
                                  const struct berth_parakeet_depthwise *conv, const void *in,
                                  void *out);

/* subsample.cu */
void berth_parakeet_cuda_subsample_first(struct berth_parakeet_device *device,
                                         const struct berth_parakeet_config *config,
                                         const struct berth_parakeet_shape *shape,
                                         const struct berth_parakeet_counts *counts,
                                         const struct berth_parakeet_depthwise *first,
                                         const struct berth_parakeet_depthwise *second,
                                         const void *in, void *out);
void berth_parakeet_cuda_subsample_third(struct berth_parakeet_device *device,
                                         const struct berth_parakeet_config *config,
                                         const struct berth_parakeet_shape *shape,
                                         const struct berth_parakeet_counts *counts,
                                         const struct berth_parakeet_depthwise *third,
                                         const void *in, void *out);
void berth_parakeet_cuda_positions(struct berth_parakeet_device *device, uint32_t position_max,
                                   uint32_t hidden, void *out);

/* features.cu */
void berth_parakeet_cuda_features(struct berth_parakeet_device *device,
                                  const struct berth_parakeet_config *config,
                                  const struct berth_parakeet_shape *shape,
                                  const struct berth_parakeet_counts *counts, const float *pcm,
                                  void *out);

/* decode.cu */
bool berth_parakeet_cuda_decode(struct berth_parakeet_device *device,
                                const struct berth_parakeet_shape *shape,
                                const struct berth_parakeet_counts *counts,
                                const struct berth_parakeet_decode_call *call);
size_t berth_parakeet_cuda_decode_state_bytes(const struct berth_parakeet_config *config,
                                              const struct berth_parakeet_shape *shape);

/* cuda_weights.c */
enum berth_code berth_parakeet_cuda_weights_load(const char *device,
                                                 const struct berth_parakeet_config *config,
                                                 const char *folder, void *span,
                                                 struct berth_err *err);

/* cuda_check.c */
enum berth_code berth_parakeet_cuda_check(const struct berth_parakeet_config *config,
                                          struct berth_err *err);
enum berth_code berth_parakeet_cuda_narrow(const char *device,
                                           const struct berth_parakeet_config *config,
                                           struct berth_err *err);

/* cuda_graphs.c */
bool berth_parakeet_cuda_record(struct berth_parakeet_device *device, uint64_t key);
void berth_parakeet_cuda_play(struct berth_parakeet_device *device, uint64_t key);
void berth_parakeet_cuda_keep(struct berth_parakeet_device *device, uint64_t key);
void berth_parakeet_cuda_forget(struct berth_parakeet_device *device, uint64_t key);
void berth_parakeet_cuda_drop(struct berth_parakeet_device *device);
/* Of the process: captures begun so far (tests). */
uint32_t berth_parakeet_cuda_capture_count(void);

#ifdef __cplusplus
}
#endif

#endif
