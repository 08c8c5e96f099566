/* answer_format.h - which tokens may come next in an answer that must be one JSON document.
 *
 * A token is allowed when the automaton takes all its bytes and the shortest way to the end
 * from there fits in what is left, one byte a token (each byte is a token of its own, so
 * such a way exists).  Tokens that end the text are allowed exactly when the document is
 * whole.  Where the budget is smaller than that way in bytes but not in tokens, the tokens
 * of the shortest document are the only ones allowed, from the first to the last.
 *
 * allows() tests one token in the time of its bytes: a greedy choice needs no more until it
 * is refused.  mask() takes all others out of a row, before penalties, top-k, top-p and the
 * draw, so that sampling is sampling among the allowed.  Sets are kept for each state.
 *
 * One for each choice; grammar and tree must outlive it.  Allocates only when it is made
 * and, seldom, when the automaton's memory is renewed.  Thread: engine.
 */
#ifndef SILICEO_WORKER_TEXT_ANSWER_FORMAT_H
#define SILICEO_WORKER_TEXT_ANSWER_FORMAT_H

#include "worker/text/json_grammar.h"
#include "worker/text/token_trie.h"
#include <stdbool.h>

typedef struct answer_format answer_format;

status answer_format_new(answer_format **out, const json_grammar *g, const token_trie *trie,
                         const tokenizer *vocab, error *err);
void answer_format_free(answer_format *f); /* accepts NULL and a half-built one */

/* Tokens that the shortest document takes. */
uint32_t answer_format_least(const answer_format *f);
/* n_left: tokens that the answer may still have; call before the first token of it. */
void answer_format_begin(answer_format *f, uint32_t n_left);
/* n_left: with this one.  Ends of text do not count. */
bool answer_format_allows(answer_format *f, int32_t id, uint32_t n_left);
/* Minus infinity for all logits [n_vocab] of tokens that are not allowed. */
void answer_format_mask(answer_format *f, float *logits, uint32_t n_vocab, uint32_t n_left);
/* The token was taken.  False: it is not of the document, and nothing changed. */
bool answer_format_push(answer_format *f, int32_t id);
bool answer_format_is_whole(const answer_format *f);
/* Nothing of the document has come but blanks. */
bool answer_format_is_blank(const answer_format *f);
/* As new, with no end of what is left; what was learnt of the vocabulary is kept. */
void answer_format_restart(answer_format *f);

#endif
