/* worker_protocol.c - messages as bytes: writing, reading, and descriptors beside them. */
#include "worker/worker_protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

#define MAGIC 0xBE47C002u /* the last byte counts on with each change of the messages */
#define TEXT_NONE UINT32_MAX
#define PARAMS_MAX 4096
#define HEAD_BYTES 16 /* magic, kind, id */

enum place { PLACE_INSIDE, PLACE_FD };

struct control { /* room for the most descriptors there may be */
    union {
        char bytes[CMSG_SPACE(sizeof(int) * BERTH_WIRE_FDS_MAX)];
        struct cmsghdr align;
    } u;
};

/* Fields are told by address in an error (string literals); these may cross. */
static const char *const fields[] = {
    "inputs",     "audio",     "language", "prompt", "task",
    "temperature", "beam_size", "word_timestamps", "file",
};

static void put(struct berth_wire_writer *writer, const void *bytes, size_t length);
static uint32_t index_of_fd(struct berth_wire_writer *writer, int fd);
static void put_tensor(struct berth_wire_writer *writer, struct berth_slabs *slabs,
                       const struct berth_tensor *tensor);
static void put_params(struct berth_wire_writer *writer, const struct berth_params *params);
static void take_descriptors(struct berth_wire_message *message, struct msghdr *head);
static void get(struct berth_wire_message *message, void *out, size_t length);
static bool tensor_fits(const struct berth_tensor *tensor, size_t bytes);
static enum berth_code get_inputs(struct berth_wire_message *message,
                                  struct berth_request *request, struct berth_err *err);
static enum berth_code get_wanted(struct berth_wire_message *message,
                                  struct berth_request *request, struct berth_err *err);
static enum berth_code get_params(struct berth_wire_message *message,
                                  struct berth_request *request, struct berth_err *err);
static void get_param_value(struct berth_wire_message *message, struct berth_request *request,
                            struct berth_param *param);

void berth_wire_begin(struct berth_wire_writer *writer, enum berth_wire_kind kind, uint64_t id)
{
    writer->length = 0;
    writer->full = false;
    writer->fd_count = 0;
    berth_wire_put_u32(writer, MAGIC);
    berth_wire_put_u32(writer, (uint32_t)kind);
    berth_wire_put_u64(writer, id);
}

void berth_wire_put_u32(struct berth_wire_writer *writer, uint32_t value)
{
    put(writer, &value, sizeof(value));
}

void berth_wire_put_u64(struct berth_wire_writer *writer, uint64_t value)
{
    put(writer, &value, sizeof(value));
}

void berth_wire_put_text(struct berth_wire_writer *writer, const char *text)
{
    if (text == NULL) {
        berth_wire_put_u32(writer, TEXT_NONE);
        return;
    }
    size_t length = strlen(text);
    if (length >= BERTH_WIRE_BYTES_MAX) {
        writer->full = true;
        return;
    }
    berth_wire_put_u32(writer, (uint32_t)length);
    put(writer, text, length + 1); /* read where it lies */
}

void berth_wire_put_fd(struct berth_wire_writer *writer, int fd)
{
    berth_wire_put_u32(writer, index_of_fd(writer, fd));
}

void berth_wire_put_err(struct berth_wire_writer *writer, const struct berth_err *err)
{
    uint32_t field = 0;
    berth_wire_put_u32(writer, (uint32_t)err->code);
    if (err->code == BERTH_OK) {
        return;
    }
    for (uint32_t i = 0; i < BERTH_COUNT_OF(fields) && err->field != NULL; i++) {
        if (strcmp(fields[i], err->field) == 0) {
            field = i + 1;
        }
    }
    berth_wire_put_u32(writer, field);
    berth_wire_put_u32(writer, err->retry_after_ms);
    berth_wire_put_text(writer, err->msg);
}

void berth_wire_put_tensors(struct berth_wire_writer *writer, struct berth_slabs *slabs,
                            const struct berth_tensor *tensors, size_t count)
{
    if (count > BERTH_WIRE_TENSORS_MAX) {
        writer->full = true;
        return;
    }
    berth_wire_put_u32(writer, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        put_tensor(writer, slabs, &tensors[i]);
    }
}

void berth_wire_put_request(struct berth_wire_writer *writer, const struct berth_request *request)
{
    size_t wanted = request->outputs_wanted == NULL ? 0 : request->output_wanted_count;
    if (wanted >= BERTH_WIRE_TENSORS_MAX || request->params.count > PARAMS_MAX) {
        writer->full = true;
        return;
    }
    berth_wire_put_u64(writer, request->id);
    berth_wire_put_u64(writer, request->batch_rows);
    berth_wire_put_tensors(writer, request->slabs, request->inputs, request->input_count);
    berth_wire_put_u32(writer, request->outputs_wanted == NULL ? TEXT_NONE : (uint32_t)wanted);
    for (size_t i = 0; i < wanted; i++) {
        berth_wire_put_text(writer, request->outputs_wanted[i]);
    }
    put_params(writer, &request->params);
}

enum berth_wire_result berth_wire_send(int fd, const struct berth_wire_writer *writer, bool waits)
{
    struct control control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)writer->bytes, .iov_len = writer->length};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
    BERTH_ASSERT(!writer->full);
    if (writer->fd_count > 0) {
        head.msg_control = control.u.bytes;
        head.msg_controllen = CMSG_SPACE(sizeof(int) * writer->fd_count);
        struct cmsghdr *item = CMSG_FIRSTHDR(&head);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(sizeof(int) * writer->fd_count);
        memcpy(CMSG_DATA(item), writer->fds, sizeof(int) * writer->fd_count);
    }
    ssize_t sent;
    do {
        sent = sendmsg(fd, &head, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT));
    } while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)writer->length) {
        return BERTH_WIRE_OK;
    }
    if (errno == EAGAIN) {
        return BERTH_WIRE_AGAIN;
    }
    /* ETOOMANYREFS: so many descriptors are on their way that the reader has to come first. */
    return errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS ? BERTH_WIRE_LATER
                                                                        : BERTH_WIRE_ENDED;
}

enum berth_wire_result berth_wire_receive(int fd, struct berth_wire_message *message, bool waits)
{
    struct control control;
    struct iovec part = {.iov_base = message->bytes, .iov_len = sizeof(message->bytes)};
    struct msghdr head = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.u.bytes,
        .msg_controllen = sizeof(control.u.bytes),
    };
    ssize_t got;
    message->fd_count = 0;
    do {
        got = recvmsg(fd, &head, MSG_CMSG_CLOEXEC | (waits ? 0 : MSG_DONTWAIT));
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return errno == EAGAIN ? BERTH_WIRE_AGAIN : BERTH_WIRE_ENDED;
    }
    take_descriptors(message, &head);
    if (got == 0) { /* the end, or an empty message, which is as good as one and may carry some */
        berth_wire_close(message);
        return BERTH_WIRE_ENDED;
    }
    /* Cut: longer than any message, or more descriptors than there may be (or are left to us). */
    if ((head.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
        !berth_wire_open(message, (size_t)got)) {
        berth_wire_close(message);
        return BERTH_WIRE_BAD;
    }
    return BERTH_WIRE_OK;
}

bool berth_wire_open(struct berth_wire_message *message, size_t length)
{
    message->at = message->bytes;
    message->end = message->bytes + length;
    message->bad = false;
    uint32_t magic = berth_wire_get_u32(message, UINT32_MAX);
    uint32_t kind = berth_wire_get_u32(message, BERTH_WIRE_KIND_END - 1);
    message->id = berth_wire_get_u64(message);
    message->kind = (enum berth_wire_kind)kind;
    return !message->bad && magic == MAGIC && kind > 0;
}

void berth_wire_close(struct berth_wire_message *message)
{
    for (size_t i = 0; i < message->fd_count; i++) {
        close(message->fds[i]);
    }
    message->fd_count = 0;
}

uint32_t berth_wire_get_u32(struct berth_wire_message *message, uint32_t max)
{
    uint32_t value = 0;
    get(message, &value, sizeof(value));
    if (value > max) {
        message->bad = true;
        return 0;
    }
    return value;
}

uint64_t berth_wire_get_u64(struct berth_wire_message *message)
{
    uint64_t value = 0;
    get(message, &value, sizeof(value));
    return value;
}

const char *berth_wire_get_text(struct berth_wire_message *message)
{
    uint32_t length = berth_wire_get_u32(message, UINT32_MAX);
    const char *text = (const char *)message->at;
    if (message->bad || length == TEXT_NONE) {
        return NULL;
    }
    if (length >= (size_t)(message->end - message->at) || text[length] != '\0' ||
        memchr(text, '\0', length) != NULL) {
        message->bad = true;
        return NULL;
    }
    message->at += (size_t)length + 1;
    return text;
}

int berth_wire_get_fd(struct berth_wire_message *message)
{
    uint32_t index = berth_wire_get_u32(message, BERTH_WIRE_FDS_MAX);
    if (message->bad || index >= message->fd_count) {
        message->bad = true;
        return -1;
    }
    return message->fds[index];
}

void berth_wire_get_err(struct berth_wire_message *message, struct berth_err *out)
{
    *out = (struct berth_err){0};
    enum berth_code code = (enum berth_code)berth_wire_get_u32(message, BERTH_CODE_COUNT - 1);
    if (code == BERTH_OK) {
        return;
    }
    uint32_t field = berth_wire_get_u32(message, BERTH_COUNT_OF(fields));
    uint32_t retry_after_ms = berth_wire_get_u32(message, UINT32_MAX);
    const char *text = berth_wire_get_text(message);
    if (message->bad || text == NULL) {
        message->bad = true;
        return;
    }
    (void)berth_fail_field(out, code, field == 0 ? NULL : fields[field - 1], "%s", text);
    out->retry_after_ms = retry_after_ms;
}

bool berth_wire_whole(const struct berth_wire_message *message)
{
    return !message->bad && message->at == message->end;
}

size_t berth_wire_get_tensor_count(struct berth_wire_message *message)
{
    return berth_wire_get_u32(message, BERTH_WIRE_TENSORS_MAX);
}

void berth_wire_get_tensor(struct berth_wire_message *message, struct berth_wire_tensor *out)
{
    *out = (struct berth_wire_tensor){.fd = -1};
    struct berth_tensor *like = &out->like;
    like->name = berth_wire_get_text(message);
    like->dtype = (enum berth_dtype)berth_wire_get_u32(message, BERTH_DTYPE_BF16);
    like->rank = (uint8_t)berth_wire_get_u32(message, BERTH_RANK_MAX);
    for (uint8_t i = 0; i < like->rank; i++) {
        like->dims[i] = (int64_t)berth_wire_get_u64(message);
    }
    out->bytes = berth_wire_get_u64(message);
    uint32_t place = berth_wire_get_u32(message, PLACE_FD);
    if (message->bad || like->name == NULL || like->dtype == BERTH_DTYPE_NONE ||
        !tensor_fits(like, out->bytes)) {
        message->bad = true;
    } else if (place == PLACE_FD) {
        out->fd = berth_wire_get_fd(message);
        out->offset = berth_wire_get_u64(message);
        message->bad = message->bad || out->bytes == 0 || out->offset > INT64_MAX ||
                       out->bytes > INT64_MAX - out->offset;
    } else if (out->bytes > (size_t)(message->end - message->at)) {
        message->bad = true;
    } else {
        out->inside = message->at;
        message->at += out->bytes;
    }
}

enum berth_code berth_wire_read_tensor(const struct berth_wire_tensor *tensor, void *to,
                                       struct berth_err *err)
{
    if (tensor->bytes == 0) {
        return BERTH_OK;
    }
    if (tensor->inside != NULL) {
        memcpy(to, tensor->inside, tensor->bytes);
        return BERTH_OK;
    }
    /* Only shared memory has seals; anything else might let us wait for it. */
    if (fcntl(tensor->fd, F_GET_SEALS) < 0) {
        return berth_fail(err, BERTH_UNAVAILABLE, "tensor '%s' came in no shared memory",
                          tensor->like.name);
    }
    size_t done = 0;
    while (done < tensor->bytes) {
        ssize_t got = pread(tensor->fd, (unsigned char *)to + done, tensor->bytes - done,
                            (off_t)(tensor->offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return berth_fail(err, BERTH_UNAVAILABLE, "tensor '%s' is cut short",
                              tensor->like.name);
        }
        done += (size_t)got;
    }
    return BERTH_OK;
}

enum berth_code berth_wire_get_request(struct berth_wire_message *message,
                                       struct berth_slabs *slabs, struct berth_request **out,
                                       struct berth_err *err)
{
    struct berth_request *request = berth_request_create(slabs, 0);
    if (request == NULL) {
        message->at = message->end; /* what it held is not looked at */
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    request->id = berth_wire_get_u64(message);
    request->batch_rows = berth_wire_get_u64(message);
    enum berth_code code = get_inputs(message, request, err);
    if (code == BERTH_OK) {
        code = get_wanted(message, request, err);
    }
    if (code == BERTH_OK) {
        code = get_params(message, request, err);
    }
    if (code == BERTH_OK && message->bad) {
        code = berth_fail(err, BERTH_INTERNAL, "a request that cannot be read");
    }
    if (code != BERTH_OK) {
        if (!message->bad) {
            message->at = message->end;
        }
        berth_request_release(request);
        return code;
    }
    *out = request;
    return BERTH_OK;
}

static void put(struct berth_wire_writer *writer, const void *bytes, size_t length)
{
    if (writer->full || length > sizeof(writer->bytes) - writer->length) {
        writer->full = true;
        return;
    }
    if (length > 0) {
        memcpy(writer->bytes + writer->length, bytes, length);
    }
    writer->length += length;
}

/* Tensors of one slab share its descriptor. */
static uint32_t index_of_fd(struct berth_wire_writer *writer, int fd)
{
    for (size_t i = 0; i < writer->fd_count; i++) {
        if (writer->fds[i] == fd) {
            return (uint32_t)i;
        }
    }
    if (writer->fd_count == BERTH_WIRE_FDS_MAX || fd < 0) {
        writer->full = true;
        return 0;
    }
    writer->fds[writer->fd_count] = fd;
    return (uint32_t)writer->fd_count++;
}

static void put_tensor(struct berth_wire_writer *writer, struct berth_slabs *slabs,
                       const struct berth_tensor *tensor)
{
    const struct berth_range *range = &tensor->range;
    uint64_t length = range->slab == 0 ? 0 : range->length;
    berth_wire_put_text(writer, tensor->name);
    berth_wire_put_u32(writer, (uint32_t)tensor->dtype);
    berth_wire_put_u32(writer, tensor->rank);
    for (uint8_t i = 0; i < tensor->rank; i++) {
        berth_wire_put_u64(writer, (uint64_t)tensor->dims[i]);
    }
    berth_wire_put_u64(writer, length);
    /* Half of a message is kept for what describes its tensors. */
    if (length <= BERTH_WIRE_INLINE_MAX && writer->length + length <= BERTH_WIRE_BYTES_MAX / 2) {
        berth_wire_put_u32(writer, PLACE_INSIDE);
        put(writer, berth_slabs_pointer(slabs, range), length);
        return;
    }
    berth_wire_put_u32(writer, PLACE_FD);
    berth_wire_put_fd(writer, berth_slabs_fd(slabs, range));
    berth_wire_put_u64(writer, range->offset);
}

static void put_params(struct berth_wire_writer *writer, const struct berth_params *params)
{
    berth_wire_put_u32(writer, (uint32_t)params->count);
    for (size_t i = 0; i < params->count; i++) {
        const struct berth_param *param = &params->items[i];
        uint64_t bits = 0;
        berth_wire_put_text(writer, param->name);
        berth_wire_put_u32(writer, (uint32_t)param->kind);
        switch (param->kind) {
        case BERTH_PARAM_BOOL:
            bits = param->value.boolean;
            break;
        case BERTH_PARAM_INT:
            bits = (uint64_t)param->value.integer;
            break;
        case BERTH_PARAM_REAL:
            memcpy(&bits, &param->value.real, sizeof(bits));
            break;
        case BERTH_PARAM_STRING:
            berth_wire_put_text(writer, param->value.string == NULL ? "" : param->value.string);
            continue;
        }
        berth_wire_put_u64(writer, bits);
    }
}

static void take_descriptors(struct berth_wire_message *message, struct msghdr *head)
{
    for (struct cmsghdr *item = CMSG_FIRSTHDR(head); item != NULL; item = CMSG_NXTHDR(head, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && message->fd_count < BERTH_WIRE_FDS_MAX; i++) {
            memcpy(&message->fds[message->fd_count++], CMSG_DATA(item) + i * sizeof(int),
                   sizeof(int));
        }
    }
}

static void get(struct berth_wire_message *message, void *out, size_t length)
{
    if (message->bad || length > (size_t)(message->end - message->at)) {
        message->bad = true;
        return;
    }
    memcpy(out, message->at, length);
    message->at += length;
}

static bool tensor_fits(const struct berth_tensor *tensor, size_t bytes)
{
    size_t element_bytes = berth_dtype_bytes(tensor->dtype);
    size_t elements, whole;
    return berth_tensor_elements(tensor, &elements) &&
           berth_mul_size(elements, element_bytes, &whole) &&
           (element_bytes == 0 || whole == bytes);
}

static enum berth_code get_inputs(struct berth_wire_message *message,
                                  struct berth_request *request, struct berth_err *err)
{
    size_t count = berth_wire_get_tensor_count(message);
    if (count == 0) {
        return BERTH_OK;
    }
    request->inputs = berth_arena_alloc(&request->arena, count * sizeof(*request->inputs));
    if (request->inputs == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    for (size_t i = 0; i < count && !message->bad; i++) {
        struct berth_wire_tensor tensor;
        struct berth_tensor *input = &request->inputs[i];
        berth_wire_get_tensor(message, &tensor);
        if (message->bad) {
            break;
        }
        *input = tensor.like;
        input->name = berth_arena_strdup(&request->arena, tensor.like.name);
        if (input->name == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
        }
        if (tensor.bytes > 0) {
            BERTH_TRY(berth_request_take(request, tensor.bytes, &input->range, err));
            BERTH_TRY(berth_wire_read_tensor(
                &tensor, berth_slabs_pointer(request->slabs, &input->range), err));
        }
    }
    request->input_count = count;
    return BERTH_OK;
}

static enum berth_code get_wanted(struct berth_wire_message *message,
                                  struct berth_request *request, struct berth_err *err)
{
    uint32_t count = berth_wire_get_u32(message, UINT32_MAX);
    if (message->bad || count == TEXT_NONE) {
        return BERTH_OK;
    }
    if (count >= BERTH_WIRE_TENSORS_MAX) {
        message->bad = true;
        return BERTH_OK;
    }
    request->outputs_wanted =
        berth_arena_alloc(&request->arena, (count + 1) * sizeof(*request->outputs_wanted));
    if (request->outputs_wanted == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    for (uint32_t i = 0; i < count && !message->bad; i++) {
        const char *name = berth_wire_get_text(message);
        char *copy = name == NULL ? NULL : berth_arena_strdup(&request->arena, name);
        if (copy == NULL) {
            message->bad = message->bad || name == NULL;
            return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
        }
        request->outputs_wanted[i] = copy;
    }
    request->output_wanted_count = count;
    return BERTH_OK;
}

static enum berth_code get_params(struct berth_wire_message *message,
                                  struct berth_request *request, struct berth_err *err)
{
    uint32_t count = berth_wire_get_u32(message, PARAMS_MAX);
    if (count == 0) {
        return BERTH_OK;
    }
    struct berth_param *items = berth_arena_alloc(&request->arena, count * sizeof(*items));
    if (items == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
    }
    for (uint32_t i = 0; i < count && !message->bad; i++) {
        const char *name = berth_wire_get_text(message);
        items[i].kind = (enum berth_param_kind)berth_wire_get_u32(message, BERTH_PARAM_STRING);
        if (message->bad || name == NULL) {
            message->bad = true;
            break;
        }
        items[i].name = berth_arena_strdup(&request->arena, name);
        get_param_value(message, request, &items[i]);
        if (items[i].name == NULL ||
            (items[i].kind == BERTH_PARAM_STRING && items[i].value.string == NULL)) {
            return berth_fail(err, BERTH_UNAVAILABLE, "out of memory");
        }
    }
    request->params = (struct berth_params){.items = items, .count = count};
    return BERTH_OK;
}

static void get_param_value(struct berth_wire_message *message, struct berth_request *request,
                            struct berth_param *param)
{
    if (param->kind == BERTH_PARAM_STRING) {
        const char *text = berth_wire_get_text(message);
        message->bad = message->bad || text == NULL;
        param->value.string = text == NULL ? NULL : berth_arena_strdup(&request->arena, text);
        return;
    }
    uint64_t bits = berth_wire_get_u64(message);
    if (param->kind == BERTH_PARAM_BOOL) {
        param->value.boolean = bits != 0;
    } else if (param->kind == BERTH_PARAM_INT) {
        param->value.integer = (int64_t)bits;
    } else {
        memcpy(&param->value.real, &bits, sizeof(bits));
    }
}
