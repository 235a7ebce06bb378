/* span.c - see span.h.
 *
 * The only place of the engines, with parakeet/backend.c, that is compiled once for each program:
 * berth knows the CPU alone, berth-cuda the GPU beside it.
 */
#include "engine/span.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#ifdef BERTH_CUDA
#include "engine/cuda/span_cuda.h"
#endif

struct span_kind {
    const char *prefix; /* of the device's name */
    enum berth_code (*create)(const char *device, uint64_t bytes, struct berth_span *out,
                              struct berth_err *err);
    void (*destroy)(struct berth_span *span);
    enum berth_code (*unmap)(const struct berth_span *span, struct berth_err *err);
    enum berth_code (*map)(const struct berth_span *span, struct berth_err *err);
};

static enum berth_code cpu_create(const char *device, uint64_t bytes, struct berth_span *out,
                                  struct berth_err *err);
static void cpu_destroy(struct berth_span *span);
static enum berth_code cpu_unmap(const struct berth_span *span, struct berth_err *err);
static enum berth_code cpu_map(const struct berth_span *span, struct berth_err *err);
static const struct span_kind *find_kind(const char *device);

static const struct span_kind kinds[] = {
    {.prefix = "cpu",
     .create = cpu_create,
     .destroy = cpu_destroy,
     .unmap = cpu_unmap,
     .map = cpu_map},
#ifdef BERTH_CUDA
    {.prefix = "cuda",
     .create = berth_span_cuda_create,
     .destroy = berth_span_cuda_destroy,
     .unmap = berth_span_cuda_unmap,
     .map = berth_span_cuda_map},
#endif
};

enum berth_code berth_span_create(const char *device, uint64_t bytes, struct berth_span *out,
                                  struct berth_err *err)
{
    const struct span_kind *kind = find_kind(device);
    if (kind == NULL) {
        return berth_fail(err, BERTH_UNSUPPORTED, "this program has no memory on device '%s'",
                          device);
    }
    if (bytes == 0) {
        return berth_fail(err, BERTH_INVALID, "a span of no bytes");
    }
    return kind->create(device, bytes, out, err);
}

void berth_span_destroy(const char *device, struct berth_span *span)
{
    const struct span_kind *kind = find_kind(device);
    if (kind != NULL && span->address != NULL) {
        kind->destroy(span);
    }
    *span = (struct berth_span){.fd = -1};
}

enum berth_code berth_span_unmap(const char *device, struct berth_span *span,
                                 struct berth_err *err)
{
    const struct span_kind *kind = find_kind(device);
    BERTH_ASSERT(kind != NULL && span->address != NULL);
    BERTH_ASSERT(!span->unmapped);
    BERTH_TRY(kind->unmap(span, err));
    span->unmapped = true;
    return BERTH_OK;
}

enum berth_code berth_span_map(const char *device, struct berth_span *span, struct berth_err *err)
{
    const struct span_kind *kind = find_kind(device);
    BERTH_ASSERT(kind != NULL && span->address != NULL);
    BERTH_ASSERT(span->unmapped);
    BERTH_TRY(kind->map(span, err));
    span->unmapped = false;
    return BERTH_OK;
}

static enum berth_code cpu_create(const char *device, uint64_t bytes, struct berth_span *out,
                                  struct berth_err *err)
{
    uint64_t bytes_whole = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > bytes_whole) {
        return berth_fail(err, BERTH_TOO_LARGE,
                          "this machine has %" PRIu64 " MiB of memory; %" PRIu64 " MiB are needed",
                          bytes_whole >> 20, bytes >> 20);
    }
    void *memory = berth_alloc_pages(bytes);
    if (memory == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %" PRIu64 " MiB of weights",
                          bytes >> 20);
    }
    *out = (struct berth_span){.address = memory, .bytes = berth_pages_bytes(bytes), .fd = -1};
    return BERTH_OK;
}

static void cpu_destroy(struct berth_span *span)
{
    if (span->unmapped) {
        berth_free_pages_unmapped(span->address, span->bytes);
    } else {
        berth_free_pages(span->address, span->bytes);
    }
}

static enum berth_code cpu_unmap(const struct berth_span *span, struct berth_err *err)
{
    if (!berth_unmap_pages(span->address, span->bytes)) {
        return berth_fail(err, BERTH_UNAVAILABLE,
                          "the system does not take %zu MiB of weights back",
                          span->bytes >> 20);
    }
    return BERTH_OK;
}

static enum berth_code cpu_map(const struct berth_span *span, struct berth_err *err)
{
    if (!berth_map_pages(span->address, span->bytes)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %zu MiB of weights",
                          span->bytes >> 20);
    }
    return BERTH_OK;
}

static const struct span_kind *find_kind(const char *device)
{
    if (device == NULL) {
        return &kinds[0];
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(kinds); i++) {
        size_t length = strlen(kinds[i].prefix);
        if (strncmp(device, kinds[i].prefix, length) == 0 &&
            (device[length] == ':' || device[length] == '\0')) {
            return &kinds[i];
        }
    }
    return NULL;
}
