/* subsample.cu - the subsampling's convolutions but its 1 x 1 ones, and the table of positions.
 *
 * subsample_first makes two convolutions at once. The first one's output, four times as many
 * elements as the second's, never exists: a thread has two channels, and walks along the mels of
 * two output frames; those need five frames of the first convolution, of which each step makes two
 * new columns and keeps one: five first outputs an output, of nine that it reads. Sums are float32.
 */
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"

#define FIRST_THREADS 128
#define FIRST_OUT 2                       /* output frames a block */
#define FIRST_HALF (2 * FIRST_OUT + 1)    /* frames of the first convolution they need */
#define FIRST_IN (2 * FIRST_HALF + 1)     /* feature frames those need */
#define FIRST_MELS_MAX 128
#define FIRST_PITCH (FIRST_MELS_MAX + 8)  /* floats of a row in shared memory, with a margin */
#define THIRD_THREADS 128

struct first_args {
    const __half *in; /* [rows][features][mels] */
    __half *out;      /* [rows][quarter][mels / 4][channels] */
    const float *first_weight, *first_bias, *second_weight, *second_bias; /* [9][channels] */
    const int32_t *feature_count, *half_count, *quarter_count;            /* [rows] */
    int32_t *spoiled;                                                     /* [rows] */
    int features, quarter, mels, channels;
    int columns; /* output mels a block walks over */
};

/* Marks a row: a product with ReLU follows, and that may make a number of what is none. */
static __device__ __forceinline__ void spoil(int32_t *spoiled, int row, bool bad)
{
    if (bad && spoiled != nullptr) {
        spoiled[row] = 1;
    }
}

struct first_weights {
    float2 first[9], second[9], first_bias, second_bias;
};

/* The block's feature frames as float32: row r is frame `from` + r, column 4 + m is mel m; what
 * lies outside the row's features or the mels is zero. */
static __device__ __forceinline__ void features_load(const struct first_args *args,
                                                     float (*to)[FIRST_PITCH], int row, int from,
                                                     int count)
{
    const int pieces = FIRST_PITCH / 4, threads = (int)blockDim.x;
    for (int index = (int)threadIdx.x; index < FIRST_IN * pieces; index += threads) {
        const int r = index / pieces, mel = index % pieces * 4 - 4, frame = from + r;
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (frame >= 0 && frame < count && mel >= 0 && mel < args->mels) {
            const uint2 got = *(const uint2 *)(args->in + ((int64_t)row * args->features + frame) *
                                                              args->mels + mel);
            const float2 a = unpack2(got.x), b = unpack2(got.y);
            value = make_float4(a.x, a.y, b.x, b.y);
        }
        *(float4 *)&to[r][index % pieces * 4] = value;
    }
}

static __device__ __forceinline__ float2 add_tap(float2 sum, float value, float2 weight)
{
    return make_float2(sum.x + value * weight.x, sum.y + value * weight.y);
}

/* One output of the first convolution, three by three inputs at in[0..2][at..at + 2]. */
static __device__ __forceinline__ float2 first_output(const struct first_weights *weights,
                                                      const float (*in)[5], int at, bool own)
{
    float2 sum = weights->first_bias;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        sum = add_tap(sum, in[tap / 3][at + tap % 3], weights->first[tap]);
    }
    return own ? make_float2(fmaxf(sum.x, 0.0f), fmaxf(sum.y, 0.0f)) : make_float2(0.0f, 0.0f);
}

/* The step's inputs: five columns, the last of the step before and four new ones. */
static __device__ __forceinline__ void inputs_next(float (*in)[5],
                                                   const float (*shared)[FIRST_PITCH], int column)
{
#pragma unroll
    for (int r = 0; r < FIRST_IN; r++) {
        const float4 got = *(const float4 *)&shared[r][4 + 4 * column];
        in[r][0] = in[r][4];
        in[r][1] = got.x;
        in[r][2] = got.y;
        in[r][3] = got.z;
        in[r][4] = got.w;
    }
}

/* A thread's walk along the mels: of two channels, FIRST_OUT output frames. */
struct first_walk {
    int half, half_count;    /* first frame of the first convolution, and how many the row has */
    float in[FIRST_IN][5];   /* the step's inputs */
    float2 kept[FIRST_HALF]; /* the first convolution's column 2 c - 1 */
};

/* As after the step before `column`: the padding, or that step's last column made anew. */
static __device__ __forceinline__ void walk_start(struct first_walk *walk,
                                                  const struct first_weights *weights,
                                                  const float (*shared)[FIRST_PITCH], int column)
{
    if (column > 0) {
        inputs_next(walk->in, shared, column - 1);
    }
#pragma unroll
    for (int h = 0; h < FIRST_HALF; h++) {
        const int frame = walk->half + h;
        const bool own = column > 0 && frame >= 0 && frame < walk->half_count;
        walk->kept[h] = first_output(weights, walk->in + 2 * h, 2, own);
    }
#pragma unroll
    for (int r = 0; r < FIRST_IN; r++) {
        walk->in[r][4] = column > 0 ? walk->in[r][4] : 0.0f;
    }
}

/* The outputs of one column. */
static __device__ __forceinline__ void walk_step(struct first_walk *walk,
                                                 const struct first_weights *weights,
                                                 const float (*shared)[FIRST_PITCH], int column,
                                                 float2 sums[FIRST_OUT])
{
    inputs_next(walk->in, shared, column);
#pragma unroll
    for (int out = 0; out < FIRST_OUT; out++) {
        sums[out] = weights->second_bias;
    }
#pragma unroll
    for (int h = 0; h < FIRST_HALF; h++) {
        const bool own = walk->half + h >= 0 && walk->half + h < walk->half_count;
        const float2 left = walk->kept[h];
        const float2 middle = first_output(weights, walk->in + 2 * h, 0, own);
        const float2 right = first_output(weights, walk->in + 2 * h, 2, own);
        walk->kept[h] = right;
#pragma unroll
        for (int out = 0; out < FIRST_OUT; out++) {
            const int tap = h - 2 * out; /* along time */
            if (tap >= 0 && tap < 3) {
                const float2 *by = weights->second + 3 * tap;
                sums[out].x += left.x * by[0].x + middle.x * by[1].x + right.x * by[2].x;
                sums[out].y += left.y * by[0].y + middle.y * by[1].y + right.y * by[2].y;
            }
        }
    }
}

/* Grid: parts of the mels x parts of the channels, pairs of output frames, rows; two channels a
 * thread. Each output takes 45 + 9 multiplications and 2 bytes out; inputs come from shared memory,
 * the same word for a whole warp. CPU twin: subsample_first of cpu.c.
 *
 * Output frame t reads frames 2 t - 1 .. 2 t + 1 of the first convolution, and that one's frame h
 * features 2 h - 1 .. 2 h + 1. Along the mels, output column c needs columns 2 c - 1 (the last of
 * the step before) to 2 c + 1, and those inputs 4 c - 1 .. 4 c + 3. */
static __global__ void __launch_bounds__(FIRST_THREADS)
    first_kernel(const __grid_constant__ struct first_args args)
{
    __shared__ __align__(16) float shared[FIRST_IN][FIRST_PITCH];
    const int parts = (args.mels / 4 + args.columns - 1) / args.columns;
    const int column_first = (int)blockIdx.x % parts * args.columns;
    const int column_end = min(column_first + args.columns, args.mels / 4);
    const int channel = 2 * (int)((blockIdx.x / parts) * blockDim.x + threadIdx.x);
    const int row = (int)blockIdx.z, frame = (int)blockIdx.y * FIRST_OUT;
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    const int count = args.quarter_count[row];
    const int half_count = args.half_count[row], half = 2 * frame - 1;
    features_load(&args, shared, row, 2 * half - 1, min(args.feature_count[row], args.features));
    __syncthreads();
    if (channel >= args.channels) {
        return;
    }
    struct first_weights weights;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        weights.first[tap] = *(const float2 *)(args.first_weight + tap * args.channels + channel);
        weights.second[tap] = *(const float2 *)(args.second_weight + tap * args.channels + channel);
    }
    weights.first_bias = *(const float2 *)(args.first_bias + channel);
    weights.second_bias = *(const float2 *)(args.second_bias + channel);
    struct first_walk walk = {half, half_count, {}, {}};
    walk_start(&walk, &weights, shared, column_first);
    for (int column = column_first; column < column_end; column++) {
        float2 sums[FIRST_OUT];
        walk_step(&walk, &weights, shared, column, sums);
#pragma unroll
        for (int out = 0; out < FIRST_OUT; out++) {
            const int t = frame + out;
            if (t < args.quarter) {
                const int64_t at = ((int64_t)row * args.quarter + t) * (args.mels / 4) + column;
                const bool good = fits_half(sums[out].x) && fits_half(sums[out].y);
                spoil(args.spoiled, row, t < count && !good);
                *(uint32_t *)(args.out + at * args.channels + channel) =
                    t < count ? pack2(sums[out].x, sums[out].y) : 0;
            }
        }
    }
}

struct third_args {
    const __half *in; /* [rows][quarter][mels / 4][channels] */
    __half *out;      /* [rows][frames][mels / 8][channels] */
    const float *weight, *bias;
    const int32_t *quarter_count, *frame_count;
    int32_t *spoiled;
    int quarter, frames, columns, channels; /* columns: mels / 4 */
};

/* Grid: channels / (4 x 128) parts x frames, rows; four channels a thread, which walks along the
 * output columns of a frame and keeps the column that two of them read. An input is read for the
 * output frames it belongs to, one or two: the second time from L2. CPU twin: subsample_third. */
static __global__ void __launch_bounds__(THIRD_THREADS)
    third_kernel(const __grid_constant__ struct third_args args)
{
    const int lanes = args.channels / 4;
    const int index = (int)(blockIdx.x * THIRD_THREADS + threadIdx.x);
    const int channel = index % lanes * 4, out_columns = args.columns / 2;
    const int item = index / lanes, row = (int)blockIdx.y;
    const int frame = item / out_columns, column = item % out_columns;
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    if (frame >= args.frames) {
        return;
    }
    const int count = min(args.quarter_count[row], args.quarter);
    float4 sum = *(const float4 *)(args.bias + channel);
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        const int t = 2 * frame - 1 + tap / 3, c = 2 * column - 1 + tap % 3;
        if (t >= 0 && t < count && c >= 0 && c < args.columns) {
            const int64_t at = ((int64_t)row * args.quarter + t) * args.columns + c;
            const uint2 got = *(const uint2 *)(args.in + at * args.channels + channel);
            const float4 by = *(const float4 *)(args.weight + tap * args.channels + channel);
            const float2 a = unpack2(got.x), b = unpack2(got.y);
            sum.x += a.x * by.x;
            sum.y += a.y * by.y;
            sum.z += b.x * by.z;
            sum.w += b.y * by.w;
        }
    }
    const int64_t at = ((int64_t)row * args.frames + frame) * out_columns + column;
    const bool own = frame < args.frame_count[row];
    const bool good = fits_half(sum.x) && fits_half(sum.y) && fits_half(sum.z) && fits_half(sum.w);
    spoil(args.spoiled, row, own && !good);
    *(uint2 *)(args.out + at * args.channels + channel) =
        own ? make_uint2(pack2(sum.x, sum.y), pack2(sum.z, sum.w)) : make_uint2(0, 0);
}

/* out [2 position_max - 1][hidden]: sine and cosine of distance x 10000^(-2 i / hidden). The angle
 * is reduced in float64, so that distances of hours are as right as small ones. */
static __global__ void positions_kernel(__half *out, int position_max, int hidden)
{
    const int index = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    if (index < hidden / 2) {
        const double turns = exp2(-log2(10000.0) * 2 * index / hidden) / 6.283185307179586;
        for (int row = (int)blockIdx.y; row < 2 * position_max - 1; row += (int)gridDim.y) {
            const double turn = (position_max - 1 - row) * turns;
            const float part = (float)(turn - rint(turn));
            *(uint32_t *)(out + (int64_t)row * hidden + 2 * index) =
                pack2(sinpif(2.0f * part), cospif(2.0f * part));
        }
    }
}

/* lib-shaped */
void berth_parakeet_cuda_subsample_first(struct berth_parakeet_device *device,
                                         const struct berth_parakeet_config *config,
                                         const struct berth_parakeet_shape *shape,
                                         const struct berth_parakeet_counts *counts,
                                         const struct berth_parakeet_depthwise *first,
                                         const struct berth_parakeet_depthwise *second,
                                         const void *in, void *out)
{
    struct first_args args = {};
    struct berth_parakeet_cuda_launch launch = {};
    void *arguments[] = {&args};
    if (config->mels > FIRST_MELS_MAX || config->mels % 8 != 0 || config->channels % 8 != 0) {
        berth_parakeet_cuda_refuse(device, "subsampling: no kernel for mels of",
                                   (long)config->mels);
        return;
    }
    args.in = (const __half *)in;
    args.out = (__half *)out;
    args.first_weight = first->weight;
    args.first_bias = first->bias;
    args.second_weight = second->weight;
    args.second_bias = second->bias;
    args.feature_count = counts->features;
    args.half_count = counts->half;
    args.quarter_count = counts->quarter;
    args.spoiled = counts->spoiled;
    args.features = (int)shape->padded.features;
    args.quarter = (int)shape->padded.quarter;
    args.mels = (int)config->mels;
    args.channels = (int)config->channels;
    const int pairs = (args.channels / 2 + 31) / 32 * 32;
    const int threads = pairs < FIRST_THREADS ? pairs : FIRST_THREADS;
    const int frame_blocks = (args.quarter + FIRST_OUT - 1) / FIRST_OUT;
    /* Few rows: quarters of the mels, for more blocks; a block's first column costs one more. */
    const bool few = (uint64_t)frame_blocks * shape->rows < (uint64_t)device->sm_count * 4;
    args.columns = few ? (args.mels / 4 + 3) / 4 : args.mels / 4;
    const int parts = (args.mels / 4 + args.columns - 1) / args.columns;
    launch.name = "subsample_first";
    launch.kernel = (const void *)first_kernel;
    launch.grid = dim3((unsigned)(parts * ((args.channels / 2 + threads - 1) / threads)),
                       (unsigned)frame_blocks, shape->rows);
    launch.block = dim3((unsigned)threads);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

/* lib-shaped */
void berth_parakeet_cuda_subsample_third(struct berth_parakeet_device *device,
                                         const struct berth_parakeet_config *config,
                                         const struct berth_parakeet_shape *shape,
                                         const struct berth_parakeet_counts *counts,
                                         const struct berth_parakeet_depthwise *third,
                                         const void *in, void *out)
{
    struct third_args args = {};
    struct berth_parakeet_cuda_launch launch = {};
    void *arguments[] = {&args};
    if (config->mels % 8 != 0 || config->channels % 8 != 0 || shape->padded.frames > 1u << 20) {
        berth_parakeet_cuda_refuse(device, "subsampling: no kernel for channels of",
                                   (long)config->channels);
        return;
    }
    args.in = (const __half *)in;
    args.out = (__half *)out;
    args.weight = third->weight;
    args.bias = third->bias;
    args.quarter_count = counts->quarter;
    args.frame_count = counts->frames;
    args.spoiled = counts->spoiled;
    args.quarter = (int)shape->padded.quarter;
    args.frames = (int)shape->padded.frames;
    args.columns = (int)config->mels / 4;
    args.channels = (int)config->channels;
    const uint64_t items =
        (uint64_t)args.frames * (uint64_t)(args.columns / 2) * (uint64_t)(args.channels / 4);
    if (items > INT32_MAX - THIRD_THREADS) {
        berth_parakeet_cuda_refuse(device, "subsampling: no kernel for frames of",
                                   (long)args.frames);
        return;
    }
    launch.name = "subsample_third";
    launch.kernel = (const void *)third_kernel;
    launch.grid = dim3((unsigned)((items + THIRD_THREADS - 1) / THIRD_THREADS), shape->rows);
    launch.block = dim3(THIRD_THREADS);
    berth_parakeet_cuda_run(device, &launch, arguments);
}

void berth_parakeet_cuda_positions(struct berth_parakeet_device *device, uint32_t position_max,
                                   uint32_t hidden, void *out)
{
    struct berth_parakeet_cuda_launch launch = {};
    __half *to = (__half *)out;
    int max = (int)position_max, width = (int)hidden;
    void *arguments[] = {&to, &max, &width};
    if (hidden % 8 != 0 || position_max == 0 || position_max > 1u << 24) {
        berth_parakeet_cuda_refuse(device, "positions: no kernel for a width of", (long)hidden);
        return;
    }
    launch.name = "positions";
    launch.kernel = (const void *)positions_kernel;
    launch.grid = dim3((hidden / 2 + 127) / 128, position_max < 1024 ? position_max : 1024);
    launch.block = dim3(128);
    berth_parakeet_cuda_run(device, &launch, arguments);
}
