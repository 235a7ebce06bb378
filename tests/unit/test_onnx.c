/* Tests of the engine over ONNX Runtime, on the files of tests/models (make_models.py). */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/slab.h"
#include "engine/engines.h"
#include "engine/onnx_file.h"
#include "engine/ort.h"
#include "engine/ort_memory.h"

#define NAMES_MAX 16

static const struct berth_engine_ops *const onnx = &berth_engine_onnx;
static struct berth_slabs *slabs;
static char models[1024];

struct input {
    const char *name;
    enum berth_dtype dtype;
    uint8_t rank;
    int64_t dims[3];
    const void *bytes;
    size_t length;
};

/* --- helpers --- */

static struct berth_model_spec *spec_of(const char *file)
{
    struct berth_model_spec *spec = berth_spec_create();
    assert_non_null(spec);
    spec->name = "test";
    spec->version = 1;
    spec->folder = models;
    spec->folder_version = models;
    spec->default_model_filename = file;
    return spec;
}

static struct berth_model_spec *described(const char *file)
{
    struct berth_err err = {0};
    struct berth_model_spec *spec = spec_of(file);
    if (onnx->describe(spec, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    return spec;
}

static struct berth_engine_model *attached(const struct berth_model_spec *spec)
{
    struct berth_err err = {0};
    struct berth_engine_model *model = NULL;
    if (onnx->model_attach(spec, (struct berth_span){.fd = -1}, &model, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    return model;
}

static struct berth_instance *instance_of(struct berth_engine_model *model)
{
    struct berth_instance *instance = NULL;
    struct berth_err err = {0};
    assert_int_equal(onnx->instance_create(model, 0, &instance, &err), BERTH_OK);
    return instance;
}

/* A request whose tensors lie one after another in one range, the first `shift` bytes in. */
static struct berth_request *request_of(const struct input *inputs, size_t count, size_t shift,
                                        uint64_t batch_rows)
{
    struct berth_request *request = berth_request_create(slabs, 1 << 20);
    size_t whole = shift + 64;
    size_t at = shift;
    assert_non_null(request);
    for (size_t i = 0; i < count; i++) {
        whole += inputs[i].length + 64;
    }
    assert_int_equal(berth_slabs_take(slabs, whole, &request->body, NULL), BERTH_OK);
    request->inputs = berth_arena_alloc(&request->arena, (count + 1) * sizeof(*request->inputs));
    request->input_count = count;
    request->batch_rows = batch_rows;
    for (size_t i = 0; i < count; i++) {
        struct berth_tensor *tensor = &request->inputs[i];
        tensor->name = inputs[i].name;
        tensor->dtype = inputs[i].dtype;
        tensor->rank = inputs[i].rank;
        memcpy(tensor->dims, inputs[i].dims, sizeof(inputs[i].dims));
        if (inputs[i].length > 0) {
            assert_true(
                berth_range_slice(&request->body, at, inputs[i].length, &tensor->range));
            memcpy(berth_slabs_pointer(slabs, &tensor->range), inputs[i].bytes, inputs[i].length);
        }
        at = shift + (at - shift + inputs[i].length + 63) / 64 * 64;
    }
    return request;
}

static struct berth_row row_of(struct berth_request *request)
{
    struct berth_row row = {.request = request, .part = berth_part_create(request)};
    assert_non_null(row.part);
    return row;
}

static void row_finish(struct berth_row *row)
{
    berth_part_destroy(row->part);
    berth_request_release(row->request);
}

static void run_rows(struct berth_instance *instance, struct berth_row *rows, size_t count)
{
    struct berth_err err = {0};
    struct berth_batch batch = {.rows = rows, .row_count = count};
    for (size_t i = 0; i < count; i++) {
        batch.batch_rows += rows[i].request->batch_rows;
    }
    if (onnx->execute(instance, &batch, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
}

static const void *output(const struct berth_row *row, const char *name,
                          const struct berth_tensor **tensor)
{
    if (row->err.code != BERTH_OK) {
        fail_msg("%s", row->err.msg);
    }
    *tensor = berth_part_find(row->part, name);
    assert_non_null(*tensor);
    return (*tensor)->range.length == 0 ? NULL : berth_slabs_pointer(slabs, &(*tensor)->range);
}

static struct input floats(const char *name, int64_t rows, int64_t columns, const float *values)
{
    return (struct input){name, BERTH_DTYPE_FP32, 2, {rows, columns, 0}, values,
                          (size_t)(rows * columns) * sizeof(float)};
}

static int thread_count(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

/* --- describe --- */

static void describes_and_completes(void **state)
{
    static const struct {
        const char *file;
        uint64_t batch_size_max;
        const char *input;
        uint8_t input_rank;
        const char *output;
        uint8_t output_rank;
        int64_t output_dim;
        enum berth_dtype dtype;
    } cases[] = {
        {"add.onnx", 4, "x", 1, "z", 1, -1, BERTH_DTYPE_FP32},
        {"linear.onnx", 4, "x", 1, "y", 1, 4, BERTH_DTYPE_FP32},
        {"strings.onnx", 4, "x", 1, "y", 1, -1, BERTH_DTYPE_BYTES},
        {"fixed.onnx", 0, "x", 2, "y", 2, 2, BERTH_DTYPE_FP32},
        {"unshaped.onnx", 4, "x", 1, "y", 1, 5, BERTH_DTYPE_FP32},
        {"slow.onnx", 0, "count", 1, "y", 0, 0, BERTH_DTYPE_FP32},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_model_spec *spec = described(cases[i].file);
        assert_int_equal(spec->batch_size_max, cases[i].batch_size_max);
        assert_int_equal(spec->batching, spec->batch_size_max > 0 ? BERTH_BATCHING_DYNAMIC
                                                                  : BERTH_BATCHING_NONE);
        assert_string_equal(spec->inputs[0].name, cases[i].input);
        assert_int_equal(spec->inputs[0].rank, cases[i].input_rank);
        assert_string_equal(spec->outputs[0].name, cases[i].output);
        assert_int_equal(spec->outputs[0].rank, cases[i].output_rank);
        assert_int_equal(spec->outputs[0].dtype, cases[i].dtype);
        assert_int_equal(spec->outputs[0].dims[0], cases[i].output_dim);
        assert_true(spec->completed);
        assert_true(spec->bytes_estimate > 0);
        assert_string_equal(spec->platform, "onnxruntime_onnx");
        struct berth_err err = {0};
        assert_int_equal(onnx->describe(spec, &err), BERTH_OK); /* again: a check only */
        berth_spec_release(spec);
    }
}

static void keeps_what_the_config_says(void **state)
{
    (void)state;
    struct berth_err err = {0};
    struct berth_model_spec *spec = spec_of("linear.onnx");
    spec->batch_size_set = true; /* max_batch_size: 0, on purpose */
    assert_int_equal(onnx->describe(spec, &err), BERTH_OK);
    assert_int_equal(spec->batch_size_max, 0);
    assert_int_equal(spec->inputs[0].rank, 2);
    assert_int_equal(spec->batching, BERTH_BATCHING_NONE);
    berth_spec_release(spec);

    spec = spec_of("linear.onnx");
    spec->batching_set = true;
    assert_int_equal(onnx->describe(spec, &err), BERTH_OK);
    assert_int_equal(spec->batch_size_max, 4);
    assert_int_equal(spec->batching, BERTH_BATCHING_NONE);
    berth_spec_release(spec);
}

static void refuses_a_config_that_does_not_fit(void **state)
{
    static struct {
        const char *file;
        uint64_t batch;
        struct berth_io input;
        const char *message;
    } cases[] = {
        {"linear.onnx", 8, {.name = "z", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {8}},
         "input 'z' is not in the model, which has x"},
        {"linear.onnx", 8, {.name = "x", .dtype = BERTH_DTYPE_INT64, .rank = 1, .dims = {8}},
         "'x' is INT64 in the config, in the model its type is FP32"},
        {"linear.onnx", 8, {.name = "x", .dtype = BERTH_DTYPE_FP32, .rank = 2, .dims = {8, 1}},
         "'x' has 3 dimensions in the config with the batch, 2 in the model"},
        {"linear.onnx", 8, {.name = "x", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {9}},
         "dimension 0 of 'x' is 9 in the config, 8 in the model"},
        {"linear.onnx", 8, {.name = "x", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {-1}},
         "dimension 0 of 'x' is -1 in the config, 8 in the model"},
        {"fixed.onnx", 8, {.name = "x", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {3}},
         "cannot batch (max_batch_size 8): 'x' has a first dimension of 2"},
        {"add.onnx", 8, {.name = "x", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {-1}},
         "the config lacks the input 'y'"},
        {"linear.onnx", 8, {.name = "x", .dtype = BERTH_DTYPE_FP32, .rank = 2, .dims = {2, 5},
          .has_reshape = true, .reshape_rank = 1, .reshape_dims = {8}},
         "'x': reshape does not keep the number of elements"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_model_spec *spec = spec_of(cases[i].file);
        spec->batch_size_max = cases[i].batch;
        spec->batch_size_set = true;
        spec->inputs = &cases[i].input;
        spec->input_count = 1;
        assert_int_equal(onnx->describe(spec, &err), BERTH_INVALID);
        if (strstr(err.msg, cases[i].message) == NULL) {
            fail_msg("case %zu: '%s' lacks '%s'", i, err.msg, cases[i].message);
        }
        berth_spec_release(spec);
    }
}

static void broken_files_are_errors_that_name_them(void **state)
{
    static const struct {
        const char *file;
        enum berth_code code;
        const char *message;
    } cases[] = {
        {"corrupt.onnx", BERTH_INVALID, "corrupt.onnx is not a usable ONNX model"},
        {"truncated.onnx", BERTH_INVALID, "cut off"},
        {"empty.onnx", BERTH_INVALID, "without a graph"},
        {"missing.onnx", BERTH_NOT_FOUND, "missing.onnx"},
        {"outside.onnx", BERTH_INVALID, "outside the model's folder"},
        {"make_models.py", BERTH_INVALID, "make_models.py"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_engine_model *model = NULL;
        struct berth_model_spec *spec = spec_of(cases[i].file);
        assert_int_equal(onnx->describe(spec, &err), cases[i].code);
        if (strstr(err.msg, cases[i].message) == NULL) {
            fail_msg("'%s' lacks '%s'", err.msg, cases[i].message);
        }
        assert_int_not_equal(onnx->model_attach(spec, (struct berth_span){.fd = -1}, &model, &err),
                             BERTH_OK);
        assert_null(model);
        assert_non_null(strstr(err.msg, cases[i].file));
        berth_spec_release(spec);
    }
}

/* Before ONNX Runtime sees its name: it would wait for a FIFO. */
static void sessions_open_regular_files(void **state)
{
    char folder[] = "/tmp/berth-test-onnx-XXXXXX", fifo[sizeof(folder) + 8];
    struct berth_ort_meter meter = {0};
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(fifo, sizeof(fifo), "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const struct {
        const char *path;
        enum berth_code code;
    } cases[] = {
        {fifo, BERTH_INVALID},
        {folder, BERTH_INVALID},
        {"/dev/zero", BERTH_INVALID},
        {"/does/not/exist.onnx", BERTH_NOT_FOUND},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_ort_session *session = NULL;
        struct berth_err err = {0};
        assert_int_equal(berth_ort_session_open(cases[i].path, &meter, &session, &err),
                         cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].path));
        assert_null(session);
    }
    unlink(fifo);
    rmdir(folder);
}

/* A name that C strings would cut is refused, wherever it stands. */
static void names_hold_no_nul(void **state)
{
    static const char *const files[] = {"filled.onnx", "outside.onnx"};
    static const char *const names[] = {"count", "location"};
    char path[1200];
    char scratch[] = "/tmp/berth-onnx-XXXXXX";
    char bytes[4096];
    (void)state;
    int fd = mkstemp(scratch);
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct berth_onnx_file info;
        struct berth_err err = {0};
        snprintf(path, sizeof(path), "%s/%s", models, files[i]);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t length = fread(bytes, 1, sizeof(bytes), file);
        fclose(file);
        char *name = NULL;
        while ((name = memmem(bytes, length, names[i], strlen(names[i]))) != NULL) {
            name[2] = '\0';
        }
        assert_int_equal(pwrite(fd, bytes, length, 0), (ssize_t)length);
        assert_int_equal(ftruncate(fd, (off_t)length), 0);
        assert_int_equal(berth_onnx_file_read(scratch, &info, &err), BERTH_INVALID);
        assert_non_null(strstr(err.msg, "a NUL in a name"));
    }
    close(fd);
    unlink(scratch);
}

/* Every cut and every changed byte of a file: an error or a description, never worse. */
static void hostile_files_do_no_harm(void **state)
{
    char path[1200];
    char scratch[] = "/tmp/berth-onnx-XXXXXX";
    unsigned char bytes[4096];
    (void)state;
    snprintf(path, sizeof(path), "%s/linear.onnx", models);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    int fd = mkstemp(scratch);
    assert_true(fd >= 0);
    for (size_t i = 0; i < 2 * length; i++) {
        struct berth_onnx_file info;
        struct berth_err err = {0};
        unsigned char before = bytes[i / 2];
        bytes[i / 2] ^= (unsigned char)(i % 2 == 0 ? 0xFF : 0x08);
        size_t written = i % 2 == 0 ? length : i / 2;
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, bytes, written, 0), (ssize_t)written);
        bytes[i / 2] = before;
        if (berth_onnx_file_read(scratch, &info, &err) == BERTH_OK) {
            berth_onnx_file_finish(&info);
        } else {
            assert_int_equal(err.code, BERTH_INVALID);
        }
    }
    close(fd);
    unlink(scratch);
}

/* --- execute --- */

static void runs_one_request(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("add.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    const float x[6] = {1, 2, 3, 4, 5, NAN};
    const float y[6] = {10, 20, 30, 40, 50, 60};
    for (size_t shift = 0; shift < 4; shift++) { /* misaligned inputs are copied */
        struct input inputs[2] = {floats("y", 2, 3, y), floats("x", 2, 3, x)};
        struct berth_row row = row_of(request_of(inputs, 2, shift, 2));
        run_rows(instance, &row, 1);
        const struct berth_tensor *tensor;
        const float *z = output(&row, "z", &tensor);
        assert_int_equal(tensor->rank, 2);
        assert_int_equal(tensor->dims[0], 2);
        assert_int_equal(tensor->dims[1], 3);
        assert_true(z[0] == 11 && z[4] == 55 && isnan(z[5]));
        row_finish(&row);
    }
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

/* E1: rows of a batch are as alone, bit for bit beside whatever neighbours. */
static void batched_equals_solo(void **state)
{
    static const char *const files[] = {"linear.onnx", "dynamic.onnx"};
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        struct berth_model_spec *spec = described(files[f]);
        struct berth_engine_model *model = attached(spec);
        struct berth_instance *instance = instance_of(model);
        const char *name = f == 0 ? "y" : "sum";
        float values[8][8];
        float solo[8][4] = {{0}};
        struct berth_row rows[8];
        const struct berth_tensor *tensor;
        for (size_t i = 0; i < 8; i++) {
            for (size_t k = 0; k < 8; k++) {
                values[i][k] = (float)sin((double)(i * 8 + k)) * (i % 3 == 0 ? 1e6f : 1e-3f);
            }
            struct input input = floats("x", 1, 8, values[i]);
            rows[i] = row_of(request_of(&input, 1, 0, 1));
            run_rows(instance, &rows[i], 1);
            const float *y = output(&rows[i], name, &tensor);
            memcpy(solo[i], y, tensor->range.length);
            row_finish(&rows[i]);
            rows[i] = row_of(request_of(&input, 1, 0, 1));
        }
        run_rows(instance, rows, 8);
        for (size_t i = 0; i < 8; i++) {
            const float *y = output(&rows[i], name, &tensor);
            assert_int_equal(tensor->dims[0], 1);
            for (size_t k = 0; k < tensor->range.length / sizeof(float); k++) {
                float scale = fabsf(solo[i][k]) > 1 ? fabsf(solo[i][k]) : 1;
                assert_true(fabsf(y[k] - solo[i][k]) <= 1e-6f * scale);
            }
            row_finish(&rows[i]);
        }
        onnx->instance_destroy(instance);
        onnx->model_detach(model);
        berth_spec_release(spec);
    }
}

static void neighbours_change_nothing(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("linear.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    float mine[8] = {0.1f, -0.2f, 0.3f, 4, 5, -6, 7.5f, 1e-9f};
    float first[4] = {0};
    for (size_t turn = 0; turn < 3; turn++) {
        float other[8];
        for (size_t k = 0; k < 8; k++) {
            other[k] = turn == 0 ? 0 : turn == 1 ? 1e30f : NAN;
        }
        struct input inputs[2] = {floats("x", 1, 8, mine), floats("x", 1, 8, other)};
        struct berth_row rows[2] = {row_of(request_of(&inputs[0], 1, 0, 1)),
                                    row_of(request_of(&inputs[1], 1, 0, 1))};
        const struct berth_tensor *tensor;
        run_rows(instance, rows, 2);
        const float *y = output(&rows[0], "y", &tensor);
        if (turn == 0) {
            memcpy(first, y, sizeof(first));
        }
        assert_memory_equal(first, y, sizeof(first));
        row_finish(&rows[0]);
        row_finish(&rows[1]);
    }
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

/* Requests of several rows and other lengths in one batch: each gets its own shape back. */
static void cuts_mixed_batches_apart(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("dynamic.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    static const int64_t shapes[4][2] = {{2, 3}, {1, 5}, {3, 3}, {1, 3}};
    float values[64];
    for (size_t i = 0; i < 64; i++) {
        values[i] = (float)i;
    }
    struct berth_row rows[4];
    for (size_t i = 0; i < 4; i++) {
        struct input input = floats("x", shapes[i][0], shapes[i][1], values + 7 * i);
        rows[i] = row_of(request_of(&input, 1, 0, (uint64_t)shapes[i][0]));
    }
    run_rows(instance, rows, 4);
    for (size_t i = 0; i < 4; i++) {
        const struct berth_tensor *tensor;
        const float *twice = output(&rows[i], "twice", &tensor);
        assert_int_equal(tensor->dims[0], shapes[i][0]);
        assert_int_equal(tensor->dims[1], shapes[i][1]);
        for (int64_t k = 0; k < shapes[i][0] * shapes[i][1]; k++) {
            assert_true(twice[k] == 2 * values[7 * i + (size_t)k]);
        }
        output(&rows[i], "sum", &tensor);
        assert_int_equal(tensor->dims[0], shapes[i][0]);
        assert_int_equal(tensor->dims[1], 1);
        row_finish(&rows[i]);
    }
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

static void strings_go_through(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("strings.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    unsigned char one[64];
    unsigned char two[64];
    unsigned char *end_one = berth_bytes_put(berth_bytes_put(one, "a\0b", 3), "", 0);
    unsigned char *end_two = two;
    for (int i = 0; i < 4; i++) {
        end_two = berth_bytes_put(end_two, "\xF0\x9F\x9A\xA2\xFF", (uint32_t)i);
    }
    struct input inputs[2] = {
        {"x", BERTH_DTYPE_BYTES, 2, {1, 2, 0}, one, (size_t)(end_one - one)},
        {"x", BERTH_DTYPE_BYTES, 2, {2, 2, 0}, two, (size_t)(end_two - two)},
    };
    struct berth_row rows[3] = {row_of(request_of(&inputs[0], 1, 0, 1)),
                                row_of(request_of(&inputs[1], 1, 0, 2)),
                                row_of(request_of(&inputs[0], 1, 1, 1))};
    run_rows(instance, rows, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct input *from = &inputs[i % 2];
        const struct berth_tensor *tensor;
        const void *bytes = output(&rows[i], "y", &tensor);
        assert_int_equal(tensor->range.length, from->length);
        assert_memory_equal(bytes, from->bytes, from->length);
        assert_int_equal(tensor->dims[0], from->dims[0]);
        row_finish(&rows[i]);
    }
    struct input empty = {"x", BERTH_DTYPE_BYTES, 2, {1, 0, 0}, NULL, 0};
    struct berth_row row = row_of(request_of(&empty, 1, 0, 1));
    const struct berth_tensor *tensor;
    run_rows(instance, &row, 1);
    output(&row, "y", &tensor);
    assert_int_equal(tensor->dims[1], 0);
    row_finish(&row);
    /* A length that goes past the end: refused, and nothing else happens. */
    one[0] = 200;
    row = row_of(request_of(&inputs[0], 1, 0, 1));
    run_rows(instance, &row, 1);
    assert_int_equal(row.err.code, BERTH_INVALID);
    row_finish(&row);
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

static void every_type_goes_through(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("mixed.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    struct input inputs[NAMES_MAX];
    unsigned char bytes[NAMES_MAX][24];
    assert_int_equal(spec->input_count, 13);
    for (size_t i = 0; i < spec->input_count; i++) {
        size_t length = 3 * berth_dtype_bytes(spec->inputs[i].dtype);
        for (size_t k = 0; k < length; k++) {
            bytes[i][k] = (unsigned char)(spec->inputs[i].dtype == BERTH_DTYPE_BOOL ? k % 2
                                                                                   : 17 * i + k);
        }
        inputs[i] = (struct input){spec->inputs[i].name, spec->inputs[i].dtype, 2, {1, 3, 0},
                                   bytes[i], length};
    }
    struct berth_row rows[2] = {row_of(request_of(inputs, spec->input_count, 0, 1)),
                                row_of(request_of(inputs, spec->input_count, 1, 1))};
    run_rows(instance, &rows[0], 1);
    rows[1].request->outputs_wanted = (const char *[]){"f64_out", "bool_out"};
    rows[1].request->output_wanted_count = 2;
    run_rows(instance, &rows[1], 1);
    for (size_t i = 0; i < spec->output_count; i++) {
        const struct berth_tensor *tensor;
        const void *got = output(&rows[0], spec->outputs[i].name, &tensor);
        assert_int_equal(tensor->dtype, spec->inputs[i].dtype);
        assert_memory_equal(got, bytes[i], inputs[i].length);
    }
    assert_int_equal(rows[0].part->tensor_count, 13);
    assert_int_equal(rows[1].part->tensor_count, 2);
    row_finish(&rows[0]);
    row_finish(&rows[1]);
    bytes[0][1] = 2; /* no BOOL */
    struct berth_row row = row_of(request_of(inputs, spec->input_count, 0, 1));
    run_rows(instance, &row, 1);
    assert_int_equal(row.err.code, BERTH_INVALID);
    assert_int_equal(row.part->tensor_count, 0);
    row_finish(&row);
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

static void reshapes_as_the_config_says(void **state)
{
    (void)state;
    struct berth_err err = {0};
    struct berth_model_spec *spec = spec_of("linear.onnx");
    struct berth_io in = {.name = "x", .dtype = BERTH_DTYPE_FP32, .rank = 2, .dims = {2, 4},
                          .has_reshape = true, .reshape_rank = 1, .reshape_dims = {8}};
    struct berth_io out = {.name = "y", .dtype = BERTH_DTYPE_FP32, .rank = 2, .dims = {4, 1},
                           .has_reshape = true, .reshape_rank = 1, .reshape_dims = {4}};
    spec->inputs = &in;
    spec->outputs = &out;
    spec->input_count = spec->output_count = 1;
    spec->batch_size_max = 8;
    spec->batch_size_set = true;
    assert_int_equal(onnx->describe(spec, &err), BERTH_OK);
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct input input = {"x", BERTH_DTYPE_FP32, 3, {1, 2, 4}, x, sizeof(x)};
    struct berth_row rows[3] = {row_of(request_of(&input, 1, 0, 1)),
                                row_of(request_of(&input, 1, 0, 1)),
                                row_of(request_of(&input, 1, 0, 1))};
    run_rows(instance, rows, 1);     /* written in place */
    run_rows(instance, rows + 1, 2); /* cut apart */
    const struct berth_tensor *tensor;
    const float *first = output(&rows[0], "y", &tensor);
    for (size_t i = 0; i < 3; i++) {
        const float *y = output(&rows[i], "y", &tensor);
        assert_int_equal(tensor->rank, 3);
        assert_int_equal(tensor->dims[0], 1);
        assert_int_equal(tensor->dims[1], 4);
        assert_int_equal(tensor->dims[2], 1);
        for (size_t k = 0; k < 4; k++) {
            assert_true(fabsf(y[k] - first[k]) < 1e-4f);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        row_finish(&rows[i]);
    }
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

static void outputs_that_do_not_fit_are_errors(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("doubled.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    const float x[3] = {1, 2, 3};
    struct input input = floats("x", 1, 3, x);
    struct berth_row rows[2] = {row_of(request_of(&input, 1, 0, 1)),
                                row_of(request_of(&input, 1, 0, 1))};
    run_rows(instance, rows, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(rows[i].err.code, BERTH_INTERNAL);
        assert_non_null(strstr(rows[i].err.msg, "4 rows for a batch of 2"));
        assert_int_equal(rows[i].part->tensor_count, 0);
        row_finish(&rows[i]);
    }
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

/* A run that asks for more than there is is one request's error, not the process' end. */
static void too_much_memory_is_an_error(void **state)
{
    static const int64_t counts[] = {INT64_C(1) << 42, INT64_MAX, -5, 1000};
    (void)state;
    struct berth_model_spec *spec = described("filled.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    for (size_t i = 0; i < 4; i++) {
        struct input input = {"count", BERTH_DTYPE_INT64, 1, {1, 0, 0}, &counts[i], 8};
        struct berth_row row = row_of(request_of(&input, 1, 0, 1));
        run_rows(instance, &row, 1);
        assert_int_equal(row.err.code == BERTH_OK, counts[i] == 1000);
        if (i == 0) {
            assert_int_equal(row.err.code, BERTH_TOO_LARGE);
        }
        row_finish(&row);
    }
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

/* --- cancelling --- */

static void *cancel_later(void *request)
{
    usleep(50000);
    atomic_store(&((struct berth_request *)request)->cancelled, true);
    return NULL;
}

static void cancelled_rows_stop(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("slow.onnx");
    struct berth_engine_model *model = attached(spec);
    struct berth_instance *instance = instance_of(model);
    const int64_t forever = INT64_C(1) << 40;
    const int64_t short_one = 3;
    struct input endless = {"count", BERTH_DTYPE_INT64, 1, {1, 0, 0}, &forever, 8};
    struct input quick = {"count", BERTH_DTYPE_INT64, 1, {1, 0, 0}, &short_one, 8};
    struct berth_row rows[3] = {row_of(request_of(&endless, 1, 0, 1)),
                                row_of(request_of(&endless, 1, 0, 1)),
                                row_of(request_of(&quick, 1, 0, 1))};
    pthread_t thread;
    atomic_store(&rows[1].request->cancelled, true); /* before the run */
    assert_int_equal(pthread_create(&thread, NULL, cancel_later, rows[0].request), 0);
    run_rows(instance, rows, 3); /* would last for years */
    pthread_join(thread, NULL);
    assert_int_equal(rows[0].err.code, BERTH_CANCELLED);
    assert_int_equal(rows[1].err.code, BERTH_CANCELLED);
    assert_int_equal(rows[2].err.code, BERTH_OK);
    for (size_t i = 0; i < 3; i++) {
        row_finish(&rows[i]);
    }
    onnx->instance_destroy(instance);
    onnx->model_detach(model);
    berth_spec_release(spec);
}

/* --- threads and memory --- */

static void sessions_share_one_pool(void **state)
{
    enum { SESSIONS = 50 };
    (void)state;
    struct berth_model_spec *spec = described("linear.onnx");
    struct berth_engine_model *held[SESSIONS];
    struct berth_instance *instances[SESSIONS];
    const float x[8] = {1};
    struct input input = floats("x", 1, 8, x);
    held[0] = attached(spec);
    instances[0] = instance_of(held[0]);
    int before = thread_count(); /* one that was joined may still be among them for a moment */
    for (size_t i = 1; i < SESSIONS; i++) {
        held[i] = attached(spec);
        instances[i] = instance_of(held[i]);
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        struct berth_row row = row_of(request_of(&input, 1, 0, 1));
        run_rows(instances[i], &row, 1);
        assert_int_equal(row.err.code, BERTH_OK);
        row_finish(&row);
    }
    assert_true(thread_count() <= before);
    for (size_t i = 0; i < SESSIONS; i++) {
        onnx->instance_destroy(instances[i]);
        onnx->model_detach(held[i]);
    }
    assert_true(thread_count() <= before);
    berth_spec_release(spec);
}

static void memory_is_counted_and_comes_back(void **state)
{
    (void)state;
    struct berth_ort_meter meter = {0};
    struct berth_ort_session *session = NULL;
    struct berth_err err = {0};
    char path[1200];
    snprintf(path, sizeof(path), "%s/filled.onnx", models);
    assert_int_equal(berth_ort_session_open(path, &meter, &session, &err), BERTH_OK);
    uint64_t resting = atomic_load(&meter.bytes_used);
    int64_t count = 1 << 20;
    struct berth_ort_value in = {.name = "count", .dtype = BERTH_DTYPE_INT64, .rank = 1,
                                 .dims = {1}, .bytes = &count, .length = 8};
    struct berth_ort_value out = {.name = "y"};
    struct berth_ort_run run = {.inputs = &in, .input_count = 1, .outputs = &out,
                                .output_count = 1};
    assert_int_equal(berth_ort_session_run(session, &run, &err), BERTH_OK);
    assert_int_equal(out.length, 4 << 20);
    assert_int_equal(atomic_load(&meter.bytes_used), resting + (4 << 20));
    berth_ort_value_clear(&out);
    assert_int_equal(atomic_load(&meter.bytes_used), resting);
    assert_true(atomic_load(&meter.bytes_peak) >= resting + (4 << 20));
    assert_true(berth_ort_memory_pooled() > 0);
    berth_ort_session_close(session);
    assert_int_equal(atomic_load(&meter.bytes_used), 0);
    assert_int_equal(berth_ort_memory_pooled(), 0);
}

static void nothing_is_left_after_detach(void **state)
{
    (void)state;
    struct berth_slabs_stats before;
    struct berth_slabs_stats after;
    uint64_t live = 0;
    const float x[8] = {1};
    struct input input = floats("x", 1, 8, x);
    for (int turn = 0; turn < 3; turn++) {
        berth_slabs_stats(slabs, &before);
        live = turn == 1 ? berth_mem_bytes_live() : live; /* the first turn may fill pools */
        struct berth_model_spec *spec = described("linear.onnx");
        struct berth_engine_model *model = attached(spec);
        struct berth_instance *instance = instance_of(model);
        struct berth_row row = row_of(request_of(&input, 1, 0, 1));
        run_rows(instance, &row, 1);
        assert_true(onnx->model_bytes(model) > 0);
        row_finish(&row);
        onnx->instance_destroy(instance);
        onnx->model_detach(model);
        berth_spec_release(spec);
        berth_slabs_stats(slabs, &after);
        assert_int_equal(after.bytes_out, before.bytes_out);
    }
    assert_int_equal(berth_mem_bytes_live(), live);
}

struct runner {
    struct berth_engine_model *model;
    size_t wrong;
};

static void *run_often(void *argument)
{
    struct runner *runner = argument;
    struct berth_instance *instance = instance_of(runner->model);
    const float x[6] = {1, 2, 3, 4, 5, 6};
    struct input inputs[2] = {floats("x", 2, 3, x), floats("y", 2, 3, x)};
    for (int i = 0; i < 200; i++) {
        struct berth_row rows[2] = {row_of(request_of(inputs, 2, 0, 2)),
                                    row_of(request_of(inputs, 2, 0, 2))};
        const struct berth_tensor *tensor;
        run_rows(instance, rows, 2);
        for (size_t row = 0; row < 2; row++) {
            const float *z = output(&rows[row], "z", &tensor);
            runner->wrong += z[0] != 2 || z[5] != 12;
            row_finish(&rows[row]);
        }
    }
    onnx->instance_destroy(instance);
    return NULL;
}

/* Instances of one model on several threads, while other models come and go. */
static void runs_while_others_load(void **state)
{
    (void)state;
    struct berth_model_spec *spec = described("add.onnx");
    struct berth_model_spec *other = described("linear.onnx");
    struct runner runners[3] = {{0}};
    pthread_t threads[3];
    runners[0].model = runners[1].model = runners[2].model = attached(spec);
    uint64_t resting = onnx->model_bytes(runners[0].model);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_often, &runners[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        onnx->model_detach(attached(other));
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(runners[i].wrong, 0);
    }
    assert_int_equal(onnx->model_bytes(runners[0].model), resting);
    onnx->model_detach(runners[0].model);
    berth_spec_release(spec);
    berth_spec_release(other);
}

/* Each allocation of ours fails once, on the way from describe to an answer. */
static void survives_failing_allocations(void **state)
{
    (void)state;
    const float x[8] = {1};
    struct input input = floats("x", 1, 8, x);
    bool clean = false;
    for (uint64_t nth = 1; !clean; nth++) {
        struct berth_err err = {0};
        struct berth_engine_model *model = NULL;
        struct berth_instance *instance = NULL;
        struct berth_model_spec *spec = spec_of("linear.onnx");
        struct berth_row row = row_of(request_of(&input, 1, 0, 1));
        struct berth_batch batch = {.rows = &row, .row_count = 1, .batch_rows = 1};
        uint64_t calls = berth_mem_call_count();
        berth_mem_fail_at(nth, false);
        enum berth_code code = onnx->describe(spec, &err);
        if (code == BERTH_OK) {
            code = onnx->model_attach(spec, (struct berth_span){.fd = -1}, &model, &err);
        }
        if (code == BERTH_OK) {
            code = onnx->instance_create(model, 0, &instance, &err);
        }
        if (code == BERTH_OK) {
            code = onnx->execute(instance, &batch, &err);
        }
        clean = berth_mem_call_count() - calls < nth;
        berth_mem_fail_at(0, false);
        assert_true(!clean || (code == BERTH_OK && row.err.code == BERTH_OK));
        onnx->instance_destroy(instance);
        onnx->model_detach(model);
        row_finish(&row);
        berth_spec_release(spec);
        assert_true(nth < 10000);
    }
}

static void reads_metadata(void **state)
{
    (void)state;
    struct berth_ort_meter meter = {0};
    struct berth_ort_session *session = NULL;
    struct berth_err err = {0};
    char path[1200];
    snprintf(path, sizeof(path), "%s/linear.onnx", models);
    assert_int_equal(berth_ort_session_open(path, &meter, &session, &err), BERTH_OK);
    assert_string_equal(berth_ort_session_metadata(session, "berth.test"), "yes");
    assert_string_equal(berth_ort_session_metadata(session, "empty"), "");
    assert_null(berth_ort_session_metadata(session, "nothing"));
    assert_int_equal(berth_ort_session_find_input(session, "x"), 0);
    assert_int_equal(berth_ort_session_find_output(session, "x"), -1);
    berth_ort_session_close(session);
}

static int setup(void **state)
{
    (void)state;
    struct berth_err err = {0};
    const char *source = getenv("BERTH_SOURCE");
    snprintf(models, sizeof(models), "%s/tests/models", source != NULL ? source : ".");
    struct berth_slabs_options options = {.bytes_budget = 64 << 20, .bytes_pool_max = 8 << 20};
    if (berth_slabs_create(&options, &slabs, &err) != BERTH_OK) {
        return -1;
    }
    struct berth_engine_env env = {.slabs = slabs, .threads = 2};
    return onnx->start(&env, &err) == BERTH_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    onnx->finish();
    berth_slabs_destroy(slabs);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describes_and_completes),
        cmocka_unit_test(keeps_what_the_config_says),
        cmocka_unit_test(refuses_a_config_that_does_not_fit),
        cmocka_unit_test(broken_files_are_errors_that_name_them),
        cmocka_unit_test(sessions_open_regular_files),
        cmocka_unit_test(names_hold_no_nul),
        cmocka_unit_test(hostile_files_do_no_harm),
        cmocka_unit_test(runs_one_request),
        cmocka_unit_test(batched_equals_solo),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(cuts_mixed_batches_apart),
        cmocka_unit_test(strings_go_through),
        cmocka_unit_test(every_type_goes_through),
        cmocka_unit_test(reshapes_as_the_config_says),
        cmocka_unit_test(outputs_that_do_not_fit_are_errors),
        cmocka_unit_test(too_much_memory_is_an_error),
        cmocka_unit_test(cancelled_rows_stop),
        cmocka_unit_test(sessions_share_one_pool),
        cmocka_unit_test(memory_is_counted_and_comes_back),
        cmocka_unit_test(nothing_is_left_after_detach),
        cmocka_unit_test(runs_while_others_load),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(reads_metadata),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
