/* request_format.h - what the tokens of a choice must make: a JSON document, a call of a tool.
 *
 * With response_format the answer is one document by its schema.  Deliberation is free; the
 * format begins with the first token after it.  What is left of the smallest budget
 * (context, max_tokens, max_answer_tokens) bounds each token, so that the document is
 * whole when the budget is spent.  Where there are tools as well, the token that opens a call
 * may stand in place of the document, and what follows is free.
 *
 * A call that tool_choice forces is one by the tools' grammar from the token that opens it to the
 * end of its function, and so is each call behind it: no other name, no parameter missing.  A
 * budget does not shorten its values: it is cut, and told as such.
 *
 * Follows from the ids alone, as everything about a choice does.  A choice without either
 * passes through all of it.  Thread: engine.
 */
#ifndef SILICEO_WORKER_REQUEST_FORMAT_H
#define SILICEO_WORKER_REQUEST_FORMAT_H

#include "worker/request.h"

/* Compile the schema of r->job or its tools, as far as they say what must come. */
status request_format_compile(request *r, request_fault *fault);
/* Give the choice its formats and its deliberation a limit that leaves room for the shortest
 * document; a budget that has none is the client's error. */
status request_format_make(request *r, choice *c, budget_params *limits, bool opens_thinking,
                           request_fault *fault);

/* Is the next token one of the document or of the call? */
bool request_format_holds(const choice *c);
bool request_format_allows(choice *c, int32_t id);
/* Minus infinity for every logit [n_vocab] of a token that may not come next. */
void request_format_mask(choice *c, float *logits, uint32_t n_vocab);
/* The token is about to be put on the timeline. */
void request_format_take(choice *c, int32_t id);
/* Would this token, inside the deliberation, close it and say something behind that? */
bool request_format_spills(const choice *c, int32_t id);

#endif
