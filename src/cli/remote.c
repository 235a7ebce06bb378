/* remote.c - see remote.h. */
#include "cli/remote.h"

#include <curl/curl.h>
#include <jansson.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"

#define ANSWER_MIB_MAX 256u
#define ANSWER_BYTES_MAX (ANSWER_MIB_MAX << 20)
#define CA_BYTES_MAX (16u << 20)
#define URL_MAX 2048

static enum berth_code open_handle(const struct berth_config *config, const char *path, CURL **curl,
                                   struct curl_slist **headers, struct berth_err *err);
static enum berth_code perform(const struct berth_config *config, CURL *curl,
                               struct berth_buf *answer, long *status, struct berth_err *err);
static enum berth_code fail_transfer(const struct berth_config *config, CURL *curl,
                                     CURLcode result, const char *details, struct berth_err *err);
static enum berth_code fail_certificate(const struct berth_config *config, long verdict,
                                        struct berth_err *err);
static bool is_url(const char *text);
static enum berth_code check_authorities(const char *path, struct berth_err *err);
static bool add_field(curl_mime *form, const char *name, const char *value);
static size_t take_bytes(char *bytes, size_t size, size_t count, void *buf);

enum berth_code berth_remote_check(const struct berth_config *config, struct berth_err *err)
{
    const char *server = config->server;
    bool https = strncasecmp(server, "https://", 8) == 0;
    bool http = strncasecmp(server, "http://", 7) == 0 || strstr(server, "://") == NULL;
    if ((!https && !http) || !is_url(server)) {
        return berth_cli_misuse(err, "--server '%.100s' is not http://HOST:PORT or "
                                "https://HOST:PORT", server);
    }
    if (config->tls_ca[0] == '\0') {
        return BERTH_OK;
    }
    if (!https) {
        return berth_cli_misuse(err, "--tls-ca is for an https:// server, not for '%.100s'",
                                server);
    }
    return check_authorities(config->tls_ca, err);
}

static bool is_url(const char *text)
{
    CURLU *url = curl_url();
    bool good =
        url != NULL && curl_url_set(url, CURLUPART_URL, text, CURLU_GUESS_SCHEME) == CURLUE_OK;
    curl_url_cleanup(url);
    return good;
}

/* What libcurl would say of such a file is not plain. */
static enum berth_code check_authorities(const char *path, struct berth_err *err)
{
    char *text = NULL;
    size_t length = 0;
    size_t count = 0;
    struct berth_err why = {0};
    X509 *one;
    if (berth_file_load(path, CA_BYTES_MAX, &text, &length, &why) != BERTH_OK) {
        return berth_fail(err, why.code, "--tls-ca: %s", why.msg);
    }
    BIO *bio = BIO_new_mem_buf(text, (int)length);
    ERR_clear_error();
    while (bio != NULL && (one = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) {
        X509_free(one); /* lib-owned */
        count++;
    }
    bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    BIO_free(bio);
    berth_free(text);
    if (count > 0 && ended) {
        return BERTH_OK;
    }
    return ended ? berth_fail(err, BERTH_INVALID, "--tls-ca: %.150s holds no certificate in PEM",
                              path)
                 : berth_fail(err, BERTH_INVALID, "--tls-ca: certificate %zu of %.150s is damaged",
                              count + 1, path);
}

int berth_remote_transcribe(const struct berth_config *config)
{
    int status = 0;
    struct berth_err err = {0};
    if (berth_remote_check(config, &err) != BERTH_OK) {
        return berth_cli_fail(&err);
    }
    for (size_t i = 0; i < config->arguments.count && berth_cli_printed(); i++) {
        const char *path = config->arguments.items[i];
        struct berth_buf answer = {0};
        int fd = -1;
        uint64_t bytes = 0;
        enum berth_code code = berth_cli_open_audio(path, &fd, &bytes, &err);
        if (code == BERTH_OK) {
            close(fd);
            fprintf(stderr, "%s: sending to %s\n", path, config->server);
            code = berth_remote_transcription(config, path, &answer, &err);
        }
        if (code == BERTH_OK) {
            fwrite(berth_buf_text(&answer), 1, answer.length, stdout);
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
        code = perform(config, curl, &answer->body, &answer->status, err);
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
        return *curl == NULL
                   ? berth_fail(err, BERTH_UNAVAILABLE, "no memory for a request")
                   : berth_cli_misuse(err, "--server '%.100s...' is too long", config->server);
    }
    curl_easy_setopt(*curl, CURLOPT_URL, url);
    curl_easy_setopt(*curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(*curl, CURLOPT_NOSIGNAL, 1L);
    if (config->tls_ca[0] != '\0') { /* instead of the system's, not beside them */
        curl_easy_setopt(*curl, CURLOPT_CAINFO, config->tls_ca);
        curl_easy_setopt(*curl, CURLOPT_CAPATH, NULL);
    }
    if (config->key[0] != '\0') {
        snprintf(line, sizeof(line), "Authorization: Bearer %s", config->key);
        *headers = curl_slist_append(NULL, line);
    }
    return BERTH_OK;
}

static enum berth_code perform(const struct berth_config *config, CURL *curl,
                               struct berth_buf *answer, long *status, struct berth_err *err)
{
    char details[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, details);
    CURLcode result = curl_easy_perform(curl);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL);
    if (result != CURLE_OK) {
        return fail_transfer(config, curl, result, details, err);
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
    return berth_buf_ok(answer) ? BERTH_OK
                                : berth_fail(err, BERTH_UNAVAILABLE, "no memory for the answer");
}

static enum berth_code fail_transfer(const struct berth_config *config, CURL *curl,
                                     CURLcode result, const char *details, struct berth_err *err)
{
    long number = 0;
    long verdict = 0;
    const char *why = details[0] != '\0' ? details : curl_easy_strerror(result);
    const char *hint = "";
    curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &number);
    curl_easy_getinfo(curl, CURLINFO_SSL_VERIFYRESULT, &verdict);
    switch (result) {
    case CURLE_PEER_FAILED_VERIFICATION:
        return fail_certificate(config, verdict, err);
    case CURLE_WRITE_ERROR:
        return berth_fail(err, BERTH_UNAVAILABLE, "the answer of %.120s is larger than %u MiB",
                          config->server, ANSWER_MIB_MAX);
    case CURLE_COULDNT_CONNECT:
        why = number != 0 ? strerror((int)number) : why;
        break;
    case CURLE_SSL_CONNECT_ERROR: /* OpenSSL's lists its libraries before it comes to the point */
        why = strrchr(why, ':') == NULL ? why : strrchr(why, ':') + 1;
        hint = "; is it an http:// server?";
        break;
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_UNSUPPORTED_PROTOCOL: /* HTTP/0.9: no head of HTTP */
        hint = strncasecmp(config->server, "https://", 8) == 0 ? "" : "; is it an https:// server?";
        break;
    default:
        break;
    }
    return berth_fail(err, BERTH_UNAVAILABLE, "no answer from %.100s: %.90s%s", config->server, why,
                      hint);
}

/* verdict is OpenSSL's on the chain. Names are libcurl's affair, before it asks for a verdict: then
 * there is none yet. */
static enum berth_code fail_certificate(const struct berth_config *config, long verdict,
                                        struct berth_err *err)
{
    const char *why = X509_verify_cert_error_string(verdict);
    switch (verdict) {
    case X509_V_OK:
    case X509_V_ERR_UNSPECIFIED:
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        why = "its certificate is for another name";
        break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        why = "its certificate has expired";
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        why = "its certificate is not valid yet";
        break;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        if (config->tls_ca[0] != '\0') {
            return berth_fail(err, BERTH_UNAVAILABLE, "%.100s is not trusted: its certificate is "
                              "not signed by one of %.80s", config->server, config->tls_ca);
        }
        why = "its certificate is not signed by an authority that this system trusts; see --tls-ca";
        break;
    default:
        break;
    }
    return berth_fail(err, BERTH_UNAVAILABLE, "%.100s is not trusted: %s", config->server, why);
}

enum berth_code berth_remote_transcription(const struct berth_config *config, const char *path,
                                           struct berth_buf *answer, struct berth_err *err)
{
    CURL *curl = NULL;
    struct curl_slist *headers = NULL;
    curl_mime *form = NULL;
    long status = 0;
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
    code = perform(config, curl, answer, &status, err);
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
               message == NULL ? "without a reason; is it berth?" : message,
               status == 401 ? "; see --key" : "");
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
