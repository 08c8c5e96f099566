/* forward.c - one step of the model, spec 4.2, read top to bottom. */
#include "worker/model/forward.h"

#include <stdlib.h>
#include <string.h>

static input_forms form_of(const weight_matrix *m, activation_type a) {
    return backend_form_of(m->type, a);
}

static layer_forms forms_of_layer(const model_config *c, const layer_weights *l, uint32_t layer,
                                  activation_type a) {
    layer_forms f = {0};
    if (c->is_linear[layer]) {
        f.mixer_in = form_of(&l->qkv, a) | form_of(&l->z, a) | form_of(&l->alpha, a) |
                     form_of(&l->beta, a);
        f.mixer_out = form_of(&l->ssm_out, a);
    } else {
        f.mixer_in = form_of(&l->q, a) | form_of(&l->k, a) | form_of(&l->v, a);
        f.mixer_out = form_of(&l->attn_out, a);
    }
    f.ffn_in = form_of(&l->gate, a) | form_of(&l->up, a);
    f.ffn_mid = form_of(&l->down, a);
    if (c->moe) {
        f.ffn_in |= form_of(&l->router, a) | form_of(&l->shared_gate, a) |
                    form_of(&l->exp_gate.first, a) | form_of(&l->exp_up.first, a);
        f.expert_mid = form_of(&l->exp_down.first, a);
    }
    return f;
}

status forward_init(forward *f, const model_config *c, const model_weights *w, backend *device,
                    activation_type activations, error *err) {
    memset(f, 0, sizeof *f);
    f->config = c;
    f->weights = w;
    f->device = device;
    f->forms = calloc(c->n_layers, sizeof *f->forms);
    if (f->forms == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "forward: no memory for %u layers",
                         c->n_layers);
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        f->forms[i] = forms_of_layer(c, &w->layers[i], i, activations);
    }
    f->head_form = form_of(&w->head, activations);
    f->block_form = form_of(&w->block.in, activations);
    return STATUS_OK;
}

void forward_release(forward *f) {
    free(f->forms);
    free(f->tap_rows);
    memset(f, 0, sizeof *f);
}

static void show_residual(const forward *f, const batch *b, const char *what, uint32_t layer) {
    f->device->ops->read_residual(f->device, f->tap_rows);
    f->tap(f->tap_context, what, layer, f->tap_rows, b->view.n_rows, f->config->n_embd);
}

static void show_final(const forward *f, const batch *b) {
    f->device->ops->read_final(f->device, f->tap_rows);
    f->tap(f->tap_context, "final", f->config->n_layers, f->tap_rows, b->n_outputs,
           f->config->n_embd);
}

static void show_experts(const forward *f, const batch *b, uint32_t layer) {
    f->device->ops->read_experts(f->device, f->tap_rows);
    f->tap(f->tap_context, "experts", layer, f->tap_rows, b->view.n_rows,
           f->config->n_experts_used);
}

static void run_layer(const forward *f, const batch *b, uint32_t layer) {
    const backend_ops *ops = f->device->ops;
    const layer_weights *l = &f->weights->layers[layer];
    const layer_forms *forms = &f->forms[layer];

    ops->norm(f->device, &l->attn_norm, forms->mixer_in);
    if (f->config->is_linear[layer])
        forward_delta_net(f, layer);
    else
        forward_attention(f, layer);

    ops->norm(f->device, &l->ffn_norm, forms->ffn_in);
    if (f->config->moe)
        forward_moe(f, layer);
    else
        forward_dense(f, layer);

    if (f->tap == NULL) return;
    if (f->config->moe) show_experts(f, b, layer);
    show_residual(f, b, "layer", layer);
}

/* The rows that the first layer reads: of the tokens, unless begin brought them. */
static void begin_rows(const forward *f, const batch *b) {
    const backend_ops *ops = f->device->ops;
    if (b->residual != NULL) return;
    if (f->weights->block.in.data != NULL)
        ops->embed_after(f->device, &f->weights->embedding, &f->weights->block, f->block_form);
    else
        ops->embed(f->device, &f->weights->embedding);
    if (f->tap != NULL) show_residual(f, b, "embed", 0);
}

static void run_layers(const forward *f, const batch *b) {
    begin_rows(f, b);
    for (uint32_t layer = b->first_layer; layer < b->end_layer; layer++)
        run_layer(f, b, layer);
}

status forward_run_layers(const forward *f, const batch *b, float *rows, error *err) {
    const backend_ops *ops = f->device->ops;
    status rc = ops->begin(f->device, b, err);
    if (rc != STATUS_OK) return rc;
    run_layers(f, b);
    ops->read_residual(f->device, rows);
    return ops->end(f->device, err);
}

status forward_run(const forward *f, const batch *b, float *logits, error *err) {
    const backend_ops *ops = f->device->ops;
    status rc = ops->begin(f->device, b, err);
    if (rc != STATUS_OK) return rc;
    run_layers(f, b);

    if (b->n_hidden > 0) ops->hidden(f->device, &f->weights->output_norm);
    if (b->n_outputs > 0) {
        ops->final_norm(f->device, &f->weights->output_norm, f->head_form);
        if (f->tap != NULL) show_final(f, b);
        rc = ops->logits(f->device, &f->weights->head, logits, err);
    }
    for (uint32_t i = 0; i < b->n_hidden && rc == STATUS_OK; i++) {
        const batch_hidden *h = &b->hidden[i];
        ops->read_hidden(f->device, h->first_row, h->n_rows, h->out);
    }
    status end = ops->end(f->device, rc == STATUS_OK ? err : NULL);
    return rc != STATUS_OK ? rc : end;
}
