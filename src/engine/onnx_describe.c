/* onnx_describe.c - completes or checks a config by its ONNX file, as Triton does.
 *
 * Only the file's head is read (onnx_file.c); a session is made just where the file leaves an
 * output's shape out.
 */
#include "engine/onnx_describe.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "engine/onnx_file.h"
#include "engine/ort.h"
#include "model/config_tree.h"

#define FILE_DEFAULT "model.onnx"
#define BATCH_SIZE_DEFAULT 4 /* what Triton's completion gives a model that can batch */
#define ESTIMATE_EXTRA_BYTES (UINT64_C(4) << 20)

static enum berth_code probe_outputs(const char *path, struct berth_onnx_file *file,
                                     struct berth_err *err);
static void choose_batching(struct berth_model_spec *spec, const struct berth_onnx_file *file);
static enum berth_code complete(struct berth_model_spec *spec, const struct berth_onnx_file *file,
                                struct berth_err *err);
static enum berth_code complete_ios(struct berth_model_spec *spec, const struct berth_onnx_io *from,
                                    size_t count, struct berth_io **out, struct berth_err *err);
static enum berth_code check(const struct berth_model_spec *spec,
                             const struct berth_onnx_file *file, struct berth_err *err);
static enum berth_code check_io(const struct berth_model_spec *spec, const struct berth_io *io,
                                const struct berth_onnx_io *from, struct berth_err *err);
static enum berth_code check_reshape(const struct berth_io *io, struct berth_err *err);

enum berth_code berth_onnx_describe(struct berth_model_spec *spec, struct berth_err *err)
{
    char path[BERTH_ONNX_PATH_BYTES];
    struct berth_onnx_file file;
    BERTH_TRY(berth_onnx_path(spec, path, sizeof(path), err));
    BERTH_TRY(berth_onnx_file_read(path, &file, err));
    enum berth_code code = BERTH_OK;
    if (spec->output_count == 0) {
        code = probe_outputs(path, &file, err);
    }
    if (code == BERTH_OK) {
        choose_batching(spec, &file);
        code = complete(spec, &file, err);
    }
    if (code == BERTH_OK) {
        code = check(spec, &file, err);
    }
    if (code == BERTH_OK) {
        spec->run_mode = BERTH_RUN_EXECUTE;
        spec->bytes_estimate =
            file.bytes + file.bytes_external + file.bytes / 8 + ESTIMATE_EXTRA_BYTES;
        spec->completed = true;
    }
    berth_onnx_file_finish(&file);
    return code;
}

enum berth_code berth_onnx_path(const struct berth_model_spec *spec, char *out, size_t bytes,
                                struct berth_err *err)
{
    const char *name = spec->default_model_filename;
    struct stat file;
    if (name == NULL || name[0] == '\0') {
        name = FILE_DEFAULT;
    }
    int length = snprintf(out, bytes, "%s/%s", spec->folder_version, name);
    if (length < 0 || (size_t)length >= bytes) {
        return berth_fail(err, BERTH_INVALID, "its path is too long");
    }
    /* Triton also takes a folder of that name, with the model and its weights inside. */
    if (stat(out, &file) == 0 && S_ISDIR(file.st_mode)) {
        size_t at = (size_t)length;
        int more = snprintf(out + at, bytes - at, "/%s", FILE_DEFAULT);
        if (more < 0 || (size_t)more >= bytes - at) {
            return berth_fail(err, BERTH_INVALID, "its path is too long");
        }
    }
    return BERTH_OK;
}

/* Where the file leaves an output's shape out, a session infers it. */
static enum berth_code probe_outputs(const char *path, struct berth_onnx_file *file,
                                     struct berth_err *err)
{
    struct berth_ort_meter meter = {0};
    struct berth_ort_session *session = NULL;
    size_t missing = 0;
    for (size_t i = 0; i < file->output_count; i++) {
        missing += !file->outputs[i].shaped;
    }
    if (missing == 0) {
        return BERTH_OK;
    }
    BERTH_TRY(berth_ort_session_open(path, &meter, &session, err));
    size_t count;
    const struct berth_ort_io *ios = berth_ort_session_outputs(session, &count);
    for (size_t i = 0; i < file->output_count; i++) {
        struct berth_onnx_io *output = &file->outputs[i];
        int at = berth_ort_session_find_output(session, output->name);
        if (!output->shaped && at >= 0 && (size_t)at < count && ios[at].rank > 0) {
            output->shaped = true;
            output->dtype = ios[at].dtype;
            output->rank = ios[at].rank;
            memcpy(output->dims, ios[at].dims, sizeof(output->dims));
        }
    }
    berth_ort_session_close(session);
    return BERTH_OK;
}

/* As Triton: a model whose inputs and outputs all have a variable first dimension batches, unless
 * the config says otherwise: by a max_batch_size of its own, or by listing inputs and outputs. */
static void choose_batching(struct berth_model_spec *spec, const struct berth_onnx_file *file)
{
    bool listed = spec->input_count > 0 && spec->output_count > 0;
    bool can = file->input_count > 0 && file->output_count > 0;
    for (size_t i = 0; i < file->input_count; i++) {
        can = can && file->inputs[i].rank > 0 && file->inputs[i].dims[0] == -1;
    }
    for (size_t i = 0; i < file->output_count; i++) {
        can = can && file->outputs[i].rank > 0 && file->outputs[i].dims[0] == -1;
    }
    if (spec->batch_size_set || listed || !can) {
        return;
    }
    spec->batch_size_max = BATCH_SIZE_DEFAULT;
    if (!spec->batching_set) {
        spec->batching = BERTH_BATCHING_DYNAMIC;
    }
}

static enum berth_code complete(struct berth_model_spec *spec, const struct berth_onnx_file *file,
                                struct berth_err *err)
{
    if (spec->input_count == 0) {
        BERTH_TRY(complete_ios(spec, file->inputs, file->input_count, &spec->inputs, err));
        spec->input_count = file->input_count;
    }
    if (spec->output_count == 0) {
        BERTH_TRY(complete_ios(spec, file->outputs, file->output_count, &spec->outputs, err));
        spec->output_count = file->output_count;
    }
    if (spec->backend == NULL || spec->backend[0] == '\0') {
        spec->backend = "onnxruntime";
    }
    if (spec->platform == NULL || spec->platform[0] == '\0') {
        spec->platform = "onnxruntime_onnx";
    }
    if (spec->default_model_filename == NULL || spec->default_model_filename[0] == '\0') {
        spec->default_model_filename = FILE_DEFAULT;
    }
    spec->task = "";
    return BERTH_OK;
}

static enum berth_code complete_ios(struct berth_model_spec *spec, const struct berth_onnx_io *from,
                                    size_t count, struct berth_io **out, struct berth_err *err)
{
    size_t batch = spec->batch_size_max > 0 ? 1 : 0;
    struct berth_io *ios = berth_arena_alloc(&spec->arena, (count + 1) * sizeof(*ios));
    if (ios == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to describe the model");
    }
    for (size_t i = 0; i < count; i++) {
        if (from[i].dtype == BERTH_DTYPE_NONE) {
            return berth_fail(err, BERTH_UNSUPPORTED,
                              "'%s' is not a tensor of a type served here", from[i].name);
        }
        if (!from[i].shaped || from[i].rank < batch) {
            const char *lack = from[i].shaped ? "no batch dimension" : "no shape in the model";
            return berth_fail(err, BERTH_INVALID, "'%s' has %s; list it in the config",
                              from[i].name, lack);
        }
        ios[i].name = berth_arena_strdup(&spec->arena, from[i].name);
        if (ios[i].name == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory to describe the model");
        }
        ios[i].dtype = from[i].dtype;
        ios[i].rank = (uint8_t)(from[i].rank - batch);
        memcpy(ios[i].dims, from[i].dims + batch, ios[i].rank * sizeof(ios[i].dims[0]));
        ios[i].format = "FORMAT_NONE";
        ios[i].label_filename = "";
    }
    *out = ios;
    return BERTH_OK;
}

static const struct berth_onnx_io *find(const struct berth_onnx_io *ios, size_t count,
                                        const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(ios[i].name, name) == 0) {
            return &ios[i];
        }
    }
    return NULL;
}

/* The names a model has, for an error's text. */
static void list_names(const struct berth_onnx_io *ios, size_t count, char *out, size_t bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < count && at < bytes; i++) {
        int more = snprintf(out + at, bytes - at, "%s%s", i == 0 ? "" : ", ", ios[i].name);
        at += more < 0 ? 0 : (size_t)more;
    }
}

/* An error about that input or output, with its place in the config. */
static enum berth_code at(const struct berth_model_spec *spec, const char *kind, const char *name,
                          enum berth_code code, struct berth_err *err)
{
    const struct berth_config_node *node = berth_config_find(spec->config, kind);
    while (node != NULL && strcmp(berth_config_string(node, "name"), name) != 0) {
        node = berth_config_again(node);
    }
    return berth_config_locate(spec, node, code, err);
}

static enum berth_code check(const struct berth_model_spec *spec,
                             const struct berth_onnx_file *file, struct berth_err *err)
{
    char names[120];
    for (size_t i = 0; i < spec->input_count; i++) {
        const struct berth_io *io = &spec->inputs[i];
        const struct berth_onnx_io *from = find(file->inputs, file->input_count, io->name);
        if (from == NULL) {
            list_names(file->inputs, file->input_count, names, sizeof(names));
            (void)berth_fail(err, BERTH_INVALID,
                             "the config's input '%s' is not in the model, which has %s", io->name,
                             names);
            return at(spec, "input", io->name, BERTH_INVALID, err);
        }
        BERTH_TRY(at(spec, "input", io->name, check_io(spec, io, from, err), err));
    }
    for (size_t i = 0; i < file->input_count; i++) {
        if (berth_spec_input(spec, file->inputs[i].name) == NULL) {
            (void)berth_fail(err, BERTH_INVALID, "the config lacks the input '%s'",
                             file->inputs[i].name);
            return berth_config_locate(spec, berth_config_find(spec->config, "input"),
                                       BERTH_INVALID, err);
        }
    }
    for (size_t i = 0; i < spec->output_count; i++) {
        const struct berth_io *io = &spec->outputs[i];
        const struct berth_onnx_io *from = find(file->outputs, file->output_count, io->name);
        if (from == NULL) {
            list_names(file->outputs, file->output_count, names, sizeof(names));
            (void)berth_fail(err, BERTH_INVALID,
                             "the config's output '%s' is not in the model, which has %s",
                             io->name, names);
            return at(spec, "output", io->name, BERTH_INVALID, err);
        }
        BERTH_TRY(at(spec, "output", io->name, check_io(spec, io, from, err), err));
    }
    return BERTH_OK;
}

/* The config's word for an input or output against the model's. */
static enum berth_code check_io(const struct berth_model_spec *spec, const struct berth_io *io,
                                const struct berth_onnx_io *from, struct berth_err *err)
{
    size_t batch = spec->batch_size_max > 0 ? 1 : 0;
    uint8_t rank = io->has_reshape ? io->reshape_rank : io->rank;
    const int64_t *dims = io->has_reshape ? io->reshape_dims : io->dims;
    if (from->dtype == BERTH_DTYPE_NONE || from->dtype != io->dtype) {
        const char *model_type =
            from->dtype == BERTH_DTYPE_NONE ? "not served here" : berth_dtype_name(from->dtype);
        return berth_fail(err, BERTH_INVALID,
                          "'%s' is %s in the config, in the model its type is %s", io->name,
                          berth_dtype_name(io->dtype), model_type);
    }
    if (io->has_reshape) {
        BERTH_TRY(check_reshape(io, err));
    }
    if (rank + batch > BERTH_RANK_MAX || io->rank + batch > BERTH_RANK_MAX) {
        return berth_fail(err, BERTH_INVALID, "'%s' has more than %d dimensions", io->name,
                          BERTH_RANK_MAX);
    }
    if (!from->shaped) {
        return BERTH_OK;
    }
    if (rank + batch != from->rank) {
        return berth_fail(err, BERTH_INVALID,
                          "'%s' has %u dimensions in the config%s, %u in the model", io->name,
                          (unsigned)(rank + batch), batch > 0 ? " with the batch" : "",
                          (unsigned)from->rank);
    }
    if (batch > 0 && from->dims[0] != -1 &&
        (from->dims[0] != 1 || spec->batch_size_max != 1)) {
        return berth_fail(err, BERTH_INVALID,
                          "it cannot batch (max_batch_size %llu): '%s' has a first dimension of "
                          "%lld",
                          (unsigned long long)spec->batch_size_max, io->name,
                          (long long)from->dims[0]);
    }
    for (size_t i = 0; i < rank; i++) {
        if (from->dims[batch + i] != -1 && from->dims[batch + i] != dims[i]) {
            return berth_fail(err, BERTH_INVALID,
                              "dimension %zu of '%s' is %lld in the config, %lld in the model", i,
                              io->name, (long long)dims[i], (long long)from->dims[batch + i]);
        }
    }
    return BERTH_OK;
}

/* Both shapes must hold the same number of elements: the same fixed part, and as many variable
 * dimensions, which go over in their order. */
static enum berth_code check_reshape(const struct berth_io *io, struct berth_err *err)
{
    size_t fixed[2] = {1, 1};
    size_t variable[2] = {0, 0};
    for (size_t side = 0; side < 2; side++) {
        const int64_t *dims = side == 0 ? io->dims : io->reshape_dims;
        uint8_t rank = side == 0 ? io->rank : io->reshape_rank;
        for (size_t i = 0; i < rank; i++) {
            if (dims[i] < 0) {
                variable[side]++;
            } else if (!berth_mul_size(fixed[side], (size_t)dims[i], &fixed[side])) {
                return berth_fail(err, BERTH_INVALID, "'%s': its dims are too large", io->name);
            }
        }
    }
    if (fixed[0] != fixed[1] || variable[0] != variable[1]) {
        return berth_fail(err, BERTH_INVALID, "'%s': reshape does not keep the number of elements",
                          io->name);
    }
    return BERTH_OK;
}
