/* parakeet_row.c - the life of a row between runs.
 *
 * Tokens of all windows stand in one list. What lies before the overlap with the next window will
 * not change: of that, all segments but the last are committed, and go out as a part.
 */
#include "engine/parakeet/parakeet_row.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "model/languages.h"

#define ARENA_BYTES_MAX (256U << 20)
#define PLAN_WINDOWS 4 /* silent ones passed over in one call: a ms or two */
#define TOKENS_FIRST 256U

static enum berth_code read_wish(struct berth_parakeet_row *row, struct berth_err *err);
static enum berth_code read_language(struct berth_parakeet_row *row, struct berth_err *err);
static enum berth_code make_room(struct berth_parakeet_row *row, size_t more,
                                 struct berth_err *err);
static enum berth_code append(struct berth_parakeet_row *row,
                              const struct berth_parakeet_window *window,
                              const struct berth_parakeet_tokens *tokens, uint32_t index,
                              struct berth_err *err);
static enum berth_code commit(struct berth_parakeet_row *row, size_t settled, bool all,
                              struct berth_err *err);

enum berth_code berth_parakeet_row_init(struct berth_parakeet_row *row,
                                        const struct berth_parakeet_base *base,
                                        struct berth_request *request, struct berth_err *err)
{
    memset(row, 0, sizeof(*row));
    row->base = base;
    row->request = request;
    BERTH_TRY(berth_speech_audio_read(request, &row->audio, err));
    BERTH_TRY(read_language(row, err));
    BERTH_TRY(read_wish(row, err));
    berth_arena_init(&row->arena, ARENA_BYTES_MAX);
    row->live = true;
    return BERTH_OK;
}

void berth_parakeet_row_finish(struct berth_parakeet_row *row)
{
    berth_free(row->tokens);
    berth_free(row->seeks);
    berth_arena_finish(&row->arena);
    memset(row, 0, sizeof(*row));
}

/* --- what is asked --- */

static bool lists(const char *languages, const char *code)
{
    size_t length = strlen(code);
    for (const char *at = languages; *at != '\0';) {
        size_t item = strcspn(at, ",");
        if (item == length && memcmp(at, code, item) == 0) {
            return true;
        }
        at += at[item] == ',' ? item + 1 : item;
    }
    return false;
}

/* A model of one language is asked for that one. One of several finds out by itself and does not
 * say which: what the client names comes back as the answer's language. */
static enum berth_code read_language(struct berth_parakeet_row *row, struct berth_err *err)
{
    const char *text = berth_params_string(&row->request->params, "language", "");
    const char *languages = row->base->languages;
    bool single = strchr(languages, ',') == NULL;
    row->language = single ? languages : "";
    if (text[0] == '\0' || strcmp(text, "auto") == 0) {
        return BERTH_OK;
    }
    const char *code = berth_language_code(text);
    if (code == NULL) {
        return berth_fail_field(err, BERTH_INVALID, "language",
                                "'%.40s' is no language this server knows; give a code such as en",
                                text);
    }
    if (!lists(languages, code)) {
        const char *only = single ? berth_language_name(languages) : NULL;
        return only != NULL && strcmp(languages, "en") == 0
                   ? berth_fail_field(err, BERTH_UNSUPPORTED, "language",
                                      "this model understands English only, not %s",
                                      berth_language_name(code))
                   : berth_fail_field(err, BERTH_UNSUPPORTED, "language",
                                      "this model does not know %s", berth_language_name(code));
    }
    row->language = code;
    return BERTH_OK;
}

static enum berth_code read_wish(struct berth_parakeet_row *row, struct berth_err *err)
{
    const struct berth_params *params = &row->request->params;
    const char *task = berth_params_string(params, "task", "transcribe");
    const char *prompt = berth_params_string(params, "prompt", "");
    double temperature = berth_params_real(params, "temperature", 0);
    size_t prompt_length = strlen(prompt);
    row->words = berth_params_bool(params, "word_timestamps", false);
    if (strcmp(task, "translate") == 0) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "task",
                                "this model transcribes and does not translate");
    }
    if (strcmp(task, "transcribe") != 0) {
        return berth_fail_field(err, BERTH_INVALID, "task",
                                "'%.40s' is neither transcribe nor translate", task);
    }
    if (!(temperature >= 0 && temperature <= 2)) {
        return berth_fail_field(err, BERTH_INVALID, "temperature",
                                "a temperature is a number from 0 to 2");
    }
    if (berth_params_int(params, "beam_size", 1) != 1) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "beam_size",
                                "only greedy decoding (beam_size 1) is served");
    }
    (void)berth_text_trim(prompt, &prompt_length);
    if (prompt_length > 0) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "prompt",
                                "this model takes no prompt: what came before does not change "
                                "what it hears");
    }
    return BERTH_OK;
}

/* --- windows --- */

void berth_parakeet_row_plan(struct berth_parakeet_row *row)
{
    for (uint32_t i = 0; i < PLAN_WINDOWS && !row->planned && row->next.next < row->audio.count;
         i++) {
        berth_parakeet_window_find(&row->audio, row->next.next, row->base->window_samples,
                                   &row->next);
        row->planned = !row->next.silent &&
                       berth_parakeet_lengths_of((uint32_t)row->next.count).features > 1;
    }
}

bool berth_parakeet_row_ended(const struct berth_parakeet_row *row)
{
    return !row->planned && row->in_flight == 0 && row->next.next >= row->audio.count;
}

void berth_parakeet_row_take(struct berth_parakeet_row *row)
{
    row->planned = false;
    row->in_flight++;
}

enum berth_code berth_parakeet_row_add(struct berth_parakeet_row *row,
                                       const struct berth_parakeet_window *window,
                                       const struct berth_parakeet_tokens *tokens, uint32_t index,
                                       struct berth_err *err)
{
    const size_t hop = BERTH_SPEECH_RATE / 100;
    size_t before = row->token_count;
    BERTH_TRY(append(row, window, tokens, index, err));
    if (window->start < row->heard_end) {
        size_t keep = 0;
        size_t skip = 0;
        struct berth_parakeet_seam seam = {
            .left = row->tokens + row->committed, .left_count = before - row->committed,
            .right = row->tokens + before, .right_count = row->token_count - before,
            .begin = (int64_t)(window->start / BERTH_PARAKEET_FRAME_SAMPLES),
            .end = (int64_t)(row->heard_end / BERTH_PARAKEET_FRAME_SAMPLES)};
        berth_parakeet_seam_join(row->base->pieces, &seam, &keep, &skip);
        size_t from = before + skip;
        before = row->committed + keep;
        memmove(row->tokens + before, row->tokens + from,
                (row->token_count - from) * sizeof(*row->tokens));
        row->token_count = before + row->token_count - from;
    }
    for (size_t i = before; i < row->token_count; i++) {
        row->seeks[i] = (int32_t)(window->start / hop);
        if (i > 0 && row->tokens[i].frame < row->tokens[i - 1].frame) {
            row->tokens[i].frame = row->tokens[i - 1].frame; /* time never goes back */
        }
    }
    row->heard_end = window->start + window->count;
    row->in_flight--;
    size_t settled = row->token_count;
    const int64_t open = (int64_t)(window->next / BERTH_PARAKEET_FRAME_SAMPLES);
    while (window->next < row->heard_end && settled > row->committed &&
           row->tokens[settled - 1].frame >= open) {
        settled--;
    }
    return commit(row, settled, false, err);
}

enum berth_code berth_parakeet_row_end(struct berth_parakeet_row *row, struct berth_err *err)
{
    return commit(row, row->token_count, true, err);
}

static enum berth_code append(struct berth_parakeet_row *row,
                              const struct berth_parakeet_window *window,
                              const struct berth_parakeet_tokens *tokens, uint32_t index,
                              struct berth_err *err)
{
    const int64_t first = (int64_t)(window->start / BERTH_PARAKEET_FRAME_SAMPLES);
    const size_t base = (size_t)index * tokens->capacity;
    if (tokens->count[index] < 0) {
        return berth_fail(err, BERTH_INTERNAL,
                          "a value of the model became no number: its weights or their sums do not "
                          "fit the device's precision");
    }
    const size_t count = (size_t)tokens->count[index];
    if (count >= tokens->capacity) {
        return berth_fail(err, BERTH_INTERNAL,
                          "the model said more than %" PRIu32 " tokens in a window",
                          tokens->capacity - 1);
    }
    BERTH_TRY(make_room(row, count, err));
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(tokens->probability[base + i])) {
            return berth_fail(err, BERTH_INTERNAL, "the model's logits are not numbers");
        }
        row->tokens[row->token_count++] = (struct berth_parakeet_token){
            .id = tokens->token[base + i], .frame = first + tokens->frame[base + i],
            .duration = tokens->duration[base + i], .probability = tokens->probability[base + i]};
    }
    return BERTH_OK;
}

static enum berth_code make_room(struct berth_parakeet_row *row, size_t more,
                                 struct berth_err *err)
{
    const size_t old = row->token_capacity;
    size_t capacity = old == 0 ? TOKENS_FIRST : old;
    while (capacity - row->token_count < more) {
        capacity *= 2;
    }
    if (capacity == old) {
        return BERTH_OK;
    }
    struct berth_parakeet_token *tokens =
        berth_resize(row->tokens, old * sizeof(*tokens), capacity * sizeof(*tokens));
    row->tokens = tokens == NULL ? row->tokens : tokens;
    int32_t *seeks = berth_resize(row->seeks, old * sizeof(*seeks), capacity * sizeof(*seeks));
    row->seeks = seeks == NULL ? row->seeks : seeks;
    if (tokens == NULL || seeks == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a window's tokens");
    }
    row->token_capacity = capacity;
    return BERTH_OK;
}

/* --- segments --- */

static bool copy_words(struct berth_parakeet_row *row, struct berth_speech_said *said,
                       const struct berth_parakeet_transcript *transcript, uint32_t segment)
{
    size_t first = 0;
    while (first < transcript->word_count && transcript->words[first].segment != segment) {
        first++;
    }
    size_t end = first;
    while (end < transcript->word_count && transcript->words[end].segment == segment) {
        end++;
    }
    said->words = berth_arena_alloc(&row->arena, (end - first) * sizeof(*said->words));
    if (said->words == NULL) {
        return false;
    }
    const struct berth_parakeet_segment *from = &transcript->segments[segment];
    for (size_t i = first; i < end; i++) {
        const struct berth_parakeet_word *word = &transcript->words[i];
        said->words[said->word_count++] = (struct berth_speech_word){
            .text = said->text + (word->text - from->text), .text_length = word->text_bytes,
            .start_s = word->start, .end_s = word->end, .probability = word->confidence};
    }
    return true;
}

static bool commit_segment(struct berth_parakeet_row *row,
                           const struct berth_parakeet_transcript *transcript, uint32_t index)
{
    const struct berth_parakeet_segment *segment = &transcript->segments[index];
    const char *bytes = berth_buf_text(&transcript->text) + segment->text;
    const size_t first = row->committed + segment->token;
    size_t trimmed = segment->text_bytes;
    const char *plain = berth_text_trim(bytes, &trimmed);
    struct berth_speech_said *said = berth_arena_alloc(&row->arena, sizeof(*said));
    int32_t *ids = berth_arena_alloc(&row->arena, (segment->token_count + 1) * sizeof(*ids));
    char *text = berth_arena_strndup(&row->arena, bytes, segment->text_bytes);
    if (said == NULL || ids == NULL || text == NULL) {
        return false;
    }
    for (size_t i = 0; i < segment->token_count; i++) {
        ids[i] = row->tokens[first + i].id;
    }
    *said = (struct berth_speech_said){
        .start_s = segment->start, .end_s = segment->end, .text = text,
        .text_length = segment->text_bytes, .avg_logprob = segment->confidence,
        .compression_ratio = berth_speech_compression(plain, trimmed),
        .seek = (size_t)row->seeks[first], .tokens = ids, .token_count = segment->token_count};
    if (row->words && !copy_words(row, said, transcript, index)) {
        return false;
    }
    if (row->said_last == NULL) {
        row->said = said;
    } else {
        row->said_last->next = said;
    }
    row->said_last = said;
    row->unsent = row->unsent == NULL ? said : row->unsent;
    return true;
}

/* Makes segments of the tokens up to `settled`; the last one may go on, and waits unless `all`. */
static enum berth_code commit(struct berth_parakeet_row *row, size_t settled, bool all,
                              struct berth_err *err)
{
    struct berth_parakeet_transcript transcript = {.word_count = 0};
    size_t done = 0;
    const struct berth_parakeet_token *fresh = row->tokens == NULL ? NULL
                                                                   : row->tokens + row->committed;
    struct berth_parakeet_heard heard = {.tokens = fresh,
                                         .count = settled - row->committed,
                                         .seconds = (double)row->audio.count / BERTH_SPEECH_RATE};
    BERTH_TRY(berth_parakeet_transcribe(row->base->pieces, &heard, &transcript, err));
    enum berth_code code = BERTH_OK;
    for (uint32_t i = 0; i + (all ? 0U : 1U) < transcript.segment_count && code == BERTH_OK; i++) {
        if (!commit_segment(row, &transcript, i)) {
            code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for a segment");
        }
        done = transcript.segments[i].token + transcript.segments[i].token_count;
    }
    row->committed += code == BERTH_OK ? done : 0;
    berth_parakeet_transcript_drop(&transcript);
    return code;
}

enum berth_code berth_parakeet_row_part(struct berth_parakeet_row *row, bool final,
                                        struct berth_part **out, struct berth_err *err)
{
    struct berth_speech_answer answer = {
        .request = row->request, .from = final ? row->said : row->unsent,
        .first = row->unsent == row->said, .final = final, .language = row->language,
        .seconds = (double)row->audio.count / BERTH_SPEECH_RATE};
    BERTH_TRY(berth_speech_part(&answer, out, err));
    row->unsent = NULL;
    return BERTH_OK;
}
