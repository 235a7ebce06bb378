/* test_stop.c - which signals are the same stop, and which end the process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/stop.h"

#define FIRST_NS UINT64_C(123456789)

static void a_second_later_is_another(void **state)
{
    static const struct {
        uint64_t after_ns;
        bool another;
    } cases[] = {
        {0, false},
        {1, false},
        {10 * BERTH_NS_PER_MS, false},
        {BERTH_STOP_ECHO_NS - 1, false},
        {BERTH_STOP_ECHO_NS, true},
        {BERTH_STOP_ECHO_NS + 1, true},
        {3600 * BERTH_NS_PER_S, true},
        {UINT64_MAX - FIRST_NS, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t t_first_ns = 0;
        assert_false(berth_stop_is_another(&t_first_ns, FIRST_NS));
        assert_int_equal(t_first_ns, FIRST_NS);
        assert_int_equal(berth_stop_is_another(&t_first_ns, FIRST_NS + cases[i].after_ns),
                         cases[i].another);
        assert_int_equal(t_first_ns, FIRST_NS); /* counted from the first, not from the last */
    }
}

static void a_row_of_them_is_counted_from_the_first(void **state)
{
    uint64_t t_first_ns = 0;
    for (uint64_t ms = 0; ms < 1000; ms += 100) {
        assert_false(berth_stop_is_another(&t_first_ns, FIRST_NS + ms * BERTH_NS_PER_MS));
    }
    assert_true(berth_stop_is_another(&t_first_ns, FIRST_NS + BERTH_NS_PER_S));
}

static void a_clock_behind_the_first_ends_nothing(void **state)
{
    uint64_t t_first_ns = FIRST_NS;
    assert_false(berth_stop_is_another(&t_first_ns, FIRST_NS - 1));
}

/* What is pending together is one stop, however late it is read. */
static void pending_together_is_one_stop(void **state)
{
    struct berth_stop stop;
    assert_true(berth_stop_init(&stop));
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGINT);
    berth_stop_wait_first(&stop);
    assert_int_not_equal(stop.t_first_ns, 0);
    stop.t_first_ns -= BERTH_STOP_ECHO_NS; /* so that any left behind would count */
    assert_false(berth_stop_wait_another(&stop, 0));
    assert_false(berth_stop_wait_another(&stop, BERTH_NS_PER_MS));
    kill(getpid(), SIGINT);
    assert_true(berth_stop_wait_another(&stop, 600 * BERTH_NS_PER_S));
    berth_stop_finish(&stop);
    sigprocmask(SIG_UNBLOCK, &stop.mask, NULL);
}

static void an_echo_does_not_end_a_wait(void **state)
{
    struct berth_stop stop;
    assert_true(berth_stop_init(&stop));
    stop.t_first_ns = berth_clock_now_ns() + 3600 * BERTH_NS_PER_S; /* all now is an echo */
    kill(getpid(), SIGTERM);
    assert_false(berth_stop_wait_another(&stop, BERTH_NS_PER_MS));
    berth_stop_finish(&stop);
    sigprocmask(SIG_UNBLOCK, &stop.mask, NULL);
}

/* When nobody waits any more: status 1 by a signal a second after the first, 0 by none before. */
static int status_of(uint64_t t_first_ns, int first_number, int second_number)
{
    pid_t child = fork();
    if (child == 0) {
        struct berth_stop stop;
        if (!berth_stop_init(&stop)) {
            _exit(9);
        }
        stop.t_first_ns = t_first_ns;
        kill(getpid(), first_number); /* pending already */
        berth_stop_let_end(&stop);
        kill(getpid(), second_number);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_handler_keeps_the_same_rule(void **state)
{
    uint64_t now_ns = berth_clock_now_ns();
    uint64_t later_ns = now_ns + 3600 * BERTH_NS_PER_S;
    assert_int_equal(status_of(later_ns, SIGTERM, SIGTERM), 0);
    assert_int_equal(status_of(later_ns, SIGINT, SIGTERM), 0);
    assert_int_equal(status_of(now_ns - BERTH_STOP_ECHO_NS, SIGTERM, SIGTERM), 1);
    assert_int_equal(status_of(now_ns - BERTH_STOP_ECHO_NS, SIGINT, SIGINT), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_later_is_another),
        cmocka_unit_test(a_row_of_them_is_counted_from_the_first),
        cmocka_unit_test(a_clock_behind_the_first_ends_nothing),
        cmocka_unit_test(pending_together_is_one_stop),
        cmocka_unit_test(an_echo_does_not_end_a_wait),
        cmocka_unit_test(the_handler_keeps_the_same_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
