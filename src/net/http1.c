/* http1.c - see http1.h.
 *
 * scan is one pass over each byte of a head, as it arrives: lines end in CR LF and nothing else,
 * no control bytes, no folded lines, at most 100 fields. So a head that can only be refused is
 * refused before it is whole. parse then checks the request line by hand, lets http-parser take the
 * head apart, and judges what decides where the request ends: lengths, transfer codings, names.
 */
#include "net/http1.h"

#include <http_parser.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"

enum scan_state {
    SCAN_START,      /* nothing yet; one empty line is allowed */
    SCAN_START_CR,   /* its CR was seen */
    SCAN_LINE,       /* in the request line */
    SCAN_VALUE,      /* in a header line */
    SCAN_LINE_START, /* after CR LF */
    SCAN_CR,         /* CR seen at the end of a line */
    SCAN_END_CR,     /* CR of the empty line */
};

enum chunk_state {
    CHUNK_SIZE, /* in a size's digits */
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER_START,
    CHUNK_TRAILER_NAME,
    CHUNK_TRAILER,
    CHUNK_TRAILER_LF,
    CHUNK_END_LF,
    CHUNK_DONE,
};

#define CHUNK_DIGITS_MAX 15 /* 2^60 - 1 bytes */

/* What http-parser reports, in the head's own bytes. */
struct split {
    struct berth_http1_head *head;
    size_t name_lengths[BERTH_HTTP1_FIELDS_MAX];
    size_t value_lengths[BERTH_HTTP1_FIELDS_MAX];
    bool in_value;
    bool too_many;
    bool complete;
    const char *target;
    size_t target_length;
};

/* What the fields say about the request's end. */
struct framing {
    size_t lengths;
    size_t codings;
    size_t hosts;
    bool close;
    bool keep_alive;
};

static const char *scan_byte(struct berth_http1_scan *scan, unsigned char byte, bool *done);
static enum berth_http1_result wrong(int *status, int value, struct berth_err *err,
                                     const char *message);
static enum berth_http1_result request_line(char *bytes, size_t length, struct split *split,
                                            int *status, struct berth_err *err);
static int on_field(http_parser *parser, const char *at, size_t length);
static int on_value(http_parser *parser, const char *at, size_t length);
static int on_complete(http_parser *parser);
static void end_strings(struct split *split);
static const char *read_field(const struct berth_http1_field *field, struct berth_http1_head *head,
                              struct framing *framing);
static const char *judge(const struct berth_http1_head *head, const struct framing *framing);
static const char *read_length(const char *value, uint64_t *out);
static void read_connection(const char *value, struct framing *framing);
static const char *read_target(char *target, struct berth_http1_head *head);
static const char *decode_path(char *path);
static bool host_ok(const char *value);
static int hex_digit(char digit);
static bool is_token_byte(unsigned char byte);
static const char *chunk_byte(struct berth_http1_chunks *chunks, unsigned char byte);
static const char *chunk_size_byte(struct berth_http1_chunks *chunks, unsigned char byte);

static const http_parser_settings parser_settings = {
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_complete,
};
static pthread_once_t parser_once = PTHREAD_ONCE_INIT;

/* The library's own limit is for all parsers of the process; the head's length is ours to judge. */
static void parser_unlimit(void)
{
    http_parser_set_max_header_size(UINT32_MAX / 2);
}

enum berth_http1_result berth_http1_scan(struct berth_http1_scan *scan, const char *bytes,
                                         size_t length, int *status, struct berth_err *err)
{
    bool done = false;
    while (scan->at < length) {
        if (scan->state == SCAN_LINE || scan->state == SCAN_VALUE) { /* most bytes */
            while (scan->at < length && bytes[scan->at] >= 0x20 && bytes[scan->at] != 0x7F) {
                scan->at++;
            }
            if (scan->at == length) {
                break;
            }
        }
        const char *fault = scan_byte(scan, (unsigned char)bytes[scan->at], &done);
        if (fault != NULL) {
            return wrong(status, scan->fields > BERTH_HTTP1_FIELDS_MAX ? 431 : 400, err, fault);
        }
        scan->at++;
        if (done) {
            return BERTH_HTTP1_DONE;
        }
    }
    return BERTH_HTTP1_MORE;
}

enum berth_http1_result berth_http1_parse(char *bytes, size_t length, struct berth_http1_head *head,
                                          int *status, struct berth_err *err)
{
    struct split split; /* large; only what is read is set */
    http_parser parser;
    struct framing framing = {0};
    split.head = head;
    split.in_value = true;
    split.too_many = false;
    split.complete = false;
    head->method = head->path = head->query = "";
    head->field_count = 0;
    head->keep_alive = head->chunked = head->expect_continue = head->has_length = false;
    head->content_length = 0;
    head->coding = BERTH_HTTP1_IDENTITY;
    if (request_line(bytes, length, &split, status, err) != BERTH_HTTP1_DONE) {
        return BERTH_HTTP1_WRONG;
    }
    pthread_once(&parser_once, parser_unlimit);
    http_parser_init(&parser, HTTP_REQUEST);
    parser.data = &split;
    parser.allow_chunked_length = 1; /* judged below, with its own message */
    size_t used = http_parser_execute(&parser, &parser_settings, bytes, length);
    if (HTTP_PARSER_ERRNO(&parser) != HPE_OK || used != length || !split.complete) {
        bool many = split.too_many;
        return wrong(status, many ? 431 : 400, err,
                     many ? "too many header fields"
                          : http_errno_description(HTTP_PARSER_ERRNO(&parser)));
    }
    head->method = http_method_str((enum http_method)parser.method);
    end_strings(&split);
    const char *fault = read_target((char *)bytes + (split.target - bytes), head);
    for (size_t i = 0; fault == NULL && i < head->field_count; i++) {
        fault = read_field(&head->fields[i], head, &framing);
    }
    if (fault == NULL) {
        fault = judge(head, &framing);
    }
    if (fault != NULL) {
        return wrong(status, 400, err, fault);
    }
    head->keep_alive = !framing.close && (head->version_minor == 1 || framing.keep_alive);
    return BERTH_HTTP1_DONE;
}

enum berth_http1_result berth_http1_chunk(struct berth_http1_chunks *chunks, const char *bytes,
                                          size_t length, size_t *used, struct berth_err *err)
{
    for (size_t i = 0; i <= length; i++) {
        *used = i;
        if (chunks->state == CHUNK_DONE) {
            return BERTH_HTTP1_DONE;
        }
        if (chunks->state == CHUNK_DATA) {
            return BERTH_HTTP1_DATA;
        }
        if (i < length) {
            const char *fault = chunk_byte(chunks, (unsigned char)bytes[i]);
            if (fault != NULL) {
                berth_fail(err, BERTH_INVALID, "%s", fault);
                return BERTH_HTTP1_WRONG;
            }
        }
    }
    return BERTH_HTTP1_MORE;
}

void berth_http1_chunk_skip(struct berth_http1_chunks *chunks, uint64_t bytes)
{
    BERTH_ASSERT(bytes <= chunks->left);
    chunks->left -= bytes;
    if (chunks->left == 0) {
        chunks->state = CHUNK_DATA_CR;
    }
}

bool berth_http1_is_token(const char *text)
{
    const char *at = text;
    while (is_token_byte((unsigned char)*at)) {
        at++;
    }
    return at != text && *at == '\0';
}

/* NULL, or what is wrong with this byte here. */
static const char *scan_byte(struct berth_http1_scan *scan, unsigned char byte, bool *done)
{
    switch ((enum scan_state)scan->state) {
    case SCAN_START:
        if (byte == '\r' && scan->at == 0) {
            scan->state = SCAN_START_CR;
            return NULL;
        }
        if (!is_token_byte(byte)) {
            return "the request does not begin with a method";
        }
        scan->start = scan->at;
        scan->state = SCAN_LINE;
        return NULL;
    case SCAN_START_CR:
        scan->state = SCAN_START;
        return byte == '\n' ? NULL : "CR without LF";
    case SCAN_LINE_START:
        if (byte == '\r') {
            scan->state = SCAN_END_CR;
            return NULL;
        }
        if (byte == ' ' || byte == '\t') {
            return "folded header lines are not taken";
        }
        if (++scan->fields > BERTH_HTTP1_FIELDS_MAX) {
            return "too many header fields";
        }
        scan->state = SCAN_VALUE;
        break;
    case SCAN_CR:
        scan->state = SCAN_LINE_START;
        return byte == '\n' ? NULL : "CR without LF";
    case SCAN_END_CR:
        *done = byte == '\n';
        return *done ? NULL : "CR without LF";
    case SCAN_LINE:
    case SCAN_VALUE:
        break;
    }
    if (byte >= 0x20 && byte != 0x7F) {
        return NULL;
    }
    if (byte == '\r') {
        scan->state = SCAN_CR;
        return NULL;
    }
    if (byte == '\t' && scan->state == SCAN_VALUE) {
        return NULL;
    }
    return byte == '\n' ? "LF without CR" : "control byte in the head";
}

static enum berth_http1_result wrong(int *status, int value, struct berth_err *err,
                                     const char *message)
{
    *status = value;
    berth_fail(err, BERTH_INVALID, "%s", message);
    return BERTH_HTTP1_WRONG;
}

/* METHOD SP target SP HTTP/d.d, one blank each. */
static enum berth_http1_result request_line(char *bytes, size_t length, struct split *split,
                                            int *status, struct berth_err *err)
{
    char *end = memchr(bytes, '\r', length);
    BERTH_ASSERT(end != NULL); /* scanned */
    char *target = memchr(bytes, ' ', (size_t)(end - bytes));
    char *version = target == NULL ? NULL : memchr(target + 1, ' ', (size_t)(end - target - 1));
    if (version == NULL || version == target + 1) {
        return wrong(status, 400, err, "the request line is not METHOD target HTTP/1.1");
    }
    split->target = target + 1;
    split->target_length = (size_t)(version - target - 1);
    version++;
    if (end - version != 8 || memcmp(version, "HTTP/", 5) != 0 || version[5] < '0' ||
        version[5] > '9' || version[6] != '.' || version[7] < '0' || version[7] > '9') {
        return wrong(status, 400, err, "the request line does not end in HTTP/1.1");
    }
    if (version[5] != '1' || version[7] > '1') {
        return wrong(status, 505, err, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    }
    split->head->version_minor = version[7] - '0';
    for (size_t i = 0; i < split->target_length; i++) {
        unsigned char byte = (unsigned char)split->target[i];
        if (byte <= 0x20 || byte >= 0x7F || byte == '#') {
            return wrong(status, 400, err, "byte in the request target that must be encoded");
        }
    }
    return BERTH_HTTP1_DONE;
}

static int on_field(http_parser *parser, const char *at, size_t length)
{
    struct split *split = parser->data;
    struct berth_http1_head *head = split->head;
    if (!split->in_value) { /* a piece of the same name */
        split->name_lengths[head->field_count - 1] += length;
        return 0;
    }
    if (head->field_count == BERTH_HTTP1_FIELDS_MAX) {
        split->too_many = true;
        return 1;
    }
    head->fields[head->field_count].name = at;
    split->name_lengths[head->field_count] = length;
    head->fields[head->field_count].value = NULL;
    split->value_lengths[head->field_count] = 0;
    head->field_count++;
    split->in_value = false;
    return 0;
}

static int on_value(http_parser *parser, const char *at, size_t length)
{
    struct split *split = parser->data;
    struct berth_http1_head *head = split->head;
    if (head->field_count == 0) {
        return 1;
    }
    if (head->fields[head->field_count - 1].value == NULL) {
        head->fields[head->field_count - 1].value = at;
    }
    split->value_lengths[head->field_count - 1] += length;
    split->in_value = true;
    return 0;
}

static int on_complete(http_parser *parser)
{
    struct split *split = parser->data;
    split->complete = true;
    return 1; /* no body for this parser: framing is done here */
}

/* Every name ends at its colon, every value before its CR, the target at its blank. */
static void end_strings(struct split *split)
{
    struct berth_http1_head *head = split->head;
    ((char *)split->target)[split->target_length] = '\0';
    for (size_t i = 0; i < head->field_count; i++) {
        ((char *)head->fields[i].name)[split->name_lengths[i]] = '\0';
        if (split->value_lengths[i] == 0) { /* the library may point at the next line then */
            head->fields[i].value = "";
            continue;
        }
        char *value = (char *)head->fields[i].value;
        size_t length = split->value_lengths[i];
        while (length > 0 && (value[length - 1] == ' ' || value[length - 1] == '\t')) {
            length--;
        }
        value[length] = '\0';
    }
}

static const char *read_field(const struct berth_http1_field *field, struct berth_http1_head *head,
                              struct framing *framing)
{
    if (!berth_http1_is_token(field->name)) {
        return "a header name is not a token";
    }
    switch (field->name[0] | 0x20) {
    case 'c':
        if (strcasecmp(field->name, "content-length") == 0) {
            framing->lengths++;
            head->has_length = true;
            return read_length(field->value, &head->content_length);
        }
        if (strcasecmp(field->name, "connection") == 0) {
            read_connection(field->value, framing);
        } else if (strcasecmp(field->name, "content-encoding") == 0) {
            bool again = head->coding != BERTH_HTTP1_IDENTITY;
            bool gzip = strcasecmp(field->value, "gzip") == 0 ||
                        strcasecmp(field->value, "x-gzip") == 0;
            bool none = field->value[0] == '\0' || strcasecmp(field->value, "identity") == 0;
            head->coding = again                                      ? BERTH_HTTP1_CODING_UNKNOWN
                           : gzip                                     ? BERTH_HTTP1_GZIP
                           : none                                     ? BERTH_HTTP1_IDENTITY
                           : strcasecmp(field->value, "deflate") == 0 ? BERTH_HTTP1_DEFLATE
                                                                      : BERTH_HTTP1_CODING_UNKNOWN;
        }
        return NULL;
    case 't':
        if (strcasecmp(field->name, "transfer-encoding") == 0) {
            framing->codings++;
            head->chunked = true;
            return strcasecmp(field->value, "chunked") == 0
                       ? NULL
                       : "a transfer coding other than chunked";
        }
        return NULL;
    case 'h':
        if (strcasecmp(field->name, "host") == 0) {
            framing->hosts++;
            return host_ok(field->value) ? NULL : "malformed Host";
        }
        return NULL;
    case 'e':
        if (strcasecmp(field->name, "expect") == 0 && head->version_minor == 1) {
            head->expect_continue = strcasecmp(field->value, "100-continue") == 0;
        }
        return NULL;
    default:
        return NULL;
    }
}

static const char *judge(const struct berth_http1_head *head, const struct framing *framing)
{
    if (framing->lengths > 1) {
        return "more than one Content-Length";
    }
    if (framing->codings > 1) {
        return "more than one Transfer-Encoding";
    }
    if (framing->lengths != 0 && framing->codings != 0) {
        return "both Content-Length and Transfer-Encoding";
    }
    if (framing->codings != 0 && head->version_minor == 0) {
        return "Transfer-Encoding in HTTP/1.0";
    }
    if (framing->hosts > 1) {
        return "more than one Host";
    }
    if (framing->hosts == 0 && head->version_minor == 1) {
        return "Host is missing";
    }
    return NULL;
}

/* Digits only: no sign, no blank, no list. */
static const char *read_length(const char *value, uint64_t *out)
{
    uint64_t length = 0;
    size_t digits = 0;
    for (; value[digits] != '\0'; digits++) {
        if (value[digits] < '0' || value[digits] > '9' || digits == 18) {
            return "malformed Content-Length";
        }
        length = length * 10 + (uint64_t)(value[digits] - '0');
    }
    *out = length;
    return digits == 0 ? "malformed Content-Length" : NULL;
}

static void read_connection(const char *value, struct framing *framing)
{
    while (*value != '\0') {
        value += strspn(value, " \t,");
        size_t whole = strcspn(value, ",");
        size_t length = whole;
        while (length > 0 && (value[length - 1] == ' ' || value[length - 1] == '\t')) {
            length--;
        }
        if (length == 5 && strncasecmp(value, "close", 5) == 0) {
            framing->close = true;
        } else if (length == 10 && strncasecmp(value, "keep-alive", 10) == 0) {
            framing->keep_alive = true;
        }
        value += whole;
    }
}

/* origin-form or absolute-form; ends and decodes the path in place. */
static const char *read_target(char *target, struct berth_http1_head *head)
{
    char *path = target;
    if (target[0] != '/') {
        size_t scheme = strncasecmp(target, "http://", 7) == 0    ? 7
                        : strncasecmp(target, "https://", 8) == 0 ? 8
                                                                  : 0;
        if (scheme == 0 || target[scheme] == '/' || target[scheme] == '\0' ||
            target[scheme] == '?') {
            return "the request target does not begin with /";
        }
        path = target + scheme + strcspn(target + scheme, "/?");
    }
    char *query = strchr(path, '?');
    if (query != NULL) {
        *query = '\0';
        head->query = query + 1;
    }
    head->path = *path == '\0' ? "/" : path;
    return *path == '\0' ? NULL : decode_path(path);
}

/* Once, in place (N4). */
static const char *decode_path(char *path)
{
    char *to = path;
    char *from = strchr(path, '%');
    if (from == NULL) {
        return NULL; /* nothing encoded, and the target is ASCII */
    }
    to = from;
    while (*from != '\0') {
        if (*from != '%') {
            *to++ = *from++;
            continue;
        }
        int high = hex_digit(from[1]);
        int low = high < 0 ? -1 : hex_digit(from[2]);
        if (low < 0) {
            return "malformed percent-encoding in the path";
        }
        int byte = high * 16 + low;
        if (byte < 0x20 || byte == 0x7F || byte == '/') {
            return "an encoded control byte or slash in the path";
        }
        *to++ = (char)byte;
        from += 3;
    }
    *to = '\0';
    size_t length = (size_t)(to - path);
    return berth_utf8_valid_length(path, length) == length ? NULL : "the path is not UTF-8";
}

static bool host_ok(const char *value)
{
    return value[strcspn(value, " \t/\\?#@,\"<>{}|^`")] == '\0';
}

static int hex_digit(char digit)
{
    return digit >= '0' && digit <= '9'   ? digit - '0'
           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
           : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                          : -1;
}

static bool is_token_byte(unsigned char byte)
{
    static const bool other[128] = {
        ['!'] = true,  ['#'] = true, ['$'] = true, ['%'] = true, ['&'] = true,
        ['\''] = true, ['*'] = true, ['+'] = true, ['-'] = true, ['.'] = true,
        ['^'] = true,  ['_'] = true, ['`'] = true, ['|'] = true, ['~'] = true,
    };
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || (byte < 128 && other[byte]);
}

static const char *chunk_byte(struct berth_http1_chunks *chunks, unsigned char byte)
{
    enum chunk_state state = chunks->state;
    switch (state) {
    case CHUNK_SIZE:
    case CHUNK_EXTENSION:
        return chunk_size_byte(chunks, byte);
    case CHUNK_SIZE_LF:
        chunks->state = chunks->left == 0 ? CHUNK_TRAILER_START : CHUNK_DATA;
        break;
    case CHUNK_DATA_CR:
        chunks->state = CHUNK_DATA_LF;
        return byte == '\r' ? NULL : "a chunk is longer than its size";
    case CHUNK_DATA_LF:
        chunks->state = CHUNK_SIZE;
        chunks->digits = 0;
        chunks->line = 0;
        break;
    case CHUNK_TRAILER_START:
    case CHUNK_TRAILER_NAME:
    case CHUNK_TRAILER:
        if (++chunks->trailer_bytes > BERTH_HTTP1_TRAILER_BYTES_MAX) {
            return "the trailer is too long";
        }
        if (byte == '\r' && state != CHUNK_TRAILER_NAME) {
            chunks->state = state == CHUNK_TRAILER ? CHUNK_TRAILER_LF : CHUNK_END_LF;
            return NULL;
        }
        if (state == CHUNK_TRAILER_NAME && byte == ':') {
            chunks->state = CHUNK_TRAILER;
            return NULL;
        }
        if (state != CHUNK_TRAILER) {
            chunks->state = CHUNK_TRAILER_NAME;
            return is_token_byte(byte) ? NULL : "malformed trailer";
        }
        return (byte >= 0x20 && byte != 0x7F) || byte == '\t' ? NULL : "malformed trailer";
    case CHUNK_TRAILER_LF:
        chunks->state = CHUNK_TRAILER_START;
        break;
    case CHUNK_END_LF:
        chunks->state = CHUNK_DONE;
        break;
    case CHUNK_DATA:
    case CHUNK_DONE:
        BERTH_ASSERT(false); /* asked before */
    }
    return byte == '\n' ? NULL : "CR without LF in the chunk framing";
}

static const char *chunk_size_byte(struct berth_http1_chunks *chunks, unsigned char byte)
{
    if (++chunks->line > BERTH_HTTP1_CHUNK_LINE_MAX) {
        return "a chunk's extensions are too long";
    }
    int digit = chunks->state == CHUNK_SIZE ? hex_digit((char)byte) : -1;
    if (digit >= 0) {
        chunks->left = chunks->left * 16 + (uint64_t)digit;
        return ++chunks->digits <= CHUNK_DIGITS_MAX ? NULL : "a chunk size is too large";
    }
    if (chunks->digits == 0) {
        return "malformed chunk size";
    }
    if (byte == '\r') {
        chunks->state = CHUNK_SIZE_LF;
        return NULL;
    }
    if (chunks->state == CHUNK_SIZE && byte != ';') {
        return "malformed chunk size";
    }
    chunks->state = CHUNK_EXTENSION;
    return (byte >= 0x20 && byte != 0x7F) || byte == '\t' ? NULL : "malformed chunk extension";
}
