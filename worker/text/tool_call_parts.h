/* tool_call_parts.h - what tool_call.c and tool_call_json.c share; private to them. */
#ifndef SILICEO_WORKER_TEXT_TOOL_CALL_PARTS_H
#define SILICEO_WORKER_TEXT_TOOL_CALL_PARTS_H

#include "worker/text/tool_call.h"

/* t->name names the call that begins. */
void tool_call_begin(tool_call *t);
/* The next bytes of the open call's arguments. */
void tool_call_arguments(tool_call *t, const char *bytes, size_t length);

/* JSON begins behind what t->value holds. */
void tool_call_json_begin(tool_call *t);
/* Take note of a byte; true: it closed the outermost bracket. */
bool tool_call_json_byte(tool_call *t, char c);
/* The JSON in t->value is over: give its arguments, but for the last brace.  Missing closing
 * brackets are put there.  False, and nothing given: it is no call. */
bool tool_call_json_end(tool_call *t);

#endif
