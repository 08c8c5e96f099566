/* backend_cuda_mixers.c - what mixes tokens, span by span: delta nets and attention. */
#include "worker/backend_cuda_ops.h"

#include "kernels/cuda/mixers.h"
#include <math.h>

/* Delta net. */

/* A layer's part of the first state: delta-net matrices, then convolution inputs. */
static float *layer_state(const backend_cuda *b, uint32_t ordinal) {
    size_t bytes = b->state_bytes / b->config->n_linear_layers;
    return cuda_ptr(cuda_part_at(b, CUDA_PART_STATES) + ordinal * bytes);
}

static float *layer_conv_state(const backend_cuda *b, uint32_t ordinal) {
    const model_config *c = b->config;
    return layer_state(b, ordinal) + (size_t)c->n_value_heads * c->state_dim * c->state_dim;
}

static void run_conv(backend_cuda *b, const cuda_span *span, const layer_weights *layer,
                     uint32_t ordinal) {
    const model_config *c = b->config;
    const conv1d_args args = {
        .batch = span->view,
        .x = cuda_buffer_row(b, BUFFER_U, span->first_row, c->conv_dim),
        .weight = layer->conv.place,
        .state = layer_conv_state(b, ordinal),
        .y = cuda_rows(b, b->layout.work.convolved, span->first_row, c->conv_dim),
        .x_stride = c->conv_dim,
        .y_stride = c->conv_dim,
        .state_stride = b->state_bytes / sizeof(float),
        .n_channels = c->conv_dim,
        .n_taps = c->conv_taps};
    cuda_launch(b, CUDA_KERNEL_conv1d, conv1d_shape(&args), &args);
}

/* qkv: rows after the convolution, or before it where the step makes it. */
static delta_net_args delta_args(const backend_cuda *b, const cuda_span *span,
                                 const layer_weights *layer, uint32_t ordinal,
                                 const float *qkv) {
    const model_config *c = b->config;
    size_t row = span->first_row;
    return (delta_net_args){.batch = span->view,
                            .qkv = qkv,
                            .z = cuda_buffer_row(b, BUFFER_Z, row, c->inner_dim),
                            .alpha = cuda_buffer_row(b, BUFFER_ALPHA, row, c->n_value_heads),
                            .beta = cuda_buffer_row(b, BUFFER_BETA, row, c->n_value_heads),
                            .a = layer->decay.place,
                            .dt = layer->dt_bias.place,
                            .norm = layer->ssm_norm.place,
                            .state = layer_state(b, ordinal),
                            .out = cuda_rows(b, b->layout.work.mixed, row, c->inner_dim),
                            .qkv_stride = c->conv_dim,
                            .z_stride = c->inner_dim,
                            .alpha_stride = c->n_value_heads,
                            .beta_stride = c->n_value_heads,
                            .out_stride = c->inner_dim,
                            .state_stride = b->state_bytes / sizeof(float),
                            .n_key_heads = c->n_key_heads,
                            .n_value_heads = c->n_value_heads,
                            .dim = c->state_dim,
                            .grouped = c->v_heads_grouped,
                            .eps = c->norm_eps};
}

static void run_delta_step(backend_cuda *b, const cuda_span *span, const layer_weights *layer,
                           uint32_t ordinal) {
    const model_config *c = b->config;
    size_t row = span->first_row;
    const float *raw = cuda_buffer_row(b, BUFFER_U, row, c->conv_dim);
    const delta_step_args args = {.base = delta_args(b, span, layer, ordinal, raw),
                                  .taps = layer->conv.place,
                                  .conv_state = layer_conv_state(b, ordinal),
                                  .turns = cuda_ptr(cuda_work_at(b, b->layout.work.turns)),
                                  .act = cuda_input_acts(b, INPUT_MIXED, row),
                                  .act_stride = cuda_act_row_bytes(c->inner_dim),
                                  .n_taps = c->conv_taps};
    cuda_launch(b, CUDA_KERNEL_delta_net_step, delta_step_shape(&args), &args);
}

static void run_delta_chunks(backend_cuda *b, const cuda_span *span, const layer_weights *layer,
                             uint32_t ordinal) {
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    size_t row = span->first_row;
    const float *convolved = cuda_rows(b, w->convolved, row, c->conv_dim);
    const delta_net_cuda_args args = {.base = delta_args(b, span, layer, ordinal, convolved),
                                      .act = cuda_input_acts(b, INPUT_MIXED, row),
                                      .act_stride = cuda_act_row_bytes(c->inner_dim),
                                      .workspace = cuda_rows(b, w->mixer_space, 0, 0),
                                      .raw = cuda_rows(b, w->delta_raw, row, c->inner_dim)};
    run_conv(b, span, layer, ordinal);
    cuda_launch(b, CUDA_KERNEL_delta_net_scores, delta_net_scores_shape(&args), &args);
    cuda_launch(b, CUDA_KERNEL_delta_net_chunks, delta_net_chunks_shape(&args), &args);
    cuda_launch(b, CUDA_KERNEL_delta_net_norm, delta_net_norm_shape(&args), &args);
}

void cuda_delta_net(backend *base, const layer_weights *layer, uint32_t ordinal,
                    input_forms forms) {
    backend_cuda *b = (backend_cuda *)base;
    cuda_begin_input(b, INPUT_MIXED, b->config->inner_dim, forms);
    for (size_t s = 0; s < b->n_spans; s++) {
        if (b->spans[s].decodes)
            run_delta_step(b, &b->spans[s], layer, ordinal);
        else
            run_delta_chunks(b, &b->spans[s], layer, ordinal);
    }
}

/* Attention. */

static kv_view layer_pages(const backend_cuda *b, uint32_t ordinal) {
    return (kv_view){.base = cuda_ptr(cuda_part_at(b, CUDA_PART_PAGES)),
                     .page_bytes = b->page_bytes,
                     .layer_offset = ordinal * b->layer_page_bytes,
                     .type = (uint32_t)b->params.kv,
                     .n_kv_heads = b->config->n_kv_heads,
                     .head_dim = b->config->head_dim};
}

static prepare_args prepare_of(const backend_cuda *b, const cuda_span *span,
                               const layer_weights *layer, kv_view pages) {
    const model_config *c = b->config;
    size_t qg = 2 * (size_t)c->n_heads * c->head_dim, kv = (size_t)c->n_kv_heads * c->head_dim;
    return (prepare_args){.base = {.batch = span->view,
                                   .kv = pages,
                                   .qg = cuda_buffer_row(b, BUFFER_Q, span->first_row, qg),
                                   .k = cuda_buffer_row(b, BUFFER_K, span->first_row, kv),
                                   .v = cuda_buffer_row(b, BUFFER_V, span->first_row, kv),
                                   .q_norm = layer->q_norm.place,
                                   .k_norm = layer->k_norm.place,
                                   .qg_stride = qg,
                                   .k_stride = kv,
                                   .v_stride = kv,
                                   .n_heads = c->n_heads,
                                   .n_rot = c->n_rot,
                                   .eps = c->norm_eps},
                          .inv_freq = cuda_rows(b, b->layout.work.inv_freq, 0, 0)};
}

static attention_cuda_args attention_of(const backend_cuda *b, const cuda_span *span,
                                        kv_view pages) {
    const model_config *c = b->config;
    uint32_t q_dim = c->n_heads * c->head_dim;
    return (attention_cuda_args){
        .base = {.batch = span->view,
                 .kv = pages,
                 .qg = cuda_buffer_row(b, BUFFER_Q, span->first_row, 2 * (size_t)q_dim),
                 .out = cuda_rows(b, b->layout.work.mixed, span->first_row, q_dim),
                 .qg_stride = 2 * (uint64_t)q_dim,
                 .out_stride = q_dim,
                 .n_heads = c->n_heads,
                 .scale = 1.0f / sqrtf((float)c->head_dim)},
        .act = cuda_input_acts(b, INPUT_MIXED, span->first_row),
        .act_stride = cuda_act_row_bytes(q_dim)};
}

/* As many splits as the longest timeline could want: bits and shapes never change with
 * what else runs. */
static void run_attention_step(backend_cuda *b, const cuda_span *span,
                               const layer_weights *layer, kv_view pages) {
    attention_cuda_args args = attention_of(b, span, pages);
    attention_step_args step = {.prepare = prepare_of(b, span, layer, pages),
                                .workspace = cuda_rows(b, b->layout.work.mixer_space, 0, 0),
                                .scale = args.base.scale};
    args.workspace = step.workspace;
    args.n_splits = step.n_splits = attention_step_splits(
        &step.prepare, b->params.n_pages * KV_PAGE_TOKENS, (uint32_t)b->card.n_sms);
    cuda_shape shape;
    cuda_kernel kernel = attention_step_choose(&step, &shape);
    if (span->n_rows > span->view.n_runs) { /* rows read those before them in the pages */
        cuda_launch(b, CUDA_KERNEL_attention_keep, attention_keep_shape(&step), &step);
        cuda_launch_after(b, kernel, shape, &step);
    } else {
        cuda_launch(b, kernel, shape, &step);
    }
    cuda_launch(b, CUDA_KERNEL_attention_combine, attention_combine_shape(&args), &args);
}

static void run_attention_prompt(backend_cuda *b, const cuda_span *span,
                                 const layer_weights *layer, kv_view pages) {
    const prepare_args prepare = prepare_of(b, span, layer, pages);
    const attention_cuda_args args = attention_of(b, span, pages);
    cuda_launch(b, CUDA_KERNEL_attention_prepare, attention_prepare_shape(&prepare), &prepare);
    if (pages.type != KV_F32)
        cuda_launch(b, CUDA_KERNEL_attention_half, attention_half_shape(&args), &args);
    else
        cuda_launch(b, CUDA_KERNEL_attention_tile, attention_tile_shape(&args), &args);
}

void cuda_attention(backend *base, const layer_weights *layer, uint32_t ordinal,
                    input_forms forms) {
    backend_cuda *b = (backend_cuda *)base;
    kv_view pages = layer_pages(b, ordinal);
    cuda_begin_input(b, INPUT_MIXED, b->config->n_heads * b->config->head_dim, forms);
    for (size_t s = 0; s < b->n_spans; s++) {
        if (b->spans[s].decodes)
            run_attention_step(b, &b->spans[s], layer, pages);
        else
            run_attention_prompt(b, &b->spans[s], layer, pages);
    }
}
