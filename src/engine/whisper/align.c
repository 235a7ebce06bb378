/* align.c - attention to times.
 *
 * For each head: softmax over the frames that hold audio, z-score over tokens, median of 7 frames;
 * then the sum over heads (its scale does not matter to the path). The path minimises the negated
 * sum; with ties it stays on the token. All loops run along the frames, so that compilers vectorise
 * them: about 12 ms for 110 tokens and 8 heads.
 */
#include "engine/whisper/align.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/whisper/exp_fast.h"

#define MEDIAN_HALF 3 /* of a median over 7 frames */
#define WORD_BYTES_MAX 256
#define MEDIAN_S_MAX 0.7

enum step { STEP_BOTH, STEP_TOKEN, STEP_FRAME };

struct berth_align {
    float head[BERTH_ALIGN_TOKENS_MAX * BERTH_ALIGN_FRAMES_MAX];
    float sum[BERTH_ALIGN_TOKENS_MAX * BERTH_ALIGN_FRAMES_MAX];
    float cost[2][BERTH_ALIGN_TOKENS_MAX + 1];
    float mean[BERTH_ALIGN_FRAMES_MAX];
    float square[BERTH_ALIGN_FRAMES_MAX];
    float padded[BERTH_ALIGN_FRAMES_MAX + 2 * MEDIAN_HALF];
    uint8_t trace[(BERTH_ALIGN_TOKENS_MAX + 1) * (BERTH_ALIGN_FRAMES_MAX + 1)];
};

static void add_head(struct berth_align *align, const struct berth_align_scores *scores,
                     size_t head);
static void warp(struct berth_align *align, const float *weights, size_t rows, size_t columns);
static void walk(const struct berth_align *align, size_t rows, size_t columns, uint32_t *starts);
static size_t split_words(const struct berth_align_text *text, struct berth_align_word *words);
static double median_duration(const struct berth_align_word *words, size_t count);
static void shorten_at_sentences(const struct berth_align_text *text,
                                 struct berth_align_word *words, size_t count, double max_s);
static void merge_punctuation(const struct berth_align_text *text, struct berth_align_word *words,
                              size_t count);
static void fit_span(struct berth_align_context *context, struct berth_align_word *words,
                     struct berth_align_span *span);

enum berth_code berth_align_create(struct berth_align **out, struct berth_err *err)
{
    *out = berth_alloc(sizeof(**out));
    return *out == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "no memory for the word alignment")
                        : BERTH_OK;
}

void berth_align_destroy(struct berth_align *align)
{
    berth_free(align);
}

uint64_t berth_align_bytes(const struct berth_align *align)
{
    return align == NULL ? 0 : sizeof(*align);
}

void berth_align_path(struct berth_align *align, const struct berth_align_scores *scores,
                      uint32_t *starts)
{
    BERTH_ASSERT(scores->tokens <= BERTH_ALIGN_TOKENS_MAX);
    BERTH_ASSERT(scores->frames <= scores->frames_stride);
    BERTH_ASSERT(scores->frames_stride <= BERTH_ALIGN_FRAMES_MAX);
    BERTH_ASSERT(scores->first + 1 < scores->tokens && scores->frames > 0);
    memset(align->sum, 0, scores->tokens * scores->frames * sizeof(float));
    for (size_t h = 0; h < scores->heads; h++) {
        add_head(align, scores, h);
    }
    /* The row of token i foretells token i + 1, so the last row (the end) is of no use. */
    size_t rows = scores->tokens - 1 - scores->first;
    warp(align, align->sum + scores->first * scores->frames, rows, scores->frames);
    walk(align, rows, scores->frames, starts);
}

size_t berth_align_words(const struct berth_align_text *text, struct berth_align_word *words,
                         double *median_s)
{
    size_t count = split_words(text, words);
    *median_s = median_duration(words, count);
    if (*median_s > 0) {
        shorten_at_sentences(text, words, count, *median_s * 2);
    }
    merge_punctuation(text, words, count);
    return count;
}

void berth_align_fit(struct berth_align_context *context, struct berth_align_word *words,
                     size_t word_count, struct berth_align_span *spans, size_t span_count)
{
    size_t next = 0;
    for (size_t s = 0; s < span_count; s++) {
        struct berth_align_span *span = &spans[s];
        size_t kept = next; /* joined words leave holes: close them */
        size_t saved = 0;
        span->word_first = next;
        size_t at = next;
        while (at < word_count && saved < span->text_count) {
            saved += words[at].count;
            if (words[at].count > 0) {
                words[kept] = words[at];
                words[kept].start_s =
                    round((context->offset_s + words[at].start_s) * 100) / 100;
                words[kept].end_s = round((context->offset_s + words[at].end_s) * 100) / 100;
                kept++;
            }
            at++;
        }
        span->word_count = kept - next;
        while (kept < at) {
            words[kept++].count = 0;
        }
        next = at;
        if (span->word_count > 0) {
            fit_span(context, words, span);
        }
    }
}

/* --- attention to a path --- */

static void softmax(const float *in, size_t count, float *out)
{
    float peak = in[0];
    float sum = 0;
    for (size_t i = 1; i < count; i++) {
        peak = in[i] > peak ? in[i] : peak;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = berth_exp_fast(in[i] - peak);
    }
    for (size_t i = 0; i < count; i++) {
        sum += out[i];
    }
    for (size_t i = 0; i < count; i++) {
        out[i] /= sum;
    }
}

/* z-score over the tokens of each frame, row by row. */
static void standardise(struct berth_align *align, size_t rows, size_t frames)
{
    float *mean = align->mean;
    float *square = align->square;
    for (size_t f = 0; f < frames; f++) {
        mean[f] = 0;
        square[f] = 0;
    }
    for (size_t t = 0; t < rows; t++) {
        for (size_t f = 0; f < frames; f++) {
            mean[f] += align->head[t * frames + f];
        }
    }
    for (size_t f = 0; f < frames; f++) {
        mean[f] /= (float)rows;
    }
    for (size_t t = 0; t < rows; t++) {
        for (size_t f = 0; f < frames; f++) {
            float difference = align->head[t * frames + f] - mean[f];
            square[f] += difference * difference;
        }
    }
    for (size_t f = 0; f < frames; f++) {
        float deviation = sqrtf(square[f] / (float)rows);
        square[f] = deviation > 0 ? 1 / deviation : 0; /* from here on: the factor */
    }
    for (size_t t = 0; t < rows; t++) {
        for (size_t f = 0; f < frames; f++) {
            align->head[t * frames + f] = (align->head[t * frames + f] - mean[f]) * square[f];
        }
    }
}

static inline void order(float *a, float *b)
{
    float low = *a < *b ? *a : *b;
    float high = *a < *b ? *b : *a;
    *a = low;
    *b = high;
}

/* The 4th of 7, by the comparisons of a sorting network that it depends on. */
static inline float median_of(const float *v)
{
    float a = v[0], b = v[1], c = v[2], d = v[3], e = v[4], f = v[5], g = v[6];
    order(&a, &f);
    order(&a, &d);
    order(&b, &g);
    order(&c, &e);
    order(&a, &b);
    order(&d, &f);
    order(&c, &g);
    order(&c, &d);
    order(&d, &g);
    order(&e, &f);
    order(&b, &e);
    order(&b, &d);
    order(&d, &e);
    return d;
}

/* Adds the median of each frame and its neighbours, mirrored at both ends, to sum. */
static void add_medians(struct berth_align *align, const float *row, size_t frames, float *sum)
{
    float *padded = align->padded;
    memcpy(padded + MEDIAN_HALF, row, frames * sizeof(*row));
    for (size_t i = 1; i <= MEDIAN_HALF; i++) {
        padded[MEDIAN_HALF - i] = row[i];
        padded[MEDIAN_HALF + frames - 1 + i] = row[frames - 1 - i];
    }
    for (size_t f = 0; f < frames; f++) {
        sum[f] += median_of(padded + f);
    }
}

static void add_head(struct berth_align *align, const struct berth_align_scores *scores,
                     size_t head)
{
    size_t frames = scores->frames;
    for (size_t t = 0; t < scores->tokens; t++) {
        size_t chunk = t / scores->chunk_tokens;
        size_t left = scores->tokens - chunk * scores->chunk_tokens;
        size_t rows = left < scores->chunk_tokens ? left : scores->chunk_tokens;
        size_t at = head * rows + t % scores->chunk_tokens;
        softmax(scores->chunks[chunk] + at * scores->frames_stride, frames,
                align->head + t * frames);
    }
    standardise(align, scores->tokens, frames);
    for (size_t t = scores->first; t < scores->tokens; t++) {
        const float *row = align->head + t * frames;
        float *sum = align->sum + t * frames;
        if (frames > MEDIAN_HALF) {
            add_medians(align, row, frames, sum);
            continue;
        }
        for (size_t f = 0; f < frames; f++) {
            sum[f] += row[f];
        }
    }
}

/* cost(i, j) = -weight(i-1, j-1) + the cheapest of the three ways there; trace (columns+1, rows+1)
 * keeps which. */
static void warp(struct berth_align *align, const float *weights, size_t rows, size_t columns)
{
    float *before = align->cost[0];
    float *now = align->cost[1];
    size_t stride = rows + 1;
    before[0] = 0;
    for (size_t i = 1; i <= rows; i++) {
        before[i] = INFINITY;
    }
    for (size_t j = 1; j <= columns; j++) {
        uint8_t *trace = align->trace + j * stride;
        now[0] = INFINITY;
        for (size_t i = 1; i <= rows; i++) {
            float both = before[i - 1];
            float token = now[i - 1];
            float frame = before[i];
            float best = frame;
            trace[i] = STEP_FRAME;
            if (both < token && both < frame) {
                best = both;
                trace[i] = STEP_BOTH;
            } else if (token < both && token < frame) {
                best = token;
                trace[i] = STEP_TOKEN;
            }
            now[i] = best - weights[(i - 1) * columns + j - 1];
        }
        float *other = before;
        before = now;
        now = other;
    }
}

/* From the last cell back to the first: the last time a row is seen is where it begins. */
static void walk(const struct berth_align *align, size_t rows, size_t columns, uint32_t *starts)
{
    size_t i = rows;
    size_t j = columns;
    memset(starts, 0, rows * sizeof(*starts));
    while (i > 0) {
        starts[i - 1] = j > 0 ? (uint32_t)(j - 1) : 0;
        uint8_t step = j == 0 ? STEP_TOKEN : align->trace[j * (rows + 1) + i];
        if (step != STEP_FRAME) {
            i--;
        }
        if (step != STEP_TOKEN) {
            j--;
        }
    }
}

/* --- tokens to words --- */

/* Bytes of tokens [first, first + count), cut at WORD_BYTES_MAX. */
static size_t word_bytes(const struct berth_align_text *text, size_t first, size_t count,
                         char *out)
{
    size_t length = 0;
    for (size_t i = first; i < first + count; i++) {
        const char *bytes = NULL;
        size_t piece = berth_tokens_piece(text->tokens, text->ids[i], &bytes);
        piece = piece > WORD_BYTES_MAX - length ? WORD_BYTES_MAX - length : piece;
        memcpy(out + length, bytes, piece);
        length += piece;
    }
    return length;
}

/* Do the tokens [first, end) end where a character does? What no later token can make whole counts
 * as ended. */
static bool ends_whole(const struct berth_align_text *text, size_t first, size_t end)
{
    char bytes[WORD_BYTES_MAX];
    size_t own = word_bytes(text, first, end - first, bytes);
    size_t last = end < text->count ? end + 1 : end; /* one more token says enough to look on */
    while (last < text->count && last - end < 4) {
        last++;
    }
    size_t all = word_bytes(text, first, last - first, bytes);
    size_t at = 0;
    while (at < own) {
        uint32_t point = 0;
        at += berth_utf8_next(bytes + at, all - at, &point);
    }
    return at == own;
}

static bool is_space(uint32_t point)
{
    return point == ' ' || (point >= 9 && point <= 13) || point == 0x85 || point == 0xA0 ||
           (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
           point == 0x3000;
}

/* Without the white space at both ends. */
static const char *strip(const char *bytes, size_t *length)
{
    uint32_t point = 0;
    while (*length > 0) {
        size_t taken = berth_utf8_next(bytes, *length, &point);
        if (!is_space(point)) {
            break;
        }
        bytes += taken;
        *length -= taken;
    }
    size_t end = 0;
    for (size_t at = 0; at < *length;) {
        at += berth_utf8_next(bytes + at, *length - at, &point);
        end = is_space(point) ? end : at;
    }
    *length = end;
    return bytes;
}

/* Is it a part of set, as one piece? The empty word is. */
static bool is_in(const char *set, const char *bytes, size_t length)
{
    return memmem(set, strlen(set), bytes, length) != NULL;
}

static bool starts_word(const struct berth_align_text *text, size_t first, size_t end)
{
    static const char punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    char bytes[WORD_BYTES_MAX];
    size_t length = word_bytes(text, first, end - first, bytes);
    if (length > 0 && bytes[0] == ' ') {
        return true;
    }
    const char *core = strip(bytes, &length);
    return is_in(punctuation, core, length);
}

static bool without_spaces(const char *language)
{
    static const char *const codes[] = {"zh", "ja", "th", "lo", "my", "yue"};
    for (size_t i = 0; i < BERTH_COUNT_OF(codes); i++) {
        if (strcmp(codes[i], language) == 0) {
            return true;
        }
    }
    return false;
}

static void time_word(const struct berth_align_text *text, struct berth_align_word *word)
{
    double sum = 0;
    for (size_t i = word->first; i < word->first + word->count; i++) {
        sum += text->probabilities[i];
    }
    word->probability = sum / (double)word->count;
    word->start_s = text->starts[word->first] * BERTH_ALIGN_FRAME_S;
    word->end_s = text->starts[word->first + word->count] * BERTH_ALIGN_FRAME_S;
}

static size_t split_words(const struct berth_align_text *text, struct berth_align_word *words)
{
    size_t count = 0;
    bool each = without_spaces(text->language);
    size_t first = 0;
    for (size_t end = 1; end <= text->count; end++) {
        if (end < text->count && !ends_whole(text, first, end)) {
            continue;
        }
        if (count == 0 || each || starts_word(text, first, end)) {
            words[count++] = (struct berth_align_word){.first = first, .count = end - first};
        } else {
            words[count - 1].count += end - first;
        }
        first = end;
    }
    for (size_t i = 0; i < count; i++) {
        time_word(text, &words[i]);
    }
    return count;
}

/* --- corrections --- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the words that last at all, at most 0.7 s; 0 if none does. */
static double median_duration(const struct berth_align_word *words, size_t count)
{
    double lengths[BERTH_ALIGN_TOKENS_MAX];
    size_t kept = 0;
    for (size_t i = 0; i < count && kept < BERTH_ALIGN_TOKENS_MAX; i++) {
        if (words[i].end_s != words[i].start_s) {
            lengths[kept++] = words[i].end_s - words[i].start_s;
        }
    }
    if (kept == 0) {
        return 0;
    }
    qsort(lengths, kept, sizeof(*lengths), compare_doubles);
    double median = kept % 2 == 1 ? lengths[kept / 2]
                                  : (lengths[kept / 2 - 1] + lengths[kept / 2]) / 2;
    return median < MEDIAN_S_MAX ? median : MEDIAN_S_MAX;
}

static bool is_sentence_end(const struct berth_align_text *text,
                            const struct berth_align_word *word)
{
    char bytes[WORD_BYTES_MAX];
    size_t length = word_bytes(text, word->first, word->count, bytes);
    return is_in(".。!！?？", bytes, length);
}

static void shorten_at_sentences(const struct berth_align_text *text,
                                 struct berth_align_word *words, size_t count, double max_s)
{
    for (size_t i = 1; i < count; i++) {
        if (words[i].end_s - words[i].start_s <= max_s) {
            continue;
        }
        if (is_sentence_end(text, &words[i])) {
            words[i].end_s = words[i].start_s + max_s;
        } else if (is_sentence_end(text, &words[i - 1])) {
            words[i].start_s = words[i].end_s - max_s;
        }
    }
}

/* Opening marks go to the word that follows, closing marks to the one before. */
static void merge_punctuation(const struct berth_align_text *text, struct berth_align_word *words,
                              size_t count)
{
    static const char opening[] = "\"'“¿([{-";
    static const char closing[] = "\"'.。,，!！?？:：”)]}、";
    char bytes[WORD_BYTES_MAX];
    size_t following = count - 1;
    for (size_t i = count; count > 1 && i-- > 0;) {
        if (i == following) {
            continue;
        }
        struct berth_align_word *word = &words[i];
        size_t length = word_bytes(text, word->first, word->count, bytes);
        bool spaced = length > 0 && bytes[0] == ' ';
        const char *core = strip(bytes, &length);
        if (spaced && is_in(opening, core, length)) {
            words[following].count += words[following].first - word->first;
            words[following].first = word->first;
            word->count = 0;
        } else {
            following = i;
        }
    }
    size_t before = 0;
    for (size_t i = 1; i < count; i++) {
        size_t length = word_bytes(text, words[before].first, words[before].count, bytes);
        bool open = length == 0 || bytes[length - 1] != ' ';
        length = word_bytes(text, words[i].first, words[i].count, bytes);
        if (open && is_in(closing, bytes, length)) {
            words[before].count += words[i].count;
            words[i].count = 0;
        } else {
            before = i;
        }
    }
}

/* The first word after a pause, and the second, are at most twice the median long. */
static void shorten_after_pause(const struct berth_align_context *context,
                                struct berth_align_word *words, size_t count)
{
    double max_s = context->median_s * 2;
    bool second = count > 1;
    bool pause = words[0].end_s - context->speech_end_s > context->median_s * 4;
    bool too_long = words[0].end_s - words[0].start_s > max_s ||
                    (second && words[1].end_s - words[0].start_s > max_s * 2);
    if (!pause || !too_long) {
        return;
    }
    if (second && words[1].end_s - words[1].start_s > max_s) {
        double half = words[1].end_s / 2;
        double boundary = words[1].end_s - max_s > half ? words[1].end_s - max_s : half;
        words[0].end_s = boundary;
        words[1].start_s = boundary;
    }
    words[0].start_s = words[0].end_s > max_s ? words[0].end_s - max_s : 0;
}

static void fit_span(struct berth_align_context *context, struct berth_align_word *words,
                     struct berth_align_span *span)
{
    struct berth_align_word *first = &words[span->word_first];
    struct berth_align_word *last = first + span->word_count - 1;
    shorten_after_pause(context, first, span->word_count);
    if (span->start_s < first->end_s && span->start_s - 0.5 > first->start_s) {
        double start = first->end_s - context->median_s;
        start = start < span->start_s ? start : span->start_s;
        first->start_s = start > 0 ? start : 0;
    } else {
        span->start_s = first->start_s;
    }
    if (span->end_s > last->start_s && span->end_s + 0.5 < last->end_s) {
        double end = last->start_s + context->median_s;
        last->end_s = end > span->end_s ? end : span->end_s;
    } else {
        span->end_s = last->end_s;
    }
    context->speech_end_s = span->end_s;
}
