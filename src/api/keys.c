/* keys.c - API keys, kept as SHA-256 sums only.
 *
 * The file has one key a line: `sha256:HEX [name]`; '#' starts a comment. A client's key is hashed
 * and compared with every sum in constant time, so that neither the file nor timing gives a key
 * away.
 */
#include <ctype.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/call.h"
#include "base/mem.h"

#define KEYS_MAX 10000
#define KEY_LINE_MAX 512
#define KEY_LENGTH_MAX 512

struct key {
    unsigned char sum[SHA256_DIGEST_LENGTH];
};

struct berth_key_set {
    struct key *keys; /* owned */
    size_t count;
};

static enum berth_code read_line(struct berth_key_set *set, char *line, int number,
                                 struct berth_err *err);
static bool read_hex(const char *text, unsigned char *sum);

enum berth_code berth_keys_read(const char *path, struct berth_key_set **out, struct berth_err *err)
{
    struct berth_key_set *set = NULL;
    enum berth_code code = BERTH_OK;
    char line[KEY_LINE_MAX];
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return berth_fail(err, BERTH_NOT_FOUND, "cannot open keys file %s", path);
    }
    set = berth_alloc(sizeof(*set));
    if (set == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for keys");
        goto out;
    }
    set->keys = berth_alloc(KEYS_MAX * sizeof(*set->keys));
    if (set->keys == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for keys");
        goto out;
    }
    for (int number = 1; fgets(line, sizeof(line), file) != NULL; number++) {
        if (strlen(line) == sizeof(line) - 1) {
            code = berth_fail(err, BERTH_INVALID, "keys file, line %d: longer than %d bytes",
                              number, KEY_LINE_MAX);
            goto out;
        }
        code = read_line(set, line, number, err);
        if (code != BERTH_OK) {
            goto out;
        }
    }
    if (ferror(file)) { /* half of the keys would lock clients out */
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot read keys file %s", path);
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
    fclose(file);
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

static enum berth_code read_line(struct berth_key_set *set, char *line, int number,
                                 struct berth_err *err)
{
    line[strcspn(line, "#\r\n")] = '\0';
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
