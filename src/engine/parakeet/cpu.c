/* cpu.c - the Parakeet back end of the CPU: plain C in float32.
 *
 * Every operation is a loop over independent tasks on the device's workers (cpu_pool.c): some
 * columns of a product, a head, some frames. A row's results do not depend on how it is cut into
 * tasks (cpu_product.h), so they are bit for bit the same alone and among others, in any bucket and
 * with any number of threads.
 * What lies past a row's own length is not computed where nobody reads it.
 */
#include "engine/parakeet/cpu.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/parakeet/cpu_device.h"

#define ALIGNMENT 256
#define COLUMNS (2 * BERTH_PARAKEET_PANEL) /* of a product in a task */
#define VECTORS 512                        /* and so many of its vectors */
#define NORM_VECTORS 32                    /* of a task */
#define READERS_MAX 8
/* What the loops assert. */
#define HEAD_MAX 256
#define MELS_MAX 128
#define CHANNELS_MAX 8192

struct product {
    const struct berth_parakeet_device *device;
    const struct berth_parakeet_linear_call *call;
    uint64_t row_vectors; /* of each row, with padding */
    uint32_t column_blocks;
};

/* Vectors of one row that a task computes. */
struct piece {
    uint64_t first;
    uint32_t n;
};

struct norms {
    const struct berth_parakeet_device *device;
    const struct berth_parakeet_norm *first;
    const struct berth_parakeet_norm *second; /* NULL: one */
    const float *in;
    float *through;
    float *out;
    uint64_t n;
    uint32_t hidden;
};

static void multiply_block(const void *context, uint64_t index, float *scratch);
static bool next_piece(const struct product *product, uint64_t end, struct piece *piece);
static void copy_residual(const struct product *product, const struct piece *piece, uint32_t column,
                          uint32_t columns);
static void finish_piece(const struct product *product, const struct piece *piece, uint32_t column);
static void norm_vectors(const void *context, uint64_t index, float *scratch);
static enum berth_code write_weights(void *state, uint64_t offset, const void *source, size_t bytes,
                                     struct berth_err *err);

void berth_parakeet_spread(struct berth_parakeet_device *device, uint64_t count,
                           berth_parakeet_task *task, const void *context)
{
    berth_parakeet_pool_run(device->pool, count, task, context);
}

static void close_device(struct berth_parakeet_device *device)
{
    if (device == NULL) {
        return;
    }
    berth_parakeet_pool_destroy(device->pool);
    berth_parakeet_frontend_destroy(device->frontend);
    berth_free(device);
}

static enum berth_code check_config(const struct berth_parakeet_config *config,
                                    struct berth_err *err)
{
    if (config->head_dim > HEAD_MAX) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "encoder_config.hidden_size: a head of %u; a CPU takes up to %d",
                          config->head_dim, HEAD_MAX);
    }
    if (config->mels % 8 != 0 || config->mels > MELS_MAX) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "encoder_config.num_mel_bins: %u; a CPU takes multiples of 8 up to %d",
                          config->mels, MELS_MAX);
    }
    if (config->channels > CHANNELS_MAX) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "encoder_config.subsampling_conv_channels: %u; a CPU takes up to %d",
                          config->channels, CHANNELS_MAX);
    }
    return BERTH_OK;
}

static enum berth_code open_device(const char *name, uint32_t threads,
                                   struct berth_parakeet_device **out, struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_parakeet_device *device = berth_alloc(sizeof(*device));
    if (device == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the device %s",
                          name == NULL ? "cpu:0" : name);
    }
    device->kernels = berth_parakeet_kernels_choose();
    device->loops = berth_parakeet_loops_choose();
    code = berth_parakeet_frontend_create(&device->frontend, err);
    if (code != BERTH_OK) {
        goto out;
    }
    threads = threads < BERTH_PARAKEET_THREADS_MAX ? threads : BERTH_PARAKEET_THREADS_MAX;
    code = berth_parakeet_pool_create(threads, &device->pool, err);
    if (code != BERTH_OK) {
        goto out;
    }
    device->bytes = threads * (uint64_t)BERTH_PARAKEET_SCRATCH * sizeof(float);
    *out = device;
    device = NULL;
out:
    close_device(device);
    return code;
}

static uint64_t kept_bytes(const struct berth_parakeet_device *device)
{
    return device->bytes;
}

static enum berth_code load_weights(const char *device, const struct berth_parakeet_config *config,
                                    const char *folder, void *span, struct berth_err *err)
{
    const struct berth_parakeet_sink sink = {
        .write = write_weights, .state = span, .readers = READERS_MAX};
    return berth_parakeet_weights_read(config, BERTH_PARAKEET_F32, folder, &sink, err);
}

static enum berth_code write_weights(void *state, uint64_t offset, const void *source, size_t bytes,
                                     struct berth_err *err)
{
    memcpy((char *)state + offset, source, bytes);
    return BERTH_OK;
}

/* The pointer that berth_free wants lies before the memory handed out. */
static void *alloc_memory(struct berth_parakeet_device *device, size_t bytes)
{
    size_t whole = 0;
    if (!berth_add_size(bytes, ALIGNMENT + sizeof(void *), &whole)) {
        return NULL;
    }
    char *memory = berth_alloc(whole);
    if (memory == NULL) {
        return NULL;
    }
    uintptr_t past = ((uintptr_t)memory + sizeof(void *)) % ALIGNMENT;
    char *aligned = memory + sizeof(void *) + (past == 0 ? 0 : ALIGNMENT - past);
    ((void **)(void *)aligned)[-1] = memory;
    return aligned;
}

static void free_shared(struct berth_parakeet_device *device, void *memory)
{
    if (memory != NULL) {
        berth_free(((void **)memory)[-1]);
    }
}

static void free_memory(struct berth_parakeet_device *device, void *memory, size_t bytes)
{
    free_shared(device, memory);
}

static void *alloc_shared(struct berth_parakeet_device *device, size_t bytes, void **on_device)
{
    void *memory = alloc_memory(device, bytes);
    *on_device = memory;
    return memory;
}

static void copy(struct berth_parakeet_device *device, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static enum berth_code finish(struct berth_parakeet_device *device, struct berth_err *err)
{
    return BERTH_OK;
}

static void linear(struct berth_parakeet_device *device,
                   const struct berth_parakeet_linear_call *call)
{
    uint32_t rows = call->used == NULL ? 1 : call->rows;
    BERTH_ASSERT(rows > 0 && call->n % rows == 0);
    struct product product = {.device = device, .call = call, .row_vectors = call->n / rows};
    product.column_blocks = (call->linear->out + COLUMNS - 1) / COLUMNS;
    uint64_t vector_blocks = (call->n + VECTORS - 1) / VECTORS;
    berth_parakeet_spread(device, vector_blocks * product.column_blocks, multiply_block, &product);
}

/* COLUMNS outputs of VECTORS vectors, of all rows that lie there: each panel of the weights is
 * packed once for them. */
static void multiply_block(const void *context, uint64_t index, float *scratch)
{
    const struct product *product = context;
    const struct berth_parakeet_linear_call *call = product->call;
    const struct berth_parakeet_linear *linear = call->linear;
    const struct berth_parakeet_kernels *kernels = product->device->kernels;
    uint32_t column = (uint32_t)(index % product->column_blocks) * COLUMNS;
    uint64_t begin = index / product->column_blocks * VECTORS;
    uint64_t end = call->n - begin < VECTORS ? call->n : begin + VECTORS;
    uint32_t columns = linear->out - column < COLUMNS ? linear->out : column + COLUMNS;
    struct berth_parakeet_product run = {.b = linear->weight,
                                         .a_stride = linear->in,
                                         .b_stride = linear->in,
                                         .c_stride = linear->out,
                                         .columns = linear->out,
                                         .depth = linear->in,
                                         .scale = call->scale};
    struct piece piece = {.first = begin};
    if (!next_piece(product, end, &piece)) {
        return; /* padding alone */
    }
    for (uint32_t depth = 0; depth < linear->in; depth += BERTH_PARAKEET_DEPTH) {
        for (uint32_t c = column; c < columns; c += BERTH_PARAKEET_PANEL) {
            struct berth_parakeet_panel panel;
            const uint32_t at[2] = {c, depth};
            berth_parakeet_panel_fill(kernels, &run, at, &panel, scratch);
            run.add = depth > 0 || call->residual != NULL;
            piece = (struct piece){.first = begin};
            while (next_piece(product, end, &piece)) {
                run.a = (const float *)call->in + piece.first * linear->in + depth;
                run.c = (float *)call->out + piece.first * linear->out + c;
                run.n = piece.n;
                if (depth == 0 && call->residual != NULL && call->residual != call->out) {
                    copy_residual(product, &piece, c, panel.columns);
                }
                berth_parakeet_panel_multiply(kernels, &panel, &run);
            }
        }
    }
    piece = (struct piece){.first = begin};
    while (next_piece(product, end, &piece)) {
        finish_piece(product, &piece, column);
    }
}

/* The next vectors of one row, from past the last piece to `end`, that are wanted. */
static bool next_piece(const struct product *product, uint64_t end, struct piece *piece)
{
    const struct berth_parakeet_linear_call *call = product->call;
    uint64_t at = piece->first + piece->n;
    while (at < end) {
        uint64_t row = at / product->row_vectors;
        uint64_t used = product->row_vectors;
        if (call->used != NULL && (uint64_t)call->used[row] * call->each < used) {
            used = (uint64_t)call->used[row] * call->each;
        }
        uint64_t row_end = row * product->row_vectors + used;
        if (at < row_end) {
            piece->first = at;
            piece->n = (uint32_t)((row_end < end ? row_end : end) - at);
            return true;
        }
        at = (row + 1) * product->row_vectors;
    }
    return false;
}

static void copy_residual(const struct product *product, const struct piece *piece, uint32_t column,
                          uint32_t columns)
{
    const struct berth_parakeet_linear_call *call = product->call;
    for (uint64_t i = piece->first; i < piece->first + piece->n; i++) {
        uint64_t at = i * call->linear->out + column;
        memcpy((float *)call->out + at, (const float *)call->residual + at,
               columns * sizeof(float));
    }
}

static void finish_piece(const struct product *product, const struct piece *piece, uint32_t column)
{
    const struct berth_parakeet_linear_call *call = product->call;
    uint32_t out = call->linear->out;
    struct berth_parakeet_tile tile = {
        .out = (float *)call->out + piece->first * out + column,
        .stride = out,
        .n = piece->n,
        .columns = out - column < COLUMNS ? out - column : COLUMNS,
        .scale = call->scale,
        .activation = call->activation,
    };
    if (call->linear->bias != NULL) {
        tile.bias = (const float *)call->linear->bias + column;
    }
    if (tile.bias != NULL || tile.activation != BERTH_PARAKEET_NONE) {
        product->device->loops->finish_tile(&tile);
    }
}

static void norm(struct berth_parakeet_device *device, const struct berth_parakeet_norm_call *call)
{
    const struct norms norms = {
        .device = device,
        .first = call->norm,
        .second = call->second,
        .in = call->in,
        .through = call->second == NULL ? call->out : call->through,
        .out = call->out,
        .n = call->n,
        .hidden = call->hidden,
    };
    BERTH_ASSERT(call->out_scale == NULL); /* weights here have no scales */
    berth_parakeet_spread(device, (call->n + NORM_VECTORS - 1) / NORM_VECTORS, norm_vectors,
                          &norms);
}

static void norm_vectors(const void *context, uint64_t index, float *scratch)
{
    const struct norms *norms = context;
    const struct berth_parakeet_loops *loops = norms->device->loops;
    uint64_t end = (index + 1) * NORM_VECTORS < norms->n ? (index + 1) * NORM_VECTORS : norms->n;
    for (uint64_t i = index * NORM_VECTORS; i < end; i++) {
        uint64_t at = i * norms->hidden;
        loops->norm(norms->first, norms->in + at, norms->through + at, norms->hidden);
        if (norms->second != NULL) {
            loops->norm(norms->second, norms->through + at, norms->out + at, norms->hidden);
        }
    }
}

static void positions(struct berth_parakeet_device *device, uint32_t position_max, uint32_t hidden,
                      void *out)
{
    float *to = out;
    for (uint32_t p = 0; p < 2 * position_max - 1; p++) {
        float distance = (float)((int64_t)position_max - 1 - p);
        for (uint32_t c = 0; c < hidden; c++) {
            float frequency = (float)(1.0 / pow(10000.0, (double)(c / 2 * 2) / hidden));
            double angle = frequency * distance; /* rounded to float, as models are trained */
            *to++ = (float)(c % 2 == 0 ? sin(angle) : cos(angle));
        }
    }
}

const struct berth_parakeet_ops berth_parakeet_cpu = {
    .name = "cpu",
    .element = BERTH_PARAKEET_F32,
    .check = check_config,
    .open = open_device,
    .close = close_device,
    .weights_load = load_weights,
    .alloc = alloc_memory,
    .free = free_memory,
    .alloc_shared = alloc_shared,
    .free_shared = free_shared,
    .upload = copy,
    .download = copy,
    .finish = finish,
    .kept_bytes = kept_bytes,
    .features = berth_parakeet_cpu_features,
    .subsample_first = berth_parakeet_cpu_subsample_first,
    .subsample_third = berth_parakeet_cpu_subsample_third,
    .linear = linear,
    .norm = norm,
    .attention = berth_parakeet_cpu_attention,
    .convolve = berth_parakeet_cpu_convolve,
    .positions = positions,
    .decode = berth_parakeet_cpu_decode,
    .decode_state_bytes = berth_parakeet_cpu_decode_state_bytes,
};
