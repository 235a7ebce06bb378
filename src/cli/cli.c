/* cli.c - what all commands share. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

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

void berth_cli_keep_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) { /* the lowest free one, so open() takes it */
            (void)!open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
        }
    }
}

bool berth_cli_printed(void)
{
    static bool told;
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return true;
    }
    if (!told) {
        fprintf(stderr, "berth: cannot write to standard output: %s\n",
                errno == EBADF ? "it is closed" : errno == 0 ? "a part is lost" : strerror(errno));
    }
    told = true;
    return false;
}

int berth_cli_end(int status)
{
    return berth_cli_printed() || status != 0 ? status : 1;
}

enum berth_code berth_cli_open_audio(const char *path, int *fd, uint64_t *bytes,
                                     struct berth_err *err)
{
    if (strcmp(path, "-") == 0) {
        return berth_fail(err, BERTH_INVALID, "standard input is not read; give a file's name");
    }
    enum berth_code code = berth_file_open(path, fd, bytes, NULL);
    if (code != BERTH_OK) {
        return errno == 0 ? berth_fail(err, code, "not a regular file")
                          : berth_fail(err, code, "cannot open: %s", strerror(errno));
    }
    if (*bytes == 0) {
        close(*fd);
        return berth_fail(err, BERTH_INVALID, "no audio: the file is empty");
    }
    return BERTH_OK;
}
