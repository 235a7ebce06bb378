/* hist.h - HDR histogram: values up to 2^40 with a relative error under 1/64 in fixed memory.
 *
 * One writer at a time; readers on other threads see relaxed, monotone counts. Used by metrics,
 * statistics and `berth bench` alike.
 */
#ifndef BERTH_HIST_H
#define BERTH_HIST_H

#include <stdatomic.h>
#include <stdint.h>

#define BERTH_HIST_SUB_BITS 6 /* 64 steps in each power of two */
#define BERTH_HIST_VALUE_BITS 40
#define BERTH_HIST_COUNT ((BERTH_HIST_VALUE_BITS - BERTH_HIST_SUB_BITS + 1) << BERTH_HIST_SUB_BITS)

struct berth_hist {
    _Atomic uint64_t count;
    _Atomic uint64_t sum;
    _Atomic uint64_t max;
    _Atomic uint32_t counts[BERTH_HIST_COUNT];
};

void berth_hist_init(struct berth_hist *hist);
void berth_hist_record(struct berth_hist *hist, uint64_t value); /* clamped to the top step */
void berth_hist_add(struct berth_hist *into, const struct berth_hist *from);
/* The value below which a share q (0..1) of the values lies; 0 when empty. */
uint64_t berth_hist_quantile(const struct berth_hist *hist, double q);
/* How many values are <= value (to the histogram's precision). */
uint64_t berth_hist_count_upto(const struct berth_hist *hist, uint64_t value);

#endif
