/* main_cuda.c - composition root of `berth-cuda`, the program of GPU workers and keepers: the same
 * worker and engine code as `berth`, linked with CUDA, started by `berth serve` where there is a
 * GPU.
 *
 * This version has no engine that runs on a GPU. The program says so by name and ends, so that a
 * server that starts it gets a reason and not a silence.
 */
#include <stdio.h>
#include <string.h>

#include "cli/bench_parakeet.h"
#include "engine/engine.h"

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "bench") == 0 && strcmp(argv[2], "parakeet") == 0) {
        return berth_cli_bench_parakeet_main(argc - 2, argv + 2);
    }
    fputs("berth-cuda " BERTH_VERSION ": no GPU engine in this version; engines here:", stderr);
    for (size_t i = 0; berth_engine_name(i) != NULL; i++) {
        fprintf(stderr, " %s", berth_engine_name(i));
    }
    fputs("\n", stderr);
    return 1;
}
