/* sandbox.c - limits, no new privileges, and a list of the system calls that are left.
 *
 * The list is an allow-list, and what is not on it kills the whole process. mmap and mprotect may
 * not make memory executable, tgkill (abort) reaches this process only. Memory is limited by
 * RLIMIT_DATA (its own memory) and not by the address space alone, because input and output are
 * mapped too and may be large; RLIMIT_AS stands behind it.
 *
 * Rejected: namespaces (need privileges or settings that containers lack) and Landlock (not in
 * every kernel); with no open and no socket there is nothing left for them to forbid.
 */
#include "media/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"

#define MAPPED_BYTES_MAX (UINT64_C(64) << 30) /* input and output together, far above any limit */
#define CORE_FDS 3

/* The sanitizers' shadow memory breaks every limit, and their reports go to standard error. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static enum berth_code close_others(int socket_fd, struct berth_err *err);
static enum berth_code limit_resources(const struct berth_sandbox_limits *limits,
                                       struct berth_err *err);
static uint64_t status_bytes(int column);
static enum berth_code load_filter(struct berth_err *err);
static int add_rules(scmp_filter_ctx filter);

/* Without conditions on their arguments. */
static const int calls_allowed[] = {
    SCMP_SYS(read),          SCMP_SYS(write),        SCMP_SYS(recvmsg),
    SCMP_SYS(sendmsg),       SCMP_SYS(close),        SCMP_SYS(munmap),
    SCMP_SYS(mremap),        SCMP_SYS(brk),          SCMP_SYS(madvise),
    SCMP_SYS(futex),         SCMP_SYS(exit),         SCMP_SYS(exit_group),
    SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday), SCMP_SYS(clock_nanosleep),
    SCMP_SYS(getrandom),     SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(getpid),        SCMP_SYS(gettid),       SCMP_SYS(sched_yield),
    SCMP_SYS(sysinfo),       SCMP_SYS(sigaltstack),  SCMP_SYS(sched_getaffinity),
    SCMP_SYS(restart_syscall),
};

enum berth_code berth_sandbox_enter(const struct berth_sandbox_limits *limits,
                                    struct berth_err *err)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot give up privileges: %s",
                          strerror(errno));
    }
    BERTH_TRY(close_others(limits->socket_fd, err));
    BERTH_TRY(limit_resources(limits, err));
    return load_filter(err);
}

/* Standard input, output and error become the null device. */
static enum berth_code close_others(int socket_fd, struct berth_err *err)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot open the null device: %s",
                          strerror(errno));
    }
    for (int fd = 0; fd < (SANITIZED ? CORE_FDS - 1 : CORE_FDS); fd++) {
        if (dup2(null_fd, fd) < 0) {
            return berth_fail(err, BERTH_UNAVAILABLE, "cannot use the null device: %s",
                              strerror(errno));
        }
    }
    bool is_closed = socket_fd <= CORE_FDS ||
                     close_range(CORE_FDS, (unsigned)socket_fd - 1, 0) == 0;
    is_closed = is_closed && close_range((unsigned)socket_fd + 1, ~0U, 0) == 0;
    if (!is_closed) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot close descriptors: %s", strerror(errno));
    }
    return BERTH_OK;
}

static enum berth_code limit_resources(const struct berth_sandbox_limits *limits,
                                       struct berth_err *err)
{
    struct {
        __rlimit_resource_t resource;
        uint64_t most;
    } rows[] = {
        {RLIMIT_CORE, 0},
        {RLIMIT_FSIZE, SANITIZED ? RLIM_INFINITY : 0},
        {RLIMIT_NOFILE, 16},
        {RLIMIT_CPU, limits->cpu_s_max},
        {RLIMIT_DATA, SANITIZED ? RLIM_INFINITY : status_bytes(5) + limits->memory_max},
        {RLIMIT_AS, SANITIZED ? RLIM_INFINITY
                              : status_bytes(0) + limits->memory_max + MAPPED_BYTES_MAX},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        struct rlimit limit = {.rlim_cur = rows[i].most, .rlim_max = rows[i].most};
        if (setrlimit(rows[i].resource, &limit) != 0) {
            return berth_fail(err, BERTH_UNAVAILABLE, "cannot set resource limit %d: %s",
                              (int)rows[i].resource, strerror(errno));
        }
    }
    return BERTH_OK;
}

/* A column of /proc/self/statm: 0 all mappings, 5 data and stack. 0 when it cannot be read, which
 * only makes the limit tighter. */
static uint64_t status_bytes(int column)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long pages[6] = {0};
    if (file != NULL) {
        int got = fscanf(file, "%lu %lu %lu %lu %lu %lu", &pages[0], &pages[1], &pages[2],
                         &pages[3], &pages[4], &pages[5]);
        fclose(file);
        if (got != 6) {
            return 0;
        }
    }
    return (uint64_t)pages[column] * (uint64_t)sysconf(_SC_PAGESIZE);
}

static enum berth_code load_filter(struct berth_err *err)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (filter == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot make a seccomp filter");
    }
    int status = add_rules(filter);
    if (status == 0) {
        status = seccomp_load(filter);
    }
    seccomp_release(filter);
    if (status != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot load the seccomp filter: %s",
                          strerror(-status));
    }
    return BERTH_OK;
}

static int add_rules(scmp_filter_ctx filter)
{
    int status = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(calls_allowed) && status == 0; i++) {
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, calls_allowed[i], 0);
    }
    if (status == 0) {
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                                  SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    }
    if (status == 0) {
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                                  SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    }
    if (status == 0) {
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                                  SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0));
    }
    return status;
}
