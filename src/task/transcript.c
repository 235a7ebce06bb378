/* transcript.c - tensors of a part to segments, and segments to the forms users ask for.
 *
 * The forms are OpenAI's: json {"text"}; verbose_json with the language's English name; srt and vtt
 * with one cue a segment. Text is hostile in all of them: JSON strings are escaped, a cue is one
 * line, "-->" cannot stand in it, and in vtt neither can a tag.
 */
#include "task/transcript.h"

#include <math.h>
#include <string.h>

#include "model/languages.h"

static const struct {
    const char *name;
    const char *content_type;
} formats[] = {
    [BERTH_TRANSCRIPT_TEXT] = {"text", "text/plain; charset=utf-8"},
    [BERTH_TRANSCRIPT_JSON] = {"json", "application/json"},
    [BERTH_TRANSCRIPT_VERBOSE_JSON] = {"verbose_json", "application/json"},
    [BERTH_TRANSCRIPT_SRT] = {"srt", "application/x-subrip; charset=utf-8"},
    [BERTH_TRANSCRIPT_VTT] = {"vtt", "text/vtt; charset=utf-8"},
};

/* What berth_transcript_read works with. */
struct reader {
    const struct berth_part *part;
    struct berth_slabs *slabs;
    struct berth_arena *arena;
    struct berth_err *err;
};

static enum berth_code read_strings(const struct reader *reader, const char *name,
                                    const char ***out, size_t *count);
static enum berth_code read_numbers(const struct reader *reader, const struct berth_tensor *tensor,
                                    size_t bytes, const void **out);
static enum berth_code read_one(const struct reader *reader, const char *name, const char **out);
static enum berth_code read_segments(const struct reader *reader, struct berth_transcript *out);
static enum berth_code read_words(const struct reader *reader, struct berth_segment *segments,
                                  size_t segment_count);
static void write_verbose(const struct berth_transcript *transcript,
                          const struct berth_transcript_style *style, struct berth_buf *out);
static void write_cues(const struct berth_transcript *transcript, bool vtt, struct berth_buf *out);

bool berth_transcript_format_parse(const char *name, enum berth_transcript_format *out)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(formats); i++) {
        if (strcmp(formats[i].name, name) == 0) {
            *out = (enum berth_transcript_format)i;
            return true;
        }
    }
    return false;
}

const char *berth_transcript_content_type(enum berth_transcript_format format)
{
    return formats[format].content_type;
}

enum berth_code berth_transcript_read(const struct berth_part *part, struct berth_slabs *slabs,
                                      struct berth_arena *arena, struct berth_transcript *out,
                                      struct berth_err *err)
{
    struct reader reader = {.part = part, .slabs = slabs, .arena = arena, .err = err};
    struct berth_transcript transcript = {0};
    const void *seconds = NULL;
    BERTH_TRY(read_one(&reader, "text", &transcript.text));
    BERTH_TRY(read_one(&reader, "language", &transcript.language));
    const struct berth_tensor *duration = berth_part_find(part, "duration");
    if (duration == NULL || duration->dtype != BERTH_DTYPE_FP64) {
        return berth_fail(err, BERTH_INTERNAL, "a transcript without its duration");
    }
    BERTH_TRY(read_numbers(&reader, duration, sizeof(double), &seconds));
    memcpy(&transcript.seconds, seconds, sizeof(double));
    BERTH_TRY(read_segments(&reader, &transcript));
    *out = transcript;
    return BERTH_OK;
}

void berth_transcript_write(const struct berth_transcript *transcript,
                            const struct berth_transcript_style *style, struct berth_buf *out)
{
    switch (style->format) {
    case BERTH_TRANSCRIPT_TEXT:
        berth_buf_puts(out, transcript->text);
        berth_buf_puts(out, "\n");
        break;
    case BERTH_TRANSCRIPT_JSON:
        berth_buf_puts(out, "{\"text\":");
        berth_buf_json_string(out, transcript->text, strlen(transcript->text));
        berth_buf_puts(out, "}");
        break;
    case BERTH_TRANSCRIPT_VERBOSE_JSON:
        write_verbose(transcript, style, out);
        break;
    case BERTH_TRANSCRIPT_SRT:
        write_cues(transcript, false, out);
        break;
    case BERTH_TRANSCRIPT_VTT:
        berth_buf_puts(out, "WEBVTT\n\n");
        write_cues(transcript, true, out);
        break;
    }
}

/* --- reading --- */

static enum berth_code no_memory(const struct reader *reader)
{
    return berth_fail(reader->err, BERTH_UNAVAILABLE, "no memory to read a transcript");
}

/* A copy as valid UTF-8 without NUL; NULL: no memory. */
static const char *copy_text(struct berth_arena *arena, const char *bytes, size_t length)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    char *copy = berth_arena_alloc(arena, 3 * length + 1);
    size_t count = 0;
    for (size_t at = 0; copy != NULL && at < length;) {
        size_t valid = berth_utf8_valid_length(bytes + at, length - at);
        for (size_t i = 0; i < valid; i++) {
            copy[count++] = bytes[at + i] == '\0' ? ' ' : bytes[at + i];
        }
        at += valid;
        if (at < length) {
            memcpy(copy + count, replacement, 3);
            count += 3;
            at++;
        }
    }
    return copy;
}

static enum berth_code read_strings(const struct reader *reader, const char *name,
                                    const char ***out, size_t *count)
{
    const struct berth_tensor *tensor = berth_part_find(reader->part, name);
    if (tensor == NULL || tensor->dtype != BERTH_DTYPE_BYTES ||
        !berth_tensor_elements(tensor, count) || *count > tensor->range.length) {
        return berth_fail(reader->err, BERTH_INTERNAL, "a transcript without %s", name);
    }
    const unsigned char *at =
        *count == 0 ? NULL : berth_slabs_pointer(reader->slabs, &tensor->range);
    const unsigned char *end = at == NULL ? NULL : at + tensor->range.length;
    *out = berth_arena_alloc(reader->arena, (*count + 1) * sizeof(**out));
    if (*out == NULL) {
        return no_memory(reader);
    }
    for (size_t i = 0; i < *count; i++) {
        const char *bytes = NULL;
        uint32_t length = 0;
        if (!berth_bytes_next(&at, end, &bytes, &length)) {
            return berth_fail(reader->err, BERTH_INTERNAL, "%s is malformed", name);
        }
        (*out)[i] = copy_text(reader->arena, bytes, length);
        if ((*out)[i] == NULL) {
            return no_memory(reader);
        }
    }
    return BERTH_OK;
}

static enum berth_code read_one(const struct reader *reader, const char *name, const char **out)
{
    const char **strings = NULL;
    size_t count = 0;
    BERTH_TRY(read_strings(reader, name, &strings, &count));
    if (count != 1) {
        return berth_fail(reader->err, BERTH_INTERNAL, "%s is not one text", name);
    }
    *out = strings[0];
    return BERTH_OK;
}

/* The tensor's bytes, which must be `bytes` many. */
static enum berth_code read_numbers(const struct reader *reader, const struct berth_tensor *tensor,
                                    size_t bytes, const void **out)
{
    if (tensor->range.length != bytes) {
        return berth_fail(reader->err, BERTH_INTERNAL, "%s has the wrong size", tensor->name);
    }
    *out = bytes == 0 ? NULL : berth_slabs_pointer(reader->slabs, &tensor->range);
    return BERTH_OK;
}

/* Finds a tensor of `count` elements; NULL in *out where there are none. */
static enum berth_code find_numbers(const struct reader *reader, const char *name,
                                    enum berth_dtype dtype, size_t count, const void **out)
{
    const struct berth_tensor *tensor = berth_part_find(reader->part, name);
    size_t bytes = 0;
    if (tensor == NULL || tensor->dtype != dtype ||
        !berth_mul_size(count, berth_dtype_bytes(dtype), &bytes)) {
        return berth_fail(reader->err, BERTH_INTERNAL, "a transcript without %s", name);
    }
    return read_numbers(reader, tensor, bytes, out);
}

struct segment_numbers {
    const void *times;
    const void *stats;
    const void *counts;
    const void *seeks; /* may be missing */
    const void *tokens;
};

static enum berth_code find_segment_numbers(const struct reader *reader, size_t count,
                                            struct segment_numbers *out)
{
    const struct berth_tensor *tokens = berth_part_find(reader->part, "segment_tokens");
    int64_t token_count = 0;
    BERTH_TRY(find_numbers(reader, "segment_times", BERTH_DTYPE_FP64, count * 2, &out->times));
    BERTH_TRY(find_numbers(reader, "segment_stats", BERTH_DTYPE_FP64, count * 4, &out->stats));
    BERTH_TRY(
        find_numbers(reader, "segment_token_count", BERTH_DTYPE_INT32, count, &out->counts));
    if (berth_part_find(reader->part, "segment_seek") != NULL) {
        BERTH_TRY(find_numbers(reader, "segment_seek", BERTH_DTYPE_INT32, count, &out->seeks));
    }
    for (size_t i = 0; i < count; i++) {
        int32_t number = ((const int32_t *)out->counts)[i];
        if (number < 0) {
            return berth_fail(reader->err, BERTH_INTERNAL, "segment_token_count is negative");
        }
        token_count += number;
    }
    if (tokens == NULL || tokens->dtype != BERTH_DTYPE_INT32) {
        return berth_fail(reader->err, BERTH_INTERNAL, "a transcript without segment_tokens");
    }
    return read_numbers(reader, tokens, (size_t)token_count * sizeof(int32_t), &out->tokens);
}

static enum berth_code read_segments(const struct reader *reader, struct berth_transcript *out)
{
    const char **texts = NULL;
    size_t count = 0;
    struct segment_numbers numbers = {0};
    BERTH_TRY(read_strings(reader, "segment_text", &texts, &count));
    BERTH_TRY(find_segment_numbers(reader, count, &numbers));
    struct berth_segment *segments =
        berth_arena_alloc(reader->arena, (count + 1) * sizeof(*segments));
    if (segments == NULL) {
        return no_memory(reader);
    }
    const double *times = numbers.times;
    const double *stats = numbers.stats;
    const int32_t *counts = numbers.counts;
    const int32_t *seeks = numbers.seeks;
    const int32_t *tokens = numbers.tokens;
    for (size_t i = 0; i < count; i++) {
        segments[i] = (struct berth_segment){.start_s = times[2 * i],
                                             .end_s = times[2 * i + 1],
                                             .text = texts[i],
                                             .avg_logprob = stats[4 * i],
                                             .compression_ratio = stats[4 * i + 1],
                                             .no_speech_prob = stats[4 * i + 2],
                                             .temperature = stats[4 * i + 3],
                                             .seek = seeks == NULL ? 0 : seeks[i],
                                             .tokens = tokens,
                                             .token_count = (size_t)counts[i]};
        tokens = counts[i] == 0 ? tokens : tokens + counts[i];
    }
    BERTH_TRY(read_words(reader, segments, count));
    out->segments = segments;
    out->segment_count = count;
    return BERTH_OK;
}

/* Words come in the order of their segments. */
static enum berth_code read_words(const struct reader *reader, struct berth_segment *segments,
                                  size_t segment_count)
{
    const char **texts = NULL;
    const void *times = NULL;
    const void *owners = NULL;
    size_t count = 0;
    BERTH_TRY(read_strings(reader, "word_text", &texts, &count));
    BERTH_TRY(find_numbers(reader, "word_times", BERTH_DTYPE_FP64, count * 3, &times));
    BERTH_TRY(find_numbers(reader, "word_segment", BERTH_DTYPE_INT32, count, &owners));
    struct berth_word *words = berth_arena_alloc(reader->arena, (count + 1) * sizeof(*words));
    if (words == NULL) {
        return no_memory(reader);
    }
    int32_t before = 0;
    for (size_t i = 0; i < count; i++) {
        const double *time = (const double *)times + 3 * i;
        int32_t owner = ((const int32_t *)owners)[i];
        if (owner < before || (size_t)owner >= segment_count) {
            return berth_fail(reader->err, BERTH_INTERNAL, "word_segment is out of order");
        }
        before = owner;
        words[i] = (struct berth_word){
            .start_s = time[0], .end_s = time[1], .probability = time[2], .text = texts[i]};
        struct berth_segment *segment = &segments[owner];
        segment->words = segment->word_count == 0 ? &words[i] : segment->words;
        segment->word_count++;
    }
    return BERTH_OK;
}

/* --- writing --- */

/* A JSON number with at most `decimals` of them, at least one; what is no number becomes 0. */
static void put_number(struct berth_buf *out, double value, int decimals)
{
    if (!isfinite(value)) {
        value = 0;
    }
    berth_buf_printf(out, "%.*f", decimals, value);
    if (!berth_buf_ok(out)) {
        return;
    }
    while (out->length > 2 && out->bytes[out->length - 1] == '0' &&
           out->bytes[out->length - 2] != '.') {
        out->bytes[--out->length] = '\0';
    }
}

/* `,"name":value` */
static void put_field(struct berth_buf *out, const char *name, double value, int decimals)
{
    berth_buf_printf(out, ",\"%s\":", name);
    put_number(out, value, decimals);
}

static void put_segment(struct berth_buf *out, const struct berth_segment *segment, size_t id)
{
    berth_buf_printf(out, "{\"id\":%zu,\"seek\":%d", id, segment->seek);
    put_field(out, "start", segment->start_s, 3);
    put_field(out, "end", segment->end_s, 3);
    berth_buf_puts(out, ",\"text\":");
    berth_buf_json_string(out, segment->text, strlen(segment->text));
    berth_buf_puts(out, ",\"tokens\":[");
    for (size_t i = 0; i < segment->token_count; i++) {
        berth_buf_printf(out, "%s%d", i == 0 ? "" : ",", segment->tokens[i]);
    }
    berth_buf_puts(out, "]");
    put_field(out, "temperature", segment->temperature, 3);
    put_field(out, "avg_logprob", segment->avg_logprob, 6);
    put_field(out, "compression_ratio", segment->compression_ratio, 6);
    put_field(out, "no_speech_prob", segment->no_speech_prob, 6);
    berth_buf_puts(out, "}");
}

static void put_words(struct berth_buf *out, const struct berth_transcript *transcript)
{
    bool first = true;
    berth_buf_puts(out, ",\"words\":[");
    for (size_t s = 0; s < transcript->segment_count; s++) {
        const struct berth_segment *segment = &transcript->segments[s];
        for (size_t i = 0; i < segment->word_count; i++) {
            size_t length = strlen(segment->words[i].text);
            const char *text = berth_text_trim(segment->words[i].text, &length);
            berth_buf_puts(out, first ? "{\"word\":" : ",{\"word\":");
            berth_buf_json_string(out, text, length);
            put_field(out, "start", segment->words[i].start_s, 3);
            put_field(out, "end", segment->words[i].end_s, 3);
            berth_buf_puts(out, "}");
            first = false;
        }
    }
    berth_buf_puts(out, "]");
}

static void write_verbose(const struct berth_transcript *transcript,
                          const struct berth_transcript_style *style, struct berth_buf *out)
{
    const char *language = berth_language_name(transcript->language);
    if (language == NULL) {
        language = transcript->language;
    }
    berth_buf_puts(out, "{\"task\":");
    berth_buf_json_string(out, style->task, strlen(style->task));
    berth_buf_puts(out, ",\"language\":");
    berth_buf_json_string(out, language, strlen(language));
    put_field(out, "duration", transcript->seconds, 3);
    berth_buf_puts(out, ",\"text\":");
    berth_buf_json_string(out, transcript->text, strlen(transcript->text));
    if (style->segments) {
        berth_buf_puts(out, ",\"segments\":[");
        for (size_t i = 0; i < transcript->segment_count; i++) {
            berth_buf_puts(out, i == 0 ? "" : ",");
            put_segment(out, &transcript->segments[i], i);
        }
        berth_buf_puts(out, "]");
    }
    if (style->words) {
        put_words(out, transcript);
    }
    berth_buf_puts(out, "}");
}

/* hh:mm:ss and milliseconds behind `point`; hours may take more than two digits. */
static void put_time(struct berth_buf *out, double seconds, char point)
{
    double ms = isfinite(seconds) && seconds > 0 ? round(seconds * 1000) : 0;
    uint64_t left = ms < 1e15 ? (uint64_t)ms : 0;
    berth_buf_printf(out, "%02llu:%02u:%02u%c%03u", (unsigned long long)(left / 3600000),
                     (unsigned)(left / 60000 % 60), (unsigned)(left / 1000 % 60), point,
                     (unsigned)(left % 1000));
}

/* One line of text that ends no cue and opens no tag. */
static void put_cue_text(struct berth_buf *out, const char *text, bool vtt)
{
    size_t length = strlen(text);
    text = berth_text_trim(text, &length);
    for (size_t i = 0; i < length; i++) {
        size_t dashes = strspn(text + i, "-"); /* all of them, or an arrow would be left over */
        if (dashes >= 2 && text[i + dashes] == '>') {
            berth_buf_puts(out, vtt ? "-&gt;" : "->");
            i += dashes;
        } else if (text[i] == '\n' || text[i] == '\r') {
            berth_buf_puts(out, " ");
        } else if (vtt && text[i] == '<') {
            berth_buf_puts(out, "&lt;");
        } else if (vtt && text[i] == '&') {
            berth_buf_puts(out, "&amp;");
        } else {
            berth_buf_append(out, text + i, 1);
        }
    }
}

static void write_cues(const struct berth_transcript *transcript, bool vtt, struct berth_buf *out)
{
    char point = vtt ? '.' : ',';
    for (size_t i = 0; i < transcript->segment_count; i++) {
        const struct berth_segment *segment = &transcript->segments[i];
        if (!vtt) {
            berth_buf_printf(out, "%zu\n", i + 1);
        }
        put_time(out, segment->start_s, point);
        berth_buf_puts(out, " --> ");
        put_time(out, segment->end_s, point);
        berth_buf_puts(out, "\n");
        put_cue_text(out, segment->text, vtt);
        berth_buf_puts(out, "\n\n");
    }
}
