/* fuzz_transcript.c - a speech model's part, whole or with a tensor that is not what it says, read
 * as a transcript and written in every form.
 *
 * Input: how many segments and words, which tensor is broken and how (0: none), then what fills
 * them. A part that is whole is read; what is read is valid text; JSON is JSON again with the same
 * text in it, and cues have their lines, one for the time and one for the text, whatever the text.
 */
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "task/transcript.h"

#define SEGMENTS_MAX 5
#define WORDS_MAX 6
#define TEXT_MAX 40
#define TOKENS_MAX (SEGMENTS_MAX * 3)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static struct berth_slabs *slabs;

/* What is left of the input; zeros behind it. */
struct source {
    const uint8_t *bytes;
    size_t length;
};

static void take(struct source *from, void *out, size_t bytes)
{
    size_t there = bytes < from->length ? bytes : from->length;
    memset(out, 0, bytes);
    memcpy(out, from->bytes, there);
    from->bytes += there;
    from->length -= there;
}

static uint8_t take_byte(struct source *from)
{
    uint8_t byte;
    take(from, &byte, 1);
    return byte;
}

static void *add(struct berth_part *part, const struct berth_tensor *like, size_t bytes)
{
    void *out = NULL;
    BERTH_ASSERT(berth_part_add(part, like, bytes, &out, NULL) == BERTH_OK);
    return out;
}

static void add_texts(struct berth_part *part, const char *name, size_t count, struct source *from)
{
    uint8_t packed[WORDS_MAX * (TEXT_MAX + 4)], *at = packed;
    for (size_t i = 0; i < count; i++) {
        uint8_t text[TEXT_MAX];
        uint8_t length = take_byte(from) % TEXT_MAX;
        take(from, text, length);
        at = berth_bytes_put(at, text, length);
    }
    struct berth_tensor like = {
        .name = name, .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {(int64_t)count}};
    void *out = add(part, &like, (size_t)(at - packed));
    if (at > packed) {
        memcpy(out, packed, (size_t)(at - packed));
    }
}

static void add_reals(struct berth_part *part, const char *name, size_t rows, size_t columns,
                      struct source *from)
{
    struct berth_tensor like = {.name = name, .dtype = BERTH_DTYPE_FP64, .rank = 2,
                                .dims = {(int64_t)rows, (int64_t)columns}};
    double *out = add(part, &like, rows * columns * sizeof(*out));
    for (size_t i = 0; i < rows * columns; i++) { /* any number, or one that has a meaning */
        uint8_t kind = take_byte(from);
        take(from, &out[i], kind % 4 == 0 ? sizeof(*out) : 0);
        out[i] = kind % 4 == 0 ? out[i] : (double)kind / 8;
    }
}

static void add_integers(struct berth_part *part, const char *name, const int32_t *values,
                         size_t count)
{
    struct berth_tensor like = {
        .name = name, .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {(int64_t)count}};
    void *out = add(part, &like, count * sizeof(*values));
    if (count > 0) {
        memcpy(out, values, count * sizeof(*values));
    }
}

static void fill(struct berth_part *part, size_t segments, size_t words, struct source *from)
{
    int32_t counts[SEGMENTS_MAX], seeks[SEGMENTS_MAX], tokens[TOKENS_MAX], owners[WORDS_MAX];
    size_t token_count = 0;
    int32_t owner = 0;
    add_texts(part, "text", 1, from);
    add_texts(part, "language", 1, from);
    add_reals(part, "duration", 1, 1, from);
    add_texts(part, "segment_text", segments, from);
    add_reals(part, "segment_times", segments, 2, from);
    add_reals(part, "segment_stats", segments, 4, from);
    for (size_t i = 0; i < segments; i++) {
        counts[i] = take_byte(from) % 4;
        take(from, &seeks[i], sizeof(seeks[i]));
        for (int32_t t = 0; t < counts[i]; t++) {
            take(from, &tokens[token_count++], sizeof(tokens[0]));
        }
    }
    add_integers(part, "segment_token_count", counts, segments);
    add_integers(part, "segment_tokens", tokens, token_count);
    add_integers(part, "segment_seek", seeks, segments);
    add_texts(part, "word_text", words, from);
    add_reals(part, "word_times", words, 3, from);
    for (size_t i = 0; i < words; i++) {
        owner += take_byte(from) % 2;
        owners[i] = owner = owner < (int32_t)segments ? owner : (int32_t)segments - 1;
    }
    add_integers(part, "word_segment", owners, words);
}

/* It is not what its name says; perhaps. */
static void damage(struct berth_tensor *tensor, struct source *from)
{
    uint8_t how = take_byte(from), place = take_byte(from);
    uint8_t *bytes = tensor->range.length == 0 ? NULL : berth_slabs_pointer(slabs, &tensor->range);
    switch (how % 5) {
    case 0:
        tensor->dtype = (enum berth_dtype)(place % (BERTH_DTYPE_BYTES + 1));
        break;
    case 1:
        take(from, &tensor->dims[0], sizeof(tensor->dims[0]));
        break;
    case 2: /* its end is missing */
        tensor->range.length -= tensor->range.length == 0 ? 0 : place % tensor->range.length;
        break;
    case 3: /* a number or a length in it is another one */
        if (bytes != NULL && tensor->range.length >= 4) {
            take(from, bytes + place % (tensor->range.length / 4) * 4, 4);
        }
        break;
    default:
        tensor->name = "other";
        break;
    }
}

static void judge_text(const char *text)
{
    size_t length = strlen(text);
    BERTH_ASSERT(berth_utf8_valid_length(text, length) == length);
}

static void judge_read(const struct berth_transcript *said, size_t *words)
{
    judge_text(said->text);
    judge_text(said->language);
    for (size_t i = 0; i < said->segment_count; i++) {
        const struct berth_segment *segment = &said->segments[i];
        judge_text(segment->text);
        for (size_t w = 0; w < segment->word_count; w++) {
            judge_text(segment->words[w].text);
        }
        *words += segment->word_count;
    }
}

static void judge_json(const struct berth_transcript *said, const char *text, bool verbose,
                       size_t words)
{
    json_error_t where;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    BERTH_ASSERT(json_is_object(json));
    const char *again = json_string_value(json_object_get(json, "text"));
    BERTH_ASSERT(again != NULL && strcmp(again, said->text) == 0);
    if (verbose) {
        BERTH_ASSERT(json_array_size(json_object_get(json, "segments")) == said->segment_count);
        BERTH_ASSERT(json_array_size(json_object_get(json, "words")) == words);
    }
    json_decref(json);
}

static const char *next_line(const char **at, size_t *length)
{
    const char *line = *at, *end = strchr(line, '\n');
    BERTH_ASSERT(end != NULL);
    *length = (size_t)(end - line);
    *at = end + 1;
    return line;
}

static void judge_cues(const struct berth_transcript *said, const char *at, bool vtt)
{
    size_t length;
    if (vtt) {
        BERTH_ASSERT(strncmp(at, "WEBVTT\n\n", 8) == 0);
        at += 8;
    }
    for (size_t i = 0; i < said->segment_count; i++) {
        const char *line = next_line(&at, &length);
        if (!vtt) {
            BERTH_ASSERT(length > 0 && strspn(line, "0123456789") == length);
            line = next_line(&at, &length);
        }
        BERTH_ASSERT(strspn(line, "0123456789:.,-> ") == length);
        BERTH_ASSERT(memmem(line, length, " --> ", 5) != NULL);
        line = next_line(&at, &length);
        BERTH_ASSERT(memmem(line, length, "-->", 3) == NULL && memchr(line, '\r', length) == NULL);
        BERTH_ASSERT(!vtt || memchr(line, '<', length) == NULL);
        (void)next_line(&at, &length);
        BERTH_ASSERT(length == 0);
    }
    BERTH_ASSERT(*at == '\0');
}

static void write_all(const struct berth_transcript *said, size_t words)
{
    for (int format = BERTH_TRANSCRIPT_TEXT; format <= BERTH_TRANSCRIPT_VTT; format++) {
        struct berth_buf out = {0};
        struct berth_transcript_style style = {.format = (enum berth_transcript_format)format,
                                               .segments = true, .words = true,
                                               .task = "transcribe"};
        berth_transcript_write(said, &style, &out);
        BERTH_ASSERT(berth_buf_ok(&out));
        const char *text = berth_buf_text(&out);
        judge_text(text);
        switch (style.format) {
        case BERTH_TRANSCRIPT_TEXT:
            BERTH_ASSERT(strlen(text) == strlen(said->text) + 1);
            break;
        case BERTH_TRANSCRIPT_JSON:
        case BERTH_TRANSCRIPT_VERBOSE_JSON:
            judge_json(said, text, style.format == BERTH_TRANSCRIPT_VERBOSE_JSON, words);
            break;
        case BERTH_TRANSCRIPT_SRT:
        case BERTH_TRANSCRIPT_VTT:
            judge_cues(said, text, style.format == BERTH_TRANSCRIPT_VTT);
            break;
        }
        berth_buf_finish(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct source from = {.bytes = bytes, .length = length};
    struct berth_transcript said;
    struct berth_arena arena;
    struct berth_err err = {0};
    if (slabs == NULL) {
        struct berth_slabs_options options = {.bytes_budget = 8 << 20, .bytes_pool_max = 8 << 20};
        BERTH_ASSERT(berth_slabs_create(&options, &slabs, NULL) == BERTH_OK);
    }
    size_t segments = take_byte(&from) % (SEGMENTS_MAX + 1);
    size_t words = segments == 0 ? 0 : take_byte(&from) % (WORDS_MAX + 1), read = 0;
    uint8_t broken = take_byte(&from);
    struct berth_request *request = berth_request_create(slabs, 1 << 20);
    struct berth_part *part = request == NULL ? NULL : berth_part_create(request);
    BERTH_ASSERT(part != NULL);
    fill(part, segments, words, &from);
    struct berth_tensor *damaged = &part->tensors[broken % part->tensor_count];
    struct berth_range range = damaged->range; /* goes back as it was taken */
    if (broken > 0) {
        damage(damaged, &from);
    }
    berth_arena_init(&arena, 1 << 20);
    enum berth_code code = berth_transcript_read(part, slabs, &arena, &said, &err);
    BERTH_ASSERT(code == BERTH_OK || (broken > 0 && code == BERTH_INTERNAL && err.msg[0] != '\0'));
    if (code == BERTH_OK) {
        judge_read(&said, &read);
        BERTH_ASSERT(broken > 0 || (read == words && said.segment_count == segments));
        write_all(&said, read);
    }
    berth_arena_finish(&arena);
    damaged->range = range;
    berth_part_destroy(part);
    berth_request_release(request);
    return 0;
}
