/* claims.h - what the programs of this folder that print PASS and FAIL have in common.
 *
 * A claim that does not hold is counted, and the program goes on. What it cannot go on without ends
 * it: CUDA, OURS (our functions, whose error is `ours`), and the assertions, which speech_rig.h has
 * from cmocka elsewhere. C and C++ clean.
 */
#ifndef BERTH_CLAIMS_H
#define BERTH_CLAIMS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "base/err.h"

#define CUDA(call) need_cuda((call), #call, __LINE__)
#define OURS(call) need_ours((call), #call, __LINE__)
#define assert_true(condition) need((condition), #condition, __LINE__)
#define assert_non_null(pointer) need((pointer) != NULL, #pointer, __LINE__)
#define assert_int_equal(a, b) need((a) == (b), #a " is " #b, __LINE__)

static struct berth_err ours;
static int failures;

static inline void need(bool good, const char *what, int line)
{
    if (!good) {
        printf("FAIL  line %d: %s\n", line, what);
        exit(1);
    }
}

static inline void need_cuda(cudaError_t status, const char *call, int line)
{
    if (status != cudaSuccess) {
        printf("FAIL  line %d: %s: %s\n", line, call, cudaGetErrorString(status));
        exit(1);
    }
}

static inline void need_ours(enum berth_code code, const char *call, int line)
{
    if (code != BERTH_OK) {
        printf("FAIL  line %d: %s: %s\n", line, call, ours.msg);
        exit(1);
    }
}

static inline void claim(bool good, const char *what)
{
    printf("%s  %s\n", good ? "PASS" : "FAIL", what);
    fflush(stdout);
    failures += good ? 0 : 1;
}

static inline double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static inline int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
