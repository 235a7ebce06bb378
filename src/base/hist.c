/* hist.c - steps of a histogram: 0 to 63 have one each, and every power of two above has 64. */
#include "base/hist.h"

#include <math.h>

#define STEPS (UINT64_C(1) << BERTH_HIST_SUB_BITS)
#define VALUE_MAX ((UINT64_C(1) << BERTH_HIST_VALUE_BITS) - 1)

static uint32_t step_of(uint64_t value);
static uint64_t step_top(uint32_t step);
static uint64_t get(const _Atomic uint64_t *counter);
static void set(_Atomic uint64_t *counter, uint64_t value);
static uint32_t step_count(const struct berth_hist *hist, uint32_t step);
static void step_add(struct berth_hist *hist, uint32_t step, uint32_t more);

void berth_hist_init(struct berth_hist *hist)
{
    set(&hist->count, 0);
    set(&hist->sum, 0);
    set(&hist->max, 0);
    for (uint32_t i = 0; i < BERTH_HIST_COUNT; i++) {
        atomic_store_explicit(&hist->counts[i], 0, memory_order_relaxed);
    }
}

void berth_hist_record(struct berth_hist *hist, uint64_t value)
{
    /* One writer, so a load and a store are an addition. */
    step_add(hist, step_of(value), 1);
    set(&hist->sum, get(&hist->sum) + value);
    if (value > get(&hist->max)) {
        set(&hist->max, value);
    }
    set(&hist->count, get(&hist->count) + 1);
}

void berth_hist_add(struct berth_hist *into, const struct berth_hist *from)
{
    for (uint32_t i = 0; i < BERTH_HIST_COUNT; i++) {
        step_add(into, i, step_count(from, i));
    }
    set(&into->sum, get(&into->sum) + get(&from->sum));
    if (get(&from->max) > get(&into->max)) {
        set(&into->max, get(&from->max));
    }
    set(&into->count, get(&into->count) + get(&from->count));
}

uint64_t berth_hist_quantile(const struct berth_hist *hist, double q)
{
    uint64_t count = get(&hist->count);
    uint64_t max = get(&hist->max);
    uint64_t seen = 0;
    if (count == 0) {
        return 0;
    }
    q = q < 0 ? 0 : q > 1 ? 1 : q;
    uint64_t rank = (uint64_t)ceil(q * (double)count);
    rank = rank == 0 ? 1 : rank;
    for (uint32_t i = 0; i < BERTH_HIST_COUNT; i++) {
        seen += step_count(hist, i);
        if (seen >= rank) {
            uint64_t top = step_top(i);
            return top < max ? top : max;
        }
    }
    return max;
}

uint64_t berth_hist_count_upto(const struct berth_hist *hist, uint64_t value)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i <= step_of(value); i++) {
        seen += step_count(hist, i);
    }
    return seen;
}

static uint32_t step_of(uint64_t value)
{
    if (value < STEPS) {
        return (uint32_t)value;
    }
    value = value < VALUE_MAX ? value : VALUE_MAX;
    uint32_t shift = 63 - (uint32_t)__builtin_clzll(value) - BERTH_HIST_SUB_BITS;
    return (shift << BERTH_HIST_SUB_BITS) + (uint32_t)(value >> shift);
}

/* The largest value of a step. */
static uint64_t step_top(uint32_t step)
{
    if (step < STEPS) {
        return step;
    }
    uint32_t shift = (step >> BERTH_HIST_SUB_BITS) - 1;
    uint64_t scaled = STEPS + (step & (STEPS - 1));
    return ((scaled + 1) << shift) - 1;
}

static uint64_t get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void set(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

static uint32_t step_count(const struct berth_hist *hist, uint32_t step)
{
    return atomic_load_explicit(&hist->counts[step], memory_order_relaxed);
}

static void step_add(struct berth_hist *hist, uint32_t step, uint32_t more)
{
    atomic_store_explicit(&hist->counts[step], step_count(hist, step) + more,
                          memory_order_relaxed);
}
