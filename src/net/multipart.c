/* multipart.c - see multipart.h.
 *
 * The delimiter is sought with memmem over what is new, plus the few bytes before it in which a
 * delimiter may have begun; a part's head is parsed once it is whole. What is found depends on the
 * bytes alone, never on how they were cut: the tests feed every cut.
 *
 * Stricter than RFC 2046 where laxness only helps those who want two readers to disagree: CR LF and
 * nothing else, no folded lines, one Content-Disposition, no transfer encodings.
 */
#include "net/multipart.h"

#include <string.h>
#include <strings.h>

#include "base/buf.h"

enum state {
    FIRST, /* the delimiter may stand without its CR LF */
    PREAMBLE,
    DELIMITED, /* behind a delimiter */
    HEAD,
    BODY,
    END,
};

/* One header line of a part. */
struct line {
    const char *name;
    size_t name_length;
    const char *value;
    size_t value_length;
};

static enum berth_code malformed(struct berth_err *err, const char *message);
static enum berth_code feed_delimited(struct berth_multipart *parser, const char *bytes,
                                      uint64_t length, bool *more, struct berth_err *err);
static enum berth_code feed_head(struct berth_multipart *parser, const char *bytes, uint64_t length,
                                 bool *more, struct berth_err *err);
static void feed_search(struct berth_multipart *parser, const char *bytes, uint64_t length,
                        bool *more);
static enum berth_code read_head(struct berth_multipart_part *part, const char *head, size_t length,
                                 struct berth_err *err);
static enum berth_code read_line(struct berth_multipart_part *part, const struct line *line,
                                 bool *disposed, struct berth_err *err);
static enum berth_code read_disposition(struct berth_multipart_part *part, const char *value,
                                        size_t length, struct berth_err *err);
static bool is_name(const struct line *line, const char *name);
static const char *next_parameter(const char *at, const char *end, struct line *parameter,
                                  bool *wrong);
static size_t unquote(const char *value, size_t length, char *out, size_t room);
static void copy_cut(const char *value, size_t length, char *out);
static bool boundary_ok(const char *boundary, size_t length);

enum berth_code berth_multipart_init(struct berth_multipart *parser, const char *content_type,
                                     struct berth_err *err)
{
    static const char type[] = "multipart/form-data";
    struct line parameter;
    char boundary[BERTH_MULTIPART_BOUNDARY_MAX + 2];
    size_t boundary_length = 0;
    bool wrong = false;
    memset(parser, 0, sizeof(*parser));
    if (content_type == NULL || strncasecmp(content_type, type, sizeof(type) - 1) != 0 ||
        strchr("; \t", content_type[sizeof(type) - 1]) == NULL) {
        return berth_fail_field(err, BERTH_INVALID, "Content-Type",
                                "Content-Type is not multipart/form-data");
    }
    const char *at = content_type + sizeof(type) - 1;
    const char *end = at + strlen(at);
    while ((at = next_parameter(at, end, &parameter, &wrong)) != NULL) {
        if (!is_name(&parameter, "boundary")) {
            continue;
        }
        if (boundary_length != 0) {
            wrong = true;
            break;
        }
        boundary_length = unquote(parameter.value, parameter.value_length, boundary,
                                  sizeof(boundary));
        wrong = wrong || !boundary_ok(boundary, boundary_length);
    }
    if (wrong || boundary_length == 0) {
        return berth_fail_field(err, BERTH_INVALID, "Content-Type",
                                "no usable boundary in Content-Type");
    }
    memcpy(parser->delimiter, "\r\n--", 4);
    memcpy(parser->delimiter + 4, boundary, boundary_length);
    parser->delimiter_length = boundary_length + 4;
    parser->state = FIRST;
    return BERTH_OK;
}

enum berth_code berth_multipart_feed(struct berth_multipart *parser, const char *bytes,
                                     uint64_t length, struct berth_err *err)
{
    bool more = true; /* something was done: look again */
    while (more) {
        more = false;
        switch ((enum state)parser->state) {
        case FIRST:
            if (length < parser->delimiter_length - 2) {
                return BERTH_OK;
            }
            more = true;
            if (memcmp(bytes, parser->delimiter + 2, parser->delimiter_length - 2) == 0) {
                parser->at = parser->delimiter_length - 2;
                parser->mark = parser->at;
                parser->state = DELIMITED;
            } else {
                parser->state = PREAMBLE;
            }
            break;
        case PREAMBLE:
        case BODY:
            feed_search(parser, bytes, length, &more);
            break;
        case DELIMITED:
            BERTH_TRY(feed_delimited(parser, bytes, length, &more, err));
            break;
        case HEAD:
            BERTH_TRY(feed_head(parser, bytes, length, &more, err));
            break;
        case END: /* what follows is nobody's */
            parser->at = length;
            break;
        }
    }
    return BERTH_OK;
}

enum berth_code berth_multipart_end(const struct berth_multipart *parser, struct berth_err *err)
{
    return parser->state == END ? BERTH_OK
                                : malformed(err, "the form ends before its last boundary");
}

static enum berth_code malformed(struct berth_err *err, const char *message)
{
    return berth_fail(err, BERTH_INVALID, "%s", message);
}

/* Behind a delimiter: "--" ends all, blanks and CR LF begin a part. */
static enum berth_code feed_delimited(struct berth_multipart *parser, const char *bytes,
                                      uint64_t length, bool *more, struct berth_err *err)
{
    uint64_t at = parser->at;
    if (length - at < 2) {
        return BERTH_OK;
    }
    if (at == parser->mark && bytes[at] == '-' && bytes[at + 1] == '-') {
        parser->at = at + 2;
        parser->state = END;
        *more = true;
        return BERTH_OK;
    }
    if (bytes[at] == ' ' || bytes[at] == '\t') {
        if (at - parser->mark > BERTH_MULTIPART_BOUNDARY_MAX) {
            return malformed(err, "too many blanks behind a boundary");
        }
        parser->at++;
        *more = true;
        return BERTH_OK;
    }
    if (bytes[at] != '\r' || bytes[at + 1] != '\n') {
        return malformed(err, "a boundary is not followed by the end of the line");
    }
    parser->at = at + 2;
    parser->mark = parser->at;
    parser->state = HEAD;
    *more = true;
    return BERTH_OK;
}

static enum berth_code feed_head(struct berth_multipart *parser, const char *bytes, uint64_t length,
                                 bool *more, struct berth_err *err)
{
    const char *head = bytes + parser->mark;
    uint64_t there = length - parser->mark;
    uint64_t seen = parser->at - parser->mark;
    uint64_t from = seen < 3 ? 0 : seen - 3;
    uint64_t limit = there < BERTH_MULTIPART_HEAD_MAX ? there : BERTH_MULTIPART_HEAD_MAX;
    if (there >= 2 && memcmp(head, "\r\n", 2) == 0) {
        return malformed(err, "a part without a head");
    }
    const char *end = limit > from ? memmem(head + from, limit - from, "\r\n\r\n", 4) : NULL;
    if (end == NULL) {
        parser->at = parser->mark + limit;
        return there < BERTH_MULTIPART_HEAD_MAX ? BERTH_OK
                                                : malformed(err, "a part's head is too long");
    }
    if (parser->part_count == BERTH_MULTIPART_PARTS_MAX) {
        return malformed(err, "too many parts");
    }
    struct berth_multipart_part *part = &parser->parts[parser->part_count];
    BERTH_TRY(read_head(part, head, (size_t)(end - head), err));
    parser->at = parser->mark + (uint64_t)(end - head) + 4;
    parser->mark = parser->at;
    part->offset = parser->at;
    parser->part_count++;
    parser->state = BODY;
    *more = true;
    return BERTH_OK;
}

/* Seeks the next delimiter, from parser->at on. */
static void feed_search(struct berth_multipart *parser, const char *bytes, uint64_t length,
                        bool *more)
{
    const char *from = bytes + parser->at;
    const char *found = length - parser->at < parser->delimiter_length
                            ? NULL
                            : memmem(from, length - parser->at, parser->delimiter,
                                     parser->delimiter_length);
    if (found == NULL) { /* the end may be the start of one */
        uint64_t kept = parser->delimiter_length - 1;
        if (length - parser->at > kept) {
            parser->at = length - kept;
        }
        return;
    }
    uint64_t end = (uint64_t)(found - bytes);
    if (parser->state == BODY) {
        struct berth_multipart_part *part = &parser->parts[parser->part_count - 1];
        part->length = end - part->offset;
        part->complete = true;
    }
    parser->at = end + parser->delimiter_length;
    parser->mark = parser->at;
    parser->state = DELIMITED;
    *more = true;
}

static enum berth_code read_head(struct berth_multipart_part *part, const char *head, size_t length,
                                 struct berth_err *err)
{
    const char *end = head + length;
    bool disposed = false;
    memset(part, 0, sizeof(*part));
    while (head < end) {
        const char *line_end = memmem(head, (size_t)(end - head), "\r\n", 2);
        line_end = line_end == NULL ? end : line_end;
        for (const char *at = head; at < line_end; at++) {
            unsigned char byte = (unsigned char)*at;
            if ((byte < 0x20 && byte != '\t') || byte == 0x7F) {
                return malformed(err, "control byte in a part's head");
            }
        }
        const char *colon = memchr(head, ':', (size_t)(line_end - head));
        if (colon == NULL || colon == head || head[0] == ' ' || head[0] == '\t' ||
            colon[-1] == ' ' || colon[-1] == '\t') {
            return malformed(err, "malformed line in a part's head");
        }
        struct line line = {
            .name = head, .name_length = (size_t)(colon - head), .value = colon + 1};
        while (line.value < line_end && (*line.value == ' ' || *line.value == '\t')) {
            line.value++;
        }
        line.value_length = (size_t)(line_end - line.value);
        BERTH_TRY(read_line(part, &line, &disposed, err));
        head = line_end == end ? end : line_end + 2;
    }
    return disposed ? BERTH_OK : malformed(err, "a part without Content-Disposition");
}

static enum berth_code read_line(struct berth_multipart_part *part, const struct line *line,
                                 bool *disposed, struct berth_err *err)
{
    if (is_name(line, "content-disposition")) {
        if (*disposed) {
            return malformed(err, "a part with two Content-Dispositions");
        }
        *disposed = true;
        return read_disposition(part, line->value, line->value_length, err);
    }
    if (is_name(line, "content-type")) {
        copy_cut(line->value, line->value_length, part->content_type);
    }
    if (is_name(line, "content-transfer-encoding")) {
        struct line value = {.name = line->value, .name_length = line->value_length};
        if (!is_name(&value, "binary") && !is_name(&value, "8bit") && !is_name(&value, "7bit")) {
            return malformed(err, "a part with a transfer encoding");
        }
    }
    return BERTH_OK;
}

static enum berth_code read_disposition(struct berth_multipart_part *part, const char *value,
                                        size_t length, struct berth_err *err)
{
    static const char type[] = "form-data";
    const char *end = value + length;
    const char *at = value + sizeof(type) - 1;
    struct line parameter;
    bool wrong = false, named = false;
    if (length < sizeof(type) || strncasecmp(value, type, sizeof(type) - 1) != 0) {
        return malformed(err, "Content-Disposition is not form-data with a name");
    }
    while ((at = next_parameter(at, end, &parameter, &wrong)) != NULL) {
        if (is_name(&parameter, "name")) {
            size_t name = unquote(parameter.value, parameter.value_length, part->name,
                                  sizeof(part->name));
            wrong = wrong || named || name >= sizeof(part->name) ||
                    berth_utf8_valid_length(part->name, name) != name;
            named = true;
        } else if (is_name(&parameter, "filename")) {
            char whole[BERTH_MULTIPART_HEAD_MAX];
            size_t name = unquote(parameter.value, parameter.value_length, whole, sizeof(whole));
            wrong = wrong || (part->has_filename && part->filename[0] != '\0');
            copy_cut(whole, name, part->filename);
            part->has_filename = true;
        } else if (is_name(&parameter, "filename*")) {
            part->has_filename = true; /* in an encoding we have no use for */
        }
    }
    if (wrong || !named) {
        return malformed(err, "malformed Content-Disposition");
    }
    return BERTH_OK;
}

static bool is_name(const struct line *line, const char *name)
{
    return line->name_length == strlen(name) &&
           strncasecmp(line->name, name, line->name_length) == 0;
}

/* *( OWS ";" OWS name "=" value ), from behind what stands before. The value keeps its quotes.
 * NULL: there is none; *wrong (never cleared) if something else stands there. */
static const char *next_parameter(const char *at, const char *end, struct line *parameter,
                                  bool *wrong)
{
    bool separated = false;
    while (at < end && (*at == ' ' || *at == '\t' || *at == ';')) {
        separated = separated || *at == ';';
        at++;
    }
    if (at == end) {
        return NULL;
    }
    parameter->name = at;
    while (at < end && *at != '=' && *at != ' ' && *at != '\t' && *at != ';' && *at != '"') {
        at++;
    }
    parameter->name_length = (size_t)(at - parameter->name);
    if (!separated || parameter->name_length == 0 || at == end || *at != '=') {
        *wrong = true;
        return NULL;
    }
    at++;
    parameter->value = at;
    if (at < end && *at == '"') {
        for (at++; at < end && *at != '"'; at++) {
            if (*at == '\\' && end - at > 1 && (at[1] == '"' || at[1] == '\\')) {
                at++;
            }
        }
        if (at == end) {
            *wrong = true;
            return NULL;
        }
        at++;
    } else {
        while (at < end && *at != ';' && *at != ' ' && *at != '\t') {
            at++;
        }
    }
    parameter->value_length = (size_t)(at - parameter->value);
    return at;
}

/* The value without quotes and escapes, terminated. Returns its length, room or more if it was cut.
 * Browsers write \ as it is and " as %22, others \" and \\: only these two are escapes. */
static size_t unquote(const char *value, size_t length, char *out, size_t room)
{
    size_t made = 0;
    bool quoted = length >= 2 && value[0] == '"';
    size_t end = quoted ? length - 1 : length;
    for (size_t i = quoted ? 1 : 0; i < end; i++) {
        if (quoted && value[i] == '\\' && i + 1 < end &&
            (value[i + 1] == '"' || value[i + 1] == '\\')) {
            i++;
        }
        if (made + 1 < room) {
            out[made] = value[i];
        }
        made++;
    }
    out[made < room ? made : room - 1] = '\0';
    return made;
}

/* At most BERTH_MULTIPART_NAME_MAX bytes, cut between characters; what is not UTF-8 becomes _. */
static void copy_cut(const char *value, size_t length, char *out)
{
    size_t made = 0;
    while (length > 0 && made < BERTH_MULTIPART_NAME_MAX) {
        size_t want = length < BERTH_MULTIPART_NAME_MAX - made ? length
                                                               : BERTH_MULTIPART_NAME_MAX - made;
        size_t valid = berth_utf8_valid_length(value, want);
        memcpy(out + made, value, valid);
        made += valid;
        value += valid;
        length -= valid;
        if (valid == want) {
            continue;
        }
        if (want < length + valid && BERTH_MULTIPART_NAME_MAX - made < 4) {
            break; /* a character that no longer fits */
        }
        out[made++] = '_';
        value++;
        length--;
    }
    out[made] = '\0';
}

static bool boundary_ok(const char *boundary, size_t length)
{
    static const char others[] = "'()+_,-./:=? ";
    if (length == 0 || length > BERTH_MULTIPART_BOUNDARY_MAX || boundary[length - 1] == ' ') {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char byte = boundary[i];
        if (!((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
              (byte >= '0' && byte <= '9') || (byte != '\0' && strchr(others, byte) != NULL))) {
            return false;
        }
    }
    return true;
}
