/* Which products a GPU is asked for, under which keys their ways are kept, and which tiles of
 * Hopper's are worth timing: what of it needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cli/random_parakeet.h"
#include "engine/parakeet/cuda/linear_key.c"
#include "engine/parakeet/cuda/product_tiles.c"
#include "engine/parakeet/encoder.h"

#define KEYS_MAX 4096
#define H200 132 /* multiprocessors */
#define ELSEWHERE ((void *)(uintptr_t)0x200000000000U) /* a GPU's memory: nobody here reads it */

static const struct berth_parakeet_cuda_tile tiles[] = {
    BERTH_PARAKEET_CUDA_TILES(BERTH_PARAKEET_CUDA_TILE)};

#define TILES ((uint32_t)(sizeof(tiles) / sizeof(tiles[0])))

/* As parakeet-tdt-0.6b, with few layers; main fills it. */
static struct berth_parakeet_config large;

/* --- tiles --- */

static void test_tiles(void **state)
{
    static const struct {
        struct berth_parakeet_cuda_product product;
        const char *likely; /* indices */
    } cases[] = {
        {{126, 1024, 4096}, "2345"}, /* 32 large ones, 256 small ones */
        {{252, 1024, 4096}, "01234"},
        {{8064, 1024, 4096}, "01"},
        {{504, 4096, 1024}, "2345"},
        {{819200, 256, 256}, "01"},
        {{1, 1024, 1024}, "5"}, /* too few in any form: the smallest */
        {{1, 1024, 32}, "5"},
        {{125, 192, 640}, "2"}, /* three slices: none that takes two at once */
        {{1000000, 192, 640}, "01"},
        {{7, 128, 96}, "3"}, /* 96 outputs: thirty-two at a time, two slices at once */
        {{100000, 128, 96}, "3"},
        {{7, 256, 96}, "5"},
        {{7, 64, 96}, ""},
        {{7, 64, 64}, "2"},
        {{7, 1024, 100}, ""},
        {{7, 1000, 1024}, ""},
        {{7, 0, 1024}, ""},
        {{7, 1024, 0}, ""},
        {{0, 1024, 1024}, ""},
        {{0x7ffffeffU, 1024, 128}, "01"},
        {{0x7fffff00U, 1024, 128}, ""}, /* not counted in 32 bits */
        {{UINT64_MAX, 1024, 128}, ""},
        {{0x10000000U, 1024, 0x7fffff80U}, ""},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        uint32_t found[TILES];
        char have[TILES + 1] = "";
        uint32_t count = berth_parakeet_cuda_tiles_likely(tiles, TILES, &cases[i].product, H200,
                                                          found);
        assert_true(count <= TILES);
        for (uint32_t k = 0; k < count; k++) {
            have[k] = (char)('0' + found[k]);
            assert_true(berth_parakeet_cuda_tile_takes(&tiles[found[k]], &cases[i].product));
        }
        if (strcmp(have, cases[i].likely) != 0) {
            fail_msg("case %zu: %s, not %s", i, have, cases[i].likely);
        }
    }
}

/* Of products of all sizes: a list whenever any tile takes it, each tile once and in order, and no
 * tile that does not take it. Depth and outputs of 64 are enough, and 128 with 32. */
static void test_tiles_always(void **state)
{
    for (uint32_t in = 32; in <= 640; in += 32) {
        for (uint32_t out = 32; out <= 640; out += 32) {
            for (uint64_t n = 1; n < 1000000; n = n * 3 + 1) {
                const struct berth_parakeet_cuda_product product = {n, in, out};
                uint32_t found[TILES];
                uint32_t count = berth_parakeet_cuda_tiles_likely(tiles, TILES, &product, H200,
                                                                  found);
                bool any = (in % 64 == 0 && out % 64 == 0) || (in % 128 == 0 && out % 32 == 0);
                assert_int_equal(count > 0, any);
                for (uint32_t k = 0; k < count; k++) {
                    assert_true(berth_parakeet_cuda_tile_takes(&tiles[found[k]], &product));
                    assert_true(k == 0 || found[k] > found[k - 1]);
                }
            }
        }
    }
}

/* --- keys --- */

static bool same(const struct berth_parakeet_cuda_key *a, const struct berth_parakeet_cuda_key *b)
{
    assert_int_equal(berth_parakeet_cuda_keys_equal(a, b), berth_parakeet_cuda_keys_equal(b, a));
    return berth_parakeet_cuda_keys_equal(a, b);
}

/* Each field tells keys apart. */
static void test_keys_differ(void **state)
{
    const struct berth_parakeet_cuda_key one = {.n = 126, .in = 1024, .out = 4096};
    struct berth_parakeet_cuda_key others[10];
    for (size_t i = 0; i < BERTH_COUNT_OF(others); i++) {
        others[i] = one;
        assert_true(same(&one, &others[i]));
    }
    others[0].n += (uint64_t)1 << 32;
    others[1].in = 4096;
    others[2].out = 1024;
    others[3].ordinal = 1;
    others[4].operands = BERTH_PARAKEET_CUDA_SCALED;
    others[5].activation = BERTH_PARAKEET_RELU;
    others[6].bias = true;
    others[7].residual = true;
    others[8].stream = true;
    others[9].own = true;
    for (size_t i = 0; i < BERTH_COUNT_OF(others); i++) {
        assert_false(same(&one, &others[i]));
        for (size_t k = 0; k < i; k++) {
            assert_false(same(&others[k], &others[i]));
        }
    }
}

/* What cublasLt is asked for of a call, and what is left to kernels after it. */
static void test_keys_of_calls(void **state)
{
    static const float scales[4096] = {1};
    static const struct {
        enum berth_parakeet_activation activation;
        uint64_t n;
        float scale;
        bool narrow, bias, residual, stream, scratch;
        struct berth_parakeet_cuda_key lt; /* operands, activation, bias, residual, stream */
    } cases[] = {
        {BERTH_PARAKEET_NONE, 9, 1, false, true, false, false, false, {.bias = true}},
        {BERTH_PARAKEET_SILU, 9, 1, false, true, false, false, false, {.bias = true}},
        {BERTH_PARAKEET_RELU, 9, 1, false, true, false, false, false,
         {.activation = BERTH_PARAKEET_RELU, .bias = true}},
        {BERTH_PARAKEET_NONE, 9, 1, false, true, true, true, false,
         {.residual = true, .stream = true}},
        {BERTH_PARAKEET_NONE, 9, 32, false, true, false, true, false, {.stream = true}},
        {BERTH_PARAKEET_NONE, 9, 1, true, true, false, false, false,
         {.operands = BERTH_PARAKEET_CUDA_SCALED, .bias = true}},
        {BERTH_PARAKEET_SILU, 9999, 1, true, true, false, false, false,
         {.operands = BERTH_PARAKEET_CUDA_BARE}},
        {BERTH_PARAKEET_NONE, 1024, 0.5F, true, true, true, true, true,
         {.operands = BERTH_PARAKEET_CUDA_BARE}},
        {BERTH_PARAKEET_NONE, 1025, 0.5F, true, true, true, true, true,
         {.operands = BERTH_PARAKEET_CUDA_SCALED, .residual = true, .stream = true}},
        {BERTH_PARAKEET_NONE, 9, 0.5F, true, false, true, true, false,
         {.operands = BERTH_PARAKEET_CUDA_SCALED, .residual = true, .stream = true}},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        const struct berth_parakeet_linear linear = {.in = 4096,
                                                     .out = 1024,
                                                     .bias = cases[i].bias ? scales : NULL,
                                                     .scale = cases[i].narrow ? scales : NULL};
        const struct berth_parakeet_linear_call call = {
            .linear = &linear,
            .scratch = cases[i].scratch ? ELSEWHERE : NULL,
            .residual = cases[i].residual ? ELSEWHERE : NULL,
            .stream = cases[i].stream,
            .scale = cases[i].scale,
            .activation = cases[i].activation,
            .n = cases[i].n,
        };
        struct berth_parakeet_cuda_key want = cases[i].lt;
        want.n = cases[i].n;
        want.in = 4096;
        want.out = 1024;
        want.ordinal = 3;
        struct berth_parakeet_cuda_key key = berth_parakeet_cuda_key_lt(3, &call);
        if (!same(&key, &want)) {
            fail_msg("case %zu: another key by cublasLt", i);
        }
        want = (struct berth_parakeet_cuda_key){.n = cases[i].n,
                                                .in = 4096,
                                                .out = 1024,
                                                .ordinal = 3,
                                                .operands = cases[i].lt.operands,
                                                .activation = cases[i].activation,
                                                .bias = cases[i].bias,
                                                .residual = cases[i].residual,
                                                .stream = cases[i].stream,
                                                .own = true};
        key = berth_parakeet_cuda_key_own(3, &call);
        assert_true(same(&key, &want));
    }
}

static void test_well_formed(void **state)
{
    static const float scales[16] = {1};
    for (uint32_t in = 1; in <= 64; in++) {
        struct berth_parakeet_linear linear = {.in = in, .out = 16};
        const struct berth_parakeet_linear_call call = {.linear = &linear, .n = 1, .scale = 1};
        assert_int_equal(berth_parakeet_cuda_well_formed(&call), in % 8 == 0);
        linear.scale = scales;
        assert_int_equal(berth_parakeet_cuda_well_formed(&call), in % 16 == 0);
    }
}

/* The largest sum there can be fits a half, and half the factor would not do. */
static void test_sum_factor(void **state)
{
    for (uint32_t in = 16; in <= 16384; in += 16) {
        const double largest = 448.0 * 448.0 * in;
        const double factor = (double)berth_parakeet_cuda_sum_factor(in);
        assert_true(largest / factor <= 65504.0 && largest / (factor / 2) > 65504.0);
    }
}

/* --- what runs ask for, and what is prepared --- */

static struct berth_parakeet_cuda_key asked[KEYS_MAX];
static size_t asked_count;
static bool by_lt;

static struct berth_parakeet_cuda_key key_of(const struct berth_parakeet_linear_call *call)
{
    return by_lt ? berth_parakeet_cuda_key_lt(0, call) : berth_parakeet_cuda_key_own(0, call);
}

static bool has(const struct berth_parakeet_cuda_key *all, size_t count,
                const struct berth_parakeet_cuda_key *one)
{
    for (size_t i = 0; i < count; i++) {
        if (same(&all[i], one)) {
            return true;
        }
    }
    return false;
}

static void *no_alloc(struct berth_parakeet_device *device, size_t bytes)
{
    return ELSEWHERE;
}

static void no_free(struct berth_parakeet_device *device, void *memory, size_t bytes)
{
}

static void *some_shared(struct berth_parakeet_device *device, size_t bytes, void **on_device)
{
    return *on_device = berth_alloc(bytes);
}

static void some_shared_free(struct berth_parakeet_device *device, void *memory)
{
    berth_free(memory);
}

static void no_copy(struct berth_parakeet_device *device, void *to, const void *from, size_t bytes)
{
}

static enum berth_code no_wait(struct berth_parakeet_device *device, struct berth_err *err)
{
    return BERTH_OK;
}

static bool always_record(struct berth_parakeet_device *device, uint64_t key)
{
    return true;
}

static void no_graph(struct berth_parakeet_device *device, uint64_t key)
{
}

static void no_features(struct berth_parakeet_device *device,
                        const struct berth_parakeet_config *config,
                        const struct berth_parakeet_shape *shape,
                        const struct berth_parakeet_counts *counts, const float *pcm, void *out)
{
}

static void no_first(struct berth_parakeet_device *device,
                     const struct berth_parakeet_config *config,
                     const struct berth_parakeet_shape *shape,
                     const struct berth_parakeet_counts *counts,
                     const struct berth_parakeet_depthwise *first,
                     const struct berth_parakeet_depthwise *second, const void *in, void *out)
{
}

static void no_convolution(struct berth_parakeet_device *device,
                           const struct berth_parakeet_config *config,
                           const struct berth_parakeet_shape *shape,
                           const struct berth_parakeet_counts *counts,
                           const struct berth_parakeet_depthwise *taps, const void *in, void *out)
{
}

static void keep_key(struct berth_parakeet_device *device,
                     const struct berth_parakeet_linear_call *call)
{
    /* What a kernel reads in pieces of 16 bytes, and the copy engine. */
    const uintptr_t pointers = (uintptr_t)call->in | (uintptr_t)call->out |
                               (uintptr_t)call->residual | (uintptr_t)call->scratch |
                               (uintptr_t)call->narrow | (uintptr_t)call->linear->weight |
                               (uintptr_t)call->linear->bias | (uintptr_t)call->linear->scale;
    assert_int_equal(pointers % 16, 0);
    assert_true(call->in != NULL && call->out != NULL && call->linear->weight != NULL);
    assert_int_equal(call->in_scale != NULL, call->linear->scale != NULL);
    assert_true(asked_count < KEYS_MAX);
    asked[asked_count++] = key_of(call);
}

static void no_norm(struct berth_parakeet_device *device,
                    const struct berth_parakeet_norm_call *call)
{
}

static void no_attention(struct berth_parakeet_device *device,
                         const struct berth_parakeet_shape *shape,
                         const struct berth_parakeet_counts *counts,
                         const struct berth_parakeet_attention_call *call)
{
}

static void no_positions(struct berth_parakeet_device *device, uint32_t position_max,
                         uint32_t hidden, void *out)
{
}

static bool no_decode(struct berth_parakeet_device *device,
                      const struct berth_parakeet_shape *shape,
                      const struct berth_parakeet_counts *counts,
                      const struct berth_parakeet_decode_call *call)
{
    return true;
}

static size_t no_state(const struct berth_parakeet_config *config,
                       const struct berth_parakeet_shape *shape)
{
    return 256;
}

/* Computes nothing. */
static const struct berth_parakeet_ops idle = {
    .name = "idle",
    .element = BERTH_PARAKEET_F16,
    .alloc = no_alloc,
    .free = no_free,
    .alloc_shared = some_shared,
    .free_shared = some_shared_free,
    .upload = no_copy,
    .download = no_copy,
    .finish = no_wait,
    .record = always_record,
    .play = no_graph,
    .keep = no_graph,
    .forget = no_graph,
    .features = no_features,
    .subsample_first = no_first,
    .subsample_third = no_convolution,
    .linear = keep_key,
    .norm = no_norm,
    .attention = no_attention,
    .convolve = no_convolution,
    .positions = no_positions,
    .decode = no_decode,
    .decode_state_bytes = no_state,
};

/* Every product of a run of that shape is one that is prepared, and the other way round. */
static void check_shape(const struct berth_parakeet_config *config, uint32_t rows, uint32_t seconds)
{
    struct berth_err err = {.code = BERTH_OK};
    struct berth_parakeet_weights *weights = berth_alloc(sizeof(*weights));
    struct berth_parakeet_net *net = NULL;
    struct berth_parakeet_run *run = NULL;
    struct berth_parakeet_linear_call calls[BERTH_PARAKEET_PRODUCTS_MAX];
    struct berth_parakeet_cuda_key prepared[BERTH_PARAKEET_PRODUCTS_MAX];
    const struct berth_parakeet_shape shape = {
        .rows = rows, .padded = berth_parakeet_lengths_of(seconds * BERTH_PARAKEET_SAMPLE_RATE)};
    uint32_t samples[64] = {0};
    assert_non_null(weights);
    berth_parakeet_weights_place(config, BERTH_PARAKEET_F16, ELSEWHERE, weights);
    assert_int_equal(berth_parakeet_net_create(&idle, NULL, config, weights, shape.padded.frames,
                                               &net, &err),
                     BERTH_OK);
    assert_int_equal(berth_parakeet_run_create(net, &shape, &run, &err), BERTH_OK);
    const uint32_t count = berth_parakeet_products(config, weights, &shape, calls);
    for (uint32_t i = 0; i < count; i++) {
        prepared[i] = key_of(&calls[i]);
        assert_true(berth_parakeet_cuda_well_formed(&calls[i]));
    }
    asked_count = 0; /* positions are projected once, when a model is loaded */
    berth_parakeet_run_begin(run, samples);
    assert_false(berth_parakeet_run_advance(run));
    for (size_t i = 0; i < asked_count; i++) {
        assert_true(has(prepared, count, &asked[i]));
    }
    for (uint32_t i = 0; i < count; i++) {
        assert_true(has(asked, asked_count, &prepared[i]));
    }
    berth_parakeet_run_destroy(run);
    berth_parakeet_net_destroy(net);
    berth_free(weights);
}

static void test_prepared_is_asked(void **state)
{
    static const struct {
        uint32_t rows, seconds;
    } shapes[] = {{1, 2}, {1, 32}, {2, 24}, {4, 96}, {32, 2}, {64, 4}, {64, 16}};
    for (uint32_t form = 0; form < 32; form++) {
        struct berth_parakeet_config config = large;
        config.narrow = (form & 1) != 0;
        config.attention_bias = config.convolution_bias = (form & 2) != 0;
        config.scale_input = (form & 4) != 0;
        by_lt = (form & 8) != 0;
        if ((form & 16) != 0) {
            config.head = BERTH_PARAKEET_CTC;
            config.prediction = config.prediction_layers = config.duration_count = 0;
        }
        for (size_t i = 0; i < BERTH_COUNT_OF(shapes); i++) {
            check_shape(&config, shapes[i].rows, shapes[i].seconds);
        }
    }
}

/* All that a run of the large model asks for in halves, Hopper's tiles take. */
static void test_large_is_taken(void **state)
{
    struct berth_parakeet_weights *weights = berth_alloc(sizeof(*weights));
    struct berth_parakeet_linear_call calls[BERTH_PARAKEET_PRODUCTS_MAX];
    assert_non_null(weights);
    berth_parakeet_weights_place(&large, BERTH_PARAKEET_F16, ELSEWHERE, weights);
    for (uint32_t rows = 1; rows <= 64; rows *= 2) {
        const struct berth_parakeet_shape shape = {
            .rows = rows, .padded = berth_parakeet_lengths_of(16 * BERTH_PARAKEET_SAMPLE_RATE)};
        const uint32_t count = berth_parakeet_products(&large, weights, &shape, calls);
        assert_int_equal(count, BERTH_PARAKEET_PRODUCTS_MAX);
        for (uint32_t i = 0; i < count; i++) {
            const struct berth_parakeet_cuda_product product = {
                calls[i].n, calls[i].linear->in, calls[i].linear->out};
            uint32_t found[TILES];
            assert_true(berth_parakeet_cuda_tiles_likely(tiles, TILES, &product, H200, found) > 0);
        }
    }
    berth_free(weights);
}

/* Whatever buckets come, in whatever order, their log-mels have together no more than is reserved
 * for the largest; the worst is that each needs a little more than there is. */
static void test_features_grow(void **state)
{
    struct berth_parakeet_shape shape = {.rows = 1};
    uint32_t random = 1;
    for (int round = 0; round < 2000; round++) {
        uint64_t last = 0, all = 0;
        uint32_t most = 0;
        for (int i = 0; i < 40; i++) {
            random = random * 1664525 + 1013904223;
            const uint32_t features =
                round == 0 ? (uint32_t)(last / (large.mels * 4)) + 1 : random >> (12 + round % 16);
            const uint64_t bytes = ((uint64_t)features + 2) * large.mels * 4;
            if (features > 1000000) {
                continue;
            }
            most = features > most ? features : most;
            if (bytes > last) {
                last = last == 0 ? bytes : berth_parakeet_cuda_grown(bytes, last);
                all += last;
            }
        }
        shape.padded.features = most;
        assert_true(BERTH_PARAKEET_CUDA_WORKSPACE_BYTES + all <=
                    berth_parakeet_kept_ahead(BERTH_PARAKEET_F16, 1, &large, &shape));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),         cmocka_unit_test(test_tiles_always),
        cmocka_unit_test(test_keys_differ),   cmocka_unit_test(test_keys_of_calls),
        cmocka_unit_test(test_well_formed),   cmocka_unit_test(test_sum_factor),
        cmocka_unit_test(test_prepared_is_asked), cmocka_unit_test(test_large_is_taken),
        cmocka_unit_test(test_features_grow)};
    large = *berth_random_parakeet_config("0.6b");
    large.layers = 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
