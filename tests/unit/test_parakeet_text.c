/* Pieces of tokenizer files that are small, broken or hostile; words, segments and times of made-up
 * tokens; and what nano's tokenizer says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

#include "engine/parakeet/text.h"
#include "parakeet_golden.h"

#define MARK "\xE2\x96\x81"
#define NI "\xE4\xBD\xA0"
#define HELLO NI "\xE5\xA5\xBD"
#define WORLD "\xE4\xB8\x96\xE7\x95\x8C"
#define FULL_STOP "\xE3\x80\x82"
#define KA "\xE3\x82\xAB" /* Katakana; then the mark of a long vowel, and a small one */
#define VOCABULARY 400
#define BLANK 399

static char folder[64];

/* tokenizer.json with this model, decoder and added tokens, each a JSON value. */
static enum berth_code read_tokenizer(const char *text, struct berth_parakeet_pieces **out,
                                      struct berth_err *err)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    fclose(file);
    return berth_parakeet_pieces_read(folder, VOCABULARY, BLANK, out, err);
}

/* --- the file --- */

static const struct {
    const char *text;
    enum berth_code code;
    const char *message; /* a part of it */
} files[] = {
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", BERTH_OK, ""},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"b\",-1.5]]}}", BERTH_OK, ""},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}},\"decoder\":{\"type\":\"Metaspace\","
     "\"replacement\":\"" MARK "\"}}",
     BERTH_OK, ""},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}},\"decoder\":{\"type\":\"Sequence\"}}",
     BERTH_OK, ""},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"past the model\":400}}}", BERTH_OK, ""},
    {"", BERTH_INVALID, "tokenizer.json"},
    {"{", BERTH_INVALID, "tokenizer.json"},
    {"[]", BERTH_INVALID, "model.type"},
    {"{\"model\":{\"type\":\"BPE\\u0000\",\"vocab\":{\"a\":0}}}", BERTH_INVALID,
     "a NUL in the text of 'model.type'"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\\u0000\":0}}}", BERTH_INVALID,
     "a NUL in the text of 'model.vocab.a"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"\\u0000\",-1.5]]}}", BERTH_INVALID,
     "tokenizer.json: line 1: a NUL in the text of 'model.vocab[1][0]'"},
    {"{\"model\":{\"vocab\":{\"a\":0}}}", BERTH_INVALID, "model.type"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", BERTH_UNSUPPORTED, "WordPiece"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}},\"decoder\":{\"type\":\"ByteLevel\"}}",
     BERTH_UNSUPPORTED, "decoder.type"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}},\"decoder\":{\"type\":\"Metaspace\","
     "\"replacement\":\"_\"}}",
     BERTH_UNSUPPORTED, "decoder.replacement"},
    {"{\"model\":{\"type\":\"BPE\"}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":7}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1048576}}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.0}}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"}}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0}}}", BERTH_INVALID, "id 0 stands"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"only the blank\":399}}}", BERTH_INVALID,
     "no text"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[\"a\"]}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[1,0]]}}", BERTH_INVALID, "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}},\"added_tokens\":[{\"id\":-1}]}",
     BERTH_INVALID, "added token 0"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}},\"added_tokens\":[7]}", BERTH_INVALID,
     "added token 0"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}},\"added_tokens\":[{\"id\":0}]}",
     BERTH_INVALID, "no text"},
};

static void test_files(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(files); i++) {
        struct berth_parakeet_pieces *pieces = NULL;
        struct berth_err err = {0};
        enum berth_code code = read_tokenizer(files[i].text, &pieces, &err);
        if (code != files[i].code || strstr(err.msg, files[i].message) == NULL) {
            fail_msg("case %zu: %s %s", i, berth_code_name(code), err.msg);
        }
        berth_parakeet_pieces_destroy(pieces);
    }
    struct berth_parakeet_pieces *pieces = NULL;
    struct berth_err err = {0};
    assert_int_equal(berth_parakeet_pieces_read("/nonexistent", 10, 9, &pieces, &err),
                     BERTH_NOT_FOUND);
}

static void test_long_piece(void **state)
{
    static char text[2048];
    for (size_t length = 1024; length <= 1025; length++) {
        struct berth_parakeet_pieces *pieces = NULL;
        struct berth_err err = {0};
        size_t at = (size_t)snprintf(text, sizeof(text),
                                     "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"");
        memset(text + at, 'x', length);
        snprintf(text + at + length, sizeof(text) - at - length, "\":0}}}");
        assert_int_equal(read_tokenizer(text, &pieces, &err),
                         length == 1024 ? BERTH_OK : BERTH_INVALID);
        berth_parakeet_pieces_destroy(pieces);
    }
}

/* --- text --- */

/* Ids by place: 0 unknown (special), then these. */
static const char *const vocabulary[] = {
    "<unk>", MARK "the", MARK "c", "at", ".", MARK "A", MARK, "s", MARK "Mr", "?", "\\\"",
    "<0xC3>", "<0xBC>", "<0xE2>", MARK "4", "\xC3\xA9" "t", MARK "\xC3\xA9",
    NI "\xE5\xA5\xBD", "\xE4\xB8\x96\xE7\x95\x8C", FULL_STOP, "Linux", "\xE3\x83\xBC", MARK NI,
    KA, "\xE3\x83\xA5"};

static struct berth_parakeet_pieces *make_pieces(void)
{
    struct berth_buf text = {0};
    struct berth_parakeet_pieces *pieces = NULL;
    struct berth_err err = {0};
    berth_buf_puts(&text, "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{");
    for (size_t i = 0; i < BERTH_COUNT_OF(vocabulary); i++) {
        berth_buf_printf(&text, "%s\"%s\":%zu", i == 0 ? "" : ",", vocabulary[i], i);
    }
    berth_buf_puts(&text, "}},\"added_tokens\":[{\"id\":0,\"special\":true}]}");
    if (read_tokenizer(berth_buf_text(&text), &pieces, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    berth_buf_finish(&text);
    return pieces;
}

struct text_case {
    const char *tokens;   /* id@frame+duration ... */
    const char *words;    /* each with its times, as  the[0.00-0.16] */
    const char *segments; /* each ended by | */
};

static const struct text_case texts[] = {
    {"", "", ""},
    {"0@1+1 399@2+1 500@3+1 -1@4+1", "", ""}, /* nothing of it is text */
    {"1@0+2 2@3+1 3@4+2", " the[0.00-0.16] cat[0.24-0.48]", " the cat|"},
    {"1@0+9 2@3+1", " the[0.00-0.24] c[0.24-0.32]", " the c|"}, /* not into the next */
    {"1@0+0", " the[0.00-0.08]", " the|"},
    {"3@0+1 7@1+1 1@2+1", "ats[0.00-0.16] the[0.16-0.24]", "ats the|"},
    {"6@0+1 3@1+1 6@2+1", " at[0.00-0.16]", " at|"}, /* a lone space is no word */
    {"6@0+1 6@1+1 7@2+1", " s[0.08-0.24]", " s|"},
    {"1@0+1 0@1+1 7@2+1", " thes[0.00-0.24]", " thes|"},
    {"2@0+1 3@1+1 4@2+1 5@4+1", " cat.[0.00-0.24] A[0.32-0.40]", " cat.| A|"},
    {"2@0+1 3@1+1 4@2+1 10@3+1 5@4+1", " cat.\"[0.00-0.32] A[0.32-0.40]", " cat.\"| A|"},
    {"2@0+1 9@1+1 14@2+1", " c?[0.00-0.16] 4[0.16-0.24]", " c?| 4|"},
    {"8@0+1 4@1+1 1@2+1", " Mr.[0.00-0.16] the[0.16-0.24]", " Mr. the|"}, /* a small letter */
    {"1@0+1 1@13+1", " the[0.00-0.08] the[1.04-1.12]", " the the|"},
    {"1@0+1 1@14+1", " the[0.00-0.08] the[1.12-1.20]", " the| the|"},
    {"11@0+1 12@1+1", "\xC3\xBC[0.00-0.16]", "\xC3\xBC|"}, /* one character in two pieces */
    {"1@0+1 13@1+1 1@2+1", " the\xEF\xBF\xBD[0.00-0.16] the[0.16-0.24]",
     " the\xEF\xBF\xBD the|"},
    {"16@0+1 15@1+1", " \xC3\xA9\xC3\xA9t[0.00-0.16]", " \xC3\xA9\xC3\xA9t|"},
    /* Without spaces: a word a piece, but what cannot begin one; another script's letters. */
    {"17@0+2 18@3+2 19@5+1 17@6+1",
     HELLO "[0.00-0.16]" WORLD FULL_STOP "[0.24-0.48]" HELLO "[0.48-0.56]",
     HELLO WORLD FULL_STOP "|" HELLO "|"},
    {"17@0+1 20@1+1 18@2+1", HELLO "[0.00-0.08]Linux[0.08-0.16]" WORLD "[0.16-0.24]",
     HELLO "Linux" WORLD "|"},
    {"17@0+1 18@14+1", HELLO "[0.00-0.08]" WORLD "[1.12-1.20]", HELLO "|" WORLD "|"},
    {"6@0+1 17@1+1", " " HELLO "[0.00-0.16]", " " HELLO "|"},
    {"1@0+1 22@1+1 17@2+1", " the[0.00-0.08] " NI "[0.08-0.16]" HELLO "[0.16-0.24]",
     " the " NI HELLO "|"},
    {"23@0+1 21@1+1 24@2+1", KA "\xE3\x83\xBC\xE3\x83\xA5[0.00-0.24]",
     KA "\xE3\x83\xBC\xE3\x83\xA5|"},
    {"1@5+1 1@3+1", " the[0.40-0.40] the[0.40-0.40]", " the the|"}, /* never back */
    {"1@1240+4 1@1300+4", " the[99.20-99.52] the[100.00-100.00]", " the the|"},
};

static size_t parse_tokens(const char *text, struct berth_parakeet_token *out)
{
    size_t count = 0;
    int taken = 0;
    int id = 0;
    int frame = 0;
    int duration = 0;
    while (sscanf(text, " %d@%d+%d%n", &id, &frame, &duration, &taken) == 3) {
        out[count++] = (struct berth_parakeet_token){
            .id = id, .frame = frame, .duration = duration, .probability = 0.5F};
        text += taken;
    }
    return count;
}

static void test_texts(void **state)
{
    struct berth_parakeet_pieces *pieces = make_pieces();
    assert_true(berth_parakeet_pieces_begins(pieces, 1));
    assert_true(berth_parakeet_pieces_begins(pieces, 6));
    assert_false(berth_parakeet_pieces_begins(pieces, 3));
    assert_true(berth_parakeet_pieces_begins(pieces, 17));
    assert_false(berth_parakeet_pieces_begins(pieces, 19));
    assert_false(berth_parakeet_pieces_begins(pieces, 21));
    assert_false(berth_parakeet_pieces_begins(pieces, 5000));
    for (size_t i = 0; i < BERTH_COUNT_OF(texts); i++) {
        struct berth_parakeet_token tokens[16];
        struct berth_parakeet_transcript said;
        struct berth_buf words = {0};
        struct berth_buf segments = {0};
        struct berth_err err = {0};
        size_t count = parse_tokens(texts[i].tokens, tokens);
        size_t covered = 0;
        struct berth_parakeet_heard heard = {.tokens = tokens, .count = count, .seconds = 100};
        assert_int_equal(berth_parakeet_transcribe(pieces, &heard, &said, &err), BERTH_OK);
        for (size_t w = 0; w < said.word_count; w++) {
            const struct berth_parakeet_word *word = &said.words[w];
            berth_buf_append(&words, said.text.bytes + word->text, word->text_bytes);
            berth_buf_printf(&words, "[%.2f-%.2f]", word->start, word->end);
            assert_true(fabsf(word->confidence - 0.5F) < 1e-6F);
        }
        for (size_t s = 0; s < said.segment_count; s++) {
            const struct berth_parakeet_segment *segment = &said.segments[s];
            berth_buf_append(&segments, said.text.bytes + segment->text, segment->text_bytes);
            berth_buf_puts(&segments, "|");
            assert_true(fabsf(segment->confidence - logf(0.5F)) < 1e-6F);
            assert_int_equal(segment->token, covered);
            covered += segment->token_count;
        }
        if (strcmp(berth_buf_text(&words), texts[i].words) != 0 ||
            strcmp(berth_buf_text(&segments), texts[i].segments) != 0) {
            fail_msg("case %zu: '%s' '%s'", i, berth_buf_text(&words), berth_buf_text(&segments));
        }
        assert_true(said.segment_count == 0 || covered == count);
        berth_buf_finish(&words);
        berth_buf_finish(&segments);
        berth_parakeet_transcript_drop(&said);
    }
    berth_parakeet_pieces_destroy(pieces);
}

/* Speech without a sentence's end is cut before 30 s; and confidence is that of the tokens. */
static void test_segments(void **state)
{
    static struct berth_parakeet_token tokens[1000];
    struct berth_parakeet_pieces *pieces = make_pieces();
    struct berth_parakeet_transcript said;
    struct berth_err err = {0};
    for (size_t i = 0; i < BERTH_COUNT_OF(tokens); i++) {
        tokens[i] = (struct berth_parakeet_token){
            .id = 1, .frame = (int64_t)i * 4, .duration = 4, .probability = 0.9F};
    }
    tokens[0].probability = 0;
    tokens[1].probability = NAN;
    struct berth_parakeet_heard heard = {
        .tokens = tokens, .count = BERTH_COUNT_OF(tokens), .seconds = 320};
    assert_int_equal(berth_parakeet_transcribe(pieces, &heard, &said, &err), BERTH_OK);
    assert_in_range(said.segment_count, 11, 12);
    for (size_t i = 0; i < said.segment_count; i++) {
        assert_true(said.segments[i].end - said.segments[i].start <= 30.0 + 1e-9);
        assert_true(isfinite(said.segments[i].confidence));
    }
    assert_true(said.words[0].confidence >= 0 && said.words[0].confidence < 1e-9F);
    berth_parakeet_transcript_drop(&said);
    for (size_t i = 0; i < BERTH_COUNT_OF(tokens); i++) { /* nor without spaces */
        tokens[i].id = 17;
    }
    assert_int_equal(berth_parakeet_transcribe(pieces, &heard, &said, &err), BERTH_OK);
    assert_int_equal(said.word_count, BERTH_COUNT_OF(tokens));
    assert_in_range(said.segment_count, 11, 12);
    berth_parakeet_transcript_drop(&said);
    berth_parakeet_pieces_destroy(pieces);
}

static void test_nano(void **state)
{
    static struct golden golden;
    static struct berth_parakeet_token tokens[GOLDEN_TOKENS_MAX];
    struct berth_parakeet_pieces *pieces = NULL;
    struct berth_err err = {0};
    assert_int_equal(berth_parakeet_pieces_read(golden_model(), 513, 512, &pieces, &err),
                     BERTH_OK);
    for (int i = 0; i < GOLDEN_COUNT; i++) {
        struct berth_parakeet_transcript said;
        golden_read(i, &golden);
        for (size_t k = 0; k < golden.token_count; k++) {
            tokens[k] = (struct berth_parakeet_token){.id = golden.tokens[k],
                                                      .frame = golden.frames[k],
                                                      .duration = golden.durations[k],
                                                      .probability = 1};
        }
        struct berth_parakeet_heard heard = {.tokens = tokens, .count = golden.token_count,
                                             .seconds = (double)golden.samples / 16000};
        assert_int_equal(berth_parakeet_transcribe(pieces, &heard, &said, &err), BERTH_OK);
        size_t length = said.text.length;
        const char *text = berth_text_trim(berth_buf_text(&said.text), &length);
        assert_int_equal(length, strlen(golden.text));
        assert_memory_equal(text, golden.text, length);
        berth_parakeet_transcript_drop(&said);
    }
    berth_parakeet_pieces_destroy(pieces);
}

static void test_no_memory(void **state)
{
    struct berth_parakeet_token tokens[16];
    struct berth_parakeet_transcript said;
    struct berth_err err = {0};
    struct berth_parakeet_heard heard = {.tokens = tokens, .seconds = 100};
    heard.count = parse_tokens("1@0+2 2@3+1 3@4+2 13@5+1", tokens);
    struct berth_parakeet_pieces *pieces = make_pieces();
    uint64_t live = berth_mem_bytes_live();
    enum berth_code code = BERTH_UNAVAILABLE;
    for (uint64_t nth = 1; code != BERTH_OK; nth++) {
        assert_true(nth < 100);
        berth_mem_fail_at(nth, false);
        code = berth_parakeet_transcribe(pieces, &heard, &said, &err);
        berth_mem_fail_at(0, false);
        if (code != BERTH_OK) {
            assert_int_equal(code, BERTH_UNAVAILABLE);
            assert_int_equal(berth_mem_bytes_live(), live);
        }
    }
    berth_parakeet_transcript_drop(&said);
    berth_parakeet_pieces_destroy(pieces);
}

static int set_up(void **state)
{
    snprintf(folder, sizeof(folder), "/tmp/berth_text_XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),    cmocka_unit_test(test_long_piece),
        cmocka_unit_test(test_texts),    cmocka_unit_test(test_segments),
        cmocka_unit_test(test_nano),     cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
