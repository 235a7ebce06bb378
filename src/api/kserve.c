/* kserve.c - KServe v2 over HTTP: health, metadata, config, statistics and the repository, with
 * Triton's codes and texts (docs/triton.md lists what differs and why).
 *
 * In demand mode a model that is not loaded yet counts as available, and its metadata are what a
 * scan of its files told.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/call.h"
#include "api/kserve_json.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/config_tree.h"

#define EXTENSIONS                                                                                 \
    "[\"model_repository\",\"model_repository(unload_dependents)\",\"schedule_policy\","           \
    "\"model_configuration\",\"binary_tensor_data\",\"parameters\",\"statistics\"]"

static enum berth_code live(struct berth_call *call, struct berth_err *err);
static enum berth_code ready(struct berth_call *call, struct berth_err *err);
static enum berth_code model_ready(struct berth_call *call, struct berth_err *err);
static enum berth_code server_metadata(struct berth_call *call, struct berth_err *err);
static enum berth_code model_metadata(struct berth_call *call, struct berth_err *err);
static enum berth_code model_config(struct berth_call *call, struct berth_err *err);
static enum berth_code model_stats(struct berth_call *call, struct berth_err *err);
static enum berth_code all_stats(struct berth_call *call, struct berth_err *err);
static enum berth_code repository_index(struct berth_call *call, struct berth_err *err);
static enum berth_code repository_load(struct berth_call *call, struct berth_err *err);
static enum berth_code repository_unload(struct berth_call *call, struct berth_err *err);
static void on_admin_done(struct berth_post *post);
static void say_failed(struct berth_call *call, struct berth_err *err);
static bool available(const struct berth_call *call, struct berth_model *model);
static void answer_empty(struct berth_call *call);
static void put_ios(struct berth_buf *out, const struct berth_model_spec *spec,
                    const struct berth_io *ios, size_t count);
static void put_stats(struct berth_buf *out, struct berth_model *model);
static void put_memory(struct berth_buf *out, struct berth_model *model);
static enum berth_code read_json(struct berth_call *call, json_t **out, struct berth_err *err);

enum berth_code berth_kserve_find_model(struct berth_call *call, const char *version_text,
                                        struct berth_err *err)
{
    struct berth_catalog *catalog = call->api->options.catalog;
    const char *name = call->segments[0];
    uint64_t version = 0;
    if (version_text != NULL) {
        char *end = NULL;
        version = strtoull(version_text, &end, 10);
        if (*end != '\0' || version_text[0] < '0' || version_text[0] > '9') {
            return berth_fail(err, BERTH_NOT_FOUND, "Not Found");
        }
        version = version == 0 ? UINT64_MAX : version; /* versions count from 1; 0 finds any */
    }
    struct berth_model *model = berth_catalog_find(catalog, name, version);
    /* In demand mode a model that failed is not "unknown": the controller says why, and when to
     * come again. */
    if (model != NULL && (available(call, model) || (call->api->options.demand &&
                                                     atomic_load(&model->listed)))) {
        call->model = model;
        return BERTH_OK;
    }
    berth_model_release(model);
    if (!berth_catalog_knows(catalog, name)) {
        return berth_fail_field(err, BERTH_NOT_FOUND, "model",
                                "Request for unknown model: '%s' is not found", name);
    }
    if (version != 0) {
        return berth_fail_field(err, BERTH_NOT_FOUND, "model",
                                "Request for unknown model: '%s' version %s is not found", name,
                                version_text);
    }
    return berth_fail_field(err, BERTH_NOT_FOUND, "model",
                            "Request for unknown model: '%s' has no available versions", name);
}

static enum berth_code live(struct berth_call *call, struct berth_err *err)
{
    (void)err;
    answer_empty(call);
    return BERTH_OK;
}

static enum berth_code ready(struct berth_call *call, struct berth_err *err)
{
    struct berth_sched_stats stats;
    (void)err;
    berth_sched_stats(call->api->options.sched, &stats);
    if (stats.ready) {
        answer_empty(call);
    } else {
        berth_call_answer(call, &(struct berth_http_answer){
                                    .status = call->api->options.typed_errors ? 503 : 400,
                                    .content_type = "text/plain"});
    }
    return BERTH_OK;
}

static enum berth_code model_ready(struct berth_call *call, struct berth_err *err)
{
    if (berth_kserve_find_model(call, call->segments[1], err) == BERTH_OK &&
        available(call, call->model)) {
        answer_empty(call);
        return BERTH_OK;
    }
    /* Triton says 400 here, whatever the reason. */
    return berth_fail(err, call->api->options.typed_errors ? BERTH_UNAVAILABLE : BERTH_INVALID,
                      "Model version not ready");
}

static enum berth_code server_metadata(struct berth_call *call, struct berth_err *err)
{
    struct berth_buf text = {0};
    (void)err;
    berth_buf_puts(&text, "{\"name\":\"berth\",\"version\":\"" BERTH_VERSION
                          "\",\"extensions\":" EXTENSIONS "}");
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

static enum berth_code model_metadata(struct berth_call *call, struct berth_err *err)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    struct berth_buf text = {0};
    struct berth_model_spec *spec = NULL;
    BERTH_TRY(berth_kserve_find_model(call, call->segments[1], err));
    BERTH_TRY(berth_call_spec(call, &spec, err));
    if (!berth_catalog_versions(call->api->options.catalog, spec->name, &models, &count)) {
        berth_spec_release(spec);
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    berth_buf_puts(&text, "{\"name\":");
    berth_buf_json_string(&text, spec->name, strlen(spec->name));
    berth_buf_puts(&text, ",\"versions\":[");
    bool first = true;
    for (size_t i = 0; i < count; i++) {
        if (available(call, models[i])) {
            berth_buf_printf(&text, "%s\"%" PRIu64 "\"", first ? "" : ",", models[i]->version);
            first = false;
        }
    }
    berth_models_release(models, count);
    const char *platform = spec->platform[0] != '\0' ? spec->platform : spec->backend;
    berth_buf_puts(&text, "],\"platform\":");
    berth_buf_json_string(&text, platform, strlen(platform));
    berth_buf_puts(&text, ",\"inputs\":");
    put_ios(&text, spec, spec->inputs, spec->input_count);
    berth_buf_puts(&text, ",\"outputs\":");
    put_ios(&text, spec, spec->outputs, spec->output_count);
    berth_buf_puts(&text, "}");
    berth_spec_release(spec);
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

static enum berth_code model_config(struct berth_call *call, struct berth_err *err)
{
    struct berth_buf text = {0};
    struct berth_model_spec *spec = NULL;
    BERTH_TRY(berth_kserve_find_model(call, call->segments[1], err));
    BERTH_TRY(berth_call_spec(call, &spec, err));
    const char *device = atomic_load(&call->model->device);
    bool gpu = berth_device_is_gpu(device);
    char *config = berth_spec_config_json(spec, device == NULL ? BERTH_KIND_AUTO
                                                : gpu          ? BERTH_KIND_GPU
                                                               : BERTH_KIND_CPU);
    berth_spec_release(spec);
    if (config == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the config of '%s'",
                          call->model->name);
    }
    berth_buf_puts(&text, config);
    berth_free(config);
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

static enum berth_code model_stats(struct berth_call *call, struct berth_err *err)
{
    struct berth_buf text = {0};
    if (berth_kserve_find_model(call, call->segments[1], err) != BERTH_OK) {
        if (call->api->options.typed_errors) {
            return err->code;
        }
        return berth_fail_field(err, BERTH_INVALID, "model",
                                "requested model '%s' is not available", call->segments[0]);
    }
    berth_buf_puts(&text, "{\"model_stats\":[");
    put_stats(&text, call->model);
    berth_buf_puts(&text, "]}");
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

static enum berth_code all_stats(struct berth_call *call, struct berth_err *err)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    struct berth_buf text = {0};
    if (!berth_catalog_list(call->api->options.catalog, &models, &count)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    berth_buf_puts(&text, "{\"model_stats\":[");
    bool first = true;
    for (size_t i = 0; i < count; i++) {
        if (available(call, models[i])) {
            berth_buf_puts(&text, first ? "" : ",");
            put_stats(&text, models[i]);
            first = false;
        }
        berth_model_release(models[i]);
    }
    berth_free(models);
    berth_buf_puts(&text, "]}");
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

/* State and reason as Triton's index says them; one that serves has a reason where a newer version
 * could not be loaded. A cold model of demand mode is READY: a request will be answered. For who
 * asks ("device": true): where a loaded one is, and why on no GPU. */
static void put_index_item(struct berth_call *call, struct berth_buf *out,
                           struct berth_model *model, bool devices)
{
    char reason[256];
    char fallback[256];
    enum berth_model_state state = berth_model_state(model);
    const char *device = berth_model_place(model, fallback, sizeof(fallback));
    berth_model_reason(model, reason, sizeof(reason));
    const char *text = available(call, model)       ? "READY"
                       : state == BERTH_STATE_LOADING  ? "LOADING"
                       : state == BERTH_STATE_WARMING  ? "LOADING"
                       : state == BERTH_STATE_EVICTING ? "UNLOADING"
                                                       : "UNAVAILABLE";
    berth_buf_puts(out, "{\"name\":");
    berth_buf_json_string(out, model->name, strlen(model->name));
    berth_buf_printf(out, ",\"version\":\"%" PRIu64 "\",\"state\":\"%s\"", model->version, text);
    bool tells = state == BERTH_STATE_WARM || strcmp(text, "UNAVAILABLE") == 0;
    if (reason[0] != '\0' && tells) {
        berth_buf_puts(out, ",\"reason\":");
        berth_buf_json_string(out, reason, strlen(reason));
    }
    if (devices && device != NULL) {
        berth_buf_printf(out, ",\"device\":\"%s\"", device);
    }
    if (devices && fallback[0] != '\0') {
        berth_buf_puts(out, ",\"fallback\":");
        berth_buf_json_string(out, fallback, strlen(fallback));
    }
    berth_buf_puts(out, "}");
}

static enum berth_code repository_index(struct berth_call *call, struct berth_err *err)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    struct berth_buf text = {0};
    json_t *root = NULL;
    BERTH_TRY(read_json(call, &root, err));
    bool ready_only = json_is_true(json_object_get(root, "ready"));
    bool devices = json_is_true(json_object_get(root, "device"));
    json_decref(root);
    if (!berth_catalog_list(call->api->options.catalog, &models, &count)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    berth_buf_puts(&text, "[");
    bool first = true;
    for (size_t i = 0; i < count; i++) {
        if (!ready_only || available(call, models[i])) {
            berth_buf_puts(&text, first ? "" : ",");
            put_index_item(call, &text, models[i], devices);
            first = false;
        }
        berth_model_release(models[i]);
    }
    berth_free(models);
    berth_buf_puts(&text, "]");
    berth_call_answer_json(call, &text);
    return BERTH_OK;
}

static enum berth_code repository_load(struct berth_call *call, struct berth_err *err)
{
    json_t *root = NULL;
    BERTH_TRY(read_json(call, &root, err));
    json_t *config = json_object_get(json_object_get(root, "parameters"), "config");
    if (config != NULL && !json_is_string(config)) {
        json_decref(root);
        return berth_fail_field(err, BERTH_INVALID, "config",
                                "the parameter config must be a string of JSON");
    }
    if (config != NULL) {
        call->admin.config_json = berth_arena_strdup(&call->arena, json_string_value(config));
    }
    bool lost = config != NULL && call->admin.config_json == NULL;
    json_decref(root);
    if (lost) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    call->admin.kind = BERTH_ADMIN_LOAD;
    call->admin.name = call->segments[0];
    berth_call_admin(call, on_admin_done);
    return BERTH_OK;
}

static enum berth_code repository_unload(struct berth_call *call, struct berth_err *err)
{
    json_t *root = NULL;
    BERTH_TRY(read_json(call, &root, err)); /* unload_dependents: ensembles come later */
    json_decref(root);
    call->admin.kind = BERTH_ADMIN_UNLOAD;
    call->admin.name = call->segments[0];
    berth_call_admin(call, on_admin_done);
    return BERTH_OK;
}

static void on_admin_done(struct berth_post *post)
{
    struct berth_admin *admin = BERTH_CONTAINER_OF(post, struct berth_admin, post);
    struct berth_call *call = admin->state;
    if (call->exchange != NULL && admin->err.code == BERTH_OK) {
        berth_call_answer(call, &(struct berth_http_answer){.status = 200,
                                                            .content_type = "application/json"});
    } else if (call->exchange != NULL) {
        struct berth_err err = {0};
        berth_log_err(BERTH_LOG_WARN, "api", 0, &admin->err);
        if (call->api->options.typed_errors) {
            err = admin->err;
        } else {
            say_failed(call, &err);
        }
        berth_call_fail(call, &err);
    }
    berth_call_unpin(call);
}

/* Triton's text, which its clients know, and behind it the reason: not where the name alone is
 * wrong. S18 puts the name before the reason; here it is there already. */
static void say_failed(struct berth_call *call, struct berth_err *err)
{
    const struct berth_admin *admin = &call->admin;
    struct berth_err named = {0};
    const char *why = admin->err.msg;
    berth_sched_name_failure(&named, admin->name);
    bool is_named = strncmp(why, named.msg, strlen(named.msg)) == 0;
    bool polled = admin->err.code != BERTH_NOT_FOUND && admin->err.code != BERTH_INVALID;
    bool unknown = admin->err.code == BERTH_NOT_FOUND &&
                   !berth_catalog_knows(call->api->options.catalog, admin->name);
    if (polled && !is_named) { /* about the server, not the model */
        berth_fail(err, BERTH_INTERNAL, "%s", why);
        return;
    }
    why += is_named ? strlen(named.msg) : 0;
    berth_fail(err, BERTH_INTERNAL, "failed to %s '%s'%s%s%s",
               admin->kind == BERTH_ADMIN_UNLOAD ? "unload" : "load", admin->name,
               polled ? "" : ", failed to poll from model repository", unknown ? "" : ": ",
               unknown ? "" : why);
}

/* Would a request for it be taken? */
static bool available(const struct berth_call *call, struct berth_model *model)
{
    enum berth_model_state state = berth_model_state(model);
    if (!atomic_load(&model->listed)) {
        return false;
    }
    return state == BERTH_STATE_WARM || (call->api->options.demand && state != BERTH_STATE_FAILED);
}

static void answer_empty(struct berth_call *call)
{
    berth_call_answer(call,
                      &(struct berth_http_answer){.status = 200, .content_type = "text/plain"});
}

static void put_ios(struct berth_buf *out, const struct berth_model_spec *spec,
                    const struct berth_io *ios, size_t count)
{
    berth_buf_puts(out, "[");
    for (size_t i = 0; i < count; i++) {
        berth_buf_puts(out, i == 0 ? "{\"name\":" : ",{\"name\":");
        berth_buf_json_string(out, ios[i].name, strlen(ios[i].name));
        berth_buf_printf(out, ",\"datatype\":\"%s\",\"shape\":[%s", berth_dtype_name(ios[i].dtype),
                         spec->batch_size_max > 0 ? "-1" : "");
        for (size_t d = 0; d < ios[i].rank; d++) {
            berth_buf_printf(out, "%s%" PRId64, d > 0 || spec->batch_size_max > 0 ? "," : "",
                             ios[i].dims[d]);
        }
        berth_buf_puts(out, "]}");
    }
    berth_buf_puts(out, "]");
}

static void put_tally(struct berth_buf *out, const char *name, const struct berth_tally *tally)
{
    berth_buf_printf(out, "\"%s\":{\"count\":%" PRIu64 ",\"ns\":%" PRIu64 "}", name,
                     tally == NULL ? 0 : atomic_load_explicit(&tally->count, memory_order_relaxed),
                     tally == NULL ? 0 : atomic_load_explicit(&tally->ns, memory_order_relaxed));
}

static void put_stats(struct berth_buf *out, struct berth_model *model)
{
    struct berth_model_stats *stats = &model->stats;
    const struct {
        const char *name;
        const struct berth_tally *tally;
    } tallies[] = {
        {"success", &stats->success},
        {"fail", &stats->fail},
        {"queue", &stats->queue},
        {"compute_input", &stats->compute_input},
        {"compute_infer", &stats->compute_infer},
        {"compute_output", &stats->compute_output},
        {"cache_hit", NULL},
        {"cache_miss", NULL},
    };
    berth_buf_puts(out, "{\"name\":");
    berth_buf_json_string(out, model->name, strlen(model->name));
    berth_buf_printf(out,
                     ",\"version\":\"%" PRIu64 "\",\"last_inference\":%" PRIu64
                     ",\"inference_count\":%" PRIu64 ",\"execution_count\":%" PRIu64
                     ",\"inference_stats\":{",
                     model->version, atomic_load(&stats->last_inference_ms),
                     atomic_load(&stats->inference_count), atomic_load(&stats->execution_count));
    for (size_t i = 0; i < BERTH_COUNT_OF(tallies); i++) {
        berth_buf_puts(out, i == 0 ? "" : ",");
        put_tally(out, tallies[i].name, tallies[i].tally);
    }
    berth_buf_puts(out, "},\"response_stats\":{},\"batch_stats\":[");
    bool first = true;
    const struct berth_model_detail *detail = berth_model_detail(model);
    for (size_t size = 1; detail != NULL && size <= BERTH_BATCH_SIZES_MAX; size++) {
        if (atomic_load(&detail->batches[size].count) == 0) {
            continue;
        }
        berth_buf_printf(out, "%s{\"batch_size\":%zu,", first ? "" : ",", size);
        put_tally(out, "compute_input", NULL);
        berth_buf_puts(out, ",");
        put_tally(out, "compute_infer", &detail->batches[size]);
        berth_buf_puts(out, ",");
        put_tally(out, "compute_output", NULL);
        berth_buf_puts(out, "}");
        first = false;
    }
    put_memory(out, model);
}

/* Of "cuda:0" Triton's type is GPU, and the id 0. */
static void put_memory(struct berth_buf *out, struct berth_model *model)
{
    const char *device = atomic_load(&model->device);
    const char *id = device == NULL ? NULL : strchr(device, ':');
    uint64_t bytes = atomic_load(&model->bytes_used);
    berth_buf_puts(out, "],\"memory_usage\":[");
    if (bytes > 0) {
        bool gpu = berth_device_is_gpu(device);
        berth_buf_printf(out, "{\"type\":\"%s\",\"id\":\"%s\",\"byte_size\":%" PRIu64 "}",
                         gpu ? "GPU" : "CPU", id == NULL ? "0" : id + 1, bytes);
    }
    berth_buf_puts(out, "]}");
}

/* The body as JSON; NULL where there is none. */
static enum berth_code read_json(struct berth_call *call, json_t **out, struct berth_err *err)
{
    const struct berth_range *body = berth_http_body(call->exchange);
    json_error_t json_err;
    if (berth_http_content_length(call->exchange) == 0 || body == NULL || body->length == 0) {
        *out = NULL;
        return BERTH_OK;
    }
    enum berth_code code = berth_json_read(berth_slabs_pointer(call->api->options.slabs, body),
                                           (size_t)body->length, 0, out, &json_err);
    if (code == BERTH_UNAVAILABLE) {
        return berth_fail(err, code, "no memory for the request");
    }
    if (code != BERTH_OK) {
        return berth_fail_field(err, BERTH_INVALID, berth_kserve_unparsed,
                                "failed to parse the request JSON buffer: %s. at %d", json_err.text,
                                json_err.position);
    }
    return BERTH_OK;
}

const struct berth_route berth_kserve_routes[] = {
    {.method = "POST", .pattern = "/v2/models/{}/infer", .body = true,
     .head = berth_kserve_infer_head, .end = berth_kserve_infer_end},
    {.method = "POST", .pattern = "/v2/models/{}/versions/{}/infer", .body = true,
     .head = berth_kserve_infer_head, .end = berth_kserve_infer_end},
    {.method = "GET", .pattern = "/v2/health/live", .open = true, .end = live},
    {.method = "GET", .pattern = "/v2/health/ready", .open = true, .end = ready},
    {.method = "GET", .pattern = "/v2", .end = server_metadata},
    {.method = "GET", .pattern = "/v2/models/stats", .end = all_stats},
    {.method = "GET", .pattern = "/v2/models/{}", .end = model_metadata},
    {.method = "GET", .pattern = "/v2/models/{}/versions/{}", .end = model_metadata},
    {.method = "GET", .pattern = "/v2/models/{}/ready", .end = model_ready},
    {.method = "GET", .pattern = "/v2/models/{}/versions/{}/ready", .end = model_ready},
    {.method = "GET", .pattern = "/v2/models/{}/config", .end = model_config},
    {.method = "GET", .pattern = "/v2/models/{}/versions/{}/config", .end = model_config},
    {.method = "GET", .pattern = "/v2/models/{}/stats", .end = model_stats},
    {.method = "GET", .pattern = "/v2/models/{}/versions/{}/stats", .end = model_stats},
    {.method = "POST", .pattern = "/v2/repository/index", .body = true, .json = true,
     .end = repository_index},
    {.method = "POST", .pattern = "/v2/repository/models/{}/load", .body = true, .json = true,
     .end = repository_load},
    {.method = "POST", .pattern = "/v2/repository/models/{}/unload", .body = true, .json = true,
     .end = repository_unload},
    {0},
};
