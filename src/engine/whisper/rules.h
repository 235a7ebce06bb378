/* rules.h - which token may come next, and which one does.
 *
 * The rules are OpenAI's as faster-whisper applies them: sets of suppressed tokens; with timestamps
 * on, these come in pairs, never go back, the first lies within the first second, and one is forced
 * where all of them together are likelier than any text. Everything here is about one row.
 */
#ifndef BERTH_RULES_H
#define BERTH_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/whisper/whisper_config.h"

struct berth_rules {
    const struct berth_whisper_config *config;
    const int32_t *tokens; /* said so far in this window, without the prompt */
    size_t token_count;
    bool timestamps;
};

/* Sets the logits (vocab) of what must not come to -infinity. */
void berth_rules_mask(const struct berth_rules *rules, float *logits);

struct berth_pick {
    int32_t token;   /* -1: the logits are not numbers */
    double logprob;  /* of the masked distribution, at temperature 1 */
};

/* The likeliest token, or at a temperature above 0 one drawn by *random (any seed; advanced). */
struct berth_pick berth_rules_pick(const float *logits, size_t vocab, double temperature,
                                   uint64_t *random);
/* Softmax of one of `count` logits. */
double berth_rules_probability(const float *logits, size_t count, size_t index);
/* The likeliest language's token, from the logits behind the start token. */
int32_t berth_rules_language(const struct berth_whisper_config *config, const float *logits);

#endif
