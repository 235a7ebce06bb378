/* test_parakeet_engine.c - the Parakeet engine through its table on a card: what is refused, kept,
 * given back, and made ahead.
 *
 * usage: test_parakeet_engine MODEL CLIP      MODEL is a model's folder, CLIP mono s16 at 16 kHz
 * Prints PASS or FAIL for each claim and figures; exit status 0 when none failed. It takes almost
 * all of the device's memory for a moment: nothing else should use it meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>

/* Its runs, buckets and preparer are looked at. */
#include "engine/parakeet/parakeet.c"

#include "engine/parakeet/cuda/cuda_device.h"

#include "claims.h"
#include "../unit/speech_rig.h"

#define DEVICE "cuda:0"
#define JOBS_MAX 64
#define CHUNKS_MAX 4096
#define PREPARED_MS 300000.0
#define LEFT_MIN ((size_t)96 << 20) /* for the driver's own */

/* What a bucket's first answer took, and said. */
struct heard {
    enum berth_code code;
    double ms;
    struct berth_buf text;
};

static struct berth_parakeet_ops starving; /* CUDA's, but finish fails so often */
static int starve_count;

static size_t bytes_free(void)
{
    size_t left = 0, whole = 0;
    CUDA(cudaMemGetInfo(&left, &whole));
    return left;
}

/* --- the model --- */

static float *read_clip(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        printf("FAIL  cannot open %s\n", path);
        exit(2);
    }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file) / sizeof(int16_t);
    rewind(file);
    int16_t *stored = berth_alloc(*count * sizeof(*stored));
    float *samples = berth_alloc(*count * sizeof(*samples));
    assert_true(stored != NULL && samples != NULL && *count > 0);
    assert_int_equal(fread(stored, sizeof(*stored), *count, file), *count);
    for (size_t i = 0; i < *count; i++) {
        samples[i] = (float)stored[i] / 32768.0F;
    }
    berth_free(stored);
    fclose(file);
    return samples;
}

static void open_model(struct rig *rig, const char *folder, const struct berth_parakeet_ops *table)
{
    uint64_t bytes = 0;
    memset(rig, 0, sizeof(*rig));
    rig->ops = &berth_engine_parakeet;
    rig->weights.fd = -1;
    rig->spec = berth_spec_create();
    assert_non_null(rig->spec);
    rig->spec->name = "engine";
    rig->spec->folder = folder;
    rig->spec->folder_version = folder;
    OURS(rig->ops->describe(rig->spec, &ours));
    OURS(rig->ops->weights_bytes(rig->spec, &bytes, &ours));
    OURS(berth_span_create(DEVICE, bytes, &rig->weights, &ours));
    OURS(rig->ops->weights_load(rig->spec, rig->weights, &ours));
    OURS(rig->ops->model_attach(rig->spec, rig->weights, &rig->model, &ours));
    rig->model->ops = table;
    OURS(rig->ops->instance_create(rig->model, 0, &rig->instance, &ours));
}

static void close_model(struct rig *rig)
{
    rig->ops->instance_destroy(rig->instance);
    rig->ops->model_detach(rig->model);
    berth_span_destroy(DEVICE, &rig->weights);
    berth_spec_release(rig->spec);
}

/* The clip, again and again, for so many seconds, so many times at once. */
static struct heard hear(struct rig *rig, const float *clip, size_t clip_count, size_t seconds,
                         size_t rows)
{
    static struct job jobs[JOBS_MAX];
    struct heard heard = {.code = BERTH_OK};
    size_t count = seconds * BERTH_SPEECH_RATE;
    float *samples = berth_alloc(count * sizeof(*samples));
    assert_true(samples != NULL && rows <= JOBS_MAX);
    for (size_t i = 0; i < count; i++) {
        samples[i] = clip[i % clip_count];
    }
    memset(jobs, 0, sizeof(jobs));
    for (size_t i = 0; i < rows; i++) {
        jobs[i].samples = samples;
        jobs[i].count = count;
    }
    double begun = now_ms();
    jobs_run(rig, jobs, rows);
    heard.ms = now_ms() - begun;
    for (size_t i = 0; i < rows; i++) {
        heard.code = jobs[i].answer.code != BERTH_OK ? jobs[i].answer.code : heard.code;
    }
    heard.text = jobs[0].answer.text;
    jobs[0].answer.text = (struct berth_buf){.bytes = NULL};
    for (size_t i = 0; i < rows; i++) {
        answer_drop(&jobs[i].answer);
    }
    berth_free(samples);
    return heard;
}

static bool hears(struct rig *rig, const float *clip, size_t clip_count, size_t seconds,
                  size_t rows)
{
    struct heard heard = hear(rig, clip, clip_count, seconds, rows);
    berth_buf_finish(&heard.text);
    return heard.code == BERTH_OK;
}

static size_t graph_count(const struct rig *rig)
{
    size_t count = 0;
    for (int i = 0; i < BERTH_PARAKEET_CUDA_GRAPHS_MAX; i++) {
        count += rig->instance->device->graphs[i].used_at != 0 ? 1 : 0;
    }
    return count;
}

static size_t run_count_of(const struct rig *rig)
{
    size_t count = 0;
    for (size_t i = 0; i < RUNS_MAX; i++) {
        count += rig->instance->runs[i].run != NULL ? 1 : 0;
    }
    return count;
}

/* --- claims --- */

/* A model's config with one thing that no kernel takes. */
static void test_check(const char *folder)
{
    struct berth_parakeet_config good, bad;
    OURS(berth_parakeet_config_read(folder, &good, &ours));
    claim(berth_parakeet_cuda.check(&good, &ours) == BERTH_OK, "the model's config is taken");
    const struct {
        uint32_t *field, value;
        const char *name;
    } cases[] = {
        {&bad.head_dim, 96, "num_attention_heads"}, {&bad.hidden, 4104, "hidden_size"},
        {&bad.inner, 1001, "intermediate_size"},    {&bad.kernel, 33, "conv_kernel_size"},
        {&bad.channels, 12, "subsampling"},         {&bad.mels, 136, "num_mel_bins"},
        {&bad.window, 320, "win_length"},
    };
    size_t refused = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_err err = {.code = BERTH_OK};
        bad = good;
        *cases[i].field = cases[i].value;
        bool so = berth_parakeet_cuda.check(&bad, &err) == BERTH_UNSUPPORTED &&
                  strstr(err.msg, cases[i].name) != NULL;
        printf("      %s\n", err.msg);
        refused += so ? 1 : 0;
    }
    claim(refused == BERTH_COUNT_OF(cases), "what no kernel takes is refused, with its field");
}

static void test_graphs(const char *folder, const float *clip, size_t count)
{
    struct rig rig;
    size_t before = bytes_free();
    open_model(&rig, folder, &berth_parakeet_cuda);
    size_t loaded = bytes_free();
    uint64_t held = rig.weights.bytes + rig.ops->model_bytes(rig.model);
    printf("      loaded: %zu MiB of the device, %llu MiB counted; %llu MiB were estimated\n",
           (before - loaded) >> 20, (unsigned long long)held >> 20,
           (unsigned long long)rig.spec->bytes_estimate >> 20);
    atomic_store(&rig.model->preparer.started, true); /* nothing behind */
    bool good = hears(&rig, clip, count, 2, 1) && hears(&rig, clip, count, 4, 1) &&
                hears(&rig, clip, count, 8, 2) && hears(&rig, clip, count, 16, 32);
    claim(good && graph_count(&rig) == run_count_of(&rig) && run_count_of(&rig) >= 4,
          "a graph a run");
    held = rig.weights.bytes + rig.ops->model_bytes(rig.model);
    printf("      after four buckets: %zu MiB of the device, %llu MiB counted\n",
           (before - bytes_free()) >> 20, (unsigned long long)held >> 20);
    claim(held <= rig.spec->bytes_estimate, "what is held is not more than was estimated");
    size_t graphs = graph_count(&rig);
    claim(forget_oldest(rig.instance) && graph_count(&rig) + 1 == graphs,
          "a run that is given back takes its graph with it");
    claim(hears(&rig, clip, count, 2, 1), "and its bucket is heard again");
    while (forget_oldest(rig.instance)) {
    }
    claim(graph_count(&rig) == 0, "without runs there are no graphs");
    close_model(&rig);
}

static enum berth_code finish_or_starve(struct berth_parakeet_device *device,
                                        struct berth_err *err)
{
    enum berth_code code = berth_parakeet_cuda.finish(device, err);
    if (starve_count > 0 && code == BERTH_OK) {
        starve_count--;
        device->starved = true;
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory, in this test");
    }
    return code;
}

/* Takes all of the device's memory but about `left`. */
static size_t take_all(void **chunks, size_t left)
{
    size_t count = 0;
    for (size_t chunk = (size_t)4 << 30; chunk >= (size_t)1 << 20 && count < CHUNKS_MAX;) {
        if (bytes_free() > left + chunk && cudaMalloc(&chunks[count], chunk) == cudaSuccess) {
            count++;
        } else {
            (void)cudaGetLastError();
            chunk /= 2;
        }
    }
    return count;
}

static void test_memory(const char *folder, const float *clip, size_t count)
{
    static void *chunks[CHUNKS_MAX];
    struct rig rig;
    starving = berth_parakeet_cuda;
    starving.finish = finish_or_starve;
    open_model(&rig, folder, &starving);
    atomic_store(&rig.model->preparer.started, true);
    assert_true(hears(&rig, clip, count, 2, 1) && hears(&rig, clip, count, 4, 1));
    starve_count = 2;
    claim(hears(&rig, clip, count, 8, 1) && starve_count == 0 && run_count_of(&rig) == 1 &&
              graph_count(&rig) == 1,
          "a pass that finds no memory goes again without the others' runs");
    starve_count = 1;
    claim(!hears(&rig, clip, count, 8, 1) && hears(&rig, clip, count, 8, 1),
          "with nothing left to give back its rows are told, and the next are heard");
    /* In earnest: the largest bucket, then another as large, while the device is full. */
    uint32_t last = rig.model->bucket_count - 1;
    size_t seconds = rig.model->buckets[last].samples / BERTH_SPEECH_RATE;
    uint32_t rows = bucket_rows_max(rig.model, last);
    uint32_t half = bucket_of(rig.model, seconds / 2 * BERTH_SPEECH_RATE);
    uint32_t more = bucket_rows_max(rig.model, half);
    struct berth_parakeet_shape shape = {.rows = rows, .padded = rig.model->buckets[last]};
    size_t bytes = berth_parakeet_run_bytes(rig.model->ops, &rig.model->config, &shape);
    assert_true(hears(&rig, clip, count, seconds / 2, more));
    assert_true(hears(&rig, clip, count, seconds, rows)); /* its products are chosen now */
    claim(forget_oldest(rig.instance), "two large runs");
    while (forget_oldest(rig.instance)) {
    }
    assert_true(hears(&rig, clip, count, seconds / 2, more));
    size_t left = bytes / 2 > LEFT_MIN ? bytes / 2 : LEFT_MIN;
    size_t taken = take_all(chunks, left);
    printf("      %zu MiB are left; the run needs %zu MiB\n", bytes_free() >> 20, bytes >> 20);
    bool good = hears(&rig, clip, count, seconds, rows);
    if (left < bytes) {
        claim(good && run_count_of(&rig) == 1,
              "on a full device the run not used for longest makes room");
    } else {
        printf("      the model is too small for that claim\n");
    }
    for (size_t i = 0; i < taken; i++) {
        CUDA(cudaFree(chunks[i]));
    }
    claim(hears(&rig, clip, count, 2, 1), "and all goes on");
    close_model(&rig);
}

/* Until the choices are made and no more runs come. */
static void wait_until_prepared(struct rig *rig)
{
    const struct timespec moment = {.tv_nsec = 300000000};
    const struct berth_parakeet_preparer *preparer = &rig->model->preparer;
    double begun = now_ms();
    size_t runs = 0;
    for (int still = 0; still < 10 && now_ms() - begun < PREPARED_MS;) {
        (void)nanosleep(&moment, NULL);
        bool chosen = atomic_load(&preparer->prepared) == preparer->shape_count;
        pthread_mutex_lock(&rig->instance->mu);
        size_t now = run_count_of(rig);
        pthread_mutex_unlock(&rig->instance->mu);
        still = chosen && now == runs ? still + 1 : 0;
        runs = now;
    }
    printf("      prepared %u of %u buckets, %zu runs, after %.0f ms\n",
           atomic_load(&preparer->prepared), preparer->shape_count, runs, now_ms() - begun);
}

/* What was told of a model's growth (E11). */
struct told {
    struct berth_engine_watch watch;
    const struct berth_engine_model *model;
    _Atomic uint64_t bytes;
    _Atomic size_t count;
};

static void on_grown(struct berth_engine_watch *watch)
{
    struct told *told = BERTH_CONTAINER_OF(watch, struct told, watch);
    atomic_store(&told->bytes, berth_engine_parakeet.model_bytes(told->model));
    atomic_fetch_add(&told->count, 1);
}

static void test_ahead(const char *folder, const float *clip, size_t count)
{
    static const size_t lengths[] = {3, 7, 11, 15, 23};
    struct rig rig;
    struct heard first[BERTH_COUNT_OF(lengths)];
    size_t same = 0;
    open_model(&rig, folder, &berth_parakeet_cuda); /* choices first, for both rounds */
    struct told told = {.watch.grown = on_grown, .model = rig.model};
    rig.ops->model_watch(rig.model, &told.watch);
    assert_true(hears(&rig, clip, count, 2, 1));
    wait_until_prepared(&rig);
    berth_parakeet_preparer_stop(&rig.model->preparer);
    size_t runs = run_count_of(&rig);
    printf("      growth was told %zu times\n", atomic_load(&told.count));
    claim(atomic_load(&told.bytes) == rig.ops->model_bytes(rig.model),
          "what is made behind is told, to the last piece");
    claim(runs > 1 && graph_count(&rig) == runs, "runs and graphs are made behind");
    claim(rig.instance->run_bytes <= rig.instance->run_bytes_max, "within what runs may keep");
    for (size_t i = 0; i < BERTH_COUNT_OF(lengths); i++) {
        bool there = find_run(rig.instance,
                              bucket_of(rig.model, lengths[i] * BERTH_SPEECH_RATE), 1) != NULL;
        first[i] = hear(&rig, clip, count, lengths[i], 1);
        struct heard again = hear(&rig, clip, count, lengths[i], 1);
        printf("      %2zu s: first %.2f ms, again %.2f ms%s\n", lengths[i], first[i].ms, again.ms,
               there ? "" : " (was not made ahead)");
        berth_buf_finish(&again.text);
    }
    claim(graph_count(&rig) == run_count_of(&rig), "still a graph a run");
    while (forget_oldest(rig.instance)) { /* and as if nothing had been made */
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(lengths); i++) {
        struct heard own = hear(&rig, clip, count, lengths[i], 1);
        printf("      %2zu s: run and graph made for it %.2f ms\n", lengths[i], own.ms);
        same += own.code == BERTH_OK && first[i].code == BERTH_OK &&
                        strcmp(berth_buf_text(&own.text), berth_buf_text(&first[i].text)) == 0
                    ? 1
                    : 0;
        berth_buf_finish(&own.text);
        berth_buf_finish(&first[i].text);
    }
    claim(same == BERTH_COUNT_OF(lengths), "graphs made ahead say what others say");
    close_model(&rig);
}

int main(int argc, char **argv)
{
    size_t count = 0;
    struct berth_slabs_options options = {.bytes_budget = (uint64_t)1 << 30};
    struct berth_engine_env env = {.threads = 1, .device = DEVICE};
    if (argc != 3) {
        printf("usage: test_parakeet_engine MODEL CLIP.s16\n");
        return 2;
    }
    OURS(berth_slabs_create(&options, &rig_slabs, &ours));
    env.slabs = rig_slabs;
    OURS(berth_engine_parakeet.start(&env, &ours));
    float *clip = read_clip(argv[2], &count);
    CUDA(cudaFree(NULL));
    test_check(argv[1]);
    test_graphs(argv[1], clip, count);
    test_memory(argv[1], clip, count);
    test_ahead(argv[1], clip, count);
    berth_free(clip);
    berth_engine_parakeet.finish();
    berth_slabs_destroy(rig_slabs);
    printf("%s\n", failures == 0 ? "all passed" : "FAILED");
    return failures == 0 ? 0 : 1;
}
