/* fuzz_keys.c - any bytes as a file of API keys: refused as a whole, or every key of it and no
 * other comes in.
 *
 * What is accepted names as many keys as it has; without its last line it has the same keys or one
 * less; with one more line it has one more, which then comes in, and came in before only if its sum
 * stood in the file. */
#include <openssl/sha.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api/keys.c"

#define SECRET "secret"
#define SECRET_SUM "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static struct berth_key_set *read_keys(const uint8_t *bytes, size_t length, const char *more)
{
    static int fd = -1;
    char path[64];
    struct berth_key_set *keys = NULL;
    struct berth_err err = {0};
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    }
    size_t extra = strlen(more);
    BERTH_ASSERT(fd >= 0 && ftruncate(fd, (off_t)(length + extra)) == 0);
    BERTH_ASSERT(pwrite(fd, bytes, length, 0) == (ssize_t)length);
    BERTH_ASSERT(pwrite(fd, more, extra, (off_t)length) == (ssize_t)extra);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    enum berth_code code = berth_keys_read(path, &keys, &err);
    BERTH_ASSERT((code == BERTH_OK) == (keys != NULL));
    BERTH_ASSERT(code == BERTH_OK || ((code == BERTH_INVALID || code == BERTH_TOO_LARGE) &&
                                      err.code == code && err.msg[0] != '\0'));
    return keys;
}

static bool lets_in(const struct berth_key_set *keys, const char *authorization)
{
    struct berth_err err = {0};
    enum berth_code code = berth_keys_check(keys, authorization, &err);
    BERTH_ASSERT(code == BERTH_OK || (code == BERTH_UNAUTHENTICATED && err.msg[0] != '\0'));
    return code == BERTH_OK;
}

static bool holds(const uint8_t *bytes, size_t length, const char *text)
{
    size_t size = strlen(text);
    for (size_t i = 0; i + size <= length; i++) {
        if (strncasecmp((const char *)bytes + i, text, size) == 0) {
            return true;
        }
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct berth_key_set *keys = read_keys(bytes, length, "");
    if (keys == NULL) {
        return 0;
    }
    size_t marks = 0;
    for (size_t i = 0; i < length; i++) {
        BERTH_ASSERT(bytes[i] != '\0');
        marks += i + 7 <= length && memcmp(bytes + i, "sha256:", 7) == 0;
    }
    BERTH_ASSERT(keys->count > 0 && keys->count <= marks && keys->count <= KEYS_MAX);
    bool known = lets_in(keys, "Bearer " SECRET);
    BERTH_ASSERT(!known || holds(bytes, length, SECRET_SUM));
    BERTH_ASSERT(!lets_in(keys, "Bearer ") && !lets_in(keys, "Basic " SECRET));
    struct berth_key_set *more = read_keys(bytes, length, "\nsha256:" SECRET_SUM);
    BERTH_ASSERT(more != NULL || keys->count == KEYS_MAX || length > KEYS_BYTES_MAX - 128);
    if (more != NULL) {
        BERTH_ASSERT(more->count == keys->count + 1 && lets_in(more, "Bearer " SECRET));
        BERTH_ASSERT(memcmp(more->keys, keys->keys, keys->count * sizeof(*keys->keys)) == 0);
    }
    const uint8_t *cut = memrchr(bytes, '\n', length);
    struct berth_key_set *fewer = cut == NULL ? NULL : read_keys(bytes, (size_t)(cut - bytes), "");
    if (fewer != NULL) {
        BERTH_ASSERT(fewer->count == keys->count || fewer->count == keys->count - 1);
        BERTH_ASSERT(memcmp(fewer->keys, keys->keys, fewer->count * sizeof(*keys->keys)) == 0);
    }
    BERTH_ASSERT(cut == NULL || fewer != NULL || keys->count == 1);
    berth_keys_destroy(fewer);
    berth_keys_destroy(more);
    berth_keys_destroy(keys);
    return 0;
}
