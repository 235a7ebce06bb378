/* graphs_own.c - berth's own form: encoder in pieces, one decoder step for rows of any age.
 *
 * Encoder piece 0 takes input_features; pieces hand hidden_out to hidden_in; the last one writes
 * cross_* straight into a lane. The decoder takes input_ids (B,T), lengths (B), logit_rows (R) and
 * align, past_* and cross_*; each present_* is bound to the very memory of its past_*, so nothing
 * is copied. Lanes of one cache lie side by side, and a call runs a run of neighbours.
 * Past caches have one lane more than there are rows: there the text of a window is run again for
 * the alignment. dtypes and inner shapes of caches are taken from the session as they are.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/whisper/graphs_forms.h"
#include "engine/whisper/mel.h"

#define PATH_BYTES_MAX 4096

static enum berth_code open_encoder(struct berth_graphs *graphs, const char *folder,
                                    struct berth_err *err);
static enum berth_code find_caches(struct berth_graphs *graphs, struct berth_err *err);
static enum berth_code check_crosses(const struct berth_graphs *graphs, struct berth_err *err);

static enum berth_code own_open(struct berth_graphs *graphs, const char *folder,
                                struct berth_err *err)
{
    static const char *const inputs[] = {"input_ids", "lengths", "logit_rows", "align"};
    char path[PATH_BYTES_MAX];
    BERTH_TRY(open_encoder(graphs, folder, err));
    if (!berth_graphs_path(folder, "decoder.onnx", path, sizeof(path))) {
        return berth_fail(err, BERTH_NOT_FOUND, "%s/decoder.onnx is missing", folder);
    }
    BERTH_TRY(berth_ort_session_open(path, graphs->meter, &graphs->decoder, err));
    for (size_t i = 0; i < BERTH_COUNT_OF(inputs); i++) {
        if (berth_ort_session_find_input(graphs->decoder, inputs[i]) < 0) {
            return berth_fail(err, BERTH_INVALID, "%s has no input %s", path, inputs[i]);
        }
    }
    int logits = berth_ort_session_find_output(graphs->decoder, "logits");
    size_t count = 0;
    const struct berth_ort_io *outputs = berth_ort_session_outputs(graphs->decoder, &count);
    if (logits < 0 || outputs[logits].dtype != BERTH_DTYPE_FP32 || outputs[logits].rank != 2 ||
        outputs[logits].dims[1] != (int64_t)graphs->config->vocab) {
        return berth_fail(err, BERTH_INVALID, "%s: logits are not FP32 (R, %u)", path,
                          graphs->config->vocab);
    }
    graphs->align = graphs->config->aligned &&
                    berth_ort_session_find_output(graphs->decoder, "align_scores") >= 0;
    BERTH_TRY(find_caches(graphs, err));
    return check_crosses(graphs, err);
}

static enum berth_code open_encoder(struct berth_graphs *graphs, const char *folder,
                                    struct berth_err *err)
{
    char path[PATH_BYTES_MAX];
    for (unsigned i = 0; i < BERTH_GRAPHS_PIECES_MAX; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "encoder_%u.onnx", i);
        if (!berth_graphs_path(folder, name, path, sizeof(path))) {
            break;
        }
        BERTH_TRY(berth_ort_session_open(path, graphs->meter, &graphs->encoder[i], err));
        const char *input = i == 0 ? "input_features" : "hidden_in";
        if (berth_ort_session_find_input(graphs->encoder[i], input) < 0) {
            return berth_fail(err, BERTH_INVALID, "%s has no input %s", path, input);
        }
        graphs->piece_count = i + 1;
    }
    for (uint32_t i = 0; i + 1 < graphs->piece_count; i++) {
        if (berth_ort_session_find_output(graphs->encoder[i], "hidden_out") < 0) {
            return berth_fail(err, BERTH_INVALID, "%s/encoder_%u.onnx has no output hidden_out",
                              folder, i);
        }
    }
    return BERTH_OK;
}

/* Bytes of one row: all dims but the first, C being the longest sequence. */
static enum berth_code size_cache(struct berth_graphs_cache *cache, const struct berth_ort_io *io,
                                  uint32_t positions, struct berth_err *err)
{
    size_t bytes = berth_dtype_bytes(io->dtype);
    cache->dtype = io->dtype;
    cache->rank = io->rank;
    for (uint8_t d = 0; d < io->rank; d++) {
        cache->dims[d] = io->dims[d];
        if (d == 2 && !cache->cross && io->dims[d] < 0) {
            cache->dims[d] = positions;
        }
        if (d > 0 && (cache->dims[d] <= 0 ||
                      !berth_mul_size(bytes, (size_t)cache->dims[d], &bytes))) {
            bytes = 0;
        }
    }
    if (bytes == 0 || bytes > (UINT64_C(1) << 33) || io->rank < 2) {
        return berth_fail(err, BERTH_INVALID, "decoder.onnx: input %s has no usable shape",
                          io->name);
    }
    if (!cache->cross && cache->dims[2] < (int64_t)positions) {
        return berth_fail(err, BERTH_INVALID, "decoder.onnx: input %s is too short for %u tokens",
                          io->name, positions);
    }
    cache->row_bytes = bytes;
    return BERTH_OK;
}

static enum berth_code find_caches(struct berth_graphs *graphs, struct berth_err *err)
{
    size_t count = 0;
    const struct berth_ort_io *inputs = berth_ort_session_inputs(graphs->decoder, &count);
    for (size_t i = 0; i < count; i++) {
        bool past = strncmp(inputs[i].name, "past_", 5) == 0;
        bool cross = strncmp(inputs[i].name, "cross_", 6) == 0;
        if (!past && !cross) {
            continue;
        }
        if (graphs->cache_count == BERTH_GRAPHS_CACHES_MAX ||
            strlen(inputs[i].name) + 4 > BERTH_GRAPHS_NAME_MAX ||
            inputs[i].rank < (past ? 3 : 2)) {
            return berth_fail(err, BERTH_INVALID, "decoder.onnx has too many or odd inputs");
        }
        struct berth_graphs_cache *cache = &graphs->caches[graphs->cache_count++];
        cache->cross = cross;
        (void)snprintf(cache->input, sizeof(cache->input), "%s", inputs[i].name);
        (void)snprintf(cache->output, sizeof(cache->output), "%s%s", past ? "present_" : "cross_",
                       inputs[i].name + (past ? 5 : 6));
        if (past && berth_ort_session_find_output(graphs->decoder, cache->output) < 0) {
            return berth_fail(err, BERTH_INVALID, "decoder.onnx has no output %s", cache->output);
        }
        BERTH_TRY(size_cache(cache, &inputs[i], graphs->config->positions, err));
    }
    return BERTH_OK;
}

/* What the last encoder piece writes is what the decoder reads. */
static enum berth_code check_crosses(const struct berth_graphs *graphs, struct berth_err *err)
{
    const struct berth_ort_session *last = graphs->encoder[graphs->piece_count - 1];
    size_t count = 0;
    size_t crosses = 0;
    const struct berth_ort_io *outputs = berth_ort_session_outputs(last, &count);
    for (size_t i = 0; i < graphs->cache_count; i++) {
        const struct berth_graphs_cache *cache = &graphs->caches[i];
        if (!cache->cross) {
            continue;
        }
        int at = berth_ort_session_find_output(last, cache->input);
        bool same = at >= 0 && outputs[at].dtype == cache->dtype && outputs[at].rank == cache->rank;
        for (uint8_t d = 1; same && d < cache->rank; d++) {
            same = outputs[at].dims[d] == cache->dims[d];
        }
        if (!same) {
            return berth_fail(err, BERTH_INVALID,
                              "the encoder does not write %s as decoder.onnx reads it",
                              cache->input);
        }
        crosses++;
    }
    if (crosses == 0 || crosses == graphs->cache_count) {
        return berth_fail(err, BERTH_INVALID, "decoder.onnx has no past_* or no cross_* inputs");
    }
    return BERTH_OK;
}

static enum berth_code own_lanes_init(struct berth_lanes *lanes, struct berth_err *err)
{
    const struct berth_graphs *graphs = lanes->graphs;
    size_t hidden = (size_t)graphs->config->frames * graphs->config->width * sizeof(float);
    bool short_of = false;
    for (size_t i = 0; i < graphs->cache_count; i++) {
        size_t count = lanes->count + (graphs->caches[i].cross ? 0 : 1);
        lanes->memory[i] = berth_graphs_take(lanes, count * graphs->caches[i].row_bytes);
        short_of = short_of || lanes->memory[i] == NULL;
    }
    for (size_t i = 0; i < 2 && graphs->piece_count > 1; i++) {
        lanes->hidden[i] = berth_graphs_take(lanes, hidden);
        short_of = short_of || lanes->hidden[i] == NULL;
    }
    return short_of ? berth_fail(err, BERTH_UNAVAILABLE, "no memory for the decoder's caches")
                    : BERTH_OK;
}

static void own_lanes_finish(struct berth_lanes *lanes)
{
}

static struct berth_ort_value hidden_value(const struct berth_lanes *lanes, const char *name,
                                           uint32_t piece)
{
    const struct berth_whisper_config *config = lanes->graphs->config;
    return (struct berth_ort_value){
        .name = name,
        .dtype = BERTH_DTYPE_FP32,
        .rank = 3,
        .dims = {1, config->frames, config->width},
        .bytes = lanes->hidden[piece % 2],
        .length = (size_t)config->frames * config->width * sizeof(float)};
}

static struct berth_ort_value cache_value(const struct berth_lanes *lanes, size_t index,
                                          uint32_t lane, uint32_t rows)
{
    const struct berth_graphs_cache *cache = &lanes->graphs->caches[index];
    struct berth_ort_value value = {
        .name = cache->input,
        .dtype = cache->dtype,
        .rank = cache->rank,
        .bytes = (char *)lanes->memory[index] + lane * cache->row_bytes,
        .length = rows * cache->row_bytes};
    memcpy(value.dims, cache->dims, sizeof(value.dims));
    value.dims[0] = rows;
    return value;
}

static enum berth_code own_encode(struct berth_lanes *lanes, const struct berth_encode *encode,
                                  struct berth_err *err)
{
    const struct berth_graphs *graphs = lanes->graphs;
    const atomic_bool *flags[] = {encode->cancelled};
    struct berth_ort_run run = {.inputs = lanes->inputs,
                                .input_count = 1,
                                .outputs = lanes->outputs,
                                .stop = {.flags = flags,
                                         .flag_count = encode->cancelled == NULL ? 0 : 1}};
    if (encode->piece == 0) {
        lanes->inputs[0] = (struct berth_ort_value){
            .name = "input_features",
            .dtype = BERTH_DTYPE_FP32,
            .rank = 3,
            .dims = {1, graphs->config->mel_bins, BERTH_MEL_WINDOW},
            .bytes = (void *)(uintptr_t)encode->window,
            .length = (size_t)graphs->config->mel_bins * BERTH_MEL_WINDOW * sizeof(float)};
    } else {
        lanes->inputs[0] = hidden_value(lanes, "hidden_in", encode->piece);
    }
    if (encode->piece + 1 < graphs->piece_count) {
        lanes->outputs[run.output_count++] = hidden_value(lanes, "hidden_out", encode->piece + 1);
    } else {
        for (size_t i = 0; i < graphs->cache_count; i++) {
            if (graphs->caches[i].cross) {
                lanes->outputs[run.output_count++] = cache_value(lanes, i, encode->lane, 1);
            }
        }
    }
    return berth_ort_session_run(graphs->encoder[encode->piece], &run, err);
}

/* Inputs of the decoder that are not caches: the first four of lanes->inputs. */
struct heads {
    const int64_t *ids;
    const int32_t *lengths;
    const int64_t *wanted;
    const bool *align;
    uint32_t rows;
    uint32_t steps;
    size_t wanted_count;
};

static void *borrow(const void *bytes)
{
    return (void *)(uintptr_t)bytes; /* ONNX Runtime only reads it */
}

static size_t put_heads(struct berth_lanes *lanes, const struct heads *heads)
{
    lanes->inputs[0] = (struct berth_ort_value){
        .name = "input_ids", .dtype = BERTH_DTYPE_INT64, .rank = 2,
        .dims = {heads->rows, heads->steps}, .bytes = borrow(heads->ids),
        .length = (size_t)heads->rows * heads->steps * sizeof(int64_t)};
    lanes->inputs[1] = (struct berth_ort_value){
        .name = "lengths", .dtype = BERTH_DTYPE_INT32, .rank = 1, .dims = {heads->rows},
        .bytes = borrow(heads->lengths), .length = heads->rows * sizeof(int32_t)};
    lanes->inputs[2] = (struct berth_ort_value){
        .name = "logit_rows", .dtype = BERTH_DTYPE_INT64, .rank = 1,
        .dims = {(int64_t)heads->wanted_count}, .bytes = borrow(heads->wanted),
        .length = heads->wanted_count * sizeof(int64_t)};
    lanes->inputs[3] = (struct berth_ort_value){
        .name = "align", .dtype = BERTH_DTYPE_BOOL, .rank = 0, .bytes = borrow(heads->align),
        .length = sizeof(bool)};
    return 4;
}

/* Adds caches to a run: pasts from one lane on, crosses from another. */
static void put_caches(struct berth_lanes *lanes, struct berth_ort_run *run, uint32_t past,
                       uint32_t cross, uint32_t rows)
{
    const struct berth_graphs *graphs = lanes->graphs;
    for (size_t i = 0; i < graphs->cache_count; i++) {
        const struct berth_graphs_cache *cache = &graphs->caches[i];
        struct berth_ort_value value = cache_value(lanes, i, cache->cross ? cross : past, rows);
        lanes->inputs[run->input_count++] = value;
        if (!cache->cross) {
            value.name = cache->output;
            lanes->outputs[run->output_count++] = value;
        }
    }
}

static enum berth_code own_decode(struct berth_lanes *lanes, const struct berth_decode *decode,
                                  struct berth_err *err)
{
    static const bool no_align = false;
    struct heads heads = {.ids = decode->ids, .lengths = lanes->lengths + decode->lane,
                          .wanted = decode->wanted, .align = &no_align, .rows = decode->rows,
                          .steps = decode->steps, .wanted_count = decode->wanted_count};
    struct berth_ort_run run = {.inputs = lanes->inputs, .outputs = lanes->outputs};
    uint32_t vocab = lanes->graphs->config->vocab;
    run.input_count = put_heads(lanes, &heads);
    lanes->outputs[run.output_count++] = (struct berth_ort_value){
        .name = "logits", .dtype = BERTH_DTYPE_FP32, .rank = 2,
        .dims = {(int64_t)decode->wanted_count, vocab}, .bytes = decode->logits,
        .length = decode->wanted_count * vocab * sizeof(float)};
    put_caches(lanes, &run, decode->lane, decode->lane, decode->rows);
    return berth_ort_session_run(lanes->graphs->decoder, &run, err);
}

/* Nobody but us checks what a graph's symbolic dims became. */
static bool realigned_well(const struct berth_whisper_config *config,
                           const struct berth_realign *realign)
{
    const struct berth_ort_value *logits = &realign->logits;
    const struct berth_ort_value *scores = &realign->scores;
    return logits->dtype == BERTH_DTYPE_FP32 && logits->rank == 2 &&
           logits->dims[0] == realign->steps && logits->dims[1] == (int64_t)config->vocab &&
           scores->dtype == BERTH_DTYPE_FP32 && scores->rank == 4 && scores->dims[0] == 1 &&
           scores->dims[1] >= 1 && scores->dims[2] == realign->steps &&
           scores->dims[3] == (int64_t)config->frames;
}

static enum berth_code own_realign(struct berth_lanes *lanes, struct berth_realign *realign,
                                   struct berth_err *err)
{
    static const bool do_align = true;
    int64_t wanted[512];
    BERTH_ASSERT(realign->steps <= BERTH_COUNT_OF(wanted));
    for (uint32_t i = 0; i < realign->steps; i++) {
        wanted[i] = i;
    }
    lanes->lengths_realign[0] = (int32_t)realign->length;
    struct heads heads = {.ids = realign->ids, .lengths = lanes->lengths_realign,
                          .wanted = wanted, .align = &do_align, .rows = 1,
                          .steps = realign->steps, .wanted_count = realign->steps};
    struct berth_ort_run run = {.inputs = lanes->inputs, .outputs = lanes->outputs};
    run.input_count = put_heads(lanes, &heads);
    lanes->outputs[0] = (struct berth_ort_value){.name = "logits"};
    lanes->outputs[1] = (struct berth_ort_value){.name = "align_scores"};
    run.output_count = 2;
    put_caches(lanes, &run, lanes->count, realign->lane, 1);
    BERTH_TRY(berth_ort_session_run(lanes->graphs->decoder, &run, err));
    realign->logits = lanes->outputs[0];
    realign->scores = lanes->outputs[1];
    if (!realigned_well(lanes->graphs->config, realign)) {
        berth_ort_value_clear(&realign->logits);
        berth_ort_value_clear(&realign->scores);
        return berth_fail(err, BERTH_INTERNAL,
                          "decoder.onnx: logits or align_scores came out in another shape");
    }
    return BERTH_OK;
}

static void own_move(struct berth_lanes *lanes, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < lanes->graphs->cache_count; i++) {
        size_t bytes = lanes->graphs->caches[i].row_bytes;
        char *memory = lanes->memory[i];
        memcpy(memory + to * bytes, memory + from * bytes, bytes);
    }
}

static void own_release(struct berth_lanes *lanes, uint32_t lane)
{
}

const struct berth_graphs_form berth_graphs_own = {
    .batch = true,
    .open = own_open,
    .lanes_init = own_lanes_init,
    .lanes_finish = own_lanes_finish,
    .encode = own_encode,
    .decode = own_decode,
    .realign = own_realign,
    .move = own_move,
    .release = own_release,
};
