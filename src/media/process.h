/* process.h - one decode process as its server sees it: start, send, kill, reap.
 *
 * Owns:    the child and its socket.
 * Threads: the media thread alone. The child dies with the thread that started it.
 * Rules:   README.md here, M6. A start that fails is tried again after a growing pause.
 */
#ifndef BERTH_PROCESS_H
#define BERTH_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "media/protocol.h"

enum berth_process_state {
    BERTH_PROCESS_DOWN,     /* none; starts at t_start_ns */
    BERTH_PROCESS_STARTING, /* has not said READY yet */
    BERTH_PROCESS_UP,       /* its talk is idle or working */
    BERTH_PROCESS_DYING,    /* killed or gone, not yet reaped */
};

struct berth_process_options {
    const char *program; /* NULL: this executable */
    uint64_t memory_max;
    uint64_t cpu_s_max;
};

struct berth_process {
    enum berth_process_state state;
    pid_t pid;
    int fd; /* -1: none */
    struct berth_talk talk;
    uint64_t job_count;       /* of this child */
    bool has_failed;          /* the one that is ending never said READY */
    uint32_t failed_in_row;   /* starts; the holder sets it back at a READY */
    uint64_t t_start_ns;      /* DOWN: next try; else when it was started */
    int exit_status;          /* of the last one, as wait tells it */
    char start_message[192];  /* what a failed start said */
};

void berth_process_init(struct berth_process *process);
/* Starts a child; on failure the next try is set. */
enum berth_code berth_process_start(struct berth_process *process,
                                    const struct berth_process_options *options, uint64_t now_ns,
                                    struct berth_err *err) BERTH_MUST_USE;
/* Kills it and closes its socket; it is DYING until reaped. Nothing when there is none. */
void berth_process_kill(struct berth_process *process);
/* true when a DYING one is gone; it is DOWN then. */
bool berth_process_reap(struct berth_process *process, uint64_t now_ns);
/* Kills and waits. */
void berth_process_finish(struct berth_process *process);
/* How it ended, for people: "signal 11 (Segmentation fault)". */
void berth_process_ending(const struct berth_process *process, char *out, size_t size);

#endif
