/* test_http1.c - heads and chunk framing: by the parser alone, cut at every byte; on the wire. */
#include "net_test.h"

#define HOST "Host: a\r\n"
#define OK_HEAD "GET / HTTP/1.1\r\n" HOST

struct head_case {
    const char *name;
    const char *bytes;
    int status; /* 0: taken */
    const char *path;
    const char *query;
};

static const struct head_case head_cases[] = {
    {"plain", OK_HEAD "\r\n", 0, "/", ""},
    {"query", "GET /a/b?x=%20&y HTTP/1.1\r\n" HOST "\r\n", 0, "/a/b", "x=%20&y"},
    {"empty query", "GET /a? HTTP/1.1\r\n" HOST "\r\n", 0, "/a", ""},
    {"decoded", "GET /a%20b%c3%a9 HTTP/1.1\r\n" HOST "\r\n", 0, "/a b\xc3\xa9", ""},
    {"decoded once", "GET /%2561 HTTP/1.1\r\n" HOST "\r\n", 0, "/%61", ""},
    {"dots stay", "GET /../x HTTP/1.1\r\n" HOST "\r\n", 0, "/../x", ""},
    {"absolute", "GET http://a/b?c HTTP/1.1\r\n" HOST "\r\n", 0, "/b", "c"},
    {"absolute, no path", "GET http://a HTTP/1.1\r\n" HOST "\r\n", 0, "/", ""},
    {"absolute, query only", "GET HTTP://a?q HTTP/1.1\r\n" HOST "\r\n", 0, "/", "q"},
    {"1.0 without host", "GET / HTTP/1.0\r\n\r\n", 0, "/", ""},
    {"1.0, no fields", "GET /x HTTP/1.0\r\nA: b\r\n\r\n", 0, "/x", ""},
    {"one empty line first", "\r\n" OK_HEAD "\r\n", 0, "/", ""},
    {"empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 0, "/", ""},
    {"tab in a value", OK_HEAD "A: b\tc\r\n\r\n", 0, "/", ""},
    {"latin-1 in a value", OK_HEAD "A: \xe9\r\n\r\n", 0, "/", ""},
    {"length", "POST / HTTP/1.1\r\n" HOST "Content-Length: 12\r\n\r\n", 0, "/", ""},
    {"length with blanks", "POST / HTTP/1.1\r\n" HOST "Content-Length:  12 \r\n\r\n", 0, "/", ""},
    {"chunked", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: Chunked\r\n\r\n", 0, "/", ""},

    {"two empty lines first", "\r\n\r\n" OK_HEAD "\r\n", 400, NULL, NULL},
    {"length and coding",
     "POST / HTTP/1.1\r\n" HOST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
     NULL, NULL},
    {"coding and length",
     "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400,
     NULL, NULL},
    {"two lengths", "POST / HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
     400, NULL, NULL},
    {"two equal lengths",
     "POST / HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 3\r\n\r\n", 400, NULL, NULL},
    {"list of lengths", "POST / HTTP/1.1\r\n" HOST "Content-Length: 3, 3\r\n\r\n", 400, NULL, NULL},
    {"signed length", "POST / HTTP/1.1\r\n" HOST "Content-Length: +3\r\n\r\n", 400, NULL, NULL},
    {"negative length", "POST / HTTP/1.1\r\n" HOST "Content-Length: -3\r\n\r\n", 400, NULL, NULL},
    {"hex length", "POST / HTTP/1.1\r\n" HOST "Content-Length: 0x3\r\n\r\n", 400, NULL, NULL},
    {"empty length", "POST / HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n", 400, NULL, NULL},
    {"long length", "POST / HTTP/1.1\r\n" HOST "Content-Length: 1000000000000000000\r\n\r\n", 400,
     NULL, NULL},
    {"two codings",
     "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
     400, NULL, NULL},
    {"gzip, chunked", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 400,
     NULL, NULL},
    {"identity", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: identity\r\n\r\n", 400, NULL, NULL},
    {"xchunked", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: xchunked\r\n\r\n", 400, NULL, NULL},
    {"vertical tab",
     "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: \x0b"
     "chunked\r\n\r\n",
     400, NULL, NULL},
    {"coding in 1.0", "POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", 400, NULL,
     NULL},
    {"blank before colon", "POST / HTTP/1.1\r\n" HOST "Content-Length : 3\r\n\r\n", 400, NULL,
     NULL},
    {"tab before colon", "POST / HTTP/1.1\r\n" HOST "Content-Length\t: 3\r\n\r\n", 400, NULL, NULL},
    {"blank in a name", OK_HEAD "A b: c\r\n\r\n", 400, NULL, NULL},
    {"empty name", OK_HEAD ": c\r\n\r\n", 400, NULL, NULL},
    {"no colon", OK_HEAD "abc\r\n\r\n", 400, NULL, NULL},
    {"bracket in a name", OK_HEAD "A[0]: c\r\n\r\n", 400, NULL, NULL},
    {"folded", OK_HEAD "A: b\r\n c\r\n\r\n", 400, NULL, NULL},
    {"folded by tab", OK_HEAD "A: b\r\n\tc\r\n\r\n", 400, NULL, NULL},
    {"bare LF", "GET / HTTP/1.1\n" HOST "\r\n", 400, NULL, NULL},
    {"bare LF after a field", "GET / HTTP/1.1\r\nHost: a\n\r\n", 400, NULL, NULL},
    {"bare LF at the end", OK_HEAD "\n", 400, NULL, NULL},
    {"bare CR", OK_HEAD "A: b\rC: d\r\n\r\n", 400, NULL, NULL},
    {"bare CR in the line", "GET /\r HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"CR CR LF", OK_HEAD "A: b\r\r\n\r\n", 400, NULL, NULL},
    {"control byte", OK_HEAD "A: b\x01\r\n\r\n", 400, NULL, NULL},
    {"delete byte", OK_HEAD "A: b\x7f\r\n\r\n", 400, NULL, NULL},
    {"blank first", " GET / HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"tab in the line", "GET\t/ HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"two blanks", "GET  / HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"blank at the line's end", "GET / HTTP/1.1 \r\n" HOST "\r\n", 400, NULL, NULL},
    {"blank in the target", "GET /a b HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"no version", "GET /\r\n\r\n", 400, NULL, NULL},
    {"not HTTP", "GET / HTTQ/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"long version", "GET / HTTP/1.10\r\n" HOST "\r\n", 400, NULL, NULL},
    {"version 1.2", "GET / HTTP/1.2\r\n" HOST "\r\n", 505, NULL, NULL},
    {"version 2.0", "GET / HTTP/2.0\r\n" HOST "\r\n", 505, NULL, NULL},
    {"version 0.9", "GET / HTTP/0.9\r\n" HOST "\r\n", 505, NULL, NULL},
    {"unknown method", "BREW / HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"small method", "get / HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"no slash", "GET a HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"asterisk", "OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"authority", "CONNECT a:80 HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"other scheme", "GET ftp://a/ HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"no authority", "GET http:///a HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"fragment", "GET /a#b HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"raw UTF-8 in the target", "GET /\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"encoded NUL", "GET /a%00 HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"encoded LF", "GET /a%0a HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"encoded slash", "GET /a%2Fb HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"cut encoding", "GET /a%2 HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"bad encoding", "GET /a%zz HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"not UTF-8", "GET /%c3%28 HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"overlong UTF-8", "GET /%c0%af HTTP/1.1\r\n" HOST "\r\n", 400, NULL, NULL},
    {"no host", "GET / HTTP/1.1\r\nA: b\r\n\r\n", 400, NULL, NULL},
    {"no fields", "GET / HTTP/1.1\r\n\r\n", 400, NULL, NULL},
    {"two hosts", OK_HEAD "Host: b\r\n\r\n", 400, NULL, NULL},
    {"two hosts in 1.0", "GET / HTTP/1.0\r\n" HOST HOST "\r\n", 400, NULL, NULL},
    {"host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, NULL, NULL},
    {"host with a user", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400, NULL, NULL},
    {"TLS hello", "\x16\x03\x01", 400, NULL, NULL},
};

/* Scans in pieces of `step` bytes, then parses. The status; 0 if taken, -1 if unfinished. */
static int read_head(const char *bytes, size_t length, size_t step, struct berth_http1_head *head)
{
    static char copy[1 << 16];
    struct berth_http1_scan scan = {0};
    struct berth_err err;
    int status = -1;
    assert_true(length <= sizeof(copy));
    memcpy(copy, bytes, length);
    for (size_t there = step;; there += step) {
        there = there < length ? there : length;
        switch (berth_http1_scan(&scan, copy, there, &status, &err)) {
        case BERTH_HTTP1_WRONG:
            assert_int_equal(err.code, BERTH_INVALID);
            return status;
        case BERTH_HTTP1_DONE:
            return berth_http1_parse(copy + scan.start, scan.at - scan.start, head, &status,
                                     &err) == BERTH_HTTP1_DONE
                       ? 0
                       : status;
        default:
            break;
        }
        if (there == length) {
            return -1;
        }
    }
}

static void test_heads(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(head_cases); i++) {
        const struct head_case *one = &head_cases[i];
        for (size_t step = 1; step <= strlen(one->bytes); step++) {
            struct berth_http1_head head;
            int status = read_head(one->bytes, strlen(one->bytes), step, &head);
            if (status != one->status) {
                fail_msg("%s, by %zu: %d, not %d", one->name, step, status, one->status);
            }
            if (one->path != NULL) {
                assert_string_equal(head.path, one->path);
                assert_string_equal(head.query, one->query);
            }
        }
    }
}

static void test_nul(void **state)
{
    static const char bytes[] = "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n";
    struct berth_http1_head head;
    assert_int_equal(read_head(bytes, sizeof(bytes) - 1, 7, &head), 400);
}

static void test_fields(void **state)
{
    struct berth_http1_head head;
    const char *bytes = "POST /x HTTP/1.1\r\nHost: a\r\nEMPTY:\r\nBlank: \t \r\nx-y:  b c \t\r\n"
                        "Expect: 100-Continue\r\nContent-Encoding: gzip\r\n"
                        "Connection: foo, close\r\nContent-Length: 7\r\n\r\n";
    assert_int_equal(read_head(bytes, strlen(bytes), 1000, &head), 0);
    assert_string_equal(head.method, "POST");
    assert_int_equal(head.field_count, 8);
    assert_string_equal(head.fields[1].name, "EMPTY");
    assert_string_equal(head.fields[1].value, "");
    assert_string_equal(head.fields[2].value, "");
    assert_string_equal(head.fields[3].name, "x-y");
    assert_string_equal(head.fields[3].value, "b c");
    assert_int_equal(head.content_length, 7);
    assert_true(head.expect_continue);
    assert_false(head.keep_alive);
    assert_false(head.chunked);
    assert_int_equal(head.coding, BERTH_HTTP1_GZIP);
    bytes = "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\nContent-Encoding: br\r\n\r\n";
    assert_int_equal(read_head(bytes, strlen(bytes), 1000, &head), 0);
    assert_true(head.keep_alive);
    assert_int_equal(head.coding, BERTH_HTTP1_CODING_UNKNOWN);
    bytes = "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\nConnection: close\r\n\r\n";
    assert_int_equal(read_head(bytes, strlen(bytes), 1000, &head), 0);
    assert_false(head.keep_alive);
}

static void test_field_count(void **state)
{
    struct berth_http1_head head;
    char bytes[8192];
    for (int count = 99; count <= 101; count++) { /* with Host: one more */
        size_t length = (size_t)snprintf(bytes, sizeof(bytes), "GET / HTTP/1.1\r\nHost: a\r\n");
        for (int i = 1; i < count; i++) {
            length += (size_t)snprintf(bytes + length, sizeof(bytes) - length, "H%d: %d\r\n", i, i);
        }
        length += (size_t)snprintf(bytes + length, sizeof(bytes) - length, "\r\n");
        assert_int_equal(read_head(bytes, length, 100, &head), count <= 100 ? 0 : 431);
    }
}

struct chunk_case {
    const char *bytes;
    const char *body; /* NULL: refused */
};

static const struct chunk_case chunk_cases[] = {
    {"0\r\n\r\n", ""},
    {"5\r\nhello\r\n0\r\n\r\n", "hello"},
    {"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "abcde"},
    {"00a\r\n0123456789\r\n00\r\n\r\n", "0123456789"},
    {"A;x=y;z=\"q\"\r\n0123456789\r\n0;e\r\n\r\n", "0123456789"},
    {"1\r\nx\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n", "x"},
    {"\r\n", NULL},
    {"g\r\n", NULL},
    {"-1\r\n", NULL},
    {"0x1\r\nx\r\n", NULL},
    {" 1\r\nx\r\n", NULL},
    {"1 \r\nx\r\n", NULL},
    {";x\r\n", NULL},
    {"1\nx\r\n", NULL},
    {"1\rx", NULL},
    {"1\r\nxy\r\n", NULL},
    {"1\r\nx\n", NULL},
    {"1\r\nx\rz", NULL},
    {"1;\x01\r\n", NULL},
    {"1;a\n\r\n", NULL},
    {"0\r\n\n", NULL},
    {"0\r\n: x\r\n", NULL},
    {"0\r\n a\r\n", NULL},
    {"0\r\na\r\n\r\n", NULL},
    {"0\r\na b: c\r\n\r\n", NULL},
    {"0\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", NULL},
    {"0\r\na: \x01\r\n", NULL},
    {"0\r\na: b\n", NULL},
    {"1000000000000000\r\n", NULL},
};

/* -1: refused; else the body's length. */
static int read_chunks(const char *bytes, size_t length, size_t step, char *body)
{
    struct berth_http1_chunks chunks = {0};
    struct berth_err err;
    size_t at = 0, made = 0;
    for (size_t there = step;; there += step) {
        there = there < length ? there : length;
        enum berth_http1_result result = BERTH_HTTP1_DATA;
        while (result == BERTH_HTTP1_DATA) {
            size_t used = 0;
            result = berth_http1_chunk(&chunks, bytes + at, there - at, &used, &err);
            at += used;
            if (result == BERTH_HTTP1_WRONG) {
                return -1;
            }
            if (result == BERTH_HTTP1_DONE) {
                assert_int_equal(at, length);
                return (int)made;
            }
            if (result == BERTH_HTTP1_DATA) {
                size_t data = there - at < chunks.left ? there - at : chunks.left;
                if (data == 0) {
                    break;
                }
                memcpy(body + made, bytes + at, data);
                made += data;
                at += data;
                berth_http1_chunk_skip(&chunks, data);
            }
        }
        assert_true(there < length);
    }
}

static void test_chunks(void **state)
{
    char body[256];
    for (size_t i = 0; i < BERTH_COUNT_OF(chunk_cases); i++) {
        const struct chunk_case *one = &chunk_cases[i];
        for (size_t step = 1; step <= strlen(one->bytes); step++) {
            int length = read_chunks(one->bytes, strlen(one->bytes), step, body);
            if (one->body == NULL ? length != -1 : length != (int)strlen(one->body)) {
                fail_msg("chunk case %zu by %zu: %d", i, step, length);
            }
            if (one->body != NULL) {
                assert_memory_equal(body, one->body, strlen(one->body));
            }
        }
    }
}

static void test_chunk_limits(void **state)
{
    char bytes[BERTH_HTTP1_TRAILER_BYTES_MAX + 64];
    char body[8];
    for (int over = 0; over <= 1; over++) { /* a size's line: "1;xxx" and its CR */
        size_t line = BERTH_HTTP1_CHUNK_LINE_MAX + (size_t)over;
        memset(bytes, 'x', line);
        memcpy(bytes, "1;", 2);
        memcpy(bytes + line - 1, "\r\nA\r\n0\r\n\r\n", 11);
        assert_int_equal(read_chunks(bytes, line + 9, 1, body), over ? -1 : 1);
    }
    for (int over = 0; over <= 1; over++) { /* trailer lines; each LF is not counted */
        size_t trailer = BERTH_HTTP1_TRAILER_BYTES_MAX + (size_t)over;
        memcpy(bytes, "0\r\n", 3);
        memset(bytes + 3, 'x', trailer);
        bytes[4] = ':';
        memcpy(bytes + 3 + trailer - 2, "\r\n\r\n", 5);
        assert_int_equal(read_chunks(bytes, trailer + 5, 1, body), over ? -1 : 0);
    }
}

/* What a front may not do is take the rest of a refused request for the next one. */
static void test_wire(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    for (size_t i = 0; i < BERTH_COUNT_OF(head_cases); i++) {
        const struct head_case *one = &head_cases[i];
        if (one->status == 0) {
            continue;
        }
        int heads = atomic_load(&script.heads);
        int fd = client_connect(&script);
        client_puts(fd, one->bytes);
        client_puts(fd, "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        struct reply reply = client_read(fd, true);
        if (reply.status != one->status) {
            fail_msg("%s: %d, not %d", one->name, reply.status, one->status);
        }
        assert_non_null(strcasestr(reply.head, "connection: close"));
        free(reply.body);
        client_expect_end(fd);
        close(fd);
        assert_int_equal(atomic_load(&script.heads), heads);
    }
    script_stop(&script);
}

static void test_head_limit(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    for (int over = 0; over <= 1; over++) {
        static char bytes[20000];
        int fd = client_connect(&script);
        size_t start = (size_t)snprintf(bytes, sizeof(bytes), "GET / HTTP/1.1\r\nHost: a\r\nA: ");
        size_t length = 16384 + (size_t)over; /* head_bytes_max */
        memset(bytes + start, 'x', length - start);
        memcpy(bytes + length - 4, "\r\n\r\n", 5);
        client_send(fd, bytes, length);
        client_expect(fd, over ? 431 : 200, NULL);
        close(fd);
    }
    script_stop(&script);
}

static void test_bytes_one_by_one(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    const char *bytes =
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    int fd = client_connect(&script);
    for (const char *at = bytes; *at != '\0'; at++) {
        client_send(fd, at, 1);
        if ((at - bytes) % 7 == 0) {
            usleep(200);
        }
    }
    client_expect(fd, 200, "hello");
    client_expect(fd, 200, "abcde");
    client_expect(fd, 200, "hello");
    close(fd);
    script_stop(&script);
}

/* Whatever comes, the server lives, and answers the next. */
static void test_garbage(void **state)
{
    struct script script;
    uint64_t random = 88172645463325252ULL;
    script_start(&script, 64 << 20, NULL);
    for (int round = 0; round < 300; round++) {
        char bytes[600];
        size_t length = 0;
        int fd = client_connect(&script);
        if (round % 3 == 0) {
            length = (size_t)snprintf(bytes, sizeof(bytes),
                                      "POST /echo HTTP/1.1\r\nHost: a\r\n%s\r\n",
                                      round % 2 == 0 ? "Transfer-Encoding: chunked\r\n"
                                                     : "Content-Encoding: gzip\r\n"
                                                       "Content-Length: 300\r\n");
        }
        for (; length < sizeof(bytes); length++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes[length] = (char)(round % 5 == 0 ? random % 96 + 32 : random);
        }
        client_send(fd, bytes, sizeof(bytes));
        if (round % 4 == 0) {
            shutdown(fd, SHUT_WR);
        }
        close(fd);
    }
    int fd = client_connect(&script);
    client_puts(fd, OK_HEAD "\r\n");
    client_expect(fd, 200, "hello");
    close(fd);
    script_stop(&script);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_field_count),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_chunk_limits),
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_head_limit),
        cmocka_unit_test(test_bytes_one_by_one),
        cmocka_unit_test(test_garbage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
