/* vmm.h - device memory whose addresses outlive it.
 *
 * A range is reserved address space; physical memory is mapped to it, unmapped and given back, and
 * mapped again at the same place, so that CUDA graphs and tables of pointers made over it stay
 * good. Mapped memory can be exported as a file descriptor and mapped read-only elsewhere.
 *
 * Owns:    addresses, physical memory.      Threads: a range has one owner at a time.
 * Rules:   README.md here, C3 to C6. Nobody reads a range while it is unmapped (C4).
 * Not here: what lies in the memory (weights.h), who may have it (residency/).
 */
#ifndef BERTH_VMM_H
#define BERTH_VMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct berth_vmm {
    uint64_t address; /* on the device; 0: nothing reserved */
    uint64_t bytes;   /* rounded up to what the device grants, 2 MiB */
    uint64_t memory;  /* CUDA's handle of the physical memory; 0: none held */
    int device;
    bool mapped;
};

/* Reserves addresses for at least `bytes`; takes no memory yet. */
enum berth_code berth_vmm_init(struct berth_vmm *range, int device, uint64_t bytes,
                               struct berth_err *err) BERTH_MUST_USE;
/* Gives memory and addresses back; all work that reads them is over. A zeroed range is fine. */
void berth_vmm_finish(struct berth_vmm *range);
/* Takes physical memory, contents undefined, and maps it. TOO_LARGE when the device never has so
 * much, UNAVAILABLE when it has not now. */
enum berth_code berth_vmm_map(struct berth_vmm *range, struct berth_err *err) BERTH_MUST_USE;
/* Gives the physical memory back and keeps the addresses; all work that reads it is over. While
 * an exported descriptor or another process' mapping lives, CUDA keeps the memory (C5). After an
 * error it may be asked again, for what is left to do; what is unmapped already is fine. */
enum berth_code berth_vmm_unmap(struct berth_vmm *range, struct berth_err *err) BERTH_MUST_USE;
/* A descriptor of the mapped memory, closed on exec; the caller owns it. */
enum berth_code berth_vmm_export(const struct berth_vmm *range, int *fd,
                                 struct berth_err *err) BERTH_MUST_USE;
/* Reserves addresses and maps another process' memory of `bytes` (its range's) there, to be read
 * only. Borrows fd until it returns. */
enum berth_code berth_vmm_import(struct berth_vmm *range, int device, uint64_t bytes, int fd,
                                 struct berth_err *err) BERTH_MUST_USE;
/* Physical memory taken by this process' ranges, imports not counted. Any thread. */
uint64_t berth_vmm_bytes_mapped(void);

#ifdef __cplusplus
}
#endif

#endif
