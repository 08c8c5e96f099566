/* backend_cuda_router.c - which experts a row goes to, span by span. */
#include "worker/backend_cuda_experts.h"
#include "worker/backend_cuda_ops.h"

#include "kernels/cuda/router.h"

/* Row `row` of a table of ids of experts. */
static int32_t *id_row(const backend_cuda *b, uint64_t offset, size_t row) {
    return (int32_t *)cuda_ptr(cuda_work_at(b, offset)) + row * b->config->n_experts_used;
}

/* Logits of the router and of the shared expert's gate, and with them INPUT_HIDDEN. */
static void run_router_logits(backend_cuda *b, const cuda_span *s, const cuda_product *list,
                              size_t n) {
    uint32_t dim = b->config->n_embd;
    router_logits_args args = {.x = cuda_buffer_row(b, BUFFER_RESIDUAL, s->first_row, dim),
                               .norm = b->norm,
                               .y = cuda_input_rows(b, INPUT_HIDDEN, s->first_row),
                               .act = cuda_input_acts(b, INPUT_HIDDEN, s->first_row),
                               .x_stride = dim,
                               .y_stride = dim,
                               .act_stride = cuda_act_row_bytes(dim),
                               .n_cols = dim,
                               .n_tokens = s->n_rows,
                               .n_segments = (uint32_t)n,
                               .eps = b->config->norm_eps};
    for (size_t i = 0; i < n; i++)
        args.segments[i] = cuda_segment_of(&list[i]);
    cuda_launch(b, CUDA_KERNEL_router_logits, router_logits_shape(&args), &args);
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
        if (s->decodes && cuda_all_float(products, 2)) {
            run_router_logits(b, s, products, 2);
        } else {
            cuda_norm_span(b, s);
            cuda_multiply(b, s->decodes, products, 2,
                          cuda_input_rows(b, INPUT_HIDDEN, s->first_row),
                          cuda_input_acts(b, INPUT_HIDDEN, s->first_row), s->n_rows);
        }
        run_router(b, s, l, logits);
    }
}
