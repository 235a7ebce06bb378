/* slab.h - shared memory for everything that is big: bodies, audio, tensors.
 *
 * A slab is a memfd mapping; bytes are named by a range (slab, offset, length), never by pointer,
 * so that the same tensor can be handed to a thread, a worker process or a decode process.
 * Small ranges are cut from common slabs by a buddy allocator; a private range has a slab of its
 * own, so that its descriptor can be given to a process that may see nothing else (a decoder).
 * One byte budget covers all of them: a take that would pass it is refused, never delayed.
 * Freed memory is pooled up to a limit and then given back to the system.
 *
 * Threads: any. Pointers from berth_slabs_pointer hold until the range is given back or grown.
 */
#ifndef BERTH_SLAB_H
#define BERTH_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define BERTH_SLAB_ALIGN 64

struct berth_range {
    uint32_t slab;   /* 0: no range */
    uint32_t flags;  /* the allocator's own */
    uint64_t offset; /* in the slab */
    uint64_t length; /* bytes asked for */
};

struct berth_slabs;

struct berth_slabs_options {
    uint64_t bytes_budget;   /* sum of all lengths out at a time */
    uint64_t bytes_pool_max; /* freed memory kept resident for reuse */
};

struct berth_slabs_stats {
    uint64_t bytes_out;    /* lengths handed out now */
    uint64_t bytes_peak;
    uint64_t bytes_mapped; /* address space of all slabs */
    uint64_t takes;
    uint64_t refusals;
};

enum berth_code berth_slabs_create(const struct berth_slabs_options *options,
                                   struct berth_slabs **out, struct berth_err *err) BERTH_MUST_USE;
void berth_slabs_destroy(struct berth_slabs *slabs); /* NULL is fine */

/* A range of `bytes` (1 or more), aligned to 64; contents undefined. BUSY when the budget has not
 * that much left, TOO_LARGE when it never could. The caller owns it until berth_slabs_give. */
enum berth_code berth_slabs_take(struct berth_slabs *slabs, size_t bytes, struct berth_range *out,
                                 struct berth_err *err) BERTH_MUST_USE;
/* The same in a slab of its own, whose unused part reads as zero. */
enum berth_code berth_slabs_take_private(struct berth_slabs *slabs, size_t bytes,
                                         struct berth_range *out,
                                         struct berth_err *err) BERTH_MUST_USE;
/* May that many bytes come in? Half of the budget is left to what is made of them (audio, answers),
 * so that full uploads never starve each other's answers; a body alone, or a small one, always may.
 */
bool berth_slabs_admits(struct berth_slabs *slabs, size_t bytes);
/* Makes it longer or shorter, keeping its bytes; may move it (pointers end). On error it is as it
 * was. */
enum berth_code berth_slabs_resize(struct berth_slabs *slabs, struct berth_range *range,
                                   size_t bytes, struct berth_err *err) BERTH_MUST_USE;
/* Gives it back; a zeroed range is fine. *range is zeroed. Only whole ranges, as taken. */
void berth_slabs_give(struct berth_slabs *slabs, struct berth_range *range);
/* The bytes; lends. The range may be a part of a taken one. NULL for a zeroed range. */
void *berth_slabs_pointer(struct berth_slabs *slabs, const struct berth_range *range);
/* The slab's memfd; lends. For a private range it holds that range alone, at offset 0. No holder of
 * it can make the file shorter. */
int berth_slabs_fd(struct berth_slabs *slabs, const struct berth_range *range);
/* Whether it is, or is a part of, a private range: its descriptor shows nothing of others. The
 * memfd of a private range is never used again for another one. */
bool berth_range_private(const struct berth_range *range);
/* A part of a range. false when it does not lie inside. */
bool berth_range_slice(const struct berth_range *range, uint64_t offset, uint64_t length,
                       struct berth_range *out);
void berth_slabs_stats(struct berth_slabs *slabs, struct berth_slabs_stats *out);

#endif
