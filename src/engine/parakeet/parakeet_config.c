/* parakeet_config.c - reads and checks a Parakeet folder's JSON files.
 *
 * Fields are rows of tables with their limits; a field that is not there has the default that
 * transformers gives it, since its own files leave defaults out. Limits are those of the kernels
 * (vectors of 8 elements) and far above any released model. Fields that change the network and have
 * one value only that the engine knows (activations, strides) are rows of "must be" tables.
 */
#include "engine/parakeet/parakeet_config.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "engine/json_file.h"

#define FILE_BYTES_MAX (8U << 20)
#define PATH_BYTES_MAX 4096
#define FFT 512

/* A JSON object and its place, for errors. */
struct source {
    const json_t *object;
    const char *label;  /* "FOLDER/config.json" */
    const char *prefix; /* of its fields, "encoder_config." or "" */
};

struct number {
    const char *name;
    uint32_t *out;
    uint32_t preset; /* where the field is missing */
    uint32_t min, max;
    uint32_t step; /* must be a multiple of */
};

struct fixed_number {
    const char *name;
    double value;
};

struct head_name {
    const char *type;         /* model_type */
    const char *architecture; /* of architectures, where there is no model_type */
    enum berth_parakeet_head head;
};

static const struct head_name heads[] = {
    {"parakeet_tdt", "ParakeetForTDT", BERTH_PARAKEET_TDT},
    {"parakeet_rnnt", "ParakeetForRNNT", BERTH_PARAKEET_RNNT},
    {"parakeet_ctc", "ParakeetForCTC", BERTH_PARAKEET_CTC},
};

static enum berth_code head_read(const struct source *source, struct berth_parakeet_config *out,
                                 struct berth_err *err);
static enum berth_code encoder_read(const struct source *config, struct berth_parakeet_config *out,
                                    struct berth_err *err);
static enum berth_code transducer_read(const struct source *source,
                                       struct berth_parakeet_config *out, struct berth_err *err);
static enum berth_code ctc_read(const struct source *source, struct berth_parakeet_config *out,
                                struct berth_err *err);
static enum berth_code durations_read(const struct source *source,
                                      struct berth_parakeet_config *out, struct berth_err *err);
static enum berth_code generation_check(const struct source *source,
                                        const struct berth_parakeet_config *config,
                                        struct berth_err *err);
static enum berth_code frontend_read(const char *folder, struct berth_parakeet_config *out,
                                     struct berth_err *err);
static enum berth_code frontend_fields(const struct source *source,
                                       struct berth_parakeet_config *out, struct berth_err *err);
static enum berth_code file_read(const char *folder, const char *name, char label[PATH_BYTES_MAX],
                                 json_t **out, struct berth_err *err);
static enum berth_code numbers_read(const struct source *source, const struct number *rows,
                                    size_t count, struct berth_err *err);
static enum berth_code flag_read(const struct source *source, const char *name, bool preset,
                                 bool *out, struct berth_err *err);
static enum berth_code word_check(const struct source *source, const char *name, const char *word,
                                  struct berth_err *err);
static enum berth_code fixed_check(const struct source *source, const struct fixed_number *rows,
                                   size_t count, struct berth_err *err);

enum berth_code berth_parakeet_config_read(const char *folder, struct berth_parakeet_config *out,
                                           struct berth_err *err)
{
    char label[PATH_BYTES_MAX];
    struct berth_parakeet_config config = {0};
    json_t *main_file = NULL;
    json_t *generation = NULL;
    enum berth_code code = file_read(folder, "config.json", label, &main_file, err);
    if (code != BERTH_OK) {
        goto out;
    }
    struct source source = {.object = main_file, .label = label, .prefix = ""};
    code = head_read(&source, &config, err);
    if (code == BERTH_OK) {
        code = encoder_read(&source, &config, err);
    }
    if (code == BERTH_OK) {
        code = config.head == BERTH_PARAKEET_CTC ? ctc_read(&source, &config, err)
                                                 : transducer_read(&source, &config, err);
    }
    if (code != BERTH_OK) {
        goto out;
    }
    code = file_read(folder, "generation_config.json", label, &generation, err);
    if (code == BERTH_OK) {
        source.object = generation;
        code = generation_check(&source, &config, err);
    } else if (code == BERTH_NOT_FOUND) {
        code = BERTH_OK;
    }
    if (code == BERTH_OK) {
        code = frontend_read(folder, &config, err);
    }
    if (code == BERTH_OK) {
        *out = config;
    }
out:
    json_decref(main_file);
    json_decref(generation);
    return code;
}

struct berth_parakeet_lengths berth_parakeet_lengths_of(uint32_t samples)
{
    struct berth_parakeet_lengths lengths = {.samples = samples};
    lengths.features = samples / BERTH_PARAKEET_HOP;
    lengths.half = lengths.features / 2 + lengths.features % 2;
    lengths.quarter = lengths.half / 2 + lengths.half % 2;
    lengths.frames = lengths.quarter / 2 + lengths.quarter % 2;
    return lengths;
}

/* The first of the list that is a head's, else the first. NULL: none. */
static const char *architecture_of(const json_t *list)
{
    for (size_t at = 0; at < json_array_size(list); at++) {
        const char *name = json_string_value(json_array_get(list, at));
        for (size_t i = 0; name != NULL && i < BERTH_COUNT_OF(heads); i++) {
            if (strcmp(name, heads[i].architecture) == 0) {
                return name;
            }
        }
    }
    return json_string_value(json_array_get(list, 0));
}

static bool is_head(const char *type)
{
    bool found = false;
    for (size_t i = 0; type != NULL && i < BERTH_COUNT_OF(heads); i++) {
        found = found || strcmp(type, heads[i].type) == 0;
    }
    return found;
}

/* By model_type; where that is missing or none of these, by architectures. */
static enum berth_code head_read(const struct source *source, struct berth_parakeet_config *out,
                                 struct berth_err *err)
{
    const char *type = json_string_value(json_object_get(source->object, "model_type"));
    const char *architecture = architecture_of(json_object_get(source->object, "architectures"));
    for (size_t i = 0; i < BERTH_COUNT_OF(heads); i++) {
        bool named = type != NULL && strcmp(type, heads[i].type) == 0;
        bool built = architecture != NULL && strcmp(architecture, heads[i].architecture) == 0;
        if (named && architecture != NULL && !built) {
            return berth_fail(err, BERTH_INVALID,
                              "%s: model_type %s and architectures %.64s differ", source->label,
                              type, architecture);
        }
        if (named || (!is_head(type) && built)) {
            out->head = heads[i].head;
            return BERTH_OK;
        }
    }
    return berth_fail(err, BERTH_UNSUPPORTED,
                      "%s: model_type: the head '%.64s' is none of parakeet_tdt, parakeet_rnnt, "
                      "parakeet_ctc",
                      source->label,
                      type != NULL           ? type
                      : architecture != NULL ? architecture
                                             : "");
}

static enum berth_code encoder_read(const struct source *config, struct berth_parakeet_config *out,
                                    struct berth_err *err)
{
    const struct source source = {.object = json_object_get(config->object, "encoder_config"),
                                  .label = config->label,
                                  .prefix = "encoder_config."};
    if (!json_is_object(source.object)) {
        return berth_fail(err, BERTH_INVALID, "%s: encoder_config is no object", config->label);
    }
    const struct number numbers[] = {
        {"num_mel_bins", &out->mels, 80, 80, 128, 1},
        {"hidden_size", &out->hidden, 1024, 8, 8192, 8},
        {"num_attention_heads", &out->heads, 8, 1, 128, 1},
        {"num_hidden_layers", &out->layers, 24, 1, BERTH_PARAKEET_LAYERS_MAX, 1},
        {"intermediate_size", &out->inner, 4096, 8, 65536, 8},
        {"conv_kernel_size", &out->kernel, 9, 1, 63, 1},
        {"subsampling_conv_channels", &out->channels, 256, 8, 4096, 8},
    };
    const struct fixed_number fixed[] = {
        {"subsampling_factor", BERTH_PARAKEET_SUBSAMPLING},
        {"subsampling_conv_kernel_size", 3},
        {"subsampling_conv_stride", 2},
    };
    BERTH_TRY(numbers_read(&source, numbers, BERTH_COUNT_OF(numbers), err));
    BERTH_TRY(fixed_check(&source, fixed, BERTH_COUNT_OF(fixed), err));
    BERTH_TRY(word_check(&source, "hidden_act", "silu", err));
    BERTH_TRY(flag_read(&source, "attention_bias", true, &out->attention_bias, err));
    BERTH_TRY(flag_read(&source, "convolution_bias", true, &out->convolution_bias, err));
    BERTH_TRY(flag_read(&source, "scale_input", true, &out->scale_input, err));
    const struct fixed_number same[] = {{"num_key_value_heads", out->heads}};
    BERTH_TRY(fixed_check(&source, same, 1, err));
    out->head_dim = out->hidden / out->heads;
    if (out->mels != 80 && out->mels != 128) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "%s: encoder_config.num_mel_bins is not 80 or 128", source.label);
    }
    if (out->kernel % 2 == 0) {
        return berth_fail(err, BERTH_UNSUPPORTED, "%s: encoder_config.conv_kernel_size is even",
                          source.label);
    }
    if (out->hidden % out->heads != 0 || out->head_dim % 8 != 0 || out->head_dim > 256) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "%s: encoder_config: hidden_size %u over num_attention_heads %u is no "
                          "multiple of 8 up to 256",
                          source.label, out->hidden, out->heads);
    }
    return BERTH_OK;
}

static enum berth_code transducer_read(const struct source *source,
                                       struct berth_parakeet_config *out, struct berth_err *err)
{
    const struct number numbers[] = {
        {"vocab_size", &out->vocabulary, 8193, 2, 1U << 18, 1},
        {"blank_token_id", &out->blank, 8192, 0, 1U << 18, 1},
        {"decoder_hidden_size", &out->prediction, 640, 8, 4096, 8},
        {"num_decoder_layers", &out->prediction_layers, 2, 1, BERTH_PARAKEET_PREDICTION_LAYERS_MAX,
         1},
        {"max_symbols_per_step", &out->symbols_max, 10, 1, BERTH_PARAKEET_SYMBOLS_MAX, 1},
    };
    BERTH_TRY(numbers_read(source, numbers, BERTH_COUNT_OF(numbers), err));
    BERTH_TRY(word_check(source, "hidden_act", "relu", err));
    if (out->blank >= out->vocabulary) {
        return berth_fail(err, BERTH_INVALID, "%s: blank_token_id %u is not below vocab_size %u",
                          source->label, out->blank, out->vocabulary);
    }
    return out->head == BERTH_PARAKEET_TDT ? durations_read(source, out, err) : BERTH_OK;
}

static enum berth_code ctc_read(const struct source *source, struct berth_parakeet_config *out,
                                struct berth_err *err)
{
    const struct number numbers[] = {
        {"vocab_size", &out->vocabulary, 1025, 2, 1U << 18, 1},
        {"pad_token_id", &out->blank, 1024, 0, 1U << 18, 1},
    };
    BERTH_TRY(numbers_read(source, numbers, BERTH_COUNT_OF(numbers), err));
    out->symbols_max = 1;
    if (out->blank >= out->vocabulary) {
        return berth_fail(err, BERTH_INVALID, "%s: pad_token_id %u is not below vocab_size %u",
                          source->label, out->blank, out->vocabulary);
    }
    return BERTH_OK;
}

/* Rising from 0 is not asked for; a list of zeros alone still ends by the symbol cap. */
static enum berth_code durations_read(const struct source *source,
                                      struct berth_parakeet_config *out, struct berth_err *err)
{
    const json_t *list = json_object_get(source->object, "durations");
    if (list == NULL) {
        out->duration_count = 5;
        for (uint32_t i = 0; i < out->duration_count; i++) {
            out->durations[i] = i;
        }
        return BERTH_OK;
    }
    size_t count = json_array_size(list);
    if (count == 0 || count > BERTH_PARAKEET_DURATIONS_MAX) {
        return berth_fail(err, BERTH_INVALID, "%s: durations is no list of 1 to %d numbers",
                          source->label, BERTH_PARAKEET_DURATIONS_MAX);
    }
    out->duration_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(list, i);
        json_int_t value = json_integer_value(entry);
        if (!json_is_integer(entry) || value < 0 || value > 1000) {
            return berth_fail(err, BERTH_INVALID, "%s: durations[%zu] is no number from 0 to 1000",
                              source->label, i);
        }
        out->durations[i] = (uint32_t)value;
    }
    return BERTH_OK;
}

/* Decoding starts from the blank; another start would be another model. */
static enum berth_code generation_check(const struct source *source,
                                        const struct berth_parakeet_config *config,
                                        struct berth_err *err)
{
    const struct fixed_number fixed[] = {{"decoder_start_token_id", config->blank}};
    return config->head == BERTH_PARAKEET_CTC ? BERTH_OK : fixed_check(source, fixed, 1, err);
}

/* Of preprocessor_config.json, or where that is missing the part of processor_config.json into
 * which later versions of transformers write it. */
static enum berth_code frontend_read(const char *folder, struct berth_parakeet_config *out,
                                     struct berth_err *err)
{
    char label[PATH_BYTES_MAX];
    json_t *file = NULL;
    struct source source = {.label = label, .prefix = ""};
    enum berth_code code = file_read(folder, "preprocessor_config.json", label, &file, err);
    source.object = file;
    if (code == BERTH_NOT_FOUND) {
        code = file_read(folder, "processor_config.json", label, &file, err);
        source.object = json_object_get(file, "feature_extractor");
        source.prefix = "feature_extractor.";
        if (code == BERTH_NOT_FOUND) {
            code = berth_fail(err, BERTH_NOT_FOUND,
                              "%s has no preprocessor_config.json and no processor_config.json",
                              folder);
        } else if (code == BERTH_OK && !json_is_object(source.object)) {
            code = berth_fail(err, BERTH_INVALID, "%s: feature_extractor is no object", label);
        }
    }
    if (code == BERTH_OK) {
        code = frontend_fields(&source, out, err);
    }
    json_decref(file);
    return code;
}

static enum berth_code frontend_fields(const struct source *source,
                                       struct berth_parakeet_config *out, struct berth_err *err)
{
    const struct number numbers[] = {
        {"n_fft", &out->fft, 512, FFT, FFT, 1},
        {"win_length", &out->window, 400, 2, FFT, 2},
    };
    const struct fixed_number fixed[] = {
        {"feature_size", out->mels},
        {"hop_length", BERTH_PARAKEET_HOP},
        {"sampling_rate", BERTH_PARAKEET_SAMPLE_RATE},
        {"padding_value", 0},
    };
    const json_t *preemphasis = json_object_get(source->object, "preemphasis");
    double value = preemphasis == NULL ? 0.97 : json_number_value(preemphasis);
    if (out->mels != 80 && json_object_get(source->object, "feature_size") == NULL) {
        return berth_fail(err, BERTH_INVALID, "%s: %sfeature_size is missing", source->label,
                          source->prefix); /* its default is 80 */
    }
    BERTH_TRY(word_check(source, "feature_extractor_type", "ParakeetFeatureExtractor", err));
    BERTH_TRY(numbers_read(source, numbers, BERTH_COUNT_OF(numbers), err));
    BERTH_TRY(fixed_check(source, fixed, BERTH_COUNT_OF(fixed), err));
    if ((preemphasis != NULL && !json_is_number(preemphasis) && !json_is_null(preemphasis)) ||
        !(value >= 0) || value > 1) {
        return berth_fail(err, BERTH_INVALID, "%s: %spreemphasis is no number from 0 to 1",
                          source->label, source->prefix);
    }
    out->preemphasis = (float)value; /* null: none */
    return BERTH_OK;
}

/* label: the file's path. NOT_FOUND when there is none. */
static enum berth_code file_read(const char *folder, const char *name, char label[PATH_BYTES_MAX],
                                 json_t **out, struct berth_err *err)
{
    int length = snprintf(label, PATH_BYTES_MAX, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_BYTES_MAX) {
        return berth_fail(err, BERTH_INVALID, "the path of %s is too long", name);
    }
    BERTH_TRY(berth_json_file_read(label, FILE_BYTES_MAX, out, err));
    if (!json_is_object(*out)) {
        return berth_fail(err, BERTH_INVALID, "%s is no JSON object", label);
    }
    return BERTH_OK;
}

static enum berth_code numbers_read(const struct source *source, const struct number *rows,
                                    size_t count, struct berth_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const struct number *row = &rows[i];
        const json_t *entry = json_object_get(source->object, row->name);
        json_int_t value = entry == NULL ? row->preset : json_integer_value(entry);
        if ((entry != NULL && !json_is_integer(entry)) || value < row->min || value > row->max ||
            value % row->step != 0) {
            return berth_fail(err, BERTH_INVALID, "%s: %s%s must be a number from %u to %u%s",
                              source->label, source->prefix, row->name, row->min, row->max,
                              row->step == 8   ? ", a multiple of 8"
                              : row->step == 2 ? ", an even one"
                                               : "");
        }
        *row->out = (uint32_t)value;
    }
    return BERTH_OK;
}

static enum berth_code flag_read(const struct source *source, const char *name, bool preset,
                                 bool *out, struct berth_err *err)
{
    const json_t *entry = json_object_get(source->object, name);
    if (entry != NULL && !json_is_boolean(entry)) {
        return berth_fail(err, BERTH_INVALID, "%s: %s%s is not true or false", source->label,
                          source->prefix, name);
    }
    *out = entry == NULL ? preset : json_is_true(entry);
    return BERTH_OK;
}

/* A field that may be missing, and else has that one value. */
static enum berth_code word_check(const struct source *source, const char *name, const char *word,
                                  struct berth_err *err)
{
    const json_t *entry = json_object_get(source->object, name);
    const char *text = json_string_value(entry);
    if (entry != NULL && (text == NULL || strcmp(text, word) != 0)) {
        return berth_fail(err, BERTH_UNSUPPORTED, "%s: %s%s '%.64s' is not \"%s\"", source->label,
                          source->prefix, name, text == NULL ? "" : text, word);
    }
    return BERTH_OK;
}

static enum berth_code fixed_check(const struct source *source, const struct fixed_number *rows,
                                   size_t count, struct berth_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_object_get(source->object, rows[i].name);
        double off = json_number_value(entry) - rows[i].value;
        if (entry != NULL && (!json_is_number(entry) || off < 0 || off > 0)) {
            return berth_fail(err, BERTH_UNSUPPORTED, "%s: %s%s is not %.0f", source->label,
                              source->prefix, rows[i].name, rows[i].value);
        }
    }
    return BERTH_OK;
}
