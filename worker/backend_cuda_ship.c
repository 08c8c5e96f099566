/* backend_cuda_ship.c - records under way between RAM and VRAM, on the stream h2d. */
#include "worker/backend_cuda_experts.h"

cuda_pointer cuda_slot_at(const backend_cuda *b, uint32_t slot) {
    return cuda_part_at(b, CUDA_PART_SLOTS) + slot * b->layout.slot_bytes;
}

cuda_pointer cuda_staging_at(const backend_cuda *b, uint32_t i) {
    return cuda_part_at(b, CUDA_PART_STAGING) + i * b->layout.slot_bytes;
}

/* The oldest record under way has arrived: its memory may go to another. */
static bool await_oldest(backend_cuda *b) {
    cuda_staging *s = &b->experts.staging;
    uint32_t i = s->next;
    if (!CUDA_DO(b, cuEventSynchronize, s->used[i])) return false;
    if (s->held[i]) host_tier_release(b->experts.host, s->layer[i], s->expert[i]);
    s->held[i] = false;
    return true;
}

/* What was enqueued last on h2d reads or writes a record, which stays until it is done. */
static void hold_record(backend_cuda *b, uint32_t layer, uint32_t expert, bool comes_back) {
    cuda_staging *s = &b->experts.staging;
    uint32_t i = s->next;
    s->next = (i + 1) % CUDA_RECORD_BUFFERS;
    s->held[i] = true;
    s->comes_back[i] = comes_back;
    s->layer[i] = layer;
    s->expert[i] = expert;
    (void)CUDA_DO(b, cuEventRecord, s->used[i], b->h2d);
}

static void fail_of_tier(backend_cuda *b) {
    if (b->failed != STATUS_OK) return;
    b->failed = host_tier_failure(b->experts.host, &b->failure);
}

void cuda_ship(backend_cuda *b, uint32_t layer, uint32_t expert, cuda_pointer to) {
    cuda_experts *x = &b->experts;
    size_t n = layer_expert_bytes(&b->weights->layers[layer]);
    x->bytes_moved += n;
    if (x->n_shipped++ == 0) (void)CUDA_DO(b, cuEventRecord, x->departed, b->h2d);
    if (x->all != NULL) {
        size_t at = (size_t)layer * b->config->n_experts + expert;
        (void)CUDA_DO(b, cuMemcpyHtoDAsync, to, x->all + at * b->layout.slot_bytes, n, b->h2d);
        return;
    }
    if (!await_oldest(b)) return;
    const unsigned char *bytes = host_tier_fetch(x->host, layer, expert);
    if (bytes == NULL) {
        fail_of_tier(b);
        return;
    }
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, to, bytes, n, b->h2d);
    hold_record(b, layer, expert, false);
}

void cuda_await_record(backend_cuda *b, uint32_t layer, uint32_t expert) {
    const cuda_staging *s = &b->experts.staging;
    for (uint32_t i = 0; i < CUDA_RECORD_BUFFERS; i++) {
        if (s->held[i] && s->comes_back[i] && s->layer[i] == layer && s->expert[i] == expert)
            (void)CUDA_DO(b, cuEventSynchronize, s->used[i]);
    }
}

/* A record goes to a slot.  What the slot held goes back to RAM first, on the same stream, and
 * what it holds now has no need of RAM: the tiers hold different experts. */
void cuda_ship_to_slot(backend_cuda *b, uint32_t layer, const expert_insert *insert,
                       cuda_pointer slot) {
    cuda_experts *x = &b->experts;
    uint32_t n = b->config->n_experts;
    if (x->all == NULL && insert->former >= 0 && await_oldest(b)) {
        uint32_t owner = (uint32_t)(insert->former / n),
                 expert = (uint32_t)(insert->former % n);
        unsigned char *back = host_tier_receive(x->host, owner, expert);
        if (back != NULL) {
            (void)CUDA_DO(b, cuMemcpyDtoHAsync, back, slot,
                          layer_expert_bytes(&b->weights->layers[owner]), b->h2d);
            hold_record(b, owner, expert, true);
        }
    }
    cuda_ship(b, layer, insert->expert, slot);
    if (x->all == NULL) host_tier_demote(x->host, layer, insert->expert);
}

/* Those of a layer's missing experts that are on disk begin to come, all at once. */
void cuda_begin_reads(backend_cuda *b, uint32_t layer) {
    cuda_experts *x = &b->experts;
    size_t n = 0;
    if (x->all != NULL) return;
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->slots[i] == EXPERT_MISS) x->missing[n++] = x->active[i];
    }
    host_tier_prefetch(x->host, layer, x->missing, n);
}

/* The compute stream goes on when everything shipped so far is there. */
void cuda_await_shipped(backend_cuda *b) {
    b->experts.n_arrived = b->experts.n_shipped;
    (void)CUDA_DO(b, cuEventRecord, b->experts.arrived, b->h2d);
    (void)CUDA_DO(b, cuStreamWaitEvent, b->compute, b->experts.arrived, 0);
}

void cuda_fill(backend_cuda *b, uint32_t layer) {
    cuda_experts *x = &b->experts;
    if (!x->fills) return;
    x->fills = false;
    x->filling = true;
    x->filling_layer = layer;
    (void)CUDA_DO(b, cuEventRecord, x->sent, b->compute);
    (void)CUDA_DO(b, cuStreamWaitEvent, b->h2d, x->sent, 0);
    cuda_ship_to_slot(b, layer, &x->fill, cuda_slot_at(b, (uint32_t)x->fill.slot));
    expert_cache_commit(x->cache, &x->fill);
    (void)CUDA_DO(b, cuEventRecord, x->filled, b->h2d);
}

void cuda_await_filled(backend_cuda *b, uint32_t layer) {
    cuda_experts *x = &b->experts;
    if (!x->filling || x->filling_layer != layer) return;
    (void)CUDA_DO(b, cuStreamWaitEvent, b->compute, x->filled, 0);
    x->filling = false;
}

/* A record alone tells more of the calls around it than of its journey. */
enum { FEW_RECORDS = 2 };

void cuda_learn_journeys(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    float ms = 0;
    size_t n = x->n_arrived;
    x->n_shipped = x->n_arrived = 0;
    if (x->lane == NULL || x->all == NULL || n < FEW_RECORDS || b->failed != STATUS_OK) return;
    if (b->driver->cuEventElapsedTime(&ms, x->departed, x->arrived) == CUDA_OK)
        cuda_lane_shipped(b, n, (double)ms * 1e6);
}
