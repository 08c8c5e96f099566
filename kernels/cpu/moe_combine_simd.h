/* moe_combine_simd.h - kernels/moe_combine.h over vectors; see tier_ops.h. */
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tier_ops.h"

static void combine(const moe_combine_args *args, size_t row) {
    const size_t dim = args->dim, n_used = args->n_used, stride = args->y_stride;
    const float *x = args->x + row * args->x_stride;
    const float *y = args->y + row * n_used * stride;
    const float *weights = args->weights + row * n_used;
    const float *shared = args->shared ? args->shared + row * args->shared_stride : NULL;
    const float gate =
        shared ? math_sigmoid(args->shared_gate[row * args->shared_gate_stride]) : 0.0f;
    float *out = args->out + row * args->out_stride;
    size_t i = 0;
    for (; i + 16 <= dim; i += 16) {
        v16 o = v_load(x + i);
        for (size_t j = 0; j < n_used; j++)
            o = v_fma(v_set(weights[j]), v_load(y + j * stride + i), o);
        if (shared) o = v_fma(v_set(gate), v_load(shared + i), o);
        v_store(out + i, o);
    }
    for (; i < dim; i++) {
        float o = x[i];
        for (size_t j = 0; j < n_used; j++)
            o = fmaf(weights[j], y[j * stride + i], o);
        out[i] = shared ? fmaf(gate, shared[i], o) : o;
    }
}

void TIER(moe_combine)(const moe_combine_args *args, size_t first, size_t end) {
    for (size_t row = first; row < end; row++)
        combine(args, row);
}
