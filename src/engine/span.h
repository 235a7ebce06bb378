/* span.h - memory of a device for the weights of native engines.
 *
 * A span is a range of addresses, which it keeps from create to destroy, and memory behind them,
 * which can be given back and taken again: on the CPU pages, on CUDA (berth-cuda) physical memory
 * mapped to reserved addresses, that can also be exported as a file descriptor (cuda/vmm.h). What
 * was made over the addresses (tables of pointers, CUDA graphs) stays good.
 *
 *     create -> MAPPED -- unmap -> UNMAPPED -- map -> MAPPED       destroy takes either
 *
 * MAPPED it has `bytes` of memory; after create or map their contents are undefined, and
 * weights_load fills them before anybody reads. UNMAPPED (span->unmapped) it has none, and whoever
 * reads it faults: on a CPU the thread, on a GPU the whole context. So who unmaps has ended every
 * step and load of the model, and stopped its threads, and lets none begin before the span is
 * mapped and loaded again.
 *
 * Owns:    addresses and memory, until destroy.   Threads: any, each span by one at a time.
 * Counted: bytes is what the device gives a mapped span: what was asked for, rounded up to 2 MiB.
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
/* Gives a mapped span's memory back. UNAVAILABLE when the system or the GPU will not take it: the
 * span counts as mapped, contents undefined, and may be unmapped again or destroyed. */
enum berth_code berth_span_unmap(const char *device, struct berth_span *span,
                                 struct berth_err *err) BERTH_MUST_USE;
/* Takes memory for an unmapped span, at the same addresses. UNAVAILABLE when there is none now: the
 * span stays unmapped, and may be tried again. */
enum berth_code berth_span_map(const char *device, struct berth_span *span,
                               struct berth_err *err) BERTH_MUST_USE;

#endif
