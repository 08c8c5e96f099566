/* vector_math.c - the oracle of kernels/vector_math.h, and the choice of the tier. */
#include "kernels/vector_math.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"

#define MAP(name)                                                                              \
    void vector_##name##_scalar(const float *x, float *y, size_t n) {                          \
        for (size_t i = 0; i < n; i++)                                                         \
            y[i] = math_##name(x[i]);                                                          \
    }                                                                                          \
    void vector_##name(cpu_tier tier, const float *x, float *y, size_t n) {                    \
        TIER_CALL(tier, vector_##name, x, y, n);                                               \
    }

MAP(exp)
MAP(sigmoid)
MAP(silu)
MAP(softplus)

size_t vector_argmax_scalar(const float *x, size_t n) {
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (x[i] == x[i] && (best == n || x[i] > x[best])) best = i;
    return best;
}

size_t vector_argmax(cpu_tier tier, const float *x, size_t n) {
    return TIER_CALL(tier, vector_argmax, x, n);
}
