/* api_options.h - what the routes work with: everything is borrowed for the API's life. */
#ifndef BERTH_API_OPTIONS_H
#define BERTH_API_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/slab.h"
#include "media/media.h"
#include "model/model.h"
#include "sched/sched.h"

struct berth_api_options {
    struct berth_catalog *catalog;
    struct berth_sched *sched;
    struct berth_media *media;
    struct berth_slabs *slabs;
    const char *keys_file;      /* NULL or "": no keys are asked for */
    bool typed_errors;          /* KServe: the honest status codes instead of Triton's */
    bool demand;                /* models load on their first request */
    uint64_t body_bytes_max;
    uint64_t json_bytes_max;    /* of a KServe body's JSON */
    double audio_seconds_max;
};

#endif
