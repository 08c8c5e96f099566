/* attention_avx512.c - attention_simd.h for AVX-512. */
#include "kernels/cpu/attention_simd.h"
