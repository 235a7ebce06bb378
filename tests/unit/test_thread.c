/* test_thread.c - the thread worker and the controller's thread with the null engine: real threads,
 * real time, nothing asserted about how long anything takes. Run under TSan in the checks. */
#include "worker_rig.h"

#include <pthread.h>
#include <sys/stat.h>

static void stand_open(struct stand *stand, uint64_t bytes_max)
{
    stand_begin(stand);
    stand_thread_worker(stand, bytes_max);
}

static struct berth_model_spec *spec_make(const char *name,
                                          const struct berth_key_value *parameters,
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

static enum berth_code ask(struct stand *stand, struct client *client, struct berth_model *model,
                           float value)
{
    struct berth_err err = {0};
    struct berth_request *request = request_make(stand, client, model, 4, value);
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
    struct berth_model *model = stand_put(&stand, spec_make("echo", NULL, 0));
    for (size_t i = 1; i <= 3; i++) {
        assert_int_equal(ask(&stand, &client, model, (float)i), BERTH_OK);
        client_wait(&client, i);
        assert_int_equal(client.last.code, BERTH_OK);
        assert_int_equal(client.matches, i);
    }
    berth_queue_finish(&client.queue);
    stand_close(&stand);
}

static void worker_refuses_what_it_cannot(void **state)
{
    struct stand stand;
    struct berth_queue replies;
    struct berth_err err = {0};
    stand_open(&stand, 0);
    assert_int_equal(berth_queue_init(&replies, 0, &err), BERTH_OK);
    stand.worker->replies = &replies;
    struct berth_model_spec *unknown = spec_make("u", NULL, 0);
    unknown->engine = "nothing";
    struct berth_key_value fail = {.key = "fail_load", .value = "no luck"};
    struct berth_model_spec *failing = spec_make("f", &fail, 1);
    struct berth_worker_msg msgs[4] = {
        {.kind = BERTH_WORKER_LOAD, .spec = unknown, .load_id = 1},
        {.kind = BERTH_WORKER_LOAD, .spec = failing, .load_id = 2},
        {.kind = BERTH_WORKER_RUN, .spec = failing, .load_id = 2},
        {.kind = BERTH_WORKER_DESCRIBE, .spec = unknown},
    };
    const enum berth_code expected[4] = {BERTH_UNSUPPORTED, BERTH_UNAVAILABLE, BERTH_INTERNAL,
                                         BERTH_UNSUPPORTED};
    for (size_t i = 0; i < 4; i++) {
        struct berth_link posts;
        berth_list_init(&posts);
        berth_worker_send(stand.worker, &msgs[i]);
        while (!berth_queue_take(&replies, &posts)) {
            berth_queue_wait(&replies, 0);
        }
        assert_int_equal(msgs[i].err.code, expected[i]);
    }
    assert_string_equal(msgs[1].err.msg, "no luck");
    berth_spec_release(unknown);
    berth_spec_release(failing);
    berth_queue_finish(&replies);
    stand_close(&stand);
}

/* Whatever was sent comes back, also when the worker is ended at once. */
static void worker_gives_everything_back(void **state)
{
    struct stand stand;
    struct berth_queue replies;
    struct berth_err err = {0};
    stand_open(&stand, 0);
    assert_int_equal(berth_queue_init(&replies, 0, &err), BERTH_OK);
    stand.worker->replies = &replies;
    struct berth_model_spec *spec = spec_make("a", NULL, 0);
    struct berth_worker_msg msgs[20];
    for (size_t i = 0; i < 20; i++) {
        msgs[i] = (struct berth_worker_msg){
            .kind = BERTH_WORKER_DESCRIBE, .spec = spec, .load_id = i + 1};
    }
    msgs[0].kind = BERTH_WORKER_LOAD;
    berth_worker_send(stand.worker, &msgs[0]);
    struct berth_link posts;
    berth_list_init(&posts);
    while (!berth_queue_take(&replies, &posts)) {
        berth_queue_wait(&replies, 0);
    }
    for (size_t i = 1; i < 20; i++) {
        berth_worker_send(stand.worker, &msgs[i]);
    }
    berth_worker_destroy(stand.worker);
    stand.worker = NULL;
    (void)berth_queue_take(&replies, &posts);
    size_t count = 0;
    BERTH_LIST_EACH(link, &posts) {
        count++;
    }
    assert_int_equal(count, 20);
    berth_spec_release(spec);
    berth_queue_finish(&replies);
    stand_close(&stand);
}

static void warm_up_runs_before_serving(void **state)
{
    for (int steps = 0; steps < 2; steps++) {
        struct stand stand;
        struct client client;
        struct berth_key_value parameter = {.key = "steps", .value = steps == 0 ? "0" : "3"};
        stand_open(&stand, 0);
        stand_start(&stand);
        client_open(&client);
        struct berth_model_spec *spec = spec_make("w", &parameter, 1);
        struct berth_warmup_input inputs[1] = {{.name = "INPUT0", .dtype = BERTH_DTYPE_FP32,
                                                .rank = 1, .dims = {4},
                                                .source = BERTH_WARMUP_RANDOM}};
        struct berth_warmup warmups[2] = {
            {.name = "good", .batch_size = 2, .count = 3, .inputs = inputs, .input_count = 1},
            {.name = "none", .batch_size = 1, .inputs = inputs, .input_count = 0}};
        spec->warmups = warmups; /* outlive the stand */
        spec->warmup_count = 1;
        struct berth_model *model = stand_put(&stand, spec);
        assert_int_equal(ask(&stand, &client, model, 1), BERTH_OK);
        client_wait(&client, 1);
        assert_int_equal(client.last.code, BERTH_OK);
        struct berth_model_spec *bad = spec_make("bad", &parameter, 1);
        bad->warmups = &warmups[1]; /* the echo misses its input */
        bad->warmup_count = 1;
        model = stand_put(&stand, bad);
        assert_int_equal(ask(&stand, &client, model, 1), BERTH_OK);
        client_wait(&client, 2);
        assert_int_equal(client.last.code, BERTH_UNAVAILABLE);
        berth_queue_finish(&client.queue);
        stand_close(&stand);
    }
}

static void warm_up_reads_only_its_folder(void **state)
{
    static const char *const files[] = {"../x", "/etc/passwd", "", ".hidden", "missing", "fifo"};
    char folder[] = "/tmp/berth-test-thread-XXXXXX";
    char inner[sizeof(folder) + 16], fifo[sizeof(folder) + 24];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof(inner), "%s/warmup", folder);
    snprintf(fifo, sizeof(fifo), "%s/fifo", inner);
    assert_int_equal(mkdir(inner, 0700), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0); /* nobody writes */
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct stand stand;
        struct client client;
        stand_open(&stand, 0);
        stand_start(&stand);
        client_open(&client);
        struct berth_model_spec *spec = spec_make("w", NULL, 0);
        struct berth_warmup_input input = {.name = "INPUT0", .dtype = BERTH_DTYPE_FP32, .rank = 1,
                                           .dims = {4}, .source = BERTH_WARMUP_FILE,
                                           .file = files[i]};
        struct berth_warmup warmup = {.name = "file", .batch_size = 1, .inputs = &input,
                                      .input_count = 1};
        spec->warmups = &warmup;
        spec->warmup_count = 1;
        spec->folder = folder;
        struct berth_model *model = stand_put(&stand, spec);
        assert_int_equal(ask(&stand, &client, model, 1), BERTH_OK);
        client_wait(&client, 1);
        assert_int_equal(client.last.code, BERTH_UNAVAILABLE);
        berth_queue_finish(&client.queue);
        stand_close(&stand);
    }
    unlink(fifo);
    rmdir(inner);
    rmdir(folder);
}

static void running_work_ends_when_cancelled(void **state)
{
    static const char *const keys[2] = {"sleep_ms", "steps"};
    for (size_t i = 0; i < 2; i++) {
        struct stand stand;
        struct client client;
        struct berth_err err = {0};
        struct berth_key_value parameters[2] = {{.key = keys[i], .value = "1000000"},
                                                {.key = "step_ms", .value = "1"}};
        stand_open(&stand, 0);
        stand_start(&stand);
        client_open(&client);
        struct berth_model *model = stand_put(&stand, spec_make("slow", parameters, 2));
        struct berth_request *request = request_make(&stand, &client, model, 4, 1);
        assert_int_equal(berth_sched_submit(stand.sched, request, &err), BERTH_OK);
        struct berth_sched_stats stats = {0};
        while (stats.running == 0) { /* it runs for a quarter of an hour unless it is ended */
            usleep(1000);
            berth_sched_stats(stand.sched, &stats);
        }
        berth_sched_cancel(stand.sched, request);
        client_wait(&client, 1);
        assert_int_equal(client.last.code, BERTH_CANCELLED);
        berth_request_release(request);
        while (stats.running > 0) {
            usleep(1000);
            berth_sched_stats(stand.sched, &stats);
        }
        berth_queue_finish(&client.queue);
        stand_close(&stand);
    }
}

/* Load with warm-up, run and step, with the n-th allocation failing; true if one did. */
static bool loaded_once(struct stand *stand, uint64_t n, bool steps)
{
    struct berth_err err = {0};
    struct client client;
    static struct berth_step_result result;
    struct berth_key_value parameter = {.key = "steps", .value = steps ? "2" : "0"};
    struct berth_warmup_input input = {.name = "INPUT0", .dtype = BERTH_DTYPE_FP32, .rank = 1,
                                       .dims = {4}, .source = BERTH_WARMUP_RANDOM};
    struct berth_warmup warmup = {.name = "w", .batch_size = 1, .inputs = &input,
                                  .input_count = 1};
    struct berth_model_spec *spec = spec_make("t", &parameter, 1);
    spec->warmups = &warmup;
    spec->warmup_count = 1;
    client_open(&client);
    struct berth_request *request = request_make(stand, &client, NULL, 4, 1);
    struct berth_row row = {.request = request};
    struct berth_worker_msg msg = {.worker = stand->worker, .kind = BERTH_WORKER_LOAD,
                                   .spec = spec};
    struct berth_loaded *loaded = NULL;
    uint64_t calls = berth_mem_call_count();
    berth_mem_fail_at(n, false);
    if (berth_loaded_create(berth_engine_find("null"), stand->slabs, &msg, &loaded, &err) ==
        BERTH_OK) {
        msg.kind = steps ? BERTH_WORKER_STEP : BERTH_WORKER_RUN;
        msg.batch = (struct berth_batch){.rows = &row, .row_count = 1, .batch_rows = 1};
        msg.budget_ns = 1;
        msg.step = &result;
        result.event_count = 0;
        berth_loaded_run(loaded, &msg);
        assert_true(msg.err.code == BERTH_OK || row.part == NULL);
        assert_true(row.err.code == BERTH_OK || row.part == NULL);
        berth_part_destroy(row.part);
        for (size_t i = 0; i < result.event_count; i++) {
            berth_part_destroy(result.events[i].part);
        }
    }
    bool failed = berth_mem_call_count() - calls >= n;
    berth_mem_fail_at(0, false);
    berth_loaded_destroy(loaded);
    berth_spec_release(spec);
    berth_request_release(request);
    berth_queue_finish(&client.queue);
    return failed;
}

static void loading_survives_failing_allocations(void **state)
{
    for (int steps = 0; steps < 2; steps++) {
        struct stand stand;
        stand_open(&stand, 0);
        uint64_t n = 1;
        uint64_t bytes = 0;
        while (loaded_once(&stand, n, steps == 1)) {
            if (n > 1) { /* the slabs keep what they mapped at the first take */
                assert_int_equal(berth_mem_bytes_live(), bytes);
            }
            bytes = berth_mem_bytes_live();
            n++;
        }
        assert_true(n > 5);
        stand_close(&stand);
    }
}

/* Several client threads, five models in too little memory, cancels and operations in between. */
#define STRESS_CLIENTS 4
#define STRESS_MODELS 5

struct stress {
    struct stand stand;
    struct berth_model *models[STRESS_MODELS];
    size_t count; /* requests of each client */
};

struct stress_client {
    struct stress *stress;
    struct client client;
    unsigned seed;
    size_t accepted;
    size_t judged_bad;
};

static void *stress_main(void *argument)
{
    struct stress_client *self = argument;
    struct stress *stress = self->stress;
    client_open(&self->client);
    for (size_t i = 0; i < stress->count; i++) {
        struct berth_err err = {0};
        unsigned dice = (unsigned)rand_r(&self->seed);
        struct berth_request *request = request_make(
            &stress->stand, &self->client, stress->models[dice % STRESS_MODELS], 4, (float)i);
        if (dice % 7 == 0) {
            request->t_deadline_ns = berth_clock_now_ns() + dice % 3000 * BERTH_NS_PER_US;
        }
        if (berth_sched_submit(stress->stand.sched, request, &err) == BERTH_OK) {
            self->accepted++;
            if (dice % 5 == 0) {
                berth_sched_cancel(stress->stand.sched, request);
            }
        }
        berth_request_release(request);
        if (berth_sched_judge(stress->stand.sched, stress->models[0], 0, &err) != BERTH_OK) {
            self->judged_bad++;
        }
        struct berth_sched_stats stats;
        berth_sched_stats(stress->stand.sched, &stats);
        if (i % 16 == 15) {
            client_wait(&self->client, self->accepted);
        }
    }
    client_wait(&self->client, self->accepted);
    return NULL;
}

static void on_admin_done(struct berth_post *post)
{
    struct berth_admin *admin = BERTH_CONTAINER_OF(post, struct berth_admin, post);
    *(bool *)admin->state = true;
}

static void operate(struct stand *stand, enum berth_admin_kind kind, const char *name)
{
    struct berth_queue queue;
    struct berth_err err = {0};
    bool done = false;
    assert_int_equal(berth_queue_init(&queue, 0, &err), BERTH_OK);
    struct berth_admin admin = {.on_done = on_admin_done, .reply = &queue, .kind = kind,
                                .name = name, .state = &done};
    berth_sched_admin(stand->sched, &admin);
    while (!done) {
        struct berth_link posts;
        berth_list_init(&posts);
        berth_queue_wait(&queue, 0);
        (void)berth_queue_take(&queue, &posts);
        struct berth_link *link;
        while ((link = berth_list_pop(&posts)) != NULL) {
            struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
            post->deliver(post);
        }
    }
    berth_queue_finish(&queue);
}

static void threads_and_churn(void **state)
{
    static struct stress stress;
    static struct stress_client clients[STRESS_CLIENTS];
    pthread_t threads[STRESS_CLIENTS];
    memset(&stress, 0, sizeof(stress));
    memset(clients, 0, sizeof(clients));
    const char *soak = getenv("BERTH_SOAK");
    stress.count = soak != NULL && soak[0] == '1' ? 20000 : 500;
    stand_open(&stress.stand, 30000);
    stand_start(&stress.stand);
    for (size_t i = 0; i < STRESS_MODELS; i++) {
        char name[16];
        struct berth_key_value parameters[2] = {{.key = "bytes", .value = "8000"},
                                                {.key = "steps", .value = i == 4 ? "3" : "0"}};
        snprintf(name, sizeof(name), "m%zu", i);
        struct berth_model_spec *spec = spec_make(name, parameters, 2);
        spec->batching = i % 2 == 0 ? BERTH_BATCHING_DYNAMIC : BERTH_BATCHING_NONE;
        spec->dynamic.delay_us_max = i == 0 ? 200 : 0;
        stress.models[i] = stand_put(&stress.stand, spec);
    }
    for (size_t i = 0; i < STRESS_CLIENTS; i++) {
        clients[i].stress = &stress;
        clients[i].seed = (unsigned)i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, stress_main, &clients[i]), 0);
    }
    for (size_t i = 0; i < 40; i++) {
        static const enum berth_admin_kind kinds[] = {BERTH_ADMIN_LOAD, BERTH_ADMIN_UNLOAD,
                                                      BERTH_ADMIN_ENSURE};
        operate(&stress.stand, kinds[i % 3], stress.models[i % STRESS_MODELS]->name);
    }
    size_t ok = 0;
    for (size_t i = 0; i < STRESS_CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].client.finals, clients[i].accepted);
        ok += clients[i].client.ok;
        berth_queue_finish(&clients[i].client.queue);
    }
    assert_true(ok > 0);
    stand_close(&stress.stand);
    printf("figure: requests of %d threads while models come and go: %zu\n", STRESS_CLIENTS,
           STRESS_CLIENTS * stress.count);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_passes_through_threads),
        cmocka_unit_test(worker_refuses_what_it_cannot),
        cmocka_unit_test(worker_gives_everything_back),
        cmocka_unit_test(warm_up_runs_before_serving),
        cmocka_unit_test(warm_up_reads_only_its_folder),
        cmocka_unit_test(running_work_ends_when_cancelled),
        cmocka_unit_test(loading_survives_failing_allocations),
        cmocka_unit_test(threads_and_churn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
