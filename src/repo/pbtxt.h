/* pbtxt.h - reads protobuf's text format into a tree of fields with their places.
 *
 * In:      a whole file's text, hostile.   Out: nodes in the caller's arena.
 * Threads: any. Not here: which fields there are (model/config_tree.h checks that).
 */
#ifndef BERTH_PBTXT_H
#define BERTH_PBTXT_H

#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/config_tree.h"

#define BERTH_PBTXT_BYTES_MAX (1 << 20)
#define BERTH_PBTXT_DEPTH_MAX 32
#define BERTH_PBTXT_NODES_MAX 65536

/* A text and where it is from. */
struct berth_pbtxt {
    const char *text;
    size_t length;
    const char *label; /* "config.pbtxt"; stands in errors */
};

/* *out is the root message. INVALID: "label:line:column: text", columns in bytes from 1; TOO_LARGE
 * past one of the limits. */
enum berth_code berth_pbtxt_parse(const struct berth_pbtxt *source,
                                  struct berth_arena *arena, struct berth_config_node **out,
                                  struct berth_err *err) BERTH_MUST_USE;

#endif
