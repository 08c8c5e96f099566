/* prompt.h - prompt text that knows which of its bytes are ours.
 *
 * A chat template mixes literals (whose <|im_start|> is a token) with contents
 * from outside (whose <|im_start|> is ten letters of text).  The flat text is
 * `text`; `spans` say where trust changes; `bounds` are the places after which
 * a later prompt may differ, where a snapshot of the model's state is worth
 * having.  The caller owns it: starts as {0}, prompt_release().  One thread.
 */
#ifndef SILICEO_WORKER_TEXT_PROMPT_H
#define SILICEO_WORKER_TEXT_PROMPT_H

#include "common/error.h"
#include "common/json.h"
#include <stdbool.h>
#include <stddef.h>

/* From the end of the span before it to `end`. */
typedef struct prompt_span {
    size_t end;
    bool trusted;
} prompt_span;

typedef enum prompt_bound_kind {
    PROMPT_BOUND_MESSAGE,  /* a message ends here */
    PROMPT_BOUND_ASSISTANT /* an assistant's header ends here, before any <think> */
} prompt_bound_kind;

typedef struct prompt_bound {
    size_t at; /* byte offset in the text */
    prompt_bound_kind kind;
    size_t n_messages; /* of the request, that end before it */
    size_t n_tokens;   /* before it; set by tokenizer_encode_prompt() */
} prompt_bound;

typedef struct prompt {
    json_text text;
    prompt_span *spans;
    size_t n_spans, cap_spans;
    prompt_bound *bounds; /* ascending; always between two tokens */
    size_t n_bounds, cap_bounds;
    size_t n_messages;   /* rendered so far: the renderer counts them */
    bool opens_thinking; /* ends inside <think>: the answer begins as reasoning */
} prompt;

void prompt_release(prompt *p);
/* A failed allocation is remembered in text.failed, and later calls do nothing. */
void prompt_add(prompt *p, const char *bytes, size_t length, bool trusted);
void prompt_add_literal(prompt *p, const char *words);
/* Bytes from..to of another prompt, with their trust. */
void prompt_add_part(prompt *p, const prompt *source, size_t from, size_t to);
void prompt_add_bound(prompt *p, prompt_bound_kind kind); /* at the present end */

#endif
