/* attention.cu - attention with relative positions, fused: no tensor of frames x frames in memory.
 *
 * scores[i][j] = ((q[i] + u) k[j] + (q[i] + v) p[i - j]) / sqrt(head_dim); out = softmax x values,
 * over the row's own frames (Dai et al., Transformer-XL, 2019). CPU twin: attention of cpu.c.
 *
 * A block takes one head of one row and a tile of 16 x WQ queries, and walks over the keys N = KB x
 * WK at a time; a warp has 16 queries and KB keys. Softmax is computed online, in float32. Keys,
 * values and positions go to shared memory in 16-byte pieces, the next tile's while this one's are
 * used. The products are mma.sync m16n8k16, half in and float32 out: every target has it.
 *
 * The shift. The queries i0 .. i0 + M - 1 and keys j0 .. j0 + N - 1 have M + N - 1 distances, whose
 * rows of `position` are neighbours, the farthest first: row r0 + l, r0 = position_max - i0 - M +
 * j0, is the distance of query di and key dj of the tile if l = M - 1 - di + dj. A warp multiplies
 * its 16 queries with the KB + 16 rows it needs, and then query r has to take column 15 - r + c for
 * key c. In the accumulators a query is held by four neighbouring lanes, two columns of each eight
 * in each, so the shift is two shuffles among the four for two scores (shifted2): nothing goes
 * through memory. The next key tile is N rows on, so only N new rows are read (a ring).
 *
 * Two forms: 64 queries a block with four warps of 16, which reads keys once for 64 queries; and,
 * when that fills too little of the device, 16 queries with four warps that take different keys and
 * merge at the end.
 */
#include <math.h>

#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/kernels.cuh"

#define NO_SCORE (-1e30f) /* of a key past the row's end: less than any product of halves */

struct attention_args {
    const __half *qkv;      /* [rows][frames][3][heads][D] */
    const __half *position; /* [position_rows][heads][D] */
    const float *bias_u, *bias_v;  /* [heads][D] */
    const int32_t *count;          /* [rows] */
    __half *out;            /* [rows][frames][heads][D] */
    int frames, heads;
    int position_max, position_rows;
    float scale; /* log2(e) / sqrt(D): the exponentials are of two */
};

/* Where a thread is: its tile, its warp's part of it, its lane's part of that. */
struct attention_place {
    const struct attention_args *args;
    int64_t row_at;    /* first frame of the row in qkv and out */
    int head, count;   /* count: the row's own frames */
    int first;         /* query of the block's tile; of the warp: first + 16 wq */
    int lane, wq, wk;
    int group, quad;   /* lane / 4: it has rows group and group + 8; lane % 4: two columns of 8 */
    bool odd;          /* of the shift: see shifted2 */
    int turn0, turn1, lane0, lane1;
};

template <int D, int WQ, int WK, int KB> struct attention_form {
    static const int threads = 32 * WQ * WK;
    static const int queries = 16 * WQ;
    static const int keys = KB * WK;
    static const int window = queries + keys; /* rows of positions in shared memory, a ring */
    static const int shared_bytes = (2 * keys + window) * D * 2;
};

/* d += a x b, 16 x 8 x 16. */
static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], uint32_t b0,
                                           uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices from shared memory; a lane gives the address of one row. */
static __device__ __forceinline__ void matrices(uint32_t to[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void matrices_turned(uint32_t to[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/* Asynchronous; not there: 16 zero bytes, and nothing is read. */
static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copies_end(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All groups of this thread's copies but the last have arrived. */
static __device__ __forceinline__ void copies_wait_but_last(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

static __device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); /* of minus infinity: 0 */
    return y;
}

/* Byte of a 16-byte piece in a tile of rows of D elements. The piece's place is mixed with the row,
 * so that eight rows' pieces of one column lie in different banks. */
template <int D> static __device__ __forceinline__ uint32_t piece_at(int row, int piece)
{
    return (uint32_t)(row * (D * 2) + ((piece ^ (row & 7)) << 4));
}

/* A matrix of which tiles are copied: D columns of rows `stride` elements apart. */
struct tile_source {
    const __half *from;
    int64_t stride;
    int limit; /* rows outside 0 .. limit - 1 become zero */
};

/* Copies rows first .. first + ROWS - 1 to the rows from `to` on of a ring of RING rows. A thread
 * keeps to one column of pieces; its rows are a multiple of eight apart: the mixing is the same. */
template <int D, int ROWS, int RING, int THREADS>
static __device__ __forceinline__ void tile_load(uint32_t tile, int to,
                                                 const struct tile_source *source, int first)
{
    const int pieces = D / 8, step = THREADS / pieces;
    static_assert(THREADS % pieces == 0 && step % 8 == 0 && ROWS % step == 0, "whole rounds");
    const int piece = (int)threadIdx.x % pieces;
    int row = (int)threadIdx.x / pieces, place = to + row;
#pragma unroll 4
    for (int round = 0; round < ROWS / step; round++) {
        place -= place >= RING ? RING : 0;
        const bool there = first + row >= 0 && first + row < source->limit;
        copy16(tile + piece_at<D>(place, piece),
               source->from + (there ? (first + row) * source->stride : 0) + piece * 8, there);
        row += step;
        place += step;
    }
}

/* The A operands of the warp's 16 queries with u and with v; past the row's end: u and v alone. */
template <int D>
static __device__ __forceinline__ void queries_load(const struct attention_place *place,
                                                    uint32_t with_u[D / 16][4],
                                                    uint32_t with_v[D / 16][4])
{
    const struct attention_args *args = place->args;
    const int64_t stride = (int64_t)3 * args->heads * D;
    const float *u = args->bias_u + place->head * D, *v = args->bias_v + place->head * D;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = place->first + 16 * place->wq + place->group + 8 * half;
        const bool there = query < place->count;
        const __half *from =
            args->qkv + (place->row_at + (there ? query : 0)) * stride + place->head * D;
#pragma unroll
        for (int k = 0; k < D / 8; k++) {
            const int column = 8 * k + 2 * place->quad;
            const float2 q = unpack2(there ? *(const uint32_t *)(from + column) : 0);
            const float2 add_u = *(const float2 *)(u + column);
            const float2 add_v = *(const float2 *)(v + column);
            with_u[k / 2][half + 2 * (k % 2)] = pack2(q.x + add_u.x, q.y + add_u.y);
            with_v[k / 2][half + 2 * (k % 2)] = pack2(q.x + add_v.x, q.y + add_v.y);
        }
    }
}

/* out[b] += queries x rows^T, for the B blocks of eight rows of a ring of RING rows from `row` (a
 * multiple of 16, as RING) on. */
template <int D, int B, int RING>
static __device__ __forceinline__ void multiply_rows(const uint32_t queries[D / 16][4],
                                                     uint32_t tile, int row, int lane,
                                                     float out[B][4])
{
    const int lane_row = ((lane >> 4) << 3) + (lane & 7);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
#pragma unroll
        for (int b = 0; b < B; b += 2) {
            int at = row + 8 * b;
            at -= at >= RING ? RING : 0;
            uint32_t rows[4];
            matrices(rows, tile + piece_at<D>(at + lane_row, 2 * k + ((lane >> 3) & 1)));
            mma(out[b], queries[k], rows[0], rows[1]);
            mma(out[b + 1], queries[k], rows[2], rows[3]);
        }
    }
}

/* Of sixteen columns of one query, held by four lanes two of each eight (low, high), the two that
 * start at 7 - group + 2 quad. Column 7 - group + 2 quad + e lies `turn` lanes on, and past the
 * fourth lane in the other eight; for an odd 7 - group the pair is halves of two lanes' pairs. */
static __device__ __forceinline__ void shifted2(const struct attention_place *place,
                                                const float *low, const float *high, float *out)
{
    const float l0 = place->odd ? low[1] : low[0], l1 = place->odd ? low[0] : low[1];
    const float h0 = place->odd ? high[1] : high[0], h1 = place->odd ? high[0] : high[1];
    const float give0 = place->quad < place->turn0 ? h0 : l0;
    const float give1 = place->quad < place->turn1 ? h1 : l1;
    out[0] = __shfl_sync(0xffffffffu, give0, place->lane0);
    out[1] = __shfl_sync(0xffffffffu, give1, place->lane1);
}

static __device__ __forceinline__ void place_make(struct attention_place *place, int warps_q)
{
    const int warp = (int)threadIdx.x >> 5;
    place->lane = (int)threadIdx.x & 31;
    place->wq = warp % warps_q;
    place->wk = warp / warps_q;
    place->group = place->lane >> 2;
    place->quad = place->lane & 3;
    const int shift = 7 - place->group;
    place->odd = (shift & 1) != 0;
    place->turn0 = shift >> 1;
    place->turn1 = (shift + 1) >> 1;
    place->lane0 = (place->lane & ~3) | ((place->quad + place->turn0) & 3);
    place->lane1 = (place->lane & ~3) | ((place->quad + place->turn1) & 3);
}

/* Scores of the warp's 16 queries and KB keys, not scaled: positions first, shifted, then the keys
 * on top. position_row: the ring's row of the warp's first position. */
template <int D, int KB, int RING>
static __device__ __forceinline__ void scores_positions(const struct attention_place *place,
                                                        const uint32_t with_v[D / 16][4],
                                                        uint32_t positions, int position_row,
                                                        float scores[KB / 8][4])
{
    float far[KB / 8 + 2][4];
#pragma unroll
    for (int b = 0; b < KB / 8 + 2; b++) {
        far[b][0] = far[b][1] = far[b][2] = far[b][3] = 0.0f;
    }
    multiply_rows<D, KB / 8 + 2, RING>(with_v, positions, position_row, place->lane, far);
#pragma unroll
    for (int b = 0; b < KB / 8; b++) {
        shifted2(place, far[b + 1], far[b + 2], scores[b]);         /* query `group` */
        shifted2(place, far[b] + 2, far[b + 1] + 2, scores[b] + 2); /* query `group` + 8 */
    }
}

/* The online softmax of a warp's queries: what each thread has of its two. */
template <int D> struct attention_sums {
    float values[D / 8][4]; /* weighted sums, not divided */
    float highest[2];
    float total[2]; /* of the thread's own columns */
};

/* Scores become weights; the sums so far shrink to the new maximum. own: how many of the KB keys
 * are the row's, at least one. */
template <int D, int KB>
static __device__ __forceinline__ void weights_make(const struct attention_place *place, int own,
                                                    float scores[KB / 8][4],
                                                    struct attention_sums<D> *sums)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = sums->highest[half], sum = 0.0f, least = 0.0f;
#pragma unroll
        for (int at = 0; at < KB / 4; at++) {
            float *score = &scores[at / 2][2 * half + at % 2];
            const bool mine = 8 * (at / 2) + 2 * place->quad + at % 2 < own;
            *score = mine ? *score * place->args->scale : NO_SCORE;
            top = fmaxf(top, *score);
            least = fminf(least, *score);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float shrink = power_of_two(sums->highest[half] - top);
#pragma unroll
        for (int at = 0; at < KB / 4; at++) {
            float *score = &scores[at / 2][2 * half + at % 2];
            *score = power_of_two(*score - top);
            sum += *score;
        }
        sum += least == -INFINITY ? NAN : 0.0f; /* an overflow, not a weight of 0 */
        sums->highest[half] = top;
        sums->total[half] = sums->total[half] * shrink + sum;
#pragma unroll
        for (int b = 0; b < D / 8; b++) {
            sums->values[b][2 * half] *= shrink;
            sums->values[b][2 * half + 1] *= shrink;
        }
    }
}

/* sums += weights x values, for the warp's KB keys. */
template <int D, int KB>
static __device__ __forceinline__ void values_add(const struct attention_place *place,
                                                  uint32_t values, const float weights[KB / 8][4],
                                                  struct attention_sums<D> *sums)
{
#pragma unroll
    for (int k = 0; k < KB / 16; k++) {
        uint32_t a[4];
        a[0] = pack2(weights[2 * k][0], weights[2 * k][1]);
        a[1] = pack2(weights[2 * k][2], weights[2 * k][3]);
        a[2] = pack2(weights[2 * k + 1][0], weights[2 * k + 1][1]);
        a[3] = pack2(weights[2 * k + 1][2], weights[2 * k + 1][3]);
        const int row = place->wk * KB + 16 * k + (place->lane & 15);
#pragma unroll
        for (int b = 0; b < D / 8; b += 2) {
            uint32_t columns[4];
            matrices_turned(columns, values + piece_at<D>(row, b + (place->lane >> 4)));
            mma(sums->values[b], a, columns[0], columns[1]);
            mma(sums->values[b + 1], a, columns[2], columns[3]);
        }
    }
}

template <int D>
static __device__ __forceinline__ uint4 *out_at(const struct attention_place *place, int query,
                                                int piece)
{
    return (uint4 *)(place->args->out +
                     ((place->row_at + query) * place->args->heads + place->head) * D + piece * 8);
}

/* A tile without a frame of the row's own: zeros. */
template <int D, int QUERIES, int THREADS>
static __device__ __forceinline__ void queries_clear(const struct attention_place *place)
{
    for (int index = (int)threadIdx.x; index < QUERIES * D / 8; index += THREADS) {
        const int query = place->first + index / (D / 8);
        if (query < place->args->frames) {
            *out_at<D>(place, query, index % (D / 8)) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* Sums the four lanes' totals. */
static __device__ __forceinline__ float total_of(float part)
{
    part += __shfl_xor_sync(0xffffffffu, part, 1);
    return part + __shfl_xor_sync(0xffffffffu, part, 2);
}

/* Writes the warp's 16 queries, through its part of shared memory so that stores are 16 bytes. */
template <int D>
static __device__ __forceinline__ void queries_store(const struct attention_place *place,
                                                     unsigned char *shared,
                                                     const struct attention_sums<D> *sums)
{
    unsigned char *mine = shared + place->wq * 16 * D * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float over = 1.0f / total_of(sums->total[half]);
#pragma unroll
        for (int b = 0; b < D / 8; b++) {
            *(uint32_t *)(mine + piece_at<D>(place->group + 8 * half, b) + 4 * place->quad) =
                pack2(sums->values[b][2 * half] * over, sums->values[b][2 * half + 1] * over);
        }
    }
    __syncwarp();
#pragma unroll
    for (int at = 0; at < 16 * D / 8; at += 32) {
        const int row = (at + place->lane) / (D / 8), piece = (at + place->lane) % (D / 8);
        const int query = place->first + 16 * place->wq + row;
        if (query < place->args->frames) {
            uint4 value = *(const uint4 *)(mine + piece_at<D>(row, piece));
            if (query >= place->count) {
                value = make_uint4(0, 0, 0, 0);
            }
            *out_at<D>(place, query, piece) = value;
        }
    }
}

/* Merges what WK warps have of the same 16 queries (the block's), and writes. shared: WK x 16 rows
 * of D + 8 floats (rows then start in different banks), then WK x 16 maxima and totals. */
template <int D, int WK>
static __device__ __forceinline__ void queries_merge(const struct attention_place *place,
                                                     float *shared,
                                                     const struct attention_sums<D> *sums)
{
    const int stride = D + 8;
    float *tops = shared + WK * 16 * stride, *totals = tops + WK * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float total = total_of(sums->total[half]);
        const int row = place->wk * 16 + place->group + 8 * half;
        if (place->quad == 0) {
            tops[row] = sums->highest[half];
            totals[row] = total;
        }
#pragma unroll
        for (int b = 0; b < D / 8; b++) {
            *(float2 *)(shared + row * stride + 8 * b + 2 * place->quad) =
                make_float2(sums->values[b][2 * half], sums->values[b][2 * half + 1]);
        }
    }
    __syncthreads();
    for (int index = (int)threadIdx.x; index < 16 * D / 8; index += 32 * WK) {
        const int row = index / (D / 8), piece = index % (D / 8), query = place->first + row;
        float top = -INFINITY, total = 0.0f, merged[8] = {0.0f};
#pragma unroll
        for (int w = 0; w < WK; w++) {
            top = fmaxf(top, tops[w * 16 + row]);
        }
#pragma unroll
        for (int w = 0; w < WK; w++) {
            const float share = power_of_two(tops[w * 16 + row] - top);
            const float *part = shared + (w * 16 + row) * stride + 8 * piece;
            total += totals[w * 16 + row] * share;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                merged[e] += part[e] * share;
            }
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            merged[e] = query < place->count ? merged[e] / total : 0.0f;
        }
        if (query < place->args->frames) {
            *out_at<D>(place, query, piece) = pack8(merged);
        }
    }
}

/* The walk over the keys. On entry nothing is in shared memory; on return nothing is used of it. */
template <int D, int WQ, int WK, int KB>
static __device__ __forceinline__ void attend(const struct attention_place *place, uint32_t keys,
                                              struct attention_sums<D> *sums)
{
    using form = attention_form<D, WQ, WK, KB>;
    const struct attention_args *args = place->args;
    const uint32_t values = keys + form::keys * D * 2, positions = values + form::keys * D * 2;
    const int64_t stride = (int64_t)3 * args->heads * D;
    const __half *from = args->qkv + place->row_at * stride + place->head * D;
    const struct tile_source key_source = {from + args->heads * D, stride, place->count};
    const struct tile_source value_source = {from + 2 * args->heads * D, stride, place->count};
    const struct tile_source position_source = {args->position + place->head * D,
                                                (int64_t)args->heads * D, args->position_rows};
    int farthest = args->position_max - place->first - form::queries; /* row: the window's first */
    tile_load<D, form::keys, form::keys, form::threads>(keys, 0, &key_source, 0);
    tile_load<D, form::window, form::window, form::threads>(positions, 0, &position_source,
                                                            farthest);
    copies_end();
    tile_load<D, form::keys, form::keys, form::threads>(values, 0, &value_source, 0);
    copies_end();
    uint32_t with_u[D / 16][4], with_v[D / 16][4];
    queries_load<D>(place, with_u, with_v);
    int ring = 0; /* where in the ring the window starts */
    for (int key = 0; key < place->count; key += form::keys) {
        const int own = place->count - key - place->wk * KB; /* of this warp's keys */
        const int next = key + form::keys;
        float scores[KB / 8][4];
        copies_wait_but_last();
        __syncthreads(); /* keys and positions are there */
        if (own > 0) {
            int row = ring + form::queries - 16 - 16 * place->wq + KB * place->wk;
            row -= row >= form::window ? form::window : 0;
            scores_positions<D, KB, form::window>(place, with_v, positions, row, scores);
            multiply_rows<D, KB / 8, form::keys>(with_u, keys, place->wk * KB, place->lane, scores);
        }
        __syncthreads(); /* and are used up */
        if (next < place->count) {
            tile_load<D, form::keys, form::keys, form::threads>(keys, 0, &key_source, next);
            tile_load<D, form::keys, form::window, form::threads>(
                positions, ring, &position_source, farthest + form::window);
        }
        copies_end();
        if (own > 0) {
            weights_make<D, KB>(place, own, scores, sums);
        }
        copies_wait_but_last();
        __syncthreads(); /* values are there */
        if (own > 0) {
            values_add<D, KB>(place, values, scores, sums);
        }
        __syncthreads(); /* and are used up */
        if (next < place->count) {
            tile_load<D, form::keys, form::keys, form::threads>(values, 0, &value_source, next);
        }
        copies_end();
        farthest += form::keys;
        ring += form::keys;
        ring -= ring >= form::window ? form::window : 0;
    }
}

/* Grid: query tiles, heads, rows. Reads q once, k, v and the positions once for each query tile
 * (mostly from L2), writes out once. CPU twin: attention of cpu.c. */
template <int D, int WQ, int WK, int KB>
static __global__ void __launch_bounds__(32 * WQ * WK)
    attend_kernel(const __grid_constant__ struct attention_args args)
{
    using form = attention_form<D, WQ, WK, KB>;
    extern __shared__ __align__(128) unsigned char shared[];
    struct attention_place place;
    struct attention_sums<D> sums;
    place_make(&place, WQ);
    place.args = &args;
    place.row_at = (int64_t)blockIdx.z * args.frames;
    place.head = (int)blockIdx.y;
    place.first = (int)blockIdx.x * form::queries;
    berth_parakeet_cuda_wait();
    berth_parakeet_cuda_next();
    place.count = min(args.count[blockIdx.z], args.frames);
    if (place.first >= place.count) {
        queries_clear<D, form::queries, form::threads>(&place);
        return;
    }
#pragma unroll
    for (int b = 0; b < D / 8; b++) {
        sums.values[b][0] = sums.values[b][1] = sums.values[b][2] = sums.values[b][3] = 0.0f;
    }
    sums.highest[0] = sums.highest[1] = -INFINITY;
    sums.total[0] = sums.total[1] = 0.0f;
    attend<D, WQ, WK, KB>(&place, (uint32_t)__cvta_generic_to_shared(shared), &sums);
    if (WK == 1) {
        queries_store<D>(&place, shared, &sums);
    } else {
        queries_merge<D, WK>(&place, (float *)shared, &sums);
    }
}

template <int D, int WQ, int WK, int KB>
static void launch(struct berth_parakeet_device *device, struct attention_args *args, uint32_t rows)
{
    using form = attention_form<D, WQ, WK, KB>;
    struct berth_parakeet_cuda_launch launch = {};
    void *arguments[] = {args};
    launch.name = "attention";
    launch.kernel = (const void *)attend_kernel<D, WQ, WK, KB>;
    launch.grid = dim3((unsigned)((args->frames + form::queries - 1) / form::queries),
                       (unsigned)args->heads, rows);
    launch.block = dim3(form::threads);
    launch.shared_bytes = form::shared_bytes;
    berth_parakeet_cuda_run(device, &launch, arguments);
}

/* Small tiles when large ones would leave multiprocessors idle, and the device has the memory. */
template <int D>
static void launch_form(struct berth_parakeet_device *device, struct attention_args *args,
                        uint32_t rows)
{
    static_assert(attention_form<D, 4, 1, 64>::shared_bytes <= BERTH_PARAKEET_CUDA_SHARED_LEAST,
                  "the large tiles fit on every target");
    const uint64_t blocks = (uint64_t)((args->frames + 63) / 64) * (uint64_t)args->heads * rows;
    if (blocks < (uint64_t)device->sm_count &&
        attention_form<D, 1, 4, 32>::shared_bytes <= device->shared_bytes_max) {
        launch<D, 1, 4, 32>(device, args, rows);
    } else {
        launch<D, 4, 1, 64>(device, args, rows);
    }
}

void berth_parakeet_cuda_attention(struct berth_parakeet_device *device,
                                   const struct berth_parakeet_shape *shape,
                                   const struct berth_parakeet_counts *counts,
                                   const struct berth_parakeet_attention_call *call)
{
    struct attention_args args = {};
    if (shape->padded.frames > call->position_max || call->position_max > 1u << 24) {
        berth_parakeet_cuda_refuse(device, "attention: frames for the positions there are",
                                   (long)shape->padded.frames);
        return;
    }
    args.qkv = (const __half *)call->qkv;
    args.position = (const __half *)call->position;
    args.bias_u = call->bias_u;
    args.bias_v = call->bias_v;
    args.count = counts->frames;
    args.out = (__half *)call->out;
    args.frames = (int)shape->padded.frames;
    args.heads = (int)call->heads;
    args.position_max = (int)call->position_max;
    args.position_rows = 2 * args.position_max - 1;
    args.scale = 1.44269504f / sqrtf((float)call->head_dim);
    switch (call->head_dim) {
    case 64:
        launch_form<64>(device, &args, shape->rows);
        break;
    case 128:
        launch_form<128>(device, &args, shape->rows);
        break;
    default:
        berth_parakeet_cuda_refuse(device, "attention: no kernel for a head of",
                                   (long)call->head_dim);
    }
}
