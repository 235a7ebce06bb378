/* cpu_convolution.c - the subsampling's convolutions, and the conformer's.
 *
 * The first two of the subsampling go together, eight channels and a few output frames at a time:
 * what lies between them (as large as the second's input is long) never leaves the cache. Borders
 * are zeros in a copy, so that the loops know none.
 * What lies past a row's own length is not computed, and not written: whoever reads these outputs
 * masks them.
 */
#include "engine/parakeet/cpu_device.h"

#include <string.h>

#define LANES BERTH_PARAKEET_LANES
#define BLOCK 8                    /* frames of the second convolution in a task */
#define HALF_LINES (2 * BLOCK + 1) /* lines of the first that they need */
#define FEATURE_LINES (2 * HALF_LINES + 1)
#define CHANNEL_BLOCK 128 /* of the conformer's convolution in a task */
#define TIME_BLOCK 64
#define MELS_MAX 128
#define CHANNELS_MAX 8192

struct subsample {
    const struct berth_parakeet_device *device;
    const struct berth_parakeet_config *config;
    const struct berth_parakeet_shape *shape;
    const struct berth_parakeet_counts *counts;
    const struct berth_parakeet_depthwise *first, *second; /* first: the third's, for the third */
    const float *in;
    float *out;
};

struct conformer {
    const struct berth_parakeet_device *device;
    const struct berth_parakeet_shape *shape;
    const struct berth_parakeet_counts *counts;
    const struct berth_parakeet_depthwise *conv;
    uint32_t hidden, taps;
    const float *in;
    float *out;
};

static void subsample_block(const void *context, uint64_t index, float *scratch);
static void copy_features(const struct subsample *work, uint32_t row, int64_t line, float *to);
static void fill_group(const struct berth_parakeet_depthwise *conv, uint32_t channels,
                       uint32_t channel, struct berth_parakeet_group *group);
static void spread_lines(const struct subsample *work, const struct berth_parakeet_group *group,
                         int64_t line, int64_t lines_max, float *scratch);
static void third_frame(const void *context, uint64_t index, float *scratch);
static void convolve_block(const void *context, uint64_t index, float *scratch);

/* lib-shaped */
void berth_parakeet_cpu_subsample_first(struct berth_parakeet_device *device,
                                        const struct berth_parakeet_config *config,
                                        const struct berth_parakeet_shape *shape,
                                        const struct berth_parakeet_counts *counts,
                                        const struct berth_parakeet_depthwise *first,
                                        const struct berth_parakeet_depthwise *second,
                                        const void *in, void *out)
{
    struct subsample work = {device, config, shape, counts, first, second, in, out};
    BERTH_ASSERT(config->mels % 8 == 0 && config->mels <= MELS_MAX);
    uint64_t blocks = (shape->padded.quarter + BLOCK - 1) / BLOCK;
    berth_parakeet_spread(device, shape->rows * blocks, subsample_block, &work);
}

/* lib-shaped */
void berth_parakeet_cpu_subsample_third(struct berth_parakeet_device *device,
                                        const struct berth_parakeet_config *config,
                                        const struct berth_parakeet_shape *shape,
                                        const struct berth_parakeet_counts *counts,
                                        const struct berth_parakeet_depthwise *third,
                                        const void *in, void *out)
{
    struct subsample work = {device, config, shape, counts, third, NULL, in, out};
    BERTH_ASSERT(config->channels <= CHANNELS_MAX);
    berth_parakeet_spread(device, (uint64_t)shape->rows * shape->padded.frames, third_frame, &work);
}

/* lib-shaped */
void berth_parakeet_cpu_convolve(struct berth_parakeet_device *device,
                                 const struct berth_parakeet_config *config,
                                 const struct berth_parakeet_shape *shape,
                                 const struct berth_parakeet_counts *counts,
                                 const struct berth_parakeet_depthwise *conv, const void *in,
                                 void *out)
{
    struct conformer work = {.device = device,
                             .shape = shape,
                             .counts = counts,
                             .conv = conv,
                             .hidden = config->hidden,
                             .taps = config->kernel,
                             .in = in,
                             .out = out};
    BERTH_ASSERT((TIME_BLOCK + config->kernel) * CHANNEL_BLOCK <= BERTH_PARAKEET_SCRATCH);
    uint64_t times = (shape->padded.frames + TIME_BLOCK - 1) / TIME_BLOCK;
    uint64_t channels = (config->hidden + CHANNEL_BLOCK - 1) / CHANNEL_BLOCK;
    berth_parakeet_spread(device, shape->rows * times * channels, convolve_block, &work);
}

/* BLOCK frames of the second convolution of a row, all channels. scratch: the features under them
 * [FEATURE_LINES][1 + mels], then the first convolution's lines [HALF_LINES][1 + mels / 2][LANES],
 * both with a zero before each line. */
static void subsample_block(const void *context, uint64_t index, float *scratch)
{
    const struct subsample *work = context;
    const struct berth_parakeet_lengths *padded = &work->shape->padded;
    uint32_t mels = work->config->mels;
    uint32_t channels = work->config->channels;
    uint32_t blocks = (padded->quarter + BLOCK - 1) / BLOCK;
    uint32_t row = (uint32_t)(index / blocks);
    uint32_t begin = (uint32_t)(index % blocks) * BLOCK;
    uint32_t end = begin + BLOCK;
    uint32_t own = (uint32_t)work->counts->quarter[row];
    if (begin >= own) {
        return;
    }
    end = end < own ? end : own;
    int64_t half_line = 2 * (int64_t)begin - 1;
    for (int64_t i = 0; i < FEATURE_LINES; i++) {
        copy_features(work, row, 2 * half_line - 1 + i, scratch + (size_t)i * (1 + mels));
    }
    float *half = scratch + (size_t)FEATURE_LINES * (1 + mels);
    size_t line_size = (size_t)(1 + mels / 2) * LANES;
    for (uint32_t channel = 0; channel < channels; channel += LANES) {
        struct berth_parakeet_group group;
        struct berth_parakeet_line line = {.count = mels / 4, .stride = channels, .used = LANES};
        line.used = channels - channel < LANES ? channels - channel : LANES;
        fill_group(work->first, channels, channel, &group);
        spread_lines(work, &group, half_line, work->counts->half[row], scratch);
        fill_group(work->second, channels, channel, &group);
        for (uint32_t q = begin; q < end; q++) {
            const float *from = half + 2 * (q - begin) * line_size;
            const float *const lines[3] = {from, from + line_size, from + 2 * line_size};
            float *to = work->out + ((size_t)row * padded->quarter + q) * (mels / 4) * channels +
                        channel;
            work->device->loops->gather_line(&group, lines, to, &line);
        }
    }
}

/* One line of features with a zero before it; zeros where the row has none. */
static void copy_features(const struct subsample *work, uint32_t row, int64_t line, float *to)
{
    uint32_t mels = work->config->mels;
    to[0] = 0;
    if (line < 0 || line >= work->counts->features[row]) {
        memset(to + 1, 0, mels * sizeof(*to));
        return;
    }
    const float *from = work->in +
                        ((size_t)row * work->shape->padded.features + (size_t)line) * mels;
    memcpy(to + 1, from, mels * sizeof(*to));
}

static void fill_group(const struct berth_parakeet_depthwise *conv, uint32_t channels,
                       uint32_t channel, struct berth_parakeet_group *group)
{
    uint32_t used = channels - channel < LANES ? channels - channel : LANES;
    memset(group, 0, sizeof(*group));
    for (uint32_t tap = 0; tap < 9; tap++) {
        memcpy(group->weight[tap], conv->weight + (size_t)tap * channels + channel,
               used * sizeof(float));
    }
    memcpy(group->bias, conv->bias + channel, used * sizeof(float));
}

/* The first convolution's HALF_LINES lines from `line` on, of one group; zeros where the row has
 * none of `lines_max`. */
static void spread_lines(const struct subsample *work, const struct berth_parakeet_group *group,
                         int64_t line, int64_t lines_max, float *scratch)
{
    uint32_t mels = work->config->mels;
    size_t feature_size = 1 + (size_t)mels;
    size_t line_size = (size_t)(1 + mels / 2) * LANES;
    float *half = scratch + FEATURE_LINES * feature_size;
    for (int64_t i = 0; i < HALF_LINES; i++) {
        float *to = half + (size_t)i * line_size;
        if (line + i < 0 || line + i >= lines_max) {
            memset(to, 0, line_size * sizeof(*to));
            continue;
        }
        memset(to, 0, LANES * sizeof(*to));
        const float *from = scratch + 2 * (size_t)i * feature_size;
        const float *const lines[3] = {from, from + feature_size, from + 2 * feature_size};
        work->device->loops->spread_line(group, lines, to + LANES, mels / 2);
    }
}

static void third_frame(const void *context, uint64_t index, float *scratch)
{
    const struct subsample *work = context;
    const struct berth_parakeet_lengths *padded = &work->shape->padded;
    uint32_t channels = work->config->channels;
    uint32_t wide = work->config->mels / 4;
    uint32_t row = (uint32_t)(index / padded->frames);
    uint32_t frame = (uint32_t)(index % padded->frames);
    if (frame >= (uint32_t)work->counts->frames[row]) {
        return;
    }
    memset(scratch, 0, channels * sizeof(*scratch));
    for (uint32_t f = 0; f < wide / 2; f++) {
        const float *in[9];
        for (uint32_t tap = 0; tap < 9; tap++) {
            int64_t line = 2 * (int64_t)frame - 1 + tap / 3;
            int64_t place = 2 * (int64_t)f - 1 + tap % 3;
            bool inside = line >= 0 && line < work->counts->quarter[row] && place >= 0;
            size_t at = ((size_t)row * padded->quarter + (size_t)line) * wide + (size_t)place;
            in[tap] = inside ? work->in + at * channels : scratch;
        }
        float *to = work->out + ((size_t)index * (wide / 2) + f) * channels;
        work->device->loops->gather_nine(work->first, in, to, channels);
    }
}

/* TIME_BLOCK frames of CHANNEL_BLOCK channels; scratch: the gated frames under them. */
static void convolve_block(const void *context, uint64_t index, float *scratch)
{
    const struct conformer *work = context;
    uint32_t channel_blocks = (work->hidden + CHANNEL_BLOCK - 1) / CHANNEL_BLOCK;
    uint32_t time_blocks = (work->shape->padded.frames + TIME_BLOCK - 1) / TIME_BLOCK;
    uint32_t channel = (uint32_t)(index % channel_blocks) * CHANNEL_BLOCK;
    uint32_t begin = (uint32_t)(index / channel_blocks % time_blocks) * TIME_BLOCK;
    uint32_t row = (uint32_t)(index / channel_blocks / time_blocks);
    uint32_t frames = (uint32_t)work->counts->frames[row];
    if (begin >= frames) {
        return;
    }
    uint32_t end = frames - begin < TIME_BLOCK ? frames : begin + TIME_BLOCK;
    struct berth_parakeet_line line = {.stride = work->hidden, .taps = work->taps};
    line.count = work->hidden - channel < CHANNEL_BLOCK ? work->hidden - channel : CHANNEL_BLOCK;
    size_t row_start = (size_t)row * work->shape->padded.frames;
    int64_t reach = work->taps / 2;
    float *to = scratch;
    for (int64_t t = (int64_t)begin - reach; t < (int64_t)end + reach; t++, to += line.count) {
        if (t < 0 || t >= (int64_t)frames) {
            memset(to, 0, line.count * sizeof(*to));
            continue;
        }
        const float *from = work->in + (row_start + (size_t)t) * 2 * work->hidden + channel;
        work->device->loops->glue(from, from + work->hidden, to, line.count);
    }
    struct berth_parakeet_depthwise conv = {work->conv->weight + channel,
                                            work->conv->bias + channel};
    for (uint32_t t = begin; t < end; t++) {
        work->device->loops->convolve(&conv, &line, scratch + (size_t)(t - begin) * line.count,
                                      work->out + (row_start + t) * work->hidden + channel);
    }
}
