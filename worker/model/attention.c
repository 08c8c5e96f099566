/* attention.c - a full-attention layer, spec 4.3: gated attention over the KV pages. */
#include "worker/model/forward.h"

void forward_attention(const forward *f, uint32_t layer) {
    const backend_ops *ops = f->device->ops;
    const layer_weights *l = &f->weights->layers[layer];
    const projection in[] = {
        {&l->q, BUFFER_Q, false},
        {&l->k, BUFFER_K, false},
        {&l->v, BUFFER_V, false},
    };
    const projection out = {&l->attn_out, BUFFER_RESIDUAL, true};

    ops->project(f->device, INPUT_HIDDEN, in, 3);
    ops->attention(f->device, l, f->config->kind_index[layer], f->forms[layer].mixer_out);
    ops->project(f->device, INPUT_MIXED, &out, 1);
}
