/* ort.h - ONNX Runtime for the engines that stand on it: sessions, runs, and who holds how much.
 *
 * In:      a model file; arrays of values over the caller's memory. Out: values, or an error.
 * Owns:    one environment of the process with one thread pool; sessions until they are closed.
 * Threads: all calls from any thread; one session may run on several threads at once.
 * Memory:  what ONNX Runtime asks its CPU allocator for is counted on the meter of the model that
 *          is opened or run (ort_memory.c says what it hides from us, and how that is estimated).
 * Not here: batching and tensors as slab ranges (onnx.c), token loops (whisper/).
 */
#ifndef BERTH_ORT_H
#define BERTH_ORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "request/request.h"

/* Bytes held for one model; zeroed memory is a valid meter. It must outlive its sessions and the
 * values its runs brought forth. */
struct berth_ort_meter {
    _Atomic uint64_t bytes_used;
    _Atomic uint64_t bytes_peak;
};

/* Starts the environment with one pool of `threads` (0: 1) threads for all sessions. Counted: each
 * engine that stands on ONNX Runtime calls it in its start, and finish in its finish. */
enum berth_code berth_ort_start(uint32_t threads, struct berth_err *err) BERTH_MUST_USE;
void berth_ort_finish(void);
/* "1.32.0"; static. */
const char *berth_ort_version(void);

struct berth_ort_session;

/* One input or output as the model declares it. dims[0] may be the batch; -1 is variable. */
struct berth_ort_io {
    const char *name; /* lives as long as the session */
    enum berth_dtype dtype; /* NONE: no tensor, or of a type that berth does not serve */
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX];
};

/* Loads a model file. INVALID: not a model that ONNX Runtime can run (the message names the file).
 * meter is borrowed until close and may be shared by the sessions of one model. */
enum berth_code berth_ort_session_open(const char *path, struct berth_ort_meter *meter,
                                       struct berth_ort_session **out,
                                       struct berth_err *err) BERTH_MUST_USE;
/* NULL is fine; no run may be under way. */
void berth_ort_session_close(struct berth_ort_session *session);
const struct berth_ort_io *berth_ort_session_inputs(const struct berth_ort_session *session,
                                                    size_t *count);
const struct berth_ort_io *berth_ort_session_outputs(const struct berth_ort_session *session,
                                                     size_t *count);
/* Position by name, or -1. */
int berth_ort_session_find_input(const struct berth_ort_session *session, const char *name);
int berth_ort_session_find_output(const struct berth_ort_session *session, const char *name);
/* A custom metadata entry of the model, or NULL. Lives as long as the session. */
const char *berth_ort_session_metadata(const struct berth_ort_session *session, const char *key);

/* A tensor in memory. As an input: name, dtype, rank, dims and bytes are the caller's (bytes NULL
 * only where length is 0). As an output: the caller sets name, and either
 *   bytes NULL: ONNX Runtime allocates; dtype, rank, dims, bytes, length are set by the run, and
 *               the memory lives until berth_ort_value_clear, also as a later run's input (a KV
 *               cache goes round without a copy: hand bytes of the one to the other), or
 *   bytes set:  it writes there; dtype, rank, dims and length must be exactly what comes out, or
 *               the run fails.
 * BYTES tensors travel in KServe's form (each string with a 4-byte little-endian length before it),
 * in and out; an output of BYTES must have bytes NULL. */
struct berth_ort_value {
    const char *name;
    enum berth_dtype dtype;
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX];
    void *bytes;
    size_t length;
    void *owner; /* of an output that ONNX Runtime allocated; set by the run, freed by clear */
};

#define BERTH_ORT_VALUES_MAX 256 /* inputs, and outputs, of one run */

/* A running call ends early (CANCELLED) when every flag is set, within about 50 ms and at the end
 * of the operator under way. flags and what they point to are borrowed for the call. */
struct berth_ort_stop {
    const atomic_bool *const *flags;
    size_t flag_count; /* 0: never */
};

struct berth_ort_run {
    const struct berth_ort_value *inputs;
    size_t input_count;
    struct berth_ort_value *outputs; /* by name, any subset; owner must be NULL */
    size_t output_count;
    struct berth_ort_stop stop;
};

/* Runs a session. On error no output has memory of ONNX Runtime's. INVALID: the model refused the
 * inputs' values or shapes; TOO_LARGE: not enough memory for this run; INTERNAL: it failed. */
enum berth_code berth_ort_session_run(struct berth_ort_session *session, struct berth_ort_run *run,
                                      struct berth_err *err) BERTH_MUST_USE;
/* Gives back what a run allocated for an output, and zeroes it but for the name. */
void berth_ort_value_clear(struct berth_ort_value *value);

#endif
