/* remote.h - the commands' view of a running server, over libcurl. */
#ifndef BERTH_REMOTE_H
#define BERTH_REMOTE_H

#include "base/buf.h"
#include "base/config.h"
#include "base/err.h"

/* Before the calls below, once: whether --server and --tls-ca can be used as they were typed. */
enum berth_code berth_remote_check(const struct berth_config *config,
                                   struct berth_err *err) BERTH_MUST_USE;
/* Sends each file to config->server and prints its answers; returns the exit status. */
int berth_remote_transcribe(const struct berth_config *config);
/* One file's answer in config->format. */
enum berth_code berth_remote_transcription(const struct berth_config *config, const char *path,
                                           struct berth_buf *answer,
                                           struct berth_err *err) BERTH_MUST_USE;
struct berth_remote_answer {
    long status; /* HTTP's */
    struct berth_buf body;
};

/* POSTs `body` (NULL: GET) to the server's path. The caller finishes answer->body, whatever is
 * returned. UNAVAILABLE when there is no answer. */
enum berth_code berth_remote_call(const struct berth_config *config, const char *path,
                                  const char *body, struct berth_remote_answer *answer,
                                  struct berth_err *err) BERTH_MUST_USE;

/* Says what an answer other than 200 tells; returns err's code, never OK. */
enum berth_code berth_remote_refused(const struct berth_buf *answer, long status,
                                     struct berth_err *err);

#endif
