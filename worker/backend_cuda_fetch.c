/* backend_cuda_fetch.c - decoding steps whose missing experts the GPU brings in by itself.
 *
 * The host gives each step the slots that may go and reads afterwards, in notes that the
 * last layer's launch wrote to host memory, what became of every look-up; its cache follows in
 * the same order.  So the policy stays in memory/expert_cache.c and a step is one graph, with no look
 * of the host between layers.  kernels/cuda/experts_fetch.h has the kernel's part.
 *
 * It needs every record in pinned memory.  Steps of other kinds (prompts, many rows, the CPU
 * lane) change the host's cache alone; the device's tables are sent anew before the next step
 * here.
 */
#include "worker/backend_cuda_experts.h"

#include "kernels/cuda/experts_fetch.h"
#include <string.h>

static size_t n_experts_of(const backend_cuda *b) {
    return (size_t)b->config->n_layers * b->config->n_experts;
}

static size_t table_bytes(const backend_cuda *b) {
    return n_experts_of(b) * sizeof(int32_t) + 2 * b->layout.n_slots * sizeof(uint32_t);
}

status cuda_fetch_init(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    if (x->all == NULL || b->config->n_experts_used > CUDA_STAGING_SLOTS) return STATUS_OK;
    size_t n_notes = (size_t)b->config->n_layers * FETCH_MAX_PAIRS;
    status rc = cuda_pin(b, &x->tables, table_bytes(b), err);
    if (rc == STATUS_OK) rc = cuda_pin(b, &x->notes, n_notes * sizeof *x->notes, err);
    x->tables_stale = true;
    return rc == STATUS_OK ? cuda_box_init(b, err) : rc;
}

static bool can_fetch(const backend_cuda *b) {
    return b->experts.notes != NULL && !cuda_lane_pays(b) && b->n_spans == 1 &&
           b->spans[0].decodes;
}

/* slot_of, slot_owner and slot_step as the cache has them. */
static void send_tables(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    const cuda_work *w = &b->layout.work;
    const model_config *c = b->config;
    size_t n = n_experts_of(b), n_slots = b->layout.n_slots;
    int32_t *slot_of = x->tables;
    uint32_t *owner = (uint32_t *)(void *)(slot_of + n), *step = owner + n_slots;
    for (size_t i = 0; i < n; i++)
        slot_of[i] = expert_cache_find(x->cache, (uint32_t)(i / c->n_experts),
                                       (uint32_t)(i % c->n_experts));
    for (uint32_t i = 0; i < n_slots; i++)
        owner[i] = expert_cache_owner(x->cache, i);
    memset(step, 0, n_slots * sizeof *step);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, cuda_work_at(b, w->slot_of), slot_of,
                  n * sizeof *slot_of, b->compute);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, cuda_work_at(b, w->slot_owner), owner,
                  n_slots * sizeof *owner, b->compute);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, cuda_work_at(b, w->slot_step), step,
                  n_slots * sizeof *step, b->compute);
}

void cuda_fetch_begin(backend_cuda *b, fetch_step *step) {
    cuda_experts *x = &b->experts;
    x->fetches = can_fetch(b);
    if (x->fetches) {
        step->n_victims =
            (uint32_t)expert_cache_victims(x->cache, step->victims, FETCH_MAX_VICTIMS);
        x->fetches = experts_fetch_fits(b->spans[0].n_rows * b->config->n_experts_used,
                                        b->layout.n_staging, step->n_victims);
    }
    if (!x->fetches) {
        x->tables_stale = true;
        return;
    }
    if (++x->n_fetching_steps == FETCH_FILLING) { /* old numbers would look new */
        x->n_fetching_steps = 1;
        x->tables_stale = true;
    }
    if (x->tables_stale) send_tables(b);
    x->tables_stale = false;
    step->number = x->n_fetching_steps;
    step->next = step->done = 0;
    cuda_box_begin(b, step);
}

static experts_fetch_args fetch_args(const backend_cuda *b, const layer_weights *l,
                                     uint32_t layer) {
    const cuda_experts *x = &b->experts;
    const cuda_work *w = &b->layout.work;
    uint32_t n = b->config->n_experts;
    return (experts_fetch_args){.places = cuda_ptr(cuda_work_at(b, w->places)),
                                .slot_of = cuda_ptr(cuda_work_at(b, w->slot_of)),
                                .slot_owner = cuda_ptr(cuda_work_at(b, w->slot_owner)),
                                .slot_step = cuda_ptr(cuda_work_at(b, w->slot_step)),
                                .step = cuda_ptr(cuda_work_at(b, w->fetch)),
                                .notes = cuda_ptr(cuda_work_at(b, w->fetch_notes)),
                                .told = layer + 1 == b->config->n_layers ? x->notes : NULL,
                                .source = x->all + (size_t)layer * n * b->layout.slot_bytes,
                                .slots = cuda_ptr(cuda_part_at(b, CUDA_PART_SLOTS)),
                                .staging = cuda_ptr(cuda_part_at(b, CUDA_PART_STAGING)),
                                .slot_bytes = b->layout.slot_bytes,
                                .record_bytes = layer_expert_bytes(l),
                                .layer = layer,
                                .n_experts = n,
                                .n_pairs = b->spans[0].n_rows * b->config->n_experts_used,
                                .most_inserts = b->params.inserts_per_layer,
                                .n_staging = b->layout.n_staging};
}

void cuda_fetch_route(backend_cuda *b, const layer_weights *l, uint32_t layer,
                      const router_cuda_args *router) {
    router_fetch_args args = {.router = *router, .fetch = fetch_args(b, l, layer)};
    args.fetch.turns = cuda_ptr(cuda_work_at(b, b->layout.work.expert_turns));
    if (b->experts.box != NULL) {
        args.fetch.box = b->experts.box;
        args.fetch.hidden = cuda_hidden_rows(b, &b->spans[0]);
        args.fetch.lane_rows = b->experts.hidden;
        args.fetch.lane_notes = b->experts.notes + layer * args.fetch.n_pairs;
        args.fetch.n_hidden = b->spans[0].n_rows * b->config->n_embd;
    }
    cuda_launch(b, CUDA_KERNEL_router_fetch, router_fetch_shape(b->spans[0].n_rows), &args);
}

void cuda_fetch_layer(backend_cuda *b, const layer_weights *l, uint32_t layer,
                      const int32_t *experts) {
    experts_fetch_args args = fetch_args(b, l, layer);
    args.experts = experts;
    cuda_launch(b, CUDA_KERNEL_experts_fetch, experts_fetch_shape(), &args);
}

/* The distinct experts of a layer in the order of their pairs, and how many rows use each. */
static size_t list_distinct(const fetch_note *notes, size_t n, int32_t *experts,
                            uint32_t *counts) {
    size_t n_distinct = 0;
    for (size_t i = 0; i < n; i++) {
        if (notes[i].slot != FETCH_REPEATED) {
            experts[n_distinct] = notes[i].expert;
            counts[n_distinct++] = 1;
            continue;
        }
        for (size_t j = 0; j < n_distinct; j++)
            counts[j] += experts[j] == notes[i].expert;
    }
    return n_distinct;
}

/* The slot that a pair's expert came to over the bus, or that the host has filled; negative: none. */
static int32_t slot_taken(const fetch_note *note, bool filled) {
    if (!filled) return note->slot;
    return note->slot < FETCH_ON_LANE ? FETCH_FILLS(note->slot) : FETCH_HIT;
}

/* In the order in which the GPU took the victims, that of the pairs and then what is filled: the
 * clock's hand goes on to each, and would go round and halve every counter to a former one. */
static void settle_layer(backend_cuda *b, uint32_t layer, size_t n) {
    cuda_experts *x = &b->experts;
    const fetch_note *notes = x->notes + layer * n;
    size_t bytes = layer_expert_bytes(&b->weights->layers[layer]);
    x->n_active = list_distinct(notes, n, x->active, x->counts);
    expert_cache_layer(x->cache, layer, x->active, x->n_active, x->counts, x->slots);
    for (int filled = 0; filled < 2; filled++) {
        for (size_t i = 0; i < n; i++) {
            const int32_t slot = slot_taken(&notes[i], filled == 1);
            if (slot >= 0 || (slot == FETCH_STAGED && !filled)) x->bytes_moved += bytes;
            if (slot < 0) continue;
            expert_cache_place(x->cache, (uint32_t)notes[i].expert, (uint32_t)slot);
        }
    }
}

/* After a failure nobody knows what lies where. */
void cuda_fetch_settle(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    if (!x->fetches) return;
    x->fetches = false;
    if (b->failed != STATUS_OK) {
        expert_cache_clear(x->cache);
        x->tables_stale = true;
        return;
    }
    size_t n = (size_t)b->spans[0].n_rows * b->config->n_experts_used;
    for (uint32_t layer = 0; layer < b->config->n_layers; layer++)
        settle_layer(b, layer, n);
}
