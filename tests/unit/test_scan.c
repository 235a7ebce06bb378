/* test_scan.c - control modes over a real folder: scan, load, reload, unload by change. */
#include "sched_rig.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "repo/repo.h"
#include "sched/controller.h"

struct yard {
    struct rig rig;
    struct berth_repo *repo;
    char path[64];
};

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    return remove(path);
}

static void write_config(struct yard *yard, const char *name, const char *text)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", yard->path, name);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/%s/1", yard->path, name);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/%s/config.pbtxt", yard->path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void remove_model(struct yard *yard, const char *name)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", yard->path, name);
    assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void yard_open(struct yard *yard, enum berth_control_mode mode)
{
    struct berth_err err = {0};
    snprintf(yard->path, sizeof(yard->path), "/tmp/berth-scan-XXXXXX");
    rig_open(&yard->rig);
    assert_non_null(mkdtemp(yard->path));
    write_config(yard, "a", "backend: \"identity\" max_batch_size: 4");
    write_config(yard, "b", "backend: \"identity\" max_batch_size: 8");
    assert_int_equal(berth_repo_open(yard->path, &yard->repo, &err), BERTH_OK);
    yard->rig.options.mode = mode;
    yard->rig.options.repo = yard->repo;
}

static void yard_close(struct yard *yard)
{
    struct rig *rig = &yard->rig;
    rig->auto_all = true;
    while (rig->sent_count > 0) {
        rig_end(rig, rig->sent[0], 0);
    }
    berth_sched_destroy(rig->sched);
    rig->sched = NULL;
    berth_repo_close(yard->repo);
    rig_close(rig);
    assert_int_equal(nftw(yard->path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* The disk is read on the repository's thread; each of its answers is a turn. Descriptions end at
 * once, loads stay for the test to end. */
static void until_idle(struct yard *yard)
{
    struct rig *rig = &yard->rig;
    for (;;) {
        rig_turn(rig);
        struct berth_worker_msg *describe = rig_sent(rig, BERTH_WORKER_DESCRIBE);
        if (describe != NULL) {
            rig_end(rig, describe, 0);
            continue;
        }
        if (berth_list_empty(&rig->sched->ops) || rig_sent(rig, BERTH_WORKER_LOAD) != NULL ||
            rig_sent(rig, BERTH_WORKER_UNLOAD) != NULL) {
            return;
        }
        berth_queue_wait(berth_sched_queue(rig->sched), berth_clock_now_ns() + 100 * RIG_MS);
    }
}

static enum berth_model_state state_of(struct yard *yard, const char *name)
{
    struct berth_model *model = berth_catalog_find(yard->rig.catalog, name, 1);
    assert_non_null(model);
    enum berth_model_state state = berth_model_state(model);
    berth_model_release(model);
    return state;
}

static bool listed(struct yard *yard, const char *name)
{
    struct berth_model *model = berth_catalog_find(yard->rig.catalog, name, 0);
    berth_model_release(model);
    return model != NULL;
}

static uint64_t batch_of(struct yard *yard, const char *name)
{
    struct berth_model *model = berth_catalog_find(yard->rig.catalog, name, 1);
    assert_non_null(model);
    struct berth_model_spec *spec = berth_model_spec(model);
    uint64_t batch = spec->batch_size_max;
    berth_spec_release(spec);
    berth_model_release(model);
    return batch;
}

static void finish_kind(struct yard *yard, enum berth_worker_kind kind)
{
    while (rig_sent(&yard->rig, kind) != NULL) {
        rig_finish(&yard->rig, kind, RIG_MS);
    }
    until_idle(yard);
}

static void ask_admin(struct yard *yard, struct berth_admin *admin, enum berth_admin_kind kind,
                      const char *name, const char *config)
{
    yard->rig.admin_back = NULL;
    *admin = (struct berth_admin){.on_done = rig_admin_done, .reply = &yard->rig.replies,
                                  .kind = kind, .name = name, .config_json = config,
                                  .state = &yard->rig};
    berth_sched_admin(yard->rig.sched, admin);
    until_idle(yard);
}

static void none_loads_all(void **state)
{
    struct yard yard;
    yard_open(&yard, BERTH_CONTROL_NONE);
    rig_begin(&yard.rig);
    until_idle(&yard);
    assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 2);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_int_equal(state_of(&yard, "a"), BERTH_STATE_WARM);
    assert_int_equal(state_of(&yard, "b"), BERTH_STATE_WARM);
    yard_close(&yard);
}

static void demand_lists_and_waits(void **state)
{
    struct yard yard;
    struct rig_client client;
    yard_open(&yard, BERTH_CONTROL_DEMAND);
    write_config(&yard, "broken", "max_batch_size: {");
    rig_begin(&yard.rig);
    until_idle(&yard);
    assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 0);
    assert_int_equal(state_of(&yard, "a"), BERTH_STATE_COLD);
    struct berth_model *model = berth_catalog_find(yard.rig.catalog, "a", 0);
    struct berth_model_spec *spec = berth_model_spec(model);
    assert_true(spec->completed); /* described before anyone asks */
    berth_spec_release(spec);
    rig_ask(&yard.rig, &client, model);
    rig_finish(&yard.rig, BERTH_WORKER_LOAD, RIG_MS);
    rig_finish(&yard.rig, BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.code, BERTH_OK);
    rig_leave(&client);
    berth_model_release(model);
    yard_close(&yard);
}

static void broken_models_fail_alone(void **state)
{
    struct yard yard;
    struct rig_client client;
    struct berth_admin admin;
    yard_open(&yard, BERTH_CONTROL_DEMAND);
    write_config(&yard, "broken", "max_batch_size: {");
    rig_begin(&yard.rig);
    until_idle(&yard);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "broken", NULL);
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_not_equal(admin.err.code, BERTH_OK);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "absent", NULL);
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_not_equal(admin.err.code, BERTH_OK);
    struct berth_model *model = berth_catalog_find(yard.rig.catalog, "broken", 0);
    if (model != NULL) { /* the catalogue shows it, with the reason */
        struct berth_err err = {0};
        assert_int_equal(berth_model_state(model), BERTH_STATE_FAILED);
        assert_int_equal(berth_sched_judge(yard.rig.sched, model, 0, &err), BERTH_UNAVAILABLE);
        rig_ask(&yard.rig, &client, model);
        assert_int_equal(client.code, BERTH_UNAVAILABLE);
        assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 0);
        rig_leave(&client);
        berth_model_release(model);
    }
    assert_int_equal(state_of(&yard, "a"), BERTH_STATE_COLD);
    yard_close(&yard);
}

static void explicit_loads_at_start_and_by_operation(void **state)
{
    static const char *const names[] = {"b"};
    struct yard yard;
    struct berth_admin admin;
    yard_open(&yard, BERTH_CONTROL_EXPLICIT);
    yard.rig.options.load_models = names;
    yard.rig.options.load_model_count = 1;
    rig_begin(&yard.rig);
    until_idle(&yard);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_int_equal(state_of(&yard, "a"), BERTH_STATE_COLD);
    assert_int_equal(state_of(&yard, "b"), BERTH_STATE_WARM);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "b", NULL); /* nothing has changed: nothing to do */
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 0);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    assert_null(yard.rig.admin_back);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_equal(admin.err.code, BERTH_OK);
    ask_admin(&yard, &admin, BERTH_ADMIN_UNLOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_equal(state_of(&yard, "a"), BERTH_STATE_COLD);
    yard_close(&yard);
}

static void a_changed_model_is_reloaded_on_load(void **state)
{
    struct yard yard;
    struct berth_admin admin;
    yard_open(&yard, BERTH_CONTROL_EXPLICIT);
    rig_begin(&yard.rig);
    until_idle(&yard);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_int_equal(batch_of(&yard, "a"), 4);
    write_config(&yard, "a", "backend: \"identity\" max_batch_size: 16 # more");
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 1);
    assert_int_equal(batch_of(&yard, "a"), 4); /* what serves is what is shown */
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_int_equal(batch_of(&yard, "a"), 16);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a",
              "{\"backend\": \"identity\", \"max_batch_size\": 2}");
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_equal(admin.err.code, BERTH_OK);
    assert_int_equal(batch_of(&yard, "a"), 2);
    yard_close(&yard);
}

static void poll_follows_the_folder(void **state)
{
    struct yard yard;
    yard_open(&yard, BERTH_CONTROL_POLL);
    rig_begin(&yard.rig);
    until_idle(&yard);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_int_equal(yard.rig.t_next_ns, yard.rig.now_ns + yard.rig.options.poll_ns);
    size_t loads = yard.rig.loads;
    assert_int_equal(yard.rig.describes, 2);
    rig_advance(&yard.rig, yard.rig.options.poll_ns); /* nothing has changed */
    until_idle(&yard);
    assert_int_equal(yard.rig.describes, 2); /* so nothing is read again */
    assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 0);
    assert_int_equal(yard.rig.loads, loads);
    write_config(&yard, "c", "backend: \"identity\"");
    write_config(&yard, "b", "backend: \"identity\" max_batch_size: 32 # changed");
    remove_model(&yard, "a");
    rig_advance(&yard.rig, yard.rig.options.poll_ns);
    until_idle(&yard);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    assert_false(listed(&yard, "a"));
    assert_int_equal(state_of(&yard, "b"), BERTH_STATE_WARM);
    assert_int_equal(batch_of(&yard, "b"), 32);
    assert_int_equal(state_of(&yard, "c"), BERTH_STATE_WARM);
    yard_close(&yard);
}

static void destroy_while_the_disk_is_read(void **state)
{
    struct yard yard;
    struct berth_admin admin = {0};
    yard_open(&yard, BERTH_CONTROL_EXPLICIT);
    rig_begin(&yard.rig);
    admin = (struct berth_admin){.on_done = rig_admin_done, .reply = &yard.rig.replies,
                                 .kind = BERTH_ADMIN_LOAD, .name = "a", .state = &yard.rig};
    berth_sched_admin(yard.rig.sched, &admin);
    rig_turn(&yard.rig);
    berth_ops_close(yard.rig.sched);
    rig_replies(&yard.rig);
    assert_null(yard.rig.admin_back); /* the repository reads its name */
    yard_close(&yard);
    assert_ptr_equal(yard.rig.admin_back, &admin);
}

/* R9: a changed model that cannot be loaded is not loaded again at each look, but for new files. */
static void poll_keeps_the_back_off(void **state)
{
    struct yard yard;
    struct rig *rig = &yard.rig;
    yard_open(&yard, BERTH_CONTROL_POLL);
    rig->options.load_backoff_ns = 10 * rig->options.poll_ns;
    rig_begin(rig);
    until_idle(&yard);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    write_config(&yard, "b", "backend: \"identity\" max_batch_size: 32 # bad");
    rig_advance(rig, rig->options.poll_ns);
    until_idle(&yard);
    struct berth_worker_msg *load = rig_sent(rig, BERTH_WORKER_LOAD);
    assert_non_null(load);
    (void)berth_fail(&load->err, BERTH_INVALID, "bad weights");
    rig_finish(rig, BERTH_WORKER_LOAD, RIG_MS);
    until_idle(&yard);
    assert_int_equal(state_of(&yard, "b"), BERTH_STATE_WARM);
    rig_advance(rig, rig->options.poll_ns);
    until_idle(&yard);
    assert_int_equal(rig_count(rig, BERTH_WORKER_LOAD), 0);
    write_config(&yard, "b", "backend: \"identity\" max_batch_size: 16 # mended");
    rig_advance(rig, rig->options.poll_ns);
    until_idle(&yard);
    assert_int_equal(rig_count(rig, BERTH_WORKER_LOAD), 1);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    assert_int_equal(batch_of(&yard, "b"), 16);
    yard_close(&yard);
}

static void assert_reason(struct yard *yard, const char *name, const char *wanted)
{
    char reason[240];
    struct berth_model *model = berth_catalog_find(yard->rig.catalog, name, 1);
    assert_non_null(model);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    berth_model_reason(model, reason, sizeof(reason));
    berth_model_release(model);
    if (wanted[0] == '\0') {
        assert_string_equal(reason, "");
        return;
    }
    assert_memory_equal(reason, "reload failed: ", strlen("reload failed: "));
    assert_non_null(strstr(reason, wanted));
    assert_non_null(strstr(reason, "; the one loaded before serves"));
}

/* What serves although its files are newer says why, until they are loaded or are again what they
 * were; a look that finds nothing new changes nothing. */
static void what_serves_says_why_it_is_not_newer(void **state)
{
    struct yard yard;
    struct rig *rig = &yard.rig;
    char path[160], kept[160];
    yard_open(&yard, BERTH_CONTROL_POLL);
    rig->options.load_backoff_ns = rig->options.poll_ns;
    rig_begin(rig);
    until_idle(&yard);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_reason(&yard, "b", "");
    snprintf(path, sizeof(path), "%s/b/config.pbtxt", yard.path);
    snprintf(kept, sizeof(kept), "%s/kept", yard.path);
    assert_int_equal(rename(path, kept), 0);
    write_config(&yard, "b", "max_batch_size: {");
    for (size_t i = 0; i < 3; i++) {
        rig_advance(rig, rig->options.poll_ns);
        until_idle(&yard);
        assert_reason(&yard, "b", "config.pbtxt:1");
        assert_reason(&yard, "a", "");
    }
    assert_int_equal(rename(kept, path), 0);
    rig_advance(rig, rig->options.poll_ns);
    until_idle(&yard);
    assert_reason(&yard, "b", "");
    write_config(&yard, "b", "backend: \"identity\" max_batch_size: 32 # bad");
    for (size_t i = 0; i < 3; i++) {
        rig_advance(rig, 10 * rig->options.poll_ns); /* past each back-off */
        until_idle(&yard);
        struct berth_worker_msg *load = rig_sent(rig, BERTH_WORKER_LOAD);
        assert_non_null(load);
        (void)berth_fail(&load->err, BERTH_INVALID, "bad weights");
        rig_finish(rig, BERTH_WORKER_LOAD, RIG_MS);
        until_idle(&yard);
        assert_reason(&yard, "b", "bad weights");
    }
    write_config(&yard, "b", "backend: \"identity\" max_batch_size: 16 # mended");
    rig_advance(rig, rig->options.poll_ns);
    until_idle(&yard);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    assert_reason(&yard, "b", "");
    yard_close(&yard);
}

/* What the old files took says nothing about the new ones. */
static void new_files_are_not_refused_for_what_the_old_ones_took(void **state)
{
    struct yard yard;
    struct rig *rig = &yard.rig;
    struct berth_admin admin;
    yard_open(&yard, BERTH_CONTROL_EXPLICIT);
    rig_begin(rig);
    until_idle(&yard);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    write_config(&yard, "a", "backend: \"identity\" max_batch_size: 16 # large");
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    rig->load_bytes = 100000; /* more than the worker has */
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_int_equal(admin.err.code, BERTH_TOO_LARGE);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL); /* the same files need no second try */
    assert_null(rig_sent(rig, BERTH_WORKER_LOAD));
    assert_int_equal(admin.err.code, BERTH_TOO_LARGE);
    write_config(&yard, "a", "backend: \"identity\" max_batch_size: 2 # small again");
    rig->load_bytes = 0;
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    assert_int_equal(admin.err.code, BERTH_OK);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    assert_int_equal(batch_of(&yard, "a"), 2);
    yard_close(&yard);
}

static uint64_t scans(struct yard *yard)
{
    struct berth_sched_stats stats;
    berth_sched_stats(yard->rig.sched, &stats);
    return stats.scans;
}

/* S17: who wants the catalogue filled waits for the look that is under way, and causes none. */
static void waiting_for_the_start_is_no_scan(void **state)
{
    static const enum berth_control_mode modes[] = {BERTH_CONTROL_DEMAND, BERTH_CONTROL_NONE};
    for (size_t i = 0; i < BERTH_COUNT_OF(modes); i++) {
        struct yard yard;
        struct berth_admin admin, again;
        yard_open(&yard, modes[i]);
        rig_begin(&yard.rig);
        ask_admin(&yard, &admin, BERTH_ADMIN_BEGUN, NULL, NULL);
        if (modes[i] == BERTH_CONTROL_NONE) { /* then the loads belong to the start */
            assert_null(yard.rig.admin_back);
            finish_kind(&yard, BERTH_WORKER_LOAD);
        }
        assert_ptr_equal(yard.rig.admin_back, &admin);
        assert_int_equal(admin.err.code, BERTH_OK);
        assert_true(listed(&yard, "a") && listed(&yard, "b"));
        assert_int_equal(scans(&yard), 1);
        ask_admin(&yard, &again, BERTH_ADMIN_BEGUN, NULL, NULL); /* long over */
        assert_ptr_equal(yard.rig.admin_back, &again);
        assert_int_equal(scans(&yard), 1);
        ask_admin(&yard, &again, BERTH_ADMIN_SCAN, NULL, NULL);
        assert_int_equal(scans(&yard), 2);
        yard_close(&yard);
    }
}

static void a_start_that_cannot_read_says_so(void **state)
{
    struct yard yard;
    struct berth_admin admin;
    yard_open(&yard, BERTH_CONTROL_DEMAND);
    assert_int_equal(nftw(yard.path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    rig_begin(&yard.rig);
    ask_admin(&yard, &admin, BERTH_ADMIN_BEGUN, NULL, NULL);
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_equal(admin.err.code, BERTH_UNAVAILABLE);
    assert_int_equal(mkdir(yard.path, 0755), 0);
    yard_close(&yard);
}

static void destroy_while_somebody_waits_for_the_start(void **state)
{
    struct yard yard;
    struct berth_admin admins[3];
    yard_open(&yard, BERTH_CONTROL_DEMAND);
    rig_begin(&yard.rig);
    for (size_t i = 0; i < 3; i++) {
        admins[i] = (struct berth_admin){.on_done = rig_admin_done, .reply = &yard.rig.replies,
                                         .kind = BERTH_ADMIN_BEGUN, .state = &yard.rig};
        berth_sched_admin(yard.rig.sched, &admins[i]);
    }
    rig_turn(&yard.rig);
    yard_close(&yard);
    assert_non_null(yard.rig.admin_back);
}

static const char *const gpu_engines[] = {"null", NULL};

static enum berth_code gpu_refuses; /* OK: nothing */
static uint64_t gpu_bytes;          /* that a load there comes to */

static void gpu_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    msg->instance_count = msg->slots = 1;
    if (msg->kind == BERTH_WORKER_LOAD && gpu_refuses != BERTH_OK) {
        (void)berth_fail(&msg->err, gpu_refuses, "not now");
    }
    msg->bytes_used = msg->kind == BERTH_WORKER_LOAD ? gpu_bytes : 0;
    berth_queue_post(worker->replies, &msg->post.link);
}

/* A yard whose CPU has a GPU beside it, which is not well; gpu and workers live as long. */
static void open_beside_gpu(struct yard *yard, struct berth_worker *gpu,
                            struct berth_worker *workers[2])
{
    static const struct berth_worker_ops gpu_ops = {
        .name = "gpu", .send = gpu_send, .destroy = rig_no_destroy};
    *gpu = (struct berth_worker){.ops = &gpu_ops, .device = "cuda:0", .parallel_max = 1,
                                 .bytes_max = 200, .engines = gpu_engines};
    yard_open(yard, BERTH_CONTROL_EXPLICIT);
    workers[0] = &yard->rig.worker;
    workers[1] = gpu;
    yard->rig.options.workers = workers;
    yard->rig.options.worker_count = 2;
    atomic_store(&gpu->condition, BERTH_WORKER_FAILING);
    rig_begin(&yard->rig);
    until_idle(yard);
}

/* S15: an operator's load moves a model to the GPU that did not take it before, if that is well
 * now; and else changes nothing. */
static void a_load_brings_a_model_back_to_the_gpu(void **state)
{
    struct berth_worker gpu, *workers[2];
    struct yard yard;
    struct berth_admin admin;
    open_beside_gpu(&yard, &gpu, workers);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    struct berth_model *model = berth_catalog_find(yard.rig.catalog, "a", 0);
    assert_string_equal(atomic_load(&model->device), "fake:0");
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 0);
    atomic_store(&gpu.condition, BERTH_WORKER_READY);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_UNLOAD); /* the CPU's */
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_string_equal(atomic_load(&model->device), "cuda:0");
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL); /* there it is */
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_equal(atomic_load(&model->stats.loads), 2);
    berth_model_release(model);
    yard_close(&yard);
}

/* S15: a load asks the GPU again, which does not take it again: the CPU's copy stays, and there is
 * never a second one. With other files it is replaced. */
static void a_load_leaves_what_no_gpu_takes(void **state)
{
    struct berth_worker gpu, *workers[2];
    struct yard yard;
    struct berth_admin admin;
    char why[240];
    open_beside_gpu(&yard, &gpu, workers);
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    struct berth_model *model = berth_catalog_find(yard.rig.catalog, "a", 0);
    assert_string_equal(berth_model_place(model, why, sizeof(why)), "fake:0");
    atomic_store(&gpu.condition, BERTH_WORKER_READY);
    for (int i = 0; i < 2; i++) { /* refused, then loaded and too large */
        gpu_refuses = i == 0 ? BERTH_UNAVAILABLE : BERTH_OK;
        gpu_bytes = i == 0 ? 0 : 201;
        ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
        assert_int_equal(rig_count(&yard.rig, BERTH_WORKER_LOAD), 0);
        assert_ptr_equal(yard.rig.admin_back, &admin);
        assert_int_equal(admin.err.code, BERTH_OK);
        assert_int_equal(yard.rig.loads, 1);
        assert_string_equal(berth_model_place(model, why, sizeof(why)), "fake:0");
        assert_non_null(strstr(why, i == 0 ? "not now" : "it took 201"));
        assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
        rig_advance(&yard.rig, 31 * BERTH_NS_PER_S);
    }
    write_config(&yard, "a", "backend: \"identity\" max_batch_size: 3");
    ask_admin(&yard, &admin, BERTH_ADMIN_LOAD, "a", NULL);
    finish_kind(&yard, BERTH_WORKER_LOAD);
    finish_kind(&yard, BERTH_WORKER_UNLOAD);
    assert_ptr_equal(yard.rig.admin_back, &admin);
    assert_int_equal(yard.rig.loads, 2);
    assert_int_equal(yard.rig.loaded_count, 1);
    assert_int_equal(batch_of(&yard, "a"), 3);
    gpu_refuses = BERTH_OK;
    gpu_bytes = 0;
    berth_model_release(model);
    yard_close(&yard);
}

int main(void)
{
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_loads_all),
        cmocka_unit_test(demand_lists_and_waits),
        cmocka_unit_test(broken_models_fail_alone),
        cmocka_unit_test(explicit_loads_at_start_and_by_operation),
        cmocka_unit_test(a_changed_model_is_reloaded_on_load),
        cmocka_unit_test(what_serves_says_why_it_is_not_newer),
        cmocka_unit_test(new_files_are_not_refused_for_what_the_old_ones_took),
        cmocka_unit_test(poll_follows_the_folder),
        cmocka_unit_test(destroy_while_the_disk_is_read),
        cmocka_unit_test(poll_keeps_the_back_off),
        cmocka_unit_test(waiting_for_the_start_is_no_scan),
        cmocka_unit_test(a_start_that_cannot_read_says_so),
        cmocka_unit_test(destroy_while_somebody_waits_for_the_start),
        cmocka_unit_test(a_load_brings_a_model_back_to_the_gpu),
        cmocka_unit_test(a_load_leaves_what_no_gpu_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
