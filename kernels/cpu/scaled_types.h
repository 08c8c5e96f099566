/* scaled_types.h - a function for each type and format, for one token and for more, in whatever tier
 * includes this behind its scaled_32() and scaled_256(), which take those as constants. */
#ifndef SILICEO_KERNELS_CPU_SCALED_TYPES_H
#define SILICEO_KERNELS_CPU_SCALED_TYPES_H

#include "kernels/cpu/matmul_impl.h"

#define KERNEL(family, name, type, format, pairs)                                              \
    static void name##_##format##_one(matmul_rows *a) {                                        \
        family(a, type, pairs, 1);                                                             \
    }                                                                                          \
    static void name##_##format##_more(matmul_rows *a) {                                       \
        family(a, type, pairs, (int)a->n_tokens);                                              \
    }
#define KERNELS(family, name, type)                                                            \
    KERNEL(family, name, type, halves, false)                                                  \
    KERNEL(family, name, type, pairs, true)

KERNELS(scaled_32, q4_0, QUANT_Q4_0)
KERNELS(scaled_32, q4_1, QUANT_Q4_1)
KERNELS(scaled_32, q5_0, QUANT_Q5_0)
KERNELS(scaled_32, q5_1, QUANT_Q5_1)
KERNELS(scaled_32, q8_0, QUANT_Q8_0)
KERNELS(scaled_32, iq4_nl, QUANT_IQ4_NL)
KERNELS(scaled_32, mxfp4, QUANT_MXFP4)
KERNELS(scaled_256, q2_k, QUANT_Q2_K)
KERNELS(scaled_256, q3_k, QUANT_Q3_K)
KERNELS(scaled_256, q4_k, QUANT_Q4_K)
KERNELS(scaled_256, q5_k, QUANT_Q5_K)
KERNELS(scaled_256, q6_k, QUANT_Q6_K)
KERNELS(scaled_256, iq4_xs, QUANT_IQ4_XS)

#define ENTRY(name)                                                                            \
    {                                                                                          \
        {name##_halves_one, name##_halves_more}, {                                             \
            name##_pairs_one, name##_pairs_more                                                \
        }                                                                                      \
    }

static const matmul_rows_kernel kernels[QUANT_LIMIT][2][2] = {
    [QUANT_Q4_0] = ENTRY(q4_0),     [QUANT_Q4_1] = ENTRY(q4_1), [QUANT_Q5_0] = ENTRY(q5_0),
    [QUANT_Q5_1] = ENTRY(q5_1),     [QUANT_Q8_0] = ENTRY(q8_0), [QUANT_IQ4_NL] = ENTRY(iq4_nl),
    [QUANT_MXFP4] = ENTRY(mxfp4),   [QUANT_Q2_K] = ENTRY(q2_k), [QUANT_Q3_K] = ENTRY(q3_k),
    [QUANT_Q4_K] = ENTRY(q4_k),     [QUANT_Q5_K] = ENTRY(q5_k), [QUANT_Q6_K] = ENTRY(q6_k),
    [QUANT_IQ4_XS] = ENTRY(iq4_xs),
};

#undef ENTRY
#undef KERNELS
#undef KERNEL

#endif
