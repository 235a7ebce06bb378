/* fuzz_pbtxt.c - any bytes as a model's config, as text or (after a first byte 'J') as JSON. What
 * is accepted is written as Triton's JSON, which must be accepted and written the same again. */
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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    bool json = length > 0 && bytes[0] == 'J';
    const char *text = (const char *)bytes + (json ? 1 : 0);
    struct berth_model_spec *spec = read_config(text, length - (json ? 1 : 0), json);
    if (spec == NULL) {
        return 0;
    }
    char *first = berth_spec_config_json(spec, BERTH_KIND_AUTO);
    BERTH_ASSERT(first != NULL);
    struct berth_model_spec *again = read_config(first, strlen(first), true);
    if (again == NULL) {
        /* Defaults written out may go past the limit; a batch size of 0 that was left open before
         * may now be in conflict with preferred sizes and warm-ups. */
        BERTH_ASSERT(strlen(first) > (1 << 20) || !spec->batch_size_set);
    } else {
        char *second = berth_spec_config_json(again, BERTH_KIND_AUTO);
        BERTH_ASSERT(second != NULL && strcmp(first, second) == 0);
        berth_free(second);
    }
    berth_free(first);
    berth_spec_release(again);
    berth_spec_release(spec);
    return 0;
}
