/* conv1d_avx512.c - conv1d_simd.h for AVX-512. */
#include "kernels/cpu/conv1d_simd.h"
