/* speculate.h - which guesses are worth a row, and what became of them.
 *
 * Exactness: a guess is a row of the next step whose bits are those of a step of its own
 * (model.h), and every row's token is chosen as ever: masks, penalties, format, budgets,
 * stops, forced tokens, and the sampler, which draws by a counter.  The rows of a sequence
 * are taken as long as the chosen token is the guessed one.  So the stream is that of no
 * speculation, id for id, greedy or sampled; and of a guess that is no draw itself, as all of
 * ours, as many are taken as rejection sampling would take.
 *
 * Cost: depths are chosen for all sequences of a step together.  With a(i) the share of
 * guesses that came true lately, of sequence and kind, d guesses give 1 + a + .. + a^d tokens;
 * what a step of n rows takes is learnt from the steps.  Rows are added, the likeliest first,
 * as long as the tokens for the time grow.
 *
 * Risk: each sequence keeps a ledger of what its guesses cost and brought, in tokens.  No step
 * gets more rows than what is left to lose would pay if all were wrong: a few tokens at first,
 * then what was won.  So the rows of an answer that is being copied grow from step to step by a
 * factor, and one that only seems so has lost little.  Where it has lost all it may, the kind is
 * off for a while, each time twice as long, and is then tried once.
 * Look-up is asked first; where it knows nothing, the draft or the MTP block is.  A draft that
 * was not asked for long has to read first: that must be within what may be lost, or be won back
 * while the answer gets twice as long.
 *
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_SPECULATE_H
#define SILICEO_WORKER_SPECULATE_H

#include "common/error.h"
#include "worker/drafter.h"
#include "worker/sequence.h"
#include "worker/speculate_stats.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPECULATE_MAX_DEPTH = 63 };

typedef struct speculate_params {
    uint32_t n_places;
    uint32_t depth[DRAFTER_KINDS]; /* guesses of a kind for a sequence and step at most */
    uint32_t step_guesses;         /* for all sequences of a step together */
    const int32_t *ends;           /* [n_ends], after which nothing comes; copied */
    size_t n_ends;
} speculate_params;

typedef struct speculate speculate;

/* Takes the drafters, NULL where a kind is not wanted, also on failure. */
status speculate_new(speculate **out, drafter *drafters[DRAFTER_KINDS],
                     const speculate_params *params, error *err);
void speculate_free(speculate *s); /* accepts NULL */

/* Let the draft guess and read for nobody, to know what it costs; nobody may have asked yet. */
status speculate_measure(speculate *s, error *err);

/* Always so many guesses, as far as there is room, whatever they cost (tests, benchmarks). */
void speculate_fix_depth(speculate *s, uint32_t depth);

/* Write guesses behind the tokens of the sequences, which all decode with one token to run,
 * and set n_drafted.  who->group is the place.  A failure is the drafter's device's. */
status speculate_guess(speculate *s, sequence *const *who, size_t n, error *err);

/* Whether rows after the final norm are wanted; then, after a step and its tokens, those of who
 * that stay, from a position on. */
bool speculate_wants_rows(const speculate *s);
status speculate_see(speculate *s, const sequence *who, uint32_t position, const float *rows,
                     uint32_t n_rows, error *err);

/* Of n_drafted guesses of who that had rows, n_accepted came true.  Called for each sequence
 * of a step that decodes, also without guesses. */
void speculate_take(speculate *s, const sequence *who, uint32_t n_drafted, uint32_t n_accepted);
/* What a step of n_rows takes, before anybody asks, as often as wanted and one row first; see
 * row_cost.h. */
void speculate_try_step(speculate *s, uint32_t n_rows, uint64_t took_ns);
/* A step of n_rows decoding rows and nothing else took so long.  Nothing is guessed before some
 * were tried or seen. */
void speculate_note_step(speculate *s, uint32_t n_rows, uint64_t took_ns);

void speculate_read_stats(const speculate *s, speculate_stats *out);

#endif
