/* cpu_device.h - a device of the CPU back end, and the operations that fill its table.
 *
 * Owned by one instance; only its workers (cpu_pool.c) are other threads.
 */
#ifndef BERTH_CPU_DEVICE_H
#define BERTH_CPU_DEVICE_H

#include "engine/parakeet/cpu.h"
#include "engine/parakeet/cpu_loops.h"
#include "engine/parakeet/cpu_product.h"

struct berth_parakeet_pool;
struct berth_parakeet_frontend; /* FFT plan, window, mel filters */

struct berth_parakeet_device {
    const struct berth_parakeet_loops *loops; /* for this machine's vector width */
    const struct berth_parakeet_kernels *kernels;
    struct berth_parakeet_pool *pool;         /* owns */
    struct berth_parakeet_frontend *frontend; /* owns */
    uint64_t bytes;                           /* of the pool's scratch */
};

/* cpu_pool.c. threads: 1 to BERTH_PARAKEET_THREADS_MAX, the caller's thread included. */
#define BERTH_PARAKEET_THREADS_MAX 256
enum berth_code berth_parakeet_pool_create(uint32_t threads, struct berth_parakeet_pool **out,
                                           struct berth_err *err) BERTH_MUST_USE;
void berth_parakeet_pool_destroy(struct berth_parakeet_pool *pool); /* NULL is fine */
void berth_parakeet_pool_run(struct berth_parakeet_pool *pool, uint64_t count,
                             berth_parakeet_task *task, const void *context);

/* cpu_features.c */
enum berth_code berth_parakeet_frontend_create(struct berth_parakeet_frontend **out,
                                               struct berth_err *err) BERTH_MUST_USE;
void berth_parakeet_frontend_destroy(struct berth_parakeet_frontend *frontend); /* NULL is fine */
void berth_parakeet_cpu_features(struct berth_parakeet_device *device,
                                 const struct berth_parakeet_config *config,
                                 const struct berth_parakeet_shape *shape,
                                 const struct berth_parakeet_counts *counts, const float *pcm,
                                 void *out);

/* cpu_convolution.c: the subsampling's and the conformer's. */
void berth_parakeet_cpu_subsample_first(struct berth_parakeet_device *device,
                                        const struct berth_parakeet_config *config,
                                        const struct berth_parakeet_shape *shape,
                                        const struct berth_parakeet_counts *counts,
                                        const struct berth_parakeet_depthwise *first,
                                        const struct berth_parakeet_depthwise *second,
                                        const void *in, void *out);
void berth_parakeet_cpu_subsample_third(struct berth_parakeet_device *device,
                                        const struct berth_parakeet_config *config,
                                        const struct berth_parakeet_shape *shape,
                                        const struct berth_parakeet_counts *counts,
                                        const struct berth_parakeet_depthwise *third,
                                        const void *in, void *out);
void berth_parakeet_cpu_convolve(struct berth_parakeet_device *device,
                                 const struct berth_parakeet_config *config,
                                 const struct berth_parakeet_shape *shape,
                                 const struct berth_parakeet_counts *counts,
                                 const struct berth_parakeet_depthwise *conv, const void *in,
                                 void *out);

/* cpu_attention.c */
void berth_parakeet_cpu_attention(struct berth_parakeet_device *device,
                                  const struct berth_parakeet_shape *shape,
                                  const struct berth_parakeet_counts *counts,
                                  const struct berth_parakeet_attention_call *call);

#endif
