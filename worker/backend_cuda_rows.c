/* backend_cuda_rows.c - where rows of inputs and buffers lie, and the norms that make inputs. */
#include "worker/backend_cuda_ops.h"

#include "kernels/cuda/rows.h"

typedef struct input_place {
    uint64_t rows, acts;
} input_place;

static input_place place_of(const backend_cuda *b, backend_input in) {
    const cuda_work *w = &b->layout.work;
    const input_place places[INPUT_COUNT] = {
        [INPUT_HIDDEN] = {w->hidden, w->hidden_act},
        [INPUT_MIXED] = {w->mixed, w->mixed_act},
        [INPUT_GATED] = {w->gated, w->gated_act},
        [INPUT_FINAL] = {w->final, w->final_act},
    };
    return places[in];
}

float *cuda_buffer_row(const backend_cuda *b, backend_buffer buffer, size_t row,
                       size_t n_cols) {
    const cuda_work *w = &b->layout.work;
    const uint64_t offsets[BUFFER_COUNT] = {
        [BUFFER_RESIDUAL] = w->residual,
        [BUFFER_Q] = w->q,
        [BUFFER_K] = w->k,
        [BUFFER_V] = w->v,
        [BUFFER_U] = w->u,
        [BUFFER_Z] = w->z,
        [BUFFER_ALPHA] = w->alpha,
        [BUFFER_BETA] = w->beta,
    };
    return cuda_rows(b, offsets[buffer], row, n_cols);
}

void cuda_begin_input(backend_cuda *b, backend_input in, uint32_t n_cols, input_forms forms) {
    b->n_cols[in] = n_cols;
    b->has_act[in] = cuda_wants_act(forms);
}

float *cuda_input_rows(const backend_cuda *b, backend_input in, size_t row) {
    return cuda_rows(b, place_of(b, in).rows, row, b->n_cols[in]);
}

void *cuda_input_acts(const backend_cuda *b, backend_input in, size_t row) {
    return b->has_act[in] ? cuda_acts(b, place_of(b, in).acts, row, b->n_cols[in]) : NULL;
}

static void run_norm(backend_cuda *b, const float *weight, const float *x, backend_input in,
                     uint32_t first_row, const uint32_t *rows, uint32_t n_rows) {
    uint32_t dim = b->config->n_embd;
    const norm_args args = {.x = x,
                            .weight = weight,
                            .y = cuda_input_rows(b, in, first_row),
                            .act = cuda_input_acts(b, in, first_row),
                            .rows = rows,
                            .x_stride = dim,
                            .y_stride = dim,
                            .act_stride = cuda_act_row_bytes(dim),
                            .dim = dim,
                            .eps = b->config->norm_eps};
    cuda_launch(b, CUDA_KERNEL_rmsnorm, rmsnorm_shape(&args, n_rows), &args);
}

/* The norm of a layer runs with what reads it: kernels of decoding rows norm for themselves
 * where they can, which is cheaper than a launch. */
void cuda_norm(backend *base, const weight_vector *weight, input_forms forms) {
    backend_cuda *b = (backend_cuda *)base;
    cuda_begin_input(b, INPUT_HIDDEN, b->config->n_embd, forms);
    b->norm = weight->place;
}

void cuda_norm_span(backend_cuda *b, const cuda_span *s) {
    run_norm(b, b->norm, cuda_buffer_row(b, BUFFER_RESIDUAL, s->first_row, b->config->n_embd),
             INPUT_HIDDEN, s->first_row, NULL, s->n_rows);
}

void cuda_hidden(backend *base, const weight_vector *weight) {
    backend_cuda *b = (backend_cuda *)base;
    cuda_begin_input(b, INPUT_HIDDEN, b->config->n_embd, 0); /* floats alone */
    run_norm(b, weight->place, cuda_buffer_row(b, BUFFER_RESIDUAL, 0, b->config->n_embd),
             INPUT_HIDDEN, 0, NULL, b->batch.view.n_rows);
}

void cuda_final_norm(backend *base, const weight_vector *weight, input_forms forms) {
    backend_cuda *b = (backend_cuda *)base;
    cuda_begin_input(b, INPUT_FINAL, b->config->n_embd, forms);
    run_norm(b, weight->place, cuda_buffer_row(b, BUFFER_RESIDUAL, 0, b->config->n_embd),
             INPUT_FINAL, 0, cuda_ptr(cuda_work_at(b, b->layout.work.output_rows)),
             b->batch.n_outputs);
}
