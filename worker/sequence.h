/* sequence.h - one timeline: the tokens of a choice and what the model holds of them.
 *
 * tokens[0 .. n_run) are in the KV pages and the recurrent state; the rest waits to be
 * run.  The first n_prompt tokens run in pieces; those after it run one a step, also when
 * they run again after a preemption or a resume, because a token run alone and a token
 * run in a piece need not give the same bits.
 *
 * Behind the last token guesses may stand that the next step verifies: they are not on the
 * timeline, and whoever wrote them there takes them off again.
 *
 * Made with all its memory for cap_tokens, so that growing never allocates.  Pages and
 * states are given and taken by the scheduler.  Thread: engine.
 */
#ifndef SILICEO_WORKER_SEQUENCE_H
#define SILICEO_WORKER_SEQUENCE_H

#include "common/error.h"
#include "worker/step_cost.h"
#include <stdbool.h>
#include <stdint.h>

enum { SEQUENCE_MAX_STOPS = 64, SEQUENCE_CUT_PLACES = 2 };

/* Priorities, those that come first first. */
enum { SEQUENCE_INTERACTIVE, SEQUENCE_BACKGROUND, SEQUENCE_AHEAD /* for nobody yet */ };

typedef enum sequence_phase {
    SEQUENCE_IDLE, /* the scheduler does not know it (any more) */
    SEQUENCE_WAITING,
    SEQUENCE_RUNNING
} sequence_phase;

typedef struct sequence {
    void *owner; /* of whoever submitted it */
    uint32_t choice;
    int32_t *tokens;
    uint32_t n_tokens;
    uint32_t cap_tokens;
    uint32_t n_prompt;
    uint32_t n_run;
    uint32_t
        n_drafted; /* guesses: tokens[n_tokens .. n_tokens + n_drafted), within cap_tokens */
    uint32_t priority; /* SEQUENCE_INTERACTIVE ... */
    bool runs_whole;   /* rows of all its tokens are wanted: no cache may give it any */
    /* Positions within the prompt where a piece must end: ascending, see sequence_add_stop(). */
    uint32_t stops[SEQUENCE_MAX_STOPS];
    uint32_t n_stops;
    /* It has the same prompt as this one, which runs it for both; see scheduler_fork(). */
    struct sequence *leader;
    /* the scheduler's */
    sequence_phase phase;
    uint64_t arrival;
    uint32_t group;
    const uint32_t *states; /* all that it owns while it runs */
    uint32_t n_states;
    uint32_t state; /* of states, the one after tokens[n_run - 1] */
    uint32_t *pages;
    uint32_t n_pages;
    /* The next piece, where it is cut by layers; n_rows 0: it is not.  When some have run, its state
     * is neither that before the piece nor that after it, and goes on only together with the pages
     * of the piece and with what those layers have made of its rows. */
    step_cost_piece cut;
    void *parked; /* what it held, kept elsewhere while it waits; NULL: nothing */
    struct sequence *next;
    uint32_t n_preempted;
} sequence;

/* Copy the prompt; the sequence may grow to cap_tokens (>= n_prompt > 0). */
status sequence_init(sequence *s, const int32_t *prompt, uint32_t n_prompt, uint32_t cap_tokens,
                     error *err);
void sequence_release(sequence *s); /* must be idle; accepts a zeroed one */

/* False when it is full. */
bool sequence_append(sequence *s, int32_t id);

/* A piece of the prompt is to end at position, so that someone may look at the state there.
 * False when that cannot be: it is no multiple of MODEL_CHUNK_TOKENS within the prompt, or
 * there are too many. */
bool sequence_add_stop(sequence *s, uint32_t position);
bool sequence_is_at_stop(const sequence *s);

bool sequence_is_cut(const sequence *s);
/* Of SEQUENCE_CUT_PLACES, where the rows of a piece that is cut wait for its next layers: one for
 * interactive ones, and one for others. */
uint32_t sequence_cut_place(const sequence *s);
/* Tokens that its pages are to hold: those that have run, and those of a piece that is cut. */
uint32_t sequence_n_begun(const sequence *s);

#endif
