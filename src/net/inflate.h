/* inflate.h - gzip and deflate request bodies, inflated as they come.
 *
 * Counts nothing and limits nothing itself: it never writes past the room it is given, so the
 * caller's budget for the output is the limit. Threads: one user at a time.
 */
#ifndef BERTH_INFLATE_H
#define BERTH_INFLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct berth_inflate;

/* NULL when there is no memory. */
struct berth_inflate *berth_inflate_create(bool gzip) BERTH_MUST_USE;
void berth_inflate_destroy(struct berth_inflate *inflate); /* NULL is fine */

struct berth_inflate_io {
    const void *in;
    size_t in_length;
    void *out;
    size_t out_length;
    size_t in_used;  /* set */
    size_t out_made; /* set */
};

/* INVALID: not what its header says, or bytes after the end. UNAVAILABLE: no memory. */
enum berth_code berth_inflate_run(struct berth_inflate *inflate, struct berth_inflate_io *io,
                                  struct berth_err *err) BERTH_MUST_USE;
bool berth_inflate_done(const struct berth_inflate *inflate);

#endif
