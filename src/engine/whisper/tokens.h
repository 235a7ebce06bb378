/* tokens.h - Whisper's byte-level BPE vocabulary, read from a tokenizer.json.
 *
 * Ids to bytes, and text to ids for prompts. Text that looks like a special token is encoded as
 * plain text: no client reaches a control token through a prompt.
 * Threads: read-only after load; any.
 */
#ifndef BERTH_TOKENS_H
#define BERTH_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct berth_tokens;

/* INVALID with the file's name when it is not a byte-level BPE tokenizer. */
enum berth_code berth_tokens_load(const char *path, struct berth_tokens **out,
                                  struct berth_err *err) BERTH_MUST_USE;
void berth_tokens_destroy(struct berth_tokens *tokens); /* NULL is fine */
uint64_t berth_tokens_bytes(const struct berth_tokens *tokens);

/* The bytes of a token of text, which may be a part of a character; 0 for ids that have none. */
size_t berth_tokens_piece(const struct berth_tokens *tokens, int32_t id, const char **bytes);
/* The id of an added token such as "<|en|>"; -1: there is none. */
int32_t berth_tokens_special(const struct berth_tokens *tokens, const char *content);
/* Appends the bytes of those ids that are below `end`, as they are. */
void berth_tokens_decode(const struct berth_tokens *tokens, const int32_t *ids, size_t count,
                         int32_t end, struct berth_buf *out);
/* Writes the ids of text into out, which has room for `length` of them; returns how many.
 * Words past 256 bytes are cut (a word of natural language is shorter), so that time is bounded. */
size_t berth_tokens_encode(const struct berth_tokens *tokens, const char *text, size_t length,
                           int32_t *out);

#endif
