/* remote.c - see remote.h. */
#include "cli/remote.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define ANSWER_BYTES_MAX (256u << 20)
#define URL_MAX 2048

static enum berth_code open_handle(const struct berth_config *config, const char *path, CURL **curl,
                                   struct curl_slist **headers, struct berth_err *err);
static enum berth_code perform(CURL *curl, struct berth_buf *answer, long *status,
                               struct berth_err *err);
static bool add_field(curl_mime *form, const char *name, const char *value);
static size_t take_bytes(char *bytes, size_t size, size_t count, void *buf);

int berth_remote_transcribe(const struct berth_config *config)
{
    int status = 0;
    for (size_t i = 0; i < config->arguments.count; i++) {
        const char *path = config->arguments.items[i];
        struct berth_buf answer = {0};
        struct berth_err err = {0};
        fprintf(stderr, "%s: sending to %s\n", path, config->server);
        if (berth_remote_transcription(config, path, &answer, &err) == BERTH_OK) {
            fwrite(berth_buf_text(&answer), 1, answer.length, stdout);
            fflush(stdout);
        } else {
            status = berth_cli_fail_file(path, &err);
        }
        berth_buf_finish(&answer);
    }
    return status;
}

enum berth_code berth_remote_call(const struct berth_config *config, const char *path,
                                  const char *body, struct berth_remote_answer *answer,
                                  struct berth_err *err)
{
    CURL *curl = NULL;
    struct curl_slist *headers = NULL;
    enum berth_code code = open_handle(config, path, &curl, &headers, err);
    if (code == BERTH_OK) {
        if (body != NULL) {
            curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
        }
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
        code = perform(curl, &answer->body, &answer->status, err);
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code;
}

static enum berth_code open_handle(const struct berth_config *config, const char *path, CURL **curl,
                                   struct curl_slist **headers, struct berth_err *err)
{
    char url[URL_MAX];
    char line[URL_MAX];
    size_t length = strlen(config->server);
    while (length > 0 && config->server[length - 1] == '/') {
        length--;
    }
    int written = snprintf(url, sizeof(url), "%.*s%s", (int)length, config->server, path);
    *curl = curl_easy_init();
    if (*curl == NULL || written >= (int)sizeof(url)) {
        return berth_fail(err, BERTH_INVALID, "--server %.100s cannot be used", config->server);
    }
    curl_easy_setopt(*curl, CURLOPT_URL, url);
    curl_easy_setopt(*curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(*curl, CURLOPT_NOSIGNAL, 1L);
    if (config->key[0] != '\0') {
        snprintf(line, sizeof(line), "Authorization: Bearer %s", config->key);
        *headers = curl_slist_append(NULL, line);
    }
    return BERTH_OK;
}

static enum berth_code perform(CURL *curl, struct berth_buf *answer, long *status,
                               struct berth_err *err)
{
    const char *url = "";
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
    CURLcode result = curl_easy_perform(curl);
    if (result != CURLE_OK) {
        curl_easy_getinfo(curl, CURLINFO_EFFECTIVE_URL, &url);
        return berth_fail(err, BERTH_UNAVAILABLE, "no answer from %.120s: %s", url,
                          curl_easy_strerror(result));
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
    return berth_buf_ok(answer) ? BERTH_OK
                                : berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
}

enum berth_code berth_remote_transcription(const struct berth_config *config, const char *path,
                                           struct berth_buf *answer, struct berth_err *err)
{
    CURL *curl = NULL;
    struct curl_slist *headers = NULL;
    curl_mime *form = NULL;
    long status = 0;
    if (access(path, R_OK) != 0) {
        return berth_fail(err, BERTH_NOT_FOUND, "cannot open: %s", strerror(errno));
    }
    enum berth_code code =
        open_handle(config, "/v1/audio/transcriptions", &curl, &headers, err);
    if (code != BERTH_OK) {
        goto out;
    }
    form = curl_mime_init(curl);
    /* The fields first, so that the server can judge them before the file travels. */
    curl_mimepart *file = NULL;
    bool ok = form != NULL && add_field(form, "model", config->model) &&
              add_field(form, "response_format", config->format) &&
              add_field(form, "language", config->language) &&
              add_field(form, "prompt", config->prompt) &&
              add_field(form, "timestamp_granularities[]", config->words ? "word" : "") &&
              add_field(form, "timestamp_granularities[]", config->words ? "segment" : "") &&
              (file = curl_mime_addpart(form)) != NULL &&
              curl_mime_name(file, "file") == CURLE_OK &&
              curl_mime_filedata(file, path) == CURLE_OK;
    if (!ok) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for the request");
        goto out;
    }
    curl_easy_setopt(curl, CURLOPT_MIMEPOST, form);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    code = perform(curl, answer, &status, err);
    if (code == BERTH_OK && status != 200) {
        code = berth_remote_refused(answer, status, err);
    }
out:
    curl_mime_free(form);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code;
}

static bool add_field(curl_mime *form, const char *name, const char *value)
{
    if (value == NULL || value[0] == '\0') {
        return true;
    }
    curl_mimepart *part = curl_mime_addpart(form);
    return part != NULL && curl_mime_name(part, name) == CURLE_OK &&
           curl_mime_data(part, value, CURL_ZERO_TERMINATED) == CURLE_OK;
}

enum berth_code berth_remote_refused(const struct berth_buf *answer, long status,
                                     struct berth_err *err)
{
    json_t *root = json_loadb(berth_buf_text(answer), answer->length, 0, NULL);
    json_t *error = json_object_get(root, "error"); /* KServe's: a text; OpenAI's: an object */
    const char *message = json_string_value(
        json_is_string(error) ? error : json_object_get(error, "message"));
    berth_fail(err, status == 429 || status == 503 ? BERTH_UNAVAILABLE : BERTH_INVALID,
               "the server answered %ld: %.160s%s", status,
               message == NULL ? "(no reason)" : message, status == 401 ? "; see --key" : "");
    json_decref(root);
    return err->code;
}

static size_t take_bytes(char *bytes, size_t size, size_t count, void *buf)
{
    struct berth_buf *answer = buf;
    if (answer->length + size * count > ANSWER_BYTES_MAX) {
        return 0;
    }
    berth_buf_append(answer, bytes, size * count);
    return size * count;
}
