/* rows_types.h - a rows kernel for each quantized type, for one token and for more, in whatever tier
 * includes this behind its rows_32() and rows_256(), which take those as constants. */
#ifndef SILICEO_KERNELS_CPU_ROWS_TYPES_H
#define SILICEO_KERNELS_CPU_ROWS_TYPES_H

#include "kernels/cpu/matmul_impl.h"

#define KERNELS(family, name, type)                                                            \
    static void name##_one(matmul_rows *a) {                                                   \
        family(a, type, 1);                                                                    \
    }                                                                                          \
    static void name##_more(matmul_rows *a) {                                                  \
        family(a, type, (int)a->n_tokens);                                                     \
    }

KERNELS(rows_32, q4_0, QUANT_Q4_0)
KERNELS(rows_32, q4_1, QUANT_Q4_1)
KERNELS(rows_32, q5_0, QUANT_Q5_0)
KERNELS(rows_32, q5_1, QUANT_Q5_1)
KERNELS(rows_32, q8_0, QUANT_Q8_0)
KERNELS(rows_32, iq4_nl, QUANT_IQ4_NL)
KERNELS(rows_32, mxfp4, QUANT_MXFP4)
KERNELS(rows_256, q2_k, QUANT_Q2_K)
KERNELS(rows_256, q3_k, QUANT_Q3_K)
KERNELS(rows_256, q4_k, QUANT_Q4_K)
KERNELS(rows_256, q5_k, QUANT_Q5_K)
KERNELS(rows_256, q6_k, QUANT_Q6_K)
KERNELS(rows_256, iq4_xs, QUANT_IQ4_XS)

#define ENTRY(name)                                                                            \
    { name##_one, name##_more }

static const matmul_rows_kernel kernels[QUANT_LIMIT][2] = {
    [QUANT_Q4_0] = ENTRY(q4_0),     [QUANT_Q4_1] = ENTRY(q4_1), [QUANT_Q5_0] = ENTRY(q5_0),
    [QUANT_Q5_1] = ENTRY(q5_1),     [QUANT_Q8_0] = ENTRY(q8_0), [QUANT_IQ4_NL] = ENTRY(iq4_nl),
    [QUANT_MXFP4] = ENTRY(mxfp4),   [QUANT_Q2_K] = ENTRY(q2_k), [QUANT_Q3_K] = ENTRY(q3_k),
    [QUANT_Q4_K] = ENTRY(q4_k),     [QUANT_Q5_K] = ENTRY(q5_k), [QUANT_Q6_K] = ENTRY(q6_k),
    [QUANT_IQ4_XS] = ENTRY(iq4_xs),
};

#undef ENTRY
#undef KERNELS

#endif
