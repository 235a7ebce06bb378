/* The slab allocator against a shadow of what it should hold. */
#include "base/slab.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define HELD_MAX 200

struct held {
    struct berth_range range;
    uint64_t seed;
    bool private;
};

static uint64_t random_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static struct berth_slabs *make(uint64_t budget, uint64_t pool)
{
    struct berth_slabs_options options = {.bytes_budget = budget, .bytes_pool_max = pool};
    struct berth_slabs *slabs;
    assert_int_equal(berth_slabs_create(&options, &slabs, NULL), BERTH_OK);
    return slabs;
}

static struct berth_slabs_stats stats_of(struct berth_slabs *slabs)
{
    struct berth_slabs_stats stats;
    berth_slabs_stats(slabs, &stats);
    return stats;
}

/* One word at the start of each 4 KiB and at the end tells whose the bytes are. */
static void stamp(struct berth_slabs *slabs, const struct held *held)
{
    unsigned char *bytes = berth_slabs_pointer(slabs, &held->range);
    for (size_t at = 0; at < held->range.length; at += 4 * KIB) {
        bytes[at] = (unsigned char)(held->seed + at / KIB);
    }
    bytes[held->range.length - 1] = (unsigned char)held->seed;
}

static void check(struct berth_slabs *slabs, const struct held *held, size_t length, bool whole)
{
    const unsigned char *bytes = berth_slabs_pointer(slabs, &held->range);
    for (size_t at = 0; at + 1 < length; at += 4 * KIB) {
        if (bytes[at] != (unsigned char)(held->seed + at / KIB)) {
            fail_msg("byte %zu of %zu is another's", at, length);
        }
    }
    if (whole) {
        assert_int_equal(bytes[length - 1], (unsigned char)held->seed);
    }
}

static size_t random_size(uint64_t *seed)
{
    size_t bits = random_next(seed) % 64 == 0 ? 26 : random_next(seed) % 22;
    return 1 + random_next(seed) % ((size_t)1 << bits);
}

static void take_one(struct berth_slabs *slabs, struct held *held, uint64_t *seed, uint64_t *out)
{
    struct berth_err err = {0};
    uint64_t refusals = stats_of(slabs).refusals;
    size_t bytes = random_size(seed);
    held->seed = random_next(seed);
    held->private = random_next(seed) % 4 == 0;
    enum berth_code code = held->private
                               ? berth_slabs_take_private(slabs, bytes, &held->range, &err)
                               : berth_slabs_take(slabs, bytes, &held->range, &err);
    if (code != BERTH_OK) {
        assert_int_equal(code, BERTH_BUSY);
        assert_true(err.retry_after_ms > 0);
        assert_int_equal(held->range.slab, 0);
        assert_int_equal(stats_of(slabs).refusals, refusals + 1);
        return;
    }
    *out += bytes;
    assert_int_equal(held->range.length, bytes);
    assert_int_equal((uintptr_t)berth_slabs_pointer(slabs, &held->range) % BERTH_SLAB_ALIGN, 0);
    assert_int_equal(berth_range_private(&held->range), held->private);
    stamp(slabs, held);
}

static void resize_one(struct berth_slabs *slabs, struct held *held, uint64_t *seed, uint64_t *out)
{
    size_t bytes_old = held->range.length;
    size_t bytes = random_next(seed) % 2 == 0 || bytes_old > 32 * MIB
                       ? random_size(seed)
                       : bytes_old / 2 + 1 + random_next(seed) % bytes_old;
    const void *pointer_old = berth_slabs_pointer(slabs, &held->range);
    struct berth_range range_old = held->range;
    enum berth_code code = berth_slabs_resize(slabs, &held->range, bytes, NULL);
    if (code != BERTH_OK) {
        assert_int_equal(code, BERTH_BUSY);
        assert_memory_equal(&range_old, &held->range, sizeof(range_old));
        return;
    }
    if (bytes <= bytes_old) {
        assert_ptr_equal(pointer_old, berth_slabs_pointer(slabs, &held->range));
    }
    check(slabs, held, bytes < bytes_old ? bytes : bytes_old, false);
    assert_int_equal(held->range.length, bytes);
    assert_int_equal(berth_range_private(&held->range), held->private);
    *out = *out - bytes_old + bytes;
    stamp(slabs, held);
}

static void give_one(struct berth_slabs *slabs, struct held *held, uint64_t *out)
{
    check(slabs, held, held->range.length, true);
    *out -= held->range.length;
    berth_slabs_give(slabs, &held->range);
    assert_int_equal(held->range.slab, 0);
}

static void random_walk(uint64_t budget, uint64_t pool, uint64_t seed)
{
    static struct held held[HELD_MAX];
    uint64_t out = 0;
    uint64_t live = berth_mem_bytes_live();
    struct berth_slabs *slabs = make(budget, pool);
    memset(held, 0, sizeof(held));
    for (int step = 0; step < 6000; step++) {
        struct held *one = &held[random_next(&seed) % HELD_MAX];
        if (one->range.slab == 0) {
            take_one(slabs, one, &seed, &out);
        } else if (random_next(&seed) % 4 == 0) {
            resize_one(slabs, one, &seed, &out);
        } else {
            give_one(slabs, one, &out);
        }
        assert_int_equal(stats_of(slabs).bytes_out, out);
        assert_true(out <= budget);
    }
    for (size_t i = 0; i < HELD_MAX; i++) {
        if (held[i].range.slab != 0) {
            give_one(slabs, &held[i], &out);
        }
    }
    assert_int_equal(stats_of(slabs).bytes_out, 0);
    assert_true(stats_of(slabs).bytes_peak > 0 && stats_of(slabs).bytes_peak <= budget);
    berth_slabs_destroy(slabs);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void random_takes_resizes_gives(void **state)
{
    (void)state;
    random_walk(256 * MIB, 64 * MIB, 1);
    random_walk(256 * MIB, 0, 2);
    random_walk(72 * MIB, 16 * MIB, 3);
}

static void budget_is_exact(void **state)
{
    struct berth_slabs *slabs = make(1000, 0);
    struct berth_range a = {0}, b = {0};
    struct berth_err err;
    (void)state;
    assert_int_equal(berth_slabs_take(slabs, 1001, &a, &err), BERTH_TOO_LARGE);
    assert_int_equal(err.retry_after_ms, 0);
    assert_int_equal(berth_slabs_take(slabs, SIZE_MAX, &a, &err), BERTH_TOO_LARGE);
    assert_int_equal(berth_slabs_take(slabs, 0, &a, &err), BERTH_INVALID);
    assert_int_equal(berth_slabs_take(slabs, 999, &a, &err), BERTH_OK);
    assert_int_equal(berth_slabs_take(slabs, 2, &b, &err), BERTH_BUSY);
    assert_int_equal(berth_slabs_take_private(slabs, 1, &b, &err), BERTH_OK);
    assert_int_equal(berth_slabs_resize(slabs, &a, 1000, &err), BERTH_BUSY);
    assert_int_equal(berth_slabs_resize(slabs, &a, 1001, &err), BERTH_TOO_LARGE);
    assert_int_equal(berth_slabs_resize(slabs, &a, 0, &err), BERTH_INVALID);
    assert_int_equal(a.length, 999);
    assert_int_equal(berth_slabs_resize(slabs, &a, 1, &err), BERTH_OK);
    assert_int_equal(berth_slabs_resize(slabs, &b, 999, &err), BERTH_OK);
    assert_int_equal(stats_of(slabs).bytes_out, 1000);
    assert_int_equal(stats_of(slabs).bytes_peak, 1000);
    assert_int_equal(stats_of(slabs).takes, 2);
    assert_int_equal(stats_of(slabs).refusals, 5);
    berth_slabs_give(slabs, &a);
    berth_slabs_give(slabs, &b);
    berth_slabs_give(slabs, &b); /* zeroed */
    assert_null(berth_slabs_pointer(slabs, &b));
    assert_int_equal(stats_of(slabs).bytes_out, 0);
    berth_slabs_destroy(slabs);
    berth_slabs_destroy(NULL);
}

static void private_ranges_show_nothing_else(void **state)
{
    struct berth_slabs *slabs = make(512 * MIB, 512 * MIB);
    struct berth_range first, second;
    struct stat file_first, file_second;
    (void)state;
    assert_int_equal(berth_slabs_take_private(slabs, 10000, &first, NULL), BERTH_OK);
    int fd_kept = dup(berth_slabs_fd(slabs, &first)); /* as a decoder might */
    memset(berth_slabs_pointer(slabs, &first), 's', 10000);
    assert_int_equal(first.offset, 0);
    assert_int_equal(fstat(fd_kept, &file_first), 0);
    assert_true(file_first.st_size < 20000);
    assert_int_equal(ftruncate(fd_kept, 0), -1);
    unsigned char *bytes = berth_slabs_pointer(slabs, &first);
    assert_int_equal(berth_slabs_resize(slabs, &first, 5000, NULL), BERTH_OK);
    for (size_t i = 5000; i < (size_t)file_first.st_size; i++) {
        assert_int_equal(bytes[i], 0);
    }
    berth_slabs_give(slabs, &first);
    assert_int_equal(berth_slabs_take_private(slabs, 10000, &second, NULL), BERTH_OK);
    assert_int_equal(fstat(berth_slabs_fd(slabs, &second), &file_second), 0);
    assert_int_not_equal(file_first.st_ino, file_second.st_ino);
    bytes = berth_slabs_pointer(slabs, &second);
    for (size_t i = 0; i < 10000; i++) {
        assert_int_equal(bytes[i], 0);
    }
    close(fd_kept);
    berth_slabs_give(slabs, &second);
    berth_slabs_destroy(slabs);
}

static void slices_lie_inside(void **state)
{
    struct berth_range range = {.slab = 3, .offset = 512, .length = 100}, part;
    (void)state;
    assert_true(berth_range_slice(&range, 0, 100, &part));
    assert_true(berth_range_slice(&range, 100, 0, &part));
    assert_false(berth_range_slice(&range, 101, 0, &part));
    assert_false(berth_range_slice(&range, 1, 100, &part));
    assert_false(berth_range_slice(&range, UINT64_MAX, 2, &part));
    assert_false(berth_range_slice(&range, 2, UINT64_MAX, &part));
    assert_true(berth_range_slice(&range, 10, 20, &part));
    assert_int_equal(part.offset, 522);
    assert_int_equal(part.length, 20);
    assert_true(berth_range_slice(&part, 5, 15, &part));
    assert_int_equal(part.offset, 527);
}

/* Shared pages of this process, in bytes. */
static size_t resident(void)
{
    size_t kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        sscanf(line, "RssShmem: %zu", &kib);
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * KIB;
}

static void memory_returns_after_load(void **state)
{
    static const size_t sizes[] = {3 * KIB, 200 * KIB, 2 * MIB, 40 * MIB};
    struct berth_slabs *slabs = make(512 * MIB, 8 * MIB);
    struct berth_range anchor;
    size_t before = resident();
    (void)state;
    assert_int_equal(berth_slabs_take(slabs, 100, &anchor, NULL), BERTH_OK);
    for (size_t i = 0; i < BERTH_COUNT_OF(sizes); i++) {
        size_t count = 80 * MIB / sizes[i];
        struct berth_range *ranges = berth_alloc(count * sizeof(*ranges));
        for (size_t j = 0; j < count; j++) {
            assert_int_equal(berth_slabs_take(slabs, sizes[i], &ranges[j], NULL), BERTH_OK);
            memset(berth_slabs_pointer(slabs, &ranges[j]), 1, sizes[i]);
        }
        assert_true(resident() >= before + 70 * MIB);
        for (size_t j = 0; j < count; j++) {
            berth_slabs_give(slabs, &ranges[j]);
        }
        berth_free(ranges);
        assert_true(resident() <= before + 8 * MIB + MIB);
    }
    assert_true(stats_of(slabs).bytes_mapped <= 128 * MIB);
    berth_slabs_give(slabs, &anchor);
    berth_slabs_destroy(slabs);
}

static void the_system_refusing_is_typed(void **state)
{
    struct berth_slabs *slabs = make(UINT64_MAX, 0);
    struct berth_range small = {0}, range = {0};
    struct rlimit limit, none;
    (void)state;
    assert_int_equal(berth_slabs_take_private(slabs, 100, &small, NULL), BERTH_OK);
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    enum berth_code common = berth_slabs_take(slabs, 100, &range, NULL);
    enum berth_code own = berth_slabs_take(slabs, 40 * MIB, &range, NULL);
    enum berth_code private = berth_slabs_take_private(slabs, 100, &range, NULL);
    setrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(common, BERTH_UNAVAILABLE);
    assert_int_equal(own, BERTH_UNAVAILABLE);
    assert_int_equal(private, BERTH_UNAVAILABLE);
    assert_int_equal(berth_slabs_take(slabs, (size_t)1 << 49, &range, NULL), BERTH_UNAVAILABLE);
    assert_int_equal(berth_slabs_resize(slabs, &small, (size_t)1 << 49, NULL), BERTH_UNAVAILABLE);
    assert_int_equal(small.length, 100);
    assert_int_equal(berth_slabs_resize(slabs, &small, 9000, NULL), BERTH_OK);
    assert_int_equal(berth_slabs_resize(slabs, &small, 100, NULL), BERTH_OK);
    memset(berth_slabs_pointer(slabs, &small), 1, 100);
    berth_mem_fail_at(1, false);
    assert_int_equal(berth_slabs_take(slabs, 100, &range, NULL), BERTH_UNAVAILABLE);
    berth_mem_fail_at(0, false);
    assert_int_equal(stats_of(slabs).bytes_out, 100);
    assert_int_equal(stats_of(slabs).takes, 1);
    assert_int_equal(stats_of(slabs).refusals, 6);
    berth_slabs_give(slabs, &small);
    assert_int_equal(stats_of(slabs).bytes_mapped, 0);
    berth_slabs_destroy(slabs);
}

struct walker {
    struct berth_slabs *slabs;
    uint64_t seed;
};

static void *walk(void *context)
{
    struct walker *walker = context;
    struct berth_slabs *slabs = walker->slabs;
    struct held held[16] = {0};
    uint64_t seed = walker->seed;
    for (int step = 0; step < 4000; step++) {
        struct held *one = &held[random_next(&seed) % BERTH_COUNT_OF(held)];
        if (one->range.slab != 0) {
            check(slabs, one, one->range.length, true);
            berth_slabs_give(slabs, &one->range);
            continue;
        }
        one->seed = random_next(&seed);
        size_t bytes = 1 + random_next(&seed) % ((size_t)1 << random_next(&seed) % 19);
        if (berth_slabs_take(slabs, bytes, &one->range, NULL) == BERTH_OK) {
            stamp(slabs, one);
        }
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(held); i++) {
        berth_slabs_give(slabs, &held[i].range);
    }
    return NULL;
}

static void threads_share_it(void **state)
{
    struct berth_slabs *slabs = make(16 * MIB, 256 * KIB);
    struct walker walkers[4];
    pthread_t threads[4];
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(threads); i++) {
        walkers[i] = (struct walker){.slabs = slabs, .seed = 88172645463325252ULL + i};
        assert_int_equal(pthread_create(&threads[i], NULL, walk, &walkers[i]), 0);
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(threads); i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(stats_of(slabs).bytes_out, 0);
    berth_slabs_destroy(slabs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget_is_exact),
        cmocka_unit_test(slices_lie_inside),
        cmocka_unit_test(private_ranges_show_nothing_else),
        cmocka_unit_test(memory_returns_after_load),
        cmocka_unit_test(the_system_refusing_is_typed),
        cmocka_unit_test(random_takes_resizes_gives),
        cmocka_unit_test(threads_share_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
