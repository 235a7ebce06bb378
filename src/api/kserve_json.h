/* kserve_json.h - KServe's JSON form of tensors; private to api/. */
#ifndef BERTH_KSERVE_JSON_H
#define BERTH_KSERVE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json_text.h"
#include "base/slab.h"
#include "request/request.h"

/* Reads "data", flat or nested, into the bytes of a tensor of that type. */
enum berth_code berth_kserve_read_data(const struct berth_json_value *items, enum berth_dtype dtype,
                                       struct berth_buf *out, size_t *count,
                                       struct berth_err *err) BERTH_MUST_USE;
/* Can it be told in JSON? FP16 and BF16 have no form there, and strings must be UTF-8. INVALID
 * names the output; INTERNAL: a model's strings are malformed, or not as many as its shape says. */
enum berth_code berth_kserve_check_json(const struct berth_tensor *tensor,
                                        struct berth_slabs *slabs,
                                        struct berth_err *err) BERTH_MUST_USE;
/* One member of "outputs"; not binary: berth_kserve_check_json said OK. Once out is longer than
 * length_max no more elements are written: the caller refuses it then. */
void berth_kserve_put_tensor(struct berth_buf *out, const struct berth_tensor *tensor,
                             struct berth_slabs *slabs, bool binary, size_t length_max);
/* A double as Triton prints it: the shortest digits that read back the same. */
void berth_kserve_put_double(struct berth_buf *out, double value);
/* The field of an error in a request that Triton's front end could not parse: it says 500. */
extern const char berth_kserve_unparsed[];

#endif
