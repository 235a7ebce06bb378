/* test_promise.c - an engine whose answers are not what its model promises: in a thread as in a
 * process the request has an error that says so, and the one beside it its answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "worker/worker.h"

enum lie { HONEST, MISSING, TYPE, NAME, SHAPE, BATCH, TWICE, NOTHING, LIES };

static enum lie lie;  /* of the first row or slot */
static bool is_final; /* of the first slot's event */
static struct berth_request *seated[2];

static enum berth_code describe(struct berth_model_spec *spec, struct berth_err *err)
{
    return BERTH_OK;
}

static enum berth_code attach(const struct berth_model_spec *spec, struct berth_span weights,
                              struct berth_engine_model **out, struct berth_err *err)
{
    *out = berth_alloc(8);
    return *out == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "out of memory") : BERTH_OK;
}

static void detach(struct berth_engine_model *model)
{
    berth_free(model);
}

static uint64_t bytes(const struct berth_engine_model *model)
{
    return 8;
}

static enum berth_code create(struct berth_engine_model *model, uint32_t index,
                              struct berth_instance **out, struct berth_err *err)
{
    *out = berth_alloc(8);
    return *out == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "out of memory") : BERTH_OK;
}

static void destroy(struct berth_instance *instance)
{
    berth_free(instance);
}

/* OUT is FP32 of [batch, 2]. */
static void fill(struct berth_part *part, enum lie how)
{
    struct berth_tensor like = {.name = how == NAME ? "OTHER" : "OUT",
                                .dtype = how == TYPE ? BERTH_DTYPE_INT32 : BERTH_DTYPE_FP32,
                                .rank = 2, .dims = {how == BATCH ? 2 : 1, how == SHAPE ? 3 : 2}};
    size_t count = how == MISSING ? 0 : how == TWICE ? 2 : 1;
    for (size_t i = 0; i < count; i++) {
        void *to = NULL;
        size_t length = (size_t)(like.dims[0] * like.dims[1]) * 4;
        assert_int_equal(berth_part_add(part, &like, length, &to, NULL), BERTH_OK);
        memset(to, 0, length);
    }
}

static enum berth_code execute(struct berth_instance *instance, struct berth_batch *batch,
                               struct berth_err *err)
{
    for (size_t i = 0; i < batch->row_count; i++) {
        fill(batch->rows[i].part, i == 0 ? lie : HONEST);
    }
    return BERTH_OK;
}

static enum berth_code admit(struct berth_instance *instance, struct berth_row *rows,
                             size_t row_count, struct berth_err *err)
{
    for (size_t i = 0; i < row_count; i++) {
        rows[i].slot = (uint32_t)i;
        seated[i] = rows[i].request;
    }
    return BERTH_OK;
}

static enum berth_code step(struct berth_instance *instance, uint64_t budget_ns,
                            struct berth_step_result *out, struct berth_err *err)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct berth_step_event *event = berth_step_event_add(out, i);
        event->final = i == 1 || is_final;
        if (i == 1 || lie != NOTHING) {
            event->part = berth_part_create(seated[i]);
            assert_non_null(event->part);
            fill(event->part, i == 0 ? lie : HONEST);
        }
    }
    return BERTH_OK;
}

static const struct berth_engine_ops liar = {
    .name = "liar", .describe = describe, .model_attach = attach, .model_detach = detach,
    .model_bytes = bytes, .instance_create = create, .instance_destroy = destroy,
    .execute = execute, .admit = admit, .step = step,
};

struct table {
    struct berth_slabs *slabs;
    struct berth_worker worker;
    struct berth_model_spec *spec;
    struct berth_loaded *loaded;
    struct berth_worker_msg msg;
    struct berth_row rows[2];
    struct berth_step_result step;
};

static void table_open(struct table *table, enum berth_run_mode mode)
{
    static const struct berth_io output = {
        .name = "OUT", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {2}};
    struct berth_slabs_options options = {.bytes_budget = 1 << 20};
    struct berth_err err = {0};
    *table = (struct table){.worker = {.device = "cpu:0", .parallel_max = 1}};
    assert_int_equal(berth_slabs_create(&options, &table->slabs, &err), BERTH_OK);
    struct berth_model_spec *spec = table->spec = berth_spec_create();
    assert_non_null(spec);
    spec->name = "m";
    spec->run_mode = mode;
    spec->batch_size_max = 2;
    spec->outputs = berth_arena_alloc(&spec->arena, sizeof(output));
    assert_non_null(spec->outputs);
    memcpy(spec->outputs, &output, sizeof(output));
    spec->output_count = 1;
    spec->completed = true;
    table->msg = (struct berth_worker_msg){.kind = BERTH_WORKER_LOAD, .worker = &table->worker,
                                           .spec = spec};
    assert_int_equal(berth_loaded_create(&liar, table->slabs, &table->msg, &table->loaded, &err),
                     BERTH_OK);
    for (size_t i = 0; i < 2; i++) {
        table->rows[i].request = berth_request_create(table->slabs, 0);
        assert_non_null(table->rows[i].request);
    }
    table->msg = (struct berth_worker_msg){
        .kind = mode == BERTH_RUN_STEPS ? BERTH_WORKER_STEP : BERTH_WORKER_RUN,
        .worker = &table->worker, .spec = spec, .budget_ns = 1, .step = &table->step,
        .batch = {.rows = table->rows, .row_count = 2, .batch_rows = 2}};
}

static void table_close(struct table *table)
{
    for (size_t i = 0; i < 2; i++) {
        berth_part_destroy(table->rows[i].part);
        berth_request_release(table->rows[i].request);
    }
    for (size_t i = 0; i < table->step.event_count; i++) {
        berth_part_destroy(table->step.events[i].part);
    }
    berth_loaded_destroy(table->loaded);
    berth_spec_release(table->spec);
    berth_slabs_destroy(table->slabs);
    assert_int_equal(berth_mem_bytes_live(), 0);
}

static const char *const texts[LIES] = {
    [MISSING] = "without output 'OUT'", [TYPE] = "'OUT' in INT32 instead of FP32",
    [NAME] = "none of the model's", [SHAPE] = "'OUT' in another shape",
    [BATCH] = "'OUT' in another shape", [TWICE] = "'OUT' twice",
    [NOTHING] = "without an answer"};

static void assert_told(const struct berth_err *err, enum lie how)
{
    assert_int_equal(err->code, how == HONEST ? BERTH_OK : BERTH_INTERNAL);
    assert_true(how == HONEST || strstr(err->msg, texts[how]) != NULL);
}

static void a_run_says_what_is_wrong(void **state)
{
    for (lie = HONEST; lie < NOTHING; lie++) {
        struct table table;
        table_open(&table, BERTH_RUN_EXECUTE);
        berth_loaded_run(table.loaded, &table.msg);
        assert_int_equal(table.msg.err.code, BERTH_OK);
        assert_told(&table.rows[0].err, lie);
        assert_int_equal(table.rows[0].part != NULL, lie == HONEST);
        assert_int_equal(table.rows[1].err.code, BERTH_OK);
        assert_non_null(table.rows[1].part);
        table_close(&table);
    }
}

/* A row's last part ends that row; of one that goes on, the step. */
static void a_step_says_what_is_wrong(void **state)
{
    for (int final = 0; final < 2; final++) {
        is_final = final == 1;
        for (lie = HONEST; lie < LIES; lie++) {
            bool good = lie == HONEST || (lie == NOTHING && !is_final); /* nothing yet */
            struct table table;
            table_open(&table, BERTH_RUN_STEPS);
            berth_loaded_run(table.loaded, &table.msg);
            if (good || is_final) {
                assert_int_equal(table.msg.err.code, BERTH_OK);
                assert_int_equal(table.step.event_count, 2);
                assert_told(&table.step.events[0].err, good ? HONEST : lie);
                assert_int_equal(table.step.events[0].part != NULL, lie == HONEST);
                assert_int_equal(table.step.events[1].err.code, BERTH_OK);
                assert_non_null(table.step.events[1].part);
            } else {
                assert_told(&table.msg.err, lie);
                assert_int_equal(table.step.event_count, 0);
            }
            table_close(&table);
        }
    }
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_says_what_is_wrong),
        cmocka_unit_test(a_step_says_what_is_wrong),
    };
    return cmocka_run_group_tests_name("promise", tests, NULL, NULL);
}
