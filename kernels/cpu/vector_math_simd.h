/* vector_math_simd.h - kernels/vector_math.h over vectors; see tier_ops.h. */
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tier_ops.h"

#define MAP(name)                                                                              \
    void TIER(vector_##name)(const float *x, float *y, size_t n) {                             \
        size_t i = 0;                                                                          \
        for (; i + 16 <= n; i += 16)                                                           \
            v_store(y + i, v_##name(v_load(x + i)));                                           \
        if (i < n) v_store_n(y + i, v_##name(v_load_n(x + i, n - i)), n - i);                  \
    }

MAP(exp)
MAP(sigmoid)
MAP(silu)
MAP(softplus)

/* The largest value first, then its first place: two light passes. */
size_t TIER(vector_argmax)(const float *x, size_t n) {
    v16 lanes = v_set(-INFINITY);
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        lanes = v_max(v_load(x + i), lanes); /* keeps the old one against NaN */
    float largest = v_largest(lanes);
    for (; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (i = 0; i + 16 <= n; i += 16) {
        const unsigned equal = v_equal(v_load(x + i), v_set(largest));
        if (equal) return i + (size_t)__builtin_ctz(equal);
    }
    while (i < n && !(x[i] == largest))
        i++;
    return i;
}
