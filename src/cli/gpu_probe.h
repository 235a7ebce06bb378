/* gpu_probe.h - asks berth-cuda which GPU it sees: for `serve` and for `doctor`. */
#ifndef BERTH_GPU_PROBE_H
#define BERTH_GPU_PROBE_H

#include <stdint.h>

#include "base/err.h"

struct berth_gpu_found {
    char program[4096]; /* the berth-cuda that answered, or would have */
    char device[16];    /* "cuda:0" */
    char name[96];      /* "NVIDIA H200" */
    uint64_t bytes;
    uint64_t bytes_free;
};

/* program: a path, or "auto": berth-cuda beside this executable. NOT_FOUND: there is none;
 * UNAVAILABLE: it is there and says why it cannot. Blocks for up to some seconds. */
enum berth_code berth_gpu_probe(const char *program, struct berth_gpu_found *out,
                                struct berth_err *err) BERTH_MUST_USE;

#endif
