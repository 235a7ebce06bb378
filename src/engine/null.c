/* null.c - the engine that echoes or sleeps: scheduler tests and the overhead benchmark run on it.
 *
 * Output i is input i, byte for byte (one copy). Config parameters: sleep_ms and sleep_ms_load (how
 * long a run and a load take), fail_load and fail_run (their text is the error), bytes (memory the
 * model holds), steps and step_ms (run mode STEPS: each row lives for so many steps of that length,
 * and answers with one part a step). Request parameters: null_sleep_ms, null_fail.
 * All sleeping is done in slices of at most 10 ms, between which `cancelled` is polled.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engines.h"
#include "model/config_tree.h"

#define SLICE_NS (10 * BERTH_NS_PER_MS)
#define SLEEP_MS_MAX 3600000
#define HELD_BYTES_MAX (UINT64_C(1) << 40)
#define STEPS_MAX 1000000
#define SLOTS_MAX 1024

struct berth_engine_model {
    const struct berth_model_spec *spec; /* borrowed for the model's life */
    void *held;                          /* owned; the parameter bytes */
    uint64_t held_bytes;
    uint64_t sleep_ns;
    uint64_t step_ns;
    uint32_t steps;
    uint32_t slot_count;
    _Atomic uint64_t instance_bytes;
};

struct slot {
    struct berth_request *request; /* borrowed; NULL: free */
    uint32_t steps_left;
};

struct berth_instance {
    struct berth_engine_model *model;
    struct slot slots[]; /* model->slot_count of them */
};

static enum berth_code describe(struct berth_model_spec *spec, struct berth_err *err);
static enum berth_code describe_inputs(struct berth_model_spec *spec, struct berth_err *err);
static enum berth_code describe_outputs(struct berth_model_spec *spec, struct berth_err *err);
static enum berth_code parameter_count(const struct berth_model_spec *spec, const char *key,
                                       uint64_t count_max, uint64_t *out, struct berth_err *err);
static enum berth_code model_attach(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err);
static void model_detach(struct berth_engine_model *model);
static uint64_t model_bytes(const struct berth_engine_model *model);
static enum berth_code instance_create(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err);
static void instance_destroy(struct berth_instance *instance);
static enum berth_code execute(struct berth_instance *instance, struct berth_batch *batch,
                               struct berth_err *err);
static bool anybody_waits(const struct berth_batch *batch);
static void run_row(const struct berth_model_spec *spec, struct berth_row *row);
static enum berth_code echo(const struct berth_model_spec *spec, struct berth_request *request,
                            struct berth_part *part, struct berth_err *err);
static enum berth_code admit(struct berth_instance *instance, struct berth_row *rows,
                             size_t row_count, struct berth_err *err);
static enum berth_code step(struct berth_instance *instance, uint64_t budget_ns,
                            struct berth_step_result *out, struct berth_err *err);
static void step_slot(struct berth_instance *instance, uint32_t index,
                      struct berth_step_result *out);
static void step_sleep(const struct berth_instance *instance);
static void drop(struct berth_instance *instance, uint32_t slot);
static uint32_t slots(const struct berth_engine_model *model);
static void sleep_ns(uint64_t ns);
static bool is_cancelled(const struct berth_request *request);

static enum berth_code describe(struct berth_model_spec *spec, struct berth_err *err)
{
    uint64_t steps = 0;
    uint64_t bytes = 0;
    uint64_t unused = 0;
    BERTH_TRY(parameter_count(spec, "sleep_ms", SLEEP_MS_MAX, &unused, err));
    BERTH_TRY(parameter_count(spec, "sleep_ms_load", SLEEP_MS_MAX, &unused, err));
    BERTH_TRY(parameter_count(spec, "step_ms", SLEEP_MS_MAX, &unused, err));
    BERTH_TRY(parameter_count(spec, "steps", STEPS_MAX, &steps, err));
    BERTH_TRY(parameter_count(spec, "bytes", HELD_BYTES_MAX, &bytes, err));
    if (spec->input_count == 0) {
        BERTH_TRY(describe_inputs(spec, err));
    }
    if (spec->output_count == 0) {
        BERTH_TRY(describe_outputs(spec, err));
    }
    if (spec->output_count > spec->input_count) {
        (void)berth_fail(err, BERTH_INVALID,
                         "%zu outputs and %zu inputs: the null engine echoes its inputs",
                         spec->output_count, spec->input_count);
        return berth_config_locate(spec, berth_config_find(spec->config, "output"), BERTH_INVALID,
                                   err);
    }
    for (size_t i = 0; i < spec->output_count; i++) {
        if (spec->outputs[i].dtype != spec->inputs[i].dtype) {
            (void)berth_fail(err, BERTH_INVALID, "output '%s' is %s, its input '%s' %s",
                             spec->outputs[i].name, berth_dtype_name(spec->outputs[i].dtype),
                             spec->inputs[i].name, berth_dtype_name(spec->inputs[i].dtype));
            return berth_config_locate(spec, berth_config_find(spec->config, "output"),
                                       BERTH_INVALID, err);
        }
    }
    spec->run_mode = steps > 0 ? BERTH_RUN_STEPS : BERTH_RUN_EXECUTE;
    if (steps > 0 && spec->batch_size_max > SLOTS_MAX) {
        berth_config_warn(spec, berth_config_find(spec->config, "max_batch_size"),
                          "'max_batch_size' is %" PRIu64 "; %d is taken, the most that an instance "
                          "of engine 'null' takes",
                          spec->batch_size_max, SLOTS_MAX);
    }
    if (spec->task == NULL) {
        spec->task = "";
    }
    spec->bytes_estimate = bytes + sizeof(struct berth_engine_model);
    spec->completed = true;
    return BERTH_OK;
}

static enum berth_code describe_inputs(struct berth_model_spec *spec, struct berth_err *err)
{
    spec->inputs = berth_arena_alloc(&spec->arena, sizeof(*spec->inputs));
    if (spec->inputs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    spec->inputs[0] = (struct berth_io){.name = "INPUT0", .dtype = BERTH_DTYPE_FP32, .rank = 1,
                                        .dims = {-1}, .format = "FORMAT_NONE",
                                        .label_filename = ""};
    spec->input_count = 1;
    return BERTH_OK;
}

/* INPUTx becomes OUTPUTx; another name is numbered. */
static enum berth_code describe_outputs(struct berth_model_spec *spec, struct berth_err *err)
{
    struct berth_io *outputs =
        berth_arena_alloc(&spec->arena, spec->input_count * sizeof(*outputs));
    if (outputs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    for (size_t i = 0; i < spec->input_count; i++) {
        const char *input = spec->inputs[i].name;
        char name[BERTH_MODEL_NAME_MAX + 1];
        if (strncmp(input, "INPUT", 5) == 0 && strlen(input) < 64) {
            snprintf(name, sizeof(name), "OUTPUT%s", input + 5);
        } else {
            snprintf(name, sizeof(name), "OUTPUT%zu", i);
        }
        outputs[i] = spec->inputs[i];
        outputs[i].optional = false;
        outputs[i].name = berth_arena_strdup(&spec->arena, name);
        if (outputs[i].name == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
        }
    }
    spec->outputs = outputs;
    spec->output_count = spec->input_count;
    return BERTH_OK;
}

static enum berth_code parameter_count(const struct berth_model_spec *spec, const char *key,
                                       uint64_t count_max, uint64_t *out, struct berth_err *err)
{
    const char *text = berth_spec_parameter(spec, key, "0");
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value > count_max) {
        (void)berth_fail(err, BERTH_INVALID, "parameter '%s' is '%.40s'; it takes 0 to %" PRIu64,
                         key, text, count_max);
        return berth_config_locate(spec, berth_config_parameter(spec, key), BERTH_INVALID, err);
    }
    *out = value;
    return BERTH_OK;
}

static enum berth_code model_attach(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err)
{
    struct berth_engine_model *model = NULL;
    uint64_t load_ms = 0;
    uint64_t run_ms = 0;
    uint64_t step_ms = 0;
    uint64_t steps = 0;
    uint64_t bytes = 0;
    BERTH_TRY(parameter_count(spec, "sleep_ms_load", SLEEP_MS_MAX, &load_ms, err));
    BERTH_TRY(parameter_count(spec, "sleep_ms", SLEEP_MS_MAX, &run_ms, err));
    BERTH_TRY(parameter_count(spec, "step_ms", SLEEP_MS_MAX, &step_ms, err));
    BERTH_TRY(parameter_count(spec, "steps", STEPS_MAX, &steps, err));
    BERTH_TRY(parameter_count(spec, "bytes", HELD_BYTES_MAX, &bytes, err));
    sleep_ns(load_ms * BERTH_NS_PER_MS);
    const char *fault = berth_spec_parameter(spec, "fail_load", NULL);
    if (fault != NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "%s", fault);
    }
    model = berth_alloc(sizeof(*model));
    if (model == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    if (bytes > 0) {
        model->held = berth_alloc(bytes);
        if (model->held == NULL) {
            berth_free(model);
            return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
        }
    }
    model->spec = spec;
    model->held_bytes = bytes;
    model->sleep_ns = run_ms * BERTH_NS_PER_MS;
    model->step_ns = step_ms * BERTH_NS_PER_MS;
    model->steps = (uint32_t)steps;
    model->slot_count = spec->batch_size_max == 0          ? 1
                        : spec->batch_size_max > SLOTS_MAX ? SLOTS_MAX
                                                           : (uint32_t)spec->batch_size_max;
    *out = model;
    return BERTH_OK;
}

static void model_detach(struct berth_engine_model *model)
{
    if (model != NULL) {
        berth_free(model->held);
        berth_free(model);
    }
}

static uint64_t model_bytes(const struct berth_engine_model *model)
{
    return sizeof(*model) + model->held_bytes + atomic_load(&model->instance_bytes);
}

static enum berth_code instance_create(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err)
{
    size_t bytes = sizeof(struct berth_instance) + model->slot_count * sizeof(struct slot);
    struct berth_instance *instance = berth_alloc(bytes);
    if (instance == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    instance->model = model;
    atomic_fetch_add(&model->instance_bytes, bytes);
    *out = instance;
    return BERTH_OK;
}

static void instance_destroy(struct berth_instance *instance)
{
    if (instance != NULL) {
        size_t bytes = sizeof(*instance) + instance->model->slot_count * sizeof(struct slot);
        atomic_fetch_sub(&instance->model->instance_bytes, bytes);
        berth_free(instance);
    }
}

/* The batch sleeps as long as its slowest row wants, while anybody waits for it. */
static enum berth_code execute(struct berth_instance *instance, struct berth_batch *batch,
                               struct berth_err *err)
{
    const struct berth_model_spec *spec = instance->model->spec;
    const char *fault = berth_spec_parameter(spec, "fail_run", NULL);
    if (fault != NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "%s", fault);
    }
    uint64_t left_ns = instance->model->sleep_ns;
    for (size_t i = 0; i < batch->row_count; i++) {
        int64_t ms = berth_params_int(&batch->rows[i].request->params, "null_sleep_ms", 0);
        ms = ms < 0 ? 0 : ms > SLEEP_MS_MAX ? SLEEP_MS_MAX : ms;
        if ((uint64_t)ms * BERTH_NS_PER_MS > left_ns) {
            left_ns = (uint64_t)ms * BERTH_NS_PER_MS;
        }
    }
    while (left_ns > 0 && anybody_waits(batch)) {
        uint64_t slice_ns = left_ns < SLICE_NS ? left_ns : SLICE_NS;
        sleep_ns(slice_ns);
        left_ns -= slice_ns;
    }
    for (size_t i = 0; i < batch->row_count; i++) {
        run_row(spec, &batch->rows[i]);
    }
    return BERTH_OK;
}

static bool anybody_waits(const struct berth_batch *batch)
{
    for (size_t i = 0; i < batch->row_count; i++) {
        if (!is_cancelled(batch->rows[i].request)) {
            return true;
        }
    }
    return false;
}

static void run_row(const struct berth_model_spec *spec, struct berth_row *row)
{
    const char *fault = berth_params_string(&row->request->params, "null_fail", NULL);
    if (is_cancelled(row->request)) {
        (void)berth_fail(&row->err, BERTH_CANCELLED, "cancelled while running");
    } else if (fault != NULL) {
        (void)berth_fail(&row->err, BERTH_INTERNAL, "%s", fault);
    } else {
        (void)echo(spec, row->request, row->part, &row->err);
    }
}

static enum berth_code echo(const struct berth_model_spec *spec, struct berth_request *request,
                            struct berth_part *part, struct berth_err *err)
{
    for (size_t i = 0; i < spec->output_count; i++) {
        if (!berth_request_wants(request, spec->outputs[i].name)) {
            continue;
        }
        const struct berth_tensor *input = berth_request_input(request, spec->inputs[i].name);
        if (input == NULL) {
            return berth_fail_field(err, BERTH_INVALID, "inputs",
                                    "output '%s' echoes input '%s', which was not given",
                                    spec->outputs[i].name, spec->inputs[i].name);
        }
        struct berth_tensor output = *input;
        output.name = spec->outputs[i].name;
        void *to = NULL;
        BERTH_TRY(berth_part_add(part, &output, input->range.length, &to, err));
        if (input->range.length > 0) {
            memcpy(to, berth_slabs_pointer(request->slabs, &input->range), input->range.length);
        }
    }
    return BERTH_OK;
}

static enum berth_code admit(struct berth_instance *instance, struct berth_row *rows,
                             size_t row_count, struct berth_err *err)
{
    uint32_t at = 0;
    for (size_t i = 0; i < row_count; i++) {
        while (at < instance->model->slot_count && instance->slots[at].request != NULL) {
            at++;
        }
        if (at == instance->model->slot_count) {
            (void)berth_fail(&rows[i].err, BERTH_INTERNAL, "no free slot");
            continue;
        }
        instance->slots[at] = (struct slot){.request = rows[i].request,
                                            .steps_left = instance->model->steps};
        rows[i].slot = at;
    }
    return BERTH_OK;
}

static enum berth_code step(struct berth_instance *instance, uint64_t budget_ns,
                            struct berth_step_result *out, struct berth_err *err)
{
    const char *fault = berth_spec_parameter(instance->model->spec, "fail_run", NULL);
    if (fault != NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "%s", fault);
    }
    out->event_count = 0;
    out->live = 0;
    out->steps = 0;
    uint64_t spent_ns = 0;
    bool ended = false;
    do {
        step_sleep(instance);
        spent_ns += instance->model->step_ns;
        out->steps++;
        out->live = 0;
        for (uint32_t i = 0; i < instance->model->slot_count; i++) {
            if (instance->slots[i].request == NULL) {
                continue;
            }
            if (out->event_count < BERTH_STEP_EVENTS_MAX) {
                step_slot(instance, i, out);
            }
            if (instance->slots[i].request != NULL) {
                out->live++;
            } else {
                ended = true;
            }
        }
    } while (!ended && out->live > 0 && spent_ns < budget_ns &&
             out->event_count + out->live <= BERTH_STEP_EVENTS_MAX);
    return BERTH_OK;
}

static void step_slot(struct berth_instance *instance, uint32_t index,
                      struct berth_step_result *out)
{
    struct slot *slot = &instance->slots[index];
    struct berth_step_event *event = &out->events[out->event_count++];
    *event = (struct berth_step_event){.slot = index};
    const char *fault = berth_params_string(&slot->request->params, "null_fail", NULL);
    if (is_cancelled(slot->request)) {
        (void)berth_fail(&event->err, BERTH_CANCELLED, "cancelled while running");
    } else if (fault != NULL) {
        (void)berth_fail(&event->err, BERTH_INTERNAL, "%s", fault);
    } else {
        event->part = berth_part_create(slot->request);
        if (event->part == NULL) {
            (void)berth_fail(&event->err, BERTH_UNAVAILABLE, "out of memory");
        } else {
            (void)echo(instance->model->spec, slot->request, event->part, &event->err);
        }
    }
    if (slot->steps_left > 0) {
        slot->steps_left--;
    }
    event->final = slot->steps_left == 0 || event->err.code != BERTH_OK;
    if (event->err.code != BERTH_OK) {
        berth_part_destroy(event->part);
        event->part = NULL;
    }
    if (event->final) {
        slot->request = NULL;
    }
}

/* One step's length, ended early by the first cancelled row. */
static void step_sleep(const struct berth_instance *instance)
{
    uint64_t left_ns = instance->model->step_ns;
    while (left_ns > 0) {
        for (uint32_t i = 0; i < instance->model->slot_count; i++) {
            if (instance->slots[i].request != NULL && is_cancelled(instance->slots[i].request)) {
                return;
            }
        }
        uint64_t slice_ns = left_ns < SLICE_NS ? left_ns : SLICE_NS;
        sleep_ns(slice_ns);
        left_ns -= slice_ns;
    }
}

static void drop(struct berth_instance *instance, uint32_t slot)
{
    if (slot < instance->model->slot_count) {
        instance->slots[slot].request = NULL;
    }
}

static uint32_t slots(const struct berth_engine_model *model)
{
    return model->slot_count;
}

static void sleep_ns(uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / BERTH_NS_PER_S),
                            .tv_nsec = (long)(ns % BERTH_NS_PER_S)};
    while (ns > 0 && nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static bool is_cancelled(const struct berth_request *request)
{
    return atomic_load_explicit(&request->cancelled, memory_order_relaxed);
}

const struct berth_engine_ops berth_engine_null = {
    .name = "null",
    .parameters = (const char *const[]){"sleep_ms", "sleep_ms_load", "step_ms", "steps", "bytes",
                                        "fail_load", "fail_run", NULL},
    .describe = describe,
    .model_attach = model_attach,
    .model_detach = model_detach,
    .model_bytes = model_bytes,
    .instance_create = instance_create,
    .instance_destroy = instance_destroy,
    .execute = execute,
    .admit = admit,
    .step = step,
    .drop = drop,
    .slots = slots,
};
