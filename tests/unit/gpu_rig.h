/* gpu_rig.h - a controller with a CPU and a GPU, for tests: virtual time; both workers are fakes,
 * and the GPU says what the case wants. */
#ifndef BERTH_GPU_RIG_H
#define BERTH_GPU_RIG_H

#include "sched_rig.h"

#include "sched/controller.h"

#define GPU_HELD_MAX 16

static const char *const gpu_engines[] = {"speech", NULL};

struct gpu {
    struct berth_worker base;
    struct berth_worker_msg *held[GPU_HELD_MAX]; /* LOADs, where it does not answer */
    size_t held_count;
    struct berth_worker_msg *running[GPU_HELD_MAX]; /* where it holds runs */
    size_t running_count;
    enum berth_code refuses; /* OK: nothing */
    bool holds, holds_runs;
    bool dies_at_load, dies_at_run;
    uint64_t load_bytes;
    uint32_t instances;
    size_t loads, unloads, runs;
};

struct desk {
    struct rig rig;
    struct gpu gpu;
    struct berth_worker *workers[2];
};

RIG_FN void gpu_die(struct gpu *gpu)
{
    atomic_fetch_add(&gpu->base.epoch, 1);
    berth_worker_fault_post(&gpu->base);
}

RIG_FN void gpu_lose(struct berth_worker_msg *msg)
{
    msg->lost = true;
    (void)berth_fail(&msg->err, BERTH_UNAVAILABLE, "worker process ended: signal 9");
}

RIG_FN void gpu_load(struct gpu *gpu, struct berth_worker_msg *msg)
{
    gpu->loads++;
    msg->epoch = atomic_load(&gpu->base.epoch);
    msg->instance_count = gpu->instances;
    msg->slots = 1;
    msg->bytes_used = gpu->load_bytes;
    if (atomic_load(&msg->unwanted)) {
        (void)berth_fail(&msg->err, BERTH_CANCELLED, "nobody waits");
    } else if (gpu->dies_at_load) {
        gpu_die(gpu);
        gpu_lose(msg);
    } else if (gpu->refuses != BERTH_OK) {
        (void)berth_fail(&msg->err, gpu->refuses, "no: %s", berth_code_name(gpu->refuses));
    }
}

RIG_FN void gpu_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    struct gpu *gpu = BERTH_CONTAINER_OF(worker, struct gpu, base);
    if (msg->kind == BERTH_WORKER_LOAD && gpu->holds) {
        assert_true(gpu->held_count < GPU_HELD_MAX);
        gpu->held[gpu->held_count++] = msg;
        return;
    }
    if (msg->kind == BERTH_WORKER_RUN && gpu->holds_runs) {
        assert_true(gpu->running_count < GPU_HELD_MAX);
        gpu->running[gpu->running_count++] = msg;
        return;
    }
    if (msg->kind == BERTH_WORKER_LOAD) {
        gpu_load(gpu, msg);
    } else if (msg->kind == BERTH_WORKER_UNLOAD) {
        gpu->unloads++;
    } else if (gpu->dies_at_run) {
        gpu_die(gpu);
        gpu_lose(msg);
    } else {
        gpu->runs++;
        rig_do_run(msg);
    }
    berth_queue_post(worker->replies, &msg->post.link);
}

RIG_FN void gpu_let_go(struct gpu *gpu)
{
    gpu->holds = false;
    for (size_t i = 0; i < gpu->held_count; i++) {
        gpu_load(gpu, gpu->held[i]);
        berth_queue_post(gpu->base.replies, &gpu->held[i]->post.link);
    }
    gpu->held_count = 0;
}

/* Its process ends with all it has: the news first, then what it had (P4). */
RIG_FN void gpu_die_with_all(struct gpu *gpu)
{
    gpu_die(gpu);
    for (size_t i = 0; i < gpu->running_count; i++) {
        gpu_lose(gpu->running[i]);
        berth_queue_post(gpu->base.replies, &gpu->running[i]->post.link);
    }
    for (size_t i = 0; i < gpu->held_count; i++) {
        gpu_lose(gpu->held[i]);
        berth_queue_post(gpu->base.replies, &gpu->held[i]->post.link);
    }
    gpu->running_count = gpu->held_count = 0;
}

/* The first run that it holds ends well. */
RIG_FN void gpu_end_run(struct gpu *gpu)
{
    assert_true(gpu->running_count > 0);
    struct berth_worker_msg *msg = gpu->running[0];
    gpu->runs++;
    rig_do_run(msg);
    gpu->running_count--;
    memmove(&gpu->running[0], &gpu->running[1], gpu->running_count * sizeof(msg));
    berth_queue_post(gpu->base.replies, &msg->post.link);
}

/* As the process worker: what is held and unwanted is not sent any more. */
RIG_FN void gpu_cancel(struct berth_worker *worker)
{
    struct gpu *gpu = BERTH_CONTAINER_OF(worker, struct gpu, base);
    if (gpu->held_count == 1 && atomic_load(&gpu->held[0]->unwanted)) {
        gpu_let_go(gpu);
    }
}

static const struct berth_worker_ops gpu_ops = {
    .name = "gpu", .send = gpu_send, .cancel = gpu_cancel, .destroy = rig_no_destroy};

RIG_FN void desk_open(struct desk *desk)
{
    memset(desk, 0, sizeof(*desk));
    rig_open(&desk->rig);
    desk->gpu.load_bytes = 100;
    desk->gpu.instances = 1;
    desk->gpu.base = (struct berth_worker){.ops = &gpu_ops, .device = "cuda:0", .parallel_max = 2,
                                           .bytes_max = 250, .engines = gpu_engines};
    desk->workers[0] = &desk->rig.worker;
    desk->workers[1] = &desk->gpu.base;
    desk->rig.options.workers = desk->workers;
    desk->rig.options.worker_count = 2;
    desk->rig.options.cold_wait_ns = 100 * BERTH_NS_PER_S;
    rig_begin(&desk->rig);
}

RIG_FN void desk_close(struct desk *desk)
{
    gpu_let_go(&desk->gpu);
    while (desk->gpu.running_count > 0) {
        gpu_end_run(&desk->gpu);
    }
    desk->gpu.holds_runs = false;
    rig_close(&desk->rig);
}

RIG_FN struct berth_model_spec *desk_spec(const char *name)
{
    struct berth_model_spec *spec = rig_spec(name);
    spec->engine = "speech";
    spec->files_stamp = 7;
    return spec;
}

/* Asks until it is answered, the CPU's part done as it comes. */
RIG_FN void desk_ask(struct desk *desk, struct berth_model *model, struct rig_client *client)
{
    struct rig *rig = &desk->rig;
    rig_ask(rig, client, model);
    for (int i = 0; i < 20 && client->finals == 0; i++) {
        while (rig->sent_count > 0) {
            rig_end(rig, rig->sent[0], RIG_MS);
        }
        rig_turn(rig);
    }
    assert_int_equal(client->finals, 1);
    rig_leave(client);
}

RIG_FN void desk_unload(struct desk *desk, const char *name)
{
    struct berth_admin admin;
    desk->rig.admin_back = NULL;
    rig_admin(&desk->rig, &admin, BERTH_ADMIN_UNLOAD, name);
    while (desk->rig.sent_count > 0) {
        rig_end(&desk->rig, desk->rig.sent[0], 0);
    }
    rig_turn(&desk->rig);
    assert_ptr_equal(desk->rig.admin_back, &admin);
}

RIG_FN void desk_assert_place(struct berth_model *model, const char *device, const char *why)
{
    char text[240];
    const char *seen = berth_model_place(model, text, sizeof(text));
    assert_int_equal(seen == NULL, device == NULL);
    if (device != NULL) {
        assert_string_equal(seen, device);
    }
    if (why[0] == '\0') {
        assert_string_equal(text, "");
    } else {
        assert_non_null(strstr(text, why));
    }
}

RIG_FN uint64_t desk_fallbacks(struct desk *desk)
{
    struct berth_device_stats stats;
    assert_true(berth_sched_device_stats(desk->rig.sched, 1, &stats));
    assert_string_equal(stats.device, "cuda:0");
    assert_false(berth_sched_device_stats(desk->rig.sched, 2, &stats));
    return stats.fallbacks;
}

#endif
