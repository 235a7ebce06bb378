/* clock.h - time. Only threads' own loops read it; everything below them gets now_ns handed in. */
#ifndef BERTH_CLOCK_H
#define BERTH_CLOCK_H

#include <stdint.h>

#define BERTH_NS_PER_US UINT64_C(1000)
#define BERTH_NS_PER_MS UINT64_C(1000000)
#define BERTH_NS_PER_S UINT64_C(1000000000)

uint64_t berth_clock_now_ns(void);  /* monotonic */
uint64_t berth_clock_wall_ns(void); /* since 1970, for logs and answers only */

#endif
