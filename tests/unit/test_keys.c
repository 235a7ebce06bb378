/* API keys: what a file of them may hold, and whom it lets in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "api/call.h"

/* SHA-256 of "secret". */
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
#define KEY "sha256:" SECRET
#define KEY_BYTES (sizeof(KEY) - 1)
#define LINE_MAX_BYTES 512 /* keys.c's limits */
#define COUNT_MAX 10000
#define FILE_BYTES_MAX (8u << 20)

static enum berth_code read_bytes(const char *bytes, size_t length, struct berth_key_set **out,
                                  struct berth_err *err)
{
    char path[] = "/tmp/berth-test-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), length);
    close(fd);
    enum berth_code code = berth_keys_read(path, out, err);
    unlink(path);
    return code;
}

static void files_are_judged(void **state)
{
#define B(text) (text), sizeof(text) - 1
    static const struct {
        const char *bytes;
        size_t length;
        enum berth_code code;
        const char *says;
    } cases[] = {
        {B(KEY "\n"), BERTH_OK, ""},
        {B(KEY), BERTH_OK, ""},
        {B("# keys\n\n  " KEY " the first # one\r\n"), BERTH_OK, ""},
        {B("sha256:2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B\tI"), BERTH_OK,
         ""},
        {B(""), BERTH_INVALID, "no key"},
        {B("# none\n"), BERTH_INVALID, "no key"},
        {B("# " KEY "\n"), BERTH_INVALID, "no key"},
        {B("\nsecret\n"), BERTH_INVALID, "line 2"},
        {B("sha256:2bb8\n"), BERTH_INVALID, "line 1"},
        {B(KEY "\nsha256:"), BERTH_INVALID, "line 2"},
        {B(KEY "0\n"), BERTH_INVALID, "more than 64"},
        {B("\xEF\xBB\xBF" KEY), BERTH_INVALID, "line 1"},
        /* A NUL hides nothing: neither the rest of a line nor how long it is. */
        {B(KEY "\n" KEY "\0" "0\n"), BERTH_INVALID, "line 2: has a NUL"},
        {B("#\0\n" KEY), BERTH_INVALID, "line 1: has a NUL"},
        {B(KEY "\n\0"), BERTH_INVALID, "line 2: has a NUL"},
        {B("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
         BERTH_INVALID, "empty key"},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_key_set *keys = NULL;
        struct berth_err err = {0};
        assert_int_equal(read_bytes(cases[i].bytes, cases[i].length, &keys, &err), cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].says));
        assert_true((keys != NULL) == (cases[i].code == BERTH_OK));
        berth_keys_destroy(keys);
    }
}

/* `count` lines of one key, its name making each of them `bytes` long; then a comment up to
 * `total` bytes, where that is not 0. */
static void limits_are_kept(void **state)
{
    static const struct {
        size_t count, bytes, total;
        enum berth_code code;
        const char *says;
    } cases[] = {
        {1, LINE_MAX_BYTES, 0, BERTH_OK, ""},
        {1, LINE_MAX_BYTES + 1, 0, BERTH_INVALID, "line 1: longer than 512"},
        {COUNT_MAX, KEY_BYTES + 1, 0, BERTH_OK, ""},
        {COUNT_MAX + 1, KEY_BYTES + 1, 0, BERTH_TOO_LARGE, "more than 10000 keys"},
        {COUNT_MAX, LINE_MAX_BYTES, 0, BERTH_OK, ""},
        {1, KEY_BYTES + 1, FILE_BYTES_MAX, BERTH_OK, ""},
        {1, KEY_BYTES + 1, FILE_BYTES_MAX + 1, BERTH_TOO_LARGE, "larger than"},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_key_set *keys = NULL;
        struct berth_err err = {0};
        size_t lines = cases[i].count * (cases[i].bytes + 1);
        size_t length = cases[i].total > lines ? cases[i].total : lines;
        char *text = malloc(length);
        assert_non_null(text);
        memset(text, '\n', length);
        for (size_t at = 0; at < lines; at += cases[i].bytes + 1) {
            memcpy(text + at, KEY " ", KEY_BYTES + 1);
            memset(text + at + KEY_BYTES + 1, 'n', cases[i].bytes - KEY_BYTES - 1);
        }
        assert_int_equal(read_bytes(text, length, &keys, &err), cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].says));
        berth_keys_destroy(keys);
        free(text);
    }
}

/* What is no file is refused at once, by the name it has. */
static void only_files_are_read(void **state)
{
    char folder[] = "/tmp/berth-test-keys-XXXXXX", fifo[sizeof(folder) + 8];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(fifo, sizeof(fifo), "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const struct {
        const char *path;
        enum berth_code code;
    } cases[] = {
        {fifo, BERTH_INVALID},
        {folder, BERTH_INVALID},
        {"/dev/zero", BERTH_INVALID},
        {"/does/not/exist", BERTH_NOT_FOUND},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_key_set *keys = NULL;
        struct berth_err err = {0};
        assert_int_equal(berth_keys_read(cases[i].path, &keys, &err), cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].path));
        assert_null(keys);
    }
    unlink(fifo);
    rmdir(folder);
}

static void only_known_keys_come_in(void **state)
{
    static const struct {
        const char *authorization;
        enum berth_code code;
    } cases[] = {
        {"Bearer secret", BERTH_OK},
        {"bearer secret", BERTH_OK},
        {"Bearer Secret", BERTH_UNAUTHENTICATED},
        {"Bearer ", BERTH_UNAUTHENTICATED},
        {"Basic secret", BERTH_UNAUTHENTICATED},
        {"", BERTH_UNAUTHENTICATED},
        {NULL, BERTH_UNAUTHENTICATED},
    };
    struct berth_key_set *keys = NULL;
    struct berth_err err = {0};
    (void)state;
    assert_int_equal(read_bytes(KEY " me\n", KEY_BYTES + 4, &keys, &err), BERTH_OK);
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        assert_int_equal(berth_keys_check(keys, cases[i].authorization, &err), cases[i].code);
    }
    berth_keys_destroy(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_judged),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(only_files_are_read),
        cmocka_unit_test(only_known_keys_come_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
