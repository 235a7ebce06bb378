/* align.h - when each word of a window was said.
 *
 * The cross attention of the alignment heads, as the graph gives it for the window's text run once
 * more, becomes a path of tokens over frames (dynamic time warping); tokens are grouped into words;
 * then the corrections of faster-whisper for words that come out too long.
 * A word is a run of the window's text tokens: its text is their bytes.
 */
#ifndef BERTH_ALIGN_H
#define BERTH_ALIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/whisper/tokens.h"
#include "engine/whisper/window.h"

#define BERTH_ALIGN_TOKENS_MAX 448
#define BERTH_ALIGN_FRAMES_MAX 1500
#define BERTH_ALIGN_FRAME_S 0.02 /* a frame of the encoder's output */

struct berth_align; /* scratch; one thread at a time */

enum berth_code berth_align_create(struct berth_align **out, struct berth_err *err) BERTH_MUST_USE;
void berth_align_destroy(struct berth_align *align); /* NULL is fine */
uint64_t berth_align_bytes(const struct berth_align *align);

struct berth_align_scores {
    const float *const *chunks; /* each (heads, chunk_tokens or the rest, frames_stride), raw */
    size_t chunk_tokens;
    size_t heads;
    size_t tokens;        /* prompt, text and end: at most BERTH_ALIGN_TOKENS_MAX */
    size_t frames;        /* that hold audio, at most frames_stride */
    size_t frames_stride; /* at most BERTH_ALIGN_FRAMES_MAX */
    size_t first;         /* row that foretells the first text token */
};

/* Frame at which each of the tokens - first - 1 text tokens and the end begins, into starts
 * (tokens - first of them). */
void berth_align_path(struct berth_align *align, const struct berth_align_scores *scores,
                      uint32_t *starts);

struct berth_align_word {
    size_t first; /* of the text tokens */
    size_t count; /* 0: joined to a neighbour */
    double start_s; /* from the window's start */
    double end_s;
    double probability;
};

struct berth_align_text {
    const struct berth_tokens *tokens;
    const char *language;
    const int32_t *ids; /* text tokens only */
    size_t count;
    const double *probabilities; /* of each */
    const uint32_t *starts;      /* frames; count + 1 of them */
};

/* Groups tokens into words with their times, joins punctuation to them. Returns how many words
 * (at most text->count). */
size_t berth_align_words(const struct berth_align_text *text, struct berth_align_word *words,
                         double *median_s);

struct berth_align_span {
    double start_s; /* of a segment, from the file's start; corrected */
    double end_s;
    size_t text_count; /* its text tokens */
    size_t word_first; /* out: its words */
    size_t word_count;
};

struct berth_align_context {
    double offset_s; /* of the window */
    double median_s; /* from berth_align_words */
    double speech_end_s; /* of the window before; updated */
};

/* Deals the words out to segments, turns their times into the file's and corrects both. */
void berth_align_fit(struct berth_align_context *context, struct berth_align_word *words,
                     size_t word_count, struct berth_align_span *spans, size_t span_count);

#endif
