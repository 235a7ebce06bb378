/* Lines reach who reads, in order and none lost; who does not read is waited for by nobody. */
#include "base/log_out.c"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define THREADS 4
#define LINES_EACH 2000
#define PATIENCE_NS (300 * BERTH_NS_PER_S) /* for a reader who comes, however busy the machine */

static int stderr_saved;
static int read_fd, write_fd;

/* What standard error may be. */
enum sink { SINK_PIPE, SINK_SOCKET, SINK_TERMINAL, SINK_COUNT };

static void open_sink(enum sink sink)
{
    int fds[2];
    if (sink == SINK_PIPE) {
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        assert_true(fcntl(fds[1], F_SETPIPE_SZ, 4096) >= 4096);
    } else if (sink == SINK_SOCKET) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        int small = 4096;
        assert_int_equal(setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    } else {
        fds[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(fds[0] >= 0);
        assert_int_equal(grantpt(fds[0]), 0);
        assert_int_equal(unlockpt(fds[0]), 0);
        fds[1] = open(ptsname(fds[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(fds[1] >= 0);
    }
    read_fd = fds[0];
    write_fd = fds[1];
    stderr_saved = dup(STDERR_FILENO);
    assert_true(dup2(write_fd, STDERR_FILENO) >= 0);
}

/* All lines must be out. */
static void close_sink(void)
{
    assert_true(berth_log_out_flush());
    dup2(stderr_saved, STDERR_FILENO);
    close(stderr_saved);
    close(read_fd);
    close(write_fd);
}

static void put(const char *who, uint64_t number)
{
    char line[100];
    int length = snprintf(line, sizeof(line), "%s %llu\n", who, (unsigned long long)number);
    berth_log_out_put(line, (size_t)length);
}

/* What a reader finds, until a line "end". */
struct seen {
    uint64_t next[THREADS]; /* the least number that a line of thread 'a' + i may have */
    uint64_t lines;
    uint64_t dropped; /* as told */
    bool wrong;       /* an order or a line that cannot be */
    bool end;
};

static void see_line(struct seen *seen, const char *line)
{
    char who[8] = "";
    unsigned long long number = 0, count = 0;
    const char *note = strstr(line, " dropped=");
    if (note != NULL) {
        seen->wrong = seen->wrong || sscanf(note, " dropped=%llu", &count) != 1 || count == 0;
        seen->dropped += count;
    }
    if (strncmp(line, "end", 3) == 0) {
        seen->end = true;
    } else if (strstr(line, "lines were dropped") == NULL) {
        bool good = sscanf(line, "%7s %llu", who, &number) == 2 && who[1] == '\0' &&
                    who[0] >= 'a' && who[0] < 'a' + THREADS;
        size_t i = good ? (size_t)(who[0] - 'a') : 0;
        seen->wrong = seen->wrong || !good || number < seen->next[i];
        seen->next[i] = number + 1;
        seen->lines++;
    }
}

/* Reads read_fd by a few bytes. */
static void *read_all(void *argument)
{
    struct seen *seen = argument;
    char line[200];
    size_t length = 0;
    while (!seen->end && length < sizeof(line) - 1 && read(read_fd, line + length, 1) == 1) {
        if (line[length] == '\r') { /* a terminal's */
            continue;
        }
        if (line[length++] == '\n') {
            line[length - 1] = '\0';
            see_line(seen, line);
            length = 0;
        }
    }
    return NULL;
}

static void *put_many(void *argument)
{
    const char *who = argument;
    for (uint64_t i = 0; i < LINES_EACH; i++) {
        put(who, i);
    }
    return NULL;
}

/* May carry the last note. */
static void end_lines(void)
{
    while (!berth_log_out_flush()) {
    }
    berth_log_out_put("end\n", 4);
}

/* Before anybody had to wait: who logs has written the line when the call returns. */
static void lines_go_out_at_once(void **state)
{
    (void)state;
    for (enum sink sink = SINK_PIPE; sink <= SINK_SOCKET; sink++) {
        char text[100] = "";
        open_sink(sink);
        put("a", 1);
        put("a", 2);
        if (writer_started) { /* a kernel whose pipes have no write that does not wait */
            assert_true(berth_log_out_flush());
        }
        assert_int_equal(read(read_fd, text, sizeof(text)), 8);
        assert_string_equal(text, "a 1\na 2\n");
        close_sink();
    }
}

static void regular_files_are_appended_to(void **state)
{
    char path[] = "/tmp/berth-test-log-XXXXXX";
    char text[100] = "";
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    stderr_saved = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    put("a", 1);
    put("a", 2);
    dup2(stderr_saved, STDERR_FILENO);
    close(stderr_saved);
    assert_int_equal(pread(fd, text, sizeof(text), 0), 8);
    assert_string_equal(text, "a 1\na 2\n");
    close(fd);
}

static void nobody_waits_for_who_does_not_read(void **state)
{
    (void)state;
    for (enum sink sink = SINK_PIPE; sink < SINK_COUNT; sink++) {
        struct seen seen = {0};
        pthread_t reader;
        open_sink(sink);
        for (uint64_t i = 0; i < 20000; i++) { /* this returns */
            put("a", i);
        }
        assert_int_equal(pthread_create(&reader, NULL, read_all, &seen), 0);
        end_lines();
        pthread_join(reader, NULL);
        assert_false(seen.wrong);
        assert_true(seen.dropped > 0); /* a terminal may have taken more meanwhile, and been told */
        assert_true(seen.lines >= CELLS);
        assert_int_equal(seen.lines + seen.dropped, 20000);
        close_sink();
    }
}

/* The reader is not faster than the writers: all ways through the ring are taken. */
static void lines_of_many_threads(void **state)
{
    static char names[THREADS][2];
    (void)state;
    for (enum sink sink = SINK_PIPE; sink < SINK_COUNT; sink++) {
        struct seen seen = {0};
        pthread_t reader, threads[THREADS];
        open_sink(sink);
        assert_int_equal(pthread_create(&reader, NULL, read_all, &seen), 0);
        for (size_t i = 0; i < THREADS; i++) {
            names[i][0] = (char)('a' + i);
            assert_int_equal(pthread_create(&threads[i], NULL, put_many, names[i]), 0);
        }
        for (size_t i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
        }
        end_lines();
        pthread_join(reader, NULL);
        assert_false(seen.wrong);
        assert_int_equal(seen.lines + seen.dropped, THREADS * LINES_EACH);
        close_sink();
    }
}

/* Nothing more is logged after the loss: it is told all the same. */
static void a_loss_is_told_without_another_line(void **state)
{
    char text[65536];
    char *note = NULL;
    size_t length = 0;
    (void)state;
    open_sink(SINK_PIPE);
    for (uint64_t i = 0; i < 5000; i++) {
        put("a", i);
    }
    while (note == NULL || strchr(note, '\n') == NULL) {
        ssize_t got = read(read_fd, text + length, sizeof(text) - 1 - length);
        assert_true(got > 0);
        length += (size_t)got;
        text[length] = '\0';
        note = strstr(text, "ERROR log msg=\"lines were dropped");
    }
    assert_non_null(strstr(note, " dropped="));
    close_sink();
}

/* What the count is of are the lines of others. */
static void a_note_that_does_not_fit_is_not_counted(void **state)
{
    struct seen seen = {0};
    pthread_t reader;
    (void)state;
    open_sink(SINK_PIPE);
    assert_true(berth_log_out_flush());
    atomic_store(&held, true); /* nobody takes anything out */
    for (uint64_t i = 0; i < CELLS + 5; i++) {
        put("a", i);
    }
    assert_int_equal(atomic_load(&dropped), 5);
    assert_true(tell_dropped());
    assert_int_equal(atomic_load(&dropped), 5);
    atomic_store(&held, false);
    assert_int_equal(pthread_create(&reader, NULL, read_all, &seen), 0);
    end_lines();
    pthread_join(reader, NULL);
    assert_false(seen.wrong);
    assert_int_equal(seen.lines, CELLS);
    assert_int_equal(seen.dropped, 5);
    close_sink();
}

static void a_line_of_which_a_part_fits(void **state)
{
    char line[BERTH_LOG_LINE_MAX];
    char text[2 * BERTH_LOG_LINE_MAX];
    size_t length = 0;
    (void)state;
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    open_sink(SINK_SOCKET); /* takes a part of a line */
    for (int i = 0; i < 10; i++) {
        berth_log_out_put(line, sizeof(line));
    }
    for (int i = 0; i < 10; i++) {
        for (length = 0; length < sizeof(line);) {
            ssize_t got = read(read_fd, text + length, sizeof(line) - length);
            assert_true(got > 0);
            length += (size_t)got;
        }
        assert_memory_equal(text, line, sizeof(line));
    }
    close_sink();
}

/* A process of its own, which ends by exit() with standard error on our sink. */
static pid_t start_child(uint64_t lines, bool fault, bool is_read)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(read_fd);
        /* The writer's thread is not in this process. */
        writer_started = false;
        atomic_store(&used, false);
        flush_ns_max = is_read ? PATIENCE_NS : FLUSH_NS_MAX;
        for (uint64_t i = 0; i < lines; i++) {
            put("a", i);
        }
        BERTH_ASSERT(!fault);
        exit(7);
    }
    assert_true(pid > 0);
    return pid;
}

static void the_last_lines_before_exit(void **state)
{
    (void)state;
    for (enum sink sink = SINK_PIPE; sink < SINK_COUNT; sink++) {
        struct seen seen = {0};
        int status = 0;
        open_sink(sink);
        pid_t pid = start_child(200, false, true);
        for (uint64_t left = 200; left > 0; left--) {
            char byte = 0;
            while (byte != '\n') {
                assert_int_equal(read(read_fd, &byte, 1), 1);
            }
            seen.lines++;
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        assert_int_equal(seen.lines, 200);
        close_sink();
    }
}

static void the_end_waits_so_long_and_no_longer(void **state)
{
    int status = 0;
    (void)state;
    for (enum sink sink = SINK_PIPE; sink < SINK_COUNT; sink++) {
        open_sink(sink);
        pid_t pid = start_child(20000, false, false);
        assert_int_equal(waitpid(pid, &status, 0), pid); /* nobody reads */
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        close_sink();
    }
}

static void a_fault_ends_the_process(void **state)
{
    static const struct {
        uint64_t lines;
        bool read;
    } rows[] = {{0, true}, {1, true}, {20000, false}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[1000] = "";
        int status = 0;
        open_sink(SINK_PIPE);
        pid_t pid = start_child(rows[i].lines, true, rows[i].read);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        if (rows[i].read) {
            assert_true(read(read_fd, text, sizeof(text) - 1) > 0);
            assert_non_null(strstr(text, "internal fault: !fault at"));
        }
        close_sink();
    }
}

static void nowhere_to_write_to(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    open_sink(SINK_PIPE);
    close(read_fd);
    for (uint64_t i = 0; i < 1000; i++) {
        put("a", i);
    }
    read_fd = dup(write_fd);
    close_sink();
    stderr_saved = dup(STDERR_FILENO);
    close(STDERR_FILENO);
    put("a", 0);
    assert_true(berth_log_out_flush());
    dup2(stderr_saved, STDERR_FILENO);
    close(stderr_saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_go_out_at_once),
        cmocka_unit_test(regular_files_are_appended_to),
        cmocka_unit_test(the_last_lines_before_exit), /* before this process has a writer */
        cmocka_unit_test(the_end_waits_so_long_and_no_longer),
        cmocka_unit_test(a_fault_ends_the_process),
        cmocka_unit_test(nobody_waits_for_who_does_not_read),
        cmocka_unit_test(lines_of_many_threads),
        cmocka_unit_test(a_loss_is_told_without_another_line),
        cmocka_unit_test(a_note_that_does_not_fit_is_not_counted),
        cmocka_unit_test(a_line_of_which_a_part_fits),
        cmocka_unit_test(nowhere_to_write_to),
    };
    flush_ns_max = PATIENCE_NS;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
