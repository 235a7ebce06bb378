/* resample.c - a polyphase Kaiser-windowed sinc.
 *
 * The rates are reduced to to/from = up/down. Output k lies at input k * down / up: a whole part
 * and one of `up` fractions. Each fraction has its own row of taps, made once. Where `up` is large
 * (44101 Hz) there are PHASES_BLEND rows and the two next to the wanted fraction are blended.
 *
 * 32 zero crossings on each side, beta 9: aliases and images are 85 dB down, flat to 0.85 of the
 * lower Nyquist frequency. Each row is scaled to a sum of 1, so that a constant stays constant.
 * Before the first and after the last frame the input counts as zero.
 */
#include "media/resample.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

#define ZERO_CROSSINGS 32
#define KAISER_BETA 9.0
#define CUTOFF 0.94 /* of the lower Nyquist frequency */
#define PHASES_MAX 1024  /* fractions with a row each */
#define PHASES_BLEND 256 /* rows where there are more fractions */
#define LANES 16 /* taps are summed in so many partial sums; rows are a multiple of it long */
#define KAISER_STEPS 2048

typedef float quad __attribute__((vector_size(16)));

struct berth_resampler {
    uint64_t up, down;     /* to and from without their common divisor */
    size_t phase_count;    /* rows that stand for a fraction of their own */
    bool blends;           /* the fraction lies between two rows */
    size_t tap_count;
    float *rows;           /* (phase_count + 1, tap_count) */
    float *window;         /* input not yet done with, tap_count / 2 - 1 zeros before its start */
    size_t window_count;
    uint64_t window_start; /* index of window[0], counted with those zeros */
    uint64_t index;        /* whole part of the next output's place */
    uint64_t fraction;     /* and its fraction, in 1/up */
    uint64_t in_count;
    uint64_t out_count;
};

static uint64_t common_divisor(uint64_t a, uint64_t b);
static void make_rows(struct berth_resampler *resampler, double *kaiser);
static void make_row(float *row, size_t tap_count, double fraction, double scale,
                     const double *kaiser);
static double bessel_i0(double x);
static size_t produce(struct berth_resampler *resampler, float *out, uint64_t out_max);
static float dot(const float *a, const float *b, size_t count);

enum berth_code berth_resampler_create(uint32_t from, uint32_t to, struct berth_resampler **out,
                                       struct berth_err *err)
{
    if (from < BERTH_RESAMPLE_RATE_MIN || from > BERTH_RESAMPLE_RATE_MAX ||
        to < BERTH_RESAMPLE_RATE_MIN || to > BERTH_RESAMPLE_RATE_MAX) {
        return berth_fail(err, BERTH_INVALID, "cannot change the rate from %u to %u Hz", from, to);
    }
    enum berth_code code = BERTH_OK;
    double *kaiser = berth_alloc((KAISER_STEPS + 2) * sizeof(*kaiser));
    struct berth_resampler *resampler = berth_alloc(sizeof(*resampler));
    if (resampler == NULL || kaiser == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for a resampler");
        goto out;
    }
    uint64_t divisor = common_divisor(from, to);
    resampler->up = to / divisor;
    resampler->down = from / divisor;
    resampler->blends = resampler->up > PHASES_MAX;
    resampler->phase_count = resampler->blends ? PHASES_BLEND : (size_t)resampler->up;
    double reach = ZERO_CROSSINGS * (from > to ? (double)from / to : 1.0);
    resampler->tap_count = ((size_t)ceil(reach) * 2 + LANES - 1) / LANES * LANES;
    size_t row_count = resampler->phase_count + 1;
    resampler->rows = berth_alloc(row_count * resampler->tap_count * sizeof(float));
    resampler->window =
        berth_alloc((2 * resampler->tap_count + BERTH_RESAMPLE_PUSH_MAX) * sizeof(float));
    if (resampler->rows == NULL || resampler->window == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for a resampler");
        goto out;
    }
    resampler->window_count = resampler->tap_count / 2 - 1;
    make_rows(resampler, kaiser);
    *out = resampler;
    resampler = NULL;
out:
    berth_resampler_destroy(resampler);
    berth_free(kaiser);
    return code;
}

void berth_resampler_destroy(struct berth_resampler *resampler)
{
    if (resampler == NULL) {
        return;
    }
    berth_free(resampler->rows);
    berth_free(resampler->window);
    berth_free(resampler);
}

size_t berth_resampler_room(const struct berth_resampler *resampler, size_t in_count)
{
    return (size_t)((in_count * resampler->up + resampler->down - 1) / resampler->down) + 1;
}

size_t berth_resampler_push(struct berth_resampler *resampler, const float *in, size_t in_count,
                            float *out)
{
    BERTH_ASSERT(in_count <= BERTH_RESAMPLE_PUSH_MAX);
    memcpy(resampler->window + resampler->window_count, in, in_count * sizeof(*in));
    resampler->window_count += in_count;
    resampler->in_count += in_count;
    return produce(resampler, out, UINT64_MAX);
}

size_t berth_resampler_flush(struct berth_resampler *resampler, float *out, size_t room)
{
    /* in_count stays far below 2^40 (bytes of a file) and up below 2^20: no overflow. */
    uint64_t total = (resampler->in_count * resampler->up + resampler->down / 2) / resampler->down;
    size_t written = 0;
    while (resampler->out_count < total && written < room) {
        uint64_t left = total - resampler->out_count;
        uint64_t most = left < room - written ? left : room - written;
        size_t made = produce(resampler, out + written, most);
        written += made;
        if (made == 0) { /* more zeros after the end */
            memset(resampler->window + resampler->window_count, 0,
                   resampler->tap_count * sizeof(float));
            resampler->window_count += resampler->tap_count;
        }
    }
    return written;
}

/* Writes outputs while the window covers their taps, then drops what is done with. After it the
 * window holds fewer than tap_count frames, unless out_max stopped it. */
static size_t produce(struct berth_resampler *resampler, float *out, uint64_t out_max)
{
    const size_t taps = resampler->tap_count;
    size_t written = 0;
    while (written < out_max &&
           resampler->index - resampler->window_start + taps <= resampler->window_count) {
        const float *in = resampler->window + (resampler->index - resampler->window_start);
        if (resampler->blends) {
            uint64_t place = resampler->fraction * resampler->phase_count;
            const float *row = resampler->rows + place / resampler->up * taps;
            float share = (float)(place % resampler->up) / (float)resampler->up;
            float near_sum = dot(in, row, taps);
            out[written] = near_sum + share * (dot(in, row + taps, taps) - near_sum);
        } else {
            out[written] = dot(in, resampler->rows + resampler->fraction * taps, taps);
        }
        written++;
        resampler->fraction += resampler->down;
        resampler->index += resampler->fraction / resampler->up;
        resampler->fraction %= resampler->up;
    }
    resampler->out_count += written;
    uint64_t done = resampler->index - resampler->window_start;
    size_t drop = done < resampler->window_count ? (size_t)done : resampler->window_count;
    memmove(resampler->window, resampler->window + drop,
            (resampler->window_count - drop) * sizeof(float));
    resampler->window_count -= drop;
    resampler->window_start += drop;
    return written;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* kaiser: room for the window's steps. */
static void make_rows(struct berth_resampler *resampler, double *kaiser)
{
    for (size_t i = 0; i <= KAISER_STEPS; i++) {
        double at = (double)i / KAISER_STEPS;
        kaiser[i] = bessel_i0(KAISER_BETA * sqrt(1.0 - at * at)) / bessel_i0(KAISER_BETA);
    }
    double scale = resampler->up < resampler->down
                       ? (double)resampler->up / (double)resampler->down
                       : 1.0;
    for (size_t i = 0; i <= resampler->phase_count; i++) {
        make_row(resampler->rows + i * resampler->tap_count, resampler->tap_count,
                 (double)i / (double)resampler->phase_count, scale, kaiser);
    }
}

/* Tap i weighs the input frame that lies (i - half + 1 - fraction) frames from the output. The
 * sine of evenly spaced angles is a rotation, which saves most of the time of making the rows. */
static void make_row(float *row, size_t tap_count, double fraction, double scale,
                     const double *kaiser)
{
    const double turn = M_PI * CUTOFF * scale; /* angle from one input frame to the next */
    const double reach = ZERO_CROSSINGS / scale;
    double at = 1.0 - (double)(tap_count / 2) - fraction;
    double sine = sin(turn * at), cosine = cos(turn * at);
    const double turn_sine = sin(turn), turn_cosine = cos(turn);
    double sum = 0;
    for (size_t i = 0; i < tap_count; i++, at += 1.0) {
        double place = fabs(at) / reach * KAISER_STEPS;
        double weight = 0;
        if (place < KAISER_STEPS) {
            size_t step = (size_t)place;
            double rest = place - (double)step;
            double window = kaiser[step] + rest * (kaiser[step + 1] - kaiser[step]);
            weight = window * (fabs(at) < 1e-9 ? 1.0 : sine / (turn * at));
        }
        row[i] = (float)weight;
        sum += weight;
        double next = sine * turn_cosine + cosine * turn_sine;
        cosine = cosine * turn_cosine - sine * turn_sine;
        sine = next;
    }
    for (size_t i = 0; i < tap_count; i++) {
        row[i] = (float)(row[i] / sum);
    }
}

static double bessel_i0(double x)
{
    double sum = 1, term = 1;
    for (int i = 1; term > sum * 1e-17; i++) {
        term *= (x / 2 / i) * (x / 2 / i);
        sum += term;
    }
    return sum;
}

/* Four sums of four lanes each: the compiler keeps an array of sums in memory, which is slower. */
static float dot(const float *a, const float *b, size_t count)
{
    quad sums[4] = {{0}, {0}, {0}, {0}};
    for (size_t i = 0; i < count; i += LANES) {
        quad left[4], right[4];
        memcpy(left, a + i, sizeof(left));
        memcpy(right, b + i, sizeof(right));
        sums[0] += left[0] * right[0];
        sums[1] += left[1] * right[1];
        sums[2] += left[2] * right[2];
        sums[3] += left[3] * right[3];
    }
    quad sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
