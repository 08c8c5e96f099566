/* chat_request.h - what the API does to a chat request before any template sees it.
 *
 * Chat requests come in many dialects.  This maps the harmless ones to what the
 * templates know and refuses the rest with the place: developer becomes system,
 * null content becomes empty, `reasoning` becomes reasoning_content, arguments
 * given as a JSON string become the object in it.  No state; any thread.
 */
#ifndef SILICEO_COMMON_CHAT_REQUEST_H
#define SILICEO_COMMON_CHAT_REQUEST_H

#include "common/error.h"
#include "common/json.h"

enum { CHAT_PARAM_SIZE = 128 };

/* Change request in place.  On STATUS_BAD_INPUT param is the path of the field at
 * fault, such as messages[2].tool_calls[0].function.arguments, and err says what
 * is wrong with it; request is then half changed and of no more use. */
status chat_normalise(cJSON *request, char param[CHAT_PARAM_SIZE], error *err);

#endif
