/* weights_plan.c - the table of a FastConformer's tensors, one row for each kind.
 *
 * A row has the tensor's name in Hugging Face's files, its form, its shape in terms of the config,
 * when it is there, and which pointer of struct berth_parakeet_weights it stands behind. Rows come
 * in groups: once a model, once a layer, once a layer of the prediction net. A row that is `joined`
 * follows the one before it without a gap (q, k, v). The scales of a layer's matrices lie together
 * before its tensors, in the order of the rows. Names are those of transformers' ParakeetFor*.
 */
#include "engine/parakeet/weights_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define ALIGNMENT 256

enum size {
    END, /* no further dimension */
    ONE,
    THREE,
    HIDDEN,
    HIDDEN_2,
    HEADS,
    HEAD_DIM,
    INNER,
    KERNEL,
    CHANNELS,
    CHANNEL_MELS, /* channels x mels / 8 */
    VOCABULARY,
    OUTPUTS, /* vocabulary and durations */
    PREDICTION,
    PREDICTION_4,
};

enum when { ALWAYS, LINEAR_BIASED, CONV_BIASED, TRANSDUCER, CTC };

struct row {
    const char *name; /* after the group's prefix */
    enum berth_parakeet_form form;
    enum size dims[BERTH_PARAKEET_TENSOR_RANK_MAX];
    enum when when;
    size_t pointer; /* in the group's struct */
    bool joined;
};

struct group {
    const char *prefix; /* of the names */
    const struct row *rows;
    size_t count;
    size_t start;  /* of the group's struct in struct berth_parakeet_weights */
    size_t stride; /* to the next one */
};

#define MATRIX BERTH_PARAKEET_FORM_MATRIX
#define SCALED BERTH_PARAKEET_FORM_SCALED
#define ELEMENTS BERTH_PARAKEET_FORM_ELEMENTS
#define FLOATS BERTH_PARAKEET_FORM_FLOATS
#define TAPS BERTH_PARAKEET_FORM_TAPS
#define FREQUENCY BERTH_PARAKEET_FORM_FREQUENCY
#define CONV BERTH_PARAKEET_FORM_CONV
#define CONV_BIAS BERTH_PARAKEET_FORM_CONV_BIAS
#define LSTM_BIAS BERTH_PARAKEET_FORM_LSTM_BIAS
#define FOLDED BERTH_PARAKEET_FORM_FOLDED
#define AT(member) offsetof(struct berth_parakeet_weights, member)
#define LAYER(member) offsetof(struct berth_parakeet_layer, member)
#define LSTM(member) offsetof(struct berth_parakeet_lstm, member)

/* clang-format off */
static const struct row encoder_rows[] = {
    {"layers.0.weight", TAPS, {CHANNELS, ONE, THREE, THREE}, ALWAYS, AT(first.weight), false},
    {"layers.0.bias", FLOATS, {CHANNELS}, ALWAYS, AT(first.bias), false},
    {"layers.2.weight", TAPS, {CHANNELS, ONE, THREE, THREE}, ALWAYS, AT(second.weight), false},
    {"layers.2.bias", FLOATS, {CHANNELS}, ALWAYS, AT(second.bias), false},
    {"layers.3.weight", MATRIX, {CHANNELS, CHANNELS, ONE, ONE}, ALWAYS, AT(second_point), false},
    {"layers.3.bias", ELEMENTS, {CHANNELS}, ALWAYS, AT(second_point.bias), false},
    {"layers.5.weight", TAPS, {CHANNELS, ONE, THREE, THREE}, ALWAYS, AT(third.weight), false},
    {"layers.5.bias", FLOATS, {CHANNELS}, ALWAYS, AT(third.bias), false},
    {"layers.6.weight", MATRIX, {CHANNELS, CHANNELS, ONE, ONE}, ALWAYS, AT(third_point), false},
    {"layers.6.bias", ELEMENTS, {CHANNELS}, ALWAYS, AT(third_point.bias), false},
    {"linear.weight", FREQUENCY, {HIDDEN, CHANNEL_MELS}, ALWAYS, AT(subsample_out), false},
    {"linear.bias", ELEMENTS, {HIDDEN}, ALWAYS, AT(subsample_out.bias), false},
};

static const struct row layer_rows[] = {
    {"norm_feed_forward1.weight", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_ff1.gamma), false},
    {"norm_feed_forward1.bias", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_ff1.beta), false},
    {"feed_forward1.linear1.weight", SCALED, {INNER, HIDDEN}, ALWAYS, LAYER(ff1_up), false},
    {"feed_forward1.linear1.bias", ELEMENTS, {INNER}, LINEAR_BIASED, LAYER(ff1_up.bias), false},
    {"feed_forward1.linear2.weight", SCALED, {HIDDEN, INNER}, ALWAYS, LAYER(ff1_down), false},
    {"feed_forward1.linear2.bias", ELEMENTS, {HIDDEN}, LINEAR_BIASED, LAYER(ff1_down.bias), false},
    {"norm_self_att.weight", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_attention.gamma), false},
    {"norm_self_att.bias", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_attention.beta), false},
    {"self_attn.q_proj.weight", SCALED, {HIDDEN, HIDDEN}, ALWAYS, LAYER(qkv), false},
    {"self_attn.k_proj.weight", SCALED, {HIDDEN, HIDDEN}, ALWAYS, LAYER(qkv), true},
    {"self_attn.v_proj.weight", SCALED, {HIDDEN, HIDDEN}, ALWAYS, LAYER(qkv), true},
    {"self_attn.q_proj.bias", ELEMENTS, {HIDDEN}, LINEAR_BIASED, LAYER(qkv.bias), false},
    {"self_attn.k_proj.bias", ELEMENTS, {HIDDEN}, LINEAR_BIASED, LAYER(qkv.bias), true},
    {"self_attn.v_proj.bias", ELEMENTS, {HIDDEN}, LINEAR_BIASED, LAYER(qkv.bias), true},
    {"self_attn.relative_k_proj.weight", MATRIX, {HIDDEN, HIDDEN}, ALWAYS, LAYER(position), false},
    {"self_attn.bias_u", FLOATS, {HEADS, HEAD_DIM}, ALWAYS, LAYER(bias_u), false},
    {"self_attn.bias_v", FLOATS, {HEADS, HEAD_DIM}, ALWAYS, LAYER(bias_v), false},
    {"self_attn.o_proj.weight", MATRIX, {HIDDEN, HIDDEN}, ALWAYS, LAYER(attention_out), false},
    {"self_attn.o_proj.bias", ELEMENTS, {HIDDEN}, LINEAR_BIASED, LAYER(attention_out.bias), false},
    {"norm_conv.weight", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_conv.gamma), false},
    {"norm_conv.bias", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_conv.beta), false},
    {"conv.pointwise_conv1.weight", SCALED, {HIDDEN_2, HIDDEN, ONE}, ALWAYS, LAYER(conv_in), false},
    {"conv.pointwise_conv1.bias", ELEMENTS, {HIDDEN_2}, CONV_BIASED, LAYER(conv_in.bias), false},
    {"conv.depthwise_conv.weight", CONV, {HIDDEN, ONE, KERNEL}, ALWAYS, LAYER(conv.weight), false},
    {"conv.depthwise_conv.bias", FOLDED, {HIDDEN}, CONV_BIASED, 0, false},
    {"conv.norm.weight", FOLDED, {HIDDEN}, ALWAYS, 0, false},
    {"conv.norm.bias", CONV_BIAS, {HIDDEN}, ALWAYS, LAYER(conv.bias), false},
    {"conv.norm.running_mean", FOLDED, {HIDDEN}, ALWAYS, 0, false},
    {"conv.norm.running_var", FOLDED, {HIDDEN}, ALWAYS, 0, false},
    {"conv.pointwise_conv2.weight", MATRIX, {HIDDEN, HIDDEN, ONE}, ALWAYS, LAYER(conv_out), false},
    {"conv.pointwise_conv2.bias", ELEMENTS, {HIDDEN}, CONV_BIASED, LAYER(conv_out.bias), false},
    {"norm_feed_forward2.weight", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_ff2.gamma), false},
    {"norm_feed_forward2.bias", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_ff2.beta), false},
    {"feed_forward2.linear1.weight", SCALED, {INNER, HIDDEN}, ALWAYS, LAYER(ff2_up), false},
    {"feed_forward2.linear1.bias", ELEMENTS, {INNER}, LINEAR_BIASED, LAYER(ff2_up.bias), false},
    {"feed_forward2.linear2.weight", SCALED, {HIDDEN, INNER}, ALWAYS, LAYER(ff2_down), false},
    {"feed_forward2.linear2.bias", ELEMENTS, {HIDDEN}, LINEAR_BIASED, LAYER(ff2_down.bias), false},
    {"norm_out.weight", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_out.gamma), false},
    {"norm_out.bias", FLOATS, {HIDDEN}, ALWAYS, LAYER(norm_out.beta), false},
};

static const struct row head_rows[] = {
    {"encoder_projector.weight", MATRIX, {PREDICTION, HIDDEN}, TRANSDUCER, AT(projector), false},
    {"encoder_projector.bias", ELEMENTS, {PREDICTION}, TRANSDUCER, AT(projector.bias), false},
    {"decoder.embedding.weight", ELEMENTS, {VOCABULARY, PREDICTION}, TRANSDUCER, AT(embedding),
     false},
    {"decoder.decoder_projector.weight", MATRIX, {PREDICTION, PREDICTION}, TRANSDUCER,
     AT(prediction_out), false},
    {"decoder.decoder_projector.bias", ELEMENTS, {PREDICTION}, TRANSDUCER, AT(prediction_out.bias),
     false},
    {"joint.head.weight", MATRIX, {OUTPUTS, PREDICTION}, TRANSDUCER, AT(head), false},
    {"joint.head.bias", ELEMENTS, {OUTPUTS}, TRANSDUCER, AT(head.bias), false},
    {"ctc_head.weight", MATRIX, {VOCABULARY, HIDDEN, ONE}, CTC, AT(head), false},
    {"ctc_head.bias", ELEMENTS, {VOCABULARY}, CTC, AT(head.bias), false},
};

static const struct row lstm_rows[] = {
    {"weight_ih", MATRIX, {PREDICTION_4, PREDICTION}, TRANSDUCER, LSTM(input), false},
    {"weight_hh", MATRIX, {PREDICTION_4, PREDICTION}, TRANSDUCER, LSTM(state), false},
    {"bias_ih", LSTM_BIAS, {PREDICTION_4}, TRANSDUCER, LSTM(bias), false},
    {"bias_hh", FOLDED, {PREDICTION_4}, TRANSDUCER, 0, false},
};
/* clang-format on */

enum { GROUP_ENCODER, GROUP_LAYERS, GROUP_HEAD, GROUP_LSTM };

static const struct group groups[] = {
    [GROUP_ENCODER] = {.prefix = "encoder.subsampling.",
                       .rows = encoder_rows,
                       .count = BERTH_COUNT_OF(encoder_rows)},
    [GROUP_LAYERS] = {.prefix = "encoder.layers.",
                      .rows = layer_rows,
                      .count = BERTH_COUNT_OF(layer_rows),
                      .start = AT(layers),
                      .stride = sizeof(struct berth_parakeet_layer)},
    [GROUP_HEAD] = {.prefix = "", .rows = head_rows, .count = BERTH_COUNT_OF(head_rows)},
    [GROUP_LSTM] = {.prefix = "decoder.lstm.",
                    .rows = lstm_rows,
                    .count = BERTH_COUNT_OF(lstm_rows),
                    .start = AT(lstm),
                    .stride = sizeof(struct berth_parakeet_lstm)},
};

static bool row_there(const struct berth_parakeet_config *config, enum when when);
static void row_describe(struct berth_parakeet_plan *plan, const struct row *row,
                         struct berth_parakeet_planned *out);
static void scales_reserve(struct berth_parakeet_plan *plan);
static uint32_t size_of(const struct berth_parakeet_config *config, enum size size);
static uint64_t bytes_of(const struct berth_parakeet_plan *plan,
                         const struct berth_parakeet_planned *planned);

bool berth_parakeet_plan_next(struct berth_parakeet_plan *plan, struct berth_parakeet_planned *out)
{
    for (; plan->group < BERTH_COUNT_OF(groups); plan->group++, plan->index = 0) {
        const struct group *group = &groups[plan->group];
        uint32_t repeats = plan->group == GROUP_LAYERS ? plan->config->layers
                           : plan->group == GROUP_LSTM ? plan->config->prediction_layers
                                                       : 1;
        for (; plan->index < repeats; plan->index++, plan->row = 0) {
            while (plan->row < group->count) {
                const struct row *row = &group->rows[plan->row++];
                if (row_there(plan->config, row->when)) {
                    row_describe(plan, row, out);
                    return true;
                }
            }
        }
    }
    return false;
}

static bool row_there(const struct berth_parakeet_config *config, enum when when)
{
    switch (when) {
    case LINEAR_BIASED:
        return config->attention_bias;
    case CONV_BIASED:
        return config->convolution_bias;
    case TRANSDUCER:
        return config->head != BERTH_PARAKEET_CTC;
    case CTC:
        return config->head == BERTH_PARAKEET_CTC;
    case ALWAYS:
    default:
        return true;
    }
}

static void row_describe(struct berth_parakeet_plan *plan, const struct row *row,
                         struct berth_parakeet_planned *out)
{
    const struct group *group = &groups[plan->group];
    memset(out, 0, sizeof(*out));
    out->form = row->form;
    out->index = plan->index;
    out->joined = row->joined;
    out->pointer = group->start + plan->index * group->stride + row->pointer;
    if (plan->group == GROUP_LAYERS) {
        (void)snprintf(out->name, sizeof(out->name), "%s%u.%s", group->prefix, plan->index,
                       row->name);
    } else if (plan->group == GROUP_LSTM) {
        (void)snprintf(out->name, sizeof(out->name), "%s%s_l%u", group->prefix, row->name,
                       plan->index);
    } else {
        (void)snprintf(out->name, sizeof(out->name), "%s%s", group->prefix, row->name);
    }
    out->elements = 1;
    for (size_t i = 0; i < BERTH_PARAKEET_TENSOR_RANK_MAX && row->dims[i] != END; i++) {
        out->dims[out->rank++] = size_of(plan->config, row->dims[i]);
        out->elements *= out->dims[i];
    }
    out->bytes = bytes_of(plan, out);
    if (plan->group == GROUP_LAYERS && plan->row == 1) { /* the layer's first */
        scales_reserve(plan);
    }
    if (row->form == SCALED && plan->config->narrow) {
        out->scales = plan->scales;
        plan->scales += out->dims[0] * sizeof(float);
    }
    if (out->bytes > 0) {
        if (!row->joined) {
            plan->end = (plan->end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
        out->offset = plan->end;
        plan->end += out->bytes;
    }
}

static void scales_reserve(struct berth_parakeet_plan *plan)
{
    uint64_t outputs = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(layer_rows); i++) {
        if (layer_rows[i].form == SCALED) {
            outputs += size_of(plan->config, layer_rows[i].dims[0]);
        }
    }
    if (plan->config->narrow) {
        plan->scales = (plan->end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        plan->end = plan->scales + outputs * sizeof(float);
    }
}

static uint32_t size_of(const struct berth_parakeet_config *config, enum size size)
{
    switch (size) {
    case THREE:
        return 3;
    case HIDDEN:
        return config->hidden;
    case HIDDEN_2:
        return 2 * config->hidden;
    case HEADS:
        return config->heads;
    case HEAD_DIM:
        return config->head_dim;
    case INNER:
        return config->inner;
    case KERNEL:
        return config->kernel;
    case CHANNELS:
        return config->channels;
    case CHANNEL_MELS:
        return config->channels * (config->mels / BERTH_PARAKEET_SUBSAMPLING);
    case VOCABULARY:
        return config->vocabulary;
    case OUTPUTS:
        return config->vocabulary + config->duration_count;
    case PREDICTION:
        return config->prediction;
    case PREDICTION_4:
        return 4 * config->prediction;
    case END:
    case ONE:
    default:
        return 1;
    }
}

static uint64_t bytes_of(const struct berth_parakeet_plan *plan,
                         const struct berth_parakeet_planned *planned)
{
    switch (planned->form) {
    case FOLDED:
        return 0;
    case SCALED:
        if (plan->config->narrow) {
            return planned->elements;
        }
        return planned->elements * (plan->element == BERTH_PARAKEET_F16 ? 2 : 4);
    case MATRIX:
    case ELEMENTS:
    case FREQUENCY:
        return planned->elements * (plan->element == BERTH_PARAKEET_F16 ? 2 : 4);
    case FLOATS:
    case TAPS:
    case CONV:
    case CONV_BIAS:
    case LSTM_BIAS:
    default:
        return planned->elements * sizeof(float);
    }
}
