/* main.c - composition root of `berth`: the command table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "media/media.h"
#include "worker/worker.h"

struct command {
    const char *name;
    enum berth_command id;
    const char *arguments;
    bool takes_arguments; /* beside options */
    const char *help;
    const char *status; /* what its exit status tells, beside 2 */
    int (*run)(const struct berth_config *config);
};

static const struct command commands[] = {
    {"serve", BERTH_CMD_SERVE, "--models DIR [--listen ADDR:PORT]", false,
     "serve models over HTTP",
     "0 where it was told to stop and has, 1 where it could not start or was stopped at once",
     berth_cli_serve},
    {"transcribe", BERTH_CMD_TRANSCRIBE, "FILE...", true, "say what was said in audio files",
     "0 where each file was heard, 1 where one was not", berth_cli_transcribe},
    {"models", BERTH_CMD_MODELS, "--models DIR | --server URL", false,
     "list models, their states and bytes",
     "0 where the list could be made, also of models that are FAILED, 1 where it could not",
     berth_cli_models},
    {"doctor", BERTH_CMD_DOCTOR, "", false, "say what this machine has and lacks",
     "0, whatever is weak or missing", berth_cli_doctor},
    {"bench", BERTH_CMD_BENCH, "transcribe FILE... | infer|parakeet", true,
     "load a server and measure its answers; parakeet: the engine",
     "0 where it could measure, 1 where it could not, as where no answer was 200",
     berth_cli_bench},
};

static int usage(FILE *out);
static const struct command *find(const char *name);
static int help(const struct command *command);
static bool is_help(const char *word);
static bool wants_help(int argc, char **argv);
static enum berth_code read_options(const struct command *command, int argc, char **argv,
                                    struct berth_config *config, struct berth_err *err);

int main(int argc, char **argv)
{
    berth_cli_keep_standard();
    if (argc > 1 && strcmp(argv[1], "decode") == 0) {
        return berth_media_decode_main(argc, argv); /* one of the server's decode processes */
    }
    if (argc > 1 && strcmp(argv[1], "worker") == 0) {
        return berth_worker_host_main(argc, argv); /* where its models run, if not in threads */
    }
    if (argc > 1 && strcmp(argv[1], "options") == 0) {
        berth_config_print_markdown(stdout); /* docs/options.md */
        return berth_cli_end(0);
    }
    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0)) {
        puts("berth " BERTH_VERSION);
        return berth_cli_end(0);
    }
    bool of_one = argc > 2 && strcmp(argv[1], "help") == 0 && !is_help(argv[2]);
    if (argc < 2 || (is_help(argv[1]) && !of_one)) {
        usage(argc < 2 ? stderr : stdout);
        return berth_cli_end(argc < 2 ? 2 : 0);
    }
    const char *name = argv[of_one ? 2 : 1];
    const struct command *command = find(name);
    if (command == NULL) {
        fprintf(stderr,
                name[0] == '-' ? "berth: a command comes before %s; berth --help lists them\n"
                               : "berth: there is no command '%s'; berth --help lists them\n",
                name);
        return 2;
    }
    if (of_one || wants_help(argc - 2, argv + 2)) {
        return berth_cli_end(help(command));
    }
    struct berth_config config = {0};
    struct berth_err err = {0};
    int status = 2;
    if (read_options(command, argc - 2, argv + 2, &config, &err) == BERTH_OK) {
        status = command->run(&config);
    } else {
        berth_cli_fail(&err);
    }
    berth_config_finish(&config);
    return berth_cli_end(status);
}

/* NULL: there is none of that name. */
static const struct command *find(const char *name)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(commands); i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static int usage(FILE *out)
{
    fprintf(out, "berth " BERTH_VERSION ": inference server for models that share a device\n\n");
    for (size_t i = 0; i < BERTH_COUNT_OF(commands); i++) {
        fprintf(out, "  berth %-10s %-36s %s\n", commands[i].name, commands[i].arguments,
                commands[i].help);
    }
    fprintf(out, "\nberth COMMAND --help lists a command's options. The exit status is 0, 1 where "
                 "something\nwent wrong, or 2 where the command line is wrong.\n");
    return 0;
}

static int help(const struct command *command)
{
    printf("berth %s%s%s\n%s\n\n", command->name, command->arguments[0] == '\0' ? "" : " ",
           command->arguments, command->help);
    berth_config_print_help(stdout, command->id);
    printf("\nTIME is as 500ms, 30s or 2h; BYTES as 512K, 64M or 2G. The environment sets options "
           "too:\n--log-level is BERTH_LOG_LEVEL.\n\nExit status: %s,\n2 where the command "
           "line is wrong.\n", command->status);
    return 0;
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static enum berth_code read_options(const struct command *command, int argc, char **argv,
                                    struct berth_config *config, struct berth_err *err)
{
    BERTH_TRY(berth_config_parse(config, command->id, argc, argv, err));
    if (config->arguments.count > 0 && !command->takes_arguments) {
        return berth_fail(err, BERTH_INVALID, "berth %s takes options only, not '%.60s'",
                          command->name, config->arguments.items[0]);
    }
    return berth_log_parse_level(config->log_level, err);
}
