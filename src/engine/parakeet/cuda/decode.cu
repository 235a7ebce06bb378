/* decode.cu - greedy TDT and RNN-T in one cooperative kernel (CTC: decode_ctc.cu).
 *
 * The transducer loop is short products with much weight and few rows, one behind another: joint,
 * then for rows that emitted the LSTM's layers and the prediction's last matrix. One kernel stays
 * on the device for the whole loop: a block an SM, each with its share of every matrix' output
 * units, and a barrier over the grid between two products (four a step that emits, one a step that
 * does not). It is launched cooperatively, so all its blocks are there at once and may wait for one
 * another; nothing else of ours does. Rejected: graph nodes that loop (WHILE), which pay a launch
 * for each product; a block a row, which reads all weights through one SM.
 *
 * Products (product.cuh) read weights once for up to 64 rows; more rows take turns.
 *
 * Decisions: every block holds the state of all rows and makes all decisions for itself, from two
 * numbers a row: the best token and the best duration, found by atomicMax on keys of 64 bits (logit
 * above, index below: the order of arrival does not matter). Whether a row is to stop is read from
 * the host by one block only, a step ahead of its use, and told to the others by the same key, so
 * that all decide alike. Rows that are done or did not emit are left out of the next product.
 *
 * Numbers: half weights, encoder output, hidden states, prediction and relu(encoder + prediction);
 * float32 sums, gates, cell states and logits.
 * CPU reference: cpu_decode.c.
 */
#include <limits.h>

#include "engine/parakeet/cuda/product.cuh"

#define ROWS_MAX THREADS /* a row a thread, where rows have threads */
#define UNITS 4           /* of the LSTM in a tile: with 4 gates each */
#define CHUNK 64          /* rows of one product */
#define KEYS 3            /* sets of keys: one is cleared, one collected, one read */
#define STOP_KEY (~0ull)  /* of no logit: that would be one that is no number */
struct lstm_args {
    const uint16_t *input, *state; /* half [4 P][P] */
    const float *bias;             /* [4 P] */
};

struct decode_args {
    uint32_t rows, frames;   /* of the bucket */
    uint32_t prediction;     /* P; a multiple of 8 */
    uint32_t layers;
    uint32_t tiles; /* of the head */
    uint32_t symbols_max, capacity, steps_max;
    int32_t blank;
    bool tdt;
    int32_t durations[BERTH_PARAKEET_DURATIONS_MAX];
    struct lstm_args lstm[BERTH_PARAKEET_PREDICTION_LAYERS_MAX];
    const uint16_t *embedding;                /* half [vocabulary][P] */
    const uint16_t *out_weight, *out_bias;    /* half [P][P], [P] */
    const uint16_t *head_weight;              /* half [outputs][P] */
    struct head_shape head;
    const uint16_t *projected;                /* half [rows][frames][P] */
    const int32_t *frames_used;               /* [rows] */
    const int32_t *spoiled;                   /* [rows]; NULL: none is */
    const volatile uint32_t *stop;            /* [rows], the host's memory */
    struct berth_parakeet_tokens out;
    /* State, zeroed before the kernel: */
    uint32_t *arrived;  /* blocks at the barrier, ever */
    key64 *keys;        /* [KEYS][rows][2]: token, duration */
    float *cell;        /* [layers][rows][P] */
    uint16_t *hidden;   /* half [layers][2][rows][P]; a row's newest is at its parity */
    /* not zeroed: */
    uint16_t *predicted; /* half [rows][P] */
    float2 *sums;        /* [2][rows][tiles]: of a tile's tokens, as struct best has it */
};

/* Where the parts of the state lie. */
struct state_places {
    size_t arrived, keys, cell, hidden;
    size_t zeroed; /* bytes to clear */
    size_t predicted, sums;
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
static_assert(part_bytes(CHUNK) + sizeof(struct row_states) <= BERTH_PARAKEET_CUDA_SHARED_LEAST,
              "a block fits on every target");

/* Where a step's joint leaves what it finds. */
struct findings {
    key64 *keys;  /* [rows][2] */
    float2 *sums; /* [rows][tiles] */
};

static __global__ void transduce(const __grid_constant__ struct decode_args args);
static struct state_places places_of(const struct berth_parakeet_config *config,
                                     const struct berth_parakeet_shape *shape);
static void launch_transducer(struct berth_parakeet_device *device,
                              const struct berth_parakeet_config *config,
                              struct decode_args *args);
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
    if (config->head == BERTH_PARAKEET_CTC) {
        berth_parakeet_cuda_decode_ctc(device, shape, counts, call);
        return true;
    }
    const struct state_places places = places_of(config, shape);
    struct decode_args args = {};
    args.rows = shape->rows;
    args.frames = shape->padded.frames;
    args.prediction = config->prediction;
    args.layers = config->prediction_layers;
    args.head.vocabulary = config->vocabulary;
    args.head.outputs = config->vocabulary + config->duration_count;
    args.tiles = (args.head.outputs + TILE - 1) / TILE;
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
    fill_weights(&args, call->weights);
    fill_state(&args, &places, call->state);
    args.projected = (const uint16_t *)call->projected;
    args.frames_used = counts->frames;
    args.spoiled = counts->spoiled;
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
    /* Elements are counted in 32 bits; those of weights are, by config.json's limits. */
    if (!ctc && (uint64_t)shape->rows * shape->padded.frames * length > UINT32_MAX) {
        berth_parakeet_cuda_refuse(device, "decode: frames in a run", (long)shape->padded.frames);
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
        (void)place(&places.bytes, rows * shape->padded.frames * 8); /* decode_ctc.cu */
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
    args->head.bias = (const uint16_t *)weights->head.bias;
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

/* ---- small things ---- */

/* Right to about 1e-7, for any x: e^2x may be infinite, and the quotient is 0 then. */
static __device__ __forceinline__ float tanh_fast(float x)
{
    return 1.0f - __fdividef(2.0f, 1.0f + __expf(fminf(2.0f * x, 80.0f)));
}

static __device__ __forceinline__ float sigmoid_fast(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(fminf(-x, 80.0f)));
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

/* ---- the four products of a step ---- */

/* Row of the lane's column 8 j + lane / 4 of a chunk; past the list's end the first of the chunk:
 * loads are within memory then, and nobody uses what comes of it. */
static __device__ __forceinline__ uint32_t row_at(const int32_t *list, uint32_t first,
                                                  uint32_t count, uint32_t j)
{
    const uint32_t at = first + j * 8 + (threadIdx.x & 31) / 4;
    return (uint32_t)list[at < count ? at : first];
}

/* Where a lane's weights of an LSTM layer begin: output 4 j + gate of a tile is that gate of its
 * unit j. */
template <int NT>
static __device__ __forceinline__ void point_at_units(const struct decode_args &args,
                                                      struct lane_rows<NT> *rows, uint32_t tile)
{
    const uint32_t P = args.prediction;
#pragma unroll
    for (uint32_t i = 0; i < TILES_AT_ONCE * 2; i++) {
        const uint32_t output = (threadIdx.x & 31) / 4 + 8 * (i & 1);
        const uint32_t unit = (tile + i / 2 * gridDim.x) * UNITS + output / 4;
        rows->weight[i / 2][i & 1] = unit < P ? (output % 4 * P + unit) * P : NO_ROW;
    }
}

/* A thread's unit of one row, what it needs beside the product, and where it goes. */
struct unit_work {
    bool exists;
    uint32_t cell, hidden; /* places */
    float c;
    float4 bias;
};

static __device__ __forceinline__ struct unit_work unit_of(const struct decode_args &args,
                                                           const struct row_states &rows,
                                                           uint32_t layer, uint32_t unit,
                                                           uint32_t at)
{
    const uint32_t P = args.prediction;
    struct unit_work work = {};
    work.exists = unit < P && at < (uint32_t)rows.lstm_count;
    if (work.exists) {
        const uint32_t row = (uint32_t)rows.lstm[at];
        const uint32_t next = (uint32_t)rows.parity[row] ^ 1u;
        const float *bias = args.lstm[layer].bias + unit;
        work.cell = (layer * args.rows + row) * P + unit;
        work.hidden = ((layer * 2 + next) * args.rows + row) * P + unit;
        work.c = __ldcg(&args.cell[work.cell]);
        work.bias = make_float4(__ldg(bias), __ldg(bias + P), __ldg(bias + 2 * P),
                                __ldg(bias + 3 * P));
    }
    return work;
}

static __device__ __forceinline__ void finish_unit(const struct decode_args &args,
                                                   const struct unit_work &work,
                                                   const float4 &gates)
{
    const float in = sigmoid_fast(gates.x + work.bias.x);
    const float forget = sigmoid_fast(gates.y + work.bias.y);
    const float out = sigmoid_fast(gates.w + work.bias.w);
    const float c = forget * work.c + in * tanh_fast(gates.z + work.bias.z);
    __stcg(&args.cell[work.cell], c);
    args.hidden[work.hidden] = __half_as_ushort(__float2half_rn(out * tanh_fast(c)));
}

/* One LSTM layer for at most 8 NT rows of the list from `first` on, this block's units. Reads 16 P
 * bytes a unit of weights, 4 P a row of inputs. */
template <int NT>
static __device__ __noinline__ void lstm_chunk(const struct decode_args &args,
                                               const struct row_states &rows, uint32_t layer,
                                               uint32_t first, float *parts)
{
    const uint32_t P = args.prediction, tiles = (P + UNITS - 1) / UNITS;
    struct product product = {};
    product.weight[0] = args.lstm[layer].input;
    product.weight[1] = args.lstm[layer].state;
    product.in[0] = layer == 0 ? args.embedding : args.hidden;
    product.in[1] = args.hidden;
    product.length = P;
    struct lane_rows<NT> lane;
#pragma unroll
    for (uint32_t j = 0; j < NT; j++) {
        const uint32_t row = row_at(rows.lstm, first, (uint32_t)rows.lstm_count, j);
        const uint32_t now = (uint32_t)rows.parity[row], next = now ^ 1u;
        lane.in[0][j] = layer == 0 ? (uint32_t)rows.token[row] * P
                                   : (((layer - 1) * 2 + next) * args.rows + row) * P;
        lane.in[1][j] = ((layer * 2 + now) * args.rows + row) * P;
    }
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += TILES_AT_ONCE * gridDim.x) {
        struct unit_work work[ITEMS(NT)]; /* read before the product, to be here when it is done */
        point_at_units<NT>(args, &lane, tile);
#pragma unroll
        for (uint32_t i = 0; i < ITEMS(NT); i++) {
            const struct item item = item_of<NT>(threadIdx.x + i * THREADS);
            const uint32_t unit = (tile + item.tile * gridDim.x) * UNITS + item.quarter;
            work[i] = unit_of(args, rows, layer, item.exists ? unit : P, first + item.column);
        }
        multiply<CONCATENATED, NT>(product, lane, parts);
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < ITEMS(NT); i++) {
            if (work[i].exists) {
                const struct item item = item_of<NT>(threadIdx.x + i * THREADS);
                finish_unit(args, work[i], add_parts<NT>(parts, item));
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
    const uint32_t P = args.prediction, tiles = (P + TILE - 1) / TILE;
    const uint32_t count = (uint32_t)rows.lstm_count;
    struct product product = {};
    product.weight[0] = args.out_weight;
    product.in[0] = args.hidden;
    product.length = P;
    struct lane_rows<NT> lane = {};
#pragma unroll
    for (uint32_t j = 0; j < NT; j++) {
        const uint32_t row = row_at(rows.lstm, first, count, j);
        const uint32_t next = (uint32_t)rows.parity[row] ^ 1u;
        lane.in[0][j] = (((args.layers - 1) * 2 + next) * args.rows + row) * P;
    }
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += TILES_AT_ONCE * gridDim.x) {
        point_at_outputs<NT>(&lane, tile, gridDim.x, P, P);
        multiply<PLAIN, NT>(product, lane, parts);
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < ITEMS(NT); i++) {
            const struct item item = item_of<NT>(threadIdx.x + i * THREADS);
            const uint32_t output = (tile + item.tile * gridDim.x) * TILE + item.quarter * 4;
            if (item.exists && output < P && first + item.column < count) {
                const uint32_t row = (uint32_t)rows.lstm[first + item.column];
                float4 sum = add_parts<NT>(parts, item);
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

/* The joint for a chunk: this block's tiles of the head. */
template <int NT>
static __device__ __noinline__ void joint_chunk(const struct decode_args &args,
                                                const struct row_states &rows, uint32_t first,
                                                struct findings to, float *parts)
{
    const uint32_t P = args.prediction, count = (uint32_t)rows.joint_count;
    struct product product = {};
    product.weight[0] = args.head_weight;
    product.in[0] = args.projected;
    product.in[1] = args.predicted;
    product.length = P;
    struct lane_rows<NT> lane;
#pragma unroll
    for (uint32_t j = 0; j < NT; j++) {
        const uint32_t row = row_at(rows.joint, first, count, j);
        lane.in[0][j] = (row * args.frames + (uint32_t)rows.frame[row]) * P;
        lane.in[1][j] = row * P;
    }
    for (uint32_t tile = blockIdx.x; tile < args.tiles; tile += TILES_AT_ONCE * gridDim.x) {
        point_at_outputs<NT>(&lane, tile, gridDim.x, args.head.outputs, P);
        multiply<SUM_OF_TWO, NT>(product, lane, parts);
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < ITEMS(NT); i++) {
            const struct item item = item_of<NT>(threadIdx.x + i * THREADS);
            if (!item.exists) { /* the whole warp */
                continue;
            }
            const uint32_t head_tile = tile + item.tile * gridDim.x;
            const struct best best = best_of(add_parts<NT>(parts, item),
                                             head_tile * TILE + item.quarter * 4, args.head);
            if (item.quarter == 0 && head_tile < args.tiles && first + item.column < count) {
                const uint32_t row = (uint32_t)rows.joint[first + item.column];
                if (best.token != 0) {
                    atomicMax(&to.keys[row * 2], best.token);
                }
                if (best.duration != 0) {
                    atomicMax(&to.keys[row * 2 + 1], best.duration);
                }
                __stcg(&to.sums[row * args.tiles + head_tile], best.sum);
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
                                 struct findings to, float *parts)
{
    const uint32_t count = (uint32_t)rows.joint_count;
    for (uint32_t first = 0; first < count; first += CHUNK) {
#define JOINT_CHUNK(NT) joint_chunk<NT>(args, rows, first, to, parts)
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

/* What thread r's row r makes of its keys: it stops, moves on, emits; or it is given up, because
 * they are no numbers. True: it emitted, goes on.
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
    if (!key_finite(token_key) || (duration_key != 0 && !key_finite(duration_key))) {
        rows.live[r] = false;
        rows.count[r] = -1; /* whatever it said before */
        return false;
    }
    const int32_t token = (int32_t)key_index(token_key);
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
                1.0f / sum;
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
        const bool spoiled = args.spoiled != NULL && args.spoiled[r] != 0;
        live = frames > 0 && !spoiled;
        rows.frame[r] = 0;
        rows.frames[r] = frames;
        rows.count[r] = frames > 0 && spoiled ? -1 : 0;
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
        struct findings found;
        found.keys = args.keys + (size_t)(step % KEYS) * args.rows * 2;
        found.sums = args.sums + (size_t)(step % 2) * args.rows * args.tiles;
        ask_host(args, found.keys, &heard);
        if (blockIdx.x == 0) {
            key64 *next = args.keys + (size_t)((step + 1) % KEYS) * args.rows * 2;
            for (uint32_t i = threadIdx.x; i < args.rows * 2; i += THREADS) {
                next[i] = 0;
            }
        }
        run_joint(args, rows, found, parts);
        grid_barrier(args.arrived, &target);
        bool emitted = false;
        if (r < args.rows) {
            rows.place[r] = -1;
            if (rows.live[r]) {
                emitted = decide(args, rows, found.keys);
            }
        }
        make_lists(rows, r < args.rows && rows.live[r], emitted);
        if (rows.lstm_count > 0) {
            run_lstm(args, rows, parts, &target);
        }
        write_probabilities(args, rows, found.sums);
    }
    if (r < args.rows && owns(r)) {
        args.out.count[r] = rows.count[r];
        args.out.steps[r] = rows.steps[r];
    }
}
