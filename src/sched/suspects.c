/* suspects.c - which model ends a GPU's worker process, and is kept off it (S15).
 *
 * What the process had when it ended (a run, a step, a load) is suspected; what was the only model
 * there is the one. Runs and steps come home at once behind the news, so the verdict waits for the
 * last of them, and loads for the verdict (berth_suspects_wait). A load that was not alone begins
 * anew; one that was is refused (devices.c).
 *
 * Why two deaths alone and three in company: one may be the device's own; beside a model that
 * kills, an innocent one is in two deaths in a row by chance often, in three without a run of its
 * own that ends well between them hardly ever. Rejected: a run that ends well as forgiveness for
 * deaths alone (a model that dies of some inputs would never be kept off, and each death costs all
 * that is loaded there).
 *
 * What is always in company, with runs that end well between, cannot be told from what is beside it
 * by counting: both were in each death, and both run well most of the time. So after two deaths in
 * company a model's runs are apart from those of all others there, for as long as deaths are
 * remembered. The next death then is one model's alone. Loads go on beside it (warm does not wait
 * for cold), and do not make it company, unless it is the load that may kill: in two deaths before,
 * and no run since that excuses it. Such a one is found at its third.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "sched/controller.h"

#define ALONE_MAX 2
#define COMPANY_MAX 3
#define APART_MIN 2 /* deaths in company, whatever was between them */
#define FORGIVEN_NS (600 * BERTH_NS_PER_S) /* after so long without another */

static bool is_marked(const struct berth_runtime *runtime, const struct berth_device *device);
static bool loads_on(const struct berth_runtime *runtime, const struct berth_device *device);
static bool was_there(const struct berth_runtime *runtime, const struct berth_device *device);
static size_t count_others(const struct berth_runtime *runtime, const struct berth_device *device);
static bool is_beside_worse(const struct berth_runtime *runtime, const struct berth_device *device);
static void blame(struct berth_runtime *runtime, const struct berth_device *device, bool alone);
static void load_kept(struct berth_timer *timer);

void berth_suspect_mark(struct berth_copy *copy)
{
    struct berth_runtime *runtime = copy->runtime;
    berth_device_fault(copy->sched, copy->device);
    if (!copy->device->gpu) {
        return;
    }
    if (runtime->stamp_suspect != copy->spec->files_stamp) { /* other files: another model */
        runtime->stamp_suspect = copy->spec->files_stamp;
        runtime->deaths_alone = runtime->deaths_company = runtime->deaths_beside = 0;
        runtime->kept_off = 0;
        runtime->t_kept_off_ns = 0;
    }
    runtime->suspect_apart = runtime->suspect_apart && is_marked(runtime, copy->device);
    runtime->suspect_on = copy->device;
    runtime->suspect_epoch = copy->device->epoch_seen;
}

bool berth_suspect_load(struct berth_copy *copy)
{
    struct berth_runtime *runtime = copy->runtime;
    if (copy->device->lost_out > 0) { /* the verdict, which is near, is about it too */
        return true;
    }
    bool alone = count_others(runtime, copy->device) == 0;
    if (!alone) {
        blame(runtime, copy->device, false);
    }
    return !alone;
}

/* One model at two deaths in a row is no illness of the device; two models are. */
void berth_suspects_judge(struct berth_sched *sched, struct berth_device *device)
{
    const struct berth_runtime *culprit = NULL;
    BERTH_LIST_EACH(link, &sched->runtimes) {
        struct berth_runtime *runtime = BERTH_CONTAINER_OF(link, struct berth_runtime, link);
        if (is_marked(runtime, device)) {
            bool alone = count_others(runtime, device) == 0 ||
                         (runtime->suspect_apart && !is_beside_worse(runtime, device));
            blame(runtime, device, alone);
            culprit = alone ? runtime : culprit;
        }
    }
    if (culprit == NULL || culprit != device->culprit || device->faults == 0) {
        berth_device_ail(device, sched->now_ns);
    }
    device->culprit = culprit;
}

void berth_suspects_note(struct berth_copy *copy, const struct berth_worker_msg *msg)
{
    const struct berth_seat *seat = msg->state;
    struct berth_device *device = copy->device;
    if (msg->lost) {
        berth_suspect_mark(copy);
        copy->runtime->suspect_apart = copy->runtime->suspect_apart || seat->apart;
    } else if (msg->err.code == BERTH_OK &&
               (msg->kind == BERTH_WORKER_RUN || msg->budget_ns > 0)) {
        if (device->gpu) { /* how it runs on the CPU excuses nothing there */
            copy->runtime->deaths_company = 0;
        }
        berth_device_worked(device);
    }
    if (device->lost_out > 0 && copy->epoch != device->epoch_seen && --device->lost_out == 0) {
        berth_suspects_judge(copy->sched, device);
    }
}

bool berth_suspect_is_apart(const struct berth_copy *copy)
{
    const struct berth_runtime *runtime = copy->runtime;
    return copy->device->gpu && runtime->deaths_beside >= APART_MIN &&
           copy->sched->now_ns <= runtime->t_forgiven_ns &&
           runtime->stamp_suspect == copy->spec->files_stamp;
}

bool berth_suspect_may_run(const struct berth_copy *copy)
{
    const struct berth_device *device = copy->device;
    uint32_t own = 0;
    if (device->apart == 0 && !berth_suspect_is_apart(copy)) {
        return true;
    }
    for (size_t i = 0; i < copy->seat_count; i++) {
        own += copy->seats[i].busy;
    }
    return own == device->under_way;
}

bool berth_suspects_wait(const struct berth_sched *sched)
{
    for (size_t i = 0; i < sched->device_count; i++) {
        if (sched->devices[i].gpu && sched->devices[i].lost_out > 0) {
            return true;
        }
    }
    return false;
}

bool berth_suspect_kept_off(const struct berth_runtime *runtime,
                            const struct berth_model_spec *spec)
{
    return runtime->sched->now_ns < runtime->t_kept_off_ns &&
           runtime->stamp_suspect == spec->files_stamp;
}

enum berth_code berth_suspect_admit(struct berth_copy *copy, struct berth_err *err)
{
    struct berth_runtime *runtime = copy->runtime;
    if (!copy->device->gpu || !berth_suspect_kept_off(runtime, copy->spec)) {
        return BERTH_OK;
    }
    if (runtime->keep) {
        runtime->kept_timer.fire = load_kept;
        berth_timers_arm(&copy->sched->timers, &runtime->kept_timer, runtime->t_kept_off_ns);
    }
    enum berth_code code = berth_fail(err, BERTH_UNAVAILABLE, "%s", runtime->suspicion);
    err->retry_after_ms = berth_retry_ms(1, runtime->t_kept_off_ns - copy->sched->now_ns);
    return code;
}

static bool is_marked(const struct berth_runtime *runtime, const struct berth_device *device)
{
    return runtime->suspect_on == device && runtime->suspect_epoch == device->epoch_seen;
}

static bool loads_on(const struct berth_runtime *runtime, const struct berth_device *device)
{
    bool any = false;
    BERTH_LIST_EACH(link, &runtime->copies) {
        const struct berth_copy *copy = BERTH_CONTAINER_OF(link, struct berth_copy, link);
        any = any || (copy->device == device && copy->state == BERTH_COPY_LOADING);
    }
    return any;
}

/* The process had it, or may have had: a load that it did not have, and waits for the next one,
 * counts too. */
static bool was_there(const struct berth_runtime *runtime, const struct berth_device *device)
{
    return is_marked(runtime, device) || loads_on(runtime, device);
}

static size_t count_others(const struct berth_runtime *runtime, const struct berth_device *device)
{
    size_t others = 0;
    BERTH_LIST_EACH(link, &runtime->sched->runtimes) {
        const struct berth_runtime *other = BERTH_CONTAINER_OF(link, struct berth_runtime, link);
        others += other != runtime && was_there(other, device);
    }
    return others;
}

/* Is one of them suspected twice already, with no run since that would excuse it? Beside what runs
 * apart that is a load. */
static bool is_beside_worse(const struct berth_runtime *runtime, const struct berth_device *device)
{
    bool any = false;
    BERTH_LIST_EACH(link, &runtime->sched->runtimes) {
        const struct berth_runtime *other = BERTH_CONTAINER_OF(link, struct berth_runtime, link);
        any = any || (other != runtime && was_there(other, device) &&
                      other->deaths_company >= APART_MIN && other->suspect_on == device);
    }
    return any;
}

static void blame(struct berth_runtime *runtime, const struct berth_device *device, bool alone)
{
    uint64_t now_ns = runtime->sched->now_ns;
    if (now_ns > runtime->t_forgiven_ns) {
        runtime->deaths_alone = runtime->deaths_company = runtime->deaths_beside = 0;
        runtime->kept_off = 0;
    }
    runtime->deaths_alone += alone;
    runtime->deaths_company += !alone;
    runtime->deaths_beside += !alone;
    runtime->t_forgiven_ns = now_ns + FORGIVEN_NS;
    if (!alone && runtime->deaths_beside == APART_MIN) {
        berth_log_warn("sched", 0, "runs alone on the GPU for a time model=%s version=%" PRIu64
                       " device=%s", runtime->model->name, runtime->model->version,
                       device->worker->device);
    }
    if (runtime->deaths_alone < ALONE_MAX && runtime->deaths_company < COMPANY_MAX) {
        return;
    }
    uint64_t pause_ns = berth_device_pause_ns(runtime->kept_off++);
    runtime->t_kept_off_ns = now_ns + pause_ns;
    runtime->t_forgiven_ns += pause_ns;
    snprintf(runtime->suspicion, sizeof(runtime->suspicion),
             "the worker process of %s ended %" PRIu32 " times while it ran or loaded there",
             device->worker->device, runtime->deaths_alone + runtime->deaths_beside);
    berth_log_warn("sched", 0, "kept off the GPU model=%s version=%" PRIu64
                   " device=%s seconds=%" PRIu64 " alone=%" PRIu32 " in_company=%" PRIu32,
                   runtime->model->name, runtime->model->version, device->worker->device,
                   pause_ns / BERTH_NS_PER_S, runtime->deaths_alone, runtime->deaths_beside);
}

/* Loaded by decision, and no other device may have it: nobody else would ask again. */
static void load_kept(struct berth_timer *timer)
{
    struct berth_runtime *runtime = BERTH_CONTAINER_OF(timer, struct berth_runtime, kept_timer);
    struct berth_err err = {0};
    if (runtime->current == NULL && runtime->next == NULL &&
        berth_runtime_load(runtime, berth_model_spec(runtime->model), &err) != BERTH_OK) {
        berth_sched_name_failure(&err, runtime->model->name);
        berth_log_err(BERTH_LOG_ERROR, "sched", 0, &err);
    }
}
