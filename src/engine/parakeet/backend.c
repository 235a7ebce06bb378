/* backend.c - which device's operations a name stands for, and what a device of a kind holds. */
#include "engine/parakeet/backend.h"

#include <string.h>

#include "engine/parakeet/cpu.h"

const struct berth_parakeet_ops *berth_parakeet_backend(const char *device)
{
    if (device == NULL || strncmp(device, "cpu:", 4) == 0) {
        return &berth_parakeet_cpu;
    }
#ifdef BERTH_CUDA
    if (strncmp(device, "cuda:", 5) == 0) {
        return &berth_parakeet_cuda;
    }
#endif
    return NULL;
}

/* A CPU: its threads' scratch. A GPU: its products' workspace, and log-mels in float32
 * (berth_parakeet_cuda_grown). */
uint64_t berth_parakeet_kept_ahead(enum berth_parakeet_element element, uint32_t threads,
                                   const struct berth_parakeet_config *config,
                                   const struct berth_parakeet_shape *shape)
{
    uint64_t vectors = shape->rows * ((uint64_t)shape->padded.features + 2);
    if (element == BERTH_PARAKEET_F32) {
        return threads * (uint64_t)BERTH_PARAKEET_SCRATCH * 4;
    }
    return BERTH_PARAKEET_CUDA_WORKSPACE_BYTES + vectors * config->mels * 4 * 9 / 2;
}

enum berth_code berth_parakeet_precision(const char *precision, const char *device,
                                         struct berth_parakeet_config *config,
                                         struct berth_err *err)
{
    const struct berth_parakeet_ops *ops = berth_parakeet_backend(device);
    const bool narrow = strcmp(precision, "fp8") == 0;
    if (!narrow && strcmp(precision, "fp16") != 0) {
        return berth_fail(err, BERTH_INVALID,
                          "parameter 'precision' is '%.60s'; it takes fp16 or fp8", precision);
    }
    if (narrow && ops != NULL && ops->narrow != NULL) {
        BERTH_TRY(ops->narrow(device, config, err));
        config->narrow = true;
    }
    return BERTH_OK;
}
