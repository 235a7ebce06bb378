/* cpu_product.h - products of matrices on one thread.
 *
 * An output is one chain of multiplications and additions along the depth, in blocks of a fixed
 * length, wherever in a product it lies and however large that is: so a vector's result is bit for
 * bit the same whatever is multiplied with it (E1). Processors with other vector instructions give
 * other last bits.
 */
#ifndef BERTH_CPU_PRODUCT_H
#define BERTH_CPU_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#define BERTH_PARAKEET_PANEL 16  /* columns of b taken together */
#define BERTH_PARAKEET_DEPTH 256 /* of a block */
#define BERTH_PARAKEET_PRODUCT_SCRATCH (BERTH_PARAKEET_PANEL * (BERTH_PARAKEET_DEPTH + 16))

struct berth_parakeet_kernels;

/* c = scale * (a x b) + (add ? c : 0). */
struct berth_parakeet_product {
    const float *a; /* [n][depth], a line every a_stride */
    const float *b; /* across: [depth][columns], a line every b_stride; else [columns][depth] */
    float *c;       /* [n][columns], a line every c_stride */
    uint64_t a_stride, b_stride, c_stride;
    uint32_t n, columns, depth;
    float scale;
    bool across;
    bool add;
};

/* scratch: BERTH_PARAKEET_PRODUCT_SCRATCH floats. */
void berth_parakeet_multiply(const struct berth_parakeet_kernels *kernels,
                             const struct berth_parakeet_product *product, float *scratch);

/* The same in the caller's own loops over depth and panels: pack a panel of b, then multiply as
 * many runs of vectors with it as there are. `first` column of the panel and `from` depth. */
struct berth_parakeet_panel {
    const float *b; /* [depth][PANEL], a line every b_stride */
    uint64_t b_stride;
    uint32_t columns; /* 1 to PANEL */
    uint32_t depth;
};
void berth_parakeet_panel_fill(const struct berth_parakeet_kernels *kernels,
                               const struct berth_parakeet_product *product, const uint32_t at[2],
                               struct berth_parakeet_panel *panel, float *scratch);
/* a: from the panel's depth on; c: from its first column on. */
void berth_parakeet_panel_multiply(const struct berth_parakeet_kernels *kernels,
                                   const struct berth_parakeet_panel *panel,
                                   const struct berth_parakeet_product *run);

/* 0: any processor; each further one wants more of it. NULL: this one has not got it. */
#define BERTH_PARAKEET_KERNELS 3
const struct berth_parakeet_kernels *berth_parakeet_kernels_at(uint32_t level);
/* The best this processor has. */
const struct berth_parakeet_kernels *berth_parakeet_kernels_choose(void);

#endif
