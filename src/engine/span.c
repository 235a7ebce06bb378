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
};

static enum berth_code cpu_create(const char *device, uint64_t bytes, struct berth_span *out,
                                  struct berth_err *err);
static void cpu_destroy(struct berth_span *span);
static const struct span_kind *find_kind(const char *device);

static const struct span_kind kinds[] = {
    {.prefix = "cpu", .create = cpu_create, .destroy = cpu_destroy},
#ifdef BERTH_CUDA
    {.prefix = "cuda", .create = berth_span_cuda_create, .destroy = berth_span_cuda_destroy},
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
    berth_free_pages(span->address, span->bytes);
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
