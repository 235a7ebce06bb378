/* request.c - the life of a request and of the parts of its answer.
 *
 * `answered` is exchanged, not set: of a result and a deadline that race for the final answer one
 * wins and the other's part is dropped. The request embeds a part for the case that there are no
 * tensors to send, so that an error can always be told, even when there is no memory. */
#include "request/request.h"

#include <string.h>

#include "base/clock.h"

#define TENSORS_FIRST 4

static const struct berth_tensor *find(const struct berth_tensor *tensors, size_t count,
                                       const char *name);
static void part_init(struct berth_part *part, struct berth_request *request);
static void part_post(struct berth_request *request, struct berth_part *part);
static enum berth_code part_check(const struct berth_tensor *tensor, size_t bytes,
                                  struct berth_err *err);
static bool part_reserve(struct berth_part *part);
static const struct berth_param *param_of(const struct berth_params *params, const char *name,
                                          enum berth_param_kind kind);

/* A range a request took besides its body and its media. Lives in the request's arena. */
struct taken {
    struct berth_slabs *slabs;
    struct berth_range range;
};

static void give_taken(void *subject);

static _Atomic uint64_t id_last;

const struct berth_param *berth_params_find(const struct berth_params *params, const char *name)
{
    for (size_t i = 0; i < params->count; i++) {
        if (strcmp(params->items[i].name, name) == 0) {
            return &params->items[i];
        }
    }
    return NULL;
}

bool berth_params_bool(const struct berth_params *params, const char *name, bool fallback)
{
    const struct berth_param *param = param_of(params, name, BERTH_PARAM_BOOL);
    return param != NULL ? param->value.boolean : fallback;
}

int64_t berth_params_int(const struct berth_params *params, const char *name, int64_t fallback)
{
    const struct berth_param *param = param_of(params, name, BERTH_PARAM_INT);
    return param != NULL ? param->value.integer : fallback;
}

double berth_params_real(const struct berth_params *params, const char *name, double fallback)
{
    const struct berth_param *param = berth_params_find(params, name);
    if (param != NULL && param->kind == BERTH_PARAM_INT) {
        return (double)param->value.integer;
    }
    return param != NULL && param->kind == BERTH_PARAM_REAL ? param->value.real : fallback;
}

const char *berth_params_string(const struct berth_params *params, const char *name,
                                const char *fallback)
{
    const struct berth_param *param = param_of(params, name, BERTH_PARAM_STRING);
    return param != NULL ? param->value.string : fallback;
}

struct berth_request *berth_request_create(struct berth_slabs *slabs, size_t arena_bytes_max)
{
    struct berth_request *request = berth_alloc(sizeof(*request));
    if (request == NULL) {
        return NULL;
    }
    atomic_init(&request->references, 1);
    request->id = atomic_fetch_add_explicit(&id_last, 1, memory_order_relaxed) + 1;
    request->id_client = "";
    request->batch_rows = 1;
    request->slabs = slabs;
    berth_arena_init(&request->arena, arena_bytes_max);
    return request;
}

const struct berth_tensor *berth_request_input(const struct berth_request *request,
                                               const char *name)
{
    return find(request->inputs, request->input_count, name);
}

bool berth_request_wants(const struct berth_request *request, const char *name)
{
    if (request->outputs_wanted == NULL) {
        return true;
    }
    for (size_t i = 0; i < request->output_wanted_count; i++) {
        if (strcmp(request->outputs_wanted[i], name) == 0) {
            return true;
        }
    }
    return false;
}

struct berth_request *berth_request_retain(struct berth_request *request)
{
    atomic_fetch_add_explicit(&request->references, 1, memory_order_relaxed);
    return request;
}

void berth_request_release(struct berth_request *request)
{
    if (request == NULL ||
        atomic_fetch_sub_explicit(&request->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    berth_slabs_give(request->slabs, &request->body);
    berth_slabs_give(request->slabs, &request->media);
    berth_arena_finish(&request->arena);
    berth_free(request);
}

enum berth_code berth_request_take(struct berth_request *request, size_t bytes,
                                   struct berth_range *out, struct berth_err *err)
{
    struct taken *taken = berth_arena_alloc(&request->arena, sizeof(*taken));
    if (taken == NULL ||
        berth_arena_at_finish(&request->arena, give_taken, taken) != BERTH_OK) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
    }
    taken->slabs = request->slabs;
    BERTH_TRY(berth_slabs_take(request->slabs, bytes, &taken->range, err));
    *out = taken->range;
    return BERTH_OK;
}

struct berth_part *berth_part_create(struct berth_request *request)
{
    struct berth_part *part = berth_alloc(sizeof(*part));
    if (part != NULL) {
        part_init(part, request);
    }
    return part;
}

void berth_part_destroy(struct berth_part *part)
{
    if (part == NULL || part->request == NULL) { /* an embedded one is destroyed once only */
        return;
    }
    struct berth_request *request = part->request;
    for (size_t i = 0; i < part->tensor_count; i++) {
        berth_slabs_give(request->slabs, &part->tensors[i].range);
    }
    berth_arena_finish(&part->arena);
    if (part == &request->final_part) {
        *part = (struct berth_part){0};
    } else {
        berth_free(part);
    }
    berth_request_release(request);
}

enum berth_code berth_part_add(struct berth_part *part, const struct berth_tensor *like,
                               size_t bytes, void **out, struct berth_err *err)
{
    struct berth_slabs *slabs = part->request->slabs;
    struct berth_tensor tensor = *like;
    if (like->rank > BERTH_RANK_MAX) {
        return berth_fail(err, BERTH_UNSUPPORTED, "output %s: rank %u, the most is %d", like->name,
                          like->rank, BERTH_RANK_MAX);
    }
    tensor.range = (struct berth_range){0};
    tensor.name = berth_arena_strdup(&part->arena, like->name);
    if (tensor.name == NULL || !part_reserve(part)) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for output %s", like->name);
    }
    BERTH_TRY(part_check(&tensor, bytes, err));
    if (bytes > 0) {
        BERTH_TRY(berth_slabs_take(slabs, bytes, &tensor.range, err));
    }
    part->tensors[part->tensor_count++] = tensor;
    *out = berth_slabs_pointer(slabs, &tensor.range);
    return BERTH_OK;
}

const struct berth_tensor *berth_part_find(const struct berth_part *part, const char *name)
{
    return find(part->tensors, part->tensor_count, name);
}

void berth_request_send(struct berth_request *request, struct berth_part *part)
{
    if (atomic_load(&request->answered)) {
        berth_part_destroy(part);
        return;
    }
    part->final = false;
    part_post(request, part);
}

bool berth_request_complete(struct berth_request *request, struct berth_part *part,
                            const struct berth_err *err)
{
    if (atomic_exchange(&request->answered, true)) {
        berth_part_destroy(part);
        return false;
    }
    if (part == NULL) {
        part = &request->final_part;
        part_init(part, request);
    }
    if (err != NULL) {
        part->err = *err;
    }
    part->final = true;
    request->stamps.t_done_ns = berth_clock_now_ns();
    part_post(request, part);
    return true;
}

static void give_taken(void *subject)
{
    struct taken *taken = subject;
    berth_slabs_give(taken->slabs, &taken->range);
}

static const struct berth_tensor *find(const struct berth_tensor *tensors, size_t count,
                                       const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return &tensors[i];
        }
    }
    return NULL;
}

static void part_init(struct berth_part *part, struct berth_request *request)
{
    berth_arena_init(&part->arena, 0);
    part->request = berth_request_retain(request);
}

/* The reader may destroy the part, and with it the request, before this returns. */
static void part_post(struct berth_request *request, struct berth_part *part)
{
    BERTH_ASSERT(part->request == request);
    BERTH_ASSERT(request->reply != NULL && request->on_part != NULL);
    part->post.deliver = request->on_part;
    berth_queue_post(request->reply, &part->post.link);
}

/* An engine that fills less or more than it says must not get an answer out. */
static enum berth_code part_check(const struct berth_tensor *tensor, size_t bytes,
                                  struct berth_err *err)
{
    size_t element_bytes = berth_dtype_bytes(tensor->dtype);
    size_t elements, whole;
    if (!berth_tensor_elements(tensor, &elements) ||
        !berth_mul_size(elements, element_bytes, &whole) ||
        (element_bytes != 0 && whole != bytes)) {
        return berth_fail(err, BERTH_INTERNAL, "output %s: %zu bytes do not fit its shape",
                          tensor->name, bytes);
    }
    return BERTH_OK;
}

/* Makes room for one more tensor; the arena keeps the old array, which is small. */
static bool part_reserve(struct berth_part *part)
{
    if (part->tensor_count < part->tensor_capacity) {
        return true;
    }
    size_t capacity = part->tensor_capacity == 0 ? TENSORS_FIRST : part->tensor_capacity * 2;
    struct berth_tensor *tensors =
        berth_arena_alloc(&part->arena, capacity * sizeof(*part->tensors));
    if (tensors == NULL) {
        return false;
    }
    if (part->tensor_count > 0) {
        memcpy(tensors, part->tensors, part->tensor_count * sizeof(*tensors));
    }
    part->tensors = tensors;
    part->tensor_capacity = capacity;
    return true;
}

static const struct berth_param *param_of(const struct berth_params *params, const char *name,
                                          enum berth_param_kind kind)
{
    const struct berth_param *param = berth_params_find(params, name);
    return param != NULL && param->kind == kind ? param : NULL;
}
