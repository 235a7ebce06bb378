/* gpu_probe.c - see gpu_probe.h. `berth-cuda --probe` prints a line for each GPU,
 *     cuda:0 BYTES BYTES_FREE NAME
 * and ends with 0, or prints a reason and ends with 1. A process of its own, so that this one links
 * no CUDA and a driver that hangs or crashes costs no more than the answer. Every wait has an end:
 * a process that hangs in a driver does not even die when it is killed. What it prints goes into
 * logs and onto terminals: one line of text of it, without a control character.
 */
#include "cli/gpu_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"

#define BESIDE "berth-cuda"
#define TEXT_MAX 1024
#define WAIT_NS (20 * BERTH_NS_PER_S)
#define KILLED_NS (2 * BERTH_NS_PER_S) /* then it is left to be */
#define LOOK_US 1000

extern char **environ;

static enum berth_code find_program(const char *program, struct berth_gpu_found *out,
                                    struct berth_err *err);
static enum berth_code run(const char *program, uint64_t wait_ns, char *text,
                           struct berth_err *err);
static int spawn_with(pid_t *pid, const char *program, int out_fd);
static bool read_all(int fd, uint64_t t_end_ns, char *text);
static bool reap(pid_t pid, uint64_t t_end_ns, int *status);
static bool read_answer(const char *text, struct berth_gpu_found *out);
static bool read_bytes(const char **at, uint64_t *out);
static void keep_line(char *text);

enum berth_code berth_gpu_probe(const char *program, struct berth_gpu_found *out,
                                struct berth_err *err)
{
    char text[TEXT_MAX] = "";
    *out = (struct berth_gpu_found){0};
    BERTH_TRY(find_program(program, out, err));
    BERTH_TRY(run(out->program, WAIT_NS, text, err));
    keep_line(text);
    if (!read_answer(text, out)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "%.150s does not say what GPU it sees",
                          out->program);
    }
    return BERTH_OK;
}

static enum berth_code find_program(const char *program, struct berth_gpu_found *out,
                                    struct berth_err *err)
{
    size_t size = sizeof(out->program);
    if (strcmp(program, "auto") != 0) {
        if (strlen(program) >= size || access(program, X_OK) != 0) {
            return berth_fail(err, BERTH_NOT_FOUND, "there is no program %.180s", program);
        }
        memcpy(out->program, program, strlen(program) + 1);
        return BERTH_OK;
    }
    char own[sizeof(out->program)];
    ssize_t length = readlink("/proc/self/exe", own, size - sizeof(BESIDE) - 1);
    own[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(own, '/');
    if (slash == NULL) {
        return berth_fail(err, BERTH_NOT_FOUND, "where this program lies cannot be told");
    }
    memcpy(slash + 1, BESIDE, sizeof(BESIDE));
    memcpy(out->program, own, strlen(own) + 1);
    if (access(out->program, X_OK) != 0) {
        return berth_fail(err, BERTH_NOT_FOUND, "no berth-cuda beside berth");
    }
    return BERTH_OK;
}

static enum berth_code run(const char *program, uint64_t wait_ns, char *text,
                           struct berth_err *err)
{
    int ends[2];
    pid_t pid = -1;
    int status = 0;
    uint64_t t_end_ns = berth_clock_now_ns() + wait_ns;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no pipe to ask for a GPU: %s", strerror(errno));
    }
    int failed = spawn_with(&pid, program, ends[1]);
    close(ends[1]);
    if (failed != 0) {
        close(ends[0]);
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot start %.150s: %s", program,
                          strerror(failed));
    }
    bool ended = read_all(ends[0], t_end_ns, text) && reap(pid, t_end_ns, &status);
    close(ends[0]);
    if (!ended) {
        kill(pid, SIGKILL);
        (void)reap(pid, berth_clock_now_ns() + KILLED_NS, &status);
        return berth_fail(err, BERTH_UNAVAILABLE, "%.150s --probe does not answer", program);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return BERTH_OK;
    }
    keep_line(text);
    return berth_fail(err, BERTH_UNAVAILABLE, "%s",
                      text[0] != '\0' ? text : "berth-cuda failed without a word");
}

/* 0 or an errno. What it writes to standard error is for whoever runs us. */
static int spawn_with(pid_t *pid, const char *program, int out_fd)
{
    char name[] = BESIDE, flag[] = "--probe";
    char *argv[] = {name, flag, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    int status = posix_spawn_file_actions_init(&actions);
    if (status != 0) {
        return status;
    }
    status = posix_spawnattr_init(&attributes);
    if (status == 0) {
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        status = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
        if (status == 0) {
            status = posix_spawn(pid, program, &actions, &attributes, argv, environ);
        }
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

/* Until it ends; false when that takes too long. text is cut at TEXT_MAX. */
static bool read_all(int fd, uint64_t t_end_ns, char *text)
{
    size_t used = 0;
    for (;;) {
        char rest[TEXT_MAX];
        uint64_t now_ns = berth_clock_now_ns();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (now_ns >= t_end_ns) {
            return false;
        }
        if (poll(&wait, 1, (int)((t_end_ns - now_ns) / BERTH_NS_PER_MS) + 1) <= 0) {
            continue; /* late, or interrupted */
        }
        ssize_t got = read(fd, rest, sizeof(rest));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            text[used] = '\0';
            return true;
        }
        size_t take = (size_t)got < TEXT_MAX - 1 - used ? (size_t)got : TEXT_MAX - 1 - used;
        memcpy(text + used, rest, take);
        used += take;
    }
}

/* false: it is not gone by then. */
static bool reap(pid_t pid, uint64_t t_end_ns, int *status)
{
    for (;;) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR)) {
            return true;
        }
        if (berth_clock_now_ns() >= t_end_ns) {
            return false;
        }
        usleep(LOOK_US);
    }
}

/* false: it is something else, and *out is as it was. */
static bool read_answer(const char *text, struct berth_gpu_found *out)
{
    struct berth_gpu_found found = *out;
    size_t device = strcspn(text, " ");
    const char *at = text + device;
    if (strncmp(text, "cuda:", 5) != 0 || device >= sizeof(found.device) || device == 5 ||
        5 + strspn(text + 5, "0123456789") != device || !read_bytes(&at, &found.bytes) ||
        !read_bytes(&at, &found.bytes_free) || found.bytes_free > found.bytes || at[0] != ' ' ||
        at[1] == '\0') {
        return false;
    }
    size_t name = strnlen(at + 1, sizeof(found.name) - 1);
    name = berth_utf8_valid_length(at + 1, name); /* where it is cut, no character is */
    memcpy(found.device, text, device);
    found.device[device] = '\0';
    memcpy(found.name, at + 1, name);
    found.name[name] = '\0';
    *out = found;
    return true;
}

/* A space and a number, neither of which may be missing; at most 18 digits. */
static bool read_bytes(const char **at, uint64_t *out)
{
    const char *digits = *at + (**at == ' ');
    size_t count = strspn(digits, "0123456789");
    if (digits == *at || count == 0 || count > 18) {
        return false;
    }
    *out = 0;
    for (size_t i = 0; i < count; i++) {
        *out = *out * 10 + (uint64_t)(digits[i] - '0');
    }
    *at = digits + count;
    return true;
}

/* The first line, up to where it is no text, with '?' for what is not to be shown. */
static void keep_line(char *text)
{
    text[strcspn(text, "\n")] = '\0';
    text[berth_utf8_valid_length(text, strlen(text))] = '\0';
    for (; *text != '\0'; text++) {
        bool c1 = (unsigned char)text[0] == 0xC2 && (unsigned char)text[1] < 0xA0;
        if ((unsigned char)*text < ' ' || *text == 0x7F) {
            *text = '?';
        } else if (c1) { /* a control character of two bytes */
            text[0] = text[1] = '?';
        }
    }
}
