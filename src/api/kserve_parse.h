/* kserve_parse.h - from a KServe inference body to a request's inputs; private to api/. Knows no
 * connection, so that it can be fuzzed and, later, shared.
 */
#ifndef BERTH_KSERVE_PARSE_H
#define BERTH_KSERVE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"
#include "request/request.h"

#define BERTH_KSERVE_IO_MAX 256
#define BERTH_KSERVE_PARAMETERS_MAX 256

/* What goes in, and how the answer must look. */
struct berth_kserve_form {
    struct berth_request *request;       /* its body is parsed; inputs, params, outputs are set */
    const struct berth_model_spec *spec; /* completed */
    const char *header_length;           /* Inference-Header-Content-Length, or NULL */
    uint64_t json_bytes_max;
    bool binary_all;                     /* binary_data_output */
    bool binary[BERTH_KSERVE_IO_MAX];    /* of each wanted output */
};

/* INVALID, TOO_LARGE, NOT_FOUND (shared memory), BUSY; on OK the request fits its model. */
enum berth_code berth_kserve_parse(struct berth_kserve_form *form,
                                   struct berth_err *err) BERTH_MUST_USE;

#endif
