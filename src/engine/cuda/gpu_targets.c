/* gpu_targets.c - see gpu_targets.h. */
#include "engine/cuda/gpu_targets.h"

#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 1000

bool berth_gpu_targets_suit(const char *targets, int capability)
{
    bool suits = false;
    for (const char *at = targets; *at != '\0';) {
        char *end = NULL;
        const long number = strtol(at, &end, 10);
        const size_t length = strcspn(at, ",");
        const size_t letters = length - (size_t)(end - at);
        const bool alone = letters == 1 && *end == 'a';
        if (number > 0 && number < NUMBER_MAX && (letters == 0 || alone)) {
            const int target = (int)number;
            suits = suits || target == capability ||
                    (!alone && target / 10 == capability / 10 && target <= capability);
        }
        at += length;
        at += *at == ',' ? 1 : 0;
    }
    return suits;
}
