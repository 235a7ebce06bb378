/* whisper_row.h - one request while it is transcribed: what it asked for, where it is, what it
 * said.
 *
 * Everything between model calls: reading parameters, prompts, taking a token from logits, judging
 * a window, retrying at a higher temperature, segments, words, and parts of the answer. No call of
 * a model is made here, and nothing is shared with another row (E1).
 *
 * A row goes round: PEAK (long audio only: the loudest frame), then for each window ENCODE, PROMPT
 * where the prompt is long, DECODE, ALIGN where word times are wanted; then the next window, or
 * END.
 */
#ifndef BERTH_WHISPER_ROW_H
#define BERTH_WHISPER_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "engine/ort.h"
#include "engine/speech.h"
#include "engine/whisper/align.h"
#include "engine/whisper/mel.h"
#include "engine/whisper/tokens.h"
#include "engine/whisper/whisper_config.h"
#include "engine/whisper/window.h"
#include "request/request.h"

#define BERTH_WHISPER_TOKENS_MAX 448
#define BERTH_WHISPER_LANE_NONE UINT32_MAX
#define BERTH_WHISPER_CHUNK 64 /* tokens of one alignment call */
#define BERTH_WHISPER_CHUNKS (BERTH_WHISPER_TOKENS_MAX / BERTH_WHISPER_CHUNK)

enum berth_whisper_stage {
    BERTH_WHISPER_FREE,
    BERTH_WHISPER_PEAK,
    BERTH_WHISPER_ENCODE,
    BERTH_WHISPER_PROMPT,
    BERTH_WHISPER_DECODE,
    BERTH_WHISPER_ALIGN,
    BERTH_WHISPER_END
};

/* What rows need of their model; borrowed for their life. */
struct berth_whisper_base {
    const struct berth_whisper_config *config;
    const struct berth_tokens *tokens;
    bool align;        /* word times are possible */
    uint32_t step_max; /* longest prompt that is stepped with the other rows */
};

struct berth_whisper_wish {
    const char *language; /* code; "" until it is detected */
    int32_t language_id;  /* -1: to be detected, or the model needs none */
    bool translate;
    bool timestamps;
    bool words;
    double temperature;
};

/* One decoding of the window. */
struct berth_whisper_attempt {
    uint32_t index;
    double temperature;
    uint64_t random;
    int64_t feed[BERTH_WHISPER_TOKENS_MAX]; /* the prompt */
    uint32_t feed_count;
    uint32_t fed; /* tokens in the lane: of the prompt, then of those said */
    uint32_t sot_at;
    bool detect; /* the language is read from the first logits */
    int64_t next;
    int32_t tokens[BERTH_WHISPER_TOKENS_MAX];
    size_t token_count;
    size_t token_max;
    double logprob;
    double no_speech;
};

/* The best of the attempts that were not good enough. */
struct berth_whisper_kept {
    bool any;
    struct berth_window_score score;
    int32_t tokens[BERTH_WHISPER_TOKENS_MAX];
    size_t token_count;
};

struct berth_whisper_alignment {
    int64_t ids[BERTH_WHISPER_TOKENS_MAX]; /* prompt, text, end */
    uint32_t count;
    uint32_t first; /* row that foretells the first text token */
    uint32_t done;
    uint32_t chunk_count;
    struct berth_ort_value chunks[BERTH_WHISPER_CHUNKS]; /* align_scores */
    double probabilities[BERTH_WHISPER_TOKENS_MAX];      /* of the text tokens */
};

struct berth_whisper_row {
    enum berth_whisper_stage stage;
    const struct berth_whisper_base *base;
    struct berth_request *request; /* borrowed until its final event or drop */
    uint64_t ticket;               /* order of those who wait for the encoder */
    uint32_t lane;
    struct berth_arena arena;
    struct berth_speech_audio audio;
    struct berth_whisper_wish wish;
    int32_t *context; /* tokens of the request's prompt; NULL once a window stands */
    size_t context_count;
    size_t content; /* frames */
    size_t peak_done;
    float peak;
    size_t seek;
    size_t size;
    double speech_end_s;
    struct berth_whisper_attempt attempt;
    struct berth_whisper_kept kept;
    struct berth_window_score score;
    struct berth_window_cut cut;
    struct berth_whisper_alignment alignment;
    struct berth_speech_said *said; /* list; all of it lives in the arena */
    struct berth_speech_said *said_last;
    struct berth_speech_said *unsent;
};

/* Reads the request. INVALID or UNSUPPORTED with the field; then there is nothing to finish. */
enum berth_code berth_whisper_row_init(struct berth_whisper_row *row,
                                       const struct berth_whisper_base *base,
                                       struct berth_request *request,
                                       struct berth_err *err) BERTH_MUST_USE;
void berth_whisper_row_finish(struct berth_whisper_row *row); /* stage FREE; zeroed is fine */

/* The window is encoded: starts decoding it (stage PROMPT or DECODE). */
void berth_whisper_row_begin(struct berth_whisper_row *row);
/* Takes the logits (vocab) of the token fed last (attempt.fed counts it); they are overwritten.
 * Afterwards the stage is DECODE (attempt.next is to be fed behind attempt.fed tokens), PROMPT (the
 * whole prompt is to be run), ALIGN, ENCODE (the next window) or END. */
enum berth_code berth_whisper_row_take(struct berth_whisper_row *row, float *logits,
                                       struct berth_err *err) BERTH_MUST_USE;
/* The same for the start token's logits of a prompt that was run as a whole. */
void berth_whisper_row_take_start(struct berth_whisper_row *row, const float *logits);
/* Takes a piece of the alignment run: its scores, which become the row's, and reads its logits. */
enum berth_code berth_whisper_row_align(struct berth_whisper_row *row, struct berth_align *align,
                                        const struct berth_ort_value *logits,
                                        struct berth_ort_value *scores,
                                        struct berth_err *err) BERTH_MUST_USE;
/* whisper_wish.c - what the request asks for, into the row; nothing of it is checked elsewhere. */
enum berth_code berth_whisper_row_read(struct berth_whisper_row *row,
                                       struct berth_err *err) BERTH_MUST_USE;

/* whisper_result.c - Anything new since the last part? */
bool berth_whisper_row_has_news(const struct berth_whisper_row *row);
/* A part with what is new, or the final one with everything. The caller owns it. */
enum berth_code berth_whisper_row_part(struct berth_whisper_row *row, bool final,
                                       struct berth_part **out, struct berth_err *err)
    BERTH_MUST_USE;

#endif
