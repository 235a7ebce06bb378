/* check.h - does a request fit its model? The texts are Triton's, which clients know.
 *
 * Threads: any; reads the spec only.
 */
#ifndef BERTH_CHECK_H
#define BERTH_CHECK_H

#include "base/err.h"
#include "model/model.h"
#include "request/request.h"

/* Names, types, shapes and byte lengths of request->inputs, names of outputs_wanted; sets
 * request->batch_rows. After OK an engine may rely on all of it. INVALID otherwise. */
enum berth_code berth_model_check(const struct berth_model_spec *spec,
                                  struct berth_request *request,
                                  struct berth_err *err) BERTH_MUST_USE;

#endif
