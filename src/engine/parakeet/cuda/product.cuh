/* product.cuh - the products of decoding, and the best of their outputs.
 *
 * Weights are the A side of m16n8k16, rows of the batch its columns, so that weights are read once
 * whatever the batch: by tensor cores from one row to 64 at a time. The eight warps of a block each
 * take an eighth of the sum and leave their parts in shared memory, where they are added in the
 * order of the warps. A column never meets another: a row's result is the same, bit for bit, in any
 * company, at any place, on any number of blocks (E1). Lanes load 16 bytes, eight elements of one
 * row; which element goes to which place of the sum of 16 is free as long as both sides agree, so
 * no shuffle is needed.
 */
#ifndef BERTH_PRODUCT_H
#define BERTH_PRODUCT_H

#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define TILE 16                /* outputs of a tile */
#define TILES_AT_ONCE 2
#define PART_STRIDE (TILE + 4) /* floats of a column's parts: no two lanes meet in one bank */
#define NO_ROW 0xffffffffu
#define FULL 0xffffffffu       /* all lanes */
#define NO_NUMBER 0xfffffffeu  /* in a key, above infinity's and below what no logit has */
#define ITEMS(NT) ((TILES_AT_ONCE * (NT)*32 + THREADS - 1) / THREADS) /* of a thread */

typedef unsigned long long key64; /* what atomicMax wants */

/* What a product is of. SUM_OF_TWO: x = relu(in[0] + in[1]). CONCATENATED: weight[0] in[0] +
 * weight[1] in[1]. */
enum product_kind { PLAIN, SUM_OF_TWO, CONCATENATED };

struct product {
    const uint16_t *weight[2]; /* half [outputs][length] */
    const uint16_t *in[2];     /* half */
    uint32_t length;           /* a multiple of 8 */
};

/* Where a lane's rows begin, in elements. weight[tile][i]: outputs lane / 4 and lane / 4 + 8 of a
 * tile; NO_ROW: none. in[source][j]: column 8 j + lane / 4. */
template <int NT> struct lane_rows {
    uint32_t weight[TILES_AT_ONCE][2];
    uint32_t in[2][NT];
};

/* A lane's share of one step of the sum: 32 elements, of which it has eight of each of its rows. */
template <int NT> struct lane_step {
    uint4 a[TILES_AT_ONCE][2];
    uint4 b[NT];
};

/* Best token, best duration and the tokens' sum for softmax of some outputs. */
struct best {
    key64 token, duration; /* 0: none among them */
    float2 sum;            /* highest logit of a token, sum of e^(logit - highest) */
};

/* Outputs and rows of a head. */
struct head_shape {
    const uint16_t *bias; /* half [outputs]; NULL: none */
    uint32_t vocabulary, outputs; /* tokens; tokens and durations */
};

/* What thread i of a pass works on after the product: four outputs of one column of one tile. Four
 * lanes side by side have a column; all lanes of a warp exist or none. */
struct item {
    bool exists; /* within the pass; else the rest is not to be used */
    uint32_t tile, column, quarter;
};

/* Bytes of shared memory for the warps' parts of a product of `columns`. */
static constexpr size_t part_bytes(uint32_t columns)
{
    return (size_t)WARPS * TILES_AT_ONCE * columns * PART_STRIDE * sizeof(float);
}

static __device__ __forceinline__ float from_half(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

/* relu(a + b) of two pairs, rounded once; what is no number stays so. */
static __device__ __forceinline__ uint32_t relu_sum(uint32_t a, uint32_t b)
{
    const float2 x = unpack2(a), y = unpack2(b);
    const float low = x.x + y.x, high = x.y + y.y;
    return pack2(low < 0.0f ? 0.0f : low, high < 0.0f ? 0.0f : high);
}

/* A key is the greater the higher the logit, and at equal logits the lower the index; never 0. What
 * is no number is the greatest, so that it is seen (P4). */
static __device__ __forceinline__ key64 key_of(float logit, uint32_t index)
{
    const uint32_t bits = __float_as_uint(logit + 0.0f);
    const uint32_t number = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    const uint32_t ordered = logit == logit ? number : NO_NUMBER;
    return ((key64)ordered << 32) | (0xffffffffu - index);
}

/* The highest logit is finite; if it is, so are all that count. */
static __device__ __forceinline__ bool key_finite(key64 key)
{
    const uint32_t ordered = (uint32_t)(key >> 32);
    return ordered > 0x007fffffu && ordered < 0xff800000u; /* between the infinities' */
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

/* d += a b, 16 x 8 x 32: two products of 16, of the low and the high halves of what lanes loaded.
 * low, high: outputs lane / 4 and lane / 4 + 8. Not volatile: it does nothing but its result. */
static __device__ __forceinline__ void multiply_add(float *d, uint4 low, uint4 high, uint4 b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(low.z), "r"(high.z), "r"(low.w), "r"(high.w), "r"(b.z), "r"(b.w));
}

/* Zeros past the end of the sum. What other blocks wrote is read past L1. */
template <enum product_kind KIND, int NT>
static __device__ __forceinline__ void load_step(const struct product &product,
                                                 const struct lane_rows<NT> &rows, uint32_t step,
                                                 struct lane_step<NT> *to)
{
    const uint32_t half_steps = (product.length + 31) / 32;
    const bool second = KIND == CONCATENATED && step >= half_steps;
    const uint32_t k = (second ? step - half_steps : step) * 32 + (threadIdx.x & 3) * 8;
    const bool inside = k < product.length; /* also false for steps past the last */
    const uint16_t *weight = (second ? product.weight[1] : product.weight[0]) + k;
    const uint16_t *in = (second ? product.in[1] : product.in[0]) + k;
#pragma unroll
    for (int tile = 0; tile < TILES_AT_ONCE; tile++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to->a[tile][i] = make_uint4(0, 0, 0, 0);
            if (inside && rows.weight[tile][i] != NO_ROW) {
                to->a[tile][i] = __ldg((const uint4 *)(weight + rows.weight[tile][i]));
            }
        }
    }
#pragma unroll
    for (int j = 0; j < NT; j++) {
        uint4 b = make_uint4(0, 0, 0, 0);
        if (inside) {
            b = __ldcg((const uint4 *)(in + (second ? rows.in[1][j] : rows.in[0][j])));
        }
        if (inside && KIND == SUM_OF_TWO) {
            const uint4 c = __ldcg((const uint4 *)(product.in[1] + k + rows.in[1][j]));
            b = make_uint4(relu_sum(b.x, c.x), relu_sum(b.y, c.y), relu_sum(b.z, c.z),
                           relu_sum(b.w, c.w));
        }
        to->b[j] = b;
    }
}

/* Parts of a product: TILES_AT_ONCE tiles of outputs, 8 NT columns; this warp's eighth of the sum.
 * Steps go round the warps; U of them are loaded before the first is used. parts:
 * [WARPS][TILES_AT_ONCE][8 NT][PART_STRIDE]. */
template <enum product_kind KIND, int NT>
static __device__ __forceinline__ void
multiply(const struct product &product, const struct lane_rows<NT> &rows, float *parts)
{
    constexpr int U = NT == 1 ? 5 : NT == 2 ? 3 : NT == 4 ? 2 : 1;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t steps = (KIND == CONCATENATED ? 2 : 1) * ((product.length + 31) / 32);
    float sums[TILES_AT_ONCE][NT][4] = {};
    for (uint32_t first = warp; first < steps; first += WARPS * U) {
        struct lane_step<NT> loaded[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            load_step<KIND, NT>(product, rows, first + (uint32_t)u * WARPS, &loaded[u]);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int tile = 0; tile < TILES_AT_ONCE; tile++) {
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    multiply_add(sums[tile][j], loaded[u].a[tile][0], loaded[u].a[tile][1],
                                 loaded[u].b[j]);
                }
            }
        }
    }
    const uint32_t output = lane >> 2, column = (lane & 3) * 2;
#pragma unroll
    for (uint32_t tile = 0; tile < TILES_AT_ONCE; tile++) {
#pragma unroll
        for (uint32_t j = 0; j < NT; j++) {
            float *to = parts +
                        ((warp * TILES_AT_ONCE + tile) * (NT * 8) + j * 8 + column) * PART_STRIDE +
                        output;
            to[0] = sums[tile][j][0];
            to[PART_STRIDE] = sums[tile][j][1];
            to[8] = sums[tile][j][2];
            to[PART_STRIDE + 8] = sums[tile][j][3];
        }
    }
}

/* rows->weight for outputs of tile `tile` and of that `apart` on, plain rows of `length`. */
template <int NT>
static __device__ __forceinline__ void point_at_outputs(struct lane_rows<NT> *rows, uint32_t tile,
                                                        uint32_t apart, uint32_t outputs,
                                                        uint32_t length)
{
#pragma unroll
    for (uint32_t i = 0; i < TILES_AT_ONCE * 2; i++) {
        const uint32_t output =
            (tile + i / 2 * apart) * TILE + (threadIdx.x & 31) / 4 + 8 * (i & 1);
        rows->weight[i / 2][i & 1] = output < outputs ? output * length : NO_ROW;
    }
}

template <int NT> static __device__ __forceinline__ struct item item_of(uint32_t index)
{
    struct item item;
    item.exists = index < TILES_AT_ONCE * NT * 32;
    item.tile = index / (NT * 32);
    item.column = index / 4 % (NT * 8);
    item.quarter = index % 4;
    return item;
}

/* An item's four outputs, parts added in the order of the warps. */
template <int NT>
static __device__ __forceinline__ float4 add_parts(const float *parts, const struct item &item)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (uint32_t warp = 0; warp < WARPS; warp++) {
        const uint32_t column = (warp * TILES_AT_ONCE + item.tile) * (NT * 8) + item.column;
        const float4 part = *(const float4 *)(parts + column * PART_STRIDE + item.quarter * 4);
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
    }
    return sum;
}

/* The best among outputs `output` .. + 3, whose products are `sum`, of each of the four lanes of
 * a column. All lanes of the warp. */
static __device__ __forceinline__ struct best best_of(const float4 &sum, uint32_t output,
                                                      const struct head_shape &head)
{
    float logits[4] = {sum.x, sum.y, sum.z, sum.w};
    struct best best = {};
    best.sum.x = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = output + i;
        if (at < head.outputs && head.bias != NULL) {
            logits[i] += from_half(__ldg(&head.bias[at]));
        }
        if (at < head.vocabulary) {
            const key64 key = key_of(logits[i], at);
            best.token = key > best.token ? key : best.token;
        } else if (at < head.outputs) {
            const key64 key = key_of(logits[i], at - head.vocabulary);
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
        if (output + i < head.vocabulary && logits[i] != -INFINITY) {
            best.sum.y += __expf(logits[i] - best.sum.x);
        }
    }
    best.sum.y += __shfl_xor_sync(FULL, best.sum.y, 1);
    best.sum.y += __shfl_xor_sync(FULL, best.sum.y, 2);
    return best;
}

/* decode_ctc.cu: CTC decoding; state: 8 bytes a frame. */
void berth_parakeet_cuda_decode_ctc(struct berth_parakeet_device *device,
                                    const struct berth_parakeet_shape *shape,
                                    const struct berth_parakeet_counts *counts,
                                    const struct berth_parakeet_decode_call *call);

#endif
