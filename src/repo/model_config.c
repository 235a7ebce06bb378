/* model_config.c - see model_config.h.
 *
 * Both forms become the same tree, are checked against the same table (model/config_schema.c), and
 * are read into the spec by the functions below, one for each part of it. What cannot be is an
 * error at its place; numbers have limits, since a config may come from a client. Where Triton has
 * no such limit (batch size, instances) the most that there can be is taken, with a warning.
 */
#include "repo/model_config.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/json.h"
#include "base/mem.h"
#include "model/config_tree.h"
#include "repo/pbtxt.h"

#define BATCH_SIZE_MAX 65536
#define WARMUP_RUNS_MAX 10000
#define IOS_MAX 256

/* What every step of the reading needs. */
struct mapping {
    struct berth_model_spec *spec;
    struct berth_config_source source;
    struct berth_err *err;
};

static enum berth_code tree_read(const struct berth_model_config *config, struct mapping *mapping,
                                 struct berth_config_node **out);
static enum berth_code json_read(const struct berth_model_config *config, struct mapping *mapping,
                                 struct berth_config_node **out);
static enum berth_code json_message(struct mapping *mapping, json_t *object,
                                    const struct berth_config_message *table,
                                    struct berth_config_node *message);
static enum berth_code json_field(struct mapping *mapping, const char *name, json_t *value,
                                  const struct berth_config_field *field,
                                  struct berth_config_node *message);
static enum berth_code json_map(struct mapping *mapping, const char *name, json_t *object,
                                const struct berth_config_field *field,
                                struct berth_config_node *message);
static enum berth_code json_scalar(struct mapping *mapping, json_t *value,
                                   struct berth_config_node *node);

static enum berth_code map_all(struct mapping *mapping, const struct berth_config_node *root,
                               struct berth_version_policy *policy);
static enum berth_code map_names(struct mapping *mapping, const struct berth_config_node *root);
static enum berth_code map_policy(struct mapping *mapping, const struct berth_config_node *root,
                                  struct berth_version_policy *policy);
static enum berth_code map_batch_size(struct mapping *mapping,
                                      const struct berth_config_node *root);
static enum berth_code map_ios(struct mapping *mapping, const struct berth_config_node *root,
                               const char *name, struct berth_io **out, size_t *count);
static enum berth_code map_io(struct mapping *mapping, const struct berth_config_node *node,
                              struct berth_io *io);
static enum berth_code map_dims(struct mapping *mapping, const struct berth_config_node *message,
                                const char *name, int64_t dims[BERTH_RANK_MAX], uint8_t *rank);
static enum berth_code map_scheduling(struct mapping *mapping,
                                      const struct berth_config_node *root);
static enum berth_code map_dynamic(struct mapping *mapping, const struct berth_config_node *node);
static enum berth_code map_priorities(struct mapping *mapping,
                                      const struct berth_config_node *node);
static void map_queue_policy(const struct berth_config_node *node, struct berth_queue_policy *out);
static enum berth_code map_groups(struct mapping *mapping, const struct berth_config_node *root);
static enum berth_code map_group(struct mapping *mapping, const struct berth_config_node *node,
                                 struct berth_instance_group *group);
static void bound_instances(struct mapping *mapping, const struct berth_config_node *root);
static enum berth_code map_parameters(struct mapping *mapping,
                                      const struct berth_config_node *root);
static enum berth_code map_warmups(struct mapping *mapping, const struct berth_config_node *root);
static enum berth_code map_warmup(struct mapping *mapping, const struct berth_config_node *node,
                                  struct berth_warmup *warmup);
static enum berth_code map_warmup_input(struct mapping *mapping,
                                        const struct berth_config_node *entry,
                                        struct berth_warmup_input *input);
static enum berth_code map_file(struct mapping *mapping, const struct berth_config_node *node);
static uint64_t most_of(struct mapping *mapping, const struct berth_config_node *node,
                        uint64_t most);
static enum berth_code out_of_range(struct mapping *mapping, const struct berth_config_node *node,
                                    uint64_t least, uint64_t most);
static enum berth_code unsupported(struct mapping *mapping, const struct berth_config_node *node,
                                   const char *what);
static void *make(struct mapping *mapping, size_t count, size_t bytes);
static enum berth_code no_memory(struct mapping *mapping);

/* Backends and platforms of Triton's and ours; the engine's own name stands for itself. */
static const struct {
    const char *word;
    const char *engine;
} words[] = {
    {"onnxruntime", "onnx"},
    {"onnxruntime_onnx", "onnx"},
    {"identity", "null"},
    {"parakeet_tdt", "parakeet"}, /* model_type of a Hugging Face config */
    {"parakeet_rnnt", "parakeet"},
    {"parakeet_ctc", "parakeet"},
};

/* By TYPE_ number. */
static const enum berth_dtype dtypes[] = {
    BERTH_DTYPE_NONE,  BERTH_DTYPE_BOOL,  BERTH_DTYPE_UINT8, BERTH_DTYPE_UINT16,
    BERTH_DTYPE_UINT32, BERTH_DTYPE_UINT64, BERTH_DTYPE_INT8, BERTH_DTYPE_INT16,
    BERTH_DTYPE_INT32, BERTH_DTYPE_INT64, BERTH_DTYPE_FP16,  BERTH_DTYPE_FP32,
    BERTH_DTYPE_FP64,  BERTH_DTYPE_BYTES, BERTH_DTYPE_BF16,
};

enum berth_code berth_model_config_read(const struct berth_model_config *config,
                                        struct berth_model_spec *spec,
                                        struct berth_version_policy *policy,
                                        struct berth_err *err)
{
    struct mapping mapping = {
        .spec = spec,
        .source = {.label = config->label, .quiet = config->quiet, .warned = config->warned},
        .err = err};
    struct berth_config_node *root = NULL;
    *policy = (struct berth_version_policy){.kind = BERTH_VERSIONS_LATEST, .latest_count = 1};
    spec->backend = spec->platform = spec->default_model_filename = "";
    spec->task = "";
    spec->quiet = config->quiet;
    if (config->text != NULL) {
        BERTH_TRY(tree_read(config, &mapping, &root));
        BERTH_TRY(berth_config_check(root, &mapping.source, err));
        BERTH_TRY(map_all(&mapping, root, policy));
        spec->config = root;
    }
    spec->engine = berth_model_config_engine(spec->backend, spec->platform);
    return BERTH_OK;
}

const char *berth_model_config_engine(const char *backend, const char *platform)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(words); i++) {
        if (strcmp(backend[0] != '\0' ? backend : platform, words[i].word) == 0) {
            return words[i].engine;
        }
    }
    return backend[0] != '\0' ? backend : platform;
}

/* --- from text to tree --- */

static enum berth_code tree_read(const struct berth_model_config *config, struct mapping *mapping,
                                 struct berth_config_node **out)
{
    struct berth_pbtxt text = {
        .text = config->text, .length = config->length, .label = config->label};
    if (config->json) {
        return json_read(config, mapping, out);
    }
    return berth_pbtxt_parse(&text, &mapping->spec->arena, out, mapping->err);
}

static enum berth_code json_read(const struct berth_model_config *config, struct mapping *mapping,
                                 struct berth_config_node **out)
{
    json_error_t where;
    if (config->length > BERTH_PBTXT_BYTES_MAX) {
        return berth_fail(mapping->err, BERTH_TOO_LARGE, "%s is larger than %d bytes",
                          config->label, BERTH_PBTXT_BYTES_MAX);
    }
    json_t *json = NULL;
    enum berth_code code =
        berth_json_read(config->text, config->length, JSON_REJECT_DUPLICATES, &json, &where);
    if (code == BERTH_UNAVAILABLE) {
        return no_memory(mapping);
    }
    if (code != BERTH_OK) {
        return berth_fail(mapping->err, BERTH_INVALID, "%s:%d:%d: %s", config->label, where.line,
                          where.column, where.text);
    }
    struct berth_config_node *root = make(mapping, 1, sizeof(*root));
    if (root == NULL) {
        code = no_memory(mapping);
    } else if (!json_is_object(json)) {
        code = berth_fail(mapping->err, BERTH_INVALID, "%s is not a JSON object", config->label);
    } else {
        root->name = "";
        root->token = BERTH_CONFIG_TOKEN_MESSAGE;
        code = json_message(mapping, json, &berth_config_model, root);
    }
    json_decref(json);
    if (code == BERTH_OK) {
        *out = root;
    }
    return code;
}

/* The recursion ends with the table's own depth: what is unknown is not gone into. */
static enum berth_code json_message(struct mapping *mapping, json_t *object,
                                    const struct berth_config_message *table,
                                    struct berth_config_node *message)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const struct berth_config_field *field = NULL;
        for (size_t i = 0; i < table->field_count && field == NULL; i++) {
            if (strcmp(table->fields[i].name, name) == 0) {
                field = &table->fields[i];
            }
        }
        if (json_is_null(value)) {
            continue;
        }
        if (field != NULL && field->label == BERTH_CONFIG_MAP && json_is_object(value)) {
            BERTH_TRY(json_map(mapping, name, value, field, message));
        } else if (field != NULL && field->label == BERTH_CONFIG_MANY && json_is_array(value)) {
            size_t i;
            json_t *item;
            json_array_foreach(value, i, item)
            {
                BERTH_TRY(json_field(mapping, name, item, field, message));
            }
        } else {
            BERTH_TRY(json_field(mapping, name, value, field, message));
        }
    }
    return BERTH_OK;
}

static enum berth_code json_field(struct mapping *mapping, const char *name, json_t *value,
                                  const struct berth_config_field *field,
                                  struct berth_config_node *message)
{
    struct berth_config_node *node = make(mapping, 1, sizeof(*node));
    if (node == NULL || (node->name = berth_arena_strdup(&mapping->spec->arena, name)) == NULL) {
        return no_memory(mapping);
    }
    node->text = "";
    berth_config_append(message, node);
    if (json_is_object(value) || json_is_array(value)) {
        node->token = BERTH_CONFIG_TOKEN_MESSAGE;
        if (json_is_array(value) || field == NULL || field->message == NULL) {
            return field == NULL ? BERTH_OK
                                 : berth_config_fail(node, &mapping->source, mapping->err,
                                                     "'%s' has the wrong type", name);
        }
        return json_message(mapping, value, field->message, node);
    }
    return json_scalar(mapping, value, node);
}

/* {"k": v, ...} as entries of key and value. */
static enum berth_code json_map(struct mapping *mapping, const char *name, json_t *object,
                                const struct berth_config_field *field,
                                struct berth_config_node *message)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        struct berth_config_node *entry = make(mapping, 1, sizeof(*entry));
        if (entry == NULL) {
            return no_memory(mapping);
        }
        entry->name = berth_arena_strdup(&mapping->spec->arena, name);
        entry->token = BERTH_CONFIG_TOKEN_MESSAGE;
        entry->text = "";
        if (entry->name == NULL) {
            return no_memory(mapping);
        }
        berth_config_append(message, entry);
        json_t *word = json_string(key);
        enum berth_code code =
            json_field(mapping, "key", word, &field->message->fields[0], entry);
        json_decref(word);
        BERTH_TRY(code);
        BERTH_TRY(json_field(mapping, "value", value, &field->message->fields[1], entry));
    }
    return BERTH_OK;
}

static enum berth_code json_scalar(struct mapping *mapping, json_t *value,
                                   struct berth_config_node *node)
{
    struct berth_arena *arena = &mapping->spec->arena;
    if (json_is_string(value)) {
        node->token = BERTH_CONFIG_TOKEN_STRING;
        node->length = json_string_length(value);
        node->text = berth_arena_strndup(arena, json_string_value(value), node->length);
    } else if (json_is_boolean(value)) {
        node->token = BERTH_CONFIG_TOKEN_WORD;
        node->text = json_is_true(value) ? "true" : "false";
        node->length = strlen(node->text);
    } else if (json_is_number(value)) {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        node->token = BERTH_CONFIG_TOKEN_NUMBER;
        node->text = text == NULL ? NULL : berth_arena_strdup(arena, text);
        free(text); /* lib-owned */
        node->length = node->text == NULL ? 0 : strlen(node->text);
    }
    return node->text == NULL ? no_memory(mapping) : BERTH_OK;
}

/* --- from tree to spec --- */

static enum berth_code map_all(struct mapping *mapping, const struct berth_config_node *root,
                               struct berth_version_policy *policy)
{
    struct berth_model_spec *spec = mapping->spec;
    BERTH_TRY(map_names(mapping, root));
    BERTH_TRY(map_policy(mapping, root, policy));
    BERTH_TRY(map_batch_size(mapping, root));
    BERTH_TRY(map_ios(mapping, root, "input", &spec->inputs, &spec->input_count));
    BERTH_TRY(map_ios(mapping, root, "output", &spec->outputs, &spec->output_count));
    BERTH_TRY(map_scheduling(mapping, root));
    BERTH_TRY(map_groups(mapping, root));
    BERTH_TRY(map_parameters(mapping, root));
    return map_warmups(mapping, root);
}

static enum berth_code map_names(struct mapping *mapping, const struct berth_config_node *root)
{
    struct berth_model_spec *spec = mapping->spec;
    const char *name = berth_config_string(root, "name");
    if (name[0] != '\0' && strcmp(name, spec->name) != 0) {
        return berth_config_fail(berth_config_find(root, "name"), &mapping->source, mapping->err,
                                 "'%s' is not the name of its folder", name);
    }
    spec->platform = berth_config_string(root, "platform");
    spec->backend = berth_config_string(root, "backend");
    spec->default_model_filename = berth_config_string(root, "default_model_filename");
    return map_file(mapping, berth_config_find(root, "default_model_filename"));
}

static enum berth_code map_policy(struct mapping *mapping, const struct berth_config_node *root,
                                  struct berth_version_policy *policy)
{
    const struct berth_config_node *node = berth_config_find(root, "version_policy");
    const struct berth_config_node *latest = berth_config_find(node, "latest");
    const struct berth_config_node *specific = berth_config_find(node, "specific");
    if (berth_config_find(node, "all") != NULL) {
        policy->kind = BERTH_VERSIONS_ALL;
    } else if (latest != NULL) {
        uint64_t count = berth_config_unsigned(latest, "num_versions");
        policy->latest_count = count == 0 ? 1 : count;
    } else if (specific != NULL) {
        size_t count = berth_config_count(specific, "versions");
        policy->kind = BERTH_VERSIONS_SPECIFIC;
        if (count == 0 || count > BERTH_VERSIONS_MAX) {
            return berth_config_fail(specific, &mapping->source, mapping->err,
                                     "'versions' must list 1 to %d versions", BERTH_VERSIONS_MAX);
        }
        policy->specific = make(mapping, count, sizeof(*policy->specific));
        if (policy->specific == NULL) {
            return no_memory(mapping);
        }
        for (const struct berth_config_node *one = berth_config_find(specific, "versions");
             one != NULL; one = berth_config_again(one)) {
            if (one->value.integer < 1) {
                return berth_config_fail(one, &mapping->source, mapping->err,
                                         "a version is a number from 1 on");
            }
            policy->specific[policy->specific_count++] = (uint64_t)one->value.integer;
        }
    }
    return BERTH_OK;
}

static enum berth_code map_batch_size(struct mapping *mapping,
                                      const struct berth_config_node *root)
{
    const struct berth_config_node *node = berth_config_find(root, "max_batch_size");
    if (node == NULL) {
        return BERTH_OK;
    }
    if (node->value.integer < 0) {
        return out_of_range(mapping, node, 0, BATCH_SIZE_MAX);
    }
    mapping->spec->batch_size_max = most_of(mapping, node, BATCH_SIZE_MAX);
    mapping->spec->batch_size_set = true;
    return BERTH_OK;
}

static enum berth_code map_ios(struct mapping *mapping, const struct berth_config_node *root,
                               const char *name, struct berth_io **out, size_t *count)
{
    size_t ios_count = berth_config_count(root, name);
    size_t made = 0;
    struct berth_io *ios = make(mapping, ios_count + 1, sizeof(*ios));
    if (ios == NULL) {
        return no_memory(mapping);
    }
    for (const struct berth_config_node *node = berth_config_find(root, name); node != NULL;
         node = berth_config_again(node)) {
        if (made == IOS_MAX) {
            return berth_config_fail(node, &mapping->source, mapping->err,
                                     "more than %d of '%s'", IOS_MAX, name);
        }
        BERTH_TRY(map_io(mapping, node, &ios[made]));
        for (size_t i = 0; i < made; i++) {
            if (strcmp(ios[i].name, ios[made].name) == 0) {
                return berth_config_fail(node, &mapping->source, mapping->err,
                                         "the %s '%s' is there twice", name, ios[made].name);
            }
        }
        made++;
    }
    *out = ios;
    *count = made;
    return BERTH_OK;
}

static enum berth_code map_io(struct mapping *mapping, const struct berth_config_node *node,
                              struct berth_io *io)
{
    const struct berth_config_node *reshape = berth_config_find(node, "reshape");
    const struct berth_config_node *format = berth_config_find(node, "format");
    io->name = berth_config_string(node, "name");
    io->dtype = dtypes[berth_config_integer(node, "data_type")];
    if (io->name[0] == '\0') {
        return berth_config_fail(node, &mapping->source, mapping->err, "'%s' has no name",
                                 node->name);
    }
    if (io->dtype == BERTH_DTYPE_NONE) {
        return berth_config_fail(node, &mapping->source, mapping->err, "%s '%s' has no data_type",
                                 node->name, io->name);
    }
    BERTH_TRY(map_dims(mapping, node, "dims", io->dims, &io->rank));
    if (io->rank == 0) {
        return berth_config_fail(node, &mapping->source, mapping->err, "%s '%s' has no dims",
                                 node->name, io->name);
    }
    if (reshape != NULL) {
        io->has_reshape = true;
        BERTH_TRY(map_dims(mapping, reshape, "shape", io->reshape_dims, &io->reshape_rank));
    }
    if (mapping->spec->batch_size_max > 0 &&
        (io->rank == BERTH_RANK_MAX || io->reshape_rank == BERTH_RANK_MAX)) {
        return berth_config_fail(node, &mapping->source, mapping->err,
                                 "more than %d dimensions, the batch included", BERTH_RANK_MAX);
    }
    io->optional = berth_config_boolean(node, "optional");
    io->allow_ragged_batch = berth_config_boolean(node, "allow_ragged_batch");
    io->is_shape_tensor = berth_config_boolean(node, "is_shape_tensor");
    io->format =
        format == NULL ? "FORMAT_NONE" : format->field->values[format->value.integer];
    io->label_filename = berth_config_string(node, "label_filename");
    return map_file(mapping, berth_config_find(node, "label_filename"));
}

static enum berth_code map_dims(struct mapping *mapping, const struct berth_config_node *message,
                                const char *name, int64_t dims[BERTH_RANK_MAX], uint8_t *rank)
{
    for (const struct berth_config_node *node = berth_config_find(message, name); node != NULL;
         node = berth_config_again(node)) {
        if (node->value.integer < 1 && node->value.integer != -1) {
            return berth_config_fail(node, &mapping->source, mapping->err,
                                     "a dimension is a number from 1 on, or -1");
        }
        if (*rank == BERTH_RANK_MAX) {
            return berth_config_fail(node, &mapping->source, mapping->err,
                                     "more than %d dimensions", BERTH_RANK_MAX);
        }
        dims[(*rank)++] = node->value.integer;
    }
    return BERTH_OK;
}

static enum berth_code map_scheduling(struct mapping *mapping,
                                      const struct berth_config_node *root)
{
    struct berth_model_spec *spec = mapping->spec;
    const struct berth_config_node *dynamic = berth_config_find(root, "dynamic_batching");
    const struct berth_config_node *ensemble = berth_config_find(root, "ensemble_scheduling");
    const struct berth_config_node *sequence = berth_config_find(root, "sequence_batching");
    if (ensemble != NULL || strcmp(spec->platform, "ensemble") == 0) {
        return unsupported(mapping,
                           ensemble != NULL ? ensemble : berth_config_find(root, "platform"),
                           "it is an ensemble (ensemble_scheduling)");
    }
    if (sequence != NULL) {
        return unsupported(mapping, sequence, "it uses sequence_batching");
    }
    if (dynamic == NULL) {
        return BERTH_OK;
    }
    spec->batching = BERTH_BATCHING_DYNAMIC;
    spec->batching_set = true;
    return map_dynamic(mapping, dynamic);
}

static enum berth_code map_dynamic(struct mapping *mapping, const struct berth_config_node *node)
{
    struct berth_model_spec *spec = mapping->spec;
    struct berth_dynamic_batching *out = &spec->dynamic;
    int64_t most = spec->batch_size_set ? (int64_t)spec->batch_size_max : BATCH_SIZE_MAX;
    for (const struct berth_config_node *size = berth_config_find(node, "preferred_batch_size");
         size != NULL; size = berth_config_again(size)) {
        if (size->value.integer < 1 || size->value.integer > most) {
            return berth_config_fail(
                size, &mapping->source, mapping->err,
                "'preferred_batch_size' is %lld; it takes 1 to max_batch_size (%lld)",
                (long long)size->value.integer, (long long)most);
        }
        if (out->preferred_count == BERTH_PREFERRED_MAX) {
            return berth_config_fail(size, &mapping->source, mapping->err,
                                     "more than %d preferred sizes", BERTH_PREFERRED_MAX);
        }
        out->preferred[out->preferred_count++] = (uint64_t)size->value.integer;
    }
    out->delay_us_max = berth_config_unsigned(node, "max_queue_delay_microseconds");
    out->preserve_ordering = berth_config_boolean(node, "preserve_ordering");
    map_queue_policy(berth_config_find(node, "default_queue_policy"), &out->policy_default);
    return map_priorities(mapping, node);
}

static enum berth_code map_priorities(struct mapping *mapping,
                                      const struct berth_config_node *node)
{
    struct berth_dynamic_batching *out = &mapping->spec->dynamic;
    const struct berth_config_node *levels = berth_config_find(node, "priority_levels");
    const struct berth_config_node *level = berth_config_find(node, "default_priority_level");
    out->priority_levels = berth_config_unsigned(node, "priority_levels");
    out->priority_level_default = berth_config_unsigned(node, "default_priority_level");
    if (out->priority_levels > BERTH_PRIORITY_MAX) {
        return out_of_range(mapping, levels, 0, BERTH_PRIORITY_MAX);
    }
    if (out->priority_levels > 0 && (out->priority_level_default < 1 ||
                                     out->priority_level_default > out->priority_levels)) {
        return berth_config_fail(
            level == NULL ? levels : level, &mapping->source, mapping->err,
            "'default_priority_level' is %llu; it takes 1 to priority_levels (%llu)",
            (unsigned long long)out->priority_level_default,
            (unsigned long long)out->priority_levels);
    }
    for (size_t i = 0; i < BERTH_PRIORITY_MAX; i++) {
        out->policies[i] = out->policy_default;
    }
    for (const struct berth_config_node *entry = berth_config_find(node, "priority_queue_policy");
         entry != NULL; entry = berth_config_again(entry)) {
        uint64_t key = berth_config_unsigned(entry, "key");
        if (key < 1 || key > out->priority_levels) {
            return berth_config_fail(entry, &mapping->source, mapping->err,
                                     "a policy's key is %llu; it takes 1 to priority_levels (%llu)",
                                     (unsigned long long)key,
                                     (unsigned long long)out->priority_levels);
        }
        map_queue_policy(berth_config_find(entry, "value"), &out->policies[key - 1]);
    }
    return BERTH_OK;
}

static void map_queue_policy(const struct berth_config_node *node, struct berth_queue_policy *out)
{
    *out = (struct berth_queue_policy){
        .timeout_action = berth_config_integer(node, "timeout_action") == 1 ? BERTH_TIMEOUT_DELAY
                                                                            : BERTH_TIMEOUT_REJECT,
        .timeout_us_default = berth_config_unsigned(node, "default_timeout_microseconds"),
        .timeout_override = berth_config_boolean(node, "allow_timeout_override"),
        .count_max = berth_config_unsigned(node, "max_queue_size"),
    };
}

static enum berth_code map_groups(struct mapping *mapping, const struct berth_config_node *root)
{
    struct berth_model_spec *spec = mapping->spec;
    size_t count = berth_config_count(root, "instance_group");
    struct berth_instance_group *groups = make(mapping, count + 1, sizeof(*groups));
    if (groups == NULL) {
        return no_memory(mapping);
    }
    for (const struct berth_config_node *node = berth_config_find(root, "instance_group");
         node != NULL; node = berth_config_again(node)) {
        BERTH_TRY(map_group(mapping, node, &groups[spec->group_count]));
        spec->group_count++;
    }
    spec->groups = groups;
    bound_instances(mapping, root);
    return BERTH_OK;
}

static enum berth_code map_group(struct mapping *mapping, const struct berth_config_node *node,
                                 struct berth_instance_group *group)
{
    static const enum berth_instance_kind kinds[] = {BERTH_KIND_AUTO, BERTH_KIND_GPU,
                                                     BERTH_KIND_CPU, BERTH_KIND_MODEL};
    const struct berth_config_node *count = berth_config_find(node, "count");
    int32_t *gpus = make(mapping, berth_config_count(node, "gpus") + 1, sizeof(*gpus));
    bool told = false;
    if (gpus == NULL) {
        return no_memory(mapping);
    }
    if (count != NULL && count->value.integer < 0) {
        return out_of_range(mapping, count, 0, BERTH_INSTANCES_MAX);
    }
    group->name = berth_config_string(node, "name");
    group->kind = kinds[berth_config_integer(node, "kind")];
    group->count = (uint32_t)berth_config_integer(node, "count");
    group->gpus = gpus;
    for (const struct berth_config_node *gpu = berth_config_find(node, "gpus"); gpu != NULL;
         gpu = berth_config_again(gpu)) {
        if (group->kind == BERTH_KIND_CPU || group->kind == BERTH_KIND_MODEL) {
            return berth_config_fail(gpu, &mapping->source, mapping->err,
                                     "'gpus' is for KIND_GPU and KIND_AUTO only");
        }
        gpus[group->gpu_count++] = (int32_t)gpu->value.integer;
        if (gpu->value.integer != 0 && !told) {
            berth_config_note(gpu, &mapping->source,
                              "'gpus' lists %lld, which has no effect: of GPUs cuda:0 alone serves "
                              "(CUDA_VISIBLE_DEVICES says which card that is)",
                              (long long)gpu->value.integer);
            told = true;
        }
    }
    return BERTH_OK;
}

/* Together, on a CPU and on a GPU, groups have what a model can have there. */
static void bound_instances(struct mapping *mapping, const struct berth_config_node *root)
{
    uint64_t taken[2] = {0, 0}; /* on a CPU, on a GPU */
    const struct berth_config_node *node = berth_config_find(root, "instance_group");
    for (size_t i = 0; i < mapping->spec->group_count; i++, node = berth_config_again(node)) {
        struct berth_instance_group *group = &mapping->spec->groups[i];
        bool is_cpu = group->kind == BERTH_KIND_CPU || group->kind == BERTH_KIND_AUTO;
        bool is_gpu = group->kind == BERTH_KIND_GPU || group->kind == BERTH_KIND_AUTO;
        uint64_t before = is_cpu ? taken[0] : 0;
        before = is_gpu && taken[1] > before ? taken[1] : before;
        if (group->count > BERTH_INSTANCES_MAX - before) {
            group->count = (uint32_t)most_of(mapping, berth_config_find(node, "count"),
                                             BERTH_INSTANCES_MAX - before);
        }
        taken[0] += is_cpu ? group->count : 0;
        taken[1] += is_gpu ? group->count : 0;
    }
}

static enum berth_code map_parameters(struct mapping *mapping,
                                      const struct berth_config_node *root)
{
    struct berth_model_spec *spec = mapping->spec;
    size_t count = berth_config_count(root, "parameters");
    struct berth_key_value *parameters = make(mapping, count + 1, sizeof(*parameters));
    if (parameters == NULL) {
        return no_memory(mapping);
    }
    for (const struct berth_config_node *entry = berth_config_find(root, "parameters");
         entry != NULL; entry = berth_config_again(entry)) {
        if (!entry->shadowed) {
            parameters[spec->parameter_count++] = (struct berth_key_value){
                .key = berth_config_string(entry, "key"),
                .value = berth_config_string(berth_config_find(entry, "value"), "string_value")};
        }
    }
    spec->parameters = parameters;
    return BERTH_OK;
}

static enum berth_code map_warmups(struct mapping *mapping, const struct berth_config_node *root)
{
    struct berth_model_spec *spec = mapping->spec;
    size_t count = berth_config_count(root, "model_warmup");
    spec->warmups = make(mapping, count + 1, sizeof(*spec->warmups));
    if (spec->warmups == NULL) {
        return no_memory(mapping);
    }
    for (const struct berth_config_node *node = berth_config_find(root, "model_warmup");
         node != NULL; node = berth_config_again(node)) {
        BERTH_TRY(map_warmup(mapping, node, &spec->warmups[spec->warmup_count]));
        spec->warmup_count++;
    }
    return BERTH_OK;
}

static enum berth_code map_warmup(struct mapping *mapping, const struct berth_config_node *node,
                                  struct berth_warmup *warmup)
{
    const struct berth_config_node *size = berth_config_find(node, "batch_size");
    const struct berth_config_node *count = berth_config_find(node, "count");
    uint64_t rows = berth_config_unsigned(node, "batch_size");
    uint64_t runs = berth_config_unsigned(node, "count");
    uint64_t most = mapping->spec->batch_size_max == 0 ? 1 : mapping->spec->batch_size_max;
    most = mapping->spec->batch_size_set ? most : BATCH_SIZE_MAX;
    if (rows > most) {
        return out_of_range(mapping, size, 1, most);
    }
    if (runs > WARMUP_RUNS_MAX) {
        return out_of_range(mapping, count, 1, WARMUP_RUNS_MAX);
    }
    warmup->name = berth_config_string(node, "name");
    warmup->batch_size = rows == 0 ? 1 : (uint32_t)rows;
    warmup->count = runs == 0 ? 1 : (uint32_t)runs;
    warmup->inputs =
        make(mapping, berth_config_count(node, "inputs") + 1, sizeof(*warmup->inputs));
    if (warmup->inputs == NULL) {
        return no_memory(mapping);
    }
    for (const struct berth_config_node *entry = berth_config_find(node, "inputs"); entry != NULL;
         entry = berth_config_again(entry)) {
        if (!entry->shadowed) {
            struct berth_warmup_input *input = &warmup->inputs[warmup->input_count++];
            input->name = berth_config_string(entry, "key");
            BERTH_TRY(map_warmup_input(mapping, entry, input));
        }
    }
    return BERTH_OK;
}

static enum berth_code map_warmup_input(struct mapping *mapping,
                                        const struct berth_config_node *entry,
                                        struct berth_warmup_input *input)
{
    const struct berth_config_node *value = berth_config_find(entry, "value");
    input->dtype = dtypes[berth_config_integer(value, "data_type")];
    input->file = berth_config_string(value, "input_data_file");
    if (input->dtype == BERTH_DTYPE_NONE) {
        return berth_config_fail(entry, &mapping->source, mapping->err,
                                 "the warm-up's input '%s' has no data_type", input->name);
    }
    for (const struct berth_config_node *dim = berth_config_find(value, "dims"); dim != NULL;
         dim = berth_config_again(dim)) {
        if (dim->value.integer < 0 || dim->value.integer > INT32_MAX) {
            return berth_config_fail(dim, &mapping->source, mapping->err,
                                     "a warm-up's dimension must be known");
        }
        if (input->rank == BERTH_RANK_MAX) {
            return berth_config_fail(dim, &mapping->source, mapping->err,
                                     "more than %d dimensions", BERTH_RANK_MAX);
        }
        input->dims[input->rank++] = dim->value.integer;
    }
    if (input->file[0] != '\0') {
        input->source = BERTH_WARMUP_FILE;
    } else if (berth_config_find(value, "random_data") != NULL) {
        input->source = BERTH_WARMUP_RANDOM;
    }
    return map_file(mapping, berth_config_find(value, "input_data_file"));
}

/* A file a config names lies inside the model's folder. */
static enum berth_code map_file(struct mapping *mapping, const struct berth_config_node *node)
{
    const char *at = node == NULL ? "" : node->text;
    bool inside = at[0] != '/';
    while (at != NULL && inside) {
        inside = !(at[0] == '.' && at[1] == '.' && (at[2] == '/' || at[2] == '\0'));
        at = strchr(at, '/');
        at = at == NULL ? NULL : at + 1;
    }
    if (!inside) {
        return berth_config_fail(node, &mapping->source, mapping->err,
                                 "'%s' must name a file inside the model's folder", node->name);
    }
    return BERTH_OK;
}

/* The number that node says, or the most there can be. */
static uint64_t most_of(struct mapping *mapping, const struct berth_config_node *node,
                        uint64_t most)
{
    uint64_t value = (uint64_t)node->value.integer;
    if (value <= most) {
        return value;
    }
    berth_config_note(node, &mapping->source, "'%s' is %.40s; %llu is taken, the most there can be",
                      node->name, node->text, (unsigned long long)most);
    return most;
}

static enum berth_code out_of_range(struct mapping *mapping, const struct berth_config_node *node,
                                    uint64_t least, uint64_t most)
{
    return berth_config_fail(node, &mapping->source, mapping->err,
                             "'%s' is %.40s; it takes %llu to %llu", node->name, node->text,
                             (unsigned long long)least, (unsigned long long)most);
}

static enum berth_code unsupported(struct mapping *mapping, const struct berth_config_node *node,
                                   const char *what)
{
    (void)berth_config_fail(node, &mapping->source, mapping->err, "%s, which is not supported yet",
                            what);
    if (mapping->err != NULL) {
        mapping->err->code = BERTH_UNSUPPORTED;
    }
    return BERTH_UNSUPPORTED;
}

static void *make(struct mapping *mapping, size_t count, size_t bytes)
{
    size_t whole;
    if (!berth_mul_size(count, bytes, &whole)) {
        return NULL;
    }
    return berth_arena_alloc(&mapping->spec->arena, whole);
}

static enum berth_code no_memory(struct mapping *mapping)
{
    return berth_fail(mapping->err, BERTH_UNAVAILABLE, "no memory to read %s",
                      mapping->source.label);
}
