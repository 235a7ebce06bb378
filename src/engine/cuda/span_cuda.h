/* span_cuda.h - spans of weights on a GPU, for span.c. */
#ifndef BERTH_SPAN_CUDA_H
#define BERTH_SPAN_CUDA_H

#include "engine/engine.h"

/* `device`: "cuda:N". As berth_span_create. */
enum berth_code berth_span_cuda_create(const char *device, uint64_t bytes, struct berth_span *out,
                                       struct berth_err *err) BERTH_MUST_USE;
/* All work that reads the span is over. */
void berth_span_cuda_destroy(struct berth_span *span);
/* As berth_span_unmap and berth_span_map. All work that reads the span is over. */
enum berth_code berth_span_cuda_unmap(const struct berth_span *span,
                                      struct berth_err *err) BERTH_MUST_USE;
enum berth_code berth_span_cuda_map(const struct berth_span *span,
                                    struct berth_err *err) BERTH_MUST_USE;

#endif
