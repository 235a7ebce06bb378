/* stop.h - signals that ask for a stop: which begin one, and which end the process at once.
 *
 * One stop may come as several signals: GNU timeout signals a command and its group, a supervisor
 * and a terminal may both speak, and people press Ctrl-C twice. What comes within
 * BERTH_STOP_ECHO_NS of the first belongs to it; what comes later will not wait.
 *
 * Owns: a signalfd.   Threads: that which called berth_stop_init, and its signal handlers.
 */
#ifndef BERTH_STOP_H
#define BERTH_STOP_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define BERTH_STOP_ECHO_NS BERTH_NS_PER_S

struct berth_stop {
    sigset_t mask;
    int signals; /* -1: none */
    uint64_t t_first_ns; /* 0: no signal came yet */
};

/* Is a signal at now_ns another one than the first, so that it ends the process? *t_first_ns is 0
 * until the first. Async-signal-safe. */
bool berth_stop_is_another(uint64_t *t_first_ns, uint64_t now_ns);

/* Blocks SIGTERM and SIGINT, also for threads started from now on: only waits see them. false:
 * the system has no descriptor. */
bool berth_stop_init(struct berth_stop *stop);
void berth_stop_finish(struct berth_stop *stop);

/* Until the first signal. */
void berth_stop_wait_first(struct berth_stop *stop);
/* After it: true: another one came; false: the time is over. */
bool berth_stop_wait_another(struct berth_stop *stop, uint64_t ns);
/* From now on another one ends the process by itself (status 1): nobody waits any more. */
void berth_stop_let_end(struct berth_stop *stop);

#endif
