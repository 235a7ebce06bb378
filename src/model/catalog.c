/* catalog.c - the catalogue: a hash table of names, each with its versions in rising order.
 *
 * Names are never removed: what has left the repository is merely not listed. One mutex is enough,
 * since a lookup holds it for one chain of about one name. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS_FIRST 64

/* All versions of one name. */
struct entry {
    struct entry *next; /* in its bucket */
    uint64_t hash;
    const char *name;            /* models[0]'s */
    struct berth_model **models; /* owned, each retained; by rising version */
    size_t count;
    size_t capacity;
};

struct berth_catalog {
    pthread_mutex_t mu;
    struct entry **buckets; /* guarded by mu, as all below; a power of two of them */
    size_t bucket_count;
    size_t entry_count;
    size_t model_count;
};

static uint64_t hash_of(const char *name);
static struct entry *entry_find(const struct berth_catalog *catalog, const char *name,
                                uint64_t hash);
static void entry_destroy(struct entry *entry);
static void buckets_grow(struct berth_catalog *catalog);
static struct berth_model *model_find(const struct entry *entry, uint64_t version);
static struct berth_model *model_add(struct berth_catalog *catalog,
                                     struct berth_model_spec *spec);
static bool entry_insert(struct entry *entry, struct berth_model *model);
static int compare_models(const void *a, const void *b);

enum berth_code berth_catalog_create(struct berth_catalog **out, struct berth_err *err)
{
    struct berth_catalog *catalog = berth_alloc(sizeof(*catalog));
    if (catalog != NULL) {
        catalog->buckets = berth_alloc(BUCKETS_FIRST * sizeof(*catalog->buckets));
    }
    if (catalog == NULL || catalog->buckets == NULL) {
        berth_free(catalog);
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the catalogue");
    }
    catalog->bucket_count = BUCKETS_FIRST;
    pthread_mutex_init(&catalog->mu, NULL);
    *out = catalog;
    return BERTH_OK;
}

void berth_catalog_destroy(struct berth_catalog *catalog)
{
    if (catalog == NULL) {
        return;
    }
    for (size_t i = 0; i < catalog->bucket_count; i++) {
        struct entry *entry = catalog->buckets[i];
        while (entry != NULL) {
            struct entry *next = entry->next;
            entry_destroy(entry);
            entry = next;
        }
    }
    pthread_mutex_destroy(&catalog->mu);
    berth_free(catalog->buckets);
    berth_free(catalog);
}

struct berth_model *berth_catalog_find(struct berth_catalog *catalog, const char *name,
                                       uint64_t version)
{
    struct berth_model *model = NULL;
    uint64_t hash = hash_of(name);
    pthread_mutex_lock(&catalog->mu);
    const struct entry *entry = entry_find(catalog, name, hash);
    if (entry != NULL) {
        model = model_find(entry, version);
    }
    if (model != NULL) {
        berth_model_retain(model);
    }
    pthread_mutex_unlock(&catalog->mu);
    return model;
}

bool berth_catalog_knows(struct berth_catalog *catalog, const char *name)
{
    uint64_t hash = hash_of(name);
    pthread_mutex_lock(&catalog->mu);
    bool known = entry_find(catalog, name, hash) != NULL;
    pthread_mutex_unlock(&catalog->mu);
    return known;
}

enum berth_code berth_catalog_put(struct berth_catalog *catalog, struct berth_model_spec *spec,
                                  struct berth_model **out, struct berth_err *err)
{
    if (spec->version == 0) {
        return berth_fail(err, BERTH_INVALID, "model %s: versions count from 1", spec->name);
    }
    pthread_mutex_lock(&catalog->mu);
    struct berth_model *model = model_add(catalog, spec);
    if (model != NULL) {
        berth_model_retain(model);
    }
    pthread_mutex_unlock(&catalog->mu);
    if (model == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for model %s", spec->name);
    }
    berth_model_set_spec(model, spec);
    *out = model;
    return BERTH_OK;
}

bool berth_catalog_list(struct berth_catalog *catalog, struct berth_model ***out, size_t *count)
{
    size_t filled = 0;
    pthread_mutex_lock(&catalog->mu);
    struct berth_model **models = berth_alloc((catalog->model_count + 1) * sizeof(*models));
    for (size_t i = 0; models != NULL && i < catalog->bucket_count; i++) {
        for (const struct entry *entry = catalog->buckets[i]; entry != NULL; entry = entry->next) {
            for (size_t j = 0; j < entry->count; j++) {
                models[filled++] = berth_model_retain(entry->models[j]);
            }
        }
    }
    pthread_mutex_unlock(&catalog->mu);
    if (models == NULL) {
        return false;
    }
    qsort(models, filled, sizeof(*models), compare_models);
    *out = models;
    *count = filled;
    return true;
}

bool berth_catalog_versions(struct berth_catalog *catalog, const char *name,
                            struct berth_model ***out, size_t *count)
{
    uint64_t hash = hash_of(name);
    pthread_mutex_lock(&catalog->mu);
    const struct entry *entry = entry_find(catalog, name, hash);
    size_t found = entry == NULL ? 0 : entry->count;
    struct berth_model **models = berth_alloc((found + 1) * sizeof(*models));
    for (size_t i = 0; models != NULL && i < found; i++) {
        models[i] = berth_model_retain(entry->models[i]);
    }
    pthread_mutex_unlock(&catalog->mu);
    if (models == NULL) {
        return false;
    }
    *out = models;
    *count = found;
    return true;
}

void berth_models_release(struct berth_model **models, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        berth_model_release(models[i]);
    }
    berth_free(models);
}

/* FNV-1a. Names in the table come from the operator's repository, so no client can choose them. */
static uint64_t hash_of(const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name != '\0'; name++) {
        hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
    }
    return hash;
}

/* From here on mu is held. */
static struct entry *entry_find(const struct berth_catalog *catalog, const char *name,
                                uint64_t hash)
{
    struct entry *entry = catalog->buckets[hash & (catalog->bucket_count - 1)];
    while (entry != NULL && (entry->hash != hash || strcmp(entry->name, name) != 0)) {
        entry = entry->next;
    }
    return entry;
}

static void entry_destroy(struct entry *entry)
{
    for (size_t i = 0; i < entry->count; i++) {
        berth_model_release(entry->models[i]);
    }
    berth_free(entry->models);
    berth_free(entry);
}

/* The listed one of that version, or of any version the newest. An explicit version need not be
 * listed: it may still be running out. */
static struct berth_model *model_find(const struct entry *entry, uint64_t version)
{
    for (size_t i = entry->count; i-- > 0;) {
        struct berth_model *model = entry->models[i];
        if (version == 0 ? atomic_load(&model->listed) : model->version == version) {
            return model;
        }
    }
    return NULL;
}

/* The model of that name and version; a new one has its spec before anyone can find it. NULL: no
 * memory. */
static struct berth_model *model_add(struct berth_catalog *catalog, struct berth_model_spec *spec)
{
    uint64_t hash = hash_of(spec->name);
    struct entry *entry = entry_find(catalog, spec->name, hash);
    struct berth_model *model = entry != NULL ? model_find(entry, spec->version) : NULL;
    if (model != NULL) {
        return model;
    }
    struct entry *made = entry == NULL ? berth_alloc(sizeof(*made)) : NULL;
    struct entry *into = entry != NULL ? entry : made;
    model = berth_model_create(spec->name, spec->version);
    if (into == NULL || model == NULL || !entry_insert(into, model)) {
        berth_model_release(model);
        berth_free(made);
        return NULL;
    }
    model->spec = berth_spec_retain(spec);
    catalog->model_count++;
    if (made != NULL) {
        made->hash = hash;
        made->name = model->name;
        buckets_grow(catalog);
        struct entry **bucket = &catalog->buckets[hash & (catalog->bucket_count - 1)];
        made->next = *bucket;
        *bucket = made;
        catalog->entry_count++;
    }
    return model;
}

static bool entry_insert(struct entry *entry, struct berth_model *model)
{
    if (entry->count == entry->capacity) {
        size_t capacity = entry->capacity == 0 ? 1 : entry->capacity * 2;
        struct berth_model **models =
            berth_resize(entry->models, entry->capacity * sizeof(struct berth_model *),
                         capacity * sizeof(struct berth_model *));
        if (models == NULL) {
            return false;
        }
        entry->models = models;
        entry->capacity = capacity;
    }
    size_t at = entry->count++;
    for (; at > 0 && entry->models[at - 1]->version > model->version; at--) {
        entry->models[at] = entry->models[at - 1];
    }
    entry->models[at] = model;
    return true;
}

/* Twice the buckets once there are as many names. Without memory chains merely grow longer. */
static void buckets_grow(struct berth_catalog *catalog)
{
    size_t count = catalog->bucket_count * 2;
    if (catalog->entry_count < catalog->bucket_count) {
        return;
    }
    struct entry **buckets = berth_alloc(count * sizeof(*buckets));
    if (buckets == NULL) {
        return;
    }
    for (size_t i = 0; i < catalog->bucket_count; i++) {
        struct entry *entry = catalog->buckets[i];
        while (entry != NULL) {
            struct entry *next = entry->next;
            struct entry **bucket = &buckets[entry->hash & (count - 1)];
            entry->next = *bucket;
            *bucket = entry;
            entry = next;
        }
    }
    berth_free(catalog->buckets);
    catalog->buckets = buckets;
    catalog->bucket_count = count;
}

static int compare_models(const void *a, const void *b)
{
    const struct berth_model *left = *(struct berth_model *const *)a;
    const struct berth_model *right = *(struct berth_model *const *)b;
    int order = strcmp(left->name, right->name);
    if (order != 0) {
        return order;
    }
    return (left->version > right->version) - (left->version < right->version);
}
