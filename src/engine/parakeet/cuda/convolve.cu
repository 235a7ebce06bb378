/* convolve.cu - the convolution module's middle: GLU, mask, depthwise convolution, SiLU, in one.
 *
 * in [rows][frames][2][hidden] (values, then gates) -> out [rows][frames][hidden]. The batch norm
 * is in the weights. Frames are taken as zero outside the row's own.
 *
 * A thread has four channels (8-byte loads, whole lines a warp) and SPAN frames in a row. It makes
 * each gated value once and adds it to the sums of all frames it reaches, which are in registers:
 * no shared memory, no barrier, and every load is independent of the others. Neighbouring threads
 * in time read KERNEL - 1 frames twice, from L1 or L2. For few rows the spans are short, so that
 * there are enough threads.
 */
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"

#define CONVOLVE_THREADS 128
#define CONVOLVE_KERNEL_MAX 31

struct convolve_args {
    const __half *in;
    __half *out;
    const float *weight, *bias; /* [kernel][hidden], [hidden] */
    const int32_t *count;       /* [rows] */
    int frames, hidden, kernel;
};

/* Four gated values of a frame; zero outside the row. */
static __device__ __forceinline__ float4 gated(const struct convolve_args *args,
                                               const __half *row, int frame, int count)
{
    if (frame < 0 || frame >= count) {
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    const __half *from = row + (int64_t)frame * 2 * args->hidden;
    const uint2 values = *(const uint2 *)from;
    const uint2 gates = *(const uint2 *)(from + args->hidden);
    const float2 a = unpack2(values.x), b = unpack2(values.y);
    const float2 ga = unpack2(gates.x), gb = unpack2(gates.y);
    return make_float4(a.x * sigmoid(ga.x), a.y * sigmoid(ga.y), b.x * sigmoid(gb.x),
                       b.y * sigmoid(gb.y));
}

static __device__ __forceinline__ void add_weighted(float4 *sum, float4 value, float4 weight)
{
    sum->x += value.x * weight.x;
    sum->y += value.y * weight.y;
    sum->z += value.z * weight.z;
    sum->w += value.w * weight.w;
}

static __device__ __forceinline__ void store_silu(__half *to, float4 sum, bool own)
{
    *(uint2 *)to = own ? make_uint2(pack2(silu(sum.x), silu(sum.y)),
                                    pack2(silu(sum.z), silu(sum.w)))
                       : make_uint2(0, 0);
}

/* Grid: channels / (4 x 128), spans, rows. KERNEL known: weights and sums are in registers. Moves 4
 * bytes an element in and 2 out. CPU twin: convolve of cpu.c. */
template <int KERNEL, int SPAN>
static __global__ void __launch_bounds__(CONVOLVE_THREADS)
    convolve_kernel(const __grid_constant__ struct convolve_args args)
{
    const int channel = 4 * (int)(blockIdx.x * CONVOLVE_THREADS + threadIdx.x);
    const int first = (int)blockIdx.y * SPAN;
    if (channel < args.hidden) {
        float4 weights[KERNEL], sums[SPAN];
        const float4 bias = *(const float4 *)(args.bias + channel);
#pragma unroll
        for (int tap = 0; tap < KERNEL; tap++) {
            weights[tap] = *(const float4 *)(args.weight + tap * args.hidden + channel);
        }
        berth_parakeet_cuda_wait(); /* weights do not change: they are on their way already */
        berth_parakeet_cuda_next();
        const int count = min(args.count[blockIdx.z], args.frames);
        const int64_t row_at = (int64_t)blockIdx.z * args.frames;
        const __half *row = args.in + row_at * 2 * args.hidden + channel;
#pragma unroll
        for (int at = 0; at < SPAN; at++) {
            sums[at] = bias;
        }
#pragma unroll
        for (int at = 0; at < SPAN + KERNEL - 1; at++) {
            const float4 value = gated(&args, row, first + at - KERNEL / 2, count);
#pragma unroll
            for (int tap = 0; tap < KERNEL; tap++) {
                const int to = at - tap; /* the frame whose tap this is */
                if (to >= 0 && to < SPAN) {
                    add_weighted(&sums[to], value, weights[tap]);
                }
            }
        }
#pragma unroll
        for (int at = 0; at < SPAN; at++) {
            const int frame = first + at;
            if (frame < args.frames) {
                store_silu(args.out + (row_at + frame) * args.hidden + channel, sums[at],
                           frame < count);
            }
        }
    } else {
        berth_parakeet_cuda_wait();
    }
}

/* The same for any kernel: one frame a thread, values gated again for each. */
static __global__ void __launch_bounds__(CONVOLVE_THREADS)
    convolve_any_kernel(const __grid_constant__ struct convolve_args args)
{
    const int channel = 4 * (int)(blockIdx.x * CONVOLVE_THREADS + threadIdx.x);
    const int frame = (int)blockIdx.y;
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    if (channel >= args.hidden) {
        return;
    }
    const int count = min(args.count[blockIdx.z], args.frames);
    const int64_t row_at = (int64_t)blockIdx.z * args.frames;
    const __half *row = args.in + row_at * 2 * args.hidden + channel;
    float4 sum = *(const float4 *)(args.bias + channel);
    for (int tap = 0; tap < args.kernel; tap++) {
        const float4 weight = *(const float4 *)(args.weight + tap * args.hidden + channel);
        add_weighted(&sum, gated(&args, row, frame + tap - args.kernel / 2, count), weight);
    }
    store_silu(args.out + (row_at + frame) * args.hidden + channel, sum, frame < count);
}

static void launch(struct berth_parakeet_device *device, struct convolve_args *args, uint32_t rows,
                   const void *kernel, int span)
{
    struct berth_parakeet_cuda_launch launch = {};
    void *arguments[] = {args};
    launch.name = "convolve";
    launch.kernel = kernel;
    launch.grid = dim3((unsigned)((args->hidden / 4 + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS),
                       (unsigned)((args->frames + span - 1) / span), rows);
    launch.block = dim3(CONVOLVE_THREADS);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

/* lib-shaped */
void berth_parakeet_cuda_convolve(struct berth_parakeet_device *device,
                                  const struct berth_parakeet_config *config,
                                  const struct berth_parakeet_shape *shape,
                                  const struct berth_parakeet_counts *counts,
                                  const struct berth_parakeet_depthwise *conv, const void *in,
                                  void *out)
{
    struct convolve_args args = {};
    if (config->hidden % 8 != 0 || config->kernel % 2 == 0 ||
        config->kernel > CONVOLVE_KERNEL_MAX) {
        berth_parakeet_cuda_refuse(device, "convolve: no kernel for taps of",
                                   (long)config->kernel);
        return;
    }
    args.in = (const __half *)in;
    args.out = (__half *)out;
    args.weight = conv->weight;
    args.bias = conv->bias;
    args.count = counts->frames;
    args.frames = (int)shape->padded.frames;
    args.hidden = (int)config->hidden;
    args.kernel = (int)config->kernel;
    /* Threads when a thread has 16 frames, against what keeps the device busy. */
    const uint64_t threads = (uint64_t)shape->rows * shape->padded.frames * config->hidden / 64;
    if (config->kernel != 9) {
        launch(device, &args, shape->rows, (const void *)convolve_any_kernel, 1);
    } else if (threads < (uint64_t)device->sm_count * 256) {
        launch(device, &args, shape->rows, (const void *)convolve_kernel<9, 4>, 4);
    } else {
        launch(device, &args, shape->rows, (const void *)convolve_kernel<9, 16>, 16);
    }
}
