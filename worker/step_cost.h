/* step_cost.h - what a step of decoding rows and a piece of prompt will take, learnt from steps.
 *
 * A step takes base + fixed + rows * slope: base is what the decoding rows alone took lately;
 * fixed and slope are a straight line through what pieces of prompt added to that, fitted by
 * least squares over steps whose weight decays, for each class of depth (positions before the
 * piece, by powers of two) by itself.  A class without steps borrows from the nearest below.
 *
 * Plain data; a zeroed one knows nothing.  Thread: engine.
 */
#ifndef SILICEO_WORKER_STEP_COST_H
#define SILICEO_WORKER_STEP_COST_H

#include <stdint.h>

enum { STEP_COST_CLASSES = 13 }; /* below 256 tokens, 512, ... and 1 Mi or more */

/* Decayed sums over steps: x is the rows of prompt, y the ms that they added. */
typedef struct step_cost_line {
    double n, x, y, xx, xy;
} step_cost_line;

typedef struct step_cost {
    double base_ms; /* 0: no step has been without a prompt */
    step_cost_line lines[STEP_COST_CLASSES];
} step_cost;

typedef struct step_cost_step {
    uint32_t n_decoded; /* rows of decoding */
    uint32_t n_prompt;  /* rows of prompt */
    uint32_t depth;     /* where the largest piece of prompt began */
    double took_ms;
} step_cost_step;

void step_cost_add(step_cost *c, const step_cost_step *step);

/* What a piece of n_rows will add at a depth; 0: nothing is known. */
double step_cost_expect_ms(const step_cost *c, uint32_t depth, uint32_t n_rows);

/* Rows of prompt, a multiple of `multiple` between that and `most`, that a step may have to stay
 * within bound_ms. */
uint32_t step_cost_rows(const step_cost *c, uint32_t depth, double bound_ms, uint32_t multiple,
                        uint32_t most);

#endif
