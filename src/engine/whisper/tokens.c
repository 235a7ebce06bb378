/* tokens.c - byte-level BPE.
 *
 * tokenizer.json writes bytes in GPT-2's alphabet: printable Latin-1 stands for itself, the rest
 * for U+0100 on. Pieces are kept as the bytes they mean, one after the other, and found by a hash
 * table; a merge is found by the pair of ids it joins. Both tables are open addressing, at most
 * half full. The file is hostile: every id and type is checked, and sizes have limits.
 */
#include "engine/whisper/tokens.h"

#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "engine/json_file.h"
#include "engine/whisper/unicode_ranges.h"

#define FILE_BYTES_MAX (64U << 20)
#define IDS_MAX (1 << 20)
#define MERGES_MAX (1 << 20)
#define PIECE_BYTES_MAX 1024
#define WORD_BYTES_MAX 256

struct piece {
    uint32_t offset; /* into bytes */
    uint32_t length; /* 0: no such token of text */
};

struct merge {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;
    int32_t id; /* -1: free place */
};

struct special {
    char *content;
    int32_t id;
};

struct berth_tokens {
    struct piece *pieces; /* by id */
    size_t piece_count;
    struct berth_buf bytes;
    int32_t *by_text; /* hash table of ids, -1 free */
    size_t by_text_size; /* power of two */
    struct merge *merges;
    size_t merge_size; /* power of two */
    struct special *specials;
    size_t special_count;
    int32_t byte_ids[256];
};

static enum berth_code read_json(const char *path, struct berth_tokens *tokens,
                                 struct berth_err *err);
static enum berth_code read_vocab(const json_t *vocab, struct berth_tokens *tokens,
                                  const char *path, struct berth_err *err);
static enum berth_code read_merges(const json_t *list, struct berth_tokens *tokens,
                                   const char *path, struct berth_err *err);
static enum berth_code read_specials(const json_t *list, struct berth_tokens *tokens,
                                     const char *path, struct berth_err *err);
static size_t word_length(const char *text, size_t length);
static size_t encode_word(const struct berth_tokens *tokens, const char *word, size_t length,
                          int32_t *out);

enum berth_code berth_tokens_load(const char *path, struct berth_tokens **out,
                                  struct berth_err *err)
{
    struct berth_tokens *tokens = berth_alloc(sizeof(*tokens));
    if (tokens == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
    }
    enum berth_code code = read_json(path, tokens, err);
    if (code == BERTH_OK) {
        *out = tokens;
        tokens = NULL;
    }
    berth_tokens_destroy(tokens);
    return code;
}

void berth_tokens_destroy(struct berth_tokens *tokens)
{
    if (tokens == NULL) {
        return;
    }
    for (size_t i = 0; i < tokens->special_count; i++) {
        berth_free(tokens->specials[i].content);
    }
    berth_free(tokens->specials);
    berth_free(tokens->merges);
    berth_free(tokens->by_text);
    berth_free(tokens->pieces);
    berth_buf_finish(&tokens->bytes);
    berth_free(tokens);
}

uint64_t berth_tokens_bytes(const struct berth_tokens *tokens)
{
    return sizeof(*tokens) + tokens->piece_count * sizeof(struct piece) + tokens->bytes.capacity +
           tokens->by_text_size * sizeof(int32_t) + tokens->merge_size * sizeof(struct merge) +
           tokens->special_count * sizeof(struct special);
}

size_t berth_tokens_piece(const struct berth_tokens *tokens, int32_t id, const char **bytes)
{
    if (id < 0 || (size_t)id >= tokens->piece_count) {
        *bytes = "";
        return 0;
    }
    *bytes = berth_buf_text(&tokens->bytes) + tokens->pieces[id].offset;
    return tokens->pieces[id].length;
}

int32_t berth_tokens_special(const struct berth_tokens *tokens, const char *content)
{
    for (size_t i = 0; i < tokens->special_count; i++) {
        if (strcmp(tokens->specials[i].content, content) == 0) {
            return tokens->specials[i].id;
        }
    }
    return -1;
}

void berth_tokens_decode(const struct berth_tokens *tokens, const int32_t *ids, size_t count,
                         int32_t end, struct berth_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < end) {
            const char *bytes = NULL;
            size_t length = berth_tokens_piece(tokens, ids[i], &bytes);
            berth_buf_append(out, bytes, length);
        }
    }
}

size_t berth_tokens_encode(const struct berth_tokens *tokens, const char *text, size_t length,
                           int32_t *out)
{
    size_t count = 0;
    while (length > 0) {
        size_t taken = word_length(text, length);
        if (taken > WORD_BYTES_MAX) {
            taken = WORD_BYTES_MAX;
        }
        count += encode_word(tokens, text, taken, out + count);
        text += taken;
        length -= taken;
    }
    return count;
}

/* --- the file --- */

/* A character of GPT-2's alphabet -> the byte it stands for, or -1. */
static int alphabet_byte(uint32_t point)
{
    if ((point >= 33 && point <= 126) || (point >= 161 && point <= 172) ||
        (point >= 174 && point <= 255)) {
        return (int)point;
    }
    if (point < 256 || point >= 256 + 68) {
        return -1;
    }
    uint32_t rest = point - 256; /* 0..32, 127..160, 173 in this order */
    if (rest < 33) {
        return (int)rest;
    }
    return rest < 67 ? (int)(rest - 33 + 127) : 173;
}

/* Alphabet text -> bytes (at most as many); false when a character is not in the alphabet. */
static bool to_bytes(const char *text, size_t length, char *out, size_t *out_length)
{
    size_t count = 0;
    while (length > 0) {
        uint32_t point = 0;
        size_t taken = berth_utf8_next(text, length, &point);
        int byte = alphabet_byte(point);
        if (byte < 0) {
            return false;
        }
        out[count++] = (char)(unsigned char)byte;
        text += taken;
        length -= taken;
    }
    *out_length = count;
    return true;
}

static uint64_t hash_bytes(const char *bytes, size_t length)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001B3);
    }
    return hash ^ hash >> 29;
}

static uint64_t hash_pair(uint64_t pair)
{
    pair = (pair ^ pair >> 31) * UINT64_C(0x9E3779B97F4A7C15);
    return pair ^ pair >> 29;
}

/* The place of a text in by_text: its id's, or the free one it would go to. */
static size_t text_place(const struct berth_tokens *tokens, const char *bytes, size_t length)
{
    size_t at = (size_t)hash_bytes(bytes, length) & (tokens->by_text_size - 1);
    while (tokens->by_text[at] >= 0) {
        const char *own = NULL;
        size_t own_length = berth_tokens_piece(tokens, tokens->by_text[at], &own);
        if (own_length == length && memcmp(own, bytes, length) == 0) {
            break;
        }
        at = (at + 1) & (tokens->by_text_size - 1);
    }
    return at;
}

static int32_t find_text(const struct berth_tokens *tokens, const char *bytes, size_t length)
{
    return tokens->by_text[text_place(tokens, bytes, length)];
}

static struct merge *merge_place(const struct berth_tokens *tokens, uint64_t pair)
{
    size_t at = (size_t)hash_pair(pair) & (tokens->merge_size - 1);
    while (tokens->merges[at].id >= 0 && tokens->merges[at].pair != pair) {
        at = (at + 1) & (tokens->merge_size - 1);
    }
    return &tokens->merges[at];
}

static const struct merge *find_merge(const struct berth_tokens *tokens, int32_t left,
                                      int32_t right)
{
    if (left < 0 || right < 0) {
        return NULL;
    }
    const struct merge *merge =
        merge_place(tokens, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return merge->id >= 0 ? merge : NULL;
}

static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size < 2 * count) {
        size *= 2;
    }
    return size;
}

static enum berth_code read_json(const char *path, struct berth_tokens *tokens,
                                 struct berth_err *err)
{
    json_t *root = NULL;
    BERTH_TRY(berth_json_file_read(path, FILE_BYTES_MAX, &root, err));
    const json_t *model = json_object_get(root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    enum berth_code code = BERTH_OK;
    if (type != NULL && strcmp(type, "BPE") != 0) {
        code = berth_fail(err, BERTH_UNSUPPORTED, "%s: model type \"%.40s\", only BPE is read",
                          path, type);
    } else {
        code = read_vocab(json_object_get(model, "vocab"), tokens, path, err);
    }
    if (code == BERTH_OK) {
        code = read_merges(json_object_get(model, "merges"), tokens, path, err);
    }
    if (code == BERTH_OK) {
        code = read_specials(json_object_get(root, "added_tokens"), tokens, path, err);
    }
    json_decref(root);
    return code;
}

static enum berth_code make_vocab_tables(const json_t *vocab, struct berth_tokens *tokens,
                                         const char *path, struct berth_err *err)
{
    const char *text = NULL;
    json_t *value = NULL;
    size_t count = 0;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= IDS_MAX ||
            strlen(text) > PIECE_BYTES_MAX) {
            return berth_fail(err, BERTH_INVALID, "%s: a bad entry in model.vocab", path);
        }
        count = (size_t)id + 1 > count ? (size_t)id + 1 : count;
    }
    if (count == 0) {
        return berth_fail(err, BERTH_INVALID, "%s: no model.vocab", path);
    }
    tokens->piece_count = count;
    tokens->by_text_size = table_size(json_object_size(vocab));
    tokens->pieces = berth_alloc(count * sizeof(*tokens->pieces));
    tokens->by_text = berth_alloc(tokens->by_text_size * sizeof(*tokens->by_text));
    if (tokens->pieces == NULL || tokens->by_text == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
    }
    for (size_t i = 0; i < tokens->by_text_size; i++) {
        tokens->by_text[i] = -1;
    }
    return BERTH_OK;
}

static enum berth_code read_vocab(const json_t *vocab, struct berth_tokens *tokens,
                                  const char *path, struct berth_err *err)
{
    const char *text = NULL;
    json_t *value = NULL;
    BERTH_TRY(make_vocab_tables(vocab, tokens, path, err));
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        char bytes[PIECE_BYTES_MAX];
        size_t length = 0;
        struct piece *piece = &tokens->pieces[json_integer_value(value)];
        if (!to_bytes(text, strlen(text), bytes, &length) || length == 0) {
            continue; /* an added token in the vocabulary: not text */
        }
        size_t place = text_place(tokens, bytes, length);
        if (piece->length != 0 || tokens->by_text[place] >= 0) {
            return berth_fail(err, BERTH_INVALID, "%s: an id stands twice in model.vocab", path);
        }
        piece->offset = (uint32_t)tokens->bytes.length;
        piece->length = (uint32_t)length;
        berth_buf_append(&tokens->bytes, bytes, length);
        if (!berth_buf_ok(&tokens->bytes)) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
        }
        tokens->by_text[place] = (int32_t)json_integer_value(value);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char one = (char)(unsigned char)byte;
        tokens->byte_ids[byte] = find_text(tokens, &one, 1);
    }
    return BERTH_OK;
}

/* "a b" or ["a", "b"] -> the two halves, as bytes one after the other. */
static bool merge_halves(const json_t *item, char *bytes, size_t *left, size_t *length)
{
    const char *a = json_string_value(item);
    const char *b = NULL;
    size_t a_length = 0;
    if (json_is_array(item)) {
        a = json_string_value(json_array_get(item, 0));
        b = json_string_value(json_array_get(item, 1));
        a_length = a == NULL ? 0 : strlen(a);
    } else if (a != NULL) {
        const char *space = strchr(a, ' ');
        b = space == NULL ? NULL : space + 1;
        a_length = space == NULL ? 0 : (size_t)(space - a);
    }
    if (a_length == 0 || b == NULL || a_length + strlen(b) > PIECE_BYTES_MAX) {
        return false;
    }
    size_t right = 0;
    if (!to_bytes(a, a_length, bytes, left) || !to_bytes(b, strlen(b), bytes + *left, &right)) {
        return false;
    }
    *length = *left + right;
    return true;
}

static enum berth_code read_merges(const json_t *list, struct berth_tokens *tokens,
                                   const char *path, struct berth_err *err)
{
    size_t count = json_array_size(list);
    if (count > MERGES_MAX) {
        return berth_fail(err, BERTH_INVALID, "%s: too many merges", path);
    }
    tokens->merge_size = table_size(count);
    tokens->merges = berth_alloc(tokens->merge_size * sizeof(*tokens->merges));
    if (tokens->merges == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
    }
    for (size_t i = 0; i < tokens->merge_size; i++) {
        tokens->merges[i].id = -1;
    }
    for (size_t i = 0; i < count; i++) {
        char bytes[PIECE_BYTES_MAX];
        size_t left = 0;
        size_t length = 0;
        if (!merge_halves(json_array_get(list, i), bytes, &left, &length)) {
            return berth_fail(err, BERTH_INVALID, "%s: merge %zu cannot be read", path, i);
        }
        int32_t a = find_text(tokens, bytes, left);
        int32_t b = find_text(tokens, bytes + left, length - left);
        int32_t joined = find_text(tokens, bytes, length);
        if (a < 0 || b < 0 || joined < 0) {
            return berth_fail(err, BERTH_INVALID, "%s: merge %zu is not in the vocabulary", path,
                              i);
        }
        uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
        struct merge *merge = merge_place(tokens, pair);
        if (merge->id < 0) {
            *merge = (struct merge){.pair = pair, .rank = (int32_t)i, .id = joined};
        }
    }
    return BERTH_OK;
}

static enum berth_code read_specials(const json_t *list, struct berth_tokens *tokens,
                                     const char *path, struct berth_err *err)
{
    size_t count = json_array_size(list);
    if (count > IDS_MAX) {
        return berth_fail(err, BERTH_INVALID, "%s: too many added tokens", path);
    }
    if (count == 0) {
        return BERTH_OK;
    }
    tokens->specials = berth_alloc(count * sizeof(*tokens->specials));
    if (tokens->specials == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *id = json_object_get(item, "id");
        const char *content = json_string_value(json_object_get(item, "content"));
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= IDS_MAX || content == NULL) {
            return berth_fail(err, BERTH_INVALID, "%s: added token %zu cannot be read", path, i);
        }
        struct special *special = &tokens->specials[i];
        special->id = (int32_t)json_integer_value(id);
        special->content = berth_strdup(content);
        if (special->content == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory for %s", path);
        }
        tokens->special_count++;
    }
    return BERTH_OK;
}

/* --- splitting and merging --- */

enum kind { KIND_SPACE, KIND_LETTER, KIND_NUMBER, KIND_OTHER };

static bool in_ranges(const struct unicode_range *ranges, size_t count, uint32_t point)
{
    size_t low = 0;
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        if (point > ranges[middle].last) {
            low = middle + 1;
        } else if (point < ranges[middle].first) {
            count = middle;
        } else {
            return true;
        }
    }
    return false;
}

static enum kind kind_of(uint32_t point)
{
    if ((point >= 9 && point <= 13) || point == ' ' || point == 0x85 || point == 0xA0 ||
        point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 ||
        point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000) {
        return KIND_SPACE;
    }
    if (in_ranges(unicode_letters, BERTH_COUNT_OF(unicode_letters), point)) {
        return KIND_LETTER;
    }
    if (in_ranges(unicode_numbers, BERTH_COUNT_OF(unicode_numbers), point)) {
        return KIND_NUMBER;
    }
    return KIND_OTHER;
}

/* Bytes of the longest run of one kind from the start; *last is the length of its last character.
 */
static size_t run_length(const char *text, size_t length, enum kind kind, size_t *last)
{
    size_t at = 0;
    while (at < length) {
        uint32_t point = 0;
        size_t taken = berth_utf8_next(text + at, length - at, &point);
        if (kind_of(point) != kind) {
            break;
        }
        *last = taken;
        at += taken;
    }
    return at;
}

static size_t contraction_length(const char *text, size_t length)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < BERTH_COUNT_OF(endings); i++) {
        size_t count = strlen(endings[i]);
        if (count <= length && memcmp(text, endings[i], count) == 0) {
            return count;
        }
    }
    return 0;
}

/* GPT-2's pattern: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t word_length(const char *text, size_t length)
{
    size_t last = 0;
    size_t taken = contraction_length(text, length);
    if (taken > 0) {
        return taken;
    }
    size_t space = text[0] == ' ' && length > 1 ? 1 : 0;
    uint32_t point = 0;
    (void)berth_utf8_next(text + space, length - space, &point);
    enum kind kind = kind_of(point);
    if (kind != KIND_SPACE) {
        return space + run_length(text + space, length - space, kind, &last);
    }
    taken = run_length(text, length, KIND_SPACE, &last);
    return taken == length || taken == last ? taken : taken - last;
}

static size_t encode_word(const struct berth_tokens *tokens, const char *word, size_t length,
                          int32_t *out)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t id = tokens->byte_ids[(unsigned char)word[i]];
        if (id >= 0) { /* a vocabulary without some byte cannot say it */
            out[count++] = id;
        }
    }
    while (count > 1) {
        const struct merge *best = NULL;
        for (size_t i = 0; i + 1 < count; i++) {
            const struct merge *merge = find_merge(tokens, out[i], out[i + 1]);
            if (merge != NULL && (best == NULL || merge->rank < best->rank)) {
                best = merge;
            }
        }
        if (best == NULL) {
            break;
        }
        int32_t left = (int32_t)(best->pair >> 32);
        int32_t right = (int32_t)(best->pair & UINT32_MAX);
        size_t kept = 0;
        for (size_t i = 0; i < count; kept++) { /* every such pair, from the left */
            bool joins = out[i] == left && i + 1 < count && out[i + 1] == right;
            out[kept] = joins ? best->id : out[i];
            i += joins ? 2 : 1;
        }
        count = kept;
    }
    return count;
}
