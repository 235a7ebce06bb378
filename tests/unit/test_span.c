/* test_span.c - memory for weights on the CPU: sizes, limits, what this build knows; that a span's
 * memory is given back and taken again under a model that stays; and that a loaded model's span is
 * made, counted and given back. */
#include "engine/span.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "parakeet_golden.h"
#include "readable.h"
#include "speech_rig.h"
#include "worker/worker.h"

#define HUGE ((size_t)2 << 20)

static void a_span_is_counted_and_given_back(void **state)
{
    static const struct {
        const char *device;
        uint64_t bytes;
        size_t taken;
    } cases[] = {
        {"cpu:0", 1, HUGE},         {"cpu:1", HUGE - 1, HUGE},      {"cpu", HUGE, HUGE},
        {NULL, HUGE + 1, 2 * HUGE}, {"cpu:0", 5 * HUGE, 5 * HUGE},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_err err = {0};
        struct berth_span span = {0};
        uint64_t live = berth_mem_bytes_live();
        assert_int_equal(berth_span_create(cases[i].device, cases[i].bytes, &span, &err), BERTH_OK);
        assert_int_equal(span.bytes, cases[i].taken);
        assert_int_equal(span.fd, -1);
        assert_int_equal((uintptr_t)span.address % HUGE, 0);
        assert_int_equal(berth_mem_bytes_live(), live + cases[i].taken);
        unsigned char *bytes = span.address;
        assert_int_equal(bytes[0], 0);
        assert_int_equal(bytes[span.bytes - 1], 0);
        memset(bytes, 7, span.bytes);
        berth_span_destroy(cases[i].device, &span);
        assert_null(span.address);
        assert_int_equal(span.bytes, 0);
        assert_int_equal(berth_mem_bytes_live(), live);
        berth_span_destroy(cases[i].device, &span);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        const char *device;
        uint64_t bytes;
        enum berth_code code;
    } cases[] = {
        {"cpu:0", 0, BERTH_INVALID},
        {"cpu:0", UINT64_MAX, BERTH_TOO_LARGE},
        {"cpu:0", (uint64_t)1 << 50, BERTH_TOO_LARGE},
        {"", 1, BERTH_UNSUPPORTED},
        {"cpux:0", 1, BERTH_UNSUPPORTED},
        {"tpu:0", 1, BERTH_UNSUPPORTED},
        {"cuda:0", 1, BERTH_UNSUPPORTED}, /* berth itself knows no CUDA */
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_err err = {0};
        struct berth_span span = {.fd = -1};
        assert_int_equal(berth_span_create(cases[i].device, cases[i].bytes, &span, &err),
                         cases[i].code);
        assert_null(span.address);
        assert_true(err.msg[0] != '\0');
    }
    struct berth_err err = {0};
    struct berth_span span = {.fd = -1};
    berth_mem_fail_at(1, false);
    assert_int_equal(berth_span_create("cpu:0", 1, &span, &err), BERTH_UNAVAILABLE);
    berth_mem_fail_at(0, false);
}

static void a_span_keeps_its_addresses_without_memory(void **state)
{
    static const char *const devices[] = {"cpu:0", NULL};
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(devices); i++) {
        struct berth_err err = {0};
        struct berth_span span = {.fd = -1};
        uint64_t live = berth_mem_bytes_live();
        assert_int_equal(berth_span_create(devices[i], 3 * HUGE - 1, &span, &err), BERTH_OK);
        assert_false(span.unmapped);
        unsigned char *bytes = span.address;
        for (int round = 0; round < 3; round++) {
            memset(bytes, 7, span.bytes);
            assert_int_equal(berth_span_unmap(devices[i], &span, &err), BERTH_OK);
            assert_true(span.unmapped);
            assert_ptr_equal(span.address, bytes);
            assert_int_equal(span.bytes, 3 * HUGE);
            assert_int_equal(berth_mem_bytes_live(), live);
            assert_false(readable(bytes));
            assert_false(readable(bytes + span.bytes - 1));
            assert_int_equal(berth_span_map(devices[i], &span, &err), BERTH_OK);
            assert_false(span.unmapped);
            assert_ptr_equal(span.address, bytes);
            assert_int_equal(berth_mem_bytes_live(), live + 3 * HUGE);
            assert_true(readable(bytes));
        }
        assert_int_equal(berth_span_unmap(devices[i], &span, &err), BERTH_OK);
        berth_span_destroy(devices[i], &span); /* without memory too */
        assert_null(span.address);
        assert_false(span.unmapped);
        assert_int_equal(berth_mem_bytes_live(), live);
        assert_false(readable(bytes));
    }
}

static void a_map_that_fails_can_be_tried_again(void **state)
{
    struct berth_err err = {0};
    struct berth_span span = {.fd = -1};
    uint64_t live = berth_mem_bytes_live();
    (void)state;
    assert_int_equal(berth_span_create("cpu:0", HUGE, &span, &err), BERTH_OK);
    unsigned char *bytes = span.address;
    assert_int_equal(berth_span_unmap("cpu:0", &span, &err), BERTH_OK);
    berth_mem_fail_at(1, true);
    for (int attempt = 0; attempt < 3; attempt++) {
        err = (struct berth_err){0};
        assert_int_equal(berth_span_map("cpu:0", &span, &err), BERTH_UNAVAILABLE);
        assert_non_null(strstr(err.msg, "2 MiB"));
        assert_true(span.unmapped);
        assert_ptr_equal(span.address, bytes);
        assert_int_equal(berth_mem_bytes_live(), live);
        assert_false(readable(bytes));
    }
    berth_mem_fail_at(0, false);
    assert_int_equal(berth_span_map("cpu:0", &span, &err), BERTH_OK);
    assert_true(readable(bytes));
    berth_span_destroy("cpu:0", &span);
    assert_int_equal(berth_mem_bytes_live(), live);
}

/* All that a final part says about one recording. */
static struct berth_buf hear(struct rig *rig, const float *samples, size_t count)
{
    static struct job job;
    memset(&job, 0, sizeof(job));
    job.samples = samples;
    job.count = count;
    jobs_run(rig, &job, 1);
    assert_int_equal(job.answer.code, BERTH_OK);
    struct berth_buf raw = job.answer.raw;
    job.answer.raw = (struct berth_buf){0};
    answer_drop(&job.answer);
    return raw;
}

static bool same(const struct berth_buf *a, const struct berth_buf *b)
{
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

static void a_model_answers_as_before_over_weights_loaded_again(void **state)
{
    struct rig rig;
    struct berth_err err = {0};
    size_t count = 0;
    float *samples = golden_pcm(8, &count);
    (void)state;
    assert_int_equal(rig_open(&rig, &berth_engine_parakeet, golden_model(), NULL, &err), BERTH_OK);
    struct berth_buf before = hear(&rig, samples, count);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(berth_span_unmap(NULL, &rig.weights, &err), BERTH_OK);
        assert_int_equal(berth_span_map(NULL, &rig.weights, &err), BERTH_OK);
        struct berth_buf zeros = hear(&rig, samples, count); /* it is that memory which is read */
        assert_false(same(&before, &zeros));
        assert_int_equal(rig.ops->weights_load(rig.spec, rig.weights, &err), BERTH_OK);
        struct berth_buf after = hear(&rig, samples, count);
        assert_true(same(&before, &after));
        berth_buf_finish(&zeros);
        berth_buf_finish(&after);
    }
    berth_buf_finish(&before);
    rig_close(&rig);
    berth_free(samples);
}

/* An engine whose model is its weights; each stage can be made to fail. */
enum stage { NO_STAGE, BYTES, LOAD, ATTACH, INSTANCE };

static enum stage stage_fails;
static struct berth_span span_seen;
static uint64_t bytes_wanted;

struct berth_engine_model {
    struct berth_span weights;
};

struct berth_instance {
    int unused;
};

static enum berth_code describe(struct berth_model_spec *spec, struct berth_err *err)
{
    (void)spec;
    (void)err;
    return BERTH_OK;
}

static enum berth_code weights_bytes(const struct berth_model_spec *spec, uint64_t *out,
                                     struct berth_err *err)
{
    (void)spec;
    *out = bytes_wanted;
    return stage_fails == BYTES ? berth_fail(err, BERTH_INVALID, "bytes") : BERTH_OK;
}

static enum berth_code weights_load(const struct berth_model_spec *spec, struct berth_span span,
                                    struct berth_err *err)
{
    (void)spec;
    span_seen = span;
    memset(span.address, 9, span.bytes);
    return stage_fails == LOAD ? berth_fail(err, BERTH_INVALID, "load") : BERTH_OK;
}

static enum berth_code model_attach(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err)
{
    (void)spec;
    if (stage_fails == ATTACH) {
        return berth_fail(err, BERTH_INVALID, "attach");
    }
    *out = berth_alloc(sizeof(**out));
    assert_non_null(*out);
    (*out)->weights = weights;
    return BERTH_OK;
}

static void model_detach(struct berth_engine_model *model)
{
    if (model != NULL) {
        assert_int_equal(((unsigned char *)model->weights.address)[0], 9); /* still there */
    }
    berth_free(model);
}

static uint64_t model_bytes(const struct berth_engine_model *model)
{
    (void)model;
    return 100;
}

static enum berth_code instance_create(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err)
{
    (void)model;
    (void)index;
    if (stage_fails == INSTANCE) {
        return berth_fail(err, BERTH_INVALID, "instance");
    }
    *out = berth_alloc(sizeof(**out));
    assert_non_null(*out);
    return BERTH_OK;
}

static void instance_destroy(struct berth_instance *instance)
{
    berth_free(instance);
}

static const struct berth_engine_ops native = {
    .name = "native",
    .describe = describe,
    .weights_bytes = weights_bytes,
    .weights_load = weights_load,
    .model_attach = model_attach,
    .model_detach = model_detach,
    .model_bytes = model_bytes,
    .instance_create = instance_create,
    .instance_destroy = instance_destroy,
};

static enum berth_code load(const char *device, struct berth_worker_msg *msg,
                            struct berth_loaded **out, struct berth_err *err)
{
    struct berth_worker worker = {.device = device};
    struct berth_model_spec *spec = berth_spec_create();
    struct berth_model model = {0};
    assert_non_null(spec);
    spec->name = "weighty";
    spec->completed = true;
    *msg = (struct berth_worker_msg){
        .kind = BERTH_WORKER_LOAD, .spec = spec, .model = &model, .worker = &worker};
    enum berth_code code = berth_loaded_create(&native, NULL, msg, out, err);
    berth_spec_release(spec);
    return code;
}

static void a_loaded_models_span_counts_and_ends_with_it(void **state)
{
    struct berth_err err = {0};
    struct berth_worker_msg msg;
    struct berth_loaded *loaded = NULL;
    uint64_t live = berth_mem_bytes_live();
    (void)state;
    stage_fails = NO_STAGE;
    bytes_wanted = 3 * HUGE - 5;
    assert_int_equal(load("cpu:0", &msg, &loaded, &err), BERTH_OK);
    assert_int_equal(span_seen.bytes, 3 * HUGE);
    assert_int_equal(msg.bytes_used, 3 * HUGE + 100);
    assert_true(berth_mem_bytes_live() > live + 3 * HUGE);
    berth_loaded_destroy(loaded);
    assert_int_equal(berth_mem_bytes_live(), live);
}

static void a_load_that_fails_leaves_nothing(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    (void)state;
    bytes_wanted = HUGE;
    for (enum stage stage = BYTES; stage <= INSTANCE; stage++) {
        struct berth_err err = {0};
        struct berth_worker_msg msg;
        struct berth_loaded *loaded = NULL;
        stage_fails = stage;
        assert_int_equal(load("cpu:0", &msg, &loaded, &err), BERTH_INVALID);
        assert_null(loaded);
        assert_int_equal(berth_mem_bytes_live(), live);
    }
    struct berth_err err = {0};
    struct berth_worker_msg msg;
    struct berth_loaded *loaded = NULL;
    stage_fails = NO_STAGE;
    assert_int_equal(load("cuda:0", &msg, &loaded, &err), BERTH_UNSUPPORTED);
    bytes_wanted = UINT64_MAX;
    assert_int_equal(load("cpu:0", &msg, &loaded, &err), BERTH_TOO_LARGE);
    assert_int_equal(berth_mem_bytes_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_span_is_counted_and_given_back),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_span_keeps_its_addresses_without_memory),
        cmocka_unit_test(a_map_that_fails_can_be_tried_again),
        cmocka_unit_test(a_model_answers_as_before_over_weights_loaded_again),
        cmocka_unit_test(a_loaded_models_span_counts_and_ends_with_it),
        cmocka_unit_test(a_load_that_fails_leaves_nothing),
    };
    struct berth_err err = {.code = BERTH_OK};
    struct berth_slabs_options options = {.bytes_budget = 64U << 20};
    if (berth_slabs_create(&options, &rig_slabs, &err) != BERTH_OK) {
        return 1;
    }
    struct berth_engine_env env = {.slabs = rig_slabs, .threads = 2, .device = "cpu:0"};
    if (berth_engine_parakeet.start(&env, &err) != BERTH_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    berth_engine_parakeet.finish();
    berth_slabs_destroy(rig_slabs);
    return failed;
}
