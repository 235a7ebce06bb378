/* ops.c - admin operations: load, unload, ensure, scan, drain, and what a mode does at start (S17).
 *
 * An operation ends when nothing it waits for is left: the repository, descriptions, loads,
 * unloads. Its first error is its answer. The controller's own (start, poll) are operations nobody
 * waits for.
 */
#include "sched/ops.h"

#include <string.h>

#include "base/log.h"

static struct berth_op *op_create(struct berth_sched *sched, enum berth_admin_kind kind,
                                  struct berth_admin *admin);
static void op_end(struct berth_op *op);
static void reply(struct berth_admin *admin, const struct berth_err *err);
static void start_load(struct berth_op *op);
static void start_unload(struct berth_op *op);
static void start_begun(struct berth_op *op);
static void end_begun(struct berth_op *start);
static void load_listed(struct berth_op *op, const char *name, bool ensure);
static void ensure_one(struct berth_op *op, struct berth_model *model);
static void start_drain(struct berth_op *op);
static void drain_due(struct berth_timer *timer);
static void poll_due(struct berth_timer *timer);
static void settle_waits(struct berth_runtime *runtime, bool unloads, const struct berth_err *err);
static bool allows_loads(struct berth_op *op);

void berth_ops_begin(struct berth_sched *sched)
{
    struct berth_op *op = op_create(sched, BERTH_ADMIN_SCAN, NULL);
    sched->poll_timer.fire = poll_due;
    if (op == NULL) {
        berth_log_error("sched", 0, "out of memory: the repository is not scanned yet");
        return; /* the next turn tries again */
    }
    sched->begun = true;
    op->at_start = true;
    if (sched->options.repo != NULL) {
        berth_scan_start(op);
        return;
    }
    if (sched->options.mode == BERTH_CONTROL_NONE || sched->options.mode == BERTH_CONTROL_POLL) {
        load_listed(op, NULL, true);
    }
    for (size_t i = 0; i < sched->options.load_model_count; i++) {
        load_listed(op, sched->options.load_models[i], true);
    }
    berth_op_check(op);
}

void berth_ops_take(struct berth_admin *admin)
{
    struct berth_sched *sched = admin->sched;
    struct berth_err err = {0};
    struct berth_op *op = NULL;
    if (sched->closing) {
        (void)berth_sched_stopping(&err);
    } else if ((op = op_create(sched, admin->kind, admin)) == NULL) {
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
    }
    if (op == NULL) {
        reply(admin, &err);
        return;
    }
    switch (admin->kind) {
    case BERTH_ADMIN_LOAD:
        start_load(op);
        break;
    case BERTH_ADMIN_UNLOAD:
        start_unload(op);
        break;
    case BERTH_ADMIN_ENSURE:
        load_listed(op, admin->name, true);
        berth_op_check(op);
        break;
    case BERTH_ADMIN_SCAN:
        if (sched->options.repo != NULL) {
            berth_scan_start(op);
        } else {
            berth_op_check(op);
        }
        break;
    case BERTH_ADMIN_BEGUN:
        start_begun(op);
        break;
    case BERTH_ADMIN_DRAIN:
        start_drain(op);
        break;
    }
}

void berth_ops_settle(struct berth_runtime *runtime, const struct berth_err *err)
{
    settle_waits(runtime, false, err);
}

void berth_ops_emptied(struct berth_runtime *runtime)
{
    settle_waits(runtime, true, NULL);
}

void berth_ops_drained(struct berth_sched *sched)
{
    BERTH_LIST_EACH_SAFE(link, &sched->ops) {
        struct berth_op *op = BERTH_CONTAINER_OF(link, struct berth_op, link);
        if (op->kind == BERTH_ADMIN_DRAIN) {
            op_end(op);
        }
    }
}

/* Those whose job or descriptions are out are answered when these are back: until then the
 * repository reads what the admin lends. */
void berth_ops_close(struct berth_sched *sched)
{
    struct berth_err err = {0};
    (void)berth_sched_stopping(&err);
    berth_timers_disarm(&sched->timers, &sched->poll_timer);
    BERTH_LIST_EACH_SAFE(link, &sched->ops) {
        struct berth_op *op = BERTH_CONTAINER_OF(link, struct berth_op, link);
        berth_op_fail(op, &err);
        if (op->kind == BERTH_ADMIN_DRAIN) {
            op_end(op);
        } else {
            berth_op_check(op);
        }
    }
}

void berth_op_fail(struct berth_op *op, const struct berth_err *err)
{
    if (op->err.code == BERTH_OK) {
        op->err = *err;
    }
}

void berth_op_wait(struct berth_op *op, struct berth_runtime *runtime)
{
    struct berth_op_wait *wait = berth_alloc(sizeof(*wait));
    struct berth_err err = {0};
    if (wait == NULL) {
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
        berth_op_fail(op, &err); /* what was begun goes on; nobody is told of its end */
        return;
    }
    wait->op = op;
    op->waiting++;
    berth_runtime_rejoin(runtime);
    berth_list_append(&runtime->waits, &wait->link);
}

void berth_op_check(struct berth_op *op)
{
    if (!op->job_out && op->describing == 0 && op->waiting == 0) {
        op_end(op);
    }
}

void berth_op_load(struct berth_op *op, struct berth_runtime *runtime,
                   struct berth_model_spec *spec)
{
    struct berth_err err = {0};
    if (berth_runtime_load(runtime, spec, &err) == BERTH_OK) {
        berth_op_wait(op, runtime);
    } else {
        berth_sched_name_failure(&err, runtime->model->name);
        berth_op_fail(op, &err);
    }
}

static struct berth_op *op_create(struct berth_sched *sched, enum berth_admin_kind kind,
                                  struct berth_admin *admin)
{
    struct berth_op *op = berth_alloc(sizeof(*op));
    if (op != NULL) {
        op->sched = sched;
        op->kind = kind;
        op->admin = admin;
        berth_list_append(&sched->ops, &op->link);
    }
    return op;
}

static void op_end(struct berth_op *op)
{
    struct berth_sched *sched = op->sched;
    if (op->admin != NULL) {
        reply(op->admin, &op->err);
    }
    if (op->at_start && !sched->closing) { /* berth_ops_close answers all by itself */
        end_begun(op);
    }
    if (op->kind == BERTH_ADMIN_SCAN && sched->options.mode == BERTH_CONTROL_POLL &&
        sched->options.repo != NULL && !sched->closing) {
        berth_timers_arm(&sched->timers, &sched->poll_timer,
                         sched->now_ns + sched->options.poll_ns);
    }
    berth_timers_disarm(&sched->timers, &op->timer);
    berth_list_remove(&op->link);
    berth_repo_job_finish(&op->job);
    berth_free(op->describes);
    berth_free(op);
}

static void reply(struct berth_admin *admin, const struct berth_err *err)
{
    admin->err = *err;
    admin->post.deliver = admin->on_done;
    berth_queue_post(admin->reply, &admin->post.link);
}

static void start_load(struct berth_op *op)
{
    struct berth_sched *sched = op->sched;
    if (!allows_loads(op)) {
        op_end(op);
        return;
    }
    if (sched->options.repo != NULL) {
        op->has_override = op->admin->config_json != NULL;
        berth_scan_start(op);
        return;
    }
    load_listed(op, op->admin->name, false);
    berth_op_check(op);
}

static bool allows_loads(struct berth_op *op)
{
    enum berth_control_mode mode = op->sched->options.mode;
    if (mode != BERTH_CONTROL_NONE && mode != BERTH_CONTROL_POLL) {
        return true;
    }
    struct berth_err err = {0};
    (void)berth_fail(&err, BERTH_UNAVAILABLE,
                     "explicit model load / unload is not allowed if polling is enabled");
    berth_op_fail(op, &err);
    return false;
}

static void start_unload(struct berth_op *op)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    if (!allows_loads(op)) {
        op_end(op);
        return;
    }
    if (!berth_catalog_versions(op->sched->options.catalog, op->admin->name, &models, &count)) {
        struct berth_err err = {0};
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
        berth_op_fail(op, &err);
        count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        struct berth_runtime *runtime = models[i]->sched_state;
        if (runtime != NULL) {
            berth_runtime_unload(runtime);
            if (!berth_list_empty(&runtime->copies)) {
                berth_op_wait(op, runtime);
            }
        }
    }
    berth_models_release(models, count);
    berth_op_check(op);
}

/* The scan at start is under way, or over: whoever waits for it needs none of his own. */
static void start_begun(struct berth_op *op)
{
    struct berth_err err = {0};
    if (!op->sched->begun) {
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
        berth_op_fail(op, &err);
        op_end(op);
        return;
    }
    BERTH_LIST_EACH(link, &op->sched->ops) {
        if (BERTH_CONTAINER_OF(link, struct berth_op, link)->at_start) {
            return;
        }
    }
    op_end(op);
}

static void end_begun(struct berth_op *start)
{
    BERTH_LIST_EACH_SAFE(link, &start->sched->ops) {
        struct berth_op *op = BERTH_CONTAINER_OF(link, struct berth_op, link);
        if (op->kind == BERTH_ADMIN_BEGUN) {
            op->err = start->err;
            op_end(op);
        }
    }
}

/* All listed models, or all versions of one name, from the catalogue as it is. */
static void load_listed(struct berth_op *op, const char *name, bool ensure)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    size_t matched = 0;
    struct berth_err err = {0};
    struct berth_catalog *catalog = op->sched->options.catalog;
    if (name != NULL ? !berth_catalog_versions(catalog, name, &models, &count)
                     : !berth_catalog_list(catalog, &models, &count)) {
        (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
        berth_op_fail(op, &err);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (atomic_load(&models[i]->listed)) {
            matched++;
            struct berth_runtime *runtime = berth_runtime_of(op->sched, models[i]);
            if (runtime == NULL) {
                (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
                berth_sched_name_failure(&err, models[i]->name);
                berth_op_fail(op, &err);
            } else if (ensure) {
                ensure_one(op, models[i]);
            } else {
                berth_op_load(op, runtime, berth_model_spec(models[i]));
            }
        }
    }
    berth_models_release(models, count);
    if (name != NULL && matched == 0) {
        (void)berth_fail(&err, BERTH_NOT_FOUND, "unknown model '%s'", name);
        berth_op_fail(op, &err);
    }
}

static void ensure_one(struct berth_op *op, struct berth_model *model)
{
    struct berth_runtime *runtime = model->sched_state;
    struct berth_err err = {0};
    if (runtime->current != NULL) {
        return;
    }
    if (runtime->next != NULL) {
        berth_op_wait(op, runtime);
        return;
    }
    if (berth_runtime_judge(model, op->sched->now_ns, &err) != BERTH_OK) {
        berth_op_fail(op, &err);
        return;
    }
    berth_op_load(op, runtime, berth_model_spec(model));
}

/* S14 */
static void start_drain(struct berth_op *op)
{
    struct berth_sched *sched = op->sched;
    sched->draining = true;
    atomic_store(&sched->refusing, true);
    atomic_store(&sched->ready, false);
    berth_log(sched->unanswered > 0 ? BERTH_LOG_WARN : BERTH_LOG_INFO, "sched", 0,
              "drain unanswered=%llu", (unsigned long long)sched->unanswered);
    if (sched->unanswered == 0) {
        op_end(op);
        return;
    }
    op->timer.fire = drain_due;
    berth_timers_arm(&sched->timers, &op->timer, op->admin->t_deadline_ns);
}

static void drain_due(struct berth_timer *timer)
{
    struct berth_op *op = BERTH_CONTAINER_OF(timer, struct berth_op, timer);
    berth_tickets_refuse(op->sched); /* ends op with the last answer */
}

static void poll_due(struct berth_timer *timer)
{
    struct berth_sched *sched = BERTH_CONTAINER_OF(timer, struct berth_sched, poll_timer);
    struct berth_op *op = op_create(sched, BERTH_ADMIN_SCAN, NULL);
    if (op != NULL) {
        berth_scan_start(op);
    } else {
        berth_timers_arm(&sched->timers, timer, sched->now_ns + sched->options.poll_ns);
    }
}

static void settle_waits(struct berth_runtime *runtime, bool unloads, const struct berth_err *err)
{
    BERTH_LIST_EACH_SAFE(link, &runtime->waits) {
        struct berth_op_wait *wait = BERTH_CONTAINER_OF(link, struct berth_op_wait, link);
        struct berth_op *op = wait->op;
        if ((op->kind == BERTH_ADMIN_UNLOAD) != unloads) {
            continue;
        }
        berth_list_remove(&wait->link);
        berth_free(wait);
        op->waiting--;
        if (err != NULL && err->code != BERTH_OK && op->kind != BERTH_ADMIN_SCAN) {
            berth_op_fail(op, err); /* a scan did its part; the model's state tells the rest */
        }
        berth_op_check(op);
    }
}
