/* child.c - starting and ending the processes that serve us (decoders, workers).
 *
 * posix_spawn: no fork of a process with many threads and much memory. The child gets one socket,
 * our standard error (its log lines are ours), /dev/null for the other two, a process group of its
 * own (Ctrl-C is for the server, which drains) and default signals. What the server has open is
 * close-on-exec. One that fails is started again after a pause that grows, so that a broken
 * installation does not keep a core busy.
 */
#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define SELF "/proc/self/exe"
#define PAUSE_NS_MIN (100 * BERTH_NS_PER_MS)
#define PAUSE_NS_MAX (10 * BERTH_NS_PER_S)
#define LEAVE_NS_MAX (5 * BERTH_NS_PER_S)

extern char **environ;

static int spawn_with(pid_t *pid, const struct berth_child_options *options, const char *program,
                      int child_fd);
static int set_files(posix_spawn_file_actions_t *actions, int child_fd);
static int set_attributes(posix_spawnattr_t *attributes);
static void enter(struct berth_child *child, enum berth_child_state state, uint64_t now_ns);
static void note_end(struct berth_child *child, int status, uint64_t now_ns);
static void pause_start(struct berth_child *child, uint64_t now_ns);
static void close_socket(struct berth_child *child);

void berth_child_init(struct berth_child *child, uint64_t calm_ns)
{
    *child = (struct berth_child){.pid = -1, .fd = -1, .epoll_fd = -1, .calm_ns = calm_ns};
}

enum berth_code berth_child_start(struct berth_child *child,
                                  const struct berth_child_options *options, uint64_t now_ns,
                                  struct berth_err *err)
{
    int ends[2];
    const char *program = options->program == NULL ? SELF : options->program;
    BERTH_ASSERT(child->state == BERTH_CHILD_DOWN);
    child->was_ready = false;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        pause_start(child, now_ns);
        return berth_fail(err, BERTH_UNAVAILABLE, "no socket for %s: %s", options->what,
                          strerror(errno));
    }
    for (int i = 0; i < 2 && options->buffer_bytes > 0; i++) {
        (void)setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &options->buffer_bytes, sizeof(int));
    }
    int status = spawn_with(&child->pid, options, program, ends[1]);
    close(ends[1]);
    if (status != 0) {
        close(ends[0]);
        child->pid = -1;
        pause_start(child, now_ns);
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot start %s (%s): %s", options->what,
                          program, strerror(status));
    }
    child->fd = ends[0];
    enter(child, BERTH_CHILD_STARTING, now_ns);
    return BERTH_OK;
}

void berth_child_ready(struct berth_child *child, uint64_t now_ns)
{
    child->was_ready = true;
    enter(child, BERTH_CHILD_UP, now_ns);
}

void berth_child_leave(struct berth_child *child, uint64_t now_ns)
{
    if (child->state == BERTH_CHILD_STARTING || child->state == BERTH_CHILD_UP) {
        close_socket(child);
        enter(child, BERTH_CHILD_LEAVING, now_ns);
    }
}

void berth_child_kill(struct berth_child *child, uint64_t now_ns)
{
    if (child->pid < 0 || child->state == BERTH_CHILD_DYING) {
        return;
    }
    bool was_calm =
        child->state == BERTH_CHILD_LEAVING ||
        (child->state == BERTH_CHILD_UP && now_ns - child->t_state_ns >= child->calm_ns);
    kill(child->pid, SIGKILL);
    close_socket(child);
    child->failed_in_row = was_calm ? 0 : child->failed_in_row + 1;
    enter(child, BERTH_CHILD_DYING, now_ns);
}

bool berth_child_reap(struct berth_child *child, uint64_t now_ns)
{
    int status = 0;
    if (child->state == BERTH_CHILD_LEAVING && now_ns - child->t_state_ns > LEAVE_NS_MAX) {
        berth_child_kill(child, now_ns);
    }
    if (child->state != BERTH_CHILD_DYING && child->state != BERTH_CHILD_LEAVING) {
        return false;
    }
    pid_t got = waitpid(child->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) {
        return false;
    }
    note_end(child, got > 0 ? status : 0, now_ns);
    return true;
}

void berth_child_finish(struct berth_child *child)
{
    if (child->pid >= 0) {
        berth_child_kill(child, 0);
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    berth_child_init(child, child->calm_ns);
}

/* 0 or an errno. */
static int spawn_with(pid_t *pid, const struct berth_child_options *options, const char *program,
                      int child_fd)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char *const *environment = options->environment == NULL ? environ : options->environment;
    int status = posix_spawn_file_actions_init(&actions);
    if (status != 0) {
        return status;
    }
    status = posix_spawnattr_init(&attributes);
    if (status == 0) {
        status = set_attributes(&attributes);
        if (status == 0) {
            status = set_files(&actions, child_fd);
        }
        if (status == 0) {
            status = posix_spawn(pid, program, &actions, &attributes, options->argv, environment);
        }
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

/* dup2 onto itself, should the numbers be the same, clears close-on-exec too; and it comes first,
 * should child_fd be one of the two that are opened. */
static int set_files(posix_spawn_file_actions_t *actions, int child_fd)
{
    int status = posix_spawn_file_actions_adddup2(actions, child_fd, BERTH_CHILD_SOCKET);
    if (status == 0) {
        status = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    }
    if (status == 0) {
        status = posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    }
    return status;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int status = posix_spawnattr_setsigmask(attributes, &none);
    if (status == 0) {
        status = posix_spawnattr_setsigdefault(attributes, &all);
    }
    if (status == 0) {
        status = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK |
                                                          POSIX_SPAWN_SETSIGDEF |
                                                          POSIX_SPAWN_SETPGROUP);
    }
    return status;
}

static void enter(struct berth_child *child, enum berth_child_state state, uint64_t now_ns)
{
    child->state = state;
    child->t_state_ns = now_ns;
}

static void note_end(struct berth_child *child, int status, uint64_t now_ns)
{
    if (WIFSIGNALED(status)) {
        snprintf(child->ending, sizeof(child->ending), "signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else {
        snprintf(child->ending, sizeof(child->ending), "exit status %d", WEXITSTATUS(status));
    }
    child->pid = -1;
    uint32_t failed = child->failed_in_row;
    enter(child, BERTH_CHILD_DOWN, now_ns);
    child->t_start_ns = now_ns;
    if (failed > 0) {
        child->failed_in_row = failed - 1;
        pause_start(child, now_ns);
    }
}

/* 0.1 s after the first failure in a row, then twice as long each time, to 10 s. */
static void pause_start(struct berth_child *child, uint64_t now_ns)
{
    uint64_t pause_ns = PAUSE_NS_MIN;
    for (uint32_t i = 0; i < child->failed_in_row && pause_ns < PAUSE_NS_MAX; i++) {
        pause_ns *= 2;
    }
    child->failed_in_row++;
    child->t_start_ns = now_ns + (pause_ns < PAUSE_NS_MAX ? pause_ns : PAUSE_NS_MAX);
}

/* While another process is being started, that has the socket open too for a moment, and epoll
 * would go on telling of a closed one: it leaves first. */
static void close_socket(struct berth_child *child)
{
    if (child->fd >= 0 && child->epoll_fd >= 0) {
        (void)epoll_ctl(child->epoll_fd, EPOLL_CTL_DEL, child->fd, NULL);
    }
    if (child->fd >= 0) {
        close(child->fd);
        child->fd = child->epoll_fd = -1;
    }
}
