/* test_child.c - child processes of every kind of end, and when the next one is due; time is made
 * up, and only waited for where a process has to end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/mem.h"

static enum berth_code start(struct berth_child *child, const char *script, uint64_t now_ns)
{
    char name[] = "sh", flag[] = "-c", text[200] = "", variable[] = "BERTH_CHILD=yes";
    char *argv[] = {name, flag, text, NULL};
    char *environment[] = {variable, NULL};
    struct berth_err err = {0};
    struct berth_child_options options = {.what = "a child",
                                          .program = "/bin/sh",
                                          .argv = argv,
                                          .environment = environment,
                                          .buffer_bytes = 100000};
    strncat(text, script, sizeof(text) - 1);
    return berth_child_start(child, &options, now_ns, &err);
}

static void wait_for_end(struct berth_child *child, uint64_t now_ns)
{
    while (!berth_child_reap(child, now_ns)) {
        usleep(1000);
    }
    assert_int_equal(child->state, BERTH_CHILD_DOWN);
    assert_int_equal(child->pid, -1);
    assert_int_equal(child->fd, -1);
}

/* Its socket, nothing to read, nowhere to print, and the environment that was given. */
static void a_child_has_what_it_was_given(void **state)
{
    struct berth_child child;
    char said[64] = "";
    berth_child_init(&child, 0);
    assert_int_equal(start(&child,
                           "read x; echo no; echo \"$BERTH_CHILD:$HOME:\" >&3; exit 7", 5),
                     BERTH_OK);
    assert_int_equal(child.state, BERTH_CHILD_STARTING);
    assert_true(recv(child.fd, said, sizeof(said) - 1, 0) > 0);
    assert_string_equal(said, "yes::\n");
    assert_int_equal(recv(child.fd, said, sizeof(said), 0), 0);
    berth_child_ready(&child, 6);
    berth_child_leave(&child, 7);
    wait_for_end(&child, 8);
    assert_string_equal(child.ending, "exit status 7");
    assert_true(child.was_ready);
    assert_int_equal(child.t_start_ns, 8); /* at once */
    berth_child_finish(&child);
}

/* Ends before it was calm are failures in a row, and the pauses between them grow; one calm child
 * ends the row. */
static void pauses_grow_until_one_is_calm(void **state)
{
    static const uint64_t pauses_ms[] = {100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000};
    struct berth_child child;
    uint64_t now_ns = 1;
    berth_child_init(&child, 10 * BERTH_NS_PER_S);
    for (size_t i = 0; i < BERTH_COUNT_OF(pauses_ms); i++) {
        assert_int_equal(start(&child, "read x <&3", now_ns), BERTH_OK);
        if (i % 2 == 0) {
            berth_child_ready(&child, now_ns);
        }
        berth_child_kill(&child, now_ns + 10 * BERTH_NS_PER_S - 1);
        berth_child_kill(&child, now_ns); /* it is dying already */
        wait_for_end(&child, now_ns);
        assert_string_equal(child.ending, "signal 9 (Killed)");
        assert_int_equal(child.was_ready, i % 2 == 0);
        assert_int_equal(child.failed_in_row, i + 1);
        assert_int_equal(child.t_start_ns, now_ns + pauses_ms[i] * BERTH_NS_PER_MS);
        now_ns = child.t_start_ns;
    }
    assert_int_equal(start(&child, "read x <&3", now_ns), BERTH_OK);
    berth_child_ready(&child, now_ns);
    berth_child_kill(&child, now_ns + 10 * BERTH_NS_PER_S);
    wait_for_end(&child, now_ns);
    assert_int_equal(child.failed_in_row, 0);
    assert_int_equal(child.t_start_ns, now_ns);
    berth_child_finish(&child);
}

static void one_that_cannot_be_started(void **state)
{
    struct berth_child child;
    struct berth_err err = {0};
    char name[] = "none";
    char *argv[] = {name, NULL};
    struct berth_child_options options = {
        .what = "a child", .program = "/does/not/exist", .argv = argv};
    berth_child_init(&child, 0);
    for (uint64_t i = 1; i <= 2; i++) {
        assert_int_equal(berth_child_start(&child, &options, 5, &err), BERTH_UNAVAILABLE);
        assert_non_null(strstr(err.msg, "cannot start a child (/does/not/exist)"));
        assert_int_equal(child.state, BERTH_CHILD_DOWN);
        assert_int_equal(child.t_start_ns, 5 + i * 100 * BERTH_NS_PER_MS);
    }
    assert_false(berth_child_reap(&child, 5));
    berth_child_kill(&child, 5);
    berth_child_leave(&child, 5);
    assert_int_equal(child.state, BERTH_CHILD_DOWN);
}

/* Told to end and deaf to it: killed after some seconds. */
static void one_that_does_not_leave(void **state)
{
    struct berth_child child;
    berth_child_init(&child, 0);
    assert_int_equal(start(&child, "while :; do sleep 1; done", 1), BERTH_OK);
    berth_child_ready(&child, 1);
    berth_child_leave(&child, 1);
    assert_int_equal(child.fd, -1);
    assert_false(berth_child_reap(&child, 2));
    wait_for_end(&child, 60 * BERTH_NS_PER_S);
    assert_string_equal(child.ending, "signal 9 (Killed)");
    assert_int_equal(child.failed_in_row, 0);
    assert_int_equal(start(&child, "while :; do sleep 1; done", 1), BERTH_OK);
    berth_child_finish(&child); /* whatever it does */
    assert_int_equal(child.state, BERTH_CHILD_DOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_has_what_it_was_given),
        cmocka_unit_test(pauses_grow_until_one_is_calm),
        cmocka_unit_test(one_that_cannot_be_started),
        cmocka_unit_test(one_that_does_not_leave),
    };
    return cmocka_run_group_tests_name("child", tests, NULL, NULL);
}
