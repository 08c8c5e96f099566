/* drafter_core.h - what drafters that run a model have in common: its pages, the segments of a step,
 * and the likeliest token of each row that asks.
 *
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_DRAFTER_CORE_H
#define SILICEO_WORKER_DRAFTER_CORE_H

#include "worker/memory/kv_pages.h"
#include "worker/model/model.h"

typedef struct drafter_core {
    model *model; /* opened by the drafter, closed with the core */
    kv_pages *pages;
    model_segment *segments; /* [n_places] of one output at most */
    model_best *best;        /* [n_places] of the outputs of a step, in their order */
    float *logits;    /* [n_places][n_vocab of model], NULL: the device finds the largest */
    uint32_t n_vocab; /* guesses are among these first ids */
} drafter_core;

/* Everything but the model, which is there: n_pages free pages, room for n_places segments, and n_vocab
 * ids or as many as the model has.  On failure drafter_core_release() takes back what was made. */
status drafter_core_make(drafter_core *c, uint32_t n_places, uint32_t n_pages, uint32_t n_vocab,
                         error *err);
void drafter_core_release(drafter_core *c);

/* Run the first n segments. */
status drafter_core_step(drafter_core *c, size_t n, error *err);

static inline uint32_t drafter_pages_for(uint32_t n_tokens) {
    return (n_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
}

#endif
