/* test_media.c - jobs through real decode processes: answers, limits, and processes that crash,
 * hang, grow, lie or try to break out.
 *
 * The test program is its own decode process (berth_media_options.program is /proc/self/exe): run
 * as `decode` it serves the product's decoders and, before them, one that does what the file says:
 * "HOOK crash", "HOOK hang", and so on.
 */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "media/decode.h"
#include "media/media.h"
#include "media/protocol.h"
#include "sanitizer.h"

#if WITH_FFMPEG
#define PROCESSES 1
#else
#define PROCESSES 0
#endif

#define BUDGET (UINT64_C(256) << 20)

/* The decoder of the decode process of this test. */

static bool hook_matches(const struct berth_media_input *input)
{
    return input->length >= 5 && memcmp(input->bytes, "HOOK ", 5) == 0;
}

static void say(enum berth_say what, uint64_t job, uint64_t frames)
{
    struct berth_say_message message = {
        .magic = BERTH_PROTOCOL_MAGIC, .say = (uint32_t)what, .job = job, .frames = frames};
    (void)berth_say_send(BERTH_CHILD_SOCKET, &message, -1, true);
}

static void grow(void)
{
    for (;;) {
        void *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
        if (memory == MAP_FAILED) {
            return;
        }
        memset(memory, 1, 1 << 20);
    }
}

static enum berth_code hook_decode(const struct berth_media_input *input, struct berth_pcm *pcm,
                                   struct berth_err *err)
{
    char what[32] = "";
    memcpy(what, input->bytes + 5, input->length - 5 < 31 ? input->length - 5 : 31);
    char *argv[] = {what, NULL};
    if (strcmp(what, "crash") == 0) {
        raise(SIGSEGV);
    } else if (strcmp(what, "abort") == 0) {
        abort();
    } else if (strcmp(what, "hang") == 0) {
        for (volatile unsigned i = 0;; i++) {
        }
    } else if (strcmp(what, "sleep") == 0) {
        nanosleep(&(struct timespec){.tv_sec = 1000}, NULL);
    } else if (strcmp(what, "open") == 0) {
        (void)!open("/etc/passwd", O_RDONLY);
    } else if (strcmp(what, "socket") == 0) {
        socket(AF_INET, SOCK_STREAM, 0);
    } else if (strcmp(what, "exec") == 0) {
        execv("/bin/true", argv);
    } else if (strcmp(what, "fork") == 0) {
        (void)!fork();
    } else if (strcmp(what, "kill") == 0) {
        kill(1, 0);
    } else if (strcmp(what, "code") == 0) {
        (void)!mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else if (strcmp(what, "write") == 0) {
        *(volatile uint8_t *)(uintptr_t)input->bytes = 1;
    } else if (strcmp(what, "truncate") == 0) {
        (void)!ftruncate(4, 0);
    } else if (strcmp(what, "grow") == 0) {
        grow();
        return berth_fail(err, BERTH_UNAVAILABLE, "no more");
    } else if (strcmp(what, "room") == 0) {
        say(BERTH_SAY_ROOM, 1, UINT64_MAX / 8);
    } else if (strcmp(what, "done") == 0) {
        say(BERTH_SAY_DONE, 1, 1 << 20);
    } else if (strcmp(what, "job") == 0) {
        say(BERTH_SAY_DONE, 12345, 0);
    } else if (strcmp(what, "short") == 0) {
        (void)!write(BERTH_CHILD_SOCKET, "x", 1);
    } else if (strcmp(what, "exit") == 0) {
        _exit(0);
    } else if (strcmp(what, "text") == 0) {
        return berth_fail(err, BERTH_MEDIA, "a\nb\x01\xff");
    } else if (strcmp(what, "much") == 0) {
        for (;;) {
            BERTH_TRY(berth_pcm_reserve(pcm, BERTH_PCM_BLOCK, err));
            memset(pcm->frames + pcm->count, 0, BERTH_PCM_BLOCK * sizeof(float));
            BERTH_TRY(berth_pcm_commit(pcm, BERTH_PCM_BLOCK, err));
        }
    } else if (strcmp(what, "some") == 0) {
        BERTH_TRY(berth_pcm_reserve(pcm, 1, err));
        pcm->frames[pcm->count] = 0.5f;
        return berth_pcm_commit(pcm, 1, err);
    }
    return BERTH_OK;
}

static const struct berth_decoder_ops hook = {
    .name = "hook", .matches = hook_matches, .decode = hook_decode};

static int decode_main(int argc, char **argv)
{
    const struct berth_decoder_ops *decoders[8] = {&hook};
    for (size_t i = 0; berth_decoders[i] != NULL && i < 6; i++) {
        decoders[i + 1] = berth_decoders[i];
    }
    return berth_decode_main(argc, argv, decoders);
}

/* A build whose decoders are all direct starts none. */
static void need_processes(void)
{
    if (!PROCESSES) {
        skip();
    }
}

/* One media, its slabs and the queue on which jobs come back. */

struct rig {
    struct berth_slabs *slabs;
    struct berth_media *media;
    struct berth_queue replies;
};

static void rig_start(struct rig *rig, struct berth_media_options options)
{
    struct berth_err err = {0};
    struct berth_slabs_options slabs_options = {.bytes_budget = BUDGET};
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(berth_slabs_create(&slabs_options, &rig->slabs, &err), BERTH_OK);
    assert_int_equal(berth_queue_init(&rig->replies, 0, &err), BERTH_OK);
    options.slabs = rig->slabs;
    options.processes = options.processes == 0 ? 1 : options.processes;
    options.timeout_ns = options.timeout_ns == 0 ? 30 * BERTH_NS_PER_S : options.timeout_ns;
    options.memory_max = options.memory_max == 0 ? UINT64_C(256) << 20 : options.memory_max;
    options.queue_max = options.queue_max == 0 ? 64 : options.queue_max;
    assert_int_equal(berth_media_create(&options, &rig->media, &err), BERTH_OK);
}

static void rig_stop(struct rig *rig)
{
    struct berth_slabs_stats stats;
    berth_media_destroy(rig->media);
    berth_slabs_stats(rig->slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    berth_queue_finish(&rig->replies);
    berth_slabs_destroy(rig->slabs);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

static void job_init(struct rig *rig, struct berth_media_job *job, const void *bytes, size_t length)
{
    struct berth_err err = {0};
    memset(job, 0, sizeof(*job));
    if (length > 0) {
        assert_int_equal(berth_slabs_take_private(rig->slabs, length, &job->in, &err), BERTH_OK);
        memcpy(berth_slabs_pointer(rig->slabs, &job->in), bytes, length);
    }
    job->reply = &rig->replies;
    job->rate = 16000;
    job->seconds_max = 3600;
}

static struct berth_media_job *job_wait(struct rig *rig)
{
    struct berth_link taken;
    berth_list_init(&taken);
    uint64_t t_end_ns = berth_clock_now_ns() + 60 * BERTH_NS_PER_S;
    while (!berth_queue_take(&rig->replies, &taken)) {
        assert_true(berth_clock_now_ns() < t_end_ns);
        berth_queue_wait(&rig->replies, t_end_ns);
    }
    struct berth_link *link = berth_list_pop(&taken);
    struct berth_link *more = berth_list_pop(&taken);
    while (more != NULL) { /* the others wait for the next call */
        berth_queue_post(&rig->replies, more);
        more = berth_list_pop(&taken);
    }
    return BERTH_CONTAINER_OF(link, struct berth_media_job, post.link);
}

static void job_finish(struct rig *rig, struct berth_media_job *job)
{
    berth_slabs_give(rig->slabs, &job->in);
    berth_slabs_give(rig->slabs, &job->out);
}

static enum berth_code job_run(struct rig *rig, struct berth_media_job *job)
{
    struct berth_err err = {0};
    assert_int_equal(berth_media_submit(rig->media, job, &err), BERTH_OK);
    assert_ptr_equal(job_wait(rig), job);
    return job->err.code;
}

static enum berth_code run_text(struct rig *rig, const char *text, char *message)
{
    struct berth_media_job job;
    job_init(rig, &job, text, strlen(text));
    enum berth_code code = job_run(rig, &job);
    if (message != NULL) {
        snprintf(message, sizeof(job.err.msg), "%s", job.err.msg);
    }
    job_finish(rig, &job);
    return code;
}

/* A process is up, and what it is asked to do is done: sooner or later, on a busy machine where the
 * time allowed is short. */
static void serves(struct rig *rig)
{
    char message[240];
    while (run_text(rig, "HOOK some", message) != BERTH_OK) {
        assert_int_equal(strncmp(message, "took longer than", 16), 0);
    }
}

/* A sine as 16-bit mono WAV; the caller frees. */
static uint8_t *make_wav(uint32_t rate, uint32_t frames, size_t *length)
{
    size_t bytes = 44 + (size_t)frames * 2;
    uint8_t *wav = calloc(1, bytes);
    uint32_t words[] = {36 + frames * 2, 16, 1 | 1 << 16, rate, rate * 2, 2 | 16 << 16, frames * 2};
    memcpy(wav, "RIFF", 4);
    memcpy(wav + 4, &words[0], 4);
    memcpy(wav + 8, "WAVEfmt ", 8);
    memcpy(wav + 16, &words[1], 20);
    memcpy(wav + 36, "data", 4);
    memcpy(wav + 40, &words[6], 4);
    for (uint32_t i = 0; i < frames; i++) {
        int16_t level = (int16_t)((i * 37 % 200) * 100);
        memcpy(wav + 44 + 2 * i, &level, 2);
    }
    *length = bytes;
    return wav;
}

static size_t count_fds(void)
{
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

static size_t rss_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return resident * 4096;
}

/* The decode processes of this one. */
static size_t children(pid_t *out, size_t most)
{
    size_t count = 0;
    DIR *dir = opendir("/proc");
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[300];
        int parent = 0;
        snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
        FILE *file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (file == NULL) {
            continue;
        }
        if (fscanf(file, "%*d (%*[^)]) %*c %d", &parent) == 1 && parent == getpid() &&
            count < most) {
            out[count++] = (pid_t)strtol(entry->d_name, NULL, 10);
        }
        fclose(file);
    }
    closedir(dir);
    return count;
}

/* The one decode process of this, once it is at work: it has spun for some ticks since it was seen
 * first. */
static pid_t busy_child(void)
{
    pid_t seen = 0, pid = 0;
    unsigned long ticks_seen = 0;
    for (;;) {
        unsigned long ticks = 0;
        char path[64];
        usleep(1000);
        if (children(&pid, 1) == 0) {
            continue;
        }
        snprintf(path, sizeof(path), "/proc/%d/stat", pid);
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            int got = fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu",
                             &ticks);
            fclose(file);
            if (got == 1 && pid != seen) {
                seen = pid;
                ticks_seen = ticks;
            } else if (got == 1 && ticks >= ticks_seen + 20) {
                return pid;
            }
        }
    }
}

static void test_direct(void **state)
{
    struct rig rig;
    struct berth_media_job job;
    struct berth_media_stats stats;
    size_t length = 0;
    uint8_t *wav = make_wav(16000, 16000 * 3, &length);
    rig_start(&rig, (struct berth_media_options){0});
    job_init(&rig, &job, wav, length);
    assert_int_equal(job_run(&rig, &job), BERTH_OK);
    assert_int_equal(job.frame_count, 48000);
    assert_int_equal(job.out.length, 48000 * 4);
    assert_true(job.seconds == 3.0);
    const float *frames = berth_slabs_pointer(rig.slabs, &job.out);
    assert_true(frames[1] == 3700.0f / 32768);
    job_finish(&rig, &job);
    berth_media_stats(rig.media, &stats);
    assert_int_equal(stats.direct, 1);
    assert_int_equal(stats.jobs, 1);
    rig_stop(&rig);
    free(wav);
}

static void test_limits(void **state)
{
    struct rig rig;
    struct berth_media_job job;
    struct berth_err err = {0};
    size_t length = 0;
    uint8_t *wav = make_wav(16000, 16000 * 3, &length);
    rig_start(&rig, (struct berth_media_options){0});
    job_init(&rig, &job, wav, length);
    job.seconds_max = 2.9;
    assert_int_equal(job_run(&rig, &job), BERTH_TOO_LARGE);
    assert_string_equal(job.err.field, "file");
    assert_int_equal(job.out.slab, 0);
    job.seconds_max = 3.0;
    assert_int_equal(job_run(&rig, &job), BERTH_OK);
    berth_slabs_give(rig.slabs, &job.out);
    job.rate = 1;
    assert_int_equal(berth_media_submit(rig.media, &job, &err), BERTH_INVALID);
    job.rate = 16000;
    atomic_bool cancelled = true;
    job.cancelled = &cancelled;
    assert_int_equal(job_run(&rig, &job), BERTH_CANCELLED);
    job.cancelled = NULL;
    job.t_deadline_ns = 1;
    assert_int_equal(job_run(&rig, &job), BERTH_DEADLINE);
    job_finish(&rig, &job);
    job_init(&rig, &job, NULL, 0);
    assert_int_equal(job_run(&rig, &job), BERTH_INVALID);
    assert_string_equal(job.err.msg, "no audio: the file is empty");
    rig_stop(&rig);
    free(wav);
}

/* Each ends its process or its job, with a typed error, and the next job is served. */
static void test_hostile(void **state)
{
    static const struct {
        const char *file;
        const char *message; /* a part of it */
    } rows[] = {
        {"HOOK crash", "signal 11"},    {"HOOK abort", "signal 6"},  {"HOOK open", "signal 31"},
        {"HOOK socket", "signal 31"},   {"HOOK exec", "signal 31"},  {"HOOK fork", "signal 31"},
        {"HOOK kill", "signal 31"},     {"HOOK code", "signal 31"},  {"HOOK write", "signal 11"},
        {"HOOK truncate", "signal 31"}, {"HOOK exit", "exit status"}, {"HOOK room", "failed"},
        {"HOOK done", "failed"},        {"HOOK job", "failed"},      {"HOOK short", "failed"},
    };
    struct rig rig;
    char message[240];
    struct berth_media_stats stats;
    need_processes();
    rig_start(&rig, (struct berth_media_options){0});
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        bool is_reported = TEST_SANITIZED && (strcmp(rows[i].file, "HOOK crash") == 0 ||
                                         strcmp(rows[i].file, "HOOK write") == 0 ||
                                         strcmp(rows[i].file, "HOOK abort") == 0);
        assert_int_equal(run_text(&rig, rows[i].file, message), BERTH_MEDIA);
        if (strstr(message, rows[i].message) == NULL && !is_reported) {
            fail_msg("%s: %s", rows[i].file, message);
        }
        assert_int_equal(run_text(&rig, "HOOK some", NULL), BERTH_OK);
    }
    assert_int_equal(run_text(&rig, "HOOK none", message), BERTH_INVALID); /* no frame, no error */
    assert_non_null(strstr(message, "no audio: "));
    assert_int_equal(run_text(&rig, "HOOK text", message), BERTH_MEDIA);
    assert_string_equal(message, "a?b??");
    berth_media_stats(rig.media, &stats);
    assert_int_equal(stats.crashed, BERTH_COUNT_OF(rows));
    rig_stop(&rig);
}

static void test_grow(void **state)
{
    struct rig rig;
    char message[240];
    struct berth_media_stats stats;
    need_processes();
    if (TEST_SANITIZED) {
        skip();
    }
    rig_start(&rig, (struct berth_media_options){.memory_max = 64 << 20});
    assert_int_equal(run_text(&rig, "HOOK grow", message), BERTH_MEDIA);
    assert_non_null(strstr(message, "64 MiB"));
    assert_int_equal(run_text(&rig, "HOOK some", message), BERTH_OK);
    berth_media_stats(rig.media, &stats);
    assert_int_equal(stats.killed_memory, 1);
    rig_stop(&rig);
}

/* Endless sound stops at the limit, or when the budget has no more, whichever is first. */
static void test_much(void **state)
{
    struct rig rig;
    struct berth_media_job job;
    need_processes();
    rig_start(&rig, (struct berth_media_options){0});
    job_init(&rig, &job, "HOOK much", 9);
    job.seconds_max = 600;
    assert_int_equal(job_run(&rig, &job), BERTH_TOO_LARGE);
    assert_int_equal(job.out.slab, 0);
    job.seconds_max = 100 * 3600;
    enum berth_code code = job_run(&rig, &job);
    assert_true(code == BERTH_BUSY || code == BERTH_TOO_LARGE); /* of the whole budget */
    assert_non_null(strstr(job.err.msg, "--bytes-budget"));
    job_finish(&rig, &job);
    assert_int_equal(run_text(&rig, "HOOK some", NULL), BERTH_OK);
    rig_stop(&rig);
}

static void test_timeout(void **state)
{
    struct rig rig;
    char message[240];
    struct berth_media_stats stats;
    need_processes();
    rig_start(&rig, (struct berth_media_options){.timeout_ns = 300 * BERTH_NS_PER_MS});
    assert_int_equal(run_text(&rig, "HOOK hang", message), BERTH_MEDIA);
    assert_string_equal(message, "took longer than 0.3 s to decode");
    assert_int_equal(run_text(&rig, "HOOK sleep", message), BERTH_MEDIA);
    berth_media_stats(rig.media, &stats);
    assert_int_equal(stats.killed_timeout, 2);
    assert_int_equal(stats.crashed, 0);
    serves(&rig);
    rig_stop(&rig);
}

/* A process that is stopped or killed from outside, idle and at work. */
static void test_signals(void **state)
{
    struct rig rig;
    struct berth_err err = {0};
    struct berth_media_job job;
    pid_t pids[4];
    need_processes();
    rig_start(&rig, (struct berth_media_options){.timeout_ns = BERTH_NS_PER_S});
    serves(&rig);
    assert_int_equal(children(pids, 4), 1);
    kill(pids[0], SIGSTOP);
    assert_int_equal(run_text(&rig, "HOOK some", NULL), BERTH_MEDIA); /* timed out */
    serves(&rig);
    rig_stop(&rig);
    rig_start(&rig, (struct berth_media_options){.timeout_ns = 300 * BERTH_NS_PER_S});
    assert_int_equal(run_text(&rig, "HOOK some", NULL), BERTH_OK);
    assert_int_equal(children(pids, 4), 1);
    kill(pids[0], SIGKILL);
    /* An idle one that is gone costs no job; one that is killed in the very moment may. */
    enum berth_code code = run_text(&rig, "HOOK some", NULL);
    assert_true(code == BERTH_OK || code == BERTH_MEDIA);
    assert_int_equal(run_text(&rig, "HOOK some", NULL), BERTH_OK); /* one is up */
    job_init(&rig, &job, "HOOK hang", 9);
    assert_int_equal(berth_media_submit(rig.media, &job, &err), BERTH_OK);
    kill(busy_child(), SIGKILL);
    assert_ptr_equal(job_wait(&rig), &job);
    assert_int_equal(job.err.code, BERTH_MEDIA);
    assert_non_null(strstr(job.err.msg, "signal 9"));
    job_finish(&rig, &job);
    rig_stop(&rig);
}

static void test_cancel(void **state)
{
    struct rig rig;
    struct berth_err err = {0};
    struct berth_media_job jobs[4];
    atomic_bool cancelled[4] = {false, false, false, false};
    need_processes();
    rig_start(&rig, (struct berth_media_options){0});
    for (size_t i = 0; i < 4; i++) {
        job_init(&rig, &jobs[i], "HOOK hang", 9);
        jobs[i].cancelled = &cancelled[i];
        assert_int_equal(berth_media_submit(rig.media, &jobs[i], &err), BERTH_OK);
    }
    (void)busy_child();
    for (size_t i = 0; i < 4; i++) { /* the last first: waiting ones, then the running one */
        atomic_store(&cancelled[3 - i], true);
        struct berth_media_job *job = job_wait(&rig);
        assert_ptr_equal(job, &jobs[3 - i]);
        assert_int_equal(job->err.code, BERTH_CANCELLED);
        job_finish(&rig, job);
    }
    job_init(&rig, &jobs[0], "HOOK hang", 9);
    jobs[0].t_deadline_ns = berth_clock_now_ns() + 100 * BERTH_NS_PER_MS;
    assert_int_equal(job_run(&rig, &jobs[0]), BERTH_DEADLINE);
    job_finish(&rig, &jobs[0]);
    rig_stop(&rig);
}

static void test_busy(void **state)
{
    struct rig rig;
    struct berth_err err = {0};
    struct berth_media_job jobs[4];
    need_processes();
    rig_start(&rig, (struct berth_media_options){.queue_max = 2});
    for (size_t i = 0; i < 4; i++) {
        job_init(&rig, &jobs[i], "HOOK hang", 9);
        enum berth_code code = berth_media_submit(rig.media, &jobs[i], &err);
        assert_int_equal(code, i < 3 ? BERTH_OK : BERTH_BUSY);
    }
    assert_true(err.retry_after_ms > 0);
    berth_media_destroy(rig.media); /* the three come back */
    rig.media = NULL;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(job_wait(&rig)->err.code, BERTH_UNAVAILABLE);
    }
    for (size_t i = 0; i < 4; i++) {
        job_finish(&rig, &jobs[i]);
    }
    rig_stop(&rig);
}

/* A program that is no decoder: jobs are told instead of waiting. */
static void test_no_start(void **state)
{
    static const char *const programs[] = {"/bin/false", "/nonexistent/berth"};
    need_processes();
    for (size_t i = 0; i < BERTH_COUNT_OF(programs); i++) {
        struct rig rig;
        char message[240];
        rig_start(&rig, (struct berth_media_options){.program = programs[i]});
        assert_int_equal(run_text(&rig, "HOOK some", message), BERTH_UNAVAILABLE);
        assert_non_null(strstr(message, "do not start"));
        rig_stop(&rig);
    }
}

/* A server that is killed takes its decode processes with it, also one that is busy. */
static void test_orphans(void **state)
{
    need_processes();
    int ends[2];
    pid_t pids[4] = {0};
    assert_int_equal(pipe(ends), 0);
    pid_t server = fork();
    if (server == 0) {
        struct rig rig;
        struct berth_media_job job;
        struct berth_err err = {0};
        rig_start(&rig, (struct berth_media_options){0});
        (void)run_text(&rig, "HOOK some", NULL);
        job_init(&rig, &job, "HOOK hang", 9);
        (void)!berth_media_submit(rig.media, &job, &err);
        pids[0] = busy_child();
        (void)!write(ends[1], pids, sizeof(pids[0]));
        pause();
        _exit(0);
    }
    assert_int_equal(read(ends[0], pids, sizeof(pids[0])), sizeof(pids[0]));
    assert_int_equal(kill(server, SIGKILL), 0);
    assert_int_equal(waitpid(server, NULL, 0), server);
    char path[64], kind = 'R';
    snprintf(path, sizeof(path), "/proc/%d/stat", pids[0]);
    while (kind != 'Z' && kind != 'X') { /* or for ever */
        FILE *file = fopen(path, "r");
        if (file == NULL) {
            break;
        }
        if (fscanf(file, "%*d (%*[^)]) %c", &kind) != 1) {
            kind = 'X';
        }
        fclose(file);
        usleep(1000);
    }
    close(ends[0]);
    close(ends[1]);
}

/* An input inside a range that others share, and one in the middle of a private range. */
static void test_slices(void **state)
{
    struct rig rig;
    struct berth_media_job job;
    struct berth_err err = {0};
    struct berth_range whole;
    need_processes();
    rig_start(&rig, (struct berth_media_options){0});
    for (int private = 0; private < 2; private++) {
        assert_int_equal(private ? berth_slabs_take_private(rig.slabs, 100000, &whole, &err)
                                 : berth_slabs_take(rig.slabs, 100000, &whole, &err),
                         BERTH_OK);
        job_init(&rig, &job, NULL, 0);
        assert_true(berth_range_slice(&whole, 70001, 9, &job.in));
        memcpy(berth_slabs_pointer(rig.slabs, &job.in), "HOOK text", 9);
        assert_int_equal(job_run(&rig, &job), BERTH_MEDIA);
        assert_string_equal(job.err.msg, "a?b??");
        berth_slabs_give(rig.slabs, &whole);
    }
    rig_stop(&rig);
}

static void test_many(void **state)
{
    struct rig rig;
    size_t length = 0;
    uint8_t *wav = make_wav(8000, 8000, &length);
    rig_start(&rig, (struct berth_media_options){.processes = 2});
    size_t fds = 0, rss = 0;
    for (int i = 0; i < 1000; i++) {
        struct berth_media_job job;
        bool is_hook = PROCESSES && i % 2 == 1;
        job_init(&rig, &job, is_hook ? "HOOK some" : (char *)wav, is_hook ? 9 : length);
        if (job_run(&rig, &job) != BERTH_OK) {
            fail_msg("job %d: %s", i, job.err.msg);
        }
        assert_int_equal(job.frame_count, is_hook ? 1 : 16000);
        job_finish(&rig, &job);
        if (i == 100) {
            fds = count_fds();
            rss = rss_bytes();
        }
    }
    uint64_t t_end_ns = berth_clock_now_ns() + 60 * BERTH_NS_PER_S;
    while ((count_fds() < fds - 2 || count_fds() > fds + 2) && berth_clock_now_ns() < t_end_ns) {
        usleep(1000); /* replaced processes are not up again yet */
    }
    assert_in_range(count_fds(), fds - 2, fds + 2);
    if (!TEST_SANITIZED) {
        assert_true(rss_bytes() < rss + (2 << 20));
    }
    rig_stop(&rig);
    free(wav);
}

static void test_in_process(void **state)
{
    struct rig rig;
    struct berth_media_job job;
    size_t length = 0;
    uint8_t *wav = make_wav(44100, 44100, &length);
    rig_start(&rig, (struct berth_media_options){.in_process = true, .processes = 2});
    job_init(&rig, &job, wav, length);
    assert_int_equal(job_run(&rig, &job), BERTH_OK);
    assert_int_equal(job.frame_count, 16000);
    job_finish(&rig, &job);
    assert_int_equal(run_text(&rig, "this is no audio at all", NULL), BERTH_MEDIA);
    rig_stop(&rig);
    free(wav);
}

/* Every allocation of a start fails once: an error, no leak, no process. */
static void test_torture(void **state)
{
    for (uint64_t at = 1;; at++) {
        struct berth_slabs_options slabs_options = {.bytes_budget = BUDGET};
        struct berth_err err = {0};
        struct berth_slabs *slabs = NULL;
        struct berth_media *media = NULL;
        assert_int_equal(berth_slabs_create(&slabs_options, &slabs, &err), BERTH_OK);
        struct berth_media_options options = {.processes = 1, .timeout_ns = BERTH_NS_PER_S,
                                              .memory_max = 64 << 20, .queue_max = 1,
                                              .slabs = slabs};
        berth_mem_fail_at(at, false);
        enum berth_code code = berth_media_create(&options, &media, &err);
        berth_mem_fail_at(0, false);
        berth_media_destroy(media);
        berth_slabs_destroy(slabs);
        if (code == BERTH_OK) {
            break;
        }
        assert_int_equal(code, BERTH_UNAVAILABLE);
        assert_true(at < 100);
    }
    assert_int_equal(berth_mem_bytes_live(), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "decode") == 0) {
        return decode_main(argc, argv);
    }
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_in_process), cmocka_unit_test(test_many),
        cmocka_unit_test(test_torture),
        cmocka_unit_test(test_hostile),    cmocka_unit_test(test_grow),
        cmocka_unit_test(test_much),       cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_signals),    cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_busy),       cmocka_unit_test(test_no_start),
        cmocka_unit_test(test_slices),     cmocka_unit_test(test_orphans),
    };
    return cmocka_run_group_tests_name("media", tests, NULL, NULL);
}
