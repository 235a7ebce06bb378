/* transcribe.c - `berth transcribe FILE...`: by a server, or with the model in this process.
 *
 * The transcripts go to standard output, everything else to standard error: a progress bar where
 * that is a terminal, one plain line for each file otherwise.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/remote.h"
#include "cli/stack.h"
#include "model/languages.h"
#include "task/transcript.h"

#define ARENA_MAX (256u << 20)
#define FILE_BYTES_MAX (UINT64_C(4) << 30)
#define RATE 16000
#define SPEECH_TASK "automatic-speech-recognition"

/* One file on its way through decoder and model. */
struct work {
    const struct berth_config *config;
    struct berth_stack *stack;
    struct berth_queue queue;
    struct berth_media_job media;
    struct berth_range file;
    struct berth_request *request;
    struct berth_model *model;
    const char *path;
    double seconds;      /* of audio */
    double seconds_done; /* transcribed so far */
    bool decoded;
    bool done;
    struct berth_err err;
    struct berth_arena arena;
    struct berth_buf *out;
};

static int embedded(const struct berth_config *config, struct berth_transcript_style *style);
static enum berth_code check_model(const struct berth_config *config, struct berth_stack *stack,
                                   struct berth_err *err);
static enum berth_code fail_unknown(const struct berth_config *config, struct berth_err *err);
static enum berth_code fail_deaf(const struct berth_config *config, struct berth_err *err);
static enum berth_code transcribe_file(struct work *work, struct berth_transcript_style *style,
                                       struct berth_err *err);
static enum berth_code read_file(struct work *work, struct berth_err *err);
static enum berth_code decode_file(struct work *work, struct berth_err *err);
static enum berth_code open_request(struct work *work, struct berth_err *err);
static enum berth_code run_model(struct work *work, struct berth_err *err);
static void on_decoded(struct berth_post *post);
static void on_part(struct berth_post *post);
static void show_progress(const struct work *work, bool end);

int berth_cli_transcribe(const struct berth_config *config)
{
    struct berth_err err = {0};
    struct berth_transcript_style style = {.segments = true, .words = config->words,
                                           .task = "transcribe"};
    if (config->arguments.count == 0) {
        berth_cli_misuse(&err, "no file given; see berth transcribe --help");
        return berth_cli_fail(&err);
    }
    if (!berth_transcript_format_parse(config->format, &style.format)) {
        berth_cli_misuse(&err, "--format '%s' is not text, json, verbose_json, srt or vtt",
                         config->format);
        return berth_cli_fail(&err);
    }
    if (config->words && style.format != BERTH_TRANSCRIPT_VERBOSE_JSON) {
        berth_cli_misuse(&err, "--words needs --format verbose_json");
        return berth_cli_fail(&err);
    }
    if (config->server != NULL && config->server[0] != '\0') {
        return berth_remote_transcribe(config);
    }
    if (config->language[0] != '\0' && berth_language_code(config->language) == NULL) {
        berth_cli_misuse(&err, "--language '%.40s' is no language known here; give a code such as "
                         "en", config->language);
        return berth_cli_fail(&err);
    }
    return embedded(config, &style);
}

static int embedded(const struct berth_config *config, struct berth_transcript_style *style)
{
    struct berth_stack stack;
    struct berth_err err = {0};
    int status = 0;
    struct berth_config own = *config;
    if (own.models[0] == '\0') {
        own.models = "models";
    }
    if (own.cpu_workers == 0 && own.cpu_threads == 0) { /* one file at a time gets all cores */
        own.cpu_workers = 1;
        own.cpu_threads = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    }
    if (berth_log_parse_level(own.log_level, &err) != BERTH_OK ||
        berth_stack_start(&own, &stack, &err) != BERTH_OK) {
        return berth_cli_fail_models(&own, &err);
    }
    if (check_model(&own, &stack, &err) != BERTH_OK) {
        status = berth_cli_fail(&err);
        berth_stack_finish(&stack);
        return status;
    }
    for (size_t i = 0; i < config->arguments.count && berth_cli_printed(); i++) {
        struct berth_buf out = {0};
        struct work work = {.config = &own, .stack = &stack, .path = config->arguments.items[i],
                            .out = &out};
        if (transcribe_file(&work, style, &err) == BERTH_OK) {
            if (config->arguments.count > 1) {
                fprintf(stderr, "%s:\n", work.path);
            }
            fwrite(out.bytes, 1, out.length, stdout);
            if (out.length > 0 && out.bytes[out.length - 1] != '\n') {
                putchar('\n');
            }
        } else {
            status = berth_cli_fail_file(work.path, &err);
        }
        berth_buf_finish(&out);
    }
    berth_stack_finish(&stack);
    return status;
}

/* Before any file is read: the same mistake would be told of each. */
static enum berth_code check_model(const struct berth_config *config, struct berth_stack *stack,
                                   struct berth_err *err)
{
    struct berth_model *model = berth_catalog_find(stack->catalog, config->model, 0);
    if (model == NULL) {
        return fail_unknown(config, err);
    }
    struct berth_model_spec *spec = berth_model_spec(model);
    bool hears = !spec->completed || strcmp(spec->task, SPEECH_TASK) == 0;
    berth_spec_release(spec);
    berth_model_release(model);
    return hears ? BERTH_OK : fail_deaf(config, err);
}

static enum berth_code fail_unknown(const struct berth_config *config, struct berth_err *err)
{
    return berth_fail_field(err, BERTH_NOT_FOUND, "model",
                            "there is no model '%.80s' in %.80s; berth models lists them",
                            config->model, config->models);
}

static enum berth_code fail_deaf(const struct berth_config *config, struct berth_err *err)
{
    return berth_fail_field(err, BERTH_INVALID, "model", "the model '%.80s' does not transcribe",
                            config->model);
}

static enum berth_code transcribe_file(struct work *work, struct berth_transcript_style *style,
                                       struct berth_err *err)
{
    struct berth_transcript transcript;
    uint64_t t_started_ns = berth_clock_now_ns();
    BERTH_TRY(berth_queue_init(&work->queue, 0, err));
    berth_arena_init(&work->arena, ARENA_MAX);
    enum berth_code code = read_file(work, err);
    if (code == BERTH_OK) {
        code = decode_file(work, err);
    }
    berth_slabs_give(work->stack->slabs, &work->file);
    if (code == BERTH_OK) {
        code = run_model(work, err);
    }
    if (code == BERTH_OK) {
        struct berth_part *part = work->request->owner; /* the final part; see on_part */
        code = berth_transcript_read(part, work->stack->slabs, &work->arena, &transcript, err);
        if (code == BERTH_OK) {
            berth_transcript_write(&transcript, style, work->out);
            double took_s = (double)(berth_clock_now_ns() - t_started_ns) / 1e9;
            fprintf(stderr, "%s: %.1f s of audio in %.2f s\n", work->path, work->seconds, took_s);
        }
        berth_part_destroy(part);
    }
    berth_request_release(work->request);
    berth_model_release(work->model);
    berth_arena_finish(&work->arena);
    berth_queue_finish(&work->queue);
    return code;
}

static enum berth_code read_file(struct work *work, struct berth_err *err)
{
    int fd = -1;
    uint64_t bytes = 0;
    enum berth_code code = BERTH_OK;
    BERTH_TRY(berth_cli_open_audio(work->path, &fd, &bytes, err));
    if (bytes > FILE_BYTES_MAX) {
        code = berth_fail(err, BERTH_INVALID, "larger than 4 GiB");
    } else {
        code = berth_slabs_take_private(work->stack->slabs, (size_t)bytes, &work->file, err);
    }
    if (code == BERTH_OK) {
        void *to = berth_slabs_pointer(work->stack->slabs, &work->file);
        ptrdiff_t got = berth_file_read(fd, to, (size_t)bytes);
        if (got < 0 || (uint64_t)got < bytes) {
            code = berth_fail(err, BERTH_INTERNAL, "cannot read: %s",
                              got >= 0 ? "it became shorter" : strerror(errno));
        }
    }
    close(fd);
    return code;
}

static enum berth_code decode_file(struct work *work, struct berth_err *err)
{
    struct berth_media_job *job = &work->media;
    job->post.deliver = on_decoded;
    job->reply = &work->queue;
    job->in = work->file;
    job->rate = RATE;
    job->seconds_max = (double)work->config->audio_max / 1e9;
    job->state = work;
    BERTH_TRY(berth_media_submit(work->stack->media, job, err));
    while (!work->decoded) {
        berth_stack_deliver(&work->queue, 0);
    }
    if (job->err.code != BERTH_OK) {
        *err = job->err;
    }
    work->seconds = job->seconds;
    return job->err.code;
}

static void on_decoded(struct berth_post *post)
{
    struct berth_media_job *job = BERTH_CONTAINER_OF(post, struct berth_media_job, post);
    struct work *work = job->state;
    work->decoded = true;
}

static enum berth_code run_model(struct work *work, struct berth_err *err)
{
    struct berth_admin ensure = {.kind = BERTH_ADMIN_ENSURE, .name = work->config->model};
    work->model = berth_catalog_find(work->stack->catalog, work->config->model, 0);
    if (work->model == NULL) {
        berth_slabs_give(work->stack->slabs, &work->media.out);
        return fail_unknown(work->config, err);
    }
    enum berth_code code = berth_stack_admin(work->stack, &ensure, err);
    if (code == BERTH_OK) {
        code = open_request(work, err);
    }
    if (code == BERTH_OK) {
        code = berth_sched_submit(work->stack->sched, work->request, err);
    }
    if (work->request == NULL) {
        berth_slabs_give(work->stack->slabs, &work->media.out);
    }
    while (code == BERTH_OK && !work->done) {
        berth_stack_deliver(&work->queue, 0);
    }
    if (code == BERTH_OK) {
        show_progress(work, true);
        code = work->err.code;
        if (code != BERTH_OK) {
            *err = work->err;
        }
    }
    return code;
}

static enum berth_code open_request(struct work *work, struct berth_err *err)
{
    const struct berth_config *config = work->config;
    struct berth_model_spec *spec = berth_model_spec(work->model);
    bool hears = strcmp(spec->task, SPEECH_TASK) == 0;
    bool batch = spec->batch_size_max > 0;
    berth_spec_release(spec);
    if (!hears) {
        return fail_deaf(config, err);
    }
    struct berth_request *request = berth_request_create(work->stack->slabs, ARENA_MAX);
    if (request == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory");
    }
    work->request = request;
    request->media = work->media.out;
    request->model = work->model;
    request->id_client = "";
    request->batch_rows = 1;
    request->reply = &work->queue;
    request->on_part = on_part;
    request->owner = work;
    request->inputs = berth_arena_alloc(&request->arena, sizeof(*request->inputs));
    request->params.items = berth_arena_alloc(&request->arena, 3 * sizeof(*request->params.items));
    if (request->inputs == NULL || request->params.items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory");
    }
    struct berth_tensor *audio = &request->inputs[0];
    *audio = (struct berth_tensor){
        .name = "audio", .dtype = BERTH_DTYPE_FP32, .range = request->media};
    if (batch) {
        audio->dims[audio->rank++] = 1;
    }
    audio->dims[audio->rank++] = (int64_t)work->media.frame_count;
    request->input_count = 1;
    struct berth_params *params = &request->params;
    params->items[params->count++] = (struct berth_param){
        "word_timestamps", BERTH_PARAM_BOOL, {.boolean = config->words}};
    if (config->language[0] != '\0') {
        params->items[params->count++] =
            (struct berth_param){"language", BERTH_PARAM_STRING, {.string = config->language}};
    }
    if (config->prompt[0] != '\0') {
        params->items[params->count++] =
            (struct berth_param){"prompt", BERTH_PARAM_STRING, {.string = config->prompt}};
    }
    return BERTH_OK;
}

static void on_part(struct berth_post *post)
{
    struct berth_part *part = BERTH_CONTAINER_OF(post, struct berth_part, post);
    struct work *work = part->request->owner;
    struct berth_transcript transcript;
    struct berth_err err = {0};
    if (part->final) {
        work->err = part->err;
        work->done = true;
        if (part->err.code == BERTH_OK) {
            work->request->owner = part; /* kept for the caller */
            return;
        }
    } else if (berth_transcript_read(part, work->stack->slabs, &work->arena, &transcript, &err) ==
                   BERTH_OK &&
               transcript.segment_count > 0) {
        work->seconds_done = transcript.segments[transcript.segment_count - 1].end_s;
        show_progress(work, false);
    }
    berth_part_destroy(part);
}

static void show_progress(const struct work *work, bool end)
{
    static const char bar[] = "########################################";
    double share = work->seconds > 0 ? work->seconds_done / work->seconds : 1;
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    if (end) {
        fputs("\r\033[K", stderr);
        return;
    }
    int filled = share >= 1 ? 40 : (int)(share * 40);
    fprintf(stderr, "\r%s [%.*s%*s] %3d %%", work->path, filled, bar, 40 - filled, "",
            share >= 1 ? 100 : (int)(share * 100));
}
