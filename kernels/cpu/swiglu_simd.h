/* swiglu_simd.h - kernels/swiglu.h over vectors; see tier_ops.h. */
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tier_ops.h"

void TIER(swiglu)(const swiglu_args *args, size_t first, size_t end) {
    const size_t n = args->n_cols;
    for (size_t row = first; row < end; row++) {
        const float *gate = args->gate + row * args->gate_stride;
        const float *up = args->up + row * args->up_stride;
        float *out = args->out + row * args->out_stride;
        size_t i = 0;
        for (; i + 16 <= n; i += 16)
            v_store(out + i, v_mul(v_silu(v_load(gate + i)), v_load(up + i)));
        for (; i < n; i++)
            out[i] = math_silu(gate[i]) * up[i];
    }
}
