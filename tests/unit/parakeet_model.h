/* parakeet_model.h - writes small Parakeet models, whole or with something wrong with them, for
 * tests. Include it after cmocka.
 *
 * A model's values depend on the tensor's name and the element only, so that what was folded or
 * turned over can be computed again.
 */
#ifndef BERTH_PARAKEET_MODEL_H
#define BERTH_PARAKEET_MODEL_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "engine/parakeet/weights_plan.h"
#include "request/request.h"

/* What is wrong with a model; all zero: nothing. */
struct model_wish {
    enum berth_dtype dtype; /* of all tensors; NONE: FP32 */
    const char *without;    /* leave this tensor out */
    const char *extra;      /* and write one of this name */
    const char *misshapen;  /* its first two dimensions are swapped, or it loses one */
    const char *integers;   /* this one has another type */
    const char *poisoned;   /* its last value is `poison` (bits of its type) */
    uint32_t poison;
    const char *filled; /* all values of this one are `fill` */
    float fill;
    bool counters; /* num_batches_tracked, as files have it */
    uint64_t cut;  /* bytes to leave out at the end */
};

static inline uint32_t model_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* A value that every type holds exactly: a multiple of 1/64 in [-1, 1); variances are positive. */
static inline float model_value(const char *name, uint64_t element)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (const char *at = name; *at != '\0'; at++) {
        hash = (hash ^ (uint8_t)*at) * UINT64_C(0x100000001B3);
    }
    hash = (hash ^ element) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
    hash *= UINT64_C(0xBF58476D1CE4E5B9);
    float value = (float)((hash >> 40) & 127) / 64.0F - 1.0F;
    return strstr(name, "running_var") != NULL ? value + 1.5F : value;
}

static inline uint16_t model_half(float value) /* of model_value's kind */
{
    uint32_t bits = model_bits(value);
    if (value > -0x1p-14F && value < 0x1p-14F) {
        return (uint16_t)(bits >> 16 & 0x8000U);
    }
    return (uint16_t)((bits >> 16 & 0x8000U) | ((((bits >> 23) & 0xFFU) - 112U) << 10) |
                      (bits >> 13 & 0x3FFU));
}

static inline void model_put(FILE *file, enum berth_dtype dtype, float value)
{
    uint32_t bits = model_bits(value);
    uint16_t half = dtype == BERTH_DTYPE_BF16 ? (uint16_t)(bits >> 16) : model_half(value);
    if (dtype == BERTH_DTYPE_FP32) {
        fwrite(&bits, sizeof(bits), 1, file);
    } else {
        fwrite(&half, sizeof(half), 1, file);
    }
}

static inline bool model_is(const char *wish, const char *name)
{
    return wish != NULL && strcmp(wish, name) == 0;
}

static inline void model_entry(struct berth_buf *header, const char *name, const char *dtype,
                               const char *shape, uint64_t range[2])
{
    berth_buf_printf(header,
                     "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                     header->length == 0 ? "{" : ",", name, dtype, shape,
                     (unsigned long long)range[0], (unsigned long long)range[1]);
}

static inline void model_header(const struct berth_parakeet_config *config,
                                const struct model_wish *wish, struct berth_buf *header)
{
    enum berth_dtype dtype = wish->dtype == BERTH_DTYPE_NONE ? BERTH_DTYPE_FP32 : wish->dtype;
    const char *word = dtype == BERTH_DTYPE_FP32   ? "F32"
                       : dtype == BERTH_DTYPE_BF16 ? "BF16"
                                                   : "F16";
    struct berth_parakeet_plan plan = {.config = config};
    struct berth_parakeet_planned planned;
    uint64_t range[2] = {0, 0};
    while (berth_parakeet_plan_next(&plan, &planned)) {
        char shape[128] = "";
        size_t used = 0;
        if (model_is(wish->without, planned.name)) {
            continue;
        }
        if (model_is(wish->misshapen, planned.name)) {
            uint32_t first = planned.dims[0];
            planned.dims[0] = planned.rank > 1 ? planned.dims[1] : 1;
            planned.dims[1] = first;
            planned.rank = planned.rank > 1 ? planned.rank : 2;
        }
        for (size_t i = 0; i < planned.rank; i++) {
            used += (size_t)snprintf(shape + used, sizeof(shape) - used, "%s%u", i == 0 ? "" : ",",
                                     planned.dims[i]);
        }
        range[1] = range[0] + planned.elements * berth_dtype_bytes(dtype);
        model_entry(header, planned.name,
                    model_is(wish->integers, planned.name)
                        ? (dtype == BERTH_DTYPE_FP32 ? "I32" : "I16")
                        : word,
                    shape, range);
        range[0] = range[1];
    }
    for (uint32_t i = 0; wish->counters && i < config->layers; i++) {
        char name[96];
        snprintf(name, sizeof(name), "encoder.layers.%u.conv.norm.num_batches_tracked", i);
        range[1] = range[0] + 8;
        model_entry(header, name, "I64", "", range);
        range[0] = range[1];
    }
    if (wish->extra != NULL) {
        range[1] = range[0] + 8;
        model_entry(header, wish->extra, "F32", "2", range);
    }
    berth_buf_puts(header, "}");
    assert_true(berth_buf_ok(header));
}

/* model.safetensors of the config in an existing folder. */
static inline void model_write(const char *folder, const struct berth_parakeet_config *config,
                               const struct model_wish *wish)
{
    enum berth_dtype dtype = wish->dtype == BERTH_DTYPE_NONE ? BERTH_DTYPE_FP32 : wish->dtype;
    struct berth_buf header = {0};
    struct berth_parakeet_plan plan = {.config = config};
    struct berth_parakeet_planned planned;
    char path[512];
    model_header(config, wish, &header);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    uint64_t length = header.length;
    fwrite(&length, sizeof(length), 1, file);
    fwrite(header.bytes, 1, header.length, file);
    while (berth_parakeet_plan_next(&plan, &planned)) {
        if (model_is(wish->without, planned.name)) {
            continue;
        }
        for (uint64_t i = 0; i < planned.elements; i++) {
            model_put(file, dtype,
                      model_is(wish->filled, planned.name) ? wish->fill
                                                           : model_value(planned.name, i));
        }
        if (model_is(wish->poisoned, planned.name)) {
            fseek(file, -(long)berth_dtype_bytes(dtype), SEEK_CUR);
            fwrite(&wish->poison, berth_dtype_bytes(dtype), 1, file);
        }
    }
    uint64_t zeros[2] = {0, 0};
    for (uint32_t i = 0; wish->counters && i < config->layers; i++) {
        fwrite(zeros, 8, 1, file);
    }
    if (wish->extra != NULL) {
        fwrite(zeros, 8, 1, file);
    }
    long end = ftell(file);
    fclose(file);
    if (wish->cut > 0) {
        assert_int_equal(truncate(path, end - (long)wish->cut), 0);
    }
    berth_buf_finish(&header);
}

#endif
