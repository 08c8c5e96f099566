/* messages_params.h - reads the body of Anthropic's POST /v1/messages as a chat request.
 *
 *   system                    a system message
 *   text, thinking blocks     content, reasoning_content
 *   tool_use, tool_result     tool_calls, a message of the role tool
 *   stop_sequences            stop; `told` is the list, for the stop_sequence of the answer
 *   thinking                  as it is; without it the model does not deliberate
 *   tools, tool_choice        function tools; auto, any (required), tool (that one), none
 *   output_config.format      response_format
 *
 * max_tokens is required, as there.  Images and documents are refused by their place.
 * Cache marks, metadata and service tiers mean nothing here.
 * Bytes from outside; no state; any thread.
 */
#ifndef SILICEO_COORDINATOR_MESSAGES_PARAMS_H
#define SILICEO_COORDINATOR_MESSAGES_PARAMS_H

#include "coordinator/chat_params.h"

status messages_params_read(chat_params *out, const char *body, size_t length,
                            char param[CHAT_PARAM_SIZE], error *err);
/* Of /v1/messages/count_tokens: the same without max_tokens and stream. */
status messages_params_count(chat_params *out, const char *body, size_t length,
                             char param[CHAT_PARAM_SIZE], error *err);

#endif
