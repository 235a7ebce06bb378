/* http.h - HTTP for the api/: exchanges in, answers out. Knows sockets, budgets, deadlines and
 * hang-ups; knows no route.
 *
 * In:      requests on listening sockets.   Out: heads and bodies to a handler, its answers back.
 * Owns:    connections, their buffers, the threads that serve them.
 * Threads: each connection lives on one thread; all handler calls for it, and all berth_http_*
 *          calls about it, are made there. Other threads reach it by posts on berth_http_queue.
 * Rules:   README.md here (N1 to N12).
 *
 * The life of an exchange: on_head, then (if a body was accepted) on_body as it grows and on_end,
 * then the handler answers, at once or later; on_close last, whatever happened. When the client is
 * gone before the answer was sent, on_close comes within 100 ms of it.
 */
#ifndef BERTH_HTTP_H
#define BERTH_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/slab.h"

struct berth_http;
struct berth_exchange;

struct berth_http_handler {
    void *subject; /* given to every call */
    /* The head is complete. Answer at once (berth_http_answer: the body is not read and the
     * connection closed after it if there is one), or call berth_http_accept_body, or, without a
     * body, do nothing and answer later. */
    void (*on_head)(void *subject, struct berth_exchange *exchange);
    /* More of the body is there: bytes 0..length of berth_http_body. May answer (refuse) early. */
    void (*on_body)(void *subject, struct berth_exchange *exchange, uint64_t length);
    /* The accepted body is complete: all of it, if there is any, is in berth_http_body. Not called
     * for exchanges whose body was not accepted. */
    void (*on_end)(void *subject, struct berth_exchange *exchange);
    /* The exchange ends; user state must be let go. answered: the whole answer was handed to the
     * kernel; otherwise the client is gone or was too slow. */
    void (*on_close)(void *subject, struct berth_exchange *exchange, bool answered);
    /* The body of an error net/ itself found (400, 408, 413, 431, 503...): writes JSON or text for
     * this path, and returns its content type. */
    const char *(*error_body)(void *subject, struct berth_exchange *exchange,
                              const struct berth_err *err, struct berth_buf *out);
};

struct berth_http_options {
    const char *const *listen; /* "127.0.0.1:8000", "[::1]:0" */
    size_t listen_count;
    const char *tls_cert; /* NULL or "": plain */
    const char *tls_key;
    uint32_t threads;
    uint64_t connections_max, body_bytes_max, head_bytes_max, body_rate_min;
    uint64_t head_timeout_ns, body_timeout_ns, write_timeout_ns, idle_timeout_ns, admit_timeout_ns;
    struct berth_slabs *slabs; /* bodies are taken here: the byte budget is theirs */
    struct berth_http_handler handler;
};

struct berth_http_stats {
    uint64_t connections_open, connections_total, connections_refused;
    uint64_t requests, bytes_in, bytes_out;
    uint64_t hangups;         /* clients gone before their answer */
    uint64_t timeouts;        /* heads, bodies, writes too slow */
    uint64_t paused;          /* connections not being read for want of budget, now */
    uint64_t continues;       /* 100-continue sent */
    uint64_t parse_errors;
};

/* Binds and starts the threads. */
enum berth_code berth_http_start(const struct berth_http_options *options, struct berth_http **out,
                                 struct berth_err *err) BERTH_MUST_USE;
/* Closes the listening sockets; keep-alive connections end after their present answer, idle ones at
 * once. Any thread. */
void berth_http_stop_accepting(struct berth_http *http);
/* Open exchanges (a request was begun and is not answered yet). Any thread. After stop_accepting 0
 * means that no other can begin either, unless half of its head is here. */
uint64_t berth_http_exchanges(struct berth_http *http);
/* Closes every connection and ends the threads. The queues still take posts, which destroy
 * delivers: whoever may have something to send is ended in between. NULL is fine. */
void berth_http_stop(struct berth_http *http);
/* Stops it if that was not done. Posts that are under way are delivered, the last ones on the
 * caller's thread; nobody may post any more. NULL is fine. */
void berth_http_destroy(struct berth_http *http);
uint16_t berth_http_port(struct berth_http *http, size_t listen_index); /* the one bound */
void berth_http_stats(struct berth_http *http, struct berth_http_stats *out);

/* The request. All strings are lent until on_close; names are compared without case. */
const char *berth_http_method(const struct berth_exchange *exchange);
const char *berth_http_path(const struct berth_exchange *exchange);  /* decoded, no query; see N4 */
const char *berth_http_query(const struct berth_exchange *exchange); /* raw, "" if none */
/* The first of that name, or NULL. */
const char *berth_http_header(const struct berth_exchange *exchange, const char *name);
int64_t berth_http_content_length(const struct berth_exchange *exchange); /* -1: chunked; 0: none */
const char *berth_http_peer(const struct berth_exchange *exchange); /* "127.0.0.1:40000" */
void berth_http_set_user(struct berth_exchange *exchange, void *user);
void *berth_http_user(const struct berth_exchange *exchange);
/* Posts on this queue are delivered on the exchange's thread. Lives as long as the server. */
struct berth_queue *berth_http_queue(struct berth_exchange *exchange);
uint64_t berth_http_head_ns(const struct berth_exchange *exchange); /* when the head was complete */

/* From on_head. Takes the body: it is read into one slab range, `private_slab` as in slab.h; sends
 * 100-continue if asked for, once there is room. Waits (reading stops) while the budget is full, at
 * most admit_timeout, then 503 with Retry-After. Content-Encoding gzip and deflate are inflated as
 * the body comes, other codings get 415/501 from the handler's error_body. */
void berth_http_accept_body(struct berth_exchange *exchange, uint64_t bytes_max, bool private_slab);
/* The body so far (from on_body, on_end); lends until on_close or take. */
const struct berth_range *berth_http_body(const struct berth_exchange *exchange);
/* After on_end: hands the body's range over. */
struct berth_range berth_http_take_body(struct berth_exchange *exchange);

struct berth_http_header {
    const char *name;
    const char *value;
};

/* One piece of an answer's body. A range is lent until release(subject), which is called on the
 * exchange's thread when its bytes are written or the exchange ends. */
struct berth_http_answer {
    int status;
    const char *reason;       /* NULL: the usual one */
    const char *content_type; /* NULL: no such header */
    const struct berth_http_header *headers;
    size_t header_count;
    struct berth_buf *text;   /* taken (emptied) if not NULL: goes first */
    struct berth_range *ranges; /* copied; their bytes follow text */
    size_t range_count;
    void (*release)(void *subject); /* NULL: nobody to tell */
    void *subject;
    bool close;               /* end the connection after it */
};

/* The whole answer; once an exchange, later ones are dropped and released. Any time between
 * on_head and on_close. A HEAD request gets the head only. gzip is not applied. */
void berth_http_answer(struct berth_exchange *exchange, const struct berth_http_answer *answer);
/* A streamed answer (chunked): begin once, then chunks, then end. Takes chunk's bytes. */
void berth_http_stream_begin(struct berth_exchange *exchange, const struct berth_http_answer *head);
void berth_http_stream_chunk(struct berth_exchange *exchange, struct berth_buf *chunk);
void berth_http_stream_end(struct berth_exchange *exchange);
bool berth_http_answered(const struct berth_exchange *exchange); /* an answer was begun */
int berth_http_status(const struct berth_exchange *exchange);    /* of that answer; 0: none */
uint64_t berth_http_written(const struct berth_exchange *exchange); /* bytes, its head among them */

#endif
