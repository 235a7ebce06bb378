/* test_product_sm90.c - every variant of product_sm90.cu against sums in float64, and its time
 * beside cublasLt's best with the kernels it needs after (linear.c).
 *
 * usage: gpu_test_product_sm90 [check|few|time|both]      (default: both; few: checks of few
 *        vectors, for compute-sanitizer)
 * Checked: whole rows of a sample against float64; all rows of all variants bit for bit against
 * each other; memory past the last row; infinite values. Timed: medians of graphs played in turn,
 * each of REPEATS products with weights that are not in the cache. Exit status 0: nothing failed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "engine/parakeet/backend.h"
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/product_sm90.h"

#define VARIANTS_MAX 32
#define SAMPLE 14  /* rows compared with float64 */
#define GUARD 300  /* rows past the last */
#define LIMIT 1e-3 /* of the relative error: halves out */
#define LIMIT_STREAM 1e-5
#define FRESH (1u << 22) /* random halves of what is only timed; then they come again */
#define REPEATS 24
#define ROUNDS 9

struct shape {
    const char *name;
    uint32_t in, out;
    enum berth_parakeet_activation activation;
    float scale;
    bool stream, residual, bias;
};

struct bench {
    const struct berth_parakeet_ops *gpu;
    struct berth_parakeet_device *device;
    float of_half[65536];
    uint64_t random;
    int failures;
    cudaEvent_t begin, end;
};

/* One product, here and there. */
struct problem {
    const struct shape *shape;
    struct berth_parakeet_linear linear;
    struct berth_parakeet_linear_call call;
    uint16_t *in, *weight, *bias; /* the host's */
    float *residual;
    char *first, *got; /* outputs with GUARD rows more: of the first variant, of another */
    size_t out_bytes, guard_bytes;
    uint64_t n;
};

static void need(bool good, const char *what)
{
    if (!good) {
        printf("FAIL  %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
        exit(1);
    }
}

static void say(struct bench *b, bool good, const char *name, double error)
{
    printf("%s  %-64s %.2e\n", good ? "PASS" : "FAIL", name, error);
    b->failures += good ? 0 : 1;
}

static float from_half(uint32_t half)
{
    const int exponent = (int)(half >> 10 & 31);
    const float fraction = (float)(half & 0x3ff) / 1024.0F;
    const float magnitude = exponent == 31  ? (fraction > 0 ? NAN : INFINITY)
                            : exponent == 0 ? ldexpf(fraction, -14)
                                            : ldexpf(1 + fraction, exponent - 15);
    return half >> 15 != 0 ? -magnitude : magnitude;
}

/* Random halves between -1 and 1, small ones as many as large ones, on the device; and the same
 * here if `copy` is not NULL: then none comes twice. */
static void *noise(struct bench *b, uint64_t count, uint16_t **copy)
{
    const uint64_t fresh = copy != NULL || count < FRESH ? count : FRESH;
    char *made = b->gpu->alloc(b->device, count * 2);
    uint16_t *halves = berth_alloc(fresh * 2);
    need(made != NULL && halves != NULL, "memory for noise");
    for (uint64_t i = 0; i < fresh; i++) {
        b->random = b->random * 6364136223846793005ULL + 1442695040888963407ULL;
        const uint32_t bits = (uint32_t)(b->random >> 33);
        halves[i] = (uint16_t)((bits & 0x83ff) | (8 + (bits >> 16) % 7) << 10);
    }
    need(cudaMemcpy(made, halves, fresh * 2, cudaMemcpyHostToDevice) == cudaSuccess, "noise");
    for (uint64_t at = fresh; at < count; at += fresh) {
        const uint64_t more = count - at < fresh ? count - at : fresh;
        need(cudaMemcpy(made + at * 2, made, more * 2, cudaMemcpyDeviceToDevice) == cudaSuccess,
             "noise");
    }
    need(cudaDeviceSynchronize() == cudaSuccess, "noise");
    if (copy != NULL) {
        *copy = halves;
    } else {
        berth_free(halves);
    }
    return made;
}

static void problem_make(struct bench *b, struct problem *p, const struct shape *shape, uint64_t n)
{
    *p = (struct problem){.shape = shape, .n = n};
    const uint64_t count = n * shape->out;
    p->linear = (struct berth_parakeet_linear){.in = shape->in, .out = shape->out};
    p->linear.weight = noise(b, (uint64_t)shape->in * shape->out, &p->weight);
    if (shape->bias) {
        p->linear.bias = noise(b, shape->out, &p->bias);
    }
    p->out_bytes = count * (shape->stream ? 4 : 2);
    p->guard_bytes = (size_t)GUARD * shape->out * (shape->stream ? 4 : 2);
    void *out = b->gpu->alloc(b->device, p->out_bytes + p->guard_bytes);
    p->call = (struct berth_parakeet_linear_call){.linear = &p->linear,
                                                  .in = noise(b, n * shape->in, &p->in),
                                                  .out = out,
                                                  .stream = shape->stream,
                                                  .scale = shape->scale,
                                                  .activation = shape->activation,
                                                  .n = n};
    p->first = berth_alloc(p->out_bytes + p->guard_bytes);
    p->got = berth_alloc(p->out_bytes + p->guard_bytes);
    need(p->call.out != NULL && p->first != NULL && p->got != NULL, "memory");
    if (shape->residual) {
        p->call.residual = p->call.out;
        p->residual = berth_alloc(count * 4);
        need(p->residual != NULL, "memory");
        for (uint64_t i = 0; i < count; i++) {
            p->residual[i] = (float)(i * 2654435761u % 2000003) / 100000.0F - 10;
        }
    }
}

static void problem_finish(struct bench *b, struct problem *p)
{
    b->gpu->free(b->device, (void *)(uintptr_t)p->linear.weight, 0);
    b->gpu->free(b->device, (void *)(uintptr_t)p->call.in, 0);
    b->gpu->free(b->device, p->call.out, 0);
    if (p->linear.bias != NULL) {
        b->gpu->free(b->device, (void *)(uintptr_t)p->linear.bias, 0);
    }
    berth_free(p->in);
    berth_free(p->weight);
    berth_free(p->bias);
    berth_free(p->residual);
    berth_free(p->first);
    berth_free(p->got);
}

/* Output poisoned, or the residual; one product; then the output is at `to`. False: declined; any
 * other error ends the test. */
static bool problem_run(struct bench *b, struct problem *p, uint32_t variant, char *to)
{
    need(cudaMemset(p->call.out, 0xff, p->out_bytes + p->guard_bytes) == cudaSuccess, "poison");
    if (p->residual != NULL) {
        need(cudaMemcpy(p->call.out, p->residual, p->out_bytes, cudaMemcpyHostToDevice) ==
                 cudaSuccess,
             "residual");
    }
    need(cudaDeviceSynchronize() == cudaSuccess, "poison");
    const cudaError_t error =
        berth_parakeet_cuda_product90_launch(b->device, &p->call, variant, b->device->stream);
    if (error == cudaErrorNotSupported) {
        return false;
    }
    need(error == cudaSuccess, "launch");
    struct berth_err err = {0};
    if (b->gpu->finish(b->device, &err) != BERTH_OK) {
        printf("      %s\n", err.msg);
        need(false, "finish");
    }
    need(cudaMemcpy(to, p->call.out, p->out_bytes + p->guard_bytes, cudaMemcpyDeviceToHost) ==
             cudaSuccess,
         "download");
    return true;
}

static float out_at(const struct bench *b, const struct problem *p, const char *out, uint64_t at)
{
    return p->shape->stream ? ((const float *)(const void *)out)[at]
                            : b->of_half[((const uint16_t *)(const void *)out)[at]];
}

static double wanted(const struct bench *b, const struct problem *p, uint64_t row, uint32_t column)
{
    const uint16_t *in = p->in + row * p->shape->in;
    const uint16_t *weight = p->weight + (uint64_t)column * p->shape->in;
    double sum = 0;
    for (uint32_t k = 0; k < p->shape->in; k++) {
        sum += (double)b->of_half[in[k]] * (double)b->of_half[weight[k]];
    }
    sum += p->bias != NULL ? (double)b->of_half[p->bias[column]] : 0;
    if (p->shape->activation == BERTH_PARAKEET_SILU) {
        sum = sum / (1 + exp(-sum));
    } else if (p->shape->activation == BERTH_PARAKEET_RELU) {
        sum = sum < 0 ? 0 : sum;
    }
    sum *= (double)p->shape->scale;
    return p->residual != NULL ? sum + (double)p->residual[row * p->shape->out + column] : sum;
}

/* Relative error of the sample of rows, first and last among them. */
static double sample_error(const struct bench *b, const struct problem *p)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < SAMPLE; i++) {
        const uint64_t row = i < 3 ? i : i < 6 ? p->n + 2 - i : i * 2654435761u;
        for (uint32_t c = 0; c < p->shape->out; c++) {
            const double want = wanted(b, p, row % p->n, c);
            const double d = (double)out_at(b, p, p->first, row % p->n * p->shape->out + c) - want;
            difference += d * d;
            norm += want * want;
        }
    }
    return sqrt(difference / norm);
}

static void check_shape(struct bench *b, const struct shape *shape, uint64_t n)
{
    struct problem p;
    char name[128];
    int declined = 0;
    bool first = true;
    problem_make(b, &p, shape, n);
    for (uint32_t v = 0; v < berth_parakeet_cuda_product90_count(); v++) {
        char *to = first ? p.first : p.got;
        bool guarded = true;
        if (!problem_run(b, &p, v, to)) {
            declined++;
            continue;
        }
        for (size_t i = 0; i < p.guard_bytes && guarded; i++) {
            guarded = to[p.out_bytes + i] == (char)0xff;
        }
        (void)snprintf(name, sizeof(name), "%s, n %llu, %s", shape->name, (unsigned long long)n,
                       berth_parakeet_cuda_product90_name(v));
        if (first) {
            const double error = sample_error(b, &p);
            say(b, error <= (shape->stream ? LIMIT_STREAM : LIMIT) && guarded, name, error);
            first = false;
        } else {
            size_t other = 0;
            while (other < p.out_bytes && to[other] == p.first[other]) {
                other++;
            }
            if (other < p.out_bytes || !guarded) {
                say(b, false, name, (double)other);
                const uint64_t at = other / (shape->stream ? 4 : 2);
                printf("      %s at row %llu, column %llu: %g, the first has %g\n",
                       guarded ? "other bits" : "past the end",
                       (unsigned long long)(at / shape->out), (unsigned long long)(at % shape->out),
                       (double)out_at(b, &p, to, at), (double)out_at(b, &p, p.first, at));
            }
        }
    }
    if (first) {
        say(b, false, shape->name, (double)n); /* all declined it */
    } else if (declined > 0) {
        printf("      %s, n %llu: %d declined\n", shape->name, (unsigned long long)n, declined);
    }
    problem_finish(b, &p);
}

/* An infinite input spoils its row's outputs, all of them and no others. */
static void check_infinite(struct bench *b)
{
    static const struct shape shape = {"infinite", 1024,  1024,  BERTH_PARAKEET_SILU,
                                       1,          false, false, false};
    struct problem p;
    bool taken = false;
    problem_make(b, &p, &shape, 130);
    const uint16_t infinite = 0x7c00;
    need(cudaMemcpy((uint16_t *)(uintptr_t)p.call.in + 5 * 1024 + 77, &infinite, 2,
                    cudaMemcpyHostToDevice) == cudaSuccess,
         "infinite");
    for (uint32_t v = 0; v < berth_parakeet_cuda_product90_count(); v++) {
        bool good = true;
        if (!problem_run(b, &p, v, p.got)) {
            continue;
        }
        taken = true;
        for (uint64_t i = 0; i < 130 * 1024; i++) {
            const float value = out_at(b, &p, p.got, i);
            /* a weight that is 0 makes no number of it, which is as well */
            good = good && (i / 1024 == 5) == (bool)!isfinite(value);
        }
        say(b, good, berth_parakeet_cuda_product90_name(v), 0);
    }
    say(b, taken, "infinite: some variant takes it", 0);
    problem_finish(b, &p);
}

static void check_all(struct bench *b, bool few)
{
    static const struct shape shapes[] = {
        {"1024 to 4096, silu, bias", 1024, 4096, BERTH_PARAKEET_SILU, 1, false, false, true},
        {"1024 to 4096, silu", 1024, 4096, BERTH_PARAKEET_SILU, 1, false, false, false},
        {"4096 to 1024, stream, residual, half, bias", 4096, 1024, BERTH_PARAKEET_NONE, 0.5F, true,
         true, true},
        {"1024 to 1024, stream, residual", 1024, 1024, BERTH_PARAKEET_NONE, 1, true, true, false},
        {"192 to 640", 192, 640, BERTH_PARAKEET_NONE, 1, false, false, false},
        {"128 to 96, stream, residual, bias", 128, 96, BERTH_PARAKEET_NONE, 2, true, true, true},
        {"256 to 512, bias", 256, 512, BERTH_PARAKEET_NONE, 1, false, false, true},
        {"256 to 256, relu, bias", 256, 256, BERTH_PARAKEET_RELU, 1, false, false, true},
        {"4096 to 1024, stream, bias", 4096, 1024, BERTH_PARAKEET_NONE, 32, true, false, true},
    };
    static const uint64_t ns[] = {1, 7, 125, 126, 8000};
    for (size_t s = 0; s < BERTH_COUNT_OF(shapes); s++) {
        for (size_t i = 0; i < BERTH_COUNT_OF(ns) - (few ? 1 : 0); i++) {
            check_shape(b, &shapes[s], ns[i]);
        }
    }
    check_infinite(b);
}

/* Where products of one shape are timed. */
struct timing {
    const struct shape *shape;
    struct berth_parakeet_linear linears[REPEATS];
    struct berth_parakeet_linear_call call;
};

/* By cublasLt and the kernels after it, as on another GPU. */
static void linear_lt(struct bench *b, const struct berth_parakeet_linear_call *call)
{
    b->device->capability = 0;
    berth_parakeet_cuda_linear(b->device, call);
    b->device->capability = 90;
}

/* variant -1: cublasLt. NULL: declined. */
static cudaGraphExec_t graph_make(struct bench *b, struct timing *t, int variant)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    bool good = true;
    if (variant < 0) { /* chooses its algorithm, as it will be */
        t->call.linear = &t->linears[0];
        linear_lt(b, &t->call);
    }
    need(cudaStreamBeginCapture(b->device->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess,
         "capture");
    for (uint32_t i = 0; i < REPEATS && good; i++) {
        t->call.linear = &t->linears[i];
        if (variant < 0) {
            linear_lt(b, &t->call);
        } else {
            good = berth_parakeet_cuda_product90_launch(b->device, &t->call, (uint32_t)variant,
                                                        b->device->stream) == cudaSuccess;
        }
    }
    need(cudaStreamEndCapture(b->device->stream, &graph) == cudaSuccess, "capture");
    if (good) {
        need(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
    }
    (void)cudaGraphDestroy(graph);
    return exec;
}

static float graph_time(struct bench *b, cudaGraphExec_t exec)
{
    float ms = 0;
    need(cudaEventRecord(b->begin, b->device->stream) == cudaSuccess &&
             cudaGraphLaunch(exec, b->device->stream) == cudaSuccess &&
             cudaEventRecord(b->end, b->device->stream) == cudaSuccess &&
             cudaEventSynchronize(b->end) == cudaSuccess &&
             cudaEventElapsedTime(&ms, b->begin, b->end) == cudaSuccess,
         "timing");
    return ms * 1e3F / REPEATS;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static void time_shape(struct bench *b, const struct shape *shape, uint64_t n)
{
    struct timing t = {.shape = shape};
    const int count = (int)berth_parakeet_cuda_product90_count();
    cudaGraphExec_t graphs[VARIANTS_MAX + 1];
    static float us[VARIANTS_MAX + 1][ROUNDS];
    const uint64_t each = (uint64_t)shape->in * shape->out;
    char *weights = noise(b, each * REPEATS, NULL);
    void *bias = shape->bias ? noise(b, shape->out, NULL) : NULL;
    void *in = noise(b, n * shape->in, NULL), *out = noise(b, n * shape->out * 2, NULL);
    uint32_t variants[BERTH_PARAKEET_CUDA_PRODUCT90_MAX];
    int best = -1;
    for (uint32_t i = 0; i < REPEATS; i++) {
        t.linears[i] = (struct berth_parakeet_linear){
            .weight = weights + i * each * 2, .bias = bias, .in = shape->in, .out = shape->out};
    }
    t.call = (struct berth_parakeet_linear_call){.in = in,
                                                 .out = out,
                                                 .residual = shape->residual ? out : NULL,
                                                 .stream = shape->stream,
                                                 .scale = shape->scale,
                                                 .activation = shape->activation,
                                                 .n = n};
    for (int v = -1; v < count; v++) {
        graphs[v + 1] = graph_make(b, &t, v);
    }
    for (int round = -1; round < ROUNDS; round++) {
        for (int v = 0; v <= count; v++) {
            const float time = graphs[v] != NULL ? graph_time(b, graphs[v]) : INFINITY;
            us[v][round < 0 ? 0 : round] = time;
        }
    }
    const uint32_t listed = berth_parakeet_cuda_product90_list(b->device, &t.call, variants);
    need(listed > 0, "a variant to time");
    printf("%-24s %5llu", shape->name, (unsigned long long)n);
    for (int v = 0; v <= count; v++) {
        qsort(us[v], ROUNDS, sizeof(us[v][0]), compare_floats);
        bool likely = false;
        for (uint32_t i = 0; i < listed; i++) {
            likely = likely || (int)variants[i] == v - 1;
        }
        best = likely && (best < 0 || us[v][ROUNDS / 2] < us[best][ROUNDS / 2]) ? v : best;
        printf(" %6.2f%c", (double)us[v][ROUNDS / 2], likely ? '*' : ' ');
        if (graphs[v] != NULL) {
            (void)cudaGraphExecDestroy(graphs[v]);
        }
    }
    printf("  best %2d, %.3f of cublasLt's (spread %.2f), %.0f TFLOP/s\n", best - 1,
           (double)(us[best][ROUNDS / 2] / us[0][ROUNDS / 2]),
           (double)(us[0][ROUNDS * 3 / 4] / us[0][ROUNDS / 4]),
           2e-6 * (double)n * (double)each / (double)us[best][ROUNDS / 2]);
    fflush(stdout);
    need(b->gpu->finish(b->device, NULL) == BERTH_OK, "timing");
    b->gpu->free(b->device, weights, 0);
    b->gpu->free(b->device, in, 0);
    b->gpu->free(b->device, out, 0);
    if (bias != NULL) {
        b->gpu->free(b->device, bias, 0);
    }
}

#define LAYERS 24
#define PRODUCTS 8 /* of a layer, in its order: shapes[order[i]] */

static const struct shape shapes_timed[] = {
    {"1024 to 4096, silu", 1024, 4096, BERTH_PARAKEET_SILU, 1, false, false, false},
    {"4096 to 1024, residual", 4096, 1024, BERTH_PARAKEET_NONE, 0.5F, true, true, false},
    {"the same with bias", 4096, 1024, BERTH_PARAKEET_NONE, 0.5F, true, true, true},
    {"1024 to 1024, residual", 1024, 1024, BERTH_PARAKEET_NONE, 1, true, true, false},
    {"1024 to 3072", 1024, 3072, BERTH_PARAKEET_NONE, 1, false, false, false},
    {"1024 to 2048", 1024, 2048, BERTH_PARAKEET_NONE, 1, false, false, false},
};
static const size_t order[PRODUCTS] = {0, 1, 4, 3, 5, 3, 0, 1};

/* All products of all layers, one after the other, as linear does them or by cublasLt. */
static cudaGraphExec_t layers_make(struct bench *b, uint64_t n, bool ours, const char *memory)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const char *in = memory, *out = in + n * 4096 * 2, *stream = out + n * 4096 * 2;
    const char *weight = stream + n * 1024 * 4;
    need(cudaStreamBeginCapture(b->device->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess,
         "capture");
    for (uint32_t i = 0; i < LAYERS * PRODUCTS; i++) {
        const struct shape *shape = &shapes_timed[order[i % PRODUCTS]];
        const struct berth_parakeet_linear linear = {
            .weight = weight, .in = shape->in, .out = shape->out};
        const char *to = shape->stream ? stream : out;
        const struct berth_parakeet_linear_call call = {.linear = &linear,
                                                        .in = in,
                                                        .out = (void *)(uintptr_t)to,
                                                        .residual = shape->residual ? to : NULL,
                                                        .stream = shape->stream,
                                                        .scale = shape->scale,
                                                        .activation = shape->activation,
                                                        .n = n};
        if (ours) {
            berth_parakeet_cuda_linear(b->device, &call);
        } else {
            linear_lt(b, &call);
        }
        weight += (size_t)shape->in * shape->out * 2;
    }
    need(cudaStreamEndCapture(b->device->stream, &graph) == cudaSuccess &&
             cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess,
         "graph");
    (void)cudaGraphDestroy(graph);
    return exec;
}

static void time_layers(struct bench *b, uint64_t n)
{
    uint64_t halves = n * (4096 + 4096 + 2048);
    for (size_t i = 0; i < PRODUCTS; i++) {
        halves += (uint64_t)LAYERS * shapes_timed[order[i]].in * shapes_timed[order[i]].out;
    }
    char *memory = noise(b, halves, NULL);
    cudaGraphExec_t graphs[2] = {layers_make(b, n, false, memory), layers_make(b, n, true, memory)};
    float ms[2][ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        for (int i = 0; i < 2; i++) {
            ms[i][round < 0 ? 0 : round] = graph_time(b, graphs[i]) * REPEATS * 1e-3F;
        }
    }
    for (int i = 0; i < 2; i++) {
        qsort(ms[i], ROUNDS, sizeof(ms[i][0]), compare_floats);
        (void)cudaGraphExecDestroy(graphs[i]);
    }
    printf("all products of 24 layers, n %5llu: %8.3f ms with cublasLt, %8.3f ms with ours\n",
           (unsigned long long)n, (double)ms[0][ROUNDS / 2], (double)ms[1][ROUNDS / 2]);
    need(b->gpu->finish(b->device, NULL) == BERTH_OK, "timing");
    b->gpu->free(b->device, memory, 0);
}

static void clocks(void)
{
    fflush(stdout);
    if (system("nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw "
               "--format=csv,noheader") != 0) {
        printf("clocks are not known\n");
    }
}

static void time_all(struct bench *b)
{
    static const uint64_t ns[] = {126, 252, 504, 1008, 2016, 4032, 8064};
    clocks();
    for (uint32_t v = 0; v < berth_parakeet_cuda_product90_count(); v++) {
        printf("%2u: %s\n", v, berth_parakeet_cuda_product90_name(v));
    }
    printf("us each; n, cublasLt and its kernels, then variants 0, 1, ... (* likely)\n");
    for (size_t s = 0; s < BERTH_COUNT_OF(shapes_timed); s++) {
        for (size_t i = 0; i < BERTH_COUNT_OF(ns); i++) {
            time_shape(b, &shapes_timed[s], ns[i]);
        }
        clocks();
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(ns); i++) {
        time_layers(b, ns[i]);
        clocks();
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "both";
    static struct bench b;
    struct berth_err err = {0};
    b.gpu = berth_parakeet_backend("cuda:0");
    for (uint32_t i = 0; i < 65536; i++) {
        b.of_half[i] = from_half(i);
    }
    if (b.gpu == NULL || b.gpu->open("cuda:0", 1, &b.device, &err) != BERTH_OK) {
        printf("no GPU: %s\n", err.msg);
        return 1;
    }
    if (b.device->capability != 90) {
        printf("not of compute capability 9.0: nothing to test\n");
        b.gpu->close(b.device);
        return 0;
    }
    if (!berth_parakeet_cuda_product90_here(b.device)) {
        printf("FAIL  this build has no products of its own (gpu_targets: 90a)\n");
        b.gpu->close(b.device);
        return 1;
    }
    need(cudaEventCreate(&b.begin) == cudaSuccess && cudaEventCreate(&b.end) == cudaSuccess &&
             berth_parakeet_cuda_product90_count() <= VARIANTS_MAX,
         "events");
    if (strcmp(what, "time") != 0) {
        check_all(&b, strcmp(what, "few") == 0);
    }
    if (strcmp(what, "check") != 0 && strcmp(what, "few") != 0) {
        time_all(&b);
    }
    (void)cudaEventDestroy(b.begin);
    (void)cudaEventDestroy(b.end);
    b.gpu->close(b.device);
    printf("%d failures\n", b.failures);
    return b.failures == 0 ? 0 : 1;
}
