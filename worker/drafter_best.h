/* drafter_best.h - one step of a drafter's model, and the likeliest token of each row that asks.
 *
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_DRAFTER_BEST_H
#define SILICEO_WORKER_DRAFTER_BEST_H

#include "worker/model/model.h"

/* Run n segments of one output at most; those that have one get best[], in order, among the first
 * n_vocab ids.  logits: [n outputs][n_vocab of m], or NULL where the device finds the largest. */
status drafter_best(model *m, const model_segment *segments, size_t n, uint32_t n_vocab,
                    float *logits, model_best *best, error *err);

#endif
