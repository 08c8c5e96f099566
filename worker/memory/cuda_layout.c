#include "worker/memory/cuda_layout.h"

#include "kernels/cuda/experts.h"
#include "kernels/cuda/experts_fetch.h"
#include "kernels/cuda/mixers.h"
#include <string.h>

static uint64_t aligned(uint64_t bytes) {
    return (bytes + CUDA_LAYOUT_ALIGN - 1) / CUDA_LAYOUT_ALIGN * CUDA_LAYOUT_ALIGN;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Backbone. */

typedef struct walker {
    cuda_backbone_visit visit;
    void *context;
    uint64_t at;
} walker;

static void walk_item(walker *k, cuda_backbone_item item) {
    if (item.bytes == 0) return;
    item.offset = k->at;
    k->at += aligned(item.bytes);
    if (k->visit != NULL) k->visit(k->context, &item);
}

static void walk_matrix(walker *k, weight_matrix *m) {
    if (m->data == NULL) return;
    walk_item(k, (cuda_backbone_item){.matrix = m, .bytes = m->row_bytes * m->n_rows});
}

static void walk_vector(walker *k, weight_vector *v, bool transposed) {
    if (v->data == NULL) return;
    walk_item(k, (cuda_backbone_item){
                     .vector = v, .transposed = transposed, .bytes = v->n * sizeof(float)});
}

uint64_t cuda_backbone_walk(model_weights *w, cuda_backbone_visit visit, void *context) {
    walker k = {visit, context, 0};
    walk_matrix(&k, &w->head);
    walk_vector(&k, &w->output_norm, false);
    walk_matrix(&k, &w->block.in);
    walk_vector(&k, &w->block.embedding_norm, false);
    walk_vector(&k, &w->block.hidden_norm, false);
    for (uint32_t i = 0; i < w->n_layers; i++) {
        layer_weights *l = &w->layers[i];
        weight_matrix *matrices[] = {&l->q,  &l->k,     &l->v,      &l->attn_out,   &l->qkv,
                                     &l->z,  &l->alpha, &l->beta,   &l->ssm_out,    &l->gate,
                                     &l->up, &l->down,  &l->router, &l->shared_gate};
        weight_vector *vectors[] = {&l->attn_norm, &l->ffn_norm, &l->q_norm,  &l->k_norm,
                                    &l->dt_bias,   &l->decay,    &l->ssm_norm};
        for (size_t j = 0; j < sizeof matrices / sizeof matrices[0]; j++)
            walk_matrix(&k, matrices[j]);
        for (size_t j = 0; j < sizeof vectors / sizeof vectors[0]; j++)
            walk_vector(&k, vectors[j], false);
        walk_vector(&k, &l->conv, true);
    }
    return k.at;
}

uint64_t cuda_record_bytes(const model_weights *w) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->n_layers; i++)
        bytes = most(bytes, layer_expert_bytes(&w->layers[i]));
    return aligned(bytes);
}

/* Workspace. */

typedef struct cursor {
    uint64_t at;
} cursor;

static uint64_t take(cursor *k, uint64_t bytes) {
    uint64_t at = k->at;
    k->at += aligned(bytes);
    return at;
}

static uint64_t take_floats(cursor *k, uint64_t rows, uint64_t cols) {
    return take(k, rows * cols * sizeof(float));
}

/* Rows of quantized activations; widths that are no multiple of 32 have none. */
static uint64_t take_acts(cursor *k, uint64_t rows, uint64_t cols) {
    return take(k, cols % 32 == 0 ? rows * cuda_act_row_bytes((uint32_t)cols) : 0);
}

static void lay_batch(cuda_layout *out, cursor *k, const model_config *c,
                      const model_weights *weights, const model_params *p) {
    uint64_t rows = p->max_rows, runs = rows < p->n_states ? rows : p->n_states;
    cuda_work *w = &out->work;
    out->n_decode = (uint32_t)runs;
    out->n_pages_listed = (uint32_t)(runs * p->n_pages + rows);
    w->runs = take(k, runs * sizeof(batch_run));
    w->row_run = take(k, rows * sizeof(uint32_t));
    w->pages = take(k, out->n_pages_listed * sizeof(uint32_t));
    w->output_rows = take(k, p->max_outputs * sizeof(uint32_t));
    w->best = take(k, p->max_outputs * sizeof(uint64_t));
    w->fetch = take(k, sizeof(fetch_step));
    w->embed_ids = take(k, rows * sizeof(int32_t));
    w->embed_rows = take(k, rows * weights->embedding.row_bytes);
    w->inv_freq = take_floats(k, c->n_rot / 2, 1);
    if (!c->moe) return;
    w->routed = take(k, (uint64_t)c->n_layers * rows * c->n_experts_used * sizeof(int32_t));
}

/* What the rows of a layer go through on their way to the residual.  Full attention and the delta
 * net are never at work together, so they begin at the same place. */
static void lay_mixers(cuda_layout *out, cursor *k, const model_config *c,
                       const model_params *p) {
    uint64_t rows = p->max_rows;
    cuda_work *w = &out->work;
    uint64_t q_dim = (uint64_t)c->n_heads * c->head_dim;
    uint64_t kv_dim = (uint64_t)c->n_kv_heads * c->head_dim;
    uint64_t mixed = most(q_dim, c->inner_dim);
    uint64_t attention = attention_workspace_bytes(
        out->n_decode, c->n_heads, c->head_dim, attention_splits(p->n_pages * KV_PAGE_TOKENS));
    uint64_t delta = delta_net_workspace_bytes((uint32_t)rows, out->n_decode, c->n_value_heads);
    w->mixed = take_floats(k, rows, mixed);
    w->mixed_act = take_acts(k, rows, mixed);
    w->mixer_space = take(k, most(attention, delta));
    uint64_t begin = k->at;
    w->q = take_floats(k, rows, 2 * q_dim);
    w->k = take_floats(k, rows, kv_dim);
    w->v = take_floats(k, rows, kv_dim);
    uint64_t end = k->at;
    k->at = begin;
    w->u = take_floats(k, rows, c->conv_dim);
    w->convolved = take_floats(k, rows, c->conv_dim);
    w->z = take_floats(k, rows, c->inner_dim);
    w->alpha = take_floats(k, rows, c->n_value_heads);
    w->beta = take_floats(k, rows, c->n_value_heads);
    w->delta_raw = take_floats(k, rows, c->inner_dim);
    k->at = most(k->at, end);
}

static void lay_dense(cuda_layout *out, cursor *k, const model_config *c,
                      const model_params *p) {
    uint64_t cols = c->moe ? c->n_ff_shared : c->n_ff;
    out->work.gated = take_floats(k, p->max_rows, cols);
    out->work.gated_up = take_floats(k, p->max_rows, cols);
    out->work.gated_act = take_acts(k, p->max_rows, cols);
}

/* What is made before the experts begin, or by others than the stream of the kernels. */
static void lay_choice(cuda_layout *out, cursor *k, const model_config *c,
                       const model_params *p) {
    uint64_t rows = p->max_rows, used = c->n_experts_used, pairs = rows * used;
    cuda_work *w = &out->work;
    w->router_logits = take_floats(k, rows, c->n_experts);
    w->shared_logit = take_floats(k, rows, 1);
    w->chosen = take(k, pairs * sizeof(int32_t));
    w->weights = take_floats(k, pairs, 1);
    w->places = take(k, pairs * sizeof(uint64_t));
    w->expert_turns = take(k, EXPERTS_COMING_PAIRS * sizeof(expert_turn));
    w->fetch_notes = take(k, (uint64_t)c->n_layers * FETCH_MAX_PAIRS * sizeof(fetch_note));
    w->records = take(k, (uint64_t)c->n_layers * c->n_experts * sizeof(uint64_t));
    w->slot_of = take(k, (uint64_t)c->n_layers * c->n_experts * sizeof(int32_t));
    w->slot_owner = take(k, out->n_slots * sizeof(uint32_t));
    w->slot_step = take(k, out->n_slots * sizeof(uint32_t));
    w->wave_records = take(k, CUDA_MOST_WAVES * (uint64_t)c->n_experts * sizeof(uint64_t));
    w->pair_row = take(k, pairs * sizeof(uint32_t));
    w->pair_out = take(k, pairs * sizeof(uint32_t));
    w->group_first = take(k, (c->n_experts + 1) * sizeof(uint32_t));
    w->tiles = take(k, matmul_max_tiles((uint32_t)pairs, c->n_experts) * sizeof(matmul_tile));
    w->n_tiles = take(k, sizeof(uint32_t));
    w->foreign = take_floats(k, out->n_decode * used, c->n_embd);
}

static void lay_experts(cuda_layout *out, cursor *k, const model_config *c,
                        const model_params *p) {
    uint64_t rows = p->max_rows, used = c->n_experts_used, pairs = rows * used;
    cuda_work *w = &out->work;
    w->pair_gate = take_floats(k, pairs, c->n_ff_expert);
    w->pair_up = take_floats(k, pairs, c->n_ff_expert);
    w->pair_act = take_acts(k, pairs, c->n_ff_expert);
    w->pair_down = take_floats(k, pairs, c->n_embd);
    w->shared_down = take_floats(k, rows, c->n_embd);
    uint64_t step_rows = out->n_decode * (used + 1);
    uint64_t step_cols = most(c->n_ff_expert, c->n_ff_shared);
    w->step_h = take_floats(k, step_rows, step_cols);
    w->step_h_act = take_acts(k, step_rows, step_cols);
}

/* The mixers' part and the feed-forward part of a layer begin at the same place: one's results
 * are in the residual before the other begins. */
static uint64_t lay_work(cuda_layout *out, const model_config *c, const model_weights *weights,
                         const model_params *p) {
    cursor work = {0}, *k = &work;
    cuda_work *w = &out->work;
    lay_batch(out, k, c, weights, p);
    w->residual = take_floats(k, p->max_rows, c->n_embd);
    w->hidden = take_floats(k, p->max_rows, c->n_embd);
    w->hidden_act = take_acts(k, p->max_rows, c->n_embd);
    w->final = take_floats(k, p->max_outputs, c->n_embd);
    w->final_act = take_acts(k, p->max_outputs, c->n_embd);
    w->turns = take(k, (uint64_t)out->n_decode * c->n_key_heads * sizeof(uint32_t));
    if (weights->block.in.data != NULL) {
        w->before = take_floats(k, p->max_rows, c->n_embd);
        w->pair = take_floats(k, p->max_rows, 2 * (uint64_t)c->n_embd);
        w->pair_rows_act = take_acts(k, p->max_rows, 2 * (uint64_t)c->n_embd);
    }
    if (c->moe) lay_choice(out, k, c, p);
    uint64_t begin = k->at;
    lay_mixers(out, k, c, p);
    uint64_t end = k->at;
    k->at = begin;
    lay_dense(out, k, c, p);
    if (c->moe) lay_experts(out, k, c, p);
    return most(k->at, end);
}

void cuda_layout_make(cuda_layout *out, const model_config *c, const model_weights *w,
                      const model_params *p) {
    memset(out, 0, sizeof *out);
    model_weights view = *w; /* the walk writes nothing without a visitor */
    uint64_t n_all = (uint64_t)c->n_layers * c->n_experts;
    if (c->moe) {
        out->slot_bytes = cuda_record_bytes(w);
        out->n_slots = p->n_slots > 0 ? p->n_slots : (uint32_t)n_all;
        out->n_staging = out->n_slots < n_all ? CUDA_STAGING_SLOTS : 0;
    }
    uint64_t work_bytes = lay_work(out, c, w, p);
    uint64_t page =
        kv_layer_bytes((uint32_t)p->kv, c->n_kv_heads, c->head_dim) * c->n_full_layers;
    out->part_bytes[CUDA_PART_BACKBONE] = cuda_backbone_walk(&view, NULL, NULL);
    out->part_bytes[CUDA_PART_SLOTS] = out->n_slots * out->slot_bytes;
    out->part_bytes[CUDA_PART_STAGING] = out->n_staging * out->slot_bytes;
    out->part_bytes[CUDA_PART_PAGES] = aligned(p->n_pages * page);
    out->part_bytes[CUDA_PART_STATES] = aligned(p->n_states * model_config_state_bytes(c));
    out->part_bytes[CUDA_PART_WORKSPACE] = work_bytes;
    out->part_bytes[CUDA_PART_LOGITS] =
        aligned((uint64_t)p->max_outputs * c->n_vocab * sizeof(float));
    for (int i = 0; i < CUDA_PART_COUNT; i++) {
        out->part_offset[i] = out->total_bytes;
        out->total_bytes += out->part_bytes[i];
    }
}
