/* backend_cuda_experts.c - routed experts on the GPU, with a cache of their records in VRAM.
 *
 * Where every expert has a slot, nothing waits for the host.  Otherwise the host reads the
 * router's choice, asks the cache, and ships what is missing over the stream h2d:
 *
 *   decoding rows   where all records are pinned the GPU fetches (backend_cuda_fetch.c); else
 *                   missing records go to slots (as many as the cache lets in) or to the
 *                   staging records behind them; then two launches do all experts
 *   prompt rows     wave 0 computes what is in slots while wave 1 is on its way; each wave
 *                   brings CUDA_WAVE_EXPERTS records, into slots for experts that the last
 *                   rows use, else into one of the two staging halves; every missing
 *                   record travels once
 *
 * Bits do not depend on where an expert lies: a wave computes whole outputs of pairs (row,
 * rank), which are added in rank order at the end.
 */
#include "worker/backend_cuda.h"

#include "common/clock.h"
#include "common/log.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/router.h"
#include <stdlib.h>
#include <string.h>

enum { LATE_ROWS = 64, LOADING_RECORDS = 128 };

/* Router and its choice. */

static const float *hidden_rows(const backend_cuda *b, const cuda_span *s) {
    return cuda_rows(b, b->layout.work.hidden, s->first_row, b->config->n_embd);
}

static const void *hidden_acts(const backend_cuda *b, const cuda_span *s) {
    return b->has_act[INPUT_HIDDEN]
               ? cuda_acts(b, b->layout.work.hidden_act, s->first_row, b->config->n_embd)
               : NULL;
}

static int32_t *chosen_rows(const backend_cuda *b, const cuda_span *s) {
    return (int32_t *)(void *)cuda_rows(b, b->layout.work.chosen, s->first_row,
                                        b->config->n_experts_used);
}

static float *weight_rows(const backend_cuda *b, const cuda_span *s) {
    return cuda_rows(b, b->layout.work.weights, s->first_row, b->config->n_experts_used);
}

/* The host learns what the router chose: distinct experts, ascending, with their rows. */
static bool read_choice(backend_cuda *b, const cuda_span *s) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t n = (size_t)s->n_rows * c->n_experts_used;
    if (b->mode != MODE_REPLAY) {
        (void)CUDA_DO(b, cuMemcpyDtoHAsync, x->chosen,
                      (cuda_pointer)(uintptr_t)chosen_rows(b, s), n * sizeof *x->chosen,
                      b->compute);
    }
    if (x->lane != NULL && b->mode != MODE_REPLAY) {
        (void)CUDA_DO(b, cuMemcpyDtoHAsync, x->hidden,
                      (cuda_pointer)(uintptr_t)hidden_rows(b, s),
                      (size_t)s->n_rows * c->n_embd * sizeof(float), b->compute);
    }
    cuda_end_segment(b);
    if (!CUDA_DO(b, cuStreamSynchronize, b->compute)) return false;
    size_t n_late = (size_t)LATE_ROWS * c->n_experts_used;
    memset(x->first, 0, (c->n_experts + 1) * sizeof *x->first);
    memset(x->late, 0, c->n_experts * sizeof *x->late);
    for (size_t i = 0; i < n; i++) {
        x->first[x->chosen[i] + 1]++;
        x->late[x->chosen[i]] += i + n_late >= n;
    }
    x->n_active = 0;
    for (uint32_t e = 0; e < c->n_experts; e++) {
        uint32_t count = x->first[e + 1];
        x->first[e + 1] += x->first[e];
        if (count == 0) continue;
        x->active[x->n_active] = (int32_t)e;
        x->counts[x->n_active++] = s->decodes ? count : x->late[e];
    }
    x->lookups += x->n_active;
    return true;
}

/* Shipping. */

static cuda_pointer slot_at(const backend_cuda *b, uint32_t slot) {
    return cuda_part_at(b, CUDA_PART_SLOTS) + slot * b->layout.slot_bytes;
}

static cuda_pointer staging_at(const backend_cuda *b, uint32_t i) {
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
static void ship_to_slot(backend_cuda *b, uint32_t layer, const expert_insert *insert,
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

static void ship(backend_cuda *b, const layer_weights *l, uint32_t expert, cuda_pointer to) {
    cuda_ship(b, (uint32_t)(l - b->weights->layers), expert, to);
}

/* Those of a layer's missing experts that are on disk begin to come, all at once. */
static void begin_reads(backend_cuda *b, uint32_t layer) {
    cuda_experts *x = &b->experts;
    size_t n = 0;
    if (x->all != NULL) return;
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->slots[i] == EXPERT_MISS) x->missing[n++] = x->active[i];
    }
    host_tier_prefetch(x->host, layer, x->missing, n);
}

/* The compute stream goes on when everything shipped so far is there. */
static void await_shipped(backend_cuda *b) {
    (void)CUDA_DO(b, cuEventRecord, b->experts.arrived, b->h2d);
    (void)CUDA_DO(b, cuStreamWaitEvent, b->compute, b->experts.arrived, 0);
}

static uint64_t *mirror_row(const backend_cuda *b, uint32_t layer) {
    return b->experts.records + (size_t)layer * b->config->n_experts;
}

static cuda_pointer device_row(const backend_cuda *b, uint32_t layer) {
    return cuda_work_at(b, b->layout.work.records) +
           (size_t)layer * b->config->n_experts * sizeof(uint64_t);
}

/* The table of a layer as the cache has it; experts elsewhere are added by the caller. */
static uint64_t *rebuild_row(const backend_cuda *b, uint32_t layer) {
    uint64_t *row = mirror_row(b, layer);
    for (uint32_t e = 0; e < b->config->n_experts; e++) {
        int32_t slot = expert_cache_find(b->experts.cache, layer, e);
        row[e] = slot != EXPERT_MISS ? slot_at(b, (uint32_t)slot) : 0;
    }
    return row;
}

/* All experts of decoding rows, no more than staging records, to slots or staging. */
static void gather_step(backend_cuda *b, const layer_weights *l, uint32_t layer) {
    cuda_experts *x = &b->experts;
    expert_cache_layer(x->cache, layer, x->active, x->n_active, x->counts, x->slots);
    begin_reads(b, layer);
    cuda_lane_choose(b, b->params.lane == CPU_LANE_ALL);
    size_t n_misses = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        n_misses += x->slots[i] == EXPERT_MISS && !x->on_cpu[i];
        if (x->on_cpu[i]) expert_cache_pass_over(x->cache, (uint32_t)x->active[i]);
    }
    size_t n_inserts = expert_cache_plan_inserts(x->cache, x->inserts, x->n_active);
    for (size_t i = 0; i < n_inserts; i++) {
        ship_to_slot(b, layer, &x->inserts[i], slot_at(b, (uint32_t)x->inserts[i].slot));
        expert_cache_commit(x->cache, &x->inserts[i]);
    }
    uint64_t *row = rebuild_row(b, layer);
    uint32_t n_staged = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        int32_t e = x->active[i];
        if (row[e] != 0 || x->on_cpu[i]) continue;
        row[e] = staging_at(b, n_staged++);
        ship(b, l, (uint32_t)e, row[e]);
    }
    if (n_misses > 0) await_shipped(b);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, device_row(b, layer), row,
                  b->config->n_experts * sizeof *row, b->compute);
}

/* Decoding rows: two launches. */

static expert_matrix step_matrix(const weight_experts *routed, const weight_matrix *shared,
                                 uint64_t offset) {
    cuda_matrix r = cuda_matrix_of(&routed->first), s = cuda_matrix_of(shared);
    return (expert_matrix){.shared = shared->place,
                           .offset = offset,
                           .row_bytes = r.row_bytes,
                           .shared_row_bytes = s.row_bytes,
                           .split_d = r.split_d,
                           .shared_split_d = s.split_d,
                           .type = r.type,
                           .shared_type = s.type};
}

static uint64_t matrix_bytes(const weight_experts *w) {
    return w->first.row_bytes * w->first.n_rows;
}

static void run_step(backend_cuda *b, const cuda_span *s, const layer_weights *l,
                     uint32_t layer, bool quantized) {
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    uint32_t cols = c->n_ff_expert > c->n_ff_shared ? c->n_ff_expert : c->n_ff_shared;
    uint64_t up_at = matrix_bytes(&l->exp_gate), down_at = up_at + matrix_bytes(&l->exp_up);
    float *h = cuda_rows(b, w->step_h, 0, 0);
    void *h_act = quantized ? cuda_acts(b, w->step_h_act, 0, cols) : NULL;
    const experts_up_args up = {.records = cuda_ptr(device_row(b, layer)),
                                .experts = chosen_rows(b, s),
                                .x = hidden_rows(b, s),
                                .act = hidden_acts(b, s),
                                .h = h,
                                .h_act = h_act,
                                .x_stride = c->n_embd,
                                .act_stride = cuda_act_row_bytes(c->n_embd),
                                .h_stride = cols,
                                .h_act_stride = cuda_act_row_bytes(cols),
                                .gate = step_matrix(&l->exp_gate, &l->gate, 0),
                                .up = step_matrix(&l->exp_up, &l->up, up_at),
                                .n_rows = s->n_rows,
                                .n_used = c->n_experts_used,
                                .n_cols = c->n_embd,
                                .n_ff = c->n_ff_expert,
                                .n_ff_shared = c->n_ff_shared};
    cuda_shape shape;
    cuda_kernel kernel = experts_up_choose(&up, &shape);
    cuda_launch(b, kernel, shape, &up);
    const experts_down_args down = {.records = up.records,
                                    .experts = up.experts,
                                    .weights = weight_rows(b, s),
                                    .shared_gate =
                                        cuda_rows(b, w->shared_logit, s->first_row, 1),
                                    .h = h,
                                    .h_act = h_act,
                                    .foreign = cuda_rows(b, w->foreign, 0, 0),
                                    .x = cuda_rows(b, w->residual, s->first_row, c->n_embd),
                                    .h_stride = cols,
                                    .h_act_stride = up.h_act_stride,
                                    .x_stride = c->n_embd,
                                    .down = step_matrix(&l->exp_down, &l->down, down_at),
                                    .n_rows = s->n_rows,
                                    .n_used = c->n_experts_used,
                                    .n_embd = c->n_embd,
                                    .n_ff = c->n_ff_expert,
                                    .n_ff_shared = c->n_ff_shared};
    kernel = experts_down_choose(&down, &shape);
    cuda_launch(b, kernel, shape, &down);
}

/* Prompt rows: grouped products, wave by wave. */

typedef struct wave_frame {
    const cuda_span *span;
    const layer_weights *layer;
    bool quantized;          /* the rows that down reads */
    uint32_t first, end;     /* places of the lists that the wave's experts have */
    const uint64_t *records; /* on the device */
} wave_frame;

static void run_sort(backend_cuda *b, const cuda_span *s) {
    const cuda_work *w = &b->layout.work;
    const experts_sort_args args = {.experts = chosen_rows(b, s),
                                    .pair_row = cuda_ptr(cuda_work_at(b, w->pair_row)),
                                    .pair_out = cuda_ptr(cuda_work_at(b, w->pair_out)),
                                    .group_first = cuda_ptr(cuda_work_at(b, w->group_first)),
                                    .tiles = cuda_ptr(cuda_work_at(b, w->tiles)),
                                    .n_tiles = cuda_ptr(cuda_work_at(b, w->n_tiles)),
                                    .n_pairs = s->n_rows * b->config->n_experts_used,
                                    .n_used = b->config->n_experts_used,
                                    .n_experts = b->config->n_experts};
    cuda_launch(b, CUDA_KERNEL_experts_sort, experts_sort_shape(), &args);
}

static void run_grouped(backend_cuda *b, const wave_frame *f, const weight_experts *e,
                        uint64_t offset, matmul_args args) {
    const cuda_work *w = &b->layout.work;
    cuda_matrix m = cuda_matrix_of(&e->first);
    args.records = f->records;
    args.tiles = cuda_ptr(cuda_work_at(b, w->tiles));
    args.n_tiles = cuda_ptr(cuda_work_at(b, w->n_tiles));
    args.offset = offset;
    args.row_bytes = m.row_bytes;
    args.split_d = m.split_d;
    args.x_stride = e->first.n_cols;
    args.act_stride = cuda_act_row_bytes(e->first.n_cols);
    args.out_stride = e->first.n_rows;
    args.type = m.type;
    args.n_rows = e->first.n_rows;
    args.n_cols = e->first.n_cols;
    args.n_tokens = f->span->n_rows * b->config->n_experts_used;
    args.n_groups = b->config->n_experts;
    cuda_shape shape;
    cuda_kernel kernel = matmul_choose(&args, &shape);
    cuda_launch(b, kernel, shape, &args);
}

static void run_wave(backend_cuda *b, const wave_frame *f) {
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    const layer_weights *l = f->layer;
    uint64_t up_at = matrix_bytes(&l->exp_gate), down_at = up_at + matrix_bytes(&l->exp_up);
    float *gate = cuda_rows(b, w->pair_gate, 0, 0), *up = cuda_rows(b, w->pair_up, 0, 0);
    void *acts = f->quantized ? cuda_acts(b, w->pair_act, 0, c->n_ff_expert) : NULL;
    matmul_args in;
    memset(&in, 0, sizeof in);
    in.x = hidden_rows(b, f->span);
    in.act = hidden_acts(b, f->span);
    in.in_rows = cuda_ptr(cuda_work_at(b, w->pair_row));
    if (cuda_can_gate(&l->exp_gate.first, &l->exp_up.first, in.act, acts)) {
        in.gated_act = acts;
        in.gated_stride = cuda_act_row_bytes(c->n_ff_expert);
        in.up_offset = up_at;
        run_grouped(b, f, &l->exp_gate, 0, in);
    } else {
        in.out = gate;
        run_grouped(b, f, &l->exp_gate, 0, in);
        in.out = up;
        run_grouped(b, f, &l->exp_up, up_at, in);
        /* Places between the wave's own belong to experts that are done: making their product
         * again spoils what nobody reads any more. */
        size_t at = f->first * (size_t)c->n_ff_expert;
        void *act = acts != NULL ? cuda_acts(b, w->pair_act, f->first, c->n_ff_expert) : NULL;
        cuda_swiglu(b, gate + at, up + at, acts != NULL ? NULL : up + at, act,
                    f->end - f->first, c->n_ff_expert);
    }
    matmul_args down;
    memset(&down, 0, sizeof down);
    down.x = up;
    down.act = acts;
    down.out_rows = cuda_ptr(cuda_work_at(b, w->pair_out));
    down.out = cuda_rows(b, w->pair_down, 0, 0);
    run_grouped(b, f, &l->exp_down, down_at, down);
}

static void run_shared(backend_cuda *b, const cuda_span *s, const layer_weights *l,
                       bool quantized) {
    const cuda_work *w = &b->layout.work;
    uint32_t n_ff = b->config->n_ff_shared;
    float *gate = cuda_rows(b, w->gated, s->first_row, n_ff);
    float *up = cuda_rows(b, w->gated_up, s->first_row, n_ff);
    void *act = quantized ? cuda_acts(b, w->gated_act, s->first_row, n_ff) : NULL;
    if (cuda_can_gate(&l->gate, &l->up, hidden_acts(b, s), act)) {
        cuda_multiply_gated(b, &l->gate, &l->up, hidden_acts(b, s), act, s->n_rows);
    } else {
        const cuda_product in[] = {{&l->gate, gate, n_ff, false}, {&l->up, up, n_ff, false}};
        cuda_multiply(b, false, in, 2, hidden_rows(b, s), hidden_acts(b, s), s->n_rows);
        cuda_swiglu(b, gate, up, gate, act, s->n_rows, n_ff);
    }
    const cuda_product out = {&l->down, cuda_rows(b, w->shared_down, 0, 0), b->config->n_embd,
                              false};
    cuda_multiply(b, false, &out, 1, gate, act, s->n_rows);
}

static void run_combine(backend_cuda *b, const cuda_span *s) {
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    float *x = cuda_rows(b, w->residual, s->first_row, c->n_embd);
    const combine_args args = {
        .base = {.x = x,
                 .y = cuda_rows(b, w->pair_down, 0, 0),
                 .weights = weight_rows(b, s),
                 .shared = cuda_rows(b, w->shared_down, 0, 0),
                 .shared_gate = cuda_rows(b, w->shared_logit, s->first_row, 1),
                 .out = x,
                 .x_stride = c->n_embd,
                 .y_stride = c->n_embd,
                 .shared_stride = c->n_embd,
                 .shared_gate_stride = 1,
                 .out_stride = c->n_embd,
                 .dim = c->n_embd,
                 .n_used = c->n_experts_used},
        .n_rows = s->n_rows};
    cuda_launch(b, CUDA_KERNEL_moe_combine, moe_combine_shape(&args), &args);
}

/* Where expert i of `active` goes: a slot when the cache takes it. */
static const expert_insert *insert_of(const cuda_experts *x, size_t n_inserts, int32_t expert) {
    for (size_t i = 0; i < n_inserts; i++) {
        if (x->inserts[i].expert == (uint32_t)expert) return &x->inserts[i];
    }
    return NULL;
}

/* A wave's table to the device; every wave of a layer has tables of its own, so that
 * nothing waits for their reader. */
static void send_table(backend_cuda *b, wave_frame *f, size_t wave) {
    size_t n = b->config->n_experts;
    cuda_pointer to =
        cuda_work_at(b, b->layout.work.wave_records) + wave * n * sizeof(uint64_t);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, to, b->experts.wave_records + wave * n,
                  n * sizeof(uint64_t), b->compute);
    f->records = cuda_ptr(to);
}

/* Ship up to CUDA_WAVE_EXPERTS missing experts from active[*at] on and compute them. */
static void run_missing_wave(backend_cuda *b, wave_frame *f, size_t *at, size_t wave,
                             size_t n_inserts) {
    cuda_experts *x = &b->experts;
    uint32_t half = wave % 2, n_shipped = 0;
    uint64_t *table = x->wave_records + wave * b->config->n_experts;
    memset(table, 0, b->config->n_experts * sizeof *table);
    f->first = UINT32_MAX;
    (void)CUDA_DO(b, cuStreamWaitEvent, b->h2d, x->wave_done[half], 0);
    for (; *at < x->n_active && n_shipped < CUDA_WAVE_EXPERTS; (*at)++) {
        if (x->slots[*at] != EXPERT_MISS || x->on_cpu[*at]) continue;
        int32_t e = x->active[*at];
        const expert_insert *insert = insert_of(x, n_inserts, e);
        table[e] = insert != NULL ? slot_at(b, (uint32_t)insert->slot)
                                  : staging_at(b, half * CUDA_WAVE_EXPERTS + n_shipped);
        if (insert == NULL) {
            ship(b, f->layer, (uint32_t)e, table[e]);
        } else {
            ship_to_slot(b, (uint32_t)(f->layer - b->weights->layers), insert, table[e]);
            expert_cache_commit(x->cache, insert);
        }
        n_shipped++;
        if (f->first == UINT32_MAX) f->first = x->first[e];
        f->end = x->first[e + 1];
    }
    if (n_shipped == 0) return;
    await_shipped(b);
    send_table(b, f, wave);
    run_wave(b, f);
    (void)CUDA_DO(b, cuEventRecord, x->wave_done[half], b->compute);
}

static void run_waves(backend_cuda *b, wave_frame *f, uint32_t layer) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    expert_cache_layer(x->cache, layer, x->active, x->n_active, x->counts, x->slots);
    begin_reads(b, layer);
    bool keeps_none = b->params.lane == CPU_LANE_ALL;
    cuda_lane_choose(b, false);
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->on_cpu[i] || keeps_none)
            expert_cache_pass_over(x->cache, (uint32_t)x->active[i]);
    }
    expert_cache_limit_inserts(x->cache, b->layout.n_slots / c->n_layers);
    size_t n_inserts = expert_cache_plan_inserts(x->cache, x->inserts, x->n_active);
    expert_cache_limit_inserts(x->cache, b->params.inserts_per_layer);
    uint64_t *table = x->wave_records;
    memset(table, 0, c->n_experts * sizeof *table);
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->slots[i] != EXPERT_MISS) table[x->active[i]] = slot_at(b, (uint32_t)x->slots[i]);
    }
    f->first = 0;
    f->end = x->first[c->n_experts];
    send_table(b, f, 0);
    run_wave(b, f);
    size_t at = 0;
    for (size_t wave = 1; at < x->n_active; wave++)
        run_missing_wave(b, f, &at, wave, n_inserts);
    cuda_lane_run(b, f->layer, f->span->n_rows, cuda_work_at(b, b->layout.work.pair_down));
}

/* Decoding rows whose experts the host gathers, as many at a time as there are staging records for:
 * all at once where that is so, which can be recorded. */
static void run_gathered(backend_cuda *b, const cuda_span *span, const layer_weights *l,
                         uint32_t layer, bool quantized) {
    const uint32_t at_once = b->layout.n_staging / b->config->n_experts_used;
    cuda_span part = *span;
    for (uint32_t done = 0; done < span->n_rows; done += part.n_rows) {
        part.first_row = span->first_row + done;
        part.n_rows = span->n_rows - done < at_once ? span->n_rows - done : at_once;
        if (!read_choice(b, &part)) return;
        gather_step(b, l, layer);
        cuda_lane_run(b, l, part.n_rows, cuda_work_at(b, b->layout.work.foreign));
        cuda_begin_segment(b);
        run_step(b, &part, l, layer, quantized);
    }
}

static void run_prompt(backend_cuda *b, const cuda_span *s, const layer_weights *l,
                       uint32_t layer, bool quantized, bool shared_quantized) {
    wave_frame f = {.span = s, .layer = l, .quantized = quantized};
    run_sort(b, s);
    run_shared(b, s, l, shared_quantized);
    if (b->experts.cache == NULL) {
        f.records = cuda_ptr(device_row(b, layer));
        f.end = s->n_rows * b->config->n_experts_used;
        run_wave(b, &f);
    } else if (read_choice(b, s)) {
        run_waves(b, &f, layer);
    }
    run_combine(b, s);
}

void cuda_expert_layer(backend *base, const layer_weights *l, uint32_t layer_index,
                       input_forms forms, input_forms shared_forms) {
    backend_cuda *b = (backend_cuda *)base;
    bool quantized = cuda_wants_act(forms), shared_quantized = cuda_wants_act(shared_forms);
    for (size_t i = 0; i < b->n_spans; i++) {
        const cuda_span *s = &b->spans[i];
        if (b->experts.cache == NULL)
            b->experts.lookups += s->n_rows * b->config->n_experts_used;
        if (!s->decodes) {
            run_prompt(b, s, l, layer_index, quantized, shared_quantized);
        } else if (b->experts.cache != NULL && !b->experts.fetches) {
            run_gathered(b, s, l, layer_index, quantized || shared_quantized);
        } else {
            if (b->experts.fetches) cuda_fetch_layer(b, l, layer_index, chosen_rows(b, s));
            run_step(b, s, l, layer_index, quantized || shared_quantized);
        }
    }
}

/* Memory. */

static status init_events(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    const cuda_driver *d = b->driver;
    status rc = CUDA_CALL(d, err, cuEventCreate, &x->arrived, CUDA_EVENT_NO_TIMING);
    for (size_t i = 0; i < 2 && rc == STATUS_OK; i++)
        rc = CUDA_CALL(d, err, cuEventCreate, &x->wave_done[i], CUDA_EVENT_NO_TIMING);
    for (size_t i = 0; i < CUDA_RECORD_BUFFERS && rc == STATUS_OK; i++)
        rc = CUDA_CALL(d, err, cuEventCreate, &x->staging.used[i], CUDA_EVENT_NO_TIMING);
    return rc;
}

status cuda_pin(backend_cuda *b, void *out, size_t bytes, error *err) {
    void *at = NULL;
    status rc = CUDA_CALL(b->driver, err, cuMemHostAlloc, &at, bytes, 0);
    memcpy(out, &at, sizeof at);
    if (rc == STATUS_OK) b->pinned_bytes += bytes;
    return rc;
}

static status init_pinned(backend_cuda *b, error *err) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t n = c->n_experts;
    status rc = cuda_pin(b, &x->records, c->n_layers * n * sizeof *x->records, err);
    if (rc == STATUS_OK) {
        rc = cuda_pin(b, &x->wave_records, CUDA_MOST_WAVES * n * sizeof *x->wave_records, err);
    }
    if (rc == STATUS_OK) {
        rc = cuda_pin(b, &x->chosen,
                      (size_t)b->params.max_rows * c->n_experts_used * sizeof *x->chosen, err);
    }
    return rc;
}

/* How long a record's journey takes, once warm. */
static status measure_journey(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    size_t n = b->layout.slot_bytes, n_bytes = 0;
    const unsigned char *records = host_tier_arena(x->host, &n_bytes);
    status rc = STATUS_OK;
    for (int i = 0; i < 2 && rc == STATUS_OK; i++) {
        uint64_t begun = clock_monotonic_ns();
        rc = CUDA_CALL(b->driver, err, cuMemcpyHtoD, cuda_part_at(b, CUDA_PART_STAGING),
                       records, CUDA_RECORD_BUFFERS * n);
        x->ship_ns = (double)(clock_monotonic_ns() - begun) / CUDA_RECORD_BUFFERS;
    }
    return rc;
}

static status init_lane(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    if (b->params.lane == CPU_LANE_OFF) return STATUS_OK;
    size_t hidden = (size_t)b->params.max_rows * b->config->n_embd * sizeof(float);
    status rc = cuda_pin(b, &x->hidden, hidden, err);
    if (rc == STATUS_OK) rc = measure_journey(b, err);
    if (rc == STATUS_OK) rc = cuda_lane_open(&x->lane, b, err);
    return rc;
}

static void tell_filled(void *context, uint64_t n_bytes) {
    backend_cuda *b = context;
    uint64_t before = b->loaded_bytes - b->filled_bytes;
    b->filled_bytes = n_bytes;
    cuda_tell_progress(b, before + n_bytes - b->loaded_bytes);
}

/* Memory of the tier's own counts as resident; the driver pins it where it lies. */
static void pin_arena(backend_cuda *b) {
    size_t n_bytes = 0;
    unsigned char *arena = host_tier_arena(b->experts.host, &n_bytes);
    error why = {0};
    if (CUDA_CALL(b->driver, &why, cuMemHostRegister, arena, n_bytes, 0) == STATUS_OK)
        b->experts.registered = arena;
    else
        log_warn("host-tier", "%s: records are not pinned, copies are slower", why.text);
}

/* All records, or n_records of them above the disk. */
static status open_host_tier(backend_cuda *b, uint32_t n_records, error *err) {
    cuda_experts *x = &b->experts;
    size_t n_all = (size_t)b->config->n_layers * b->config->n_experts;
    status rc = STATUS_OK;
    if (n_records >= n_all) rc = cuda_pin(b, &x->all, n_all * b->layout.slot_bytes, err);
    const host_tier_params params = {.weights = b->weights,
                                     .n_experts = b->config->n_experts,
                                     .n_records = n_records,
                                     .slot_bytes = b->layout.slot_bytes,
                                     .n_loaders = b->params.n_loaders,
                                     .place = cuda_copy_matrix,
                                     .arena = x->all};
    if (rc == STATUS_OK) rc = host_tier_new(&x->host, &params, err);
    if (rc != STATUS_OK) return rc;
    if (x->all != NULL) return host_tier_fill(x->host, tell_filled, b, err);
    pin_arena(b);
    return STATUS_OK;
}

static void close_host_tier(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    if (x->registered != NULL) (void)b->driver->cuMemHostUnregister(x->registered);
    x->registered = NULL;
    host_tier_free(x->host);
    x->host = NULL;
}

/* Every expert has a slot: records pass through a small tier on their way. */
static status fill_all_slots(backend_cuda *b, error *err) {
    status rc = open_host_tier(b, LOADING_RECORDS, err);
    if (rc == STATUS_OK) rc = cuda_upload_experts(b, err);
    memset(b->experts.staging.held, 0, sizeof b->experts.staging.held);
    model_stats loaded = {0};
    model_stats_add_host(&loaded, b->experts.host);
    b->load_disk_bytes += loaded.disk_bytes;
    close_host_tier(b);
    return rc;
}

/* No first prompt meets empty slots: what it would stream is here by the share of the slots. */
static status fill_slots(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    size_t n = expert_cache_fill(x->cache), bytes = n * b->layout.slot_bytes;
    size_t layer_bytes = b->config->n_experts * b->layout.slot_bytes;
    status rc = STATUS_OK;
    for (uint32_t i = 0; i < b->config->n_layers && rc == STATUS_OK; i++) {
        rc = CUDA_CALL(b->driver, err, cuMemcpyHtoD, slot_at(b, (uint32_t)(i * n)),
                       x->all + i * layer_bytes, bytes);
        x->bytes_moved += bytes;
    }
    return rc;
}

status cuda_experts_init(backend_cuda *b, error *err) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t n = c->n_experts;
    if (n > ROUTER_MAX_EXPERTS || c->n_experts_used > ROUTER_MAX_CHOSEN) {
        return error_set(err, STATUS_BAD_INPUT,
                         "cuda backend: %u of %zu experts a layer, at most %d of %d",
                         c->n_experts_used, n, ROUTER_MAX_CHOSEN, ROUTER_MAX_EXPERTS);
    }
    x->active = calloc(n, sizeof *x->active);
    x->counts = calloc(n, sizeof *x->counts);
    x->late = calloc(n, sizeof *x->late);
    x->first = calloc(n + 1, sizeof *x->first);
    x->slots = calloc(n, sizeof *x->slots);
    x->inserts = calloc(n, sizeof *x->inserts);
    x->on_cpu = calloc(n, sizeof *x->on_cpu);
    x->missing = calloc(n, sizeof *x->missing);
    if (x->missing == NULL || x->active == NULL || x->counts == NULL || x->late == NULL ||
        x->first == NULL || x->slots == NULL || x->inserts == NULL || x->on_cpu == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "cuda backend: no memory for %zu experts", n);
    }
    status rc = init_events(b, err);
    if (rc == STATUS_OK) rc = init_pinned(b, err);
    if (rc != STATUS_OK) return rc;
    size_t n_all = (size_t)c->n_layers * n;
    if (b->layout.n_slots == n_all) return fill_all_slots(b, err);
    uint32_t least = c->n_experts + CUDA_RECORD_BUFFERS, wish = b->params.host_records;
    if (cuda_pins_all(b)) wish = (uint32_t)n_all;
    rc = open_host_tier(b, wish > least ? wish : least, err);
    if (rc == STATUS_OK) rc = init_lane(b, err);
    if (rc == STATUS_OK) rc = cuda_fetch_init(b, err);
    if (rc != STATUS_OK) return rc;
    rc = expert_cache_new(&x->cache, c->n_layers, c->n_experts, c->n_experts_used,
                          b->layout.n_slots, b->params.inserts_per_layer, err);
    return rc == STATUS_OK && x->all != NULL ? fill_slots(b, err) : rc;
}

void cuda_experts_release(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    const cuda_driver *d = b->driver;
    cuda_lane_close(x->lane);
    close_host_tier(b);
    void *pinned[] = {x->notes,  x->tables,       x->hidden, x->all,
                      x->chosen, x->wave_records, x->records};
    for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++) {
        if (pinned[i] != NULL) (void)d->cuMemFreeHost(pinned[i]);
    }
    for (size_t i = 0; i < CUDA_RECORD_BUFFERS; i++) {
        if (x->staging.used[i] != NULL) (void)d->cuEventDestroy(x->staging.used[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        if (x->wave_done[i] != NULL) (void)d->cuEventDestroy(x->wave_done[i]);
    }
    if (x->arrived != NULL) (void)d->cuEventDestroy(x->arrived);
    expert_cache_free(x->cache);
    free(x->missing);
    free(x->on_cpu);
    free(x->inserts);
    free(x->slots);
    free(x->first);
    free(x->late);
    free(x->counts);
    free(x->active);
}
