/* encoder.c - one order of operations for both devices.
 *
 * A run's memory on the device is one block, laid out by a table (layout_run): what a later stage
 * does not read lies under that stage's buffers. The half-step residuals go into the products that
 * make them, and a layer's last normalisation goes with the next layer's first.
 * On the CPU a call of advance is one stage, and before each the host takes out the rows nobody
 * waits for: their lengths become 0, and a row without frames costs nothing. On a device that
 * records, all of it is one graph; only the uploads, whose sizes are the rows' own, stand before
 * it.
 */
#include "engine/parakeet/encoder.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

#define ALIGNMENT 256
#define STEPS_MAX 64        /* of a decoding stage on the CPU */
#define COUNTS 5 /* lengths of a row; behind them lies `spoiled` */
#define EXTENTS 3

enum buffer {
    FEATURES,  /* kept: for probes, and for runs that start there */
    LENGTHS,   /* int32 [COUNTS + 1][rows] */
    HIDDEN,    /* the stream: what the layers add to, float32 */
    PROJECTED, /* none for CTC */
    STATE,     /* of decoding */
    TOKENS,
    /* In place of each other from here on: */
    PCM,
    WIDE_A, /* subsampling, back and forth */
    WIDE_B,
    NORMED, /* what a module reads; in the end the encoder's output */
    INNER,  /* what its first product makes */
    GATED,  /* what its last product reads */
    /* Only where weights have scales: */
    NORMED_SCALE, /* float32, one a vector */
    INNER_NARROW, /* a feed-forward's inner vectors, e4m3 */
    INNER_SCALE,
    BUFFER_COUNT
};

struct layout {
    uint64_t offsets[BUFFER_COUNT];
    uint64_t bytes;
    uint32_t capacity; /* tokens of a row */
    uint64_t token_bytes;
    /* In shared memory: the PCM, lengths, stop flags, tokens. */
    uint64_t shared_lengths, shared_stop, shared_tokens, shared_bytes;
};

struct berth_parakeet_net {
    const struct berth_parakeet_ops *ops;
    struct berth_parakeet_device *device;
    const struct berth_parakeet_config *config;
    const struct berth_parakeet_weights *weights;
    uint32_t frames_max;
    void *positions; /* elements [layers][2 * frames_max - 1][hidden] */
    uint64_t positions_bytes;
    uint64_t table_bytes; /* of one layer */
};

struct berth_parakeet_run {
    struct berth_parakeet_net *net;
    struct berth_parakeet_shape shape;
    struct layout layout;
    char *block;  /* of the device */
    char *shared; /* the host's view */
    char *shared_on_device;
    struct berth_parakeet_counts counts;
    uint64_t id;
    enum berth_parakeet_extent extent;
    uint32_t stage; /* the next: 0, a layer + 1, the projector, decoding */
    bool decoding;  /* its first call is over */
};

static _Atomic uint64_t run_count; /* of the process: a graph's key stands for one run for ever */

static void layout_run(const struct berth_parakeet_ops *ops,
                       const struct berth_parakeet_config *config,
                       const struct berth_parakeet_shape *shape, struct layout *out);
static uint64_t element_bytes(const struct berth_parakeet_ops *ops);
static uint64_t table_bytes(const struct berth_parakeet_ops *ops,
                            const struct berth_parakeet_config *config, uint32_t frames_max);
static enum berth_code make_positions(struct berth_parakeet_net *net, struct berth_err *err);
static float value_of_half(uint16_t half);
static int32_t *shared_lengths(struct berth_parakeet_run *run);
static uint32_t *shared_stop(struct berth_parakeet_run *run);
static void *buffer(const struct berth_parakeet_run *run, enum buffer which);
static void upload(struct berth_parakeet_run *run);
static bool advance_recorded(struct berth_parakeet_run *run);
static bool take_out_stopped(struct berth_parakeet_run *run);
static void run_subsampling(struct berth_parakeet_run *run);
static void run_layer(struct berth_parakeet_run *run, uint32_t index);
static void run_attention(struct berth_parakeet_run *run, uint32_t index);
static void run_projector(struct berth_parakeet_run *run);
static bool run_decoding(struct berth_parakeet_run *run);
static struct berth_parakeet_tokens tokens_at(const struct berth_parakeet_run *run, char *base);

/* lib-shaped */
enum berth_code berth_parakeet_net_create(const struct berth_parakeet_ops *ops,
                                          struct berth_parakeet_device *device,
                                          const struct berth_parakeet_config *config,
                                          const struct berth_parakeet_weights *weights,
                                          uint32_t frames_max, struct berth_parakeet_net **out,
                                          struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_parakeet_net *net = NULL;
    BERTH_ASSERT(frames_max > 0);
    net = berth_alloc(sizeof(*net));
    if (net == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a model's tables");
    }
    net->ops = ops;
    net->device = device;
    net->config = config;
    net->weights = weights;
    net->frames_max = frames_max;
    code = make_positions(net, err);
    if (code != BERTH_OK) {
        goto out;
    }
    *out = net;
    net = NULL;
out:
    berth_parakeet_net_destroy(net);
    return code;
}

void berth_parakeet_net_destroy(struct berth_parakeet_net *net)
{
    if (net == NULL) {
        return;
    }
    if (net->positions != NULL) {
        net->ops->free(net->device, net->positions, net->positions_bytes);
    }
    berth_free(net);
}

uint64_t berth_parakeet_net_bytes(const struct berth_parakeet_ops *ops,
                                  const struct berth_parakeet_config *config, uint32_t frames_max)
{
    return table_bytes(ops, config, frames_max) * config->layers;
}

/* Of one layer's positions. */
static uint64_t table_bytes(const struct berth_parakeet_ops *ops,
                            const struct berth_parakeet_config *config, uint32_t frames_max)
{
    uint64_t bytes = (2 * (uint64_t)frames_max - 1) * config->hidden * element_bytes(ops);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Each layer's projection of the sinusoids, once for all runs. */
static enum berth_code make_positions(struct berth_parakeet_net *net, struct berth_err *err)
{
    const struct berth_parakeet_ops *ops = net->ops;
    uint64_t lines = 2 * (uint64_t)net->frames_max - 1;
    uint64_t bytes = lines * net->config->hidden * element_bytes(ops);
    net->table_bytes = table_bytes(ops, net->config, net->frames_max);
    net->positions_bytes = net->table_bytes * net->config->layers;
    net->positions = ops->alloc(net->device, net->positions_bytes);
    void *sinusoids = ops->alloc(net->device, bytes);
    if (net->positions == NULL || sinusoids == NULL) {
        if (sinusoids != NULL) {
            ops->free(net->device, sinusoids, bytes);
        }
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for position tables of %llu bytes",
                          (unsigned long long)net->positions_bytes);
    }
    ops->positions(net->device, net->frames_max, net->config->hidden, sinusoids);
    for (uint32_t i = 0; i < net->config->layers; i++) {
        const struct berth_parakeet_linear_call call = {.linear = &net->weights->layers[i].position,
                                                        .in = sinusoids,
                                                        .out = (char *)net->positions +
                                                               i * net->table_bytes,
                                                        .scale = 1.0F,
                                                        .n = lines};
        ops->linear(net->device, &call);
    }
    enum berth_code code = ops->finish(net->device, err);
    ops->free(net->device, sinusoids, bytes);
    return code;
}

static uint64_t element_bytes(const struct berth_parakeet_ops *ops)
{
    return ops->element == BERTH_PARAKEET_F32 ? 4 : 2;
}

uint64_t berth_parakeet_run_bytes(const struct berth_parakeet_ops *ops,
                                  const struct berth_parakeet_config *config,
                                  const struct berth_parakeet_shape *shape)
{
    struct layout layout;
    layout_run(ops, config, shape, &layout);
    /* On the CPU the shared block is memory of the device too. */
    return layout.bytes + (ops->element == BERTH_PARAKEET_F32 ? layout.shared_bytes : 0);
}

static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t offset = *end;
    *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return offset;
}

static void layout_run(const struct berth_parakeet_ops *ops,
                       const struct berth_parakeet_config *config,
                       const struct berth_parakeet_shape *shape, struct layout *out)
{
    const struct berth_parakeet_lengths *padded = &shape->padded;
    uint64_t rows = shape->rows;
    uint64_t size = element_bytes(ops);
    uint64_t vectors = rows * padded->frames * size;
    uint64_t wide = rows * padded->quarter * (config->mels / 4) * config->channels * size;
    uint32_t inner = config->inner > 3 * config->hidden ? config->inner : 3 * config->hidden;
    memset(out, 0, sizeof(*out));
    out->capacity = padded->frames * config->symbols_max + 1; /* more than a row can have */
    out->token_bytes = rows * (2 + 4 * (uint64_t)out->capacity) * sizeof(int32_t);

    uint64_t end = 0;
    out->offsets[FEATURES] = place(&end, rows * padded->features * config->mels * size);
    out->offsets[LENGTHS] = place(&end, (COUNTS + 1) * rows * sizeof(int32_t));
    out->offsets[HIDDEN] = place(&end, rows * padded->frames * config->hidden * sizeof(float));
    out->offsets[PROJECTED] = place(&end, vectors * config->prediction);
    out->offsets[STATE] = place(&end, ops->decode_state_bytes(config, shape));
    out->offsets[TOKENS] = place(&end, out->token_bytes);
    uint64_t pcm_end = end;
    out->offsets[PCM] = place(&pcm_end, rows * padded->samples * sizeof(float));
    uint64_t wide_end = end;
    out->offsets[WIDE_A] = place(&wide_end, wide);
    out->offsets[WIDE_B] = place(&wide_end, wide);
    out->offsets[NORMED] = place(&end, vectors * config->hidden);
    out->offsets[INNER] = place(&end, vectors * inner);
    out->offsets[GATED] = place(&end, vectors * config->hidden);
    if (config->narrow) {
        out->offsets[NORMED_SCALE] = place(&end, rows * padded->frames * sizeof(float));
        out->offsets[INNER_NARROW] = place(&end, rows * padded->frames * config->inner);
        out->offsets[INNER_SCALE] = place(&end, rows * padded->frames * sizeof(float));
    }
    end = pcm_end > end ? pcm_end : end;
    out->bytes = wide_end > end ? wide_end : end;

    place(&out->shared_bytes, rows * padded->samples * sizeof(float));
    out->shared_lengths = place(&out->shared_bytes, (COUNTS + 1) * rows * sizeof(int32_t));
    out->shared_stop = place(&out->shared_bytes, rows * sizeof(uint32_t));
    out->shared_tokens = place(&out->shared_bytes, out->token_bytes);
}

enum berth_code berth_parakeet_run_create(struct berth_parakeet_net *net,
                                          const struct berth_parakeet_shape *shape,
                                          struct berth_parakeet_run **out, struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_parakeet_run *run = NULL;
    void *on_device = NULL;
    if (shape->rows == 0 || shape->padded.frames > net->frames_max) {
        return berth_fail(err, BERTH_INVALID, "a bucket of %u rows of %u frames; frames_max is %u",
                          shape->rows, shape->padded.frames, net->frames_max);
    }
    run = berth_alloc(sizeof(*run));
    if (run == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a bucket");
    }
    run->net = net;
    run->shape = *shape;
    run->id = atomic_fetch_add(&run_count, 1);
    layout_run(net->ops, net->config, shape, &run->layout);
    run->block = net->ops->alloc(net->device, run->layout.bytes);
    run->shared = net->ops->alloc_shared(net->device, run->layout.shared_bytes, &on_device);
    run->shared_on_device = on_device;
    if (run->block == NULL || run->shared == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for a bucket of %u rows of %u samples",
                          shape->rows, shape->padded.samples);
        goto out;
    }
    int32_t *lengths = buffer(run, LENGTHS);
    run->counts = (struct berth_parakeet_counts){
        .samples = lengths,
        .features = lengths + shape->rows,
        .half = lengths + 2 * (size_t)shape->rows,
        .quarter = lengths + 3 * (size_t)shape->rows,
        .frames = lengths + 4 * (size_t)shape->rows,
        .spoiled = lengths + COUNTS * (size_t)shape->rows,
    };
    memset(run->shared + run->layout.shared_lengths, 0,
           run->layout.shared_bytes - run->layout.shared_lengths);
    *out = run;
    run = NULL;
out:
    berth_parakeet_run_destroy(run);
    return code;
}

void berth_parakeet_run_destroy(struct berth_parakeet_run *run)
{
    if (run == NULL) {
        return;
    }
    const struct berth_parakeet_net *net = run->net;
    /* One that was not made whole has no graph; its device may be at work on another thread. */
    const bool whole = run->block != NULL && run->shared != NULL;
    for (uint32_t i = 0; i < EXTENTS && whole && net->ops->record != NULL; i++) {
        net->ops->forget(net->device, run->id * EXTENTS + i);
    }
    if (run->shared != NULL) {
        net->ops->free_shared(net->device, run->shared);
    }
    if (run->block != NULL) {
        net->ops->free(net->device, run->block, run->layout.bytes);
    }
    berth_free(run);
}

void berth_parakeet_run_set_extent(struct berth_parakeet_run *run,
                                   enum berth_parakeet_extent extent)
{
    run->extent = extent;
}

float *berth_parakeet_run_pcm(struct berth_parakeet_run *run, uint32_t row)
{
    BERTH_ASSERT(row < run->shape.rows);
    return (float *)(void *)run->shared + (size_t)row * run->shape.padded.samples;
}

void berth_parakeet_run_begin(struct berth_parakeet_run *run, const uint32_t *samples)
{
    uint32_t rows = run->shape.rows;
    int32_t *to = shared_lengths(run);
    for (uint32_t r = 0; r < rows; r++) {
        BERTH_ASSERT(samples[r] <= run->shape.padded.samples);
        const struct berth_parakeet_lengths own = berth_parakeet_lengths_of(samples[r]);
        const uint32_t lengths[COUNTS] = {own.samples, own.features, own.half, own.quarter,
                                          own.frames};
        for (uint32_t i = 0; i < COUNTS; i++) {
            to[i * rows + r] = (int32_t)lengths[i];
        }
        __atomic_store_n(&shared_stop(run)[r], 0, __ATOMIC_RELAXED);
    }
    memset(run->shared + run->layout.shared_tokens, 0, 2 * rows * sizeof(int32_t));
    run->stage = 0;
    run->decoding = false;
}

bool berth_parakeet_run_advance(struct berth_parakeet_run *run)
{
    const uint32_t layers = run->net->config->layers;
    if (run->net->ops->record != NULL) {
        return advance_recorded(run);
    }
    if (!run->decoding && !take_out_stopped(run)) {
        return false;
    }
    if (run->stage == 0) {
        upload(run);
        run_subsampling(run);
    } else if (run->stage <= layers) {
        run_layer(run, run->stage - 1);
    } else if (run->stage == layers + 1) {
        run_projector(run);
        if (run->extent != BERTH_PARAKEET_WHOLE) {
            return false;
        }
    } else {
        return !run_decoding(run);
    }
    run->stage++;
    return true;
}

void berth_parakeet_run_stop(struct berth_parakeet_run *run, uint32_t row)
{
    BERTH_ASSERT(row < run->shape.rows);
    __atomic_store_n(&shared_stop(run)[row], 1, __ATOMIC_RELAXED);
}

enum berth_code berth_parakeet_run_finish(struct berth_parakeet_run *run,
                                          struct berth_parakeet_tokens *out, struct berth_err *err)
{
    BERTH_TRY(run->net->ops->finish(run->net->device, err));
    if (run->extent == BERTH_PARAKEET_WHOLE) {
        *out = tokens_at(run, run->shared + run->layout.shared_tokens);
    } else {
        memset(out, 0, sizeof(*out));
    }
    return BERTH_OK;
}

enum berth_code berth_parakeet_run_probe(struct berth_parakeet_run *run,
                                         enum berth_parakeet_probe what, float *out,
                                         struct berth_err *err)
{
    const struct berth_parakeet_net *net = run->net;
    const struct berth_parakeet_lengths *padded = &run->shape.padded;
    enum buffer from = FEATURES;
    uint64_t count = (uint64_t)run->shape.rows * padded->features * net->config->mels;
    if (what != BERTH_PARAKEET_PROBE_FEATURES) {
        bool encoded = what == BERTH_PARAKEET_PROBE_ENCODED;
        from = encoded ? NORMED : PROJECTED;
        count = (uint64_t)run->shape.rows * padded->frames *
                (encoded ? net->config->hidden : net->config->prediction);
    }
    void *on_device = NULL;
    size_t bytes = count * element_bytes(net->ops);
    void *copy = net->ops->alloc_shared(net->device, bytes, &on_device);
    if (copy == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a copy of %zu bytes", bytes);
    }
    net->ops->download(net->device, copy, buffer(run, from), bytes);
    enum berth_code code = net->ops->finish(net->device, err);
    if (code == BERTH_OK && net->ops->element == BERTH_PARAKEET_F32) {
        memcpy(out, copy, bytes);
    } else if (code == BERTH_OK) {
        const uint16_t *halves = copy;
        for (uint64_t i = 0; i < count; i++) {
            out[i] = value_of_half(halves[i]);
        }
    }
    net->ops->free_shared(net->device, copy);
    return code;
}

static float value_of_half(uint16_t half)
{
    const int exponent = half >> 10 & 31;
    const float fraction = (float)(half & 0x3FF) * 0x1p-10F;
    const float magnitude = exponent == 31  ? (fraction > 0 ? NAN : INFINITY)
                            : exponent == 0 ? ldexpf(fraction, -14)
                                            : ldexpf(1 + fraction, exponent - 15);
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

static int32_t *shared_lengths(struct berth_parakeet_run *run)
{
    return (int32_t *)(void *)(run->shared + run->layout.shared_lengths);
}

static uint32_t *shared_stop(struct berth_parakeet_run *run)
{
    return (uint32_t *)(void *)(run->shared + run->layout.shared_stop);
}

static void *buffer(const struct berth_parakeet_run *run, enum buffer which)
{
    return run->block + run->layout.offsets[which];
}

static void upload_lengths(struct berth_parakeet_run *run)
{
    run->net->ops->upload(run->net->device, buffer(run, LENGTHS), shared_lengths(run),
                          (COUNTS + 1) * run->shape.rows * sizeof(int32_t));
}

static void upload(struct berth_parakeet_run *run)
{
    upload_lengths(run);
    for (uint32_t r = 0; run->extent != BERTH_PARAKEET_ENCODER_ALONE && r < run->shape.rows; r++) {
        size_t samples = (size_t)shared_lengths(run)[r];
        if (samples > 0) {
            float *to = (float *)buffer(run, PCM) + (size_t)r * run->shape.padded.samples;
            run->net->ops->upload(run->net->device, to, berth_parakeet_run_pcm(run, r),
                                  samples * sizeof(float));
        }
    }
}

static uint64_t key_of(const struct berth_parakeet_run *run)
{
    return run->id * EXTENTS + (uint64_t)run->extent;
}

static void record_graph(struct berth_parakeet_run *run)
{
    if (!run->net->ops->record(run->net->device, key_of(run))) {
        return;
    }
    run_subsampling(run);
    for (uint32_t i = 0; i < run->net->config->layers; i++) {
        run_layer(run, i);
    }
    run_projector(run);
    while (run->extent == BERTH_PARAKEET_WHOLE && !run_decoding(run)) {
    }
}

static bool advance_recorded(struct berth_parakeet_run *run)
{
    upload(run);
    record_graph(run);
    run->net->ops->play(run->net->device, key_of(run));
    return false;
}

enum berth_code berth_parakeet_run_record(struct berth_parakeet_run *run, struct berth_err *err)
{
    run->decoding = false;
    record_graph(run);
    run->net->ops->keep(run->net->device, key_of(run));
    return run->net->ops->finish(run->net->device, err);
}

uint32_t berth_parakeet_products(const struct berth_parakeet_config *config,
                                 const struct berth_parakeet_weights *weights,
                                 const struct berth_parakeet_shape *shape,
                                 struct berth_parakeet_linear_call *out)
{
    const struct berth_parakeet_layer *layer = &weights->layers[0]; /* the others are alike */
    const uint64_t frames = (uint64_t)shape->rows * shape->padded.frames;
    const uint64_t quarter = (uint64_t)shape->rows * shape->padded.quarter;
    const struct {
        const struct berth_parakeet_linear *linear;
        uint64_t n;
        enum berth_parakeet_activation activation;
        bool stream, residual;
    } all[BERTH_PARAKEET_PRODUCTS_MAX] = {
        {&weights->second_point, quarter * (config->mels / 4), BERTH_PARAKEET_RELU, false, false},
        {&weights->third_point, frames * (config->mels / 8), BERTH_PARAKEET_RELU, false, false},
        {&weights->subsample_out, frames, BERTH_PARAKEET_NONE, true, false},
        {&layer->ff1_up, frames, BERTH_PARAKEET_SILU, false, false},
        {&layer->ff1_down, frames, BERTH_PARAKEET_NONE, true, true},
        {&layer->qkv, frames, BERTH_PARAKEET_NONE, false, false},
        {&layer->attention_out, frames, BERTH_PARAKEET_NONE, true, true},
        {&layer->conv_in, frames, BERTH_PARAKEET_NONE, false, false},
        {&layer->conv_out, frames, BERTH_PARAKEET_NONE, true, true},
        {&weights->projector, frames, BERTH_PARAKEET_NONE, false, false},
    };
    uint32_t count = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
        if (all[i].linear->weight != NULL) { /* CTC has no projector */
            out[count++] = (struct berth_parakeet_linear_call){
                .linear = all[i].linear,
                .in_scale = all[i].linear->scale,
                .scratch = out, /* something that is there */
                .residual = all[i].residual ? weights : NULL, /* likewise */
                .stream = all[i].stream,
                .scale = 1.0F,
                .activation = all[i].activation,
                .n = all[i].n,
            };
        }
    }
    return count;
}

/* Gives rows that were stopped a length of 0. False: no row is left. */
static bool take_out_stopped(struct berth_parakeet_run *run)
{
    uint32_t rows = run->shape.rows;
    int32_t *lengths = shared_lengths(run);
    bool changed = false;
    bool left = false;
    for (uint32_t r = 0; r < rows; r++) {
        if (lengths[r] > 0 && __atomic_load_n(&shared_stop(run)[r], __ATOMIC_RELAXED) != 0) {
            for (uint32_t i = 0; i < COUNTS; i++) {
                lengths[i * rows + r] = 0;
            }
            changed = true;
        }
        left = left || lengths[(COUNTS - 1) * rows + r] > 0;
    }
    if (changed) {
        upload_lengths(run);
    }
    return left;
}

static void run_subsampling(struct berth_parakeet_run *run)
{
    const struct berth_parakeet_net *net = run->net;
    const struct berth_parakeet_ops *ops = net->ops;
    const struct berth_parakeet_config *config = net->config;
    const struct berth_parakeet_weights *weights = net->weights;
    const struct berth_parakeet_lengths *padded = &run->shape.padded;
    uint32_t rows = run->shape.rows;
    void *features = buffer(run, FEATURES);
    void *a = buffer(run, WIDE_A);
    void *b = buffer(run, WIDE_B);
    if (run->extent != BERTH_PARAKEET_ENCODER_ALONE) {
        ops->features(net->device, config, &run->shape, &run->counts, buffer(run, PCM), features);
    }
    ops->subsample_first(net->device, config, &run->shape, &run->counts, &weights->first,
                         &weights->second, features, a);
    struct berth_parakeet_linear_call call = {
        .linear = &weights->second_point,
        .in = a,
        .out = b,
        .scale = 1.0F,
        .activation = BERTH_PARAKEET_RELU,
        .n = (uint64_t)rows * padded->quarter * (config->mels / 4),
        .used = run->counts.quarter,
        .rows = rows,
        .each = config->mels / 4,
    };
    ops->linear(net->device, &call);
    ops->subsample_third(net->device, config, &run->shape, &run->counts, &weights->third, b, a);
    call.linear = &weights->third_point;
    call.n = (uint64_t)rows * padded->frames * (config->mels / 8);
    call.used = run->counts.frames;
    call.each = config->mels / 8;
    ops->linear(net->device, &call);
    call.linear = &weights->subsample_out;
    call.in = b;
    call.out = buffer(run, HIDDEN);
    call.stream = true;
    call.scale = config->scale_input ? sqrtf((float)config->hidden) : 1.0F;
    call.activation = BERTH_PARAKEET_NONE;
    call.n = (uint64_t)rows * padded->frames;
    call.each = 1;
    ops->linear(net->device, &call);
}

/* A product of frames. With scales, SILU's result is in INNER_NARROW. */
static void multiply(struct berth_parakeet_run *run, const struct berth_parakeet_linear *linear,
                     enum buffer in, enum buffer out, enum berth_parakeet_activation activation)
{
    const bool narrow = linear->scale != NULL;
    const struct berth_parakeet_linear_call call = {
        .linear = linear,
        .in = buffer(run, in),
        .in_scale = narrow ? buffer(run, NORMED_SCALE) : NULL,
        .out = buffer(run, out),
        .narrow = narrow ? buffer(run, INNER_NARROW) : NULL,
        .narrow_scale = narrow ? buffer(run, INNER_SCALE) : NULL,
        .scale = 1.0F,
        .activation = activation,
        .n = (uint64_t)run->shape.rows * run->shape.padded.frames,
        .used = run->counts.frames,
        .rows = run->shape.rows,
        .each = 1,
    };
    run->net->ops->linear(run->net->device, &call);
}

/* A module's last product, added to the hidden state. */
static void add_product(struct berth_parakeet_run *run, const struct berth_parakeet_linear *linear,
                        enum buffer in, float scale)
{
    const bool narrow = linear->scale != NULL;
    const struct berth_parakeet_linear_call call = {
        .linear = linear,
        .in = buffer(run, narrow ? INNER_NARROW : in),
        .in_scale = narrow ? buffer(run, INNER_SCALE) : NULL,
        .scratch = narrow ? buffer(run, INNER) : NULL, /* in is INNER_NARROW */
        .out = buffer(run, HIDDEN),
        .residual = buffer(run, HIDDEN),
        .stream = true,
        .scale = scale,
        .n = (uint64_t)run->shape.rows * run->shape.padded.frames,
        .used = run->counts.frames,
        .rows = run->shape.rows,
        .each = 1,
    };
    run->net->ops->linear(run->net->device, &call);
}

/* The stream into NORMED, by one norm or two; the first of two replaces the stream. `reader` (NULL:
 * nothing of a layer) multiplies it. */
static void normalise(struct berth_parakeet_run *run, const struct berth_parakeet_norm *norm,
                      const struct berth_parakeet_norm *second,
                      const struct berth_parakeet_linear *reader)
{
    const bool narrow = reader != NULL && reader->scale != NULL;
    const struct berth_parakeet_norm_call call = {
        .norm = norm,
        .second = second,
        .in = buffer(run, HIDDEN),
        .through = buffer(run, HIDDEN),
        .out = buffer(run, NORMED),
        .out_scale = narrow ? buffer(run, NORMED_SCALE) : NULL,
        .n = (uint64_t)run->shape.rows * run->shape.padded.frames,
        .hidden = run->net->config->hidden,
    };
    run->net->ops->norm(run->net->device, &call);
}

/* NORMED holds its first normalisation already, but for the first layer. */
static void run_layer(struct berth_parakeet_run *run, uint32_t index)
{
    const struct berth_parakeet_net *net = run->net;
    const struct berth_parakeet_ops *ops = net->ops;
    const struct berth_parakeet_layer *layer = &net->weights->layers[index];
    if (index == 0) {
        normalise(run, &layer->norm_ff1, NULL, &layer->ff1_up);
    }
    multiply(run, &layer->ff1_up, NORMED, INNER, BERTH_PARAKEET_SILU);
    add_product(run, &layer->ff1_down, INNER, 0.5F);
    normalise(run, &layer->norm_attention, NULL, &layer->qkv);
    run_attention(run, index);
    normalise(run, &layer->norm_conv, NULL, &layer->conv_in);
    multiply(run, &layer->conv_in, NORMED, INNER, BERTH_PARAKEET_NONE);
    ops->convolve(net->device, net->config, &run->shape, &run->counts, &layer->conv,
                  buffer(run, INNER), buffer(run, GATED));
    add_product(run, &layer->conv_out, GATED, 1.0F);
    normalise(run, &layer->norm_ff2, NULL, &layer->ff2_up);
    multiply(run, &layer->ff2_up, NORMED, INNER, BERTH_PARAKEET_SILU);
    add_product(run, &layer->ff2_down, INNER, 0.5F);
    if (index + 1 == net->config->layers) {
        normalise(run, &layer->norm_out, NULL, NULL);
    } else {
        normalise(run, &layer->norm_out, &layer[1].norm_ff1, &layer[1].ff1_up);
    }
}

static void run_attention(struct berth_parakeet_run *run, uint32_t index)
{
    const struct berth_parakeet_net *net = run->net;
    const struct berth_parakeet_layer *layer = &net->weights->layers[index];
    multiply(run, &layer->qkv, NORMED, INNER, BERTH_PARAKEET_NONE);
    const struct berth_parakeet_attention_call call = {
        .qkv = buffer(run, INNER),
        .position = (char *)net->positions + index * net->table_bytes,
        .position_max = net->frames_max,
        .bias_u = layer->bias_u,
        .bias_v = layer->bias_v,
        .out = buffer(run, GATED),
        .heads = net->config->heads,
        .head_dim = net->config->head_dim,
    };
    net->ops->attention(net->device, &run->shape, &run->counts, &call);
    add_product(run, &layer->attention_out, GATED, 1.0F);
}

static void run_projector(struct berth_parakeet_run *run)
{
    if (run->net->config->head != BERTH_PARAKEET_CTC) {
        multiply(run, &run->net->weights->projector, NORMED, PROJECTED, BERTH_PARAKEET_NONE);
    }
}

/* True: all rows are done, and their tokens on the way to the host. */
static bool run_decoding(struct berth_parakeet_run *run)
{
    const struct berth_parakeet_net *net = run->net;
    const bool ctc = net->config->head == BERTH_PARAKEET_CTC;
    const struct berth_parakeet_decode_call call = {
        .config = net->config,
        .weights = net->weights,
        .projected = buffer(run, ctc ? NORMED : PROJECTED),
        .stop = (const uint32_t *)(const void *)(run->shared_on_device + run->layout.shared_stop),
        .state = buffer(run, STATE),
        .tokens = tokens_at(run, buffer(run, TOKENS)),
        .steps_max = STEPS_MAX,
        .begin = !run->decoding,
    };
    run->decoding = true;
    if (!net->ops->decode(net->device, &run->shape, &run->counts, &call)) {
        return false;
    }
    net->ops->download(net->device, run->shared + run->layout.shared_tokens, buffer(run, TOKENS),
                       run->layout.token_bytes);
    return true;
}

static struct berth_parakeet_tokens tokens_at(const struct berth_parakeet_run *run, char *base)
{
    size_t rows = run->shape.rows;
    size_t all = rows * run->layout.capacity;
    int32_t *values = (int32_t *)(void *)base;
    return (struct berth_parakeet_tokens){
        .count = values,
        .steps = values + rows,
        .token = values + 2 * rows,
        .frame = values + 2 * rows + all,
        .duration = values + 2 * rows + 2 * all,
        .probability = (float *)(void *)(values + 2 * rows + 3 * all),
        .capacity = run->layout.capacity,
    };
}
