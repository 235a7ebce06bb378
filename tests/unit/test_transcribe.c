/* test_transcribe.c - a recording that cannot be read: `berth transcribe` says what the system
 * said, and calls "not a regular file" only what is none. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "cli/transcribe.c"

#define NOBODY 65534

static char folder[] = "/tmp/berth-test-transcribe-XXXXXX";
static char path[sizeof(folder) + 16];

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static int setup(void **state)
{
    int fd = mkdtemp(folder) == NULL ? -1 : open(in_folder("closed"), O_CREAT | O_WRONLY, 0);
    close(open(in_folder("empty"), O_CREAT | O_WRONLY, 0600));
    bool good = fd >= 0 && symlink("ring", in_folder("ring")) == 0 &&
                mkfifo(in_folder("fifo"), 0600) == 0;
    close(fd);
    return good ? 0 : -1;
}

static int teardown(void **state)
{
    static const char *const names[] = {"closed", "empty", "ring", "fifo"};
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        unlink(in_folder(names[i]));
    }
    return rmdir(folder);
}

static void what_the_system_said_is_said(void **state)
{
    static const struct {
        const char *name;
        bool descriptors; /* are there any left? */
        enum berth_code code;
        int said; /* 0: the text below */
        const char *text;
    } cases[] = {
        {"nothing", true, BERTH_NOT_FOUND, ENOENT, NULL},
        {"empty/below", true, BERTH_NOT_FOUND, ENOTDIR, NULL},
        {"ring", true, BERTH_INVALID, ELOOP, NULL},
        {"closed", true, BERTH_INVALID, EACCES, NULL},
        {"empty", false, BERTH_UNAVAILABLE, EMFILE, NULL},
        {"fifo", true, BERTH_INVALID, 0, "not a regular file"},
        {".", true, BERTH_INVALID, 0, "not a regular file"},
        {"/dev/zero", true, BERTH_INVALID, 0, "not a regular file"},
        {"empty", true, BERTH_INVALID, 0, "the file is empty"},
    };
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        const char *name = cases[i].name;
        struct work work = {.path = name[0] == '/' ? name : in_folder(name)};
        struct berth_err err = {0};
        uid_t own = geteuid();
        bool lower = cases[i].said == EACCES && own == 0; /* root may read everything */
        assert_true(!lower || seteuid(NOBODY) == 0);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, cases[i].descriptors ? &limit : &none), 0);
        enum berth_code code = read_file(&work, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_true(!lower || seteuid(own) == 0);
        assert_int_equal(code, cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].said == 0 ? cases[i].text
                                                           : strerror(cases[i].said)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_the_system_said_is_said)};
    return cmocka_run_group_tests_name("transcribe", tests, setup, teardown);
}
