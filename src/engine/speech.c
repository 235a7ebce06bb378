/* speech.c - a speech model's signature, and what a recording says as the tensors of README.md.
 *
 * A part that is not final has the segments since the one before; the final one has all. */
#include "engine/speech.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "model/config_tree.h"

/* Sizes of what a part carries. */
struct extent {
    const struct berth_speech_said *from;
    size_t segments;
    size_t words;
    size_t tokens;
    size_t text_bytes;
    size_t segment_bytes; /* with the length before each string */
    size_t word_bytes;
};

/* A tensor of a part, and where its bytes go. */
struct column {
    struct berth_tensor like;
    size_t text_bytes; /* of BYTES */
    void *out;
};

static struct extent measure(const struct berth_speech_said *from);
static enum berth_code add_text(struct berth_part *part, const struct berth_speech_answer *answer,
                                struct berth_err *err);
static enum berth_code add_about(struct berth_part *part, const struct berth_speech_answer *answer,
                                 struct berth_err *err);
static enum berth_code add_segments(struct berth_part *part, const struct extent *extent,
                                    struct berth_err *err);
static enum berth_code add_words(struct berth_part *part, const struct extent *extent,
                                 struct berth_err *err);

enum berth_code berth_speech_describe(struct berth_model_spec *spec, struct berth_err *err)
{
    static const struct berth_io outputs[] = {
        {.name = "text", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {1}},
        {.name = "language", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {1}},
        {.name = "duration", .dtype = BERTH_DTYPE_FP64, .rank = 1, .dims = {1}},
        {.name = "segment_text", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {-1}},
        {.name = "segment_times", .dtype = BERTH_DTYPE_FP64, .rank = 2, .dims = {-1, 2}},
        {.name = "segment_stats", .dtype = BERTH_DTYPE_FP64, .rank = 2, .dims = {-1, 4}},
        {.name = "segment_seek", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {-1}},
        {.name = "segment_token_count", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {-1}},
        {.name = "segment_tokens", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {-1}},
        {.name = "word_text", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {-1}},
        {.name = "word_times", .dtype = BERTH_DTYPE_FP64, .rank = 2, .dims = {-1, 3}},
        {.name = "word_segment", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {-1}}};
    for (size_t i = 0; i < spec->input_count; i++) {
        if (spec->input_count != 1 || strcmp(spec->inputs[i].name, "audio") != 0 ||
            spec->inputs[i].dtype != BERTH_DTYPE_FP32) {
            return berth_config_locate(
                spec, berth_config_find(spec->config, "input"),
                berth_fail(err, BERTH_INVALID, "a speech model has one input, audio of TYPE_FP32"),
                err);
        }
    }
    spec->inputs = berth_arena_alloc(&spec->arena, sizeof(*spec->inputs));
    spec->outputs = berth_arena_alloc(&spec->arena, sizeof(outputs));
    if (spec->inputs == NULL || spec->outputs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the model");
    }
    spec->inputs[0] = (struct berth_io){.name = "audio", .dtype = BERTH_DTYPE_FP32, .rank = 1,
                                        .dims = {-1}, .format = "FORMAT_NONE",
                                        .label_filename = ""};
    spec->input_count = 1;
    spec->output_count = BERTH_COUNT_OF(outputs);
    for (size_t i = 0; i < spec->output_count; i++) {
        spec->outputs[i] = outputs[i];
        spec->outputs[i].format = "FORMAT_NONE";
        spec->outputs[i].label_filename = "";
    }
    return BERTH_OK;
}

enum berth_code berth_speech_parameter(const struct berth_model_spec *spec,
                                       const struct berth_speech_range *range, uint64_t *inout,
                                       struct berth_err *err)
{
    const char *text = berth_spec_parameter(spec, range->key, NULL);
    char *end = NULL;
    if (text == NULL) {
        return BERTH_OK;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < range->min ||
        value > range->max || text[0] == '-') {
        (void)berth_fail(err, BERTH_INVALID,
                         "parameter '%s' is '%.40s'; it takes %" PRIu64 " to %" PRIu64, range->key,
                         text, range->min, range->max);
        return berth_config_locate(spec, berth_config_parameter(spec, range->key), BERTH_INVALID,
                                   err);
    }
    *inout = value;
    return BERTH_OK;
}

enum berth_code berth_speech_slots(const struct berth_model_spec *spec, uint32_t max,
                                   uint32_t *inout, struct berth_err *err)
{
    uint64_t count = spec->batch_size_max > 0 ? spec->batch_size_max : *inout;
    BERTH_TRY(berth_speech_parameter(
        spec, &(struct berth_speech_range){.key = "slots", .min = 1, .max = max}, &count, err));
    *inout = count < max ? (uint32_t)count : max;
    return BERTH_OK;
}

enum berth_code berth_speech_slots_keep(struct berth_model_spec *spec, uint32_t slot_count,
                                        struct berth_err *err)
{
    if (berth_spec_parameter(spec, "slots", NULL) != NULL) {
        return BERTH_OK;
    }
    char text[16];
    if (spec->batch_size_max > slot_count) {
        berth_config_warn(spec, berth_config_find(spec->config, "max_batch_size"),
                          "'max_batch_size' is %" PRIu64 "; %" PRIu32
                          " is taken, the most that an instance of engine '%s' takes",
                          spec->batch_size_max, slot_count, spec->engine);
    }
    (void)snprintf(text, sizeof(text), "%u", slot_count);
    size_t count = spec->parameter_count;
    struct berth_key_value *parameters =
        berth_arena_alloc(&spec->arena, (count + 1) * sizeof(*parameters));
    char *value = berth_arena_strdup(&spec->arena, text);
    if (parameters == NULL || value == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the model");
    }
    if (count > 0) {
        memcpy(parameters, spec->parameters, count * sizeof(*parameters));
    }
    parameters[count] = (struct berth_key_value){.key = "slots", .value = value};
    spec->parameters = parameters;
    spec->parameter_count = count + 1;
    return BERTH_OK;
}

enum berth_code berth_speech_audio_read(const struct berth_request *request,
                                        struct berth_speech_audio *out, struct berth_err *err)
{
    size_t count = 0;
    if (request->input_count != 1 || request->inputs[0].dtype != BERTH_DTYPE_FP32 ||
        !berth_tensor_elements(&request->inputs[0], &count)) {
        return berth_fail_field(err, BERTH_INVALID, "inputs",
                                "a transcription takes one input, audio, of FP32 samples");
    }
    const struct berth_tensor *tensor = &request->inputs[0];
    for (uint8_t d = 0; d + 1 < tensor->rank; d++) {
        if (tensor->dims[d] != 1) {
            return berth_fail_field(err, BERTH_INVALID, "audio",
                                    "one recording with one channel a request");
        }
    }
    if (tensor->range.length != count * sizeof(float)) {
        return berth_fail_field(err, BERTH_INVALID, "audio", "its bytes are not its shape's");
    }
    if (count == 0) { /* M9 of media/, for those who bring samples */
        return berth_fail_field(err, BERTH_INVALID, "audio",
                                "no audio: there is not one sample in the recording");
    }
    out->samples = berth_slabs_pointer(request->slabs, &tensor->range);
    out->count = count;
    return BERTH_OK;
}

enum berth_code berth_speech_part(const struct berth_speech_answer *answer,
                                  struct berth_part **out, struct berth_err *err)
{
    struct extent extent = measure(answer->from);
    struct berth_part *part = berth_part_create(answer->request);
    if (part == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    enum berth_code code = add_text(part, answer, err);
    if (code == BERTH_OK) {
        code = add_about(part, answer, err);
    }
    if (code == BERTH_OK) {
        code = add_segments(part, &extent, err);
    }
    if (code == BERTH_OK) {
        code = add_words(part, &extent, err);
    }
    if (code == BERTH_OK) {
        part->final = answer->final;
        *out = part;
        part = NULL;
    }
    berth_part_destroy(part);
    return code;
}

double berth_speech_compression(const char *text, size_t length)
{
    unsigned char packed[32768];
    uLongf packed_length = sizeof(packed);
    if (length == 0 || compressBound((uLong)length) > sizeof(packed) ||
        compress(packed, &packed_length, (const Bytef *)text, (uLong)length) != Z_OK) {
        return 0;
    }
    return (double)length / (double)packed_length;
}

static struct extent measure(const struct berth_speech_said *from)
{
    struct extent extent = {.from = from};
    for (const struct berth_speech_said *said = from; said != NULL; said = said->next) {
        extent.segments++;
        extent.tokens += said->token_count;
        extent.words += said->word_count;
        extent.text_bytes += said->text_length;
        for (size_t i = 0; i < said->word_count; i++) {
            extent.word_bytes += 4 + said->words[i].text_length;
        }
    }
    extent.segment_bytes = extent.text_bytes + 4 * extent.segments;
    return extent;
}

static enum berth_code add_columns(struct berth_part *part, struct column *columns, size_t count,
                                   struct berth_err *err)
{
    for (size_t i = 0; i < count; i++) {
        struct column *column = &columns[i];
        size_t bytes = column->text_bytes;
        size_t elements = 0;
        if (column->like.dtype != BERTH_DTYPE_BYTES &&
            (!berth_tensor_elements(&column->like, &elements) ||
             !berth_mul_size(elements, berth_dtype_bytes(column->like.dtype), &bytes))) {
            return berth_fail(err, BERTH_TOO_LARGE, "%s is too large", column->like.name);
        }
        BERTH_TRY(berth_part_add(part, &column->like, bytes, &column->out, err));
    }
    return BERTH_OK;
}

static enum berth_code add_string(struct berth_part *part, const char *name, const char *text,
                                  size_t length, struct berth_err *err)
{
    struct column column = {
        .like = {.name = name, .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {1}},
        .text_bytes = length + 4};
    BERTH_TRY(add_columns(part, &column, 1, err));
    (void)berth_bytes_put(column.out, text, (uint32_t)length);
    return BERTH_OK;
}

/* The final text is trimmed; deltas are not, but for the start of the first: together they are it.
 */
static enum berth_code add_text(struct berth_part *part, const struct berth_speech_answer *answer,
                                struct berth_err *err)
{
    struct berth_buf text = {0};
    for (const struct berth_speech_said *said = answer->from; said != NULL; said = said->next) {
        berth_buf_append(&text, said->text, said->text_length);
    }
    size_t length = text.length;
    const char *bytes = berth_buf_text(&text);
    if (answer->final || answer->first) {
        size_t trimmed = length;
        const char *start = berth_text_trim(bytes, &trimmed);
        length = answer->final ? trimmed : length - (size_t)(start - bytes);
        bytes = start;
    }
    enum berth_code code =
        berth_buf_ok(&text) ? add_string(part, "text", bytes, length, err)
                            : berth_fail(err, BERTH_UNAVAILABLE, "no memory for the text");
    berth_buf_finish(&text);
    return code;
}

static enum berth_code add_about(struct berth_part *part, const struct berth_speech_answer *answer,
                                 struct berth_err *err)
{
    struct column duration = {
        .like = {.name = "duration", .dtype = BERTH_DTYPE_FP64, .rank = 1, .dims = {1}}};
    BERTH_TRY(add_string(part, "language", answer->language, strlen(answer->language), err));
    BERTH_TRY(add_columns(part, &duration, 1, err));
    memcpy(duration.out, &answer->seconds, sizeof(answer->seconds));
    return BERTH_OK;
}

static enum berth_code add_segments(struct berth_part *part, const struct extent *extent,
                                    struct berth_err *err)
{
    const int64_t n = (int64_t)extent->segments;
    const int64_t k = (int64_t)extent->tokens;
    struct column columns[] = {
        {.like = {.name = "segment_text", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {n}},
         .text_bytes = extent->segment_bytes},
        {.like = {.name = "segment_times", .dtype = BERTH_DTYPE_FP64, .rank = 2, .dims = {n, 2}}},
        {.like = {.name = "segment_stats", .dtype = BERTH_DTYPE_FP64, .rank = 2, .dims = {n, 4}}},
        {.like = {.name = "segment_seek", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {n}}},
        {.like = {
             .name = "segment_token_count", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {n}}},
        {.like = {.name = "segment_tokens", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {k}}}};
    BERTH_TRY(add_columns(part, columns, BERTH_COUNT_OF(columns), err));
    unsigned char *text = columns[0].out;
    double *times = columns[1].out;
    double *stats = columns[2].out;
    int32_t *seeks = columns[3].out;
    int32_t *counts = columns[4].out;
    int32_t *tokens = columns[5].out;
    for (const struct berth_speech_said *said = extent->from; said != NULL; said = said->next) {
        text = berth_bytes_put(text, said->text, (uint32_t)said->text_length);
        *times++ = said->start_s;
        *times++ = said->end_s;
        *stats++ = said->avg_logprob;
        *stats++ = said->compression_ratio;
        *stats++ = said->no_speech_prob;
        *stats++ = said->temperature;
        *seeks++ = (int32_t)said->seek;
        *counts++ = (int32_t)said->token_count;
        memcpy(tokens, said->tokens, said->token_count * sizeof(*tokens));
        tokens += said->token_count;
    }
    return BERTH_OK;
}

static enum berth_code add_words(struct berth_part *part, const struct extent *extent,
                                 struct berth_err *err)
{
    const int64_t m = (int64_t)extent->words;
    struct column columns[] = {
        {.like = {.name = "word_text", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {m}},
         .text_bytes = extent->word_bytes},
        {.like = {.name = "word_times", .dtype = BERTH_DTYPE_FP64, .rank = 2, .dims = {m, 3}}},
        {.like = {.name = "word_segment", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {m}}}};
    BERTH_TRY(add_columns(part, columns, BERTH_COUNT_OF(columns), err));
    unsigned char *text = columns[0].out;
    double *times = columns[1].out;
    int32_t *segments = columns[2].out;
    int32_t index = 0;
    for (const struct berth_speech_said *said = extent->from; said != NULL; said = said->next) {
        for (size_t i = 0; i < said->word_count; i++) {
            const struct berth_speech_word *word = &said->words[i];
            text = berth_bytes_put(text, word->text, (uint32_t)word->text_length);
            *times++ = word->start_s;
            *times++ = word->end_s;
            *times++ = word->probability;
            *segments++ = index;
        }
        index++;
    }
    return BERTH_OK;
}
