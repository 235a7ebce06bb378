/* test_null.c - the null engine: describe, echo, errors, steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/engine.h"

static struct berth_slabs *slabs;

static int open_slabs(void **state)
{
    struct berth_err err = {0};
    struct berth_slabs_options options = {.bytes_budget = 1 << 24, .bytes_pool_max = 1 << 20};
    return berth_slabs_create(&options, &slabs, &err) == BERTH_OK ? 0 : -1;
}

static int close_slabs(void **state)
{
    berth_slabs_destroy(slabs);
    assert_int_equal(berth_mem_bytes_live(), 0);
    return 0;
}

static const struct berth_engine_ops *null_engine(void)
{
    const struct berth_engine_ops *engine = berth_engine_find("null");
    assert_non_null(engine);
    return engine;
}

static struct berth_model_spec *spec_with(const char *key, const char *value)
{
    struct berth_model_spec *spec = berth_spec_create();
    assert_non_null(spec);
    spec->name = "n";
    spec->engine = "null";
    spec->batch_size_max = 4;
    if (key != NULL) {
        spec->parameters = berth_arena_alloc(&spec->arena, sizeof(*spec->parameters));
        spec->parameters[0] = (struct berth_key_value){.key = key, .value = value};
        spec->parameter_count = 1;
    }
    return spec;
}

static struct berth_request *request_of(const void *bytes, size_t length)
{
    struct berth_err err = {0};
    struct berth_request *request = berth_request_create(slabs, 1 << 16);
    assert_non_null(request);
    request->inputs = berth_arena_alloc(&request->arena, sizeof(*request->inputs));
    request->inputs[0] = (struct berth_tensor){.name = "INPUT0", .dtype = BERTH_DTYPE_FP32,
                                               .rank = 2, .dims = {1, (int64_t)(length / 4)}};
    request->input_count = 1;
    if (length > 0) {
        assert_int_equal(berth_slabs_take(slabs, length, &request->body, &err), BERTH_OK);
        memcpy(berth_slabs_pointer(slabs, &request->body), bytes, length);
        request->inputs[0].range = request->body;
    }
    return request;
}

static void engines_are_found(void **state)
{
    assert_null(berth_engine_find("none"));
    assert_null(berth_engine_find(NULL));
    assert_string_equal(berth_engine_name(0), "null");
    size_t count = 0;
    for (; berth_engine_name(count) != NULL; count++) {
        assert_string_equal(berth_engine_find(berth_engine_name(count))->name,
                            berth_engine_name(count));
    }
    assert_null(berth_engine_name(count + 1));
}

static void describe_completes(void **state)
{
    struct berth_err err = {0};
    struct berth_model_spec *spec = spec_with(NULL, NULL);
    assert_int_equal(null_engine()->describe(spec, &err), BERTH_OK);
    assert_int_equal(spec->input_count, 1);
    assert_string_equal(spec->inputs[0].name, "INPUT0");
    assert_string_equal(spec->outputs[0].name, "OUTPUT0");
    assert_int_equal(spec->outputs[0].dtype, BERTH_DTYPE_FP32);
    assert_int_equal(spec->run_mode, BERTH_RUN_EXECUTE);
    assert_true(spec->completed);
    berth_spec_release(spec);
    spec = spec_with("steps", "3");
    assert_int_equal(null_engine()->describe(spec, &err), BERTH_OK);
    assert_int_equal(spec->run_mode, BERTH_RUN_STEPS);
    berth_spec_release(spec);
}

static void describe_refuses(void **state)
{
    static const char *const keys[] = {"sleep_ms", "sleep_ms_load", "steps", "step_ms", "bytes"};
    static const char *const values[] = {"-1", "x", "", "1x", "99999999999999999999"};
    struct berth_err err = {0};
    for (size_t k = 0; k < 5; k++) {
        for (size_t v = 0; v < 5; v++) {
            struct berth_model_spec *spec = spec_with(keys[k], values[v]);
            assert_int_equal(null_engine()->describe(spec, &err), BERTH_INVALID);
            assert_non_null(strstr(err.msg, keys[k]));
            berth_spec_release(spec);
        }
    }
    struct berth_model_spec *spec = spec_with(NULL, NULL);
    struct berth_io input = {.name = "A", .dtype = BERTH_DTYPE_INT8, .rank = 1, .dims = {-1}};
    struct berth_io output = {.name = "B", .dtype = BERTH_DTYPE_INT16, .rank = 1, .dims = {-1}};
    spec->inputs = &input;
    spec->outputs = &output;
    spec->input_count = 1;
    spec->output_count = 1;
    assert_int_equal(null_engine()->describe(spec, &err), BERTH_INVALID); /* types differ */
    spec->output_count = 2;
    assert_int_equal(null_engine()->describe(spec, &err), BERTH_INVALID); /* nothing to echo */
    berth_spec_release(spec);
}

struct loaded {
    struct berth_model_spec *spec;
    struct berth_engine_model *model;
    struct berth_instance *instance;
};

static void load(struct loaded *loaded, const char *key, const char *value)
{
    struct berth_err err = {0};
    struct berth_span none = {.fd = -1};
    loaded->spec = spec_with(key, value);
    assert_int_equal(null_engine()->describe(loaded->spec, &err), BERTH_OK);
    assert_int_equal(null_engine()->model_attach(loaded->spec, none, &loaded->model, &err),
                     BERTH_OK);
    assert_int_equal(null_engine()->instance_create(loaded->model, 0, &loaded->instance, &err),
                     BERTH_OK);
}

static void unload(struct loaded *loaded)
{
    null_engine()->instance_destroy(loaded->instance);
    null_engine()->model_detach(loaded->model);
    berth_spec_release(loaded->spec);
}

static void echo_is_exact(void **state)
{
    struct berth_err err = {0};
    struct loaded loaded;
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    load(&loaded, NULL, NULL);
    struct berth_row rows[2] = {{.request = request_of(values, sizeof(values))},
                                {.request = request_of(NULL, 0)}};
    for (size_t i = 0; i < 2; i++) {
        rows[i].part = berth_part_create(rows[i].request);
    }
    struct berth_batch batch = {.rows = rows, .row_count = 2, .batch_rows = 2};
    assert_int_equal(null_engine()->execute(loaded.instance, &batch, &err), BERTH_OK);
    const struct berth_tensor *output = berth_part_find(rows[0].part, "OUTPUT0");
    assert_non_null(output);
    assert_int_equal(output->dims[1], 8);
    assert_memory_equal(berth_slabs_pointer(slabs, &output->range), values, sizeof(values));
    assert_int_equal(berth_part_find(rows[1].part, "OUTPUT0")->range.length, 0);
    for (size_t i = 0; i < 2; i++) {
        berth_part_destroy(rows[i].part);
        berth_request_release(rows[i].request);
    }
    unload(&loaded);
}

/* One row fails by its parameter, one is cancelled, one names an output that is not there. */
static void rows_fail_alone(void **state)
{
    struct berth_err err = {0};
    struct loaded loaded;
    float value = 1;
    static const char *none[] = {"OTHER"};
    struct berth_param fail = {.name = "null_fail", .kind = BERTH_PARAM_STRING,
                               .value.string = "as asked"};
    load(&loaded, NULL, NULL);
    struct berth_row rows[4] = {0};
    for (size_t i = 0; i < 4; i++) {
        rows[i].request = request_of(&value, sizeof(value));
        rows[i].part = berth_part_create(rows[i].request);
    }
    rows[0].request->params = (struct berth_params){.items = &fail, .count = 1};
    atomic_store(&rows[1].request->cancelled, true);
    rows[2].request->outputs_wanted = none;
    rows[2].request->output_wanted_count = 1;
    struct berth_batch batch = {.rows = rows, .row_count = 4, .batch_rows = 4};
    assert_int_equal(null_engine()->execute(loaded.instance, &batch, &err), BERTH_OK);
    assert_int_equal(rows[0].err.code, BERTH_INTERNAL);
    assert_string_equal(rows[0].err.msg, "as asked");
    assert_int_equal(rows[1].err.code, BERTH_CANCELLED);
    assert_int_equal(rows[2].err.code, BERTH_OK);
    assert_int_equal(rows[2].part->tensor_count, 0);
    assert_int_equal(rows[3].part->tensor_count, 1);
    for (size_t i = 0; i < 4; i++) {
        berth_part_destroy(rows[i].part);
        berth_request_release(rows[i].request);
    }
    unload(&loaded);
}

static void loads_and_runs_fail_on_demand(void **state)
{
    struct berth_err err = {0};
    struct berth_span none = {.fd = -1};
    struct berth_engine_model *model = NULL;
    struct berth_model_spec *spec = spec_with("fail_load", "no luck");
    assert_int_equal(null_engine()->describe(spec, &err), BERTH_OK);
    assert_int_equal(null_engine()->model_attach(spec, none, &model, &err), BERTH_UNAVAILABLE);
    assert_string_equal(err.msg, "no luck");
    berth_spec_release(spec);
    struct loaded loaded;
    load(&loaded, "fail_run", "broken");
    struct berth_batch batch = {0};
    assert_int_equal(null_engine()->execute(loaded.instance, &batch, &err), BERTH_UNAVAILABLE);
    unload(&loaded);
}

static void held_bytes_are_reported(void **state)
{
    struct loaded loaded;
    load(&loaded, "bytes", "100000");
    uint64_t bytes = null_engine()->model_bytes(loaded.model);
    assert_in_range(bytes, 100000, 110000);
    assert_in_range(loaded.spec->bytes_estimate, 100000, 110000);
    unload(&loaded);
}

static void steps_emit_parts(void **state)
{
    struct berth_err err = {0};
    struct loaded loaded;
    static struct berth_step_result result;
    float value = 3;
    load(&loaded, "steps", "2");
    assert_int_equal(null_engine()->slots(loaded.model), 4);
    struct berth_row rows[3] = {0};
    for (size_t i = 0; i < 3; i++) {
        rows[i].request = request_of(&value, sizeof(value));
    }
    assert_int_equal(null_engine()->admit(loaded.instance, rows, 3, &err), BERTH_OK);
    assert_int_equal(rows[2].slot, 2);
    null_engine()->drop(loaded.instance, rows[2].slot);
    size_t parts = 0;
    size_t finals = 0;
    for (size_t n = 0; n < 4 && finals < 2; n++) {
        if (n == 1) {
            atomic_store(&rows[1].request->cancelled, true);
        }
        assert_int_equal(null_engine()->step(loaded.instance, 0, &result, &err), BERTH_OK);
        for (size_t i = 0; i < result.event_count; i++) {
            assert_true(result.events[i].slot < 2);
            parts += result.events[i].part != NULL;
            finals += result.events[i].final;
            if (result.events[i].final && result.events[i].slot == 1) {
                assert_int_equal(result.events[i].err.code, BERTH_CANCELLED);
            }
            berth_part_destroy(result.events[i].part);
        }
    }
    assert_int_equal(finals, 2);
    assert_int_equal(parts, 3); /* two of the first row, one of the cancelled */
    assert_int_equal(result.live, 0);
    for (size_t i = 0; i < 3; i++) {
        berth_request_release(rows[i].request);
    }
    unload(&loaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_are_found),
        cmocka_unit_test(describe_completes),
        cmocka_unit_test(describe_refuses),
        cmocka_unit_test(echo_is_exact),
        cmocka_unit_test(rows_fail_alone),
        cmocka_unit_test(loads_and_runs_fail_on_demand),
        cmocka_unit_test(held_bytes_are_reported),
        cmocka_unit_test(steps_emit_parts),
    };
    return cmocka_run_group_tests(tests, open_slabs, close_slabs);
}
