/* bench.c - `berth bench transcribe FILE...` and `berth bench infer`: loads a server, prints what
 * its clients saw: requests a second, latencies, statuses, and with --pid the server's CPU time.
 * `berth bench parakeet` is bench_parakeet.c's.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/bench_parakeet.h"
#include "cli/cli.h"
#include "cli/load.h"
#include "cli/remote.h"
#include "request/request.h"

#define HOST_MAX 256
#define FILES_MAX 64
#define PROCESSES_MAX 65536
#define INPUT_BYTES_MAX ((size_t)1 << 30)
#define BOUNDARY "berth-bench-boundary"
#define SPEECH_MODEL "whisper-tiny.en" /* of transcribe, if none is named */

struct bench {
    const struct berth_config *config;
    char host[HOST_MAX];
    char port[8];
    struct berth_buf requests[FILES_MAX];
    double seconds[FILES_MAX]; /* of audio in each */
    size_t request_count;
};

static enum berth_code split_url(struct bench *bench, struct berth_err *err);
static enum berth_code make_transcriptions(struct bench *bench, struct berth_err *err);
static enum berth_code make_infer(struct bench *bench, struct berth_err *err);
static enum berth_code check_infer(const struct berth_config *config, struct berth_err *err);
static void put_head(struct bench *bench, struct berth_buf *out, const char *path,
                     const char *headers, size_t length);
static double cpu_seconds(uint64_t pid);
static bool report(const struct bench *bench, const struct berth_load_result *result, double cpu_s);
static json_t *time_json(const struct berth_load_result *result, double us);
static void explain(const struct berth_load_result *result);

int berth_cli_bench(const struct berth_config *config)
{
    const char *what = config->arguments.count > 0 ? config->arguments.items[0] : "";
    if (strcmp(what, "parakeet") == 0) {
        return berth_cli_bench_parakeet(config);
    }
    struct berth_config own = *config;
    struct berth_err err = {0};
    struct bench *bench = berth_alloc(sizeof(*bench));
    struct berth_load_result *result = berth_alloc(sizeof(*result));
    enum berth_code code = BERTH_OK;
    bool answered = false;
    if (bench == NULL || result == NULL) {
        code = berth_fail(&err, BERTH_UNAVAILABLE, "no memory");
        goto out;
    }
    bench->config = &own;
    code = split_url(bench, &err);
    if (code != BERTH_OK) {
        goto out;
    }
    if (strcmp(what, "transcribe") == 0) {
        own.model = own.model[0] == '\0' ? SPEECH_MODEL : own.model;
        code = make_transcriptions(bench, &err);
    } else if (strcmp(what, "infer") == 0) {
        code = make_infer(bench, &err);
    } else {
        code = berth_cli_misuse(&err, "say what: berth bench transcribe FILE..., berth bench infer "
                                "--model NAME --input INPUT0:FP32:1,16, or berth bench parakeet "
                                "--model FOLDER");
    }
    if (code != BERTH_OK) {
        goto out;
    }
    struct berth_load_options options = {
        .host = bench->host,
        .port = bench->port,
        .requests = bench->requests,
        .request_count = bench->request_count,
        .rate = config->rate,
        .connections = config->concurrency,
        .duration_ns = config->duration,
        .warmup_ns = config->warmup,
        .seed = config->seed,
    };
    double before_s = cpu_seconds(config->pid);
    code = berth_load_run(&options, result, &err);
    if (code == BERTH_OK) {
        answered = report(bench, result, cpu_seconds(config->pid) - before_s);
    }
out:
    for (size_t i = 0; bench != NULL && i < FILES_MAX; i++) {
        berth_buf_finish(&bench->requests[i]);
    }
    berth_free(bench);
    berth_free(result);
    return code != BERTH_OK ? berth_cli_fail(&err) : answered ? 0 : 1;
}

/* HOST is a name, an IPv4 address, or an IPv6 address in brackets, which stay outside of
 * bench->host. */
static enum berth_code split_url(struct bench *bench, struct berth_err *err)
{
    const char *url = bench->config->url;
    if (strncasecmp(url, "https://", 8) == 0) {
        return berth_cli_misuse(err, "--url '%.100s': bench speaks plain HTTP; give the http:// "
                                "address of a server without TLS", url);
    }
    const char *host = strncasecmp(url, "http://", 7) == 0 ? url + 7 : url;
    bool bracket = host[0] == '[';
    host += bracket;
    size_t host_length = strcspn(host, bracket ? "]" : ":/");
    const char *rest = host + host_length;
    const char *port = "80";
    size_t port_length = 2;
    bool good = host_length > 0 && host_length < HOST_MAX && (!bracket || *rest == ']');
    rest += bracket && good;
    if (good && *rest == ':') {
        port = rest + 1;
        port_length = strspn(port, "0123456789");
        good = port_length > 0 && port_length < sizeof(bench->port) &&
               strtoul(port, NULL, 10) <= UINT16_MAX;
        rest = port + port_length;
    }
    if (!good || (rest[0] != '\0' && (rest[0] != '/' || rest[1] != '\0'))) {
        return berth_cli_misuse(err, "--url '%.100s' is not http://HOST:PORT", url);
    }
    memcpy(bench->host, host, host_length);
    memcpy(bench->port, port, port_length);
    return BERTH_OK;
}

static enum berth_code read_whole(const char *path, struct berth_buf *out, struct berth_err *err)
{
    char block[65536];
    int fd = -1;
    uint64_t bytes = 0;
    ptrdiff_t got;
    struct berth_err why = {0};
    if (berth_cli_open_audio(path, &fd, &bytes, &why) != BERTH_OK) {
        return berth_fail(err, why.code, "%.100s: %s", path, why.msg);
    }
    while ((got = berth_file_read(fd, block, sizeof(block))) > 0) {
        berth_buf_append(out, block, (size_t)got);
    }
    enum berth_code code =
        got < 0 ? berth_fail(err, BERTH_UNAVAILABLE, "%.100s: cannot read: %s", path,
                             strerror(errno))
        : berth_buf_ok(out) ? BERTH_OK
                            : berth_fail(err, BERTH_UNAVAILABLE, "no memory for %.100s", path);
    close(fd);
    return code;
}

/* One answer, for the seconds of audio; it warms the model too. */
static enum berth_code ask_seconds(struct bench *bench, const char *path, double *seconds,
                                   struct berth_err *err)
{
    struct berth_config one = *bench->config;
    struct berth_buf answer = {0};
    one.server = bench->config->url;
    one.format = "verbose_json";
    struct berth_err why = {0};
    enum berth_code code = berth_remote_transcription(&one, path, &answer, &why);
    if (code != BERTH_OK) {
        berth_fail(err, code, "%.80s: %s", path, why.msg);
    } else {
        json_t *root = json_loadb(berth_buf_text(&answer), answer.length, 0, NULL);
        *seconds = json_number_value(json_object_get(root, "duration"));
        json_decref(root);
    }
    berth_buf_finish(&answer);
    return code;
}

static enum berth_code make_transcriptions(struct bench *bench, struct berth_err *err)
{
    const struct berth_strings *arguments = &bench->config->arguments;
    if (arguments->count < 2 || arguments->count - 1 > FILES_MAX) {
        return berth_cli_misuse(err, "give 1 to %d audio files", FILES_MAX);
    }
    for (size_t i = 1; i < arguments->count; i++) {
        struct berth_buf body = {0};
        struct berth_buf file = {0};
        struct berth_buf *request = &bench->requests[bench->request_count];
        enum berth_code code = read_whole(arguments->items[i], &file, err);
        if (code == BERTH_OK) {
            code = ask_seconds(bench, arguments->items[i],
                               &bench->seconds[bench->request_count], err);
        }
        berth_buf_printf(&body,
                         "--" BOUNDARY
                         "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n%s"
                         "\r\n--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"file\"; "
                         "filename=\"audio\"\r\n\r\n",
                         bench->config->model);
        berth_buf_append(&body, berth_buf_text(&file), file.length);
        berth_buf_puts(&body, "\r\n--" BOUNDARY "--\r\n");
        put_head(bench, request, "/v1/audio/transcriptions",
                 "Content-Type: multipart/form-data; boundary=" BOUNDARY "\r\n", body.length);
        berth_buf_append(request, berth_buf_text(&body), body.length);
        bool ok = berth_buf_ok(&body) && berth_buf_ok(request);
        berth_buf_finish(&body);
        berth_buf_finish(&file);
        BERTH_TRY(code);
        if (!ok) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the requests");
        }
        bench->request_count++;
    }
    return BERTH_OK;
}

/* Numbers with commas or x between them; false: there is something else. */
static bool read_dims(const char *text, struct berth_tensor *tensor, struct berth_buf *shape)
{
    for (const char *at = text; tensor->rank < BERTH_RANK_MAX;) {
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || digits > 18) {
            return false;
        }
        int64_t dim = strtoll(at, NULL, 10);
        tensor->dims[tensor->rank++] = dim;
        berth_buf_printf(shape, "%s%" PRId64, tensor->rank == 1 ? "" : ",", dim);
        at += digits;
        if (*at == '\0') {
            return true;
        }
        if (*at != ',' && *at != 'x') {
            return false;
        }
        at++;
    }
    return false;
}

/* NAME:TYPE:DIMS; elements are zeros sent in binary form. */
static enum berth_code make_infer(struct bench *bench, struct berth_err *err)
{
    const char *input = bench->config->input;
    const char *type = strchr(input, ':');
    const char *dims = type == NULL ? NULL : strchr(type + 1, ':');
    struct berth_tensor tensor = {0};
    if (bench->config->arguments.count > 1) {
        return berth_cli_misuse(err, "bench infer takes options only, not '%.60s'",
                                bench->config->arguments.items[1]);
    }
    BERTH_TRY(check_infer(bench->config, err));
    if (dims == NULL || type == input) {
        return berth_cli_misuse(err, "--input '%.60s' is not NAME:TYPE:DIMS, as INPUT0:FP32:1,16",
                                input);
    }
    tensor.dtype = berth_dtype_parse(type + 1, (size_t)(dims - type - 1));
    struct berth_buf shape = {0};
    size_t elements = 0;
    size_t bytes = 0;
    bool dims_good = read_dims(dims + 1, &tensor, &shape);
    if (!dims_good || berth_dtype_bytes(tensor.dtype) == 0) {
        berth_buf_finish(&shape);
        return berth_cli_misuse(err, "--input '%.60s': its %s", input,
                                dims_good ? "TYPE is none of fixed size, as FP32 or INT64"
                                          : "DIMS are not numbers with commas between, as 1,16");
    }
    if (!berth_tensor_elements(&tensor, &elements) ||
        !berth_mul_size(elements, berth_dtype_bytes(tensor.dtype), &bytes) ||
        bytes > INPUT_BYTES_MAX) {
        berth_buf_finish(&shape);
        return berth_cli_misuse(err, "--input '%.60s' is larger than %zu MiB", input,
                                INPUT_BYTES_MAX >> 20);
    }
    struct berth_buf header = {0};
    char path[512];
    char headers[128];
    berth_buf_printf(&header,
                     "{\"inputs\":[{\"name\":\"%.*s\",\"shape\":[%s],\"datatype\":\"%s\","
                     "\"parameters\":{\"binary_data_size\":%zu}}],"
                     "\"parameters\":{\"binary_data_output\":true}}",
                     (int)(type - input), input, berth_buf_text(&shape),
                     berth_dtype_name(tensor.dtype), bytes);
    snprintf(path, sizeof(path), "/v2/models/%.400s/infer", bench->config->model);
    snprintf(headers, sizeof(headers), "Inference-Header-Content-Length: %zu\r\n", header.length);
    struct berth_buf *request = &bench->requests[0];
    put_head(bench, request, path, headers, header.length + bytes);
    berth_buf_append(request, berth_buf_text(&header), header.length);
    berth_buf_reserve(request, bytes);
    if (berth_buf_ok(request)) {
        memset(request->bytes + request->length, 0, bytes);
        request->length += bytes;
    }
    bench->request_count = 1;
    berth_buf_finish(&shape);
    berth_buf_finish(&header);
    return berth_buf_ok(request) ? BERTH_OK
                                 : berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
}

/* No default is of use here: what is served has its own names and shapes. */
static enum berth_code check_infer(const struct berth_config *config, struct berth_err *err)
{
    if (config->model[0] == '\0') {
        return berth_cli_misuse(err, "--model is needed: a model of the server, as berth models "
                                "--server URL lists them; and --input NAME:TYPE:DIMS");
    }
    if (config->input[0] == '\0') {
        return berth_cli_misuse(err, "--input is needed: NAME:TYPE:DIMS, as INPUT0:FP32:1,16");
    }
    return BERTH_OK;
}

static void put_head(struct bench *bench, struct berth_buf *out, const char *path,
                     const char *headers, size_t length)
{
    bool six = strchr(bench->host, ':') != NULL;
    berth_buf_printf(out, "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nContent-Length: %zu\r\n%s",
                     path, six ? "[" : "", bench->host, six ? "]" : "", bench->port, length,
                     headers);
    if (bench->config->key[0] != '\0') {
        berth_buf_printf(out, "Authorization: Bearer %s\r\n", bench->config->key);
    }
    berth_buf_puts(out, "\r\n");
}

/* User and system time of a process and all its descendants; 0 without a pid. */
static double cpu_seconds(uint64_t pid)
{
    static struct {
        long pid;
        long parent;
        double cpu_s;
        bool counts;
    } processes[PROCESSES_MAX];
    size_t count = 0;
    DIR *proc = pid == 0 ? NULL : opendir("/proc");
    struct dirent *entry;
    while (proc != NULL && count < PROCESSES_MAX && (entry = readdir(proc)) != NULL) {
        char path[300];
        char line[1024] = "";
        snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
        FILE *file = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        if (file == NULL) {
            continue;
        }
        const char *name_end = fgets(line, sizeof(line), file) == NULL ? NULL : strrchr(line, ')');
        long parent = 0;
        unsigned long user = 0;
        unsigned long system = 0;
        if (name_end != NULL &&
            sscanf(name_end + 2, "%*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &parent,
                   &user, &system) == 3) {
            processes[count].pid = strtol(line, NULL, 10);
            processes[count].parent = parent;
            processes[count].cpu_s = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
            processes[count].counts = processes[count].pid == (long)pid;
            count++;
        }
        fclose(file);
    }
    if (proc != NULL) {
        closedir(proc);
    }
    double sum_s = 0;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < count; i++) {
            for (size_t j = 0; j < count && !processes[i].counts; j++) {
                if (processes[j].counts && processes[i].parent == processes[j].pid) {
                    processes[i].counts = more = true;
                }
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        sum_s += processes[i].counts ? processes[i].cpu_s : 0;
    }
    return sum_s;
}

/* Whether there was an answer to measure. */
static bool report(const struct bench *bench, const struct berth_load_result *result, double cpu_s)
{
    const struct berth_hist *latency = &result->latency_us;
    double seconds = (double)result->measured_ns / 1e9;
    double audio_s = 0;
    uint64_t good = result->statuses[200];
    for (size_t i = 0; i < bench->request_count && i < BERTH_COUNT_OF(result->request_shares);
         i++) {
        audio_s += bench->seconds[i] * result->request_shares[i];
    }
    /* CPU time covers warm-up too, so it is shared among all requests of the whole run. */
    double share = seconds / (seconds + (double)bench->config->warmup / 1e9);
    json_t *root = json_pack(
        "{s:f, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "requests_per_s",
        (double)good / seconds, "answered", (json_int_t)result->answered, "broken",
        (json_int_t)result->broken, "unsent", (json_int_t)result->unsent, "mean_ms",
        time_json(result, good == 0 ? 0.0 : (double)latency->sum / (double)good), "p50_ms",
        time_json(result, (double)berth_hist_quantile(latency, 0.5)), "p90_ms",
        time_json(result, (double)berth_hist_quantile(latency, 0.9)), "p99_ms",
        time_json(result, (double)berth_hist_quantile(latency, 0.99)), "p999_ms",
        time_json(result, (double)berth_hist_quantile(latency, 0.999)), "max_ms",
        time_json(result, (double)latency->max));
    if (bench->seconds[0] > 0) { /* recordings */
        json_object_set_new(root, "audio_per_s", json_real(audio_s / seconds));
    }
    if (bench->config->pid != 0 && good > 0) {
        json_object_set_new(root, "cpu_ms_per_request",
                            json_real(cpu_s * share * 1e3 / (double)good));
    }
    json_t *statuses = json_object();
    for (int i = 0; i < BERTH_LOAD_STATUS_MAX; i++) {
        if (result->statuses[i] > 0) {
            char name[8];
            snprintf(name, sizeof(name), "%d", i);
            json_object_set_new(statuses, name, json_integer((json_int_t)result->statuses[i]));
        }
    }
    json_object_set_new(root, "statuses", statuses);
    if (bench->config->json) {
        json_dumpf(root, stdout, JSON_REAL_PRECISION(7));
        puts("");
    } else {
        const char *key;
        json_t *value;
        json_object_foreach(root, key, value)
        {
            if (json_is_null(value)) {
                continue;
            }
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
            printf("%-20s %s\n", key, text);
            free(text); /* lib-owned */
        }
    }
    explain(result);
    json_decref(root);
    return good > 0;
}

/* Null where no answer was a 200: there is no time to tell. */
static json_t *time_json(const struct berth_load_result *result, double us)
{
    return result->statuses[200] == 0 ? json_null() : json_real(us / 1e3);
}

/* What went wrong, in the server's words where it said something. */
static void explain(const struct berth_load_result *result)
{
    struct berth_buf body = {0};
    struct berth_err err = {0};
    bool good = result->statuses[200] > 0;
    if (result->refusal_status != 0) {
        berth_buf_append(&body, result->refusal, result->refusal_length);
        berth_remote_refused(&body, result->refusal_status, &err);
        berth_buf_finish(&body);
        if (result->stopped) {
            fprintf(stderr, "berth: stopped: %d refusals, and no answer was 200; the first: %s\n",
                    BERTH_LOAD_REFUSED_MAX, err.msg);
        } else {
            fprintf(stderr, "berth: %s; the first that was not: %s\n",
                    good ? "not all answers were 200" : "no answer was 200", err.msg);
        }
    } else if (!good && result->broken > 0) {
        fputs("berth: every connection ended without an answer; is it an http:// server?\n",
              stderr);
    } else if (!good) {
        fputs("berth: nothing was answered in that time; see --duration\n", stderr);
    }
}
