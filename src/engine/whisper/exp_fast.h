/* exp_fast.h - an exp that compilers turn into vector code, for sums over a vocabulary and softmax.
 * Only for x <= 0; relative error 2e-7; below -80 it is 0. */
#ifndef BERTH_EXP_FAST_H
#define BERTH_EXP_FAST_H

#include <stdint.h>
#include <string.h>

#define BERTH_EXP_MIN (-80.0F)

/* 2^n * exp(r), r within half of ln 2. */
static inline float berth_exp_fast(float x)
{
    const float magic = 12582912.0F; /* 1.5 * 2^23: adding it rounds to an integer */
    float kept = x > BERTH_EXP_MIN ? x : BERTH_EXP_MIN;
    float n = kept * 1.44269504F + magic - magic;
    float r = (kept - n * 0.693359375F) + n * 2.12194440e-4F;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * r * r + r + 1.0F;
    int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float scale = 0;
    memcpy(&scale, &bits, sizeof(scale));
    return x > BERTH_EXP_MIN ? p * scale : 0.0F;
}

#endif
