/* whisper_result.c - what a row has said, as the tensors that src/engine/README.md lists.
 *
 * A part that is not final has the segments since the one before; the final one has all. */
#include <string.h>

#include "base/buf.h"
#include "engine/whisper/whisper_row.h"

/* Sizes of what a part carries. */
struct extent {
    const struct berth_whisper_said *from;
    bool first; /* nothing was said before */
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

static struct extent measure(const struct berth_whisper_said *from);
static enum berth_code add_text(struct berth_part *part, const struct extent *extent, bool final,
                                struct berth_err *err);
static enum berth_code add_about(struct berth_part *part, const struct berth_whisper_row *row,
                                 struct berth_err *err);
static enum berth_code add_segments(struct berth_part *part, const struct extent *extent,
                                    struct berth_err *err);
static enum berth_code add_words(struct berth_part *part, const struct extent *extent,
                                 struct berth_err *err);

bool berth_whisper_row_has_news(const struct berth_whisper_row *row)
{
    return row->unsent != NULL;
}

enum berth_code berth_whisper_row_part(struct berth_whisper_row *row, bool final,
                                       struct berth_part **out, struct berth_err *err)
{
    struct extent extent = measure(final ? row->said : row->unsent);
    extent.first = final || row->unsent == row->said;
    struct berth_part *part = berth_part_create(row->request);
    if (part == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    enum berth_code code = add_text(part, &extent, final, err);
    if (code == BERTH_OK) {
        code = add_about(part, row, err);
    }
    if (code == BERTH_OK) {
        code = add_segments(part, &extent, err);
    }
    if (code == BERTH_OK) {
        code = add_words(part, &extent, err);
    }
    if (code == BERTH_OK) {
        part->final = final;
        row->unsent = NULL;
        *out = part;
        part = NULL;
    }
    berth_part_destroy(part);
    return code;
}

static struct extent measure(const struct berth_whisper_said *from)
{
    struct extent extent = {.from = from};
    for (const struct berth_whisper_said *said = from; said != NULL; said = said->next) {
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
static enum berth_code add_text(struct berth_part *part, const struct extent *extent, bool final,
                                struct berth_err *err)
{
    struct berth_buf text = {0};
    for (const struct berth_whisper_said *said = extent->from; said != NULL; said = said->next) {
        berth_buf_append(&text, said->text, said->text_length);
    }
    size_t length = text.length;
    const char *bytes = berth_buf_text(&text);
    if (final || extent->first) {
        size_t trimmed = length;
        const char *start = berth_text_trim(bytes, &trimmed);
        length = final ? trimmed : length - (size_t)(start - bytes);
        bytes = start;
    }
    enum berth_code code =
        berth_buf_ok(&text) ? add_string(part, "text", bytes, length, err)
                            : berth_fail(err, BERTH_UNAVAILABLE, "no memory for the text");
    berth_buf_finish(&text);
    return code;
}

static enum berth_code add_about(struct berth_part *part, const struct berth_whisper_row *row,
                                 struct berth_err *err)
{
    struct column duration = {
        .like = {.name = "duration", .dtype = BERTH_DTYPE_FP64, .rank = 1, .dims = {1}}};
    double seconds = (double)row->audio.count / BERTH_MEL_RATE;
    BERTH_TRY(add_string(part, "language", row->wish.language, strlen(row->wish.language), err));
    BERTH_TRY(add_columns(part, &duration, 1, err));
    memcpy(duration.out, &seconds, sizeof(seconds));
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
    for (const struct berth_whisper_said *said = extent->from; said != NULL; said = said->next) {
        text = berth_bytes_put(text, said->text, (uint32_t)said->text_length);
        *times++ = said->start_s;
        *times++ = said->end_s;
        *stats++ = said->score.avg_logprob;
        *stats++ = said->score.compression_ratio;
        *stats++ = said->score.no_speech_prob;
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
    for (const struct berth_whisper_said *said = extent->from; said != NULL; said = said->next) {
        for (size_t i = 0; i < said->word_count; i++) {
            const struct berth_whisper_word *word = &said->words[i];
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
