/* vmm.c - see vmm.h.
 *
 * CUDA's calls for virtual memory are the driver's; they are asked of the runtime by name, so that
 * the program links without libcuda and starts where there is none. Each name has the version whose
 * form is called here.
 */
#include "engine/cuda/vmm.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "engine/cuda/gpu.h"

#define FORM 10020 /* CUDA 10.2: every call here has the form it had then */

struct driver {
    PFN_cuGetErrorName_v6000 error_name;
    PFN_cuGetErrorString_v6000 error_string;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 unreserve;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 access;
    PFN_cuMemExportToShareableHandle_v10020 export_handle;
    PFN_cuMemImportFromShareableHandle_v10020 import_handle;
};

static struct driver driver;
static const char *driver_missing; /* the first call the driver does not have */
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static atomic_uint_fast64_t bytes_mapped;

static enum berth_code use(int device, struct berth_err *err);
static void driver_load(void);
static void driver_find(const char *name, void *slot);
static enum berth_code fail(struct berth_err *err, CUresult status, const char *doing);
static enum berth_code fail_create(struct berth_err *err, CUresult status,
                                   const struct berth_vmm *range);
static CUmemAllocationProp properties(int device);
static enum berth_code map_memory(struct berth_vmm *range, CUmemAccess_flags flags,
                                  struct berth_err *err);

enum berth_code berth_vmm_init(struct berth_vmm *range, int device, uint64_t bytes,
                               struct berth_err *err)
{
    size_t unit = 0;
    size_t whole;
    CUdeviceptr address = 0;
    BERTH_TRY(use(device, err));
    CUmemAllocationProp wanted = properties(device);
    CUresult status = driver.granularity(&unit, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (status != CUDA_SUCCESS || unit == 0) {
        return fail(err, status, "asking for the unit of device memory");
    }
    if (bytes == 0 || !berth_add_size(bytes, unit - 1, &whole)) {
        return berth_fail(err, BERTH_TOO_LARGE, "%" PRIu64 " bytes of device memory", bytes);
    }
    whole -= whole % unit;
    status = driver.reserve(&address, whole, unit, 0, 0);
    if (status != CUDA_SUCCESS) {
        return fail(err, status, "reserving addresses");
    }
    *range = (struct berth_vmm){.address = address, .bytes = whole, .device = device};
    return BERTH_OK;
}

void berth_vmm_finish(struct berth_vmm *range)
{
    if (range->address == 0) {
        return;
    }
    /* An error here means a faulted context: what it held is freed with the process. */
    if (use(range->device, NULL) == BERTH_OK && berth_vmm_unmap(range, NULL) == BERTH_OK) {
        (void)driver.unreserve(range->address, range->bytes);
    }
    *range = (struct berth_vmm){0};
}

enum berth_code berth_vmm_map(struct berth_vmm *range, struct berth_err *err)
{
    CUmemGenericAllocationHandle memory = 0;
    BERTH_ASSERT(range->address != 0 && !range->mapped && range->memory == 0);
    BERTH_TRY(use(range->device, err));
    CUmemAllocationProp wanted = properties(range->device);
    CUresult status = driver.create(&memory, range->bytes, &wanted, 0);
    if (status != CUDA_SUCCESS) {
        return fail_create(err, status, range);
    }
    range->memory = memory;
    BERTH_TRY(map_memory(range, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, err));
    atomic_fetch_add_explicit(&bytes_mapped, range->bytes, memory_order_relaxed);
    return BERTH_OK;
}

enum berth_code berth_vmm_unmap(struct berth_vmm *range, struct berth_err *err)
{
    if (!range->mapped && range->memory == 0) {
        return BERTH_OK;
    }
    BERTH_TRY(use(range->device, err));
    if (range->mapped) {
        CUresult status = driver.unmap(range->address, range->bytes);
        if (status != CUDA_SUCCESS) {
            return fail(err, status, "unmapping device memory");
        }
        range->mapped = false;
    }
    if (range->memory != 0) { /* an import gave its handle back when it was mapped */
        CUresult status = driver.release(range->memory);
        if (status != CUDA_SUCCESS) {
            return fail(err, status, "giving device memory back");
        }
        range->memory = 0;
        atomic_fetch_sub_explicit(&bytes_mapped, range->bytes, memory_order_relaxed);
    }
    return BERTH_OK;
}

enum berth_code berth_vmm_export(const struct berth_vmm *range, int *fd, struct berth_err *err)
{
    int made = -1;
    BERTH_ASSERT(range->mapped && range->memory != 0);
    BERTH_TRY(use(range->device, err));
    CUresult status = driver.export_handle(&made, range->memory,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != CUDA_SUCCESS) {
        return fail(err, status, "exporting device memory");
    }
    (void)fcntl(made, F_SETFD, FD_CLOEXEC);
    *fd = made;
    return BERTH_OK;
}

enum berth_code berth_vmm_import(struct berth_vmm *range, int device, uint64_t bytes, int fd,
                                 struct berth_err *err)
{
    struct berth_vmm made = {0};
    CUmemGenericAllocationHandle memory = 0;
    BERTH_TRY(berth_vmm_init(&made, device, bytes, err));
    CUresult status = driver.import_handle(&memory, (void *)(uintptr_t)fd,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (status != CUDA_SUCCESS) {
        berth_vmm_finish(&made);
        return fail(err, status, "importing device memory");
    }
    made.memory = memory;
    enum berth_code code = map_memory(&made, CU_MEM_ACCESS_FLAGS_PROT_READ, err);
    if (code != BERTH_OK) {
        berth_vmm_finish(&made);
        return code;
    }
    (void)driver.release(memory); /* the mapping keeps the memory */
    made.memory = 0;
    *range = made;
    return BERTH_OK;
}

uint64_t berth_vmm_bytes_mapped(void)
{
    return atomic_load_explicit(&bytes_mapped, memory_order_relaxed);
}

static enum berth_code use(int device, struct berth_err *err)
{
    BERTH_TRY(berth_gpu_use(device, err));
    (void)pthread_once(&driver_once, driver_load);
    if (driver_missing != NULL) {
        return berth_fail(err, BERTH_UNSUPPORTED, "NVIDIA's driver here has no %s", driver_missing);
    }
    return BERTH_OK;
}

static void driver_load(void)
{
    driver_find("cuGetErrorName", &driver.error_name);
    driver_find("cuGetErrorString", &driver.error_string);
    driver_find("cuMemGetAllocationGranularity", &driver.granularity);
    driver_find("cuMemAddressReserve", &driver.reserve);
    driver_find("cuMemAddressFree", &driver.unreserve);
    driver_find("cuMemCreate", &driver.create);
    driver_find("cuMemRelease", &driver.release);
    driver_find("cuMemMap", &driver.map);
    driver_find("cuMemUnmap", &driver.unmap);
    driver_find("cuMemSetAccess", &driver.access);
    driver_find("cuMemExportToShareableHandle", &driver.export_handle);
    driver_find("cuMemImportFromShareableHandle", &driver.import_handle);
}

static void driver_find(const char *name, void *slot)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &found, FORM, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == NULL) {
        (void)cudaGetLastError();
        driver_missing = driver_missing == NULL ? name : driver_missing;
        return;
    }
    memcpy(slot, &found, sizeof(found));
}

static enum berth_code fail(struct berth_err *err, CUresult status, const char *doing)
{
    const char *name = NULL;
    const char *text = NULL;
    berth_gpu_note((cudaError_t)status);
    (void)driver.error_name(status, &name);
    (void)driver.error_string(status, &text);
    return berth_fail(err, BERTH_UNAVAILABLE, "CUDA, %s: %s (%s)", doing,
                      text == NULL ? "unknown error" : text, name == NULL ? "?" : name);
}

/* Is it for want of memory, now or ever? */
static enum berth_code fail_create(struct berth_err *err, CUresult status,
                                   const struct berth_vmm *range)
{
    size_t bytes_free = 0;
    size_t bytes_whole = 0;
    if (cudaMemGetInfo(&bytes_free, &bytes_whole) != cudaSuccess) {
        (void)cudaGetLastError();
        bytes_whole = SIZE_MAX;
    }
    if (status != CUDA_ERROR_OUT_OF_MEMORY && range->bytes <= bytes_whole) {
        return fail(err, status, "taking device memory");
    }
    return berth_fail(err, range->bytes > bytes_whole ? BERTH_TOO_LARGE : BERTH_UNAVAILABLE,
                      "cuda:%d has %zu MiB free of %zu MiB; %" PRIu64 " MiB are needed",
                      range->device, bytes_free >> 20, bytes_whole >> 20, range->bytes >> 20);
}

static CUmemAllocationProp properties(int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

/* On an error the memory is given back and nothing is mapped. */
static enum berth_code map_memory(struct berth_vmm *range, CUmemAccess_flags flags,
                                  struct berth_err *err)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = range->device},
        .flags = flags,
    };
    const char *doing = "mapping device memory";
    CUresult status = driver.map(range->address, range->bytes, 0, range->memory, 0);
    if (status == CUDA_SUCCESS) {
        range->mapped = true;
        doing = "giving access to device memory";
        status = driver.access(range->address, range->bytes, &access, 1);
    }
    if (status == CUDA_SUCCESS) {
        return BERTH_OK;
    }
    if (range->mapped) {
        (void)driver.unmap(range->address, range->bytes);
        range->mapped = false;
    }
    (void)driver.release(range->memory);
    range->memory = 0;
    return fail(err, status, doing);
}
