/* half.h - float16 and bfloat16 to and from float32, in plain integer arithmetic.
 *
 * Rounding is to nearest, ties to even; subnormals are kept in both directions,
 * whatever the mode of the FPU; NaN stays NaN.  No state; any thread.
 * Source: IEEE 754-2008, binary16; bfloat16 is the upper half of a binary32.
 */
#ifndef SILICEO_COMMON_HALF_H
#define SILICEO_COMMON_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t float_to_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t fraction = h & 0x3FFu;
    if (exponent == 31) return float_from_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent != 0) return float_from_bits(sign | (exponent + 112u) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* zero and subnormals: exact */
    return float_from_bits(sign | float_to_bits(magnitude));
}

/* value >> shift, rounded to nearest even; 1 <= shift <= 31. */
static inline uint32_t half_round_shift(uint32_t value, uint32_t shift) {
    uint32_t kept = value >> shift;
    uint32_t rest = value & ((1u << shift) - 1u);
    uint32_t middle = 1u << (shift - 1u);
    return kept + (rest > middle || (rest == middle && (kept & 1u)) ? 1u : 0u);
}

static inline uint16_t half_from_float(float f) {
    uint32_t bits = float_to_bits(f);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);  /* NaN */
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u); /* 2^16 and more */
    if (magnitude >=
        0x38800000u) { /* a normal half; rounding up may give infinity, as it must */
        return (uint16_t)(sign | half_round_shift(magnitude - 0x38000000u, 13));
    }
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign; /* below half of the smallest subnormal */
    uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    return (uint16_t)(sign | half_round_shift(significand, 126u - exponent));
}

static inline float bf16_to_float(uint16_t h) {
    return float_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_float(float f) {
    uint32_t bits = float_to_bits(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u); /* NaN */
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#endif
