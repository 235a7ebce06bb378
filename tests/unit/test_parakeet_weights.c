/* A model's weights: every form of every type arrives where it belongs, and what is wrong with a
 * file is refused by the tensor's name. */
#include "engine/parakeet/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>
#include <math.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "engine/parakeet/e4m3.h"
#include "parakeet_golden.h"
#include "parakeet_model.h"
#include "sanitizer.h"

static char folder[] = "/tmp/berth-weights-XXXXXX";

/* Odd sizes, so that rows and pieces end at no round place. */
static const struct berth_parakeet_config tiny = {
    .head = BERTH_PARAKEET_TDT,
    .mels = 80,
    .hidden = 16,
    .heads = 2,
    .head_dim = 8,
    .layers = 2,
    .inner = 24,
    .kernel = 3,
    .channels = 8,
    .vocabulary = 11,
    .blank = 10,
    .prediction = 8,
    .prediction_layers = 2,
    .durations = {0, 1, 2, 3, 4},
    .duration_count = 5,
    .symbols_max = 10,
};

struct span {
    uint8_t *bytes;
    uint8_t *written; /* how often each byte was */
    uint64_t length;
    atomic_size_t most; /* longest write */
    bool lend;          /* have a buffer of our own */
    uint8_t *lent[16];
    atomic_int lent_count;
    bool full; /* refuse to take anything */
};

static enum berth_code span_write(void *state, uint64_t offset, const void *source, size_t bytes,
                                  struct berth_err *err)
{
    struct span *span = state;
    if (span->full) {
        return berth_fail(err, BERTH_UNAVAILABLE, "the device is full");
    }
    assert_true(offset <= span->length && bytes <= span->length - offset);
    memcpy(span->bytes + offset, source, bytes);
    for (size_t i = 0; i < bytes; i++) {
        span->written[offset + i]++;
    }
    if (bytes > atomic_load(&span->most)) {
        atomic_store(&span->most, bytes);
    }
    return BERTH_OK;
}

static void *span_buffer(void *state, uint32_t reader, size_t bytes)
{
    struct span *span = state;
    assert_true(reader < 16);
    if (span->lent[reader] == NULL) {
        span->lent[reader] = berth_alloc(bytes);
        atomic_fetch_add(&span->lent_count, 1);
    }
    return span->lent[reader];
}

static enum berth_code load(const struct berth_parakeet_config *config,
                            enum berth_parakeet_element element, uint32_t readers,
                            struct span *span, struct berth_err *err)
{
    struct berth_parakeet_sink sink = {.write = span_write, .state = span, .readers = readers};
    if (span->lend) {
        sink.buffer = span_buffer;
    }
    span->length = berth_parakeet_weights_bytes(config, element);
    span->bytes = berth_alloc(span->length);
    span->written = berth_alloc(span->length);
    assert_true(span->bytes != NULL && span->written != NULL);
    return berth_parakeet_weights_read(config, element, folder, &sink, err);
}

static void drop(struct span *span)
{
    berth_free(span->bytes);
    berth_free(span->written);
    for (size_t i = 0; i < 16; i++) {
        berth_free(span->lent[i]);
    }
    memset(span, 0, sizeof(*span));
}

static float element_at(const void *values, enum berth_parakeet_element element, size_t index)
{
    if (element == BERTH_PARAKEET_F32) {
        return ((const float *)values)[index];
    }
    const uint16_t half = ((const uint16_t *)values)[index];
    const int exponent = half >> 10 & 31;
    const float fraction = (float)(half & 0x3FF) * 0x1p-10F;
    const float magnitude = exponent == 0 ? ldexpf(fraction, -14)
                                          : ldexpf(1 + fraction, exponent - 15);
    return half >> 15 != 0 ? -magnitude : magnitude;
}

static void check_elements(const void *values, enum berth_parakeet_element element, size_t count,
                           const char *name)
{
    for (size_t i = 0; i < count; i++) {
        float have = element_at(values, element, i);
        if (model_bits(have + 0.0F) != model_bits(model_value(name, i) + 0.0F)) {
            fail_msg("%s[%zu] is %g, not %g", name, i, (double)have, (double)model_value(name, i));
        }
    }
}

static void check_conv(const struct berth_parakeet_config *config,
                       const struct berth_parakeet_depthwise *conv, uint32_t layer)
{
    char names[6][96];
    static const char *const parts[6] = {"depthwise_conv.weight", "depthwise_conv.bias",
                                         "norm.weight",           "norm.bias",
                                         "norm.running_mean",     "norm.running_var"};
    for (size_t i = 0; i < 6; i++) {
        snprintf(names[i], sizeof(names[i]), "encoder.layers.%u.conv.%s", layer, parts[i]);
    }
    for (uint32_t c = 0; c < config->hidden; c++) {
        double scale = model_value(names[2], c) / sqrt(model_value(names[5], c) + 1e-5);
        double bias = config->convolution_bias ? model_value(names[1], c) : 0;
        double shift = (bias - model_value(names[4], c)) * scale + model_value(names[3], c);
        assert_true(fabs(conv->bias[c] - shift) <= 1e-6 * (1 + fabs(shift)));
        for (uint32_t tap = 0; tap < config->kernel; tap++) {
            double weight = model_value(names[0], c * config->kernel + tap) * scale;
            double have = conv->weight[tap * config->hidden + c];
            assert_true(fabs(have - weight) <= 1e-6 * (1 + fabs(weight)));
        }
    }
}

static void check_taps(const struct berth_parakeet_config *config,
                       const struct berth_parakeet_depthwise *conv, const char *name)
{
    for (uint32_t c = 0; c < config->channels; c++) {
        for (uint32_t tap = 0; tap < 9; tap++) {
            assert_true(conv->weight[tap * config->channels + c] == model_value(name, c * 9 + tap));
        }
    }
}

static void check_transducer(const struct berth_parakeet_config *config,
                             const struct berth_parakeet_weights *weights,
                             enum berth_parakeet_element element)
{
    uint32_t width = config->prediction;
    check_elements(weights->embedding, element, (size_t)config->vocabulary * width,
                   "decoder.embedding.weight");
    check_elements(weights->projector.weight, element, (size_t)width * config->hidden,
                   "encoder_projector.weight");
    check_elements(weights->head.bias, element, config->vocabulary + config->duration_count,
                   "joint.head.bias");
    assert_int_equal(weights->head.out, config->vocabulary + config->duration_count);
    check_elements(weights->lstm[1].state.weight, element, (size_t)4 * width * width,
                   "decoder.lstm.weight_hh_l1");
    for (uint32_t i = 0; i < 4 * width; i++) {
        assert_true(weights->lstm[1].bias[i] == model_value("decoder.lstm.bias_ih_l1", i) +
                                                    model_value("decoder.lstm.bias_hh_l1", i));
    }
}

static void check_weights(const struct berth_parakeet_config *config,
                          enum berth_parakeet_element element, const struct span *span)
{
    struct berth_parakeet_weights *weights = berth_alloc(sizeof(*weights));
    berth_parakeet_weights_place(config, element, span->bytes, weights);
    const struct berth_parakeet_layer *layer = &weights->layers[1];
    uint32_t hidden = config->hidden;
    size_t square = (size_t)hidden * hidden;
    size_t size = element == BERTH_PARAKEET_F16 ? 2 : 4;
    assert_int_equal(layer->qkv.in, hidden);
    assert_int_equal(layer->qkv.out, 3 * hidden);
    check_elements(layer->qkv.weight, element, square, "encoder.layers.1.self_attn.q_proj.weight");
    check_elements((const char *)layer->qkv.weight + square * size, element, square,
                   "encoder.layers.1.self_attn.k_proj.weight");
    check_elements((const char *)layer->qkv.weight + 2 * square * size, element, square,
                   "encoder.layers.1.self_attn.v_proj.weight");
    assert_int_equal(layer->qkv.bias != NULL, config->attention_bias);
    if (config->attention_bias) {
        check_elements((const char *)layer->qkv.bias + 2 * hidden * size, element, hidden,
                       "encoder.layers.1.self_attn.v_proj.bias");
        check_elements(layer->ff2_up.bias, element, config->inner,
                       "encoder.layers.1.feed_forward2.linear1.bias");
    }
    check_elements(layer->ff1_down.weight, element, (size_t)hidden * config->inner,
                   "encoder.layers.1.feed_forward1.linear2.weight");
    assert_int_equal(layer->ff1_down.in, config->inner);
    check_elements(layer->bias_v, BERTH_PARAKEET_F32, hidden, "encoder.layers.1.self_attn.bias_v");
    check_elements(layer->norm_out.beta, BERTH_PARAKEET_F32, hidden,
                   "encoder.layers.1.norm_out.bias");
    check_elements(layer->conv_in.weight, element, 2 * square,
                   "encoder.layers.1.conv.pointwise_conv1.weight");
    check_conv(config, &weights->layers[0].conv, 0);
    check_conv(config, &layer->conv, 1);
    check_taps(config, &weights->first, "encoder.subsampling.layers.0.weight");
    check_taps(config, &weights->third, "encoder.subsampling.layers.5.weight");
    uint32_t frequencies = config->mels / 8;
    for (uint32_t row = 0; row < hidden; row++) {
        for (uint32_t i = 0; i < config->channels * frequencies; i++) {
            uint32_t from = i % config->channels * frequencies + i / config->channels;
            uint32_t width = config->channels * frequencies;
            assert_true(element_at(weights->subsample_out.weight, element, row * width + i) ==
                        model_value("encoder.subsampling.linear.weight", row * width + from));
        }
    }
    if (config->head == BERTH_PARAKEET_CTC) {
        check_elements(weights->head.weight, element, (size_t)config->vocabulary * hidden,
                       "ctc_head.weight");
        assert_null(weights->projector.weight);
        assert_null(weights->embedding);
    } else {
        check_transducer(config, weights, element);
    }
    berth_free(weights);
}

/* Every byte of a tensor is written once, gaps between them never, and each starts at 256. */
static void check_written(const struct berth_parakeet_config *config,
                          enum berth_parakeet_element element, const struct span *span)
{
    struct berth_parakeet_plan plan = {.config = config, .element = element};
    struct berth_parakeet_planned planned;
    uint64_t total = 0;
    uint64_t written = 0;
    while (berth_parakeet_plan_next(&plan, &planned)) {
        const uint64_t scales = planned.scales > 0 ? planned.dims[0] * sizeof(float) : 0;
        total += planned.bytes + scales;
        for (uint64_t i = 0; i < scales; i++) {
            assert_int_equal(span->written[planned.scales + i], 1);
        }
        assert_true(planned.bytes == 0 || planned.joined || planned.offset % 256 == 0);
        for (uint64_t i = 0; i < planned.bytes; i++) {
            assert_int_equal(span->written[planned.offset + i], 1);
        }
    }
    for (uint64_t i = 0; i < span->length; i++) {
        written += span->written[i];
    }
    assert_int_equal(written, total);
    assert_true(atomic_load(&span->most) <= 8U << 20);
}

static void test_forms(void **state)
{
    static const enum berth_dtype dtypes[] = {BERTH_DTYPE_BF16, BERTH_DTYPE_FP16, BERTH_DTYPE_FP32};
    static const uint32_t readers[] = {1, 3, 16};
    for (size_t i = 0; i < 3; i++) {
        for (int biased = 0; biased < 2; biased++) {
            for (int head = BERTH_PARAKEET_TDT; head <= BERTH_PARAKEET_CTC; head++) {
                struct berth_parakeet_config config = tiny;
                config.head = (enum berth_parakeet_head)head;
                config.attention_bias = config.convolution_bias = biased != 0;
                config.duration_count = head == BERTH_PARAKEET_TDT ? 5 : 0;
                if (head == BERTH_PARAKEET_CTC) {
                    config.prediction = config.prediction_layers = 0;
                }
                model_write(folder, &config,
                            &(struct model_wish){.dtype = dtypes[i], .counters = biased != 0});
                for (int element = BERTH_PARAKEET_F32; element <= BERTH_PARAKEET_F16; element++) {
                    struct span span = {.lend = biased == 0};
                    struct berth_err err = {0};
                    assert_int_equal(berth_parakeet_weights_check(&config, folder, &err), BERTH_OK);
                    if (load(&config, (enum berth_parakeet_element)element, readers[i], &span,
                             &err) != BERTH_OK) {
                        fail_msg("%s", err.msg);
                    }
                    check_weights(&config, (enum berth_parakeet_element)element, &span);
                    check_written(&config, (enum berth_parakeet_element)element, &span);
                    assert_int_equal(atomic_load(&span.lent_count) > 0, span.lend);
                    drop(&span);
                }
            }
        }
    }
}

/* Tensors of more than a piece. */
static void test_pieces(void **state)
{
    struct berth_parakeet_config config = tiny;
    config.vocabulary = 150001;
    config.prediction = 24;
    for (int dtype = TEST_TSAN ? 1 : 0; dtype < 2; dtype++) { /* TSan: what is lent, converted */
        model_write(
            folder, &config,
            &(struct model_wish){.dtype = dtype == 0 ? BERTH_DTYPE_FP32 : BERTH_DTYPE_BF16});
        for (int element = BERTH_PARAKEET_F32; element <= BERTH_PARAKEET_F16; element++) {
            struct span span = {.lend = dtype == 1};
            struct berth_err err = {0};
            if (load(&config, (enum berth_parakeet_element)element, 3, &span, &err) != BERTH_OK) {
                fail_msg("%s", err.msg);
            }
            check_weights(&config, (enum berth_parakeet_element)element, &span);
            check_written(&config, (enum berth_parakeet_element)element, &span);
            drop(&span);
        }
    }
}

/* Rows from `first` on of a matrix are the tensor's: the scale by the largest, each weight the
 * nearest of what e4m3 has. */
static void check_scaled(const struct berth_parakeet_linear *linear, uint32_t first, uint32_t rows,
                         const char *name)
{
    const uint8_t *codes = linear->weight;
    for (uint32_t row = 0; row < rows; row++) {
        const float scale = linear->scale[first + row];
        float largest = 0;
        for (uint32_t i = 0; i < linear->in; i++) {
            largest = fmaxf(largest, fabsf(model_value(name, (size_t)row * linear->in + i)));
        }
        assert_true(scale == (largest > 0 ? largest / BERTH_E4M3_MAX : 1));
        for (uint32_t i = 0; i < linear->in; i++) {
            const float value = model_value(name, (size_t)row * linear->in + i) / scale;
            const uint8_t code = codes[(size_t)(first + row) * linear->in + i];
            const float step = fmaxf(ldexpf(1, ilogbf(fmaxf(fabsf(value), 0x1p-9F)) - 3), 0x1p-9F);
            assert_true(fabsf(berth_e4m3_value(code) - value) <= step * 0.50001F);
        }
    }
}

static void check_narrow(const struct berth_parakeet_config *config, const struct span *span)
{
    struct berth_parakeet_weights *weights = berth_alloc(sizeof(*weights));
    berth_parakeet_weights_place(config, BERTH_PARAKEET_F16, span->bytes, weights);
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct berth_parakeet_layer *layer = &weights->layers[l];
        const struct {
            const struct berth_parakeet_linear *linear;
            uint32_t first, rows;
            const char *name;
        } all[] = {
            {&layer->ff1_up, 0, config->inner, "feed_forward1.linear1"},
            {&layer->ff1_down, 0, config->hidden, "feed_forward1.linear2"},
            {&layer->ff2_up, 0, config->inner, "feed_forward2.linear1"},
            {&layer->ff2_down, 0, config->hidden, "feed_forward2.linear2"},
            {&layer->qkv, 0, config->hidden, "self_attn.q_proj"},
            {&layer->qkv, config->hidden, config->hidden, "self_attn.k_proj"},
            {&layer->qkv, 2 * config->hidden, config->hidden, "self_attn.v_proj"},
            {&layer->conv_in, 0, 2 * config->hidden, "conv.pointwise_conv1"},
        };
        for (size_t i = 0; i < BERTH_COUNT_OF(all); i++) {
            char name[96];
            (void)snprintf(name, sizeof(name), "encoder.layers.%u.%s.weight", l, all[i].name);
            check_scaled(all[i].linear, all[i].first, all[i].rows, name);
        }
        char name[96];
        (void)snprintf(name, sizeof(name), "encoder.layers.%u.self_attn.o_proj.weight", l);
        assert_null(layer->attention_out.scale);
        check_elements(layer->attention_out.weight, BERTH_PARAKEET_F16,
                       (size_t)config->hidden * config->hidden, name);
    }
    assert_null(weights->head.scale);
    berth_free(weights);
}

/* e4m3 with scales, also where a matrix is more than a piece (not under ThreadSanitizer: it sees
 * the readers' pieces in test_pieces). */
static void test_narrow(void **state)
{
    static const enum berth_dtype dtypes[] = {BERTH_DTYPE_BF16, BERTH_DTYPE_FP16, BERTH_DTYPE_FP32};
    for (size_t i = 0; i < (TEST_TSAN ? 3 : 4); i++) {
        struct berth_parakeet_config config = tiny;
        config.inner = i == 3 ? 150000 : tiny.inner;
        config.layers = i == 3 ? 1 : 2;
        config.attention_bias = i == 1;
        model_write(folder, &config, &(struct model_wish){.dtype = dtypes[i % 3]});
        const uint64_t plain = berth_parakeet_weights_bytes(&config, BERTH_PARAKEET_F16);
        struct span span = {.lend = i == 2};
        struct berth_err err = {0};
        config.narrow = true;
        if (load(&config, BERTH_PARAKEET_F16, 3, &span, &err) != BERTH_OK) {
            fail_msg("%s", err.msg);
        }
        assert_true(i != 3 || span.length < plain * 2 / 3);
        check_narrow(&config, &span);
        check_written(&config, BERTH_PARAKEET_F16, &span);
        drop(&span);
    }
}

/* All codes are the nearest to themselves, what lies between goes to the even one. */
static void test_e4m3(void **state)
{
    for (unsigned code = 0; code < 256; code++) {
        if ((code & 0x7F) != 0x7F) {
            assert_int_equal(berth_e4m3_of(berth_e4m3_value((uint8_t)code)), code);
        }
    }
    for (unsigned code = 0; code < 0x7E; code++) {
        const float low = berth_e4m3_value((uint8_t)code);
        const float high = berth_e4m3_value((uint8_t)(code + 1));
        const float middle = (low + high) / 2;
        assert_true(low < high);
        assert_int_equal(berth_e4m3_of(middle), code + (code & 1));
        assert_int_equal(berth_e4m3_of(nextafterf(middle, 0)), code);
        assert_int_equal(berth_e4m3_of(nextafterf(middle, INFINITY)), code + 1);
        assert_int_equal(berth_e4m3_of(-middle), 0x80 | (code + (code & 1)));
    }
    assert_true(berth_e4m3_value(0x7E) == BERTH_E4M3_MAX && berth_e4m3_value(0x01) == 0x1p-9F);
    assert_int_equal(berth_e4m3_of(1e30F), 0x7E);
    assert_int_equal(berth_e4m3_of(-470), 0xFE);
    assert_int_equal(berth_e4m3_of(1e-30F), 0);
}

static void test_bad_files(void **state)
{
    static const struct {
        const char *what;
        struct model_wish wish;
        const char *text[2]; /* in the error's text */
        bool only_read;      /* the header alone is good */
    } cases[] = {
        {"missing", {.without = "joint.head.bias"}, {"'joint.head.bias' is missing"}, false},
        {"missing, folded",
         {.without = "encoder.layers.1.conv.norm.running_var"},
         {"'encoder.layers.1.conv.norm.running_var' is missing"},
         false},
        {"unknown",
         {.extra = "encoder.layers.2.norm_out.bias"},
         {"'encoder.layers.2.norm_out.bias' belongs to no part"},
         false},
        {"unknown, close to one that is ignored",
         {.extra = ".num_batches_tracked"},
         {"'.num_batches_tracked' belongs to no part"},
         false},
        {"shape",
         {.misshapen = "encoder_projector.weight"},
         {"'encoder_projector.weight' has the shape [16,8]", "it has [8,16]"},
         false},
        {"rank",
         {.misshapen = "joint.head.bias"},
         {"'joint.head.bias' has the shape [1,16]", "it has [16]"},
         false},
        {"type",
         {.integers = "decoder.embedding.weight"},
         {"'decoder.embedding.weight' is INT32, not BF16"},
         false},
        {"truncated", {.cut = 1}, {"truncated or overlong"}, false},
        {"not a number, plain",
         {.poisoned = "encoder.layers.0.self_attn.k_proj.weight", .poison = 0x7FC00000},
         {"'encoder.layers.0.self_attn.k_proj.weight' holds a value that is no finite number"},
         true},
        {"infinite, BF16",
         {.dtype = BERTH_DTYPE_BF16, .poisoned = "joint.head.weight", .poison = 0xFF80},
         {"'joint.head.weight' holds"},
         true},
        {"not a number, F16",
         {.dtype = BERTH_DTYPE_FP16, .poisoned = "joint.head.weight", .poison = 0x7C01},
         {"'joint.head.weight' holds"},
         true},
        {"not a number that rounds to a number",
         {.poisoned = "joint.head.bias", .poison = 0x7FFFFFFF},
         {"'joint.head.bias' holds"},
         true},
        {"past a half",
         {.poisoned = "joint.head.weight", .poison = 0x477FF000},
         {"'joint.head.weight' holds a value past 65504"},
         true},
        {"past a half, BF16, turned over",
         {.dtype = BERTH_DTYPE_BF16,
          .poisoned = "encoder.subsampling.linear.weight",
          .poison = 0xC780},
         {"'encoder.subsampling.linear.weight' holds a value past 65504"},
         true},
        {"infinite, of the batch norm",
         {.poisoned = "encoder.layers.1.conv.norm.running_mean", .poison = 0x7F800000},
         {"'encoder.layers.1.conv.norm.running_mean' holds"},
         true},
        {"infinite, turned over",
         {.poisoned = "encoder.subsampling.linear.weight", .poison = 0x7F800000},
         {"'encoder.subsampling.linear.weight' holds"},
         true},
        {"infinite, bias that is summed",
         {.poisoned = "decoder.lstm.bias_hh_l0", .poison = 0x7F800000},
         {"'decoder.lstm.bias_hh_l0' holds"},
         true},
        {"negative variance",
         {.filled = "encoder.layers.0.conv.norm.running_var", .fill = -1},
         {"'encoder.layers.0.conv.norm.running_var' holds"},
         true},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct span span = {0};
        struct berth_err err = {0};
        model_write(folder, &tiny, &cases[i].wish);
        enum berth_code checked = berth_parakeet_weights_check(&tiny, folder, &err);
        assert_int_equal(checked == BERTH_OK, cases[i].only_read);
        enum berth_code code = load(&tiny, BERTH_PARAKEET_F16, 2, &span, &err);
        drop(&span);
        assert_true(code == BERTH_INVALID || code == BERTH_UNSUPPORTED);
        if (strstr(err.msg, "past 65504") != NULL) { /* another device takes it */
            assert_int_equal(code, BERTH_UNSUPPORTED);
        }
        assert_non_null(strstr(err.msg, "model.safetensors"));
        for (size_t j = 0; j < 2 && cases[i].text[j] != NULL; j++) {
            if (strstr(err.msg, cases[i].text[j]) == NULL) {
                fail_msg("%s: %s", cases[i].what, err.msg);
            }
        }
    }
}

/* E10: by one reader or several, before the first piece or after some; and a load that is wanted
 * goes on to its end. */
static atomic_bool unwanted;
static atomic_int pieces_left;

static enum berth_code count_down(void *state, uint64_t offset, const void *source, size_t bytes,
                                  struct berth_err *err)
{
    if (atomic_fetch_sub(&pieces_left, 1) == 1) {
        atomic_store(&unwanted, true);
    }
    return BERTH_OK;
}

static void test_stops_when_unwanted(void **state)
{
    struct model_wish wish = {.extra = NULL};
    model_write(folder, &tiny, &wish);
    for (uint32_t readers = 1; readers <= 3; readers++) {
        for (int pieces = 0; pieces < 4; pieces++) {
            struct berth_parakeet_sink sink = {.write = count_down, .readers = readers};
            struct berth_err err = {0};
            atomic_store(&unwanted, pieces == 0);
            atomic_store(&pieces_left, pieces);
            berth_engine_load_set(&unwanted);
            assert_int_equal(berth_parakeet_weights_read(&tiny, BERTH_PARAKEET_F16, folder, &sink,
                                                         &err), BERTH_CANCELLED);
            berth_engine_load_set(NULL);
            assert_non_null(strstr(err.msg, "nobody waits"));
            assert_true(atomic_load(&pieces_left) > -(int)readers); /* each ends what it is at */
            assert_int_equal(berth_parakeet_weights_read(&tiny, BERTH_PARAKEET_F16, folder, &sink,
                                                         &err), BERTH_OK);
        }
    }
}

/* The largest float32 is finite, and no half; nor is 65520, which 65504 and a half step are. */
static void test_rounding(void **state)
{
    struct span span = {0};
    struct berth_err err = {0};
    struct berth_parakeet_weights *weights = berth_alloc(sizeof(*weights));
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3F801000, 0x3C00}, /* a tie, to even */
        {0x3F803000, 0x3C02}, {0x3F801001, 0x3C01}, {0xBF800FFF, 0xBC00},
        {0x477FE000, 0x7BFF}, {0x477FEFFF, 0x7BFF}, {0xC77FEFFF, 0xFBFF},
        {0x38800000, 0x0400}, {0x387FFFFF, 0x0400}, {0x387FC000, 0x03FF}, /* from here subnormal */
        {0x33C00000, 0x0002}, {0x33800000, 0x0001}, {0xB3000001, 0x8001}, {0x33000000, 0x0000},
        {0x00000001, 0x0000}, {0x80000000, 0x8000},
    };
    for (size_t i = 0; i < 2 * BERTH_COUNT_OF(cases); i++) {
        struct berth_parakeet_config config = tiny;
        config.vocabulary += i % 2; /* the last of 16, or one past eights: two ways to round */
        model_write(folder, &config,
                    &(struct model_wish){.poisoned = "joint.head.bias",
                                         .poison = cases[i / 2].from});
        assert_int_equal(load(&config, BERTH_PARAKEET_F16, 1, &span, &err), BERTH_OK);
        berth_parakeet_weights_place(&config, BERTH_PARAKEET_F16, span.bytes, weights);
        assert_int_equal(((const uint16_t *)weights->head.bias)[weights->head.out - 1],
                         cases[i / 2].to);
        drop(&span);
    }
    static const uint32_t large[] = {0x7F7FFFFF, 0x477FF000, 0xC7800000};
    for (size_t i = 0; i < BERTH_COUNT_OF(large); i++) {
        model_write(folder, &tiny,
                    &(struct model_wish){.poisoned = "joint.head.bias", .poison = large[i]});
        assert_int_equal(load(&tiny, BERTH_PARAKEET_F32, 1, &span, &err), BERTH_OK);
        drop(&span);
        assert_int_equal(load(&tiny, BERTH_PARAKEET_F16, 1, &span, &err), BERTH_UNSUPPORTED);
        drop(&span);
    }
    /* A subnormal half. */
    model_write(folder, &tiny,
                &(struct model_wish){
                    .dtype = BERTH_DTYPE_FP16, .poisoned = "joint.head.bias", .poison = 0x8003});
    assert_int_equal(load(&tiny, BERTH_PARAKEET_F32, 1, &span, &err), BERTH_OK);
    berth_parakeet_weights_place(&tiny, BERTH_PARAKEET_F32, span.bytes, weights);
    assert_true(((const float *)weights->head.bias)[weights->head.out - 1] == -0x3p-24F);
    drop(&span);
    berth_free(weights);
}

static void test_sink_fails(void **state)
{
    struct span span = {.full = true};
    struct berth_err err = {0};
    model_write(folder, &tiny, &(struct model_wish){0});
    assert_int_equal(load(&tiny, BERTH_PARAKEET_F32, 4, &span, &err), BERTH_UNAVAILABLE);
    assert_string_equal(err.msg, "the device is full");
    drop(&span);
}

static void test_no_file(void **state)
{
    struct berth_err err = {0};
    assert_int_equal(berth_parakeet_weights_check(&tiny, "/nowhere", &err), BERTH_NOT_FOUND);
}

/* Every allocation fails once: an error, nothing kept. */
static void test_memory(void **state)
{
    model_write(folder, &tiny, &(struct model_wish){0});
    for (uint64_t at = 1;; at++) {
        struct span span = {0};
        struct berth_parakeet_sink sink = {.write = span_write, .state = &span};
        struct berth_err err = {0};
        span.length = berth_parakeet_weights_bytes(&tiny, BERTH_PARAKEET_F16);
        span.bytes = berth_alloc(span.length);
        span.written = berth_alloc(span.length);
        uint64_t live = berth_mem_bytes_live();
        uint64_t calls = berth_mem_call_count();
        berth_mem_fail_at(at, false);
        enum berth_code code = berth_parakeet_weights_read(&tiny, BERTH_PARAKEET_F16, folder,
                                                           &sink, &err);
        berth_mem_fail_at(0, false);
        calls = berth_mem_call_count() - calls;
        assert_int_equal(berth_mem_bytes_live(), live);
        drop(&span);
        if (code == BERTH_OK && calls < at) {
            break;
        }
        assert_true(code == BERTH_UNAVAILABLE || code == BERTH_OK);
    }
}

/* The small trained model, its size, and that what was read is what the file says. */
static void test_nano(void **state)
{
    struct berth_parakeet_config config;
    struct berth_err err = {0};
    const char *model = golden_model();
    if (berth_parakeet_config_read(model, &config, &err) != BERTH_OK ||
        berth_parakeet_weights_check(&config, model, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    assert_in_range(berth_parakeet_weights_bytes(&config, BERTH_PARAKEET_F16), 24300000, 24600000);
    struct span span = {0};
    struct berth_parakeet_sink sink = {.write = span_write, .state = &span};
    span.length = berth_parakeet_weights_bytes(&config, BERTH_PARAKEET_F32);
    span.bytes = berth_alloc(span.length);
    span.written = berth_alloc(span.length);
    if (berth_parakeet_weights_read(&config, BERTH_PARAKEET_F32, model, &sink, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    check_written(&config, BERTH_PARAKEET_F32, &span);
    drop(&span);
}

static int set_up(void **state)
{
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),      cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_narrow),     cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_bad_files),  cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_stops_when_unwanted),
        cmocka_unit_test(test_sink_fails), cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_nano),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
