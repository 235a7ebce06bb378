/* decode.cu - greedy TDT and RNN-T in one cooperative kernel, CTC in two small ones.
 *
 * The transducer loop is short products with much weight and few rows, one behind another: joint,
 * then for rows that emitted the LSTM's layers and the prediction's last matrix. One kernel stays
 * on the device for the whole loop: a block an SM, each with its share of every matrix' output
 * units, and a barrier over the grid between two products (four a step that emits, one a step that
 * does not). It is launched cooperatively, so all its blocks are there at once and may wait for one
 * another; nothing else of ours does. Rejected: graph nodes that loop (WHILE), which pay a launch
 * for each product; a block a row, which reads all weights through one SM.
 *
 * Products: weights are the A side of m16n8k16, rows of the batch its columns, so that weights are
 * read once a step whatever the batch, by tensor cores from one row to 64 at a time; more rows take
 * turns. The eight warps of a block each take an eighth of the sum and leave their parts in shared
 * memory, where they are added in the order of the warps. A column never meets another: a row's
 * result is the same, bit for bit, in any company, at any place, on any number of blocks (E1).
 * Lanes load 16 bytes of eight elements of one row; which element goes to which place of the sum
 * of 16 is free as long as both sides agree, so no shuffle is needed.
 *
 * Decisions: every block holds the state of all rows and makes all decisions for itself, from two
 * numbers a row: the best token and the best duration, found by atomicMax on keys of 64 bits (logit
 * above, index below: the order of arrival does not matter). Whether a row is to stop is read from
 * the host by one block only, a step ahead of its use, and told to the others by the same key, so
 * that all decide alike. Rows that are done or did not emit are left out of the next product.
 *
 * Numbers: bf16 weights, encoder output, hidden states, prediction and relu(encoder + prediction);
 * float32 sums, gates, cell states and logits.
 * CPU reference: cpu_decode.c.
 */
#include <limits.h>

#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"

#define THREADS 256 /* one a row, where rows have threads */
#define WARPS (THREADS / 32)
#define ROWS_MAX THREADS
#define TILE 16            /* outputs of a tile; of the LSTM: 4 units x 4 gates */
#define UNITS 4
#define TILES_AT_ONCE 2
#define CHUNK 64           /* rows of one product */
#define PART_STRIDE (TILE + 4) /* floats of a column's parts: no two lanes meet in one bank */
#define KEYS 3             /* sets of keys: one is cleared, one collected, one read */
#define STOP_KEY (~0ull)   /* of no logit: that would be one that is no number */
#define CTC_FRAMES 32      /* frames of a block */
#define FULL 0xffffffffu

typedef unsigned long long key64; /* what atomicMax wants */

struct lstm_args {
    const uint16_t *input, *state; /* bf16 [4 P][P] */
    const float *bias;             /* [4 P] */
};

struct decode_args {
    uint32_t rows, frames;   /* of the bucket */
    uint32_t prediction;     /* P; a multiple of 8 */
    uint32_t layers;
    uint32_t vocabulary, outputs; /* tokens; tokens and durations */
    uint32_t tiles;          /* of the head */
    uint32_t symbols_max, capacity, steps_max;
    int32_t blank;
    bool tdt;
    int32_t durations[BERTH_PARAKEET_DURATIONS_MAX];
    struct lstm_args lstm[BERTH_PARAKEET_PREDICTION_LAYERS_MAX];
    const uint16_t *embedding;                /* bf16 [vocabulary][P] */
    const uint16_t *out_weight, *out_bias;    /* bf16 [P][P], [P] */
    const uint16_t *head_weight, *head_bias;  /* bf16 [outputs][P], [outputs] */
    const uint16_t *projected;                /* bf16 [rows][frames][P] */
    const int32_t *frames_used;               /* [rows] */
    const volatile uint32_t *stop;            /* [rows], the host's memory */
    struct berth_parakeet_tokens out;
    /* State, zeroed before the kernel: */
    uint32_t *arrived;  /* blocks at the barrier, ever */
    key64 *keys;        /* [KEYS][rows][2]: token, duration */
    float *cell;        /* [layers][rows][P] */
    uint16_t *hidden;   /* bf16 [layers][2][rows][P]; a row's newest is at its parity */
    /* not zeroed: */
    uint16_t *predicted; /* bf16 [rows][P] */
    float2 *sums;        /* [2][rows][tiles]: of a tile's tokens, highest logit, sum of e^(l - it) */
};

struct ctc_args {
    uint32_t rows, frames, hidden, vocabulary, capacity;
    int32_t blank;
    const uint16_t *head_weight, *head_bias; /* bf16 [vocabulary][hidden] */
    const uint16_t *encoded;                 /* bf16 [rows][frames][hidden] */
    const int32_t *frames_used;
    const volatile uint32_t *stop;
    struct berth_parakeet_tokens out;
    int32_t *best_token;      /* [rows][frames] */
    float *best_probability;
};

/* Where the parts of the state lie. */
struct state_places {
    size_t arrived, keys, cell, hidden;
    size_t zeroed; /* bytes to clear */
    size_t predicted, sums, best_token, best_probability;
    size_t bytes;
};

/* All rows' state, the same in every block. */
struct row_states {
    int32_t frame[ROWS_MAX], frames[ROWS_MAX];
    int32_t count[ROWS_MAX], symbols[ROWS_MAX], steps[ROWS_MAX];
    int32_t token[ROWS_MAX];   /* the newest */
    int32_t parity[ROWS_MAX];  /* which of two hidden states is the newest */
    int32_t place[ROWS_MAX];   /* of the token emitted in this step; -1: none */
    float logit[ROWS_MAX];     /* of it */
    bool live[ROWS_MAX];
    int32_t joint[ROWS_MAX], lstm[ROWS_MAX]; /* rows that take part, in order */
    int32_t joint_count, lstm_count;
    int32_t warp_joint[WARPS], warp_lstm[WARPS];
};

/* What a product is of. SUM_OF_TWO: x = relu(in[0] + in[1]). CONCATENATED: weight[0] in[0] +
 * weight[1] in[1]. */
enum product_kind { PLAIN, SUM_OF_TWO, CONCATENATED };

struct product {
    const uint16_t *weight[2]; /* [outputs][length] */
    const uint16_t *in[2];
    uint32_t length; /* a multiple of 8 */
};

static __global__ void transduce(const __grid_constant__ struct decode_args args);
static __global__ void ctc_frames(const __grid_constant__ struct ctc_args args);
static __global__ void ctc_collapse(const __grid_constant__ struct ctc_args args);
static struct state_places places_of(const struct berth_parakeet_config *config,
                                     const struct berth_parakeet_shape *shape);
static void launch_transducer(struct berth_parakeet_device *device,
                              const struct berth_parakeet_config *config,
                              struct decode_args *args);
static void launch_ctc(struct berth_parakeet_device *device, struct ctc_args *args);
static bool fits(struct berth_parakeet_device *device, const struct berth_parakeet_config *config,
                 const struct berth_parakeet_shape *shape);
static void fill_weights(struct decode_args *args, const struct berth_parakeet_weights *weights);
static void fill_state(struct decode_args *args, const struct state_places *places, void *state);

extern "C" size_t berth_parakeet_cuda_decode_state_bytes(const struct berth_parakeet_config *config,
                                                         const struct berth_parakeet_shape *shape)
{
    return places_of(config, shape).bytes;
}

/* Always all of it: there is no second call of a decoding. */
extern "C" bool berth_parakeet_cuda_decode(struct berth_parakeet_device *device,
                                           const struct berth_parakeet_shape *shape,
                                           const struct berth_parakeet_counts *counts,
                                           const struct berth_parakeet_decode_call *call)
{
    const struct berth_parakeet_config *config = call->config;
    if (shape->rows == 0 || !fits(device, config, shape)) {
        return true;
    }
    const struct state_places places = places_of(config, shape);
    const struct berth_parakeet_weights *weights = call->weights;
    if (config->head == BERTH_PARAKEET_CTC) {
        struct ctc_args args = {};
        args.rows = shape->rows;
        args.frames = shape->padded.frames;
        args.hidden = config->hidden;
        args.vocabulary = config->vocabulary;
        args.capacity = call->tokens.capacity;
        args.blank = (int32_t)config->blank;
        args.head_weight = (const uint16_t *)weights->head.weight;
        args.head_bias = (const uint16_t *)weights->head.bias;
        args.encoded = (const uint16_t *)call->projected;
        args.frames_used = counts->frames;
        args.stop = call->stop;
        args.out = call->tokens;
        args.best_token = (int32_t *)((char *)call->state + places.best_token);
        args.best_probability = (float *)((char *)call->state + places.best_probability);
        launch_ctc(device, &args);
        return true;
    }
    struct decode_args args = {};
    args.rows = shape->rows;
    args.frames = shape->padded.frames;
    args.prediction = config->prediction;
    args.layers = config->prediction_layers;
    args.vocabulary = config->vocabulary;
    args.outputs = config->vocabulary + config->duration_count;
    args.tiles = (args.outputs + TILE - 1) / TILE;
    args.symbols_max = config->symbols_max > 0 ? config->symbols_max : 1;
    args.capacity = call->tokens.capacity;
    /* Each frame sees at most so many joints; the loop ends sooner by itself. */
    const uint64_t steps = (uint64_t)args.frames * (args.symbols_max + 1ull) + 1;
    args.steps_max = steps < INT_MAX ? (uint32_t)steps : INT_MAX;
    args.blank = (int32_t)config->blank;
    args.tdt = config->head == BERTH_PARAKEET_TDT;
    for (uint32_t i = 0; i < config->duration_count && i < BERTH_PARAKEET_DURATIONS_MAX; i++) {
        args.durations[i] = (int32_t)config->durations[i];
    }
    fill_weights(&args, weights);
    fill_state(&args, &places, call->state);
    args.projected = (const uint16_t *)call->projected;
    args.frames_used = counts->frames;
    args.stop = call->stop;
    args.out = call->tokens;
    const cudaError_t error = cudaMemsetAsync(call->state, 0, places.zeroed, device->stream);
    berth_parakeet_cuda_fail(device, "decode: state", error);
    launch_transducer(device, config, &args);
    return true;
}

static bool fits(struct berth_parakeet_device *device, const struct berth_parakeet_config *config,
                 const struct berth_parakeet_shape *shape)
{
    const bool ctc = config->head == BERTH_PARAKEET_CTC;
    const uint32_t length = ctc ? config->hidden : config->prediction;
    if (length == 0 || length % 8 != 0) {
        berth_parakeet_cuda_refuse(device, "decode: size that is not a multiple of 8",
                                   (long)length);
        return false;
    }
    if (!ctc && shape->rows > ROWS_MAX) {
        berth_parakeet_cuda_refuse(device, "decode: rows", (long)shape->rows);
        return false;
    }
    return true;
}

static size_t place(size_t *at, size_t bytes)
{
    const size_t here = *at;
    *at += (bytes + 255) / 256 * 256;
    return here;
}

static struct state_places places_of(const struct berth_parakeet_config *config,
                                     const struct berth_parakeet_shape *shape)
{
    struct state_places places = {};
    const size_t rows = shape->rows;
    if (config->head == BERTH_PARAKEET_CTC) {
        const size_t frames = rows * shape->padded.frames;
        places.best_token = place(&places.bytes, frames * sizeof(int32_t));
        places.best_probability = place(&places.bytes, frames * sizeof(float));
        return places;
    }
    const size_t vectors = rows * config->prediction_layers;
    const size_t tiles = (config->vocabulary + config->duration_count + TILE - 1) / TILE;
    places.arrived = place(&places.bytes, sizeof(uint32_t));
    places.keys = place(&places.bytes, KEYS * rows * 2 * sizeof(key64));
    places.cell = place(&places.bytes, vectors * config->prediction * sizeof(float));
    places.hidden = place(&places.bytes, vectors * 2 * config->prediction * sizeof(uint16_t));
    places.zeroed = places.bytes;
    places.predicted = place(&places.bytes, rows * config->prediction * sizeof(uint16_t));
    places.sums = place(&places.bytes, 2 * rows * tiles * sizeof(float2));
    return places;
}

static void fill_weights(struct decode_args *args, const struct berth_parakeet_weights *weights)
{
    for (uint32_t i = 0; i < args->layers && i < BERTH_PARAKEET_PREDICTION_LAYERS_MAX; i++) {
        args->lstm[i].input = (const uint16_t *)weights->lstm[i].input.weight;
        args->lstm[i].state = (const uint16_t *)weights->lstm[i].state.weight;
        args->lstm[i].bias = weights->lstm[i].bias;
    }
    args->embedding = (const uint16_t *)weights->embedding;
    args->out_weight = (const uint16_t *)weights->prediction_out.weight;
    args->out_bias = (const uint16_t *)weights->prediction_out.bias;
    args->head_weight = (const uint16_t *)weights->head.weight;
    args->head_bias = (const uint16_t *)weights->head.bias;
}

static void fill_state(struct decode_args *args, const struct state_places *places, void *state)
{
    char *base = (char *)state;
    args->arrived = (uint32_t *)(base + places->arrived);
    args->keys = (key64 *)(base + places->keys);
    args->cell = (float *)(base + places->cell);
    args->hidden = (uint16_t *)(base + places->hidden);
    args->predicted = (uint16_t *)(base + places->predicted);
    args->sums = (float2 *)(base + places->sums);
}

/* Shared memory for the warps' parts of a product of `columns`. */
static size_t part_bytes(uint32_t columns)
{
    return (size_t)WARPS * TILES_AT_ONCE * columns * PART_STRIDE * sizeof(float);
}

/* As many blocks as there are tiles of an LSTM layer, at most one an SM. */
static void launch_transducer(struct berth_parakeet_device *device,
                              const struct berth_parakeet_config *config,
                              struct decode_args *args)
{
    const uint32_t columns = args->rows <= 8 ? 8 : args->rows <= 16 ? 16 : args->rows <= 32 ? 32
                                                                                        : CHUNK;
    const size_t shared = part_bytes(columns);
    cudaError_t error = cudaFuncSetAttribute(
        transduce, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)part_bytes(CHUNK));
    int blocks_an_sm = 0;
    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_an_sm, transduce, THREADS,
                                                              shared);
    }
    if (error != cudaSuccess || blocks_an_sm < 1) {
        berth_parakeet_cuda_fail(device, "decode: a block does not fit",
                                 error != cudaSuccess ? error : cudaErrorLaunchOutOfResources);
        return;
    }
    uint32_t blocks = (config->prediction + UNITS - 1) / UNITS;
    if (blocks > (uint32_t)device->sm_count) {
        blocks = (uint32_t)device->sm_count;
    }
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(blocks);
    launch.blockDim = dim3(THREADS);
    launch.dynamicSmemBytes = shared;
    launch.stream = device->stream;
    launch.attrs = &attribute;
    launch.numAttrs = 1;
    void *values[] = {args};
    error = cudaLaunchKernelExC(&launch, (const void *)transduce, values);
    berth_parakeet_cuda_fail(device, "decode: transducer", error);
}

static void launch_ctc(struct berth_parakeet_device *device, struct ctc_args *args)
{
    void *values[] = {args};
    struct berth_parakeet_cuda_launch launch = {};
    launch.name = "decode: ctc frames";
    launch.kernel = (const void *)ctc_frames;
    launch.grid = dim3((args->frames + CTC_FRAMES - 1) / CTC_FRAMES, args->rows);
    launch.block = dim3(THREADS);
    launch.shared_bytes = part_bytes(CTC_FRAMES);
    berth_parakeet_cuda_run(device, &launch, values);

    launch.name = "decode: ctc collapse";
    launch.kernel = (const void *)ctc_collapse;
    launch.grid = dim3(args->rows);
    launch.block = dim3(32);
    launch.shared_bytes = 0;
    berth_parakeet_cuda_run(device, &launch, values);
}

/* ---- small things ---- */

static __device__ __forceinline__ float from_bf16(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* relu(a + b) of two pairs, rounded once. */
static __device__ __forceinline__ uint32_t relu_sum(uint32_t a, uint32_t b)
{
    const float2 x = unpack2(a), y = unpack2(b);
    return pack2(fmaxf(x.x + y.x, 0.0f), fmaxf(x.y + y.y, 0.0f));
}

/* Right to about 1e-7, for any x: e^2x may be infinite, and the quotient is 0 then. */
static __device__ __forceinline__ float tanh_fast(float x)
{
    return 1.0f - __fdividef(2.0f, 1.0f + __expf(fminf(2.0f * x, 80.0f)));
}

static __device__ __forceinline__ float sigmoid_fast(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(fminf(-x, 80.0f)));
}

/* A key is the greater the higher the logit, and at equal logits the lower the index; never 0. What
 * is no number is the least. */
static __device__ __forceinline__ key64 key_of(float logit, uint32_t index)
{
    const float value = logit == logit ? logit + 0.0f : -INFINITY;
    const uint32_t bits = __float_as_uint(value);
    const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return ((key64)ordered << 32) | (0xffffffffu - index);
}

static __device__ __forceinline__ uint32_t key_index(key64 key)
{
    return 0xffffffffu - (uint32_t)key;
}

static __device__ __forceinline__ float key_logit(key64 key)
{
    const uint32_t ordered = (uint32_t)(key >> 32);
    return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

/* All blocks of the grid, all threads: what any of them wrote before, all may read after (past L1:
 * with __ldcg). target: what arrived must reach, counted by each thread. The barrier of the block
 * before makes its writes happen before the release, which is cumulative; the one after makes the
 * acquire happen before its reads. */
static __device__ __forceinline__ void grid_barrier(uint32_t *arrived, uint32_t *target)
{
    *target += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t seen;
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(arrived) : "memory");
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(arrived)
                         : "memory");
        } while ((int32_t)(seen - *target) < 0);
    }
    __syncthreads();
}

/* d += a b, 16 x 8 x 16. Not volatile: it does nothing but its result. */
static __device__ __forceinline__ void multiply_add(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                                    uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* ---- products ---- */

#define NO_ROW 0xffffffffu

/* Parts of a product: TILES_AT_ONCE tiles of outputs, 8 NT columns; this warp's eighth of the sum.
 * weight_at[tile][2]: where in weight[] the lane's rows lane / 4 and lane / 4 + 8 of each tile
 * begin; NO_ROW: none. in_at[source][j]: where in in[] column 8 j + lane / 4 begins. Steps of the
 * sum (32 elements, of which the lane has eight) go round the warps; U of them are loaded before
 * the first is used. parts: [WARPS][TILES_AT_ONCE][8 NT][PART_STRIDE]. */
template <enum product_kind KIND, int NT>
static __device__ __forceinline__ void
multiply(const struct product &product, const uint32_t (&weight_at)[TILES_AT_ONCE][2],
         const uint32_t (&in_at)[KIND == PLAIN ? 1 : 2][NT], float *parts)
{
    constexpr int U = NT == 1 ? 5 : NT == 2 ? 3 : NT == 4 ? 2 : 1;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t half_steps = (product.length + 31) / 32;
    const uint32_t steps = KIND == CONCATENATED ? 2 * half_steps : half_steps;
    float sums[TILES_AT_ONCE][NT][4] = {};
    for (uint32_t first = warp; first < steps; first += WARPS * U) {
        uint4 a[U][TILES_AT_ONCE][2], b[U][NT];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const uint32_t step = first + (uint32_t)u * WARPS;
            const bool second = KIND == CONCATENATED && step >= half_steps;
            const uint32_t k = (second ? step - half_steps : step) * 32 + (lane & 3) * 8;
            const bool inside = step < steps && k < product.length;
            const uint16_t *weight = second ? product.weight[1] : product.weight[0];
            const uint16_t *in = second ? product.in[1] : product.in[0];
#pragma unroll
            for (int tile = 0; tile < TILES_AT_ONCE; tile++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t at = weight_at[tile][i];
                    a[u][tile][i] = make_uint4(0, 0, 0, 0);
                    if (inside && at != NO_ROW) {
                        a[u][tile][i] = __ldg((const uint4 *)(weight + at + k));
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < NT; j++) {
                b[u][j] = make_uint4(0, 0, 0, 0);
                if (inside) {
                    const uint32_t at = second ? in_at[KIND == PLAIN ? 0 : 1][j] : in_at[0][j];
                    b[u][j] = __ldcg((const uint4 *)(in + at + k));
                    if (KIND == SUM_OF_TWO) {
                        const uint32_t other = in_at[KIND == PLAIN ? 0 : 1][j];
                        const uint4 c = __ldcg((const uint4 *)(product.in[1] + other + k));
                        b[u][j] = make_uint4(relu_sum(b[u][j].x, c.x), relu_sum(b[u][j].y, c.y),
                                             relu_sum(b[u][j].z, c.z), relu_sum(b[u][j].w, c.w));
                    }
                }
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int tile = 0; tile < TILES_AT_ONCE; tile++) {
                const uint4 low = a[u][tile][0], high = a[u][tile][1];
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    multiply_add(sums[tile][j], low.x, high.x, low.y, high.y, b[u][j].x, b[u][j].y);
                    multiply_add(sums[tile][j], low.z, high.z, low.w, high.w, b[u][j].z, b[u][j].w);
                }
            }
        }
    }
    const uint32_t output = lane >> 2, column = (lane & 3) * 2;
#pragma unroll
    for (int tile = 0; tile < TILES_AT_ONCE; tile++) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            float *to = parts + ((warp * TILES_AT_ONCE + tile) * (NT * 8) + j * 8 + column) *
                                    PART_STRIDE +
                        output;
            to[0] = sums[tile][j][0];
            to[PART_STRIDE] = sums[tile][j][1];
            to[8] = sums[tile][j][2];
            to[PART_STRIDE + 8] = sums[tile][j][3];
        }
    }
}

/* Outputs 4 quarter .. 4 quarter + 3 of a tile's column, parts added in the order of the warps. */
template <int NT>
static __device__ __forceinline__ float4 add_parts(const float *parts, uint32_t tile,
                                                   uint32_t column, uint32_t quarter)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (uint32_t warp = 0; warp < WARPS; warp++) {
        const float4 part = *(const float4 *)(parts +
                                              ((warp * TILES_AT_ONCE + tile) * (NT * 8) + column) *
                                                  PART_STRIDE +
                                              quarter * 4);
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
    }
    return sum;
}

/* What thread i of a pass works on after the product: four outputs of one column of one tile. Four
 * lanes side by side have a column; all lanes of a warp exist or none. */
struct item {
    bool exists; /* within the pass; else the rest is not to be used */
    uint32_t tile, column, quarter;
};

template <int NT> static __device__ __forceinline__ struct item item_of(uint32_t index)
{
    struct item item;
    item.exists = index < TILES_AT_ONCE * NT * 32;
    item.tile = index / (NT * 32);
    item.column = index / 4 % (NT * 8);
    item.quarter = index % 4;
    return item;
}

#define ITEMS(NT) ((TILES_AT_ONCE * (NT)*32 + THREADS - 1) / THREADS) /* of a thread */

/* Row of column `column` of a chunk; past the list's end the first of the chunk, so that loads are
 * within memory; nobody uses what comes of it. */
static __device__ __forceinline__ uint32_t row_at(const int32_t *list, uint32_t first,
                                                  uint32_t count, uint32_t column)
{
    return (uint32_t)list[first + column < count ? first + column : first];
}

/* One LSTM layer for rows list[first] .. of a chunk of at most 8 NT, this block's units. Reads 16 P
 * bytes a unit of weights, 4 P a row of inputs. */
template <int NT>
static __device__ __noinline__ void lstm_chunk(const struct decode_args &args,
                                               const struct row_states &rows, uint32_t layer,
                                               uint32_t first, float *parts)
{
    const uint32_t P = args.prediction, lane = threadIdx.x & 31, count = (uint32_t)rows.lstm_count;
    const uint32_t tiles = (P + UNITS - 1) / UNITS;
    struct product product = {};
    product.weight[0] = args.lstm[layer].input;
    product.weight[1] = args.lstm[layer].state;
    product.in[0] = layer == 0 ? args.embedding : args.hidden;
    product.in[1] = args.hidden;
    product.length = P;
    uint32_t in_at[2][NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const uint32_t row = row_at(rows.lstm, first, count, (uint32_t)j * 8 + lane / 4);
        const uint32_t now = (uint32_t)rows.parity[row], next = now ^ 1u;
        in_at[0][j] = layer == 0 ? (uint32_t)rows.token[row] * P
                                 : (((layer - 1) * 2 + next) * args.rows + row) * P;
        in_at[1][j] = ((layer * 2 + now) * args.rows + row) * P;
    }
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += TILES_AT_ONCE * gridDim.x) {
        uint32_t weight_at[TILES_AT_ONCE][2];
#pragma unroll
        for (uint32_t i = 0; i < TILES_AT_ONCE * 2; i++) {
            /* Output 4 j + gate of a tile is that gate of its unit j. */
            const uint32_t output = lane / 4 + 8 * (i & 1);
            const uint32_t unit = (tile + i / 2 * gridDim.x) * UNITS + output / 4;
            weight_at[i / 2][i & 1] = unit < P ? (output % 4 * P + unit) * P : NO_ROW;
        }
        /* Before the product, so that they are here when it is done. */
        float cell[ITEMS(NT)];
        float4 bias[ITEMS(NT)];
#pragma unroll
        for (int i = 0; i < ITEMS(NT); i++) {
            const struct item item = item_of<NT>(threadIdx.x + (uint32_t)i * THREADS);
            const uint32_t unit = (tile + item.tile * gridDim.x) * UNITS + item.quarter;
            cell[i] = 0.0f;
            bias[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (item.exists && unit < P && first + item.column < count) {
                const uint32_t row = (uint32_t)rows.lstm[first + item.column];
                const float *from = args.lstm[layer].bias + unit;
                cell[i] = __ldcg(&args.cell[(layer * args.rows + row) * P + unit]);
                bias[i] = make_float4(__ldg(from), __ldg(from + P), __ldg(from + 2 * P),
                                      __ldg(from + 3 * P));
            }
        }
        multiply<CONCATENATED, NT>(product, weight_at, in_at, parts);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS(NT); i++) {
            const struct item item = item_of<NT>(threadIdx.x + (uint32_t)i * THREADS);
            const uint32_t unit = (tile + item.tile * gridDim.x) * UNITS + item.quarter;
            if (item.exists && unit < P && first + item.column < count) {
                const uint32_t row = (uint32_t)rows.lstm[first + item.column];
                const uint32_t next = (uint32_t)rows.parity[row] ^ 1u;
                const float4 gates = add_parts<NT>(parts, item.tile, item.column, item.quarter);
                const float c = sigmoid_fast(gates.y + bias[i].y) * cell[i] +
                                sigmoid_fast(gates.x + bias[i].x) * tanh_fast(gates.z + bias[i].z);
                const float h = sigmoid_fast(gates.w + bias[i].w) * tanh_fast(c);
                __stcg(&args.cell[(layer * args.rows + row) * P + unit], c);
                args.hidden[((layer * 2 + next) * args.rows + row) * P + unit] =
                    __bfloat16_as_ushort(__float2bfloat16_rn(h));
            }
        }
        __syncthreads(); /* parts are written again */
    }
}

/* The prediction's last matrix, of the newest state of the last layer, for a chunk. */
template <int NT>
static __device__ __noinline__ void predict_chunk(const struct decode_args &args,
                                                  const struct row_states &rows, uint32_t first,
                                                  float *parts)
{
    const uint32_t P = args.prediction, lane = threadIdx.x & 31, count = (uint32_t)rows.lstm_count;
    const uint32_t tiles = (P + TILE - 1) / TILE;
    struct product product = {};
    product.weight[0] = args.out_weight;
    product.in[0] = args.hidden;
    product.length = P;
    uint32_t in_at[1][NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const uint32_t row = row_at(rows.lstm, first, count, (uint32_t)j * 8 + lane / 4);
        const uint32_t next = (uint32_t)rows.parity[row] ^ 1u;
        in_at[0][j] = (((args.layers - 1) * 2 + next) * args.rows + row) * P;
    }
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += TILES_AT_ONCE * gridDim.x) {
        uint32_t weight_at[TILES_AT_ONCE][2];
#pragma unroll
        for (uint32_t i = 0; i < TILES_AT_ONCE * 2; i++) {
            const uint32_t output = (tile + i / 2 * gridDim.x) * TILE + lane / 4 + 8 * (i & 1);
            weight_at[i / 2][i & 1] = output < P ? output * P : NO_ROW;
        }
        multiply<PLAIN, NT>(product, weight_at, in_at, parts);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS(NT); i++) {
            const struct item item = item_of<NT>(threadIdx.x + (uint32_t)i * THREADS);
            const uint32_t output = (tile + item.tile * gridDim.x) * TILE + item.quarter * 4;
            if (item.exists && output < P && first + item.column < count) {
                const uint32_t row = (uint32_t)rows.lstm[first + item.column];
                float4 sum = add_parts<NT>(parts, item.tile, item.column, item.quarter);
                if (args.out_bias != NULL) {
                    const uint2 bias = __ldg((const uint2 *)(args.out_bias + output));
                    const float2 low = unpack2(bias.x), high = unpack2(bias.y);
                    sum.x += low.x;
                    sum.y += low.y;
                    sum.z += high.x;
                    sum.w += high.y;
                }
                *(uint2 *)(args.predicted + row * P + output) =
                    make_uint2(pack2(sum.x, sum.y), pack2(sum.z, sum.w));
            }
        }
        __syncthreads(); /* parts are written again */
    }
}

/* Best token, best duration and the tokens' sum for softmax among outputs `output` .. + 3 of the
 * four lanes of a column. All lanes of the warp. */
struct best {
    key64 token, duration; /* 0: none among them */
    float2 sum;            /* highest logit of a token, sum of e^(logit - highest) */
};

static __device__ __forceinline__ struct best best_of(const float4 &sum, const uint16_t *bias,
                                                      uint32_t output, uint32_t vocabulary,
                                                      uint32_t outputs)
{
    float logits[4] = {sum.x, sum.y, sum.z, sum.w};
    struct best best = {};
    best.sum.x = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = output + i;
        if (at < outputs && bias != NULL) {
            logits[i] += from_bf16(__ldg(&bias[at]));
        }
        if (at < vocabulary) {
            const key64 key = key_of(logits[i], at);
            best.token = key > best.token ? key : best.token;
        } else if (at < outputs) {
            const key64 key = key_of(logits[i], at - vocabulary);
            best.duration = key > best.duration ? key : best.duration;
        }
    }
#pragma unroll
    for (int offset = 1; offset <= 2; offset *= 2) {
        const key64 token = __shfl_xor_sync(FULL, best.token, offset);
        const key64 duration = __shfl_xor_sync(FULL, best.duration, offset);
        best.token = token > best.token ? token : best.token;
        best.duration = duration > best.duration ? duration : best.duration;
    }
    if (best.token != 0) {
        best.sum.x = key_logit(best.token);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (output + i < vocabulary && logits[i] > -INFINITY) { /* not what is no number */
            best.sum.y += __expf(logits[i] - best.sum.x);
        }
    }
    best.sum.y += __shfl_xor_sync(FULL, best.sum.y, 1);
    best.sum.y += __shfl_xor_sync(FULL, best.sum.y, 2);
    return best;
}

/* The joint for a chunk: this block's tiles of the head; keys: of this step; sums: of this step. */
template <int NT>
static __device__ __noinline__ void joint_chunk(const struct decode_args &args,
                                                const struct row_states &rows, uint32_t first,
                                                key64 *keys, float2 *sums, float *parts)
{
    const uint32_t P = args.prediction, lane = threadIdx.x & 31, count = (uint32_t)rows.joint_count;
    struct product product = {};
    product.weight[0] = args.head_weight;
    product.in[0] = args.projected;
    product.in[1] = args.predicted;
    product.length = P;
    uint32_t in_at[2][NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const uint32_t row = row_at(rows.joint, first, count, (uint32_t)j * 8 + lane / 4);
        in_at[0][j] = (row * args.frames + (uint32_t)rows.frame[row]) * P;
        in_at[1][j] = row * P;
    }
    for (uint32_t tile = blockIdx.x; tile < args.tiles; tile += TILES_AT_ONCE * gridDim.x) {
        uint32_t weight_at[TILES_AT_ONCE][2];
#pragma unroll
        for (uint32_t i = 0; i < TILES_AT_ONCE * 2; i++) {
            const uint32_t output = (tile + i / 2 * gridDim.x) * TILE + lane / 4 + 8 * (i & 1);
            weight_at[i / 2][i & 1] = output < args.outputs ? output * P : NO_ROW;
        }
        multiply<SUM_OF_TWO, NT>(product, weight_at, in_at, parts);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS(NT); i++) {
            const struct item item = item_of<NT>(threadIdx.x + (uint32_t)i * THREADS);
            if (!item.exists) { /* the whole warp */
                continue;
            }
            const uint32_t head_tile = tile + item.tile * gridDim.x;
            const float4 sum = add_parts<NT>(parts, item.tile, item.column, item.quarter);
            const struct best best =
                best_of(sum, args.head_bias, head_tile * TILE + item.quarter * 4, args.vocabulary,
                        args.outputs);
            if (item.quarter == 0 && head_tile < args.tiles && first + item.column < count) {
                const uint32_t row = (uint32_t)rows.joint[first + item.column];
                if (best.token != 0) {
                    atomicMax(&keys[row * 2], best.token);
                }
                if (best.duration != 0) {
                    atomicMax(&keys[row * 2 + 1], best.duration);
                }
                __stcg(&sums[row * args.tiles + head_tile], best.sum);
            }
        }
        __syncthreads(); /* parts are written again */
    }
}

/* Columns as eighths: the narrowest product that holds what is left of the list. */
#define BY_WIDTH(call, left)                                                                       \
    do {                                                                                           \
        if ((left) <= 8) {                                                                         \
            call(1);                                                                               \
        } else if ((left) <= 16) {                                                                 \
            call(2);                                                                               \
        } else if ((left) <= 32) {                                                                 \
            call(4);                                                                               \
        } else {                                                                                   \
            call(8);                                                                               \
        }                                                                                          \
    } while (0)

/* The prediction net for the rows of the list, with a barrier after each layer. */
static __device__ void run_lstm(const struct decode_args &args, struct row_states &rows,
                                float *parts, uint32_t *target)
{
    const uint32_t count = (uint32_t)rows.lstm_count;
    for (uint32_t layer = 0; layer < args.layers; layer++) {
        for (uint32_t first = 0; first < count; first += CHUNK) {
#define LSTM_CHUNK(NT) lstm_chunk<NT>(args, rows, layer, first, parts)
            BY_WIDTH(LSTM_CHUNK, count - first);
#undef LSTM_CHUNK
        }
        grid_barrier(args.arrived, target);
    }
    for (uint32_t first = 0; first < count; first += CHUNK) {
#define PREDICT_CHUNK(NT) predict_chunk<NT>(args, rows, first, parts)
        BY_WIDTH(PREDICT_CHUNK, count - first);
#undef PREDICT_CHUNK
    }
    grid_barrier(args.arrived, target);
    /* Every reader of parity is past the barrier. */
    if (threadIdx.x < count) {
        rows.parity[rows.lstm[threadIdx.x]] ^= 1;
    }
    __syncthreads();
}

static __device__ void run_joint(const struct decode_args &args, const struct row_states &rows,
                                 key64 *keys, float2 *sums, float *parts)
{
    const uint32_t count = (uint32_t)rows.joint_count;
    for (uint32_t first = 0; first < count; first += CHUNK) {
#define JOINT_CHUNK(NT) joint_chunk<NT>(args, rows, first, keys, sums, parts)
        BY_WIDTH(JOINT_CHUNK, count - first);
#undef JOINT_CHUNK
    }
}

/* Lists of the rows that take part in the next joint and LSTM, in the order of rows; every thread
 * says it of its own row. All threads; ends with a barrier. */
static __device__ void make_lists(struct row_states &rows, bool joint, bool lstm)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, before = (1u << lane) - 1u;
    const uint32_t joint_mask = __ballot_sync(FULL, joint), lstm_mask = __ballot_sync(FULL, lstm);
    if (lane == 0) {
        rows.warp_joint[warp] = __popc(joint_mask);
        rows.warp_lstm[warp] = __popc(lstm_mask);
    }
    __syncthreads();
    int32_t joint_at = __popc(joint_mask & before), lstm_at = __popc(lstm_mask & before);
    int32_t joint_count = 0, lstm_count = 0;
#pragma unroll
    for (uint32_t i = 0; i < WARPS; i++) {
        joint_at += i < warp ? rows.warp_joint[i] : 0;
        lstm_at += i < warp ? rows.warp_lstm[i] : 0;
        joint_count += rows.warp_joint[i];
        lstm_count += rows.warp_lstm[i];
    }
    if (joint) {
        rows.joint[joint_at] = (int32_t)threadIdx.x;
    }
    if (lstm) {
        rows.lstm[lstm_at] = (int32_t)threadIdx.x;
    }
    if (threadIdx.x == 0) {
        rows.joint_count = joint_count;
        rows.lstm_count = lstm_count;
    }
    __syncthreads();
}

/* Rows belong to the blocks from the last down: those have no tile of a small head, and time for
 * a row's probability while the others are at the next joint. */
static __device__ __forceinline__ bool owns(uint32_t row)
{
    return row % gridDim.x == gridDim.x - 1 - blockIdx.x;
}

/* 1 / sum, of a sum of at least 1 that is a number; else 0. */
static __device__ __forceinline__ float probability_of(float sum)
{
    return sum > 0.5f ? fminf(1.0f / sum, 1.0f) : 0.0f;
}

/* Frames a row moves on by after `token`, with its symbols at the frame counted. */
static __device__ __forceinline__ int32_t advance_of(const struct decode_args &args, int32_t token,
                                                     uint32_t duration, int32_t *symbols)
{
    int32_t advance = args.tdt ? args.durations[duration % BERTH_PARAKEET_DURATIONS_MAX] : 0;
    if (token == args.blank) {
        *symbols = 0;
        return args.tdt && advance > 0 ? advance : 1;
    }
    *symbols = advance == 0 ? *symbols + 1 : 0;
    if (*symbols >= (int32_t)args.symbols_max) {
        *symbols = 0;
        advance = 1;
    }
    return advance;
}

/* What thread r's row r makes of its keys: it stops, moves on, emits. True: it emitted, and goes on.
 * Only the block that owns the row writes the answer. */
static __device__ bool decide(const struct decode_args &args, struct row_states &rows,
                              const key64 *keys)
{
    const uint32_t r = threadIdx.x;
    const key64 token_key = __ldcg(&keys[r * 2]), duration_key = __ldcg(&keys[r * 2 + 1]);
    if (token_key == STOP_KEY) {
        rows.live[r] = false;
        return false;
    }
    rows.steps[r]++;
    const int32_t token = token_key != 0 ? (int32_t)key_index(token_key) : args.blank;
    const uint32_t duration = duration_key != 0 ? key_index(duration_key) : 0;
    const int32_t frame = rows.frame[r], count = rows.count[r];
    const int32_t advance = advance_of(args, token, duration, &rows.symbols[r]);
    const bool emits = token != args.blank;
    if (emits && count >= (int32_t)args.capacity) {
        rows.live[r] = false;
        return false;
    }
    if (emits) {
        rows.count[r] = count + 1;
        rows.token[r] = token;
        rows.place[r] = count;
        rows.logit[r] = key_logit(token_key);
        if (owns(r)) {
            const size_t at = (size_t)r * args.out.capacity + (size_t)count;
            args.out.token[at] = token;
            args.out.frame[at] = frame;
            args.out.duration[at] = advance;
        }
    }
    const int32_t left = rows.frames[r] - frame;
    rows.frame[r] = advance < left ? frame + advance : rows.frames[r];
    rows.live[r] = advance < left;
    return emits && rows.live[r];
}

/* Softmax probabilities of the tokens that this block's rows emitted: a warp a row, lanes in turn
 * over the tiles, and then over the lanes. */
static __device__ void write_probabilities(const struct decode_args &args,
                                           const struct row_states &rows, const float2 *sums)
{
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t block = gridDim.x - 1 - blockIdx.x;
    for (uint32_t r = block + (threadIdx.x >> 5) * gridDim.x; r < args.rows;
         r += WARPS * gridDim.x) {
        if (rows.place[r] < 0) { /* the whole warp */
            continue;
        }
        float sum = 0.0f;
        for (uint32_t tile = lane; tile < args.tiles; tile += 32) {
            const float2 part = __ldcg(&sums[r * args.tiles + tile]);
            sum += part.y * __expf(part.x - rows.logit[r]);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            args.out.probability[(size_t)r * args.out.capacity + (size_t)rows.place[r]] =
                probability_of(sum);
        }
    }
}

/* Every row's state at the start: the prediction net is to see the blank. */
static __device__ void begin_rows(const struct decode_args &args, struct row_states &rows)
{
    const uint32_t r = threadIdx.x;
    bool live = false;
    if (r < args.rows) {
        const int32_t frames = min(args.frames_used[r], (int32_t)args.frames);
        live = frames > 0;
        rows.frame[r] = 0;
        rows.frames[r] = frames;
        rows.count[r] = 0;
        rows.symbols[r] = 0;
        rows.steps[r] = 0;
        rows.token[r] = args.blank;
        rows.parity[r] = 0;
        rows.place[r] = -1;
        rows.logit[r] = 0.0f;
        rows.live[r] = live;
    }
    make_lists(rows, live, live);
}

/* The last block's last threads ask the host whether rows are to stop. An answer takes a
 * microsecond or two to come, so it is used in the next step, and the first question is put before
 * the first step: a row stopped before emits nothing. Row r belongs to thread THREADS - 1 - r: far
 * from thread 0, which fences at the barrier and would wait for it. keys: of this step; NULL: none
 * yet. *heard: what the last question brought. */
static __device__ __forceinline__ void ask_host(const struct decode_args &args, key64 *keys,
                                                uint32_t *heard)
{
    const uint32_t r = THREADS - 1 - threadIdx.x;
    if (blockIdx.x != gridDim.x - 1 || r >= args.rows) {
        return;
    }
    if (keys != NULL && *heard != 0) {
        atomicMax(&keys[r * 2], STOP_KEY);
    }
    *heard = args.stop[r];
}

/* The whole decoding of a bucket. 256 threads a block, cooperative; dynamic shared memory: parts
 * (part_bytes). Sets of keys: step s collects in set s % 3 and clears set (s + 1) % 3, which was
 * last read after the barrier of step s - 2, by blocks that have all reached that of s - 1 since.
 * Likewise sums, of two sets: the one of step s is written again in step s + 2, when all blocks
 * have been at the barrier of step s + 1. */
static __global__ void __launch_bounds__(THREADS, 1)
    transduce(const __grid_constant__ struct decode_args args)
{
    extern __shared__ __align__(16) float parts[];
    __shared__ struct row_states rows;
    const uint32_t r = threadIdx.x;
    uint32_t target = 0, heard = 0;
    berth_parakeet_cuda_wait();
    begin_rows(args, rows);
    ask_host(args, NULL, &heard);
    if (rows.lstm_count > 0) {
        run_lstm(args, rows, parts, &target);
    }
    for (uint32_t step = 0; step < args.steps_max && rows.joint_count > 0; step++) {
        key64 *keys = args.keys + (size_t)(step % KEYS) * args.rows * 2;
        float2 *sums = args.sums + (size_t)(step % 2) * args.rows * args.tiles;
        ask_host(args, keys, &heard);
        if (blockIdx.x == 0) {
            key64 *next = args.keys + (size_t)((step + 1) % KEYS) * args.rows * 2;
            for (uint32_t i = threadIdx.x; i < args.rows * 2; i += THREADS) {
                next[i] = 0;
            }
        }
        run_joint(args, rows, keys, sums, parts);
        grid_barrier(args.arrived, &target);
        bool emitted = false;
        if (r < args.rows) {
            rows.place[r] = -1;
            if (rows.live[r]) {
                emitted = decide(args, rows, keys);
            }
        }
        make_lists(rows, r < args.rows && rows.live[r], emitted);
        if (rows.lstm_count > 0) {
            run_lstm(args, rows, parts, &target);
        }
        write_probabilities(args, rows, sums);
    }
    if (r < args.rows && owns(r)) {
        args.out.count[r] = rows.count[r];
        args.out.steps[r] = rows.steps[r];
    }
}

/* ---- CTC ---- */

/* Best token and its probability of 32 frames of a row; grid (frames / 32, rows). The head is read
 * once a block (from L2), two tiles at a time; each quad of lanes keeps the best of what it saw. */
static __global__ void __launch_bounds__(THREADS)
    ctc_frames(const __grid_constant__ struct ctc_args args)
{
    constexpr int NT = CTC_FRAMES / 8;
    extern __shared__ __align__(16) float parts[];
    __shared__ struct best seen[TILES_AT_ONCE][CTC_FRAMES];
    berth_parakeet_cuda_wait();
    const uint32_t lane = threadIdx.x & 31, row = blockIdx.y, begin = blockIdx.x * CTC_FRAMES;
    const int32_t used = min(args.frames_used[row], (int32_t)args.frames);
    if ((int32_t)begin >= used) { /* the whole block */
        return;
    }
    struct product product = {};
    product.weight[0] = args.head_weight;
    product.in[0] = args.encoded + (size_t)row * args.frames * args.hidden;
    product.length = args.hidden;
    uint32_t in_at[1][NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const uint32_t frame = begin + (uint32_t)j * 8 + lane / 4;
        in_at[0][j] = ((int32_t)frame < used ? frame : begin) * args.hidden;
    }
    const struct item item = item_of<NT>(threadIdx.x); /* TILES_AT_ONCE x 32 x 4 are all threads */
    struct best best = {};
    best.sum.x = -INFINITY;
    const uint32_t tiles = (args.vocabulary + TILE - 1) / TILE;
    for (uint32_t tile = 0; tile < tiles; tile += TILES_AT_ONCE) {
        uint32_t weight_at[TILES_AT_ONCE][2];
#pragma unroll
        for (uint32_t i = 0; i < TILES_AT_ONCE * 2; i++) {
            const uint32_t output = (tile + i / 2) * TILE + lane / 4 + 8 * (i & 1);
            weight_at[i / 2][i & 1] = output < args.vocabulary ? output * args.hidden : NO_ROW;
        }
        multiply<PLAIN, NT>(product, weight_at, in_at, parts);
        __syncthreads();
        const uint32_t output = (tile + item.tile) * TILE + item.quarter * 4;
        const float4 sum = add_parts<NT>(parts, item.tile, item.column, item.quarter);
        const struct best now =
            best_of(sum, args.head_bias, output, args.vocabulary, args.vocabulary);
        if (now.token != 0) {
            const float top = fmaxf(best.sum.x, now.sum.x);
            if (top > -INFINITY) {
                best.sum.y = best.sum.y * __expf(best.sum.x - top) +
                             now.sum.y * __expf(now.sum.x - top);
            }
            best.sum.x = top;
            best.token = now.token > best.token ? now.token : best.token;
        }
        __syncthreads(); /* parts are written again */
    }
    if (item.quarter == 0) {
        seen[item.tile][item.column] = best;
    }
    __syncthreads();
    const int32_t frame = (int32_t)(begin + threadIdx.x);
    if (threadIdx.x < CTC_FRAMES && frame < used) {
        const struct best a = seen[0][threadIdx.x], b = seen[1][threadIdx.x];
        const key64 key = a.token > b.token ? a.token : b.token;
        const float top = key_logit(key);
        float sum = a.sum.y * __expf(a.sum.x - top);
        if (b.token != 0) {
            sum += b.sum.y * __expf(b.sum.x - top);
        }
        const size_t at = (size_t)row * args.frames + (size_t)frame;
        args.best_token[at] = (int32_t)key_index(key);
        args.best_probability[at] = probability_of(sum);
    }
}

/* Runs of one token to one token each: a warp a row. Lanes load 32 frames, all lanes walk them. */
static __global__ void __launch_bounds__(32)
    ctc_collapse(const __grid_constant__ struct ctc_args args)
{
    berth_parakeet_cuda_wait();
    const uint32_t lane = threadIdx.x, row = blockIdx.x;
    const int32_t used = min(args.frames_used[row], (int32_t)args.frames);
    const size_t base = (size_t)row * args.frames;
    const int32_t frames = used > 0 && __shfl_sync(FULL, args.stop[row], 0) == 0 ? used : 0;
    int32_t count = 0, run_token = -1, run_begin = 0;
    float run_best = 0.0f;
    for (int32_t begin = 0; begin <= frames; begin += 32) {
        const int32_t mine = begin + (int32_t)lane;
        /* Past the end is a token that ends every run. */
        const int32_t tokens = mine < frames ? __ldcg(&args.best_token[base + (size_t)mine]) : -1;
        const float chances =
            mine < frames ? __ldcg(&args.best_probability[base + (size_t)mine]) : 0.0f;
        for (int32_t i = 0; i < 32 && begin + i <= frames; i++) {
            const int32_t token = __shfl_sync(FULL, tokens, i);
            const float chance = __shfl_sync(FULL, chances, i);
            if (token == run_token) {
                run_best = fmaxf(run_best, chance);
                continue;
            }
            const bool emits = run_token >= 0 && run_token != args.blank;
            if (emits && count < (int32_t)args.capacity) {
                if (lane == 0) {
                    const size_t at = (size_t)row * args.capacity + (size_t)count;
                    args.out.token[at] = run_token;
                    args.out.frame[at] = run_begin;
                    args.out.duration[at] = begin + i - run_begin;
                    args.out.probability[at] = run_best;
                }
                count++;
            }
            run_token = token;
            run_begin = begin + i;
            run_best = chance;
        }
    }
    if (lane == 0) {
        args.out.count[row] = count;
        args.out.steps[row] = frames;
    }
}
