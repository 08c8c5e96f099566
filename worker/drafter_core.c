#include "worker/drafter_core.h"

#include <stdlib.h>

status drafter_core_make(drafter_core *c, uint32_t n_places, uint32_t n_pages, uint32_t n_vocab,
                         error *err) {
    const uint32_t has = model_configuration(c->model)->n_vocab;
    const bool needs_logits = !model_finds_best(c->model);
    c->n_vocab = n_vocab < has ? n_vocab : has;
    c->segments = calloc(n_places, sizeof *c->segments);
    c->best = calloc(n_places, sizeof *c->best);
    if (needs_logits) c->logits = calloc((size_t)n_places * has, sizeof *c->logits);
    if (c->segments == NULL || c->best == NULL || (needs_logits && c->logits == NULL)) {
        return error_set(err, STATUS_NO_MEMORY, "drafter: no memory for steps of %u sequences",
                         n_places);
    }
    return kv_pages_new(&c->pages, n_pages, err);
}

void drafter_core_release(drafter_core *c) {
    free(c->logits);
    free(c->best);
    free(c->segments);
    kv_pages_free(c->pages);
    model_close(c->model);
}

static int32_t largest(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

status drafter_core_step(drafter_core *c, size_t n, error *err) {
    if (c->logits == NULL)
        return model_step_best(c->model, c->segments, n, c->n_vocab, c->best, err);
    status rc = model_step(c->model, c->segments, n, c->logits, err);
    if (rc != STATUS_OK) return rc;
    const uint32_t stride = model_configuration(c->model)->n_vocab;
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (c->segments[i].n_outputs == 0) continue;
        c->best[out].id = largest(c->logits + out * stride, c->n_vocab);
        out++;
    }
    return STATUS_OK;
}
