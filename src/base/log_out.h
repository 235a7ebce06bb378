/* log_out.h - lines to standard error, whoever reads it or not; private to base/.
 *
 * No call waits for the reader but those for the end of the process, which wait so long.
 * Threads: any. Lines of one thread keep their order.
 */
#ifndef BERTH_LOG_OUT_H
#define BERTH_LOG_OUT_H

#include <stdbool.h>
#include <stddef.h>

/* With its '\n', and no other. As long as a pipe takes whole: processes that share one do not mix
 * their lines. */
#define BERTH_LOG_LINE_MAX 4096

/* Takes a line (at most BERTH_LOG_LINE_MAX bytes, ending in '\n') to be written now or soon. Where
 * there is no room it is dropped, and the next line that is taken says how many were. */
void berth_log_out_put(const char *line, size_t length);
/* Waits until all lines are out, at most a second; whether they are. exit() does it by itself. */
bool berth_log_out_flush(void);
/* Before abort(): puts and flushes. A process that has logged nothing yet does no more than one
 * write(2), the only way that a sandbox leaves open. */
void berth_log_out_last(const char *line, size_t length);

#endif
