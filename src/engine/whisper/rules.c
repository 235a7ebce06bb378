/* rules.c - masks, and sums over a vocabulary of 50,000.
 *
 * This runs for every row at every step, so exp is a polynomial that compilers vectorise, added up
 * in lanes: 0.15 ms a row.
 */
#include "engine/whisper/rules.h"

#include <math.h>

#include "engine/whisper/exp_fast.h"

#define LANES 8
#define BLOCK 512

static void forbid(float *logits, size_t first, size_t end);
static void forbid_list(float *logits, const int32_t *ids, size_t count);
static void mask_times(const struct berth_rules *rules, float *logits);
static float range_max(const float *logits, size_t count);
static double range_sum(const float *logits, size_t count, float peak);
static size_t draw(const float *logits, size_t vocab, double temperature, uint64_t *random);

void berth_rules_mask(const struct berth_rules *rules, float *logits)
{
    const struct berth_whisper_config *config = rules->config;
    forbid_list(logits, config->suppressed, config->suppressed_count);
    if (rules->token_count == 0) {
        forbid_list(logits, config->suppressed_first, config->suppressed_first_count);
    }
    if (rules->timestamps) {
        mask_times(rules, logits);
    }
}

struct berth_pick berth_rules_pick(const float *logits, size_t vocab, double temperature,
                                   uint64_t *random)
{
    struct berth_pick pick = {.token = -1, .logprob = 0};
    float peak = range_max(logits, vocab);
    if (!isfinite(peak)) {
        return pick;
    }
    size_t at = 0;
    if (temperature > 0) {
        at = draw(logits, vocab, temperature, random);
    } else {
        while (logits[at] != peak) {
            at++;
        }
    }
    pick.token = (int32_t)at;
    pick.logprob = (double)(logits[at] - peak) - log(range_sum(logits, vocab, peak));
    return pick;
}

double berth_rules_probability(const float *logits, size_t count, size_t index)
{
    float peak = range_max(logits, count);
    double sum = isfinite(peak) ? range_sum(logits, count, peak) : 0;
    return sum > 0 ? exp((double)(logits[index] - peak)) / sum : 0;
}

int32_t berth_rules_language(const struct berth_whisper_config *config, const float *logits)
{
    int32_t best = -1;
    for (size_t i = 0; i < config->language_count; i++) {
        int32_t id = config->languages[i].id;
        if (best < 0 || logits[id] > logits[best]) {
            best = id;
        }
    }
    return best;
}

static void forbid(float *logits, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        logits[i] = -INFINITY;
    }
}

static void forbid_list(float *logits, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        logits[ids[i]] = -INFINITY;
    }
}

static void mask_times(const struct berth_rules *rules, float *logits)
{
    const struct berth_whisper_config *config = rules->config;
    const int32_t *tokens = rules->tokens;
    size_t count = rules->token_count;
    size_t first = (size_t)config->first_time;
    logits[config->no_timestamps] = -INFINITY;
    if (count == 0) { /* a time within the first second */
        size_t end = first + (size_t)config->first_time_limit + 1;
        forbid(logits, 0, first);
        forbid(logits, end < config->vocab ? end : config->vocab, config->vocab);
        return;
    }
    for (size_t i = count; i > 0; i--) {
        if (tokens[i - 1] >= config->first_time) { /* never back behind the last one */
            forbid(logits, first, (size_t)tokens[i - 1]);
            break;
        }
    }
    if (tokens[count - 1] >= config->first_time) {
        if (count < 2 || tokens[count - 2] >= config->first_time) { /* after a pair: text, end */
            forbid(logits, first, config->vocab);
            return;
        }
        forbid(logits, 0, (size_t)config->eot); /* a pair is to be completed */
    }
    float peak = range_max(logits + first, config->vocab - first);
    if (isfinite(peak)) {
        double times = (double)peak + log(range_sum(logits + first, config->vocab - first, peak));
        if (times > (double)range_max(logits, first)) {
            forbid(logits, 0, first);
        }
    }
}

static float range_max(const float *logits, size_t count)
{
    float lanes[LANES];
    size_t i = 0;
    for (size_t k = 0; k < LANES; k++) {
        lanes[k] = -INFINITY;
    }
    for (; i + LANES <= count; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            lanes[k] = logits[i + k] > lanes[k] ? logits[i + k] : lanes[k];
        }
    }
    for (; i < count; i++) {
        lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
    }
    for (size_t k = 1; k < LANES; k++) {
        lanes[0] = lanes[k] > lanes[0] ? lanes[k] : lanes[0];
    }
    return lanes[0];
}

/* Sum of exp(logit - peak); a value that is no number counts as 0. */
static double range_sum(const float *logits, size_t count, float peak)
{
    double total = 0;
    for (size_t at = 0; at < count; at += BLOCK) {
        float values[BLOCK];
        float lanes[LANES] = {0};
        size_t block = count - at < BLOCK ? count - at : BLOCK;
        for (size_t i = 0; i < block; i++) {
            values[i] = berth_exp_fast(logits[at + i] - peak);
        }
        size_t whole = block - block % LANES;
        for (size_t i = 0; i < whole; i += LANES) {
            for (size_t k = 0; k < LANES; k++) {
                lanes[k] += values[i + k];
            }
        }
        for (size_t i = whole; i < block; i++) {
            lanes[0] += values[i];
        }
        for (size_t k = 0; k < LANES; k++) {
            total += (double)lanes[k];
        }
    }
    return total;
}

/* splitmix64 -> [0, 1) */
static double next_random(uint64_t *random)
{
    uint64_t z = (*random += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static size_t draw(const float *logits, size_t vocab, double temperature, uint64_t *random)
{
    double peak = (double)range_max(logits, vocab);
    double total = 0;
    for (size_t i = 0; i < vocab; i++) {
        total += logits[i] > -INFINITY ? exp(((double)logits[i] - peak) / temperature) : 0;
    }
    double left = next_random(random) * total;
    size_t last = 0;
    for (size_t i = 0; i < vocab; i++) {
        if (logits[i] > -INFINITY) {
            last = i;
            left -= exp(((double)logits[i] - peak) / temperature);
            if (left < 0) {
                break;
            }
        }
    }
    return last;
}
