/* http.c - see http.h: the server as a whole, and what a handler asks of an exchange.
 *
 * A start binds everything before it starts anything, so that a port that is taken costs nothing
 * but its error. Ends go the other way: threads are joined first, each having closed what is its
 * own.
 */
#include "net/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/conn.h"
#include "net/loop.h"

#define BACKLOG 1024
/* Bounds what the kernel holds for an upload outside our budget, and costs less than its own
 * growing of the window. */
#define RECEIVE_BYTES 524288

static enum berth_code listen_all(struct berth_http *http, struct berth_err *err);
static enum berth_code listen_at(const char *address, struct berth_listener *listener,
                                 struct berth_err *err);
static enum berth_code split_address(const char *address, char *host, char *port,
                                     struct berth_err *err);
static enum berth_code bind_to(const char *address, const struct addrinfo *found,
                               struct berth_listener *listener, struct berth_err *err);

#define HOST_MAX 256
#define PORT_MAX 8

enum berth_code berth_http_start(const struct berth_http_options *options, struct berth_http **out,
                                 struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    uint32_t threads = options->threads == 0 ? 1 : options->threads;
    struct berth_http *http = berth_alloc(sizeof(*http));
    if (http == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the HTTP server");
    }
    http->options = *options;
    http->options.listen = NULL; /* the caller's, not kept */
    if (options->tls_cert != NULL && options->tls_cert[0] != '\0') {
        code = berth_tls_create(options->tls_cert, options->tls_key, &http->tls, err);
        if (code != BERTH_OK) {
            goto out;
        }
    }
    http->listeners = berth_alloc(sizeof(*http->listeners) * options->listen_count);
    http->loops = berth_alloc(sizeof(*http->loops) * threads);
    if (http->listeners == NULL || http->loops == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for the HTTP server");
        goto out;
    }
    http->options.listen = options->listen;
    code = listen_all(http, err);
    http->options.listen = NULL;
    if (code != BERTH_OK) {
        goto out;
    }
    for (uint32_t i = 0; i < threads; i++) {
        code = berth_loop_init(&http->loops[i], http, err);
        if (code != BERTH_OK) {
            goto out;
        }
        http->loop_count = i + 1;
    }
    for (size_t i = http->loop_count; i > 0; i--) { /* the acceptor last */
        code = berth_loop_start(&http->loops[i - 1], err);
        if (code != BERTH_OK) {
            goto out;
        }
    }
    *out = http;
    http = NULL;
out:
    berth_http_destroy(http);
    return code;
}

void berth_http_stop_accepting(struct berth_http *http)
{
    atomic_store(&http->closing, true);
    for (size_t i = 0; i < http->loop_count; i++) {
        berth_queue_nudge(&http->loops[i].posts);
    }
}

uint64_t berth_http_exchanges(struct berth_http *http)
{
    uint64_t open = 0;
    bool closing = atomic_load(&http->closing);
    for (size_t i = 0; i < http->loop_count; i++) {
        struct berth_loop *loop = &http->loops[i];
        /* Until its sweep it may still take a request; first swept, then counted. */
        open += closing && loop->started && !atomic_load(&loop->swept);
        open += atomic_load(&loop->stats.exchanges_open);
    }
    return open;
}

void berth_http_stop(struct berth_http *http)
{
    if (http == NULL) {
        return;
    }
    atomic_store(&http->closing, true);
    atomic_store(&http->stopping, true);
    for (size_t i = 0; i < http->loop_count; i++) {
        berth_loop_join(&http->loops[i]);
    }
}

void berth_http_destroy(struct berth_http *http)
{
    if (http == NULL) {
        return;
    }
    berth_http_stop(http);
    /* Now alone: what was posted meanwhile is delivered, connections handed over are closed. */
    for (size_t i = 0; i < http->loop_count; i++) {
        berth_loop_finish(&http->loops[i]);
    }
    for (size_t i = 0; i < http->listener_count; i++) {
        if (http->listeners[i].fd >= 0) {
            close(http->listeners[i].fd);
        }
    }
    berth_tls_destroy(http->tls);
    berth_free(http->loops);
    berth_free(http->listeners);
    berth_free(http);
}

uint16_t berth_http_port(struct berth_http *http, size_t listen_index)
{
    BERTH_ASSERT(listen_index < http->listener_count);
    return http->listeners[listen_index].port;
}

void berth_http_stats(struct berth_http *http, struct berth_http_stats *out)
{
    *out = (struct berth_http_stats){0};
    for (size_t i = 0; i < http->loop_count; i++) {
        struct berth_loop_stats *from = &http->loops[i].stats;
        out->connections_open += atomic_load(&from->connections_open);
        out->connections_total += atomic_load(&from->connections_total);
        out->connections_refused += atomic_load(&from->connections_refused);
        out->requests += atomic_load(&from->requests);
        out->bytes_in += atomic_load(&from->bytes_in);
        out->bytes_out += atomic_load(&from->bytes_out);
        out->hangups += atomic_load(&from->hangups);
        out->timeouts += atomic_load(&from->timeouts);
        out->paused += atomic_load(&from->paused);
        out->continues += atomic_load(&from->continues);
        out->parse_errors += atomic_load(&from->parse_errors);
    }
}

const char *berth_http_method(const struct berth_exchange *exchange)
{
    return exchange->head.method;
}

const char *berth_http_path(const struct berth_exchange *exchange)
{
    return exchange->head.path;
}

const char *berth_http_query(const struct berth_exchange *exchange)
{
    return exchange->head.query;
}

const char *berth_http_header(const struct berth_exchange *exchange, const char *name)
{
    for (size_t i = 0; i < exchange->head.field_count; i++) {
        if (strcasecmp(exchange->head.fields[i].name, name) == 0) {
            return exchange->head.fields[i].value;
        }
    }
    return NULL;
}

int64_t berth_http_content_length(const struct berth_exchange *exchange)
{
    return exchange->head.chunked ? -1 : (int64_t)exchange->head.content_length;
}

const char *berth_http_peer(const struct berth_exchange *exchange)
{
    struct berth_exchange *writable = (struct berth_exchange *)exchange; /* made when first asked */
    const struct sockaddr_in6 *peer6 = &exchange->conn->peer;
    const struct sockaddr_in *peer4 = (const struct sockaddr_in *)(const void *)peer6;
    char host[INET6_ADDRSTRLEN] = "";
    if (exchange->peer[0] != '\0') {
        return exchange->peer;
    }
    if (peer6->sin6_family == AF_INET6) {
        inet_ntop(AF_INET6, &peer6->sin6_addr, host, sizeof(host));
        snprintf(writable->peer, sizeof(writable->peer), "[%s]:%u", host, ntohs(peer6->sin6_port));
    } else if (peer4->sin_family == AF_INET) {
        inet_ntop(AF_INET, &peer4->sin_addr, host, sizeof(host));
        snprintf(writable->peer, sizeof(writable->peer), "%s:%u", host, ntohs(peer4->sin_port));
    }
    return exchange->peer;
}

void berth_http_set_user(struct berth_exchange *exchange, void *user)
{
    exchange->user = user;
}

void *berth_http_user(const struct berth_exchange *exchange)
{
    return exchange->user;
}

struct berth_queue *berth_http_queue(struct berth_exchange *exchange)
{
    return &exchange->conn->loop->posts;
}

uint64_t berth_http_head_ns(const struct berth_exchange *exchange)
{
    return exchange->t_head_ns;
}

void berth_http_accept_body(struct berth_exchange *exchange, uint64_t bytes_max, bool private_slab)
{
    if (exchange->accepted || exchange->answered) {
        return;
    }
    exchange->accepted = true;
    exchange->bytes_max = bytes_max;
    exchange->private_slab = private_slab;
    berth_conn_wake(exchange->conn);
}

const struct berth_range *berth_http_body(const struct berth_exchange *exchange)
{
    return &exchange->body;
}

struct berth_range berth_http_take_body(struct berth_exchange *exchange)
{
    struct berth_range range = exchange->range;
    BERTH_ASSERT(exchange->complete);
    exchange->taken = true;
    exchange->range = (struct berth_range){0};
    exchange->body = (struct berth_range){0};
    return range;
}

static enum berth_code listen_all(struct berth_http *http, struct berth_err *err)
{
    for (size_t i = 0; i < http->options.listen_count; i++) {
        struct berth_listener *listener = &http->listeners[i];
        listener->fd = -1;
        http->listener_count = i + 1;
        BERTH_TRY(listen_at(http->options.listen[i], listener, err));
    }
    return BERTH_OK;
}

static enum berth_code listen_at(const char *address, struct berth_listener *listener,
                                 struct berth_err *err)
{
    char host[HOST_MAX], port[PORT_MAX];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    BERTH_TRY(split_address(address, host, port, err));
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed != 0) {
        return berth_fail_field(err, BERTH_UNAVAILABLE, "listen", "cannot listen on %s: %s",
                                address, gai_strerror(failed));
    }
    enum berth_code code = bind_to(address, found, listener, err);
    freeaddrinfo(found); /* lib-owned */
    return code;
}

/* "HOST:PORT" or "[IPv6]:PORT". */
static enum berth_code split_address(const char *address, char *host, char *port,
                                     struct berth_err *err)
{
    const char *colon = strrchr(address, ':');
    const char *start = address;
    const char *end = colon;
    if (colon != NULL && address[0] == '[') {
        start = address + 1;
        end = colon - 1;
        if (end <= start || *end != ']') {
            colon = NULL;
        }
    } else if (colon != NULL && memchr(address, ':', (size_t)(colon - address)) != NULL) {
        colon = NULL; /* an IPv6 address without its brackets */
    }
    size_t digits = colon == NULL ? 0 : strspn(colon + 1, "0123456789");
    bool whole = digits > 0 && colon[1 + digits] == '\0' && start != end;
    if (whole && (digits > 5 || strtoul(colon + 1, NULL, 10) > UINT16_MAX)) {
        return berth_fail_field(err, BERTH_INVALID, "listen",
                                "cannot listen on %s: its port is past 65535", address);
    }
    if (!whole || end - start >= HOST_MAX) {
        return berth_fail_field(err, BERTH_INVALID, "listen",
                                "cannot listen on %s: not ADDR:PORT or [ADDR]:PORT", address);
    }
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = '\0';
    memcpy(port, colon + 1, digits + 1);
    return BERTH_OK;
}

static enum berth_code bind_to(const char *address, const struct addrinfo *found,
                               struct berth_listener *listener, struct berth_err *err)
{
    const int on = 1;
    const int receive_bytes = RECEIVE_BYTES;
    struct sockaddr_in6 bound = {0};
    socklen_t length = sizeof(bound);
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    listener->fd = fd;
    if (fd < 0) {
        return berth_fail_field(err, BERTH_UNAVAILABLE, "listen", "cannot listen on %s: %m",
                                address);
    }
    /* Accepted sockets inherit these. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (found->ai_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    }
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &length) != 0) {
        enum berth_code code = errno == EADDRINUSE ? BERTH_CONFLICT : BERTH_UNAVAILABLE;
        return berth_fail_field(err, code, "listen", "cannot listen on %s: %m", address);
    }
    listener->port = ntohs(bound.sin6_port); /* the same place in both families */
    return BERTH_OK;
}
