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

#include "engine/whisper/languages.h"
#include "engine/whisper/rules.h"

#define ARENA_BYTES_MAX (256U << 20)
#define PROMPT_BYTES_MAX 8192 /* more than 223 tokens ever take of a prompt's end */
#define PROMPT_TOKENS_MAX 223

struct berth_whisper_said {
    struct berth_whisper_said *next;
    double start_s;
    double end_s;
    char *text;
    size_t text_length;
    struct berth_window_score score;
    double temperature;
    size_t seek;
    const int32_t *tokens;
    size_t token_count;
    struct said_word *words;
    size_t word_count;
};

struct said_word {
    const char *text;
    size_t text_length;
    double start_s;
    double end_s;
    double probability;
};

static enum berth_code read_audio(struct berth_whisper_row *row, struct berth_err *err);
static enum berth_code read_language(struct berth_whisper_row *row, struct berth_err *err);
static enum berth_code read_wish(struct berth_whisper_row *row, struct berth_err *err);
static enum berth_code read_prompt(struct berth_whisper_row *row, struct berth_err *err);
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
    enum berth_code code = read_audio(row, err);
    if (code == BERTH_OK) {
        code = read_language(row, err);
    }
    if (code == BERTH_OK) {
        code = read_wish(row, err);
    }
    if (code == BERTH_OK) {
        code = read_prompt(row, err);
    }
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
    alignment->chunks[alignment->chunk_count++] = *scores;
    memset(scores, 0, sizeof(*scores));
    alignment->done += steps;
    return alignment->done < alignment->count ? BERTH_OK : place_words(row, align, err);
}

bool berth_whisper_row_has_news(const struct berth_whisper_row *row)
{
    return row->unsent != NULL;
}

/* --- what the request asks for --- */

static enum berth_code read_audio(struct berth_whisper_row *row, struct berth_err *err)
{
    const struct berth_request *request = row->request;
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
    row->audio.samples = count == 0 ? NULL : berth_slabs_pointer(request->slabs, &tensor->range);
    row->audio.count = count;
    row->content = berth_mel_content(count);
    return BERTH_OK;
}

static enum berth_code read_language(struct berth_whisper_row *row, struct berth_err *err)
{
    const struct berth_whisper_config *config = row->base->config;
    const char *text = berth_params_string(&row->request->params, "language", "");
    row->wish.language = config->multilingual ? "" : "en";
    row->wish.language_id = -1;
    if (text[0] == '\0' || strcmp(text, "auto") == 0) {
        return BERTH_OK;
    }
    const char *code = berth_language_code(text);
    if (code == NULL) {
        return berth_fail_field(err, BERTH_INVALID, "language",
                                "'%.40s' is no language this server knows; give a code such as en",
                                text);
    }
    if (!config->multilingual && strcmp(code, "en") != 0) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "language",
                                "this model understands English only, not %s",
                                berth_language_name(code));
    }
    if (config->multilingual) {
        row->wish.language_id = berth_whisper_language_id(config, code);
        if (row->wish.language_id < 0) {
            return berth_fail_field(err, BERTH_UNSUPPORTED, "language",
                                    "this model does not know %s", berth_language_name(code));
        }
    }
    row->wish.language = code;
    return BERTH_OK;
}

static enum berth_code read_wish(struct berth_whisper_row *row, struct berth_err *err)
{
    const struct berth_params *params = &row->request->params;
    struct berth_whisper_wish *wish = &row->wish;
    const char *task = berth_params_string(params, "task", "transcribe");
    wish->translate = strcmp(task, "translate") == 0;
    wish->timestamps = !berth_params_bool(params, "without_timestamps", false);
    wish->words = berth_params_bool(params, "word_timestamps", false);
    wish->temperature = berth_params_real(params, "temperature", 0);
    if (!wish->translate && strcmp(task, "transcribe") != 0) {
        return berth_fail_field(err, BERTH_INVALID, "task",
                                "'%.40s' is neither transcribe nor translate", task);
    }
    if (wish->translate && !row->base->config->multilingual) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "task",
                                "this model understands English only and does not translate");
    }
    if (!(wish->temperature >= 0 && wish->temperature <= 2)) {
        return berth_fail_field(err, BERTH_INVALID, "temperature",
                                "a temperature is a number from 0 to 2");
    }
    if (berth_params_int(params, "beam_size", 1) != 1) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "beam_size",
                                "only greedy decoding (beam_size 1) is served");
    }
    if (wish->words && !row->base->align) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "word_timestamps",
                                "this form of the model gives no word times");
    }
    return BERTH_OK;
}

static const char *trim(const char *text, size_t *length)
{
    while (*length > 0 && strchr(" \t\r\n\v\f", text[0]) != NULL && text[0] != '\0') {
        text++;
        (*length)--;
    }
    while (*length > 0 && strchr(" \t\r\n\v\f", text[*length - 1]) != NULL &&
           text[*length - 1] != '\0') {
        (*length)--;
    }
    return text;
}

/* Keeps the tokens of the prompt's end, behind one space. */
static enum berth_code read_prompt(struct berth_whisper_row *row, struct berth_err *err)
{
    const char *text = berth_params_string(&row->request->params, "prompt", "");
    size_t length = strlen(text);
    text = trim(text, &length);
    if (length == 0) {
        return BERTH_OK;
    }
    if (length > PROMPT_BYTES_MAX) {
        text += length - PROMPT_BYTES_MAX;
        length = PROMPT_BYTES_MAX;
        while (length > 0 && ((unsigned char)text[0] & 0xC0) == 0x80) {
            text++; /* not into a character */
            length--;
        }
    }
    char *spaced = berth_arena_alloc(&row->arena, length + 2);
    row->context = berth_arena_alloc(&row->arena, (length + 1) * sizeof(*row->context));
    if (spaced == NULL || row->context == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the prompt");
    }
    spaced[0] = ' ';
    memcpy(spaced + 1, text, length);
    row->context_count =
        berth_tokens_encode(row->base->tokens, spaced, length + 1, row->context);
    size_t max = PROMPT_TOKENS_MAX;
    if (max > row->base->config->positions / 2 - 1) {
        max = row->base->config->positions / 2 - 1;
    }
    if (row->context_count > max) {
        row->context += row->context_count - max;
        row->context_count = max;
    }
    return BERTH_OK;
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

/* The window's text without the white space at its ends, in the row's arena; NULL: no memory. */
static char *attempt_text(struct berth_whisper_row *row, size_t *length)
{
    struct berth_buf buf = {0};
    struct berth_buf text = {0};
    char *copy = NULL;
    berth_tokens_decode(row->base->tokens, row->attempt.tokens, row->attempt.token_count,
                        row->base->config->eot, &buf);
    berth_tokens_put_utf8(&text, berth_buf_text(&buf), buf.length);
    if (berth_buf_ok(&buf) && berth_buf_ok(&text)) {
        *length = text.length;
        const char *trimmed = trim(berth_buf_text(&text), length);
        copy = berth_arena_strndup(&row->arena, trimmed, *length);
    }
    berth_buf_finish(&buf);
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
    const char *text = attempt_text(row, &length);
    if (text == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a window's text");
    }
    row->score = (struct berth_window_score){
        .avg_logprob = attempt->logprob / (double)(attempt->token_count + 1),
        .compression_ratio = berth_window_compression(text, length),
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

static char *decode_text(struct berth_whisper_row *row, const int32_t *ids, size_t count,
                         size_t *length)
{
    struct berth_buf bytes = {0};
    struct berth_buf text = {0};
    char *copy = NULL;
    berth_tokens_decode(row->base->tokens, ids, count, row->base->config->eot, &bytes);
    berth_tokens_put_utf8(&text, berth_buf_text(&bytes), bytes.length);
    if (berth_buf_ok(&bytes) && berth_buf_ok(&text)) {
        *length = text.length;
        copy = berth_arena_strndup(&row->arena, berth_buf_text(&text), text.length);
    }
    berth_buf_finish(&bytes);
    berth_buf_finish(&text);
    return copy;
}

static bool add_words(struct berth_whisper_row *row, struct berth_whisper_said *said,
                      const struct berth_align_word *words, size_t count)
{
    said->words = berth_arena_alloc(&row->arena, (count + 1) * sizeof(*said->words));
    if (said->words == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct said_word *word = &said->words[said->word_count++];
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
                     struct berth_whisper_said **out)
{
    const int32_t *tokens = row->attempt.tokens + segment->first;
    size_t length = 0;
    *out = NULL;
    char *text = decode_text(row, tokens, segment->count, &length);
    if (text == NULL) {
        return false;
    }
    size_t trimmed = length;
    (void)trim(text, &trimmed);
    if (trimmed == 0 || segment->start_s == segment->end_s) {
        return true;
    }
    struct berth_whisper_said *said = berth_arena_alloc(&row->arena, sizeof(*said));
    int32_t *copy = berth_arena_alloc(&row->arena, segment->count * sizeof(*copy));
    if (said == NULL || copy == NULL) {
        return false;
    }
    memcpy(copy, tokens, segment->count * sizeof(*copy));
    *said = (struct berth_whisper_said){.start_s = segment->start_s, .end_s = segment->end_s,
                                        .text = text, .text_length = length,
                                        .score = row->score,
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
        struct berth_whisper_said *said = NULL;
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

/* --- parts --- */

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

static enum berth_code add_string(struct berth_part *part, const char *name, const char *text,
                                  size_t length, struct berth_err *err)
{
    void *out = NULL;
    const int64_t dims[] = {1};
    BERTH_TRY(berth_part_add(part, name, BERTH_DTYPE_BYTES, dims, 1, length + 4, &out, err));
    (void)berth_bytes_put(out, text, (uint32_t)length);
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
        const char *start = trim(bytes, &trimmed);
        length = final ? trimmed : length - (size_t)(start - bytes);
        bytes = start;
    }
    enum berth_code code =
        berth_buf_ok(&text) ? add_string(part, "text", bytes, length, err)
                            : berth_fail(err, BERTH_UNAVAILABLE, "no memory for the text");
    berth_buf_finish(&text);
    return code;
}

static enum berth_code add_segments(struct berth_part *part, const struct extent *extent,
                                    struct berth_err *err)
{
    const int64_t n = (int64_t)extent->segments;
    const int64_t dims[3][2] = {{n, 2}, {n, 4}, {(int64_t)extent->tokens, 0}};
    void *text = NULL, *times = NULL, *stats = NULL, *counts = NULL, *seeks = NULL, *ids = NULL;
    BERTH_TRY(berth_part_add(part, "segment_text", BERTH_DTYPE_BYTES, &n, 1,
                             extent->segment_bytes, &text, err));
    BERTH_TRY(berth_part_add(part, "segment_times", BERTH_DTYPE_FP64, dims[0], 2,
                             extent->segments * 2 * sizeof(double), &times, err));
    BERTH_TRY(berth_part_add(part, "segment_stats", BERTH_DTYPE_FP64, dims[1], 2,
                             extent->segments * 4 * sizeof(double), &stats, err));
    BERTH_TRY(berth_part_add(part, "segment_seek", BERTH_DTYPE_INT32, &n, 1,
                             extent->segments * sizeof(int32_t), &seeks, err));
    BERTH_TRY(berth_part_add(part, "segment_token_count", BERTH_DTYPE_INT32, &n, 1,
                             extent->segments * sizeof(int32_t), &counts, err));
    BERTH_TRY(berth_part_add(part, "segment_tokens", BERTH_DTYPE_INT32, dims[2], 1,
                             extent->tokens * sizeof(int32_t), &ids, err));
    unsigned char *text_at = text;
    double *times_at = times;
    double *stats_at = stats;
    int32_t *counts_at = counts;
    int32_t *seeks_at = seeks;
    int32_t *ids_at = ids;
    for (const struct berth_whisper_said *said = extent->from; said != NULL; said = said->next) {
        text_at = berth_bytes_put(text_at, said->text, (uint32_t)said->text_length);
        *times_at++ = said->start_s;
        *times_at++ = said->end_s;
        *stats_at++ = said->score.avg_logprob;
        *stats_at++ = said->score.compression_ratio;
        *stats_at++ = said->score.no_speech_prob;
        *stats_at++ = said->temperature;
        *seeks_at++ = (int32_t)said->seek;
        *counts_at++ = (int32_t)said->token_count;
        memcpy(ids_at, said->tokens, said->token_count * sizeof(*ids_at));
        ids_at += said->token_count;
    }
    return BERTH_OK;
}

static enum berth_code add_all_words(struct berth_part *part, const struct extent *extent,
                                     struct berth_err *err)
{
    const int64_t m = (int64_t)extent->words;
    const int64_t dims[2] = {m, 3};
    void *text = NULL, *times = NULL, *segments = NULL;
    BERTH_TRY(berth_part_add(part, "word_text", BERTH_DTYPE_BYTES, &m, 1, extent->word_bytes,
                             &text, err));
    BERTH_TRY(berth_part_add(part, "word_times", BERTH_DTYPE_FP64, dims, 2,
                             extent->words * 3 * sizeof(double), &times, err));
    BERTH_TRY(berth_part_add(part, "word_segment", BERTH_DTYPE_INT32, &m, 1,
                             extent->words * sizeof(int32_t), &segments, err));
    unsigned char *text_at = text;
    double *times_at = times;
    int32_t *segments_at = segments;
    int32_t index = 0;
    for (const struct berth_whisper_said *said = extent->from; said != NULL; said = said->next) {
        for (size_t i = 0; i < said->word_count; i++) {
            const struct said_word *word = &said->words[i];
            text_at = berth_bytes_put(text_at, word->text, (uint32_t)word->text_length);
            *times_at++ = word->start_s;
            *times_at++ = word->end_s;
            *times_at++ = word->probability;
            *segments_at++ = index;
        }
        index++;
    }
    return BERTH_OK;
}

enum berth_code berth_whisper_row_part(struct berth_whisper_row *row, bool final,
                                       struct berth_part **out, struct berth_err *err)
{
    struct extent extent = measure(final ? row->said : row->unsent);
    extent.first = final || row->unsent == row->said;
    struct berth_part *part = berth_part_create(row->request);
    const int64_t one = 1;
    void *duration = NULL;
    enum berth_code code = BERTH_OK;
    if (part == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    code = add_text(part, &extent, final, err);
    if (code == BERTH_OK) {
        code = add_string(part, "language", row->wish.language, strlen(row->wish.language), err);
    }
    if (code == BERTH_OK) {
        code = berth_part_add(part, "duration", BERTH_DTYPE_FP64, &one, 1, sizeof(double),
                              &duration, err);
    }
    if (code == BERTH_OK) {
        double seconds = (double)row->audio.count / BERTH_MEL_RATE;
        memcpy(duration, &seconds, sizeof(seconds));
        code = add_segments(part, &extent, err);
    }
    if (code == BERTH_OK) {
        code = add_all_words(part, &extent, err);
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
