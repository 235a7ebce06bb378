/* linear_choice.c - see linear_choice.h.
 *
 * Ways are timed with weights that are not in the cache, as in a real pass, in a graph on a stream
 * of the lowest priority and in memory of their own, which works while a device's stream is being
 * captured, and beside another device's work. A model's own memory is not read: it may come and go.
 * Rejected: keeping choices in a file.
 */
#include "engine/parakeet/cuda/linear_choice.h"

#include <float.h>
#include <pthread.h>

#include "engine/cuda/gpu.h"
#include "engine/parakeet/cuda/linear.h"

#define CHOICES_MAX 4096 /* a model has 9 a bucket: 423 with windows of 32 s, at most 585 */
#define REPEATS_MAX 20
#define TIMINGS 3
#define TARGET_FLOPS 1.2e11 /* of one timing: enough to be measured, not more */
#define SMALL_FLOAT 0x3C    /* bytes of it are a float of about a hundredth */

struct choice {
    struct berth_parakeet_cuda_key key;
    struct berth_parakeet_cuda_way way;
};

/* Of the process, so that two instances on a GPU compute the same bits; grows to its limit, then
 * further keys take the first way, which is as fixed. */
static pthread_mutex_t choices_mu = PTHREAD_MUTEX_INITIALIZER;
static struct choice choices[CHOICES_MAX]; /* guarded by choices_mu */
static uint32_t choice_count;              /* guarded by choices_mu */

struct bench {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *memory;
    struct berth_parakeet_cuda_room room;
    size_t weight_bytes;
    uint32_t copies, repeats;
};

static const struct choice *find(const struct berth_parakeet_cuda_key *key);
static void keep(const struct berth_parakeet_cuda_key *key, struct berth_parakeet_cuda_way *way);
static int fastest(struct berth_parakeet_device *device,
                   const struct berth_parakeet_cuda_race *race);
static bool bench_make(struct berth_parakeet_device *device,
                       const struct berth_parakeet_cuda_race *race, struct bench *bench);
static void bench_finish(struct bench *bench);
static float bench_time(const struct berth_parakeet_cuda_race *race, const struct bench *bench,
                        const struct berth_parakeet_cuda_way *way);

bool berth_parakeet_cuda_choice_find(const struct berth_parakeet_cuda_key *key,
                                     struct berth_parakeet_cuda_way *out)
{
    pthread_mutex_lock(&choices_mu);
    const struct choice *found = find(key);
    if (found != NULL) {
        *out = found->way;
    }
    pthread_mutex_unlock(&choices_mu);
    return found != NULL;
}

bool berth_parakeet_cuda_choose(struct berth_parakeet_device *device,
                                const struct berth_parakeet_cuda_race *race,
                                struct berth_parakeet_cuda_way *out)
{
    if (berth_parakeet_cuda_choice_find(&race->key, out)) {
        return true;
    }
    /* A full table chooses without timing: the answer has to be the same the next time. */
    bool full = berth_parakeet_cuda_algorithm_count() >= CHOICES_MAX;
    int best = full ? -1 : fastest(device, race);
    if (best < 0 && race->behind) {
        return false; /* the run that needs it chooses */
    }
    /* Also one that nobody timed: a product's answers do not change while the process lives. */
    *out = race->ways[best < 0 ? 0 : best];
    keep(&race->key, out);
    return true;
}

uint32_t berth_parakeet_cuda_algorithm_count(void)
{
    pthread_mutex_lock(&choices_mu);
    uint32_t count = choice_count;
    pthread_mutex_unlock(&choices_mu);
    return count;
}

static const struct choice *find(const struct berth_parakeet_cuda_key *key)
{
    for (uint32_t i = 0; i < choice_count; i++) {
        if (berth_parakeet_cuda_keys_equal(&choices[i].key, key)) {
            return &choices[i];
        }
    }
    return NULL;
}

/* The first to choose wins; *way is then the winner's. */
static void keep(const struct berth_parakeet_cuda_key *key, struct berth_parakeet_cuda_way *way)
{
    pthread_mutex_lock(&choices_mu);
    const struct choice *found = find(key);
    if (found != NULL) {
        *way = found->way;
    } else if (choice_count < CHOICES_MAX) {
        choices[choice_count++] = (struct choice){*key, *way};
    }
    pthread_mutex_unlock(&choices_mu);
}

/* Index of the fastest; the order given where times are within 2 %. -1: none was timed. */
static int fastest(struct berth_parakeet_device *device,
                   const struct berth_parakeet_cuda_race *race)
{
    struct bench bench = {0};
    float best_ms = FLT_MAX;
    int best = race->count > 1 ? -1 : 0;
    if (race->count > 1 && bench_make(device, race, &bench)) {
        for (int i = 0; i < race->count; i++) {
            float ms = bench_time(race, &bench, &race->ways[i]);
            if (ms < best_ms * 0.98f) {
                best_ms = ms;
                best = i;
            }
        }
    }
    bench_finish(&bench);
    berth_gpu_note(cudaGetLastError()); /* what could not be timed is else no failure */
    return best;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static bool bench_make(struct berth_parakeet_device *device,
                       const struct berth_parakeet_cuda_race *race, struct bench *bench)
{
    const struct berth_parakeet_cuda_key *key = &race->key;
    const double repeats = TARGET_FLOPS / (2.0 * (double)key->n * key->in * key->out);
    const bool narrow = key->operands != BERTH_PARAKEET_CUDA_HALVES;
    const size_t operand = narrow ? 1 : 2;
    const size_t workspace = BERTH_PARAKEET_CUDA_WORKSPACE_BYTES;
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
    if (race->behind && (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess ||
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
    struct berth_parakeet_cuda_room *room = &bench->room;
    room->workspace = bench->memory;
    room->vectors = room->workspace + workspace;
    room->in = room->vectors + vector_bytes;
    room->out = room->in + in_bytes;
    room->weight = room->out + out_bytes;
    return cudaMemsetAsync(room->vectors, SMALL_FLOAT, vector_bytes, bench->stream) ==
               cudaSuccess &&
           berth_parakeet_cuda_noise(room->in, bytes - workspace - vector_bytes, narrow,
                                     bench->stream) == cudaSuccess;
}

static void bench_finish(struct bench *bench)
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
static cudaGraphExec_t bench_record(const struct berth_parakeet_cuda_race *race,
                                    const struct bench *bench,
                                    const struct berth_parakeet_cuda_way *way)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    bool good = cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess;
    if (!good) {
        return NULL;
    }
    for (uint32_t i = 0; i < bench->repeats && good; i++) {
        struct berth_parakeet_cuda_room room = bench->room;
        room.weight += (i % bench->copies) * bench->weight_bytes;
        good = race->run(race->subject, way, &room, bench->stream);
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
static float bench_time(const struct berth_parakeet_cuda_race *race, const struct bench *bench,
                        const struct berth_parakeet_cuda_way *way)
{
    float best = FLT_MAX;
    cudaGraphExec_t exec = bench_record(race, bench, way);
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
