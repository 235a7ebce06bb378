/* load_weights.c - weights from a model's folder to a GPU: every byte as the CPU's reader gives it,
 * and how long it takes.
 *
 * usage: load_weights FOLDER [ROUNDS]      FOLDER holds config.json and model.safetensors
 * Prints PASS or FAIL and figures; exit status 0 when nothing failed. The first round reads from
 * wherever the file is and makes the pinned memory; the others read from the page cache.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "engine/cuda/gpu.h"
#include "engine/parakeet/backend.h"
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/weights.h"
#include "engine/span.h"

#define DEVICE "cuda:0"
#define READERS 4

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static enum berth_code write_host(void *state, uint64_t offset, const void *source, size_t bytes,
                                  struct berth_err *err)
{
    (void)err;
    memcpy((char *)state + offset, source, bytes);
    return BERTH_OK;
}

static int fail(const char *what, const struct berth_err *err)
{
    printf("FAIL  %s: %s\n", what, err->msg);
    return 1;
}

/* Bytes that lie between tensors are not written by either. */
static int compare(const char *want, const char *got, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        if (want[i] != got[i]) {
            printf("FAIL  byte %llu of %llu differs\n", (unsigned long long)i,
                   (unsigned long long)bytes);
            return 1;
        }
    }
    printf("PASS  %llu bytes on the GPU as the CPU's reader gives them\n",
           (unsigned long long)bytes);
    return 0;
}

int main(int argc, char **argv)
{
    struct berth_err err = {0};
    struct berth_parakeet_config config;
    struct berth_span want = {.fd = -1};
    struct berth_span got = {.fd = -1};
    struct berth_span span = {.fd = -1};
    int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 10;
    if (argc < 2 || rounds < 1) {
        printf("usage: load_weights FOLDER [ROUNDS]\n");
        return 2;
    }
    if (berth_parakeet_config_read(argv[1], &config, &err) != BERTH_OK) {
        return fail(argv[1], &err);
    }
    uint64_t bytes = berth_parakeet_weights_bytes(&config, BERTH_PARAKEET_F16);
    if (berth_span_create("cpu:0", bytes, &want, &err) != BERTH_OK ||
        berth_span_create("cpu:0", bytes, &got, &err) != BERTH_OK) {
        return fail("host memory", &err);
    }
    struct berth_parakeet_sink sink = {
        .write = write_host, .state = want.address, .readers = READERS};
    if (berth_parakeet_weights_read(&config, BERTH_PARAKEET_F16, argv[1], &sink, &err) !=
        BERTH_OK) {
        return fail("reading", &err);
    }
    if (berth_span_create(DEVICE, bytes, &span, &err) != BERTH_OK) {
        return fail("device memory", &err);
    }
    int failed = 0;
    for (int round = 0; round < rounds && failed == 0; round++) {
        (void)cudaMemset(span.address, 0, span.bytes);
        (void)cudaDeviceSynchronize();
        double begun = now_ms();
        if (berth_parakeet_cuda_weights_load(DEVICE, &config, argv[1], span.address, &err) !=
            BERTH_OK) {
            return fail("loading", &err);
        }
        double took = now_ms() - begun;
        printf("      round %d: %.1f MiB in %.1f ms, %.1f GB/s\n", round,
               (double)bytes / 1048576.0, took, (double)bytes / took * 1e-6);
        cudaError_t status =
            cudaMemcpy(got.address, span.address, bytes, cudaMemcpyDeviceToHost);
        if (status != cudaSuccess) {
            printf("FAIL  %s\n", cudaGetErrorString(status));
            return 1;
        }
        if (round == 0 || round == rounds - 1) {
            failed += compare(want.address, got.address, bytes);
        }
    }
    berth_span_destroy(DEVICE, &span);
    berth_span_destroy("cpu:0", &want);
    berth_span_destroy("cpu:0", &got);
    return failed;
}
