/* cpu_decode.c - greedy decoding on the CPU, in float32: the reference for the CUDA kernel.
 *
 * All live rows take a step together: those that said a token go through the prediction net, then
 * all through the joint. Weights are read once for all rows, which is why it is done so; each row's
 * sums have a fixed order, so that a row's tokens do not depend on its neighbours (E1). Products
 * are dot products (cpu_loops.h): rows are too few for packing a weight to pay.
 *
 * State between calls, in call->state: a lane for each row, lists of pointers for the products,
 * then each row's floats (struct sizes). Ties go to the first maximum.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/parakeet/cpu.h"
#include "engine/parakeet/cpu_loops.h"

#define ALIGNMENT 64U
#define CHUNK 64U             /* outputs of one task */
#define SPREAD_MIN (1U << 18) /* multiplications that are worth waking other threads */

struct lane {
    int32_t frame;   /* it looks at */
    int32_t symbols; /* said at this frame */
    int32_t token;   /* the last; at first the blank */
    bool fresh;      /* token has yet to go through the prediction net */
    bool done;
};

/* Floats of a row, one after the other. */
struct sizes {
    size_t hidden; /* [layers][prediction] */
    size_t cell;   /* [layers][prediction] */
    size_t said;   /* [prediction]: what the prediction net says */
    size_t gates;  /* [4 * prediction] */
    size_t input;  /* [prediction]: of the net, then of the head */
    size_t logits;
    size_t row; /* all of them */
};

struct work {
    struct berth_parakeet_device *device;
    const struct berth_parakeet_shape *shape;
    const int32_t *frames;
    const struct berth_parakeet_decode_call *call;
    struct sizes sizes;
    struct lane *lanes;
    uint32_t *list; /* rows of the product at hand */
    const float **in;
    float **out;
    float *floats;
    uint32_t count; /* of list */
};

/* out[row] = weight x in[row] + bias, or added to what is there. */
struct product {
    const struct work *work;
    const float *weight;
    const float *bias;
    uint32_t in, out;
    bool add;
};

static void place(struct work *work);
static void begin(struct work *work);
static bool step(struct work *work);
static void step_ctc(struct work *work);
static void predict(struct work *work);
static void join(struct work *work);
static void decide(struct work *work, uint32_t row);
static void decide_ctc(struct work *work, uint32_t row);

bool berth_parakeet_cpu_decode(struct berth_parakeet_device *device,
                               const struct berth_parakeet_shape *shape,
                               const struct berth_parakeet_counts *counts,
                               const struct berth_parakeet_decode_call *call)
{
    struct work work = {.device = device, .shape = shape, .frames = counts->frames, .call = call};
    place(&work);
    if (call->begin) {
        begin(&work);
    }
    bool done = false;
    for (uint32_t i = 0; i < call->steps_max && !done; i++) {
        done = step(&work);
    }
    return done;
}

/* --- state --- */

static size_t rounded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static struct sizes sizes_of(const struct berth_parakeet_config *config)
{
    const size_t step = ALIGNMENT / sizeof(float);
    const size_t wide = config->head == BERTH_PARAKEET_CTC ? 0 : config->prediction;
    const size_t one = (wide + step - 1) / step * step;
    const size_t outputs = config->vocabulary + config->duration_count;
    struct sizes sizes = {.hidden = 0};
    sizes.cell = sizes.hidden + config->prediction_layers * one;
    sizes.said = sizes.cell + config->prediction_layers * one;
    sizes.gates = sizes.said + one;
    sizes.input = sizes.gates + 4 * one;
    sizes.logits = sizes.input + one;
    sizes.row = sizes.logits + (outputs + step - 1) / step * step;
    return sizes;
}

size_t berth_parakeet_cpu_decode_state_bytes(const struct berth_parakeet_config *config,
                                             const struct berth_parakeet_shape *shape)
{
    const size_t rows = shape->rows;
    return rounded(rows * sizeof(struct lane)) + rounded(rows * sizeof(uint32_t)) +
           2 * rounded(rows * sizeof(float *)) + rows * sizes_of(config).row * sizeof(float);
}

static void place(struct work *work)
{
    const size_t rows = work->shape->rows;
    unsigned char *at = work->call->state;
    work->sizes = sizes_of(work->call->config);
    work->lanes = (struct lane *)(void *)at;
    at += rounded(rows * sizeof(struct lane));
    work->list = (uint32_t *)(void *)at;
    at += rounded(rows * sizeof(uint32_t));
    work->in = (const float **)(void *)at;
    at += rounded(rows * sizeof(float *));
    work->out = (float **)(void *)at;
    at += rounded(rows * sizeof(float *));
    work->floats = (float *)(void *)at;
}

static void begin(struct work *work)
{
    const struct berth_parakeet_decode_call *call = work->call;
    memset(call->state, 0, berth_parakeet_cpu_decode_state_bytes(call->config, work->shape));
    for (uint32_t row = 0; row < work->shape->rows; row++) {
        work->lanes[row] = (struct lane){.token = (int32_t)call->config->blank, .fresh = true};
        call->tokens.count[row] = 0;
        call->tokens.steps[row] = 0;
    }
}

static float *floats_of(const struct work *work, uint32_t row)
{
    return work->floats + row * work->sizes.row;
}

/* --- products --- */

/* Outputs [index * CHUNK, ..) of all rows: a weight row is read once for all of them. */
static void multiply_chunk(const void *context, uint64_t index, float *scratch)
{
    const struct product *product = context;
    const struct work *work = product->work;
    const struct berth_parakeet_loops *loops = berth_parakeet_loops_choose();
    uint32_t first = (uint32_t)index * CHUNK;
    uint32_t end = product->out - first < CHUNK ? product->out : first + CHUNK;
    (void)scratch;
    for (uint32_t o = first; o < end; o++) {
        const float *weight = product->weight + (size_t)o * product->in;
        for (uint32_t i = 0; i < work->count; i++) {
            float *out = work->out[i] + o;
            float base = product->add ? *out : 0;
            base += product->bias == NULL ? 0 : product->bias[o];
            *out = base + loops->dot(weight, work->in[i], product->in);
        }
    }
}

static void multiply(const struct product *product)
{
    uint64_t chunks = (product->out + CHUNK - 1) / CHUNK;
    if ((uint64_t)product->in * product->out * product->work->count >= SPREAD_MIN) {
        berth_parakeet_spread(product->work->device, chunks, multiply_chunk, product);
        return;
    }
    for (uint64_t i = 0; i < chunks; i++) {
        multiply_chunk(product, i, NULL);
    }
}

/* --- a step of all rows --- */

/* True: no row has anything left to do. */
static bool step(struct work *work)
{
    const struct berth_parakeet_decode_call *call = work->call;
    bool done = true;
    for (uint32_t row = 0; row < work->shape->rows; row++) {
        struct lane *lane = &work->lanes[row];
        lane->done = lane->done || lane->frame >= work->frames[row] ||
                     __atomic_load_n(&call->stop[row], __ATOMIC_RELAXED) != 0;
        done = done && lane->done;
    }
    if (done) {
        return true;
    }
    if (call->config->head == BERTH_PARAKEET_CTC) {
        step_ctc(work);
        return false;
    }
    predict(work);
    join(work);
    for (uint32_t i = 0; i < work->count; i++) {
        decide(work, work->list[i]);
    }
    return false;
}

static void list_live(struct work *work, bool fresh_only)
{
    work->count = 0;
    for (uint32_t row = 0; row < work->shape->rows; row++) {
        const struct lane *lane = &work->lanes[row];
        if (!lane->done && (!fresh_only || lane->fresh)) {
            work->list[work->count++] = row;
        }
    }
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* gates i f g o -> cell and hidden of one row. */
static void lstm_cell(const float *gates, float *cell, float *hidden, uint32_t wide)
{
    for (uint32_t i = 0; i < wide; i++) {
        float in = sigmoid(gates[i]);
        float forget = sigmoid(gates[wide + i]);
        float fresh = tanhf(gates[2 * wide + i]);
        float out = sigmoid(gates[3 * wide + i]);
        cell[i] = forget * cell[i] + in * fresh;
        hidden[i] = out * tanhf(cell[i]);
    }
}

/* One layer of the rows listed; their inputs are work->in. Leaves its outputs there. */
static void lstm_layer(struct work *work, uint32_t layer)
{
    const struct berth_parakeet_lstm *lstm = &work->call->weights->lstm[layer];
    const uint32_t wide = work->call->config->prediction;
    const size_t stride = (work->sizes.cell - work->sizes.hidden) /
                          work->call->config->prediction_layers * layer;
    struct product product = {.work = work,
                              .weight = lstm->input.weight,
                              .bias = lstm->bias,
                              .in = lstm->input.in,
                              .out = lstm->input.out};
    for (uint32_t i = 0; i < work->count; i++) {
        work->out[i] = floats_of(work, work->list[i]) + work->sizes.gates;
    }
    multiply(&product);
    for (uint32_t i = 0; i < work->count; i++) {
        work->in[i] = floats_of(work, work->list[i]) + work->sizes.hidden + stride;
    }
    product = (struct product){.work = work,
                               .weight = lstm->state.weight,
                               .in = lstm->state.in,
                               .out = lstm->state.out,
                               .add = true};
    multiply(&product);
    for (uint32_t i = 0; i < work->count; i++) {
        float *floats = floats_of(work, work->list[i]);
        lstm_cell(floats + work->sizes.gates, floats + work->sizes.cell + stride,
                  floats + work->sizes.hidden + stride, wide);
    }
}

/* The prediction net, for rows whose last token it has not seen. */
static void predict(struct work *work)
{
    const struct berth_parakeet_decode_call *call = work->call;
    const uint32_t wide = call->config->prediction;
    const float *embedding = call->weights->embedding;
    list_live(work, true);
    if (work->count == 0) {
        return;
    }
    for (uint32_t i = 0; i < work->count; i++) {
        struct lane *lane = &work->lanes[work->list[i]];
        work->in[i] = embedding + (size_t)lane->token * wide;
        lane->fresh = false;
    }
    for (uint32_t layer = 0; layer < call->config->prediction_layers; layer++) {
        lstm_layer(work, layer);
    }
    const struct berth_parakeet_linear *linear = &call->weights->prediction_out;
    struct product product = {.work = work,
                              .weight = linear->weight,
                              .bias = linear->bias,
                              .in = linear->in,
                              .out = linear->out};
    for (uint32_t i = 0; i < work->count; i++) {
        work->out[i] = floats_of(work, work->list[i]) + work->sizes.said;
    }
    multiply(&product);
}

static void head(struct work *work)
{
    const struct berth_parakeet_linear *linear = &work->call->weights->head;
    struct product product = {.work = work,
                              .weight = linear->weight,
                              .bias = linear->bias,
                              .in = linear->in,
                              .out = linear->out};
    for (uint32_t i = 0; i < work->count; i++) {
        work->out[i] = floats_of(work, work->list[i]) + work->sizes.logits;
        work->call->tokens.steps[work->list[i]]++;
    }
    multiply(&product);
}

static const float *frame_of(const struct work *work, uint32_t row, uint32_t wide)
{
    size_t at = (size_t)row * work->shape->padded.frames + (size_t)work->lanes[row].frame;
    return (const float *)work->call->projected + at * wide;
}

/* Logits of every live row: head(relu(encoder + prediction)). */
static void join(struct work *work)
{
    const uint32_t wide = work->call->config->prediction;
    list_live(work, false);
    for (uint32_t i = 0; i < work->count; i++) {
        uint32_t row = work->list[i];
        float *floats = floats_of(work, row);
        const float *encoded = frame_of(work, row, wide);
        float *input = floats + work->sizes.input;
        for (uint32_t k = 0; k < wide; k++) {
            float sum = encoded[k] + floats[work->sizes.said + k];
            input[k] = sum < 0 ? 0 : sum; /* what is no number stays so */
        }
        work->in[i] = input;
    }
    head(work);
}

static void step_ctc(struct work *work)
{
    list_live(work, false);
    for (uint32_t i = 0; i < work->count; i++) {
        work->in[i] = frame_of(work, work->list[i], work->call->weights->head.in);
    }
    head(work);
    for (uint32_t i = 0; i < work->count; i++) {
        decide_ctc(work, work->list[i]);
    }
}

/* --- what a row does next --- */

static uint32_t first_maximum(const float *values, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        best = values[i] > values[best] ? i : best;
    }
    return best;
}

/* False: the row's logits are not all finite, and it is given up, whatever it said before. */
static bool logits_sound(struct work *work, uint32_t row)
{
    const float *logits = floats_of(work, row) + work->sizes.logits;
    const uint32_t count = work->call->weights->head.out;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof(bits));
        seen |= (bits & 0x7F800000U) + 0x00800000U; /* a full exponent carries into the sign's */
    }
    if ((seen & 0x80000000U) == 0) {
        return true;
    }
    work->lanes[row].done = true;
    work->call->tokens.count[row] = -1;
    return false;
}

/* Softmax of the likeliest. */
static float probability(const float *logits, uint32_t count, uint32_t best)
{
    float sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += expf(logits[i] - logits[best]);
    }
    return 1 / sum;
}

/* False: the row has no room for another token, and ends. */
static bool emit(struct work *work, uint32_t row, uint32_t token, int32_t duration)
{
    const struct berth_parakeet_decode_call *call = work->call;
    const struct berth_parakeet_tokens *tokens = &call->tokens;
    const float *logits = floats_of(work, row) + work->sizes.logits;
    uint32_t count = (uint32_t)tokens->count[row];
    if (count >= tokens->capacity) {
        work->lanes[row].done = true;
        return false;
    }
    size_t at = (size_t)row * tokens->capacity + count;
    tokens->token[at] = (int32_t)token;
    tokens->frame[at] = work->lanes[row].frame;
    tokens->duration[at] = duration;
    tokens->probability[at] = probability(logits, call->config->vocabulary, token);
    tokens->count[row]++;
    return true;
}

/* TDT: the duration head says how far to go. RNN-T: a frame on after a blank. */
static void decide(struct work *work, uint32_t row)
{
    const struct berth_parakeet_config *config = work->call->config;
    const float *logits = floats_of(work, row) + work->sizes.logits;
    struct lane *lane = &work->lanes[row];
    if (!logits_sound(work, row)) {
        return;
    }
    uint32_t token = first_maximum(logits, config->vocabulary);
    bool blank = token == config->blank;
    uint32_t duration = blank ? 1 : 0;
    if (config->head == BERTH_PARAKEET_TDT) {
        duration =
            config->durations[first_maximum(logits + config->vocabulary, config->duration_count)];
    }
    lane->symbols += blank ? 0 : 1;
    if (duration == 0 && (blank || lane->symbols >= (int32_t)config->symbols_max)) {
        duration = 1; /* or it would never end */
    }
    if (!blank && !emit(work, row, token, (int32_t)duration)) {
        return;
    }
    if (!blank) {
        lane->token = (int32_t)token;
        lane->fresh = true;
    }
    if (duration > 0) {
        lane->symbols = 0;
    }
    int32_t left = work->frames[row] - lane->frame;
    lane->frame += duration < (uint32_t)left ? (int32_t)duration : left;
}

/* A frame on; a token that goes on from the frame before is the same one. */
static void decide_ctc(struct work *work, uint32_t row)
{
    const struct berth_parakeet_config *config = work->call->config;
    const struct berth_parakeet_tokens *tokens = &work->call->tokens;
    const float *logits = floats_of(work, row) + work->sizes.logits;
    struct lane *lane = &work->lanes[row];
    if (!logits_sound(work, row)) {
        return;
    }
    uint32_t token = first_maximum(logits, config->vocabulary);
    bool blank = token == config->blank;
    if (!blank && (int32_t)token == lane->token && tokens->count[row] > 0) {
        size_t at = (size_t)row * tokens->capacity + (uint32_t)tokens->count[row] - 1;
        float again = probability(logits, config->vocabulary, token);
        tokens->duration[at]++;
        tokens->probability[at] = again > tokens->probability[at] ? again : tokens->probability[at];
    } else if (!blank && !emit(work, row, token, 1)) {
        return;
    }
    lane->token = (int32_t)token;
    lane->frame++;
}
