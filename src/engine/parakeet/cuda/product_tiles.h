/* product_tiles.h - the tiles of product_sm90.cu: what each takes, and which are worth timing.
 *
 * Plain C without CUDA, so that it is tested where there is no GPU.   Threads: any.
 * C and C++ clean.
 */
#ifndef BERTH_PRODUCT_TILES_H
#define BERTH_PRODUCT_TILES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BERTH_PARAKEET_CUDA_SLICE 64u /* halves of the depth that are copied at once */

/* groups, m, columns, stages, wide, turns (product_sm90.cu has what they mean), and a name. The
 * largest first, the smallest last. */
#define BERTH_PARAKEET_CUDA_TILES(X)                                                               \
    X(2, 2, 128, 6, 1, true, "128 x 128, in turns")                                                \
    X(2, 1, 128, 6, 1, false, "128 x 128")                                                         \
    X(2, 1, 64, 8, 1, false, "128 x 64")                                                           \
    X(2, 1, 32, 5, 2, false, "128 x 32")                                                           \
    X(1, 1, 64, 6, 2, false, "64 x 64")                                                            \
    X(1, 1, 32, 4, 4, false, "64 x 32")

#define BERTH_PARAKEET_CUDA_TILE_ROWS(GROUPS, M, TURNS) (64u * (M) * ((TURNS) ? 1u : (GROUPS)))
/* A row of a table of struct berth_parakeet_cuda_tile. */
#define BERTH_PARAKEET_CUDA_TILE(GROUPS, M, COLUMNS, STAGES, WIDE, TURNS, NAME)                    \
    {NAME, BERTH_PARAKEET_CUDA_TILE_ROWS(GROUPS, M, TURNS), COLUMNS, WIDE},

struct berth_parakeet_cuda_tile {
    const char *name;
    uint32_t rows, columns; /* vectors and outputs */
    uint32_t wide;          /* slices of the depth that it takes at once */
};

/* Vectors, and the matrix. */
struct berth_parakeet_cuda_product {
    uint64_t n;
    uint32_t in, out;
};

/* Whether the depth is whole slices, as many as it takes at once, and the outputs are whole tiles;
 * then it takes any number of vectors. */
bool berth_parakeet_cuda_tile_takes(const struct berth_parakeet_cuda_tile *tile,
                                    const struct berth_parakeet_cuda_product *product);
/* Of a product that it takes. */
uint64_t berth_parakeet_cuda_tile_count(const struct berth_parakeet_cuda_tile *tile,
                                        const struct berth_parakeet_cuda_product *product);
/* Which of tiles [count] take the product and are worth timing: their number neither leaves most of
 * the multiprocessors idle, nor are they far smaller than need be. One at least if any takes it.
 * Indices into out [count]; how many. */
uint32_t berth_parakeet_cuda_tiles_likely(const struct berth_parakeet_cuda_tile *tiles,
                                          uint32_t count,
                                          const struct berth_parakeet_cuda_product *product,
                                          uint32_t multiprocessors, uint32_t *out);

#ifdef __cplusplus
}
#endif

#endif
