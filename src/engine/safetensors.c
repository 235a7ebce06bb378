/* safetensors.c - see safetensors.h.
 *
 * The header is JSON: name -> type, shape, first and last byte in what follows it. The format has
 * the tensors fill all of that without a hole, so they are sorted by place, and each must begin
 * where the one before it ends and the last end with the file. That excludes overlaps, bytes
 * nobody reads and files cut short, all in one comparison a tensor.
 */
#include "engine/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#define LENGTH_BYTES 8 /* of the header's length */

struct berth_safetensors {
    struct berth_arena arena;
    struct berth_safetensor *tensors;              /* sorted by offset */
    const struct berth_safetensor **tensors_named; /* sorted by name */
    size_t count;
    int fd; /* -1: only parsed */
};

struct type_name {
    const char *name;
    enum berth_dtype dtype; /* NONE: of the format, and not for us */
};

static const struct type_name type_names[] = {
    {"BF16", BERTH_DTYPE_BF16},  {"F32", BERTH_DTYPE_FP32},     {"F16", BERTH_DTYPE_FP16},
    {"I64", BERTH_DTYPE_INT64},  {"F64", BERTH_DTYPE_FP64},     {"I32", BERTH_DTYPE_INT32},
    {"U8", BERTH_DTYPE_UINT8},   {"I8", BERTH_DTYPE_INT8},      {"BOOL", BERTH_DTYPE_BOOL},
    {"U16", BERTH_DTYPE_UINT16}, {"I16", BERTH_DTYPE_INT16},    {"U32", BERTH_DTYPE_UINT32},
    {"U64", BERTH_DTYPE_UINT64}, {"F8_E4M3", BERTH_DTYPE_NONE}, {"F8_E5M2", BERTH_DTYPE_NONE},
};

static enum berth_code header_read(int fd, uint64_t size, struct berth_safetensors **out,
                                   struct berth_err *err);
static enum berth_code tensors_read(struct berth_safetensors *file, const json_t *root,
                                    uint64_t data_offset, struct berth_err *err);
static enum berth_code tensor_read(struct berth_safetensor *tensor, const json_t *entry,
                                   struct berth_err *err);
static enum berth_code tensor_dtype(struct berth_safetensor *tensor, const json_t *entry,
                                    struct berth_err *err);
static enum berth_code tensor_shape(struct berth_safetensor *tensor, const json_t *entry,
                                    uint64_t *bytes, struct berth_err *err);
static enum berth_code places_check(const struct berth_safetensors *file, uint64_t data_offset,
                                    uint64_t data_bytes, struct berth_err *err);
static int by_offset(const void *a, const void *b);
static int by_name(const void *a, const void *b);
static int name_compare(const void *name, const void *entry);
static enum berth_code read_exactly(int fd, void *bytes, size_t length, off_t offset,
                                    struct berth_err *err);

enum berth_code berth_safetensors_open(const char *path, struct berth_safetensors **out,
                                       struct berth_err *err)
{
    int fd = -1;
    uint64_t bytes = 0;
    BERTH_TRY(berth_file_open(path, &fd, &bytes, err));
    struct berth_err inner = {0};
    struct berth_safetensors *file = NULL;
    enum berth_code code = header_read(fd, bytes, &file, &inner);
    if (code != BERTH_OK) {
        close(fd);
        return berth_fail(err, code, "%s: %s", path, inner.msg);
    }
    file->fd = fd;
    *out = file;
    return BERTH_OK;
}

void berth_safetensors_close(struct berth_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    if (file->fd >= 0) {
        close(file->fd);
    }
    berth_arena_finish(&file->arena);
    berth_free(file);
}

enum berth_code berth_safetensors_parse(const char *header, size_t bytes, uint64_t data_bytes,
                                        struct berth_safetensors **out, struct berth_err *err)
{
    json_t *root = NULL;
    json_error_t where;
    if (bytes > BERTH_SAFETENSORS_HEADER_MAX) {
        return berth_fail(err, BERTH_TOO_LARGE, "the header is longer than %u bytes",
                          BERTH_SAFETENSORS_HEADER_MAX);
    }
    struct berth_safetensors *file = berth_alloc(sizeof(*file));
    if (file == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a header");
    }
    file->fd = -1;
    berth_arena_init(&file->arena, 0);
    enum berth_code code = berth_json_read(header, bytes, JSON_REJECT_DUPLICATES, &root, &where);
    if (code != BERTH_OK) {
        (void)berth_fail(err, code, "the header is not JSON: byte %d: %s", where.position,
                         where.text);
    } else if (!json_is_object(root)) {
        code = berth_fail(err, BERTH_INVALID, "the header is no JSON object");
    } else {
        code = tensors_read(file, root, LENGTH_BYTES + bytes, err);
    }
    if (code == BERTH_OK && file->count == 0) {
        code = berth_fail(err, BERTH_INVALID, "no tensor in it");
    }
    if (code == BERTH_OK) {
        code = places_check(file, LENGTH_BYTES + bytes, data_bytes, err);
    }
    json_decref(root);
    if (code != BERTH_OK) {
        berth_safetensors_close(file);
        return code;
    }
    *out = file;
    return BERTH_OK;
}

size_t berth_safetensors_count(const struct berth_safetensors *file)
{
    return file->count;
}

const struct berth_safetensor *berth_safetensors_at(const struct berth_safetensors *file,
                                                    size_t index)
{
    return index < file->count ? &file->tensors[index] : NULL;
}

const struct berth_safetensor *berth_safetensors_find(const struct berth_safetensors *file,
                                                      const char *name)
{
    if (file->count == 0) {
        return NULL;
    }
    const struct berth_safetensor *const *found = bsearch(
        name, file->tensors_named, file->count, sizeof(struct berth_safetensor *), name_compare);
    return found == NULL ? NULL : *found;
}

int berth_safetensors_fd(const struct berth_safetensors *file)
{
    return file->fd;
}

static enum berth_code header_read(int fd, uint64_t size, struct berth_safetensors **out,
                                   struct berth_err *err)
{
    uint8_t prefix[LENGTH_BYTES];
    uint64_t length = 0;
    if (size < LENGTH_BYTES) {
        return berth_fail(err, BERTH_INVALID, "%" PRIu64 " bytes are too few for a header", size);
    }
    BERTH_TRY(read_exactly(fd, prefix, sizeof(prefix), 0, err));
    for (size_t i = 0; i < LENGTH_BYTES; i++) {
        length |= (uint64_t)prefix[i] << (8 * i);
    }
    if (length > BERTH_SAFETENSORS_HEADER_MAX) {
        return berth_fail(err, BERTH_TOO_LARGE,
                          "a header of %" PRIu64 " bytes is longer than the %u that are read",
                          length, BERTH_SAFETENSORS_HEADER_MAX);
    }
    if (length > size - LENGTH_BYTES) {
        return berth_fail(err, BERTH_INVALID,
                          "truncated: a header of %" PRIu64 " bytes in a file of %" PRIu64, length,
                          size);
    }
    char *header = berth_alloc((size_t)length + 1);
    if (header == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to read the header");
    }
    enum berth_code code = read_exactly(fd, header, (size_t)length, LENGTH_BYTES, err);
    if (code == BERTH_OK) {
        code = berth_safetensors_parse(header, (size_t)length, size - LENGTH_BYTES - length, out,
                                       err);
    }
    berth_free(header);
    return code;
}

/* The object's members as tensors, sorted both ways. */
static enum berth_code tensors_read(struct berth_safetensors *file, const json_t *root,
                                    uint64_t data_offset, struct berth_err *err)
{
    const char *name = NULL;
    const json_t *entry = NULL;
    size_t room = json_object_size(root) + 1;
    file->tensors = berth_arena_alloc(&file->arena, room * sizeof(*file->tensors));
    file->tensors_named = berth_arena_alloc(&file->arena, room * sizeof(*file->tensors_named));
    if (file->tensors == NULL || file->tensors_named == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %zu tensors", room);
    }
    json_object_foreach((json_t *)(uintptr_t)root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            continue; /* notes of whoever wrote the file */
        }
        struct berth_safetensor *tensor = &file->tensors[file->count];
        tensor->name = berth_arena_strdup(&file->arena, name);
        if (tensor->name == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a name");
        }
        BERTH_TRY(tensor_read(tensor, entry, err));
        tensor->offset += data_offset;
        file->count++;
    }
    qsort(file->tensors, file->count, sizeof(*file->tensors), by_offset);
    for (size_t i = 0; i < file->count; i++) {
        file->tensors_named[i] = &file->tensors[i];
    }
    qsort(file->tensors_named, file->count, sizeof(struct berth_safetensor *), by_name);
    return BERTH_OK;
}

/* offset is left relative to the header's end. */
static enum berth_code tensor_read(struct berth_safetensor *tensor, const json_t *entry,
                                   struct berth_err *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    uint64_t bytes = 0;
    if (!json_is_object(entry)) {
        return berth_fail(err, BERTH_INVALID, "tensor '%s' is no JSON object", tensor->name);
    }
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return berth_fail(err, BERTH_INVALID, "tensor '%s': data_offsets are not [begin, end]",
                          tensor->name);
    }
    tensor->offset = (uint64_t)json_integer_value(begin);
    tensor->bytes = (uint64_t)json_integer_value(end) - tensor->offset;
    BERTH_TRY(tensor_dtype(tensor, entry, err));
    BERTH_TRY(tensor_shape(tensor, entry, &bytes, err));
    if (bytes != tensor->bytes) {
        return berth_fail(err, BERTH_INVALID,
                          "tensor '%s': its shape has %" PRIu64 " bytes, its data_offsets %" PRIu64,
                          tensor->name, bytes, tensor->bytes);
    }
    return BERTH_OK;
}

static enum berth_code tensor_dtype(struct berth_safetensor *tensor, const json_t *entry,
                                    struct berth_err *err)
{
    const char *word = json_string_value(json_object_get(entry, "dtype"));
    for (size_t i = 0; word != NULL && i < BERTH_COUNT_OF(type_names); i++) {
        if (strcmp(word, type_names[i].name) == 0 && type_names[i].dtype != BERTH_DTYPE_NONE) {
            tensor->dtype = type_names[i].dtype;
            return BERTH_OK;
        }
    }
    return berth_fail(err, word == NULL ? BERTH_INVALID : BERTH_UNSUPPORTED,
                      "tensor '%s' has the unknown type '%.32s'", tensor->name,
                      word == NULL ? "" : word);
}

/* A shape of no dimensions has one element; a dimension may be 0. */
static enum berth_code tensor_shape(struct berth_safetensor *tensor, const json_t *entry,
                                    uint64_t *bytes, struct berth_err *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t size = berth_dtype_bytes(tensor->dtype);
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > BERTH_RANK_MAX) {
        return berth_fail(err, BERTH_INVALID, "tensor '%s': shape is no list of at most %d numbers",
                          tensor->name, BERTH_RANK_MAX);
    }
    tensor->rank = (uint8_t)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        json_int_t value = json_integer_value(dim);
        if (!json_is_integer(dim) || value < 0 || !berth_mul_size(size, (size_t)value, &size)) {
            return berth_fail(err, BERTH_INVALID,
                              "tensor '%s': dimension %zu of its shape is no "
                              "size",
                              tensor->name, i);
        }
        tensor->dims[i] = value;
    }
    *bytes = size;
    return BERTH_OK;
}

static enum berth_code places_check(const struct berth_safetensors *file, uint64_t data_offset,
                                    uint64_t data_bytes, struct berth_err *err)
{
    uint64_t at = data_offset; /* no overflow: every begin and end is below 2^63 */
    for (size_t i = 0; i < file->count; i++) {
        const struct berth_safetensor *tensor = &file->tensors[i];
        if (tensor->offset != at) {
            return berth_fail(err, BERTH_INVALID, "tensor '%s' does not begin where %s%s%s",
                              tensor->name, i == 0 ? "the header" : "'",
                              i == 0 ? "" : tensor[-1].name, i == 0 ? " ends" : "' before it ends");
        }
        at += tensor->bytes;
    }
    if (at - data_offset != data_bytes) {
        return berth_fail(err, BERTH_INVALID,
                          "truncated or overlong: the tensors have %" PRIu64
                          " bytes, the file has %" PRIu64 " for them",
                          at - data_offset, data_bytes);
    }
    return BERTH_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct berth_safetensor *left = a;
    const struct berth_safetensor *right = b;
    if (left->offset != right->offset) {
        return left->offset < right->offset ? -1 : 1;
    }
    /* Empty ones first, and equal ones always in the same order. */
    return left->bytes != right->bytes ? (left->bytes < right->bytes ? -1 : 1)
                                       : strcmp(left->name, right->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct berth_safetensor *const *)a)->name,
                  (*(const struct berth_safetensor *const *)b)->name);
}

static int name_compare(const void *name, const void *entry)
{
    return strcmp(name, (*(const struct berth_safetensor *const *)entry)->name);
}

static enum berth_code read_exactly(int fd, void *bytes, size_t length, off_t offset,
                                    struct berth_err *err)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(fd, (char *)bytes + done, length - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return berth_fail(err, BERTH_INVALID, "cannot be read: %s",
                              got == 0 ? "it became shorter" : strerror(errno));
        }
        done += (size_t)got;
    }
    return BERTH_OK;
}
