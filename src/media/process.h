/* process.h - one decode process as its server sees it: a child, and what was agreed on with it.
 *
 * Owns:    the child and its socket.
 * Threads: the media thread alone. The child dies with the thread that started it.
 * Rules:   README.md here, M6. A start that fails is tried again after a growing pause.
 */
#ifndef BERTH_PROCESS_H
#define BERTH_PROCESS_H

#include <stdint.h>

#include "base/child.h"
#include "base/err.h"
#include "media/protocol.h"

struct berth_process_options {
    const char *program; /* NULL: this executable */
    uint64_t memory_max;
    uint64_t cpu_s_max;
};

struct berth_process {
    struct berth_child child; /* UP: its talk is idle or working */
    struct berth_talk talk;
    uint64_t job_count;       /* of this child */
    char start_message[192];  /* what a failed start said */
};

void berth_process_init(struct berth_process *process);
/* Starts a child; on failure the next try is set. */
enum berth_code berth_process_start(struct berth_process *process,
                                    const struct berth_process_options *options, uint64_t now_ns,
                                    struct berth_err *err) BERTH_MUST_USE;
/* Said READY, so whatever it ends of later, the next one is started at once. */
void berth_process_ready(struct berth_process *process);
/* Kills it and closes its socket; it is DYING until reaped. Nothing when there is none. */
void berth_process_kill(struct berth_process *process);

#endif
