/* request.h - the currency of all modules: tensor, request, and the parts its answer comes in.
 *
 * The life of a request: the front makes it and fills it in (one holder); berth_sched_submit hands
 * it to the controller; parts of the answer travel back on the request's reply queue, the last of
 * them final. Answer law: an accepted request gets any number of parts and exactly one final one,
 * whatever fails; berth_request_complete asserts it.
 *
 * Ownership: counted. The front holds one reference until it has taken the final part or its client
 * is gone; the controller holds one while the request is queued or runs; every part holds one.
 * After submit the front writes `cancelled` and `owner` only, the controller the rest.
 */
#ifndef BERTH_REQUEST_H
#define BERTH_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/slab.h"

#define BERTH_RANK_MAX 8

/*    name    KServe    bytes of an element (0: BYTES, each with a 4-byte length before it) */
#define BERTH_DTYPES(X)                                                                            \
    X(BOOL, 1)                                                                                     \
    X(UINT8, 1)                                                                                    \
    X(UINT16, 2)                                                                                   \
    X(UINT32, 4)                                                                                   \
    X(UINT64, 8)                                                                                   \
    X(INT8, 1)                                                                                     \
    X(INT16, 2)                                                                                    \
    X(INT32, 4)                                                                                    \
    X(INT64, 8)                                                                                    \
    X(FP16, 2)                                                                                     \
    X(FP32, 4)                                                                                     \
    X(FP64, 8)                                                                                     \
    X(BYTES, 0)                                                                                    \
    X(BF16, 2)

enum berth_dtype {
    BERTH_DTYPE_NONE,
#define BERTH_DTYPE_ENUM(name, bytes) BERTH_DTYPE_##name,
    BERTH_DTYPES(BERTH_DTYPE_ENUM)
#undef BERTH_DTYPE_ENUM
};

const char *berth_dtype_name(enum berth_dtype dtype);                         /* "FP32" */
enum berth_dtype berth_dtype_parse(const char *name, size_t length);          /* NONE: unknown */
size_t berth_dtype_bytes(enum berth_dtype dtype);                             /* 0: variable */

/* Strings and dims live as long as the request or part that holds the tensor. */
struct berth_tensor {
    const char *name;
    enum berth_dtype dtype;
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX]; /* >= 0; with batching dims[0] is the batch */
    struct berth_range range;     /* the bytes; may be a part of a range somebody else owns */
};

/* Product of the dims; false on overflow or a negative one. A rank of 0 has one element. */
bool berth_tensor_elements(const struct berth_tensor *tensor, size_t *out) BERTH_MUST_USE;

enum berth_param_kind { BERTH_PARAM_BOOL, BERTH_PARAM_INT, BERTH_PARAM_REAL, BERTH_PARAM_STRING };

/* Parameters of a request (KServe's "parameters", OpenAI's form fields). Engines read them by name:
 * src/engine/README.md lists which. */
struct berth_param {
    const char *name;
    enum berth_param_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *string;
    } value;
};

struct berth_params {
    struct berth_param *items;
    size_t count;
};

const struct berth_param *berth_params_find(const struct berth_params *params, const char *name);
/* The value, or fallback where the name is missing or of another kind (INT counts as REAL). */
bool berth_params_bool(const struct berth_params *params, const char *name, bool fallback);
int64_t berth_params_int(const struct berth_params *params, const char *name, int64_t fallback);
double berth_params_real(const struct berth_params *params, const char *name, double fallback);
const char *berth_params_string(const struct berth_params *params, const char *name,
                                const char *fallback);

struct berth_request;

/* One piece of an answer. Its tensors' ranges are its own and given back when it is destroyed. */
struct berth_part {
    struct berth_post post;        /* travels on the request's reply queue */
    struct berth_request *request; /* retained */
    bool final;
    struct berth_err err;          /* of a final part: OK, or why there is no answer */
    struct berth_tensor *tensors;
    size_t tensor_count;
    size_t tensor_capacity;
    struct berth_arena arena;      /* names, dims, the tensor array */
};

/* What happened when, on the monotonic clock; 0: not yet. */
struct berth_stamps {
    uint64_t t_head_ns;     /* head complete */
    uint64_t t_received_ns; /* body complete */
    uint64_t t_decoded_ns;  /* media decoded (or no need) */
    uint64_t t_queued_ns;   /* taken by the controller */
    uint64_t t_loaded_ns;   /* model was warm */
    uint64_t t_started_ns;  /* first handed to a worker */
    uint64_t t_done_ns;     /* final part made */
};

struct berth_model; /* model/model.h */

struct berth_request {
    atomic_uint references;
    atomic_bool cancelled;       /* nobody waits any more; polled by decoders and engines */
    atomic_bool answered;        /* the final part was made */
    uint64_t id;                 /* unique in the process */
    const char *id_client;       /* KServe id or X-Request-Id; "" if none */
    struct berth_model *model;   /* retained by the front for the request's life */
    struct berth_tensor *inputs;
    size_t input_count;
    const char **outputs_wanted; /* NULL: all */
    size_t output_wanted_count;
    struct berth_params params;
    uint64_t batch_rows;         /* dims[0] where the model batches, else 1 */
    uint64_t priority;           /* 1 is first; 0: the model's default */
    uint64_t t_deadline_ns;      /* final answer due; never 0 after submit */
    bool timeout_named;          /* the client named its deadline (else it is ours) */
    struct berth_stamps stamps;
    bool cold;                   /* it had to wait for a load */
    struct berth_slabs *slabs;   /* borrows for its life */
    struct berth_range body;     /* owned: what the client sent */
    struct berth_range media;    /* owned: what decoding made of it */
    struct berth_arena arena;    /* everything small; freed with the last reference */

    /* Where parts go: posted on `reply`, delivered by on_part on that queue's thread. */
    struct berth_queue *reply;
    void (*on_part)(struct berth_post *post); /* CONTAINER_OF(post, struct berth_part, post) */
    void *owner;                 /* the front's exchange; NULL once its client is gone */

    /* The controller's own. */
    struct berth_post submit_post; /* links used to reach the controller: one for submit, */
    struct berth_post cancel_post; /* one for cancel, which is sent at most once */
    atomic_bool cancel_sent;
    void *sched_state;             /* its ticket, in the arena */
    struct berth_part final_part; /* so that the last answer needs no memory */
};

/* Zeroed, with one reference, an id, and its arena limited to arena_bytes_max. NULL: no memory. */
struct berth_request *berth_request_create(struct berth_slabs *slabs, size_t arena_bytes_max);
/* The input of that name, or NULL. Lends. */
const struct berth_tensor *berth_request_input(const struct berth_request *request,
                                               const char *name);
/* Is an output of that name to be in the answer? */
bool berth_request_wants(const struct berth_request *request, const char *name);
struct berth_request *berth_request_retain(struct berth_request *request);
void berth_request_release(struct berth_request *request); /* NULL is fine */

/* A range of the request's own: given back with its last reference. */
enum berth_code berth_request_take(struct berth_request *request, size_t bytes,
                                   struct berth_range *out, struct berth_err *err) BERTH_MUST_USE;

/* Makes an empty part for a request (retains it), or NULL. */
struct berth_part *berth_part_create(struct berth_request *request);
/* Gives its tensors back and releases the request. NULL is fine. */
void berth_part_destroy(struct berth_part *part);
/* Adds a tensor of like's name (copied), dtype, rank and dims; its range is not looked at. Takes a
 * range of `bytes` (of BYTES tensors with the prefixes); *out is where they go, aligned to 64 (NULL
 * when bytes is 0). INTERNAL when bytes do not fit dtype and dims. */
enum berth_code berth_part_add(struct berth_part *part, const struct berth_tensor *like,
                               size_t bytes, void **out, struct berth_err *err) BERTH_MUST_USE;
/* The tensor of that name, or NULL. Lends. */
const struct berth_tensor *berth_part_find(const struct berth_part *part, const char *name);

/* Sends a part that is not the last. Takes it. Dropped silently when already answered. */
void berth_request_send(struct berth_request *request, struct berth_part *part);
/* Sends the final answer. `part` (may be NULL: no tensors) is taken; err NULL means OK. Returns
 * false, destroying part, when the request was answered before (a deadline came first). */
bool berth_request_complete(struct berth_request *request, struct berth_part *part,
                            const struct berth_err *err);

/* A BYTES tensor of `count` strings from one buffer: writes prefix and bytes; returns the end. */
unsigned char *berth_bytes_put(unsigned char *at, const void *bytes, uint32_t length);
/* Reads the next string of a BYTES tensor; false at the end or when it is malformed. */
bool berth_bytes_next(const unsigned char **at, const unsigned char *end, const char **bytes,
                      uint32_t *length);

#endif
