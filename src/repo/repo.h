/* repo.h - a model repository in Triton's layout: folders in, model specs out.
 *
 *     <repository>/<model>/config.pbtxt            optional where the engine can complete it
 *     <repository>/<model>/<version>/...           version: a number >= 1
 *
 * Disk is read on the repository's own thread, so that neither the controller nor a connection ever
 * waits for it; results come back as posts. A model with a mistake becomes an error with its name,
 * line and column, and the rest are served.
 */
#ifndef BERTH_REPO_H
#define BERTH_REPO_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/queue.h"
#include "model/model.h"

/* One version of a model as found; spec NULL: it could not be read, and err says why. */
struct berth_repo_found {
    char *name; /* owned by the job */
    uint64_t version;
    struct berth_model_spec *spec; /* owned by the job until taken (set to NULL) */
    struct berth_err err;
};

enum berth_repo_kind { BERTH_REPO_SCAN, BERTH_REPO_READ };

struct berth_repo_job {
    struct berth_post post; /* comes back on `reply`; the sender sets deliver */
    struct berth_queue *reply;
    enum berth_repo_kind kind;
    const char *name;        /* READ: one model; borrows until the job is back */
    const char *config_json; /* config that replaces the file's (load API's override), or NULL */
    /* Results. */
    struct berth_err err;    /* of the whole job: no such model, unreadable folder */
    struct berth_repo_found *found;
    size_t found_count;
};

struct berth_repo;

/* path must be a readable folder. */
enum berth_code berth_repo_open(const char *path, struct berth_repo **out,
                                struct berth_err *err) BERTH_MUST_USE;
/* NULL is fine; jobs under way are finished first. */
void berth_repo_close(struct berth_repo *repo);
const char *berth_repo_path(const struct berth_repo *repo); /* as long as it is open */
void berth_repo_submit(struct berth_repo *repo, struct berth_repo_job *job); /* lends job */
void berth_repo_job_finish(struct berth_repo_job *job); /* frees the results */
/* The same at once, on the caller's thread (command line, tests). */
void berth_repo_run(struct berth_repo *repo, struct berth_repo_job *job);
/* A model name is 1..255 bytes of printable UTF-8 without '/', '\\' and control bytes, and has no
 * leading dot. INVALID otherwise. */
enum berth_code berth_repo_check_name(const char *name, size_t length, struct berth_err *err)
    BERTH_MUST_USE;

#endif
