/* backend_cpu_experts.c - routed experts: pairs of row and expert sorted by expert, so
 * that each expert's weights are read once a step.
 *
 * A pair's bits depend on its row alone: activations are quantized by row, the
 * matrices promise bits that do not depend on the other rows, and a row's
 * outputs are added in rank order, not in the order of the experts.  Where an
 * expert lies (slot or mapping) changes nothing either, since the bytes are the same.
 */
#include "worker/backend_cpu.h"

#include "kernels/moe_combine.h"
#include "kernels/router.h"
#include <stdlib.h>
#include <string.h>

/* Router, the shared expert's gate, and the experts of each row. */

static void router_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                         uint32_t worker) {
    (void)worker;
    router_rows(b->tier, args, first, end);
}

/* The shared expert depends on nothing that routing decides, so its first half
 * rides along with the router. */
void cpu_route(backend *base, const layer_weights *l) {
    backend_cpu *b = (backend_cpu *)base;
    const model_config *c = b->config;
    cpu_experts *x = &b->experts;
    const cpu_input *hidden = &b->input[INPUT_HIDDEN];
    size_t n = b->batch.view.n_rows;
    cpu_input_begin(&x->shared, c->n_ff_shared);
    const matmul_job jobs[] = {
        cpu_job(b, &l->router, l->router.place, hidden, n, x->logits, c->n_experts),
        cpu_job(b, &l->shared_gate, l->shared_gate.place, hidden, n, x->shared_logit, 1),
        cpu_job(b, &l->gate, l->gate.place, hidden, n, cpu_input_row(&x->shared, 0),
                cpu_input_floats(&x->shared)),
        cpu_job(b, &l->up, l->up.place, hidden, n, x->shared_up, c->n_ff_shared),
    };
    cpu_run_jobs(b, jobs, 4);
    const router_args args = {.logits = x->logits,
                              .experts = x->chosen,
                              .weights = x->weights,
                              .logits_stride = c->n_experts,
                              .n_experts = c->n_experts,
                              .n_used = c->n_experts_used};
    cpu_run_range(b, n, 1, c->n_experts * 2.0, router_range, &args);
}

/* Counting sort of the pairs by expert; rows stay in order within an expert. */
static void sort_pairs(backend_cpu *b) {
    const model_config *c = b->config;
    cpu_experts *x = &b->experts;
    size_t n_pairs = (size_t)b->batch.view.n_rows * c->n_experts_used;
    memset(x->next, 0, c->n_experts * sizeof *x->next);
    for (size_t i = 0; i < n_pairs; i++)
        x->next[x->chosen[i]]++;
    uint32_t sum = 0;
    x->n_active = 0;
    for (uint32_t e = 0; e < c->n_experts; e++) {
        uint32_t count = x->next[e];
        x->next[e] = sum;
        if (count == 0) continue;
        x->active[x->n_active] = (int32_t)e;
        x->counts[x->n_active] = count;
        x->first[x->n_active++] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n_pairs; i++) {
        uint32_t at = x->next[x->chosen[i]]++;
        x->pair_row[at] = (int32_t)(i / c->n_experts_used);
        x->pair_out[at] = (int32_t)i;
    }
}

/* Where the experts lie. */

static const unsigned char *mapped(const weight_experts *w, int32_t expert) {
    return (const unsigned char *)w->first.place + (size_t)expert * w->expert_bytes;
}

static size_t one_bytes(const weight_experts *w) {
    return w->first.row_bytes * w->first.n_rows;
}

/* A record has its three matrices one after another. */
static expert_place place_in_record(const layer_weights *l, const unsigned char *at) {
    const unsigned char *up = at + one_bytes(&l->exp_gate);
    return (expert_place){at, up, up + one_bytes(&l->exp_up)};
}

static unsigned char *slot_at(const cpu_experts *x, int32_t slot) {
    return x->arena + (size_t)slot * x->slot_bytes;
}

/* The record of an expert in RAM, held until release_records(). */
static const unsigned char *fetch(cpu_experts *x, uint32_t layer, uint32_t expert) {
    const unsigned char *record = host_tier_fetch(x->host, layer, expert);
    x->failed = x->failed || record == NULL;
    return record;
}

/* For tests: nobody may still read what the cache has given away, or never got. */
static void poison_slots(const backend_cpu *b, size_t n) {
    const cpu_experts *x = &b->experts;
    for (size_t i = 0; i < n && b->params.poison; i++)
        memset(slot_at(x, x->inserts[i].slot), 0xFF, x->slot_bytes);
}

void cpu_forget_experts(backend *base) {
    const backend_cpu *b = (const backend_cpu *)base;
    const cpu_experts *x = &b->experts;
    if (x->cache != NULL) expert_cache_clear(x->cache);
    if (b->params.poison && x->arena != NULL)
        memset(x->arena, 0xFF, b->params.n_slots * x->slot_bytes);
}

static void fill_slot(cpu_experts *x, const layer_weights *l, uint32_t layer,
                      const expert_insert *insert) {
    unsigned char *at = slot_at(x, insert->slot);
    x->bytes_moved += layer_expert_bytes(l);
    if (x->host != NULL) {
        const unsigned char *record = fetch(x, layer, insert->expert);
        if (record == NULL) return;
        memcpy(at, record, layer_expert_bytes(l));
        host_tier_release(x->host, layer, insert->expert);
        host_tier_demote(x->host, layer, insert->expert);
        return;
    }
    const weight_experts *parts[] = {&l->exp_gate, &l->exp_up, &l->exp_down};
    for (size_t i = 0; i < 3; i++) {
        memcpy(at, mapped(parts[i], (int32_t)insert->expert), one_bytes(parts[i]));
        at += one_bytes(parts[i]);
    }
}

/* Bring in as many misses as the cap allows; the rest is computed where it lies. */
static void fill_slots(backend_cpu *b, const layer_weights *l, uint32_t layer_index) {
    cpu_experts *x = &b->experts;
    size_t n = expert_cache_plan_inserts(x->cache, x->inserts, x->n_active);
    poison_slots(b, n);
    for (size_t i = 0; i < n; i++) {
        fill_slot(x, l, layer_index, &x->inserts[i]);
        if (x->failed)
            expert_cache_abandon(x->cache, &x->inserts[i]);
        else
            expert_cache_commit(x->cache, &x->inserts[i]);
    }
}

/* All that is not in slots begins to come from the disk at once. */
static void begin_reads(cpu_experts *x, uint32_t layer_index) {
    size_t n = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->cache == NULL || x->slots[i] == EXPERT_MISS) x->missing[n++] = x->active[i];
    }
    host_tier_prefetch(x->host, layer_index, x->missing, n);
}

static expert_place place_of(cpu_experts *x, const layer_weights *l, uint32_t layer,
                             int32_t expert) {
    if (x->host == NULL) {
        return (expert_place){mapped(&l->exp_gate, expert), mapped(&l->exp_up, expert),
                              mapped(&l->exp_down, expert)};
    }
    const unsigned char *record = fetch(x, layer, (uint32_t)expert);
    return record != NULL ? place_in_record(l, record) : (expert_place){NULL, NULL, NULL};
}

static void find_experts(backend_cpu *b, const layer_weights *l, uint32_t layer_index) {
    cpu_experts *x = &b->experts;
    x->lookups += x->n_active;
    if (x->cache != NULL) {
        expert_cache_layer(x->cache, layer_index, x->active, x->n_active, x->counts, x->slots);
    }
    if (x->host != NULL) begin_reads(x, layer_index);
    if (x->cache != NULL) fill_slots(b, l, layer_index);
    for (size_t i = 0; i < x->n_active; i++) {
        int32_t e = x->active[i], slot = EXPERT_MISS;
        if (x->cache != NULL) slot = expert_cache_find(x->cache, layer_index, (uint32_t)e);
        x->slots[i] = slot;
        x->places[i] = slot != EXPERT_MISS ? place_in_record(l, slot_at(x, slot))
                                           : place_of(x, l, layer_index, e);
    }
}

static void release_records(cpu_experts *x, uint32_t layer_index) {
    for (size_t i = 0; i < x->n_active && x->host != NULL; i++) {
        if (x->slots[i] != EXPERT_MISS || x->places[i].gate == NULL) continue;
        host_tier_release(x->host, layer_index, (uint32_t)x->active[i]);
    }
}

/* The two halves of the experts. */

static void run_first_half(backend_cpu *b, const layer_weights *l) {
    cpu_experts *x = &b->experts;
    cpu_input *mid = &b->input[INPUT_GATED];
    uint32_t n_ff = b->config->n_ff_expert;
    cpu_input_begin(mid, n_ff);
    size_t n = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        uint32_t first = x->first[i];
        matmul_job *gate = &b->jobs[n++], *up = &b->jobs[n++];
        *gate = cpu_job(b, &l->exp_gate.first, x->places[i].gate, &b->input[INPUT_HIDDEN],
                        x->counts[i], cpu_input_row(mid, first), cpu_input_floats(mid));
        *up = cpu_job(b, &l->exp_up.first, x->places[i].up, &b->input[INPUT_HIDDEN],
                      x->counts[i], b->up + (size_t)first * n_ff, n_ff);
        gate->act_rows = up->act_rows = x->pair_row + first;
    }
    cpu_run_jobs(b, b->jobs, n);
}

static void run_second_half(backend_cpu *b, const layer_weights *l) {
    const model_config *c = b->config;
    cpu_experts *x = &b->experts;
    const cpu_input *mid = &b->input[INPUT_GATED];
    size_t n = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        uint32_t first = x->first[i];
        matmul_job *down = &b->jobs[n++];
        *down = cpu_job(b, &l->exp_down.first, x->places[i].down, mid, x->counts[i], x->down,
                        c->n_embd);
        down->acts = (const unsigned char *)down->acts + first * down->act_stride;
        down->out_rows = x->pair_out + first;
    }
    b->jobs[n++] = cpu_job(b, &l->down, l->down.place, &x->shared, b->batch.view.n_rows,
                           x->shared_down, c->n_embd);
    cpu_run_jobs(b, b->jobs, n);
}

static void combine_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                          uint32_t worker) {
    (void)worker;
    moe_combine_rows(b->tier, args, first, end);
}

static void run_combine(backend_cpu *b) {
    const model_config *c = b->config;
    const cpu_experts *x = &b->experts;
    const moe_combine_args args = {.x = b->buffer[BUFFER_RESIDUAL],
                                   .y = x->down,
                                   .weights = x->weights,
                                   .shared = x->shared_down,
                                   .shared_gate = x->shared_logit,
                                   .out = b->buffer[BUFFER_RESIDUAL],
                                   .x_stride = c->n_embd,
                                   .y_stride = c->n_embd,
                                   .shared_stride = c->n_embd,
                                   .shared_gate_stride = 1,
                                   .out_stride = c->n_embd,
                                   .dim = c->n_embd,
                                   .n_used = c->n_experts_used};
    cpu_run_range(b, b->batch.view.n_rows, 1, c->n_embd * (c->n_experts_used + 1) * 0.1,
                  combine_range, &args);
}

void cpu_expert_layer(backend *base, const layer_weights *l, uint32_t layer_index,
                      input_forms forms, input_forms shared_forms) {
    backend_cpu *b = (backend_cpu *)base;
    cpu_experts *x = &b->experts;
    size_t n = b->batch.view.n_rows;
    if (b->batch.routed != NULL) {
        size_t n_ids = n * b->config->n_experts_used;
        memcpy(x->chosen, b->batch.routed + layer_index * n_ids, n_ids * sizeof *x->chosen);
    }
    sort_pairs(b);
    find_experts(b, l, layer_index);
    if (!x->failed) {
        run_first_half(b, l);
        cpu_run_swiglu(b, &b->input[INPUT_GATED], b->up, n * b->config->n_experts_used, forms);
        cpu_run_swiglu(b, &x->shared, x->shared_up, n, shared_forms);
        run_second_half(b, l);
    }
    release_records(x, layer_index);
    if (x->failed) return;
    cpu_flush_delta(b);
    run_combine(b);
}

/* Memory. */

static size_t largest_record(const model_weights *w) {
    size_t most = 0;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        size_t bytes = layer_expert_bytes(&w->layers[i]);
        if (bytes > most) most = bytes;
    }
    return (most + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
}

static status init_slots(backend_cpu *b, const model_weights *w, error *err) {
    const model_config *c = b->config;
    cpu_experts *x = &b->experts;
    uint32_t n_slots = b->params.n_slots;
    if (n_slots == 0) return STATUS_OK;
    status rc = expert_cache_new(&x->cache, c->n_layers, c->n_experts, c->n_experts_used,
                                 n_slots, b->params.inserts_per_layer, err);
    if (rc != STATUS_OK) return rc;
    x->slot_bytes = largest_record(w);
    x->arena = cpu_reserve(n_slots * x->slot_bytes);
    x->inserts = calloc(c->n_experts, sizeof *x->inserts);
    if (x->arena == NULL || x->inserts == NULL) {
        return error_set(err, STATUS_NO_MEMORY,
                         "cpu backend: no memory for %u expert slots of %zu bytes", n_slots,
                         x->slot_bytes);
    }
    cpu_forget_experts(&b->base);
    return STATUS_OK;
}

/* A layer's experts are held at once. */
static status init_host_tier(backend_cpu *b, const model_weights *w, error *err) {
    cpu_experts *x = &b->experts;
    if (b->params.host_records == 0) return STATUS_OK;
    x->missing = calloc(b->config->n_experts, sizeof *x->missing);
    if (x->missing == NULL) return error_set(err, STATUS_NO_MEMORY, "cpu backend: no memory");
    const host_tier_params params = {.weights = w,
                                     .n_experts = b->config->n_experts,
                                     .n_records = b->params.host_records,
                                     .slot_bytes = largest_record(w),
                                     .n_loaders = b->params.n_loaders};
    status rc = host_tier_new(&x->host, &params, err);
    if (rc != STATUS_OK || !host_tier_has_all(x->host)) return rc;
    return host_tier_fill(x->host, NULL, NULL, err);
}

status cpu_experts_fill(backend_cpu *b, const model_weights *w, error *err) {
    const uint32_t n_experts = b->config->n_experts;
    cpu_experts *x = &b->experts;
    if (x->cache == NULL || b->params.expert_uses == NULL) return STATUS_OK;
    memcpy(expert_cache_uses(x->cache), b->params.expert_uses,
           (size_t)b->config->n_layers * n_experts * sizeof(uint32_t));
    x->n_by_use = expert_cache_fill(x->cache, true);
    for (uint32_t i = 0; i < x->n_by_use && !x->failed; i++) {
        uint32_t owner = expert_cache_owner(x->cache, i), layer = owner / n_experts;
        const expert_insert insert = {owner % n_experts, (int32_t)i, -1};
        fill_slot(x, &w->layers[layer], layer, &insert);
    }
    return x->failed ? host_tier_failure(x->host, err) : STATUS_OK;
}

status cpu_experts_init(backend_cpu *b, const model_weights *w, error *err) {
    const model_config *c = b->config;
    cpu_experts *x = &b->experts;
    size_t rows = b->params.max_rows, pairs = rows * c->n_experts_used;
    size_t n = c->n_experts;
    x->logits = cpu_alloc(rows * n * sizeof(float));
    x->shared_logit = cpu_alloc(rows * sizeof(float));
    x->chosen = cpu_alloc(pairs * sizeof *x->chosen);
    x->weights = cpu_alloc(pairs * sizeof(float));
    x->first = cpu_alloc(n * sizeof *x->first);
    x->next = cpu_alloc(n * sizeof *x->next);
    x->pair_row = cpu_alloc(pairs * sizeof *x->pair_row);
    x->pair_out = cpu_alloc(pairs * sizeof *x->pair_out);
    x->active = cpu_alloc(n * sizeof *x->active);
    x->counts = cpu_alloc(n * sizeof *x->counts);
    x->slots = cpu_alloc(n * sizeof *x->slots);
    x->places = cpu_alloc(n * sizeof *x->places);
    x->down = cpu_alloc(pairs * c->n_embd * sizeof(float));
    x->shared_up = cpu_alloc(rows * c->n_ff_shared * sizeof(float));
    x->shared_down = cpu_alloc(rows * c->n_embd * sizeof(float));
    if (x->logits == NULL || x->shared_logit == NULL || x->chosen == NULL ||
        x->weights == NULL || x->first == NULL || x->next == NULL || x->pair_row == NULL ||
        x->pair_out == NULL || x->active == NULL || x->counts == NULL || x->slots == NULL ||
        x->places == NULL || x->down == NULL || x->shared_up == NULL ||
        x->shared_down == NULL) {
        return error_set(err, STATUS_NO_MEMORY,
                         "cpu backend: no memory for the experts of %zu rows", rows);
    }
    status rc = cpu_input_init(&x->shared, rows, c->n_ff_shared, cpu_all_forms(b), err);
    if (rc == STATUS_OK) rc = init_host_tier(b, w, err);
    return rc != STATUS_OK ? rc : init_slots(b, w, err);
}

void cpu_experts_release(backend_cpu *b) {
    cpu_experts *x = &b->experts;
    host_tier_free(x->host);
    free(x->missing);
    free(x->inserts);
    cpu_unreserve(x->arena, b->params.n_slots * x->slot_bytes);
    expert_cache_free(x->cache);
    cpu_input_release(&x->shared);
    free(x->shared_down);
    free(x->shared_up);
    free(x->down);
    free(x->places);
    free(x->slots);
    free(x->counts);
    free(x->active);
    free(x->pair_out);
    free(x->pair_row);
    free(x->next);
    free(x->first);
    free(x->weights);
    free(x->chosen);
    free(x->shared_logit);
    free(x->logits);
}
