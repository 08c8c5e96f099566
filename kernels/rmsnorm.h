/* rmsnorm.h - y = x / sqrt(mean(x^2) + eps) * weight, after x += delta where delta is given.
 *
 * Shapes  x, delta, y [rows][dim] float32, each with its own row stride; weight [dim].
 *         The weight is used as the file has it.  delta may be NULL; y may be x.
 * Order   sum of squares in 16 lanes and a tree (cpu/scalar_math.h); all tiers give the
 *         same bits.
 * Oracle  kernels/cpu/rmsnorm.c.
 */
#ifndef SILICEO_KERNELS_RMSNORM_H
#define SILICEO_KERNELS_RMSNORM_H

#include "kernels/args.h"

typedef struct rmsnorm_args {
    float *x; /* written only with delta */
    const float *delta;
    const float *weight;
    float *y;
    uint64_t x_stride; /* floats */
    uint64_t delta_stride;
    uint64_t y_stride;
    uint32_t dim;
    float eps;
} rmsnorm_args;
KERNEL_ARGS_SIZE(rmsnorm_args, 64);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

/* Rows first .. end - 1. */
void rmsnorm_rows(cpu_tier tier, const rmsnorm_args *args, size_t first, size_t end);
#endif

#endif
