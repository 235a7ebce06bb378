/* file.h - opening and reading files whose names come from outside.
 *
 * What such a name stands for may be a FIFO or a device: opening it must not wait, and only regular
 * files are read. Threads: any.
 */
#ifndef BERTH_FILE_H
#define BERTH_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* *fd is the caller's to close, *bytes the file's length. NOT_FOUND: there is none; INVALID: no
 * regular file, or it may not be read; UNAVAILABLE: no descriptors or no memory for it. Messages
 * begin with what is wrong and name the path; errno is what the system said, 0: no regular file. */
enum berth_code berth_file_open(const char *path, int *fd, uint64_t *bytes,
                                struct berth_err *err) BERTH_MUST_USE;

/* A whole file of at most bytes_max as text: *out, NUL behind it, is the caller's to free. As
 * berth_file_open, and TOO_LARGE; INVALID too: it became shorter; UNAVAILABLE too: no memory, or it
 * cannot be read. */
enum berth_code berth_file_load(const char *path, size_t bytes_max, char **out, size_t *length,
                                struct berth_err *err) BERTH_MUST_USE;

/* Bytes read from where the file stands, fewer than `bytes` at its end; -1: errno says why. */
ptrdiff_t berth_file_read(int fd, void *to, size_t bytes) BERTH_MUST_USE;

#endif
