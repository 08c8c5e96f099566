/* moe_combine_avx2.c - moe_combine_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/moe_combine_simd.h"
