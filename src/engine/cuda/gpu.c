/* gpu.c - see gpu.h.
 *
 * The program links CUDA's runtime statically and never libcuda: the runtime looks for the driver
 * when it is first asked, so a machine without one gets a sentence and not a loader's message.
 */
#include "engine/cuda/gpu.h"

#include <stdio.h>
#include <string.h>

#include "engine/cuda/gpu_targets.h"
#include "engine/engine.h"

#define PREFIX "cuda:"
#define DEVICES_MAX 1024
#define TARGETS BERTH_GPU_TARGETS /* the build's */

static enum berth_code check_code(int device, struct berth_err *err);

enum berth_code berth_gpu_parse(const char *device, int *out, struct berth_err *err)
{
    size_t prefix = strlen(PREFIX);
    int number = 0;
    bool good = device != NULL && strncmp(device, PREFIX, prefix) == 0 && device[prefix] != '\0';
    for (const char *at = good ? device + prefix : ""; *at != '\0' && good; at++) {
        good = *at >= '0' && *at <= '9' && number < DEVICES_MAX;
        number = good ? number * 10 + (*at - '0') : 0;
    }
    if (!good || number >= DEVICES_MAX) {
        return berth_fail(err, BERTH_INVALID, "'%s' names no GPU; one is called cuda:0",
                          device == NULL ? "" : device);
    }
    *out = number;
    return BERTH_OK;
}

enum berth_code berth_gpu_use(int device, struct berth_err *err)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver) {
        int driver = 0;
        (void)cudaDriverGetVersion(&driver);
        (void)cudaGetLastError();
        if (driver == 0) {
            return berth_fail(err, BERTH_UNAVAILABLE,
                              "no GPU here: NVIDIA's driver is not installed, or not for this "
                              "process to see");
        }
        return berth_fail(err, BERTH_UNAVAILABLE,
                          "NVIDIA's driver here is for CUDA %d.%d and older; this program needs "
                          "one for CUDA %d", driver / 1000, driver % 1000 / 10,
                          CUDART_VERSION / 1000);
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
        (void)cudaGetLastError();
        return berth_fail(err, BERTH_UNAVAILABLE, "no GPU here: NVIDIA's driver shows none");
    }
    if (status != cudaSuccess) {
        return berth_gpu_fail(err, status, "looking for GPUs");
    }
    if (device >= count) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no GPU cuda:%d here: there are %d", device,
                          count);
    }
    BERTH_TRY(check_code(device, err));
    status = cudaSetDevice(device);
    if (status != cudaSuccess) {
        return berth_gpu_fail(err, status, "taking the GPU");
    }
    return BERTH_OK;
}

enum berth_code berth_gpu_capability(int device, int *out, struct berth_err *err)
{
    int major = 0, minor = 0;
    cudaError_t status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    }
    if (status != cudaSuccess) {
        return berth_gpu_fail(err, status, "asking for the compute capability");
    }
    *out = 10 * major + minor;
    return BERTH_OK;
}

enum berth_code berth_gpu_describe(int device, struct berth_gpu_facts *out, struct berth_err *err)
{
    struct cudaDeviceProp properties;
    size_t bytes_free = 0, bytes = 0;
    *out = (struct berth_gpu_facts){0};
    BERTH_TRY(berth_gpu_use(device, err));
    cudaError_t status = cudaGetDeviceProperties(&properties, device);
    if (status == cudaSuccess) {
        status = cudaMemGetInfo(&bytes_free, &bytes);
    }
    if (status == cudaSuccess) {
        status = cudaDriverGetVersion(&out->driver);
    }
    if (status != cudaSuccess) {
        return berth_gpu_fail(err, status, "asking the GPU what it is");
    }
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, properties.name);
    out->bytes = bytes;
    out->bytes_free = bytes_free;
    return BERTH_OK;
}

void berth_gpu_note(cudaError_t status)
{
    switch ((int)status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorContained: /* what a Hopper makes of many a fault of its memory */
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
        berth_engines_lose();
        break;
    default:
        break;
    }
}

enum berth_code berth_gpu_fail(struct berth_err *err, cudaError_t status, const char *doing)
{
    (void)cudaGetLastError(); /* one that is not sticky is told once */
    berth_gpu_note(status);
    return berth_fail(err, BERTH_UNAVAILABLE, "CUDA, %s: %s (%s)", doing,
                      cudaGetErrorString(status), cudaGetErrorName(status));
}

/* Whether this program's kernels run on it. */
static enum berth_code check_code(int device, struct berth_err *err)
{
    int capability = 0;
    struct berth_buf has = {0};
    enum berth_code code = BERTH_OK;
    BERTH_TRY(berth_gpu_capability(device, &capability, err));
    if (!berth_gpu_targets_suit(TARGETS, capability)) {
        berth_gpu_targets_print(TARGETS, &has);
        code = berth_fail(err, BERTH_UNSUPPORTED,
                          "cuda:%d: no code for compute capability %d.%d; this build has %s",
                          device, capability / 10, capability % 10, berth_buf_text(&has));
    }
    berth_buf_finish(&has);
    return code;
}
