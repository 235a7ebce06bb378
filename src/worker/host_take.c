/* host_take.c - what the server says, made into messages for the thread worker.
 *
 * The server is believed no more than it believes us: a message is taken whole or not at all, its
 * numbers are within bounds, and it comes when it may (host_state.c). One that is not ends the
 * process (P6, P13). A request that does not fit its model has that for an answer: engines rely on
 * names, types, shapes and lengths.
 */
#include <string.h>

#include "base/mem.h"
#include "model/check.h"
#include "repo/model_config.h"
#include "worker/host.h"

#define CONFIG_BYTES_MAX (64 << 20)

static void take_load(struct berth_host *host);
static enum berth_code read_spec(struct berth_host *host, struct berth_host_job *job,
                                 struct berth_err *err);
static char *read_config(struct berth_host *host, size_t length);
static enum berth_code fill_spec(struct berth_model_spec *spec, const char *texts[4],
                                 const char *config, struct berth_err *err);
static void take_unload(struct berth_host *host);
static void take_run(struct berth_host *host, bool steps);
static bool drops_slots(struct berth_host *host, const struct berth_host_job *job);
static bool make_rows(struct berth_host_job *job, uint32_t count, uint32_t drop_count, bool steps);
static enum berth_code take_request(struct berth_host *host, const struct berth_host_job *job,
                                    struct berth_request **out, struct berth_err *err);
static void take_row(struct berth_host *host);
static void take_cancel(struct berth_host *host);
static void take_release(struct berth_host *host);
static struct berth_host_job *job_create(struct berth_host *host, enum berth_worker_kind kind);
static bool is_whole(struct berth_host *host);

void berth_host_take(struct berth_host *host)
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
    default: /* HELLO again, or ours to say */
        (void)berth_host_legal(host, BERTH_HOST_SERVING);
        break;
    }
}

/* Described on a loader thread first, and loaded when it is what the server has described. */
static void take_load(struct berth_host *host)
{
    struct berth_host_job *job = job_create(host, BERTH_WORKER_DESCRIBE);
    if (job == NULL) {
        return;
    }
    job->msg.err.code = read_spec(host, job, &job->msg.err);
    if (!is_whole(host) ||
        !berth_host_legal(host,
                          berth_host_load_state(berth_host_load_find(host, job->msg.load_id))) ||
        !berth_host_is_next(host, &host->token_last, job->token)) {
        berth_host_job_destroy(job);
        return;
    }
    if (job->msg.err.code == BERTH_OK && (job->load = berth_host_load_create(job)) == NULL) {
        (void)berth_fail(&job->msg.err, BERTH_UNAVAILABLE, "out of memory");
    }
    if (job->msg.err.code != BERTH_OK) {
        job->msg.kind = BERTH_WORKER_LOAD;
        berth_host_send_done(job);
        berth_host_job_destroy(job);
    } else {
        job->msg.held = &job->load->held;
        berth_host_dispatch(job);
    }
}

static enum berth_code read_spec(struct berth_host *host, struct berth_host_job *job,
                                 struct berth_err *err)
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
static char *read_config(struct berth_host *host, size_t length)
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

static void take_unload(struct berth_host *host)
{
    struct berth_host_job *job = job_create(host, BERTH_WORKER_UNLOAD);
    if (job == NULL) {
        return;
    }
    job->msg.load_id = berth_wire_get_u64(&host->message);
    struct berth_host_load *load = berth_host_load_find(host, job->msg.load_id);
    if (!is_whole(host) || !berth_host_legal(host, berth_host_load_state(load))) {
        berth_host_job_destroy(job);
        return;
    }
    job->load = load;
    load->state = BERTH_HOST_UNLOADING;
    berth_host_dispatch(job);
}

static void take_run(struct berth_host *host, bool steps)
{
    struct berth_wire_message *message = &host->message;
    struct berth_host_job *job = job_create(host, steps ? BERTH_WORKER_STEP : BERTH_WORKER_RUN);
    if (job == NULL) {
        return;
    }
    job->msg.load_id = berth_wire_get_u64(message);
    job->msg.instance = berth_wire_get_u32(message, UINT32_MAX);
    job->row_count = berth_wire_get_u32(message, BERTH_WIRE_ROWS_MAX);
    job->msg.budget_ns = steps ? berth_wire_get_u64(message) : 0;
    uint32_t drop_count = steps ? berth_wire_get_u32(message, BERTH_WIRE_ROWS_MAX) : 0;
    if (message->bad || !make_rows(job, job->row_count, drop_count, steps)) {
        berth_host_fail(host, message->bad ? BERTH_INVALID : BERTH_UNAVAILABLE,
                        message->bad ? "it cannot be read" : "no memory to keep track of it");
        berth_host_job_destroy(job);
        return;
    }
    for (uint32_t i = 0; i < drop_count; i++) {
        job->drops[i] = berth_wire_get_u32(message, UINT32_MAX);
    }
    job->msg.drops = job->drops;
    job->msg.drop_count = drop_count;
    job->msg.step = job->step;
    job->msg.batch.rows = job->rows;
    job->load = berth_host_load_find(host, job->msg.load_id);
    if (!is_whole(host) ||
        !berth_host_legal(host, berth_host_seat_state(job->load, job->msg.instance,
                                                      steps ? BERTH_RUN_STEPS
                                                            : BERTH_RUN_EXECUTE)) ||
        !drops_slots(host, job)) {
        berth_host_job_destroy(job);
        return;
    }
    job->load->busy |= UINT64_C(1) << job->msg.instance;
    job->state = BERTH_HOST_GATHERING;
    if (job->row_count == 0) {
        berth_host_dispatch(job);
    }
}

/* They may be free already: of a step that failed on the server's side a row's end is not told. */
static bool drops_slots(struct berth_host *host, const struct berth_host_job *job)
{
    for (size_t i = 0; i < job->msg.drop_count; i++) {
        if (job->drops[i] >= job->load->slot_count) {
            berth_host_fail(host, BERTH_INVALID, "it drops a slot that is none");
            return false;
        }
    }
    return true;
}

static bool make_rows(struct berth_host_job *job, uint32_t count, uint32_t drop_count, bool steps)
{
    job->rows = berth_alloc((count + 1) * sizeof(*job->rows));
    job->hosted = berth_alloc((count + 1) * sizeof(struct berth_host_row *));
    job->index = berth_alloc((count + 1) * sizeof(*job->index));
    job->drops = berth_alloc((drop_count + 1) * sizeof(*job->drops));
    job->step = steps ? berth_alloc(sizeof(*job->step)) : NULL;
    return job->rows != NULL && job->hosted != NULL && job->index != NULL &&
           job->drops != NULL && (job->step != NULL || !steps);
}

/* A row that cannot be taken has its answer at once; the others go on without it. */
static void take_row(struct berth_host *host)
{
    struct berth_wire_message *message = &host->message;
    struct berth_host_job *job = berth_host_job_find(host, message->id);
    struct berth_row failed = {0};
    struct berth_host_row *row = NULL;
    struct berth_request *request = NULL;
    uint64_t token = berth_wire_get_u64(message);
    uint32_t index = berth_wire_get_u32(message, UINT32_MAX);
    uint32_t is_cancelled = berth_wire_get_u32(message, 1);
    uint32_t comes = berth_wire_get_u32(message, 1);
    if (message->bad) {
        berth_host_fail(host, BERTH_INVALID, "it cannot be read");
        return;
    }
    if (!berth_host_legal(host, berth_host_job_state(job))) {
        return;
    }
    if (index != job->rows_seen) { /* and so it is one of row_count */
        berth_host_fail(host, BERTH_CONFLICT, "it is not the next row");
        return;
    }
    if (comes == 1 && (row = berth_alloc(sizeof(*row))) == NULL) {
        (void)berth_fail(&failed.err, BERTH_UNAVAILABLE, "out of memory");
        message->at = message->end; /* what it held is not looked at */
    } else if (comes == 1) {
        failed.err.code = take_request(host, job, &request, &failed.err);
    }
    if (!is_whole(host) || !berth_host_is_next(host, &host->token_last, token)) {
        berth_request_release(request);
        berth_free(row);
        return;
    }
    job->rows_seen++;
    if (failed.err.code != BERTH_OK) {
        berth_request_release(request);
        berth_free(row);
        berth_host_send_answer(job, index, &failed);
    } else if (comes == 1) {
        size_t at = job->msg.batch.row_count++;
        row->request = request;
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
        berth_host_dispatch(job);
    }
}

/* On an error there may be a request all the same. */
static enum berth_code take_request(struct berth_host *host, const struct berth_host_job *job,
                                    struct berth_request **out, struct berth_err *err)
{
    BERTH_TRY(berth_wire_get_request(&host->message, host->slabs, out, err));
    return berth_model_check(job->load->spec, *out, err);
}

/* What it names may have ended meanwhile; what was never there it must not name. */
static void take_cancel(struct berth_host *host)
{
    if (!is_whole(host) ||
        !berth_host_legal(host, berth_host_token_state(host, host->message.id))) {
        return;
    }
    BERTH_LIST_EACH(link, &host->rows) {
        struct berth_host_row *row = BERTH_CONTAINER_OF(link, struct berth_host_row, link);
        if (row->token == host->message.id) {
            atomic_store(&row->request->cancelled, true);
            return;
        }
    }
    BERTH_LIST_EACH(link, &host->jobs) {
        struct berth_host_job *job = BERTH_CONTAINER_OF(link, struct berth_host_job, link);
        if (job->model != NULL && job->token == host->message.id) {
            atomic_store(&job->msg.unwanted, true);
        }
    }
}

static void take_release(struct berth_host *host)
{
    struct berth_host_job *job = berth_host_job_find(host, host->message.id);
    if (is_whole(host) && berth_host_legal(host, berth_host_job_state(job))) {
        berth_host_job_destroy(job);
    }
}

void berth_host_dispatch(struct berth_host_job *job)
{
    job->state = BERTH_HOST_OUT;
    job->msg.post.deliver = berth_host_deliver;
    if (job->msg.kind == BERTH_WORKER_RUN && job->msg.batch.row_count == 0) {
        berth_host_deliver(&job->msg.post); /* all its rows have their answers */
    } else {
        berth_worker_send(job->host->worker, &job->msg);
    }
}

/* Without memory for a message nothing more can be kept track of: the process ends. */
static struct berth_host_job *job_create(struct berth_host *host, enum berth_worker_kind kind)
{
    if (!berth_host_is_next(host, &host->id_last, host->message.id)) {
        return NULL;
    }
    struct berth_host_job *job = berth_alloc(sizeof(*job));
    if (job == NULL) {
        berth_host_fail(host, BERTH_UNAVAILABLE, "no memory to keep track of it");
        return NULL;
    }
    job->host = host;
    job->id = host->message.id;
    job->msg.kind = kind;
    berth_list_append(&host->jobs, &job->link);
    return job;
}

/* All of it was read, and could be. */
static bool is_whole(struct berth_host *host)
{
    bool whole = berth_wire_whole(&host->message);
    if (!whole) {
        berth_host_fail(host, BERTH_INVALID, "it cannot be read");
    }
    return whole;
}
