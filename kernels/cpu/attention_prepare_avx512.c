/* attention_prepare_avx512.c - attention_prepare_simd.h for AVX-512. */
#include "kernels/cpu/attention_prepare_simd.h"
