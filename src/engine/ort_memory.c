/* ort_memory.c - see ort_memory.h.
 *
 * Why an allocator of ours: ONNX Runtime's own arena, one for each session or one for all, keeps
 * what it once took and says for which model only when it is asked for one session's share. Here
 * each block carries the meter it is counted on, so that memory is exact for each model, and freed
 * blocks go to one pool that all models share, so that a thousand idle models hold no scratch.
 *
 * What ONNX Runtime 1.32 takes past a registered allocator: initialisers as they are read from the
 * file (they are freed when a kernel repacks them, and the packed form is ours), graph and kernel
 * objects, std::string tensors' contents. ort.c measures those at load as growth of the heap.
 * The heap itself is told to map blocks of 256 KiB and more on their own, so that weights freed
 * while repacking go back to the system at once instead of staying as holes (seen: 83 MiB against
 * 33.5 MiB for a second session of a 33.5 MiB model).
 *
 * ONNX Runtime does not look whether an OrtAllocator returned NULL; a run whose shapes ask for too
 * much would crash. So a failed allocation throws std::bad_alloc through libstdc++'s own function:
 * ONNX Runtime catches it in each API call and returns a status. This file's frames hold nothing
 * that would need unwinding.
 *
 * Sizes are rounded up to four classes for each power of two; blocks of 16 KiB and more are mapped,
 * smaller ones come from base/mem. All blocks have a header of 64 bytes in front.
 */
#include "engine/ort_memory.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

#define BLOCK_ALIGN 64
#define MAPPED_LOG2_MIN 14 /* blocks of 16 KiB and more are mapped and pooled */
#define MAPPED_LOG2_MAX 46
#define CLASS_COUNT ((MAPPED_LOG2_MAX - MAPPED_LOG2_MIN + 1) * 4)
#define CLASSES_ABOVE 4 /* how much too large a pooled block may be: up to twice */
#define POOL_BYTES_MAX (UINT64_C(128) << 20)
#define HEAP_MAP_BYTES (256 << 10)
#define HEAP_TRIM_BYTES (32 << 20)

struct block {
    struct block *next;            /* in the pool */
    struct berth_ort_meter *meter; /* NULL: counted in the total only */
    size_t bytes;                  /* as asked */
    void *start;                   /* of a small block; NULL: mapped, this is the start */
    uint32_t size_class;           /* of a mapped block */
} __attribute__((aligned(BLOCK_ALIGN)));

_Static_assert(sizeof(struct block) == BLOCK_ALIGN, "a block's header keeps its payload aligned");

struct pool_class {
    pthread_mutex_t mu;
    struct block *blocks; /* guarded by mu */
};

static struct {
    OrtAllocator allocator; /* first: ONNX Runtime hands its address back to us */
    OrtMemoryInfo *info;
    const OrtApi *api;
    void (*throw_bad_alloc)(void);
    uint64_t bytes_max;
} memory;

static struct pool_class pool[CLASS_COUNT] = {
    [0 ... CLASS_COUNT - 1] = {.mu = PTHREAD_MUTEX_INITIALIZER},
};
static _Atomic uint64_t bytes_pooled;
static _Atomic uint64_t bytes_total; /* in use, all meters */

static _Thread_local struct berth_ort_meter *meter_now;
static _Thread_local bool failed_now;

static void *allocator_alloc(OrtAllocator *self, size_t bytes);
static void allocator_free(OrtAllocator *self, void *payload);
static const OrtMemoryInfo *allocator_info(const OrtAllocator *self);
static struct block *block_small(size_t bytes);
static struct block *block_mapped(size_t bytes);
static struct block *block_pooled(uint32_t size_class);
static uint32_t class_of(size_t bytes);
static size_t class_bytes(uint32_t size_class);

enum berth_code berth_ort_memory_start(const OrtApi *api, struct berth_err *err)
{
    memory.api = api;
    OrtStatus *status =
        api->CreateMemoryInfo("Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault, &memory.info);
    if (status != NULL) {
        api->ReleaseStatus(status);
        return berth_fail(err, BERTH_INTERNAL, "ONNX Runtime: no memory information");
    }
    /* The library that throws for us is there wherever ONNX Runtime is. POSIX lets a pointer to a
     * function be carried in one to void. */
    void *symbol = dlsym(RTLD_DEFAULT, "_ZSt17__throw_bad_allocv");
    memcpy(&memory.throw_bad_alloc, &symbol, sizeof(symbol));
    if (memory.throw_bad_alloc == NULL) {
        berth_ort_memory_finish();
        return berth_fail(err, BERTH_UNSUPPORTED, "ONNX Runtime stands on no libstdc++ here");
    }
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGESIZE);
    memory.bytes_max = UINT64_MAX;
    if (pages > 0 && page_bytes > 0) {
        memory.bytes_max = (uint64_t)pages * (uint64_t)page_bytes / 8 * 7;
    }
    memory.allocator = (OrtAllocator){
        .version = ORT_API_VERSION,
        .Alloc = allocator_alloc,
        .Free = allocator_free,
        .Info = allocator_info,
        .Reserve = allocator_alloc,
    };
    mallopt(M_MMAP_THRESHOLD, HEAP_MAP_BYTES);
    mallopt(M_TRIM_THRESHOLD, HEAP_TRIM_BYTES);
    return BERTH_OK;
}

void berth_ort_memory_finish(void)
{
    berth_ort_memory_trim();
    if (memory.info != NULL) {
        memory.api->ReleaseMemoryInfo(memory.info);
    }
    memory.info = NULL;
}

OrtAllocator *berth_ort_memory_allocator(void)
{
    return &memory.allocator;
}

const OrtMemoryInfo *berth_ort_memory_info(void)
{
    return memory.info;
}

struct berth_ort_meter *berth_ort_memory_enter(struct berth_ort_meter *meter)
{
    struct berth_ort_meter *before = meter_now;
    meter_now = meter;
    failed_now = false;
    return before;
}

bool berth_ort_memory_failed(void)
{
    return failed_now;
}

void *berth_ort_memory_take(size_t bytes)
{
    struct block *block = NULL;
    uint64_t total = atomic_load_explicit(&bytes_total, memory_order_relaxed);
    if (bytes < memory.bytes_max && total < memory.bytes_max - bytes) {
        bool small = bytes + sizeof(struct block) < (size_t)1 << MAPPED_LOG2_MIN;
        block = small ? block_small(bytes) : block_mapped(bytes);
    }
    if (block == NULL) {
        failed_now = true;
        return NULL;
    }
    block->bytes = bytes;
    block->meter = meter_now;
    atomic_fetch_add_explicit(&bytes_total, bytes, memory_order_relaxed);
    if (block->meter != NULL) {
        berth_ort_meter_add(block->meter, (int64_t)bytes);
    }
    return block + 1;
}

void berth_ort_memory_give(void *payload)
{
    if (payload == NULL) {
        return;
    }
    struct block *block = (struct block *)payload - 1;
    atomic_fetch_sub_explicit(&bytes_total, block->bytes, memory_order_relaxed);
    if (block->meter != NULL) {
        berth_ort_meter_add(block->meter, -(int64_t)block->bytes);
    }
    if (block->start != NULL) {
        berth_free(block->start);
        return;
    }
    size_t whole = class_bytes(block->size_class);
    uint64_t pooled = atomic_fetch_add_explicit(&bytes_pooled, whole, memory_order_relaxed);
    if (pooled + whole > POOL_BYTES_MAX) {
        atomic_fetch_sub_explicit(&bytes_pooled, whole, memory_order_relaxed);
        munmap(block, whole);
        return;
    }
    struct pool_class *home = &pool[block->size_class];
    pthread_mutex_lock(&home->mu);
    block->next = home->blocks;
    home->blocks = block;
    pthread_mutex_unlock(&home->mu);
}

void berth_ort_memory_trim(void)
{
    for (uint32_t i = 0; i < CLASS_COUNT; i++) {
        pthread_mutex_lock(&pool[i].mu);
        struct block *block = pool[i].blocks;
        pool[i].blocks = NULL;
        pthread_mutex_unlock(&pool[i].mu);
        while (block != NULL) {
            struct block *next = block->next;
            atomic_fetch_sub_explicit(&bytes_pooled, class_bytes(i), memory_order_relaxed);
            munmap(block, class_bytes(i));
            block = next;
        }
    }
}

uint64_t berth_ort_memory_pooled(void)
{
    return atomic_load_explicit(&bytes_pooled, memory_order_relaxed);
}

uint64_t berth_ort_memory_heap(void)
{
    struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

void berth_ort_meter_add(struct berth_ort_meter *meter, int64_t bytes)
{
    uint64_t before =
        atomic_fetch_add_explicit(&meter->bytes_used, (uint64_t)bytes, memory_order_relaxed);
    uint64_t now = before + (uint64_t)bytes;
    if (bytes <= 0) {
        return;
    }
    uint64_t peak = atomic_load_explicit(&meter->bytes_peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&meter->bytes_peak, &peak, now,
                                                                memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
}

static void *allocator_alloc(OrtAllocator *self, size_t bytes)
{
    (void)self;
    void *payload = berth_ort_memory_take(bytes);
    if (payload == NULL) {
        memory.throw_bad_alloc();
    }
    return payload;
}

static void allocator_free(OrtAllocator *self, void *payload)
{
    (void)self;
    berth_ort_memory_give(payload);
}

static const OrtMemoryInfo *allocator_info(const OrtAllocator *self)
{
    (void)self;
    return memory.info;
}

static struct block *block_small(size_t bytes)
{
    unsigned char *start = berth_alloc(bytes + sizeof(struct block) + BLOCK_ALIGN);
    if (start == NULL) {
        return NULL;
    }
    size_t over = (uintptr_t)start % BLOCK_ALIGN;
    struct block *block = (struct block *)(void *)(start + (over == 0 ? 0 : BLOCK_ALIGN - over));
    block->start = start;
    return block;
}

static struct block *block_mapped(size_t bytes)
{
    size_t whole;
    if (!berth_add_size(bytes, sizeof(struct block), &whole) ||
        whole > (size_t)1 << MAPPED_LOG2_MAX) {
        return NULL;
    }
    uint32_t size_class = class_of(whole);
    struct block *block = block_pooled(size_class);
    if (block != NULL) {
        return block;
    }
    block = mmap(NULL, class_bytes(size_class), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
        return NULL;
    }
    block->start = NULL;
    block->size_class = size_class;
    return block;
}

/* The smallest pooled block of that class or up to twice as large; NULL: none. */
static struct block *block_pooled(uint32_t size_class)
{
    for (uint32_t i = size_class; i <= size_class + CLASSES_ABOVE && i < CLASS_COUNT; i++) {
        struct pool_class *home = &pool[i];
        pthread_mutex_lock(&home->mu);
        struct block *block = home->blocks;
        if (block != NULL) {
            home->blocks = block->next;
        }
        pthread_mutex_unlock(&home->mu);
        if (block != NULL) {
            atomic_fetch_sub_explicit(&bytes_pooled, class_bytes(i), memory_order_relaxed);
            return block;
        }
    }
    return NULL;
}

/* The smallest class that holds `bytes` (at least 16 KiB, at most 2^46). */
static uint32_t class_of(size_t bytes)
{
    uint32_t log2 = 63 - (uint32_t)__builtin_clzll(bytes - 1); /* 2^log2 < bytes or just above */
    if (log2 < MAPPED_LOG2_MIN) {
        return 0;
    }
    uint32_t quarter = (uint32_t)((bytes - 1) >> (log2 - 2)) & 3;
    return (log2 - MAPPED_LOG2_MIN) * 4 + quarter + 1; /* one step above the floor of bytes - 1 */
}

static size_t class_bytes(uint32_t size_class)
{
    size_t base = (size_t)1 << (MAPPED_LOG2_MIN + size_class / 4);
    return base + base / 4 * (size_class % 4);
}
