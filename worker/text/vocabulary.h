/* vocabulary.h - the table of tokens: bytes, kind, and both ways of finding one.
 *
 * Copied from the tokenizer.ggml.tokens and token_type keys of a GGUF.  Normal
 * tokens stand there in letters (a byte-to-letter map keeps them printable);
 * here they are raw bytes.  Nothing changes after open; any thread.
 */
#ifndef SILICEO_WORKER_TEXT_VOCABULARY_H
#define SILICEO_WORKER_TEXT_VOCABULARY_H

#include "common/error.h"
#include "common/gguf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum token_kind {
    TOKEN_NORMAL,       /* bytes of text */
    TOKEN_CONTROL,      /* <|im_start|> ...: usually hidden from the user */
    TOKEN_USER_DEFINED, /* <think> ...: visible unless a parser takes it */
    TOKEN_UNUSED        /* padding of the table: never produced, never matched */
} token_kind;

typedef struct vocabulary vocabulary;

status vocabulary_open(vocabulary **out, const gguf_file *file, error *err);
void vocabulary_close(vocabulary *v); /* accepts NULL and a half-built one */

size_t vocabulary_size(const vocabulary *v);
/* Borrowed bytes of an id; unused ones have none, and an id outside the table is unused. */
const char *vocabulary_bytes(const vocabulary *v, int32_t id, size_t *length);
token_kind vocabulary_kind(const vocabulary *v, int32_t id);

/* The normal token of exactly these bytes, or -1.  Each single byte has one. */
int32_t vocabulary_find(const vocabulary *v, const char *bytes, size_t length);
int32_t vocabulary_of_byte(const vocabulary *v, unsigned char byte);
/* The control or user-defined token of exactly this text, or -1. */
int32_t vocabulary_find_added(const vocabulary *v, const char *text, size_t length);
/* The longest control (where wanted) or user-defined token at the beginning of text, or -1. */
int32_t vocabulary_match_added(const vocabulary *v, const char *text, size_t length,
                               bool control);
/* Does any added token begin with this byte? */
bool vocabulary_added_begins(const vocabulary *v, unsigned char byte);

/* Text as it stands in the file (letters) to raw bytes, at most length of them,
 * in out.  False, and out undefined, where a letter stands for no byte. */
bool vocabulary_unmap(const char *text, size_t length, char *out, size_t *n_out);

#endif
