/* graphs.h - Whisper's ONNX graphs: encoder and decoder calls over lanes of cached state.
 *
 * Two forms of files. berth's own (encoder_0.onnx.., decoder.onnx): the encoder in pieces so that
 * no call is long, and a decoder whose rows have lengths of their own and write their caches in
 * place, so that rows of any age share a call. The common export (encoder_model.onnx with
 * decoder_model_merged.onnx, or decoder_model.onnx and decoder_with_past_model.onnx, in the folder
 * or its onnx/): its caches grow by concatenation and rows would have to be equally long, so there
 * each row is stepped alone; correct, and slower.
 *
 * A lane is the place of one row: what the encoder made of its window, its decoder caches and their
 * length. Threads: graphs are shared; lanes belong to one instance.
 */
#ifndef BERTH_GRAPHS_H
#define BERTH_GRAPHS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/ort.h"
#include "engine/whisper/whisper_config.h"

struct berth_graphs;
struct berth_lanes;

/* Bytes of the graph files in a folder; UNSUPPORTED when it holds neither form. Opens none. */
enum berth_code berth_graphs_find(const char *folder, uint64_t *bytes, struct berth_err *err)
    BERTH_MUST_USE;
/* config and meter are borrowed until close. */
enum berth_code berth_graphs_open(const char *folder, const struct berth_whisper_config *config,
                                  struct berth_ort_meter *meter, struct berth_graphs **out,
                                  struct berth_err *err) BERTH_MUST_USE;
void berth_graphs_close(struct berth_graphs *graphs); /* NULL is fine */
uint32_t berth_graphs_pieces(const struct berth_graphs *graphs); /* calls of one encoding */
bool berth_graphs_batch(const struct berth_graphs *graphs);      /* may rows share a call? */
bool berth_graphs_align(const struct berth_graphs *graphs);      /* can they say where words are? */

enum berth_code berth_lanes_create(struct berth_graphs *graphs, uint32_t count,
                                   struct berth_lanes **out, struct berth_err *err) BERTH_MUST_USE;
void berth_lanes_destroy(struct berth_lanes *lanes); /* NULL is fine */
uint64_t berth_lanes_bytes(const struct berth_lanes *lanes);
/* Tokens in each lane's cache, by lane; the caller keeps them: set to 0 before a new sequence,
 * raised after a decode call by those lanes whose step counts. */
int32_t *berth_lanes_lengths(struct berth_lanes *lanes);

struct berth_encode {
    uint32_t piece;      /* 0, 1.. in order; one window at a time */
    const float *window; /* (bins, 3000), for piece 0 */
    uint32_t lane;       /* for the last piece: where the result goes */
    const atomic_bool *cancelled;
};

enum berth_code berth_lanes_encode(struct berth_lanes *lanes, const struct berth_encode *encode,
                                   struct berth_err *err) BERTH_MUST_USE;

struct berth_decode {
    uint32_t lane; /* the first of the neighbouring lanes that are run */
    uint32_t rows; /* how many; 1 where rows cannot share a call, or steps > 1 */
    uint32_t steps;
    const int64_t *ids;    /* (rows, steps) */
    const int64_t *wanted; /* flat indices of the tokens whose logits are wanted */
    size_t wanted_count;
    float *logits; /* out (wanted_count, vocab) */
};

enum berth_code berth_lanes_decode(struct berth_lanes *lanes, const struct berth_decode *decode,
                                   struct berth_err *err) BERTH_MUST_USE;

/* A part of a window's text run again over its lane's encoding, in caches of its own. */
struct berth_realign {
    uint32_t lane;
    uint32_t length; /* tokens of this text that were run before */
    uint32_t steps;
    const int64_t *ids;             /* (steps) */
    struct berth_ort_value logits;  /* out (steps, vocab); cleared by the caller */
    struct berth_ort_value scores;  /* out (1, heads, steps, frames); cleared by the caller */
};

enum berth_code berth_lanes_realign(struct berth_lanes *lanes, struct berth_realign *realign,
                                    struct berth_err *err) BERTH_MUST_USE;
/* Moves a lane's state to another, free one. */
void berth_lanes_move(struct berth_lanes *lanes, uint32_t from, uint32_t to);
/* Lets go what a free lane need not keep. */
void berth_lanes_release(struct berth_lanes *lanes, uint32_t lane);

#endif
