/* scheduler.h - who runs in the next step: continuous batching over states and KV pages.
 *
 * A step takes one token of every sequence that decodes, and pieces of prompts, oldest
 * first, up to chunk_tokens.  A piece ends at a multiple of MODEL_CHUNK_TOKENS of its own
 * sequence or at the end of its prompt, so that how a prompt is cut, and with it every
 * bit of its result, depends on nobody else.
 *
 * Order everywhere: interactive before background, then by arrival.  A sequence is
 * admitted, in order, when a state is free and pages for all its tokens and a page of
 * growth for each that runs.  When pages run out while decoding, the last in order gives
 * up its state and pages and waits again with its tokens; the first in order always comes
 * forward, so nothing deadlocks as long as one sequence fits alone (the caller's duty).
 *
 * Allocates only in its constructor.  Thread: engine.
 */
#ifndef SILICEO_WORKER_SCHEDULER_H
#define SILICEO_WORKER_SCHEDULER_H

#include "common/error.h"
#include "worker/memory/kv_pages.h"
#include "worker/sequence.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct scheduler scheduler;

typedef struct scheduler_piece {
    sequence *who;
    uint32_t n_tokens; /* tokens[n_run ..] to run */
    bool wants_logits; /* its last token is the last known */
} scheduler_piece;

/* pages must outlive it; chunk_tokens is a multiple of MODEL_CHUNK_TOKENS. */
status scheduler_new(scheduler **out, kv_pages *pages, uint32_t n_states, uint32_t chunk_tokens,
                     uint32_t max_waiting, error *err);
void scheduler_free(scheduler *s); /* nobody may be left in it; accepts NULL */

/* False when max_waiting wait already. */
bool scheduler_submit(scheduler *s, sequence *who);
/* Take it out, whatever it does; its state and pages are free at once. */
void scheduler_remove(scheduler *s, sequence *who);

/* Admit whom there is room for and choose the next step; out has room for n_states
 * pieces.  A piece at n_run 0 starts on a state that someone else may have left: clear it.
 * After the step the caller adds n_tokens to n_run of each. */
size_t scheduler_plan(scheduler *s, scheduler_piece *out);

uint32_t scheduler_n_running(const scheduler *s);
uint32_t scheduler_n_waiting(const scheduler *s);
uint32_t scheduler_n_free_states(const scheduler *s);
bool scheduler_has_room(const scheduler *s, uint32_t n); /* for n more to wait */

#endif
