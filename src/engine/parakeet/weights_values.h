/* weights_values.h - numbers of a file's types as those of a back end, looked at on the way.
 *
 * Types: BF16, FP16 and FP32 become FP16 or FP32.   Memory: the caller's; aligned to its type.
 * Threads: any.
 */
#ifndef BERTH_WEIGHTS_VALUES_H
#define BERTH_WEIGHTS_VALUES_H

#include <stdbool.h>
#include <stddef.h>

#include "request/request.h"

enum berth_parakeet_values {
    BERTH_PARAKEET_VALUES_GOOD,
    BERTH_PARAKEET_VALUES_NO_NUMBER, /* one is infinite, or none; what was written is undefined */
    BERTH_PARAKEET_VALUES_LARGE      /* one is past what the type holds (half: 65504); likewise */
};

/* Whether all are finite. */
bool berth_parakeet_values_finite(const void *values, enum berth_dtype dtype, size_t count);
/* To the nearest, to the even one of two as near. from may be to where the types are the same. */
enum berth_parakeet_values berth_parakeet_values_take(const void *from, enum berth_dtype from_dtype,
                                                      void *to, enum berth_dtype to_dtype,
                                                      size_t count);
/* The same without the processor's instructions for it: their reference. */
enum berth_parakeet_values berth_parakeet_values_take_plain(const void *from,
                                                            enum berth_dtype from_dtype, void *to,
                                                            enum berth_dtype to_dtype,
                                                            size_t count);

#endif
