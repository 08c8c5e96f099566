/* tier_ops.h - the per-tier entry points behind the kernels of kernels/X.h; private to kernels/cpu.
 *
 * X.c holds X_scalar, the oracle, and the public function, which picks the tier.  X_simd.h
 * is written once over the 16-lane vector of simd.h; X_avx2.c and X_avx512.c compile it for
 * their instruction sets.
 */
#ifndef SILICEO_KERNELS_CPU_TIER_OPS_H
#define SILICEO_KERNELS_CPU_TIER_OPS_H

#include "kernels/attention.h"
#include "kernels/attention_prepare.h"
#include "kernels/conv1d.h"
#include "kernels/delta_net.h"
#include "kernels/moe_combine.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

#define TIER_OPS(tier)                                                                         \
    void rmsnorm_##tier(const rmsnorm_args *args, size_t first, size_t end);                   \
    void attention_prepare_##tier(const attention_prepare_args *args, size_t first,            \
                                  size_t end);                                                 \
    void attention_##tier(const attention_args *args, size_t first, size_t end,                \
                          void *scratch);                                                      \
    void conv1d_##tier(const conv1d_args *args, size_t first, size_t end);                     \
    void delta_net_##tier(const delta_net_args *args, size_t first, size_t end,                \
                          void *scratch);                                                      \
    void swiglu_##tier(const swiglu_args *args, size_t first, size_t end);                     \
    void moe_combine_##tier(const moe_combine_args *args, size_t first, size_t end);           \
    void vector_exp_##tier(const float *x, float *y, size_t n);                                \
    void vector_sigmoid_##tier(const float *x, float *y, size_t n);                            \
    void vector_silu_##tier(const float *x, float *y, size_t n);                               \
    void vector_softplus_##tier(const float *x, float *y, size_t n);                           \
    size_t vector_argmax_##tier(const float *x, size_t n)

TIER_OPS(scalar);
TIER_OPS(avx2);
TIER_OPS(avx512);

/* Call name##_scalar, _avx2 or _avx512. */
#define TIER_CALL(tier, name, ...)                                                             \
    ((tier) == CPU_AVX512 ? name##_avx512(__VA_ARGS__)                                         \
     : (tier) == CPU_AVX2 ? name##_avx2(__VA_ARGS__)                                           \
                          : name##_scalar(__VA_ARGS__))

#endif
