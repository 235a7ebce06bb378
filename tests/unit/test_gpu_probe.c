/* test_gpu_probe.c - what a program that looks for GPUs says, or fails to say; scripts stand in its
 * place.
 *
 * Nothing is asserted about how long anything takes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/gpu_probe.c"

static char folder[] = "/tmp/berth-probe-XXXXXX";
static char script[sizeof(folder) + 8];

static void write_script(const char *body)
{
    FILE *file = fopen(script, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", body);
    fclose(file);
    assert_int_equal(chmod(script, 0700), 0);
}

static void what_it_says_is_read(void **state)
{
    struct berth_gpu_found found;
    struct berth_err err = {0};
    write_script("echo 'cuda:0 1000 900 Some Card, driver 13.0'; echo 'cuda:1 1 1 Other'");
    assert_int_equal(berth_gpu_probe(script, &found, &err), BERTH_OK);
    assert_string_equal(found.device, "cuda:0");
    assert_string_equal(found.name, "Some Card, driver 13.0");
    assert_true(found.bytes == 1000 && found.bytes_free == 900);
    assert_string_equal(found.program, script);
}

static void what_it_cannot_say_is_an_error(void **state)
{
    static const struct {
        const char *body;
        const char *text; /* of the error */
    } cases[] = {
        {"echo 'no GPU here'; exit 1", "no GPU here"},
        {"exit 1", "failed without a word"},
        {"kill -9 $$", "failed without a word"},
        {"exit 0", "does not say"},
        {"echo 'cuda:0 1000 Some Card'", "does not say"},
        {"echo 'cpu:0 1000 900 Some Card'", "does not say"},
        {"head -c 100000 /dev/zero | tr '\\0' x", "does not say"},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_gpu_found found;
        struct berth_err err = {0};
        write_script(cases[i].body);
        assert_int_equal(berth_gpu_probe(script, &found, &err), BERTH_UNAVAILABLE);
        assert_non_null(strstr(err.msg, cases[i].text));
    }
    struct berth_gpu_found found;
    struct berth_err err = {0};
    assert_int_equal(berth_gpu_probe("/does/not/exist", &found, &err), BERTH_NOT_FOUND);
}

/* The line itself: at its limits, and what looks like one. */
static void answers_are_judged(void **state)
{
#define NAME95 NAME45 NAME45 "0123 "
#define NAME45 "012345678901234567890123456789012345678901234"
    static const struct {
        const char *text;
        const char *device; /* NULL: refused */
        const char *name;
        uint64_t bytes, bytes_free;
    } cases[] = {
        {"cuda:0 1 1 A", "cuda:0", "A", 1, 1},
        {"cuda:17 150754820096 0 NVIDIA H200, driver 13.0\nrest", "cuda:17",
         "NVIDIA H200, driver 13.0", 150754820096, 0},
        {"cuda:0 999999999999999999 1 A", "cuda:0", "A", 999999999999999999, 1},
        {"cuda:0 1000000000000000000 1 A", NULL, NULL, 0, 0},
        {"cuda:0 99999999999999999999999 1 A", NULL, NULL, 0, 0},
        {"cuda:0 -1 1 A", NULL, NULL, 0, 0},
        {"cuda:0 +1 1 A", NULL, NULL, 0, 0},
        {"cuda:0 1 2 A", NULL, NULL, 0, 0},
        {"cuda:0  1 1 A", NULL, NULL, 0, 0},
        {" cuda:0 1 1 A", NULL, NULL, 0, 0},
        {"cuda: 1 1 A", NULL, NULL, 0, 0},
        {"cuda:a 1 1 A", NULL, NULL, 0, 0},
        {"cuda:0x 1 1 A", NULL, NULL, 0, 0},
        {"cuda:0123456789 1 1 A", "cuda:0123456789", "A", 1, 1},
        {"cuda:01234567890 1 1 A", NULL, NULL, 0, 0},
        {"cuda:0 1 1", NULL, NULL, 0, 0},
        {"cuda:0 1 1 ", NULL, NULL, 0, 0},
        {"cuda:0 1 1\nA", NULL, NULL, 0, 0},
        {"cuda:0", NULL, NULL, 0, 0},
        {"", NULL, NULL, 0, 0},
        {"cuda:0 1 1 " NAME95, "cuda:0", NAME95, 1, 1},
        {"cuda:0 1 1 " NAME95 "x", "cuda:0", NAME95, 1, 1},
        {"cuda:0 1 1 \x1B[31mred\x07\x7F \xC2\x9B\xC3\xA4 \xFF" "end", "cuda:0",
         "?[31mred?? ??\xC3\xA4 ", 1, 1},
        {"cuda:0 1 1 \xFF", NULL, NULL, 0, 0},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        char text[TEXT_MAX] = "";
        struct berth_gpu_found found = {0};
        memcpy(text, cases[i].text, strlen(cases[i].text) + 1);
        keep_line(text);
        assert_int_equal(read_answer(text, &found), cases[i].device != NULL);
        assert_string_equal(found.device, cases[i].device == NULL ? "" : cases[i].device);
        assert_string_equal(found.name, cases[i].device == NULL ? "" : cases[i].name);
        assert_true(found.bytes == cases[i].bytes && found.bytes_free == cases[i].bytes_free);
    }
    char cut[] = "cuda:0 1 1 " NAME95; /* a character that no longer fits is left out whole */
    struct berth_gpu_found found = {0};
    memcpy(cut + sizeof(cut) - 2, "\xC3", 1);
    char text[sizeof(cut) + 1];
    snprintf(text, sizeof(text), "%s\xA4", cut);
    assert_true(read_answer(text, &found));
    assert_int_equal(strlen(found.name), 94);
}

/* One that says nothing, one that says it all and stays. */
static void one_that_hangs_is_ended(void **state)
{
    static const char *const bodies[] = {
        "exec sleep 1000",
        "echo 'cuda:0 1000 900 Card'; exec sleep 1000 >/dev/null",
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(bodies); i++) {
        char text[TEXT_MAX] = "";
        struct berth_err err = {0};
        write_script(bodies[i]);
        assert_int_equal(run(script, 100 * BERTH_NS_PER_MS, text, &err), BERTH_UNAVAILABLE);
        assert_non_null(strstr(err.msg, "does not answer"));
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    }
}

int main(void)
{
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    snprintf(script, sizeof(script), "%s/probe", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_says_is_read),
        cmocka_unit_test(what_it_cannot_say_is_an_error),
        cmocka_unit_test(answers_are_judged),
        cmocka_unit_test(one_that_hangs_is_ended),
    };
    int failed = cmocka_run_group_tests_name("gpu_probe", tests, NULL, NULL);
    unlink(script);
    rmdir(folder);
    return failed;
}
