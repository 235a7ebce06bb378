/* readable.h - asks the system about memory that a test must not touch. Included after cmocka. */
#ifndef BERTH_READABLE_H
#define BERTH_READABLE_H

#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

/* Can the system read that byte? It says so instead of a fault. */
static bool readable(const void *byte)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    ssize_t done = write(ends[1], byte, 1);
    int error = errno;
    close(ends[0]);
    close(ends[1]);
    assert_true(done == 1 || error == EFAULT);
    return done == 1;
}

#endif
