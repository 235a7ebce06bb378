/* onnx_file.c - see onnx_file.h.
 *
 * An ONNX file is one protobuf message; what we want of it are a few small messages between large
 * ones, so a reader that follows the wire format and seeks past the rest takes a few system calls,
 * where a session costs all weights. Reads go through pread and never past a message's own end: a
 * file that is cut off or changes under us is an error, where a mapping would be a signal.
 * Numbers of fields are those of the ONNX format, IR versions 3 to 13.
 */
#include "engine/onnx_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/ort.h"

#define WINDOW_BYTES 8192
#define NAME_BYTES_MAX 4096
#define ARENA_BYTES_MAX (64 << 20)
#define INITIALIZERS_MAX (1 << 20)

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct reader {
    const char *path;
    int fd;
    uint64_t at;     /* in the file */
    uint64_t window_at;
    size_t window_length;
    unsigned char window[WINDOW_BYTES];
    struct berth_arena *arena;
    struct berth_err *err;
    bool has_graph;
};

/* One field: its number, and either a number or where its bytes end. */
struct field {
    uint64_t number;
    enum wire wire;
    uint64_t value;
    uint64_t end;
};

/* A growing array in the reader's arena. */
struct names {
    const char **items;
    size_t count;
    size_t capacity;
};

struct ios {
    struct berth_onnx_io *items;
    size_t count;
    size_t capacity;
};

static enum berth_code model_read(struct reader *reader, struct berth_onnx_file *out);
static enum berth_code graph_read(struct reader *reader, uint64_t end, struct berth_onnx_file *out);
static enum berth_code initializer_read(struct reader *reader, uint64_t end, struct names *names,
                                        struct berth_onnx_file *out);
static enum berth_code io_read(struct reader *reader, uint64_t end, struct ios *ios);
static enum berth_code type_read(struct reader *reader, uint64_t end, struct berth_onnx_io *io);
static enum berth_code tensor_type_read(struct reader *reader, uint64_t end,
                                        struct berth_onnx_io *io);
static enum berth_code shape_read(struct reader *reader, uint64_t end, struct berth_onnx_io *io);
static enum berth_code dim_read(struct reader *reader, uint64_t end, int64_t *out);
static void inputs_filter(struct ios *inputs, struct names *initializers);
static enum berth_code field_next(struct reader *reader, uint64_t end, struct field *out);
static enum berth_code text_read(struct reader *reader, uint64_t end, const char **out);
static enum berth_code broken(struct reader *reader, const char *what);

/* TensorProto.DataType; the index is its number. */
static const enum berth_dtype dtypes[] = {
    [1] = BERTH_DTYPE_FP32,    [2] = BERTH_DTYPE_UINT8,   [3] = BERTH_DTYPE_INT8,
    [4] = BERTH_DTYPE_UINT16,  [5] = BERTH_DTYPE_INT16,   [6] = BERTH_DTYPE_INT32,
    [7] = BERTH_DTYPE_INT64,   [8] = BERTH_DTYPE_BYTES,   [9] = BERTH_DTYPE_BOOL,
    [10] = BERTH_DTYPE_FP16,   [11] = BERTH_DTYPE_FP64,   [12] = BERTH_DTYPE_UINT32,
    [13] = BERTH_DTYPE_UINT64, [16] = BERTH_DTYPE_BF16,
};

enum berth_code berth_onnx_file_read(const char *path, struct berth_onnx_file *out,
                                     struct berth_err *err)
{
    enum berth_code code;
    struct reader reader = {.path = path, .err = err};
    memset(out, 0, sizeof(*out));
    BERTH_TRY(berth_file_open(path, &reader.fd, &out->bytes, err));
    berth_arena_init(&out->arena, ARENA_BYTES_MAX);
    reader.arena = &out->arena;
    code = model_read(&reader, out);
    close(reader.fd);
    if (code != BERTH_OK) {
        berth_onnx_file_finish(out);
    }
    return code;
}

void berth_onnx_file_finish(struct berth_onnx_file *file)
{
    berth_arena_finish(&file->arena);
    memset(file, 0, sizeof(*file));
}

static enum berth_code model_read(struct reader *reader, struct berth_onnx_file *out)
{
    struct field field;
    while (reader->at < out->bytes) {
        BERTH_TRY(field_next(reader, out->bytes, &field));
        if (field.number == 7 && field.wire == WIRE_BYTES) { /* graph */
            if (reader->has_graph) {
                return broken(reader, "a second graph");
            }
            reader->has_graph = true;
            BERTH_TRY(graph_read(reader, field.end, out));
        }
        reader->at = field.end;
    }
    return reader->has_graph ? BERTH_OK : broken(reader, "it ends without a graph");
}

static enum berth_code graph_read(struct reader *reader, uint64_t end, struct berth_onnx_file *out)
{
    struct field field;
    struct names initializers = {0};
    struct ios inputs = {0};
    struct ios outputs = {0};
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.wire == WIRE_BYTES) {
            switch (field.number) {
            case 5: /* initializer */
                BERTH_TRY(initializer_read(reader, field.end, &initializers, out));
                break;
            case 11: /* input */
                BERTH_TRY(io_read(reader, field.end, &inputs));
                break;
            case 12: /* output */
                BERTH_TRY(io_read(reader, field.end, &outputs));
                break;
            default: /* nodes, names, inner shapes: not ours */
                break;
            }
        }
        reader->at = field.end;
    }
    inputs_filter(&inputs, &initializers);
    out->inputs = inputs.items;
    out->input_count = inputs.count;
    out->outputs = outputs.items;
    out->output_count = outputs.count;
    if (inputs.count > BERTH_ORT_VALUES_MAX || outputs.count > BERTH_ORT_VALUES_MAX) {
        return broken(reader, "too many inputs or outputs");
    }
    return BERTH_OK;
}

/* external_data is a list of {key 1, value 2}. */
static enum berth_code external_read(struct reader *reader, uint64_t end,
                                     struct berth_onnx_file *out)
{
    struct field field;
    const char *key = "";
    const char *value = "";
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.wire == WIRE_BYTES && (field.number == 1 || field.number == 2)) {
            BERTH_TRY(text_read(reader, field.end, field.number == 1 ? &key : &value));
        }
        reader->at = field.end;
    }
    if (strcmp(key, "location") == 0) {
        bool inside = value[0] != '/' && strcmp(value, "..") != 0 &&
                      strncmp(value, "../", 3) != 0 && strstr(value, "/../") == NULL;
        size_t length = strlen(value);
        if (!inside || (length >= 3 && strcmp(value + length - 3, "/..") == 0)) {
            return broken(reader, "weights outside the model's folder");
        }
    } else if (strcmp(key, "length") == 0) {
        uint64_t bytes = strtoull(value, NULL, 10);
        if (bytes > UINT64_MAX / 4 || out->bytes_external > UINT64_MAX / 4) {
            return broken(reader, "an impossible length of weights");
        }
        out->bytes_external += bytes;
    }
    return BERTH_OK;
}

static enum berth_code initializer_read(struct reader *reader, uint64_t end, struct names *names,
                                        struct berth_onnx_file *out)
{
    struct field field;
    const char *name = "";
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.number == 8 && field.wire == WIRE_BYTES) {
            BERTH_TRY(text_read(reader, field.end, &name));
        } else if (field.number == 13 && field.wire == WIRE_BYTES) {
            BERTH_TRY(external_read(reader, field.end, out));
        }
        reader->at = field.end;
    }
    if (names->count == names->capacity) {
        size_t capacity = names->capacity == 0 ? 64 : names->capacity * 2;
        const char **grown = capacity > INITIALIZERS_MAX
                                 ? NULL
                                 : berth_arena_alloc(reader->arena, capacity * sizeof(*grown));
        if (grown == NULL) {
            return broken(reader, "too many initialisers");
        }
        if (names->count > 0) {
            memcpy(grown, names->items, names->count * sizeof(*grown));
        }
        names->items = grown;
        names->capacity = capacity;
    }
    names->items[names->count++] = name;
    return BERTH_OK;
}

/* ValueInfoProto: name 1, type 2. */
static enum berth_code io_read(struct reader *reader, uint64_t end, struct ios *ios)
{
    struct field field;
    struct berth_onnx_io io = {.name = NULL};
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.number == 1 && field.wire == WIRE_BYTES) {
            BERTH_TRY(text_read(reader, field.end, &io.name));
        } else if (field.number == 2 && field.wire == WIRE_BYTES) {
            BERTH_TRY(type_read(reader, field.end, &io));
        }
        reader->at = field.end;
    }
    if (io.name == NULL || io.name[0] == '\0') {
        return broken(reader, "an input or output without a name");
    }
    if (ios->count == ios->capacity) {
        size_t capacity = ios->capacity == 0 ? 16 : ios->capacity * 2;
        struct berth_onnx_io *grown =
            capacity > INITIALIZERS_MAX
                ? NULL
                : berth_arena_alloc(reader->arena, capacity * sizeof(*grown));
        if (grown == NULL) {
            return broken(reader, "too many inputs or outputs");
        }
        if (ios->count > 0) {
            memcpy(grown, ios->items, ios->count * sizeof(*grown));
        }
        ios->items = grown;
        ios->capacity = capacity;
    }
    ios->items[ios->count++] = io;
    return BERTH_OK;
}

/* TypeProto: tensor_type 1; sequences, maps and the rest are not served. */
static enum berth_code type_read(struct reader *reader, uint64_t end, struct berth_onnx_io *io)
{
    struct field field;
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.number == 1 && field.wire == WIRE_BYTES) {
            BERTH_TRY(tensor_type_read(reader, field.end, io));
        }
        reader->at = field.end;
    }
    return BERTH_OK;
}

/* TypeProto.Tensor: elem_type 1, shape 2. */
static enum berth_code tensor_type_read(struct reader *reader, uint64_t end,
                                        struct berth_onnx_io *io)
{
    struct field field;
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.number == 1 && field.wire == WIRE_VARINT) {
            io->dtype =
                field.value < BERTH_COUNT_OF(dtypes) ? dtypes[field.value] : BERTH_DTYPE_NONE;
        } else if (field.number == 2 && field.wire == WIRE_BYTES) {
            BERTH_TRY(shape_read(reader, field.end, io));
        }
        reader->at = field.end;
    }
    return BERTH_OK;
}

static enum berth_code shape_read(struct reader *reader, uint64_t end, struct berth_onnx_io *io)
{
    struct field field;
    io->shaped = true;
    io->rank = 0;
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.number == 1 && field.wire == WIRE_BYTES) {
            if (io->rank == BERTH_RANK_MAX) {
                return broken(reader, "a tensor of more than 8 dimensions");
            }
            BERTH_TRY(dim_read(reader, field.end, &io->dims[io->rank++]));
        }
        reader->at = field.end;
    }
    return BERTH_OK;
}

/* Dimension: dim_value 1, dim_param 2; neither: variable. */
static enum berth_code dim_read(struct reader *reader, uint64_t end, int64_t *out)
{
    struct field field;
    *out = -1;
    while (reader->at < end) {
        BERTH_TRY(field_next(reader, end, &field));
        if (field.number == 1 && field.wire == WIRE_VARINT) {
            *out = field.value > INT64_MAX ? -1 : (int64_t)field.value;
        }
        reader->at = field.end;
    }
    return BERTH_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Files before IR version 4 list weights among the inputs; what has a value is no input of ours. */
static void inputs_filter(struct ios *inputs, struct names *initializers)
{
    size_t kept = 0;
    if (initializers->count == 0) {
        return;
    }
    qsort(initializers->items, initializers->count, sizeof(*initializers->items), by_text);
    for (size_t i = 0; i < inputs->count; i++) {
        if (bsearch(&inputs->items[i].name, initializers->items, initializers->count,
                    sizeof(*initializers->items), by_text) == NULL) {
            inputs->items[kept++] = inputs->items[i];
        }
    }
    inputs->count = kept;
}

static enum berth_code byte_read(struct reader *reader, uint64_t end, unsigned char *out)
{
    if (reader->at >= end) {
        return broken(reader, "a message ends inside a field");
    }
    if (reader->at < reader->window_at ||
        reader->at - reader->window_at >= reader->window_length) {
        ssize_t got = pread(reader->fd, reader->window, sizeof(reader->window), (off_t)reader->at);
        if (got <= 0) {
            return broken(reader, "the file cannot be read");
        }
        reader->window_at = reader->at;
        reader->window_length = (size_t)got;
    }
    *out = reader->window[reader->at - reader->window_at];
    reader->at++;
    return BERTH_OK;
}

static enum berth_code varint_read(struct reader *reader, uint64_t end, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        unsigned char byte = 0;
        BERTH_TRY(byte_read(reader, end, &byte));
        value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return BERTH_OK;
        }
    }
    return broken(reader, "a number of more than 10 bytes");
}

/* Reads a field's head; of a field with bytes, the reader stands at its first byte, and in any case
 * field->end is where the next field begins. */
static enum berth_code field_next(struct reader *reader, uint64_t end, struct field *out)
{
    uint64_t key;
    uint64_t length = 0;
    BERTH_TRY(varint_read(reader, end, &key));
    out->number = key >> 3;
    out->wire = (enum wire)(key & 7);
    out->value = 0;
    if (out->number == 0 || out->number > 0x1FFFFFFF) {
        return broken(reader, "an impossible field");
    }
    switch (out->wire) {
    case WIRE_VARINT:
        BERTH_TRY(varint_read(reader, end, &out->value));
        break;
    case WIRE_FIXED64:
        length = 8;
        break;
    case WIRE_FIXED32:
        length = 4;
        break;
    case WIRE_BYTES:
        BERTH_TRY(varint_read(reader, end, &length));
        break;
    default:
        return broken(reader, "an unknown kind of field");
    }
    if (length > end - reader->at) {
        return broken(reader, "a field is longer than what holds it (cut off?)");
    }
    out->end = reader->at + length;
    return BERTH_OK;
}

static enum berth_code text_read(struct reader *reader, uint64_t end, const char **out)
{
    uint64_t length = end - reader->at;
    if (length > NAME_BYTES_MAX) {
        return broken(reader, "a name is too long");
    }
    char *text = berth_arena_alloc(reader->arena, (size_t)length + 1);
    if (text == NULL) {
        return berth_fail(reader->err, BERTH_UNAVAILABLE, "no memory to read %s", reader->path);
    }
    for (uint64_t i = 0; i < length; i++) {
        unsigned char byte = 0;
        BERTH_TRY(byte_read(reader, end, &byte));
        if (byte == '\0') {
            return broken(reader, "a NUL in a name");
        }
        text[i] = (char)byte;
    }
    *out = text;
    return BERTH_OK;
}

static enum berth_code broken(struct reader *reader, const char *what)
{
    return berth_fail(reader->err, BERTH_INVALID, "%s is not a usable ONNX model: %s, at byte %llu",
                      reader->path, what, (unsigned long long)reader->at);
}
