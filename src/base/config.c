/* config.c - from the option table to a filled-in struct berth_config.
 *
 * Each value is read three times at most, the later winning: default, environment, command line.
 * An empty environment variable counts as not set. A list given on the command line replaces the
 * one from before; in the environment its items are parted by commas. */
#include "base/config.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define NAME_MAX_LENGTH 63
#define HELP_COLUMNS 100

enum kind { STRING, LIST, FLAG, COUNT, BYTES, TIME, REAL };

struct option {
    enum kind kind;
    const char *flag; /* without the dashes */
    size_t offset;    /* in struct berth_config */
    unsigned commands;
    const char *value_default;
    double min, max; /* of numbers */
    const char *help;
};

static const struct option options[] = {
#define BERTH_OPTION_ROW(kind, field, flag, commands, value_default, min, max, help)               \
    {kind, flag, offsetof(struct berth_config, field), commands, value_default, min, max, help},
    BERTH_OPTIONS(BERTH_OPTION_ROW)
#undef BERTH_OPTION_ROW
};

static const struct {
    const char *flag;
    enum berth_command command;
    const char *value_default;
    const char *help;
} options_of_one[] = {
#define BERTH_OPTION_OF_ONE_ROW(flag, command, value_default, help)                                \
    {flag, command, value_default, help},
    BERTH_OPTIONS_OF_ONE(BERTH_OPTION_OF_ONE_ROW)
#undef BERTH_OPTION_OF_ONE_ROW
};

struct unit {
    const char *name;
    double scale;
};

/* Larger ones first, for printing. */
static const struct unit units_time[] = {{"h", 3600e9}, {"m", 60e9}, {"s", 1e9},
                                         {"ms", 1e6},   {"us", 1e3}, {"ns", 1}};
static const struct unit units_bytes[] = {{"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}, {"", 1}};
static const struct unit units_none[] = {{"", 1}};

static const struct kind_row {
    const char *placeholder;
    const char *takes;
    const struct unit *units;
    size_t unit_count;
} kinds[] = {
    [STRING] = {" TEXT", "a text", NULL, 0},
    [LIST] = {" TEXT", "a text", NULL, 0},
    [FLAG] = {"", "true or false", NULL, 0},
    [COUNT] = {" N", "a whole number", units_none, BERTH_COUNT_OF(units_none)},
    [BYTES] = {" BYTES", "bytes, as 4096, 64K, 512M or 2G,", units_bytes,
               BERTH_COUNT_OF(units_bytes)},
    [TIME] = {" TIME", "a time, as 500ms, 30s or 2h,", units_time, BERTH_COUNT_OF(units_time)},
    [REAL] = {" X", "a number", units_none, BERTH_COUNT_OF(units_none)},
};

static const struct {
    enum berth_command command;
    const char *name;
} commands[] = {
    {BERTH_CMD_SERVE, "serve"},
    {BERTH_CMD_TRANSCRIBE, "transcribe"},
    {BERTH_CMD_MODELS, "models"},
    {BERTH_CMD_DOCTOR, "doctor"},
    {BERTH_CMD_BENCH, "bench"},
};

/* The command line as far as it is read. */
struct argument_reader {
    enum berth_command command;
    char **argv;
    size_t count;
    size_t at;
    bool list_begun[BERTH_COUNT_OF(options)];
};

static struct option option_of(const struct option *option, enum berth_command command);
static void print_row(FILE *out, const struct option *option);
static enum berth_code read_defaults(struct berth_config *config, enum berth_command command,
                                     struct berth_err *err);
static enum berth_code read_environment(struct berth_config *config, enum berth_command command,
                                        struct berth_err *err);
static enum berth_code read_arguments(struct berth_config *config, struct argument_reader *reader,
                                      struct berth_err *err);
static enum berth_code read_flag(struct berth_config *config, struct argument_reader *reader,
                                 struct berth_err *err);
static enum berth_code fail_unknown(enum berth_command command, const char *name,
                                    struct berth_err *err);
static enum berth_code list_append(struct berth_strings *list, size_t capacity, const char *text,
                                   struct berth_err *err);
static enum berth_code list_split(struct berth_strings *list, const char *text,
                                  struct berth_err *err);
static enum berth_code set_value(struct berth_config *config, const struct option *option,
                                 const char *source, const char *text, struct berth_err *err);
static bool parse_flag(const char *text, bool *out);
static bool parse_number(const struct option *option, const char *text, double *out);
static const struct option *find_option(const char *name, size_t length);
static size_t edit_distance(const char *a, const char *b);
static void *field_of(struct berth_config *config, const struct option *option);
static void environment_name(const struct option *option, char *out);
static void print_wrapped(FILE *out, const char *text, int indent);
static void number_text(const struct option *option, double number, char *out, size_t bytes);

enum berth_code berth_config_parse(struct berth_config *config, enum berth_command command,
                                   int argc, char **argv, struct berth_err *err)
{
    struct berth_config parsed = {0};
    struct argument_reader reader = {.command = command, .argv = argv, .count = (size_t)argc};
    enum berth_code code = read_defaults(&parsed, command, err);
    if (code != BERTH_OK) {
        goto out;
    }
    code = read_environment(&parsed, command, err);
    if (code != BERTH_OK) {
        goto out;
    }
    code = read_arguments(&parsed, &reader, err);
    if (code != BERTH_OK) {
        goto out;
    }
    *config = parsed;
    parsed = (struct berth_config){0};
out:
    berth_config_finish(&parsed);
    return code;
}

void berth_config_finish(struct berth_config *config)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        if (options[i].kind == LIST) {
            struct berth_strings *list = field_of(config, &options[i]);
            berth_free(list->items);
        }
    }
    berth_free(config->arguments.items);
    *config = (struct berth_config){0};
}

void berth_config_print_help(FILE *out, enum berth_command command)
{
    int width = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        int length = (int)(strlen(options[i].flag) + strlen(kinds[options[i].kind].placeholder));
        width = (options[i].commands & command) != 0 && length > width ? length : width;
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        struct option option = option_of(&options[i], command);
        char text[512];
        if ((option.commands & command) == 0) {
            continue;
        }
        const char *placeholder = kinds[option.kind].placeholder;
        fprintf(out, "  --%s%-*s  ", option.flag, width - (int)strlen(option.flag), placeholder);
        if (option.value_default[0] == '\0' || option.kind == FLAG) {
            snprintf(text, sizeof(text), "%s", option.help);
        } else {
            snprintf(text, sizeof(text), "%s (default %s)", option.help, option.value_default);
        }
        print_wrapped(out, text, width + 6);
    }
}

void berth_config_print_markdown(FILE *out)
{
    fputs("# Options\n\n"
          "`berth COMMAND --help` lists those of a command. TIME is as 500ms, 30s or 2h; BYTES as "
          "512K, 64M or 2G. An option on the\ncommand line wins over the environment.\n\n"
          "| Option | Commands | Environment | Default | From | To | What it does |\n"
          "| --- | --- | --- | --- | --- | --- | --- |\n", out);
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        struct option rest = options[i]; /* for the commands that have no words of their own */
        for (size_t j = 0; j < BERTH_COUNT_OF(options_of_one); j++) {
            if (strcmp(options_of_one[j].flag, rest.flag) == 0) {
                rest.commands &= ~(unsigned)options_of_one[j].command;
            }
        }
        print_row(out, &rest);
        for (size_t j = 0; j < BERTH_COUNT_OF(options_of_one); j++) {
            if (strcmp(options_of_one[j].flag, rest.flag) == 0) {
                struct option one = option_of(&options[i], options_of_one[j].command);
                one.commands = options_of_one[j].command;
                print_row(out, &one);
            }
        }
    }
}

static void print_row(FILE *out, const struct option *option)
{
    char environment[NAME_MAX_LENGTH + 8], low[32] = "", high[32] = "";
    environment_name(option, environment);
    if (kinds[option->kind].units != NULL) {
        number_text(option, option->min, low, sizeof(low));
        number_text(option, option->max, high, sizeof(high));
    }
    fprintf(out, "| `--%s%s` | ", option->flag, kinds[option->kind].placeholder);
    for (size_t i = 0, shown = 0; i < BERTH_COUNT_OF(commands); i++) {
        if ((option->commands & commands[i].command) != 0) {
            fprintf(out, "%s%s", shown++ > 0 ? ", " : "", commands[i].name);
        }
    }
    fprintf(out, " | `%s` | %s | %s | %s | %s |\n", environment, option->value_default, low, high,
            option->help);
}

/* As the command has it. */
static struct option option_of(const struct option *option, enum berth_command command)
{
    struct option one = *option;
    for (size_t i = 0; i < BERTH_COUNT_OF(options_of_one); i++) {
        if (options_of_one[i].command == command &&
            strcmp(options_of_one[i].flag, option->flag) == 0) {
            one.value_default = options_of_one[i].value_default;
            one.help = options_of_one[i].help;
        }
    }
    return one;
}

static enum berth_code read_defaults(struct berth_config *config, enum berth_command command,
                                     struct berth_err *err)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        struct option option = option_of(&options[i], command);
        BERTH_TRY(set_value(config, &option, "default", option.value_default, err));
    }
    return BERTH_OK;
}

static enum berth_code read_environment(struct berth_config *config, enum berth_command command,
                                        struct berth_err *err)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        char name[NAME_MAX_LENGTH + 8];
        environment_name(&options[i], name);
        const char *text = getenv(name);
        if ((options[i].commands & command) != 0 && text != NULL && text[0] != '\0') {
            BERTH_TRY(set_value(config, &options[i], name, text, err));
        }
    }
    return BERTH_OK;
}

static enum berth_code read_arguments(struct berth_config *config, struct argument_reader *reader,
                                      struct berth_err *err)
{
    bool ended = false; /* a "--" was met */
    for (reader->at = 0; reader->at < reader->count; reader->at++) {
        const char *text = reader->argv[reader->at];
        if (!ended && strcmp(text, "--") == 0) {
            ended = true;
        } else if (ended || text[0] != '-' || text[1] == '\0') { /* a "-" is standard input */
            BERTH_TRY(list_append(&config->arguments, reader->count, text, err));
        } else if (text[1] != '-') {
            return fail_unknown(reader->command, text, err);
        } else {
            BERTH_TRY(read_flag(config, reader, err));
        }
    }
    return BERTH_OK;
}

/* --flag value, --flag=value, and for a FLAG --flag, --no-flag, --flag=true. */
static enum berth_code read_flag(struct berth_config *config, struct argument_reader *reader,
                                 struct berth_err *err)
{
    const char *text = reader->argv[reader->at];
    size_t length = strcspn(text, "=");
    const char *value = text[length] == '=' ? text + length + 1 : NULL;
    const struct option *option = find_option(text + 2, length - 2);
    if (option == NULL && value == NULL && strncmp(text, "--no-", 5) == 0) {
        option = find_option(text + 5, length - 5);
        option = option != NULL && option->kind == FLAG ? option : NULL;
        value = "false";
    }
    if (option == NULL || (option->commands & reader->command) == 0) {
        return fail_unknown(reader->command, text, err);
    }
    if (value == NULL && option->kind == FLAG) {
        value = "true";
    }
    if (value == NULL) {
        if (reader->at + 1 == reader->count) {
            return berth_fail_field(err, BERTH_INVALID, option->flag, "%s wants a value: %s", text,
                                    kinds[option->kind].takes);
        }
        value = reader->argv[++reader->at];
    }
    if (option->kind != LIST) {
        return set_value(config, option, "command line", value, err);
    }
    struct berth_strings *list = field_of(config, option);
    bool *begun = &reader->list_begun[option - options];
    if (!*begun) {
        berth_free(list->items);
        *list = (struct berth_strings){0};
        *begun = true;
    }
    return list_append(list, reader->count, value, err);
}

static enum berth_code fail_unknown(enum berth_command command, const char *name,
                                    struct berth_err *err)
{
    const char *nearest = NULL;
    const char *own = "COMMAND";
    const char *bare = name + strspn(name, "-");
    char copy[NAME_MAX_LENGTH + 1];
    size_t length = strcspn(bare, "=");
    const struct option *known = find_option(bare, length);
    snprintf(copy, sizeof(copy), "%.*s", (int)(length < 60 ? length : 60), bare);
    size_t best = strlen(copy) / 3 + 2; /* farther is not near */
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        size_t distance = edit_distance(copy, options[i].flag);
        if ((options[i].commands & command) != 0 && distance < best) {
            best = distance;
            nearest = options[i].flag;
        }
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(commands); i++) {
        own = commands[i].command == command ? commands[i].name : own;
    }
    if (known != NULL) {
        return berth_fail(err, BERTH_INVALID, "--%s is not an option of berth %s%s%s%s",
                          known->flag, own, nearest == NULL ? "" : "; did you mean --",
                          nearest == NULL ? "" : nearest, nearest == NULL ? "" : "?");
    }
    if (nearest == NULL) {
        return berth_fail(err, BERTH_INVALID, "unknown option %.60s; berth %s --help lists them",
                          name, own);
    }
    return berth_fail(err, BERTH_INVALID, "unknown option %.60s; did you mean --%s?", name,
                      nearest);
}

/* capacity: how many there can be at most. */
static enum berth_code list_append(struct berth_strings *list, size_t capacity, const char *text,
                                   struct berth_err *err)
{
    if (list->items == NULL) {
        list->items = berth_alloc(capacity * sizeof(*list->items));
    }
    if (list->items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the options");
    }
    list->items[list->count++] = text;
    return BERTH_OK;
}

/* The items and a copy of their text lie in one piece of memory. Empty items are left out. */
static enum berth_code list_split(struct berth_strings *list, const char *text,
                                  struct berth_err *err)
{
    size_t length = strlen(text);
    size_t items_max = 1;
    for (const char *at = text; *at != '\0'; at++) {
        items_max += *at == ',';
    }
    const char **items = berth_alloc(items_max * sizeof(*items) + length + 1);
    if (items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the options");
    }
    berth_free(list->items);
    *list = (struct berth_strings){.items = items};
    char *copy = (char *)(items + items_max);
    memcpy(copy, text, length + 1);
    for (char *end = copy + length; copy < end;) {
        size_t piece = strcspn(copy, ",");
        copy[piece] = '\0';
        if (piece > 0) {
            items[list->count++] = copy;
        }
        copy += piece + 1;
    }
    return BERTH_OK;
}

static enum berth_code set_value(struct berth_config *config, const struct option *option,
                                 const char *source, const char *text, struct berth_err *err)
{
    void *field = field_of(config, option);
    double number = 0;
    char low[32], high[32];
    switch (option->kind) {
    case STRING:
        *(const char **)field = text;
        return BERTH_OK;
    case LIST:
        return list_split(field, text, err);
    case FLAG:
        if (parse_flag(text, field)) {
            return BERTH_OK;
        }
        return berth_fail_field(err, BERTH_INVALID, option->flag,
                                "--%s (%s) takes true or false, not \"%.60s\"", option->flag,
                                source, text);
    case COUNT:
    case BYTES:
    case TIME:
    case REAL:
        if (!parse_number(option, text, &number)) {
            number_text(option, option->min, low, sizeof(low));
            number_text(option, option->max, high, sizeof(high));
            return berth_fail_field(err, BERTH_INVALID, option->flag,
                                    "--%s (%s) takes %s from %s to %s, not \"%.60s\"", option->flag,
                                    source, kinds[option->kind].takes, low, high, text);
        }
        if (option->kind == REAL) {
            *(double *)field = number;
        } else {
            *(uint64_t *)field = (uint64_t)number;
        }
        return BERTH_OK;
    }
    return berth_fail(err, BERTH_INTERNAL, "an option of no kind");
}

static bool parse_flag(const char *text, bool *out)
{
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    bool no = strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
    if (yes || no) {
        *out = yes;
    }
    return yes || no;
}

/* Digits, a point and more digits where the unit or kind allows, then a unit. Only a time other
 * than 0 must name its unit. A double holds all integers within the table's bounds exactly. */
static bool parse_number(const struct option *option, const char *text, double *out)
{
    const struct kind_row *row = &kinds[option->kind];
    size_t digits = strspn(text, "0123456789.");
    if (!isdigit((unsigned char)text[0]) || digits > 32) {
        return false;
    }
    char *end;
    double number = strtod(text, &end); /* no locale is ever set; hex and exponents end early */
    if (end != text + digits) {
        return false;
    }
    bool known = text[digits] == '\0' && number == 0;
    for (size_t i = 0; i < row->unit_count && !known; i++) {
        if (strcmp(text + digits, row->units[i].name) == 0) {
            number *= row->units[i].scale;
            known = true;
        }
    }
    bool whole = option->kind == REAL || number == floor(number);
    if (!known || !whole || number < option->min || number > option->max) {
        return false;
    }
    *out = number;
    return true;
}

static const struct option *find_option(const char *name, size_t length)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(options); i++) {
        if (strlen(options[i].flag) == length && memcmp(options[i].flag, name, length) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

/* Levenshtein's, of names up to NAME_MAX_LENGTH long. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_LENGTH + 1];
    size_t length_b = strnlen(b, NAME_MAX_LENGTH);
    for (size_t j = 0; j <= length_b; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length_b; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[length_b];
}

static void *field_of(struct berth_config *config, const struct option *option)
{
    return (char *)config + option->offset;
}

/* BERTH_ and the flag in capitals; out has NAME_MAX_LENGTH + 8 bytes. */
static void environment_name(const struct option *option, char *out)
{
    snprintf(out, NAME_MAX_LENGTH + 8, "BERTH_%s", option->flag);
    for (char *at = out; *at != '\0'; at++) {
        *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
    }
}

static void print_wrapped(FILE *out, const char *text, int indent)
{
    int column = indent;
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (column > indent && column + length >= HELP_COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(out, "%s%.*s", column > indent ? " " : "", length, text);
        text += length;
        text += *text == ' ';
    }
    fputc('\n', out);
}

/* In the largest unit that needs no fraction. */
static void number_text(const struct option *option, double number, char *out, size_t bytes)
{
    const struct kind_row *row = &kinds[option->kind];
    size_t i = 0;
    while (i + 1 < row->unit_count && (number == 0 || fmod(number, row->units[i].scale) != 0)) {
        i++;
    }
    snprintf(out, bytes, "%.0f%s", number / row->units[i].scale,
             number == 0 ? "" : row->units[i].name);
}
