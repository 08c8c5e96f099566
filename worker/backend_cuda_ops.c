/* backend_cuda_ops.c - norms, matrices, and what mixes tokens, span by span. */
#include "worker/backend_cuda_experts.h"

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/mixers.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/rows.h"
#include <math.h>
#include <string.h>

/* Where rows of an input and of a buffer lie. */

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

static float *buffer_row(const backend_cuda *b, backend_buffer buffer, size_t row,
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

/* Row `row` of a table of ids of experts. */
static int32_t *id_row(const backend_cuda *b, uint64_t offset, size_t row) {
    return (int32_t *)cuda_ptr(cuda_work_at(b, offset)) + row * b->config->n_experts_used;
}

static void begin_input(backend_cuda *b, backend_input in, uint32_t n_cols, input_forms forms) {
    b->n_cols[in] = n_cols;
    b->has_act[in] = cuda_wants_act(forms);
}

/* Rows of an input, from a row on. */
static float *input_rows(const backend_cuda *b, backend_input in, size_t row) {
    return cuda_rows(b, place_of(b, in).rows, row, b->n_cols[in]);
}

static void *input_acts(const backend_cuda *b, backend_input in, size_t row) {
    return b->has_act[in] ? cuda_acts(b, place_of(b, in).acts, row, b->n_cols[in]) : NULL;
}

/* Norms. */

static void run_norm(backend_cuda *b, const float *weight, const float *x, backend_input in,
                     uint32_t first_row, const uint32_t *rows, uint32_t n_rows) {
    uint32_t dim = b->config->n_embd;
    const norm_args args = {.x = x,
                            .weight = weight,
                            .y = input_rows(b, in, first_row),
                            .act = input_acts(b, in, first_row),
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
    begin_input(b, INPUT_HIDDEN, b->config->n_embd, forms);
    b->norm = weight->place;
}

static void norm_span(backend_cuda *b, const cuda_span *s) {
    run_norm(b, b->norm, buffer_row(b, BUFFER_RESIDUAL, s->first_row, b->config->n_embd),
             INPUT_HIDDEN, s->first_row, NULL, s->n_rows);
}

void cuda_hidden(backend *base, const weight_vector *weight) {
    backend_cuda *b = (backend_cuda *)base;
    begin_input(b, INPUT_HIDDEN, b->config->n_embd, 0); /* floats alone */
    run_norm(b, weight->place, buffer_row(b, BUFFER_RESIDUAL, 0, b->config->n_embd),
             INPUT_HIDDEN, 0, NULL, b->batch.view.n_rows);
}

void cuda_final_norm(backend *base, const weight_vector *weight, input_forms forms) {
    backend_cuda *b = (backend_cuda *)base;
    begin_input(b, INPUT_FINAL, b->config->n_embd, forms);
    run_norm(b, weight->place, buffer_row(b, BUFFER_RESIDUAL, 0, b->config->n_embd),
             INPUT_FINAL, 0, cuda_ptr(cuda_work_at(b, b->layout.work.output_rows)),
             b->batch.n_outputs);
}

/* Matrices. */

/* Quantized rows are given only where a matrix reads them: the launch makes room for them. */
static bool any_quantized(const cuda_product *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!matvec_is_float((uint32_t)list[i].matrix->type)) return true;
    }
    return false;
}

static matvec_segment segment_of(const cuda_product *p) {
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

/* norm: weights of the norm that the rows of x still need; NULL: they are as they should be. */
static void multiply_few(backend_cuda *b, const cuda_product *list, size_t n, const float *x,
                         const void *act, const float *norm, size_t n_rows) {
    CHECK(n > 0 && list[0].matrix != NULL);
    matvec_args args;
    memset(&args, 0, sizeof args);
    uint32_t n_cols = list[0].matrix->n_cols;
    args.x = x;
    args.act = norm == NULL && any_quantized(list, n) ? act : NULL;
    args.norm = norm;
    args.eps = b->config->norm_eps;
    args.x_stride = n_cols;
    args.act_stride = cuda_act_row_bytes(n_cols);
    args.n_cols = n_cols;
    args.n_tokens = (uint32_t)n_rows;
    args.n_segments = (uint32_t)n;
    CHECK_HOT(n <= MATVEC_MAX_SEGMENTS);
    for (size_t i = 0; i < n; i++)
        args.segments[i] = segment_of(&list[i]);
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
        const float *x = buffer_row(b, BUFFER_RESIDUAL, s->first_row, b->config->n_embd);
        multiply_few(b, list, n, x, NULL, b->norm, s->n_rows);
        return;
    }
    norm_span(b, s);
    cuda_multiply(b, s->decodes, list, n, input_rows(b, INPUT_HIDDEN, s->first_row),
                  input_acts(b, INPUT_HIDDEN, s->first_row), s->n_rows);
}

void cuda_project(backend *base, backend_input in, const projection *list, size_t n) {
    backend_cuda *b = (backend_cuda *)base;
    cuda_product products[MATVEC_MAX_SEGMENTS];
    for (size_t s = 0; s < b->n_spans; s++) {
        const cuda_span *span = &b->spans[s];
        for (size_t i = 0; i < n; i++) {
            size_t stride = list[i].matrix->n_rows;
            products[i] = (cuda_product){list[i].matrix,
                                         buffer_row(b, list[i].out, span->first_row, stride),
                                         stride, list[i].add};
        }
        if (in == INPUT_HIDDEN) {
            multiply_hidden(b, span, products, n);
            continue;
        }
        cuda_multiply(b, span->decodes, products, n, input_rows(b, in, span->first_row),
                      input_acts(b, in, span->first_row), span->n_rows);
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
    begin_input(b, INPUT_GATED, n_ff, forms);
    for (size_t s = 0; s < b->n_spans; s++) {
        const cuda_span *span = &b->spans[s];
        size_t row = span->first_row;
        const cuda_product products[] = {
            {gate, cuda_rows(b, w->gated, row, n_ff), n_ff, false},
            {up, cuda_rows(b, w->gated_up, row, n_ff), n_ff, false}};
        multiply_hidden(b, span, products, 2);
    }
    float *out = cuda_rows(b, w->gated, 0, n_ff);
    cuda_swiglu(b, out, cuda_rows(b, w->gated_up, 0, n_ff), out, input_acts(b, INPUT_GATED, 0),
                b->batch.view.n_rows, n_ff);
}

/* The router. */

/* Logits of the router and of the shared expert's gate, and with them INPUT_HIDDEN. */
static void run_router_logits(backend_cuda *b, const cuda_span *s, const cuda_product *list,
                              size_t n) {
    uint32_t dim = b->config->n_embd;
    router_logits_args args = {.x = buffer_row(b, BUFFER_RESIDUAL, s->first_row, dim),
                               .norm = b->norm,
                               .y = input_rows(b, INPUT_HIDDEN, s->first_row),
                               .act = input_acts(b, INPUT_HIDDEN, s->first_row),
                               .x_stride = dim,
                               .y_stride = dim,
                               .act_stride = cuda_act_row_bytes(dim),
                               .n_cols = dim,
                               .n_tokens = s->n_rows,
                               .n_segments = (uint32_t)n,
                               .eps = b->config->norm_eps};
    for (size_t i = 0; i < n; i++)
        args.segments[i] = segment_of(&list[i]);
    cuda_launch(b, CUDA_KERNEL_router_logits, router_logits_shape(&args), &args);
}

static bool all_float(const cuda_product *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!matvec_is_float((uint32_t)list[i].matrix->type)) return false;
    }
    return true;
}

static void run_router(backend_cuda *b, const cuda_span *s, const layer_weights *l,
                       const float *logits) {
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    uint32_t layer = (uint32_t)(l - b->weights->layers);
    size_t routed_row = (size_t)layer * b->batch.view.n_rows + s->first_row;
    router_cuda_args args = {
        .base = {.logits = logits,
                 .experts = id_row(b, w->chosen, s->first_row),
                 .weights = cuda_rows(b, w->weights, s->first_row, c->n_experts_used),
                 .logits_stride = c->n_experts,
                 .n_experts = c->n_experts,
                 .n_used = c->n_experts_used},
        .routed = b->batch.routed != NULL ? id_row(b, w->routed, routed_row) : NULL};
    if (s->decodes && cuda_brings(b, s, l)) {
        cuda_fetch_route(b, l, layer, &args);
        return;
    }
    if (s->decodes && b->experts.cache == NULL) {
        args.records = cuda_ptr(cuda_records_row(b, layer));
        args.places = cuda_places_row(b, s);
    }
    cuda_launch(b, CUDA_KERNEL_router, router_shape(s->n_rows), &args);
}

void cuda_route(backend *base, const layer_weights *l) {
    backend_cuda *b = (backend_cuda *)base;
    const model_config *c = b->config;
    const cuda_work *w = &b->layout.work;
    for (size_t i = 0; i < b->n_spans; i++) {
        const cuda_span *s = &b->spans[i];
        float *logits = cuda_rows(b, w->router_logits, s->first_row, c->n_experts);
        const cuda_product products[] = {
            {&l->router, logits, c->n_experts, false},
            {&l->shared_gate, cuda_rows(b, w->shared_logit, s->first_row, 1), 1, false}};
        if (s->decodes && all_float(products, 2)) {
            run_router_logits(b, s, products, 2);
        } else {
            norm_span(b, s);
            cuda_multiply(b, s->decodes, products, 2, input_rows(b, INPUT_HIDDEN, s->first_row),
                          input_acts(b, INPUT_HIDDEN, s->first_row), s->n_rows);
        }
        run_router(b, s, l, logits);
    }
}

/* Logits. */

status cuda_read_logits(backend *base, float *out, error *err) {
    backend_cuda *b = (backend_cuda *)base;
    size_t bytes = (size_t)b->batch.n_outputs * b->config->n_vocab * sizeof(float);
    void *to = b->pinned_logits != NULL ? b->pinned_logits : out;
    (void)CUDA_DO(b, cuMemcpyDtoHAsync, to, cuda_part_at(b, CUDA_PART_LOGITS), bytes,
                  b->compute);
    (void)CUDA_DO(b, cuStreamSynchronize, b->compute);
    if (b->failed != STATUS_OK) return error_set(err, b->failed, "%s", b->failure.text);
    if (to != out) memcpy(out, to, bytes);
    return STATUS_OK;
}

/* The keys come back into their picture. */
static status find_best(backend_cuda *b, error *err) {
    uint64_t *keys = cuda_picture(b, b->layout.work.best);
    const argmax_args args = {.x = cuda_ptr(cuda_part_at(b, CUDA_PART_LOGITS)),
                              .keys = cuda_ptr(cuda_work_at(b, b->layout.work.best)),
                              .stride = b->config->n_vocab,
                              .n = b->batch.best_of,
                              .n_rows = b->batch.n_outputs};
    cuda_launch(b, CUDA_KERNEL_argmax, argmax_shape(&args), &args);
    cuda_end_segment(b);
    (void)CUDA_DO(b, cuMemcpyDtoHAsync, keys, cuda_work_at(b, b->layout.work.best),
                  args.n_rows * sizeof *keys, b->compute);
    (void)CUDA_DO(b, cuStreamSynchronize, b->compute);
    if (b->failed != STATUS_OK) return error_set(err, b->failed, "%s", b->failure.text);
    for (uint32_t i = 0; i < args.n_rows; i++) {
        uint32_t bits = argmax_value_bits(keys[i]);
        b->batch.best[i].id = argmax_index(keys[i]);
        memcpy(&b->batch.best[i].logit, &bits, sizeof bits);
    }
    return STATUS_OK;
}

status cuda_logits(backend *base, const weight_matrix *head, float *out, error *err) {
    enum { FEW_OUTPUTS = 32 };
    backend_cuda *b = (backend_cuda *)base;
    float *logits = cuda_ptr(cuda_part_at(b, CUDA_PART_LOGITS));
    const cuda_product product = {head, logits, head->n_rows, false};
    /* By what the model may ask for, not by what this step does: bits stay the same. */
    bool few = b->params.max_outputs <= FEW_OUTPUTS;
    cuda_multiply(b, few, &product, 1, input_rows(b, INPUT_FINAL, 0),
                  input_acts(b, INPUT_FINAL, 0), b->batch.n_outputs);
    if (b->batch.best != NULL) return find_best(b, err);
    cuda_end_segment(b);
    return cuda_read_logits(base, out, err);
}

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
        .x = buffer_row(b, BUFFER_U, span->first_row, c->conv_dim),
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
                            .z = buffer_row(b, BUFFER_Z, row, c->inner_dim),
                            .alpha = buffer_row(b, BUFFER_ALPHA, row, c->n_value_heads),
                            .beta = buffer_row(b, BUFFER_BETA, row, c->n_value_heads),
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
    const float *raw = buffer_row(b, BUFFER_U, row, c->conv_dim);
    const delta_step_args args = {.base = delta_args(b, span, layer, ordinal, raw),
                                  .taps = layer->conv.place,
                                  .conv_state = layer_conv_state(b, ordinal),
                                  .turns = cuda_ptr(cuda_work_at(b, b->layout.work.turns)),
                                  .act = input_acts(b, INPUT_MIXED, row),
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
                                      .act = input_acts(b, INPUT_MIXED, row),
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
    begin_input(b, INPUT_MIXED, b->config->inner_dim, forms);
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
                                   .qg = buffer_row(b, BUFFER_Q, span->first_row, qg),
                                   .k = buffer_row(b, BUFFER_K, span->first_row, kv),
                                   .v = buffer_row(b, BUFFER_V, span->first_row, kv),
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
                 .qg = buffer_row(b, BUFFER_Q, span->first_row, 2 * (size_t)q_dim),
                 .out = cuda_rows(b, b->layout.work.mixed, span->first_row, q_dim),
                 .qg_stride = 2 * (uint64_t)q_dim,
                 .out_stride = q_dim,
                 .n_heads = c->n_heads,
                 .scale = 1.0f / sqrtf((float)c->head_dim)},
        .act = input_acts(b, INPUT_MIXED, span->first_row),
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
    begin_input(b, INPUT_MIXED, b->config->n_heads * b->config->head_dim, forms);
    for (size_t s = 0; s < b->n_spans; s++) {
        if (b->spans[s].decodes)
            run_attention_step(b, &b->spans[s], layer, pages);
        else
            run_attention_prompt(b, &b->spans[s], layer, pages);
    }
}
