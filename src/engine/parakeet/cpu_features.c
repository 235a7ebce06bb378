/* cpu_features.c - log-mel features on the CPU.
 *
 * Sixteen frames of a row go through one transform: eight lanes of complex numbers, an even frame
 * in each real part and the odd one after it in the imaginary part. A mel filter covers a short run
 * of the 257 frequencies, so the filter bank is kept as runs. Then each mel is normalised over the
 * row's own frames, with sums in double.
 */
#include "engine/parakeet/cpu_device.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

#define FFT BERTH_PARAKEET_FFT
#define LANES BERTH_PARAKEET_LANES
#define FREQUENCIES (FFT / 2 + 1)
#define HOP BERTH_PARAKEET_HOP
#define BLOCK (2 * LANES) /* frames of a task */
#define MELS_MAX 128
#define MEL_BLOCK 16 /* mels that one task normalises */
#define LOUD_MAX 1e6F
#define LOG_GUARD 0x1p-24F
#define STD_GUARD 1e-5
#define SEGMENT ((BLOCK - 1) * HOP + FFT) /* samples under a task's frames */

struct band {
    uint32_t first; /* frequency */
    uint32_t count;
    uint32_t offset; /* of its weights */
};

struct berth_parakeet_frontend {
    uint32_t mels; /* what the tables are for; 0: nothing yet */
    uint32_t window;
    struct band bands[MELS_MAX];
    float weights[2 * FREQUENCIES]; /* a frequency lies in two filters at most */
    float hann[FFT];                /* the window in the middle of zeros */
    float turns[FFT];
};

struct work {
    const struct berth_parakeet_device *device;
    const struct berth_parakeet_config *config;
    const struct berth_parakeet_shape *shape;
    const struct berth_parakeet_counts *counts;
    const float *pcm;
    float *out;
};

static void plan(struct berth_parakeet_frontend *frontend,
                 const struct berth_parakeet_config *config);
static void plan_bands(struct berth_parakeet_frontend *frontend);
static double mel_to_hz(double mel);
static void measure_block(const void *context, uint64_t index, float *scratch);
static void fill_segment(const struct work *work, uint32_t row, int64_t start, float *segment);
static void normalise_block(const void *context, uint64_t index, float *scratch);

enum berth_code berth_parakeet_frontend_create(struct berth_parakeet_frontend **out,
                                               struct berth_err *err)
{
    struct berth_parakeet_frontend *frontend = berth_alloc(sizeof(*frontend));
    if (frontend == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the mel filters");
    }
    *out = frontend;
    return BERTH_OK;
}

void berth_parakeet_frontend_destroy(struct berth_parakeet_frontend *frontend)
{
    berth_free(frontend);
}

/* lib-shaped */
void berth_parakeet_cpu_features(struct berth_parakeet_device *device,
                                 const struct berth_parakeet_config *config,
                                 const struct berth_parakeet_shape *shape,
                                 const struct berth_parakeet_counts *counts, const float *pcm,
                                 void *out)
{
    plan(device->frontend, config);
    struct work work = {device, config, shape, counts, pcm, out};
    uint64_t blocks = (shape->padded.features + BLOCK - 1) / BLOCK;
    berth_parakeet_spread(device, shape->rows * blocks, measure_block, &work);
    uint64_t mel_blocks = (config->mels + MEL_BLOCK - 1) / MEL_BLOCK;
    berth_parakeet_spread(device, shape->rows * mel_blocks, normalise_block, &work);
}

static void plan(struct berth_parakeet_frontend *frontend,
                 const struct berth_parakeet_config *config)
{
    BERTH_ASSERT(config->fft == FFT && config->window > 1 && config->window <= FFT);
    BERTH_ASSERT(config->mels > 0 && config->mels <= MELS_MAX);
    if (frontend->mels == config->mels && frontend->window == config->window) {
        return;
    }
    frontend->mels = config->mels;
    frontend->window = config->window;
    uint32_t start = (FFT - config->window) / 2;
    memset(frontend->hann, 0, sizeof(frontend->hann));
    for (uint32_t i = 0; i < config->window; i++) {
        frontend->hann[start + i] = (float)(0.5 - 0.5 * cos(2 * M_PI * i / (config->window - 1)));
    }
    for (uint32_t p = 0; p < FFT / 2; p++) {
        frontend->turns[2 * p] = (float)cos(2 * M_PI * p / FFT);
        frontend->turns[2 * p + 1] = (float)-sin(2 * M_PI * p / FFT);
    }
    plan_bands(frontend);
}

/* Slaney's triangles, each of area 1. */
static void plan_bands(struct berth_parakeet_frontend *frontend)
{
    const double highest = 15.0 + 27.0 * log(8.0) / log(6.4); /* 8000 Hz */
    uint32_t offset = 0;
    for (uint32_t m = 0; m < frontend->mels; m++) {
        struct band *band = &frontend->bands[m];
        double step = highest / (frontend->mels + 1);
        double left = mel_to_hz(m * step);
        double middle = mel_to_hz((m + 1) * step);
        double right = mel_to_hz((m + 2) * step);
        band->first = 0;
        band->count = 0;
        band->offset = offset;
        for (uint32_t k = 0; k < FREQUENCIES; k++) {
            double hz = (double)k * BERTH_PARAKEET_SAMPLE_RATE / FFT;
            double weight = fmin((hz - left) / (middle - left), (right - hz) / (right - middle));
            if (weight > 0) {
                band->first = band->count == 0 ? k : band->first;
                band->count++;
                frontend->weights[offset++] = (float)(weight * 2 / (right - left));
            }
        }
    }
}

/* Linear to 1000 Hz (mel 15), 27 steps a factor of 6.4 above. */
static double mel_to_hz(double mel)
{
    return mel < 15.0 ? mel * 200.0 / 3.0 : 1000.0 * exp((mel - 15.0) * log(6.4) / 27.0);
}

/* Logarithms of BLOCK frames of a row. */
static void measure_block(const void *context, uint64_t index, float *scratch)
{
    const struct work *work = context;
    const struct berth_parakeet_frontend *frontend = work->device->frontend;
    const struct berth_parakeet_loops *loops = work->device->loops;
    uint32_t mels = work->config->mels;
    uint32_t blocks = (work->shape->padded.features + BLOCK - 1) / BLOCK;
    uint32_t row = (uint32_t)(index / blocks);
    uint32_t first = (uint32_t)(index % blocks) * BLOCK;
    uint32_t frames = (uint32_t)work->counts->features[row];
    if (first >= frames) {
        return;
    }
    float *values = scratch; /* [2][FFT][2][LANES] */
    float *power = values;   /* [FREQUENCIES][2][LANES]; the first half is used up by then */
    float *segment = values + 4 * FFT * LANES;
    fill_segment(work, row, (int64_t)first * HOP - FFT / 2, segment);
    for (uint32_t i = 0; i < FFT; i++) {
        const float *at = segment + i;
        float *to = values + (size_t)i * 2 * LANES;
        for (uint32_t l = 0; l < LANES; l++) {
            to[l] = at[(size_t)2 * l * HOP] * frontend->hann[i];
            to[LANES + l] = at[(size_t)(2 * l + 1) * HOP] * frontend->hann[i];
        }
    }
    loops->fourier(values, frontend->turns);
    loops->power(values + 2 * FFT * LANES, power);
    float *out = work->out + ((size_t)row * work->shape->padded.features + first) * mels;
    uint32_t count = frames - first < BLOCK ? frames - first : BLOCK;
    for (uint32_t m = 0; m < mels; m++) {
        const struct band *band = &frontend->bands[m];
        float energy[BLOCK];
        loops->band(power + (size_t)band->first * 2 * LANES, frontend->weights + band->offset,
                    band->count, energy);
        for (uint32_t i = 0; i < count; i++) {
            out[(size_t)i * mels + m] = logf(energy[i / 2 + i % 2 * LANES] + LOG_GUARD);
        }
    }
}

static inline float usable(float sample)
{
    return fabsf(sample) <= LOUD_MAX ? sample : 0.0F; /* false for what is no number */
}

/* SEGMENT samples from `start` on, preemphasised; zero outside of the row's own. */
static void fill_segment(const struct work *work, uint32_t row, int64_t start, float *segment)
{
    const float *pcm = work->pcm + (size_t)row * work->shape->padded.samples;
    int64_t samples = work->counts->samples[row];
    float factor = work->config->preemphasis;
    for (int64_t i = 0; i < SEGMENT; i++) {
        int64_t at = start + i;
        float sample = 0;
        if (at >= 0 && at < samples) {
            sample = usable(pcm[at]) - (at > 0 ? factor * usable(pcm[at - 1]) : 0.0F);
        }
        segment[i] = sample;
    }
}

/* MEL_BLOCK mels of a row: mean 0 and standard deviation 1 over its own frames, zero past them. */
static void normalise_block(const void *context, uint64_t index, float *scratch)
{
    const struct work *work = context;
    uint32_t mels = work->config->mels;
    uint32_t blocks = (mels + MEL_BLOCK - 1) / MEL_BLOCK;
    uint32_t row = (uint32_t)(index / blocks);
    uint32_t mel = (uint32_t)(index % blocks) * MEL_BLOCK;
    uint32_t width = mels - mel < MEL_BLOCK ? mels - mel : MEL_BLOCK;
    uint32_t frames = (uint32_t)work->counts->features[row];
    float *at = work->out + (size_t)row * work->shape->padded.features * mels + mel;
    double mean[MEL_BLOCK] = {0};
    double square[MEL_BLOCK] = {0};
    for (uint32_t t = 0; t < frames; t++) {
        for (uint32_t m = 0; m < width; m++) {
            mean[m] += at[(size_t)t * mels + m];
        }
    }
    for (uint32_t m = 0; m < width; m++) {
        mean[m] /= frames > 0 ? frames : 1;
    }
    for (uint32_t t = 0; t < frames; t++) {
        for (uint32_t m = 0; m < width; m++) {
            double off = at[(size_t)t * mels + m] - mean[m];
            square[m] += off * off;
        }
    }
    for (uint32_t m = 0; m < width; m++) { /* one frame has no deviation */
        square[m] = 1.0 / (sqrt(square[m] / (frames > 1 ? frames - 1 : 1)) + STD_GUARD);
    }
    for (uint32_t t = 0; t < frames; t++) {
        for (uint32_t m = 0; m < width; m++) {
            float *value = at + (size_t)t * mels + m;
            *value = (float)((*value - mean[m]) * square[m]);
        }
    }
    for (uint32_t t = frames; t < work->shape->padded.features; t++) {
        memset(at + (size_t)t * mels, 0, width * sizeof(*at));
    }
}
