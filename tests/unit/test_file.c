/* Names from outside: what is no regular file is refused without waiting for it. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"

static char folder[] = "/tmp/berth-test-file-XXXXXX";
static char path[sizeof(folder) + 20];

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    FILE *file = fopen(in_folder("whole"), "wb");
    bool good = file != NULL && fputs("12345", file) >= 0;
    good = (file == NULL || fclose(file) == 0) && good;
    good = good && symlink("ring", in_folder("ring")) == 0;
    good = good && mkfifo(in_folder("fifo"), 0600) == 0 && mkdir(in_folder("folder"), 0700) == 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", in_folder("socket"));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    good = good && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return good ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    unlink(in_folder("whole"));
    unlink(in_folder("ring"));
    unlink(in_folder("fifo"));
    unlink(in_folder("socket"));
    rmdir(in_folder("folder"));
    return rmdir(folder);
}

static void a_file_is_read(void **state)
{
    char text[8] = "";
    struct berth_err err = {0};
    uint64_t bytes = 0;
    int fd = -1;
    (void)state;
    assert_int_equal(berth_file_open(in_folder("whole"), &fd, &bytes, &err), BERTH_OK);
    assert_int_equal(bytes, 5);
    assert_int_equal(berth_file_read(fd, text, 2), 2);
    assert_int_equal(berth_file_read(fd, text + 2, 6), 3); /* the end comes first */
    assert_string_equal(text, "12345");
    assert_int_equal(berth_file_read(fd, text, 1), 0);
    close(fd);
    assert_int_equal(berth_file_read(-1, text, 1), -1);
}

static void what_is_no_file_is_refused(void **state)
{
    static const struct {
        const char *name;
        enum berth_code code;
        int said; /* errno; 0: it is no file */
    } cases[] = {
        {"fifo", BERTH_INVALID, 0},
        {"folder", BERTH_INVALID, 0},
        {"socket", BERTH_INVALID, 0},
        {"/dev/tty", BERTH_INVALID, 0},
        {"/dev/zero", BERTH_INVALID, 0},
        {"nothing", BERTH_NOT_FOUND, ENOENT},
        {"whole/below", BERTH_NOT_FOUND, ENOTDIR},
        {"ring", BERTH_INVALID, ELOOP},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        uint64_t bytes = 0;
        int fd = -1;
        const char *name = cases[i].name;
        name = name[0] == '/' ? name : in_folder(name);
        enum berth_code code = berth_file_open(name, &fd, &bytes, &err);
        int said = errno;
        assert_int_equal(code, cases[i].code);
        assert_int_equal(said, cases[i].said);
        assert_non_null(strstr(err.msg, name));
        assert_non_null(strstr(err.msg, said == 0 ? "is not a file" : strerror(said)));
        assert_int_equal(fd, -1);
    }
}

static void a_small_file_is_loaded_whole(void **state)
{
    struct berth_err err = {0};
    char *text = NULL;
    size_t length = 0;
    (void)state;
    assert_int_equal(berth_file_load(in_folder("whole"), 5, &text, &length, &err), BERTH_OK);
    assert_int_equal(length, 5);
    assert_string_equal(text, "12345");
    berth_free(text);
    text = NULL;
    assert_int_equal(berth_file_load(path, 4, &text, &length, &err), BERTH_TOO_LARGE);
    assert_non_null(strstr(err.msg, "larger than 4 bytes"));
    assert_int_equal(berth_file_load(in_folder("fifo"), 5, &text, &length, &err), BERTH_INVALID);
    assert_int_equal(berth_file_load(in_folder("nothing"), 5, &text, &length, &err),
                     BERTH_NOT_FOUND);
    uint64_t live = berth_mem_bytes_live();
    berth_mem_fail_at(1, false);
    enum berth_code code = berth_file_load(in_folder("whole"), 5, &text, &length, &err);
    berth_mem_fail_at(0, false);
    assert_int_equal(code, BERTH_UNAVAILABLE);
    assert_null(text);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void no_descriptors_are_our_trouble(void **state)
{
    struct rlimit limit, none;
    struct berth_err err = {0};
    uint64_t bytes = 0;
    int fd = -1;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum berth_code code = berth_file_open(in_folder("whole"), &fd, &bytes, &err);
    int said = errno;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(code, BERTH_UNAVAILABLE);
    assert_int_equal(said, EMFILE);
    assert_non_null(strstr(err.msg, strerror(EMFILE)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(a_small_file_is_loaded_whole),
        cmocka_unit_test(no_descriptors_are_our_trouble),
    };
    return cmocka_run_group_tests_name("file", tests, setup, teardown);
}
