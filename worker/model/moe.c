/* moe.c - the feed-forward half of a layer, spec 4.7: routed experts with a shared one
 * (qwen35moe), or one dense network (qwen35). */
#include "worker/model/forward.h"

void forward_moe(const forward *f, uint32_t layer) {
    const backend_ops *ops = f->device->ops;
    const layer_weights *l = &f->weights->layers[layer];

    ops->route(f->device, l);
    ops->experts(f->device, l, layer, f->forms[layer].expert_mid, f->forms[layer].ffn_mid);
}

void forward_dense(const forward *f, uint32_t layer) {
    const backend_ops *ops = f->device->ops;
    const layer_weights *l = &f->weights->layers[layer];
    const projection down = {&l->down, BUFFER_RESIDUAL, true};

    ops->gated(f->device, &l->gate, &l->up, f->forms[layer].ffn_mid);
    ops->project(f->device, INPUT_GATED, &down, 1);
}
