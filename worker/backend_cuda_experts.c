/* backend_cuda_experts.c - routed experts on the GPU: the router's choice, and decoding steps.
 *
 * Where every expert has a slot, nothing waits for the host.  Otherwise the host reads the
 * router's choice, asks the cache, and ships what is missing over the stream h2d:
 *
 *   decoding rows   where all records are pinned the GPU fetches (backend_cuda_fetch.c); else
 *                   missing records go to slots (as many as the cache lets in) or to the
 *                   staging records behind them; then two launches do all experts
 *   prompt rows     wave by wave (backend_cuda_waves.c)
 *
 * Bits do not depend on where an expert lies.
 */
#include "worker/backend_cuda_experts.h"

#include "kernels/cuda/experts.h"
#include <string.h>

enum { LATE_ROWS = 64 };

/* A step waits so long for the CPU lane before it fails: far more than any layer takes, and less
 * than a card that drives a display lets a kernel run. */
static const uint64_t LANE_LIMIT_NS = 3000000000u;

/* Router and its choice. */

const float *cuda_hidden_rows(const backend_cuda *b, const cuda_span *s) {
    return cuda_rows(b, b->layout.work.hidden, s->first_row, b->config->n_embd);
}

const void *cuda_hidden_acts(const backend_cuda *b, const cuda_span *s) {
    return b->has_act[INPUT_HIDDEN]
               ? cuda_acts(b, b->layout.work.hidden_act, s->first_row, b->config->n_embd)
               : NULL;
}

int32_t *cuda_chosen_rows(const backend_cuda *b, const cuda_span *s) {
    return (int32_t *)(void *)cuda_rows(b, b->layout.work.chosen, s->first_row,
                                        b->config->n_experts_used);
}

float *cuda_weight_rows(const backend_cuda *b, const cuda_span *s) {
    return cuda_rows(b, b->layout.work.weights, s->first_row, b->config->n_experts_used);
}

/* The host learns what the router chose: distinct experts, ascending, with their rows. */
bool cuda_read_choice(backend_cuda *b, const cuda_span *s) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t n = (size_t)s->n_rows * c->n_experts_used;
    cuda_copy_to_host(b, x->chosen, (cuda_pointer)(uintptr_t)cuda_chosen_rows(b, s),
                      n * sizeof *x->chosen);
    if (s->decodes && cuda_lane_in_steps(b))
        cuda_copy_to_host(b, x->hidden, (cuda_pointer)(uintptr_t)cuda_hidden_rows(b, s),
                          (size_t)s->n_rows * c->n_embd * sizeof(float));
    cuda_end_segment(b);
    if (s->decodes && cuda_lane_in_steps(b)) cuda_lane_wake(b);
    if (!CUDA_DO(b, cuStreamSynchronize, b->compute)) return false;
    if (s->decodes) cuda_lane_wake(b);
    cuda_learn_journeys(b);
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

static uint64_t *mirror_row(const backend_cuda *b, uint32_t layer) {
    return b->experts.records + (size_t)layer * b->config->n_experts;
}

cuda_pointer cuda_records_row(const backend_cuda *b, uint32_t layer) {
    return cuda_work_at(b, b->layout.work.records) +
           (size_t)layer * b->config->n_experts * sizeof(uint64_t);
}

/* The table of a layer as the cache has it; experts elsewhere are added by the caller. */
static uint64_t *rebuild_row(const backend_cuda *b, uint32_t layer) {
    uint64_t *row = mirror_row(b, layer);
    for (uint32_t e = 0; e < b->config->n_experts; e++) {
        int32_t slot = expert_cache_find(b->experts.cache, layer, e);
        row[e] = slot != EXPERT_MISS ? cuda_slot_at(b, (uint32_t)slot) : 0;
    }
    return row;
}

/* Which missing experts the lane takes and which come into slots; returns how many do.  What the
 * lane has and the cache gets all the same is kept for cuda_fill(). */
static size_t plan_step(backend_cuda *b, const cuda_span *s, uint32_t layer) {
    cuda_experts *x = &b->experts;
    cuda_await_filled(b, layer);
    expert_cache_layer(x->cache, layer, x->active, x->n_active, x->counts, x->slots);
    cuda_begin_reads(b, layer);
    cuda_lane_choose(b, s, b->params.lane == CPU_LANE_ALL, b->layout.n_staging);
    int32_t filling = cuda_lane_fills(b);
    for (size_t i = 0; i < x->n_active; i++) {
        int32_t e = x->active[i];
        if (x->on_cpu[i] && e != filling) expert_cache_pass_over(x->cache, (uint32_t)e);
    }
    size_t n_inserts = expert_cache_plan_inserts(x->cache, x->inserts, x->n_active), n = 0;
    x->fills = false;
    for (size_t i = 0; i < n_inserts; i++) {
        const expert_insert insert = x->inserts[i];
        if (filling == (int32_t)insert.expert) {
            x->fills = true;
            x->fill = insert;
        } else {
            expert_cache_commit(x->cache, &insert);
            x->inserts[n++] = insert;
        }
    }
    return n;
}

/* The layer's table goes to the device before records that would hold it up. */
static uint64_t *send_places(backend_cuda *b, uint32_t layer) {
    const cuda_experts *x = &b->experts;
    uint64_t *row = rebuild_row(b, layer);
    uint32_t n_staged = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        int32_t e = x->active[i];
        if (row[e] != 0 || x->on_cpu[i]) continue;
        CHECK(n_staged < b->layout.n_staging);
        row[e] = cuda_staging_at(b, n_staged++);
    }
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, cuda_records_row(b, layer), row,
                  b->config->n_experts * sizeof *row, b->compute);
    return row;
}

/* All experts of decoding rows to slots or staging, whose records are enough, or to the lane. */
static void gather_step(backend_cuda *b, const cuda_span *s, uint32_t layer) {
    const cuda_experts *x = &b->experts;
    size_t n_shipped = plan_step(b, s, layer);
    const uint64_t *row = send_places(b, layer);
    for (size_t i = 0; i < n_shipped; i++)
        cuda_ship_to_slot(b, layer, &x->inserts[i],
                          cuda_slot_at(b, (uint32_t)x->inserts[i].slot));
    for (size_t i = 0; i < x->n_active; i++) {
        int32_t e = x->active[i];
        if (x->on_cpu[i] || row[e] < cuda_staging_at(b, 0) ||
            row[e] >= cuda_staging_at(b, b->layout.n_staging))
            continue;
        cuda_ship(b, layer, (uint32_t)e, row[e]);
        n_shipped++;
    }
    if (n_shipped > 0) cuda_await_shipped(b);
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

uint64_t cuda_expert_matrix_bytes(const weight_experts *w) {
    return w->first.row_bytes * w->first.n_rows;
}

static bool is_common(const backend_cuda *b, const layer_weights *l, const void *act) {
    const experts_up_args up = {.act = act,
                                .gate = step_matrix(&l->exp_gate, &l->gate, 0),
                                .up = step_matrix(&l->exp_up, &l->up, 0),
                                .n_cols = b->config->n_embd,
                                .n_ff_shared = b->config->n_ff_shared};
    return experts_up_is_common(&up);
}

bool cuda_comes_in_turns(const backend_cuda *b, const layer_weights *l) {
    return b->params.activations == ACTIVATIONS_INT8 && is_common(b, l, l);
}

bool cuda_brings(const backend_cuda *b, const cuda_span *s, const layer_weights *l) {
    return b->experts.fetches && s->n_rows <= FETCH_MAX_ROWS &&
           is_common(b, l, cuda_hidden_acts(b, s));
}

uint64_t *cuda_places_row(const backend_cuda *b, const cuda_span *s) {
    return (uint64_t *)cuda_ptr(cuda_work_at(b, b->layout.work.places)) +
           (size_t)s->first_row * b->config->n_experts_used;
}

static void set_coming(const backend_cuda *b, const layer_weights *l, uint32_t layer,
                       uint64_t down_at, experts_up_args *up) {
    size_t records = (size_t)layer * b->config->n_experts;
    up->turns = cuda_ptr(cuda_work_at(b, b->layout.work.expert_turns));
    up->source = b->experts.all + records * b->layout.slot_bytes;
    up->slot_bytes = b->layout.slot_bytes;
    up->down_offset = down_at;
    up->down_bytes = layer_expert_bytes(l) - down_at;
    if (b->experts.box == NULL) return;
    up->layer = layer;
    up->box = b->experts.box;
    up->outputs = cuda_lane_outputs(b);
    up->foreign = cuda_rows(b, b->layout.work.foreign, 0, 0);
    up->step = cuda_ptr(cuda_work_at(b, b->layout.work.fetch));
    up->limit_ns = LANE_LIMIT_NS;
}

static void run_step(backend_cuda *b, const cuda_span *s, const layer_weights *l,
                     uint32_t layer, bool quantized) {
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    bool placed = b->experts.cache == NULL || b->experts.fetches;
    uint32_t cols = c->n_ff_expert > c->n_ff_shared ? c->n_ff_expert : c->n_ff_shared;
    uint64_t up_at = cuda_expert_matrix_bytes(&l->exp_gate),
             down_at = up_at + cuda_expert_matrix_bytes(&l->exp_up);
    float *h = cuda_rows(b, w->step_h, 0, 0);
    void *h_act = quantized ? cuda_acts(b, w->step_h_act, 0, cols) : NULL;
    experts_up_args up = {.records = cuda_ptr(cuda_records_row(b, layer)),
                          .places = placed ? cuda_places_row(b, s) : NULL,
                          .experts = cuda_chosen_rows(b, s),
                          .x = cuda_hidden_rows(b, s),
                          .act = cuda_hidden_acts(b, s),
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
    if (cuda_brings(b, s, l)) set_coming(b, l, layer, down_at, &up);
    cuda_shape shape;
    cuda_kernel kernel = experts_up_choose(&up, &shape);
    cuda_launch(b, kernel, shape, &up);
    const experts_down_args down = {.records = up.records,
                                    .places = up.places,
                                    .experts = up.experts,
                                    .weights = cuda_weight_rows(b, s),
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

/* As many rows as there are staging records for; all where the lane takes what is too much. */
uint32_t cuda_gathers_at_once(const backend_cuda *b, uint32_t n_rows) {
    uint32_t most = b->layout.n_staging / b->config->n_experts_used;
    return n_rows <= most || cuda_lane_takes_any(b) ? n_rows : most;
}

/* Decoding rows whose experts the host gathers, all at once or in parts, which cannot be recorded. */
static void run_gathered(backend_cuda *b, const cuda_span *span, const layer_weights *l,
                         uint32_t layer, bool quantized) {
    const uint32_t at_once = cuda_gathers_at_once(b, span->n_rows);
    cuda_span part = *span;
    for (uint32_t done = 0; done < span->n_rows; done += part.n_rows) {
        part.first_row = span->first_row + done;
        part.n_rows = span->n_rows - done < at_once ? span->n_rows - done : at_once;
        if (!cuda_read_choice(b, &part)) return;
        gather_step(b, &part, layer);
        cuda_lane_run(b, l, part.n_rows);
        cuda_lane_send(b, cuda_work_at(b, b->layout.work.foreign));
        cuda_fill(b, layer);
        cuda_begin_segment(b);
        run_step(b, &part, l, layer, quantized);
    }
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
            cuda_run_prompt(b, s, l, layer_index, quantized, shared_quantized);
        } else if (b->experts.cache != NULL && !b->experts.fetches) {
            run_gathered(b, s, l, layer_index, quantized || shared_quantized);
        } else {
            if (b->experts.fetches && !cuda_brings(b, s, l))
                cuda_fetch_layer(b, l, layer_index, cuda_chosen_rows(b, s));
            run_step(b, s, l, layer_index, quantized || shared_quantized);
            if (b->mode == MODE_PLAIN) cuda_box_serve(b, layer_index + 1);
        }
    }
}
