/* vector_math_avx2.c - vector_math_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/vector_math_simd.h"
