/* half.h - IEEE half precision to and from float32, as vcvtph2ps and vcvtps2ph do it.
 *
 * Rounds to nearest even; overflow gives infinity; a NaN stays a NaN and becomes quiet.
 */
#ifndef SILICEO_KERNELS_CPU_HALF_H
#define SILICEO_KERNELS_CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 0x3ffu;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa != 0) {
        exponent = 113;
        while (!(mantissa & 0x400u)) {
            mantissa <<= 1;
            exponent--;
        }
        bits = sign | exponent << 23 | (mantissa & 0x3ffu) << 13;
    } else {
        bits = sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t half_from_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    const uint32_t sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x1ffu));
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x33000000u) return (uint16_t)sign; /* below half of the least subnormal */
    if (bits < 0x38800000u) {                      /* a subnormal half */
        const uint32_t shift = 126 - (bits >> 23);
        const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
        uint32_t h = mantissa >> shift;
        const uint32_t rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
        h += rest > half || (rest == half && (h & 1));
        return (uint16_t)(sign | h);
    }
    bits += 0xfffu + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - 0x38000000u) >> 13);
}

#endif
