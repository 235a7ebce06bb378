/* worker_protocol.h - what the server and a worker process say to each other.
 *
 * One SEQPACKET socket for each process. A message is a head, fields one after the other, and
 * descriptors beside them; at most 64 KiB, so nothing big goes through the socket: a tensor of more
 * than 8 KiB is named by a descriptor of its slab, an offset and a length, and the receiver reads
 * it from there into memory of its own. Then nothing the sender does later can change it.
 *
 *     server   HELLO                                       process  READY
 *     server   LOAD, UNLOAD                                process  ALIVEs, then DONE
 *     server   RUN or STEP, then its ROWs                  process  ANSWERs, EVENTs, then DONE
 *     server   CANCEL (a row, a LOAD), RELEASE (tensors of a message are read), any time
 *                                                          process  HELD (of a load), any time
 *
 * Neither end believes the other: a reader that finds a field out of bounds turns `bad` and stays
 * so, and its holder gives the other end up. Both ends are the same machine and version (HELLO and
 * READY say so), so numbers are sent as they lie in memory.
 *
 * Threads: a writer, a reader and a message belong to one thread.
 */
#ifndef BERTH_WORKER_PROTOCOL_H
#define BERTH_WORKER_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/slab.h"
#include "request/request.h"

#define BERTH_WIRE_BYTES_MAX 65536
#define BERTH_WIRE_FDS_MAX 64      /* the kernel takes 253 */
#define BERTH_WIRE_INLINE_MAX 8192 /* bytes of a tensor that travels in its message */
#define BERTH_WIRE_TENSORS_MAX 1024
#define BERTH_WIRE_ROWS_MAX 4096   /* of one message; also slots of an instance */
#define BERTH_WIRE_INSTANCES_MAX 64
#define BERTH_WIRE_DEVICE_MAX 64

enum berth_wire_kind {
    BERTH_WIRE_HELLO = 1, /* version, device, sizes                         server -> process */
    BERTH_WIRE_LOAD,
    BERTH_WIRE_UNLOAD,
    BERTH_WIRE_RUN,
    BERTH_WIRE_STEP,
    BERTH_WIRE_ROW,
    BERTH_WIRE_CANCEL,
    BERTH_WIRE_RELEASE,
    BERTH_WIRE_READY, /* version                                            process -> server */
    BERTH_WIRE_ANSWER,
    BERTH_WIRE_EVENT,
    BERTH_WIRE_DONE,
    BERTH_WIRE_ALIVE, /* a load or unload goes on; no fields */
    BERTH_WIRE_HELD,  /* a loaded model has grown while nothing of it ran: bytes */
    BERTH_WIRE_KIND_END
};

struct berth_wire_writer {
    size_t length;
    bool full; /* something did not fit; the message must not be sent */
    int fds[BERTH_WIRE_FDS_MAX]; /* borrowed until it is sent */
    size_t fd_count;
    unsigned char bytes[BERTH_WIRE_BYTES_MAX];
};

/* `id` names the message that is begun, or that the answer belongs to; for CANCEL the token of the
 * row or LOAD, for HELD the load's id. */
void berth_wire_begin(struct berth_wire_writer *writer, enum berth_wire_kind kind, uint64_t id);
void berth_wire_put_u32(struct berth_wire_writer *writer, uint32_t value);
void berth_wire_put_u64(struct berth_wire_writer *writer, uint64_t value);
void berth_wire_put_text(struct berth_wire_writer *writer, const char *text); /* NULL is fine */
void berth_wire_put_fd(struct berth_wire_writer *writer, int fd); /* its number, and it beside */
void berth_wire_put_err(struct berth_wire_writer *writer, const struct berth_err *err);
void berth_wire_put_tensors(struct berth_wire_writer *writer, struct berth_slabs *slabs,
                            const struct berth_tensor *tensors, size_t count);
/* What an engine may look at: inputs, parameters, wanted outputs, rows, id. */
void berth_wire_put_request(struct berth_wire_writer *writer, const struct berth_request *request);

enum berth_wire_result {
    BERTH_WIRE_OK,
    BERTH_WIRE_AGAIN, /* not now (where it may not wait); the socket says when */
    BERTH_WIRE_LATER, /* nor now, and the socket does not say when: the kernel is short of memory,
                         or too many descriptors are on their way */
    BERTH_WIRE_ENDED, /* the other end is gone */
    BERTH_WIRE_BAD    /* no message of this protocol */
};

enum berth_wire_result berth_wire_send(int fd, const struct berth_wire_writer *writer, bool waits)
    BERTH_MUST_USE;

struct berth_wire_message {
    enum berth_wire_kind kind;
    uint64_t id;
    const unsigned char *at; /* next field */
    const unsigned char *end;
    bool bad;
    int fds[BERTH_WIRE_FDS_MAX]; /* owned */
    size_t fd_count;
    unsigned char bytes[BERTH_WIRE_BYTES_MAX];
};

enum berth_wire_result berth_wire_receive(int fd, struct berth_wire_message *message, bool waits)
    BERTH_MUST_USE;
/* Judges the head of `length` bytes in message->bytes; receive does it. false: BAD. */
bool berth_wire_open(struct berth_wire_message *message, size_t length) BERTH_MUST_USE;
void berth_wire_close(struct berth_wire_message *message); /* closes its descriptors */

/* 0, NULL and the like once it is bad. Text lends until the next receive; it may be no UTF-8. */
uint32_t berth_wire_get_u32(struct berth_wire_message *message, uint32_t max);
uint64_t berth_wire_get_u64(struct berth_wire_message *message);
const char *berth_wire_get_text(struct berth_wire_message *message);
int berth_wire_get_fd(struct berth_wire_message *message); /* lends */
void berth_wire_get_err(struct berth_wire_message *message, struct berth_err *out);
/* All was read, and nothing was wrong. */
bool berth_wire_whole(const struct berth_wire_message *message);

/* A tensor as it came: its bytes are in the message, or in a descriptor. */
struct berth_wire_tensor {
    struct berth_tensor like; /* name lends; no range */
    size_t bytes;
    const unsigned char *inside; /* NULL: in fd, at offset */
    int fd;
    uint64_t offset;
};

/* How many tensors follow; then each. Type, rank, dims and bytes of one fit each other. */
size_t berth_wire_get_tensor_count(struct berth_wire_message *message);
void berth_wire_get_tensor(struct berth_wire_message *message, struct berth_wire_tensor *out);
/* Its bytes to `to`, which has room for them. UNAVAILABLE when the descriptor is no shared memory
 * or has not that many. */
enum berth_code berth_wire_read_tensor(const struct berth_wire_tensor *tensor, void *to,
                                       struct berth_err *err) BERTH_MUST_USE;
/* A request as it was put, with memory of its own. An error is this request's alone; whether the
 * message was good says berth_wire_whole. */
enum berth_code berth_wire_get_request(struct berth_wire_message *message,
                                       struct berth_slabs *slabs, struct berth_request **out,
                                       struct berth_err *err) BERTH_MUST_USE;

#endif
