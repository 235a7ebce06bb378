/* cli.c - what all commands share. */
#include "cli/cli.h"

#include <stdio.h>

int berth_cli_fail(const struct berth_err *err)
{
    fprintf(stderr, "berth: %s\n", err->msg);
    return 1;
}
