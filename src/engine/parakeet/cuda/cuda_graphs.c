/* cuda_graphs.c - recorded graphs of the CUDA back end: one for each key, the least used dropped.
 *
 * A graph holds addresses, not contents: weights unmapped and mapped again at the same addresses,
 * or loaded anew, need no new capture. Capture is relaxed, because choosing a product's algorithm
 * works on another stream meanwhile (linear.c).
 */
#include "engine/parakeet/cuda/cuda_device.h"

#include <stdatomic.h>

static _Atomic uint32_t capture_count; /* of the process */

static void end_recording(struct berth_parakeet_device *device);
static struct berth_parakeet_cuda_graph *find(struct berth_parakeet_device *device, uint64_t key);
static struct berth_parakeet_cuda_graph *make_room(struct berth_parakeet_device *device);
static void forget(struct berth_parakeet_device *device, struct berth_parakeet_cuda_graph *graph);

bool berth_parakeet_cuda_record(struct berth_parakeet_device *device, uint64_t key)
{
    (void)cudaSetDevice(device->ordinal);
    if (find(device, key) != NULL) {
        return false;
    }
    cudaError_t error = cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeRelaxed);
    berth_parakeet_cuda_fail(device, "recording a graph", error);
    if (error != cudaSuccess) {
        return false; /* asked for now it would run at once, perhaps over what nobody wrote yet */
    }
    device->recording = true;
    device->recording_key = key;
    atomic_fetch_add(&capture_count, 1);
    return true;
}

void berth_parakeet_cuda_play(struct berth_parakeet_device *device, uint64_t key)
{
    (void)cudaSetDevice(device->ordinal);
    end_recording(device);
    struct berth_parakeet_cuda_graph *graph = find(device, key);
    if (graph != NULL) {
        graph->used_at = ++device->play_count;
        berth_parakeet_cuda_fail(device, "playing a graph",
                                 cudaGraphLaunch(graph->exec, device->stream));
    } else if (device->error_text[0] == '\0') {
        berth_parakeet_cuda_refuse(device, "no graph of key", (long)key);
    }
}

void berth_parakeet_cuda_keep(struct berth_parakeet_device *device, uint64_t key)
{
    (void)cudaSetDevice(device->ordinal);
    end_recording(device);
    struct berth_parakeet_cuda_graph *graph = find(device, key);
    if (graph != NULL) { /* what its first launch would carry over */
        berth_parakeet_cuda_fail(device, "uploading a graph",
                                 cudaGraphUpload(graph->exec, device->stream));
    }
}

void berth_parakeet_cuda_forget(struct berth_parakeet_device *device, uint64_t key)
{
    struct berth_parakeet_cuda_graph *graph = find(device, key);
    if (graph != NULL) {
        (void)cudaSetDevice(device->ordinal);
        forget(device, graph);
    }
}

void berth_parakeet_cuda_drop(struct berth_parakeet_device *device)
{
    (void)cudaSetDevice(device->ordinal);
    for (int i = 0; i < BERTH_PARAKEET_CUDA_GRAPHS_MAX; i++) {
        if (device->graphs[i].used_at != 0) {
            forget(device, &device->graphs[i]);
        }
    }
}

uint32_t berth_parakeet_cuda_capture_count(void)
{
    return atomic_load(&capture_count);
}

/* What was recorded becomes a graph, unless something of it failed. */
static void end_recording(struct berth_parakeet_device *device)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (!device->recording) {
        return;
    }
    cudaError_t error = cudaStreamEndCapture(device->stream, &graph);
    device->recording = false;
    berth_parakeet_cuda_fail(device, "ending a graph", error);
    if (error == cudaSuccess && device->error_text[0] == '\0') {
        error = cudaGraphInstantiate(&exec, graph, 0);
        berth_parakeet_cuda_fail(device, "making a graph", error);
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    if (exec != NULL) {
        struct berth_parakeet_cuda_graph *place = make_room(device);
        place->key = device->recording_key;
        place->exec = exec;
        place->used_at = ++device->play_count;
    }
}

static struct berth_parakeet_cuda_graph *find(struct berth_parakeet_device *device, uint64_t key)
{
    for (int i = 0; i < BERTH_PARAKEET_CUDA_GRAPHS_MAX; i++) {
        if (device->graphs[i].used_at != 0 && device->graphs[i].key == key) {
            return &device->graphs[i];
        }
    }
    return NULL;
}

/* A free place, or that of the graph played longest ago. */
static struct berth_parakeet_cuda_graph *make_room(struct berth_parakeet_device *device)
{
    struct berth_parakeet_cuda_graph *oldest = &device->graphs[0];
    for (int i = 1; i < BERTH_PARAKEET_CUDA_GRAPHS_MAX; i++) {
        if (device->graphs[i].used_at < oldest->used_at) {
            oldest = &device->graphs[i];
        }
    }
    if (oldest->used_at != 0) {
        forget(device, oldest);
    }
    return oldest;
}

static void forget(struct berth_parakeet_device *device, struct berth_parakeet_cuda_graph *graph)
{
    berth_parakeet_cuda_fail(device, "before dropping a graph",
                             cudaStreamSynchronize(device->stream)); /* it may be playing */
    berth_parakeet_cuda_fail(device, "dropping a graph", cudaGraphExecDestroy(graph->exec));
    *graph = (struct berth_parakeet_cuda_graph){0};
}
