/* process.c - starting and ending decode processes.
 *
 * posix_spawn of the server's own executable: no fork of a process that has many threads and much
 * memory. The child gets one socket and an environment of two variables at most (the server's own
 * may hold secrets), its own process group (Ctrl-C is for the server, which drains), default
 * signals. Everything else it gives up by itself (sandbox.c).
 */
#include "media/process.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "media/decode.h"

#define PAUSE_NS_MIN (100 * BERTH_NS_PER_MS)
#define PAUSE_NS_MAX (10 * BERTH_NS_PER_S)
#define SELF "/proc/self/exe"

static enum berth_code spawn(struct berth_process *process,
                             const struct berth_process_options *options, int child_fd,
                             struct berth_err *err);
static int spawn_with(pid_t *pid, const char *program, char *const *argv, int child_fd);
static int set_attributes(posix_spawnattr_t *attributes);
static void pause_start(struct berth_process *process, uint64_t now_ns);

void berth_process_init(struct berth_process *process)
{
    *process = (struct berth_process){.fd = -1, .pid = -1};
}

enum berth_code berth_process_start(struct berth_process *process,
                                    const struct berth_process_options *options, uint64_t now_ns,
                                    struct berth_err *err)
{
    int ends[2];
    BERTH_ASSERT(process->state == BERTH_PROCESS_DOWN);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        pause_start(process, now_ns);
        return berth_fail(err, BERTH_UNAVAILABLE, "no socket for a decode process: %s",
                          strerror(errno));
    }
    enum berth_code code = spawn(process, options, ends[1], err);
    close(ends[1]);
    if (code != BERTH_OK) {
        close(ends[0]);
        pause_start(process, now_ns);
        return code;
    }
    process->state = BERTH_PROCESS_STARTING;
    process->fd = ends[0];
    process->talk = (struct berth_talk){.state = BERTH_TALK_STARTING};
    process->job_count = 0;
    process->t_start_ns = now_ns;
    process->has_failed = false;
    return BERTH_OK;
}

void berth_process_kill(struct berth_process *process)
{
    if (process->state == BERTH_PROCESS_DOWN || process->state == BERTH_PROCESS_DYING) {
        return;
    }
    kill(process->pid, SIGKILL);
    close(process->fd);
    process->fd = -1;
    process->has_failed = process->state == BERTH_PROCESS_STARTING;
    process->state = BERTH_PROCESS_DYING;
}

bool berth_process_reap(struct berth_process *process, uint64_t now_ns)
{
    int status = 0;
    if (process->state != BERTH_PROCESS_DYING) {
        return false;
    }
    pid_t got = waitpid(process->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) {
        return false;
    }
    process->exit_status = got > 0 ? status : 0;
    process->pid = -1;
    process->state = BERTH_PROCESS_DOWN;
    process->t_start_ns = now_ns;
    if (process->has_failed) {
        pause_start(process, now_ns);
    }
    return true;
}

void berth_process_finish(struct berth_process *process)
{
    berth_process_kill(process);
    if (process->state == BERTH_PROCESS_DYING) {
        while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    process->state = BERTH_PROCESS_DOWN;
}

void berth_process_ending(const struct berth_process *process, char *out, size_t size)
{
    int status = process->exit_status;
    if (WIFSIGNALED(status)) {
        snprintf(out, size, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        snprintf(out, size, "exit status %d", WEXITSTATUS(status));
    }
}

static enum berth_code spawn(struct berth_process *process,
                             const struct berth_process_options *options, int child_fd,
                             struct berth_err *err)
{
    char memory[24], cpu[24];
    char name[] = "berth", verb[] = "decode";
    snprintf(memory, sizeof(memory), "%llu", (unsigned long long)options->memory_max);
    snprintf(cpu, sizeof(cpu), "%llu", (unsigned long long)options->cpu_s_max);
    char *argv[] = {name, verb, memory, cpu, NULL};
    const char *program = options->program == NULL ? SELF : options->program;
    int status = spawn_with(&process->pid, program, argv, child_fd);
    if (status != 0) {
        process->pid = -1;
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot start a decode process (%s): %s",
                          program, strerror(status));
    }
    return BERTH_OK;
}

/* 0 or an errno. */
static int spawn_with(pid_t *pid, const char *program, char *const *argv, int child_fd)
{
    char libraries[4096 + 17];
    char zone[] = "TZ=UTC0";
    char *environment[3] = {zone, NULL, NULL};
    const char *path = getenv("LD_LIBRARY_PATH");
    if (path != NULL && strlen(path) < sizeof(libraries) - 17) {
        snprintf(libraries, sizeof(libraries), "LD_LIBRARY_PATH=%s", path);
        environment[1] = libraries;
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int status = posix_spawn_file_actions_init(&actions);
    if (status != 0) {
        return status;
    }
    status = posix_spawnattr_init(&attributes);
    if (status == 0) {
        status = set_attributes(&attributes);
        /* The socket of a server with free low descriptors may have the wanted number already;
         * dup2 onto itself then clears close-on-exec, as posix_spawn promises. */
        if (status == 0) {
            status = posix_spawn_file_actions_adddup2(&actions, child_fd, BERTH_DECODE_SOCKET);
        }
        if (status == 0) {
            status = posix_spawn(pid, program, &actions, &attributes, argv, environment);
        }
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
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

/* 0.1 s after the first failure in a row, then twice as long each time, to 10 s. */
static void pause_start(struct berth_process *process, uint64_t now_ns)
{
    uint64_t pause_ns = PAUSE_NS_MIN;
    for (uint32_t i = 0; i < process->failed_in_row && pause_ns < PAUSE_NS_MAX; i++) {
        pause_ns *= 2;
    }
    process->failed_in_row++;
    process->t_start_ns = now_ns + (pause_ns < PAUSE_NS_MAX ? pause_ns : PAUSE_NS_MAX);
}
