/* answer_blocks.h - an answer of one choice as blocks: thinking, text, calls of tools.
 *
 * Anthropic's messages and OpenAI's responses both tell an answer as a list of items, one
 * after the other.  This keeps the list and, while streaming, calls back at its joints.
 * A block is over when another begins, or at the end.  One thread.
 */
#ifndef SILICEO_COORDINATOR_ANSWER_BLOCKS_H
#define SILICEO_COORDINATOR_ANSWER_BLOCKS_H

#include "common/json.h"
#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>

typedef enum block_kind { BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL } block_kind;

typedef struct block {
    block_kind kind;
    char name[WIRE_MAX_NAME + 1]; /* of a call */
    json_text text;               /* of a call: its arguments */
} block;

/* index is the block's in the list. */
typedef struct block_events {
    void *context;
    void (*begin)(void *context, size_t index, const block *b, json_text *out);
    void (*more)(void *context, size_t index, const block *b, wire_bytes text, json_text *out);
    void (*end)(void *context, size_t index, const block *b, json_text *out);
} block_events;

typedef struct answer_blocks {
    block_events on; /* zeroed: not streaming */
    block *list;
    size_t n, cap;
    size_t n_calls;
    bool open; /* the last block has no end yet */
    bool failed;
    wire_finish finish;
    bool ends_again;   /* its end has been told: what comes is that end once more */
    bool thinking_cut; /* see WIRE_FLAG_THINKING_CUT */
    bool call_cut;
    size_t stop; /* 1 + index of the stop string that ended it; 0: none did */
} answer_blocks;

void answer_blocks_release(answer_blocks *b); /* accepts a zeroed one */
/* As in answer_style. */
void answer_blocks_restart(answer_blocks *b, bool resumes);
status answer_blocks_add(answer_blocks *b, const wire_tokens *tokens, json_text *out,
                         error *err);
/* The answer is over: so is its last block.  A call that was cut leaves the list unless it
 * has been streamed. */
void answer_blocks_finish(answer_blocks *b, json_text *out);
/* "complete" or "cut"; NULL: there was no deliberation. */
const char *answer_blocks_thinking(const answer_blocks *b);

#endif
