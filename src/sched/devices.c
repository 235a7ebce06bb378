/* devices.c - which device a load goes to, and what is known of a GPU's health (S15).
 *
 * A GPU that cannot take a model is no reason to leave it without an answer: where its config does
 * not demand the GPU, the CPU takes the load, in the same breath. Only loads are decided here. What
 * serves stays where it is until it is loaded anew: a GPU that comes and goes moves a model once a
 * load at most, and the pauses below keep a load from asking again at once what did not take it.
 * Rejected: moving a model back as soon as the GPU is well (it would move with each fault).
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "sched/controller.h"

#define PAUSE_NS (30 * BERTH_NS_PER_S)
#define PAUSE_DOUBLINGS_MAX 4 /* 8 minutes */

static enum berth_fallback judge(const struct berth_runtime *runtime,
                                 const struct berth_model_spec *spec,
                                 const struct berth_device *device, const char **why);
static bool may_fall(const struct berth_copy *copy);
static bool demands_gpu(const struct berth_model_spec *spec);
static void pass(struct berth_copy *copy, struct berth_device *device, enum berth_fallback kind,
                 const char *why);
static uint64_t bit_of(const struct berth_sched *sched, const struct berth_device *device);
static uint64_t room_of(const struct berth_residency *ledger);

struct berth_device *berth_device_choose(struct berth_copy *copy)
{
    struct berth_sched *sched = copy->sched;
    struct berth_device *best = NULL;
    for (size_t i = 0; i < sched->device_count; i++) {
        struct berth_device *device = &sched->devices[i];
        const char *why = NULL;
        if ((copy->passed & bit_of(sched, device)) != 0 ||
            !berth_worker_suits(device->worker, copy->spec)) {
            continue;
        }
        enum berth_fallback kind = judge(copy->runtime, copy->spec, device, &why);
        if (kind != BERTH_FALLBACK_NONE && may_fall(copy)) {
            pass(copy, device, kind, why);
            continue;
        }
        bool best_gpu = best != NULL && best->gpu;
        if (best == NULL || (device->gpu && !best_gpu) ||
            (device->gpu == best_gpu && room_of(&device->ledger) > room_of(&best->ledger))) {
            best = device;
        }
    }
    return best != NULL ? best : &sched->devices[0];
}

bool berth_device_pass(struct berth_copy *copy, enum berth_fallback kind, const char *why)
{
    bool falls = copy->device->gpu && may_fall(copy);
    if (falls) {
        pass(copy, copy->device, kind, why);
    }
    return falls;
}

/* A model's own fault is one on every device, and told as it is. A refusal by what the device is
 * stands until the model's files change; one that may be over soon is not asked for again at once.
 */
bool berth_device_refused(struct berth_copy *copy, const struct berth_err *err)
{
    struct berth_runtime *runtime = copy->runtime;
    if (!copy->device->gpu) {
        return false;
    }
    if (copy->msg.lost && berth_suspect_load(copy)) {
        return true;
    }
    switch (err->code) {
    case BERTH_UNSUPPORTED:
    case BERTH_TOO_LARGE:
        runtime->gpu_never = true;
        runtime->stamp_gpu = copy->spec->files_stamp;
        break;
    case BERTH_UNAVAILABLE:
    case BERTH_INTERNAL:
        runtime->t_gpu_ns = copy->sched->now_ns + berth_device_pause_ns(runtime->gpu_refusals++);
        break;
    default:
        return false;
    }
    snprintf(runtime->refusal, sizeof(runtime->refusal), "%s", err->msg);
    return berth_device_pass(copy, BERTH_FALLBACK_REFUSED, runtime->refusal);
}

void berth_device_took(struct berth_copy *copy)
{
    struct berth_runtime *runtime = copy->runtime;
    if (copy->device->gpu) {
        runtime->gpu_never = false;
        runtime->gpu_refusals = 0;
        runtime->t_gpu_ns = 0;
        runtime->fallback = BERTH_FALLBACK_NONE;
        runtime->fallback_why[0] = '\0';
    }
}

bool berth_device_calls(const struct berth_copy *copy)
{
    const struct berth_sched *sched = copy->sched;
    if (copy->device->gpu || copy->passed == 0) {
        return false;
    }
    for (size_t i = 0; i < sched->device_count; i++) {
        const struct berth_device *device = &sched->devices[i];
        const char *why = NULL;
        uint64_t bytes = berth_copy_bytes(copy, device);
        if (device->gpu && berth_worker_suits(device->worker, copy->spec) &&
            judge(copy->runtime, copy->spec, device, &why) == BERTH_FALLBACK_NONE &&
            berth_residency_missing(&device->ledger, bytes) <=
                berth_residency_evictable(&device->ledger)) {
            return true;
        }
    }
    return false;
}

bool berth_device_stays(const struct berth_copy *copy)
{
    const struct berth_copy *current = copy->runtime->current;
    return copy->moves && current != NULL && current->device == copy->device;
}

void berth_device_fault(struct berth_sched *sched, struct berth_device *device)
{
    uint64_t epoch = atomic_load(&device->worker->epoch);
    if (epoch == device->epoch_seen) {
        return;
    }
    device->epoch_seen = epoch;
    atomic_fetch_add(&device->faults_total, 1);
    device->lost_out = device->gpu ? device->under_way : 0;
    if (device->gpu && device->lost_out == 0) {
        berth_suspects_judge(sched, device);
    }
}

void berth_device_ail(struct berth_device *device, uint64_t now_ns)
{
    device->faults++;
    if (device->faults > 1) { /* one is no illness */
        device->t_well_ns = now_ns + berth_device_pause_ns(device->faults - 2);
    }
}

void berth_device_worked(struct berth_device *device)
{
    device->faults = 0;
    device->t_well_ns = 0;
}

uint64_t berth_device_pause_ns(uint32_t in_row)
{
    return PAUSE_NS << (in_row < PAUSE_DOUBLINGS_MAX ? in_row : PAUSE_DOUBLINGS_MAX);
}

bool berth_device_starts(struct berth_device *device)
{
    bool starts = atomic_load(&device->worker->condition) != BERTH_WORKER_READY;
    if (starts) { /* the loads that follow need not wait for the same process */
        device->epoch_slow = atomic_load(&device->worker->epoch);
    }
    return starts;
}

bool berth_device_is_well(const struct berth_device *device, uint64_t now_ns)
{
    int condition = atomic_load(&device->worker->condition);
    bool is_slow = condition == BERTH_WORKER_STARTING &&
                   device->epoch_slow == atomic_load(&device->worker->epoch);
    return condition != BERTH_WORKER_FAILING && !is_slow && now_ns >= device->t_well_ns;
}

/* NONE: it may be asked. A CPU always may. */
static enum berth_fallback judge(const struct berth_runtime *runtime,
                                 const struct berth_model_spec *spec,
                                 const struct berth_device *device, const char **why)
{
    uint64_t now_ns = runtime->sched->now_ns;
    if (!device->gpu) {
        return BERTH_FALLBACK_NONE;
    }
    if (berth_suspect_kept_off(runtime, spec)) {
        *why = runtime->suspicion;
        return BERTH_FALLBACK_KEPT_OFF;
    }
    if (!berth_device_is_well(device, now_ns)) {
        *why = now_ns < device->t_well_ns ? "its worker process keeps ending"
                                          : "its worker process does not start";
        return BERTH_FALLBACK_UNWELL;
    }
    if (now_ns < runtime->t_gpu_ns ||
        (runtime->gpu_never && runtime->stamp_gpu == spec->files_stamp)) {
        *why = runtime->refusal;
        return BERTH_FALLBACK_REFUSED;
    }
    return BERTH_FALLBACK_NONE;
}

/* Is there a device for it that is no GPU, and may it be used? */
static bool may_fall(const struct berth_copy *copy)
{
    const struct berth_sched *sched = copy->sched;
    bool any = false;
    for (size_t i = 0; i < sched->device_count; i++) {
        const struct berth_device *device = &sched->devices[i];
        any = any || (!device->gpu && berth_worker_suits(device->worker, copy->spec));
    }
    return any && !demands_gpu(copy->spec);
}

/* Its instance groups name the GPU and nothing beside it. */
static bool demands_gpu(const struct berth_model_spec *spec)
{
    return berth_spec_names_kind(spec, BERTH_KIND_GPU) &&
           !berth_spec_names_kind(spec, BERTH_KIND_CPU) &&
           !berth_spec_names_kind(spec, BERTH_KIND_AUTO);
}

/* Told once for each kind of reason, until the GPU takes the model again. */
static void pass(struct berth_copy *copy, struct berth_device *device, enum berth_fallback kind,
                 const char *why)
{
    struct berth_runtime *runtime = copy->runtime;
    copy->passed |= bit_of(copy->sched, device);
    atomic_fetch_add(&device->fallbacks_total, 1);
    if (runtime->fallback != kind) {
        berth_log_warn("sched", 0,
                       "the GPU cannot take it, so the CPU does model=%s version=%" PRIu64
                       " device=%s reason=%s",
                       runtime->model->name, runtime->model->version, device->worker->device, why);
    }
    runtime->fallback = kind;
    snprintf(runtime->fallback_why, sizeof(runtime->fallback_why), "%s", why);
}

static uint64_t bit_of(const struct berth_sched *sched, const struct berth_device *device)
{
    return UINT64_C(1) << (device - sched->devices);
}

static uint64_t room_of(const struct berth_residency *ledger)
{
    if (ledger->bytes_max == 0) {
        return UINT64_MAX; /* no limit */
    }
    return ledger->bytes_used < ledger->bytes_max ? ledger->bytes_max - ledger->bytes_used : 0;
}
