/* features.cu - log-mel features on the device, normalised over each row's own frames.
 *
 * Three kernels. log_mel: a warp a frame; 512 windowed samples are taken as 256 complex numbers,
 * and their transform is 8 x 8 x 4: a lane holds eight of them, so that each of the first two
 * steps is one eight-point transform in registers, with an exchange through the warp's own shared
 * memory between. The filters are triangles that each share both sides with their neighbours:
 * a bin belongs to the rising side of one and the falling side of another, so two weights a bin
 * are the whole matrix. The tables (twiddles, window, filters) are made by every block for itself
 * before it waits for the kernel ahead of it; it is less work than keeping them somewhere.
 * moments: mean and deviation of each mel over the row's frames, in two passes as the reference,
 * in an order that knows neither the padding nor the other rows (E1). normalise: to halves, zero
 * past the row's frames.
 *
 * Between them lie float32 log-mels, [rows][features][mels], in memory this file keeps: it grows
 * at the first call of a larger shape, which may be while recording (the capture is relaxed, so
 * cudaMalloc is allowed), and what a recorded graph may still point to is kept until close.
 * CPU reference: the `features` of berth_parakeet_cpu.
 */
#include <math.h>

#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"

extern "C" {
#include "base/mem.h"
}

#define FFT 512
#define WINDOW 400
#define BINS (FFT / 2 + 1)
#define MELS_MAX 128
#define HZ_PER_BIN ((double)BERTH_PARAKEET_SAMPLE_RATE / FFT)
#define FRAME_WARPS 8
#define SAMPLE_MAX 1e6f   /* past it a sample counts as 0 */
#define LOG_FLOOR 0x1p-24f
#define DEVIATION_FLOOR 1e-5f
/* Rows of eight transforms' values are 36 apart instead of 32: no two lanes meet in one bank. */
#define SPREAD 36
#define MOMENTS_MELS 16 /* of a block of moments() */
#define MOMENTS_LANES 32

struct features_args {
    const float *pcm;             /* [rows][samples] */
    const int32_t *samples_used;  /* [rows] */
    const int32_t *features_used; /* [rows] */
    float *log_mel;               /* [rows][features][mels] */
    float *moments;               /* [rows][2][mels]: mean; deviation + 1e-5 */
    uint4 *out;                   /* half [rows][features][mels] */
    uint32_t rows, samples, features, mels;
    uint32_t frames_a_block; /* of log_mel; a multiple of FRAME_WARPS */
    float preemphasis;
};

/* Memory that grew out of use, and the one in use at the head. */
struct features_memory {
    struct features_memory *older;
    void *device_memory;
    size_t bytes;
};

struct mel_tables {
    float2 w256[256];          /* e^(-2 pi i k / 256) */
    float2 w512[128];          /* e^(-2 pi i k / 512) */
    float window[WINDOW];      /* Hann, symmetric */
    float rising[BINS];        /* weight of a bin in the filter of its band */
    float falling[BINS];       /* in the filter of the band before */
    double edges[MELS_MAX + 2]; /* Hz: filter m begins at m, has its top at m + 1, ends at m + 2 */
    int32_t start[MELS_MAX + 2]; /* band m: bins start[m] .. start[m + 1] - 1, between two edges */
};

/* A row's own samples. */
struct recording {
    const float *pcm;
    int32_t count;
    float preemphasis;
};

static __global__ void log_mel(struct features_args args);
static __global__ void moments(struct features_args args);
static __global__ void normalise(struct features_args args);
static float *scratch(struct berth_parakeet_device *device, size_t bytes);
static void features_close(struct berth_parakeet_device *device);
static void launch_all(struct berth_parakeet_device *device, struct features_args *args);

/* lib-shaped */
extern "C" void berth_parakeet_cuda_features(struct berth_parakeet_device *device,
                                             const struct berth_parakeet_config *config,
                                             const struct berth_parakeet_shape *shape,
                                             const struct berth_parakeet_counts *counts,
                                             const float *pcm, void *out)
{
    if (config->fft != FFT || config->window != WINDOW) {
        berth_parakeet_cuda_refuse(device, "features: window", (long)config->window);
        return;
    }
    if (config->mels == 0 || config->mels > MELS_MAX || config->mels % 8 != 0) {
        berth_parakeet_cuda_refuse(device, "features: mels", (long)config->mels);
        return;
    }
    if (shape->rows == 0 || shape->padded.features == 0) {
        return;
    }
    const size_t vectors = (size_t)shape->rows * shape->padded.features;
    const size_t values = vectors * config->mels;
    float *memory = scratch(device, (values + (size_t)shape->rows * 2 * config->mels) * 4);
    if (memory == NULL) {
        return;
    }
    struct features_args args = {};
    args.pcm = pcm;
    args.samples_used = counts->samples;
    args.features_used = counts->features;
    args.log_mel = memory;
    args.moments = memory + values;
    args.out = (uint4 *)out;
    args.rows = shape->rows;
    args.samples = shape->padded.samples;
    args.features = shape->padded.features;
    args.mels = config->mels;
    args.preemphasis = config->preemphasis;
    /* Few frames: as many blocks as there are; many: some four an SM, for the tables' sake. */
    const size_t share = vectors / ((size_t)device->sm_count * 4 + 1);
    const size_t rounds = share / FRAME_WARPS + 1;
    args.frames_a_block = (uint32_t)(rounds < 8 ? rounds : 8) * FRAME_WARPS;
    launch_all(device, &args);
}

static void launch_all(struct berth_parakeet_device *device, struct features_args *args)
{
    void *values[] = {args};
    struct berth_parakeet_cuda_launch launch = {};
    launch.name = "features: log mel";
    launch.kernel = (const void *)log_mel;
    launch.grid =
        dim3((args->features + args->frames_a_block - 1) / args->frames_a_block, args->rows);
    launch.block = dim3(FRAME_WARPS * 32);
    berth_parakeet_cuda_run(device, &launch, values);

    launch.name = "features: moments";
    launch.kernel = (const void *)moments;
    launch.grid = dim3((args->mels + MOMENTS_MELS - 1) / MOMENTS_MELS, args->rows);
    launch.block = dim3(MOMENTS_MELS * MOMENTS_LANES);
    berth_parakeet_cuda_run(device, &launch, values);

    const size_t pieces = (size_t)args->features * args->mels / 8;
    launch.name = "features: normalise";
    launch.kernel = (const void *)normalise;
    launch.grid = dim3((unsigned)((pieces + 255) / 256), args->rows);
    launch.block = dim3(256);
    berth_parakeet_cuda_run(device, &launch, values);
}

/* NULL: refused already. Grows by half at least, because what older graphs point to is kept. */
static float *scratch(struct berth_parakeet_device *device, size_t bytes)
{
    struct features_memory *last = (struct features_memory *)device->features_kept;
    if (last != NULL && last->bytes >= bytes) {
        return (float *)last->device_memory;
    }
    if (last != NULL) {
        bytes = berth_parakeet_cuda_grown(bytes, last->bytes);
    }
    struct features_memory *next = (struct features_memory *)berth_alloc(sizeof(*next));
    if (next == NULL) {
        berth_parakeet_cuda_fail(device, "features: host memory", cudaErrorMemoryAllocation);
        return NULL;
    }
    const cudaError_t error = cudaMalloc(&next->device_memory, bytes);
    if (error != cudaSuccess) {
        berth_free(next);
        berth_parakeet_cuda_fail(device, "features: memory", error);
        return NULL;
    }
    next->bytes = bytes;
    device->kept_bytes += bytes;
    next->older = last;
    device->features_kept = next;
    device->features_close = features_close;
    return (float *)next->device_memory;
}

static void features_close(struct berth_parakeet_device *device)
{
    struct features_memory *memory = (struct features_memory *)device->features_kept;
    device->features_kept = NULL;
    while (memory != NULL) {
        struct features_memory *older = memory->older;
        (void)cudaFree(memory->device_memory);
        berth_free(memory);
        memory = older;
    }
}

/* ---- tables ---- */

/* Hz of a value on Slaney's mel scale: straight up to 1 kHz, then 27 steps for each factor 6.4. */
static __device__ double mel_to_hz(double mel)
{
    const double step = log(6.4) / 27.0;
    return mel < 15.0 ? mel * (200.0 / 3.0) : 1000.0 * exp(step * (mel - 15.0));
}

/* Both weights of bin k: it lies in the band of the last filter that has begun by then. */
static __device__ void weigh_bin(struct mel_tables *tables, int32_t k, int32_t mels)
{
    int32_t band = 0;
    for (int32_t step = 128; step > 0; step >>= 1) {
        if (band + step <= mels + 1 && tables->start[band + step] <= k) {
            band += step;
        }
    }
    const double *e = tables->edges;
    const double hz = k * HZ_PER_BIN;
    double up = 0.0, down = 0.0;
    if (band < mels) {
        up = (hz - e[band]) / (e[band + 1] - e[band]) * 2.0 / (e[band + 2] - e[band]);
    }
    if (band >= 1 && band <= mels) {
        down = (e[band + 1] - hz) / (e[band + 1] - e[band]) * 2.0 / (e[band + 1] - e[band - 1]);
    }
    tables->rising[k] = (float)fmax(up, 0.0);
    tables->falling[k] = (float)fmax(down, 0.0);
}

/* All threads of a block of 256; ends with a barrier. */
static __device__ void make_tables(struct mel_tables *tables, int32_t mels)
{
    const int32_t i = (int32_t)threadIdx.x;
    float sine, cosine;
    sincospif((float)i / 128.0f, &sine, &cosine);
    tables->w256[i] = make_float2(cosine, -sine);
    if (i < 128) {
        sincospif((float)i / 256.0f, &sine, &cosine);
        tables->w512[i] = make_float2(cosine, -sine);
    }
    for (int32_t n = i; n < WINDOW; n += FRAME_WARPS * 32) {
        const float s = sinpif((float)n / (float)(WINDOW - 1));
        tables->window[n] = s * s;
    }
    if (i < mels + 2) {
        const double top = 15.0 + log(8.0) * 27.0 / log(6.4); /* of 8 kHz */
        tables->edges[i] = mel_to_hz(top * i / (mels + 1));
        tables->start[i] = (int32_t)ceil(tables->edges[i] / HZ_PER_BIN);
    }
    __syncthreads();
    for (int32_t k = i; k < BINS; k += FRAME_WARPS * 32) {
        weigh_bin(tables, k, mels);
    }
    __syncthreads();
}

/* ---- transform ---- */

static __device__ __forceinline__ float2 add(float2 a, float2 b)
{
    return make_float2(a.x + b.x, a.y + b.y);
}

static __device__ __forceinline__ float2 subtract(float2 a, float2 b)
{
    return make_float2(a.x - b.x, a.y - b.y);
}

static __device__ __forceinline__ float2 times(float2 a, float2 b)
{
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

/* In place; outputs in natural order. */
static __device__ __forceinline__ void transform4(float2 &a, float2 &b, float2 &c, float2 &d)
{
    const float2 even = add(a, c), odd = subtract(a, c), sum = add(b, d), gap = subtract(b, d);
    const float2 turned = make_float2(gap.y, -gap.x); /* times -i */
    a = add(even, sum);
    b = add(odd, turned);
    c = subtract(even, sum);
    d = subtract(odd, turned);
}

static __device__ __forceinline__ void transform8(float2 *v)
{
    const float half = 0.70710678118654752f;
    float2 a0 = add(v[0], v[4]), a1 = add(v[1], v[5]), a2 = add(v[2], v[6]), a3 = add(v[3], v[7]);
    float2 b0 = subtract(v[0], v[4]), b1 = subtract(v[1], v[5]);
    float2 b2 = subtract(v[2], v[6]), b3 = subtract(v[3], v[7]);
    b1 = make_float2(half * (b1.x + b1.y), half * (b1.y - b1.x));
    b2 = make_float2(b2.y, -b2.x);
    b3 = make_float2(half * (b3.y - b3.x), -half * (b3.x + b3.y));
    transform4(a0, a1, a2, a3);
    transform4(b0, b1, b2, b3);
    v[0] = a0;
    v[1] = b0;
    v[2] = a1;
    v[3] = b1;
    v[4] = a2;
    v[5] = b2;
    v[6] = a3;
    v[7] = b3;
}

static __device__ __forceinline__ float sample(const struct recording &from, int32_t at)
{
    if (at < 0 || at >= from.count) {
        return 0.0f;
    }
    const float value = __ldg(&from.pcm[at]);
    return fabsf(value) <= SAMPLE_MAX ? value : 0.0f; /* also no number */
}

/* The lane's eight of the 256 complex numbers of frame t: number 32 j + lane holds the windowed
 * samples 2 n and 2 n + 1. The window begins at 160 t - 200, the reference's at 56 zeros before:
 * a shift, and only the power is wanted. */
static __device__ __forceinline__ void load_frame(float2 *v, const struct mel_tables *tables,
                                                  const struct recording &from, int32_t first)
{
#pragma unroll
    for (int32_t j = 0; j < 8; j++) {
        const int32_t i = 2 * (32 * j + (int32_t)(threadIdx.x & 31));
        const int32_t at = first + i;
        v[j] = make_float2(0.0f, 0.0f);
        if (i < WINDOW) {
            const float before = sample(from, at - 1);
            const float here = sample(from, at);
            const float after = sample(from, at + 1);
            if (at >= 0 && at < from.count) {
                v[j].x = (here - from.preemphasis * before) * tables->window[i];
            }
            if (at + 1 >= 0 && at + 1 < from.count) {
                v[j].y = (after - from.preemphasis * here) * tables->window[i + 1];
            }
        }
    }
}

/* 256 points of a warp: v in (number 32 j + lane), z out in natural order. z: 8 x SPREAD.
 * first, second: the lane's twiddles after the first and the second step. */
static __device__ __forceinline__ void transform256(float2 *v, float2 *z, const float2 *first,
                                                    const float2 *second)
{
    const int32_t lane = (int32_t)(threadIdx.x & 31), k1 = lane >> 2, b = lane & 3;
    transform8(v);
#pragma unroll
    for (int32_t k = 0; k < 8; k++) {
        z[k * SPREAD + lane] = times(v[k], first[k]);
    }
    __syncwarp();
#pragma unroll
    for (int32_t j = 0; j < 8; j++) {
        v[j] = z[k1 * SPREAD + 4 * j + b];
    }
    __syncwarp();
    transform8(v);
#pragma unroll
    for (int32_t k = 0; k < 8; k++) {
        z[k1 * SPREAD + 4 * k + b] = times(v[k], second[k]);
    }
    __syncwarp();
#pragma unroll
    for (int32_t pair = 0; pair < 2; pair++) {
        const int32_t p = lane + 32 * pair;
        const float2 *from = &z[(p & 7) * SPREAD + 4 * (p >> 3)];
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            v[4 * pair + j] = from[j];
        }
    }
    __syncwarp();
#pragma unroll
    for (int32_t pair = 0; pair < 2; pair++) {
        transform4(v[4 * pair], v[4 * pair + 1], v[4 * pair + 2], v[4 * pair + 3]);
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            z[lane + 32 * pair + 64 * j] = v[4 * pair + j];
        }
    }
    __syncwarp();
}

/* Power of the 257 bins of 512 real samples, from the transform of their 256 pairs. */
static __device__ __forceinline__ void powers(const float2 *z, const struct mel_tables *tables,
                                              float *power)
{
    const int32_t lane = (int32_t)(threadIdx.x & 31);
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        const int32_t k = lane + 32 * i; /* and 256 - k */
        const float2 a = z[k], c = z[(256 - k) & 255];
        const float2 even = make_float2(0.5f * (a.x + c.x), 0.5f * (a.y - c.y));
        const float2 odd = make_float2(0.5f * (a.y + c.y), 0.5f * (c.x - a.x));
        const float2 turned = times(tables->w512[k], odd);
        const float2 low = add(even, turned), high = subtract(even, turned);
        power[k] = low.x * low.x + low.y * low.y;
        power[256 - k] = high.x * high.x + high.y * high.y;
    }
    if (lane == 0) {
        power[128] = z[128].x * z[128].x + z[128].y * z[128].y;
    }
    __syncwarp();
}

/* A warp a frame; 256 threads; grid (blocks of frames, rows). Reads 1 KB of PCM a frame through
 * L1, writes 512 bytes. */
static __global__ void __launch_bounds__(FRAME_WARPS * 32) log_mel(struct features_args args)
{
    __shared__ struct mel_tables tables;
    __shared__ __align__(16) float2 z_all[FRAME_WARPS][8 * SPREAD];
    __shared__ float power_all[FRAME_WARPS][BINS + 7];
    const int32_t lane = (int32_t)(threadIdx.x & 31), warp = (int32_t)(threadIdx.x >> 5);
    const int32_t mels = (int32_t)args.mels;
    make_tables(&tables, mels);
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();

    const uint32_t row = blockIdx.y;
    struct recording recording;
    recording.pcm = args.pcm + (size_t)row * args.samples;
    recording.count = min(args.samples_used[row], (int32_t)args.samples);
    recording.preemphasis = args.preemphasis;
    const int32_t frames = min(args.features_used[row], (int32_t)args.features);
    float2 first[8], second[8];
#pragma unroll
    for (int32_t k = 0; k < 8; k++) {
        first[k] = tables.w256[lane * k];
        second[k] = tables.w256[8 * (lane & 3) * k];
    }
    const int32_t begin = (int32_t)(blockIdx.x * args.frames_a_block);
    const int32_t end = min(begin + (int32_t)args.frames_a_block, frames);
    float2 *z = z_all[warp];
    float *power = power_all[warp];
    for (int32_t t = begin + warp; t < end; t += FRAME_WARPS) {
        float2 v[8];
        load_frame(v, &tables, recording, t * BERTH_PARAKEET_HOP - WINDOW / 2);
        transform256(v, z, first, second);
        powers(z, &tables, power);
        float *out = args.log_mel + ((size_t)row * args.features + (size_t)t) * args.mels;
        for (int32_t m = lane; m < mels; m += 32) {
            float sum = 0.0f;
            const int32_t top = tables.start[m + 1], stop = min(tables.start[m + 2], BINS);
            for (int32_t k = tables.start[m]; k < top; k++) {
                sum += tables.rising[k] * power[k];
            }
            for (int32_t k = top; k < stop; k++) {
                sum += tables.falling[k] * power[k];
            }
            out[m] = logf(sum + LOG_FLOOR);
        }
        __syncwarp(); /* power and z are written again */
    }
}

/* Sum of a value over the lanes of a mel, in the order of the lanes; all threads get it. */
static __device__ __forceinline__ float sum_lanes(float (*shared)[MOMENTS_MELS], float value)
{
    const int32_t m = (int32_t)threadIdx.x % MOMENTS_MELS;
    __syncthreads();
    shared[threadIdx.x / MOMENTS_MELS][m] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < MOMENTS_LANES; i++) {
        sum += shared[i][m];
    }
    return sum;
}

/* 16 mels x 32 lanes of frames, lane i takes frames i, i + 32, ...; grid (mels / 16, rows). Reads
 * the row's log-mels twice, the second time from L2. */
static __global__ void __launch_bounds__(MOMENTS_MELS *MOMENTS_LANES)
    moments(struct features_args args)
{
    __shared__ float shared[MOMENTS_LANES][MOMENTS_MELS];
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    const uint32_t row = blockIdx.y;
    const int32_t frames = min(args.features_used[row], (int32_t)args.features);
    const uint32_t mel = blockIdx.x * MOMENTS_MELS + threadIdx.x % MOMENTS_MELS;
    const int32_t lane = (int32_t)(threadIdx.x / MOMENTS_MELS);
    if (frames <= 0) { /* the whole block */
        return;
    }
    const bool mine = mel < args.mels;
    const float *from = args.log_mel + (size_t)row * args.features * args.mels + (mine ? mel : 0);
    /* Sums are of what differs from the first frame: silence is then 0 exactly. */
    const float base = from[0];
    float sum = 0.0f;
#pragma unroll 8
    for (int32_t t = lane; t < frames; t += MOMENTS_LANES) {
        sum += from[(size_t)t * args.mels] - base;
    }
    const float mean = base + sum_lanes(shared, sum) / (float)frames;
    float squares = 0.0f;
#pragma unroll 8
    for (int32_t t = lane; t < frames; t += MOMENTS_LANES) {
        const float gap = from[(size_t)t * args.mels] - mean;
        squares += gap * gap;
    }
    squares = sum_lanes(shared, squares);
    if (mine && lane == 0) {
        const float deviation = frames > 1 ? sqrtf(squares / (float)(frames - 1)) : 0.0f;
        float *to = args.moments + (size_t)row * 2 * args.mels;
        to[mel] = mean;
        to[args.mels + mel] = deviation + DEVIATION_FLOOR;
    }
}

/* Eight mels a thread; grid (pieces of a row / 256, rows). Reads 4 bytes a value, writes 2. */
static __global__ void __launch_bounds__(256) normalise(struct features_args args)
{
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    const uint32_t row = blockIdx.y, groups = args.mels / 8;
    const uint32_t piece = blockIdx.x * 256 + threadIdx.x;
    if (piece >= args.features * groups) {
        return;
    }
    const int32_t frames = min(args.features_used[row], (int32_t)args.features);
    const size_t at = (size_t)row * args.features * groups + piece;
    uint4 packed = make_uint4(0, 0, 0, 0);
    if ((int32_t)(piece / groups) < frames) {
        const float4 *from = (const float4 *)args.log_mel + at * 2;
        const float4 *mean = (const float4 *)(args.moments + (size_t)row * 2 * args.mels) +
                             (piece % groups) * 2;
        const float4 *deviation = mean + args.mels / 4;
        float to[8];
#pragma unroll
        for (int32_t i = 0; i < 2; i++) {
            const float4 x = from[i], m = mean[i], d = deviation[i];
            to[4 * i] = (x.x - m.x) / d.x;
            to[4 * i + 1] = (x.y - m.y) / d.y;
            to[4 * i + 2] = (x.z - m.z) / d.z;
            to[4 * i + 3] = (x.w - m.w) / d.w;
        }
        packed = pack8(to);
    }
    args.out[at] = packed;
}
