/* worker_rig.h - a worker under the controller's thread, with the null engine, and clients that ask
 * it: what the tests of the thread and of the process worker share. Real threads, real time.
 */
#ifndef BERTH_WORKER_RIG_H
#define BERTH_WORKER_RIG_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "sched/sched.h"

struct stand {
    struct berth_slabs *slabs;
    struct berth_catalog *catalog;
    struct berth_worker *worker; /* the test's own kind */
    struct berth_sched *sched;
    size_t bytes_at_start;
    size_t fds_at_start;
};

/* One client thread's replies. */
struct client {
    struct berth_queue queue;
    size_t finals, parts, ok;
    size_t matches; /* parts that echoed their request's input */
    struct berth_err last;
};

static inline size_t count_fds(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

/* All but the worker, which comes next, and the controller, which comes last. */
static inline void stand_begin(struct stand *stand)
{
    struct berth_err err = {0};
    struct berth_slabs_options slabs = {.bytes_budget = 1 << 26, .bytes_pool_max = 1 << 20};
    *stand = (struct stand){.bytes_at_start = berth_mem_bytes_live(),
                            .fds_at_start = count_fds()};
    assert_int_equal(berth_slabs_create(&slabs, &stand->slabs, &err), BERTH_OK);
    assert_int_equal(berth_catalog_create(&stand->catalog, &err), BERTH_OK);
}

static inline void stand_thread_worker(struct stand *stand, uint64_t bytes_max)
{
    struct berth_err err = {0};
    struct berth_worker_options options = {.device = "cpu:0", .run_threads = 2, .load_threads = 2,
                                           .bytes_max = bytes_max, .slabs = stand->slabs};
    assert_int_equal(berth_worker_thread_create(&options, &stand->worker, &err), BERTH_OK);
}

static inline void stand_start(struct stand *stand)
{
    struct berth_err err = {0};
    struct berth_sched_options options = {
        .catalog = stand->catalog,
        .workers = &stand->worker,
        .worker_count = 1,
        .mode = BERTH_CONTROL_DEMAND,
        .queue_max = 10000,
        .model_queue_max = 10000,
        .request_timeout_ns = 120 * BERTH_NS_PER_S,
        .cold_wait_ns = 120 * BERTH_NS_PER_S,
        .load_backoff_ns = 1,
        .loads_max = 2,
    };
    assert_int_equal(berth_sched_create(&options, &stand->sched, &err), BERTH_OK);
    assert_int_equal(berth_sched_start(stand->sched, &err), BERTH_OK);
}

/* Nothing is left: no byte, no descriptor. */
static inline void stand_close(struct stand *stand)
{
    struct berth_slabs_stats stats;
    berth_sched_destroy(stand->sched);
    berth_worker_destroy(stand->worker);
    berth_catalog_destroy(stand->catalog);
    berth_slabs_stats(stand->slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    berth_slabs_destroy(stand->slabs);
    assert_int_equal(berth_mem_bytes_live(), stand->bytes_at_start);
    assert_int_equal(count_fds(), stand->fds_at_start);
}

/* Takes spec; the catalogue holds the model as long as the test needs it. */
static inline struct berth_model *stand_put(struct stand *stand, struct berth_model_spec *spec)
{
    struct berth_err err = {0};
    struct berth_model *model = NULL;
    assert_int_equal(berth_catalog_put(stand->catalog, spec, &model, &err), BERTH_OK);
    atomic_store(&model->listed, true);
    berth_model_release(model);
    return model;
}

static inline void wait_until_running(struct stand *stand, uint64_t count)
{
    struct berth_sched_stats stats = {0};
    berth_sched_stats(stand->sched, &stats);
    while (stats.running != count) {
        usleep(1000);
        berth_sched_stats(stand->sched, &stats);
    }
}

static inline void on_part(struct berth_post *post)
{
    struct berth_part *part = BERTH_CONTAINER_OF(post, struct berth_part, post);
    struct client *client = part->request->owner;
    const struct berth_tensor *output = berth_part_find(part, "OUTPUT0");
    client->parts++;
    if (output != NULL) {
        const struct berth_tensor *input = &part->request->inputs[0];
        client->matches += output->range.length == input->range.length &&
                           memcmp(berth_slabs_pointer(part->request->slabs, &output->range),
                                  berth_slabs_pointer(part->request->slabs, &input->range),
                                  input->range.length) == 0;
    }
    if (part->final) {
        client->finals++;
        client->ok += part->err.code == BERTH_OK;
        client->last = part->err;
    }
    berth_part_destroy(part);
}

static inline void client_open(struct client *client)
{
    struct berth_err err = {0};
    *client = (struct client){0};
    assert_int_equal(berth_queue_init(&client->queue, 0, &err), BERTH_OK);
}

static inline void client_take(struct client *client)
{
    struct berth_link posts;
    struct berth_link *link;
    berth_list_init(&posts);
    (void)berth_queue_take(&client->queue, &posts);
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
}

static inline void client_wait(struct client *client, size_t finals)
{
    client_take(client);
    while (client->finals < finals) {
        berth_queue_wait(&client->queue, 0);
        client_take(client);
    }
    assert_int_equal(client->finals, finals);
}

/* INPUT0 of one row: value, value + 1, ... */
static inline struct berth_request *request_make(struct stand *stand, struct client *client,
                                                 struct berth_model *model, size_t floats,
                                                 float value)
{
    struct berth_err err = {0};
    struct berth_request *request = berth_request_create(stand->slabs, 1 << 16);
    assert_non_null(request);
    assert_int_equal(berth_slabs_take(stand->slabs, floats * sizeof(float), &request->body, &err),
                     BERTH_OK);
    float *values = berth_slabs_pointer(stand->slabs, &request->body);
    for (size_t i = 0; i < floats; i++) {
        values[i] = value + (float)i;
    }
    request->inputs = berth_arena_alloc(&request->arena, sizeof(*request->inputs));
    assert_non_null(request->inputs);
    request->inputs[0] = (struct berth_tensor){.name = "INPUT0", .dtype = BERTH_DTYPE_FP32,
                                               .rank = 2, .dims = {1, (int64_t)floats},
                                               .range = request->body};
    request->input_count = 1;
    request->model = model;
    request->reply = &client->queue;
    request->on_part = on_part;
    request->owner = client;
    return request;
}

#endif
