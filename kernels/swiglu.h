/* swiglu.h - out = silu(gate) * up.
 *
 * Shapes  gate, up, out [rows][n_cols], each with its own row stride; out may be gate or up.
 *         A fused row [gate | up] is up = gate + n_cols with the same stride.
 * Oracle  kernels/cpu/swiglu.c; all tiers give the same bits.
 */
#ifndef SILICEO_KERNELS_SWIGLU_H
#define SILICEO_KERNELS_SWIGLU_H

#include "kernels/args.h"

typedef struct swiglu_args {
    const float *gate;
    const float *up;
    float *out;
    uint64_t gate_stride; /* floats from row to row */
    uint64_t up_stride;
    uint64_t out_stride;
    uint32_t n_cols;
    uint32_t reserved;
} swiglu_args;
KERNEL_ARGS_SIZE(swiglu_args, 56);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

/* Rows first .. end - 1. */
void swiglu_rows(cpu_tier tier, const swiglu_args *args, size_t first, size_t end);
#endif

#endif
