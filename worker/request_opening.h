/* request_opening.h - the opening of a tool call that a request insists on.
 *
 * tool_choice required or a named function: behind the deliberation, if there is one, the
 * answer's first tokens are not sampled but those of `<tool_call>\n<function`, with `=NAME>\n`
 * where the function is certain.  They go through the model like any token, so that it can only
 * go on; they end where a word does, so that the next token is one that it knows there.
 * It all follows from the ids, so that another node that is shown them goes on.
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_REQUEST_OPENING_H
#define SILICEO_WORKER_REQUEST_OPENING_H

#include "worker/request.h"

/* Fill r->opening where the job forces a call. */
status request_opening_make(request *r, request_fault *fault);

/* The token of the opening that must come next; -1: none. */
int32_t request_opening_next(const choice *c);
/* Take note of a token, before generation_push() sees it. */
void request_opening_take(choice *c, int32_t id);

#endif
