/* openai.c - OpenAI's audio API: transcriptions, translations, models.
 *
 * The form is parsed as it streams into one slab range (L6): each field is judged as soon as it is
 * complete, so that an unknown model or a bad format ends an upload before its file has come, if
 * the fields come first. The file is never copied: the decoder gets its place in the body.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/call.h"
#include "api/error_body.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/log.h"

#define FIELD_MAX (64u << 10)
#define PARAMS_MAX 8
#define PATH_BYTES 4096 /* of a name sent in a file's place */
#define RATE 16000

/* One transcription or translation under way. */
struct speech {
    struct berth_multipart parser;
    size_t parts_judged;
    bool heads_judged[BERTH_MULTIPART_PARTS_MAX];
    const struct berth_multipart_part *file;
    struct berth_transcript_style style;
    bool stream;
    bool stream_begun;
    bool granularities_named;
    const char *language;
    const char *prompt;
    double temperature;
};

static enum berth_code head(struct berth_call *call, struct berth_err *err);
static enum berth_code more(struct berth_call *call, uint64_t length, struct berth_err *err);
static enum berth_code end(struct berth_call *call, struct berth_err *err);
static enum berth_code judge_parts(struct berth_call *call, struct berth_err *err);
static enum berth_code judge_field(struct berth_call *call, const struct berth_multipart_part *part,
                                   struct berth_err *err);
static enum berth_code find_model(struct berth_call *call, const char *name, struct berth_err *err);
static enum berth_code decode(struct berth_call *call, struct berth_err *err);
static void on_decoded(struct berth_post *post);
static enum berth_code submit(struct berth_call *call, struct berth_err *err);
static void on_part(struct berth_post *post);
static void stream_part(struct berth_call *call, struct berth_part *part);
static void answer_final(struct berth_call *call, struct berth_part *part);
static enum berth_code list_models(struct berth_call *call, struct berth_err *err);
static enum berth_code get_model(struct berth_call *call, struct berth_err *err);

static enum berth_code head(struct berth_call *call, struct berth_err *err)
{
    const char *type = berth_http_header(call->exchange, "Content-Type");
    struct speech *speech = berth_arena_alloc(&call->arena, sizeof(*speech));
    if (speech == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    call->state = speech;
    speech->style.format = BERTH_TRANSCRIPT_JSON;
    speech->style.task =
        strcmp(call->route->pattern, "/v1/audio/translations") == 0 ? "translate" : "transcribe";
    const char *named = berth_http_header(call->exchange, "Berth-Model");
    if (named != NULL) {
        BERTH_TRY(find_model(call, named, err));
    }
    BERTH_TRY(berth_sched_judge(call->api->options.sched, call->model, call->t_deadline_ns, err));
    if (berth_http_content_length(call->exchange) == 0) {
        return berth_fail_field(err, BERTH_INVALID, "file", "the request has no body");
    }
    return berth_multipart_init(&speech->parser, type == NULL ? "" : type, err);
}

static enum berth_code more(struct berth_call *call, uint64_t length, struct berth_err *err)
{
    struct speech *speech = call->state;
    const struct berth_range *body = berth_http_body(call->exchange);
    const char *bytes = berth_slabs_pointer(call->api->options.slabs, body);
    BERTH_TRY(berth_multipart_feed(&speech->parser, bytes, length, err));
    return judge_parts(call, err);
}

static enum berth_code end(struct berth_call *call, struct berth_err *err)
{
    struct speech *speech = call->state;
    const struct berth_range *body = berth_http_body(call->exchange);
    BERTH_TRY(more(call, body->length, err));
    BERTH_TRY(berth_multipart_end(&speech->parser, err));
    if (speech->file == NULL) {
        return berth_fail_field(err, BERTH_INVALID, "file", "the form has no file");
    }
    if (speech->file->length == 0) {
        return berth_fail_field(err, BERTH_INVALID, "file", "no audio: the file is empty");
    }
    if (call->model == NULL) {
        return berth_fail_field(err, BERTH_INVALID, "model", "the form has no model");
    }
    if (speech->stream && speech->style.format != BERTH_TRANSCRIPT_JSON &&
        speech->style.format != BERTH_TRANSCRIPT_TEXT) {
        return berth_fail_field(err, BERTH_INVALID, "stream",
                                "stream=true goes with response_format json or text");
    }
    if (speech->granularities_named && speech->style.format != BERTH_TRANSCRIPT_VERBOSE_JSON) {
        return berth_fail_field(err, BERTH_INVALID, "timestamp_granularities[]",
                                "timestamp_granularities needs response_format=verbose_json");
    }
    if (!speech->granularities_named) {
        speech->style.segments = true;
    }
    BERTH_TRY(berth_call_open_request(call, on_part, err));
    call->request->body = berth_http_take_body(call->exchange);
    call->request->stamps.t_received_ns = berth_clock_now_ns();
    return decode(call, err);
}

static enum berth_code judge_parts(struct berth_call *call, struct berth_err *err)
{
    struct speech *speech = call->state;
    for (size_t i = speech->parts_judged; i < speech->parser.part_count; i++) {
        const struct berth_multipart_part *part = &speech->parser.parts[i];
        bool is_file = strcmp(part->name, "file") == 0;
        if (!speech->heads_judged[i]) {
            speech->heads_judged[i] = true;
            if (is_file && speech->file != NULL) {
                return berth_fail_field(err, BERTH_INVALID, "file", "the form has two files");
            }
            if (is_file) {
                speech->file = part;
            }
        }
        if (!part->complete) {
            return BERTH_OK;
        }
        speech->parts_judged++;
        if (!is_file) {
            BERTH_TRY(judge_field(call, part, err));
        }
    }
    return BERTH_OK;
}

static enum berth_code judge_format(struct berth_call *call, const char *value,
                                    struct berth_err *err)
{
    struct speech *speech = call->state;
    if (!berth_transcript_format_parse(value, &speech->style.format)) {
        return berth_fail_field(
            err, BERTH_INVALID, "response_format",
            "response_format '%.40s' is not one of json, text, srt, verbose_json, vtt", value);
    }
    return BERTH_OK;
}

static enum berth_code judge_temperature(struct berth_call *call, const char *value,
                                         struct berth_err *err)
{
    struct speech *speech = call->state;
    char *stop = NULL;
    speech->temperature = strtod(value, &stop);
    bool decimal = value[strspn(value, "0123456789.eE+-")] == '\0'; /* no space, no hexadecimal */
    if (!decimal || stop == value || *stop != '\0' ||
        !(speech->temperature >= 0 && speech->temperature <= 1)) {
        return berth_fail_field(err, BERTH_INVALID, "temperature",
                                "temperature '%.40s' is not a number from 0 to 1", value);
    }
    return BERTH_OK;
}

static enum berth_code judge_granularity(struct berth_call *call, const char *value,
                                         struct berth_err *err)
{
    struct speech *speech = call->state;
    bool word = strcmp(value, "word") == 0;
    if (!word && strcmp(value, "segment") != 0) {
        return berth_fail_field(err, BERTH_INVALID, "timestamp_granularities[]",
                                "timestamp granularity '%.40s' is not word or segment", value);
    }
    speech->granularities_named = true;
    if (word) {
        speech->style.words = true;
    } else {
        speech->style.segments = true;
    }
    return BERTH_OK;
}

static enum berth_code judge_stream(struct berth_call *call, const char *value,
                                    struct berth_err *err)
{
    struct speech *speech = call->state;
    speech->stream = strcmp(value, "true") == 0 || strcmp(value, "True") == 0 ||
                     strcmp(value, "1") == 0;
    if (!speech->stream && strcmp(value, "false") != 0 && strcmp(value, "False") != 0 &&
        strcmp(value, "0") != 0) {
        return berth_fail_field(err, BERTH_INVALID, "stream", "stream '%.40s' is not true or false",
                                value);
    }
    return BERTH_OK;
}

/* What an answer would lack without a word is refused. */
static enum berth_code judge_include(struct berth_call *call, const char *value,
                                     struct berth_err *err)
{
    (void)call;
    return value[0] == '\0'
               ? BERTH_OK
               : berth_fail_field(err, BERTH_UNSUPPORTED, "include[]",
                                  "include[] '%.40s' is not supported: answers have no more than "
                                  "response_format says",
                                  value);
}

/* How a long recording is cut is this server's choice. "auto" says just that; voice detection, and
 * its thresholds, can change the cuts and not what an answer is. */
static enum berth_code judge_chunking(struct berth_call *call, const char *value,
                                      struct berth_err *err)
{
    static const char *const names[] = {"type"};
    struct berth_json_value root;
    struct berth_json_value type = {0};
    const char *what;
    size_t position;
    (void)call;
    if (value[0] == '\0' || strcmp(value, "auto") == 0) {
        return BERTH_OK;
    }
    if (berth_json_check(value, strlen(value), &root, &what, &position) == BERTH_OK) {
        berth_json_members(&root, names, 1, &type);
    }
    if (type.kind != BERTH_JSON_STRING || !berth_json_equals(&type, "server_vad")) {
        return berth_fail_field(err, BERTH_INVALID, "chunking_strategy",
                                "chunking_strategy '%.40s' is not auto or an object of type "
                                "server_vad",
                                value);
    }
    return BERTH_OK;
}

/* The same object, as OpenAI's client writes it in a form. */
static enum berth_code judge_chunking_type(struct berth_call *call, const char *value,
                                           struct berth_err *err)
{
    (void)call;
    return strcmp(value, "server_vad") == 0
               ? BERTH_OK
               : berth_fail_field(err, BERTH_INVALID, "chunking_strategy",
                                  "chunking_strategy of type '%.40s' is not server_vad", value);
}

static enum berth_code keep_language(struct berth_call *call, const char *value,
                                     struct berth_err *err)
{
    ((struct speech *)call->state)->language = value;
    return BERTH_OK;
}

static enum berth_code keep_prompt(struct berth_call *call, const char *value,
                                   struct berth_err *err)
{
    ((struct speech *)call->state)->prompt = value;
    return BERTH_OK;
}

/* The name is a literal: errors borrow it. */
static const struct field {
    const char *name;
    enum berth_code (*judge)(struct berth_call *call, const char *value, struct berth_err *err);
} fields[] = {
    {"model", find_model},
    {"response_format", judge_format},
    {"temperature", judge_temperature},
    {"stream", judge_stream},
    {"timestamp_granularities[]", judge_granularity},
    {"timestamp_granularities", judge_granularity},
    {"language", keep_language},
    {"prompt", keep_prompt},
    {"include[]", judge_include},
    {"include", judge_include},
    {"chunking_strategy", judge_chunking},
    {"chunking_strategy[type]", judge_chunking_type},
};

static const struct field *field_of(const char *name)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(fields); i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

/* A field that nobody knows here is let pass, as OpenAI's server does. */
static enum berth_code judge_field(struct berth_call *call, const struct berth_multipart_part *part,
                                   struct berth_err *err)
{
    const struct field *field = field_of(part->name);
    const char *name = field == NULL ? NULL : field->name;
    const char *body =
        berth_slabs_pointer(call->api->options.slabs, berth_http_body(call->exchange));
    const char *bytes = body + part->offset;
    size_t length = (size_t)part->length;
    if (length > FIELD_MAX) {
        return berth_fail_field(err, BERTH_TOO_LARGE, name, "field '%s' is longer than %u bytes",
                                part->name, FIELD_MAX);
    }
    if (berth_utf8_valid_length(bytes, length) != length || memchr(bytes, '\0', length) != NULL) {
        return berth_fail_field(err, BERTH_INVALID, name,
                                "field '%s' is not valid UTF-8 text, or has a NUL in it",
                                part->name);
    }
    const char *value = berth_arena_strndup(&call->arena, bytes, length);
    if (value == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    return field == NULL ? BERTH_OK : field->judge(call, value, err);
}

static enum berth_code find_model(struct berth_call *call, const char *name, struct berth_err *err)
{
    struct berth_model *model = berth_catalog_find(call->api->options.catalog, name, 0);
    if (model == NULL) {
        return berth_fail_field(err, BERTH_NOT_FOUND, "model", "the model '%.100s' does not exist",
                                name);
    }
    if (call->model != NULL && call->model != model) {
        berth_model_release(model);
        return berth_fail_field(err, BERTH_INVALID, "model", "two different models are named");
    }
    berth_model_release(call->model);
    call->model = model;
    return berth_sched_judge(call->api->options.sched, model, call->t_deadline_ns, err);
}

/* All that can be said without the audio has been said; now it is decoded. */
static enum berth_code decode(struct berth_call *call, struct berth_err *err)
{
    struct speech *speech = call->state;
    struct berth_request *request = call->request;
    struct berth_model_spec *spec = NULL;
    BERTH_TRY(berth_call_spec(call, &spec, err));
    bool hears = strcmp(spec->task, "automatic-speech-recognition") == 0;
    berth_spec_release(spec);
    if (!hears) {
        return berth_fail_field(err, BERTH_INVALID, "model",
                                "the model '%.100s' does not transcribe audio", call->model->name);
    }
    struct berth_media_job *job = &call->media;
    job->post.deliver = on_decoded;
    job->reply = request->reply;
    job->rate = RATE;
    job->seconds_max = call->api->options.audio_seconds_max;
    job->cancelled = &request->cancelled;
    job->t_deadline_ns = request->t_deadline_ns;
    job->state = call;
    if (!berth_range_slice(&request->body, speech->file->offset, speech->file->length, &job->in)) {
        return berth_fail(err, BERTH_INTERNAL, "the file lies outside of the body");
    }
    BERTH_TRY(berth_media_submit(call->api->options.media, job, err));
    berth_call_pin(call);
    return BERTH_OK;
}

static void on_decoded(struct berth_post *post)
{
    struct berth_media_job *job = BERTH_CONTAINER_OF(post, struct berth_media_job, post);
    struct berth_call *call = job->state;
    struct berth_err err = job->err;
    const struct berth_multipart_part *file = ((struct speech *)call->state)->file;
    if (err.code == BERTH_MEDIA && !file->has_filename && file->length < PATH_BYTES) {
        size_t used = strlen(err.msg); /* curl sends the path itself when its @ was forgotten */
        snprintf(err.msg + used, sizeof(err.msg) - used, "; did you mean file=@PATH?");
    }
    call->request->media = job->out;
    call->request->stamps.t_decoded_ns = berth_clock_now_ns();
    berth_slabs_give(call->request->slabs, &call->request->body);
    if (call->exchange != NULL && (err.code != BERTH_OK || submit(call, &err) != BERTH_OK)) {
        berth_call_fail(call, &err);
    }
    berth_call_unpin(call);
}

static void add_param(struct berth_params *params, struct berth_param param)
{
    BERTH_ASSERT(params->count < PARAMS_MAX);
    params->items[params->count++] = param;
}

static enum berth_code submit(struct berth_call *call, struct berth_err *err)
{
    struct speech *speech = call->state;
    struct berth_request *request = call->request;
    struct berth_tensor *audio = berth_arena_alloc(&request->arena, sizeof(*audio));
    struct berth_params *params = &request->params;
    /* The request may outlive the call, so its parameters live in its own arena. */
    params->items = berth_arena_alloc(&request->arena, PARAMS_MAX * sizeof(*params->items));
    if (audio == NULL || params->items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    struct berth_model_spec *spec = berth_model_spec(call->model);
    audio->name = "audio";
    audio->dtype = BERTH_DTYPE_FP32;
    if (spec->batch_size_max > 0) {
        audio->dims[audio->rank++] = 1;
    }
    berth_spec_release(spec);
    audio->dims[audio->rank++] = (int64_t)call->media.frame_count;
    audio->range = request->media;
    request->inputs = audio;
    request->input_count = 1;
    add_param(params,
              (struct berth_param){"task", BERTH_PARAM_STRING, {.string = speech->style.task}});
    add_param(params,
              (struct berth_param){"temperature", BERTH_PARAM_REAL, {.real = speech->temperature}});
    add_param(params,
              (struct berth_param){
                  "word_timestamps", BERTH_PARAM_BOOL, {.boolean = speech->style.words}});
    const char *texts[] = {speech->language, speech->prompt};
    static const char *const names[] = {"language", "prompt"};
    for (size_t i = 0; i < BERTH_COUNT_OF(texts); i++) {
        if (texts[i] == NULL || texts[i][0] == '\0') {
            continue;
        }
        const char *copy = berth_arena_strdup(&request->arena, texts[i]);
        if (copy == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
        }
        add_param(params,
                  (struct berth_param){names[i], BERTH_PARAM_STRING, {.string = copy}});
    }
    return berth_call_submit(call, err);
}

static void on_part(struct berth_post *post)
{
    struct berth_part *part = BERTH_CONTAINER_OF(post, struct berth_part, post);
    struct berth_call *call = part->request->owner;
    if (call == NULL || call->exchange == NULL) {
        berth_part_destroy(part);
        return;
    }
    struct speech *speech = call->state;
    call->finished = part->final;
    if (speech->stream) {
        stream_part(call, part);
    } else if (part->final && part->err.code != BERTH_OK) {
        berth_call_fail(call, &part->err);
    } else if (part->final) {
        answer_final(call, part);
    }
    berth_part_destroy(part);
}

/* Server-sent events: a delta for each part, "done" at the end. The first one begins the answer, so
 * that an error before it still has its own status. */
static void stream_part(struct berth_call *call, struct berth_part *part)
{
    struct speech *speech = call->state;
    struct berth_buf text = {0};
    struct berth_transcript transcript;
    struct berth_err err = part->err;
    if (err.code == BERTH_OK) {
        (void)!berth_transcript_read(part, call->request->slabs, &call->arena, &transcript, &err);
    }
    if (err.code != BERTH_OK && !speech->stream_begun) {
        berth_call_fail(call, &err);
        return;
    }
    if (!speech->stream_begun) {
        struct berth_http_header headers[BERTH_CALL_HEADERS_MAX + 1] = {
            {"Cache-Control", "no-cache"}};
        size_t count = 1;
        berth_call_headers(call, headers, &count);
        berth_http_stream_begin(call->exchange,
                                &(struct berth_http_answer){.status = 200,
                                                            .content_type = "text/event-stream",
                                                            .headers = headers,
                                                            .header_count = count});
        speech->stream_begun = true;
    }
    berth_buf_puts(&text, "data: ");
    if (err.code != BERTH_OK) {
        berth_log_err_model(BERTH_LOG_WARN, "api", call->request->id, &err, call->model->name);
        berth_openai_error_body(&err, &text);
    } else if (part->final) {
        berth_buf_puts(&text, "{\"type\":\"transcript.text.done\",\"text\":");
        berth_buf_json_string(&text, transcript.text, strlen(transcript.text));
        berth_buf_puts(&text, "}");
    } else {
        berth_buf_puts(&text, "{\"type\":\"transcript.text.delta\",\"delta\":");
        berth_buf_json_string(&text, transcript.text, strlen(transcript.text));
        berth_buf_puts(&text, "}");
    }
    berth_buf_puts(&text, "\n\n");
    berth_http_stream_chunk(call->exchange, &text);
    if (part->final || err.code != BERTH_OK) {
        berth_http_stream_end(call->exchange);
    }
    if (!part->final && err.code != BERTH_OK) { /* nobody waits for the rest */
        atomic_store(&call->request->cancelled, true);
        berth_sched_cancel(call->api->options.sched, call->request);
    }
}

static void answer_final(struct berth_call *call, struct berth_part *part)
{
    struct speech *speech = call->state;
    struct berth_transcript transcript;
    struct berth_err err = {0};
    struct berth_buf text = {0};
    if (berth_transcript_read(part, call->request->slabs, &call->arena, &transcript, &err) !=
        BERTH_OK) {
        berth_call_fail(call, &err);
        return;
    }
    berth_transcript_write(&transcript, &speech->style, &text);
    if (!berth_buf_ok(&text)) {
        berth_fail(&err, BERTH_UNAVAILABLE, "no memory for the answer");
        berth_buf_finish(&text);
        berth_call_fail(call, &err);
        return;
    }
    berth_call_answer(call, &(struct berth_http_answer){
                                .status = 200,
                                .content_type = berth_transcript_content_type(speech->style.format),
                                .text = &text});
}

static void put_model(struct berth_buf *out, const char *name)
{
    berth_buf_puts(out, "{\"id\":");
    berth_buf_json_string(out, name, strlen(name));
    berth_buf_puts(out, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"berth\"}");
}

/* Who picks from the list gets an answer: what cannot be loaded is not in it. */
static bool is_offered(struct berth_model *model)
{
    return atomic_load(&model->listed) && berth_model_state(model) != BERTH_STATE_FAILED;
}

static enum berth_code list_models(struct berth_call *call, struct berth_err *err)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    struct berth_buf text = {0};
    if (!berth_catalog_list(call->api->options.catalog, &models, &count)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    bool first = true;
    berth_buf_puts(&text, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < count; i++) {
        /* Sorted by name: versions of one model are neighbours, and are one model here. */
        if (i > 0 && strcmp(models[i - 1]->name, models[i]->name) == 0) {
            continue;
        }
        struct berth_model *newest =
            berth_catalog_find(call->api->options.catalog, models[i]->name, 0);
        if (newest != NULL && is_offered(newest)) {
            berth_buf_puts(&text, first ? "" : ",");
            put_model(&text, models[i]->name);
            first = false;
        }
        berth_model_release(newest);
    }
    berth_buf_puts(&text, "]}");
    berth_models_release(models, count);
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

static enum berth_code get_model(struct berth_call *call, struct berth_err *err)
{
    struct berth_buf text = {0};
    call->model = berth_catalog_find(call->api->options.catalog, call->segments[0], 0);
    if (call->model == NULL) {
        return berth_fail_field(err, BERTH_NOT_FOUND, "model", "the model '%.100s' does not exist",
                                call->segments[0]);
    }
    if (!is_offered(call->model)) {
        char reason[sizeof(err->msg)];
        berth_model_reason(call->model, reason, sizeof(reason));
        return berth_fail_field(err, BERTH_NOT_FOUND, "model",
                                "the model '%.100s' could not be loaded: %s", call->model->name,
                                reason);
    }
    put_model(&text, call->model->name);
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

const struct berth_route berth_openai_routes[] = {
    {.method = "POST", .pattern = "/v1/audio/transcriptions", .style = BERTH_STYLE_OPENAI,
     .body = true, .media = true, .head = head, .more = more, .end = end},
    {.method = "POST", .pattern = "/v1/audio/translations", .style = BERTH_STYLE_OPENAI,
     .body = true, .media = true, .head = head, .more = more, .end = end},
    {.method = "GET", .pattern = "/v1/models", .style = BERTH_STYLE_OPENAI, .end = list_models},
    {.method = "GET", .pattern = "/v1/models/{}", .style = BERTH_STYLE_OPENAI, .end = get_model},
    {0},
};
