/* main_cuda.c - composition root of `berth-cuda`, the program of GPU workers: the same worker and
 * engine code as `berth`, linked with CUDA, started by `berth serve` where there is a GPU.
 *
 *     berth-cuda --probe            says which GPUs it sees, or why none (cli/gpu_probe.c reads it)
 *     berth-cuda worker --fd N      a worker process
 *     berth-cuda bench parakeet     the engine alone, measured
 */
#include <stdio.h>
#include <string.h>

#include "cli/bench_parakeet.h"
#include "engine/cuda/gpu.h"
#include "worker/worker.h"

static int probe(FILE *out);

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "bench") == 0 && strcmp(argv[2], "parakeet") == 0) {
        return berth_cli_bench_parakeet_main(argc - 2, argv + 2);
    }
    if (argc > 1 && strcmp(argv[1], "worker") == 0) {
        return berth_worker_host_main(argc, argv);
    }
    if (argc > 1 && strcmp(argv[1], "--probe") == 0) {
        return probe(stdout);
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        puts("berth-cuda " BERTH_VERSION);
        return 0;
    }
    fputs("berth-cuda " BERTH_VERSION " is started by berth serve; --probe says:\n", stderr);
    return probe(stderr);
}

/* A line for each GPU: its name here, bytes, bytes free, and what it is called. */
static int probe(FILE *out)
{
    struct berth_gpu_facts facts;
    struct berth_err err = {0};
    int count = 0;
    while (berth_gpu_describe(count, &facts, &err) == BERTH_OK) {
        fprintf(out, "cuda:%d %llu %llu %s, driver %d.%d\n", count,
                (unsigned long long)facts.bytes, (unsigned long long)facts.bytes_free, facts.name,
                facts.driver / 1000, facts.driver % 1000 / 10);
        count++;
    }
    if (count == 0) {
        fprintf(out, "%s\n", err.msg);
    }
    return count > 0 ? 0 : 1;
}
