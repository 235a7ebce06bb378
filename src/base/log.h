/* log.h - one structured line per event on standard error:
 *     2026-11-29T17:51:43.123456Z INFO sched req=42 msg="batch closed" model=identity rows=8
 *
 * Text values are quoted and escaped, so that no client can forge a line; beyond 1000 lines a
 * second those below ERROR are left out and counted. Any thread. Logging never waits for who reads
 * standard error: about 1000 lines do; what is more is dropped, and the next one says dropped=N.
 */
#ifndef BERTH_LOG_H
#define BERTH_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum berth_log_level { BERTH_LOG_ERROR, BERTH_LOG_WARN, BERTH_LOG_INFO, BERTH_LOG_DEBUG };

void berth_log_set_level(enum berth_log_level level);
/* "error", "warn", "info" or "debug", and sets it; INVALID otherwise. */
enum berth_code berth_log_parse_level(const char *name, struct berth_err *err) BERTH_MUST_USE;
bool berth_log_enabled(enum berth_log_level level);
/* request_id 0: not about one request. format is the message, then any number of " key=%s": what
 * stands before the first key becomes msg="...", values are quoted where they need it:
 *     berth_log_info("sched", request->id, "batch closed model=%s rows=%zu", name, rows); */
void berth_log(enum berth_log_level level, const char *module, uint64_t request_id,
               const char *format, ...) BERTH_PRINTF(4, 5);
/* Logs an error once, where it is answered: code, field, message, file and line. */
void berth_log_err(enum berth_log_level level, const char *module, uint64_t request_id,
                   const struct berth_err *err);
/* The same, with the model it is about; NULL: none is known. */
void berth_log_err_model(enum berth_log_level level, const char *module, uint64_t request_id,
                         const struct berth_err *err, const char *model);
/* Before _exit(): waits until all lines are out, at most a second. exit() does it by itself. */
void berth_log_flush(void);

#define berth_log_error(module, id, ...) berth_log(BERTH_LOG_ERROR, module, id, __VA_ARGS__)
#define berth_log_warn(module, id, ...) berth_log(BERTH_LOG_WARN, module, id, __VA_ARGS__)
#define berth_log_info(module, id, ...) berth_log(BERTH_LOG_INFO, module, id, __VA_ARGS__)
#define berth_log_debug(module, id, ...) berth_log(BERTH_LOG_DEBUG, module, id, __VA_ARGS__)

#endif
