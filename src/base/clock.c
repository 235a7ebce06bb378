/* clock.c - two clocks of the kernel in nanoseconds. */
#include "base/clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t id);

uint64_t berth_clock_now_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t berth_clock_wall_ns(void)
{
    return read_ns(CLOCK_REALTIME);
}

static uint64_t read_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * BERTH_NS_PER_S + (uint64_t)now.tv_nsec;
}
