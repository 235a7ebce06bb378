/* fuzz_probe.c - any bytes as what `berth-cuda --probe` printed: what is taken of it is a device of
 * CUDA's, sizes that go together and a name that can be shown; written again it reads the same. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "cli/gpu_probe.c"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void judge_line(const char *line)
{
    size_t length = strlen(line);
    BERTH_ASSERT(berth_utf8_valid_length(line, length) == length);
    for (size_t at = 0; at < length;) {
        uint32_t point = 0;
        at += berth_utf8_next(line + at, length - at, &point);
        BERTH_ASSERT(point >= 0x20 && (point < 0x7F || point >= 0xA0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    char text[TEXT_MAX] = "", again[TEXT_MAX];
    struct berth_gpu_found found = {0}, other = {0};
    memcpy(text, bytes, length < sizeof(text) ? length : sizeof(text) - 1);
    keep_line(text);
    judge_line(text);
    if (!read_answer(text, &found)) {
        BERTH_ASSERT(found.device[0] == '\0' && found.name[0] == '\0' && found.bytes == 0);
        return 0;
    }
    judge_line(found.name);
    BERTH_ASSERT(found.name[0] != '\0' && strstr(text, found.name) != NULL);
    BERTH_ASSERT(memcmp(text, found.device, strlen(found.device)) == 0);
    BERTH_ASSERT(berth_device_is_gpu(found.device) && found.bytes_free <= found.bytes);
    snprintf(again, sizeof(again), "%s %llu %llu %s", found.device,
             (unsigned long long)found.bytes, (unsigned long long)found.bytes_free, found.name);
    BERTH_ASSERT(read_answer(again, &other) && memcmp(&found, &other, sizeof(found)) == 0);
    return 0;
}
