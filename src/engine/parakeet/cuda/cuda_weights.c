/* cuda_weights.c - weights from files to a GPU (weights_load of the CUDA back end).
 *
 * Each reader has a stream and two halves of a pinned slot: while one half is on its way to the
 * device the other one is read into, so that a load is as fast as the slower of the two. Slots are
 * made once a process, when first wanted, and lent to loads.
 *
 * Pinning: pages are taken in huge ones and registered, which costs a tenth of what cudaHostAlloc
 * does, and each reader makes its own slot, so that the first load waits for one, not for all.
 * A load that finds all slots lent waits for one: loads are never on a thread that serves (L1).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "engine/cuda/gpu.h"
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/weights.h"

#define HALF_BYTES ((size_t)8 << 20)
#define SLOT_BYTES (2 * HALF_BYTES)
#define READERS_MIN 4
#define READERS_MAX 8

/* Pinned memory of the process; never given back. */
static struct {
    pthread_mutex_t mu;
    pthread_cond_t freed;
    bool lent[READERS_MAX]; /* guarded by mu */
    _Atomic(unsigned char *) memory[READERS_MAX]; /* its borrower sets it; NULL: not made yet */
} slots = {.mu = PTHREAD_MUTEX_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER};

/* One reader's part; used by its thread only, but for the end. */
struct lane {
    uint32_t slot;
    cudaStream_t stream;
    cudaEvent_t copied[2]; /* the half's last copy */
    bool pending[2];
    uint32_t half;         /* the one lent last */
};

struct transfer {
    int device;
    unsigned char *to; /* device address of the span */
    uint32_t lane_count;
    struct lane lanes[READERS_MAX];
};

static enum berth_code transfer_init(struct transfer *transfer, struct berth_err *err);
static enum berth_code transfer_finish(struct transfer *transfer, struct berth_err *err);
static uint32_t readers_wanted(void);
static uint32_t slots_take(struct lane *lanes, uint32_t wanted);
static void slots_give(const struct lane *lanes, uint32_t count);
static unsigned char *slot_memory(uint32_t slot);
static void *buffer(void *state, uint32_t reader, size_t bytes);
static enum berth_code write_out(void *state, uint64_t offset, const void *source, size_t bytes,
                                 struct berth_err *err);
static struct lane *lane_of(struct transfer *transfer, const void *source, uint32_t *half);

enum berth_code berth_parakeet_cuda_weights_load(const char *device,
                                                 const struct berth_parakeet_config *config,
                                                 const char *folder, void *span,
                                                 struct berth_err *err)
{
    struct transfer transfer = {.to = span};
    struct berth_parakeet_sink sink = {.write = write_out, .buffer = buffer, .state = &transfer};
    struct berth_err end = {.code = BERTH_OK};
    BERTH_TRY(berth_gpu_parse(device, &transfer.device, err));
    BERTH_TRY(berth_gpu_use(transfer.device, err));
    transfer.lane_count = slots_take(transfer.lanes, readers_wanted());
    sink.readers = transfer.lane_count;
    enum berth_code code = transfer_init(&transfer, err);
    if (code == BERTH_OK) {
        code = berth_parakeet_weights_read(config, BERTH_PARAKEET_F16, folder,
                                           &sink, err);
    }
    /* Also after an error: copies may be under way from memory that others get next. */
    enum berth_code ended = transfer_finish(&transfer, &end);
    slots_give(transfer.lanes, transfer.lane_count);
    if (code == BERTH_OK && ended != BERTH_OK && err != NULL) {
        *err = end;
    }
    return code == BERTH_OK ? ended : code;
}

static enum berth_code transfer_init(struct transfer *transfer, struct berth_err *err)
{
    int lowest = 0;
    int highest = 0;
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    for (uint32_t i = 0; i < transfer->lane_count && status == cudaSuccess; i++) {
        struct lane *lane = &transfer->lanes[i];
        status = cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, lowest);
        for (size_t half = 0; half < 2 && status == cudaSuccess; half++) {
            status = cudaEventCreateWithFlags(&lane->copied[half], cudaEventDisableTiming);
        }
    }
    return status == cudaSuccess ? BERTH_OK : berth_gpu_fail(err, status, "making copy streams");
}

/* Waits for all copies. */
static enum berth_code transfer_finish(struct transfer *transfer, struct berth_err *err)
{
    cudaError_t status = cudaSuccess;
    for (uint32_t i = 0; i < transfer->lane_count; i++) {
        struct lane *lane = &transfer->lanes[i];
        if (lane->stream != NULL) {
            cudaError_t ended = cudaStreamSynchronize(lane->stream);
            status = status == cudaSuccess ? ended : status;
            (void)cudaStreamDestroy(lane->stream);
        }
        for (size_t half = 0; half < 2; half++) {
            if (lane->copied[half] != NULL) {
                (void)cudaEventDestroy(lane->copied[half]);
            }
        }
    }
    return status == cudaSuccess ? BERTH_OK : berth_gpu_fail(err, status, "copying weights");
}

static uint32_t readers_wanted(void)
{
    return sysconf(_SC_NPROCESSORS_ONLN) >= READERS_MAX ? READERS_MAX : READERS_MIN;
}

/* At least one; how many. */
static uint32_t slots_take(struct lane *lanes, uint32_t wanted)
{
    uint32_t taken = 0;
    pthread_mutex_lock(&slots.mu);
    while (taken == 0) {
        for (uint32_t i = 0; i < READERS_MAX && taken < wanted; i++) {
            if (!slots.lent[i]) {
                slots.lent[i] = true;
                lanes[taken++].slot = i;
            }
        }
        if (taken == 0) {
            pthread_cond_wait(&slots.freed, &slots.mu);
        }
    }
    pthread_mutex_unlock(&slots.mu);
    return taken;
}

static void slots_give(const struct lane *lanes, uint32_t count)
{
    pthread_mutex_lock(&slots.mu);
    for (uint32_t i = 0; i < count; i++) {
        slots.lent[lanes[i].slot] = false;
    }
    pthread_cond_broadcast(&slots.freed);
    pthread_mutex_unlock(&slots.mu);
}

/* The slot's borrower makes it; NULL when there is no memory to pin. */
static unsigned char *slot_memory(uint32_t slot)
{
    unsigned char *memory = atomic_load(&slots.memory[slot]);
    if (memory != NULL) {
        return memory;
    }
    memory = berth_alloc_pages(SLOT_BYTES);
    if (memory == NULL) {
        return NULL;
    }
    if (cudaHostRegister(memory, SLOT_BYTES, cudaHostRegisterPortable) != cudaSuccess) {
        (void)cudaGetLastError();
        berth_free_pages(memory, SLOT_BYTES);
        return NULL;
    }
    atomic_store(&slots.memory[slot], memory);
    return memory;
}

/* The half that was not lent last, when its copy is over. */
static void *buffer(void *state, uint32_t reader, size_t bytes)
{
    struct transfer *transfer = state;
    BERTH_ASSERT(reader < transfer->lane_count);
    struct lane *lane = &transfer->lanes[reader];
    cudaError_t status = cudaSetDevice(transfer->device); /* this thread may be new */
    unsigned char *memory =
        status == cudaSuccess && bytes <= HALF_BYTES ? slot_memory(lane->slot) : NULL;
    if (memory == NULL) {
        return NULL; /* the reader takes memory of its own, and write_out waits for each copy */
    }
    lane->half ^= 1u;
    if (lane->pending[lane->half]) {
        /* A failed copy is told by the next one, or at the end. */
        (void)cudaEventSynchronize(lane->copied[lane->half]);
        lane->pending[lane->half] = false;
    }
    return memory + lane->half * HALF_BYTES;
}

static enum berth_code write_out(void *state, uint64_t offset, const void *source, size_t bytes,
                                 struct berth_err *err)
{
    struct transfer *transfer = state;
    uint32_t half = 0;
    cudaError_t status = cudaSetDevice(transfer->device);
    struct lane *lane = lane_of(transfer, source, &half);
    if (status == cudaSuccess && lane == NULL) {
        /* Pageable memory, and the reader's again when this returns. */
        cudaStream_t stream = transfer->lanes[0].stream;
        status = cudaMemcpyAsync(transfer->to + offset, source, bytes, cudaMemcpyHostToDevice,
                                 stream);
        status = status == cudaSuccess ? cudaStreamSynchronize(stream) : status;
    } else if (status == cudaSuccess) {
        status = cudaMemcpyAsync(transfer->to + offset, source, bytes, cudaMemcpyHostToDevice,
                                 lane->stream);
        if (status == cudaSuccess) {
            status = cudaEventRecord(lane->copied[half], lane->stream);
            lane->pending[half] = true;
        }
    }
    return status == cudaSuccess ? BERTH_OK : berth_gpu_fail(err, status, "copying weights");
}

/* Whose pinned memory that is; NULL: nobody's. */
static struct lane *lane_of(struct transfer *transfer, const void *source, uint32_t *half)
{
    for (uint32_t i = 0; i < transfer->lane_count; i++) {
        const unsigned char *memory = atomic_load(&slots.memory[transfer->lanes[i].slot]);
        uintptr_t distance = (uintptr_t)source - (uintptr_t)memory;
        if (memory != NULL && distance < SLOT_BYTES) {
            *half = distance < HALF_BYTES ? 0 : 1;
            return &transfer->lanes[i];
        }
    }
    return NULL;
}
