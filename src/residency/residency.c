/* residency.c - see residency.h. Plain sums and a list: some hundred leases at most, looked through
 * only when a load does not fit. The order of eviction is one function, so that the cost-aware one
 * takes its place without touching the rest. */
#include "residency/residency.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#include "base/mem.h"
#include "model/model.h"

#define SIZE_TEXT_BYTES 32

static bool evictable(const struct berth_lease *lease);
static void size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]);

void berth_residency_init(struct berth_residency *ledger, uint64_t bytes_max, const char *device)
{
    *ledger = (struct berth_residency){.bytes_max = bytes_max, .device = device};
    berth_list_init(&ledger->leases);
}

enum berth_code berth_residency_reserve(struct berth_residency *ledger, struct berth_lease *lease,
                                        uint64_t bytes, struct berth_err *err)
{
    BERTH_ASSERT(!berth_list_contains(&lease->link));
    if (ledger->bytes_max != 0 && bytes > ledger->bytes_max) { /* R6 */
        return berth_residency_refuse(ledger, "needs", bytes, err);
    }
    if (ledger->bytes_max != 0 && (ledger->bytes_used > ledger->bytes_max ||
                                   bytes > ledger->bytes_max - ledger->bytes_used)) {
        char need[SIZE_TEXT_BYTES];
        size_text(bytes, need);
        return berth_fail(err, BERTH_BUSY, "%s are not free on %s", need, ledger->device);
    }
    lease->bytes = bytes; /* R1 */
    lease->pins = 1;
    lease->leaving = false;
    ledger->bytes_used += bytes;
    berth_list_append(&ledger->leases, &lease->link);
    return BERTH_OK;
}

enum berth_code berth_residency_refuse(const struct berth_residency *ledger, const char *verb,
                                       uint64_t bytes, struct berth_err *err)
{
    bool never = bytes > ledger->bytes_max;
    char need[SIZE_TEXT_BYTES], limit[SIZE_TEXT_BYTES];
    size_text(bytes, need);
    size_text(ledger->bytes_max, limit);
    return berth_fail(err, never ? BERTH_TOO_LARGE : BERTH_UNAVAILABLE,
                      "it %s %s, and models on %s may hold %s together%s%s", verb, need,
                      ledger->device, limit,
                      berth_device_is_gpu(ledger->device) ? "" : " (--device-bytes-max)",
                      never ? "" : ": what is loaded is in use");
}

void berth_residency_correct(struct berth_residency *ledger, struct berth_lease *lease,
                             uint64_t bytes)
{
    BERTH_ASSERT(berth_list_contains(&lease->link));
    ledger->bytes_used = ledger->bytes_used - lease->bytes + bytes; /* R2 */
    if (lease->leaving) {
        ledger->bytes_leaving = ledger->bytes_leaving - lease->bytes + bytes;
    }
    lease->bytes = bytes;
}

void berth_residency_pin(struct berth_lease *lease, uint64_t now_ns)
{
    lease->pins++;
    lease->t_used_ns = now_ns;
}

void berth_residency_unpin(struct berth_lease *lease, uint64_t now_ns)
{
    BERTH_ASSERT(lease->pins > 0);
    lease->pins--;
    lease->t_used_ns = now_ns;
}

void berth_residency_leave(struct berth_residency *ledger, struct berth_lease *lease)
{
    if (berth_list_contains(&lease->link) && !lease->leaving) {
        lease->leaving = true;
        ledger->bytes_leaving += lease->bytes;
    }
}

void berth_residency_release(struct berth_residency *ledger, struct berth_lease *lease)
{
    if (!berth_list_contains(&lease->link)) {
        return;
    }
    berth_list_remove(&lease->link);
    ledger->bytes_used -= lease->bytes; /* R4 */
    if (lease->leaving) {
        ledger->bytes_leaving -= lease->bytes;
    }
    lease->bytes = 0;
    lease->leaving = false;
}

uint64_t berth_residency_missing(const struct berth_residency *ledger, uint64_t more)
{
    if (ledger->bytes_max == 0) {
        return 0;
    }
    uint64_t stays = ledger->bytes_used - ledger->bytes_leaving;
    if (stays > ledger->bytes_max) {
        return stays - ledger->bytes_max + more;
    }
    return more > ledger->bytes_max - stays ? more - (ledger->bytes_max - stays) : 0;
}

uint64_t berth_residency_evictable(const struct berth_residency *ledger)
{
    uint64_t sum = 0;
    BERTH_LIST_EACH(link, &ledger->leases) {
        const struct berth_lease *lease = BERTH_CONTAINER_OF(link, struct berth_lease, link);
        sum += evictable(lease) ? lease->bytes : 0;
    }
    return sum;
}

struct berth_lease *berth_residency_victim(const struct berth_residency *ledger)
{
    struct berth_lease *victim = NULL;
    BERTH_LIST_EACH(link, &ledger->leases) {
        struct berth_lease *lease = BERTH_CONTAINER_OF(link, struct berth_lease, link);
        if (evictable(lease) && (victim == NULL || lease->t_used_ns < victim->t_used_ns)) {
            victim = lease; /* R5 */
        }
    }
    return victim;
}

static bool evictable(const struct berth_lease *lease)
{
    return lease->pins == 0 && !lease->keep && !lease->leaving; /* R3 */
}

/* As `berth models` has it; what is less, to the byte. */
static void size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES])
{
    if (bytes < 1000) {
        snprintf(out, SIZE_TEXT_BYTES, "%" PRIu64 " bytes", bytes);
    } else {
        snprintf(out, SIZE_TEXT_BYTES, "%.1f %s", (double)bytes / (bytes < 1000000 ? 1e3 : 1e6),
                 bytes < 1000000 ? "kB" : "MB");
    }
}
