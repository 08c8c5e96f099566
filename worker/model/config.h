/* config.h - the geometry of a Qwen3.5 model, read from GGUF metadata and checked.
 *
 * Plain data: filled once by model_config_read(), then only read, any thread.
 * Letters of the specification: E n_embd, L n_layers, V n_vocab, Hq n_heads, Hkv n_kv_heads,
 * Hk n_key_heads, Hv n_value_heads.
 */
#ifndef SILICEO_WORKER_MODEL_CONFIG_H
#define SILICEO_WORKER_MODEL_CONFIG_H

#include "common/error.h"
#include "common/gguf.h"
#include <stdbool.h>
#include <stdint.h>

enum { MODEL_MAX_LAYERS = 256, MODEL_MAX_TOPK = 64 };

typedef struct model_config {
    bool moe; /* qwen35moe; else qwen35, dense */
    char arch[16];
    char name[128];
    uint32_t n_layers;     /* trunk only, without MTP blocks */
    uint32_t n_mtp_layers; /* present in the file; recognised and not run by the trunk */
    uint32_t first_layer;  /* its number in the file: 0, of an MTP block that of the block */
    uint32_t n_context;    /* trained context, tokens */
    uint32_t n_embd;
    uint32_t n_vocab;
    float norm_eps;
    bool tied_head;
    bool is_linear[MODEL_MAX_LAYERS]; /* delta net; else full attention */
    uint32_t n_linear_layers;
    uint32_t n_full_layers;
    uint16_t kind_index[MODEL_MAX_LAYERS]; /* ordinal of a layer among those of its kind */
    /* full attention */
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_rot; /* rotated dims of a head */
    float rope_base;
    /* gated delta net */
    uint32_t n_key_heads;
    uint32_t n_value_heads;
    uint32_t state_dim; /* Dk = Dv */
    uint32_t conv_taps;
    uint32_t conv_dim;    /* (2 Hk + Hv) * state_dim */
    uint32_t inner_dim;   /* Hv * state_dim */
    bool v_heads_grouped; /* Ollama files that keep the HF order */
    /* feed forward */
    uint32_t n_ff; /* dense */
    uint32_t n_experts;
    uint32_t n_experts_used;
    uint32_t n_ff_expert;
    uint32_t n_ff_shared;
} model_config;

/* Read and range-check every key of spec 2.2-2.4; shapes of tensors are checked
 * by model_weights.  Errors name the key and value. */
status model_config_read(model_config *out, const gguf_file *file, error *err);

/* Make of a model's geometry that of its first MTP block: one layer of full attention. */
void model_config_of_block(model_config *c);

/* Make of a model's geometry that of n of its layers, from `first` on. */
void model_config_of_layers(model_config *c, uint32_t first, uint32_t n);

/* Bytes of the recurrent state of one sequence (delta-net state and convolution
 * inputs, float32, all linear layers). */
uint64_t model_config_state_bytes(const model_config *c);

#endif
