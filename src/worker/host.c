/* host.c - `berth worker`: the other end of process_worker.c, in a process of its own.
 *
 * A thread worker does the work, with run threads, loader threads and a table of models as in the
 * server; this file stands between it and the socket. The main thread alone reads messages, makes
 * requests of them, and writes what comes back; it waits for nothing else, so a CANCEL is seen at
 * once. Inputs are copied into slabs of this process, answers stay in its slabs until the server
 * has read them (RELEASE).
 *
 * It ends with its server: when the socket is closed, and by the kernel when the thread that
 * started it is gone.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "repo/model_config.h"
#include "worker/worker.h"
#include "worker/worker_protocol.h"

#define EVENTS_MAX 2
#define AGAIN_US 1000
#define THREADS_MAX 1024
#define CONFIG_BYTES_MAX (64 << 20)

/* A request of this process: in a message, or in a slot of a step model. */
struct hosted_row {
    struct berth_link link;
    uint64_t token;
    struct berth_request *request; /* owned */
    uint64_t load_id;
    uint32_t instance;
    uint32_t slot;                 /* where it lives; UINT32_MAX: in no slot */
};

struct job { /* one message of the server */
    struct berth_link link;
    struct host *host;
    uint64_t id;
    struct berth_worker_msg msg;
    struct berth_model *model;     /* LOAD: owned */
    uint64_t token;                /* LOAD: what CANCEL names it by */
    uint64_t expected[4];          /* LOAD: batch size, run mode, inputs, outputs of the spec */
    uint32_t row_count;            /* that the server has */
    uint32_t rows_seen;
    bool lends;                    /* its parts are kept until RELEASE */
    bool is_out;                   /* the thread worker has it */
    struct berth_step_result *step; /* owned */
    uint32_t *drops;               /* owned */
    struct berth_row *rows;        /* owned; msg.batch.row_count of them are good */
    struct hosted_row **hosted;    /* owned array; as rows */
    uint32_t *index;               /* owned; as rows: which row of the server's it is */
};

struct host {
    int fd;
    int epoll_fd;
    bool ended; /* the server is gone, or not to be understood */
    bool wrong; /* the latter */
    struct berth_slabs *slabs;
    struct berth_worker *worker;
    struct berth_queue replies;
    struct berth_link jobs;
    struct berth_link rows;
    char device[BERTH_WIRE_DEVICE_MAX];
    struct berth_wire_writer writer;
    struct berth_wire_message message;
};

static int parse_fd(int argc, char **argv);
static enum berth_code host_start(struct host *host, struct berth_err *err);
static enum berth_code take_hello(struct host *host, struct berth_engine_env *env,
                                  struct berth_worker_options *options, struct berth_err *err);
static void host_run(struct host *host);
static void host_finish(struct host *host);
static void read_server(struct host *host);
static void take_message(struct host *host);
static void take_load(struct host *host);
static enum berth_code read_spec(struct host *host, struct job *job, struct berth_err *err);
static char *read_config(struct host *host, size_t length);
static enum berth_code fill_spec(struct berth_model_spec *spec, const char *texts[4],
                                 const char *config, struct berth_err *err);
static void take_unload(struct host *host);
static void take_run(struct host *host, bool steps);
static bool make_rows(struct job *job, uint32_t count, uint32_t drop_count, bool steps);
static void take_row(struct host *host);
static void take_cancel(struct host *host);
static void take_release(struct host *host);
static void dispatch(struct job *job);
static void deliver(struct berth_post *post);
static void deliver_load(struct job *job);
static bool as_expected(const struct job *job);
static void deliver_run(struct job *job);
static void deliver_step(struct job *job);
static void end_dropped(struct job *job);
static void send_answer(struct job *job, uint32_t index, const struct berth_row *row);
static void send_event(struct job *job, const struct berth_step_event *event);
static void put_part(struct job *job, const struct berth_part *part);
static void send_done(struct job *job);
static void send_now(struct host *host);
static struct job *job_create(struct host *host, enum berth_worker_kind kind);
static void job_destroy(struct job *job);
static struct job *job_find(struct host *host, uint64_t id);
static struct hosted_row *row_in_slot(const struct job *job, uint32_t slot);
static void row_destroy(struct hosted_row *row);

int berth_worker_host_main(int argc, char **argv)
{
    struct berth_err err = {0};
    int fd = parse_fd(argc, argv);
    if (fd < 0) {
        fputs("berth worker is started by berth serve: --fd N names its socket\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct host *host = berth_alloc(sizeof(*host));
    if (host == NULL) {
        return 1;
    }
    host->fd = fd;
    host->epoll_fd = -1;
    berth_list_init(&host->jobs);
    berth_list_init(&host->rows);
    bool good = host_start(host, &err) == BERTH_OK;
    if (good) {
        host_run(host);
    } else if (!host->ended) {
        berth_log_err(BERTH_LOG_ERROR, "worker", 0, &err);
    }
    good = (good || host->ended) && !host->wrong && !berth_engines_lost();
    host_finish(host);
    return good ? 0 : 1;
}

static int parse_fd(int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--fd") == 0) {
            long fd = strtol(argv[i + 1], &end, 10);
            return end == argv[i + 1] || *end != '\0' || fd < 0 || fd > 1 << 20 ? -1 : (int)fd;
        }
    }
    return -1;
}

static enum berth_code host_start(struct host *host, struct berth_err *err)
{
    struct berth_engine_env env = {0};
    struct berth_worker_options options = {0};
    BERTH_TRY(take_hello(host, &env, &options, err));
    BERTH_TRY(berth_queue_init(&host->replies, 0, err));
    BERTH_TRY(berth_slabs_create(
        &(struct berth_slabs_options){.bytes_budget = options.bytes_budget,
                                      .bytes_pool_max = options.bytes_budget / 8},
        &host->slabs, err));
    env.slabs = options.slabs = host->slabs;
    BERTH_TRY(berth_engines_start(&env, err));
    BERTH_TRY(berth_worker_thread_create(&options, &host->worker, err));
    host->worker->replies = &host->replies;
    host->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event from_queue = {.events = EPOLLIN | EPOLLET};
    struct epoll_event from_server = {.events = EPOLLIN, .data.ptr = host};
    if (host->epoll_fd < 0 ||
        epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, host->replies.fd, &from_queue) != 0 ||
        epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, host->fd, &from_server) != 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot watch the server: %s", strerror(errno));
    }
    berth_wire_begin(&host->writer, BERTH_WIRE_READY, 0);
    berth_wire_put_text(&host->writer, BERTH_VERSION);
    send_now(host);
    return BERTH_OK;
}

static enum berth_code take_hello(struct host *host, struct berth_engine_env *env,
                                  struct berth_worker_options *options, struct berth_err *err)
{
    struct berth_wire_message *message = &host->message;
    enum berth_wire_result got = berth_wire_receive(host->fd, message, true);
    if (got != BERTH_WIRE_OK) {
        host->ended = got == BERTH_WIRE_ENDED;
        return berth_fail(err, BERTH_INTERNAL, "the server sent no greeting");
    }
    const char *version = berth_wire_get_text(message);
    const char *device = berth_wire_get_text(message);
    options->run_threads = berth_wire_get_u32(message, THREADS_MAX);
    options->load_threads = berth_wire_get_u32(message, THREADS_MAX);
    env->threads = berth_wire_get_u32(message, THREADS_MAX);
    options->bytes_budget = berth_wire_get_u64(message);
    uint32_t level = berth_wire_get_u32(message, BERTH_LOG_DEBUG);
    bool whole = berth_wire_whole(message);
    berth_wire_close(message);
    if (message->kind != BERTH_WIRE_HELLO || !whole || version == NULL || device == NULL ||
        strlen(device) >= sizeof(host->device)) {
        return berth_fail(err, BERTH_INTERNAL, "the server's greeting cannot be read");
    }
    if (strcmp(version, BERTH_VERSION) != 0) {
        return berth_fail(err, BERTH_INTERNAL, "the server is of version %.40s, this is "
                          BERTH_VERSION, version);
    }
    snprintf(host->device, sizeof(host->device), "%s", device);
    options->device = env->device = host->device;
    env->threads = env->threads == 0 ? 1 : env->threads;
    berth_log_set_level((enum berth_log_level)level);
    return BERTH_OK;
}

static void host_run(struct host *host)
{
    struct berth_link posts;
    berth_list_init(&posts);
    while (!host->ended) {
        struct epoll_event events[EVENTS_MAX];
        struct berth_link *link;
        int count = 0;
        if (berth_queue_sleep(&host->replies)) {
            count = epoll_wait(host->epoll_fd, events, EVENTS_MAX, -1);
            berth_queue_wake(&host->replies);
        }
        (void)berth_queue_take(&host->replies, &posts);
        while ((link = berth_list_pop(&posts)) != NULL) {
            struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
            post->deliver(post);
        }
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr != NULL) {
                read_server(host);
            }
        }
        if (berth_engines_lost() && !host->ended) { /* what is done has been sent */
            berth_log_error("worker", 0, "the device is lost to this process, which ends device=%s",
                            host->device);
            (void)shutdown(host->fd, SHUT_RDWR); /* to end what runs may take long */
            host->ended = true;
        }
    }
}

/* What runs is cancelled and comes back; nobody is told. */
static void host_finish(struct host *host)
{
    struct berth_link posts;
    struct berth_link *link;
    host->ended = true;
    BERTH_LIST_EACH(at, &host->rows) {
        atomic_store(&BERTH_CONTAINER_OF(at, struct hosted_row, link)->request->cancelled, true);
    }
    BERTH_LIST_EACH(at, &host->jobs) {
        atomic_store(&BERTH_CONTAINER_OF(at, struct job, link)->msg.unwanted, true);
    }
    berth_worker_destroy(host->worker);
    host->worker = NULL;
    berth_list_init(&posts);
    if (host->replies.fd > 0) {
        (void)berth_queue_take(&host->replies, &posts);
    }
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
    while (!berth_list_empty(&host->jobs)) {
        job_destroy(BERTH_CONTAINER_OF(host->jobs.next, struct job, link));
    }
    while (!berth_list_empty(&host->rows)) {
        row_destroy(BERTH_CONTAINER_OF(host->rows.next, struct hosted_row, link));
    }
    berth_engines_finish();
    berth_slabs_destroy(host->slabs);
    berth_queue_finish(&host->replies);
    if (host->epoll_fd >= 0) {
        close(host->epoll_fd);
    }
    close(host->fd);
    berth_free(host);
}

static void read_server(struct host *host)
{
    while (!host->ended) {
        enum berth_wire_result got = berth_wire_receive(host->fd, &host->message, false);
        if (got == BERTH_WIRE_AGAIN) {
            return;
        }
        host->ended = got != BERTH_WIRE_OK;
        host->wrong = got == BERTH_WIRE_BAD;
        if (!host->ended) {
            take_message(host);
            berth_wire_close(&host->message);
        }
        if (host->wrong) {
            berth_log_error("worker", 0, "a message of the server cannot be read kind=%u",
                            host->message.kind);
            host->ended = true;
        }
    }
}

static void take_message(struct host *host)
{
    switch (host->message.kind) {
    case BERTH_WIRE_LOAD:
        take_load(host);
        break;
    case BERTH_WIRE_UNLOAD:
        take_unload(host);
        break;
    case BERTH_WIRE_RUN:
    case BERTH_WIRE_STEP:
        take_run(host, host->message.kind == BERTH_WIRE_STEP);
        break;
    case BERTH_WIRE_ROW:
        take_row(host);
        break;
    case BERTH_WIRE_CANCEL:
        take_cancel(host);
        break;
    case BERTH_WIRE_RELEASE:
        take_release(host);
        break;
    default:
        host->wrong = true;
        break;
    }
}

/* Described on a loader thread first, and loaded when it is what the server has described. */
static void take_load(struct host *host)
{
    struct job *job = job_create(host, BERTH_WORKER_DESCRIBE);
    if (job == NULL) {
        return;
    }
    job->msg.err.code = read_spec(host, job, &job->msg.err);
    if (host->message.bad) {
        host->wrong = true;
        job_destroy(job);
    } else if (job->msg.err.code != BERTH_OK) {
        job->msg.kind = BERTH_WORKER_LOAD;
        send_done(job);
        job_destroy(job);
    } else {
        dispatch(job);
    }
}

static enum berth_code read_spec(struct host *host, struct job *job, struct berth_err *err)
{
    struct berth_wire_message *message = &host->message;
    const char *texts[4]; /* name, folder, folder of the version, engine */
    struct berth_model_spec *spec = berth_spec_create();
    enum berth_code code = BERTH_OK;
    job->msg.spec = spec;
    job->msg.load_id = berth_wire_get_u64(message);
    job->token = berth_wire_get_u64(message);
    texts[0] = berth_wire_get_text(message);
    uint64_t version = berth_wire_get_u64(message);
    for (int i = 1; i < 4; i++) {
        texts[i] = berth_wire_get_text(message);
    }
    job->expected[0] = berth_wire_get_u64(message);
    for (int i = 1; i < 4; i++) {
        job->expected[i] = berth_wire_get_u32(message, UINT32_MAX);
    }
    uint64_t length = berth_wire_get_u64(message);
    char *config = length < CONFIG_BYTES_MAX ? read_config(host, (size_t)length) : NULL;
    for (int i = 0; i < 4; i++) {
        message->bad = message->bad || texts[i] == NULL;
    }
    if (!berth_wire_whole(message)) {
        message->bad = true;
        code = berth_fail(err, BERTH_INTERNAL, "a load that cannot be read");
    } else if (spec == NULL || config == NULL ||
               (job->model = berth_model_create(texts[0], version)) == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    } else {
        spec->version = version;
        code = fill_spec(spec, texts, config, err);
    }
    job->msg.model = job->model;
    berth_free(config);
    return code;
}

/* The text, owned; NULL when there is no memory for it, or it is not there. */
static char *read_config(struct host *host, size_t length)
{
    int fd = berth_wire_get_fd(&host->message);
    struct berth_wire_tensor text = {.like.name = "config", .bytes = length, .fd = fd};
    char *config = fd < 0 ? NULL : berth_alloc(length + 1);
    if (config != NULL && berth_wire_read_tensor(&text, config, NULL) != BERTH_OK) {
        berth_free(config);
        return NULL;
    }
    return config;
}

static enum berth_code fill_spec(struct berth_model_spec *spec, const char *texts[4],
                                 const char *config, struct berth_err *err)
{
    struct berth_version_policy policy;
    struct berth_model_config source = {.text = config, .length = strlen(config),
                                        .label = "config", .json = true, .quiet = true};
    spec->name = berth_arena_strdup(&spec->arena, texts[0]);
    spec->folder = berth_arena_strdup(&spec->arena, texts[1]);
    spec->folder_version = berth_arena_strdup(&spec->arena, texts[2]);
    if (spec->name == NULL || spec->folder == NULL || spec->folder_version == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    BERTH_TRY(berth_model_config_read(&source, spec, &policy, err));
    spec->engine = berth_arena_strdup(&spec->arena, texts[3]);
    return spec->engine == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "out of memory") : BERTH_OK;
}

static void take_unload(struct host *host)
{
    struct job *job = job_create(host, BERTH_WORKER_UNLOAD);
    if (job != NULL) {
        job->msg.load_id = berth_wire_get_u64(&host->message);
        host->wrong = !berth_wire_whole(&host->message);
        dispatch(job);
    }
}

static void take_run(struct host *host, bool steps)
{
    struct berth_wire_message *message = &host->message;
    struct job *job = job_create(host, steps ? BERTH_WORKER_STEP : BERTH_WORKER_RUN);
    if (job == NULL) {
        return;
    }
    job->msg.load_id = berth_wire_get_u64(message);
    job->msg.instance = berth_wire_get_u32(message, UINT32_MAX);
    job->row_count = berth_wire_get_u32(message, BERTH_WIRE_ROWS_MAX);
    job->msg.budget_ns = steps ? berth_wire_get_u64(message) : 0;
    uint32_t drop_count = steps ? berth_wire_get_u32(message, BERTH_WIRE_ROWS_MAX) : 0;
    if (message->bad || !make_rows(job, job->row_count, drop_count, steps)) {
        host->wrong = true; /* without memory for the lists nothing goes on either */
        return;
    }
    for (uint32_t i = 0; i < drop_count; i++) {
        job->drops[i] = berth_wire_get_u32(message, UINT32_MAX);
    }
    job->msg.drops = job->drops;
    job->msg.drop_count = drop_count;
    job->msg.step = job->step;
    job->msg.batch.rows = job->rows;
    host->wrong = !berth_wire_whole(message);
    if (!host->wrong && job->row_count == 0) {
        dispatch(job);
    }
}

static bool make_rows(struct job *job, uint32_t count, uint32_t drop_count, bool steps)
{
    job->rows = berth_alloc((count + 1) * sizeof(*job->rows));
    job->hosted = berth_alloc((count + 1) * sizeof(struct hosted_row *));
    job->index = berth_alloc((count + 1) * sizeof(*job->index));
    job->drops = berth_alloc((drop_count + 1) * sizeof(*job->drops));
    job->step = steps ? berth_alloc(sizeof(*job->step)) : NULL;
    return job->rows != NULL && job->hosted != NULL && job->index != NULL &&
           job->drops != NULL && (job->step != NULL || !steps);
}

/* A row that cannot be taken has its answer at once; the others go on without it. */
static void take_row(struct host *host)
{
    struct berth_wire_message *message = &host->message;
    struct job *job = job_find(host, message->id);
    struct berth_row failed = {0};
    struct hosted_row *row = NULL;
    uint64_t token = berth_wire_get_u64(message);
    uint32_t index = berth_wire_get_u32(message, UINT32_MAX);
    uint32_t is_cancelled = berth_wire_get_u32(message, 1);
    uint32_t comes = berth_wire_get_u32(message, 1);
    if (message->bad || job == NULL || job->is_out || index != job->rows_seen ||
        index >= job->row_count) {
        host->wrong = true;
        return;
    }
    job->rows_seen++;
    if (comes == 1 && (row = berth_alloc(sizeof(*row))) == NULL) {
        (void)berth_fail(&failed.err, BERTH_UNAVAILABLE, "out of memory");
    } else if (comes == 1) {
        failed.err.code =
            berth_wire_get_request(message, host->slabs, &row->request, &failed.err);
    }
    if (failed.err.code != BERTH_OK) {
        berth_free(row);
        send_answer(job, index, &failed);
    } else if (comes == 1) {
        size_t at = job->msg.batch.row_count++;
        row->token = token;
        row->load_id = job->msg.load_id;
        row->instance = job->msg.instance;
        row->slot = UINT32_MAX;
        atomic_store(&row->request->cancelled, is_cancelled == 1);
        berth_list_append(&host->rows, &row->link);
        job->rows[at] = (struct berth_row){.request = row->request, .slot = UINT32_MAX};
        job->hosted[at] = row;
        job->index[at] = index;
        job->msg.batch.batch_rows += row->request->batch_rows;
    }
    if (job->rows_seen == job->row_count) {
        dispatch(job);
    }
}

static void take_cancel(struct host *host)
{
    BERTH_LIST_EACH(link, &host->rows) {
        struct hosted_row *row = BERTH_CONTAINER_OF(link, struct hosted_row, link);
        if (row->token == host->message.id) {
            atomic_store(&row->request->cancelled, true);
            return;
        }
    }
    BERTH_LIST_EACH(link, &host->jobs) {
        struct job *job = BERTH_CONTAINER_OF(link, struct job, link);
        if (job->model != NULL && job->token == host->message.id) {
            atomic_store(&job->msg.unwanted, true);
        }
    }
}

static void take_release(struct host *host)
{
    struct job *job = job_find(host, host->message.id);
    if (job == NULL || !job->lends || job->is_out) {
        host->wrong = true;
    } else {
        job_destroy(job);
    }
}

static void dispatch(struct job *job)
{
    job->is_out = true;
    job->msg.post.deliver = deliver;
    if (job->msg.kind == BERTH_WORKER_RUN && job->msg.batch.row_count == 0) {
        deliver(&job->msg.post); /* all its rows have their answers */
    } else {
        berth_worker_send(job->host->worker, &job->msg);
    }
}

static void deliver(struct berth_post *post)
{
    struct job *job = BERTH_CONTAINER_OF(
        BERTH_CONTAINER_OF(post, struct berth_worker_msg, post), struct job, msg);
    struct host *host = job->host;
    job->is_out = false;
    switch (job->msg.kind) {
    case BERTH_WORKER_DESCRIBE:
        deliver_load(job);
        if (job->is_out) {
            return;
        }
        break;
    case BERTH_WORKER_RUN:
        deliver_run(job);
        break;
    case BERTH_WORKER_STEP:
        deliver_step(job);
        break;
    case BERTH_WORKER_LOAD:
        break;
    case BERTH_WORKER_UNLOAD:
        BERTH_LIST_EACH_SAFE(link, &host->rows) {
            struct hosted_row *row = BERTH_CONTAINER_OF(link, struct hosted_row, link);
            if (row->load_id == job->msg.load_id) {
                row_destroy(row);
            }
        }
        break;
    }
    send_done(job);
    if (!job->lends || host->ended) {
        job_destroy(job);
    }
}

static void deliver_load(struct job *job)
{
    job->msg.kind = BERTH_WORKER_LOAD;
    if (job->msg.err.code == BERTH_OK && !as_expected(job)) {
        (void)berth_fail(&job->msg.err, BERTH_UNAVAILABLE,
                         "the files of model '%s' have changed since they were described",
                         job->msg.spec->name);
    }
    if (job->msg.err.code == BERTH_OK && !job->host->ended) {
        dispatch(job);
    }
}

static bool as_expected(const struct job *job)
{
    const struct berth_model_spec *spec = job->msg.spec;
    return job->expected[0] == spec->batch_size_max &&
           job->expected[1] == (uint64_t)spec->run_mode &&
           job->expected[2] == spec->input_count && job->expected[3] == spec->output_count;
}

static void deliver_run(struct job *job)
{
    for (size_t i = 0; i < job->msg.batch.row_count; i++) {
        if (job->msg.err.code == BERTH_OK) {
            send_answer(job, job->index[i], &job->rows[i]);
        }
        row_destroy(job->hosted[i]);
    }
}

/* Each row has an answer, also when the step failed. Slots are freed before they are given anew. */
static void deliver_step(struct job *job)
{
    end_dropped(job);
    for (size_t i = 0; i < job->msg.batch.row_count; i++) {
        struct berth_row *row = &job->rows[i];
        if (row->err.code == BERTH_OK && row->slot == UINT32_MAX) {
            row->err = job->msg.err;
            if (row->err.code == BERTH_OK) {
                (void)berth_fail(&row->err, BERTH_INTERNAL, "the engine gave a row no slot");
            }
        }
        send_answer(job, job->index[i], row);
        job->hosted[i]->slot = row->slot;
        if (row->err.code != BERTH_OK) {
            row_destroy(job->hosted[i]);
        }
    }
    for (size_t i = 0; i < job->step->event_count; i++) {
        struct berth_step_event *event = &job->step->events[i];
        struct hosted_row *row = row_in_slot(job, event->slot);
        send_event(job, event);
        if (event->final && row != NULL) {
            row_destroy(row);
        }
    }
}

static void end_dropped(struct job *job)
{
    for (size_t i = 0; i < job->msg.drop_count; i++) {
        struct hosted_row *row = row_in_slot(job, job->drops[i]);
        if (row != NULL) {
            row_destroy(row);
        }
    }
}

static void send_answer(struct job *job, uint32_t index, const struct berth_row *row)
{
    struct berth_wire_writer *writer = &job->host->writer;
    struct berth_err err = row->err;
    for (int tries = 0; tries < 2; tries++) {
        berth_wire_begin(writer, BERTH_WIRE_ANSWER, job->id);
        berth_wire_put_u32(writer, index);
        berth_wire_put_u32(writer, row->slot);
        berth_wire_put_err(writer, &err);
        if (err.code == BERTH_OK && job->msg.kind == BERTH_WORKER_RUN) {
            put_part(job, row->part);
        }
        if (!writer->full) {
            break;
        }
        (void)berth_fail(&err, BERTH_UNSUPPORTED, "the answer has more tensors than a worker "
                         "process can hand over");
    }
    job->lends = job->lends || writer->fd_count > 0;
    send_now(job->host);
}

static void send_event(struct job *job, const struct berth_step_event *event)
{
    struct berth_wire_writer *writer = &job->host->writer;
    struct berth_err err = event->err;
    bool has_part = event->part != NULL;
    for (int tries = 0; tries < 2; tries++) {
        berth_wire_begin(writer, BERTH_WIRE_EVENT, job->id);
        berth_wire_put_u32(writer, event->slot);
        berth_wire_put_u32(writer, event->final);
        berth_wire_put_u32(writer, has_part);
        berth_wire_put_err(writer, &err);
        if (has_part) {
            put_part(job, event->part);
        }
        if (!writer->full) {
            break;
        }
        has_part = false; /* then the whole step fails: a piece of an answer is missing */
        (void)berth_fail(&job->msg.err, BERTH_UNSUPPORTED, "the answer has more tensors than a "
                         "worker process can hand over");
    }
    job->lends = job->lends || writer->fd_count > 0;
    send_now(job->host);
}

static void put_part(struct job *job, const struct berth_part *part)
{
    berth_wire_put_tensors(&job->host->writer, job->host->slabs, part->tensors, part->tensor_count);
}

static void send_done(struct job *job)
{
    struct berth_wire_writer *writer = &job->host->writer;
    const struct berth_worker_msg *msg = &job->msg;
    berth_wire_begin(writer, BERTH_WIRE_DONE, job->id);
    berth_wire_put_err(writer, &msg->err);
    berth_wire_put_u64(writer, msg->t_started_ns);
    berth_wire_put_u64(writer, msg->t_ended_ns);
    berth_wire_put_u64(writer, msg->bytes_used);
    berth_wire_put_u32(writer, msg->instance_count);
    berth_wire_put_u32(writer, msg->slots);
    berth_wire_put_u32(writer, job->step == NULL ? 0 : job->step->live);
    berth_wire_put_u32(writer, job->step == NULL ? 0 : job->step->steps);
    send_now(job->host);
}

/* Waits for room: the server always reads. AGAIN all the same means that the kernel has none, or
 * that too many descriptors are on their way; the server takes them. */
static void send_now(struct host *host)
{
    enum berth_wire_result result = BERTH_WIRE_AGAIN;
    while (!host->ended && result == BERTH_WIRE_AGAIN) {
        result = berth_wire_send(host->fd, &host->writer, true);
        if (result == BERTH_WIRE_AGAIN) {
            usleep(AGAIN_US);
        } else if (result != BERTH_WIRE_OK) {
            host->ended = true;
        }
    }
}

/* Without memory for a message nothing more can be kept track of: the process ends. */
static struct job *job_create(struct host *host, enum berth_worker_kind kind)
{
    struct job *job = job_find(host, host->message.id) == NULL ? berth_alloc(sizeof(*job)) : NULL;
    if (job == NULL) {
        host->wrong = true;
        return NULL;
    }
    job->host = host;
    job->id = host->message.id;
    job->msg.kind = kind;
    berth_list_append(&host->jobs, &job->link);
    return job;
}

static void job_destroy(struct job *job)
{
    for (size_t i = 0; i < job->msg.batch.row_count; i++) {
        berth_part_destroy(job->rows[i].part);
    }
    for (size_t i = 0; job->step != NULL && i < job->step->event_count; i++) {
        berth_part_destroy(job->step->events[i].part);
    }
    berth_list_remove(&job->link);
    berth_spec_release(job->msg.spec);
    berth_model_release(job->model);
    berth_free(job->step);
    berth_free(job->drops);
    berth_free(job->rows);
    berth_free(job->hosted);
    berth_free(job->index);
    berth_free(job);
}

static struct job *job_find(struct host *host, uint64_t id)
{
    BERTH_LIST_EACH(link, &host->jobs) {
        struct job *job = BERTH_CONTAINER_OF(link, struct job, link);
        if (job->id == id) {
            return job;
        }
    }
    return NULL;
}

static struct hosted_row *row_in_slot(const struct job *job, uint32_t slot)
{
    BERTH_LIST_EACH(link, &job->host->rows) {
        struct hosted_row *row = BERTH_CONTAINER_OF(link, struct hosted_row, link);
        if (row->slot == slot && row->load_id == job->msg.load_id &&
            row->instance == job->msg.instance) {
            return row;
        }
    }
    return NULL;
}

static void row_destroy(struct hosted_row *row)
{
    berth_list_remove(&row->link);
    berth_request_release(row->request);
    berth_free(row);
}
