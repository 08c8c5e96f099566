/* token_stream.h - tokens to the API's bytes: server-sent events, or one whole JSON reply.
 *
 * One stream a request.  In streaming mode every call appends complete events
 * (`data: {...}\n\n`) to the given text; otherwise the parts are gathered and
 * token_stream_finish() writes the reply.  It keeps the promises of the format:
 * the role first and once a choice, one JSON object a line, usage only when
 * asked and then on a last chunk without choices, [DONE] only after success.
 *
 * Tool calls: in a stream the first delta of a call has its index, id, type and name, the
 * later ones the next part of its arguments, which parse only when all have come.  A
 * whole reply has message.tool_calls with complete calls alone, and a null content where
 * there is no text beside them.  A call that was cut off (by max_tokens, mostly) is told in
 * its choice, in the stream with the finish_reason: "error":{"type":"incomplete_tool_call",
 * "code":"tool_call_cut","message":...,"index":N}; and the finish_reason is length.
 * Per token it formats into a buffer that exists and allocates nothing else.
 * Knows neither HTTP nor the mesh; one thread.
 */
#ifndef SILICEO_COORDINATOR_TOKEN_STREAM_H
#define SILICEO_COORDINATOR_TOKEN_STREAM_H

#include "common/json.h"
#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct token_tool {
    json_text name, arguments; /* gathered */
} token_tool;

typedef struct token_choice {
    json_text content; /* gathered, not streaming only */
    json_text reasoning;
    json_text logprobs; /* the elements of logprobs.content, comma between */
    wire_finish finish;
    bool begun; /* its role has been sent */
    bool thinking_cut;
    bool ends_again;   /* its end has been told: what comes is that end once more */
    token_tool *tools; /* gathered; n_tools of them */
    size_t cap_tools;
    size_t n_tools; /* calls that have begun */
    bool call_cut;  /* call cut_call is not complete, and may not have begun */
    uint64_t cut_call;
} token_choice;

typedef struct token_stream {
    bool streaming;
    bool include_usage;
    char head[640]; /* `{"id":...,"model":"..."` of every chunk, up to its choices */
    size_t n_head;
    char call_id[40]; /* what the ids of its tool calls have in common */
    token_choice *choices;
    size_t n_choices;
    uint64_t last_choice; /* the one that ended last */
} token_stream;

typedef struct token_stream_params {
    const char *id;
    const char *model;
    uint64_t created_s;
    size_t n_choices;
    bool streaming;
    bool include_usage;
} token_stream_params;

/* What is told besides the worker's own figures. */
typedef struct token_stream_facts {
    const char *node;
    double queue_ms; /* in the coordinator */
    double first_token_ms;
    uint32_t attempts;
    const char *resumed; /* after a node was lost: "exact" or "approximate"; NULL: none was */
} token_stream_facts;

status token_stream_init(token_stream *ts, const token_stream_params *params, error *err);
void token_stream_release(token_stream *ts); /* accepts a zeroed one */
/* Forget what was gathered: the request begins again elsewhere. */
void token_stream_restart(token_stream *ts);
/* Another node goes on where the answer broke off: a finish that came last comes again. */
void token_stream_resume(token_stream *ts);

/* STATUS_BAD_INPUT: a choice or channel that was not asked for. */
status token_stream_add(token_stream *ts, const wire_tokens *tokens, json_text *out,
                        error *err);
/* Success: the last events with [DONE], or the whole reply. */
void token_stream_finish(token_stream *ts, const wire_done *done,
                         const token_stream_facts *facts, json_text *out);
/* Failure after the stream began: an error event, and no [DONE]. */
void token_stream_fail(const char *error_json, json_text *out);
/* How the deliberation ended, when all has come: "complete" or "cut"; NULL: there was none. */
const char *token_stream_thinking(const token_stream *ts, const wire_done *done);
/* Parts that other replies of OpenAI's API have, too: "usage":{...}, and "timings" with
 * "siliceo", where thinking may be NULL. */
void token_stream_usage(const wire_done *done, json_text *out);
void token_stream_timings(const wire_done *done, const token_stream_facts *facts,
                          const char *thinking, json_text *out);
const char *token_stream_finish_name(wire_finish finish);
/* A comment that every client ignores. */
void token_stream_keepalive(json_text *out);

#endif
