/* cli.c - what all commands share. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int berth_cli_fail(const struct berth_err *err)
{
    fprintf(stderr, "berth: %s\n", err->msg);
    return err->field != NULL && strcmp(err->field, BERTH_CLI_MISUSE) == 0 ? 2 : 1;
}

int berth_cli_fail_file(const char *path, const struct berth_err *err)
{
    fprintf(stderr, "berth: %s: %s\n", path, err->msg);
    return 1;
}

int berth_cli_fail_models(const struct berth_config *config, const struct berth_err *err)
{
    int status = berth_cli_fail(err);
    if (err->code == BERTH_NOT_FOUND && access(config->models, F_OK) != 0) {
        fprintf(stderr, "berth: --models names a folder of models; make models, where berth was "
                        "built, prepares models/\n");
    }
    return status;
}
