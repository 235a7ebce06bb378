/* test_loop.c - the front as a whole: a server in this process, driven over sockets, and single
 * connections driven by hand under a clock of the test's own. */
#include "net/loop.h"
#include "net_test.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <zlib.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

static char *pattern(size_t length)
{
    char *bytes = malloc(length + 1);
    for (size_t i = 0; i < length; i++) {
        bytes[i] = (char)(i * 2654435761u >> 13);
    }
    return bytes;
}

static void post_head(int fd, const char *path, size_t length, const char *more)
{
    char head[512];
    snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n%s\r\n",
             path, length, more);
    client_puts(fd, head);
}

static void expect_bytes(int fd, const char *body, size_t length)
{
    struct reply reply = client_read(fd, true);
    if (reply.status != 200) {
        fail_msg("%s%s", reply.head, reply.body == NULL ? "" : reply.body);
    }
    assert_int_equal(reply.length, length);
    assert_memory_equal(reply.body, body, length);
    free(reply.body);
}

static void echo(int fd, const char *path, size_t length)
{
    char *body = pattern(length);
    post_head(fd, path, length, "");
    client_send(fd, body, length);
    expect_bytes(fd, body, length);
    free(body);
}

static void test_hello(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    for (int i = 0; i < 3; i++) {
        client_puts(fd, GET("/x"));
        client_expect(fd, 200, "hello");
    }
    client_puts(fd, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client_expect(fd, 200, "hello");
    client_expect_end(fd);
    close(fd);
    script_stop(&script);
}

static void test_echo(void **state)
{
    static const size_t lengths[] = {0, 1, 64, 3900, 5000, 65536, 3 << 20, 16 << 20, 64};
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    for (size_t i = 0; i < BERTH_COUNT_OF(lengths); i++) {
        echo(fd, "/echo", lengths[i]);
        echo(fd, "/private", lengths[i]);
    }
    close(fd);
    script_stop(&script);
    assert_int_equal(atomic_load(&script.releases), 2 * BERTH_COUNT_OF(lengths));
}

static void test_kinds_of_answers(void **state)
{
    struct script script;
    struct reply reply;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    client_puts(fd, "HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n");
    reply = client_read(fd, false);
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.head, "\r\nContent-Length: 5\r\n"));
    free(reply.body);
    client_puts(fd, GET("/none"));
    reply = client_read(fd, true);
    assert_int_equal(reply.status, 204);
    assert_null(strstr(reply.head, "Content-Length"));
    free(reply.body);
    client_puts(fd, GET("/headers"));
    reply = client_read(fd, true);
    assert_non_null(strstr(reply.head, "HTTP/1.1 405 Not Allowed\r\n"));
    assert_non_null(strstr(reply.head, "\r\nX-Good: yes\r\n"));
    assert_non_null(strstr(reply.head, "\r\nContent-Length: 0\r\n"));
    assert_null(strstr(reply.head, "X-Bad"));
    assert_null(strstr(reply.head, "X-Evil"));
    assert_null(strstr(reply.head, "Content-Length: 3"));
    free(reply.body);
    client_puts(fd, GET("/peer"));
    reply = client_read(fd, true);
    assert_memory_equal(reply.body, "127.0.0.1:", 10);
    free(reply.body);
    client_puts(fd, GET("/stream"));
    reply = client_read(fd, true);
    assert_true(reply.chunked);
    assert_string_equal(reply.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    free(reply.body);
    client_puts(fd, "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    reply = client_read(fd, false);
    assert_int_equal(reply.status, 200);
    free(reply.body);
    client_puts(fd, GET("/x"));
    client_expect(fd, 200, "hello");
    close(fd);
    script_stop(&script);
}

static void test_http_1_0(void **state)
{
    struct script script;
    struct reply reply;
    char rest[128];
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    client_puts(fd, "GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    reply = client_read(fd, true);
    assert_non_null(strstr(reply.head, "\r\nConnection: keep-alive\r\n"));
    free(reply.body);
    client_puts(fd, "GET /x HTTP/1.0\r\n\r\n");
    client_expect(fd, 200, "hello");
    client_expect_end(fd);
    close(fd);
    fd = client_connect(&script);
    client_puts(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    reply = client_read(fd, true);
    assert_false(reply.chunked);
    ssize_t got = recv(fd, rest, sizeof(rest), MSG_WAITALL);
    assert_int_equal(got, 27);
    assert_memory_equal(rest, "data: 0\n\ndata: 1\n\ndata: 2\n\n", 27);
    free(reply.body);
    close(fd);
    script_stop(&script);
}

static void test_pipelining(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    client_puts(fd,
                GET("/later")
                    GET("/x") "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
                              "\r\nabc" GET("/later") "\r\n" GET(
                                  "/stream") "POST /refuse HTTP/1.1\r\n"
                                             "Host: a\r\nContent-Length: 2\r\n\r\nab" GET("/x"));
    client_expect(fd, 200, "late");
    client_expect(fd, 200, "hello");
    client_expect(fd, 200, "abc");
    client_expect(fd, 200, "late");
    client_expect(fd, 200, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    client_expect(fd, 413, NULL);
    client_expect(fd, 200, "hello"); /* a refused body that is there is used up */
    for (int i = 0; i < 200; i++) {  /* more than one run's steps */
        client_puts(fd, GET("/x"));
    }
    for (int i = 0; i < 200; i++) {
        client_expect(fd, 200, "hello");
    }
    close(fd);
    script_stop(&script);
}

static void test_continue(void **state)
{
    struct script script;
    struct berth_http_stats stats;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    for (int i = 0; i < 3; i++) {
        post_head(fd, "/echo", 5, "Expect: 100-continue\r\n");
        client_expect(fd, 100, NULL);
        client_puts(fd, "hello");
        client_expect(fd, 200, "hello");
    }
    post_head(fd, "/echo", 5, "Expect: 100-continue\r\n");
    client_expect(fd, 100, NULL);
    close(fd);
    fd = client_connect(&script);
    post_head(fd, "/refuse", 5, "Expect: 100-continue\r\n");
    client_expect(fd, 413, "too large");
    client_expect_end(fd);
    close(fd);
    fd = client_connect(&script);
    post_head(fd, "/small", 200000, "Expect: 100-continue\r\n");
    client_expect(fd, 413, NULL);
    close(fd);
    berth_http_stats(script.http, &stats);
    assert_int_equal(stats.continues, 4);
    script_stop(&script);
}

/* Clients that send everything before they read still get their answer. */
static void test_early_refusal(void **state)
{
    struct script script;
    size_t length = 20 << 20;
    char *body = pattern(length);
    script_start(&script, 64 << 20, NULL);
    for (int i = 0; i < 12; i++) {
        static const char *const paths[] = {"/refuse", "/small", "/early"};
        int fd = client_connect(&script);
        if (i % 3 == 2) {
            client_puts(fd,
                        "POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            for (size_t at = 0; at < length; at += 1 << 16) {
                client_puts(fd, "10000\r\n");
                client_send(fd, body + at, 1 << 16);
                client_puts(fd, "\r\n");
            }
            client_puts(fd, "0\r\n\r\n");
        } else {
            post_head(fd, paths[i % 3], length, "");
            client_send(fd, body, length);
        }
        client_expect(fd, i % 3 == 2 ? 422 : 413, NULL);
        client_expect_end(fd);
        close(fd);
    }
    client_receive_bytes = 65536; /* the answer does not fit into the sockets either */
    int fd = client_connect(&script);
    post_head(fd, "/refuse-at-length", length, "");
    client_send(fd, body, length);
    struct reply reply = client_read(fd, true);
    assert_int_equal(reply.status, 413);
    assert_int_equal(reply.length, 8 << 20);
    free(reply.body);
    client_receive_bytes = 0;
    close(fd);
    free(body);
    script_stop(&script);
}

static void send_chunked(int fd, const char *body, size_t length, size_t chunk)
{
    char line[32];
    for (size_t at = 0; at < length; at += chunk) {
        size_t piece = length - at < chunk ? length - at : chunk;
        snprintf(line, sizeof(line), "%zx\r\n", piece);
        client_puts(fd, line);
        client_send(fd, body + at, piece);
        client_puts(fd, "\r\n");
    }
    client_puts(fd, "0\r\n\r\n");
}

static void test_chunked(void **state)
{
    static const size_t cases[][2] = {
        {0, 1},        {1, 1},         {1000, 1},       {100000, 999},
        {65536, 4096}, {65537, 65537}, {3 << 20, 8192}, {5 << 20, 1 << 20}};
    const char *head = "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        char *body = pattern(cases[i][0]);
        client_puts(fd, "POST /echo HTTP/1.1\r\n");
        client_puts(fd, head);
        send_chunked(fd, body, cases[i][0], cases[i][1]);
        expect_bytes(fd, body, cases[i][0]);
        free(body);
    }
    char *body = pattern(100001); /* the limit is 100,000 */
    client_puts(fd, "POST /small HTTP/1.1\r\n");
    client_puts(fd, head);
    send_chunked(fd, body, 100000, 5000);
    expect_bytes(fd, body, 100000);
    client_puts(fd, "POST /small HTTP/1.1\r\n");
    client_puts(fd, head);
    send_chunked(fd, body, 100001, 5000);
    client_expect(fd, 413, NULL);
    close(fd);
    fd = client_connect(&script);
    client_puts(fd, "POST /echo HTTP/1.1\r\n");
    client_puts(fd, head);
    client_puts(fd, "3\r\nabc\r\nx\r\n");
    client_expect(fd, 400, NULL);
    close(fd);
    free(body);
    script_stop(&script);
}

/* format: MAX_WBITS zlib, +16 gzip. */
static char *compress_as(int format, const char *body, size_t length, size_t *made)
{
    z_stream stream = {0};
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, format, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t room = deflateBound(&stream, length);
    char *out = malloc(room);
    stream.next_in = (Bytef *)(uintptr_t)body;
    stream.avail_in = (uInt)length;
    stream.next_out = (Bytef *)out;
    stream.avail_out = (uInt)room;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *made = room - stream.avail_out;
    deflateEnd(&stream);
    return out;
}

static void test_compressed(void **state)
{
    static const size_t lengths[] = {0, 1, 5000, 65536, 65537, 3 << 20};
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    for (size_t i = 0; i < BERTH_COUNT_OF(lengths) * 4; i++) {
        bool gzip = i % 2 == 0, chunked = i % 4 >= 2;
        size_t length = lengths[i / 4], made;
        char *body = pattern(length);
        memset(body, 'a', length / 2);
        char *packed = compress_as(MAX_WBITS + (gzip ? 16 : 0), body, length, &made);
        const char *coding = gzip ? "Content-Encoding: gzip\r\n" : "Content-Encoding: deflate\r\n";
        if (chunked) {
            client_puts(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n");
            client_puts(fd, coding);
            client_puts(fd, "\r\n");
            send_chunked(fd, packed, made, 3000);
        } else {
            post_head(fd, "/echo", made, coding);
            client_send(fd, packed, made);
        }
        expect_bytes(fd, body, length);
        free(packed);
        free(body);
    }
    close(fd);
    script_stop(&script);
}

static void test_compressed_wrong(void **state)
{
    struct script script;
    size_t made;
    char *zeros = calloc(1, 50 << 20);
    char *bomb = compress_as(MAX_WBITS + 16, zeros, 50 << 20, &made);
    script_start(&script, 64 << 20, NULL);
    struct {
        const char *path, *coding;
        const char *bytes;
        size_t length;
        int status;
    } cases[] = {
        {"/small", "gzip", bomb, made, 413},    /* inflates past the limit */
        {"/echo", "gzip", bomb, made - 1, 400}, /* cut off */
        {"/echo", "gzip", "not gzip", 8, 400},  {"/echo", "deflate", "\x1f\x8b\x08", 3, 400},
        {"/echo", "br", "x", 1, 415},           {"/echo", "gzip, gzip", "x", 1, 415},
        {"/echo", "identity", "x", 1, 200},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        char coding[64];
        int fd = client_connect(&script);
        snprintf(coding, sizeof(coding), "Content-Encoding: %s\r\n", cases[i].coding);
        post_head(fd, cases[i].path, cases[i].length, coding);
        client_send(fd, cases[i].bytes, cases[i].length);
        client_expect(fd, cases[i].status, NULL);
        close(fd);
    }
    char *small = compress_as(MAX_WBITS + 16, zeros, 100, &made);
    int fd = client_connect(&script);
    post_head(fd, "/echo", made + 1, "Content-Encoding: gzip\r\n");
    client_send(fd, small, made);
    client_puts(fd, "x"); /* behind the end */
    client_expect(fd, 400, NULL);
    close(fd);
    small = (free(small), compress_as(MAX_WBITS + 16, zeros, 100000, &made));
    fd = client_connect(&script);
    post_head(fd, "/small", made, "Content-Encoding: gzip\r\n"); /* exactly the limit */
    client_send(fd, small, made);
    client_expect(fd, 200, NULL);
    close(fd);
    free(small);
    free(zeros);
    free(bomb);
    script_stop(&script);
}

static void test_hang_up(void **state)
{
    static const char *const requests[] = {
        GET("/wait"),
        GET("/wait") GET("/x") GET("/x"),
        "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
        GET("/stream-open"),
    };
    struct script script;
    struct berth_http_stats stats;
    int gone = 0;
    script_start(&script, 64 << 20, NULL);
    for (int how = 0; how < 3; how++) {
        for (size_t i = 0; i < BERTH_COUNT_OF(requests); i++) {
            struct linger reset = {.l_onoff = 1};
            int heads = atomic_load(&script.heads);
            int fd = client_connect(&script);
            client_puts(fd, requests[i]);
            wait_for(&script.heads, heads + 1);
            usleep(3000);
            if (how == 1) {
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
            }
            if (how == 2) {
                shutdown(fd, SHUT_WR); /* N5: a half-close counts as gone */
            } else {
                close(fd);
            }
            wait_for(&script.closes_gone, ++gone);
            if (how == 2) {
                close(fd);
            }
        }
    }
    berth_http_stats(script.http, &stats);
    assert_int_equal(stats.hangups, gone);
    assert_int_equal(berth_http_exchanges(script.http), 0);
    script_stop(&script);
}

/* A process that is being started holds copies of all descriptors until it executes its program: a
 * connection that was closed meanwhile is heard of no more, though its socket lives on. */
static void test_copied_descriptors(void **state)
{
    struct script script;
    struct berth_http_stats stats;
    script_start(&script, 64 << 20, NULL);
    int fds[20];
    for (size_t i = 0; i < BERTH_COUNT_OF(fds); i++) {
        fds[i] = client_connect(&script);
        client_puts(fds[i], GET("/x"));
        client_expect(fds[i], 200, "hello");
    }
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    assert_true(pid > 0);
    for (size_t i = 0; i < BERTH_COUNT_OF(fds); i++) {
        shutdown(fds[i], SHUT_WR);
    }
    do {
        usleep(1000);
        berth_http_stats(script.http, &stats);
    } while (stats.connections_open > 0);
    for (size_t i = 0; i < BERTH_COUNT_OF(fds); i++) { /* news of each of them */
        /* The child has copies of these too, so that closing them would not reset anything. */
        struct sockaddr nobody = {.sa_family = AF_UNSPEC};
        assert_int_equal(connect(fds[i], &nobody, sizeof(nobody)), 0);
        close(fds[i]);
    }
    for (int i = 0; i < 20; i++) {
        int fd = client_connect(&script);
        client_puts(fd, GET("/x"));
        client_expect(fd, 200, "hello");
        close(fd);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    script_stop(&script);
}

/* 4 MB for all: 3 MB bodies come one at a time, the others are not read, small ones go on. */
static void test_budget(void **state)
{
    enum { CLIENTS = 6 };
    struct script script;
    struct berth_http_options options;
    struct berth_http_stats stats;
    struct berth_slabs_stats slabs;
    int fds[CLIENTS];
    size_t length = 3 << 20;
    char *body = pattern(length);
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.threads = 1;
    script_start(&script, 4 << 20, &options);
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = client_connect(&script);
        post_head(fds[i], "/hold", length, i == 3 ? "Expect: 100-continue\r\n" : "");
        wait_for(&script.heads, i + 1);
    }
    client_send(fds[0], body, length);
    wait_for(&script.ends, 1);
    berth_http_stats(script.http, &stats);
    assert_int_equal(stats.paused, CLIENTS - 1);
    int small = client_connect(&script);
    echo(small, "/echo", 50000); /* does not wait behind the large ones */
    close(small);
    int ends = atomic_load(&script.ends) - 1;
    for (int i = 1; i < CLIENTS; i++) { /* the next comes in when the one before is gone */
        close(fds[i - 1]);
        if (i == 3) {
            client_expect(fds[i], 100, NULL);
        }
        client_send(fds[i], body, length);
        wait_for(&script.ends, i + 1 + ends);
    }
    berth_slabs_stats(script.slabs, &slabs);
    assert_true(slabs.bytes_peak <= 4 << 20);
    close(fds[CLIENTS - 1]);
    wait_for(&script.closes_gone, CLIENTS);
    berth_http_stats(script.http, &stats);
    assert_int_equal(stats.paused, 0);
    int fd = client_connect(&script);
    post_head(fd, "/echo", 5 << 20, ""); /* could never have room */
    client_expect(fd, 413, NULL);
    close(fd);
    free(body);
    script_stop(&script);
}

static void test_admit_timeout(void **state)
{
    struct script script;
    struct berth_http_options options;
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.threads = 1;
    options.admit_timeout_ns = 60 * BERTH_NS_PER_MS;
    script_start(&script, 1 << 20, &options);
    int holder = client_connect(&script);
    post_head(holder, "/hold", 700000, "");
    wait_for(&script.heads, 1);
    int fd = client_connect(&script);
    post_head(fd, "/echo", 700000, "");
    struct reply reply = client_read(fd, true);
    assert_int_equal(reply.status, 503);
    assert_non_null(strstr(reply.head, "\r\nRetry-After: 1\r\n"));
    assert_non_null(strstr(reply.head, "\r\nx-should-retry: true\r\n"));
    free(reply.body);
    close(fd);
    fd = client_connect(&script); /* grows into the limit */
    client_puts(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    char *body = pattern(600000);
    send_chunked(fd, body, 600000, 50000);
    client_expect(fd, 503, NULL);
    close(fd);
    close(holder);
    free(body);
    script_stop(&script);
}

static void test_gone_while_it_waits(void **state)
{
    struct script script;
    struct berth_http_options options;
    struct berth_http_stats stats;
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.threads = 1;
    script_start(&script, 1 << 20, &options);
    int holder = client_connect(&script);
    post_head(holder, "/hold", 700000, "");
    wait_for(&script.heads, 1);
    int fd = client_connect(&script);
    post_head(fd, "/echo", 700000, "");
    do {
        usleep(1000);
        berth_http_stats(script.http, &stats);
    } while (stats.paused == 0);
    close(fd);
    wait_for(&script.closes_gone, 1);
    berth_http_stats(script.http, &stats);
    assert_int_equal(stats.paused, 0);
    close(holder);
    script_stop(&script);
}

/* By the machine's clock; the limits themselves: test_limits_of_time. */
static void test_silent(void **state)
{
    struct script script;
    struct berth_http_options options;
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.idle_timeout_ns = 80 * BERTH_NS_PER_MS;
    script_start(&script, 64 << 20, &options);
    int fd = client_connect(&script);
    client_expect_end(fd);
    close(fd);
    script_stop(&script);
}

static void test_slow_readers(void **state)
{
    struct script script;
    struct berth_http_options options;
    struct berth_http_stats stats;
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.write_timeout_ns = 80 * BERTH_NS_PER_MS;
    script_start(&script, 64 << 20, &options);
    client_receive_bytes = 65536;
    int fd = client_connect(&script); /* takes no byte of 7 MB */
    client_puts(fd, GET("/flood"));
    wait_for(&script.closes_gone, 1);
    close(fd);
    fd = client_connect(&script);
    char *body = pattern(16 << 20);
    post_head(fd, "/echo", 16 << 20, "");
    client_send(fd, body, 16 << 20);
    wait_for(&script.closes_gone, 2);
    close(fd);
    client_receive_bytes = 0;
    free(body);
    berth_http_stats(script.http, &stats);
    assert_int_equal(stats.timeouts, 2);
    script_stop(&script);
}

static void test_many_idle(void **state)
{
    enum { CLIENTS = 2000 };
    static int fds[CLIENTS];
    struct rlimit files = {0};
    struct script script;
    struct berth_http_stats stats;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 2 * CLIENTS + 100) {
        skip();
    }
    script_start(&script, 64 << 20, NULL);
    uint64_t before = berth_mem_bytes_live();
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = client_connect(&script);
    }
    for (int i = 0; i < CLIENTS; i++) {
        client_puts(fds[i], GET("/x"));
    }
    for (int i = 0; i < CLIENTS; i++) {
        client_expect(fds[i], 200, "hello");
    }
    /* What is pooled is bounded; the rest is a connection's own. */
    uint64_t each = (berth_mem_bytes_live() - before) / CLIENTS;
    assert_true(each < 2048);
    berth_http_stats(script.http, &stats);
    assert_int_equal(stats.connections_open, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        close(fds[i]);
    }
    script_stop(&script);
    assert_int_equal(stats.requests, CLIENTS);
}

static void test_connections_max(void **state)
{
    struct script script;
    struct berth_http_options options;
    struct berth_http_stats stats;
    int fds[3];
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.connections_max = 3;
    script_start(&script, 64 << 20, &options);
    for (int i = 0; i < 3; i++) {
        fds[i] = client_connect(&script);
        client_puts(fds[i], GET("/x"));
        client_expect(fds[i], 200, "hello");
    }
    int fd = client_connect(&script);
    client_expect_end(fd);
    close(fd);
    close(fds[0]);
    do {
        usleep(1000);
        berth_http_stats(script.http, &stats);
    } while (stats.connections_open == 3);
    assert_int_equal(stats.connections_refused, 1);
    fd = client_connect(&script);
    client_puts(fd, GET("/x"));
    client_expect(fd, 200, "hello");
    close(fd);
    close(fds[1]);
    close(fds[2]);
    script_stop(&script);
}

static void test_stop_accepting(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int idle = client_connect(&script);
    client_puts(idle, GET("/x"));
    client_expect(idle, 200, "hello");
    int busy = client_connect(&script);
    client_puts(busy, GET("/when-told"));
    wait_for(&script.heads, 2);
    wait_for(&script.closes_answered, 1); /* the idle one's: its answer was there before that */
    assert_int_equal(berth_http_exchanges(script.http), 1);
    berth_http_stop_accepting(script.http);
    client_expect_end(idle);
    atomic_store(&script.go, true);
    struct reply reply = client_read(busy, true);
    assert_string_equal(reply.body, "late");
    assert_non_null(strstr(reply.head, "\r\nConnection: close\r\n"));
    free(reply.body);
    client_expect_end(busy);
    close(idle);
    close(busy);
    script_stop(&script);
}

/* Asks for as long as it is answered, now and then on a new connection. */
static void *ask_until_the_end(void *subject)
{
    const uint16_t *port = subject;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(*port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int fd = -1, i = 0;; i++) {
        static const char request[] = GET("/later");
        char answer[1024];
        if (fd < 0) {
            fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
                close(fd);
                return NULL;
            }
        }
        bool over = send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) <= 0 ||
                    recv(fd, answer, sizeof(answer), 0) <= 0;
        if (!over && answer[0] != 'H') {
            close(fd); /* the port is free, and we reached ourselves */
            return NULL;
        }
        if (over || i % 4 == 0) {
            close(fd);
            fd = -1;
        }
    }
}

/* What was begun is answered when nothing is open any more: a stop then cuts nobody off. */
static void test_stop_under_load(void **state)
{
    enum { ROUNDS = 25 };
    for (int i = 0; i < ROUNDS; i++) {
        struct script script;
        pthread_t client;
        script_start(&script, 1 << 20, NULL);
        uint16_t port = berth_http_port(script.http, 0);
        assert_int_equal(pthread_create(&client, NULL, ask_until_the_end, &port), 0);
        wait_for(&script.heads, 1 + i % 5);
        while (berth_http_exchanges(script.http) > 0) {
            sched_yield(); /* to the moment when the next begins */
        }
        berth_http_stop_accepting(script.http);
        while (berth_http_exchanges(script.http) > 0) {
            sched_yield();
        }
        berth_http_stop(script.http);
        script_stop(&script);
        pthread_join(client, NULL);
        assert_int_equal(atomic_load(&script.closes_gone), 0);
    }
}

static void test_listen(void **state)
{
    struct script script;
    struct berth_err err;
    struct berth_http *http = NULL;
    char taken[64];
    static const char *const wrong[] = {
        "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",      ":80",         "::1:80",          "[::1]80",
        "[::1:80",   "[]:80",      "127.0.0.1:123456", "999.0.0.1:0", "127.0.0.1:70000", ""};
    script_start(&script, 64 << 20, NULL);
    snprintf(taken, sizeof(taken), "127.0.0.1:%u", berth_http_port(script.http, 0));
    const char *listen[] = {"127.0.0.1:0", taken};
    struct berth_http_options options = script_options(&script);
    options.listen = listen;
    options.listen_count = 2;
    assert_int_equal(berth_http_start(&options, &http, &err), BERTH_CONFLICT);
    assert_non_null(strstr(err.msg, taken));
    assert_string_equal(err.field, "listen");
    for (size_t i = 0; i < BERTH_COUNT_OF(wrong); i++) {
        options.listen = &wrong[i];
        options.listen_count = 1;
        if (berth_http_start(&options, &http, &err) == BERTH_OK) {
            fail_msg("listens on %s", wrong[i]);
        }
        assert_non_null(strstr(err.msg, wrong[i]));
        bool past = strcmp(wrong[i], "127.0.0.1:70000") == 0 ||
                    strcmp(wrong[i], "127.0.0.1:123456") == 0;
        assert_int_equal(strstr(err.msg, "port is past 65535") != NULL, past);
    }
    script_stop(&script);
}

static void test_listen_twice(void **state)
{
    static const char *const listen[] = {"127.0.0.1:0", "[::1]:0"};
    struct script script;
    struct berth_http_options options;
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (probe < 0 || bind(probe, (struct sockaddr *)&to, sizeof(to)) != 0) {
        skip();
    }
    close(probe);
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.listen = listen;
    options.listen_count = 2;
    script_start(&script, 64 << 20, &options);
    to.sin6_port = htons(berth_http_port(script.http, 1));
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    client_puts(fd, GET("/peer"));
    struct reply reply = client_read(fd, true);
    assert_memory_equal(reply.body, "[::1]:", 6);
    free(reply.body);
    close(fd);
    fd = client_connect(&script);
    client_puts(fd, GET("/x"));
    client_expect(fd, 200, "hello");
    close(fd);
    script_stop(&script);
}

/* Requests of all kinds while the 1st, 2nd, 3rd... allocation fails: each exchange is closed once,
 * nothing is kept, and the server goes on. */
static void test_allocation_failures(void **state)
{
    static const char *const requests[] = {
        GET("/x") GET("/stream") GET("/headers"),
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        ("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
         "3\r\nabc\r\n0\r\n\r\n"),
        "POST /private HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n"
        "Content-Length: 4\r\n\r\nabcd",
        "GET / HTTP/1.1\nx",
        "POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
    };
    struct berth_http_options options;
    struct script script;
    uint64_t before = berth_mem_bytes_live();
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.threads = 1;
    script_start(&script, 64 << 20, &options);
    for (uint64_t fail = 1; fail <= 40; fail++) {
        for (size_t i = 0; i < BERTH_COUNT_OF(requests); i++) {
            char rest[4096];
            struct timeval soon = {.tv_usec = 20000};
            int fd = client_connect(&script);
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
            berth_mem_fail_at(fail, fail % 2 == 0);
            client_puts(fd, requests[i]);
            (void)!recv(fd, rest, sizeof(rest), 0);
            berth_mem_fail_at(0, false);
            close(fd);
        }
    }
    int fd = client_connect(&script);
    echo(fd, "/echo", 100000);
    close(fd);
    script_stop(&script);
    assert_int_equal(berth_mem_bytes_live(), before);
}

static void test_start_failures(void **state)
{
    struct script script;
    struct berth_err err;
    struct berth_slabs_options slabs = {.bytes_budget = 1 << 20};
    enum berth_code code = BERTH_UNAVAILABLE;
    memset(&script, 0, sizeof(script));
    assert_int_equal(berth_slabs_create(&slabs, &script.slabs, &err), BERTH_OK);
    struct berth_http_options options = script_options(&script);
    for (uint64_t fail = 1; code != BERTH_OK; fail++) {
        assert_true(fail < 100);
        berth_mem_fail_at(fail, false);
        code = berth_http_start(&options, &script.http, &err);
        berth_mem_fail_at(0, false);
    }
    script_stop(&script);
}

/* Without descriptors accepting waits, and goes on when there are some. */
static void test_no_descriptors(void **state)
{
    struct rlimit files, fewer;
    struct script script;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    script_start(&script, 1 << 20, NULL);
    to.sin_port = htons(berth_http_port(script.http, 0));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int lowest = dup(fd); /* the next one there would be */
    close(lowest);
    getrlimit(RLIMIT_NOFILE, &files);
    fewer = files;
    fewer.rlim_cur = (rlim_t)lowest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &fewer), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    client_puts(fd, GET("/x"));
    usleep(150000);
    assert_int_equal(atomic_load(&script.heads), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    client_expect(fd, 200, "hello");
    close(fd);
    script_stop(&script);
}

/* Clients that leave at any moment, with too little budget for all: everything comes back. */
static void test_random_clients(void **state)
{
    enum { CLIENTS = 16, ROUNDS = 1500 };
    static const char *const heads[] = {
        GET("/x"),
        GET("/wait"),
        GET("/later"),
        GET("/stream"),
        GET("/stream-open"),
        GET("/flood"),
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n",
        "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n",
        "POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n",
        "POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n",
        "POST /private HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n30000\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    };
    struct script script;
    struct berth_http_options options;
    struct berth_http_stats stats;
    int fds[CLIENTS];
    char *body = pattern(300000);
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.admit_timeout_ns = 30 * BERTH_NS_PER_MS;
    script_start(&script, 600000, &options);
    memset(fds, -1, sizeof(fds));
    srand(42);
    for (int i = 0; i < ROUNDS; i++) {
        int *fd = &fds[rand() % CLIENTS];
        char rest[4096];
        struct linger reset = {.l_onoff = rand() % 2};
        if (*fd < 0) {
            *fd = client_connect(&script);
        }
        const char *head = heads[(size_t)rand() % BERTH_COUNT_OF(heads)];
        size_t length = strlen(head);
        client_send(*fd, head, rand() % 4 == 0 ? (size_t)rand() % length : length);
        (void)!send(*fd, body, (size_t)rand() % 300000, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)!recv(*fd, rest, sizeof(rest), MSG_DONTWAIT);
        if (rand() % 3 != 0) {
            setsockopt(*fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
            close(*fd);
            *fd = -1;
        }
    }
    for (int i = 0; i < CLIENTS; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    do {
        usleep(1000);
        berth_http_stats(script.http, &stats);
    } while (stats.connections_open > 0);
    assert_int_equal(stats.paused, 0);
    assert_int_equal(berth_http_exchanges(script.http), 0);
    int fd = client_connect(&script);
    echo(fd, "/echo", 300000);
    close(fd);
    free(body);
    script_stop(&script);
}

/* A connection over one end of a socketpair, its loop turned by hand. */
struct bench {
    struct script script;
    struct berth_http http;
    struct berth_loop loop;
    struct berth_conn *conn;
    int fd; /* the client's end */
};

static void bench_start(struct bench *bench)
{
    struct berth_slabs_options slabs = {.bytes_budget = 64 << 20};
    struct berth_err err;
    int pair[2];
    memset(bench, 0, sizeof(*bench));
    assert_int_equal(berth_slabs_create(&slabs, &bench->script.slabs, &err), BERTH_OK);
    bench->http.options = script_options(&bench->script);
    bench->http.loops = &bench->loop;
    bench->http.loop_count = 1;
    assert_int_equal(berth_loop_init(&bench->loop, &bench->http, &err), BERTH_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    bench->fd = pair[1];
    bench->conn = berth_conn_create(&bench->loop, pair[0], &berth_transport_plain);
    assert_non_null(bench->conn);
}

static void bench_turn(struct bench *bench, uint64_t after_ns)
{
    bench->loop.now_ns += after_ns;
    if (!berth_list_empty(&bench->loop.conns)) {
        berth_conn_event(bench->conn, EPOLLIN | EPOLLOUT);
    }
    do {
        berth_loop_settle(&bench->loop);
    } while (berth_loop_busy(&bench->loop));
}

static void bench_stop(struct bench *bench)
{
    close(bench->fd);
    berth_loop_finish(&bench->loop);
    berth_slabs_destroy(bench->script.slabs);
}

static int bench_status(struct bench *bench)
{
    char head[4096] = "";
    ssize_t got = recv(bench->fd, head, sizeof(head) - 1, 0);
    return got < 12 ? 0 : (int)strtol(head + 9, NULL, 10);
}

/* Nothing until the limit is there, then this status (0: none) and, drained, the end. */
static void bench_waits_until(struct bench *bench, uint64_t rest_ns, int status)
{
    bench_turn(bench, rest_ns - BERTH_NS_PER_MS);
    assert_false(berth_list_empty(&bench->loop.conns));
    assert_int_equal(bench_status(bench), 0);
    bench_turn(bench, BERTH_NS_PER_MS + 2 * BERTH_LOOP_TICK_NS);
    assert_int_equal(bench_status(bench), status);
    bench_turn(bench, 10 * BERTH_NS_PER_S);
    assert_true(berth_list_empty(&bench->loop.conns));
}

static void test_limits_of_time(void **state)
{
    static const struct {
        const char *said; /* at once */
        uint64_t limit_s;
        int status;
        uint64_t timeouts;
    } rows[] = {
        {"", 3, 0, 0},
        {"GET / HTTP/1.1\r\nHo", 5, 408, 1},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345", 7, 408, 1},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        for (int again = 0; again < 2; again++) { /* a new connection; one that was answered */
            struct bench bench;
            bench_start(&bench);
            bench.http.options.idle_timeout_ns = 3 * BERTH_NS_PER_S;
            bench.http.options.head_timeout_ns = 5 * BERTH_NS_PER_S;
            bench.http.options.body_timeout_ns = 7 * BERTH_NS_PER_S;
            bench_turn(&bench, 0);
            if (again == 1) {
                client_puts(bench.fd, GET("/x"));
                bench_turn(&bench, BERTH_NS_PER_S);
                assert_int_equal(bench_status(&bench), 200);
            }
            client_puts(bench.fd, rows[i].said);
            bench_turn(&bench, 0);
            bench_waits_until(&bench, rows[i].limit_s * BERTH_NS_PER_S, rows[i].status);
            assert_int_equal(bench.loop.stats.timeouts, rows[i].timeouts);
            bench_stop(&bench);
        }
    }
}

/* Each byte in time, the head as a whole not. */
static void test_slow_head(void **state)
{
    struct bench bench;
    bench_start(&bench);
    bench.http.options.head_timeout_ns = 5 * BERTH_NS_PER_S;
    for (int i = 0; i < 5; i++) {
        client_puts(bench.fd, i == 0 ? "G" : i == 1 ? "ET / HTTP/1.1\r\nA:" : "x");
        bench_turn(&bench, i == 0 ? 0 : BERTH_NS_PER_S);
    }
    bench_waits_until(&bench, BERTH_NS_PER_S, 408);
    assert_int_equal(bench.loop.stats.timeouts, 1);
    bench_stop(&bench);
}

/* 500 bytes each half second are below 1,024 a second; 600 are not. Judged after 30 s. */
static void test_body_rate(void **state)
{
    for (size_t piece = 500; piece <= 600; piece += 100) {
        struct bench bench;
        char bytes[600] = {0};
        bench_start(&bench);
        client_puts(bench.fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        bench_turn(&bench, 0);
        int status = 0;
        int turns = 0;
        for (; status == 0 && turns < 120; turns++) {
            client_send(bench.fd, bytes, piece);
            bench_turn(&bench, BERTH_NS_PER_S / 2);
            status = bench_status(&bench);
        }
        assert_int_equal(status, piece == 500 ? 408 : 0);
        assert_true(turns > 60);
        bench_stop(&bench);
    }
}

/* Deadlines further away than the wheel is round, and ones that move. */
static void test_wheel(void **state)
{
    struct bench bench;
    bench_start(&bench);
    bench.http.options.idle_timeout_ns = 60 * BERTH_NS_PER_S;
    for (int i = 0; i < 3; i++) { /* each request puts it off */
        client_puts(bench.fd, GET("/x"));
        bench_turn(&bench, 50 * BERTH_NS_PER_S);
        assert_int_equal(bench_status(&bench), 200);
    }
    for (int i = 0; i < 59; i++) {
        bench_turn(&bench, BERTH_NS_PER_S);
        assert_false(berth_list_empty(&bench.loop.conns));
    }
    bench_turn(&bench, BERTH_NS_PER_S + 2 * BERTH_LOOP_TICK_NS);
    assert_true(berth_list_empty(&bench.loop.conns));
    bench_stop(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_failures),
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_kinds_of_answers),
        cmocka_unit_test(test_http_1_0),
        cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_early_refusal),
        cmocka_unit_test(test_chunked),
        cmocka_unit_test(test_compressed),
        cmocka_unit_test(test_compressed_wrong),
        cmocka_unit_test(test_hang_up),
        cmocka_unit_test(test_copied_descriptors),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_admit_timeout),
        cmocka_unit_test(test_gone_while_it_waits),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_slow_readers),
        cmocka_unit_test(test_many_idle),
        cmocka_unit_test(test_connections_max),
        cmocka_unit_test(test_stop_accepting),
        cmocka_unit_test(test_stop_under_load),
        cmocka_unit_test(test_listen),
        cmocka_unit_test(test_listen_twice),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_random_clients),
        cmocka_unit_test(test_limits_of_time),
        cmocka_unit_test(test_slow_head),
        cmocka_unit_test(test_body_rate),
        cmocka_unit_test(test_wheel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
