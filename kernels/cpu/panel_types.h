/* panel_types.h - a function for each type that unpacks a panel, in whatever tier includes this
 * behind its unpack_panel_32() and unpack_panel_256(), which take the type as a constant. */
#ifndef SILICEO_KERNELS_CPU_PANEL_TYPES_H
#define SILICEO_KERNELS_CPU_PANEL_TYPES_H

#include "kernels/cpu/matmul_impl.h"

typedef void (*panel_kernel)(matmul_panel *p);

#define UNPACK(family, name, type)                                                             \
    static void name##_unpack(matmul_panel *p) {                                               \
        unpack_panel_##family(p, type);                                                        \
    }

UNPACK(32, q4_0, QUANT_Q4_0)
UNPACK(32, q4_1, QUANT_Q4_1)
UNPACK(32, q5_0, QUANT_Q5_0)
UNPACK(32, q5_1, QUANT_Q5_1)
UNPACK(32, q8_0, QUANT_Q8_0)
UNPACK(32, iq4_nl, QUANT_IQ4_NL)
UNPACK(32, mxfp4, QUANT_MXFP4)
UNPACK(256, q2_k, QUANT_Q2_K)
UNPACK(256, q3_k, QUANT_Q3_K)
UNPACK(256, q4_k, QUANT_Q4_K)
UNPACK(256, q5_k, QUANT_Q5_K)
UNPACK(256, q6_k, QUANT_Q6_K)
UNPACK(256, iq4_xs, QUANT_IQ4_XS)

#undef UNPACK

#endif
