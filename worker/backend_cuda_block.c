/* backend_cuda_block.c - what an MTP block makes of a token and the row before it, spec 4.9: their
 * norms side by side, and the matrix that reads both.
 */
#include "worker/backend_cuda.h"

#include "kernels/cuda/rows.h"

void cuda_send_before(backend_cuda *b) {
    const batch_view *v = &b->batch.view;
    size_t row = b->config->n_embd * sizeof(float);
    if (b->weights->block.in.data == NULL) return;
    for (uint32_t i = 0; i < v->n_runs; i++) {
        cuda_pointer to = cuda_work_at(b, b->layout.work.before) + v->runs[i].first_row * row;
        (void)CUDA_DO(b, cuMemcpyHtoDAsync, to, b->batch.before[i], v->runs[i].n_rows * row,
                      b->compute);
    }
}

/* Half of the pair's rows: those of x, normed. */
static void norm_half(backend_cuda *b, const float *weight, uint64_t x, uint32_t half) {
    uint32_t dim = b->config->n_embd, n_rows = b->batch.view.n_rows;
    const norm_args args = {.x = cuda_rows(b, x, 0, 0),
                            .weight = weight,
                            .y = cuda_rows(b, b->layout.work.pair, 0, 0) + half * dim,
                            .x_stride = dim,
                            .y_stride = 2 * (uint64_t)dim,
                            .dim = dim,
                            .eps = b->config->norm_eps};
    cuda_launch(b, CUDA_KERNEL_rmsnorm, rmsnorm_shape(&args, n_rows), &args);
}

void cuda_embed_after(backend *base, const weight_matrix *table, const block_weights *block,
                      input_forms forms) {
    backend_cuda *b = (backend_cuda *)base;
    const cuda_work *w = &b->layout.work;
    uint32_t dim = b->config->n_embd, cols = 2 * dim;
    bool quantized = cuda_wants_act(forms);
    b->base.ops->embed(base, table);
    norm_half(b, block->embedding_norm.place, w->residual, 0);
    norm_half(b, block->hidden_norm.place, w->before, 1);
    const quantize_args args = {.x = cuda_rows(b, w->pair, 0, 0),
                                .act = cuda_acts(b, w->pair_rows_act, 0, cols),
                                .x_stride = cols,
                                .act_stride = cuda_act_row_bytes(cols),
                                .n_cols = cols,
                                .n_rows = b->batch.view.n_rows};
    if (quantized) cuda_launch(b, CUDA_KERNEL_quantize, quantize_shape(&args), &args);
    for (size_t s = 0; s < b->n_spans; s++) {
        const cuda_span *span = &b->spans[s];
        const cuda_product product = {.matrix = &block->in,
                                      .out = cuda_rows(b, w->residual, span->first_row, dim),
                                      .out_stride = dim};
        cuda_multiply(b, span->decodes, &product, 1,
                      cuda_rows(b, w->pair, span->first_row, cols),
                      quantized ? cuda_acts(b, w->pair_rows_act, span->first_row, cols) : NULL,
                      span->n_rows);
    }
}
