/* tensor.c - element types, sizes, and tensors of strings. */
#include <string.h>

#include "request/request.h"

struct dtype_row {
    const char *name;
    size_t bytes;
};

static const struct dtype_row dtypes[] = {
    {"", 0},
#define BERTH_DTYPE_ROW(name, bytes) {#name, bytes},
    BERTH_DTYPES(BERTH_DTYPE_ROW)
#undef BERTH_DTYPE_ROW
};

const char *berth_dtype_name(enum berth_dtype dtype)
{
    BERTH_ASSERT((unsigned)dtype < BERTH_COUNT_OF(dtypes));
    return dtypes[dtype].name;
}

enum berth_dtype berth_dtype_parse(const char *name, size_t length)
{
    for (size_t i = 1; i < BERTH_COUNT_OF(dtypes); i++) {
        if (strlen(dtypes[i].name) == length && memcmp(dtypes[i].name, name, length) == 0) {
            return (enum berth_dtype)i;
        }
    }
    return BERTH_DTYPE_NONE;
}

size_t berth_dtype_bytes(enum berth_dtype dtype)
{
    BERTH_ASSERT((unsigned)dtype < BERTH_COUNT_OF(dtypes));
    return dtypes[dtype].bytes;
}

bool berth_tensor_elements(const struct berth_tensor *tensor, size_t *out)
{
    size_t elements = 1;
    bool empty = false;
    for (uint8_t i = 0; i < tensor->rank; i++) {
        if (tensor->dims[i] < 0) {
            return false;
        }
        empty = empty || tensor->dims[i] == 0;
        if (!empty && !berth_mul_size(elements, (size_t)tensor->dims[i], &elements)) {
            return false;
        }
    }
    *out = empty ? 0 : elements;
    return true;
}

unsigned char *berth_bytes_put(unsigned char *at, const void *bytes, uint32_t length)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(length >> (8 * i)); /* little-endian, as KServe has it */
    }
    if (length > 0) {
        memcpy(at + 4, bytes, length);
    }
    return at + 4 + length;
}

bool berth_bytes_next(const unsigned char **at, const unsigned char *end, const char **bytes,
                      uint32_t *length)
{
    const unsigned char *from = *at;
    if (end - from < 4) {
        return false;
    }
    uint32_t size = (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
                    (uint32_t)from[3] << 24;
    if ((size_t)(end - from) - 4 < size) {
        return false;
    }
    *bytes = (const char *)from + 4;
    *length = size;
    *at = from + 4 + size;
    return true;
}
