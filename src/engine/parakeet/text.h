/* text.h - tokens of a recording into text, words and segments.
 *
 * In: tokens with frame, duration and probability.   Out: UTF-8 text, words, segments with times.
 * Source of the pieces: tokenizer.json (BPE or Unigram with Metaspace), read once; hostile.
 */
#ifndef BERTH_TEXT_H
#define BERTH_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct berth_parakeet_pieces;

enum berth_code berth_parakeet_pieces_read(const char *folder, uint32_t vocabulary, uint32_t blank,
                                           struct berth_parakeet_pieces **out,
                                           struct berth_err *err) BERTH_MUST_USE;
void berth_parakeet_pieces_destroy(struct berth_parakeet_pieces *pieces); /* NULL is fine */
uint64_t berth_parakeet_pieces_bytes(const struct berth_parakeet_pieces *pieces);
/* Does the token begin a word: with a space before it, or in a script that has none? */
bool berth_parakeet_pieces_begins(const struct berth_parakeet_pieces *pieces, int32_t id);

/* A token of a recording; times in encoder frames of 80 ms from its start. */
struct berth_parakeet_token {
    int32_t id;
    int64_t frame;
    int32_t duration;
    float probability;
};

struct berth_parakeet_word {
    size_t text; /* offset in the transcript's text, with its leading space */
    size_t text_bytes;
    size_t token;      /* its first */
    double start, end; /* seconds */
    float confidence;  /* geometric mean of its tokens' probabilities */
    uint32_t segment;
};

struct berth_parakeet_segment {
    size_t text, text_bytes;
    double start, end;
    size_t token, token_count;
    float confidence; /* mean log probability of its tokens */
};

struct berth_parakeet_transcript {
    struct berth_buf text;
    struct berth_parakeet_word *words;
    size_t word_count;
    struct berth_parakeet_segment *segments;
    size_t segment_count;
};

/* What a recording, or the rest of it, says. */
struct berth_parakeet_heard {
    const struct berth_parakeet_token *tokens;
    size_t count;
    double seconds; /* of the recording: no time lies past it */
};

/* Words begin at a piece with a leading space, or in a script without spaces at each piece; every
 * token of a transcript with words belongs to one segment. A segment ends
 * at a sentence's end, at a pause of 1 s or more, and before 30 s. */
enum berth_code berth_parakeet_transcribe(const struct berth_parakeet_pieces *pieces,
                                          const struct berth_parakeet_heard *heard,
                                          struct berth_parakeet_transcript *out,
                                          struct berth_err *err) BERTH_MUST_USE;
void berth_parakeet_transcript_drop(struct berth_parakeet_transcript *transcript);

#endif
