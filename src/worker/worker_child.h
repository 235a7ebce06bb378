/* worker_child.h - a worker process as its server sees it: start, kill, reap.
 *
 * Owns:    the child and this end of its socket.
 * Threads: the one that started it, and it must live as long: the child dies with it.
 */
#ifndef BERTH_WORKER_CHILD_H
#define BERTH_WORKER_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum berth_child_state {
    BERTH_CHILD_DOWN,     /* none; the next start is due at t_start_ns */
    BERTH_CHILD_STARTING, /* has not said READY yet */
    BERTH_CHILD_UP,
    BERTH_CHILD_LEAVING,  /* told to end, by its closed socket */
    BERTH_CHILD_DYING     /* killed, or gone by itself; not reaped yet */
};

struct berth_child {
    enum berth_child_state state;
    pid_t pid;               /* -1: none */
    int fd;                  /* -1: none */
    uint64_t t_state_ns;     /* since when it is in this state */
    uint64_t t_start_ns;     /* DOWN: next try */
    uint32_t failed_in_row;  /* ends without ten calm seconds before */
    char ending[80];         /* how the last one ended: "signal 9 (Killed)" */
};

void berth_child_init(struct berth_child *child);
/* Starts `program worker --fd 3`; on failure the next try is set. program NULL: this executable. */
enum berth_code berth_child_start(struct berth_child *child, const char *program, uint64_t now_ns,
                                  struct berth_err *err) BERTH_MUST_USE;
void berth_child_ready(struct berth_child *child, uint64_t now_ns);
/* Closes its socket, which is the word to end; one that does not within some seconds is killed. */
void berth_child_leave(struct berth_child *child, uint64_t now_ns);
void berth_child_kill(struct berth_child *child, uint64_t now_ns); /* nothing when there is none */
/* true when it is gone for good, and DOWN. */
bool berth_child_reap(struct berth_child *child, uint64_t now_ns);
/* The same, and waits for it. */
void berth_child_finish(struct berth_child *child);

#endif
