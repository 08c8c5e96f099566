/* swiglu_avx512.c - swiglu_simd.h for AVX-512. */
#include "kernels/cpu/swiglu_simd.h"
