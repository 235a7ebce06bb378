/* text.c - pieces of a tokenizer.json, and what tokens say: text, words, segments.
 *
 * A piece is kept as the bytes it stands for: the mark U+2581 is a space, <0xNN> one byte. Bytes of
 * a word are gathered first and made valid UTF-8 as a whole, because a character may lie in several
 * pieces. Tokens without text (special ones, ids the file does not name) say nothing.
 *
 * Where a script writes no spaces, a piece that begins with a letter of it is a word, and so is
 * what begins with another script's letter behind it; marks, small kana, vowels behind a consonant
 * and punctuation stay with what is before them. Dictionaries would find longer words: nobody here
 * has them, and a piece is the finest time there is.
 * A sentence's end is a word that ends in . ? ! or the like, perhaps with a closing quote behind
 * it, where the next word does not begin with a small letter (as after an abbreviation).
 */
#include "engine/parakeet/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "engine/json_file.h"

#define FILE_BYTES_MAX (64U << 20)
#define IDS_MAX (1 << 20)
#define PIECE_BYTES_MAX 1024
#define PATH_BYTES_MAX 4096
#define MARK "\xE2\x96\x81" /* U+2581 */
#define FRAME_S 0.08
#define PAUSE_S 1.0
#define SEGMENT_S 30.0
#define PROBABILITY_MIN 1e-10 /* what 0 and less are taken for */

struct piece {
    uint32_t offset; /* into bytes */
    uint32_t length; /* 0: no text */
};

struct berth_parakeet_pieces {
    struct piece *pieces; /* by id */
    uint32_t count;
    struct berth_buf bytes;
};

/* A file being read. */
struct reader {
    const char *path;
    struct berth_parakeet_pieces *pieces;
    uint32_t blank;
    bool byte_fallback;
    struct berth_err *err;
};

/* Characters, from first to last, of scripts without spaces that can begin a word. */
struct characters {
    uint32_t first, last;
};

static const struct characters unspaced[] = {
    {0x0E01, 0x0E2F}, {0x0E40, 0x0E44},                   /* Thai */
    {0x0E81, 0x0EAF}, {0x0EC0, 0x0EC4},                   /* Lao */
    {0x1000, 0x102A},                                     /* Myanmar */
    {0x1780, 0x17B3},                                     /* Khmer */
    {0x304A, 0x3062}, {0x3064, 0x3082}, {0x3084, 0x3084}, /* Hiragana but for the small ones */
    {0x3086, 0x3086}, {0x3088, 0x308D}, {0x308F, 0x3094},
    {0x3042, 0x3042}, {0x3044, 0x3044}, {0x3046, 0x3046}, {0x3048, 0x3048},
    {0x30AA, 0x30C2}, {0x30C4, 0x30E2}, {0x30E4, 0x30E4}, /* Katakana likewise */
    {0x30E6, 0x30E6}, {0x30E8, 0x30ED}, {0x30EF, 0x30F4},
    {0x30A2, 0x30A2}, {0x30A4, 0x30A4}, {0x30A6, 0x30A6}, {0x30A8, 0x30A8},
    {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xF900, 0xFAFF}, {0x20000, 0x3FFFF}, /* Han */
};

static bool begins_unspaced(const char *bytes, size_t length);
static enum berth_code read_all(struct reader *reader, const json_t *root);
static enum berth_code check_form(struct reader *reader, const json_t *root);
static enum berth_code read_map(struct reader *reader, const json_t *vocab);
static enum berth_code read_list(struct reader *reader, const json_t *vocab);
static enum berth_code forget_special(struct reader *reader, const json_t *list);
static enum berth_code make_words(const struct berth_parakeet_pieces *pieces,
                                  const struct berth_parakeet_heard *heard,
                                  struct berth_parakeet_transcript *out);
static void bound_times(struct berth_parakeet_transcript *transcript, double seconds);
static void make_segments(struct berth_parakeet_transcript *transcript,
                          const struct berth_parakeet_heard *heard);

enum berth_code berth_parakeet_pieces_read(const char *folder, uint32_t vocabulary, uint32_t blank,
                                           struct berth_parakeet_pieces **out,
                                           struct berth_err *err)
{
    char path[PATH_BYTES_MAX];
    json_t *root = NULL;
    if (snprintf(path, sizeof(path), "%s/tokenizer.json", folder) >= (int)sizeof(path)) {
        return berth_fail(err, BERTH_INVALID, "the path of a model's folder is too long");
    }
    struct berth_parakeet_pieces *pieces = berth_alloc(sizeof(*pieces));
    struct reader reader = {.path = path, .pieces = pieces, .blank = blank, .err = err};
    enum berth_code code = BERTH_OK;
    if (pieces != NULL) {
        pieces->count = vocabulary;
        pieces->pieces = berth_alloc(vocabulary * sizeof(*pieces->pieces));
    }
    if (pieces == NULL || pieces->pieces == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
        goto out;
    }
    code = berth_json_file_read(path, FILE_BYTES_MAX, &root, err);
    if (code == BERTH_OK) {
        code = read_all(&reader, root);
    }
    if (code == BERTH_OK) {
        *out = pieces;
        pieces = NULL;
    }
out:
    json_decref(root);
    berth_parakeet_pieces_destroy(pieces);
    return code;
}

void berth_parakeet_pieces_destroy(struct berth_parakeet_pieces *pieces)
{
    if (pieces == NULL) {
        return;
    }
    berth_buf_finish(&pieces->bytes);
    berth_free(pieces->pieces);
    berth_free(pieces);
}

uint64_t berth_parakeet_pieces_bytes(const struct berth_parakeet_pieces *pieces)
{
    return sizeof(*pieces) + pieces->count * sizeof(struct piece) + pieces->bytes.capacity;
}

static size_t piece_of(const struct berth_parakeet_pieces *pieces, int32_t id, const char **bytes)
{
    if (id < 0 || (uint32_t)id >= pieces->count) {
        return 0;
    }
    *bytes = berth_buf_text(&pieces->bytes) + pieces->pieces[id].offset;
    return pieces->pieces[id].length;
}

bool berth_parakeet_pieces_begins(const struct berth_parakeet_pieces *pieces, int32_t id)
{
    const char *bytes = "";
    size_t length = piece_of(pieces, id, &bytes);
    return length > 0 && (bytes[0] == ' ' || begins_unspaced(bytes, length));
}

enum berth_code berth_parakeet_transcribe(const struct berth_parakeet_pieces *pieces,
                                          const struct berth_parakeet_heard *heard,
                                          struct berth_parakeet_transcript *out,
                                          struct berth_err *err)
{
    struct berth_parakeet_transcript transcript = {.word_count = 0};
    enum berth_code code = BERTH_OK;
    if (heard->count > 0) {
        transcript.words = berth_alloc(heard->count * sizeof(*transcript.words));
        transcript.segments = berth_alloc(heard->count * sizeof(*transcript.segments));
        code = transcript.words == NULL || transcript.segments == NULL ? BERTH_UNAVAILABLE
                                                                       : BERTH_OK;
    }
    if (code == BERTH_OK) {
        code = make_words(pieces, heard, &transcript);
    }
    if (code != BERTH_OK) {
        berth_parakeet_transcript_drop(&transcript);
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for a transcript");
    }
    bound_times(&transcript, heard->seconds);
    make_segments(&transcript, heard);
    *out = transcript;
    return BERTH_OK;
}

void berth_parakeet_transcript_drop(struct berth_parakeet_transcript *transcript)
{
    berth_buf_finish(&transcript->text);
    berth_free(transcript->words);
    berth_free(transcript->segments);
    *transcript = (struct berth_parakeet_transcript){.word_count = 0};
}

/* --- the file --- */

static enum berth_code read_all(struct reader *reader, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *vocab = json_object_get(model, "vocab");
    BERTH_TRY(check_form(reader, root));
    reader->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    if (json_is_array(vocab)) {
        BERTH_TRY(read_list(reader, vocab));
    } else {
        BERTH_TRY(read_map(reader, vocab));
    }
    BERTH_TRY(forget_special(reader, json_object_get(root, "added_tokens")));
    if (reader->blank < reader->pieces->count) {
        reader->pieces->pieces[reader->blank].length = 0;
    }
    for (uint32_t id = 0; id < reader->pieces->count; id++) {
        if (reader->pieces->pieces[id].length > 0) {
            return BERTH_OK;
        }
    }
    return berth_fail(reader->err, BERTH_INVALID, "%s: model.vocab has no text for any token",
                      reader->path);
}

/* BPE or Unigram, with spaces written as U+2581. */
static enum berth_code check_form(struct reader *reader, const json_t *root)
{
    const json_t *decoder = json_object_get(root, "decoder");
    const char *type = json_string_value(
        json_object_get(json_object_get(root, "model"), "type"));
    const char *form = json_string_value(json_object_get(decoder, "type"));
    const char *mark = json_string_value(json_object_get(decoder, "replacement"));
    if (type == NULL) {
        return berth_fail(reader->err, BERTH_INVALID, "%s: no model.type", reader->path);
    }
    if (strcmp(type, "BPE") != 0 && strcmp(type, "Unigram") != 0) {
        return berth_fail(reader->err, BERTH_UNSUPPORTED,
                          "%s: model.type is '%.40s'; BPE and Unigram are read", reader->path,
                          type);
    }
    if (form != NULL && strcmp(form, "Metaspace") != 0 && strcmp(form, "Sequence") != 0) {
        return berth_fail(reader->err, BERTH_UNSUPPORTED,
                          "%s: decoder.type is '%.40s'; Metaspace is read", reader->path, form);
    }
    if (mark != NULL && strcmp(mark, MARK) != 0) {
        return berth_fail(reader->err, BERTH_UNSUPPORTED,
                          "%s: decoder.replacement is not U+2581", reader->path);
    }
    return BERTH_OK;
}

/* <0xNN> -> the byte, or -1. */
static int byte_of(const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    if (strlen(text) != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    const char *high = strchr(digits, text[3]);
    const char *low = strchr(digits, text[4]);
    return high == NULL || low == NULL ? -1 : (int)((high - digits) * 16 + (low - digits));
}

static enum berth_code add_piece(struct reader *reader, json_int_t id, const char *text)
{
    struct berth_buf *bytes = &reader->pieces->bytes;
    if (id < 0 || id >= IDS_MAX || text == NULL || strlen(text) > PIECE_BYTES_MAX) {
        return berth_fail(reader->err, BERTH_INVALID, "%s: a bad entry in model.vocab",
                          reader->path);
    }
    if (id >= (json_int_t)reader->pieces->count) {
        return BERTH_OK; /* the model cannot say it */
    }
    struct piece *piece = &reader->pieces->pieces[id];
    if (piece->length > 0) {
        return berth_fail(reader->err, BERTH_INVALID,
                          "%s: id %" JSON_INTEGER_FORMAT " stands twice in model.vocab",
                          reader->path, id);
    }
    size_t before = bytes->length;
    int byte = reader->byte_fallback ? byte_of(text) : -1;
    if (byte >= 0) {
        char one = (char)(unsigned char)byte;
        berth_buf_append(bytes, &one, 1);
        text += strlen(text);
    }
    while (*text != '\0') {
        bool mark = strncmp(text, MARK, 3) == 0;
        berth_buf_append(bytes, mark ? " " : text, 1);
        text += mark ? 3 : 1;
    }
    if (!berth_buf_ok(bytes)) {
        return berth_fail(reader->err, BERTH_UNAVAILABLE, "no memory for %s", reader->path);
    }
    piece->offset = (uint32_t)before;
    piece->length = (uint32_t)(bytes->length - before);
    return BERTH_OK;
}

/* BPE: {"piece": id, ..} */
static enum berth_code read_map(struct reader *reader, const json_t *vocab)
{
    const char *text = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        BERTH_TRY(add_piece(reader, id, text));
    }
    return BERTH_OK;
}

/* Unigram: [["piece", score], ..] by id. */
static enum berth_code read_list(struct reader *reader, const json_t *vocab)
{
    for (size_t id = 0; id < json_array_size(vocab); id++) {
        const json_t *entry = json_array_get(vocab, id);
        BERTH_TRY(add_piece(reader, (json_int_t)id,
                            json_string_value(json_array_get(entry, 0))));
    }
    return BERTH_OK;
}

static enum berth_code forget_special(struct reader *reader, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *id = json_object_get(item, "id");
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= IDS_MAX) {
            return berth_fail(reader->err, BERTH_INVALID, "%s: added token %zu has no id",
                              reader->path, i);
        }
        if (json_integer_value(id) < (json_int_t)reader->pieces->count &&
            !json_is_false(json_object_get(item, "special"))) {
            reader->pieces->pieces[json_integer_value(id)].length = 0;
        }
    }
    return BERTH_OK;
}

/* --- words --- */

/* The word that is being gathered. */
struct gathered {
    struct berth_buf bytes;
    bool spoken;   /* there is more than spaces */
    bool unspaced; /* of a script without spaces */
    size_t first; /* token */
    size_t count; /* of tokens with text; 0: none yet */
    double logprob;
    int64_t end; /* frame */
};

static double logprob_of(const struct berth_parakeet_token *token)
{
    double probability = token->probability;
    return log(probability > PROBABILITY_MIN ? probability : PROBABILITY_MIN);
}

/* The first character behind a leading space. */
static uint32_t initial_of(const char *bytes, size_t length)
{
    uint32_t point = 0;
    size_t space = length > 1 && bytes[0] == ' ' ? 1 : 0;
    (void)berth_utf8_next(bytes + space, length - space, &point);
    return point;
}

static bool begins_unspaced(const char *bytes, size_t length)
{
    uint32_t point = initial_of(bytes, length);
    for (size_t i = 0; i < BERTH_COUNT_OF(unspaced); i++) {
        if (point >= unspaced[i].first && point <= unspaced[i].last) {
            return true;
        }
    }
    return false;
}

/* Of a script with spaces. */
static bool begins_letter(const char *bytes, size_t length)
{
    uint32_t point = initial_of(bytes, length);
    return (point >= '0' && point <= '9') || (point >= 'a' && point <= 'z') ||
           (point >= 'A' && point <= 'Z') || (point >= 0xC0 && point < 0x0E00);
}

/* Does a word begin at this piece? */
static bool parts(const struct gathered *word, const char *bytes, size_t length)
{
    return bytes[0] == ' ' ||
           (word->spoken && (begins_unspaced(bytes, length) ||
                             (word->unspaced && begins_letter(bytes, length))));
}

/* Writes the word's text and keeps it, unless it is nothing but spaces. */
static void close_word(struct gathered *word, const struct berth_parakeet_token *tokens,
                       struct berth_parakeet_transcript *out)
{
    const char *bytes = berth_buf_text(&word->bytes);
    size_t length = word->bytes.length;
    bool spaced = length > 0 && bytes[0] == ' ';
    const char *text = berth_text_trim(bytes, &length);
    if (length > 0) {
        struct berth_parakeet_word *to = &out->words[out->word_count++];
        to->token = word->first;
        to->text = out->text.length;
        berth_buf_puts(&out->text, spaced ? " " : "");
        berth_buf_utf8(&out->text, text, length);
        to->text_bytes = out->text.length - to->text;
        to->start = (double)tokens[word->first].frame * FRAME_S;
        to->end = (double)word->end * FRAME_S;
        to->confidence = (float)exp(word->logprob / (double)word->count);
    }
    if (!berth_buf_ok(&word->bytes)) {
        out->text.failed = true;
    }
    berth_buf_clear(&word->bytes);
    word->spoken = word->unspaced = false;
    word->count = 0;
    word->logprob = 0;
}

static enum berth_code make_words(const struct berth_parakeet_pieces *pieces,
                                  const struct berth_parakeet_heard *heard,
                                  struct berth_parakeet_transcript *out)
{
    const struct berth_parakeet_token *tokens = heard->tokens;
    struct gathered word = {.count = 0};
    for (size_t i = 0; i < heard->count; i++) {
        const char *bytes = "";
        size_t length = piece_of(pieces, tokens[i].id, &bytes);
        if (length == 0) {
            continue;
        }
        if (word.count > 0 && parts(&word, bytes, length)) {
            close_word(&word, tokens, out);
        }
        if (word.count == 0) {
            word.first = i;
        }
        word.unspaced = word.unspaced || (!word.spoken && begins_unspaced(bytes, length));
        word.spoken = word.spoken || initial_of(bytes, length) != ' ';
        berth_buf_append(&word.bytes, bytes, length);
        word.logprob += logprob_of(&tokens[i]);
        word.end = tokens[i].frame + (tokens[i].duration > 1 ? tokens[i].duration : 1);
        word.count++;
    }
    close_word(&word, tokens, out);
    berth_buf_finish(&word.bytes);
    return berth_buf_ok(&out->text) ? BERTH_OK : BERTH_UNAVAILABLE;
}

/* Times never go back, no word reaches into the next, and none lies past the end. */
static void bound_times(struct berth_parakeet_transcript *transcript, double seconds)
{
    double start = 0;
    for (size_t i = 0; i < transcript->word_count; i++) {
        struct berth_parakeet_word *word = &transcript->words[i];
        start = word->start > start ? word->start : start;
        start = start > seconds ? seconds : start;
        word->start = start;
        word->end = word->end > seconds ? seconds : word->end;
        word->end = word->end > start ? word->end : start;
    }
    for (size_t i = 0; i + 1 < transcript->word_count; i++) {
        double next = transcript->words[i + 1].start;
        struct berth_parakeet_word *word = &transcript->words[i];
        word->end = word->end > next ? next : word->end;
    }
}

/* --- segments --- */

static bool has_ending(const char *text, size_t *length, const char *const *endings)
{
    for (size_t i = 0; endings[i] != NULL; i++) {
        size_t bytes = strlen(endings[i]);
        if (*length >= bytes && memcmp(text + *length - bytes, endings[i], bytes) == 0) {
            *length -= bytes;
            return true;
        }
    }
    return false;
}

static bool ends_sentence(const char *text, size_t length)
{
    static const char *const closers[] = {"\"", "'", ")", "]", "\xE2\x80\x99", "\xE2\x80\x9D",
                                          "\xC2\xBB", "\xE3\x80\x8D", "\xE3\x80\x8F",
                                          "\xEF\xBC\x89", NULL};
    static const char *const enders[] = {".", "?", "!", "\xE2\x80\xA6", "\xE3\x80\x82",
                                         "\xEF\xBC\x9F", "\xEF\xBC\x81", NULL};
    while (has_ending(text, &length, closers)) {
    }
    return has_ending(text, &length, enders);
}

/* Does a new segment begin at this word, the one before being the last of `segment`? */
static bool is_break(const struct berth_parakeet_transcript *transcript,
                     const struct berth_parakeet_segment *segment, size_t index)
{
    const struct berth_parakeet_word *word = &transcript->words[index];
    const struct berth_parakeet_word *before = word - 1;
    const char *text = berth_buf_text(&transcript->text);
    if (word->start - before->end >= PAUSE_S || word->end - segment->start > SEGMENT_S) {
        return true;
    }
    size_t space = text[word->text] == ' ' ? 1 : 0;
    char initial = text[word->text + space];
    return ends_sentence(text + before->text, before->text_bytes) &&
           (space == 0 || !(initial >= 'a' && initial <= 'z'));
}

static void make_segments(struct berth_parakeet_transcript *transcript,
                          const struct berth_parakeet_heard *heard)
{
    struct berth_parakeet_segment *segment = NULL;
    for (size_t i = 0; i < transcript->word_count; i++) {
        struct berth_parakeet_word *word = &transcript->words[i];
        if (segment == NULL || is_break(transcript, segment, i)) {
            size_t token = segment == NULL ? 0 : word->token;
            if (segment != NULL) {
                segment->token_count = token - segment->token;
            }
            segment = &transcript->segments[transcript->segment_count++];
            *segment = (struct berth_parakeet_segment){
                .text = word->text, .start = word->start, .token = token};
        }
        word->segment = (uint32_t)(transcript->segment_count - 1);
        segment->end = word->end;
        segment->text_bytes = word->text + word->text_bytes - segment->text;
    }
    if (segment != NULL) {
        segment->token_count = heard->count - segment->token;
    }
    for (size_t i = 0; i < transcript->segment_count; i++) {
        segment = &transcript->segments[i];
        double sum = 0;
        for (size_t k = 0; k < segment->token_count; k++) {
            sum += logprob_of(&heard->tokens[segment->token + k]);
        }
        segment->confidence =
            segment->token_count == 0 ? 0 : (float)(sum / (double)segment->token_count);
    }
}
