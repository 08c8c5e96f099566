/* forward.h - the forward pass over a backend, and the layer kinds it is made of.
 *
 * Private to worker/model.  A forward holds what does not change between steps:
 * the weights and, for each layer, the numeric forms in which its matrices want
 * their inputs.  Thread: engine.
 */
#ifndef SILICEO_WORKER_MODEL_FORWARD_H
#define SILICEO_WORKER_MODEL_FORWARD_H

#include "common/error.h"
#include "worker/backend.h"
#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"
#include <stdint.h>

/* Forms of the inputs of one layer's matrices. */
typedef struct layer_forms {
    input_forms mixer_in;  /* q, k, v or qkv, z, alpha, beta */
    input_forms mixer_out; /* the output projection */
    input_forms ffn_in;    /* gate and up, router, experts */
    input_forms ffn_mid;   /* down of the dense network or of the shared expert */
    input_forms expert_mid;
} layer_forms;

typedef struct forward {
    const model_config *config;
    const model_weights *weights;
    backend *device;
    layer_forms *forms; /* [n_layers] */
    input_forms head_form;
    input_forms block_form; /* of what an MTP block begins with */
    model_tap tap;          /* NULL: nobody looks */
    void *tap_context;
    float *tap_rows; /* made when a tap is set */
} forward;

status forward_init(forward *f, const model_config *c, const model_weights *w, backend *device,
                    activation_type activations, error *err);
void forward_release(forward *f); /* accepts a zeroed one */

/* Run the layers of a checked batch, and the embedding before the first: rows gets the residual,
 * [n_rows][E].  It may be the batch's own. */
status forward_run_layers(const forward *f, const batch *b, float *rows, error *err);

/* Run one checked batch, of which no layer is left; logits is NULL when no row asks. */
status forward_run(const forward *f, const batch *b, float *logits, error *err);

/* Layer kinds.  Each reads INPUT_HIDDEN and adds to the residual. */
void forward_attention(const forward *f, uint32_t layer);
void forward_delta_net(const forward *f, uint32_t layer);
void forward_dense(const forward *f, uint32_t layer);
void forward_moe(const forward *f, uint32_t layer);

#endif
