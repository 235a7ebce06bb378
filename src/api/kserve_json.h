/* kserve_json.h - KServe's JSON form of tensors; private to api/. */
#ifndef BERTH_KSERVE_JSON_H
#define BERTH_KSERVE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/slab.h"
#include "request/request.h"

/* Reads "data", flat or nested, into the bytes of a tensor of that type. */
enum berth_code berth_kserve_read_data(json_t *items, enum berth_dtype dtype, struct berth_buf *out,
                                       size_t *count, struct berth_err *err) BERTH_MUST_USE;
/* One member of "outputs". */
void berth_kserve_put_tensor(struct berth_buf *out, const struct berth_tensor *tensor,
                             struct berth_slabs *slabs, bool binary);
/* A double as Triton prints it: the shortest digits that read back the same. */
void berth_kserve_put_double(struct berth_buf *out, double value);
/* The field of an error in a request that Triton's front end could not parse: it says 500. */
extern const char berth_kserve_unparsed[];

#endif
