/* tokenizer.h - byte-level BPE of a GGUF: text to token ids and back.
 *
 * Everything needed is copied out of the file at open; afterwards nothing
 * changes, so any thread may encode and decode without a lock.  Text is bytes:
 * invalid UTF-8 is encoded byte by byte and comes back as it was.
 *
 * Encoding is O(n log n) for any input and does not recurse.
 * Source: spec of the tokenizer (added tokens, pre-tokenizer, byte map, BPE).
 */
#ifndef SILICEO_WORKER_TEXT_TOKENIZER_H
#define SILICEO_WORKER_TEXT_TOKENIZER_H

#include "common/error.h"
#include "common/gguf.h"
#include "worker/text/prompt.h"
#include "worker/text/token_list.h"
#include "worker/text/vocabulary.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tokenizer tokenizer;

/* Which added tokens are found in a text; elsewhere their text is ordinary bytes. */
typedef enum tokenizer_added {
    TOKENIZER_ADDED_NONE,         /* untrusted text */
    TOKENIZER_ADDED_USER_DEFINED, /* <think>, <tool_call> and the like */
    TOKENIZER_ADDED_ALL           /* control tokens such as <|im_end|> as well */
} tokenizer_added;

/* Read the tokenizer.ggml.* keys.  Refuses by name another model than gpt2 and
 * another pre-tokenizer than qwen35 and qwen2.  nfc: encode texts in Unicode
 * normal form C, as the reference tokenizer does and llama.cpp does not. */
status tokenizer_open(tokenizer **out, const gguf_file *file, bool nfc, error *err);
void tokenizer_close(tokenizer *t); /* accepts NULL and a half-built one */

/* Append the ids of text. */
status tokenizer_encode(const tokenizer *t, const char *text, size_t length,
                        tokenizer_added added, token_list *out, error *err);

/* Append the ids of a rendered prompt: all added tokens are found in its literal
 * parts, those of `content` in the parts that came from outside; none across a
 * border.  prompt->bounds[i].n_tokens becomes the number of ids before bound i,
 * counted from the start of this prompt. */
status tokenizer_encode_prompt(const tokenizer *t, prompt *p, tokenizer_added content,
                               token_list *out, error *err);

/* Bytes of one token: raw bytes of a normal one (perhaps a part of a character),
 * the literal text of control and user-defined ones, nothing of unused ones and of
 * ids outside the table.  Borrowed. */
const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *length);
token_kind tokenizer_kind(const tokenizer *t, int32_t id); /* outside the table: TOKEN_UNUSED */

/* The control or user-defined token of exactly this text, or -1. */
int32_t tokenizer_find(const tokenizer *t, const char *text);

size_t tokenizer_n_tokens(const tokenizer *t);
/* Does this id end the generation: <|im_end|>, <|endoftext|>, the fim_pad,
 * repo_name and file_sep tokens, and the file's own eos. */
bool tokenizer_is_end(const tokenizer *t, int32_t id);
/* Ids that sampling must never choose, ascending: unused ones and [PADn]. */
const int32_t *tokenizer_masked(const tokenizer *t, size_t *n);

#endif
