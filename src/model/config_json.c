/* config_json.c - what GET /v2/models/NAME/config answers: Triton's keys, order and defaults.
 *
 * As Triton, every scalar, list and map of a message is there, also when nobody set it; messages
 * only when they were set, but for three (the table's `absent`). What describe completed comes from
 * the spec: names, batch size, inputs and outputs, dynamic batching. Instance groups are shown with
 * the kind they came to where the model runs, else as written.
 * A speech model's max_batch_size is 0 there whatever was written: Triton's clients read it as
 * whether inputs have a batch dimension before the dimensions listed, and audio has none. What was
 * written, its slots, is the parameter `slots` instead.
 * A worker process gets what was written only. It describes the model itself; with what describe
 * completed here as if it had been written, it would judge another config: a speech model's batch
 * size is its slots before, and 0 after.
 */
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "model/config_tree.h"

static void write_message(struct berth_buf *out, const struct berth_config_message *table,
                          const struct berth_config_node *message);
static bool write_field(struct berth_buf *out, const struct berth_config_field *field,
                        const struct berth_config_node *message, bool first);
static void write_value(struct berth_buf *out, const struct berth_config_field *field,
                        const struct berth_config_node *node);
static void write_map(struct berth_buf *out, const struct berth_config_field *field,
                      const struct berth_config_node *message);
static void write_slots(struct berth_buf *out, const struct berth_model_spec *spec);
static bool write_from_spec(struct berth_buf *out, const struct berth_model_spec *spec,
                            enum berth_instance_kind ran, const char *name);
static void write_io(struct berth_buf *out, const struct berth_io *io, bool is_input);
static void write_dims(struct berth_buf *out, const char *key, const int64_t *dims, uint8_t rank);
static void write_dynamic(struct berth_buf *out, const struct berth_model_spec *spec,
                          const struct berth_config_node *node);
static void write_groups(struct berth_buf *out, const struct berth_model_spec *spec,
                         enum berth_instance_kind ran);
static void write_group(struct berth_buf *out, const char *name, const char *kind,
                        const struct berth_config_node *node);
static void write_text(struct berth_buf *out, const char *key, const char *text);

char *berth_spec_config_json(const struct berth_model_spec *spec, enum berth_instance_kind ran)
{
    struct berth_buf out = {0};
    bool first = true;
    berth_buf_puts(&out, "{");
    for (size_t i = 0; i < berth_config_model.field_count; i++) {
        const struct berth_config_field *field = &berth_config_model.fields[i];
        size_t before = out.length;
        if (!first) {
            berth_buf_puts(&out, ",");
        }
        size_t start = out.length;
        if (!write_from_spec(&out, spec, ran, field->name)) {
            write_field(&out, field, spec->config, true);
        }
        if (strcmp(field->name, "parameters") == 0) {
            write_slots(&out, spec);
        }
        if (out.length == start) { /* left out: so is its comma */
            out.length = before;
        } else {
            first = false;
        }
    }
    berth_buf_puts(&out, "}");
    return berth_buf_release(&out, NULL);
}

/* Only a batch size means something else when it is not there than when it is the default. */
char *berth_spec_config_given(const struct berth_model_spec *spec)
{
    struct berth_buf out = {0};
    bool first = true;
    if (spec->config == NULL) {
        return berth_spec_config_json(spec, BERTH_KIND_AUTO);
    }
    berth_buf_puts(&out, "{");
    for (size_t i = 0; i < berth_config_model.field_count; i++) {
        const struct berth_config_field *field = &berth_config_model.fields[i];
        if (strcmp(field->name, "max_batch_size") != 0 ||
            berth_config_find(spec->config, field->name) != NULL) {
            first = !write_field(&out, field, spec->config, first) && first;
        }
    }
    berth_buf_puts(&out, "}");
    return berth_buf_release(&out, NULL);
}

static void write_message(struct berth_buf *out, const struct berth_config_message *table,
                          const struct berth_config_node *message)
{
    bool first = true;
    berth_buf_puts(out, "{");
    for (size_t i = 0; i < table->field_count; i++) {
        first = !write_field(out, &table->fields[i], message, first) && first;
    }
    berth_buf_puts(out, "}");
}

static void write_key(struct berth_buf *out, const char *name, bool first)
{
    berth_buf_printf(out, "%s\"%s\":", first ? "" : ",", name);
}

/* false: the field is left out. */
static bool write_field(struct berth_buf *out, const struct berth_config_field *field,
                        const struct berth_config_node *message, bool first)
{
    const struct berth_config_node *node = berth_config_find(message, field->name);
    if (field->label == BERTH_CONFIG_MAP) {
        write_key(out, field->name, first);
        write_map(out, field, message);
        return true;
    }
    if (field->label == BERTH_CONFIG_MANY) {
        write_key(out, field->name, first);
        berth_buf_puts(out, "[");
        for (bool item_first = true; node != NULL; node = berth_config_again(node)) {
            berth_buf_puts(out, item_first ? "" : ",");
            write_value(out, field, node);
            item_first = false;
        }
        berth_buf_puts(out, "]");
        return true;
    }
    bool is_message = field->type == BERTH_CONFIG_MESSAGE;
    if (node == NULL && (is_message || field->choice != 0)) {
        if (field->absent != NULL) {
            write_key(out, field->name, first);
            berth_buf_puts(out, field->absent);
        }
        return field->absent != NULL;
    }
    write_key(out, field->name, first);
    write_value(out, field, node);
    return true;
}

static void write_real(struct berth_buf *out, double value, int digits)
{
    if (isnan(value)) {
        berth_buf_puts(out, "\"NaN\"");
    } else if (isinf(value)) {
        berth_buf_puts(out, value < 0 ? "\"-Infinity\"" : "\"Infinity\"");
    } else if (value == 0 && signbit(value)) {
        berth_buf_puts(out, "-0.0"); /* "-0" is an integer, which has no such value */
    } else {
        berth_buf_printf(out, "%.*g", digits, value);
    }
}

/* Past what JSON readers, ours among them, take as a number: as a string, as protobuf has it. */
static void write_unsigned(struct berth_buf *out, uint64_t value)
{
    const char *quote = value > INT64_MAX ? "\"" : "";
    berth_buf_printf(out, "%s%llu%s", quote, (unsigned long long)value, quote);
}

/* node NULL: the default of the field's type. */
static void write_value(struct berth_buf *out, const struct berth_config_field *field,
                        const struct berth_config_node *node)
{
    switch (field->type) {
    case BERTH_CONFIG_STRING:
        berth_buf_json_string(out, node == NULL ? "" : node->text,
                              node == NULL ? 0 : node->length);
        break;
    case BERTH_CONFIG_BOOL:
        berth_buf_puts(out, node != NULL && node->value.boolean ? "true" : "false");
        break;
    case BERTH_CONFIG_INT32:
    case BERTH_CONFIG_INT64:
        berth_buf_printf(out, "%lld", node == NULL ? 0LL : (long long)node->value.integer);
        break;
    case BERTH_CONFIG_UINT32:
    case BERTH_CONFIG_UINT64:
        write_unsigned(out, node == NULL ? 0 : node->value.unsigned_integer);
        break;
    case BERTH_CONFIG_FLOAT:
        write_real(out, node == NULL ? 0 : node->value.real, 9);
        break;
    case BERTH_CONFIG_DOUBLE:
        write_real(out, node == NULL ? 0 : node->value.real, 17);
        break;
    case BERTH_CONFIG_ENUM:
        berth_buf_printf(out, "\"%s\"",
                         field->values[node == NULL ? 0 : (size_t)node->value.integer]);
        break;
    case BERTH_CONFIG_MESSAGE:
        write_message(out, field->message, node);
        break;
    }
}

static void write_map(struct berth_buf *out, const struct berth_config_field *field,
                      const struct berth_config_node *message)
{
    bool first = true;
    bool is_number = field->message->fields[0].type == BERTH_CONFIG_UINT64;
    berth_buf_puts(out, "{");
    for (const struct berth_config_node *entry = berth_config_find(message, field->name);
         entry != NULL; entry = berth_config_again(entry)) {
        const struct berth_config_node *value = berth_config_find(entry, "value");
        const char *key = berth_config_string(entry, "key");
        if (entry->shadowed) {
            continue;
        }
        berth_buf_puts(out, first ? "" : ",");
        first = false;
        if (is_number) {
            berth_buf_printf(out, "\"%llu\"",
                             (unsigned long long)berth_config_unsigned(entry, "key"));
        } else {
            berth_buf_json_string(out, key, strlen(key));
        }
        berth_buf_puts(out, ":");
        write_value(out, &field->message->fields[1], value);
    }
    berth_buf_puts(out, "}");
}

/* Into the map of parameters that was just written. */
static void write_slots(struct berth_buf *out, const struct berth_model_spec *spec)
{
    const char *slots = berth_spec_parameter(spec, "slots", NULL);
    bool was_batch_size = spec->batch_size_max == 0 &&
                          berth_config_integer(spec->config, "max_batch_size") > 0 &&
                          berth_config_parameter(spec, "slots") == NULL;
    if (was_batch_size && slots != NULL && out->length > 0) {
        out->length--; /* the map's brace */
        berth_buf_printf(out, "%s\"slots\":{\"string_value\":\"%s\"}}",
                         berth_config_find(spec->config, "parameters") == NULL ? "" : ",", slots);
    }
}

/* What the spec knows better than the text; false: it is not such a field. */
static bool write_from_spec(struct berth_buf *out, const struct berth_model_spec *spec,
                            enum berth_instance_kind ran, const char *name)
{
    const struct berth_config_node *dynamic = berth_config_find(spec->config, "dynamic_batching");
    if (strcmp(name, "name") == 0) {
        write_text(out, name, spec->name);
    } else if (strcmp(name, "platform") == 0) {
        write_text(out, name, spec->platform);
    } else if (strcmp(name, "backend") == 0) {
        write_text(out, name, spec->backend);
    } else if (strcmp(name, "default_model_filename") == 0) {
        write_text(out, name, spec->default_model_filename);
    } else if (strcmp(name, "max_batch_size") == 0) {
        berth_buf_printf(out, "\"max_batch_size\":%llu",
                         (unsigned long long)spec->batch_size_max);
    } else if (strcmp(name, "input") == 0 || strcmp(name, "output") == 0) {
        bool is_input = name[0] == 'i';
        const struct berth_io *ios = is_input ? spec->inputs : spec->outputs;
        size_t count = is_input ? spec->input_count : spec->output_count;
        berth_buf_printf(out, "\"%s\":[", name);
        for (size_t i = 0; i < count; i++) {
            berth_buf_puts(out, i == 0 ? "" : ",");
            write_io(out, &ios[i], is_input);
        }
        berth_buf_puts(out, "]");
    } else if (strcmp(name, "dynamic_batching") == 0) {
        if (spec->batching == BERTH_BATCHING_DYNAMIC) {
            write_dynamic(out, spec, dynamic);
        }
    } else if (strcmp(name, "instance_group") == 0 && ran != BERTH_KIND_AUTO) {
        write_groups(out, spec, ran);
    } else {
        return false;
    }
    return true;
}

static const char *flag(bool value)
{
    return value ? "true" : "false";
}

static void write_io(struct berth_buf *out, const struct berth_io *io, bool is_input)
{
    bool is_bytes = io->dtype == BERTH_DTYPE_BYTES;
    berth_buf_puts(out, "{");
    write_text(out, "name", io->name);
    berth_buf_printf(out, ",\"data_type\":\"TYPE_%s\",",
                     is_bytes ? "STRING" : berth_dtype_name(io->dtype));
    if (is_input) {
        write_text(out, "format", io->format == NULL ? "FORMAT_NONE" : io->format);
        berth_buf_puts(out, ",");
    }
    write_dims(out, "dims", io->dims, io->rank);
    if (io->has_reshape) {
        berth_buf_puts(out, ",\"reshape\":{");
        write_dims(out, "shape", io->reshape_dims, io->reshape_rank);
        berth_buf_puts(out, "}");
    }
    if (!is_input) {
        berth_buf_puts(out, ",");
        write_text(out, "label_filename", io->label_filename);
    }
    berth_buf_printf(out, ",\"is_shape_tensor\":%s", flag(io->is_shape_tensor));
    if (is_input) {
        berth_buf_printf(out, ",\"allow_ragged_batch\":%s,\"optional\":%s",
                         flag(io->allow_ragged_batch), flag(io->optional));
    }
    berth_buf_puts(out, ",\"is_non_linear_format_io\":false}");
}

static void write_dims(struct berth_buf *out, const char *key, const int64_t *dims, uint8_t rank)
{
    berth_buf_printf(out, "\"%s\":[", key);
    for (size_t i = 0; i < rank; i++) {
        berth_buf_printf(out, "%s%lld", i == 0 ? "" : ",", (long long)dims[i]);
    }
    berth_buf_puts(out, "]");
}

/* Where no preferred sizes are given, Triton shows the largest batch as the one that is. */
static void write_dynamic(struct berth_buf *out, const struct berth_model_spec *spec,
                          const struct berth_config_node *node)
{
    bool first = true;
    berth_buf_puts(out, "\"dynamic_batching\":{");
    for (size_t i = 0; i < berth_config_dynamic.field_count; i++) {
        const struct berth_config_field *field = &berth_config_dynamic.fields[i];
        if (strcmp(field->name, "preferred_batch_size") == 0 &&
            spec->dynamic.preferred_count == 0 && spec->batch_size_max > 0) {
            berth_buf_printf(out, "\"preferred_batch_size\":[%llu]",
                             (unsigned long long)spec->batch_size_max);
            first = false;
        } else {
            first = !write_field(out, field, node, first) && first;
        }
    }
    berth_buf_puts(out, "}");
}

/* Triton names a group MODEL_INDEX, its own default group MODEL, and says the kind it came to. */
static void write_groups(struct berth_buf *out, const struct berth_model_spec *spec,
                         enum berth_instance_kind ran)
{
    const struct berth_config_node *node = berth_config_find(spec->config, "instance_group");
    const char *kind = ran == BERTH_KIND_GPU ? "KIND_GPU" : "KIND_CPU";
    size_t index = 0;
    berth_buf_puts(out, "\"instance_group\":[");
    if (node == NULL) {
        write_group(out, spec->name, kind, NULL);
    }
    for (; node != NULL; node = berth_config_again(node)) {
        struct berth_buf name = {0};
        berth_buf_printf(&name, "%s_%zu", spec->name, index);
        berth_buf_puts(out, index++ == 0 ? "" : ",");
        write_group(out, berth_buf_text(&name), kind, node);
        out->failed = out->failed || name.failed;
        berth_buf_finish(&name);
    }
    berth_buf_puts(out, "]");
}

/* name and kind: where the config has none. */
static void write_group(struct berth_buf *out, const char *name, const char *kind,
                        const struct berth_config_node *node)
{
    const struct berth_config_field *group = NULL;
    for (size_t i = 0; i < berth_config_model.field_count && group == NULL; i++) {
        if (strcmp(berth_config_model.fields[i].name, "instance_group") == 0) {
            group = &berth_config_model.fields[i];
        }
    }
    berth_buf_puts(out, "{");
    for (size_t i = 0; group != NULL && i < group->message->field_count; i++) {
        const struct berth_config_field *field = &group->message->fields[i];
        if (strcmp(field->name, "name") == 0 && berth_config_string(node, "name")[0] == '\0') {
            write_text(out, "name", name);
        } else if (strcmp(field->name, "kind") == 0 && berth_config_integer(node, "kind") == 0) {
            berth_buf_printf(out, ",\"kind\":\"%s\"", kind);
        } else if (strcmp(field->name, "count") == 0 && berth_config_integer(node, "count") == 0) {
            berth_buf_puts(out, ",\"count\":1");
        } else {
            write_field(out, field, node, i == 0);
        }
    }
    berth_buf_puts(out, "}");
}

static void write_text(struct berth_buf *out, const char *key, const char *text)
{
    const char *value = text == NULL ? "" : text;
    berth_buf_printf(out, "\"%s\":", key);
    berth_buf_json_string(out, value, strlen(value));
}
