/* log_out.c - see log_out.h.
 *
 * Standard error may be a pipe that nobody reads, a terminal that was stopped, a socket that is
 * full; a write(2) then waits for as long as it takes, and an event loop would wait with it. So
 * lines go through a ring, and one thread at a time, who holds it, takes them out and writes them:
 * whoever logs, in the ordinary case at once and by a write that does not wait. When that would
 * wait, or the kernel has no such write for what standard error is, the ring is handed to a thread
 * of its own, which waits.
 *
 * There is no lock: a thread that loads a model at idle priority may be stopped anywhere for long,
 * and what it would hold then, all would wait for. A line takes as many cells as it needs, all by
 * one compare-exchange, and fills them after it; a cell's turn says which round it is in, and the
 * first one's whether the line is there. Cells are freed in order, so if the last one is free, all
 * are. Whoever filled some looks for the holder, and a holder who lets go looks for a filled one,
 * both sequentially consistent, so that no line stays behind.
 *
 * Rejected: O_NONBLOCK, which is the open file's and so would be set for a shell and for all other
 * processes that share it; poll before write, because those processes may take the room between the
 * two; a thread for all writes, which a crash just after a line would not wait for. */
#include "base/log_out.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define CELLS 2048
#define CELL_BYTES 128
#define AT_ONCE_MAX 64 /* lines that one who logs writes, of his own and of others */
#define NOTE_BYTES 40  /* " dropped=N" */
#define FLUSH_NS_MAX BERTH_NS_PER_S
#define FLUSH_PAUSE_NS BERTH_NS_PER_MS

struct cell {
    _Atomic uint64_t turn; /* 2 * round: free; 2 * round + 1: a line begins here */
    uint32_t length;       /* of that line; and the cells it has */
    uint32_t count;
};

static struct cell cells[CELLS];
/* What a cell holds lies at CELL_BYTES times its index; a line that begins in the last ones runs on
 * past them, while the first ones are its own and empty. */
static char bytes[CELLS * CELL_BYTES + BERTH_LOG_LINE_MAX + NOTE_BYTES];
static _Atomic uint64_t tail;    /* cells taken */
static _Atomic uint64_t head;    /* cells written; the holder moves it */
static size_t head_offset;       /* of the line at head: bytes written; the holder's */
static _Atomic bool held;        /* somebody holds the ring */
static _Atomic uint64_t dropped; /* and not told yet */
static _Atomic bool used;        /* there was a line: exit() flushes */
static uint64_t flush_ns_max = FLUSH_NS_MAX; /* more only in tests that read all of it */

static _Thread_local bool telling; /* the line at hand is our own: nobody misses it */
static bool writer_started; /* the holder's, as is writer_wake but for its count */
static sem_t writer_wake;   /* the ring is handed over */

static bool add(const char *line, size_t length);
static uint64_t turn_of(uint64_t at);
static void write_lines(void);
static bool write_some(void);
static bool is_filled(void);
static bool write_line(bool wait);
static size_t add_note(char *at, size_t length, uint64_t count);
static bool tell_dropped(void);
static size_t put_now(const char *text, size_t length);
static void put_waiting(const char *text, size_t length);
static bool hand_over(void);
static void *writer_main(void *unused);
static void flush_at_exit(void);

void berth_log_out_put(const char *line, size_t length)
{
    if (!atomic_exchange(&used, true)) {
        (void)atexit(flush_at_exit);
    }
    if (add(line, length)) {
        write_lines();
    }
}

bool berth_log_out_flush(void)
{
    struct timespec pause = {.tv_nsec = FLUSH_PAUSE_NS};
    uint64_t t_end_ns = berth_clock_now_ns() + flush_ns_max;
    while (true) {
        write_lines();
        if (atomic_load(&head) == atomic_load(&tail) && !atomic_load(&held)) {
            return true;
        }
        if (berth_clock_now_ns() >= t_end_ns) {
            return false;
        }
        nanosleep(&pause, NULL);
    }
}

void berth_log_out_last(const char *line, size_t length)
{
    if (atomic_load(&used)) {
        berth_log_out_put(line, length);
        (void)berth_log_out_flush();
    } else {
        ssize_t put = write(STDERR_FILENO, line, length);
        (void)put; /* nowhere to say it */
    }
}

static bool add(const char *line, size_t length)
{
    uint32_t count = (uint32_t)((length + NOTE_BYTES + CELL_BYTES - 1) / CELL_BYTES);
    uint64_t at = atomic_load(&tail);
    while (true) {
        uint64_t last = at + count - 1;
        uint64_t turn = atomic_load(&cells[last % CELLS].turn);
        if (turn < turn_of(last)) { /* of the round before: not written yet */
            atomic_fetch_add(&dropped, telling ? 0 : 1);
            return false;
        }
        if (turn > turn_of(last)) { /* others were faster */
            at = atomic_load(&tail);
        } else if (atomic_compare_exchange_weak(&tail, &at, at + count)) {
            break;
        }
    }
    struct cell *cell = &cells[at % CELLS];
    char *text = bytes + at % CELLS * CELL_BYTES;
    memcpy(text, line, length);
    cell->length = (uint32_t)add_note(text, length, atomic_exchange(&dropped, 0));
    cell->count = count;
    atomic_store(&cell->turn, turn_of(at) + 1);
    return true;
}

/* Of a cell that is free. */
static uint64_t turn_of(uint64_t at)
{
    return at / CELLS * 2;
}

/* Writes what is there, unless somebody else does. */
static void write_lines(void)
{
    do {
        if (atomic_exchange(&held, true)) {
            return;
        }
        if (!write_some()) {
            if (!hand_over()) { /* the lines wait for the next one who logs */
                atomic_store(&held, false);
            }
            return;
        }
        atomic_store(&held, false);
    } while (is_filled());
}

/* false: the rest would have to wait. */
static bool write_some(void)
{
    for (int i = 0; is_filled(); i++) {
        if (i == AT_ONCE_MAX || !write_line(false)) {
            return false;
        }
    }
    return true;
}

static bool is_filled(void)
{
    uint64_t at = atomic_load(&head);
    return atomic_load(&cells[at % CELLS].turn) == turn_of(at) + 1;
}

/* The line at head, which is filled. false: what is left of it would have to wait. */
static bool write_line(bool wait)
{
    uint64_t at = atomic_load(&head);
    uint64_t next = at + cells[at % CELLS].count;
    const char *rest = bytes + at % CELLS * CELL_BYTES + head_offset;
    size_t length = cells[at % CELLS].length - head_offset;
    if (wait) {
        put_waiting(rest, length);
    } else {
        size_t put = put_now(rest, length);
        if (put < length) {
            head_offset += put;
            return false;
        }
    }
    head_offset = 0;
    atomic_store(&head, next);
    for (; at < next; at++) {
        atomic_store(&cells[at % CELLS].turn, turn_of(at + CELLS));
    }
    return true;
}

/* Before the line's end. */
static size_t add_note(char *at, size_t length, uint64_t count)
{
    if (count == 0) {
        return length;
    }
    return length - 1 +
           (size_t)snprintf(at + length - 1, NOTE_BYTES, " dropped=%llu\n",
                            (unsigned long long)count);
}

/* Bytes written. What is wrong, if it is more than that it would have to wait, the writer finds. */
static size_t put_now(const char *text, size_t length)
{
    struct iovec piece = {.iov_base = (void *)(uintptr_t)text, .iov_len = length};
    struct stat file;
    bool regular = fstat(STDERR_FILENO, &file) == 0 && S_ISREG(file.st_mode);
    ssize_t put;
    do { /* a file has no reader to wait for */
        put = regular ? write(STDERR_FILENO, text, length)
                      : pwritev2(STDERR_FILENO, &piece, 1, -1, RWF_NOWAIT);
    } while (put < 0 && errno == EINTR);
    return put > 0 ? (size_t)put : 0;
}

static void put_waiting(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t put = write(STDERR_FILENO, text, length);
        if (put > 0) {
            text += put;
            length -= (size_t)put;
        } else if (put < 0 && errno == EAGAIN) { /* somebody set it so */
            struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
            (void)poll(&fd, 1, -1);
        } else if (put == 0 || errno != EINTR) {
            return; /* nowhere to say it */
        }
    }
}

/* The holder's end of the ring to the writer, who is started if need be; false: he cannot be. */
static bool hand_over(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (!writer_started) {
        if (sem_init(&writer_wake, 0, 0) != 0 || pthread_attr_init(&attributes) != 0) {
            return false;
        }
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* it shall take no signals */
        writer_started =
            pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0 &&
            pthread_create(&thread, &attributes, writer_main, NULL) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    return writer_started && sem_post(&writer_wake) == 0;
}

static void *writer_main(void *unused)
{
    struct sched_param normal = {0};
    (void)unused;
    /* Who started it may be a loader, at idle priority; without rights it stays so. */
    (void)pthread_setschedparam(pthread_self(), SCHED_OTHER, &normal);
    while (true) {
        while (sem_wait(&writer_wake) != 0) {
        }
        do {
            do {
                while (is_filled()) {
                    (void)write_line(true);
                }
            } while (tell_dropped());
            atomic_store(&held, false);
        } while (is_filled() && !atomic_exchange(&held, true));
    }
    return NULL;
}

/* All is out, and perhaps nobody logs any more: a line of our own takes the note. */
static bool tell_dropped(void)
{
    bool some = atomic_load(&dropped) > 0;
    if (some) {
        telling = true;
        berth_log_error("log", 0, "lines were dropped: nobody read standard error");
        telling = false;
    }
    return some;
}

static void flush_at_exit(void)
{
    (void)berth_log_out_flush();
}
