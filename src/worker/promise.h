/* promise.h - is an answer what its model promises: its outputs, in their type and shape, each
 * once, and all that are wanted? One check for what engines answer, and for what worker processes
 * say that they did (P6).
 */
#ifndef BERTH_PROMISE_H
#define BERTH_PROMISE_H

#include "base/err.h"
#include "model/model.h"
#include "request/request.h"

/* An output that comes to part's present ones. Errors are INTERNAL. */
enum berth_code berth_promise_output(const struct berth_model_spec *spec,
                                     const struct berth_part *part,
                                     const struct berth_tensor *like,
                                     struct berth_err *err) BERTH_MUST_USE;
/* Nothing that is wanted is missing. */
enum berth_code berth_promise_whole(const struct berth_model_spec *spec,
                                    const struct berth_part *part,
                                    struct berth_err *err) BERTH_MUST_USE;
/* Both, of all that is in a part. */
enum berth_code berth_promise_part(const struct berth_model_spec *spec,
                                   const struct berth_part *part,
                                   struct berth_err *err) BERTH_MUST_USE;

#endif
