/* model.c - one entry of the catalogue. A catalogue may hold a million, so what only a used model
 * needs (histograms, a reason) is made when it is first needed. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {
#define BERTH_MODEL_STATE_NAME(name) #name,
    BERTH_MODEL_STATES(BERTH_MODEL_STATE_NAME)
#undef BERTH_MODEL_STATE_NAME
};

static _Atomic uint64_t id_last;

const char *berth_model_state_name(enum berth_model_state state)
{
    BERTH_ASSERT((unsigned)state < BERTH_COUNT_OF(state_names));
    return state_names[state];
}

struct berth_model *berth_model_create(const char *name, uint64_t version)
{
    struct berth_model *model = berth_alloc(sizeof(*model));
    if (model == NULL) {
        return NULL;
    }
    model->name = berth_strdup(name);
    if (model->name == NULL) {
        berth_free(model);
        return NULL;
    }
    atomic_init(&model->references, 1);
    model->id = atomic_fetch_add_explicit(&id_last, 1, memory_order_relaxed) + 1;
    model->version = version;
    atomic_init(&model->state, BERTH_STATE_COLD);
    pthread_mutex_init(&model->mu, NULL);
    return model;
}

struct berth_model *berth_model_retain(struct berth_model *model)
{
    atomic_fetch_add_explicit(&model->references, 1, memory_order_relaxed);
    return model;
}

void berth_model_release(struct berth_model *model)
{
    if (model == NULL ||
        atomic_fetch_sub_explicit(&model->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    pthread_mutex_destroy(&model->mu);
    berth_spec_release(model->spec);
    berth_free(atomic_load(&model->stats.detail));
    berth_free(model->reason);
    berth_free(model->fallback);
    berth_free((char *)model->name);
    berth_free(model);
}

const struct berth_model_detail *berth_model_detail(struct berth_model *model)
{
    return atomic_load_explicit(&model->stats.detail, memory_order_acquire);
}

struct berth_model_detail *berth_model_detail_make(struct berth_model *model)
{
    struct berth_model_detail *detail =
        atomic_load_explicit(&model->stats.detail, memory_order_relaxed);
    if (detail == NULL) {
        detail = berth_alloc(sizeof(*detail)); /* all counts zero: nothing to init */
        atomic_store_explicit(&model->stats.detail, detail, memory_order_release);
    }
    return detail;
}

struct berth_model_spec *berth_model_spec(struct berth_model *model)
{
    pthread_mutex_lock(&model->mu);
    struct berth_model_spec *spec = model->spec != NULL ? berth_spec_retain(model->spec) : NULL;
    pthread_mutex_unlock(&model->mu);
    return spec;
}

void berth_model_set_spec(struct berth_model *model, struct berth_model_spec *spec)
{
    pthread_mutex_lock(&model->mu);
    struct berth_model_spec *spec_old = model->spec;
    model->spec = spec;
    pthread_mutex_unlock(&model->mu);
    berth_spec_release(spec_old);
}

enum berth_model_state berth_model_state(const struct berth_model *model)
{
    return (enum berth_model_state)atomic_load(&model->state);
}

void berth_model_set_state(struct berth_model *model, enum berth_model_state state,
                           const char *reason)
{
    /* Without memory for it there is no reason to tell, but the state is right. */
    char *reason_new = reason != NULL && reason[0] != '\0' ? berth_strdup(reason) : NULL;
    pthread_mutex_lock(&model->mu);
    char *reason_old = model->reason;
    model->reason = reason_new;
    atomic_store(&model->state, (int)state);
    pthread_mutex_unlock(&model->mu);
    berth_free(reason_old);
}

void berth_model_set_place(struct berth_model *model, const char *device, const char *fallback)
{
    char *fallback_new = fallback != NULL ? berth_strdup(fallback) : NULL; /* NULL: nothing told */
    pthread_mutex_lock(&model->mu);
    char *fallback_old = model->fallback;
    model->fallback = fallback_new;
    atomic_store(&model->device, device);
    pthread_mutex_unlock(&model->mu);
    berth_free(fallback_old);
}

const char *berth_model_place(struct berth_model *model, char *fallback, size_t bytes)
{
    pthread_mutex_lock(&model->mu);
    const char *device = atomic_load(&model->device);
    snprintf(fallback, bytes, "%s", model->fallback != NULL ? model->fallback : "");
    pthread_mutex_unlock(&model->mu);
    return device;
}

void berth_model_reason(struct berth_model *model, char *out, size_t bytes)
{
    pthread_mutex_lock(&model->mu);
    snprintf(out, bytes, "%s", model->reason != NULL ? model->reason : "");
    pthread_mutex_unlock(&model->mu);
}
