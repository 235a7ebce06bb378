/* random_clip.c - a pulse train and noise through three resonators: enough for a front end to see
 * moving formants, pitch and pauses as in speech, at the cost of a few operations a sample.
 */
#include "cli/random_clip.h"

#include <math.h>
#include <stddef.h>

#include "base/mem.h"

#define RATE 16000.0
#define TWO_PI 6.283185307179586

struct random {
    uint64_t state;
};

/* Two poles at a frequency, of the given bandwidth. */
struct resonator {
    double a, b, gain;
    double before, before_that;
};

struct syllable {
    uint32_t samples;
    double pitch, glide; /* Hz, Hz a sample */
    double voiced, noise;
    double formants[3];
};

static double uniform(struct random *random, double from, double to);
static struct syllable make_syllable(struct random *random);
static void tune(struct resonator *resonator, double frequency, double bandwidth);
static double pass(struct resonator *resonator, double in);

void berth_random_clip(uint64_t seed, float *out, uint32_t samples)
{
    static const double bandwidths[3] = {80, 110, 160};
    struct random random = {.state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1};
    struct resonator resonators[3] = {0};
    double phase = 0;
    for (int i = 0; i < 8; i++) {
        uniform(&random, 0, 1); /* seeds that lie close together part */
    }
    for (uint32_t at = 0; at < samples;) {
        struct syllable syllable = make_syllable(&random);
        for (size_t i = 0; i < BERTH_COUNT_OF(resonators); i++) {
            tune(&resonators[i], syllable.formants[i], bandwidths[i]);
        }
        for (uint32_t i = 0; i < syllable.samples && at < samples; i++, at++) {
            double shape = sin(TWO_PI / 2 * (double)i / syllable.samples);
            double in = syllable.noise * uniform(&random, -1, 1);
            phase += (syllable.pitch + syllable.glide * i) / RATE;
            if (phase >= 1) {
                phase -= 1;
                in += 8 * syllable.voiced;
            }
            double sum = uniform(&random, -0.001, 0.001);
            for (size_t j = 0; j < BERTH_COUNT_OF(resonators); j++) {
                sum += pass(&resonators[j], in) * shape * shape;
            }
            out[at] = (float)fmax(-1, fmin(1, 0.4 * sum));
        }
    }
}

static double uniform(struct random *random, double from, double to)
{
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    uint64_t bits = (random->state * UINT64_C(0x2545F4914F6CDD1D)) >> 11;
    return from + (to - from) * (double)bits / (double)(UINT64_C(1) << 53);
}

/* One in eight is a pause, one in four a fricative, the rest voiced. */
static struct syllable make_syllable(struct random *random)
{
    double kind = uniform(random, 0, 1);
    struct syllable syllable = {
        .samples = (uint32_t)uniform(random, 0.06 * RATE, 0.28 * RATE),
        .pitch = uniform(random, 90, 240),
        .voiced = kind < 0.375 ? 0 : uniform(random, 0.3, 1),
        .noise = kind < 0.125 ? 0 : kind < 0.375 ? uniform(random, 0.5, 1.5) : 0.05,
        .formants = {uniform(random, 250, 850), uniform(random, 900, 2400),
                     uniform(random, 2500, 5500)},
    };
    syllable.glide = uniform(random, -30, 30) / syllable.samples;
    return syllable;
}

static void tune(struct resonator *resonator, double frequency, double bandwidth)
{
    double radius = exp(-TWO_PI / 2 * bandwidth / RATE);
    resonator->a = 2 * radius * cos(TWO_PI * frequency / RATE);
    resonator->b = -radius * radius;
    resonator->gain = (1 - radius) * 2;
}

static double pass(struct resonator *resonator, double in)
{
    double out = resonator->gain * in + resonator->a * resonator->before +
                 resonator->b * resonator->before_that;
    resonator->before_that = resonator->before;
    resonator->before = out;
    return out;
}
