/* error_body.c - see error_body.h. */
#include "api/error_body.h"

#include <string.h>

#include "api/kserve_json.h"

static void kserve_error_body(const struct berth_err *err, struct berth_buf *out);

const char *berth_error_body(const char *path, const struct berth_err *err, struct berth_buf *out)
{
    if (path != NULL && strncmp(path, "/v1/", 4) == 0) {
        berth_openai_error_body(err, out);
    } else {
        kserve_error_body(err, out);
    }
    return "application/json";
}

void berth_openai_error_body(const struct berth_err *err, struct berth_buf *out)
{
    static const char *const types[BERTH_CODE_COUNT] = {
        [BERTH_UNAUTHENTICATED] = "authentication_error",
        [BERTH_FORBIDDEN] = "permission_error",
        [BERTH_BUSY] = "rate_limit_error",
        [BERTH_INTERNAL] = "server_error",
        [BERTH_UNAVAILABLE] = "server_error",
        [BERTH_DEADLINE] = "server_error",
    };
    const char *code = berth_code_name(err->code);
    if (err->code == BERTH_NOT_FOUND && err->field != NULL && strcmp(err->field, "model") == 0) {
        code = "model_not_found";
    } else if (err->code == BERTH_UNAUTHENTICATED) {
        code = "invalid_api_key";
    }
    const char *type = types[err->code] == NULL ? "invalid_request_error" : types[err->code];
    berth_buf_puts(out, "{\"error\":{\"message\":");
    berth_buf_json_string(out, err->msg, strlen(err->msg));
    berth_buf_printf(out, ",\"type\":\"%s\",\"param\":", type);
    if (err->field == NULL) {
        berth_buf_puts(out, "null");
    } else {
        berth_buf_json_string(out, err->field, strlen(err->field));
    }
    berth_buf_printf(out, ",\"code\":\"%s\"}}", code);
}

int berth_kserve_status(bool typed, const struct berth_err *err)
{
    if (typed) {
        return berth_code_http(err->code);
    }
    switch (err->code) {
    case BERTH_INVALID: return err->field == berth_kserve_unparsed ? 500 : 400;
    case BERTH_CANCELLED: return 400;
    case BERTH_DEADLINE: return 503; /* "Request timeout expired" is UNAVAILABLE there */
    default: return berth_code_http(err->code);
    }
}

static void kserve_error_body(const struct berth_err *err, struct berth_buf *out)
{
    berth_buf_puts(out, "{\"error\":");
    berth_buf_json_string(out, err->msg, strlen(err->msg));
    berth_buf_puts(out, "}");
}
