/* ort.c - see ort.h.
 *
 * One environment with one pool of operator threads for the process, spinning off: sessions bring
 * no threads of their own, and a pool that waits burns no core. One session serves all instances of
 * a model (a run is thread-safe), so that weights and what kernels repack of them exist once. ONNX
 * Runtime's container of prepacked weights would share them between sessions too, but only for
 * initialisers that were handed in from outside, which keeps their unpacked form alive: rejected.
 *
 * Memory patterns are off: they are kept for each set of input shapes for ever, and our pool makes
 * blocks as cheap. Arenas do not apply: the allocator is ours (ort_memory.c).
 *
 * Initialisers do not come from the registered allocator. What the heap grew by while a session was
 * made counts as the session's, when no other session was made meanwhile; else what the file's size
 * leaves over of what was counted.
 */
#include "engine/ort.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <onnxruntime_c_api.h>
#include <onnxruntime_session_options_config_keys.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/ort_memory.h"
#include "engine/ort_watch.h"

#define METADATA_MAX 256
#define METADATA_BYTES_MAX (16 << 20)
#define IO_MAX 4096

struct metadata {
    const char *key;
    const char *value;
};

struct berth_ort_session {
    OrtSession *session;
    struct berth_ort_meter *meter;
    int64_t bytes_unseen; /* on the meter, found otherwise than by allocation */
    struct berth_arena arena;
    struct berth_ort_io *inputs;
    size_t input_count;
    struct berth_ort_io *outputs;
    size_t output_count;
    struct metadata *metadata;
    size_t metadata_count;
};

/* What keeps an output's bytes alive: ONNX Runtime's value, or, for strings, a block of ours. */
struct owner {
    OrtValue *value;
    void *block;
};

static struct {
    pthread_mutex_t mu;
    uint32_t users; /* guarded by mu */
    const OrtApi *api;
    OrtEnv *env;
    OrtAllocator *plain; /* ONNX Runtime's default, for names */
    bool memory_started, watch_started, registered;
} ort = {.mu = PTHREAD_MUTEX_INITIALIZER};

static _Atomic uint32_t sessions_open;
static _Atomic uint32_t opens_now;
static _Atomic uint64_t opens_ever;

static enum berth_code env_create(uint32_t threads, struct berth_err *err);
static void env_destroy(void);
static void log_line(void *unused, OrtLoggingLevel level, const char *category, const char *id,
                     const char *where, const char *text);
static enum berth_code status_take(OrtStatus *status, enum berth_code code, const char *what,
                                   struct berth_err *err);
static const char *reason_of(const char *text, const char *what);
static enum berth_code session_create(struct berth_ort_session *session, const char *path,
                                      struct berth_err *err);
static enum berth_code session_options(OrtSessionOptions **out, struct berth_err *err);
static void session_count_unseen(struct berth_ort_session *session, uint64_t heap_grown,
                                 uint64_t file_bytes);
static enum berth_code session_read(struct berth_ort_session *session, const char *path,
                                    struct berth_err *err);
static enum berth_code io_read(struct berth_ort_session *session, bool is_input, size_t index,
                               struct berth_ort_io *out);
static enum berth_code metadata_read(struct berth_ort_session *session);
static int io_find(const struct berth_ort_io *ios, size_t count, const char *name);

static enum berth_code value_view(const struct berth_ort_value *value, OrtValue **out,
                                  struct berth_err *err);
static enum berth_code value_strings(const struct berth_ort_value *value, OrtValue **out,
                                     struct berth_err *err);
static enum berth_code output_take(OrtValue **made, struct berth_ort_value *value,
                                   struct berth_err *err);
static enum berth_code output_describe(const OrtValue *made, struct berth_ort_value *value,
                                       size_t *elements, struct berth_err *err);
static enum berth_code output_strings(const OrtValue *made, size_t elements, struct owner *owner,
                                      struct berth_ort_value *value, struct berth_err *err);
static enum berth_code run_prepared(struct berth_ort_session *session, struct berth_ort_run *run,
                                    OrtValue **inputs, OrtValue **outputs, struct berth_err *err);

/* ONNX's tensor types and ours. */
static const struct {
    ONNXTensorElementDataType onnx;
    enum berth_dtype dtype;
} types[] = {
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, BERTH_DTYPE_FP32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, BERTH_DTYPE_UINT8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, BERTH_DTYPE_INT8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, BERTH_DTYPE_UINT16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, BERTH_DTYPE_INT16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, BERTH_DTYPE_INT32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, BERTH_DTYPE_INT64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, BERTH_DTYPE_BYTES},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, BERTH_DTYPE_BOOL},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, BERTH_DTYPE_FP16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, BERTH_DTYPE_FP64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, BERTH_DTYPE_UINT32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, BERTH_DTYPE_UINT64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, BERTH_DTYPE_BF16},
};

enum berth_code berth_ort_start(uint32_t threads, struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    pthread_mutex_lock(&ort.mu);
    if (ort.users == 0) {
        code = env_create(threads == 0 ? 1 : threads, err);
        if (code != BERTH_OK) {
            env_destroy();
        }
    }
    if (code == BERTH_OK) {
        ort.users++;
    }
    pthread_mutex_unlock(&ort.mu);
    return code;
}

void berth_ort_finish(void)
{
    pthread_mutex_lock(&ort.mu);
    if (ort.users > 0 && --ort.users == 0) {
        env_destroy();
    }
    pthread_mutex_unlock(&ort.mu);
}

const char *berth_ort_version(void)
{
    return OrtGetApiBase()->GetVersionString();
}

enum berth_code berth_ort_session_open(const char *path, struct berth_ort_meter *meter,
                                       struct berth_ort_session **out, struct berth_err *err)
{
    struct berth_ort_session *session = NULL;
    uint64_t file_bytes = 0;
    int fd = -1;
    BERTH_TRY(berth_file_open(path, &fd, &file_bytes, err));
    close(fd); /* ONNX Runtime goes by the name, which tells it where further files are */
    session = berth_alloc(sizeof(*session));
    if (session == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to load %s", path);
    }
    session->meter = meter;
    berth_arena_init(&session->arena, METADATA_BYTES_MAX * 2);
    atomic_fetch_add(&sessions_open, 1);
    uint32_t others = atomic_fetch_add(&opens_now, 1);
    uint64_t turn = atomic_fetch_add(&opens_ever, 1) + 1;
    uint64_t heap_before = berth_ort_memory_heap();
    struct berth_ort_meter *before = berth_ort_memory_enter(meter);
    enum berth_code code = session_create(session, path, err);
    if (code == BERTH_OK) {
        uint64_t heap_after = berth_ort_memory_heap();
        bool alone = others == 0 && atomic_load(&opens_ever) == turn && heap_after > heap_before;
        session_count_unseen(session, alone ? heap_after - heap_before : 0, file_bytes);
        code = session_read(session, path, err);
    }
    berth_ort_memory_enter(before);
    atomic_fetch_sub(&opens_now, 1);
    if (code != BERTH_OK) {
        berth_ort_session_close(session);
        return code;
    }
    *out = session;
    return BERTH_OK;
}

void berth_ort_session_close(struct berth_ort_session *session)
{
    if (session == NULL) {
        return;
    }
    if (session->session != NULL) {
        ort.api->ReleaseSession(session->session);
    }
    berth_ort_meter_add(session->meter, -session->bytes_unseen);
    berth_arena_finish(&session->arena);
    berth_free(session);
    if (atomic_fetch_sub(&sessions_open, 1) == 1) {
        berth_ort_memory_trim(); /* others may still want the scratch, nobody does now */
    }
}

const struct berth_ort_io *berth_ort_session_inputs(const struct berth_ort_session *session,
                                                    size_t *count)
{
    *count = session->input_count;
    return session->inputs;
}

const struct berth_ort_io *berth_ort_session_outputs(const struct berth_ort_session *session,
                                                     size_t *count)
{
    *count = session->output_count;
    return session->outputs;
}

int berth_ort_session_find_input(const struct berth_ort_session *session, const char *name)
{
    return io_find(session->inputs, session->input_count, name);
}

int berth_ort_session_find_output(const struct berth_ort_session *session, const char *name)
{
    return io_find(session->outputs, session->output_count, name);
}

const char *berth_ort_session_metadata(const struct berth_ort_session *session, const char *key)
{
    for (size_t i = 0; i < session->metadata_count; i++) {
        if (strcmp(session->metadata[i].key, key) == 0) {
            return session->metadata[i].value;
        }
    }
    return NULL;
}

enum berth_code berth_ort_session_run(struct berth_ort_session *session, struct berth_ort_run *run,
                                      struct berth_err *err)
{
    OrtValue *inputs[BERTH_ORT_VALUES_MAX] = {NULL};
    OrtValue *outputs[BERTH_ORT_VALUES_MAX] = {NULL};
    enum berth_code code = BERTH_OK;
    size_t taken = 0;
    if (run->input_count > BERTH_ORT_VALUES_MAX || run->output_count > BERTH_ORT_VALUES_MAX) {
        return berth_fail(err, BERTH_TOO_LARGE, "more than %d inputs or outputs in one run",
                          BERTH_ORT_VALUES_MAX);
    }
    if (berth_ort_stop_due(&run->stop)) {
        return berth_fail(err, BERTH_CANCELLED, "cancelled before the run began");
    }
    struct berth_ort_meter *before = berth_ort_memory_enter(session->meter);
    for (size_t i = 0; i < run->input_count && code == BERTH_OK; i++) {
        const struct berth_ort_value *value = &run->inputs[i];
        code = value->dtype == BERTH_DTYPE_BYTES ? value_strings(value, &inputs[i], err)
                                                 : value_view(value, &inputs[i], err);
    }
    for (size_t i = 0; i < run->output_count && code == BERTH_OK; i++) {
        if (run->outputs[i].bytes != NULL) {
            code = value_view(&run->outputs[i], &outputs[i], err);
        }
    }
    if (code == BERTH_OK) {
        code = run_prepared(session, run, inputs, outputs, err);
    }
    for (; taken < run->output_count && code == BERTH_OK; taken++) {
        if (run->outputs[taken].bytes == NULL) {
            code = output_take(&outputs[taken], &run->outputs[taken], err);
        }
    }
    for (size_t i = 0; i < taken && code != BERTH_OK; i++) {
        berth_ort_value_clear(&run->outputs[i]);
    }
    for (size_t i = 0; i < run->input_count; i++) {
        ort.api->ReleaseValue(inputs[i]);
    }
    for (size_t i = 0; i < run->output_count; i++) {
        ort.api->ReleaseValue(outputs[i]);
    }
    berth_ort_memory_enter(before);
    return code;
}

void berth_ort_value_clear(struct berth_ort_value *value)
{
    struct owner *owner = value->owner;
    if (owner == NULL) {
        return;
    }
    if (owner->value != NULL) {
        ort.api->ReleaseValue(owner->value);
    }
    berth_ort_memory_give(owner->block);
    berth_free(owner);
    *value = (struct berth_ort_value){.name = value->name};
}

/* Official builds since 1.29 tell Microsoft of the process, and keep an id of the machine under
 * ~/.cache/Microsoft, when an environment is made: before DisableTelemetryEvents can be called.
 * This variable is their documented way to have none of it. What threads there are only wait. */
static bool be_silent(void)
{
    return setenv("ORT_DISABLE_TELEMETRY", "1", 1) == 0;
}

static enum berth_code env_create(uint32_t threads, struct berth_err *err)
{
    OrtThreadingOptions *options = NULL;
    if (!be_silent()) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to start ONNX Runtime");
    }
    ort.api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (ort.api == NULL) {
        return berth_fail(err, BERTH_UNSUPPORTED, "ONNX Runtime %s does not know API version %d",
                          berth_ort_version(), ORT_API_VERSION);
    }
    BERTH_TRY(berth_ort_memory_start(ort.api, err));
    ort.memory_started = true;
    const OrtApi *api = ort.api;
    OrtStatus *status = api->CreateThreadingOptions(&options);
    if (status == NULL) {
        status = api->SetGlobalIntraOpNumThreads(options, (int)threads);
    }
    if (status == NULL) {
        status = api->SetGlobalInterOpNumThreads(options, 1);
    }
    if (status == NULL) {
        status = api->SetGlobalSpinControl(options, 0);
    }
    if (status == NULL) {
        status = api->CreateEnvWithCustomLoggerAndGlobalThreadPools(
            log_line, NULL, ORT_LOGGING_LEVEL_WARNING, "berth", options, &ort.env);
    }
    if (options != NULL) {
        api->ReleaseThreadingOptions(options);
    }
    if (status == NULL) {
        status = api->DisableTelemetryEvents(ort.env);
    }
    if (status == NULL) {
        status = api->RegisterAllocator(ort.env, berth_ort_memory_allocator());
        ort.registered = status == NULL;
    }
    if (status == NULL) {
        status = api->GetAllocatorWithDefaultOptions(&ort.plain);
    }
    BERTH_TRY(status_take(status, BERTH_INTERNAL, "cannot start ONNX Runtime", err));
    BERTH_TRY(berth_ort_watch_start(api, err));
    ort.watch_started = true;
    return BERTH_OK;
}

static void env_destroy(void)
{
    if (ort.watch_started) {
        berth_ort_watch_finish();
    }
    if (ort.registered) {
        OrtStatus *status = ort.api->UnregisterAllocator(ort.env, berth_ort_memory_info());
        if (status != NULL) {
            ort.api->ReleaseStatus(status);
        }
    }
    if (ort.env != NULL) {
        ort.api->ReleaseEnv(ort.env);
    }
    if (ort.memory_started) {
        berth_ort_memory_finish();
    }
    ort.env = NULL;
    ort.plain = NULL;
    ort.memory_started = ort.watch_started = ort.registered = false;
}

/* What fails comes back as a status, and is logged where it is answered; so here it is a detail. */
/* lib-shaped */
static void log_line(void *unused, OrtLoggingLevel level, const char *category, const char *id,
                     const char *where, const char *text)
{
    (void)unused;
    (void)category;
    (void)id;
    enum berth_log_level ours =
        level == ORT_LOGGING_LEVEL_FATAL ? BERTH_LOG_ERROR : BERTH_LOG_DEBUG;
    if (berth_log_enabled(ours)) {
        berth_log(ours, "onnxruntime", 0, "%s (%s)", text, where);
    }
}

/* Frees status. `code` is the kind of error it stands for where nothing better is known. */
static enum berth_code status_take(OrtStatus *status, enum berth_code code, const char *what,
                                   struct berth_err *err)
{
    if (status == NULL) {
        return BERTH_OK;
    }
    if (berth_ort_memory_failed()) {
        code = code == BERTH_INVALID ? BERTH_UNAVAILABLE : BERTH_TOO_LARGE;
    } else if (ort.api->GetErrorCode(status) == ORT_INVALID_ARGUMENT) {
        code = BERTH_INVALID;
    } else if (ort.api->GetErrorCode(status) == ORT_NOT_IMPLEMENTED) {
        code = BERTH_UNSUPPORTED;
    }
    code = berth_fail(err, code, "%s: %s", what,
                      reason_of(ort.api->GetErrorMessage(status), what));
    ort.api->ReleaseStatus(status);
    return code;
}

/* Past "Load model from FILE failed:": what comes behind a long path twice would be cut off. */
static const char *reason_of(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    at = at == NULL ? text : at + strlen(what);
    return strncmp(at, " failed:", 8) == 0 ? at + 8 : text;
}

static enum berth_code session_create(struct berth_ort_session *session, const char *path,
                                      struct berth_err *err)
{
    OrtSessionOptions *options = NULL;
    BERTH_TRY(session_options(&options, err));
    OrtStatus *status = ort.api->CreateSession(ort.env, path, options, &session->session);
    ort.api->ReleaseSessionOptions(options);
    return status_take(status, BERTH_INVALID, path, err);
}

static enum berth_code session_options(OrtSessionOptions **out, struct berth_err *err)
{
    OrtSessionOptions *options = NULL;
    OrtStatus *status = ort.api->CreateSessionOptions(&options);
    if (status == NULL) {
        status = ort.api->DisablePerSessionThreads(options);
    }
    if (status == NULL) {
        status = ort.api->DisableMemPattern(options);
    }
    if (status == NULL) {
        status = ort.api->SetSessionExecutionMode(options, ORT_SEQUENTIAL);
    }
    if (status == NULL) {
        status = ort.api->AddSessionConfigEntry(options, kOrtSessionOptionsConfigUseEnvAllocators,
                                                "1");
    }
    enum berth_code code = status_take(status, BERTH_INTERNAL, "cannot make a session", err);
    if (code != BERTH_OK) {
        ort.api->ReleaseSessionOptions(options);
        return code;
    }
    *out = options;
    return BERTH_OK;
}

static void session_count_unseen(struct berth_ort_session *session, uint64_t heap_grown,
                                 uint64_t file_bytes)
{
    uint64_t unseen = heap_grown;
    if (unseen == 0) {
        uint64_t seen = atomic_load(&session->meter->bytes_used);
        unseen = file_bytes > seen ? file_bytes - seen : 0;
    }
    session->bytes_unseen = (int64_t)(unseen < INT64_MAX / 2 ? unseen : INT64_MAX / 2);
    berth_ort_meter_add(session->meter, session->bytes_unseen);
}

static enum berth_code session_read(struct berth_ort_session *session, const char *path,
                                    struct berth_err *err)
{
    OrtStatus *status = ort.api->SessionGetInputCount(session->session, &session->input_count);
    if (status == NULL) {
        status = ort.api->SessionGetOutputCount(session->session, &session->output_count);
    }
    BERTH_TRY(status_take(status, BERTH_INVALID, path, err));
    if (session->input_count > IO_MAX || session->output_count > IO_MAX) {
        return berth_fail(err, BERTH_INVALID, "%s: more than %d inputs or outputs", path, IO_MAX);
    }
    session->inputs = berth_arena_alloc(&session->arena,
                                        session->input_count * sizeof(*session->inputs) + 1);
    session->outputs = berth_arena_alloc(&session->arena,
                                         session->output_count * sizeof(*session->outputs) + 1);
    enum berth_code code = BERTH_OK;
    if (session->inputs == NULL || session->outputs == NULL) {
        code = BERTH_UNAVAILABLE;
    }
    for (size_t i = 0; i < session->input_count && code == BERTH_OK; i++) {
        code = io_read(session, true, i, &session->inputs[i]);
    }
    for (size_t i = 0; i < session->output_count && code == BERTH_OK; i++) {
        code = io_read(session, false, i, &session->outputs[i]);
    }
    if (code == BERTH_OK) {
        code = metadata_read(session);
    }
    if (code != BERTH_OK) {
        return berth_fail(err, code, "%s: cannot read its inputs, outputs and metadata", path);
    }
    return BERTH_OK;
}

static enum berth_dtype dtype_of(ONNXTensorElementDataType type)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(types); i++) {
        if (types[i].onnx == type) {
            return types[i].dtype;
        }
    }
    return BERTH_DTYPE_NONE;
}

static ONNXTensorElementDataType type_of(enum berth_dtype dtype)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(types); i++) {
        if (types[i].dtype == dtype) {
            return types[i].onnx;
        }
    }
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

/* A status that only says yes or no; true when there was none. */
static bool status_ok(OrtStatus *status)
{
    if (status == NULL) {
        return true;
    }
    ort.api->ReleaseStatus(status);
    return false;
}

static enum berth_code io_read(struct berth_ort_session *session, bool is_input, size_t index,
                               struct berth_ort_io *out)
{
    const OrtApi *api = ort.api;
    char *name = NULL;
    OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    size_t rank = 0;
    enum berth_code code = BERTH_INTERNAL;
    OrtStatus *status =
        is_input ? api->SessionGetInputName(session->session, index, ort.plain, &name)
                 : api->SessionGetOutputName(session->session, index, ort.plain, &name);
    if (!status_ok(status)) {
        goto out;
    }
    out->name = berth_arena_strdup(&session->arena, name);
    if (out->name == NULL) {
        code = BERTH_UNAVAILABLE;
        goto out;
    }
    status = is_input ? api->SessionGetInputTypeInfo(session->session, index, &type)
                      : api->SessionGetOutputTypeInfo(session->session, index, &type);
    if (!status_ok(status) || !status_ok(api->CastTypeInfoToTensorInfo(type, &tensor))) {
        goto out;
    }
    code = BERTH_OK; /* what is no tensor, or none of ours, stays DTYPE_NONE */
    if (tensor == NULL || !status_ok(api->GetTensorElementType(tensor, &element)) ||
        !status_ok(api->GetDimensionsCount(tensor, &rank)) || rank > BERTH_RANK_MAX ||
        !status_ok(api->GetDimensions(tensor, out->dims, rank))) {
        goto out;
    }
    out->dtype = dtype_of(element);
    out->rank = (uint8_t)rank;
    for (size_t i = 0; i < rank; i++) {
        out->dims[i] = out->dims[i] < 0 ? -1 : out->dims[i];
    }
out:
    api->ReleaseTypeInfo(type);
    if (name != NULL) {
        status_ok(api->AllocatorFree(ort.plain, name));
    }
    return code;
}

/* The text ONNX Runtime allocated for us, moved to the session's arena. */
static const char *text_take(struct berth_ort_session *session, char *text)
{
    if (text == NULL) {
        return NULL;
    }
    char *copy = berth_arena_strdup(&session->arena, text);
    status_ok(ort.api->AllocatorFree(ort.plain, text));
    return copy;
}

static enum berth_code metadata_read(struct berth_ort_session *session)
{
    const OrtApi *api = ort.api;
    OrtModelMetadata *metadata = NULL;
    char **keys = NULL;
    int64_t count = 0;
    enum berth_code code = BERTH_OK;
    if (!status_ok(api->SessionGetModelMetadata(session->session, &metadata)) ||
        !status_ok(api->ModelMetadataGetCustomMetadataMapKeys(metadata, ort.plain, &keys,
                                                              &count))) {
        code = BERTH_INTERNAL;
        goto out;
    }
    size_t kept = count < METADATA_MAX ? (size_t)count : METADATA_MAX;
    session->metadata = berth_arena_alloc(&session->arena, kept * sizeof(*session->metadata) + 1);
    for (size_t i = 0; i < (size_t)count; i++) {
        char *value = NULL;
        if (i < kept && session->metadata != NULL &&
            status_ok(api->ModelMetadataLookupCustomMetadataMap(metadata, ort.plain, keys[i],
                                                                &value))) {
            struct metadata *entry = &session->metadata[session->metadata_count];
            entry->value = text_take(session, value);
            entry->key = berth_arena_strdup(&session->arena, keys[i]);
            if (entry->key == NULL || entry->value == NULL) {
                code = BERTH_UNAVAILABLE;
            } else {
                session->metadata_count++;
            }
        }
        status_ok(api->AllocatorFree(ort.plain, keys[i]));
    }
    if (session->metadata == NULL) {
        code = BERTH_UNAVAILABLE;
    }
out:
    if (keys != NULL) {
        status_ok(api->AllocatorFree(ort.plain, keys));
    }
    api->ReleaseModelMetadata(metadata);
    return code;
}

static int io_find(const struct berth_ort_io *ios, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(ios[i].name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static enum berth_code value_view(const struct berth_ort_value *value, OrtValue **out,
                                  struct berth_err *err)
{
    static _Alignas(64) unsigned char nothing[64]; /* where a tensor without elements lies */
    size_t element = berth_dtype_bytes(value->dtype);
    if (element == 0) {
        return berth_fail(err, BERTH_UNSUPPORTED, "tensor '%s': its type has no place in memory",
                          value->name);
    }
    if ((uintptr_t)value->bytes % element != 0) {
        return berth_fail(err, BERTH_INTERNAL, "tensor '%s' is not aligned to its elements",
                          value->name);
    }
    void *bytes = value->length == 0 ? nothing : value->bytes;
    OrtStatus *status = ort.api->CreateTensorWithDataAsOrtValue(
        berth_ort_memory_info(), bytes, value->length, value->dims, value->rank,
        type_of(value->dtype), out);
    return status_take(status, BERTH_INTERNAL, value->name, err);
}

/* Strings are copied: ONNX Runtime holds each as an object of its own. */
static enum berth_code value_strings(const struct berth_ort_value *value, OrtValue **out,
                                     struct berth_err *err)
{
    struct berth_tensor shape = {.rank = value->rank};
    size_t count;
    memcpy(shape.dims, value->dims, sizeof(shape.dims));
    if (!berth_tensor_elements(&shape, &count) || count > value->length / sizeof(uint32_t)) {
        return berth_fail(err, BERTH_INVALID, "tensor '%s' has fewer strings than its shape says",
                          value->name);
    }
    OrtStatus *status =
        ort.api->CreateTensorAsOrtValue(berth_ort_memory_allocator(), value->dims, value->rank,
                                        ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, out);
    BERTH_TRY(status_take(status, BERTH_INTERNAL, value->name, err));
    const unsigned char *at = value->bytes;
    const unsigned char *end = at == NULL ? NULL : at + value->length;
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        uint32_t length;
        char *place = NULL;
        if (!berth_bytes_next(&at, end, &bytes, &length)) {
            return berth_fail(err, BERTH_INVALID, "tensor '%s': string %zu is malformed",
                              value->name, i);
        }
        status = ort.api->GetResizedStringTensorElementBuffer(*out, i, length, &place);
        BERTH_TRY(status_take(status, BERTH_INTERNAL, value->name, err));
        if (length > 0) {
            memcpy(place, bytes, length);
        }
    }
    return BERTH_OK;
}

static enum berth_code run_prepared(struct berth_ort_session *session, struct berth_ort_run *run,
                                    OrtValue **inputs, OrtValue **outputs, struct berth_err *err)
{
    const char *input_names[BERTH_ORT_VALUES_MAX];
    const char *output_names[BERTH_ORT_VALUES_MAX];
    struct berth_ort_watch watch = {.stop = &run->stop};
    for (size_t i = 0; i < run->input_count; i++) {
        input_names[i] = run->inputs[i].name;
    }
    for (size_t i = 0; i < run->output_count; i++) {
        output_names[i] = run->outputs[i].name;
    }
    bool watched = run->stop.flag_count > 0;
    OrtStatus *status = watched ? ort.api->CreateRunOptions(&watch.options) : NULL;
    if (status == NULL) {
        if (watched) {
            berth_ort_watch_begin(&watch);
        }
        status = ort.api->Run(session->session, watch.options, input_names,
                              (const OrtValue *const *)inputs, run->input_count, output_names,
                              run->output_count, outputs);
        if (watched) {
            berth_ort_watch_end(&watch);
        }
    }
    ort.api->ReleaseRunOptions(watch.options);
    if (status != NULL && watch.ended) {
        ort.api->ReleaseStatus(status);
        return berth_fail(err, BERTH_CANCELLED, "ended, because nobody waits for it any more");
    }
    return status_take(status, BERTH_INTERNAL, "the model failed", err);
}

/* Takes *made on OK. */
static enum berth_code output_take(OrtValue **made, struct berth_ort_value *value,
                                   struct berth_err *err)
{
    size_t elements;
    int is_tensor = 0;
    if (*made == NULL || !status_ok(ort.api->IsTensor(*made, &is_tensor)) || is_tensor == 0) {
        return berth_fail(err, BERTH_UNSUPPORTED, "output '%s' is not a tensor", value->name);
    }
    BERTH_TRY(output_describe(*made, value, &elements, err));
    struct owner *owner = berth_alloc(sizeof(*owner));
    if (owner == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for output '%s'", value->name);
    }
    if (value->dtype == BERTH_DTYPE_BYTES) {
        enum berth_code code = output_strings(*made, elements, owner, value, err);
        if (code != BERTH_OK) {
            berth_free(owner);
            return code;
        }
    } else {
        if (!berth_mul_size(elements, berth_dtype_bytes(value->dtype), &value->length) ||
            !status_ok(ort.api->GetTensorMutableData(*made, &value->bytes))) {
            berth_free(owner);
            return berth_fail(err, BERTH_INTERNAL, "output '%s' has no bytes", value->name);
        }
        owner->value = *made;
        *made = NULL;
    }
    value->owner = owner;
    return BERTH_OK;
}

static enum berth_code output_describe(const OrtValue *made, struct berth_ort_value *value,
                                       size_t *elements, struct berth_err *err)
{
    OrtTensorTypeAndShapeInfo *info = NULL;
    ONNXTensorElementDataType type;
    size_t rank;
    if (!status_ok(ort.api->GetTensorTypeAndShape(made, &info))) {
        return berth_fail(err, BERTH_INTERNAL, "output '%s' has no shape", value->name);
    }
    bool known = status_ok(ort.api->GetTensorElementType(info, &type)) &&
                 status_ok(ort.api->GetDimensionsCount(info, &rank)) && rank <= BERTH_RANK_MAX &&
                 status_ok(ort.api->GetDimensions(info, value->dims, rank)) &&
                 status_ok(ort.api->GetTensorShapeElementCount(info, elements));
    ort.api->ReleaseTensorTypeAndShapeInfo(info);
    value->dtype = known ? dtype_of(type) : BERTH_DTYPE_NONE;
    if (value->dtype == BERTH_DTYPE_NONE) {
        return berth_fail(err, BERTH_UNSUPPORTED, "output '%s' has a type or rank not served",
                          value->name);
    }
    value->rank = (uint8_t)rank;
    return BERTH_OK;
}

/* Strings in KServe's form, in a block of ours. */
static enum berth_code output_strings(const OrtValue *made, size_t elements, struct owner *owner,
                                      struct berth_ort_value *value, struct berth_err *err)
{
    size_t total = 0;
    size_t with_prefixes;
    if (elements > 0 && !status_ok(ort.api->GetStringTensorDataLength(made, &total))) {
        return berth_fail(err, BERTH_INTERNAL, "output '%s' has no strings", value->name);
    }
    if (!berth_mul_size(elements, sizeof(uint32_t), &with_prefixes) ||
        !berth_add_size(with_prefixes, total, &with_prefixes)) {
        return berth_fail(err, BERTH_TOO_LARGE, "output '%s' is too large", value->name);
    }
    owner->block = berth_ort_memory_take(with_prefixes + 1);
    if (owner->block == NULL) {
        return berth_fail(err, BERTH_TOO_LARGE, "no memory for output '%s'", value->name);
    }
    unsigned char *at = owner->block;
    for (size_t i = 0; i < elements; i++) {
        size_t length = 0;
        bool fits = status_ok(ort.api->GetStringTensorElementLength(made, i, &length)) &&
                    length <= UINT32_MAX && length <= total;
        unsigned char prefix[4] = {(unsigned char)length, (unsigned char)(length >> 8),
                                   (unsigned char)(length >> 16), (unsigned char)(length >> 24)};
        if (!fits || !status_ok(ort.api->GetStringTensorElement(made, length, i, at + 4))) {
            berth_ort_memory_give(owner->block);
            return berth_fail(err, BERTH_INTERNAL, "output '%s': string %zu", value->name, i);
        }
        memcpy(at, prefix, sizeof(prefix));
        at += sizeof(prefix) + length;
        total -= length;
    }
    value->bytes = owner->block;
    value->length = with_prefixes;
    return BERTH_OK;
}
