/* fuzz_folder.h - a model's folder made of the fuzzer's bytes: files in memory behind links, cut
 * from one input at its NULs. A file whose piece is empty is not there. */
#ifndef BERTH_FUZZ_FOLDER_H
#define BERTH_FUZZ_FOLDER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

#define FOLDER_FILES_MAX 8

static struct folder {
    char path[32];
    const char *const *names;
    size_t count;
    int fds[FOLDER_FILES_MAX];
    bool linked[FOLDER_FILES_MAX];
} folder;

static inline void folder_link(size_t index, bool there)
{
    char path[96], target[64];
    if (folder.linked[index] == there) {
        return;
    }
    snprintf(path, sizeof(path), "%s/%s", folder.path, folder.names[index]);
    snprintf(target, sizeof(target), "/proc/self/fd/%d", folder.fds[index]);
    BERTH_ASSERT(there ? symlink(target, path) == 0 : unlink(path) == 0);
    folder.linked[index] = there;
}

static inline void folder_remove(void)
{
    for (size_t i = 0; i < folder.count; i++) {
        folder_link(i, false);
    }
    rmdir(folder.path);
}

static inline void folder_make(const char *const *names, size_t count)
{
    BERTH_ASSERT(count <= FOLDER_FILES_MAX);
    snprintf(folder.path, sizeof(folder.path), "/tmp/berth-fuzz-XXXXXX");
    BERTH_ASSERT(mkdtemp(folder.path) != NULL);
    folder.names = names;
    folder.count = count;
    for (size_t i = 0; i < count; i++) {
        folder.fds[i] = memfd_create("fuzz", MFD_CLOEXEC);
        BERTH_ASSERT(folder.fds[i] >= 0);
    }
    atexit(folder_remove);
}

/* The files' pieces of the input; what is behind the last of them is left. */
static inline void folder_fill(const uint8_t **bytes, size_t *length)
{
    for (size_t i = 0; i < folder.count; i++) {
        const uint8_t *end = *length == 0 ? NULL : memchr(*bytes, '\0', *length);
        size_t piece = end == NULL ? *length : (size_t)(end - *bytes);
        BERTH_ASSERT(ftruncate(folder.fds[i], (off_t)piece) == 0);
        BERTH_ASSERT(pwrite(folder.fds[i], *bytes, piece, 0) == (ssize_t)piece);
        folder_link(i, piece > 0);
        *bytes += piece + (end != NULL);
        *length -= piece + (end != NULL);
    }
}

#endif
