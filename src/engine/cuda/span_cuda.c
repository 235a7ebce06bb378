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

static struct span_range *take_out(const void *address);

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
    struct span_range *ended = take_out(span->address);
    BERTH_ASSERT(ended != NULL);
    berth_vmm_finish(&ended->range);
    berth_free(ended);
}

static struct span_range *take_out(const void *address)
{
    struct span_range *found = NULL;
    pthread_mutex_lock(&mu);
    for (struct span_range **at = &ranges; *at != NULL; at = &(*at)->next) {
        if ((*at)->range.address == (uintptr_t)address) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&mu);
    return found;
}
