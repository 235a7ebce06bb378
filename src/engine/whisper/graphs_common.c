/* graphs_common.c - the export that most Whisper ONNX folders on the Hub have.
 *
 * encoder_model: input_features -> last_hidden_state. The first decoder call of a sequence takes
 * the whole prompt and the encoder's output and brings forth all caches; later calls take one token
 * and the caches, and bring forth longer ones. Merged files do both, told apart by
 * use_cache_branch; their later calls return encoder caches that are not to be used, so those of
 * the first call are kept. Caches stay where ONNX Runtime put them and go round without a copy.
 * Nothing says how long each row of a batch is, so every row is a call of its own.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/whisper/graphs_forms.h"
#include "engine/whisper/mel.h"

#define PATH_BYTES_MAX 4096
#define TOKENS_MAX 512

static enum berth_code find_caches(struct berth_graphs *graphs, struct berth_err *err);
static enum berth_code check_inputs(const struct berth_ort_session *session, const char *name,
                                    struct berth_err *err);

static enum berth_code open_one(struct berth_graphs *graphs, const char *folder, const char *name,
                                struct berth_ort_session **out, struct berth_err *err)
{
    char path[PATH_BYTES_MAX];
    if (!berth_graphs_path(folder, name, path, sizeof(path))) {
        return berth_fail(err, BERTH_NOT_FOUND, "%s/%s is missing", folder, name);
    }
    BERTH_TRY(berth_ort_session_open(path, graphs->meter, out, err));
    return check_inputs(*out, name, err);
}

static enum berth_code common_open(struct berth_graphs *graphs, const char *folder,
                                   struct berth_err *err)
{
    char path[PATH_BYTES_MAX];
    BERTH_TRY(open_one(graphs, folder, "encoder_model.onnx", &graphs->encoder[0], err));
    graphs->piece_count = 1;
    if (berth_ort_session_find_output(graphs->encoder[0], "last_hidden_state") < 0) {
        return berth_fail(err, BERTH_INVALID, "encoder_model.onnx has no last_hidden_state");
    }
    if (berth_graphs_path(folder, "decoder_model_merged.onnx", path, sizeof(path))) {
        BERTH_TRY(
            open_one(graphs, folder, "decoder_model_merged.onnx", &graphs->decoder, err));
        graphs->first = graphs->decoder;
    } else {
        BERTH_TRY(open_one(graphs, folder, "decoder_with_past_model.onnx", &graphs->decoder, err));
        BERTH_TRY(open_one(graphs, folder, "decoder_model.onnx", &graphs->first, err));
    }
    return find_caches(graphs, err);
}

/* Every input must be one that a call gives a value. */
static enum berth_code check_inputs(const struct berth_ort_session *session, const char *name,
                                    struct berth_err *err)
{
    static const char *const known[] = {"input_features", "input_ids", "encoder_hidden_states",
                                        "use_cache_branch", "cache_position"};
    size_t count = 0;
    const struct berth_ort_io *inputs = berth_ort_session_inputs(session, &count);
    for (size_t i = 0; i < count; i++) {
        bool found = strncmp(inputs[i].name, "past_key_values.", 16) == 0;
        for (size_t k = 0; k < BERTH_COUNT_OF(known); k++) {
            found = found || strcmp(inputs[i].name, known[k]) == 0;
        }
        bool real = strcmp(inputs[i].name, "input_features") == 0 ||
                    strcmp(inputs[i].name, "encoder_hidden_states") == 0 ||
                    strncmp(inputs[i].name, "past_", 5) == 0;
        if (!found || (real && inputs[i].dtype != BERTH_DTYPE_FP32)) {
            return berth_fail(err, BERTH_UNSUPPORTED,
                              "%s: input %.80s of type %s is not served; export it in fp32 with "
                              "standard names",
                              name, inputs[i].name, berth_dtype_name(inputs[i].dtype));
        }
    }
    return BERTH_OK;
}

static enum berth_code find_caches(struct berth_graphs *graphs, struct berth_err *err)
{
    size_t count = 0;
    const struct berth_ort_io *inputs = berth_ort_session_inputs(graphs->decoder, &count);
    for (size_t i = 0; i < count; i++) {
        if (strncmp(inputs[i].name, "past_key_values.", 16) != 0) {
            continue;
        }
        if (graphs->cache_count == BERTH_GRAPHS_CACHES_MAX || inputs[i].rank != 4 ||
            strlen(inputs[i].name) >= BERTH_GRAPHS_NAME_MAX) {
            return berth_fail(err, BERTH_INVALID, "the decoder has too many or odd inputs");
        }
        struct berth_graphs_cache *cache = &graphs->caches[graphs->cache_count++];
        (void)snprintf(cache->input, sizeof(cache->input), "%s", inputs[i].name);
        (void)snprintf(cache->output, sizeof(cache->output), "present.%s", inputs[i].name + 16);
        cache->cross = strstr(cache->input, ".encoder.") != NULL;
        if (berth_ort_session_find_output(graphs->first, cache->output) < 0 ||
            (!cache->cross &&
             berth_ort_session_find_output(graphs->decoder, cache->output) < 0)) {
            return berth_fail(err, BERTH_INVALID, "the decoder has no output %s", cache->output);
        }
    }
    if (graphs->cache_count == 0 ||
        berth_ort_session_find_output(graphs->first, "logits") < 0 ||
        berth_ort_session_find_output(graphs->decoder, "logits") < 0 ||
        berth_ort_session_find_input(graphs->first, "encoder_hidden_states") < 0) {
        return berth_fail(err, BERTH_INVALID,
                          "the decoder has no logits, encoder_hidden_states or past_key_values");
    }
    return BERTH_OK;
}

static size_t hidden_count(const struct berth_lanes *lanes)
{
    return (size_t)lanes->graphs->config->frames * lanes->graphs->config->width;
}

static enum berth_code common_lanes_init(struct berth_lanes *lanes, struct berth_err *err)
{
    size_t values = lanes->count * lanes->graphs->cache_count;
    lanes->hidden[0] =
        berth_graphs_take(lanes, lanes->count * hidden_count(lanes) * sizeof(float));
    lanes->values = berth_graphs_take(lanes, values * sizeof(*lanes->values));
    return lanes->hidden[0] == NULL || lanes->values == NULL
               ? berth_fail(err, BERTH_UNAVAILABLE, "no memory for the decoder's caches")
               : BERTH_OK;
}

static void common_release(struct berth_lanes *lanes, uint32_t lane)
{
    size_t count = lanes->graphs->cache_count;
    for (size_t i = 0; i < count; i++) {
        berth_ort_value_clear(&lanes->values[lane * count + i]);
    }
}

static void common_lanes_finish(struct berth_lanes *lanes)
{
    for (uint32_t lane = 0; lanes->values != NULL && lane < lanes->count; lane++) {
        common_release(lanes, lane);
    }
}

static struct berth_ort_value hidden_value(const struct berth_lanes *lanes, const char *name,
                                           uint32_t lane)
{
    const struct berth_whisper_config *config = lanes->graphs->config;
    return (struct berth_ort_value){.name = name,
                                    .dtype = BERTH_DTYPE_FP32,
                                    .rank = 3,
                                    .dims = {1, config->frames, config->width},
                                    .bytes = lanes->hidden[0] + lane * hidden_count(lanes),
                                    .length = hidden_count(lanes) * sizeof(float)};
}

static enum berth_code common_encode(struct berth_lanes *lanes, const struct berth_encode *encode,
                                     struct berth_err *err)
{
    const atomic_bool *flags[] = {encode->cancelled};
    uint32_t bins = lanes->graphs->config->mel_bins;
    lanes->inputs[0] = (struct berth_ort_value){
        .name = "input_features",
        .dtype = BERTH_DTYPE_FP32,
        .rank = 3,
        .dims = {1, bins, BERTH_MEL_WINDOW},
        .bytes = (void *)(uintptr_t)encode->window,
        .length = (size_t)bins * BERTH_MEL_WINDOW * sizeof(float)};
    lanes->outputs[0] = hidden_value(lanes, "last_hidden_state", encode->lane);
    struct berth_ort_run run = {.inputs = lanes->inputs,
                                .input_count = 1,
                                .outputs = lanes->outputs,
                                .output_count = 1,
                                .stop = {.flags = flags,
                                         .flag_count = encode->cancelled == NULL ? 0 : 1}};
    return berth_ort_session_run(lanes->graphs->encoder[0], &run, err);
}

/* What of a call's inputs is not a cache; must stay where it is during the run. */
struct scalars {
    int64_t positions[TOKENS_MAX];
    bool use_cache;
};

/* Adds the inputs that this session has, but for its caches. */
static size_t put_inputs(struct berth_lanes *lanes, const struct berth_decode *decode,
                         const struct berth_ort_session *session, struct scalars *scalars)
{
    size_t count = 0;
    struct berth_ort_value *inputs = lanes->inputs;
    int32_t length = lanes->lengths[decode->lane];
    inputs[count++] = (struct berth_ort_value){
        .name = "input_ids", .dtype = BERTH_DTYPE_INT64, .rank = 2, .dims = {1, decode->steps},
        .bytes = (void *)(uintptr_t)decode->ids, .length = decode->steps * sizeof(int64_t)};
    if (berth_ort_session_find_input(session, "encoder_hidden_states") >= 0) {
        inputs[count++] = hidden_value(lanes, "encoder_hidden_states", decode->lane);
    }
    if (berth_ort_session_find_input(session, "use_cache_branch") >= 0) {
        scalars->use_cache = length > 0;
        inputs[count++] = (struct berth_ort_value){
            .name = "use_cache_branch", .dtype = BERTH_DTYPE_BOOL, .rank = 1, .dims = {1},
            .bytes = &scalars->use_cache, .length = sizeof(bool)};
    }
    if (berth_ort_session_find_input(session, "cache_position") >= 0) {
        for (uint32_t i = 0; i < decode->steps; i++) {
            scalars->positions[i] = length + (int64_t)i;
        }
        inputs[count++] = (struct berth_ort_value){
            .name = "cache_position", .dtype = BERTH_DTYPE_INT64, .rank = 1,
            .dims = {decode->steps}, .bytes = scalars->positions,
            .length = decode->steps * sizeof(int64_t)};
    }
    return count;
}

/* Adds this lane's caches, or empty ones for the first call of a merged decoder. */
static void put_caches(struct berth_lanes *lanes, struct berth_ort_run *run, uint32_t lane,
                       bool first)
{
    const struct berth_graphs *graphs = lanes->graphs;
    const struct berth_whisper_config *config = graphs->config;
    for (size_t i = 0; i < graphs->cache_count; i++) {
        const struct berth_graphs_cache *cache = &graphs->caches[i];
        if (!first || graphs->first == graphs->decoder) {
            struct berth_ort_value value = lanes->values[lane * graphs->cache_count + i];
            if (first) {
                value = (struct berth_ort_value){
                    .dtype = BERTH_DTYPE_FP32, .rank = 4,
                    .dims = {1, config->heads, 0, config->width / config->heads}};
            }
            value.name = cache->input;
            value.owner = NULL;
            lanes->inputs[run->input_count++] = value;
        }
        if (first || !cache->cross) {
            lanes->outputs[run->output_count++] = (struct berth_ort_value){.name = cache->output};
        }
    }
}

/* Takes the caches a run brought forth (outputs from 1 on) in place of the old ones. */
static void keep_caches(struct berth_lanes *lanes, uint32_t lane, bool first)
{
    const struct berth_graphs *graphs = lanes->graphs;
    size_t at = 1;
    for (size_t i = 0; i < graphs->cache_count; i++) {
        if (first || !graphs->caches[i].cross) {
            struct berth_ort_value *value = &lanes->values[lane * graphs->cache_count + i];
            berth_ort_value_clear(value);
            *value = lanes->outputs[at++];
        }
    }
}

static enum berth_code pick_logits(const struct berth_ort_value *logits,
                                   const struct berth_decode *decode, uint32_t vocab,
                                   struct berth_err *err)
{
    if (logits->dtype != BERTH_DTYPE_FP32 || logits->rank != 3 || logits->dims[0] != 1 ||
        logits->dims[1] != decode->steps || logits->dims[2] != (int64_t)vocab) {
        return berth_fail(err, BERTH_INVALID, "the decoder's logits are not FP32 (1, T, %u)",
                          vocab);
    }
    for (size_t i = 0; i < decode->wanted_count; i++) {
        BERTH_ASSERT(decode->wanted[i] < (int64_t)decode->steps);
        memcpy(decode->logits + i * vocab,
               (const float *)logits->bytes + (size_t)decode->wanted[i] * vocab,
               vocab * sizeof(float));
    }
    return BERTH_OK;
}

static enum berth_code common_decode(struct berth_lanes *lanes, const struct berth_decode *decode,
                                     struct berth_err *err)
{
    const struct berth_graphs *graphs = lanes->graphs;
    bool first = lanes->lengths[decode->lane] == 0;
    struct berth_ort_session *session = first ? graphs->first : graphs->decoder;
    struct scalars scalars;
    struct berth_ort_run run = {.inputs = lanes->inputs, .outputs = lanes->outputs};
    BERTH_ASSERT(decode->steps <= TOKENS_MAX && (first || decode->steps == 1));
    run.input_count = put_inputs(lanes, decode, session, &scalars);
    lanes->outputs[run.output_count++] = (struct berth_ort_value){.name = "logits"};
    put_caches(lanes, &run, decode->lane, first);
    BERTH_TRY(berth_ort_session_run(session, &run, err));
    keep_caches(lanes, decode->lane, first);
    enum berth_code code = pick_logits(&lanes->outputs[0], decode, graphs->config->vocab, err);
    berth_ort_value_clear(&lanes->outputs[0]);
    return code;
}

static enum berth_code common_realign(struct berth_lanes *lanes, struct berth_realign *realign,
                                      struct berth_err *err)
{
    return berth_fail(err, BERTH_UNSUPPORTED, "this form of the model gives no word times");
}

static void common_move(struct berth_lanes *lanes, uint32_t from, uint32_t to)
{
    size_t count = lanes->graphs->cache_count;
    common_release(lanes, to);
    memcpy(lanes->hidden[0] + to * hidden_count(lanes),
           lanes->hidden[0] + from * hidden_count(lanes), hidden_count(lanes) * sizeof(float));
    memcpy(&lanes->values[to * count], &lanes->values[from * count],
           count * sizeof(*lanes->values));
    memset(&lanes->values[from * count], 0, count * sizeof(*lanes->values));
}

const struct berth_graphs_form berth_graphs_common = {
    .batch = false,
    .open = common_open,
    .lanes_init = common_lanes_init,
    .lanes_finish = common_lanes_finish,
    .encode = common_encode,
    .decode = common_decode,
    .realign = common_realign,
    .move = common_move,
    .release = common_release,
};
