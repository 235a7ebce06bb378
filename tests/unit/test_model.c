/* Specs, entries, and the catalogue under concurrent look-ups (run this one under TSan too). */
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define MODELS 5000

static struct berth_model_spec *make_spec(const char *name, uint64_t version)
{
    struct berth_model_spec *spec = berth_spec_create();
    if (spec == NULL) {
        return NULL;
    }
    spec->name = berth_arena_strdup(&spec->arena, name);
    spec->version = version;
    if (spec->name == NULL) {
        berth_spec_release(spec);
        return NULL;
    }
    return spec;
}

static struct berth_model *put(struct berth_catalog *catalog, const char *name, uint64_t version)
{
    struct berth_model *model = NULL;
    struct berth_model_spec *spec = make_spec(name, version);
    assert_non_null(spec);
    assert_int_equal(berth_catalog_put(catalog, spec, &model, NULL), BERTH_OK);
    return model;
}

static void specs(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    struct berth_io inputs[] = {{.name = "a"}, {.name = "b"}};
    struct berth_io outputs[] = {{.name = "c"}};
    struct berth_key_value parameters[] = {{"k", "v"}};
    struct berth_model_spec *spec = make_spec("m", 3);
    (void)state;
    spec->inputs = inputs;
    spec->input_count = 2;
    spec->outputs = outputs;
    spec->output_count = 1;
    spec->parameters = parameters;
    spec->parameter_count = 1;
    assert_ptr_equal(berth_spec_input(spec, "b"), &inputs[1]);
    assert_null(berth_spec_input(spec, "c"));
    assert_ptr_equal(berth_spec_output(spec, "c"), &outputs[0]);
    assert_string_equal(berth_spec_parameter(spec, "k", ""), "v");
    assert_null(berth_spec_parameter(spec, "none", NULL));
    berth_spec_retain(spec);
    berth_spec_release(spec);
    berth_spec_release(spec);
    berth_spec_release(NULL);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void instances(void **state)
{
    struct berth_instance_group groups[] = {
        {.kind = BERTH_KIND_CPU, .count = 2},
        {.kind = BERTH_KIND_GPU, .count = 8},
        {.kind = BERTH_KIND_AUTO, .count = 1},
        {.kind = BERTH_KIND_CPU, .count = UINT32_MAX},
    };
    struct berth_model_spec *spec = make_spec("m", 1);
    (void)state;
    assert_int_equal(berth_spec_instances(spec, false, 5), 5);
    assert_int_equal(berth_spec_instances(spec, true, 5), 5);
    assert_true(berth_spec_suits_gpu(spec));
    spec->groups = groups + 1;
    spec->group_count = 1;
    assert_int_equal(berth_spec_instances(spec, false, 5), 5);
    assert_int_equal(berth_spec_instances(spec, true, 5), 8);
    assert_true(berth_spec_suits_gpu(spec));
    spec->groups = groups;
    spec->group_count = 3;
    assert_int_equal(berth_spec_instances(spec, false, 5), 3);
    assert_int_equal(berth_spec_instances(spec, true, 5), 9);
    assert_true(berth_spec_names_kind(spec, BERTH_KIND_AUTO));
    spec->group_count = 4;
    assert_int_equal(berth_spec_instances(spec, false, 5), BERTH_INSTANCES_MAX);
    spec->group_count = 1;
    assert_int_equal(berth_spec_instances(spec, true, 5), 5);
    assert_false(berth_spec_suits_gpu(spec));
    assert_false(berth_spec_names_kind(spec, BERTH_KIND_GPU));
    berth_spec_release(spec);
}

static void a_model_keeps_state_and_reason(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    struct berth_model *model = berth_model_create("m", 2);
    char reason[8];
    (void)state;
    assert_int_equal(berth_model_state(model), BERTH_STATE_COLD);
    assert_string_equal(berth_model_state_name(BERTH_STATE_WARM), "WARM");
    assert_null(berth_model_spec(model));
    berth_model_set_state(model, BERTH_STATE_FAILED, "no such file");
    assert_int_equal(berth_model_state(model), BERTH_STATE_FAILED);
    berth_model_reason(model, reason, sizeof(reason));
    assert_string_equal(reason, "no such");
    berth_model_set_state(model, BERTH_STATE_WARM, NULL);
    berth_model_reason(model, reason, sizeof(reason));
    assert_string_equal(reason, "");
    assert_null(berth_model_detail(model));
    berth_mem_fail_at(1, false);
    assert_null(berth_model_detail_make(model));
    berth_mem_fail_at(0, false);
    struct berth_model_detail *detail = berth_model_detail_make(model);
    berth_hist_record(&detail->run_us, 7);
    assert_ptr_equal(berth_model_detail_make(model), detail);
    assert_ptr_equal(berth_model_detail(model), detail);
    berth_model_set_spec(model, make_spec("m", 2));
    struct berth_model_spec *spec = berth_model_spec(model);
    berth_model_set_spec(model, make_spec("m", 2));
    assert_string_equal(spec->name, "m"); /* ours until we release it */
    berth_spec_release(spec);
    berth_model_release(model);
    berth_model_release(NULL);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void version_0_is_the_newest_listed(void **state)
{
    static const uint64_t versions[] = {2, 10, 1, 7};
    struct berth_catalog *catalog;
    struct berth_model *models[4];
    (void)state;
    assert_int_equal(berth_catalog_create(&catalog, NULL), BERTH_OK);
    for (size_t i = 0; i < 4; i++) {
        models[i] = put(catalog, "m", versions[i]);
    }
    assert_null(berth_catalog_find(catalog, "m", 0));
    assert_true(berth_catalog_knows(catalog, "m"));
    assert_false(berth_catalog_knows(catalog, "n"));
    atomic_store(&models[0]->listed, true);
    atomic_store(&models[3]->listed, true);
    struct berth_model *found = berth_catalog_find(catalog, "m", 0);
    assert_int_equal(found->version, 7);
    berth_model_release(found);
    found = berth_catalog_find(catalog, "m", 10);
    assert_ptr_equal(found, models[1]);
    berth_model_release(found);
    assert_null(berth_catalog_find(catalog, "m", 3));
    assert_null(berth_catalog_find(catalog, "", 0));
    struct berth_model_spec *spec = make_spec("m", 0);
    assert_int_equal(berth_catalog_put(catalog, spec, &found, NULL), BERTH_INVALID);
    berth_spec_release(spec); /* still ours */
    struct berth_model *again = put(catalog, "m", 7);
    assert_ptr_equal(again, models[3]);
    berth_model_release(again);
    berth_catalog_destroy(catalog);
    berth_catalog_destroy(NULL);
    assert_int_equal(models[1]->version, 10); /* its holders keep it */
    for (size_t i = 0; i < 4; i++) {
        berth_model_release(models[i]);
    }
}

static void many_models_are_found_and_sorted(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    struct berth_catalog *catalog;
    struct berth_model **list;
    char name[32];
    size_t count;
    (void)state;
    assert_int_equal(berth_catalog_create(&catalog, NULL), BERTH_OK);
    for (unsigned i = 0; i < MODELS; i++) {
        snprintf(name, sizeof(name), "model-%u", i * 7919 % MODELS);
        struct berth_model *model = put(catalog, name, 1 + i % 2);
        assert_int_equal(model->id > 0, 1);
        berth_model_release(model);
    }
    assert_true((berth_mem_bytes_live() - live) / MODELS < 6000); /* so that a million fit */
    for (unsigned i = 0; i < MODELS; i++) {
        snprintf(name, sizeof(name), "model-%u", i);
        assert_true(berth_catalog_knows(catalog, name));
    }
    assert_true(berth_catalog_list(catalog, &list, &count));
    assert_int_equal(count, MODELS);
    for (size_t i = 0; i < count; i++) {
        assert_true(i == 0 || strcmp(list[i - 1]->name, list[i]->name) < 0);
    }
    berth_models_release(list, count);
    berth_model_release(put(catalog, "model-7", 9));
    berth_model_release(put(catalog, "model-7", 4));
    assert_true(berth_catalog_versions(catalog, "model-7", &list, &count));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(list[i]->name, "model-7");
        assert_true(i == 0 || list[i - 1]->version < list[i]->version);
    }
    berth_models_release(list, count);
    assert_true(berth_catalog_versions(catalog, "model", &list, &count));
    assert_int_equal(count, 0);
    berth_models_release(list, count);
    berth_catalog_destroy(catalog);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void memory_failing(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    bool done = false;
    (void)state;
    for (uint64_t at = 1; !done; at++) {
        struct berth_catalog *catalog = NULL;
        struct berth_model *model = NULL;
        struct berth_model_spec *spec = NULL;
        struct berth_model **list;
        size_t count;
        berth_mem_fail_at(at, false);
        enum berth_code code = berth_catalog_create(&catalog, NULL);
        for (uint64_t version = 1; version < 4 && code == BERTH_OK; version++) {
            spec = make_spec("m", version);
            code = BERTH_UNAVAILABLE;
            if (spec != NULL) {
                code = berth_catalog_put(catalog, spec, &model, NULL);
            }
            if (code == BERTH_OK) {
                berth_model_release(model);
                spec = NULL;
            }
        }
        if (code == BERTH_OK && berth_catalog_list(catalog, &list, &count)) {
            assert_int_equal(count, 3);
            berth_models_release(list, count);
            done = true;
        }
        berth_mem_fail_at(0, false);
        berth_spec_release(spec);
        berth_catalog_destroy(catalog);
        assert_int_equal(berth_mem_bytes_live(), live);
        assert_true(at < 50);
    }
}

struct finder {
    struct berth_catalog *catalog;
    atomic_bool stop;
    size_t found;
};

static void *find_until_stopped(void *context)
{
    struct finder *finder = context;
    char name[32];
    for (unsigned i = 0; !atomic_load(&finder->stop) || i < 1000; i++) {
        snprintf(name, sizeof(name), "model-%u", i % 500);
        struct berth_model *model = berth_catalog_find(finder->catalog, name, 0);
        if (model == NULL) {
            continue;
        }
        struct berth_model_spec *spec = berth_model_spec(model);
        assert_string_equal(spec->name, name);
        finder->found++;
        berth_spec_release(spec);
        berth_model_release(model);
    }
    return NULL;
}

static void look_ups_while_models_are_put(void **state)
{
    struct berth_catalog *catalog;
    pthread_t threads[2];
    struct finder finders[2];
    char name[32];
    (void)state;
    assert_int_equal(berth_catalog_create(&catalog, NULL), BERTH_OK);
    for (size_t i = 0; i < 2; i++) {
        finders[i] = (struct finder){.catalog = catalog};
        assert_int_equal(pthread_create(&threads[i], NULL, find_until_stopped, &finders[i]), 0);
    }
    for (unsigned i = 0; i < 2000; i++) {
        snprintf(name, sizeof(name), "model-%u", i % 500);
        struct berth_model *model = put(catalog, name, 1 + i / 1000);
        atomic_store(&model->listed, true);
        berth_model_set_state(model, BERTH_STATE_FAILED, "for a while");
        berth_model_release(model);
    }
    for (size_t i = 0; i < 2; i++) {
        atomic_store(&finders[i].stop, true);
        pthread_join(threads[i], NULL);
        assert_true(finders[i].found > 0);
    }
    berth_catalog_destroy(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),
        cmocka_unit_test(instances),
        cmocka_unit_test(a_model_keeps_state_and_reason),
        cmocka_unit_test(version_0_is_the_newest_listed),
        cmocka_unit_test(many_models_are_found_and_sorted),
        cmocka_unit_test(memory_failing),
        cmocka_unit_test(look_ups_while_models_are_put),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
