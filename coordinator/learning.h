/* learning.h - what a request's tokens and its end teach about the node and the model.
 *
 * `io` thread; time is passed in, so that the same rules run in simulated time.
 */
#ifndef SILICEO_COORDINATOR_LEARNING_H
#define SILICEO_COORDINATOR_LEARNING_H

#include "coordinator/request.h"

/* Tokens have come: r is on its node, its times not yet those of these tokens. */
void learning_tokens(request *r, uint64_t n_ids, bool is_first, uint64_t now_ns);
/* It is over and well, and still on its node. */
void learning_done(request *r, const wire_done *done, uint64_t now_ns);

#endif
