/* kserve_json.c - see kserve_json.h.
 *
 * Numbers are printed with the fewest digits that read back the same, and always as a real number
 * ("1.0"), because that is what Triton's clients get from Triton.
 */
#include "api/kserve_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 16

const char berth_kserve_unparsed[] = "request";

/* What "data" is read into. */
struct reader {
    enum berth_dtype dtype;
    struct berth_buf *out;
    size_t *count; /* elements so far */
};

static enum berth_code read_item(const struct berth_json_value *item, enum berth_dtype dtype,
                                 struct berth_buf *out, struct berth_err *err);
static enum berth_code read_number(const struct berth_json_value *item, enum berth_dtype dtype,
                                   struct berth_buf *out, struct berth_err *err);
static enum berth_code read_real(const struct berth_json_value *item, enum berth_dtype dtype,
                                 struct berth_buf *out, struct berth_err *err);
static enum berth_code read_level(const struct reader *reader, const struct berth_json_value *items,
                                  int depth, struct berth_err *err);
static void put_data(struct berth_buf *out, const struct berth_tensor *tensor, const void *bytes,
                     size_t length_max);
static void put_element(struct berth_buf *out, enum berth_dtype dtype, const unsigned char *at);
static void put_strings(struct berth_buf *out, const struct berth_tensor *tensor, const void *bytes,
                        size_t length_max);

enum berth_code berth_kserve_read_data(const struct berth_json_value *items, enum berth_dtype dtype,
                                       struct berth_buf *out, size_t *count, struct berth_err *err)
{
    berth_buf_reserve(out, berth_json_count(items) * (berth_dtype_bytes(dtype) + 1));
    struct reader reader = {.dtype = dtype, .out = out, .count = count};
    return read_level(&reader, items, 0, err);
}

enum berth_code berth_kserve_check_json(const struct berth_tensor *tensor,
                                        struct berth_slabs *slabs, struct berth_err *err)
{
    if (tensor->dtype == BERTH_DTYPE_FP16 || tensor->dtype == BERTH_DTYPE_BF16) {
        return berth_fail_field(err, BERTH_INVALID, "outputs",
                                "sending %s data via JSON is not supported. Please use the binary "
                                "data format for output %s",
                                berth_dtype_name(tensor->dtype), tensor->name);
    }
    if (tensor->dtype != BERTH_DTYPE_BYTES) {
        return BERTH_OK;
    }
    const unsigned char *at = berth_slabs_pointer(slabs, &tensor->range);
    const unsigned char *end = at == NULL ? NULL : at + tensor->range.length;
    const char *string;
    uint32_t length;
    size_t elements = 0, count = 0;
    for (; berth_bytes_next(&at, end, &string, &length); count++) {
        if (berth_utf8_valid_length(string, length) != length) {
            return berth_fail_field(err, BERTH_INVALID, "outputs",
                                    "output %s is not UTF-8 text. Please use the binary data "
                                    "format for it",
                                    tensor->name);
        }
    }
    if (at != end || !berth_tensor_elements(tensor, &elements) || count != elements) {
        return berth_fail(err, BERTH_INTERNAL, "output %s is not the strings that its shape says",
                          tensor->name);
    }
    return BERTH_OK;
}

void berth_kserve_put_tensor(struct berth_buf *out, const struct berth_tensor *tensor,
                             struct berth_slabs *slabs, bool binary, size_t length_max)
{
    berth_buf_puts(out, "{\"name\":");
    berth_buf_json_string(out, tensor->name, strlen(tensor->name));
    berth_buf_puts(out, ",\"datatype\":\"");
    berth_buf_puts(out, berth_dtype_name(tensor->dtype));
    berth_buf_puts(out, "\",\"shape\":[");
    for (size_t i = 0; i < tensor->rank; i++) {
        berth_buf_puts(out, i == 0 ? "" : ",");
        berth_buf_put_i64(out, tensor->dims[i]);
    }
    berth_buf_puts(out, "]");
    if (binary) {
        berth_buf_puts(out, ",\"parameters\":{\"binary_data_size\":");
        berth_buf_put_u64(out, tensor->range.length);
        berth_buf_puts(out, "}}");
        return;
    }
    berth_buf_puts(out, ",\"data\":[");
    const void *bytes = berth_slabs_pointer(slabs, &tensor->range);
    if (tensor->dtype == BERTH_DTYPE_BYTES) {
        put_strings(out, tensor, bytes, length_max);
    } else {
        put_data(out, tensor, bytes, length_max);
    }
    berth_buf_puts(out, "]}");
}

void berth_kserve_put_double(struct berth_buf *out, double value)
{
    char text[40];
    if (!isfinite(value)) {
        berth_buf_puts(out, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*e", digits - 1, value);
        if (digits == 17 || strtod(text, NULL) == value) {
            break;
        }
    }
    /* text is [-]d.ddde[+-]xx: lay its digits out as RapidJSON does. */
    char digits[24];
    int count = 0;
    const char *at = text;
    if (*at == '-') {
        berth_buf_puts(out, "-");
        at++;
    }
    for (; *at != 'e'; at++) {
        if (*at != '.') {
            digits[count++] = *at;
        }
    }
    int exponent = (int)strtol(at + 1, NULL, 10);
    while (count > 1 && digits[count - 1] == '0') {
        count--;
    }
    int point = exponent + 1; /* digits before the decimal point */
    if (count <= point && point <= 21) {
        berth_buf_printf(out, "%.*s%.*s.0", count, digits, point - count, "000000000000000000000");
    } else if (0 < point && point <= 21) {
        berth_buf_printf(out, "%.*s.%.*s", point, digits, count - point, digits + point);
    } else if (-6 < point && point <= 0) {
        berth_buf_printf(out, "0.%.*s%.*s", -point, "000000", count, digits);
    } else if (count == 1) {
        berth_buf_printf(out, "%ce%d", digits[0], exponent);
    } else {
        berth_buf_printf(out, "%c.%.*se%d", digits[0], count - 1, digits + 1, exponent);
    }
}

static enum berth_code read_level(const struct reader *reader, const struct berth_json_value *items,
                                  int depth, struct berth_err *err)
{
    if (depth > DEPTH_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "data", "data is nested too deep");
    }
    struct berth_json_value item;
    struct berth_json_walk walk = berth_json_walk(items);
    while (berth_json_next(&walk, NULL, &item)) {
        if (item.kind == BERTH_JSON_ARRAY) {
            BERTH_TRY(read_level(reader, &item, depth + 1, err));
        } else {
            BERTH_TRY(read_item(&item, reader->dtype, reader->out, err));
            (*reader->count)++;
        }
    }
    return BERTH_OK;
}

static enum berth_code unparsed(const char *what, struct berth_err *err)
{
    return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                            "Unable to parse 'data': attempt to access JSON %s", what);
}

static enum berth_code read_item(const struct berth_json_value *item, enum berth_dtype dtype,
                                 struct berth_buf *out, struct berth_err *err)
{
    if (dtype == BERTH_DTYPE_BOOL) {
        uint64_t integer = item->kind == BERTH_JSON_TRUE;
        if (item->kind != BERTH_JSON_TRUE && item->kind != BERTH_JSON_FALSE &&
            !berth_json_uint64(item, &integer)) {
            return unparsed("non-boolean as boolean", err);
        }
        unsigned char value = integer != 0;
        berth_buf_append(out, &value, 1);
        return BERTH_OK;
    }
    if (dtype == BERTH_DTYPE_BYTES) {
        if (item->kind != BERTH_JSON_STRING) {
            return unparsed("non-string as string", err);
        }
        uint32_t length = (uint32_t)berth_json_string_length(item);
        berth_buf_append(out, &length, sizeof(length));
        berth_buf_reserve(out, length);
        if (berth_buf_ok(out)) {
            berth_json_string_copy(item, out->bytes + out->length);
            out->length += length;
            out->bytes[out->length] = '\0';
        }
        return BERTH_OK;
    }
    return read_number(item, dtype, out, err);
}

/* A number that does not fit its type is refused: it would be answered for another number. */
static enum berth_code read_number(const struct berth_json_value *item, enum berth_dtype dtype,
                                   struct berth_buf *out, struct berth_err *err)
{
    if (dtype == BERTH_DTYPE_FP32 || dtype == BERTH_DTYPE_FP64) {
        return read_real(item, dtype, out, err);
    }
    if (item->kind != BERTH_JSON_INTEGER) {
        return unparsed("non-integer as integer", err);
    }
    static const struct {
        enum berth_dtype dtype;
        int64_t min;
        uint64_t max;
    } bounds[] = {
        {BERTH_DTYPE_INT8, INT8_MIN, INT8_MAX},    {BERTH_DTYPE_INT16, INT16_MIN, INT16_MAX},
        {BERTH_DTYPE_INT32, INT32_MIN, INT32_MAX}, {BERTH_DTYPE_INT64, INT64_MIN, INT64_MAX},
        {BERTH_DTYPE_UINT8, 0, UINT8_MAX},         {BERTH_DTYPE_UINT16, 0, UINT16_MAX},
        {BERTH_DTYPE_UINT32, 0, UINT32_MAX},       {BERTH_DTYPE_UINT64, 0, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        if (bounds[i].dtype != dtype) {
            continue;
        }
        int64_t below = 0;
        uint64_t value = 0;
        bool fits = berth_json_uint64(item, &value)
                        ? value <= bounds[i].max
                        : berth_json_int64(item, &below) && below >= bounds[i].min;
        if (!fits) {
            return berth_fail_field(err, BERTH_INVALID, "data", "%.*s does not fit %s",
                                    (int)item->length, item->at, berth_dtype_name(dtype));
        }
        value = below < 0 ? (uint64_t)below : value;
        berth_buf_append(out, &value, berth_dtype_bytes(dtype)); /* little-endian, as the wire */
        return BERTH_OK;
    }
    return berth_fail_field(err, BERTH_INVALID, "data", "%s data cannot come as JSON",
                            berth_dtype_name(dtype));
}

static enum berth_code read_real(const struct berth_json_value *item, enum berth_dtype dtype,
                                 struct berth_buf *out, struct berth_err *err)
{
    double value;
    if (item->kind != BERTH_JSON_INTEGER && item->kind != BERTH_JSON_REAL) {
        return unparsed("non-number as double", err);
    }
    bool fits = berth_json_double(item, &value);
    float narrow = fits ? (float)value : 0;
    if (!fits || (dtype == BERTH_DTYPE_FP32 && !isfinite(narrow))) {
        return berth_fail_field(err, BERTH_INVALID, "data", "%.*s does not fit %s",
                                (int)item->length, item->at, berth_dtype_name(dtype));
    }
    if (dtype == BERTH_DTYPE_FP32) {
        berth_buf_append(out, &narrow, sizeof(narrow));
    } else {
        berth_buf_append(out, &value, sizeof(value));
    }
    return BERTH_OK;
}

static void put_data(struct berth_buf *out, const struct berth_tensor *tensor, const void *bytes,
                     size_t length_max)
{
    size_t step = berth_dtype_bytes(tensor->dtype);
    const unsigned char *at = bytes;
    for (uint64_t i = 0;
         i + step <= tensor->range.length && berth_buf_ok(out) && out->length <= length_max;
         i += step) {
        if (i > 0) {
            berth_buf_append(out, ",", 1);
        }
        put_element(out, tensor->dtype, at + i);
    }
}

#define PUT_AS(type, put)                  \
    do {                                   \
        type value;                        \
        memcpy(&value, at, sizeof(value)); \
        put(out, value);                   \
    } while (0)

static void put_element(struct berth_buf *out, enum berth_dtype dtype, const unsigned char *at)
{
    float single;
    double real;
    switch (dtype) {
    case BERTH_DTYPE_BOOL: berth_buf_puts(out, *at != 0 ? "true" : "false"); break;
    case BERTH_DTYPE_UINT8: berth_buf_put_u64(out, *at); break;
    case BERTH_DTYPE_INT8: berth_buf_put_i64(out, (int8_t)*at); break;
    case BERTH_DTYPE_UINT16: PUT_AS(uint16_t, berth_buf_put_u64); break;
    case BERTH_DTYPE_INT16: PUT_AS(int16_t, berth_buf_put_i64); break;
    case BERTH_DTYPE_UINT32: PUT_AS(uint32_t, berth_buf_put_u64); break;
    case BERTH_DTYPE_INT32: PUT_AS(int32_t, berth_buf_put_i64); break;
    case BERTH_DTYPE_UINT64: PUT_AS(uint64_t, berth_buf_put_u64); break;
    case BERTH_DTYPE_INT64: PUT_AS(int64_t, berth_buf_put_i64); break;
    case BERTH_DTYPE_FP32:
        memcpy(&single, at, sizeof(single));
        berth_kserve_put_double(out, single);
        break;
    case BERTH_DTYPE_FP64:
        memcpy(&real, at, sizeof(real));
        berth_kserve_put_double(out, real);
        break;
    default: BERTH_ASSERT(false); break; /* berth_kserve_check_json lets no other through */
    }
}

static void put_strings(struct berth_buf *out, const struct berth_tensor *tensor, const void *bytes,
                        size_t length_max)
{
    const unsigned char *at = bytes;
    const unsigned char *end = at == NULL ? NULL : at + tensor->range.length;
    const char *string;
    uint32_t length;
    bool first = true;
    while (out->length <= length_max && berth_bytes_next(&at, end, &string, &length)) {
        berth_buf_puts(out, first ? "" : ",");
        berth_buf_json_string(out, string, length);
        first = false;
    }
}
