/* norm.cu - layer norm over the last dimension, once or twice in one pass over memory.
 *
 * The stream is float32, four in a load; what a module reads is halves or e4m3, four in a store,
 * and for e4m3 a scale, of the vector's largest magnitude. Mean and variance are float32, in two
 * passes over registers: a vector is read once and kept. It has a block of four warps, or one warp
 * where it is short. Rejected: a warp for one of 1024, many of which a block then has: a quarter
 * slower at 8000 vectors, half at 2000 (H200).
 */
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"

#define NORM_EPSILON 1e-5f
#define NORM_THREADS 128
#define NORM_HIDDEN_MAX 4096
#define NORM_HELD 2 /* pieces a thread whose weights are held in registers */

struct norm_args {
    const float4 *in; /* [n][pieces] */
    float4 *through;  /* the first norm's; NULL: there is one norm only */
    void *out;        /* the last norm's: four halves a piece, or four e4m3 */
    float *out_scale; /* [n]; NULL: halves */
    const float *gamma, *beta;               /* of the first norm */
    const float *second_gamma, *second_beta; /* NULL: there is one norm only */
    uint32_t n, pieces;
};

/* A sum over the vector's WARPS warps, the same in all threads. row: WARPS floats in shared memory
 * that no other sum uses, so that one barrier is enough. */
template <int WARPS>
static __device__ __forceinline__ float vector_sum(float value, float *row)
{
    value = warp_sum(value);
    if (WARPS == 1) {
        return value;
    }
    if ((threadIdx.x & 31) == 0) {
        row[threadIdx.x >> 5] = value;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        sum += row[w];
    }
    return sum;
}

/* Of one norm. held: gamma and beta of the thread's pieces. */
template <int PIECES> struct norm_weights {
    const float4 *gamma, *beta;
    float4 held[PIECES][2];
};

template <int WARPS, int PIECES>
static __device__ __forceinline__ void weights_hold(struct norm_weights<PIECES> *weights,
                                                    uint32_t pieces)
{
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
        const uint32_t piece = threadIdx.x % (WARPS * 32) + at * WARPS * 32;
        if (piece < pieces) {
            weights->held[at][0] = weights->gamma[piece];
            weights->held[at][1] = weights->beta[piece];
        }
    }
}

static __device__ __forceinline__ void apply4(float *values, float factor, float4 gamma,
                                              float4 beta)
{
    values[0] = values[0] * factor * gamma.x + beta.x;
    values[1] = values[1] * factor * gamma.y + beta.y;
    values[2] = values[2] * factor * gamma.z + beta.z;
    values[3] = values[3] * factor * gamma.w + beta.w;
}

/* Mean to 0 and variance to 1 of what the thread has of the vector: pieces thread, thread + WARPS *
 * 32, ... Returns the factor, not applied yet; shared has two rows of WARPS floats. */
template <int WARPS, int PIECES>
static __device__ __forceinline__ float centre(float values[PIECES][4], uint32_t pieces,
                                               float *shared)
{
    const uint32_t thread = threadIdx.x % (WARPS * 32);
    const float over = 1.0f / (float)(pieces * 4);
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sum += values[at][e]; /* zero past the vector's end */
        }
    }
    const float mean = vector_sum<WARPS>(sum, shared) * over;
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
        const bool there = thread + at * WARPS * 32 < pieces;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            values[at][e] = there ? values[at][e] - mean : 0.0f;
            squares += values[at][e] * values[at][e];
        }
    }
    return rsqrtf(vector_sum<WARPS>(squares, shared + WARPS) * over + NORM_EPSILON);
}

/* With what is held, if a thread has two pieces; else with what it reads for each. */
template <int WARPS, int PIECES>
static __device__ __forceinline__ void apply(float values[PIECES][4], float factor,
                                             const struct norm_weights<PIECES> *weights,
                                             uint32_t pieces)
{
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
        const uint32_t piece = threadIdx.x % (WARPS * 32) + at * WARPS * 32;
        if (piece < pieces && PIECES <= NORM_HELD) {
            apply4(values[at], factor, weights->held[at][0], weights->held[at][1]);
        } else if (piece < pieces) {
            apply4(values[at], factor, weights->gamma[piece], weights->beta[piece]);
        }
    }
}

template <int WARPS, int PIECES>
static __device__ __forceinline__ void stream_store(const float values[PIECES][4], float4 *to,
                                                    uint32_t pieces)
{
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
        const uint32_t piece = threadIdx.x % (WARPS * 32) + at * WARPS * 32;
        if (piece < pieces) {
            to[piece] = make_float4(values[at][0], values[at][1], values[at][2], values[at][3]);
        }
    }
}

template <int WARPS, int PIECES>
static __device__ __forceinline__ void halves_store(const float values[PIECES][4], uint2 *to,
                                                    uint32_t pieces)
{
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
        const uint32_t piece = threadIdx.x % (WARPS * 32) + at * WARPS * 32;
        if (piece < pieces) {
            to[piece] = make_uint2(pack2(values[at][0], values[at][1]),
                                   pack2(values[at][2], values[at][3]));
        }
    }
}

/* The largest magnitude is the vector's, so that one barrier more is needed. */
template <int WARPS, int PIECES>
static __device__ __forceinline__ void e4m3_store(const float values[PIECES][4], uint32_t *to,
                                                  float *scale_to, uint32_t pieces, float *row)
{
    const uint32_t thread = threadIdx.x % (WARPS * 32);
    float largest = 0.0f;
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
#pragma unroll
        for (int e = 0; e < 4 && thread + at * WARPS * 32 < pieces; e++) {
            largest = fmaxf(largest, fabsf(values[at][e]));
        }
    }
    largest = warp_max(largest);
    if (WARPS > 1) {
        if ((threadIdx.x & 31) == 0) {
            row[threadIdx.x >> 5] = largest;
        }
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            largest = fmaxf(largest, row[w]);
        }
    }
    const float scale = e4m3_scale(largest);
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
        const uint32_t piece = thread + at * WARPS * 32;
        if (piece < pieces) {
            to[piece] = pack_e4m3(values[at], 1.0f / scale);
        }
    }
    if (thread == 0) {
        *scale_to = scale;
    }
}

/* in [n][4 pieces] -> out, and through when there are two norms. 128 threads a block, WARPS of its
 * warps a vector. Moves 4 bytes an element in and 2 (6) out; e4m3: 1 (5). CPU twin: norm of cpu.c.
 * With two pieces a thread, gamma and beta are on their way before the kernel before this one has
 * ended; with more, registers are for more blocks at once. */
template <int WARPS, int PIECES>
static __global__ void __launch_bounds__(NORM_THREADS, PIECES <= NORM_HELD ? 8 : 5)
    norm_kernel(const __grid_constant__ struct norm_args args)
{
    __shared__ float shared[5][WARPS];
    const uint32_t vector = blockIdx.x * (NORM_THREADS / 32 / WARPS) + threadIdx.x / (WARPS * 32);
    const uint32_t thread = threadIdx.x % (WARPS * 32);
    const bool twice = args.through != nullptr;
    float values[PIECES][4];
    struct norm_weights<PIECES> first = {(const float4 *)args.gamma, (const float4 *)args.beta, {}};
    struct norm_weights<PIECES> second = {(const float4 *)args.second_gamma,
                                          (const float4 *)args.second_beta,
                                          {}};
    if (PIECES <= NORM_HELD) {
        weights_hold<WARPS, PIECES>(&first, args.pieces);
        if (twice) {
            weights_hold<WARPS, PIECES>(&second, args.pieces);
        }
    }
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    if (vector >= args.n) {
        return; /* all threads of a vector at once: no barrier waits for them */
    }
    const uint64_t start = (uint64_t)vector * args.pieces;
#pragma unroll
    for (int at = 0; at < PIECES; at++) {
        const uint32_t piece = thread + at * WARPS * 32;
        float4 got = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (piece < args.pieces) {
            got = args.in[start + piece];
        }
        values[at][0] = got.x;
        values[at][1] = got.y;
        values[at][2] = got.z;
        values[at][3] = got.w;
    }
    float factor = centre<WARPS, PIECES>(values, args.pieces, shared[0]);
    apply<WARPS, PIECES>(values, factor, &first, args.pieces);
    if (twice) {
        stream_store<WARPS, PIECES>(values, args.through + start, args.pieces);
        factor = centre<WARPS, PIECES>(values, args.pieces, shared[2]);
        apply<WARPS, PIECES>(values, factor, &second, args.pieces);
    }
    if (args.out_scale != nullptr) {
        e4m3_store<WARPS, PIECES>(values, (uint32_t *)args.out + start, args.out_scale + vector,
                                  args.pieces, shared[4]);
    } else {
        halves_store<WARPS, PIECES>(values, (uint2 *)args.out + start, args.pieces);
    }
}

template <int WARPS, int PIECES>
static void launch(struct berth_parakeet_device *device, struct norm_args *args)
{
    const uint32_t vectors = NORM_THREADS / 32 / WARPS; /* a block */
    struct berth_parakeet_cuda_launch launch = {};
    void *arguments[] = {args};
    launch.name = "norm";
    launch.kernel = (const void *)norm_kernel<WARPS, PIECES>;
    launch.grid = dim3((args->n + vectors - 1) / vectors);
    launch.block = dim3(NORM_THREADS);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

void berth_parakeet_cuda_norm(struct berth_parakeet_device *device,
                              const struct berth_parakeet_norm_call *call)
{
    const uint32_t hidden = call->hidden;
    struct norm_args args = {};
    if (hidden % 8 != 0 || hidden > NORM_HIDDEN_MAX || call->n > UINT32_MAX / 2) {
        berth_parakeet_cuda_refuse(device, "norm: no kernel for a width of", (long)hidden);
        return;
    }
    args.in = (const float4 *)call->in;
    args.out = call->out;
    args.out_scale = call->out_scale;
    args.gamma = call->norm->gamma;
    args.beta = call->norm->beta;
    if (call->second != NULL) {
        args.through = (float4 *)call->through;
        args.second_gamma = call->second->gamma;
        args.second_beta = call->second->beta;
    }
    args.n = (uint32_t)call->n;
    args.pieces = hidden / 4;
    if (hidden <= 256) {
        launch<1, 2>(device, &args);
    } else if (hidden <= 1024) {
        launch<4, 2>(device, &args);
    } else {
        launch<4, 8>(device, &args);
    }
}
