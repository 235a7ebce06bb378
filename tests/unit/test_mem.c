/* Allocation that is counted and can fail, overflow checks, arenas. */
#include "base/mem.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "readable.h"

static bool all_zero(const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

static void memory_comes_zeroed_and_is_counted(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    (void)state;
    unsigned char *memory = berth_alloc(100);
    assert_non_null(memory);
    assert_true(all_zero(memory, 100));
    assert_int_equal(berth_mem_bytes_live(), live + 100);
    memset(memory, 1, 100);
    memory = berth_resize(memory, 100, 5000);
    assert_non_null(memory);
    assert_int_equal(memory[99], 1);
    assert_true(all_zero(memory + 100, 4900));
    assert_int_equal(berth_mem_bytes_live(), live + 5000);
    memory = berth_resize(memory, 5000, 10);
    assert_int_equal(berth_mem_bytes_live(), live + 10);
    berth_free(memory);
    berth_free(NULL);
    assert_int_equal(berth_mem_bytes_live(), live);
    assert_null(berth_alloc(SIZE_MAX - 4));
}

/* Bytes of memory behind whole pages. */
static size_t resident(void *memory, size_t bytes)
{
    unsigned char pages[1024];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t count = 0;
    assert_true(bytes / page <= sizeof(pages));
    assert_int_equal(mincore(memory, bytes, pages), 0);
    for (size_t i = 0; i < bytes / page; i++) {
        count += (pages[i] & 1U) != 0 ? page : 0;
    }
    return count;
}

static void pages_keep_their_addresses_without_memory(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    size_t taken = (size_t)2 << 20;
    (void)state;
    unsigned char *memory = berth_alloc_pages(1000);
    assert_non_null(memory);
    for (int round = 0; round < 3; round++) {
        assert_true(all_zero(memory, taken));
        memset(memory, 1, taken);
        assert_int_equal(resident(memory, taken), taken);
        assert_true(berth_unmap_pages(memory, 1000));
        assert_int_equal(berth_mem_bytes_live(), live);
        assert_int_equal(resident(memory, taken), 0);
        assert_false(readable(memory));
        assert_false(readable(memory + taken - 1));
        void *other = berth_alloc_pages(taken); /* nobody gets the addresses */
        assert_true(other != NULL && other != memory);
        berth_free_pages(other, taken);
        berth_mem_fail_at(1, false);
        assert_false(berth_map_pages(memory, 1000));
        berth_mem_fail_at(0, false);
        assert_false(readable(memory));
        assert_int_equal(berth_mem_bytes_live(), live);
        assert_true(berth_map_pages(memory, 1000));
        assert_int_equal(berth_mem_bytes_live(), live + taken);
        assert_true(readable(memory));
    }
    assert_true(berth_unmap_pages(memory, 1000));
    berth_free_pages_unmapped(memory, 1000);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void pages_are_whole_aligned_and_counted(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    size_t unit = (size_t)2 << 20;
    (void)state;
    assert_int_equal(berth_pages_bytes(0), 0);
    assert_int_equal(berth_pages_bytes(1), unit);
    assert_int_equal(berth_pages_bytes(unit), unit);
    assert_int_equal(berth_pages_bytes(unit + 1), 2 * unit);
    assert_int_equal(berth_pages_bytes(SIZE_MAX), 0);
    unsigned char *memory = berth_alloc_pages(unit + 1);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % unit, 0);
    assert_int_equal(berth_mem_bytes_live(), live + 2 * unit);
    assert_true(all_zero(memory, 2 * unit));
    memset(memory, 1, 2 * unit);
    berth_free_pages(memory, unit + 1);
    berth_free_pages(NULL, 5);
    assert_int_equal(berth_mem_bytes_live(), live);
    assert_null(berth_alloc_pages(0));
    assert_null(berth_alloc_pages(SIZE_MAX));
    assert_null(berth_alloc_pages(SIZE_MAX / 2));
    berth_mem_fail_at(1, false);
    assert_null(berth_alloc_pages(1));
    berth_mem_fail_at(0, false);
}

static void nth_allocation_fails(void **state)
{
    (void)state;
    for (int sticky = 0; sticky < 2; sticky++) {
        berth_mem_fail_at(2, sticky != 0);
        void *first = berth_alloc(1);
        void *second = berth_alloc(1);
        void *third = berth_alloc(1);
        berth_mem_fail_at(0, false);
        assert_non_null(first);
        assert_null(second);
        assert_int_equal(third != NULL, sticky == 0);
        berth_free(first);
        berth_free(third);
    }
    char *text = berth_strdup("kept");
    berth_mem_fail_at(1, false);
    assert_null(berth_resize(text, 5, 500));
    berth_mem_fail_at(0, false);
    assert_string_equal(text, "kept");
    berth_free(text);
}

static void sizes_do_not_overflow(void **state)
{
    size_t out = 42;
    (void)state;
    assert_true(berth_add_size(SIZE_MAX - 1, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_false(berth_add_size(SIZE_MAX, 1, &out));
    assert_true(berth_mul_size(SIZE_MAX / 2, 2, &out));
    assert_false(berth_mul_size(SIZE_MAX / 2 + 1, 2, &out));
    assert_true(out == SIZE_MAX - 1);
}

static void arena_aligns_zeroes_and_limits(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    struct berth_arena arena;
    (void)state;
    berth_arena_init(&arena, 10000);
    for (size_t bytes = 1; bytes < 60; bytes++) {
        unsigned char *memory = berth_arena_alloc(&arena, bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 16, 0);
        assert_true(all_zero(memory, bytes));
        memset(memory, 0xFF, bytes);
    }
    size_t left = arena.bytes_max - arena.bytes_used;
    assert_null(berth_arena_alloc(&arena, left + 1));
    assert_non_null(berth_arena_alloc(&arena, left)); /* a big one, in a block of its own */
    assert_null(berth_arena_alloc(&arena, 1));
    assert_null(berth_arena_alloc(&arena, SIZE_MAX));
    berth_arena_finish(&arena);
    assert_int_equal(berth_mem_bytes_live(), live);
    assert_string_equal(berth_arena_strndup(&arena, "again and", 5), "again");
    berth_arena_finish(&arena);
    berth_arena_finish(&(struct berth_arena){0});
    assert_int_equal(berth_mem_bytes_live(), live);
}

static char order[4];

static void note(void *subject)
{
    order[strlen(order)] = *(char *)subject;
}

static void hooks_run_last_added_first(void **state)
{
    struct berth_arena arena;
    char a = 'a', b = 'b';
    (void)state;
    berth_arena_init(&arena, 0);
    assert_int_equal(berth_arena_at_finish(&arena, note, &a), BERTH_OK);
    assert_int_equal(berth_arena_at_finish(&arena, note, &b), BERTH_OK);
    berth_arena_finish(&arena);
    assert_string_equal(order, "ba");
    berth_arena_finish(&arena); /* once only */
    assert_string_equal(order, "ba");
    berth_mem_fail_at(1, false);
    assert_int_not_equal(berth_arena_at_finish(&arena, note, &a), BERTH_OK);
    berth_mem_fail_at(0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_zeroed_and_is_counted),
        cmocka_unit_test(pages_are_whole_aligned_and_counted),
        cmocka_unit_test(pages_keep_their_addresses_without_memory),
        cmocka_unit_test(nth_allocation_fails),
        cmocka_unit_test(sizes_do_not_overflow),
        cmocka_unit_test(arena_aligns_zeroes_and_limits),
        cmocka_unit_test(hooks_run_last_added_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
