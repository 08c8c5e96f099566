/* dequantize_impl.h - the fast dequantizers of a tier; internal to kernels/cpu. */
#ifndef SILICEO_KERNELS_CPU_DEQUANTIZE_IMPL_H
#define SILICEO_KERNELS_CPU_DEQUANTIZE_IMPL_H

#include "common/quant_type.h"

/* As dequantize_row(), bit for bit; false, with nothing done, for a type that has no
 * fast way here. */
bool dequantize_row_avx2(quant_type type, const void *blocks, size_t n, float *out);

#endif
