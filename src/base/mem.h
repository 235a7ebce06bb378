/* mem.h - all memory of the process: checked allocation, and arenas with one lifetime.
 *
 * This is the only place that calls malloc, so that a test can make its Nth call fail. Memory comes
 * zeroed. Sizes that come from outside go through berth_add_size and berth_mul_size first.
 * Threads: berth_alloc and friends from any thread; an arena belongs to one holder at a time.
 */
#ifndef BERTH_MEM_H
#define BERTH_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Zeroed memory, or NULL when there is none. The caller owns it and gives it to berth_free. */
void *berth_alloc(size_t bytes) BERTH_MUST_USE;
/* Grows or shrinks; new bytes are zeroed. NULL on failure, and the old memory stays as it was. */
void *berth_resize(void *memory, size_t bytes_old, size_t bytes_new) BERTH_MUST_USE;
void berth_free(void *memory); /* NULL is fine */
/* Not zeroed, and given to free(): for libraries that take an allocator. Counted, and fails, as the
 * others; its bytes are not. */
void *berth_alloc_for_free(size_t bytes) BERTH_MUST_USE;
/* Zeroed whole pages for one big block, in huge ones where the system has them; touched pages only
 * take memory. NULL when there is none. Given back with the size it was asked with. */
void *berth_alloc_pages(size_t bytes) BERTH_MUST_USE;
void berth_free_pages(void *memory, size_t bytes); /* NULL is fine */
size_t berth_pages_bytes(size_t bytes); /* what that takes: whole huge pages; 0: too much */
/* Gives the pages' memory back and keeps their addresses; who touches them faults. Then only
 * berth_map_pages and berth_free_pages_unmapped take them. false: the system will not; they stay
 * usable, contents undefined. */
bool berth_unmap_pages(void *memory, size_t bytes) BERTH_MUST_USE;
/* Pages that were unmapped are usable again, and zero. false: no memory; they stay unmapped. */
bool berth_map_pages(void *memory, size_t bytes) BERTH_MUST_USE;
void berth_free_pages_unmapped(void *memory, size_t bytes); /* the addresses too */
/* A copy the caller owns, or NULL. */
char *berth_strdup(const char *text) BERTH_MUST_USE;
char *berth_strndup(const char *text, size_t length) BERTH_MUST_USE;

/* false on overflow, *out untouched. */
bool berth_add_size(size_t a, size_t b, size_t *out) BERTH_MUST_USE;
bool berth_mul_size(size_t a, size_t b, size_t *out) BERTH_MUST_USE;

/* Tests only: the call_index-th allocation from now (1 = the next) fails, and `sticky` also every
 * later one; 0 switches failing off. Counted over all threads. */
void berth_mem_fail_at(uint64_t call_index, bool sticky);
uint64_t berth_mem_call_count(void);   /* allocations since the start */
uint64_t berth_mem_bytes_live(void);   /* bytes allocated and not yet freed */

struct berth_arena_block;
struct berth_arena_hook;

/* A bump allocator freed as a whole; hooks run at finish, last added first. */
struct berth_arena {
    struct berth_arena_block *blocks;
    struct berth_arena_hook *hooks;
    size_t bytes_used;
    size_t bytes_max; /* 0: no limit; else allocation past it returns NULL */
};

void berth_arena_init(struct berth_arena *arena, size_t bytes_max);
void berth_arena_finish(struct berth_arena *arena); /* zeroed memory is fine */
/* Zeroed, aligned to 16. NULL when memory or the limit is used up. Lives until finish. */
void *berth_arena_alloc(struct berth_arena *arena, size_t bytes) BERTH_MUST_USE;
char *berth_arena_strndup(struct berth_arena *arena, const char *text,
                          size_t length) BERTH_MUST_USE;
char *berth_arena_strdup(struct berth_arena *arena, const char *text) BERTH_MUST_USE;
/* Runs hook(subject) at finish. */
enum berth_code berth_arena_at_finish(struct berth_arena *arena, void (*hook)(void *subject),
                                      void *subject) BERTH_MUST_USE;

#define BERTH_CONTAINER_OF(pointer, type, member)                                                  \
    ((type *)(void *)((char *)(pointer) - offsetof(type, member)))
#define BERTH_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
