/* act.h - how quantized activation rows lie in device memory: one form for all weight types.
 *
 * A row of n_cols values (a multiple of 32) is
 *   int8   q[n_cols]
 *   float2 factor[n_cols / 16]   { scale, scale * sum of the 16 q }
 * The scale belongs to 32 values: amax / 127, q = x * (127 / amax) rounded to nearest even; so
 * both factors of a group of 32 have the same scale, and sums of 16 serve every format with
 * minima.  experts_up alone gives every 16 values a scale of their own.  amax below 2^-100 gives
 * scale 0; a NaN or an infinity gives a NaN scale and q 0.
 * Rows are act_row_stride(n_cols) bytes apart unless a stride is given; all 16-byte aligned.
 */
#ifndef SILICEO_KERNELS_CUDA_ACT_H
#define SILICEO_KERNELS_CUDA_ACT_H

#include "kernels/cuda/launch.h"

#define CUDA_ACT_LEAST_AMAX 7.888609052210118e-31f /* 2^-100 */

static inline uint64_t cuda_act_row_bytes(uint32_t n_cols) {
    return (uint64_t)n_cols + n_cols / 16 * 8;
}

/* quantize: rows of float32 to activation rows. */
typedef struct quantize_args {
    const float *x;
    void *act;
    uint64_t x_stride;   /* floats */
    uint64_t act_stride; /* bytes */
    uint32_t n_cols;     /* a multiple of 32 */
    uint32_t n_rows;
} quantize_args;
KERNEL_ARGS_SIZE(quantize_args, 40);

static inline cuda_shape quantize_shape(const quantize_args *a) {
    return cuda_shape_of(a->n_rows, cuda_ceil_div(a->n_cols, 1024), 256);
}

#endif
