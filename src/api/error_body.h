/* error_body.h - an error as each protocol writes it (A5); private to api/. */
#ifndef BERTH_ERROR_BODY_H
#define BERTH_ERROR_BODY_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

/* In the form of the protocol to which the path belongs (NULL: it is not known yet); returns the
 * content type, which is static. */
const char *berth_error_body(const char *path, const struct berth_err *err, struct berth_buf *out);
void berth_openai_error_body(const struct berth_err *err, struct berth_buf *out);
/* The status of an error in KServe's API: Triton's, or, typed, the honest one. */
int berth_kserve_status(bool typed, const struct berth_err *err);

#endif
