/* tier.h - which instruction sets the fast CPU kernels use on this machine.
 *
 * Chosen once from CPUID and XGETBV; SILICEO_CPU_TIER=scalar|avx2|avx512 takes a
 * lower one, for tests (a tier that the machine lacks is an error).  All tiers
 * give the same bits for the integer matrix kernels; see kernels/matmul.h.
 */
#ifndef SILICEO_KERNELS_CPU_TIER_H
#define SILICEO_KERNELS_CPU_TIER_H

#include "common/error.h"

typedef enum cpu_tier {
    CPU_SCALAR, /* plain C, the oracle */
    CPU_AVX2,   /* AVX2, FMA, F16C */
    CPU_AVX512  /* AVX-512 F, BW, VL, DQ, VNNI */
} cpu_tier;

/* The best tier of this machine, or the one of the environment. */
status cpu_tier_choose(cpu_tier *out, error *err);
cpu_tier cpu_tier_best(void);
const char *cpu_tier_name(cpu_tier tier);

#endif
