/* gpu_targets.h - which GPUs a build has machine code for.
 *
 * Kernels are compiled for a few compute capabilities (meson's gpu_targets) and not for what comes
 * after them: a GPU without code of its own is told so by name before anything is loaded on it, and
 * not by the first kernel that does not start.
 * Plain C without CUDA, so that it is tested where there is no GPU.   Threads: any.
 */
#ifndef BERTH_GPU_TARGETS_H
#define BERTH_GPU_TARGETS_H

#include <stdbool.h>

#include "base/buf.h"

/* targets: as "80,89,90a,120". capability: 10 x major + minor. Code for 8.0 runs on 8.6 and 8.9 too
 * (the same major number, and no smaller minor one), but of 90a on 9.0 alone. */
bool berth_gpu_targets_suit(const char *targets, int capability);
/* For people: "8.0, 8.9, 9.0, 12.0"; "none" where there are none. */
void berth_gpu_targets_print(const char *targets, struct berth_buf *out);

#endif
