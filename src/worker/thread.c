/* thread.c - the worker whose work is done by threads of this process.
 *
 * Run threads take RUN and STEP messages in the order they were sent; loader threads take DESCRIBE,
 * LOAD and UNLOAD. While anything is served, or was in the last seconds, loads go to threads at
 * SCHED_IDLE, so that a load gets only what serving leaves over; on a worker that serves nothing
 * they go to threads of the normal class, since else every other busy process of the machine would
 * hold up a load that is in nobody's way (a thread cannot leave SCHED_IDLE again without privilege,
 * so there are two sets). One mutex guards the lists and the table of loaded models; it is never
 * held while an engine works. A loaded model cannot vanish under a run: the controller sends UNLOAD
 * only when nothing of that model is under way.
 *
 * Rejected: one list for both kinds (a load would take a run thread), and a lock-free list (the
 * mutex costs 40 ns, the wake-up of a sleeping thread a hundred times that).
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "worker/worker.h"

#define TABLE_COUNT 256 /* a power of two */
#define CALM_NS (2 * BERTH_NS_PER_S) /* served nothing for so long: loads may go at full speed */

struct entry {
    struct entry *next;
    uint64_t load_id;
    struct berth_loaded *loaded; /* owned */
};

struct lane { /* one list of messages and the threads that take them */
    struct thread_worker *worker;
    struct berth_link items;      /* guarded by mu */
    pthread_cond_t filled;
    uint32_t sleepers;            /* guarded by mu */
    bool idle_class;
    pthread_t *threads;
    uint32_t thread_count;
};

struct thread_worker {
    struct berth_worker base;
    struct berth_slabs *slabs;
    const struct berth_engine_ops *(*engine_find)(const char *name);
    pthread_mutex_t mu;
    struct entry *table[TABLE_COUNT]; /* guarded by mu */
    bool stopping;                    /* guarded by mu */
    size_t runs_under_way;            /* guarded by mu */
    uint64_t t_served_ns;             /* guarded by mu; end of the last run; 0: none yet */
    struct lane runs;
    struct lane loads;                /* at SCHED_IDLE */
    struct lane loads_calm;           /* while nothing is served */
};

static void send(struct berth_worker *base, struct berth_worker_msg *msg);
static struct lane *load_lane(struct thread_worker *worker, uint64_t now_ns);
static void destroy(struct berth_worker *base);
static enum berth_code lane_start(struct lane *lane, uint32_t count, struct berth_err *err);
static void lane_finish(struct lane *lane);
static void *lane_main(void *argument);
static void note_served(struct thread_worker *worker, uint64_t now_ns);
static struct berth_worker_msg *lane_take(struct lane *lane);
static void handle(struct thread_worker *worker, struct berth_worker_msg *msg);
static void handle_load(struct thread_worker *worker, struct berth_worker_msg *msg);
static struct berth_loaded *table_find(struct thread_worker *worker, uint64_t load_id);
static struct berth_loaded *table_remove(struct thread_worker *worker, uint64_t load_id);

static const struct berth_worker_ops thread_ops = {
    .name = "thread",
    .send = send,
    .destroy = destroy,
};

enum berth_code berth_worker_thread_create(const struct berth_worker_options *options,
                                           struct berth_worker **out, struct berth_err *err)
{
    struct thread_worker *worker = berth_alloc(sizeof(*worker));
    if (worker == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    worker->base.ops = &thread_ops;
    worker->base.device = options->device;
    worker->base.parallel_max = options->run_threads == 0 ? 1 : options->run_threads;
    worker->base.bytes_max = options->bytes_max;
    worker->slabs = options->slabs;
    worker->engine_find = options->engine_find != NULL ? options->engine_find : berth_engine_find;
    worker->runs.worker = worker;
    worker->loads.worker = worker;
    worker->loads.idle_class = true;
    worker->loads_calm.worker = worker;
    pthread_mutex_init(&worker->mu, NULL);
    pthread_cond_init(&worker->runs.filled, NULL);
    pthread_cond_init(&worker->loads.filled, NULL);
    pthread_cond_init(&worker->loads_calm.filled, NULL);
    berth_list_init(&worker->runs.items);
    berth_list_init(&worker->loads.items);
    berth_list_init(&worker->loads_calm.items);
    uint32_t load_threads = options->load_threads == 0 ? 1 : options->load_threads;
    enum berth_code code = lane_start(&worker->runs, worker->base.parallel_max, err);
    if (code == BERTH_OK) {
        code = lane_start(&worker->loads, load_threads, err);
    }
    if (code == BERTH_OK) {
        code = lane_start(&worker->loads_calm, load_threads, err);
    }
    if (code != BERTH_OK) {
        destroy(&worker->base);
        return code;
    }
    *out = &worker->base;
    return BERTH_OK;
}

static void send(struct berth_worker *base, struct berth_worker_msg *msg)
{
    struct thread_worker *worker = BERTH_CONTAINER_OF(base, struct thread_worker, base);
    bool runs = msg->kind == BERTH_WORKER_RUN || msg->kind == BERTH_WORKER_STEP;
    uint64_t now_ns = runs ? 0 : berth_clock_now_ns();
    pthread_mutex_lock(&worker->mu);
    struct lane *lane = runs ? &worker->runs : load_lane(worker, now_ns);
    worker->runs_under_way += runs;
    berth_list_append(&lane->items, &msg->post.link);
    bool wake = lane->sleepers > 0;
    pthread_mutex_unlock(&worker->mu);
    if (wake) {
        pthread_cond_signal(&lane->filled);
    }
}

/* mu is held. */
static struct lane *load_lane(struct thread_worker *worker, uint64_t now_ns)
{
    bool calm = worker->runs_under_way == 0 &&
                (worker->t_served_ns == 0 || now_ns > worker->t_served_ns + CALM_NS);
    return calm ? &worker->loads_calm : &worker->loads;
}

/* Threads go on until their list is empty, so nothing that was sent is lost. */
static void destroy(struct berth_worker *base)
{
    struct thread_worker *worker = BERTH_CONTAINER_OF(base, struct thread_worker, base);
    pthread_mutex_lock(&worker->mu);
    worker->stopping = true;
    pthread_mutex_unlock(&worker->mu);
    lane_finish(&worker->runs);
    lane_finish(&worker->loads);
    lane_finish(&worker->loads_calm);
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        while (worker->table[i] != NULL) {
            berth_loaded_destroy(table_remove(worker, worker->table[i]->load_id));
        }
    }
    pthread_cond_destroy(&worker->runs.filled);
    pthread_cond_destroy(&worker->loads.filled);
    pthread_cond_destroy(&worker->loads_calm.filled);
    pthread_mutex_destroy(&worker->mu);
    berth_free(worker);
}

static enum berth_code lane_start(struct lane *lane, uint32_t count, struct berth_err *err)
{
    lane->threads = berth_alloc(count * sizeof(*lane->threads));
    if (lane->threads == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    for (; lane->thread_count < count; lane->thread_count++) {
        pthread_t *thread = &lane->threads[lane->thread_count];
        if (pthread_create(thread, NULL, lane_main, lane) != 0) {
            return berth_fail(err, BERTH_UNAVAILABLE, "cannot start a worker thread");
        }
        char name[16];
        snprintf(name, sizeof(name), "%s-%u", lane == &lane->worker->runs ? "run" : "load",
                 lane->thread_count % 1000);
        pthread_setname_np(*thread, name);
    }
    return BERTH_OK;
}

static void lane_finish(struct lane *lane)
{
    pthread_cond_broadcast(&lane->filled);
    for (uint32_t i = 0; i < lane->thread_count; i++) {
        pthread_join(lane->threads[i], NULL);
    }
    berth_free(lane->threads);
}

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    if (lane->idle_class) {
        struct sched_param none = {0};
        if (pthread_setschedparam(pthread_self(), SCHED_IDLE, &none) != 0) {
            berth_log_warn("worker", 0, "no idle scheduling class: loads compete with serving");
        }
    }
    struct berth_worker_msg *msg;
    clockid_t clock = 0;
    (void)pthread_getcpuclockid(pthread_self(), &clock);
    while ((msg = lane_take(lane)) != NULL) {
        atomic_store_explicit(&msg->clock, clock, memory_order_relaxed);
        msg->t_started_ns = berth_clock_now_ns();
        handle(lane->worker, msg);
        msg->t_ended_ns = berth_clock_now_ns();
        if (lane == &lane->worker->runs) {
            note_served(lane->worker, msg->t_ended_ns);
        }
        berth_queue_post(lane->worker->base.replies, &msg->post.link);
    }
    return NULL;
}

static void note_served(struct thread_worker *worker, uint64_t now_ns)
{
    pthread_mutex_lock(&worker->mu);
    worker->runs_under_way--;
    worker->t_served_ns = now_ns;
    pthread_mutex_unlock(&worker->mu);
}

/* NULL: the worker stops and nothing is left to do. */
static struct berth_worker_msg *lane_take(struct lane *lane)
{
    struct thread_worker *worker = lane->worker;
    pthread_mutex_lock(&worker->mu);
    while (berth_list_empty(&lane->items) && !worker->stopping) {
        lane->sleepers++;
        pthread_cond_wait(&lane->filled, &worker->mu);
        lane->sleepers--;
    }
    struct berth_link *link = berth_list_pop(&lane->items);
    pthread_mutex_unlock(&worker->mu);
    return link == NULL ? NULL : BERTH_CONTAINER_OF(link, struct berth_worker_msg, post.link);
}

static void handle(struct thread_worker *worker, struct berth_worker_msg *msg)
{
    struct berth_loaded *loaded = NULL;
    switch (msg->kind) {
    case BERTH_WORKER_DESCRIBE:
        msg->err.code = berth_loaded_describe(worker->engine_find(msg->spec->engine), msg->spec,
                                              &msg->err);
        break;
    case BERTH_WORKER_LOAD:
        handle_load(worker, msg);
        break;
    case BERTH_WORKER_UNLOAD:
        pthread_mutex_lock(&worker->mu);
        loaded = table_remove(worker, msg->load_id);
        pthread_mutex_unlock(&worker->mu);
        berth_loaded_destroy(loaded);
        msg->bytes_used = 0;
        break;
    case BERTH_WORKER_RUN:
    case BERTH_WORKER_STEP:
        pthread_mutex_lock(&worker->mu);
        loaded = table_find(worker, msg->load_id);
        pthread_mutex_unlock(&worker->mu);
        if (loaded == NULL) {
            (void)berth_fail(&msg->err, BERTH_INTERNAL, "the model is not loaded here");
        } else {
            berth_loaded_run(loaded, msg);
        }
        break;
    }
}

static void handle_load(struct thread_worker *worker, struct berth_worker_msg *msg)
{
    struct entry *entry = berth_alloc(sizeof(*entry));
    if (entry == NULL) {
        (void)berth_fail(&msg->err, BERTH_UNAVAILABLE, "out of memory");
        return;
    }
    entry->load_id = msg->load_id;
    msg->err.code = berth_loaded_create(worker->engine_find(msg->spec->engine), worker->slabs, msg,
                                        &entry->loaded, &msg->err);
    if (msg->err.code != BERTH_OK) {
        berth_free(entry);
        return;
    }
    pthread_mutex_lock(&worker->mu);
    struct entry **bucket = &worker->table[msg->load_id % TABLE_COUNT];
    entry->next = *bucket;
    *bucket = entry;
    pthread_mutex_unlock(&worker->mu);
}

/* Both are called with mu held. */
static struct berth_loaded *table_find(struct thread_worker *worker, uint64_t load_id)
{
    for (struct entry *at = worker->table[load_id % TABLE_COUNT]; at != NULL; at = at->next) {
        if (at->load_id == load_id) {
            return at->loaded;
        }
    }
    return NULL;
}

static struct berth_loaded *table_remove(struct thread_worker *worker, uint64_t load_id)
{
    struct entry **at = &worker->table[load_id % TABLE_COUNT];
    while (*at != NULL && (*at)->load_id != load_id) {
        at = &(*at)->next;
    }
    struct entry *entry = *at;
    if (entry == NULL) {
        return NULL;
    }
    struct berth_loaded *loaded = entry->loaded;
    *at = entry->next;
    berth_free(entry);
    return loaded;
}
