/* rows_by_tokens.h - a rows kernel for each type and number of tokens, in whatever tier includes this
 * behind its rows_32(), rows_256() and rows_float(), which take those as constants. */
#ifndef SILICEO_KERNELS_CPU_ROWS_BY_TOKENS_H
#define SILICEO_KERNELS_CPU_ROWS_BY_TOKENS_H

#include "kernels/cpu/matmul_impl.h"

#define KERNEL(block, name, type, n)                                                           \
    static void name##_##n(matmul_rows *a) {                                                   \
        rows_##block(a, type, n);                                                              \
    }
#define KERNELS(block, name, type)                                                             \
    KERNEL(block, name, type, 1)                                                               \
    KERNEL(block, name, type, 2)                                                               \
    KERNEL(block, name, type, 3)                                                               \
    KERNEL(block, name, type, 4)
FLOAT_TYPES(KERNELS)
QUANTIZED_TYPES(KERNELS)
#undef KERNELS
#undef KERNEL

#define ENTRY(block, name, type) [type] = {name##_1, name##_2, name##_3, name##_4},
static const matmul_rows_kernel kernels[QUANT_LIMIT][MATMUL_TOKENS] = {
    FLOAT_TYPES(ENTRY) QUANTIZED_TYPES(ENTRY)};
#undef ENTRY

#endif
