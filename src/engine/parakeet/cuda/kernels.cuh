/* kernels.cuh - small device functions that the kernels of this folder share.
 *
 * Halves in 16-byte pieces, sums over a warp, numbers as e4m3, and the two instructions by which a
 * kernel overlaps the one before it (programmatic dependent launch; compute capability 9.0 on,
 * nothing before).
 */
#ifndef BERTH_KERNELS_H
#define BERTH_KERNELS_H

#include <stdint.h>

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "engine/parakeet/e4m3.h"

/* Shared memory that a block may have on every target: 99 KiB on 8.6, 8.9 and 12.0 (8.0: 163, 9.0:
 * 227). A kernel that wants more has another form to fall back on. */
#define BERTH_PARAKEET_CUDA_SHARED_LEAST (99u << 10)

/* Waits until all kernels before this one have ended and their writes are seen. Every thread calls
 * it before it reads or writes memory that another kernel touches. */
static __device__ __forceinline__ void berth_parakeet_cuda_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel's blocks take the room that this one's leave free; they wait in
 * berth_parakeet_cuda_wait. Right after this kernel's own wait. */
static __device__ __forceinline__ void berth_parakeet_cuda_next(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ float2 unpack2(uint32_t pair)
{
    return __half22float2(*(const __half2 *)&pair);
}

/* To the nearest. What is past 65504 becomes infinite, so that it is not a wrong number later. */
static __device__ __forceinline__ uint32_t pack2(float low, float high)
{
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* Eight elements of 16 bytes. */
static __device__ __forceinline__ void unpack8(uint4 from, float *to)
{
    const float2 a = unpack2(from.x), b = unpack2(from.y), c = unpack2(from.z), d = unpack2(from.w);
    to[0] = a.x;
    to[1] = a.y;
    to[2] = b.x;
    to[3] = b.y;
    to[4] = c.x;
    to[5] = c.y;
    to[6] = d.x;
    to[7] = d.y;
}

static __device__ __forceinline__ uint4 pack8(const float *from)
{
    return make_uint4(pack2(from[0], from[1]), pack2(from[2], from[3]), pack2(from[4], from[5]),
                      pack2(from[6], from[7]));
}

/* 1 / (1 + e^-x), right to float's last bits for any x: e^-x may be infinite, and then it is 0. */
static __device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* Whether it is a number in half precision too; 65520 is the first that is not. */
static __device__ __forceinline__ bool fits_half(float x)
{
    return fabsf(x) < 65520.0f;
}

/* x * sigmoid(x); of minus infinity no number, not 0. */
static __device__ __forceinline__ float silu(float x)
{
    return x * sigmoid(x);
}

static __device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
}

/* What a vector's numbers are divided by for e4m3, of their largest magnitude; 1 for zeros. If a
 * number is none the quotient is none either, and if one is infinite the scale is. */
static __device__ __forceinline__ float e4m3_scale(float largest)
{
    return largest > 0x1p-100f ? largest / BERTH_E4M3_MAX : 1.0f;
}

/* Four as e4m3, to the nearest (e4m3.h has the host's). */
static __device__ __forceinline__ uint32_t pack_e4m3(const float *from, float inverse)
{
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(from[0] * inverse, from[1] * inverse),
                                                  __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(
        make_float2(from[2] * inverse, from[3] * inverse), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

static __device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    return value;
}

#endif
