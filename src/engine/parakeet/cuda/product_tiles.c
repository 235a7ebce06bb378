/* product_tiles.c - see product_tiles.h. */
#include "engine/parakeet/cuda/product_tiles.h"

#define LARGE (128u * 128u)
#define COUNT_MAX 0x7fffff00u /* of vectors and tiles: they are counted on in 32 bits */

bool berth_parakeet_cuda_tile_takes(const struct berth_parakeet_cuda_tile *tile,
                                    const struct berth_parakeet_cuda_product *product)
{
    return product->in > 0 && product->in % (BERTH_PARAKEET_CUDA_SLICE * tile->wide) == 0 &&
           product->out > 0 && product->out % tile->columns == 0 && product->n > 0 &&
           product->n < COUNT_MAX && berth_parakeet_cuda_tile_count(tile, product) < COUNT_MAX;
}

uint64_t berth_parakeet_cuda_tile_count(const struct berth_parakeet_cuda_tile *tile,
                                        const struct berth_parakeet_cuda_product *product)
{
    return (product->n + tile->rows - 1) / tile->rows * (product->out / tile->columns);
}

uint32_t berth_parakeet_cuda_tiles_likely(const struct berth_parakeet_cuda_tile *tiles,
                                          uint32_t count,
                                          const struct berth_parakeet_cuda_product *product,
                                          uint32_t multiprocessors, uint32_t *out)
{
    const uint64_t most = multiprocessors;
    uint32_t found = 0, first = count, last = count;
    for (uint32_t i = 0; i < count; i++) {
        if (berth_parakeet_cuda_tile_takes(&tiles[i], product)) {
            const uint64_t pieces = berth_parakeet_cuda_tile_count(&tiles[i], product);
            const bool small = tiles[i].rows * tiles[i].columns < LARGE;
            first = first == count ? i : first;
            last = i;
            if (pieces * 3 >= most && (pieces <= 2 * most || !small || i == first)) {
                out[found++] = i;
            }
        }
    }
    /* Where there are few tiles in any form the smallest is likely too. */
    if (last < count &&
        (found == 0 ||
         (out[found - 1] != last &&
          berth_parakeet_cuda_tile_count(&tiles[last], product) <= 2 * most))) {
        out[found++] = last;
    }
    return found;
}
