/* test_loop.c - the front as a whole: a server in this process, driven over sockets. */
#include "net_test.h"

static void test_hello(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    for (int i = 0; i < 3; i++) {
        client_puts(fd, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        client_expect(fd, 200, "hello");
    }
    client_puts(fd, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client_expect(fd, 200, "hello");
    client_expect_end(fd);
    close(fd);
    script_stop(&script);
}

static void echo(int fd, size_t length)
{
    char head[128];
    char *body = malloc(length + 1);
    for (size_t i = 0; i < length; i++) {
        body[i] = (char)(i * 2654435761u >> 13);
    }
    snprintf(head, sizeof(head), "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
             length);
    client_puts(fd, head);
    client_send(fd, body, length);
    struct reply reply = client_read(fd, true);
    assert_int_equal(reply.status, 200);
    assert_int_equal(reply.length, length);
    assert_memory_equal(reply.body, body, length);
    free(reply.body);
    free(body);
}

static void test_echo(void **state)
{
    struct script script;
    script_start(&script, 64 << 20, NULL);
    int fd = client_connect(&script);
    echo(fd, 0);
    echo(fd, 1);
    echo(fd, 64);
    echo(fd, 5000);
    echo(fd, 3 << 20);
    echo(fd, 16 << 20);
    echo(fd, 64);
    close(fd);
    script_stop(&script);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_echo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
