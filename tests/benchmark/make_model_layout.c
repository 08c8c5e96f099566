/* make_model_layout.c - the keys, the vocabulary and the tensors, in the order of the file. */
#include "tests/benchmark/make_model_layout.h"

#include "common/gguf.h"
#include "tests/benchmark/make_model_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

static void put(made_layout *l, const void *bytes, size_t n) {
    if (l->failed) return;
    if (l->head_bytes + n > l->cap_head) {
        size_t cap = (l->head_bytes + n) * 2;
        uint8_t *grown = realloc(l->head, cap);
        if (grown == NULL) {
            l->failed = true;
            return;
        }
        l->head = grown;
        l->cap_head = cap;
    }
    memcpy(l->head + l->head_bytes, bytes, n);
    l->head_bytes += n;
}

static void put_u32(made_layout *l, uint32_t value) {
    put(l, &value, sizeof value);
}

static void put_u64(made_layout *l, uint64_t value) {
    put(l, &value, sizeof value);
}

static void put_text(made_layout *l, const char *text) {
    put_u64(l, strlen(text));
    put(l, text, strlen(text));
}

static void put_zeros(made_layout *l, size_t alignment) {
    static const uint8_t zeros[1024];
    put(l, zeros, (alignment - l->head_bytes % alignment) % alignment);
}

/* ---- keys: each adds one to the count in the header ---- */

enum { AT_N_TENSORS = 8, AT_N_KEYS = 16 };

static void put_key(made_layout *l, const char *prefix, const char *name, gguf_kind kind) {
    char key[80];
    (void)snprintf(key, sizeof key, "%s%s", prefix, name);
    put_text(l, key);
    put_u32(l, (uint32_t)kind);
    if (l->failed) return;
    uint64_t n_keys = 0;
    memcpy(&n_keys, l->head + AT_N_KEYS, sizeof n_keys);
    n_keys++;
    memcpy(l->head + AT_N_KEYS, &n_keys, sizeof n_keys);
}

static void key_u32(made_layout *l, const char *prefix, const char *name, int64_t value) {
    put_key(l, prefix, name, GGUF_U32);
    put_u32(l, (uint32_t)value);
}

static void key_f32(made_layout *l, const char *prefix, const char *name, float value) {
    put_key(l, prefix, name, GGUF_F32);
    put(l, &value, sizeof value);
}

static void key_text(made_layout *l, const char *prefix, const char *name, const char *value) {
    put_key(l, prefix, name, GGUF_STRING);
    put_text(l, value);
}

static void key_array(made_layout *l, const char *prefix, const char *name, gguf_kind item_kind,
                      uint64_t n_items) {
    put_key(l, prefix, name, GGUF_ARRAY);
    put_u32(l, (uint32_t)item_kind);
    put_u64(l, n_items);
}

static uint32_t file_type_of(const made_params *p) {
    static const uint8_t by_type[QUANT_LIMIT] = {
        [QUANT_F32] = 0,     [QUANT_F16] = 1,     [QUANT_Q4_0] = 2,  [QUANT_Q4_1] = 3,
        [QUANT_Q8_0] = 7,    [QUANT_Q5_0] = 8,    [QUANT_Q5_1] = 9,  [QUANT_Q2_K] = 10,
        [QUANT_Q3_K] = 12,   [QUANT_Q4_K] = 14,   [QUANT_Q5_K] = 16, [QUANT_Q6_K] = 18,
        [QUANT_IQ4_NL] = 25, [QUANT_IQ4_XS] = 30, [QUANT_BF16] = 32, [QUANT_MXFP4] = 38,
    };
    return p->q4_k_m ? 15 : by_type[p->type];
}

static void put_general_keys(made_layout *l, const made_params *p, const char *arch) {
    char name[64];
    (void)snprintf(name, sizeof name, "random %s %lld", arch, (long long)p->seed);
    key_text(l, "general.", "architecture", arch);
    key_text(l, "general.", "type", "model");
    key_text(l, "general.", "name", name);
    if (p->align != 32) key_u32(l, "general.", "alignment", p->align);
    key_u32(l, "general.", "file_type", file_type_of(p));
    key_u32(l, "general.", "quantization_version", 2);
}

static void put_rope_keys(made_layout *l, const made_params *p, const char *a) {
    uint32_t pairs = (uint32_t)p->rope / 2;
    key_u32(l, a, "rope.dimension_count", p->rope);
    key_array(l, a, "rope.dimension_sections", GGUF_I32, 4);
    put_u32(l, (pairs + 2) / 3);
    put_u32(l, (pairs + 1) / 3);
    put_u32(l, pairs / 3);
    put_u32(l, 0);
    key_f32(l, a, "rope.freq_base", 1e7f);
}

static void put_model_keys(made_layout *l, const made_params *p, const char *arch) {
    char a[16];
    (void)snprintf(a, sizeof a, "%s.", arch);
    key_u32(l, a, "block_count", p->layers + (p->mtp ? 1 : 0));
    key_u32(l, a, "context_length", p->ctx);
    key_u32(l, a, "embedding_length", p->hidden);
    if (!p->moe) key_u32(l, a, "feed_forward_length", p->ff);
    key_u32(l, a, "attention.head_count", p->heads);
    key_u32(l, a, "attention.head_count_kv", p->kv_heads);
    key_u32(l, a, "attention.key_length", p->head_dim);
    key_u32(l, a, "attention.value_length", p->head_dim);
    key_f32(l, a, "attention.layer_norm_rms_epsilon", 1e-6f);
    put_rope_keys(l, p, a);
    if (p->moe) {
        key_u32(l, a, "expert_count", p->experts);
        key_u32(l, a, "expert_used_count", p->topk);
        key_u32(l, a, "expert_feed_forward_length", p->ff_exp);
        key_u32(l, a, "expert_shared_feed_forward_length", p->ff_shexp);
    }
    key_u32(l, a, "full_attention_interval", p->interval);
    key_u32(l, a, "ssm.conv_kernel", p->conv);
    key_u32(l, a, "ssm.state_size", p->state);
    key_u32(l, a, "ssm.group_count", p->k_heads);
    key_u32(l, a, "ssm.time_step_rank", p->v_heads);
    key_u32(l, a, "ssm.inner_size", p->v_heads * p->state);
    if (p->mtp) key_u32(l, a, "nextn_predict_layers", 1);
}

/* ---- vocabulary ---- */

static void put_tokenizer_keys(made_layout *l, const made_params *p) {
    static const char *const g = "tokenizer.ggml.";
    char text[64];
    key_text(l, g, "model", "gpt2");
    key_text(l, g, "pre", "qwen35");
    key_array(l, g, "tokens", GGUF_STRING, (uint64_t)p->vocab);
    for (int64_t id = 0; id < p->vocab; id++) {
        (void)made_token(p->vocab, id, text);
        put_text(l, text);
    }
    key_array(l, g, "token_type", GGUF_I32, (uint64_t)p->vocab);
    for (int64_t id = 0; id < p->vocab; id++)
        put_u32(l, made_token(p->vocab, id, text));
    key_array(l, g, "merges", GGUF_STRING, MADE_MERGES);
    for (int i = 0; i < MADE_MERGES; i++) {
        (void)snprintf(text, sizeof text, "%s %s", made_merges[i][0], made_merges[i][1]);
        put_text(l, text);
    }
    key_u32(l, g, "eos_token_id", made_first_added(p->vocab) + 2);
    key_u32(l, g, "padding_token_id", made_first_added(p->vocab));
    put_key(l, g, "add_bos_token", GGUF_BOOL);
    put(l, "", 1); /* false */
}

/* ---- tensors ---- */

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text);
    size_t m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool contains(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

/* Which layers of n the Q4_K_M rule gives more bits. */
static bool more_bits(int64_t i, int64_t n) {
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

static quant_type q4_k_m_type(const made_params *p, const char *name, int64_t block) {
    const char *head = p->tied ? "token_embd.weight" : "output.weight";
    if (strcmp(name, head) == 0) return QUANT_Q6_K;
    if (contains(name, "ffn_down"))
        return more_bits(block, p->layers) ? QUANT_Q6_K : QUANT_Q4_K;
    if (contains(name, "attn_qkv")) return QUANT_Q5_K;
    if (contains(name, "attn_v")) {
        return more_bits(block / p->interval, p->layers) ? QUANT_Q6_K : QUANT_Q4_K;
    }
    return QUANT_Q4_K;
}

/* What a type becomes where rows are no whole blocks of it. */
static quant_type fall_back(quant_type type, uint64_t ne0) {
    static const uint8_t smaller[QUANT_LIMIT] = {
        [QUANT_Q2_K] = QUANT_Q4_0, [QUANT_Q3_K] = QUANT_Q4_0, [QUANT_Q4_K] = QUANT_Q5_0,
        [QUANT_Q5_K] = QUANT_Q5_1, [QUANT_Q6_K] = QUANT_Q8_0, [QUANT_IQ4_XS] = QUANT_IQ4_NL,
    };
    if (ne0 % 256 != 0 && smaller[type] != 0) type = (quant_type)smaller[type];
    return ne0 % quant_traits_of(type)->block_values == 0 ? type : QUANT_F16;
}

static quant_type type_of(const made_params *p, const made_tensor *t, int64_t block) {
    if (t->n_dims == 1 || contains(t->name, "ssm_conv1d") ||
        contains(t->name, "ffn_gate_inp.")) {
        return QUANT_F32;
    }
    quant_type type = p->q4_k_m ? q4_k_m_type(p, t->name, block) : p->type;
    if (contains(t->name, "_exps.") && p->has_expert_type) type = p->expert_type;
    if (contains(t->name, "ffn_down_exps.") && p->has_expert_down_type)
        type = p->expert_down_type;
    return fall_back(type, t->ne[0]);
}

static made_rule rule_of(const made_params *p, const char *name) {
    if (contains(name, "ffn_gate_inp.")) return MADE_ROUTER;
    if (ends_with(name, "ssm_dt.bias")) return MADE_DT;
    if (ends_with(name, "ssm_a")) return MADE_A;
    if (!ends_with(name, "norm.weight")) return MADE_MATRIX;
    bool wide = ends_with(name, "attn_q_norm.weight") || ends_with(name, "attn_k_norm.weight");
    bool last = strcmp(name, "output_norm.weight") == 0 ||
                ends_with(name, "nextn.shared_head_norm.weight");
    return wide || (last && p->tied) ? MADE_WIDE_NORM : MADE_NORM;
}

static uint64_t numerator_of(const made_params *p, const made_tensor *t) {
    if (strcmp(t->name, "token_embd.weight") == 0) return p->tied ? 1 : t->ne[0];
    if (strcmp(t->name, "output.weight") == 0 || t->rule == MADE_ROUTER) return 4;
    return 1;
}

static made_tensor *new_tensor(made_layout *l) {
    if (l->n_tensors == l->cap_tensors) {
        size_t cap = l->cap_tensors == 0 ? 256 : l->cap_tensors * 2;
        made_tensor *grown = realloc(l->tensors, cap * sizeof *grown);
        if (grown == NULL) {
            l->failed = true;
            return NULL;
        }
        l->tensors = grown;
        l->cap_tensors = cap;
    }
    made_tensor *t = &l->tensors[l->n_tensors++];
    memset(t, 0, sizeof *t);
    return t;
}

/* Add a tensor of the block (-1: none); dimensions that are 0 are left out. */
static void add(made_layout *l, const made_params *p, int64_t block, const char *name,
                int64_t ne0, int64_t ne1, int64_t ne2) {
    if (l->failed) return;
    made_tensor *t = new_tensor(l);
    if (t == NULL) return;
    if (block < 0)
        (void)snprintf(t->name, sizeof t->name, "%s", name);
    else
        (void)snprintf(t->name, sizeof t->name, "blk.%lld.%s", (long long)block, name);
    t->n_dims = ne2 != 0 ? 3 : ne1 != 0 ? 2 : 1;
    t->ne[0] = (uint64_t)ne0;
    t->ne[1] = ne1 != 0 ? (uint64_t)ne1 : 1;
    t->ne[2] = ne2 != 0 ? (uint64_t)ne2 : 1;
    t->type = type_of(p, t, block);
    t->rule = rule_of(p, t->name);
    t->num = numerator_of(p, t);
    t->n_values = t->ne[0] * t->ne[1] * t->ne[2];
    const quant_traits *traits = quant_traits_of((uint32_t)t->type);
    t->n_bytes = t->n_values / traits->block_values * traits->block_bytes;
    t->offset = l->data_bytes;
    uint64_t align = (uint64_t)p->align;
    uint64_t padded = (t->n_bytes + align - 1) / align * align;
    if (__builtin_add_overflow(l->data_bytes, padded, &l->data_bytes)) l->failed = true;
}

static void add_full_attention(made_layout *l, const made_params *p, int64_t b) {
    int64_t e = p->hidden;
    add(l, p, b, "attn_q.weight", e, p->heads * 2 * p->head_dim, 0);
    add(l, p, b, "attn_k.weight", e, p->kv_heads * p->head_dim, 0);
    add(l, p, b, "attn_v.weight", e, p->kv_heads * p->head_dim, 0);
    add(l, p, b, "attn_output.weight", p->heads * p->head_dim, e, 0);
    add(l, p, b, "attn_q_norm.weight", p->head_dim, 0, 0);
    add(l, p, b, "attn_k_norm.weight", p->head_dim, 0, 0);
}

static void add_linear_attention(made_layout *l, const made_params *p, int64_t b) {
    int64_t e = p->hidden;
    int64_t inner = p->v_heads * p->state;
    int64_t conv_dim = 2 * p->k_heads * p->state + inner;
    add(l, p, b, "attn_qkv.weight", e, conv_dim, 0);
    add(l, p, b, "attn_gate.weight", e, inner, 0);
    add(l, p, b, "ssm_conv1d.weight", p->conv, conv_dim, 0);
    add(l, p, b, "ssm_dt.bias", p->v_heads, 0, 0);
    add(l, p, b, "ssm_a", p->v_heads, 0, 0);
    add(l, p, b, "ssm_alpha.weight", e, p->v_heads, 0);
    add(l, p, b, "ssm_beta.weight", e, p->v_heads, 0);
    add(l, p, b, "ssm_norm.weight", p->state, 0, 0);
    add(l, p, b, "ssm_out.weight", inner, e, 0);
}

static void add_experts(made_layout *l, const made_params *p, int64_t b) {
    int64_t e = p->hidden;
    add(l, p, b, "ffn_gate_inp.weight", e, p->experts, 0);
    if (p->fused) {
        add(l, p, b, "ffn_gate_up_exps.weight", e, 2 * p->ff_exp, p->experts);
    } else {
        add(l, p, b, "ffn_gate_exps.weight", e, p->ff_exp, p->experts);
        add(l, p, b, "ffn_up_exps.weight", e, p->ff_exp, p->experts);
    }
    add(l, p, b, "ffn_down_exps.weight", p->ff_exp, e, p->experts);
    add(l, p, b, "ffn_gate_inp_shexp.weight", e, 0, 0);
    add(l, p, b, "ffn_gate_shexp.weight", e, p->ff_shexp, 0);
    add(l, p, b, "ffn_up_shexp.weight", e, p->ff_shexp, 0);
    add(l, p, b, "ffn_down_shexp.weight", p->ff_shexp, e, 0);
}

static void add_block(made_layout *l, const made_params *p, int64_t b) {
    int64_t e = p->hidden;
    add(l, p, b, "attn_norm.weight", e, 0, 0);
    add(l, p, b, "post_attention_norm.weight", e, 0, 0);
    bool mtp = b == p->layers; /* the block after the trunk is a full layer */
    if (mtp || (b + 1) % p->interval == 0)
        add_full_attention(l, p, b);
    else
        add_linear_attention(l, p, b);
    if (p->moe) {
        add_experts(l, p, b);
    } else {
        add(l, p, b, "ffn_gate.weight", e, p->ff, 0);
        add(l, p, b, "ffn_up.weight", e, p->ff, 0);
        add(l, p, b, "ffn_down.weight", p->ff, e, 0);
    }
    if (!mtp) return;
    add(l, p, b, "nextn.eh_proj.weight", 2 * e, e, 0);
    add(l, p, b, "nextn.enorm.weight", e, 0, 0);
    add(l, p, b, "nextn.hnorm.weight", e, 0, 0);
    add(l, p, b, "nextn.shared_head_norm.weight", e, 0, 0);
}

static void add_tensors(made_layout *l, const made_params *p) {
    add(l, p, -1, "token_embd.weight", p->hidden, p->vocab, 0);
    add(l, p, -1, "output_norm.weight", p->hidden, 0, 0);
    if (!p->tied) add(l, p, -1, "output.weight", p->hidden, p->vocab, 0);
    for (int64_t b = 0; b < p->layers + (p->mtp ? 1 : 0); b++)
        add_block(l, p, b);
}

static void put_tensor_infos(made_layout *l) {
    uint64_t n_tensors = l->n_tensors;
    if (!l->failed) memcpy(l->head + AT_N_TENSORS, &n_tensors, sizeof n_tensors);
    for (size_t i = 0; i < l->n_tensors; i++) {
        const made_tensor *t = &l->tensors[i];
        put_text(l, t->name);
        put_u32(l, t->n_dims);
        put(l, t->ne, t->n_dims * sizeof t->ne[0]);
        put_u32(l, (uint32_t)t->type);
        put_u64(l, t->offset);
    }
}

status made_layout_init(made_layout *out, const made_params *p, error *err) {
    memset(out, 0, sizeof *out);
    const char *arch = p->moe ? "qwen35moe" : "qwen35";
    put(out, "GGUF", 4);
    put_u32(out, 3);
    put_u64(out, 0); /* counts: filled in later */
    put_u64(out, 0);
    put_general_keys(out, p, arch);
    put_model_keys(out, p, arch);
    put_tokenizer_keys(out, p);
    add_tensors(out, p);
    put_tensor_infos(out);
    put_zeros(out, (size_t)p->align);
    if (!out->failed && out->data_bytes < (uint64_t)INT64_MAX / 2) return STATUS_OK;
    made_layout_release(out);
    return error_set(err, STATUS_NO_MEMORY, "the layout needs more memory than there is");
}

void made_layout_release(made_layout *layout) {
    free(layout->head);
    free(layout->tensors);
    memset(layout, 0, sizeof *layout);
}
