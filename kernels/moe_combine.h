/* moe_combine.h - residual plus weighted expert outputs plus the gated shared expert.
 *
 * Shapes  x, out [rows][dim]; y [rows][n_used][dim]: the outputs of a row's experts in rank
 *         order, y_stride floats from one expert's output to the next; weights [rows][n_used];
 *         shared [rows][dim] and shared_gate [rows] (raw logit), or both NULL.  out may be x.
 * Order   o = x; o = fmaf(weight_j, y_j, o) in rank order; o = fmaf(sigmoid(gate), shared, o).
 * Oracle  kernels/cpu/moe_combine.c; all tiers give the same bits.
 */
#ifndef SILICEO_KERNELS_MOE_COMBINE_H
#define SILICEO_KERNELS_MOE_COMBINE_H

#include "kernels/args.h"

typedef struct moe_combine_args {
    const float *x;
    const float *y;
    const float *weights;
    const float *shared;
    const float *shared_gate;
    float *out;
    uint64_t x_stride; /* floats from row to row */
    uint64_t y_stride;
    uint64_t shared_stride;
    uint64_t shared_gate_stride;
    uint64_t out_stride;
    uint32_t dim;
    uint32_t n_used;
} moe_combine_args;
KERNEL_ARGS_SIZE(moe_combine_args, 96);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

/* Rows first .. end - 1. */
void moe_combine_rows(cpu_tier tier, const moe_combine_args *args, size_t first, size_t end);
#endif

#endif
