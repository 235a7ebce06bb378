/* mel.c - log-mel features on kissfft.
 *
 * A mel filter covers a short run of the 201 frequencies, so the filter bank is kept as runs: the
 * sum of a frame costs 400 multiplications instead of 16,000. Everything is float, as in the
 * reference: the differences (1e-6 of a unit) are below what a token depends on.
 * Whole features of long audio would be 230 MB for two hours, so nothing is kept here: the caller
 * computes the peak first and a window's frames when it needs them.
 */
#include "engine/whisper/mel.h"

#include <math.h>
#include <string.h>

#include <kiss_fftr.h>

#include "base/mem.h"

#define FREQUENCIES (BERTH_MEL_FFT / 2 + 1)
#define PAD (BERTH_MEL_FFT / 2)
#define ENERGY_MIN 1e-10F
#define DECADES 8.0F
#define LOUD_MAX 1e6F /* a sample past this is taken for rubbish */

struct filter {
    uint32_t first; /* frequency */
    uint32_t count;
    uint32_t offset; /* of its weights */
};

struct berth_mel {
    uint32_t bins;
    kiss_fftr_cfg fft;
    void *fft_memory;
    size_t fft_bytes;
    struct filter *filters;
    float *weights;
    size_t weight_count;
    float hann[BERTH_MEL_FFT];
    float frame[BERTH_MEL_FFT];
    kiss_fft_cpx spectrum[FREQUENCIES];
    float power[FREQUENCIES];
    float energy[BERTH_MEL_BINS_MAX];
};

static enum berth_code plan_fft(struct berth_mel *mel, struct berth_err *err);
static enum berth_code plan_filters(struct berth_mel *mel, struct berth_err *err);
static void fill_frame(struct berth_mel *mel, const struct berth_speech_audio *audio, size_t index);
static void measure_frame(struct berth_mel *mel);

enum berth_code berth_mel_create(uint32_t bins, struct berth_mel **out, struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_mel *mel = NULL;
    if (bins == 0 || bins > BERTH_MEL_BINS_MAX) {
        code = berth_fail(err, BERTH_UNSUPPORTED, "%u mel bins; 1 to %d are supported", bins,
                          BERTH_MEL_BINS_MAX);
        goto out;
    }
    mel = berth_alloc(sizeof(*mel));
    if (mel == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for the mel filters");
        goto out;
    }
    mel->bins = bins;
    for (size_t i = 0; i < BERTH_MEL_FFT; i++) {
        mel->hann[i] = (float)(0.5 - 0.5 * cos(2 * M_PI * (double)i / BERTH_MEL_FFT));
    }
    code = plan_fft(mel, err);
    if (code != BERTH_OK) {
        goto out;
    }
    code = plan_filters(mel, err);
    if (code != BERTH_OK) {
        goto out;
    }
    *out = mel;
    mel = NULL;
out:
    berth_mel_destroy(mel);
    return code;
}

void berth_mel_destroy(struct berth_mel *mel)
{
    if (mel == NULL) {
        return;
    }
    berth_free(mel->fft_memory);
    berth_free(mel->filters);
    berth_free(mel->weights);
    berth_free(mel);
}

uint64_t berth_mel_bytes(const struct berth_mel *mel)
{
    return sizeof(*mel) + mel->fft_bytes + mel->bins * sizeof(struct filter) +
           mel->weight_count * sizeof(float);
}

size_t berth_mel_content(size_t sample_count)
{
    return sample_count / BERTH_MEL_HOP;
}

float berth_mel_log(struct berth_mel *mel, const struct berth_speech_audio *audio, size_t first,
                    size_t count, float *window)
{
    float peak = BERTH_MEL_SILENCE;
    BERTH_ASSERT(first + count <= berth_mel_content(audio->count) + 1);
    BERTH_ASSERT(window == NULL || count <= BERTH_MEL_WINDOW);
    for (size_t f = 0; f < count; f++) {
        fill_frame(mel, audio, first + f);
        measure_frame(mel);
        for (uint32_t b = 0; b < mel->bins; b++) {
            float value = log10f(mel->energy[b]);
            peak = value > peak ? value : peak;
            if (window != NULL) {
                window[(size_t)b * BERTH_MEL_WINDOW + f] = value;
            }
        }
    }
    return peak;
}

void berth_mel_scale(const struct berth_mel *mel, float *window, size_t count, float peak)
{
    float floor_value = peak - DECADES;
    for (uint32_t b = 0; b < mel->bins; b++) {
        float *row = window + (size_t)b * BERTH_MEL_WINDOW;
        for (size_t f = 0; f < count; f++) {
            float value = row[f] > floor_value ? row[f] : floor_value;
            row[f] = (value + 4.0F) / 4.0F;
        }
        for (size_t f = count; f < BERTH_MEL_WINDOW; f++) {
            row[f] = 0.0F;
        }
    }
}

static enum berth_code plan_fft(struct berth_mel *mel, struct berth_err *err)
{
    (void)kiss_fftr_alloc(BERTH_MEL_FFT, 0, NULL, &mel->fft_bytes); /* asks for the size only */
    mel->fft_memory = berth_alloc(mel->fft_bytes);
    if (mel->fft_memory == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the FFT");
    }
    mel->fft = kiss_fftr_alloc(BERTH_MEL_FFT, 0, mel->fft_memory, &mel->fft_bytes);
    BERTH_ASSERT(mel->fft != NULL);
    return BERTH_OK;
}

/* Slaney's scale: linear to 1000 Hz, then logarithmic. */
static double mel_to_hertz(double value)
{
    return value < 15 ? value * (200.0 / 3) : 1000 * exp((log(6.4) / 27) * (value - 15));
}

static float filter_weight(const double *corner, double hertz)
{
    double rise = (hertz - corner[0]) / (corner[1] - corner[0]);
    double fall = (corner[2] - hertz) / (corner[2] - corner[1]);
    double weight = rise < fall ? rise : fall;
    return weight <= 0 ? 0.0F : (float)(weight * (2 / (corner[2] - corner[0])));
}

/* Triangles of equal area between neighbouring corners; each frequency lies in two at most. */
static enum berth_code plan_filters(struct berth_mel *mel, struct berth_err *err)
{
    double top = 15 + log(8.0) / (log(6.4) / 27); /* 8000 Hz */
    mel->filters = berth_alloc(mel->bins * sizeof(*mel->filters));
    mel->weights = berth_alloc(2 * FREQUENCIES * sizeof(float));
    if (mel->filters == NULL || mel->weights == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the mel filters");
    }
    for (uint32_t b = 0; b < mel->bins; b++) {
        struct filter *filter = &mel->filters[b];
        double corner[3];
        for (uint32_t i = 0; i < 3; i++) {
            corner[i] = mel_to_hertz(top * (b + i) / (mel->bins + 1));
        }
        filter->offset = (uint32_t)mel->weight_count;
        for (uint32_t f = 0; f < FREQUENCIES; f++) {
            float weight = filter_weight(corner, (double)f * BERTH_MEL_RATE / BERTH_MEL_FFT);
            if (weight > 0 && mel->weight_count < 2 * FREQUENCIES) {
                filter->first = filter->count == 0 ? f : filter->first;
                filter->count++;
                mel->weights[mel->weight_count++] = weight;
            }
        }
    }
    return BERTH_OK;
}

static float clean(float sample)
{
    return fabsf(sample) <= LOUD_MAX ? sample : 0.0F; /* false for NaN */
}

/* A tensor in a request's body need not be aligned. */
static inline float sample_in(const struct berth_speech_audio *audio, size_t at)
{
    float sample;
    memcpy(&sample, (const unsigned char *)audio->samples + at * sizeof(sample), sizeof(sample));
    return clean(sample);
}

/* The sample at a place that may lie outside: zeros behind the audio, mirrored at both ends. */
static float sample_at(const struct berth_speech_audio *audio, ptrdiff_t at)
{
    ptrdiff_t length = (ptrdiff_t)audio->count + BERTH_MEL_HOP;
    if (at < 0) {
        at = -at;
    }
    if (at >= length) {
        at = 2 * (length - 1) - at;
    }
    return at >= 0 && at < (ptrdiff_t)audio->count ? sample_in(audio, (size_t)at) : 0.0F;
}

static void fill_frame(struct berth_mel *mel, const struct berth_speech_audio *audio, size_t index)
{
    ptrdiff_t start = (ptrdiff_t)(index * BERTH_MEL_HOP) - PAD;
    if (start >= 0 && (size_t)start + BERTH_MEL_FFT <= audio->count) {
        for (size_t i = 0; i < BERTH_MEL_FFT; i++) {
            mel->frame[i] = sample_in(audio, (size_t)start + i) * mel->hann[i];
        }
        return;
    }
    for (size_t i = 0; i < BERTH_MEL_FFT; i++) {
        mel->frame[i] = sample_at(audio, start + (ptrdiff_t)i) * mel->hann[i];
    }
}

static void measure_frame(struct berth_mel *mel)
{
    kiss_fftr(mel->fft, mel->frame, mel->spectrum);
    for (size_t f = 0; f < FREQUENCIES; f++) {
        float re = mel->spectrum[f].r;
        float im = mel->spectrum[f].i;
        mel->power[f] = re * re + im * im;
    }
    for (uint32_t b = 0; b < mel->bins; b++) {
        const struct filter *filter = &mel->filters[b];
        const float *weights = mel->weights + filter->offset;
        const float *power = mel->power + filter->first;
        float sum = 0;
        for (uint32_t i = 0; i < filter->count; i++) {
            sum += weights[i] * power[i];
        }
        mel->energy[b] = sum > ENERGY_MIN ? sum : ENERGY_MIN;
    }
}
