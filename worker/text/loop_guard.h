/* loop_guard.h - notices a generation that goes round in a circle.
 *
 * A stream loops when its last tokens are one block repeated to the letter, often enough and
 * over enough tokens.  Counting, tables, lists and code move on with every turn, so their
 * blocks differ.  For every period up to LOOP_GUARD_MAX_PERIOD the guard counts how long
 * token i has equalled token i - period: one comparison a period and token.
 *
 * The caller holds the struct; it points to nothing.  Any one thread.
 */
#ifndef SILICEO_WORKER_TEXT_LOOP_GUARD_H
#define SILICEO_WORKER_TEXT_LOOP_GUARD_H

#include <stdbool.h>
#include <stdint.h>

enum { LOOP_GUARD_MAX_PERIOD = 256, LOOP_GUARD_MIN_TURNS = 4 };

typedef struct loop_guard {
    uint32_t least_tokens; /* a circle shorter than this is none; 0: never */
    uint64_t n_tokens;
    /* The last tokens, token i at i % LOOP_GUARD_MAX_PERIOD; and for each period how many of
     * the last ones equal the one a period before. */
    int32_t recent[LOOP_GUARD_MAX_PERIOD];
    uint32_t equal[LOOP_GUARD_MAX_PERIOD + 1];
} loop_guard;

void loop_guard_init(loop_guard *g, uint32_t least_tokens);
/* Take a token.  True when the stream now ends with at least LOOP_GUARD_MIN_TURNS turns of one
 * block, over at least least_tokens tokens. */
bool loop_guard_push(loop_guard *g, int32_t id);

#endif
