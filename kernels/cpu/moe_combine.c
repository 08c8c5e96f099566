/* moe_combine.c - the oracle of kernels/moe_combine.h, and the choice of the tier. */
#include "kernels/moe_combine.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"

void moe_combine_scalar(const moe_combine_args *args, size_t first, size_t end) {
    for (size_t row = first; row < end; row++) {
        const float *x = args->x + row * args->x_stride;
        const float *y = args->y + row * args->n_used * args->y_stride;
        const float *weights = args->weights + row * args->n_used;
        float *out = args->out + row * args->out_stride;
        for (size_t i = 0; i < args->dim; i++) {
            float o = x[i];
            for (size_t j = 0; j < args->n_used; j++)
                o = fmaf(weights[j], y[j * args->y_stride + i], o);
            out[i] = o;
        }
        if (!args->shared) continue;
        const float *shared = args->shared + row * args->shared_stride;
        const float gate = math_sigmoid(args->shared_gate[row * args->shared_gate_stride]);
        for (size_t i = 0; i < args->dim; i++)
            out[i] = fmaf(gate, shared[i], out[i]);
    }
}

void moe_combine_rows(cpu_tier tier, const moe_combine_args *args, size_t first, size_t end) {
    TIER_CALL(tier, moe_combine, args, first, end);
}
