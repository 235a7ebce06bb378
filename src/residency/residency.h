/* residency.h - the ledger of one device: who holds memory, and who leaves when it is short.
 *
 * In:      reserve, correct, pin, unpin, leave, release.   Out: OK, BUSY, TOO_LARGE; victims.
 * Owns:    nothing but the sums.                           Borrows: leases, while they are in it.
 * Threads: the controller's only.
 * Rules:   README.md here, R1 to R9.
 * Not here: loading and unloading themselves (sched/copies.c), measuring bytes (engines).
 */
#ifndef BERTH_RESIDENCY_H
#define BERTH_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/queue.h"

/* What one loaded copy of a model holds. Embedded in its owner; zeroed memory is an empty lease. */
struct berth_lease {
    struct berth_link link; /* in the ledger while it holds bytes */
    uint64_t bytes;
    uint64_t pins;          /* queued and running work, a load under way: never a victim (R3) */
    bool keep;              /* loaded by a person's or the start's decision: never a victim (R3) */
    bool leaving;           /* its unload is under way; the bytes count until that is done (R4) */
    uint64_t t_used_ns;     /* last time it was pinned or unpinned */
    void *owner;            /* the user's own */
};

struct berth_residency {
    uint64_t bytes_max;     /* 0: no limit */
    uint64_t bytes_used;    /* sum of all leases */
    uint64_t bytes_leaving; /* of those, what leaves */
    const char *device;     /* borrowed; "cpu:0"; for errors */
    struct berth_link leases;
};

void berth_residency_init(struct berth_residency *ledger, uint64_t bytes_max,
                          const char *device);
/* Books bytes before a load (R1). BUSY: not now, TOO_LARGE: never; the lease is untouched then. On
 * OK the lease is pinned once. */
enum berth_code berth_residency_reserve(struct berth_residency *ledger, struct berth_lease *lease,
                                        uint64_t bytes, struct berth_err *err) BERTH_MUST_USE;
/* R6: it "needs", or "took" (verb), so many bytes. TOO_LARGE: more than the limit; else
 * UNAVAILABLE. */
enum berth_code berth_residency_refuse(const struct berth_residency *ledger, const char *verb,
                                       uint64_t bytes, struct berth_err *err);
/* Replaces what was reserved by what was measured (R2); the ledger may be over its limit then. */
void berth_residency_correct(struct berth_residency *ledger, struct berth_lease *lease,
                             uint64_t bytes);
void berth_residency_pin(struct berth_lease *lease, uint64_t now_ns);
void berth_residency_unpin(struct berth_lease *lease, uint64_t now_ns);
/* Its unload has been decided; it is no victim any more. */
void berth_residency_leave(struct berth_residency *ledger, struct berth_lease *lease);
/* Its memory is confirmed free. An empty lease is fine. */
void berth_residency_release(struct berth_residency *ledger, struct berth_lease *lease);
/* Bytes by which `more` would pass the limit once all that leaves is gone; 0: it fits then. */
uint64_t berth_residency_missing(const struct berth_residency *ledger, uint64_t more);
/* Sum of what could be evicted now. */
uint64_t berth_residency_evictable(const struct berth_residency *ledger);
/* The next to go: idle, not kept, least recently used (R5). NULL: none. */
struct berth_lease *berth_residency_victim(const struct berth_residency *ledger);

#endif
