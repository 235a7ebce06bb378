/* serve.c - `berth serve`: the stack, the API on it, the HTTP server on that, and a clean end.
 *
 * SIGTERM or SIGINT: readiness off; --drain-delay passes while requests are still taken (load
 * balancers need that time to see it); then no new connection, running requests end, at most
 * --drain-timeout; exit 0. A second signal, a second or more later, ends the process at once.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/stack.h"
#include "cli/stop.h"
#include "net/http.h"

#define ADDRESS_MAX 300
#define METRICS_PORT "8002" /* Triton's */
#define EXCHANGES_POLL_MS 10
#define LAST_ANSWERS_MS 500

struct server {
    struct berth_stack stack;
    struct berth_api *api;
    struct berth_http *http;
    const char **listen; /* owned; --listen, and what --triton-ports adds */
    size_t listen_count;
    char metrics_address[ADDRESS_MAX];
    struct berth_stop stop;
};

static enum berth_code start(const struct berth_config *config, struct server *server,
                             struct berth_err *err);
static enum berth_code check_options(const struct berth_config *config, struct berth_err *err);
static enum berth_code name_addresses(const struct berth_config *config, struct server *server,
                                      struct berth_err *err);
static enum berth_code start_http(const struct berth_config *config, struct server *server,
                                  struct berth_err *err);
static void finish(struct server *server);
static void drain(const struct berth_config *config, struct server *server);
static bool wait_exchanges(struct server *server, uint64_t ns);
static void end_now(void);
static void say_hello(const struct berth_config *config, struct server *server);
static void raise_descriptor_limit(void);

int berth_cli_serve(const struct berth_config *config)
{
    struct server server = {0};
    struct berth_err err = {0};
    signal(SIGPIPE, SIG_IGN);
    bool watched = berth_stop_init(&server.stop); /* before any thread starts */
    raise_descriptor_limit();
    if (!watched) {
        (void)berth_fail(&err, BERTH_INTERNAL, "cannot watch for signals");
    }
    if (!watched || start(config, &server, &err) != BERTH_OK) {
        finish(&server);
        return berth_cli_fail_models(config, &err);
    }
    say_hello(config, &server);
    berth_stop_wait_first(&server.stop);
    drain(config, &server);
    berth_stop_let_end(&server.stop); /* a load under way cannot be hurried */
    finish(&server);
    berth_log_info("serve", 0, "stopped");
    return 0;
}

static enum berth_code start(const struct berth_config *config, struct server *server,
                             struct berth_err *err)
{
    BERTH_TRY(check_options(config, err));
    BERTH_TRY(name_addresses(config, server, err));
    BERTH_TRY(berth_stack_start(config, &server->stack, err));
    struct berth_api_options options = {
        .catalog = server->stack.catalog,
        .sched = server->stack.sched,
        .media = server->stack.media,
        .slabs = server->stack.slabs,
        .keys_file = config->keys_file,
        .typed_errors = strcmp(config->errors, "typed") == 0,
        .demand = strcmp(config->model_control_mode, "demand") == 0,
        .body_bytes_max = config->http_body_bytes_max,
        .json_bytes_max = config->json_bytes_max,
        .audio_seconds_max = (double)config->audio_max / 1e9,
    };
    BERTH_TRY(berth_api_create(&options, &server->api, err));
    return start_http(config, server, err);
}

static enum berth_code check_options(const struct berth_config *config, struct berth_err *err)
{
    if (config->models[0] == '\0') {
        return berth_cli_misuse(err, "--models must name the model repository");
    }
    if (strcmp(config->errors, "typed") != 0 && strcmp(config->errors, "triton") != 0) {
        return berth_cli_misuse(err, "--errors '%s' is not triton or typed", config->errors);
    }
    if (config->tls_key[0] != '\0' && config->tls_cert[0] == '\0') {
        return berth_cli_misuse(err, "--tls-key is given, --tls-cert is missing: TLS needs both");
    }
    if (config->tls_cert[0] != '\0' && config->tls_key[0] == '\0') {
        return berth_cli_misuse(err, "--tls-cert is given, --tls-key is missing: TLS needs both");
    }
    return BERTH_OK;
}

static enum berth_code name_addresses(const struct berth_config *config, struct server *server,
                                      struct berth_err *err)
{
    size_t count = config->listen.count;
    if (count == 0) {
        return berth_cli_misuse(err, "--listen names no address");
    }
    server->listen = berth_alloc((count + 1) * sizeof(*server->listen));
    if (server->listen == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the addresses");
    }
    memcpy(server->listen, config->listen.items, count * sizeof(*server->listen));
    server->listen_count = count;
    for (size_t i = 0; i < count; i++) {
        if (server->listen[i][0] == '\0') {
            return berth_cli_misuse(err, "--listen '' names no address");
        }
    }
    if (config->triton_ports) {
        const char *first = config->listen.items[0];
        const char *colon = strrchr(first, ':');
        size_t host = colon == NULL ? strlen(first) : (size_t)(colon - first);
        snprintf(server->metrics_address, ADDRESS_MAX, "%.*s:" METRICS_PORT,
                 (int)(host < ADDRESS_MAX ? host : ADDRESS_MAX), first);
        server->listen[server->listen_count++] = server->metrics_address;
    }
    return BERTH_OK;
}

static enum berth_code start_http(const struct berth_config *config, struct server *server,
                                  struct berth_err *err)
{
    uint32_t threads = (uint32_t)config->net_threads;
    if (threads == 0) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        threads = cores < 4 ? 1 : cores > 16 ? 8 : (uint32_t)cores / 2;
    }
    struct berth_http_options options = {
        .listen = server->listen,
        .listen_count = server->listen_count,
        .tls_cert = config->tls_cert,
        .tls_key = config->tls_key,
        .threads = threads,
        .connections_max = config->connections_max,
        .body_bytes_max = config->http_body_bytes_max,
        .head_bytes_max = config->http_head_bytes_max,
        .body_rate_min = config->http_body_rate_min,
        .head_timeout_ns = config->http_head_timeout,
        .body_timeout_ns = config->http_body_timeout,
        .write_timeout_ns = config->http_write_timeout,
        .idle_timeout_ns = config->http_idle_timeout,
        .admit_timeout_ns = config->http_admit_timeout,
        .slabs = server->stack.slabs,
        .handler = berth_api_handler(server->api),
    };
    enum berth_code code = berth_http_start(&options, &server->http, err);
    if (code != BERTH_OK) {
        bool typed = code == BERTH_INVALID && err->field != NULL &&
                     strcmp(err->field, "listen") == 0; /* no address by its form */
        err->field = typed ? BERTH_CLI_MISUSE : err->field;
        return code;
    }
    berth_api_set_http(server->api, server->http);
    return BERTH_OK;
}

/* The front stops first: after it nobody asks. Then the stack, whose last answers still go to the
 * front's queues; they refer to its slabs and models, so these go last. */
static void finish(struct server *server)
{
    if (server->api != NULL) {
        berth_api_set_http(server->api, NULL);
    }
    berth_http_stop(server->http);
    berth_stack_stop(&server->stack);
    berth_http_destroy(server->http);
    berth_stack_finish(&server->stack);
    berth_api_destroy(server->api);
    berth_free(server->listen);
    berth_stop_finish(&server->stop);
}

static void drain(const struct berth_config *config, struct server *server)
{
    berth_log_info("serve", 0, "draining delay_ms=%" PRIu64 " timeout_ms=%" PRIu64,
                   config->drain_delay / BERTH_NS_PER_MS, config->drain_timeout / BERTH_NS_PER_MS);
    berth_sched_set_ready(server->stack.sched, false);
    if (config->drain_delay > 0 && berth_stop_wait_another(&server->stop, config->drain_delay)) {
        end_now();
    }
    berth_http_stop_accepting(server->http);
    if (!wait_exchanges(server, config->drain_timeout)) {
        /* The rest is answered too: 503 (S14). */
        struct berth_admin refuse = {.kind = BERTH_ADMIN_DRAIN,
                                     .t_deadline_ns = berth_clock_now_ns()};
        struct berth_err err = {0};
        (void)!berth_stack_admin(&server->stack, &refuse, &err);
        if (!wait_exchanges(server, LAST_ANSWERS_MS * BERTH_NS_PER_MS)) {
            berth_log_warn("serve", 0, "connections are cut under a request count=%" PRIu64,
                           berth_http_exchanges(server->http));
        }
    }
}

/* Whether all exchanges ended in that time. */
static bool wait_exchanges(struct server *server, uint64_t ns)
{
    uint64_t t_end_ns = berth_clock_now_ns() + ns;
    while (berth_http_exchanges(server->http) > 0) {
        if (berth_clock_now_ns() >= t_end_ns) {
            return false;
        }
        if (berth_stop_wait_another(&server->stop, EXCHANGES_POLL_MS * BERTH_NS_PER_MS)) {
            end_now();
        }
    }
    return true;
}

static void end_now(void)
{
    berth_log_warn("serve", 0, "second signal: ending at once");
    berth_log_flush();
    _exit(1);
}

static void say_hello(const struct berth_config *config, struct server *server)
{
    bool tls = config->tls_cert[0] != '\0';
    bool keys = config->keys_file[0] != '\0';
    for (size_t i = 0; i < server->listen_count; i++) {
        const char *address = server->listen[i];
        const char *colon = strrchr(address, ':');
        int host = colon == NULL ? (int)strlen(address) : (int)(colon - address);
        printf("berth serves on %s://%.*s:%u\n", tls ? "https" : "http", host, address,
               berth_http_port(server->http, i));
        if (!keys && strncmp(address, "127.", 4) != 0 && strncmp(address, "[::1]", 5) != 0) {
            berth_log_warn("serve", 0, "%s is reachable by others and no key is asked for; "
                           "see --keys-file", address);
        }
    }
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) { /* what it is for goes on; the log has it then */
        berth_log_warn("serve", 0, "cannot write to standard output reason=%s address=%s port=%u",
                       strerror(errno), server->listen[0], berth_http_port(server->http, 0));
        __fpurge(stdout);
        clearerr(stdout);
    }
}

/* Ten thousand idle connections need as many descriptors. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}
