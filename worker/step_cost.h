/* step_cost.h - what a step of decoding rows and a piece of prompt will take, learnt from steps.
 *
 * A step takes base + fixed + rows * slope: base is what the decoding rows alone took lately;
 * fixed and slope are a straight line through what pieces of prompt added to that, fitted by
 * least squares over steps whose weight decays, for each class of depth (positions before the
 * piece, by powers of two) by itself.  A class without steps borrows from the nearest below.
 *
 * A piece that is cut by layers adds its slices' times together.  Its layers are of two kinds, and
 * behind many positions one of full attention takes several times what a linear one does: how many
 * times is fitted for each class of depth, over slices that have more or fewer of either.  While a
 * piece runs, its own layers so far tell with that what the others will take.
 *
 * Prompts have an eighth of the bound in any case: where decoding rows alone take all of it, nothing
 * keeps it, and prompts shall come forward.
 *
 * Plain data; a zeroed one knows nothing.  Thread: engine.
 */
#ifndef SILICEO_WORKER_STEP_COST_H
#define SILICEO_WORKER_STEP_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_COST_CLASSES = 13 }; /* below 256 tokens, 512, ... and 1 Mi or more */

/* Decayed sums over steps: x is the rows of prompt, y the ms that they added. */
typedef struct step_cost_line {
    double n, x, y, xx, xy;
} step_cost_line;

/* Decayed sums over slices: x is their rows times linear layers, y times full ones, t the ms. */
typedef struct step_cost_kinds {
    double xx, xy, yy, xt, yt;
} step_cost_kinds;

typedef struct step_cost {
    double base_ms; /* 0: no step has been without a prompt */
    step_cost_line lines[STEP_COST_CLASSES];
    step_cost_kinds kinds[STEP_COST_CLASSES];
    double lag; /* what the last piece that was cut took, to what was expected; 0: none was */
} step_cost;

typedef struct step_cost_step {
    uint32_t n_decoded; /* rows of decoding */
    uint32_t n_prompt;  /* rows of prompt */
    uint32_t depth;     /* where the largest piece of prompt began */
    double took_ms;
} step_cost_step;

/* A piece of prompt that is cut by layers. */
typedef struct step_cost_piece {
    uint32_t n_rows;
    uint32_t depth;
    uint32_t n_layers;
    const bool *is_linear; /* [n_layers]; NULL: they are all alike */
    uint32_t n_done;       /* layers that have run */
    double took_ms;        /* by these */
} step_cost_piece;

void step_cost_add(step_cost *c, const step_cost_step *step);

/* What a piece of n_rows will add at a depth; 0: nothing is known. */
double step_cost_expect_ms(const step_cost *c, uint32_t depth, uint32_t n_rows);

/* Rows of prompt, a multiple of `multiple` between that and `most`, that a step may have to stay
 * within bound_ms. */
uint32_t step_cost_rows(const step_cost *c, uint32_t depth, double bound_ms, uint32_t multiple,
                        uint32_t most);

/* Whether a step with so many rows of prompt stays within the bound; of what nothing is known it is
 * not said. */
bool step_cost_fits(const step_cost *c, uint32_t depth, uint32_t n_rows, double bound_ms);

/* The same as step_cost_rows() for a piece that is cut, whose n_rows do not count yet: any layer of
 * it stays within the bound. */
uint32_t step_cost_cut_rows(const step_cost *c, const step_cost_piece *p, double bound_ms,
                            uint32_t multiple, uint32_t most);
/* How many layers its next slice has: the fewest slices, as even as can be. */
uint32_t step_cost_layers(const step_cost *c, const step_cost_piece *p, double bound_ms);
/* So many more layers of it have run. */
void step_cost_add_slice(step_cost *c, step_cost_piece *p, uint32_t n_layers, double took_ms);

#endif
