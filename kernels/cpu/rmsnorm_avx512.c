/* rmsnorm_avx512.c - rmsnorm_simd.h for AVX-512. */
#include "kernels/cpu/rmsnorm_simd.h"
