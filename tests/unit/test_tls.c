/* test_tls.c - TLS in front of the same server: certificates made here, OpenSSL as the client. */
#include "net_test.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

static char cert_path[64], key_path[64], other_key_path[64];

static void write_key(const char *path, EVP_PKEY *key)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
}

static int make_files(void **state)
{
    static char folder[] = "/tmp/berth_tls_XXXXXX";
    EVP_PKEY *key = EVP_EC_gen("P-256");
    EVP_PKEY *other = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_non_null(mkdtemp(folder));
    *state = folder;
    snprintf(cert_path, sizeof(cert_path), "%s/cert.pem", folder);
    snprintf(key_path, sizeof(key_path), "%s/key.pem", folder);
    snprintf(other_key_path, sizeof(other_key_path), "%s/other.pem", folder);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *file = fopen(cert_path, "w");
    assert_non_null(file);
    PEM_write_X509(file, cert);
    fclose(file);
    write_key(key_path, key);
    write_key(other_key_path, other);
    X509_free(cert);
    EVP_PKEY_free(key);
    EVP_PKEY_free(other);
    return 0;
}

static int remove_files(void **state)
{
    unlink(cert_path);
    unlink(key_path);
    unlink(other_key_path);
    return rmdir(*state);
}

static void start(struct script *script)
{
    struct berth_http_options options;
    memset(script, 0, sizeof(*script));
    options = script_options(script);
    options.tls_cert = cert_path;
    options.tls_key = key_path;
    script_start(script, 64 << 20, &options);
}

/* alpn: length-prefixed names, or NULL. version: the highest. NULL if the handshake fails. */
static SSL *secure(SSL_CTX *context, int fd, const char *alpn, int version)
{
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    SSL_set_max_proto_version(ssl, version);
    if (alpn != NULL) {
        SSL_set_alpn_protos(ssl, (const unsigned char *)alpn, (unsigned)strlen(alpn));
    }
    if (SSL_connect(ssl) != 1) {
        SSL_free(ssl);
        return NULL;
    }
    return ssl;
}

static void secure_read(SSL *ssl, char *bytes, size_t length)
{
    for (size_t at = 0; at < length;) {
        int got = SSL_read(ssl, bytes + at, (int)(length - at));
        assert_true(got > 0);
        at += (size_t)got;
    }
}

/* The head ends at its empty line; the body has `length` bytes. */
static void secure_expect(SSL *ssl, const char *status, const char *body, size_t length)
{
    char head[2048];
    size_t at = 0;
    do {
        secure_read(ssl, head + at, 1);
        at++;
        head[at] = '\0';
        assert_true(at < sizeof(head) - 1);
    } while (strstr(head, "\r\n\r\n") == NULL);
    assert_memory_equal(head + 9, status, 3);
    char *got = malloc(length + 1);
    secure_read(ssl, got, length);
    assert_memory_equal(got, body, length);
    free(got);
}

static void secure_write(SSL *ssl, const char *bytes, size_t length)
{
    for (size_t at = 0; at < length;) {
        int put = SSL_write(ssl, bytes + at, (int)(length - at));
        assert_true(put > 0);
        at += (size_t)put;
    }
}

static void test_requests(void **state)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    struct script script;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    const char *get = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
    start(&script);
    for (size_t i = 0; i < BERTH_COUNT_OF(versions); i++) {
        int fd = client_connect(&script);
        SSL *ssl = secure(context, fd, "\x02h2\x08http/1.1", versions[i]);
        const unsigned char *alpn;
        unsigned alpn_length;
        assert_non_null(ssl);
        SSL_get0_alpn_selected(ssl, &alpn, &alpn_length);
        assert_int_equal(alpn_length, 8);
        assert_memory_equal(alpn, "http/1.1", 8);
        for (int j = 0; j < 3; j++) { /* several in one record too */
            secure_write(ssl, get, strlen(get));
            secure_expect(ssl, "200", "hello", 5);
        }
        char many[512] = "";
        for (int j = 0; j < 5; j++) {
            strncat(many, get, sizeof(many) - strlen(many) - 1);
        }
        secure_write(ssl, many, strlen(many));
        for (int j = 0; j < 5; j++) {
            secure_expect(ssl, "200", "hello", 5);
        }
        for (size_t length = 1; length <= 5 << 20; length = length * 7 + 3) {
            char head[128];
            char *body = malloc(length);
            for (size_t j = 0; j < length; j++) {
                body[j] = (char)(j * 2654435761u >> 13);
            }
            int made = snprintf(head, sizeof(head),
                                "POST /echo HTTP/1.1\r\nHost: a\r\n"
                                "Content-Length: %zu\r\n\r\n",
                                length);
            secure_write(ssl, head, (size_t)made);
            secure_write(ssl, body, length);
            secure_expect(ssl, "200", body, length);
            free(body);
        }
        SSL_shutdown(ssl);
        SSL_free(ssl);
        close(fd);
    }
    SSL_CTX_free(context);
    script_stop(&script);
}

static void test_refused_hellos(void **state)
{
    struct script script;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    start(&script);
    int fd = client_connect(&script); /* plain HTTP */
    client_puts(fd, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    struct reply reply = client_read(fd, true);
    assert_true(reply.status == 0);
    free(reply.body);
    close(fd);
    fd = client_connect(&script); /* another protocol alone */
    assert_null(secure(context, fd, "\x02h2", TLS1_3_VERSION));
    close(fd);
    fd = client_connect(&script); /* older than 1.2 */
    SSL_CTX_set_min_proto_version(context, TLS1_1_VERSION);
    assert_null(secure(context, fd, NULL, TLS1_1_VERSION));
    close(fd);
    SSL_CTX_set_min_proto_version(context, 0);
    fd = client_connect(&script); /* and the server goes on */
    SSL *ssl = secure(context, fd, NULL, TLS1_3_VERSION);
    assert_non_null(ssl);
    secure_write(ssl, "GET /x HTTP/1.0\r\n\r\n", 19);
    secure_expect(ssl, "200", "hello", 5);
    SSL_free(ssl);
    close(fd);
    SSL_CTX_free(context);
    script_stop(&script);
}

static void test_hang_up_and_refusal(void **state)
{
    struct script script;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    const char *wait = "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n";
    start(&script);
    int fd = client_connect(&script);
    SSL *ssl = secure(context, fd, NULL, TLS1_3_VERSION);
    secure_write(ssl, wait, strlen(wait));
    wait_for(&script.heads, 1);
    SSL_shutdown(ssl);
    SSL_free(ssl);
    close(fd);
    wait_for(&script.closes_gone, 1);
    fd = client_connect(&script); /* sends all before it reads */
    ssl = secure(context, fd, NULL, TLS1_3_VERSION);
    const char *head = "POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 10485760\r\n\r\n";
    char *body = calloc(1, 10 << 20);
    secure_write(ssl, head, strlen(head));
    for (int put = 1, at = 0; put > 0 && at < 10 << 20; at += put) {
        put = SSL_write(ssl, body + at, (10 << 20) - at); /* until the server has had enough */
    }
    secure_expect(ssl, "413", "too large", 9);
    SSL_free(ssl);
    close(fd);
    free(body);
    SSL_CTX_free(context);
    script_stop(&script);
}

static void test_silent_handshake(void **state)
{
    struct script script;
    struct berth_http_options options;
    memset(&script, 0, sizeof(script));
    options = script_options(&script);
    options.tls_cert = cert_path;
    options.tls_key = key_path;
    options.head_timeout_ns = 60 * BERTH_NS_PER_MS;
    script_start(&script, 1 << 20, &options);
    int fd = client_connect(&script);
    client_puts(fd, "\x16\x03\x01");
    client_expect_end(fd);
    close(fd);
    script_stop(&script);
}

static void test_files(void **state)
{
    struct script script;
    struct berth_err err;
    struct berth_slabs_options slabs = {.bytes_budget = 1 << 20};
    memset(&script, 0, sizeof(script));
    assert_int_equal(berth_slabs_create(&slabs, &script.slabs, &err), BERTH_OK);
    struct berth_http_options options = script_options(&script);
    options.tls_cert = "/nowhere/cert.pem";
    options.tls_key = key_path;
    assert_int_equal(berth_http_start(&options, &script.http, &err), BERTH_INVALID);
    assert_non_null(strstr(err.msg, "/nowhere/cert.pem"));
    options.tls_cert = cert_path;
    options.tls_key = "/nowhere/key.pem";
    assert_int_equal(berth_http_start(&options, &script.http, &err), BERTH_INVALID);
    assert_non_null(strstr(err.msg, "/nowhere/key.pem"));
    options.tls_key = other_key_path;
    assert_int_equal(berth_http_start(&options, &script.http, &err), BERTH_INVALID);
    assert_non_null(strstr(err.msg, other_key_path));
    berth_slabs_destroy(script.slabs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_refused_hellos),
        cmocka_unit_test(test_hang_up_and_refusal),
        cmocka_unit_test(test_silent_handshake),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
