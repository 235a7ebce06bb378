/* conn.h - one connection and the exchange it carries: inside of net/.
 *
 * In:      events from loop.c, answers from the handler.   Out: calls of the handler.
 * Owns:    its descriptor, its exchange, and the ranges of a body until they are taken.
 * Threads: its loop's thread only.
 * Rules:   README.md, N1 to N12.
 *
 * States: HANDSHAKE (TLS) -> HEAD (idle, or a head is coming) -> BODY <-> PAUSED (no room in the
 * budget) -> HANDLING (the handler has it) -> WRITING -> HEAD again, or DRAINING (our side is shut;
 * what the client still sends is dropped, so that it lives to read the answer) -> CLOSED.
 *
 * A second protocol joins at two places: berth_transport_ops below HEAD (as TLS does), and beside
 * step_head in conn.c, where the first bytes or ALPN say what is spoken; its streams make exchanges
 * as HTTP/1.1 does. WebSocket takes a connection over after an answer of 101.
 */
#ifndef BERTH_CONN_H
#define BERTH_CONN_H

#include <netinet/in.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "net/http1.h"
#include "net/inflate.h"
#include "net/loop_state.h"

struct berth_conn;

/* How bytes reach the client. Plain sockets, TLS, and memory in tests. */
struct berth_transport_ops {
    /* > 0: bytes; 0: end; -EAGAIN: later; other negative: broken. */
    ssize_t (*read)(struct berth_conn *conn, void *bytes, size_t length);
    ssize_t (*write)(struct berth_conn *conn, const struct iovec *pieces, int count);
    ssize_t (*skip)(struct berth_conn *conn, size_t length); /* as read, drops the bytes */
    /* Optional. 0: done; else as read. */
    int (*handshake)(struct berth_conn *conn);
    void (*shut)(struct berth_conn *conn);  /* no more is written */
    void (*close)(struct berth_conn *conn); /* frees all that is the transport's */
    bool short_read_drains;                 /* fewer bytes than asked for: there are no more now */
};

extern const struct berth_transport_ops berth_transport_plain;
extern const struct berth_transport_ops berth_transport_tls;

/* tls.c: the key and certificates of the server. */
enum berth_code berth_tls_create(const char *cert_path, const char *key_path,
                                 struct berth_tls **out, struct berth_err *err) BERTH_MUST_USE;
void berth_tls_destroy(struct berth_tls *tls); /* NULL is fine */
/* Puts TLS between the connection and its socket. */
enum berth_code berth_tls_attach(struct berth_tls *tls, struct berth_conn *conn) BERTH_MUST_USE;

enum berth_conn_state {
    BERTH_CONN_HANDSHAKE,
    BERTH_CONN_HEAD,
    BERTH_CONN_BODY,
    BERTH_CONN_PAUSED,
    BERTH_CONN_HANDLING,
    BERTH_CONN_WRITING,
    BERTH_CONN_DRAINING,
    BERTH_CONN_CLOSED,
};

struct berth_conn {
    struct berth_post post;    /* on which it comes from the acceptor */
    struct berth_link link;    /* loop->conns */
    struct berth_link ready;   /* loop->ready */
    struct berth_link waiting; /* loop->paused */
    struct berth_timer timer;
    struct berth_loop *loop;
    const struct berth_transport_ops *ops;
    void *transport; /* its own: SSL */
    int fd;
    enum berth_conn_state state;
    bool readable; /* there may be bytes to read */
    bool writable;
    bool running;       /* inside its own run: marking it ready is not needed */
    bool gone;          /* the client's side is shut, or broken */
    bool broken;        /* no byte will get through */
    bool linger;        /* the client may still be sending: drain before closing */
    uint8_t interim;    /* bytes of 100-continue still to be written */
    uint64_t t_mark_ns; /* when this state, or its last progress, was */
    uint64_t drained;
    struct berth_block *in;       /* NULL while idle */
    struct berth_http1_scan scan; /* of in->bytes + in->at */
    struct berth_exchange *exchange;
    struct sockaddr_in6 peer; /* or a sockaddr_in */
};

#define BERTH_ANSWER_RANGES_INLINE 8
#define BERTH_CONTINUE_LENGTH 25 /* of "HTTP/1.1 100 Continue" and its empty line */

struct berth_exchange {
    struct berth_exchange *next; /* free list */
    struct berth_conn *conn;
    struct berth_block *block; /* holds the head's strings */
    void *user;
    struct berth_arena arena;
    uint64_t t_head_ns;
    bool seen; /* the handler's on_head was called: on_close is owed */
    char peer[64];

    /* The body. */
    bool has_body; /* the client sends one */
    bool accepted;
    bool body_begun;
    bool complete; /* all of it is read; without a body from the start */
    bool private_slab;
    bool taken;
    bool continued; /* 100-continue is owed no more */
    uint64_t bytes_max;
    uint64_t wanted;    /* capacity asked for; PAUSED waits for it */
    uint64_t wire_left; /* of Content-Length */
    uint64_t wire_read;
    uint64_t t_body_ns;       /* rate is counted from here */
    uint64_t t_paused_ns;     /* since when it waits */
    uint64_t paused_ns;       /* waited so far, all pauses together */
    struct berth_range range; /* as taken; its length is the capacity */
    struct berth_range body;  /* as shown; its length is what is there */
    struct berth_http1_chunks chunks;
    struct berth_inflate *inflate;

    /* The answer. */
    bool answered;
    bool head_only;
    bool keep_alive;
    bool streaming; /* begun, its end is not yet there */
    bool is_stream;
    bool stream_chunked;
    bool failed; /* no memory for the answer: close */
    int status;
    struct berth_buf out; /* head; for streams everything. Kept while pooled */
    struct berth_buf text;
    struct berth_range ranges_inline[BERTH_ANSWER_RANGES_INLINE];
    struct berth_range *ranges;
    size_t range_count;
    size_t piece;      /* being written: 0 out, 1 text, 2.. ranges */
    size_t piece_done; /* bytes of it */
    uint64_t written;
    uint64_t t_write_ns; /* writing began */
    void (*release)(void *subject);
    void *release_subject;

    struct berth_http1_head head;
};

/* Makes a connection over ops (fd may be -1) and joins it to the loop; not yet run. NULL: no
 * memory. */
struct berth_conn *berth_conn_create(struct berth_loop *loop, int fd,
                                     const struct berth_transport_ops *ops) BERTH_MUST_USE;
/* For the acceptor: made on one thread, joined on its loop's by conn->post. */
struct berth_conn *berth_conn_prepare(struct berth_loop *loop, int fd) BERTH_MUST_USE;
void berth_conn_discard(struct berth_conn *conn); /* prepared, never joined */
/* events as of epoll. Runs the connection; it may be freed in here. */
void berth_conn_event(struct berth_conn *conn, uint32_t events);
void berth_conn_run(struct berth_conn *conn);
void berth_conn_timeout(struct berth_timer *timer);
/* Ends it at once; on_close(answered = false) if that is owed. Frees it. */
void berth_conn_abort(struct berth_conn *conn);
/* Has it to be run in this turn? */
void berth_conn_wake(struct berth_conn *conn);
bool berth_conn_idle(const struct berth_conn *conn); /* between requests, nothing read */
/* Turns to answering with an error that net/ found; makes an exchange if there is none. */
void berth_conn_fail(struct berth_conn *conn, int status, const struct berth_err *err);

/* http_body.c: between on_head and on_end. */
enum berth_step { BERTH_STEP_AGAIN, BERTH_STEP_WAIT, BERTH_STEP_LATER, BERTH_STEP_END };
enum berth_step berth_body_begin(struct berth_conn *conn);
enum berth_step berth_body_step(struct berth_conn *conn);
/* One more try to get room. false: still none. */
bool berth_body_retry(struct berth_conn *conn);
void berth_body_finish(struct berth_exchange *exchange);
/* Reads into conn->in at its end. As ops->read; clears readable as it learns. */
ssize_t berth_conn_fill(struct berth_conn *conn, struct berth_block *block);
ssize_t berth_conn_read(struct berth_conn *conn, void *bytes, size_t length);

/* http_answer.c: the answer's bytes. */
struct berth_exchange *berth_exchange_create(struct berth_conn *conn);
void berth_exchange_release(struct berth_exchange *exchange); /* the handler's release, once */
void berth_exchange_destroy(struct berth_exchange *exchange, bool answered);
/* Writes on. AGAIN: all there is was written. WAIT: the client must read. END: broken. */
enum berth_step berth_answer_write(struct berth_conn *conn);
void berth_answer_error(struct berth_exchange *exchange, int status, const struct berth_err *err);

#endif
