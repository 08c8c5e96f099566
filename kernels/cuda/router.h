/* router.h - router logits from the residual, and the experts of each row and their weights.
 *
 * router_logits  y = x / sqrt(mean(x^2) + eps) * norm as float32 and, where act is given,
 *                quantized (act.h); out = W y for the rows of up to two float matrices (the
 *                router and the shared expert's gate).
 * router         kernels/router.h, a warp a row.
 *
 * routed  ids that are told in place of the chosen ones, [n_rows][n_used]; NULL: none are.  The
 *         weights stay those of the row's own choice.  They are read before the wait.
 * places  where the chosen experts' records lie, as records has it, which nothing changes during
 *         a step (experts.h); only where records is not NULL.
 * Limits  at most ROUTER_MAX_EXPERTS experts, n_used at most ROUTER_MAX_CHOSEN.
 */
#ifndef SILICEO_KERNELS_CUDA_ROUTER_H
#define SILICEO_KERNELS_CUDA_ROUTER_H

#include "kernels/cuda/matvec.h"
#include "kernels/router.h"

enum { ROUTER_MAX_EXPERTS = 512, ROUTER_MAX_CHOSEN = 32 };

typedef struct router_cuda_args {
    router_args base;
    const int32_t *routed;
    const uint64_t *records; /* [n_experts], or NULL */
    uint64_t *places;        /* [n_rows][n_used] */
} router_cuda_args;
KERNEL_ARGS_SIZE(router_cuda_args, 64);

/* n_cols: a multiple of 4, of 32 where act is given. */
typedef struct router_logits_args {
    const float *x;
    const float *norm;
    float *y;
    void *act;
    uint64_t x_stride; /* floats */
    uint64_t y_stride;
    uint64_t act_stride; /* bytes */
    uint32_t n_cols;
    uint32_t n_tokens;
    uint32_t n_segments;
    float eps;
    matvec_segment segments[2];
} router_logits_args;
KERNEL_ARGS_SIZE(router_logits_args, 184);

enum { ROUTER_LOGITS_BLOCK = 256 };

/* A block makes one row of the matrices and one part of y. */
static inline cuda_shape router_logits_shape(const router_logits_args *a) {
    uint32_t rows = 0, parts = cuda_ceil_div(a->n_cols, (uint32_t)ROUTER_LOGITS_BLOCK);
    for (uint32_t i = 0; i < a->n_segments; i++)
        rows += a->segments[i].n_rows;
    return cuda_shape_of(rows > parts ? rows : parts, 1, ROUTER_LOGITS_BLOCK);
}

static inline cuda_shape router_shape(uint32_t n_rows) {
    return cuda_shape_of(n_rows, 1, 32);
}

#endif
