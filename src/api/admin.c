/* admin.c - health and metrics.
 *
 * /metrics is Prometheus text: berth's own families, and Triton's nv_inference_* names beside them
 * so that dashboards made for Triton keep working. Labels are bounded: the first METRICS_MODELS_MAX
 * models by name have series of their own, the rest are summed as model="other". What a model has
 * only where it is loaded is labelled with the device; counters and times outlive a load, and go on
 * in one series when it moves.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "api/call.h"
#include "base/clock.h"

#define METRICS_MODELS_MAX 200

/* One figure of the server as a whole. */
struct server_row {
    const char *name;
    const char *type;
    const char *help;
    uint64_t value;
};

static enum berth_code health(struct berth_call *call, struct berth_err *err);
static enum berth_code metrics(struct berth_call *call, struct berth_err *err);
static void put_server(struct berth_buf *out, struct berth_api *api);
static void put_devices(struct berth_buf *out, struct berth_sched *sched);
static void put_models(struct berth_buf *out, struct berth_model **models, size_t count);
static void put_family(struct berth_buf *out, const char *name, const char *type, const char *help);
static void put_rows(struct berth_buf *out, const struct server_row *rows, size_t count);

/* How one counter of a model is shown. */
struct model_row {
    const char *name;
    const char *type;
    const char *help;
    const char *labels; /* further labels, "" if none */
    uint64_t (*read)(struct berth_model *model);
};

static enum berth_code health(struct berth_call *call, struct berth_err *err)
{
    struct berth_sched_stats stats;
    struct berth_buf text = {0};
    (void)err;
    berth_sched_stats(call->api->options.sched, &stats);
    berth_buf_printf(&text,
                     "{\"status\":\"%s\",\"version\":\"" BERTH_VERSION
                     "\",\"uptime_s\":%.1f,\"queued\":%" PRIu64 ",\"running\":%" PRIu64
                     ",\"oldest_ms\":%.1f}",
                     stats.ready ? "ok" : "draining",
                     (double)(berth_clock_now_ns() - call->api->t_started_ns) / 1e9, stats.queued,
                     stats.running, (double)stats.head_age_ns / 1e6);
    berth_call_answer(call, &(struct berth_http_answer){.status = stats.ready ? 200 : 503,
                                                        .content_type = "application/json",
                                                        .text = &text});
    return BERTH_OK;
}

static enum berth_code metrics(struct berth_call *call, struct berth_err *err)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    struct berth_buf text = {0};
    if (!berth_catalog_list(call->api->options.catalog, &models, &count)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    put_server(&text, call->api);
    put_models(&text, models, count);
    berth_models_release(models, count);
    if (!berth_buf_ok(&text)) {
        berth_buf_finish(&text);
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    berth_call_answer(call, &(struct berth_http_answer){
                                .status = 200,
                                .content_type = "text/plain; version=0.0.4; charset=utf-8",
                                .text = &text});
    return BERTH_OK;
}

static void put_http(struct berth_buf *out, struct berth_http *http)
{
    struct berth_http_stats stats;
    if (http == NULL) {
        return;
    }
    berth_http_stats(http, &stats);
    const struct server_row rows[] = {
        {"berth_http_connections", "gauge", "Open connections", stats.connections_open},
        {"berth_http_connections_total", "counter", "Connections accepted",
         stats.connections_total},
        {"berth_http_connections_refused_total", "counter", "Connections over the limit",
         stats.connections_refused},
        {"berth_http_requests_total", "counter", "Requests whose head was read", stats.requests},
        {"berth_http_received_bytes_total", "counter", "Bytes read", stats.bytes_in},
        {"berth_http_sent_bytes_total", "counter", "Bytes written", stats.bytes_out},
        {"berth_http_hangups_total", "counter", "Clients gone before their answer", stats.hangups},
        {"berth_http_timeouts_total", "counter", "Heads, bodies and answers too slow",
         stats.timeouts},
        {"berth_http_paused", "gauge", "Bodies waiting for room in the byte budget", stats.paused},
        {"berth_http_continues_total", "counter", "100-continue sent", stats.continues},
        {"berth_http_parse_errors_total", "counter", "Requests refused as malformed",
         stats.parse_errors},
    };
    put_rows(out, rows, BERTH_COUNT_OF(rows));
}

static void put_server(struct berth_buf *out, struct berth_api *api)
{
    struct berth_sched_stats sched;
    struct berth_slabs_stats slabs;
    struct berth_media_stats media = {0};
    berth_sched_stats(api->options.sched, &sched);
    berth_slabs_stats(api->options.slabs, &slabs);
    if (api->options.media != NULL) {
        berth_media_stats(api->options.media, &media);
    }
    const struct server_row rows[] = {
        {"berth_ready", "gauge", "1 while requests are accepted", sched.ready},
        {"berth_queued_requests", "gauge", "Requests waiting", sched.queued},
        {"berth_running_requests", "gauge", "Requests handed to workers", sched.running},
        {"berth_accepted_requests_total", "counter", "Requests taken", sched.accepted},
        {"berth_completed_requests_total", "counter", "Requests answered", sched.completed},
        {"berth_refused_requests_total", "counter", "Requests refused for load", sched.refused},
        {"berth_expired_requests_total", "counter", "Requests past their deadline", sched.expired},
        {"berth_cancelled_requests_total", "counter", "Requests whose client left",
         sched.cancelled},
        {"berth_wasted_requests_total", "counter", "Requests run for nobody", sched.wasted_count},
        {"berth_repository_scans_total", "counter", "Looks at the whole repository", sched.scans},
        {"berth_slab_bytes", "gauge", "Bytes of bodies, audio and tensors now", slabs.bytes_out},
        {"berth_slab_bytes_peak", "gauge", "The most so far", slabs.bytes_peak},
        {"berth_slab_refusals_total", "counter", "Takes refused by the byte budget",
         slabs.refusals},
        {"berth_decode_jobs_total", "counter", "Files decoded", media.jobs},
        {"berth_decode_failures_total", "counter", "Files that could not be decoded", media.failed},
        {"berth_decode_direct_total", "counter", "PCM WAV files that needed no decoder",
         media.direct},
        {"berth_decode_killed_total", "counter", "Decoders ended for time, memory or a crash",
         media.killed_timeout + media.killed_memory + media.crashed},
    };
    put_rows(out, rows, BERTH_COUNT_OF(rows));
    put_family(out, "berth_oldest_request_seconds", "gauge", "Age of the oldest runnable request");
    berth_buf_printf(out, "berth_oldest_request_seconds %.6f\n", (double)sched.head_age_ns / 1e9);
    put_family(out, "berth_wasted_seconds_total", "counter", "Worker time spent for nobody");
    berth_buf_printf(out, "berth_wasted_seconds_total %.6f\n", (double)sched.wasted_ns / 1e9);
    put_devices(out, api->options.sched);
    put_http(out, atomic_load(&api->http));
}

static void put_devices(struct berth_buf *out, struct berth_sched *sched)
{
    static const struct {
        const char *name;
        const char *type;
        const char *help;
    } families[] = {
        {"berth_model_bytes", "gauge", "Memory the loaded models hold"},
        {"berth_model_bytes_limit", "gauge", "Memory they may hold"},
        {"berth_device_well", "gauge", "1 while its process is well; an unwell GPU gets no loads"},
        {"berth_device_faults_total", "counter", "Ends of its worker process that cost something"},
        {"berth_device_fallbacks_total", "counter",
         "Loads it did not take and another device had to"},
    };
    for (size_t f = 0; f < BERTH_COUNT_OF(families); f++) {
        struct berth_device_stats device;
        put_family(out, families[f].name, families[f].type, families[f].help);
        for (size_t i = 0; berth_sched_device_stats(sched, i, &device); i++) {
            const uint64_t values[BERTH_COUNT_OF(families)] = {
                device.bytes_models, device.bytes_models_max, device.well, device.faults,
                device.fallbacks};
            berth_buf_printf(out, "%s{device=\"%s\"} %" PRIu64 "\n", families[f].name,
                             device.device, values[f]);
        }
    }
}

#define READ_STAT(name, field)                                                                     \
    static uint64_t name(struct berth_model *model)                                                \
    {                                                                                              \
        return atomic_load_explicit(&model->field, memory_order_relaxed);                          \
    }
#define READ_US(name, field)                                                                       \
    static uint64_t name(struct berth_model *model)                                                \
    {                                                                                              \
        return atomic_load_explicit(&model->field, memory_order_relaxed) / BERTH_NS_PER_US;        \
    }

READ_STAT(read_success, stats.success.count)
READ_STAT(read_fail, stats.fail.count)
READ_STAT(read_cancelled, stats.cancelled)
READ_STAT(read_rejected, stats.rejected)
READ_STAT(read_expired, stats.expired)
READ_STAT(read_inferences, stats.inference_count)
READ_STAT(read_executions, stats.execution_count)
READ_STAT(read_depth, stats.queue_depth)
READ_STAT(read_bytes, bytes_used)
READ_STAT(read_loads, stats.loads)
READ_STAT(read_loads_failed, stats.loads_failed)
READ_STAT(read_unloads, stats.unloads)
READ_STAT(read_wasted, stats.wasted_count)
READ_US(read_success_us, stats.success.ns)
READ_US(read_queue_us, stats.queue.ns)
READ_US(read_input_us, stats.compute_input.ns)
READ_US(read_infer_us, stats.compute_infer.ns)
READ_US(read_output_us, stats.compute_output.ns)

static uint64_t read_warm(struct berth_model *model)
{
    return berth_model_state(model) == BERTH_STATE_WARM;
}

static uint64_t read_fallback(struct berth_model *model)
{
    char why[2];
    return berth_model_place(model, why, sizeof(why)) != NULL && why[0] != '\0';
}

/* With the device while the model is loaded. */
static const struct model_row placed_rows[] = {
    {"berth_model_warm", "gauge", "1 while the model is loaded", "", read_warm},
    {"berth_model_loaded_bytes", "gauge", "Memory the model holds", "", read_bytes},
    {"berth_model_fallback", "gauge", "1 while it is not on the GPU that it suits", "",
     read_fallback},
};

static const struct model_row model_rows[] = {
    {"berth_model_loads_total", "counter", "Loads that succeeded", "", read_loads},
    {"berth_model_load_failures_total", "counter", "Loads that failed", "", read_loads_failed},
    {"berth_model_unloads_total", "counter", "Unloads", "", read_unloads},
    {"berth_model_expired_total", "counter", "Requests past their deadline", "", read_expired},
    {"berth_model_wasted_total", "counter", "Requests run for nobody", "", read_wasted},
    {"nv_inference_request_success", "counter",
     "Number of successful inference requests, all batch sizes", "", read_success},
    {"nv_inference_request_failure", "counter",
     "Number of failed inference requests, all batch sizes", ",reason=\"BACKEND\"", read_fail},
    {"nv_inference_request_failure", NULL, NULL, ",reason=\"CANCELED\"", read_cancelled},
    {"nv_inference_request_failure", NULL, NULL, ",reason=\"REJECTED\"", read_rejected},
    {"nv_inference_count", "counter", "Number of inferences performed", "", read_inferences},
    {"nv_inference_exec_count", "counter", "Number of model executions performed", "",
     read_executions},
    {"nv_inference_request_duration_us", "counter",
     "Cumulative inference request duration in microseconds", "", read_success_us},
    {"nv_inference_queue_duration_us", "counter",
     "Cumulative inference queuing duration in microseconds", "", read_queue_us},
    {"nv_inference_compute_input_duration_us", "counter",
     "Cumulative compute input duration in microseconds", "", read_input_us},
    {"nv_inference_compute_infer_duration_us", "counter",
     "Cumulative compute inference duration in microseconds", "", read_infer_us},
    {"nv_inference_compute_output_duration_us", "counter",
     "Cumulative inference compute output duration in microseconds", "", read_output_us},
    {"nv_inference_pending_request_count", "gauge",
     "Instantaneous number of pending requests awaiting execution per-model.", "", read_depth},
};

static void put_label(struct berth_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            berth_buf_append(out, "\\", 1);
        }
        berth_buf_append(out, *text == '\n' ? " " : text, 1);
    }
}

static void put_row(struct berth_buf *out, const struct model_row *row, struct berth_model **models,
                    size_t count, bool placed)
{
    uint64_t other = 0;
    if (row->type != NULL) {
        put_family(out, row->name, row->type, row->help);
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t value = row->read(models[i]);
        if (i >= METRICS_MODELS_MAX) {
            other += value;
            continue;
        }
        berth_buf_printf(out, "%s{model=\"", row->name);
        put_label(out, models[i]->name);
        berth_buf_printf(out, "\"%s,version=\"%" PRIu64 "\"", row->labels, models[i]->version);
        const char *device = placed ? atomic_load(&models[i]->device) : NULL;
        if (device != NULL) {
            berth_buf_printf(out, ",device=\"%s\"", device);
        }
        berth_buf_printf(out, "} %" PRIu64 "\n", value);
    }
    if (count > METRICS_MODELS_MAX) {
        berth_buf_printf(out, "%s{model=\"other\"%s,version=\"0\"} %" PRIu64 "\n", row->name,
                         row->labels, other);
    }
}

/* A histogram of microseconds as Prometheus has them: cumulative, in seconds. */
static void put_hist(struct berth_buf *out, const char *name, const char *labels,
                     struct berth_model *model, const struct berth_hist *hist)
{
    static const uint64_t bounds_us[] = {500,     1000,     2500,     5000,    10000,   25000,
                                         50000,   100000,   250000,   500000,  1000000, 2500000,
                                         5000000, 10000000, 30000000, 60000000};
    uint64_t count = atomic_load_explicit(&hist->count, memory_order_relaxed);
    if (count == 0) {
        return;
    }
    struct berth_buf of = {0};
    berth_buf_puts(&of, "model=\"");
    put_label(&of, model->name);
    berth_buf_printf(&of, "\",version=\"%" PRIu64 "\"%s", model->version, labels);
    for (size_t i = 0; i < BERTH_COUNT_OF(bounds_us); i++) {
        berth_buf_printf(out, "%s_bucket{%s,le=\"%g\"} %" PRIu64 "\n", name, berth_buf_text(&of),
                         (double)bounds_us[i] / 1e6, berth_hist_count_upto(hist, bounds_us[i]));
    }
    berth_buf_printf(
        out, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n%s_sum{%s} %.6f\n%s_count{%s} %" PRIu64 "\n",
        name, berth_buf_text(&of), count, name, berth_buf_text(&of),
        (double)atomic_load_explicit(&hist->sum, memory_order_relaxed) / 1e6, name,
        berth_buf_text(&of), count);
    out->failed = out->failed || of.failed;
    berth_buf_finish(&of);
}

static void put_models(struct berth_buf *out, struct berth_model **models, size_t count)
{
    static const struct {
        const char *name;
        const char *labels;
        const char *help;
        size_t offset;
    } hists[] = {
        {"berth_request_seconds", ",residency=\"warm\"", "Accepted to answered",
         offsetof(struct berth_model_detail, latency_warm_us)},
        {"berth_request_seconds", ",residency=\"cold\"", NULL,
         offsetof(struct berth_model_detail, latency_cold_us)},
        {"berth_queue_seconds", "", "Time in the queue",
         offsetof(struct berth_model_detail, queue_us)},
        {"berth_run_seconds", "", "Time of a batch or step on a worker",
         offsetof(struct berth_model_detail, run_us)},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(placed_rows); i++) {
        put_row(out, &placed_rows[i], models, count, true);
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(model_rows); i++) {
        put_row(out, &model_rows[i], models, count, false);
    }
    size_t shown = count < METRICS_MODELS_MAX ? count : METRICS_MODELS_MAX;
    for (size_t h = 0; h < BERTH_COUNT_OF(hists); h++) {
        if (hists[h].help != NULL) {
            put_family(out, hists[h].name, "histogram", hists[h].help);
        }
        for (size_t i = 0; i < shown; i++) {
            const struct berth_model_detail *detail = berth_model_detail(models[i]);
            if (detail != NULL) {
                put_hist(out, hists[h].name, hists[h].labels, models[i],
                         (const struct berth_hist *)(const void *)((const char *)detail +
                                                                   hists[h].offset));
            }
        }
    }
}

static void put_family(struct berth_buf *out, const char *name, const char *type, const char *help)
{
    berth_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_rows(struct berth_buf *out, const struct server_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        put_family(out, rows[i].name, rows[i].type, rows[i].help);
        berth_buf_printf(out, "%s %" PRIu64 "\n", rows[i].name, rows[i].value);
    }
}

const struct berth_route berth_admin_routes[] = {
    {.method = "GET", .pattern = "/health", .open = true, .end = health},
    {.method = "GET", .pattern = "/metrics", .end = metrics},
    {0},
};
