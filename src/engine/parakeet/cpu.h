/* cpu.h - what the files of the CPU back end share: its threads and their scratch memory.
 *
 * A device has `threads` workers: the caller's thread and threads - 1 of its own, which wait for
 * the next loop.
 */
#ifndef BERTH_CPU_H
#define BERTH_CPU_H

#include "engine/parakeet/backend.h"

#define BERTH_PARAKEET_SCRATCH (128U << 10) /* floats a worker has for one task */

/* One task of a loop. scratch: BERTH_PARAKEET_SCRATCH floats, aligned to 64 bytes, contents
 * undefined, for the length of the call. */
typedef void berth_parakeet_task(const void *context, uint64_t index, float *scratch);

/* Calls task for 0 .. count - 1, in any order, on all workers; returns when all are done. */
void berth_parakeet_spread(struct berth_parakeet_device *device, uint64_t count,
                           berth_parakeet_task *task, const void *context);

/* cpu_decode.c */
bool berth_parakeet_cpu_decode(struct berth_parakeet_device *device,
                               const struct berth_parakeet_shape *shape,
                               const struct berth_parakeet_counts *counts,
                               const struct berth_parakeet_decode_call *call);
size_t berth_parakeet_cpu_decode_state_bytes(const struct berth_parakeet_config *config,
                                             const struct berth_parakeet_shape *shape);

#endif
