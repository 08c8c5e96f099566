/* rmsnorm_avx2.c - rmsnorm_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/rmsnorm_simd.h"
