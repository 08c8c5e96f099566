/* json_automaton.h - follows a grammar byte by byte, all its readings at once.
 *
 * A state is a set of stacks, as in a generalised LL parser; stacks share their lower
 * frames, equal stacks and equal sets are one (hash-consed), and each step is computed once
 * and remembered: it is a deterministic automaton that is built while it is used.
 * Each state knows the fewest bytes to the end of the document.
 *
 * States are numbers, valid until json_automaton_tidy().  Memory is bounded and taken at
 * the beginning; tidy makes room when half is used.  A state follows at most
 * MAX_READINGS of them: what is dropped beyond only narrows the answer.
 * One thread; the grammar must outlive it.
 */
#ifndef SILICEO_WORKER_TEXT_JSON_AUTOMATON_H
#define SILICEO_WORKER_TEXT_JSON_AUTOMATON_H

#include "worker/text/json_grammar.h"

typedef struct json_automaton json_automaton;

enum { JSON_DEAD = 1 }; /* the state behind a byte that is refused */

status json_automaton_new(json_automaton **out, const json_grammar *g, error *err);
void json_automaton_free(json_automaton *a); /* accepts NULL and a half-built one */

uint32_t json_automaton_start(json_automaton *a); /* before the first byte */
uint32_t json_automaton_step(json_automaton *a, uint32_t state, unsigned char byte);
/* Is the document whole here? */
bool json_automaton_is_complete(const json_automaton *a, uint32_t state);
/* Fewest bytes to the end of the document, and the first of them. */
uint32_t json_automaton_close_bytes(const json_automaton *a, uint32_t state);
unsigned char json_automaton_close_byte(const json_automaton *a, uint32_t state);

/* Work that all steps from here on may do together, in frames looked at: a step beyond it
 * is refused, and not remembered.  For schemas so ambiguous that a vocabulary cannot be
 * walked in time. */
void json_automaton_limit(json_automaton *a, uint64_t n_frames);

/* Equal for states from which the same strings of up to `reach` bytes can be read, with the
 * same change of the shortest way: a string that is far from its bounds has many states
 * that differ in its length alone.  Unequal says nothing.  A hash of 64 bits. */
uint64_t json_automaton_likeness(const json_automaton *a, uint32_t state, uint32_t reach);

/* Forget all but this state, if memory runs short; true when *state and all other numbers
 * have changed. */
bool json_automaton_tidy(json_automaton *a, uint32_t *state);

#endif
