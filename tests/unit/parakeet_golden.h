/* parakeet_golden.h - what the reference says about twelve recordings, for the tests of the
 * Parakeet engine. See tests/models/parakeet-nano-en/README.md. Include it after cmocka.
 *
 * Every function fails the test when a file is not there. BERTH_SOURCE names the source tree.
 */
#ifndef BERTH_PARAKEET_GOLDEN_H
#define BERTH_PARAKEET_GOLDEN_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define GOLDEN_COUNT 12       /* recordings */
#define GOLDEN_ARRAYS_COUNT 4 /* of them with features, encoder and projected outputs */
#define GOLDEN_TOKENS_MAX 256

struct golden {
    size_t samples;
    char text[512];      /* what the reference heard */
    char reference[512]; /* what was read */
    size_t token_count;
    int32_t tokens[GOLDEN_TOKENS_MAX];
    int32_t frames[GOLDEN_TOKENS_MAX];
    int32_t durations[GOLDEN_TOKENS_MAX];
};

static inline const char *golden_source(void)
{
    const char *source = getenv("BERTH_SOURCE");
    return source == NULL ? "." : source;
}

/* The model's folder, in storage of the function. */
static inline const char *golden_model(void)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/tests/models/parakeet-nano-en", golden_source());
    return path;
}

/* A file of the folder's golden/ as it is; the caller gives it to berth_free. */
static inline void *golden_file_of(const char *folder, const char *name, size_t *bytes)
{
    char path[4352];
    snprintf(path, sizeof(path), "%s/golden/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("cannot open %s", path);
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    void *content = berth_alloc(*bytes + 1);
    assert_non_null(content);
    assert_int_equal(fread(content, 1, *bytes, file), *bytes);
    fclose(file);
    return content;
}

static inline void *golden_file(const char *name, size_t *bytes)
{
    return golden_file_of(golden_model(), name, bytes);
}

/* what: "features", "encoder", "projected". count: floats in all. berth_free. */
static inline float *golden_floats(const char *what, int index, size_t *count)
{
    char name[64];
    size_t bytes = 0;
    snprintf(name, sizeof(name), "%s%d.f32", what, index);
    float *values = golden_file(name, &bytes);
    *count = bytes / sizeof(float);
    return values;
}

/* Recording `index` as float32, int16 / 32768. berth_free. */
static inline float *golden_pcm(int index, size_t *samples)
{
    char name[64];
    size_t bytes = 0;
    snprintf(name, sizeof(name), "pcm%d.s16", index);
    int16_t *stored = golden_file(name, &bytes);
    *samples = bytes / sizeof(int16_t);
    float *pcm = berth_alloc(*samples * sizeof(float));
    assert_non_null(pcm);
    for (size_t i = 0; i < *samples; i++) {
        pcm[i] = (float)stored[i] / 32768.0F;
    }
    berth_free(stored);
    return pcm;
}

static inline void golden_ints(json_t *entry, const char *key, int32_t *out, size_t *count)
{
    json_t *list = json_object_get(entry, key);
    *count = json_array_size(list);
    assert_in_range(*count, 0, GOLDEN_TOKENS_MAX);
    for (size_t i = 0; i < *count; i++) {
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
}

/* Text, tokens, frames and durations of recording `index`, as the model of that folder hears it. */
static inline void golden_read_of(const char *folder, int index, struct golden *out)
{
    size_t bytes = 0;
    char *text = golden_file_of(folder, "golden.json", &bytes);
    json_t *root = json_loadb(text, bytes, 0, NULL);
    json_t *entry = json_array_get(root, (size_t)index);
    assert_non_null(entry);
    memset(out, 0, sizeof(*out));
    out->samples = (size_t)json_integer_value(json_object_get(entry, "samples"));
    snprintf(out->text, sizeof(out->text), "%s", json_string_value(json_object_get(entry, "text")));
    snprintf(out->reference, sizeof(out->reference), "%s",
             json_string_value(json_object_get(entry, "reference")));
    golden_ints(entry, "tokens", out->tokens, &out->token_count);
    golden_ints(entry, "frames", out->frames, &out->token_count);
    golden_ints(entry, "durations", out->durations, &out->token_count);
    json_decref(root);
    berth_free(text);
}

static inline void golden_read(int index, struct golden *out)
{
    golden_read_of(golden_model(), index, out);
}

#endif
