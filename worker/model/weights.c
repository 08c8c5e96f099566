/* weights.c - tensor names of spec 3.1 and 3.2, with the exact shape of each. */
#include "worker/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mapper {
    const gguf_file *file;
    const model_config *config;
    uint32_t layer; /* in the file; UINT32_MAX: the tensors outside of layers */
    error *err;
    status rc; /* the first failure; later calls do nothing */
} mapper;

static void full_name(const mapper *m, const char *name, char out[96]) {
    if (m->layer == UINT32_MAX)
        (void)snprintf(out, 96, "%s", name);
    else
        (void)snprintf(out, 96, "blk.%u.%s", m->layer, name);
}

static const gguf_tensor *find(const mapper *m, const char *name) {
    char full[96];
    full_name(m, name, full);
    return gguf_find_tensor(m->file, full);
}

static void fail_shape(mapper *m, const gguf_tensor *t, uint64_t ne0, uint64_t ne1,
                       uint64_t ne2) {
    m->rc = error_set(m->err, STATUS_BAD_INPUT,
                      "model tensors: %.*s has ne {%llu, %llu, %llu, %llu}, expected {%llu, "
                      "%llu, %llu, 1}",
                      (int)t->name.length, t->name.bytes, (unsigned long long)t->ne[0],
                      (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                      (unsigned long long)t->ne[3], (unsigned long long)ne0,
                      (unsigned long long)ne1, (unsigned long long)ne2);
}

/* A required tensor of exactly this shape and a type that this build computes with. */
static const gguf_tensor *require(mapper *m, const char *name, uint64_t ne0, uint64_t ne1,
                                  uint64_t ne2) {
    if (m->rc != STATUS_OK) return NULL;
    const gguf_tensor *t = find(m, name);
    if (t == NULL) {
        char full[96];
        full_name(m, name, full);
        m->rc = error_set(m->err, STATUS_BAD_INPUT, "model tensors: %s is missing", full);
        return NULL;
    }
    if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2 || t->ne[3] != 1) {
        fail_shape(m, t, ne0, ne1, ne2);
        return NULL;
    }
    const quant_traits *traits = quant_traits_of(t->type_id);
    if (traits->name == NULL || ne0 % traits->block_values != 0) {
        m->rc =
            error_set(m->err, STATUS_BAD_INPUT,
                      "model tensors: %.*s has type %u with rows of %llu values, which this "
                      "build cannot compute with",
                      (int)t->name.length, t->name.bytes, t->type_id, (unsigned long long)ne0);
        return NULL;
    }
    return t;
}

static void map_matrix(mapper *m, const char *name, weight_matrix *out, uint32_t n_cols,
                       uint32_t n_rows) {
    const gguf_tensor *t = require(m, name, n_cols, n_rows, 1);
    if (t == NULL) return;
    out->type = (quant_type)t->type_id;
    out->n_rows = n_rows;
    out->n_cols = n_cols;
    out->row_bytes = quant_row_bytes(out->type, n_cols);
    out->data = t->data;
}

static void map_table(mapper *m, const char *name, weight_vector *out, uint32_t ne0,
                      uint32_t ne1) {
    const gguf_tensor *t = require(m, name, ne0, ne1, 1);
    if (t == NULL) return;
    if (t->type_id != QUANT_F32) {
        m->rc =
            error_set(m->err, STATUS_BAD_INPUT, "model tensors: %.*s has type %s, expected F32",
                      (int)t->name.length, t->name.bytes, quant_traits_of(t->type_id)->name);
        return;
    }
    out->n = ne0 * ne1;
    out->data = t->data;
}

static void map_vector(mapper *m, const char *name, weight_vector *out, uint32_t n) {
    map_table(m, name, out, n, 1);
}

/* Slab e along ne2 is expert e; row_from is where the matrix starts within it. */
static void map_experts(mapper *m, const char *name, weight_experts *out, uint32_t n_cols,
                        uint32_t n_rows, uint32_t slab_rows, uint32_t row_from) {
    const gguf_tensor *t = require(m, name, n_cols, slab_rows, m->config->n_experts);
    if (t == NULL) return;
    weight_matrix *first = &out->first;
    first->type = (quant_type)t->type_id;
    first->n_rows = n_rows;
    first->n_cols = n_cols;
    first->row_bytes = quant_row_bytes(first->type, n_cols);
    first->data = (const char *)t->data + first->row_bytes * row_from;
    out->expert_bytes = first->row_bytes * slab_rows;
}

static void map_full_attention(mapper *m, layer_weights *l) {
    const model_config *c = m->config;
    uint32_t q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    map_matrix(m, "attn_q.weight", &l->q, c->n_embd, 2 * q_dim);
    map_matrix(m, "attn_k.weight", &l->k, c->n_embd, kv_dim);
    map_matrix(m, "attn_v.weight", &l->v, c->n_embd, kv_dim);
    map_matrix(m, "attn_output.weight", &l->attn_out, q_dim, c->n_embd);
    map_vector(m, "attn_q_norm.weight", &l->q_norm, c->head_dim);
    map_vector(m, "attn_k_norm.weight", &l->k_norm, c->head_dim);
}

static void map_delta_net(mapper *m, layer_weights *l) {
    const model_config *c = m->config;
    map_matrix(m, "attn_qkv.weight", &l->qkv, c->n_embd, c->conv_dim);
    map_matrix(m, "attn_gate.weight", &l->z, c->n_embd, c->inner_dim);
    map_matrix(m, "ssm_alpha.weight", &l->alpha, c->n_embd, c->n_value_heads);
    map_matrix(m, "ssm_beta.weight", &l->beta, c->n_embd, c->n_value_heads);
    map_matrix(m, "ssm_out.weight", &l->ssm_out, c->inner_dim, c->n_embd);
    map_table(m, "ssm_conv1d.weight", &l->conv, c->conv_taps, c->conv_dim);
    /* Ollama's converter leaves the suffix out. */
    map_vector(m,
               find(m, "ssm_dt.bias") == NULL && find(m, "ssm_dt") != NULL ? "ssm_dt"
                                                                           : "ssm_dt.bias",
               &l->dt_bias, c->n_value_heads);
    map_vector(m, "ssm_a", &l->decay, c->n_value_heads);
    map_vector(m, "ssm_norm.weight", &l->ssm_norm, c->state_dim);
}

static void map_moe(mapper *m, layer_weights *l) {
    const model_config *c = m->config;
    uint32_t n_ff = c->n_ff_expert;
    map_matrix(m, "ffn_gate_inp.weight", &l->router, c->n_embd, c->n_experts);
    if (find(m, "ffn_gate_up_exps.weight") != NULL) {
        map_experts(m, "ffn_gate_up_exps.weight", &l->exp_gate, c->n_embd, n_ff, 2 * n_ff, 0);
        map_experts(m, "ffn_gate_up_exps.weight", &l->exp_up, c->n_embd, n_ff, 2 * n_ff, n_ff);
    } else {
        map_experts(m, "ffn_gate_exps.weight", &l->exp_gate, c->n_embd, n_ff, n_ff, 0);
        map_experts(m, "ffn_up_exps.weight", &l->exp_up, c->n_embd, n_ff, n_ff, 0);
    }
    map_experts(m, "ffn_down_exps.weight", &l->exp_down, n_ff, c->n_embd, c->n_embd, 0);
    map_matrix(m, "ffn_gate_inp_shexp.weight", &l->shared_gate, c->n_embd, 1);
    map_matrix(m, "ffn_gate_shexp.weight", &l->gate, c->n_embd, c->n_ff_shared);
    map_matrix(m, "ffn_up_shexp.weight", &l->up, c->n_embd, c->n_ff_shared);
    map_matrix(m, "ffn_down_shexp.weight", &l->down, c->n_ff_shared, c->n_embd);
}

static void map_layer(mapper *m, layer_weights *l, bool is_linear) {
    const model_config *c = m->config;
    map_vector(m, "attn_norm.weight", &l->attn_norm, c->n_embd);
    map_vector(m, "post_attention_norm.weight", &l->ffn_norm, c->n_embd);
    if (is_linear)
        map_delta_net(m, l);
    else
        map_full_attention(m, l);
    if (c->moe) {
        map_moe(m, l);
    } else {
        map_matrix(m, "ffn_gate.weight", &l->gate, c->n_embd, c->n_ff);
        map_matrix(m, "ffn_up.weight", &l->up, c->n_embd, c->n_ff);
        map_matrix(m, "ffn_down.weight", &l->down, c->n_ff, c->n_embd);
    }
}

status model_weights_map(model_weights *out, const model_config *c, const gguf_file *file,
                         error *err) {
    memset(out, 0, sizeof *out);
    out->layers = calloc(c->n_layers, sizeof *out->layers);
    if (out->layers == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "model tensors: no memory for %u layers",
                         c->n_layers);
    }
    out->file = file;
    out->n_layers = c->n_layers;
    mapper m = {file, c, UINT32_MAX, err, STATUS_OK};
    map_matrix(&m, "token_embd.weight", &out->embedding, c->n_embd, c->n_vocab);
    map_vector(&m, "output_norm.weight", &out->output_norm, c->n_embd);
    if (c->tied_head)
        out->head = out->embedding;
    else
        map_matrix(&m, "output.weight", &out->head, c->n_embd, c->n_vocab);
    for (m.layer = 0; m.layer < c->n_layers && m.rc == STATUS_OK; m.layer++) {
        map_layer(&m, &out->layers[m.layer], c->is_linear[m.layer]);
    }
    if (m.rc != STATUS_OK) model_weights_release(out);
    return m.rc;
}

/* A block may have an embedding and a head of its own. */
static void map_block_ends(mapper *m, model_weights *out) {
    const model_config *c = m->config;
    bool has_norm = find(m, "nextn.shared_head_norm.weight") != NULL;
    bool has_embedding = find(m, "nextn.embed_tokens.weight") != NULL;
    bool has_head = find(m, "nextn.shared_head_head.weight") != NULL;
    const uint32_t block = m->layer;
    if (!has_norm || !has_embedding || !has_head) m->layer = UINT32_MAX;
    if (!has_norm) map_vector(m, "output_norm.weight", &out->output_norm, c->n_embd);
    if (!has_embedding)
        map_matrix(m, "token_embd.weight", &out->embedding, c->n_embd, c->n_vocab);
    if (!has_head) {
        map_matrix(m, c->tied_head ? "token_embd.weight" : "output.weight", &out->head,
                   c->n_embd, c->n_vocab);
    }
    m->layer = block;
    if (has_norm) map_vector(m, "nextn.shared_head_norm.weight", &out->output_norm, c->n_embd);
    if (has_embedding)
        map_matrix(m, "nextn.embed_tokens.weight", &out->embedding, c->n_embd, c->n_vocab);
    if (has_head)
        map_matrix(m, "nextn.shared_head_head.weight", &out->head, c->n_embd, c->n_vocab);
}

status model_weights_map_block(model_weights *out, const model_config *c, const gguf_file *file,
                               error *err) {
    memset(out, 0, sizeof *out);
    out->layers = calloc(1, sizeof *out->layers);
    if (out->layers == NULL)
        return error_set(err, STATUS_NO_MEMORY, "model tensors: no memory for a block");
    out->file = file;
    out->n_layers = 1;
    mapper m = {file, c, c->first_layer, err, STATUS_OK};
    map_matrix(&m, "nextn.eh_proj.weight", &out->block.in, 2 * c->n_embd, c->n_embd);
    map_vector(&m, "nextn.enorm.weight", &out->block.embedding_norm, c->n_embd);
    map_vector(&m, "nextn.hnorm.weight", &out->block.hidden_norm, c->n_embd);
    map_block_ends(&m, out);
    if (m.rc == STATUS_OK) map_layer(&m, &out->layers[0], false);
    if (m.rc != STATUS_OK) model_weights_release(out);
    return m.rc;
}

void model_weights_release(model_weights *w) {
    free(w->layers);
    memset(w, 0, sizeof *w);
}

static void place_layer(layer_weights *l) {
    weight_matrix *matrices[] = {&l->q,
                                 &l->k,
                                 &l->v,
                                 &l->attn_out,
                                 &l->qkv,
                                 &l->z,
                                 &l->alpha,
                                 &l->beta,
                                 &l->ssm_out,
                                 &l->gate,
                                 &l->up,
                                 &l->down,
                                 &l->router,
                                 &l->shared_gate,
                                 &l->exp_gate.first,
                                 &l->exp_up.first,
                                 &l->exp_down.first};
    weight_vector *vectors[] = {&l->attn_norm, &l->ffn_norm, &l->q_norm, &l->k_norm,
                                &l->conv,      &l->dt_bias,  &l->decay,  &l->ssm_norm};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        matrices[i]->place = matrices[i]->data;
    }
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        vectors[i]->place = vectors[i]->data;
    }
}

void model_weights_of_layers(model_weights *out, const model_weights *w, uint32_t first,
                             uint32_t n) {
    CHECK(first + n <= w->n_layers);
    *out = *w;
    out->layers = w->layers + first;
    out->n_layers = n;
    if (first + n == w->n_layers) return;
    out->head = (weight_matrix){0};
    out->output_norm = (weight_vector){0};
}

void model_weights_place_mapped(model_weights *w) {
    w->embedding.place = w->embedding.data;
    w->head.place = w->head.data;
    w->output_norm.place = w->output_norm.data;
    w->block.in.place = w->block.in.data;
    w->block.embedding_norm.place = w->block.embedding_norm.data;
    w->block.hidden_norm.place = w->block.hidden_norm.data;
    for (uint32_t i = 0; i < w->n_layers; i++)
        place_layer(&w->layers[i]);
}

static size_t matrix_bytes(const weight_matrix *m) {
    return m->row_bytes * m->n_rows;
}

size_t layer_expert_bytes(const layer_weights *l) {
    return matrix_bytes(&l->exp_gate.first) + matrix_bytes(&l->exp_up.first) +
           matrix_bytes(&l->exp_down.first);
}
