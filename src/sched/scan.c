/* scan.c - what a look at the repository changes: the catalogue, and by the control mode what is
 * loaded, reloaded and unloaded (R8).
 *
 *     repository job -> descriptions of new specs (a worker's loader threads) -> the catalogue
 *
 * Specs are described before the catalogue shows them, so that whoever finds a model, cold or warm,
 * finds its whole signature, and nothing writes to a spec that others read.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sched/ops.h"

static void deliver_job(struct berth_post *post);
static void note_unread(struct berth_op *op);
static void describe_found(struct berth_op *op);
static bool take_known(const struct berth_op *op, struct berth_repo_found *found);
static void deliver_described(struct berth_post *post);
static void apply(struct berth_op *op);
static int compare_found(const void *a, const void *b);
static void apply_found(struct berth_op *op, struct berth_repo_found *found);
static void apply_broken(struct berth_op *op, struct berth_repo_found *found,
                         struct berth_model *known, struct berth_runtime *in_use);
static void apply_in_use(struct berth_op *op, struct berth_repo_found *found,
                         struct berth_runtime *runtime);
static void forget_files(struct berth_runtime *runtime);
static void apply_cold(struct berth_op *op, struct berth_repo_found *found,
                       struct berth_model *model);
static struct berth_model_spec *stub(const struct berth_repo_found *found);
static void unlist_missing(struct berth_op *op);
static bool is_found(const struct berth_op *op, const struct berth_model *model);
static bool wants_load(const struct berth_op *op, const char *name);
static bool is_named(const struct berth_op *op, const char *name);
static bool is_news(struct berth_model *model, struct berth_runtime *in_use,
                    const struct berth_err *err);
static bool is_same(const struct berth_model_spec *a, const struct berth_model_spec *b);

void berth_scan_start(struct berth_op *op)
{
    op->job = (struct berth_repo_job){
        .post.deliver = deliver_job,
        .reply = &op->sched->queue,
        .kind = op->kind == BERTH_ADMIN_LOAD ? BERTH_REPO_READ : BERTH_REPO_SCAN,
        .name = op->kind == BERTH_ADMIN_LOAD ? op->admin->name : NULL,
        .config_json = op->kind == BERTH_ADMIN_LOAD ? op->admin->config_json : NULL,
    };
    if (op->job.kind == BERTH_REPO_SCAN) {
        atomic_fetch_add(&op->sched->scans, 1);
    }
    op->job_out = true;
    berth_repo_submit(op->sched->options.repo, &op->job);
}

static void deliver_job(struct berth_post *post)
{
    struct berth_repo_job *job = BERTH_CONTAINER_OF(post, struct berth_repo_job, post);
    struct berth_op *op = BERTH_CONTAINER_OF(job, struct berth_op, job);
    op->job_out = false;
    if (job->err.code != BERTH_OK) {
        note_unread(op);
        berth_op_fail(op, &job->err);
        berth_op_check(op);
        return;
    }
    op->sched->scan_told[0] = '\0';
    describe_found(op);
    if (op->describing == 0) {
        apply(op);
    }
}

/* Told to whoever asked; by the controller's own looks once, not at each of them. */
static void note_unread(struct berth_op *op)
{
    struct berth_sched *sched = op->sched;
    struct berth_model **models = NULL;
    struct berth_err *err = &op->job.err;
    size_t count = 0;
    if (op->kind != BERTH_ADMIN_LOAD) {
        if (op->admin == NULL && strcmp(sched->scan_told, err->msg) != 0) {
            memcpy(sched->scan_told, err->msg, sizeof(sched->scan_told));
            berth_log_err(BERTH_LOG_ERROR, "repo", 0, err);
        }
        return;
    }
    if (!op->has_override &&
        berth_catalog_versions(sched->options.catalog, op->admin->name, &models, &count)) {
        for (size_t i = 0; i < count; i++) {
            struct berth_runtime *runtime = models[i]->sched_state;
            if (runtime != NULL && runtime->current != NULL) {
                (void)berth_runtime_goes_on(runtime, err);
            }
        }
        berth_models_release(models, count);
    }
    berth_sched_name_failure(err, op->admin->name);
}

static void describe_found(struct berth_op *op)
{
    struct berth_repo_job *job = &op->job;
    if (job->found_count == 0 || op->sched->closing) {
        return;
    }
    op->describes = berth_alloc(job->found_count * sizeof(*op->describes));
    for (size_t i = 0; i < job->found_count; i++) {
        struct berth_repo_found *found = &job->found[i];
        if (found->spec == NULL || found->spec->completed || take_known(op, found)) {
            continue;
        }
        if (op->describes == NULL) {
            (void)berth_fail(&found->err, BERTH_UNAVAILABLE, "out of memory");
            continue;
        }
        op->describing++;
        op->describes[i] = (struct berth_worker_msg){
            .post.deliver = deliver_described,
            .kind = BERTH_WORKER_DESCRIBE,
            .spec = found->spec,
            .state = op,
        };
        berth_worker_send(op->sched->devices[0].worker, &op->describes[i]);
    }
}

/* Files that have not changed since they were described need not be read again. */
static bool take_known(const struct berth_op *op, struct berth_repo_found *found)
{
    struct berth_model *model =
        berth_catalog_find(op->sched->options.catalog, found->name, found->version);
    struct berth_model_spec *known = model == NULL ? NULL : berth_model_spec(model);
    bool same = known != NULL && known->completed && is_same(known, found->spec);
    if (same) {
        berth_spec_release(found->spec);
        found->spec = known;
    } else {
        berth_spec_release(known);
    }
    berth_model_release(model);
    return same;
}

static void deliver_described(struct berth_post *post)
{
    struct berth_worker_msg *msg = BERTH_CONTAINER_OF(post, struct berth_worker_msg, post);
    struct berth_op *op = msg->state;
    op->job.found[msg - op->describes].err = msg->err;
    op->describing--;
    if (op->describing == 0) {
        apply(op);
    }
}

static void apply(struct berth_op *op)
{
    struct berth_repo_job *job = &op->job;
    op->waiting++; /* so that nothing ends it half-way */
    if (!op->sched->closing) {
        if (job->found_count > 1) {
            qsort(job->found, job->found_count, sizeof(*job->found), compare_found);
        }
        for (size_t i = 0; i < job->found_count; i++) {
            apply_found(op, &job->found[i]);
        }
        unlist_missing(op);
        if (op->at_start && job->kind == BERTH_REPO_SCAN && job->found_count == 0) {
            berth_log_warn("repo", 0, "%s holds no model: a model is a folder in it",
                           berth_repo_path(op->sched->options.repo));
        }
    }
    berth_repo_job_finish(job);
    job->found = NULL;
    job->found_count = 0;
    op->waiting--;
    berth_op_check(op);
}

static int compare_found(const void *a, const void *b)
{
    const struct berth_repo_found *left = a;
    const struct berth_repo_found *right = b;
    int order = strcmp(left->name, right->name);
    return order != 0 ? order : (left->version > right->version) - (left->version < right->version);
}

static void apply_found(struct berth_op *op, struct berth_repo_found *found)
{
    struct berth_model *model =
        berth_catalog_find(op->sched->options.catalog, found->name, found->version);
    struct berth_runtime *in_use = model == NULL ? NULL : model->sched_state;
    if (in_use != NULL && in_use->current == NULL && in_use->next == NULL) {
        in_use = NULL;
    }
    if (found->spec == NULL || found->err.code != BERTH_OK) {
        apply_broken(op, found, model, in_use);
    } else if (in_use != NULL) {
        apply_in_use(op, found, in_use);
    } else {
        apply_cold(op, found, model);
    }
    berth_model_release(model);
}

/* What serves goes on, and says why it does; else the catalogue shows the model as failed, with the
 * reason. */
static void apply_broken(struct berth_op *op, struct berth_repo_found *found,
                         struct berth_model *known, struct berth_runtime *in_use)
{
    struct berth_err err = {0};
    struct berth_err named = found->err;
    struct berth_model *model = NULL;
    berth_sched_name_failure(&named, found->name);
    if (op->has_override || is_news(known, in_use, &found->err)) {
        berth_log_err(BERTH_LOG_WARN, "repo", 0, &named);
    }
    if (op->kind == BERTH_ADMIN_LOAD) {
        berth_op_fail(op, &named);
    }
    /* UNAVAILABLE (no memory, no descriptors) and a client's own config say nothing about the
     * files: what was known of them stays. */
    bool of_files = found->err.code != BERTH_UNAVAILABLE && !op->has_override;
    if (in_use != NULL || (known != NULL && !of_files)) {
        return;
    }
    struct berth_model_spec *spec = found->spec != NULL ? found->spec : stub(found);
    found->spec = NULL;
    if (spec == NULL ||
        berth_catalog_put(op->sched->options.catalog, spec, &model, &err) != BERTH_OK) {
        berth_spec_release(spec);
        return;
    }
    atomic_store(&model->listed, true);
    atomic_store(&model->t_retry_ns, UINT64_MAX); /* until its files change */
    berth_model_set_state(model, BERTH_STATE_FAILED, found->err.msg);
    berth_model_release(model);
}

/* A mistake that was told at the last scan is not told again: the model's reason has it. */
static bool is_news(struct berth_model *model, struct berth_runtime *in_use,
                    const struct berth_err *err)
{
    char reason[sizeof(err->msg)];
    if (model == NULL) {
        return true;
    }
    if (in_use != NULL && in_use->current != NULL) {
        return berth_runtime_goes_on(in_use, err);
    }
    berth_model_reason(model, reason, sizeof(reason));
    if (strcmp(reason, err->msg) == 0) {
        return false;
    }
    if (in_use != NULL) {
        berth_model_set_state(model, berth_model_state(model), err->msg);
    }
    return true;
}

static void apply_in_use(struct berth_op *op, struct berth_repo_found *found,
                         struct berth_runtime *runtime)
{
    const struct berth_model_spec *present =
        runtime->next != NULL ? runtime->next->spec : runtime->current->spec;
    bool same = !op->has_override && is_same(present, found->spec);
    bool wait_on = runtime->stamp_failed == found->spec->files_stamp &&
                   op->sched->now_ns < atomic_load(&runtime->model->t_retry_ns); /* R9 */
    bool misplaced = runtime->next == NULL && berth_device_calls(runtime->current); /* S15 */
    atomic_store(&runtime->model->listed, true);
    if (same && runtime->next == NULL) {
        berth_runtime_is_fresh(runtime);
    }
    if (!same && runtime->next == NULL && runtime->stamp_failed != found->spec->files_stamp) {
        forget_files(runtime);
    }
    if (op->kind == BERTH_ADMIN_LOAD && (!same || misplaced)) {
        struct berth_model_spec *spec = found->spec;
        found->spec = NULL;
        berth_op_load(op, runtime, spec);
        if (same && runtime->next != NULL) {
            runtime->next->moves = true;
        }
    } else if (op->kind == BERTH_ADMIN_SCAN && !same && !wait_on &&
               found->spec->files_stamp != 0 && op->sched->options.mode == BERTH_CONTROL_POLL) {
        struct berth_model_spec *spec = found->spec;
        found->spec = NULL;
        berth_op_load(op, runtime, spec);
    } else if (runtime->next != NULL &&
               (wants_load(op, found->name) || is_named(op, found->name))) {
        berth_op_wait(op, runtime);
    }
}

/* Other files are another model: what the old ones took and where says nothing. */
static void forget_files(struct berth_runtime *runtime)
{
    runtime->failures = 0;
    runtime->bytes_measured = 0;
    runtime->gpu_never = false;
    runtime->t_gpu_ns = 0;
}

static void apply_cold(struct berth_op *op, struct berth_repo_found *found,
                       struct berth_model *model)
{
    struct berth_err err = {0};
    struct berth_sched *sched = op->sched;
    struct berth_model *put = NULL;
    struct berth_model_spec *before = model == NULL ? NULL : berth_model_spec(model);
    bool same = before != NULL && is_same(before, found->spec);
    berth_spec_release(before);
    if (berth_catalog_put(sched->options.catalog, found->spec, &put, &err) != BERTH_OK) {
        berth_sched_name_failure(&err, found->name);
        berth_op_fail(op, &err);
        return;
    }
    found->spec = NULL;
    atomic_store(&put->listed, true);
    bool failed = berth_model_state(put) == BERTH_STATE_FAILED;
    if (failed && !same) {
        atomic_store(&put->t_retry_ns, 0);
        berth_model_set_state(put, BERTH_STATE_COLD, "");
        failed = false;
    }
    bool wait_on = failed && op->kind == BERTH_ADMIN_SCAN &&
                   sched->now_ns < atomic_load(&put->t_retry_ns); /* R9 */
    if (wants_load(op, put->name) && !wait_on) {
        struct berth_runtime *runtime = berth_runtime_of(sched, put);
        if (runtime == NULL) {
            (void)berth_fail(&err, BERTH_UNAVAILABLE, "out of memory");
            berth_sched_name_failure(&err, put->name);
            berth_op_fail(op, &err);
        } else {
            if (!same) {
                forget_files(runtime);
            }
            berth_op_load(op, runtime, berth_model_spec(put));
        }
    }
    berth_model_release(put);
}

/* A model whose config could not be read has a name and a version, no more. */
static struct berth_model_spec *stub(const struct berth_repo_found *found)
{
    struct berth_model_spec *spec = berth_spec_create();
    if (spec == NULL) {
        return NULL;
    }
    spec->name = berth_arena_strdup(&spec->arena, found->name);
    spec->version = found->version;
    spec->engine = "";
    spec->backend = "";
    spec->platform = "";
    spec->default_model_filename = "";
    spec->folder = "";
    spec->folder_version = "";
    spec->task = "";
    if (spec->name == NULL) {
        berth_spec_release(spec);
        return NULL;
    }
    return spec;
}

/* What is gone from the repository, or from what its version policy serves. */
static void unlist_missing(struct berth_op *op)
{
    struct berth_model **models = NULL;
    size_t count = 0;
    if (!berth_catalog_list(op->sched->options.catalog, &models, &count)) {
        return; /* the next scan will */
    }
    for (size_t i = 0; i < count; i++) {
        struct berth_model *model = models[i];
        bool judged = op->kind == BERTH_ADMIN_SCAN || strcmp(model->name, op->job.name) == 0;
        if (judged && atomic_load(&model->listed) && !is_found(op, model)) {
            atomic_store(&model->listed, false);
            struct berth_runtime *runtime = model->sched_state;
            bool unload = op->kind == BERTH_ADMIN_LOAD ||
                          op->sched->options.mode == BERTH_CONTROL_POLL;
            if (unload && runtime != NULL) {
                berth_log_info("sched", 0, "gone from the repository model=%s version=%" PRIu64,
                               model->name, model->version);
                berth_runtime_unload(runtime);
            }
        }
        berth_model_release(model);
    }
    berth_free(models);
}

static bool is_found(const struct berth_op *op, const struct berth_model *model)
{
    struct berth_repo_found key = {.name = (char *)(uintptr_t)model->name,
                                   .version = model->version};
    return op->job.found_count > 0 &&
           bsearch(&key, op->job.found, op->job.found_count, sizeof(key), compare_found) != NULL;
}

static bool wants_load(const struct berth_op *op, const char *name)
{
    const struct berth_sched_options *options = &op->sched->options;
    if (op->kind == BERTH_ADMIN_LOAD || options->mode == BERTH_CONTROL_NONE ||
        options->mode == BERTH_CONTROL_POLL) {
        return true;
    }
    return op->at_start && is_named(op, name);
}

/* By --load-model. */
static bool is_named(const struct berth_op *op, const char *name)
{
    const struct berth_sched_options *options = &op->sched->options;
    for (size_t i = 0; i < options->load_model_count; i++) {
        if (strcmp(options->load_models[i], "*") == 0 ||
            strcmp(options->load_models[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_same(const struct berth_model_spec *a, const struct berth_model_spec *b)
{
    return a->files_stamp != 0 && a->files_stamp == b->files_stamp;
}
