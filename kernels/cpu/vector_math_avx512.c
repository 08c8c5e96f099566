/* vector_math_avx512.c - vector_math_simd.h for AVX-512. */
#include "kernels/cpu/vector_math_simd.h"
