/* attention_prepare_avx2.c - attention_prepare_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/attention_prepare_simd.h"
