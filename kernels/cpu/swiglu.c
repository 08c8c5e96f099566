/* swiglu.c - the oracle of kernels/swiglu.h, and the choice of the tier. */
#include "kernels/swiglu.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"

void swiglu_scalar(const swiglu_args *args, size_t first, size_t end) {
    for (size_t row = first; row < end; row++) {
        const float *gate = args->gate + row * args->gate_stride;
        const float *up = args->up + row * args->up_stride;
        float *out = args->out + row * args->out_stride;
        for (size_t i = 0; i < args->n_cols; i++)
            out[i] = math_silu(gate[i]) * up[i];
    }
}

void swiglu_rows(cpu_tier tier, const swiglu_args *args, size_t first, size_t end) {
    TIER_CALL(tier, swiglu, args, first, end);
}
