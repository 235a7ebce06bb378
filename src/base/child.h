/* child.h - a child process that serves over one socket: start, kill, reap, and when to try again.
 *
 * Owns:    the child and this end of its socket.
 * Threads: the one that started it, and it must live as long: the child dies with it.
 */
#ifndef BERTH_CHILD_H
#define BERTH_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define BERTH_CHILD_SOCKET 3 /* the descriptor on which a child finds its end of the socket */

enum berth_child_state {
    BERTH_CHILD_DOWN,     /* none; the next start is due at t_start_ns */
    BERTH_CHILD_STARTING, /* has not said that it is ready */
    BERTH_CHILD_UP,
    BERTH_CHILD_LEAVING,  /* told to end, by its closed socket */
    BERTH_CHILD_DYING     /* killed, or gone by itself; not reaped yet */
};

struct berth_child_options {
    const char *what;         /* for errors: "a worker process" */
    const char *program;      /* NULL: this executable */
    char *const *argv;
    char *const *environment; /* NULL: ours */
    int buffer_bytes;         /* of each end of the socket; 0: as the machine has it */
};

struct berth_child {
    enum berth_child_state state;
    pid_t pid;               /* -1: none */
    int fd;                  /* -1: none */
    int epoll_fd;            /* where its owner has put fd, which leaves it to be closed; -1 */
    bool was_ready;          /* this one, or the last one */
    uint64_t calm_ns;        /* up for so long, its end counts as no failure */
    uint64_t t_state_ns;     /* since when it is in this state */
    uint64_t t_start_ns;     /* DOWN: next try */
    uint32_t failed_in_row;  /* starts that failed, and ends before it was calm */
    char ending[80];         /* how the last one ended: "signal 9 (Killed)" */
};

void berth_child_init(struct berth_child *child, uint64_t calm_ns);
/* Starts it; on failure the next try is set. It has the socket, our standard error, /dev/null as
 * standard input and output, a process group of its own and default signals. */
enum berth_code berth_child_start(struct berth_child *child,
                                  const struct berth_child_options *options, uint64_t now_ns,
                                  struct berth_err *err) BERTH_MUST_USE;
void berth_child_ready(struct berth_child *child, uint64_t now_ns);
/* Closes its socket, which is the word to end; one that does not within some seconds is killed. */
void berth_child_leave(struct berth_child *child, uint64_t now_ns);
void berth_child_kill(struct berth_child *child, uint64_t now_ns); /* nothing when there is none */
/* true when it is gone for good, and DOWN. */
bool berth_child_reap(struct berth_child *child, uint64_t now_ns);
/* Kills it and waits; as after init. */
void berth_child_finish(struct berth_child *child);

#endif
