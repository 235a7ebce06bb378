/* activate.cu - what cublasLt has no epilogue for: SiLU, and a bias with a scale before a residual.
 *
 * Both work in place on a product's output, 16 bytes a load. Of e4m3 they finish the product (its
 * scales, its bias), SiLU with a block for each vector, and write elsewhere. Rejected: SiLU while
 * the next product reads its operand, which cublasLt cannot do either.
 */
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"
#include "engine/parakeet/cuda/linear.h"

#define ACTIVATE_THREADS 256
#define ACTIVATE_PIECES 4 /* 16-byte loads in flight a thread, when there are enough */

/* values [count], eight at a time and a rest. Moves 2 bytes an element in and 2 out. CPU twin:
 * the activation in cpu.c's linear. */
template <int PIECES>
static __global__ void __launch_bounds__(ACTIVATE_THREADS)
    silu_kernel(__half *values, uint64_t count)
{
    const uint64_t pieces = count / 8;
    const uint64_t first =
        (uint64_t)blockIdx.x * (ACTIVATE_THREADS * PIECES) + threadIdx.x;
    uint4 *at = (uint4 *)values;
    uint4 got[PIECES];
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint64_t piece = first + i * ACTIVATE_THREADS;
        got[i] = piece < pieces ? at[piece] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint64_t piece = first + i * ACTIVATE_THREADS;
        float eight[8];
        unpack8(got[i], eight);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            eight[e] = silu(eight[e]);
        }
        if (piece < pieces) {
            at[piece] = pack8(eight);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < count % 8) {
        __half *last = values + pieces * 8 + threadIdx.x;
        *last = __float2half_rn(silu(__half2float(*last)));
    }
}

struct narrow_args {
    const uint4 *in;        /* halves [n][width]: sums over `factor` */
    const float *in_scale;  /* [n], */
    const float4 *scale;    /* and [width], that the sums still lack */
    const uint4 *bias;      /* halves [width]; NULL: none */
    uint2 *out;             /* e4m3 [n][width] */
    float *out_scale;       /* [n] */
    float factor;
    uint32_t pieces;        /* of eight, a vector */
};

/* The largest of a block's; shared has a float for each warp. */
static __device__ __forceinline__ float block_max(float value, float *shared)
{
    value = warp_max(value);
    if ((threadIdx.x & 31) == 0) {
        shared[threadIdx.x >> 5] = value;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < ACTIVATE_THREADS / 32; w++) {
        value = fmaxf(value, shared[w]);
    }
    return value;
}

/* A vector a block, in registers between its largest and its store. Moves 2 bytes an element in and
 * 1 out. CPU twin: linear of cpu.c on the numbers that stand behind e4m3. */
template <int PIECES>
static __global__ void __launch_bounds__(ACTIVATE_THREADS)
    silu_narrow_kernel(const __grid_constant__ struct narrow_args args)
{
    __shared__ float shared[ACTIVATE_THREADS / 32];
    const uint64_t start = (uint64_t)blockIdx.x * args.pieces;
    float values[PIECES][8];
    float largest = 0.0f;
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    const float factor = args.factor * args.in_scale[blockIdx.x];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint32_t piece = threadIdx.x + i * ACTIVATE_THREADS;
        if (piece < args.pieces) {
            const float4 low = args.scale[2 * piece], high = args.scale[2 * piece + 1];
            const float scale[8] = {low.x,  low.y,  low.z,  low.w,
                                    high.x, high.y, high.z, high.w};
            float bias[8] = {};
            if (args.bias != nullptr) {
                unpack8(args.bias[piece], bias);
            }
            unpack8(args.in[start + piece], values[i]);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                values[i][e] = silu(values[i][e] * (factor * scale[e]) + bias[e]);
                largest = fmaxf(largest, fabsf(values[i][e]));
            }
        }
    }
    const float scale = e4m3_scale(block_max(largest, shared));
    const float inverse = 1.0f / scale;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint32_t piece = threadIdx.x + i * ACTIVATE_THREADS;
        if (piece < args.pieces) {
            args.out[start + piece] = make_uint2(pack_e4m3(values[i], inverse),
                                                 pack_e4m3(values[i] + 4, inverse));
        }
    }
    if (threadIdx.x == 0) {
        args.out_scale[blockIdx.x] = scale;
    }
}

struct add_args {
    const uint2 *in;        /* as narrow_args' */
    const float *in_scale;
    const float4 *scale;
    const uint2 *bias;
    const float4 *residual; /* [n][width]; NULL: none */
    float4 *out;            /* [n][width]; may be the residual */
    float factor, outer;
    uint32_t pieces;        /* of four, a vector */
    uint32_t count;         /* of all */
};

/* Four a thread. Moves 6 bytes an element in and 4 out. CPU twin: linear of cpu.c. */
static __global__ void __launch_bounds__(ACTIVATE_THREADS)
    add_bare_kernel(const __grid_constant__ struct add_args args)
{
    const uint32_t at = blockIdx.x * ACTIVATE_THREADS + threadIdx.x;
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    if (at >= args.count) {
        return;
    }
    const uint32_t column = at % args.pieces;
    const float factor = args.factor * args.in_scale[at / args.pieces];
    const float4 scale = args.scale[column];
    const float2 low = unpack2(args.in[at].x), high = unpack2(args.in[at].y);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float2 bias_low = make_float2(0.0f, 0.0f), bias_high = bias_low;
    if (args.residual != nullptr) {
        sum = args.residual[at];
    }
    if (args.bias != nullptr) {
        bias_low = unpack2(args.bias[column].x);
        bias_high = unpack2(args.bias[column].y);
    }
    sum.x += args.outer * (low.x * (factor * scale.x) + bias_low.x);
    sum.y += args.outer * (low.y * (factor * scale.y) + bias_low.y);
    sum.z += args.outer * (high.x * (factor * scale.z) + bias_high.x);
    sum.w += args.outer * (high.y * (factor * scale.w) + bias_high.y);
    args.out[at] = sum;
}

/* values [n][width] += scale x bias [width]; two a thread, width even. STREAM: float32 values. */
template <bool STREAM>
static __global__ void __launch_bounds__(ACTIVATE_THREADS)
    bias_kernel(void *values, const uint32_t *bias, float scale, uint64_t pairs, uint32_t width)
{
    const uint64_t pair = (uint64_t)blockIdx.x * ACTIVATE_THREADS + threadIdx.x;
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    if (pair < pairs) {
        const float2 add = unpack2(bias[pair % (width / 2)]);
        const float2 value = STREAM ? ((const float2 *)values)[pair]
                                    : unpack2(((const uint32_t *)values)[pair]);
        const float2 sum = make_float2(value.x + scale * add.x, value.y + scale * add.y);
        if (STREAM) {
            ((float2 *)values)[pair] = sum;
        } else {
            ((uint32_t *)values)[pair] = pack2(sum.x, sum.y);
        }
    }
}

void berth_parakeet_cuda_silu(struct berth_parakeet_device *device, void *values, uint64_t count)
{
    struct berth_parakeet_cuda_launch launch = {};
    /* Few: a piece a thread, for as many blocks as there can be. */
    const bool few = count / 8 < (uint64_t)device->sm_count * ACTIVATE_THREADS * ACTIVATE_PIECES;
    const uint64_t block = ACTIVATE_THREADS * (few ? 1 : ACTIVATE_PIECES);
    void *arguments[] = {&values, &count};
    launch.name = "silu";
    launch.kernel =
        few ? (const void *)silu_kernel<1> : (const void *)silu_kernel<ACTIVATE_PIECES>;
    launch.grid = dim3((unsigned)((count / 8 + block - 1) / block + (count < 8 && count > 0)));
    launch.block = dim3(ACTIVATE_THREADS);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

void berth_parakeet_cuda_silu_narrow(struct berth_parakeet_device *device,
                                     const struct berth_parakeet_linear_call *call, float factor)
{
    struct berth_parakeet_cuda_launch launch = {};
    const uint32_t width = call->linear->out;
    struct narrow_args args = {};
    void *arguments[] = {&args};
    if (width % 16 != 0 || width > BERTH_PARAKEET_CUDA_NARROW_MAX) {
        berth_parakeet_cuda_refuse(device, "linear: no kernel for e4m3 of", (long)width);
        return;
    }
    args.in = (const uint4 *)call->out;
    args.in_scale = call->in_scale;
    args.scale = (const float4 *)call->linear->scale;
    args.bias = (const uint4 *)call->linear->bias;
    args.out = (uint2 *)call->narrow;
    args.out_scale = call->narrow_scale;
    args.factor = factor;
    args.pieces = width / 8;
    launch.name = "silu";
    launch.kernel = args.pieces <= ACTIVATE_THREADS ? (const void *)silu_narrow_kernel<1>
                    : args.pieces <= 2 * ACTIVATE_THREADS
                        ? (const void *)silu_narrow_kernel<2>
                        : (const void *)silu_narrow_kernel<8>;
    launch.grid = dim3((unsigned)call->n);
    launch.block = dim3(ACTIVATE_THREADS);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

void berth_parakeet_cuda_add_bare(struct berth_parakeet_device *device,
                                  const struct berth_parakeet_linear_call *call, float factor)
{
    struct berth_parakeet_cuda_launch launch = {};
    struct add_args args = {};
    void *arguments[] = {&args};
    if (call->linear->out % 4 != 0 || call->n * call->linear->out > UINT32_MAX) {
        berth_parakeet_cuda_refuse(device, "linear: no kernel for e4m3 of",
                                   (long)call->linear->out);
        return;
    }
    args.in = (const uint2 *)call->scratch;
    args.in_scale = call->in_scale;
    args.scale = (const float4 *)call->linear->scale;
    args.bias = (const uint2 *)call->linear->bias;
    args.residual = (const float4 *)call->residual;
    args.out = (float4 *)call->out;
    args.factor = factor;
    args.outer = call->scale;
    args.pieces = call->linear->out / 4;
    args.count = (uint32_t)(call->n * args.pieces);
    launch.name = "add";
    launch.kernel = (const void *)add_bare_kernel;
    launch.grid = dim3((args.count + ACTIVATE_THREADS - 1) / ACTIVATE_THREADS);
    launch.block = dim3(ACTIVATE_THREADS);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

void berth_parakeet_cuda_bias(struct berth_parakeet_device *device,
                              const struct berth_parakeet_linear_call *call)
{
    struct berth_parakeet_cuda_launch launch = {};
    void *values = call->out;
    const void *bias = call->linear->bias;
    float scale = call->scale;
    uint32_t width = call->linear->out;
    uint64_t pairs = call->n * width / 2;
    void *arguments[] = {&values, &bias, &scale, &pairs, &width};
    if (width % 2 != 0) {
        berth_parakeet_cuda_refuse(device, "linear: no kernel for a bias of", (long)width);
        return;
    }
    launch.name = "bias";
    launch.kernel =
        call->stream ? (const void *)bias_kernel<true> : (const void *)bias_kernel<false>;
    launch.grid = dim3((unsigned)((pairs + ACTIVATE_THREADS - 1) / ACTIVATE_THREADS));
    launch.block = dim3(ACTIVATE_THREADS);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

/* Numbers between -1 and 1, for e4m3 between -448 and 448, that are no pattern (a product of zeros
 * runs faster than a real one). */
static __global__ void noise_kernel(uint32_t *words, uint64_t count, uint32_t seed, bool narrow)
{
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count;
         at += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)at * 2654435761u + seed;
        x = (x ^ (x >> 16)) * 2246822519u;
        x = (x ^ (x >> 13)) * 3266489917u;
        x ^= x >> 16;
        const float low = (float)(x & 0xffff) / 32768.0f - 1.0f;
        const float high = (float)(x >> 16) / 32768.0f - 1.0f;
        const float four[4] = {low, high, low + high, low - high};
        words[at] = narrow ? pack_e4m3(four, BERTH_E4M3_MAX) : pack2(low, high);
    }
}

cudaError_t berth_parakeet_cuda_noise(void *to, size_t bytes, bool narrow, cudaStream_t stream)
{
    noise_kernel<<<512, 256, 0, stream>>>((uint32_t *)to, bytes / 4, 1, narrow);
    return cudaGetLastError();
}
