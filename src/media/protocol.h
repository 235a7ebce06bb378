/* protocol.h - what the server and a decode process say to each other.
 *
 * One SEQPACKET socket for each process, messages of one size, descriptors beside them. The order
 * of one job:
 *     server  JOB (the input's descriptor)
 *     process FOUND (what the header says), at most once
 *     process ROOM (frames wanted)      server OUT (the output's descriptor) or STOP, any times
 *     process DONE
 * Before its first job a process says READY, or DONE with what keeps it from working.
 *
 * The server believes nothing: berth_talk_accept judges each message by where the talk stands.
 * Both ends are the same executable, so a message is the struct's bytes.
 */
#ifndef BERTH_PROTOCOL_H
#define BERTH_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define BERTH_PROTOCOL_MAGIC 0xBE47D001u

enum berth_say {
    BERTH_SAY_READY = 1,
    BERTH_SAY_FOUND,
    BERTH_SAY_ROOM,
    BERTH_SAY_DONE,
    BERTH_SAY_JOB,
    BERTH_SAY_OUT,
    BERTH_SAY_STOP,
};

struct berth_say_message {
    uint32_t magic;
    uint32_t say;       /* enum berth_say */
    uint64_t job;       /* number of the job; 0 before the first */
    uint64_t offset;    /* JOB: of the input in its descriptor */
    uint64_t length;    /* JOB: bytes of the input */
    uint64_t frames;    /* FOUND: expected, or UINT64_MAX; ROOM: wanted; OUT: given; DONE */
    double seconds_max; /* JOB */
    uint32_t rate;      /* JOB: wanted; FOUND: the file's */
    uint32_t channel_count; /* FOUND */
    uint32_t code;      /* DONE: enum berth_code */
    char text[196];     /* FOUND: format; DONE: message; always ends with NUL */
};

enum berth_talk_state { BERTH_TALK_STARTING, BERTH_TALK_IDLE, BERTH_TALK_WORKING };

/* The server's side of a talk. */
struct berth_talk {
    enum berth_talk_state state;
    bool has_found;
    uint64_t job;
    uint64_t capacity;   /* frames there is room for now */
    uint64_t frames_max; /* no room is larger */
};

/* Starts a job: the number and limit by which its messages are judged. */
void berth_talk_begin(struct berth_talk *talk, uint64_t job, uint64_t frames_max);
/* Judges bytes received from a process; on OK *out is the message, its text printable ASCII, and
 * the state has moved on. INVALID: the process is not to be trusted any more. */
enum berth_code berth_talk_accept(struct berth_talk *talk, const void *bytes, size_t length,
                                  struct berth_say_message *out,
                                  struct berth_err *err) BERTH_MUST_USE;
/* What a process may answer a job with; anything else it says becomes MEDIA. */
enum berth_code berth_say_code(uint32_t code);
void berth_say_text(struct berth_say_message *message, const char *text);

/* Sends a message, with a descriptor unless fd is below 0. false: errno. Never blocks when
 * `waits` is false. */
bool berth_say_send(int socket_fd, const struct berth_say_message *message, int fd, bool waits);
/* Receives one message with at most one descriptor. false at the end or at an error. Process only;
 * the server takes no descriptors. */
bool berth_say_receive(int socket_fd, struct berth_say_message *message, int *fd_out);

#endif
