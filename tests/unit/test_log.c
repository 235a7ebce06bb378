/* Lines as they reach standard error; what clients send cannot forge one, nor flood the log. */
#include "base/log.c"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char captured[16384];
static int pipe_fds[2];
static int stderr_saved;

static void capture_begin(void)
{
    assert_int_equal(pipe2(pipe_fds, O_NONBLOCK), 0);
    fflush(stderr);
    stderr_saved = dup(STDERR_FILENO);
    dup2(pipe_fds[1], STDERR_FILENO);
}

/* What was logged, after the time; the time's form is checked. */
static const char *capture_end(void)
{
    int year, month, day, hour, minute, second, us, end = 0;
    berth_log_flush();
    dup2(stderr_saved, STDERR_FILENO);
    close(stderr_saved);
    ssize_t length = read(pipe_fds[0], captured, sizeof(captured) - 1);
    captured[length > 0 ? length : 0] = '\0';
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    if (length <= 0) {
        return "";
    }
    assert_int_equal(sscanf(captured, "%4d-%2d-%2dT%2d:%2d:%2d.%6dZ %n", &year, &month, &day, &hour,
                            &minute, &second, &us, &end), 7);
    assert_int_equal(end, 28);
    return captured + end;
}

static void lines_have_their_form(void **state)
{
    (void)state;
    capture_begin();
    berth_log_info("sched", 42, "batch closed model=%s rows=%d", "identity", 8);
    assert_string_equal(capture_end(),
                        "INFO sched req=42 msg=\"batch closed\" model=identity rows=8\n");
    capture_begin();
    berth_log_warn("net", 0, "no keys at all");
    assert_string_equal(capture_end(), "WARN net msg=\"no keys at all\"\n");
}

static void nothing_forges_a_line(void **state)
{
    static const struct {
        const char *value;
        const char *line;
    } cases[] = {
        {"a b", "ERROR x msg=\"m\" key=\"a b\"\n"},
        {"", "ERROR x msg=\"m\" key=\"\"\n"},
        {"a\nERROR fake", "ERROR x msg=\"m\" key=\"a\\x0aERROR fake\"\n"},
        {"q\"\\", "ERROR x msg=\"m\" key=\"q\\\"\\\\\"\n"},
        {"v admin=true", "ERROR x msg=\"m\" key=\"v admin=true\"\n"},
        {"v\x1f" "admin=true", "ERROR x msg=\"m\\x1fkey=v\\x1f" "admin=true\"\n"},
        {"\x1b[31m", "ERROR x msg=\"m\" key=\"\\x1b[31m\"\n"},
        {"\xC3\xA9", "ERROR x msg=\"m\" key=\"\xC3\xA9\"\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        capture_begin();
        berth_log_error("x", 0, "m key=%s", cases[i].value);
        assert_string_equal(capture_end(), cases[i].line);
    }
}

static void long_texts_are_cut_in_one_line(void **state)
{
    static char long_text[5000];
    (void)state;
    memset(long_text, '\n', sizeof(long_text) - 1);
    capture_begin();
    berth_log_error("x", 0, "m key=%s", long_text);
    const char *line = capture_end();
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    assert_int_equal(line[strlen(line) - 2], '"');
}

static void levels(void **state)
{
    (void)state;
    assert_false(berth_log_enabled(BERTH_LOG_DEBUG));
    capture_begin();
    berth_log_debug("x", 0, "not shown");
    berth_log_set_level(BERTH_LOG_ERROR);
    berth_log_warn("x", 0, "not shown");
    berth_log_set_level(BERTH_LOG_DEBUG);
    berth_log_debug("x", 0, "shown");
    assert_string_equal(capture_end(), "DEBUG x msg=\"shown\"\n");
    berth_log_set_level(BERTH_LOG_INFO);
}

/* What an error does not have is not in its line. */
static void errors_tell_what_they_have(void **state)
{
    static const struct {
        const char *field;
        const char *file;
        const char *line;
    } cases[] = {
        {NULL, NULL, "WARN api msg=\"none left\" code=BUSY\n"},
        {"file", NULL, "WARN api msg=\"none left\" code=BUSY field=file\n"},
        {NULL, "x.c", "WARN api msg=\"none left\" code=BUSY at=x.c:7\n"},
        {NULL, "a/b/x.c", "WARN api msg=\"none left\" code=BUSY at=x.c:7\n"},
        {"file", "a/x.c", "WARN api msg=\"none left\" code=BUSY field=file at=x.c:7\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err;
        berth_fail(&err, BERTH_BUSY, "none left");
        err.field = cases[i].field;
        err.file = cases[i].file;
        err.line = 7;
        capture_begin();
        berth_log_err(BERTH_LOG_WARN, "api", 0, &err);
        assert_string_equal(capture_end(), cases[i].line);
    }
}

static void errors_tell_of_which_model(void **state)
{
    static const struct {
        const char *msg, *field, *file, *model, *line;
    } cases[] = {
        {"full", NULL, NULL, NULL, "WARN api req=9 msg=\"full\" code=BUSY\n"},
        {"full", NULL, NULL, "a-b.c", "WARN api req=9 msg=\"full\" code=BUSY model=a-b.c\n"},
        {"full", "x", "y.c", "a",
         "WARN api req=9 msg=\"full\" code=BUSY field=x model=a at=y.c:7\n"},
        {"full", NULL, "y.c", "a b=\"", "WARN api req=9 msg=\"full\" code=BUSY model=\"a b=\\\"\" "
                                       "at=y.c:7\n"},
        /* a mark in a client's words: all of it is the message */
        {"fu\x1fll=1", NULL, NULL, "a",
         "WARN api req=9 msg=\"fu\\x1fll=1\\x1fcode=BUSY\\x1fmodel=a\"\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err;
        berth_fail(&err, BERTH_BUSY, "%s", cases[i].msg);
        err.field = cases[i].field;
        err.file = cases[i].file;
        err.line = 7;
        capture_begin();
        berth_log_err_model(BERTH_LOG_WARN, "api", 9, &err, cases[i].model);
        assert_string_equal(capture_end(), cases[i].line);
    }
    char longest[256]; /* all that a line may have to take */
    memset(longest, 'm', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    struct berth_err err;
    berth_fail_field(&err, BERTH_BUSY, "field", "%.239s", longest);
    capture_begin();
    berth_log_err_model(BERTH_LOG_WARN, "api", 9, &err, longest);
    const char *line = capture_end();
    assert_non_null(strstr(line, longest));
    assert_non_null(strstr(line, " at=test_log.c:"));
}

static void errors_tell_where(void **state)
{
    struct berth_err err;
    (void)state;
    berth_fail_field(&err, BERTH_MEDIA, "file", "no audio in it");
    err.line = 7;
    capture_begin();
    berth_log_err(BERTH_LOG_WARN, "api", 3, &err);
    assert_string_equal(capture_end(), "WARN api req=3 msg=\"no audio in it\" code=MEDIA "
                                       "field=file at=test_log.c:7\n");
}

static void a_second_has_room_for_so_many(void **state)
{
    uint64_t left_out = 0;
    (void)state;
    berth_log_set_level(BERTH_LOG_INFO);
    has_room(BERTH_LOG_INFO, 100, &left_out); /* whatever was logged before */
    has_room(BERTH_LOG_INFO, 101, &left_out);
    for (int i = 1; i < LINES_MAX; i++) {
        assert_true(has_room(BERTH_LOG_WARN, 101, &left_out));
    }
    left_out = 0;
    assert_false(has_room(BERTH_LOG_WARN, 101, &left_out));
    assert_false(has_room(BERTH_LOG_INFO, 101, &left_out));
    assert_true(has_room(BERTH_LOG_ERROR, 101, &left_out));
    assert_int_equal(left_out, 0);
    assert_true(has_room(BERTH_LOG_INFO, 102, &left_out));
    assert_int_equal(left_out, 2);
    left_out = 0;
    assert_true(has_room(BERTH_LOG_INFO, 103, &left_out));
    assert_int_equal(left_out, 0);
    berth_log_set_level(BERTH_LOG_DEBUG);
    for (int i = 0; i < 2 * LINES_MAX; i++) {
        assert_true(has_room(BERTH_LOG_DEBUG, 103, &left_out));
    }
    berth_log_set_level(BERTH_LOG_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_their_form),
        cmocka_unit_test(nothing_forges_a_line),
        cmocka_unit_test(long_texts_are_cut_in_one_line),
        cmocka_unit_test(levels),
        cmocka_unit_test(errors_tell_what_they_have),
        cmocka_unit_test(errors_tell_of_which_model),
        cmocka_unit_test(errors_tell_where),
        cmocka_unit_test(a_second_has_room_for_so_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
