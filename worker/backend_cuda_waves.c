/* backend_cuda_waves.c - prompt rows' experts: grouped products, wave by wave.
 *
 * Wave 0 computes what is in slots while wave 1 is on its way; each wave brings
 * CUDA_WAVE_EXPERTS records, into slots for experts that the last rows use, else into one of
 * the two staging halves; every missing record travels once.  The CPU lane computes its share
 * while records travel and waves run (backend_cuda_lane.c).  While the GPU is at the mixers of
 * the next layer, the bus brings what that one's rows used most in the prompt before, ahead of its
 * router (backend_cuda_ahead.c).  A wave computes whole outputs of
 * pairs (row, rank), which are added in rank order at the end, so bits do not depend on where
 * the GPU has an expert.
 */
#include "worker/backend_cuda_experts.h"

#include "common/clock.h"
#include "kernels/cuda/experts.h"
#include <string.h>

typedef struct wave_frame {
    const cuda_span *span;
    const layer_weights *layer;
    bool quantized;          /* the rows that down reads */
    uint32_t first, end;     /* places of the lists that the wave's experts have */
    const uint64_t *records; /* on the device */
} wave_frame;

static void run_sort(backend_cuda *b, const cuda_span *s) {
    const cuda_work *w = &b->layout.work;
    const experts_sort_args args = {.experts = cuda_chosen_rows(b, s),
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
    uint64_t up_at = cuda_expert_matrix_bytes(&l->exp_gate),
             down_at = up_at + cuda_expert_matrix_bytes(&l->exp_up);
    float *gate = cuda_rows(b, w->pair_gate, 0, 0), *up = cuda_rows(b, w->pair_up, 0, 0);
    void *acts = f->quantized ? cuda_acts(b, w->pair_act, 0, c->n_ff_expert) : NULL;
    matmul_args in;
    memset(&in, 0, sizeof in);
    in.x = cuda_hidden_rows(b, f->span);
    in.act = cuda_hidden_acts(b, f->span);
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
    if (cuda_can_gate(&l->gate, &l->up, cuda_hidden_acts(b, s), act)) {
        cuda_multiply_gated(b, &l->gate, &l->up, cuda_hidden_acts(b, s), act, s->n_rows);
    } else {
        const cuda_product in[] = {{&l->gate, gate, n_ff, false}, {&l->up, up, n_ff, false}};
        cuda_multiply(b, false, in, 2, cuda_hidden_rows(b, s), cuda_hidden_acts(b, s),
                      s->n_rows);
        cuda_swiglu(b, gate, up, gate, act, s->n_rows, n_ff);
    }
    const cuda_product out = {&l->down, cuda_rows(b, w->shared_down, 0, 0), b->config->n_embd,
                              false};
    cuda_multiply(b, false, &out, 1, gate, act, s->n_rows);
}

/* records (NULL: every output is on the device): 0 for experts of the CPU lane. */
static void run_combine(backend_cuda *b, const cuda_span *s, const uint64_t *records) {
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    float *x = cuda_rows(b, w->residual, s->first_row, c->n_embd);
    const combine_args args = {
        .base = {.x = x,
                 .y = cuda_rows(b, w->pair_down, 0, 0),
                 .weights = cuda_weight_rows(b, s),
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
        .records = records,
        .experts = cuda_chosen_rows(b, s),
        .foreign = records != NULL ? cuda_lane_outputs(b) : NULL,
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

/* A table to the device; every wave of a layer has one of its own, so that nothing waits for
 * their reader. */
static const uint64_t *send_table(backend_cuda *b, size_t wave) {
    size_t n = b->config->n_experts;
    cuda_pointer to =
        cuda_work_at(b, b->layout.work.wave_records) + wave * n * sizeof(uint64_t);
    CHECK(wave < CUDA_MOST_WAVES);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, to, b->experts.wave_records + wave * n,
                  n * sizeof(uint64_t), b->compute);
    return cuda_ptr(to);
}

static uint64_t *clear_table(const backend_cuda *b, size_t wave) {
    size_t n = b->config->n_experts;
    uint64_t *table = b->experts.wave_records + wave * n;
    memset(table, 0, n * sizeof *table);
    return table;
}

/* A wave of experts that are in slots; without records when there are none. */
static wave_frame list_present(backend_cuda *b, const wave_frame *base) {
    const cuda_experts *x = &b->experts;
    uint64_t *table = clear_table(b, 0);
    wave_frame f = *base;
    size_t n = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->slots[i] < 0) continue;
        table[x->active[i]] = cuda_slot_at(b, (uint32_t)x->slots[i]);
        n++;
    }
    f.end = x->first[b->config->n_experts];
    f.records = n > 0 ? send_table(b, 0) : NULL;
    return f;
}

/* The same of those whose records came ahead, into staging. */
static wave_frame list_ahead(backend_cuda *b, const wave_frame *base) {
    const cuda_experts *x = &b->experts;
    uint64_t *table = clear_table(b, CUDA_MOST_WAVES - 2);
    wave_frame f = *base;
    f.first = UINT32_MAX;
    for (size_t i = 0; i < x->n_active; i++) {
        int32_t e = x->active[i];
        if (x->slots[i] > EXPERT_AHEAD) continue;
        table[e] = cuda_staging_at(b, (uint32_t)(EXPERT_AHEAD - x->slots[i]));
        if (f.first == UINT32_MAX) f.first = x->first[e];
        f.end = x->first[e + 1];
    }
    f.records = f.first != UINT32_MAX ? send_table(b, CUDA_MOST_WAVES - 2) : NULL;
    return f;
}

/* Missing experts as they are sent: first those that come into slots, which wait for nothing, then
 * those of the staging records, in halves by turns. */
typedef struct shipment {
    size_t n_inserts;
    size_t at; /* next of active[] */
    bool staged;
    size_t wave;   /* its table */
    uint32_t half; /* of a staged wave */
} shipment;

static void ship_expert(backend_cuda *b, uint32_t layer, int32_t expert,
                        const expert_insert *insert, cuda_pointer to) {
    if (insert == NULL) {
        cuda_ship(b, layer, (uint32_t)expert, to);
        return;
    }
    cuda_ship_to_slot(b, layer, insert, to);
    expert_cache_commit(b->experts.cache, insert);
}

/* Send up to CUDA_WAVE_EXPERTS of what is left, of one kind; returns how many. */
static uint32_t ship_kind(backend_cuda *b, wave_frame *f, shipment *k) {
    const cuda_experts *x = &b->experts;
    uint32_t layer = (uint32_t)(f->layer - b->weights->layers), n = 0;
    uint64_t *table = clear_table(b, k->wave);
    f->first = UINT32_MAX;
    f->end = 0;
    for (; k->at < x->n_active && n < CUDA_WAVE_EXPERTS; k->at++) {
        int32_t e = x->active[k->at];
        if (x->slots[k->at] != EXPERT_MISS || x->on_cpu[k->at]) continue;
        const expert_insert *insert = insert_of(x, k->n_inserts, e);
        if ((insert == NULL) != k->staged) continue;
        if (k->staged && n == 0)
            (void)CUDA_DO(b, cuStreamWaitEvent, b->h2d, x->wave_done[k->half], 0);
        table[e] = insert != NULL ? cuda_slot_at(b, (uint32_t)insert->slot)
                                  : cuda_staging_at(b, k->half * CUDA_WAVE_EXPERTS + n);
        ship_expert(b, layer, e, insert, table[e]);
        if (n++ == 0) f->first = x->first[e];
        f->end = x->first[e + 1];
    }
    return n;
}

static uint32_t ship_wave(backend_cuda *b, wave_frame *f, shipment *k) {
    k->wave++;
    k->half ^= k->staged;
    uint32_t n = ship_kind(b, f, k);
    if (n > 0 || k->staged) return n;
    k->staged = true;
    k->at = 0;
    return ship_kind(b, f, k);
}

/* Compute what was sent last. */
static void run_shipped(backend_cuda *b, wave_frame *f, const shipment *k) {
    cuda_await_shipped(b);
    f->records = send_table(b, k->wave);
    run_wave(b, f);
    if (k->staged) (void)CUDA_DO(b, cuEventRecord, b->experts.wave_done[k->half], b->compute);
}

/* Which missing experts the lane takes and which of the others come into slots; returns how many do.
 * The slots are the layer's before: the host has seen its choice, so that one is computed. */
static size_t share_out(backend_cuda *b, const cuda_span *s, uint32_t layer) {
    cuda_experts *x = &b->experts;
    cuda_await_filled(b, layer);
    expert_cache_prompt(x->cache, layer, x->active, x->n_active, x->counts, x->slots);
    for (size_t i = 0; i < x->n_active; i++) {
        uint32_t e = (uint32_t)x->active[i], n_rows = x->first[e + 1] - x->first[e];
        expert_cache_add_uses(x->cache, layer, e, n_rows - x->counts[i]);
    }
    cuda_begin_reads(b, layer);
    cuda_ahead_find(b, layer);
    bool keeps_none = b->params.lane == CPU_LANE_ALL;
    cuda_lane_choose(b, s, false, x->n_active);
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->on_cpu[i] || keeps_none)
            expert_cache_pass_over(x->cache, (uint32_t)x->active[i]);
    }
    expert_cache_limit_inserts(x->cache, b->layout.n_slots / b->config->n_layers);
    size_t n_inserts = expert_cache_plan_inserts(x->cache, x->inserts, x->n_active);
    expert_cache_limit_inserts(x->cache, b->params.inserts_per_layer);
    return n_inserts;
}

/* 0 for the experts of the lane; NULL when there are none. */
static const uint64_t *table_of_lane(backend_cuda *b) {
    const cuda_experts *x = &b->experts;
    if (x->n_on_cpu == 0) return NULL;
    uint64_t *table = clear_table(b, CUDA_MOST_WAVES - 1);
    for (size_t i = 0; i < x->n_active; i++)
        table[x->active[i]] = !x->on_cpu[i];
    return send_table(b, CUDA_MOST_WAVES - 1);
}

/* What came ahead is computed; records that the cache takes go on to slots. */
static void run_ahead(backend_cuda *b, const wave_frame *f, size_t n_inserts) {
    cuda_experts *x = &b->experts;
    const uint64_t *table = x->wave_records + (CUDA_MOST_WAVES - 2) * b->config->n_experts;
    cuda_ahead_await(b);
    run_wave(b, f);
    for (size_t i = 0; i < n_inserts; i++) {
        const expert_insert *insert = &x->inserts[i];
        cuda_pointer from = table[insert->expert];
        if (from == 0) continue;
        (void)CUDA_DO(b, cuMemcpyDtoDAsync, cuda_slot_at(b, (uint32_t)insert->slot), from,
                      layer_expert_bytes(f->layer), b->compute);
        expert_cache_commit(x->cache, insert);
    }
    for (int half = 0; half < 2; half++)
        (void)CUDA_DO(b, cuEventRecord, x->wave_done[half], b->compute);
}

/* Small tables go before records of two megabytes.  The bus begins at once; then the GPU has what needs none of it, and the CPU its share when
 * everything else is on its way, the first records of the next layer, too. */
static void run_waves(backend_cuda *b, const wave_frame *f, uint32_t layer,
                      bool shared_quantized) {
    const cuda_experts *x = &b->experts;
    size_t sum = 0;
    uint64_t begun = clock_monotonic_ns();
    shipment k = {.n_inserts = share_out(b, f->span, layer), .wave = 1};
    wave_frame shipped = *f, present = list_present(b, f), ahead = list_ahead(b, f);
    const uint64_t *of_lane = table_of_lane(b);
    uint32_t n = ship_kind(b, &shipped, &k); /* slots: staging may hold what came ahead */
    cuda_lane_bring_rows(b, f->span);
    run_sort(b, f->span);
    if (ahead.records != NULL) run_ahead(b, &ahead, k.n_inserts);
    run_shared(b, f->span, f->layer, shared_quantized);
    if (present.records != NULL) run_wave(b, &present);
    if (n == 0) n = ship_wave(b, &shipped, &k);
    for (; n > 0; n = ship_wave(b, &shipped, &k)) {
        run_shipped(b, &shipped, &k);
        sum += n;
    }
    cuda_ahead_ship(b, f->span, layer);
    if (x->all != NULL) cuda_lane_enqueued(b, sum, (double)(clock_monotonic_ns() - begun));
    cuda_lane_run(b, f->layer, f->span->n_rows);
    run_combine(b, f->span, of_lane);
}

/* What came ahead began to when the layer before had its own records. */
static void watch_ahead(backend_cuda *b, uint32_t layer) {
    cuda_experts *x = &b->experts;
    float ms = 0;
    x->n_coming = x->n_ahead > 0 && x->ahead_layer == layer ? x->n_ahead : 0;
    if (x->n_coming == 0 || b->failed != STATUS_OK ||
        b->driver->cuEventElapsedTime(&ms, x->arrived, x->routed) != CUDA_OK)
        x->n_coming = 0;
    x->since_arrived_ns = (double)ms * 1e6;
}

void cuda_run_prompt(backend_cuda *b, const cuda_span *s, const layer_weights *l,
                     uint32_t layer, bool quantized, bool shared_quantized) {
    wave_frame f = {.span = s, .layer = l, .quantized = quantized};
    if (b->experts.cache != NULL) {
        (void)CUDA_DO(b, cuEventRecord, b->experts.routed, b->compute);
        if (!cuda_read_choice(b, s)) return;
        watch_ahead(b, layer);
        run_waves(b, &f, layer, shared_quantized);
        return;
    }
    run_sort(b, s);
    run_shared(b, s, l, shared_quantized);
    f.records = cuda_ptr(cuda_records_row(b, layer));
    f.end = s->n_rows * b->config->n_experts_used;
    run_wave(b, &f);
    run_combine(b, s, NULL);
}
