/* weights.c - see weights.h; what goes where is weights_plan.c.
 *
 * Reading: the planned tensors, in the order they have in the file, are cut into pieces of at most
 * 8 MiB, and each reader takes the next piece when it is done with its last. It reads a block of it
 * at a time, which is still in the cache when it is looked at and converted. Where file and span
 * have the same type, bytes go from the file into the sink's buffer and are only looked at for
 * values that are no numbers; all else is converted, turned over or scaled on the way. Bytes that
 * are folded (less than a thousandth of a model) are computed in float64, each from the tensors it
 * needs, so no reader waits for another one's tensor.
 *
 * A mapped file was rejected: page faults read far less at a time than 8 MiB, and a file that is
 * cut short while it is read would be a signal instead of an error.
 */
#include "engine/parakeet/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/parakeet/e4m3.h"
#include "engine/parakeet/weights_plan.h"
#include "engine/parakeet/weights_values.h"
#include "engine/safetensors.h"

#define PIECE_BYTES (8U << 20)
#define BLOCK_BYTES (256U << 10) /* 8 MiB of BF16 to halves: 1.0 ms; whole pieces: 1.6 (EPYC) */
#define READERS_MAX 16
#define NORM_EPSILON 1e-5
#define PATH_BYTES_MAX 4096
#define FILE_NAME "model.safetensors"
#define IGNORED_SUFFIX ".num_batches_tracked" /* counts a training's batches */

/* A planned tensor and the file's. */
struct wanted {
    struct berth_parakeet_planned planned;
    const struct berth_safetensor *stored;
};

/* Elements [start, start + count) of a tensor. */
struct piece {
    const struct wanted *wanted;
    uint64_t start;
    uint64_t count;
};

/* A model file open for reading, and the threads' common state. */
struct loading {
    const struct berth_parakeet_config *config;
    enum berth_parakeet_element element;
    const struct berth_parakeet_sink *sink;
    struct berth_safetensors *file;
    char path[PATH_BYTES_MAX];
    struct wanted *wanted; /* sorted by place in the file */
    size_t wanted_count;
    struct piece *pieces;
    size_t piece_count;
    atomic_size_t piece_next;
    atomic_bool failed; /* a reader is at its error: the others stop */
    const atomic_bool *unwanted; /* E10; NULL: nobody says */
};

struct reader {
    struct loading *loading;
    uint32_t index;
    pthread_t thread;
    uint8_t *block; /* BLOCK_BYTES; this and the others are made when first needed */
    uint8_t *turned; /* PIECE_BYTES each */
    uint8_t *finished;
    enum berth_code code;
    struct berth_err err;
};

static enum berth_code loading_open(struct loading *loading, const char *folder,
                                    struct berth_err *err);
static void loading_close(struct loading *loading);
static enum berth_code wanted_list(struct loading *loading, struct berth_err *err);
static enum berth_code wanted_check(const struct loading *loading, const struct wanted *wanted,
                                    struct berth_err *err);
static enum berth_code unknown_check(const struct loading *loading, struct berth_err *err);
static enum berth_code pieces_cut(struct loading *loading, struct berth_err *err);
static uint64_t piece_elements(const struct wanted *wanted);
static void *reader_main(void *argument);
static enum berth_code piece_read(struct reader *reader, const struct piece *piece);
static enum berth_code piece_plain(struct reader *reader, const struct piece *piece,
                                   enum berth_dtype to);
static enum berth_code piece_frequency(struct reader *reader, const struct piece *piece,
                                       enum berth_dtype to);
static enum berth_code piece_scaled(struct reader *reader, const struct piece *piece);
static void scale_rows(const float *from, size_t rows, size_t width, uint8_t *to, float *scales);
static enum berth_code piece_floats(struct reader *reader, const struct piece *piece);
static void fold(const struct wanted *wanted, double *parts[5], float *out);
static enum berth_code part_read(struct reader *reader, const struct wanted *wanted,
                                 const char *name, double **out);
static enum berth_code values_read(struct reader *reader, const struct piece *piece,
                                   enum berth_dtype to, uint8_t *out);
static enum berth_code bytes_read(struct reader *reader, const struct wanted *wanted,
                                  uint64_t start, uint64_t count, void *out);
static enum berth_code piece_write(struct reader *reader, const struct piece *piece,
                                   enum berth_dtype to, const void *bytes);
static enum berth_code refuse_value(struct reader *reader, const char *name);
static enum berth_code refuse_large(struct reader *reader, const char *name);
static uint8_t *buffer_of(uint8_t **own, size_t bytes);
static void *finished_buffer(struct reader *reader);

uint64_t berth_parakeet_weights_bytes(const struct berth_parakeet_config *config,
                                      enum berth_parakeet_element element)
{
    struct berth_parakeet_plan plan = {.config = config, .element = element};
    struct berth_parakeet_planned planned;
    while (berth_parakeet_plan_next(&plan, &planned)) {
    }
    return plan.end;
}

void berth_parakeet_weights_place(const struct berth_parakeet_config *config,
                                  enum berth_parakeet_element element, void *base,
                                  struct berth_parakeet_weights *out)
{
    struct berth_parakeet_plan plan = {.config = config, .element = element};
    struct berth_parakeet_planned planned;
    memset(out, 0, sizeof(*out));
    while (berth_parakeet_plan_next(&plan, &planned)) {
        char *field = (char *)out + planned.pointer;
        const void *address = (const char *)base + planned.offset;
        if (planned.bytes > 0 && !planned.joined) {
            memcpy(field, &address, sizeof(address));
        }
        if (planned.form == BERTH_PARAKEET_FORM_MATRIX ||
            planned.form == BERTH_PARAKEET_FORM_SCALED ||
            planned.form == BERTH_PARAKEET_FORM_FREQUENCY) {
            struct berth_parakeet_linear *linear = (struct berth_parakeet_linear *)(void *)field;
            linear->in = planned.dims[1];
            linear->out += planned.dims[0];
            if (planned.scales > 0 && !planned.joined) {
                linear->scale = (const float *)(const void *)((const char *)base + planned.scales);
            }
        }
    }
}

enum berth_code berth_parakeet_weights_check(const struct berth_parakeet_config *config,
                                             const char *folder, struct berth_err *err)
{
    struct loading *loading = berth_alloc(sizeof(*loading));
    if (loading == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to read a model's weights");
    }
    loading->config = config;
    enum berth_code code = loading_open(loading, folder, err);
    loading_close(loading);
    return code;
}

enum berth_code berth_parakeet_weights_read(const struct berth_parakeet_config *config,
                                            enum berth_parakeet_element element, const char *folder,
                                            const struct berth_parakeet_sink *sink,
                                            struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    uint32_t started = 1;
    uint32_t count = sink->readers < 1             ? 1
                     : sink->readers > READERS_MAX ? READERS_MAX
                                                   : sink->readers;
    struct loading *loading = berth_alloc(sizeof(*loading));
    struct reader *all = berth_alloc(READERS_MAX * sizeof(*all));
    if (loading == NULL || all == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory to read a model's weights");
        goto out;
    }
    *loading = (struct loading){.config = config, .element = element, .sink = sink,
                                .unwanted = berth_engine_load_unwanted()};
    code = loading_open(loading, folder, err);
    if (code == BERTH_OK) {
        code = pieces_cut(loading, err);
    }
    if (code != BERTH_OK) {
        goto out;
    }
    for (uint32_t i = 0; i < count; i++) {
        all[i] = (struct reader){.loading = loading, .index = i};
    }
    /* The caller is reader 0; where no more threads are to be had, fewer do it. */
    while (started < count &&
           pthread_create(&all[started].thread, NULL, reader_main, &all[started]) == 0) {
        started++;
    }
    reader_main(&all[0]);
    for (uint32_t i = 0; i < started; i++) {
        if (i > 0) {
            pthread_join(all[i].thread, NULL);
        }
        if (all[i].code != BERTH_OK && code == BERTH_OK) {
            code = all[i].code;
            if (err != NULL) {
                *err = all[i].err;
            }
        }
    }
out:
    loading_close(loading);
    berth_free(all);
    return code;
}

/* --- what is in the file --- */

static enum berth_code loading_open(struct loading *loading, const char *folder,
                                    struct berth_err *err)
{
    int length = snprintf(loading->path, sizeof(loading->path), "%s/%s", folder, FILE_NAME);
    if (length < 0 || (size_t)length >= sizeof(loading->path)) {
        return berth_fail(err, BERTH_INVALID, "the path of %s is too long", FILE_NAME);
    }
    BERTH_TRY(berth_safetensors_open(loading->path, &loading->file, err));
    BERTH_TRY(wanted_list(loading, err));
    for (size_t i = 0; i < loading->wanted_count; i++) {
        BERTH_TRY(wanted_check(loading, &loading->wanted[i], err));
    }
    return unknown_check(loading, err);
}

static void loading_close(struct loading *loading)
{
    if (loading == NULL) {
        return;
    }
    berth_safetensors_close(loading->file);
    berth_free(loading->wanted);
    berth_free(loading->pieces);
    berth_free(loading);
}

static enum berth_code wanted_list(struct loading *loading, struct berth_err *err)
{
    struct berth_parakeet_plan plan = {.config = loading->config, .element = loading->element};
    struct berth_parakeet_planned planned;
    size_t count = 0;
    while (berth_parakeet_plan_next(&plan, &planned)) {
        count++;
    }
    loading->wanted = berth_alloc(count * sizeof(*loading->wanted));
    if (loading->wanted == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %zu tensors", count);
    }
    plan = (struct berth_parakeet_plan){.config = loading->config, .element = loading->element};
    while (berth_parakeet_plan_next(&plan, &planned)) {
        struct wanted *wanted = &loading->wanted[loading->wanted_count++];
        wanted->planned = planned;
        wanted->stored = berth_safetensors_find(loading->file, planned.name);
    }
    return BERTH_OK;
}

static enum berth_code wanted_check(const struct loading *loading, const struct wanted *wanted,
                                    struct berth_err *err)
{
    const struct berth_parakeet_planned *planned = &wanted->planned;
    const struct berth_safetensor *stored = wanted->stored;
    if (stored == NULL) {
        return berth_fail(err, BERTH_INVALID, "%s: the tensor '%s' is missing", loading->path,
                          planned->name);
    }
    if (stored->dtype != BERTH_DTYPE_BF16 && stored->dtype != BERTH_DTYPE_FP16 &&
        stored->dtype != BERTH_DTYPE_FP32) {
        return berth_fail(err, BERTH_UNSUPPORTED, "%s: tensor '%s' is %s, not BF16, F16 or F32",
                          loading->path, planned->name, berth_dtype_name(stored->dtype));
    }
    bool same = stored->rank == planned->rank;
    for (size_t i = 0; same && i < planned->rank; i++) {
        same = stored->dims[i] == planned->dims[i];
    }
    if (!same) {
        char have[BERTH_RANK_MAX * 24] = "";
        char want[BERTH_RANK_MAX * 24] = "";
        size_t used = 0;
        for (size_t i = 0; i < stored->rank && used < sizeof(have); i++) {
            used += (size_t)snprintf(have + used, sizeof(have) - used,
                                     i == 0 ? "%" PRId64 : ",%" PRId64, stored->dims[i]);
        }
        used = 0;
        for (size_t i = 0; i < planned->rank && used < sizeof(want); i++) {
            used += (size_t)snprintf(want + used, sizeof(want) - used, i == 0 ? "%u" : ",%u",
                                     planned->dims[i]);
        }
        return berth_fail(err, BERTH_INVALID,
                          "%s: tensor '%s' has the shape [%s], by config.json it has [%s]",
                          loading->path, planned->name, have, want);
    }
    return BERTH_OK;
}

/* All that is wanted is there; what else is in the file? */
static enum berth_code unknown_check(const struct loading *loading, struct berth_err *err)
{
    size_t count = berth_safetensors_count(loading->file);
    const struct berth_safetensor *first = berth_safetensors_at(loading->file, 0);
    bool *known = berth_alloc(count + 1);
    enum berth_code code = BERTH_OK;
    if (known == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %zu tensors", count);
    }
    for (size_t i = 0; i < loading->wanted_count; i++) {
        known[loading->wanted[i].stored - first] = true;
    }
    for (size_t i = 0; i < count && code == BERTH_OK; i++) {
        size_t length = strlen(first[i].name);
        size_t suffix = strlen(IGNORED_SUFFIX);
        bool ignored = length > suffix &&
                       strcmp(first[i].name + length - suffix, IGNORED_SUFFIX) == 0;
        if (!known[i] && !ignored) {
            code = berth_fail(err, BERTH_INVALID,
                              "%s: the tensor '%.100s' belongs to no part of this model",
                              loading->path, first[i].name);
        }
    }
    berth_free(known);
    return code;
}

/* --- pieces --- */

static int by_place(const void *a, const void *b)
{
    const struct wanted *left = a;
    const struct wanted *right = b;
    return left->stored->offset < right->stored->offset   ? -1
           : left->stored->offset > right->stored->offset ? 1
                                                          : 0;
}

static enum berth_code pieces_cut(struct loading *loading, struct berth_err *err)
{
    size_t count = 0;
    qsort(loading->wanted, loading->wanted_count, sizeof(*loading->wanted), by_place);
    for (size_t i = 0; i < loading->wanted_count; i++) {
        uint64_t most = piece_elements(&loading->wanted[i]);
        count += (size_t)((loading->wanted[i].planned.elements + most - 1) / most);
    }
    loading->pieces = berth_alloc(count * sizeof(*loading->pieces));
    if (loading->pieces == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %zu pieces", count);
    }
    for (size_t i = 0; i < loading->wanted_count; i++) {
        const struct wanted *wanted = &loading->wanted[i];
        uint64_t most = piece_elements(wanted);
        if (wanted->planned.bytes == 0) {
            continue; /* folded into another one's piece */
        }
        for (uint64_t at = 0; at < wanted->planned.elements; at += most) {
            uint64_t left = wanted->planned.elements - at;
            loading->pieces[loading->piece_count++] = (struct piece){
                .wanted = wanted, .start = at, .count = left < most ? left : most};
        }
    }
    return BERTH_OK;
}

/* How many elements fit into a piece; whole rows where columns are turned over, and all of a tensor
 * that is computed (a few MiB at most). */
static uint64_t piece_elements(const struct wanted *wanted)
{
    const struct berth_parakeet_planned *planned = &wanted->planned;
    uint64_t width = planned->bytes / planned->elements;
    uint64_t width_stored = berth_dtype_bytes(wanted->stored->dtype);
    uint64_t most = PIECE_BYTES / (width > width_stored ? width : width_stored);
    switch (planned->form) {
    case BERTH_PARAKEET_FORM_MATRIX:
    case BERTH_PARAKEET_FORM_ELEMENTS:
    case BERTH_PARAKEET_FORM_FLOATS:
        return most;
    case BERTH_PARAKEET_FORM_SCALED: /* through float32, with its scales behind it */
        most = planned->scales == 0 ? most : PIECE_BYTES / sizeof(float);
        return most / planned->dims[1] * planned->dims[1];
    case BERTH_PARAKEET_FORM_FREQUENCY:
        return most / planned->dims[1] * planned->dims[1];
    case BERTH_PARAKEET_FORM_TAPS:
    case BERTH_PARAKEET_FORM_CONV:
    case BERTH_PARAKEET_FORM_CONV_BIAS:
    case BERTH_PARAKEET_FORM_LSTM_BIAS:
    case BERTH_PARAKEET_FORM_FOLDED:
    default:
        return planned->elements;
    }
}

static void *reader_main(void *argument)
{
    struct reader *reader = argument;
    struct loading *loading = reader->loading;
    while (reader->code == BERTH_OK && !atomic_load(&loading->failed)) {
        size_t index = atomic_fetch_add(&loading->piece_next, 1);
        if (index >= loading->piece_count) {
            break;
        }
        if (loading->unwanted != NULL && atomic_load(loading->unwanted)) {
            reader->code = berth_fail(&reader->err, BERTH_CANCELLED,
                                      "nobody waits for %s any more", loading->path);
        } else {
            reader->code = piece_read(reader, &loading->pieces[index]);
        }
    }
    if (reader->code != BERTH_OK) {
        atomic_store(&loading->failed, true);
    }
    berth_free(reader->block);
    berth_free(reader->turned);
    berth_free(reader->finished);
    return NULL;
}

static enum berth_code piece_read(struct reader *reader, const struct piece *piece)
{
    enum berth_dtype element = reader->loading->element == BERTH_PARAKEET_F16 ? BERTH_DTYPE_FP16
                                                                              : BERTH_DTYPE_FP32;
    switch (piece->wanted->planned.form) {
    case BERTH_PARAKEET_FORM_SCALED:
        if (piece->wanted->planned.scales > 0) {
            return piece_scaled(reader, piece);
        }
        return piece_plain(reader, piece, element);
    case BERTH_PARAKEET_FORM_MATRIX:
    case BERTH_PARAKEET_FORM_ELEMENTS:
        return piece_plain(reader, piece, element);
    case BERTH_PARAKEET_FORM_FLOATS:
        return piece_plain(reader, piece, BERTH_DTYPE_FP32);
    case BERTH_PARAKEET_FORM_FREQUENCY:
        return piece_frequency(reader, piece, element);
    case BERTH_PARAKEET_FORM_TAPS:
    case BERTH_PARAKEET_FORM_CONV:
    case BERTH_PARAKEET_FORM_CONV_BIAS:
    case BERTH_PARAKEET_FORM_LSTM_BIAS:
    case BERTH_PARAKEET_FORM_FOLDED:
    default:
        return piece_floats(reader, piece);
    }
}

static enum berth_code piece_plain(struct reader *reader, const struct piece *piece,
                                   enum berth_dtype to)
{
    uint8_t *finished = finished_buffer(reader);
    if (finished == NULL) {
        return berth_fail(&reader->err, BERTH_UNAVAILABLE, "no memory to read weights into");
    }
    BERTH_TRY(values_read(reader, piece, to, finished));
    return piece_write(reader, piece, to, finished);
}

/* Rows of [channel][frequency] to rows of [frequency][channel]. */
static enum berth_code piece_frequency(struct reader *reader, const struct piece *piece,
                                       enum berth_dtype to)
{
    const struct wanted *wanted = piece->wanted;
    size_t size = berth_dtype_bytes(to);
    size_t channels = reader->loading->config->channels;
    size_t width = wanted->planned.dims[1];
    size_t frequencies = width / channels;
    uint8_t *turned = buffer_of(&reader->turned, PIECE_BYTES);
    uint8_t *finished = finished_buffer(reader);
    if (turned == NULL || finished == NULL) {
        return berth_fail(&reader->err, BERTH_UNAVAILABLE, "no memory to read weights into");
    }
    BERTH_TRY(values_read(reader, piece, to, turned));
    for (size_t row = 0; row < piece->count / width; row++) {
        for (size_t channel = 0; channel < channels; channel++) {
            for (size_t frequency = 0; frequency < frequencies; frequency++) {
                memcpy(finished + (row * width + frequency * channels + channel) * size,
                       turned + (row * width + channel * frequencies + frequency) * size, size);
            }
        }
    }
    return piece_write(reader, piece, to, finished);
}

/* Whole rows as e4m3; the scales stand behind them in the buffer. */
static enum berth_code piece_scaled(struct reader *reader, const struct piece *piece)
{
    const struct wanted *wanted = piece->wanted;
    const struct berth_parakeet_sink *sink = reader->loading->sink;
    const size_t width = wanted->planned.dims[1];
    const size_t count = (size_t)piece->count;
    const size_t rows = count / width;
    uint8_t *floats = buffer_of(&reader->turned, PIECE_BYTES);
    uint8_t *finished = finished_buffer(reader);
    if (floats == NULL || finished == NULL) {
        return berth_fail(&reader->err, BERTH_UNAVAILABLE, "no memory to read weights into");
    }
    float *scales = (float *)(void *)(finished + (count + 255) / 256 * 256);
    BERTH_TRY(values_read(reader, piece, BERTH_DTYPE_FP32, floats));
    scale_rows((const float *)(const void *)floats, rows, width, finished, scales);
    BERTH_TRY(sink->write(sink->state, wanted->planned.offset + piece->start, finished, count,
                          &reader->err));
    return sink->write(sink->state, wanted->planned.scales + piece->start / width * sizeof(float),
                       scales, rows * sizeof(float), &reader->err);
}

/* A row of zeros has the scale 1. */
static void scale_rows(const float *from, size_t rows, size_t width, uint8_t *to, float *scales)
{
    for (size_t row = 0; row < rows; row++) {
        const float *values = from + row * width;
        float largest = 0;
        for (size_t i = 0; i < width; i++) {
            const float magnitude = fabsf(values[i]);
            largest = magnitude > largest ? magnitude : largest;
        }
        /* A scale below the least normal float would not divide. */
        const float scale = largest > 0x1p-100F ? largest / BERTH_E4M3_MAX : 1;
        const float inverse = 1 / scale;
        for (size_t i = 0; i < width; i++) {
            to[row * width + i] = berth_e4m3_of(values[i] * inverse);
        }
        scales[row] = scale;
    }
}

/* --- what is computed --- */

enum { PART_SELF, PART_GAMMA, PART_BIAS, PART_MEAN, PART_VARIANCE, PART_COUNT };

static enum berth_code piece_floats(struct reader *reader, const struct piece *piece)
{
    static const char *const conv_parts[PART_COUNT] = {
        [PART_GAMMA] = "norm.weight",
        [PART_BIAS] = "depthwise_conv.bias",
        [PART_MEAN] = "norm.running_mean",
        [PART_VARIANCE] = "norm.running_var",
    };
    const struct wanted *wanted = piece->wanted;
    enum berth_parakeet_form form = wanted->planned.form;
    bool normed = form == BERTH_PARAKEET_FORM_CONV || form == BERTH_PARAKEET_FORM_CONV_BIAS;
    double *parts[PART_COUNT] = {NULL};
    char name[BERTH_PARAKEET_NAME_MAX];
    float *finished = finished_buffer(reader);
    enum berth_code code = finished == NULL
                               ? berth_fail(&reader->err, BERTH_UNAVAILABLE,
                                            "no memory to read weights into")
                               : part_read(reader, wanted, wanted->planned.name, &parts[PART_SELF]);
    for (size_t i = 1; normed && i < PART_COUNT && code == BERTH_OK; i++) {
        if (i == PART_BIAS && !reader->loading->config->convolution_bias) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "encoder.layers.%u.conv.%s", wanted->planned.index,
                       conv_parts[i]);
        code = part_read(reader, wanted, name, &parts[i]);
    }
    if (code == BERTH_OK && form == BERTH_PARAKEET_FORM_LSTM_BIAS) {
        (void)snprintf(name, sizeof(name), "decoder.lstm.bias_hh_l%u", wanted->planned.index);
        code = part_read(reader, wanted, name, &parts[PART_BIAS]);
    }
    if (code == BERTH_OK) {
        fold(wanted, parts, finished);
        if (!berth_parakeet_values_finite(finished, BERTH_DTYPE_FP32, piece->count)) {
            (void)snprintf(name, sizeof(name), "encoder.layers.%u.conv.%s", wanted->planned.index,
                           conv_parts[PART_VARIANCE]);
            code = refuse_value(reader, normed ? name : wanted->planned.name);
        }
    }
    if (code == BERTH_OK) {
        code = piece_write(reader, piece, BERTH_DTYPE_FP32, finished);
    }
    for (size_t i = 0; i < PART_COUNT; i++) {
        berth_free(parts[i]);
    }
    return code;
}

/* Batch norm: out = (conv + bias - mean) * gamma / sqrt(variance + eps) + beta. */
static void fold(const struct wanted *wanted, double *parts[PART_COUNT], float *out)
{
    const struct berth_parakeet_planned *planned = &wanted->planned;
    size_t channels = planned->dims[0];
    size_t taps = (size_t)planned->elements / channels;
    for (size_t channel = 0; channel < channels; channel++) {
        const double *self = parts[PART_SELF] + channel * taps;
        double scale = 1;
        double shift = 0;
        if (parts[PART_VARIANCE] != NULL) {
            scale = parts[PART_GAMMA][channel] / sqrt(parts[PART_VARIANCE][channel] + NORM_EPSILON);
            shift = parts[PART_BIAS] == NULL ? 0 : parts[PART_BIAS][channel];
            shift = (shift - parts[PART_MEAN][channel]) * scale;
        }
        if (planned->form == BERTH_PARAKEET_FORM_CONV_BIAS) {
            out[channel] = (float)(self[0] + shift);
        } else if (planned->form == BERTH_PARAKEET_FORM_LSTM_BIAS) {
            out[channel] = (float)(self[0] + parts[PART_BIAS][channel]);
        } else {
            for (size_t tap = 0; tap < taps; tap++) {
                out[tap * channels + channel] = (float)(self[tap] * scale);
            }
        }
    }
}

/* A small tensor as float64. `wanted` is the one it is for. */
static enum berth_code part_read(struct reader *reader, const struct wanted *wanted,
                                 const char *name, double **out)
{
    const struct berth_safetensor *stored = strcmp(name, wanted->planned.name) == 0
                                                ? wanted->stored
                                                : berth_safetensors_find(reader->loading->file,
                                                                         name);
    struct wanted part = {.stored = stored};
    size_t count = (size_t)(stored->bytes / berth_dtype_bytes(stored->dtype));
    void *raw = berth_alloc((size_t)stored->bytes);
    float *values = berth_alloc(count * sizeof(*values));
    double *wide = berth_alloc(count * sizeof(*wide));
    enum berth_code code = BERTH_OK;
    (void)snprintf(part.planned.name, sizeof(part.planned.name), "%s", name);
    if (raw == NULL || values == NULL || wide == NULL) {
        code = berth_fail(&reader->err, BERTH_UNAVAILABLE, "no memory for the tensor '%s'", name);
        goto out;
    }
    code = bytes_read(reader, &part, 0, count, raw);
    if (code != BERTH_OK) {
        goto out;
    }
    if (berth_parakeet_values_take(raw, stored->dtype, values, BERTH_DTYPE_FP32, count) !=
        BERTH_PARAKEET_VALUES_GOOD) {
        code = refuse_value(reader, name);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        wide[i] = values[i];
    }
    *out = wide;
    wide = NULL;
out:
    berth_free(raw);
    berth_free(values);
    berth_free(wide);
    return code;
}

/* --- bytes --- */

/* A piece's values as `to`, a block after the other. */
static enum berth_code values_read(struct reader *reader, const struct piece *piece,
                                   enum berth_dtype to, uint8_t *out)
{
    const struct wanted *wanted = piece->wanted;
    const enum berth_dtype from = wanted->stored->dtype;
    const size_t size = berth_dtype_bytes(to), most = BLOCK_BYTES / berth_dtype_bytes(from);
    size_t some = 0;
    if (from != to && buffer_of(&reader->block, BLOCK_BYTES) == NULL) {
        return berth_fail(&reader->err, BERTH_UNAVAILABLE, "no memory to read weights into");
    }
    for (uint64_t done = 0; done < piece->count; done += some) {
        uint8_t *at = out + done * size;
        uint8_t *stored = from == to ? at : reader->block;
        some = piece->count - done < most ? (size_t)(piece->count - done) : most;
        BERTH_TRY(bytes_read(reader, wanted, piece->start + done, some, stored));
        switch (berth_parakeet_values_take(stored, from, at, to, some)) {
        case BERTH_PARAKEET_VALUES_NO_NUMBER:
            return refuse_value(reader, wanted->planned.name);
        case BERTH_PARAKEET_VALUES_LARGE:
            return refuse_large(reader, wanted->planned.name);
        case BERTH_PARAKEET_VALUES_GOOD:
        default:
            break;
        }
    }
    return BERTH_OK;
}

static enum berth_code bytes_read(struct reader *reader, const struct wanted *wanted,
                                  uint64_t start, uint64_t count, void *out)
{
    size_t size = berth_dtype_bytes(wanted->stored->dtype);
    size_t bytes = (size_t)count * size;
    uint64_t offset = wanted->stored->offset + start * size;
    int fd = berth_safetensors_fd(reader->loading->file);
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return berth_fail(&reader->err, BERTH_INVALID, "%s: tensor '%s' cannot be read: %s",
                              reader->loading->path, wanted->planned.name,
                              got == 0 ? "the file became shorter" : strerror(errno));
        }
        done += (size_t)got;
    }
    return BERTH_OK;
}

static enum berth_code piece_write(struct reader *reader, const struct piece *piece,
                                   enum berth_dtype to, const void *bytes)
{
    const struct berth_parakeet_sink *sink = reader->loading->sink;
    size_t size = berth_dtype_bytes(to);
    return sink->write(sink->state, piece->wanted->planned.offset + piece->start * size, bytes,
                       (size_t)piece->count * size, &reader->err);
}

static enum berth_code refuse_value(struct reader *reader, const char *name)
{
    return berth_fail(&reader->err, BERTH_INVALID,
                      "%s: the tensor '%s' holds a value that is no finite number",
                      reader->loading->path, name);
}

static enum berth_code refuse_large(struct reader *reader, const char *name)
{
    return berth_fail(&reader->err, BERTH_UNSUPPORTED, /* the CPU takes it (S15) */
                      "%s: the tensor '%s' holds a value past 65504, the largest of the half "
                      "precision that a GPU takes",
                      reader->loading->path, name);
}

static uint8_t *buffer_of(uint8_t **own, size_t bytes)
{
    if (*own == NULL) {
        *own = berth_alloc(bytes);
    }
    return *own;
}

/* Where the sink wants to be given bytes from. */
static void *finished_buffer(struct reader *reader)
{
    const struct berth_parakeet_sink *sink = reader->loading->sink;
    void *buffer = sink->buffer == NULL ? NULL
                                        : sink->buffer(sink->state, reader->index, PIECE_BYTES);
    return buffer != NULL ? buffer : buffer_of(&reader->finished, PIECE_BYTES);
}
