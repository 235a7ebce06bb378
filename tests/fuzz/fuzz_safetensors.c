/* fuzz_safetensors.c - any bytes as a file's header: refused, or tensors that fill the data. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

/* The first two bytes are the length of the data, the rest is the header. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct berth_safetensors *file = NULL;
    struct berth_err err = {0};
    if (length < 2) {
        return 0;
    }
    uint64_t data_bytes = (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8;
    enum berth_code code =
        berth_safetensors_parse((const char *)bytes + 2, length - 2, data_bytes, &file, &err);
    BERTH_ASSERT(code == BERTH_OK || code == BERTH_INVALID || code == BERTH_UNSUPPORTED ||
                 code == BERTH_TOO_LARGE);
    BERTH_ASSERT(code == BERTH_OK || err.msg[0] != '\0');
    uint64_t at = 8 + length - 2;
    for (size_t i = 0; code == BERTH_OK && i < berth_safetensors_count(file); i++) {
        const struct berth_safetensor *tensor = berth_safetensors_at(file, i);
        BERTH_ASSERT(tensor->offset == at);
        BERTH_ASSERT(berth_safetensors_find(file, tensor->name) == tensor);
        at += tensor->bytes;
    }
    BERTH_ASSERT(code != BERTH_OK || at == 8 + length - 2 + data_bytes);
    berth_safetensors_close(file);
    return 0;
}
