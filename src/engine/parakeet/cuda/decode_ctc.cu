/* decode_ctc.cu - CTC decoding: the best token of every frame, then runs of one token to one.
 *
 * Two kernels and no loop over steps. State: best token int32 [rows][frames], then its probability
 * float32 [rows][frames].
 * CPU reference: cpu_decode.c.
 */
#include "engine/parakeet/cuda/product.cuh"

#define CTC_FRAMES 32 /* of a block */
#define SPOILED (-2)  /* best token of a frame whose logits are no numbers */

struct ctc_args {
    uint32_t rows, frames, hidden, capacity;
    int32_t blank;
    struct head_shape head;
    const uint16_t *weight;          /* half [vocabulary][hidden] */
    const uint16_t *encoded;         /* half [rows][frames][hidden] */
    const int32_t *frames_used;      /* [rows] */
    const int32_t *spoiled;          /* [rows]; NULL: none is */
    const volatile uint32_t *stop;   /* [rows], the host's memory */
    struct berth_parakeet_tokens out;
    int32_t *best_token;             /* [rows][frames] */
    float *best_probability;
};

static __global__ void ctc_frames(const __grid_constant__ struct ctc_args args);
static __global__ void ctc_collapse(const __grid_constant__ struct ctc_args args);

void berth_parakeet_cuda_decode_ctc(struct berth_parakeet_device *device,
                                    const struct berth_parakeet_shape *shape,
                                    const struct berth_parakeet_counts *counts,
                                    const struct berth_parakeet_decode_call *call)
{
    struct ctc_args args = {};
    args.rows = shape->rows;
    args.frames = shape->padded.frames;
    args.hidden = call->config->hidden;
    args.capacity = call->tokens.capacity;
    args.blank = (int32_t)call->config->blank;
    args.head.bias = (const uint16_t *)call->weights->head.bias;
    args.head.vocabulary = call->config->vocabulary;
    args.head.outputs = call->config->vocabulary;
    args.weight = (const uint16_t *)call->weights->head.weight;
    args.encoded = (const uint16_t *)call->projected;
    args.frames_used = counts->frames;
    args.spoiled = counts->spoiled;
    args.stop = call->stop;
    args.out = call->tokens;
    args.best_token = (int32_t *)call->state;
    args.best_probability = (float *)call->state + (size_t)args.rows * args.frames;
    void *values[] = {&args};
    struct berth_parakeet_cuda_launch launch = {};
    launch.name = "decode: ctc frames";
    launch.kernel = (const void *)ctc_frames;
    launch.grid = dim3((args.frames + CTC_FRAMES - 1) / CTC_FRAMES, args.rows);
    launch.block = dim3(THREADS);
    launch.shared_bytes = part_bytes(CTC_FRAMES);
    berth_parakeet_cuda_run(device, &launch, values);

    launch.name = "decode: ctc collapse";
    launch.kernel = (const void *)ctc_collapse;
    launch.grid = dim3(args.rows);
    launch.block = dim3(32);
    launch.shared_bytes = 0;
    berth_parakeet_cuda_run(device, &launch, values);
}

/* Of what a quad saw before and what it sees now. */
static __device__ __forceinline__ void keep_best(struct best *kept, const struct best &now)
{
    if (now.token == 0) {
        return;
    }
    const float top = fmaxf(kept->sum.x, now.sum.x);
    const float before = top > -INFINITY ? __expf(kept->sum.x - top) : 1.0f;
    const float beside = top > -INFINITY ? __expf(now.sum.x - top) : 1.0f;
    kept->sum.y = kept->sum.y * before + now.sum.y * beside;
    kept->sum.x = top;
    kept->token = now.token > kept->token ? now.token : kept->token;
}

/* Best token and its probability of 32 frames of a row; grid (frames / 32, rows). The head is read
 * once a block (from L2), two tiles at a time; each quad of lanes keeps the best of what it saw. */
static __global__ void __launch_bounds__(THREADS)
    ctc_frames(const __grid_constant__ struct ctc_args args)
{
    constexpr int NT = CTC_FRAMES / 8;
    extern __shared__ __align__(16) float parts[];
    __shared__ struct best seen[TILES_AT_ONCE][CTC_FRAMES];
    berth_parakeet_cuda_wait();
    const uint32_t row = blockIdx.y, begin = blockIdx.x * CTC_FRAMES;
    const int32_t used = min(args.frames_used[row], (int32_t)args.frames);
    if ((int32_t)begin >= used) { /* the whole block */
        return;
    }
    struct product product = {};
    product.weight[0] = args.weight;
    product.in[0] = args.encoded + (size_t)row * args.frames * args.hidden;
    product.length = args.hidden;
    struct lane_rows<NT> rows = {};
#pragma unroll
    for (uint32_t j = 0; j < NT; j++) {
        const uint32_t frame = begin + j * 8 + (threadIdx.x & 31) / 4;
        rows.in[0][j] = ((int32_t)frame < used ? frame : begin) * args.hidden;
    }
    const struct item item = item_of<NT>(threadIdx.x); /* TILES_AT_ONCE x 32 x 4 are all threads */
    struct best best = {};
    best.sum.x = -INFINITY;
    const uint32_t tiles = (args.head.vocabulary + TILE - 1) / TILE;
    for (uint32_t tile = 0; tile < tiles; tile += TILES_AT_ONCE) {
        point_at_outputs<NT>(&rows, tile, 1, args.head.vocabulary, args.hidden);
        multiply<PLAIN, NT>(product, rows, parts);
        __syncthreads();
        const uint32_t output = (tile + item.tile) * TILE + item.quarter * 4;
        keep_best(&best, best_of(add_parts<NT>(parts, item), output, args.head));
        __syncthreads(); /* parts are written again */
    }
    if (item.quarter == 0) {
        seen[item.tile][item.column] = best;
    }
    __syncthreads();
    const int32_t frame = (int32_t)(begin + threadIdx.x);
    if (threadIdx.x < CTC_FRAMES && frame < used) {
        struct best whole = seen[0][threadIdx.x];
        keep_best(&whole, seen[1][threadIdx.x]);
        const size_t at = (size_t)row * args.frames + (size_t)frame;
        args.best_token[at] =
            key_finite(whole.token) ? (int32_t)key_index(whole.token) : SPOILED;
        args.best_probability[at] = 1.0f / whole.sum.y;
    }
}

/* A run of one token. */
struct run {
    int32_t token, begin;
    float best;
};

/* The run ends before frame `end`: a token, if it is not of blanks and there is room. */
static __device__ __forceinline__ void end_run(const struct ctc_args &args, const struct run &run,
                                               int32_t end, int32_t *count)
{
    if (run.token < 0 || run.token == args.blank || *count >= (int32_t)args.capacity) {
        return;
    }
    if (threadIdx.x == 0) {
        const size_t at = (size_t)blockIdx.x * args.capacity + (size_t)*count;
        args.out.token[at] = run.token;
        args.out.frame[at] = run.begin;
        args.out.duration[at] = end - run.begin;
        args.out.probability[at] = run.best;
    }
    (*count)++;
}

/* Runs of one token to one token each: a warp a row. Lanes load 32 frames, all lanes walk them. */
static __global__ void __launch_bounds__(32)
    ctc_collapse(const __grid_constant__ struct ctc_args args)
{
    berth_parakeet_cuda_wait();
    const uint32_t lane = threadIdx.x, row = blockIdx.x;
    const int32_t used = min(args.frames_used[row], (int32_t)args.frames);
    const uint32_t stop = args.stop[row];
    const int32_t frames = used > 0 && __shfl_sync(FULL, stop, 0) == 0 ? used : 0;
    const size_t base = (size_t)row * args.frames;
    int32_t count = 0;
    bool spoiled = frames > 0 && args.spoiled != NULL && args.spoiled[row] != 0;
    struct run run = {-1, 0, 0.0f};
    for (int32_t begin = 0; begin <= frames; begin += 32) {
        const int32_t mine = begin + (int32_t)lane;
        /* Past the end is a token that ends every run. */
        const int32_t tokens = mine < frames ? __ldcg(&args.best_token[base + (size_t)mine]) : -1;
        const float chances =
            mine < frames ? __ldcg(&args.best_probability[base + (size_t)mine]) : 0.0f;
        for (int32_t i = 0; i < 32 && begin + i <= frames; i++) {
            const int32_t token = __shfl_sync(FULL, tokens, i);
            const float chance = __shfl_sync(FULL, chances, i);
            spoiled = spoiled || token == SPOILED;
            if (token == run.token) {
                run.best = chance > run.best ? chance : run.best;
                continue;
            }
            end_run(args, run, begin + i, &count);
            run.token = token;
            run.begin = begin + i;
            run.best = chance;
        }
    }
    if (lane == 0) {
        args.out.count[row] = spoiled ? -1 : count;
        args.out.steps[row] = frames;
    }
}
