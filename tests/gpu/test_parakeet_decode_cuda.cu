/* test_parakeet_decode_cuda.cu - features and decoding on a GPU against plain C, and their times.
 *
 * A program of its own, for a machine with a GPU; it holds features.cu and decode.cu themselves and
 * what little of the back end they call:
 *     nvcc -std=c++17 -O3 -Isrc -gencode=arch=compute_90a,code=sm_90a -o test_parakeet_decode \
 *         tests/gpu/test_parakeet_decode_cuda.cu
 *     ./test_parakeet_decode [quick]
 * Prints a line a case and PASS or FAIL; quick: no times, small shapes.
 *
 * Features: double precision, a plain transform. Allowed: half a step of a half, and 2e-3.
 * Decoding: float32 with the roundings to halves that the kernel has. A row may differ only from a
 * step on at which the reference's best two tokens or durations are less than MARGIN_MAX apart, and
 * on average once in PARTING_EVERY tokens; how many rows are the same to the end is printed. Beside
 * that, bit by bit: a row alone, in other company, in another bucket, on few blocks, and again, is
 * the same row; one that is not all numbers is given up.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../src/engine/parakeet/cuda/features.cu"
#include "../../src/engine/parakeet/cuda/decode.cu"
#include "../../src/engine/parakeet/cuda/decode_ctc.cu"

#define MARGIN_MAX 0.002f
#define PROBABILITY_GAP 0.001f
#define PARTING_EVERY 300
#define REPEATS 50

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const cudaError_t check_error = (call);                                                    \
        if (check_error != cudaSuccess) {                                                          \
            printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #call,                              \
                   cudaGetErrorString(check_error));                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int failures;

static void expect(bool right, const char *what)
{
    if (!right) {
        printf("  FAIL: %s\n", what);
        failures++;
    }
}

/* ---- what the rest would be ---- */

extern "C" void *berth_alloc(size_t bytes)
{
    return calloc(1, bytes);
}

extern "C" void berth_free(void *memory)
{
    free(memory);
}

extern "C" void berth_parakeet_cuda_fail(struct berth_parakeet_device *device, const char *what,
                                         cudaError_t error)
{
    (void)device;
    if (error != cudaSuccess) {
        printf("FAIL %s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

extern "C" void berth_parakeet_cuda_refuse(struct berth_parakeet_device *device, const char *what,
                                           long value)
{
    (void)device;
    printf("FAIL %s: %ld\n", what, value);
    exit(1);
}

extern "C" void berth_parakeet_cuda_run(struct berth_parakeet_device *device,
                                        const struct berth_parakeet_cuda_launch *launch,
                                        void **args)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = launch->grid;
    config.blockDim = launch->block;
    config.dynamicSmemBytes = launch->shared_bytes;
    config.stream = device->stream;
    config.attrs = &attribute;
    config.numAttrs = device->overlap ? 1 : 0;
    CHECK(cudaLaunchKernelExC(&config, launch->kernel, args));
}

static void open_device(struct berth_parakeet_device *device)
{
    struct cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    memset(device, 0, sizeof(*device));
    device->sm_count = properties.multiProcessorCount;
    device->capability = properties.major * 10 + properties.minor;
    device->overlap = device->capability >= 90;
    CHECK(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking));
    printf("%s, %d SMs\n", properties.name, device->sm_count);
}

/* ---- numbers ---- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* About normal, deviation 1: four uniform numbers. */
static float draw(uint64_t seed, uint64_t index)
{
    const uint64_t bits = mix(seed * 0x100000001b3ull + index);
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        sum += (float)(uint16_t)(bits >> (16 * i)) / 65536.0f - 0.5f;
    }
    return sum * 1.7320508f;
}

static float rounded(float value)
{
    return __half2float(__float2half_rn(value));
}

static float float_of(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

static uint16_t bits_of(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

/* A matrix on both sides: halves on the device, the same values in float32 here. */
struct both {
    float *host;
    void *device;
};

static struct both make_halves(size_t count, uint64_t seed, float scale)
{
    struct both both;
    uint16_t *bits = (uint16_t *)malloc(count * 2);
    both.host = (float *)malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        both.host[i] = rounded(draw(seed, i) * scale);
        bits[i] = bits_of(both.host[i]);
    }
    CHECK(cudaMalloc(&both.device, count * 2));
    CHECK(cudaMemcpy(both.device, bits, count * 2, cudaMemcpyHostToDevice));
    free(bits);
    return both;
}

static void upload_halves(struct both *both, size_t count)
{
    uint16_t *bits = (uint16_t *)malloc(count * 2);
    for (size_t i = 0; i < count; i++) {
        both->host[i] = rounded(both->host[i]);
        bits[i] = bits_of(both->host[i]);
    }
    CHECK(cudaMemcpy(both->device, bits, count * 2, cudaMemcpyHostToDevice));
    free(bits);
}

static void drop(struct both *both)
{
    free(both->host);
    CHECK(cudaFree(both->device));
}

/* ---- features ---- */

static double slaney_hz(double mel)
{
    return mel < 15.0 ? mel * 200.0 / 3.0 : 1000.0 * exp(log(6.4) / 27.0 * (mel - 15.0));
}

/* One row; out [frames][mels]. */
static void reference_features(const float *pcm, int samples, int mels, float *out)
{
    const int frames = samples / BERTH_PARAKEET_HOP;
    double *y = (double *)calloc((size_t)samples + 1, sizeof(double));
    double *table = (double *)malloc(2 * 512 * sizeof(double));
    double edges[130], power[257];
    double *values = (double *)malloc(((size_t)frames + 1) * (size_t)mels * sizeof(double));
    for (int i = 0; i < samples; i++) {
        const double here = fabsf(pcm[i]) <= 1e6f ? pcm[i] : 0.0;
        const double before = i > 0 && fabsf(pcm[i - 1]) <= 1e6f ? pcm[i - 1] : 0.0;
        y[i] = here - (double)0.97f * before;
    }
    for (int i = 0; i < 512; i++) {
        table[2 * i] = cos(2.0 * M_PI * i / 512);
        table[2 * i + 1] = sin(2.0 * M_PI * i / 512);
    }
    const double top = 15.0 + log(8.0) / (log(6.4) / 27.0);
    for (int i = 0; i < mels + 2; i++) {
        edges[i] = slaney_hz(top * i / (mels + 1));
    }
    for (int t = 0; t < frames; t++) {
        for (int k = 0; k < 257; k++) {
            double re = 0.0, im = 0.0;
            for (int i = 0; i < 400; i++) {
                const int at = t * BERTH_PARAKEET_HOP - 200 + i;
                if (at >= 0 && at < samples) {
                    const double x = y[at] * (0.5 - 0.5 * cos(2.0 * M_PI * i / 399));
                    const int turn = (int)((int64_t)k * i % 512);
                    re += x * table[2 * turn];
                    im -= x * table[2 * turn + 1];
                }
            }
            power[k] = re * re + im * im;
        }
        for (int m = 0; m < mels; m++) {
            double sum = 0.0;
            for (int k = 0; k < 257; k++) {
                const double f = k * 31.25;
                const double up = (f - edges[m]) / (edges[m + 1] - edges[m]);
                const double down = (edges[m + 2] - f) / (edges[m + 2] - edges[m + 1]);
                const double weight = fmin(up, down);
                sum += weight > 0.0 ? weight * 2.0 / (edges[m + 2] - edges[m]) * power[k] : 0.0;
            }
            values[t * mels + m] = log(sum + 0x1p-24);
        }
    }
    for (int m = 0; m < mels; m++) {
        double mean = 0.0, squares = 0.0;
        for (int t = 0; t < frames; t++) {
            mean += values[t * mels + m] / frames;
        }
        for (int t = 0; t < frames; t++) {
            squares += pow(values[t * mels + m] - mean, 2.0);
        }
        const double deviation = frames > 1 ? sqrt(squares / (frames - 1)) : 0.0;
        for (int t = 0; t < frames; t++) {
            out[t * mels + m] = (float)((values[t * mels + m] - mean) / (deviation + 1e-5));
        }
    }
    free(values);
    free(table);
    free(y);
}

enum sound { NOISE, SPEECH, SILENCE, BROKEN, QUIET, SOUNDS };
static const char *const sound_names[] = {"noise", "speech", "silence", "broken", "quiet"};

static void make_sound(enum sound sound, int samples, float *pcm)
{
    for (int i = 0; i < samples; i++) {
        const double t = i / 16000.0;
        const float noise = draw(5 + (uint64_t)sound, (uint64_t)i);
        pcm[i] = noise * 0.1f;
        if (sound == SPEECH) { /* harmonics of a gliding voice, in syllables, over faint noise */
            double voice = 0.0;
            for (int h = 1; h < 20; h++) {
                voice += sin(2.0 * M_PI * h * (120.0 * t + 10.0 * sin(t))) / h;
            }
            pcm[i] = (float)(0.1 * voice * pow(sin(2.0 * M_PI * 2.0 * t), 2.0)) + noise * 1e-3f;
        } else if (sound == SILENCE) {
            pcm[i] = 0.0f;
        } else if (sound == QUIET) {
            pcm[i] = noise * 3e-4f;
        } else if (sound == BROKEN) {
            const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f, -2e6f, 1e6f};
            pcm[i] = i % 977 == 5 ? odd[i / 977 % 6] : noise;
        }
    }
}

/* Rows of samples[i] each in a bucket; runs once and fetches. Poisons what it may leave alone. */
static void run_features(struct berth_parakeet_device *device,
                         const struct berth_parakeet_shape *shape, uint32_t mels,
                         const float *pcm, const int32_t *samples, uint16_t *out)
{
    struct berth_parakeet_config config = {};
    config.mels = mels;
    config.fft = 512;
    config.window = 400;
    config.preemphasis = 0.97f;
    int32_t *features = (int32_t *)malloc(shape->rows * 4);
    for (uint32_t i = 0; i < shape->rows; i++) {
        features[i] = samples[i] / BERTH_PARAKEET_HOP;
    }
    const size_t pcm_bytes = (size_t)shape->rows * shape->padded.samples * 4;
    const size_t out_bytes = (size_t)shape->rows * shape->padded.features * mels * 2;
    void *device_pcm, *device_out, *device_samples, *device_features;
    CHECK(cudaMalloc(&device_pcm, pcm_bytes));
    CHECK(cudaMalloc(&device_out, out_bytes));
    CHECK(cudaMalloc(&device_samples, shape->rows * 4));
    CHECK(cudaMalloc(&device_features, shape->rows * 4));
    CHECK(cudaMemcpy(device_pcm, pcm, pcm_bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(device_samples, samples, shape->rows * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(device_features, features, shape->rows * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(device_out, 0xff, out_bytes));
    CHECK(cudaDeviceSynchronize());
    struct berth_parakeet_counts counts = {};
    counts.samples = (const int32_t *)device_samples;
    counts.features = (const int32_t *)device_features;
    berth_parakeet_cuda_features(device, &config, shape, &counts, (const float *)device_pcm,
                                 device_out);
    CHECK(cudaStreamSynchronize(device->stream));
    CHECK(cudaMemcpy(out, device_out, out_bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device_pcm));
    CHECK(cudaFree(device_out));
    CHECK(cudaFree(device_samples));
    CHECK(cudaFree(device_features));
    free(features);
}

static struct berth_parakeet_shape bucket(uint32_t rows, uint32_t samples)
{
    struct berth_parakeet_shape shape = {};
    shape.rows = rows;
    shape.padded.samples = samples;
    shape.padded.features = samples / BERTH_PARAKEET_HOP;
    uint32_t n = shape.padded.features;
    for (int i = 0; i < 3; i++) {
        n = n == 0 ? 0 : (n - 1) / 2 + 1;
    }
    shape.padded.frames = n;
    return shape;
}

static void test_features_of(struct berth_parakeet_device *device, enum sound sound, uint32_t mels,
                             uint32_t padded)
{
    static const int32_t lengths[] = {0, 1, 159, 160, 161, 320, 479, 1601, 7999, 16000, 40000};
    const uint32_t rows = sizeof(lengths) / sizeof(lengths[0]);
    const struct berth_parakeet_shape shape = bucket(rows, padded);
    int32_t samples[16];
    float *pcm = (float *)malloc((size_t)rows * padded * 4);
    const size_t row_values = (size_t)shape.padded.features * mels;
    uint16_t *out = (uint16_t *)malloc(rows * row_values * 2);
    uint16_t *alone = (uint16_t *)malloc(row_values * 2 * 2);
    float *right = (float *)malloc((row_values + 1) * sizeof(float));
    for (uint32_t r = 0; r < rows; r++) {
        samples[r] = lengths[r] < (int32_t)padded ? lengths[r] : (int32_t)padded;
        make_sound(sound, (int)padded, pcm + (size_t)r * padded); /* the padding is not clean */
    }
    run_features(device, &shape, mels, pcm, samples, out);
    /* So near the logarithm's floor float32 knows no more, the reference's own neither. */
    const double gap_max = sound == QUIET ? 2e-2 : 2e-3;
    double worst = 0.0;
    bool close = true, zero = true;
    for (uint32_t r = 0; r < rows; r++) {
        const size_t own = (size_t)(samples[r] / BERTH_PARAKEET_HOP) * mels;
        reference_features(pcm + (size_t)r * padded, samples[r], (int)mels, right);
        for (size_t i = 0; i < row_values; i++) {
            const float value = float_of(out[r * row_values + i]);
            if (i >= own) {
                zero = zero && out[r * row_values + i] == 0;
                continue;
            }
            const double gap = fabs((double)value - right[i]);
            worst = gap > worst ? gap : worst;
            close = close && gap <= gap_max + fabs(right[i]) / 2048.0;
        }
    }
    /* The longest row alone, in a shorter bucket. */
    const uint32_t last = rows - 1;
    const struct berth_parakeet_shape small = bucket(1, (uint32_t)samples[last] + 77);
    float *longer = (float *)calloc(small.padded.samples, 4);
    memcpy(longer, pcm + (size_t)last * padded, (size_t)samples[last] * 4);
    alone = (uint16_t *)realloc(alone, ((size_t)small.padded.features + 1) * mels * 2);
    run_features(device, &small, mels, longer, &samples[last], alone);
    const size_t own = (size_t)(samples[last] / BERTH_PARAKEET_HOP) * mels;
    const bool same = memcmp(alone, out + last * row_values, own * 2) == 0;
    printf("features %-8s %3u mels: largest gap %.4f\n", sound_names[sound], mels, worst);
    expect(close, "features differ from the reference");
    expect(zero, "features past a row's frames are not zero");
    expect(same, "a row alone has other features");
    free(longer);
    free(right);
    free(alone);
    free(out);
    free(pcm);
}

/* ---- decoding: model and reference ---- */

struct model {
    struct berth_parakeet_config config;
    struct berth_parakeet_weights weights; /* the device's */
    struct both embedding, input[4], state[4], out, out_bias, head, head_bias;
    float *bias[4];
    void *device_bias[4];
};

enum tuning { NATURAL, STUCK, BLANKS };

static struct berth_parakeet_linear linear_of(const struct both *weight, const struct both *bias,
                                              uint32_t in, uint32_t out)
{
    struct berth_parakeet_linear linear;
    linear.weight = weight->device;
    linear.bias = bias != NULL ? bias->device : NULL;
    linear.in = in;
    linear.out = out;
    return linear;
}

/* Biases of the head: NATURAL: mostly tokens, two or three frames a step; STUCK: always a token of
 * duration 0; BLANKS: never a token. */
static void tune(struct model *model, enum tuning tuning)
{
    const struct berth_parakeet_config *config = &model->config;
    static const float durations[] = {-2.0f, -0.5f, 0.5f, 1.0f, 1.0f};
    float *bias = model->head_bias.host;
    for (uint32_t i = 0; i < config->vocabulary + config->duration_count; i++) {
        bias[i] = 0.1f * draw(99, i);
    }
    /* The blank's is some way up to what the highest of so many others comes to. */
    const float highest = sqrtf(2.0f * logf((float)config->vocabulary));
    const bool rnnt = config->head == BERTH_PARAKEET_RNNT;
    bias[config->blank] = tuning == STUCK    ? -100.0f
                          : tuning == BLANKS ? 100.0f
                                             : highest * (rnnt ? 1.0f : 0.8f);
    for (uint32_t i = 0; i < config->duration_count; i++) {
        bias[config->vocabulary + i] = tuning != STUCK ? durations[i % 5] : i == 0 ? 100.0f : 0.0f;
    }
    upload_halves(&model->head_bias, config->vocabulary + config->duration_count);
}

static void make_model(struct model *model, enum berth_parakeet_head head, uint32_t prediction,
                       uint32_t layers, uint32_t vocabulary)
{
    memset(model, 0, sizeof(*model));
    struct berth_parakeet_config *config = &model->config;
    const uint32_t P = prediction;
    config->head = head;
    config->hidden = P;
    config->vocabulary = vocabulary;
    config->blank = vocabulary - 1;
    config->prediction = head == BERTH_PARAKEET_CTC ? 0 : P;
    config->prediction_layers = head == BERTH_PARAKEET_CTC ? 0 : layers;
    config->duration_count = head == BERTH_PARAKEET_TDT ? 5 : 0;
    for (uint32_t i = 0; i < config->duration_count; i++) {
        config->durations[i] = i;
    }
    config->symbols_max = 10;
    const uint32_t outputs = vocabulary + config->duration_count;
    const float scale = 1.0f / sqrtf((float)P);
    model->head = make_halves((size_t)outputs * P, 7, 1.4f * scale);
    model->head_bias = make_halves(outputs + 16, 8, 0.1f);
    model->weights.head = linear_of(&model->head, &model->head_bias, P, outputs);
    if (head != BERTH_PARAKEET_CTC) {
        model->embedding = make_halves((size_t)vocabulary * P, 9, 1.0f);
        model->weights.embedding = model->embedding.device;
        model->out = make_halves((size_t)P * P, 10, 2.0f * scale);
        model->out_bias = make_halves(P, 11, 0.1f);
        model->weights.prediction_out = linear_of(&model->out, &model->out_bias, P, P);
    }
    for (uint32_t layer = 0; layer < config->prediction_layers; layer++) {
        model->input[layer] = make_halves((size_t)4 * P * P, 20 + layer, 1.5f * scale);
        model->state[layer] = make_halves((size_t)4 * P * P, 30 + layer, 1.0f * scale);
        model->bias[layer] = (float *)malloc((size_t)4 * P * 4);
        for (uint32_t i = 0; i < 4 * P; i++) {
            model->bias[layer][i] = 0.1f * draw(40 + layer, i);
        }
        CHECK(cudaMalloc(&model->device_bias[layer], (size_t)4 * P * 4));
        CHECK(cudaMemcpy(model->device_bias[layer], model->bias[layer], (size_t)4 * P * 4,
                         cudaMemcpyHostToDevice));
        model->weights.lstm[layer].input = linear_of(&model->input[layer], NULL, P, 4 * P);
        model->weights.lstm[layer].state = linear_of(&model->state[layer], NULL, P, 4 * P);
        model->weights.lstm[layer].bias = (const float *)model->device_bias[layer];
    }
    tune(model, NATURAL);
}

static void drop_model(struct model *model)
{
    drop(&model->head);
    drop(&model->head_bias);
    for (uint32_t layer = 0; layer < model->config.prediction_layers; layer++) {
        drop(&model->input[layer]);
        drop(&model->state[layer]);
        free(model->bias[layer]);
        CHECK(cudaFree(model->device_bias[layer]));
    }
    if (model->config.head != BERTH_PARAKEET_CTC) {
        drop(&model->embedding);
        drop(&model->out);
        drop(&model->out_bias);
    }
}

static float dot(const float *a, const float *b, uint32_t count)
{
    float sums[8] = {};
    for (uint32_t i = 0; i < count; i += 8) {
        for (uint32_t k = 0; k < 8; k++) {
            sums[k] += a[i + k] * b[i + k];
        }
    }
    for (uint32_t k = 0; k < 4; k++) {
        sums[k] += sums[k + 4];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* What a row comes to; margin[i]: the least of the steps from the token before to token i, and
 * margin[count]: of those after the last. */
struct row_result {
    int32_t count, steps;
    int32_t *token, *frame, *duration;
    float *probability, *margin;
};

static float margin_of(const float *logits, uint32_t count, uint32_t *best)
{
    float second = -INFINITY;
    *best = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (logits[i] > logits[*best]) {
            second = logits[*best];
            *best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    return count > 1 ? logits[*best] - second : INFINITY;
}

static float softmax_of(const float *logits, uint32_t count, uint32_t best)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        sum += expf(logits[i] - logits[best]);
    }
    return 1.0f / sum;
}

/* The prediction net after `token`; h, c [layers][P], scratch 4 P. */
static void reference_predict(const struct model *model, uint32_t token, float *h, float *c,
                              float *gates, float *predicted)
{
    const uint32_t P = model->config.prediction;
    const float *x = model->embedding.host + (size_t)token * P;
    for (uint32_t layer = 0; layer < model->config.prediction_layers; layer++) {
        float *own = h + layer * P, *cell = c + layer * P;
        for (uint32_t o = 0; o < 4 * P; o++) {
            gates[o] = model->bias[layer][o] + dot(model->input[layer].host + (size_t)o * P, x, P) +
                       dot(model->state[layer].host + (size_t)o * P, own, P);
        }
        for (uint32_t i = 0; i < P; i++) {
            const float in = 1.0f / (1.0f + expf(-gates[i]));
            const float forget = 1.0f / (1.0f + expf(-gates[P + i]));
            const float out = 1.0f / (1.0f + expf(-gates[3 * P + i]));
            cell[i] = forget * cell[i] + in * tanhf(gates[2 * P + i]);
            own[i] = rounded(out * tanhf(cell[i]));
        }
        x = own;
    }
    for (uint32_t o = 0; o < P; o++) {
        const float product = dot(model->out.host + (size_t)o * P, x, P);
        predicted[o] = rounded(product + model->out_bias.host[o]);
    }
}

static void reference_logits(const struct model *model, const float *in, float *logits)
{
    const uint32_t length = model->config.hidden;
    for (uint32_t o = 0; o < model->config.vocabulary + model->config.duration_count; o++) {
        logits[o] = dot(model->head.host + (size_t)o * length, in, length) +
                    model->head_bias.host[o];
    }
}

static void reference_transduce(const struct model *model, const float *projected, int32_t frames,
                                uint32_t capacity, struct row_result *result)
{
    const struct berth_parakeet_config *config = &model->config;
    const uint32_t P = config->prediction, layers = config->prediction_layers;
    const uint32_t outputs = config->vocabulary + config->duration_count;
    float *h = (float *)calloc(2 * layers * P + 6 * P + outputs, sizeof(float));
    float *c = h + layers * P, *gates = c + layers * P, *predicted = gates + 4 * P;
    float *in = predicted + P, *logits = in + P;
    float least = INFINITY;
    int32_t frame = 0, symbols = 0;
    bool fresh = true, full = false;
    uint32_t token = config->blank;
    while (frame < frames && !full) {
        if (fresh) {
            reference_predict(model, token, h, c, gates, predicted);
        }
        for (uint32_t i = 0; i < P; i++) {
            const float sum = projected[(size_t)frame * P + i] + predicted[i];
            in[i] = rounded(sum > 0.0f ? sum : 0.0f);
        }
        reference_logits(model, in, logits);
        result->steps++;
        uint32_t best, longest = 0;
        float margin = margin_of(logits, config->vocabulary, &best);
        const bool blank = best == config->blank;
        uint32_t duration = blank ? 1 : 0;
        if (config->head == BERTH_PARAKEET_TDT) {
            margin = fminf(margin, margin_of(logits + config->vocabulary, config->duration_count,
                                             &longest));
            duration = config->durations[longest];
        }
        least = fminf(least, margin);
        symbols += blank ? 0 : 1;
        if (duration == 0 && (blank || symbols >= (int32_t)config->symbols_max)) {
            duration = 1;
        }
        fresh = !blank;
        full = !blank && result->count >= (int32_t)capacity;
        if (!blank && !full) {
            token = best;
            result->token[result->count] = (int32_t)best;
            result->frame[result->count] = frame;
            result->duration[result->count] = (int32_t)duration;
            result->probability[result->count] = softmax_of(logits, config->vocabulary, best);
            result->margin[result->count++] = least;
            least = INFINITY;
        }
        symbols = duration > 0 ? 0 : symbols;
        frame += (int32_t)duration;
    }
    result->margin[result->count] = least;
    free(h);
}

static void reference_ctc(const struct model *model, const float *encoded, int32_t frames,
                          uint32_t capacity, struct row_result *result)
{
    const struct berth_parakeet_config *config = &model->config;
    float *logits = (float *)malloc(config->vocabulary * sizeof(float));
    uint32_t before = config->blank;
    float least = INFINITY;
    for (int32_t frame = 0; frame < frames; frame++) {
        uint32_t best;
        reference_logits(model, encoded + (size_t)frame * config->hidden, logits);
        result->steps++;
        least = fminf(least, margin_of(logits, config->vocabulary, &best));
        const float chance = softmax_of(logits, config->vocabulary, best);
        const int32_t last = result->count - 1;
        if (best != config->blank && best == before) {
            result->duration[last]++;
            result->probability[last] = fmaxf(result->probability[last], chance);
            result->margin[last] = fminf(result->margin[last], least);
        } else if (best != config->blank) {
            if (result->count >= (int32_t)capacity) {
                break;
            }
            result->token[result->count] = (int32_t)best;
            result->frame[result->count] = frame;
            result->duration[result->count] = 1;
            result->probability[result->count] = chance;
            result->margin[result->count++] = least;
            least = INFINITY;
        }
        before = best;
    }
    result->margin[result->count] = least;
    free(logits);
}

struct reference_work {
    const struct model *model;
    const float *projected;
    const int32_t *frames;
    const struct berth_parakeet_shape *shape;
    struct row_result *results;
    uint32_t capacity, next;
};

static void *reference_thread(void *argument)
{
    struct reference_work *work = (struct reference_work *)argument;
    for (;;) {
        const uint32_t row = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (row >= work->shape->rows) {
            return NULL;
        }
        const float *from = work->projected +
                            (size_t)row * work->shape->padded.frames * work->model->config.hidden;
        if (work->model->config.head == BERTH_PARAKEET_CTC) {
            reference_ctc(work->model, from, work->frames[row], work->capacity,
                          &work->results[row]);
        } else {
            reference_transduce(work->model, from, work->frames[row], work->capacity,
                                &work->results[row]);
        }
    }
}

static struct row_result *make_results(uint32_t rows, uint32_t capacity)
{
    struct row_result *results = (struct row_result *)calloc(rows, sizeof(*results));
    for (uint32_t row = 0; row < rows; row++) {
        results[row].token = (int32_t *)calloc(capacity + 1, 4);
        results[row].frame = (int32_t *)calloc(capacity + 1, 4);
        results[row].duration = (int32_t *)calloc(capacity + 1, 4);
        results[row].probability = (float *)calloc(capacity + 1, 4);
        results[row].margin = (float *)calloc(capacity + 1, 4);
    }
    return results;
}

static void drop_results(struct row_result *results, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        free(results[row].token);
        free(results[row].frame);
        free(results[row].duration);
        free(results[row].probability);
        free(results[row].margin);
    }
    free(results);
}

/* ---- decoding: the device's side ---- */

struct decoding {
    struct model *model;
    struct berth_parakeet_shape shape;
    struct both projected;
    int32_t *frames;     /* here */
    void *frames_device;
    uint32_t *stop;      /* here, and seen there */
    void *stop_device;
    void *state;
    uint32_t capacity;
    struct berth_parakeet_decode_call call;
    struct berth_parakeet_counts counts;
};

static void make_decoding(struct decoding *decoding, struct model *model, uint32_t rows,
                          uint32_t frames, uint32_t capacity)
{
    memset(decoding, 0, sizeof(*decoding));
    decoding->model = model;
    decoding->shape.rows = rows;
    decoding->shape.padded.frames = frames;
    decoding->capacity = capacity;
    decoding->projected = make_halves((size_t)rows * frames * model->config.hidden, 50, 1.0f);
    decoding->frames = (int32_t *)calloc(rows, 4);
    for (uint32_t row = 0; row < rows; row++) { /* the full length, some odd ones, and none */
        decoding->frames[row] = (int32_t)frames;
        if (row % 4 == 3) {
            decoding->frames[row] = (int32_t)(mix(row) % (frames + 1));
        }
        if (row % 16 == 5) {
            decoding->frames[row] = row % 32 == 5 ? 0 : 1;
        }
    }
    CHECK(cudaMalloc(&decoding->frames_device, rows * 4));
    CHECK(cudaHostAlloc((void **)&decoding->stop, rows * 4, cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer(&decoding->stop_device, decoding->stop, 0));
    memset(decoding->stop, 0, rows * 4);
    CHECK(cudaMalloc(&decoding->state, berth_parakeet_cuda_decode_state_bytes(&model->config,
                                                                              &decoding->shape)));
    struct berth_parakeet_tokens *tokens = &decoding->call.tokens;
    const size_t bytes = (size_t)rows * capacity * 4;
    CHECK(cudaMalloc((void **)&tokens->count, rows * 4));
    CHECK(cudaMalloc((void **)&tokens->steps, rows * 4));
    CHECK(cudaMalloc((void **)&tokens->token, bytes));
    CHECK(cudaMalloc((void **)&tokens->frame, bytes));
    CHECK(cudaMalloc((void **)&tokens->duration, bytes));
    CHECK(cudaMalloc((void **)&tokens->probability, bytes));
    tokens->capacity = capacity;
    decoding->call.config = &model->config;
    decoding->call.weights = &model->weights;
    decoding->call.projected = decoding->projected.device;
    decoding->call.stop = (const uint32_t *)decoding->stop_device;
    decoding->call.state = decoding->state;
    decoding->call.steps_max = UINT32_MAX;
    decoding->call.begin = true;
    decoding->counts.frames = (const int32_t *)decoding->frames_device;
}

static void drop_decoding(struct decoding *decoding)
{
    struct berth_parakeet_tokens *tokens = &decoding->call.tokens;
    void *memory[] = {tokens->count, tokens->steps,       tokens->token,          tokens->frame,
                      tokens->duration, tokens->probability, decoding->state,
                      decoding->frames_device};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        CHECK(cudaFree(memory[i]));
    }
    CHECK(cudaFreeHost(decoding->stop));
    drop(&decoding->projected);
    free(decoding->frames);
}

/* Everything poisoned first, state too. */
static void start_decoding(struct berth_parakeet_device *device, struct decoding *decoding)
{
    const struct berth_parakeet_tokens *tokens = &decoding->call.tokens;
    const uint32_t rows = decoding->shape.rows;
    const size_t bytes = (size_t)rows * decoding->capacity * 4;
    CHECK(cudaMemcpy(decoding->frames_device, decoding->frames, rows * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(decoding->state, 0xff,
                     berth_parakeet_cuda_decode_state_bytes(&decoding->model->config,
                                                            &decoding->shape)));
    CHECK(cudaMemset(tokens->count, 0xff, rows * 4));
    CHECK(cudaMemset(tokens->steps, 0xff, rows * 4));
    CHECK(cudaMemset(tokens->token, 0xff, bytes));
    CHECK(cudaMemset(tokens->frame, 0xff, bytes));
    CHECK(cudaMemset(tokens->duration, 0xff, bytes));
    CHECK(cudaMemset(tokens->probability, 0xff, bytes));
    CHECK(cudaDeviceSynchronize());
    berth_parakeet_cuda_decode(device, &decoding->shape, &decoding->counts, &decoding->call);
}

static void fetch_results(struct berth_parakeet_device *device, const struct decoding *decoding,
                          struct row_result *results)
{
    const struct berth_parakeet_tokens *tokens = &decoding->call.tokens;
    CHECK(cudaStreamSynchronize(device->stream));
    for (uint32_t row = 0; row < decoding->shape.rows; row++) {
        struct row_result *to = &results[row];
        CHECK(cudaMemcpy(&to->count, tokens->count + row, 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&to->steps, tokens->steps + row, 4, cudaMemcpyDeviceToHost));
        if (to->count == -1) { /* given up */
            continue;
        }
        if (to->count < 0 || to->count > (int32_t)decoding->capacity) {
            printf("  FAIL: row %u has %d tokens\n", row, to->count);
            exit(1);
        }
        const size_t at = (size_t)row * decoding->capacity, bytes = (size_t)to->count * 4;
        CHECK(cudaMemcpy(to->token, tokens->token + at, bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(to->frame, tokens->frame + at, bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(to->duration, tokens->duration + at, bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(to->probability, tokens->probability + at, bytes, cudaMemcpyDeviceToHost));
    }
}

/* Same bits, all of it. */
static bool same_row(const struct row_result *a, const struct row_result *b)
{
    const size_t bytes = a->count > 0 ? (size_t)a->count * 4 : 0;
    return a->count == b->count && a->steps == b->steps &&
           memcmp(a->token, b->token, bytes) == 0 && memcmp(a->frame, b->frame, bytes) == 0 &&
           memcmp(a->duration, b->duration, bytes) == 0 &&
           memcmp(a->probability, b->probability, bytes) == 0;
}

/* First token at which two rows part; count of both: nowhere. */
static int32_t parting(const struct row_result *a, const struct row_result *b)
{
    int32_t i = 0;
    while (i < a->count && i < b->count && a->token[i] == b->token[i] &&
           a->frame[i] == b->frame[i] && a->duration[i] == b->duration[i]) {
        i++;
    }
    return i;
}

static void compare_with_reference(const char *name, const struct decoding *decoding,
                                   const struct row_result *right, const struct row_result *got)
{
    uint32_t same = 0;
    float worst_margin = 0.0f, worst_probability = 0.0f;
    int64_t tokens = 0, steps = 0, agreed = 0;
    for (uint32_t row = 0; row < decoding->shape.rows; row++) {
        const int32_t at = parting(&right[row], &got[row]);
        const bool whole = at == right[row].count && at == got[row].count;
        same += whole ? 1 : 0;
        if (!whole) {
            worst_margin = fmaxf(worst_margin, right[row].margin[at]);
        } else if (decoding->model->config.head != BERTH_PARAKEET_CTC &&
                   right[row].steps != got[row].steps &&
                   right[row].count < (int32_t)decoding->capacity) {
            worst_margin = fmaxf(worst_margin, right[row].margin[at]);
        }
        for (int32_t i = 0; i < at; i++) {
            const float gap = fabsf(right[row].probability[i] - got[row].probability[i]);
            worst_probability = gap <= worst_probability ? worst_probability : gap;
        }
        agreed += at;
        tokens += right[row].count;
        steps += right[row].steps;
    }
    printf("%-34s rows %3u, tokens %6lld, steps %6lld: same %3u, largest margin at a parting %.5f, "
           "probability gap %.5f\n",
           name, decoding->shape.rows, (long long)tokens, (long long)steps, same, worst_margin,
           worst_probability);
    expect(worst_margin <= MARGIN_MAX, "a row parts where the reference is sure");
    expect(worst_probability <= PROBABILITY_GAP, "probabilities differ");
    const int64_t parted = (int64_t)decoding->shape.rows - same;
    expect(parted * PARTING_EVERY <= agreed + 2 * PARTING_EVERY, "too many rows part");
}

static void reference_decode(const struct decoding *decoding, struct row_result *results)
{
    struct reference_work work = {};
    work.model = decoding->model;
    work.projected = decoding->projected.host;
    work.frames = decoding->frames;
    work.shape = &decoding->shape;
    work.results = results;
    work.capacity = decoding->capacity;
    pthread_t threads[16];
    for (int i = 0; i < 16; i++) {
        if (pthread_create(&threads[i], NULL, reference_thread, &work) != 0) {
            exit(1);
        }
    }
    for (int i = 0; i < 16; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* A row whose encoder output is not all numbers is given up, whether that is so from its first
 * frame on or from its middle; so is one that was said to be spoiled. The others are as they were.
 * Spoils row 0. */
static void test_infinite(struct berth_parakeet_device *device, struct decoding *decoding,
                          const struct row_result *before, struct row_result *again)
{
    static const float values[] = {NAN, -NAN, INFINITY, 70000.0f};
    const uint32_t rows = decoding->shape.rows, frames = decoding->shape.padded.frames;
    const uint32_t hidden = decoding->model->config.hidden;
    const size_t count = (size_t)rows * frames * hidden;
    const int32_t used = decoding->frames[0];
    float *kept = (float *)malloc(count * sizeof(float));
    memcpy(kept, decoding->projected.host, count * sizeof(float));
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t first = i < 4 ? 0 : (uint32_t)used / 2;
        memcpy(decoding->projected.host, kept, count * sizeof(float));
        for (uint32_t at = first * hidden; at < frames * hidden; at += 3) {
            decoding->projected.host[at] = values[i % 4];
        }
        upload_halves(&decoding->projected, count);
        start_decoding(device, decoding);
        fetch_results(device, decoding, again);
        bool others = true;
        for (uint32_t row = 1; row < rows; row++) {
            others = others && same_row(&before[row], &again[row]);
        }
        expect(others, "a row differs when another is no number");
        /* One without room for its tokens may have ended before. */
        expect(again[0].count == -1 || again[0].count == (int32_t)decoding->capacity,
               "a row that is no number is not given up");
    }
    memcpy(decoding->projected.host, kept, count * sizeof(float));
    upload_halves(&decoding->projected, count);
    free(kept);
    int32_t *spoiled = NULL;
    const int32_t one = 1;
    CHECK(cudaMalloc((void **)&spoiled, rows * 4));
    CHECK(cudaMemset(spoiled, 0, rows * 4));
    CHECK(cudaMemcpy(spoiled, &one, 4, cudaMemcpyHostToDevice));
    decoding->counts.spoiled = spoiled;
    start_decoding(device, decoding);
    fetch_results(device, decoding, again);
    bool others = again[0].count == -1;
    for (uint32_t row = 1; row < rows; row++) {
        others = others && same_row(&before[row], &again[row]);
    }
    expect(others, "a spoiled row has tokens, or another one has others");
    decoding->counts.spoiled = NULL;
    CHECK(cudaFree(spoiled));
}

/* Against the reference; then again, on few blocks, and with other rows stopped or empty. */
static void test_decode(struct berth_parakeet_device *device, const char *name, struct model *model,
                        uint32_t rows, uint32_t frames, uint32_t capacity)
{
    struct decoding decoding;
    make_decoding(&decoding, model, rows, frames, capacity);
    struct row_result *right = make_results(rows, capacity);
    struct row_result *got = make_results(rows, capacity);
    struct row_result *again = make_results(rows, capacity);
    reference_decode(&decoding, right);
    start_decoding(device, &decoding);
    fetch_results(device, &decoding, got);
    compare_with_reference(name, &decoding, right, got);

    const int sm_count = device->sm_count;
    static const int block_counts[] = {0, 17, 1};
    for (int i = 0; i < 3; i++) {
        device->sm_count = block_counts[i] == 0 ? sm_count : block_counts[i];
        start_decoding(device, &decoding);
        fetch_results(device, &decoding, again);
        bool same = true;
        for (uint32_t row = 0; row < rows; row++) {
            same = same && same_row(&got[row], &again[row]);
        }
        expect(same, i == 0 ? "a second run differs" : "fewer blocks, another result");
    }
    device->sm_count = sm_count;

    for (uint32_t row = 0; row < rows; row++) { /* every second row stopped before */
        decoding.stop[row] = row % 2;
    }
    start_decoding(device, &decoding);
    fetch_results(device, &decoding, again);
    bool stopped = true, others = true;
    for (uint32_t row = 0; row < rows; row++) {
        stopped = stopped && (row % 2 == 0 || again[row].count == 0);
        others = others && (row % 2 == 1 || same_row(&got[row], &again[row]));
    }
    expect(stopped, "a row stopped before has tokens");
    expect(others, "a row differs when others are stopped");
    memset(decoding.stop, 0, rows * 4);
    test_infinite(device, &decoding, got, again);
    drop_results(again, rows);
    drop_results(got, rows);
    drop_results(right, rows);
    drop_decoding(&decoding);
}

/* Row 0 of a bucket of one is row 0 of a bucket of many. */
static void test_alone(struct berth_parakeet_device *device, struct model *model, uint32_t frames)
{
    const uint32_t capacity = frames * 10;
    struct decoding one, many;
    make_decoding(&one, model, 1, frames, capacity);
    make_decoding(&many, model, 70, frames, capacity);
    struct row_result *a = make_results(1, capacity), *b = make_results(70, capacity);
    start_decoding(device, &one);
    fetch_results(device, &one, a);
    start_decoding(device, &many);
    fetch_results(device, &many, b);
    expect(same_row(&a[0], &b[0]), "a row alone differs from one in a bucket");
    drop_results(a, 1);
    drop_results(b, 70);
    drop_decoding(&one);
    drop_decoding(&many);
}

/* Stopped while it runs: long rows that would take seconds end at once, the others do not. */
static void test_stop(struct berth_parakeet_device *device, struct model *model, uint32_t frames,
                      uint32_t wait_us)
{
    const uint32_t rows = 4, capacity = frames * 10;
    struct decoding decoding;
    tune(model, STUCK);
    make_decoding(&decoding, model, rows, frames, capacity);
    struct row_result *results = make_results(rows, capacity);
    for (uint32_t row = 0; row < rows; row++) {
        decoding.frames[row] = row == 0 ? 3 : (int32_t)frames;
    }
    start_decoding(device, &decoding);
    usleep(wait_us);
    for (uint32_t row = 1; row < rows; row++) {
        __atomic_store_n(&decoding.stop[row], 1, __ATOMIC_SEQ_CST);
    }
    fetch_results(device, &decoding, results);
    printf("%-34s tokens %d, then %d %d %d of %u\n", "stopped while it runs", results[0].count,
           results[1].count, results[2].count, results[3].count, capacity);
    expect(results[0].count == 30, "a row that was not stopped is short");
    for (uint32_t row = 1; row < rows; row++) {
        expect(results[row].count > 0 && results[row].count < (int32_t)capacity,
               "a stopped row has no token, or all");
    }
    tune(model, NATURAL);
    drop_results(results, rows);
    drop_decoding(&decoding);
}

static void test_heads(struct berth_parakeet_device *device, uint32_t prediction, uint32_t layers,
                       uint32_t vocabulary, uint32_t frames)
{
    static const enum berth_parakeet_head heads[] = {BERTH_PARAKEET_TDT, BERTH_PARAKEET_RNNT,
                                                     BERTH_PARAKEET_CTC};
    static const char *const names[] = {"tdt", "rnnt", "ctc"};
    static const uint32_t rows[] = {1, 3, 16, 70};
    for (int i = 0; i < 3; i++) {
        struct model model;
        char name[64];
        make_model(&model, heads[i], prediction, layers, vocabulary);
        for (int k = 0; k < 4; k++) {
            (void)snprintf(name, sizeof(name), "%s %u x %u, %u", names[i], layers, prediction,
                           vocabulary);
            test_decode(device, name, &model, rows[k], frames, frames * 10);
        }
        (void)snprintf(name, sizeof(name), "%s, room for 5", names[i]);
        test_decode(device, name, &model, 9, frames, 5);
        tune(&model, STUCK);
        (void)snprintf(name, sizeof(name), "%s, no blank, duration 0", names[i]);
        test_decode(device, name, &model, 5, frames < 20 ? frames : 20, 200);
        tune(&model, BLANKS);
        (void)snprintf(name, sizeof(name), "%s, blanks", names[i]);
        test_decode(device, name, &model, 5, frames, frames);
        tune(&model, NATURAL);
        test_alone(device, &model, frames);
        drop_model(&model);
    }
}

/* ---- times ---- */

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Median microseconds of a captured graph's replays. */
static float time_graph(struct berth_parakeet_device *device, cudaGraph_t graph)
{
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float times[REPEATS];
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = -5; i < REPEATS; i++) {
        CHECK(cudaEventRecord(begin, device->stream));
        CHECK(cudaGraphLaunch(exec, device->stream));
        CHECK(cudaEventRecord(end, device->stream));
        CHECK(cudaStreamSynchronize(device->stream));
        if (i >= 0) {
            CHECK(cudaEventElapsedTime(&times[i], begin, end));
        }
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(exec));
    qsort(times, REPEATS, sizeof(float), compare_floats);
    return times[REPEATS / 2] * 1000.0f;
}

static void time_decode(struct berth_parakeet_device *device, enum berth_parakeet_head head,
                        uint32_t vocabulary, uint32_t rows)
{
    const uint32_t frames = 125, capacity = 1250;
    struct model model;
    struct decoding decoding;
    cudaGraph_t graph;
    make_model(&model, head, 640, 2, vocabulary);
    make_decoding(&decoding, &model, rows, frames, capacity);
    for (uint32_t row = 0; row < rows; row++) {
        decoding.frames[row] = (int32_t)frames;
    }
    struct row_result *results = make_results(rows, capacity);
    start_decoding(device, &decoding);
    fetch_results(device, &decoding, results);
    int32_t steps_most = 0;
    int64_t steps = 0, tokens = 0;
    for (uint32_t row = 0; row < rows; row++) {
        steps += results[row].steps;
        tokens += results[row].count;
        steps_most = results[row].steps > steps_most ? results[row].steps : steps_most;
    }
    CHECK(cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeRelaxed));
    berth_parakeet_cuda_decode(device, &decoding.shape, &decoding.counts, &decoding.call);
    CHECK(cudaStreamEndCapture(device->stream, &graph));
    const float us = time_graph(device, graph);
    CHECK(cudaGraphDestroy(graph));
    struct row_result *again = make_results(rows, capacity);
    fetch_results(device, &decoding, again);
    bool same = true;
    for (uint32_t row = 0; row < rows; row++) {
        same = same && same_row(&results[row], &again[row]);
    }
    expect(same, "a replayed graph differs");
    printf("decode %-4s 2 x 640, %4u, B=%-3u  %8.1f us; steps a row %.1f, most %d; tokens %.1f; "
           "%.2f us a step\n",
           head == BERTH_PARAKEET_TDT ? "tdt" : head == BERTH_PARAKEET_CTC ? "ctc" : "rnnt",
           vocabulary, rows, us, (double)steps / rows, steps_most, (double)tokens / rows,
           us / (float)(steps_most > 0 ? steps_most : 1));
    drop_results(results, rows);
    drop_results(again, rows);
    drop_decoding(&decoding);
    drop_model(&model);
}

static void time_features(struct berth_parakeet_device *device, uint32_t rows)
{
    const struct berth_parakeet_shape shape = bucket(rows, 160000);
    struct berth_parakeet_config config = {};
    struct berth_parakeet_counts counts = {};
    config.mels = 128;
    config.fft = 512;
    config.window = 400;
    config.preemphasis = 0.97f;
    int32_t *lengths = (int32_t *)malloc(rows * 8);
    float *pcm = (float *)malloc(160000 * 4);
    void *device_pcm, *device_out, *device_counts;
    make_sound(NOISE, 160000, pcm);
    CHECK(cudaMalloc(&device_pcm, (size_t)rows * 160000 * 4));
    CHECK(cudaMalloc(&device_out, (size_t)rows * 1000 * 128 * 2));
    CHECK(cudaMalloc(&device_counts, rows * 8));
    for (uint32_t row = 0; row < rows; row++) {
        lengths[row] = 160000;
        lengths[rows + row] = 1000;
        CHECK(cudaMemcpy((float *)device_pcm + (size_t)row * 160000, pcm, 160000 * 4,
                         cudaMemcpyHostToDevice));
    }
    CHECK(cudaMemcpy(device_counts, lengths, rows * 8, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    counts.samples = (const int32_t *)device_counts;
    counts.features = counts.samples + rows;
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeRelaxed));
    berth_parakeet_cuda_features(device, &config, &shape, &counts, (const float *)device_pcm,
                                 device_out);
    CHECK(cudaStreamEndCapture(device->stream, &graph));
    printf("features 10 s, 128 mels, B=%-3u     %8.1f us\n", rows, time_graph(device, graph));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(device_pcm));
    CHECK(cudaFree(device_out));
    CHECK(cudaFree(device_counts));
    free(pcm);
    free(lengths);
}

int main(int argc, char **argv)
{
    struct berth_parakeet_device device;
    const bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    open_device(&device);
    for (int sound = 0; sound < SOUNDS; sound++) {
        test_features_of(&device, (enum sound)sound, 128, 40400);
    }
    test_features_of(&device, SPEECH, 80, 40001);
    test_heads(&device, 24, 1, 20, 40);
    test_heads(&device, 72, 3, 39, 40);
    if (!quick) {
        test_heads(&device, 320, 2, 513, 84);
        test_heads(&device, 640, 2, 1025, 125);
        struct model model;
        make_model(&model, BERTH_PARAKEET_TDT, 640, 2, 8193);
        test_decode(&device, "tdt 2 x 640, 8193", &model, 11, 125, 1250);
        drop_model(&model);
    }
    struct model model;
    make_model(&model, BERTH_PARAKEET_TDT, quick ? 24 : 640, 2, quick ? 20 : 1025);
    test_stop(&device, &model, quick ? 50000 : 20000, 20000);
    drop_model(&model);
    if (!quick) {
        static const uint32_t rows[] = {1, 8, 16, 64, 128};
        for (int i = 0; i < 5; i++) {
            time_features(&device, rows[i]);
        }
        for (int i = 0; i < 5; i++) {
            time_decode(&device, BERTH_PARAKEET_TDT, 1025, rows[i]);
        }
        time_decode(&device, BERTH_PARAKEET_TDT, 8193, 1);
        time_decode(&device, BERTH_PARAKEET_TDT, 8193, 64);
        time_decode(&device, BERTH_PARAKEET_RNNT, 1025, 1);
        time_decode(&device, BERTH_PARAKEET_RNNT, 1025, 64);
        time_decode(&device, BERTH_PARAKEET_CTC, 1025, 64);
    }
    if (device.features_close != NULL) {
        device.features_close(&device);
    }
    CHECK(cudaStreamDestroy(device.stream));
    printf(failures == 0 ? "PASS\n" : "FAIL: %d\n", failures);
    return failures == 0 ? 0 : 1;
}
