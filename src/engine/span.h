/* span.h - memory of a device for the weights of native engines.
 *
 * On the CPU a span is anonymous memory; on CUDA (berth-cuda) it is reserved address space with
 * physical memory mapped to it, so that it can be unmapped and mapped again at the same place, and
 * exported as a file descriptor (cuda/vmm.h).
 *
 * Owns:    the memory, until destroy.       Threads: any, each span by one at a time.
 * Counted: bytes is what the device gave, which is what was asked for rounded up to 2 MiB.
 */
#ifndef BERTH_SPAN_H
#define BERTH_SPAN_H

#include "base/err.h"
#include "engine/engine.h"

/* `device`: "cpu:0", "cuda:0"; NULL: the CPU. TOO_LARGE when the device never has so much,
 * UNAVAILABLE when it has not now, UNSUPPORTED when this build knows no such device. The span's fd
 * is -1; nothing is exported before somebody asks. */
enum berth_code berth_span_create(const char *device, uint64_t bytes, struct berth_span *out,
                                  struct berth_err *err) BERTH_MUST_USE;
void berth_span_destroy(const char *device, struct berth_span *span); /* zeroed is fine */

#endif
