/* cpu_pool.c - the workers of a CPU device: one loop at a time, spread over a few threads.
 *
 * An encoder layer is some fifteen loops of a few hundred microseconds, one after the other, so a
 * worker that has run out of tasks looks out for the next loop for a while (SPIN) before it sleeps.
 * A worker enters a loop under the mutex, and only while the loop is open: one that is late (the
 * machine had no core for it) misses the loop, and nobody waits for it.
 */
#include "engine/parakeet/cpu_device.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/mem.h"

#define SPIN 2000 /* looks, of some 20 ns */
#define ALIGNMENT 64

struct worker {
    struct berth_parakeet_pool *pool;
    float *scratch;
    void *scratch_memory;
    pthread_t thread; /* not of the first */
};

struct berth_parakeet_pool {
    pthread_mutex_t mu;
    pthread_cond_t opened; /* a loop, or the end */
    pthread_cond_t left;   /* the last worker inside has left */
    /* guarded by mu; they stay as they are while the loop is open */
    berth_parakeet_task *task;
    const void *context;
    uint64_t count;
    bool open;
    bool ending;
    uint32_t asleep;
    /* changed under mu, looked at without it */
    _Atomic uint32_t round;
    _Atomic uint32_t inside;
    _Atomic uint64_t next;
    uint32_t worker_count;
    uint32_t started; /* threads */
    struct worker workers[];
};

static enum berth_code give_scratch(struct worker *worker, struct berth_err *err);
static void *worker_main(void *argument);
static bool enter(struct berth_parakeet_pool *pool, uint32_t *seen);
static void take_tasks(struct worker *worker);

static inline void breathe(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

enum berth_code berth_parakeet_pool_create(uint32_t threads, struct berth_parakeet_pool **out,
                                           struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_parakeet_pool *pool = NULL;
    sigset_t all;
    sigset_t before;
    if (threads == 0 || threads > BERTH_PARAKEET_THREADS_MAX) {
        return berth_fail(err, BERTH_INVALID, "%u threads; 1 to %d are possible", threads,
                          BERTH_PARAKEET_THREADS_MAX);
    }
    pool = berth_alloc(sizeof(*pool) + threads * sizeof(pool->workers[0]));
    if (pool == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %u threads", threads);
    }
    pthread_mutex_init(&pool->mu, NULL);
    pthread_cond_init(&pool->opened, NULL);
    pthread_cond_init(&pool->left, NULL);
    pool->worker_count = threads;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < threads && code == BERTH_OK; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        code = give_scratch(worker, err);
        if (code == BERTH_OK && i > 0) {
            if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
                code = berth_fail(err, BERTH_UNAVAILABLE, "cannot start thread %u of %u", i + 1,
                                  threads);
                break;
            }
            pool->started++;
            char name[16];
            snprintf(name, sizeof(name), "math-%u", i % 1000);
            pthread_setname_np(worker->thread, name);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != BERTH_OK) {
        berth_parakeet_pool_destroy(pool);
        return code;
    }
    *out = pool;
    return BERTH_OK;
}

void berth_parakeet_pool_destroy(struct berth_parakeet_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mu);
    pool->ending = true;
    atomic_fetch_add(&pool->round, 1);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->mu);
    for (uint32_t i = 0; i < pool->started; i++) {
        pthread_join(pool->workers[1 + i].thread, NULL);
    }
    for (uint32_t i = 0; i < pool->worker_count; i++) {
        berth_free(pool->workers[i].scratch_memory);
    }
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->opened);
    pthread_mutex_destroy(&pool->mu);
    berth_free(pool);
}

void berth_parakeet_pool_run(struct berth_parakeet_pool *pool, uint64_t count,
                             berth_parakeet_task *task, const void *context)
{
    if (count <= 1 || pool->started == 0) {
        for (uint64_t i = 0; i < count; i++) {
            task(context, i, pool->workers[0].scratch);
        }
        return;
    }
    pthread_mutex_lock(&pool->mu);
    pool->task = task;
    pool->context = context;
    pool->count = count;
    pool->open = true;
    atomic_store(&pool->next, 0);
    atomic_fetch_add(&pool->round, 1);
    if (pool->asleep > 0) {
        pthread_cond_broadcast(&pool->opened);
    }
    pthread_mutex_unlock(&pool->mu);
    take_tasks(&pool->workers[0]);
    for (uint32_t i = 0; i < SPIN && atomic_load(&pool->inside) > 0; i++) {
        breathe();
    }
    pthread_mutex_lock(&pool->mu);
    pool->open = false;
    while (atomic_load(&pool->inside) > 0) {
        pthread_cond_wait(&pool->left, &pool->mu);
    }
    pthread_mutex_unlock(&pool->mu);
}

static enum berth_code give_scratch(struct worker *worker, struct berth_err *err)
{
    size_t bytes = BERTH_PARAKEET_SCRATCH * sizeof(float);
    worker->scratch_memory = berth_alloc(bytes + ALIGNMENT);
    if (worker->scratch_memory == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a thread's scratch of %zu bytes",
                          bytes);
    }
    uintptr_t address = (uintptr_t)worker->scratch_memory;
    uintptr_t past = address % ALIGNMENT;
    worker->scratch = (float *)(void *)((char *)worker->scratch_memory +
                                        (past == 0 ? 0 : ALIGNMENT - past));
    return BERTH_OK;
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct berth_parakeet_pool *pool = worker->pool;
    uint32_t seen = 0;
    while (enter(pool, &seen)) {
        take_tasks(worker);
        pthread_mutex_lock(&pool->mu);
        if (atomic_fetch_sub(&pool->inside, 1) == 1) {
            pthread_cond_signal(&pool->left);
        }
        pthread_mutex_unlock(&pool->mu);
    }
    return NULL;
}

/* Waits for an open loop; false: the end. */
static bool enter(struct berth_parakeet_pool *pool, uint32_t *seen)
{
    for (;;) {
        for (uint32_t i = 0; i < SPIN && atomic_load(&pool->round) == *seen; i++) {
            breathe();
        }
        pthread_mutex_lock(&pool->mu);
        while (!pool->ending && atomic_load(&pool->round) == *seen) {
            pool->asleep++;
            pthread_cond_wait(&pool->opened, &pool->mu);
            pool->asleep--;
        }
        *seen = atomic_load(&pool->round);
        bool ending = pool->ending;
        bool entered = pool->open && !ending;
        if (entered) {
            atomic_fetch_add(&pool->inside, 1);
        }
        pthread_mutex_unlock(&pool->mu);
        if (ending || entered) {
            return entered;
        }
    }
}

static void take_tasks(struct worker *worker)
{
    struct berth_parakeet_pool *pool = worker->pool;
    for (;;) {
        uint64_t index = atomic_fetch_add(&pool->next, 1);
        if (index >= pool->count) {
            return;
        }
        pool->task(pool->context, index, worker->scratch);
    }
}
