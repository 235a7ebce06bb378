/* bench_products.c - the floor under an encoder's time: its matrix products with nothing between
 * them, on inputs of random values (zeros run faster than data does).
 *
 * Position projections are left out: they depend on no input, and are made once for a bucket.
 */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench_parakeet.h"

#define PRODUCTS_MAX (9 * BERTH_PARAKEET_LAYERS_MAX + 4)
#define PIECE ((size_t)8 << 20)
#define GRAPH UINT64_C(1)

struct product {
    const struct berth_parakeet_linear *linear;
    uint64_t n;
};

struct product_list {
    struct product items[PRODUCTS_MAX];
    size_t count;
};

/* Where they read and write: one buffer each, large enough for all. */
struct product_room {
    struct berth_parakeet_device *device;
    void *in, *out;
    size_t in_bytes, out_bytes;
    bool narrow; /* some read e4m3: no piece of the input is no number in it */
};

static void list_products(const struct berth_bench_products *products, struct product_list *list);
static void add(struct product_list *list, const struct berth_parakeet_linear *linear, uint64_t n);
static enum berth_code room_make(const struct berth_bench_products *products,
                                 const struct product_list *list, struct product_room *room,
                                 struct berth_err *err);
static enum berth_code fill(const struct berth_parakeet_ops *ops, struct product_room *room,
                            struct berth_err *err);
static void ask(const struct berth_parakeet_ops *ops, const struct product_list *list,
                const struct product_room *room);

double berth_bench_products_flop(const struct berth_bench_products *products)
{
    double sum = 0;
    struct product_list list = {0};
    list_products(products, &list);
    for (size_t i = 0; i < list.count; i++) {
        sum += 2.0 * (double)list.items[i].n * list.items[i].linear->in *
               list.items[i].linear->out;
    }
    return sum;
}

double berth_bench_encoder_flop(const struct berth_bench_products *products)
{
    const struct berth_parakeet_config *model = products->model;
    const struct berth_parakeet_lengths *padded = &products->shape->padded;
    double frames = padded->frames;
    /* Query by key, query by position, weights by value. */
    double attention = 3 * 2 * frames * frames * model->hidden;
    double convolution = 2.0 * model->kernel * frames * model->hidden;
    double subsampling = 2.0 * 9 * model->channels *
                         ((double)padded->half * (model->mels / 2) +
                          (double)padded->quarter * (model->mels / 4) +
                          frames * (model->mels / 8));
    return berth_bench_products_flop(products) +
           products->shape->rows * (model->layers * (attention + convolution) + subsampling);
}

enum berth_code berth_bench_products_run(const struct berth_bench_products *products,
                                         struct berth_bench_times *times, struct berth_err *err)
{
    const struct berth_parakeet_ops *ops = products->ops;
    struct product_list list = {0};
    struct product_room room = {0};
    list_products(products, &list);
    enum berth_code code = room_make(products, &list, &room, err);
    if (code != BERTH_OK) {
        goto out;
    }
    ask(ops, &list, &room); /* once outside a graph: what is made on first use is made now */
    code = ops->finish(room.device, err);
    for (size_t i = 0; code == BERTH_OK && i < times->count + 3; i++) {
        uint64_t t_start = berth_clock_now_ns();
        if (ops->record == NULL || ops->record(room.device, GRAPH)) {
            ask(ops, &list, &room);
        }
        if (ops->play != NULL) {
            ops->play(room.device, GRAPH);
        }
        code = ops->finish(room.device, err);
        if (i >= 3) {
            times->ms[i - 3] = (double)(berth_clock_now_ns() - t_start) / 1e6;
        }
    }
out:
    if (room.in != NULL) {
        ops->free(room.device, room.in, room.in_bytes);
    }
    if (room.out != NULL) {
        ops->free(room.device, room.out, room.out_bytes);
    }
    if (room.device != NULL) {
        ops->close(room.device);
    }
    return code;
}

static void list_products(const struct berth_bench_products *products, struct product_list *list)
{
    const struct berth_parakeet_weights *weights = products->weights;
    const struct berth_parakeet_lengths *padded = &products->shape->padded;
    uint64_t rows = products->shape->rows;
    uint64_t frames = rows * padded->frames;
    add(list, &weights->second_point, rows * padded->quarter * (products->model->mels / 4));
    add(list, &weights->third_point, frames * (products->model->mels / 8));
    add(list, &weights->subsample_out, frames);
    for (uint32_t i = 0; i < products->model->layers; i++) {
        const struct berth_parakeet_layer *layer = &weights->layers[i];
        const struct berth_parakeet_linear *linears[] = {
            &layer->ff1_up,  &layer->ff1_down, &layer->qkv,    &layer->attention_out,
            &layer->conv_in, &layer->conv_out, &layer->ff2_up, &layer->ff2_down,
        };
        for (size_t j = 0; j < BERTH_COUNT_OF(linears); j++) {
            add(list, linears[j], frames);
        }
    }
    if (weights->projector.weight != NULL) {
        add(list, &weights->projector, frames);
    }
}

static void add(struct product_list *list, const struct berth_parakeet_linear *linear, uint64_t n)
{
    list->items[list->count++] = (struct product){linear, n};
}

static enum berth_code room_make(const struct berth_bench_products *products,
                                 const struct product_list *list, struct product_room *room,
                                 struct berth_err *err)
{
    const struct berth_parakeet_ops *ops = products->ops;
    size_t element = ops->element == BERTH_PARAKEET_F16 ? 2 : sizeof(float);
    for (size_t i = 0; i < list->count; i++) {
        size_t in_bytes = list->items[i].n * list->items[i].linear->in * element;
        size_t out_bytes = list->items[i].n * list->items[i].linear->out * sizeof(float);
        room->in_bytes = in_bytes > room->in_bytes ? in_bytes : room->in_bytes;
        room->out_bytes = out_bytes > room->out_bytes ? out_bytes : room->out_bytes;
        room->narrow = room->narrow || list->items[i].linear->scale != NULL;
    }
    BERTH_TRY(ops->open(products->device, products->threads, &room->device, err));
    room->in = ops->alloc(room->device, room->in_bytes);
    room->out = ops->alloc(room->device, room->out_bytes);
    if (room->in == NULL || room->out == NULL) {
        return berth_fail(err, BERTH_TOO_LARGE, "no memory for the matrix products alone");
    }
    return fill(ops, room, err);
}

/* Values between 1 and 2 (float32: 0.5 and 1) and their negatives. */
static enum berth_code fill(const struct berth_parakeet_ops *ops, struct product_room *room,
                            struct berth_err *err)
{
    void *on_device = NULL;
    uint8_t *piece = ops->alloc_shared(room->device, PIECE, &on_device);
    if (piece == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the matrix products' input");
    }
    uint32_t state = 12345;
    for (size_t i = 0; i < PIECE / 2; i++) {
        state = state * 1664525u + 1013904223u;
        uint32_t sign = (state & 0x80000000u) >> 16;
        uint16_t high = (uint16_t)(0x3c00u | ((state >> 9) & 0x3ffu) | sign); /* a half's */
        if (ops->element == BERTH_PARAKEET_F32) { /* little-endian: the low half first */
            high = i % 2 == 0 ? (uint16_t)(state >> 12)
                              : (uint16_t)(0x3f00u | ((state >> 9) & 0x7fu) | sign);
        }
        high &= room->narrow ? 0xf7f7u : 0xffffu;
        memcpy(piece + 2 * i, &high, sizeof(high));
    }
    for (size_t at = 0; at < room->in_bytes; at += PIECE) {
        size_t left = room->in_bytes - at;
        ops->upload(room->device, (uint8_t *)room->in + at, piece, left < PIECE ? left : PIECE);
    }
    enum berth_code code = ops->finish(room->device, err);
    ops->free_shared(room->device, piece);
    return code;
}

static void ask(const struct berth_parakeet_ops *ops, const struct product_list *list,
                const struct product_room *room)
{
    for (size_t i = 0; i < list->count; i++) {
        struct berth_parakeet_linear_call call = {
            .linear = list->items[i].linear,
            .in = room->in,
            .in_scale = room->in, /* any numbers */
            .out = room->out,
            .scale = 1,
            .n = list->items[i].n,
        };
        ops->linear(room->device, &call);
    }
}
