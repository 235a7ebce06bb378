/* cpu_attention.c - attention with relative positions on the CPU.
 *
 * A task is one head of one row for QUERIES queries. It goes over the keys in blocks and keeps each
 * query's highest score and sum (online softmax), so that its memory does not grow with the row.
 * For QUERIES queries and KEYS keys there are QUERIES + KEYS - 1 distances: one product gives the
 * scores of all of them, and a query's scores are a run in its line, one further left than the
 * line before: the shift is an index.
 *
 * Source: Dai et al., Transformer-XL (2019), appendix B, for the terms; Milakov and Gimelshein,
 * Online normalizer calculation for softmax (2018).
 */
#include "engine/parakeet/cpu_device.h"

#include <math.h>
#include <string.h>

#define QUERIES 64
#define KEYS 256
#define HEAD_MAX 256

struct work {
    const struct berth_parakeet_device *device;
    const struct berth_parakeet_shape *shape;
    const struct berth_parakeet_counts *counts;
    const struct berth_parakeet_attention_call *call;
};

/* A task's place and memory. */
struct block {
    uint32_t head;
    uint32_t frames; /* of the row */
    uint32_t first;  /* query */
    uint32_t count;  /* queries */
    const float *qkv;
    float *out;
    float *with_u; /* [QUERIES][head_dim]: q + u */
    float *with_v;
    float *packed;  /* of a product */
    float *scores;  /* [QUERIES][KEYS] */
    float *shifted; /* [QUERIES][QUERIES + KEYS] */
    float peak[QUERIES];
    float sum[QUERIES];
};

static void attend_block(const void *context, uint64_t index, float *scratch);
static void attend_keys(const struct work *work, struct block *block, uint32_t key);

void berth_parakeet_cpu_attention(struct berth_parakeet_device *device,
                                  const struct berth_parakeet_shape *shape,
                                  const struct berth_parakeet_counts *counts,
                                  const struct berth_parakeet_attention_call *call)
{
    struct work work = {device, shape, counts, call};
    BERTH_ASSERT(call->head_dim <= HEAD_MAX);
    BERTH_ASSERT(call->position_max >= shape->padded.frames);
    uint64_t blocks = (shape->padded.frames + QUERIES - 1) / QUERIES;
    berth_parakeet_spread(device, shape->rows * call->heads * blocks, attend_block, &work);
}

static void attend_block(const void *context, uint64_t index, float *scratch)
{
    const struct work *work = context;
    const struct berth_parakeet_attention_call *call = work->call;
    const struct berth_parakeet_loops *loops = work->device->loops;
    uint32_t padded = work->shape->padded.frames;
    uint32_t blocks = (padded + QUERIES - 1) / QUERIES;
    uint32_t dim = call->head_dim;
    size_t hidden = (size_t)call->heads * dim;
    uint32_t row = (uint32_t)(index / blocks / call->heads);
    struct block block = {.head = (uint32_t)(index / blocks % call->heads),
                          .frames = (uint32_t)work->counts->frames[row],
                          .first = (uint32_t)(index % blocks) * QUERIES};
    block.with_u = scratch;
    block.with_v = block.with_u + QUERIES * dim;
    block.packed = block.with_v + QUERIES * dim;
    block.scores = block.packed + BERTH_PARAKEET_PRODUCT_SCRATCH;
    block.shifted = block.scores + QUERIES * KEYS;
    block.qkv = (const float *)call->qkv + (size_t)row * padded * 3 * hidden + block.head * dim;
    block.out = (float *)call->out + ((size_t)row * padded + block.first) * hidden +
                (size_t)block.head * dim;
    uint32_t lines = padded - block.first < QUERIES ? padded - block.first : QUERIES;
    uint32_t left = block.frames > block.first ? block.frames - block.first : 0;
    block.count = left < lines ? left : lines;
    for (uint32_t i = block.count; i < lines; i++) {
        memset(block.out + i * hidden, 0, dim * sizeof(float));
    }
    if (block.count == 0) {
        return;
    }
    for (uint32_t i = 0; i < block.count; i++) {
        const float *query = block.qkv + (size_t)(block.first + i) * 3 * hidden;
        loops->add(query, call->bias_u + (size_t)block.head * dim, block.with_u + i * dim, dim);
        loops->add(query, call->bias_v + (size_t)block.head * dim, block.with_v + i * dim, dim);
        block.peak[i] = -INFINITY;
        block.sum[i] = 0;
    }
    for (uint32_t key = 0; key < block.frames; key += KEYS) {
        attend_keys(work, &block, key);
    }
    for (uint32_t i = 0; i < block.count; i++) {
        loops->multiply(block.out + i * hidden, 1.0F / block.sum[i], dim);
    }
}

/* Takes KEYS keys into the block's sums. */
static void attend_keys(const struct work *work, struct block *block, uint32_t key)
{
    const struct berth_parakeet_attention_call *call = work->call;
    const struct berth_parakeet_kernels *kernels = work->device->kernels;
    const struct berth_parakeet_loops *loops = work->device->loops;
    const uint32_t dim = call->head_dim;
    const uint64_t hidden = (uint64_t)call->heads * dim;
    const uint32_t keys = block->frames - key < KEYS ? block->frames - key : KEYS;
    struct berth_parakeet_product product = {.a = block->with_u,
                                             .b = block->qkv + (key * 3ULL + 1) * hidden,
                                             .c = block->scores,
                                             .a_stride = dim,
                                             .b_stride = 3 * hidden,
                                             .c_stride = KEYS,
                                             .n = block->count,
                                             .columns = keys,
                                             .depth = dim,
                                             .scale = 1.0F};
    berth_parakeet_multiply(kernels, &product, block->packed);
    /* Of the last query and the first key: the lowest place. */
    uint32_t place = call->position_max - 1 - (block->first + block->count - 1) + key;
    product.a = block->with_v;
    product.b = (const float *)call->position + place * hidden + block->head * dim;
    product.b_stride = hidden;
    product.c = block->shifted;
    product.c_stride = QUERIES + KEYS;
    product.columns = block->count + keys - 1;
    berth_parakeet_multiply(kernels, &product, block->packed);
    float scale = 1.0F / sqrtf((float)dim);
    for (uint32_t i = 0; i < block->count; i++) {
        float before = block->peak[i];
        const float *shifted = block->shifted + (size_t)i * (QUERIES + KEYS) +
                               (block->count - 1 - i);
        float sum = loops->soften(block->scores + (size_t)i * KEYS, shifted, scale, keys,
                                  &block->peak[i]);
        float kept = key > 0 ? expf(before - block->peak[i]) : 0.0F;
        block->sum[i] = block->sum[i] * kept + sum;
        if (key > 0 && kept != 1.0F) {
            loops->multiply(block->out + i * hidden, kept, dim);
        }
    }
    product = (struct berth_parakeet_product){.a = block->scores,
                                              .b = block->qkv + (key * 3ULL + 2) * hidden,
                                              .c = block->out,
                                              .a_stride = KEYS,
                                              .b_stride = 3 * hidden,
                                              .c_stride = hidden,
                                              .n = block->count,
                                              .columns = dim,
                                              .depth = keys,
                                              .scale = 1.0F,
                                              .across = true,
                                              .add = key > 0};
    berth_parakeet_multiply(kernels, &product, block->packed);
}
