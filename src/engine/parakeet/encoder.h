/* encoder.h - the FastConformer over a back end's operations: PCM to tokens of one bucket.
 *
 * A run has the memory of one bucket and goes through its stages in order: features and
 * subsampling, each layer, the projector, decoding. A CPU stops between stages to look at the clock
 * and at cancelled rows; CUDA plays all of them as one graph.
 *
 * Source: Rekesh et al., Fast Conformer with Linearly Scalable Attention (2023); Xu et al.,
 * Efficient Sequence Transduction by Jointly Predicting Tokens and Durations (2023).
 */
#ifndef BERTH_ENCODER_H
#define BERTH_ENCODER_H

#include "base/err.h"
#include "engine/parakeet/backend.h"

/* What all runs of a model on one device share; borrows config and weights. */
struct berth_parakeet_net;

enum berth_code berth_parakeet_net_create(const struct berth_parakeet_ops *ops,
                                          struct berth_parakeet_device *device,
                                          const struct berth_parakeet_config *config,
                                          const struct berth_parakeet_weights *weights,
                                          uint32_t frames_max, /* longest bucket */
                                          struct berth_parakeet_net **out,
                                          struct berth_err *err) BERTH_MUST_USE;
void berth_parakeet_net_destroy(struct berth_parakeet_net *net); /* NULL is fine */
/* What a net of that many frames has on its device for its life. */
uint64_t berth_parakeet_net_bytes(const struct berth_parakeet_ops *ops,
                                  const struct berth_parakeet_config *config, uint32_t frames_max);

/* The products of a run of that shape, each kind once, for the back end's prepare: n, the matrix,
 * the output's type, the activation, and whether there is a residual are as in the run. Returns how
 * many. */
#define BERTH_PARAKEET_PRODUCTS_MAX 10
uint32_t berth_parakeet_products(const struct berth_parakeet_config *config,
                                 const struct berth_parakeet_weights *weights,
                                 const struct berth_parakeet_shape *shape,
                                 struct berth_parakeet_linear_call *out);

/* A bucket's memory: buffers, counts, results. Kept for the bucket's life, so that a recorded graph
 * stays true. */
struct berth_parakeet_run;

/* Of the device; on the CPU with what the host fills and reads. */
uint64_t berth_parakeet_run_bytes(const struct berth_parakeet_ops *ops,
                                  const struct berth_parakeet_config *config,
                                  const struct berth_parakeet_shape *shape);
enum berth_code berth_parakeet_run_create(struct berth_parakeet_net *net,
                                          const struct berth_parakeet_shape *shape,
                                          struct berth_parakeet_run **out,
                                          struct berth_err *err) BERTH_MUST_USE;
void berth_parakeet_run_destroy(struct berth_parakeet_run *run); /* NULL is fine */

/* For measurements: what a run does from its next begin on; WHOLE until then. Each extent has its
 * own graph. TO_ENCODED and ENCODER_ALONE decode nothing and download nothing: finish lends no
 * tokens, the probes below hold. ENCODER_ALONE takes the features of the run before (they are
 * kept), and uploads no PCM; samples must be those of that run. */
enum berth_parakeet_extent {
    BERTH_PARAKEET_WHOLE,        /* PCM to tokens */
    BERTH_PARAKEET_TO_ENCODED,   /* PCM to the projected encoder output */
    BERTH_PARAKEET_ENCODER_ALONE /* features to the projected encoder output */
};
void berth_parakeet_run_set_extent(struct berth_parakeet_run *run,
                                   enum berth_parakeet_extent extent);

/* Host memory to fill before begin: pcm of a row [padded.samples], and its samples; a row without
 * use has 0. */
float *berth_parakeet_run_pcm(struct berth_parakeet_run *run, uint32_t row);
void berth_parakeet_run_begin(struct berth_parakeet_run *run, const uint32_t *samples);
/* The next stage. True: there is another. On CUDA the first call does all. */
bool berth_parakeet_run_advance(struct berth_parakeet_run *run);
/* Where the device records: makes the run's graph, before it is needed, and computes nothing. */
enum berth_code berth_parakeet_run_record(struct berth_parakeet_run *run,
                                          struct berth_err *err) BERTH_MUST_USE;
/* Any thread: a row nobody waits for. */
void berth_parakeet_run_stop(struct berth_parakeet_run *run, uint32_t row);
/* After the last stage: waits, and lends the results in host memory until the next begin. */
enum berth_code berth_parakeet_run_finish(struct berth_parakeet_run *run,
                                          struct berth_parakeet_tokens *out,
                                          struct berth_err *err) BERTH_MUST_USE;

/* For tests: what a stage left, as float32 in host memory the caller gives. */
enum berth_parakeet_probe {
    BERTH_PARAKEET_PROBE_FEATURES, /* [rows][padded.features][mels] */
    BERTH_PARAKEET_PROBE_ENCODED,  /* [rows][padded.frames][hidden] */
    BERTH_PARAKEET_PROBE_PROJECTED /* [rows][padded.frames][prediction] */
};
enum berth_code berth_parakeet_run_probe(struct berth_parakeet_run *run,
                                         enum berth_parakeet_probe what, float *out,
                                         struct berth_err *err) BERTH_MUST_USE;

#endif
