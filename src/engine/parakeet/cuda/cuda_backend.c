/* cuda_backend.c - the CUDA back end's device and memory, and its table.
 *
 * One stream has everything: uploads, kernels, products, downloads, graphs. Kernels are launched in
 * one place (berth_parakeet_cuda_run), where from compute capability 9.0 on they may start before
 * the one they follow has ended (programmatic dependent launch; kernels.cuh): that hides a small
 * kernel's start, and a pass has some two hundred.
 */
#include "engine/parakeet/cuda/cuda_device.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/cuda/gpu.h"

#define SHARED_BYTES_PLAIN ((size_t)48 << 10) /* what a kernel gets without asking */

static enum berth_code device_open(const char *device, uint32_t threads,
                                   struct berth_parakeet_device **out, struct berth_err *err);
static void device_close(struct berth_parakeet_device *device);
static cudaError_t device_ask(struct berth_parakeet_device *device);

void berth_parakeet_cuda_fail(struct berth_parakeet_device *device, const char *what,
                              cudaError_t error)
{
    if (error == cudaSuccess) {
        return; /* and nothing is written: memory is also given back beside the device's thread */
    }
    berth_gpu_note(error);
    device->no_memory = device->no_memory || error == cudaErrorMemoryAllocation;
    if (device->error_text[0] != '\0') {
        return;
    }
    (void)snprintf(device->error_text, sizeof(device->error_text), "%s: %s", what,
                   cudaGetErrorString(error));
}

void berth_parakeet_cuda_refuse(struct berth_parakeet_device *device, const char *what, long value)
{
    if (device->error_text[0] == '\0') {
        (void)snprintf(device->error_text, sizeof(device->error_text), "%s %ld", what, value);
    }
}

void berth_parakeet_cuda_run(struct berth_parakeet_device *device,
                             const struct berth_parakeet_cuda_launch *launch, void **args)
{
    cudaLaunchAttribute overlap = {.id = cudaLaunchAttributeProgrammaticStreamSerialization};
    if (launch->grid.x == 0 || launch->grid.y == 0 || launch->grid.z == 0) {
        return;
    }
    if (launch->shared_bytes > SHARED_BYTES_PLAIN) {
        berth_parakeet_cuda_fail(
            device, launch->name,
            cudaFuncSetAttribute(launch->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)launch->shared_bytes));
    }
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {.gridDim = launch->grid,
                                 .blockDim = launch->block,
                                 .dynamicSmemBytes = launch->shared_bytes,
                                 .stream = device->stream,
                                 .attrs = &overlap,
                                 .numAttrs = device->overlap ? 1 : 0};
    berth_parakeet_cuda_fail(device, launch->name,
                             cudaLaunchKernelExC(&config, launch->kernel, args));
}

static enum berth_code device_open(const char *device, uint32_t threads,
                                   struct berth_parakeet_device **out, struct berth_err *err)
{
    struct berth_parakeet_device *made = berth_alloc(sizeof(*made));
    enum berth_code code = BERTH_OK;
    cudaError_t error = cudaSuccess;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    int lowest = 0, highest = 0;
    (void)threads; /* the CPU's */
    if (made == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a device");
    }
    code = berth_gpu_parse(device, &made->ordinal, err);
    if (code == BERTH_OK) {
        code = berth_gpu_use(made->ordinal, err);
    }
    if (code != BERTH_OK) {
        goto out;
    }
    error = device_ask(made);
    if (error == cudaSuccess) {
        error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    }
    if (error == cudaSuccess) {
        error = cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, highest);
    }
    if (error == cudaSuccess) {
        error = cudaMalloc(&made->workspace, BERTH_PARAKEET_CUDA_WORKSPACE_BYTES);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        code = berth_gpu_fail(err, error, "opening the GPU");
        goto out;
    }
    made->kept_bytes = BERTH_PARAKEET_CUDA_WORKSPACE_BYTES;
    status = cublasLtCreate(&made->blas);
    if (status != CUBLAS_STATUS_SUCCESS) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cublasLt does not start: status %d",
                          (int)status);
        goto out;
    }
    *out = made;
    made = NULL;
out:
    device_close(made);
    return code;
}

static cudaError_t device_ask(struct berth_parakeet_device *device)
{
    int major = 0, minor = 0, l2 = 0;
    const struct {
        int *to;
        enum cudaDeviceAttr which;
    } wanted[] = {{&major, cudaDevAttrComputeCapabilityMajor},
                  {&minor, cudaDevAttrComputeCapabilityMinor},
                  {&device->sm_count, cudaDevAttrMultiProcessorCount},
                  {&device->shared_bytes_max, cudaDevAttrMaxSharedMemoryPerBlockOptin},
                  {&l2, cudaDevAttrL2CacheSize}};
    for (size_t i = 0; i < BERTH_COUNT_OF(wanted); i++) {
        cudaError_t error = cudaDeviceGetAttribute(wanted[i].to, wanted[i].which, device->ordinal);
        if (error != cudaSuccess) {
            return error;
        }
    }
    device->capability = 10 * major + minor;
    device->overlap = device->capability >= 90;
    device->l2_bytes = l2;
    return cudaSuccess;
}

static void device_close(struct berth_parakeet_device *device)
{
    if (device == NULL) {
        return;
    }
    if (device->stream != NULL) {
        (void)cudaSetDevice(device->ordinal);
        (void)cudaStreamSynchronize(device->stream);
    }
    if (device->features_close != NULL) {
        device->features_close(device);
    }
    berth_parakeet_cuda_drop(device);
    if (device->blas != NULL) {
        (void)cublasLtDestroy(device->blas);
    }
    if (device->workspace != NULL) {
        (void)cudaFree(device->workspace);
    }
    if (device->stream != NULL) {
        (void)cudaStreamDestroy(device->stream);
    }
    (void)cudaGetLastError();
    berth_free(device);
}

static void *device_alloc(struct berth_parakeet_device *device, size_t bytes)
{
    void *memory = NULL;
    (void)cudaSetDevice(device->ordinal);
    const cudaError_t error = cudaMalloc(&memory, bytes == 0 ? 1 : bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* told by NULL */
        berth_gpu_note(error);
        return NULL;
    }
    return memory;
}

static void device_free(struct berth_parakeet_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    berth_parakeet_cuda_fail(device, "giving memory back", cudaFree(memory));
}

static void *device_alloc_shared(struct berth_parakeet_device *device, size_t bytes,
                                 void **on_device)
{
    void *memory = NULL;
    (void)cudaSetDevice(device->ordinal);
    const cudaError_t error = cudaHostAlloc(&memory, bytes == 0 ? 1 : bytes, cudaHostAllocMapped);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        berth_gpu_note(error);
        return NULL;
    }
    if (cudaHostGetDevicePointer(on_device, memory, 0) != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaFreeHost(memory);
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

static void device_free_shared(struct berth_parakeet_device *device, void *memory)
{
    berth_parakeet_cuda_fail(device, "giving host memory back", cudaFreeHost(memory));
}

static void device_upload(struct berth_parakeet_device *device, void *to, const void *from,
                          size_t bytes)
{
    (void)cudaSetDevice(device->ordinal);
    berth_parakeet_cuda_fail(
        device, "upload",
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, device->stream));
}

static void device_download(struct berth_parakeet_device *device, void *to, const void *from,
                            size_t bytes)
{
    berth_parakeet_cuda_fail(
        device, "download",
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, device->stream));
}

static enum berth_code device_finish(struct berth_parakeet_device *device, struct berth_err *err)
{
    (void)cudaSetDevice(device->ordinal);
    if (device->recording) { /* asked for, but never played */
        cudaGraph_t graph = NULL;
        (void)cudaStreamEndCapture(device->stream, &graph);
        if (graph != NULL) {
            (void)cudaGraphDestroy(graph);
        }
        device->recording = false;
    }
    berth_parakeet_cuda_fail(device, "waiting for the GPU", cudaStreamSynchronize(device->stream));
    device->starved = device->no_memory;
    device->no_memory = false;
    if (device->error_text[0] == '\0') {
        return BERTH_OK;
    }
    enum berth_code code = berth_fail(err, BERTH_UNAVAILABLE, "GPU: %s", device->error_text);
    device->error_text[0] = '\0';
    (void)cudaGetLastError(); /* one that the context does not get over comes back by itself */
    return code;
}

static bool device_starved(const struct berth_parakeet_device *device)
{
    return device->starved;
}

static uint64_t device_kept_bytes(const struct berth_parakeet_device *device)
{
    return device->kept_bytes;
}

const struct berth_parakeet_ops berth_parakeet_cuda = {
    .name = "cuda",
    .element = BERTH_PARAKEET_F16,
    .check = berth_parakeet_cuda_check,
    .narrow = berth_parakeet_cuda_narrow,
    .open = device_open,
    .close = device_close,
    .weights_load = berth_parakeet_cuda_weights_load,
    .alloc = device_alloc,
    .free = device_free,
    .alloc_shared = device_alloc_shared,
    .free_shared = device_free_shared,
    .upload = device_upload,
    .download = device_download,
    .finish = device_finish,
    .starved = device_starved,
    .record = berth_parakeet_cuda_record,
    .play = berth_parakeet_cuda_play,
    .keep = berth_parakeet_cuda_keep,
    .forget = berth_parakeet_cuda_forget,
    .drop = berth_parakeet_cuda_drop,
    .prepare = berth_parakeet_cuda_prepare,
    .kept_bytes = device_kept_bytes,
    .features = berth_parakeet_cuda_features,
    .subsample_first = berth_parakeet_cuda_subsample_first,
    .subsample_third = berth_parakeet_cuda_subsample_third,
    .linear = berth_parakeet_cuda_linear,
    .norm = berth_parakeet_cuda_norm,
    .attention = berth_parakeet_cuda_attention,
    .convolve = berth_parakeet_cuda_convolve,
    .positions = berth_parakeet_cuda_positions,
    .decode = berth_parakeet_cuda_decode,
    .decode_state_bytes = berth_parakeet_cuda_decode_state_bytes,
};
