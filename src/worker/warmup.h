/* warmup.h - the requests a model's config asks to be run before it serves (model_warmup). */
#ifndef BERTH_WARMUP_H
#define BERTH_WARMUP_H

#include "base/err.h"
#include "base/slab.h"
#include "engine/engine.h"
#include "model/model.h"
#include "request/request.h"

/* One request with a sample's inputs: zeros, random values (the same each time) or a file under
 * <model>/warmup/. The caller releases it. */
enum berth_code berth_warmup_make(const struct berth_model_spec *spec,
                                  const struct berth_warmup *sample, struct berth_slabs *slabs,
                                  struct berth_request **out,
                                  struct berth_err *err) BERTH_MUST_USE;
/* Runs it on one instance and throws the answer away. */
enum berth_code berth_warmup_run(const struct berth_engine_ops *engine,
                                 const struct berth_model_spec *spec,
                                 struct berth_instance *instance, struct berth_request *request,
                                 struct berth_err *err) BERTH_MUST_USE;

#endif
