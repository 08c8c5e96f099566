/* conv1d_avx2.c - conv1d_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/conv1d_simd.h"
