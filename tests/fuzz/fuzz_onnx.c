/* fuzz_onnx.c - any bytes as an ONNX file's head (engine/onnx_file.c, not ONNX Runtime itself). */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/onnx_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static int fd = -1;
    char path[64];
    struct berth_onnx_file file;
    struct berth_err err = {0};
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    }
    BERTH_ASSERT(fd >= 0 && ftruncate(fd, (off_t)length) == 0);
    BERTH_ASSERT(pwrite(fd, bytes, length, 0) == (ssize_t)length);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (berth_onnx_file_read(path, &file, &err) != BERTH_OK) {
        BERTH_ASSERT(err.code != BERTH_OK);
        return 0;
    }
    for (size_t i = 0; i < file.input_count; i++) {
        BERTH_ASSERT(file.inputs[i].name != NULL && file.inputs[i].rank <= BERTH_RANK_MAX);
    }
    for (size_t i = 0; i < file.output_count; i++) {
        BERTH_ASSERT(file.outputs[i].name != NULL && file.outputs[i].rank <= BERTH_RANK_MAX);
    }
    berth_onnx_file_finish(&file);
    return 0;
}
