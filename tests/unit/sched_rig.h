/* sched_rig.h - what the controller's tests stand on: virtual time, and a worker whose messages the
 * test ends when it likes.
 *
 * The fake worker checks what every worker may rely on: a model runs only while it is loaded, an
 * instance never twice at once, no more at a time than parallel_max, no unload under a run, batches
 * within bounds. Each client checks the answer law.
 */
#ifndef BERTH_SCHED_RIG_H
#define BERTH_SCHED_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sched/sched.h"

#define RIG_MS BERTH_NS_PER_MS
#define RIG_SENT_MAX 512
#define RIG_SLOTS 64

#define RIG_FN static __attribute__((unused)) /* not each test uses each function */

struct rig_client {
    struct berth_request *request;
    int64_t dims[2];
    size_t parts;
    size_t finals;
    enum berth_code code;
    uint32_t retry_after_ms;
    char msg[240];
    uint64_t t_answered_ns;
    size_t order; /* of its final answer among all */
    struct rig *rig;
};

struct rig_loaded { /* what the fake worker has loaded */
    uint64_t load_id;
    const struct berth_model *model;
    struct berth_request *slots[8][RIG_SLOTS]; /* by instance */
};

struct rig {
    struct berth_slabs *slabs;
    struct berth_catalog *catalog;
    struct berth_sched *sched;
    struct berth_worker worker;
    struct berth_worker *workers[1];
    struct berth_sched_options options;
    struct berth_queue replies; /* where clients' parts go */
    uint64_t now_ns;
    uint64_t t_next_ns;
    bool auto_all; /* messages end as soon as they are sent */
    uint32_t instances;
    uint64_t load_bytes; /* what a load is measured at; 0: the spec's estimate */
    struct berth_worker_msg *sent[RIG_SENT_MAX];
    size_t sent_count;
    size_t runs_under_way;
    struct rig_loaded loaded[64];
    size_t loaded_count;
    size_t loads, unloads, runs, steps, describes;
    size_t finals;
    struct berth_admin *admin_back;
};

RIG_FN void rig_end(struct rig *rig, struct berth_worker_msg *msg, uint64_t run_ns);

RIG_FN struct rig *rig_of(struct berth_worker *worker)
{
    return BERTH_CONTAINER_OF(worker, struct rig, worker);
}

RIG_FN struct rig_loaded *rig_loaded_find(struct rig *rig, uint64_t load_id)
{
    for (size_t i = 0; i < rig->loaded_count; i++) {
        if (rig->loaded[i].load_id == load_id) {
            return &rig->loaded[i];
        }
    }
    return NULL;
}

RIG_FN void rig_forget_loaded(struct rig *rig, uint64_t load_id)
{
    struct rig_loaded *loaded = rig_loaded_find(rig, load_id);
    assert_non_null(loaded);
    *loaded = rig->loaded[rig->loaded_count - 1];
    rig->loaded_count--;
}

RIG_FN void rig_send(struct berth_worker *worker, struct berth_worker_msg *msg)
{
    struct rig *rig = rig_of(worker);
    bool runs = msg->kind == BERTH_WORKER_RUN || msg->kind == BERTH_WORKER_STEP;
    assert_true(rig->sent_count < RIG_SENT_MAX);
    if (runs) {
        assert_true(rig->runs_under_way < worker->parallel_max);
        assert_non_null(rig_loaded_find(rig, msg->load_id));
        assert_true(msg->kind == BERTH_WORKER_STEP || msg->batch.row_count > 0);
    }
    for (size_t i = 0; i < rig->sent_count; i++) {
        struct berth_worker_msg *other = rig->sent[i];
        if (other->load_id == msg->load_id && other->kind != BERTH_WORKER_DESCRIBE) {
            assert_true(runs && other->instance != msg->instance);
        }
    }
    rig->runs_under_way += runs;
    msg->epoch = atomic_load(&worker->epoch);
    rig->sent[rig->sent_count++] = msg;
    if (rig->auto_all) {
        rig_end(rig, msg, RIG_MS);
    }
}

RIG_FN void rig_no_destroy(struct berth_worker *worker)
{
}

static const struct berth_worker_ops rig_ops = {
    .name = "fake", .send = rig_send, .destroy = rig_no_destroy};

RIG_FN void rig_open(struct rig *rig)
{
    struct berth_err err = {0};
    struct berth_slabs_options slabs = {.bytes_budget = 1 << 24, .bytes_pool_max = 1 << 20};
    *rig = (struct rig){0};
    assert_int_equal(berth_slabs_create(&slabs, &rig->slabs, &err), BERTH_OK);
    assert_int_equal(berth_catalog_create(&rig->catalog, &err), BERTH_OK);
    assert_int_equal(berth_queue_init(&rig->replies, 0, &err), BERTH_OK);
    rig->worker = (struct berth_worker){
        .ops = &rig_ops, .device = "fake:0", .parallel_max = 2, .bytes_max = 1000};
    rig->workers[0] = &rig->worker;
    rig->now_ns = 1000 * BERTH_NS_PER_S;
    rig->instances = 1;
    rig->options = (struct berth_sched_options){
        .catalog = rig->catalog,
        .workers = rig->workers,
        .worker_count = 1,
        .mode = BERTH_CONTROL_DEMAND,
        .poll_ns = BERTH_NS_PER_S,
        .queue_max = 64,
        .model_queue_max = 32,
        .request_timeout_ns = 60 * BERTH_NS_PER_S,
        .cold_wait_ns = 10 * BERTH_NS_PER_S,
        .load_backoff_ns = BERTH_NS_PER_S,
        .loads_max = 2,
    };
}

RIG_FN void rig_begin(struct rig *rig)
{
    struct berth_err err = {0};
    assert_int_equal(berth_sched_create(&rig->options, &rig->sched, &err), BERTH_OK);
}

/* A spec in the catalogue's form; the caller adjusts it before rig_put. */
RIG_FN struct berth_model_spec *rig_spec(const char *name)
{
    struct berth_model_spec *spec = berth_spec_create();
    assert_non_null(spec);
    spec->name = berth_arena_strdup(&spec->arena, name);
    assert_non_null(spec->name);
    spec->version = 1;
    spec->engine = "fake";
    spec->folder = "";
    spec->task = "";
    spec->batch_size_max = 8;
    spec->bytes_estimate = 100;
    spec->completed = true;
    return spec;
}

RIG_FN struct berth_model *rig_put(struct rig *rig, struct berth_model_spec *spec)
{
    struct berth_err err = {0};
    struct berth_model *model = NULL;
    assert_int_equal(berth_catalog_put(rig->catalog, spec, &model, &err), BERTH_OK);
    atomic_store(&model->listed, true);
    return model; /* retained; rig_drop gives it back */
}

RIG_FN void rig_on_part(struct berth_post *post)
{
    struct berth_part *part = BERTH_CONTAINER_OF(post, struct berth_part, post);
    struct rig_client *client = part->request->owner;
    if (client != NULL) {
        client->parts++;
        assert_int_equal(client->finals, 0); /* nothing after the final part */
        if (part->final) {
            client->finals++;
            client->code = part->err.code;
            client->retry_after_ms = part->err.retry_after_ms;
            memcpy(client->msg, part->err.msg, sizeof(client->msg));
            client->t_answered_ns = client->rig->now_ns;
            client->order = client->rig->finals++;
        }
    }
    berth_part_destroy(part);
}

RIG_FN void rig_replies(struct rig *rig)
{
    struct berth_link posts;
    berth_list_init(&posts);
    (void)berth_queue_take(&rig->replies, &posts);
    struct berth_link *link;
    while ((link = berth_list_pop(&posts)) != NULL) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
}

RIG_FN void rig_turn(struct rig *rig)
{
    rig->t_next_ns = berth_sched_turn(rig->sched, rig->now_ns);
    rig_replies(rig);
}

RIG_FN void rig_advance(struct rig *rig, uint64_t ns)
{
    rig->now_ns += ns;
    rig_turn(rig);
}

/* A request of `rows` rows of `width` numbers; not submitted yet. false: no memory. */
RIG_FN bool rig_request(struct rig *rig, struct rig_client *client, struct berth_model *model,
                        uint64_t rows, int64_t width)
{
    *client = (struct rig_client){.rig = rig};
    struct berth_request *request = berth_request_create(rig->slabs, 1 << 16);
    if (request == NULL) {
        return false;
    }
    client->request = request;
    request->inputs = berth_arena_alloc(&request->arena, sizeof(*request->inputs));
    if (request->inputs == NULL) {
        berth_request_release(request);
        client->request = NULL;
        return false;
    }
    request->inputs[0] = (struct berth_tensor){.name = "INPUT0", .dtype = BERTH_DTYPE_FP32,
                                               .rank = 2, .dims = {(int64_t)rows, width}};
    request->input_count = 1;
    request->model = model;
    request->batch_rows = rows;
    request->reply = &rig->replies;
    request->on_part = rig_on_part;
    request->owner = client;
    return true;
}

RIG_FN enum berth_code rig_submit(struct rig *rig, struct rig_client *client)
{
    struct berth_err err = {0};
    enum berth_code code = berth_sched_submit(rig->sched, client->request, &err);
    if (code != BERTH_OK) {
        client->code = code;
        client->retry_after_ms = err.retry_after_ms;
        memcpy(client->msg, err.msg, sizeof(client->msg));
    }
    return code;
}

/* Makes, submits and lets the controller take it. */
RIG_FN void rig_ask(struct rig *rig, struct rig_client *client, struct berth_model *model)
{
    assert_true(rig_request(rig, client, model, 1, 4));
    assert_int_equal(rig_submit(rig, client), BERTH_OK);
    rig_turn(rig);
}

RIG_FN void rig_leave(struct rig_client *client)
{
    if (client->request != NULL) {
        client->request->owner = NULL;
        berth_request_release(client->request);
        client->request = NULL;
    }
}

RIG_FN struct berth_worker_msg *rig_sent(struct rig *rig, enum berth_worker_kind kind)
{
    for (size_t i = 0; i < rig->sent_count; i++) {
        if (rig->sent[i]->kind == kind) {
            return rig->sent[i];
        }
    }
    return NULL;
}

RIG_FN size_t rig_count(const struct rig *rig, enum berth_worker_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < rig->sent_count; i++) {
        count += rig->sent[i]->kind == kind;
    }
    return count;
}

RIG_FN void rig_take_off(struct rig *rig, struct berth_worker_msg *msg)
{
    for (size_t i = 0; i < rig->sent_count; i++) {
        if (rig->sent[i] == msg) {
            rig->sent[i] = rig->sent[--rig->sent_count];
            return;
        }
    }
    fail_msg("a message that was not sent");
}

RIG_FN void rig_do_run(struct berth_worker_msg *msg)
{
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        struct berth_row *row = &msg->batch.rows[i];
        row->part = NULL;
        if (row->err.code == BERTH_OK && msg->err.code == BERTH_OK) {
            row->part = berth_part_create(row->request);
            if (row->part == NULL) {
                (void)berth_fail(&row->err, BERTH_UNAVAILABLE, "out of memory");
            }
        }
    }
}

/* A step model's row ends in the step after its request's parameter-free life: row priority is not
 * used there, so batch_rows says how many steps it lives. */
RIG_FN void rig_do_step(struct rig *rig, struct berth_worker_msg *msg)
{
    struct rig_loaded *loaded = rig_loaded_find(rig, msg->load_id);
    struct berth_request **slots = loaded->slots[msg->instance];
    msg->step->event_count = 0;
    for (size_t i = 0; i < msg->drop_count; i++) {
        assert_non_null(slots[msg->drops[i]]);
        slots[msg->drops[i]] = NULL;
    }
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        uint32_t slot = 0;
        while (slots[slot] != NULL) {
            slot++;
            assert_true(slot < RIG_SLOTS);
        }
        slots[slot] = msg->batch.rows[i].request;
        msg->batch.rows[i].slot = slot;
    }
    for (uint32_t i = 0; i < RIG_SLOTS && msg->budget_ns > 0 && msg->err.code == BERTH_OK; i++) {
        if (slots[i] == NULL || msg->step->event_count == BERTH_STEP_EVENTS_MAX) {
            continue;
        }
        struct berth_step_event *event = &msg->step->events[msg->step->event_count++];
        *event = (struct berth_step_event){.slot = i};
        event->final = --slots[i]->batch_rows == 0 || atomic_load(&slots[i]->cancelled);
        if (atomic_load(&slots[i]->cancelled)) {
            (void)berth_fail(&event->err, BERTH_CANCELLED, "cancelled");
        } else {
            event->part = berth_part_create(slots[i]);
            if (event->part == NULL && event->final) {
                (void)berth_fail(&event->err, BERTH_UNAVAILABLE, "out of memory");
            }
        }
        if (event->final) {
            slots[i] = NULL;
        }
    }
}

/* Ends a message as the worker would; the test has put errors in msg->err or rows' err before. */
RIG_FN void rig_end(struct rig *rig, struct berth_worker_msg *msg, uint64_t run_ns)
{
    rig_take_off(rig, msg);
    msg->t_started_ns = rig->now_ns >= run_ns ? rig->now_ns - run_ns : 0;
    msg->t_ended_ns = rig->now_ns;
    switch (msg->kind) {
    case BERTH_WORKER_LOAD:
        rig->loads++;
        if (msg->err.code == BERTH_OK) {
            msg->bytes_used = rig->load_bytes > 0 ? rig->load_bytes : msg->spec->bytes_estimate;
            msg->instance_count = rig->instances;
            msg->slots = 4;
        }
        if (msg->err.code == BERTH_OK && msg->epoch == atomic_load(&rig->worker.epoch)) {
            assert_true(rig->loaded_count < 64);
            rig->loaded[rig->loaded_count++] =
                (struct rig_loaded){.load_id = msg->load_id, .model = msg->model};
        }
        break;
    case BERTH_WORKER_UNLOAD:
        rig->unloads++;
        rig_forget_loaded(rig, msg->load_id);
        break;
    case BERTH_WORKER_RUN:
        rig->runs++;
        rig->runs_under_way--;
        rig_do_run(msg);
        break;
    case BERTH_WORKER_STEP:
        rig->steps++;
        rig->runs_under_way--;
        rig_do_step(rig, msg);
        break;
    case BERTH_WORKER_DESCRIBE:
        rig->describes++;
        msg->spec->completed = true;
        break;
    }
    berth_queue_post(rig->worker.replies, &msg->post.link);
}

/* Ends the first message of a kind after run_ns of virtual time. */
RIG_FN void rig_finish(struct rig *rig, enum berth_worker_kind kind, uint64_t run_ns)
{
    struct berth_worker_msg *msg = rig_sent(rig, kind);
    assert_non_null(msg);
    rig->now_ns += run_ns;
    rig_end(rig, msg, run_ns);
    rig_turn(rig);
}

/* A warm model: asked for once, loaded, answered. */
RIG_FN struct berth_model *rig_warm(struct rig *rig, struct berth_model_spec *spec)
{
    struct rig_client client;
    struct berth_model *model = rig_put(rig, spec);
    bool steps = spec->run_mode == BERTH_RUN_STEPS;
    rig_ask(rig, &client, model);
    rig_finish(rig, BERTH_WORKER_LOAD, 10 * RIG_MS);
    if (!steps && rig_sent(rig, BERTH_WORKER_RUN) == NULL) { /* its delay */
        rig_advance(rig, BERTH_NS_PER_S);
    }
    rig_finish(rig, steps ? BERTH_WORKER_STEP : BERTH_WORKER_RUN, RIG_MS);
    assert_int_equal(client.finals, 1);
    assert_int_equal(client.code, BERTH_OK);
    rig_leave(&client);
    return model;
}

/* The catalogue keeps the model; this gives back rig_put's reference. */
RIG_FN void rig_drop(struct berth_model *model)
{
    berth_model_release(model);
}

RIG_FN void rig_admin_done(struct berth_post *post)
{
    struct berth_admin *admin = BERTH_CONTAINER_OF(post, struct berth_admin, post);
    struct rig *rig = admin->state;
    rig->admin_back = admin;
}

RIG_FN void rig_admin(struct rig *rig, struct berth_admin *admin, enum berth_admin_kind kind,
                      const char *name)
{
    *admin = (struct berth_admin){.on_done = rig_admin_done, .reply = &rig->replies,
                                  .kind = kind, .name = name, .state = rig};
    berth_sched_admin(rig->sched, admin);
    rig_turn(rig);
}

/* Ends what is under way, takes everything down and checks that nothing is left. */
RIG_FN void rig_close(struct rig *rig)
{
    rig->auto_all = true;
    while (rig->sent_count > 0) {
        rig_end(rig, rig->sent[0], 0);
    }
    berth_sched_destroy(rig->sched);
    rig_replies(rig);
    assert_int_equal(rig->loaded_count, 0);
    berth_queue_finish(&rig->replies);
    berth_catalog_destroy(rig->catalog);
    struct berth_slabs_stats stats;
    berth_slabs_stats(rig->slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    berth_slabs_destroy(rig->slabs);
    assert_int_equal(berth_mem_bytes_live(), 0);
}

#endif
