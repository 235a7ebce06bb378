/* engine.c - the table of engines: the only place that knows the list.
 *
 * Which engines are in a build is decided by the files meson.build names; each brings its macro.
 */
#include "engine/engine.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engines.h"

static const struct berth_engine_ops *const engines[] = {
    &berth_engine_null,
    &berth_engine_parakeet,
#if BERTH_ENGINE_ONNX
    &berth_engine_onnx,
#endif
#if BERTH_ENGINE_WHISPER
    &berth_engine_whisper,
#endif
};

static size_t started_count; /* engines[0..] that were started; the composition root's thread */

static atomic_bool lost;
static _Thread_local const atomic_bool *load_unwanted;

struct berth_step_event *berth_step_event_add(struct berth_step_result *out, uint32_t slot)
{
    BERTH_ASSERT(out->event_count < BERTH_STEP_EVENTS_MAX);
    struct berth_step_event *event = &out->events[out->event_count++];
    *event = (struct berth_step_event){.slot = slot};
    return event;
}

const atomic_bool *berth_engine_load_unwanted(void)
{
    return load_unwanted;
}

void berth_engine_load_set(const atomic_bool *unwanted)
{
    load_unwanted = unwanted;
}

const struct berth_engine_ops *berth_engine_find(const char *name)
{
    for (size_t i = 0; name != NULL && i < BERTH_COUNT_OF(engines); i++) {
        if (strcmp(engines[i]->name, name) == 0) {
            return engines[i];
        }
    }
    return NULL;
}

enum berth_code berth_engines_start(const struct berth_engine_env *env, struct berth_err *err)
{
    for (; started_count < BERTH_COUNT_OF(engines); started_count++) {
        if (engines[started_count]->start == NULL) {
            continue;
        }
        enum berth_code code = engines[started_count]->start(env, err);
        if (code != BERTH_OK) {
            berth_engines_finish();
            return code;
        }
    }
    return BERTH_OK;
}

void berth_engines_finish(void)
{
    while (started_count > 0) {
        started_count--;
        if (engines[started_count]->finish != NULL) {
            engines[started_count]->finish();
        }
    }
}

void berth_engines_lose(void)
{
    atomic_store(&lost, true);
}

bool berth_engines_lost(void)
{
    return atomic_load(&lost);
}

const char *berth_engine_name(size_t index)
{
    return index < BERTH_COUNT_OF(engines) ? engines[index]->name : NULL;
}
