#include "worker/drafter_best.h"

static int32_t largest(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

status drafter_best(model *m, const model_segment *segments, size_t n, uint32_t n_vocab,
                    float *logits, model_best *best, error *err) {
    if (logits == NULL) return model_step_best(m, segments, n, n_vocab, best, err);
    status rc = model_step(m, segments, n, logits, err);
    if (rc != STATUS_OK) return rc;
    const uint32_t stride = model_configuration(m)->n_vocab;
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (segments[i].n_outputs == 0) continue;
        best[out].id = largest(logits + out * stride, n_vocab);
        out++;
    }
    return STATUS_OK;
}
