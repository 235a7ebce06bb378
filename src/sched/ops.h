/* ops.h - admin operations under way: records shared by ops.c and scan.c. */
#ifndef BERTH_OPS_H
#define BERTH_OPS_H

#include "sched/controller.h"

/* Something somebody asked for (admin), or the controller itself (start, poll: admin NULL). */
struct berth_op {
    struct berth_sched *sched;
    struct berth_link link;        /* sched->ops */
    struct berth_admin *admin;     /* NULL: the controller's own */
    enum berth_admin_kind kind;
    bool at_start;                 /* the scan that begins everything (S17) */
    bool has_override;
    struct berth_repo_job job;
    bool job_out;                  /* the repository has it */
    struct berth_worker_msg *describes; /* owned; one for each found spec */
    size_t describing;             /* of those, how many are out */
    size_t waiting;                /* runtimes it waits for */
    struct berth_timer timer;      /* DRAIN */
    struct berth_err err;          /* the first */
};

/* One op waits for one runtime: until its load has ended, or (UNLOAD) until it is empty. */
struct berth_op_wait {
    struct berth_link link; /* runtime->waits */
    struct berth_op *op;
};

void berth_op_fail(struct berth_op *op, const struct berth_err *err); /* keeps the first */
void berth_op_wait(struct berth_op *op, struct berth_runtime *runtime);
void berth_op_check(struct berth_op *op); /* ends it when it waits for nothing; may free it */
/* Loads spec (takes it) and waits for that. */
void berth_op_load(struct berth_op *op, struct berth_runtime *runtime,
                   struct berth_model_spec *spec);

/* scan.c - what a look at the repository changes. */
void berth_scan_start(struct berth_op *op); /* sends op->job */

#endif
