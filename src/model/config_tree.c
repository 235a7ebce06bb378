/* config_tree.c - checks a config's tree against the table, and finds things in it.
 *
 * Rules are those of protobuf's text format: one value for a field that is not repeated, one field
 * of those that exclude each other, numbers within their type, enums by name or number.
 */
#include "model/config_tree.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"

#define PLACE_BYTES 160
#define LABEL_BYTES (PLACE_BYTES - 24)
#define TEXT_BYTES 320
#define NAMES_BYTES 160
#define MAP_ENTRIES_MAX 4096 /* of all maps of one message */

/* A map's entry while equal keys are looked for. */
struct entry {
    struct berth_config_node *node;
    bool is_number;
    uint64_t number; /* its key */
    const char *text;
    size_t place; /* among the message's entries */
};

static enum berth_code check_message(struct berth_config_node *message,
                                     const struct berth_config_message *table,
                                     const struct berth_config_source *source,
                                     struct berth_err *err);
static enum berth_code check_again(const struct berth_config_node *message,
                                   const struct berth_config_node *node,
                                   const struct berth_config_source *source,
                                   struct berth_err *err);
static enum berth_code shadow_entries(struct berth_config_node *message, size_t entry_count,
                                      const struct berth_config_source *source,
                                      struct berth_err *err);
static void note(const struct berth_config_node *node, const struct berth_config_source *source,
                 const char *text);
static int compare_entries(const void *left, const void *right);
static int compare_keys(const struct entry *left, const struct entry *right);
static enum berth_code check_value(struct berth_config_node *node,
                                   const struct berth_config_source *source,
                                   struct berth_err *err);
static enum berth_code check_integer(struct berth_config_node *node,
                                     const struct berth_config_source *source,
                                     struct berth_err *err);
static enum berth_code check_real(struct berth_config_node *node,
                                  const struct berth_config_source *source,
                                  struct berth_err *err);
static enum berth_code check_boolean(struct berth_config_node *node,
                                     const struct berth_config_source *source,
                                     struct berth_err *err);
static enum berth_code check_enum(struct berth_config_node *node,
                                  const struct berth_config_source *source,
                                  struct berth_err *err);

static const char *const type_names[] = {
    [BERTH_CONFIG_STRING] = "a string in quotes",
    [BERTH_CONFIG_BOOL] = "true or false",
    [BERTH_CONFIG_INT32] = "a whole number from -2147483648 to 2147483647",
    [BERTH_CONFIG_INT64] = "a whole number from -9223372036854775808 to 9223372036854775807",
    [BERTH_CONFIG_UINT32] = "a whole number from 0 to 4294967295",
    [BERTH_CONFIG_UINT64] = "a whole number from 0 to 18446744073709551615",
    [BERTH_CONFIG_FLOAT] = "a number",
    [BERTH_CONFIG_DOUBLE] = "a number",
    [BERTH_CONFIG_ENUM] = "a name",
    [BERTH_CONFIG_MESSAGE] = "fields in braces",
};

void berth_config_append(struct berth_config_node *message, struct berth_config_node *child)
{
    if (message->last == NULL) {
        message->children = child;
    } else {
        message->last->next = child;
    }
    message->last = child;
}

enum berth_code berth_config_check(struct berth_config_node *root,
                                   const struct berth_config_source *source,
                                   struct berth_err *err)
{
    return check_message(root, &berth_config_model, source, err);
}

/* "label:line:column", or the label alone. */
static void place(const struct berth_config_node *node, const struct berth_config_source *source,
                  char out[PLACE_BYTES])
{
    size_t length = strlen(source->label);
    const char *label = source->label + (length > 120 ? length - 120 : 0); /* its end says more */
    if (node == NULL || node->line == 0) {
        snprintf(out, PLACE_BYTES, "%s", label);
    } else {
        snprintf(out, PLACE_BYTES, "%s:%u:%u", label, node->line, node->column);
    }
}

enum berth_code berth_config_fail(const struct berth_config_node *node,
                                  const struct berth_config_source *source, struct berth_err *err,
                                  const char *format, ...)
{
    char where[PLACE_BYTES];
    char text[200];
    va_list args;
    place(node, source, where);
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return berth_fail(err, BERTH_INVALID, "%s: %s", where, text);
}

void berth_config_note(const struct berth_config_node *node,
                       const struct berth_config_source *source, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    note(node, source, text);
}

static void note(const struct berth_config_node *node, const struct berth_config_source *source,
                 const char *text)
{
    char where[PLACE_BYTES];
    if (!source->quiet) {
        place(node, source, where);
        berth_log_warn("repo", 0, "%s: %s", where, text);
        if (source->warned != NULL) {
            *source->warned = true;
        }
    }
}

void berth_config_warn(const struct berth_model_spec *spec, const struct berth_config_node *node,
                       const char *format, ...)
{
    char text[TEXT_BYTES], label[LABEL_BYTES];
    const struct berth_config_source source = {.label = label, .quiet = spec->quiet};
    va_list args;
    snprintf(label, sizeof(label),
             node == NULL || node->line > 0 ? "%.100s/config.pbtxt" : "%.100s/config (given)",
             spec->name);
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    note(node, &source, text);
}

enum berth_code berth_config_locate(const struct berth_model_spec *spec,
                                    const struct berth_config_node *node, enum berth_code code,
                                    struct berth_err *err)
{
    char text[sizeof(err->msg)];
    if (code != BERTH_OK && err != NULL && node != NULL && node->line > 0) {
        snprintf(text, sizeof(text), "%s", err->msg);
        (void)berth_err_set(err, code, err->file, err->line, err->field,
                            "%.100s/config.pbtxt:%u:%u: %s", spec->name, node->line, node->column,
                            text);
    }
    return code;
}

void berth_config_check_parameters(const struct berth_model_spec *spec, const char *const *known)
{
    char names[NAMES_BYTES] = "";
    for (size_t i = 0; known[i] != NULL; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%s", i == 0 ? " (known: " : ", ", known[i]);
    }
    if (known[0] != NULL) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, ")");
    }
    for (const struct berth_config_node *entry = berth_config_find(spec->config, "parameters");
         entry != NULL; entry = berth_config_again(entry)) {
        const struct berth_config_node *key = berth_config_find(entry, "key");
        const char *name = berth_config_string(entry, "key");
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], name) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            berth_config_warn(spec, key == NULL ? entry : key,
                              "engine '%s' has no parameter '%.100s'; it is ignored%s",
                              spec->engine, name, names);
        }
    }
}

void berth_config_check_steps(const struct berth_model_spec *spec)
{
    static const char *const names[] = {"preferred_batch_size", "max_queue_delay_microseconds"};
    const struct berth_config_node *dynamic = berth_config_find(spec->config, "dynamic_batching");
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        const struct berth_config_node *node = berth_config_find(dynamic, names[i]);
        if (node != NULL && (i == 0 || node->value.unsigned_integer > 0)) {
            berth_config_warn(spec, node, "'%s' has no effect: this model runs in steps",
                              names[i]);
        }
    }
}

const struct berth_config_node *berth_config_parameter(const struct berth_model_spec *spec,
                                                       const char *key)
{
    for (const struct berth_config_node *entry = berth_config_find(spec->config, "parameters");
         entry != NULL; entry = berth_config_again(entry)) {
        if (!entry->shadowed && strcmp(berth_config_string(entry, "key"), key) == 0) {
            const struct berth_config_node *value =
                berth_config_find(berth_config_find(entry, "value"), "string_value");
            return value == NULL ? entry : value;
        }
    }
    return NULL;
}

const struct berth_config_node *berth_config_engine(const struct berth_model_spec *spec)
{
    const struct berth_config_node *backend = berth_config_find(spec->config, "backend");
    return backend != NULL && backend->text[0] != '\0'
               ? backend
               : berth_config_find(spec->config, "platform");
}

const struct berth_config_node *berth_config_find(const struct berth_config_node *message,
                                                  const char *name)
{
    const struct berth_config_node *node = message == NULL ? NULL : message->children;
    while (node != NULL && (node->field == NULL || strcmp(node->name, name) != 0)) {
        node = node->next;
    }
    return node;
}

const struct berth_config_node *berth_config_again(const struct berth_config_node *node)
{
    const struct berth_config_node *next = node->next;
    while (next != NULL && next->field != node->field) {
        next = next->next;
    }
    return next;
}

size_t berth_config_count(const struct berth_config_node *message, const char *name)
{
    size_t count = 0;
    for (const struct berth_config_node *node = berth_config_find(message, name); node != NULL;
         node = berth_config_again(node)) {
        count++;
    }
    return count;
}

const char *berth_config_string(const struct berth_config_node *message, const char *name)
{
    const struct berth_config_node *node = berth_config_find(message, name);
    return node == NULL ? "" : node->text;
}

int64_t berth_config_integer(const struct berth_config_node *message, const char *name)
{
    const struct berth_config_node *node = berth_config_find(message, name);
    return node == NULL ? 0 : node->value.integer;
}

uint64_t berth_config_unsigned(const struct berth_config_node *message, const char *name)
{
    const struct berth_config_node *node = berth_config_find(message, name);
    return node == NULL ? 0 : node->value.unsigned_integer;
}

bool berth_config_boolean(const struct berth_config_node *message, const char *name)
{
    const struct berth_config_node *node = berth_config_find(message, name);
    return node != NULL && node->value.boolean;
}

static enum berth_code check_message(struct berth_config_node *message,
                                     const struct berth_config_message *table,
                                     const struct berth_config_source *source,
                                     struct berth_err *err)
{
    size_t entries = 0;
    for (struct berth_config_node *node = message->children; node != NULL; node = node->next) {
        for (size_t i = 0; i < table->field_count && node->field == NULL; i++) {
            if (strcmp(node->name, table->fields[i].name) == 0) {
                node->field = &table->fields[i];
            }
        }
        if (node->field == NULL) {
            berth_config_note(node, source, "%s has no field '%.200s'; it is ignored", table->name,
                              node->name);
            continue;
        }
        if (node->field->label == BERTH_CONFIG_MAP && ++entries > MAP_ENTRIES_MAX) {
            return berth_config_fail(node, source, err, "more than %d entries", MAP_ENTRIES_MAX);
        }
        BERTH_TRY(check_again(message, node, source, err));
        BERTH_TRY(check_value(node, source, err));
        if (node->field->type == BERTH_CONFIG_MESSAGE) {
            BERTH_TRY(check_message(node, node->field->message, source, err));
        }
    }
    return entries < 2 ? BERTH_OK : shadow_entries(message, entries, source, err);
}

/* Sorted, because a map has thousands of entries where somebody means harm. */
static enum berth_code shadow_entries(struct berth_config_node *message, size_t entry_count,
                                      const struct berth_config_source *source,
                                      struct berth_err *err)
{
    size_t count = 0;
    struct entry *entries = berth_alloc(entry_count * sizeof(*entries));
    if (entries == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to read %.100s", source->label);
    }
    for (struct berth_config_node *node = message->children; node != NULL; node = node->next) {
        if (node->field != NULL && node->field->label == BERTH_CONFIG_MAP) {
            bool is_number = node->field->message->fields[0].type == BERTH_CONFIG_UINT64;
            entries[count] = (struct entry){
                .node = node,
                .is_number = is_number,
                .number = is_number ? berth_config_unsigned(node, "key") : 0,
                .text = is_number ? "" : berth_config_string(node, "key"),
                .place = count};
            count++;
        }
    }
    qsort(entries, count, sizeof(*entries), compare_entries);
    for (size_t i = 1; i < count; i++) {
        entries[i - 1].node->shadowed = compare_keys(&entries[i - 1], &entries[i]) == 0;
    }
    berth_free(entries);
    return BERTH_OK;
}

static int compare_entries(const void *left, const void *right)
{
    const struct entry *one = left, *other = right;
    int order = compare_keys(one, other);
    return order != 0 ? order : one->place < other->place ? -1 : one->place > other->place;
}

/* By map, then by key. */
static int compare_keys(const struct entry *left, const struct entry *right)
{
    if (left->node->field != right->node->field) {
        return left->node->field < right->node->field ? -1 : 1;
    }
    if (left->is_number) {
        return left->number < right->number ? -1 : left->number > right->number;
    }
    return strcmp(left->text, right->text);
}

/* Was the field, or one that excludes it, written before? Only fields that are single or exclusive
 * are looked for, of which a message has few. */
static enum berth_code check_again(const struct berth_config_node *message,
                                   const struct berth_config_node *node,
                                   const struct berth_config_source *source,
                                   struct berth_err *err)
{
    if (node->field->label != BERTH_CONFIG_ONE) {
        return BERTH_OK;
    }
    for (const struct berth_config_node *before = message->children; before != node;
         before = before->next) {
        if (before->field == node->field) {
            return berth_config_fail(node, source, err, "'%s' is given a second time", node->name);
        }
        if (before->field != NULL && node->field->choice != 0 &&
            before->field->choice == node->field->choice) {
            return berth_config_fail(node, source, err, "'%s' excludes '%s', which is given too",
                                     node->name, before->name);
        }
    }
    return BERTH_OK;
}

static enum berth_code wrong_type(const struct berth_config_node *node,
                                  const struct berth_config_source *source, struct berth_err *err)
{
    return berth_config_fail(node, source, err, "'%s' must be %s", node->name,
                             type_names[node->field->type]);
}

static enum berth_code check_value(struct berth_config_node *node,
                                   const struct berth_config_source *source,
                                   struct berth_err *err)
{
    bool is_message = node->token == BERTH_CONFIG_TOKEN_MESSAGE;
    if (is_message != (node->field->type == BERTH_CONFIG_MESSAGE)) {
        return wrong_type(node, source, err);
    }
    switch (node->field->type) {
    case BERTH_CONFIG_STRING:
        if (node->token != BERTH_CONFIG_TOKEN_STRING) {
            return wrong_type(node, source, err);
        }
        if (berth_utf8_valid_length(node->text, node->length) != node->length ||
            strlen(node->text) != node->length) {
            return berth_config_fail(node, source, err, "'%s' is not valid UTF-8 text", node->name);
        }
        return BERTH_OK;
    case BERTH_CONFIG_BOOL:
        return check_boolean(node, source, err);
    case BERTH_CONFIG_FLOAT:
    case BERTH_CONFIG_DOUBLE:
        return check_real(node, source, err);
    case BERTH_CONFIG_ENUM:
        return check_enum(node, source, err);
    case BERTH_CONFIG_MESSAGE:
        return BERTH_OK;
    default:
        return check_integer(node, source, err);
    }
}

/* Decimal, 0x hexadecimal or 0 octal, with a sign; false when it is none or past 64 bits. */
static bool integer_parse(const struct berth_config_node *node, bool *negative, uint64_t *magnitude)
{
    const char *text = node->text;
    *negative = text[0] == '-';
    text += *negative;
    int base = 10;
    if (text[0] == '0' && text[1] != '\0') {
        base = text[1] == 'x' || text[1] == 'X' ? 16 : 8;
    }
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    *magnitude = strtoull(text, &end, base);
    return errno == 0 && *end == '\0';
}

static enum berth_code check_integer(struct berth_config_node *node,
                                     const struct berth_config_source *source,
                                     struct berth_err *err)
{
    static const uint64_t most[] = {
        [BERTH_CONFIG_INT32] = INT32_MAX,
        [BERTH_CONFIG_INT64] = INT64_MAX,
        [BERTH_CONFIG_UINT32] = UINT32_MAX,
        [BERTH_CONFIG_UINT64] = UINT64_MAX,
    };
    enum berth_config_type type = node->field->type;
    bool is_signed = type == BERTH_CONFIG_INT32 || type == BERTH_CONFIG_INT64;
    bool negative;
    uint64_t magnitude;
    /* JSON may carry 64-bit numbers as strings; the text form may not. */
    bool right_token = node->token == BERTH_CONFIG_TOKEN_NUMBER ||
                       (node->token == BERTH_CONFIG_TOKEN_STRING && node->line == 0);
    if (!right_token || !integer_parse(node, &negative, &magnitude)) {
        return wrong_type(node, source, err);
    }
    uint64_t limit = most[type] + (negative && is_signed ? 1 : 0);
    if ((negative && !is_signed && magnitude != 0) || magnitude > limit) {
        return berth_config_fail(node, source, err, "'%s' is %.40s; it must be %s", node->name,
                                 node->text, type_names[type]);
    }
    if (is_signed) {
        uint64_t bits = negative ? UINT64_C(0) - magnitude : magnitude;
        node->value.integer = (int64_t)bits;
    } else {
        node->value.unsigned_integer = magnitude;
    }
    return BERTH_OK;
}

static enum berth_code check_real(struct berth_config_node *node,
                                  const struct berth_config_source *source,
                                  struct berth_err *err)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    const char *text = node->text;
    double sign = 1;
    /* JSON carries what is no number as a string. */
    bool from_json = node->token == BERTH_CONFIG_TOKEN_STRING && node->line == 0;
    if (node->token == BERTH_CONFIG_TOKEN_WORD || from_json) {
        if (text[0] == '-') {
            sign = -1;
            text++;
        }
        for (size_t i = 0; i < BERTH_COUNT_OF(words); i++) {
            if (strcasecmp(text, words[i]) == 0) {
                node->value.real = sign * (i == 2 ? (double)NAN : (double)INFINITY);
                return BERTH_OK;
            }
        }
    }
    if (node->token != BERTH_CONFIG_TOKEN_NUMBER && !from_json) {
        return wrong_type(node, source, err);
    }
    char *end = NULL;
    node->value.real = strtod(node->text, &end);
    if (end == node->text || (*end != '\0' && strcasecmp(end, "f") != 0)) {
        return wrong_type(node, source, err);
    }
    return BERTH_OK;
}

static enum berth_code check_boolean(struct berth_config_node *node,
                                     const struct berth_config_source *source,
                                     struct berth_err *err)
{
    static const char *const words[] = {"false", "False", "f", "0", "true", "True", "t", "1"};
    if (node->token == BERTH_CONFIG_TOKEN_WORD || node->token == BERTH_CONFIG_TOKEN_NUMBER) {
        for (size_t i = 0; i < BERTH_COUNT_OF(words); i++) {
            if (strcmp(node->text, words[i]) == 0) {
                node->value.boolean = i >= BERTH_COUNT_OF(words) / 2;
                return BERTH_OK;
            }
        }
    }
    return wrong_type(node, source, err);
}

static enum berth_code check_enum(struct berth_config_node *node,
                                  const struct berth_config_source *source,
                                  struct berth_err *err)
{
    bool negative = false;
    uint64_t number = UINT64_MAX;
    bool is_name = node->token == BERTH_CONFIG_TOKEN_WORD ||
                   (node->token == BERTH_CONFIG_TOKEN_STRING && node->line == 0);
    if (!is_name &&
        (node->token != BERTH_CONFIG_TOKEN_NUMBER || !integer_parse(node, &negative, &number))) {
        return wrong_type(node, source, err);
    }
    for (uint64_t i = 0; node->field->values[i] != NULL; i++) {
        if (is_name ? strcmp(node->text, node->field->values[i]) == 0 : !negative && number == i) {
            node->value.integer = (int64_t)i;
            return BERTH_OK;
        }
    }
    return berth_config_fail(node, source, err, "'%s' cannot be '%s'", node->name, node->text);
}
