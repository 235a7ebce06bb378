/* remap.cu - addresses outlive memory: shows on a card that a CUDA graph survives a remap.
 *
 * A stack of layers (norm and two cuBLASLt products, as a speech encoder has) is captured once over
 * weights in a reserved range. Then the range's memory is given back, other memory taken and
 * filled, new memory mapped at the same addresses and weights loaded anew; the same graph, launched
 * as it is, must answer bit for bit as a fresh capture over plain cudaMalloc memory does. Other
 * claims beside it: memory is really given back, another process reads the memory through a
 * descriptor and cannot write it, and a launch over unmapped memory faults only the process that
 * does it.
 *
 * usage: remap [--layers N] [--rounds N] [--skip-faults]      (72 layers: 1.1 GiB)
 * Prints PASS or FAIL for each claim and figures; exit status 0 when none failed.
 */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "engine/cuda/vmm.h"

#define HIDDEN 1024
#define INNER 4096
#define ROWS 512
#define MATRIX (HIDDEN * INNER)
#define WORKSPACE (32u << 20)
#define LAYERS_MAX 512
#define TIMES_MAX 1024
#define FAULTED 42 /* exit status of a child whose CUDA context faulted, as it should */

struct settings {
    int layers, rounds;
    bool skip_faults;
    const char *program;
};

/* One layer's weights: gamma [HIDDEN] float, up [INNER][HIDDEN], down [HIDDEN][INNER] bf16. */
struct layer_offsets {
    size_t gamma, up, down;
};

/* What a capture needs that is the same for each: handle, descriptions, algorithms, activations. */
struct plan {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t weight_up, weight_down, narrow, wide;
    cublasLtMatmulAlgo_t algo_up, algo_down;
    void *workspace;
    __nv_bfloat16 *input, *x, *normed, *inner;
    cudaStream_t stream;
    size_t bytes; /* of all weights */
    int layers;
};

#define LT(call) check_lt((call), #call, __LINE__)

static void check_lt(cublasStatus_t status, const char *call, int line)
{
    if (status != CUBLAS_STATUS_SUCCESS) {
        printf("FAIL  line %d: %s: cuBLASLt status %d\n", line, call, (int)status);
        exit(1);
    }
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare_double);
    return values[count / 2];
}

__device__ static uint32_t hash(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return (uint32_t)x;
}

/* bf16 in +-scale, from index and seed. */
__global__ static void fill_bf16(__nv_bfloat16 *out, size_t count, uint64_t seed, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        float unit = (float)(hash(i + (seed << 40)) >> 8) * (1.0f / 8388608.0f) - 1.0f;
        out[i] = __float2bfloat16(unit * scale);
    }
}

__global__ static void fill_gamma(float *out, uint64_t seed)
{
    out[threadIdx.x] = 0.75f + (float)(hash(threadIdx.x + (seed << 40)) & 255u) / 512.0f;
}

/* out = x / rms(x) * gamma, a block a row; 256 threads, HIDDEN elements. */
__global__ static void norm(const __nv_bfloat16 *x, const float *gamma, __nv_bfloat16 *out)
{
    __shared__ float partial[256];
    const __nv_bfloat16 *row = x + (size_t)blockIdx.x * HIDDEN;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < HIDDEN; i += 256) {
        float v = __bfloat162float(row[i]);
        sum += v * v;
    }
    partial[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
        }
    }
    __syncthreads();
    float scale = rsqrtf(partial[0] / HIDDEN + 1e-5f);
    for (int i = threadIdx.x; i < HIDDEN; i += 256) {
        out[(size_t)blockIdx.x * HIDDEN + i] =
            __float2bfloat16(__bfloat162float(row[i]) * scale * gamma[i]);
    }
}

/* *out += an order-free checksum of count words, each mixed with its place. */
__global__ static void checksum(const uint32_t *words, size_t count, unsigned long long *out)
{
    unsigned long long sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        sum += hash(((uint64_t)words[i] << 32) ^ i);
    }
    atomicAdd(out, sum);
}

__global__ static void poke(uint32_t *word)
{
    *word = 1u;
}

static struct layer_offsets offsets_of(int layer)
{
    size_t each = HIDDEN * sizeof(float) + 2u * MATRIX * sizeof(__nv_bfloat16);
    struct layer_offsets at;
    at.gamma = (size_t)layer * each;
    at.up = at.gamma + HIDDEN * sizeof(float);
    at.down = at.up + MATRIX * sizeof(__nv_bfloat16);
    return at;
}

static cublasLtMatrixLayout_t layout(uint64_t rows, uint64_t columns)
{
    cublasLtMatrixLayout_t made;
    LT(cublasLtMatrixLayoutCreate(&made, CUDA_R_16BF, rows, columns, (int64_t)rows));
    return made;
}

static cublasLtMatmulAlgo_t choose(const struct plan *plan, cublasLtMatrixLayout_t weight,
                                   cublasLtMatrixLayout_t in, cublasLtMatrixLayout_t out)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    size_t workspace = WORKSPACE;
    int count = 0;
    LT(cublasLtMatmulPreferenceCreate(&preference));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace, sizeof(workspace)));
    LT(cublasLtMatmulAlgoGetHeuristic(plan->handle, plan->product, weight, in, out, out, preference,
                                      1, &found, &count));
    if (count != 1) {
        printf("FAIL  cuBLASLt offers no algorithm\n");
        exit(1);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    return found.algo;
}

static void plan_make(struct plan *plan, int layers)
{
    cublasOperation_t transpose = CUBLAS_OP_T;
    memset(plan, 0, sizeof(*plan));
    plan->layers = layers;
    plan->bytes = offsets_of(layers).gamma;
    CUDA(cudaStreamCreateWithFlags(&plan->stream, cudaStreamNonBlocking));
    LT(cublasLtCreate(&plan->handle));
    LT(cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                      sizeof(transpose)));
    plan->weight_up = layout(HIDDEN, INNER); /* column by column: [INNER][HIDDEN] turned */
    plan->weight_down = layout(INNER, HIDDEN);
    plan->narrow = layout(HIDDEN, ROWS);
    plan->wide = layout(INNER, ROWS);
    plan->algo_up = choose(plan, plan->weight_up, plan->narrow, plan->wide);
    plan->algo_down = choose(plan, plan->weight_down, plan->wide, plan->narrow);
    CUDA(cudaMalloc(&plan->workspace, WORKSPACE));
    CUDA(cudaMalloc((void **)&plan->input, ROWS * HIDDEN * sizeof(__nv_bfloat16)));
    CUDA(cudaMalloc((void **)&plan->x, ROWS * HIDDEN * sizeof(__nv_bfloat16)));
    CUDA(cudaMalloc((void **)&plan->normed, ROWS * HIDDEN * sizeof(__nv_bfloat16)));
    CUDA(cudaMalloc((void **)&plan->inner, ROWS * INNER * sizeof(__nv_bfloat16)));
    fill_bf16<<<512, 256, 0, plan->stream>>>(plan->input, ROWS * HIDDEN, 7, 1.0f);
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(plan->stream));
}

/* x += down(up(norm(x))), layer by layer, over the weights at base. */
static void ask(const struct plan *plan, char *base)
{
    float one = 1.0f, zero = 0.0f;
    CUDA(cudaMemcpyAsync(plan->x, plan->input, ROWS * HIDDEN * sizeof(__nv_bfloat16),
                         cudaMemcpyDeviceToDevice, plan->stream));
    for (int i = 0; i < plan->layers; i++) {
        struct layer_offsets at = offsets_of(i);
        norm<<<ROWS, 256, 0, plan->stream>>>(plan->x, (const float *)(base + at.gamma),
                                             plan->normed);
        CUDA(cudaGetLastError());
        LT(cublasLtMatmul(plan->handle, plan->product, &one, base + at.up, plan->weight_up,
                          plan->normed, plan->narrow, &zero, plan->inner, plan->wide, plan->inner,
                          plan->wide, &plan->algo_up, plan->workspace, WORKSPACE, plan->stream));
        LT(cublasLtMatmul(plan->handle, plan->product, &one, base + at.down, plan->weight_down,
                          plan->inner, plan->wide, &one, plan->x, plan->narrow, plan->x,
                          plan->narrow, &plan->algo_down, plan->workspace, WORKSPACE,
                          plan->stream));
    }
}

static cudaGraphExec_t capture(const struct plan *plan, char *base)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ask(plan, base); /* kernels are loaded when they are first asked for: not while capturing */
    CUDA(cudaStreamSynchronize(plan->stream));
    CUDA(cudaStreamBeginCapture(plan->stream, cudaStreamCaptureModeThreadLocal));
    ask(plan, base);
    CUDA(cudaStreamEndCapture(plan->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

/* Launches and brings the answer home; the caller frees it. */
static uint16_t *answer(const struct plan *plan, cudaGraphExec_t exec)
{
    size_t bytes = ROWS * HIDDEN * sizeof(uint16_t);
    uint16_t *out = (uint16_t *)malloc(bytes);
    CUDA(cudaMemsetAsync(plan->x, 0, bytes, plan->stream));
    CUDA(cudaGraphLaunch(exec, plan->stream));
    CUDA(cudaMemcpyAsync(out, plan->x, bytes, cudaMemcpyDeviceToHost, plan->stream));
    CUDA(cudaStreamSynchronize(plan->stream));
    return out;
}

static bool same(const uint16_t *a, const uint16_t *b)
{
    return memcmp(a, b, ROWS * HIDDEN * sizeof(*a)) == 0;
}

/* An answer that is neither flat nor no number. */
static bool sensible(const uint16_t *values)
{
    int different = 0;
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        if ((values[i] & 0x7f80u) == 0x7f80u) {
            return false;
        }
        different += values[i] != values[0];
    }
    return different > ROWS * HIDDEN / 2;
}

/* Weights of a seed in pinned memory, made on the device at `scratch`. */
static char *weights_of(const struct plan *plan, char *scratch, uint64_t seed)
{
    char *host;
    for (int i = 0; i < plan->layers; i++) {
        struct layer_offsets at = offsets_of(i);
        uint64_t s = seed * 1000 + (uint64_t)i * 3;
        fill_gamma<<<1, HIDDEN, 0, plan->stream>>>((float *)(scratch + at.gamma), s);
        fill_bf16<<<512, 256, 0, plan->stream>>>((__nv_bfloat16 *)(scratch + at.up), MATRIX, s + 1,
                                                 0.03f);
        fill_bf16<<<512, 256, 0, plan->stream>>>((__nv_bfloat16 *)(scratch + at.down), MATRIX,
                                                 s + 2, 0.015f);
        CUDA(cudaGetLastError());
    }
    CUDA(cudaHostAlloc((void **)&host, plan->bytes, cudaHostAllocDefault));
    CUDA(cudaMemcpyAsync(host, scratch, plan->bytes, cudaMemcpyDeviceToHost, plan->stream));
    CUDA(cudaStreamSynchronize(plan->stream));
    return host;
}

static void load(const struct plan *plan, void *base, const char *host)
{
    CUDA(cudaMemcpyAsync(base, host, plan->bytes, cudaMemcpyHostToDevice, plan->stream));
    CUDA(cudaStreamSynchronize(plan->stream));
}

static void *at(const struct berth_vmm *range)
{
    return (void *)(uintptr_t)range->address;
}

/* The whole range, so that every byte of it is known. */
static void load_whole(const struct plan *plan, const struct berth_vmm *range, const char *host)
{
    CUDA(cudaMemset(at(range), 0, range->bytes));
    CUDA(cudaDeviceSynchronize());
    load(plan, at(range), host);
}

static unsigned long long sum_of(const void *base, size_t bytes)
{
    unsigned long long *out, sum;
    CUDA(cudaMalloc((void **)&out, sizeof(*out)));
    CUDA(cudaMemset(out, 0, sizeof(*out)));
    checksum<<<1024, 256>>>((const uint32_t *)base, bytes / 4, out);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(&sum, out, sizeof(sum), cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return sum;
}

static size_t bytes_free(void)
{
    size_t left, whole;
    CUDA(cudaMemGetInfo(&left, &whole));
    return left;
}

/* A fresh run: its own memory, its own capture. The caller frees. */
static uint16_t *fresh(const struct plan *plan, const char *host)
{
    char *memory;
    CUDA(cudaMalloc((void **)&memory, plan->bytes));
    load(plan, memory, host);
    cudaGraphExec_t exec = capture(plan, memory);
    uint16_t *out = answer(plan, exec);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaFree(memory));
    return out;
}

/* Runs this program again, with the descriptor kept open; its exit status, or -1. */
static int run_child(const struct settings *settings, const char *mode, int fd, size_t bytes,
                     unsigned long long sum)
{
    char fd_text[32], bytes_text[32], sum_text[32];
    snprintf(fd_text, sizeof(fd_text), "%d", fd);
    snprintf(bytes_text, sizeof(bytes_text), "%zu", bytes);
    snprintf(sum_text, sizeof(sum_text), "%llu", sum);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (fd >= 0) {
            fcntl(fd, F_SETFD, 0);
        }
        execl(settings->program, settings->program, mode, fd_text, bytes_text, sum_text,
              (char *)NULL);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        return -1;
    }
    return WEXITSTATUS(status);
}

/* The second process: reads, or tries to write, what the first exported. */
static int child_import(const char *mode, int fd, uint64_t bytes, unsigned long long sum)
{
    struct berth_vmm range = {0};
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(NULL));
    double begun = now_ms();
    OURS(berth_vmm_import(&range, 0, bytes, fd, &ours));
    double took = now_ms() - begun;
    if (strcmp(mode, "--child-write") == 0) {
        poke<<<1, 1>>>((uint32_t *)at(&range));
        cudaError_t status = cudaDeviceSynchronize();
        printf("      write to the read-only mapping: %s\n", cudaGetErrorString(status));
        return status == cudaSuccess ? 0 : FAULTED;
    }
    unsigned long long mine = sum_of(at(&range), bytes);
    printf("      imported %llu MiB in %.2f ms; checksum %016llx\n",
           (unsigned long long)(bytes >> 20), took, mine);
    berth_vmm_finish(&range);
    return mine == sum ? 0 : 1;
}

/* A process that launches a graph over memory it has unmapped. */
static int child_unmapped(void)
{
    struct plan plan;
    struct berth_vmm range = {0};
    CUDA(cudaSetDevice(0));
    plan_make(&plan, 2);
    OURS(berth_vmm_init(&range, 0, plan.bytes, &ours));
    OURS(berth_vmm_map(&range, &ours));
    CUDA(cudaMemset(at(&range), 0, plan.bytes));
    cudaGraphExec_t exec = capture(&plan, (char *)at(&range));
    free(answer(&plan, exec));
    OURS(berth_vmm_unmap(&range, &ours));
    cudaError_t status = cudaGraphLaunch(exec, plan.stream);
    cudaError_t ended = cudaStreamSynchronize(plan.stream);
    printf("      launch while unmapped: %s; then: %s\n", cudaGetErrorString(status),
           cudaGetErrorString(ended));
    return ended == cudaSuccess ? 0 : FAULTED;
}

struct times {
    double unmap[TIMES_MAX], map[TIMES_MAX], load[TIMES_MAX];
};

/* One round: away, something else there, back with `host`'s weights. */
static void away_and_back(const struct plan *plan, struct berth_vmm *range, const char *host,
                          struct times *times, int round)
{
    void *other = NULL;
    double t0 = now_ms();
    OURS(berth_vmm_unmap(range, &ours));
    double t1 = now_ms();
    CUDA(cudaMalloc(&other, range->bytes));
    CUDA(cudaMemset(other, 0xff, range->bytes)); /* all of it no number, were it read */
    CUDA(cudaDeviceSynchronize());
    double t2 = now_ms();
    OURS(berth_vmm_map(range, &ours));
    double t3 = now_ms();
    CUDA(cudaMemset(at(range), 0xff, range->bytes));
    CUDA(cudaDeviceSynchronize());
    double t4 = now_ms();
    load(plan, at(range), host);
    times->load[round] = now_ms() - t4;
    times->unmap[round] = t1 - t0;
    times->map[round] = t3 - t2;
    CUDA(cudaFree(other));
}

static void test_given_back(struct berth_vmm *range)
{
    void *address = at(range);
    size_t mapped = bytes_free();
    OURS(berth_vmm_unmap(range, &ours));
    size_t unmapped = bytes_free();
    printf("      free %zu MiB mapped, %zu MiB unmapped; the range has %llu MiB\n", mapped >> 20,
           unmapped >> 20, (unsigned long long)(range->bytes >> 20));
    claim(unmapped >= mapped + range->bytes / 100 * 99 && berth_vmm_bytes_mapped() == 0,
          "unmapped memory is given back to the device, and our count says so");
    OURS(berth_vmm_map(range, &ours));
    claim(at(range) == address && berth_vmm_bytes_mapped() == range->bytes,
          "new memory is mapped at the same addresses");
}

static void test_rounds(const struct settings *settings, const struct plan *plan,
                        struct berth_vmm *range, char *const host[2], uint16_t *const want[2])
{
    static struct times times;
    cudaGraphExec_t exec;
    load(plan, at(range), host[0]);
    double begun = now_ms();
    exec = capture(plan, (char *)at(range));
    printf("      capture and instantiate: %.2f ms\n", now_ms() - begun);
    uint16_t *first = answer(plan, exec);
    claim(same(first, want[0]), "the graph over the range answers as one over cudaMalloc memory");
    free(first);
    int good = 0;
    for (int round = 0; round < settings->rounds; round++) {
        away_and_back(plan, range, host[round % 3 == 1], &times, round);
        uint16_t *got = answer(plan, exec);
        good += same(got, want[round % 3 == 1]);
        free(got);
    }
    char text[160];
    snprintf(text, sizeof(text),
             "%d of %d remaps: the same graph answers bit for bit as a fresh run with the same "
             "weights",
             good, settings->rounds);
    claim(good == settings->rounds, text);
    double launch[32];
    for (int i = 0; i < 32; i++) {
        double t = now_ms();
        CUDA(cudaGraphLaunch(exec, plan->stream));
        CUDA(cudaStreamSynchronize(plan->stream));
        launch[i] = now_ms() - t;
    }
    int n = settings->rounds;
    double unmap = median(times.unmap, n), map = median(times.map, n), copy = median(times.load, n);
    printf("      %zu MiB, medians of %d: unmap and free %.3f ms, take and map %.3f ms, reload "
           "from pinned memory %.2f ms (%.1f GB/s), together %.2f ms; graph %.3f ms\n",
           plan->bytes >> 20, n, unmap, map, copy, (double)plan->bytes / copy * 1e-6,
           unmap + map + copy, median(launch, 32));
    CUDA(cudaGraphExecDestroy(exec));
}

static void test_processes(const struct settings *settings, const struct plan *plan,
                           struct berth_vmm *range, char *const host[2])
{
    int fd = -1;
    load_whole(plan, range, host[0]);
    unsigned long long sum = sum_of(at(range), range->bytes);
    OURS(berth_vmm_export(range, &fd, &ours));
    claim(run_child(settings, "--child-read", fd, range->bytes, sum) == 0,
          "a second process maps the descriptor read-only and reads the same checksum");
    if (!settings->skip_faults) {
        claim(run_child(settings, "--child-write", fd, range->bytes, sum) == FAULTED,
              "a write to the read-only mapping faults in the process that tries it");
        claim(sum_of(at(range), range->bytes) == sum,
              "and the first process goes on, its memory unchanged");
    }
    size_t mapped = bytes_free();
    OURS(berth_vmm_unmap(range, &ours));
    size_t open = bytes_free();
    close(fd);
    size_t closed = bytes_free();
    printf("      free after unmap with the descriptor open +%zd MiB, closed +%zd MiB\n",
           ((ssize_t)open - (ssize_t)mapped) >> 20, ((ssize_t)closed - (ssize_t)mapped) >> 20);
    claim(closed >= mapped + range->bytes / 100 * 99,
          "memory that was exported is given back once unmapped and the descriptor closed");
    OURS(berth_vmm_map(range, &ours));
    load_whole(plan, range, host[0]);
    if (!settings->skip_faults) {
        claim(run_child(settings, "--child-unmapped", -1, 0, 0) == FAULTED,
              "a graph launched over unmapped memory faults in the process that does it");
        claim(sum_of(at(range), range->bytes) == sum, "and another process goes on");
    }
}

static int run_all(const struct settings *settings)
{
    struct plan plan;
    struct berth_vmm range = {0};
    struct cudaDeviceProp device;
    char *host[2], *scratch;
    uint16_t *want[2];
    CUDA(cudaSetDevice(0));
    CUDA(cudaGetDeviceProperties(&device, 0));
    plan_make(&plan, settings->layers);
    printf("remap: %s, %d layers, %zu MiB of weights, cuBLASLt %zu\n", device.name, plan.layers,
           plan.bytes >> 20, cublasLtGetVersion());
    CUDA(cudaMalloc((void **)&scratch, plan.bytes));
    host[0] = weights_of(&plan, scratch, 1);
    host[1] = weights_of(&plan, scratch, 2);
    CUDA(cudaFree(scratch));
    want[0] = fresh(&plan, host[0]);
    want[1] = fresh(&plan, host[1]);
    uint16_t *again = fresh(&plan, host[0]);
    claim(sensible(want[0]) && sensible(want[1]), "answers are numbers, and not flat");
    claim(same(want[0], again), "two fresh runs with the same weights are equal bit for bit");
    claim(!same(want[0], want[1]), "other weights give another answer");
    free(again);
    OURS(berth_vmm_init(&range, 0, plan.bytes, &ours));
    OURS(berth_vmm_map(&range, &ours));
    test_given_back(&range);
    test_rounds(settings, &plan, &range, host, want);
    test_processes(settings, &plan, &range, host);
    berth_vmm_finish(&range);
    struct berth_vmm huge = {0};
    enum berth_code code = berth_vmm_init(&huge, 0, (uint64_t)1 << 42, &ours);
    code = code == BERTH_OK ? berth_vmm_map(&huge, &ours) : code;
    printf("      4 TiB: %s: %s\n", berth_code_name(code), ours.msg);
    claim(code == BERTH_TOO_LARGE, "more than the device has is refused as TOO_LARGE");
    berth_vmm_finish(&huge);
    printf("%s: %d failed\n", failures == 0 ? "remap: passed" : "remap: FAILED", failures);
    return failures == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct settings settings = {72, 20, false, "/proc/self/exe"};
    if (argc == 5 && strncmp(argv[1], "--child-", 8) == 0) {
        if (strcmp(argv[1], "--child-unmapped") == 0) {
            return child_unmapped();
        }
        return child_import(argv[1], (int)strtol(argv[2], NULL, 10), strtoull(argv[3], NULL, 10),
                            strtoull(argv[4], NULL, 10));
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--skip-faults") == 0) {
            settings.skip_faults = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--layers") == 0) {
            settings.layers = (int)strtol(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            settings.rounds = (int)strtol(argv[++i], NULL, 10);
        } else {
            printf("usage: remap [--layers N] [--rounds N] [--skip-faults]\n");
            return 2;
        }
    }
    if (settings.layers < 1 || settings.layers > LAYERS_MAX || settings.rounds < 1 ||
        settings.rounds > TIMES_MAX) {
        printf("remap: 1 to %d layers, 1 to %d rounds\n", LAYERS_MAX, TIMES_MAX);
        return 2;
    }
    return run_all(&settings);
}
