/* graphs.c - finds the form of a folder's files and keeps what both forms have. */
#include "engine/whisper/graphs.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "engine/whisper/graphs_forms.h"

#define PATH_BYTES_MAX 4096

static const struct berth_graphs_form *find_form(const char *folder, char *where, size_t bytes);
static uint64_t file_bytes(const char *folder, const char *name);

enum berth_code berth_graphs_find(const char *folder, uint64_t *bytes, struct berth_err *err)
{
    static const char *const names[] = {"decoder.onnx", "encoder_model.onnx",
                                        "decoder_model_merged.onnx"};
    char where[PATH_BYTES_MAX];
    if (find_form(folder, where, sizeof(where)) == NULL) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "%s holds neither encoder_0.onnx and decoder.onnx nor encoder_model.onnx "
                          "and decoder_model_merged.onnx (or decoder_model.onnx and "
                          "decoder_with_past_model.onnx)",
                          folder);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        sum += file_bytes(where, names[i]);
    }
    if (file_bytes(where, "decoder_model_merged.onnx") == 0) {
        sum += file_bytes(where, "decoder_model.onnx");
        sum += file_bytes(where, "decoder_with_past_model.onnx");
    }
    for (unsigned i = 0; i < BERTH_GRAPHS_PIECES_MAX; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "encoder_%u.onnx", i);
        sum += file_bytes(where, name);
    }
    *bytes = sum;
    return BERTH_OK;
}

enum berth_code berth_graphs_open(const char *folder, const struct berth_whisper_config *config,
                                  struct berth_ort_meter *meter, struct berth_graphs **out,
                                  struct berth_err *err)
{
    char where[PATH_BYTES_MAX];
    const struct berth_graphs_form *form = find_form(folder, where, sizeof(where));
    if (form == NULL) {
        return berth_fail(err, BERTH_NOT_FOUND, "%s holds no Whisper graphs", folder);
    }
    struct berth_graphs *graphs = berth_alloc(sizeof(*graphs));
    if (graphs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the graphs");
    }
    graphs->form = form;
    graphs->config = config;
    graphs->meter = meter;
    enum berth_code code = form->open(graphs, where, err);
    if (code == BERTH_OK) {
        *out = graphs;
        graphs = NULL;
    }
    berth_graphs_close(graphs);
    return code;
}

void berth_graphs_close(struct berth_graphs *graphs)
{
    if (graphs == NULL) {
        return;
    }
    for (uint32_t i = 0; i < BERTH_GRAPHS_PIECES_MAX; i++) {
        berth_ort_session_close(graphs->encoder[i]);
    }
    if (graphs->first != graphs->decoder) {
        berth_ort_session_close(graphs->first);
    }
    berth_ort_session_close(graphs->decoder);
    berth_free(graphs);
}

uint32_t berth_graphs_pieces(const struct berth_graphs *graphs)
{
    return graphs->piece_count;
}

bool berth_graphs_batch(const struct berth_graphs *graphs)
{
    return graphs->form->batch;
}

bool berth_graphs_align(const struct berth_graphs *graphs)
{
    return graphs->align;
}

enum berth_code berth_lanes_create(struct berth_graphs *graphs, uint32_t count,
                                   struct berth_lanes **out, struct berth_err *err)
{
    struct berth_lanes *lanes = berth_alloc(sizeof(*lanes));
    enum berth_code code = BERTH_OK;
    if (lanes == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the decoder's caches");
    }
    lanes->graphs = graphs;
    lanes->count = count;
    lanes->bytes = sizeof(*lanes);
    lanes->lengths = berth_graphs_take(lanes, count * sizeof(*lanes->lengths));
    lanes->lengths_realign = berth_graphs_take(lanes, sizeof(*lanes->lengths_realign));
    lanes->inputs = berth_graphs_take(lanes, BERTH_ORT_VALUES_MAX * sizeof(*lanes->inputs));
    lanes->outputs = berth_graphs_take(lanes, BERTH_ORT_VALUES_MAX * sizeof(*lanes->outputs));
    if (lanes->lengths == NULL || lanes->lengths_realign == NULL || lanes->inputs == NULL ||
        lanes->outputs == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for the decoder's caches");
    } else {
        code = graphs->form->lanes_init(lanes, err);
    }
    if (code == BERTH_OK) {
        *out = lanes;
        lanes = NULL;
    }
    berth_lanes_destroy(lanes);
    return code;
}

void berth_lanes_destroy(struct berth_lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    lanes->graphs->form->lanes_finish(lanes);
    for (size_t i = 0; i < BERTH_GRAPHS_CACHES_MAX; i++) {
        berth_free(lanes->memory[i]);
    }
    berth_free(lanes->hidden[0]);
    berth_free(lanes->hidden[1]);
    berth_free(lanes->values);
    berth_free(lanes->lengths);
    berth_free(lanes->lengths_realign);
    berth_free(lanes->inputs);
    berth_free(lanes->outputs);
    berth_free(lanes);
}

uint64_t berth_lanes_bytes(const struct berth_lanes *lanes)
{
    return lanes == NULL ? 0 : lanes->bytes;
}

int32_t *berth_lanes_lengths(struct berth_lanes *lanes)
{
    return lanes->lengths;
}

enum berth_code berth_lanes_encode(struct berth_lanes *lanes, const struct berth_encode *encode,
                                   struct berth_err *err)
{
    BERTH_ASSERT(encode->piece < lanes->graphs->piece_count && encode->lane < lanes->count);
    return lanes->graphs->form->encode(lanes, encode, err);
}

/* No graph checks positions or ids: they would read past their tables. */
static enum berth_code check_ids(const struct berth_lanes *lanes, const int64_t *ids, size_t count,
                                 struct berth_err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= (int64_t)lanes->graphs->config->vocab) {
            return berth_fail(err, BERTH_INTERNAL, "token %lld is not in the vocabulary",
                              (long long)ids[i]);
        }
    }
    return BERTH_OK;
}

enum berth_code berth_lanes_decode(struct berth_lanes *lanes, const struct berth_decode *decode,
                                   struct berth_err *err)
{
    uint32_t positions = lanes->graphs->config->positions;
    BERTH_ASSERT(decode->rows > 0 && decode->steps > 0 &&
                 decode->lane + decode->rows <= lanes->count);
    BERTH_ASSERT(decode->rows == 1 || (lanes->graphs->form->batch && decode->steps == 1));
    for (uint32_t i = decode->lane; i < decode->lane + decode->rows; i++) {
        if (lanes->lengths[i] < 0 || (uint32_t)lanes->lengths[i] + decode->steps > positions) {
            return berth_fail(err, BERTH_INTERNAL, "a sequence is longer than %u tokens",
                              positions);
        }
    }
    BERTH_TRY(check_ids(lanes, decode->ids, (size_t)decode->rows * decode->steps, err));
    return lanes->graphs->form->decode(lanes, decode, err);
}

enum berth_code berth_lanes_realign(struct berth_lanes *lanes, struct berth_realign *realign,
                                    struct berth_err *err)
{
    BERTH_ASSERT(lanes->graphs->align && realign->lane < lanes->count && realign->steps > 0);
    if (realign->length + realign->steps > lanes->graphs->config->positions) {
        return berth_fail(err, BERTH_INTERNAL, "a sequence is longer than %u tokens",
                          lanes->graphs->config->positions);
    }
    BERTH_TRY(check_ids(lanes, realign->ids, realign->steps, err));
    return lanes->graphs->form->realign(lanes, realign, err);
}

void berth_lanes_move(struct berth_lanes *lanes, uint32_t from, uint32_t to)
{
    BERTH_ASSERT(from < lanes->count && to < lanes->count && from != to);
    lanes->graphs->form->move(lanes, from, to);
    lanes->lengths[to] = lanes->lengths[from];
    lanes->lengths[from] = 0;
}

void berth_lanes_release(struct berth_lanes *lanes, uint32_t lane)
{
    lanes->lengths[lane] = 0;
    lanes->graphs->form->release(lanes, lane);
}

bool berth_graphs_path(const char *folder, const char *name, char *path, size_t bytes)
{
    struct stat info;
    return snprintf(path, bytes, "%s/%s", folder, name) < (int)bytes && stat(path, &info) == 0 &&
           S_ISREG(info.st_mode);
}

void *berth_graphs_take(struct berth_lanes *lanes, size_t bytes)
{
    void *memory = berth_alloc(bytes);
    lanes->bytes += memory == NULL ? 0 : bytes;
    return memory;
}

static bool has(const char *folder, const char *name)
{
    char path[PATH_BYTES_MAX];
    return berth_graphs_path(folder, name, path, sizeof(path));
}

static bool has_common(const char *folder)
{
    return has(folder, "encoder_model.onnx") &&
           (has(folder, "decoder_model_merged.onnx") ||
            (has(folder, "decoder_model.onnx") && has(folder, "decoder_with_past_model.onnx")));
}

/* The form, and the folder its files are in; NULL: neither. */
static const struct berth_graphs_form *find_form(const char *folder, char *where, size_t bytes)
{
    if (snprintf(where, bytes, "%s", folder) >= (int)bytes) {
        return NULL;
    }
    if (has(where, "encoder_0.onnx") && has(where, "decoder.onnx")) {
        return &berth_graphs_own;
    }
    if (has_common(where)) {
        return &berth_graphs_common;
    }
    if (snprintf(where, bytes, "%s/onnx", folder) < (int)bytes && has_common(where)) {
        return &berth_graphs_common;
    }
    return NULL;
}

static uint64_t file_bytes(const char *folder, const char *name)
{
    char path[PATH_BYTES_MAX];
    struct stat info;
    if (!berth_graphs_path(folder, name, path, sizeof(path)) || stat(path, &info) != 0) {
        return 0;
    }
    return (uint64_t)info.st_size;
}
