/* graphs_forms.h - the seam between graphs.c and the two forms of files; nobody else includes it.
 */
#ifndef BERTH_GRAPHS_FORMS_H
#define BERTH_GRAPHS_FORMS_H

#include "engine/whisper/graphs.h"

#define BERTH_GRAPHS_PIECES_MAX 64
#define BERTH_GRAPHS_CACHES_MAX 240 /* of one kind, in one decoder */
#define BERTH_GRAPHS_NAME_MAX 96

/* Every slot is required. */
struct berth_graphs_form {
    bool batch;
    /* Opens the sessions and checks their signatures; on error close tidies up. */
    enum berth_code (*open)(struct berth_graphs *graphs, const char *folder,
                            struct berth_err *err);
    enum berth_code (*lanes_init)(struct berth_lanes *lanes, struct berth_err *err);
    void (*lanes_finish)(struct berth_lanes *lanes);
    enum berth_code (*encode)(struct berth_lanes *lanes, const struct berth_encode *encode,
                              struct berth_err *err);
    enum berth_code (*decode)(struct berth_lanes *lanes, const struct berth_decode *decode,
                              struct berth_err *err);
    enum berth_code (*realign)(struct berth_lanes *lanes, struct berth_realign *realign,
                               struct berth_err *err);
    void (*move)(struct berth_lanes *lanes, uint32_t from, uint32_t to);
    void (*release)(struct berth_lanes *lanes, uint32_t lane);
};

extern const struct berth_graphs_form berth_graphs_own;
extern const struct berth_graphs_form berth_graphs_common;

/* One cached tensor: an input that a call reads and an output that it writes. */
struct berth_graphs_cache {
    char input[BERTH_GRAPHS_NAME_MAX];
    char output[BERTH_GRAPHS_NAME_MAX];
    enum berth_dtype dtype;
    uint8_t rank;
    int64_t dims[BERTH_RANK_MAX]; /* dims[0] is the row */
    size_t row_bytes;             /* own form */
    bool cross;                   /* from the encoder's output: fixed for a window */
};

struct berth_graphs {
    const struct berth_graphs_form *form;
    const struct berth_whisper_config *config; /* borrowed */
    struct berth_ort_meter *meter;             /* borrowed */
    struct berth_ort_session *encoder[BERTH_GRAPHS_PIECES_MAX];
    uint32_t piece_count;
    struct berth_ort_session *first;   /* common form: the call without caches */
    struct berth_ort_session *decoder; /* the call with them; the same session when merged */
    struct berth_graphs_cache caches[BERTH_GRAPHS_CACHES_MAX];
    size_t cache_count;
    bool align;
};

struct berth_lanes {
    struct berth_graphs *graphs; /* borrowed */
    uint32_t count;
    uint64_t bytes;
    int32_t *lengths;
    int32_t *lengths_realign;       /* one */
    void *memory[BERTH_GRAPHS_CACHES_MAX]; /* own form: (count, ...); of past caches one more */
    float *hidden[2];               /* own form: between pieces; common: [0] is (count, ...) */
    struct berth_ort_value *values; /* common form: (count, cache_count) */
    struct berth_ort_value *inputs; /* arrays for one run */
    struct berth_ort_value *outputs;
};

/* <folder>/<name> into path; false when it does not fit or there is no such file. */
bool berth_graphs_path(const char *folder, const char *name, char *path, size_t bytes);
/* berth_alloc, counted in lanes->bytes. */
void *berth_graphs_take(struct berth_lanes *lanes, size_t bytes) BERTH_MUST_USE;

#endif
