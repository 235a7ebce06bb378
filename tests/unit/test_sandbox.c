/* test_sandbox.c - what a process can still do once it is in the sandbox, and what ends it. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "media/sandbox.h"
#include "sanitizer.h"

#define EXIT_FINE 7

static int socket_ends[2];
static int other_fd;

static void do_nothing(void)
{
}

static void do_open(void)
{
    (void)!open("/etc/passwd", O_RDONLY);
}

static void do_unlink(void)
{
    unlink("/tmp/berth-no-such-file");
}

static void do_stat(void)
{
    struct stat status;
    (void)!stat("/etc/passwd", &status);
}

static void do_socket(void)
{
    socket(AF_INET, SOCK_STREAM, 0);
}

static void do_unix_socket(void)
{
    socket(AF_UNIX, SOCK_STREAM, 0);
}

static void do_exec(void)
{
    char name[] = "true";
    char *argv[] = {name, NULL};
    execv("/bin/true", argv);
}

static void do_fork(void)
{
    (void)!fork();
}

static void do_thread(void)
{
    (void)!syscall(SYS_clone, CLONE_VM, NULL, NULL, NULL, NULL);
}

static void do_kill(void)
{
    kill(getppid(), 0);
}

static void do_ptrace(void)
{
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

static void do_code(void)
{
    (void)!mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void do_make_code(void)
{
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory, 4096, PROT_READ | PROT_EXEC);
}

static void do_limits(void)
{
    struct rlimit limit = {.rlim_cur = 1, .rlim_max = 1};
    setrlimit(RLIMIT_CPU, &limit);
}

static void do_memfd(void)
{
    (void)!memfd_create("x", 0);
}

static void do_io_uring(void)
{
    (void)!syscall(SYS_io_uring_setup, 1, NULL);
}

static void do_send_to(void)
{
    (void)!send(socket_ends[1], "a", 1, MSG_NOSIGNAL);
}

/* What decoding needs. */
static void do_message(void)
{
    char byte = 'x';
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
    if (sendmsg(socket_ends[1], &head, 0) != 1) {
        _exit(8);
    }
    void *memory = malloc(8 << 20);
    memset(memory, 1, 8 << 20);
    memory = realloc(memory, 16 << 20);
    free(memory);
}

static void do_other_fd(void)
{
    char byte;
    if (read(other_fd, &byte, 1) != -1 || errno != EBADF) {
        _exit(8);
    }
    (void)!write(2, "must not be seen", 16); /* the null device */
}

static void do_grow(void)
{
    for (size_t i = 0; i < 1024; i++) {
        void *memory =
            mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            _exit(i >= 60 && i <= 64 ? EXIT_FINE : 9);
        }
    }
}

static void do_spin(void)
{
    for (volatile unsigned i = 0;; i++) {
    }
}

static int run(void (*act)(void))
{
    int status = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socket_ends), 0);
    other_fd = open("/etc/passwd", O_RDONLY);
    pid_t pid = fork();
    if (pid == 0) {
        struct berth_err err = {0};
        struct berth_sandbox_limits limits = {
            .memory_max = 64 << 20, .cpu_s_max = 1, .socket_fd = socket_ends[1]};
        if (berth_sandbox_enter(&limits, &err) != BERTH_OK) {
            _exit(99);
        }
        act();
        _exit(EXIT_FINE);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(socket_ends[0]);
    close(socket_ends[1]);
    close(other_fd);
    return status;
}

static void test_allowed(void **state)
{
    static void (*const acts[])(void) = {do_nothing, do_message, do_other_fd};
    for (size_t i = 0; i < BERTH_COUNT_OF(acts); i++) {
        int status = run(acts[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_FINE);
    }
}

static void test_forbidden(void **state)
{
    static const struct {
        const char *name;
        void (*act)(void);
    } rows[] = {
        {"open", do_open},         {"unlink", do_unlink},       {"stat", do_stat},
        {"socket", do_socket},     {"unix", do_unix_socket},    {"exec", do_exec},
        {"fork", do_fork},         {"thread", do_thread},       {"kill", do_kill},
        {"ptrace", do_ptrace},     {"code", do_code},           {"make code", do_make_code},
        {"limits", do_limits},     {"memfd", do_memfd},         {"io_uring", do_io_uring},
        {"sendto", do_send_to},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        int status = run(rows[i].act);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS) {
            fail_msg("%s: status %x", rows[i].name, (unsigned)status);
        }
    }
}

static void test_limits(void **state)
{
    int status = 0;
    if (!TEST_SANITIZED) {
        status = run(do_grow);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_FINE);
    }
    status = run(do_spin);
    assert_true(WIFSIGNALED(status));
    assert_true(WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGXCPU);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_forbidden),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests_name("sandbox", tests, NULL, NULL);
}
