/* test_whole.c - the whole server in one process, with its Nth allocation failing.
 *
 * Slabs, catalogue, repository, worker, controller, decoders, API and HTTP as `berth serve` builds
 * them, over null models. Each kind of request is repeated with allocation 1, 2, 3 ... failing,
 * once alone and once with all later ones, until none of its own is left to fail. Each time: one
 * whole answer or one closed connection, nothing left over, and the server serves the next.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/stack.h"
#include "net/http.h"

#define ANSWER_MAX 1048576
#define CALLS_MAX 20000
#define SETTLE_NS (10 * BERTH_NS_PER_S)
#define GROWTH_MAX 262144

struct whole {
    struct berth_config config;
    struct berth_stack stack;
    struct berth_api *api;
    struct berth_http *http;
    char folder[64];
};

/* head gets Host, Content-Length and Connection: close added, unless it is a whole request. */
struct request {
    const char *label;
    const char *unload; /* asked for before each try, so that it is cold; or NULL */
    const char *line;   /* "POST /path" */
    const char *fields; /* more header lines, or "" */
    const char *body;
    size_t length; /* 0: strlen(body) */
    bool whole;    /* body is chunked already: no Content-Length */
    int status;    /* where nothing fails */
};

static char answer[ANSWER_MAX];
static char raw[200000];

#define JSON_BODY                                                                           \
    "{\"id\":\"7\",\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1,2],\"datatype\":\"FP32\"," \
    "\"data\":[1,2]}]}"

static void add_model(const char *folder, const char *name, const char *rest)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/%s/1", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/%s/config.pbtxt", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "backend: \"null\"\nmax_batch_size: 8\n%s", rest);
    fclose(file);
}

#define INPUT_OUTPUT                                                 \
    "input [{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [-1] }]\n" \
    "output [{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [-1] }]\n"

static void make_folder(char *folder, size_t bytes)
{
    snprintf(folder, bytes, "/tmp/berth-whole-XXXXXX");
    assert_non_null(mkdtemp(folder));
    add_model(folder, "identity", INPUT_OUTPUT "dynamic_batching {}\n");
    add_model(folder, "steps",
              INPUT_OUTPUT "parameters { key: \"steps\" value { string_value: \"3\" } }\n");
    add_model(folder, "bare", "");
    add_model(folder, "warms",
              INPUT_OUTPUT
              "model_warmup [{ name: \"w\" batch_size: 1 inputs { key: \"INPUT0\" value { "
              "data_type: TYPE_FP32 dims: [4] zero_data: true } } }]\n");
    add_model(folder, "speech",
              "input [{ name: \"audio\" data_type: TYPE_FP32 dims: [-1] }]\n"
              "output [{ name: \"text\" data_type: TYPE_FP32 dims: [-1] }]\n");
}

static void remove_folder(const char *folder)
{
    static const char *const names[] = {"identity", "steps", "bare", "warms", "speech"};
    char path[256];
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        snprintf(path, sizeof(path), "%s/%s/config.pbtxt", folder, names[i]);
        unlink(path);
        snprintf(path, sizeof(path), "%s/%s/1", folder, names[i]);
        rmdir(path);
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        rmdir(path);
    }
    rmdir(folder);
}

static void stop(struct whole *whole)
{
    berth_http_stop(whole->http);
    berth_stack_stop(&whole->stack);
    berth_http_destroy(whole->http);
    berth_stack_finish(&whole->stack);
    berth_api_destroy(whole->api);
    berth_config_finish(&whole->config);
    whole->http = NULL;
    whole->api = NULL;
}

static enum berth_code start_front(struct whole *whole, struct berth_err *err)
{
    const struct berth_config *config = &whole->config;
    struct berth_api_options api = {
        .catalog = whole->stack.catalog,
        .sched = whole->stack.sched,
        .media = whole->stack.media,
        .slabs = whole->stack.slabs,
        .demand = true,
        .body_bytes_max = config->http_body_bytes_max,
        .json_bytes_max = config->json_bytes_max,
        .audio_seconds_max = 100,
    };
    BERTH_TRY(berth_api_create(&api, &whole->api, err));
    struct berth_http_options http = {
        .listen = config->listen.items,
        .listen_count = config->listen.count,
        .threads = 1,
        .connections_max = 100,
        .body_bytes_max = config->http_body_bytes_max,
        .head_bytes_max = config->http_head_bytes_max,
        .head_timeout_ns = config->http_head_timeout,
        .body_timeout_ns = config->http_body_timeout,
        .write_timeout_ns = config->http_write_timeout,
        .idle_timeout_ns = config->http_idle_timeout,
        .admit_timeout_ns = 200 * BERTH_NS_PER_MS,
        .slabs = whole->stack.slabs,
        .handler = berth_api_handler(whole->api),
    };
    BERTH_TRY(berth_http_start(&http, &whole->http, err));
    berth_api_set_http(whole->api, whole->http);
    return BERTH_OK;
}

static enum berth_code start(struct whole *whole, struct berth_err *err)
{
    char *argv[] = {"--models",
                    whole->folder,
                    "--listen",
                    "127.0.0.1:0",
                    "--bytes-budget",
                    "64M",
                    "--media-in-process",
                    "--media-processes",
                    "1",
                    "--load-backoff",
                    "1ms",
                    "--cpu-workers",
                    "1",
                    "--cpu-threads",
                    "1"};
    enum berth_code code = berth_config_parse(&whole->config, BERTH_CMD_SERVE,
                                              (int)BERTH_COUNT_OF(argv), argv, err);
    if (code == BERTH_OK) {
        code = berth_stack_start(&whole->config, &whole->stack, err);
    }
    if (code == BERTH_OK) {
        code = start_front(whole, err);
    }
    if (code != BERTH_OK) {
        stop(whole);
    }
    return code;
}

/* The null engine hears nothing: its model is called a speech model here. */
static void let_it_hear(struct whole *whole)
{
    struct berth_model *model = berth_catalog_find(whole->stack.catalog, "speech", 0);
    assert_non_null(model);
    struct berth_model_spec *spec = berth_model_spec(model);
    assert_non_null(spec);
    spec->task = "automatic-speech-recognition";
    berth_spec_release(spec);
    berth_model_release(model);
}

static int connect_to(struct whole *whole)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(berth_http_port(whole->http, 0)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Is it one whole answer? A stream that was cut has no end, and says so by that. */
static bool is_answer(const char *text, size_t length, bool head_only)
{
    const char *end = strstr(text, "\r\n\r\n");
    if (strncmp(text, "HTTP/1.1 100 ", 13) == 0 && end != NULL) {
        size_t skip = (size_t)(end + 4 - text);
        return is_answer(text + skip, length - skip, head_only);
    }
    if (strncmp(text, "HTTP/1.1 ", 9) != 0 || end == NULL) {
        return false;
    }
    size_t head = (size_t)(end + 4 - text);
    const char *sized = strstr(text, "\r\nContent-Length: ");
    if (sized != NULL && sized < end) {
        size_t body = strtoul(sized + 18, NULL, 10);
        return length == head + (head_only ? 0 : body);
    }
    const char *chunked = strstr(text, "Transfer-Encoding: chunked");
    return chunked != NULL && chunked < end;
}

/* The status of the one answer, or 0: the connection was closed. */
static int ask(struct whole *whole, const struct request *request)
{
    char head[512];
    size_t body = request->length != 0 ? request->length : strlen(request->body);
    int length = snprintf(head, sizeof(head), "%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%s",
                          request->line, request->fields);
    if (!request->whole) {
        length += snprintf(head + length, sizeof(head) - (size_t)length, "Content-Length: %zu\r\n",
                           body);
    }
    length += snprintf(head + length, sizeof(head) - (size_t)length, "\r\n");
    int fd = connect_to(whole);
    (void)!send(fd, head, (size_t)length, MSG_NOSIGNAL);
    for (size_t at = 0; at < body;) {
        ssize_t put = send(fd, request->body + at, body - at, MSG_NOSIGNAL);
        if (put <= 0) {
            break;
        }
        at += (size_t)put;
    }
    size_t got = 0;
    ssize_t more;
    while ((more = recv(fd, answer + got, sizeof(answer) - 1 - got, 0)) > 0) {
        got += (size_t)more;
    }
    int failed = errno;
    answer[got] = '\0';
    close(fd);
    if (got == 0) {
        if (more < 0 && failed != ECONNRESET && failed != EPIPE) { /* nothing came in 20 s */
            fail_msg("%s: no answer: %s", request->line, strerror(failed));
        }
        return 0;
    }
    assert_true(is_answer(answer, got, strncmp(request->line, "HEAD", 4) == 0));
    const char *status = strstr(answer, "HTTP/1.1 100 ") == answer ? strstr(answer, "\r\n\r\n") + 4
                                                                   : answer;
    return (int)strtol(status + 9, NULL, 10);
}

static void settle(struct whole *whole)
{
    uint64_t t_end_ns = berth_clock_now_ns() + SETTLE_NS;
    for (;;) {
        struct berth_http_stats http;
        struct berth_slabs_stats slabs;
        struct berth_sched_stats sched;
        berth_http_stats(whole->http, &http);
        berth_slabs_stats(whole->stack.slabs, &slabs);
        berth_sched_stats(whole->stack.sched, &sched);
        if (http.connections_open == 0 && berth_http_exchanges(whole->http) == 0 &&
            slabs.bytes_out == 0 && sched.queued == 0 && sched.running == 0) {
            return;
        }
        if (berth_clock_now_ns() > t_end_ns) {
            fail_msg("connections=%zu bytes=%zu queued=%zu running=%zu are left",
                     (size_t)http.connections_open, (size_t)slabs.bytes_out, (size_t)sched.queued,
                     (size_t)sched.running);
        }
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

/* Asks until it is answered as it should be. */
static void ask_until(struct whole *whole, const struct request *request)
{
    uint64_t t_end_ns = berth_clock_now_ns() + SETTLE_NS;
    while (ask(whole, request) != request->status) {
        if (berth_clock_now_ns() > t_end_ns) {
            fail_msg("%s is not served any more: %s", request->line, answer);
        }
    }
}

static void serves(struct whole *whole)
{
    static const struct request probe = {
        .line = "POST /v2/models/identity/infer", .fields = "", .body = JSON_BODY, .status = 200};
    ask_until(whole, &probe);
    assert_non_null(strstr(answer, "[1.0,2.0]"));
}

static void unload(struct whole *whole, const char *name)
{
    char line[128];
    snprintf(line, sizeof(line), "POST /v2/repository/models/%s/unload", name);
    struct request request = {.line = line, .fields = "", .body = "{}"};
    assert_int_equal(ask(whole, &request), 200);
}

/* Fails the Nth allocation of this request for each N. */
static void torture(struct whole *whole, const struct request *request, bool sticky)
{
    uint64_t live = 0;
    uint64_t n = 1;
    bool hit = true;
    for (; hit; n++) {
        assert_true(n < CALLS_MAX);
        if (request->unload != NULL) {
            unload(whole, request->unload);
        } else { /* warm, and past any back-off */
            ask_until(whole, request);
        }
        settle(whole);
        if (n == 3) { /* pools are as full as they get */
            live = berth_mem_bytes_live();
        }
        uint64_t before = berth_mem_call_count();
        berth_mem_fail_at(n, sticky);
        int status = ask(whole, request);
        hit = berth_mem_call_count() >= before + n;
        berth_mem_fail_at(0, false);
        /* What could not be done for want of memory is UNAVAILABLE (a load that failed: Triton's
         * 500), and nothing else. */
        bool fine = status == request->status ||
                    (hit && (status == 0 || status == 503 ||
                             (status == 500 && strstr(request->line, "/repository/") != NULL)));
        if (!fine || (status == 200 && strstr(answer, "\r\n\r\n{\"error\"") != NULL) ||
            (status == 200 && strncmp(request->label, "infer", 5) == 0 &&
             strstr(answer, "[1.0,2.0]") == NULL && request->length != sizeof(raw))) {
            fail_msg("%s: %s", request->label, answer);
        }
        settle(whole);
        serves(whole);
        settle(whole);
    }
    if (request->unload != NULL) {
        unload(whole, request->unload);
    }
    settle(whole);
    if (berth_mem_bytes_live() > live + GROWTH_MAX) {
        fail_msg("%s: %zu bytes more after it", request->label,
                 (size_t)(berth_mem_bytes_live() - live));
    }
    print_message("%s%s: %zu allocations failed\n", request->label, sticky ? " (all later)" : "",
                  (size_t)(n - 2));
}

#define FORM(name, value) \
    "--x\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n" value "\r\n"

/* A form with half a second of PCM WAV. */
static size_t make_form(char *out, size_t bytes, bool stream)
{
    static const unsigned char header[] = {
        'R', 'I', 'F', 'F', 0x24, 0x40, 0,   0,   'W', 'A',  'V',  'E',  'f', 'm', 't',
        ' ', 16,  0,   0,   0,    1,    0,   1,   0,   0x80, 0x3E, 0,    0,   0,   0x7D,
        0,   0,   2,   0,   16,   0,    'd', 'a', 't', 'a',  0,    0x40, 0,   0};
    int length = snprintf(
        out, bytes,
        "%s" FORM("model", "speech")
            FORM("language", "en") "--x\r\nContent-Disposition: form-data; name=\"file\"; "
                                   "filename=\"a.wav\"\r\n\r\n",
        stream ? FORM("stream", "true") : "");
    size_t at = (size_t)length;
    assert_true(at + sizeof(header) + 16384 + 16 < bytes);
    memcpy(out + at, header, sizeof(header));
    memset(out + at + sizeof(header), 0, 16384);
    at += sizeof(header) + 16384;
    memcpy(out + at, "\r\n--x--\r\n", 9);
    return at + 9;
}

static size_t make_gzip(char *out, size_t bytes)
{
    z_stream stream = {0};
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (unsigned char *)(uintptr_t)JSON_BODY;
    stream.avail_in = sizeof(JSON_BODY) - 1;
    stream.next_out = (unsigned char *)out;
    stream.avail_out = (unsigned)bytes;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    return stream.total_out;
}

static void test_each_request_with_each_allocation_failing(void **state)
{
    static char form[32768], form_stream[32768], zipped[512];
    struct whole whole = {0};
    struct berth_err err = {0};
    (void)state;
    uint64_t live = berth_mem_bytes_live();
    make_folder(whole.folder, sizeof(whole.folder));
    assert_int_equal(start(&whole, &err), BERTH_OK);
    let_it_hear(&whole);
    size_t form_length = make_form(form, sizeof(form), false);
    size_t stream_length = make_form(form_stream, sizeof(form_stream), true);
    size_t zip_length = make_gzip(zipped, sizeof(zipped));
    const char *json = "Content-Type: application/json\r\n";
    const char *multipart = "Content-Type: multipart/form-data; boundary=x\r\n";
    const char *chunks = "Transfer-Encoding: chunked\r\n";
    const struct request requests[] = {
        {"health", NULL, "GET /health", "", "", 0, true, 200},
        {"head", NULL, "HEAD /v2", "", "", 0, true, 405},
        {"unknown", NULL, "GET /nothing", "", "", 0, true, 404},
        {"wrong method", NULL, "PUT /v2", "", "", 0, true, 405},
        {"malformed", NULL, "GET /%00", "", "", 0, true, 400},
        {"metrics", NULL, "GET /metrics", "", "", 0, true, 200},
        {"models", NULL, "GET /v1/models", "", "", 0, true, 200},
        {"metadata", NULL, "GET /v2/models/bare", "X-Request-Id: 5\r\n", "", 0, true, 200},
        {"config", NULL, "GET /v2/models/identity/config", "", "", 0, true, 200},
        {"statistics", NULL, "GET /v2/models/stats", "", "", 0, true, 200},
        {"index", NULL, "POST /v2/repository/index", "", "{\"ready\":true}", 0, false, 200},
        {"infer", NULL, "POST /v2/models/identity/infer", json, JSON_BODY, 0, false, 200},
        {"infer in steps", NULL, "POST /v2/models/steps/infer", json, JSON_BODY, 0, false, 200},
        {"infer, raw", NULL, "POST /v2/models/identity/infer",
         "Inference-Header-Content-Length: 0\r\n", raw, sizeof(raw), false, 200},
        {"infer, bad JSON", NULL, "POST /v2/models/identity/infer", json, "{\"inputs\":[", 0, false,
         500},
        {"infer, gzip", NULL, "POST /v2/models/identity/infer", "Content-Encoding: gzip\r\n",
         zipped, zip_length, false, 200},
        {"infer, chunked", NULL, "POST /v2/models/bare/infer", chunks,
         "10\r\n{\"inputs\":[{\"nam\r\n46\r\ne\":\"INPUT0\",\"shape\":[1,2],\"datatype\":\"FP32\","
         "\"data\":[1,2]}]}           \r\n0\r\n\r\n",
         0, true, 200},
        {"infer, cold", "bare", "POST /v2/models/bare/infer", json, JSON_BODY, 0, false, 200},
        {"infer in steps, cold", "steps", "POST /v2/models/steps/infer", json, JSON_BODY, 0, false,
         200},
        {"load", "warms", "POST /v2/repository/models/warms/load", "", "{}", 0, false, 200},
        {"load, override", "identity", "POST /v2/repository/models/identity/load", "",
         "{\"parameters\":{\"config\":"
         "\"{\\\"backend\\\":\\\"null\\\",\\\"max_batch_size\\\":4}\"}}",
         0, false, 200},
        {"load again", NULL, "POST /v2/repository/models/identity/load", "", "{}", 0, false, 200},
        {"unload", NULL, "POST /v2/repository/models/steps/unload", "", "{}", 0, false, 200},
        {"transcription", NULL, "POST /v1/audio/transcriptions", multipart, form, form_length,
         false, 500},
        {"transcription, stream", NULL, "POST /v1/audio/transcriptions", multipart, form_stream,
         stream_length, false, 500},
        {"transcription, cut", NULL, "POST /v1/audio/transcriptions", multipart, form, 600, false,
         400},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(requests); i++) {
        torture(&whole, &requests[i], false);
        torture(&whole, &requests[i], true);
    }
    stop(&whole);
    remove_folder(whole.folder);
    assert_int_equal(berth_mem_bytes_live(), live);
}

/* With each allocation of the start failing: it says so, or it serves. */
static void test_start_with_each_allocation_failing(void **state)
{
    struct whole whole = {0};
    (void)state;
    make_folder(whole.folder, sizeof(whole.folder));
    uint64_t live = berth_mem_bytes_live();
    for (int sticky = 0; sticky < 2; sticky++) {
        bool hit = true;
        uint64_t n = 1;
        for (; hit; n++) {
            struct berth_err err = {0};
            uint64_t before = berth_mem_call_count();
            berth_mem_fail_at(n, sticky != 0);
            enum berth_code code = start(&whole, &err);
            hit = berth_mem_call_count() >= before + n;
            berth_mem_fail_at(0, false);
            if (code == BERTH_OK) {
                settle(&whole);
                stop(&whole);
            } else {
                assert_true(err.msg[0] != '\0');
            }
            assert_int_equal(berth_mem_bytes_live(), live);
        }
        print_message("start%s: %zu allocations failed\n", sticky != 0 ? " (all later)" : "",
                      (size_t)(n - 2));
    }
    remove_folder(whole.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_with_each_allocation_failing),
        cmocka_unit_test(test_each_request_with_each_allocation_failing),
    };
    signal(SIGPIPE, SIG_IGN);
    berth_log_set_level(BERTH_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
