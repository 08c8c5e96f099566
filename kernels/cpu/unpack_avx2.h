/* unpack_avx2.h - packed blocks to vectors of 32 values and scales; AVX2 kernels only.
 *
 * Functions take the type as a constant and are inlined into one kernel a type.
 */
#ifndef SILICEO_KERNELS_CPU_UNPACK_AVX2_H
#define SILICEO_KERNELS_CPU_UNPACK_AVX2_H

#include "kernels/cpu/unpack_types.h"

/* Values with a sign; all others are unsigned and stand offset_of() too high. */
INLINE bool is_signed(quant_type type) {
    return type == QUANT_Q8_0 || type == QUANT_IQ4_NL || type == QUANT_IQ4_XS ||
           type == QUANT_MXFP4;
}

INLINE int offset_of(quant_type type) {
    switch ((unsigned)type) {
    case QUANT_Q6_K:
        return 32;
    case QUANT_Q5_0:
        return 16;
    case QUANT_Q4_0:
        return 8;
    case QUANT_Q3_K:
        return 4;
    default:
        return 0;
    }
}

INLINE __m256i iq4_table(void) {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1, 13, 25, 38, 53, 69, 89, 113));
}

INLINE __m256i mxfp4_table(void) {
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
}

INLINE __m256i low_nibbles(__m256i x) {
    return _mm256_and_si256(x, _mm256_set1_epi8(15));
}

/* 16 bytes to 32 nibbles, low ones first. */
INLINE __m256i nibbles_of_16(__m128i x) {
    return low_nibbles(
        _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1));
}

/* The bits of mask after a shift right by n (left where n is negative) inside bytes. */
INLINE __m256i shifted_bits(__m256i x, int n, int mask) {
    __m256i y = n >= 0 ? _mm256_srli_epi16(x, n) : _mm256_slli_epi16(x, -n);
    return _mm256_and_si256(y, _mm256_set1_epi8((char)mask));
}

/* Values of the 32 columns of group j of a block of 256. */
INLINE __m256i unpack_group(quant_type type, const uint8_t *b, const int j) {
    const int half = j / 4, g = j % 4;
    __m256i x;
    switch ((unsigned)type) {
    case QUANT_Q2_K:
        return shifted_bits(load_256(b + 16 + 32 * half), 2 * g, 3);
    case QUANT_Q3_K:
        x = shifted_bits(load_256(b + 32 + 32 * half), 2 * g, 3);
        return _mm256_or_si256(x, shifted_bits(load_256(b), j - 2, 4));
    case QUANT_Q6_K:
        x = load_256(b + 64 * half + 32 * (g % 2));
        x = low_nibbles(g >= 2 ? _mm256_srli_epi16(x, 4) : x);
        return _mm256_or_si256(x, shifted_bits(load_256(b + 128 + 32 * half), 2 * g - 4, 0x30));
    case QUANT_IQ4_XS:
        return _mm256_shuffle_epi8(iq4_table(), nibbles_of_16(load_128(b + 8 + 16 * j)));
    default:
        x = load_256(b + (type == QUANT_Q5_K ? 48 : 16) + 32 * (j / 2));
        x = low_nibbles(j % 2 ? _mm256_srli_epi16(x, 4) : x);
        if (type != QUANT_Q5_K) return x;
        return _mm256_or_si256(x, shifted_bits(load_256(b + 16), j - 4, 16));
    }
}

/* 12 packed bytes to 8 scales and 8 minima of 6 bits. */
INLINE void scales_k4(const uint8_t *s, uint64_t *scales, uint64_t *mins) {
    uint32_t a = load32(s), b = load32(s + 4), c = load32(s + 8);
    *scales = (a & 0x3f3f3f3f) | (uint64_t)((c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4)
                                     << 32;
    *mins = (b & 0x3f3f3f3f) | (uint64_t)((c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4)
                                   << 32;
}

/* 12 packed bytes to 16 scales. */
INLINE __m128i scales_q3_k(const uint8_t *s) {
    uint64_t a = load64(s), c = load32(s + 8);
    uint64_t first =
        (a & 0x0f0f0f0f0f0f0f0fu) | (c & 0x03030303) << 4 | (c >> 2 & 0x03030303) << 36;
    uint64_t last = (a >> 4 & 0x0f0f0f0f0f0f0f0fu) | (c >> 4 & 0x03030303) << 4 |
                    (c >> 6 & 0x03030303) << 36;
    return _mm_sub_epi8(_mm_set_epi64x((long long)last, (long long)first), _mm_set1_epi8(32));
}

/* The scales of a block in 16 bits: 16 of them, or 8 twice (one copy a 128-bit lane). */
INLINE __m256i scales_256(quant_type type, const uint8_t *b, __m256i *mins) {
    uint64_t scales, k4_mins;
    __m128i x;
    *mins = _mm256_setzero_si256();
    switch ((unsigned)type) {
    case QUANT_Q2_K:
        x = load_128(b);
        *mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(x, 4), _mm_set1_epi8(15)));
        return _mm256_cvtepu8_epi16(_mm_and_si128(x, _mm_set1_epi8(15)));
    case QUANT_Q3_K:
        return _mm256_cvtepi8_epi16(scales_q3_k(b + 96));
    case QUANT_Q6_K:
        return _mm256_cvtepi8_epi16(load_128(b + 192));
    case QUANT_IQ4_XS:
        return _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(scales_iq4_xs(b)));
    default:
        scales_k4(b + 4, &scales, &k4_mins);
        *mins =
            _mm256_castsi128_si256(_mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)k4_mins)));
        return _mm256_broadcastsi128_si256(
            _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)scales)));
    }
}

/* The scales of group j of 32 columns, in every 16-bit lane; groups of 16 have one in
 * each 128-bit lane. */
INLINE __m256i spread_scale(quant_type type, __m256i scales, const int j) {
    if (group_of(type) == 32) {
        return _mm256_shuffle_epi8(scales,
                                   _mm256_set1_epi16((short)((2 * j + 1) << 8 | 2 * j)));
    }
    __m256i eight =
        j < 4 ? _mm256_permute4x64_epi64(scales, 0x44) : _mm256_permute4x64_epi64(scales, 0xee);
    int at = 4 * (j % 4); /* the byte of the even group of 16 */
    return _mm256_shuffle_epi8(
        eight, _mm256_set_m128i(_mm_set1_epi16((short)((at + 3) << 8 | (at + 2))),
                                _mm_set1_epi16((short)((at + 1) << 8 | at))));
}

/* ---- blocks of 32 ---- */

/* 32 bits to bytes of 16 where they are set. */
INLINE __m256i fifth_bits(uint32_t bits) {
    __m256i x = _mm256_shuffle_epi8(
        _mm256_set1_epi32((int)bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    x = _mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit);
    return _mm256_and_si256(x, _mm256_set1_epi8(16));
}

INLINE __m256i unpack_32(quant_type type, const uint8_t *b) {
    if (type == QUANT_Q8_0) return load_256(b + 2);
    size_t at = nibbles_at(type);
    __m256i v = nibbles_of_16(load_128(b + at));
    if (type == QUANT_Q5_0 || type == QUANT_Q5_1) {
        return _mm256_or_si256(v, fifth_bits(load32(b + at - 4)));
    }
    if (type == QUANT_IQ4_NL) return _mm256_shuffle_epi8(iq4_table(), v);
    if (type == QUANT_MXFP4) return _mm256_shuffle_epi8(mxfp4_table(), v);
    return v;
}

/* 2^(e - 128) for the exponent bytes of four rows. */
INLINE __m128 factors_mxfp4(const uint8_t *const b[4]) {
    __m128i e = _mm_setr_epi32(b[0][0], b[1][0], b[2][0], b[3][0]);
    __m128i normal = _mm_slli_epi32(_mm_sub_epi32(e, _mm_set1_epi32(1)), 23);
    __m128i subnormal = _mm_sllv_epi32(_mm_set1_epi32(0x00200000), e);
    __m128i is_subnormal = _mm_cmplt_epi32(e, _mm_set1_epi32(2));
    return _mm_castsi128_ps(_mm_blendv_epi8(normal, subnormal, is_subnormal));
}

/* ---- products and factors ---- */

/* Sums of two neighbouring products, in 16 bits. */
INLINE __m256i multiply_pairs(quant_type type, __m256i w, __m256i q) {
    if (is_signed(type))
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
    return _mm256_maddubs_epi16(w, q);
}

#endif
