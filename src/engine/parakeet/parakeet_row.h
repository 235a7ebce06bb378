/* parakeet_row.h - one request while it is transcribed: what it asked for, its windows, what it
 * said.
 *
 * Everything between runs of the model; nothing here is shared with another row (E1). Windows are
 * taken one after the other, any number may be in flight, and their tokens come back in that order.
 */
#ifndef BERTH_PARAKEET_ROW_H
#define BERTH_PARAKEET_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "engine/parakeet/backend.h"
#include "engine/parakeet/text.h"
#include "engine/parakeet/windows.h"
#include "engine/speech.h"

/* What rows need of their model; borrowed for their life. */
struct berth_parakeet_base {
    const struct berth_parakeet_pieces *pieces;
    const char *languages; /* codes with commas between; one: the model's only one */
    size_t window_samples; /* the longest window */
};

struct berth_parakeet_row {
    bool live;
    const struct berth_parakeet_base *base;
    struct berth_request *request; /* borrowed until its final event or drop */
    uint64_t ticket;               /* order of those who wait for a run */
    struct berth_arena arena;
    struct berth_speech_audio audio;
    const char *language; /* "": the model does not say */
    bool words;
    bool planned; /* next is to be heard; else it is looked for from there */
    struct berth_parakeet_window next;
    uint32_t in_flight;
    size_t heard_end; /* sample at which the last window with tokens ended */
    struct berth_parakeet_token *tokens;
    int32_t *seeks; /* by token: the 10 ms frame its window began at */
    size_t token_count;
    size_t token_capacity;
    size_t committed; /* tokens whose segments stand */
    struct berth_speech_said *said; /* list; all of it lives in the arena */
    struct berth_speech_said *said_last;
    struct berth_speech_said *unsent;
};

/* Reads the request. INVALID or UNSUPPORTED with the field; then there is nothing to finish. */
enum berth_code berth_parakeet_row_init(struct berth_parakeet_row *row,
                                        const struct berth_parakeet_base *base,
                                        struct berth_request *request,
                                        struct berth_err *err) BERTH_MUST_USE;
void berth_parakeet_row_finish(struct berth_parakeet_row *row); /* zeroed is fine */

/* Looks for the next window that is not silent, for a few of them at most: afterwards row->planned,
 * or it is to be called again, or there is none. */
void berth_parakeet_row_plan(struct berth_parakeet_row *row);
/* Nothing left to hear, and all that was heard has come back. */
bool berth_parakeet_row_ended(const struct berth_parakeet_row *row);
/* row->next is in flight now. */
void berth_parakeet_row_take(struct berth_parakeet_row *row);

/* The tokens of a window that was taken, row `index` of a run's. */
enum berth_code berth_parakeet_row_add(struct berth_parakeet_row *row,
                                       const struct berth_parakeet_window *window,
                                       const struct berth_parakeet_tokens *tokens, uint32_t index,
                                       struct berth_err *err) BERTH_MUST_USE;

/* After the last window (berth_parakeet_row_ended): what is left becomes segments. */
enum berth_code berth_parakeet_row_end(struct berth_parakeet_row *row,
                                       struct berth_err *err) BERTH_MUST_USE;

/* A part with what is new, or the final one with everything. The caller owns it. */
enum berth_code berth_parakeet_row_part(struct berth_parakeet_row *row, bool final,
                                        struct berth_part **out,
                                        struct berth_err *err) BERTH_MUST_USE;

#endif
