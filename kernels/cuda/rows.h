/* rows.h - ops on rows that stand alone: embedding, norm, SwiGLU, argmax.
 *
 * embed      kernels/embed.h; the tokens are in device memory.
 * rmsnorm    y = x / sqrt(mean(x^2) + eps) * weight, after x += delta where delta is given;
 *            y as float32 (y), quantized (act) or both: either may be NULL.  y may be x.
 * swiglu     out = silu(gate) * up, as float32, quantized or both.
 * argmax     index of the largest of each row, the lowest among equals; NaN is never chosen.
 * Limits     quantized output wants n a multiple of 32; rmsnorm dim at most 16384.
 */
#ifndef SILICEO_KERNELS_CUDA_ROWS_H
#define SILICEO_KERNELS_CUDA_ROWS_H

#include "kernels/cuda/act.h"
#include "kernels/embed.h"

static inline cuda_shape embed_shape(const embed_args *a, uint32_t n_rows) {
    return cuda_shape_of(n_rows, cuda_ceil_div(a->dim, 1024), 128);
}

typedef struct norm_args {
    float *x; /* written only with delta */
    const float *delta;
    const float *weight;
    float *y;
    void *act;
    const uint32_t *rows; /* row r reads x row rows[r]; NULL: r.  Not with delta. */
    uint64_t x_stride;    /* floats */
    uint64_t delta_stride;
    uint64_t y_stride;
    uint64_t act_stride; /* bytes */
    uint32_t dim;
    float eps;
} norm_args;
KERNEL_ARGS_SIZE(norm_args, 88);

static inline cuda_shape rmsnorm_shape(uint32_t n_rows) {
    return cuda_shape_of(n_rows, 1, 1024);
}

typedef struct swiglu_q8_args {
    const float *gate;
    const float *up;
    float *out;
    void *act;
    uint64_t gate_stride; /* floats */
    uint64_t up_stride;
    uint64_t out_stride;
    uint64_t act_stride; /* bytes */
    uint32_t n_cols;
    uint32_t n_rows;
} swiglu_q8_args;
KERNEL_ARGS_SIZE(swiglu_q8_args, 72);

static inline cuda_shape swiglu_shape(const swiglu_q8_args *a) {
    return cuda_shape_of(a->n_rows, cuda_ceil_div(a->n_cols, 1024), 256);
}

typedef struct argmax_args {
    const float *x;
    int32_t *index;  /* [n_rows]; -1 where every value is NaN */
    uint64_t stride; /* floats */
    uint32_t n;
    uint32_t n_rows;
} argmax_args;
KERNEL_ARGS_SIZE(argmax_args, 32);

static inline cuda_shape argmax_shape(const argmax_args *a) {
    return cuda_shape_of(a->n_rows, 1, 1024);
}

#endif
