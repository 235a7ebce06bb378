/* main_cuda.c - composition root of `berth-cuda`, the program of GPU workers and keepers: the same
 * worker and engine code as `berth`, linked with CUDA, started by `berth serve` where there is a
 * GPU.
 *
 * This version has no engine that runs on a GPU. The program says so by name and ends, so that a
 * server that starts it gets a reason and not a silence.
 */
#include <stdio.h>

#include "engine/engine.h"

int main(void)
{
    fputs("berth-cuda " BERTH_VERSION ": no GPU engine in this version; engines here:", stderr);
    for (size_t i = 0; berth_engine_name(i) != NULL; i++) {
        fprintf(stderr, " %s", berth_engine_name(i));
    }
    fputs("\n", stderr);
    return 1;
}
