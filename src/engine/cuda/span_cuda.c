/* span_cuda.c - see span_cuda.h. A span is what engines know; its range, with CUDA's handle, is
 * kept here and found by the address, of which there is one for each loaded model. */
#include "engine/cuda/span_cuda.h"

#include <pthread.h>

#include "base/mem.h"
#include "engine/cuda/gpu.h"
#include "engine/cuda/vmm.h"

struct span_range {
    struct span_range *next;
    struct berth_vmm range;
};

static struct span_range *ranges; /* guarded by mu */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

static struct berth_vmm *range_of(const struct berth_span *span);
static struct span_range **find(const void *address);

enum berth_code berth_span_cuda_create(const char *device, uint64_t bytes, struct berth_span *out,
                                       struct berth_err *err)
{
    int number;
    BERTH_TRY(berth_gpu_parse(device, &number, err));
    struct span_range *made = berth_alloc(sizeof(*made));
    if (made == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    enum berth_code code = berth_vmm_init(&made->range, number, bytes, err);
    if (code == BERTH_OK) {
        code = berth_vmm_map(&made->range, err);
    }
    if (code != BERTH_OK) {
        berth_vmm_finish(&made->range);
        berth_free(made);
        return code;
    }
    pthread_mutex_lock(&mu);
    made->next = ranges;
    ranges = made;
    pthread_mutex_unlock(&mu);
    *out = (struct berth_span){
        .address = (void *)(uintptr_t)made->range.address, .bytes = made->range.bytes, .fd = -1};
    return BERTH_OK;
}

void berth_span_cuda_destroy(struct berth_span *span)
{
    pthread_mutex_lock(&mu);
    struct span_range **at = find(span->address);
    struct span_range *ended = *at;
    *at = ended->next;
    pthread_mutex_unlock(&mu);
    berth_vmm_finish(&ended->range);
    berth_free(ended);
}

enum berth_code berth_span_cuda_unmap(const struct berth_span *span, struct berth_err *err)
{
    return berth_vmm_unmap(range_of(span), err);
}

enum berth_code berth_span_cuda_map(const struct berth_span *span, struct berth_err *err)
{
    return berth_vmm_map(range_of(span), err);
}

/* It stays where it is until the span's holder, who asks, ends it. */
static struct berth_vmm *range_of(const struct berth_span *span)
{
    pthread_mutex_lock(&mu);
    struct span_range *found = *find(span->address);
    pthread_mutex_unlock(&mu);
    return &found->range;
}

/* Where the range is linked in; the caller has mu. */
static struct span_range **find(const void *address)
{
    struct span_range **at = &ranges;
    while (*at != NULL && (*at)->range.address != (uintptr_t)address) {
        at = &(*at)->next;
    }
    BERTH_ASSERT(*at != NULL);
    return at;
}
