/* mem.c - see mem.h.
 *
 * Each allocation is counted before it is made, so that torture tests can fail the first, second,
 * third... one. A header of 16 bytes in front of each allocation keeps its size for the live count;
 * that costs less than asking the C library and works under every sanitizer.
 */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HEADER_BYTES 16
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define ARENA_BLOCK_FIRST 976  /* with both headers 1 KiB: many arenas never hold more */
#define ARENA_BLOCK_BYTES 4048 /* and one page */

struct berth_arena_block {
    struct berth_arena_block *next;
    size_t bytes_used;
    size_t bytes;
    size_t pad; /* keeps payload aligned to 16 */
    unsigned char payload[];
};

struct berth_arena_hook {
    struct berth_arena_hook *next;
    void (*run)(void *subject);
    void *subject;
};

static atomic_uint_fast64_t call_count;
static atomic_uint_fast64_t bytes_live;
static atomic_uint_fast64_t fail_at; /* absolute call index; 0: never */
static atomic_bool fail_sticky;

static bool allocation_allowed(void);

void *berth_alloc(size_t bytes)
{
    size_t whole;
    if (!berth_add_size(bytes, HEADER_BYTES, &whole) || !allocation_allowed()) {
        return NULL;
    }
    unsigned char *memory = calloc(1, whole);
    if (memory == NULL) {
        return NULL;
    }
    memcpy(memory, &bytes, sizeof(bytes));
    atomic_fetch_add_explicit(&bytes_live, bytes, memory_order_relaxed);
    return memory + HEADER_BYTES;
}

void *berth_alloc_for_free(size_t bytes)
{
    return allocation_allowed() ? malloc(bytes) : NULL;
}

void *berth_resize(void *memory, size_t bytes_old, size_t bytes_new)
{
    size_t whole;
    if (memory == NULL) {
        return berth_alloc(bytes_new);
    }
    if (!berth_add_size(bytes_new, HEADER_BYTES, &whole) || !allocation_allowed()) {
        return NULL;
    }
    unsigned char *grown = realloc((unsigned char *)memory - HEADER_BYTES, whole);
    if (grown == NULL) {
        return NULL;
    }
    memcpy(grown, &bytes_new, sizeof(bytes_new));
    if (bytes_new > bytes_old) {
        memset(grown + HEADER_BYTES + bytes_old, 0, bytes_new - bytes_old);
    }
    atomic_fetch_add_explicit(&bytes_live, bytes_new - bytes_old, memory_order_relaxed);
    return grown + HEADER_BYTES;
}

void berth_free(void *memory)
{
    if (memory == NULL) {
        return;
    }
    size_t bytes;
    unsigned char *start = (unsigned char *)memory - HEADER_BYTES;
    memcpy(&bytes, start, sizeof(bytes));
    atomic_fetch_sub_explicit(&bytes_live, bytes, memory_order_relaxed);
    free(start);
}

size_t berth_pages_bytes(size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * HUGE_PAGE_BYTES) {
        return 0;
    }
    return (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

/* The system hands out page by page: a huge page more is asked for, and what lies before and after
 * the aligned block is given back. */
void *berth_alloc_pages(size_t bytes)
{
    size_t taken = berth_pages_bytes(bytes);
    if (bytes == 0 || taken == 0 || !allocation_allowed()) {
        return NULL;
    }
    size_t asked = taken + HUGE_PAGE_BYTES;
    unsigned char *start = mmap(NULL, asked, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    size_t before = HUGE_PAGE_BYTES - (uintptr_t)start % HUGE_PAGE_BYTES;
    unsigned char *memory = start + before;
    (void)munmap(start, before);
    if (before < HUGE_PAGE_BYTES) {
        (void)munmap(memory + taken, HUGE_PAGE_BYTES - before);
    }
    (void)madvise(memory, taken, MADV_HUGEPAGE);
    atomic_fetch_add_explicit(&bytes_live, taken, memory_order_relaxed);
    return memory;
}

void berth_free_pages(void *memory, size_t bytes)
{
    if (memory != NULL) {
        (void)munmap(memory, berth_pages_bytes(bytes));
        atomic_fetch_sub_explicit(&bytes_live, berth_pages_bytes(bytes), memory_order_relaxed);
    }
}

/* Not a new mapping in place of the old one, though that would be one call: where it fails, the
 * addresses may be left free, for others to take. */
bool berth_unmap_pages(void *memory, size_t bytes)
{
    size_t taken = berth_pages_bytes(bytes);
    if (mprotect(memory, taken, PROT_NONE) != 0) {
        return false;
    }
    if (madvise(memory, taken, MADV_DONTNEED) != 0) { /* somebody locked them */
        int status = mprotect(memory, taken, PROT_READ | PROT_WRITE);
        BERTH_ASSERT(status == 0);
        return false;
    }
    atomic_fetch_sub_explicit(&bytes_live, taken, memory_order_relaxed);
    return true;
}

bool berth_map_pages(void *memory, size_t bytes)
{
    size_t taken = berth_pages_bytes(bytes);
    if (!allocation_allowed() || mprotect(memory, taken, PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
    atomic_fetch_add_explicit(&bytes_live, taken, memory_order_relaxed);
    return true;
}

void berth_free_pages_unmapped(void *memory, size_t bytes)
{
    (void)munmap(memory, berth_pages_bytes(bytes));
}

char *berth_strdup(const char *text)
{
    return berth_strndup(text, strlen(text));
}

char *berth_strndup(const char *text, size_t length)
{
    char *copy = berth_alloc(length + 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
    }
    return copy;
}

bool berth_add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

bool berth_mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

void berth_mem_fail_at(uint64_t call_index, bool sticky)
{
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_at, call_index == 0 ? 0 : atomic_load(&call_count) + call_index);
}

uint64_t berth_mem_call_count(void)
{
    return atomic_load(&call_count);
}

uint64_t berth_mem_bytes_live(void)
{
    return atomic_load(&bytes_live);
}

void berth_arena_init(struct berth_arena *arena, size_t bytes_max)
{
    *arena = (struct berth_arena){.bytes_max = bytes_max};
}

void berth_arena_finish(struct berth_arena *arena)
{
    /* Hooks live in the arena's own blocks, so they run first. */
    for (struct berth_arena_hook *hook = arena->hooks; hook != NULL; hook = hook->next) {
        hook->run(hook->subject);
    }
    struct berth_arena_block *block = arena->blocks;
    while (block != NULL) {
        struct berth_arena_block *next = block->next;
        berth_free(block);
        block = next;
    }
    *arena = (struct berth_arena){.bytes_max = arena->bytes_max};
}

void *berth_arena_alloc(struct berth_arena *arena, size_t bytes)
{
    size_t rounded;
    if (!berth_add_size(bytes, 15, &rounded)) {
        return NULL;
    }
    rounded &= ~(size_t)15;
    if (arena->bytes_max != 0 &&
        (rounded > arena->bytes_max || arena->bytes_used > arena->bytes_max - rounded)) {
        return NULL;
    }
    struct berth_arena_block *block = arena->blocks;
    if (block == NULL || block->bytes - block->bytes_used < rounded) {
        size_t usual = block == NULL ? ARENA_BLOCK_FIRST : ARENA_BLOCK_BYTES;
        size_t payload = rounded > usual ? rounded : usual;
        size_t whole;
        if (!berth_add_size(payload, sizeof(*block), &whole)) {
            return NULL;
        }
        block = berth_alloc(whole);
        if (block == NULL) {
            return NULL;
        }
        block->bytes = payload;
        if (rounded > ARENA_BLOCK_BYTES / 2 && arena->blocks != NULL) {
            block->next = arena->blocks->next; /* a big one: the small one stays first */
            arena->blocks->next = block;
        } else {
            block->next = arena->blocks;
            arena->blocks = block;
        }
    }
    void *memory = block->payload + block->bytes_used;
    block->bytes_used += rounded;
    arena->bytes_used += rounded;
    return memory;
}

char *berth_arena_strndup(struct berth_arena *arena, const char *text, size_t length)
{
    size_t bytes;
    if (!berth_add_size(length, 1, &bytes)) {
        return NULL;
    }
    char *copy = berth_arena_alloc(arena, bytes);
    if (copy != NULL) {
        memcpy(copy, text, length);
    }
    return copy;
}

char *berth_arena_strdup(struct berth_arena *arena, const char *text)
{
    return berth_arena_strndup(arena, text, strlen(text));
}

enum berth_code berth_arena_at_finish(struct berth_arena *arena, void (*run)(void *subject),
                                      void *subject)
{
    struct berth_arena_hook *hook = berth_arena_alloc(arena, sizeof(*hook));
    if (hook == NULL) {
        return BERTH_UNAVAILABLE;
    }
    *hook = (struct berth_arena_hook){.next = arena->hooks, .run = run, .subject = subject};
    arena->hooks = hook;
    return BERTH_OK;
}

static bool allocation_allowed(void)
{
    uint64_t call = atomic_fetch_add_explicit(&call_count, 1, memory_order_relaxed) + 1;
    uint64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);
    if (at == 0) {
        return true;
    }
    return atomic_load_explicit(&fail_sticky, memory_order_relaxed) ? call < at : call != at;
}
