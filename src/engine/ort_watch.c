/* ort_watch.c - see ort_watch.h.
 *
 * ONNX Runtime looks at a run's terminate flag between operators, and somebody has to set it while
 * the run's own thread is busy. One thread that looks at all runs 50 times a second costs nothing
 * measurable and needs no message from whoever cancels; only a run that starts after a pause has to
 * wake it. A run shorter than a period is never looked at.
 */
#include "engine/ort_watch.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

#define PERIOD_NS (20 * BERTH_NS_PER_MS)

static struct {
    pthread_mutex_t mu;
    pthread_cond_t wake;
    struct berth_link runs; /* guarded by mu */
    bool started_lately;    /* guarded by mu; a run began since the last look */
    bool sleeps;            /* guarded by mu; without a timer */
    bool stopping;          /* guarded by mu */
    const OrtApi *api;
    pthread_t thread;
} watcher = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void *watcher_main(void *unused);
static void look(void);

enum berth_code berth_ort_watch_start(const OrtApi *api, struct berth_err *err)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&watcher.wake, &attributes);
    pthread_condattr_destroy(&attributes);
    berth_list_init(&watcher.runs);
    watcher.api = api;
    watcher.stopping = false;
    watcher.sleeps = false;
    watcher.started_lately = false;
    if (pthread_create(&watcher.thread, NULL, watcher_main, NULL) != 0) {
        pthread_cond_destroy(&watcher.wake);
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot start the thread that ends runs");
    }
    return BERTH_OK;
}

void berth_ort_watch_finish(void)
{
    pthread_mutex_lock(&watcher.mu);
    watcher.stopping = true;
    pthread_cond_signal(&watcher.wake);
    pthread_mutex_unlock(&watcher.mu);
    pthread_join(watcher.thread, NULL);
    pthread_cond_destroy(&watcher.wake);
}

void berth_ort_watch_begin(struct berth_ort_watch *watch)
{
    watch->ended = false;
    pthread_mutex_lock(&watcher.mu);
    berth_list_append(&watcher.runs, &watch->link);
    watcher.started_lately = true;
    if (watcher.sleeps) {
        watcher.sleeps = false;
        pthread_cond_signal(&watcher.wake);
    }
    pthread_mutex_unlock(&watcher.mu);
}

void berth_ort_watch_end(struct berth_ort_watch *watch)
{
    pthread_mutex_lock(&watcher.mu);
    berth_list_remove(&watch->link);
    pthread_mutex_unlock(&watcher.mu);
}

bool berth_ort_stop_due(const struct berth_ort_stop *stop)
{
    for (size_t i = 0; i < stop->flag_count; i++) {
        if (!atomic_load_explicit(stop->flags[i], memory_order_relaxed)) {
            return false;
        }
    }
    return stop->flag_count > 0;
}

static void *watcher_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&watcher.mu);
    while (!watcher.stopping) {
        if (berth_list_empty(&watcher.runs) && !watcher.started_lately) {
            watcher.sleeps = true;
            pthread_cond_wait(&watcher.wake, &watcher.mu);
            continue;
        }
        watcher.started_lately = false;
        uint64_t t_next_ns = berth_clock_now_ns() + PERIOD_NS;
        struct timespec until = {.tv_sec = (time_t)(t_next_ns / BERTH_NS_PER_S),
                                 .tv_nsec = (long)(t_next_ns % BERTH_NS_PER_S)};
        while (!watcher.stopping &&
               pthread_cond_timedwait(&watcher.wake, &watcher.mu, &until) != ETIMEDOUT) {
        }
        look();
    }
    pthread_mutex_unlock(&watcher.mu);
    return NULL;
}

/* Called with mu held; what it calls only sets a flag. */
static void look(void)
{
    BERTH_LIST_EACH(link, &watcher.runs)
    {
        struct berth_ort_watch *watch = BERTH_CONTAINER_OF(link, struct berth_ort_watch, link);
        if (!watch->ended && berth_ort_stop_due(watch->stop)) {
            watch->ended = true;
            OrtStatus *status = watcher.api->RunOptionsSetTerminate(watch->options);
            if (status != NULL) {
                watcher.api->ReleaseStatus(status);
            }
        }
    }
}
