/* product_sm90.cu - see product_sm90.h: wgmma fed by the bulk copy engine.
 *
 * out [n][out] = in [n][in] x weight [out][in]^T: the vectors are the A side, the weights B, both
 * as they lie, depth first, in slices of 64 halves (128 bytes, swizzled by the copy). A tile is
 * ROWS vectors by COLUMNS outputs. One warp of the first warpgroup asks for slices, WIDE at a time,
 * into a ring of STAGES places; the other warpgroups (takers) multiply them, 64 M rows each. A
 * place has two barriers: full (its bytes are there) and free (all takers are through). Blocks of
 * the grid are at most as many as there are multiprocessors, and each takes its tiles in turn.
 *
 * Takers work on one tile together, or (TURNS) each on a tile of its own: while one multiplies the
 * other has its epilogue, exponentials and all. Halves leave through shared memory and the copy
 * engine; the float32 stream goes from registers, 16 bytes a lane, its residual read ahead.
 *
 * Weights are no kernel's output: the first are asked for before the kernel before this one has
 * ended (kernels.cuh). A sum is one chain along the depth, whatever the tile, and then comes the
 * bias: all variants give the same bits, for a vector in any company.
 * Rejected, on an H200: pairs of blocks to which one copy of weights goes (clusters, multicast),
 * within 2 %; tiles of 128 x 256, whose epilogue nothing hides; the depth split among blocks that
 * add through each other's shared memory, 4 % faster for 126 vectors of 4096 and nowhere else.
 */
#include "engine/parakeet/cuda/product_sm90.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include "engine/parakeet/cuda/hopper.cuh"
#include "engine/parakeet/cuda/product_tiles.h"

#define GROUP 128u             /* threads of a warpgroup */
#define DEPTH BERTH_PARAKEET_CUDA_SLICE /* a slice's row: 128 bytes, the swizzle's width */
#define CHUNK 64u              /* rows and at most outputs that leave in one copy */
#define BATCH 4u               /* times sixteen outputs whose residual is read at once */
#define SHARED_ALIGNMENT 1024u /* the swizzle's period */
#define BARRIER_GROUP 1u       /* named barriers: one of each taker, */
#define BARRIER_TURN 4u        /* and its turn */
#define SHARED_BYTES (227u << 10) /* what a block may have on 9.0 */
#define BARRIERS_BYTES (16u * 16u) /* at most */

/* What becomes of the sums: halves, halves after an activation, scaled and added to the stream. */
enum product90_kind { HALVES90, SILU90, RELU90, STREAM90, KINDS90 };

struct product90_args {
    CUtensorMap in, weight, out; /* out: of halves only */
    const __half *bias;          /* [width]; NULL: none */
    const float *residual;       /* [n][width], of the stream; NULL: none */
    float *stream;               /* [n][width] */
    float scale;                 /* of the stream */
    uint32_t n, width;
    uint32_t blocks; /* WIDE slices each, of the depth */
    uint32_t tiles, tiles_across;
};

/* One shape of tile and how it is worked on. */
template <uint32_t GROUPS_, uint32_t M_, uint32_t COLUMNS_, uint32_t STAGES_, uint32_t WIDE_,
          bool TURNS_>
struct product90_form {
    static const uint32_t groups = GROUPS_; /* takers */
    static const uint32_t m = M_;
    static const uint32_t columns = COLUMNS_;
    static const uint32_t stages = STAGES_;
    static const uint32_t wide = WIDE_;
    static const bool turns = TURNS_;
    static const uint32_t rows = BERTH_PARAKEET_CUDA_TILE_ROWS(groups, m, turns);
    static const uint32_t threads = GROUP * (groups + 1);
    static const uint32_t in_bytes = rows * DEPTH * 2; /* of a slice */
    static const uint32_t weight_bytes = columns * DEPTH * 2;
    static const uint32_t stage_bytes = wide * (in_bytes + weight_bytes);
    static const uint32_t chunk = columns < CHUNK ? columns : CHUNK; /* outputs of one */
    static const uint32_t room_bytes = CHUNK * chunk * 2; /* of a chunk; each taker has two */
    static const uint32_t shared_bytes = SHARED_ALIGNMENT + stages * stage_bytes +
                                         groups * 2 * room_bytes;
    static const bool heavy = m * columns >= 256; /* accumulators: registers move to the takers */
    static_assert(shared_bytes + BARRIERS_BYTES <= SHARED_BYTES && stages <= 16, "a block fits");
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where a block of the depth is: its tile, its place in the ring. */
struct product90_place {
    uint32_t tile, block, stage, parity;
};

/* A taker's output: rows from `row` on, outputs from `column` on. */
struct product90_output {
    const struct product90_args *args;
    uint32_t row, column;
    uint32_t room; /* shared memory of two chunks */
    uint32_t name; /* of the taker's barrier */
};

/* Of a taker: which, and the block's ring. */
struct product90_taker {
    uint32_t taker, ring, full;
    bool first_warp;
};

/* Where a lane's part of the stream is. Of sixteen outputs two neighbouring lanes have two and two
 * of each eight; they exchange, so that the even one has four of the first eight. */
struct product90_stream {
    const float *residual; /* of the lane's first outputs; NULL: none */
    float *to;
    const uint2 *bias; /* NULL: none */
    uint64_t eight;    /* rows on */
    float scale;
    bool odd;
    bool there[4]; /* rows lane / 4, that + 8, + 64, + 72 */
};

static __device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float inverse_of(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two at a time, with one division: e^-x is at most e^40, the product of two no infinity. Of a
 * number below -40 it is below what a half holds; of infinities and what is no number, not one. */
static __device__ __forceinline__ void silu_pair(float *x, float *y)
{
    const float a = 1.0f + power_of_two(-1.44269504f * fmaxf(*x, -40.0f));
    const float b = 1.0f + power_of_two(-1.44269504f * fmaxf(*y, -40.0f));
    const float inverse = inverse_of(a * b);
    *x *= b * inverse;
    *y *= a * inverse;
}

/* Of a taker: chunks of 64 rows in turn through two rooms. sums: of outputs 2 (lane % 4) and next
 * of each eight, of rows lane / 4 and that + 8. `chunk`: how many went before. */
template <class F, int KIND>
static __device__ __forceinline__ void store_halves(const struct product90_output *output,
                                                    float (*sums)[F::columns / 2], uint32_t *chunk)
{
    const uint32_t thread = threadIdx.x % GROUP, lane = threadIdx.x % 32;
    const uint32_t row = thread / 32 * 16 + lane % 16;
    const uint32_t mix = F::chunk == CHUNK ? row & 7 : row >> 1 & 3; /* the swizzle's */
    const struct product90_args *args = output->args;
    const uint32_t *bias = (const uint32_t *)(args->bias + output->column + 2 * (lane % 4));
#pragma unroll
    for (uint32_t m = 0; m < F::m; m++) {
#pragma unroll
        for (uint32_t c = 0; c < F::columns; c += F::chunk) {
            const uint32_t room = output->room + (*chunk & 1) * F::room_bytes;
            uint32_t halves[F::chunk / 4];
            float2 add[F::chunk / 8];
#pragma unroll
            for (uint32_t j = 0; j < F::chunk / 8; j++) {
                add[j] = unpack2(args->bias == NULL ? 0 : __ldg(bias + (c + 8 * j) / 2));
            }
#pragma unroll
            for (uint32_t i = 0; i < F::chunk / 4; i++) {
                float *pair = &sums[m][c / 2 + 2 * i];
                pair[0] += add[i / 2].x;
                pair[1] += add[i / 2].y;
                if (KIND == SILU90) {
                    silu_pair(&pair[0], &pair[1]);
                } else if (KIND == RELU90) {
                    pair[0] = fmaxf(pair[0], 0.0f);
                    pair[1] = fmaxf(pair[1], 0.0f);
                }
                halves[i] = pack2(pair[0], pair[1]);
            }
            if (thread == 0) { /* the room's last copy has been read */
                copy_out_wait<1>();
            }
            named_sync(output->name, GROUP);
#pragma unroll
            for (uint32_t j = 0; j < F::chunk / 8; j += 2) {
                store_matrices(room + row * F::chunk * 2 + (((j + lane / 16) ^ mix) << 4),
                               &halves[2 * j]);
            }
            copy_fence();
            named_sync(output->name, GROUP);
            if (thread == 0) {
                copy_out(&args->out, output->column + c, output->row + 64 * m, room);
            }
            (*chunk)++;
        }
    }
}

template <class F>
static __device__ __forceinline__ void stream_load(const struct product90_stream *stream,
                                                   uint32_t at, float4 *to)
{
#pragma unroll
    for (uint32_t i = 0; i < 2 * BATCH; i++) {
        const uint32_t m = (at + i / 2) / (F::columns / 16), j = (at + i / 2) % (F::columns / 16);
        to[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (m < F::m && stream->there[2 * m + i % 2] && stream->residual != NULL) {
            to[i] = *(const float4 *)(stream->residual + (8 * m + i % 2) * stream->eight + 16 * j);
        }
    }
}

template <class F>
static __device__ __forceinline__ void stream_store(const struct product90_stream *stream,
                                                    uint32_t at, float (*sums)[F::columns / 2],
                                                    const float4 *residual)
{
#pragma unroll
    for (uint32_t i = 0; i < 2 * BATCH; i++) {
        const uint32_t m = (at + i / 2) / (F::columns / 16), j = (at + i / 2) % (F::columns / 16);
        if (m >= F::m) {
            continue;
        }
        const float *from = &sums[m][8 * j + 2 * (i & 1)];
        const bool odd = stream->odd;
        const float x = __shfl_xor_sync(0xffffffffu, odd ? from[0] : from[4], 1);
        const float y = __shfl_xor_sync(0xffffffffu, odd ? from[1] : from[5], 1);
        const uint2 bias = stream->bias == NULL ? make_uint2(0, 0)
                                                : __ldg(stream->bias + 16 * j / 4);
        const float2 low = unpack2(bias.x), high = unpack2(bias.y);
        const float4 add = residual[i];
        const float4 sum = make_float4(add.x + stream->scale * ((odd ? x : from[0]) + low.x),
                                       add.y + stream->scale * ((odd ? y : from[1]) + low.y),
                                       add.z + stream->scale * ((odd ? from[4] : x) + high.x),
                                       add.w + stream->scale * ((odd ? from[5] : y) + high.y));
        if (stream->there[2 * m + i % 2]) {
            *(float4 *)(stream->to + (8 * m + i % 2) * stream->eight + 16 * j) = sum;
        }
    }
}

static __device__ __forceinline__ struct product90_stream stream_of(
    const struct product90_output *output)
{
    const struct product90_args *args = output->args;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = output->row + threadIdx.x % GROUP / 32 * 16 + lane / 4;
    struct product90_stream stream = {};
    stream.odd = (lane & 1) != 0;
    const uint32_t column = output->column + (stream.odd ? 8 : 0) + 2 * (lane & 2);
    const uint64_t at = (uint64_t)row * args->width + column;
    stream.bias = args->bias == NULL ? NULL : (const uint2 *)(args->bias + column);
    stream.residual = args->residual == NULL ? NULL : args->residual + at;
    stream.to = args->stream + at;
    stream.eight = (uint64_t)8 * args->width;
    stream.scale = args->scale;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        stream.there[i] = row + 64 * (i / 2) + 8 * (i % 2) < args->n;
    }
    return stream;
}

/* stream = residual + scale x (sums + bias); the next residual is read before this one's is used.
 * first: the first, which was read before the products. */
template <class F>
static __device__ __forceinline__ void store_stream(const struct product90_stream *stream,
                                                    const float4 *first,
                                                    float (*sums)[F::columns / 2])
{
    const uint32_t sixteens = F::m * F::columns / 16;
    float4 residual[2][2 * BATCH];
#pragma unroll
    for (uint32_t i = 0; i < 2 * BATCH; i++) {
        residual[0][i] = first[i];
    }
#pragma unroll
    for (uint32_t i = 0; i < sixteens; i += BATCH) {
        if (i + BATCH < sixteens) {
            stream_load<F>(stream, i + BATCH, residual[(i / BATCH + 1) % 2]);
        }
        stream_store<F>(stream, i, sums, residual[i / BATCH % 2]);
    }
}

template <class F>
static __device__ __forceinline__ void place_next(struct product90_place *place,
                                                  const struct product90_args *args)
{
    place->block++;
    if (place->block == args->blocks) {
        place->block = 0;
        place->tile += gridDim.x;
    }
    place->stage++;
    if (place->stage == F::stages) {
        place->stage = 0;
        place->parity ^= 1;
    }
}

template <class F>
static __device__ __forceinline__ void ask_weight(const struct product90_args *args,
                                                  const struct product90_place *place,
                                                  uint32_t ring, uint32_t full)
{
    const uint32_t to = ring + place->stage * F::stage_bytes + F::wide * F::in_bytes;
    const uint32_t column = place->tile % args->tiles_across * F::columns;
    barrier_expect(full + 8 * place->stage, F::stage_bytes);
#pragma unroll
    for (uint32_t w = 0; w < F::wide; w++) {
        copy_in(to + w * F::weight_bytes, &args->weight, (place->block * F::wide + w) * DEPTH,
                column, full + 8 * place->stage);
    }
}

template <class F>
static __device__ __forceinline__ void ask_in(const struct product90_args *args,
                                              const struct product90_place *place, uint32_t ring,
                                              uint32_t full)
{
    const uint32_t to = ring + place->stage * F::stage_bytes;
    const uint32_t row = place->tile / args->tiles_across * F::rows;
#pragma unroll
    for (uint32_t w = 0; w < F::wide; w++) {
        copy_in(to + w * F::in_bytes, &args->in, (place->block * F::wide + w) * DEPTH, row,
                full + 8 * place->stage);
    }
}

/* One warp: all blocks of all tiles, in order. */
template <class F>
static __device__ __forceinline__ void give(const struct product90_args *args, uint32_t ring,
                                            uint32_t full)
{
    const struct product90_place first = {blockIdx.x, 0, 0, 0};
    struct product90_place place = first, early = first;
    for (uint32_t i = 0; i < F::stages && place.tile < args->tiles; i++) {
        ask_weight<F>(args, &place, ring, full);
        place_next<F>(&place, args);
    }
    berth_parakeet_cuda_wait();
    for (uint32_t i = 0; i < F::stages && early.tile < args->tiles; i++) {
        ask_in<F>(args, &early, ring, full);
        place_next<F>(&early, args);
    }
    while (place.tile < args->tiles) {
        barrier_wait(full + 8 * (F::stages + place.stage), place.parity ^ 1);
        ask_weight<F>(args, &place, ring, full);
        ask_in<F>(args, &place, ring, full);
        place_next<F>(&place, args);
    }
}

/* The products of one block of the depth, asked for. keep: sums go on, and are not new. */
template <class F>
static __device__ __forceinline__ void multiply_block(float (*sums)[F::columns / 2], uint32_t in,
                                                      uint32_t weight, uint32_t keep)
{
    const uint64_t a = matrix_at(in), b = matrix_at(weight);
    multiply_begin();
#pragma unroll
    for (uint32_t k = 0; k < F::wide * DEPTH / 16; k++) {
        const uint32_t w = k / (DEPTH / 16), at = 2 * (k % (DEPTH / 16)); /* in 16 bytes */
#pragma unroll
        for (uint32_t m = 0; m < F::m; m++) {
            multiply<F::columns>(sums[m], a + (w * F::in_bytes + m * 64 * DEPTH * 2) / 16 + at,
                                 b + w * F::weight_bytes / 16 + at, keep + k);
        }
    }
    multiply_commit();
}

/* The sums of the block's `turn`th tile. */
template <class F>
static __device__ __forceinline__ void take(const struct product90_args *args,
                                            const struct product90_taker *self, uint32_t turn,
                                            float (*sums)[F::columns / 2])
{
    const uint32_t part = F::turns ? 0 : self->taker, done = turn * args->blocks;
    const uint32_t empty = self->full + 8 * F::stages;
    uint32_t stage = done % F::stages, parity = done / F::stages & 1, before = 0;
    for (uint32_t block = 0; block < args->blocks; block++) {
        const uint32_t at = self->ring + stage * F::stage_bytes;
        barrier_wait(self->full + 8 * stage, parity);
        multiply_block<F>(sums, at + part * F::m * 64 * DEPTH * 2, at + F::wide * F::in_bytes,
                          block);
        multiply_wait<1>();
        if (block > 0 && self->first_warp) { /* the place before this one is free */
            barrier_arrive(empty + 8 * before);
        }
        before = stage;
        stage++;
        if (stage == F::stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    /* All is asked for; the other's products come after. */
    if (F::turns && blockIdx.x + (turn + 1) * gridDim.x < args->tiles) {
        named_arrive(BARRIER_TURN + (1 - self->taker), 2 * GROUP);
    }
    multiply_wait<0>();
    if (self->first_warp) {
        barrier_arrive(empty + 8 * before);
    }
#pragma unroll
    for (uint32_t i = 0; i < F::m * F::columns / 2; i++) { /* not read before the wait */
        asm volatile("" : "+f"(sums[i / (F::columns / 2)][i % (F::columns / 2)]) : : "memory");
    }
}

/* A taker's warpgroup: its tiles. */
template <class F, int KIND>
static __device__ __forceinline__ void take_tiles(const struct product90_args *args,
                                                  const struct product90_taker *self)
{
    uint32_t chunk = 0;
    struct product90_output output = {};
    output.args = args;
    output.room = self->ring + F::stages * F::stage_bytes + self->taker * 2 * F::room_bytes;
    output.name = BARRIER_GROUP + self->taker;
    for (uint32_t turn = F::turns ? self->taker : 0;; turn += F::turns ? F::groups : 1) {
        const uint32_t tile = blockIdx.x + turn * gridDim.x;
        float sums[F::m][F::columns / 2];
        float4 residual[2 * BATCH];
        if (tile >= args->tiles) {
            break;
        }
        output.row = tile / args->tiles_across * F::rows + (F::turns ? 0 : self->taker * F::m * 64);
        output.column = tile % args->tiles_across * F::columns;
        const struct product90_stream stream = stream_of(&output);
        if (KIND == STREAM90) {
            stream_load<F>(&stream, 0, residual);
        }
        if (F::turns && turn > 0) {
            named_sync(BARRIER_TURN + self->taker, 2 * GROUP);
        }
        take<F>(args, self, turn, sums);
        if (KIND == STREAM90) {
            store_stream<F>(&stream, residual, sums);
        } else {
            store_halves<F, KIND>(&output, sums, &chunk);
        }
    }
    if (KIND != STREAM90 && threadIdx.x % GROUP == 0) { /* shared memory lives until it is read */
        copy_out_wait<0>();
    }
}

#endif

/* in [n][depth], weight [width][depth], out or stream [n][width]. Reads each vector once for
 * F::columns outputs and each weight once for F::rows vectors. CPU twin: linear in cpu.c. Without
 * Hopper's instructions it is empty, and has no shared memory of its own. */
template <class F, int KIND>
static __global__ void __launch_bounds__(F::threads, 1)
    product90_kernel(const __grid_constant__ struct product90_args args)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ alignas(8) uint64_t barriers[2 * F::stages]; /* full, then free */
    extern __shared__ uint8_t shared[];
    const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* the same in all lanes */
    const uint32_t ring = (shared_at(shared) + SHARED_ALIGNMENT - 1) & ~(SHARED_ALIGNMENT - 1);
    const uint32_t full = shared_at(barriers);
    const struct product90_taker self = {warp / 4 - 1, ring, full, warp % 4 == 0};
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < F::stages; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(full + 8 * (F::stages + i), F::turns ? 1 : F::groups);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (warp < 4) {
        if (F::heavy) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        }
        if (warp == 0) {
            give<F>(&args, ring, full);
        }
    } else {
        if (F::heavy) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        }
        berth_parakeet_cuda_wait();
        berth_parakeet_cuda_next();
        take_tiles<F, KIND>(&args, &self);
    }
#endif
}

struct product90_variant {
    const void *kernels[KINDS90];
    uint32_t threads, shared_bytes;
};

template <class F> static constexpr struct product90_variant variant_of(void)
{
    return {{(const void *)product90_kernel<F, HALVES90>, (const void *)product90_kernel<F, SILU90>,
             (const void *)product90_kernel<F, RELU90>,
             (const void *)product90_kernel<F, STREAM90>},
            F::threads,
            F::shared_bytes};
}

#define VARIANT(GROUPS, M, COLUMNS, STAGES, WIDE, TURNS, NAME)                                     \
    variant_of<product90_form<GROUPS, M, COLUMNS, STAGES, WIDE, TURNS>>(),

static const struct berth_parakeet_cuda_tile tiles[] = {
    BERTH_PARAKEET_CUDA_TILES(BERTH_PARAKEET_CUDA_TILE)};
static const struct product90_variant variants[] = {BERTH_PARAKEET_CUDA_TILES(VARIANT)};

#define VARIANTS ((uint32_t)(sizeof(variants) / sizeof(variants[0])))
static_assert(VARIANTS <= BERTH_PARAKEET_CUDA_PRODUCT90_MAX, "a list has room for all");

/* The driver's call that describes a matrix to the copy engine; NULL: there is none. */
static PFN_cuTensorMapEncodeTiled_v12000 encoder(void)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 found = [] {
        void *at = NULL;
        enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        const cudaError_t error = cudaGetDriverEntryPointByVersion(
            "cuTensorMapEncodeTiled", &at, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess
                   ? (PFN_cuTensorMapEncodeTiled_v12000)at
                   : NULL;
    }();
    return found;
}

/* A matrix of halves [size[0]][size[1]], copied in boxes likewise. */
static bool describe(CUtensorMap *map, const void *at, const uint64_t (&size)[2],
                     const uint32_t (&box)[2])
{
    const cuuint64_t sizes[2] = {size[1], size[0]}, strides[1] = {size[1] * 2};
    const cuuint32_t boxes[2] = {box[1], box[0]}, steps[2] = {1, 1};
    return encoder()(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)at, sizes, strides, boxes,
                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     box[1] * 2 == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Whether there are kernels with Hopper's instructions (gpu_targets: 90a, not 90); the others are
 * empty, and have no shared memory of their own. Where CUDA cannot say now, the launch will. */
static bool compiled(void)
{
    cudaFuncAttributes has = {};
    if (cudaFuncGetAttributes(&has, variants[0].kernels[0]) != cudaSuccess) {
        (void)cudaGetLastError();
        return true;
    }
    return has.sharedSizeBytes > 0;
}

static struct berth_parakeet_cuda_product product_of(const struct berth_parakeet_linear_call *call)
{
    return {call->n, call->linear->in, call->linear->out};
}

/* What the device must be, whatever this build has. */
static bool device_suits(const struct berth_parakeet_device *device)
{
    return device->capability == 90 && SHARED_BYTES <= (uint32_t)device->shared_bytes_max &&
           encoder() != NULL;
}

/* Whether there is a kernel for it, whatever the tile. */
static bool call_suits(const struct berth_parakeet_linear_call *call)
{
    const struct berth_parakeet_linear *linear = call->linear;
    const uintptr_t pointers = (uintptr_t)call->in | (uintptr_t)call->out |
                               (uintptr_t)call->residual | (uintptr_t)linear->weight |
                               (uintptr_t)linear->bias;
    const bool form = call->stream ? call->activation == BERTH_PARAKEET_NONE
                                   : call->residual == NULL && call->scale == 1.0f;
    return form && linear->scale == NULL && pointers % 16 == 0;
}

static bool args_make(const struct berth_parakeet_linear_call *call,
                      const struct berth_parakeet_cuda_tile *tile, struct product90_args *args)
{
    const struct berth_parakeet_linear *linear = call->linear;
    const struct berth_parakeet_cuda_product product = product_of(call);
    const uint32_t chunk = tile->columns < CHUNK ? tile->columns : CHUNK;
    args->bias = (const __half *)linear->bias;
    args->residual = (const float *)call->residual;
    args->stream = (float *)call->out;
    args->scale = call->scale;
    args->n = (uint32_t)call->n;
    args->width = linear->out;
    args->blocks = linear->in / DEPTH / tile->wide;
    args->tiles_across = linear->out / tile->columns;
    args->tiles = (uint32_t)berth_parakeet_cuda_tile_count(tile, &product);
    return describe(&args->in, call->in, {call->n, linear->in}, {tile->rows, DEPTH}) &&
           describe(&args->weight, linear->weight, {linear->out, linear->in},
                    {tile->columns, DEPTH}) &&
           (call->stream ||
            describe(&args->out, call->out, {call->n, linear->out}, {CHUNK, chunk}));
}

bool berth_parakeet_cuda_product90_here(const struct berth_parakeet_device *device)
{
    return device_suits(device) && compiled();
}

uint32_t berth_parakeet_cuda_product90_count(void)
{
    return VARIANTS;
}

const char *berth_parakeet_cuda_product90_name(uint32_t variant)
{
    return variant < VARIANTS ? tiles[variant].name : "";
}

uint32_t berth_parakeet_cuda_product90_list(const struct berth_parakeet_device *device,
                                            const struct berth_parakeet_linear_call *call,
                                            uint32_t *out)
{
    const struct berth_parakeet_cuda_product product = product_of(call);
    if (!call_suits(call) || !berth_parakeet_cuda_product90_here(device)) {
        return 0;
    }
    return berth_parakeet_cuda_tiles_likely(tiles, VARIANTS, &product, (uint32_t)device->sm_count,
                                            out);
}

cudaError_t berth_parakeet_cuda_product90_launch(const struct berth_parakeet_device *device,
                                                 const struct berth_parakeet_linear_call *call,
                                                 uint32_t variant, cudaStream_t stream)
{
    struct product90_args args = {};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute overlap = {};
    cudaFuncAttributes has = {};
    const struct berth_parakeet_cuda_product product = product_of(call);
    if (variant >= VARIANTS || !device_suits(device) || !call_suits(call) ||
        !berth_parakeet_cuda_tile_takes(&tiles[variant], &product)) {
        return cudaErrorNotSupported;
    }
    const struct product90_variant *chosen = &variants[variant];
    const enum product90_kind kind = call->stream                              ? STREAM90
                                     : call->activation == BERTH_PARAKEET_SILU ? SILU90
                                     : call->activation == BERTH_PARAKEET_RELU ? RELU90
                                                                               : HALVES90;
    const void *kernel = chosen->kernels[kind];
    cudaError_t error = cudaFuncGetAttributes(&has, kernel);
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)chosen->shared_bytes);
    }
    if (error != cudaSuccess) {
        return error;
    }
    if (has.sharedSizeBytes == 0 || !args_make(call, &tiles[variant], &args)) {
        return cudaErrorNotSupported; /* it was compiled without Hopper's instructions */
    }
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(args.tiles < (uint32_t)device->sm_count ? args.tiles
                                                                  : (uint32_t)device->sm_count);
    config.blockDim = dim3(chosen->threads);
    config.dynamicSmemBytes = chosen->shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = device->overlap ? 1 : 0;
    void *arguments[] = {&args};
    return cudaLaunchKernelExC(&config, kernel, arguments);
}
