/* whisper_row.c - the life of a row between model calls.
 *
 * Windows are independent: no text is carried from one to the next (faster-whisper's
 * condition_on_previous_text=False), so that one bad window cannot spoil those after it. A prompt
 * counts for the first window that has text. At temperature 0 a window that looks wrong is decoded
 * again at 0.2, 0.4 .. 1, once each; what is drawn then depends on the window's place and the
 * attempt only, so that the same audio gives the same text every time.
 */
#include "engine/whisper/whisper_row.h"

#include <math.h>
#include <string.h>

#include "engine/whisper/rules.h"

#define ARENA_BYTES_MAX (256U << 20)

static void next_window(struct berth_whisper_row *row, size_t seek);
static void begin_attempt(struct berth_whisper_row *row);
static void feed_prompt(struct berth_whisper_row *row);
static enum berth_code end_attempt(struct berth_whisper_row *row, struct berth_err *err);
static enum berth_code accept_window(struct berth_whisper_row *row, struct berth_err *err);
static bool begin_alignment(struct berth_whisper_row *row);
static enum berth_code place_words(struct berth_whisper_row *row, struct berth_align *align,
                                   struct berth_err *err);
static enum berth_code commit(struct berth_whisper_row *row, const struct berth_align_word *words,
                              const struct berth_align_span *spans, struct berth_err *err);

enum berth_code berth_whisper_row_init(struct berth_whisper_row *row,
                                       const struct berth_whisper_base *base,
                                       struct berth_request *request, struct berth_err *err)
{
    memset(row, 0, sizeof(*row));
    row->base = base;
    row->request = request;
    row->lane = BERTH_WHISPER_LANE_NONE;
    row->peak = BERTH_MEL_SILENCE;
    berth_arena_init(&row->arena, ARENA_BYTES_MAX);
    enum berth_code code = berth_whisper_row_read(row, err);
    if (code != BERTH_OK) {
        berth_whisper_row_finish(row);
        return code;
    }
    next_window(row, 0);
    if (row->content > BERTH_MEL_WINDOW) {
        row->stage = BERTH_WHISPER_PEAK;
    }
    return BERTH_OK;
}

void berth_whisper_row_finish(struct berth_whisper_row *row)
{
    for (size_t i = 0; i < row->alignment.chunk_count; i++) {
        berth_ort_value_clear(&row->alignment.chunks[i]);
    }
    berth_arena_finish(&row->arena);
    memset(row, 0, sizeof(*row));
}

void berth_whisper_row_begin(struct berth_whisper_row *row)
{
    row->attempt.index = 0;
    row->kept.any = false;
    begin_attempt(row);
}

enum berth_code berth_whisper_row_take(struct berth_whisper_row *row, float *logits,
                                       struct berth_err *err)
{
    const struct berth_whisper_config *config = row->base->config;
    struct berth_whisper_attempt *attempt = &row->attempt;
    if (attempt->fed == attempt->sot_at + 1) {
        berth_whisper_row_take_start(row, logits);
    }
    if (attempt->detect) {
        row->wish.language_id = berth_rules_language(config, logits);
        const char *code = berth_whisper_language_code(config, row->wish.language_id);
        row->wish.language = code == NULL ? "" : code;
        attempt->detect = false;
        feed_prompt(row);
        if (attempt->sot_at == 0 && row->stage == BERTH_WHISPER_DECODE) {
            attempt->fed = 1; /* the start token that was fed is the prompt's own */
            attempt->next = attempt->feed[1];
        }
        return BERTH_OK;
    }
    if (attempt->fed < attempt->feed_count) {
        attempt->next = attempt->feed[attempt->fed];
        return BERTH_OK;
    }
    struct berth_rules rules = {.config = config, .tokens = attempt->tokens,
                                .token_count = attempt->token_count,
                                .timestamps = row->wish.timestamps};
    berth_rules_mask(&rules, logits);
    struct berth_pick pick =
        berth_rules_pick(logits, config->vocab, attempt->temperature, &attempt->random);
    if (pick.token < 0) {
        return berth_fail(err, BERTH_INTERNAL, "the model's logits are not numbers");
    }
    attempt->logprob += pick.logprob;
    if (pick.token != config->eot) {
        attempt->tokens[attempt->token_count++] = pick.token;
        if (attempt->token_count < attempt->token_max) {
            attempt->next = pick.token;
            return BERTH_OK;
        }
    }
    return end_attempt(row, err);
}

void berth_whisper_row_take_start(struct berth_whisper_row *row, const float *logits)
{
    const struct berth_whisper_config *config = row->base->config;
    row->attempt.no_speech =
        berth_rules_probability(logits, config->vocab, (size_t)config->no_speech);
}

enum berth_code berth_whisper_row_align(struct berth_whisper_row *row, struct berth_align *align,
                                        const struct berth_ort_value *logits,
                                        struct berth_ort_value *scores, struct berth_err *err)
{
    const struct berth_whisper_config *config = row->base->config;
    struct berth_whisper_alignment *alignment = &row->alignment;
    uint32_t steps = alignment->count - alignment->done;
    steps = steps < BERTH_WHISPER_CHUNK ? steps : BERTH_WHISPER_CHUNK;
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t at = alignment->done + i; /* its logits are about token at + 1 */
        if (at >= alignment->first && at + 2 < alignment->count) {
            const float *values = (const float *)logits->bytes + (size_t)i * config->vocab;
            alignment->probabilities[at - alignment->first] = berth_rules_probability(
                values, (size_t)config->eot, (size_t)alignment->ids[at + 1]);
        }
    }
    if (alignment->chunk_count > 0 && scores->dims[1] != alignment->chunks[0].dims[1]) {
        return berth_fail(err, BERTH_INTERNAL, "the model's alignment heads change in number");
    }
    alignment->chunks[alignment->chunk_count++] = *scores;
    memset(scores, 0, sizeof(*scores));
    alignment->done += steps;
    return alignment->done < alignment->count ? BERTH_OK : place_words(row, align, err);
}

/* --- decoding a window --- */

static void next_window(struct berth_whisper_row *row, size_t seek)
{
    row->seek = seek;
    if (seek >= row->content) {
        row->stage = BERTH_WHISPER_END;
        return;
    }
    row->size = row->content - seek;
    if (row->size > BERTH_MEL_WINDOW) {
        row->size = BERTH_MEL_WINDOW;
    }
    row->stage = BERTH_WHISPER_ENCODE;
}

static void begin_attempt(struct berth_whisper_row *row)
{
    struct berth_whisper_attempt *attempt = &row->attempt;
    uint32_t index = attempt->index;
    attempt->temperature =
        row->wish.temperature > 0 ? row->wish.temperature : berth_window_temperature(index);
    attempt->random = UINT64_C(0x5DEECE66D) + row->seek * 8 + index;
    attempt->token_count = 0;
    attempt->logprob = 0;
    attempt->no_speech = 0;
    attempt->detect = row->base->config->multilingual && row->wish.language_id < 0;
    if (attempt->detect) {
        attempt->feed[0] = row->base->config->sot;
        attempt->feed_count = 1;
        attempt->sot_at = 0;
        attempt->fed = 0;
        attempt->next = attempt->feed[0];
        row->stage = BERTH_WHISPER_DECODE;
        return;
    }
    feed_prompt(row);
}

/* [previous, text..,] start [, language, task] [, no timestamps] */
static void feed_prompt(struct berth_whisper_row *row)
{
    const struct berth_whisper_config *config = row->base->config;
    struct berth_whisper_attempt *attempt = &row->attempt;
    uint32_t count = 0;
    if (row->context_count > 0) {
        attempt->feed[count++] = config->previous;
        for (size_t i = 0; i < row->context_count; i++) {
            attempt->feed[count++] = row->context[i];
        }
    }
    attempt->sot_at = count;
    attempt->feed[count++] = config->sot;
    if (config->multilingual) {
        attempt->feed[count++] = row->wish.language_id;
        attempt->feed[count++] = row->wish.translate ? config->translate : config->transcribe;
    }
    if (!row->wish.timestamps) {
        attempt->feed[count++] = config->no_timestamps;
    }
    attempt->feed_count = count;
    attempt->fed = 0;
    attempt->next = attempt->feed[0];
    attempt->token_max = config->positions - count + 1;
    if (attempt->token_max > config->positions / 2) {
        attempt->token_max = config->positions / 2;
    }
    row->stage = count > row->base->step_max ? BERTH_WHISPER_PROMPT : BERTH_WHISPER_DECODE;
}

/* The tokens' text, as valid UTF-8, in the row's arena; NULL: no memory. */
static char *decode_text(struct berth_whisper_row *row, const int32_t *ids, size_t count,
                         size_t *length)
{
    struct berth_buf bytes = {0};
    struct berth_buf text = {0};
    char *copy = NULL;
    berth_tokens_decode(row->base->tokens, ids, count, row->base->config->eot, &bytes);
    berth_buf_utf8(&text, berth_buf_text(&bytes), bytes.length);
    if (berth_buf_ok(&bytes) && berth_buf_ok(&text)) {
        *length = text.length;
        copy = berth_arena_strndup(&row->arena, berth_buf_text(&text), text.length);
    }
    berth_buf_finish(&bytes);
    berth_buf_finish(&text);
    return copy;
}

/* Better than what is kept: less repetitive first, then likelier. */
static bool is_better(const struct berth_whisper_kept *kept,
                      const struct berth_window_score *score)
{
    bool before = berth_window_is_repetitive(&kept->score);
    bool now = berth_window_is_repetitive(score);
    if (!kept->any || before != now) {
        return !kept->any || before;
    }
    return score->avg_logprob > kept->score.avg_logprob;
}

static enum berth_code end_attempt(struct berth_whisper_row *row, struct berth_err *err)
{
    struct berth_whisper_attempt *attempt = &row->attempt;
    size_t length = 0;
    const char *text = decode_text(row, attempt->tokens, attempt->token_count, &length);
    if (text == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a window's text");
    }
    text = berth_text_trim(text, &length);
    row->score = (struct berth_window_score){
        .avg_logprob = attempt->logprob / (double)(attempt->token_count + 1),
        .compression_ratio = berth_speech_compression(text, length),
        .no_speech_prob = attempt->no_speech};
    if (row->wish.temperature > 0 || !berth_window_needs_retry(&row->score)) {
        return accept_window(row, err);
    }
    struct berth_whisper_kept *kept = &row->kept;
    if (is_better(kept, &row->score)) {
        kept->any = true;
        kept->score = row->score;
        kept->token_count = attempt->token_count;
        memcpy(kept->tokens, attempt->tokens, attempt->token_count * sizeof(*kept->tokens));
    }
    if (attempt->index + 1 < BERTH_WINDOW_TRIES) {
        attempt->index++;
        begin_attempt(row);
        return BERTH_OK;
    }
    row->score = kept->score;
    attempt->token_count = kept->token_count;
    memcpy(attempt->tokens, kept->tokens, kept->token_count * sizeof(*kept->tokens));
    return accept_window(row, err);
}

static enum berth_code accept_window(struct berth_whisper_row *row, struct berth_err *err)
{
    if (berth_window_is_silent(&row->score)) {
        next_window(row, row->seek + row->size);
        return BERTH_OK;
    }
    struct berth_window window = {.seek = row->seek, .size = row->size,
                                  .tokens = row->attempt.tokens,
                                  .token_count = row->attempt.token_count};
    berth_window_split(row->base->config, &window, &row->cut);
    if (row->wish.words && begin_alignment(row)) {
        row->stage = BERTH_WHISPER_ALIGN;
        return BERTH_OK;
    }
    return commit(row, NULL, NULL, err);
}

/* --- words --- */

/* Lists the text of the window's segments behind a prompt; false where there is none, or no frame.
 */
static bool begin_alignment(struct berth_whisper_row *row)
{
    const struct berth_whisper_config *config = row->base->config;
    struct berth_whisper_alignment *alignment = &row->alignment;
    uint32_t count = 0;
    alignment->ids[count++] = config->sot;
    if (config->multilingual) {
        alignment->ids[count++] = row->wish.language_id;
        alignment->ids[count++] = row->wish.translate ? config->translate : config->transcribe;
    }
    alignment->first = count;
    alignment->ids[count++] = config->no_timestamps;
    for (size_t s = 0; s < row->cut.segment_count; s++) {
        const struct berth_window_segment *segment = &row->cut.segments[s];
        for (size_t i = segment->first; i < segment->first + segment->count; i++) {
            if (row->attempt.tokens[i] < config->eot &&
                count + 1 < config->positions) {
                alignment->ids[count++] = row->attempt.tokens[i];
            }
        }
    }
    bool any = count > alignment->first + 1 && row->size >= 2;
    alignment->ids[count++] = config->eot;
    alignment->count = count;
    alignment->done = 0;
    return any;
}

static void clear_chunks(struct berth_whisper_alignment *alignment)
{
    for (uint32_t i = 0; i < alignment->chunk_count; i++) {
        berth_ort_value_clear(&alignment->chunks[i]);
    }
    alignment->chunk_count = 0;
}

static void find_starts(struct berth_whisper_row *row, struct berth_align *align, uint32_t *starts)
{
    struct berth_whisper_alignment *alignment = &row->alignment;
    const float *chunks[BERTH_WHISPER_CHUNKS];
    for (uint32_t i = 0; i < alignment->chunk_count; i++) {
        chunks[i] = alignment->chunks[i].bytes;
    }
    struct berth_align_scores scores = {.chunks = chunks,
                                        .chunk_tokens = BERTH_WHISPER_CHUNK,
                                        .heads = (size_t)alignment->chunks[0].dims[1],
                                        .tokens = alignment->count,
                                        .frames = row->size / 2,
                                        .frames_stride = row->base->config->frames,
                                        .first = alignment->first};
    berth_align_path(align, &scores, starts);
    clear_chunks(alignment);
}

static enum berth_code place_words(struct berth_whisper_row *row, struct berth_align *align,
                                   struct berth_err *err)
{
    const struct berth_whisper_config *config = row->base->config;
    struct berth_whisper_alignment *alignment = &row->alignment;
    struct berth_align_word words[BERTH_WHISPER_TOKENS_MAX];
    struct berth_align_span spans[BERTH_WINDOW_SEGMENTS_MAX];
    uint32_t starts[BERTH_WHISPER_TOKENS_MAX];
    int32_t ids[BERTH_WHISPER_TOKENS_MAX];
    size_t count = alignment->count - alignment->first - 2;
    find_starts(row, align, starts);
    for (size_t i = 0; i < count; i++) {
        ids[i] = (int32_t)alignment->ids[alignment->first + 1 + i];
    }
    struct berth_align_text text = {.tokens = row->base->tokens, .language = row->wish.language,
                                    .ids = ids, .count = count,
                                    .probabilities = alignment->probabilities, .starts = starts};
    struct berth_align_context context = {.offset_s = (double)row->seek * BERTH_WINDOW_FRAME_S,
                                          .speech_end_s = row->speech_end_s};
    size_t word_count = berth_align_words(&text, words, &context.median_s);
    for (size_t s = 0; s < row->cut.segment_count; s++) {
        const struct berth_window_segment *segment = &row->cut.segments[s];
        spans[s] = (struct berth_align_span){.start_s = segment->start_s,
                                             .end_s = segment->end_s};
        for (size_t i = segment->first; i < segment->first + segment->count; i++) {
            spans[s].text_count += row->attempt.tokens[i] < config->eot ? 1 : 0;
        }
    }
    berth_align_fit(&context, words, word_count, spans, row->cut.segment_count);
    for (size_t s = 0; s < row->cut.segment_count; s++) {
        row->cut.segments[s].start_s = spans[s].start_s;
        row->cut.segments[s].end_s = spans[s].end_s;
    }
    return commit(row, words, spans, err);
}

/* --- what stands --- */

static bool add_words(struct berth_whisper_row *row, struct berth_speech_said *said,
                      const struct berth_align_word *words, size_t count)
{
    said->words = berth_arena_alloc(&row->arena, (count + 1) * sizeof(*said->words));
    if (said->words == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct berth_speech_word *word = &said->words[said->word_count++];
        int32_t ids[BERTH_WHISPER_TOKENS_MAX];
        for (size_t k = 0; k < words[i].count; k++) {
            ids[k] = (int32_t)row->alignment.ids[row->alignment.first + 1 + words[i].first + k];
        }
        word->text = decode_text(row, ids, words[i].count, &word->text_length);
        word->start_s = words[i].start_s;
        word->end_s = words[i].end_s;
        word->probability = words[i].probability;
        if (word->text == NULL) {
            return false;
        }
    }
    return true;
}

/* Adds one segment to the row's, but for those that say nothing. NULL in *out: not added. */
static bool add_said(struct berth_whisper_row *row, const struct berth_window_segment *segment,
                     struct berth_speech_said **out)
{
    const int32_t *tokens = row->attempt.tokens + segment->first;
    size_t length = 0;
    *out = NULL;
    char *text = decode_text(row, tokens, segment->count, &length);
    if (text == NULL) {
        return false;
    }
    size_t trimmed = length;
    (void)berth_text_trim(text, &trimmed);
    if (trimmed == 0 || segment->start_s == segment->end_s) {
        return true;
    }
    struct berth_speech_said *said = berth_arena_alloc(&row->arena, sizeof(*said));
    int32_t *copy = berth_arena_alloc(&row->arena, segment->count * sizeof(*copy));
    if (said == NULL || copy == NULL) {
        return false;
    }
    memcpy(copy, tokens, segment->count * sizeof(*copy));
    *said = (struct berth_speech_said){.start_s = segment->start_s, .end_s = segment->end_s,
                                        .text = text, .text_length = length,
                                        .avg_logprob = row->score.avg_logprob,
                                        .compression_ratio = row->score.compression_ratio,
                                        .no_speech_prob = row->score.no_speech_prob,
                                        .temperature = row->attempt.temperature,
                                        .seek = row->seek, .tokens = copy,
                                        .token_count = segment->count};
    if (row->said_last == NULL) {
        row->said = said;
    } else {
        row->said_last->next = said;
    }
    row->said_last = said;
    row->unsent = row->unsent == NULL ? said : row->unsent;
    *out = said;
    return true;
}

/* With word times a window goes on where its last word ends. */
static size_t seek_after_words(struct berth_whisper_row *row, const struct berth_align_word *words,
                               const struct berth_align_span *spans)
{
    if (row->cut.segment_count == 0) {
        return row->cut.seek_next;
    }
    double end_s = row->cut.segments[row->cut.segment_count - 1].end_s;
    for (size_t s = row->cut.segment_count; spans != NULL && s > 0; s--) {
        const struct berth_align_span *span = &spans[s - 1];
        if (span->word_count > 0) {
            end_s = words[span->word_first + span->word_count - 1].end_s;
            break;
        }
    }
    row->speech_end_s = end_s;
    size_t seek = end_s > 0 ? (size_t)lround(end_s * 100) : 0;
    return !row->cut.ends_single && seek > row->seek ? seek : row->cut.seek_next;
}

static enum berth_code commit(struct berth_whisper_row *row, const struct berth_align_word *words,
                              const struct berth_align_span *spans, struct berth_err *err)
{
    for (size_t s = 0; s < row->cut.segment_count; s++) {
        struct berth_speech_said *said = NULL;
        bool added = add_said(row, &row->cut.segments[s], &said);
        if (added && said != NULL && words != NULL) {
            added = add_words(row, said, words + spans[s].word_first, spans[s].word_count);
        }
        if (!added) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a segment");
        }
    }
    size_t seek = row->wish.words ? seek_after_words(row, words, spans) : row->cut.seek_next;
    row->context_count = 0;
    next_window(row, seek);
    return BERTH_OK;
}
