/* request_format.h - response_format of a request: the answer of each choice is one JSON
 * document by its schema.
 *
 * Deliberation is free; the format begins with the first token after it.  What is left of
 * the smallest budget (context, max_tokens, max_answer_tokens) bounds each token, so that
 * the document is whole when the budget is spent.  Follows from the ids alone, as
 * everything about a choice does.  A choice without a format passes through all of it.
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_REQUEST_FORMAT_H
#define SILICEO_WORKER_REQUEST_FORMAT_H

#include "worker/request.h"

/* Compile the schema of r->job, if it has one, into r->grammar. */
status request_format_compile(request *r, request_fault *fault);
/* Give the choice its format and its deliberation a limit that leaves room for the shortest
 * document; a budget that has none is the client's error. */
status request_format_make(request *r, choice *c, budget_params *limits, bool opens_thinking,
                           request_fault *fault);

/* Is the next token one of the document? */
bool request_format_holds(const choice *c);
bool request_format_allows(choice *c, int32_t id);
/* Minus infinity for every logit [n_vocab] of a token that may not come next. */
void request_format_mask(choice *c, float *logits, uint32_t n_vocab);
/* The token is about to be put on the timeline. */
void request_format_take(choice *c, int32_t id);
/* Would this token, inside the deliberation, close it and say something behind that? */
bool request_format_spills(const choice *c, int32_t id);

#endif
