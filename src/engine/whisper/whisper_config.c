/* whisper_config.c - reads and checks config.json and generation_config.json.
 *
 * A key is looked for in generation_config.json first and in config.json then, because exports of
 * different ages keep the token sets in one or the other.
 */
#include "engine/whisper/whisper_config.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "engine/json_file.h"
#include "engine/whisper/mel.h"
#include "model/languages.h"

#define FILE_BYTES_MAX (8U << 20)
#define PATH_BYTES_MAX 4096
#define POSITIONS_MAX 448 /* all released models have this many */
#define LIST_MAX 65536
#define VOCAB_MAX (1 << 20)
#define EXTRA_MAX 6 /* control tokens that no step may say */

struct source {
    const json_t *generation; /* NULL: no such file */
    const json_t *config;
    const char *folder;
    const struct berth_tokens *tokens;
};

static enum berth_code read_sizes(const struct source *source, struct berth_whisper_config *out,
                                  struct berth_err *err);
static enum berth_code read_ids(const struct source *source, struct berth_whisper_config *out,
                                struct berth_err *err);
static enum berth_code read_sets(const struct source *source, struct berth_whisper_config *out,
                                 struct berth_err *err);
static void read_languages(const struct source *source, struct berth_whisper_config *out);
static enum berth_code read_file(const char *folder, const char *name, json_t **out,
                                 struct berth_err *err);

enum berth_code berth_whisper_config_read(const char *folder, const struct berth_tokens *tokens,
                                          struct berth_whisper_config *out, struct berth_err *err)
{
    json_t *config = NULL;
    json_t *generation = NULL;
    memset(out, 0, sizeof(*out));
    berth_arena_init(&out->arena, 0);
    enum berth_code code = read_file(folder, "config.json", &config, err);
    if (code != BERTH_OK) {
        goto out;
    }
    code = read_file(folder, "generation_config.json", &generation, err);
    if (code != BERTH_OK && code != BERTH_NOT_FOUND) {
        goto out;
    }
    struct source source = {
        .generation = generation, .config = config, .folder = folder, .tokens = tokens};
    code = read_sizes(&source, out, err);
    if (code == BERTH_OK) {
        code = read_ids(&source, out, err);
    }
    if (code == BERTH_OK) {
        code = read_sets(&source, out, err);
    }
out:
    json_decref(config);
    json_decref(generation);
    if (code != BERTH_OK) {
        berth_whisper_config_finish(out);
    }
    return code;
}

void berth_whisper_config_finish(struct berth_whisper_config *config)
{
    berth_arena_finish(&config->arena);
    memset(config, 0, sizeof(*config));
}

int32_t berth_whisper_language_id(const struct berth_whisper_config *config, const char *code)
{
    for (size_t i = 0; i < config->language_count; i++) {
        if (strcmp(config->languages[i].code, code) == 0) {
            return config->languages[i].id;
        }
    }
    return -1;
}

const char *berth_whisper_language_code(const struct berth_whisper_config *config, int32_t id)
{
    for (size_t i = 0; i < config->language_count; i++) {
        if (config->languages[i].id == id) {
            return config->languages[i].code;
        }
    }
    return NULL;
}

static enum berth_code read_file(const char *folder, const char *name, json_t **out,
                                 struct berth_err *err)
{
    char path[PATH_BYTES_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) {
        return berth_fail(err, BERTH_INVALID, "the path of %s is too long", name);
    }
    BERTH_TRY(berth_json_file_read(path, FILE_BYTES_MAX, out, err));
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return berth_fail(err, BERTH_INVALID, "%s is no JSON object", path);
    }
    return BERTH_OK;
}

static const json_t *find(const struct source *source, const char *key)
{
    const json_t *value = json_object_get(source->generation, key);
    return value != NULL && !json_is_null(value) ? value : json_object_get(source->config, key);
}

/* An integer of config.json between 1 and max. */
static enum berth_code read_size(const struct source *source, const char *key, uint32_t max,
                                 uint32_t *out, struct berth_err *err)
{
    const json_t *value = json_object_get(source->config, key);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 1 || number > (json_int_t)max) {
        return berth_fail(err, BERTH_INVALID, "%s/config.json: %s must be a number from 1 to %u",
                          source->folder, key, max);
    }
    *out = (uint32_t)number;
    return BERTH_OK;
}

/* By model_type, or where that is missing or another by architectures. */
static bool is_whisper(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const json_t *list = json_object_get(config, "architectures");
    bool found = type != NULL && strcmp(type, "whisper") == 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        found = found || (name != NULL && strcmp(name, "WhisperForConditionalGeneration") == 0);
    }
    return found;
}

static enum berth_code read_sizes(const struct source *source, struct berth_whisper_config *out,
                                  struct berth_err *err)
{
    if (!is_whisper(source->config)) {
        return berth_fail(err, BERTH_UNSUPPORTED, "%s/config.json: model_type is not \"whisper\"",
                          source->folder);
    }
    BERTH_TRY(read_size(source, "vocab_size", VOCAB_MAX, &out->vocab, err));
    BERTH_TRY(read_size(source, "num_mel_bins", BERTH_MEL_BINS_MAX, &out->mel_bins, err));
    BERTH_TRY(read_size(source, "d_model", 16384, &out->width, err));
    BERTH_TRY(read_size(source, "encoder_layers", 256, &out->encoder_layers, err));
    BERTH_TRY(read_size(source, "decoder_layers", 256, &out->decoder_layers, err));
    BERTH_TRY(read_size(source, "decoder_attention_heads", 1024, &out->heads, err));
    BERTH_TRY(read_size(source, "max_source_positions", 65536, &out->frames, err));
    BERTH_TRY(read_size(source, "max_target_positions", 65536, &out->positions, err));
    if (out->width % out->heads != 0) {
        return berth_fail(err, BERTH_INVALID,
                          "%s/config.json: %u heads do not divide a width of %u", source->folder,
                          out->heads, out->width);
    }
    if (out->frames * 2 != BERTH_MEL_WINDOW || out->positions < 32) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "%s/config.json: %u source and %u target positions; berth serves windows "
                          "of 1500 and at least 32",
                          source->folder, out->frames, out->positions);
    }
    if (out->positions > POSITIONS_MAX) {
        out->positions = POSITIONS_MAX;
    }
    return BERTH_OK;
}

/* What is no id of any vocabulary stays none, and a number to count on with. */
static int32_t bounded_id(const json_t *value)
{
    json_int_t id = json_integer_value(value);
    return id < 0 ? -1 : id < VOCAB_MAX ? (int32_t)id : VOCAB_MAX;
}

/* An id by key, or by the first of the added tokens `name` and `other` there is; -1: neither. */
static int32_t find_id(const struct source *source, const char *key, const char *name,
                       const char *other)
{
    const json_t *value = key == NULL ? NULL : find(source, key);
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        return bounded_id(value);
    }
    int32_t id = berth_tokens_special(source->tokens, name);
    return id < 0 && other != NULL ? berth_tokens_special(source->tokens, other) : id;
}

static int32_t task_id(const struct source *source, const char *task, const char *name)
{
    const json_t *value = json_object_get(find(source, "task_to_id"), task);
    return json_is_integer(value) ? bounded_id(value)
                                  : berth_tokens_special(source->tokens, name);
}

static enum berth_code check_ids(const struct source *source,
                                 const struct berth_whisper_config *out, struct berth_err *err)
{
    const struct {
        const char *name;
        int32_t id;
    } rows[] = {
        {"<|endoftext|>", out->eot},
        {"<|startoftranscript|>", out->sot},
        {"<|startofprev|>", out->previous},
        {"<|nospeech|>", out->no_speech},
        {"<|notimestamps|>", out->no_timestamps},
        {"<|0.00|>", out->first_time},
        {"<|transcribe|>", out->multilingual ? out->transcribe : 0},
        {"<|translate|>", out->multilingual ? out->translate : 0},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        if (rows[i].id < 0 || (uint32_t)rows[i].id >= out->vocab) {
            return berth_fail(err, BERTH_INVALID,
                              "%s: %s is missing, or outside of a vocabulary of %u, in "
                              "generation_config.json, config.json and tokenizer.json",
                              source->folder, rows[i].name, out->vocab);
        }
    }
    if (out->eot >= out->no_timestamps || out->sot >= out->no_timestamps) {
        return berth_fail(err, BERTH_INVALID,
                          "%s: generation_config.json and config.json have control tokens in no "
                          "order of Whisper's",
                          source->folder);
    }
    return BERTH_OK;
}

static enum berth_code read_ids(const struct source *source, struct berth_whisper_config *out,
                                struct berth_err *err)
{
    const json_t *flag = find(source, "is_multilingual");
    out->eot = find_id(source, "eos_token_id", "<|endoftext|>", NULL);
    out->sot = find_id(source, "decoder_start_token_id", "<|startoftranscript|>", NULL);
    out->no_timestamps =
        find_id(source, "no_timestamps_token_id", "<|notimestamps|>", NULL);
    out->first_time = out->no_timestamps + 1;
    out->no_speech = find_id(source, NULL, "<|nospeech|>", "<|nocaptions|>");
    if (out->no_speech < 0) {
        out->no_speech = out->no_timestamps - 1;
    }
    out->previous = find_id(source, "prev_sot_token_id", "<|startofprev|>", NULL);
    if (out->previous < 0) {
        out->previous = out->no_speech - 1;
    }
    out->multilingual = json_is_boolean(flag) ? json_is_true(flag) : out->vocab >= 51865;
    out->transcribe = task_id(source, "transcribe", "<|transcribe|>");
    out->translate = task_id(source, "translate", "<|translate|>");
    const json_t *limit = find(source, "max_initial_timestamp_index");
    out->first_time_limit = json_is_integer(limit) && json_integer_value(limit) >= 0 &&
                                    json_integer_value(limit) <= 1500
                                ? (int32_t)json_integer_value(limit)
                                : 50;
    out->aligned = json_array_size(find(source, "alignment_heads")) > 0;
    BERTH_TRY(check_ids(source, out, err));
    if (out->multilingual) {
        read_languages(source, out);
        if (out->language_count == 0) {
            return berth_fail(err, BERTH_INVALID,
                              "%s: generation_config.json and tokenizer.json have no languages, "
                              "and the model is multilingual",
                              source->folder);
        }
    }
    return BERTH_OK;
}

static void read_languages(const struct source *source, struct berth_whisper_config *out)
{
    const json_t *map = find(source, "lang_to_id");
    for (size_t i = 0; berth_language_at(i) != NULL; i++) {
        char name[16];
        const char *code = berth_language_at(i);
        (void)snprintf(name, sizeof(name), "<|%s|>", code);
        const json_t *value = json_object_get(map, name);
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (map == NULL) {
            id = berth_tokens_special(source->tokens, name);
        }
        if (id >= 0 && id < (json_int_t)out->vocab &&
            out->language_count < BERTH_WHISPER_LANGUAGES_MAX) {
            out->languages[out->language_count++] =
                (struct berth_whisper_language){.code = code, .id = (int32_t)id};
        }
    }
}

struct id_list {
    const char *key;
    const int32_t *ids;
    size_t count;
};

/* The list under its key, and after it `extra`, without what is not an id of the vocabulary. */
static enum berth_code read_list(const struct source *source, struct berth_whisper_config *out,
                                 const int32_t *extra, struct id_list *list, struct berth_err *err)
{
    const json_t *array = find(source, list->key);
    size_t count = json_array_size(array);
    if (count > LIST_MAX) {
        bool general = array == json_object_get(source->config, list->key);
        return berth_fail(err, BERTH_TOO_LARGE, "%s/%s: %s has more than %d tokens", source->folder,
                          general ? "config.json" : "generation_config.json", list->key, LIST_MAX);
    }
    int32_t *ids = berth_arena_alloc(&out->arena, (count + EXTRA_MAX) * sizeof(*ids));
    if (ids == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the model's %s", list->key);
    }
    list->ids = ids;
    list->count = 0;
    for (size_t i = 0; i < count; i++) {
        json_int_t id = json_integer_value(json_array_get(array, i));
        if (json_is_integer(json_array_get(array, i)) && id >= 0 && id < (json_int_t)out->vocab) {
            ids[list->count++] = (int32_t)id;
        }
    }
    for (size_t i = 0; extra != NULL && i < EXTRA_MAX; i++) {
        if (extra[i] >= 0 && (uint32_t)extra[i] < out->vocab) {
            ids[list->count++] = extra[i];
        }
    }
    return BERTH_OK;
}

static enum berth_code read_sets(const struct source *source, struct berth_whisper_config *out,
                                 struct berth_err *err)
{
    const int32_t extra[EXTRA_MAX] = {
        out->sot, out->previous, out->no_speech, out->transcribe, out->translate,
        berth_tokens_special(source->tokens, "<|startoflm|>")};
    struct id_list always = {.key = "suppress_tokens"};
    struct id_list first = {.key = "begin_suppress_tokens"};
    BERTH_TRY(read_list(source, out, extra, &always, err));
    BERTH_TRY(read_list(source, out, NULL, &first, err));
    out->suppressed = always.ids;
    out->suppressed_count = always.count;
    out->suppressed_first = first.ids;
    out->suppressed_first_count = first.count;
    return BERTH_OK;
}
