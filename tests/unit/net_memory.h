/* net_memory.h - a client that is a piece of memory: the transport under a connection that a fuzzer
 * or a probe drives by hand, without sockets or threads. One connection at a time. */
#ifndef BERTH_NET_MEMORY_H
#define BERTH_NET_MEMORY_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "net/conn.h"
#include "net/loop.h"

#define OUT_MAX (1 << 20)

/* The other end. */
struct memory {
    const uint8_t *in;
    size_t in_length; /* what has arrived */
    size_t in_at;
    bool ended;
    bool open;
    size_t write_step; /* bytes taken at a time; 0: all */
    char out[OUT_MAX];
    size_t out_length;
};

static struct memory memory;

static inline void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static inline ssize_t memory_take(size_t length, void *bytes)
{
    size_t left = memory.in_length - memory.in_at;
    size_t got = left < length ? left : length;
    if (got == 0) {
        return memory.ended ? 0 : -EAGAIN;
    }
    if (bytes != NULL) {
        memcpy(bytes, memory.in + memory.in_at, got);
    }
    memory.in_at += got;
    return (ssize_t)got;
}

static inline ssize_t memory_read(struct berth_conn *conn, void *bytes, size_t length)
{
    (void)conn;
    check(length > 0, "no read into nothing");
    return memory_take(length, bytes);
}

static inline ssize_t memory_skip(struct berth_conn *conn, size_t length)
{
    (void)conn;
    return memory_take(length, NULL);
}

static inline ssize_t memory_write(struct berth_conn *conn, const struct iovec *pieces, int count)
{
    size_t put = 0;
    (void)conn;
    for (int i = 0; i < count; i++) {
        size_t piece = pieces[i].iov_len;
        if (memory.write_step != 0 && put + piece > memory.write_step) {
            piece = memory.write_step - put;
        }
        check(memory.out_length + piece <= OUT_MAX, "answers are of bounded length");
        memcpy(memory.out + memory.out_length, pieces[i].iov_base, piece);
        memory.out_length += piece;
        put += piece;
    }
    return (ssize_t)put;
}

static inline void memory_shut(struct berth_conn *conn)
{
    (void)conn;
}

static inline void memory_close(struct berth_conn *conn)
{
    (void)conn;
    memory.open = false;
}

static const struct berth_transport_ops memory_ops = {
    .read = memory_read,
    .write = memory_write,
    .skip = memory_skip,
    .shut = memory_shut,
    .close = memory_close,
    .short_read_drains = true,
};

/* All of bytes, in pieces that seed chooses (0: whole), then the client's end. */
static inline void memory_run(struct berth_loop *loop, const uint8_t *bytes, size_t length,
                              uint8_t seed)
{
    uint32_t random = seed;
    memset(&memory, 0, offsetof(struct memory, out));
    memory.out_length = 0;
    memory.in = bytes;
    memory.open = true;
    memory.write_step = seed % 3 == 1 ? 1 + seed / 3u : 0;
    struct berth_conn *conn = berth_conn_create(loop, -1, &memory_ops);
    check(conn != NULL, "a connection");
    while (memory.open && !memory.ended) {
        random = random * 1664525 + 1013904223;
        size_t step = seed == 0 ? length : 1 + (random >> 24) % (seed < 128 ? 8 : 300);
        uint32_t events = EPOLLIN | EPOLLOUT;
        if (memory.in_length == length) {
            memory.ended = true;
            events = EPOLLIN | EPOLLRDHUP;
        } else {
            memory.in_length = length - memory.in_length < step ? length : memory.in_length + step;
        }
        berth_conn_event(conn, events);
        while (berth_loop_busy(loop)) {
            berth_loop_settle(loop);
        }
    }
    check(!memory.open, "a connection ends when its client has gone");
}

#endif
