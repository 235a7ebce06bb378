/* process_describe.c - DESCRIBE for a worker process. It only reads files, and is done in the
 * server by a thread that is made for the first of them, so that a spec need not travel back.
 */
#include "worker/process_worker.h"

#include "base/clock.h"

static void *describe_main(void *argument);

void berth_process_describe(struct berth_process_worker *worker, struct berth_worker_msg *msg)
{
    if (!worker->has_describer) {
        worker->has_describer =
            pthread_create(&worker->describer, NULL, describe_main, worker) == 0;
    }
    if (worker->has_describer) {
        berth_queue_post(&worker->describes, &msg->post.link);
        return;
    }
    struct berth_err err = {0};
    (void)berth_fail(&err, BERTH_UNAVAILABLE, "cannot start a thread that reads models");
    berth_message_fail(worker, msg, &err);
}

void berth_process_describe_stop(struct berth_process_worker *worker)
{
    atomic_store(&worker->stop_describer, true);
    berth_queue_nudge(&worker->describes);
    pthread_join(worker->describer, NULL);
}

static void *describe_main(void *argument)
{
    struct berth_process_worker *worker = argument;
    struct berth_link posts;
    berth_list_init(&posts);
    for (;;) {
        bool stops = atomic_load(&worker->stop_describer); /* before, as in io_main */
        while (berth_queue_take(&worker->describes, &posts)) {
            struct berth_link *link;
            while ((link = berth_list_pop(&posts)) != NULL) {
                struct berth_worker_msg *msg =
                    BERTH_CONTAINER_OF(link, struct berth_worker_msg, post.link);
                msg->t_started_ns = berth_clock_now_ns();
                msg->err.code = berth_loaded_describe(
                    worker->options.engine_find(msg->spec->engine), msg->spec, &msg->err);
                msg->t_ended_ns = berth_clock_now_ns();
                bool goes_on = msg->kind == BERTH_WORKER_LOAD && msg->err.code == BERTH_OK;
                berth_queue_post(goes_on ? &worker->queue : worker->base.replies,
                                 &msg->post.link);
            }
        }
        if (stops) {
            return NULL;
        }
        berth_queue_wait(&worker->describes, 0);
    }
}
