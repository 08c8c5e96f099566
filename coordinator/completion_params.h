/* completion_params.h - reads and checks the body of POST /v1/completions.
 *
 * `prompt` is a text, a list of texts, a list of token ids, or a list of such lists; each
 * prompt becomes a body of its own.  Of `told` in the result the answer takes "echo": the
 * texts to begin with, one a prompt.  Sampling is checked as in a chat.  `suffix`,
 * `best_of` above n, and `echo` where the prompt's text or probabilities are not known here
 * are refused.
 * Bytes from outside; no state; any thread.
 */
#ifndef SILICEO_COORDINATOR_COMPLETION_PARAMS_H
#define SILICEO_COORDINATOR_COMPLETION_PARAMS_H

#include "coordinator/chat_params.h"

enum { COMPLETION_DEFAULT_TOKENS = 16 }; /* as OpenAI's API has it */

status completion_params_read(chat_params *out, const char *body, size_t length,
                              char param[CHAT_PARAM_SIZE], error *err);

#endif
