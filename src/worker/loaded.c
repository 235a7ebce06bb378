/* loaded.c - one model loaded in this process: its engine model, its instances, and the work that
 * messages ask of them. The thread worker and, later, worker processes run the same code.
 *
 * A row's part is made here before execute, so that engines only fill it in; parts of rows that
 * failed are destroyed here, so that what travels home is either a part or an error.
 *
 * Native engines do not own their weights: the span they lie in is made here before the model is
 * attached, ends after it is detached, and counts as the model's bytes.
 */
#include "worker/worker.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "engine/span.h"
#include "model/config_tree.h"
#include "worker/promise.h"
#include "worker/warmup.h"

struct berth_loaded {
    const struct berth_engine_ops *engine;
    struct berth_model_spec *spec;         /* retained */
    const char *device;                    /* of the weights; the worker's */
    struct berth_span weights;             /* owned; zero where the engine loads for itself */
    struct berth_engine_model *model;      /* owned */
    struct berth_engine_watch watch;       /* the model's growth, told to `held` (P14) */
    struct berth_held *held;               /* the controller's; NULL: nobody asks */
    struct berth_queue *replies;           /* where it is told */
    struct berth_instance **instances;     /* owned */
    uint32_t instance_count;
    uint32_t slots;
};

static enum berth_code load_stages(struct berth_loaded *loaded, struct berth_slabs *slabs,
                                   struct berth_worker_msg *msg, struct berth_err *err);
static enum berth_code refuse_engine(const struct berth_model_spec *spec, struct berth_err *err);
static enum berth_code check_wanted(const struct berth_worker_msg *msg, struct berth_err *err);
static enum berth_code load_weights(struct berth_loaded *loaded, struct berth_err *err);
static uint64_t bytes_held(const struct berth_loaded *loaded);
static void on_grown(struct berth_engine_watch *watch);
static enum berth_code make_instances(struct berth_loaded *loaded,
                                      const struct berth_worker_msg *msg, struct berth_err *err);
static enum berth_code warm_up(struct berth_loaded *loaded, struct berth_slabs *slabs,
                               const struct berth_worker_msg *msg, struct berth_err *err);
static bool is_wanted(const struct berth_batch *batch);
static void run_batch(struct berth_loaded *loaded, struct berth_worker_msg *msg);
static void run_step(struct berth_loaded *loaded, struct berth_worker_msg *msg);
static void judge_event(const struct berth_model_spec *spec, struct berth_step_event *event,
                        struct berth_worker_msg *msg);
static void destroy_parts(struct berth_batch *batch);
static void destroy_events(struct berth_step_result *step);

enum berth_code berth_loaded_describe(const struct berth_engine_ops *engine,
                                      struct berth_model_spec *spec, struct berth_err *err)
{
    if (engine == NULL) {
        return refuse_engine(spec, err);
    }
    if (spec->completed) {
        return BERTH_OK;
    }
    BERTH_TRY(engine->describe(spec, err));
    if (engine->parameters != NULL) {
        berth_config_check_parameters(spec, engine->parameters);
    }
    if (spec->run_mode == BERTH_RUN_STEPS) {
        berth_config_check_steps(spec);
    }
    spec->completed = true;
    return BERTH_OK;
}

/* Where the config names none, it was config.json that did, or a model.onnx. */
static enum berth_code refuse_engine(const struct berth_model_spec *spec, struct berth_err *err)
{
    char names[100] = "";
    size_t used = 0;
    for (size_t i = 0; berth_engine_name(i) != NULL && used < sizeof(names); i++) {
        int more = snprintf(names + used, sizeof(names) - used, "%s%s", i == 0 ? "" : ", ",
                            berth_engine_name(i));
        used += more < 0 ? 0 : (size_t)more;
    }
    (void)berth_fail(err, BERTH_UNSUPPORTED,
                     "it needs engine '%.64s', which this build does not have (it has %s)",
                     spec->engine == NULL ? "" : spec->engine, names);
    return berth_config_locate(spec, berth_config_engine(spec), BERTH_UNSUPPORTED, err);
}

enum berth_code berth_loaded_create(const struct berth_engine_ops *engine,
                                    struct berth_slabs *slabs, struct berth_worker_msg *msg,
                                    struct berth_loaded **out, struct berth_err *err)
{
    BERTH_TRY(check_wanted(msg, err));
    BERTH_TRY(berth_loaded_describe(engine, msg->spec, err));
    struct berth_loaded *loaded = berth_alloc(sizeof(*loaded));
    if (loaded == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    loaded->engine = engine;
    loaded->spec = berth_spec_retain(msg->spec);
    loaded->device = msg->worker->device;
    loaded->weights.fd = -1;
    loaded->watch.grown = on_grown;
    loaded->held = msg->held;
    loaded->replies = msg->worker->replies;
    berth_engine_load_set(&msg->unwanted);
    enum berth_code code = load_stages(loaded, slabs, msg, err);
    berth_engine_load_set(NULL);
    if (code != BERTH_OK) {
        berth_loaded_destroy(loaded);
        return code;
    }
    msg->bytes_used = bytes_held(loaded);
    msg->instance_count = loaded->instance_count;
    msg->slots = loaded->slots;
    *out = loaded;
    return BERTH_OK;
}

void berth_loaded_destroy(struct berth_loaded *loaded)
{
    if (loaded == NULL) {
        return;
    }
    for (uint32_t i = 0; i < loaded->instance_count; i++) {
        loaded->engine->instance_destroy(loaded->instances[i]);
    }
    berth_free(loaded->instances);
    loaded->engine->model_detach(loaded->model);
    berth_span_destroy(loaded->device, &loaded->weights);
    berth_spec_release(loaded->spec);
    berth_free(loaded);
}

void berth_loaded_run(struct berth_loaded *loaded, struct berth_worker_msg *msg)
{
    if (msg->instance >= loaded->instance_count) {
        (void)berth_fail(&msg->err, BERTH_INTERNAL, "the model has no instance %" PRIu32,
                         msg->instance);
    } else if (msg->kind == BERTH_WORKER_STEP) {
        run_step(loaded, msg);
    } else {
        run_batch(loaded, msg);
    }
    msg->bytes_used = bytes_held(loaded); /* arenas grow with use */
}

/* A load that nobody wants ends between two stages, two instances or two runs of the warm-up. What
 * an engine does inside of model_attach (ONNX Runtime's session) it ends before that. */
static enum berth_code load_stages(struct berth_loaded *loaded, struct berth_slabs *slabs,
                                   struct berth_worker_msg *msg, struct berth_err *err)
{
    const struct berth_engine_ops *engine = loaded->engine;
    const struct berth_model_spec *spec = loaded->spec;
    BERTH_TRY(check_wanted(msg, err));
    BERTH_TRY(load_weights(loaded, err));
    BERTH_TRY(check_wanted(msg, err));
    BERTH_TRY(engine->model_attach(spec, loaded->weights, &loaded->model, err));
    if (engine->model_watch != NULL && loaded->held != NULL) {
        engine->model_watch(loaded->model, &loaded->watch);
    }
    BERTH_TRY(make_instances(loaded, msg, err));
    loaded->slots = spec->batch_size_max == 0 ? 1 : UINT32_MAX;
    if (spec->batch_size_max < UINT32_MAX && spec->batch_size_max > 0) {
        loaded->slots = (uint32_t)spec->batch_size_max;
    }
    if (spec->run_mode == BERTH_RUN_STEPS && engine->slots != NULL) {
        loaded->slots = engine->slots(loaded->model);
    }
    return warm_up(loaded, slabs, msg, err);
}

static enum berth_code check_wanted(const struct berth_worker_msg *msg, struct berth_err *err)
{
    if (!atomic_load_explicit(&msg->unwanted, memory_order_relaxed)) {
        return BERTH_OK;
    }
    return berth_fail(err, BERTH_CANCELLED, "nobody waits for it any more");
}

static enum berth_code load_weights(struct berth_loaded *loaded, struct berth_err *err)
{
    const struct berth_engine_ops *engine = loaded->engine;
    uint64_t bytes = 0;
    if (engine->weights_load == NULL) {
        return BERTH_OK;
    }
    BERTH_TRY(engine->weights_bytes(loaded->spec, &bytes, err));
    BERTH_TRY(berth_span_create(loaded->device, bytes, &loaded->weights, err));
    return engine->weights_load(loaded->spec, loaded->weights, err);
}

static uint64_t bytes_held(const struct berth_loaded *loaded)
{
    return loaded->weights.bytes + loaded->engine->model_bytes(loaded->model);
}

static void on_grown(struct berth_engine_watch *watch)
{
    const struct berth_loaded *loaded = BERTH_CONTAINER_OF(watch, struct berth_loaded, watch);
    berth_held_tell(loaded->held, loaded->replies, bytes_held(loaded));
}

static enum berth_code make_instances(struct berth_loaded *loaded,
                                      const struct berth_worker_msg *msg, struct berth_err *err)
{
    uint32_t count = berth_worker_instances(msg->worker, loaded->spec);
    loaded->instances = berth_alloc(count * sizeof(*loaded->instances));
    if (loaded->instances == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    for (; loaded->instance_count < count; loaded->instance_count++) {
        BERTH_TRY(check_wanted(msg, err));
        BERTH_TRY(loaded->engine->instance_create(loaded->model, loaded->instance_count,
                                                  &loaded->instances[loaded->instance_count],
                                                  err));
    }
    return BERTH_OK;
}

/* Each sample of the config's model_warmup, on each instance, as often as it says. */
static enum berth_code warm_up(struct berth_loaded *loaded, struct berth_slabs *slabs,
                               const struct berth_worker_msg *msg, struct berth_err *err)
{
    for (size_t i = 0; i < loaded->spec->warmup_count; i++) {
        const struct berth_warmup *sample = &loaded->spec->warmups[i];
        struct berth_request *request = NULL;
        BERTH_TRY(berth_warmup_make(loaded->spec, sample, slabs, &request, err));
        request->model = msg->model;
        enum berth_code code = BERTH_OK;
        uint32_t times = sample->count == 0 ? 1 : sample->count;
        for (uint32_t n = 0; n < times && code == BERTH_OK; n++) {
            for (uint32_t at = 0; at < loaded->instance_count && code == BERTH_OK; at++) {
                code = check_wanted(msg, err);
                if (code == BERTH_OK) {
                    code = berth_warmup_run(loaded->engine, loaded->spec, loaded->instances[at],
                                            request, err);
                }
            }
        }
        berth_request_release(request);
        if (code != BERTH_OK) {
            return code;
        }
    }
    return BERTH_OK;
}

/* Does anybody still wait? */
static bool is_wanted(const struct berth_batch *batch)
{
    for (size_t i = 0; i < batch->row_count; i++) {
        if (!atomic_load_explicit(&batch->rows[i].request->cancelled, memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

static void run_batch(struct berth_loaded *loaded, struct berth_worker_msg *msg)
{
    if (!is_wanted(&msg->batch)) { /* an error of the message: nothing ran, nothing is counted */
        (void)berth_fail(&msg->err, BERTH_CANCELLED, "cancelled before it ran");
        return;
    }
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        struct berth_row *row = &msg->batch.rows[i];
        row->err.code = BERTH_OK;
        row->part = berth_part_create(row->request);
        if (row->part == NULL) {
            (void)berth_fail(&msg->err, BERTH_UNAVAILABLE, "out of memory");
        }
    }
    if (msg->err.code == BERTH_OK) {
        msg->err.code = loaded->engine->execute(loaded->instances[msg->instance], &msg->batch,
                                                &msg->err);
    }
    if (msg->err.code != BERTH_OK) {
        destroy_parts(&msg->batch);
        return;
    }
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        struct berth_row *row = &msg->batch.rows[i];
        if (row->err.code == BERTH_OK) {
            row->err.code = berth_promise_part(loaded->spec, row->part, &row->err);
        }
        if (row->err.code != BERTH_OK) {
            berth_part_destroy(row->part);
            row->part = NULL;
        }
    }
}

static void run_step(struct berth_loaded *loaded, struct berth_worker_msg *msg)
{
    struct berth_instance *instance = loaded->instances[msg->instance];
    msg->step->event_count = 0;
    msg->step->live = 0;
    msg->step->steps = 0;
    for (size_t i = 0; i < msg->drop_count; i++) {
        loaded->engine->drop(instance, msg->drops[i]);
    }
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        msg->batch.rows[i].part = NULL;
        msg->batch.rows[i].err.code = BERTH_OK;
    }
    if (msg->batch.row_count > 0) {
        struct berth_err err = {0};
        enum berth_code code =
            loaded->engine->admit(instance, msg->batch.rows, msg->batch.row_count, &err);
        for (size_t i = 0; i < msg->batch.row_count && code != BERTH_OK; i++) {
            msg->batch.rows[i].err = err; /* none of them got in; those inside go on */
            msg->batch.rows[i].err.code = code;
        }
    }
    if (msg->budget_ns == 0) {
        return;
    }
    msg->err.code = loaded->engine->step(instance, msg->budget_ns, msg->step, &msg->err);
    for (size_t i = 0; i < msg->step->event_count && msg->err.code == BERTH_OK; i++) {
        judge_event(loaded->spec, &msg->step->events[i], msg);
    }
    if (msg->err.code != BERTH_OK) {
        destroy_events(msg->step);
    }
}

/* A last part that is not what was promised ends its row with an error; another one fails the whole
 * step, since its row would go on, and an answer with a wrong piece would be a wrong one. */
static void judge_event(const struct berth_model_spec *spec, struct berth_step_event *event,
                        struct berth_worker_msg *msg)
{
    struct berth_err *err = event->final ? &event->err : &msg->err;
    if (event->err.code != BERTH_OK) {
        return;
    }
    if (event->part != NULL) {
        err->code = berth_promise_part(spec, event->part, err);
    } else if (event->final) {
        (void)berth_fail(err, BERTH_INTERNAL, "the engine ended a row without an answer");
    }
    if (event->final && err->code != BERTH_OK) {
        berth_part_destroy(event->part);
        event->part = NULL;
    }
}

static void destroy_parts(struct berth_batch *batch)
{
    for (size_t i = 0; i < batch->row_count; i++) {
        berth_part_destroy(batch->rows[i].part);
        batch->rows[i].part = NULL;
    }
}

static void destroy_events(struct berth_step_result *step)
{
    for (size_t i = 0; i < step->event_count; i++) {
        berth_part_destroy(step->events[i].part);
        step->events[i].part = NULL;
    }
    step->event_count = 0;
}
