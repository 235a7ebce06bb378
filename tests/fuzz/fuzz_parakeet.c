/* fuzz_parakeet.c - any bytes as a Parakeet folder's JSON files: refused, or a config within its
 * limits and pieces that make a transcript of any tokens, whose text is UTF-8 and whose words and
 * segments lie in order, within the text, the tokens and the recording.
 *
 * Input: the files, a NUL behind each, then four bytes for each token. */
#include <math.h>

#include "fuzz_folder.h"

#include "engine/parakeet/parakeet_config.h"
#include "engine/parakeet/text.h"
#include "engine/parakeet/weights.h"

#define TOKENS_MAX 1024

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char *const names[] = {"config.json", "preprocessor_config.json",
                                    "processor_config.json", "generation_config.json",
                                    "tokenizer.json"};

static bool is_refusal(enum berth_code code, const struct berth_err *err)
{
    BERTH_ASSERT(code == BERTH_INVALID || code == BERTH_UNSUPPORTED || code == BERTH_NOT_FOUND ||
                 code == BERTH_TOO_LARGE);
    BERTH_ASSERT(err->code == code && err->msg[0] != '\0');
    return true;
}

static void judge_config(const struct berth_parakeet_config *config)
{
    BERTH_ASSERT(config->mels == 80 || config->mels == 128);
    BERTH_ASSERT(config->heads > 0 && config->head_dim * config->heads == config->hidden);
    BERTH_ASSERT(config->layers >= 1 && config->layers <= BERTH_PARAKEET_LAYERS_MAX);
    BERTH_ASSERT(config->kernel % 2 == 1 && config->inner > 0 && config->channels > 0);
    BERTH_ASSERT(config->vocabulary > 1 && config->blank < config->vocabulary);
    BERTH_ASSERT(config->symbols_max >= 1 && config->symbols_max <= BERTH_PARAKEET_SYMBOLS_MAX);
    BERTH_ASSERT(config->prediction_layers <= BERTH_PARAKEET_PREDICTION_LAYERS_MAX);
    BERTH_ASSERT((config->prediction == 0) == (config->head == BERTH_PARAKEET_CTC));
    BERTH_ASSERT((config->duration_count > 0) == (config->head == BERTH_PARAKEET_TDT));
    BERTH_ASSERT(config->duration_count <= BERTH_PARAKEET_DURATIONS_MAX);
    BERTH_ASSERT(config->window <= config->fft && config->window > 0);
    BERTH_ASSERT(config->preemphasis >= 0 && config->preemphasis <= 1);
    uint64_t weights = berth_parakeet_weights_bytes(config, BERTH_PARAKEET_F32);
    BERTH_ASSERT(weights > 0 && weights < (uint64_t)1 << 50);
}

static void judge_words(const struct berth_parakeet_transcript *said,
                        const struct berth_parakeet_heard *heard)
{
    const char *text = berth_buf_text(&said->text);
    size_t at = 0;
    double start = 0;
    uint32_t segment = 0;
    BERTH_ASSERT(berth_utf8_valid_length(text, said->text.length) == said->text.length);
    for (size_t i = 0; i < said->word_count; i++) {
        const struct berth_parakeet_word *word = &said->words[i];
        BERTH_ASSERT(word->text == at && word->text_bytes > 0);
        at += word->text_bytes;
        BERTH_ASSERT(word->token < heard->count);
        BERTH_ASSERT(word->start >= start && word->end >= word->start);
        BERTH_ASSERT(word->end <= heard->seconds);
        BERTH_ASSERT(i + 1 == said->word_count || word->end <= word[1].start);
        BERTH_ASSERT(word->confidence > 0 && word->confidence <= 1);
        BERTH_ASSERT(word->segment >= segment && word->segment < said->segment_count);
        segment = word->segment;
        start = word->start;
    }
    BERTH_ASSERT(at == said->text.length);
}

static void judge_segments(const struct berth_parakeet_transcript *said,
                           const struct berth_parakeet_heard *heard)
{
    size_t token = 0, at = 0;
    BERTH_ASSERT((said->segment_count == 0) == (said->word_count == 0));
    for (size_t i = 0; i < said->segment_count; i++) {
        const struct berth_parakeet_segment *segment = &said->segments[i];
        BERTH_ASSERT(segment->text == at && segment->token == token);
        at += segment->text_bytes;
        token += segment->token_count;
        BERTH_ASSERT(segment->token_count > 0 && segment->end >= segment->start);
        BERTH_ASSERT(segment->confidence <= 0 && isfinite(segment->confidence));
    }
    BERTH_ASSERT(said->segment_count == 0 || (token == heard->count && at == said->text.length));
}

static void transcribe(const struct berth_parakeet_pieces *pieces, const uint8_t *bytes,
                       size_t length)
{
    static struct berth_parakeet_token tokens[TOKENS_MAX];
    struct berth_parakeet_transcript said = {.word_count = 0};
    struct berth_parakeet_heard heard = {.tokens = tokens};
    int64_t frame = 0;
    for (; length >= 4 && heard.count < TOKENS_MAX; bytes += 4, length -= 4) {
        frame += bytes[1];
        tokens[heard.count++] = (struct berth_parakeet_token){
            .id = bytes[0] == 255 ? -1 : bytes[0],
            .frame = frame,
            .duration = bytes[2] % 8,
            .probability = bytes[3] == 255 ? NAN : (float)bytes[3] / 254};
    }
    heard.seconds = (double)frame * (length > 0 ? bytes[0] : 128) / 1600; /* not as it ends */
    BERTH_ASSERT(berth_parakeet_transcribe(pieces, &heard, &said, NULL) == BERTH_OK);
    judge_words(&said, &heard);
    judge_segments(&said, &heard);
    berth_parakeet_transcript_drop(&said);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct berth_parakeet_config config = {.vocabulary = 200, .blank = 199};
    struct berth_parakeet_pieces *pieces = NULL;
    struct berth_err err = {0};
    if (folder.count == 0) {
        folder_make(names, BERTH_COUNT_OF(names));
    }
    folder_fill(&bytes, &length);
    enum berth_code code = berth_parakeet_config_read(folder.path, &config, &err);
    if (code == BERTH_OK) {
        judge_config(&config);
    } else {
        (void)is_refusal(code, &err);
        config = (struct berth_parakeet_config){.vocabulary = 200, .blank = 199};
    }
    err = (struct berth_err){0};
    code = berth_parakeet_pieces_read(folder.path, config.vocabulary, config.blank, &pieces, &err);
    if (code == BERTH_OK) {
        transcribe(pieces, bytes, length);
    } else {
        (void)is_refusal(code, &err);
    }
    berth_parakeet_pieces_destroy(pieces);
    return 0;
}
