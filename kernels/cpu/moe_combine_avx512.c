/* moe_combine_avx512.c - moe_combine_simd.h for AVX-512. */
#include "kernels/cpu/moe_combine_simd.h"
