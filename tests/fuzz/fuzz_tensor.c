/* fuzz_tensor.c - what a model answered, of any bytes, as KServe's JSON: it is told exactly if JSON
 * can tell it, and what is told reads back as the same bytes.
 *
 * Input: the type, how many rows it has, for strings how many there are, then the bytes. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/kserve_json.h"

#define BYTES_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static struct berth_slabs *slabs;

/* As many strings as the shape says, to the last byte, all of them text. */
static bool strings_are_good(const uint8_t *bytes, size_t length, size_t count)
{
    while (count > 0 && length >= 4) {
        uint32_t size;
        memcpy(&size, bytes, 4);
        if (size > length - 4 ||
            berth_utf8_valid_length((const char *)bytes + 4, size) != size) {
            return false;
        }
        bytes += 4 + size;
        length -= 4 + size;
        count--;
    }
    return count == 0 && length == 0;
}

static bool can_be_told(const struct berth_tensor *tensor, const uint8_t *bytes, size_t length)
{
    size_t count = 0;
    if (tensor->dtype == BERTH_DTYPE_BYTES) {
        return berth_tensor_elements(tensor, &count) && strings_are_good(bytes, length, count);
    }
    return tensor->dtype != BERTH_DTYPE_FP16 && tensor->dtype != BERTH_DTYPE_BF16;
}

static bool has_no_number(enum berth_dtype dtype, const uint8_t *bytes, size_t length)
{
    for (size_t at = 0; dtype == BERTH_DTYPE_FP32 && at < length; at += sizeof(float)) {
        float value;
        memcpy(&value, bytes + at, sizeof(value));
        if (!isfinite(value)) {
            return true;
        }
    }
    for (size_t at = 0; dtype == BERTH_DTYPE_FP64 && at < length; at += sizeof(double)) {
        double value;
        memcpy(&value, bytes + at, sizeof(value));
        if (!isfinite(value)) {
            return true;
        }
    }
    return false;
}

static void read_back(const struct berth_tensor *tensor, const struct berth_buf *text,
                      const uint8_t *bytes, size_t length)
{
    static const char *const names[] = {"name", "datatype", "shape", "data"};
    struct berth_json_value root, members[BERTH_COUNT_OF(names)];
    struct berth_buf again = {0};
    const char *what = NULL;
    size_t position, count = 0, elements = 0;
    BERTH_ASSERT(berth_json_check(text->bytes, text->length, &root, &what, &position) == BERTH_OK);
    berth_json_members(&root, names, BERTH_COUNT_OF(names), members);
    BERTH_ASSERT(berth_json_equals(&members[0], tensor->name));
    BERTH_ASSERT(berth_json_equals(&members[1], berth_dtype_name(tensor->dtype)));
    BERTH_ASSERT(berth_json_count(&members[2]) == tensor->rank);
    BERTH_ASSERT(berth_kserve_read_data(&members[3], tensor->dtype, &again, &count, NULL) ==
                 BERTH_OK);
    BERTH_ASSERT(berth_tensor_elements(tensor, &elements) && count == elements);
    BERTH_ASSERT(berth_buf_ok(&again) && again.length == length);
    for (size_t i = 0; i < length; i++) {
        uint8_t want = tensor->dtype == BERTH_DTYPE_BOOL ? bytes[i] != 0 : bytes[i];
        BERTH_ASSERT((uint8_t)again.bytes[i] == want);
    }
    berth_buf_finish(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct berth_tensor tensor = {.name = "o\"\n", .rank = 2};
    struct berth_buf text = {0};
    struct berth_err err = {0};
    if (slabs == NULL) {
        struct berth_slabs_options options = {.bytes_budget = 1 << 20, .bytes_pool_max = 1 << 20};
        BERTH_ASSERT(berth_slabs_create(&options, &slabs, NULL) == BERTH_OK);
    }
    if (length < 3) {
        return 0;
    }
    tensor.dtype = (enum berth_dtype)(1 + bytes[0] % BERTH_DTYPE_BF16);
    size_t step = berth_dtype_bytes(tensor.dtype);
    size_t rows = 1u + bytes[1] % 4, strings = bytes[2];
    bytes += 3;
    length = length - 3 < BYTES_MAX ? length - 3 : BYTES_MAX;
    if (tensor.dtype != BERTH_DTYPE_BYTES) { /* the wire lets no other length through */
        strings = length / step;
        length = strings / rows * rows * step;
    }
    tensor.dims[0] = (int64_t)rows;
    tensor.dims[1] = (int64_t)(strings / rows);
    if (length > 0) {
        BERTH_ASSERT(berth_slabs_take(slabs, length, &tensor.range, NULL) == BERTH_OK);
        memcpy(berth_slabs_pointer(slabs, &tensor.range), bytes, length);
    }
    enum berth_code code = berth_kserve_check_json(&tensor, slabs, &err);
    BERTH_ASSERT((code == BERTH_OK) == can_be_told(&tensor, bytes, length));
    BERTH_ASSERT(code == BERTH_OK || strstr(err.msg, tensor.name) != NULL);
    if (code == BERTH_OK) {
        berth_kserve_put_tensor(&text, &tensor, slabs, false, SIZE_MAX);
        BERTH_ASSERT(berth_buf_ok(&text));
        if (!has_no_number(tensor.dtype, bytes, length)) {
            read_back(&tensor, &text, bytes, length);
        }
    }
    berth_buf_finish(&text);
    berth_slabs_give(slabs, &tensor.range);
    return 0;
}
