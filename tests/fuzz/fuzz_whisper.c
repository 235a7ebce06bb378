/* fuzz_whisper.c - any bytes as a Whisper folder's JSON files: refused, or a vocabulary that gives
 * back every text it takes, and a config whose tokens are the vocabulary's, so that the rules mask
 * nothing outside of it.
 *
 * Input: the files, a NUL behind each, then a text and tokens. */
#include <math.h>

#include "fuzz_folder.h"

#include "engine/whisper/rules.h"
#include "engine/whisper/tokens.h"
#include "engine/whisper/whisper_config.h"

#define TEXT_MAX 2048
#define VOCAB_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json"};

static void judge_refusal(enum berth_code code, const struct berth_err *err)
{
    BERTH_ASSERT(code == BERTH_INVALID || code == BERTH_UNSUPPORTED || code == BERTH_NOT_FOUND ||
                 code == BERTH_TOO_LARGE);
    BERTH_ASSERT(err->code == code && err->msg[0] != '\0');
}

/* What is encoded decodes to the text, without the bytes that no token of the vocabulary says. */
static void judge_tokens(const struct berth_tokens *tokens, const uint8_t *text, size_t length)
{
    static int32_t ids[TEXT_MAX];
    struct berth_buf back = {0};
    size_t at = 0;
    length = length < TEXT_MAX ? length : TEXT_MAX;
    size_t count = berth_tokens_encode(tokens, (const char *)text, length, ids);
    BERTH_ASSERT(count <= length);
    berth_tokens_decode(tokens, ids, count, INT32_MAX, &back);
    BERTH_ASSERT(berth_buf_ok(&back) && back.length <= length);
    for (size_t i = 0; i < back.length; i++, at++) {
        while (at < length && text[at] != (uint8_t)back.bytes[i]) {
            at++;
        }
        BERTH_ASSERT(at < length);
    }
    berth_buf_finish(&back);
}

static void judge_config(const struct berth_whisper_config *config)
{
    const int32_t ids[] = {config->eot,       config->sot,           config->previous,
                           config->no_speech, config->no_timestamps, config->first_time};
    for (size_t i = 0; i < BERTH_COUNT_OF(ids); i++) {
        BERTH_ASSERT(ids[i] >= 0 && (uint32_t)ids[i] < config->vocab);
    }
    if (config->multilingual) {
        BERTH_ASSERT(config->transcribe >= 0 && (uint32_t)config->transcribe < config->vocab);
        BERTH_ASSERT(config->translate >= 0 && (uint32_t)config->translate < config->vocab);
        BERTH_ASSERT(config->language_count > 0);
    }
    for (size_t i = 0; i < config->language_count; i++) {
        int32_t id = config->languages[i].id;
        BERTH_ASSERT(id >= 0 && (uint32_t)id < config->vocab);
        BERTH_ASSERT(berth_whisper_language_id(config, config->languages[i].code) == id);
        BERTH_ASSERT(berth_whisper_language_code(config, id) != NULL);
    }
    BERTH_ASSERT(config->heads > 0 && config->width % config->heads == 0);
    BERTH_ASSERT(config->positions >= 32 && config->mel_bins > 0);
    BERTH_ASSERT(config->first_time_limit >= 0);
}

/* The sanitizer tells of what lies outside of the logits. */
static void judge_rules(const struct berth_whisper_config *config, const uint8_t *bytes,
                        size_t length)
{
    int32_t said[8];
    uint64_t random = 1;
    struct berth_rules rules = {.config = config, .tokens = said, .timestamps = length % 2 == 0};
    float *logits = config->vocab > VOCAB_MAX ? NULL : malloc(config->vocab * sizeof(*logits));
    if (logits == NULL) {
        return;
    }
    for (; rules.token_count < BERTH_COUNT_OF(said) && length >= 2; bytes += 2, length -= 2) {
        uint32_t token = (uint32_t)bytes[0] << 8 | bytes[1];
        said[rules.token_count++] = (int32_t)(token % config->vocab);
    }
    for (uint32_t i = 0; i < config->vocab; i++) {
        logits[i] = length == 0 ? 0 : (float)(bytes[0] * i % 251) / 8;
    }
    berth_rules_mask(&rules, logits);
    struct berth_pick pick = berth_rules_pick(logits, config->vocab, length > 0, &random);
    BERTH_ASSERT(pick.token >= -1 && pick.token < (int32_t)config->vocab);
    BERTH_ASSERT(pick.token < 0 || isfinite(logits[pick.token]));
    int32_t language = berth_rules_language(config, logits);
    BERTH_ASSERT((language < 0) == (config->language_count == 0));
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static char path[64];
    struct berth_tokens *tokens = NULL;
    struct berth_whisper_config config = {0};
    struct berth_err err = {0};
    if (folder.count == 0) {
        folder_make(names, BERTH_COUNT_OF(names));
        snprintf(path, sizeof(path), "%s/tokenizer.json", folder.path);
    }
    folder_fill(&bytes, &length);
    enum berth_code code = berth_tokens_load(path, &tokens, &err);
    if (code != BERTH_OK) {
        judge_refusal(code, &err);
        return 0;
    }
    judge_tokens(tokens, bytes, length);
    code = berth_whisper_config_read(folder.path, tokens, &config, &err);
    if (code == BERTH_OK) {
        judge_config(&config);
        judge_rules(&config, bytes, length);
    } else {
        judge_refusal(code, &err);
    }
    berth_whisper_config_finish(&config);
    berth_tokens_destroy(tokens);
    return 0;
}
