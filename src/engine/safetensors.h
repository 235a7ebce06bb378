/* safetensors.h - the header of a .safetensors file. Hostile: lengths, offsets, overlaps and types
 * are checked against the file's size before anything is believed.
 *
 * Source: https://github.com/huggingface/safetensors, README, "Format".
 */
#ifndef BERTH_SAFETENSORS_H
#define BERTH_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "request/request.h"

#define BERTH_SAFETENSORS_HEADER_MAX (16u << 20)

struct berth_safetensor {
    const char *name;
    enum berth_dtype dtype;
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX];
    uint64_t offset; /* in the file */
    uint64_t bytes;
};

struct berth_safetensors;

/* Opens the file and reads its header; the descriptor stays open until close. */
enum berth_code berth_safetensors_open(const char *path, struct berth_safetensors **out,
                                       struct berth_err *err) BERTH_MUST_USE;
void berth_safetensors_close(struct berth_safetensors *file); /* NULL is fine */
/* Parses a header's bytes (after the 8 of its length), for a file with data_bytes after it. */
enum berth_code berth_safetensors_parse(const char *header, size_t bytes, uint64_t data_bytes,
                                        struct berth_safetensors **out,
                                        struct berth_err *err) BERTH_MUST_USE;
size_t berth_safetensors_count(const struct berth_safetensors *file);
/* Sorted by offset. */
const struct berth_safetensor *berth_safetensors_at(const struct berth_safetensors *file,
                                                    size_t index);
const struct berth_safetensor *berth_safetensors_find(const struct berth_safetensors *file,
                                                      const char *name);
int berth_safetensors_fd(const struct berth_safetensors *file);

#endif
