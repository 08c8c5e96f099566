/* scheduler_bench.h - a scheduler with a double of the model and of the cache of prompts, for its tests.
 *
 * A state is a number made of the tokens that it has seen, a page holds its tokens.  A step
 * checks both before it adds to them, so a wrong copy, a page written while it is shared or a
 * place resumed wrongly is seen at once.  A state between the slices of a piece is none that any
 * tokens give, and goes on only together with its rows, of which each place holds one piece's.
 */
#ifndef SILICEO_TESTS_UNIT_SCHEDULER_BENCH_H
#define SILICEO_TESTS_UNIT_SCHEDULER_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/model/model.h"
#include "worker/scheduler.h"

enum { MAX_STATES = 16, MAX_SEQUENCES = 64, MAX_PAGES = 512, MAX_ENTRIES = 32 };

/* What the double of a cache knows of a prompt. */
typedef struct entry {
    const sequence *of; /* whose tokens */
    uint32_t n_tokens;  /* 0: no entry */
    uint64_t state;
    uint32_t pages[MAX_PAGES];
    bool moved_out; /* its pages had to make room: they are elsewhere */
    uint64_t used;
} entry;

/* Whose piece has run so many layers; what these made of its rows. */
typedef struct half_piece {
    const sequence *who;
    uint32_t n_done, n_tokens;
} half_piece;

typedef struct parked {
    uint32_t n_run;
    uint64_t state;
    half_piece half;
    int32_t tokens[4096];
} parked;

typedef struct bench {
    kv_pages *pages;
    scheduler *scheduler;
    uint32_t n_sequences, n_states_each;
    uint32_t chunk_tokens;
    uint64_t states[MAX_STATES]; /* of the model */
    int32_t page[MAX_PAGES][MODEL_PAGE_TOKENS];
    sequence sequences[MAX_SEQUENCES];
    uint32_t limits[MAX_SEQUENCES]; /* tokens at which a sequence ends */
    uint32_t n;
    uint32_t n_over;
    uint32_t n_parked, n_restored, n_park_limit;
    uint32_t n_halves_restored; /* of those, between two layers of a piece */
    uint32_t n_shared_states;   /* copies of states by forks */
    entry entries[MAX_ENTRIES];
    uint64_t clock;
    uint32_t n_begun, n_stopped;
    /* Of the last step: layers of a slice, and the tokens of its piece; 0: no piece is cut. */
    uint32_t n_slice_layers, n_slice_tokens;
    const sequence *sliced; /* whose slice it was */
    half_piece rows[SEQUENCE_CUT_PLACES];
    uint32_t n_layers;
    /* What steps take: 5 ms for decoding rows, and for prompts these together, deep_ms for every
     * row and position before its piece.  Zeros: nobody is told how long a step took. */
    double piece_ms, row_ms, deep_ms;
    double step_ms; /* of the last */
    bool moves_out; /* the cache, what makes room; else it forgets that */
} bench;

typedef struct bench_shape {
    uint32_t n_pages, n_sequences, chunk_tokens, max_waiting;
    uint32_t n_states_each; /* 0: one */
    uint32_t max_step_ms;
    uint32_t n_layers; /* below 2: no piece is cut by layers */
    double piece_ms, row_ms, deep_ms;
    uint32_t n_park; /* places for parked ones */
    bool has_cache;
} bench_shape;

void bench_open(bench *b, const bench_shape *shape);
void bench_close(bench *b);
/* text: which prompt; the same ones begin alike. */
sequence *bench_add_text(bench *b, int32_t text, uint32_t n_prompt, uint32_t n_output,
                         uint32_t priority);
sequence *bench_add(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority);
sequence *bench_submit(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority);
/* It goes wherever it is, and counts as over. */
void bench_cancel(bench *b, sequence *who);
/* Every page has as many owners as hold it, no state has two, and who runs has pages for what
 * it has run, and alone those that are written next. */
void bench_assert_invariants(const bench *b);
/* Guesses behind the last token of whoever decodes and has room for them; all are wrong. */
void bench_guess_some(bench *b, uint64_t dice);
/* One step, checked before and after.  Returns the number of pieces; n_prompt_tokens may be
 * NULL. */
size_t bench_step_of(bench *b, uint32_t *n_prompt_tokens);
size_t bench_step(bench *b);
void bench_run_to_the_end(bench *b, uint32_t max_steps);

#endif
