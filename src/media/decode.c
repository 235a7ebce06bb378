/* decode.c - the decode process: takes one job at a time from its socket, until that closes.
 *
 * All that a decoder opens (tables, character sets) is opened before the sandbox; then the process
 * says READY. The input is mapped read-only, the output as the server sends it. Whatever goes wrong
 * in here is the server's to see: it watches the time and the socket.
 */
#include "media/decode.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/child.h"
#include "base/mem.h"
#include "media/media.h"
#include "media/protocol.h"
#include "media/sandbox.h"

/* A berth_pcm whose room comes from the server. */
struct served_pcm {
    struct berth_pcm pcm;
    uint64_t job;
    void *mapped; /* the output; NULL before the first room */
    size_t mapped_bytes;
};

static bool read_count(const char *text, uint64_t *out);
static bool is_socket(int fd);
static void serve(const struct berth_decoder_ops *const *decoders);
static void work(const struct berth_decoder_ops *const *decoders,
                 const struct berth_say_message *job, int in_fd);
static enum berth_code decode(const struct berth_decoder_ops *const *decoders,
                              const struct berth_say_message *job, int in_fd,
                              struct served_pcm *served, struct berth_err *err);
static enum berth_code say_found(struct berth_pcm *pcm, const struct berth_pcm_source *source,
                                 struct berth_err *err);
static enum berth_code ask_room(struct berth_pcm *pcm, uint64_t capacity, struct berth_err *err);
static void unmap_output(struct served_pcm *served);

static const struct berth_pcm_ops served_ops = {.found = say_found, .room = ask_room};

int berth_media_decode_main(int argc, char **argv)
{
    return berth_decode_main(argc, argv, berth_decoders);
}

int berth_decode_main(int argc, char **argv, const struct berth_decoder_ops *const *decoders)
{
    struct berth_sandbox_limits limits = {.socket_fd = BERTH_CHILD_SOCKET};
    struct berth_say_message message = {.magic = BERTH_PROTOCOL_MAGIC, .say = BERTH_SAY_READY};
    struct berth_err err = {0};
    if (argc != 4 || !read_count(argv[2], &limits.memory_max) ||
        !read_count(argv[3], &limits.cpu_s_max) || !is_socket(BERTH_CHILD_SOCKET)) {
        fprintf(stderr, "berth decode: started by `berth serve`, not by hand\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* its server's end is its own, even in the middle of work */
    prctl(PR_SET_NAME, "berth-decode");
    tzset(); /* reads a file, once */
    for (size_t i = 0; decoders[i] != NULL; i++) {
        if (decoders[i]->prepare != NULL) {
            decoders[i]->prepare(limits.memory_max);
        }
    }
    if (berth_sandbox_enter(&limits, &err) != BERTH_OK) {
        message.say = BERTH_SAY_DONE;
        message.code = (uint32_t)err.code;
        berth_say_text(&message, err.msg);
        berth_say_send(BERTH_CHILD_SOCKET, &message, -1, true);
        return 1;
    }
    if (berth_say_send(BERTH_CHILD_SOCKET, &message, -1, true)) {
        serve(decoders);
    }
    return 0;
}

static bool read_count(const char *text, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *out > 0;
}

static bool is_socket(int fd)
{
    int kind = 0;
    socklen_t length = sizeof(kind);
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length) == 0 && kind == SOCK_SEQPACKET;
}

static void serve(const struct berth_decoder_ops *const *decoders)
{
    struct berth_say_message message;
    int fd = -1;
    while (berth_say_receive(BERTH_CHILD_SOCKET, &message, &fd)) {
        if (message.say == BERTH_SAY_JOB && fd >= 0) {
            work(decoders, &message, fd);
        } else if (fd >= 0) {
            close(fd);
        }
    }
}

static void work(const struct berth_decoder_ops *const *decoders,
                 const struct berth_say_message *job, int in_fd)
{
    struct served_pcm served = {.job = job->job};
    struct berth_err err = {0};
    berth_pcm_init(&served.pcm, &served_ops, job->rate, job->seconds_max);
    enum berth_code code = decode(decoders, job, in_fd, &served, &err);
    unmap_output(&served);
    struct berth_say_message done = {
        .magic = BERTH_PROTOCOL_MAGIC,
        .say = BERTH_SAY_DONE,
        .job = job->job,
        .frames = code == BERTH_OK ? served.pcm.count : 0,
        .code = (uint32_t)code,
    };
    berth_say_text(&done, code == BERTH_OK ? "" : err.msg);
    malloc_trim(0); /* before the answer: an idle process is a small one */
    berth_say_send(BERTH_CHILD_SOCKET, &done, -1, true);
}

static enum berth_code decode(const struct berth_decoder_ops *const *decoders,
                              const struct berth_say_message *job, int in_fd,
                              struct served_pcm *served, struct berth_err *err)
{
    uint64_t skip = job->offset % 65536; /* mappings begin at a page */
    size_t bytes = (size_t)(job->length + skip);
    uint8_t *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, in_fd, (off_t)(job->offset - skip));
    close(in_fd);
    if (mapped == MAP_FAILED) {
        return berth_fail(err, BERTH_INTERNAL, "cannot map the input: %s", strerror(errno));
    }
    struct berth_media_input input = {.bytes = mapped + skip, .length = job->length};
    enum berth_code code = berth_decoder_run(decoders, &input, &served->pcm, err);
    munmap(mapped, bytes);
    return code;
}

static enum berth_code say_found(struct berth_pcm *pcm, const struct berth_pcm_source *source,
                                 struct berth_err *err)
{
    struct served_pcm *served = BERTH_CONTAINER_OF(pcm, struct served_pcm, pcm);
    struct berth_say_message message = {
        .magic = BERTH_PROTOCOL_MAGIC,
        .say = BERTH_SAY_FOUND,
        .job = served->job,
        .frames = pcm->frames_expected,
        .rate = source->rate,
        .channel_count = source->channel_count,
    };
    berth_say_text(&message, source->format);
    if (!berth_say_send(BERTH_CHILD_SOCKET, &message, -1, true)) {
        return berth_fail(err, BERTH_INTERNAL, "the server is gone");
    }
    return BERTH_OK;
}

static enum berth_code ask_room(struct berth_pcm *pcm, uint64_t capacity, struct berth_err *err)
{
    struct served_pcm *served = BERTH_CONTAINER_OF(pcm, struct served_pcm, pcm);
    struct berth_say_message message = {
        .magic = BERTH_PROTOCOL_MAGIC,
        .say = BERTH_SAY_ROOM,
        .job = served->job,
        .frames = capacity,
    };
    int fd = -1;
    if (!berth_say_send(BERTH_CHILD_SOCKET, &message, -1, true) ||
        !berth_say_receive(BERTH_CHILD_SOCKET, &message, &fd)) {
        return berth_fail(err, BERTH_INTERNAL, "the server is gone");
    }
    if (message.say != BERTH_SAY_OUT || fd < 0) {
        if (fd >= 0) {
            close(fd);
        }
        return berth_fail(err, BERTH_UNAVAILABLE, "no room for the decoded audio");
    }
    unmap_output(served);
    size_t bytes = (size_t)message.frames * sizeof(float);
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) {
        return berth_fail(err, BERTH_INTERNAL, "cannot map the output: %s", strerror(errno));
    }
    served->mapped = mapped;
    served->mapped_bytes = bytes;
    pcm->frames = mapped;
    pcm->capacity = message.frames;
    return BERTH_OK;
}

static void unmap_output(struct served_pcm *served)
{
    if (served->mapped != NULL) {
        munmap(served->mapped, served->mapped_bytes);
        served->mapped = NULL;
    }
}
