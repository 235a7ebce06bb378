/* What the engine prepares behind the first run, on a CPU that says it records: after the asked
 * bucket all others, every product a run has and no other; not while a step is under way; leaving
 * in the middle; and a device or memory that is not to be had. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define berth_parakeet_backend fake_backend
#include "engine/parakeet/parakeet.c"
#undef berth_parakeet_backend

#include "parakeet_golden.h"
#include "speech_rig.h"

#define CALLS_MAX 4096
#define FAKE_BYTES 1000 /* what the device keeps, a run */

/* What a choice is made for. */
struct product {
    uint64_t n;
    uint32_t in, out;
    enum berth_parakeet_activation activation;
    bool stream, residual, bias;
};

static struct berth_parakeet_ops fake;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct product prepared[CALLS_MAX]; /* guarded by mu, and what follows */
static struct product multiplied[CALLS_MAX];
static size_t prepared_count, multiplied_count;
static size_t multiplied_before; /* products run when the first was prepared */
static size_t open_count, open_max;
static uint64_t n_max; /* no memory for products of more */
static uint64_t graphs[256]; /* keys */
static size_t graph_count;
static _Atomic uint32_t plays;
static size_t starve_count, alloc_refusals;
static size_t forget_count;
static bool starved, heads_refused, overfull;
static size_t recorded; /* graphs that a step had to record */
static pthread_t tester;
static _Atomic(_Atomic bool *) wait_for; /* NULL: prepare returns at once */

const struct berth_parakeet_ops *fake_backend(const char *device)
{
    return &fake;
}

static size_t count_of(const size_t *counter)
{
    pthread_mutex_lock(&mu);
    size_t count = *counter;
    pthread_mutex_unlock(&mu);
    return count;
}

static struct product product_of(const struct berth_parakeet_linear_call *call)
{
    return (struct product){.n = call->n,
                            .in = call->linear->in,
                            .out = call->linear->out,
                            .activation = call->activation,
                            .stream = call->stream,
                            .residual = call->residual != NULL,
                            .bias = call->linear->bias != NULL};
}

static bool has(const struct product *all, size_t count, const struct product *one)
{
    for (size_t i = 0; i < count; i++) {
        const struct product *at = &all[i];
        if (at->n == one->n && at->in == one->in && at->out == one->out &&
            at->activation == one->activation && at->stream == one->stream &&
            at->residual == one->residual && at->bias == one->bias) {
            return true;
        }
    }
    return false;
}

static enum berth_code fake_open(const char *device, uint32_t threads,
                                 struct berth_parakeet_device **out, struct berth_err *err)
{
    pthread_mutex_lock(&mu);
    bool refused = open_count++ >= open_max;
    pthread_mutex_unlock(&mu);
    return refused ? berth_fail(err, BERTH_UNAVAILABLE, "no device for tests")
                   : berth_parakeet_cpu.open(device, threads, out, err);
}

static void fake_linear(struct berth_parakeet_device *device,
                        const struct berth_parakeet_linear_call *call)
{
    pthread_mutex_lock(&mu);
    assert_true(multiplied_count < CALLS_MAX);
    multiplied[multiplied_count++] = product_of(call);
    pthread_mutex_unlock(&mu);
    berth_parakeet_cpu.linear(device, call);
}

/* Behind, nothing is computed: a graph is as good as there. */
static bool fake_record(struct berth_parakeet_device *device, uint64_t key)
{
    return pthread_equal(pthread_self(), tester) != 0;
}

static void graph_add(uint64_t key)
{
    pthread_mutex_lock(&mu);
    bool there = false;
    for (size_t i = 0; i < graph_count; i++) {
        there = there || graphs[i] == key;
    }
    if (!there) {
        assert_true(graph_count < BERTH_COUNT_OF(graphs));
        graphs[graph_count++] = key;
    }
    pthread_mutex_unlock(&mu);
}

static void fake_play(struct berth_parakeet_device *device, uint64_t key)
{
    size_t before = count_of(&graph_count);
    graph_add(key);
    recorded += count_of(&graph_count) - before;
    atomic_fetch_add(&plays, 1);
}

static void fake_keep(struct berth_parakeet_device *device, uint64_t key)
{
    assert_false(pthread_equal(pthread_self(), tester));
    graph_add(key);
}

static void fake_forget(struct berth_parakeet_device *device, uint64_t key)
{
    pthread_mutex_lock(&mu);
    forget_count++;
    for (size_t i = 0; i < graph_count; i++) {
        if (graphs[i] == key) {
            graphs[i] = graphs[--graph_count];
            break;
        }
    }
    pthread_mutex_unlock(&mu);
}

static bool fake_decode(struct berth_parakeet_device *device,
                        const struct berth_parakeet_shape *shape,
                        const struct berth_parakeet_counts *counts,
                        const struct berth_parakeet_decode_call *call)
{
    bool ended = berth_parakeet_cpu.decode(device, shape, counts, call);
    assert_true(call->tokens.capacity > shape->padded.frames * call->config->symbols_max);
    if (ended && overfull) {
        call->tokens.count[0] = (int32_t)call->tokens.capacity;
    }
    return ended;
}

static enum berth_code fake_finish(struct berth_parakeet_device *device, struct berth_err *err)
{
    starved = starve_count > 0;
    if (starved) {
        starve_count--;
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a graph in this test");
    }
    return berth_parakeet_cpu.finish(device, err);
}

static bool fake_starved(const struct berth_parakeet_device *device)
{
    return starved;
}

static void *fake_alloc(struct berth_parakeet_device *device, size_t bytes)
{
    if (alloc_refusals > 0) {
        alloc_refusals--;
        return NULL;
    }
    return berth_parakeet_cpu.alloc(device, bytes);
}

static enum berth_code fake_check(const struct berth_parakeet_config *config,
                                  struct berth_err *err)
{
    return heads_refused ? berth_fail(err, BERTH_UNSUPPORTED, "heads of %u; it takes none",
                                      config->head_dim)
                         : BERTH_OK;
}

static bool fake_prepare(struct berth_parakeet_device *device,
                         const struct berth_parakeet_linear_call *call)
{
    pthread_mutex_lock(&mu);
    multiplied_before = prepared_count == 0 ? multiplied_count : multiplied_before;
    if (prepared_count < CALLS_MAX) {
        prepared[prepared_count++] = product_of(call);
    }
    bool fits = call->n <= n_max;
    pthread_mutex_unlock(&mu);
    _Atomic bool *stopping = atomic_load(&wait_for);
    while (stopping != NULL && !atomic_load(stopping)) {
        (void)sched_yield();
    }
    return fits;
}

static uint64_t fake_kept_bytes(const struct berth_parakeet_device *device)
{
    return FAKE_BYTES * (uint64_t)atomic_load(&plays);
}

static int reset(void **state)
{
    fake = berth_parakeet_cpu;
    fake.open = fake_open;
    fake.linear = fake_linear;
    fake.record = fake_record;
    fake.play = fake_play;
    fake.keep = fake_keep;
    fake.forget = fake_forget;
    fake.decode = fake_decode;
    fake.finish = fake_finish;
    fake.starved = fake_starved;
    fake.alloc = fake_alloc;
    fake.check = fake_check;
    fake.prepare = fake_prepare;
    fake.kept_bytes = fake_kept_bytes;
    prepared_count = multiplied_count = multiplied_before = open_count = 0;
    graph_count = starve_count = alloc_refusals = 0;
    starved = heads_refused = overfull = false;
    recorded = 0;
    open_max = SIZE_MAX;
    n_max = UINT64_MAX;
    atomic_store(&plays, 0);
    atomic_store(&wait_for, NULL);
    return 0;
}

static void rig_must(struct rig *rig)
{
    struct berth_err err = {.code = BERTH_OK};
    if (rig_open(rig, &berth_engine_parakeet, golden_model(), NULL, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
}

/* What becomes of a recording of so many seconds, in a run of one row. */
static enum berth_code hear_as(struct rig *rig, size_t seconds)
{
    static struct job job;
    size_t count = 0;
    float *spoken = golden_pcm(0, &count);
    memset(&job, 0, sizeof(job));
    job.count = seconds * BERTH_SPEECH_RATE;
    float *samples = berth_alloc(job.count * sizeof(*samples));
    for (size_t i = 0; i < job.count; i++) {
        samples[i] = spoken[i % count];
    }
    job.samples = samples;
    jobs_run(rig, &job, 1);
    enum berth_code code = job.answer.code;
    assert_true(code != BERTH_OK || job.answer.token_count > 0);
    answer_drop(&job.answer);
    berth_free(samples);
    berth_free(spoken);
    return code;
}

static void hear(struct rig *rig, size_t seconds)
{
    assert_int_equal(hear_as(rig, seconds), BERTH_OK);
}

/* Products of the model's buckets, as they are to be asked for. */
static size_t wanted_count(const struct berth_engine_model *model)
{
    struct berth_parakeet_linear_call calls[BERTH_PARAKEET_PRODUCTS_MAX];
    const struct berth_parakeet_preparer *preparer = &model->preparer;
    size_t count = 0;
    for (uint32_t i = 0; i < preparer->shape_count; i++) {
        count += berth_parakeet_products(&model->config, &model->weights, &preparer->shapes[i],
                                         calls);
    }
    return count;
}

static void wait_for_calls(size_t count)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    while (count_of(&prepared_count) < count) {
        (void)nanosleep(&moment, NULL);
    }
}

static void test_rest_behind(void **state)
{
    struct rig rig;
    rig_must(&rig);
    const struct berth_parakeet_preparer *preparer = &rig.model->preparer;
    size_t positions = count_of(&multiplied_count); /* of the instance, once */
    assert_false(preparer->running);
    hear(&rig, 3);
    size_t asked = count_of(&multiplied_count);
    assert_true(preparer->running);
    size_t wanted = wanted_count(rig.model);
    wait_for_calls(wanted);
    assert_int_equal(count_of(&prepared_count), wanted);
    assert_int_equal(multiplied_before, asked); /* the asked bucket was done */
    uint32_t rows = 1;
    assert_int_equal(preparer->shapes[0].rows, 1);
    for (uint32_t i = 0; i < preparer->shape_count; i++) {
        assert_true(preparer->shapes[i].rows >= rows);
        rows = preparer->shapes[i].rows;
    }
    assert_int_equal(rows, 8);
    hear(&rig, 2);
    for (size_t i = positions; i < multiplied_count; i++) { /* nothing is left to choose */
        assert_true(has(prepared, prepared_count, &multiplied[i]));
    }
    /* And nothing is prepared that the runs do not have. */
    struct berth_parakeet_linear_call calls[BERTH_PARAKEET_PRODUCTS_MAX];
    struct berth_parakeet_shape shape = {.rows = 1, .padded = rig.model->buckets[0]};
    uint32_t count = berth_parakeet_products(&rig.model->config, &rig.model->weights, &shape,
                                             calls);
    for (uint32_t i = 0; i < count; i++) {
        struct product one = product_of(&calls[i]);
        assert_true(has(multiplied + asked, multiplied_count - asked, &one));
    }
    rig_close(&rig);
    assert_int_equal(open_count, 2);
}

static void test_busy(void **state)
{
    struct rig rig;
    rig_must(&rig);
    berth_parakeet_step_begin(); /* of another instance */
    hear(&rig, 2);
    rig_close(&rig);
    berth_parakeet_step_end();
    assert_int_equal(prepared_count, 0);
    assert_int_equal(open_count, 1);
}

static void test_detach_in_the_middle(void **state)
{
    struct rig rig;
    rig_must(&rig);
    atomic_store(&wait_for, &rig.model->preparer.stopping);
    hear(&rig, 2);
    wait_for_calls(1);
    hear(&rig, 3); /* no run waits for what is being prepared */
    rig_close(&rig);
    assert_int_equal(prepared_count, 1);
}

static void test_less_is_prepared(void **state)
{
    struct rig rig;
    rig_must(&rig);
    n_max = rig.model->buckets[0].quarter * (rig.model->config.mels / 4); /* one row of 2 s */
    hear(&rig, 2);
    size_t wanted = wanted_count(rig.model);
    wait_for_calls(wanted);
    berth_parakeet_preparer_stop(&rig.model->preparer);
    assert_int_equal(atomic_load(&rig.model->preparer.prepared), 1);
    rig_close(&rig);

    (void)reset(state);
    open_max = 1;
    rig_must(&rig);
    hear(&rig, 2);
    while (count_of(&open_count) < 2) {
        (void)sched_yield();
    }
    hear(&rig, 2);
    rig_close(&rig);
    assert_int_equal(prepared_count, 0);

    (void)reset(state);
    fake.prepare = NULL;
    rig_must(&rig);
    hear(&rig, 2);
    assert_false(rig.model->preparer.running);
    rig_close(&rig);
}

static void test_kept_bytes(void **state)
{
    struct rig rig;
    rig_must(&rig);
    uint64_t model = berth_engine_parakeet.model_bytes(rig.model);
    berth_parakeet_step_begin(); /* nothing is prepared meanwhile */
    hear(&rig, 2);
    uint64_t run = rig.instance->run_bytes;
    assert_int_equal(berth_engine_parakeet.model_bytes(rig.model), model + run + FAKE_BYTES);
    hear(&rig, 2);
    assert_int_equal(berth_engine_parakeet.model_bytes(rig.model), model + run + 2 * FAKE_BYTES);
    berth_parakeet_step_end();
    while (atomic_load(&rig.model->preparer.bytes) == 0 &&
           atomic_load(&rig.model->preparer.prepared) < rig.model->preparer.shape_count) {
        (void)sched_yield();
    }
    berth_parakeet_preparer_stop(&rig.model->preparer);
    assert_int_equal(atomic_load(&rig.model->preparer.bytes), 0); /* its device is gone */
    berth_engine_parakeet.instance_destroy(rig.instance);
    rig.instance = NULL;
    assert_int_equal(berth_engine_parakeet.model_bytes(rig.model), rig.model->bytes);
    rig_close(&rig);
    /* What a device has from the start is counted from the start. */
    atomic_store(&plays, 3);
    rig_must(&rig);
    assert_int_equal(berth_engine_parakeet.model_bytes(rig.model), model + 3 * FAKE_BYTES);
    rig_close(&rig);
}

/* --- what is told of memory that no step asked for (E11) --- */

static size_t run_count_of(const struct rig *rig)
{
    size_t count = 0;
    for (size_t i = 0; i < RUNS_MAX; i++) {
        count += rig->instance->runs[i].run != NULL ? 1 : 0;
    }
    return count;
}

struct told {
    struct berth_engine_watch watch;
    const struct berth_engine_model *model;
    _Atomic size_t count;
    _Atomic uint64_t bytes, bytes_max;
};

static void on_grown(struct berth_engine_watch *watch)
{
    struct told *told = BERTH_CONTAINER_OF(watch, struct told, watch);
    uint64_t bytes = berth_engine_parakeet.model_bytes(told->model);
    assert_false(pthread_equal(pthread_self(), tester));
    atomic_fetch_add(&told->count, 1);
    atomic_store(&told->bytes, bytes);
    if (bytes > atomic_load(&told->bytes_max)) {
        atomic_store(&told->bytes_max, bytes);
    }
}

/* The preparer's device, then each piece that the instances made: the last word says it all. */
static void test_growth_is_told(void **state)
{
    struct rig rig;
    rig_must(&rig);
    struct told told = {.watch.grown = on_grown, .model = rig.model};
    berth_engine_parakeet.model_watch(rig.model, &told.watch);
    berth_parakeet_step_begin(); /* nothing is prepared meanwhile */
    hear(&rig, 2);
    uint64_t heard = rig.model->bytes + atomic_load(&rig.model->instance_bytes);
    size_t runs = run_count_of(&rig);
    const size_t most = 1 + rig.model->preparer.shape_count;
    berth_parakeet_step_end();
    while (atomic_load(&told.bytes) <= heard + FAKE_BYTES) {
        (void)sched_yield();
    }
    berth_parakeet_preparer_stop(&rig.model->preparer);
    assert_true(run_count_of(&rig) > runs);
    assert_int_equal(atomic_load(&told.bytes), berth_engine_parakeet.model_bytes(rig.model));
    assert_true(atomic_load(&told.bytes) > heard);
    assert_true(atomic_load(&told.count) >= 2 && atomic_load(&told.count) <= most);
    rig_close(&rig);
}

/* --- what is refused, forgotten, given back --- */

static void test_config_the_device_does_not_take(void **state)
{
    struct berth_err err = {.code = BERTH_OK};
    struct rig rig;
    heads_refused = true;
    assert_int_equal(rig_open(&rig, &berth_engine_parakeet, golden_model(), NULL, &err),
                     BERTH_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "it takes none"));
    rig_close(&rig);
    heads_refused = false; /* described where it runs, and then loaded where it does not */
    rig_must(&rig);
    heads_refused = true;
    struct berth_engine_model *model = NULL;
    uint64_t bytes = 0;
    assert_int_equal(berth_engine_parakeet.weights_bytes(rig.spec, &bytes, &err),
                     BERTH_UNSUPPORTED);
    assert_int_equal(berth_engine_parakeet.model_attach(rig.spec, rig.weights, &model, &err),
                     BERTH_UNSUPPORTED);
    assert_null(model);
    rig_close(&rig);
}

static void test_graphs_go_with_their_runs(void **state)
{
    struct rig rig;
    fake.prepare = NULL;
    rig_must(&rig);
    hear(&rig, 2);
    hear(&rig, 3);
    hear(&rig, 5);
    assert_int_equal(graph_count, 3);
    assert_int_equal(run_count_of(&rig), 3);
    assert_true(forget_oldest(rig.instance));
    assert_int_equal(graph_count, 2);
    rig_close(&rig);
    assert_int_equal(graph_count, 0);
}

static void test_memory_runs_out(void **state)
{
    struct rig rig;
    fake.prepare = NULL;
    rig_must(&rig);
    for (int i = 0; i < 2; i++) { /* at a graph, and at a run's memory */
        hear(&rig, 2);
        hear(&rig, 3);
        hear(&rig, 5);
        assert_int_equal(run_count_of(&rig), 3);
        starve_count = i == 0 ? 2 : 0;
        alloc_refusals = i == 0 ? 0 : 2;
        hear(&rig, 9); /* two of the three are given back, those used longest ago */
        assert_int_equal(starve_count + alloc_refusals, 0);
        assert_int_equal(run_count_of(&rig), 2);
        assert_non_null(find_run(rig.instance, bucket_of(rig.model, 5 * BERTH_SPEECH_RATE), 1));
        assert_int_equal(graph_count, 2);
        while (forget_oldest(rig.instance)) {
        }
        assert_int_equal(rig.instance->run_bytes, 0);
    }
    rig_close(&rig);
}

/* Nothing is left to give back: the rows are told, and the next one is heard. */
static void test_no_memory_at_all(void **state)
{
    struct rig rig;
    fake.prepare = NULL;
    rig_must(&rig);
    for (int i = 0; i < 2; i++) {
        while (forget_oldest(rig.instance)) {
        }
        hear(&rig, 2);
        starve_count = i == 0 ? 100 : 0;
        alloc_refusals = i == 0 ? 0 : 100;
        assert_int_equal(hear_as(&rig, 5), BERTH_UNAVAILABLE);
        starve_count = alloc_refusals = 0;
        hear(&rig, 5);
    }
    rig_close(&rig);
}

/* A row that the device calls full ends with an error, not with what there was room for. */
static void test_full_row(void **state)
{
    struct rig rig;
    fake.prepare = NULL;
    rig_must(&rig);
    overfull = true;
    assert_int_equal(hear_as(&rig, 3), BERTH_INTERNAL);
    overfull = false;
    hear(&rig, 3);
    rig_close(&rig);
}

/* --- runs and graphs made ahead --- */

/* Until nothing comes any more. */
static void wait_for_runs(struct rig *rig, size_t count)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    while (count_of(&graph_count) < count) {
        (void)nanosleep(&moment, NULL);
    }
    berth_parakeet_preparer_stop(&rig->model->preparer);
}

/* Of the buckets in their order, how many runs fit beside the one that was asked for. */
static size_t runs_expected(const struct rig *rig, uint64_t *bytes)
{
    const struct berth_engine_model *model = rig->model;
    size_t count = 1;
    for (uint32_t i = 0; i < model->preparer.shape_count && count < RUNS_MAX; i++) {
        const struct berth_parakeet_shape *shape = &model->preparer.shapes[i];
        uint64_t more = berth_parakeet_run_bytes(model->ops, &model->config, shape);
        bool asked = shape->rows == 1 && shape->padded.samples == 4 * BERTH_SPEECH_RATE;
        if (!asked && *bytes + more <= rig->instance->run_bytes_max / 2) {
            *bytes += more;
            count++;
        }
    }
    return count;
}

static void test_runs_ahead(void **state)
{
    struct rig rig;
    rig_must(&rig);
    assert_int_equal(count_of(&graph_count), 0); /* nothing before the first request */
    hear(&rig, 3);
    uint64_t bytes = rig.instance->run_bytes;
    size_t count = runs_expected(&rig, &bytes);
    assert_in_range(count, 4, RUNS_MAX);
    wait_for_runs(&rig, count);
    assert_int_equal(run_count_of(&rig), count);
    assert_int_equal(rig.instance->run_bytes, bytes);
    assert_int_equal(recorded, 1);
    hear(&rig, 2); /* is there */
    hear(&rig, 7);
    assert_int_equal(recorded, 1);
    assert_int_equal(run_count_of(&rig), count);
    /* A large one takes the place of those that nobody used. */
    uint32_t last = rig.model->bucket_count - 1;
    struct kept_run *large = NULL;
    struct berth_err err = {.code = BERTH_OK};
    assert_int_equal(create_run(rig.instance, last, bucket_rows_max(rig.model, last), &large, &err),
                     BERTH_OK);
    assert_non_null(find_run(rig.instance, bucket_of(rig.model, 7 * BERTH_SPEECH_RATE), 1));
    rig_close(&rig);
    assert_int_equal(graph_count, 0);
}

static void test_nothing_ahead(void **state)
{
    struct rig rig;
    rig_must(&rig); /* no memory: then it is left at that */
    hear(&rig, 3);
    struct berth_parakeet_shape shape = {.rows = 1, .padded = rig.model->buckets[0]};
    berth_parakeet_preparer_stop(&rig.model->preparer);
    alloc_refusals = 1;
    size_t before = run_count_of(&rig);
    size_t forgotten = count_of(&forget_count);
    assert_int_equal(make_ahead(rig.model, &shape),
                     before == 1 ? BERTH_PARAKEET_AHEAD_FULL : BERTH_PARAKEET_AHEAD_ON);
    assert_int_equal(run_count_of(&rig), before);
    assert_int_equal(count_of(&forget_count), forgotten); /* nothing of it was with the device */
    alloc_refusals = 0;
    rig.instance->active = &rig.instance->runs[0]; /* and a run under way is left alone */
    assert_int_equal(make_ahead(rig.model, &shape), BERTH_PARAKEET_AHEAD_BUSY);
    rig.instance->active = NULL;
    assert_int_equal(run_count_of(&rig), before);
    rig_close(&rig);

    (void)reset(state);
    fake.prepare = NULL;
    rig_must(&rig);
    hear(&rig, 3);
    assert_int_equal(run_count_of(&rig), 1);
    rig_close(&rig);
}

#define BUSY_CALLS 12

static _Atomic uint32_t ahead_calls;

static enum berth_parakeet_ahead busy_ahead(void *context,
                                            const struct berth_parakeet_shape *shape)
{
    return atomic_fetch_add(&ahead_calls, 1) < BUSY_CALLS ? BERTH_PARAKEET_AHEAD_BUSY
                                                          : BERTH_PARAKEET_AHEAD_FULL;
}

/* An instance may stay busy without a step, as a run's last client left: it is looked at now and
 * then, not all the time. */
static void test_busy_ahead(void **state)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    struct rig rig;
    rig_must(&rig);
    struct berth_parakeet_preparer preparer = rig.model->preparer;
    preparer.ahead = busy_ahead;
    preparer.shape_count = 1;
    atomic_store(&ahead_calls, 0);
    uint64_t t_begin_ns = berth_clock_now_ns();
    berth_parakeet_preparer_start(&preparer);
    while (atomic_load(&ahead_calls) <= BUSY_CALLS) {
        (void)nanosleep(&moment, NULL);
    }
    assert_true(berth_clock_now_ns() - t_begin_ns >= BUSY_CALLS * 5 * BERTH_NS_PER_MS);
    berth_parakeet_preparer_stop(&preparer);
    assert_int_equal(atomic_load(&ahead_calls), BUSY_CALLS + 1);
    rig_close(&rig);
}

/* Steps without time: each looks for windows of one row, and all rows end. */
static void test_planning_without_time(void **state)
{
    static struct job jobs[3];
    static struct berth_step_result result;
    static const size_t seconds[] = {300, 2, 90};
    struct rig rig;
    size_t count = 0, left = 0, steps = 0;
    float *spoken = golden_pcm(0, &count);
    fake.record = NULL;
    fake.prepare = NULL;
    rig_must(&rig);
    memset(jobs, 0, sizeof(jobs));
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) { /* a word or two, then silence */
        float *samples = berth_alloc(seconds[i] * BERTH_SPEECH_RATE * sizeof(*samples));
        memcpy(samples, spoken, 2 * BERTH_SPEECH_RATE * sizeof(*samples));
        jobs[i].samples = samples;
        jobs[i].count = seconds[i] * BERTH_SPEECH_RATE;
        left += job_start(&rig, &jobs[i]) ? 1 : 0;
    }
    for (; left > 0; steps++) {
        struct berth_err err = {.code = BERTH_OK};
        assert_int_equal(rig.ops->step(rig.instance, 0, &result, &err), BERTH_OK);
        left -= jobs_take(jobs, BERTH_COUNT_OF(jobs), &result);
        assert_true(steps < 10000);
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        assert_int_equal(jobs[i].answer.code, BERTH_OK);
        assert_true(jobs[i].answer.token_count > 0);
        berth_request_release(jobs[i].request);
    }
    jobs_drop(jobs, BERTH_COUNT_OF(jobs));
    berth_free(spoken);
    rig_close(&rig);
}

static void test_rows_of_a_run(void **state)
{
    assert_int_equal(rows_max(true, 1, 16), 64); /* on a GPU the sound counts, not the slots */
    assert_int_equal(rows_max(true, 1, 32), 32);
    assert_int_equal(rows_max(true, 64, 120), 8);
    assert_int_equal(rows_max(false, 3, 2), 4);
    assert_int_equal(rows_max(false, 64, 2), 16);
    assert_int_equal(rows_max(false, 8, 32), 1);
    assert_int_equal(rows_max(false, 8, 120), 1);
}

static void test_estimate_holds(void **state)
{
    struct rig rig;
    rig_must(&rig);
    uint64_t most = rig.spec->bytes_estimate;
    for (size_t seconds = 2; seconds < 12; seconds += 3) {
        hear(&rig, seconds);
        assert_true(rig.weights.bytes + berth_engine_parakeet.model_bytes(rig.model) < most);
    }
    struct berth_instance_group groups[] = {{.kind = BERTH_KIND_CPU, .count = 1}};
    struct choices choices = {.slot_count = 8, .window_seconds = 32};
    struct berth_model_spec spec = {.groups = groups, .group_count = 1};
    uint64_t one = estimate_anywhere(&spec, &choices, &rig.model->config, &fake);
    groups[0].count = 3;
    uint64_t three = estimate_anywhere(&spec, &choices, &rig.model->config, &fake);
    assert_int_equal(three - one, 2 * (one - rig.model->weight_bytes));
    groups[0].kind = BERTH_KIND_AUTO;
    assert_int_equal(estimate_anywhere(&spec, &choices, &rig.model->config, &fake), three);
    environment.gpu = true; /* where a model may go there */
    assert_true(estimate_anywhere(&spec, &choices, &rig.model->config, &fake) > three);
    groups[0].kind = BERTH_KIND_CPU;
    assert_int_equal(estimate_anywhere(&spec, &choices, &rig.model->config, &fake), three);
    environment.gpu = false;
    /* A GPU's runs have nothing that the host fills, also where its operations are not built in. */
    uint64_t there = estimate(&spec, &choices, &rig.model->config, &fake, true);
    struct berth_parakeet_ops plain = fake;
    plain.record = NULL;
    assert_int_equal(estimate(&spec, &choices, &rig.model->config, &plain, true), there);
    assert_int_equal(estimate_anywhere(&spec, &choices, &rig.model->config, &plain), three);
    print_message("estimates: one instance %llu MB, on a GPU %llu MB\n",
                  (unsigned long long)one >> 20,
                  (unsigned long long)estimate(&spec, &choices, &rig.model->config, &fake, true) >>
                      20);
    rig_close(&rig);
}

int main(void)
{
    tester = pthread_self();
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_rest_behind, reset),
                                       cmocka_unit_test_setup(test_busy, reset),
                                       cmocka_unit_test_setup(test_detach_in_the_middle, reset),
                                       cmocka_unit_test_setup(test_less_is_prepared, reset),
                                       cmocka_unit_test_setup(test_kept_bytes, reset),
                                       cmocka_unit_test_setup(test_growth_is_told, reset),
                                       cmocka_unit_test_setup(
                                           test_config_the_device_does_not_take, reset),
                                       cmocka_unit_test_setup(test_graphs_go_with_their_runs,
                                                              reset),
                                       cmocka_unit_test_setup(test_memory_runs_out, reset),
                                       cmocka_unit_test_setup(test_no_memory_at_all, reset),
                                       cmocka_unit_test_setup(test_full_row, reset),
                                       cmocka_unit_test_setup(test_runs_ahead, reset),
                                       cmocka_unit_test_setup(test_nothing_ahead, reset),
                                       cmocka_unit_test_setup(test_busy_ahead, reset),
                                       cmocka_unit_test_setup(test_planning_without_time, reset),
                                       cmocka_unit_test_setup(test_rows_of_a_run, reset),
                                       cmocka_unit_test_setup(test_estimate_holds, reset)};
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
