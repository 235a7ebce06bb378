/* fuzz_pbtxt.c - any bytes as a model's config, as text or (after a first byte 'J') as JSON. What
 * is accepted is written again, both as a worker process gets it and as it is shown, and both must
 * be accepted and mean the same. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/config_tree.h"
#include "repo/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static struct berth_model_spec *read_config(const char *text, size_t length, bool json)
{
    struct berth_model_config config = {
        .text = text, .length = length, .label = "fuzz", .json = json, .quiet = true};
    struct berth_version_policy policy;
    struct berth_err err = {0};
    struct berth_model_spec *spec = berth_spec_create();
    BERTH_ASSERT(spec != NULL);
    spec->name = "m";
    if (berth_model_config_read(&config, spec, &policy, &err) != BERTH_OK) {
        BERTH_ASSERT(err.code != BERTH_OK && err.msg[0] != '\0');
        berth_spec_release(spec);
        return NULL;
    }
    return spec;
}

/* The spec that its own config gives. NULL where that became too long, all defaults being in it. */
static struct berth_model_spec *read_given(const struct berth_model_spec *spec)
{
    char *given = berth_spec_config_given(spec);
    BERTH_ASSERT(given != NULL);
    struct berth_model_spec *again = read_config(given, strlen(given), true);
    BERTH_ASSERT(again != NULL || strlen(given) > (1 << 20));
    berth_free(given);
    return again;
}

static void compare_dynamic(const struct berth_dynamic_batching *one,
                            const struct berth_dynamic_batching *other)
{
    size_t bytes = one->preferred_count * sizeof(one->preferred[0]);
    BERTH_ASSERT(one->preferred_count == other->preferred_count);
    BERTH_ASSERT(memcmp(one->preferred, other->preferred, bytes) == 0);
    BERTH_ASSERT(one->delay_us_max == other->delay_us_max);
    BERTH_ASSERT(one->preserve_ordering == other->preserve_ordering);
    BERTH_ASSERT(one->priority_levels == other->priority_levels);
    BERTH_ASSERT(one->priority_level_default == other->priority_level_default);
    for (size_t i = 0; i < BERTH_PRIORITY_MAX; i++) {
        const struct berth_queue_policy *left = &one->policies[i], *right = &other->policies[i];
        BERTH_ASSERT(left->timeout_action == right->timeout_action);
        BERTH_ASSERT(left->timeout_us_default == right->timeout_us_default);
        BERTH_ASSERT(left->timeout_override == right->timeout_override);
        BERTH_ASSERT(left->count_max == right->count_max);
    }
}

static void compare(const struct berth_model_spec *spec, const struct berth_model_spec *again)
{
    char *texts[4] = {berth_spec_config_json(spec, BERTH_KIND_AUTO),
                      berth_spec_config_json(again, BERTH_KIND_AUTO),
                      berth_spec_config_given(spec), berth_spec_config_given(again)};
    for (size_t i = 0; i < 4; i += 2) {
        BERTH_ASSERT(texts[i] != NULL && texts[i + 1] != NULL);
        BERTH_ASSERT(strcmp(texts[i], texts[i + 1]) == 0);
        berth_free(texts[i]);
        berth_free(texts[i + 1]);
    }
    BERTH_ASSERT(spec->batch_size_set == again->batch_size_set);
    BERTH_ASSERT(spec->batching == again->batching && spec->batching_set == again->batching_set);
    compare_dynamic(&spec->dynamic, &again->dynamic);
    BERTH_ASSERT(spec->group_count == again->group_count);
    BERTH_ASSERT(spec->parameter_count == again->parameter_count);
    BERTH_ASSERT(spec->warmup_count == again->warmup_count);
    for (size_t i = 0; i < spec->warmup_count; i++) {
        BERTH_ASSERT(spec->warmups[i].input_count == again->warmups[i].input_count);
        BERTH_ASSERT(spec->warmups[i].batch_size == again->warmups[i].batch_size);
    }
}

/* What is shown reads as a config too, and shows the same. What describe may complete is shown as
 * if it had been written: a batch size that was left open, as the 0 it still is, may then be in
 * conflict with preferred sizes and warm-ups. */
static void read_shown(const struct berth_model_spec *spec)
{
    char *shown = berth_spec_config_json(spec, BERTH_KIND_AUTO);
    struct berth_model_spec *again = read_config(shown, strlen(shown), true);
    BERTH_ASSERT(again != NULL || strlen(shown) > (1 << 20) || !spec->batch_size_set);
    if (again != NULL) {
        char *second = berth_spec_config_json(again, BERTH_KIND_AUTO);
        BERTH_ASSERT(second != NULL && strcmp(shown, second) == 0);
        berth_free(second);
    }
    berth_free(shown);
    berth_spec_release(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    bool json = length > 0 && bytes[0] == 'J';
    const char *text = (const char *)bytes + (json ? 1 : 0);
    struct berth_model_spec *spec = read_config(text, length - (json ? 1 : 0), json);
    if (spec == NULL) {
        return 0;
    }
    struct berth_model_spec *again = read_given(spec);
    if (again != NULL) {
        compare(spec, again);
    }
    read_shown(spec);
    berth_spec_release(again);
    berth_spec_release(spec);
    return 0;
}
