/* model_config.h - from a config's text to a spec: config.pbtxt, or the load API's JSON.
 *
 * In:      text and a spec with name, folder and arena.  Out: the spec filled in as far as the
 *          config says; the engine's describe completes it.
 * Threads: any.
 */
#ifndef BERTH_MODEL_CONFIG_H
#define BERTH_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"

#define BERTH_VERSIONS_MAX 256

/* Which versions are served. Arrays live in the spec's arena. */
struct berth_version_policy {
    enum { BERTH_VERSIONS_LATEST, BERTH_VERSIONS_ALL, BERTH_VERSIONS_SPECIFIC } kind;
    uint64_t latest_count; /* LATEST */
    uint64_t *specific;    /* SPECIFIC */
    size_t specific_count;
};

struct berth_model_config {
    const char *text; /* NULL: there is none; everything is left to describe */
    size_t length;
    const char *label; /* its place, for errors and warnings */
    bool json;
    bool quiet; /* no warnings: they were given before */
    bool *warned; /* set to true with a warning; NULL: nobody asks */
};

/* INVALID with "label:line:column: text"; UNSUPPORTED where a scheduler is asked for that is not
 * there yet. */
enum berth_code berth_model_config_read(const struct berth_model_config *config,
                                        struct berth_model_spec *spec,
                                        struct berth_version_policy *policy,
                                        struct berth_err *err) BERTH_MUST_USE;
/* The engine that a backend or platform stands for; an unknown one stands for itself, so that the
 * load says that this build has no such engine. "" when both are empty. */
const char *berth_model_config_engine(const char *backend, const char *platform);

#endif
