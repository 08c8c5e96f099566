/* delta_net.c - a linear-attention layer, spec 4.4: convolution and gated delta rule
 * over the recurrent state of each sequence. */
#include "worker/model/forward.h"

void forward_delta_net(const forward *f, uint32_t layer) {
    const backend_ops *ops = f->device->ops;
    const layer_weights *l = &f->weights->layers[layer];
    const projection in[] = {
        {&l->qkv, BUFFER_U, false},
        {&l->z, BUFFER_Z, false},
        {&l->alpha, BUFFER_ALPHA, false},
        {&l->beta, BUFFER_BETA, false},
    };
    const projection out = {&l->ssm_out, BUFFER_RESIDUAL, true};

    ops->project(f->device, INPUT_HIDDEN, in, 4);
    ops->delta_net(f->device, l, f->config->kind_index[layer], f->forms[layer].mixer_out);
    ops->project(f->device, INPUT_MIXED, &out, 1);
}
