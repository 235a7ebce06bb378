/* fuzz_wav.c - any bytes as a WAVE file: read where they lie, decoded within the limits. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "media/wav.h"

#define SECONDS_MAX 2.0
#define RATE 16000

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

struct memory_pcm {
    struct berth_pcm pcm;
    float *frames;
};

static enum berth_code memory_room(struct berth_pcm *pcm, uint64_t capacity, struct berth_err *err)
{
    struct memory_pcm *memory = BERTH_CONTAINER_OF(pcm, struct memory_pcm, pcm);
    BERTH_ASSERT(capacity <= pcm->frames_max + BERTH_PCM_BLOCK && capacity > pcm->capacity);
    float *grown =
        berth_resize(memory->frames, pcm->capacity * sizeof(float), capacity * sizeof(float));
    if (grown == NULL) {
        return berth_fail(err, BERTH_BUSY, "no room");
    }
    memory->frames = grown;
    pcm->frames = grown;
    pcm->capacity = capacity;
    return BERTH_OK;
}

static const struct berth_pcm_ops memory_ops = {.room = memory_room};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct berth_media_input input = {.bytes = bytes, .length = length};
    struct memory_pcm memory = {0};
    struct berth_err err = {0};
    berth_pcm_init(&memory.pcm, &memory_ops, RATE, SECONDS_MAX);
    bool is_mine = berth_decoder_wav.matches(&input);
    enum berth_code code = berth_decoder_wav.decode(&input, &memory.pcm, &err);
    BERTH_ASSERT(is_mine || code != BERTH_OK);
    BERTH_ASSERT(code == BERTH_OK || code == BERTH_MEDIA || code == BERTH_UNSUPPORTED ||
                 code == BERTH_TOO_LARGE || code == BERTH_INVALID);
    if (code == BERTH_OK) {
        BERTH_ASSERT(memory.pcm.count <= memory.pcm.frames_max);
        for (uint64_t i = 0; i < memory.pcm.count; i++) {
            BERTH_ASSERT(memory.frames[i] >= -2 * BERTH_PCM_LEVEL_MAX);
            BERTH_ASSERT(memory.frames[i] <= 2 * BERTH_PCM_LEVEL_MAX);
        }
    }
    berth_free(memory.frames);
    return 0;
}
