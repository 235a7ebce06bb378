/* file.c - see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum berth_code berth_file_open(const char *path, int *fd, uint64_t *bytes, struct berth_err *err)
{
    struct stat status;
    enum berth_code code;
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int failed = opened < 0 || fstat(opened, &status) != 0 ? errno : 0;
    if (failed == 0 && S_ISREG(status.st_mode) && status.st_size >= 0) {
        *fd = opened;
        *bytes = (uint64_t)status.st_size;
        return BERTH_OK;
    }
    if (opened >= 0) {
        close(opened);
    }
    if (failed == 0 || failed == ENXIO) { /* a socket's, and that of a FIFO or device alone */
        failed = 0;
        code = berth_fail(err, BERTH_INVALID, "%s is not a file", path);
    } else {
        bool ours = failed == EMFILE || failed == ENFILE || failed == ENOMEM;
        bool nothing = failed == ENOENT || failed == ENOTDIR;
        code = berth_fail(err, ours ? BERTH_UNAVAILABLE : nothing ? BERTH_NOT_FOUND : BERTH_INVALID,
                          "cannot open %s: %s", path, strerror(failed));
    }
    errno = failed;
    return code;
}

enum berth_code berth_file_load(const char *path, size_t bytes_max, char **out, size_t *length,
                                struct berth_err *err)
{
    int fd = -1;
    uint64_t bytes = 0;
    BERTH_TRY(berth_file_open(path, &fd, &bytes, err));
    char *text = bytes > bytes_max ? NULL : berth_alloc((size_t)bytes + 1);
    ptrdiff_t got = text == NULL ? 0 : berth_file_read(fd, text, (size_t)bytes);
    enum berth_code code = BERTH_OK;
    if (bytes > bytes_max) {
        code = berth_fail(err, BERTH_TOO_LARGE, "%s is larger than %zu bytes", path, bytes_max);
    } else if (text == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory to read %s", path);
    } else if (got < 0) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot read %s: %s", path, strerror(errno));
    } else if ((uint64_t)got < bytes) {
        code = berth_fail(err, BERTH_INVALID, "%s ended early", path);
    }
    close(fd);
    if (code != BERTH_OK) {
        berth_free(text);
        return code;
    }
    *out = text;
    *length = (size_t)got;
    return BERTH_OK;
}

ptrdiff_t berth_file_read(int fd, void *to, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = read(fd, (char *)to + done, bytes - done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            break;
        }
        done += (size_t)got;
    }
    return (ptrdiff_t)done;
}
