/* test_thread.c - the thread worker and the controller's thread with the null engine: real threads,
 * real time, nothing asserted about how long anything takes. Run under TSan in the checks. */
#include <pthread.h>
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
    struct berth_worker *worker;
    struct berth_sched *sched;
    size_t bytes_at_start;
};

/* One client thread's replies. */
struct client {
    struct berth_queue queue;
    size_t finals;
    size_t parts;
    size_t ok;
    struct berth_err last;
    bool match; /* the last answer echoed its input */
};

static void stand_open(struct stand *stand, uint64_t bytes_max)
{
    struct berth_err err = {0};
    struct berth_slabs_options slabs = {.bytes_budget = 1 << 26, .bytes_pool_max = 1 << 20};
    *stand = (struct stand){.bytes_at_start = berth_mem_bytes_live()};
    assert_int_equal(berth_slabs_create(&slabs, &stand->slabs, &err), BERTH_OK);
    assert_int_equal(berth_catalog_create(&stand->catalog, &err), BERTH_OK);
    struct berth_worker_options options = {.device = "cpu:0", .run_threads = 2, .load_threads = 2,
                                           .bytes_max = bytes_max, .slabs = stand->slabs};
    assert_int_equal(berth_worker_thread_create(&options, &stand->worker, &err), BERTH_OK);
}

static void stand_start(struct stand *stand)
{
    struct berth_err err = {0};
    struct berth_sched_options options = {
        .catalog = stand->catalog,
        .slabs = stand->slabs,
        .workers = &stand->worker,
        .worker_count = 1,
        .mode = BERTH_CONTROL_DEMAND,
        .queue_max = 10000,
        .model_queue_max = 10000,
        .request_timeout_ns = 60 * BERTH_NS_PER_S,
        .cold_wait_ns = 60 * BERTH_NS_PER_S,
        .load_backoff_ns = BERTH_NS_PER_MS,
        .loads_max = 2,
    };
    assert_int_equal(berth_sched_create(&options, &stand->sched, &err), BERTH_OK);
    assert_int_equal(berth_sched_start(stand->sched, &err), BERTH_OK);
}

static void stand_close(struct stand *stand)
{
    berth_sched_destroy(stand->sched);
    berth_worker_destroy(stand->worker);
    berth_catalog_destroy(stand->catalog);
    struct berth_slabs_stats stats;
    berth_slabs_stats(stand->slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    berth_slabs_destroy(stand->slabs);
    assert_int_equal(berth_mem_bytes_live(), stand->bytes_at_start);
}

static struct berth_model_spec *spec_make(const char *name, const struct berth_key_value *parameters,
                                          size_t parameter_count)
{
    struct berth_model_spec *spec = berth_spec_create();
    assert_non_null(spec);
    spec->name = berth_arena_strdup(&spec->arena, name);
    spec->version = 1;
    spec->engine = "null";
    spec->folder = "";
    spec->folder_version = "";
    spec->task = "";
    spec->batch_size_max = 8;
    if (parameter_count > 0) {
        spec->parameters =
            berth_arena_alloc(&spec->arena, parameter_count * sizeof(*spec->parameters));
        memcpy(spec->parameters, parameters, parameter_count * sizeof(*parameters));
        spec->parameter_count = parameter_count;
    }
    return spec;
}

static struct berth_model *model_put(struct stand *stand, struct berth_model_spec *spec)
{
    struct berth_err err = {0};
    struct berth_model *model = NULL;
    assert_int_equal(berth_catalog_put(stand->catalog, spec, &model, &err), BERTH_OK);
    atomic_store(&model->listed, true);
    berth_model_release(model); /* the catalogue holds it as long as the test needs it */
    return model;
}

static void on_part(struct berth_post *post)
{
    struct berth_part *part = BERTH_CONTAINER_OF(post, struct berth_part, post);
    struct client *client = part->request->owner;
    const struct berth_tensor *output = berth_part_find(part, "OUTPUT0");
    client->parts++;
    if (output != NULL) {
        const struct berth_tensor *input = &part->request->inputs[0];
        client->match = output->range.length == input->range.length &&
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

static void client_take(struct client *client)
{
    struct berth_link posts;
    berth_list_init(&posts);
    (void)berth_queue_take(&client->queue, &posts);
    struct berth_link *link;
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
}

static void client_wait(struct client *client, size_t finals)
{
    client_take(client);
    while (client->finals < finals) {
        berth_queue_wait(&client->queue, 0);
        client_take(client);
    }
}

static struct berth_request *request_make(struct stand *stand, struct client *client,
                                          struct berth_model *model, float value)
{
    struct berth_err err = {0};
    struct berth_request *request = berth_request_create(stand->slabs, 1 << 16);
    assert_non_null(request);
    assert_int_equal(berth_slabs_take(stand->slabs, 16, &request->body, &err), BERTH_OK);
    float *values = berth_slabs_pointer(stand->slabs, &request->body);
    for (int i = 0; i < 4; i++) {
        values[i] = value + (float)i;
    }
    request->inputs = berth_arena_alloc(&request->arena, sizeof(*request->inputs));
    assert_non_null(request->inputs);
    request->inputs[0] = (struct berth_tensor){.name = "INPUT0", .dtype = BERTH_DTYPE_FP32,
                                               .rank = 2, .dims = {1, 4}, .range = request->body};
    request->input_count = 1;
    request->model = model;
    request->reply = &client->queue;
    request->on_part = on_part;
    request->owner = client;
    return request;
}

static void client_open(struct client *client)
{
    struct berth_err err = {0};
    *client = (struct client){0};
    assert_int_equal(berth_queue_init(&client->queue, 0, &err), BERTH_OK);
}

static enum berth_code ask(struct stand *stand, struct client *client, struct berth_model *model,
                           float value)
{
    struct berth_err err = {0};
    struct berth_request *request = request_make(stand, client, model, value);
    enum berth_code code = berth_sched_submit(stand->sched, request, &err);
    berth_request_release(request);
    return code;
}

static void request_passes_through_threads(void **state)
{
    struct stand stand;
    struct client client;
    stand_open(&stand, 0);
    stand_start(&stand);
    client_open(&client);
    struct berth_model *model = model_put(&stand, spec_make("echo", NULL, 0));
    for (size_t i = 1; i <= 3; i++) {
        client.match = false;
        assert_int_equal(ask(&stand, &client, model, (float)i), BERTH_OK);
        client_wait(&client, i);
        assert_int_equal(client.last.code, BERTH_OK);
        assert_true(client.match);
    }
    berth_queue_finish(&client.queue);
    stand_close(&stand);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_passes_through_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
