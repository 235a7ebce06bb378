/* Where recordings are cut, and how two windows' tokens are joined. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/parakeet/windows.h"
#include "parakeet_golden.h"

#define RATE 16000
#define WINDOW (32 * RATE)

/* --- windows --- */

/* Noise-like sound at `level`, but for the pauses. */
static float *make_sound(double seconds, double level, const double (*pauses)[2], size_t count)
{
    size_t samples = (size_t)(seconds * RATE);
    float *sound = berth_alloc((samples + 1) * sizeof(*sound));
    uint32_t random = 1;
    assert_non_null(sound);
    for (size_t i = 0; i < samples; i++) {
        random = random * 1664525U + 1013904223U;
        bool quiet = false;
        for (size_t p = 0; p < count; p++) {
            double at = (double)i / RATE;
            quiet = quiet || (at >= pauses[p][0] && at < pauses[p][1]);
        }
        sound[i] = (float)((quiet ? 0.02 : 1.0) * level * ((double)(random >> 8) / 8388608 - 1));
    }
    return sound;
}

struct cut_case {
    double seconds;
    double pauses[3][2];
    double cut, next; /* of the first window; cut exact to a frame */
};

static const struct cut_case cuts[] = {
    {20, {{0}}, 20, 20},                              /* all of it */
    {32, {{0}}, 32, 32},
    {33, {{0}}, 32, 28.0},                            /* no pause: an overlap */
    {60, {{20, 20.4}}, 20.2, 20.2},
    {60, {{5, 6}}, 32, 28.0},                         /* too early */
    {60, {{20, 20.2}}, 32, 28.0},                     /* too short */
    {60, {{18, 18.4}, {25, 25.6}}, 25.3, 25.3},       /* the longer one */
    {60, {{18, 18.6}, {25, 25.4}}, 18.3, 18.3},
    {60, {{18, 20}, {24, 25.5}, {28, 28.4}}, 24.75, 24.75}, /* a second is long enough */
    {60, {{31.8, 34}}, 32, 28.0},                     /* reaches past the end */
    {60, {{31.5, 34}}, 31.75, 31.75},
};

static void test_cuts(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(cuts); i++) {
        for (double level = 0.01; level < 1; level *= 50) { /* pauses are no silence */
            const struct cut_case *c = &cuts[i];
            float *sound = make_sound(c->seconds, level, c->pauses, 3);
            struct berth_speech_audio audio = {.samples = sound,
                                               .count = (size_t)(c->seconds * RATE)};
            struct berth_parakeet_window window;
            berth_parakeet_window_find(&audio, 0, WINDOW, &window);
            double cut = (double)window.count / RATE;
            double next = (double)window.next / RATE;
            if (window.start != 0 || fabs(cut - c->cut) > 0.081 || fabs(next - c->next) > 0.081) {
                fail_msg("case %zu: cut at %.3f, next %.3f", i, cut, next);
            }
            assert_false(window.silent);
            berth_free(sound);
        }
    }
}

static void check_silent(const struct berth_speech_audio *audio, size_t from, size_t to)
{
    const float *samples = audio->samples;
    for (size_t i = from; i < to; i++) {
        assert_false(isfinite(samples[i]) != 0 && fabsf(samples[i]) >= 1e-4F);
    }
}

/* Every sample lies in a window or is silent, and each begins on the grid. */
static void walk(const struct berth_speech_audio *audio, size_t samples_max)
{
    size_t end = 0;
    size_t at = 0;
    while (at < audio->count) {
        struct berth_parakeet_window window;
        berth_parakeet_window_find(audio, at, samples_max, &window);
        assert_int_equal(window.start % BERTH_PARAKEET_FRAME_SAMPLES, 0);
        assert_true(window.start >= at && window.count > 0 && window.count <= samples_max);
        assert_true(window.next > at && window.start + window.count <= audio->count);
        check_silent(audio, end, window.start);
        check_silent(audio, window.start, window.silent ? window.next : window.start);
        end = window.start + window.count;
        at = window.next;
    }
    check_silent(audio, end, audio->count);
}

static void test_walks(void **state)
{
    static const double pauses[][2] = {{3, 3.5}, {20, 21}, {40, 40.3}, {70, 90}};
    static const double seconds[] = {0.00007, 0.08, 4, 4.0001, 31.99, 32.01, 64, 100, 180.123};
    static const size_t windows[] = {4, 5, 32, 120};
    for (size_t i = 0; i < BERTH_COUNT_OF(seconds); i++) {
        float *sound = make_sound(seconds[i], 0.1, pauses, BERTH_COUNT_OF(pauses));
        struct berth_speech_audio audio = {.samples = sound,
                                           .count = (size_t)(seconds[i] * RATE)};
        for (size_t w = 0; w < BERTH_COUNT_OF(windows); w++) {
            size_t most = windows[w] * RATE;
            walk(&audio, most - most % BERTH_PARAKEET_FRAME_SAMPLES);
        }
        for (size_t k = 0; k < audio.count; k++) {
            sound[k] = k % 2 == 0 ? NAN : INFINITY;
        }
        walk(&audio, WINDOW);
        berth_free(sound);
    }
}

static void test_silence(void **state)
{
    float *sound = berth_alloc(40 * RATE * sizeof(*sound));
    struct berth_speech_audio audio = {.samples = sound, .count = 40 * RATE};
    struct berth_parakeet_window window;
    assert_non_null(sound);
    berth_parakeet_window_find(&audio, 0, WINDOW, &window);
    assert_true(window.silent && window.next == WINDOW);
    sound[5] = NAN;
    sound[6] = 1e-5F;
    berth_parakeet_window_find(&audio, 0, WINDOW, &window);
    assert_true(window.silent);
    sound[7] = 1e-3F;
    berth_parakeet_window_find(&audio, 0, WINDOW, &window);
    assert_false(window.silent);
    berth_free(sound);
}

/* --- seams --- */

static struct berth_parakeet_pieces *pieces;

/* Letters are words (their id is some piece with a space), small ones go on with a word. */
static int32_t id_of(char letter)
{
    static int32_t begins[26];
    static int32_t goes_on[26];
    if (begins[0] == 0) {
        size_t a = 0;
        size_t b = 0;
        for (int32_t id = 3; id < 512 && (a < 26 || b < 26); id++) {
            bool word = berth_parakeet_pieces_begins(pieces, id);
            if (word && a < 26) {
                begins[a++] = id;
            } else if (!word && b < 26) {
                goes_on[b++] = id;
            }
        }
    }
    return letter >= 'A' && letter <= 'Z' ? begins[letter - 'A'] : goes_on[letter - 'a'];
}

static char letter_of(int32_t id)
{
    for (char letter = 'A'; letter <= 'Z'; letter++) {
        if (id_of(letter) == id) {
            return letter;
        }
    }
    for (char letter = 'a'; letter <= 'z'; letter++) {
        if (id_of(letter) == id) {
            return letter;
        }
    }
    return '?';
}

/* One character a frame from `first` on; dots are frames without a token. */
static size_t spread(const char *text, int64_t first, struct berth_parakeet_token *out)
{
    size_t count = 0;
    for (size_t i = 0; text[i] != '\0'; i++) {
        if (text[i] != '.') {
            out[count++] = (struct berth_parakeet_token){
                .id = id_of(text[i]), .frame = first + (int64_t)i, .duration = 1};
        }
    }
    return count;
}

/* left covers frames 0 to 99, right 50 to 149: the overlap is 50 to 99. */
static const struct {
    const char *left;  /* from frame 40 */
    const char *right; /* from frame 50 */
    const char *joined;
} seams[] = {
    /*  40        50        60        70        80        90 */
    {"A..B......C..D.....E..F.....G..H.....I..J.....K..L..",
     "C..D.....E..F.....G..H.....I..J.....K..L..M..N", "ABCDEFGHIJKLMN"},
    /* The end of left and the start of right are wrong. */
    {"A..B......C..D.....E..F.....G..H.....I..J.....X..Y..",
     "Z..W.....E..F.....G..H.....I..J.....K..L..M..N", "ABCDEFGHIJKLMN"},
    /* Half a frame's jitter. */
    {"A..B......C..D.....E..F.....G..H.....I..J.....K..L..",
     "C...D...E...F....G...H......I.J......K.L...M..N", "ABCDEFGHIJKLMN"},
    /* No run in common: at the frame near the middle that is far from all words. */
    {"A.........C..........Ee..........Gg.........I.....",
     "............Xx..............Yy..............Z..M..N", "ACEeYyZMN"},
    /* The same two tokens twice: by their times. */
    {"A..B......C..D......C..D......C..D......C..D.....",
     "C..D......C..D......C..D......C..D......M..N", "ABCDCDCDCDMN"},
    /* One side is silent in the overlap. */
    {"A..B", "C..D......E..F......G..H......I..J......M..N", NULL},
    {"A..B......C..D......E..F......G..H......I..J....", "........................................"
     "..........M..N", NULL},
    /* One word goes on and on: right is not lost with it. */
    {"A.........b.........c", "..........f....................g....................h..k", "Abchk"},
    /* Right begins no word behind the seam, left does: that one stays. */
    {"A.........C...................................M.k",
     "X....................................................k", "ACMkk"},
    {"", "", ""},
};

static void test_seams(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(seams); i++) {
        struct berth_parakeet_token left[64];
        struct berth_parakeet_token right[64];
        char joined[160] = "";
        size_t length = 0;
        size_t keep = SIZE_MAX;
        size_t skip = SIZE_MAX;
        struct berth_parakeet_seam seam = {.left = left, .right = right, .begin = 50, .end = 100};
        seam.left_count = spread(seams[i].left, 40, left);
        seam.right_count = spread(seams[i].right, 50, right);
        berth_parakeet_seam_join(pieces, &seam, &keep, &skip);
        assert_true(keep <= seam.left_count && skip <= seam.right_count);
        for (size_t k = 0; k < keep; k++) {
            joined[length++] = letter_of(left[k].id);
        }
        for (size_t k = skip; k < seam.right_count; k++) {
            joined[length++] = letter_of(right[k].id);
        }
        if (seams[i].joined != NULL && strcmp(joined, seams[i].joined) != 0) {
            fail_msg("case %zu: %s", i, joined);
        }
        for (size_t k = 0; k < seam.left_count; k++) { /* what is before the overlap stays */
            assert_true(left[k].frame >= 50 || k < keep);
        }
        for (size_t k = 0; k < seam.right_count; k++) { /* and what is behind it */
            assert_true(right[k].frame < 100 || k >= skip);
        }
    }
}

/* As many tokens as there can be: time and places stay within bounds. */
static void test_many(void **state)
{
    static struct berth_parakeet_token left[3000];
    static struct berth_parakeet_token right[3000];
    size_t keep = 0;
    size_t skip = 0;
    for (size_t i = 0; i < 3000; i++) {
        left[i] = (struct berth_parakeet_token){.id = 5, .frame = (int64_t)i / 10};
        right[i] = (struct berth_parakeet_token){.id = 5, .frame = 250 + (int64_t)i / 10};
    }
    struct berth_parakeet_seam seam = {.left = left, .left_count = 3000, .right = right,
                                       .right_count = 3000, .begin = 250, .end = 300};
    berth_parakeet_seam_join(pieces, &seam, &keep, &skip);
    assert_in_range(keep, 2500, 3000);
    assert_in_range(skip, 0, 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts), cmocka_unit_test(test_walks),
                                       cmocka_unit_test(test_silence), cmocka_unit_test(test_seams),
                                       cmocka_unit_test(test_many)};
    struct berth_err err = {0};
    if (berth_parakeet_pieces_read(golden_model(), 513, 512, &pieces, &err) != BERTH_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    berth_parakeet_pieces_destroy(pieces);
    return failed;
}
