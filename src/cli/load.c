/* load.c - see load.h. Level-triggered epoll; a connection is either free or has one request out.
 */
#include "cli/load.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define HEAD_MAX 8192
#define DUE_MAX (1u << 20)
#define GRACE_NS (30 * BERTH_NS_PER_S)
#define EVENTS_MAX 256

struct client {
    int fd;
    bool busy;
    size_t request;      /* which one is out */
    size_t sent;
    uint64_t t_due_ns;
    char head[HEAD_MAX];
    size_t head_length;
    bool in_body;
    uint64_t body_left;
    int status;
    bool closing; /* by the answer's head the server closes */
};

struct load {
    const struct berth_load_options *options;
    struct berth_load_result *result;
    struct addrinfo *address;
    int epoll;
    struct client *clients;
    uint32_t *free; /* stack of free clients */
    size_t free_count;
    uint64_t *due;  /* ring of due times not sent yet */
    size_t due_head;
    size_t due_count;
    uint64_t t_start_ns;
    uint64_t t_next_ns; /* next arrival */
    uint64_t random;
    size_t next_request;
    uint64_t out; /* requests under way */
    const struct client *told; /* whose body is the first refusal's; NULL: none yet */
    bool good;                 /* a 200 was seen */
    uint64_t refused;          /* that time does not mend */
    uint64_t statuses[BERTH_LOAD_STATUS_MAX]; /* of all answers */
};

static enum berth_code prepare(struct load *load, struct berth_err *err);
static enum berth_code run(struct load *load, struct berth_err *err);
static void finish(struct load *load);
static enum berth_code client_connect(struct load *load, struct client *client,
                                      struct berth_err *err);
static void arrivals(struct load *load, uint64_t now_ns);
static void send_due(struct load *load);
static enum berth_code client_event(struct load *load, struct client *client, uint32_t events,
                                    struct berth_err *err);
static bool client_write(struct load *load, struct client *client);
static int client_read(struct load *load, struct client *client);
static int take_head(struct client *client);
static void take_refusal(struct load *load, const struct client *client, const char *bytes,
                         size_t length);
static void watch_refusals(struct load *load, const struct client *client);
static void answered(struct load *load, struct client *client);
static double share_within(uint64_t a, uint64_t b, uint64_t first, uint64_t end);
static double uniform(struct load *load);

enum berth_code berth_load_run(const struct berth_load_options *options,
                               struct berth_load_result *out, struct berth_err *err)
{
    struct load load = {.options = options, .result = out, .epoll = -1,
                        .random = options->seed * 2 + 1};
    memset(out, 0, sizeof(*out));
    berth_hist_init(&out->latency_us);
    enum berth_code code = prepare(&load, err);
    if (code == BERTH_OK) {
        code = run(&load, err);
    }
    finish(&load);
    return code;
}

static enum berth_code prepare(struct load *load, struct berth_err *err)
{
    const struct berth_load_options *options = load->options;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int result = getaddrinfo(options->host, options->port, &hints, &load->address);
    if (result != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot find %.150s: %s", options->host,
                          gai_strerror(result));
    }
    load->epoll = epoll_create1(EPOLL_CLOEXEC);
    load->clients = berth_alloc(options->connections * sizeof(*load->clients));
    load->free = berth_alloc(options->connections * sizeof(*load->free));
    load->due = berth_alloc(DUE_MAX * sizeof(*load->due));
    if (load->epoll < 0 || load->clients == NULL || load->free == NULL || load->due == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %llu connections",
                          (unsigned long long)options->connections);
    }
    for (size_t i = 0; i < options->connections; i++) {
        load->clients[i].fd = -1;
    }
    for (size_t i = 0; i < options->connections; i++) {
        BERTH_TRY(client_connect(load, &load->clients[i], err));
        load->free[load->free_count++] = (uint32_t)i;
    }
    return BERTH_OK;
}

static enum berth_code run(struct load *load, struct berth_err *err)
{
    const struct berth_load_options *options = load->options;
    load->t_start_ns = berth_clock_now_ns();
    load->t_next_ns = load->t_start_ns;
    uint64_t t_end_ns = load->t_start_ns + options->warmup_ns + options->duration_ns;
    uint64_t now_ns = load->t_start_ns;
    for (;;) {
        if (now_ns < t_end_ns) {
            arrivals(load, now_ns);
            send_due(load);
        } else if (load->out == 0 || now_ns > t_end_ns + GRACE_NS) {
            break;
        }
        if (load->result->stopped) {
            break;
        }
        uint64_t until = options->rate > 0 && now_ns < t_end_ns ? load->t_next_ns
                                                                : now_ns + 10 * BERTH_NS_PER_MS;
        uint64_t wait_ns = until > now_ns ? until - now_ns : 0;
        struct timespec timeout = {.tv_sec = (time_t)(wait_ns / BERTH_NS_PER_S),
                                   .tv_nsec = (long)(wait_ns % BERTH_NS_PER_S)};
        struct epoll_event events[EVENTS_MAX];
        int count = epoll_pwait2(load->epoll, events, EVENTS_MAX, &timeout, NULL);
        if (count < 0 && errno != EINTR) {
            return berth_fail(err, BERTH_INTERNAL, "epoll_pwait2: %m");
        }
        for (int i = 0; i < count; i++) {
            struct client *client = events[i].data.ptr;
            BERTH_TRY(client_event(load, client, events[i].events, err));
        }
        now_ns = berth_clock_now_ns();
    }
    load->result->unsent = load->result->stopped ? 0 : load->due_count + load->out;
    load->result->measured_ns = options->duration_ns;
    return BERTH_OK;
}

static void finish(struct load *load)
{
    for (size_t i = 0; load->clients != NULL && i < load->options->connections; i++) {
        if (load->clients[i].fd >= 0) {
            close(load->clients[i].fd);
        }
    }
    if (load->epoll >= 0) {
        close(load->epoll);
    }
    if (load->address != NULL) {
        freeaddrinfo(load->address);
    }
    berth_free(load->clients);
    berth_free(load->free);
    berth_free(load->due);
}

/* Blocking connect (the server is there or the whole run makes no sense), then non-blocking. */
static enum berth_code client_connect(struct load *load, struct client *client,
                                      struct berth_err *err)
{
    const struct addrinfo *address = load->address;
    int one = 1;
    client->fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client->fd < 0 || connect(client->fd, address->ai_addr, address->ai_addrlen) < 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot connect to %s:%s: %s",
                          load->options->host, load->options->port, strerror(errno));
    }
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    fcntl(client->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    if (epoll_ctl(load->epoll, EPOLL_CTL_ADD, client->fd, &event) < 0) {
        return berth_fail(err, BERTH_INTERNAL, "epoll: %s", strerror(errno));
    }
    return BERTH_OK;
}

static void arrivals(struct load *load, uint64_t now_ns)
{
    if (load->options->rate <= 0) {
        while (load->due_count < load->free_count) {
            load->due[(load->due_head + load->due_count++) % DUE_MAX] = now_ns;
        }
        return;
    }
    while (load->t_next_ns <= now_ns) {
        if (load->due_count < DUE_MAX) {
            load->due[(load->due_head + load->due_count++) % DUE_MAX] = load->t_next_ns;
        }
        double gap_s = -log(1.0 - uniform(load)) / load->options->rate;
        load->t_next_ns += (uint64_t)(gap_s * 1e9);
    }
}

static void send_due(struct load *load)
{
    while (load->due_count > 0 && load->free_count > 0) {
        struct client *client = &load->clients[load->free[--load->free_count]];
        client->t_due_ns = load->due[load->due_head];
        load->due_head = (load->due_head + 1) % DUE_MAX;
        load->due_count--;
        client->busy = true;
        client->sent = 0;
        client->head_length = 0;
        client->in_body = false;
        client->request = load->next_request++ % load->options->request_count;
        load->out++;
        if (!client_write(load, client)) {
            struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = client};
            epoll_ctl(load->epoll, EPOLL_CTL_MOD, client->fd, &event);
        }
    }
}

static enum berth_code client_event(struct load *load, struct client *client, uint32_t events,
                                    struct berth_err *err)
{
    if ((events & EPOLLOUT) != 0 && client->busy && client_write(load, client)) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
        epoll_ctl(load->epoll, EPOLL_CTL_MOD, client->fd, &event);
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) {
        return BERTH_OK;
    }
    int got = client->busy ? client_read(load, client) : -1; /* nothing is to come when idle */
    if (got > 0) {
        answered(load, client);
        got = client->closing ? -1 : got;
    }
    if (got < 0) {
        /* Closed: after an answer that is its right; in the middle of one it is a failure. */
        if (client->busy) {
            load->result->broken++;
            if (load->told == client && load->result->refusal_status == 0) {
                load->told = NULL; /* another's will be whole */
            }
            load->out--;
            client->busy = false;
            load->free[load->free_count++] = (uint32_t)(client - load->clients);
        }
        close(client->fd);
        client->fd = -1;
        return client_connect(load, client, err);
    }
    return BERTH_OK;
}

/* true: all of the request is sent (or the connection is lost, which reading will tell). */
static bool client_write(struct load *load, struct client *client)
{
    const struct berth_buf *request = &load->options->requests[client->request];
    while (client->sent < request->length) {
        ssize_t wrote = send(client->fd, request->bytes + client->sent,
                             request->length - client->sent, MSG_NOSIGNAL);
        if (wrote < 0) {
            return errno != EAGAIN && errno != EINTR;
        }
        client->sent += (size_t)wrote;
    }
    return true;
}

/* 1: the answer is complete; 0: more to come; -1: the connection ended or makes no sense. */
static int client_read(struct load *load, struct client *client)
{
    static char sink[1 << 18];
    for (;;) {
        if (!client->in_body) {
            ssize_t got = recv(client->fd, client->head + client->head_length,
                               HEAD_MAX - 1 - client->head_length, 0);
            if (got <= 0) {
                return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
            }
            load->result->bytes_in += (uint64_t)got;
            client->head_length += (size_t)got;
            client->head[client->head_length] = '\0';
            int state = take_head(client);
            if (state < 0) {
                return -1;
            }
            if (state == 0) {
                continue;
            }
            if (client->status != 200 && load->told == NULL) {
                load->told = client;
                load->result->refusal_length = 0;
            }
            const char *body = strstr(client->head, "\r\n\r\n") + 4;
            take_refusal(load, client, body,
                         client->head_length - (size_t)(body - client->head));
        }
        if (client->body_left == 0) {
            return 1;
        }
        size_t want = client->body_left < sizeof(sink) ? (size_t)client->body_left : sizeof(sink);
        ssize_t got = recv(client->fd, sink, want, 0);
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
        }
        load->result->bytes_in += (uint64_t)got;
        client->body_left -= (uint64_t)got;
        take_refusal(load, client, sink, (size_t)got);
    }
}

/* 1: the head is complete; 0: not yet; -1: no answer this tool understands. */
static int take_head(struct client *client)
{
    char *end = strstr(client->head, "\r\n\r\n");
    if (end == NULL) {
        return client->head_length == HEAD_MAX - 1 ? -1 : 0;
    }
    size_t extra = client->head_length - (size_t)(end + 4 - client->head);
    const char *length = strcasestr(client->head, "\r\ncontent-length:");
    if (strncmp(client->head, "HTTP/1.", 7) != 0 || length == NULL || length > end) {
        return -1;
    }
    const char *closing = strcasestr(client->head, "\r\nconnection: close\r\n");
    client->closing = closing != NULL && closing < end;
    client->status = (int)strtol(client->head + 9, NULL, 10);
    client->body_left = strtoull(length + 17, NULL, 10);
    if (extra > client->body_left || client->status < 100 ||
        client->status >= BERTH_LOAD_STATUS_MAX) {
        return -1;
    }
    client->body_left -= extra;
    client->in_body = true;
    return 1;
}

/* A piece of an answer's body: kept, if it is of the first that is no 200. */
static void take_refusal(struct load *load, const struct client *client, const char *bytes,
                         size_t length)
{
    struct berth_load_result *result = load->result;
    if (load->told == client && result->refusal_status == 0) {
        size_t room = sizeof(result->refusal) - result->refusal_length;
        size_t take = length < room ? length : room;
        memcpy(result->refusal + result->refusal_length, bytes, take);
        result->refusal_length += take;
    }
}

/* Whether there is sense in going on: thousands of requests that cannot be served tell no more than
 * the first. */
static void watch_refusals(struct load *load, const struct client *client)
{
    struct berth_load_result *result = load->result;
    int status = client->status;
    if (load->told == client && result->refusal_status == 0) {
        result->refusal_status = status;
    }
    load->statuses[status]++;
    load->good = load->good || status == 200;
    load->refused += status != 200 && status != 429 && status != 503;
    if (!load->good && load->refused == BERTH_LOAD_REFUSED_MAX) {
        result->stopped = true;
        result->answered = 0;
        memcpy(result->statuses, load->statuses, sizeof(result->statuses));
        for (int i = 0; i < BERTH_LOAD_STATUS_MAX; i++) {
            result->answered += load->statuses[i];
        }
    }
}

static void answered(struct load *load, struct client *client)
{
    struct berth_load_result *result = load->result;
    uint64_t now_ns = berth_clock_now_ns();
    uint64_t t_first_ns = load->t_start_ns + load->options->warmup_ns;
    if (client->t_due_ns >= t_first_ns) {
        result->answered++;
        result->statuses[client->status]++;
        if (client->status == 200) {
            berth_hist_record(&result->latency_us, (now_ns - client->t_due_ns) / BERTH_NS_PER_US);
        }
    }
    if (client->status == 200 && client->request < BERTH_COUNT_OF(result->request_shares)) {
        result->request_shares[client->request] += share_within(
            client->t_due_ns, now_ns, t_first_ns, t_first_ns + load->options->duration_ns);
    }
    watch_refusals(load, client);
    client->busy = false;
    load->out--;
    load->free[load->free_count++] = (uint32_t)(client - load->clients);
}

/* How much of a to b lies within first to end: 0 to 1. */
static double share_within(uint64_t a, uint64_t b, uint64_t first, uint64_t end)
{
    uint64_t from = a > first ? a : first;
    uint64_t to = b < end ? b : end;
    return from >= to ? 0.0 : (double)(to - from) / (double)(b - a);
}

/* xorshift64*, in [0, 1). */
static double uniform(struct load *load)
{
    load->random ^= load->random >> 12;
    load->random ^= load->random << 25;
    load->random ^= load->random >> 27;
    return (double)((load->random * UINT64_C(2685821657736338717)) >> 11) / 9007199254740992.0;
}
