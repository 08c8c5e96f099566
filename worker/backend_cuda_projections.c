/* backend_cuda_projections.c - products of rows with matrices, span by span. */
#include "worker/backend_cuda_ops.h"

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rows.h"
#include <string.h>

bool cuda_all_float(const cuda_product *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!matvec_is_float((uint32_t)list[i].matrix->type)) return false;
    }
    return true;
}

matvec_segment cuda_segment_of(const cuda_product *p) {
    cuda_matrix m = cuda_matrix_of(p->matrix);
    return (matvec_segment){.weights = p->matrix->place,
                            .out = p->out,
                            .row_bytes = m.row_bytes,
                            .out_stride = p->out_stride,
                            .split_d = m.split_d,
                            .type = m.type,
                            .n_rows = p->matrix->n_rows,
                            .add = p->add};
}

/* Quantized rows are given only where a matrix reads them: the launch makes room for them.
 * norm: weights of the norm that the rows of x still need; NULL: they are as they should be. */
static void multiply_few(backend_cuda *b, const cuda_product *list, size_t n, const float *x,
                         const void *act, const float *norm, size_t n_rows) {
    CHECK(n > 0 && list[0].matrix != NULL);
    matvec_args args;
    memset(&args, 0, sizeof args);
    uint32_t n_cols = list[0].matrix->n_cols;
    args.x = x;
    args.act = norm == NULL && !cuda_all_float(list, n) ? act : NULL;
    args.norm = norm;
    args.eps = b->config->norm_eps;
    args.x_stride = n_cols;
    args.act_stride = cuda_act_row_bytes(n_cols);
    args.n_cols = n_cols;
    args.n_tokens = (uint32_t)n_rows;
    args.n_segments = (uint32_t)n;
    CHECK_HOT(n <= MATVEC_MAX_SEGMENTS);
    for (size_t i = 0; i < n; i++)
        args.segments[i] = cuda_segment_of(&list[i]);
    cuda_shape shape;
    cuda_kernel kernel =
        matvec_choose(&args, (uint32_t)b->card.n_sms, (uint32_t)b->card.major, &shape);
    cuda_launch(b, kernel, shape, &args);
}

static matmul_matrix matrix_of(const cuda_product *p) {
    cuda_matrix m = cuda_matrix_of(p->matrix);
    return (matmul_matrix){.weights = p->matrix->place,
                           .out = p->out,
                           .row_bytes = m.row_bytes,
                           .split_d = m.split_d,
                           .out_stride = p->out_stride,
                           .type = m.type,
                           .n_rows = p->matrix->n_rows,
                           .add = p->add};
}

static matmul_args many_args(const cuda_product *p, const float *x, const void *act,
                             size_t n_rows) {
    const matmul_matrix m = matrix_of(p);
    return (matmul_args){.weights = m.weights,
                         .x = x,
                         .act = act,
                         .out = m.out,
                         .row_bytes = m.row_bytes,
                         .split_d = m.split_d,
                         .x_stride = p->matrix->n_cols,
                         .act_stride = cuda_act_row_bytes(p->matrix->n_cols),
                         .out_stride = m.out_stride,
                         .type = m.type,
                         .n_rows = m.n_rows,
                         .n_cols = p->matrix->n_cols,
                         .n_tokens = (uint32_t)n_rows,
                         .add = m.add};
}

/* The first matrices of the list that one launch can do; returns how many. */
static size_t multiply_many(backend_cuda *b, const cuda_product *list, size_t n, const float *x,
                            const void *act, size_t n_rows) {
    matmul_args args = many_args(list, x, act, n_rows);
    bool is_float = matvec_is_float((uint32_t)list->matrix->type);
    while (args.n_more < MATMUL_MORE && args.n_more + 1 < n) {
        const cuda_product *next = &list[args.n_more + 1];
        if (matvec_is_float((uint32_t)next->matrix->type) != is_float) break;
        args.more[args.n_more++] = matrix_of(next);
    }
    cuda_shape shape;
    cuda_kernel kernel = matmul_choose(&args, &shape);
    cuda_launch(b, kernel, shape, &args);
    return 1 + args.n_more;
}

void cuda_multiply(backend_cuda *b, bool few, const cuda_product *list, size_t n,
                   const float *x, const void *act, size_t n_rows) {
    if (few) {
        multiply_few(b, list, n, x, act, NULL, n_rows);
        return;
    }
    for (size_t i = 0; i < n;)
        i += multiply_many(b, list + i, n - i, x, act, n_rows);
}

bool cuda_can_gate(const weight_matrix *gate, const weight_matrix *up, const void *act,
                   const void *out) {
    return act != NULL && out != NULL && gate->type == up->type &&
           !matvec_is_float((uint32_t)gate->type) && gate->row_bytes == up->row_bytes &&
           gate->n_rows == up->n_rows && gate->n_rows % 32 == 0;
}

void cuda_multiply_gated(backend_cuda *b, const weight_matrix *gate, const weight_matrix *up,
                         const void *act, void *out, size_t n_rows) {
    const cuda_product product = {.matrix = gate};
    matmul_args args = many_args(&product, NULL, act, n_rows);
    args.gated_act = out;
    args.gated_stride = cuda_act_row_bytes(gate->n_rows);
    args.up_offset = (uint64_t)(uintptr_t)up->place - (uint64_t)(uintptr_t)gate->place;
    cuda_shape shape;
    cuda_kernel kernel = matmul_choose(&args, &shape);
    cuda_launch(b, kernel, shape, &args);
}

/* Whether multiply_few can norm for itself: integer products alone. */
static bool norms_itself(const backend_cuda *b, const cuda_product *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (matvec_is_float((uint32_t)list[i].matrix->type)) return false;
    }
    return b->has_act[INPUT_HIDDEN] && b->config->n_embd <= MATVEC_MAX_NORM;
}

/* Matrices on INPUT_HIDDEN, which is normed on the way. */
static void multiply_hidden(backend_cuda *b, const cuda_span *s, const cuda_product *list,
                            size_t n) {
    if (s->decodes && norms_itself(b, list, n)) {
        const float *x = cuda_buffer_row(b, BUFFER_RESIDUAL, s->first_row, b->config->n_embd);
        multiply_few(b, list, n, x, NULL, b->norm, s->n_rows);
        return;
    }
    cuda_norm_span(b, s);
    cuda_multiply(b, s->decodes, list, n, cuda_input_rows(b, INPUT_HIDDEN, s->first_row),
                  cuda_input_acts(b, INPUT_HIDDEN, s->first_row), s->n_rows);
}

void cuda_project(backend *base, backend_input in, const projection *list, size_t n) {
    backend_cuda *b = (backend_cuda *)base;
    cuda_product products[MATVEC_MAX_SEGMENTS];
    for (size_t s = 0; s < b->n_spans; s++) {
        const cuda_span *span = &b->spans[s];
        for (size_t i = 0; i < n; i++) {
            size_t stride = list[i].matrix->n_rows;
            products[i] = (cuda_product){
                list[i].matrix, cuda_buffer_row(b, list[i].out, span->first_row, stride),
                stride, list[i].add};
        }
        if (in == INPUT_HIDDEN) {
            multiply_hidden(b, span, products, n);
            continue;
        }
        cuda_multiply(b, span->decodes, products, n, cuda_input_rows(b, in, span->first_row),
                      cuda_input_acts(b, in, span->first_row), span->n_rows);
    }
}

void cuda_swiglu(backend_cuda *b, const float *gate, const float *up, float *out, void *act,
                 size_t n_rows, uint32_t n_cols) {
    const swiglu_q8_args args = {.gate = gate,
                                 .up = up,
                                 .out = out,
                                 .act = act,
                                 .gate_stride = n_cols,
                                 .up_stride = n_cols,
                                 .out_stride = n_cols,
                                 .act_stride = cuda_act_row_bytes(n_cols),
                                 .n_cols = n_cols,
                                 .n_rows = (uint32_t)n_rows};
    cuda_launch(b, CUDA_KERNEL_swiglu, swiglu_shape(&args), &args);
}

void cuda_gated(backend *base, const weight_matrix *gate, const weight_matrix *up,
                input_forms forms) {
    backend_cuda *b = (backend_cuda *)base;
    const cuda_work *w = &b->layout.work;
    uint32_t n_ff = gate->n_rows;
    cuda_begin_input(b, INPUT_GATED, n_ff, forms);
    for (size_t s = 0; s < b->n_spans; s++) {
        const cuda_span *span = &b->spans[s];
        size_t row = span->first_row;
        const cuda_product products[] = {
            {gate, cuda_rows(b, w->gated, row, n_ff), n_ff, false},
            {up, cuda_rows(b, w->gated_up, row, n_ff), n_ff, false}};
        multiply_hidden(b, span, products, 2);
    }
    float *out = cuda_rows(b, w->gated, 0, n_ff);
    cuda_swiglu(b, out, cuda_rows(b, w->gated_up, 0, n_ff), out,
                cuda_input_acts(b, INPUT_GATED, 0), b->batch.view.n_rows, n_ff);
}
