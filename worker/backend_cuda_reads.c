/* backend_cuda_reads.c - what the host reads of a step: logits, or the best ids by them. */
#include "worker/backend_cuda_ops.h"

#include "kernels/cuda/rows.h"
#include <string.h>

status cuda_read_logits(backend *base, float *out, error *err) {
    backend_cuda *b = (backend_cuda *)base;
    size_t bytes = (size_t)b->batch.n_outputs * b->config->n_vocab * sizeof(float);
    void *to = b->pinned_logits != NULL ? b->pinned_logits : out;
    cuda_box_serve(b, b->config->n_layers); /* a copy to memory of the caller's waits */
    (void)CUDA_DO(b, cuMemcpyDtoHAsync, to, cuda_part_at(b, CUDA_PART_LOGITS), bytes,
                  b->compute);
    (void)cuda_finish(b);
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
    cuda_box_serve(b, b->config->n_layers);
    (void)CUDA_DO(b, cuMemcpyDtoHAsync, keys, cuda_work_at(b, b->layout.work.best),
                  args.n_rows * sizeof *keys, b->compute);
    (void)cuda_finish(b);
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
    cuda_multiply(b, few, &product, 1, cuda_input_rows(b, INPUT_FINAL, 0),
                  cuda_input_acts(b, INPUT_FINAL, 0), b->batch.n_outputs);
    if (b->batch.best != NULL) return find_best(b, err);
    cuda_end_segment(b);
    return cuda_read_logits(base, out, err);
}
