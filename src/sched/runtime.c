/* runtime.c - what state a model is in, who waits for it, and what a failed load means.
 *
 *     COLD -> LOADING -> WARM -> EVICTING -> COLD         FAILED(until): a load failed
 *
 * One load serves all who wait (R8). A failed load answers them all at once; until its back-off is
 * over further requests are refused without trying, then the next one tries again (R9).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "sched/controller.h"

#define BACKOFF_DOUBLINGS_MAX 6
#define PREDICT_UNKNOWN_MS 2000
#define PREDICT_MS_MAX 600000

static void answer_waiting(struct berth_runtime *runtime, const struct berth_err *err);
static void refuse(struct berth_ticket *ticket, enum berth_code code, uint32_t retry_ms,
                   const char *text);
static void try_after(struct berth_runtime *runtime, const struct berth_err *err);
static bool is_wanted(const struct berth_runtime *runtime);

struct berth_runtime *berth_runtime_of(struct berth_sched *sched, struct berth_model *model)
{
    if (model->sched_state != NULL) {
        return model->sched_state;
    }
    struct berth_runtime *runtime = berth_alloc(sizeof(*runtime));
    if (runtime == NULL) {
        return NULL;
    }
    runtime->sched = sched;
    runtime->model = berth_model_retain(model);
    runtime->keep = sched->options.mode != BERTH_CONTROL_DEMAND;
    berth_list_init(&runtime->copies);
    berth_list_init(&runtime->waiting);
    berth_list_init(&runtime->waits);
    berth_list_append(&sched->runtimes, &runtime->link);
    model->sched_state = runtime;
    return runtime;
}

enum berth_code berth_runtime_judge(struct berth_model *model, uint64_t now_ns,
                                    struct berth_err *err)
{
    char reason[sizeof(err->msg)];
    uint64_t t_retry_ns = atomic_load(&model->t_retry_ns);
    if (berth_model_state(model) != BERTH_STATE_FAILED || now_ns >= t_retry_ns) {
        return BERTH_OK;
    }
    berth_model_reason(model, reason, sizeof(reason));
    (void)berth_fail(err, BERTH_UNAVAILABLE, "%s", reason);
    berth_sched_name_failure(err, model->name);
    if (err != NULL && t_retry_ns != UINT64_MAX) {
        err->retry_after_ms = berth_retry_ms(1, t_retry_ns - now_ns);
    }
    return BERTH_UNAVAILABLE;
}

void berth_sched_name_failure(struct berth_err *err, const char *model)
{
    struct berth_err named;
    if (err != NULL) {
        (void)berth_fail(&named, err->code, "model '%.80s' could not be loaded: %s", model,
                         err->msg);
        memcpy(err->msg, named.msg, sizeof(err->msg));
    }
}

enum berth_code berth_runtime_load(struct berth_runtime *runtime, struct berth_model_spec *spec,
                                   struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    if (runtime->sched->closing) {
        code = berth_sched_stopping(err);
    } else if (runtime->next == NULL) {
        code = berth_copy_create(runtime, spec, &runtime->next, err);
        if (code == BERTH_OK && runtime->current == NULL) {
            berth_model_set_state(runtime->model, BERTH_STATE_LOADING, "");
        }
    } else if (runtime->next->spec != spec) { /* R8: the newer one follows it */
        berth_spec_release(runtime->after);
        runtime->after = berth_spec_retain(spec);
    }
    berth_spec_release(spec);
    return code;
}

void berth_runtime_want(struct berth_ticket *ticket)
{
    struct berth_runtime *runtime = ticket->runtime;
    struct berth_sched *sched = runtime->sched;
    struct berth_model *model = runtime->model;
    struct berth_err err = {0};
    if (runtime->next == NULL) {
        if (berth_runtime_judge(model, sched->now_ns, &err) != BERTH_OK) {
            berth_ticket_answer(ticket, NULL, &err);
            return;
        }
        char text[sizeof(err.msg)];
        if (sched->options.mode != BERTH_CONTROL_DEMAND || !atomic_load(&model->listed)) {
            snprintf(text, sizeof(text),
                     "Request for unknown model: '%.150s' has no available versions", model->name);
            refuse(ticket, BERTH_NOT_FOUND, 0, text);
            return;
        }
        if (berth_runtime_load(runtime, berth_model_spec(model), &err) != BERTH_OK) {
            berth_sched_name_failure(&err, model->name);
            refuse(ticket, err.code, berth_retry_ms(1, 0), err.msg);
            return;
        }
    }
    ticket->request->cold = true;
    berth_runtime_rejoin(runtime);
    if (sched->options.cold_wait_ns == 0) {
        runtime->promised = true;
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "model '%s' is still loading", model->name);
        refuse(ticket, err.code, berth_runtime_predict_ms(runtime), err.msg);
        return;
    }
    ticket->state = BERTH_TICKET_WAITING;
    ticket->t_cold_ns = sched->now_ns + sched->options.cold_wait_ns;
    berth_list_append(&runtime->waiting, &ticket->link);
    berth_ticket_arm(ticket);
}

/* S16: a load that nobody waits for is not begun; one under way is asked to stop. */
void berth_runtime_left(struct berth_runtime *runtime)
{
    if (runtime->next == NULL || is_wanted(runtime)) {
        return;
    }
    if (runtime->next->state == BERTH_COPY_PENDING) {
        berth_copy_retire(runtime->next);
    } else {
        berth_copy_want(runtime->next, false);
    }
}

void berth_runtime_rejoin(struct berth_runtime *runtime)
{
    if (runtime->next != NULL) {
        berth_copy_want(runtime->next, true);
    }
}

void berth_runtime_unload(struct berth_runtime *runtime)
{
    struct berth_err err = {0};
    (void)berth_fail(&err, BERTH_UNAVAILABLE, "model '%s' was unloaded", runtime->model->name);
    berth_spec_release(runtime->after);
    runtime->after = NULL;
    atomic_store(&runtime->model->t_retry_ns, 0);
    runtime->failures = 0;
    runtime->promised = false;
    runtime->t_gpu_ns = 0;
    berth_timers_disarm(&runtime->sched->timers, &runtime->kept_timer);
    if (runtime->next != NULL) {
        berth_copy_retire(runtime->next);
        answer_waiting(runtime, &err);
        berth_ops_settle(runtime, &err);
    }
    if (runtime->current != NULL) {
        berth_copy_retire(runtime->current);
    }
    atomic_store(&runtime->model->queue_full, false);
    berth_model_set_state(runtime->model,
                          berth_list_empty(&runtime->copies) ? BERTH_STATE_COLD
                                                             : BERTH_STATE_EVICTING,
                          "unloaded");
}

void berth_runtime_loaded(struct berth_runtime *runtime, struct berth_copy *copy)
{
    struct berth_model *model = runtime->model;
    struct berth_copy *old = runtime->current;
    runtime->current = copy;
    runtime->next = NULL;
    runtime->promised = false;
    runtime->failures = 0;
    atomic_store(&model->t_retry_ns, 0);
    atomic_store(&model->queue_full, false); /* another queue */
    struct berth_model_spec *spec = berth_model_spec(model);
    if (spec != copy->spec) {
        berth_model_set_spec(model, berth_spec_retain(copy->spec));
    }
    berth_spec_release(spec);
    bool fell = copy->passed != 0 && !copy->device->gpu;
    berth_model_set_place(model, copy->device->worker->device,
                          fell ? runtime->fallback_why : NULL);
    berth_model_set_state(model, BERTH_STATE_WARM, "");
    berth_log_info("sched", 0,
                   "loaded model=%s version=%" PRIu64 " device=%s bytes=%" PRIu64 " ms=%" PRIu64
                   " instances=%zu batcher=%s",
                   model->name, model->version, copy->device->worker->device, copy->lease.bytes,
                   (copy->sched->now_ns - copy->t_load_sent_ns) / BERTH_NS_PER_MS,
                   copy->seat_count, copy->batcher->ops->name);
    if (berth_spec_names_kind(copy->spec, BERTH_KIND_GPU) && !copy->device->gpu && !fell) {
        berth_log_warn("sched", 0, "asks for KIND_GPU and runs on the CPU model=%s", model->name);
    }
    if (old != NULL) {
        berth_copy_retire(old);
    }
    struct berth_link *link;
    while ((link = berth_list_pop(&runtime->waiting)) != NULL) {
        berth_ticket_enqueue(BERTH_CONTAINER_OF(link, struct berth_ticket, link), copy);
    }
    try_after(runtime, NULL);
}

void berth_runtime_failed(struct berth_runtime *runtime, const struct berth_err *err, bool refused)
{
    struct berth_model *model = runtime->model;
    struct berth_sched *sched = runtime->sched;
    struct berth_err out = *err;
    runtime->promised = false;
    out.field = NULL; /* the request's fields are not at fault */
    berth_sched_name_failure(&out, model->name);
    if (!refused) { /* R9 */
        uint32_t doublings = runtime->failures < BACKOFF_DOUBLINGS_MAX ? runtime->failures
                                                                       : BACKOFF_DOUBLINGS_MAX;
        uint64_t backoff_ns = sched->options.load_backoff_ns << doublings;
        runtime->failures++;
        atomic_store(&model->t_retry_ns, sched->now_ns + backoff_ns);
        atomic_fetch_add(&model->stats.loads_failed, 1);
        out.retry_after_ms = berth_retry_ms(1, backoff_ns);
    }
    bool news = true;
    if (runtime->current == NULL) {
        berth_model_set_state(model, refused ? BERTH_STATE_COLD : BERTH_STATE_FAILED, err->msg);
    } else {
        news = berth_runtime_goes_on(runtime, err);
    }
    berth_log_err(news ? BERTH_LOG_WARN : BERTH_LOG_DEBUG, "sched", 0, &out);
    struct berth_err for_waiting = out;
    for_waiting.code = err->code == BERTH_TOO_LARGE ? BERTH_TOO_LARGE : BERTH_UNAVAILABLE;
    answer_waiting(runtime, &for_waiting);
    try_after(runtime, &out);
}

bool berth_runtime_goes_on(struct berth_runtime *runtime, const struct berth_err *err)
{
    struct berth_err told = {0};
    char before[sizeof(told.msg)];
    (void)berth_fail(&told, BERTH_UNAVAILABLE,
                     "reload failed: %.180s; the one loaded before serves", err->msg);
    berth_model_reason(runtime->model, before, sizeof(before));
    if (strcmp(before, told.msg) == 0) {
        return false;
    }
    berth_model_set_state(runtime->model, BERTH_STATE_WARM, told.msg);
    return true;
}

void berth_runtime_is_fresh(struct berth_runtime *runtime)
{
    char before[2];
    berth_model_reason(runtime->model, before, sizeof(before));
    if (before[0] != '\0') {
        berth_model_set_state(runtime->model, BERTH_STATE_WARM, "");
    }
}

void berth_runtime_stopped(struct berth_runtime *runtime)
{
    if (runtime->current == NULL) {
        berth_model_set_state(runtime->model, BERTH_STATE_COLD, "");
    }
    try_after(runtime, NULL);
}

void berth_runtime_stays(struct berth_runtime *runtime, struct berth_copy *copy)
{
    struct berth_model *model = runtime->model;
    const char *device = copy->device->worker->device;
    berth_log_info("sched", 0, "stays where it is model=%s version=%" PRIu64 " device=%s",
                   model->name, model->version, device);
    berth_model_set_place(model, device, runtime->fallback_why);
    runtime->next = NULL;
    runtime->promised = false;
    berth_copy_destroy(copy);
    try_after(runtime, NULL);
}

/* A copy is gone. What still leaves is neither current nor next. */
void berth_runtime_emptied(struct berth_runtime *runtime, bool evicted)
{
    size_t leaving = 0;
    BERTH_LIST_EACH(link, &runtime->copies) {
        struct berth_copy *copy = BERTH_CONTAINER_OF(link, struct berth_copy, link);
        leaving += copy != runtime->current && copy != runtime->next;
    }
    if (leaving > 0) {
        return;
    }
    if (runtime->current == NULL && runtime->next == NULL) {
        atomic_store(&runtime->model->bytes_used, 0);
        berth_model_set_place(runtime->model, NULL, NULL);
        enum berth_model_state state = berth_model_state(runtime->model);
        if (state == BERTH_STATE_EVICTING) {
            berth_model_set_state(runtime->model, BERTH_STATE_COLD,
                                  evicted ? "evicted" : "unloaded");
        } else if (state != BERTH_STATE_FAILED && state != BERTH_STATE_COLD) {
            berth_model_set_state(runtime->model, BERTH_STATE_COLD, "");
        }
    }
    berth_ops_emptied(runtime);
}

void berth_runtime_destroy(struct berth_runtime *runtime)
{
    BERTH_ASSERT(berth_list_empty(&runtime->copies) && berth_list_empty(&runtime->waiting) &&
                 berth_list_empty(&runtime->waits));
    berth_timers_disarm(&runtime->sched->timers, &runtime->kept_timer);
    berth_list_remove(&runtime->link);
    berth_spec_release(runtime->after);
    runtime->model->sched_state = NULL;
    berth_model_release(runtime->model);
    berth_free(runtime);
}

uint32_t berth_runtime_predict_ms(const struct berth_runtime *runtime)
{
    const struct berth_sched *sched = runtime->sched;
    uint64_t load_ns = runtime->load_ns > 0 ? runtime->load_ns : sched->load_ns;
    uint64_t left_ns = load_ns;
    if (load_ns == 0) {
        return PREDICT_UNKNOWN_MS;
    }
    if (runtime->next != NULL && runtime->next->state == BERTH_COPY_LOADING) {
        uint64_t spent_ns = sched->now_ns - runtime->next->t_load_sent_ns;
        left_ns = spent_ns < load_ns ? load_ns - spent_ns : load_ns / 8;
    } else if (runtime->next != NULL) {
        uint64_t before = 0; /* loads that come first */
        BERTH_LIST_EACH(link, &sched->load_queue) {
            if (link == &runtime->next->load_link) {
                break;
            }
            before++;
        }
        left_ns += (before + sched->loads_under_way) * sched->load_ns / sched->options.loads_max;
    }
    uint64_t ms = left_ns / BERTH_NS_PER_MS + 1;
    return ms > PREDICT_MS_MAX ? PREDICT_MS_MAX : (uint32_t)ms;
}

static void answer_waiting(struct berth_runtime *runtime, const struct berth_err *err)
{
    struct berth_link *link;
    while ((link = berth_list_pop(&runtime->waiting)) != NULL) {
        struct berth_ticket *ticket = BERTH_CONTAINER_OF(link, struct berth_ticket, link);
        ticket->state = BERTH_TICKET_POSTED;
        berth_ticket_answer(ticket, NULL, err);
    }
}

static void refuse(struct berth_ticket *ticket, enum berth_code code, uint32_t retry_ms,
                   const char *text)
{
    struct berth_err err = {0};
    (void)berth_fail(&err, code, "%s", text);
    err.retry_after_ms = retry_ms;
    berth_ticket_answer(ticket, NULL, &err);
}

/* A load has ended: what was asked for meanwhile comes next; else those who wait are told. */
static void try_after(struct berth_runtime *runtime, const struct berth_err *err)
{
    struct berth_model_spec *spec = runtime->after;
    struct berth_err fault = {0};
    runtime->after = NULL;
    if (spec == NULL) {
        berth_ops_settle(runtime, err);
    } else if (berth_runtime_load(runtime, spec, &fault) != BERTH_OK) {
        berth_sched_name_failure(&fault, runtime->model->name);
        berth_ops_settle(runtime, &fault);
    }
}

/* By a request, an operation, a client that was told to come again, or a decision. */
static bool is_wanted(const struct berth_runtime *runtime)
{
    return !berth_list_empty(&runtime->waiting) || !berth_list_empty(&runtime->waits) ||
           runtime->promised || runtime->keep;
}
