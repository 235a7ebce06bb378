/* gpu_targets.c - see gpu_targets.h. */
#include "engine/cuda/gpu_targets.h"

#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 1000

struct target {
    int capability;
    bool alone; /* on no later one of the same major number */
};

static bool next_target(const char **at, struct target *out);

bool berth_gpu_targets_suit(const char *targets, int capability)
{
    bool suits = false;
    struct target target;
    while (next_target(&targets, &target)) {
        suits = suits || target.capability == capability ||
                (!target.alone && target.capability / 10 == capability / 10 &&
                 target.capability <= capability);
    }
    return suits;
}

void berth_gpu_targets_print(const char *targets, struct berth_buf *out)
{
    int before = 0;
    struct target target;
    while (next_target(&targets, &target)) {
        if (target.capability != before) { /* 90 and 90a */
            berth_buf_printf(out, "%s%d.%d", before == 0 ? "" : ", ", target.capability / 10,
                             target.capability % 10);
        }
        before = target.capability;
    }
    if (before == 0) {
        berth_buf_puts(out, "none");
    }
}

/* The next one of the list that is a target; false: there is none. */
static bool next_target(const char **at, struct target *out)
{
    while (**at != '\0') {
        char *end = NULL;
        const long number = strtol(*at, &end, 10);
        const size_t length = strcspn(*at, ",");
        const size_t letters = length - (size_t)(end - *at);
        *out = (struct target){(int)number, letters == 1 && *end == 'a'};
        *at += length;
        *at += **at == ',';
        if (number > 0 && number < NUMBER_MAX && (letters == 0 || out->alone)) {
            return true;
        }
    }
    return false;
}
