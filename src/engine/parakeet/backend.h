/* backend.h - the table of operations a FastConformer needs, and the two devices that have it.
 *
 * cpu.c (plain C, float32) is the reference for every kernel; cuda/ (half precision operands,
 * float32 sums) is the fast one. encoder.c calls the table in one order for both, so there is one
 * structure and two sets of loops.
 *
 * Memory: every pointer is the device's; "elements" are float32 on the CPU, half precision (IEEE)
 * on CUDA; what the layers add to, the stream, is float32 on both. Sizes are those of the bucket
 * (struct berth_parakeet_shape); rows are padded to it, and what lies past a row's own length is
 * masked here, never trusted to be zero unless it says so. No operation mixes rows (E1). Counts are
 * int32 [rows] in device memory.
 * Errors: operations have none; a device that fails says so at finish. A value that does not fit
 *         an element becomes infinite, never another number, and spoils its row: count is -1.
 * Threads: a device belongs to one instance.
 */
#ifndef BERTH_BACKEND_H
#define BERTH_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/parakeet/parakeet_config.h"
#include "engine/parakeet/weights.h"

/* What CUDA's products may use beside their operands; a device has so much. */
#define BERTH_PARAKEET_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

/* What CUDA's features take for log-mels when `bytes` are needed and `last`, fewer, were taken:
 * half as much again at least, because what was taken stays (features.cu). All ever taken is less
 * than 4.5 times the most that was needed. */
static inline uint64_t berth_parakeet_cuda_grown(uint64_t bytes, uint64_t last)
{
    return bytes < last + last / 2 ? last + last / 2 : bytes;
}

struct berth_parakeet_device;

/* A bucket: so many rows, padded to one length. */
struct berth_parakeet_shape {
    uint32_t rows;
    struct berth_parakeet_lengths padded;
};

/* Row lengths on the device, each int32 [rows]. */
struct berth_parakeet_counts {
    const int32_t *samples, *features, *half, *quarter, *frames;
    /* int32 [rows], zero before a run; an operation after which an infinite value could pass for a
     * number sets its row's, and decode looks. NULL: nobody is told. */
    int32_t *spoiled;
};

enum berth_parakeet_activation { BERTH_PARAKEET_NONE, BERTH_PARAKEET_RELU, BERTH_PARAKEET_SILU };

/* out = residual + scale * activation(in x weight^T + bias), n vectors. residual may be out itself;
 * NULL: none. A residual and a scale other than 1 go with NONE, and so does stream.
 * The vectors are `rows` rows of n / rows; what lies past a row's first used[row] * each of them
 * nobody reads, and it need not be computed. used NULL: all n are wanted. */
struct berth_parakeet_linear_call {
    const struct berth_parakeet_linear *linear;
    const void *in;        /* elements [n][in]; e4m3 if the linear has a scale */
    const float *in_scale; /* float32 [n], if the linear has one: a vector's e4m3 times it */
    void *out;             /* elements [n][out]; float32 with stream */
    /* With a scale and SILU: the result as e4m3 [n][out], and its scales [n]; out is scratch. */
    void *narrow;
    float *narrow_scale;
    void *scratch; /* with a scale and stream: halves [n][out] that may be written over */
    const void *residual; /* as out */
    bool stream;
    float scale;
    enum berth_parakeet_activation activation;
    uint64_t n;
    const int32_t *used; /* int32 [rows], one of the counts */
    uint32_t rows, each;
};

/* out = norm(in), eps 1e-5; with a second one through = norm(in), out = second(through). */
struct berth_parakeet_norm_call {
    const struct berth_parakeet_norm *norm;
    const struct berth_parakeet_norm *second; /* NULL: there is one */
    const void *in;                           /* float32 [n][hidden] */
    void *through;                            /* float32 [n][hidden]; may be in */
    void *out;                                /* elements [n][hidden]; e4m3 with out_scale */
    float *out_scale;                         /* float32 [n]; NULL: elements */
    uint64_t n;
    uint32_t hidden;
};

struct berth_parakeet_attention_call {
    const void *qkv;       /* elements [rows][frames][3][heads][head_dim] */
    const void *position;  /* elements [2 * position_max - 1][heads][head_dim]: row p belongs to the
                              distance position_max - 1 - p between query and key (query - key) */
    uint32_t position_max; /* >= frames */
    const float *bias_u, *bias_v;
    void *out; /* elements [rows][frames][heads][head_dim]; zero past a row's frames */
    uint32_t heads, head_dim;
};

/* Of one row of tokens: [rows][capacity] each, but count [rows]. */
struct berth_parakeet_tokens {
    int32_t *count; /* -1: a value on the row's way was no number; it has no tokens */
    int32_t *token;
    int32_t *frame;     /* at which it was emitted */
    int32_t *duration;  /* frames it moved on by; CTC: frames the token's run lasted */
    float *probability; /* softmax over the vocabulary at its step; CTC: highest of its run */
    int32_t *steps;     /* [rows]: joint evaluations */
    uint32_t capacity;  /* a row that would need more stops there: then it is full */
};

struct berth_parakeet_decode_call {
    const struct berth_parakeet_config *config;
    const struct berth_parakeet_weights *weights;
    const void *projected; /* elements [rows][frames][prediction]; CTC: encoder output */
    const uint32_t *stop;  /* [rows], written by the host at any time: not 0 ends that row */
    void *state;           /* decode_state_bytes; zeroed by the call that begins */
    struct berth_parakeet_tokens tokens;
    uint32_t steps_max; /* CPU: so many steps in this call; CUDA: all of them */
    bool begin;
};

struct berth_parakeet_ops {
    const char *name; /* "cpu", "cuda" */
    enum berth_parakeet_element element;

    /* Whether its operations take a model of that config: UNSUPPORTED, with the field and what they
     * take. Needs no device. Any thread. */
    enum berth_code (*check)(const struct berth_parakeet_config *config, struct berth_err *err);
    /* Optional (CUDA). Whether that device multiplies such a model in e4m3. Any thread. */
    enum berth_code (*narrow)(const char *device, const struct berth_parakeet_config *config,
                              struct berth_err *err);
    /* `device`: "cpu:0", "cuda:0". threads: the CPU's. */
    enum berth_code (*open)(const char *device, uint32_t threads,
                            struct berth_parakeet_device **out, struct berth_err *err);
    void (*close)(struct berth_parakeet_device *device);
    /* Reads a folder's weights into a span of the device (weights.h). Any thread. */
    enum berth_code (*weights_load)(const char *device, const struct berth_parakeet_config *config,
                                    const char *folder, void *span, struct berth_err *err);
    /* Memory of the device, 256-byte aligned, contents undefined; NULL: none left. */
    void *(*alloc)(struct berth_parakeet_device *device, size_t bytes);
    void (*free)(struct berth_parakeet_device *device, void *memory, size_t bytes);
    /* Memory the host writes or reads and the device sees at *on_device (CPU: the same). */
    void *(*alloc_shared)(struct berth_parakeet_device *device, size_t bytes, void **on_device);
    void (*free_shared)(struct berth_parakeet_device *device, void *memory);
    /* In the order of the operations around them; host memory is alloc_shared's. */
    void (*upload)(struct berth_parakeet_device *device, void *to, const void *from, size_t bytes);
    void (*download)(struct berth_parakeet_device *device, void *to, const void *from,
                     size_t bytes);
    /* Waits for all that was asked for; a failure of any of it. */
    enum berth_code (*finish)(struct berth_parakeet_device *device, struct berth_err *err);
    /* Optional. Whether the failure that finish told last was of memory: the same may do when there
     * is more of it. */
    bool (*starved)(const struct berth_parakeet_device *device);
    /* Optional (CUDA), all or none. Everything asked for between record and play becomes a graph of
     * that key, kept (a bounded cache), and is launched by play. record: false when it is there
     * already, or cannot be made (finish tells): nothing is to be asked for, just play. keep in
     * place of play launches nothing. forget drops a graph, if there is one, before what it points
     * to goes away; drop all. */
    bool (*record)(struct berth_parakeet_device *device, uint64_t key);
    void (*play)(struct berth_parakeet_device *device, uint64_t key);
    void (*keep)(struct berth_parakeet_device *device, uint64_t key);
    void (*forget)(struct berth_parakeet_device *device, uint64_t key);
    void (*drop)(struct berth_parakeet_device *device);
    /* Optional (CUDA). Makes the choices that linear needs for such a call, and keeps them for the
     * process. Of in, out and residual it matters only whether there is a residual. False: they are
     * not made (no memory, or no such product); linear makes them. */
    bool (*prepare)(struct berth_parakeet_device *device,
                    const struct berth_parakeet_linear_call *call);
    /* Optional. Bytes of the device that it holds for itself now, beside alloc's. */
    uint64_t (*kept_bytes)(const struct berth_parakeet_device *device);

    /* Log-mel features, normalised over each row's own frames (README P2). pcm float32
     * [rows][padded.samples], of which only a row's own samples are looked at; a sample that is no
     * number, or past a million, counts as 0. out elements [rows][padded.features][mels], zero past
     * a row's. */
    void (*features)(struct berth_parakeet_device *device,
                     const struct berth_parakeet_config *config,
                     const struct berth_parakeet_shape *shape,
                     const struct berth_parakeet_counts *counts, const float *pcm, void *out);
    /* first (3 x 3, stride 2, 1 -> channels, ReLU, masked) and second (3 x 3, stride 2, depthwise,
     * masked) in one. in [rows][features][mels]; out [rows][quarter][mels / 4][channels]. */
    void (*subsample_first)(struct berth_parakeet_device *device,
                            const struct berth_parakeet_config *config,
                            const struct berth_parakeet_shape *shape,
                            const struct berth_parakeet_counts *counts,
                            const struct berth_parakeet_depthwise *first,
                            const struct berth_parakeet_depthwise *second, const void *in,
                            void *out);
    /* 3 x 3, stride 2, depthwise: in [rows][quarter][mels / 4][channels], taken as zero past a
     * row's quarter; out [rows][frames][mels / 8][channels], masked. */
    void (*subsample_third)(struct berth_parakeet_device *device,
                            const struct berth_parakeet_config *config,
                            const struct berth_parakeet_shape *shape,
                            const struct berth_parakeet_counts *counts,
                            const struct berth_parakeet_depthwise *third, const void *in,
                            void *out);
    void (*linear)(struct berth_parakeet_device *device,
                   const struct berth_parakeet_linear_call *call);
    void (*norm)(struct berth_parakeet_device *device,
                 const struct berth_parakeet_norm_call *call);
    /* Softmax of ((q + u) k + (q + v) p) / sqrt(head_dim) over a row's own frames, times v. */
    void (*attention)(struct berth_parakeet_device *device,
                      const struct berth_parakeet_shape *shape,
                      const struct berth_parakeet_counts *counts,
                      const struct berth_parakeet_attention_call *call);
    /* GLU, zero past a row's frames, depthwise convolution (batch norm folded), SiLU.
     * in [rows][frames][2][hidden]; out [rows][frames][hidden]. */
    void (*convolve)(struct berth_parakeet_device *device,
                     const struct berth_parakeet_config *config,
                     const struct berth_parakeet_shape *shape,
                     const struct berth_parakeet_counts *counts,
                     const struct berth_parakeet_depthwise *conv, const void *in, void *out);
    /* Sinusoids of the distances position_max - 1 .. 1 - position_max: elements
     * [2 * position_max - 1][hidden], sine and cosine in turn. */
    void (*positions)(struct berth_parakeet_device *device, uint32_t position_max, uint32_t hidden,
                      void *out);
    /* Greedy decoding, no host step per token on CUDA. True: all rows are done. */
    bool (*decode)(struct berth_parakeet_device *device, const struct berth_parakeet_shape *shape,
                   const struct berth_parakeet_counts *counts,
                   const struct berth_parakeet_decode_call *call);
    size_t (*decode_state_bytes)(const struct berth_parakeet_config *config,
                                 const struct berth_parakeet_shape *shape);
};

extern const struct berth_parakeet_ops berth_parakeet_cpu;
#ifdef BERTH_CUDA
extern const struct berth_parakeet_ops berth_parakeet_cuda;
#endif

/* For "cpu:N" or "cuda:N"; NULL: this build has none. */
const struct berth_parakeet_ops *berth_parakeet_backend(const char *device);
/* Sets config->narrow by the name of a precision, "fp16" or "fp8": on a device whose element is a
 * half; others compute as ever. INVALID: another name; UNSUPPORTED: no fp8 there. */
enum berth_code berth_parakeet_precision(const char *precision, const char *device,
                                         struct berth_parakeet_config *config,
                                         struct berth_err *err) BERTH_MUST_USE;
/* About what kept_bytes comes to on a device with that element when a run of that shape is the
 * largest so far; also where this build has no such device. */
uint64_t berth_parakeet_kept_ahead(enum berth_parakeet_element element, uint32_t threads,
                                   const struct berth_parakeet_config *config,
                                   const struct berth_parakeet_shape *shape);

#endif
