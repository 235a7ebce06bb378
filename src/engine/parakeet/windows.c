/* windows.c - pauses by energy, seams by tokens.
 *
 * A pause is a quarter of a second or more of 10 ms blocks that are each 20 dB below the window's
 * mean: clean speech has one nearly everywhere, noise and music have none, and then the overlap
 * serves. Of several the longest is taken, but a second is long enough: among those the last.
 *
 * What is below -80 dB of full scale at the ends of a window of several is left out, but for 240 ms
 * at its end: it says nothing, and would move the means that features are normalised with. A
 * recording of one window is heard as it is.
 */
#include "engine/parakeet/windows.h"

#include <math.h>
#include <string.h>

#define BLOCK 160U           /* samples: 10 ms */
#define PAUSE_BLOCKS_MIN 25U /* 250 ms */
#define PAUSE_BLOCKS_ENOUGH 100U
#define QUIET 0.01        /* of the mean power */
#define SILENCE 1e-4F     /* -80 dB of full scale */
#define TAIL_SAMPLES 3840 /* 240 ms of the silence after a sound: its last syllable needs them */
#define SAMPLE_MAX 1e6F   /* past it a sample counts as 0, as the features have it */
#define RUN_TOKENS_MAX 256U
#define RUN_MIN 2U
#define RUN_DISTANCE 4    /* frames two windows may be apart about a token */
#define EDGE 6            /* frames at an overlap's ends where a window does not hear well */
#define CLEAR 6           /* frames from a word's start that are far enough */

static float sample_at(const struct berth_speech_audio *audio, size_t at);
static size_t silent_frames(const struct berth_speech_audio *audio, size_t start, size_t most);
static double block_power(const struct berth_speech_audio *audio, size_t at);
static size_t find_pause(const struct berth_speech_audio *audio, size_t start, size_t count,
                         double mean);
static bool join_at_run(const struct berth_parakeet_seam *seam, size_t left_first,
                        size_t *left_keep, size_t *right_skip);
static void join_at_word(const struct berth_parakeet_pieces *pieces,
                         const struct berth_parakeet_seam *seam, size_t *left_keep,
                         size_t *right_skip);

void berth_parakeet_window_find(const struct berth_speech_audio *audio, size_t start,
                                size_t samples_max, struct berth_parakeet_window *out)
{
    const bool whole = start == 0 && audio->count <= samples_max;
    size_t silent = whole ? 0 : silent_frames(audio, start, samples_max);
    size_t left = audio->count - start - silent;
    size_t count = left < samples_max ? left : samples_max;
    *out = (struct berth_parakeet_window){.start = start + silent, .next = audio->count};
    if (silent > 0 && (left == 0 || silent >= samples_max)) {
        *out = (struct berth_parakeet_window){
            .start = start, .count = silent, .next = start + silent, .silent = true};
        return;
    }
    double power = 0;
    float peak = 0;
    for (size_t i = 0; i < count && (left > samples_max || peak < SILENCE); i++) {
        float sample = fabsf(sample_at(audio, out->start + i));
        peak = sample > peak ? sample : peak;
        power += (double)sample * sample; /* only asked for when there is more */
    }
    out->silent = peak < SILENCE;
    if (left > samples_max) {
        size_t cut = find_pause(audio, out->start, count, power / (double)count);
        size_t overlap = BERTH_PARAKEET_OVERLAP_S * BERTH_SPEECH_RATE;
        overlap = overlap < samples_max / 4 ? overlap : samples_max / 4;
        overlap -= overlap % BERTH_PARAKEET_FRAME_SAMPLES;
        count = cut > 0 ? cut : count;
        out->next = out->start + count - (cut > 0 ? 0 : overlap);
    }
    size_t heard = count;
    while (!whole && !out->silent && fabsf(sample_at(audio, out->start + heard - 1)) < SILENCE) {
        heard--;
    }
    out->count = count - heard < TAIL_SAMPLES ? count : heard + TAIL_SAMPLES;
}

void berth_parakeet_seam_join(const struct berth_parakeet_pieces *pieces,
                              const struct berth_parakeet_seam *seam, size_t *left_keep,
                              size_t *right_skip)
{
    size_t left_first = seam->left_count;
    while (left_first > 0 && seam->left[left_first - 1].frame >= seam->begin) {
        left_first--;
    }
    if (!join_at_run(seam, left_first, left_keep, right_skip)) {
        join_at_word(pieces, seam, left_keep, right_skip);
    }
}

/* --- pauses --- */

static float sample_at(const struct berth_speech_audio *audio, size_t at)
{
    float sample;
    memcpy(&sample, (const unsigned char *)audio->samples + at * sizeof(sample), sizeof(sample));
    return fabsf(sample) <= SAMPLE_MAX ? sample : 0;
}

/* Samples of the whole frames from there on, or all up to the end, that hold nothing: `most` at
 * most, and a frame. */
static size_t silent_frames(const struct berth_speech_audio *audio, size_t start, size_t most)
{
    size_t at = start;
    while (at < audio->count && at - start < most) {
        size_t end = at + BERTH_PARAKEET_FRAME_SAMPLES;
        end = end < audio->count ? end : audio->count;
        for (size_t i = at; i < end; i++) {
            if (fabsf(sample_at(audio, i)) >= SILENCE) {
                return at - start;
            }
        }
        at = end;
    }
    return at - start;
}

static double block_power(const struct berth_speech_audio *audio, size_t at)
{
    double power = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        float sample = sample_at(audio, at + i);
        power += (double)sample * sample;
    }
    return power / BLOCK;
}

/* Where the window is cut, from its start: the middle of a pause; 0: there is none. */
static size_t find_pause(const struct berth_speech_audio *audio, size_t start, size_t count,
                         double mean)
{
    size_t best = 0;
    size_t best_blocks = PAUSE_BLOCKS_MIN;
    size_t blocks = 0; /* of the pause that is going on */
    for (size_t at = count / 2 / BLOCK * BLOCK; at + BLOCK <= count; at += BLOCK) {
        if (block_power(audio, start + at) >= mean * QUIET) {
            blocks = 0;
            continue;
        }
        blocks++;
        size_t length = blocks < PAUSE_BLOCKS_ENOUGH ? blocks : PAUSE_BLOCKS_ENOUGH;
        if (length >= best_blocks) {
            best_blocks = length;
            best = at + BLOCK - blocks * BLOCK / 2;
        }
    }
    return best - best % BERTH_PARAKEET_FRAME_SAMPLES;
}

/* --- seams --- */

/* In the middle of the longest common run; of several the one nearest to the overlap's middle. */
static bool join_at_run(const struct berth_parakeet_seam *seam, size_t left_first,
                        size_t *left_keep, size_t *right_skip)
{
    uint16_t runs[RUN_TOKENS_MAX + 1] = {0}; /* by right token + 1: the run that ends there */
    const int64_t middle = (seam->begin + seam->end) / 2;
    size_t best = RUN_MIN - 1;
    int64_t best_distance = 0;
    size_t right_count = seam->right_count;
    while (right_count > 0 && seam->right[right_count - 1].frame >= seam->end) {
        right_count--;
    }
    right_count = right_count < RUN_TOKENS_MAX ? right_count : RUN_TOKENS_MAX;
    for (size_t i = left_first; i < seam->left_count; i++) {
        const struct berth_parakeet_token *left = &seam->left[i];
        for (size_t j = right_count; j > 0; j--) { /* backwards: runs[j - 1] is the last row's */
            const struct berth_parakeet_token *right = &seam->right[j - 1];
            int64_t apart = left->frame - right->frame;
            bool same = left->id == right->id && apart <= RUN_DISTANCE && apart >= -RUN_DISTANCE;
            runs[j] = same ? (uint16_t)(runs[j - 1] + 1) : 0;
            size_t half = runs[j] / 2U;
            int64_t distance = middle - seam->left[i - (runs[j] > 0 ? half : 0)].frame;
            distance = distance < 0 ? -distance : distance;
            bool nearer = runs[j] == best && best >= RUN_MIN && distance < best_distance;
            if (runs[j] > best || nearer) {
                best = runs[j];
                best_distance = distance;
                *left_keep = i + 1 - half;
                *right_skip = j - half;
            }
        }
    }
    return best >= RUN_MIN;
}

static int64_t distance_to_words(const struct berth_parakeet_pieces *pieces,
                                 const struct berth_parakeet_token *tokens, size_t count,
                                 int64_t frame)
{
    int64_t nearest = CLEAR;
    for (size_t i = 0; i < count; i++) {
        int64_t distance = tokens[i].frame > frame ? tokens[i].frame - frame
                                                   : frame - tokens[i].frame;
        if (distance < nearest && berth_parakeet_pieces_begins(pieces, tokens[i].id)) {
            nearest = distance;
        }
    }
    return nearest;
}

static size_t first_word_from(const struct berth_parakeet_pieces *pieces,
                              const struct berth_parakeet_token *tokens, size_t count,
                              int64_t frame)
{
    size_t at = 0;
    while (at < count && (tokens[at].frame < frame ||
                          !berth_parakeet_pieces_begins(pieces, tokens[at].id))) {
        at++;
    }
    return at;
}

/* At the frame of the overlap, near its middle, that is farthest from any word's start: left's
 * words that begin before it stay, right's that begin later follow. */
static void join_at_word(const struct berth_parakeet_pieces *pieces,
                         const struct berth_parakeet_seam *seam, size_t *left_keep,
                         size_t *right_skip)
{
    const int64_t middle = (seam->begin + seam->end) / 2;
    int64_t best = middle;
    int64_t best_score = INT64_MIN;
    size_t tail = seam->left_count < RUN_TOKENS_MAX ? seam->left_count : RUN_TOKENS_MAX;
    size_t start = seam->right_count < RUN_TOKENS_MAX ? seam->right_count : RUN_TOKENS_MAX;
    for (int64_t frame = seam->begin + EDGE; frame <= seam->end - EDGE; frame++) {
        int64_t left = distance_to_words(pieces, seam->left + seam->left_count - tail, tail, frame);
        int64_t right = distance_to_words(pieces, seam->right, start, frame);
        int64_t away = frame > middle ? frame - middle : middle - frame;
        int64_t score = 4 * (left < right ? left : right) - away;
        if (score > best_score) {
            best_score = score;
            best = frame;
        }
    }
    *left_keep = first_word_from(pieces, seam->left, seam->left_count, best);
    *right_skip = first_word_from(pieces, seam->right, seam->right_count, best);
    if (*right_skip == seam->right_count) { /* right has no word there: what left did not hear */
        *left_keep = seam->left_count;
        *right_skip = 0;
        while (*right_skip < seam->right_count && seam->right[*right_skip].frame < seam->end) {
            (*right_skip)++;
        }
    }
}
