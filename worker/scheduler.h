/* scheduler.h - who runs in the next step: continuous batching over states and KV pages.
 *
 * A step takes a token of every sequence that decodes, with the guesses behind it, and
 * pieces of prompts, in order, up to chunk_tokens.  A piece ends at a multiple of
 * MODEL_CHUNK_TOKENS of its own sequence or at the end of its prompt, so that how a prompt
 * is cut never changes a bit of its result.
 *
 * Beside sequences that decode, a step is to stay within max_step_ms by the cost that steps had
 * (see step_cost.h), as what a stream waits between two tokens is a step.  Where the first prompt's
 * piece takes longer than that, it is cut by layers: after the decoding rows a step runs a slice
 * of it, some layers of all its tokens, until no layer is left.  Pieces stay long so, and what a
 * layer costs for its first token is paid once a piece: a piece is shorter than chunk_tokens only
 * where one layer of it would break the bound.  One piece is cut at a time, and other prompts wait for
 * its end; but an interactive prompt does not wait for others' piece, which stays as it is, some layers
 * run and others not, until no interactive prompt is left.  When nobody decodes any more, the rest
 * of a piece is one slice; and nobody's prompt is cut while nobody decodes.  A model of one layer is cut by tokens alone, to one chunk at the least,
 * and so is what runs ahead for nobody yet, for whoever comes meanwhile.
 *
 * Order everywhere: interactive before background, then by arrival.  A sequence is
 * admitted, in order, when states are free and pages for all its tokens and a page of
 * growth for each that runs.  For an interactive one that waits, background ones give
 * theirs up, the last first.  When pages run out while decoding, so does the last in order.
 * Before anyone gives up anything the cache is asked for pages.  Who gave up waits again:
 * where what it held could be parked it goes on exactly there, between two layers of a piece
 * as between two pieces, else it runs its tokens again.  The first in order always comes forward, with a layer of
 * a chunk a step at the least, so nothing deadlocks as long as one sequence fits alone (the caller's
 * duty).
 *
 * Allocates only in its constructor; what the hooks do is theirs.  Thread: engine.
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
    uint32_t n_tokens;  /* tokens[n_run ..] to run, guesses included */
    uint32_t n_drafted; /* the last of them, guesses */
    bool wants_logits;  /* its last token but for guesses is the last known */
} scheduler_piece;

/* Layers of a piece of a prompt. */
typedef struct scheduler_slice {
    scheduler_piece piece; /* who is NULL: no piece is cut in this step */
    uint32_t first_layer, end_layer;
} scheduler_slice;

/* Who moves bytes for the scheduler.  Between steps; functions may be NULL: never done. */
typedef struct scheduler_memory {
    void *context;
    /* Keep the state, the pages of from's sequence_n_begun() tokens and, where its piece is cut, the
     * rows between its layers in who->parked, which may be from itself.  False: there is no
     * room. */
    bool (*park)(void *context, const sequence *from, sequence *who);
    /* Bring back what is parked, into who->state, who->pages and its place for rows, and forget it. */
    void (*unpark)(void *context, sequence *who);
    void (*forget)(void *context, sequence *who);
    /* Copy the state of from, and from_page to to_page unless they are the same. */
    void (*copy)(void *context, const sequence *from, const sequence *to, uint32_t from_page,
                 uint32_t to_page);
    /* who gives back its states, which are the next one's at once. */
    void (*leave)(void *context, const sequence *who);
} scheduler_memory;

/* Who remembers prompts.  Pages that it holds are shared with kv_pages_share() and given
 * back with kv_pages_release().  Functions may be NULL. */
typedef struct scheduler_cache {
    void *context;
    /* How many tokens of who begin() would give now.  Must not change anything but its order
     * of use: it is asked in every step while who waits as the first. */
    uint32_t (*find)(void *context, const sequence *who);
    /* who is admitted, owns who->state and has no pages: give it shared pages, as
     * who->pages[0 .. n_pages), and load its state.  Returns the tokens in them: a multiple
     * of MODEL_PAGE_TOKENS below n_prompt; 0: nothing was done. */
    uint32_t (*begin)(void *context, sequence *who);
    /* A piece has ended at one of who's stops: its state and pages are those after
     * tokens[n_run - 1].  Called by scheduler_advance(). */
    void (*at_stop)(void *context, sequence *who);
    /* Give back pages so that n more are free, the least useful first; fewer if it has not
     * so many. */
    void (*reclaim)(void *context, uint32_t n);
} scheduler_cache;

typedef struct scheduler_params {
    kv_pages *pages; /* must outlive the scheduler */
    uint32_t n_sequences;
    /* Each running sequence owns so many, as sequence.states; its first is the current one at
     * the beginning.  The model has n_sequences times as many. */
    uint32_t states_per_sequence;
    uint32_t chunk_tokens; /* of prompts in a step; a multiple of MODEL_CHUNK_TOKENS */
    uint32_t max_waiting;
    uint32_t max_step_ms;  /* of a step beside running streams; 0: no bound */
    uint32_t n_layers;     /* of the model; below 2: no piece is cut by layers */
    const bool *is_linear; /* [n_layers], the model's; NULL: its layers are all alike */
    scheduler_memory memory;
    scheduler_cache cache;
} scheduler_params;

status scheduler_new(scheduler **out, const scheduler_params *params, error *err);
void scheduler_free(scheduler *s); /* nobody may be left in it; accepts NULL */

/* False when max_waiting wait already.  One with a leader, which was submitted before it, waits
 * until scheduler_fork(). */
bool scheduler_submit(scheduler *s, sequence *who);
/* Take it out, whatever it does; its states and pages are free at once. */
void scheduler_remove(scheduler *s, sequence *who);

/* Admit whom there is room for and choose the next step; out has room for n_sequences
 * pieces.  A piece at n_run 0 starts on a state that someone else may have left: clear it.
 * A sequence's guesses are run, or n_drafted is 0 now.
 * The slice is to run after the pieces, with scheduler_note_slice(), unless its sequence has been
 * removed since; the same one comes again until it has.  With its last layer the piece has run:
 * scheduler_advance().  Between its slices others of another sequence may come, whose rows have a place
 * of their own, see sequence_cut_place(). */
size_t scheduler_plan(scheduler *s, scheduler_piece *out, scheduler_slice *slice);
/* n_tokens of who have run and stay on its timeline; nothing if it has been removed since. */
void scheduler_advance(scheduler *s, sequence *who, uint32_t n_tokens);
/* The pieces that were planned last took so long, all work around them included. */
void scheduler_note_time(scheduler *s, uint64_t took_ns);
/* The slice that was planned last has run and took so long.  Its sequence may be gone by then. */
void scheduler_note_slice(scheduler *s, uint64_t took_ns);

/* The leader has run the prompt that who waits for, and nothing else: whole pages are shared,
 * the rest is copied, and who goes on from there, at once or, parked, when there is room.
 * False when neither can be: who waits for its turn to run the prompt itself. */
bool scheduler_fork(scheduler *s, const sequence *leader, sequence *who);

uint32_t scheduler_n_running(const scheduler *s);
uint32_t scheduler_n_waiting(const scheduler *s);
uint32_t scheduler_n_free(const scheduler *s);           /* places for sequences to run */
bool scheduler_has_room(const scheduler *s, uint32_t n); /* for n more to wait */

#endif
