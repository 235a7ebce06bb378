/* parakeet.c - the engine: windows of many requests share runs of the model (run mode STEPS).
 *
 * A run is for a bucket: so many rows of one padded length. A window goes to the smallest length
 * that holds it, whatever else is there, so that its numbers are the same alone and in company
 * (E1). The oldest row that waits decides which length is next; others of that length join it, as
 * does more of a long recording where there is room. On a GPU a run is one call; on a CPU it is cut
 * into stages, and step looks at the clock and at cancelled rows between them.
 *
 * Runs keep their memory (and a GPU its graphs), so the buckets that were used last are kept, for
 * so many bytes. One run is under way at a time: a device has one stream of work.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engines.h"
#include "engine/parakeet/encoder.h"
#include "engine/parakeet/parakeet_row.h"
#include "engine/parakeet/prepare.h"
#include "model/config_tree.h"
#include "model/languages.h"

#define SLOTS_MAX BERTH_STEP_EVENTS_MAX
#define SLOTS_CPU 8
#define SLOTS_CUDA 64
#define INSTANCES_CUDA 2 /* where the config does not say */
#define SLOT_NONE UINT32_MAX
#define WINDOW_SECONDS 32
#define WINDOW_SECONDS_MIN 4
#define WINDOW_SECONDS_MAX 120
#define RUNS_MAX 24
/* Seconds of sound in one run: on a GPU about 50 ms of the largest model, on a CPU what one window
 * may have anyway. */
#define BATCH_SECONDS_CPU WINDOW_SECONDS
#define BATCH_SECONDS_CUDA 1024
#define ENGLISH_VOCABULARY_MAX 2048 /* larger ones are multilingual, unless the config says else */
#define LANGUAGES_V3                                                                               \
    "bg,hr,cs,da,nl,en,et,fi,fr,de,el,hu,it,lv,lt,mt,pl,pt,ro,sk,sl,es,sv,ru,uk"

/* Seconds of the buckets below window_seconds, which is the last one itself. */
static const uint32_t bucket_seconds[] = {2, 4, 8, 12, 16, 24, 32, 48, 64, 96};

#define BUCKETS_MAX (BERTH_COUNT_OF(bucket_seconds) + 1)

struct berth_engine_model {
    struct berth_parakeet_config config;
    struct berth_parakeet_weights weights;
    struct berth_parakeet_pieces *pieces;
    struct berth_parakeet_base base;
    char *languages;
    const struct berth_parakeet_ops *ops;
    uint32_t slot_count;
    struct berth_parakeet_lengths buckets[BUCKETS_MAX];
    uint32_t bucket_count;
    uint64_t weight_bytes;
    uint64_t bytes; /* without weights and instances */
    _Atomic uint64_t instance_bytes;
    struct berth_parakeet_preparer preparer;
    pthread_mutex_t mu;               /* taken before an instance's */
    struct berth_instance *instances; /* guarded by mu */
};

/* A bucket's memory that is kept. */
struct kept_run {
    struct berth_parakeet_run *run;
    uint32_t bucket;
    uint32_t rows;
    uint64_t bytes;
    uint64_t ticket; /* of its last use */
};

/* A row of the run under way. */
struct use {
    uint32_t slot; /* SLOT_NONE: nobody waits for it any more */
    struct berth_parakeet_window window;
};

struct berth_instance {
    struct berth_engine_model *model;
    struct berth_instance *next; /* guarded by the model's mu */
    pthread_mutex_t mu; /* of what follows: its caller has it, or the preparer makes a run ahead */
    struct berth_parakeet_device *device;
    struct berth_parakeet_net *net;
    struct berth_parakeet_row *rows; /* by slot */
    struct kept_run runs[RUNS_MAX];
    uint64_t bytes; /* but for runs and what the device keeps */
    uint64_t kept_bytes;
    uint64_t run_bytes;
    uint64_t run_bytes_max;
    struct kept_run *active; /* NULL: no run is under way */
    struct use uses[SLOTS_MAX];
    uint32_t use_count;
    uint32_t plan_next; /* slot, counted on: at whom planning begins */
    uint64_t tickets;
};

/* What start was given; the composition root's thread writes it, before and after all else. */
static struct berth_engine_env environment;

static const char *device_name(void)
{
    return environment.device == NULL ? "cpu:0" : environment.device;
}

static bool is_cuda(void)
{
    return strncmp(device_name(), "cuda", 4) == 0;
}

static uint32_t thread_count(void)
{
    return environment.threads == 0 ? 1 : environment.threads;
}

static enum berth_code start(const struct berth_engine_env *env, struct berth_err *err)
{
    environment = *env;
    return BERTH_OK;
}

static void finish(void)
{
    environment = (struct berth_engine_env){.slabs = NULL};
}

/* --- the model --- */

/* What the config's parameters say. */
struct choices {
    uint32_t slot_count;
    uint64_t window_seconds;
};

static enum berth_code read_choices(const struct berth_model_spec *spec, struct choices *out,
                                    struct berth_err *err)
{
    static const struct berth_speech_range windows = {
        .key = "window_seconds", .min = WINDOW_SECONDS_MIN, .max = WINDOW_SECONDS_MAX};
    out->slot_count = is_cuda() ? SLOTS_CUDA : SLOTS_CPU;
    out->window_seconds = WINDOW_SECONDS;
    BERTH_TRY(berth_speech_slots(spec, SLOTS_MAX, &out->slot_count, err));
    return berth_speech_parameter(spec, &windows, &out->window_seconds, err);
}

/* Codes that this server knows, with commas between; the parameter, or what the vocabulary tells.
 */
static enum berth_code read_languages(const struct berth_model_spec *spec,
                                      const struct berth_parakeet_config *config, char **out,
                                      struct berth_err *err)
{
    const char *fallback = config->vocabulary <= ENGLISH_VOCABULARY_MAX ? "en" : LANGUAGES_V3;
    const char *text = berth_spec_parameter(spec, "languages", fallback);
    for (const char *at = text;; at++) {
        char code[8] = "";
        size_t length = strcspn(at, ",");
        if (length > 0 && length < sizeof(code)) {
            memcpy(code, at, length);
            code[length] = '\0';
        }
        if (berth_language_name(code) == NULL) {
            (void)berth_fail(err, BERTH_INVALID,
                             "parameter 'languages' is '%.100s'; it takes codes such as en, with "
                             "commas between",
                             text);
            return berth_config_locate(spec, berth_config_parameter(spec, "languages"),
                                       BERTH_INVALID, err);
        }
        at += length;
        if (*at == '\0') {
            break;
        }
    }
    *out = berth_strdup(text);
    return *out == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "no memory for the model") : BERTH_OK;
}

/* Of windows of so many seconds in a run. A recording has one at a time in a run on a CPU, and on a
 * GPU as many as there is room for. */
static uint32_t rows_max(bool gpu, uint32_t slot_count, uint64_t seconds)
{
    uint64_t room = (gpu ? BATCH_SECONDS_CUDA : BATCH_SECONDS_CPU) / seconds;
    uint32_t most = gpu ? SLOTS_MAX : slot_count;
    uint32_t rows = 1;
    while (rows * 2 <= room && rows < most) {
        rows *= 2;
    }
    return rows < SLOTS_MAX ? rows : SLOTS_MAX;
}

/* A bucket with the most rows it may have. */
static struct berth_parakeet_shape largest_shape(bool gpu, uint32_t slot_count,
                                                 const struct berth_parakeet_lengths *bucket)
{
    return (struct berth_parakeet_shape){
        .rows = rows_max(gpu, slot_count, bucket->samples / BERTH_SPEECH_RATE), .padded = *bucket};
}

/* Returns how many; the last is of the longest window. */
static uint32_t fill_buckets(uint64_t window_seconds, struct berth_parakeet_lengths *out)
{
    uint32_t count = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(bucket_seconds); i++) {
        if (bucket_seconds[i] < window_seconds) {
            out[count++] = berth_parakeet_lengths_of(bucket_seconds[i] * BERTH_SPEECH_RATE);
        }
    }
    out[count++] = berth_parakeet_lengths_of((uint32_t)window_seconds * BERTH_SPEECH_RATE);
    return count;
}

/* What the runs that an instance keeps may have: twice the largest. */
static uint64_t kept_runs_bytes(const struct berth_parakeet_ops *ops,
                                const struct berth_parakeet_config *config,
                                const struct berth_parakeet_shape *largest, uint32_t count)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = 2 * berth_parakeet_run_bytes(ops, config, &largest[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Instances that a device of that kind gets: what the config says, else what its worker does. */
static uint32_t instance_count(const struct berth_model_spec *spec, bool gpu)
{
    uint32_t count =
        berth_spec_instances(spec, gpu, gpu ? INSTANCES_CUDA : environment.step_instances);
    return count == 0 ? 1 : count;
}

/* What the model comes to hold on a device of that kind, which need not be this process': weights,
 * and of each instance positions, the runs it keeps, and what its device has for itself; the
 * preparer has a device too. ops: of any kind. */
static uint64_t estimate(const struct berth_model_spec *spec, const struct choices *choices,
                         const struct berth_parakeet_config *config,
                         const struct berth_parakeet_ops *ops, bool gpu)
{
    struct berth_parakeet_shape largest[BUCKETS_MAX];
    struct berth_parakeet_ops like = *ops; /* asked for sizes alone */
    const struct berth_parakeet_shape none = {.rows = 0};
    const uint32_t threads = thread_count();
    uint64_t kept = 0;
    struct berth_parakeet_lengths buckets[BUCKETS_MAX];
    like.element = gpu ? BERTH_PARAKEET_F16 : BERTH_PARAKEET_F32;
    uint32_t count = fill_buckets(choices->window_seconds, buckets);
    for (uint32_t i = 0; i < count; i++) {
        largest[i] = largest_shape(gpu, choices->slot_count, &buckets[i]);
        uint64_t bytes = berth_parakeet_kept_ahead(like.element, threads, config, &largest[i]);
        kept = bytes > kept ? bytes : kept;
    }
    uint64_t instance = berth_parakeet_net_bytes(&like, config, largest[count - 1].padded.frames) +
                        kept_runs_bytes(&like, config, largest, count) + kept;
    return berth_parakeet_weights_bytes(config, like.element) +
           instance_count(spec, gpu) * instance +
           (gpu ? berth_parakeet_kept_ahead(like.element, threads, config, &none) : 0);
}

/* The most it may be: which device the model goes to is decided later. */
static uint64_t estimate_anywhere(const struct berth_model_spec *spec,
                                  const struct choices *choices,
                                  const struct berth_parakeet_config *config,
                                  const struct berth_parakeet_ops *ops)
{
    bool gpu = is_cuda() || (environment.gpu && berth_spec_suits_gpu(spec));
    uint64_t there = gpu ? estimate(spec, choices, config, ops, true) : 0;
    uint64_t here = is_cuda() ? 0 : estimate(spec, choices, config, ops, false);
    return there > here ? there : here;
}

static enum berth_code find_ops(const struct berth_model_spec *spec,
                                const struct berth_parakeet_ops **out, struct berth_err *err)
{
    *out = berth_parakeet_backend(device_name());
    return *out != NULL ? BERTH_OK
                        : berth_fail(err, BERTH_UNSUPPORTED,
                                     "this build runs no Parakeet on %s", device_name());
}

/* The model's config, of which this process' device can run what it says. */
static enum berth_code find_config(const struct berth_model_spec *spec,
                                   const struct berth_parakeet_ops **ops,
                                   struct berth_parakeet_config *out, struct berth_err *err)
{
    struct berth_err why = {.code = BERTH_OK};
    BERTH_TRY(find_ops(spec, ops, err));
    BERTH_TRY(berth_parakeet_config_read(spec->folder_version, out, err));
    enum berth_code code = (*ops)->check(out, &why);
    if (code == BERTH_OK) {
        code = berth_parakeet_precision(berth_spec_parameter(spec, "precision", "fp16"),
                                        device_name(), out, &why);
        if (code == BERTH_INVALID) { /* on every device */
            (void)berth_fail(err, code, "%s", why.msg);
            return berth_config_locate(spec, berth_config_parameter(spec, "precision"), code, err);
        }
    }
    return code == BERTH_OK ? BERTH_OK
                            : berth_fail(err, code, "on %s: %s", device_name(), why.msg);
}

static enum berth_code describe(struct berth_model_spec *spec, struct berth_err *err)
{
    struct berth_parakeet_config config = {.mels = 0};
    const struct berth_parakeet_ops *ops = NULL;
    struct berth_parakeet_pieces *pieces = NULL;
    struct choices choices;
    char *languages = NULL;
    BERTH_TRY(read_choices(spec, &choices, err));
    BERTH_TRY(find_config(spec, &ops, &config, err));
    BERTH_TRY(berth_parakeet_weights_check(&config, spec->folder_version, err));
    BERTH_TRY(berth_parakeet_pieces_read(spec->folder_version, config.vocabulary, config.blank,
                                         &pieces, err));
    berth_parakeet_pieces_destroy(pieces);
    BERTH_TRY(read_languages(spec, &config, &languages, err));
    berth_free(languages);
    BERTH_TRY(berth_speech_describe(spec, err));
    BERTH_TRY(berth_speech_slots_keep(spec, choices.slot_count, err));
    spec->task = "automatic-speech-recognition";
    spec->run_mode = BERTH_RUN_STEPS;
    spec->batch_size_max = 0; /* audio has no batch dimension; rows join by steps */
    spec->bytes_estimate = estimate_anywhere(spec, &choices, &config, ops);
    spec->completed = true;
    return BERTH_OK;
}

static enum berth_code weights_bytes(const struct berth_model_spec *spec, uint64_t *out,
                                     struct berth_err *err)
{
    struct berth_parakeet_config config = {.mels = 0};
    const struct berth_parakeet_ops *ops = NULL;
    BERTH_TRY(find_config(spec, &ops, &config, err));
    *out = berth_parakeet_weights_bytes(&config, ops->element);
    return BERTH_OK;
}

static enum berth_code weights_load(const struct berth_model_spec *spec, struct berth_span span,
                                    struct berth_err *err)
{
    struct berth_parakeet_config config = {.mels = 0};
    const struct berth_parakeet_ops *ops = NULL;
    BERTH_TRY(find_config(spec, &ops, &config, err));
    if (span.address == NULL || span.bytes < berth_parakeet_weights_bytes(&config, ops->element)) {
        return berth_fail(err, BERTH_INTERNAL, "its weights have no room");
    }
    return ops->weights_load(device_name(), &config, spec->folder_version, span.address, err);
}

static void make_buckets(struct berth_engine_model *model, uint64_t window_seconds)
{
    uint32_t samples = (uint32_t)window_seconds * BERTH_SPEECH_RATE;
    model->bucket_count = fill_buckets(window_seconds, model->buckets);
    model->base.window_samples = samples - samples % BERTH_PARAKEET_FRAME_SAMPLES;
}

static uint32_t bucket_rows_max(const struct berth_engine_model *model, uint32_t bucket)
{
    return largest_shape(is_cuda(), model->slot_count, &model->buckets[bucket]).rows;
}

/* Every bucket a run may have, in the order in which load grows. */
static void list_shapes(struct berth_engine_model *model)
{
    struct berth_parakeet_preparer *preparer = &model->preparer;
    for (uint32_t rows = 1; rows <= SLOTS_MAX; rows *= 2) {
        for (uint32_t i = 0; i < model->bucket_count; i++) {
            if (rows <= bucket_rows_max(model, i)) {
                BERTH_ASSERT(preparer->shape_count < BERTH_PARAKEET_SHAPES_MAX);
                preparer->shapes[preparer->shape_count++] =
                    (struct berth_parakeet_shape){.rows = rows, .padded = model->buckets[i]};
            }
        }
    }
}

static enum berth_parakeet_ahead make_ahead(void *context,
                                            const struct berth_parakeet_shape *shape);

static void model_detach(struct berth_engine_model *model)
{
    if (model == NULL) {
        return;
    }
    berth_parakeet_preparer_stop(&model->preparer);
    pthread_mutex_destroy(&model->mu);
    berth_parakeet_pieces_destroy(model->pieces);
    berth_free(model->languages);
    berth_free(model);
}

static enum berth_code model_attach(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err)
{
    struct choices choices;
    struct berth_engine_model *model = berth_alloc(sizeof(*model));
    enum berth_code code = BERTH_OK;
    if (model == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the model");
    }
    pthread_mutex_init(&model->mu, NULL);
    code = find_config(spec, &model->ops, &model->config, err);
    if (code == BERTH_OK) {
        code = read_choices(spec, &choices, err);
    }
    if (code == BERTH_OK) {
        model->weight_bytes = berth_parakeet_weights_bytes(&model->config, model->ops->element);
        code = berth_parakeet_pieces_read(spec->folder_version, model->config.vocabulary,
                                          model->config.blank, &model->pieces, err);
    }
    if (code == BERTH_OK) {
        code = read_languages(spec, &model->config, &model->languages, err);
    }
    if (code == BERTH_OK && (weights.address == NULL || weights.bytes < model->weight_bytes)) {
        code = berth_fail(err, BERTH_INTERNAL, "it came without its weights");
    }
    if (code != BERTH_OK) {
        model_detach(model);
        return code;
    }
    berth_parakeet_weights_place(&model->config, model->ops->element, weights.address,
                                 &model->weights);
    model->base.pieces = model->pieces;
    model->base.languages = model->languages;
    model->slot_count = choices.slot_count;
    model->bytes = sizeof(*model) + berth_parakeet_pieces_bytes(model->pieces);
    make_buckets(model, choices.window_seconds);
    list_shapes(model);
    model->preparer.ops = model->ops;
    model->preparer.device_name = device_name();
    model->preparer.model_name = spec->name;
    model->preparer.config = &model->config;
    model->preparer.weights = &model->weights;
    model->preparer.ahead = make_ahead;
    model->preparer.context = model;
    *out = model;
    return BERTH_OK;
}

static uint64_t model_bytes(const struct berth_engine_model *model)
{
    return model->bytes + atomic_load(&model->instance_bytes) + /* weights are the lender's */
           atomic_load(&model->preparer.bytes);
}

static void model_watch(struct berth_engine_model *model, struct berth_engine_watch *watch)
{
    model->preparer.watch = watch;
}

static uint32_t slots(const struct berth_engine_model *model)
{
    return model->slot_count;
}

/* --- runs --- */

static uint32_t bucket_of(const struct berth_engine_model *model, size_t samples)
{
    uint32_t bucket = 0;
    while (model->buckets[bucket].samples < samples) {
        bucket++; /* the last holds every window */
    }
    return bucket;
}

static void forget_run(struct berth_instance *instance, struct kept_run *kept)
{
    berth_parakeet_run_destroy(kept->run);
    instance->run_bytes -= kept->bytes;
    atomic_fetch_sub(&instance->model->instance_bytes, kept->bytes);
    *kept = (struct kept_run){.run = NULL};
}

/* Gives back the run that was not used for longest, unless it is the one under way. False: there is
 * none. */
static bool forget_oldest(struct berth_instance *instance)
{
    struct kept_run *oldest = NULL;
    for (size_t i = 0; i < RUNS_MAX; i++) {
        struct kept_run *kept = &instance->runs[i];
        if (kept->run != NULL && kept != instance->active &&
            (oldest == NULL || kept->ticket < oldest->ticket)) {
            oldest = kept;
        }
    }
    if (oldest != NULL) {
        forget_run(instance, oldest);
    }
    return oldest != NULL;
}

static struct kept_run *free_place(struct berth_instance *instance)
{
    for (size_t i = 0; i < RUNS_MAX; i++) {
        if (instance->runs[i].run == NULL) {
            return &instance->runs[i];
        }
    }
    return NULL;
}

static bool fits(const struct berth_instance *instance, uint64_t bytes)
{
    return instance->run_bytes + bytes <= instance->run_bytes_max;
}

static void keep_run(struct berth_instance *instance, const struct kept_run *run,
                     struct kept_run *place)
{
    *place = *run;
    instance->run_bytes += run->bytes;
    atomic_fetch_add(&instance->model->instance_bytes, run->bytes);
}

/* Those that were not used for longest go where there is no room, or no memory. */
static enum berth_code create_run(struct berth_instance *instance, uint32_t bucket, uint32_t rows,
                                  struct kept_run **out, struct berth_err *err)
{
    const struct berth_engine_model *model = instance->model;
    struct berth_parakeet_shape shape = {.rows = rows, .padded = model->buckets[bucket]};
    struct kept_run made = {
        .bucket = bucket, .rows = rows,
        .bytes = berth_parakeet_run_bytes(model->ops, &model->config, &shape)};
    while ((!fits(instance, made.bytes) || free_place(instance) == NULL) &&
           forget_oldest(instance)) {
    }
    while (berth_parakeet_run_create(instance->net, &shape, &made.run, err) != BERTH_OK) {
        if (!forget_oldest(instance)) {
            return err->code;
        }
        *err = (struct berth_err){.code = BERTH_OK};
    }
    *out = free_place(instance);
    keep_run(instance, &made, *out);
    return BERTH_OK;
}

static struct kept_run *find_run(struct berth_instance *instance, uint32_t bucket, uint32_t rows)
{
    for (size_t i = 0; i < RUNS_MAX; i++) {
        struct kept_run *kept = &instance->runs[i];
        if (kept->run != NULL && kept->bucket == bucket && kept->rows == rows) {
            return kept;
        }
    }
    return NULL;
}

/* What the device holds for itself grows with the runs. */
static void count_kept(struct berth_instance *instance)
{
    const struct berth_parakeet_ops *ops = instance->model->ops;
    if (ops->kept_bytes != NULL) {
        uint64_t bytes = ops->kept_bytes(instance->device);
        atomic_fetch_add(&instance->model->instance_bytes, bytes - instance->kept_bytes);
        instance->kept_bytes = bytes;
    }
}

static uint32_t live_count(const struct berth_instance *instance)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        count += instance->rows[i].live ? 1 : 0;
    }
    return count;
}

/* --- runs made ahead --- */

/* Whether a run is to be made ahead: never in place of another, and only in half of what may be
 * kept, so that the largest bucket has room still. *busy: not now. */
static bool is_wanted(struct berth_instance *instance, const struct kept_run *run, bool *busy)
{
    *busy = live_count(instance) > 0 || instance->active != NULL;
    return !*busy && instance->run_bytes + run->bytes <= instance->run_bytes_max / 2 &&
           free_place(instance) != NULL && find_run(instance, run->bucket, run->rows) == NULL;
}

/* Memory is taken while the instance may work; it waits only while the graph is recorded. */
static enum berth_parakeet_ahead run_ahead(struct berth_instance *instance,
                                           const struct berth_parakeet_shape *shape)
{
    const struct berth_engine_model *model = instance->model;
    struct kept_run made = {
        .bucket = bucket_of(model, shape->padded.samples), .rows = shape->rows,
        .bytes = berth_parakeet_run_bytes(model->ops, &model->config, shape)};
    struct berth_err err = {.code = BERTH_OK};
    bool busy = false;
    pthread_mutex_lock(&instance->mu);
    bool wanted = is_wanted(instance, &made, &busy);
    bool full = free_place(instance) == NULL;
    pthread_mutex_unlock(&instance->mu);
    if (wanted && berth_parakeet_run_create(instance->net, shape, &made.run, &err) != BERTH_OK) {
        return BERTH_PARAKEET_AHEAD_FULL; /* what is left is for who needs it */
    }
    if (!wanted) {
        return busy   ? BERTH_PARAKEET_AHEAD_BUSY
               : full ? BERTH_PARAKEET_AHEAD_FULL
                      : BERTH_PARAKEET_AHEAD_ON;
    }
    pthread_mutex_lock(&instance->mu);
    wanted = is_wanted(instance, &made, &busy);
    if (wanted && berth_parakeet_run_record(made.run, &err) == BERTH_OK) {
        keep_run(instance, &made, free_place(instance));
    } else {
        berth_parakeet_run_destroy(made.run);
    }
    count_kept(instance);
    pthread_mutex_unlock(&instance->mu);
    return busy                   ? BERTH_PARAKEET_AHEAD_BUSY
           : err.code == BERTH_OK ? BERTH_PARAKEET_AHEAD_ON
                                  : BERTH_PARAKEET_AHEAD_FULL;
}

/* The preparer's, in a pause: the bucket in every instance that is idle. */
static enum berth_parakeet_ahead make_ahead(void *context,
                                            const struct berth_parakeet_shape *shape)
{
    struct berth_engine_model *model = context;
    bool busy = false, more = false;
    pthread_mutex_lock(&model->mu);
    for (struct berth_instance *at = model->instances; at != NULL; at = at->next) {
        enum berth_parakeet_ahead end = run_ahead(at, shape);
        busy = busy || end == BERTH_PARAKEET_AHEAD_BUSY;
        more = more || end == BERTH_PARAKEET_AHEAD_ON;
    }
    pthread_mutex_unlock(&model->mu);
    return busy   ? BERTH_PARAKEET_AHEAD_BUSY
           : more ? BERTH_PARAKEET_AHEAD_ON
                  : BERTH_PARAKEET_AHEAD_FULL;
}

/* --- an instance --- */

/* Nobody makes anything ahead for it from here on. */
static void take_off(struct berth_instance *instance)
{
    pthread_mutex_lock(&instance->model->mu);
    struct berth_instance **at = &instance->model->instances;
    while (*at != NULL && *at != instance) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = instance->next;
    }
    pthread_mutex_unlock(&instance->model->mu);
}

static void instance_destroy(struct berth_instance *instance)
{
    if (instance == NULL) {
        return;
    }
    take_off(instance);
    for (uint32_t i = 0; instance->rows != NULL && i < instance->model->slot_count; i++) {
        berth_parakeet_row_finish(&instance->rows[i]);
    }
    for (size_t i = 0; i < RUNS_MAX; i++) {
        if (instance->runs[i].run != NULL) {
            forget_run(instance, &instance->runs[i]);
        }
    }
    berth_parakeet_net_destroy(instance->net);
    if (instance->device != NULL) {
        instance->model->ops->close(instance->device);
    }
    atomic_fetch_sub(&instance->model->instance_bytes, instance->bytes + instance->kept_bytes);
    pthread_mutex_destroy(&instance->mu);
    berth_free(instance->rows);
    berth_free(instance);
}

static enum berth_code make_parts(struct berth_instance *instance, struct berth_err *err)
{
    struct berth_engine_model *model = instance->model;
    const uint32_t last = model->bucket_count - 1;
    instance->rows = berth_alloc(model->slot_count * sizeof(*instance->rows));
    if (instance->rows == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for an instance of %" PRIu32 " slots",
                          model->slot_count);
    }
    BERTH_TRY(model->ops->open(device_name(), thread_count(), &instance->device, err));
    BERTH_TRY(berth_parakeet_net_create(model->ops, instance->device, &model->config,
                                        &model->weights, model->buckets[last].frames,
                                        &instance->net, err));
    instance->bytes = sizeof(*instance) + model->slot_count * sizeof(*instance->rows) +
                      berth_parakeet_net_bytes(model->ops, &model->config,
                                               model->buckets[last].frames);
    atomic_fetch_add(&model->instance_bytes, instance->bytes);
    count_kept(instance);
    struct berth_parakeet_shape largest[BUCKETS_MAX];
    for (uint32_t i = 0; i < model->bucket_count; i++) {
        largest[i] = largest_shape(is_cuda(), model->slot_count, &model->buckets[i]);
    }
    instance->run_bytes_max =
        kept_runs_bytes(model->ops, &model->config, largest, model->bucket_count);
    return BERTH_OK;
}

static enum berth_code instance_create(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err)
{
    struct berth_instance *instance = berth_alloc(sizeof(*instance));
    if (instance == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for an instance");
    }
    instance->model = model;
    pthread_mutex_init(&instance->mu, NULL);
    enum berth_code code = make_parts(instance, err);
    if (code == BERTH_OK) {
        pthread_mutex_lock(&model->mu);
        instance->next = model->instances;
        model->instances = instance;
        pthread_mutex_unlock(&model->mu);
        *out = instance;
        instance = NULL;
    }
    instance_destroy(instance);
    return code;
}

static enum berth_code admit(struct berth_instance *instance, struct berth_row *rows,
                             size_t row_count, struct berth_err *err)
{
    uint32_t at = 0;
    pthread_mutex_lock(&instance->mu);
    for (size_t i = 0; i < row_count; i++) {
        while (at < instance->model->slot_count && instance->rows[at].live) {
            at++;
        }
        if (at == instance->model->slot_count) {
            (void)berth_fail(&rows[i].err, BERTH_INTERNAL, "no free slot");
            continue;
        }
        struct berth_parakeet_row *row = &instance->rows[at];
        if (berth_parakeet_row_init(row, &instance->model->base, rows[i].request, &rows[i].err) ==
            BERTH_OK) {
            row->ticket = ++instance->tickets;
            rows[i].slot = at;
        }
    }
    pthread_mutex_unlock(&instance->mu);
    return BERTH_OK;
}

static void end_slot(struct berth_instance *instance, uint32_t slot)
{
    if (slot >= instance->model->slot_count || !instance->rows[slot].live) {
        return;
    }
    for (uint32_t i = 0; i < instance->use_count; i++) {
        if (instance->uses[i].slot == slot) {
            instance->uses[i].slot = SLOT_NONE;
            berth_parakeet_run_stop(instance->active->run, i);
        }
    }
    berth_parakeet_row_finish(&instance->rows[slot]);
}

static void drop(struct berth_instance *instance, uint32_t slot)
{
    pthread_mutex_lock(&instance->mu);
    end_slot(instance, slot);
    pthread_mutex_unlock(&instance->mu);
}

/* --- what a step brings forth --- */

/* Ends a row with an error. */
static void fail_row(struct berth_instance *instance, uint32_t slot, const struct berth_err *why,
                     struct berth_step_result *out)
{
    struct berth_step_event *event = berth_step_event_add(out, slot);
    event->final = true;
    event->err = *why;
    end_slot(instance, slot);
}

static void end_cancelled(struct berth_instance *instance, struct berth_step_result *out)
{
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        struct berth_parakeet_row *row = &instance->rows[i];
        if (row->live && atomic_load_explicit(&row->request->cancelled, memory_order_relaxed)) {
            struct berth_err why = {.code = BERTH_OK};
            (void)berth_fail(&why, BERTH_CANCELLED, "cancelled while transcribing");
            fail_row(instance, i, &why, out);
        }
    }
}

static void end_row(struct berth_instance *instance, uint32_t slot, struct berth_step_result *out)
{
    struct berth_part *part = NULL;
    struct berth_err err = {.code = BERTH_OK};
    if (berth_parakeet_row_part(&instance->rows[slot], true, &part, &err) != BERTH_OK) {
        fail_row(instance, slot, &err, out);
        return;
    }
    struct berth_step_event *event = berth_step_event_add(out, slot);
    event->part = part;
    event->final = true;
    end_slot(instance, slot);
}

/* News of every row, and the ends of those that are done, as far as there is room. A part that
 * there is no memory for waits for the next, or is left out: the final one has everything. */
static void report(struct berth_instance *instance, struct berth_step_result *out)
{
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        struct berth_parakeet_row *row = &instance->rows[i];
        struct berth_part *part = NULL;
        struct berth_err err = {.code = BERTH_OK};
        if (!row->live) {
            continue;
        }
        if (out->event_count + 2 > BERTH_STEP_EVENTS_MAX) {
            return;
        }
        bool ended = berth_parakeet_row_ended(row);
        if (ended && berth_parakeet_row_end(row, &err) != BERTH_OK) {
            fail_row(instance, i, &err, out);
            continue;
        }
        if (row->unsent != NULL && berth_parakeet_row_part(row, false, &part, &err) == BERTH_OK) {
            berth_step_event_add(out, i)->part = part;
        }
        if (ended) {
            end_row(instance, i, out);
        }
    }
}

/* --- a run --- */

/* The slot with the lowest ticket whose window is of that bucket, or of any. On a CPU, which is no
 * faster with more of one recording at a time, each has one window in flight. */
static uint32_t oldest(const struct berth_instance *instance, uint32_t bucket)
{
    uint32_t found = SLOT_NONE;
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        const struct berth_parakeet_row *row = &instance->rows[i];
        if (row->live && row->planned && (row->in_flight == 0 || is_cuda()) &&
            (bucket == UINT32_MAX || bucket_of(instance->model, row->next.count) == bucket) &&
            (found == SLOT_NONE || row->ticket < instance->rows[found].ticket)) {
            found = i;
        }
    }
    return found;
}

/* Windows for the next run into uses, as far as planning more of a recording has time. Returns
 * their bucket. */
static uint32_t gather(struct berth_instance *instance, uint64_t t_end_ns)
{
    instance->use_count = 0;
    uint32_t slot = oldest(instance, UINT32_MAX);
    if (slot == SLOT_NONE) {
        return 0;
    }
    uint32_t bucket = bucket_of(instance->model, instance->rows[slot].next.count);
    uint32_t max = bucket_rows_max(instance->model, bucket);
    while (slot != SLOT_NONE && instance->use_count < max) {
        struct berth_parakeet_row *row = &instance->rows[slot];
        instance->uses[instance->use_count++] = (struct use){.slot = slot, .window = row->next};
        row->ticket = ++instance->tickets; /* behind those who wait */
        berth_parakeet_row_take(row);
        if (berth_clock_now_ns() < t_end_ns) {
            berth_parakeet_row_plan(row);
        }
        slot = oldest(instance, bucket);
    }
    return bucket;
}

/* All rows of the run under way end with an error. */
static void fail_uses(struct berth_instance *instance, const struct berth_err *why,
                      struct berth_step_result *out)
{
    for (uint32_t i = 0; i < instance->use_count; i++) {
        uint32_t slot = instance->uses[i].slot;
        for (uint32_t k = i; k < instance->use_count; k++) {
            instance->uses[k].slot = instance->uses[k].slot == slot ? SLOT_NONE
                                                                    : instance->uses[k].slot;
        }
        if (slot != SLOT_NONE) {
            fail_row(instance, slot, why, out);
        }
    }
    instance->use_count = 0;
    instance->active = NULL;
}

/* Fills what was gathered into the run under way, and lets it begin. */
static void start_run(struct berth_instance *instance)
{
    uint32_t samples[SLOTS_MAX] = {0};
    for (uint32_t i = 0; i < instance->use_count; i++) {
        const struct use *use = &instance->uses[i];
        if (use->slot == SLOT_NONE) {
            continue;
        }
        const unsigned char *bytes = instance->rows[use->slot].audio.samples;
        memcpy(berth_parakeet_run_pcm(instance->active->run, i),
               bytes + use->window.start * sizeof(float), use->window.count * sizeof(float));
        samples[i] = (uint32_t)use->window.count;
    }
    berth_parakeet_run_begin(instance->active->run, samples);
}

static void begin_run(struct berth_instance *instance, uint64_t t_end_ns,
                      struct berth_step_result *out)
{
    struct berth_err err = {.code = BERTH_OK};
    uint32_t rows = 1;
    uint32_t bucket = gather(instance, t_end_ns);
    if (instance->use_count == 0) {
        return;
    }
    while (rows < instance->use_count) {
        rows *= 2;
    }
    struct kept_run *run = find_run(instance, bucket, rows);
    if (run == NULL && create_run(instance, bucket, rows, &run, &err) != BERTH_OK) {
        fail_uses(instance, &err, out);
        return;
    }
    instance->active = run;
    run->ticket = ++instance->tickets;
    start_run(instance);
}

/* A run that failed for want of memory goes again without the run that was not used for longest.
 * False: it was not that, or there is none. */
static bool go_again(struct berth_instance *instance)
{
    const struct berth_parakeet_ops *ops = instance->model->ops;
    if (ops->starved == NULL || !ops->starved(instance->device) || !forget_oldest(instance)) {
        return false;
    }
    start_run(instance);
    return true;
}

static void end_run(struct berth_instance *instance, struct berth_step_result *out)
{
    struct berth_parakeet_tokens tokens;
    struct berth_err err = {.code = BERTH_OK};
    count_kept(instance);
    if (berth_parakeet_run_finish(instance->active->run, &tokens, &err) != BERTH_OK) {
        if (!go_again(instance)) {
            fail_uses(instance, &err, out);
        }
        return;
    }
    for (uint32_t i = 0; i < instance->use_count; i++) {
        uint32_t slot = instance->uses[i].slot;
        if (slot != SLOT_NONE &&
            berth_parakeet_row_add(&instance->rows[slot], &instance->uses[i].window, &tokens, i,
                                   &err) != BERTH_OK) {
            fail_row(instance, slot, &err, out);
            err = (struct berth_err){.code = BERTH_OK};
        }
    }
    instance->use_count = 0;
    instance->active = NULL;
    berth_parakeet_preparer_start(&instance->model->preparer);
}

/* Nobody waits for the run under way. */
static bool is_abandoned(const struct berth_instance *instance)
{
    for (uint32_t i = 0; i < instance->use_count; i++) {
        if (instance->uses[i].slot != SLOT_NONE) {
            return false;
        }
    }
    return true;
}

/* Looks for the next windows of all rows, of one of them at least; who has none yet when the time
 * is over has it next time. */
static void plan(struct berth_instance *instance, uint64_t t_end_ns)
{
    const uint32_t slot_count = instance->model->slot_count;
    bool late = false;
    for (uint32_t n = 0; n < slot_count && !late; n++) {
        struct berth_parakeet_row *row = &instance->rows[(instance->plan_next + n) % slot_count];
        if (row->live && !row->planned) {
            berth_parakeet_row_plan(row);
            late = berth_clock_now_ns() >= t_end_ns;
            instance->plan_next += late ? n + 1 : 0;
        }
    }
}

/* One stage of the run under way (on a GPU all of it), or the start of the next. */
static void act(struct berth_instance *instance, uint64_t t_end_ns, struct berth_step_result *out)
{
    if (instance->active == NULL) {
        plan(instance, t_end_ns);
        report(instance, out);
        if (out->event_count == 0) {
            begin_run(instance, t_end_ns, out);
        }
        return;
    }
    out->steps++;
    if (is_abandoned(instance)) {
        instance->use_count = 0;
        instance->active = NULL;
    } else if (!berth_parakeet_run_advance(instance->active->run)) {
        end_run(instance, out);
    }
}

static enum berth_code step(struct berth_instance *instance, uint64_t budget_ns,
                            struct berth_step_result *out, struct berth_err *err)
{
    const uint64_t t_end_ns = berth_clock_now_ns() + budget_ns;
    out->event_count = 0;
    out->steps = 0;
    berth_parakeet_step_begin();
    pthread_mutex_lock(&instance->mu);
    do {
        end_cancelled(instance, out);
        if (out->event_count > 0 || live_count(instance) == 0) {
            break;
        }
        act(instance, t_end_ns, out);
    } while (out->event_count == 0 && berth_clock_now_ns() < t_end_ns);
    out->live = live_count(instance);
    pthread_mutex_unlock(&instance->mu);
    berth_parakeet_step_end();
    return BERTH_OK;
}

const struct berth_engine_ops berth_engine_parakeet = {
    .name = "parakeet",
    .parameters =
        (const char *const[]){"slots", "window_seconds", "precision", "languages", NULL},
    .start = start,
    .finish = finish,
    .describe = describe,
    .weights_bytes = weights_bytes,
    .weights_load = weights_load,
    .model_attach = model_attach,
    .model_detach = model_detach,
    .model_bytes = model_bytes,
    .model_watch = model_watch,
    .instance_create = instance_create,
    .instance_destroy = instance_destroy,
    .admit = admit,
    .step = step,
    .drop = drop,
    .slots = slots,
};
