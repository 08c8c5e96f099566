/* rmsnorm_simd.h - kernels/rmsnorm.h over vectors; see tier_ops.h. */
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tier_ops.h"

/* x += delta; the value is the sum of squares. */
static float add_and_square(float *x, const float *delta, size_t dim) {
    v16 sum = v_zero();
    size_t i = 0;
    for (; i + 16 <= dim; i += 16) {
        const v16 v = v_add(v_load(x + i), v_load(delta + i));
        v_store(x + i, v);
        sum = v_fma(v, v, sum);
    }
    if (i < dim) {
        const v16 v = v_add(v_load_n(x + i, dim - i), v_load_n(delta + i, dim - i));
        v_store_n(x + i, v, dim - i);
        sum = v_fma(v, v, sum);
    }
    return v_tree(sum);
}

void TIER(rmsnorm)(const rmsnorm_args *args, size_t first, size_t end) {
    const size_t dim = args->dim;
    for (size_t row = first; row < end; row++) {
        float *x = args->x + row * args->x_stride;
        float *y = args->y + row * args->y_stride;
        const float squares =
            args->delta ? add_and_square(x, args->delta + row * args->delta_stride, dim)
                        : v_dot(x, x, dim);
        const float factor = 1.0f / sqrtf(squares / (float)dim + args->eps);
        const v16 scale = v_set(factor);
        size_t i = 0;
        for (; i + 16 <= dim; i += 16)
            v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(args->weight + i)));
        for (; i < dim; i++)
            y[i] = x[i] * factor * args->weight[i];
    }
}
