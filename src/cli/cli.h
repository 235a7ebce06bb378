/* cli.h - the commands; each returns the process' exit status. */
#ifndef BERTH_CLI_H
#define BERTH_CLI_H

#include "base/config.h"

int berth_cli_serve(const struct berth_config *config);
int berth_cli_transcribe(const struct berth_config *config);
int berth_cli_models(const struct berth_config *config);
int berth_cli_doctor(const struct berth_config *config);
int berth_cli_bench(const struct berth_config *config);
/* As berth_fail, for what was typed: the exit status is 2, as of options that cannot be read. */
#define berth_cli_misuse(err, ...)                                                                 \
    berth_fail_field((err), BERTH_INVALID, BERTH_CLI_MISUSE, __VA_ARGS__)
#define BERTH_CLI_MISUSE "command line"

/* Says on standard error what went wrong; returns 1, or 2 of misuse. */
int berth_cli_fail(const struct berth_err *err);
/* The same, of one file. */
int berth_cli_fail_file(const char *path, const struct berth_err *err);
/* The same, and how to come by models where --models names no folder. */
int berth_cli_fail_models(const struct berth_config *config, const struct berth_err *err);

/* Before anything is opened: a standard descriptor that is closed would be the next file's. What is
 * written to such a one is an error, not in that file. */
void berth_cli_keep_standard(void);
/* Whether all that was printed has arrived; says so on standard error the first time it has not. */
bool berth_cli_printed(void);
/* The exit status of a command that ends with `status`: 1 where what it printed has not arrived. */
int berth_cli_end(int status);

/* A file to be heard, as it was typed: a regular one that may be read and is not empty. *fd is the
 * caller's to close. The text does not name it. */
enum berth_code berth_cli_open_audio(const char *path, int *fd, uint64_t *bytes,
                                     struct berth_err *err) BERTH_MUST_USE;

#endif
