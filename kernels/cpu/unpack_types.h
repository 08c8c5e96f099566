/* unpack_types.h - how packed blocks lie in memory, and loads of any alignment; fast tiers only.
 *
 * Functions take the type as a constant and are inlined into one kernel a type.
 */
#ifndef SILICEO_KERNELS_CPU_UNPACK_TYPES_H
#define SILICEO_KERNELS_CPU_UNPACK_TYPES_H

#include "common/quant_type.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
/* Before a loop of constant length whose arrays should be registers. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE uint16_t load16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint32_t load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint64_t load64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE __m256i load_256(const void *p) {
    return _mm256_loadu_si256(p);
}

INLINE __m128i load_128(const void *p) {
    return _mm_loadu_si128(p);
}

/* Does a block of 256 have eight scales and eight minima of 6 bits? */
INLINE bool is_k4(quant_type type) {
    return type == QUANT_Q4_K || type == QUANT_Q5_K;
}

INLINE bool has_min(quant_type type) {
    return is_k4(type) || type == QUANT_Q2_K || type == QUANT_Q4_1 || type == QUANT_Q5_1;
}

/* Columns of a block of 256 that have one scale. */
INLINE int group_of(quant_type type) {
    return is_k4(type) || type == QUANT_IQ4_XS ? 32 : 16;
}

/* Bytes of a block. */
INLINE size_t bytes_of(quant_type type) {
    switch ((unsigned)type) {
    case QUANT_Q4_0:
    case QUANT_IQ4_NL:
        return 18;
    case QUANT_Q4_1:
        return 20;
    case QUANT_Q5_0:
        return 22;
    case QUANT_Q5_1:
        return 24;
    case QUANT_Q8_0:
        return 34;
    case QUANT_MXFP4:
        return 17;
    case QUANT_Q2_K:
        return 84;
    case QUANT_Q3_K:
        return 110;
    case QUANT_Q4_K:
        return 144;
    case QUANT_Q5_K:
        return 176;
    case QUANT_Q6_K:
        return 210;
    default:
        return 136; /* IQ4_XS */
    }
}

/* Where d stands in a block of 256; dmin, where there is one, is behind it. */
INLINE size_t factor_at(quant_type type) {
    return type == QUANT_Q6_K ? 208 : type == QUANT_Q3_K ? 108 : type == QUANT_Q2_K ? 80 : 0;
}

/* Where the nibbles stand in a block of 32. */
INLINE size_t nibbles_at(quant_type type) {
    switch ((unsigned)type) {
    case QUANT_Q4_1:
        return 4;
    case QUANT_Q5_0:
        return 6;
    case QUANT_Q5_1:
        return 8;
    case QUANT_MXFP4:
        return 1;
    default:
        return 2;
    }
}

/* The 8 scales of a block. */
INLINE __m128i scales_iq4_xs(const uint8_t *b) {
    uint64_t low = _pdep_u64(load32(b + 4), 0x0f0f0f0f0f0f0f0fu);
    uint64_t high = _pdep_u64(load16(b + 2), 0x3030303030303030u);
    return _mm_sub_epi8(_mm_cvtsi64_si128((long long)(low | high)), _mm_set1_epi8(32));
}

/* Four halves, one of each row. */
INLINE uint64_t halves_of_rows(const uint8_t *const b[4], size_t at) {
    return load16(b[0] + at) | (uint64_t)load16(b[1] + at) << 16 |
           (uint64_t)load16(b[2] + at) << 32 | (uint64_t)load16(b[3] + at) << 48;
}

INLINE __m128 factors_of_rows(const uint8_t *const b[4], size_t at) {
    return _mm_cvtph_ps(_mm_cvtsi64_si128((long long)halves_of_rows(b, at)));
}

#endif
