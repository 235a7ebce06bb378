/* transcript.h - what a speech model said: segments and words, and the forms users ask for.
 *
 * A speech engine's parts carry tensors (src/engine/README.md, "Speech"); this turns them into
 * segments and writes text, json, verbose_json, srt and vtt.
 */
#ifndef BERTH_TRANSCRIPT_H
#define BERTH_TRANSCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "request/request.h"

struct berth_word {
    double start_s;
    double end_s;
    double probability;
    const char *text; /* with its leading space, if any */
};

struct berth_segment {
    double start_s;
    double end_s;
    const char *text;
    double avg_logprob;
    double compression_ratio;
    double no_speech_prob;
    double temperature;
    int32_t seek; /* the frame its window began with */
    const int32_t *tokens;
    size_t token_count;
    const struct berth_word *words;
    size_t word_count;
};

struct berth_transcript {
    const char *text; /* of the final part all there is, trimmed; of another what is new */
    const char *language; /* a code, as "en"; "" where it is not known */
    double seconds; /* of audio */
    const struct berth_segment *segments;
    size_t segment_count;
};

enum berth_transcript_format {
    BERTH_TRANSCRIPT_TEXT,
    BERTH_TRANSCRIPT_JSON,
    BERTH_TRANSCRIPT_VERBOSE_JSON,
    BERTH_TRANSCRIPT_SRT,
    BERTH_TRANSCRIPT_VTT
};

/* false: no such format. */
bool berth_transcript_format_parse(const char *name, enum berth_transcript_format *out);
const char *berth_transcript_content_type(enum berth_transcript_format format);

/* Reads a part's tensors; everything lives in arena, and texts are valid UTF-8 without NUL.
 * INTERNAL when they do not fit together. */
enum berth_code berth_transcript_read(const struct berth_part *part, struct berth_slabs *slabs,
                                      struct berth_arena *arena, struct berth_transcript *out,
                                      struct berth_err *err) BERTH_MUST_USE;

struct berth_transcript_style {
    enum berth_transcript_format format;
    bool segments;     /* verbose_json: timestamp_granularities */
    bool words;
    const char *task;  /* "transcribe" or "translate" */
};

/* In the words of OpenAI's API. JSON ends without a line end, the other forms with one. */
void berth_transcript_write(const struct berth_transcript *transcript,
                            const struct berth_transcript_style *style, struct berth_buf *out);

#endif
