/* prepare.c - the thread that chooses products' algorithms behind the first run, and then lets the
 * instances make runs and graphs of further buckets.
 *
 * Choices first, of all buckets: they are most of what a bucket's first use costs, and belong to
 * the process. Neither a timing nor a capture reads a model's memory, so weights may come and go
 * beside it. The thread stays out of the way by time (it waits for a pause) and by priority (the
 * back end's), because a choice timed beside a run is a worse one, and is kept for the life of the
 * process.
 */
#include "engine/parakeet/prepare.h"

#include <inttypes.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/parakeet/encoder.h"

#define PAUSE_NS (20 * BERTH_NS_PER_MS)
#define LOOK_NS (5 * BERTH_NS_PER_MS)

/* Of the process, which has one device. */
static _Atomic uint32_t step_count; /* under way */
static _Atomic uint64_t t_step_end_ns;
static atomic_flag preparing = ATOMIC_FLAG_INIT;

static void *thread_main(void *subject);
static bool prepare_shape(struct berth_parakeet_preparer *preparer,
                          struct berth_parakeet_device *device, uint32_t index,
                          uint64_t *spent_ns);
static void go_ahead(struct berth_parakeet_preparer *preparer);
static bool turn_take(const struct berth_parakeet_preparer *preparer);
static void turn_end(void);
static void look_away(void);
static void tell(const struct berth_parakeet_preparer *preparer);

void berth_parakeet_preparer_start(struct berth_parakeet_preparer *preparer)
{
    if (preparer->ops == NULL || preparer->ops->prepare == NULL ||
        atomic_exchange(&preparer->started, true)) {
        return;
    }
    preparer->running = pthread_create(&preparer->thread, NULL, thread_main, preparer) == 0;
}

void berth_parakeet_preparer_stop(struct berth_parakeet_preparer *preparer)
{
    atomic_store(&preparer->stopping, true);
    if (preparer->running) {
        (void)pthread_join(preparer->thread, NULL);
        preparer->running = false;
    }
}

void berth_parakeet_step_begin(void)
{
    atomic_fetch_add(&step_count, 1);
}

void berth_parakeet_step_end(void)
{
    atomic_store(&t_step_end_ns, berth_clock_now_ns());
    atomic_fetch_sub(&step_count, 1);
}

static void *thread_main(void *subject)
{
    struct berth_parakeet_preparer *preparer = subject;
    const struct berth_parakeet_ops *ops = preparer->ops;
    struct berth_parakeet_device *device = NULL;
    struct berth_err err = {.code = BERTH_OK};
    uint64_t spent_ns = 0;
    if (!turn_take(preparer)) {
        return NULL;
    }
    enum berth_code code = ops->open(preparer->device_name, 1, &device, &err);
    turn_end();
    if (code != BERTH_OK) {
        berth_log_err(BERTH_LOG_DEBUG, "parakeet", 0, &err);
        return NULL;
    }
    if (ops->kept_bytes != NULL) {
        atomic_store(&preparer->bytes, ops->kept_bytes(device));
        tell(preparer);
    }
    for (uint32_t i = 0; i < preparer->shape_count; i++) {
        if (!prepare_shape(preparer, device, i, &spent_ns)) {
            break;
        }
    }
    ops->close(device);
    atomic_store(&preparer->bytes, 0);
    berth_log_info("parakeet", 0,
                   "prepared model=%s buckets=%" PRIu32 " of=%" PRIu32 " ms=%" PRIu64,
                   preparer->model_name, atomic_load(&preparer->prepared), preparer->shape_count,
                   spent_ns / BERTH_NS_PER_MS);
    go_ahead(preparer);
    return NULL;
}

/* False: it is to stop. */
static bool prepare_shape(struct berth_parakeet_preparer *preparer,
                          struct berth_parakeet_device *device, uint32_t index,
                          uint64_t *spent_ns)
{
    struct berth_parakeet_linear_call calls[BERTH_PARAKEET_PRODUCTS_MAX];
    uint32_t count = berth_parakeet_products(preparer->config, preparer->weights,
                                             &preparer->shapes[index], calls);
    bool whole = true;
    for (uint32_t i = 0; i < count; i++) {
        if (!turn_take(preparer)) {
            return false;
        }
        uint64_t t_begin_ns = berth_clock_now_ns();
        whole = preparer->ops->prepare(device, &calls[i]) && whole;
        *spent_ns += berth_clock_now_ns() - t_begin_ns;
        turn_end();
    }
    preparer->whole[index] = whole;
    if (whole) {
        atomic_fetch_add(&preparer->prepared, 1);
    }
    return true;
}

/* One shape in a pause: a step that comes meanwhile waits for no more than that. */
static void go_ahead(struct berth_parakeet_preparer *preparer)
{
    enum berth_parakeet_ahead end = BERTH_PARAKEET_AHEAD_ON;
    for (uint32_t i = 0; preparer->ahead != NULL && i < preparer->shape_count &&
                         end != BERTH_PARAKEET_AHEAD_FULL;) {
        if (preparer->whole[i]) {
            if (!turn_take(preparer)) {
                return;
            }
            end = preparer->ahead(preparer->context, &preparer->shapes[i]);
            turn_end();
            tell(preparer);
        }
        if (end == BERTH_PARAKEET_AHEAD_BUSY) { /* it may stay so for long without a step */
            look_away();
        }
        i += end == BERTH_PARAKEET_AHEAD_BUSY ? 0 : 1;
    }
}

/* Waits until nobody runs anything and nobody else prepares. False: it is to stop. */
static bool turn_take(const struct berth_parakeet_preparer *preparer)
{
    while (!atomic_load(&preparer->stopping)) {
        uint64_t t_end_ns = atomic_load(&t_step_end_ns);
        if (atomic_load(&step_count) == 0 && berth_clock_now_ns() - t_end_ns >= PAUSE_NS &&
            !atomic_flag_test_and_set(&preparing)) {
            return true;
        }
        look_away();
    }
    return false;
}

static void turn_end(void)
{
    atomic_flag_clear(&preparing);
}

static void look_away(void)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    (void)nanosleep(&look, NULL);
}

/* E11. Not in a turn: nobody waits for it. */
static void tell(const struct berth_parakeet_preparer *preparer)
{
    if (preparer->watch != NULL) {
        preparer->watch->grown(preparer->watch);
    }
}
