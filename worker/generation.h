/* generation.h - from a choice's tokens to what its reader sees.
 *
 *     id -> bytes -> reasoning | content -> stop strings (content) -> whole UTF-8
 *                 -> tool calls | text -> repair
 *
 * Control tokens have no bytes here.  A token counts for the channel that was open when it
 * came, also when its text is held back or dropped.  Feeding the same ids gives the same
 * text wherever the stream is cut, so a resume feeds what was emitted and goes on.
 *
 * The caller holds the struct.  Buffers grow to the longest piece once and are kept.
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_GENERATION_H
#define SILICEO_WORKER_GENERATION_H

#include "common/error.h"
#include "common/json.h"
#include "common/wire.h"
#include "worker/text/markdown.h"
#include "worker/text/stop_match.h"
#include "worker/text/thinking.h"
#include "worker/text/tokenizer.h"
#include "worker/text/tool_call.h"
#include "worker/text/utf8_stream.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct generation {
    /* What the last push (and finish) gave; whole characters. */
    json_text reasoning;
    json_text content;
    wire_channel channel; /* of the last token */
    bool stopped;         /* a stop string came: nothing more is shown */
    uint32_t stop_number; /* of that string in the request; UINT32_MAX: calls were enough */
    bool failed;          /* no memory */
    uint64_t n_tokens;
    uint64_t n_reasoning;
    /* Set after generation_init(): an open code block is closed at the end. */
    bool repairs;
    /* of the last push: content before stop strings hold some of it back */
    json_text raw_content;
    markdown marks; /* of all content shown, where it repairs */
    /* Pieces of calls of the last push (see generation_divide()); its text is in content. */
    tool_call calls;
    /* private */
    const tokenizer *vocab;
    bool splits, divides;
    thinking split;
    stop_match *stop;
    utf8_stream reasoning_stream, content_stream;
    json_text raw_reasoning, unstopped;
} generation;

/* splits: look for reasoning (chat); else everything is content.  starts_inside: the
 * prompt has opened <think>. */
status generation_init(generation *g, const tokenizer *vocab, bool splits, bool starts_inside,
                       const stop_string *stops, size_t n_stops, error *err);
/* From here on find calls of these tools, which outlive g.  single: the first call ends
 * it. */
void generation_divide(generation *g, const cJSON *tools, bool single);
void generation_release(generation *g); /* accepts a zeroed one */

/* Take a token; its text replaces that of the push before. */
void generation_push(generation *g, int32_t id);
/* The stream is over: add what was held back to the text of the last push, and what closes
 * a code block left open.  cut: the model was not done, nor is an open call.  An answer that
 * ended by a stop string stays as it is. */
void generation_finish(generation *g, bool cut);

/* Does the next token belong to the reasoning? */
bool generation_is_inside(const generation *g);

#endif
