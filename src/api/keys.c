/* keys.c - API keys, kept as SHA-256 sums only.
 *
 * The file has one key a line: `sha256:HEX [name]`; '#' starts a comment. A client's key is hashed
 * and compared with every sum in constant time, so that neither the file nor timing gives a key
 * away.
 */
#include <ctype.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>
#include <strings.h>

#include "api/call.h"
#include "base/file.h"
#include "base/mem.h"

#define KEYS_MAX 10000
#define KEYS_BYTES_MAX (8u << 20) /* more than that many lines of the longest */
#define KEY_LINE_MAX 512          /* without its end */
#define KEY_LENGTH_MAX 512

struct key {
    unsigned char sum[SHA256_DIGEST_LENGTH];
};

struct berth_key_set {
    struct key *keys; /* owned */
    size_t count;
};

static enum berth_code read_lines(struct berth_key_set *set, char *text, size_t length,
                                  struct berth_err *err);
static enum berth_code read_line(struct berth_key_set *set, char *line, int number,
                                 struct berth_err *err);
static bool read_hex(const char *text, unsigned char *sum);

enum berth_code berth_keys_read(const char *path, struct berth_key_set **out, struct berth_err *err)
{
    char *text = NULL;
    size_t length = 0;
    BERTH_TRY(berth_file_load(path, KEYS_BYTES_MAX, &text, &length, err));
    enum berth_code code = BERTH_OK;
    struct berth_key_set *set = berth_alloc(sizeof(*set));
    size_t lines = 1;
    for (size_t i = 0; i < length && lines < KEYS_MAX; i++) {
        lines += text[i] == '\n';
    }
    if (set != NULL) {
        set->keys = berth_alloc(lines * sizeof(*set->keys));
    }
    if (set == NULL || set->keys == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for keys");
        goto out;
    }
    code = read_lines(set, text, length, err);
    if (code != BERTH_OK) {
        goto out;
    }
    if (set->count == 0) {
        code = berth_fail(err, BERTH_INVALID, "keys file %s has no key", path);
        goto out;
    }
    *out = set;
    set = NULL;
out:
    berth_keys_destroy(set);
    berth_free(text);
    return code;
}

void berth_keys_destroy(struct berth_key_set *keys)
{
    if (keys != NULL) {
        berth_free(keys->keys);
        berth_free(keys);
    }
}

enum berth_code berth_keys_check(const struct berth_key_set *keys, const char *authorization,
                                 struct berth_err *err)
{
    if (authorization == NULL || strncasecmp(authorization, "Bearer ", 7) != 0) {
        return berth_fail_field(err, BERTH_UNAUTHENTICATED, "Authorization",
                                "an API key is needed: send the header Authorization: Bearer KEY");
    }
    const char *key = authorization + 7;
    size_t length = strnlen(key, KEY_LENGTH_MAX + 1);
    unsigned char sum[SHA256_DIGEST_LENGTH];
    if (length <= KEY_LENGTH_MAX) {
        SHA256((const unsigned char *)key, length, sum);
        bool known = false;
        for (size_t i = 0; i < keys->count; i++) {
            known = CRYPTO_memcmp(sum, keys->keys[i].sum, sizeof(sum)) == 0 || known;
        }
        if (known) {
            return BERTH_OK;
        }
    }
    return berth_fail_field(err, BERTH_UNAUTHENTICATED, "Authorization",
                            "this API key is not known");
}

/* Half of the keys would lock clients out: one line that cannot be read and none counts. */
static enum berth_code read_lines(struct berth_key_set *set, char *text, size_t length,
                                  struct berth_err *err)
{
    char *line = text;
    for (int number = 1; line < text + length; number++) {
        size_t left = (size_t)(text + length - line);
        char *end = memchr(line, '\n', left);
        size_t bytes = end == NULL ? left : (size_t)(end - line);
        if (bytes > KEY_LINE_MAX) {
            return berth_fail(err, BERTH_INVALID, "keys file, line %d: longer than %d bytes",
                              number, KEY_LINE_MAX);
        }
        if (memchr(line, '\0', bytes) != NULL) {
            return berth_fail(err, BERTH_INVALID, "keys file, line %d: has a NUL in it", number);
        }
        line[bytes] = '\0'; /* in the line's end, or behind the text, where one is already */
        BERTH_TRY(read_line(set, line, number, err));
        line += bytes + 1;
    }
    return BERTH_OK;
}

static enum berth_code read_line(struct berth_key_set *set, char *line, int number,
                                 struct berth_err *err)
{
    line[strcspn(line, "#\r")] = '\0';
    const char *at = line + strspn(line, " \t");
    if (*at == '\0') {
        return BERTH_OK;
    }
    if (set->count == KEYS_MAX) {
        return berth_fail(err, BERTH_TOO_LARGE, "keys file: more than %d keys", KEYS_MAX);
    }
    struct key *key = &set->keys[set->count];
    if (strncmp(at, "sha256:", 7) != 0 || !read_hex(at + 7, key->sum)) {
        return berth_fail(err, BERTH_INVALID,
                          "keys file, line %d: expected sha256: and 64 hex digits", number);
    }
    const char *name = at + 7 + 64; /* for people */
    if (*name != '\0' && *name != ' ' && *name != '\t') {
        return berth_fail(err, BERTH_INVALID, "keys file, line %d: more than 64 hex digits",
                          number);
    }
    unsigned char none[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)"", 0, none);
    if (memcmp(key->sum, none, sizeof(none)) == 0) { /* `sha256sum` of a variable not set */
        return berth_fail(err, BERTH_INVALID,
                          "keys file, line %d: this is the sum of an empty key", number);
    }
    set->count++;
    return BERTH_OK;
}

static bool read_hex(const char *text, unsigned char *sum)
{
    for (size_t i = 0; i < SHA256_DIGEST_LENGTH; i++) {
        unsigned value = 0;
        for (size_t j = 0; j < 2; j++) {
            unsigned char c = (unsigned char)text[2 * i + j];
            if (!isxdigit(c)) {
                return false;
            }
            value = value * 16 + (unsigned)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
        }
        sum[i] = (unsigned char)value;
    }
    return true;
}
