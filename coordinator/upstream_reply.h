/* upstream_reply.h - what an OpenAI-compatible server sends, as pieces of an answer.
 *
 * Reads the chunks of a streamed chat or text completion, one JSON object each, and calls
 * back for each piece of text.  Tool calls come in fragments and are given whole,
 * when their choice ends, if their arguments are a JSON object by then.  Bytes from
 * outside: bounded, checked, errors name the field.  One thread a reply.
 */
#ifndef SILICEO_COORDINATOR_UPSTREAM_REPLY_H
#define SILICEO_COORDINATOR_UPSTREAM_REPLY_H

#include "common/error.h"
#include "common/json.h"
#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UPSTREAM_MAX_TOOLS = 64, UPSTREAM_MAX_MODELS = WIRE_MAX_MODELS };

typedef struct upstream_piece {
    uint64_t choice;
    wire_channel channel;
    const char *text;
    size_t length;
    wire_finish finish;
    uint64_t call;         /* of WIRE_TOOL_CALL, which is whole: its number, name, arguments */
    const char *call_name; /* or NULL */
    bool call_cut;         /* with the finish: a call was not complete */
} upstream_piece;

typedef struct upstream_tool {
    json_text name, arguments;
} upstream_tool;

typedef struct upstream_choice {
    upstream_tool *tools; /* UPSTREAM_MAX_TOOLS, once there is one */
    size_t n_tools;
    wire_finish finish;
    bool over;
} upstream_choice;

typedef struct upstream_reply {
    upstream_choice *choices;
    size_t n_choices; /* asked for */
    bool done;        /* [DONE] came */
    bool has_usage;
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    unsigned error_status; /* of an error event; 0: none came */
    char error_text[400];
    void *context;
    void (*on_piece)(void *context, const upstream_piece *piece);
} upstream_reply;

status upstream_reply_init(upstream_reply *r, size_t n_choices, void *context,
                           void (*on_piece)(void *context, const upstream_piece *piece),
                           error *err);
void upstream_reply_release(upstream_reply *r); /* accepts a zeroed one */
/* The data of one event. */
status upstream_reply_event(upstream_reply *r, const char *data, size_t n, error *err);
/* Has every choice had its end? */
bool upstream_reply_is_whole(const upstream_reply *r);

/* The request that the server gets for our normalised one: its own name of the model, a
 * stream with usage, arguments of tool calls as text again.  The caller frees *out. */
status upstream_request_body(char **out, size_t *n_choices, const char *body, size_t n,
                             const char *model, error *err);
/* The text of an error reply. */
void upstream_error_text(char *out, size_t cap, const char *body, size_t n);

typedef struct upstream_model {
    uint64_t context_tokens; /* 0: not said */
    bool is_coordinators;    /* another coordinator serves it */
    char name[WIRE_MAX_NAME + 1];
} upstream_model;
/* The models of GET /v1/models; those whose names are too long are left out. */
status upstream_read_models(upstream_model out[UPSTREAM_MAX_MODELS], size_t *n_models,
                            const char *body, size_t n, error *err);

#endif
