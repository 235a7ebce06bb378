/* runs.c - RUN messages: a batch goes out with what was picked, and comes back with its answers. */
#include "sched/controller.h"

struct berth_seat *berth_runs_idle_seat(const struct berth_copy *copy)
{
    for (size_t i = 0; i < copy->seat_count; i++) {
        if (!copy->seats[i].busy) {
            return &copy->seats[i];
        }
    }
    return NULL;
}

void berth_runs_start(struct berth_seat *seat)
{
    uint64_t batch_rows = 0;
    for (size_t i = 0; i < seat->ticket_count; i++) {
        struct berth_ticket *ticket = seat->tickets[i];
        berth_ticket_start(ticket);
        seat->rows[i] = (struct berth_row){.request = ticket->request};
        batch_rows += ticket->request->batch_rows;
    }
    seat->msg.kind = BERTH_WORKER_RUN;
    seat->msg.batch = (struct berth_batch){
        .rows = seat->rows, .row_count = seat->ticket_count, .batch_rows = batch_rows};
}

/* The counters first: a client that has its answer must find it counted. */
void berth_runs_finish(struct berth_seat *seat)
{
    struct berth_worker_msg *msg = &seat->msg;
    uint64_t run_ns = msg->t_ended_ns - msg->t_started_ns;
    berth_count_message(seat, msg->batch.batch_rows);
    for (size_t i = 0; i < msg->batch.row_count; i++) {
        struct berth_ticket *ticket = seat->tickets[i];
        struct berth_row *row = &seat->rows[i];
        const struct berth_err *err = msg->err.code != BERTH_OK   ? &msg->err
                                      : row->err.code != BERTH_OK ? &row->err
                                                                  : NULL;
        if (msg->not_begun && berth_ticket_retry(ticket)) {
            continue;
        }
        uint64_t rows = msg->batch.batch_rows == 0 ? 1 : msg->batch.batch_rows;
        uint64_t spent_ns = run_ns * ticket->request->batch_rows / rows;
        if (ticket->answered) {
            berth_count_waste(ticket, spent_ns); /* S12 */
        } else if (err == NULL) {
            berth_count_ran(ticket, seat, spent_ns);
        }
        berth_ticket_return(ticket, row->part, err);
        row->part = NULL;
    }
    seat->ticket_count = 0;
    msg->batch.row_count = 0;
}
