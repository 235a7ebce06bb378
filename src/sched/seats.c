/* seats.c - the instances of a loaded copy, each with the memory of the one message that works on
 * it: made when the load is done, so that serving takes none. */
#include <inttypes.h>

#include "sched/controller.h"

#define SLOTS_MAX 4096

static bool seat_create(struct berth_seat *seat, struct berth_copy *copy, uint32_t slots);

enum berth_code berth_seats_create(struct berth_copy *copy, uint32_t instances, uint32_t slots,
                                   struct berth_err *err)
{
    if (instances == 0 || slots == 0 || slots > SLOTS_MAX) {
        if (copy->spec->run_mode == BERTH_RUN_STEPS || instances == 0) {
            return berth_fail(err, BERTH_INTERNAL,
                              "the engine made %" PRIu32 " instances of %" PRIu32 " slots",
                              instances, slots);
        }
    }
    copy->seats = berth_alloc(instances * sizeof(*copy->seats));
    if (copy->seats == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    copy->seat_count = instances;
    for (uint32_t i = 0; i < instances; i++) {
        copy->seats[i].index = i;
        if (!seat_create(&copy->seats[i], copy, slots)) {
            return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
        }
    }
    return BERTH_OK;
}

void berth_seats_destroy(struct berth_copy *copy)
{
    for (size_t i = 0; i < copy->seat_count; i++) {
        struct berth_seat *seat = &copy->seats[i];
        BERTH_ASSERT(!seat->busy && seat->live == 0);
        berth_free(seat->rows);
        berth_free(seat->tickets);
        berth_free(seat->slots);
        berth_free(seat->drops);
        berth_free(seat->step);
    }
    berth_free(copy->seats);
    copy->seats = NULL;
    copy->seat_count = 0;
}

static bool seat_create(struct berth_seat *seat, struct berth_copy *copy, uint32_t slots)
{
    bool in_steps = copy->spec->run_mode == BERTH_RUN_STEPS;
    uint64_t row_max = copy->spec->batch_size_max;
    if (copy->spec->batching == BERTH_BATCHING_NONE || row_max == 0) {
        row_max = 1;
    }
    if (in_steps) {
        row_max = slots;
    }
    if (row_max > BERTH_BATCH_REQUESTS_MAX && !in_steps) {
        row_max = BERTH_BATCH_REQUESTS_MAX;
    }
    seat->copy = copy;
    seat->row_max = (size_t)row_max;
    seat->rows = berth_alloc(seat->row_max * sizeof(*seat->rows));
    seat->tickets = berth_alloc(seat->row_max * sizeof(struct berth_ticket *));
    if (seat->rows == NULL || seat->tickets == NULL) {
        return false;
    }
    if (!in_steps) {
        return true;
    }
    seat->slot_count = slots;
    seat->slots = berth_alloc(slots * sizeof(struct berth_ticket *));
    seat->drops = berth_alloc(slots * sizeof(*seat->drops));
    seat->step = berth_alloc(sizeof(*seat->step));
    return seat->slots != NULL && seat->drops != NULL && seat->step != NULL;
}
