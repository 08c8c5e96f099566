/* tool_call.h - finds the tool calls in what a model writes, piece by piece.
 *
 *     Let me see.                             text
 *     <tool_call>
 *     <function=get_weather>                  a call begins: number 0, name get_weather
 *     <parameter=city>
 *     Paris                                   arguments {"city":"Paris  as it comes
 *     </parameter>
 *     </function>                             arguments "}
 *     </tool_call>
 *
 * That is what Qwen3.5's template teaches; {"name": ..., "arguments": ...} inside the tags,
 * as older models write it, is a call as well and comes whole.  Models are careless: any
 * closing tag may be missing or doubled, <tool_call> itself may be missing before the
 * function of a tool that exists, and values are multi-line texts that may contain tags.
 * A closing tag inside a value ends it only where something follows that can follow there;
 * what turns out to be no call is text.
 *
 * The arguments of a call, put together, are one JSON object, of the types that the
 * request's tools say (tool_schema.h).  Its last brace comes when the call is
 * complete, so what a limit cuts off never parses.  Strings come as they are written, other
 * values when they are over; more than TOOL_CALL_MAX_VALUE bytes of one are passed on as a
 * string.  A repeated parameter counts once, the first.
 *
 * Bytes are held back only while they may be part of a tag.  Pieces do not depend on where
 * the input is cut, but for their borders.  Input is whole UTF-8 characters from outside.
 * One thread; the time is linear in the text, times the length of a tag and its blanks.
 * Source: the output format of spec section 7, written as a machine over a short buffer.
 */
#ifndef SILICEO_WORKER_TEXT_TOOL_CALL_H
#define SILICEO_WORKER_TEXT_TOOL_CALL_H

#include "common/error.h"
#include "common/json.h"
#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOOL_CALL_MAX_CALLS = WIRE_MAX_CALLS, /* of one answer; it ends there */
    TOOL_CALL_MAX_NAME = WIRE_MAX_NAME,   /* bytes; a longer one is no call */
    TOOL_CALL_MAX_PARAMETERS = 256,
    TOOL_CALL_MAX_VALUE = 128 * 1024
};

typedef enum tool_piece_kind { TOOL_TEXT, TOOL_BEGIN, TOOL_ARGUMENTS } tool_piece_kind;

typedef struct tool_piece {
    tool_piece_kind kind;
    uint32_t call;     /* number of the call, from 0; of a text that of the next call */
    size_t at, length; /* in out.bytes: the text, the name, or the next arguments */
} tool_piece;

typedef enum tool_call_state {
    TOOL_IN_TEXT,
    TOOL_OPENED,   /* behind <tool_call> */
    TOOL_IN_NAME,  /* behind <function= */
    TOOL_IN_BODY,  /* between parameters */
    TOOL_IN_KEY,   /* behind <parameter= */
    TOOL_IN_VALUE, /* behind <parameter=...> */
    TOOL_IN_JSON,
    TOOL_AFTER /* behind a call */
} tool_call_state;

typedef struct tool_call {
    /* What came since the last tool_call_clear(), in order. */
    tool_piece *pieces;
    size_t n_pieces;
    json_text out;
    uint32_t n_calls; /* complete ones so far */
    bool open;        /* a call has begun and is not complete */
    bool over;   /* no more is taken: the one call allowed is complete, or there are many */
    bool cut;    /* after finish: a call was left incomplete */
    bool failed; /* no memory */
    /* private */
    const cJSON *tools, *parameters; /* the open call's schema */
    bool single;
    tool_call_state state;
    size_t cap_pieces;
    json_text held; /* not decided yet, from `done` on */
    size_t done;
    json_text name, value, key, keys, scratch;
    unsigned n_keys, types;
    int value_mode;
    bool value_begins; /* a line feed that comes now belongs to the tag */
    bool line_begins;  /* in text: only blanks so far in this line */
    bool tagged;       /* the call has its <tool_call> */
    size_t json_at;    /* where JSON begins in value */
    unsigned depth;    /* of its brackets */
    uint64_t is_array; /* a bit for each depth */
    bool in_string, escaped;
} tool_call;

/* tools: the request's array, which must live as long as *t.  single: end with the first
 * call. */
void tool_call_init(tool_call *t, const cJSON *tools, bool single);
void tool_call_release(tool_call *t); /* accepts a zeroed one */

/* Take text; its pieces come behind those that are there. */
void tool_call_push(tool_call *t, const char *text, size_t length);
/* The answer is over: add to the pieces what was held back.  natural: the model
 * ended it, so that a missing closing tag is carelessness; otherwise an open call is cut. */
void tool_call_finish(tool_call *t, bool natural);
/* Forget the pieces: somebody has them already. */
void tool_call_clear(tool_call *t);

#endif
