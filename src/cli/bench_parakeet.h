/* bench_parakeet.h - `bench parakeet`: times the Parakeet engine alone, with no server around it.
 *
 * For each number of rows: the encoder alone (features to its projected output), the same from PCM,
 * PCM in host memory to tokens in host memory, and the encoder's matrix products with nothing
 * between them. bench/README.md says how to read the figures. Shared by berth and berth-cuda.
 */
#ifndef BERTH_BENCH_PARAKEET_H
#define BERTH_BENCH_PARAKEET_H

#include "base/config.h"
#include "engine/parakeet/backend.h"

/* The command; the exit status. */
int berth_cli_bench_parakeet(const struct berth_config *config);
/* The same for a program that has no other command: argv begins at "parakeet". */
int berth_cli_bench_parakeet_main(int argc, char **argv);

/* Milliseconds of some runs, sorted. */
struct berth_bench_times {
    double *ms; /* owns; berth_free */
    size_t count;
};

/* The encoder's matrix products of one bucket, on a device of their own. */
struct berth_bench_products {
    const struct berth_parakeet_ops *ops;
    const char *device;
    uint32_t threads;
    const struct berth_parakeet_config *model;
    const struct berth_parakeet_weights *weights;
    const struct berth_parakeet_shape *shape;
};

/* Floating-point operations of the products, and of the whole encoder with attention and
 * convolutions, projector included. */
double berth_bench_products_flop(const struct berth_bench_products *products);
double berth_bench_encoder_flop(const struct berth_bench_products *products);
/* Times them, one after the other through the back end's linear, as one graph where it has graphs.
 * times->count says how often; ms are there already. */
enum berth_code berth_bench_products_run(const struct berth_bench_products *products,
                                         struct berth_bench_times *times,
                                         struct berth_err *err) BERTH_MUST_USE;

#endif
