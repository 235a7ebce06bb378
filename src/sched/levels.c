/* levels.c - the queue of one copy: priority levels and Triton's queue policy (S5, S6).
 *
 * A level keeps the tickets in order of arrival; those that outstayed their queue timeout with
 * action DELAY go to the level's second list and are served after the first. Tickets carry their
 * links, so queueing takes no memory.
 */
#include "sched/batcher.h"

#include "sched/controller.h"

static const struct berth_queue_policy *policy_of(const struct berth_model_spec *spec,
                                                  uint32_t level);
static uint32_t level_of(const struct berth_batcher *batcher, uint64_t priority);
static uint64_t timeout_of(const struct berth_queue_policy *policy,
                           const struct berth_ticket *ticket);

enum berth_code berth_batcher_create(const struct berth_model_spec *spec,
                                     struct berth_batcher **out, struct berth_err *err)
{
    size_t level_count = 1;
    if (spec->batching == BERTH_BATCHING_DYNAMIC && spec->dynamic.priority_levels > 0) {
        level_count = spec->dynamic.priority_levels > BERTH_PRIORITY_MAX
                          ? BERTH_PRIORITY_MAX
                          : (size_t)spec->dynamic.priority_levels;
    }
    struct berth_batcher *batcher =
        berth_alloc(sizeof(*batcher) + level_count * sizeof(batcher->levels[0]));
    if (batcher == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    batcher->ops = spec->run_mode == BERTH_RUN_STEPS            ? &berth_batcher_steps
                   : spec->batching == BERTH_BATCHING_DYNAMIC ? &berth_batcher_dynamic
                                                              : &berth_batcher_direct;
    batcher->spec = spec;
    berth_list_init(&batcher->brim_link);
    batcher->level_count = level_count;
    for (size_t i = 0; i < level_count; i++) {
        berth_list_init(&batcher->levels[i].active);
        berth_list_init(&batcher->levels[i].delayed);
    }
    *out = batcher;
    return BERTH_OK;
}

void berth_batcher_destroy(struct berth_batcher *batcher)
{
    BERTH_ASSERT(batcher == NULL || batcher->queued == 0);
    if (batcher != NULL) {
        berth_list_remove(&batcher->brim_link);
    }
    berth_free(batcher);
}

enum berth_code berth_batcher_put(struct berth_batcher *batcher, struct berth_ticket *ticket,
                                  struct berth_err *err)
{
    uint32_t index = level_of(batcher, ticket->request->priority);
    struct berth_batcher_level *level = &batcher->levels[index];
    ticket->level = index;
    ticket->delayed = false;
    ticket->t_timeout_ns = 0;
    if (batcher->spec->batching == BERTH_BATCHING_DYNAMIC) {
        const struct berth_queue_policy *policy = policy_of(batcher->spec, index);
        if (policy->count_max > 0 && level->count >= policy->count_max) {
            return berth_batcher_refuse(ticket->runtime->model, level->count, err);
        }
        ticket->t_timeout_ns = timeout_of(policy, ticket);
    }
    berth_list_append(&level->active, &ticket->link);
    level->count++;
    batcher->queued++;
    return BERTH_OK;
}

enum berth_code berth_batcher_refuse(const struct berth_model *model, uint64_t depth,
                                     struct berth_err *err)
{
    (void)berth_fail(err, BERTH_UNAVAILABLE, "Exceeds maximum queue size"); /* S5 */
    if (err != NULL) {
        err->retry_after_ms = berth_retry_ms(depth, atomic_load(&model->service_ns));
    }
    return BERTH_UNAVAILABLE;
}

void berth_batcher_remove(struct berth_batcher *batcher, struct berth_ticket *ticket)
{
    berth_list_remove(&ticket->link);
    batcher->levels[ticket->level].count--;
    batcher->queued--;
    _Atomic bool *full = &ticket->request->model->queue_full;
    if (atomic_load_explicit(full, memory_order_relaxed)) { /* else a line that others read */
        atomic_store_explicit(full, false, memory_order_relaxed);
    }
}

bool berth_batcher_is_full(const struct berth_batcher *batcher)
{
    if (batcher->spec->batching != BERTH_BATCHING_DYNAMIC || batcher->level_count != 1) {
        return false;
    }
    uint64_t count_max = policy_of(batcher->spec, 0)->count_max;
    return count_max > 0 && batcher->levels[0].count >= count_max;
}

bool berth_batcher_timeout(struct berth_batcher *batcher, struct berth_ticket *ticket)
{
    const struct berth_queue_policy *policy = policy_of(batcher->spec, ticket->level);
    ticket->t_timeout_ns = 0;
    if (policy->timeout_action == BERTH_TIMEOUT_REJECT) {
        return true;
    }
    berth_list_remove(&ticket->link); /* S6 */
    ticket->delayed = true;
    berth_list_append(&batcher->levels[ticket->level].delayed, &ticket->link);
    return false;
}

struct berth_ticket *berth_batcher_next(const struct berth_batcher *batcher,
                                        const struct berth_ticket *after)
{
    size_t index = after == NULL ? 0 : after->level;
    bool delayed = after != NULL && after->delayed;
    const struct berth_link *link = after == NULL ? &batcher->levels[0].active : &after->link;
    for (;;) {
        const struct berth_batcher_level *level = &batcher->levels[index];
        const struct berth_link *head = delayed ? &level->delayed : &level->active;
        if (link->next != head) {
            return BERTH_CONTAINER_OF(link->next, struct berth_ticket, link);
        }
        if (!delayed) {
            delayed = true;
            link = &level->delayed;
        } else if (++index < batcher->level_count) {
            delayed = false;
            link = &batcher->levels[index].active;
        } else {
            return NULL;
        }
    }
}

static const struct berth_queue_policy *policy_of(const struct berth_model_spec *spec,
                                                  uint32_t level)
{
    return spec->dynamic.priority_levels > 0 ? &spec->dynamic.policies[level]
                                             : &spec->dynamic.policy_default;
}

/* Levels count from 1; a request that names none, or one too many, has the default. */
static uint32_t level_of(const struct berth_batcher *batcher, uint64_t priority)
{
    if (priority == 0 || priority > batcher->level_count) {
        priority = batcher->spec->dynamic.priority_level_default;
    }
    if (batcher->level_count == 1 || priority == 0) {
        return 0;
    }
    return (uint32_t)(priority > batcher->level_count ? batcher->level_count : priority) - 1;
}

/* As Triton: a request's own timeout may shorten the policy's, never lengthen it. */
static uint64_t timeout_of(const struct berth_queue_policy *policy,
                           const struct berth_ticket *ticket)
{
    if (policy->timeout_us_default == 0 ||
        policy->timeout_us_default > UINT64_MAX / BERTH_NS_PER_US / 2) {
        return 0;
    }
    uint64_t t_ns = ticket->t_queued_ns + policy->timeout_us_default * BERTH_NS_PER_US;
    if (policy->timeout_override && ticket->request->timeout_named &&
        ticket->request->t_deadline_ns < t_ns) {
        t_ns = ticket->request->t_deadline_ns;
    }
    return t_ns;
}
