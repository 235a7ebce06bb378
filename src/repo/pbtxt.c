/* pbtxt.c - see pbtxt.h.
 *
 * A recursive descent over single bytes; what a field's type is does not matter here, so that one
 * reader serves every message: the check afterwards knows the types. As in protobuf's own reader:
 * a colon may be left out before a message or a list of messages, not before a scalar; `,` or `;`
 * may end a field; adjacent strings are one; lists are repeated fields written short. Names in
 * brackets (extensions, Any) become fields of that name, which no message of ours has.
 */
#include "repo/pbtxt.h"

#include <ctype.h>
#include <string.h>

#include "base/buf.h"

struct parser {
    const char *at;
    const char *end;
    const char *line_start;
    uint32_t line;
    uint32_t depth;
    uint32_t node_count;
    struct berth_arena *arena;
    struct berth_config_source source;
    struct berth_err *err;
};

static enum berth_code parse_fields(struct parser *parser, struct berth_config_node *message,
                                    char closing);
static enum berth_code parse_field(struct parser *parser, struct berth_config_node *message);
static enum berth_code parse_name(struct parser *parser, const char **out);
static enum berth_code parse_list(struct parser *parser, struct berth_config_node *message,
                                  const char *name, bool colon);
static enum berth_code parse_value(struct parser *parser, struct berth_config_node *message,
                                   const char *name, bool colon);
static enum berth_code parse_message(struct parser *parser, struct berth_config_node *node);
static enum berth_code parse_scalar(struct parser *parser, struct berth_config_node *node);
static enum berth_code parse_strings(struct parser *parser, struct berth_config_node *node);
static enum berth_code parse_string(struct parser *parser, char *out, size_t *length);
static enum berth_code parse_escape(struct parser *parser, char *out, size_t *length);
static enum berth_code parse_number(struct parser *parser, struct berth_config_node *node,
                                    bool negative);
static enum berth_code node_make(struct parser *parser, const char *name,
                                 struct berth_config_node **out);
static enum berth_code node_text(struct parser *parser, struct berth_config_node *node,
                                 const char *from, size_t length);
static void skip_space(struct parser *parser);
static bool take(struct parser *parser, char byte);
static enum berth_code fail_here(struct parser *parser, const char *what);
static enum berth_code no_memory(struct parser *parser);

enum berth_code berth_pbtxt_parse(const struct berth_pbtxt *source, struct berth_arena *arena,
                                  struct berth_config_node **out, struct berth_err *err)
{
    struct parser parser = {.at = source->text,
                            .end = source->text + source->length,
                            .line_start = source->text,
                            .line = 1,
                            .arena = arena,
                            .source = {.label = source->label},
                            .err = err};
    struct berth_config_node *root = NULL;
    if (source->length > BERTH_PBTXT_BYTES_MAX) {
        return berth_fail(err, BERTH_TOO_LARGE, "%s is larger than %d bytes", source->label,
                          BERTH_PBTXT_BYTES_MAX);
    }
    if (source->length >= 3 && memcmp(source->text, "\xEF\xBB\xBF", 3) == 0) {
        parser.at += 3; /* a byte order mark */
    }
    BERTH_TRY(node_make(&parser, "", &root));
    root->token = BERTH_CONFIG_TOKEN_MESSAGE;
    BERTH_TRY(parse_fields(&parser, root, '\0'));
    *out = root;
    return BERTH_OK;
}

/* Fields up to `closing`, which is taken; '\0': up to the end of the text. */
static enum berth_code parse_fields(struct parser *parser, struct berth_config_node *message,
                                    char closing)
{
    for (;;) {
        skip_space(parser);
        if (parser->at == parser->end) {
            if (closing == '\0') {
                return BERTH_OK;
            }
            return berth_config_fail(message, &parser->source, parser->err,
                                     "'%s' is not closed by '%c'", message->name, closing);
        }
        if (closing != '\0' && take(parser, closing)) {
            return BERTH_OK;
        }
        BERTH_TRY(parse_field(parser, message));
    }
}

static enum berth_code parse_field(struct parser *parser, struct berth_config_node *message)
{
    const char *name = NULL;
    const char *start = parser->at;
    uint32_t column = (uint32_t)(start - parser->line_start) + 1;
    uint32_t line = parser->line;
    struct berth_config_node *before = message->last;
    BERTH_TRY(parse_name(parser, &name));
    skip_space(parser);
    bool colon = take(parser, ':');
    skip_space(parser);
    if (take(parser, '[')) {
        BERTH_TRY(parse_list(parser, message, name, colon));
    } else {
        BERTH_TRY(parse_value(parser, message, name, colon));
    }
    skip_space(parser);
    if (!take(parser, ',')) {
        take(parser, ';');
    }
    /* The place of a field is that of its name: there a reader looks for it. */
    struct berth_config_node *node = before == NULL ? message->children : before->next;
    if (node != NULL && node->next == NULL) {
        node->line = line;
        node->column = column;
    }
    return BERTH_OK;
}

static bool is_name_start(char byte)
{
    return isalpha((unsigned char)byte) || byte == '_';
}

static bool is_name(char byte)
{
    return isalnum((unsigned char)byte) || byte == '_';
}

static enum berth_code parse_name(struct parser *parser, const char **out)
{
    const char *start = parser->at;
    if (*start == '[') {
        while (parser->at < parser->end && *parser->at != ']') {
            char byte = *parser->at;
            if (parser->at != start && !is_name(byte) && strchr("./- ", byte) == NULL) {
                return fail_here(parser, "a name in brackets holds letters, digits, '.' and '/'");
            }
            parser->at++;
        }
        if (!take(parser, ']')) {
            return fail_here(parser, "a name in brackets is not closed by ']'");
        }
    } else {
        if (!is_name_start(*start)) {
            return fail_here(parser, "expected a field's name");
        }
        while (parser->at < parser->end && is_name(*parser->at)) {
            parser->at++;
        }
    }
    *out = berth_arena_strndup(parser->arena, start, (size_t)(parser->at - start));
    return *out == NULL ? no_memory(parser) : BERTH_OK;
}

/* After '['. */
static enum berth_code parse_list(struct parser *parser, struct berth_config_node *message,
                                  const char *name, bool colon)
{
    skip_space(parser);
    if (take(parser, ']')) {
        return BERTH_OK;
    }
    for (;;) {
        skip_space(parser);
        BERTH_TRY(parse_value(parser, message, name, colon));
        skip_space(parser);
        if (take(parser, ']')) {
            return BERTH_OK;
        }
        if (!take(parser, ',')) {
            return fail_here(parser, "expected ',' or ']' in a list");
        }
    }
}

static enum berth_code parse_value(struct parser *parser, struct berth_config_node *message,
                                   const char *name, bool colon)
{
    struct berth_config_node *node = NULL;
    BERTH_TRY(node_make(parser, name, &node));
    if (parser->at < parser->end && (*parser->at == '{' || *parser->at == '<')) {
        BERTH_TRY(parse_message(parser, node));
    } else if (!colon) {
        return fail_here(parser, "expected ':' before the value");
    } else {
        BERTH_TRY(parse_scalar(parser, node));
    }
    berth_config_append(message, node);
    return BERTH_OK;
}

static enum berth_code parse_message(struct parser *parser, struct berth_config_node *node)
{
    char closing = *parser->at == '{' ? '}' : '>';
    if (parser->depth == BERTH_PBTXT_DEPTH_MAX) {
        return fail_here(parser, "messages are nested too deeply");
    }
    parser->at++;
    parser->depth++;
    node->token = BERTH_CONFIG_TOKEN_MESSAGE;
    enum berth_code code = parse_fields(parser, node, closing);
    parser->depth--;
    return code;
}

static enum berth_code parse_scalar(struct parser *parser, struct berth_config_node *node)
{
    if (parser->at == parser->end) {
        return fail_here(parser, "expected a value, not the end");
    }
    char byte = *parser->at;
    if (byte == '"' || byte == '\'') {
        return parse_strings(parser, node);
    }
    bool negative = take(parser, '-');
    if (negative) {
        skip_space(parser);
    }
    const char *start = parser->at;
    if (start == parser->end) {
        return fail_here(parser, "expected a value, not the end");
    }
    if (isdigit((unsigned char)*start) || *start == '.') {
        return parse_number(parser, node, negative);
    }
    if (!is_name_start(*start)) {
        return fail_here(parser, "expected a value");
    }
    while (parser->at < parser->end && is_name(*parser->at)) {
        parser->at++;
    }
    size_t length = (size_t)(parser->at - start);
    node->token = BERTH_CONFIG_TOKEN_WORD;
    if (!negative) {
        return node_text(parser, node, start, length);
    }
    char *text = berth_arena_alloc(parser->arena, length + 2);
    if (text == NULL) {
        return no_memory(parser);
    }
    text[0] = '-';
    memcpy(text + 1, start, length);
    node->text = text;
    node->length = length + 1;
    return BERTH_OK;
}

/* One or more strings in quotes, which are one value. */
static enum berth_code parse_strings(struct parser *parser, struct berth_config_node *node)
{
    /* Escapes only shrink, so the text between the quotes is room enough; measure it first. */
    struct parser ahead = *parser;
    size_t room = 0;
    while (ahead.at < ahead.end && (*ahead.at == '"' || *ahead.at == '\'')) {
        size_t length = 0;
        const char *start = ahead.at;
        BERTH_TRY(parse_string(&ahead, NULL, &length));
        room += (size_t)(ahead.at - start);
        skip_space(&ahead);
    }
    char *text = berth_arena_alloc(parser->arena, room + 1);
    if (text == NULL) {
        return no_memory(parser);
    }
    size_t whole = 0;
    while (parser->at < parser->end && (*parser->at == '"' || *parser->at == '\'')) {
        size_t length = 0;
        BERTH_TRY(parse_string(parser, text + whole, &length));
        whole += length;
        skip_space(parser);
    }
    node->token = BERTH_CONFIG_TOKEN_STRING;
    node->text = text;
    node->length = whole;
    return BERTH_OK;
}

/* One string; out NULL: only its length. */
static enum berth_code parse_string(struct parser *parser, char *out, size_t *length)
{
    char quote = *parser->at++;
    size_t count = 0;
    while (parser->at < parser->end && *parser->at != quote) {
        char byte = *parser->at;
        if (byte == '\n') {
            return fail_here(parser, "a string ends with its line; its quote is missing");
        }
        if (byte != '\\') {
            if (out != NULL) {
                out[count] = byte;
            }
            count++;
            parser->at++;
            continue;
        }
        char bytes[4];
        size_t more = 0;
        BERTH_TRY(parse_escape(parser, bytes, &more));
        if (out != NULL) {
            memcpy(out + count, bytes, more);
        }
        count += more;
    }
    if (!take(parser, quote)) {
        return fail_here(parser, "a string has no closing quote");
    }
    *length = count;
    return BERTH_OK;
}

/* Up to `digits_max` digits of the base; their count. */
static size_t digits_take(struct parser *parser, unsigned base, size_t digits_max, uint32_t *out)
{
    size_t count = 0;
    *out = 0;
    while (count < digits_max && parser->at < parser->end) {
        int byte = tolower((unsigned char)*parser->at);
        unsigned digit = isdigit(byte) ? (unsigned)(byte - '0')
                         : byte >= 'a' && byte <= 'f' ? (unsigned)(byte - 'a') + 10
                                                      : 99;
        if (digit >= base) {
            break;
        }
        *out = *out * base + digit;
        count++;
        parser->at++;
    }
    return count;
}

/* At the backslash. At most 4 bytes come out, never more than the escape is long. */
static enum berth_code parse_escape(struct parser *parser, char *out, size_t *length)
{
    static const char from[] = "abfnrtv?'\"\\";
    static const char to[] = "\a\b\f\n\r\t\v?'\"\\";
    uint32_t value;
    parser->at++;
    if (parser->at == parser->end) {
        return fail_here(parser, "a string has no closing quote");
    }
    char byte = *parser->at;
    const char *simple = byte == '\0' ? NULL : strchr(from, byte);
    *length = 1;
    if (simple != NULL) {
        out[0] = to[simple - from];
        parser->at++;
        return BERTH_OK;
    }
    if (byte >= '0' && byte <= '7') {
        digits_take(parser, 8, 3, &value);
        if (value > 0xFF) {
            return fail_here(parser, "an octal escape is past \\377");
        }
        out[0] = (char)value;
        return BERTH_OK;
    }
    if (byte != 'x' && byte != 'X' && byte != 'u' && byte != 'U') {
        return fail_here(parser, "an unknown escape in a string");
    }
    parser->at++;
    size_t digits = byte == 'u' ? 4 : byte == 'U' ? 8 : 2;
    size_t found = digits_take(parser, 16, digits, &value);
    if (found == 0 || (digits > 2 && found != digits)) {
        return fail_here(parser, "an escape in a string lacks digits");
    }
    if (digits == 2) {
        out[0] = (char)value;
        return BERTH_OK;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
        return fail_here(parser, "an escape in a string is no character");
    }
    *length = berth_utf8_put(out, value);
    return BERTH_OK;
}

/* Digits, points and exponents; what they mean is the check's business, that they end is ours. */
static enum berth_code parse_number(struct parser *parser, struct berth_config_node *node,
                                    bool negative)
{
    const char *start = parser->at;
    bool hex = parser->end - start > 1 && start[0] == '0' && (start[1] == 'x' || start[1] == 'X');
    while (parser->at < parser->end) {
        char byte = *parser->at;
        bool sign = (byte == '+' || byte == '-') && !hex && parser->at > start &&
                    (parser->at[-1] == 'e' || parser->at[-1] == 'E');
        if (!is_name(byte) && byte != '.' && !sign) {
            break;
        }
        parser->at++;
    }
    size_t length = (size_t)(parser->at - start);
    char *text = berth_arena_alloc(parser->arena, length + 2);
    if (text == NULL) {
        return no_memory(parser);
    }
    text[0] = '-';
    memcpy(text + (negative ? 1 : 0), start, length);
    node->token = BERTH_CONFIG_TOKEN_NUMBER;
    node->text = text;
    node->length = length + (negative ? 1 : 0);
    return BERTH_OK;
}

static enum berth_code node_make(struct parser *parser, const char *name,
                                 struct berth_config_node **out)
{
    if (parser->node_count == BERTH_PBTXT_NODES_MAX) {
        return fail_here(parser, "too many fields");
    }
    struct berth_config_node *node = berth_arena_alloc(parser->arena, sizeof(*node));
    if (node == NULL) {
        return no_memory(parser);
    }
    parser->node_count++;
    node->name = name;
    node->text = "";
    node->line = parser->line;
    node->column = (uint32_t)(parser->at - parser->line_start) + 1;
    *out = node;
    return BERTH_OK;
}

static enum berth_code node_text(struct parser *parser, struct berth_config_node *node,
                                 const char *from, size_t length)
{
    node->text = berth_arena_strndup(parser->arena, from, length);
    node->length = length;
    return node->text == NULL ? no_memory(parser) : BERTH_OK;
}

static void skip_space(struct parser *parser)
{
    while (parser->at < parser->end) {
        char byte = *parser->at;
        if (byte == '#') {
            while (parser->at < parser->end && *parser->at != '\n') {
                parser->at++;
            }
        } else if (byte == '\n') {
            parser->at++;
            parser->line++;
            parser->line_start = parser->at;
        } else if (byte == ' ' || byte == '\t' || byte == '\r' || byte == '\v' || byte == '\f') {
            parser->at++;
        } else {
            return;
        }
    }
}

static bool take(struct parser *parser, char byte)
{
    if (parser->at == parser->end || *parser->at != byte) {
        return false;
    }
    parser->at++;
    return true;
}

static enum berth_code fail_here(struct parser *parser, const char *what)
{
    struct berth_config_node here = {
        .line = parser->line, .column = (uint32_t)(parser->at - parser->line_start) + 1};
    return berth_config_fail(&here, &parser->source, parser->err, "%s", what);
}

static enum berth_code no_memory(struct parser *parser)
{
    return berth_fail(parser->err, BERTH_UNAVAILABLE, "no memory to read %s",
                      parser->source.label);
}
