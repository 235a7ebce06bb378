/* speech.h - what all speech engines share: their signature, a request's audio, their answers.
 *
 * README.md here, "Speech", lists inputs and outputs. An engine keeps what a recording says as a
 * list of segments; berth_speech_part makes the tensors of a part from it.
 */
#ifndef BERTH_SPEECH_H
#define BERTH_SPEECH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"
#include "request/request.h"

#define BERTH_SPEECH_RATE 16000

/* --- the model --- */

/* Checks the inputs that the config lists, and sets inputs and outputs. */
enum berth_code berth_speech_describe(struct berth_model_spec *spec,
                                      struct berth_err *err) BERTH_MUST_USE;
/* A parameter of the config that is a whole number, and the numbers it takes. */
struct berth_speech_range {
    const char *key;
    uint64_t min;
    uint64_t max;
};

/* *inout stays where the parameter is missing. */
enum berth_code berth_speech_parameter(const struct berth_model_spec *spec,
                                       const struct berth_speech_range *range, uint64_t *inout,
                                       struct berth_err *err) BERTH_MUST_USE;
/* Rows at a time: the parameter `slots`, else max_batch_size, else *inout; at most max. */
enum berth_code berth_speech_slots(const struct berth_model_spec *spec, uint32_t max,
                                   uint32_t *inout, struct berth_err *err) BERTH_MUST_USE;
/* Audio has no batch dimension: what max_batch_size said goes on as the parameter `slots`. Warns
 * where that is less. */
enum berth_code berth_speech_slots_keep(struct berth_model_spec *spec, uint32_t slot_count,
                                        struct berth_err *err) BERTH_MUST_USE;

/* --- a request --- */

struct berth_speech_audio {
    const void *samples; /* borrowed; floats, mono, 16 kHz; at any address, as clients send them */
    size_t count;
};

/* INVALID with the field where it is not one recording of FP32 samples. Values are not looked at.
 */
enum berth_code berth_speech_audio_read(const struct berth_request *request,
                                        struct berth_speech_audio *out,
                                        struct berth_err *err) BERTH_MUST_USE;

/* --- an answer --- */

struct berth_speech_word {
    const char *text; /* with its leading space */
    size_t text_length;
    double start_s;
    double end_s;
    double probability;
};

/* A segment that stands. All of it is borrowed until the part is made. */
struct berth_speech_said {
    struct berth_speech_said *next;
    double start_s;
    double end_s;
    const char *text;
    size_t text_length;
    double avg_logprob;
    double compression_ratio;
    double no_speech_prob;
    double temperature;
    size_t seek; /* 10 ms frame at which its window began */
    const int32_t *tokens;
    size_t token_count;
    struct berth_speech_word *words;
    size_t word_count;
};

struct berth_speech_answer {
    struct berth_request *request;
    const struct berth_speech_said *from; /* the segments from here on */
    bool first;                           /* none were sent before */
    bool final;                           /* from is the first of all */
    const char *language;
    double seconds;
};

/* The caller owns *out. */
enum berth_code berth_speech_part(const struct berth_speech_answer *answer,
                                  struct berth_part **out, struct berth_err *err) BERTH_MUST_USE;

/* Bytes of text by its zlib-compressed size; 0 for an empty text. */
double berth_speech_compression(const char *text, size_t length);

#endif
