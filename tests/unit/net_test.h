/* net_test.h - a server with a scripted handler, and a client of few words, for the tests of net/.
 *
 * The path says what the handler does: see script_head. Everything it is told is counted, so that a
 * test can ask whether each exchange was closed once and each range given back.
 */
#ifndef BERTH_NET_TEST_H
#define BERTH_NET_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/conn.h"
#include "net/http.h"

struct script {
    struct berth_slabs *slabs;
    struct berth_http *http;
    atomic_int heads, bodies, ends, closes_answered, closes_gone, releases, errors;
    atomic_int jobs; /* threads that will post yet */
    atomic_bool go;  /* what /when-told waits for */
    atomic_uint_fast64_t t_closed_ns; /* of the last on_close */
    atomic_uint_fast64_t body_max;    /* longest length reported */
};

struct job { /* an answer that travels by a post */
    struct berth_post post;
    struct berth_exchange *exchange;
    struct script *script;
    struct berth_range range;
    struct berth_queue *queue;
    bool waits; /* to be told */
    bool closed;
    bool detached; /* another thread has it */
};

static inline void script_release(void *subject)
{
    struct job *job = subject;
    berth_slabs_give(job->script->slabs, &job->range);
    atomic_fetch_add(&job->script->releases, 1);
    berth_free(job);
}

static inline void script_text(struct berth_exchange *exchange, int status, const char *text)
{
    struct berth_buf buf = {0};
    struct berth_http_answer answer = {
        .status = status, .content_type = "text/plain", .text = &buf};
    berth_buf_puts(&buf, text);
    berth_http_answer(exchange, &answer);
}

static inline void job_deliver(struct berth_post *post)
{
    struct job *job = BERTH_CONTAINER_OF(post, struct job, post);
    if (!job->closed) {
        berth_http_set_user(job->exchange, NULL);
        script_text(job->exchange, 200, "late");
    }
    berth_free(job);
}

static inline void *job_thread(void *subject)
{
    struct job *job = subject;
    struct timespec delay = {.tv_nsec = 30 * 1000000};
    struct script *script = job->script;
    do {
        nanosleep(&delay, NULL);
    } while (job->waits && !atomic_load(&script->go));
    berth_queue_post(job->queue, &job->post.link);
    atomic_fetch_sub(&script->jobs, 1);
    return NULL;
}

static inline void script_later(struct script *script, struct berth_exchange *exchange, bool waits)
{
    struct job *job = berth_alloc(sizeof(*job));
    pthread_t thread;
    if (job == NULL) {
        script_text(exchange, 503, "no memory");
        return;
    }
    *job = (struct job){.exchange = exchange,
                        .script = script,
                        .waits = waits,
                        .detached = true,
                        .queue = berth_http_queue(exchange),
                        .post.deliver = job_deliver};
    berth_http_set_user(exchange, job);
    atomic_fetch_add(&script->jobs, 1);
    if (pthread_create(&thread, NULL, job_thread, job) != 0) {
        abort();
    }
    pthread_detach(thread);
}

static inline void script_stream(struct berth_exchange *exchange, bool end)
{
    struct berth_http_answer head = {.status = 200, .content_type = "text/event-stream"};
    berth_http_stream_begin(exchange, &head);
    for (int i = 0; i < 3; i++) {
        struct berth_buf chunk = {0};
        berth_buf_printf(&chunk, "data: %d\n\n", i);
        berth_http_stream_chunk(exchange, &chunk);
    }
    if (end) {
        berth_http_stream_end(exchange);
    }
}

static inline void script_head(void *subject, struct berth_exchange *exchange)
{
    struct script *script = subject;
    const char *path = berth_http_path(exchange);
    atomic_fetch_add(&script->heads, 1);
    if (strcmp(path, "/echo") == 0 || strcmp(path, "/hold") == 0 || strcmp(path, "/early") == 0) {
        berth_http_accept_body(exchange, UINT64_C(1) << 30, false);
    } else if (strcmp(path, "/private") == 0) {
        berth_http_accept_body(exchange, UINT64_C(1) << 30, true);
    } else if (strcmp(path, "/small") == 0) {
        berth_http_accept_body(exchange, 100000, false);
    } else if (strcmp(path, "/refuse") == 0) {
        script_text(exchange, 413, "too large");
    } else if (strcmp(path, "/refuse-at-length") == 0) {
        struct berth_buf text = {0};
        struct berth_http_answer answer = {.status = 413, .text = &text};
        for (int i = 0; i < 8 << 10; i++) {
            berth_buf_printf(&text, "%01024d", i);
        }
        berth_http_answer(exchange, &answer);
    } else if (strcmp(path, "/wait") == 0) {
        return;
    } else if (strcmp(path, "/later") == 0 || strcmp(path, "/when-told") == 0) {
        script_later(script, exchange, path[1] == 'w');
    } else if (strcmp(path, "/stream") == 0) {
        script_stream(exchange, true);
    } else if (strcmp(path, "/stream-open") == 0) {
        script_stream(exchange, false);
    } else if (strcmp(path, "/flood") == 0) {
        struct berth_http_answer head = {.status = 200};
        berth_http_stream_begin(exchange, &head);
        for (int i = 0; i < 7; i++) {
            struct berth_buf chunk = {0};
            berth_buf_reserve(&chunk, 1 << 20);
            if (berth_buf_ok(&chunk)) {
                memset(chunk.bytes, 'x', 1 << 20);
                chunk.length = 1 << 20;
            }
            berth_http_stream_chunk(exchange, &chunk);
        }
    } else if (strcmp(path, "/none") == 0) {
        berth_http_answer(exchange, &(struct berth_http_answer){.status = 204});
    } else if (strcmp(path, "/headers") == 0) {
        struct berth_http_header headers[] = {{"X-Good", "yes"},
                                              {"X-Bad", "a\r\nX-Evil: 1"},
                                              {"Content-Length", "3"},
                                              {"No Token", "x"}};
        berth_http_answer(exchange, &(struct berth_http_answer){.status = 405,
                                                                .reason = "Not Allowed",
                                                                .headers = headers,
                                                                .header_count = 4});
    } else if (strcmp(path, "/peer") == 0) {
        script_text(exchange, 200, berth_http_peer(exchange));
    } else {
        script_text(exchange, 200, "hello");
    }
}

static inline void script_body(void *subject, struct berth_exchange *exchange, uint64_t length)
{
    struct script *script = subject;
    atomic_fetch_add(&script->bodies, 1);
    if (length > atomic_load(&script->body_max)) {
        atomic_store(&script->body_max, length);
    }
    assert_int_equal(berth_http_body(exchange)->length, length);
    if (strcmp(berth_http_path(exchange), "/early") == 0) {
        script_text(exchange, 422, "enough");
    }
}

static inline void script_end(void *subject, struct berth_exchange *exchange)
{
    struct script *script = subject;
    struct berth_http_answer answer = {.status = 200, .content_type = "application/octet-stream"};
    struct berth_range whole;
    atomic_fetch_add(&script->ends, 1);
    if (strcmp(berth_http_path(exchange), "/hold") == 0) {
        return; /* until the client is gone */
    }
    struct job *job = berth_alloc(sizeof(*job));
    if (job == NULL) {
        script_text(exchange, 503, "no memory");
        return;
    }
    job->script = script;
    job->range = berth_http_take_body(exchange);
    whole = job->range;
    answer.ranges = &whole;
    answer.range_count = whole.length > 0 ? 1 : 0;
    answer.release = script_release;
    answer.subject = job;
    berth_http_answer(exchange, &answer);
}

static inline void script_close(void *subject, struct berth_exchange *exchange, bool answered)
{
    struct script *script = subject;
    struct job *job = berth_http_user(exchange);
    if (job != NULL && job->detached) {
        job->closed = true;
    }
    atomic_store(&script->t_closed_ns, berth_clock_now_ns());
    atomic_fetch_add(answered ? &script->closes_answered : &script->closes_gone, 1);
}

static inline const char *script_error(void *subject, struct berth_exchange *exchange,
                                       const struct berth_err *err, struct berth_buf *out)
{
    struct script *script = subject;
    atomic_fetch_add(&script->errors, 1);
    berth_buf_puts(out, "{\"error\":");
    berth_buf_json_string(out, err->msg, strlen(err->msg));
    berth_buf_puts(out, "}");
    return "application/json";
}

/* Limits that no test is about are far away: a busy machine must not reach them. */
#define FAR_NS (120 * BERTH_NS_PER_S)

static inline struct berth_http_options script_options(struct script *script)
{
    static const char *const listen[] = {"127.0.0.1:0"};
    return (struct berth_http_options){
        .listen = listen,
        .listen_count = 1,
        .threads = 2,
        .connections_max = 20000,
        .body_bytes_max = UINT64_C(1) << 30,
        .head_bytes_max = 16384,
        .body_rate_min = 1024,
        .head_timeout_ns = FAR_NS,
        .body_timeout_ns = FAR_NS,
        .write_timeout_ns = FAR_NS,
        .idle_timeout_ns = FAR_NS,
        .admit_timeout_ns = FAR_NS,
        .slabs = script->slabs,
        .handler = {.subject = script,
                    .on_head = script_head,
                    .on_body = script_body,
                    .on_end = script_end,
                    .on_close = script_close,
                    .error_body = script_error},
    };
}

static inline void script_start(struct script *script, uint64_t budget,
                                const struct berth_http_options *options)
{
    struct berth_slabs_options slabs = {.bytes_budget = budget, .bytes_pool_max = 16 << 20};
    struct berth_http_options own;
    struct berth_err err;
    berth_log_set_level(BERTH_LOG_ERROR);
    memset(script, 0, sizeof(*script));
    assert_int_equal(berth_slabs_create(&slabs, &script->slabs, &err), BERTH_OK);
    own = options == NULL ? script_options(script) : *options;
    own.slabs = script->slabs;
    own.handler = script_options(script).handler;
    if (berth_http_start(&own, &script->http, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
}

/* Every exchange was closed, every byte given back. */
static inline void script_stop(struct script *script)
{
    struct berth_slabs_stats stats;
    while (atomic_load(&script->jobs) > 0) { /* nobody may post after destroy */
        usleep(1000);
    }
    berth_http_destroy(script->http);
    assert_int_equal(atomic_load(&script->heads),
                     atomic_load(&script->closes_answered) + atomic_load(&script->closes_gone));
    berth_slabs_stats(script->slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    berth_slabs_destroy(script->slabs);
}

static int client_receive_bytes; /* 0: the system's choice */

static inline int client_connect(struct script *script)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(berth_http_port(script->http, 0)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval wait = {.tv_sec = FAR_NS / BERTH_NS_PER_S};
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (client_receive_bytes > 0) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &client_receive_bytes, sizeof(client_receive_bytes));
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static inline void client_send(int fd, const void *bytes, size_t length)
{
    const char *at = bytes;
    while (length > 0) {
        ssize_t put = send(fd, at, length, MSG_NOSIGNAL);
        if (put <= 0) {
            return; /* the server has had enough; the answer says so */
        }
        at += put;
        length -= (size_t)put;
    }
}

static inline void client_puts(int fd, const char *text)
{
    client_send(fd, text, strlen(text));
}

struct reply {
    int status;
    char head[4096];
    char *body; /* free() */
    size_t length;
    bool chunked;
    bool eof; /* nothing came but the end */
};

static inline char client_byte(int fd, bool *end)
{
    char byte = 0;
    *end = recv(fd, &byte, 1, 0) <= 0;
    return byte;
}

static inline void client_body(int fd, struct reply *reply, size_t length)
{
    reply->body = realloc(reply->body, reply->length + length + 1);
    size_t end = reply->length + length;
    while (reply->length < end) {
        ssize_t got = recv(fd, reply->body + reply->length, end - reply->length, 0);
        if (got <= 0) {
            break;
        }
        reply->length += (size_t)got;
    }
    reply->body[reply->length] = '\0';
}

static inline void client_line(int fd, char *line, size_t room)
{
    size_t length = 0;
    bool end = false;
    while (length + 1 < room && (length < 2 || line[length - 1] != '\n')) {
        line[length] = client_byte(fd, &end);
        if (end) {
            break;
        }
        length++;
    }
    line[length] = '\0';
}

/* One answer, whole. expect_body: false after HEAD. */
static inline struct reply client_read(int fd, bool expect_body)
{
    struct reply reply = {0};
    char line[512];
    size_t length = 0;
    do {
        client_line(fd, line, sizeof(line));
        size_t more = strlen(line);
        if (more == 0) {
            reply.eof = length == 0;
            return reply;
        }
        if (length + more < sizeof(reply.head)) {
            memcpy(reply.head + length, line, more);
            length += more;
        }
    } while (strcmp(line, "\r\n") != 0);
    reply.status = (int)strtol(reply.head + 9, NULL, 10);
    reply.body = calloc(1, 1);
    const char *sized = strcasestr(reply.head, "\r\ncontent-length: ");
    reply.chunked = strcasestr(reply.head, "transfer-encoding: chunked") != NULL;
    if (!expect_body || reply.status == 100) {
        return reply;
    }
    if (sized != NULL) {
        client_body(fd, &reply, strtoul(sized + 18, NULL, 10));
    }
    while (reply.chunked) {
        client_line(fd, line, sizeof(line));
        size_t chunk = strtoul(line, NULL, 16);
        if (line[0] == '\0') {
            break;
        }
        if (chunk > 0) {
            client_body(fd, &reply, chunk);
        }
        client_line(fd, line, sizeof(line));
        if (chunk == 0) {
            break;
        }
    }
    return reply;
}

/* Reads one answer and checks its status; 0: the connection ends without any. */
static inline void client_expect(int fd, int status, const char *body)
{
    struct reply reply = client_read(fd, true);
    if (reply.status != status) {
        fail_msg("status %d, not %d: %s", reply.status, status, reply.head);
    }
    if (body != NULL) {
        assert_string_equal(reply.body, body);
    }
    free(reply.body);
}

static inline void client_expect_end(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    if (got > 0 || (got < 0 && errno != ECONNRESET)) {
        fail_msg("the connection goes on: %zd %d", got, errno);
    }
}

/* Waits until *value is at least want. */
static inline void wait_for(const atomic_int *value, int want)
{
    uint64_t t_end_ns = berth_clock_now_ns() + FAR_NS;
    while (atomic_load(value) < want && berth_clock_now_ns() < t_end_ns) {
        usleep(500);
    }
    assert_true(atomic_load(value) >= want);
}

#endif
