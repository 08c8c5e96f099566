/* tier.c - CPUID and XGETBV read by hand.
 *
 * The compilers' __builtin_cpu_supports differ in the names they know, so leaf 1
 * and leaf 7 are read here.  A feature counts only when the operating system
 * saves its registers too (XCR0).
 */
#include "kernels/cpu/tier.h"

#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define XCR0_YMM 0x06u /* SSE and AVX state */
#define XCR0_ZMM 0xe6u /* also opmask, upper halves, upper 16 registers */

static uint64_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool all_bits(uint64_t value, uint64_t bits) {
    return (value & bits) == bits;
}

cpu_tier cpu_tier_best(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return CPU_SCALAR;
    if (!all_bits(c, bit_FMA | bit_F16C | bit_OSXSAVE | bit_AVX)) return CPU_SCALAR;
    uint64_t xcr0 = read_xcr0();
    if (!all_bits(xcr0, XCR0_YMM)) return CPU_SCALAR;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return CPU_SCALAR;
    if (!all_bits(b, bit_AVX2 | bit_BMI2)) return CPU_SCALAR;
    bool has_512 = all_bits(b, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) &&
                   all_bits(c, bit_AVX512VNNI) && all_bits(xcr0, XCR0_ZMM);
    return has_512 ? CPU_AVX512 : CPU_AVX2;
}

const char *cpu_tier_name(cpu_tier tier) {
    switch (tier) {
    case CPU_SCALAR:
        return "scalar";
    case CPU_AVX2:
        return "avx2";
    case CPU_AVX512:
        return "avx512";
    }
    return "unknown";
}

status cpu_tier_choose(cpu_tier *out, error *err) {
    cpu_tier best = cpu_tier_best();
    *out = best;
    const char *name = getenv("SILICEO_CPU_TIER");
    if (name == NULL || name[0] == '\0') return STATUS_OK;
    for (cpu_tier tier = CPU_SCALAR; tier <= CPU_AVX512; tier++) {
        if (strcmp(name, cpu_tier_name(tier)) != 0) continue;
        if (tier > best) {
            return error_set(err, STATUS_BAD_INPUT,
                             "SILICEO_CPU_TIER=%s: this machine reaches only %s", name,
                             cpu_tier_name(best));
        }
        *out = tier;
        return STATUS_OK;
    }
    return error_set(err, STATUS_BAD_INPUT,
                     "SILICEO_CPU_TIER=%s: must be scalar, avx2 or avx512", name);
}
