/* random_parakeet.c - see random_parakeet.h.
 *
 * Values come from a counter, not from a state: element i of tensor t is a hash of (seed, t, i), so
 * that any part can be made by itself, and quickly. Matrices are uniform with a variance of about
 * 1 / inputs, norms close to the identity. Three things keep 24 layers of that alive:
 *   - weights of a row sum to 0, four and four (taps: all nine). Else the means that SiLU and ReLU
 *     leave grow from layer to layer until all frames are the same vector;
 *   - a block adds a quarter to a half of what came in, so that rounding does not grow: with blocks
 *     as large as their input, transformers in bf16 was 0.41 away from float32, now it is 0.04;
 *   - queries and keys are a little larger, so that attention is no plain mean over time.
 *
 * The decoder's constants decide how often it steps. They were found for shape 0.6b, seed 1:
 * encoder_projector's outputs for berth_random_clip's seeds 1 to 16, 10 s each, from transformers
 * in float32 on a CPU; the decoder in numpy over them, constants drawn at random, and the best by
 * hand from there. A large forget bias and large duration weights make a row's pace last, so that
 * rows differ: the 16 clips take 47 steps on average, 40 to 59, four in five of them tokens.
 * Another seed is another model, with another number of steps.
 */
#include "cli/random_parakeet.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "engine/parakeet/weights_plan.h"

#define BLOCK_ELEMENTS (1U << 18)
#define PATH_BYTES_MAX 4096
#define PAD_TOKEN 2

#define FORGET_BIAS 3.0F
#define DURATION_GAIN 2.0F
#define BLANK_BIAS 1.9F
static const float duration_biases[] = {-4, -0.4F, 0.6F, 0.3F, 1.3F};

struct shape {
    const char *name;
    struct berth_parakeet_config config;
};

/* Uniform in mean +- spread; by_inputs: spread is in units of sqrt(3 / inputs of a row). */
struct law {
    const char *part; /* of the tensor's name; the first row that fits counts */
    float mean, spread;
    bool by_inputs;
};

static const struct shape shapes[] = {
    {.name = "0.6b",
     .config = {.head = BERTH_PARAKEET_TDT,
                .mels = 128,
                .hidden = 1024,
                .heads = 8,
                .head_dim = 128,
                .layers = 24,
                .inner = 4096,
                .kernel = 9,
                .channels = 256,
                .vocabulary = 1025,
                .blank = 1024,
                .prediction = 640,
                .prediction_layers = 2,
                .durations = {0, 1, 2, 3, 4},
                .duration_count = 5,
                .symbols_max = 10,
                .fft = 512,
                .window = 400,
                .preemphasis = 0.97F}},
    {.name = "nano",
     .config = {.head = BERTH_PARAKEET_TDT,
                .mels = 128,
                .hidden = 256,
                .heads = 4,
                .head_dim = 64,
                .layers = 6,
                .inner = 1024,
                .kernel = 9,
                .channels = 128,
                .vocabulary = 513,
                .blank = 512,
                .prediction = 320,
                .prediction_layers = 2,
                .durations = {0, 1, 2, 3, 4},
                .duration_count = 5,
                .symbols_max = 10,
                .fft = 512,
                .window = 400,
                .preemphasis = 0.97F}},
};

static const struct law laws[] = {
    {"running_mean", 0, 0.1F, false},
    {"running_var", 1, 0.2F, false},
    {"norm.weight", 1, 0.1F, false},
    {"norm.bias", 0, 0.1F, false},
    {"norm_feed_forward1.weight", 1, 0.1F, false},
    {"norm_self_att.weight", 1, 0.1F, false},
    {"norm_conv.weight", 1, 0.1F, false},
    {"norm_feed_forward2.weight", 1, 0.1F, false},
    {"norm_out.weight", 1, 0.1F, false},
    {"bias_u", 0, 0.1F, false},
    {"bias_v", 0, 0.1F, false},
    {"embedding.weight", 0, 1, false},
    {"subsampling.linear.weight", 0, 10, true},
    {"q_proj.weight", 0, 1.2F, true},
    {"k_proj.weight", 0, 1.2F, true},
    {"o_proj.weight", 0, 0.4F, true},
    {"pointwise_conv2.weight", 0, 1, true},
    {"linear2.weight", 0, 0.4F, true},
    {".weight", 0, 1, true},
    {"", 0, 0.05F, false}, /* all other biases */
};

struct writer {
    const struct berth_parakeet_config *config;
    uint64_t seed;
    FILE *file;
    uint16_t *block;
    char path[PATH_BYTES_MAX];
};

static enum berth_code texts_write(const char *folder, const struct berth_parakeet_config *config,
                                   struct berth_err *err);
static void config_text(const struct berth_parakeet_config *config, struct berth_buf *out);
static void generation_text(const struct berth_parakeet_config *config, struct berth_buf *out);
static void preprocessor_text(const struct berth_parakeet_config *config, struct berth_buf *out);
static void tokenizer_text(const struct berth_parakeet_config *config, struct berth_buf *out);
static void tokenizer_config_text(const struct berth_parakeet_config *config,
                                  struct berth_buf *out);
static enum berth_code text_write(const char *folder, const char *name,
                                  const struct berth_buf *text, struct berth_err *err);
static enum berth_code weights_write(const char *folder, const struct berth_parakeet_config *config,
                                     uint64_t seed, struct berth_err *err);
static void header_text(const struct berth_parakeet_config *config, struct berth_buf *out);
static bool tensor_write(struct writer *writer, const struct berth_parakeet_planned *planned,
                         uint64_t key);
static struct law law_of(const struct berth_parakeet_planned *planned);
static void fill(const struct law *law, uint64_t key, uint64_t start, size_t count, uint16_t *out);
static void taps_adjust(const struct berth_parakeet_planned *planned, uint16_t *block);
static void decoder_adjust(const struct berth_parakeet_config *config,
                           const struct berth_parakeet_planned *planned, uint64_t start,
                           size_t count, uint16_t *block);

enum berth_code berth_random_parakeet_write(const char *folder, const char *shape, uint64_t seed,
                                            struct berth_err *err)
{
    const struct berth_parakeet_config *config = berth_random_parakeet_config(shape);
    if (config == NULL) {
        return berth_cli_misuse(err, "there is no shape '%.32s': 0.6b, nano", shape);
    }
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot make %s: %s", folder, strerror(errno));
    }
    BERTH_TRY(texts_write(folder, config, err));
    return weights_write(folder, config, seed, err);
}

const struct berth_parakeet_config *berth_random_parakeet_config(const char *shape)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(shapes); i++) {
        if (strcmp(shape, shapes[i].name) == 0) {
            return &shapes[i].config;
        }
    }
    return NULL;
}

/* --- the JSON files --- */

static enum berth_code texts_write(const char *folder, const struct berth_parakeet_config *config,
                                   struct berth_err *err)
{
    static const struct {
        const char *name;
        void (*text)(const struct berth_parakeet_config *config, struct berth_buf *out);
    } files[] = {
        {"config.json", config_text},
        {"generation_config.json", generation_text},
        {"preprocessor_config.json", preprocessor_text},
        {"tokenizer.json", tokenizer_text},
        {"tokenizer_config.json", tokenizer_config_text},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(files); i++) {
        struct berth_buf text = {0};
        files[i].text(config, &text);
        enum berth_code code = text_write(folder, files[i].name, &text, err);
        berth_buf_finish(&text);
        BERTH_TRY(code);
    }
    return BERTH_OK;
}

static void config_text(const struct berth_parakeet_config *config, struct berth_buf *out)
{
    berth_buf_printf(out,
                     "{\n  \"architectures\": [\"ParakeetForTDT\"],\n"
                     "  \"model_type\": \"parakeet_tdt\",\n  \"dtype\": \"bfloat16\",\n"
                     "  \"blank_token_id\": %u,\n  \"vocab_size\": %u,\n  \"pad_token_id\": %d,\n"
                     "  \"decoder_hidden_size\": %u,\n  \"num_decoder_layers\": %u,\n"
                     "  \"durations\": [",
                     config->blank, config->vocabulary, PAD_TOKEN, config->prediction,
                     config->prediction_layers);
    for (uint32_t i = 0; i < config->duration_count; i++) {
        berth_buf_printf(out, "%s%u", i == 0 ? "" : ", ", config->durations[i]);
    }
    berth_buf_printf(out,
                     "],\n  \"hidden_act\": \"relu\",\n  \"is_encoder_decoder\": true,\n"
                     "  \"max_symbols_per_step\": %u,\n  \"encoder_config\": {\n"
                     "    \"model_type\": \"parakeet_encoder\",\n    \"hidden_size\": %u,\n"
                     "    \"num_hidden_layers\": %u,\n    \"num_attention_heads\": %u,\n"
                     "    \"num_key_value_heads\": %u,\n    \"intermediate_size\": %u,\n"
                     "    \"conv_kernel_size\": %u,\n    \"num_mel_bins\": %u,\n"
                     "    \"subsampling_conv_channels\": %u,\n",
                     config->symbols_max, config->hidden, config->layers, config->heads,
                     config->heads, config->inner, config->kernel, config->mels, config->channels);
    berth_buf_puts(out, "    \"subsampling_factor\": 8,\n"
                        "    \"subsampling_conv_kernel_size\": 3,\n"
                        "    \"subsampling_conv_stride\": 2,\n    \"hidden_act\": \"silu\",\n"
                        "    \"max_position_embeddings\": 5000,\n    \"attention_bias\": false,\n"
                        "    \"convolution_bias\": false,\n    \"scale_input\": false\n  }\n}\n");
}

/* The joint's last outputs are durations: generate() must not take them for tokens. */
static void generation_text(const struct berth_parakeet_config *config, struct berth_buf *out)
{
    berth_buf_printf(out,
                     "{\n  \"decoder_start_token_id\": %u,\n  \"bos_token_id\": %u,\n"
                     "  \"pad_token_id\": %d,\n  \"suppress_tokens\": [",
                     config->blank, config->blank, PAD_TOKEN);
    for (uint32_t i = 0; i < config->duration_count; i++) {
        berth_buf_printf(out, "%s%u", i == 0 ? "" : ", ", config->vocabulary + i);
    }
    berth_buf_puts(out, "]\n}\n");
}

static void preprocessor_text(const struct berth_parakeet_config *config, struct berth_buf *out)
{
    berth_buf_printf(out,
                     "{\n  \"feature_extractor_type\": \"ParakeetFeatureExtractor\",\n"
                     "  \"feature_size\": %u,\n  \"hop_length\": 160,\n  \"n_fft\": %u,\n"
                     "  \"win_length\": %u,\n  \"preemphasis\": %.2f,\n"
                     "  \"sampling_rate\": 16000,\n  \"padding_side\": \"right\",\n"
                     "  \"padding_value\": 0.0,\n  \"return_attention_mask\": true\n}\n",
                     config->mels, config->fft, config->window, (double)config->preemphasis);
}

/* Three special tokens, the alphabet, then syllables of a consonant and a vowel, and of two such;
 * every third begins a word. Without merges: it only ever turns tokens into text. */
static void tokenizer_text(const struct berth_parakeet_config *config, struct berth_buf *out)
{
    static const char *const specials[] = {"<unk>", "<s>", "<pad>"};
    static const char consonants[] = "bdfghjklmnprstvwyz";
    static const char vowels[] = "aeiou";
    static const unsigned pairs = (sizeof(consonants) - 1) * (sizeof(vowels) - 1);
    berth_buf_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
                        "  \"padding\": null,\n  \"added_tokens\": [");
    for (uint32_t i = 0; i < BERTH_COUNT_OF(specials); i++) {
        berth_buf_printf(out,
                         "%s\n    {\"id\": %u, \"content\": \"%s\", \"single_word\": false, "
                         "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                         "\"special\": true}",
                         i == 0 ? "" : ",", i, specials[i]);
    }
    static const char space[] = "{\"type\": \"Metaspace\", \"replacement\": \"\u2581\", "
                                "\"prepend_scheme\": \"always\", \"split\": true}";
    berth_buf_printf(out,
                     "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": %s,\n"
                     "  \"post_processor\": null,\n  \"decoder\": %s,\n"
                     "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": "
                     "\"<unk>\", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": "
                     "null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": "
                     "false, \"vocab\": {",
                     space, space);
    for (uint32_t i = 0; i < config->blank; i++) {
        berth_buf_puts(out, i == 0 ? "\n" : ",\n");
        if (i < BERTH_COUNT_OF(specials)) {
            berth_buf_printf(out, "    \"%s\": %u", specials[i], i);
            continue;
        }
        uint32_t at = i - (uint32_t)BERTH_COUNT_OF(specials);
        uint32_t pair = at % pairs;
        uint32_t round = at / pairs;
        berth_buf_printf(out, "    \"%s%c%c", at % 3 == 0 ? "\u2581" : "",
                         consonants[pair % (sizeof(consonants) - 1)],
                         vowels[pair / (sizeof(consonants) - 1)]);
        if (round > 0) {
            berth_buf_printf(out, "%c%c", consonants[(round - 1) % (sizeof(consonants) - 1)],
                             vowels[(round - 1) / (sizeof(consonants) - 1)]);
        }
        berth_buf_printf(out, "\": %u", i);
    }
    berth_buf_puts(out, "\n  }, \"merges\": []}\n}\n");
}

static void tokenizer_config_text(const struct berth_parakeet_config *config, struct berth_buf *out)
{
    berth_buf_puts(out, "{\n  \"processor_class\": \"ParakeetProcessor\",\n"
                        "  \"tokenizer_class\": \"ParakeetTokenizer\",\n"
                        "  \"unk_token\": \"<unk>\",\n  \"pad_token\": \"<pad>\"\n}\n");
}

static enum berth_code text_write(const char *folder, const char *name,
                                  const struct berth_buf *text, struct berth_err *err)
{
    char path[PATH_BYTES_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return berth_fail(err, BERTH_INVALID, "the path of %s is too long", name);
    }
    if (!berth_buf_ok(text)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", name);
    }
    FILE *file = fopen(path, "wb");
    bool written = file != NULL && fwrite(text->bytes, 1, text->length, file) == text->length;
    if (file != NULL && fclose(file) != 0) {
        written = false;
    }
    return written
               ? BERTH_OK
               : berth_fail(err, BERTH_UNAVAILABLE, "cannot write %s: %s", path, strerror(errno));
}

/* --- the weights --- */

static enum berth_code weights_write(const char *folder, const struct berth_parakeet_config *config,
                                     uint64_t seed, struct berth_err *err)
{
    struct berth_parakeet_plan plan = {.config = config};
    struct berth_parakeet_planned planned;
    struct writer writer = {.config = config, .seed = seed};
    struct berth_buf header = {0};
    uint64_t key = 0;
    bool written = false;
    int length = snprintf(writer.path, sizeof(writer.path), "%s/model.safetensors", folder);
    if (length < 0 || (size_t)length >= sizeof(writer.path)) {
        return berth_fail(err, BERTH_INVALID, "the path of the weights is too long");
    }
    header_text(config, &header);
    writer.block = berth_alloc(BLOCK_ELEMENTS * sizeof(*writer.block));
    if (!berth_buf_ok(&header) || writer.block == NULL) {
        berth_buf_finish(&header);
        berth_free(writer.block);
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to make weights");
    }
    writer.file = fopen(writer.path, "wb");
    if (writer.file != NULL) {
        written = fwrite(header.bytes, 1, header.length, writer.file) == header.length;
        while (written && berth_parakeet_plan_next(&plan, &planned)) {
            written = tensor_write(&writer, &planned, key++);
        }
        written = fclose(writer.file) == 0 && written;
    }
    berth_buf_finish(&header);
    berth_free(writer.block);
    return written ? BERTH_OK
                   : berth_fail(err, BERTH_UNAVAILABLE, "cannot write %s: %s", writer.path,
                                strerror(errno));
}

/* With its length before it, and the batch norms' counters, which real files have, behind it. */
static void header_text(const struct berth_parakeet_config *config, struct berth_buf *out)
{
    struct berth_parakeet_plan plan = {.config = config};
    struct berth_parakeet_planned planned;
    uint64_t at = 0;
    uint64_t counter = 1;
    char prefix[sizeof(uint64_t)] = {0};
    berth_buf_append(out, prefix, sizeof(prefix));
    berth_buf_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < config->layers; i++) {
        berth_buf_printf(out,
                         ",\"encoder.layers.%u.conv.norm.num_batches_tracked\":{\"dtype\":\"I64\","
                         "\"shape\":[],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                         i, at, at + sizeof(counter));
        at += sizeof(counter);
    }
    while (berth_parakeet_plan_next(&plan, &planned)) {
        uint64_t end = at + planned.elements * sizeof(uint16_t);
        berth_buf_printf(out, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", planned.name);
        for (size_t i = 0; i < planned.rank; i++) {
            berth_buf_printf(out, "%s%u", i == 0 ? "" : ",", planned.dims[i]);
        }
        berth_buf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, end);
        at = end;
    }
    berth_buf_puts(out, "}");
    while (out->length % sizeof(uint64_t) != 0) {
        berth_buf_puts(out, " ");
    }
    if (berth_buf_ok(out)) {
        for (size_t i = 0; i < sizeof(prefix); i++) {
            out->bytes[i] = (char)((out->length - sizeof(prefix)) >> (8 * i));
        }
    }
    for (uint32_t i = 0; i < config->layers; i++) {
        char bytes[sizeof(counter)] = {1};
        berth_buf_append(out, bytes, sizeof(bytes));
    }
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
    return value ^ value >> 31;
}

static bool tensor_write(struct writer *writer, const struct berth_parakeet_planned *planned,
                         uint64_t key)
{
    struct law law = law_of(planned);
    uint64_t stream = mix(mix(writer->seed) + key);
    for (uint64_t start = 0; start < planned->elements; start += BLOCK_ELEMENTS) {
        uint64_t left = planned->elements - start;
        size_t count = left < BLOCK_ELEMENTS ? (size_t)left : BLOCK_ELEMENTS;
        fill(&law, stream, start, count, writer->block);
        if (planned->form == BERTH_PARAKEET_FORM_TAPS ||
            planned->form == BERTH_PARAKEET_FORM_CONV) {
            taps_adjust(planned, writer->block);
        }
        decoder_adjust(writer->config, planned, start, count, writer->block);
        if (fwrite(writer->block, sizeof(*writer->block), count, writer->file) != count) {
            return false;
        }
    }
    return true;
}

static struct law law_of(const struct berth_parakeet_planned *planned)
{
    size_t i = 0;
    while (strstr(planned->name, laws[i].part) == NULL) {
        i++; /* the last one fits all */
    }
    struct law law = laws[i];
    if (law.by_inputs) {
        law.spread *= sqrtf(3.0F / (float)(planned->elements / planned->dims[0]));
    }
    return law;
}

static uint16_t bfloat_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

static float float_of(uint16_t bfloat)
{
    float value;
    uint32_t bits = (uint32_t)bfloat << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* One hash makes four values. Where the law is by inputs their sum is 0, see above. start is a
 * multiple of 4. */
static void fill(const struct law *law, uint64_t key, uint64_t start, size_t count, uint16_t *out)
{
    float scale = law->spread / 32768.0F * (law->by_inputs ? 1.1547005F : 1); /* sqrt(4 / 3) */
    for (size_t i = 0; i < count; i += 4) {
        uint64_t hash = mix(key + (start + i) / 4 * UINT64_C(0x9E3779B97F4A7C15));
        float values[4];
        float mean = 0;
        for (size_t j = 0; j < 4; j++) {
            values[j] = (float)(int16_t)(hash >> (16 * j));
            mean += values[j] / 4;
        }
        for (size_t j = 0; j < 4 && i + j < count; j++) {
            float value = law->by_inputs ? values[j] - mean : values[j];
            out[i + j] = bfloat_of(law->mean + scale * value);
        }
    }
}

/* Rows of taps, too, have the sum 0. The whole tensor is in the block. */
static void taps_adjust(const struct berth_parakeet_planned *planned, uint16_t *block)
{
    size_t taps = (size_t)planned->elements / planned->dims[0];
    for (size_t row = 0; row < planned->dims[0]; row++) {
        float mean = 0;
        for (size_t i = 0; i < taps; i++) {
            mean += float_of(block[row * taps + i]) / (float)taps;
        }
        for (size_t i = 0; i < taps; i++) {
            block[row * taps + i] = bfloat_of(float_of(block[row * taps + i]) - mean);
        }
    }
}

/* Adds the decoder's constants to what was drawn. */
static void decoder_adjust(const struct berth_parakeet_config *config,
                           const struct berth_parakeet_planned *planned, uint64_t start,
                           size_t count, uint16_t *block)
{
    bool forget = planned->form == BERTH_PARAKEET_FORM_LSTM_BIAS;
    bool weight = strcmp(planned->name, "joint.head.weight") == 0;
    bool bias = strcmp(planned->name, "joint.head.bias") == 0;
    for (size_t i = 0; (forget || weight || bias) && i < count; i++) {
        uint64_t at = start + i;
        float value = float_of(block[i]);
        if (forget && at / config->prediction == 1) {
            value += FORGET_BIAS; /* gates are i, f, g, o */
        } else if (weight && at / config->prediction >= config->vocabulary) {
            value *= DURATION_GAIN;
        } else if (bias && at == config->blank) {
            value += BLANK_BIAS;
        } else if (bias && at >= config->vocabulary) {
            value += duration_biases[at - config->vocabulary];
        }
        block[i] = bfloat_of(value);
    }
}
