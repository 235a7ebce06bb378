/* hopper.cuh - the instructions of compute capability 9.0 that product_sm90.cu is made of.
 *
 * Copies by the bulk copy engine, the barriers in shared memory that count their bytes, products of
 * a warpgroup (wgmma). They exist where a kernel is compiled for 90a; nothing else may call them.
 * Addresses are those of shared memory.
 */
#ifndef BERTH_HOPPER_H
#define BERTH_HOPPER_H

#include <cuda.h>

#include "engine/parakeet/cuda/kernels.cuh"

static __device__ __forceinline__ uint32_t shared_at(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

static __device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(barrier), "r"(arrivals)
                 : "memory");
}

/* So that the copy engine sees what was initialised. */
static __device__ __forceinline__ void barrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

/* One arrival, and bytes to come. This, barrier_arrive and copy_in are by one lane of a warp whose
 * lanes are all there: so the compiler knows that the operands are the same in all. */
static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 "}"
                 :
                 : "r"(barrier), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "@one mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}"
                 :
                 : "r"(barrier)
                 : "memory");
}

/* Until the phase of that parity is over. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t over = 0;
    while (over == 0) {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(over)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    }
}

static __device__ __forceinline__ void named_sync(uint32_t name, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_arrive(uint32_t name, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

/* The box of a matrix that begins at (depth, row); its bytes count at the barrier. */
static __device__ __forceinline__ void copy_in(uint32_t to, const CUtensorMap *map, uint32_t depth,
                                               uint32_t row, uint32_t barrier)
{
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "@one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];\n"
                 "}"
                 :
                 : "r"(to), "l"(map), "r"(depth), "r"(row), "r"(barrier)
                 : "memory");
}

/* The other way, by the calling thread; what was stored before is to be fenced (copy_fence). */
static __device__ __forceinline__ void copy_out(const CUtensorMap *map, uint32_t column,
                                                uint32_t row, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;"
                 :
                 : "l"(map), "r"(column), "r"(row), "r"(from)
                 : "memory");
}

/* Shared memory that this thread stored is seen by the copy engine after the next barrier. */
static __device__ __forceinline__ void copy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* Until the thread's copies out, but the newest LEFT, have read their memory. */
template <int LEFT> static __device__ __forceinline__ void copy_out_wait(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(LEFT) : "memory");
}

/* What wgmma takes a matrix by: 128-byte rows, swizzled, eight after eight. */
static __device__ __forceinline__ uint64_t matrix_at(uint32_t shared)
{
    return (uint64_t)((shared & 0x3ffffu) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Of a warpgroup: begin, products, commit; the sums are there after a wait. */
static __device__ __forceinline__ void multiply_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

static __device__ __forceinline__ void multiply_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

template <int LEFT> static __device__ __forceinline__ void multiply_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(LEFT) : "memory");
}

#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32                                                                                   \
    NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                   \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
             "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SUMS_16(d, i)                                                                              \
    SUMS_4(d, i), SUMS_4(d, (i) + 4), SUMS_4(d, (i) + 8), SUMS_4(d, (i) + 12)
#define SUMS_32(d, i) SUMS_16(d, i), SUMS_16(d, (i) + 16)
#define SUMS_64(d, i) SUMS_32(d, i), SUMS_32(d, (i) + 32)
#define MULTIPLY(COLUMNS, NAMES, A, B, KEEP, SUMS)                                                 \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, %" KEEP ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.f16.f16 {" NAMES             \
                 "}, %" A ", %" B ", p, 1, 1, 0, 0;\n"                                             \
                 "}"                                                                               \
                 : SUMS                                                                            \
                 : "l"(a), "l"(b), "r"(keep))

/* d = (keep ? d : 0) + a b, 64 x COLUMNS x 16; done at the wait. */
template <uint32_t COLUMNS>
static __device__ __forceinline__ void multiply(float *d, uint64_t a, uint64_t b, uint32_t keep)
{
    if constexpr (COLUMNS == 32) {
        MULTIPLY("32", NAMES_16, "16", "17", "18", SUMS_16(d, 0));
    } else if constexpr (COLUMNS == 64) {
        MULTIPLY("64", NAMES_32, "32", "33", "34", SUMS_32(d, 0));
    } else {
        static_assert(COLUMNS == 128, "one of those");
        MULTIPLY("128", NAMES_64, "64", "65", "66", SUMS_64(d, 0));
    }
}

/* Four matrices of 8 x 8 halves; lane l has the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t *from)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

#endif
