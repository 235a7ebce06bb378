/* Options of every kind: from the command line, the environment, and wrong. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"

static struct berth_config config;
static struct berth_err err;

/* argv in one text, parted by spaces. */
static enum berth_code parse(enum berth_command command, const char *line)
{
    static char text[512];
    char *argv[32];
    int argc = 0;
    memset(&err, 0, sizeof(err));
    snprintf(text, sizeof(text), "%s", line);
    for (char *at = text; *at != '\0';) {
        size_t length = strcspn(at, " ");
        bool last = at[length] == '\0';
        at[length] = '\0';
        argv[argc++] = at;
        at += length + (last ? 0 : 1);
    }
    return berth_config_parse(&config, command, argc, argv, &err);
}

static void defaults(void **state)
{
    (void)state;
    assert_int_equal(parse(BERTH_CMD_SERVE, ""), BERTH_OK);
    assert_string_equal(config.models, "models");
    assert_int_equal(config.listen.count, 1);
    assert_string_equal(config.listen.items[0], "127.0.0.1:8000");
    assert_int_equal(config.load_model.count, 0);
    assert_false(config.triton_ports);
    assert_int_equal(config.queue_max, 4096);
    assert_int_equal(config.http_body_bytes_max, 512u << 20);
    assert_int_equal(config.audio_max, 7200000000000u);
    assert_true(config.rate == 0);
    assert_int_equal(config.arguments.count, 0);
    berth_config_finish(&config);
    berth_config_finish(&config);
}

/* Each command has its own of an option, and says nothing of another's. */
static void one_command_differs(void **state)
{
    (void)state;
    assert_int_equal(parse(BERTH_CMD_TRANSCRIBE, ""), BERTH_OK);
    assert_string_equal(config.model, "whisper-tiny.en");
    berth_config_finish(&config);
    assert_int_equal(parse(BERTH_CMD_BENCH, ""), BERTH_OK);
    assert_string_equal(config.model, "");
    berth_config_finish(&config);
    assert_int_equal(parse(BERTH_CMD_BENCH, "--model mine --cpu-threads 1024"), BERTH_OK);
    assert_string_equal(config.model, "mine");
    assert_int_equal(config.cpu_threads, 1024);
    berth_config_finish(&config);
    assert_int_equal(parse(BERTH_CMD_BENCH, "--cpu-threads 1025"), BERTH_INVALID);
    static const struct {
        const char *flag;
        enum berth_command command;
    } rows[] = {
#define ROW(flag, command, value_default, help) {flag, command},
        BERTH_OPTIONS_OF_ONE(ROW)
#undef ROW
    };
    static const struct {
        const char *flag;
        unsigned commands;
    } options[] = {
#define ROW(kind, field, flag, commands, ...) {flag, commands},
        BERTH_OPTIONS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        size_t found = 0;
        for (size_t j = 0; j < BERTH_COUNT_OF(options); j++) { /* a subset, so that a row is left */
            found += strcmp(options[j].flag, rows[i].flag) == 0 &&
                     (options[j].commands & rows[i].command) != 0 &&
                     options[j].commands != (unsigned)rows[i].command;
        }
        assert_int_equal(found, 1);
    }
}

static void every_kind_is_read(void **state)
{
    (void)state;
    assert_int_equal(parse(BERTH_CMD_SERVE, "first --models here --listen a:1 --listen=b,c:2 "
                                            "--triton-ports --queue-max=7 --bytes-budget 1.5G "
                                            "--drain-timeout 250ms - -- --queue-max -x"),
                     BERTH_OK);
    assert_string_equal(config.models, "here");
    assert_int_equal(config.listen.count, 2);
    assert_string_equal(config.listen.items[0], "a:1");
    assert_string_equal(config.listen.items[1], "b,c:2");
    assert_true(config.triton_ports);
    assert_int_equal(config.queue_max, 7);
    assert_int_equal(config.bytes_budget, 3u << 29);
    assert_int_equal(config.drain_timeout, 250000000);
    assert_int_equal(config.arguments.count, 4);
    assert_string_equal(config.arguments.items[0], "first");
    assert_string_equal(config.arguments.items[1], "-");
    assert_string_equal(config.arguments.items[2], "--queue-max");
    assert_string_equal(config.arguments.items[3], "-x");
    berth_config_finish(&config);
    assert_int_equal(parse(BERTH_CMD_BENCH, "--rate 12.5 --json --duration 90s --json=0"),
                     BERTH_OK);
    assert_true(config.rate == 12.5);
    assert_false(config.json);
    assert_int_equal(config.duration, 90000000000u);
    berth_config_finish(&config);
}

static void numbers_at_their_limits(void **state)
{
    static const struct {
        const char *line;
        bool good;
    } cases[] = {
        {"--queue-max 1", true},
        {"--queue-max 0", false},
        {"--queue-max 1000000000", true},
        {"--queue-max 1000000001", false},
        {"--queue-max -1", false},
        {"--queue-max +1", false},
        {"--queue-max 1.5", false},
        {"--queue-max 0x10", false},
        {"--queue-max 1e3", false},
        {"--queue-max 1K", false},
        {"--queue-max=", false},
        {"--queue-max nan", false},
        {"--queue-max 99999999999999999999999999999999999999999999999", false},
        {"--http-head-bytes-max 1K", true},
        {"--http-head-bytes-max 1024", true},
        {"--http-head-bytes-max 1023", false},
        {"--http-head-bytes-max 2KB", false},
        {"--http-head-bytes-max 2k", false},
        {"--http-head-bytes-max 1.0001K", false},
        {"--http-head-timeout 1ms", true},
        {"--http-head-timeout 999us", false},
        {"--http-head-timeout 1h", true},
        {"--http-head-timeout 61m", false},
        {"--http-head-timeout 10", false},
        {"--http-head-timeout 10d", false},
        {"--drain-delay 0", true},
        {"--drain-delay 0.5s", true},
        {"--drain-delay 1.2.3s", false},
        {"--triton-ports=true", true},
        {"--triton-ports=yes", false},
        {"--no-triton-ports", true},
        {"--no-triton-ports=true", false},
        {"--no-queue-max", false},
        {"--models", false},
        {"-m", false},
        {"--words", false},
        {"--=x", false},
        {"--", true},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        enum berth_code code = parse(BERTH_CMD_SERVE, cases[i].line);
        assert_int_equal(code, cases[i].good ? BERTH_OK : BERTH_INVALID);
        assert_int_equal(strlen(err.msg) > 0, !cases[i].good);
        if (code == BERTH_OK) {
            berth_config_finish(&config);
        }
    }
}

static void mistakes_are_explained(void **state)
{
    static const struct {
        const char *line;
        const char *told;
    } cases[] = {
        {"--quue-max 3", "did you mean --queue-max?"},
        {"--model-quemax 3", "did you mean --model-queue-max?"},
        {"--zzzzzzzzzzzzz", "berth serve --help lists them"},
        {"--rate 3", "not an option of berth serve"},
        {"--model x", "not an option of berth serve; did you mean --models?"},
        {"--queue-max x", "a whole number from 1 to 1000000000, not \"x\""},
        {"--drain-delay 9h", "from 0 to 1h, not \"9h\""},
        {"--models", "--models wants a value"},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        assert_int_equal(parse(BERTH_CMD_SERVE, cases[i].line), BERTH_INVALID);
        assert_non_null(strstr(err.msg, cases[i].told));
    }
}

static void flag_wins_over_environment(void **state)
{
    (void)state;
    setenv("BERTH_QUEUE_MAX", "5", 1);
    setenv("BERTH_MODEL_QUEUE_MAX", "6", 1);
    setenv("BERTH_LISTEN", "a:1,,b:2,", 1);
    setenv("BERTH_LOAD_MODEL", "m1,m2", 1);
    setenv("BERTH_MODELS", "", 1);     /* counts as not set */
    setenv("BERTH_DURATION", "x", 1);  /* of another command */
    assert_int_equal(parse(BERTH_CMD_SERVE, "--queue-max 9 --load-model m3"), BERTH_OK);
    assert_int_equal(config.queue_max, 9);
    assert_int_equal(config.model_queue_max, 6);
    assert_int_equal(config.listen.count, 2);
    assert_string_equal(config.listen.items[1], "b:2");
    assert_int_equal(config.load_model.count, 1);
    assert_string_equal(config.load_model.items[0], "m3");
    assert_string_equal(config.models, "models");
    berth_config_finish(&config);
    setenv("BERTH_QUEUE_MAX", "many", 1);
    assert_int_equal(parse(BERTH_CMD_SERVE, ""), BERTH_INVALID);
    assert_non_null(strstr(err.msg, "BERTH_QUEUE_MAX"));
    static const char *const names[] = {"BERTH_QUEUE_MAX", "BERTH_MODEL_QUEUE_MAX", "BERTH_LISTEN",
                                        "BERTH_LOAD_MODEL", "BERTH_MODELS", "BERTH_DURATION"};
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        unsetenv(names[i]);
    }
}

static void memory_failing(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    enum berth_code code = BERTH_UNAVAILABLE;
    (void)state;
    for (uint64_t at = 1; code != BERTH_OK; at++) {
        berth_mem_fail_at(at, false);
        code = parse(BERTH_CMD_SERVE, "x --listen a --load-model b");
        berth_mem_fail_at(0, false);
        assert_true(code == BERTH_OK || code == BERTH_UNAVAILABLE);
        assert_true(at < 20);
        if (code != BERTH_OK) {
            assert_int_equal(berth_mem_bytes_live(), live);
        }
    }
    berth_config_finish(&config);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void printers_tell_all(void **state)
{
    static char text[65536];
    (void)state;
    FILE *out = fmemopen(text, sizeof(text), "w");
    berth_config_print_help(out, BERTH_CMD_TRANSCRIBE);
    fclose(out);
    assert_non_null(strstr(text, "--format TEXT "));
    assert_non_null(strstr(text, "(default 600s)"));
    assert_null(strstr(text, "--listen"));
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        assert_true(strcspn(line, "\n") <= 100);
    }
    out = fmemopen(text, sizeof(text), "w");
    berth_config_print_markdown(out);
    fclose(out);
    assert_non_null(strstr(text, "| `--http-head-timeout TIME` | serve | `BERTH_HTTP_HEAD_TIMEOUT` "
                                 "| 10s | 1ms | 1h | how long"));
    assert_non_null(strstr(text, "| `--json` | models, doctor, bench | `BERTH_JSON` | false | "));
    assert_non_null(strstr(text, "| `--model TEXT` | transcribe | `BERTH_MODEL` | whisper-tiny"));
    assert_non_null(strstr(text, "| `--model TEXT` | bench | `BERTH_MODEL` |  |"));
    assert_non_null(strstr(text, "| `--cpu-threads N` | serve | "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(one_command_differs),
        cmocka_unit_test(every_kind_is_read),
        cmocka_unit_test(numbers_at_their_limits),
        cmocka_unit_test(mistakes_are_explained),
        cmocka_unit_test(flag_wins_over_environment),
        cmocka_unit_test(memory_failing),
        cmocka_unit_test(printers_tell_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
