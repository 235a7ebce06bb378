/* model.h - what a model is: its parsed config and signature, and its place in the catalogue.
 *
 * repo/ reads a folder into a spec, engine.describe completes it, then it never changes; a reload
 * makes a new one. The catalogue maps names to models; the controller alone changes their state,
 * every thread may look them up and read state and statistics.
 */
#ifndef BERTH_MODEL_H
#define BERTH_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hist.h"
#include "base/mem.h"
#include "request/request.h"

#define BERTH_MODEL_NAME_MAX 255
#define BERTH_INSTANCES_MAX 64 /* of one model on one device */

/* One input or output. dims without the batch; -1 means variable. */
struct berth_io {
    const char *name;
    enum berth_dtype dtype;
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX];
    bool optional;
    bool allow_ragged_batch;
    bool has_reshape;               /* the engine's shape differs (Triton's reshape) */
    uint8_t reshape_rank;
    int64_t reshape_dims[BERTH_RANK_MAX];
    const char *format;             /* "FORMAT_NONE" */
    const char *label_filename;     /* "" if none */
    bool is_shape_tensor;
};

enum berth_batching { BERTH_BATCHING_NONE, BERTH_BATCHING_DYNAMIC, BERTH_BATCHING_SEQUENCE };
enum berth_timeout_action { BERTH_TIMEOUT_REJECT, BERTH_TIMEOUT_DELAY };

/* Triton's ModelQueuePolicy, for one priority level. */
struct berth_queue_policy {
    enum berth_timeout_action timeout_action;
    uint64_t timeout_us_default;  /* 0: none */
    bool timeout_override;
    uint64_t count_max;           /* 0: the server's --model-queue-max */
};

#define BERTH_PREFERRED_MAX 16
#define BERTH_PRIORITY_MAX 64

struct berth_dynamic_batching {
    uint64_t preferred[BERTH_PREFERRED_MAX];
    size_t preferred_count;
    uint64_t delay_us_max;
    bool preserve_ordering;
    uint64_t priority_levels;         /* 0: one level */
    uint64_t priority_level_default;
    struct berth_queue_policy policy_default;
    struct berth_queue_policy policies[BERTH_PRIORITY_MAX]; /* by level - 1 */
};

enum berth_instance_kind { BERTH_KIND_AUTO, BERTH_KIND_CPU, BERTH_KIND_GPU, BERTH_KIND_MODEL };

struct berth_instance_group {
    const char *name;
    enum berth_instance_kind kind;
    uint32_t count; /* 0: not set */
    const int32_t *gpus;
    size_t gpu_count;
};

struct berth_warmup_input {
    const char *name;
    enum berth_dtype dtype;
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX];
    enum { BERTH_WARMUP_ZERO, BERTH_WARMUP_RANDOM, BERTH_WARMUP_FILE } source;
    const char *file; /* under <model>/warmup/ */
};

struct berth_warmup {
    const char *name;
    uint32_t batch_size;
    uint32_t count;
    struct berth_warmup_input *inputs;
    size_t input_count;
};

struct berth_key_value {
    const char *key;
    const char *value;
};

/* How an engine runs a model; describe sets it. */
enum berth_run_mode {
    BERTH_RUN_EXECUTE, /* one call answers a batch */
    BERTH_RUN_STEPS    /* admit, step, drop */
};

struct berth_config_node;

struct berth_model_spec {
    atomic_uint references;
    struct berth_arena arena;        /* all strings and arrays below */
    const char *name;
    uint64_t version;
    const char *folder;              /* <repository>/<model> */
    const char *folder_version;      /* <repository>/<model>/<version> */
    const char *engine;              /* "onnx", "whisper", "null": from backend or platform */
    const char *backend;             /* as written or completed, for the config echo */
    const char *platform;
    const char *default_model_filename;
    uint64_t batch_size_max;         /* 0: no batch dimension */
    bool batch_size_set;             /* the config says so; describe does not choose */
    bool batching_set;               /* the config chooses a scheduler */
    bool quiet;                      /* the config's warnings were given for another spec */
    struct berth_io *inputs;
    size_t input_count;
    struct berth_io *outputs;
    size_t output_count;
    enum berth_batching batching;
    struct berth_dynamic_batching dynamic;
    struct berth_instance_group *groups;
    size_t group_count;
    struct berth_warmup *warmups;
    size_t warmup_count;
    struct berth_key_value *parameters;
    size_t parameter_count;
    const char *task;                /* "automatic-speech-recognition" or ""; describe sets it */
    enum berth_run_mode run_mode;
    bool completed;                  /* describe has run */
    uint64_t bytes_estimate;         /* memory a load is reserved with; describe sets it */
    uint64_t files_bytes;            /* of the version's folder */
    const struct berth_config_node *config; /* the config as written (config_tree.h), or NULL */
    uint64_t files_stamp; /* hash of the config's text and the names, sizes and times of the
                             version's files: differs when a reload is due; 0: unknown */
};

struct berth_model_spec *berth_spec_create(void); /* zeroed, one reference; NULL: no memory */
struct berth_model_spec *berth_spec_retain(struct berth_model_spec *spec);
void berth_spec_release(struct berth_model_spec *spec); /* NULL is fine */
const char *berth_spec_parameter(const struct berth_model_spec *spec, const char *key,
                                 const char *fallback);
const struct berth_io *berth_spec_input(const struct berth_model_spec *spec, const char *name);
const struct berth_io *berth_spec_output(const struct berth_model_spec *spec, const char *name);
/* Of a device's name, "cuda:0"; NULL: none. */
bool berth_device_is_gpu(const char *device);
/* Whether an instance group names that kind. */
bool berth_spec_names_kind(const struct berth_model_spec *spec, enum berth_instance_kind kind);
/* Whether it may run on a GPU. A config that names no kind leaves the choice to us, as AUTO does.
 */
bool berth_spec_suits_gpu(const struct berth_model_spec *spec);
/* How many instances on a GPU, or on the CPU: the sum over groups of that kind and of KIND_AUTO, at
 * most BERTH_INSTANCES_MAX; `fallback` where none says a count. */
uint32_t berth_spec_instances(const struct berth_model_spec *spec, bool gpu, uint32_t fallback);

/* States of a model on a device (src/residency/README.md). */
#define BERTH_MODEL_STATES(X)                                                                      \
    X(COLD) X(FETCHING) X(LOADING) X(WARMING) X(WARM) X(EVICTING) X(FAILED)

enum berth_model_state {
#define BERTH_MODEL_STATE_ENUM(name) BERTH_STATE_##name,
    BERTH_MODEL_STATES(BERTH_MODEL_STATE_ENUM)
#undef BERTH_MODEL_STATE_ENUM
};

const char *berth_model_state_name(enum berth_model_state state);

/* Why and how long, as Triton's statistics count it: one entry of count and ns. */
struct berth_tally {
    _Atomic uint64_t count;
    _Atomic uint64_t ns;
};

#define BERTH_BATCH_SIZES_MAX 128

/* What only a model that has had a request needs: 38 KiB, so not part of every model. */
struct berth_model_detail {
    struct berth_tally batches[BERTH_BATCH_SIZES_MAX + 1]; /* compute_infer by batch size, last:
                                                            * above */
    struct berth_hist latency_warm_us, latency_cold_us;    /* accepted to final part */
    struct berth_hist queue_us, run_us;                    /* by stage */
};

/* Written by the controller only, read by any thread. */
struct berth_model_stats {
    _Atomic uint64_t inference_count; /* rows */
    _Atomic uint64_t execution_count; /* batches or steps */
    _Atomic uint64_t last_inference_ms;
    struct berth_tally success, fail, queue, compute_input, compute_infer, compute_output;
    _Atomic uint64_t rejected, cancelled, expired;
    _Atomic uint64_t wasted_ns;      /* worker time spent on rows nobody waited for */
    _Atomic uint64_t wasted_count;
    _Atomic uint64_t queue_depth;
    _Atomic uint64_t loads, loads_failed, unloads, load_ns;
    _Atomic(struct berth_model_detail *) detail; /* owned; take with berth_model_detail* */
};

/* A version of a model in the catalogue. Never freed while referenced; an entry that is gone from
 * the repository stays for its holders. */
struct berth_model {
    atomic_uint references;
    uint64_t id;
    const char *name;    /* owned */
    uint64_t version;
    _Atomic int state;   /* enum berth_model_state; controller only */
    _Atomic bool listed; /* present in the repository and served by its version policy */
    _Atomic bool queue_full; /* max_queue_size requests wait, and would after a dispatch */
    _Atomic uint64_t bytes_used; /* measured while loaded */
    _Atomic(const char *) device; /* while loaded: "cuda:0"; lends for its worker's life */
    _Atomic uint64_t t_used_ns;  /* last request */
    _Atomic uint64_t t_retry_ns; /* FAILED: refused until then */
    _Atomic uint64_t
        service_ns; /* measured time between two answers while it is busy; 0: unknown */
    void *sched_state;           /* the controller's own record; its thread only */
    struct berth_model_stats stats;
    pthread_mutex_t mu;
    struct berth_model_spec *spec; /* guarded by mu; take with berth_model_spec */
    char *reason;                  /* guarded by mu; owned; why it is unavailable; NULL: "" */
    char *fallback;                /* guarded by mu; owned; why it is on no GPU; NULL: "" */
};

/* A cold model with one reference; NULL: no memory. */
struct berth_model *berth_model_create(const char *name, uint64_t version);
/* Any thread: NULL while no request has come. Lends for the model's life. */
const struct berth_model_detail *berth_model_detail(struct berth_model *model);
/* Controller only: makes it at the first call; NULL: no memory (then count nothing). */
struct berth_model_detail *berth_model_detail_make(struct berth_model *model);

/* A retained spec; the caller releases it. Any thread. */
struct berth_model_spec *berth_model_spec(struct berth_model *model);
void berth_model_set_spec(struct berth_model *model, struct berth_model_spec *spec); /* takes */
void berth_model_set_state(struct berth_model *model, enum berth_model_state state,
                           const char *reason);
enum berth_model_state berth_model_state(const struct berth_model *model);
void berth_model_reason(struct berth_model *model, char *out, size_t bytes);
/* Where it is loaded (borrows device; NULL: nowhere), and if that is not the GPU that it suits, why
 * (NULL: it is where it belongs). */
void berth_model_set_place(struct berth_model *model, const char *device, const char *fallback);
/* The device, NULL: nowhere; and the reason, "" if none. Any thread. */
const char *berth_model_place(struct berth_model *model, char *fallback, size_t bytes);
struct berth_model *berth_model_retain(struct berth_model *model);
void berth_model_release(struct berth_model *model); /* NULL is fine */

struct berth_catalog;

enum berth_code berth_catalog_create(struct berth_catalog **out, struct berth_err *err)
    BERTH_MUST_USE;
void berth_catalog_destroy(struct berth_catalog *catalog);
/* version 0: the newest listed one. Retained for the caller; NULL when there is none. */
struct berth_model *berth_catalog_find(struct berth_catalog *catalog, const char *name,
                                       uint64_t version);
/* Is there any version of that name, served or not? */
bool berth_catalog_knows(struct berth_catalog *catalog, const char *name);
/* The entry of (spec->name, spec->version), made if there was none; its spec is replaced. Takes
 * spec on OK. *out is retained. Called for a scan's results on the controller thread. */
enum berth_code berth_catalog_put(struct berth_catalog *catalog, struct berth_model_spec *spec,
                                  struct berth_model **out, struct berth_err *err) BERTH_MUST_USE;
/* All models, retained, sorted by name and version; the caller gives them to berth_models_release.
 * false: no memory. */
bool berth_catalog_list(struct berth_catalog *catalog, struct berth_model ***out, size_t *count)
    BERTH_MUST_USE;
/* The versions of one name, rising, in the same way; none for a name that is not there. */
bool berth_catalog_versions(struct berth_catalog *catalog, const char *name,
                            struct berth_model ***out, size_t *count) BERTH_MUST_USE;
void berth_models_release(struct berth_model **models, size_t count); /* and frees the array */

#endif
