/* ort_memory.h - the CPU memory that ONNX Runtime asks for: taken, counted and pooled here.
 *
 * In:      allocations of sessions and runs.  Out: blocks aligned to 64, counted on a meter.
 * Owns:    blocks in use and a bounded pool of freed ones.
 * Threads: any. The meter in force is the thread's own, set around each call of ONNX Runtime.
 */
#ifndef BERTH_ORT_MEMORY_H
#define BERTH_ORT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <onnxruntime_c_api.h>

#include "engine/ort.h"

enum berth_code berth_ort_memory_start(const OrtApi *api, struct berth_err *err) BERTH_MUST_USE;
void berth_ort_memory_finish(void); /* blocks still in use stay valid until they are given back */
/* For RegisterAllocator; lives until finish. Its Alloc throws std::bad_alloc, as ORT expects. */
OrtAllocator *berth_ort_memory_allocator(void);
const OrtMemoryInfo *berth_ort_memory_info(void);

/* What this thread allocates from now on counts on `meter` (NULL: on none). Returns the one before,
 * to be put back by another enter. Clears berth_ort_memory_failed. */
struct berth_ort_meter *berth_ort_memory_enter(struct berth_ort_meter *meter);
/* Did an allocation of this thread fail since enter? */
bool berth_ort_memory_failed(void);

/* A block for the thread's meter, aligned to 64, contents undefined; NULL: no memory. */
void *berth_ort_memory_take(size_t bytes) BERTH_MUST_USE;
void berth_ort_memory_give(void *block); /* NULL is fine; any thread */
void berth_ort_memory_trim(void);        /* gives the pool back to the system */
uint64_t berth_ort_memory_pooled(void);  /* bytes in the pool */

/* Bytes that the C library's heap has in use: what ONNX Runtime takes past our allocator shows
 * here. 0 where that cannot be told. */
uint64_t berth_ort_memory_heap(void);
/* Adds bytes that were found by other means; take them off again with a negative count. */
void berth_ort_meter_add(struct berth_ort_meter *meter, int64_t bytes);

#endif
