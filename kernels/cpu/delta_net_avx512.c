/* delta_net_avx512.c - delta_net_simd.h for AVX-512. */
#include "kernels/cpu/delta_net_simd.h"
