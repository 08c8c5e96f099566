/* rmsnorm.c - the oracle of kernels/rmsnorm.h, and the choice of the tier. */
#include "kernels/rmsnorm.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"

void rmsnorm_scalar(const rmsnorm_args *args, size_t first, size_t end) {
    const size_t dim = args->dim;
    for (size_t row = first; row < end; row++) {
        float *x = args->x + row * args->x_stride;
        float *y = args->y + row * args->y_stride;
        if (args->delta) {
            const float *delta = args->delta + row * args->delta_stride;
            for (size_t i = 0; i < dim; i++)
                x[i] += delta[i];
        }
        const float rms = sqrtf(math_dot(x, x, dim) / (float)dim + args->eps);
        const float scale = 1.0f / rms;
        for (size_t i = 0; i < dim; i++)
            y[i] = x[i] * scale * args->weight[i];
    }
}

void rmsnorm_rows(cpu_tier tier, const rmsnorm_args *args, size_t first, size_t end) {
    TIER_CALL(tier, rmsnorm, args, first, end);
}
