/* rows.h - ops on rows that stand alone: embedding, norm, SwiGLU, argmax.
 *
 * embed      kernels/embed.h; the tokens are in device memory.
 * rmsnorm    y = x / sqrt(mean(x^2) + eps) * weight; y as float32 (y), quantized (act) or both:
 *            either may be NULL.  y is not x: several blocks read a row.
 * swiglu     out = silu(gate) * up, as float32, quantized or both.
 * argmax     the largest of each row, the lowest index among equals; NaN is never chosen.  It is
 *            told as a key that argmax_index() and argmax_value_bits() read; keys are 0 before.
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
    const float *x;
    const float *weight;
    float *y;
    void *act;
    const uint32_t *rows; /* row r reads x row rows[r]; NULL: r */
    uint64_t x_stride;    /* floats */
    uint64_t y_stride;
    uint64_t act_stride; /* bytes */
    uint32_t dim;
    float eps;
} norm_args;
KERNEL_ARGS_SIZE(norm_args, 72);

enum { NORM_BLOCK = 256, NORM_FEW_ROWS = 16 };

/* The parts of a row's output are written by blocks of their own where rows are few. */
static inline cuda_shape rmsnorm_shape(const norm_args *a, uint32_t n_rows) {
    const uint32_t parts =
        n_rows > NORM_FEW_ROWS ? 1u : cuda_ceil_div(a->dim, (uint32_t)NORM_BLOCK);
    return cuda_shape_of(n_rows, parts, NORM_BLOCK);
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
    uint64_t *keys;  /* [n_rows] */
    uint64_t stride; /* floats */
    uint32_t n;
    uint32_t n_rows;
} argmax_args;
KERNEL_ARGS_SIZE(argmax_args, 32);

enum { ARGMAX_BLOCK = 256 };

static inline cuda_shape argmax_shape(const argmax_args *a) {
    return cuda_shape_of(a->n_rows, cuda_ceil_div(a->n, 8 * ARGMAX_BLOCK), ARGMAX_BLOCK);
}

/* A key is the value's order, then the index turned round; 0: every value is NaN. */
static inline int32_t argmax_index(uint64_t key) {
    return key == 0 ? -1 : (int32_t) ~(uint32_t)key;
}

/* The bits of the value of a key that is not 0. */
static inline uint32_t argmax_value_bits(uint64_t key) {
    const uint32_t order = (uint32_t)(key >> 32);
    return order >> 31 ? order & 0x7fffffffu : ~order;
}

#endif
