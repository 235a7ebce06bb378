/* linear_choice.h - which of several ways to do a product is the fastest, chosen once in a process.
 *
 * In:      a product's key, ways to do it, a function that does it one of these ways.
 * Out:     a way, the same for that key as long as the process lives (L7), whoever asks.
 * Threads: any; two that choose for one key at a time both measure, and take the first one's.
 * C and C++ clean.
 */
#ifndef BERTH_LINEAR_CHOICE_H
#define BERTH_LINEAR_CHOICE_H

#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/linear_key.h"

#ifdef __cplusplus
extern "C" {
#endif

struct berth_parakeet_cuda_way {
    uint32_t variant;               /* own: of product_sm90.h */
    cublasLtMatmulAlgo_t algorithm; /* else */
};

/* Where ways are timed: random operands, a workspace, vectors of small floats. */
struct berth_parakeet_cuda_room {
    char *workspace, *vectors, *in, *out, *weight;
};

struct berth_parakeet_cuda_race {
    struct berth_parakeet_cuda_key key;
    const struct berth_parakeet_cuda_way *ways; /* the likeliest first */
    int count;
    bool behind; /* nobody waits for it: rather no choice than one without timing */
    /* Asks for the product once, in the room. False: it cannot be done that way. */
    bool (*run)(void *subject, const struct berth_parakeet_cuda_way *way,
                const struct berth_parakeet_cuda_room *room, cudaStream_t stream);
    void *subject;
};

/* The one that was chosen for the key. */
bool berth_parakeet_cuda_choice_find(const struct berth_parakeet_cuda_key *key,
                                     struct berth_parakeet_cuda_way *out);
/* Times the ways where there is a choice to make, and keeps it; the first way where none could be
 * timed. False: behind, and none could. */
bool berth_parakeet_cuda_choose(struct berth_parakeet_device *device,
                                const struct berth_parakeet_cuda_race *race,
                                struct berth_parakeet_cuda_way *out);

#ifdef __cplusplus
}
#endif

#endif
