/* block_bits.h - single values and scales out of packed blocks; for the plain kernels.
 *
 * One value at a time, as the formats define it.  dequantize.c and matmul.c, the
 * oracles, read blocks through these; the fast tiers do not.
 * Source: the block layouts of ggml, as this project's GGUF notes give them.
 */
#ifndef SILICEO_KERNELS_CPU_BLOCK_BITS_H
#define SILICEO_KERNELS_CPU_BLOCK_BITS_H

#include "common/half.h"

/* The 16 levels that the IQ4 types share, and twice the values of E2M1. */
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_levels[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                        0, -1, -2, -3, -4, -6, -8, -12};

static inline uint16_t load_u16(const uint8_t *b) {
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t load_u32(const uint8_t *b) {
    return (uint32_t)load_u16(b) | (uint32_t)load_u16(b + 2) << 16;
}

static inline float load_half(const uint8_t *b) {
    return half_to_float(load_u16(b));
}

/* 2^(exponent - 128); exponents 0 and 1 give subnormal floats. */
static inline float mxfp4_scale(uint8_t exponent) {
    if (exponent < 2) return float_from_bits(0x00200000u << exponent);
    return float_from_bits((uint32_t)(exponent - 1) << 23);
}

/* Value e of 32 nibbles in 16 bytes: the low ones first, then the high ones. */
static inline int nibble_of_32(const uint8_t *q, int e) {
    return e < 16 ? q[e] & 15 : q[e - 16] >> 4;
}

/* Nibble e of 256 in 128 bytes: groups of 64, low nibbles before high ones. */
static inline int nibble_of_256(const uint8_t *q, int e) {
    int byte = q[e / 64 * 32 + e % 32];
    return e / 32 % 2 ? byte >> 4 : byte & 15;
}

/* Value e of 256 two-bit values in 64 bytes: halves of 128, four groups of 32 in each. */
static inline int pair_of_256(const uint8_t *q, int e) {
    return q[e / 128 * 32 + e % 32] >> (2 * (e % 128 / 32)) & 3;
}

/* Value e of a Q6_K block, 0..63. */
static inline int q6_k_value(const uint8_t *b, int e) {
    int half = e / 128;
    int group = e % 128 / 32;
    int low = b[half * 64 + group % 2 * 32 + e % 32];
    low = group >= 2 ? low >> 4 : low & 15;
    int high = b[128 + half * 32 + e % 32] >> (2 * group) & 3;
    return low | high << 4;
}

/* Scale j of Q3_K: 4 low and 2 high bits packed in 12 bytes, less 32. */
static inline int q3_k_scale(const uint8_t *s, int j) {
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    int high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
    return (low | high << 4) - 32;
}

/* Scale and minimum j of Q4_K and Q5_K: 6 bits each, packed in 12 bytes. */
static inline void k4_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *min = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

/* Scale j of an IQ4_XS block: 4 low and 2 high bits, less 32. */
static inline int iq4_xs_scale(const uint8_t *b, int j) {
    int scale = b[4 + j / 2] >> (4 * (j % 2)) & 15;
    scale |= (load_u16(b + 2) >> (2 * j) & 3) << 4;
    return scale - 32;
}

#endif
