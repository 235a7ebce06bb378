/* spec.c - the parsed config of one version of a model: all in one arena, counted, unchanging. */
#include <string.h>

#include "model/model.h"

#define ARENA_BYTES_MAX ((size_t)64 << 20) /* a config comes from outside */

static const struct berth_io *find_io(const struct berth_io *items, size_t count,
                                      const char *name);

struct berth_model_spec *berth_spec_create(void)
{
    struct berth_model_spec *spec = berth_alloc(sizeof(*spec));
    if (spec != NULL) {
        atomic_init(&spec->references, 1);
        berth_arena_init(&spec->arena, ARENA_BYTES_MAX);
    }
    return spec;
}

struct berth_model_spec *berth_spec_retain(struct berth_model_spec *spec)
{
    atomic_fetch_add_explicit(&spec->references, 1, memory_order_relaxed);
    return spec;
}

void berth_spec_release(struct berth_model_spec *spec)
{
    if (spec == NULL ||
        atomic_fetch_sub_explicit(&spec->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    berth_arena_finish(&spec->arena);
    berth_free(spec);
}

const char *berth_spec_parameter(const struct berth_model_spec *spec, const char *key,
                                 const char *fallback)
{
    for (size_t i = 0; i < spec->parameter_count; i++) {
        if (strcmp(spec->parameters[i].key, key) == 0) {
            return spec->parameters[i].value;
        }
    }
    return fallback;
}

const struct berth_io *berth_spec_input(const struct berth_model_spec *spec, const char *name)
{
    return find_io(spec->inputs, spec->input_count, name);
}

const struct berth_io *berth_spec_output(const struct berth_model_spec *spec, const char *name)
{
    return find_io(spec->outputs, spec->output_count, name);
}

bool berth_device_is_gpu(const char *device)
{
    return device != NULL && strncmp(device, "cuda:", 5) == 0;
}

bool berth_spec_names_kind(const struct berth_model_spec *spec, enum berth_instance_kind kind)
{
    for (size_t i = 0; i < spec->group_count; i++) {
        if (spec->groups[i].kind == kind) {
            return true;
        }
    }
    return false;
}

bool berth_spec_suits_gpu(const struct berth_model_spec *spec)
{
    return spec->group_count == 0 || berth_spec_names_kind(spec, BERTH_KIND_GPU) ||
           berth_spec_names_kind(spec, BERTH_KIND_AUTO);
}

uint32_t berth_spec_instances(const struct berth_model_spec *spec, bool gpu, uint32_t fallback)
{
    uint64_t count = 0;
    for (size_t i = 0; i < spec->group_count; i++) {
        enum berth_instance_kind kind = spec->groups[i].kind;
        if (kind == (gpu ? BERTH_KIND_GPU : BERTH_KIND_CPU) || kind == BERTH_KIND_AUTO) {
            count += spec->groups[i].count;
        }
    }
    if (count == 0) {
        return fallback;
    }
    return count < BERTH_INSTANCES_MAX ? (uint32_t)count : BERTH_INSTANCES_MAX;
}

static const struct berth_io *find_io(const struct berth_io *items, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(items[i].name, name) == 0) {
            return &items[i];
        }
    }
    return NULL;
}
