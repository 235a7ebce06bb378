/* slab.c - the buddy allocator over memfd slabs.
 *
 * A common slab is 64 MiB, cut into blocks of 256 B << order. Its book-keeping (one struct block
 * for each smallest block, of which only the first of each block is used) lies in ordinary memory,
 * where no other process can scribble. Free blocks of all slabs hang in one list per order. Small
 * blocks given back first wait in a short stack per order, unmerged, for the next such take.
 *
 * A range over 32 MiB, or a private one, has a slab of its own. Big ones are pooled by power of
 * two. Private ones never are: a decoder that was sent the descriptor may have kept it, and would
 * see the next request's bytes. They are made and ended outside the mutex.
 *
 * bytes_dirty counts free memory that may still be resident. A list holds its dirty blocks first,
 * so that takes find warm memory and trimming finds what there is to trim: beyond bytes_pool_max
 * the pooled big slabs go, then holes are punched into the largest dirty blocks. */
#include "base/slab.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define BLOCK_SHIFT 8                         /* the smallest block: 256 B */
#define SLAB_ORDER 18                         /* a whole common slab: 64 MiB */
#define SLAB_BYTES ((size_t)1 << (BLOCK_SHIFT + SLAB_ORDER))
#define COMMON_BYTES_MAX (SLAB_BYTES / 2)
#define SLABS_MAX (1U << (32 - SLAB_ORDER))   /* so that a block's number has 32 bits */
#define STACK_ORDERS 9                        /* 256 B to 64 KiB */
#define STACK_DEPTH 32
#define TRIM_ORDER 8                          /* no holes smaller than 64 KiB */
#define CLASSES 64
#define ADMIT_ALWAYS_BYTES 65536
#define PAGE_BYTES ((size_t)4096)
#define BUDGET_MAX ((uint64_t)1 << 50)        /* so that rounding sizes up cannot overflow */

enum { RANGE_PRIVATE = 1, RANGE_OWN = 2 };    /* berth_range.flags; private ones are own too */
enum { BLOCK_INSIDE, BLOCK_FREE = 32, BLOCK_TAKEN = 64, BLOCK_STACKED = 96, ORDER_MASK = 31 };

struct block {
    uint32_t prev, next; /* in the list of its order; 0: none */
    uint32_t amount;     /* taken: bytes asked for; free: bytes that may be resident */
    uint32_t state;      /* one of BLOCK_*, and the order */
};

struct slab {
    _Atomic(unsigned char *) base;
    struct block *blocks; /* owned; NULL in a slab that is one range's own */
    size_t bytes;
    uint32_t next;        /* in the list of free slots, or in the pool of its class */
    int fd;
};

struct block_list {
    uint32_t head, tail;
};

struct berth_slabs {
    struct berth_slabs_options options;
    struct slab *slabs; /* by id, SLABS_MAX of them; id 0 is never used */
    pthread_mutex_t mu; /* guards all below, and the slabs' next */
    uint32_t slab_count; /* ids given out at least once */
    uint32_t slab_free;
    uint32_t pools[CLASSES]; /* big slabs waiting for reuse, by log2 of their size */
    struct block_list lists[SLAB_ORDER + 1];
    uint32_t orders; /* bit set: the list is not empty */
    uint32_t stacks[STACK_ORDERS][STACK_DEPTH];
    uint32_t stack_counts[STACK_ORDERS];
    uint64_t bytes_dirty;
    struct berth_slabs_stats stats;
};

static enum berth_code take(struct berth_slabs *slabs, size_t bytes, uint32_t flags,
                            struct berth_range *out, struct berth_err *err);
static enum berth_code reserve(struct berth_slabs *slabs, size_t bytes_old, size_t bytes,
                               struct berth_err *err);
static void unreserve(struct berth_slabs *slabs, size_t bytes_old, size_t bytes);
static enum berth_code range_take(struct berth_slabs *slabs, struct berth_range *range,
                                  struct berth_err *err);
static void range_give(struct berth_slabs *slabs, const struct berth_range *range);
static enum berth_code range_grow(struct berth_slabs *slabs, struct berth_range *range,
                                  size_t bytes, struct berth_err *err);
static void range_shrink(struct berth_slabs *slabs, const struct berth_range *range, size_t bytes);
static enum berth_code own_take(struct berth_slabs *slabs, struct berth_range *range,
                                struct berth_err *err);
static void own_give(struct berth_slabs *slabs, const struct berth_range *range);
static enum berth_code own_grow(struct berth_slabs *slabs, uint32_t id, size_t bytes,
                                struct berth_err *err);
static enum berth_code slab_map(struct slab *slab, size_t bytes, struct berth_err *err);
static void slab_unmap(struct slab *slab);
static uint32_t slot_take(struct berth_slabs *slabs);
static void slot_give(struct berth_slabs *slabs, uint32_t id);
static enum berth_code block_take(struct berth_slabs *slabs, uint32_t order, uint32_t *out,
                                  struct berth_err *err);
static void block_give(struct berth_slabs *slabs, uint32_t at);
static void block_merge(struct berth_slabs *slabs, uint32_t at, size_t dirty);
static enum berth_code common_add(struct berth_slabs *slabs, struct berth_err *err);
static void trim(struct berth_slabs *slabs);
static bool trim_pool(struct berth_slabs *slabs);
static bool trim_block(struct berth_slabs *slabs);
static void list_add(struct berth_slabs *slabs, uint32_t at, uint32_t order, size_t dirty);
static void list_cut(struct berth_slabs *slabs, uint32_t at);
static struct block *block_at(const struct berth_slabs *slabs, uint32_t at);
static uint32_t block_of(const struct berth_range *range);
static uint32_t order_for(size_t bytes);
static size_t order_bytes(uint32_t order);
static size_t own_bytes(size_t bytes, uint32_t flags);
static uint32_t class_of(size_t bytes);

enum berth_code berth_slabs_create(const struct berth_slabs_options *options,
                                   struct berth_slabs **out, struct berth_err *err)
{
    struct berth_slabs *slabs = berth_alloc(sizeof(*slabs));
    if (slabs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the slabs");
    }
    slabs->slabs = berth_alloc(SLABS_MAX * sizeof(*slabs->slabs));
    if (slabs->slabs == NULL) {
        berth_free(slabs);
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the table of slabs");
    }
    slabs->options = *options;
    if (slabs->options.bytes_budget > BUDGET_MAX) {
        slabs->options.bytes_budget = BUDGET_MAX;
    }
    pthread_mutex_init(&slabs->mu, NULL);
    *out = slabs;
    return BERTH_OK;
}

void berth_slabs_destroy(struct berth_slabs *slabs)
{
    if (slabs == NULL) {
        return;
    }
    for (uint32_t id = 1; id <= slabs->slab_count; id++) {
        slab_unmap(&slabs->slabs[id]);
    }
    pthread_mutex_destroy(&slabs->mu);
    berth_free(slabs->slabs);
    berth_free(slabs);
}

enum berth_code berth_slabs_take(struct berth_slabs *slabs, size_t bytes, struct berth_range *out,
                                 struct berth_err *err)
{
    return take(slabs, bytes, bytes > COMMON_BYTES_MAX ? RANGE_OWN : 0, out, err);
}

enum berth_code berth_slabs_take_private(struct berth_slabs *slabs, size_t bytes,
                                         struct berth_range *out, struct berth_err *err)
{
    return take(slabs, bytes, RANGE_OWN | RANGE_PRIVATE, out, err);
}

bool berth_slabs_admits(struct berth_slabs *slabs, size_t bytes)
{
    pthread_mutex_lock(&slabs->mu);
    uint64_t out = slabs->stats.bytes_out;
    pthread_mutex_unlock(&slabs->mu);
    return bytes <= ADMIT_ALWAYS_BYTES || out == 0 ||
           (out < slabs->options.bytes_budget / 2 &&
            bytes <= slabs->options.bytes_budget / 2 - out);
}

enum berth_code berth_slabs_resize(struct berth_slabs *slabs, struct berth_range *range,
                                   size_t bytes, struct berth_err *err)
{
    size_t bytes_old = range->length;
    if (bytes == 0) {
        return berth_fail(err, BERTH_INVALID, "a range of 0 bytes");
    }
    if (bytes > bytes_old) {
        BERTH_TRY(reserve(slabs, bytes_old, bytes, err));
        enum berth_code code = range_grow(slabs, range, bytes, err);
        if (code != BERTH_OK) {
            unreserve(slabs, bytes_old, bytes);
        }
        return code;
    }
    range_shrink(slabs, range, bytes);
    range->length = bytes;
    pthread_mutex_lock(&slabs->mu);
    slabs->stats.bytes_out -= bytes_old - bytes;
    pthread_mutex_unlock(&slabs->mu);
    return BERTH_OK;
}

void berth_slabs_give(struct berth_slabs *slabs, struct berth_range *range)
{
    if (range->slab == 0) {
        return;
    }
    range_give(slabs, range);
    pthread_mutex_lock(&slabs->mu);
    BERTH_ASSERT(slabs->stats.bytes_out >= range->length);
    slabs->stats.bytes_out -= range->length;
    trim(slabs);
    pthread_mutex_unlock(&slabs->mu);
    *range = (struct berth_range){0};
}

void *berth_slabs_pointer(struct berth_slabs *slabs, const struct berth_range *range)
{
    if (range->slab == 0) {
        return NULL;
    }
    BERTH_ASSERT(range->slab < SLABS_MAX);
    unsigned char *base =
        atomic_load_explicit(&slabs->slabs[range->slab].base, memory_order_acquire);
    BERTH_ASSERT(base != NULL);
    return base + range->offset;
}

int berth_slabs_fd(struct berth_slabs *slabs, const struct berth_range *range)
{
    BERTH_ASSERT(range->slab > 0 && range->slab < SLABS_MAX);
    return slabs->slabs[range->slab].fd;
}

bool berth_range_slice(const struct berth_range *range, uint64_t offset, uint64_t length,
                       struct berth_range *out)
{
    if (offset > range->length || length > range->length - offset) {
        return false;
    }
    *out = (struct berth_range){range->slab, range->flags, range->offset + offset, length};
    return true;
}

bool berth_range_private(const struct berth_range *range)
{
    return (range->flags & RANGE_PRIVATE) != 0;
}

void berth_slabs_stats(struct berth_slabs *slabs, struct berth_slabs_stats *out)
{
    pthread_mutex_lock(&slabs->mu);
    *out = slabs->stats;
    pthread_mutex_unlock(&slabs->mu);
}

static enum berth_code take(struct berth_slabs *slabs, size_t bytes, uint32_t flags,
                            struct berth_range *out, struct berth_err *err)
{
    struct berth_range range = {.flags = flags, .length = bytes};
    if (bytes == 0) {
        return berth_fail(err, BERTH_INVALID, "a range of 0 bytes");
    }
    BERTH_TRY(reserve(slabs, 0, bytes, err));
    enum berth_code code = range_take(slabs, &range, err);
    if (code != BERTH_OK) {
        unreserve(slabs, 0, bytes);
        return code;
    }
    *out = range;
    return BERTH_OK;
}

/* Counts a range of bytes_old (0: a new one) as one of bytes, or refuses. */
static enum berth_code reserve(struct berth_slabs *slabs, size_t bytes_old, size_t bytes,
                               struct berth_err *err)
{
    uint64_t budget = slabs->options.bytes_budget;
    pthread_mutex_lock(&slabs->mu);
    struct berth_slabs_stats *stats = &slabs->stats;
    uint64_t others = stats->bytes_out - bytes_old;
    bool fits = bytes <= budget && others <= budget - bytes;
    if (fits) {
        stats->takes += bytes_old == 0;
        stats->bytes_out = others + bytes;
        stats->bytes_peak =
            stats->bytes_peak > stats->bytes_out ? stats->bytes_peak : stats->bytes_out;
    } else {
        stats->refusals++;
    }
    pthread_mutex_unlock(&slabs->mu);
    if (fits) {
        return BERTH_OK;
    }
    if (bytes > budget) {
        return berth_fail(err, BERTH_TOO_LARGE, "%zu bytes, more than the whole --bytes-budget",
                          bytes);
    }
    enum berth_code code =
        berth_fail(err, BERTH_BUSY, "%zu bytes wanted, only %llu are free in --bytes-budget", bytes,
                   (unsigned long long)(budget - others));
    if (err != NULL) {
        err->retry_after_ms = 1000;
    }
    return code;
}

/* The budget had room, the system had not. */
static void unreserve(struct berth_slabs *slabs, size_t bytes_old, size_t bytes)
{
    pthread_mutex_lock(&slabs->mu);
    slabs->stats.bytes_out -= bytes - bytes_old;
    slabs->stats.takes -= bytes_old == 0;
    slabs->stats.refusals++;
    pthread_mutex_unlock(&slabs->mu);
}

/* Finds room for range->length bytes; the budget holds them already. */
static enum berth_code range_take(struct berth_slabs *slabs, struct berth_range *range,
                                  struct berth_err *err)
{
    uint32_t at;
    if (range->flags & RANGE_OWN) {
        return own_take(slabs, range, err);
    }
    pthread_mutex_lock(&slabs->mu);
    enum berth_code code = block_take(slabs, order_for(range->length), &at, err);
    if (code == BERTH_OK) {
        block_at(slabs, at)->amount = (uint32_t)range->length;
        range->slab = at >> SLAB_ORDER;
        range->offset = (uint64_t)(at & ((1U << SLAB_ORDER) - 1)) << BLOCK_SHIFT;
    }
    pthread_mutex_unlock(&slabs->mu);
    return code;
}

static void range_give(struct berth_slabs *slabs, const struct berth_range *range)
{
    if (range->flags & RANGE_OWN) {
        own_give(slabs, range);
        return;
    }
    pthread_mutex_lock(&slabs->mu);
    struct block *block = block_at(slabs, block_of(range));
    BERTH_ASSERT((block->state & ~(uint32_t)ORDER_MASK) == BLOCK_TAKEN); /* given twice? */
    BERTH_ASSERT(block->amount == range->length);                       /* a part of a range? */
    block_give(slabs, block_of(range));
    pthread_mutex_unlock(&slabs->mu);
}

/* In place where it fits, else moved; a private one keeps its descriptor. */
static enum berth_code range_grow(struct berth_slabs *slabs, struct berth_range *range,
                                  size_t bytes, struct berth_err *err)
{
    if (range->flags & RANGE_OWN) {
        if (bytes > slabs->slabs[range->slab].bytes) {
            BERTH_TRY(own_grow(slabs, range->slab, own_bytes(bytes, range->flags), err));
        }
    } else if (bytes > COMMON_BYTES_MAX || order_for(bytes) > order_for(range->length)) {
        struct berth_range grown = {.flags = bytes > COMMON_BYTES_MAX ? RANGE_OWN : 0,
                                    .length = bytes};
        BERTH_TRY(range_take(slabs, &grown, err));
        memcpy(berth_slabs_pointer(slabs, &grown), berth_slabs_pointer(slabs, range),
               range->length);
        range_give(slabs, range);
        *range = grown;
    } else {
        pthread_mutex_lock(&slabs->mu);
        block_at(slabs, block_of(range))->amount = (uint32_t)bytes;
        pthread_mutex_unlock(&slabs->mu);
    }
    range->length = bytes;
    return BERTH_OK;
}

/* Never moves: the upper halves of a block are cut off, an own slab gives its last pages up. */
static void range_shrink(struct berth_slabs *slabs, const struct berth_range *range, size_t bytes)
{
    size_t keep = own_bytes(bytes, RANGE_PRIVATE);
    if (range->flags & RANGE_PRIVATE) {
        memset((unsigned char *)berth_slabs_pointer(slabs, range) + bytes, 0,
               keep < range->length ? keep - bytes : range->length - bytes);
    }
    if (range->flags & RANGE_OWN) {
        struct slab *slab = &slabs->slabs[range->slab];
        if (keep < slab->bytes) {
            madvise(slab->base + keep, slab->bytes - keep, MADV_REMOVE);
        }
        return;
    }
    uint32_t at = block_of(range);
    uint32_t order_new = order_for(bytes);
    pthread_mutex_lock(&slabs->mu);
    struct block *block = block_at(slabs, at);
    for (uint32_t order = block->state & ORDER_MASK; order > order_new; order--) {
        uint32_t upper = at + (1U << (order - 1));
        block_at(slabs, upper)->state = BLOCK_TAKEN | (order - 1);
        block_merge(slabs, upper, order_bytes(order - 1));
    }
    block->state = BLOCK_TAKEN | order_new;
    block->amount = (uint32_t)bytes;
    pthread_mutex_unlock(&slabs->mu);
}

static enum berth_code own_take(struct berth_slabs *slabs, struct berth_range *range,
                                struct berth_err *err)
{
    size_t bytes = own_bytes(range->length, range->flags);
    uint32_t *pool = &slabs->pools[class_of(bytes)];
    uint32_t id = 0;
    pthread_mutex_lock(&slabs->mu);
    bool pooled = !(range->flags & RANGE_PRIVATE) && *pool != 0;
    if (pooled) {
        id = *pool;
        *pool = slabs->slabs[id].next;
        slabs->bytes_dirty -= bytes;
    } else {
        id = slot_take(slabs);
    }
    pthread_mutex_unlock(&slabs->mu);
    if (id == 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "all %u slabs are in use", SLABS_MAX - 1);
    }
    enum berth_code code = pooled ? BERTH_OK : slab_map(&slabs->slabs[id], bytes, err);
    pthread_mutex_lock(&slabs->mu);
    if (code != BERTH_OK) {
        slot_give(slabs, id);
    } else if (!pooled) {
        slabs->stats.bytes_mapped += bytes;
    }
    pthread_mutex_unlock(&slabs->mu);
    if (code == BERTH_OK) {
        range->slab = id;
    }
    return code;
}

static void own_give(struct berth_slabs *slabs, const struct berth_range *range)
{
    struct slab *slab = &slabs->slabs[range->slab];
    size_t bytes = slab->bytes;
    BERTH_ASSERT(slab->base != NULL && slab->blocks == NULL && range->offset == 0);
    bool private = (range->flags & RANGE_PRIVATE) != 0;
    if (private) {
        slab_unmap(slab);
    }
    pthread_mutex_lock(&slabs->mu);
    if (private) {
        slabs->stats.bytes_mapped -= bytes;
        slot_give(slabs, range->slab);
    } else {
        uint32_t *pool = &slabs->pools[class_of(bytes)];
        slab->next = *pool;
        *pool = range->slab;
        slabs->bytes_dirty += bytes;
    }
    pthread_mutex_unlock(&slabs->mu);
}

/* Only its holder looks at an own slab. Files never shrink: they are sealed. */
static enum berth_code own_grow(struct berth_slabs *slabs, uint32_t id, size_t bytes,
                                struct berth_err *err)
{
    struct slab *slab = &slabs->slabs[id];
    size_t bytes_old = slab->bytes;
    struct stat file; /* it may be long enough already, after a growth that could not be mapped */
    if (fstat(slab->fd, &file) != 0 ||
        ((size_t)file.st_size < bytes && ftruncate(slab->fd, (off_t)bytes) != 0)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot grow shared memory to %zu: %m", bytes);
    }
    void *base = mremap(slab->base, bytes_old, bytes, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot map %zu bytes of shared memory: %m",
                          bytes);
    }
    atomic_store_explicit(&slab->base, base, memory_order_release);
    slab->bytes = bytes;
    pthread_mutex_lock(&slabs->mu);
    slabs->stats.bytes_mapped += bytes - bytes_old;
    pthread_mutex_unlock(&slabs->mu);
    return BERTH_OK;
}

static enum berth_code slab_map(struct slab *slab, size_t bytes, struct berth_err *err)
{
    int fd = memfd_create("berth", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot make shared memory: %m");
    }
    void *base = MAP_FAILED;
    /* Sealed, so that no process that is given fd can cut the file short under our feet. */
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (base == MAP_FAILED) {
        enum berth_code code =
            berth_fail(err, BERTH_UNAVAILABLE, "cannot map %zu bytes of shared memory: %m", bytes);
        close(fd);
        return code;
    }
    slab->fd = fd;
    slab->bytes = bytes;
    atomic_store_explicit(&slab->base, base, memory_order_release);
    return BERTH_OK;
}

static void slab_unmap(struct slab *slab)
{
    if (slab->base == NULL) {
        return;
    }
    munmap(slab->base, slab->bytes);
    close(slab->fd);
    berth_free(slab->blocks);
    atomic_store_explicit(&slab->base, NULL, memory_order_release);
    slab->blocks = NULL;
    slab->bytes = 0;
}

/* An unused id, or 0. From here on mu is held, except in trim_*. */
static uint32_t slot_take(struct berth_slabs *slabs)
{
    uint32_t id = slabs->slab_free;
    if (id != 0) {
        slabs->slab_free = slabs->slabs[id].next;
        return id;
    }
    return slabs->slab_count + 1 < SLABS_MAX ? ++slabs->slab_count : 0;
}

static void slot_give(struct berth_slabs *slabs, uint32_t id)
{
    slabs->slabs[id].next = slabs->slab_free;
    slabs->slab_free = id;
}

static enum berth_code block_take(struct berth_slabs *slabs, uint32_t order, uint32_t *out,
                                  struct berth_err *err)
{
    if (order < STACK_ORDERS && slabs->stack_counts[order] > 0) {
        *out = slabs->stacks[order][--slabs->stack_counts[order]];
        block_at(slabs, *out)->state = BLOCK_TAKEN | order;
        slabs->bytes_dirty -= order_bytes(order);
        return BERTH_OK;
    }
    if (slabs->orders >> order == 0) {
        BERTH_TRY(common_add(slabs, err));
    }
    uint32_t have = order + (uint32_t)__builtin_ctz(slabs->orders >> order);
    uint32_t at = slabs->lists[have].head;
    size_t dirty = block_at(slabs, at)->amount;
    list_cut(slabs, at);
    while (have > order) { /* the lower half goes on; either half may be the dirty one */
        have--;
        size_t half = order_bytes(have);
        dirty = dirty < half ? dirty : half;
        list_add(slabs, at + (1U << have), have, dirty);
    }
    block_at(slabs, at)->state = BLOCK_TAKEN | order;
    *out = at;
    return BERTH_OK;
}

static void block_give(struct berth_slabs *slabs, uint32_t at)
{
    struct block *block = block_at(slabs, at);
    uint32_t order = block->state & ORDER_MASK;
    if (order < STACK_ORDERS && slabs->stack_counts[order] < STACK_DEPTH) {
        block->state = BLOCK_STACKED | order;
        slabs->stacks[order][slabs->stack_counts[order]++] = at;
        slabs->bytes_dirty += order_bytes(order);
        return;
    }
    block_merge(slabs, at, order_bytes(order));
}

/* Frees a block, joined with its free neighbours. */
static void block_merge(struct berth_slabs *slabs, uint32_t at, size_t dirty)
{
    uint32_t order = block_at(slabs, at)->state & ORDER_MASK;
    block_at(slabs, at)->state = BLOCK_INSIDE;
    while (order < SLAB_ORDER) {
        uint32_t buddy = at ^ (1U << order);
        const struct block *other = block_at(slabs, buddy);
        if (other->state != (BLOCK_FREE | order)) {
            break;
        }
        dirty += other->amount;
        list_cut(slabs, buddy);
        at &= ~(1U << order);
        order++;
    }
    list_add(slabs, at, order, dirty);
}

static enum berth_code common_add(struct berth_slabs *slabs, struct berth_err *err)
{
    uint32_t id = slot_take(slabs);
    if (id == 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "all %u slabs are in use", SLABS_MAX - 1);
    }
    struct slab *slab = &slabs->slabs[id];
    struct block *blocks = berth_alloc(sizeof(*blocks) << SLAB_ORDER);
    enum berth_code code =
        blocks == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "no memory for a slab's blocks")
                       : slab_map(slab, SLAB_BYTES, err);
    if (code != BERTH_OK) {
        berth_free(blocks);
        slot_give(slabs, id);
        return code;
    }
    slab->blocks = blocks;
    slabs->stats.bytes_mapped += SLAB_BYTES;
    list_add(slabs, id << SLAB_ORDER, SLAB_ORDER, 0);
    return BERTH_OK;
}

static void trim(struct berth_slabs *slabs)
{
    while (slabs->bytes_dirty > slabs->options.bytes_pool_max &&
           (trim_pool(slabs) || trim_block(slabs))) {
    }
}

/* Ends one pooled slab, the largest. The mutex is let go while its pages are freed. */
static bool trim_pool(struct berth_slabs *slabs)
{
    for (uint32_t i = CLASSES; i-- > 0;) {
        uint32_t id = slabs->pools[i];
        if (id == 0) {
            continue;
        }
        size_t bytes = slabs->slabs[id].bytes;
        slabs->pools[i] = slabs->slabs[id].next;
        slabs->bytes_dirty -= bytes;
        slabs->stats.bytes_mapped -= bytes;
        pthread_mutex_unlock(&slabs->mu);
        slab_unmap(&slabs->slabs[id]);
        pthread_mutex_lock(&slabs->mu);
        slot_give(slabs, id);
        return true;
    }
    return false;
}

/* Punches a hole into the largest dirty block; a slab that is all free then ends. The block counts
 * as taken while the mutex is let go. false: nothing of 64 KiB or more is dirty. */
static bool trim_block(struct berth_slabs *slabs)
{
    for (uint32_t order = 0; order < STACK_ORDERS; order++) {
        while (slabs->stack_counts[order] > 0) {
            block_merge(slabs, slabs->stacks[order][--slabs->stack_counts[order]],
                        order_bytes(order));
            slabs->bytes_dirty -= order_bytes(order);
        }
    }
    for (uint32_t order = SLAB_ORDER + 1; order-- > TRIM_ORDER;) {
        uint32_t at = slabs->lists[order].head;
        if (at == 0 || block_at(slabs, at)->amount == 0) {
            continue;
        }
        uint32_t id = at >> SLAB_ORDER;
        struct slab *slab = &slabs->slabs[id];
        size_t offset = (size_t)(at & ((1U << SLAB_ORDER) - 1)) << BLOCK_SHIFT;
        list_cut(slabs, at);
        block_at(slabs, at)->state = BLOCK_TAKEN | order;
        pthread_mutex_unlock(&slabs->mu);
        if (order == SLAB_ORDER) {
            slab_unmap(slab);
        } else {
            madvise(slab->base + offset, order_bytes(order), MADV_REMOVE);
        }
        pthread_mutex_lock(&slabs->mu);
        if (order == SLAB_ORDER) {
            slabs->stats.bytes_mapped -= SLAB_BYTES;
            slot_give(slabs, id);
        } else {
            block_merge(slabs, at, 0);
        }
        return true;
    }
    return false;
}

static void list_add(struct berth_slabs *slabs, uint32_t at, uint32_t order, size_t dirty)
{
    struct block_list *list = &slabs->lists[order];
    struct block *block = block_at(slabs, at);
    *block = (struct block){.amount = (uint32_t)dirty, .state = BLOCK_FREE | order};
    if (list->head == 0) {
        list->head = list->tail = at;
    } else if (dirty > 0) {
        block->next = list->head;
        block_at(slabs, list->head)->prev = at;
        list->head = at;
    } else {
        block->prev = list->tail;
        block_at(slabs, list->tail)->next = at;
        list->tail = at;
    }
    slabs->orders |= 1U << order;
    slabs->bytes_dirty += dirty;
}

static void list_cut(struct berth_slabs *slabs, uint32_t at)
{
    struct block *block = block_at(slabs, at);
    uint32_t order = block->state & ORDER_MASK;
    struct block_list *list = &slabs->lists[order];
    *(block->prev != 0 ? &block_at(slabs, block->prev)->next : &list->head) = block->next;
    *(block->next != 0 ? &block_at(slabs, block->next)->prev : &list->tail) = block->prev;
    if (list->head == 0) {
        slabs->orders &= ~(1U << order);
    }
    slabs->bytes_dirty -= block->amount;
    block->state = BLOCK_INSIDE;
}

/* A block's number: the slab's id, then the index of its first smallest block. Never 0. */
static struct block *block_at(const struct berth_slabs *slabs, uint32_t at)
{
    return &slabs->slabs[at >> SLAB_ORDER].blocks[at & ((1U << SLAB_ORDER) - 1)];
}

static uint32_t block_of(const struct berth_range *range)
{
    return range->slab << SLAB_ORDER | (uint32_t)(range->offset >> BLOCK_SHIFT);
}

static uint32_t order_for(size_t bytes)
{
    size_t blocks = (bytes - 1) >> BLOCK_SHIFT;
    return blocks == 0 ? 0 : 64 - (uint32_t)__builtin_clzl(blocks);
}

static size_t order_bytes(uint32_t order)
{
    return (size_t)1 << (BLOCK_SHIFT + order);
}

/* Whole pages for a private range, a power of two for one that is pooled later. */
static size_t own_bytes(size_t bytes, uint32_t flags)
{
    size_t pages = (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    return flags & RANGE_PRIVATE ? pages : (size_t)1 << (64 - __builtin_clzl(pages - 1));
}

static uint32_t class_of(size_t bytes)
{
    return 63 - (uint32_t)__builtin_clzl(bytes);
}
