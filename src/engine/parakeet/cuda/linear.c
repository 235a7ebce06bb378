/* linear.c - matrix products by cublasLt: halves or e4m3 in, halves or the float32 stream out.
 *
 * Row by row, out [n][out] = in [n][in] x weight [out][in]^T; cublasLt counts columns first, so it
 * is asked for out^T = weight x in^T, with sums in float32. Bias and ReLU are its epilogues, a
 * residual is its C (often D itself); SiLU, and the bias of the stream, are kernels of ours after.
 * With e4m3 a vector and an output have a scale each. Hopper's cublasLt multiplies by both, with
 * one algorithm, which does not split sums. Before SiLU, and into the stream of few vectors, a
 * kernel of ours does it, and the product is faster: it leaves halves of the bare sums, divided by
 * what keeps the largest that there can be within a half.
 *
 * The algorithm of a product is chosen once in a process, for all devices' users alike (L7): the
 * heuristic's candidates are timed with weights that are not in the cache, as in a real pass, in a
 * graph on a stream (of the lowest priority) and in memory of their own, which works while the
 * device's stream is being captured, and beside another device's work. Candidates that split the
 * sum are only those that add their parts in a fixed order.
 * Rejected: the heuristic's first, up to 1.5 times slower for few rows; keeping choices in a file;
 * e4m3 summed faster but with 14 bits (FAST_ACCUM), an eighth of such products' time.
 */
#include "engine/parakeet/cuda/linear.h"

#include <float.h>
#include <pthread.h>

#include "engine/parakeet/e4m3.h"

#define CHOICES_MAX 4096 /* a model has 9 a bucket: 423 with windows of 32 s, at most 585 */
#define CANDIDATES_MAX 12
#define REPEATS_MAX 20
#define TIMINGS 3
#define TARGET_FLOPS 1.2e11 /* of one timing: enough to be measured, not more */
#define ALIGNMENT 16u
#define SMALL_FLOAT 0x3C /* bytes of it are a float of about a hundredth */
#define BARE_MAX 1024    /* vectors; one product of 4096 takes 14 us for 126 as for 2016 (H200) */

enum operands {
    HALVES,
    SCALED, /* e4m3, with both scales in the product */
    BARE    /* e4m3, their sums alone */
};

/* What an algorithm is chosen for. */
struct linear_key {
    uint64_t n;
    uint32_t in, out;
    int ordinal;
    uint32_t epilogue;
    enum operands operands;
    bool residual, stream;
};

struct linear_choice {
    struct linear_key key;
    cublasLtMatmulAlgo_t algorithm;
};

/* Of the process, so that two instances on a GPU compute the same bits; grows to its limit, then
 * further shapes take the heuristic's first, which is as fixed. */
static pthread_mutex_t choices_mu = PTHREAD_MUTEX_INITIALIZER;
static struct linear_choice choices[CHOICES_MAX]; /* guarded by choices_mu */
static uint32_t choice_count;                     /* guarded by choices_mu */

struct linear_product {
    struct linear_key key;
    float alpha, beta;
    bool behind; /* nobody waits for it: rather no choice than one without timing */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t weight, in, out;
};

/* Vectors that a product reads through its description; NULL: it does not. */
struct linear_vectors {
    const void *bias, *weight_scale, *in_scale;
};

/* Where candidates are timed. */
struct linear_bench {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *memory; /* workspace, vectors, input, output, copies of weights */
    char *in, *out, *weights;
    size_t weight_bytes;
    uint32_t copies, repeats;
};

static bool bias_joins(const struct berth_parakeet_linear_call *call);
static enum operands operands_of(const struct berth_parakeet_linear_call *call);
static void *product_out(const struct berth_parakeet_linear_call *call);
static float sum_factor(uint32_t in);
static cublasStatus_t vectors_set(struct linear_product *product,
                                  const struct linear_vectors *vectors);
static cublasStatus_t product_make(const struct berth_parakeet_device *device,
                                   const struct berth_parakeet_linear_call *call,
                                   struct linear_product *out);
static void product_finish(struct linear_product *product);
static bool choose(struct berth_parakeet_device *device, struct linear_product *product,
                   cublasLtMatmulAlgo_t *out);
static bool choice_find(const struct linear_key *key, cublasLtMatmulAlgo_t *out);
static void choice_keep(const struct linear_key *key, cublasLtMatmulAlgo_t *algorithm);
static cublasStatus_t candidates_ask(struct berth_parakeet_device *device,
                                     const struct linear_product *product,
                                     cublasLtMatmulHeuristicResult_t *results, int *count);
static int fastest(struct berth_parakeet_device *device, struct linear_product *product,
                   const cublasLtMatmulHeuristicResult_t *results, int count);
static bool bench_make(struct berth_parakeet_device *device, struct linear_product *product,
                       struct linear_bench *bench);
static void bench_finish(struct linear_bench *bench);
static float bench_time(struct berth_parakeet_device *device, const struct linear_product *product,
                        const struct linear_bench *bench, const cublasLtMatmulAlgo_t *algorithm);

void berth_parakeet_cuda_linear(struct berth_parakeet_device *device,
                                const struct berth_parakeet_linear_call *call)
{
    const struct berth_parakeet_linear *linear = call->linear;
    struct linear_product product = {.alpha = 1.0f};
    cublasLtMatmulAlgo_t algorithm;
    if (call->n == 0) {
        return;
    }
    const enum operands operands = operands_of(call);
    const struct linear_vectors vectors = {linear->bias, linear->scale, call->in_scale};
    if (linear->in % (operands == HALVES ? 8 : 16) != 0 ||
        ((uintptr_t)call->in | (uintptr_t)linear->weight | (uintptr_t)call->out |
         (uintptr_t)call->residual) % ALIGNMENT != 0) {
        berth_parakeet_cuda_refuse(device, "linear: 16-byte rows are needed, not of",
                                   (long)linear->in);
        return;
    }
    cublasStatus_t status = product_make(device, call, &product);
    if (status != CUBLAS_STATUS_SUCCESS) {
        berth_parakeet_cuda_refuse(device, "linear: describing a product: cublasLt status",
                                   (long)status);
    } else if (choose(device, &product, &algorithm)) {
        status = vectors_set(&product, &vectors);
        if (status == CUBLAS_STATUS_SUCCESS) {
            void *out = product_out(call);
            status = cublasLtMatmul(device->blas, product.desc, &product.alpha, linear->weight,
                                    product.weight, call->in, product.in, &product.beta,
                                    product.key.residual ? call->residual : out, product.out, out,
                                    product.out, &algorithm, device->workspace,
                                    BERTH_PARAKEET_CUDA_WORKSPACE_BYTES, device->stream);
        }
        if (status == CUBLAS_STATUS_ALLOC_FAILED) {
            berth_parakeet_cuda_fail(device, "linear", cudaErrorMemoryAllocation);
        } else if (status != CUBLAS_STATUS_SUCCESS) {
            berth_parakeet_cuda_refuse(device, "linear: cublasLt status", (long)status);
        }
    }
    product_finish(&product);
    if (operands == BARE && call->stream) {
        berth_parakeet_cuda_add_bare(device, call, sum_factor(linear->in));
        return;
    }
    if (operands == BARE) {
        berth_parakeet_cuda_silu_narrow(device, call, sum_factor(linear->in));
        return;
    }
    if (linear->bias != NULL && !bias_joins(call)) {
        berth_parakeet_cuda_bias(device, call);
    }
    if (call->activation == BERTH_PARAKEET_SILU) {
        berth_parakeet_cuda_silu(device, call->out, call->n * linear->out);
    }
}

bool berth_parakeet_cuda_prepare(struct berth_parakeet_device *device,
                                 const struct berth_parakeet_linear_call *call)
{
    struct linear_product product = {.behind = true};
    cublasLtMatmulAlgo_t algorithm;
    if (call->n == 0 || call->linear->in % (operands_of(call) == HALVES ? 8 : 16) != 0) {
        return false;
    }
    (void)cudaSetDevice(device->ordinal);
    bool chosen = product_make(device, call, &product) == CUBLAS_STATUS_SUCCESS &&
                  choose(device, &product, &algorithm);
    product_finish(&product);
    return chosen;
}

uint32_t berth_parakeet_cuda_algorithm_count(void)
{
    pthread_mutex_lock(&choices_mu);
    uint32_t count = choice_count;
    pthread_mutex_unlock(&choices_mu);
    return count;
}

/* Whether the bias is the epilogue's: that scales before it, and takes one of the output's type. */
static bool bias_joins(const struct berth_parakeet_linear_call *call)
{
    return call->scale == 1.0f && !call->stream && operands_of(call) != BARE;
}

static enum operands operands_of(const struct berth_parakeet_linear_call *call)
{
    if (call->linear->scale == NULL) {
        return HALVES;
    }
    const bool few = call->stream && call->scratch != NULL && call->n <= BARE_MAX;
    return call->activation == BERTH_PARAKEET_SILU || few ? BARE : SCALED;
}

static void *product_out(const struct berth_parakeet_linear_call *call)
{
    return operands_of(call) == BARE && call->stream ? call->scratch : call->out;
}

/* A power of two by which sums of so many products of e4m3 fit a half, whatever they are. */
static float sum_factor(uint32_t in)
{
    float factor = 1.0f;
    while (BERTH_E4M3_MAX * BERTH_E4M3_MAX * (float)in > 65504.0f * factor) {
        factor *= 2.0f;
    }
    return factor;
}

static cublasStatus_t layout_make(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                  uint64_t columns)
{
    return cublasLtMatrixLayoutCreate(out, type, rows, columns, (int64_t)rows);
}

static cublasStatus_t attribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(desc, which, value, bytes);
}

static cublasStatus_t product_make(const struct berth_parakeet_device *device,
                                   const struct berth_parakeet_linear_call *call,
                                   struct linear_product *out)
{
    const struct berth_parakeet_linear *linear = call->linear;
    const cublasOperation_t turned = CUBLAS_OP_T;
    const bool bare = operands_of(call) == BARE;
    const cudaDataType_t out_type = call->stream && !bare ? CUDA_R_32F : CUDA_R_16F;
    const struct linear_vectors vectors = {linear->bias, linear->scale, call->in_scale};
    const enum operands operands = operands_of(call);
    const cudaDataType_t in_type = operands == HALVES ? CUDA_R_16F : CUDA_R_8F_E4M3;
    const cublasLtMatmulMatrixScale_t outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const bool bias = linear->bias != NULL && bias_joins(call);
    cublasLtEpilogue_t epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (call->activation == BERTH_PARAKEET_RELU) {
        epilogue = bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    }
    out->key = (struct linear_key){.n = call->n,
                                   .in = linear->in,
                                   .out = linear->out,
                                   .ordinal = device->ordinal,
                                   .epilogue = (uint32_t)epilogue,
                                   .operands = operands,
                                   .residual = call->residual != NULL && !bare,
                                   .stream = call->stream && !bare};
    out->alpha = bare ? 1.0f / sum_factor(linear->in) : call->scale;
    out->beta = out->key.residual ? 1.0f : 0.0f;
    cublasStatus_t status = cublasLtMatmulDescCreate(&out->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    }
    if (status == CUBLAS_STATUS_SUCCESS && operands == SCALED) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &outer, sizeof(outer));
    }
    if (status == CUBLAS_STATUS_SUCCESS && operands == SCALED) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &outer, sizeof(outer));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = vectors_set(out, &vectors);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout_make(&out->weight, in_type, linear->in, linear->out);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout_make(&out->in, in_type, linear->in, call->n);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout_make(&out->out, out_type, linear->out, call->n);
    }
    return status;
}

/* Of these the product takes what its kind reads. */
static cublasStatus_t vectors_set(struct linear_product *product,
                                  const struct linear_vectors *vectors)
{
    const uint32_t biased = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if ((product->key.epilogue & biased) == biased) {
        status = attribute(product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vectors->bias,
                           sizeof(vectors->bias));
    }
    if (status == CUBLAS_STATUS_SUCCESS && product->key.operands == SCALED) {
        status = attribute(product->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                           &vectors->weight_scale, sizeof(vectors->weight_scale));
    }
    if (status == CUBLAS_STATUS_SUCCESS && product->key.operands == SCALED) {
        status = attribute(product->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &vectors->in_scale,
                           sizeof(vectors->in_scale));
    }
    return status;
}

static void product_finish(struct linear_product *product)
{
    if (product->out != NULL) {
        (void)cublasLtMatrixLayoutDestroy(product->out);
    }
    if (product->in != NULL) {
        (void)cublasLtMatrixLayoutDestroy(product->in);
    }
    if (product->weight != NULL) {
        (void)cublasLtMatrixLayoutDestroy(product->weight);
    }
    if (product->desc != NULL) {
        (void)cublasLtMatmulDescDestroy(product->desc);
    }
}

static bool keys_equal(const struct linear_key *a, const struct linear_key *b)
{
    return a->n == b->n && a->in == b->in && a->out == b->out && a->ordinal == b->ordinal &&
           a->epilogue == b->epilogue && a->operands == b->operands &&
           a->residual == b->residual && a->stream == b->stream;
}

static bool choice_find(const struct linear_key *key, cublasLtMatmulAlgo_t *out)
{
    bool found = false;
    pthread_mutex_lock(&choices_mu);
    for (uint32_t i = 0; i < choice_count && !found; i++) {
        if (keys_equal(&choices[i].key, key)) {
            *out = choices[i].algorithm;
            found = true;
        }
    }
    pthread_mutex_unlock(&choices_mu);
    return found;
}

/* The first to choose wins; *algorithm is then the winner's. */
static void choice_keep(const struct linear_key *key, cublasLtMatmulAlgo_t *algorithm)
{
    bool found = false;
    pthread_mutex_lock(&choices_mu);
    for (uint32_t i = 0; i < choice_count && !found; i++) {
        if (keys_equal(&choices[i].key, key)) {
            *algorithm = choices[i].algorithm;
            found = true;
        }
    }
    if (!found && choice_count < CHOICES_MAX) {
        choices[choice_count].key = *key;
        choices[choice_count].algorithm = *algorithm;
        choice_count++;
    }
    pthread_mutex_unlock(&choices_mu);
}

static bool choose(struct berth_parakeet_device *device, struct linear_product *product,
                   cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES_MAX];
    int count = 0;
    if (choice_find(&product->key, out)) {
        return true;
    }
    cublasStatus_t status = candidates_ask(device, product, results, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
        berth_parakeet_cuda_refuse(device, "linear: no algorithm: cublasLt status", (long)status);
        return false;
    }
    /* A full table chooses without timing: the answer has to be the same the next time. */
    bool full = berth_parakeet_cuda_algorithm_count() >= CHOICES_MAX;
    int best = full ? -1 : fastest(device, product, results, count);
    if (best < 0 && product->behind) {
        return false; /* the run that needs it chooses */
    }
    /* Also one that nobody timed: a product's answers do not change while the process lives. */
    *out = results[best < 0 ? 0 : best].algo;
    choice_keep(&product->key, out);
    return true;
}

static cublasStatus_t candidates_ask(struct berth_parakeet_device *device,
                                     const struct linear_product *product,
                                     cublasLtMatmulHeuristicResult_t *results, int *count)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = BERTH_PARAKEET_CUDA_WORKSPACE_BYTES;
    const uint32_t alignment = ALIGNMENT;
    /* Parts of a sum are added by a second step in float32, in order; or there are none. */
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0, good = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulPreferenceSetAttribute(preference,
                                                      CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace, sizeof(workspace));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulPreferenceSetAttribute(preference,
                                                      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &schemes, sizeof(schemes));
    }
    for (size_t i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++) {
        status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment,
                                                      sizeof(alignment));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulAlgoGetHeuristic(device->blas, product->desc, product->weight,
                                                product->in, product->out, product->out,
                                                preference, CANDIDATES_MAX, results, &found);
    }
    for (int i = 0; i < found && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS) {
            results[good++] = results[i];
        }
    }
    *count = good;
    if (preference != NULL) {
        (void)cublasLtMatmulPreferenceDestroy(preference);
    }
    return status;
}

/* Index of the fastest; the heuristic's order where times are within 2 %. -1: none was timed. */
static int fastest(struct berth_parakeet_device *device, struct linear_product *product,
                   const cublasLtMatmulHeuristicResult_t *results, int count)
{
    struct linear_bench bench = {0};
    float best_ms = FLT_MAX;
    int best = count > 1 ? -1 : 0;
    if (count > 1 && bench_make(device, product, &bench)) {
        for (int i = 0; i < count; i++) {
            float ms = bench_time(device, product, &bench, &results[i].algo);
            if (ms < best_ms * 0.98f) {
                best_ms = ms;
                best = i;
            }
        }
    }
    bench_finish(&bench);
    (void)cudaGetLastError(); /* what could not be timed is not a failure */
    return best;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Afterwards the product's vectors are the bench's: a model's may be gone when this is behind. */
static bool bench_make(struct berth_parakeet_device *device, struct linear_product *product,
                       struct linear_bench *bench)
{
    const struct linear_key *key = &product->key;
    const double flops = 2.0 * (double)key->n * key->in * key->out;
    const double repeats = TARGET_FLOPS / flops;
    const size_t workspace = BERTH_PARAKEET_CUDA_WORKSPACE_BYTES;
    const size_t operand = key->operands == HALVES ? 2 : 1;
    const size_t vector_bytes = round_up((key->n + key->out) * sizeof(float));
    const size_t in_bytes = round_up(key->n * key->in * operand);
    const size_t out_bytes = round_up(key->n * key->out * (key->stream ? 4 : 2));
    bench->repeats = repeats < 3 ? 3 : repeats > REPEATS_MAX ? REPEATS_MAX : (uint32_t)repeats;
    bench->weight_bytes = round_up((size_t)key->in * key->out * operand);
    const uint64_t copies = 2 * (uint64_t)device->l2_bytes / bench->weight_bytes + 1;
    bench->copies = copies < bench->repeats ? (uint32_t)copies : bench->repeats;
    const size_t bytes =
        workspace + vector_bytes + in_bytes + out_bytes + bench->copies * bench->weight_bytes;
    size_t free_bytes = 0, total_bytes = 0;
    int lowest = 0, highest = 0;
    if (product->behind && (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess ||
                            bytes > free_bytes / 4)) {
        return false; /* what a run may need now stays there */
    }
    if (cudaDeviceGetStreamPriorityRange(&lowest, &highest) != cudaSuccess ||
        cudaStreamCreateWithPriority(&bench->stream, cudaStreamNonBlocking, lowest) !=
            cudaSuccess ||
        cudaEventCreate(&bench->begin) != cudaSuccess ||
        cudaEventCreate(&bench->end) != cudaSuccess ||
        cudaMallocAsync((void **)&bench->memory, bytes, bench->stream) != cudaSuccess) {
        return false;
    }
    char *vectors = bench->memory + workspace;
    const struct linear_vectors own = {vectors, vectors, vectors + key->out * sizeof(float)};
    bench->in = vectors + vector_bytes;
    bench->out = bench->in + in_bytes;
    bench->weights = bench->out + out_bytes;
    return vectors_set(product, &own) == CUBLAS_STATUS_SUCCESS &&
           cudaMemsetAsync(vectors, SMALL_FLOAT, vector_bytes, bench->stream) == cudaSuccess &&
           berth_parakeet_cuda_noise(bench->in, bytes - workspace - vector_bytes,
                                     key->operands != HALVES, bench->stream) == cudaSuccess;
}

static void bench_finish(struct linear_bench *bench)
{
    if (bench->memory != NULL) {
        (void)cudaFreeAsync(bench->memory, bench->stream);
    }
    if (bench->end != NULL) {
        (void)cudaEventDestroy(bench->end);
    }
    if (bench->begin != NULL) {
        (void)cudaEventDestroy(bench->begin);
    }
    if (bench->stream != NULL) {
        (void)cudaStreamSynchronize(bench->stream); /* the memory goes back here */
        (void)cudaStreamDestroy(bench->stream);
    }
}

/* The products of one timing, captured. */
static cudaGraphExec_t bench_record(struct berth_parakeet_device *device,
                                    const struct linear_product *product,
                                    const struct linear_bench *bench,
                                    const cublasLtMatmulAlgo_t *algorithm)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    bool good = cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess;
    if (!good) {
        return NULL;
    }
    for (uint32_t i = 0; i < bench->repeats && good; i++) {
        const char *weight = bench->weights + (i % bench->copies) * bench->weight_bytes;
        good = cublasLtMatmul(device->blas, product->desc, &product->alpha, weight, product->weight,
                              bench->in, product->in, &product->beta, bench->out, product->out,
                              bench->out, product->out, algorithm, bench->memory,
                              BERTH_PARAKEET_CUDA_WORKSPACE_BYTES,
                              bench->stream) == CUBLAS_STATUS_SUCCESS;
    }
    if (cudaStreamEndCapture(bench->stream, &graph) != cudaSuccess || !good ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        exec = NULL;
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    return exec;
}

/* Milliseconds of all repeats, the best of TIMINGS; FLT_MAX: it cannot run. */
static float bench_time(struct berth_parakeet_device *device, const struct linear_product *product,
                        const struct linear_bench *bench, const cublasLtMatmulAlgo_t *algorithm)
{
    float best = FLT_MAX;
    cudaGraphExec_t exec = bench_record(device, product, bench, algorithm);
    if (exec == NULL) {
        return FLT_MAX;
    }
    bool good = cudaGraphLaunch(exec, bench->stream) == cudaSuccess; /* loads what it needs */
    for (int i = 0; i < TIMINGS && good; i++) {
        float ms = FLT_MAX;
        good = cudaEventRecord(bench->begin, bench->stream) == cudaSuccess &&
               cudaGraphLaunch(exec, bench->stream) == cudaSuccess &&
               cudaEventRecord(bench->end, bench->stream) == cudaSuccess &&
               cudaEventSynchronize(bench->end) == cudaSuccess &&
               cudaEventElapsedTime(&ms, bench->begin, bench->end) == cudaSuccess;
        best = good && ms < best ? ms : best;
    }
    (void)cudaGraphExecDestroy(exec);
    return good ? best : FLT_MAX;
}
