/* speech_rig.h - a speech engine's model, loaded as a worker does it, and requests that are
 * stepped until they are answered. Include it after cmocka.
 */
#ifndef BERTH_SPEECH_RIG_H
#define BERTH_SPEECH_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "engine/engines.h"
#include "engine/span.h"

#define RIG_BUDGET_NS UINT64_C(50000000)

static struct berth_slabs *rig_slabs; /* the test's main makes it */

struct rig {
    const struct berth_engine_ops *ops;
    struct berth_model_spec *spec;
    struct berth_span weights;
    struct berth_engine_model *model;
    struct berth_instance *instance;
};

/* What one request brought. */
struct answer {
    enum berth_code code;
    const char *field;
    size_t parts;
    struct berth_buf text;
    struct berth_buf deltas; /* texts of the parts that are not final */
    struct berth_buf words;  /* ended by | each */
    struct berth_buf segments;
    struct berth_buf raw; /* bytes of all tensors of the final part */
    char language[16];
    double seconds;
    int32_t *tokens;
    size_t token_count;
    double (*times)[2]; /* of the segments */
    double (*stats)[4];
    size_t segment_count;
    double (*word_times)[3];
    size_t word_count;
};

struct job {
    const float *samples;
    size_t count;
    struct berth_param params[4];
    size_t param_count;
    struct answer answer;
    struct berth_request *request;
    uint32_t slot;
    bool done;
};

static inline enum berth_code rig_open(struct rig *rig, const struct berth_engine_ops *ops,
                                       const char *folder, const struct berth_key_value *parameter,
                                       struct berth_err *err)
{
    memset(rig, 0, sizeof(*rig));
    rig->ops = ops;
    rig->weights.fd = -1;
    rig->spec = berth_spec_create();
    if (rig->spec == NULL) {
        return BERTH_UNAVAILABLE;
    }
    rig->spec->name = "speech";
    rig->spec->folder = folder;
    rig->spec->folder_version = folder;
    if (parameter != NULL) {
        rig->spec->parameters = berth_arena_alloc(&rig->spec->arena, sizeof(*parameter));
        if (rig->spec->parameters == NULL) {
            return BERTH_UNAVAILABLE;
        }
        rig->spec->parameters[0] = *parameter;
        rig->spec->parameter_count = 1;
    }
    uint64_t bytes = 0;
    enum berth_code code = ops->describe(rig->spec, err);
    bool native = ops->weights_load != NULL;
    if (code == BERTH_OK && native) {
        code = ops->weights_bytes(rig->spec, &bytes, err);
    }
    if (code == BERTH_OK && native) {
        code = berth_span_create(NULL, bytes, &rig->weights, err);
    }
    if (code == BERTH_OK && native) {
        code = ops->weights_load(rig->spec, rig->weights, err);
    }
    if (code == BERTH_OK) {
        code = ops->model_attach(rig->spec, rig->weights, &rig->model, err);
    }
    if (code == BERTH_OK) {
        code = ops->instance_create(rig->model, 0, &rig->instance, err);
    }
    return code;
}

static inline void rig_close(struct rig *rig)
{
    rig->ops->instance_destroy(rig->instance);
    rig->ops->model_detach(rig->model);
    berth_span_destroy(NULL, &rig->weights);
    berth_spec_release(rig->spec);
}

static inline void answer_drop(struct answer *answer)
{
    berth_buf_finish(&answer->text);
    berth_buf_finish(&answer->deltas);
    berth_buf_finish(&answer->words);
    berth_buf_finish(&answer->segments);
    berth_buf_finish(&answer->raw);
    berth_free(answer->tokens);
    berth_free(answer->times);
    berth_free(answer->stats);
    berth_free(answer->word_times);
    memset(answer, 0, sizeof(*answer));
}

/* What jobs heard, and their sounds, one each. */
static inline void jobs_drop(struct job *jobs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        answer_drop(&jobs[i].answer);
        berth_free((void *)(uintptr_t)jobs[i].samples);
    }
    memset(jobs, 0, count * sizeof(*jobs));
}

static inline bool job_start(struct rig *rig, struct job *job)
{
    struct berth_row row = {.slot = 0};
    struct berth_err err = {.code = BERTH_OK};
    struct berth_request *request = berth_request_create(rig_slabs, 1 << 16);
    job->request = request;
    job->done = false;
    if (request == NULL) {
        return false;
    }
    request->inputs = berth_arena_alloc(&request->arena, sizeof(*request->inputs));
    if (request->inputs == NULL) {
        return false;
    }
    request->inputs[0] = (struct berth_tensor){
        .name = "audio", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {(int64_t)job->count}};
    request->input_count = 1;
    if (job->count > 0) {
        if (berth_slabs_take(rig_slabs, job->count * sizeof(float), &request->media, &err) !=
            BERTH_OK) {
            return false;
        }
        request->inputs[0].range = request->media;
        memcpy(berth_slabs_pointer(rig_slabs, &request->media), job->samples,
               job->count * sizeof(float));
    }
    request->params.items = job->params;
    request->params.count = job->param_count;
    row.request = request;
    if (rig->ops->admit(rig->instance, &row, 1, &err) != BERTH_OK) {
        row.err = err;
    }
    job->answer.code = row.err.code;
    job->answer.field = row.err.field;
    job->slot = row.slot;
    return row.err.code == BERTH_OK;
}

static inline const void *part_bytes(const struct berth_part *part, const char *name,
                                     size_t *count)
{
    const struct berth_tensor *tensor = berth_part_find(part, name);
    assert_non_null(tensor);
    *count = (size_t)tensor->dims[0];
    return tensor->range.length == 0 ? NULL : berth_slabs_pointer(rig_slabs, &tensor->range);
}

/* A copy of a tensor; the answer's. */
static inline void *part_copy(const struct berth_part *part, const char *name, size_t *count)
{
    const void *bytes = part_bytes(part, name, count);
    size_t length = berth_part_find(part, name)->range.length;
    void *copy = berth_alloc(length + 1);
    assert_non_null(copy);
    if (bytes != NULL) {
        memcpy(copy, bytes, length);
    }
    return copy;
}

static inline void part_strings(const struct berth_part *part, const char *name, const char *mark,
                                struct berth_buf *out)
{
    size_t count = 0;
    const unsigned char *at = part_bytes(part, name, &count);
    const unsigned char *end = at;
    if (at != NULL) {
        end = at + berth_part_find(part, name)->range.length;
    }
    for (size_t i = 0; i < count; i++) {
        const char *text = NULL;
        uint32_t bytes = 0;
        assert_true(berth_bytes_next(&at, end, &text, &bytes));
        berth_buf_append(out, text, bytes);
        berth_buf_puts(out, mark);
    }
}

static inline void part_read(struct answer *answer, const struct berth_part *part)
{
    struct berth_buf language = {0};
    size_t count = 0;
    answer->parts++;
    if (!part->final) {
        part_strings(part, "text", "", &answer->deltas);
        return;
    }
    for (size_t i = 0; i < part->tensor_count; i++) {
        const struct berth_tensor *tensor = &part->tensors[i];
        if (tensor->range.length > 0) {
            berth_buf_append(&answer->raw, berth_slabs_pointer(rig_slabs, &tensor->range),
                             tensor->range.length);
        }
    }
    part_strings(part, "text", "", &answer->text);
    part_strings(part, "language", "", &language);
    (void)snprintf(answer->language, sizeof(answer->language), "%s", berth_buf_text(&language));
    berth_buf_finish(&language);
    memcpy(&answer->seconds, part_bytes(part, "duration", &count), sizeof(double));
    answer->times = part_copy(part, "segment_times", &answer->segment_count);
    answer->stats = part_copy(part, "segment_stats", &count);
    assert_int_equal(count, answer->segment_count);
    answer->tokens = part_copy(part, "segment_tokens", &answer->token_count);
    answer->word_times = part_copy(part, "word_times", &answer->word_count);
    part_strings(part, "segment_text", "|", &answer->segments);
    part_strings(part, "word_text", "|", &answer->words);
}

/* Takes what a step brought to the jobs; returns how many ended. */
static inline size_t jobs_take(struct job *jobs, size_t count, struct berth_step_result *result)
{
    size_t ended = 0;
    for (size_t e = 0; e < result->event_count; e++) {
        struct berth_step_event *event = &result->events[e];
        for (size_t i = 0; i < count; i++) {
            struct job *job = &jobs[i];
            if (job->request == NULL || job->slot != event->slot || job->done ||
                job->answer.code != BERTH_OK) {
                continue;
            }
            if (event->part != NULL) {
                part_read(&job->answer, event->part);
            }
            job->answer.code = event->err.code;
            job->answer.field = event->err.field;
            job->done = event->final;
        }
        berth_part_destroy(event->part);
        ended += event->final ? 1 : 0;
    }
    return ended;
}

/* Steps until all jobs that were admitted have their final event. */
static inline void jobs_run(struct rig *rig, struct job *jobs, size_t count)
{
    static struct berth_step_result result;
    size_t live = 0;
    for (size_t i = 0; i < count; i++) {
        live += job_start(rig, &jobs[i]) ? 1 : 0;
    }
    while (live > 0) {
        struct berth_err err = {.code = BERTH_OK};
        assert_int_equal(rig->ops->step(rig->instance, RIG_BUDGET_NS, &result, &err), BERTH_OK);
        live -= jobs_take(jobs, count, &result);
        assert_int_equal(result.live, live);
    }
    for (size_t i = 0; i < count; i++) {
        berth_request_release(jobs[i].request);
        jobs[i].request = NULL;
    }
}

static inline void job_add(struct job *job, struct berth_param param)
{
    assert_true(job->param_count < BERTH_COUNT_OF(job->params));
    job->params[job->param_count++] = param;
}

#endif
