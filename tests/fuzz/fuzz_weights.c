/* fuzz_weights.c - a small model's weights with things changed in them: refused by name, or each
 * byte of the span is written once and no number in it is none.
 *
 * Input: a byte that chooses types and head, then eight bytes for each change: what, which tensor,
 * where in it (two), and four of a value. The file is put together here, so that what should come
 * of it is known: a tensor that is missing, unknown, misshapen or of another type is refused by the
 * check; a value that is no number is by the reader; and numbers from -1000 to 1000, variances not
 * below 0, are taken. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "engine/parakeet/weights_plan.h"
#include "fuzz_folder.h"
#include "request/request.h"

#define TENSORS_MAX 64
#define VALUES_MAX 8192
#define TAME 1000.0F

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum change { VALUE, FILL, TYPE, SHAPE, DROP, RENAME, EXTRA, CUT, CHANGES };

/* A tensor of the file. */
struct stored {
    struct berth_parakeet_planned planned;
    size_t type; /* of types */
    char name[BERTH_PARAKEET_NAME_MAX + 8];
    size_t first; /* of its values */
    bool dropped;
};

static struct model {
    struct berth_parakeet_config config;
    enum berth_parakeet_element element;
    size_t type;
    struct stored tensors[TENSORS_MAX];
    size_t count, planned_count; /* behind those that belong there are those that do not */
    uint32_t values[VALUES_MAX]; /* bits, of the dtype */
    size_t value_count;
    uint64_t cut;
    bool misfit; /* the check must refuse it */
} model;

/* Those of a model's file first, then others. */
static const struct {
    const char *name;
    enum berth_dtype dtype;
    size_t width;
} types[] = {
    {"F32", BERTH_DTYPE_FP32, 4},  {"F16", BERTH_DTYPE_FP16, 2}, {"BF16", BERTH_DTYPE_BF16, 2},
    {"I32", BERTH_DTYPE_NONE, 0},  {"I16", BERTH_DTYPE_NONE, 0}, {"F64", BERTH_DTYPE_NONE, 0},
    {"F8_E4M3", BERTH_DTYPE_NONE, 0}, {"", BERTH_DTYPE_NONE, 0},
};
static const char *const file_names[] = {"model.safetensors"};
static uint8_t span[VALUES_MAX * 8], written[VALUES_MAX * 8];

static void start(uint8_t choice)
{
    bool ctc = choice & 1;
    model = (struct model){
        .config = {.head = ctc ? BERTH_PARAKEET_CTC : BERTH_PARAKEET_TDT, .mels = 80, .hidden = 4,
                   .heads = 2, .head_dim = 2, .layers = 1, .inner = 6, .kernel = 3, .channels = 2,
                   .attention_bias = choice & 2, .convolution_bias = choice & 4, .vocabulary = 5,
                   .blank = 4, .prediction = ctc ? 0 : 2, .prediction_layers = ctc ? 0 : 1,
                   .durations = {0, 1}, .duration_count = ctc ? 0 : 2, .symbols_max = 10,
                   .narrow = (choice & 24) == 24},
        .element = choice & 8 ? BERTH_PARAKEET_F16 : BERTH_PARAKEET_F32,
        .type = choice / 32u % 3};
    struct berth_parakeet_plan plan = {.config = &model.config, .element = model.element};
    struct berth_parakeet_planned planned;
    while (berth_parakeet_plan_next(&plan, &planned)) {
        BERTH_ASSERT(model.count < TENSORS_MAX - 1);
        BERTH_ASSERT(planned.elements <= VALUES_MAX - model.value_count);
        struct stored *stored = &model.tensors[model.count++];
        stored->planned = planned;
        stored->first = model.value_count;
        stored->type = model.type;
        snprintf(stored->name, sizeof(stored->name), "%s", planned.name);
        for (uint64_t i = 0; i < planned.elements; i++) { /* 1 to 1.875 in every type */
            uint32_t eighths = (uint32_t)(model.value_count % 8);
            model.values[model.value_count++] =
                model.type == 0   ? 0x3F800000U | eighths << 20
                : model.type == 1 ? 0x3C00U | eighths << 7
                                  : 0x3F80U | eighths << 4;
        }
    }
    model.planned_count = model.count;
    BERTH_ASSERT(plan.end <= sizeof(span));
}

static void change(const uint8_t *eight)
{
    struct stored *stored = &model.tensors[eight[1] % model.planned_count];
    struct berth_parakeet_planned *planned = &stored->planned;
    uint32_t place = (uint32_t)eight[2] | (uint32_t)eight[3] << 8, bits;
    memcpy(&bits, eight + 4, sizeof(bits));
    bits = model.type == 0 ? bits : bits & 0xFFFF;
    switch ((enum change)(eight[0] % CHANGES)) {
    case VALUE:
        model.values[stored->first + place % planned->elements] = bits;
        return;
    case FILL:
        for (size_t i = 0; i < planned->elements; i++) {
            model.values[stored->first + i] = bits;
        }
        return;
    case TYPE:
        stored->type = place % BERTH_COUNT_OF(types);
        return;
    case SHAPE:
        if (planned->rank < BERTH_PARAKEET_TENSOR_RANK_MAX) {
            planned->dims[planned->rank++] = 1;
        } else {
            planned->dims[3] += 1 + bits % 1000;
        }
        break;
    case DROP:
        stored->dropped = true;
        break;
    case RENAME:
        stored->name[place % strlen(stored->name)] = (char)('A' + bits % 26); /* none has one */
        break;
    case EXTRA:
        if (model.count < TENSORS_MAX) {
            model.tensors[model.count] = *stored;
            snprintf(model.tensors[model.count++].name, sizeof(stored->name), "X.%.70s",
                     planned->name);
        }
        break;
    case CUT:
    default:
        model.cut = place + 1;
        break;
    }
    model.misfit = true;
}

static void write_file(void)
{
    struct berth_buf header = {0}, file = {0};
    size_t width = types[model.type].width;
    uint64_t at = 0;
    berth_buf_puts(&header, "{");
    for (size_t i = 0; i < model.count; i++) {
        const struct stored *stored = &model.tensors[i];
        if (stored->dropped) {
            continue;
        }
        berth_buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                         at == 0 ? "" : ",", stored->name, types[stored->type].name);
        for (size_t d = 0; d < stored->planned.rank; d++) {
            berth_buf_printf(&header, "%s%u", d == 0 ? "" : ",", stored->planned.dims[d]);
        }
        uint64_t end = at + stored->planned.elements * width;
        berth_buf_printf(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                         (unsigned long long)end);
        at = end;
    }
    berth_buf_puts(&header, "}");
    uint64_t length = header.length;
    berth_buf_append(&file, &length, sizeof(length));
    berth_buf_append(&file, header.bytes, header.length);
    for (size_t i = 0; i < model.count; i++) {
        const struct stored *stored = &model.tensors[i];
        for (size_t k = 0; k < stored->planned.elements && !stored->dropped; k++) {
            berth_buf_append(&file, &model.values[stored->first + k], width);
        }
    }
    BERTH_ASSERT(berth_buf_ok(&header) && berth_buf_ok(&file));
    size_t whole = model.cut < file.length ? file.length - (size_t)model.cut : 0;
    BERTH_ASSERT(ftruncate(folder.fds[0], 0) == 0);
    BERTH_ASSERT(pwrite(folder.fds[0], file.bytes, whole, 0) == (ssize_t)whole);
    folder_link(0, true);
    berth_buf_finish(&header);
    berth_buf_finish(&file);
}

static float half_value(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31);
    float fraction = (float)(bits & 0x3FF) * 0x1p-10F;
    float magnitude = exponent == 31  ? (fraction > 0 ? NAN : INFINITY)
                      : exponent == 0 ? ldexpf(fraction, -14)
                                      : ldexpf(1 + fraction, exponent - 15);
    return bits >> 15 & 1 ? -magnitude : magnitude;
}

static float value_of(enum berth_dtype dtype, uint32_t bits)
{
    float value;
    if (dtype == BERTH_DTYPE_FP16) {
        return half_value(bits);
    }
    bits = dtype == BERTH_DTYPE_BF16 ? bits << 16 : bits;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static enum berth_code span_write(void *state, uint64_t offset, const void *source, size_t bytes,
                                  struct berth_err *err)
{
    uint64_t length = *(const uint64_t *)state;
    BERTH_ASSERT(offset <= length && bytes <= length - offset);
    memcpy(span + offset, source, bytes);
    for (size_t i = 0; i < bytes; i++) {
        written[offset + i]++;
    }
    return BERTH_OK;
}

/* Kept from one input to the next: it is large. */
static void *span_buffer(void *state, uint32_t reader, size_t bytes)
{
    static void *room;
    static size_t room_bytes;
    BERTH_ASSERT(reader == 0);
    if (bytes > room_bytes) {
        berth_free(room);
        room = berth_alloc(bytes);
        room_bytes = bytes;
    }
    return room;
}

/* The numbers of one tensor as they stand in the span. */
static void judge_tensor(const struct berth_parakeet_planned *planned)
{
    bool narrow = planned->scales > 0;
    bool floats = planned->form >= BERTH_PARAKEET_FORM_FLOATS &&
                  planned->form != BERTH_PARAKEET_FORM_FREQUENCY;
    bool halves = !floats && !narrow && model.element == BERTH_PARAKEET_F16;
    size_t width = narrow ? 1 : halves ? 2 : 4;
    for (uint64_t i = 0; i < planned->bytes; i++) {
        BERTH_ASSERT(written[planned->offset + i] == 1);
    }
    for (uint64_t at = 0; at + width <= planned->bytes; at += width) {
        uint32_t bits = 0;
        memcpy(&bits, span + planned->offset + at, width);
        BERTH_ASSERT(!narrow || (bits & 0x7F) != 0x7F);
        BERTH_ASSERT(narrow ||
                     isfinite(value_of(halves ? BERTH_DTYPE_FP16 : BERTH_DTYPE_FP32, bits)));
    }
    for (uint32_t row = 0; narrow && row < planned->dims[0]; row++) {
        float scale;
        memcpy(&scale, span + planned->scales + row * sizeof(scale), sizeof(scale));
        BERTH_ASSERT(isfinite(scale) && scale >= 0);
    }
}

static void judge(void)
{
    struct berth_err err = {0};
    uint64_t length = berth_parakeet_weights_bytes(&model.config, model.element);
    struct berth_parakeet_sink sink = {
        .write = span_write, .buffer = span_buffer, .state = &length};
    bool numbers = true, tame = true;
    for (size_t i = 0; i < model.count; i++) {
        const struct stored *stored = &model.tensors[i];
        model.misfit = model.misfit || types[stored->type].width != types[model.type].width;
        bool variance = strstr(stored->name, "running_var") != NULL;
        for (size_t k = 0; k < stored->planned.elements; k++) {
            float value = value_of(types[stored->type].dtype, model.values[stored->first + k]);
            numbers = numbers && isfinite(value);
            tame = tame && fabsf(value) <= TAME && (!variance || value >= 0);
        }
    }
    enum berth_code code = berth_parakeet_weights_check(&model.config, folder.path, &err);
    BERTH_ASSERT((code == BERTH_OK) == !model.misfit);
    if (code == BERTH_OK) {
        memset(written, 0, length);
        code = berth_parakeet_weights_read(&model.config, model.element, folder.path, &sink, &err);
        BERTH_ASSERT(code != BERTH_OK || numbers);
        BERTH_ASSERT(code == BERTH_OK || !tame);
    }
    struct berth_parakeet_plan plan = {.config = &model.config, .element = model.element};
    struct berth_parakeet_planned planned;
    while (code == BERTH_OK && berth_parakeet_plan_next(&plan, &planned)) {
        judge_tensor(&planned);
    }
    BERTH_ASSERT(code == BERTH_OK || strstr(err.msg, file_names[0]) != NULL);
    BERTH_ASSERT(code == BERTH_OK || code == BERTH_INVALID || code == BERTH_UNSUPPORTED);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (folder.count == 0) {
        folder_make(file_names, BERTH_COUNT_OF(file_names));
    }
    start(length > 0 ? bytes[0] : 0);
    for (size_t at = 1; at + 8 <= length; at += 8) {
        change(bytes + at);
    }
    write_file();
    judge();
    return 0;
}
