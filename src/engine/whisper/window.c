/* window.c - segments between pairs of timestamps, and the tests of a decoded window.
 *
 * A window whose last timestamps form a pair goes on from there, so that a sentence that the window
 * cuts is heard whole in the next one. A pair at 0.00 would never move on: then the whole window
 * counts as done.
 */
#include "engine/whisper/window.h"


#include "base/mem.h"

#define COMPRESSION_MAX 2.4
#define LOGPROB_MIN (-1.0)
#define NO_SPEECH_MAX 0.6

static double time_of(const struct berth_whisper_config *config, int32_t token)
{
    return (double)(token - config->first_time) * BERTH_WINDOW_TIME_S;
}

double berth_window_temperature(uint32_t attempt)
{
    return (double)attempt * 2 / 10;
}

static void add_segment(struct berth_window_cut *out, const struct berth_window_segment *segment)
{
    if (out->segment_count < BERTH_WINDOW_SEGMENTS_MAX) {
        out->segments[out->segment_count++] = *segment;
    }
}

/* Cuts before each token that is a timestamp after a timestamp. Returns the end of the last whole
 * segment, 0 if there is none. */
static size_t split_pairs(const struct berth_whisper_config *config,
                          const struct berth_window *window, struct berth_window_cut *out)
{
    const int32_t *tokens = window->tokens;
    double offset_s = (double)window->seek * BERTH_WINDOW_FRAME_S;
    size_t last = 0;
    for (size_t i = 1; i <= window->token_count; i++) {
        bool pair = i < window->token_count && tokens[i] >= config->first_time &&
                    tokens[i - 1] >= config->first_time;
        bool end = i == window->token_count && last > 0 && out->ends_single;
        if (pair || end) {
            struct berth_window_segment segment = {
                .start_s = offset_s + time_of(config, tokens[last]),
                .end_s = offset_s + time_of(config, tokens[i - 1]),
                .first = last,
                .count = i - last};
            add_segment(out, &segment);
            last = i;
        }
    }
    return last;
}

void berth_window_split(const struct berth_whisper_config *config,
                        const struct berth_window *window, struct berth_window_cut *out)
{
    const int32_t *tokens = window->tokens;
    size_t count = window->token_count;
    double offset_s = (double)window->seek * BERTH_WINDOW_FRAME_S;
    out->segment_count = 0;
    out->seek_next = window->seek + window->size;
    out->ends_single = count >= 2 && tokens[count - 2] < config->first_time &&
                       tokens[count - 1] >= config->first_time;
    size_t last = split_pairs(config, window, out);
    if (last > 0) {
        if (!out->ends_single) {
            size_t frames = (size_t)(tokens[last - 1] - config->first_time) * 2;
            out->seek_next = window->seek + (frames > 0 ? frames : window->size);
        }
        return;
    }
    double length_s = (double)window->size * BERTH_WINDOW_FRAME_S;
    for (size_t i = count; i > 0; i--) {
        if (tokens[i - 1] >= config->first_time) {
            length_s = tokens[i - 1] > config->first_time ? time_of(config, tokens[i - 1])
                                                          : length_s;
            break;
        }
    }
    struct berth_window_segment whole = {
        .start_s = offset_s, .end_s = offset_s + length_s, .first = 0, .count = count};
    add_segment(out, &whole);
}

bool berth_window_is_silent(const struct berth_window_score *score)
{
    return score->no_speech_prob > NO_SPEECH_MAX && score->avg_logprob <= LOGPROB_MIN;
}

bool berth_window_is_repetitive(const struct berth_window_score *score)
{
    return score->compression_ratio > COMPRESSION_MAX;
}

bool berth_window_needs_retry(const struct berth_window_score *score)
{
    if (score->no_speech_prob > NO_SPEECH_MAX && score->avg_logprob < LOGPROB_MIN) {
        return false; /* silence */
    }
    return berth_window_is_repetitive(score) || score->avg_logprob < LOGPROB_MIN;
}
