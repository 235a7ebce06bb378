/* test_process_grows.c - a model that grows while nothing of it runs, in a thread and in a process
 * of its own (which is this program again): the controller knows of it without another request
 * (P14). Its engine is the null engine with a thread that takes memory once a run has been told of.
 *
 * The controller's turns are the test's; nothing is asserted about how long anything takes.
 */
#define berth_engine_null plain_null
#include "engine/null.c"
#undef berth_engine_null

#include "worker_rig.h"

#include <pthread.h>
#include <semaphore.h>

#include "model/config_tree.h"
#include "repo/model_config.h"
#include "sched/controller.h"

#define PIECES 64
#define PIECE_BYTES 1000
#define LAST_BYTES (UINT64_C(8) << 20)
#define GROWN_BYTES (PIECES * PIECE_BYTES + LAST_BYTES)

/* Of the one model there is in a process. */
static _Atomic uint64_t grown;
static atomic_bool ran, stopping;
static sem_t goes;
static pthread_t grower;
static bool growing;
static struct berth_engine_watch *watch;

static void *grow(void *argument)
{
    while (sem_wait(&goes) != 0) {
    }
    for (size_t i = 0; i <= PIECES && !atomic_load(&stopping); i++) {
        atomic_fetch_add(&grown, i < PIECES ? PIECE_BYTES : LAST_BYTES);
        watch->grown(watch);
    }
    return NULL;
}

static void grows_watch(struct berth_engine_model *model, struct berth_engine_watch *given)
{
    watch = given;
    atomic_store(&grown, 0);
    atomic_store(&ran, false);
    atomic_store(&stopping, false);
    growing = true; /* which the thread reads */
    BERTH_ASSERT(sem_init(&goes, 0, 0) == 0);
    BERTH_ASSERT(pthread_create(&grower, NULL, grow, NULL) == 0);
}

static void grows_detach(struct berth_engine_model *model)
{
    atomic_store(&stopping, true);
    if (growing) {
        (void)sem_post(&goes);
        (void)pthread_join(grower, NULL);
        (void)sem_destroy(&goes);
        growing = false;
    }
    plain_null.model_detach(model);
}

static enum berth_code grows_execute(struct berth_instance *instance, struct berth_batch *batch,
                                     struct berth_err *err)
{
    enum berth_code code = plain_null.execute(instance, batch, err);
    atomic_store(&ran, true);
    return code;
}

/* After a run this is what the run's end tells; only then more is taken. */
static uint64_t grows_bytes(const struct berth_engine_model *model)
{
    uint64_t bytes = plain_null.model_bytes(model) + atomic_load(&grown);
    if (growing && !pthread_equal(pthread_self(), grower) && atomic_exchange(&ran, false)) {
        (void)sem_post(&goes);
    }
    return bytes;
}

const struct berth_engine_ops berth_engine_null = {
    .name = "null",
    .describe = describe,
    .model_attach = model_attach,
    .model_detach = grows_detach,
    .model_bytes = grows_bytes,
    .model_watch = grows_watch,
    .instance_create = instance_create,
    .instance_destroy = instance_destroy,
    .execute = grows_execute,
    .admit = admit,
    .step = step,
    .drop = drop,
    .slots = slots,
};

static struct berth_model *model_put(struct stand *stand)
{
    static const char config[] = "{\"backend\": \"null\", \"max_batch_size\": 8}";
    struct berth_err err = {0};
    struct berth_version_policy policy;
    struct berth_model_spec *spec = berth_spec_create();
    struct berth_model_config text = {
        .text = config, .length = strlen(config), .label = "grows", .json = true};
    assert_non_null(spec);
    spec->name = berth_arena_strdup(&spec->arena, "grows");
    spec->folder = spec->folder_version = spec->task = "";
    spec->version = 1;
    assert_int_equal(berth_model_config_read(&text, spec, &policy, &err), BERTH_OK);
    return stand_put(stand, spec);
}

static void turn(struct stand *stand)
{
    uint64_t t_next_ns = berth_sched_turn(stand->sched, berth_clock_now_ns());
    berth_queue_wait(berth_sched_queue(stand->sched), t_next_ns == UINT64_MAX ? 0 : t_next_ns);
}

static void open_worker(struct stand *stand, bool process)
{
    struct berth_err err = {0};
    struct berth_worker_options options = {
        .device = "cpu:0", .run_threads = 2, .load_threads = 1, .engine_threads = 1,
        .slabs = stand->slabs, .bytes_budget = 1 << 26};
    enum berth_code code = process
                               ? berth_worker_process_create(&options, &stand->worker, &err)
                               : berth_worker_thread_create(&options, &stand->worker, &err);
    assert_int_equal(code, BERTH_OK);
    struct berth_sched_options sched = {
        .catalog = stand->catalog, .workers = &stand->worker, .worker_count = 1,
        .mode = BERTH_CONTROL_DEMAND, .queue_max = 10, .model_queue_max = 10,
        .request_timeout_ns = 600 * BERTH_NS_PER_S, .cold_wait_ns = 600 * BERTH_NS_PER_S,
        .loads_max = 1};
    assert_int_equal(berth_sched_create(&sched, &stand->sched, &err), BERTH_OK);
}

static void growth_is_known(bool process)
{
    struct stand stand;
    struct client client;
    struct berth_err err = {0};
    struct berth_sched_stats stats;
    stand_begin(&stand);
    open_worker(&stand, process);
    client_open(&client);
    struct berth_model *model = model_put(&stand);
    struct berth_request *request = request_make(&stand, &client, model, 4, 1);
    assert_int_equal(berth_sched_submit(stand.sched, request, &err), BERTH_OK);
    berth_request_release(request);
    while (client.finals == 0) {
        turn(&stand);
        client_take(&client);
    }
    assert_int_equal(client.ok, 1);
    while (atomic_load(&model->bytes_used) < GROWN_BYTES) { /* nobody asks any more */
        turn(&stand);
    }
    (void)berth_sched_turn(stand.sched, berth_clock_now_ns());
    berth_sched_stats(stand.sched, &stats);
    assert_int_equal(stats.bytes_models, atomic_load(&model->bytes_used));
    if (!process) { /* its figures are this process' own */
        assert_int_equal(atomic_load(&grown), GROWN_BYTES);
    }
    berth_queue_finish(&client.queue);
    stand_close(&stand);
}

static void in_a_thread(void **state)
{
    growth_is_known(false);
}

static void in_a_process(void **state)
{
    growth_is_known(true);
}

/* The model goes while it grows, wherever that is: nothing is told to what is not there. */
static void it_may_go_at_any_time(void **state)
{
    for (size_t i = 0; i < 20; i++) {
        struct stand stand;
        struct client client;
        struct berth_err err = {0};
        stand_begin(&stand);
        open_worker(&stand, i % 10 == 0);
        client_open(&client);
        struct berth_request *request = request_make(&stand, &client, model_put(&stand), 4, 1);
        assert_int_equal(berth_sched_submit(stand.sched, request, &err), BERTH_OK);
        berth_request_release(request);
        while (client.finals == 0) {
            turn(&stand);
            client_take(&client);
        }
        for (size_t at = 0; at < i / 2; at++) {
            (void)berth_sched_turn(stand.sched, berth_clock_now_ns());
        }
        berth_queue_finish(&client.queue);
        stand_close(&stand);
    }
}

int main(int argc, char **argv)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    if (argc > 1 && strcmp(argv[1], "worker") == 0) {
        int status = berth_worker_host_main(argc, argv);
        return status == 0 && berth_mem_bytes_live() != 0 ? 77 : status;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_a_thread),
        cmocka_unit_test(in_a_process),
        cmocka_unit_test(it_may_go_at_any_time),
    };
    return cmocka_run_group_tests_name("process_grows", tests, NULL, NULL);
}
