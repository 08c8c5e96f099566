/* responses_params.h - reads the body of OpenAI's POST /v1/responses as a chat request.
 *
 *   instructions                     a system message in front
 *   input                            a user's text, or items:
 *     message                        a message; its parts are input_text or output_text
 *     reasoning                      reasoning_content of the assistant's message after it
 *     function_call, ..._output      tool_calls, a message of the role tool
 *   max_output_tokens, reasoning.effort, text.format, tools, tool_choice
 *                                    as a chat names them
 *
 * Nothing is stored: previous_response_id, conversation, prompt and background are refused,
 * `store` is answered with false.  In the result `told` has the fields that a response repeats.
 * Bytes from outside; no state; any thread.
 */
#ifndef SILICEO_COORDINATOR_RESPONSES_PARAMS_H
#define SILICEO_COORDINATOR_RESPONSES_PARAMS_H

#include "coordinator/chat_params.h"

status responses_params_read(chat_params *out, const char *body, size_t length,
                             char param[CHAT_PARAM_SIZE], error *err);

#endif
