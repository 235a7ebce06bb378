/* bench_parakeet.c - `bench parakeet [FILE.s16 | FILE.f32]...`: see the header.
 *
 * The model is loaded as the engine loads it: config, weights into a span, net, one run a bucket.
 * Rows are the given files in turn (raw mono samples at 16 kHz), or seeded clips of --seconds.
 * What is timed lies between asking (begin) and having (finish): launches and the wait are in it.
 * With --dump each bucket's inputs and outputs are written, so that a reference can be run on them.
 */
#include "cli/bench_parakeet.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/random_clip.h"
#include "cli/random_parakeet.h"
#include "engine/parakeet/encoder.h"
#include "engine/span.h"

#define CLIPS_MAX 64
#define BUCKETS_MAX 16
#define ROWS_MAX 256
#define SECONDS_MAX 600
#define WARMUP_RUNS 3
#define WARMUP_NS (300 * BERTH_NS_PER_MS)

enum stage { ENCODER, ENCODED, TOKENS, PRODUCTS, STAGE_COUNT };

static const struct {
    const char *name; /* of --stages and in the JSON */
    enum berth_parakeet_extent extent;
} stages[STAGE_COUNT] = {
    [ENCODER] = {"encoder", BERTH_PARAKEET_ENCODER_ALONE},
    [ENCODED] = {"encoded", BERTH_PARAKEET_TO_ENCODED},
    [TOKENS] = {"tokens", BERTH_PARAKEET_WHOLE},
    [PRODUCTS] = {"products", BERTH_PARAKEET_WHOLE}, /* no run: see bench_products.c */
};

struct clip {
    float *pcm; /* owns */
    uint32_t samples;
};

struct bench {
    const struct berth_config *options;
    bool wanted[STAGE_COUNT];
    uint32_t rows[BUCKETS_MAX];
    size_t bucket_count;
    struct clip clips[CLIPS_MAX]; /* of the files; none: seeded ones */
    size_t clip_count;
    uint32_t samples_max;
    char folder[PATH_MAX];
    bool folder_temporary;
    uint32_t threads;
    const struct berth_parakeet_ops *ops;
    struct berth_parakeet_device *device;
    struct berth_parakeet_config model;
    struct berth_parakeet_weights weights;
    struct berth_span span;
    struct berth_parakeet_net *net;
    double load_s;
    json_t *buckets; /* owns */
};

/* One bucket while it is measured. */
struct bucket {
    struct berth_parakeet_shape shape;
    struct berth_parakeet_run *run;
    uint32_t samples[ROWS_MAX];
    double seconds; /* of audio in all rows */
    struct berth_bench_times times[STAGE_COUNT];
    struct berth_parakeet_tokens tokens; /* lent by the run */
};

static enum berth_code read_options(struct bench *bench, struct berth_err *err);
static enum berth_code check_words(const struct berth_config *options, struct berth_err *err);
static enum berth_code read_clip(const char *path, struct clip *out, struct berth_err *err);
static enum berth_code open_folder(struct bench *bench, struct berth_err *err);
static enum berth_code open_model(struct bench *bench, struct berth_err *err);
static void close_model(struct bench *bench);
static void remove_folder(const char *path);
static enum berth_code measure(struct bench *bench, uint32_t rows, struct berth_err *err);
static enum berth_code fill_rows(struct bench *bench, struct bucket *bucket,
                                 struct berth_err *err);
static enum berth_code run_once(struct bucket *bucket, struct berth_err *err);
static enum berth_code time_stage(struct bucket *bucket, enum stage stage, struct berth_err *err);
static enum berth_code time_products(struct bench *bench, struct bucket *bucket,
                                     struct berth_err *err);
static void sort_times(struct berth_bench_times *times);
static json_t *bucket_json(struct bench *bench, const struct bucket *bucket);
static void print_head(const struct bench *bench);
static void print_bucket(const json_t *bucket);
static enum berth_code dump(struct bench *bench, struct bucket *bucket, struct berth_err *err);

int berth_cli_bench_parakeet(const struct berth_config *config)
{
    struct berth_err err = {0};
    enum berth_code code = BERTH_OK;
    struct bench *bench = berth_alloc(sizeof(*bench));
    if (bench == NULL) {
        code = berth_fail(&err, BERTH_UNAVAILABLE, "no memory");
        goto out;
    }
    bench->options = config;
    bench->buckets = json_array();
    signal(SIGPIPE, SIG_IGN); /* a reader who leaves is an error of printing; the folder goes */
    code = read_options(bench, &err);
    if (code == BERTH_OK) {
        code = open_folder(bench, &err);
    }
    if (code == BERTH_OK) {
        code = open_model(bench, &err);
    }
    if (code == BERTH_OK && !config->json) {
        print_head(bench);
    }
    for (size_t i = 0; code == BERTH_OK && i < bench->bucket_count && berth_cli_printed(); i++) {
        code = measure(bench, bench->rows[i], &err);
    }
    if (code == BERTH_OK && config->json) {
        json_t *root = json_pack("{s:s, s:s, s:f, s:I, s:O}", "device", config->device, "model",
                                 bench->folder, "load_s", bench->load_s, "weights_bytes",
                                 (json_int_t)bench->span.bytes, "buckets", bench->buckets);
        json_dumpf(root, stdout, JSON_REAL_PRECISION(7));
        puts("");
        json_decref(root);
    }
out:
    if (bench != NULL) {
        close_model(bench);
        json_decref(bench->buckets);
    }
    berth_free(bench);
    return code == BERTH_OK ? 0 : berth_cli_fail(&err);
}

int berth_cli_bench_parakeet_main(int argc, char **argv)
{
    struct berth_config config = {0};
    struct berth_err err = {0};
    int status = 2;
    if (berth_config_parse(&config, BERTH_CMD_BENCH, argc, argv, &err) == BERTH_OK) {
        status = berth_cli_bench_parakeet(&config);
    } else {
        berth_cli_fail(&err);
    }
    berth_config_finish(&config);
    return berth_cli_end(status);
}

/* The next word of a list separated by commas; false at its end. */
static bool next_word(const char **at, char *out, size_t bytes)
{
    size_t length = strcspn(*at, ",");
    snprintf(out, bytes, "%.*s", (int)length, *at);
    *at += length;
    *at += **at == ',';
    return length > 0;
}

static enum berth_code read_options(struct bench *bench, struct berth_err *err)
{
    const struct berth_config *options = bench->options;
    char word[32];
    const char *at = options->stages;
    BERTH_TRY(check_words(options, err));
    while (next_word(&at, word, sizeof(word))) {
        size_t i = 0;
        while (i < STAGE_COUNT && strcmp(word, stages[i].name) != 0) {
            i++;
        }
        if (i == STAGE_COUNT) {
            return berth_cli_misuse(
                err, "--stages '%s': there are encoder, encoded, tokens, products", word);
        }
        bench->wanted[i] = true;
    }
    at = options->rows;
    while (next_word(&at, word, sizeof(word))) {
        char *end = NULL;
        unsigned long rows = strtoul(word, &end, 10);
        if (*end != '\0' || rows == 0 || rows > ROWS_MAX || bench->bucket_count == BUCKETS_MAX) {
            bench->bucket_count = 0;
            break;
        }
        bench->rows[bench->bucket_count++] = (uint32_t)rows;
    }
    if (bench->bucket_count == 0 || *at != '\0') {
        return berth_cli_misuse(err, "--rows '%.60s' is not 1 to %d numbers of 1 to %d, with "
                                "commas between", options->rows, BUCKETS_MAX, ROWS_MAX);
    }
    if (options->arguments.count > CLIPS_MAX + 1) {
        return berth_cli_misuse(err, "at most %d files", CLIPS_MAX);
    }
    for (size_t i = 1; i < options->arguments.count; i++) {
        struct clip *clip = &bench->clips[bench->clip_count++];
        BERTH_TRY(read_clip(options->arguments.items[i], clip, err));
        if (clip->samples > bench->samples_max) {
            bench->samples_max = clip->samples;
        }
    }
    if (bench->clip_count == 0) {
        bench->samples_max =
            (uint32_t)lround(options->clip_seconds * BERTH_PARAKEET_SAMPLE_RATE);
    }
    if (berth_parakeet_lengths_of(bench->samples_max).frames == 0) {
        return berth_fail(err, BERTH_INVALID, "no clip has 10 ms of sound");
    }
    if (options->random[0] == '\0' && options->model[0] == '\0') {
        return berth_cli_misuse(err, "--model is needed: a model's folder; or --random 0.6b");
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof(cores), &cores);
    bench->threads = (uint32_t)options->cpu_threads;
    if (bench->threads == 0) {
        bench->threads = (uint32_t)CPU_COUNT(&cores);
    }
    return BERTH_OK;
}

/* What the options say beside numbers. */
static enum berth_code check_words(const struct berth_config *options, struct berth_err *err)
{
    bool random = options->random[0] != '\0';
    if (options->stages[0] == '\0') {
        return berth_cli_misuse(err, "--stages names nothing to time");
    }
    if (strcmp(options->precision, "fp16") != 0 && strcmp(options->precision, "fp8") != 0) {
        return berth_cli_misuse(err, "--precision '%.40s' is not fp16 or fp8", options->precision);
    }
    if (options->keep[0] != '\0' && !random) {
        return berth_cli_misuse(err, "--keep is for the model of --random, which is not given");
    }
    if (berth_parakeet_backend(options->device) == NULL) {
        return berth_cli_misuse(err, "--device '%.60s': this program has none; berth has cpu:0, "
                                "berth-cuda cuda:0", options->device);
    }
    return BERTH_OK;
}

static enum berth_code read_clip(const char *path, struct clip *out, struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_err why = {0};
    uint64_t file_bytes = 0;
    int fd = -1;
    const char *ending = strrchr(path, '.');
    bool integers = ending != NULL && strcmp(ending, ".s16") == 0;
    size_t width = integers ? sizeof(int16_t) : sizeof(float);
    char *bytes = NULL;
    if (berth_cli_open_audio(path, &fd, &file_bytes, &why) != BERTH_OK) {
        code = berth_fail(err, why.code, "%.100s: %s", path, why.msg);
        goto out;
    }
    if (!integers && (ending == NULL || strcmp(ending, ".f32") != 0)) {
        code = berth_fail(err, BERTH_INVALID, "%s: neither .s16 nor .f32 (raw, mono, 16 kHz)",
                          path);
        goto out;
    }
    size_t count = (size_t)file_bytes / width;
    if (count > (size_t)SECONDS_MAX * BERTH_PARAKEET_SAMPLE_RATE) {
        code = berth_fail(err, BERTH_TOO_LARGE, "%s: longer than %d s", path, SECONDS_MAX);
        goto out;
    }
    bytes = berth_alloc(count * width + 1);
    out->pcm = berth_alloc((count + 1) * sizeof(float));
    if (bytes == NULL || out->pcm == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
        goto out;
    }
    ptrdiff_t got = berth_file_read(fd, bytes, count * width);
    if (got < 0) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "%.100s: cannot read: %s", path, strerror(errno));
        goto out;
    }
    out->samples = (uint32_t)((size_t)got / width);
    for (uint32_t i = 0; i < out->samples; i++) {
        int16_t integer = 0;
        if (integers) {
            memcpy(&integer, bytes + i * width, width);
            out->pcm[i] = (float)integer / 32768.0f;
        } else {
            memcpy(&out->pcm[i], bytes + i * width, width);
        }
    }
out:
    berth_free(bytes);
    if (fd >= 0) {
        close(fd);
    }
    return code;
}

/* --model's folder, or one with random weights: --keep's, or one for this command's life. */
static enum berth_code open_folder(struct bench *bench, struct berth_err *err)
{
    const struct berth_config *options = bench->options;
    bool random = options->random[0] != '\0';
    const char *path = random ? options->keep : options->model;
    if (random && path[0] == '\0') {
        const char *parent = getenv("TMPDIR");
        snprintf(bench->folder, sizeof(bench->folder), "%s/berth-random-XXXXXX",
                 parent == NULL ? "/tmp" : parent);
        if (mkdtemp(bench->folder) == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "cannot make %.150s: %s", bench->folder,
                              strerror(errno));
        }
        bench->folder_temporary = true;
    } else if ((size_t)snprintf(bench->folder, sizeof(bench->folder), "%s", path) >=
               sizeof(bench->folder)) {
        return berth_fail(err, BERTH_INVALID, "'%.60s...' is too long a path", path);
    }
    return random ? berth_random_parakeet_write(bench->folder, options->random, options->seed, err)
                  : BERTH_OK;
}

static enum berth_code open_model(struct bench *bench, struct berth_err *err)
{
    const char *device = bench->options->device;
    bench->ops = berth_parakeet_backend(device);
    uint64_t t_start = berth_clock_now_ns();
    BERTH_TRY(berth_parakeet_config_read(bench->folder, &bench->model, err));
    BERTH_TRY(bench->ops->check(&bench->model, err));
    BERTH_TRY(berth_parakeet_precision(bench->options->precision, device, &bench->model, err));
    BERTH_TRY(bench->ops->open(device, bench->threads, &bench->device, err));
    uint64_t bytes = berth_parakeet_weights_bytes(&bench->model, bench->ops->element);
    BERTH_TRY(berth_span_create(device, bytes, &bench->span, err));
    BERTH_TRY(bench->ops->weights_load(device, &bench->model, bench->folder, bench->span.address,
                                       err));
    berth_parakeet_weights_place(&bench->model, bench->ops->element, bench->span.address,
                                 &bench->weights);
    uint32_t frames_max = berth_parakeet_lengths_of(bench->samples_max).frames;
    BERTH_TRY(berth_parakeet_net_create(bench->ops, bench->device, &bench->model, &bench->weights,
                                        frames_max, &bench->net, err));
    bench->load_s = (double)(berth_clock_now_ns() - t_start) / 1e9;
    if (bench->folder_temporary) { /* its files are read: a signal leaves nothing behind now */
        remove_folder(bench->folder);
        bench->folder_temporary = false;
    }
    return BERTH_OK;
}

static void close_model(struct bench *bench)
{
    berth_parakeet_net_destroy(bench->net);
    berth_span_destroy(bench->options->device, &bench->span);
    if (bench->device != NULL) {
        bench->ops->close(bench->device);
    }
    for (size_t i = 0; i < bench->clip_count; i++) {
        berth_free(bench->clips[i].pcm);
    }
    if (bench->folder_temporary) {
        remove_folder(bench->folder);
    }
}

static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    rmdir(path);
}

static enum berth_code measure(struct bench *bench, uint32_t rows, struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    json_t *json = NULL;
    struct bucket *bucket = berth_alloc(sizeof(*bucket));
    if (bucket == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory");
    }
    bucket->shape.rows = rows;
    bucket->shape.padded = berth_parakeet_lengths_of(bench->samples_max);
    code = berth_parakeet_run_create(bench->net, &bucket->shape, &bucket->run, err);
    if (code == BERTH_OK) {
        code = fill_rows(bench, bucket, err);
    }
    for (size_t i = 0; code == BERTH_OK && i < STAGE_COUNT; i++) {
        bucket->times[i].count = bench->wanted[i] ? bench->options->runs : 0;
        bucket->times[i].ms = berth_alloc((bucket->times[i].count + 1) * sizeof(double));
        if (bucket->times[i].ms == NULL) {
            code = berth_fail(err, BERTH_UNAVAILABLE, "no memory");
        } else if (bench->wanted[i]) {
            code = i == PRODUCTS ? time_products(bench, bucket, err)
                                 : time_stage(bucket, (enum stage)i, err);
        }
    }
    if (code == BERTH_OK) { /* once more, for its tokens */
        berth_parakeet_run_set_extent(bucket->run, BERTH_PARAKEET_WHOLE);
        code = run_once(bucket, err);
    }
    if (code == BERTH_OK && bench->options->dump[0] != '\0') {
        code = dump(bench, bucket, err);
    }
    if (code == BERTH_OK) {
        json = bucket_json(bench, bucket);
        if (!bench->options->json) {
            print_bucket(json);
        }
        json_array_append_new(bench->buckets, json);
    }
    for (size_t i = 0; i < STAGE_COUNT; i++) {
        berth_free(bucket->times[i].ms);
    }
    berth_parakeet_run_destroy(bucket->run);
    berth_free(bucket);
    return code;
}

static enum berth_code fill_rows(struct bench *bench, struct bucket *bucket, struct berth_err *err)
{
    for (uint32_t row = 0; row < bucket->shape.rows; row++) {
        float *pcm = berth_parakeet_run_pcm(bucket->run, row);
        if (bench->clip_count == 0) {
            bucket->samples[row] = bench->samples_max;
            berth_random_clip(bench->options->seed + row, pcm, bench->samples_max);
        } else {
            const struct clip *clip = &bench->clips[row % bench->clip_count];
            bucket->samples[row] = clip->samples;
            memcpy(pcm, clip->pcm, clip->samples * sizeof(*pcm));
        }
        bucket->seconds += (double)bucket->samples[row] / BERTH_PARAKEET_SAMPLE_RATE;
    }
    /* The encoder alone begins at the features that this leaves. */
    return run_once(bucket, err);
}

static enum berth_code run_once(struct bucket *bucket, struct berth_err *err)
{
    berth_parakeet_run_begin(bucket->run, bucket->samples);
    while (berth_parakeet_run_advance(bucket->run)) {
    }
    BERTH_TRY(berth_parakeet_run_finish(bucket->run, &bucket->tokens, err));
    for (uint32_t i = 0; bucket->tokens.count != NULL && i < bucket->shape.rows; i++) {
        if (bucket->tokens.count[i] < 0) {
            return berth_fail(err, BERTH_INTERNAL, "a value of clip %u became no number", i);
        }
    }
    return BERTH_OK;
}

static enum berth_code time_stage(struct bucket *bucket, enum stage stage, struct berth_err *err)
{
    struct berth_bench_times *times = &bucket->times[stage];
    berth_parakeet_run_set_extent(bucket->run, stages[stage].extent);
    uint64_t t_warm = berth_clock_now_ns() + WARMUP_NS;
    for (size_t i = 0; i < WARMUP_RUNS || berth_clock_now_ns() < t_warm; i++) {
        BERTH_TRY(run_once(bucket, err));
    }
    for (size_t i = 0; i < times->count; i++) {
        uint64_t t_start = berth_clock_now_ns();
        BERTH_TRY(run_once(bucket, err));
        times->ms[i] = (double)(berth_clock_now_ns() - t_start) / 1e6;
    }
    sort_times(times);
    return BERTH_OK;
}

static struct berth_bench_products products_of(struct bench *bench, const struct bucket *bucket)
{
    return (struct berth_bench_products){
        .ops = bench->ops,
        .device = bench->options->device,
        .threads = bench->threads,
        .model = &bench->model,
        .weights = &bench->weights,
        .shape = &bucket->shape,
    };
}

static enum berth_code time_products(struct bench *bench, struct bucket *bucket,
                                     struct berth_err *err)
{
    struct berth_bench_products products = products_of(bench, bucket);
    BERTH_TRY(berth_bench_products_run(&products, &bucket->times[PRODUCTS], err));
    sort_times(&bucket->times[PRODUCTS]);
    return BERTH_OK;
}

static int compare_ms(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort_times(struct berth_bench_times *times)
{
    qsort(times->ms, times->count, sizeof(*times->ms), compare_ms);
}

static double median_ms(const struct berth_bench_times *times)
{
    size_t middle = times->count / 2;
    if (times->count == 0) {
        return 0;
    }
    return times->count % 2 == 1 ? times->ms[middle]
                                 : (times->ms[middle - 1] + times->ms[middle]) / 2;
}

static json_t *times_json(const struct berth_bench_times *times)
{
    json_t *all = json_array();
    for (size_t i = 0; i < times->count; i++) {
        json_array_append_new(all, json_real(times->ms[i]));
    }
    return json_pack("{s:f, s:f, s:f, s:o}", "median", median_ms(times), "min", times->ms[0],
                     "max", times->ms[times->count - 1], "all", all);
}

/* Smallest, mean and largest over the rows. */
static json_t *rows_json(const int32_t *values, uint32_t rows)
{
    int32_t least = INT32_MAX;
    int32_t most = 0;
    double sum = 0;
    for (uint32_t i = 0; i < rows; i++) {
        least = values[i] < least ? values[i] : least;
        most = values[i] > most ? values[i] : most;
        sum += values[i];
    }
    return json_pack("{s:i, s:f, s:i}", "min", (int)least, "mean", sum / rows, "max", (int)most);
}

static json_t *bucket_json(struct bench *bench, const struct bucket *bucket)
{
    struct berth_bench_products products = products_of(bench, bucket);
    const struct berth_bench_times *times = bucket->times;
    uint32_t rows = bucket->shape.rows;
    json_t *json = json_pack(
        "{s:I, s:f, s:I, s:I, s:o, s:o, s:f, s:f}", "rows", (json_int_t)rows, "audio_s",
        bucket->seconds, "frames", (json_int_t)bucket->shape.padded.frames, "run_bytes",
        (json_int_t)berth_parakeet_run_bytes(bench->ops, &bench->model, &bucket->shape), "steps",
        rows_json(bucket->tokens.steps, rows), "tokens_a_row",
        rows_json(bucket->tokens.count, rows), "encoder_flop",
        berth_bench_encoder_flop(&products), "products_flop",
        berth_bench_products_flop(&products));
    json_t *all = json_object();
    for (size_t i = 0; i < STAGE_COUNT; i++) {
        if (times[i].count > 0) {
            json_object_set_new(all, stages[i].name, times_json(&times[i]));
        }
    }
    json_object_set_new(json, "ms", all);
    if (times[TOKENS].count > 0) {
        json_object_set_new(json, "rtfx",
                            json_real(bucket->seconds * 1e3 / median_ms(&times[TOKENS])));
    }
    if (times[ENCODER].count > 0) {
        double ms = median_ms(&times[ENCODER]);
        json_object_set_new(json, "encoder_tflops",
                            json_real(berth_bench_encoder_flop(&products) / ms / 1e9));
        if (times[PRODUCTS].count > 0) {
            json_object_set_new(json, "products_share",
                                json_real(median_ms(&times[PRODUCTS]) / ms));
        }
    }
    return json;
}

static void print_head(const struct bench *bench)
{
    const struct berth_parakeet_config *model = &bench->model;
    printf("%s on %s: %" PRIu32 " layers of %" PRIu32 ", %.1f MiB of weights, loaded in %.2f s\n"
           "milliseconds: median (lowest-highest) of %" PRIu64 " runs; %s\n",
           bench->folder, bench->options->device, model->layers, model->hidden,
           (double)bench->span.bytes / 1048576, bench->load_s, bench->options->runs,
           bench->clip_count == 0 ? "seeded clips" : "the files in turn");
    printf("%5s %8s %27s %27s %27s %27s %6s %7s %8s %14s %8s\n", "rows", "audio s",
           "features to encoded", "PCM to encoded", "PCM to tokens", "matrix products", "share",
           "TFLOP/s", "RTFx", "steps a row", "run MiB");
}

static void print_times(const json_t *bucket, const char *name)
{
    const json_t *times = json_object_get(json_object_get(bucket, "ms"), name);
    char text[64] = "-";
    if (times != NULL) {
        snprintf(text, sizeof(text), "%.3f (%.3f-%.3f)",
                 json_real_value(json_object_get(times, "median")),
                 json_real_value(json_object_get(times, "min")),
                 json_real_value(json_object_get(times, "max")));
    }
    printf(" %27s", text);
}

static void print_bucket(const json_t *bucket)
{
    const json_t *steps = json_object_get(bucket, "steps");
    char text[64];
    printf("%5lld %8.1f", (long long)json_integer_value(json_object_get(bucket, "rows")),
           json_real_value(json_object_get(bucket, "audio_s")));
    for (size_t i = 0; i < STAGE_COUNT; i++) {
        print_times(bucket, stages[i].name);
    }
    snprintf(text, sizeof(text), "%lld/%.1f/%lld",
             (long long)json_integer_value(json_object_get(steps, "min")),
             json_real_value(json_object_get(steps, "mean")),
             (long long)json_integer_value(json_object_get(steps, "max")));
    printf(" %6.2f %7.1f %8.0f %14s %8.1f\n",
           json_real_value(json_object_get(bucket, "products_share")),
           json_real_value(json_object_get(bucket, "encoder_tflops")),
           json_real_value(json_object_get(bucket, "rtfx")), text,
           (double)json_integer_value(json_object_get(bucket, "run_bytes")) / 1048576);
}

/* --- --dump --- */

struct piece {
    const char *name;
    const float *values;
    size_t count;
};

static enum berth_code dump_piece(const struct bench *bench, const struct bucket *bucket,
                                  const struct piece *piece, struct berth_err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%" PRIu32 "x%" PRIu32 ".%s.f32", bench->options->dump,
             bucket->shape.rows, bench->samples_max, piece->name);
    FILE *file = fopen(path, "wbe");
    bool ok = file != NULL && fwrite(piece->values, sizeof(*piece->values), piece->count, file) ==
                                  piece->count;
    ok = (file == NULL || fclose(file) == 0) && ok;
    return ok ? BERTH_OK
              : berth_fail(err, BERTH_UNAVAILABLE, "cannot write %.150s: %s", path,
                           strerror(errno));
}

static enum berth_code dump_probe(struct bench *bench, struct bucket *bucket,
                                  enum berth_parakeet_probe what, struct berth_err *err)
{
    static const char *const names[] = {"features", "encoded", "projected"};
    const struct berth_parakeet_shape *shape = &bucket->shape;
    size_t frames = what == BERTH_PARAKEET_PROBE_FEATURES ? shape->padded.features
                                                          : shape->padded.frames;
    size_t width = what == BERTH_PARAKEET_PROBE_FEATURES  ? bench->model.mels
                   : what == BERTH_PARAKEET_PROBE_ENCODED ? bench->model.hidden
                                                          : bench->model.prediction;
    size_t count = shape->rows * frames * width;
    if (count == 0) {
        return BERTH_OK; /* CTC projects nothing */
    }
    float *values = berth_alloc((count + 1) * sizeof(*values));
    if (values == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for --dump");
    }
    enum berth_code code = berth_parakeet_run_probe(bucket->run, what, values, err);
    if (code == BERTH_OK) {
        code = dump_piece(bench, bucket, &(struct piece){names[what], values, count}, err);
    }
    berth_free(values);
    return code;
}

static json_t *integers(const int32_t *values, int32_t count)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_array_append_new(array, json_integer(values[i]));
    }
    return array;
}

static json_t *dump_json(const struct bench *bench, const struct bucket *bucket)
{
    const struct berth_parakeet_tokens *tokens = &bucket->tokens;
    const struct berth_parakeet_lengths *padded = &bucket->shape.padded;
    json_t *rows = json_array();
    for (uint32_t i = 0; i < bucket->shape.rows; i++) {
        size_t first = (size_t)i * tokens->capacity;
        json_array_append_new(
            rows, json_pack("{s:I, s:I, s:i, s:o, s:o, s:o}", "samples",
                            (json_int_t)bucket->samples[i], "frames",
                            (json_int_t)berth_parakeet_lengths_of(bucket->samples[i]).frames,
                            "steps", (int)tokens->steps[i], "tokens",
                            integers(tokens->token + first, tokens->count[i]), "frame",
                            integers(tokens->frame + first, tokens->count[i]), "durations",
                            integers(tokens->duration + first, tokens->count[i])));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "samples",
                     (json_int_t)padded->samples, "features", (json_int_t)padded->features,
                     "frames", (json_int_t)padded->frames, "mels", (json_int_t)bench->model.mels,
                     "hidden", (json_int_t)bench->model.hidden, "prediction",
                     (json_int_t)bench->model.prediction, "rows", rows);
}

static enum berth_code dump(struct bench *bench, struct bucket *bucket, struct berth_err *err)
{
    char path[PATH_MAX];
    const struct berth_parakeet_shape *shape = &bucket->shape;
    size_t samples = bench->samples_max;
    float *pcm = berth_alloc(((size_t)shape->rows * samples + 1) * sizeof(*pcm));
    if (pcm == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for --dump");
    }
    mkdir(bench->options->dump, 0755);
    for (uint32_t i = 0; i < shape->rows; i++) { /* what lies past a row's samples stays 0 */
        memcpy(pcm + i * samples, berth_parakeet_run_pcm(bucket->run, i),
               bucket->samples[i] * sizeof(*pcm));
    }
    const struct piece piece = {"pcm", pcm, shape->rows * samples};
    enum berth_code code = dump_piece(bench, bucket, &piece, err);
    berth_free(pcm);
    BERTH_TRY(code);
    BERTH_TRY(dump_probe(bench, bucket, BERTH_PARAKEET_PROBE_FEATURES, err));
    BERTH_TRY(dump_probe(bench, bucket, BERTH_PARAKEET_PROBE_ENCODED, err));
    if (bench->model.head != BERTH_PARAKEET_CTC) {
        BERTH_TRY(dump_probe(bench, bucket, BERTH_PARAKEET_PROBE_PROJECTED, err));
    }
    snprintf(path, sizeof(path), "%s/%" PRIu32 "x%" PRIu32 ".json", bench->options->dump,
             shape->rows, bench->samples_max);
    json_t *root = dump_json(bench, bucket);
    bool ok = json_dump_file(root, path, JSON_COMPACT) == 0;
    json_decref(root);
    return ok ? BERTH_OK
              : berth_fail(err, BERTH_UNAVAILABLE, "cannot write %.150s: %s", path,
                           strerror(errno));
}
