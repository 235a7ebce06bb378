/* host_state.c - which message of the server may come when (P13).
 *
 * Each message is about one thing: the process, a load, an instance of it, a message before it, a
 * token. What that is in is known here and not asked of the server, and the table says in which
 * states the message may come. All others are the server's fault, and end the process: what is
 * behind these checks (a run under way when its model is unloaded, an instance that runs twice)
 * would be memory that is gone, or in use twice.
 */
#include "base/mem.h"
#include "worker/host.h"

#define IN(state) (1u << BERTH_HOST_##state)

static const struct {
    const char *name;
    uint32_t states; /* of what it is about, in which it may come */
} messages[BERTH_WIRE_KIND_END] = {
    [BERTH_WIRE_HELLO] = {"HELLO", IN(GREETING)},      /* the process */
    [BERTH_WIRE_LOAD] = {"LOAD", IN(NONE)},            /* a load */
    [BERTH_WIRE_UNLOAD] = {"UNLOAD", IN(IDLE)},        /* all of a load */
    [BERTH_WIRE_RUN] = {"RUN", IN(IDLE)},              /* an instance that takes runs */
    [BERTH_WIRE_STEP] = {"STEP", IN(IDLE)},            /* an instance that takes steps */
    [BERTH_WIRE_ROW] = {"ROW", IN(GATHERING)},         /* a message */
    [BERTH_WIRE_CANCEL] = {"CANCEL", IN(GIVEN)},       /* a token */
    [BERTH_WIRE_RELEASE] = {"RELEASE", IN(LENT)},      /* a message */
    [BERTH_WIRE_READY] = {"READY", 0},                 /* ours to say, as are these: */
    [BERTH_WIRE_ANSWER] = {"ANSWER", 0},
    [BERTH_WIRE_EVENT] = {"EVENT", 0},
    [BERTH_WIRE_DONE] = {"DONE", 0},
    [BERTH_WIRE_ALIVE] = {"ALIVE", 0},
    [BERTH_WIRE_HELD] = {"HELD", 0},
};

static const char *const states[BERTH_HOST_STATES] = {
    [BERTH_HOST_NONE] = "NONE",           [BERTH_HOST_GREETING] = "GREETING",
    [BERTH_HOST_SERVING] = "SERVING",     [BERTH_HOST_LOADING] = "LOADING",
    [BERTH_HOST_IDLE] = "IDLE",           [BERTH_HOST_BUSY] = "BUSY",
    [BERTH_HOST_UNLOADING] = "UNLOADING", [BERTH_HOST_GATHERING] = "GATHERING",
    [BERTH_HOST_OUT] = "OUT",             [BERTH_HOST_LENT] = "LENT",
    [BERTH_HOST_GIVEN] = "GIVEN",
};

bool berth_host_legal(struct berth_host *host, enum berth_host_state state)
{
    enum berth_wire_kind kind = host->message.kind;
    if ((messages[kind].states & 1u << state) != 0) {
        return true;
    }
    if (host->fault.code == BERTH_OK) {
        (void)berth_fail(&host->fault, BERTH_CONFLICT,
                         "the server sent %s in state %s, about %llu", messages[kind].name,
                         states[state], (unsigned long long)host->message.id);
    }
    return false;
}

void berth_host_fail(struct berth_host *host, enum berth_code code, const char *why)
{
    if (host->fault.code == BERTH_OK) {
        (void)berth_fail(&host->fault, code, "the server sent %s, about %llu: %s",
                         messages[host->message.kind].name, (unsigned long long)host->message.id,
                         why);
    }
}

bool berth_host_is_next(struct berth_host *host, uint64_t *last, uint64_t name)
{
    if (name <= *last) {
        berth_host_fail(host, BERTH_CONFLICT, "its id or token was there before");
        return false;
    }
    *last = name;
    return true;
}

enum berth_host_state berth_host_load_state(const struct berth_host_load *load)
{
    return load == NULL ? BERTH_HOST_NONE : load->busy != 0 ? BERTH_HOST_BUSY : load->state;
}

enum berth_host_state berth_host_seat_state(const struct berth_host_load *load, uint32_t instance,
                                            enum berth_run_mode mode)
{
    if (load == NULL) {
        return BERTH_HOST_NONE;
    }
    if (load->state != BERTH_HOST_IDLE) {
        return load->state;
    }
    if (instance >= load->instance_count || load->spec->run_mode != mode) {
        return BERTH_HOST_NONE;
    }
    return (load->busy & UINT64_C(1) << instance) != 0 ? BERTH_HOST_BUSY : BERTH_HOST_IDLE;
}

enum berth_host_state berth_host_job_state(const struct berth_host_job *job)
{
    return job == NULL ? BERTH_HOST_NONE : job->state;
}

enum berth_host_state berth_host_token_state(const struct berth_host *host, uint64_t token)
{
    return token <= host->token_last ? BERTH_HOST_GIVEN : BERTH_HOST_NONE;
}

struct berth_host_load *berth_host_load_find(struct berth_host *host, uint64_t load_id)
{
    BERTH_LIST_EACH(link, &host->loads) {
        struct berth_host_load *load = BERTH_CONTAINER_OF(link, struct berth_host_load, link);
        if (load->load_id == load_id) {
            return load;
        }
    }
    return NULL;
}

struct berth_host_job *berth_host_job_find(struct berth_host *host, uint64_t id)
{
    BERTH_LIST_EACH(link, &host->jobs) {
        struct berth_host_job *job = BERTH_CONTAINER_OF(link, struct berth_host_job, link);
        if (job->id == id) {
            return job;
        }
    }
    return NULL;
}

struct berth_host_load *berth_host_load_create(struct berth_host_job *job)
{
    struct berth_host_load *load = berth_alloc(sizeof(*load));
    if (load == NULL) {
        return NULL;
    }
    load->host = job->host;
    load->load_id = job->msg.load_id;
    load->state = BERTH_HOST_LOADING;
    load->spec = berth_spec_retain(job->msg.spec);
    berth_held_init(&load->held, berth_host_deliver_held);
    berth_list_append(&job->host->loads, &load->link);
    return load;
}

void berth_host_load_destroy(struct berth_host_load *load)
{
    if (load != NULL) {
        berth_list_remove(&load->link);
        berth_spec_release(load->spec);
        berth_free(load);
    }
}
