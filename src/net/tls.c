/* tls.c - TLS between a connection and its socket: OpenSSL, 1.2 and later, ALPN http/1.1.
 *
 * OpenSSL keeps errors per thread, and another connection's leftover would turn a mere "later" into
 * a failure: the queue is emptied before each call. Draining after an answer works on the socket
 * below, since what is dropped need not be understood.
 */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509err.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/conn.h"

struct berth_tls {
    SSL_CTX *context;
};

static const unsigned char protocols[] = "\x08http/1.1"; /* length, name; ours in our order */

static enum berth_code fail_tls(struct berth_err *err, const char *what, const char *path);
static int choose(SSL *ssl, const unsigned char **out, unsigned char *out_length,
                  const unsigned char *in, unsigned in_length, void *subject);
static ssize_t result_of(struct berth_conn *conn, int result);
static ssize_t tls_read(struct berth_conn *conn, void *bytes, size_t length);
static ssize_t tls_write(struct berth_conn *conn, const struct iovec *pieces, int count);
static ssize_t tls_skip(struct berth_conn *conn, size_t length);
static int tls_handshake(struct berth_conn *conn);
static void tls_shut(struct berth_conn *conn);
static void tls_close(struct berth_conn *conn);

enum berth_code berth_tls_create(const char *cert_path, const char *key_path,
                                 struct berth_tls **out, struct berth_err *err)
{
    enum berth_code code = BERTH_OK;
    struct berth_tls *tls = berth_alloc(sizeof(*tls));
    if (tls == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for TLS");
    }
    ERR_clear_error();
    tls->context = SSL_CTX_new(TLS_server_method());
    if (tls->context == NULL || SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION) != 1) {
        code = fail_tls(err, "cannot set TLS up", "");
        goto out;
    }
    SSL_CTX_set_mode(tls->context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                       SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(tls->context, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF |
                                          SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_alpn_select_cb(tls->context, choose, NULL);
    if (SSL_CTX_use_certificate_chain_file(tls->context, cert_path) != 1) {
        code = fail_tls(err, "cannot use the certificate in", cert_path);
        goto out;
    }
    if (key_path == NULL || key_path[0] == '\0') {
        key_path = cert_path; /* both in one file */
    }
    if (SSL_CTX_use_PrivateKey_file(tls->context, key_path, SSL_FILETYPE_PEM) != 1) {
        code = fail_tls(err, "cannot use the private key in", key_path);
        goto out;
    }
    if (SSL_CTX_check_private_key(tls->context) != 1) {
        code = fail_tls(err, "the certificate does not belong to the private key in", key_path);
        goto out;
    }
    *out = tls;
    tls = NULL;
out:
    berth_tls_destroy(tls);
    return code;
}

void berth_tls_destroy(struct berth_tls *tls)
{
    if (tls != NULL) {
        SSL_CTX_free(tls->context);
        berth_free(tls);
    }
}

enum berth_code berth_tls_attach(struct berth_tls *tls, struct berth_conn *conn)
{
    ERR_clear_error();
    SSL *ssl = SSL_new(tls->context);
    if (ssl == NULL || SSL_set_fd(ssl, conn->fd) != 1) {
        SSL_free(ssl);
        return BERTH_UNAVAILABLE;
    }
    SSL_set_accept_state(ssl);
    conn->transport = ssl;
    conn->ops = &berth_transport_tls;
    return BERTH_OK;
}

static enum berth_code fail_tls(struct berth_err *err, const char *what, const char *path)
{
    unsigned long error = ERR_get_error();
    const char *reason = ERR_SYSTEM_ERROR(error) ? strerror(ERR_GET_REASON(error))
                                                 : ERR_reason_error_string(error);
    int number = ERR_GET_REASON(error);
    if ((ERR_GET_LIB(error) == ERR_LIB_PEM && number == PEM_R_NO_START_LINE) ||
        number == ERR_R_UNSUPPORTED) {
        reason = "it holds none in PEM";
    } else if (ERR_GET_LIB(error) == ERR_LIB_X509 && number == X509_R_KEY_VALUES_MISMATCH) {
        reason = "it is not the certificate's";
    }
    ERR_clear_error();
    return berth_fail_field(err, BERTH_INVALID, "tls", "%s %s: %s", what, path,
                            reason == NULL ? "unusable" : reason);
}

/* lib-shaped */
static int choose(SSL *ssl, const unsigned char **out, unsigned char *out_length,
                  const unsigned char *in, unsigned in_length, void *subject)
{
    unsigned char *chosen;
    (void)ssl;
    (void)subject;
    if (SSL_select_next_proto(&chosen, out_length, protocols, sizeof(protocols) - 1, in,
                              in_length) != OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* What a failed call means, as transports say it. */
static ssize_t result_of(struct berth_conn *conn, int result)
{
    int system_error = errno;
    switch (SSL_get_error(conn->transport, result)) {
    case SSL_ERROR_WANT_READ:
        conn->readable = false;
        return -EAGAIN;
    case SSL_ERROR_WANT_WRITE:
        conn->writable = false;
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        return system_error == 0 ? 0 : -system_error;
    default:
        return -EPROTO;
    }
}

static ssize_t tls_read(struct berth_conn *conn, void *bytes, size_t length)
{
    size_t got = 0;
    ERR_clear_error();
    errno = 0;
    int result = SSL_read_ex(conn->transport, bytes, length, &got);
    return result == 1 ? (ssize_t)got : result_of(conn, result);
}

/* Small pieces go into one record. */
static ssize_t tls_write(struct berth_conn *conn, const struct iovec *pieces, int count)
{
    const void *bytes = pieces[0].iov_base;
    size_t length = pieces[0].iov_len;
    if (count > 1 && length < BERTH_LOOP_SCRATCH_BYTES) {
        length = 0;
        for (int i = 0; i < count && length < BERTH_LOOP_SCRATCH_BYTES; i++) {
            size_t room = BERTH_LOOP_SCRATCH_BYTES - length;
            size_t piece = pieces[i].iov_len < room ? pieces[i].iov_len : room;
            memcpy(conn->loop->scratch + length, pieces[i].iov_base, piece);
            length += piece;
        }
        bytes = conn->loop->scratch;
    }
    size_t put = 0;
    ERR_clear_error();
    errno = 0;
    int result = SSL_write_ex(conn->transport, bytes, length, &put);
    if (result == 1) {
        return (ssize_t)put;
    }
    ssize_t why = result_of(conn, result);
    return why == 0 ? -EPIPE : why;
}

static ssize_t tls_skip(struct berth_conn *conn, size_t length)
{
    return berth_transport_plain.skip(conn, length);
}

static int tls_handshake(struct berth_conn *conn)
{
    ERR_clear_error();
    errno = 0;
    int result = SSL_do_handshake(conn->transport);
    if (result == 1) {
        return 0;
    }
    ssize_t why = result_of(conn, result);
    return why == 0 ? -EPIPE : (int)why;
}

static void tls_shut(struct berth_conn *conn)
{
    ERR_clear_error();
    (void)SSL_shutdown(conn->transport); /* sends close_notify; we do not wait for theirs */
    shutdown(conn->fd, SHUT_WR);
}

static void tls_close(struct berth_conn *conn)
{
    ERR_clear_error();
    if (conn->state == BERTH_CONN_CLOSED && SSL_is_init_finished(conn->transport) &&
        !conn->broken) {
        (void)SSL_shutdown(conn->transport);
    }
    SSL_free(conn->transport);
    close(conn->fd);
}

const struct berth_transport_ops berth_transport_tls = {
    .read = tls_read,
    .write = tls_write,
    .skip = tls_skip,
    .handshake = tls_handshake,
    .shut = tls_shut,
    .close = tls_close,
};
