/* sandbox.h - gives up everything that decoding does not need. For the decode process only.
 *
 * After it this process can read and write what it already holds, get memory up to a limit, and
 * end. It cannot open, connect, start or trace anything; an attempt ends it (SIGSYS).
 */
#ifndef BERTH_SANDBOX_H
#define BERTH_SANDBOX_H

#include <stdint.h>

#include "base/err.h"

struct berth_sandbox_limits {
    uint64_t memory_max; /* bytes of its own memory, beyond what it has now */
    uint64_t cpu_s_max;  /* over the whole life of the process */
    int socket_fd;       /* the one descriptor that stays open, beside 0 to 2 (the null device) */
};

/* No way back. UNAVAILABLE when the system refuses a part of it: the caller then ends. */
enum berth_code berth_sandbox_enter(const struct berth_sandbox_limits *limits,
                                    struct berth_err *err) BERTH_MUST_USE;

#endif
