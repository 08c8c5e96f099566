/* config.c - the keys of spec 2.2 to 2.4, read and range-checked. */
#include "worker/model/config.h"

#include "common/log.h"
#include "kernels/attention_prepare.h"
#include "kernels/conv1d.h"
#include "kernels/delta_net.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Caps far above every published model and low enough that products of three of
 * them fit in 64 bits; those of head, state and taps are the kernels' limits. */
enum {
    CAP_EMBD = 1 << 16,
    CAP_HEADS = 1 << 10,
    CAP_HEAD_DIM = ATTENTION_MAX_HEAD_DIM,
    CAP_STATE_DIM = DELTA_NET_MAX_DIM,
    CAP_FF = 1 << 18,
    CAP_EXPERTS = 1 << 12,
    CAP_CONTEXT = 1 << 24,
    CAP_TAPS = CONV1D_MAX_TAPS
};

typedef struct reader {
    const gguf_file *file;
    const char *arch;
    error *err;
} reader;

static const gguf_key *find(const reader *r, const char *suffix, char name[96]) {
    (void)snprintf(name, 96, "%s.%s", r->arch, suffix);
    return gguf_find_key(r->file, name);
}

/* The value of a key that some converters write once a layer (0 where a layer
 * has no such thing): all values that are not 0 must agree. */
static bool read_uniform(const gguf_key *key, uint64_t *out) {
    if (key->kind != GGUF_ARRAY) return gguf_read_u64(key, out);
    *out = 0;
    for (uint64_t i = 0; i < key->n_items; i++) {
        int64_t item = 0;
        if (!gguf_item_i64(key, i, &item) || item < 0) return false;
        if (item == 0) continue;
        if (*out != 0 && *out != (uint64_t)item) return false;
        *out = (uint64_t)item;
    }
    return *out != 0;
}

/* A count within [min, max]; fallback < 0: the key is required. */
static status read_count(const reader *r, const char *suffix, int64_t fallback, uint64_t min,
                         uint64_t max, uint32_t *out) {
    char name[96];
    const gguf_key *key = find(r, suffix, name);
    uint64_t value = (uint64_t)fallback;
    if (key == NULL && fallback < 0) {
        return error_set(r->err, STATUS_BAD_INPUT, "model metadata: key %s is missing", name);
    }
    if (key != NULL && !read_uniform(key, &value)) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: key %s is not one non-negative integer", name);
    }
    if (value < min || value > max) {
        return error_set(
            r->err, STATUS_BAD_INPUT, "model metadata: key %s is %llu, expected %llu to %llu",
            name, (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
    }
    *out = (uint32_t)value;
    return STATUS_OK;
}

static status read_real(const reader *r, const char *suffix, double fallback, double min,
                        double max, float *out) {
    char name[96];
    const gguf_key *key = find(r, suffix, name);
    double value = fallback;
    if (key != NULL && !gguf_read_f64(key, &value)) {
        return error_set(r->err, STATUS_BAD_INPUT, "model metadata: key %s is not a number",
                         name);
    }
    if (!(value >= min && value <= max)) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: key %s is %g, expected %g to %g", name, value, min,
                         max);
    }
    *out = (float)value;
    return STATUS_OK;
}

static status read_arch(model_config *c, const gguf_file *file, error *err) {
    const gguf_key *key = gguf_find_key(file, "general.architecture");
    gguf_string arch = {NULL, 0};
    if (key == NULL || !gguf_read_string(key, &arch)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "model metadata: key general.architecture is missing or no string");
    }
    if (arch.length == 9 && memcmp(arch.bytes, "qwen35moe", 9) == 0)
        c->moe = true;
    else if (arch.length != 6 || memcmp(arch.bytes, "qwen35", 6) != 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "model metadata: general.architecture is '%.*s', expected qwen35moe "
                         "or qwen35",
                         (int)(arch.length < 64 ? arch.length : 64), arch.bytes);
    }
    memcpy(c->arch, arch.bytes, arch.length);
    key = gguf_find_key(file, "general.name");
    gguf_string name = {"", 0};
    if (key != NULL && gguf_read_string(key, &name)) {
        size_t n = name.length < sizeof c->name - 1 ? name.length : sizeof c->name - 1;
        memcpy(c->name, name.bytes, n);
    }
    return STATUS_OK;
}

/* Trunk layers and MTP blocks.  Converters write nextn_predict_layers also for
 * fine-tunes that lost the block, so the tensors decide. */
static status read_layers(model_config *c, const reader *r) {
    uint32_t n_blocks = 0, n_nextn = 0;
    status rc = read_count(r, "block_count", -1, 1, MODEL_MAX_LAYERS, &n_blocks);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "nextn_predict_layers", 0, 0, n_blocks - 1, &n_nextn);
    if (rc != STATUS_OK) return rc;
    c->n_layers = n_blocks - n_nextn;
    if (gguf_find_tensor(r->file, "blk.0.attn_norm.weight") == NULL) {
        return error_set(
            r->err, STATUS_BAD_INPUT, "model tensors: blk.0.attn_norm.weight is missing%s",
            n_nextn > 0 ? "; this is a stand-alone MTP file, not a whole model" : "");
    }
    char name[64];
    (void)snprintf(name, sizeof name, "blk.%u.nextn.eh_proj.weight", c->n_layers);
    c->n_mtp_layers = gguf_find_tensor(r->file, name) != NULL ? n_nextn : 0;
    if (n_nextn > 0 && c->n_mtp_layers == 0) {
        log_warn("mtp-tensors-missing", "key=%s.nextn_predict_layers value=%u missing=%s",
                 r->arch, n_nextn, name);
    }
    return STATUS_OK;
}

/* Which layers are linear: the explicit map, or every interval-th is full. */
static status read_layer_kinds(model_config *c, const reader *r) {
    uint32_t interval = 0;
    status rc = read_count(r, "full_attention_interval", 4, 1, UINT32_MAX, &interval);
    if (rc != STATUS_OK) return rc;
    char name[96];
    const gguf_key *map = find(r, "attention.recurrent_layers", name);
    if (map != NULL && (map->kind != GGUF_ARRAY || map->n_items < c->n_layers)) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: key %s is no array of at least %u entries", name,
                         c->n_layers);
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->is_linear[i] = (i + 1) % interval != 0;
        int64_t flag = 0;
        if (map != NULL) {
            if (!gguf_item_i64(map, i, &flag) || flag < 0 || flag > 1) {
                return error_set(r->err, STATUS_BAD_INPUT,
                                 "model metadata: key %s, entry %u is no bool", name, i);
            }
            c->is_linear[i] = flag == 1;
        }
        uint32_t *ordinal = c->is_linear[i] ? &c->n_linear_layers : &c->n_full_layers;
        c->kind_index[i] = (uint16_t)(*ordinal)++;
    }
    return STATUS_OK;
}

/* Scaled positions would need other angles; nobody has written them for this family. */
static status check_rope(const model_config *c, const reader *r) {
    char name[96];
    const gguf_key *key = find(r, "rope.scaling.type", name);
    gguf_string kind = {NULL, 0};
    if (key != NULL && (!gguf_read_string(key, &kind) || kind.length != 4 ||
                        memcmp(kind.bytes, "none", 4) != 0)) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: key %s is '%.*s'; rope scaling is not supported",
                         name, (int)(kind.length < 32 ? kind.length : 32),
                         kind.bytes != NULL ? kind.bytes : "");
    }
    key = find(r, "rope.dimension_sections", name);
    if (key == NULL) return STATUS_OK;
    int64_t sum = 0;
    bool good = key->kind == GGUF_ARRAY && key->n_items <= 4;
    for (uint64_t i = 0; good && i < key->n_items; i++) {
        int64_t item = 0;
        good = gguf_item_i64(key, i, &item) && item >= 0 && item <= CAP_HEAD_DIM;
        sum += item;
    }
    if (!good || sum != c->n_rot / 2) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: key %s must be at most 4 counts that sum to %u, half "
                         "of rope.dimension_count",
                         name, c->n_rot / 2);
    }
    return STATUS_OK;
}

static status read_attention(model_config *c, const reader *r) {
    uint32_t value_dim = 0;
    status rc = read_count(r, "attention.head_count", -1, 1, CAP_HEADS, &c->n_heads);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "attention.head_count_kv", -1, 1, CAP_HEADS, &c->n_kv_heads);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "attention.key_length", -1, 2, CAP_HEAD_DIM, &c->head_dim);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "attention.value_length", -1, c->head_dim, c->head_dim, &value_dim);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "rope.dimension_count", -1, 2, c->head_dim, &c->n_rot);
    if (rc != STATUS_OK) return rc;
    rc = read_real(r, "rope.freq_base", 1e7, 1.0, 1e12, &c->rope_base);
    if (rc != STATUS_OK) return rc;
    if (c->n_heads % c->n_kv_heads != 0) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: attention.head_count %u is no multiple of "
                         "attention.head_count_kv %u",
                         c->n_heads, c->n_kv_heads);
    }
    if (c->n_rot % 2 != 0 || c->head_dim % 32 != 0) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: rope.dimension_count %u must be even and "
                         "attention.key_length %u a multiple of 32",
                         c->n_rot, c->head_dim);
    }
    return check_rope(c, r);
}

static status read_delta_net(model_config *c, const reader *r) {
    status rc = read_count(r, "ssm.conv_kernel", -1, 2, CAP_TAPS, &c->conv_taps);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "ssm.state_size", -1, 16, CAP_STATE_DIM, &c->state_dim);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "ssm.group_count", -1, 1, CAP_HEADS, &c->n_key_heads);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "ssm.time_step_rank", -1, 1, CAP_HEADS, &c->n_value_heads);
    if (rc != STATUS_OK) return rc;
    c->inner_dim = c->n_value_heads * c->state_dim;
    c->conv_dim = 2 * c->n_key_heads * c->state_dim + c->inner_dim;
    uint32_t inner = 0;
    rc = read_count(r, "ssm.inner_size", -1, c->inner_dim, c->inner_dim, &inner);
    if (rc != STATUS_OK) return rc;
    if (c->n_value_heads % c->n_key_heads != 0 || c->state_dim % 16 != 0) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model metadata: ssm.time_step_rank %u must be a multiple of "
                         "ssm.group_count %u, and ssm.state_size %u of 16",
                         c->n_value_heads, c->n_key_heads, c->state_dim);
    }
    char name[96];
    const gguf_key *key = find(r, "ssm.v_head_reordered", name);
    bool reordered = true;
    if (key != NULL && !gguf_read_bool(key, &reordered)) {
        return error_set(r->err, STATUS_BAD_INPUT, "model metadata: key %s is no bool", name);
    }
    c->v_heads_grouped = !reordered;
    return STATUS_OK;
}

static status read_feed_forward(model_config *c, const reader *r) {
    if (!c->moe) return read_count(r, "feed_forward_length", -1, 1, CAP_FF, &c->n_ff);
    status rc = read_count(r, "expert_count", -1, 1, CAP_EXPERTS, &c->n_experts);
    if (rc != STATUS_OK) return rc;
    uint32_t most = c->n_experts < MODEL_MAX_TOPK ? c->n_experts : MODEL_MAX_TOPK;
    rc = read_count(r, "expert_used_count", -1, 1, most, &c->n_experts_used);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "expert_feed_forward_length", -1, 1, CAP_FF, &c->n_ff_expert);
    if (rc != STATUS_OK) return rc;
    rc = read_count(r, "expert_shared_feed_forward_length", -1, 1, CAP_FF, &c->n_ff_shared);
    if (rc != STATUS_OK) return rc;
    uint32_t gating = 0; /* 1 is softmax, the only one of this family */
    return read_count(r, "expert_gating_func", 1, 1, 1, &gating);
}

/* The vocabulary is as long as the embedding: padding ids have rows too. */
static status read_vocabulary(model_config *c, const reader *r) {
    const gguf_tensor *embd = gguf_find_tensor(r->file, "token_embd.weight");
    if (embd == NULL) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model tensors: token_embd.weight is missing");
    }
    if (embd->ne[1] < 1 || embd->ne[1] > (1u << 24)) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "model tensors: token_embd.weight has %llu rows, expected 1 to %u",
                         (unsigned long long)embd->ne[1], 1u << 24);
    }
    c->n_vocab = (uint32_t)embd->ne[1];
    c->tied_head = gguf_find_tensor(r->file, "output.weight") == NULL;
    return STATUS_OK;
}

status model_config_read(model_config *out, const gguf_file *file, error *err) {
    memset(out, 0, sizeof *out);
    status rc = read_arch(out, file, err);
    if (rc != STATUS_OK) return rc;
    const reader r = {file, out->arch, err};
    rc = read_layers(out, &r);
    if (rc != STATUS_OK) return rc;
    rc = read_layer_kinds(out, &r);
    if (rc != STATUS_OK) return rc;
    rc = read_count(&r, "context_length", -1, 1, CAP_CONTEXT, &out->n_context);
    if (rc != STATUS_OK) return rc;
    rc = read_count(&r, "embedding_length", -1, 1, CAP_EMBD, &out->n_embd);
    if (rc != STATUS_OK) return rc;
    rc = read_real(&r, "attention.layer_norm_rms_epsilon", 1e-6, 0.0, 1.0, &out->norm_eps);
    if (rc != STATUS_OK) return rc;
    rc = read_attention(out, &r);
    if (rc != STATUS_OK) return rc;
    rc = read_delta_net(out, &r);
    if (rc != STATUS_OK) return rc;
    rc = read_feed_forward(out, &r);
    if (rc != STATUS_OK) return rc;
    return read_vocabulary(out, &r);
}

uint64_t model_config_state_bytes(const model_config *c) {
    uint64_t state = (uint64_t)c->n_value_heads * c->state_dim * c->state_dim;
    uint64_t conv = (uint64_t)(c->conv_taps - 1) * c->conv_dim;
    return (state + conv) * c->n_linear_layers * sizeof(float);
}

void model_config_of_block(model_config *c) {
    CHECK(c->n_mtp_layers > 0);
    c->first_layer = c->n_layers;
    c->n_layers = c->n_full_layers = 1;
    c->n_linear_layers = 0;
    c->is_linear[0] = false;
    c->kind_index[0] = 0;
}

void model_config_of_layers(model_config *c, uint32_t first, uint32_t n) {
    CHECK(n > 0 && first + n <= c->n_layers);
    c->first_layer += first;
    c->n_layers = n;
    c->n_linear_layers = c->n_full_layers = 0;
    for (uint32_t i = 0; i < n; i++) {
        c->is_linear[i] = c->is_linear[first + i];
        uint32_t *ordinal = c->is_linear[i] ? &c->n_linear_layers : &c->n_full_layers;
        c->kind_index[i] = (uint16_t)(*ordinal)++;
    }
}
