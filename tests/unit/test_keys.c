/* API keys: what a file of them may hold, and whom it lets in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "api/call.h"

/* SHA-256 of "secret". */
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

static enum berth_code read_text(const char *text, struct berth_key_set **out,
                                 struct berth_err *err)
{
    char path[] = "/tmp/berth-test-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    enum berth_code code = berth_keys_read(path, out, err);
    unlink(path);
    return code;
}

static void files_are_judged(void **state)
{
    char long_name[600] = "sha256:" SECRET " ";
    memset(long_name + strlen(long_name), 'n', sizeof(long_name) - 1 - strlen(long_name));
    const struct {
        const char *text;
        enum berth_code code;
        const char *says;
    } cases[] = {
        {"sha256:" SECRET "\n", BERTH_OK, ""},
        {"# keys\n\n  sha256:" SECRET " the first # one\r\n", BERTH_OK, ""},
        {"", BERTH_INVALID, "no key"},
        {"# none\n", BERTH_INVALID, "no key"},
        {"\nsecret\n", BERTH_INVALID, "line 2"},
        {"sha256:2bb8\n", BERTH_INVALID, "line 1"},
        {"sha256:" SECRET "0\n", BERTH_INVALID, "more than 64"},
        {long_name, BERTH_INVALID, "longer than"},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_key_set *keys = NULL;
        struct berth_err err = {0};
        assert_int_equal(read_text(cases[i].text, &keys, &err), cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].says));
        berth_keys_destroy(keys);
    }
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
    assert_int_equal(read_text("sha256:" SECRET " me\n", &keys, &err), BERTH_OK);
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        assert_int_equal(berth_keys_check(keys, cases[i].authorization, &err), cases[i].code);
    }
    berth_keys_destroy(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_judged),
        cmocka_unit_test(only_known_keys_come_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
