/* swiglu_avx2.c - swiglu_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/swiglu_simd.h"
