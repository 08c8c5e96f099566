/* backend_cuda_ahead.c - records of a prompt's next layer that come before its router has chosen.
 *
 * A prompt of many rows uses nearly all experts of every layer, so those without a slot that its
 * layer's rows used most the last time will be wanted again.  They come into the staging records
 * while the GPU computes the mixers between, when the bus has nothing else to do.  What was not
 * wanted was in nobody's way.
 *
 * Only where every record waits in pinned memory, and in steps of one prompt's rows alone: the
 * staging records are those of decoding rows, too.
 */
#include "worker/backend_cuda_experts.h"

#include <string.h>

/* Rows that an expert has in the mean, from which on a prompt counts as one of many rows. */
enum { MANY_ROWS = 2 };

/* Before any prompt an expert is as likely as it was before this start, or as any other. */
void cuda_ahead_init(backend_cuda *b) {
    const uint32_t *uses = expert_cache_uses(b->experts.cache);
    size_t n = (size_t)b->config->n_layers * b->config->n_experts;
    for (size_t i = 0; i < n; i++)
        b->experts.last_use[i] = 1 + uses[i];
}

static bool has_many_rows(const backend_cuda *b, const cuda_span *s) {
    return b->n_spans == 1 &&
           (uint64_t)s->n_rows * b->config->n_experts_used >= MANY_ROWS * b->config->n_experts;
}

/* The layer's rows by expert, for the next time. */
static void remember(backend_cuda *b, uint32_t layer) {
    const cuda_experts *x = &b->experts;
    uint32_t *use = x->last_use + (size_t)layer * b->config->n_experts;
    for (uint32_t e = 0; e < b->config->n_experts; e++)
        use[e] = x->first[e + 1] - x->first[e];
}

/* The expert with the most rows that has no slot and is not taken, or -1. */
static int32_t most_used(const backend_cuda *b, uint32_t layer) {
    const cuda_experts *x = &b->experts;
    const uint32_t *use = x->last_use + (size_t)layer * b->config->n_experts;
    int32_t best = -1;
    for (uint32_t e = 0; e < b->config->n_experts; e++) {
        if (use[e] == 0 || (best >= 0 && use[e] <= use[best]) || x->is_ahead[e]) continue;
        if (expert_cache_find(x->cache, layer, e) == EXPERT_MISS) best = (int32_t)e;
    }
    return best;
}

void cuda_ahead_ship(backend_cuda *b, const cuda_span *s, uint32_t layer) {
    cuda_experts *x = &b->experts;
    uint32_t next = layer + 1;
    x->n_ahead = 0;
    if (x->all == NULL || !has_many_rows(b, s)) return;
    remember(b, layer);
    if (next >= b->batch.end_layer) return; /* others' steps come first, and use the staging */
    memset(x->is_ahead, 0, b->config->n_experts * sizeof *x->is_ahead);
    for (uint32_t i = 0; i < b->layout.n_staging; i++) {
        int32_t e = most_used(b, next);
        if (e < 0) break;
        if (i % CUDA_WAVE_EXPERTS == 0) {
            uint32_t half = i / CUDA_WAVE_EXPERTS;
            (void)CUDA_DO(b, cuStreamWaitEvent, b->h2d, x->wave_done[half], 0);
        }
        cuda_ship(b, next, (uint32_t)e, cuda_staging_at(b, i));
        x->is_ahead[e] = true;
        x->ahead[x->n_ahead++] = e;
    }
    x->ahead_layer = next;
    if (x->n_ahead > 0) (void)CUDA_DO(b, cuEventRecord, x->ahead_here, b->h2d);
}

void cuda_ahead_find(backend_cuda *b, uint32_t layer) {
    cuda_experts *x = &b->experts;
    if (x->n_ahead == 0 || x->ahead_layer != layer) return;
    for (size_t i = 0; i < x->n_active; i++) {
        for (uint32_t k = 0; k < x->n_ahead && x->slots[i] == EXPERT_MISS; k++) {
            if (x->ahead[k] == x->active[i]) x->slots[i] = EXPERT_AHEAD - (int32_t)k;
        }
    }
}

void cuda_ahead_await(backend_cuda *b) {
    (void)CUDA_DO(b, cuStreamWaitEvent, b->compute, b->experts.ahead_here, 0);
}
