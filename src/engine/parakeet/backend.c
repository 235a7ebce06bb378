/* backend.c - which device's operations a name stands for. */
#include "engine/parakeet/backend.h"

#include <string.h>

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
