/* whisper_wish.c - what a request asks of a row: its audio, language, task, prompt. Everything is
 * hostile: what is missing, of another kind or not this model's is an error that names the field.
 */
#include <string.h>

#include "base/buf.h"
#include "engine/whisper/whisper_row.h"
#include "model/languages.h"

#define PROMPT_BYTES_MAX 8192 /* more than 223 tokens ever take of a prompt's end */
#define PROMPT_TOKENS_MAX 223

static enum berth_code read_language(struct berth_whisper_row *row, struct berth_err *err);
static enum berth_code read_wish(struct berth_whisper_row *row, struct berth_err *err);
static enum berth_code read_prompt(struct berth_whisper_row *row, struct berth_err *err);

enum berth_code berth_whisper_row_read(struct berth_whisper_row *row, struct berth_err *err)
{
    BERTH_TRY(berth_speech_audio_read(row->request, &row->audio, err));
    row->content = berth_mel_content(row->audio.count);
    BERTH_TRY(read_language(row, err));
    BERTH_TRY(read_wish(row, err));
    return read_prompt(row, err);
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

/* Keeps the tokens of the prompt's end, behind one space. */
static enum berth_code read_prompt(struct berth_whisper_row *row, struct berth_err *err)
{
    const char *text = berth_params_string(&row->request->params, "prompt", "");
    size_t length = strlen(text);
    text = berth_text_trim(text, &length);
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
