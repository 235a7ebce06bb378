/* stack.c - see stack.h. */
#include "cli/stack.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "engine/engine.h"

#define MEDIA_QUEUE_MAX 1024
/* Two batches at a time fill two cores; a pool beside them only makes them wait for each other (a
 * fifth more CPU for the same speech). With more cores there are fewer batches than cores at times.
 */
#define WORKERS_WITHOUT_POOL 2

/* What berth-cuda runs on a GPU; models of other engines stay on the CPU. */
static const char *const gpu_engines[] = {"parakeet", NULL};
#define GPU_RUN_THREADS 2 /* one copies while the other computes */

static enum berth_code start_workers(const struct berth_config *config, struct berth_stack *stack,
                                     struct berth_err *err);
static enum berth_code find_gpu(const struct berth_config *config, struct berth_stack *stack,
                                bool *found, struct berth_err *err);
static enum berth_code start_gpu_worker(const struct berth_config *config,
                                        struct berth_stack *stack, struct berth_err *err);
static enum berth_code start_sched(const struct berth_config *config, struct berth_stack *stack,
                                   struct berth_err *err);
static enum berth_code start_media(const struct berth_config *config, struct berth_stack *stack,
                                   struct berth_err *err);
static enum berth_code parse_mode(const char *text, enum berth_control_mode *out,
                                  struct berth_err *err);
static void warn_unknown(const struct berth_config *config, struct berth_catalog *catalog);
static uint32_t core_count(void);

enum berth_code berth_stack_start(const struct berth_config *config, struct berth_stack *stack,
                                  struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_slabs_options slabs = {.bytes_budget = config->bytes_budget,
                                        .bytes_pool_max = config->bytes_budget / 8};
    *stack = (struct berth_stack){0};
    if ((code = berth_slabs_create(&slabs, &stack->slabs, err)) != BERTH_OK ||
        (code = berth_catalog_create(&stack->catalog, err)) != BERTH_OK ||
        (code = berth_repo_open(config->models, &stack->repo, err)) != BERTH_OK ||
        (code = start_workers(config, stack, err)) != BERTH_OK ||
        (code = start_sched(config, stack, err)) != BERTH_OK ||
        (code = start_media(config, stack, err)) != BERTH_OK) {
        berth_stack_finish(stack);
        return code;
    }
    struct berth_admin begun = {.kind = BERTH_ADMIN_BEGUN}; /* then the catalogue is filled */
    code = berth_stack_admin(stack, &begun, err);
    if (code != BERTH_OK) {
        berth_stack_finish(stack);
        return code;
    }
    warn_unknown(config, stack->catalog);
    return BERTH_OK;
}

void berth_stack_stop(struct berth_stack *stack)
{
    berth_media_destroy(stack->media);
    berth_sched_destroy(stack->sched);
    while (stack->worker_count > 0) {
        berth_worker_destroy(stack->workers[--stack->worker_count]);
    }
    stack->media = NULL;
    stack->sched = NULL;
}

void berth_stack_finish(struct berth_stack *stack)
{
    berth_stack_stop(stack);
    berth_repo_close(stack->repo);
    berth_catalog_destroy(stack->catalog);
    if (stack->engines_started) {
        berth_engines_finish();
    }
    berth_slabs_destroy(stack->slabs);
    *stack = (struct berth_stack){0};
}

static void on_admin_done(struct berth_post *post)
{
    struct berth_admin *admin = BERTH_CONTAINER_OF(post, struct berth_admin, post);
    *(bool *)admin->state = true;
}

enum berth_code berth_stack_admin(struct berth_stack *stack, struct berth_admin *admin,
                                  struct berth_err *err)
{
    struct berth_queue queue;
    bool done = false;
    BERTH_TRY(berth_queue_init(&queue, 0, err));
    admin->reply = &queue;
    admin->on_done = on_admin_done;
    admin->state = &done;
    berth_sched_admin(stack->sched, admin);
    while (!done) {
        berth_stack_deliver(&queue, 0);
    }
    berth_queue_finish(&queue);
    if (admin->err.code != BERTH_OK && err != NULL) {
        *err = admin->err;
    }
    return admin->err.code;
}

void berth_stack_deliver(struct berth_queue *queue, uint64_t t_until_ns)
{
    struct berth_link posts;
    struct berth_link *link;
    berth_list_init(&posts);
    berth_queue_wait(queue, t_until_ns);
    berth_queue_take(queue, &posts);
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
}

static enum berth_code start_workers(const struct berth_config *config, struct berth_stack *stack,
                                     struct berth_err *err)
{
    const char *kind = config->cpu_worker;
    bool process = kind != NULL && strcmp(kind, "process") == 0;
    uint32_t workers = config->cpu_workers > 0 ? (uint32_t)config->cpu_workers : core_count();
    uint64_t bytes_max = config->device_bytes_max;
    if (bytes_max == 0) {
        bytes_max = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4 * 3;
    }
    struct berth_engine_env env = {
        .slabs = stack->slabs,
        .threads = config->cpu_threads > 0 ? (uint32_t)config->cpu_threads
                   : workers <= WORKERS_WITHOUT_POOL ? 1
                                                     : workers,
        .step_instances =
            workers < BERTH_WORKER_STEP_INSTANCES_MAX ? workers : BERTH_WORKER_STEP_INSTANCES_MAX,
    };
    BERTH_TRY(find_gpu(config, stack, &env.gpu, err));
    struct berth_worker_options options = {
        .device = "cpu:0",
        .run_threads = workers,
        .load_threads = (uint32_t)config->load_threads,
        .bytes_max = bytes_max,
        .slabs = stack->slabs,
        .engine_threads = env.threads,
        .bytes_budget = config->bytes_budget,
        .load_ns_max = config->load_timeout,
    };
    if (kind != NULL && kind[0] != '\0' && !process && strcmp(kind, "thread") != 0) {
        return berth_cli_misuse(err, "--cpu-worker '%s' is not thread or process", kind);
    }
    BERTH_TRY(berth_engines_start(&env, err)); /* models are described here, wherever they run */
    stack->engines_started = true;
    BERTH_TRY(process ? berth_worker_process_create(&options, &stack->workers[0], err)
                      : berth_worker_thread_create(&options, &stack->workers[0], err));
    stack->worker_count = 1;
    return env.gpu ? start_gpu_worker(config, stack, err) : BERTH_OK;
}

/* Only a berth-cuda that was named must be there and see a GPU. */
static enum berth_code find_gpu(const struct berth_config *config, struct berth_stack *stack,
                                bool *found, struct berth_err *err)
{
    const char *program = config->cuda_worker; /* `transcribe` has no such option: no GPU */
    struct berth_err why = {0};
    if (program == NULL || program[0] == '\0' || strcmp(program, "none") == 0) {
        return BERTH_OK;
    }
    enum berth_code code = berth_gpu_probe(program, &stack->gpu, &why);
    if (code != BERTH_OK && strcmp(program, "auto") != 0) {
        return berth_fail(err, BERTH_INVALID, "--cuda-worker: %s", why.msg);
    }
    if (code != BERTH_OK) {
        if (code != BERTH_NOT_FOUND) {
            berth_log_info("serve", 0, "models run on the CPU reason=%s", why.msg);
        }
        return BERTH_OK;
    }
    *found = true;
    berth_log_info("serve", 0, "GPU device=%s name=%s bytes=%" PRIu64 " free=%" PRIu64,
                   stack->gpu.device, stack->gpu.name, stack->gpu.bytes, stack->gpu.bytes_free);
    return BERTH_OK;
}

static enum berth_code start_gpu_worker(const struct berth_config *config,
                                        struct berth_stack *stack, struct berth_err *err)
{
    struct berth_worker_options options = {
        .device = stack->gpu.device,
        .run_threads = GPU_RUN_THREADS,
        .load_threads = (uint32_t)config->load_threads,
        .bytes_max = stack->gpu.bytes_free / 10 * 9, /* the rest is CUDA's own, and scratch */
        .slabs = stack->slabs,
        .engines = gpu_engines,
        .program = stack->gpu.program,
        .engine_threads = 1,
        .bytes_budget = config->bytes_budget,
        .load_ns_max = config->load_timeout,
    };
    BERTH_TRY(berth_worker_process_create(&options, &stack->workers[1], err));
    stack->worker_count = 2;
    return BERTH_OK;
}

static enum berth_code start_sched(const struct berth_config *config, struct berth_stack *stack,
                                   struct berth_err *err)
{
    struct berth_sched_options options = {
        .catalog = stack->catalog,
        .repo = stack->repo,
        .workers = stack->workers,
        .worker_count = stack->worker_count,
        .load_models = config->load_model.items,
        .load_model_count = config->load_model.count,
        .poll_ns = config->repository_poll,
        .queue_max = config->queue_max,
        .model_queue_max = config->model_queue_max,
        .request_timeout_ns = config->request_timeout,
        .cold_wait_ns = config->cold_wait,
        .load_backoff_ns = config->load_backoff,
        .loads_max = config->load_threads,
    };
    BERTH_TRY(parse_mode(config->model_control_mode, &options.mode, err));
    BERTH_TRY(berth_sched_create(&options, &stack->sched, err));
    return berth_sched_start(stack->sched, err);
}

static enum berth_code start_media(const struct berth_config *config, struct berth_stack *stack,
                                   struct berth_err *err)
{
    struct berth_media_options options = {
        .processes = (uint32_t)config->media_processes,
        .in_process = config->media_in_process,
        .timeout_ns = config->media_timeout,
        .memory_max = config->media_memory_max,
        .queue_max = MEDIA_QUEUE_MAX,
        .slabs = stack->slabs,
    };
    return berth_media_create(&options, &stack->media, err);
}

static enum berth_code parse_mode(const char *text, enum berth_control_mode *out,
                                  struct berth_err *err)
{
    static const char *const names[] = {"none", "poll", "explicit", "demand"};
    /* `transcribe` has no such option: it loads what it needs. */
    if (text == NULL || text[0] == '\0') {
        *out = BERTH_CONTROL_DEMAND;
        return BERTH_OK;
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum berth_control_mode)i;
            return BERTH_OK;
        }
    }
    return berth_cli_misuse(err, "--model-control-mode '%s' is not none, poll, explicit or demand",
                            text);
}

/* A wrong name is told; as with a model that cannot be loaded, the others serve. */
static void warn_unknown(const struct berth_config *config, struct berth_catalog *catalog)
{
    for (size_t i = 0; i < config->load_model.count; i++) {
        const char *name = config->load_model.items[i];
        struct berth_model *model = berth_catalog_find(catalog, name, 0);
        if (model == NULL && strcmp(name, "*") != 0) {
            berth_log_warn("serve", 0, "--load-model: there is no model '%s' in %s", name,
                           config->models);
        }
        berth_model_release(model);
    }
}

static uint32_t core_count(void)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (uint32_t)count;
}
