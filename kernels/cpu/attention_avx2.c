/* attention_avx2.c - attention_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/attention_simd.h"
