/* delta_net_avx2.c - delta_net_simd.h for AVX2, FMA and F16C. */
#include "kernels/cpu/delta_net_simd.h"
