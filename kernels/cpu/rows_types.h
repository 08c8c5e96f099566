/* rows_types.h - a rows kernel for each quantized type, for one token and for more, in whatever tier
 * includes this behind its rows_32() and rows_256(), which take those as constants. */
#ifndef SILICEO_KERNELS_CPU_ROWS_TYPES_H
#define SILICEO_KERNELS_CPU_ROWS_TYPES_H

#include "kernels/cpu/matmul_impl.h"

#define KERNELS(block, name, type)                                                             \
    static void name##_one(matmul_rows *a) {                                                   \
        rows_##block(a, type, 1);                                                              \
    }                                                                                          \
    static void name##_more(matmul_rows *a) {                                                  \
        rows_##block(a, type, (int)a->n_tokens);                                               \
    }
QUANTIZED_TYPES(KERNELS)
#undef KERNELS

#define ENTRY(block, name, type) [type] = {name##_one, name##_more},
static const matmul_rows_kernel kernels[QUANT_LIMIT][2] = {QUANTIZED_TYPES(ENTRY)};
#undef ENTRY

#endif
