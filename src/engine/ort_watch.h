/* ort_watch.h - ends a run of ONNX Runtime when nobody waits for any of it any more (E4).
 *
 * Threads: begin and end on the thread that runs; one thread of ours looks at the flags every 20 ms
 *          while anything runs, and sleeps without a timer otherwise.
 */
#ifndef BERTH_ORT_WATCH_H
#define BERTH_ORT_WATCH_H

#include <stdbool.h>

#include <onnxruntime_c_api.h>

#include "base/queue.h"
#include "engine/ort.h"

/* On the stack of the thread that runs. */
struct berth_ort_watch {
    struct berth_link link;
    const struct berth_ort_stop *stop; /* borrows until end */
    OrtRunOptions *options;            /* borrows until end */
    bool ended;                        /* it was told to end */
};

enum berth_code berth_ort_watch_start(const OrtApi *api, struct berth_err *err) BERTH_MUST_USE;
void berth_ort_watch_finish(void); /* no run under way */
void berth_ort_watch_begin(struct berth_ort_watch *watch);
void berth_ort_watch_end(struct berth_ort_watch *watch); /* `ended` is final after it */
/* Is every flag set (and is there one)? */
bool berth_ort_stop_due(const struct berth_ort_stop *stop);

#endif
