/* weights.h - where every tensor of a model lies, its type and shape checked.
 *
 * A view: data points into the mapped file and lives as long as it does; nothing
 * is copied.  Types are read per tensor, since files mix them freely.  A backend
 * that keeps weights elsewhere fills `place` (see backend.h); forward code hands
 * matrices on and never looks into them.
 * Filled once by model_weights_map(), then only read, any thread.
 */
#ifndef SILICEO_WORKER_MODEL_WEIGHTS_H
#define SILICEO_WORKER_MODEL_WEIGHTS_H

#include "common/error.h"
#include "common/gguf.h"
#include "common/quant_type.h"
#include "worker/model/config.h"
#include <stddef.h>
#include <stdint.h>

/* y [n_rows] = W x [n_cols]; row r starts at data + r * row_bytes. */
typedef struct weight_matrix {
    quant_type type;
    uint32_t n_rows;
    uint32_t n_cols;
    size_t row_bytes;
    const void *data;  /* in the mapping */
    const void *place; /* where the backend reads it; the mapping itself on the CPU */
} weight_matrix;

/* A float32 vector (or the taps of the convolution). */
typedef struct weight_vector {
    uint32_t n;
    const float *data;
    const float *place;
} weight_vector;

/* The same matrix of every expert: expert e begins at e * expert_bytes. */
typedef struct weight_experts {
    weight_matrix first;
    size_t expert_bytes; /* from one expert to the next in the file */
} weight_experts;

typedef struct layer_weights {
    weight_vector attn_norm; /* [E] */
    weight_vector ffn_norm;  /* [E]; the file calls it post_attention_norm */
    /* full attention */
    weight_matrix q;              /* [Hq * 2 * head_dim][E], query and gate a head */
    weight_matrix k, v;           /* [Hkv * head_dim][E] */
    weight_matrix attn_out;       /* [E][Hq * head_dim] */
    weight_vector q_norm, k_norm; /* [head_dim] */
    /* gated delta net */
    weight_matrix qkv;         /* [conv_dim][E] */
    weight_matrix z;           /* [inner_dim][E] */
    weight_matrix alpha, beta; /* [Hv][E] */
    weight_matrix ssm_out;     /* [E][inner_dim] */
    weight_vector conv;        /* [conv_dim][taps] */
    weight_vector dt_bias;     /* [Hv] */
    weight_vector decay;       /* [Hv], -exp(A_log) */
    weight_vector ssm_norm;    /* [state_dim] */
    /* dense feed forward, or the shared expert of a MoE layer */
    weight_matrix gate, up; /* [F][E] */
    weight_matrix down;     /* [E][F] */
    /* mixture of experts */
    weight_matrix router;      /* [n_experts][E] */
    weight_matrix shared_gate; /* [1][E], float32 */
    weight_experts exp_gate, exp_up, exp_down;
} layer_weights;

/* What makes the input of an MTP block, spec 4.9. */
typedef struct block_weights {
    weight_matrix in; /* eh_proj [E][2 E]: columns of the embedding, then of the hidden row */
    weight_vector embedding_norm, hidden_norm; /* [E] */
} block_weights;

typedef struct model_weights {
    const gguf_file *file;
    weight_matrix embedding; /* [V][E] */
    weight_matrix head;      /* [V][E]; the embedding when tied */
    weight_vector output_norm;
    uint32_t n_layers;
    layer_weights *layers;
    block_weights block; /* in.data is NULL but in the weights of an MTP block */
} model_weights;

/* Find every tensor of the trunk and check its exact shape and type.  A missing
 * or wrong one is STATUS_BAD_INPUT with its name.  MTP blocks and unknown
 * tensors are ignored. */
status model_weights_map(model_weights *out, const model_config *c, const gguf_file *file,
                         error *err);
/* The same of the MTP block, as a model of one layer: its own norm before the head, and
 * embedding and head where it has them.  c is of the block, see model_config_of_block(). */
status model_weights_map_block(model_weights *out, const model_config *c, const gguf_file *file,
                               error *err);
void model_weights_release(model_weights *w); /* accepts a zeroed one */
/* A view of n layers of w from `first` on, with the head where the last is among them; it is not
 * released, and w must outlive it. */
void model_weights_of_layers(model_weights *out, const model_weights *w, uint32_t first,
                             uint32_t n);

/* Let every `place` be the mapping itself. */
void model_weights_place_mapped(model_weights *w);

/* Bytes of one expert's three matrices in a layer. */
size_t layer_expert_bytes(const layer_weights *layer);

#endif
