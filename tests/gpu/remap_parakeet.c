/* remap_parakeet.c - a Parakeet model's weights given back, and taken and loaded again, under a
 * model that stays: shows on a card that it answers as before, with the graphs it had.
 *
 * The model is loaded as a worker loads it, through the engine's table, and hears recordings of
 * several lengths, alone and together, so that many buckets have graphs. Then, round by round: the
 * span is unmapped, other memory is taken and filled, the span mapped at the same addresses, the
 * weights loaded, and everything heard again, to the same bits, with no new capture and no new
 * choice of an algorithm. Beside it: memory is really given back; a map that finds no memory can be
 * tried again; and it is the memory at those addresses that the graphs read.
 *
 * usage: remap_parakeet [--clips FOLDER] [--rounds N] [--few] MODEL
 * MODEL is a model's folder; that of the clips (MODEL/golden) holds pcm0.s16 to pcm11.s16; --few
 * hears three of them in three buckets, for compute-sanitizer; 10 rounds unless it is said.
 * Prints PASS or FAIL for each claim and figures; exit status 0 when none failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

/* Of the engine's insides its preparer is used: it is stopped, so that captures and choices which
 * are counted are the rounds' own. */
#include "engine/parakeet/parakeet.c"

#include "engine/parakeet/cuda/cuda_device.h"

#include "claims.h"
#include "../unit/speech_rig.h"

#define DEVICE "cuda:0"
#define THREADS 4
#define CLIP_COUNT 12
#define ALONE_COUNT 6
#define ANSWER_COUNT (ALONE_COUNT + CLIP_COUNT)
#define FEW_COUNT 3
#define ROUNDS_MAX 1000
#define TIMED 2 /* of those alone: the recording whose answer is timed, of about 7 s */
#define WARM 10
#define CHUNKS_MAX 4096

struct clip {
    float *samples;
    size_t count;
};

struct sounds {
    struct clip clips[CLIP_COUNT];
    size_t together_count;          /* of the clips */
    struct clip alone[ALONE_COUNT]; /* heard one by one, a bucket each but the last */
    size_t alone_count;
};

struct settings {
    const char *folder, *clips;
    int rounds;
    bool few;
};

/* Everything the final parts said. */
struct answers {
    struct berth_buf raw[ANSWER_COUNT];
    size_t count, tokens;
};

struct times {
    double unmap[ROUNDS_MAX], map[ROUNDS_MAX], load[ROUNDS_MAX], answer[ROUNDS_MAX];
    double whole[ROUNDS_MAX]; /* map, load and answer */
};

static void print_times(const char *what, double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare_double);
    printf("      %-34s median %8.3f ms, %8.3f to %8.3f\n", what, values[count / 2], values[0],
           values[count - 1]);
}

static size_t bytes_free(void)
{
    size_t left = 0, whole = 0;
    CUDA(cudaMemGetInfo(&left, &whole));
    return left;
}

/* --- recordings --- */

static struct clip read_clip(const char *folder, int index)
{
    char path[4352];
    struct clip clip = {.samples = NULL};
    snprintf(path, sizeof(path), "%s/pcm%d.s16", folder, index);
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        printf("FAIL  cannot open %s\n", path);
        exit(2);
    }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    clip.count = (size_t)ftell(file) / sizeof(int16_t);
    rewind(file);
    int16_t *stored = berth_alloc(clip.count * sizeof(*stored));
    clip.samples = berth_alloc(clip.count * sizeof(*clip.samples));
    assert_true(stored != NULL && clip.samples != NULL);
    assert_int_equal(fread(stored, sizeof(*stored), clip.count, file), clip.count);
    for (size_t i = 0; i < clip.count; i++) {
        clip.samples[i] = (float)stored[i] / 32768.0F;
    }
    berth_free(stored);
    fclose(file);
    return clip;
}

/* One recording after the other. */
static struct clip join(const struct clip *clips, size_t clip_count)
{
    struct clip joined = {.samples = NULL};
    for (size_t i = 0; i < clip_count; i++) {
        joined.count += clips[i].count;
    }
    joined.samples = berth_alloc(joined.count * sizeof(float));
    assert_non_null(joined.samples);
    for (size_t i = 0, at = 0; i < clip_count; at += clips[i++].count) {
        memcpy(joined.samples + at, clips[i].samples, clips[i].count * sizeof(float));
    }
    return joined;
}

/* Alone: 1.9 s, 3.1 s, 6.8 s, 8.1 s, 15 s (buckets 2, 4, 8, 12, 16) and 54 s, in windows. */
static void read_sounds(const struct settings *settings, struct sounds *out)
{
    for (int i = 0; i < CLIP_COUNT; i++) {
        out->clips[i] = read_clip(settings->clips, i);
    }
    out->together_count = settings->few ? 0 : CLIP_COUNT;
    out->alone_count = settings->few ? FEW_COUNT : ALONE_COUNT;
    out->alone[0] = (struct clip){out->clips[8].samples, 19 * BERTH_SPEECH_RATE / 10};
    assert_true(out->alone[0].count <= out->clips[8].count);
    out->alone[1] = out->clips[3];
    out->alone[TIMED] = out->clips[2];
    out->alone[3] = out->clips[5];
    out->alone[4] = join(out->clips, 3);
    out->alone[5] = join(out->clips, CLIP_COUNT);
}

static void free_sounds(struct sounds *sounds)
{
    for (int i = 0; i < CLIP_COUNT; i++) {
        berth_free(sounds->clips[i].samples);
    }
    berth_free(sounds->alone[4].samples);
    berth_free(sounds->alone[5].samples);
}

/* --- answers --- */

static struct berth_buf take_answer(struct job *job, size_t *tokens)
{
    struct berth_buf raw = job->answer.raw;
    *tokens += job->answer.token_count;
    job->answer.raw = (struct berth_buf){.bytes = NULL};
    answer_drop(&job->answer);
    return raw;
}

static void hear(struct rig *rig, const struct sounds *sounds, struct answers *out)
{
    static struct job jobs[CLIP_COUNT];
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < sounds->alone_count; i++) {
        memset(jobs, 0, sizeof(jobs));
        jobs[0].samples = sounds->alone[i].samples;
        jobs[0].count = sounds->alone[i].count;
        jobs_run(rig, jobs, 1);
        assert_int_equal(jobs[0].answer.code, BERTH_OK);
        out->raw[out->count++] = take_answer(&jobs[0], &out->tokens);
    }
    memset(jobs, 0, sizeof(jobs));
    for (size_t i = 0; i < sounds->together_count; i++) {
        jobs[i].samples = sounds->clips[i].samples;
        jobs[i].count = sounds->clips[i].count;
    }
    jobs_run(rig, jobs, sounds->together_count);
    for (size_t i = 0; i < sounds->together_count; i++) {
        assert_int_equal(jobs[i].answer.code, BERTH_OK);
        out->raw[out->count++] = take_answer(&jobs[i], &out->tokens);
    }
}

static void answers_drop(struct answers *answers)
{
    for (size_t i = 0; i < answers->count; i++) {
        berth_buf_finish(&answers->raw[i]);
    }
}

static bool same(const struct berth_buf *a, const struct berth_buf *b)
{
    return a->length > 0 && a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

static bool hears_as(struct rig *rig, const struct sounds *sounds, const struct answers *want)
{
    struct answers got;
    size_t good = 0;
    hear(rig, sounds, &got);
    for (size_t i = 0; i < got.count; i++) {
        good += same(&got.raw[i], &want->raw[i]) ? 1 : 0;
    }
    answers_drop(&got);
    return good == want->count;
}

/* From the request to its last event; whether the answer was that one. */
static double time_answer(struct rig *rig, const struct sounds *sounds, const struct answers *want,
                          bool *as_before)
{
    static struct job job;
    size_t tokens = 0;
    memset(&job, 0, sizeof(job));
    job.samples = sounds->alone[TIMED].samples;
    job.count = sounds->alone[TIMED].count;
    double begun = now_ms();
    jobs_run(rig, &job, 1);
    double took = now_ms() - begun;
    *as_before = job.answer.code == BERTH_OK;
    struct berth_buf raw = take_answer(&job, &tokens);
    *as_before = *as_before && same(&raw, &want->raw[TIMED]);
    berth_buf_finish(&raw);
    return took;
}

/* --- the model --- */

static void open_model(struct rig *rig, const char *folder)
{
    uint64_t bytes = 0;
    memset(rig, 0, sizeof(*rig));
    rig->ops = &berth_engine_parakeet;
    rig->weights.fd = -1;
    rig->spec = berth_spec_create();
    assert_non_null(rig->spec);
    rig->spec->name = "remap";
    rig->spec->folder = folder;
    rig->spec->folder_version = folder;
    OURS(rig->ops->describe(rig->spec, &ours));
    OURS(rig->ops->weights_bytes(rig->spec, &bytes, &ours));
    OURS(berth_span_create(DEVICE, bytes, &rig->weights, &ours));
    double begun = now_ms();
    OURS(rig->ops->weights_load(rig->spec, rig->weights, &ours));
    printf("      first load %.1f ms, of %.1f MiB\n", now_ms() - begun,
           (double)rig->weights.bytes / 1048576.0);
    OURS(rig->ops->model_attach(rig->spec, rig->weights, &rig->model, &ours));
    OURS(rig->ops->instance_create(rig->model, 0, &rig->instance, &ours));
}

static void close_model(struct rig *rig)
{
    rig->ops->instance_destroy(rig->instance);
    rig->ops->model_detach(rig->model);
    berth_span_destroy(DEVICE, &rig->weights);
    berth_spec_release(rig->spec);
}

/* Takes all of the device's memory but less than `left`; returns how many chunks. */
static size_t take_all(void **chunks, size_t left)
{
    size_t count = 0;
    for (size_t chunk = (size_t)4 << 30; chunk >= left / 2 && count < CHUNKS_MAX;) {
        if (cudaMalloc(&chunks[count], chunk) == cudaSuccess) {
            count++;
        } else {
            (void)cudaGetLastError();
            chunk /= 2;
        }
    }
    return count;
}

static void test_no_memory(struct rig *rig)
{
    static void *chunks[CHUNKS_MAX];
    void *address = rig->weights.address;
    size_t mapped = bytes_free();
    OURS(berth_span_unmap(DEVICE, &rig->weights, &ours));
    size_t unmapped = bytes_free();
    printf("      free %zu MiB mapped, %zu MiB unmapped; the span has %zu MiB\n", mapped >> 20,
           unmapped >> 20, rig->weights.bytes >> 20);
    claim(unmapped >= mapped + rig->weights.bytes / 100 * 99 && rig->weights.unmapped,
          "an unmapped span's memory is given back to the device");
    size_t count = take_all(chunks, rig->weights.bytes);
    struct berth_err err = {.code = BERTH_OK};
    enum berth_code first = berth_span_map(DEVICE, &rig->weights, &err);
    enum berth_code second = berth_span_map(DEVICE, &rig->weights, &err);
    printf("      %zu chunks taken; map: %s: %s\n", count, berth_code_name(first), err.msg);
    claim(first == BERTH_UNAVAILABLE && second == BERTH_UNAVAILABLE && rig->weights.unmapped,
          "a map that finds no memory is UNAVAILABLE, and the span stays unmapped");
    for (size_t i = 0; i < count; i++) {
        CUDA(cudaFree(chunks[i]));
    }
    OURS(berth_span_map(DEVICE, &rig->weights, &ours));
    claim(rig->weights.address == address && !rig->weights.unmapped,
          "once there is memory, it is mapped at the same addresses");
}

static void test_zeros(struct rig *rig, const struct sounds *sounds, const struct answers *want)
{
    bool as_before = true;
    CUDA(cudaMemset(rig->weights.address, 0, rig->weights.bytes));
    CUDA(cudaDeviceSynchronize());
    (void)time_answer(rig, sounds, want, &as_before);
    claim(!as_before, "over zeros the same graph answers otherwise: it reads that memory");
    OURS(rig->ops->weights_load(rig->spec, rig->weights, &ours));
    claim(hears_as(rig, sounds, want), "and as before once the weights are loaded");
}

/* Whether the first answer and all after it were as before. */
static bool away_and_back(struct rig *rig, const struct sounds *sounds, const struct answers *want,
                          struct times *times, int round)
{
    void *other = NULL;
    bool as_before = false;
    double t0 = now_ms();
    OURS(berth_span_unmap(DEVICE, &rig->weights, &ours));
    double t1 = now_ms();
    CUDA(cudaMalloc(&other, rig->weights.bytes));
    CUDA(cudaMemset(other, 0xA5, rig->weights.bytes));
    CUDA(cudaDeviceSynchronize());
    double t2 = now_ms();
    OURS(berth_span_map(DEVICE, &rig->weights, &ours));
    double t3 = now_ms();
    OURS(rig->ops->weights_load(rig->spec, rig->weights, &ours));
    double t4 = now_ms();
    times->answer[round] = time_answer(rig, sounds, want, &as_before);
    times->unmap[round] = t1 - t0;
    times->map[round] = t3 - t2;
    times->load[round] = t4 - t3;
    times->whole[round] = t4 - t2 + times->answer[round];
    as_before = hears_as(rig, sounds, want) && as_before;
    CUDA(cudaFree(other));
    return as_before;
}

static void test_rounds(struct rig *rig, const struct sounds *sounds, const struct answers *want,
                        int rounds)
{
    static struct times times;
    static double warm[WARM];
    char text[160];
    bool as_before = false;
    int good = 0;
    for (int i = 0; i < WARM; i++) {
        warm[i] = time_answer(rig, sounds, want, &as_before);
    }
    for (int round = 0; round < rounds; round++) {
        good += away_and_back(rig, sounds, want, &times, round) ? 1 : 0;
    }
    snprintf(text, sizeof(text), "%d of %d remaps: all %zu answers bit for bit as before", good,
             rounds, want->count);
    claim(good == rounds, text);
    print_times("unmap", times.unmap, rounds);
    print_times("map", times.map, rounds);
    print_times("load from the page cache", times.load, rounds);
    print_times("first answer", times.answer, rounds);
    print_times("map, load and first answer", times.whole, rounds);
    print_times("the same answer, no remap before", warm, WARM);
}

static void run_all(struct rig *rig, const struct sounds *sounds, int rounds)
{
    struct answers want;
    char text[160];
    uint32_t before = berth_parakeet_cuda_capture_count();
    hear(rig, sounds, &want);
    uint32_t captures = berth_parakeet_cuda_capture_count();
    snprintf(text, sizeof(text), "%zu recordings heard, %zu tokens, %u graphs captured",
             want.count, want.tokens, captures - before);
    claim(want.tokens > 0 && captures - before >= sounds->alone_count, text);
    double begun = now_ms();
    berth_parakeet_preparer_stop(&rig->model->preparer);
    printf("      preparer stopped in %.1f ms, after %u of %u buckets\n", now_ms() - begun,
           atomic_load(&rig->model->preparer.prepared), rig->model->preparer.shape_count);
    captures = berth_parakeet_cuda_capture_count();
    uint32_t algorithms = berth_parakeet_cuda_algorithm_count();
    claim(hears_as(rig, sounds, &want), "heard again, all answers are the same bit for bit");
    claim(berth_parakeet_cuda_capture_count() == captures, "and need no new capture");
    test_no_memory(rig);
    test_zeros(rig, sounds, &want);
    test_rounds(rig, sounds, &want, rounds);
    claim(berth_parakeet_cuda_capture_count() == captures, "no new capture in all this");
    claim(berth_parakeet_cuda_algorithm_count() == algorithms, "and no new choice of an algorithm");
    answers_drop(&want);
}

static bool read_settings(int argc, char **argv, struct settings *out)
{
    static char golden[4096];
    *out = (struct settings){.rounds = 10};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--few") == 0) {
            out->few = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--clips") == 0) {
            out->clips = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            out->rounds = (int)strtol(argv[++i], NULL, 10);
        } else if (argv[i][0] == '-' || out->folder != NULL) {
            return false;
        } else {
            out->folder = argv[i];
        }
    }
    if (out->folder != NULL && out->clips == NULL) {
        snprintf(golden, sizeof(golden), "%s/golden", out->folder);
        out->clips = golden;
    }
    return out->folder != NULL && out->rounds >= 1 && out->rounds <= ROUNDS_MAX;
}

int main(int argc, char **argv)
{
    struct rig rig;
    struct sounds sounds;
    struct settings settings;
    struct cudaDeviceProp device;
    if (!read_settings(argc, argv, &settings)) {
        printf("usage: remap_parakeet [--clips FOLDER] [--rounds 1 to %d] [--few] MODEL\n",
               ROUNDS_MAX);
        return 2;
    }
    read_sounds(&settings, &sounds);
    struct berth_slabs_options options = {.bytes_budget = (uint64_t)256 << 20};
    OURS(berth_slabs_create(&options, &rig_slabs, &ours));
    struct berth_engine_env env = {.slabs = rig_slabs, .threads = THREADS, .device = DEVICE};
    OURS(berth_engine_parakeet.start(&env, &ours));
    open_model(&rig, settings.folder);
    CUDA(cudaGetDeviceProperties(&device, 0));
    printf("remap_parakeet: %s, %s\n", device.name, settings.folder);
    run_all(&rig, &sounds, settings.rounds);
    close_model(&rig);
    berth_engine_parakeet.finish();
    berth_slabs_destroy(rig_slabs);
    free_sounds(&sounds);
    printf("remap_parakeet: %s: %d failed\n", failures == 0 ? "passed" : "FAILED", failures);
    return failures == 0 ? 0 : 1;
}
