/* kserve_infer.c - KServe v2 inference over HTTP: a body becomes a request (kserve_parse.c), the
 * final part an answer in JSON, or in JSON followed by the outputs' bytes, which are never copied.
 */
#include <stdio.h>
#include <string.h>

#include "api/call.h"
#include "api/kserve_json.h"
#include "api/kserve_parse.h"
#include "base/clock.h"

static enum berth_code parse_and_submit(struct berth_call *call, struct berth_err *err);
static void on_part(struct berth_post *post);
static void answer_part(struct berth_call *call, struct berth_part *part);

enum berth_code berth_kserve_infer_head(struct berth_call *call, struct berth_err *err)
{
    BERTH_TRY(berth_kserve_find_model(call, call->segments[1], err));
    return berth_sched_judge(call->api->options.sched, call->model, call->t_deadline_ns, err);
}

enum berth_code berth_kserve_infer_end(struct berth_call *call, struct berth_err *err)
{
    BERTH_TRY(berth_call_open_request(call, on_part, err));
    call->request->body = berth_http_take_body(call->exchange);
    call->request->stamps.t_received_ns = berth_clock_now_ns();
    call->state = berth_arena_alloc(&call->arena, sizeof(struct berth_kserve_form));
    if (call->state == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    return parse_and_submit(call, err);
}

static enum berth_code parse_and_submit(struct berth_call *call, struct berth_err *err)
{
    struct berth_kserve_form *form = call->state;
    struct berth_model_spec *spec = NULL;
    BERTH_TRY(berth_call_spec(call, &spec, err));
    form->request = call->request;
    form->spec = spec;
    form->header_length = berth_http_header(call->exchange, "Inference-Header-Content-Length");
    form->json_bytes_max = call->api->options.json_bytes_max;
    enum berth_code code = berth_kserve_parse(form, err);
    form->spec = NULL;
    berth_spec_release(spec);
    BERTH_TRY(code);
    call->request->stamps.t_decoded_ns = call->request->stamps.t_received_ns;
    return berth_call_submit(call, err);
}

static void on_part(struct berth_post *post)
{
    struct berth_part *part = BERTH_CONTAINER_OF(post, struct berth_part, post);
    struct berth_call *call = part->request->owner;
    /* Only final answers have a place in this protocol; streams come with gRPC. */
    if (call == NULL || !part->final || call->exchange == NULL) {
        berth_part_destroy(part);
        return;
    }
    call->finished = true;
    if (part->err.code != BERTH_OK) {
        berth_call_fail(call, &part->err);
        berth_part_destroy(part);
        return;
    }
    answer_part(call, part);
}

static void release_part(void *part)
{
    berth_part_destroy(part);
}

/* Is this output wanted, and in which form? */
static bool output_binary(const struct berth_call *call, const char *name, bool *binary)
{
    const struct berth_kserve_form *form = call->state;
    const struct berth_request *request = call->request;
    *binary = form->binary_all;
    if (request->outputs_wanted == NULL) {
        return true;
    }
    for (size_t i = 0; i < request->output_wanted_count; i++) {
        if (strcmp(request->outputs_wanted[i], name) == 0) {
            *binary = form->binary[i];
            return true;
        }
    }
    return false;
}

static void answer_part(struct berth_call *call, struct berth_part *part)
{
    struct berth_request *request = call->request;
    struct berth_buf text = {0};
    struct berth_err err = {0};
    const uint64_t length_max = call->api->options.json_bytes_max;
    struct berth_range ranges[BERTH_KSERVE_IO_MAX];
    size_t range_count = 0;
    size_t written = 0;
    bool any_binary = false;
    berth_buf_puts(&text, "{");
    if (request->id_client[0] != '\0') {
        berth_buf_puts(&text, "\"id\":");
        berth_buf_json_string(&text, request->id_client, strlen(request->id_client));
        berth_buf_puts(&text, ",");
    }
    berth_buf_puts(&text, "\"model_name\":");
    berth_buf_json_string(&text, call->model->name, strlen(call->model->name));
    berth_buf_puts(&text, ",\"model_version\":\"");
    berth_buf_put_u64(&text, call->model->version);
    berth_buf_puts(&text, "\",\"outputs\":[");
    if (part->tensor_count > BERTH_KSERVE_IO_MAX) {
        berth_fail(&err, BERTH_UNSUPPORTED, "the model has more than %d outputs",
                   BERTH_KSERVE_IO_MAX);
    }
    for (size_t i = 0; err.code == BERTH_OK && i < part->tensor_count; i++) {
        const struct berth_tensor *tensor = &part->tensors[i];
        bool binary = false;
        if (!output_binary(call, tensor->name, &binary)) {
            continue;
        }
        if (!binary && berth_kserve_check_json(tensor, request->slabs, &err) != BERTH_OK) {
            break;
        }
        berth_buf_puts(&text, written++ == 0 ? "" : ",");
        berth_kserve_put_tensor(&text, tensor, request->slabs, binary, length_max);
        if (text.length > length_max) {
            berth_fail_field(&err, BERTH_TOO_LARGE, "outputs",
                             "JSON of more than %llu bytes; ask for large outputs by the binary "
                             "extension",
                             (unsigned long long)length_max);
        }
        any_binary = any_binary || binary;
        if (binary && tensor->range.length > 0) {
            ranges[range_count++] = tensor->range;
        }
    }
    berth_buf_puts(&text, "]}");
    if (err.code == BERTH_OK && !berth_buf_ok(&text)) {
        berth_fail(&err, BERTH_UNAVAILABLE, "no memory for the answer");
    }
    if (err.code != BERTH_OK) {
        berth_buf_finish(&text);
        berth_call_fail(call, &err);
        berth_part_destroy(part);
        return;
    }
    char length[24];
    snprintf(length, sizeof(length), "%zu", text.length);
    struct berth_http_header header = {"Inference-Header-Content-Length", length};
    berth_call_answer(
        call, &(struct berth_http_answer){.status = 200,
                                          .content_type = any_binary ? "application/octet-stream"
                                                                     : "application/json",
                                          .headers = &header,
                                          .header_count = any_binary ? 1 : 0,
                                          .text = &text,
                                          .ranges = ranges,
                                          .range_count = range_count,
                                          .release = release_part,
                                          .subject = part});
}
